// What stands around the state space of a block against its formulas, and gradients against central
// differences.
#include "../block.cu"

#include "check.h"

namespace {

// An odd number of rows, and one channel more than a warp has threads.
const BlockShape SHAPES[] = {{3, 7, 33}, {1, 2, 5}};
constexpr float EPSILON = 1e-3f;

using Numbers = std::vector<double>;
using Floats = std::vector<float>;

dim3 lines(int columns, unsigned rows) { return dim3(check::blocks(columns, 32), rows); }
const dim3 WARPS(32, LINES);

size_t count(const BlockShape &shape) { return size_t(shape.batch) * shape.length * shape.channels; }

Numbers wide(const Floats &all) { return Numbers(all.begin(), all.end()); }

// Sums of products of two rows of numbers.
double dot(const Numbers &a, const Numbers &b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); i++) sum += a[i] * b[i];
    return sum;
}

Numbers normalised(const BlockShape &shape, const Numbers &x, const Numbers &weight,
                   const Numbers &bias) {
    Numbers z(x.size());
    size_t width = shape.channels;
    for (size_t row = 0; row < x.size(); row += width) {
        double mean = 0, square = 0;
        for (size_t c = 0; c < width; c++) mean += x[row + c] / width;
        for (size_t c = 0; c < width; c++) square += (x[row + c] - mean) * (x[row + c] - mean) / width;
        for (size_t c = 0; c < width; c++) {
            z[row + c] = weight[c] * (x[row + c] - mean) / std::sqrt(square + EPSILON) + bias[c];
        }
    }
    return z;
}

struct Norm {
    Floats z, of_x, of_weight, of_bias;
    bool operator==(const Norm &other) const {
        return z == other.z && of_x == other.of_x && of_weight == other.of_weight &&
               of_bias == other.of_bias;
    }
};

// `parts` are x, weight, bias, slopes of z and a residual.
Norm norm(const BlockShape &shape, const std::array<Floats, 5> &parts) {
    auto &[x, weight, bias, slopes, residual] = parts;
    size_t all = rows(shape), width = shape.channels;
    Norm found{Floats(x.size()), Floats(x.size()), Floats(width), Floats(width)};
    std::vector<float2> statistics(all);
    emulate::launch(check::blocks(all, LINES), WARPS, [&] {
        block_normalise(x.data(), weight.data(), bias.data(), found.z.data(), statistics.data(), EPSILON,
                        shape);
    });
    emulate::launch(check::blocks(all, LINES), WARPS, [&] {
        block_normalise_slopes(slopes.data(), x.data(), weight.data(), statistics.data(), residual.data(),
                               found.of_x.data(), shape);
    });
    const unsigned shares = 2;
    Numbers partial(shares * 2 * width);
    emulate::launch(lines(width, shares), WARPS, [&] {
        block_sums(slopes.data(), x.data(), statistics.data(), partial.data(), width, all);
    });
    emulate::launch(check::blocks(width, LINES), WARPS, [&] {
        block_totals(partial.data(), found.of_bias.data(), found.of_weight.data(), width, shares);
    });
    return found;
}

// Sums over rows of g and of g times x.
void check_sums(const BlockShape &shape) {
    check::Waves waves(shape.length);
    Floats g = waves.many<float>(count(shape)), x = waves.many<float>(count(shape));
    const unsigned shares = 2, width = shape.channels;
    Numbers partial(shares * 2 * width);
    Floats plain(width), scaled(width);
    emulate::launch(lines(width, shares), WARPS, [&] {
        block_sums(g.data(), x.data(), nullptr, partial.data(), width, rows(shape));
    });
    emulate::launch(check::blocks(width, LINES), WARPS,
                    [&] { block_totals(partial.data(), plain.data(), scaled.data(), width, shares); });
    Numbers expected(width), expected_scaled(width);
    for (size_t i = 0; i < g.size(); i++) {
        expected[i % width] += g[i];
        expected_scaled[i % width] += double(g[i]) * x[i];
    }
    check::near("sums of rows", plain, expected);
    check::near("sums of products", scaled, expected_scaled);
}

void check_norm(const BlockShape &shape) {
    check::Waves waves(shape.channels);
    std::array<Floats, 5> parts;
    for (size_t i : {0, 3, 4}) parts[i] = waves.many<float>(count(shape), 0.3);
    for (size_t i : {1, 2}) parts[i] = waves.many<float>(shape.channels, 1);
    std::string name = "norm of " + std::to_string(shape.channels) + " channels";
    Norm found = check::in_both_orders<Norm>(name, [&] { return norm(shape, parts); });
    Numbers x = wide(parts[0]), weight = wide(parts[1]), bias = wide(parts[2]), slopes = wide(parts[3]);
    check::near(name, found.z, normalised(shape, x, weight, bias));
    auto loss = [&](const Numbers &x, const Numbers &weight, const Numbers &bias) {
        return dot(slopes, normalised(shape, x, weight, bias));
    };
    Numbers of_x = check::slopes(x, [&](const Numbers &x) { return loss(x, weight, bias); });
    for (size_t i = 0; i < x.size(); i++) of_x[i] += parts[4][i];
    check::near(name + ", gradient of x", found.of_x, of_x);
    check::near(name + ", gradient of the weight", found.of_weight,
                check::slopes(weight, [&](const Numbers &weight) { return loss(x, weight, bias); }));
    check::near(name + ", gradient of the bias", found.of_bias,
                check::slopes(bias, [&](const Numbers &bias) { return loss(x, weight, bias); }));
}

