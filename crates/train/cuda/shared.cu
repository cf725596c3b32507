// The recurrence of a layer whose channels share modes (S5, LRU), between its products with B and C:
//
//     s_t = a s_{t-1} + v_t,   a = e^z,   and backwards  q_t = conj(a) q_{t+1} + g_t
//     dz = conj(a) sum_t q_t conj(s_{t-1})
//
// `v` and the states are batch x length x (Re of the modes, then Im of them), `exponents` Re z, then Im z,
// in double precision. A gradient is that of the real part plus i times that of the imaginary part.
#include "gelu.h"
#include "scan.h"

struct SharedShape {
    int batch, length, modes;
    int reverse;
    // Whether conj(a) stands for a.
    int conjugate;
};

namespace {

__device__ __forceinline__ double2 pole(const double *exponents, const SharedShape &shape, int mode,
                                        double steps) {
    double turn = exponents[shape.modes + mode];
    return power(make_double2(exponents[mode], shape.conjugate ? -turn : turn), steps);
}

// The place of the real part of a mode at a step in the order of the direction.
__device__ __forceinline__ long slot(const SharedShape &shape, int sequence, int place, int mode) {
    long row = (long)sequence * shape.length + step_at(place, shape.length, shape.reverse);
    return row * 2 * shape.modes + mode;
}

__device__ __forceinline__ float2 at(const float *all, long place, int modes) {
    return make_float2(all[place], all[place + modes]);
}

__device__ __forceinline__ float2 single(double2 a) { return make_float2(a.x, a.y); }

// Steps whose numbers are asked for before the first of them is needed.
constexpr int AHEAD = 8;

// Calls with each step of a chunk in the order of the direction, and what stands there.
template <typename Use>
__device__ __forceinline__ void each_step(const float *all, const SharedShape &shape, int mode, Use use) {
    int first = blockIdx.y * CHUNK, last = min(first + CHUNK, shape.length);
    for (int start = first; start < last; start += AHEAD) {
        float2 ahead[AHEAD];
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            int place = min(start + i, last - 1);
            ahead[i] = at(all, slot(shape, blockIdx.z, place, mode), shape.modes);
        }
#pragma unroll
        for (int i = 0; i < AHEAD; i++) {
            if (start + i < last) use(start + i, ahead[i]);
        }
    }
}

}  // namespace

// Where each chunk ends that starts from zero: batch x chunks x modes. A thread for each mode.
extern "C" __global__ void __launch_bounds__(THREADS)
    shared_ends(const float *v, const double *exponents, float2 *states, SharedShape shape) {
    int mode = blockIdx.x * THREADS + threadIdx.x;
    if (mode >= shape.modes) return;
    float2 a = single(pole(exponents, shape, mode, 1.0)), s = make_float2(0, 0);
    each_step(v, shape, mode, [&](int, float2 own) { s = add(multiply(a, s), own); });
    states[((long)blockIdx.z * gridDim.y + blockIdx.y) * shape.modes + mode] = s;
}

// From ends of chunks to their starts, in place. A thread for each sequence and mode.
extern "C" __global__ void shared_join(const double *exponents, float2 *states, SharedShape shape) {
    int thread = blockIdx.x * blockDim.x + threadIdx.x;
    if (thread >= shape.batch * shape.modes) return;
    int mode = thread % shape.modes, each = chunks(shape.length);
    double2 a = pole(exponents, shape, mode, CHUNK), s = make_double2(0, 0);
    for (int chunk = 0; chunk < each; chunk++) {
        float2 &own = states[((long)(thread / shape.modes) * each + chunk) * shape.modes + mode];
        float2 end = own;
        own = single(s);
        s = add(multiply(a, s), end);
    }
}

// All states. A thread for each mode.
extern "C" __global__ void __launch_bounds__(THREADS)
    shared_states(const float *v, const double *exponents, const float2 *states, float *out,
                  SharedShape shape) {
    int mode = blockIdx.x * THREADS + threadIdx.x;
    if (mode >= shape.modes) return;
    float2 a = single(pole(exponents, shape, mode, 1.0));
    float2 s = states[((long)blockIdx.z * gridDim.y + blockIdx.y) * shape.modes + mode];
    each_step(v, shape, mode, [&](int place, float2 own) {
        long here = slot(shape, blockIdx.z, place, mode);
        s = add(multiply(a, s), own);
        out[here] = s.x;
        out[here + shape.modes] = s.y;
    });
}

