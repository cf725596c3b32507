// The state space of a block against convolutions with its kernels, and gradients of the modes against
// central differences.
#include "../bank.cu"

#include "check.h"

namespace {

using check::Complex;

struct Case {
    const char *name;
    BankShape shape;
    bool further, masked;
    int gelu;
};

// Some of the threads of a sequence hold a part of it or nothing; several tiles, one channel more than a
// block holds, an odd number of modes; shorter than the steps of a thread; in both directions of time.
const Case CASES[] = {
    {"forwards", {2, 261, 9, 5, 4, 0, 0}, false, true, 1},
    {"several tiles", {2, 2090, 5, 3, 5, 0, 0}, false, false, 2},
    {"backwards in time", {2, 147, 3, 9, 3, 1, 1}, true, true, 2},
    {"several tiles backwards in time", {1, 1100, 2, 2, 5, 1, 1}, true, false, 1},
    {"short", {3, 7, 2, 1, 0, 1, 0}, false, false, 1},
    {"without an activation", {2, 70, 2, 4, 2, 0, 0}, false, false, 0},
};

struct Problem {
    Case of;
    std::vector<double> modes;
    std::vector<float> u, through, mask, before, slopes;

    explicit Problem(const Case &of) : of(of) {
        auto [batch, length, channels, count, lanes, reverse, delayed] = of.shape;
        check::Waves waves(length);
        size_t all = size_t(channels) * count, numbers = size_t(batch) * length * channels;
        auto add = [&](double middle, double size) {
            for (double x : waves.many<double>(all, middle, size)) modes.push_back(x);
        };
        // From a memory of two steps to one of many chunks.
        add(-4, 4.5);
        for (double &log : modes) log = -std::exp(log);
        modes[0] = -1e-4;
        add(0, 3);
        add(0, 0.3);
        add(0, 0.3);
        u = waves.many<float>(numbers);
        // Where y has the state of the step before, D stands in the other direction.
        through = waves.many<float>(channels);
        if (delayed) through.assign(channels, 0);
        mask = waves.many<float>(size_t(batch) * channels, 1, 0.5);
        before = waves.many<float>(numbers);
        slopes = waves.many<float>(numbers);
    }

    // The kernel of a channel from its modes, of so many samples.
    std::vector<double> kernel(const std::vector<double> &modes, int channel) const {
        const BankShape &shape = of.shape;
        int all = shape.channels * shape.modes;
        std::vector<double> kernel(shape.length, 0.0);
        for (int n = channel * shape.modes; n < (channel + 1) * shape.modes; n++) {
            Complex z(modes[n], modes[all + n]), w(modes[2 * all + n], modes[3 * all + n]);
            for (int l = 0; l < shape.length; l++) kernel[l] += (w * std::exp(z * double(l))).real();
        }
        return kernel;
    }

    size_t place(int sequence, int step, int channel) const {
        return (size_t(sequence) * of.shape.length + step) * of.shape.channels + channel;
    }

    // Calls with the steps of output and input that a sample of the kernel connects.
    void each(const std::function<void(int, int, int)> &use) const {
        int length = of.shape.length;
        for (int t = 0; t < length; t++) {
            for (int l = 0; l + of.shape.delayed <= t; l++) {
                int from = t - l - of.shape.delayed;
                if (of.shape.reverse) use(length - 1 - t, length - 1 - from, l);
                else use(t, from, l);
            }
        }
    }

    // Those of one channel; the others are zero.
    std::vector<double> outputs(const std::vector<double> &modes, int channel) const {
        std::vector<double> y(u.size()), k = kernel(modes, channel);
        for (int b = 0; b < of.shape.batch; b++) {
            for (int t = 0; t < of.shape.length; t++) {
                size_t at = place(b, t, channel);
                y[at] = through[channel] * u[at] + (of.further ? before[at] : 0.0);
            }
            each([&](int t, int from, int l) {
                y[place(b, t, channel)] += k[l] * u[place(b, from, channel)];
            });
        }
        return y;
    }

