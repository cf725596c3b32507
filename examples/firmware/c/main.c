/* Reads sequences of samples, runs one step for each sample, and writes the outputs of the last step.
 *
 * model.h is written by `compress-model pack --c-header model.h`, samples.h by run.py. A real device
 * has its samples from a converter: the loop in `classify` is all that it keeps of this file.
 */
#include "board.h"
#include "hankelite.h"
#include "model.h"
#include "samples.h"

#ifdef MODEL_VOCABULARY
#error "a model of tokens: call hk_step_token"
#endif

#define CALIBRATION 100000u
/* Steps between two looks at the counter, which has few bits. */
#define COUNT_EVERY 64u

static float state[MODEL_STATE], work[MODEL_WORK];
static hk_model model;

static uint32_t bits_of(float number) {
    union { float number; uint32_t bits; } both;
    both.number = number;
    return both.bits;
}

static void need(int holds, const char *what) {
    if (holds) return;
    board_write(what);
    board_exit(1);
}

/* The instructions of a sequence. */
static uint64_t classify(const float *signal) {
    uint64_t past = 0;
    uint32_t step;
    need(hk_reset(&model, state) == HK_OK, "hk_reset\n");
    for (step = 0; step < STEPS; step++, signal += MODEL_INPUTS) {
        need(hk_step(&model, state, work, signal) == HK_OK, "hk_step\n");
        if (step % COUNT_EVERY == 0) past += board_instructions();
    }
    return past + board_instructions();
}

int main(void) {
    uint32_t sequence, output;
    need(hk_check(&model, model_image.bytes, MODEL_IMAGE_BYTES) == HK_OK, "hk_check\n");
    need(model.state == MODEL_STATE && model.work == MODEL_WORK, "model.h: sizes\n");
    board_instructions();
    board_loop(CALIBRATION);
    board_write("loop");
    board_write_number(2 * CALIBRATION);
    board_write_number(board_instructions());
    for (sequence = 0; sequence < SEQUENCES; sequence++) {
        uint64_t past;
        board_instructions();
        past = classify(samples[sequence]);
        board_write("\ninstructions");
        board_write_number((uint32_t)(past >> 32));
        board_write_number((uint32_t)past);
        board_write("\noutputs");
        for (output = 0; output < MODEL_OUTPUTS; output++) board_write_number(bits_of(hk_logits(&model, work)[output]));
    }
    board_write("\nstack");
    board_write_number(board_stack());
    board_write("\n");
    board_exit(0);
}
