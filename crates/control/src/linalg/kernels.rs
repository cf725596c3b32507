//! The dense kernels of faer on nalgebra's matrices, on one thread: parallelism is over channels.

use faer::dyn_stack::{MemBuffer, MemStack};
use faer::linalg::evd::tridiag::{tridiag_in_place, tridiag_in_place_scratch};
use faer::linalg::householder::{
    apply_block_householder_sequence_on_the_left_in_place_scratch as apply_scratch,
    apply_block_householder_sequence_on_the_left_in_place_with_conj as apply_reflectors,
};
use faer::linalg::matmul::matmul;
use faer::linalg::matmul::triangular::{BlockStructure, matmul as triangular_matmul};
use faer::linalg::qr::no_pivoting::factor::recommended_block_size;
use faer::linalg::solvers::DenseSolveCore;
use faer::linalg::triangular_solve::{
    solve_lower_triangular_in_place, solve_upper_triangular_in_place,
};
use faer::{Conj, MatMut, MatRef, Par};
use nalgebra::{ComplexField, DMatrix, DVector};
use num_complex::Complex64;

use crate::linalg::tridiagonal::Tridiagonal;

/// The two kinds of numbers that theory runs in: `f64` and `Complex64`.
pub(crate) trait Scalar:
    nalgebra::ComplexField<RealField = f64> + faer::traits::ComplexField<Real = f64> + Copy
{
}

impl Scalar for f64 {}
impl Scalar for Complex64 {}

pub(super) fn view<T: Scalar>(a: &DMatrix<T>) -> MatRef<'_, T> {
    MatRef::from_column_major_slice(a.as_slice(), a.nrows(), a.ncols())
}

pub(super) fn view_mut<T: Scalar>(a: &mut DMatrix<T>) -> MatMut<'_, T> {
    let (rows, columns) = a.shape();
    MatMut::from_column_major_slice_mut(a.as_mut_slice(), rows, columns)
}

/// A B. nalgebra multiplies complex matrices entry by entry, some twenty times slower.
pub(crate) fn multiply<T: Scalar>(a: &DMatrix<T>, b: &DMatrix<T>) -> DMatrix<T> {
    let mut product = DMatrix::zeros(a.nrows(), b.ncols());
    let out = view_mut(&mut product);
    let one = nalgebra::one();
    matmul(out, faer::Accum::Replace, view(a), view(b), one, Par::Seq);
    product
}

/// A* B.
pub(crate) fn multiply_adjoint<T: Scalar>(a: &DMatrix<T>, b: &DMatrix<T>) -> DMatrix<T> {
    let mut product = DMatrix::zeros(a.ncols(), b.ncols());
    let out = view_mut(&mut product);
    let one = nalgebra::one();
    matmul(
        out,
        faer::Accum::Replace,
        view(a).adjoint(),
        view(b),
        one,
        Par::Seq,
    );
    product
}

/// Aᵀ B.
pub(crate) fn multiply_transpose<T: Scalar>(a: &DMatrix<T>, b: &DMatrix<T>) -> DMatrix<T> {
    let mut product = DMatrix::zeros(a.ncols(), b.ncols());
    matmul(
        view_mut(&mut product),
        faer::Accum::Replace,
        view(a).transpose(),
        view(b),
        nalgebra::one(),
        Par::Seq,
    );
    product
}

/// Aᵀ B where it is known to be symmetric, at half the cost of [`multiply_transpose`].
pub(crate) fn symmetric_product<T: Scalar>(a: &DMatrix<T>, b: &DMatrix<T>) -> DMatrix<T> {
    let mut product = DMatrix::zeros(a.ncols(), b.ncols());
    triangular_matmul(
        view_mut(&mut product),
        BlockStructure::TriangularLower,
        faer::Accum::Replace,
        view(a).transpose(),
        BlockStructure::Rectangular,
        view(b),
        BlockStructure::Rectangular,
        nalgebra::one(),
        Par::Seq,
    );
    for j in 1..product.ncols() {
        for i in 0..j {
            product[(i, j)] = product[(j, i)];
        }
    }
    product
}

/// Aᵀ A, the product of every two columns, by the blocked product of faer on one thread.
pub fn gram_matrix(a: &DMatrix<f64>) -> DMatrix<f64> {
    multiply_adjoint(a, a)
}

/// A B in blocks on one thread.
pub fn product(a: &DMatrix<f64>, b: &DMatrix<f64>) -> DMatrix<f64> {
    multiply(a, b)
}

/// Aᵀ B, the product of every column of one with every column of the other, in the same way.
pub fn cross_gram(a: &DMatrix<f64>, b: &DMatrix<f64>) -> DMatrix<f64> {
    multiply_adjoint(a, b)
}

