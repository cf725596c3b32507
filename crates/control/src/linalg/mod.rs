//! Dense linear algebra for small matrices: a graded SVD, diagonalisation, Lyapunov equations, long
//! convolution.
//!
//! Nothing here knows what a system is. The matrices are mostly a few hundred rows, and accuracy
//! comes before speed.

mod eigen;
mod exponential;
mod fft;
mod kernels;
#[cfg(feature = "lapack")]
mod lapack;
mod lyapunov;
mod polynomial;
#[cfg_attr(
    feature = "lapack",
    allow(dead_code, reason = "LAPACK stands in for it, but in tests")
)]
mod pure;
mod reflected;
mod schur;
mod svd;
mod tridiagonal;
mod wide;

pub(crate) use dense::dense_svd;
pub(crate) use eigen::{Diagonalised, RealEigen, diagonalise_complex, diagonalise_real};
pub(crate) use exponential::expm1;
pub use fft::Convolver;
pub(crate) use kernels::solve_positive_columns;
pub(crate) use kernels::{
    Scalar, multiply, multiply_adjoint, multiply_transpose, scaled_cholesky, spectral_norm,
    symmetric_product,
};
pub use kernels::{UpperRoot, cross_gram, gram_matrix, product, solve_positive};
pub(crate) use lyapunov::{Equation, Triangular, symmetric_root};
use num_complex::Complex64;
pub(crate) use polynomial::Polynomials;
pub(crate) use reflected::pivoted_lower_factor;
pub(crate) use svd::{GradedSvd, graded_svd, scaled_svd};
pub(crate) use wide::{Wide, WideComplex, power_of_two_below, two_product};

/// The factorisations that the dense real path uses.
#[cfg(feature = "lapack")]
use crate::linalg::lapack as dense;
/// The factorisations that the dense real path uses.
#[cfg(not(feature = "lapack"))]
use crate::linalg::pure as dense;

/// What can go wrong in a factorisation.
#[derive(Debug, Clone, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum LinalgError {
    /// An iteration did not settle within its cap.
    #[error("{what} of a {size} x {size} matrix did not converge in {iterations} iterations")]
    NotConverged {
        /// The factorisation.
        what: &'static str,
        /// Rows of the matrix.
        size: usize,
        /// The cap that was reached.
        iterations: usize,
    },
    /// A NaN or an infinity where numbers are needed.
    #[error("{what} holds a value that is not finite")]
    NotFinite {
        /// The matrix.
        what: &'static str,
    },
    /// The eigenvalue iteration did not converge.
    #[error("the eigenvalues of a {size} x {size} matrix did not converge")]
    NoEigenvalues {
        /// Rows of the matrix.
        size: usize,
    },
    /// The matrix has no complete set of eigenvectors in working precision.
    #[error("a {size} x {size} matrix is defective: its eigenvectors are linearly dependent")]
    Defective {
        /// Rows of the matrix.
        size: usize,
    },
    /// Two eigenvalues make a Lyapunov or Stein equation singular; for a factor, one of them is
    /// unstable.
    #[error("the matrix equation of size {size} has no unique (or no positive) solution")]
    NoUniqueSolution {
        /// Rows of the matrix.
        size: usize,
    },
}

/// ln(1 + z) on the principal branch without cancellation for small z.
pub(crate) fn ln_1p(z: Complex64) -> Complex64 {
    let shifted = z + 1.0;
    // |1 + z|² − 1 cancels where 1 + z is small, and |1 + z| itself where z is.
    let modulus = if z.norm() < 0.5 {
        0.5 * (2.0 * z.re + z.norm_sqr()).ln_1p()
    } else {
        shifted.norm().ln()
    };
    Complex64::new(modulus, shifted.arg())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expm1_and_ln_1p_keep_small_arguments() {
        let z = Complex64::new(-1e-12, 3e-13);
        assert!((expm1(z) - z).norm() < 1e-23);
        assert!((ln_1p(expm1(z)) - z).norm() < 1e-27);
        let near_minus_one = Complex64::new(-1.0 - 2e-16, 0.0);
        assert!((ln_1p(near_minus_one).re - 2.22e-16_f64.ln()).abs() < 0.1);
    }
}
