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

use candle_core::{DType, Result, Tensor, Var};
use hankelite_control::{DiagonalSystem, SystemError, Time, undo_gain};
use num_complex::Complex64;

#[cfg(feature = "cuda")]
use crate::nn::gpu::{self, leaf::Leaf};
use crate::nn::modes::{Formulas, modes};
use crate::nn::parameterisation::ModeForm;
use crate::nn::tensors::{TensorType, host, parameter, var};
use crate::nn::{Group, NetworkError, Parameter, Parameterisation, modes_plain};

/// The decay of slots that a channel of lower order leaves empty.
const EMPTY_DECAY: f64 = -0.5;

/// The parameters of all channels.
pub(super) struct TrainableDynamics {
    form: ModeForm,
    log_step: Var,
    /// log(−Re λ), or Re λ for the softmax; channels × modes.
    decay: Var,
    frequency: Var,
    /// C or W, channels × modes × 2.
    weights: Var,
    /// 1 for modes in use, 0 for those that started without weight and stay so; `None` where all are.
    used: Option<Tensor>,
    /// What the rates of decays and frequencies are multiplied with.
    scales: Option<[Tensor; 2]>,
    /// Whether steps and poles are those of other dynamics, which list them.
    shares_poles: bool,
    /// The systems that the parameters came from, and the parameters they gave.
    source: Vec<DiagonalSystem>,
    initial: Numbers,
}

/// The parameters on the host.
#[derive(Default, PartialEq, Clone)]
struct Numbers {
    log_step: Vec<f64>,
    decay: Vec<f64>,
    frequency: Vec<f64>,
    weights: Vec<f64>,
}

impl TrainableDynamics {
    /// With room for `modes` modes in every channel. A mode without weight, as a file holds it where a
    /// channel has a lower order than others, is not in use.
    ///
    /// # Errors
    /// [`NetworkError::Pole`] where the parameterisation cannot hold a mode.
    pub(super) fn new(
        layer: &str,
        systems: &[DiagonalSystem],
        modes: usize,
        form: ModeForm,
        to: TensorType<'_>,
    ) -> std::result::Result<Self, NetworkError> {
        let channels = systems.len();
        let mut numbers = Numbers::default();
        for (channel, system) in systems.iter().enumerate() {
            let fault = |why: Fault| why.at(layer, channel);
            numbers.push(system, form, modes).map_err(fault)?;
        }
        let used = used(systems, modes).map_err(|why| why.at(layer, 0))?;
        let is_partial = used.contains(&0.0);
        let mut made = Self {
            form,
            log_step: var(&numbers.log_step, &[channels], to)?,
            decay: var(&numbers.decay, &[channels, modes], to)?,
            frequency: var(&numbers.frequency, &[channels, modes], to)?,
            weights: var(&numbers.weights, &[channels, modes, 2], to)?,
            used: is_partial
                .then(|| Tensor::from_vec(used, (channels, modes), to.device))
                .transpose()?,
            scales: None,
            shares_poles: false,
            source: systems.to_vec(),
            initial: numbers,
        };
        // As rounded to the network's type.
        made.initial = made.numbers()?;
        if form.scaled {
            let scales = pole_scales(systems, form, modes).map_err(|why| why.at(layer, 0))?;
            let tensor = |values: Vec<f64>| {
                Tensor::from_vec(values, (channels, modes), to.device)?.to_dtype(to.dtype)
            };
            made.scales = Some([tensor(scales.decay)?, tensor(scales.frequency)?]);
        }
        Ok(made)
    }

    /// With the steps and poles of other dynamics in place of its own equal ones: trained together,
    /// they stay equal.
    pub(super) fn with_poles_of(self, other: &Self) -> Self {
        Self {
            log_step: other.log_step.clone(),
            decay: other.decay.clone(),
            frequency: other.frequency.clone(),
            scales: other.scales.clone(),
            shares_poles: true,
            ..self
        }
    }

