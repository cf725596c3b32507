//! A balanced system in modal coordinates, and its way back to a diagonal system.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::linalg::{Diagonalised, ln_1p};
use crate::ssm::{DiagonalSystem, SystemError, Time};

/// The smallest pole kept apart from zero: ln of it is the fastest decay per step that is
/// written, e^{−700} after one step.
const POLE_MIN: f64 = 1e-304;

/// A system in modal coordinates: shifted poles ν, rows V⁻¹ B, columns C V.
pub(super) struct Modes {
    pub(super) values: Vec<Complex64>,
    /// −2 Re λ or 1 − |a|² of each mode, where it is known better than from ν.
    pub(super) gaps: Vec<Option<f64>>,
    pub(super) input: DMatrix<Complex64>,
    pub(super) output: DMatrix<Complex64>,
}

impl Modes {
    /// No modes, for order zero.
    pub(super) fn none(b: &DMatrix<Complex64>, c: &DMatrix<Complex64>) -> Self {
        Self {
            values: Vec::new(),
            gaps: Vec::new(),
            input: b.clone(),
            output: c.clone(),
        }
    }

    pub(super) fn new(d: &Diagonalised, b: &DMatrix<Complex64>, c: &DMatrix<Complex64>) -> Self {
        Self {
            values: d.values.clone(),
            gaps: vec![None; d.values.len()],
            input: &d.inverse * b,
            output: c * &d.vectors,
        }
    }

    /// Of each pair of a real system the upper member, with twice its output. The rows and columns
    /// of a real pole are real but for rounding.
    pub(super) fn upper_half(self) -> Self {
        let upper: Vec<usize> = (0..self.values.len())
            .filter(|&i| self.values[i].im >= 0.0)
            .collect();
        let mut kept = self.select(&upper);
        for (i, value) in kept.values.iter().enumerate() {
            if value.im > 0.0 {
                kept.output.column_mut(i).scale_mut(2.0);
            } else {
                kept.input.row_mut(i).iter_mut().for_each(|b| b.im = 0.0);
                kept.output
                    .column_mut(i)
                    .iter_mut()
                    .for_each(|c| c.im = 0.0);
            }
        }
        kept
    }

    /// The modes at these places.
    pub(super) fn select(&self, places: &[usize]) -> Self {
        Self {
            values: places.iter().map(|&i| self.values[i]).collect(),
            gaps: places.iter().map(|&i| self.gaps[i]).collect(),
            input: self.input.select_rows(places),
            output: self.output.select_columns(places),
        }
    }

    /// The diagonal system. With one input and one output B is one and C the residue.
    pub(super) fn into_system(
        self,
        time: Time,
        feedthrough: DMatrix<f64>,
    ) -> Result<DiagonalSystem, SystemError> {
        let poles = self.values.iter().zip(&self.gaps);
        let exponents = poles.map(|(&value, &gap)| with_gap(time, exponent_of(time, value), gap));
        let exponents = exponents.collect();
        if feedthrough.shape() == (1, 1) {
            let weights = self.output.iter().zip(self.input.iter());
            let residues: Vec<Complex64> = weights.map(|(c, b)| c * b).collect();
            return DiagonalSystem::siso(time, exponents, &residues, feedthrough[(0, 0)]);
        }
        DiagonalSystem::new(time, exponents, self.input, self.output, feedthrough)
    }
}

/// λ from a shifted pole: itself, or ln(1 + ν)/Δ on the principal branch. A pole that is zero to
/// rounding becomes one that is gone after a single step.
pub(super) fn exponent_of(time: Time, value: Complex64) -> Complex64 {
    match time {
        Time::Continuous => value,
        Time::Discrete { step } => {
            let pole = value + 1.0;
            if pole.norm() < POLE_MIN {
                return Complex64::from(POLE_MIN.ln()) / step;
            }
            ln_1p(value) / step
        }
    }
}

/// The exponent with the decay that a gap requires.
fn with_gap(time: Time, exponent: Complex64, gap: Option<f64>) -> Complex64 {
    let decay = match (time, gap) {
        (_, None) => return exponent,
        (Time::Continuous, Some(gap)) => -0.5 * gap,
        (Time::Discrete { step }, Some(gap)) => 0.5 * (-gap).max(-1.0).ln_1p() / step,
    };
    Complex64::new(decay, exponent.im)
}

