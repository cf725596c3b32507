/* The runtime of hankelite.h. It computes what crates/edge computes, in the same order.
 *
 * Layout of an image: the records of crates/edge/src/record.rs, little-endian. Places count bytes
 * from its start; 0 stands for what is absent.
 */
#include "hankelite.h"

#include <float.h>
#ifndef HK_NO_MATH
#include <math.h>
#endif
#ifdef HK_DSP
#include <arm_acle.h>
#endif

#if FLT_RADIX != 2 || FLT_MANT_DIG != 24 || FLT_MAX_EXP != 128
#error "float is not IEEE single precision"
#endif
#ifdef __FAST_MATH__
#error "sums may not be reordered: compile without -ffast-math"
#endif

/* Channels or rows that stand side by side. */
#define LANES 16u
/* Inputs whose products go to different sums. */
#define SUMS 4u
/* Bytes of four inputs of sixteen rows of 8 bits. */
#define QUADS 64u
/* Bytes of the records. */
#define HEADER 44u
#define LAYER 32u
#define SHARED_SYSTEM 16u
#define MATRIX 24u
/* Numbers of the state that count steps. */
#define COUNT 2u
/* Added to every input of a recurrence: states that decay do not end as subnormal numbers. */
#define TINY 1e-20f
/* 1.5 * 2^23: a sum with it has the rounded number, ties to even, in its lowest bits. */
#define ROUNDING 12582912.0f

enum { NONE = 0 };
enum { LINEAR = 1, EMBEDDING = 2 };
enum { CHANNELS = 1, SHARED = 2 };
enum { LAYER_NORM = 1, AFFINE = 2 };
enum { MIXED = 1, GATED = 2, ACTIVATED = 3, RESPONSE = 4 };
enum { GELU_TANH = 1 };
enum { MEAN = 1, LAST = 2 };
enum { FULL = 0, HALF = 1 };
enum { BF16 = 1, INT8 = 2, INT4 = 3, INT3 = 4, INT2 = 5 };

/* ---- Numbers ---- */

static uint32_t le16(const uint8_t *at) { return (uint32_t)at[0] | (uint32_t)at[1] << 8; }

static uint32_t le32(const uint8_t *at) { return le16(at) | le16(at + 2) << 16; }

static float from_bits(uint32_t bits) {
    union { uint32_t bits; float number; } both;
    both.bits = bits;
    return both.number;
}

static uint32_t to_bits(float number) {
    union { uint32_t bits; float number; } both;
    both.number = number;
    return both.bits;
}

#if defined(__GNUC__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && !defined(HK_BYTES)
/* Where bytes may be read as numbers in their place. Everything read so was found to be aligned. */
#define ALIGNMENT 4u
typedef float float_in_place __attribute__((may_alias));
typedef uint16_t word_in_place __attribute__((may_alias));

static float full(const uint8_t *at, size_t index) {
    return ((const float_in_place *)(const void *)at)[index];
}

static uint32_t word(const uint8_t *at, size_t index) {
    return ((const word_in_place *)(const void *)at)[index];
}
#else
#define ALIGNMENT 1u

static float full(const uint8_t *at, size_t index) { return from_bits(le32(at + 4 * index)); }

static uint32_t word(const uint8_t *at, size_t index) { return le16(at + 2 * index); }
#endif

/* From IEEE half precision: sign, exponent and mantissa where a float has them; the exponents differ
 * by 112. */
static float half(const uint8_t *at, size_t index) {
    uint32_t bits = word(at, index);
    return from_bits((bits & 0x8000u) << 16 | (bits & 0x7fffu) << 13) * 0x1p112f;
}

/* From the upper half of a float. */
static float bf16(const uint8_t *at, size_t index) { return from_bits(word(at, index) << 16); }

/* Numbers of an image, full or half. */
static float stored(const uint8_t *at, uint32_t numbers, size_t index) {
    return numbers == HALF ? half(at, index) : full(at, index);
}

/* 2 to a power from -128 to 127. */
static float power_of_two(int exponent) {
    if (exponent < -126) return from_bits((uint32_t)1 << (exponent + 149));
    return from_bits((uint32_t)(exponent + 127) << 23);
}

#ifdef HK_NO_MATH
/* The square root, rounded to the nearest. With x = m 2^q, q odd and m below 2^25, the root of
 * m 2^25 has 25 bits: those of the result and one more, which is never a tie. */
static float root(float x) {
    uint32_t bits = to_bits(x), result = 0, bit = (uint32_t)1 << 24;
    int exponent = (int)(bits >> 23);
    uint64_t m = bits & 0x7fffffu;
    if (x == 0.0f || bits == 0x7f800000u) return x;
    if (!(x > 0.0f)) return (x - x) / (x - x);
    if (exponent > 0) {
        m |= 0x800000u;
    } else {
        for (exponent = 1; m < 0x800000u; m <<= 1) exponent--;
    }
    if (exponent % 2 == 0) {
        m <<= 1;
        exponent--;
    }
    m <<= 25;
    for (; bit > 0; bit >>= 1) {
        uint64_t tried = result | bit;
        if (tried * tried <= m) result = (uint32_t)tried;
    }
    return from_bits(((uint32_t)((exponent + 127) / 2 - 1) << 23) + ((result + 1) >> 1));
}
#else
static float root(float x) { return sqrtf(x); }
#endif

