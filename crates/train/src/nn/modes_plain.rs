//! Poles and weights from candle's own operations: what runs where the processor's path does not, and
//! the independent check of that path.

use candle_core::{D, DType, Result, Tensor};
use hankelite_control::DSS_EPSILON;

use crate::nn::Parameterisation;
use crate::nn::modes::Formulas;

/// As `modes::modes`, from log Δ, decays, frequencies and weights; `used` as in [`Formulas`].
pub(super) fn modes(
    formulas: &Formulas,
    used: Option<Tensor>,
    parameters: [&Tensor; 4],
) -> Result<Tensor> {
    let [log_step, decay, frequency, weights] = parameters;
    let step = log_step.exp()?.unsqueeze(1)?;
    let re = match formulas.form.kind {
        Parameterisation::DssSoftmax => decay.clone(),
        Parameterisation::S4d | Parameterisation::DssExp => decay.exp()?.neg()?,
    };
    let lambda = Pair(re, frequency.clone());
    let z = lambda.scaled(&step)?;
    let weights = Pair(
        weights.narrow(D::Minus1, 0, 1)?.squeeze(D::Minus1)?,
        weights.narrow(D::Minus1, 1, 1)?.squeeze(D::Minus1)?,
    );
    let mut w = weights.times(&gains(&lambda, &z, formulas)?)?;
    if let Some(used) = &used {
        w = w.scaled(used)?;
    }
    let parts = Tensor::stack(&[z.0, z.1, w.0, w.1], 0)?;
    let parts = parts.reshape((4, formulas.layers, ()))?.transpose(0, 1)?;
    parts.contiguous()?.flatten_all()
}

/// w where C or W is one, anchored as `kernel::Modes` has it.
fn gains(lambda: &Pair, z: &Pair, formulas: &Formulas) -> Result<Pair> {
    let (own, length) = (formulas.form.length, formulas.length);
    match formulas.form.kind {
        Parameterisation::S4d => {
            let inverse = lambda.conjugate()?.over(&lambda.square()?)?;
            let gain = z.expm1()?.times(&inverse)?;
            Ok(Pair((gain.0 * 2.0)?, (gain.1 * 2.0)?))
        }
        Parameterisation::DssExp => {
            let square = lambda.square()?;
            let inverse = lambda.conjugate()?.over(&square.maximum(DSS_EPSILON)?)?;
            z.expm1()?.times(&inverse)
        }
        Parameterisation::DssSoftmax => {
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
    }
}

/// Real and imaginary parts, channels × modes.
struct Pair(Tensor, Tensor);

impl Pair {
    fn scaled(&self, by: &Tensor) -> Result<Self> {
        Ok(Self(self.0.broadcast_mul(by)?, self.1.broadcast_mul(by)?))
    }

    fn times(&self, other: &Self) -> Result<Self> {
        Ok(Self(
            (self.0.mul(&other.0)? - self.1.mul(&other.1)?)?,
            (self.0.mul(&other.1)? + self.1.mul(&other.0)?)?,
        ))
    }

    fn over(&self, real: &Tensor) -> Result<Self> {
        Ok(Self(self.0.div(real)?, self.1.div(real)?))
    }

    fn conjugate(&self) -> Result<Self> {
        Ok(Self(self.0.clone(), self.1.neg()?))
    }

    /// |x|².
    fn square(&self) -> Result<Tensor> {
        self.0.sqr()? + self.1.sqr()?
    }

    /// e^x − 1 without cancellation, for Re x ≤ 0:
    ///
    /// ```text
    /// expm1(a) = 2 tanh(a/2)/(1 − tanh(a/2))
    /// Re = expm1(a) cos b − 2 sin²(b/2),   Im = e^a sin b
    /// ```
    fn expm1(&self) -> Result<Self> {
        let tanh = (&self.0 * 0.5)?.tanh()?;
        let expm1 = ((&tanh * 2.0)? / (1.0 - tanh)?)?;
        let half = (&self.1 * 0.5)?.sin()?.sqr()?;
        let re = (expm1.mul(&self.1.cos()?)? - (half * 2.0)?)?;
        Ok(Self(re, (expm1 + 1.0)?.mul(&self.1.sin()?)?))
    }
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
                let all = [log_step, decay, frequency, weights];
                let slow = modes(&formulas, ragged.then_some(used), all).unwrap();
                formulas.used = ragged.then(|| Arc::new(host));
                let poles = Tensor::cat(&[decay, frequency], 0).unwrap();
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
