//! The diagonal kernels of the full state-spaces/s4 repository: v2.1, v3 (also in H3 and safari)
//! and v4.
//!
//! ```text
//! v2.1  Δ = e^{log_dt}   λ = −e^{log_w_real} + i w_imag    C alone
//! v3    Δ = e^{log_dt}   λ = −T(inv_A_real) + i A_imag     B C
//! v4    Δ = T_dt(inv_dt) λ = −T(A_real) − i A_imag         B C
//!
//! zoh       a = e^{λΔ}                   K[l] = 2 Re Σ_n B_n C_n (e^{λΔ} − 1)/λ a^l
//! bilinear  a = (1 + λΔ/2)/(1 − λΔ/2)    K[l] = 2 Re Σ_n B_n C_n Δ/(1 − λΔ/2) a^l
//! dss       a = e^{λΔ}                   K[l] = Re Σ_n B_n C_n · softmax row of DSS, for a length L
//! ```
//!
//! A and B have S copies, channel h takes copy h mod S; after a reduction there are as many copies
//! as channels (`n_ssm = d_model`). C has one row of channels for each kernel, twice as many as D
//! where the layer is bidirectional. Written files hold B = 1.

use hankelite_control::{SystemClass, dss_softmax_gain, from_bilinear, to_bilinear, zoh_gain};
use num_complex::Complex64;

use crate::checkpoint::declared::{Declared, Discretisation};
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::bank::Modes;
use crate::checkpoint::layout::transform::Transform;
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, bank, not_representable};
use crate::checkpoint::tensors::{Tensors, interleave};

/// What the `relu` of version 3 adds to a decay.
const RELU_FLOOR: f64 = 1e-4;

/// Which of the public versions a layer is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::checkpoint) enum Version {
    V2,
    V3,
    V4,
}

/// The tensor names and settings of one layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct S4Repo {
    pub(in crate::checkpoint) layer: String,
    pub(in crate::checkpoint) kernel: String,
    /// Name of D; a bare kernel has none.
    pub(in crate::checkpoint) feedthrough: Option<String>,
    pub(in crate::checkpoint) version: Version,
    pub(in crate::checkpoint) settled: Declared,
}

/// One parameter per copy and mode.
struct Grid {
    copies: usize,
    modes: usize,
    values: Vec<Complex64>,
}

impl Grid {
    fn row(&self, channel: usize) -> &[Complex64] {
        let copy = channel % self.copies;
        &self.values[copy * self.modes..(copy + 1) * self.modes]
    }
}