struct End {
    Floats out, of_mixed, of_active;
    bool operator==(const End &other) const {
        return out == other.out && of_mixed == other.of_mixed && of_active == other.of_active;
    }
};

struct EndNumbers {
    Floats mixed, bias, active, mask, residual, slopes;
};

End end(const BlockShape &shape, int form, const EndNumbers &of) {
    BlockEnd end = {of.mixed.data(), of.bias.data(), of.active.data(), of.mask.data(),
                    of.residual.data(), form, 0};
    size_t all = count(shape);
    End found{Floats(all), Floats(form == NO_MAP ? 0 : of.mixed.size()),
              Floats(form == NO_MAP || form > HALVES ? all : 0)};
    emulate::launch(check::blocks(all), 128, [&] { block_end(end, found.out.data(), shape); });
    emulate::launch(check::blocks(all), 128, [&] {
        block_end_slopes(end, of.slopes.data(), found.of_mixed.data(), found.of_active.data(), shape);
    });
    return found;
}

// The branch without its residual.
Numbers branch(const BlockShape &shape, int form, const EndNumbers &of, const Numbers &mixed,
               const Numbers &active) {
    Numbers out(count(shape));
    size_t width = shape.channels, columns = form == HALVES ? 2 * width : width;
    for (size_t i = 0; i < out.size(); i++) {
        size_t row = i / width, c = i % width;
        auto map = [&](size_t column) { return mixed[row * columns + column] + of.bias[column]; };
        auto share = [](double x) { return 1 / (1 + std::exp(-x)); };
        double found = form == NO_MAP   ? active[i]
                       : form == PLAIN  ? map(c)
                       : form == HALVES ? map(c) * share(map(width + c))
                                        : active[i] * share(map(c));
        out[i] = of.mask[row / shape.length * width + c] * found;
    }
    return out;
}

void check_end(const BlockShape &shape, int form) {
    check::Waves waves(shape.channels + form);
    int columns = form == HALVES ? 2 * shape.channels : shape.channels;
    size_t all = count(shape);
    EndNumbers of = {waves.many<float>(all / shape.channels * columns), waves.many<float>(columns),
                     waves.many<float>(all), waves.many<float>(shape.batch * shape.channels, 1, 0.5),
                     waves.many<float>(all), waves.many<float>(all)};
    std::string name = "end of a branch, form " + std::to_string(form);
    End found = check::in_both_orders<End>(name, [&] { return end(shape, form, of); });
    Numbers mixed = wide(of.mixed), active = wide(of.active), slopes = wide(of.slopes);
    Numbers out = branch(shape, form, of, mixed, active);
    for (size_t i = 0; i < all; i++) out[i] += of.residual[i];
    check::near(name, found.out, out);
    if (!found.of_mixed.empty()) {
        check::near(name + ", gradient of the map", found.of_mixed,
                    check::slopes(mixed, [&](const Numbers &mixed) {
                        return dot(slopes, branch(shape, form, of, mixed, active));
                    }));
    }
    if (!found.of_active.empty()) {
        check::near(name + ", gradient of the activated", found.of_active,
                    check::slopes(active, [&](const Numbers &active) {
                        return dot(slopes, branch(shape, form, of, mixed, active));
                    }));
    }
}

struct Pooled {
    Floats pooled, of_x;
    bool operator==(const Pooled &other) const { return pooled == other.pooled && of_x == other.of_x; }
};

void check_pool(const BlockShape &shape, bool weighted) {
    check::Waves waves(shape.channels);
    Floats x = waves.many<float>(count(shape)), weights = waves.many<float>(rows(shape));
    Floats slopes = waves.many<float>(shape.batch * shape.channels);
    const float *given = weighted ? weights.data() : nullptr;
    std::string name = weighted ? "pooling" : "pooling by one weight";
    Pooled found = check::in_both_orders<Pooled>(name, [&] {
        Pooled found{Floats(slopes.size()), Floats(x.size())};
        emulate::launch(lines(shape.channels, shape.batch), WARPS, [&] {
            block_pool(x.data(), given, 0.25f, found.pooled.data(), shape);
        });
        emulate::launch(check::blocks(x.size()), 128, [&] {
            block_spread(slopes.data(), given, 0.25f, found.of_x.data(), shape);
        });
        return found;
    });
    Numbers pooled(slopes.size()), of_x(x.size());
    for (size_t i = 0; i < x.size(); i++) {
        size_t row = i / shape.channels, to = row / shape.length * shape.channels + i % shape.channels;
        double weight = weighted ? weights[row] : 0.25;
        pooled[to] += weight * x[i];
        of_x[i] = weight * slopes[to];
    }
    check::near(name, found.pooled, pooled);
    check::near(name + ", gradient", found.of_x, of_x);
}

}  // namespace

void check_block() {
    for (const BlockShape &shape : SHAPES) {
        check_norm(shape);
        check_sums(shape);
        for (int form = 0; form < 4; form++) check_end(shape, form);
        for (bool weighted : {false, true}) check_pool(shape, weighted);
    }
}
