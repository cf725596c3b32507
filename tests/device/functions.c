/* Functions of device/hankelite.c against those of C: the square root, reciprocals, powers of two and
 * half precision. */
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

static int powers(void) {
    int exponent;
    for (exponent = -128; exponent < 128; exponent++) {
        if (power_of_two(exponent) != ldexpf(1.0f, exponent)) {
            printf("2^%d is %a\n", exponent, (double)power_of_two(exponent));
            return 1;
        }
    }
    return 0;
}

static int halves(void) {
    uint32_t bits;
    for (bits = 0; bits < 0x10000u; bits++) {
        uint16_t stored_bits = (uint16_t)bits;
        int exponent = (int)(bits >> 10 & 31), mantissa = (int)(bits & 1023);
        float known = exponent > 0 ? ldexpf((float)(1024 + mantissa), exponent - 25) : ldexpf((float)mantissa, -24);
        if (bits >= 0x8000u) known = -known;
        if (half((const uint8_t *)&stored_bits, 0) != known) {
            printf("the half %#x is %a\n", (unsigned)bits, (double)half((const uint8_t *)&stored_bits, 0));
            return 1;
        }
    }
    return 0;
}

int main(void) { return roots() + reciprocals() + powers() + halves(); }
