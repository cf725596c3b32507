//! Trainable poles, steps and weights of one direction of a layer.
//!
//! With Δ = e^{log_step} and z = λΔ, the kernel is Re Σ w_n e^{z_n l}, where
//!
//! ```text
//! S4D          λ = −e^{log_decay} + i frequency,   w = 2 C (e^z − 1)/λ
//! DSS-exp      λ as above,                         w = W (e^z − 1) conj(λ)/max(|λ|², ε)
//! DSS-softmax  λ = decay + i frequency,            w = W (e^{sz} − 1) r((e^{szL} − 1) λ) e^{−zg(L−1)}
//!              g = 1 where Re λ > 0, else 0;  s = 1 − 2g;  r(x) = conj(x)/(|x|² + ε)
//! ```
//!
//! ε = 1e-7. B is folded into C or W. The parameters have the network's type; everything after
//! them runs in f64, as z is multiplied by up to L.
//!
//! # References
//! state-spaces/s4 `models/s4/s4d.py`; ag1988/dss `dss.py`; Ezoe and Sato, Proposition 1.

use std::sync::Arc;

use candle_core::{D, DType, Device, Result, Tensor, Var};
use hankelite_control::{DiagonalSystem, SystemError, Time, expm1, quotient, zoh_gain};
use num_complex::Complex64;

use crate::nn::modes::{Formulas, modes};
use crate::nn::{Group, NetworkError, Parameter};

/// What the public code of DSS adds to, or clamps, squared moduli with.
pub(super) const EPSILON: f64 = 1e-7;

/// The decay of slots that a channel of lower order leaves empty; their weight stays zero.
const IDLE_DECAY: f64 = -0.5;

/// How poles and weights are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Parameterisation {
    /// Decaying poles; C.
    S4d,
    /// Decaying poles; W of DSS-exp.
    DssExp,
    /// Any poles; W of DSS-softmax for the network's length.
    DssSoftmax,
}

impl Parameterisation {
    /// The residue of a mode whose weight is one.
    pub(super) fn gain(self, lambda: Complex64, step: f64, length: usize) -> Complex64 {
        let z = lambda * step;
        match self {
            Parameterisation::S4d => 2.0 * zoh_gain(lambda, step),
            Parameterisation::DssExp => expm1(z) * lambda.conj() / lambda.norm_sqr().max(EPSILON),
            Parameterisation::DssSoftmax => {
                let growing = lambda.re > 0.0;
                let decaying = if growing { -z } else { z };
                let x = expm1(decaying * length as f64) * lambda;
                let shift = if growing {
                    (-z * (length - 1) as f64).exp()
                } else {
                    Complex64::ONE
                };
                expm1(decaying) * x.conj() / (x.norm_sqr() + EPSILON) * shift
            }
        }
    }
}

/// The parameters of all channels.
pub(super) struct TrainableDynamics {
    kind: Parameterisation,
    /// L of the softmax.
    length: usize,
    log_step: Var,
    /// log(−Re λ), or Re λ for the softmax; channels × modes.
    decay: Var,
    frequency: Var,
    /// C or W, channels × modes × 2.
    weights: Var,
    /// 1 for modes in use; `None` where all are.
    used: Option<Tensor>,
    /// The systems that the parameters came from, and the parameters they gave.
    source: Vec<DiagonalSystem>,
    initial: Numbers,
}

/// The parameters on the host.
#[derive(PartialEq, Clone)]
struct Numbers {
    log_step: Vec<f64>,
    decay: Vec<f64>,
    frequency: Vec<f64>,
    weights: Vec<f64>,
}

impl TrainableDynamics {
    /// With room for `modes` modes in every channel.
    ///
    /// # Errors
    /// [`NetworkError::Pole`] where the parameterisation cannot hold a mode.
    pub(super) fn new(
        layer: &str,
        (systems, modes): (&[DiagonalSystem], usize),
        (kind, length): (Parameterisation, usize),
        (dtype, device): (DType, &Device),
    ) -> std::result::Result<Self, NetworkError> {
        let channels = systems.len();
        let mut numbers = Numbers::empty();
        for (channel, system) in systems.iter().enumerate() {
            let fault = |why: Fault| why.at(layer, channel);
            numbers.push(system, (kind, length), modes).map_err(fault)?;
        }
        let var = |values: &[f64], shape: &[usize]| {
            Var::from_tensor(&Tensor::from_slice(values, shape, device)?.to_dtype(dtype)?)
        };
        let used = systems.iter().flat_map(|system| {
            let order = system.order();
            (0..modes).map(move |n| f64::from(u8::from(n < order)))
        });
        let ragged = systems.iter().any(|system| system.order() != modes);
        let used: Vec<f64> = used.collect();
        let mut made = Self {
            kind,
            length,
            log_step: var(&numbers.log_step, &[channels])?,
            decay: var(&numbers.decay, &[channels, modes])?,
            frequency: var(&numbers.frequency, &[channels, modes])?,
            weights: var(&numbers.weights, &[channels, modes, 2])?,
            used: ragged
                .then(|| Tensor::from_vec(used, (channels, modes), device))
                .transpose()?,
            source: systems.to_vec(),
            initial: numbers,
        };
        // As rounded to the network's type.
        made.initial = made.numbers()?;
        Ok(made)
    }

