//! S4 in diagonal-plus-low-rank form (DPLR), of state-spaces/s4 v3 and v4: not diagonal, but read as
//! a diagonal system of smaller order.
//!
//! ```text
//! λ as in the diagonal kernels of the version,  z' = λ z − 2 P Re(P* z) + B u,   y = 2 Re(C z)
//! dA = (I − ΔA/2)⁻¹ (I + ΔA/2)    dB = Δ (I − ΔA/2)⁻¹ B    K[l] = C dA^l dB
//! ```
//!
//! in the real coordinates (Re z, Im z), where A = A_λ − 2 P P*. A trained file stores
//! C̃ = C (I − dA^L) with L in `l_kernel` (`L` in v3; 0 means C itself). The eigenvectors of such an
//! A are far from orthogonal, so the dense system is balanced and truncated first and made diagonal
//! then.

use hankelite_control::{
    ControlError, DenseSystem, DiagonalSystem, SystemError, Time, dense_balance, diagonalise,
};
use nalgebra::DMatrix;
use num_complex::Complex64;
use rayon::prelude::*;

use crate::checkpoint::declared::Declared;
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::transform::Transform;
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, bank};
use crate::checkpoint::tensors::Tensors;
use crate::progress::in_order;

/// Steps over which the kernel error is reported where the file names no length.
pub(super) const HORIZON: usize = 1024;

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct Dplr {
    pub(in crate::checkpoint) layer: String,
    /// What the names of the kernel start with.
    pub(in crate::checkpoint) kernel: String,
    pub(in crate::checkpoint) feedthrough: Option<String>,
    pub(in crate::checkpoint) v4: bool,
    pub(in crate::checkpoint) settled: Declared,
}

/// A tensor of rows × channels or copies × modes.
struct Rows {
    rows: usize,
    copies: usize,
    modes: usize,
    values: Vec<Complex64>,
}

impl Rows {
    fn of(&self, row: usize, channel: usize) -> &[Complex64] {
        let copy = channel % self.copies;
        &self.values[(row * self.copies + copy) * self.modes..][..self.modes]
    }
}

impl Dplr {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.kernel)
    }

    /// P, B or C: \[rows, copies, modes\].
    fn rows(&self, tensors: &Tensors<'_>, tensor: &str, modes: usize) -> Result<Rows, Fault> {
        let name = self.name(tensor);
        let (shape, values) = tensors.complex(&name, &[])?;
        let (rows, copies) = match *shape.as_slice() {
            [copies, n] if n == modes => (1, copies),
            [rows, copies, n] if n == modes => (rows, copies),
            _ => {
                let expected = format!("[rows, copies, {modes}] complex numbers");
                return Err(tensors.wrong_shape(&name, shape, &expected));
            }
        };
        Ok(Rows {
            rows,
            copies,
            modes,
            values,
        })
    }

    fn lambdas(&self, tensors: &Tensors<'_>) -> Result<Rows, Fault> {
        let (real, imaginary, sign) = match self.v4 {
            true => ("A_real", "A_imag", -1.0),
            false => ("inv_w_real", "w_imag", 1.0),
        };
        let decay = tensors.values(&self.name(real), "[copies, modes]")?;
        let &[copies, modes] = decay.shape.as_slice() else {
            return Err(tensors.wrong_shape(&self.name(real), decay.shape, "[copies, modes]"));
        };
        let expected = format!("[{copies}, {modes}]");
        let frequency = tensors.shaped(&self.name(imaginary), &[&decay.shape], &expected)?;
        let transform = self.settled.real_transform.unwrap_or(Transform::Exp);
        let parts = decay.data.iter().zip(&frequency.data);
        let values = parts.map(|(&a, &b)| Complex64::new(-transform.apply(a), sign * b));
        Ok(Rows {
            rows: 1,
            copies,
            modes,
            values: values.collect(),
        })
    }

    fn steps(&self, tensors: &Tensors<'_>) -> Result<Vec<f64>, Fault> {
        let name = self.name(if self.v4 { "inv_dt" } else { "log_dt" });
        let found = tensors.values(&name, "[channels, 1]")?;
        if !matches!(*found.shape.as_slice(), [_] | [_, 1]) {
            let expected = "[channels] or [channels, 1], one step for each channel";
            return Err(tensors.wrong_shape(&name, found.shape, expected));
        }
        let transform = match self.v4 {
            true => self.settled.dt_transform.unwrap_or(Transform::Exp),
            false => Transform::Exp,
        };
        Ok(found.data.iter().map(|&x| transform.apply(x)).collect())
    }

    /// L of C̃; 0 where C itself is stored.
    fn length(&self, tensors: &Tensors<'_>) -> Result<usize, Fault> {
        let name = match self.v4 {
            // lrnnx keeps it in a module below the other tensors.
            true if tensors.contains(&self.name("layer.kernel.l_kernel")) => {
                self.name("layer.kernel.l_kernel")
            }
            true => self.name("l_kernel"),
            false => self.name("L"),
        };
        match tensors.contains(&name) {
            true => tensors.count(&name),
            false => Ok(0),
        }
    }
}