/// The x of A x = b for a positive definite A, by Cholesky in blocks on one thread; `None` where A is
/// not positive definite to rounding.
pub fn solve_positive(a: &DMatrix<f64>, b: &DVector<f64>) -> Option<DVector<f64>> {
    let b = DMatrix::from_column_slice(b.len(), 1, b.as_slice());
    Some(solve_positive_columns(a, &b)?.column(0).into_owned())
}

/// The same for every column of B.
pub(crate) fn solve_positive_columns(a: &DMatrix<f64>, b: &DMatrix<f64>) -> Option<DMatrix<f64>> {
    let factor = view(a).llt(faer::Side::Lower).ok()?;
    let mut x = b.clone();
    solve_lower_triangular_in_place(factor.L(), view_mut(&mut x), Par::Seq);
    solve_upper_triangular_in_place(factor.L().transpose(), view_mut(&mut x), Par::Seq);
    Some(x)
}

/// The upper triangular root U of a positive definite A = U Uᵀ: Cholesky's factor, taken from the last
/// row up. The block of its first k rows and columns is the root of the Schur complement of all others.
pub struct UpperRoot {
    /// With rows and columns in reverse.
    lower: DMatrix<f64>,
}

impl UpperRoot {
    /// By blocks on one thread, n³/3 operations; `None` where A is not positive definite to rounding.
    pub fn new(a: &DMatrix<f64>) -> Option<Self> {
        let turned = turned(a);
        let factor = view(&turned).llt(faer::Side::Lower).ok()?;
        let lower = factor.L();
        let lower = DMatrix::from_fn(a.nrows(), a.nrows(), |i, j| lower[(i, j)]);
        Some(Self { lower })
    }

    /// U⁻¹, so that A⁻¹ = U⁻ᵀ U⁻¹. n³/3 operations.
    pub fn inverse(&self) -> DMatrix<f64> {
        let size = self.lower.nrows();
        let mut inverse = DMatrix::identity(size, size);
        solve_lower_triangular_in_place(view(&self.lower), view_mut(&mut inverse), Par::Seq);
        turned(&inverse)
    }

    /// A⁻¹ b.
    pub fn solve(&self, b: &DVector<f64>) -> DVector<f64> {
        let mut x = DMatrix::from_fn(b.len(), 1, |i, _| b[b.len() - 1 - i]);
        solve_lower_triangular_in_place(view(&self.lower), view_mut(&mut x), Par::Seq);
        solve_upper_triangular_in_place(view(&self.lower).transpose(), view_mut(&mut x), Par::Seq);
        DVector::from_fn(b.len(), |i, _| x[b.len() - 1 - i])
    }
}

/// Rows and columns in reverse.
fn turned(a: &DMatrix<f64>) -> DMatrix<f64> {
    let [rows, columns] = [a.nrows(), a.ncols()];
    DMatrix::from_fn(rows, columns, |i, j| a[(rows - 1 - i, columns - 1 - j)])
}

/// Whether every entry is a number. Without an early end, which would cost more than it saves.
pub(super) fn all_finite<T: Scalar>(a: &DMatrix<T>) -> bool {
    a.iter()
        .fold(true, |all, x| all & nalgebra::ComplexField::is_finite(x))
}

/// The lower triangle of α A* A, with zeros above.
pub(super) fn gram_lower<T: Scalar>(
    a: &DMatrix<T>,
    structure: BlockStructure,
    factor: f64,
) -> DMatrix<T> {
    let mut gram = DMatrix::zeros(a.ncols(), a.ncols());
    triangular_matmul(
        view_mut(&mut gram),
        BlockStructure::TriangularLower,
        faer::Accum::Replace,
        view(a).adjoint(),
        structure.transpose(),
        view(a),
        structure,
        nalgebra::ComplexField::from_real(factor),
        Par::Seq,
    );
    gram
}

/// Lower triangular, where the matrix has as many rows as columns.
fn lower_structure<T>(a: &DMatrix<T>) -> BlockStructure {
    if a.is_square() {
        BlockStructure::TriangularLower
    } else {
        BlockStructure::Rectangular
    }
}

/// L X of a lower triangular (trapezoidal) L.
pub(super) fn multiply_lower<T: Scalar>(lower: &DMatrix<T>, x: &DMatrix<T>) -> DMatrix<T> {
    let mut product = DMatrix::zeros(lower.nrows(), x.ncols());
    triangular_matmul(
        view_mut(&mut product),
        BlockStructure::Rectangular,
        faer::Accum::Replace,
        view(lower),
        lower_structure(lower),
        view(x),
        BlockStructure::Rectangular,
        nalgebra::one(),
        Par::Seq,
    );
    product
}