/* e^x for |x| <= 80: x = k ln 2 + r, e^r by its Taylor polynomial, 2^k by the exponent. */
static float exponential(float x) {
    float shifted = x * 1.44269504088896341f + ROUNDING;
    float k = shifted - ROUNDING;
    float r = x - k * 0.6933594f - k * -2.1219444e-4f;
    float p = 1.0f / 5040.0f;
    p = p * r + 1.0f / 720.0f;
    p = p * r + 1.0f / 120.0f;
    p = p * r + 1.0f / 24.0f;
    p = p * r + 1.0f / 6.0f;
    p = p * r + 0.5f;
    p = p * r + 1.0f;
    p = p * r + 1.0f;
    return p * from_bits((to_bits(shifted) << 23) + 0x3f800000u);
}

/* A number that is none stays none. */
static float clamped(float x, float limit) {
    if (x < -limit) return -limit;
    return x > limit ? limit : x;
}

static float sigmoid(float x) { return 1.0f / (1.0f + exponential(clamped(-x, 80.0f))); }

/* erf to 5e-7, with the coefficients of crates/edge/src/real.rs. */
static float error_function(float x) {
    float square, p, q;
    x = clamped(x, 4.0f);
    square = x * x;
    p = -2.72614225801306e-10f;
    p = p * square + 2.77068142495902e-08f;
    p = p * square + -2.10102402082508e-06f;
    p = p * square + -5.69250639462346e-05f;
    p = p * square + -7.34990630326855e-04f;
    p = p * square + -2.95459980854025e-03f;
    p = p * square + -1.60960333262415e-02f;
    q = -1.45660718464996e-05f;
    q = q * square + -2.13374055278905e-04f;
    q = q * square + -1.68282697438203e-03f;
    q = q * square + -7.37332916720468e-03f;
    q = q * square + -1.42647390514189e-02f;
    return x * p / q;
}

static float gelu(float x) { return x * (0.5f + 0.5f * error_function(x * 0.707106781186547524f)); }

/* x / (1 + e^(-2z)) with z = sqrt(2/pi) (x + 0.044715 x^3). */
static float gelu_tanh(float x) {
    return x * sigmoid(x * (1.5957691669464111f + 0.07135481387376785f * (x * x)));
}

static void copy(float *to, const float *from, size_t count) {
    size_t i;
    for (i = 0; i < count; i++) to[i] = from[i];
}

static size_t padded(size_t count) { return (count + LANES - 1) / LANES * LANES; }

/* ---- Records ---- */

typedef struct {
    uint32_t dynamics, lanes, numbers, norm, before, mixing;
    int pole_exponent, residue_exponent;
    uint32_t modes_at, systems_at, places_at, feedthrough_at, norm_at, mixing_at;
} layer_record;

typedef struct {
    uint32_t entries, numbers, group, outputs, inputs, weights_at, scales_at, bias_at;
} matrix_record;

typedef struct {
    uint32_t modes, poles_at, input_at, output_at;
} shared_record;

static int signed_byte(uint8_t byte) { return byte < 128 ? byte : byte - 256; }

static layer_record read_layer(const uint8_t *at) {
    layer_record layer;
    layer.dynamics = at[0];
    layer.lanes = at[1];
    layer.numbers = at[2];
    layer.pole_exponent = signed_byte(at[3]);
    layer.residue_exponent = signed_byte(at[4]);
    layer.norm = at[5];
    layer.before = at[6];
    layer.mixing = at[7];
    layer.modes_at = le32(at + 8);
    layer.systems_at = le32(at + 12);
    layer.places_at = le32(at + 16);
    layer.feedthrough_at = le32(at + 20);
    layer.norm_at = le32(at + 24);
    layer.mixing_at = le32(at + 28);
    return layer;
}

static matrix_record read_matrix(const uint8_t *at) {
    matrix_record matrix;
    matrix.entries = at[0];
    matrix.numbers = at[1];
    matrix.group = le16(at + 2);
    matrix.outputs = le32(at + 4);
    matrix.inputs = le32(at + 8);
    matrix.weights_at = le32(at + 12);
    matrix.scales_at = le32(at + 16);
    matrix.bias_at = le32(at + 20);
    return matrix;
}

static shared_record read_shared(const uint8_t *at) {
    shared_record system;
    system.modes = le32(at);
    system.poles_at = le32(at + 4);
    system.input_at = le32(at + 8);
    system.output_at = le32(at + 12);
    return system;
}

/* What the header records beside the sizes of hk_model. */
static uint32_t encoder_of(const hk_model *model) { return model->image[9]; }
static uint32_t pooling_of(const hk_model *model) { return model->image[10]; }
static uint32_t activation_of(const hk_model *model) { return model->image[11]; }
static uint32_t channels_of(const hk_model *model) { return le32(model->image + 20); }
static uint32_t layers_of(const hk_model *model) { return le32(model->image + 28); }
static uint32_t layers_at(const hk_model *model) { return le32(model->image + 32); }
static uint32_t encoder_at(const hk_model *model) { return le32(model->image + 36); }
static uint32_t head_at(const hk_model *model) { return le32(model->image + 40); }

