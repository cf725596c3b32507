// The state space of a block with one system for each channel, on batch x length x channels:
//
//     s_t = a s_{t-1} + u_t,   y_t = D u_t + Re sum_n w_n s_nt,   a = e^z
//
// Backwards in time the steps are taken from the last one, and y_t has s of the step before (`delayed`).
// The way back forms the states again. With g the gradient of y, and q the recurrence over g from the last
// step on, q_t = a q_{t+1} + g_t:
//
//     du_t = D g_t + Re sum_n w_n q_nt
//     dw_n:  conj sum_t g_t s_nt
//     dz_n:  conj (w_n sum_t s_nt a q_n,t+1)
//
// A gradient is that of the real part plus i times that of the imaginary part. Modes must decay.
//
// `modes` are Re z, Im z, Re w, Im w, each channels x modes, in double precision. A thread holds STEPS steps
// of a channel, its `lanes` neighbours the next ones, and takes mode after mode: a run from zero to find
// where its steps end, a scan over the neighbours with powers of a that were formed in double precision, and
// a run from where the steps start. So the error of a, which single precision holds to 24 bits, grows over
// STEPS steps and not over the sequence. Longer sequences are taken by tiles of 32 STEPS steps.
#include "gelu.h"
#include "scan.h"

namespace {

// Steps of a thread, and the place of the next thread's steps in shared memory: no two threads of a warp
// take numbers of one bank.
constexpr int STEPS = 32;
constexpr int STRIDE = STEPS + 1;

// Powers of a pole: those of STEPS, 2 STEPS, ..., 16 STEPS.
constexpr int POWERS = 5;

// The most modes of a channel, and channels of a block where a sequence has more than one tile.
constexpr int MOST_MODES = 256;
constexpr int FEW_COLUMNS = THREADS / 32;

constexpr unsigned ALL = 0xffffffffu;

}  // namespace

struct BankShape {
    int batch, length, channels, modes;
    // The logarithm of the threads that share a channel, 0 to 5. Below 5 they hold the whole sequence.
    int log_lanes;
    int reverse, delayed;
};

// A pole and a weight in single precision, and the powers of the pole.
struct Mode {
    float2 a, w, far[POWERS];
};

namespace {

// Where a thread stands.
struct Seat {
    int lane, lanes, log_lanes, columns, column, channel;

    __device__ explicit Seat(const BankShape &shape) {
        log_lanes = shape.log_lanes;
        lanes = 1 << log_lanes;
        lane = threadIdx.x & (lanes - 1);
        column = threadIdx.x >> log_lanes;
        columns = THREADS >> log_lanes;
        channel = blockIdx.x * columns + column;
    }

    // The steps of a tile.
    __device__ int span() const { return STEPS << log_lanes; }

    __device__ int tiles(const BankShape &shape) const {
        return (shape.length + span() - 1) / span();
    }

