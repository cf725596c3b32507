// The numbers of many parameters in a row: what all layers take at once.
#ifndef __CUDACC__
#include "emulate.h"
#endif

// A parameter, and the place of its first number in the row.
struct JoinPiece {
    const float *from;
    long first, count;
};

namespace {

constexpr int THREADS = 256;
constexpr int TILE = 1024;

}  // namespace

// To one of two rows, the other is null: in single precision, or in double. A block for each tile: a piece
// and its first number.
extern "C" __global__ void __launch_bounds__(THREADS)
    join_parts(const JoinPiece *pieces, const int2 *tiles, float *row, double *double_row) {
    int2 tile = tiles[blockIdx.x];
    JoinPiece piece = pieces[tile.x];
    for (long at = tile.y + (long)threadIdx.x; at < tile.y + TILE && at < piece.count; at += THREADS) {
        if (row) row[piece.first + at] = piece.from[at];
        else double_row[piece.first + at] = piece.from[at];
    }
}
