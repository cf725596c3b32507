//! S5: one system for all channels, in flax (lindermanlab/S5 and its relatives) and in torch
//! (i404788/s5-pytorch).
//!
//! ```text
//! Δ_n = e^{log_step_n}    λ = Lambda_re + i Lambda_im, or Lambda; min(Re λ, −1e-4) with clip_eigs
//! zoh       a = e^{λΔ}                   B̄ = (e^{λΔ} − 1)/λ · B
//! bilinear  a = (1 + λΔ/2)/(1 − λΔ/2)    B̄ = Δ/(1 − λΔ/2) · B
//! dirac     a = e^{λΔ}                   B̄ = B
//! x_k = a x_{k−1} + B̄ u_k,   y_k = s Re(C x_k) + D ∘ u_k,   s = 2 where half of each pair is stored
//! ```
//!
//! Event-SSM (Efficient-Scalable-Machine-Learning/event-ssm, `event_ssm/ssm.py`) runs at the times δ_k
//! between events, here 1: a = e^{λΔδ_k}, and B̄ with δ_k too (zoh), or without (async, dirac): then a
//! sample is an impulse. Its layers may have other outputs than inputs, B (P, inputs, 2) and
//! C (outputs, P, 2): their D is a matrix (outputs, inputs), and the output has D u_k.
//!
//! s5-pytorch may store B and C as products, B = BP BHᵀ and C = CHᵀ CP of rank k. They are read as what
//! they stand for, and written as that: no reduction keeps the rank.
//!
//! The scan backwards in time includes the sample at hand, C = \[C1 | C2\]. After a reduction all
//! modes of a layer have the same step: the geometric mean of the old ones, or a smaller one where
//! `clip_eigs` would cut a mode at that.

use hankelite_archive::Dtype;
use hankelite_control::{DiagonalSystem, Time, from_bilinear, to_bilinear, zoh_gain};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::checkpoint::declared::{AnyStep, Declared, Discretisation};
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, Unfolded, bank, not_representable};
use crate::checkpoint::tensors::{Tensors, interleave};

/// The largest Re λ under `clip_eigs`.
const CLIP: f64 = -1e-4;

/// So much beyond the clip a slow mode is written, that rounding to single precision keeps it there.
const WITHIN_CLIP: f64 = 1.0 + 1e-6;

/// The factors of B and C, where they are stored as products.
const FACTORS: [&str; 4] = ["BH", "BP", "CH", "CP"];

/// Whether a layer of S5 stands where Event-SSM has it: `stages_0/SequenceLayer_0/`.
pub(in crate::checkpoint) fn is_of_events(place: &str) -> bool {
    let mut parts = place.split(['.', '/']);
    let in_stage = parts.any(|part| part.starts_with("stages_"));
    in_stage
        && parts
            .next()
            .is_some_and(|part| part.starts_with("SequenceLayer_"))
}

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct S5 {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
    /// Whether the poles are one complex tensor, as in torch.
    pub(in crate::checkpoint) torch: bool,
    pub(in crate::checkpoint) settled: Declared,
}

/// What a file holds for one layer.
struct Stored {
    lambdas: Vec<Complex64>,
    steps: Vec<f64>,
    /// P × inputs.
    input: DMatrix<Complex64>,
    /// Outputs × P, forwards and perhaps backwards.
    outputs: Vec<DMatrix<Complex64>>,
    /// Outputs × inputs.
    through: DMatrix<f64>,
}