/* The channel in a lane. */
static size_t place(const hk_model *model, const layer_record *layer, size_t lane) {
    const uint8_t *at = model->image + layer->places_at;
    return model->width <= 256 ? at[lane] : word(at, lane);
}

/* What the numbers of feedthrough and norm are. */
static uint32_t feedthrough_numbers(const layer_record *layer) {
    return layer->dynamics == CHANNELS ? layer->numbers : FULL;
}

static uint32_t norm_numbers(const layer_record *layer) {
    return layer->norm == LAYER_NORM ? layer->numbers : FULL;
}

/* ---- The check: sums and products of 64 bits, which none of these overflow ---- */

/* What it finds out beside the sizes. */
typedef struct {
    hk_model *model;
    uint64_t state;
    uint64_t shared;  /* numbers of the widest system that channels share */
    uint64_t rounded; /* words of the widest inputs that are rounded to 8 bits */
} checking;

#define TRY(call)                       \
    do {                                \
        int fault = (call);             \
        if (fault != HK_OK) return fault; \
    } while (0)

static int expected(int holds) { return holds ? HK_OK : HK_RECORD; }

/* `count` numbers of `size` bytes at `at`. */
static int inside(const hk_model *model, uint64_t at, uint64_t count, uint32_t size) {
    int whole = count <= model->bytes && at + count * size <= model->bytes;
    return whole && (at & (size - 1)) == 0 ? HK_OK : HK_OUTSIDE;
}

static int inside_stored(const hk_model *model, uint64_t at, uint64_t count, uint32_t numbers) {
    return inside(model, at, count, numbers == HALF ? 2 : 4);
}

static uint64_t ceiling(uint32_t count, uint32_t unit) { return count / unit + (count % unit != 0); }

/* Bytes of sixteen rows of integers. */
static uint64_t tile_bytes(uint32_t entries, uint32_t inputs) {
    if (entries == INT3) return ceiling(inputs, 32) * 3 * QUADS;
    return ceiling(inputs, entries == INT8 ? 4 : entries == INT4 ? 8 : 16) * QUADS;
}

static int check_integers(checking *check, const matrix_record *matrix) {
    uint32_t unit = matrix->entries == INT3 ? 32 : 16;
    uint64_t groups, bytes, words;
    TRY(expected(matrix->group > 0 && matrix->group % unit == 0));
    groups = ceiling(matrix->inputs, matrix->group);
    bytes = tile_bytes(matrix->entries, matrix->inputs) * (matrix->outputs / LANES);
    TRY(inside(check->model, matrix->weights_at, bytes, 1));
    TRY(inside(check->model, matrix->scales_at, matrix->outputs * groups, 2));
    words = 1 + groups + ceiling(matrix->inputs, 32) * 8;
    if (words > check->rounded) check->rounded = words;
    return HK_OK;
}

static int check_matrix(checking *check, uint32_t at, uint64_t outputs, uint64_t inputs) {
    const hk_model *model = check->model;
    matrix_record matrix;
    TRY(inside(model, at, MATRIX, 1));
    matrix = read_matrix(model->image + at);
    TRY(expected(matrix.outputs == outputs && matrix.inputs == inputs));
    TRY(expected(matrix.entries <= INT2 && matrix.numbers <= HALF));
    if (matrix.entries > BF16) {
        TRY(check_integers(check, &matrix));
    } else {
        uint32_t size = matrix.entries == BF16 ? 2 : 4;
        TRY(inside(model, matrix.weights_at, outputs * inputs, size));
    }
    if (matrix.bias_at == 0) return HK_OK;
    return inside_stored(model, matrix.bias_at, outputs, matrix.numbers);
}

static int check_channels(checking *check, const layer_record *layer) {
    const hk_model *model = check->model;
    uint32_t lanes = layer->lanes, group, lane;
    uint64_t modes = 0;
    TRY(expected(lanes == 4 || lanes == 8 || lanes == 16));
    TRY(inside(model, layer->modes_at, model->width / lanes, 2));
    for (group = 0; group < model->width / lanes; group++)
        modes += word(model->image + layer->modes_at, group);
    TRY(inside_stored(model, layer->systems_at, modes * 4 * lanes, layer->numbers));
    check->state += modes * 2 * lanes;
    if (layer->places_at == 0) return HK_OK;
    TRY(inside(model, layer->places_at, model->width, model->width <= 256 ? 1 : 2));
    for (lane = 0; lane < model->width; lane++)
        TRY(expected(place(model, layer, lane) < model->width));
    return HK_OK;
}

