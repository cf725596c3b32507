// What stands around the state space of a block, on rows (batch x length) of channels: its norm, and the end
// of its branch, where the outputs of the map get their bias, go through a gate and a mask, and join the
// block's input:
//
//     z = weight (x - mean)/deviation + bias        over the channels of a row
//     out = residual + mask f(mixed + bias)
//
// f is the identity, a gate of two halves, a (m, n) -> m sigmoid(n), or a gate on the activated outputs s of
// the state space, m -> s sigmoid(m). Without a map, f is s.
#include "scan.h"

struct BlockShape {
    int batch, length, channels;
};

// The end of a branch; what its form does not take is null.
struct BlockEnd {
    // Rows x channels, or twice as many for two halves.
    const float *mixed;
    const float *bias;
    // The activated outputs of the state space.
    const float *active;
    // Batch x channels.
    const float *mask;
    const float *residual;
    int form, unused;
};

namespace {

constexpr int NO_MAP = 0;
constexpr int PLAIN = 1;
constexpr int HALVES = 2;

// Rows that a block of `block_sums` takes at a time.
constexpr int LINES = 4;

__device__ __forceinline__ long rows(const BlockShape &shape) {
    return (long)shape.batch * shape.length;
}

__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

// The number of a thread. All numbers of a batch are fewer than 2^31: divisions in 64 bits take longer than
// all else.
struct Place {
    unsigned number;
    long row;
    int channel;

    __device__ explicit Place(const BlockShape &shape) {
        number = blockIdx.x * blockDim.x + threadIdx.x;
        unsigned line = number / (unsigned)shape.channels;
        row = line;
        channel = number - line * shape.channels;
    }

    __device__ unsigned sequence(const BlockShape &shape) const {
        return (unsigned)row / (unsigned)shape.length;
    }
};

__device__ __forceinline__ float factor(const BlockEnd &end, const BlockShape &shape, Place at) {
    return end.mask ? end.mask[at.sequence(shape) * shape.channels + at.channel] : 1.0f;
}

// The outputs of the map with their bias: of the first half, or of the second.
__device__ __forceinline__ float mapped(const BlockEnd &end, const BlockShape &shape, Place at,
                                        int half) {
    int halves = end.form == HALVES ? 2 : 1, column = half * shape.channels + at.channel;
    return end.mixed[at.row * halves * shape.channels + column] + end.bias[column];
}

}  // namespace

// A warp for each row. `statistics` are the mean of each row and the inverse of its deviation.
extern "C" __global__ void __launch_bounds__(THREADS)
    block_normalise(const float *x, const float *weight, const float *bias, float *z,
                    float2 *statistics, float epsilon, BlockShape shape) {
    long row = (long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows(shape)) return;
    const float *own = x + row * shape.channels;
    float sum = 0, square = 0;
    for (int c = threadIdx.x; c < shape.channels; c += 32) sum += own[c];
    float mean = warp_sum(sum) / shape.channels;
    for (int c = threadIdx.x; c < shape.channels; c += 32) {
        float apart = own[c] - mean;
        square += apart * apart;
    }
    float inverse = 1.0f / sqrtf(warp_sum(square) / shape.channels + epsilon);
    for (int c = threadIdx.x; c < shape.channels; c += 32) {
        z[row * shape.channels + c] = weight[c] * ((own[c] - mean) * inverse) + bias[c];
    }
    if (threadIdx.x == 0) statistics[row] = make_float2(mean, inverse);
}

// The gradient of x from that of z, with what else flows into x where there is a residual. A warp for each row.
extern "C" __global__ void __launch_bounds__(THREADS)
    block_normalise_slopes(const float *of_z, const float *x, const float *weight,
                           const float2 *statistics, const float *residual, float *of_x,
                           BlockShape shape) {
    long row = (long)blockIdx.x * blockDim.y + threadIdx.y;
    if (row >= rows(shape)) return;
    long first = row * shape.channels;
    float mean = statistics[row].x, inverse = statistics[row].y, level = 0, along = 0;
    for (int c = threadIdx.x; c < shape.channels; c += 32) {
        float slope = of_z[first + c] * weight[c];
        level += slope;
        along += slope * ((x[first + c] - mean) * inverse);
    }
    level = warp_sum(level) / shape.channels;
    along = warp_sum(along) / shape.channels;
    for (int c = threadIdx.x; c < shape.channels; c += 32) {
        float normal = (x[first + c] - mean) * inverse;
        float own = (of_z[first + c] * weight[c] - level - normal * along) * inverse;
        of_x[first + c] = own + (residual ? residual[first + c] : 0.0f);
    }
}

