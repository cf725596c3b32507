//! A singular value decomposition that keeps the small values of graded matrices.

use nalgebra::ComplexField;
use nalgebra::DMatrix;

use crate::linalg::LinalgError;
use crate::linalg::Scalar;
use crate::linalg::kernels::fast_pivoted_qr;
use crate::linalg::kernels::gram_vectors;
use crate::linalg::kernels::orthonormalised;
use crate::linalg::multiply;
use crate::linalg::multiply_adjoint;

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
    /// Jacobi rotations after the ordinary SVD; 0 when that alone kept the digits of every σ.
    pub rotations: usize,
}

/// Inner products of unit vectors below this are left alone.
const ORTHOGONAL: f64 = 1e-12;

/// Columns whose norms span more than this are decomposed in groups: a bidiagonalising SVD is
/// accurate relative to its largest value only.
const GROUP_SPAN: f64 = 1e-15;

/// Decomposes M so that each σ is accurate relative to itself when M = D₁ K D₂ with diagonal
/// D₁, D₂ and a well-conditioned K, however steep the grading.
///
/// ```text
/// M Π = Q R,   R* Y = Z,   columns of Z orthogonal:   σ_j = ‖z_j‖,   U = Q Y,   V = Π Z Σ⁻¹
/// ```
///
/// Y starts block-diagonal, from ordinary SVDs of groups of columns of R* whose norms span
/// fifteen decades at most. One-sided Jacobi rotations then correct those pairs of columns that still
/// move a σ: with c = |z_p* z_q|/(‖z_p‖ ‖z_q‖) and ρ = (σ_q/σ_p)², a pair does so by
/// c²/max(1 − ρ, c), compared with n ε. A mild spectrum needs no rotation. A bidiagonalising SVD
/// alone would lose every σ below about 1e-16 σ₁. Cost about 40 n³ flops, and 12 n for each
/// rotation.
///
/// # Errors
/// [`LinalgError::NotFinite`]; [`LinalgError::NotConverged`] after 60 sweeps.
///
/// # References
/// Drmač and Veselić (2008), SIAM J. Matrix Anal. Appl. 29, parts I and II.
pub fn graded_svd<T: Scalar>(matrix: &DMatrix<T>) -> Result<GradedSvd<T>, LinalgError> {
    if !matrix.iter().all(|x| nalgebra::ComplexField::is_finite(x)) {
        return Err(LinalgError::NotFinite {
            what: "a matrix to be decomposed",
        });
    }
    let (q, r, permutation) = fast_pivoted_qr(matrix);
    let (mut z, mut y) = preconditioned(&r.adjoint());
    let (worst_cosine, rotations) = refine(&mut z, &mut y)?;
    let (order, sigma) = descending_norms(&z);
    let left = DMatrix::from_fn(y.nrows(), sigma.len(), |i, j| y[(i, order[j])]);
    let right = DMatrix::from_fn(z.nrows(), sigma.len(), |i, j| {
        scaled_inverse(&z[(i, order[j])], sigma[j])
    });
    let right = if worst_cosine > ORTHOGONAL {
        let rank = sigma.iter().take_while(|&&value| value > 0.0).count();
        orthonormal(right, rank)
    } else {
        right
    };
    Ok(GradedSvd {
        u: multiply(&q, &left),
        sigma,
        v: unpivot_rows(&right, &permutation),
        rotations,
    })
}

/// Makes the first `rank` columns orthonormal, X ← X L⁻* with X* X = L L*. They are so already
/// as far as the σ can tell; this clears what small vectors still hold of large ones.
fn orthonormal<T: Scalar>(mut x: DMatrix<T>, rank: usize) -> DMatrix<T> {
    if let Some(better) = orthonormalised(&x.columns(0, rank).into_owned()) {
        x.columns_mut(0, rank).copy_from(&better);
    }
    x
}

/// Z = B Y with orthogonal columns inside each group of columns of like norm.
fn preconditioned<T: Scalar>(b: &DMatrix<T>) -> (DMatrix<T>, DMatrix<T>) {
    let norms: Vec<f64> = b.column_iter().map(|column| column.norm()).collect();
    let mut z = b.clone();
    let mut y = DMatrix::identity(b.ncols(), b.ncols());
    let mut start = 0;
    while start < norms.len() {
        let head = norms[start];
        let same = norms[start..]
            .iter()
            .take_while(|&&norm| norm > GROUP_SPAN * head);
        let count = same.count().max(1);
        let group = b.columns(start, count).into_owned();
        if let Some(vectors) = gram_vectors(&group.unscale(head.max(f64::MIN_POSITIVE))) {
            z.columns_mut(start, count)
                .copy_from(&multiply(&group, &vectors));
            y.view_mut((start, start), (count, count))
                .copy_from(&vectors);
        }
        start += count;
    }
    (z, y)
}