impl S5 {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }

    /// Flax stores one of each conjugate pair unless set otherwise, torch all.
    fn factor(&self) -> f64 {
        let half = self.settled.conj_sym.unwrap_or(!self.torch);
        if half { 2.0 } else { 1.0 }
    }

    fn bilinear(&self) -> bool {
        self.settled.discretisation == Some(Discretisation::Bilinear)
    }

    /// Exponent times step, and the factor of B.
    fn discretised(&self, lambda: Complex64, step: f64) -> (Complex64, Complex64) {
        let z = lambda * step;
        match self.settled.discretisation {
            Some(Discretisation::Bilinear) => (from_bilinear(z), step / (1.0 - 0.5 * z)),
            Some(Discretisation::Dirac) => (z, Complex64::ONE),
            _ => (z, zoh_gain(lambda, step)),
        }
    }

    fn lambdas(&self, tensors: &Tensors<'_>) -> Result<Vec<Complex64>, Fault> {
        let mut lambdas = match self.torch {
            true => {
                let (shape, values) = tensors.complex(&self.name("Lambda"), &[])?;
                match shape.len() {
                    1 => values,
                    _ => return Err(tensors.wrong_shape(&self.name("Lambda"), shape, "[modes]")),
                }
            }
            false => {
                let real = tensors.values(&self.name("Lambda_re"), "[modes]")?;
                let shape: &[usize] = &[real.data.len()];
                let expected = format!("[{}]", real.data.len());
                let imaginary = tensors.shaped(&self.name("Lambda_im"), &[shape], &expected)?;
                let parts = real.data.iter().zip(imaginary.data);
                parts.map(|(&re, im)| Complex64::new(re, im)).collect()
            }
        };
        if self.settled.clip_eigs == Some(true) {
            lambdas
                .iter_mut()
                .for_each(|lambda| lambda.re = lambda.re.min(CLIP));
        }
        Ok(lambdas)
    }

    fn read(&self, tensors: &Tensors<'_>) -> Result<Stored, Fault> {
        let lambdas = self.lambdas(tensors)?;
        let modes = lambdas.len();
        let shapes: [&[usize]; 2] = [&[modes, 1], &[modes]];
        let expected = format!("[{modes}, 1]");
        let steps = tensors.shaped(&self.name("log_step"), &shapes, &expected)?;
        let input = match self.is_factored(tensors) {
            true => self.factored_input(tensors, modes)?,
            false => tensors.complex_matrix(&self.name("B"), [Some(modes), None])?,
        };
        let through = self.through(tensors, input.ncols())?;
        let channels = through.nrows();
        Ok(Stored {
            steps: tensors.at_rate(steps.data.iter().map(|log| log.exp()).collect()),
            outputs: match self.is_factored(tensors) {
                true => self.factored_outputs(tensors, channels, modes)?,
                false => self.outputs(tensors, channels, modes)?,
            },
            input,
            through,
            lambdas,
        })
    }

    /// D of one number for each channel, or a matrix, which alone shows that a layer has other outputs than
    /// inputs.
    fn through(&self, tensors: &Tensors<'_>, inputs: usize) -> Result<DMatrix<f64>, Fault> {
        let name = self.name("D");
        if tensors.rank(&name) == Some(2) {
            return tensors.real_matrix(&name, [None, Some(inputs)]);
        }
        let expected = format!("[{inputs}], or [outputs, {inputs}]");
        let d = tensors.shaped(&name, &[&[inputs]], &expected)?;
        Ok(DMatrix::from_diagonal(&d.data.into()))
    }

    /// C, or C1 and C2, or both side by side in C.
    fn outputs(
        &self,
        tensors: &Tensors<'_>,
        channels: usize,
        modes: usize,
    ) -> Result<Vec<DMatrix<Complex64>>, Fault> {
        let one: &[usize] = &[channels, modes];
        let both: &[usize] = &[channels, 2 * modes];
        if tensors.contains(&self.name("C1")) {
            let read = |name: &str| -> Result<_, Fault> {
                let (_, c) = tensors.complex(&self.name(name), &[one])?;
                Ok(DMatrix::from_row_slice(channels, modes, &c))
            };
            return Ok(vec![read("C1")?, read("C2")?]);
        }
        let (shape, c) = tensors.complex(&self.name("C"), &[one, both])?;
        let c = DMatrix::from_row_slice(channels, shape[1], &c);
        let halves = 0..shape[1] / modes.max(1);
        Ok(halves
            .map(|k| c.columns(k * modes, modes).into_owned())
            .collect())
    }
}

impl S5 {
    fn is_factored(&self, tensors: &Tensors<'_>) -> bool {
        self.torch
            && FACTORS
                .iter()
                .any(|name| tensors.contains(&self.name(name)))
    }

    /// B = BP BHᵀ.
    fn factored_input(
        &self,
        tensors: &Tensors<'_>,
        modes: usize,
    ) -> Result<DMatrix<Complex64>, Fault> {
        let of_modes = tensors.complex_matrix(&self.name("BP"), [Some(modes), None])?;
        let rank = Some(of_modes.ncols());
        let of_channels = tensors.complex_matrix(&self.name("BH"), [None, rank])?;
        Ok(of_modes * of_channels.transpose())
    }

