//! The state space of a layer whose channels share modes (S5, LRU).
//!
//! ```text
//! z = Δ (−e^{log_decay} + i frequency),   a = e^z
//! s_t = a ∘ s_{t−1} + γ ∘ B u_t,   y_t = Re C s_t + D u_t,   γ = √(1 − |a|²)
//! ```
//!
//! Poles decay whatever a step does to them, and γ keeps the size of the states where one comes near
//! the unit circle, as in LRU. Δ is that of the source and is not trained: the modes of a layer have
//! rates and frequencies of their own. At the start the rows of B and the columns of C of a mode have
//! entries of one size, so that one learning rate fits both.
//!
//! # References
//! Orvieto et al. 2023, sections 3.3 and 3.4 (the exponential form of the poles, γ).

use candle_core::{DType, Result, Tensor, Var};
use hankelite::model::Block;
use hankelite::rounding::MapChoice;
use hankelite_control::{DiagonalSystem, SystemError, Time};
use hankelite_edge::padded;
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::nn::straight::Held;
use crate::nn::tensors::{TensorType, host, parameter, var};
use crate::nn::{Group, NetworkError, Parameter};

/// One system for all channels, in one or both directions of time.
pub(super) struct TrainableShared {
    log_decay: Var,
    frequency: Var,
    /// 2 × P × H: Re B and Im B.
    input: Var,
    /// Directions × H × 2 × P: Re C and −Im C.
    output: Var,
    /// The diagonal of D, or D.
    feedthrough: Var,
    /// How γ ∘ B is held where that is at few bits, and how C is, with D behind it where that is dense:
    /// as the maps of an image.
    held: [Option<Held>; 2],
    /// What the rates of decays and frequencies are multiplied with.
    scales: Option<[Tensor; 2]>,
    /// The systems that the parameters came from, forwards first, and the parameters they gave.
    source: Vec<DiagonalSystem>,
    initial: Numbers,
}

/// The parameters on the host.
#[derive(Clone, PartialEq, Default)]
struct Numbers {
    log_decay: Vec<f64>,
    frequency: Vec<f64>,
    input: Vec<f64>,
    output: Vec<f64>,
    feedthrough: Vec<f64>,
}

impl TrainableShared {
    /// # Errors
    /// [`NetworkError::Systems`] for other shapes than one square system in one direction or both,
    /// with the same modes and input weights; [`NetworkError::Pole`] for modes that do not decay.
    ///
    /// With a length the rates of poles are scaled for sequences of so many steps. B and C of a layer
    /// in one direction are held as chosen.
    pub(super) fn new(
        block: &Block,
        scaled_for: Option<usize>,
        choice: Option<MapChoice>,
        to: TensorType<'_>,
    ) -> std::result::Result<Self, NetworkError> {
        check(block)?;
        let source: Vec<DiagonalSystem> = block.all_systems().cloned().collect();
        let layer = block.name();
        let numbers = Numbers::of(&source).map_err(|fault| fault.at(layer))?;
        let (modes, channels) = source[0].input().shape();
        let outputs = &[source.len(), channels, 2, modes];
        let through: &[usize] = match numbers.feedthrough.len() > channels {
            true => &[channels, channels],
            false => &[channels],
        };
        let mut made = Self {
            log_decay: var(&numbers.log_decay, &[modes], to)?,
            frequency: var(&numbers.frequency, &[modes], to)?,
            input: var(&numbers.input, &[2, modes, channels], to)?,
            output: var(&numbers.output, outputs, to)?,
            feedthrough: var(&numbers.feedthrough, through, to)?,
            held: [None, None],
            scales: None,
            source,
            initial: numbers,
        };
        // As rounded to the network's type.
        made.initial = made.numbers()?;
        if let Some(choice) = choice.filter(|_| !made.is_bidirectional()) {
            let maps = [made.gained_input()?, made.output_map()?];
            let [input, output] = maps.map(|map| {
                let (outputs, inputs) = map.dims2()?;
                let matrix = DMatrix::from_vec(inputs, outputs, host(&map)?);
                Held::new(&matrix, choice, to)
            });
            made.held = [input?, output?];
        }
        if let Some(length) = scaled_for {
            let scales = pole_scales(&made.source, length);
            let tensor =
                |values: Vec<f64>| Tensor::from_vec(values, modes, to.device)?.to_dtype(to.dtype);
            made.scales = Some([tensor(scales.decay)?, tensor(scales.frequency)?]);
        }
        Ok(made)
    }

