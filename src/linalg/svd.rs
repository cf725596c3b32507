//! A singular value decomposition that keeps the small values of graded matrices.

use nalgebra::ComplexField;
use nalgebra::DMatrix;

use crate::linalg::LinalgError;
use crate::linalg::pivoted_qr;

/// Sweeps after which the Jacobi iteration gives up; five to eight are usual.
const SWEEPS_MAX: usize = 60;

/// M = U diag(σ) V* in its thin form, σ descending.
pub struct GradedSvd<T: ComplexField<RealField = f64>> {
    /// Left vectors, m × k. A column whose σ is zero is zero.
    pub u: DMatrix<T>,
    /// Singular values, descending, k = min(m, n) of them.
    pub sigma: Vec<f64>,
    /// Right vectors, n × k.
    pub v: DMatrix<T>,
}

/// Decomposes M so that each σ is accurate relative to itself when M = D₁ K D₂ with diagonal
/// D₁, D₂ and a well-conditioned K, however steep the grading.
///
/// ```text
/// M Π = Q₁ R,   R* = Q₂ R₂ (pivoted again),   Y = R₂*,   Y W = U S   by one-sided Jacobi
/// ```
///
/// A bidiagonalising SVD loses every σ below about 1e-16 σ₁; this one does not. Two columns
/// count as orthogonal when |x*y| ≤ n ε ‖x‖ ‖y‖. Cost about 10 n³ for each sweep.
///
/// # Errors
/// [`LinalgError::NotConverged`] after 60 sweeps (NaN in the input, in practice).
///
/// # References
/// Drmač and Veselić (2008), SIAM J. Matrix Anal. Appl. 29, parts I and II.
pub fn graded_svd<T: ComplexField<RealField = f64>>(
    matrix: &DMatrix<T>,
) -> Result<GradedSvd<T>, LinalgError> {
    let first = pivoted_qr(matrix);
    let second = pivoted_qr(&first.r.adjoint());
    let mut y = unpivot_rows(&second.r.adjoint(), &second.permutation);
    let mut w = DMatrix::identity(y.ncols(), y.ncols());
    orthogonalise(&mut y, &mut w)?;
    let (order, sigma) = descending_norms(&y);
    let left = DMatrix::from_fn(y.nrows(), sigma.len(), |i, j| {
        scaled_inverse(&y[(i, order[j])], sigma[j])
    });
    let right = DMatrix::from_fn(w.nrows(), sigma.len(), |i, j| w[(i, order[j])].clone());
    let v = unpivot_rows(&(&second.q * right), &first.permutation);
    Ok(GradedSvd {
        u: &first.q * left,
        sigma,
        v,
    })
}

fn scaled_inverse<T: ComplexField<RealField = f64>>(entry: &T, sigma: f64) -> T {
    if sigma > 0.0 {
        entry.clone().unscale(sigma)
    } else {
        T::zero()
    }
}

/// Row `permutation[i]` of the result is row i of the argument.
fn unpivot_rows<T: ComplexField<RealField = f64>>(
    a: &DMatrix<T>,
    permutation: &[usize],
) -> DMatrix<T> {
    let mut out = a.clone();
    for (i, &to) in permutation.iter().enumerate() {
        out.set_row(to, &a.row(i));
    }
    out
}

fn descending_norms<T: ComplexField<RealField = f64>>(y: &DMatrix<T>) -> (Vec<usize>, Vec<f64>) {
    let norms: Vec<f64> = y.column_iter().map(|column| column.norm()).collect();
    let mut order: Vec<usize> = (0..norms.len()).collect();
    order.sort_by(|&a, &b| norms[b].total_cmp(&norms[a]));
    let sigma = order.iter().map(|&j| norms[j]).collect();
    (order, sigma)
}

