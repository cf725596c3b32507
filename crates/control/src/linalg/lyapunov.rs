//! Lyapunov and Stein equations with a dense real matrix, by its complex Schur form.

use nalgebra::{DMatrix, DVector};
use num_complex::Complex64;

use crate::linalg::{LinalgError, dense};

/// Which of the two equations is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Equation {
    /// A X + X Aᵀ + Q = 0, of continuous time.
    Lyapunov,
    /// A X Aᵀ − X + Q = 0, of discrete time.
    Stein,
}

/// A = Z T Z* with upper triangular T, for a real A.
#[derive(Debug, Clone)]
pub(crate) struct Triangular {
    z: DMatrix<Complex64>,
    t: DMatrix<Complex64>,
}

impl Triangular {
    /// Real Schur form, then one rotation for each 2 × 2 block. Cost about 25 n³.
    ///
    /// # Errors
    /// [`LinalgError::NotConverged`].
    pub(crate) fn new(matrix: &DMatrix<f64>) -> Result<Self, LinalgError> {
        let (z, t) = dense::real_schur(matrix)?;
        let (mut z, mut t) = (z.map(Complex64::from), t.map(Complex64::from));
        triangularise(&mut z, &mut t);
        Ok(Self { z, t })
    }

    /// The eigenvalues of A.
    pub(crate) fn eigenvalues(&self) -> Vec<Complex64> {
        self.t.diagonal().iter().copied().collect()
    }

    /// Solves the equation for a symmetric Q, stable or not. Cost about 10 n³.
    ///
    /// ```text
    /// (T + t̄_jj) y_j = −f_j − Σ_{k>j} t̄_jk y_k,         X = Z Y Z*,   F = Z* Q Z
    /// (t̄_jj T − 1) y_j = −f_j − T Σ_{k>j} t̄_jk y_k      (Stein)
    /// ```
    ///
    /// # Errors
    /// [`LinalgError::NoUniqueSolution`] when λ_i + λ̄_j = 0, or λ_i λ̄_j = 1, for two eigenvalues.
    ///
    /// # References
    /// Bartels and Stewart, *Algorithm 432*, Comm. ACM 15 (1972); Kitagawa, *An algorithm for
    /// solving the matrix equation X = F X Fᵀ + S*, Int. J. Control 25 (1977).
    pub(crate) fn solve(
        &self,
        equation: Equation,
        q: &DMatrix<f64>,
    ) -> Result<DMatrix<f64>, LinalgError> {
        let size = self.t.nrows();
        let f = self.z.adjoint() * q.map(Complex64::from) * &self.z;
        let mut y = DMatrix::<Complex64>::zeros(size, size);
        for j in (0..size).rev() {
            let mut known = DVector::zeros(size);
            for k in j + 1..size {
                known.axpy(self.t[(j, k)].conj(), &y.column(k), Complex64::ONE);
            }
            if equation == Equation::Stein {
                known = &self.t * known;
            }
            let right = -(f.column(j) + known);
            y.set_column(
                j,
                &self.shifted_solve(equation, self.t[(j, j)].conj(), size, right)?,
            );
        }
        let x = (&self.z * y * self.z.adjoint()).map(|x| x.re);
        Ok((&x + x.transpose()) * 0.5)
    }

    /// Solves (T + μ) x = r, or (μ T − 1) x = r, with the leading `size` rows of T.
    fn shifted_solve(
        &self,
        equation: Equation,
        mu: Complex64,
        size: usize,
        mut x: DVector<Complex64>,
    ) -> Result<DVector<Complex64>, LinalgError> {
        let (scale, shift) = match equation {
            Equation::Lyapunov => (Complex64::ONE, mu),
            Equation::Stein => (mu, -Complex64::ONE),
        };
        for i in (0..size).rev() {
            let pivot = scale * self.t[(i, i)] + shift;
            x[i] /= pivot;
            if !x[i].is_finite() {
                return Err(LinalgError::NoUniqueSolution {
                    size: self.t.nrows(),
                });
            }
            let value = scale * x[i];
            for k in 0..i {
                x[k] -= value * self.t[(k, i)];
            }
        }
        Ok(x)
    }

