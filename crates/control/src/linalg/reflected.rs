//! Pivoted QR in blocks of columns, with Q left as reflectors.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::householder::{
    apply_block_householder_sequence_on_the_left_in_place_scratch as apply_scratch,
    apply_block_householder_sequence_on_the_left_in_place_with_conj as apply_reflectors,
    apply_block_householder_sequence_transpose_on_the_left_in_place_scratch as adjoint_scratch,
    apply_block_householder_sequence_transpose_on_the_left_in_place_with_conj as apply_adjoint,
    make_householder_in_place, upgrade_householder_factor,
};
use faer::linalg::qr::col_pivoting::factor::{qr_in_place, qr_in_place_scratch};
use faer::linalg::qr::no_pivoting::factor::recommended_block_size;
use faer::{ColMut, Conj, MatMut, MatRef, Par};
use nalgebra::DMatrix;

use crate::linalg::Scalar;
use crate::linalg::kernels::{all_finite, view, view_mut};

/// The unitary factor of a QR.
#[derive(Debug, Clone)]
enum Unitary<T> {
    /// Reflectors below the diagonal of the factored matrix, and the triangular factors of their
    /// blocks.
    Reflectors(DMatrix<T>, DMatrix<T>),
    /// The thin Q itself.
    #[cfg(feature = "lapack")]
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

/// Columns that are factored before the others follow.
const PANEL: usize = 16;

/// A block of columns ends where the largest column in it is below this part of the largest outside.
const OUTSIDE: f64 = 0.5;

/// Matrices with fewer columns are factored column by column, which takes less time.
const BLOCKED: usize = 96;

impl<T: Scalar> ReflectedQr<T> {
    /// Factors A, in blocks where it is large or has columns of zeros.
    pub(super) fn new(matrix: &DMatrix<T>) -> (Self, LowerFactor<T>) {
        let small = matrix.ncols() < BLOCKED;
        let by_columns = small.then(|| Self::by_columns(matrix)).flatten();
        by_columns.unwrap_or_else(|| Self::by_blocks(matrix))
    }

    /// Factors A by faer. Norms are downdated, so the order of columns that are small against the
    /// first is only roughly right. `None` where a column is zero, by whose norm faer divides.
    fn by_columns(matrix: &DMatrix<T>) -> Option<(Self, LowerFactor<T>)> {
        let (rows, columns) = matrix.shape();
        let steps = rows.min(columns);
        let block = recommended_block_size::<T>(rows, columns);
        let mut factors = DMatrix::zeros(block, steps);
        let (mut forward, mut back) = (vec![0_usize; columns], vec![0_usize; columns]);
        let mut a = matrix.clone();
        let scratch =
            qr_in_place_scratch::<usize, T>(rows, columns, block, Par::Seq, Default::default());
        qr_in_place(
            view_mut(&mut a),
            view_mut(&mut factors),
            &mut forward,
            &mut back,
            Par::Seq,
            MemStack::new(&mut MemBuffer::new(scratch)),
            Default::default(),
        );
        // An infinite τ stands for no reflector.
        #[allow(clippy::eq_op, reason = "NaN is what differs from itself")]
        let broken = !all_finite(&a) || factors.iter().any(|x| x != x);
        if broken {
            return None;
        }
        let lower = lower_factor(&a, steps);
        let unitary = Unitary::Reflectors(a, factors);
        Some((Self { unitary, rows }, (lower, forward)))
    }