impl S4Repo {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.kernel)
    }

    /// Zoh, bilinear or dss: others are refused before.
    fn discretisation(&self) -> Discretisation {
        self.settled.discretisation.unwrap_or(match self.version {
            Version::V3 => Discretisation::Bilinear,
            Version::V2 | Version::V4 => Discretisation::Zoh,
        })
    }

    fn real_transform(&self) -> Transform {
        match self.version {
            Version::V2 => Transform::Exp,
            _ => self.settled.real_transform.unwrap_or(Transform::Exp),
        }
    }

    fn step_transform(&self) -> Transform {
        match self.version {
            Version::V4 => self.settled.dt_transform.unwrap_or(Transform::Exp),
            _ => Transform::Exp,
        }
    }

    fn names(&self) -> [String; 3] {
        let names = match self.version {
            Version::V2 => ["log_dt", "log_w_real", "w_imag"],
            Version::V3 => ["log_dt", "inv_A_real", "A_imag"],
            Version::V4 => ["inv_dt", "A_real", "A_imag"],
        };
        names.map(|tensor| self.name(tensor))
    }

    /// Added to T(A_real) before the sign.
    fn floor(&self) -> f64 {
        match (self.version, self.real_transform()) {
            (Version::V3, Transform::Relu) => RELU_FLOOR,
            _ => 0.0,
        }
    }

    /// The sign of the stored imaginary part.
    fn sign(&self) -> f64 {
        if self.version == Version::V4 {
            -1.0
        } else {
            1.0
        }
    }

    /// Steps, (H) or one for each mode, (H, N).
    fn steps(&self, tensors: &Tensors<'_>) -> Result<(usize, Vec<f64>), Fault> {
        let name = &self.names()[0];
        let found = tensors.values(name, "[channels], [channels, 1] or [channels, modes]")?;
        let transform = self.step_transform();
        let steps = found.data.iter().map(|&x| transform.apply(x)).collect();
        match found.shape.as_slice() {
            &[channels] | &[channels, _] if channels > 0 => Ok((channels, steps)),
            _ => Err(tensors.wrong_shape(name, found.shape, "[channels] or [channels, modes]")),
        }
    }

    fn poles(&self, tensors: &Tensors<'_>, channels: usize) -> Result<Grid, Fault> {
        let [_, real, imaginary] = self.names();
        let decay = tensors.values(&real, "[copies, modes]")?;
        let &[copies, modes] = decay.shape.as_slice() else {
            return Err(tensors.wrong_shape(&real, decay.shape, "[copies, modes]"));
        };
        if copies == 0 || modes == 0 || !channels.is_multiple_of(copies) {
            let expected = format!("[copies, modes], copies a divisor of {channels} channels");
            return Err(tensors.wrong_shape(&real, decay.shape, &expected));
        }
        let frequency = match tensors.contains(&imaginary) {
            true => {
                let expected = format!("[{copies}, {modes}]");
                tensors
                    .shaped(&imaginary, &[&[copies, modes]], &expected)?
                    .data
            }
            // Version 4 with is_real stores none.
            false => vec![0.0; copies * modes],
        };
        let transform = self.real_transform();
        let parts = decay.data.iter().zip(&frequency);
        let values = parts
            .map(|(&a, &b)| Complex64::new(-transform.apply(a) - self.floor(), self.sign() * b));
        Ok(Grid {
            copies,
            modes,
            values: values.collect(),
        })
    }

    /// Whether version 4 stores real numbers only (`is_real`).
    fn is_real(&self, tensors: &Tensors<'_>) -> bool {
        let [_, real, imaginary] = self.names();
        self.version == Version::V4 && tensors.contains(&real) && !tensors.contains(&imaginary)
    }

    /// B or C.
    fn weights(
        &self,
        tensors: &Tensors<'_>,
        name: &str,
    ) -> Result<(Vec<usize>, Vec<Complex64>), Fault> {
        let name = self.name(name);
        if !self.is_real(tensors) {
            return tensors.complex(&name, &[]);
        }
        let found = tensors.values(&name, "real weights")?;
        Ok((
            found.shape,
            found.data.into_iter().map(Complex64::from).collect(),
        ))
    }

    fn input(&self, tensors: &Tensors<'_>, poles: &Grid) -> Result<Grid, Fault> {
        let (copies, modes) = (poles.copies, poles.modes);
        let (shape, values) = match self.version {
            Version::V2 => (vec![copies, modes], vec![Complex64::ONE; copies * modes]),
            _ => self.weights(tensors, "B")?,
        };
        if shape != [copies, modes] && shape != [1, copies, modes] {
            let expected = format!("[{copies}, {modes}] or [1, {copies}, {modes}]");
            return Err(tensors.wrong_shape(&self.name("B"), shape, &expected));
        }
        Ok(Grid {
            copies,
            modes,
            values,
        })
    }

    /// C, kernels × channels × modes.
    fn output(
        &self,
        tensors: &Tensors<'_>,
        channels: usize,
        modes: usize,
    ) -> Result<(usize, Vec<Complex64>), Fault> {
        let (shape, c) = self.weights(tensors, "C")?;
        match shape.as_slice() {
            &[kernels, h, n] if kernels > 0 && (h, n) == (channels, modes) => Ok((kernels, c)),
            _ => {
                let expected = format!("[kernels, {channels}, {modes}] complex numbers");
                Err(tensors.wrong_shape(&self.name("C"), shape, &expected))
            }
        }
    }

    /// Exponent times step, and the factor of B C.
    fn discretised(&self, lambda: Complex64, step: f64) -> (Complex64, Complex64) {
        let z = lambda * step;
        match self.discretisation() {
            Discretisation::Bilinear => (from_bilinear(z), 2.0 * step / (1.0 - 0.5 * z)),
            Discretisation::Dss => (z, dss_softmax_gain(lambda, z, self.length())),
            _ => (z, 2.0 * zoh_gain(lambda, step)),
        }
    }

    /// λ of an exponent times step.
    fn continuous(&self, exponent: Complex64, step: f64) -> Complex64 {
        match self.discretisation() {
            Discretisation::Bilinear => to_bilinear(exponent) / step,
            _ => exponent / step,
        }
    }

    fn length(&self) -> usize {
        let length = self.settled.length;
        length.expect("the reader asks for L before it decodes")
    }

    /// Whether the limit on frequencies leaves a mode out.
    /// `step` is that of the file, at any rate.
    fn masked(&self, lambda: Complex64, step: f64) -> bool {
        let frequency = step * lambda.im.abs() / std::f64::consts::TAU;
        self.settled
            .bandlimit
            .is_some_and(|limit| frequency >= 0.5 * limit)
    }

    /// The modes of a channel, `factor` being what the steps of the file were multiplied by.
    fn channel(
        &self,
        steps: &[f64],
        factor: f64,
        lambdas: &[Complex64],
        weights: &[Vec<Complex64>],
    ) -> Modes {
        let equal = steps.iter().all(|step| *step == steps[0]);
        // The softmax of DSS gives weights to a mode without a step, too, which is then refused.
        let is_held = |step: f64| step != 0.0 || self.discretisation() == Discretisation::Dss;
        let held = steps.iter().filter(|step| is_held(**step));
        let logs: Vec<f64> = held.map(|step| step.ln()).collect();
        let step = match logs.len() {
            0 => bank::STEP_OF_NONE,
            _ if equal => steps[0],
            count => (logs.iter().sum::<f64>() / count as f64).exp(),
        };
        let stored = |n: usize| if steps.len() == 1 { steps[0] } else { steps[n] };
        let of_mode = |n: usize| if is_held(stored(n)) { stored(n) } else { step };
        let modes = lambdas.iter().enumerate();
        let (mut exponents, mut gains) = (Vec::new(), Vec::new());
        for (n, &lambda) in modes {
            let (exponent, gain) = self.discretised(lambda, of_mode(n));
            exponents.push(match self.discretisation() {
                // To the last digit, so that what is written back is what was read.
                Discretisation::Zoh | Discretisation::Dss if equal => lambda,
                _ => exponent / step,
            });
            gains.push(
                match is_held(stored(n)) && !self.masked(lambda, of_mode(n) / factor) {
                    true => gain,
                    false => Complex64::ZERO,
                },
            );
        }
        let residues = weights.iter().map(|weights| {
            let pairs = weights.iter().zip(&gains);
            pairs.map(|(weight, gain)| weight * gain).collect()
        });
        Modes {
            step,
            exponents,
            residues: residues.collect(),
        }
    }
}

