//! Poles and weights of many layers as one operation of candle, with the formulas of
//! [`dynamics`](super::dynamics) and their gradients mode by mode.
//!
//! Put together from candle's operations they were 15 % of the training step of a small network, on
//! one thread: fifty small tensors forward and more on the way back.

use std::sync::Arc;

use candle_core::{CpuStorage, Result, Shape, Tensor, bail};
use hankelite_control::DSS_EPSILON;
use num_complex::Complex64;
use rayon::prelude::*;

use crate::nn::Parameterisation;
use crate::nn::operation::{Argument, Operation, apply3};
use crate::nn::parameterisation::ModeForm;
use crate::nn::real::Real;

/// What the formulas depend on beside the parameters.
#[derive(Debug, Clone)]
pub(super) struct Formulas {
    pub(super) form: ModeForm,
    /// Samples of the kernels.
    pub(super) length: usize,
    pub(super) layers: usize,
    /// 1 for modes in use, 0 for the others; `None` where all are. Layers × channels × modes.
    pub(super) used: Option<Arc<Vec<f64>>>,
}

/// Re z, Im z, Re w, Im w of each layer, channels × modes each, flat, from f64 tensors of all layers
/// on the processor: log Δ, channels; poles, all decays and then all frequencies; weights, channels
/// × modes × 2.
pub(super) fn modes(formulas: Formulas, parameters: [&Tensor; 3]) -> Result<Tensor> {
    apply3(formulas, parameters)
}

/// A mode; z = λΔ and w = W · gain(λ, z).
#[derive(Clone, Copy)]
struct Mode {
    lambda: Complex64,
    step: f64,
    weight: Complex64,
    used: f64,
}

/// e^z − 1, exact to a few ulp of its modulus.
fn growth(z: Complex64) -> Complex64 {
    let (sin, cos) = (0.5 * z.im).sin_cos();
    let (e, rest) = (z.re.exp_m1(), 2.0 * sin * sin);
    Complex64::new(e - rest * (e + 1.0), (e + 1.0) * 2.0 * sin * cos)
}

/// The parts of the gain of the softmax.
struct Softmax {
    sign: f64,
    /// e^d − 1 and e^{dL} − 1 with d = ±z, which decays.
    short: Complex64,
    long: Complex64,
    /// (e^{dL} − 1) λ, and its squared modulus with ε.
    x: Complex64,
    square: f64,
    /// From the anchor of the softmax to that of the kernel, in samples, and e to that many z.
    samples: f64,
    shift: Complex64,
}

impl Softmax {
    fn at(lambda: Complex64, z: Complex64, formulas: &Formulas) -> Self {
        let growing = lambda.re > 0.0;
        let sign = if growing { -1.0 } else { 1.0 };
        let own = formulas.form.length as f64;
        let long = growth(z * (sign * own));
        let x = long * lambda;
        let samples = match growing {
            true => formulas.length as f64 - own,
            false => 0.0,
        };
        Self {
            sign,
            short: growth(z * sign),
            long,
            x,
            square: x.norm_sqr() + DSS_EPSILON,
            samples,
            shift: (z * samples).exp(),
        }
    }

    fn reciprocal(&self) -> Complex64 {
        self.x.conj() / self.square
    }
}

impl Formulas {
    fn pole(&self, decay: f64, frequency: f64) -> Complex64 {
        let re = match self.form.kind {
            Parameterisation::DssSoftmax => decay,
            Parameterisation::S4d | Parameterisation::DssExp => -decay.exp(),
        };
        Complex64::new(re, frequency)
    }

