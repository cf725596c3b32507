//! The dense real factorisations in pure Rust.

use nalgebra::{DMatrix, Schur, SymmetricEigen};

use crate::linalg::{GradedSvd, LinalgError, graded_svd};

/// Iterations allowed per row before a factorisation is given up.
const ITERATIONS_PER_ROW: usize = 100;

/// A subdiagonal entry below this many ε of its neighbours counts as zero. The looser ones are
/// tried in turn: with many equal eigenvalues rounding stays above the first.
const DEFLATION: [f64; 3] = [1.0, 8.0, 64.0];

/// A = Q T Qᵀ with quasi-triangular T, by nalgebra. Backward error about 25 n ε ‖A‖.
///
/// # Errors
/// [`LinalgError::NotConverged`].
pub(crate) fn real_schur(
    matrix: &DMatrix<f64>,
) -> Result<(DMatrix<f64>, DMatrix<f64>), LinalgError> {
    let size = matrix.nrows();
    if size == 0 {
        return Ok((matrix.clone(), matrix.clone()));
    }
    let iterations = ITERATIONS_PER_ROW * size;
    let attempt = |factor| Schur::try_new(matrix.clone(), factor * f64::EPSILON, iterations);
    let found = DEFLATION.into_iter().find_map(attempt);
    found.map(Schur::unpack).ok_or(LinalgError::NotConverged {
        what: "the real Schur form",
        size,
        iterations,
    })
}

/// M = U diag(σ) V* in its thin form, by one-sided Jacobi.
///
/// # Errors
/// [`LinalgError::NotConverged`].
pub(crate) fn dense_svd(matrix: &DMatrix<f64>) -> Result<GradedSvd<f64>, LinalgError> {
    graded_svd(matrix)
}

/// Eigenvalues and orthonormal eigenvectors of a symmetric matrix, by nalgebra.
///
/// # Errors
/// [`LinalgError::NotConverged`].
pub(crate) fn symmetric_eigen(
    matrix: &DMatrix<f64>,
) -> Result<(Vec<f64>, DMatrix<f64>), LinalgError> {
    let size = matrix.nrows();
    if size == 0 {
        return Ok((Vec::new(), matrix.clone()));
    }
    let iterations = ITERATIONS_PER_ROW * size;
    let eigen = SymmetricEigen::try_new(matrix.clone(), f64::EPSILON, iterations);
    let eigen = eigen.ok_or(LinalgError::NotConverged {
        what: "the symmetric eigenvalue iteration",
        size,
        iterations,
    })?;
    Ok((
        eigen.eigenvalues.iter().copied().collect(),
        eigen.eigenvectors,
    ))
}