    // The n-th mode; a mode of zeros beyond the last mode or channel.
    __device__ Mode mode(const Mode *table, const BankShape &shape, int n) const {
        if (channel < shape.channels && n < shape.modes) return table[channel * shape.modes + n];
        Mode none = {};
        return none;
    }
};

// A number of a tile, by its place in the tile and its column.
__device__ __forceinline__ int cell(const Seat &seat, int place, int column) {
    return ((column << seat.log_lanes) + place / STEPS) * STRIDE + place % STEPS;
}

// Calls with the cells of a tile, what of batch x length x channels stands there, and the channel; `at` is
// below zero beyond the end. Neighbours take neighbouring channels. `first` is a place in the order of the
// direction.
template <typename Use>
__device__ __forceinline__ void each_cell(const BankShape &shape, const Seat &seat, int first, Use use) {
    int log_columns = 7 - seat.log_lanes;
#pragma unroll 4
    for (int i = threadIdx.x; i < THREADS * STEPS; i += THREADS) {
        int place = i >> log_columns, column = i & (seat.columns - 1);
        int channel = blockIdx.x * seat.columns + column;
        bool inside = first + place < shape.length && channel < shape.channels;
        int step = step_at(first + place, shape.length, shape.reverse);
        long row = (long)blockIdx.y * shape.length + step;
        use(cell(seat, place, column), inside ? row * shape.channels + channel : -1, channel);
    }
}

__device__ void load(const float *all, float *tile, const BankShape &shape, const Seat &seat, int first) {
    each_cell(shape, seat, first, [&](int to, long at, int) { tile[to] = at < 0 ? 0.0f : all[at]; });
}

// What the neighbour that is `by` places before gives; BACK turns the order of the neighbours around.
template <bool BACK>
__device__ __forceinline__ float2 before(float2 value, int by, const Seat &seat) {
    if (BACK) {
        return make_float2(__shfl_down_sync(ALL, value.x, by, seat.lanes),
                           __shfl_down_sync(ALL, value.y, by, seat.lanes));
    }
    return make_float2(__shfl_up_sync(ALL, value.x, by, seat.lanes),
                       __shfl_up_sync(ALL, value.y, by, seat.lanes));
}

// Where the steps of a thread start, from where they end if they start from zero. `carry` is where the tile
// starts; with `goes_on` it becomes where it ends.
template <bool BACK>
__device__ __forceinline__ float2 start_of(float2 end, const float2 *far, const Seat &seat, float2 &carry,
                                           bool goes_on) {
    int place = BACK ? seat.lanes - 1 - seat.lane : seat.lane;
    if (place == 0) end = add(end, multiply(far[0], carry));
#pragma unroll
    for (int k = 0; k < POWERS; k++) {
        if (k >= seat.log_lanes) break;
        float2 other = before<BACK>(end, 1 << k, seat);
        if (place >= 1 << k) end = add(end, multiply(far[k], other));
    }
    float2 start = before<BACK>(end, 1, seat);
    if (place == 0) start = carry;
    if (goes_on) {
        int last = BACK ? 0 : seat.lanes - 1;
        carry = make_float2(__shfl_sync(ALL, end.x, last, seat.lanes),
                            __shfl_sync(ALL, end.y, last, seat.lanes));
    }
    return start;
}

// What the activated outputs of a channel are multiplied with.
__device__ __forceinline__ float masked(const float *mask, const BankShape &shape, int channel) {
    return mask ? mask[(long)blockIdx.y * shape.channels + channel] : 1.0f;
}

__device__ __forceinline__ float output(float2 w, float2 s) { return w.x * s.x - w.y * s.y; }

}  // namespace

// sum g s and sum s a q of a mode.
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

// Where the gradient of y comes from, and where it leads.
struct BankSlopes {
    // Of the activated outputs where there is a form of GELU, else of y.
    const float *given;
    const float *y, *mask, *feedthrough;
    float *of_input;
    // Batch x channels, or none.
    double *of_feedthrough;
    int gelu;
    // Whether the gradient of the inputs is added to.
    int further;
};

// The modes as the recurrences take them. One thread for each.
extern "C" __global__ void bank_table(const double *modes, Mode *table, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= count) return;
    double2 z = make_double2(modes[at], modes[count + at]), a = power(z, 1.0);
    Mode &own = table[at];
    own.a = make_float2(a.x, a.y);
    own.w = make_float2(modes[2 * count + at], modes[3 * count + at]);
    for (int k = 0; k < POWERS; k++) {
        double2 far = power(z, STEPS << k);
        own.far[k] = make_float2(far.x, far.y);
    }
}

namespace {

// Adds the outputs of two modes on the steps of a thread. Two, so that each number of shared memory is
// taken for twelve sums.
template <bool DELAYED>
__device__ __forceinline__ void add_outputs(const Mode *modes, float2 *carries, const float *u, float *out,
                                            const Seat &seat, bool goes_on) {
    float2 a = modes[0].a, b = modes[1].a, s = make_float2(0, 0), r = make_float2(0, 0);
#pragma unroll
    for (int t = 0; t < STEPS; t++) {
        s = step(a, s, u[t]);
        r = step(b, r, u[t]);
    }
    s = start_of<false>(s, modes[0].far, seat, carries[0], goes_on);
    r = start_of<false>(r, modes[1].far, seat, carries[1], goes_on);
#pragma unroll
    for (int t = 0; t < STEPS; t++) {
        if (DELAYED) out[t] += output(modes[0].w, s) + output(modes[1].w, r);
        s = step(a, s, u[t]);
        r = step(b, r, u[t]);
        if (!DELAYED) out[t] += output(modes[0].w, s) + output(modes[1].w, r);
    }
}

// The sums of all modes over a tile, into its cells.
template <bool DELAYED>
__device__ void run_tile(const Mode *table, float *tile, float2 *carried, const BankShape &shape,
                         const Seat &seat, float through, bool is_first, bool goes_on) {
    float *own = tile + threadIdx.x * STRIDE;
    float2 *kept = carried + seat.column * MOST_MODES;
    float out[STEPS];
#pragma unroll
    for (int t = 0; t < STEPS; t++) out[t] = through * own[t];
#pragma unroll 1
    for (int n = 0; n < shape.modes; n += 2) {
        Mode modes[2] = {seat.mode(table, shape, n), seat.mode(table, shape, n + 1)};
        float2 carries[2] = {make_float2(0, 0), make_float2(0, 0)};
        if (!is_first && seat.lane == 0) {
            carries[0] = kept[n];
            carries[1] = kept[n + 1];
        }
        add_outputs<DELAYED>(modes, carries, own, out, seat, goes_on);
        if (goes_on && seat.lane == 0) {
            kept[n] = carries[0];
            kept[n + 1] = carries[1];
        }
    }
#pragma unroll
    for (int t = 0; t < STEPS; t++) own[t] = out[t];
}

}  // namespace