    /// Modes of every channel, empty slots included.
    pub(super) fn modes(&self) -> usize {
        self.decay.dims()[1]
    }

    /// Whether the parameterisation holds modes that grow.
    pub(super) fn may_grow(&self) -> bool {
        match self.form.kind {
            Parameterisation::DssSoftmax => true,
            Parameterisation::S4d | Parameterisation::DssExp => false,
        }
    }

    /// Named with a leading `prefix`.
    pub(super) fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let decay = match self.form.kind {
            Parameterisation::DssSoftmax => "decay",
            Parameterisation::S4d | Parameterisation::DssExp => "log_decay",
        };
        let named = [
            ("log_step", &self.log_step, Group::Dynamics),
            (decay, &self.decay, Group::Poles),
            ("frequency", &self.frequency, Group::Poles),
            ("weights", &self.weights, Group::Plain),
        ];
        // The weights alone stand last.
        let own = if self.shares_poles { 3 } else { 0 };
        let named = named.into_iter().skip(own);
        let mut named: Vec<Parameter> = named
            .map(|(name, var, group)| parameter(prefix, name, var, group))
            .collect();
        let poles = named.iter_mut().filter(|one| one.group == Group::Poles);
        for (one, scale) in poles.zip(self.scales.iter().flatten()) {
            one.scale = Some(scale.clone());
        }
        named
    }

    fn numbers(&self) -> Result<Numbers> {
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
                let re = match self.form.kind {
                    Parameterisation::DssSoftmax => numbers.decay[at],
                    Parameterisation::S4d | Parameterisation::DssExp => -numbers.decay[at].exp(),
                };
                let lambda = Complex64::new(re, numbers.frequency[at]);
                let weight = Complex64::new(numbers.weights[2 * at], numbers.weights[2 * at + 1]);
                residues.push(weight * self.form.gain(lambda, step));
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
    let runs = all.chunk_by(|a, b| are_equal(a, b));
    let parts = runs.map(|run| modes_of_run(run, length));
    Tensor::cat(&parts.collect::<Result<Vec<_>>>()?, 0)
}

/// Whether they go through the formulas together.
fn are_equal(a: &TrainableDynamics, b: &TrainableDynamics) -> bool {
    (a.form, a.decay.dims()) == (b.form, b.decay.dims())
}

fn modes_of_run(run: &[&TrainableDynamics], length: usize) -> Result<Tensor> {
    let joined = |part: fn(&TrainableDynamics) -> &Var| {
        let vars: Vec<&Tensor> = run.iter().map(|one| part(one).as_tensor()).collect();
        Tensor::cat(&vars, 0)?.to_dtype(DType::F64)
    };
    let used = used_of_run(run)?;
    let (decay, frequency) = (joined(|one| &one.decay)?, joined(|one| &one.frequency)?);
    let (log_step, weights) = (joined(|one| &one.log_step)?, joined(|one| &one.weights)?);
    let mut formulas = formulas_of_run(run, length);
    let poles = Tensor::cat(&[&decay, &frequency], 0)?;
    if !log_step.device().is_cpu() {
        return modes_plain::modes(&formulas, used, [&log_step, &poles, &weights]);
    }
    let host = used.map(|used| used.flatten_all()?.to_vec1::<f64>());
    formulas.used = host.transpose()?.map(Arc::new);
    modes(formulas, [&log_step, &poles, &weights])
}

fn formulas_of_run(run: &[&TrainableDynamics], length: usize) -> Formulas {
    Formulas {
        form: run[0].form,
        length,
        layers: run.len(),
        used: None,
    }
}

/// 1 for modes in use; `None` where all are.
fn used_of_run(run: &[&TrainableDynamics]) -> Result<Option<Tensor>> {
    if run.iter().all(|one| one.used.is_none()) {
        return Ok(None);
    }
    let used = run.iter().map(|one| match &one.used {
        Some(used) => Ok(used.clone()),
        None => Tensor::ones(one.decay.shape(), DType::F64, one.decay.device()),
    });
    Tensor::cat(&used.collect::<Result<Vec<_>>>()?, 0).map(Some)
}