    /// Modes of every channel, empty slots included.
    pub(super) fn modes(&self) -> usize {
        self.decay.dims()[1]
    }

    /// Named with a leading `prefix`.
    pub(super) fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let decay = match self.kind {
            Parameterisation::DssSoftmax => "decay",
            Parameterisation::S4d | Parameterisation::DssExp => "log_decay",
        };
        let named = [
            ("log_step", &self.log_step, Group::Dynamics),
            (decay, &self.decay, Group::Poles),
            ("frequency", &self.frequency, Group::Poles),
            ("weights", &self.weights, Group::Plain),
        ];
        let one = |(name, var, group): (&str, &Var, Group)| Parameter {
            name: format!("{prefix}{name}"),
            var: var.clone(),
            group,
        };
        named.into_iter().map(one).collect()
    }

    fn numbers(&self) -> Result<Numbers> {
        let host = |var: &Var| var.flatten_all()?.to_dtype(DType::F64)?.to_vec1::<f64>();
        Ok(Numbers {
            log_step: host(&self.log_step)?,
            decay: host(&self.decay)?,
            frequency: host(&self.frequency)?,
            weights: host(&self.weights)?,
        })
    }

    /// The systems of all channels with these feedthroughs. Modes that were not trained come back
    /// as they were, to the last bit.
    pub(super) fn systems(
        &self,
        layer: &str,
        feedthrough: &[f64],
    ) -> std::result::Result<Vec<DiagonalSystem>, NetworkError> {
        let numbers = self.numbers()?;
        let same = numbers == self.initial;
        let modes = self.modes();
        let channel = |(h, source): (usize, &DiagonalSystem)| {
            if same && source.feedthrough()[(0, 0)] == feedthrough[h] {
                return Ok(source.clone());
            }
            let step = numbers.log_step[h].exp();
            let (mut exponents, mut residues) = (Vec::new(), Vec::new());
            for at in h * modes..h * modes + source.order() {
                let re = match self.kind {
                    Parameterisation::DssSoftmax => numbers.decay[at],
                    Parameterisation::S4d | Parameterisation::DssExp => -numbers.decay[at].exp(),
                };
                let lambda = Complex64::new(re, numbers.frequency[at]);
                let weight = Complex64::new(numbers.weights[2 * at], numbers.weights[2 * at + 1]);
                residues.push(weight * self.kind.gain(lambda, step, self.length));
                exponents.push(lambda);
            }
            let system = if same {
                let time = source.time();
                let (exponents, residues) = (source.exponents().to_vec(), source.residues());
                residues.and_then(|r| DiagonalSystem::siso(time, exponents, &r, feedthrough[h]))
            } else {
                let time = Time::Discrete { step };
                DiagonalSystem::siso(time, exponents, &residues, feedthrough[h])
            };
            system.map_err(|source| Fault::System(source).at(layer, h))
        };
        self.source.iter().enumerate().map(channel).collect()
    }
}

/// Re z, Im z, Re w, Im w of each in turn, flat and in f64, for kernels of `length` samples.
///
/// Those of equal order go through the formulas together: for small layers the number of
/// operations counts, not their size.
pub(super) fn modes_for(all: &[&TrainableDynamics], length: usize) -> Result<Tensor> {
    let equal = |a: &TrainableDynamics, b: &TrainableDynamics| {
        (a.kind, a.length, a.decay.dims()) == (b.kind, b.length, b.decay.dims())
    };
    let runs = all.chunk_by(|a, b| equal(a, b));
    let parts = runs.map(|run| modes_of_run(run, length));
    Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)
}

