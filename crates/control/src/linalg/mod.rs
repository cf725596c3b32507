//! Dense linear algebra for small matrices: a graded SVD, diagonalisation, Lyapunov equations, long
//! convolution.
//!
//! Nothing here knows what a system is. The matrices are mostly a few hundred rows, and accuracy
//! comes before speed.

mod eigen;
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
pub use fft::Convolver;
pub use kernels::gram_matrix;
pub(crate) use kernels::{
    Scalar, multiply, multiply_adjoint, multiply_transpose, spectral_norm, symmetric_product,
};
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

/// e^z − 1 without cancellation for small z.
///
/// ```text
/// Re = expm1(x) − 2 eˣ sin²(y/2),   Im = 2 eˣ sin(y/2) cos(y/2),   z = x + iy
/// ```
///
/// The error is a few ulp of |e^z − 1|; the imaginary part alone is accurate to a few ulp of
/// itself, which matters for poles that are almost real.
pub(crate) fn expm1(z: Complex64) -> Complex64 {
    let (sin, cos) = (0.5 * z.im).sin_cos();
    let growth = z.re.exp_m1();
    // One function fewer where the sum keeps all digits.
    let size = if z.re > -1.0 {
        growth + 1.0
    } else {
        z.re.exp()
    };
    Complex64::new(growth - 2.0 * size * sin * sin, 2.0 * size * sin * cos)
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

    #[test]
    fn expm1_agrees_with_exp_away_from_zero() {
        for (re, im) in [(-0.5, 2.0), (-3.0, -40.0), (-700.0, 1.0), (0.1, 3.1)] {
            let z = Complex64::new(re, im);
            assert!((expm1(z) - (z.exp() - 1.0)).norm() < 4e-16 * (1.0 + z.exp().norm()));
            let nearly_real = expm1(Complex64::new(re, 1e-9 * im)).im;
            let expected = re.exp() * (1e-9 * im).sin();
            assert!((nearly_real - expected).abs() <= 1e-15 * expected.abs());
        }
    }
}