    std::vector<double> outputs() const {
        std::vector<double> y(u.size());
        for (int h = 0; h < of.shape.channels; h++) {
            std::vector<double> own = outputs(modes, h);
            for (size_t i = 0; i < y.size(); i++) y[i] += own[i];
        }
        return y;
    }

    double activation(double y) const {
        if (of.gelu == 0) return y;
        if (of.gelu == 1) return 0.5 * y * (1 + std::erf(y / std::sqrt(2.0)));
        return 0.5 * y * (1 + std::tanh(std::sqrt(2 / M_PI) * (y + 0.044715 * y * y * y)));
    }

    double factor(size_t at) const {
        size_t row = size_t(of.shape.length) * of.shape.channels;
        return of.masked ? mask[at / row * of.shape.channels + at % of.shape.channels] : 1.0;
    }

    std::vector<double> activated(const std::vector<double> &y) const {
        std::vector<double> all(y.size());
        for (size_t i = 0; i < y.size(); i++) all[i] = factor(i) * activation(y[i]);
        return all;
    }

    // Of one channel: what its modes have to do with it.
    double loss(const std::vector<double> &modes, int channel) const {
        double sum = 0;
        std::vector<double> all = outputs(modes, channel);
        for (size_t i = channel; i < all.size(); i += of.shape.channels) {
            sum += slopes[i] * factor(i) * activation(all[i]);
        }
        return sum;
    }

    // Re z, Im z, Re w, Im w, by differences.
    std::vector<double> of_modes() const {
        int count = of.shape.modes, all = of.shape.channels * count;
        std::vector<double> found(modes.size());
        for (int h = 0; h < of.shape.channels; h++) {
            auto at = [&](int i) { return i / count * all + h * count + i % count; };
            std::vector<double> own;
            for (int i = 0; i < 4 * count; i++) own.push_back(modes[at(i)]);
            auto loss = [&](const std::vector<double> &own) {
                std::vector<double> moved = modes;
                for (int i = 0; i < 4 * count; i++) moved[at(i)] = own[i];
                return this->loss(moved, h);
            };
            // A pole moves the state of long ago by as many times more.
            std::vector<double> slopes = check::slopes(own, loss, 1e-4 / of.shape.length);
            for (int i = 0; i < 4 * count; i++) found[at(i)] = slopes[i];
        }
        return found;
    }

    // Of y, with the activation behind it.
    std::vector<double> of_outputs(const std::vector<double> &y) const {
        std::vector<double> g(y.size());
        for (size_t i = 0; i < y.size(); i++) {
            double up = activation(y[i] + 1e-5), down = activation(y[i] - 1e-5);
            g[i] = slopes[i] * factor(i) * (up - down) / 2e-5;
        }
        return g;
    }

    std::vector<double> of_inputs(const std::vector<double> &g) const {
        const BankShape &shape = of.shape;
        std::vector<double> found(g.size());
        for (size_t i = 0; i < g.size(); i++) {
            found[i] = through[i % shape.channels] * g[i] + (of.further ? before[i] : 0.0);
        }
        for (int h = 0; h < shape.channels; h++) {
            std::vector<double> k = kernel(modes, h);
            for (int b = 0; b < shape.batch; b++) {
                each([&](int t, int from, int l) {
                    found[place(b, from, h)] += k[l] * g[place(b, t, h)];
                });
            }
        }
        return found;
    }
};

struct Found {
    std::vector<float> y, activated, of_inputs, of_feedthrough;
    std::vector<double> of_modes;
    bool operator==(const Found &other) const {
        return y == other.y && activated == other.activated && of_inputs == other.of_inputs &&
               of_feedthrough == other.of_feedthrough && of_modes == other.of_modes;
    }
};

// The launches of a layer, as the trainer makes them.
struct Layer {
    const Problem &problem;
    BankShape shape;
    std::vector<Mode> table;

