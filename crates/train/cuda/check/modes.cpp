// Poles and weights against their formulas, gradients against central differences.
#include "../modes.cu"

#include "check.h"

namespace {

using Z = check::Complex;

struct Case {
    const char *name;
    int form, length;
};

const int LAYERS = 2, CHANNELS = 3, MODES = 35, OWN = 40;
const size_t TOTAL = LAYERS * CHANNELS * MODES;
const double EPSILON = 1e-7;
const Case CASES[] = {
    {"S4D", 0, OWN}, {"DSS-exp", 1, OWN}, {"DSS-softmax", 2, OWN}, {"DSS-softmax, shorter", 2, 31}};

// Steps, decays and frequencies, weights, in a row.
const size_t STEPS = LAYERS * CHANNELS, ALL = STEPS + 4 * TOTAL;

std::vector<double> given(const Case &of) {
    check::Waves waves(of.form + 1);
    std::vector<double> all;
    auto add = [&](size_t count, double middle, double size) {
        for (double x : waves.many<double>(count, middle, size)) all.push_back(x);
    };
    add(STEPS, -2, 1);
    add(TOTAL, of.form == 2 ? 0.0 : -0.5, 1);
    add(TOTAL, 0, 9);
    add(2 * TOTAL, 0, 1);
    if (of.form == 1) {
        // Within epsilon of zero.
        all[STEPS + 3] = -9;
        all[STEPS + TOTAL + 3] = 1e-4;
    }
    return all;
}

Z gain_of(const Case &of, Z lambda, Z z) {
    auto growth = [](Z z) {
        // By its series where the difference cancels.
        return std::abs(z) > 1e-3 ? std::exp(z) - 1.0 : z * (1.0 + z / 2.0 * (1.0 + z / 3.0 * (1.0 + z / 4.0)));
    };
    if (of.form == 0) return 2.0 * growth(z) / lambda;
    if (of.form == 1) return growth(z) * std::conj(lambda) / std::max(std::norm(lambda), EPSILON);
    Z d = lambda.real() > 0 ? -z : z;
    double samples = lambda.real() > 0 ? of.length - OWN : 0;
    Z x = growth(d * double(OWN)) * lambda;
    return growth(d) * std::conj(x) / (std::norm(x) + EPSILON) * std::exp(z * samples);
}

std::vector<double> values(const Case &of, const std::vector<double> &all) {
    std::vector<double> out(4 * TOTAL);
    const size_t count = CHANNELS * MODES;
    for (size_t at = 0; at < TOTAL; at++) {
        double decay = all[STEPS + at];
        Z lambda(of.form == 2 ? decay : -std::exp(decay), all[STEPS + TOTAL + at]);
        Z z = lambda * std::exp(all[at / MODES]);
        const double *weight = &all[STEPS + 2 * TOTAL + 2 * at];
        Z w = at % 4 == 1 ? Z() : Z(weight[0], weight[1]) * gain_of(of, lambda, z);
        double *first = &out[at / count * 4 * count + at % count];
        first[0] = z.real();
        first[count] = z.imag();
        first[2 * count] = w.real();
        first[3 * count] = w.imag();
    }
    return out;
}

}  // namespace

void check_modes() {
    for (const Case &of : CASES) {
        std::string name = std::string("modes, ") + of.name;
        std::vector<double> all = given(of), used(TOTAL), slopes = check::Waves(9).many<double>(4 * TOTAL);
        for (size_t i = 0; i < TOTAL; i++) used[i] = i % 4 != 1;
        ModesShape shape = {LAYERS, CHANNELS, MODES, of.form, OWN, of.length, EPSILON};
        ModesGiven kernel_given = {&all[0], &all[STEPS], &all[STEPS + 2 * TOTAL], used.data()};
        auto found = check::in_both_orders<std::vector<double>>(name, [&] {
            std::vector<double> out(4 * TOTAL + ALL);
            emulate::launch(check::blocks(TOTAL), 128,
                            [&] { modes_values(kernel_given, out.data(), shape); });
            double *of_steps = &out[4 * TOTAL], *of_poles = of_steps + STEPS;
            ModesSlopes into = {of_steps, of_poles, of_poles + 2 * TOTAL};
            emulate::launch(check::blocks(STEPS, 4), dim3(32, 4),
                            [&] { modes_gradients(kernel_given, slopes.data(), into, shape); });
            return out;
        });
        std::vector<double> out(found.begin(), found.begin() + 4 * TOTAL);
        std::vector<double> gradient(found.begin() + 4 * TOTAL, found.end());
        check::near(name, out, values(of, all), 1e-12);
        // The bounded pole moves by a small step, since |lambda|^2 may not pass epsilon.
        auto loss = [&](const std::vector<double> &moved) {
            std::vector<double> out = values(of, moved);
            double sum = 0;
            for (size_t i = 0; i < out.size(); i++) sum += slopes[i] * out[i];
            return sum;
        };
        std::vector<double> expected = check::slopes(all, loss, 1e-6);
        size_t ends[] = {0, STEPS, STEPS + TOTAL, STEPS + 2 * TOTAL, ALL};
        const char *parts[] = {"log steps", "decays", "frequencies", "weights"};
        for (int i = 0; i < 4; i++) {
            auto part = [&](const std::vector<double> &of) {
                return std::vector<double>(of.begin() + ends[i], of.begin() + ends[i + 1]);
            };
            check::near(name + ", gradient of " + parts[i], part(gradient), part(expected), 1e-6);
        }
    }
}
