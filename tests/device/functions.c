/* The square root and the reciprocals of device/hankelite.c against those of C. */
#define HK_NO_MATH
#include "hankelite.c"

#include <math.h>
#include <stdio.h>

static int roots(void) {
    uint64_t bits;
    for (bits = 0; bits < (uint64_t)1 << 32; bits += 997) {
        float x = from_bits((uint32_t)bits), own = root(x), known = sqrtf(x);
        if (own != known && !(own != own && known != known)) {
            printf("the root of %a is %a, expected %a\n", (double)x, (double)own, (double)known);
            return 1;
        }
    }
    return 0;
}

static int reciprocals(void) {
    uint64_t n;
    for (n = 1; n < (uint64_t)1 << 44; n += 1 + n / 100000) {
        float own = reciprocal(n), known = (float)(1.0 / (double)n);
        if (own != known) {
            printf("1/%llu is %a, expected %a\n", (unsigned long long)n, (double)own, (double)known);
            return 1;
        }
    }
    return 0;
}

int main(void) { return roots() + reciprocals(); }