    /// The gain, and the gradients of λ and z from that of the gain. A gradient is ∂/∂Re + i ∂/∂Im:
    /// that of x is that of f(x) times conj(f'(x)).
    fn gain_with_slopes(
        &self,
        lambda: Complex64,
        z: Complex64,
        slope: Complex64,
    ) -> [Complex64; 3] {
        let quotient = |factor: f64| {
            let gain = growth(z);
            let slopes = [-gain / lambda, gain + 1.0].map(|by| factor * (by / lambda).conj());
            [factor * gain / lambda, slope * slopes[0], slope * slopes[1]]
        };
        match self.form.kind {
            Parameterisation::S4d => quotient(2.0),
            Parameterisation::DssExp if lambda.norm_sqr() > DSS_EPSILON => quotient(1.0),
            Parameterisation::DssExp => {
                let growth = growth(z) / DSS_EPSILON;
                let of_z = slope * ((growth + 1.0 / DSS_EPSILON) * lambda.conj()).conj();
                [growth * lambda.conj(), slope.conj() * growth, of_z]
            }
            Parameterisation::DssSoftmax => self.softmax_gain(lambda, z, slope),
        }
    }

    fn softmax_gain(&self, lambda: Complex64, z: Complex64, slope: Complex64) -> [Complex64; 3] {
        let parts = Softmax::at(lambda, z, self);
        let reciprocal = parts.reciprocal();
        let of_short = slope * (reciprocal * parts.shift).conj();
        let of_reciprocal = slope * (parts.short * parts.shift).conj();
        let of_shift = slope * (parts.short * reciprocal).conj();
        // conj(x)/(|x|² + ε) is not analytic.
        let along = 2.0 * (of_reciprocal * parts.x).re / (parts.square * parts.square);
        let of_x = of_reciprocal.conj() / parts.square - along * parts.x;
        let of_long = of_x * lambda.conj();
        let of_decaying = of_short * (parts.short + 1.0).conj()
            + of_long * (parts.long + 1.0).conj() * self.form.length as f64;
        let of_z = parts.sign * of_decaying + of_shift * parts.shift.conj() * parts.samples;
        let gain = parts.short * reciprocal * parts.shift;
        [gain, of_x * parts.long.conj(), of_z]
    }

    /// The gradients of log Δ, decay, frequency and W from those of z and w.
    fn backward(&self, mode: Mode, [of_z, of_w]: [Complex64; 2]) -> (f64, [f64; 2], Complex64) {
        let z = mode.lambda * mode.step;
        let of_w = of_w * mode.used;
        let of_gain = of_w * mode.weight.conj();
        let [gain, of_lambda, more] = self.gain_with_slopes(mode.lambda, z, of_gain);
        let of_z = of_z + more;
        let of_lambda = of_lambda + of_z * mode.step;
        let of_decay = match self.form.kind {
            Parameterisation::DssSoftmax => of_lambda.re,
            Parameterisation::S4d | Parameterisation::DssExp => of_lambda.re * mode.lambda.re,
        };
        let of_log_step = (of_z * z.conj()).re;
        let of_poles = [of_decay, of_lambda.im];
        (of_log_step, of_poles, of_w * gain.conj())
    }

    fn parameters<'a>(&self, arguments: [Argument<'a>; 3]) -> Result<Parameters<'a>> {
        let [log_step, poles, weights] = arguments;
        Ok(Parameters {
            sizes: self.sizes(arguments.map(Argument::shape))?,
            log_step: log_step.numbers()?,
            poles: poles.numbers()?,
            weights: weights.numbers()?,
        })
    }

    fn sizes(&self, shapes: [&Shape; 3]) -> Result<Sizes> {
        let channels = shapes[0].elem_count();
        let total = shapes[1].elem_count() / 2;
        let fits = shapes[2].elem_count() == 2 * total
            && channels > 0
            && channels.is_multiple_of(self.layers)
            && total.is_multiple_of(channels);
        if !fits || self.used.as_ref().is_some_and(|used| used.len() != total) {
            bail!("poles and weights of {shapes:?} in {} layers", self.layers);
        }
        Ok(Sizes {
            channels: channels / self.layers,
            modes: total / channels,
            total,
        })
    }
}

/// Channels of a layer, modes of a channel, modes of all layers.
#[derive(Clone, Copy)]
struct Sizes {
    channels: usize,
    modes: usize,
    total: usize,
}

/// The parameters of all layers.
#[derive(Clone, Copy)]
struct Parameters<'a> {
    sizes: Sizes,
    log_step: &'a [f64],
    poles: &'a [f64],
    weights: &'a [f64],
}