    /// P.
    pub(super) fn modes(&self) -> usize {
        self.source[0].order()
    }

    pub(super) fn is_bidirectional(&self) -> bool {
        self.source.len() > 1
    }

    /// Whether D is a matrix.
    pub(super) fn is_dense(&self) -> bool {
        self.feedthrough.rank() > 1
    }

    pub(super) fn parameters(&self, prefix: &str) -> Vec<Parameter> {
        let named = [
            ("log_decay", &self.log_decay, Group::Poles),
            ("frequency", &self.frequency, Group::Poles),
            ("input", &self.input, Group::Plain),
            ("weights", &self.output, Group::Plain),
            ("feedthrough", &self.feedthrough, Group::NoDecay),
        ];
        let mut named: Vec<Parameter> = named
            .map(|(name, var, group)| parameter(prefix, name, var, group))
            .into();
        for (one, scale) in named.iter_mut().zip(self.scales.iter().flatten()) {
            one.scale = Some(scale.clone());
        }
        let held = self.held.iter().zip(["input", "weights"]);
        named.extend(held.filter_map(|(held, name)| {
            let held = held.as_ref()?;
            held.parameter(&format!("{prefix}{name}."))
        }));
        named
    }

    fn step(&self) -> f64 {
        match self.source[0].time() {
            Time::Discrete { step } => step,
            Time::Continuous => 1.0,
        }
    }

    /// Re z, then Im z, in f64.
    pub(super) fn exponents(&self) -> Result<Tensor> {
        let step = self.step();
        let decay = (self.log_decay.to_dtype(DType::F64)?.exp()? * -step)?;
        let angle = (self.frequency.to_dtype(DType::F64)? * step)?;
        Tensor::cat(&[decay, angle], 0)
    }

    /// γ ∘ B, 2 P × H.
    fn gained_input(&self) -> Result<Tensor> {
        let decay = self.log_decay.to_dtype(DType::F64)?.exp()?;
        let square = (decay * (-2.0 * self.step()))?.exp()?;
        let gain = (1.0 - square)?.sqrt()?.to_dtype(self.input.dtype())?;
        let input = self.input.broadcast_mul(&gain.unsqueeze(1)?)?;
        input.flatten(0, 1)
    }

    /// C, H × 2 P; a dense D stands behind it, from a whole number of lanes on.
    fn output_map(&self) -> Result<Tensor> {
        let output = self.output.flatten(0, 1)?.flatten(1, 2)?;
        if !self.is_dense() {
            return Ok(output);
        }
        let output = output.pad_with_zeros(1, 0, self.padding())?;
        Tensor::cat(&[&output, self.feedthrough.as_tensor()], 1)
    }

    /// Zeros between C and a dense D.
    fn padding(&self) -> usize {
        padded(2 * self.modes()) - 2 * self.modes()
    }

    /// D, γ ∘ B and C as they are held.
    fn held_maps(&self) -> Result<[Tensor; 3]> {
        let [held_input, held_output] = &self.held;
        let mut input = self.gained_input()?;
        if let Some(held) = held_input {
            input = held.applied(&input.contiguous()?)?;
        }
        let mut through = self.feedthrough.as_tensor().clone();
        let mut output = self.output.as_tensor().clone();
        if let Some(held) = held_output {
            let map = held.applied(&self.output_map()?.contiguous()?)?;
            let parts = 2 * self.modes();
            output = map.narrow(1, 0, parts)?.contiguous()?;
            if self.is_dense() {
                let from = parts + self.padding();
                through = map.narrow(1, from, map.dim(1)? - from)?.contiguous()?;
            }
        }
        Ok([through, input, output])
    }

