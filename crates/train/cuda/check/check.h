// Numbers, comparisons and launches of the checks.
#pragma once

#include <cmath>
#include <complex>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "../emulate.h"

namespace check {

using Complex = std::complex<double>;

// Reproducible numbers between -1 and 1.
class Waves {
   public:
    explicit Waves(unsigned seed) : state(seed * 2654435761u + 1) {}
    double next() {
        state = state * 6364136223846793005ull + 1442695040888963407ull;
        return double(state >> 11) / double(1ull << 52) - 1.0;
    }
    template <typename T>
    std::vector<T> many(size_t count, double middle = 0, double size = 1) {
        std::vector<T> all(count);
        for (T &one : all) one = T(middle + size * next());
        return all;
    }

   private:
    uint64_t state;
};

inline int failures = 0;
inline int comparisons = 0;

// Within so much of the largest expected number.
template <typename A, typename B>
void near(const std::string &what, const std::vector<A> &found, const std::vector<B> &expected,
          double most = 1e-5) {
    double largest = 0, apart = 0;
    bool finite = found.size() == expected.size();
    for (size_t i = 0; i < expected.size() && finite; i++) {
        largest = std::max(largest, std::abs(double(expected[i])));
        apart = std::max(apart, std::abs(double(found[i]) - double(expected[i])));
        finite = std::isfinite(double(found[i]));
    }
    bool good = finite && largest > 0 && apart <= most * largest;
    comparisons++;
    if (good) return;
    failures++;
    std::printf("%s: %g apart, the largest is %g%s\n", what.c_str(), apart, largest,
                finite ? "" : ", or not finite");
}

// As many blocks as hold a thread for each.
inline unsigned blocks(size_t count, unsigned threads = 128) {
    return unsigned((count + threads - 1) / threads);
}

// Runs with both orders of threads and blocks; all bits have to be the same.
template <typename T>
T in_both_orders(const std::string &what, const std::function<T()> &run) {
    emulate::order = emulate::Order::Down;
    T turned = run();
    emulate::order = emulate::Order::Up;
    T found = run();
    comparisons++;
    if (!(turned == found)) {
        failures++;
        std::printf("%s: the order of the threads changes the result\n", what.c_str());
    }
    return found;
}

// The slope of a function of many numbers by each, by central differences.
inline std::vector<double> slopes(std::vector<double> at,
                                  const std::function<double(const std::vector<double> &)> &of,
                                  double by = 1e-5) {
    std::vector<double> found(at.size());
    for (size_t i = 0; i < at.size(); i++) {
        double kept = at[i];
        at[i] = kept + by;
        double up = of(at);
        at[i] = kept - by;
        found[i] = (up - of(at)) / (2 * by);
        at[i] = kept;
    }
    return found;
}

}  // namespace check

// One for each file of kernels.
void check_bank();
void check_block();
void check_modes();
void check_adamw();
void check_join();
void check_rounding();
void check_shared();