fn modes_of_run(run: &[&TrainableDynamics], length: usize) -> Result<Tensor> {
    let first = run[0];
    let joined = |part: fn(&TrainableDynamics) -> &Var| {
        let vars: Vec<&Tensor> = run.iter().map(|one| part(one).as_tensor()).collect();
        Tensor::cat(&vars, 0)?.to_dtype(DType::F64)
    };
    let used = run.iter().any(|one| one.used.is_some()).then(|| {
        let used = run.iter().map(|one| match &one.used {
            Some(used) => Ok(used.clone()),
            None => Tensor::ones(one.decay.shape(), DType::F64, one.decay.device()),
        });
        Tensor::cat(&used.collect::<Result<Vec<_>>>()?, 0)
    });
    let used = used.transpose()?;
    let (decay, frequency) = (joined(|one| &one.decay)?, joined(|one| &one.frequency)?);
    let (log_step, weights) = (joined(|one| &one.log_step)?, joined(|one| &one.weights)?);
    let mut formulas = Formulas {
        kind: first.kind,
        own: first.length,
        length,
        layers: run.len(),
        used: None,
    };
    if !log_step.device().is_cpu() {
        return by_tensors(&formulas, used, [&log_step, &decay, &frequency, &weights]);
    }
    let host = used.map(|used| used.flatten_all()?.to_vec1::<f64>());
    formulas.used = host.transpose()?.map(Arc::new);
    let poles = Tensor::cat(&[&decay, &frequency], 0)?;
    modes(formulas, (&log_step, &poles, &weights))
}

/// As [`modes`], put together from candle's operations: for devices other than the processor, and
/// as the check of the fast path.
fn by_tensors(
    formulas: &Formulas,
    used: Option<Tensor>,
    [log_step, decay, frequency, weights]: [&Tensor; 4],
) -> Result<Tensor> {
    let step = log_step.exp()?.unsqueeze(1)?;
    let re = match formulas.kind {
        Parameterisation::DssSoftmax => decay.clone(),
        Parameterisation::S4d | Parameterisation::DssExp => decay.exp()?.neg()?,
    };
    let lambda = Pair(re, frequency.clone());
    let z = lambda.scaled(&step)?;
    let weights = Pair(
        weights.narrow(D::Minus1, 0, 1)?.squeeze(D::Minus1)?,
        weights.narrow(D::Minus1, 1, 1)?.squeeze(D::Minus1)?,
    );
    let sizes = (formulas.kind, formulas.own, formulas.length);
    let mut w = weights.times(&gains(&lambda, &z, sizes)?)?;
    if let Some(used) = &used {
        w = w.scaled(used)?;
    }
    let parts = Tensor::stack(&[z.0, z.1, w.0, w.1], 0)?;
    let parts = parts.reshape((4, formulas.layers, ()))?.transpose(0, 1)?;
    parts.contiguous()?.flatten_all()
}

