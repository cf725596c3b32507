/* Streams numbers from standard input through an image and prints the last outputs.
 *
 *   cargo build --profile edge --package hankelite-c
 *   cc -O2 c/example.c target/edge/libhankelite.a -o target/edge/example
 *   seq 0 255 | awk '{ print sin($1 / 8) }' | target/edge/example model.edge
 */
#include <stdio.h>
#include <stdlib.h>
#include "hankelite.h"

static int fail(const char *what, int code) {
    fprintf(stderr, "%s: code %d\n", what, code);
    return 1;
}

/* A device has the image in flash; here it comes from a file. */
static void *load(const char *path, size_t *bytes) {
    FILE *file = fopen(path, "rb");
    if (!file || fseek(file, 0, SEEK_END) != 0) return NULL;
    long length = ftell(file);
    rewind(file);
    void *image = length > 0 ? malloc((size_t)length) : NULL;
    if (image && fread(image, 1, (size_t)length, file) != (size_t)length) image = NULL;
    fclose(file);
    *bytes = (size_t)length;
    return image;
}

int main(int count, char **arguments) {
    if (count != 2) return fail("usage: example IMAGE < numbers", 2);
    hankelite_stream stream = {0};
    stream.image = load(arguments[1], &stream.image_bytes);
    hankelite_sizes sizes;
    int code = hankelite_measure(stream.image, stream.image_bytes, &sizes);
    if (code != HANKELITE_OK) return fail("the image", code);
    if (sizes.tokens || sizes.inputs != 1) return fail("the model takes one number", 2);

    stream.state = calloc(sizes.state, sizeof(float));
    stream.state_len = sizes.state;
    stream.work = malloc(sizes.work * sizeof(float));
    stream.work_len = sizes.work;
    float *outputs = calloc(sizes.outputs, sizeof(float));

    float sample;
    while (scanf("%f", &sample) == 1) {
        code = hankelite_step(&stream, &sample, 1, outputs, sizes.outputs);
        if (code != HANKELITE_OK) return fail("a step", code);
    }
    /* What is wrong is told, and the outputs are not touched. */
    if (hankelite_step(&stream, &sample, 2, outputs, sizes.outputs) != HANKELITE_LENGTH)
        return fail("two numbers for one were taken", 1);
    if (hankelite_step_token(&stream, 0, outputs, sizes.outputs) != HANKELITE_KIND)
        return fail("a token was taken", 1);
    for (size_t k = 0; k < sizes.outputs; k++)
        printf("%.6g%c", outputs[k], k + 1 < sizes.outputs ? ' ' : '\n');
    return 0;
}