static int check_shared(checking *check, const layer_record *layer) {
    const hk_model *model = check->model;
    uint32_t channels = channels_of(model);
    shared_record system;
    uint64_t parts, columns;
    TRY(inside(model, layer->systems_at, SHARED_SYSTEM, 1));
    system = read_shared(model->image + layer->systems_at);
    TRY(expected(system.modes <= (uint32_t)1 << 20));
    parts = padded((size_t)2 * system.modes);
    TRY(inside(model, system.poles_at, (uint64_t)2 * system.modes, 4));
    TRY(check_matrix(check, system.input_at, parts, channels));
    TRY(inside(model, system.output_at, MATRIX, 1));
    columns = read_matrix(model->image + system.output_at).inputs;
    /* Where D is dense it stands beside C. */
    TRY(check_matrix(check, system.output_at, model->width, columns == parts ? parts : parts + channels));
    check->state += parts;
    if (parts + model->width > check->shared) check->shared = parts + model->width;
    return HK_OK;
}

static int check_layer(checking *check, uint32_t index) {
    const hk_model *model = check->model;
    uint64_t at = layers_at(model) + (uint64_t)index * LAYER;
    layer_record layer;
    TRY(inside(model, at, LAYER, 1));
    layer = read_layer(model->image + at);
    TRY(expected(layer.dynamics <= SHARED && layer.numbers <= HALF));
    TRY(expected(layer.norm <= AFFINE && layer.mixing <= RESPONSE));
    /* A layer without dynamics is its norm. */
    TRY(expected(layer.dynamics != NONE || layer.norm != NONE));
    if (layer.dynamics == CHANNELS) TRY(check_channels(check, &layer));
    if (layer.dynamics == SHARED) TRY(check_shared(check, &layer));
    if (layer.feedthrough_at != 0)
        TRY(inside_stored(model, layer.feedthrough_at, model->width, feedthrough_numbers(&layer)));
    if (layer.norm != NONE) {
        uint64_t numbers = (uint64_t)2 * model->width;
        TRY(inside(model, layer.norm_at, 1, 4));
        TRY(inside_stored(model, (uint64_t)layer.norm_at + 4, numbers, norm_numbers(&layer)));
    }
    if (layer.mixing == NONE) return HK_OK;
    return check_matrix(check, layer.mixing_at, (layer.mixing == GATED ? 2 : 1) * (uint64_t)model->width,
                        channels_of(model));
}

static int check_ends(checking *check) {
    const hk_model *model = check->model;
    uint32_t channels = channels_of(model);
    switch (encoder_of(model)) {
    case NONE:
        TRY(expected(model->inputs == channels));
        break;
    case LINEAR:
        TRY(check_matrix(check, encoder_at(model), model->width, model->inputs));
        break;
    case EMBEDDING:
        TRY(inside(model, encoder_at(model), (uint64_t)model->inputs * model->width, 4));
        break;
    default:
        return HK_RECORD;
    }
    TRY(expected(pooling_of(model) <= LAST && activation_of(model) <= GELU_TANH));
    if (head_at(model) == 0) return expected(model->outputs == channels);
    return check_matrix(check, head_at(model), padded(model->outputs), channels);
}

static int check_size(uint32_t found) { return expected(found > 0 && found <= (uint32_t)1 << 24); }

static int check_header(hk_model *model) {
    const uint8_t *image = model->image;
    uint64_t channels, layers;
    if (model->bytes < HEADER) return HK_OUTSIDE;
    if (le32(image) != 0x454c4b48u) return HK_IMAGE; /* HKLE */
    if (le32(image + 4) != 4) return HK_VERSION;
    if (image[8] != 4 || le32(image + 12) != model->bytes) return HK_IMAGE;
    model->inputs = le32(image + 16);
    model->outputs = le32(image + 24);
    model->tokens = encoder_of(model) == EMBEDDING;
    TRY(check_size(model->inputs));
    TRY(check_size(channels_of(model)));
    TRY(check_size(model->outputs));
    model->width = (uint32_t)padded(channels_of(model));
    /* Channels and layers as many as the bytes can account for: records that all point at the same
     * place would else let a short image request any amount of memory and time. */
    channels = channels_of(model);
    layers = layers_of(model);
    return expected(channels * 2 <= model->bytes && channels * layers / 16 <= model->bytes);
}

static int check_all(checking *check) {
    hk_model *model = check->model;
    uint64_t work;
    uint32_t index;
    TRY(check_header(model));
    TRY(check_ends(check));
    for (index = 0; index < layers_of(model); index++) {
        TRY(check_layer(check, index));
        /* The two numbers of a mode take eight bytes at least. */
        TRY(expected(check->state * 4 <= model->bytes));
    }
    if (pooling_of(model) == MEAN) check->state += (uint64_t)2 * model->width + COUNT;
    work = (uint64_t)5 * model->width + padded(model->outputs) + check->rounded + check->shared;
    TRY(expected(check->state <= SIZE_MAX / sizeof(float) && work <= SIZE_MAX / sizeof(float)));
    model->state = check->state > 0 ? (size_t)check->state : 1;
    model->work = (size_t)work;
    model->shared = (uint32_t)check->shared;
    return HK_OK;
}

int hk_check(hk_model *model, const void *image, size_t bytes) {
    static const hk_model nothing = {NULL, 0, 0, 0, 0, 0, 0, 0, 0};
    checking check = {NULL, 0, 0, 0};
    int fault;
    if (!model) return HK_NULL;
    *model = nothing;
    if (!image || (uintptr_t)image % ALIGNMENT != 0) return HK_NULL;
    if (bytes > UINT32_MAX) return HK_IMAGE;
    check.model = model;
    model->image = (const uint8_t *)image;
    model->bytes = (uint32_t)bytes;
    fault = check_all(&check);
    if (fault != HK_OK) *model = nothing;
    return fault;
}

