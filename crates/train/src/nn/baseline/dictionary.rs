//! Dictionaries, and the step constant of a proximal gradient method.

use std::f64::consts::PI;

use nalgebra::{DMatrix, DVector};

/// The DCT dictionary Q_D, signal × codes, every column of norm one.
///
/// Where the signal is a square image of side² numbers, row by row, Q_D = D_p ⊗ D_q with p the
/// largest divisor of `codes` up to its root, and q = codes/p:
///
/// ```text
/// D_p[i, k] = cos(π (i + ½) k / p),  side × p
/// ```
///
/// Columns of D_p with k > 0 are freed of their mean. For another signal Q_D is one such factor,
/// signal × codes. With p = q = side it is the orthonormal DCT-II; with fewer codes than numbers
/// of the signal it is undercomplete. A column that the mean takes away whole stays zero (only for
/// side = 1).
///
/// # References
/// Le, Luong and Deligiannis use an overcomplete DCT without naming one; this is the usual separable
/// one of dictionary learning.
#[must_use]
pub fn dct_dictionary(signal: usize, codes: usize) -> DMatrix<f64> {
    let side = signal.isqrt();
    if side * side != signal {
        return cosines(signal, codes);
    }
    let divisor = (1..=codes.isqrt()).rev().find(|p| codes.is_multiple_of(*p));
    let p = divisor.unwrap_or(1);
    cosines(side, p).kronecker(&cosines(side, codes / p))
}

fn cosines(side: usize, count: usize) -> DMatrix<f64> {
    let mut factor = DMatrix::from_fn(side, count, |i, k| {
        (PI * (i as f64 + 0.5) * k as f64 / count as f64).cos()
    });
    for (k, mut column) in factor.column_iter_mut().enumerate() {
        if k > 0 {
            let mean = column.mean();
            column.add_scalar_mut(-mean);
        }
        let norm = column.norm();
        if norm > 0.0 {
            column /= norm;
        }
    }
    factor
}

/// ‖J‖₂², the largest eigenvalue of JᵀJ, by power iteration: the least step constant c_s with
/// which the proximal gradient method surely descends.
///
/// Stops when an iteration changes the value by less than 1e-13 of it, or after 5,000 iterations;
/// what is left is below the true value. 0 for an empty or a zero matrix. O(rows × columns) for
/// each iteration.
#[must_use]
pub fn squared_norm(j: &DMatrix<f64>) -> f64 {
    // A fixed start that is orthogonal to no eigenvector but by chance.
    let start = (0..j.ncols()).map(|i| 1.0 + ((i as f64 + 1.0) * 0.754_877_666).fract());
    let mut direction = DVector::from_iterator(j.ncols(), start);
    let mut value = 0.0;
    for _ in 0..5_000 {
        let norm = direction.norm();
        if norm == 0.0 || !norm.is_finite() {
            return norm;
        }
        direction /= norm;
        let image = j * &direction;
        let found = image.norm_squared();
        if (found - value).abs() <= 1e-13 * found {
            return found;
        }
        value = found;
        direction = j.tr_mul(&image);
    }
    value
}