/// Rotates pairs of columns until none moves a singular value. Returns the largest cosine between
/// two columns that is left, and the number of rotations.
fn refine<T: Scalar>(z: &mut DMatrix<T>, y: &mut DMatrix<T>) -> Result<(f64, usize), LinalgError> {
    let mut rotations = 0;
    for _ in 0..SWEEPS_MAX {
        let (pairs, worst_cosine) = pairs_that_matter(z);
        if pairs.is_empty() {
            return Ok((worst_cosine, rotations));
        }
        rotations += pairs.len();
        for pair in pairs {
            rotate_pair(z, y, pair);
        }
    }
    Err(LinalgError::NotConverged {
        what: "the one-sided Jacobi iteration",
        size: z.ncols(),
        iterations: SWEEPS_MAX,
    })
}

/// The pairs of columns whose inner product moves a singular value by more than n ε of itself,
/// and the largest cosine between any two columns.
fn pairs_that_matter<T: Scalar>(z: &DMatrix<T>) -> (Vec<(usize, usize)>, f64) {
    let norms: Vec<f64> = z.column_iter().map(|column| column.norm()).collect();
    let mut unit = z.clone();
    for (mut column, &norm) in unit.column_iter_mut().zip(&norms) {
        if norm > 0.0 {
            column.unscale_mut(norm);
        }
    }
    let cosines = multiply_adjoint(&unit, &unit);
    let threshold = f64::EPSILON * z.ncols().max(8) as f64;
    let mut worst_square = 0.0_f64;
    let mut pairs = Vec::new();
    for q in 1..z.ncols() {
        for p in 0..q {
            let square = nalgebra::ComplexField::modulus_squared(cosines[(p, q)]);
            if square <= threshold * threshold {
                continue;
            }
            worst_square = worst_square.max(square);
            let ratio = norms[p].min(norms[q]) / norms[p].max(norms[q]);
            let gap = 1.0 - ratio * ratio;
            if square > threshold * gap.max(square.sqrt()) {
                pairs.push((p, q));
            }
        }
    }
    (pairs, worst_square.sqrt())
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

/// One Jacobi rotation of columns p and q of Y, and of W beside it.
fn rotate_pair<T: ComplexField<RealField = f64>>(
    y: &mut DMatrix<T>,
    w: &mut DMatrix<T>,
    (p, q): (usize, usize),
) {
    let norm_p = y.column(p).norm();
    let norm_q = y.column(q).norm();
    let product = y.column(p).dotc(&y.column(q));
    let modulus = product.clone().abs();
    if norm_p == 0.0 || norm_q == 0.0 || modulus == 0.0 {
        return;
    }
    let phase = product.unscale(modulus);
    // tan 2θ = 2|x*y| / (‖x‖² − ‖y‖²), written without squares that could underflow.
    let zeta = (norm_q / norm_p - norm_p / norm_q) / (2.0 * (modulus / norm_p) / norm_q);
    let t = zeta.signum() / (zeta.abs() + zeta.hypot(1.0));
    let c = 1.0 / t.hypot(1.0);
    apply_rotation(y, (p, q), (c, c * t), &phase);
    apply_rotation(w, (p, q), (c, c * t), &phase);
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
    fn zero_matrices_and_zero_columns_have_zero_values() {
        for size in [1, 2, 5, 40, 67] {
            let mut a = DMatrix::<f64>::zeros(size, size);
            assert_eq!(graded_svd(&a).unwrap().sigma, vec![0.0; size]);
            a[(size - 1, size / 2)] = 3.0;
            let svd = graded_svd(&a).unwrap();
            assert!((svd.sigma[0] - 3.0).abs() < 1e-15);
            assert!(svd.sigma[1..].iter().all(|&value| value == 0.0), "{size}");
            let complex = a.map(num_complex::Complex64::from);
            let sigma = graded_svd(&complex).unwrap().sigma;
            assert!(sigma[1..].iter().all(|&value| value == 0.0), "{size}");
        }
    }

    #[test]
    fn a_matrix_with_nan_is_an_error_and_not_a_hang() {
        let a = DMatrix::from_element(3, 3, f64::NAN);
        assert!(matches!(graded_svd(&a), Err(LinalgError::NotFinite { .. })));
    }
}