/// −2 Re ν, or 1 − |1 + ν|², of the modes that lie so near the boundary of stability that their
/// eigenvalue has lost digits of it.
///
/// ```text
/// A Σ + Σ A* = −B B*        (N Σ + Σ N* + N Σ N* = −B B*,  N = A − I)
/// w A = ν w:                gap = ‖w B‖² / (w Σ w*)
/// A v = ν v:                gap = ‖C v‖² / (v* Σ v)
/// ```
///
/// `size` is the norm of A; in discrete time B and C hold the columns and rows that the cut left as
/// well. A computed eigenvalue is off by ε ‖A‖ ‖w‖‖v‖, and a decay below that is lost. The quotients have
/// no such floor: rounding of w and v moves them by a part of themselves. Each of the three comes
/// with an estimate of its relative error, and the least decides.
pub(super) fn gaps(
    d: &Diagonalised,
    size: f64,
    sigma: &[f64],
    (b, c): (&DMatrix<Complex64>, &DMatrix<Complex64>),
) -> Vec<Option<f64>> {
    let mixing = Mixing::new(d, f64::EPSILON * size);
    let adjoint = d.inverse.adjoint();
    let reached = Quotients::new(&adjoint, sigma, &b.adjoint());
    let observed = Quotients::new(&d.vectors, sigma, c);
    let each = |j: usize| {
        let offers = [&reached, &observed].map(|side| (side.error(j, &mixing), side.gap(j)));
        let (error, gap) = if offers[1].0 < offers[0].0 {
            offers[1]
        } else {
            offers[0]
        };
        (gap > 0.0 && error * gap < CLEARLY * mixing.of_value(j)).then_some(gap)
    };
    (0..d.values.len()).map(each).collect()
}

/// Whether rounding of A reaches 1e-12 of a mode's distance from the boundary of stability.
pub(super) fn any_near_boundary(
    d: &Diagonalised,
    size: f64,
    distance: impl Fn(Complex64) -> f64,
) -> bool {
    let mixing = Mixing::new(d, f64::EPSILON * size);
    let near = |j: usize| mixing.of_value(j) > 1e-12 * distance(d.values[j]).abs();
    (0..d.values.len()).any(near)
}

/// A quotient replaces an eigenvalue's own decay only where its error is below this part of the
/// other.
const CLEARLY: f64 = 0.01;

/// How much of vector k rounding puts into vector j.
struct Mixing<'a> {
    values: &'a [Complex64],
    /// ‖w_j‖‖v_j‖ of each eigenvalue.
    conditions: Vec<f64>,
    rounding: f64,
}

impl<'a> Mixing<'a> {
    fn new(d: &'a Diagonalised, rounding: f64) -> Self {
        let norms = d.inverse.row_iter().zip(d.vectors.column_iter());
        Self {
            values: &d.values,
            conditions: norms.map(|(w, v)| w.norm() * v.norm()).collect(),
            rounding,
        }
    }

    /// The error of eigenvalue j.
    fn of_value(&self, j: usize) -> f64 {
        self.rounding * self.conditions[j]
    }

    fn of_vectors(&self, j: usize, k: usize) -> f64 {
        let distance = (self.values[j] - self.values[k]).norm();
        self.rounding * (self.conditions[j] * self.conditions[k]).sqrt() / distance
    }
}

/// ‖M x_j‖ and √(x_j* Σ x_j) for the columns x_j of X, unit vectors or not.
struct Quotients {
    images: Vec<f64>,
    /// Σ_k ‖m_k‖ |x_kj|, what the image is a sum of.
    terms: Vec<f64>,
    weights: Vec<f64>,
}

impl Quotients {
    fn new(x: &DMatrix<Complex64>, sigma: &[f64], m: &DMatrix<Complex64>) -> Self {
        let columns: Vec<f64> = m.column_iter().map(|column| column.norm()).collect();
        let weighted = |sizes: &[f64], of: fn(&Complex64) -> f64| -> Vec<f64> {
            let sum = |column: nalgebra::DVectorView<'_, Complex64>| {
                let terms = column.iter().zip(sizes);
                terms.map(|(x, size)| size * of(x)).sum::<f64>()
            };
            x.column_iter().map(sum).collect()
        };
        let weights = weighted(sigma, Complex64::norm_sqr);
        Self {
            images: (m * x).column_iter().map(|column| column.norm()).collect(),
            terms: weighted(&columns, |x| x.norm()),
            weights: weights.into_iter().map(f64::sqrt).collect(),
        }
    }

    fn gap(&self, j: usize) -> f64 {
        (self.images[j] / self.weights[j]).powi(2)
    }

    /// The relative error of the gap.
    fn error(&self, j: usize, mixing: &Mixing<'_>) -> f64 {
        let mut error = f64::EPSILON * (self.terms[j] / self.images[j] + 1.0);
        for k in (0..self.images.len()).filter(|&k| k != j) {
            let share = self.images[k] / self.images[j] + self.weights[k] / self.weights[j];
            error += mixing.of_vectors(j, k) * share;
        }
        2.0 * error
    }
}
