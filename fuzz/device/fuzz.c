/* Mutated images through device/hankelite.c: the check, and two steps of what passes it. Mutants that
 * take an edge of the code that none took before are kept and mutated on. `run` compiles this file with
 * the address and the undefined-behaviour sanitizer, which end it, and the runtime so that it reports
 * every edge.
 *
 * Arguments: how many executions, the first number of the random ones, images. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hankelite.h"

/* Longer images make every execution slower and show nothing new. */
#define BYTES 16384u
#define KEPT 8192u
#define EDGES 8192u
/* Steps of images with more layers would only be slow. */
#define LAYERS 32u

static struct {
    uint8_t *bytes;
    size_t length;
} corpus[KEPT];
static size_t kept;
static uint8_t known[EDGES], taken[EDGES];
static uintptr_t before;
static uint64_t state_of_random;

void __sanitizer_cov_trace_pc(void);

void __sanitizer_cov_trace_pc(void) {
    uintptr_t here = (uintptr_t)__builtin_return_address(0);
    taken[(here ^ before) % EDGES] = 1;
    before = here << 3;
}

static uint32_t below(size_t limit) {
    state_of_random ^= state_of_random << 13;
    state_of_random ^= state_of_random >> 7;
    state_of_random ^= state_of_random << 17;
    return (uint32_t)((state_of_random >> 16) % (limit > 0 ? limit : 1));
}

static void *block(size_t bytes) {
    void *made = malloc(bytes > 0 ? bytes : 1);
    if (!made) exit(3);
    return made;
}

static void keep(const uint8_t *bytes, size_t length) {
    size_t index = kept < KEPT ? kept++ : below(KEPT);
    free(corpus[index].bytes);
    corpus[index].bytes = (uint8_t *)block(length);
    corpus[index].length = length;
    memcpy(corpus[index].bytes, bytes, length);
}

/* A word that records hold, or nearly. */
static uint32_t word(const uint8_t *bytes, size_t length) {
    uint32_t found = 0;
    switch (below(8)) {
    case 0: return below(33);
    case 1: return (uint32_t)length - below(65);
    case 2: return (uint32_t)1 << below(32);
    case 3: return UINT32_MAX - below(16);
    case 4: return below(length);
    default:
        if (length >= 4) memcpy(&found, bytes + below(length - 3), 4);
        return found + below(3) - 1;
    }
}

static size_t mutated(uint8_t *bytes, size_t length) {
    unsigned count = 1 + below(4);
    for (; count > 0; count--) {
        /* Header and records more often than weights: the records of layers stand near the end. */
        size_t at = below(3) == 0 ? below(44) : below(2) == 0 ? length - 1 - below(length / 4) : below(length);
        uint32_t other = word(bytes, length);
        if (at + 4 > length) continue;
        switch (below(7)) {
        case 0: bytes[at] = (uint8_t)below(256); break;
        case 1: bytes[at] = (uint8_t)below(8); break;
        case 2: bytes[at] ^= (uint8_t)(1u << below(8)); break;
        case 3: memcpy(bytes + at / 4 * 4, &other, 4); break;
        case 4: memcpy(bytes + at, &other, 2); break;
        case 5: memmove(bytes + at, bytes + below(length - 3), 4); break;
        default:
            if (below(8) > 0) break;
            length = 4 + below(length - 3);
            /* The header holds the length: else nothing of it would be looked at. */
            other = (uint32_t)length;
            if (length >= 16) memcpy(bytes + 12, &other, 4);
        }
        if (length < 8) break;
    }
    return length;
}

static float number(void) {
    static const uint32_t odd[4] = {0x7fc00000u, 0x7f800000u, 0x00000001u, 0xff7fffffu};
    float made;
    if (below(64) > 0) return (float)below(2001) / 1000.0f - 1.0f;
    memcpy(&made, odd + below(4), 4);
    return made;
}

/* 1 for an image that passes the check. */
static int execution(const uint8_t *bytes, size_t length) {
    uint8_t *image = (uint8_t *)block(length);
    hk_model model;
    int code;
    memcpy(image, bytes, length);
    code = hk_check(&model, image, length);
    if (code == HK_OK && image[28] < LAYERS && image[29] + image[30] + image[31] == 0) {
        float *state = (float *)block(hk_state_bytes(&model));
        float *work = (float *)block(hk_work_bytes(&model));
        float *inputs = (float *)block(sizeof(float) * model.inputs);
        volatile float last;
        uint32_t k, i;
        memset(work, 0xff, hk_work_bytes(&model));
        hk_reset(&model, state);
        for (k = 0; k < 2; k++) {
            for (i = 0; i < model.inputs && !model.tokens; i++) inputs[i] = number();
            hk_step(&model, state, work, inputs);
            hk_step_token(&model, state, work, below(model.inputs + 1));
            for (i = 0; i < model.outputs; i++) last = hk_logits(&model, work)[i];
        }
        (void)last;
        free(state);
        free(work);
        free(inputs);
    }
    free(image);
    return code == HK_OK;
}

static size_t learned(void) {
    size_t fresh = 0, i;
    for (i = 0; i < EDGES; i++) {
        fresh += taken[i] > known[i];
        known[i] |= taken[i];
    }
    return fresh;
}

int main(int count, char **arguments) {
    static uint8_t bytes[BYTES];
    unsigned long executions, done, passed = 0, edges = 0;
    int index;
    if (count < 4) return 2;
    executions = strtoul(arguments[1], NULL, 10);
    state_of_random = strtoul(arguments[2], NULL, 10) * 2654435761u + 1;
    for (index = 3; index < count; index++) {
        FILE *file = fopen(arguments[index], "rb");
        size_t length = file ? fread(bytes, 1, BYTES, file) : 0;
        if (file && length > 44 && feof(file)) {
            /* Every seed is an image: one that is refused would make the run worth nothing. */
            if (!execution(bytes, length)) return 4;
            keep(bytes, length);
        }
        if (file) fclose(file);
    }
    if (kept == 0) return 2;
    edges = learned();
    for (done = 0; done < executions; done++) {
        size_t from = below(kept), length = corpus[from].length, fresh;
        memcpy(bytes, corpus[from].bytes, length);
        length = mutated(bytes, length);
        memset(taken, 0, EDGES);
        before = 0;
        passed += (unsigned long)execution(bytes, length);
        fresh = learned();
        edges += fresh;
        if (fresh > 0 && length > 44) keep(bytes, length);
    }
    printf("%lu executions, %lu passed the check, %lu edges, %lu images kept\n", done, passed, edges,
           (unsigned long)kept);
    return 0;
}
