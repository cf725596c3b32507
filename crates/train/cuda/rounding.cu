// Maps at few bits while they are trained: with s = range/lowest level as bfloat16 holds it, for each group
// of inputs of an output, and v = w/s,
//
//     w' = s q,   q the level nearest to v
//     dw'/dw = 1, dw'/ds = q - v within half a step of the levels; 0 and q beyond
//
// Esser et al. 2020, equations 1 to 3; `nn/straight.rs` has the same.
#ifndef __CUDACC__
#include "emulate.h"
#endif

struct RoundingShape {
    int outputs, inputs, group, groups;
    // -2^(b-1), 2^(b-1) - 1 and 1; for two bits -3, 3 and 2.
    float lowest, highest, step;
};

namespace {

// To the nearest bfloat16, the even one of two.
__device__ __forceinline__ float to_bf16(float x) {
    union {
        float number;
        unsigned bits;
    } of;
    of.number = x;
    of.bits = (of.bits + 0x7fffu + (of.bits >> 16 & 1u)) & 0xffff0000u;
    return of.number;
}

// The level of a weight whose scale is not zero. In double precision as the host has it: a tie is one
// on both.
__device__ __forceinline__ double level(double v, const RoundingShape &shape) {
    double step = shape.step, middle = step - 1.0;
    return fmin(fmax(middle + step * round((v - middle) / step), shape.lowest), shape.highest);
}

}  // namespace

// w', outputs x inputs. One thread for each.
extern "C" __global__ void rounding_values(const float *weight, const float *range, float *out,
                                           RoundingShape shape) {
    long at = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (long)shape.outputs * shape.inputs) return;
    long output = at / shape.inputs, group = at % shape.inputs / shape.group;
    double scale = to_bf16(range[output * shape.groups + group] / shape.lowest);
    out[at] = scale == 0.0 ? 0.0 : scale * level(weight[at] / scale, shape);
}

// The gradients of weights and ranges. One warp for each group of each output, block.y of them in a
// block.
extern "C" __global__ void rounding_slopes(const float *weight, const float *range, const float *slopes,
                                           float *of_weight, float *of_range, RoundingShape shape) {
    int row = blockIdx.x * blockDim.y + threadIdx.y;
    bool inside = row < shape.outputs * shape.groups;
    int first = inside ? row % shape.groups * shape.group : 0;
    int last = inside ? min(first + shape.group, shape.inputs) : 0;
    double scale = inside ? to_bf16(range[row] / shape.lowest) : 0.0, sum = 0.0, half = 0.5 * shape.step;
    for (int input = first + threadIdx.x; input < last; input += 32) {
        long at = (long)(row / shape.groups) * shape.inputs + input;
        float slope = slopes[at];
        if (scale == 0.0) {
            of_weight[at] = slope;
            continue;
        }
        double v = weight[at] / scale, q = level(v, shape);
        bool within = shape.lowest - half <= v && v < shape.highest + half;
        of_weight[at] = within ? slope : 0.0f;
        sum += slope * (within ? q - v : q);
    }
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (inside && threadIdx.x == 0) of_range[row] = sum / shape.lowest;
}
