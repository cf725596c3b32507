// The recurrence of shared modes against sums over powers, and the gradients against central differences.
#include "../shared.cu"

#include "check.h"

namespace {

using check::Complex;

struct Problem {
    SharedShape shape;
    std::vector<double> exponents;
    std::vector<float> v, slopes;

    explicit Problem(SharedShape shape) : shape(shape) {
        check::Waves waves(shape.length);
        for (double log : waves.many<double>(shape.modes, -4, 3)) exponents.push_back(-std::exp(log));
        for (double turn : waves.many<double>(shape.modes, 0, 3)) exponents.push_back(turn);
        size_t numbers = size_t(shape.batch) * shape.length * 2 * shape.modes;
        v = waves.many<float>(numbers);
        slopes = waves.many<float>(numbers);
    }

    size_t place(int sequence, int step, int mode) const {
        int at = shape.reverse ? shape.length - 1 - step : step;
        return (size_t(sequence) * shape.length + at) * 2 * shape.modes + mode;
    }

    Complex at(const std::vector<float> &all, size_t place) const {
        return Complex(all[place], all[place + shape.modes]);
    }

    // States of one mode in the order of the direction; all sequences in a row.
    std::vector<Complex> states(const std::vector<double> &exponents, int mode) const {
        Complex z(exponents[mode], exponents[shape.modes + mode]);
        std::vector<Complex> powers, found;
        for (int l = 0; l < shape.length; l++) powers.push_back(std::exp(z * double(l)));
        for (int b = 0; b < shape.batch; b++) {
            for (int t = 0; t < shape.length; t++) {
                Complex s = 0;
                for (int l = 0; l <= t; l++) s += powers[l] * at(v, place(b, t - l, mode));
                found.push_back(s);
            }
        }
        return found;
    }

    double loss(const std::vector<double> &exponents, int mode) const {
        std::vector<Complex> all = states(exponents, mode);
        double sum = 0;
        for (size_t i = 0; i < all.size(); i++) {
            Complex g = at(slopes, place(int(i) / shape.length, int(i) % shape.length, mode));
            sum += g.real() * all[i].real() + g.imag() * all[i].imag();
        }
        return sum;
    }
};

std::vector<float> scan(const Problem &problem, const std::vector<float> &v, SharedShape shape) {
    unsigned each = chunks(shape.length), columns = check::blocks(shape.modes, THREADS);
    std::vector<float2> starts(size_t(shape.batch) * each * shape.modes);
    std::vector<float> out(v.size());
    dim3 grid(columns, each, shape.batch);
    const double *z = problem.exponents.data();
    emulate::launch(grid, THREADS, [&] { shared_ends(v.data(), z, starts.data(), shape); });
    emulate::launch(check::blocks(shape.batch * shape.modes), 128,
                    [&] { shared_join(z, starts.data(), shape); });
    emulate::launch(grid, THREADS,
                    [&] { shared_states(v.data(), z, starts.data(), out.data(), shape); });
    return out;
}

struct Found {
    std::vector<float> states, of_v;
    std::vector<double> of_exponents;
    bool operator==(const Found &other) const {
        return states == other.states && of_v == other.of_v && of_exponents == other.of_exponents;
    }
};

Found run(const Problem &problem) {
    Found found;
    SharedShape shape = problem.shape, back = shape;
    found.states = scan(problem, problem.v, shape);
    back.reverse = !shape.reverse;
    back.conjugate = 1;
    found.of_v = scan(problem, problem.slopes, back);
    unsigned each = chunks(shape.length);
    std::vector<double2> partial(size_t(shape.batch) * each * shape.modes);
    found.of_exponents.resize(2 * shape.modes);
    emulate::launch(dim3(check::blocks(shape.modes, THREADS), each, shape.batch), THREADS, [&] {
        shared_slopes(found.of_v.data(), found.states.data(), partial.data(), shape);
    });
    emulate::launch(check::blocks(shape.modes), 128, [&] {
        shared_gradients(problem.exponents.data(), partial.data(), found.of_exponents.data(), shape);
    });
    return found;
}

// The end of a layer, with one product more or less.
void check_end(const char *name, bool full) {
    const int batch = 2, length = 3, channels = 5, gelu = full ? 2 : 1;
    const unsigned count = batch * length * channels;
    check::Waves waves(count + full);
    std::vector<float> first = waves.many<float>(count), second = waves.many<float>(count),
                       third = waves.many<float>(count), u = waves.many<float>(count),
                       through = waves.many<float>(channels), given = waves.many<float>(count),
                       mask = waves.many<float>(batch * channels, 1, 0.5);
    SharedEnd end = {first.data(), full ? second.data() : nullptr, full ? third.data() : nullptr, u.data(),
                     full ? nullptr : through.data(), full ? mask.data() : nullptr, length, channels,
                     gelu, 0};
    std::vector<float> y(count), activated(count), g(count), of_u(count);
    dim3 grid(check::blocks(count));
    emulate::launch(grid, 128, [&] { shared_outputs(end, y.data(), activated.data(), count); });
    emulate::launch(grid, 128, [&] { shared_output_slopes(end, given.data(), y.data(), g.data(), count); });
    emulate::launch(grid, 128, [&] { shared_input_slopes(end, g.data(), of_u.data(), count); });
    auto activation = [&](double y) {
        if (gelu == 1) return 0.5 * y * (1 + std::erf(y / std::sqrt(2.0)));
        return 0.5 * y * (1 + std::tanh(std::sqrt(2 / M_PI) * (y + 0.044715 * y * y * y)));
    };
    std::vector<double> expected_y(count), expected(count), expected_g(count), expected_u(count);
    for (unsigned i = 0; i < count; i++) {
        double d = full ? 0.0 : through[i % channels], factor = 1;
        if (full) factor = mask[i / (length * channels) * channels + i % channels];
        expected_y[i] = double(first[i]) + (full ? second[i] + third[i] : d * u[i]);
        expected[i] = factor * activation(expected_y[i]);
        double up = activation(expected_y[i] + 1e-5), down = activation(expected_y[i] - 1e-5);
        expected_g[i] = given[i] * factor * (up - down) / 2e-5;
        expected_u[i] = first[i] + (full ? third[i] : d * expected_g[i]);
    }
    check::near(std::string(name) + ", outputs", y, expected_y);
    check::near(std::string(name) + ", activated", activated, expected);
    check::near(std::string(name) + ", gradient of the outputs", g, expected_g);
    check::near(std::string(name) + ", gradient of the inputs", of_u, expected_u);
}

}  // namespace

