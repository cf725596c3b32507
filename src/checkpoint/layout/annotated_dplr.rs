//! S4 in diagonal-plus-low-rank form of annotated-s4 (flax): all modes are stored, not one of each
//! conjugate pair, and the file does not record the length of its C̃.
//!
//! ```text
//! λ = min(Lambda_re, −1e-4) + i Lambda_im    z' = (Λ − P P*) z + B u    Δ = e^{log_step}
//! dA = (I − ΔA/2)⁻¹ (I + ΔA/2)    dB = Δ (I − ΔA/2)⁻¹ B    K[l] = Re C̄ (I − dA^L)⁻¹ dA^l dB
//! ```
//!
//! It becomes diagonal as [`crate::checkpoint::layout::dplr`] does it.

use hankelite_control::{DenseSystem, SystemError};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::checkpoint::declared::Declared;
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::dplr::{Report, bilinear, made_diagonal, split};
use crate::checkpoint::layout::{Dynamics, Encoded, Layout};
use crate::checkpoint::tensors::Tensors;

/// The largest Re λ.
const CLIP: f64 = -1e-4;

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct AnnotatedDplr {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
    pub(in crate::checkpoint) settled: Declared,
}

/// Complex numbers of all channels, modes × channels.
struct Columns {
    modes: usize,
    channels: usize,
    values: Vec<Complex64>,
}

impl Columns {
    fn of(&self, channel: usize) -> Vec<Complex64> {
        let mode = |n: usize| self.values[n * self.channels + channel];
        (0..self.modes).map(mode).collect()
    }
}

impl AnnotatedDplr {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }

    fn lambdas(&self, tensors: &Tensors<'_>) -> Result<Columns, Fault> {
        let expected = "[modes, channels]";
        let real = tensors.values(&self.name("Lambda_re"), expected)?;
        let &[modes, channels] = real.shape.as_slice() else {
            return Err(tensors.wrong_shape(&self.name("Lambda_re"), real.shape, expected));
        };
        let expected = format!("[{modes}, {channels}]");
        let shape: &[usize] = &[modes, channels];
        let imaginary = tensors.shaped(&self.name("Lambda_im"), &[shape], &expected)?;
        let parts = real.data.iter().zip(&imaginary.data);
        Ok(Columns {
            modes,
            channels,
            values: parts
                .map(|(&re, &im)| Complex64::new(re.min(CLIP), im))
                .collect(),
        })
    }

    fn columns(
        &self,
        tensors: &Tensors<'_>,
        tensor: &str,
        like: &Columns,
    ) -> Result<Columns, Fault> {
        let shape: &[usize] = &[like.modes, like.channels];
        let (_, values) = tensors.complex(&self.name(tensor), &[shape])?;
        Ok(Columns {
            modes: like.modes,
            channels: like.channels,
            values,
        })
    }
}

impl Layout for AnnotatedDplr {
    fn family(&self) -> &'static str {
        "S4 (DPLR) of annotated-s4"
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let lambdas = self.lambdas(tensors)?;
        let (modes, channels) = (lambdas.modes, lambdas.channels);
        let low_rank = self.columns(tensors, "P", &lambdas)?;
        let input = self.columns(tensors, "B", &lambdas)?;
        let c = if tensors.contains(&self.name("C_real_imag")) {
            "C_real_imag"
        } else {
            "C"
        };
        let output = self.columns(tensors, c, &lambdas)?;
        let shapes: [&[usize]; 2] = [&[1, channels], &[channels]];
        let expected = format!("[1, {channels}]");
        let steps = tensors
            .shaped(&self.name("log_step"), &shapes, &expected)?
            .data;
        let through = match tensors.contains(&self.name("D")) {
            true => tensors.shaped(&self.name("D"), &shapes, &expected)?.data,
            false => vec![0.0; channels],
        };
        let Some(length) = self.settled.length else {
            return Err(Fault::Undeclared {
                what: "the sequence length L",
                needed_for: "C (I − Ā^L) of S4 (DPLR) of annotated-s4",
                hint: "declare it with --length L",
            });
        };
        let order = self.settled.diagonalise.unwrap_or(modes).min(2 * modes);
        let channel = |h: usize| {
            let column = |columns: &Columns| DMatrix::from_vec(modes, 1, columns.of(h));
            let c = column(&output).adjoint();
            dense(
                steps[h].exp(),
                &lambdas.of(h),
                &column(&low_rank),
                &column(&input),
                &c,
            )
        };
        let report = Report {
            layer: &self.layer,
            modes,
            horizon: length,
        };
        let (systems, note) = made_diagonal(&report, channels, length, order, channel)?;
        Ok(Dynamics {
            note: Some(note),
            ..split(&self.layer, &systems, &[through])?
        })
    }

    fn encode(&self, _: &Dynamics, _: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        Err(Fault::Diagonal {
            layer: self.layer.clone(),
        })
    }
}

/// The dense system in the coordinates (Re z, Im z), bilinear: P modes × rank, B modes × inputs, C
/// outputs × modes.
pub(super) fn dense(
    step: f64,
    lambdas: &[Complex64],
    low_rank: &DMatrix<Complex64>,
    input: &DMatrix<Complex64>,
    output: &DMatrix<Complex64>,
) -> Result<DenseSystem, SystemError> {
    let n = lambdas.len();
    let mut state = -(low_rank * low_rank.adjoint());
    for (i, lambda) in lambdas.iter().enumerate() {
        state[(i, i)] += lambda;
    }
    let a = DMatrix::from_fn(2 * n, 2 * n, |i, j| {
        let z = state[(i % n, j % n)];
        match (i < n, j < n) {
            (true, true) | (false, false) => z.re,
            (true, false) => -z.im,
            (false, true) => z.im,
        }
    });
    let b = DMatrix::from_fn(2 * n, input.ncols(), |i, k| match i < n {
        true => input[(i, k)].re,
        false => input[(i - n, k)].im,
    });
    let c = DMatrix::from_fn(output.nrows(), 2 * n, |k, j| match j < n {
        true => output[(k, j)].re,
        false => -output[(k, j - n)].im,
    });
    bilinear(step, &a, b, c)
}
