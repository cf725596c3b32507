// AdamW over all parameters at once, with gradients clipped by the norm of all of them, which the host
// need not wait for:
//
//     g <- factor g,   m <- m + (1 - beta1)(g - m),   v <- beta2 v + (1 - beta2) g^2
//     theta <- keep theta - step_size scale m/(sqrt(v)/root + epsilon)
//
// Three launches: the squares of each tile of numbers, the norm from them, the step of each tile. Sums
// have a fixed order. Where the norm is not finite, nothing moves.
#ifndef __CUDACC__
#include "emulate.h"
#endif

// One parameter; its numbers stand in a row.
struct AdamWPiece {
    float *parameter;
    const float *gradient;
    float *first, *second;
    // What the rate of each number is multiplied with; none for one.
    const float *scale;
    long count;
    float keep, step_size;
    // Whether it counts in the norm.
    int moved, unused;
};

struct AdamWNumbers {
    float beta1, beta2, root, epsilon;
    // The largest norm; infinite for no limit.
    double most;
};

namespace {

constexpr int THREADS = 256;
constexpr int TILE = 1024;
// What PyTorch adds to the norm before it divides by it.
constexpr double CLIP_EPSILON = 1e-6;

// The sum over the block, for its first thread.
__device__ double block_sum(double value, double *room) {
    room[threadIdx.x] = value;
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) room[threadIdx.x] += room[threadIdx.x + half];
    }
    return room[0];
}

}  // namespace

// The sum of squares of each tile: a piece and its first number.
extern "C" __global__ void __launch_bounds__(THREADS)
    adamw_squares(const AdamWPiece *pieces, const int2 *tiles, double *squares) {
    __shared__ double room[THREADS];
    int2 tile = tiles[blockIdx.x];
    AdamWPiece piece = pieces[tile.x];
    double sum = 0.0;
    for (long at = tile.y + (long)threadIdx.x; at < tile.y + TILE && at < piece.count; at += THREADS) {
        double g = piece.gradient[at];
        if (piece.moved) sum += g * g;
    }
    sum = block_sum(sum, room);
    if (threadIdx.x == 0) squares[blockIdx.x] = sum;
}

// The norm, and the factor of the gradients; zero where the norm is not finite. One block.
extern "C" __global__ void __launch_bounds__(THREADS)
    adamw_norm(const double *squares, int tiles, double *norm, AdamWNumbers numbers) {
    __shared__ double room[THREADS];
    double sum = 0.0;
    for (int at = threadIdx.x; at < tiles; at += THREADS) sum += squares[at];
    sum = block_sum(sum, room);
    if (threadIdx.x != 0) return;
    norm[0] = sqrt(sum);
    norm[1] = isfinite(sum) ? fmin(numbers.most / (norm[0] + CLIP_EPSILON), 1.0) : 0.0;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    adamw_step(const AdamWPiece *pieces, const int2 *tiles, const double *norm, AdamWNumbers numbers) {
    int2 tile = tiles[blockIdx.x];
    AdamWPiece piece = pieces[tile.x];
    if (!isfinite(norm[0])) return;
    float factor = norm[1];
    for (long at = tile.y + (long)threadIdx.x; at < tile.y + TILE && at < piece.count; at += THREADS) {
        float g = factor * piece.gradient[at], m = piece.first[at], v = piece.second[at];
        m += (1.0f - numbers.beta1) * (g - m);
        v = numbers.beta2 * v + (1.0f - numbers.beta2) * g * g;
        float rate = piece.step_size * (piece.scale ? piece.scale[at] : 1.0f);
        piece.first[at] = m;
        piece.second[at] = v;
        piece.parameter[at] =
            piece.keep * piece.parameter[at] - rate * m / (sqrtf(v) / numbers.root + numbers.epsilon);
    }
}
