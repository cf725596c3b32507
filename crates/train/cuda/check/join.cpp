// Parameters in a row against the same by hand.
#include "../join.cu"

#include "check.h"

namespace {

// One number, exactly a tile, more than a tile.
const size_t COUNTS[] = {1, TILE, 2 * TILE + 3};

struct Rows {
    std::vector<float> row;
    std::vector<double> double_row;
    bool operator==(const Rows &other) const {
        return row == other.row && double_row == other.double_row;
    }
};

}  // namespace

void check_join() {
    check::Waves waves(7);
    std::vector<std::vector<float>> parts;
    std::vector<JoinPiece> pieces;
    std::vector<int2> tiles;
    std::vector<double> expected;
    for (size_t count : COUNTS) parts.push_back(waves.many<float>(count));
    for (const std::vector<float> &part : parts) {
        for (size_t at = 0; at < part.size(); at += TILE) tiles.push_back({int(pieces.size()), int(at)});
        pieces.push_back({part.data(), long(expected.size()), long(part.size())});
        expected.insert(expected.end(), part.begin(), part.end());
    }
    Rows found = check::in_both_orders<Rows>("join", [&] {
        Rows rows{std::vector<float>(expected.size()), std::vector<double>(expected.size())};
        emulate::launch(dim3(tiles.size()), THREADS, [&] {
            join_parts(pieces.data(), tiles.data(), rows.row.data(), nullptr);
        });
        emulate::launch(dim3(tiles.size()), THREADS, [&] {
            join_parts(pieces.data(), tiles.data(), nullptr, rows.double_row.data());
        });
        return rows;
    });
    check::near("join, in single precision", found.row, expected, 0);
    check::near("join, in double precision", found.double_row, expected, 0);
}