// y, and what is activated. Blocks over the channels and sequences.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    bank_outputs(const float *u, const Mode *table, float *y, BankEnds ends, BankShape shape) {
    __shared__ float tile[THREADS * STRIDE];
    __shared__ float2 carried[FEW_COLUMNS * MOST_MODES];
    Seat seat(shape);
    bool passes = ends.feedthrough && seat.channel < shape.channels;
    float through = passes ? ends.feedthrough[seat.channel] : 0.0f;
    for (int first = 0; first < shape.length; first += seat.span()) {
        bool is_first = first == 0, goes_on = first + seat.span() < shape.length;
        load(u, tile, shape, seat, first);
        __syncthreads();
        if (shape.delayed) {
            run_tile<true>(table, tile, carried, shape, seat, through, is_first, goes_on);
        } else {
            run_tile<false>(table, tile, carried, shape, seat, through, is_first, goes_on);
        }
        __syncthreads();
        each_cell(shape, seat, first, [&](int from, long at, int channel) {
            if (at < 0) return;
            float found = tile[from] + (ends.further ? y[at] : 0.0f);
            y[at] = found;
            if (!ends.activated) return;
            float factor = masked(ends.mask, shape, channel);
            ends.activated[at] = factor * gelu(found, ends.gelu);
        });
        __syncthreads();
    }
}

namespace {

// The gradient of y, through the activation. Where y has the state of the step before, that of the step
// behind stands in its place.
__device__ void load_slopes(const BankSlopes &slopes, float *tile, const BankShape &shape,
                            const Seat &seat, int first) {
    each_cell(shape, seat, first + shape.delayed, [&](int to, long at, int channel) {
        float slope = at < 0 ? 0.0f : slopes.given[at];
        if (slopes.gelu && at >= 0) {
            slope *= masked(slopes.mask, shape, channel) * gelu_slope(slopes.y[at], slopes.gelu);
        }
        tile[to] = slope;
    });
}

// Where each tile but the first starts: batch x tiles x channels x modes.
__device__ void find_starts(const float *u, const Mode *table, float2 *starts, float *tile,
                            const BankShape &shape, const Seat &seat) {
    int count = shape.channels * shape.modes, tiles = seat.tiles(shape);
    const float *own = tile + threadIdx.x * STRIDE;
#pragma unroll 1
    for (int at = 0; at + 1 < tiles; at++) {
        load(u, tile, shape, seat, at * seat.span());
        __syncthreads();
        float2 *to = starts + ((long)blockIdx.y * tiles + at + 1) * count + seat.channel * shape.modes;
#pragma unroll 1
        for (int n = 0; n < shape.modes; n++) {
            Mode mode = seat.mode(table, shape, n);
            float2 s = make_float2(0, 0), carry = make_float2(0, 0);
            bool stores = seat.lane == 0 && seat.channel < shape.channels;
            if (stores && at > 0) carry = (to - count)[n];
#pragma unroll
            for (int t = 0; t < STEPS; t++) s = step(mode.a, s, own[t]);
            start_of<false>(s, mode.far, seat, carry, true);
            if (stores) to[n] = carry;
        }
        __syncthreads();
    }
}

// sum g s and sum s a q over the steps of a thread.
struct Sums {
    float2 weight, exponent;
};

// From where states and q start; adds to the gradients of the inputs.
__device__ __forceinline__ Sums sum_steps(const Mode &mode, float2 s, float2 q, const float *u,
                                          const float *g, float *of_input) {
    float2 kept[STEPS];
#pragma unroll
    for (int t = 0; t < STEPS; t++) kept[t] = s = step(mode.a, s, u[t]);
    Sums sums = {make_float2(0, 0), make_float2(0, 0)};
#pragma unroll
    for (int t = STEPS - 1; t >= 0; t--) {
        float slope = g[t];
        q = multiply(mode.a, q);
        sums.exponent = add(sums.exponent, multiply(kept[t], q));
        q.x += slope;
        of_input[t] += output(mode.w, q);
        sums.weight.x += slope * kept[t].x;
        sums.weight.y += slope * kept[t].y;
    }
    return sums;
}

// Over the threads that share a channel.
__device__ __forceinline__ float2 total(float2 sum, const Seat &seat) {
#pragma unroll 1
    for (int by = seat.lanes / 2; by > 0; by /= 2) {
        sum.x += __shfl_xor_sync(ALL, sum.x, by);
        sum.y += __shfl_xor_sync(ALL, sum.y, by);
    }
    return sum;
}

// Adds the sums of a tile to those of the tiles behind it.
__device__ __forceinline__ void add_to(ModeSums &own, const Sums &sums, bool is_last) {
    double2 none = make_double2(0, 0);
    own.weight = add(is_last ? none : own.weight, sums.weight);
    own.exponent = add(is_last ? none : own.exponent, sums.exponent);
}

}  // namespace