/// One-sided Jacobi: rotates pairs of columns of Y (and of W beside it) until all are orthogonal.
fn orthogonalise<T: ComplexField<RealField = f64>>(
    y: &mut DMatrix<T>,
    w: &mut DMatrix<T>,
) -> Result<(), LinalgError> {
    let columns = y.ncols();
    let threshold = f64::EPSILON * columns.max(8) as f64;
    for _ in 0..SWEEPS_MAX {
        let mut rotated = false;
        for p in 0..columns {
            for q in p + 1..columns {
                rotated |= rotate_pair(y, w, (p, q), threshold);
            }
        }
        if !rotated {
            return Ok(());
        }
    }
    Err(LinalgError::NotConverged {
        what: "the one-sided Jacobi iteration",
        size: columns,
        iterations: SWEEPS_MAX,
    })
}

fn rotate_pair<T: ComplexField<RealField = f64>>(
    y: &mut DMatrix<T>,
    w: &mut DMatrix<T>,
    (p, q): (usize, usize),
    threshold: f64,
) -> bool {
    let norm_p = y.column(p).norm();
    let norm_q = y.column(q).norm();
    if norm_p == 0.0 || norm_q == 0.0 {
        return false;
    }
    let product = y.column(p).dotc(&y.column(q));
    let modulus = product.clone().abs();
    if modulus <= threshold * norm_p * norm_q {
        // NaN falls through to here as "not small" only when it must fail the sweep cap.
        return modulus.is_nan();
    }
    let phase = product.unscale(modulus);
    // tan 2θ = 2|x*y| / (‖x‖² − ‖y‖²), written without squares that could underflow.
    let zeta = (norm_q / norm_p - norm_p / norm_q) / (2.0 * (modulus / norm_p) / norm_q);
    let t = zeta.signum() / (zeta.abs() + zeta.hypot(1.0));
    let c = 1.0 / t.hypot(1.0);
    apply_rotation(y, (p, q), (c, c * t), &phase);
    apply_rotation(w, (p, q), (c, c * t), &phase);
    true
}

/// (x, y) ← (c x − s e^{−iφ} y, s e^{iφ} x + c y), where e^{iφ} is the phase of x*y.
fn apply_rotation<T: ComplexField<RealField = f64>>(
    a: &mut DMatrix<T>,
    (p, q): (usize, usize),
    (c, s): (f64, f64),
    phase: &T,
) {
    let forward = phase.clone().scale(s);
    let backward = phase.clone().conjugate().scale(s);
    let (mut x, mut y) = a.columns_range_pair_mut(p, q);
    for (x, y) in x.iter_mut().zip(y.iter_mut()) {
        let kept = x.clone();
        *x = kept.clone().scale(c) - backward.clone() * y.clone();
        *y = forward.clone() * kept + y.clone().scale(c);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use num_complex::Complex64;

    #[test]
    fn the_factors_rebuild_a_complex_matrix_of_any_shape() {
        for (rows, columns) in [(6, 6), (8, 5), (5, 8)] {
            let a = DMatrix::from_fn(rows, columns, |i, j| {
                Complex64::new(((i * 5 + j) as f64).sin(), ((i + 3 * j) as f64).cos())
            });
            let svd = graded_svd(&a).unwrap();
            let sigma = DMatrix::from_diagonal(&nalgebra::DVector::from_iterator(
                svd.sigma.len(),
                svd.sigma.iter().map(|&s| Complex64::from(s)),
            ));
            assert!((&svd.u * sigma * svd.v.adjoint() - a).norm() < 1e-13);
            assert!(svd.sigma.windows(2).all(|pair| pair[0] >= pair[1]));
        }
    }

    #[test]
    fn tiny_values_of_a_graded_matrix_survive() {
        // D K D with K = [[2, 1], [1, 2]] and D = diag(1, 1e-20): σ₁ ≈ 2, σ₂ = det/σ₁ = 1.5e-40.
        let d = 1e-20;
        let a = DMatrix::from_row_slice(2, 2, &[2.0, d, d, 2.0 * d * d]);
        let sigma = graded_svd(&a).unwrap().sigma;
        assert!((sigma[1] / 1.5e-40 - 1.0).abs() < 1e-14, "{sigma:?}");
    }

    #[test]
    fn a_matrix_with_nan_is_an_error_and_not_a_hang() {
        let a = DMatrix::from_element(3, 3, f64::NAN);
        assert!(matches!(
            graded_svd(&a),
            Err(LinalgError::NotConverged { .. })
        ));
    }
}