/// What is reported of a layer that was made diagonal.
pub(super) struct Report<'a> {
    pub(super) layer: &'a str,
    /// Modes that the file stores.
    pub(super) modes: usize,
    /// Steps over which the kernel error is taken.
    pub(super) horizon: usize,
}

impl Report<'_> {
    fn note(&self, systems: &[DiagonalSystem], errors: &[(f64, f64)]) -> String {
        let Report { modes, horizon, .. } = self;
        let sum = errors
            .iter()
            .fold((0.0, 0.0), |(e, n), (error, norm)| (e + error, n + norm));
        let ratios = errors.iter().map(|(error, norm)| (error / norm).sqrt());
        let worst = ratios.fold(0.0, f64::max);
        let orders = systems.iter().map(DiagonalSystem::order);
        format!(
            "{}: {modes} modes of S4 (DPLR) became {} diagonal ones; kernel error over {horizon} \
             steps {:.2e} of all channels, {worst:.2e} of the worst",
            self.layer,
            orders.max().unwrap_or(0),
            (sum.0 / sum.1).sqrt(),
        )
    }
}

/// All channels of a layer as diagonal systems, in parallel, with a note of what that costs. `dense`
/// gives the system of a channel with C̃ for `length` steps, or with C where that is 0.
pub(super) fn made_diagonal(
    report: &Report<'_>,
    channels: usize,
    length: usize,
    order: usize,
    dense: impl Fn(usize) -> Result<DenseSystem, SystemError> + Sync,
) -> Result<(Vec<DiagonalSystem>, String), Fault> {
    let made = (0..channels).into_par_iter().map(|h| {
        let dense = dense(h).and_then(|dense| with_output_behind(&dense, length));
        let system = dense.map_err(ControlError::from).and_then(|dense| {
            let system = diagonal(&dense, order)?;
            let errors = distance(&dense, &system, report.horizon);
            Ok((system, errors))
        });
        system.map_err(|source| Fault::Diagonalised {
            layer: report.layer.to_string(),
            channel: h,
            source,
        })
    });
    let made = in_order(made)?;
    let (systems, errors): (Vec<_>, Vec<_>) = made.into_iter().unzip();
    let note = report.note(&systems, &errors);
    Ok((systems, note))
}