// The gradient of the inputs, and for each sequence the sums of the gradients of modes and D: `partial` is
// batch x channels x modes. `starts` is room for as many for each tile where there is more than one. One
// thread alone adds to a sum, so that their order is fixed.
extern "C" __global__ void __launch_bounds__(THREADS, 4)
    bank_slopes(const float *u, const Mode *table, float2 *starts, ModeSums *partial, BankSlopes slopes,
                BankShape shape) {
    __shared__ float u_tile[THREADS * STRIDE];
    __shared__ float g_tile[THREADS * STRIDE];
    __shared__ float2 carried[FEW_COLUMNS * MOST_MODES];
    Seat seat(shape);
    int count = shape.channels * shape.modes, tiles = seat.tiles(shape);
    if (tiles > 1) find_starts(u, table, starts, u_tile, shape, seat);
    bool is_real = seat.channel < shape.channels, leads = seat.lane == 0 && is_real;
    float through = is_real && slopes.feedthrough ? slopes.feedthrough[seat.channel] : 0.0f;
    float *x = u_tile + threadIdx.x * STRIDE, *g = g_tile + threadIdx.x * STRIDE;
    double of_through = 0;
#pragma unroll 1
    for (int tile = tiles - 1; tile >= 0; tile--) {
        bool is_last = tile == tiles - 1;
        load(u, u_tile, shape, seat, tile * seat.span());
        load_slopes(slopes, g_tile, shape, seat, tile * seat.span());
        __syncthreads();
        float of_input[STEPS];
        float sum = 0;
#pragma unroll
        for (int t = 0; t < STEPS; t++) {
            of_input[t] = through * g[t];
            sum += g[t] * x[t];
        }
        of_through += total(make_float2(sum, 0), seat).x;
#pragma unroll 1
        for (int n = 0; n < shape.modes; n++) {
            Mode mode = seat.mode(table, shape, n);
            int at = seat.channel * shape.modes + n;
            float2 *kept = carried + seat.column * MOST_MODES + n;
            float2 s = make_float2(0, 0), q = s, from_before = s, from_behind = s;
            if (leads && tile > 0) from_before = starts[((long)blockIdx.y * tiles + tile) * count + at];
            if (seat.lane == seat.lanes - 1 && !is_last) from_behind = *kept;
#pragma unroll
            for (int t = 0; t < STEPS; t++) {
                s = step(mode.a, s, x[t]);
                q = step(mode.a, q, g[STEPS - 1 - t]);
            }
            s = start_of<false>(s, mode.far, seat, from_before, false);
            q = start_of<true>(q, mode.far, seat, from_behind, tile > 0);
            if (seat.lane == seat.lanes - 1 && tile > 0) *kept = from_behind;
            Sums sums = sum_steps(mode, s, q, x, g, of_input);
            sums.weight = total(sums.weight, seat);
            sums.exponent = total(sums.exponent, seat);
            if (leads) add_to(partial[(long)blockIdx.y * count + at], sums, is_last);
        }
#pragma unroll
        for (int t = 0; t < STEPS; t++) g[t] = of_input[t];
        __syncthreads();
        each_cell(shape, seat, tile * seat.span(), [&](int from, long at, int) {
            if (at < 0) return;
            slopes.of_input[at] = g_tile[from] + (slopes.further ? slopes.of_input[at] : 0.0f);
        });
        __syncthreads();
    }
    if (leads && slopes.of_feedthrough) {
        slopes.of_feedthrough[(long)blockIdx.y * shape.channels + seat.channel] = of_through;
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