/// The eigenvectors of L* L, those of the largest eigenvalues first: a third of the work of an SVD.
/// L is lower triangular (trapezoidal). `None` when the iteration does not converge.
pub(super) fn gram_vectors<T: Scalar>(lower: &DMatrix<T>) -> Option<DMatrix<T>> {
    // Eigenvalues come in ascending order.
    let mut gram = gram_lower(lower, lower_structure(lower), -1.0);
    let size = gram.ncols();
    let steps = size.saturating_sub(1);
    let block = recommended_block_size::<T>(size, size);
    let mut factors = DMatrix::zeros(block, steps);
    let scratch = tridiag_in_place_scratch::<T>(size, Par::Seq, Default::default());
    tridiag_in_place(
        view_mut(&mut gram),
        view_mut(&mut factors),
        Par::Seq,
        MemStack::new(&mut MemBuffer::new(scratch)),
        Default::default(),
    );
    let diagonal = (0..size).map(|k| gram[(k, k)].real()).collect();
    let beside: Vec<T> = (0..steps).map(|k| gram[(k + 1, k)]).collect();
    let sizes = beside.iter().map(|&x| x.modulus()).collect();
    let (_, real) = Tridiagonal::new(diagonal, sizes).eigen()?;
    let phases = phases(&beside);
    let mut vectors = DMatrix::zeros(size, size);
    for (mut to, from) in vectors.column_iter_mut().zip(real.column_iter()) {
        for ((to, &phase), &x) in to.iter_mut().zip(&phases).zip(from.iter()) {
            *to = phase.scale(x);
        }
    }
    if steps > 0 {
        apply_reflectors(
            view(&gram).submatrix(1, 0, steps, steps),
            view(&factors),
            Conj::No,
            view_mut(&mut vectors).subrows_mut(1, steps),
            Par::Seq,
            MemStack::new(&mut MemBuffer::new(apply_scratch::<T>(steps, block, size))),
        );
    }
    Some(vectors)
}

/// The unit numbers d with d̄_{k+1} e_k d_k = |e_k|, for the entries e below a diagonal.
fn phases<T: Scalar>(beside: &[T]) -> Vec<T> {
    let mut phases = vec![nalgebra::one()];
    for &entry in beside {
        let product: T = entry * phases[phases.len() - 1];
        let size = product.modulus();
        phases.push(if size > 0.0 {
            product.unscale(size)
        } else {
            nalgebra::one()
        });
    }
    phases
}

/// X L⁻* with X* X = L L*: nearly orthonormal columns made orthonormal, each changed by those
/// before it only. `None` when they are linearly dependent.
pub(super) fn orthonormalised<T: Scalar>(x: &DMatrix<T>) -> Option<DMatrix<T>> {
    let gram = multiply_adjoint(x, x);
    let factor = view(&gram).llt(faer::Side::Lower).ok()?;
    let mut adjoint = x.adjoint();
    solve_lower_triangular_in_place(factor.L(), view_mut(&mut adjoint), Par::Seq);
    Some(adjoint.adjoint())
}

/// L with A = L L*, for A with a diagonal of ones, and ‖A⁻¹‖ in the Frobenius norm, which is at least
/// the spectral one. `None` where A is not positive definite to rounding. Cost 3 n³ products.
pub(crate) fn scaled_cholesky<T: Scalar>(a: &DMatrix<T>) -> Option<(DMatrix<T>, f64)> {
    let size = a.nrows();
    let factor = view(a).llt(faer::Side::Lower).ok()?;
    let mut inverse = DMatrix::identity(size, size);
    solve_lower_triangular_in_place(factor.L(), view_mut(&mut inverse), Par::Seq);
    let lower = factor.L();
    let lower = DMatrix::from_fn(size, size, |i, j| lower[(i, j)]);
    Some((lower, multiply_adjoint(&inverse, &inverse).norm()))
}

/// Eigenvalues and unit eigenvectors of a complex matrix.
pub(super) fn complex_eigen(
    a: &DMatrix<Complex64>,
) -> Option<(Vec<Complex64>, DMatrix<Complex64>)> {
    let eigen = view(a).eigen().ok()?;
    Some(unpacked(eigen.S(), eigen.U()))
}

/// Eigenvalues and unit eigenvectors of a real matrix, pairs next to each other.
pub(super) fn real_eigen(a: &DMatrix<f64>) -> Option<(Vec<Complex64>, DMatrix<Complex64>)> {
    let eigen = view(a).eigen().ok()?;
    Some(unpacked(eigen.S(), eigen.U()))
}

fn unpacked(
    values: faer::diag::DiagRef<'_, Complex64>,
    vectors: MatRef<'_, Complex64>,
) -> (Vec<Complex64>, DMatrix<Complex64>) {
    let size = vectors.nrows();
    let values = (0..size).map(|i| values[i]).collect();
    (values, DMatrix::from_fn(size, size, |i, j| vectors[(i, j)]))
}