impl Layout for S4Repo {
    fn family(&self) -> &'static str {
        match self.version {
            Version::V2 => "S4D (state-spaces/s4 v2.1)",
            Version::V3 => "S4D (state-spaces/s4 v3)",
            Version::V4 => "S4D (state-spaces/s4 v4)",
        }
    }

    fn class(&self, tensors: &Tensors<'_>) -> Option<SystemClass> {
        self.is_real(tensors).then_some(SystemClass::RealPoles)
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let (channels, steps) = self.steps(tensors)?;
        let steps = match self.discretisation() {
            // The softmax divides by a sum over L steps.
            Discretisation::Dss => steps,
            _ => tensors.at_rate(steps),
        };
        let poles = self.poles(tensors, channels)?;
        let each = steps.len() / channels;
        if each != 1 && each != poles.modes {
            let expected = format!("[{channels}, 1] or [{channels}, {}]", poles.modes);
            return Err(tensors.wrong_shape(&self.names()[0], vec![channels, each], &expected));
        }
        if self.version == Version::V3 {
            // A copy of the first A, which no forward pass reads.
            tensors.set_aside(&self.name("A"));
        }
        let input = self.input(tensors, &poles)?;
        let (kernels, c) = self.output(tensors, channels, poles.modes)?;
        let name = self.feedthrough.as_deref();
        let through = tensors.feedthrough(name, channels, kernels)?;
        let bank = (0..channels).map(|h| {
            let weights = (0..kernels).map(|k| {
                let own = &c[(k * channels + h) * poles.modes..][..poles.modes];
                own.iter().zip(input.row(h)).map(|(c, b)| c * b).collect()
            });
            let weights: Vec<Vec<Complex64>> = weights.collect();
            let steps = &steps[h * each..(h + 1) * each];
            self.channel(steps, tensors.factor(), poles.row(h), &weights)
        });
        Ok(Dynamics {
            note: bank::note_of_no_step(&self.layer, &steps, channels),
            ..bank::systems(&self.layer, bank, &through)?
        })
    }

    fn encode(&self, dynamics: &Dynamics, tensors: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let bank = bank::modes_of(&self.layer, dynamics)?;
        let mut encoded = vec![self.encode_steps(&bank, tensors)?];
        let lambdas = self.lambdas(&bank);
        let copies = self.copies(&lambdas, bank.len(), tensors);
        encoded.extend(self.encode_poles(&bank, &lambdas, copies, tensors)?);
        encoded.extend(self.encode_weights(&bank, &lambdas, copies, tensors));
        if let Some(name) = &self.feedthrough {
            let through = bank::feedthrough_of(dynamics);
            let shape = vec![through.len() / bank.len(), bank.len()];
            encoded.push(match tensors.contains(name) {
                true => Encoded::feedthrough(name.clone(), through),
                false => Encoded::new_feedthrough(name.clone(), shape, through),
            });
        }
        Ok(encoded)
    }
}

