//! Poles and weights from candle's own operations: what runs where the processor's path does not, and
//! the independent check of that path.

use candle_core::{D, DType, Result, Tensor};
use hankelite_control::DSS_EPSILON;

use crate::nn::Parameterisation;
#[cfg(feature = "cuda")]
use crate::nn::gpu;
use crate::nn::gradient::{Known, of_three, with_kept_shapes};
use crate::nn::modes::Formulas;
use crate::nn::pair::Pair;

/// As `modes::modes`; `used` as in [`Formulas`].
pub(super) fn modes(
    formulas: &Formulas,
    used: Option<Tensor>,
    parameters: [&Tensor; 3],
) -> Result<Tensor> {
    #[cfg(feature = "cuda")]
    if gpu::takes(parameters[0].device(), DType::F32) {
        let flat = parameters.map(Tensor::flatten_all).into_iter();
        let row = Tensor::cat(&flat.collect::<Result<Vec<_>>>()?, 0)?;
        return gpu::modes::modes(formulas, used, (&row, parameters[0].elem_count()));
    }
    let quotient = match formulas.form.kind {
        Parameterisation::S4d => Quotient {
            factor: 2.0,
            least: None,
        },
        Parameterisation::DssExp => Quotient {
            factor: 1.0,
            least: Some(DSS_EPSILON),
        },
        Parameterisation::DssSoftmax => return softmax(formulas, used, parameters),
    };
    let layers = formulas.layers;
    let detached = parameters.map(Tensor::detach);
    let (value, parts) = with_kept_shapes(parameters[0].device(), || {
        let parts = quotient.parts(&detached, used)?;
        Ok((joined([&parts.z, &parts.w()?], layers)?, parts))
    })?;
    let backward = move |slopes: &Tensor| parts.gradients(apart(slopes, layers, &parts)?);
    of_three(parameters, Known::new(value, backward))
}

/// Re z, Im z, Re w, Im w of each layer, flat.
fn joined([z, w]: [&Pair; 2], layers: usize) -> Result<Tensor> {
    let parts = Tensor::stack(&[&z.0, &z.1, &w.0, &w.1], 0)?;
    let parts = parts.reshape((4, layers, ()))?.transpose(0, 1)?;
    parts.contiguous()?.flatten_all()
}

/// The reverse of [`joined`].
fn apart(flat: &Tensor, layers: usize, like: &Parts) -> Result<[Pair; 2]> {
    let flat = flat.reshape((layers, 4, ()))?;
    let part = |part: usize| flat.narrow(1, part, 1)?.reshape(like.weights.0.shape());
    Ok([Pair(part(0)?, part(1)?), Pair(part(2)?, part(3)?)])
}

/// λ from decays, or the logarithms of them, and frequencies, one over the other.
fn poles(poles: &Tensor, logarithms: bool) -> Result<Pair> {
    let rows = poles.dim(0)? / 2;
    let decay = poles.narrow(0, 0, rows)?;
    let re = match logarithms {
        true => decay.exp()?.neg()?,
        false => decay,
    };
    Ok(Pair(re, poles.narrow(0, rows, rows)?))
}

fn weights(weights: &Tensor) -> Result<Pair> {
    let part = |at: usize| weights.narrow(D::Minus1, at, 1)?.squeeze(D::Minus1);
    Ok(Pair(part(0)?, part(1)?))
}

/// The gain f (e^z − 1) conj(λ)/max(|λ|², ε).
struct Quotient {
    factor: f64,
    least: Option<f64>,
}

/// Poles, weights and gain of all modes, channels × modes.
struct Parts {
    lambda: Pair,
    step: Tensor,
    z: Pair,
    weights: Pair,
    /// e^z − 1.
    growth: Pair,
    /// What it is multiplied with: f/λ.
    inverse: Pair,
    gain: Pair,
    used: Option<Tensor>,
    factor: f64,
    /// 1 where ε is the larger, and ε.
    bounded: Option<(Tensor, f64)>,
}