/// The largest singular value, right to rounding: 0 of an empty matrix, infinite where an entry is
/// not finite.
pub(crate) fn spectral_norm(a: &DMatrix<Complex64>) -> f64 {
    if a.is_empty() {
        return 0.0;
    }
    if !a.iter().all(|x| x.is_finite()) {
        return f64::INFINITY;
    }
    let sigma = singular_values(a).and_then(|sigma| sigma.first().copied());
    // The other norm is a bound.
    sigma.unwrap_or_else(|| a.norm())
}

/// A⁻¹ by LU with partial pivoting; infinities or NaN where A is singular.
pub(super) fn inverse<T: Scalar>(a: &DMatrix<T>) -> DMatrix<T> {
    let inverse = view(a).partial_piv_lu().inverse();
    DMatrix::from_fn(a.nrows(), a.ncols(), |i, j| inverse[(i, j)])
}

/// All singular values, descending.
pub(super) fn singular_values<T: Scalar>(a: &DMatrix<T>) -> Option<Vec<f64>> {
    view(a).singular_values().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positive_systems_are_solved_and_others_refused() {
        let root = DMatrix::from_fn(7, 5, |i, j| (0.7 * ((3 * i + 1) * (j + 1)) as f64).sin());
        let a = gram_matrix(&root);
        let x = DVector::from_fn(5, |i, _| i as f64 - 1.5);
        let found = solve_positive(&a, &(&a * &x)).unwrap();
        assert!((found - &x).norm() < 1e-11);
        assert_eq!(solve_positive(&-a, &x), None);
    }

    #[test]
    fn upper_roots_hold_those_of_schur_complements() {
        let root = DMatrix::from_fn(9, 6, |i, j| (0.7 * ((3 * i + 1) * (j + 1)) as f64).sin());
        let a = gram_matrix(&root);
        let x = DVector::from_fn(6, |i, _| i as f64 - 1.5);
        let made = UpperRoot::new(&a).unwrap();
        assert!((made.solve(&(&a * &x)) - &x).norm() < 1e-10);
        let inverse = made.inverse();
        assert_eq!(
            inverse.lower_triangle(),
            DMatrix::from_diagonal(&inverse.diagonal())
        );
        let unit = inverse.tr_mul(&inverse) * &a;
        assert!((unit - DMatrix::identity(6, 6)).norm() < 1e-10);
        let (last, across) = (a[(5, 5)], a.view((0, 5), (5, 1)));
        let schur = a.view((0, 0), (5, 5)) - across * across.transpose() / last;
        let own = UpperRoot::new(&schur).unwrap().inverse();
        assert!((own - inverse.view((0, 0), (5, 5))).norm() < 1e-9);
        assert!(UpperRoot::new(&-a).is_none());
    }

    #[test]
    fn a_scaled_factor_comes_with_the_norm_of_the_inverse() {
        let a = DMatrix::from_row_slice(2, 2, &[1.0, 0.6, 0.6, 1.0]).map(Complex64::from);
        let (lower, inverse) = scaled_cholesky(&a).unwrap();
        assert!((&lower * lower.adjoint() - &a).norm() < 1e-15);
        // The eigenvalues are 1.6 and 0.4.
        assert!((inverse / 1.6_f64.recip().hypot(2.5) - 1.0).abs() < 1e-14);
        let singular = DMatrix::from_element(2, 2, 1.0);
        assert!(scaled_cholesky(&singular).is_none_or(|(_, inverse)| inverse > 1e14));
    }

    #[test]
    fn products_agree_with_nalgebra() {
        let a = DMatrix::from_fn(5, 3, |i, j| Complex64::new(i as f64 - 1.5, j as f64 + 0.25));
        let b = DMatrix::from_fn(3, 4, |i, j| Complex64::new((i * j) as f64, 1.0 - i as f64));
        assert!((multiply(&a, &b) - &a * &b).norm() < 1e-13);
        let c = DMatrix::from_fn(5, 2, |i, j| Complex64::new(1.0, (i + j) as f64));
        assert!((multiply_adjoint(&a, &c) - a.adjoint() * &c).norm() < 1e-13);
        let real = |m: &DMatrix<Complex64>| m.map(|z| z.re + 2.0 * z.im);
        let (x, y) = (real(&a), real(&c));
        assert!((cross_gram(&x, &y) - x.transpose() * &y).norm() < 1e-13);
        let empty = DMatrix::<f64>::zeros(3, 0);
        assert_eq!(
            multiply(&empty, &DMatrix::zeros(0, 2)),
            DMatrix::zeros(3, 2)
        );
    }
}
