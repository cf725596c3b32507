// The state space of a block with one system for each channel, on batch x length x channels:
//
//     s_t = a s_{t-1} + u_t,   y_t = D u_t + Re sum_n w_n s_nt,   a = e^z
//
// Backwards in time the steps are taken from the last one, and y_t has s of the step before (`delayed`).
// The way back needs no states of the way there. With g the gradient of y,
//
//     du:      the same recurrence over g, in the other direction of time
//     dw_n:    conj sum_t g_t s_t
//     dz_n:    conj (w_n sum_t g_t p_t),   p_t = ds_t/dz = a (p_{t-1} + s_{t-1})
//
// A gradient is that of the real part plus i times that of the imaginary part. Modes must decay.
//
// `modes` are Re z, Im z, Re w, Im w, each channels x modes, in double precision. A thread holds MODES
// modes of a channel, `lanes` neighbours share a channel: mode k lanes + lane is the k-th of a lane.
#include "scan.h"

namespace {

// Modes of a thread, and steps that are in shared memory at a time.
constexpr int MODES = 8;
constexpr int TILE = 32;

}  // namespace

struct BankShape {
    int batch, length, channels, modes;
    // The logarithm of the threads that share a channel, 0 to 5.
    int log_lanes;
    int reverse, delayed;
};

namespace {

// Where a thread stands.
struct Seat {
    int lane, lanes, column, columns, channel;

    __device__ explicit Seat(const BankShape &shape) {
        lanes = 1 << shape.log_lanes;
        lane = threadIdx.x & (lanes - 1);
        column = threadIdx.x >> shape.log_lanes;
        columns = THREADS >> shape.log_lanes;
        channel = blockIdx.x * columns + column;
    }

    // The place of the k-th mode among channels x modes; below zero for none.
    __device__ int mode(const BankShape &shape, int k) const {
        int n = k * lanes + lane;
        return channel < shape.channels && n < shape.modes ? channel * shape.modes + n : -1;
    }
};

// Numbers of some steps, from `first` on in the order of the direction; zero beyond the end.
__device__ void load(const float *all, float *tile, const BankShape &shape, int sequence, int first) {
    int log_columns = 7 - shape.log_lanes, columns = 1 << log_columns;
#pragma unroll 1
    for (int i = threadIdx.x; i < TILE * columns; i += THREADS) {
        int place = first + (i >> log_columns);
        int channel = blockIdx.x * columns + (i & (columns - 1));
        bool inside = place < shape.length && channel < shape.channels;
        int row = sequence * shape.length + step_at(place, shape.length, shape.reverse);
        tile[i] = inside ? all[(long)row * shape.channels + channel] : 0.0f;
    }
}

__device__ void poles(const float4 *table, const BankShape &shape, const Seat &seat, float2 *a) {
    for (int k = 0; k < MODES; k++) {
        int at = seat.mode(shape, k);
        a[k] = at < 0 ? make_float2(0, 0) : make_float2(table[at].x, table[at].y);
    }
}

// States or their slopes at the start of a chunk; zero where there are none.
__device__ void starts(const float2 *all, const BankShape &shape, const Seat &seat, long chunk,
                       float2 *s) {
    for (int k = 0; k < MODES; k++) {
        int at = seat.mode(shape, k);
        long all_modes = (long)shape.channels * shape.modes;
        s[k] = at < 0 ? make_float2(0, 0) : all[chunk * all_modes + at];
    }
}

__device__ void store(float2 *all, const BankShape &shape, const Seat &seat, long chunk,
                      const float2 *s) {
    for (int k = 0; k < MODES; k++) {
        int at = seat.mode(shape, k);
        if (at >= 0) all[chunk * shape.channels * shape.modes + at] = s[k];
    }
}

// One step of states and, if asked for, their slopes.
template <bool SLOPES>
__device__ __forceinline__ void advance(const float2 *a, float2 *s, float2 *p, float u) {
#pragma unroll
    for (int k = 0; k < MODES; k++) {
        if (SLOPES) p[k] = multiply(a[k], add(p[k], s[k]));
        s[k] = step(a[k], s[k], u);
    }
}

template <bool SLOPES>
__device__ void run_to_end(const float *u, const float4 *table, float2 *states, float2 *slopes,
                           const BankShape &shape, float *tile) {
    Seat seat(shape);
    int first = blockIdx.y * CHUNK, last = min(first + CHUNK, shape.length);
    float2 a[MODES], s[MODES], p[MODES];
    poles(table, shape, seat, a);
    for (int k = 0; k < MODES; k++) s[k] = p[k] = make_float2(0, 0);
    for (int start = first; start < last; start += TILE) {
        load(u, tile, shape, blockIdx.z, start);
        __syncthreads();
        int count = min(TILE, last - start);
        for (int t = 0; t < count; t++) {
            advance<SLOPES>(a, s, p, tile[t * seat.columns + seat.column]);
        }
        __syncthreads();
    }
    long chunk = (long)blockIdx.z * chunks(shape.length) + blockIdx.y;
    store(states, shape, seat, chunk, s);
    if (SLOPES) store(slopes, shape, seat, chunk, p);
}

// Re sum_n w_n s_n of the modes of a thread.
__device__ __forceinline__ float output(const float2 *w, const float2 *s) {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < MODES; k++) sum += w[k].x * s[k].x - w[k].y * s[k].y;
    return sum;
}

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