// sum_t q_t conj(s_{t-1}) over each chunk, batch x chunks x modes. A thread for each mode. The order is that of
// the states.
extern "C" __global__ void __launch_bounds__(THREADS)
    shared_slopes(const float *q, const float *s, double2 *partial, SharedShape shape) {
    int mode = blockIdx.x * THREADS + threadIdx.x;
    if (mode >= shape.modes) return;
    int first = blockIdx.y * CHUNK;
    float2 sum = make_float2(0, 0), before = make_float2(0, 0);
    if (first > 0) before = at(s, slot(shape, blockIdx.z, first - 1, mode), shape.modes);
    each_step(q, shape, mode, [&](int place, float2 own) {
        sum = add(sum, multiply(own, make_float2(before.x, -before.y)));
        before = at(s, slot(shape, blockIdx.z, place, mode), shape.modes);
    });
    partial[((long)blockIdx.z * gridDim.y + blockIdx.y) * shape.modes + mode] =
        make_double2(sum.x, sum.y);
}

// Re dz, then Im dz. A thread for each mode.
extern "C" __global__ void shared_gradients(const double *exponents, const double2 *partial, double *out,
                                            SharedShape shape) {
    int mode = blockIdx.x * blockDim.x + threadIdx.x;
    if (mode >= shape.modes) return;
    double2 sum = make_double2(0, 0);
    for (int share = 0; share < shape.batch * chunks(shape.length); share++) {
        double2 own = partial[(long)share * shape.modes + mode];
        sum = make_double2(sum.x + own.x, sum.y + own.y);
    }
    double2 a = pole(exponents, shape, mode, 1.0);
    sum = multiply(make_double2(a.x, -a.y), sum);
    out[mode] = sum.x;
    out[shape.modes + mode] = sum.y;
}

// The end of the layer, rows x channels: y = first + second + third + D u, and that activated and masked.
// What is missing is null.
struct SharedEnd {
    // Products: with C, with that of the other direction, and with a D that is no diagonal.
    const float *first, *second, *third;
    const float *u;
    // The diagonal of D.
    const float *feedthrough;
    // Batch x channels.
    const float *mask;
    int length, channels, gelu, unused;
};

namespace {

// All numbers of a batch are fewer than 2^31: divisions in 64 bits take longer than all else.
__device__ __forceinline__ int channel_of(const SharedEnd &end, unsigned at) { return at % end.channels; }

__device__ __forceinline__ float factor_of(const SharedEnd &end, unsigned at) {
    unsigned sequence = at / ((unsigned)end.length * end.channels);
    return end.mask ? end.mask[sequence * end.channels + channel_of(end, at)] : 1.0f;
}

}  // namespace

// One thread for each number.
extern "C" __global__ void shared_outputs(SharedEnd end, float *y, float *activated, unsigned count) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    float found = end.first[at];
    if (end.second) found += end.second[at];
    if (end.third) found += end.third[at];
    if (end.feedthrough) found += end.feedthrough[channel_of(end, at)] * end.u[at];
    y[at] = found;
    activated[at] = factor_of(end, at) * gelu(found, end.gelu);
}

// The gradient of y from that of what is activated. One thread for each number.
extern "C" __global__ void shared_output_slopes(SharedEnd end, const float *given, const float *y, float *g,
                                                unsigned count) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    g[at] = given[at] * factor_of(end, at) * gelu_slope(y[at], end.gelu);
}

// The gradient of u: the product with B, that with a full D or none, and D g. One thread for each number.
extern "C" __global__ void shared_input_slopes(SharedEnd end, const float *g, float *of_u, unsigned count) {
    unsigned at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    float found = end.first[at];
    if (end.third) found += end.third[at];
    if (end.feedthrough) found += end.feedthrough[channel_of(end, at)] * g[at];
    of_u[at] = found;
}
