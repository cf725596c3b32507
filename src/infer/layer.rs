//! One block on a whole sequence: x is L × H, one contiguous column for each channel.

use std::sync::Arc;

use nalgebra::DMatrix;
use num_complex::Complex64;
use rayon::prelude::*;

use crate::infer::InferError;
use crate::infer::Path;
use crate::linalg::Convolver;
use crate::model::Block;
use crate::model::Linear;
use crate::model::Norm;
use crate::model::OutputLinear;
use crate::model::Placement;
use crate::ssm::DiagonalSystem;

/// A block with its channels prepared.
pub(super) struct Layer<'a> {
    block: &'a Block,
    channels: Vec<Channel>,
    /// Those that run backwards in time.
    backward: Vec<Channel>,
    convolver: Arc<Convolver>,
}

struct Channel {
    operator: Operator,
    feedthrough: f64,
}

enum Operator {
    Spectrum(Vec<Complex64>),
    Modes(Vec<(Complex64, Complex64)>),
}

impl Channel {
    fn new(
        system: &DiagonalSystem,
        length: usize,
        path: Path,
        convolver: &Convolver,
    ) -> Result<Self, InferError> {
        let operator = match path {
            Path::Fft => Operator::Spectrum(convolver.spectrum(&system.kernel(length)?)),
            Path::Recurrence => {
                let modes = system.poles().into_iter().zip(system.residues()?);
                Operator::Modes(modes.collect())
            }
        };
        Ok(Self {
            operator,
            feedthrough: system.feedthrough()[(0, 0)],
        })
    }

    fn run(&self, input: &[f64], convolver: &Convolver) -> Vec<f64> {
        let mut output = match &self.operator {
            Operator::Spectrum(spectrum) => convolver.convolve(spectrum, input),
            Operator::Modes(modes) => recur(modes, input),
        };
        for (y, u) in output.iter_mut().zip(input) {
            *y += self.feedthrough * u;
        }
        output
    }
}

/// y_k = Re Σ w_i s_i, with s_i ← a_i s_i + u_k first.
fn recur(modes: &[(Complex64, Complex64)], input: &[f64]) -> Vec<f64> {
    let mut output = vec![0.0; input.len()];
    for &(pole, residue) in modes {
        let mut state = Complex64::ZERO;
        for (y, u) in output.iter_mut().zip(input) {
            state = pole * state + u;
            *y += residue.re * state.re - residue.im * state.im;
        }
    }
    output
}

impl<'a> Layer<'a> {
    pub(super) fn new(
        block: &'a Block,
        length: usize,
        path: Path,
        convolver: &Arc<Convolver>,
    ) -> Result<Self, InferError> {
        let prepared = |systems: &[DiagonalSystem]| -> Result<Vec<Channel>, InferError> {
            let systems = systems.par_iter();
            let channels = systems.map(|system| Channel::new(system, length, path, convolver));
            channels.collect()
        };
        Ok(Self {
            block,
            channels: prepared(&block.systems)?,
            backward: prepared(&block.backward)?,
            convolver: Arc::clone(convolver),
        })
    }

    pub(super) fn forward(&self, x: DMatrix<f64>) -> DMatrix<f64> {
        match &self.block.norm {
            None => self.branch(&x),
            Some((norm, Placement::Post)) => normalised(norm, self.branch(&x) + x),
            Some((norm, Placement::Pre)) => self.branch(&normalised(norm, x.clone())) + x,
        }
    }

    fn branch(&self, x: &DMatrix<f64>) -> DMatrix<f64> {
        let mut y = DMatrix::zeros(x.nrows(), x.ncols());
        for (h, channel) in self.channels.iter().enumerate() {
            let output = channel.run(x.column(h).as_slice(), &self.convolver);
            y.column_mut(h).copy_from_slice(&output);
        }
        for (h, channel) in self.backward.iter().enumerate() {
            let turned: Vec<f64> = x.column(h).iter().rev().copied().collect();
            // Of the reversed output, sample t+1 belongs to step t: the kernel starts there.
            let output = channel.run(&turned, &self.convolver);
            let later = output.iter().rev().skip(1);
            y.column_mut(h)
                .iter_mut()
                .zip(later)
                .for_each(|(y, o)| *y += o);
        }
        y.apply(|value| *value = gelu(*value));
        match &self.block.output {
            None => y,
            Some(output) => apply_output(output, &y),
        }
    }
}

/// a Φ(a) with the exact normal distribution.
fn gelu(a: f64) -> f64 {
    0.5 * a * (1.0 + libm::erf(a * std::f64::consts::FRAC_1_SQRT_2))
}

fn apply_output(output: &OutputLinear, y: &DMatrix<f64>) -> DMatrix<f64> {
    let mixed = apply_linear(&output.linear, y);
    if !output.gated {
        return mixed;
    }
    let half = mixed.ncols() / 2;
    let mut out = mixed.columns(0, half).into_owned();
    let gate = mixed.columns(half, half);
    out.zip_apply(&gate, |a, g| *a /= 1.0 + (-g).exp());
    out
}

/// X W + b, for every row of X.
pub(super) fn apply_linear(linear: &Linear, x: &DMatrix<f64>) -> DMatrix<f64> {
    let mut out = x * linear.weight.as_ref();
    if let Some(bias) = &linear.bias {
        for (mut column, &offset) in out.column_iter_mut().zip(bias) {
            column.add_scalar_mut(offset);
        }
    }
    out
}

fn normalised(norm: &Norm, x: DMatrix<f64>) -> DMatrix<f64> {
    match norm {
        Norm::Layer(_) => normalised_rows(norm, x),
        Norm::Batch(batch) => {
            let mut x = x;
            for (h, mut column) in x.column_iter_mut().enumerate() {
                let scale = batch.weight[h] / (batch.variance[h] + batch.epsilon).sqrt();
                let (mean, bias) = (batch.mean[h], batch.bias[h]);
                column.apply(|value| *value = (*value - mean) * scale + bias);
            }
            x
        }
    }
}

/// Normalises every row over the channels, with the population variance.
fn normalised_rows(norm: &Norm, mut x: DMatrix<f64>) -> DMatrix<f64> {
    let (weight, bias, epsilon) = norm.affine();
    let channels = x.ncols() as f64;
    let mean = x.column_sum() / channels;
    let mut square = nalgebra::DVector::zeros(x.nrows());
    for mut column in x.column_iter_mut() {
        column -= &mean;
        square.zip_apply(&column, |sum, value| *sum += value * value);
    }
    let scale = square.map(|sum: f64| 1.0 / (sum / channels + epsilon).sqrt());
    for (h, mut column) in x.column_iter_mut().enumerate() {
        let (weight, bias) = (weight[h], bias[h]);
        column.zip_apply(&scale, |value, s| *value = *value * s * weight + bias);
    }
    x
}
