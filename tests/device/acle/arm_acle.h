/* The instructions that hankelite.c takes with HK_DSP, in C, for computers that have none of them. */
#include <stdint.h>

static uint32_t __uxtb16(uint32_t word) { return word & 0x00ff00ffu; }

static int32_t half_of(uint32_t word) { return (int32_t)(word & 0xffffu) - ((word & 0x8000u) != 0 ? 65536 : 0); }

static int32_t __smlad(int32_t a, int32_t b, int32_t sum) {
    return sum + half_of((uint32_t)a) * half_of((uint32_t)b) +
           half_of((uint32_t)a >> 16) * half_of((uint32_t)b >> 16);
}
