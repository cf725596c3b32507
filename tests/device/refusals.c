/* What the functions return for pointers that are null or astray, and for the other kind of input.
 * Arguments: an image of numbers, one of tokens. */
#include <stdio.h>
#include <stdlib.h>

#include "hankelite.h"

#define EXPECT(found, expected)                                                     \
    do {                                                                            \
        int code = (found);                                                         \
        if (code != (expected)) {                                                   \
            fprintf(stderr, "%s is %d, expected %s\n", #found, code, #expected);    \
            exit(1);                                                                \
        }                                                                           \
    } while (0)

static uint32_t image[1 << 16];
static float state[1 << 12], work[1 << 12];

static size_t load(const char *path) {
    FILE *file = fopen(path, "rb");
    size_t bytes = file ? fread(image, 1, sizeof image, file) : 0;
    if (file) fclose(file);
    return bytes;
}

int main(int count, char **arguments) {
    static const float inputs[8];
    hk_model model;
    size_t bytes;
    if (count != 3) return 2;
    bytes = load(arguments[1]);
    EXPECT(hk_check(NULL, image, bytes), HK_NULL);
    EXPECT(hk_check(&model, NULL, bytes), HK_NULL);
    EXPECT(hk_check(&model, (const uint8_t *)image + 1, bytes - 1), HK_NULL);
    EXPECT(hk_step(&model, state, work, inputs), HK_NULL);
    EXPECT(hk_check(&model, image, bytes - 1), HK_IMAGE);
    /* A model that failed the check refuses everything, and has no sizes. */
    EXPECT(hk_step(&model, state, work, inputs), HK_NULL);
    EXPECT(hk_step_token(&model, state, work, 0), HK_NULL);
    EXPECT(hk_reset(&model, state), HK_NULL);
    EXPECT(hk_logits(&model, work) == NULL, 1);
    EXPECT(hk_state_bytes(&model) == 0 && hk_work_bytes(&model) == 0, 1);

    EXPECT(hk_check(&model, image, bytes), HK_OK);
    EXPECT(hk_state_bytes(&model) == 4 * model.state && hk_work_bytes(&model) == 4 * model.work, 1);
    EXPECT(model.state <= sizeof state / 4 && model.work <= sizeof work / 4, 1);
    state[0] = 3.0f;
    EXPECT(hk_reset(&model, NULL), HK_NULL);
    EXPECT(hk_reset(&model, state), HK_OK);
    EXPECT(state[0] == 0.0f, 1);
    EXPECT(hk_step(NULL, state, work, inputs), HK_NULL);
    EXPECT(hk_step(&model, NULL, work, inputs), HK_NULL);
    EXPECT(hk_step(&model, state, NULL, inputs), HK_NULL);
    EXPECT(hk_step(&model, state, work, NULL), HK_NULL);
    EXPECT(hk_step_token(&model, state, work, 0), HK_KIND);
    EXPECT(hk_step(&model, state, work, inputs), HK_OK);
    EXPECT(hk_logits(&model, work) == work, 1);

    bytes = load(arguments[2]);
    EXPECT(hk_check(&model, image, bytes), HK_OK);
    EXPECT(model.tokens == 1 && model.inputs == 7, 1);
    EXPECT(hk_step(&model, state, work, inputs), HK_KIND);
    EXPECT(hk_step_token(&model, state, work, 7), HK_TOKEN);
    EXPECT(hk_reset(&model, state), HK_OK);
    EXPECT(hk_step_token(&model, state, NULL, 6), HK_NULL);
    EXPECT(hk_step_token(&model, state, work, 6), HK_OK);
    return 0;
}