    /// F with F F* = X, the solution for Q = B Bᵀ and a stable A, without forming B Bᵀ or X.
    ///
    /// ```text
    /// τ = |b|/√(−2 Re λ),   α = b/τ,   (T₁ + λ̄) u = −(s τ + B₁ α*),   B₁ ← B₁ − u α
    /// T = [T₁ s; 0 λ],   B = [B₁; b],   U = [U₁ u; 0 τ],   F = Z U
    /// Stein: τ = |b|/√(1 − |λ|²),   (1 − λ̄ T₁) u = λ̄ s τ + B₁ α*,   w = T₁ u + s τ,
    ///        B₁ ← B₁ − (w + (1 − λ)/(1 − |λ|²) B₁ α*) α
    /// ```
    ///
    /// F has the accuracy of the Schur form, while a factor of a computed X has the root of it.
    /// Cost about 2 n³ + n² m.
    ///
    /// # Errors
    /// [`LinalgError::NoUniqueSolution`] when A is not stable.
    ///
    /// # References
    /// Hammarling, *Numerical solution of the stable, non-negative definite Lyapunov equation*,
    /// IMA J. Numer. Anal. 2 (1982).
    pub(crate) fn factor(
        &self,
        equation: Equation,
        b: &DMatrix<f64>,
    ) -> Result<DMatrix<Complex64>, LinalgError> {
        let size = self.t.nrows();
        let mut rows = self.z.adjoint() * b.map(Complex64::from);
        let mut u = DMatrix::<Complex64>::zeros(size, size);
        for k in (0..size).rev() {
            let lambda = self.t[(k, k)];
            let decay = match equation {
                Equation::Lyapunov => -2.0 * lambda.re,
                Equation::Stein => (1.0 - lambda.norm()) * (1.0 + lambda.norm()),
            };
            if decay.is_nan() || decay <= 0.0 {
                return Err(LinalgError::NoUniqueSolution { size });
            }
            let norm = rows.row(k).norm();
            if norm == 0.0 {
                continue;
            }
            let tau = norm / decay.sqrt();
            u[(k, k)] = Complex64::from(tau);
            let alpha = rows.row(k).unscale(tau);
            let upper = rows.rows(0, k).into_owned();
            let along = &upper * alpha.adjoint();
            let s = self.t.view((0, k), (k, 1)).column(0).scale(tau);
            let (column, step) = match equation {
                Equation::Lyapunov => {
                    let column = self.shifted_solve(equation, lambda.conj(), k, -(s + along))?;
                    (column.clone(), column)
                }
                Equation::Stein => {
                    let right = -(&s * lambda.conj() + &along);
                    let column = self.shifted_solve(equation, lambda.conj(), k, right)?;
                    let w = self.t.view((0, 0), (k, k)) * &column + s;
                    let share = (Complex64::ONE - lambda) / decay;
                    (column, w + along * share)
                }
            };
            u.view_mut((0, k), (k, 1)).copy_from(&column);
            rows.rows_mut(0, k).copy_from(&(upper - step * alpha));
        }
        Ok(&self.z * u)
    }
}

/// Rotates each 2 × 2 diagonal block of a real Schur form to triangular form.
fn triangularise(q: &mut DMatrix<Complex64>, t: &mut DMatrix<Complex64>) {
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
        rotate(q, t, k, [value - d, Complex64::from(c)]);
    }
}

