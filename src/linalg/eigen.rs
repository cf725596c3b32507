//! Diagonalisation of general real and complex matrices.
//!
//! nalgebra gives the Schur form but no eigenvectors of a nonsymmetric matrix; the
//! back-substitution is ours.

use nalgebra::DMatrix;
use nalgebra::DVector;
use num_complex::Complex64;

use crate::linalg::LinalgError;
use crate::linalg::pure::schur;

/// Iterations allowed per row before the singular values are given up.
const ITERATIONS_PER_ROW: usize = 300;

/// A = V diag(ν) V⁻¹.
pub struct Diagonalised {
    /// The eigenvalues ν. Those of a real matrix come as exact conjugates.
    pub values: Vec<Complex64>,
    /// Unit eigenvectors as columns.
    pub vectors: DMatrix<Complex64>,
    /// V⁻¹.
    pub inverse: DMatrix<Complex64>,
    /// κ₂(V), the factor by which diagonalising can amplify rounding errors.
    pub condition: f64,
}

/// Diagonalises a complex matrix by its Schur form. Cost about 30 n³.
///
/// # Errors
/// [`LinalgError::NotConverged`]; [`LinalgError::Defective`] when V is singular to working
/// precision.
pub fn diagonalise_complex(matrix: &DMatrix<Complex64>) -> Result<Diagonalised, LinalgError> {
    let (q, t) = schur(matrix, "the complex Schur form")?;
    from_vectors(diagonal(&t), q * triangular_vectors(&t))
}

/// Diagonalises a real matrix. Complex eigenvalues come as neighbouring exact conjugates, the
/// one with the positive imaginary part first, with conjugate vectors; real eigenvalues have real
/// vectors. Cost about 30 n³.
///
/// # Errors
/// As [`diagonalise_complex`].
pub fn diagonalise_real(matrix: &DMatrix<f64>) -> Result<Diagonalised, LinalgError> {
    let (q, t) = schur(matrix, "the real Schur form")?;
    let mut q = q.map(Complex64::from);
    let mut t = t.map(Complex64::from);
    let pairs = triangularise(&mut q, &mut t);
    let mut values = diagonal(&t);
    let mut vectors = q * triangular_vectors(&t);
    let partners = partners(values.len(), &pairs);
    for (k, &partner) in partners.iter().enumerate() {
        match partner {
            Some(first) => {
                values[k] = values[first].conj();
                copy_conjugate(&mut vectors, first, k);
            }
            None if partners.get(k + 1) == Some(&Some(k)) => {}
            None => {
                values[k].im = 0.0;
                make_real(&mut vectors, k);
            }
        }
    }
    let mut result = from_vectors(values, vectors)?;
    conjugate_rows(&mut result.inverse, &partners);
    Ok(result)
}

fn diagonal(t: &DMatrix<Complex64>) -> Vec<Complex64> {
    t.diagonal().iter().copied().collect()
}

/// Rotates each 2 × 2 diagonal block of a real Schur form to triangular form. Returns the first
/// row of every block that holds a conjugate pair.
pub(super) fn triangularise(q: &mut DMatrix<Complex64>, t: &mut DMatrix<Complex64>) -> Vec<usize> {
    let mut pairs = Vec::new();
    for k in 1..t.nrows() {
        let below = t[(k, k - 1)];
        if below == Complex64::ZERO {
            continue;
        }
        let (a, b) = (t[(k - 1, k - 1)].re, t[(k - 1, k)].re);
        let (c, d) = (below.re, t[(k, k)].re);
        let half = 0.5 * (a - d);
        let discriminant = half * half + b * c;
        let root = Complex64::from(discriminant).sqrt();
        let value = Complex64::from(0.5 * (a + d)) + root;
        // (T − value I) x = 0 gives x = (value − d, c); the rotation takes x to e₁.
        rotate(q, t, k, (value - d, Complex64::from(c)));
        if discriminant < 0.0 {
            pairs.push(k - 1);
        }
    }
    pairs
}

fn rotate(
    q: &mut DMatrix<Complex64>,
    t: &mut DMatrix<Complex64>,
    k: usize,
    (x, y): (Complex64, Complex64),
) {
    let norm = x.norm().hypot(y.norm());
    let (x, y) = (x / norm, y / norm);
    for matrix in [&mut *t, &mut *q] {
        for i in 0..matrix.nrows() {
            let (left, right) = (matrix[(i, k - 1)], matrix[(i, k)]);
            matrix[(i, k - 1)] = left * x + right * y;
            matrix[(i, k)] = right * x.conj() - left * y.conj();
        }
    }
    for j in 0..t.ncols() {
        let (upper, lower) = (t[(k - 1, j)], t[(k, j)]);
        t[(k - 1, j)] = upper * x.conj() + lower * y.conj();
        t[(k, j)] = lower * x - upper * y;
    }
    t[(k, k - 1)] = Complex64::ZERO;
}

fn from_vectors(
    values: Vec<Complex64>,
    vectors: DMatrix<Complex64>,
) -> Result<Diagonalised, LinalgError> {
    let size = values.len();
    let inverse = vectors
        .clone()
        .try_inverse()
        .ok_or(LinalgError::Defective { size })?;
    let condition = condition_number(&vectors)?;
    if !condition.is_finite() {
        return Err(LinalgError::Defective { size });
    }
    Ok(Diagonalised {
        values,
        vectors,
        inverse,
        condition,
    })
}