/// w where C or W is one, anchored as `kernel::Modes` has it, for kernels of `length` samples and
/// a softmax over `own`.
fn gains(
    lambda: &Pair,
    z: &Pair,
    (kind, own, length): (Parameterisation, usize, usize),
) -> Result<Pair> {
    match kind {
        Parameterisation::S4d => {
            let inverse = lambda.conjugate()?.over(&lambda.square()?)?;
            let gain = z.expm1()?.times(&inverse)?;
            Ok(Pair((gain.0 * 2.0)?, (gain.1 * 2.0)?))
        }
        Parameterisation::DssExp => {
            let square = lambda.square()?;
            let inverse = lambda.conjugate()?.over(&square.maximum(EPSILON)?)?;
            z.expm1()?.times(&inverse)
        }
        Parameterisation::DssSoftmax => {
            let growing = lambda.0.detach().gt(0.0)?.to_dtype(DType::F64)?;
            let decaying = z.scaled(&(1.0 - (&growing * 2.0)?)?)?;
            let long = Pair((&decaying.0 * own as f64)?, (&decaying.1 * own as f64)?);
            let x = long.expm1()?.times(lambda)?;
            let inverse = x.conjugate()?.over(&(x.square()? + EPSILON)?)?;
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

/// Why a channel cannot be held.
enum Fault {
    System(SystemError),
    Pole(Complex64, &'static str),
}

impl Fault {
    fn at(self, layer: &str, channel: usize) -> NetworkError {
        let layer = layer.to_string();
        match self {
            Fault::System(source) => NetworkError::System {
                layer,
                channel,
                source,
            },
            Fault::Pole(pole, why) => NetworkError::Pole {
                layer,
                channel,
                pole,
                why,
            },
        }
    }
}

impl Numbers {
    fn empty() -> Self {
        Self {
            log_step: Vec::new(),
            decay: Vec::new(),
            frequency: Vec::new(),
            weights: Vec::new(),
        }
    }

    /// Appends one channel, filled up to `modes`.
    fn push(
        &mut self,
        system: &DiagonalSystem,
        (kind, length): (Parameterisation, usize),
        modes: usize,
    ) -> std::result::Result<(), Fault> {
        let Time::Discrete { step } = system.time() else {
            return Err(Fault::System(SystemError::WrongTime {
                found: "continuous",
                expected: "discrete",
            }));
        };
        let residues = system.residues().map_err(Fault::System)?;
        self.log_step.push(step.ln());
        for (&lambda, residue) in system.exponents().iter().zip(residues) {
            let weight = quotient(residue, kind.gain(lambda, step, length));
            if kind != Parameterisation::DssSoftmax && lambda.re >= 0.0 {
                let why = "does not decay, which only the parameterisation dss-softmax can hold";
                return Err(Fault::Pole(lambda, why));
            }
            if !weight.is_finite() {
                let why = "has a weight that is not finite in this parameterisation";
                return Err(Fault::Pole(lambda, why));
            }
            self.push_mode(kind, lambda, weight);
        }
        for _ in system.order()..modes {
            self.push_mode(kind, Complex64::from(IDLE_DECAY), Complex64::ZERO);
        }
        Ok(())
    }

    fn push_mode(&mut self, kind: Parameterisation, lambda: Complex64, weight: Complex64) {
        self.decay.push(match kind {
            Parameterisation::DssSoftmax => lambda.re,
            Parameterisation::S4d | Parameterisation::DssExp => (-lambda.re).ln(),
        });
        self.frequency.push(lambda.im);
        self.weights.extend([weight.re, weight.im]);
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
    use super::*;

    const LAYERS: usize = 2;
    const CHANNELS: usize = 3;
    const MODES: usize = 5;

    fn wave(shape: &[usize], (middle, size, seed): (f64, f64, f64)) -> Var {
        let count: usize = shape.iter().product();
        let numbers = (0..count).map(|i| middle + size * ((i * i) as f64 * 0.37 + seed).sin());
        let tensor = Tensor::from_vec(numbers.collect::<Vec<_>>(), shape, &Device::Cpu);
        Var::from_tensor(&tensor.unwrap()).unwrap()
    }

    fn worst(a: &Tensor, b: &Tensor) -> f64 {
        let apart = (a - b).unwrap().abs().unwrap().flatten_all().unwrap();
        apart.max(0).unwrap().to_scalar().unwrap()
    }

    /// Steps, decays, frequencies and weights; the softmax has growing modes, and one mode is at
    /// zero but for a little, where squared moduli are clamped.
    fn parameters(kind: Parameterisation) -> [Var; 4] {
        let rows = LAYERS * CHANNELS;
        let decay = match kind {
            Parameterisation::DssSoftmax => (0.0, 1.0, 1.0),
            Parameterisation::S4d | Parameterisation::DssExp => (-0.5, 1.0, 1.0),
        };
        let made = [
            wave(&[rows], (-2.0, 1.0, 0.0)),
            wave(&[rows, MODES], decay),
            wave(&[rows, MODES], (0.0, 9.0, 2.0)),
            wave(&[rows, MODES, 2], (0.0, 1.0, 3.0)),
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

    /// A mode that grows to e^{390} over the kernel: its residue is below 1e-154, the square of its
    /// gain no double.
    #[test]
    fn a_growing_mode_is_held() {
        let (lambda, step, length) = (Complex64::new(3.81, 1.68), 0.1, 1024);
        let kind = Parameterisation::DssSoftmax;
        let weight = Complex64::new(0.3, -0.8);
        let residue = weight * kind.gain(lambda, step, length);
        assert!(residue.norm() > 0.0 && residue.norm_sqr() == 0.0);
        let time = Time::Discrete { step };
        let system = DiagonalSystem::siso(time, vec![lambda], &[residue], 0.0).unwrap();
        let place = (DType::F64, &Device::Cpu);
        let sizes = (kind, length);
        let made = TrainableDynamics::new("layer", (&[system], 1), sizes, place).unwrap();
        let found = made.numbers().unwrap().weights;
        let apart = Complex64::new(found[0], found[1]) - weight;
        assert!(apart.norm() < 1e-12, "{found:?}");
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
                    kind,
                    own: 40,
                    length,
                    layers: LAYERS,
                    used: None,
                };
                let all = [log_step, decay, frequency, weights];
                let slow = by_tensors(&formulas, ragged.then_some(used), all).unwrap();
                formulas.used = ragged.then(|| Arc::new(host));
                let poles = Tensor::cat(&[decay, frequency], 0).unwrap();
                let fast = modes(formulas, (log_step, &poles, weights)).unwrap();
                let size = worst(&slow, &slow.zeros_like().unwrap());
                assert!(worst(&fast, &slow) < 1e-13 * size, "{kind:?} {length}");
                let slopes = wave(slow.dims(), (0.0, 1.0, 4.0));
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
