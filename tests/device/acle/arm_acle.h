/* The instructions that hankelite.c takes with HK_DSP, in C, for computers that have none of them. */
#include <stdint.h>

static int32_t byte_of(int32_t word, int place) { return (int8_t)((uint32_t)word >> (8 * place) & 255u); }

static int32_t __ssub8(int32_t a, int32_t b) {
    uint32_t word = 0;
    int i;
    for (i = 0; i < 4; i++) word |= ((uint32_t)(byte_of(a, i) - byte_of(b, i)) & 255u) << (8 * i);
    return (int32_t)word;
}

static int32_t __sxtb16(int32_t a) {
    return (int32_t)(((uint32_t)byte_of(a, 2) & 65535u) << 16 | ((uint32_t)byte_of(a, 0) & 65535u));
}

static int32_t __smlad(int32_t a, int32_t b, int32_t sum) {
    int32_t low = (int16_t)(a & 65535) * (int16_t)(b & 65535);
    return sum + low + (a >> 16) * (b >> 16);
}