/// Unit eigenvectors of an upper triangular matrix by back-substitution.
fn triangular_vectors(t: &DMatrix<Complex64>) -> DMatrix<Complex64> {
    let size = t.nrows();
    // A repeated eigenvalue divides by this instead of zero; the condition number then tells.
    let floor = f64::EPSILON * t.norm().max(f64::MIN_POSITIVE);
    let mut vectors = DMatrix::zeros(size, size);
    for k in 0..size {
        let mut x = DVector::<Complex64>::zeros(size);
        x[k] = Complex64::ONE;
        for i in (0..k).rev() {
            let sum: Complex64 = (i + 1..=k).map(|j| t[(i, j)] * x[j]).sum();
            let gap = t[(k, k)] - t[(i, i)];
            let gap = if gap.norm() < floor {
                Complex64::from(floor)
            } else {
                gap
            };
            x[i] = sum / gap;
        }
        let norm = x.norm();
        vectors.set_column(k, &(x / Complex64::from(norm)));
    }
    vectors
}

fn condition_number(vectors: &DMatrix<Complex64>) -> Result<f64, LinalgError> {
    let size = vectors.nrows();
    let cap = ITERATIONS_PER_ROW * size.max(1);
    let svd = nalgebra::SVD::try_new(vectors.clone(), false, false, f64::EPSILON, cap).ok_or(
        LinalgError::NotConverged {
            what: "the singular values of the eigenvectors",
            size,
            iterations: cap,
        },
    )?;
    let largest = svd.singular_values.iter().copied().fold(0.0, f64::max);
    let smallest = svd.singular_values.iter().copied().fold(f64::MAX, f64::min);
    Ok(if size == 0 { 1.0 } else { largest / smallest })
}

/// For the second member of each pair the index of the first.
fn partners(size: usize, pairs: &[usize]) -> Vec<Option<usize>> {
    let mut partners = vec![None; size];
    for &k in pairs {
        partners[k + 1] = Some(k);
    }
    partners
}

/// Rounding leaves the two members of a pair an ulp apart; the second is set from the first.
fn copy_conjugate(columns: &mut DMatrix<Complex64>, from: usize, to: usize) {
    let conjugate = columns.column(from).map(|x| x.conj());
    columns.set_column(to, &conjugate);
}

/// The vector of a real value is made real before V is inverted: that of a repeated value is any
/// vector of a plane, and not real but for a phase.
fn make_real(columns: &mut DMatrix<Complex64>, k: usize) {
    let column = columns.column(k);
    let largest = column[column.icamax()];
    let phase = if largest == Complex64::ZERO {
        Complex64::ONE
    } else {
        largest / largest.norm()
    };
    let real = column.map(|x| Complex64::from((x * phase.conj()).re));
    columns.set_column(k, &real);
}

/// The inverse of real and conjugate columns has real and conjugate rows, but for rounding.
fn conjugate_rows(rows: &mut DMatrix<Complex64>, partners: &[Option<usize>]) {
    for (k, &partner) in partners.iter().enumerate() {
        if let Some(first) = partner {
            let conjugate = rows.row(first).map(|x| x.conj());
            rows.set_row(k, &conjugate);
        } else if partners.get(k + 1) != Some(&Some(k)) {
            let real = rows.row(k).map(|x| Complex64::from(x.re));
            rows.set_row(k, &real);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rebuilt(d: &Diagonalised) -> DMatrix<Complex64> {
        let values = DMatrix::from_diagonal(&DVector::from_vec(d.values.clone()));
        &d.vectors * values * &d.inverse
    }

    #[test]
    fn a_real_matrix_is_rebuilt_and_its_pairs_are_exact_conjugates() {
        for size in [1, 2, 3, 6, 17] {
            let a = DMatrix::from_fn(size, size, |i, j| ((3 * i + 7 * j * j + 1) as f64).sin());
            let d = diagonalise_real(&a).unwrap();
            assert!((rebuilt(&d) - a.map(Complex64::from)).norm() < 1e-12 * d.condition);
            let mut sum = Complex64::ZERO;
            for &value in &d.values {
                sum += value;
            }
            assert_eq!(sum.im, 0.0);
            assert!((sum.re - a.trace()).abs() < 1e-12);
        }
    }

    #[test]
    fn a_repeated_real_eigenvalue_with_two_vectors_is_diagonalised() {
        // diag(1, 1, 2, 2, 2 ± i) in a basis of general position.
        let mut block = DMatrix::from_diagonal(&DVector::from_vec(vec![1.0, 1.0, 2.0, 2.0, 2.0, 2.0]));
        (block[(4, 5)], block[(5, 4)]) = (1.0, -1.0);
        let basis = DMatrix::from_fn(6, 6, |i, j| ((3 * i + 7 * j * j + i * j + 1) as f64).sin());
        let a = &basis * block * basis.clone().try_inverse().unwrap();
        let d = diagonalise_real(&a).unwrap();
        let error = (rebuilt(&d) - a.map(Complex64::from)).norm();
        assert!(error < 1e-9 * d.condition, "{error:e} {:e}", d.condition);
        for k in (0..6).filter(|&k| d.values[k].im == 0.0) {
            assert!(d.vectors.column(k).iter().all(|x| x.im == 0.0));
        }
    }

    #[test]
    fn a_complex_matrix_is_rebuilt() {
        let a = DMatrix::from_fn(7, 7, |i, j| {
            Complex64::new(((i * j) as f64).cos(), ((i + 2 * j) as f64).sin())
        });
        let d = diagonalise_complex(&a).unwrap();
        assert!((rebuilt(&d) - a).norm() < 1e-12 * d.condition);
    }

    #[test]
    fn a_defective_matrix_shows_in_its_condition() {
        let jordan = DMatrix::from_row_slice(2, 2, &[0.5, 1.0, 0.0, 0.5]);
        match diagonalise_real(&jordan) {
            Ok(d) => assert!(d.condition > 1e12, "{}", d.condition),
            Err(error) => assert_eq!(error, LinalgError::Defective { size: 2 }),
        }
    }
}
