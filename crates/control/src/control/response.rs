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

#[cfg(test)]
mod tests {
    use super::*;

    /// Matrices of no particular shape, another for every seed.
    fn sample(rows: usize, columns: usize, seed: usize) -> DMatrix<Complex64> {
        DMatrix::from_fn(rows, columns, |i, j| {
            let k = (7 * seed + 3 * i + 5 * j + 1) as f64;
            Complex64::new((k * k).sin(), (1.7 * k * k).cos())
        })
    }

    /// The largest ‖X₀ + X₁ t + X₂ t²‖₂ for |t| ≤ span, by trial.
    fn swept(x: &[DMatrix<Complex64>; 3], span: f64) -> f64 {
        let at = |t: f64| &x[0] + &x[1] * Complex64::from(t) + &x[2] * Complex64::from(t * t);
        let points = (-100..=100).map(|k| span * f64::from(k) / 100.0);
        points.map(|t| spectral_norm(&at(t))).fold(0.0, f64::max)
    }

    #[test]
    fn the_bound_of_matrices_lies_at_most_a_quarter_of_the_square_above_a_sweep() {
        for seed in 0..8 {
            for span in [0.1, 0.6, 2.0] {
                let x = [0, 1, 2].map(|k| sample(3, 2, 3 * seed + k));
                // One where the middle of the interval is the largest.
                let bent = [
                    x[0].clone(),
                    x[1].clone(),
                    &x[1] * Complex64::from(-1.0 / span),
                ];
                for x in [x, bent] {
                    let (bound, peak) = Several::quadratic([&x[0], &x[1], &x[2]], span);
                    let largest = swept(&x, span);
                    let slack = 0.25 * span * span * spectral_norm(&x[2]);
                    assert!(bound >= largest * (1.0 - 1e-12), "{bound} {largest}");
                    assert!(
                        bound <= largest + slack + 1e-3 * largest,
                        "{bound} {largest}"
                    );
                    assert_eq!(peak.abs(), 0.5 * span);
                }
            }
        }
    }

    #[test]
    fn the_place_to_try_lies_on_the_side_of_the_larger_corner() {
        let one = DMatrix::from_element(2, 2, Complex64::ONE);
        for (slope, peak) in [(0.5, 0.25), (-0.5, -0.25)] {
            let slope = &one * Complex64::from(slope);
            let zero = DMatrix::zeros(2, 2);
            assert_eq!(Several::quadratic([&one, &slope, &zero], 0.5).1, peak);
        }
    }

    #[test]
    fn the_bound_of_numbers_is_exact_but_for_the_cubic_and_the_quartic_part() {
        for seed in 0..20 {
            for span in [0.1, 0.6, 2.0] {
                let x = [0, 1, 2].map(|k| sample(1, 1, 3 * seed + k));
                let [x0, x1, x2] = [0, 1, 2].map(|k| x[k][0]);
                let (bound, peak) = Single::quadratic([&x0, &x1, &x2], span);
                let largest = swept(&x, span);
                assert!(bound >= largest * (1.0 - 1e-12), "{bound} {largest}");
                let left =
                    4.0 * (x1 * x2).norm() * span.powi(3) + 2.0 * (x2 * span * span).norm_sqr();
                assert!(bound * bound <= largest * largest * (1.0 + 1e-3) + left);
                // |X₀ + X₁ t|² + 2 Re(X̄₀ X₂) t² is nowhere larger than at the peak.
                let head = |t: f64| (x0 + x1 * t).norm_sqr() + 2.0 * (x0.conj() * x2).re * t * t;
                for k in -100..=100 {
                    let t = span * f64::from(k) / 100.0;
                    assert!(
                        head(t) <= head(peak) + 1e-12 * head(peak).abs(),
                        "{seed} {t} {peak}"
                    );
                }
                assert!(peak.abs() <= span);
                let (straight, edge) = Single::quadratic([&x0, &x1, &Complex64::ZERO], span);
                let ends = [span, -span].map(|t| (x0 + x1 * t).norm());
                assert!((straight / ends[0].max(ends[1]) - 1.0).abs() < 1e-14);
                assert_eq!(edge, if ends[0] > ends[1] { span } else { -span });
            }
        }
    }

    #[test]
    fn one_input_and_one_output_are_a_case_of_several() {
        let (input, output) = (sample(4, 1, 1), sample(1, 4, 2));
        let residues: Vec<Complex64> = output.iter().zip(&input).map(|(c, b)| c * b).collect();
        let several = Several {
            input,
            output,
            direct: DMatrix::from_element(1, 1, -0.3),
        };
        let single = Single {
            residues,
            direct: -0.3,
        };
        let weights = sample(4, 1, 3);
        for direct in [false, true] {
            let (x, y) = (
                single.combine(weights.as_slice(), direct),
                several.combine(weights.as_slice(), direct),
            );
            assert!((x - y[0]).norm() < 1e-14);
            assert!((Single::norm(&x) - Several::norm(&y)).abs() < 1e-14);
            assert!((Single::norm_bound(&x) - Several::norm_bound(&y)).abs() < 1e-14);
        }
        for (x, y) in single.sizes().iter().zip(several.sizes()) {
            assert!((x - y).abs() < 1e-14);
        }
        assert_eq!((single.direct(), several.direct()), (0.3, 0.3));
        assert_eq!((single.width(), several.width()), (1, 1));
    }

    #[test]
    fn sizes_of_matrices_are_their_largest_singular_values() {
        let several = Several {
            input: sample(4, 2, 1),
            output: sample(3, 4, 2),
            direct: sample(3, 2, 3).map(|x| x.re),
        };
        assert_eq!(several.width(), 3);
        let direct = several.direct.clone().svd(false, false).singular_values[0];
        assert!((several.direct() / direct - 1.0).abs() < 1e-14);
        for (j, size) in several.sizes().into_iter().enumerate() {
            let residue = several.output.column(j) * several.input.row(j);
            let largest = residue.clone().svd(false, false).singular_values[0];
            assert!((size / largest - 1.0).abs() < 1e-13, "{size} {largest}");
            assert!((Several::norm(&residue) / largest - 1.0).abs() < 1e-13);
            assert!(Several::norm_bound(&residue) >= largest * (1.0 - 1e-14));
        }
        let row = sample(1, 3, 4);
        assert!((Several::norm(&row) / row.norm() - 1.0).abs() < 1e-14);
    }
}
