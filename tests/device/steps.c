/* Runs images and writes what they give, for `tests/device.rs`. Words of 32 bits in and out, in the
 * order of this machine. Standard input: for each image its bytes, the number of steps, the words of
 * a step, the image, and the inputs. Standard output: what hk_check returned; behind HK_OK inputs,
 * outputs, tokens, floats of state and of work; for each step what it returned, and the logits.
 *
 * Image, state and work are blocks of their own of the very size, so that a sanitizer sees a step
 * beside them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "hankelite.h"

static int get(void *to, size_t bytes) { return fread(to, 1, bytes, stdin) == bytes; }

static void put(uint32_t word) { fwrite(&word, sizeof word, 1, stdout); }

static void *block(size_t bytes) {
    void *made = malloc(bytes > 0 ? bytes : 1);
    if (!made) exit(3);
    return made;
}

static void step(const hk_model *model, float *state, float *work, const void *words) {
    uint32_t token;
    memcpy(&token, words, sizeof token);
    put((uint32_t)(model->tokens ? hk_step_token(model, state, work, token)
                                 : hk_step(model, state, work, (const float *)words)));
    fwrite(hk_logits(model, work), sizeof(float), model->outputs, stdout);
}

static int one(void) {
    uint32_t head[3], k;
    hk_model model;
    void *image, *words;
    float *state, *work;
    int code;
    if (!get(head, sizeof head)) return 0;
    image = block(head[0]);
    words = block((size_t)4 * head[2]);
    if (!get(image, head[0])) exit(2);
    code = hk_check(&model, image, head[0]);
    put((uint32_t)code);
    if (code == HK_OK) {
        put(model.inputs);
        put(model.outputs);
        put(model.tokens);
        put((uint32_t)model.state);
        put((uint32_t)model.work);
    }
    state = (float *)block(hk_state_bytes(&model));
    work = (float *)block(hk_work_bytes(&model));
    /* Of any value: no number. */
    memset(work, 0xff, hk_work_bytes(&model));
    hk_reset(&model, state);
    for (k = 0; k < head[1]; k++) {
        if (!get(words, (size_t)4 * head[2])) exit(2);
        if (code == HK_OK) step(&model, state, work, words);
    }
    free(image);
    free(words);
    free(state);
    free(work);
    return 1;
}

int main(void) {
    while (one()) continue;
    return 0;
}