size_t hk_state_bytes(const hk_model *model) { return model ? model->state * sizeof(float) : 0; }

size_t hk_work_bytes(const hk_model *model) { return model ? model->work * sizeof(float) : 0; }

/* ---- Maps ---- */

/* y = W x for entries that are no integers, sixteen rows side by side. */
static void multiply(const uint8_t *weights, uint32_t entries, const float *x, size_t inputs, float *y,
                     size_t outputs) {
    size_t whole = inputs / SUMS * SUMS, tile, i, lane;
    for (tile = 0; tile < outputs; tile += LANES) {
        float sums[SUMS][LANES] = {{0.0f}};
        for (i = 0; i < inputs; i++) {
            float *sum = sums[i < whole ? i % SUMS : 0], input = x[i];
            if (entries == BF16) {
                for (lane = 0; lane < LANES; lane++) sum[lane] = bf16(weights, lane) * input + sum[lane];
                weights += 2 * LANES;
            } else {
                for (lane = 0; lane < LANES; lane++) sum[lane] = full(weights, lane) * input + sum[lane];
                weights += 4 * LANES;
            }
        }
        for (lane = 0; lane < LANES; lane++)
            y[tile + lane] = (sums[0][lane] + sums[2][lane]) + (sums[1][lane] + sums[3][lane]);
    }
}

/* Rounds inputs to -127 to 127 times a scale, which is returned; zeros up to a multiple of four
 * follow. Where an input is not finite the scale is not either. */
static float round_inputs(const float *x, size_t inputs, int8_t *levels) {
    uint32_t most = 0;
    float largest, inverse;
    size_t i;
    /* As integers, so that what is no number is the largest. */
    for (i = 0; i < inputs; i++) {
        uint32_t size = to_bits(x[i]) & 0x7fffffffu;
        if (size > most) most = size;
    }
    largest = from_bits(most);
    /* What divides inputs that are smaller would overflow: they are zero. */
    inverse = largest < 1e-30f ? 0.0f : 127.0f / largest;
    for (i = 0; i < inputs; i++)
        levels[i] = (int8_t)signed_byte((uint8_t)(to_bits(x[i] * inverse + ROUNDING) & 0xffu));
    for (; i % 4 != 0; i++) levels[i] = 0;
    return largest < 1e-30f ? 0.0f : largest / 127.0f;
}

/* Adds the products of four inputs to the sums of sixteen rows. Four entries of a row are the bytes of a
 * word, with 128 in the place of zero. */
static void add_products(uint32_t entries, const uint8_t *tile, size_t quad, const int8_t *input,
                         int32_t *sums) {
    unsigned part = (unsigned)(quad % 8), shift = 0, lane;
    uint32_t mask = 0xffffffffu, above = 0;
    int32_t a = input[0], b = input[1], c = input[2], d = input[3], less = 128 * (a + b + c + d);
    const uint8_t *block = tile + QUADS * quad, *third = NULL;
    if (entries == INT4) {
        block = tile + QUADS * (quad / 2);
        shift = 4 * (part % 2), mask = 0x0f0f0f0fu, above = 0x78787878u;
    } else if (entries == INT2) { /* Twice the bits, less 3. */
        block = tile + QUADS * (quad / 4), shift = 2 * (part % 4), mask = 0x03030303u;
        less = 3 * (a + b + c + d), a *= 2, b *= 2, c *= 2, d *= 2;
    } else if (entries == INT3) {
        /* The last two quads: two bits above those of the first, the third bits in the last block. */
        tile += 3 * QUADS * (quad / 8);
        block = tile + QUADS * (part < 6 ? part / 2 : part - 6);
        third = part < 6 ? NULL : tile + 2 * QUADS;
        shift = part < 6 ? 3 * (part % 2) : 6, mask = part < 6 ? 0x07070707u : 0x03030303u;
        above = 0x7c7c7c7cu;
    }
    for (lane = 0; lane < LANES; lane++) {
        uint32_t row = (le32(block + 4 * lane) >> shift & mask) + above;
        if (third != NULL) row += le32(third + 4 * lane) >> (part - 2) & 0x04040404u;
#ifdef HK_DSP
        int32_t even = (int32_t)((uint32_t)a & 0xffffu) | c * 65536;
        int32_t odd = (int32_t)((uint32_t)b & 0xffffu) | d * 65536;
        sums[lane] = __smlad((int32_t)__uxtb16(row >> 8), odd, sums[lane] - less);
        sums[lane] = __smlad((int32_t)__uxtb16(row), even, sums[lane]);
#else
        sums[lane] += (int32_t)(row & 255u) * a + (int32_t)(row >> 8 & 255u) * b +
                      (int32_t)(row >> 16 & 255u) * c + (int32_t)(row >> 24) * d - less;
#endif
    }
}

/* y = W x for integers: the products of 8-bit inputs are summed in integers, which hold a group of
 * 65535 inputs, then times the scale of the group. */
