/* One sample in, one output out: state space models on small devices, in C99 alone.
 *
 * A model is an image (version 4, of f32), made by `compress-model pack`: a block of bytes that is
 * used where it lies, for instance in flash, at a multiple of 4 bytes. `pack --c-header` writes it
 * as C. Nothing here allocates, keeps anything or calls anything but sqrtf (with HK_NO_MATH not even
 * that); the compiler may call memcpy and memset.
 *
 * Options of the compiler:
 *   -ffp-contract=off   the outputs are those of the Rust runtime's plain path bit for bit; without
 *                       it products and sums may be fused, and outputs differ in the last digits, as
 *                       they do where FLT_EVAL_METHOD is not 0 (x87; -std=c99 on s390x)
 *   -DHK_NO_MATH        a square root of this file (exact too) in the place of <math.h>
 *   -DHK_BYTES          numbers of the image are put together from bytes: what happens anyway where
 *                       the compiler is none that knows GNU's attributes, or the processor is
 *                       big-endian; the image then needs no alignment
 *   -DHK_DSP            maps of integers by the DSP instructions of a Cortex-M4, M7, M33 or newer: two
 *                       products at once, the same bits
 * Options that reorder sums (-ffast-math) are refused: the functions below would be wrong.
 *
 * The library in crates/c has the same purpose, is written in Rust and has names of its own: both
 * fit into one program.
 */
#ifndef HK_HANKELITE_H
#define HK_HANKELITE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What functions return. */
enum {
    HK_OK = 0,
    HK_NULL = 1,    /* a pointer is null, the image is not aligned, or the model was not checked */
    HK_IMAGE = 2,   /* the bytes are no image of f32, or not all of one */
    HK_VERSION = 3, /* an image of another version: pack the checkpoint again */
    HK_OUTSIDE = 4, /* a part lies outside the image or is not aligned */
    HK_RECORD = 5,  /* a record holds a number that no image has */
    HK_KIND = 6,    /* numbers for a model of tokens, or the other way round */
    HK_TOKEN = 7    /* a token outside the vocabulary */
};

/* A checked image. All numbers are for reading; hk_check writes them. */
typedef struct {
    const uint8_t *image;
    uint32_t bytes;
    uint32_t inputs;  /* numbers of a step; of a model of tokens the size of the vocabulary */
    uint32_t outputs; /* numbers that a step gives */
    uint32_t tokens;  /* 1: a step takes a token, 0: numbers */
    size_t state;     /* floats that a stream keeps between steps */
    size_t work;      /* floats that a step works in, of any value between steps */
    uint32_t width;   /* channels, rounded up to sixteens */
    uint32_t shared;  /* floats of `work` for systems that channels share */
} hk_model;

/* Checks every record and every place of an image, so that no step reads outside it whatever its
 * bytes are, and finds out the sizes. Weights are not read. On an error the model refuses steps. The
 * image has to stay where it is, unchanged. */
int hk_check(hk_model *model, const void *image, size_t bytes);

/* The same sizes in bytes. */
size_t hk_state_bytes(const hk_model *model);
size_t hk_work_bytes(const hk_model *model);

/* Zeros `state`, for the start of a signal. To keep a moment, copy the state. */
int hk_reset(const hk_model *model, float *state);

/* One step: takes `inputs` numbers and moves the state on. Several signals have a state each and may
 * share `work` where they do not step at once. On an error the state is as it was. */
int hk_step(const hk_model *model, float *state, float *work, const float *inputs);

/* The same for a model of tokens. */
int hk_step_token(const hk_model *model, float *state, float *work, uint32_t token);

/* The `outputs` numbers of the latest step, within `work`: with mean pooling those of the mean of
 * all steps so far. Null for a model that was not checked. */
const float *hk_logits(const hk_model *model, const float *work);

#ifdef __cplusplus
}
#endif

#endif
