//! Diagonalisation of general real and complex matrices.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::linalg::LinalgError;
use crate::linalg::kernels::complex_eigen;
use crate::linalg::kernels::real_eigen;
use crate::linalg::kernels::singular_values;

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
/// [`LinalgError::NotFinite`], [`LinalgError::NoEigenvalues`]; [`LinalgError::Defective`] when V
/// is singular to working precision.
pub fn diagonalise_complex(matrix: &DMatrix<Complex64>) -> Result<Diagonalised, LinalgError> {
    require_finite(matrix.iter().all(|x| x.is_finite()))?;
    let size = matrix.nrows();
    let (values, vectors) = complex_eigen(matrix).ok_or(LinalgError::NoEigenvalues { size })?;
    inverted(values, vectors)
}

/// Diagonalises a real matrix. Complex eigenvalues come as neighbouring exact conjugates, the
/// one with the positive imaginary part first, with conjugate vectors. Cost about 30 n³.
///
/// # Errors
/// As [`diagonalise_complex`].
pub fn diagonalise_real(matrix: &DMatrix<f64>) -> Result<Diagonalised, LinalgError> {
    require_finite(matrix.iter().all(|x| x.is_finite()))?;
    let size = matrix.nrows();
    let (mut values, mut vectors) =
        real_eigen(matrix).ok_or(LinalgError::NoEigenvalues { size })?;
    let mut k = 0;
    while k < size {
        if values[k].im == 0.0 || k + 1 == size {
            values[k].im = 0.0;
            k += 1;
            continue;
        }
        if values[k].im < 0.0 {
            values.swap(k, k + 1);
            vectors.swap_columns(k, k + 1);
        }
        values[k + 1] = values[k].conj();
        let conjugate = vectors.column(k).map(|x| x.conj());
        vectors.set_column(k + 1, &conjugate);
        k += 2;
    }
    inverted(values, vectors)
}

fn require_finite(finite: bool) -> Result<(), LinalgError> {
    if finite {
        return Ok(());
    }
    Err(LinalgError::NotFinite {
        what: "a matrix to be diagonalised",
    })
}

fn inverted(
    values: Vec<Complex64>,
    mut vectors: DMatrix<Complex64>,
) -> Result<Diagonalised, LinalgError> {
    let size = values.len();
    for mut column in vectors.column_iter_mut() {
        let norm = column.norm();
        column.unscale_mut(norm);
    }
    let sigma = singular_values(&vectors).ok_or(LinalgError::Defective { size })?;
    let condition = match (sigma.first(), sigma.last()) {
        (Some(largest), Some(smallest)) => largest / smallest,
        _ => 1.0,
    };
    let inverse = vectors.clone().try_inverse();
    let inverse = inverse.filter(|inverse| inverse.iter().all(|x| x.is_finite()));
    match inverse {
        Some(inverse) if condition.is_finite() => Ok(Diagonalised {
            values,
            vectors,
            inverse,
            condition,
        }),
        _ => Err(LinalgError::Defective { size }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rebuilt(d: &Diagonalised) -> DMatrix<Complex64> {
        let values = nalgebra::DVector::from_vec(d.values.clone());
        let values = DMatrix::from_diagonal(&values);
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
