// Rounded maps against their definition: levels by search, slopes by the cases of the definition.
#include "../rounding.cu"

#include "check.h"

namespace {

struct Map {
    RoundingShape shape;
    std::vector<float> weight, range, slopes;

    Map(float most, float step) : shape{5, 40, 16, 3, -most, most - 2 + step, step} {
        check::Waves waves(unsigned(most) + 1);
        weight = waves.many<float>(shape.outputs * shape.inputs);
        range = waves.many<float>(shape.outputs * shape.groups, -0.7, 0.3);
        slopes = waves.many<float>(weight.size());
        // A turned scale, none at all, and weights on the ties of a scale that bfloat16 holds.
        range[4] = -range[4];
        range[5] = 0;
        range[0] = -0.125f * most;
        weight[0] = 0.0625f;
        weight[1] = -0.1875f;
        weight[2] = 0.125f * (most - 0.5f);
        weight[3] = -0.125f * (most + 0.5f);
    }

    // The bfloat16 nearest to a scale: of all with its sign and near its exponent.
    double scale(int row) const {
        double exact = double(range[row]) / shape.lowest;
        if (exact == 0) return 0;
        int exponent;
        std::frexp(exact, &exponent);
        double unit = std::ldexp(1.0, exponent - 8), near = std::nearbyint(exact / unit) * unit;
        return near;
    }

    struct Entry {
        double value, of_weight, of_scale;
    };

    Entry entry(size_t at) const {
        double s = scale(at / shape.inputs * shape.groups + at % shape.inputs / shape.group);
        double w = weight[at], best = shape.lowest;
        if (s == 0) return {0, 1, 0};
        double middle = shape.step - 1, half = 0.5 * shape.step;
        for (double q = shape.lowest; q <= shape.highest; q += shape.step) {
            double now = std::abs(w / s - q), before = std::abs(w / s - best);
            // Of two levels as near the one away from the middle.
            if (now < before || (now == before && std::abs(q - middle) > std::abs(best - middle))) best = q;
        }
        bool within = w / s >= shape.lowest - half && w / s < shape.highest + half;
        return {s * best, within ? 1.0 : 0.0, within ? best - w / s : best};
    }
};

}  // namespace

void check_rounding() {
    for (float most : {3.0f, 4.0f, 8.0f, 128.0f}) {
        Map map(most, most < 4 ? 2 : 1);
        size_t count = map.weight.size(), ranges = map.range.size();
        std::string name = "rounding, lowest level -" + std::to_string(int(most));
        auto found = check::in_both_orders<std::vector<float>>(name, [&] {
            std::vector<float> out(2 * count + ranges);
            emulate::launch(check::blocks(count), 128, [&] {
                rounding_values(map.weight.data(), map.range.data(), out.data(), map.shape);
            });
            emulate::launch(check::blocks(ranges, 4), dim3(32, 4), [&] {
                rounding_slopes(map.weight.data(), map.range.data(), map.slopes.data(), &out[count],
                                &out[2 * count], map.shape);
            });
            return out;
        });
        std::vector<double> values(count), of_weight(count), of_range(ranges);
        for (size_t at = 0; at < count; at++) {
            Map::Entry entry = map.entry(at);
            values[at] = entry.value;
            of_weight[at] = map.slopes[at] * entry.of_weight;
            size_t row = at / map.shape.inputs * map.shape.groups + at % map.shape.inputs / map.shape.group;
            of_range[row] -= map.slopes[at] * entry.of_scale / most;
        }
        auto part = [&](size_t from, size_t to) {
            return std::vector<float>(found.begin() + from, found.begin() + to);
        };
        check::near(name + ", values", part(0, count), values, 1e-7);
        check::near(name + ", gradient of the weights", part(count, 2 * count), of_weight, 0);
        check::near(name + ", gradient of the ranges", part(2 * count, 2 * count + ranges), of_range, 1e-6);
    }
}
