//! The dense real factorisations by LAPACK, under the feature `lapack`.

use nalgebra::DMatrix;
use nalgebra_lapack::{SVD, Schur, SymmetricEigen};

use crate::linalg::{GradedSvd, LinalgError};

/// LAPACK's own cap on iterations per row.
const ITERATIONS_PER_ROW: usize = 30;

fn not_converged(what: &'static str, size: usize) -> LinalgError {
    LinalgError::NotConverged {
        what,
        size,
        iterations: ITERATIONS_PER_ROW * size,
    }
}

/// LAPACK may read NaN as anything, and some routines never return from it.
fn all_finite(matrix: &DMatrix<f64>) -> bool {
    matrix.iter().all(|x| x.is_finite())
}

/// A = Q T Qᵀ with quasi-triangular T, by `dgees`.
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
    let schur = all_finite(matrix).then(|| Schur::try_new(matrix.clone()));
    let schur = schur.flatten();
    schur
        .map(Schur::unpack)
        .ok_or(not_converged("the real Schur form", size))
}

/// M = U diag(σ) V* in its thin form, by `dgesdd`: right to 10⁻¹⁶ σ₁, not to each σ.
///
/// # Errors
/// [`LinalgError::NotConverged`].
pub(crate) fn dense_svd(matrix: &DMatrix<f64>) -> Result<GradedSvd<f64>, LinalgError> {
    let thin = matrix.nrows().min(matrix.ncols());
    if thin == 0 {
        let (u, v) = (
            DMatrix::zeros(matrix.nrows(), 0),
            DMatrix::zeros(matrix.ncols(), 0),
        );
        return Ok(GradedSvd::new(u, Vec::new(), v));
    }
    let svd = all_finite(matrix).then(|| SVD::new(matrix.clone()));
    let svd = svd.flatten().ok_or(not_converged("the SVD", thin))?;
    Ok(GradedSvd::new(
        svd.u.columns(0, thin).into_owned(),
        svd.singular_values.iter().copied().collect(),
        svd.vt.rows(0, thin).transpose(),
    ))
}

/// Eigenvalues and orthonormal eigenvectors of a symmetric matrix, by `dsyev`.
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
    let eigen = all_finite(matrix).then(|| SymmetricEigen::try_new(matrix.clone()));
    let eigen = eigen.flatten();
    let eigen = eigen.ok_or(not_converged("the symmetric eigenvalue iteration", size))?;
    Ok((
        eigen.eigenvalues.iter().copied().collect(),
        eigen.eigenvectors,
    ))
}

#[cfg(test)]
mod tests;
