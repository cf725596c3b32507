// Poles and weights of all layers in one launch, with the gradients of what they are made from:
//
//     z = lambda Delta,   w = W gain(lambda, z),   Delta = e^{log Delta}
//     S4D:          gain = 2 (e^z - 1)/lambda
//     DSS-exp:      gain = (e^z - 1) conj(lambda)/max(|lambda|^2, epsilon)
//     DSS-softmax:  gain = (e^d - 1) conj(x)/(|x|^2 + epsilon) e^{z m},   x = (e^{d L} - 1) lambda
//
// lambda = -e^decay + i frequency, or decay + i frequency in the softmax. There d = z and m = 0 where the
// mode does not grow, else d = -z and m is the length of the kernels less L. As `nn/modes.rs` has it.
#ifndef __CUDACC__
#include "emulate.h"
#endif

struct ModesShape {
    int layers, channels, modes;
    // 0 S4D, 1 DSS-exp, 2 DSS-softmax.
    int form;
    // L of the softmax, and samples of the kernels.
    int own, length;
    double epsilon;
};

// Of all layers in a row: channels; all decays and then all frequencies; channels x modes x 2; 1 for
// modes in use, or none where all are.
struct ModesGiven {
    const double *log_step, *poles, *weights, *used;
};

namespace {

struct Complex {
    double re, im;
};

__device__ __forceinline__ Complex operator+(Complex a, Complex b) { return {a.re + b.re, a.im + b.im}; }
__device__ __forceinline__ Complex operator*(Complex a, Complex b) {
    return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
__device__ __forceinline__ Complex operator*(double a, Complex b) { return {a * b.re, a * b.im}; }
__device__ __forceinline__ Complex conj(Complex a) { return {a.re, -a.im}; }
__device__ __forceinline__ double square(Complex a) { return a.re * a.re + a.im * a.im; }
__device__ __forceinline__ Complex plus_one(Complex a) { return {a.re + 1.0, a.im}; }

// e^z - 1 without cancellation.
__device__ Complex growth(Complex z) {
    double s = sin(0.5 * z.im), c = cos(0.5 * z.im);
    double e = expm1(z.re), rest = 2.0 * s * s;
    return {e - rest * (e + 1.0), (e + 1.0) * 2.0 * s * c};
}

// A gain, and what its gradient gives to lambda and z. The gradient of x is that of f(x) times
// conj(f'(x)).
struct Gain {
    Complex value, of_lambda, of_z;
};

__device__ Gain quotient(Complex lambda, Complex z, Complex slope, double factor) {
    Complex inverse = factor / square(lambda) * conj(lambda), e = growth(z);
    Complex value = e * inverse;
    Complex by_lambda = -1.0 / factor * (value * inverse);
    return {value, slope * conj(by_lambda), slope * conj(plus_one(e) * inverse)};
}

// DSS-exp where epsilon is more than |lambda|^2.
__device__ Gain bounded(Complex lambda, Complex z, Complex slope, double epsilon) {
    Complex e = 1.0 / epsilon * growth(z);
    Complex by_z = 1.0 / epsilon * (plus_one(growth(z)) * conj(lambda));
    return {e * conj(lambda), conj(slope) * e, slope * conj(by_z)};
}

__device__ Gain softmax(Complex lambda, Complex z, Complex slope, const ModesShape &shape) {
    bool grows = lambda.re > 0.0;
    double sign = grows ? -1.0 : 1.0, samples = grows ? shape.length - shape.own : 0.0;
    Complex brief = growth(sign * z), whole = growth(sign * shape.own * z);
    Complex shift = plus_one(growth(samples * z)), x = whole * lambda;
    double size = square(x) + shape.epsilon;
    Complex reciprocal = 1.0 / size * conj(x);
    Complex of_brief = slope * conj(reciprocal * shift);
    Complex of_reciprocal = slope * conj(brief * shift);
    Complex of_shift = slope * conj(brief * reciprocal);
    // conj(x)/(|x|^2 + epsilon) is not analytic.
    double along = 2.0 * (of_reciprocal * x).re / (size * size);
    Complex of_x = 1.0 / size * conj(of_reciprocal) + -along * x;
    Complex of_whole = of_x * conj(lambda);
    Complex of_d = of_brief * conj(plus_one(brief)) + (double)shape.own * (of_whole * conj(plus_one(whole)));
    return {brief * reciprocal * shift, of_x * conj(whole),
            sign * of_d + samples * (of_shift * conj(shift))};
}

__device__ Gain gain(Complex lambda, Complex z, Complex slope, const ModesShape &shape) {
    if (shape.form == 2) return softmax(lambda, z, slope, shape);
    if (shape.form == 0) return quotient(lambda, z, slope, 2.0);
    if (square(lambda) > shape.epsilon) return quotient(lambda, z, slope, 1.0);
    return bounded(lambda, z, slope, shape.epsilon);
}

struct Mode {
    Complex lambda, weight;
    double step, used;

    __device__ Mode(const ModesGiven &given, const ModesShape &shape, long at) {
        long total = (long)shape.layers * shape.channels * shape.modes;
        double decay = given.poles[at];
        lambda = {shape.form == 2 ? decay : -exp(decay), given.poles[total + at]};
        weight = {given.weights[2 * at], given.weights[2 * at + 1]};
        step = exp(given.log_step[at / shape.modes]);
        used = given.used ? given.used[at] : 1.0;
    }
};

// Where Re z of a mode stands, and how far apart the four parts of it are.
struct Slot {
    long first, apart;

    __device__ Slot(const ModesShape &shape, long at) {
        apart = (long)shape.channels * shape.modes;
        first = at / apart * 4 * apart + at % apart;
    }
};

}  // namespace

// Re z, Im z, Re w, Im w of each layer, channels x modes each. One thread for each mode.
extern "C" __global__ void modes_values(ModesGiven given, double *out, ModesShape shape) {
    long at = (long)blockIdx.x * blockDim.x + threadIdx.x;
    if (at >= (long)shape.layers * shape.channels * shape.modes) return;
    Mode mode(given, shape, at);
    Slot slot(shape, at);
    Complex z = mode.step * mode.lambda;
    Complex w = mode.used * (mode.weight * gain(mode.lambda, z, {0, 0}, shape).value);
    out[slot.first] = z.re;
    out[slot.first + slot.apart] = z.im;
    out[slot.first + 2 * slot.apart] = w.re;
    out[slot.first + 3 * slot.apart] = w.im;
}

// Where the gradients go: in the shapes of what was given.
struct ModesSlopes {
    double *of_log_step, *of_poles, *of_weights;
};

// One warp for each channel of each layer, block.y of them in a block.
extern "C" __global__ void modes_gradients(ModesGiven given, const double *slopes, ModesSlopes out,
                                           ModesShape shape) {
    long channel = (long)blockIdx.x * blockDim.y + threadIdx.y;
    bool inside = channel < (long)shape.layers * shape.channels;
    long total = (long)shape.layers * shape.channels * shape.modes;
    double of_log_step = 0.0;
    for (int n = threadIdx.x; inside && n < shape.modes; n += 32) {
        long at = channel * shape.modes + n;
        Mode mode(given, shape, at);
        Slot slot(shape, at);
        Complex z = mode.step * mode.lambda;
        Complex of_z = {slopes[slot.first], slopes[slot.first + slot.apart]};
        Complex of_w = {slopes[slot.first + 2 * slot.apart], slopes[slot.first + 3 * slot.apart]};
        of_w = mode.used * of_w;
        Gain found = gain(mode.lambda, z, of_w * conj(mode.weight), shape);
        of_z = of_z + found.of_z;
        Complex of_lambda = found.of_lambda + mode.step * of_z;
        Complex of_weight = of_w * conj(found.value);
        out.of_poles[at] = of_lambda.re * (shape.form == 2 ? 1.0 : mode.lambda.re);
        out.of_poles[total + at] = of_lambda.im;
        out.of_weights[2 * at] = of_weight.re;
        out.of_weights[2 * at + 1] = of_weight.im;
        of_log_step += (of_z * conj(z)).re;
    }
    for (int by = 16; by > 0; by /= 2) of_log_step += __shfl_xor_sync(0xffffffffu, of_log_step, by);
    if (inside && threadIdx.x == 0) out.of_log_step[channel] = of_log_step;
}