fn rotate(
    q: &mut DMatrix<Complex64>,
    t: &mut DMatrix<Complex64>,
    k: usize,
    [x, y]: [Complex64; 2],
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

/// V diag(√max(ω, 0)): F with F Fᵀ ≈ W for a symmetric W that should be positive semidefinite, by
/// its eigenvalues ω and eigenvectors V. Negative eigenvalues count as zero.
///
/// The small half of the factor's digits is lost when W is formed: columns below 10⁻⁸ of the
/// largest are noise.
///
/// # Errors
/// [`LinalgError::NotConverged`].
pub(crate) fn symmetric_root(matrix: &DMatrix<f64>) -> Result<DMatrix<f64>, LinalgError> {
    let (values, mut factor) = dense::symmetric_eigen(matrix)?;
    for (mut column, value) in factor.column_iter_mut().zip(&values) {
        column.scale_mut(value.max(0.0).sqrt());
    }
    Ok(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stable(size: usize, equation: Equation) -> DMatrix<f64> {
        let raw = DMatrix::from_fn(size, size, |i, j| ((3 * i + 7 * j * j + 1) as f64).sin());
        match equation {
            Equation::Lyapunov => raw - DMatrix::identity(size, size) * (size as f64),
            Equation::Stein => raw / (size as f64),
        }
    }

    fn residual(equation: Equation, a: &DMatrix<f64>, x: &DMatrix<f64>, q: &DMatrix<f64>) -> f64 {
        let left = match equation {
            Equation::Lyapunov => a * x + x * a.transpose() + q,
            Equation::Stein => a * x * a.transpose() - x + q,
        };
        left.norm() / (a.norm() * x.norm() + q.norm())
    }

    #[test]
    fn solution_and_factor_leave_a_residual_of_rounding() {
        for equation in [Equation::Lyapunov, Equation::Stein] {
            for size in [1, 2, 5, 12, 30] {
                let a = stable(size, equation);
                let b = DMatrix::from_fn(size, 2, |i, j| (1.1 * (i + 5 * j) as f64).cos());
                let q = &b * b.transpose();
                let schur = Triangular::new(&a).unwrap();
                let x = schur.solve(equation, &q).unwrap();
                assert!(
                    residual(equation, &a, &x, &q) < 1e-13,
                    "{equation:?} {size}"
                );
                let f = schur.factor(equation, &b).unwrap();
                let product = &f * f.adjoint();
                assert!(product.map(|x| x.im).norm() < 1e-13 * product.norm());
                let x = product.map(|x| x.re);
                assert!(
                    residual(equation, &a, &x, &q) < 1e-13,
                    "{equation:?} {size}"
                );
                let root = symmetric_root(&x).unwrap();
                assert!((&root * root.transpose() - &x).norm() <= 1e-13 * x.norm());
            }
        }
    }

    #[test]
    fn an_equation_without_a_unique_solution_is_named() {
        let a = DMatrix::from_diagonal(&DVector::from_vec(vec![1.0, -1.0]));
        let q = DMatrix::identity(2, 2);
        let schur = Triangular::new(&a).unwrap();
        let singular = LinalgError::NoUniqueSolution { size: 2 };
        for equation in [Equation::Lyapunov, Equation::Stein] {
            assert_eq!(schur.solve(equation, &q), Err(singular.clone()));
            assert_eq!(schur.factor(equation, &q), Err(singular.clone()));
        }
    }

    #[test]
    fn a_negative_eigenvalue_counts_as_zero() {
        let w = DMatrix::from_diagonal(&DVector::from_vec(vec![4.0, -0.25]));
        let root = symmetric_root(&w).unwrap();
        assert_eq!((&w - &root * root.transpose()).norm(), 0.25);
        assert!((root.norm() - 2.0).abs() < 1e-15);
    }

    fn square<const N: usize>(rows: [[f64; N]; N]) -> DMatrix<f64> {
        DMatrix::from_row_slice(N, N, rows.as_flattened())
    }

    #[test]
    fn solutions_are_those_of_slicot() {
        // SB03OD: op(A)ᵀ X + X A = −Bᵀ B.
        let a = square([
            [-1.0, 37.0, -12.0, -12.0],
            [-1.0, -10.0, 0.0, 4.0],
            [2.0, -4.0, 7.0, -6.0],
            [2.0, 2.0, 7.0, -9.0],
        ]);
        let rows = [
            [1.0, 2.5, 1.0, 3.5],
            [0.0, 1.0, 0.0, 1.0],
            [-1.0, -2.5, -1.0, -1.5],
            [1.0, 2.5, 4.0, -5.5],
            [-1.0, -2.5, -4.0, 3.5],
        ];
        let b = DMatrix::from_row_slice(5, 4, rows.as_flattened());
        let expected = square([
            [1.0, 3.0, 2.0, -1.0],
            [3.0, 10.0, 5.0, -2.0],
            [2.0, 5.0, 6.0, -5.0],
            [-1.0, -2.0, -5.0, 7.0],
        ]);
        let schur = Triangular::new(&a.transpose()).unwrap();
        let x = schur.solve(Equation::Lyapunov, &(b.transpose() * &b));
        let x = x.unwrap();
        assert!((&x - &expected).amax() < 1e-11, "{x}");
        let factor = schur.factor(Equation::Lyapunov, &b.transpose()).unwrap();
        assert!(((&factor * factor.adjoint()).map(|x| x.re) - &expected).amax() < 1e-11);
        // SB03MD, discrete, with an unstable A: Aᵀ X A − X = Q.
        let a = square([[3.0, 1.0, 1.0], [1.0, 3.0, 0.0], [0.0, 0.0, 3.0]]);
        let q = square([[25.0, 24.0, 15.0], [24.0, 32.0, 8.0], [15.0, 8.0, 40.0]]);
        let expected = square([[2.0, 1.0, 1.0], [1.0, 3.0, 0.0], [1.0, 0.0, 4.0]]);
        let schur = Triangular::new(&a.transpose()).unwrap();
        let x = schur.solve(Equation::Stein, &-q).unwrap();
        assert!((x - expected).amax() < 1e-13);
    }

    /// The unstable system of SLICOT's AB09ID: the equations have solutions, indefinite as they
    /// are, and √|eig(W_c W_o)| are its formal Hankel values. Computed with 60 digits.
    #[test]
    fn solutions_of_an_unstable_system_give_its_formal_hankel_values() {
        let a = square([[-26.4, 6.4023, 4.3868], [32.0, 0.0, 0.0], [0.0, 8.0, 0.0]]);
        let b = DMatrix::from_row_slice(3, 1, &[16.0, 0.0, 0.0]);
        let c = DMatrix::from_row_slice(1, 3, &[9.2994, 1.1624, 0.1090]);
        let solve = |a: &DMatrix<f64>, q: DMatrix<f64>| {
            let schur = Triangular::new(a).unwrap();
            schur.solve(Equation::Lyapunov, &q).unwrap()
        };
        let w_c = solve(&a, &b * b.transpose());
        let w_o = solve(&a.transpose(), c.transpose() * &c);
        let eigenvalues = (&w_c * w_o).complex_eigenvalues();
        let mut values: Vec<f64> = eigenvalues.iter().map(|x| x.norm().sqrt()).collect();
        values.sort_by(|x, y| y.total_cmp(x));
        let expected = [3.30263145043, 2.95791578773, 0.543493815338];
        for (found, expected) in values.iter().zip(expected) {
            assert!((found / expected - 1.0).abs() <= 1e-11, "{values:?}");
        }
        let norm = (&c * w_c * c.transpose())[0].sqrt();
        assert!((norm / 22.4474152021 - 1.0).abs() <= 1e-11, "{norm}");
    }
}