// Sums over rows of g, and with an x of g times x, normalised where there are `statistics`: those of share y go
// to row y of `partial`, shares x (columns, then columns). Blocks of 32 x LINES threads.
extern "C" __global__ void __launch_bounds__(THREADS)
    block_sums(const float *g, const float *x, const float2 *statistics, double *partial,
               int columns, long count) {
    __shared__ float plain[THREADS];
    __shared__ float scaled[THREADS];
    int column = blockIdx.x * 32 + threadIdx.x, own = threadIdx.y * 32 + threadIdx.x;
    float sum = 0, product = 0;
    long last = column < columns ? count : 0;
#pragma unroll 4
    for (long row = blockIdx.y * LINES + threadIdx.y; row < last; row += (long)gridDim.y * LINES) {
        float slope = g[row * columns + column];
        sum += slope;
        if (x) {
            float2 level = statistics ? statistics[row] : make_float2(0, 1);
            product += slope * ((x[row * columns + column] - level.x) * level.y);
        }
    }
    plain[own] = sum;
    scaled[own] = product;
    __syncthreads();
    if (threadIdx.y > 0 || column >= columns) return;
    double total = 0, further = 0;
    for (int line = 0; line < LINES; line++) {
        total += plain[line * 32 + threadIdx.x];
        further += scaled[line * 32 + threadIdx.x];
    }
    double *to = partial + (long)blockIdx.y * 2 * columns + column;
    to[0] = total;
    to[columns] = further;
}

// The sums of all shares. A warp for each column.
extern "C" __global__ void __launch_bounds__(THREADS)
    block_totals(const double *partial, float *plain, float *scaled, int columns, int shares) {
    int column = blockIdx.x * blockDim.y + threadIdx.y;
    if (column >= columns) return;
    double total = 0, further = 0;
    for (int share = threadIdx.x; share < shares; share += 32) {
        total += partial[(long)share * 2 * columns + column];
        if (scaled) further += partial[((long)share * 2 + 1) * columns + column];
    }
    total = warp_sum(total);
    further = warp_sum(further);
    if (threadIdx.x > 0) return;
    plain[column] = total;
    if (scaled) scaled[column] = further;
}

// One thread for each number.
extern "C" __global__ void block_end(BlockEnd end, float *out, BlockShape shape) {
    Place at(shape);
    if (at.row >= rows(shape)) return;
    float found;
    if (end.form == NO_MAP) {
        found = end.active[at.number];
    } else if (end.form == PLAIN) {
        found = mapped(end, shape, at, 0);
    } else if (end.form == HALVES) {
        found = mapped(end, shape, at, 0) * sigmoid(mapped(end, shape, at, 1));
    } else {
        found = end.active[at.number] * sigmoid(mapped(end, shape, at, 0));
    }
    found *= factor(end, shape, at);
    out[at.number] = found + (end.residual ? end.residual[at.number] : 0.0f);
}

// The gradients of what the map gives, and of the activated outputs as far as they do not flow through the
// map, from that of the branch. One thread for each number.
extern "C" __global__ void block_end_slopes(BlockEnd end, const float *g, float *of_mixed,
                                            float *of_active, BlockShape shape) {
    Place at(shape);
    if (at.row >= rows(shape)) return;
    float slope = g[at.number] * factor(end, shape, at);
    if (end.form == NO_MAP) {
        of_active[at.number] = slope;
    } else if (end.form == PLAIN) {
        of_mixed[at.number] = slope;
    } else if (end.form == HALVES) {
        float first = mapped(end, shape, at, 0), share = sigmoid(mapped(end, shape, at, 1));
        long to = at.row * 2 * shape.channels + at.channel;
        of_mixed[to] = slope * share;
        of_mixed[to + shape.channels] = slope * first * share * (1.0f - share);
    } else {
        float share = sigmoid(mapped(end, shape, at, 0));
        of_active[at.number] = slope * share;
        of_mixed[at.number] = slope * end.active[at.number] * share * (1.0f - share);
    }
}

// The weighted sum of the steps of a sequence, batch x channels: by `weights`, batch x length, or all by
// `weight` where that is null. The columns of 32 channels in blocks of 32 x LINES threads.
extern "C" __global__ void __launch_bounds__(THREADS)
    block_pool(const float *x, const float *weights, float weight, float *pooled, BlockShape shape) {
    __shared__ double sums[THREADS];
    int channel = blockIdx.x * 32 + threadIdx.x;
    double sum = 0;
    int last = channel < shape.channels ? shape.length : 0;
#pragma unroll 8
    for (int t = threadIdx.y; t < last; t += LINES) {
        long row = (long)blockIdx.y * shape.length + t;
        sum += (weights ? weights[row] : weight) * x[row * shape.channels + channel];
    }
    sums[threadIdx.y * 32 + threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y > 0 || channel >= shape.channels) return;
    for (int line = 1; line < LINES; line++) sum += sums[line * 32 + threadIdx.x];
    pooled[(long)blockIdx.y * shape.channels + channel] = sum;
}

// The gradient of x from that of its weighted sums. One thread for each number.
extern "C" __global__ void block_spread(const float *of_pooled, const float *weights, float weight,
                                        float *of_x, BlockShape shape) {
    Place at(shape);
    if (at.row >= rows(shape)) return;
    float slope = of_pooled[at.sequence(shape) * shape.channels + at.channel];
    of_x[at.number] = (weights ? weights[at.row] : weight) * slope;
}