    /// D, γ ∘ B and C; not yet flat.
    pub(super) fn flat_parameters(&self) -> Result<Vec<Tensor>> {
        Ok(self.held_maps()?.into())
    }

    fn numbers(&self) -> Result<Numbers> {
        Ok(Numbers {
            log_decay: host(&self.log_decay)?,
            frequency: host(&self.frequency)?,
            input: host(&self.input)?,
            output: host(&self.output)?,
            feedthrough: host(&self.feedthrough)?,
        })
    }

    /// The systems of both directions. What was not trained at all comes back to the last bit.
    pub(super) fn systems(
        &self,
        layer: &str,
    ) -> std::result::Result<[Vec<DiagonalSystem>; 2], NetworkError> {
        let mut numbers = self.numbers()?;
        let is_held = self.held.iter().any(Option::is_some);
        let systems = match numbers == self.initial && !is_held {
            true => Ok(self.source.clone()),
            false => {
                let mut gained = None;
                if is_held {
                    let [through, input, output] = self.held_maps()?;
                    gained = Some(host(&input)?);
                    (numbers.feedthrough, numbers.output) = (host(&through)?, host(&output)?);
                }
                numbers.systems(self.source[0].time(), self.step(), gained)
            }
        };
        let mut forward = systems.map_err(|source| Fault::System(source).at(layer))?;
        let backward = forward.split_off(1);
        Ok([forward, backward])
    }
}

/// One system with as many outputs as inputs, or two with the same modes and input weights.
fn check(block: &Block) -> std::result::Result<(), NetworkError> {
    let refuse = |found: String, expected| {
        let layer = block.name().to_string();
        Err(NetworkError::Systems {
            layer,
            found,
            expected,
        })
    };
    let first = &block.systems()[0];
    let (inputs, outputs) = (first.input().ncols(), first.output().nrows());
    let count = block.systems().len();
    if count != 1 || inputs != outputs {
        return refuse(
            format!("found {count} systems with {inputs} inputs and {outputs} outputs each"),
            "one input and one output each, or one system with as many outputs as inputs",
        );
    }
    let Some(backward) = block.backward().first() else {
        return Ok(());
    };
    let same = |a: &DiagonalSystem, b: &DiagonalSystem| {
        (a.time(), a.exponents(), a.input()) == (b.time(), b.exponents(), b.input())
    };
    if !same(first, backward) {
        let found = "both directions have modes or input weights of their own".to_string();
        return refuse(found, "the same in both, as in S5");
    }
    match block.backward_from() {
        0 => Ok(()),
        _ => refuse(
            "the direction backwards in time starts at the next sample".to_string(),
            "the current sample, as in S5",
        ),
    }
}

/// Why a system cannot be held.
enum Fault {
    System(SystemError),
    Pole(Complex64),
}

impl Fault {
    fn at(self, layer: &str) -> NetworkError {
        let (layer, channel) = (layer.to_string(), 0);
        match self {
            Fault::System(source) => NetworkError::System {
                layer,
                channel,
                source,
            },
            Fault::Pole(pole) => NetworkError::Pole {
                layer,
                channel,
                pole,
                why: "does not decay, as every mode of a layer with several inputs must to be trained",
            },
        }
    }
}

/// √(1 − e^{2 Re z}).
fn gain(exponent: f64) -> f64 {
    (-(2.0 * exponent).exp_m1()).sqrt()
}

/// The size of the entries.
fn size<'a>(entries: impl Iterator<Item = &'a Complex64> + Clone) -> f64 {
    let count = entries.clone().count().max(1) as f64;
    (entries.map(Complex64::norm_sqr).sum::<f64>() / count).sqrt()
}

