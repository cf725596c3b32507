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

use candle_core::D;
use candle_core::DType;
use candle_core::Device;
use candle_core::Result;
use candle_core::Tensor;
use candle_core::Var;
use num_complex::Complex64;

use crate::linalg::expm1;
use crate::nn::Group;
use crate::nn::NetworkError;
use crate::nn::Parameter;
use crate::ssm::DiagonalSystem;
use crate::ssm::SystemError;
use crate::ssm::Time;
use crate::ssm::zoh_gain;

/// What the public code of DSS adds to, or clamps, squared moduli with.
const EPSILON: f64 = 1e-7;

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
    let step = joined(|one| &one.log_step)?.exp()?.unsqueeze(1)?;
    let decay = joined(|one| &one.decay)?;
    let re = match first.kind {
        Parameterisation::DssSoftmax => decay,
        Parameterisation::S4d | Parameterisation::DssExp => decay.exp()?.neg()?,
    };
    let lambda = Pair(re, joined(|one| &one.frequency)?);
    let z = lambda.scaled(&step)?;
    let weights = joined(|one| &one.weights)?;
    let weights = Pair(
        weights.narrow(D::Minus1, 0, 1)?.squeeze(D::Minus1)?,
        weights.narrow(D::Minus1, 1, 1)?.squeeze(D::Minus1)?,
    );
    let mut w = weights.times(&gains(&lambda, &z, (first.kind, first.length, length))?)?;
    if run.iter().any(|one| one.used.is_some()) {
        let used = run.iter().map(|one| match &one.used {
            Some(used) => Ok(used.clone()),
            None => Tensor::ones(one.decay.shape(), DType::F64, one.decay.device()),
        });
        w = w.scaled(&Tensor::cat(&used.collect::<Result<Vec<_>>>()?, 0)?)?;
    }
    let count = first.decay.elem_count();
    let parts = Tensor::stack(&[z.0, z.1, w.0, w.1], 0)?;
    let parts = parts.reshape((4, run.len(), count))?.transpose(0, 1)?;
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
            let weight = residue / kind.gain(lambda, step, length);
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