/// What [`modes_for`] takes of those of equal order, in one row.
#[cfg(feature = "cuda")]
pub(super) struct ModesLeaf {
    pub(super) leaf: Leaf,
    formulas: Formulas,
    used: Option<Tensor>,
    /// Steps Δ.
    rows: usize,
}

#[cfg(feature = "cuda")]
impl ModesLeaf {
    /// For each run of equal order; `None` where one of them cannot be a leaf.
    pub(super) fn of_all(all: &[&TrainableDynamics]) -> Result<Option<Vec<Self>>> {
        let runs = all.chunk_by(|a, b| are_equal(a, b));
        runs.map(Self::of_run).collect()
    }

    fn of_run(run: &[&TrainableDynamics]) -> Result<Option<Self>> {
        let mut row = Vec::new();
        for part in [
            |one: &TrainableDynamics| one.log_step.as_tensor().clone(),
            |one: &TrainableDynamics| one.decay.as_tensor().clone(),
            |one: &TrainableDynamics| one.frequency.as_tensor().clone(),
            |one: &TrainableDynamics| one.weights.as_tensor().clone(),
        ] {
            row.extend(run.iter().map(|one| part(one)));
        }
        let rows = run.iter().map(|one| one.log_step.elem_count()).sum();
        let leaf = Leaf::new(row, DType::F64)?;
        let of_leaf = |leaf| {
            Ok(Self {
                leaf,
                formulas: formulas_of_run(run, 0),
                used: used_of_run(run)?,
                rows,
            })
        };
        leaf.map(of_leaf).transpose()
    }

    /// As [`modes_for`] gives them.
    pub(super) fn modes(&self, length: usize) -> Result<Tensor> {
        let formulas = Formulas {
            length,
            ..self.formulas.clone()
        };
        let row = (self.leaf.row()?, self.rows);
        gpu::modes::modes(&formulas, self.used.clone(), row)
    }
}

/// For each channel, 1 for its modes with a weight and 0 for the others of its `modes` slots.
fn used(systems: &[DiagonalSystem], modes: usize) -> std::result::Result<Vec<f64>, Fault> {
    let mut used = Vec::with_capacity(systems.len() * modes);
    for system in systems {
        let residues = system.residues().map_err(Fault::System)?;
        let weighted = residues.iter().map(|&residue| residue != Complex64::ZERO);
        let slots = weighted.chain(std::iter::repeat(false)).take(modes);
        used.extend(slots.map(|weighted| f64::from(u8::from(weighted))));
    }
    Ok(used)
}

/// What the rates of poles are multiplied with, channels × modes each.
#[derive(Default)]
struct PoleScales {
    decay: Vec<f64>,
    frequency: Vec<f64>,
}

