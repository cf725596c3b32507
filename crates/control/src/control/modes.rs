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
    b: &DMatrix<Complex64>,
    c: &DMatrix<Complex64>,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Two unit vectors, −0.8 between them, seen by one output as 1 and as 1.
    fn pair() -> (DMatrix<Complex64>, DMatrix<Complex64>) {
        let real = |rows, columns, x: &[f64]| {
            DMatrix::from_row_slice(rows, columns, x).map(Complex64::from)
        };
        (real(2, 2, &[1.0, -0.8, 0.0, 0.6]), real(1, 2, &[1.0, 3.0]))
    }

    #[test]
    fn the_estimate_covers_what_mixed_vectors_do_to_a_quotient() {
        let (vectors, output) = pair();
        let sigma = [1.0, 1.0];
        let values = [Complex64::new(-0.2, 0.1), Complex64::new(-0.2, 0.6)];
        let mixing = Mixing {
            values: &values,
            conditions: vec![2.0, 8.0],
            rounding: 1e-6,
        };
        // ε ‖A‖ √(κ_j κ_k)/|ν_j − ν_k|.
        let share = 1e-6 * 4.0 / 0.5;
        assert!((mixing.of_vectors(0, 1) / share - 1.0).abs() < 1e-14);
        assert_eq!([0, 1].map(|j| mixing.of_value(j)), [2e-6, 8e-6]);
        let exact = Quotients::new(&vectors, &sigma, &output);
        let mut worst = 0.0_f64;
        for k in 0..64 {
            let turned = Complex64::from_polar(share, 0.1 * f64::from(k));
            let mut mixed = vectors.clone();
            mixed.set_column(0, &(vectors.column(0) + vectors.column(1) * turned));
            let gap = Quotients::new(&mixed, &sigma, &output).gap(0);
            worst = worst.max((gap / exact.gap(0) - 1.0).abs());
        }
        // One part in a thousand: the estimate is of first order.
        let estimate = exact.error(0, &mixing);
        assert!(worst <= estimate * 1.001, "{worst:e} {estimate:e}");
        assert!(worst >= 0.5 * estimate, "{worst:e} {estimate:e}");
    }

    #[test]
    fn the_estimate_counts_what_cancels_in_an_image() {
        let ones = DMatrix::from_element(2, 1, Complex64::ONE);
        let output = DMatrix::from_row_slice(1, 2, &[1e6 + 1.0, -1e6]).map(Complex64::from);
        let quotients = Quotients::new(&ones, &[3.0, 1.0], &output);
        assert!((quotients.gap(0) - 0.25).abs() < 1e-15);
        let mixing = Mixing {
            values: &[Complex64::ZERO],
            conditions: vec![1.0],
            rounding: 0.0,
        };
        let lost = f64::EPSILON * 2e6;
        let estimate = quotients.error(0, &mixing);
        assert!(estimate >= lost && estimate < 4.0 * lost, "{estimate:e}");
    }

    #[test]
    fn a_gap_sets_the_decay_and_leaves_the_frequency() {
        let exponent = Complex64::new(-0.7, 3.0);
        let step = 0.25;
        let times = [Time::Continuous, Time::Discrete { step }];
        for time in times {
            assert_eq!(with_gap(time, exponent, None), exponent);
        }
        let found = with_gap(times[0], exponent, Some(1e-12));
        assert_eq!(found, Complex64::new(-0.5e-12, 3.0));
        for gap in [1e-12, 0.3, 1.0 - 1e-9] {
            let found = with_gap(times[1], exponent, Some(gap));
            let own = -(2.0 * found.re * step).exp_m1();
            assert!((own / gap - 1.0).abs() < 1e-14, "{own} {gap}");
            assert_eq!(found.im, 3.0);
        }
    }

    #[test]
    fn a_pole_at_zero_is_gone_after_one_step() {
        let time = Time::Discrete { step: 0.5 };
        let gone = exponent_of(time, Complex64::from(-1.0));
        assert!((gone * 0.5).exp().norm() <= 1e-304 * (1.0 + 1e-12) && gone.re.is_finite());
        let pole = Complex64::new(-0.6, 0.7);
        let exponent = exponent_of(time, pole - 1.0);
        assert!(((exponent * 0.5).exp() - pole).norm() < 1e-15);
        assert_eq!(exponent_of(Time::Continuous, pole), pole);
    }

    #[test]
    fn modes_near_the_boundary_are_those_that_rounding_reaches() {
        let (vectors, _) = pair();
        let d = Diagonalised {
            values: vec![Complex64::from(-1e-3), Complex64::from(-1.0)],
            inverse: vectors.clone().try_inverse().unwrap(),
            vectors,
            condition: 3.0,
        };
        // κ = 1/0.6 for both: a rounding of ε ‖A‖/0.6 against 1e-12 of a distance of 1e-3.
        let least = 1e-15 * 0.6 / f64::EPSILON;
        for (size, near) in [(1.01 * least, true), (0.99 * least, false)] {
            assert_eq!(any_near_boundary(&d, size, |value| value.re), near);
        }
    }

    fn one(values: &[f64]) -> Diagonalised {
        Diagonalised {
            values: values.iter().map(|&x| Complex64::from(x)).collect(),
            vectors: DMatrix::identity(values.len(), values.len()),
            inverse: DMatrix::identity(values.len(), values.len()),
            condition: 1.0,
        }
    }

    #[test]
    fn a_quotient_replaces_a_decay_only_where_it_is_a_hundred_times_better() {
        // Its error is 4 ε times itself, that of the eigenvalue ε ‖A‖.
        for (size, gap, taken) in [
            (1.0, 2.4e-3, true),
            (1.0, 2.6e-3, false),
            (0.5, 2.4e-3, false),
        ] {
            let rows = DMatrix::from_element(1, 1, Complex64::from(f64::sqrt(3.0 * gap)));
            let found = gaps(&one(&[-0.5 * gap]), size, &[3.0], &rows, &rows)[0];
            assert_eq!(found.is_some(), taken, "{size} {gap}");
            assert!(found.is_none_or(|found| (found / gap - 1.0).abs() < 1e-14));
        }
        let zero = DMatrix::zeros(1, 1);
        assert_eq!(gaps(&one(&[-1e-6]), 1.0, &[1.0], &zero, &zero), [None]);
    }

    #[test]
    fn of_two_quotients_the_one_with_the_smaller_error_counts() {
        let weak = DMatrix::from_row_slice(1, 2, &[1e-9, 1.0]).map(Complex64::from);
        let clear = DMatrix::from_row_slice(1, 2, &[1e-3, 1.0]).map(Complex64::from);
        for (b, c) in [(&weak, &clear), (&clear, &weak)] {
            let found = gaps(&one(&[-1e-6, -1.0]), 1.0, &[1.0, 1.0], &b.transpose(), c);
            assert!((found[0].unwrap() / 1e-6 - 1.0).abs() < 1e-14, "{found:?}");
            assert_eq!(found[1], None);
        }
    }
}