    /// C = CHᵀ CP, in both directions side by side.
    fn factored_outputs(
        &self,
        tensors: &Tensors<'_>,
        channels: usize,
        modes: usize,
    ) -> Result<Vec<DMatrix<Complex64>>, Fault> {
        let of_channels = tensors.complex_matrix(&self.name("CH"), [None, Some(channels)])?;
        let rank = Some(of_channels.nrows());
        let of_modes = tensors.complex_matrix(&self.name("CP"), [rank, None])?;
        if ![modes, 2 * modes].contains(&of_modes.ncols()) {
            let shape = vec![of_modes.nrows(), of_modes.ncols()];
            let expected = format!("[{}, {modes} or {}]", shape[0], 2 * modes);
            return Err(tensors.wrong_shape(&self.name("CP"), shape, &expected));
        }
        let both = of_channels.transpose() * of_modes;
        let halves = 0..both.ncols() / modes;
        Ok(halves
            .map(|k| both.columns(k * modes, modes).into_owned())
            .collect())
    }
}

impl Layout for S5 {
    fn unfolded(&self, tensors: &Tensors<'_>) -> Result<Option<Unfolded>, Fault> {
        if !self.is_factored(tensors) {
            return Ok(None);
        }
        let Stored { input, outputs, .. } = self.read(tensors)?;
        let rank = tensors
            .shape(&self.name("BP"))
            .and_then(|shape| shape.get(1));
        let (modes, channels) = (input.nrows(), outputs[0].nrows());
        let columns = modes * outputs.len();
        let output = DMatrix::from_fn(channels, columns, |i, j| outputs[j / modes][(i, j % modes)]);
        let made =
            |name: &str, matrix: &DMatrix<Complex64>| Encoded::pairs(self.name(name), matrix);
        Ok(Some(Unfolded {
            instead: FACTORS.map(|name| self.name(name)).to_vec(),
            tensors: vec![
                (made("B", &input), Dtype::F32),
                (made("C", &output), Dtype::C64),
            ],
            note: format!(
                "{}: B and C are stored as products (`BH`, `BP`, `CH`, `CP`, rank {}); what is written \
                 holds `B` and `C`, since no reduction keeps the rank",
                self.layer,
                rank.copied().unwrap_or(0),
            ),
        }))
    }

    fn family(&self) -> &'static str {
        if self.torch { "S5 (torch)" } else { "S5" }
    }

    fn at_any_step(&self) -> Option<AnyStep> {
        match self.settled.discretisation {
            Some(Discretisation::Async | Discretisation::Dirac) => Some(AnyStep::Impulses),
            _ => is_of_events(&self.place).then_some(AnyStep::Held),
        }
    }

    fn steps_of_modes(&self, tensors: &Tensors<'_>) -> Result<Option<Vec<f64>>, Fault> {
        Ok(Some(self.read(tensors)?.steps))
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let Stored {
            lambdas,
            steps,
            mut input,
            outputs,
            through,
        } = self.read(tensors)?;
        let logs = steps.iter().map(|step| step.ln()).sum::<f64>();
        let step = (logs / steps.len().max(1) as f64).exp();
        let mut exponents = Vec::with_capacity(lambdas.len());
        for (n, (&lambda, &own)) in lambdas.iter().zip(&steps).enumerate() {
            let (exponent, gain) = self.discretised(lambda, own);
            exponents.push(exponent / step);
            input.row_mut(n).iter_mut().for_each(|b| *b *= gain);
        }
        let none = DMatrix::zeros(through.nrows(), through.ncols());
        let factor = Complex64::from(self.factor());
        let made = |output: &DMatrix<Complex64>, through: DMatrix<f64>| {
            let time = Time::Discrete { step };
            let parts = (exponents.clone(), input.clone(), output * factor);
            DiagonalSystem::new(time, parts.0, parts.1, parts.2, through)
                .map_err(|source| bank::fault(&self.layer, 0, source))
        };
        let forward = made(&outputs[0], through)?;
        let backward = outputs.get(1);
        let backward = backward.map(|c| made(c, none));
        Ok(Dynamics {
            systems: vec![forward],
            backward: backward.transpose()?.into_iter().collect(),
            backward_from: 0,
            note: None,
        })
    }

    fn encode(&self, dynamics: &Dynamics, tensors: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let forward = &dynamics.systems[0];
        let Time::Discrete { step } = forward.time() else {
            let source = hankelite_control::SystemError::WrongTime {
                found: "continuous",
                expected: "discrete",
            };
            return Err(bank::fault(&self.layer, 0, source));
        };
        let backward = dynamics.backward.first();
        if backward
            .is_some_and(|b| b.exponents() != forward.exponents() || b.input() != forward.input())
        {
            let layer = self.layer.clone();
            return Err(Fault::NotShared { layer, channel: 0 });
        }
        let modes = forward.order();
        let mut b = forward.input().clone();
        let mut lambdas = Vec::with_capacity(modes);
        let scaled = forward.scaled_exponents().into_iter();
        let scaled = scaled.map(|z| if self.bilinear() { to_bilinear(z) } else { z });
        let scaled: Vec<Complex64> = scaled.collect();
        let step = self.written_step(step, &scaled);
        for (n, z) in scaled.into_iter().enumerate() {
            let lambda = z / step;
            if self.settled.clip_eigs == Some(true) && lambda.re > CLIP {
                let why = "its real part is above −1e-4, where clip_eigs cuts";
                return Err(not_representable("S5", &self.layer, 0, lambda, why));
            }
            let gain = self.discretised(lambda, step).1;
            b.row_mut(n).iter_mut().for_each(|b| *b /= gain);
            lambdas.push(lambda);
        }
        let mut encoded = self.encode_poles(&lambdas, step, tensors);
        encoded.push(Encoded::pairs(self.name("B"), &b));
        encoded.extend(self.encode_outputs(dynamics, tensors));
        encoded.push(self.encode_feedthrough(forward.feedthrough(), tensors)?);
        Ok(encoded)
    }
}