impl Layout for Dplr {
    fn family(&self) -> &'static str {
        "S4 (DPLR)"
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let steps = self.steps(tensors)?;
        let channels = steps.len();
        let lambdas = self.lambdas(tensors)?;
        let modes = lambdas.modes;
        let [low_rank, input, output] = ["P", "B", "C"].map(|name| self.rows(tensors, name, modes));
        let (low_rank, input, output) = (low_rank?, input?, output?);
        for (name, copies) in [
            ("A_imag", lambdas.copies),
            ("P", low_rank.copies),
            ("B", input.copies),
        ] {
            if copies == 0 || !channels.is_multiple_of(copies) {
                let expected = format!("copies a divisor of {channels} channels");
                return Err(tensors.wrong_shape(&self.name(name), vec![copies], &expected));
            }
        }
        if output.copies != channels {
            let expected = format!("[kernels, {channels}, {modes}] complex numbers");
            let shape = vec![output.rows, output.copies, modes];
            return Err(tensors.wrong_shape(&self.name("C"), shape, &expected));
        }
        let through = tensors.feedthrough(self.feedthrough.as_deref(), channels, output.rows)?;
        let length = self.length(tensors)?;
        let order = self.settled.diagonalise.unwrap_or(modes).min(2 * modes);
        let horizon = if length == 0 { HORIZON } else { length };
        let dense = |h: usize| {
            let p: Vec<_> = (0..low_rank.rows).map(|r| low_rank.of(r, h)).collect();
            let c: Vec<_> = (0..output.rows).map(|k| output.of(k, h)).collect();
            discretised(steps[h], lambdas.of(0, h), &p, input.of(0, h), &c)
        };
        let report = Report {
            layer: &self.layer,
            modes,
            horizon,
        };
        let (systems, note) = made_diagonal(&report, channels, length, order, dense)?;
        Ok(Dynamics {
            note: Some(note),
            ..split(&self.layer, &systems, &through)?
        })
    }

    fn encode(&self, _: &Dynamics, _: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        Err(Fault::Diagonal {
            layer: self.layer.clone(),
        })
    }
}

/// The dense system of one channel, bilinear.
fn discretised(
    step: f64,
    lambdas: &[Complex64],
    low_rank: &[&[Complex64]],
    input: &[Complex64],
    outputs: &[&[Complex64]],
) -> Result<DenseSystem, SystemError> {
    let n = lambdas.len();
    let mut a = DMatrix::zeros(2 * n, 2 * n);
    for (i, lambda) in lambdas.iter().enumerate() {
        (a[(i, i)], a[(i, n + i)]) = (lambda.re, -lambda.im);
        (a[(n + i, i)], a[(n + i, n + i)]) = (lambda.im, lambda.re);
    }
    for p in low_rank {
        let p = DMatrix::from_fn(2 * n, 1, |i, _| if i < n { p[i].re } else { p[i - n].im });
        a -= 2.0 * &p * p.transpose();
    }
    let b = DMatrix::from_fn(
        2 * n,
        1,
        |i, _| if i < n { input[i].re } else { input[i - n].im },
    );
    let c = DMatrix::from_fn(outputs.len(), 2 * n, |k, j| match j < n {
        true => 2.0 * outputs[k][j].re,
        false => -2.0 * outputs[k][j - n].im,
    });
    bilinear(step, &a, b, c)
}

/// The bilinear transform of A, B, C.
pub(super) fn bilinear(
    step: f64,
    a: &DMatrix<f64>,
    b: DMatrix<f64>,
    c: DMatrix<f64>,
) -> Result<DenseSystem, SystemError> {
    let one = DMatrix::identity(a.nrows(), a.nrows());
    let singular = SystemError::NotFinite {
        what: "the bilinear transform",
        mode: 0,
    };
    let inputs = b.ncols();
    let lu = (&one - 0.5 * step * a).lu();
    let da = lu.solve(&(&one + 0.5 * step * a)).ok_or(singular.clone())?;
    let db = lu.solve(&(b * step)).ok_or(singular)?;
    let through = DMatrix::zeros(c.nrows(), inputs);
    DenseSystem::new(Time::Discrete { step }, da, db, c, through)
}