impl Numbers {
    fn of(systems: &[DiagonalSystem]) -> std::result::Result<Self, Fault> {
        let first = &systems[0];
        let mut numbers = Self::default();
        let (mut input, mut outputs) = (first.input().clone(), Vec::new());
        outputs.extend(systems.iter().map(|system| system.output().clone()));
        for (n, (&lambda, z)) in first
            .exponents()
            .iter()
            .zip(first.scaled_exponents())
            .enumerate()
        {
            if z.re >= 0.0 {
                return Err(Fault::Pole(lambda));
            }
            numbers.log_decay.push((-lambda.re).ln());
            numbers.frequency.push(lambda.im);
            input.row_mut(n).iter_mut().for_each(|b| *b /= gain(z.re));
            let of_input = size(input.row(n).iter());
            let columns = outputs
                .iter()
                .flat_map(|c| c.column(n).iter().copied().collect::<Vec<_>>());
            let of_output = size(columns.collect::<Vec<_>>().iter());
            let even = (of_output / of_input).sqrt();
            if even > 0.0 && even.is_finite() {
                input.row_mut(n).iter_mut().for_each(|b| *b *= even);
                let columns = outputs.iter_mut();
                columns.for_each(|c| c.column_mut(n).iter_mut().for_each(|c| *c /= even));
            }
        }
        // By rows.
        let rows = input.transpose();
        numbers.input.extend(rows.iter().map(|b| b.re));
        numbers.input.extend(rows.iter().map(|b| b.im));
        for row in outputs.iter().flat_map(|c| c.row_iter()) {
            numbers.output.extend(row.iter().map(|c| c.re));
            numbers.output.extend(row.iter().map(|c| -c.im));
        }
        let through = first.feedthrough();
        numbers.feedthrough = match is_diagonal(through) {
            true => through.diagonal().as_slice().to_vec(),
            false => through.transpose().as_slice().to_vec(),
        };
        Ok(numbers)
    }

    /// The systems; `gained` stands for γ ∘ B where it is held.
    fn systems(
        &self,
        time: Time,
        step: f64,
        gained: Option<Vec<f64>>,
    ) -> std::result::Result<Vec<DiagonalSystem>, SystemError> {
        let modes = self.log_decay.len();
        let channels = self.input.len() / (2 * modes);
        let poles = self.log_decay.iter().zip(&self.frequency);
        let exponents: Vec<Complex64> = poles
            .map(|(log, im)| Complex64::new(-log.exp(), *im))
            .collect();
        let (re, im) = (gained.as_ref().unwrap_or(&self.input)).split_at(modes * channels);
        let input = DMatrix::from_fn(modes, channels, |n, h| {
            let at = n * channels + h;
            let factor = match gained {
                None => gain(step * exponents[n].re),
                Some(_) => 1.0,
            };
            Complex64::new(re[at], im[at]) * factor
        });
        let square = DMatrix::from_row_slice;
        let through = match self.feedthrough.len() > channels {
            true => square(channels, channels, &self.feedthrough),
            false => DMatrix::from_diagonal(&self.feedthrough.clone().into()),
        };
        let each = self.output.chunks_exact(2 * modes * channels).enumerate();
        let systems = each.map(|(direction, rows)| {
            let output = DMatrix::from_fn(channels, modes, |h, n| {
                let row = &rows[h * 2 * modes..][..2 * modes];
                Complex64::new(row[n], -row[modes + n])
            });
            // The direction backwards in time has none.
            let through = &through * f64::from(u8::from(direction == 0));
            DiagonalSystem::new(time, exponents.clone(), input.clone(), output, through)
        });
        systems.collect()
    }
}

fn is_diagonal(matrix: &DMatrix<f64>) -> bool {
    let places = (0..matrix.ncols()).flat_map(|j| (0..matrix.nrows()).map(move |i| (i, j)));
    let mut off = places.filter(|(i, j)| i != j);
    off.all(|place| matrix[place] == 0.0)
}