impl S5 {
    /// The step of all modes: that of the systems, and where `clip_eigs` would cut a slow mode one so
    /// small that its λ, over that step, is as far from zero as the clip.
    fn written_step(&self, step: f64, scaled: &[Complex64]) -> f64 {
        match self.settled.clip_eigs {
            Some(true) => scaled
                .iter()
                .filter(|z| z.re < 0.0)
                .map(|z| z.re / (CLIP * WITHIN_CLIP))
                .fold(step, f64::min),
            _ => step,
        }
    }

    fn encode_poles(
        &self,
        lambdas: &[Complex64],
        step: f64,
        tensors: &Tensors<'_>,
    ) -> Vec<Encoded> {
        let modes = lambdas.len();
        let column = tensors.rank(&self.name("log_step")) == Some(2);
        let shape = if column { vec![modes, 1] } else { vec![modes] };
        let mut encoded = vec![Encoded::mode(
            self.name("log_step"),
            shape,
            vec![step.ln(); modes],
        )];
        if self.torch {
            let values = interleave(lambdas);
            encoded.push(Encoded::mode(self.name("Lambda"), vec![modes, 2], values));
            return encoded;
        }
        let re = lambdas.iter().map(|lambda| lambda.re).collect();
        let im = lambdas.iter().map(|lambda| lambda.im).collect();
        encoded.push(Encoded::mode(self.name("Lambda_re"), vec![modes], re));
        encoded.push(Encoded::mode(self.name("Lambda_im"), vec![modes], im));
        encoded
    }

    fn encode_feedthrough(
        &self,
        d: &DMatrix<f64>,
        tensors: &Tensors<'_>,
    ) -> Result<Encoded, Fault> {
        let name = self.name("D");
        let matrix = tensors.rank(&name) == Some(2);
        if !matrix && d.is_square() {
            return Encoded::diagonal(&self.layer, name, d);
        }
        Ok(Encoded::dense(name, d))
    }

    fn encode_outputs(&self, dynamics: &Dynamics, tensors: &Tensors<'_>) -> Vec<Encoded> {
        let factor = Complex64::from(1.0 / self.factor());
        let both = dynamics.systems.iter().chain(&dynamics.backward);
        let outputs: Vec<_> = both.map(|system| system.output() * factor).collect();
        let (channels, modes) = outputs[0].shape();
        let made = |name: &str, c: &DMatrix<Complex64>| Encoded::pairs(self.name(name), c);
        if tensors.contains(&self.name("C1")) {
            return vec![made("C1", &outputs[0]), made("C2", &outputs[1])];
        }
        let all = DMatrix::from_fn(channels, modes * outputs.len(), |i, j| {
            outputs[j / modes][(i, j % modes)]
        });
        vec![made("C", &all)]
    }
}
