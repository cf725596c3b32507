// What the recurrences of this folder share: s_t = a s_{t-1} + u_t of complex diagonal modes, cut into
// chunks of steps that run side by side.
//
// Each chunk is run from zero to find where it ends; a join goes over the chunks, S <- a^T S + end, with
// a^T from the exponent in double precision; then each chunk is run from where it starts. So the error
// of a, which single precision holds to 24 bits, grows over one chunk and not over the sequence.
#pragma once

#ifndef __CUDACC__
#include "emulate.h"
#endif

namespace {

// Steps of a chunk, and threads of a block of every kernel.
constexpr int CHUNK = 128;
constexpr int THREADS = 128;

__device__ __forceinline__ float2 multiply(float2 a, float2 b) {
    return make_float2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

__device__ __forceinline__ float2 add(float2 a, float2 b) {
    return make_float2(a.x + b.x, a.y + b.y);
}

// a s + u for a real u.
__device__ __forceinline__ float2 step(float2 a, float2 s, float u) {
    return make_float2(a.x * s.x - a.y * s.y + u, a.x * s.y + a.y * s.x);
}

__device__ __forceinline__ double2 multiply(double2 a, double2 b) {
    return make_double2(a.x * b.x - a.y * b.y, a.x * b.y + a.y * b.x);
}

__device__ __forceinline__ double2 add(double2 a, float2 b) {
    return make_double2(a.x + b.x, a.y + b.y);
}

// e^{z count}.
__device__ __forceinline__ double2 power(double2 z, double count) {
    double size = exp(z.x * count), angle = z.y * count;
    return make_double2(size * cos(angle), size * sin(angle));
}

// The sum over the threads of a warp, for all of them.
template <typename T>
__device__ __forceinline__ T warp_sum(T sum) {
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    return sum;
}

__device__ __forceinline__ int chunks(int length) { return (length + CHUNK - 1) / CHUNK; }

// The step at a place in the order of a direction of time.
__device__ __forceinline__ int step_at(int place, int length, int reverse) {
    return reverse ? length - 1 - place : place;
}

}  // namespace