static void multiply_integers(const hk_model *model, const matrix_record *matrix, const float *x, float *y,
                              int8_t *levels) {
    size_t quads = ((size_t)matrix->inputs + 3) / 4, group = matrix->group / 4, tile, quad, lane;
    size_t own_bytes = (size_t)tile_bytes(matrix->entries, matrix->inputs);
    const uint8_t *weights = model->image + matrix->weights_at, *scales = model->image + matrix->scales_at;
    float scale = round_inputs(x, matrix->inputs, levels);
    for (tile = 0; tile < matrix->outputs; tile += LANES) {
        int32_t sums[LANES] = {0};
        float total[LANES] = {0.0f};
        for (quad = 0; quad < quads; quad++) {
            add_products(matrix->entries, weights, quad, levels + 4 * quad, sums);
            if ((quad + 1) % group != 0 && quad + 1 < quads) continue;
            for (lane = 0; lane < LANES; lane++) {
                total[lane] = (float)sums[lane] * bf16(scales, lane) + total[lane];
                sums[lane] = 0;
            }
            scales += 2 * LANES;
        }
        for (lane = 0; lane < LANES; lane++) y[tile + lane] = total[lane] * scale;
        weights += own_bytes;
    }
}

/* y = W x + b. `room` is for inputs that are rounded. */
static void apply(const hk_model *model, uint32_t at, const float *x, float *y, float *room) {
    matrix_record matrix = read_matrix(model->image + at);
    const uint8_t *bias = model->image + matrix.bias_at;
    size_t i;
    if (matrix.entries > BF16)
        multiply_integers(model, &matrix, x, y, (int8_t *)room);
    else
        multiply(model->image + matrix.weights_at, matrix.entries, x, matrix.inputs, y, matrix.outputs);
    if (matrix.bias_at == 0) return;
    for (i = 0; i < matrix.outputs; i++) y[i] += stored(bias, matrix.numbers, i);
}

/* ---- Norms ---- */

/* Sums of x, or of its squares: sixteen side by side, then in pairs. */
static float sum_of(const float *x, size_t count, int squares) {
    float sums[LANES] = {0.0f};
    size_t i, other;
    for (i = 0; i < count; i++) sums[i % LANES] += squares ? x[i] * x[i] : x[i];
    for (other = LANES / 2; other > 0; other /= 2)
        for (i = 0; i < other; i++) sums[i] += sums[i + other];
    return sums[0];
}

/* Mean 0 and variance 1, short of epsilon. */
static void standardise(float *x, size_t channels, float epsilon) {
    float count = (float)channels, mean = sum_of(x, channels, 0) / count, scale;
    size_t i;
    for (i = 0; i < channels; i++) x[i] = x[i] - mean;
    scale = 1.0f / root(sum_of(x, channels, 1) / count + epsilon);
    for (i = 0; i < channels; i++) x[i] = x[i] * scale;
}

static void normalise(const hk_model *model, const layer_record *layer, float *x) {
    const uint8_t *at = model->image + layer->norm_at;
    uint32_t numbers = norm_numbers(layer);
    size_t width = model->width, i;
    if (layer->norm == LAYER_NORM) standardise(x, channels_of(model), full(at, 0));
    for (i = 0; i < width; i++) x[i] = x[i] * stored(at + 4, numbers, i) + stored(at + 4, numbers, width + i);
}

/* ---- Dynamics: s = a s + u, y = Re(sum r s) + D u, with d = a - 1 in the image ---- */

/* What a step works on: parts of `work`, and the states of the layers that follow. */
typedef struct {
    const hk_model *model;
    float *x, *channel_inputs, *channel_outputs, *mixed, *outputs, *scratch, *room;
    float *state;
} step_memory;

/* y += D u */
static void add_feedthrough(const hk_model *model, const layer_record *layer, const float *u, float *y) {
    const uint8_t *d = model->image + layer->feedthrough_at;
    uint32_t numbers = feedthrough_numbers(layer);
    size_t i;
    if (layer->feedthrough_at == 0) return;
    for (i = 0; i < model->width; i++) y[i] += stored(d, numbers, i) * u[i];
}

/* The modes of `lanes` channels in f32. For each mode, for each lane Re d, then Im d, Re r, Im r. */
static void recur_full(const uint8_t *systems, size_t modes, size_t lanes, const float *u, float *states,
                       float *y) {
    float real[LANES] = {0.0f}, imaginary[LANES] = {0.0f};
    size_t lane;
    for (; modes > 0; modes--) {
        const uint8_t *d_im = systems + 4 * lanes, *r_re = d_im + 4 * lanes, *r_im = r_re + 4 * lanes;
        for (lane = 0; lane < lanes; lane++) {
            float x = states[lane], z = states[lanes + lane], d = full(systems, lane), e = full(d_im, lane);
            float re = x + (d * x + (u[lane] + TINY - e * z)), im = z + (d * z + e * x);
            states[lane] = re;
            states[lanes + lane] = im;
            real[lane] = full(r_re, lane) * re + real[lane];
            imaginary[lane] = full(r_im, lane) * im + imaginary[lane];
        }
        systems = r_im + 4 * lanes;
        states += 2 * lanes;
    }
    for (lane = 0; lane < lanes; lane++) y[lane] = real[lane] - imaginary[lane];
}

