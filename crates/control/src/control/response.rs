//! Weighted sums of the residues of a system: numbers, or matrices with several inputs or outputs.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::linalg::{multiply, spectral_norm};

/// Σ_j w_j R_j for weights w, with R_j the residues of a transfer function, and sizes of it.
pub(super) trait Response {
    type Value;

    /// Σ_j w_j R_j, and D when `direct`.
    fn combine(&self, weights: &[Complex64], direct: bool) -> Self::Value;

    /// ‖R_j‖₂ of each mode.
    fn sizes(&self) -> Vec<f64>;

    /// The size of D.
    fn direct(&self) -> f64;

    /// The longer side of a residue.
    fn width(&self) -> usize;

    /// ‖X‖₂.
    fn norm(value: &Self::Value) -> f64;

    /// At least ‖X‖₂, and cheap.
    fn norm_bound(value: &Self::Value) -> f64;

    /// A bound of ‖X₀ + X₁ t + X₂ t²‖₂ for |t| ≤ `span`, and where it may be largest.
    fn quadratic(values: [&Self::Value; 3], span: f64) -> (f64, f64);
}

/// One input and one output.
pub(super) struct Single {
    pub(super) residues: Vec<Complex64>,
    pub(super) direct: f64,
}

impl Response for Single {
    type Value = Complex64;

    fn combine(&self, weights: &[Complex64], direct: bool) -> Complex64 {
        let start = Complex64::from(if direct { self.direct } else { 0.0 });
        let terms = self.residues.iter().zip(weights);
        terms.fold(start, |sum, (residue, weight)| sum + residue * weight)
    }

    fn sizes(&self) -> Vec<f64> {
        self.residues.iter().map(|residue| residue.norm()).collect()
    }

    fn direct(&self) -> f64 {
        self.direct.abs()
    }

    fn width(&self) -> usize {
        1
    }

    fn norm(value: &Complex64) -> f64 {
        value.norm()
    }

    fn norm_bound(value: &Complex64) -> f64 {
        value.norm()
    }

    /// |X|² is a polynomial of degree 4; its quadratic part has its maximum where it has.
    fn quadratic(values: [&Complex64; 3], span: f64) -> (f64, f64) {
        let [x0, x1, x2] = values;
        let linear = 2.0 * (x0.conj() * x1).re;
        let square = x1.norm_sqr() + 2.0 * (x0.conj() * x2).re;
        let cubic = 2.0 * (x1.conj() * x2).re.abs() * span.powi(3);
        let quartic = x2.norm_sqr() * span.powi(4);
        let peak = peak_of(linear, square, span);
        let head = x0.norm_sqr() + linear * peak + square * peak * peak;
        ((head + cubic + quartic).max(0.0).sqrt(), peak)
    }
}

/// Where `linear` t + `square` t² is largest on [−span, span].
fn peak_of(linear: f64, square: f64, span: f64) -> f64 {
    let edge = if linear < 0.0 { -span } else { span };
    if square >= 0.0 {
        return edge;
    }
    let vertex = -linear / (2.0 * square);
    if vertex.abs() < span { vertex } else { edge }
}

/// Several inputs or outputs: R_j = c_j b_j.
pub(super) struct Several {
    /// b_j as rows.
    pub(super) input: DMatrix<Complex64>,
    /// c_j as columns.
    pub(super) output: DMatrix<Complex64>,
    pub(super) direct: DMatrix<f64>,
}

impl Response for Several {
    type Value = DMatrix<Complex64>;

    fn combine(&self, weights: &[Complex64], direct: bool) -> Self::Value {
        let mut weighted = self.input.clone();
        for (mut row, weight) in weighted.row_iter_mut().zip(weights) {
            row *= *weight;
        }
        let mut sum = multiply(&self.output, &weighted);
        if direct {
            sum += self.direct.map(Complex64::from);
        }
        sum
    }

    fn sizes(&self) -> Vec<f64> {
        let pairs = self.input.row_iter().zip(self.output.column_iter());
        pairs.map(|(b, c)| b.norm() * c.norm()).collect()
    }

    fn direct(&self) -> f64 {
        size(&self.direct.map(Complex64::from))
    }

    fn width(&self) -> usize {
        self.direct.nrows().max(self.direct.ncols())
    }

    fn norm(value: &Self::Value) -> f64 {
        size(value)
    }

    fn norm_bound(value: &Self::Value) -> f64 {
        value.norm()
    }

    /// The norm of X₀ + t X₁ + s X₂ is a convex function of (t, s), and the points (t, t²) lie in
    /// the polygon of the tangents of the parabola at −span, 0 and span. So the largest norm at
    /// its corners (±span, span²), (±span/2, 0) bounds all.
    fn quadratic(values: [&Self::Value; 3], span: f64) -> (f64, f64) {
        let [x0, x1, x2] = values;
        let at = |t: f64, s: f64| size(&(x0 + x1 * Complex64::from(t) + x2 * Complex64::from(s)));
        let corner = |t: f64| at(t, t * t).max(at(0.5 * t, 0.0));
        let (left, right) = (corner(-span), corner(span));
        let toward = if left > right { -1.0 } else { 1.0 };
        (left.max(right), 0.5 * toward * span)
    }
}

fn size(matrix: &DMatrix<Complex64>) -> f64 {
    match matrix.shape() {
        (1, _) | (_, 1) => matrix.norm(),
        _ => spectral_norm(matrix),
    }
}