// sum g s and sum g p of a mode.
struct ModeSums {
    double2 weight, exponent;
};

// What follows the sum over the modes.
struct BankEnds {
    // Channels, or none.
    const float *feedthrough;
    // Batch x channels, or none: what the activated outputs are multiplied with.
    const float *mask;
    // Where the activated outputs go, if they are asked for.
    float *activated;
    int gelu;
    // Whether y is added to.
    int further;
};

// Re a, Im a, Re w, Im w of each mode in single precision, and a^CHUNK. One thread for each.
extern "C" __global__ void bank_table(const double *modes, float4 *table, double2 *far, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    double2 z = make_double2(modes[at], modes[count + at]), a = power(z, 1.0);
    far[at] = power(z, CHUNK);
    table[at] = make_float4(a.x, a.y, modes[2 * count + at], modes[3 * count + at]);
}

// Where each chunk ends that starts from zero. Eight blocks on each unit of a GPU: a second round of them
// takes as long as the first.
extern "C" __global__ void __launch_bounds__(THREADS, 8)
    bank_ends(const float *u, const float4 *table, float2 *states, BankShape shape) {
    __shared__ float tile[TILE * THREADS];
    run_to_end<false>(u, table, states, nullptr, shape, tile);
}

// The same with the slopes of the states.
extern "C" __global__ void __launch_bounds__(THREADS)
    bank_slope_ends(const float *u, const float4 *table, float2 *states, float2 *slopes,
                    BankShape shape) {
    __shared__ float tile[TILE * THREADS];
    run_to_end<true>(u, table, states, slopes, shape, tile);
}

// From ends of chunks to their starts, in place. One thread for each sequence, channel and mode.
extern "C" __global__ void bank_join(const double2 *far, float2 *states, float2 *slopes,
                                     BankShape shape) {
    int count = shape.channels * shape.modes;
    long at = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (long)shape.batch * count) return;
    long mode = at % count, first = at / count * chunks(shape.length);
    double2 a = far[mode];
    double2 s = make_double2(0, 0), p = make_double2(0, 0);
    for (int chunk = 0; chunk < chunks(shape.length); chunk++) {
        long place = (first + chunk) * count + mode;
        float2 end = states[place];
        states[place] = make_float2(s.x, s.y);
        if (slopes) {
            float2 slope = slopes[place];
            slopes[place] = make_float2(p.x, p.y);
            p = add(multiply(a, make_double2(p.x + CHUNK * s.x, p.y + CHUNK * s.y)), slope);
        }
        s = add(multiply(a, s), end);
    }
}