impl S4Repo {
    /// λ of every channel and mode.
    fn lambdas(&self, bank: &[Modes]) -> Vec<Complex64> {
        let modes = bank.iter().flat_map(|modes| {
            let exponents = modes.exponents.iter();
            exponents.map(|exponent| self.continuous(exponent * modes.step, modes.step))
        });
        modes.collect()
    }

    /// As many copies of the poles as the file has, where that many do; else one for each channel.
    fn copies(&self, lambdas: &[Complex64], channels: usize, tensors: &Tensors<'_>) -> usize {
        let stored = match tensors.contains(&self.names()[1]) {
            true => self
                .poles(tensors, channels)
                .map_or(channels, |grid| grid.copies),
            false => channels,
        };
        let rows = stored * (lambdas.len() / channels);
        match bank::all_same(lambdas, rows) {
            true => stored,
            false => channels,
        }
    }

    fn encode_steps(&self, bank: &[Modes], tensors: &Tensors<'_>) -> Result<Encoded, Fault> {
        let stored = match tensors.contains(&self.names()[0]) {
            true => self.steps(tensors)?.1,
            false => Vec::new(),
        };
        let tied = stored.is_empty() || stored.len() == bank.len();
        let revived = tied && bank::is_revived(bank, &stored);
        let per_mode = if tied { 1 } else { bank[0].exponents.len() };
        let mut steps = Vec::new();
        for (h, modes) in bank.iter().enumerate() {
            let stored = self.step_transform().invert(modes.step);
            let stored = stored.map_err(|why| self.refuse(h, modes.step.into(), why))?;
            steps.extend(vec![stored; per_mode]);
        }
        let shape = match self.version {
            Version::V4 => vec![bank.len(), per_mode],
            Version::V2 | Version::V3 => vec![bank.len()],
        };
        let name = self.names()[0].clone();
        Ok(match tied && !revived {
            true => Encoded::step(name, shape, steps),
            false => Encoded::mode(name, shape, steps),
        })
    }