    explicit Layer(const Problem &problem) : problem(problem), shape(problem.of.shape) {
        int count = shape.channels * shape.modes;
        table.resize(count);
        emulate::launch(check::blocks(count), 128,
                        [&] { bank_table(problem.modes.data(), table.data(), count); });
    }

    dim3 grid() const {
        return dim3(check::blocks(shape.channels, THREADS >> shape.log_lanes), shape.batch);
    }

    const float *feedthrough() const { return shape.delayed ? nullptr : problem.through.data(); }

    void run(float *y, const float *mask, float *activated) const {
        BankEnds ends = {feedthrough(), mask, activated, problem.of.gelu, problem.of.further};
        emulate::launch(grid(), THREADS,
                        [&] { bank_outputs(problem.u.data(), table.data(), y, ends, shape); });
    }

    // Of inputs, modes and D.
    void gradients(const float *mask, Found &found) const {
        size_t count = size_t(shape.channels) * shape.modes;
        int tiles = check::blocks(shape.length, STEPS << shape.log_lanes);
        std::vector<float2> starts(size_t(shape.batch) * tiles * count);
        std::vector<ModeSums> partial(shape.batch * count);
        std::vector<double> through(size_t(shape.batch) * shape.channels);
        BankSlopes slopes = {problem.slopes.data(), found.y.data(), mask, feedthrough(),
                             found.of_inputs.data(), through.data(), problem.of.gelu, problem.of.further};
        if (shape.delayed) slopes.of_feedthrough = nullptr;
        emulate::launch(grid(), THREADS, [&] {
            bank_slopes(problem.u.data(), table.data(), starts.data(), partial.data(), slopes, shape);
        });
        found.of_modes.resize(4 * count);
        found.of_feedthrough.resize(shape.channels);
        emulate::launch(check::blocks(count, 4), dim3(32, 4), [&] {
            bank_gradients(problem.modes.data(), partial.data(), through.data(), found.of_modes.data(),
                           found.of_feedthrough.data(), shape.batch, shape);
        });
    }
};

Found run(const Problem &problem) {
    Found found;
    Layer layer(problem);
    found.y = problem.before;
    found.activated.resize(problem.u.size());
    const float *mask = problem.of.masked ? problem.mask.data() : nullptr;
    layer.run(found.y.data(), mask, problem.of.gelu ? found.activated.data() : nullptr);
    found.of_inputs = problem.before;
    layer.gradients(mask, found);
    return found;
}

}  // namespace

void check_bank() {
    for (const Case &of : CASES) {
        Problem problem(of);
        std::string name = std::string("bank, ") + of.name;
        Found found = check::in_both_orders<Found>(name, [&] { return run(problem); });
        std::vector<double> y = problem.outputs(), g = problem.of_outputs(y);
        check::near(name + ", outputs", found.y, y);
        if (of.gelu) check::near(name + ", activated", found.activated, problem.activated(y));
        check::near(name + ", gradient of the inputs", found.of_inputs, problem.of_inputs(g));
        if (!of.shape.delayed) {
            std::vector<double> of_through(of.shape.channels, 0.0);
            for (size_t i = 0; i < g.size(); i++) of_through[i % of.shape.channels] += g[i] * problem.u[i];
            check::near(name + ", gradient of D", found.of_feedthrough, of_through);
        }
        std::vector<double> expected = problem.of_modes();
        size_t part = expected.size() / 4;
        const char *parts[] = {"Re z", "Im z", "Re w", "Im w"};
        for (size_t i = 0; i < 4; i++) {
            auto slice = [&](const std::vector<double> &all) {
                return std::vector<double>(all.begin() + i * part, all.begin() + (i + 1) * part);
            };
            check::near(name + ", gradient of " + parts[i], slice(found.of_modes), slice(expected));
        }
    }
}
