// GELU and its slope.
#pragma once

#ifndef __CUDACC__
#include "emulate.h"
#endif

namespace {

// The forms of GELU: none, exact, by tanh.
constexpr int EXACT = 1;
constexpr float ROOT = 0.7978845608028654f;  // sqrt(2/pi)
constexpr float CUBIC = 0.044715f;

__device__ __forceinline__ float gelu(float x, int form) {
    float share = form == EXACT ? erff(x * 0.70710678118654752f)
                                : tanhf(ROOT * x * (1.0f + CUBIC * x * x));
    return x * (0.5f + 0.5f * share);
}

__device__ __forceinline__ float gelu_slope(float x, int form) {
    if (form == EXACT) {
        float share = 0.5f + 0.5f * erff(x * 0.70710678118654752f);
        return share + x * (0.5f * ROOT) * expf(-0.5f * x * x);
    }
    float share = 0.5f + 0.5f * tanhf(ROOT * x * (1.0f + CUBIC * x * x));
    return share + x * share * (1.0f - share) * (2.0f * ROOT + 6.0f * CUBIC * ROOT * x * x);
}

}  // namespace
