/* What a step of an int8 LSTM by CMSIS-NN costs, to set beside main.c: docs/firmware.md has the command.
 *
 * The weights are noise, so this says nothing about accuracy; an LSTM's instructions do not depend on
 * them. HIDDEN is the number of units.
 */
#include "arm_nnfunctions.h"
#include "board.h"

#define STEPS 16
#define CALIBRATION 100000u

static int8_t inputs[STEPS], outputs[STEPS * HIDDEN], hidden_weights[4][HIDDEN * HIDDEN], input_weights[4][HIDDEN];
static int8_t hidden[HIDDEN];
static int16_t cell[HIDDEN], first[HIDDEN], second[HIDDEN];
static int32_t bias[HIDDEN];

static void noise(int8_t *into, uint32_t count) {
    static uint32_t now = 1;
    for (; count > 0; count--) *into++ = (int8_t)((now = now * 1664525u + 1013904223u) >> 24);
}

static cmsis_nn_lstm_gate gate(int index, arm_nn_activation_type activation) {
    cmsis_nn_lstm_gate made = {1 << 30, -6, input_weights[index], bias, 1 << 30, -6, hidden_weights[index], bias, bias, activation};
    noise(input_weights[index], sizeof input_weights[index]);
    noise(hidden_weights[index], sizeof hidden_weights[index]);
    return made;
}

int main(void) {
    cmsis_nn_lstm_context buffers = {first, second, cell, hidden};
    cmsis_nn_lstm_params params = {
        .time_major = 1, .batch_size = 1, .time_steps = STEPS, .input_size = 1, .hidden_size = HIDDEN,
        .forget_to_cell_multiplier = 1 << 30, .forget_to_cell_shift = -14, .input_to_cell_multiplier = 1 << 30,
        .input_to_cell_shift = -14, .cell_clip = 32767, .cell_scale_power = -12, .output_multiplier = 1 << 30,
        .output_shift = -22, .forget_gate = gate(0, ARM_SIGMOID), .input_gate = gate(1, ARM_SIGMOID),
        .cell_gate = gate(2, ARM_TANH), .output_gate = gate(3, ARM_SIGMOID)};
    noise(inputs, STEPS);
    board_instructions();
    board_loop(CALIBRATION);
    board_write("loop");
    board_write_number(2 * CALIBRATION);
    board_write_number(board_instructions());
    if (arm_lstm_unidirectional_s8(inputs, outputs, &params, &buffers) != ARM_CMSIS_NN_SUCCESS) board_exit(1);
    board_write("\na step");
    board_write_number(board_instructions() / STEPS);
    board_write("\n");
    board_exit(0);
}
