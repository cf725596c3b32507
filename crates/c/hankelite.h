/* One sample in, one output out: state space models on small devices.
 *
 * A model is an image, made by `compress-model pack`: a block of bytes that is used where it lies,
 * for instance in flash. The library keeps nothing and allocates nothing; the caller owns image,
 * state and work. Numbers are float, little-endian.
 */
#ifndef HANKELITE_H
#define HANKELITE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What functions return. */
enum {
    HANKELITE_OK = 0,
    HANKELITE_NULL = 1,     /* a pointer is null or not aligned */
    HANKELITE_IMAGE = 2,    /* the bytes are no image of this version */
    HANKELITE_LENGTH = 3,   /* a buffer or an input has the wrong length */
    HANKELITE_KIND = 4,     /* numbers for a model of tokens, or the other way round */
    HANKELITE_TOKEN = 5     /* a token outside the vocabulary */
};

/* What a model needs, in floats, for one stream. */
typedef struct {
    size_t inputs;   /* of a step; for a model of tokens the size of the vocabulary */
    size_t outputs;  /* of a step */
    size_t state;
    size_t work;
    size_t tokens;   /* 1: a step takes a token, 0: numbers */
} hankelite_sizes;

/* A model and one stream of it. */
typedef struct {
    const void *image;   /* aligned to 4 bytes; 64 is fastest */
    size_t image_bytes;
    float *state;        /* all zero at the start of a signal; copy it to keep a moment */
    size_t state_len;    /* state of hankelite_sizes */
    float *work;         /* of any value; streams that never step at once may share it */
    size_t work_len;     /* work of hankelite_sizes */
} hankelite_stream;

/* Checks an image and reports what it needs. */
int32_t hankelite_measure(const void *image, size_t image_bytes, hankelite_sizes *sizes);

/* One step. The outputs are those of the step, or with mean pooling of the mean of all steps so
 * far. They must not overlap what goes in. On an error the state is as it was. */
int32_t hankelite_step(const hankelite_stream *stream, const float *inputs, size_t inputs_len,
                       float *outputs, size_t outputs_len);

/* The same for a model of tokens. */
int32_t hankelite_step_token(const hankelite_stream *stream, uint32_t token, float *outputs,
                             size_t outputs_len);

#ifdef __cplusplus
}
#endif

#endif
