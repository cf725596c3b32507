//! Pivoted QR by faer with Q left as reflectors.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::householder::{
    apply_block_householder_sequence_on_the_left_in_place_scratch as apply_scratch,
    apply_block_householder_sequence_on_the_left_in_place_with_conj as apply_reflectors,
};
use faer::linalg::qr::col_pivoting::factor::{qr_in_place, qr_in_place_scratch};
use faer::linalg::qr::no_pivoting::factor::recommended_block_size;
use faer::{Conj, Par};
use nalgebra::DMatrix;

use crate::linalg::kernels::{all_finite, view, view_mut};
use crate::linalg::{PivotedQr, Scalar, multiply, pivoted_qr};

/// The unitary factor of a QR.
#[derive(Debug, Clone)]
enum Unitary<T> {
    /// Reflectors below the diagonal of the factored matrix, and the triangular factors of their
    /// blocks.
    Reflectors(DMatrix<T>, DMatrix<T>),
    /// The thin Q itself.
    Formed(DMatrix<T>),
}

/// A Π = Q R of an m × n matrix. Q is applied, and never formed: of most matrices only few columns
/// of Q X are requested.
#[derive(Debug, Clone)]
pub(super) struct ReflectedQr<T> {
    unitary: Unitary<T>,
    rows: usize,
}

/// R* (n × min(m, n), lower triangular) and the column of A that stands at each place of A Π.
pub(super) type LowerFactor<T> = (DMatrix<T>, Vec<usize>);

impl<T: Scalar> ReflectedQr<T> {
    /// Factors A. Norms are downdated, so the order of columns that are small against the first is
    /// only roughly right. Cost 4/3 n³ products when A is square.
    pub(super) fn new(matrix: &DMatrix<T>) -> (Self, LowerFactor<T>) {
        let (rows, columns) = matrix.shape();
        let steps = rows.min(columns);
        let block = recommended_block_size::<T>(rows, columns);
        let mut factors = DMatrix::zeros(block, steps);
        let (mut forward, mut back) = (vec![0_usize; columns], vec![0_usize; columns]);
        let mut a = matrix.clone();
        qr_in_place(
            view_mut(&mut a),
            view_mut(&mut factors),
            &mut forward,
            &mut back,
            Par::Seq,
            MemStack::new(&mut MemBuffer::new(qr_in_place_scratch::<usize, T>(
                rows,
                columns,
                block,
                Par::Seq,
                Default::default(),
            ))),
            Default::default(),
        );
        // faer divides by the norm of a column that is zero. An infinite τ stands for no reflector.
        #[allow(clippy::eq_op, reason = "NaN is what differs from itself")]
        let broken = !all_finite(&a) || factors.iter().any(|x| x != x);
        if broken {
            let PivotedQr { q, r, permutation } = pivoted_qr(matrix);
            let unitary = Unitary::Formed(q);
            return (Self { unitary, rows }, (r.adjoint(), permutation));
        }
        let lower = lower_factor(&a, steps);
        let unitary = Unitary::Reflectors(a, factors);
        (Self { unitary, rows }, (lower, forward))
    }

    /// A thin Q that was found elsewhere.
    #[cfg(feature = "lapack")]
    pub(super) fn formed(q: DMatrix<T>) -> Self {
        Self {
            rows: q.nrows(),
            unitary: Unitary::Formed(q),
        }
    }

    /// Q X, for X with as many rows as R. Cost 2 m n products for each column.
    pub(super) fn apply(&self, x: &DMatrix<T>) -> DMatrix<T> {
        let (basis, factors) = match &self.unitary {
            Unitary::Formed(q) => return multiply(q, x),
            Unitary::Reflectors(basis, factors) => (basis, factors),
        };
        let mut out = x.clone().resize_vertically(self.rows, nalgebra::zero());
        let (block, steps) = factors.shape();
        if steps == 0 {
            return out;
        }
        let scratch = apply_scratch::<T>(self.rows, block, x.ncols());
        apply_reflectors(
            view(basis).subcols(0, steps),
            view(factors),
            Conj::No,
            view_mut(&mut out),
            Par::Seq,
            MemStack::new(&mut MemBuffer::new(scratch)),
        );
        out
    }
}

/// The adjoint of the upper triangle of the first `steps` rows.
fn lower_factor<T: Scalar>(packed: &DMatrix<T>, steps: usize) -> DMatrix<T> {
    let mut lower = DMatrix::zeros(packed.ncols(), steps);
    for (i, column) in packed.column_iter().enumerate() {
        for (j, &entry) in column.iter().take(steps.min(i + 1)).enumerate() {
            lower[(i, j)] = nalgebra::ComplexField::conjugate(entry);
        }
    }
    lower
}

#[cfg(test)]
mod tests {
    use num_complex::Complex64;

    use super::*;

    #[test]
    fn the_factors_rebuild_their_matrix() {
        for (rows, columns) in [(6, 6), (7, 4), (4, 7), (1, 1), (70, 70), (3, 0)] {
            let a = DMatrix::from_fn(rows, columns, |i, j| {
                Complex64::new(((i * 7 + j * j * 3) as f64).sin(), (i + 2 * j) as f64)
            });
            let (q, (lower, permutation)) = ReflectedQr::new(&a);
            let product = q.apply(&lower.adjoint());
            for (j, &from) in permutation.iter().enumerate() {
                let error = (product.column(j) - a.column(from)).norm();
                assert!(error <= 1e-14 * a.norm(), "{rows} x {columns}: {error:e}");
            }
        }
    }

    #[test]
    fn a_matrix_with_zero_columns_is_factored_too() {
        let mut a = DMatrix::<f64>::zeros(5, 5);
        a[(3, 1)] = 2.0;
        let (q, (lower, permutation)) = ReflectedQr::new(&a);
        let product = q.apply(&lower.adjoint());
        for (j, &from) in permutation.iter().enumerate() {
            assert_eq!(product.column(j), a.column(from));
        }
    }
}