// y from where each chunk starts. Eight blocks on each unit, as above.
extern "C" __global__ void __launch_bounds__(THREADS, 8)
    bank_outputs(const float *u, const float4 *table, const float2 *states, float *y, BankEnds ends,
                 BankShape shape) {
    __shared__ float tile[TILE * THREADS];
    Seat seat(shape);
    int first = blockIdx.y * CHUNK, last = min(first + CHUNK, shape.length);
    float2 a[MODES], s[MODES], w[MODES];
    poles(table, shape, seat, a);
    for (int k = 0; k < MODES; k++) {
        int at = seat.mode(shape, k);
        w[k] = at < 0 ? make_float2(0, 0) : make_float2(table[at].z, table[at].w);
    }
    starts(states, shape, seat, (long)blockIdx.z * chunks(shape.length) + blockIdx.y, s);
    bool passes = ends.feedthrough && seat.channel < shape.channels;
    float through = passes ? ends.feedthrough[seat.channel] : 0.0f;
    for (int start = first; start < last; start += TILE) {
        load(u, tile, shape, blockIdx.z, start);
        __syncthreads();
        int count = min(TILE, last - start);
        for (int t = 0; t < count; t++) {
            float x = tile[t * seat.columns + seat.column];
            float sum = 0;
            if (shape.delayed) sum = output(w, s);
            advance<false>(a, s, nullptr, x);
            if (!shape.delayed) sum = output(w, s);
            for (int by = seat.lanes / 2; by > 0; by /= 2) {
                sum += __shfl_xor_sync(0xffffffffu, sum, by);
            }
            if (seat.lane == 0) tile[t * seat.columns + seat.column] = sum + through * x;
        }
        __syncthreads();
        int log_columns = 7 - shape.log_lanes;
#pragma unroll 1
        for (int i = threadIdx.x; i < count << log_columns; i += THREADS) {
            int channel = blockIdx.x * seat.columns + (i & (seat.columns - 1));
            if (channel >= shape.channels) continue;
            int at = step_at(start + (i >> log_columns), shape.length, shape.reverse);
            long place = ((long)blockIdx.z * shape.length + at) * shape.channels + channel;
            float found = tile[i] + (ends.further ? y[place] : 0.0f);
            y[place] = found;
            if (ends.activated) {
                float factor = ends.mask ? ends.mask[blockIdx.z * shape.channels + channel] : 1.0f;
                ends.activated[place] = factor * gelu(found, ends.gelu);
            }
        }
        __syncthreads();
    }
}

// The gradient of y from that of the activated outputs. One thread for each number.
extern "C" __global__ void bank_gelu_slopes(const float *of_activated, const float *y,
                                            const float *mask, float *g, BankShape shape, int form) {
    long at = (long)blockIdx.x * blockDim.x + threadIdx.x;
    long row = (long)shape.length * shape.channels;
    if (at >= shape.batch * row) return;
    float factor = mask ? mask[at / row * shape.channels + at % shape.channels] : 1.0f;
    g[at] = of_activated[at] * factor * gelu_slope(y[at], form);
}

namespace {

// sum g s, sum g p and sum g u over a chunk.
struct Sums {
    float2 weight[MODES], exponent[MODES];
    float through;
};

__device__ __forceinline__ void collect(Sums &sums, const float2 *s, const float2 *p, float g) {
#pragma unroll
    for (int k = 0; k < MODES; k++) {
        sums.weight[k] = make_float2(sums.weight[k].x + g * s[k].x, sums.weight[k].y + g * s[k].y);
        sums.exponent[k] =
            make_float2(sums.exponent[k].x + g * p[k].x, sums.exponent[k].y + g * p[k].y);
    }
}

// Over all tiles of a chunk.
__device__ void sum_chunk(Sums &sums, const float *u, const float *g, const float2 *a, float2 *s,
                          float2 *p, const BankShape &shape, const Seat &seat, int sequence, int first,
                          float *u_tile, float *g_tile) {
    int last = min(first + CHUNK, shape.length);
    for (int start = first; start < last; start += TILE) {
        load(u, u_tile, shape, sequence, start);
        load(g, g_tile, shape, sequence, start);
        __syncthreads();
        int count = min(TILE, last - start);
#pragma unroll 1
        for (int t = 0; t < count; t++) {
            float x = u_tile[t * seat.columns + seat.column];
            float slope = g_tile[t * seat.columns + seat.column];
            if (shape.delayed) collect(sums, s, p, slope);
            advance<true>(a, s, p, x);
            if (!shape.delayed) collect(sums, s, p, slope);
            sums.through += slope * x;
        }
        __syncthreads();
    }
}

}  // namespace