/// C from C̃ = C (I − dA^L).
fn with_output_behind(stored: &DenseSystem, length: usize) -> Result<DenseSystem, SystemError> {
    if length == 0 {
        return Ok(stored.clone());
    }
    let n = stored.state().nrows();
    let power = power(stored.state(), length);
    let rest = (DMatrix::identity(n, n) - power).transpose().lu();
    let output = rest.solve(&stored.output().transpose());
    let output = output.ok_or(SystemError::NotFinite {
        what: "C behind C (I - A^L)",
        mode: 0,
    })?;
    DenseSystem::new(
        stored.time(),
        stored.state().clone(),
        stored.input().clone(),
        output.transpose(),
        stored.feedthrough().clone(),
    )
}

/// A^k by squaring.
fn power(a: &DMatrix<f64>, mut exponent: usize) -> DMatrix<f64> {
    let mut square = a.clone();
    let mut out = DMatrix::identity(a.nrows(), a.ncols());
    while exponent > 0 {
        if exponent % 2 == 1 {
            out = &out * &square;
        }
        square = &square * &square;
        exponent /= 2;
    }
    out
}

/// The balanced truncation of the largest order whose diagonal form is stable and has at most
/// `order` modes.
fn diagonal(dense: &DenseSystem, order: usize) -> Result<DiagonalSystem, ControlError> {
    let balanced = dense_balance(dense)?;
    let mut states = 2 * order;
    loop {
        let reduced = balanced.truncate(states)?;
        let (system, _) = diagonalise(&reduced.system)?;
        if system.order() <= order && system.is_stable() || reduced.order == 0 {
            return Ok(system);
        }
        states = reduced.order - 1;
    }
}

/// Σ ‖k − k_r‖² and Σ ‖k‖² over the first samples.
fn distance(dense: &DenseSystem, system: &DiagonalSystem, length: usize) -> (f64, f64) {
    let mut input = dense.input().clone();
    let mut states = system.input().clone();
    let poles = system.poles();
    let (mut error, mut norm) = (0.0, 0.0);
    for _ in 0..length {
        let full = dense.output() * &input;
        let own = (system.output() * &states).map(|z| z.re);
        norm += full.norm_squared();
        error += (full - own).norm_squared();
        input = dense.state() * input;
        for (mut row, pole) in states.row_iter_mut().zip(&poles) {
            row *= *pole;
        }
    }
    (error, norm)
}

/// Kernels apart: forwards, and backwards where there are twice as many as rows of D.
pub(super) fn split(
    layer: &str,
    systems: &[DiagonalSystem],
    through: &[Vec<f64>],
) -> Result<Dynamics, Fault> {
    let outputs = through.len();
    let part = |first: usize, d: &dyn Fn(usize, usize) -> f64| {
        let parts = systems.iter().enumerate().map(|(h, system)| {
            DiagonalSystem::new(
                system.time(),
                system.exponents().to_vec(),
                system.input().clone(),
                system.output().rows(first, outputs).into_owned(),
                DMatrix::from_fn(outputs, 1, |c, _| d(c, h)),
            )
            .map_err(|source| bank::fault(layer, h, source))
        });
        parts.collect::<Result<Vec<_>, Fault>>()
    };
    let kernels = systems
        .first()
        .map_or(outputs, |system| system.output().nrows());
    Ok(Dynamics {
        systems: part(0, &|c, h| through[c][h])?,
        backward: match kernels > outputs {
            true => part(outputs, &|_, _| 0.0)?,
            false => Vec::new(),
        },
        backward_from: 1,
        note: None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_power_is_a_repeated_product() {
        let a = DMatrix::from_fn(3, 3, |i, j| 0.3 * ((i * 3 + j) as f64).sin());
        let product = (0..13).fold(DMatrix::identity(3, 3), |p, _| p * &a);
        assert!((power(&a, 13) - product).norm() < 1e-15);
        assert_eq!(power(&a, 0), DMatrix::identity(3, 3));
    }
}
