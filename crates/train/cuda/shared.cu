// The recurrence of a layer whose channels share modes (S5, LRU), between its products with B and C:
//
//     s_t = a s_{t-1} + v_t,   a = e^z,   and backwards  q_t = conj(a) q_{t+1} + g_t
//     dz = conj(a) sum_t q_t conj(s_{t-1})
//
// `v` and the states are batch x length x (Re of the modes, then Im of them), `exponents` Re z, then Im z,
// in double precision. A gradient is that of the real part plus i times that of the imaginary part.
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

}  // namespace

// Where each chunk ends that starts from zero: batch x chunks x modes. A thread for each mode.
extern "C" __global__ void __launch_bounds__(THREADS)
    shared_ends(const float *v, const double *exponents, float2 *states, SharedShape shape) {
    int mode = blockIdx.x * THREADS + threadIdx.x;
    if (mode >= shape.modes) return;
    int first = blockIdx.y * CHUNK, last = min(first + CHUNK, shape.length);
    float2 a = single(pole(exponents, shape, mode, 1.0)), s = make_float2(0, 0);
    for (int place = first; place < last; place++) {
        s = add(multiply(a, s), at(v, slot(shape, blockIdx.z, place, mode), shape.modes));
    }
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
    int first = blockIdx.y * CHUNK, last = min(first + CHUNK, shape.length);
    float2 a = single(pole(exponents, shape, mode, 1.0));
    float2 s = states[((long)blockIdx.z * gridDim.y + blockIdx.y) * shape.modes + mode];
    for (int place = first; place < last; place++) {
        long here = slot(shape, blockIdx.z, place, mode);
        s = add(multiply(a, s), at(v, here, shape.modes));
        out[here] = s.x;
        out[here + shape.modes] = s.y;
    }
}

// sum_t q_t conj(s_{t-1}) over each chunk, batch x chunks x modes. A thread for each mode. The order is that of
// the states.
extern "C" __global__ void __launch_bounds__(THREADS)
    shared_slopes(const float *q, const float *s, double2 *partial, SharedShape shape) {
    int mode = blockIdx.x * THREADS + threadIdx.x;
    if (mode >= shape.modes) return;
    int first = blockIdx.y * CHUNK, last = min(first + CHUNK, shape.length);
    float2 sum = make_float2(0, 0);
    for (int place = max(first, 1); place < last; place++) {
        float2 own = at(q, slot(shape, blockIdx.z, place, mode), shape.modes);
        float2 before = at(s, slot(shape, blockIdx.z, place - 1, mode), shape.modes);
        sum = add(sum, multiply(own, make_float2(before.x, -before.y)));
    }
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