void check_shared() {
    check_end("the end of shared modes", false);
    check_end("the end of shared modes in both directions, with a full D", true);
    for (SharedShape shape : {SharedShape{2, 261, 5, 0, 0}, {1, 147, 130, 1, 0}}) {
        Problem problem(shape);
        std::string name = shape.reverse ? "shared modes, backwards in time" : "shared modes";
        Found found = check::in_both_orders<Found>(name, [&] { return run(problem); });
        std::vector<double> states(problem.v.size()), of_v(problem.v.size()), of_z(2 * shape.modes);
        for (int mode = 0; mode < shape.modes; mode++) {
            std::vector<Complex> own = problem.states(problem.exponents, mode);
            Complex z(problem.exponents[mode], problem.exponents[shape.modes + mode]);
            for (size_t i = 0; i < own.size(); i++) {
                int sequence = int(i) / shape.length, step = int(i) % shape.length;
                size_t at = problem.place(sequence, step, mode);
                states[at] = own[i].real();
                states[at + shape.modes] = own[i].imag();
                Complex q = 0;
                for (int later = step; later < shape.length; later++) {
                    q += std::conj(std::exp(z * double(later - step))) *
                         problem.at(problem.slopes, problem.place(sequence, later, mode));
                }
                of_v[at] = q.real();
                of_v[at + shape.modes] = q.imag();
            }
            auto loss = [&](const std::vector<double> &z) {
                std::vector<double> moved = problem.exponents;
                moved[mode] = z[0];
                moved[shape.modes + mode] = z[1];
                return problem.loss(moved, mode);
            };
            std::vector<double> own_slopes = check::slopes({z.real(), z.imag()}, loss);
            of_z[mode] = own_slopes[0];
            of_z[shape.modes + mode] = own_slopes[1];
        }
        check::near(name + ", states", found.states, states);
        check::near(name + ", gradient of the inputs", found.of_v, of_v);
        check::near(name + ", gradient of the exponents", found.of_exponents, of_z);
    }
}