/* The same in half precision; d and r are times powers of two. */
static void recur_half(const layer_record *layer, const uint8_t *systems, size_t modes, const float *u,
                       float *states, float *y) {
    float real[LANES] = {0.0f}, imaginary[LANES] = {0.0f}, d_scale = power_of_two(layer->pole_exponent);
    size_t lanes = layer->lanes, lane;
    for (; modes > 0; modes--) {
        const uint8_t *d_im = systems + 2 * lanes, *r_re = d_im + 2 * lanes, *r_im = r_re + 2 * lanes;
        for (lane = 0; lane < lanes; lane++) {
            float x = states[lane], z = states[lanes + lane], d = half(systems, lane), e = half(d_im, lane);
            float re = x + ((d * x - e * z) * d_scale + (u[lane] + TINY));
            float im = (d * z + e * x) * d_scale + z;
            states[lane] = re;
            states[lanes + lane] = im;
            real[lane] = half(r_re, lane) * re + real[lane];
            imaginary[lane] = half(r_im, lane) * im + imaginary[lane];
        }
        systems = r_im + 2 * lanes;
        states += 2 * lanes;
    }
    for (lane = 0; lane < lanes; lane++)
        y[lane] = (real[lane] - imaginary[lane]) * power_of_two(layer->residue_exponent);
}

/* One system for each channel; lanes may hold the channels in another order. */
static void step_channels(step_memory *memory, const layer_record *layer, const float *inputs) {
    const hk_model *model = memory->model;
    const uint8_t *systems = model->image + layer->systems_at;
    size_t width = model->width, lanes = layer->lanes, lane, modes;
    float *y = memory->channel_outputs;
    const float *u = inputs;
    if (layer->places_at != 0) {
        for (lane = 0; lane < width; lane++) memory->mixed[lane] = inputs[place(model, layer, lane)];
        u = memory->mixed;
        y = memory->mixed + width;
    }
    for (lane = 0; lane < width; lane += lanes) {
        modes = word(model->image + layer->modes_at, lane / lanes);
        if (layer->numbers == HALF)
            recur_half(layer, systems, modes, u + lane, memory->state, y + lane);
        else
            recur_full(systems, modes, lanes, u + lane, memory->state, y + lane);
        systems += modes * 4 * lanes * (layer->numbers == HALF ? 2 : 4);
        memory->state += modes * 2 * lanes;
    }
    add_feedthrough(model, layer, u, y);
    if (layer->places_at == 0) return;
    for (lane = 0; lane < width; lane++) memory->channel_outputs[place(model, layer, lane)] = y[lane];
}

/* One system that all channels share; the real parts of all modes stand before the imaginary ones. */
static void step_shared(step_memory *memory, const layer_record *layer, const float *inputs) {
    const hk_model *model = memory->model;
    shared_record system = read_shared(model->image + layer->systems_at);
    const uint8_t *poles = model->image + system.poles_at;
    size_t modes = system.modes, parts = padded(2 * modes), i;
    float *drive = memory->scratch, *state = memory->state;
    apply(model, system.input_at, inputs, drive, memory->room);
    for (i = 0; i < modes; i++) {
        float re = state[i], im = state[modes + i], d = full(poles, i), e = full(poles, modes + i);
        state[i] = re + (d * re - e * im + (drive[i] + TINY));
        state[modes + i] = im + (d * im + e * re + (drive[modes + i] + TINY));
    }
    copy(drive, state, parts);
    copy(drive + parts, inputs, model->width);
    apply(model, system.output_at, drive, memory->channel_outputs, memory->room);
    add_feedthrough(model, layer, inputs, memory->channel_outputs);
    memory->state += parts;
}

/* ---- The network ---- */

/* gates = values times sigmoid(gates) */
static void gate(float *gates, const float *values, size_t count) {
    size_t i;
    for (i = 0; i < count; i++) gates[i] = values[i] * sigmoid(gates[i]);
}

/* What the layer adds to its input. */
static const float *mix(step_memory *memory, const layer_record *layer) {
    size_t width = memory->model->width, i;
    float *mixed = memory->mixed;
    if (layer->mixing == NONE) return memory->channel_outputs;
    apply(memory->model, layer->mixing_at, memory->channel_outputs, mixed, memory->room);
    if (layer->mixing == GATED)
        for (i = 0; i < width; i++) mixed[i] = mixed[i] * sigmoid(mixed[width + i]);
    if (layer->mixing == ACTIVATED) gate(mixed, memory->channel_outputs, width);
    if (layer->mixing == RESPONSE) gate(mixed, mixed + width, width);
    return mixed;
}

