//! Householder QR with column pivoting, real or complex.

use nalgebra::{ComplexField, DMatrix, DVector};

/// A Π = Q R with the columns of A taken in order of decreasing remaining norm.
pub(crate) struct PivotedQr<T: ComplexField<RealField = f64>> {
    /// Orthonormal columns, m × k with k = min(m, n).
    pub q: DMatrix<T>,
    /// Upper triangular (trapezoidal when m < n), k × n.
    pub r: DMatrix<T>,
    /// Column j of A Π is column `permutation[j]` of A.
    pub permutation: Vec<usize>,
}

/// Factors A Π = Q R.
///
/// Column norms are computed afresh in each step: downdating them saves a third of the work and
/// loses the small ones, which are what the factor is for. Cost O(m n²).
///
/// # References
/// Drmač and Veselić, *New fast and accurate Jacobi SVD algorithm I*, SIAM J. Matrix Anal. Appl.
/// 29 (2008), section 2: pivoted QR as the preconditioner of one-sided Jacobi.
pub(crate) fn pivoted_qr<T: ComplexField<RealField = f64>>(matrix: &DMatrix<T>) -> PivotedQr<T> {
    let (rows, columns) = matrix.shape();
    let steps = rows.min(columns);
    let mut a = matrix.clone();
    let mut permutation: Vec<usize> = (0..columns).collect();
    let mut reflectors = Vec::with_capacity(steps);
    for k in 0..steps {
        let pivot = largest_column(&a, k);
        a.swap_columns(k, pivot);
        permutation.swap(k, pivot);
        reflectors.push(eliminate(&mut a, k));
    }
    let q = accumulate(&reflectors, rows, steps);
    let r = DMatrix::from_fn(steps, columns, |i, j| {
        if i <= j { a[(i, j)].clone() } else { T::zero() }
    });
    PivotedQr { q, r, permutation }
}

fn largest_column<T: ComplexField<RealField = f64>>(a: &DMatrix<T>, k: usize) -> usize {
    let rows = a.nrows() - k;
    let mut best = (k, -1.0);
    for j in k..a.ncols() {
        let norm = a.view((k, j), (rows, 1)).norm_squared();
        if norm > best.1 {
            best = (j, norm);
        }
    }
    best.0
}

/// Zeroes column k below the diagonal and returns the reflector v of I − 2 v v*.
fn eliminate<T: ComplexField<RealField = f64>>(a: &mut DMatrix<T>, k: usize) -> DVector<T> {
    let rows = a.nrows() - k;
    let mut v: DVector<T> = a.view((k, k), (rows, 1)).column(0).into_owned();
    let norm = v.norm();
    if norm == 0.0 {
        return DVector::zeros(rows);
    }
    let head = v[0].clone();
    let modulus = head.clone().abs();
    let phase = if modulus == 0.0 {
        T::one()
    } else {
        head.unscale(modulus)
    };
    v[0] += phase.clone().scale(norm);
    let length = v.norm();
    v.unscale_mut(length);
    for j in k..a.ncols() {
        reflect(a, k, j, &v);
    }
    for i in k + 1..a.nrows() {
        a[(i, k)] = T::zero();
    }
    a[(k, k)] = -phase.scale(norm);
    v
}

/// Applies I − 2 v v* to column j, rows k and below.
fn reflect<T: ComplexField<RealField = f64>>(
    a: &mut DMatrix<T>,
    k: usize,
    j: usize,
    v: &DVector<T>,
) {
    let mut column = a.view_mut((k, j), (v.len(), 1));
    let twice = v.dotc(&column.column(0)).scale(-2.0);
    column.column_mut(0).axpy(twice, v, T::one());
}

fn accumulate<T: ComplexField<RealField = f64>>(
    reflectors: &[DVector<T>],
    rows: usize,
    columns: usize,
) -> DMatrix<T> {
    let mut q = DMatrix::identity(rows, columns);
    for (k, v) in reflectors.iter().enumerate().rev() {
        for j in k..columns {
            reflect(&mut q, k, j, v);
        }
    }
    q
}

#[cfg(test)]
mod tests {
    use num_complex::Complex64;

    use super::*;

    fn sample(rows: usize, columns: usize) -> DMatrix<Complex64> {
        DMatrix::from_fn(rows, columns, |i, j| {
            Complex64::new(
                (1.3 * (i * 7 + j * 3) as f64).sin(),
                ((i + 2 * j) as f64).cos(),
            )
        })
    }

    #[test]
    fn the_product_of_the_factors_is_the_matrix() {
        for (rows, columns) in [(5, 5), (7, 4), (4, 7), (1, 1)] {
            let a = sample(rows, columns);
            let PivotedQr { q, r, permutation } = pivoted_qr(&a);
            let product = &q * &r;
            for (j, &from) in permutation.iter().enumerate() {
                assert!((product.column(j) - a.column(from)).norm() < 1e-13);
            }
            let identity = q.adjoint() * &q;
            assert!((identity - DMatrix::identity(q.ncols(), q.ncols())).norm() < 1e-13);
        }
    }

    #[test]
    fn a_zero_matrix_has_zero_r() {
        let zero = DMatrix::<f64>::zeros(3, 3);
        assert_eq!(pivoted_qr(&zero).r, zero);
    }
}