    fn encode_poles(
        &self,
        bank: &[Modes],
        lambdas: &[Complex64],
        copies: usize,
        tensors: &Tensors<'_>,
    ) -> Result<Vec<Encoded>, Fault> {
        let order = bank[0].exponents.len();
        let is_real = self.is_real(tensors);
        let (mut decay, mut frequency) = (Vec::new(), Vec::new());
        for (i, &lambda) in lambdas.iter().enumerate() {
            let (h, n) = (i / order, i % order);
            let unused = bank[h].residues.iter().all(|r| r[n] == Complex64::ZERO);
            if self.masked(lambda, bank[h].step) && !unused {
                let why = "it lies above the declared limit on frequencies";
                return Err(self.refuse(h, lambda, why));
            }
            if is_real && lambda.im != 0.0 {
                let why = "the layer stores real poles only (is_real)";
                return Err(self.refuse(h, lambda, why));
            }
            let stored = self.real_transform().invert(-lambda.re - self.floor());
            decay.push(stored.map_err(|why| self.refuse(h, lambda, why))?);
            frequency.push(self.sign() * lambda.im);
        }
        decay.truncate(copies * order);
        frequency.truncate(copies * order);
        let grid = vec![copies, order];
        let [_, real, imaginary] = self.names();
        let mut encoded = vec![Encoded::mode(real, grid.clone(), decay)];
        if !is_real {
            encoded.push(Encoded::mode(imaginary, grid, frequency));
        }
        Ok(encoded)
    }

    /// B = 1, C, and the dead copy of version 3, which must have the right shape.
    fn encode_weights(
        &self,
        bank: &[Modes],
        lambdas: &[Complex64],
        copies: usize,
        tensors: &Tensors<'_>,
    ) -> Vec<Encoded> {
        let (channels, order) = (bank.len(), bank[0].exponents.len());
        let kernels = bank[0].residues.len();
        let is_real = self.is_real(tensors);
        let made = |name: &str, shape: Vec<usize>, values: &[Complex64]| {
            let (shape, data) = match is_real {
                true => (shape, values.iter().map(|value| value.re).collect()),
                false => ([shape, vec![2]].concat(), interleave(values)),
            };
            Encoded::mode(self.name(name), shape, data)
        };
        let at = |k: usize, h: usize, n: usize| {
            let gain = self.discretised(lambdas[h * order + n], bank[h].step).1;
            bank[h].residues[k][n] / gain
        };
        let grid = (0..kernels).flat_map(|k| (0..channels).map(move |h| (k, h)));
        let c = grid.flat_map(|(k, h)| (0..order).map(move |n| at(k, h, n)));
        let mut encoded = vec![made(
            "C",
            vec![kernels, channels, order],
            &c.collect::<Vec<_>>(),
        )];
        let ones = vec![Complex64::ONE; copies * order];
        match self.version {
            Version::V2 => {}
            Version::V3 => encoded.push(made("B", vec![copies, order], &ones)),
            Version::V4 => encoded.push(made("B", vec![1, copies, order], &ones)),
        }
        if self.version == Version::V3 && tensors.contains(&self.name("A")) {
            let own = &lambdas[..copies * order];
            encoded.push(made("A", vec![copies, order], own));
        }
        encoded
    }

    fn refuse(&self, channel: usize, pole: Complex64, why: &'static str) -> Fault {
        not_representable("state-spaces/s4", &self.layer, channel, pole, why)
    }
}