/* x = x + branch(x), with the norm before or after; without a norm the branch alone. */
static void residual(step_memory *memory, const layer_record *layer) {
    const hk_model *model = memory->model;
    const float *inputs = memory->x, *branch;
    float *x = memory->x, *y = memory->channel_outputs;
    size_t width = model->width, i;
    int before = layer->norm != NONE && layer->before != 0;
    if (layer->dynamics != NONE) {
        if (before) {
            copy(memory->channel_inputs, x, width);
            normalise(model, layer, memory->channel_inputs);
            inputs = memory->channel_inputs;
        }
        if (layer->dynamics == CHANNELS)
            step_channels(memory, layer, inputs);
        else
            step_shared(memory, layer, inputs);
        if (layer->mixing == RESPONSE) copy(memory->mixed + width, y, width);
        if (activation_of(model) == GELU_TANH)
            for (i = 0; i < width; i++) y[i] = gelu_tanh(y[i]);
        else
            for (i = 0; i < width; i++) y[i] = gelu(y[i]);
        branch = mix(memory, layer);
        if (layer->norm == NONE) {
            copy(x, branch, width);
            return;
        }
        for (i = 0; i < width; i++) x[i] += branch[i];
    }
    if (!before) normalise(model, layer, x);
}

/* 1/n, rounded to a double and then to a float, in integers: few devices have doubles. */
static float reciprocal(uint64_t n) {
    uint64_t quotient = 0, rest = 1;
    uint32_t exponent = 127;
    if (n < 2) return 1.0f;
    while (quotient >> 53 == 0) {
        rest <<= 1;
        quotient <<= 1;
        exponent--;
        if (rest >= n) {
            rest -= n;
            quotient |= 1;
        }
    }
    /* 53 bits and one more, which is a tie for no n. */
    return (float)((quotient + 1) >> 1) * from_bits((exponent + 1) << 23);
}

/* Steps so far and one more. Two numbers hold them, as one float ends at 2^24. */
static uint64_t counted(float *count) {
    count[0] += 1.0f;
    if (!(count[0] < 1048576.0f)) {
        count[0] = 0.0f;
        count[1] += 1.0f;
    }
    /* A state from elsewhere may hold anything. */
    if (!(count[0] >= 0.0f && count[1] >= 0.0f && count[1] <= 16777216.0f)) return 1;
    return (uint64_t)(uint32_t)count[1] << 20 | (uint32_t)count[0];
}

/* x = the mean of all steps so far. Sums are kept with what rounding took from them. */
static void pool(float *state, float *x, size_t width) {
    float *lost = state + width, scale = reciprocal(counted(lost + width));
    size_t i;
    for (i = 0; i < width; i++) {
        float more = x[i] - lost[i], next = state[i] + more;
        lost[i] = (next - state[i]) - more;
        state[i] = next;
        x[i] = next * scale;
    }
}

/* The parts of `work`; the outputs stand first, where hk_logits finds them. */
static step_memory split(const hk_model *model, float *state, float *work) {
    size_t width = model->width;
    step_memory memory;
    memory.model = model;
    memory.outputs = work;
    memory.x = work + padded(model->outputs);
    memory.channel_inputs = memory.x + width;
    memory.channel_outputs = memory.channel_inputs + width;
    memory.mixed = memory.channel_outputs + width;
    memory.scratch = memory.mixed + 2 * width;
    memory.room = memory.scratch + model->shared;
    memory.state = state;
    return memory;
}

/* Everything behind the encoder. */
static void run(step_memory *memory) {
    const hk_model *model = memory->model;
    const uint8_t *at = model->image + layers_at(model);
    uint32_t index, layers = layers_of(model);
    for (index = 0; index < layers; index++, at += LAYER) {
        layer_record layer = read_layer(at);
        residual(memory, &layer);
    }
    if (pooling_of(model) == MEAN) pool(memory->state, memory->x, model->width);
    if (head_at(model) == 0)
        copy(memory->outputs, memory->x, model->width);
    else
        apply(model, head_at(model), memory->x, memory->outputs, memory->room);
}

int hk_reset(const hk_model *model, float *state) {
    size_t i;
    if (!model || !model->image || !state) return HK_NULL;
    for (i = 0; i < model->state; i++) state[i] = 0.0f;
    return HK_OK;
}

int hk_step(const hk_model *model, float *state, float *work, const float *inputs) {
    step_memory memory;
    size_t i;
    if (!model || !model->image || !state || !work || !inputs) return HK_NULL;
    if (model->tokens) return HK_KIND;
    memory = split(model, state, work);
    if (encoder_of(model) == LINEAR) {
        apply(model, encoder_at(model), inputs, memory.x, memory.room);
    } else {
        copy(memory.x, inputs, model->inputs);
        for (i = model->inputs; i < model->width; i++) memory.x[i] = 0.0f;
    }
    run(&memory);
    return HK_OK;
}

int hk_step_token(const hk_model *model, float *state, float *work, uint32_t token) {
    const uint8_t *row;
    step_memory memory;
    size_t i;
    if (!model || !model->image || !state || !work) return HK_NULL;
    if (!model->tokens) return HK_KIND;
    if (token >= model->inputs) return HK_TOKEN;
    memory = split(model, state, work);
    row = model->image + encoder_at(model) + (size_t)4 * token * model->width;
    for (i = 0; i < model->width; i++) memory.x[i] = full(row, i);
    run(&memory);
    return HK_OK;
}

const float *hk_logits(const hk_model *model, const float *work) {
    return model && model->image ? work : NULL;
}