    /// Factors A, |r_kk| ≥ ‖R_{k:,j}‖/2 for every j > k.
    ///
    /// The largest columns that are left are taken together, at most sixteen of them, and factored
    /// with pivots among themselves as long as none outside is more than twice as large; all others
    /// follow by products of matrices. Norms are computed afresh for each block: what downdating
    /// loses are the small ones, which the factor is for. Cost 4/3 n³ products when A is square.
    ///
    /// # References
    /// Golub and Van Loan, *Matrix Computations*, 4th edition (2013), sections 5.2.2 and 5.4.1;
    /// Drmač and Veselić, SIAM J. Matrix Anal. Appl. 29 (2008), part I, section 2, for its use
    /// before Jacobi rotations.
    fn by_blocks(matrix: &DMatrix<T>) -> (Self, LowerFactor<T>) {
        let (rows, columns) = matrix.shape();
        let steps = rows.min(columns);
        let mut a = matrix.clone();
        let mut forward: Vec<usize> = (0..columns).collect();
        // No reflector, as faer has it.
        let mut scales = vec![f64::INFINITY; steps];
        let mut done = 0;
        while done < steps {
            let width = PANEL.min(steps - done);
            let outside = bring_forward(&mut a, &mut forward, done, width);
            let (_, left) = view_mut(&mut a).split_at_col_mut(done);
            let (mut panel, rest) = left.split_at_col_mut(width);
            let (order, scales) = (&mut forward[done..], &mut scales[done..]);
            let count = factor_panel(panel.as_mut(), done, outside, order, scales);
            if count == 0 {
                break;
            }
            let basis = panel.as_ref().get(done.., ..count);
            let factors = block_factors(basis, &scales[..count], count);
            reflect(basis, &factors, rest.get_mut(done.., ..));
            done += count;
        }
        let lower = lower_factor(&a, steps);
        let block = recommended_block_size::<T>(rows, columns);
        let factors = block_factors(view(&a).subcols(0, steps), &scales, block);
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
            #[cfg(feature = "lapack")]
            Unitary::Formed(q) => return crate::linalg::multiply(q, x),
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

/// Puts the `width` largest of the columns from `first` on in front, by their rows from `first` on.
/// Returns the norm of the largest column behind them.
fn bring_forward<T: Scalar>(
    a: &mut DMatrix<T>,
    order: &mut [usize],
    first: usize,
    width: usize,
) -> f64 {
    let mut norms: Vec<f64> = {
        let left = view(a).get(first.., first..);
        left.col_iter().map(|column| column.norm_l2()).collect()
    };
    for place in 0..width {
        let best = largest(&norms[place..]) + place;
        if best > place {
            norms.swap(place, best);
            order.swap(first + place, first + best);
            a.swap_columns(first + place, first + best);
        }
    }
    norms[width..].iter().copied().fold(0.0, f64::max)
}

/// The first of the largest numbers.
fn largest(numbers: &[f64]) -> usize {
    let mut best = 0;
    for (place, &number) in numbers.iter().enumerate() {
        if number > numbers[best] {
            best = place;
        }
    }
    best
}

/// Factors the rows from `first` on of a few columns, with pivots among them while the largest that
/// is left is not far below `outside`, and returns how many were factored. The reflectors stay below
/// the diagonal; `scales` takes their τ in I − v v*/τ.
fn factor_panel<T: Scalar>(
    mut panel: MatMut<'_, T>,
    first: usize,
    outside: f64,
    order: &mut [usize],
    scales: &mut [f64],
) -> usize {
    let width = panel.ncols();
    for (k, scale) in scales.iter_mut().enumerate().take(width) {
        let left = panel.as_ref().get(first + k.., k..);
        let norms: Vec<f64> = left.col_iter().map(|column| column.norm_l2()).collect();
        let pivot = largest(&norms);
        if norms[pivot] < SMALLEST || (k > 0 && norms[pivot] < OUTSIDE * outside) {
            return k;
        }
        if pivot > 0 {
            order.swap(k, k + pivot);
            let (left, right) = panel.as_mut().split_at_col_mut(k + pivot);
            swap(left.col_mut(k), right.col_mut(0));
        }
        let (column, rest) = panel.as_mut().get_mut(first + k.., k..).split_at_col_mut(1);
        let mut column = column.col_mut(0);
        let (mut head, tail) = column.as_mut().split_at_row_mut(1);
        *scale = make_householder_in_place(&mut head[0], tail).tau;
        let factor = DMatrix::from_element(1, 1, nalgebra::ComplexField::from_real(*scale));
        reflect(column.as_ref().as_mat(), &factor, rest);
    }
    width
}

fn swap<T: Scalar>(x: ColMut<'_, T>, y: ColMut<'_, T>) {
    faer::zip!(x, y).for_each(|faer::unzip!(x, y)| std::mem::swap(x, y));
}

/// Columns below this count as zero: the reciprocal of their norm could overflow.
const SMALLEST: f64 = 1e-290;

/// Applies the adjoint of a block of reflectors.
fn reflect<T: Scalar>(basis: MatRef<'_, T>, factors: &DMatrix<T>, columns: MatMut<'_, T>) {
    if columns.ncols() == 0 {
        return;
    }
    let scratch = adjoint_scratch::<T>(basis.nrows(), factors.nrows(), columns.ncols());
    apply_adjoint(
        basis,
        view(factors),
        Conj::Yes,
        columns,
        Par::Seq,
        MemStack::new(&mut MemBuffer::new(scratch)),
    );
}

/// The triangular factors of blocks of `block` reflectors, side by side.
fn block_factors<T: Scalar>(basis: MatRef<'_, T>, scales: &[f64], block: usize) -> DMatrix<T> {
    let mut factors = DMatrix::zeros(block, scales.len());
    for (place, &scale) in scales.iter().enumerate() {
        factors[(place % block, place)] = nalgebra::ComplexField::from_real(scale);
    }
    let mut first = 0;
    while first < scales.len() {
        let width = block.min(scales.len() - first);
        let factor = view_mut(&mut factors).submatrix_mut(0, first, width, width);
        let essentials = basis.get(first.., first..first + width);
        upgrade_householder_factor(factor, essentials, width, 1, Par::Seq);
        first += width;
    }
    factors
}

/// R* of a pivoted QR, and the column of A that belongs to each row of it.
pub(crate) fn pivoted_lower_factor<T: Scalar>(matrix: &DMatrix<T>) -> (DMatrix<T>, Vec<usize>) {
    ReflectedQr::by_blocks(matrix).1
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
        for (rows, columns) in [(6, 6), (7, 4), (4, 7), (1, 1), (70, 70), (101, 99), (3, 0)] {
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
    fn pivots_of_blocks_stay_near_the_largest_column() {
        // Graded columns, every third all but a multiple of its neighbour.
        let size = 61;
        let a = DMatrix::from_fn(size, size, |i, j| {
            let column = j - usize::from(j % 3 == 2);
            let shift = if column == j {
                0.0
            } else {
                1e-9 * (i * i) as f64
            };
            (((i * 7 + column * column * 3) as f64).sin() + shift) * 0.5_f64.powi(j as i32)
        });
        let (lower, permutation) = pivoted_lower_factor(&a);
        for k in 0..size {
            let largest = (k + 1..size).map(|j| lower.view((j, k), (1, j + 1 - k)).norm());
            let largest = largest.fold(0.0, f64::max);
            let pivot = lower[(k, k)].abs();
            assert!(pivot >= 0.49 * largest, "{k}: {pivot:e} {largest:e}");
        }
        for (row, &from) in lower.row_iter().zip(&permutation) {
            let norm = a.column(from).norm();
            assert!((row.norm() - norm).abs() <= 1e-14 * norm);
        }
    }

    #[test]
    fn a_panel_ends_where_a_column_outside_is_more_than_twice_as_large() {
        let mut order = [0, 1, 2];
        let mut scales = [f64::INFINITY; 3];
        let mut factored = |outside: f64| {
            let mut panel =
                DMatrix::from_diagonal(&nalgebra::DVector::from_vec(vec![1.0, 4.0, 0.1]));
            factor_panel(view_mut(&mut panel), 0, outside, &mut order, &mut scales)
        };
        assert_eq!(factored(0.0), 3);
        assert_eq!(factored(1.9), 2);
        // The first one is taken in any case.
        assert_eq!(factored(100.0), 1);
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