impl Quotient {
    fn parts(&self, parameters: &[Tensor; 3], used: Option<Tensor>) -> Result<Parts> {
        let [log_step, poles_given, weights_given] = parameters;
        let step = log_step.exp()?.unsqueeze(1)?;
        let lambda = poles(poles_given, true)?;
        let z = lambda.scaled(&step)?;
        let square = lambda.square()?;
        let bounded = self.least.map(|least| {
            let bounded = square.le(least)?.to_dtype(DType::F64)?;
            Result::Ok((bounded, least))
        });
        let square = match self.least {
            Some(least) => square.maximum(least)?,
            None => square,
        };
        let inverse = lambda.conjugate()?.over(&(square / self.factor)?)?;
        let growth = z.expm1()?;
        Ok(Parts {
            gain: growth.times(&inverse)?,
            weights: weights(weights_given)?,
            factor: self.factor,
            bounded: bounded.transpose()?,
            lambda,
            step,
            z,
            growth,
            inverse,
            used,
        })
    }
}

impl Parts {
    fn w(&self) -> Result<Pair> {
        self.if_used(self.weights.times(&self.gain)?)
    }

    fn if_used(&self, pair: Pair) -> Result<Pair> {
        match &self.used {
            Some(used) => pair.scaled(used),
            None => Ok(pair),
        }
    }

    /// Of log Δ, poles and weights from those of z and w. A gradient is ∂/∂Re + i ∂/∂Im: that of x is that
    /// of f(x) times conj(f'(x)).
    fn gradients(&self, [of_z, of_w]: [Pair; 2]) -> Result<[Tensor; 3]> {
        let of_w = self.if_used(of_w)?;
        let of_gain = of_w.times_conjugate(&self.weights)?;
        let of_weights = of_w.times_conjugate(&self.gain)?;
        let of_growth = of_gain.times_conjugate(&self.inverse)?;
        let growth = Pair((&self.growth.0 + 1.0)?, self.growth.1.clone());
        let of_z = of_z.plus(&of_growth.times_conjugate(&growth)?)?;
        let of_inverse = of_gain.times_conjugate(&self.growth)?;
        let of_lambda = self.through_the_inverse(&of_inverse)?;
        let of_lambda = of_lambda.plus(&of_z.scaled(&self.step)?)?;
        let of_log_step = of_z.times_conjugate(&self.z)?.0.sum(1)?;
        let of_decay = of_lambda.0.mul(&self.lambda.0)?;
        Ok([
            of_log_step,
            Tensor::cat(&[of_decay, of_lambda.1], 0)?,
            Tensor::stack(&[of_weights.0, of_weights.1], D::Minus1)?,
        ])
    }

    /// f/λ has the slope −(f/λ)²/f; f conj(λ)/ε, where that is bounded, is not analytic.
    fn through_the_inverse(&self, of_inverse: &Pair) -> Result<Pair> {
        let along = of_inverse.times_conjugate(&self.inverse)?;
        let along = along.times_conjugate(&self.inverse)?;
        let by = -1.0 / self.factor;
        let along = Pair((along.0 * by)?, (along.1 * by)?);
        let Some((bounded, least)) = &self.bounded else {
            return Ok(along);
        };
        let free = (1.0 - bounded)?;
        let other = of_inverse.conjugate()?;
        let other = other.scaled(&(bounded * (self.factor / least))?)?;
        along.scaled(&free)?.plus(&other)
    }
}

/// DSS-softmax, whose modes may grow.
fn softmax(
    formulas: &Formulas,
    used: Option<Tensor>,
    [log_step, poles_given, weights_given]: [&Tensor; 3],
) -> Result<Tensor> {
    let lambda = poles(poles_given, false)?;
    let z = lambda.scaled(&log_step.exp()?.unsqueeze(1)?)?;
    let mut w = weights(weights_given)?.times(&softmax_gains(&lambda, &z, formulas)?)?;
    if let Some(used) = &used {
        w = w.scaled(used)?;
    }
    joined([&z, &w], formulas.layers)
}