impl Parameters<'_> {
    /// The modes of one layer, channel by channel.
    fn layer(&self, formulas: &Formulas, layer: usize) -> impl Iterator<Item = Mode> {
        let Sizes {
            channels,
            modes,
            total,
        } = self.sizes;
        let first = layer * channels * modes;
        let row = move |channel: usize| {
            let step = self.log_step[layer * channels + channel].exp();
            let start = first + channel * modes;
            (start..start + modes).map(move |at| Mode {
                lambda: formulas.pole(self.poles[at], self.poles[total + at]),
                step,
                weight: Complex64::new(self.weights[2 * at], self.weights[2 * at + 1]),
                used: formulas.used.as_ref().map_or(1.0, |used| used[at]),
            })
        };
        (0..channels).flat_map(row)
    }

    fn forward(&self, formulas: &Formulas) -> Vec<f64> {
        let count = self.sizes.channels * self.sizes.modes;
        let mut out = vec![0.0; 4 * self.sizes.total];
        let layers = out.par_chunks_mut(4 * count).enumerate();
        layers.for_each(|(layer, out)| {
            for (at, mode) in self.layer(formulas, layer).enumerate() {
                let z = mode.lambda * mode.step;
                let [gain, ..] = formulas.gain_with_slopes(mode.lambda, z, Complex64::ZERO);
                let w = mode.weight * gain * mode.used;
                for (part, value) in [z.re, z.im, w.re, w.im].into_iter().enumerate() {
                    out[part * count + at] = value;
                }
            }
        });
        out
    }

    /// The gradients of `log_step`, `poles` and `weights`.
    fn backward(&self, formulas: &Formulas, slopes: &[f64]) -> [Vec<f64>; 3] {
        let Sizes {
            channels,
            modes,
            total,
        } = self.sizes;
        let count = channels * modes;
        let mut of_steps = vec![0.0; self.log_step.len()];
        let (mut of_poles, mut of_weights) = (vec![0.0; 2 * total], vec![0.0; 2 * total]);
        let (of_decays, of_frequencies) = of_poles.split_at_mut(total);
        let layers = of_steps
            .par_chunks_mut(channels)
            .zip(of_decays.par_chunks_mut(count))
            .zip(of_frequencies.par_chunks_mut(count))
            .zip(of_weights.par_chunks_mut(2 * count))
            .zip(slopes.par_chunks(4 * count));
        layers.enumerate().for_each(|(layer, parts)| {
            let ((((of_steps, of_decays), of_frequencies), of_weights), slopes) = parts;
            for (at, mode) in self.layer(formulas, layer).enumerate() {
                let slope = |part: usize| {
                    Complex64::new(slopes[part * count + at], slopes[(part + 1) * count + at])
                };
                let (of_step, of_pole, of_weight) = formulas.backward(mode, [slope(0), slope(2)]);
                of_steps[at / modes] += of_step;
                [of_decays[at], of_frequencies[at]] = of_pole;
                [of_weights[2 * at], of_weights[2 * at + 1]] = [of_weight.re, of_weight.im];
            }
        });
        [of_steps, of_poles, of_weights]
    }
}

impl Operation<3> for Formulas {
    const NAME: &'static str = "poles and weights";

    fn forward<T: Real>(&self, arguments: [Argument<'_>; 3]) -> Result<(CpuStorage, Shape)> {
        let out = self.parameters(arguments)?.forward(self);
        let shape = Shape::from(out.len());
        Ok((CpuStorage::F64(out), shape))
    }

    fn backward<T: Real>(
        &self,
        arguments: [Argument<'_>; 3],
        slopes: Argument<'_>,
    ) -> Result<[Option<Tensor>; 3]> {
        let found = self.parameters(arguments)?;
        let [of_steps, of_poles, of_weights] = found.backward(self, slopes.numbers()?);
        let [log_step, poles, weights] = arguments;
        Ok([
            Some(log_step.shaped(of_steps)?),
            Some(poles.shaped(of_poles)?),
            Some(weights.shaped(of_weights)?),
        ])
    }
}