// The sums of the gradients of modes and D over the chunks share, share + shares, ...: the thread of a mode
// alone adds to it, so that the order of the sums is fixed. `partial` is shares x channels x modes, and
// `through` shares x channels.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    bank_slopes(const float *u, const float *g, const float4 *table, const float2 *states,
                const float2 *slopes, ModeSums *partial, double *through, BankShape shape) {
    __shared__ float u_tile[TILE * THREADS];
    __shared__ float g_tile[TILE * THREADS];
    Seat seat(shape);
    int each = chunks(shape.length);
    for (int item = blockIdx.y; item < shape.batch * each; item += gridDim.y) {
        float2 a[MODES], s[MODES], p[MODES];
        poles(table, shape, seat, a);
        starts(states, shape, seat, item, s);
        starts(slopes, shape, seat, item, p);
        Sums sums = {};
        sum_chunk(sums, u, g, a, s, p, shape, seat, item / each, item % each * CHUNK, u_tile, g_tile);
        bool is_first = item == (int)blockIdx.y;
        ModeSums *to = partial + (long)blockIdx.y * shape.channels * shape.modes;
        for (int k = 0; k < MODES; k++) {
            int at = seat.mode(shape, k);
            if (at < 0) continue;
            ModeSums &own = to[at];
            if (is_first) own = {make_double2(0, 0), make_double2(0, 0)};
            own.weight = add(own.weight, sums.weight[k]);
            own.exponent = add(own.exponent, sums.exponent[k]);
        }
        if (seat.lane == 0 && seat.channel < shape.channels) {
            double &own = through[(long)blockIdx.y * shape.channels + seat.channel];
            own = (is_first ? 0.0 : own) + sums.through;
        }
    }
}

// The gradients of all modes, as they stand in `modes`, and of D. A warp for each mode.
extern "C" __global__ void __launch_bounds__(THREADS)
    bank_gradients(const double *modes, const ModeSums *partial, const double *through,
                   double *of_modes, float *of_feedthrough, int shares, BankShape shape) {
    int count = shape.channels * shape.modes, at = blockIdx.x * blockDim.y + threadIdx.y;
    if (at >= count) return;
    ModeSums sums = {};
    double sum = 0;
    for (int share = threadIdx.x; share < shares; share += 32) {
        ModeSums own = partial[(long)share * count + at];
        sums.weight = make_double2(sums.weight.x + own.weight.x, sums.weight.y + own.weight.y);
        sums.exponent =
            make_double2(sums.exponent.x + own.exponent.x, sums.exponent.y + own.exponent.y);
        sum += through[(long)share * shape.channels + at / shape.modes];
    }
    double2 weight = make_double2(warp_sum(sums.weight.x), warp_sum(sums.weight.y));
    double2 exponent = make_double2(warp_sum(sums.exponent.x), warp_sum(sums.exponent.y));
    sum = warp_sum(sum);
    if (threadIdx.x > 0) return;
    exponent = multiply(make_double2(modes[2 * count + at], modes[3 * count + at]), exponent);
    of_modes[at] = exponent.x;
    of_modes[count + at] = -exponent.y;
    of_modes[2 * count + at] = weight.x;
    of_modes[3 * count + at] = -weight.y;
    if (of_feedthrough && at % shape.modes == 0) of_feedthrough[at / shape.modes] = sum;
}
