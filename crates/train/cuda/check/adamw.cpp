// AdamW against its formulas, number by number.
#include "../adamw.cu"

#include <limits>

#include "check.h"

namespace {

const std::vector<long> COUNTS = {1, 2500, 17, 1024};
const AdamWNumbers NUMBERS = {0.9f, 0.999f, 0.05f, 1e-8f, 0.5};

struct Pieces {
    std::vector<std::vector<float>> parameter, gradient, first, second, scale;
    double norm[2];

    Pieces() {
        check::Waves waves(3);
        for (long count : COUNTS) {
            parameter.push_back(waves.many<float>(count));
            gradient.push_back(waves.many<float>(count, 0, 0.1));
            first.push_back(waves.many<float>(count));
            second.push_back(waves.many<float>(count, 1, 0.9));
            scale.push_back(waves.many<float>(count, 0.5, 0.5));
        }
    }

    bool operator==(const Pieces &other) const {
        return parameter == other.parameter && first == other.first && second == other.second &&
               norm[0] == other.norm[0] && norm[1] == other.norm[1];
    }

    // The second is not scaled, the third does not count.
    static bool is_scaled(size_t i) { return i != 1; }
    static bool is_moved(size_t i) { return i != 2; }
    static float keep(size_t i) { return 1.0f - 0.01f * i; }
    static float step_size(size_t i) { return 0.01f * (i + 1); }

    void step(AdamWNumbers numbers) {
        std::vector<AdamWPiece> pieces;
        std::vector<int2> tiles;
        for (size_t i = 0; i < COUNTS.size(); i++) {
            const float *scale = is_scaled(i) ? this->scale[i].data() : nullptr;
            pieces.push_back({parameter[i].data(), gradient[i].data(), first[i].data(), second[i].data(),
                              scale, COUNTS[i], keep(i), step_size(i), is_moved(i), 0});
            for (long at = 0; at < COUNTS[i]; at += TILE) tiles.push_back({int(i), int(at)});
        }
        std::vector<double> squares(tiles.size());
        unsigned count = unsigned(tiles.size());
        emulate::launch(count, THREADS,
                        [&] { adamw_squares(pieces.data(), tiles.data(), squares.data()); });
        emulate::launch(1, THREADS,
                        [&] { adamw_norm(squares.data(), int(count), norm, numbers); });
        emulate::launch(count, THREADS, [&] { adamw_step(pieces.data(), tiles.data(), norm, numbers); });
    }
};

void compare(const std::string &name, const Pieces &found, double most) {
    Pieces start;
    double square = 0;
    for (size_t i = 0; i < COUNTS.size(); i++) {
        for (float g : start.gradient[i]) square += Pieces::is_moved(i) ? double(g) * g : 0.0;
    }
    double norm = std::sqrt(square), factor = std::min(1.0, most / (norm + 1e-6));
    check::near(name + ", norm", std::vector<double>{found.norm[0], found.norm[1]},
                std::vector<double>{norm, factor}, 1e-12);
    for (size_t i = 0; i < COUNTS.size(); i++) {
        std::vector<double> moves, found_moves, firsts, seconds;
        for (long at = 0; at < COUNTS[i]; at++) {
            double g = factor * start.gradient[i][at];
            double m = 0.9 * start.first[i][at] + 0.1 * g, v = 0.999 * start.second[i][at] + 0.001 * g * g;
            double p = start.parameter[i][at], scale = Pieces::is_scaled(i) ? start.scale[i][at] : 1.0;
            double after = Pieces::keep(i) * p -
                           Pieces::step_size(i) * scale * m / (std::sqrt(v) / 0.05 + 1e-8);
            moves.push_back(after);
            found_moves.push_back(found.parameter[i][at]);
            firsts.push_back(m);
            seconds.push_back(v);
        }
        check::near(name + ", parameters", found_moves, moves, 1e-6);
        check::near(name + ", first moments", found.first[i], firsts, 1e-6);
        check::near(name + ", second moments", found.second[i], seconds, 1e-6);
    }
}

}  // namespace

void check_adamw() {
    for (double most : {0.5, std::numeric_limits<double>::infinity()}) {
        AdamWNumbers numbers = NUMBERS;
        numbers.most = most;
        std::string name = std::isfinite(most) ? "AdamW, clipped" : "AdamW, not clipped";
        compare(name, check::in_both_orders<Pieces>(name, [&] {
            Pieces pieces;
            pieces.step(numbers);
            return pieces;
        }), most);
    }
    Pieces broken, start;
    broken.gradient[3][1000] = std::numeric_limits<float>::quiet_NaN();
    broken.step(NUMBERS);
    check::comparisons++;
    if (broken.parameter != start.parameter || broken.second != start.second) {
        check::failures++;
        std::printf("AdamW moves by a gradient that is not a number\n");
    }
}
