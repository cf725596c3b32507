/* An int8 LSTM by CMSIS-NN, a sample at a time, to set beside main.c: docs/firmware.md has the commands.
 *
 * It classifies the sequences of lstm.h, which tests/reference/train_lstm.py writes. With HIDDEN, the number
 * of units, it takes weights of noise in place of that file: an LSTM's instructions do not depend on them.
 */
#include "arm_nnfunctions.h"
#include "board.h"

#define CALIBRATION 100000u

#ifndef HIDDEN
#include "lstm.h"
#else
#define NOISE
#define STEPS 784
#define CLASSES 10
#define SEQUENCES 1
#define CELL_SCALE_POWER -12
#define OUTPUT_MULTIPLIER (1 << 30)
#define OUTPUT_SHIFT -22
static int8_t samples[SEQUENCES][STEPS], input_weights[4][HIDDEN], hidden_weights[4][HIDDEN * HIDDEN];
static int8_t decoder_weights[CLASSES][HIDDEN];
static const int32_t biases[4][HIDDEN], decoder_biases[CLASSES];
#define FACTORS {1 << 30, -6, 1 << 30, -6}
static const int32_t factors[4][4] = {FACTORS, FACTORS, FACTORS, FACTORS};
static const uint8_t labels[SEQUENCES];

static void noise(int8_t *into, uint32_t count) {
    static uint32_t now = 1;
    for (; count > 0; count--) *into++ = (int8_t)((now = now * 1664525u + 1013904223u) >> 24);
}
#endif

/* The state, and the sums of the hidden states, which stand for their mean. */
static int8_t hidden[HIDDEN];
static int16_t cell[HIDDEN];
static int32_t sums[HIDDEN];

/* The room for a step. */
static int8_t output[HIDDEN];
static int16_t first[HIDDEN], second[HIDDEN];

/* The zero point of the hidden states is 0, and each gate has one bias. */
static const int32_t no_bias[HIDDEN];

static cmsis_nn_lstm_gate gate(int index, arm_nn_activation_type activation) {
    const int32_t *by = factors[index];
    cmsis_nn_lstm_gate made = {
        .input_multiplier = by[0], .input_shift = by[1], .input_weights = input_weights[index],
        .input_effective_bias = biases[index], .hidden_multiplier = by[2], .hidden_shift = by[3],
        .hidden_weights = hidden_weights[index], .hidden_effective_bias = no_bias, .activation_type = activation};
    return made;
}

static void classify(const cmsis_nn_lstm_params *params, const int8_t *signal, int32_t *logits) {
    cmsis_nn_lstm_context buffers = {first, second, cell, hidden};
    int step, unit, class;
    memset(hidden, 0, sizeof hidden);
    memset(cell, 0, sizeof cell);
    memset(sums, 0, sizeof sums);
    for (step = 0; step < STEPS; step++) {
        if (arm_lstm_unidirectional_s8(signal + step, output, params, &buffers) != ARM_CMSIS_NN_SUCCESS) board_exit(1);
        for (unit = 0; unit < HIDDEN; unit++) sums[unit] += output[unit];
    }
    for (class = 0; class < CLASSES; class++) {
        logits[class] = decoder_biases[class];
        for (unit = 0; unit < HIDDEN; unit++) logits[class] += decoder_weights[class][unit] * sums[unit];
    }
}

int main(void) {
    const cmsis_nn_lstm_params params = {
        .time_major = 1, .batch_size = 1, .time_steps = 1, .input_size = 1, .hidden_size = HIDDEN,
        .forget_to_cell_multiplier = 1 << 30, .forget_to_cell_shift = -14, .input_to_cell_multiplier = 1 << 30,
        .input_to_cell_shift = -29 - CELL_SCALE_POWER, .cell_clip = 32767, .cell_scale_power = CELL_SCALE_POWER,
        .output_multiplier = OUTPUT_MULTIPLIER, .output_shift = OUTPUT_SHIFT, .forget_gate = gate(0, ARM_SIGMOID),
        .input_gate = gate(1, ARM_SIGMOID), .cell_gate = gate(2, ARM_TANH), .output_gate = gate(3, ARM_SIGMOID)};
    uint32_t sequence, past = 0, right = 0;
#ifdef NOISE
    noise(samples[0], sizeof samples);
    noise(input_weights[0], sizeof input_weights);
    noise(hidden_weights[0], sizeof hidden_weights);
    noise(decoder_weights[0], sizeof decoder_weights);
#endif
    board_instructions();
    board_loop(CALIBRATION);
    board_write("loop");
    board_write_number(2 * CALIBRATION);
    board_write_number(board_instructions());
    for (sequence = 0; sequence < SEQUENCES; sequence++) {
        int32_t logits[CLASSES];
        int class, best = 0;
        board_instructions();
        classify(&params, samples[sequence], logits);
        past = board_instructions();
        board_write("\noutputs");
        for (class = 0; class < CLASSES; class++) {
            board_write_number((uint32_t)logits[class]);
            if (logits[class] > logits[best]) best = class;
        }
        right += best == labels[sequence];
    }
    board_write("\nright");
    board_write_number(right);
    board_write("\na step");
    board_write_number(past / STEPS);
    board_write("\n");
    board_exit(0);
}