/// w where W is one, anchored as `kernel::Modes` has it.
fn softmax_gains(lambda: &Pair, z: &Pair, formulas: &Formulas) -> Result<Pair> {
    let (own, length) = (formulas.form.length, formulas.length);
    let growing = lambda.0.detach().gt(0.0)?.to_dtype(DType::F64)?;
    let decaying = z.scaled(&(1.0 - (&growing * 2.0)?)?)?;
    let long = Pair((&decaying.0 * own as f64)?, (&decaying.1 * own as f64)?);
    let x = long.expm1()?.times(lambda)?;
    let inverse = x.conjugate()?.over(&(x.square()? + DSS_EPSILON)?)?;
    let gain = decaying.expm1()?.times(&inverse)?;
    if length == own {
        return Ok(gain);
    }
    // The kernel is anchored at its last sample, the softmax at its own.
    let shift = z.scaled(&(growing * (length as f64 - own as f64))?)?;
    let size = shift.0.exp()?;
    gain.times(&Pair(
        shift.1.cos()?.mul(&size)?,
        shift.1.sin()?.mul(&size)?,
    ))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use candle_core::{Device, Var};

    use super::*;
    use crate::nn::modes as operation;
    use crate::nn::parameterisation::ModeForm;
    use crate::nn::tensors::waves::{wave, worst};

    const LAYERS: usize = 2;
    const CHANNELS: usize = 3;
    const MODES: usize = 5;

    /// Steps, decays, frequencies and weights; the softmax has growing modes, and one mode is at
    /// zero but for a little, where squared moduli are clamped.
    fn parameters(kind: Parameterisation) -> [Var; 4] {
        let rows = LAYERS * CHANNELS;
        let decay = match kind {
            Parameterisation::DssSoftmax => [0.0, 1.0, 1.0],
            Parameterisation::S4d | Parameterisation::DssExp => [-0.5, 1.0, 1.0],
        };
        let made = [
            wave(&[rows], [-2.0, 1.0, 0.0]),
            wave(&[rows, MODES], decay),
            wave(&[rows, MODES], [0.0, 9.0, 2.0]),
            wave(&[rows, MODES, 2], [0.0, 1.0, 3.0]),
        ];
        if kind == Parameterisation::DssExp {
            for (var, value) in [(&made[1], -12.0), (&made[2], 1e-5)] {
                let mut numbers: Vec<f64> = var.flatten_all().unwrap().to_vec1().unwrap();
                numbers[3] = value;
                let tensor = Tensor::from_vec(numbers, var.shape(), &Device::Cpu);
                var.set(&tensor.unwrap()).unwrap();
            }
        }
        made
    }

    #[test]
    fn the_operation_is_that_of_single_tensors() {
        use Parameterisation::{DssExp, DssSoftmax, S4d};
        for (kind, length) in [(S4d, 40), (DssExp, 40), (DssSoftmax, 40), (DssSoftmax, 31)] {
            for ragged in [false, true] {
                let vars = parameters(kind);
                let [log_step, decay, frequency, weights] =
                    [0, 1, 2, 3].map(|i| vars[i].as_tensor());
                let host: Vec<f64> = (0..30).map(|i| f64::from(u8::from(i % 4 != 1))).collect();
                let used = Tensor::from_slice(&host, (6, MODES), &Device::Cpu).unwrap();
                let mut formulas = Formulas {
                    form: ModeForm {
                        kind,
                        length: 40,
                        scaled: false,
                    },
                    length,
                    layers: LAYERS,
                    used: None,
                };
                let poles = Tensor::cat(&[decay, frequency], 0).unwrap();
                let all = [log_step, &poles, weights];
                let slow = modes(&formulas, ragged.then_some(used), all).unwrap();
                formulas.used = ragged.then(|| Arc::new(host));
                let fast = operation::modes(formulas, [log_step, &poles, weights]).unwrap();
                let size = worst(&slow, &slow.zeros_like().unwrap());
                assert!(worst(&fast, &slow) < 1e-13 * size, "{kind:?} {length}");
                let slopes = wave(slow.dims(), [0.0, 1.0, 4.0]);
                let gradients = |out: &Tensor| {
                    let sum = (out * slopes.as_tensor()).unwrap().sum_all().unwrap();
                    sum.backward().unwrap()
                };
                let (of_fast, of_slow) = (gradients(&fast), gradients(&slow));
                for (index, var) in vars.iter().enumerate() {
                    let [a, b] = [&of_fast, &of_slow].map(|all| all.get(var).unwrap());
                    let size = worst(b, &b.zeros_like().unwrap());
                    let apart = worst(a, b);
                    assert!(
                        size > 1e-3 && apart < 1e-12 * size,
                        "{kind:?} {length} {index}: {apart:e} of {size:e}"
                    );
                }
            }
        }
    }
}