/// The scales of all channels: for a parameter θ of a mode of the kernel k, D in its first sample,
///
/// ```text
/// min(1, ‖k‖/‖∂k/∂θ‖)
/// ```
///
/// over the length of the sequences, C held. It is 1 for modes that stand apart. Two real poles that
/// were nearly one, as a conjugate pair of a tiny frequency and a huge weight, turn the kernel over at
/// a small step of either, and it is as small.
fn pole_scales(
    systems: &[DiagonalSystem],
    form: ModeForm,
    modes: usize,
) -> std::result::Result<PoleScales, Fault> {
    let mut scales = PoleScales::default();
    for system in systems {
        let residues = system.residues().map_err(Fault::System)?;
        let Time::Discrete { step } = system.time() else {
            continue;
        };
        let length = form.length;
        let powers = |lambda: Complex64| {
            let pole = (lambda * step).exp();
            std::iter::successors(Some(Complex64::ONE), move |power| Some(power * pole))
                .take(length)
        };
        let mut kernel = vec![0.0; length];
        kernel[0] = system.feedthrough()[(0, 0)];
        for (&lambda, residue) in system.exponents().iter().zip(&residues) {
            for (k, power) in kernel.iter_mut().zip(powers(lambda)) {
                *k += (residue * power).re;
            }
        }
        let norm = kernel.iter().map(|k| k * k).sum::<f64>().sqrt();
        for (&lambda, residue) in system.exponents().iter().zip(&residues) {
            let slope = gain_slope(form, lambda, step);
            // ∂k/∂Re λ and ∂k/∂Im λ are the parts of this.
            let each = powers(lambda).enumerate();
            let slopes = each.map(|(l, power)| residue * power * (slope + step * l as f64));
            let (mut real, mut imaginary) = (0.0, 0.0);
            for slope in slopes {
                real += slope.re * slope.re;
                imaginary += slope.im * slope.im;
            }
            let scale = |steep: f64| if steep > norm { norm / steep } else { 1.0 };
            scales.frequency.push(scale(imaginary.sqrt()));
            scales.decay.push(match form.kind {
                Parameterisation::DssSoftmax => scale(real.sqrt()),
                Parameterisation::S4d | Parameterisation::DssExp => {
                    scale(real.sqrt() * lambda.re.abs())
                }
            });
        }
        for _ in system.order()..modes {
            scales.frequency.push(1.0);
            scales.decay.push(1.0);
        }
    }
    Ok(scales)
}

/// d log gain/dλ, by a difference.
fn gain_slope(form: ModeForm, lambda: Complex64, step: f64) -> Complex64 {
    let h = 1e-5 * (lambda.norm() + 1e-3 / step);
    let (gain, ahead) = (form.gain(lambda, step), form.gain(lambda + h, step));
    let slope = (ahead / gain - 1.0) / h;
    if slope.is_finite() {
        slope
    } else {
        Complex64::ZERO
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
    /// Appends one channel, filled up to `modes`.
    fn push(
        &mut self,
        system: &DiagonalSystem,
        form: ModeForm,
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
            let weight = undo_gain(residue, form.gain(lambda, step));
            if form.kind != Parameterisation::DssSoftmax && lambda.re >= 0.0 {
                let why = "does not decay, which only the parameterisation dss-softmax can hold";
                return Err(Fault::Pole(lambda, why));
            }
            if !weight.is_finite() {
                let why = "has a weight that is not finite in this parameterisation";
                return Err(Fault::Pole(lambda, why));
            }
            self.push_mode(form.kind, lambda, weight);
        }
        for _ in system.order()..modes {
            self.push_mode(form.kind, Complex64::from(EMPTY_DECAY), Complex64::ZERO);
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

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    /// A mode that grows to e^{390} over the kernel: its residue is below 1e-154, the square of its
    /// gain no double.
    #[test]
    fn a_growing_mode_is_held() {
        let (lambda, step, length) = (Complex64::new(3.81, 1.68), 0.1, 1024);
        let kind = Parameterisation::DssSoftmax;
        let scaled = false;
        let form = ModeForm {
            kind,
            length,
            scaled,
        };
        let weight = Complex64::new(0.3, -0.8);
        let residue = weight * form.gain(lambda, step);
        assert!(residue.norm() > 0.0 && residue.norm_sqr() == 0.0);
        let time = Time::Discrete { step };
        let system = DiagonalSystem::siso(time, vec![lambda], &[residue], 0.0).unwrap();
        let to = TensorType {
            dtype: DType::F64,
            device: &Device::Cpu,
        };
        let made = TrainableDynamics::new("layer", &[system], 1, form, to).unwrap();
        let found = made.numbers().unwrap().weights;
        let apart = Complex64::new(found[0], found[1]) - weight;
        assert!(apart.norm() < 1e-12, "{found:?}");
    }
}