/// What the rates of poles are multiplied with, one for each mode.
#[derive(Debug)]
struct PoleScales {
    decay: Vec<f64>,
    frequency: Vec<f64>,
}

/// min(1, ‖k‖/‖∂k/∂θ‖) for a parameter θ of a mode of the kernel k, D in its first sample, over the
/// length of the sequences and with the norm of all entries, B and C held: as for layers with one
/// system for each channel.
///
/// ```text
/// ‖Re Σ_n w_n X_n‖² = ½ Re Σ_nm (w_n w̄_m ⟨X_n, X_m⟩ + w_n w_m ⟨X_n, X̄_m⟩),   X_n = c_n b_nᵀ
/// ```
fn pole_scales(systems: &[DiagonalSystem], length: usize) -> PoleScales {
    let exponents = systems[0].scaled_exponents();
    let norm = kernel_norm(systems, &exponents, length);
    let (mut decay, mut frequency) = (Vec::new(), Vec::new());
    for (n, &z) in exponents.iter().enumerate() {
        let [plain, turned] = mode_products(systems, n, n);
        let (mut by_decay, mut by_frequency) = (0.0, 0.0);
        let square = (2.0 * z.re).exp();
        let of_gain = -square / (1.0 - square);
        let lambda = systems[0].exponents()[n];
        // The step: z = λΔ.
        let step = if lambda.norm() > 0.0 {
            z.norm() / lambda.norm()
        } else {
            1.0
        };
        for l in 0..length {
            let power = (z * l as f64).exp();
            let size = |w: Complex64| 0.5 * (w.norm_sqr() * plain.re + (w * w * turned).re);
            by_decay += size(power * (z.re * (of_gain + l as f64)));
            by_frequency += size(power * Complex64::I * (step * l as f64));
        }
        let scale = |steep: f64| if steep > norm { norm / steep } else { 1.0 };
        decay.push(scale(by_decay.max(0.0).sqrt()));
        frequency.push(scale(by_frequency.max(0.0).sqrt()));
    }
    PoleScales { decay, frequency }
}

/// ⟨X_n, X_m⟩ and ⟨X_n, X̄_m⟩ of the modes n and m, over all directions.
fn mode_products(systems: &[DiagonalSystem], n: usize, m: usize) -> [Complex64; 2] {
    let input = systems[0].input();
    let (b, other) = (input.row(n), input.row(m));
    let pairs = || b.iter().zip(other.iter());
    let of_input = [
        pairs().map(|(b, o)| b * o.conj()).sum::<Complex64>(),
        pairs().map(|(b, o)| b * o).sum::<Complex64>(),
    ];
    let mut products = [Complex64::ZERO; 2];
    for system in systems {
        let (c, other) = (system.output().column(n), system.output().column(m));
        let pairs = || c.iter().zip(other.iter());
        products[0] += of_input[0] * pairs().map(|(c, o)| c * o.conj()).sum::<Complex64>();
        products[1] += of_input[1] * pairs().map(|(c, o)| c * o).sum::<Complex64>();
    }
    products
}

/// ‖k‖ of so many samples.
fn kernel_norm(systems: &[DiagonalSystem], exponents: &[Complex64], length: usize) -> f64 {
    let sum = |z: Complex64| {
        let (whole, one) = ((z * length as f64).exp(), z.exp());
        (1.0 - whole) / (1.0 - one)
    };
    let mut square = 0.0;
    for (n, &z) in exponents.iter().enumerate() {
        for (m, &other) in exponents.iter().enumerate() {
            let [plain, turned] = mode_products(systems, n, m);
            square += 0.5 * (plain * sum(z + other.conj()) + turned * sum(z + other)).re;
        }
    }
    let first = (systems[0].output() * systems[0].input()).map(|k| k.re);
    let through = systems[0].feedthrough();
    square += (first.clone() + through).norm_squared() - first.norm_squared();
    square.max(0.0).sqrt()
}

#[cfg(test)]
mod tests;
