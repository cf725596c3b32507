//! Diagonalisation of general real and complex matrices.

use std::f64::consts::FRAC_1_SQRT_2;

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::linalg::kernels::{all_finite, complex_eigen, inverse, real_eigen, singular_values};
use crate::linalg::schur::Schur;
use crate::linalg::{LinalgError, Scalar, multiply};

/// A = V diag(ν) V⁻¹.
pub(crate) struct Diagonalised {
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
pub(crate) fn diagonalise_complex(
    matrix: &DMatrix<Complex64>,
) -> Result<Diagonalised, LinalgError> {
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
pub(crate) fn diagonalise_real(matrix: &DMatrix<f64>) -> Result<Diagonalised, LinalgError> {
    RealEigen::new(matrix)?.diagonalised()
}

/// The eigenvalues of a real matrix, and what its vectors are made from.
pub(crate) enum RealEigen {
    Schur(Schur),
    /// Values, and vectors as [`Schur::into_vectors`] has them.
    Whole(Vec<Complex64>, DMatrix<f64>),
}

/// Up to so many rows our own iteration takes less time than faer's.
const SMALL: usize = 64;

impl RealEigen {
    /// # Errors
    /// [`LinalgError::NotFinite`], [`LinalgError::NoEigenvalues`].
    pub(crate) fn new(matrix: &DMatrix<f64>) -> Result<Self, LinalgError> {
        require_finite(matrix.iter().all(|x| x.is_finite()))?;
        let size = matrix.nrows();
        let missing = LinalgError::NoEigenvalues { size };
        if size <= SMALL
            && let Some(schur) = Schur::new(matrix)
        {
            return Ok(Self::Schur(schur));
        }
        let (mut values, mut vectors) = real_eigen(matrix).ok_or(missing.clone())?;
        pair_up(&mut values, &mut vectors);
        // faer loses digits in silence where two pairs are close, all of them where they are equal.
        if residual(matrix, &values, &vectors) > RESIDUAL {
            return Schur::new(matrix).map(Self::Schur).ok_or(missing);
        }
        let parts = DMatrix::from_fn(size, size, |i, k| match values[k].im < 0.0 {
            true => -vectors[(i, k)].im,
            false => vectors[(i, k)].re,
        });
        Ok(Self::Whole(values, parts))
    }

    /// The eigenvalues.
    pub(crate) fn values(&self) -> &[Complex64] {
        match self {
            Self::Schur(schur) => schur.values(),
            Self::Whole(values, _) => values,
        }
    }

    /// With the vectors.
    ///
    /// # Errors
    /// [`LinalgError::Defective`] when V is singular to working precision.
    pub(crate) fn diagonalised(self) -> Result<Diagonalised, LinalgError> {
        let (values, parts) = match self {
            Self::Schur(schur) => schur.into_vectors(),
            Self::Whole(values, parts) => (values, parts),
        };
        inverted_pairs(values, parts)
    }
}

/// ‖A V − V diag(ν)‖ above this part of ‖A‖ is no rounding.
const RESIDUAL: f64 = 1e-13;

/// Makes neighbours exact conjugates, the one with the positive imaginary part first. A value
/// without a partner is real, and so is its vector.
fn pair_up(values: &mut [Complex64], vectors: &mut DMatrix<Complex64>) {
    let size = values.len();
    let mut k = 0;
    while k < size {
        if values[k].im == 0.0 || k + 1 == size {
            values[k].im = 0.0;
            make_real(vectors, k);
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
}

/// The largest entry of A V − V diag(ν) in real arithmetic, relative to ‖A‖: the columns Re v and
/// Im v stand for a pair.
fn residual(matrix: &DMatrix<f64>, values: &[Complex64], vectors: &DMatrix<Complex64>) -> f64 {
    let parts = DMatrix::from_fn(matrix.nrows(), values.len(), |i, k| {
        if values[k].im < 0.0 {
            vectors[(i, k)].im
        } else {
            vectors[(i, k)].re
        }
    });
    let images = multiply(matrix, &parts);
    let mut worst = 0.0_f64;
    for (k, value) in values.iter().enumerate() {
        for i in 0..matrix.nrows() {
            let expected = value * vectors[(i, k)];
            let expected = if value.im < 0.0 {
                expected.im
            } else {
                expected.re
            };
            worst = worst.max((images[(i, k)] - expected).abs());
        }
    }
    worst / matrix.norm().max(f64::MIN_POSITIVE)
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
    normalise(&mut vectors);
    let (inverse, condition) = inverse_with_condition(&vectors)?;
    Ok(Diagonalised {
        values,
        vectors,
        inverse,
        condition,
    })
}

/// The same from the real and imaginary parts of one vector of each pair, in real arithmetic:
///
/// ```text
/// (v, v̄) = W Q,   W = √2 (Re v, Im v),   Q = (1 1; i −i)/√2
/// ```
///
/// Q is unitary, so V⁻¹ = Q* W⁻¹, and V has the condition of W.
fn inverted_pairs(
    values: Vec<Complex64>,
    mut parts: DMatrix<f64>,
) -> Result<Diagonalised, LinalgError> {
    let size = values.len();
    let root = FRAC_1_SQRT_2;
    for (k, value) in values.iter().enumerate() {
        if value.im == 0.0 {
            let length = parts.column(k).norm();
            parts.column_mut(k).unscale_mut(length);
        } else if value.im > 0.0 {
            let length = parts.columns(k, 2).norm();
            parts.columns_mut(k, 2).unscale_mut(root * length);
        }
    }
    let (of_parts, condition) = inverse_with_condition(&parts)?;
    let vectors = DMatrix::from_fn(size, size, |i, k| match values[k].im {
        0.0 => Complex64::from(parts[(i, k)]),
        im if im > 0.0 => Complex64::new(parts[(i, k)], parts[(i, k + 1)]) * root,
        _ => Complex64::new(parts[(i, k - 1)], -parts[(i, k)]) * root,
    });
    let inverse = DMatrix::from_fn(size, size, |k, j| match values[k].im {
        0.0 => Complex64::from(of_parts[(k, j)]),
        im if im > 0.0 => Complex64::new(of_parts[(k, j)], -of_parts[(k + 1, j)]) * root,
        _ => Complex64::new(of_parts[(k - 1, j)], of_parts[(k, j)]) * root,
    });
    Ok(Diagonalised {
        values,
        vectors,
        inverse,
        condition,
    })
}

fn normalise(vectors: &mut DMatrix<Complex64>) {
    for mut column in vectors.column_iter_mut() {
        let norm = column.norm();
        column.unscale_mut(norm);
    }
}

/// The inverse and the condition κ₂ of a matrix of eigenvectors.
fn inverse_with_condition<T: Scalar>(
    vectors: &DMatrix<T>,
) -> Result<(DMatrix<T>, f64), LinalgError> {
    let size = vectors.nrows();
    let sigma = singular_values(vectors).ok_or(LinalgError::Defective { size })?;
    let condition = match (sigma.first(), sigma.last()) {
        (Some(largest), Some(smallest)) => largest / smallest,
        _ => 1.0,
    };
    let inverse = inverse(vectors);
    if !condition.is_finite() || !all_finite(&inverse) {
        return Err(LinalgError::Defective { size });
    }
    Ok((inverse, condition))
}

#[cfg(test)]
mod tests {
    use nalgebra::DVector;

    use super::*;

    fn rebuilt(d: &Diagonalised) -> DMatrix<Complex64> {
        let values = DVector::from_vec(d.values.clone());
        let values = DMatrix::from_diagonal(&values);
        &d.vectors * values * &d.inverse
    }

    #[test]
    fn a_real_matrix_is_rebuilt_and_its_pairs_are_exact_conjugates() {
        for size in [1, 2, 3, 6, 17] {
            let a = DMatrix::from_fn(size, size, |i, j| ((3 * i + 7 * j * j + 1) as f64).sin());
            let d = diagonalise_real(&a).unwrap();
            assert!((rebuilt(&d) - a.map(Complex64::from)).norm() < 1e-12 * d.condition);
            let units = d.vectors.column_iter().map(|vector| vector.norm());
            assert!(units.into_iter().all(|norm| (norm - 1.0).abs() < 1e-14));
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
        let mut block =
            DMatrix::from_diagonal(&DVector::from_vec(vec![1.0, 1.0, 2.0, 2.0, 2.0, 2.0]));
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
    fn a_repeated_pair_with_two_vectors_is_diagonalised() {
        let mut block = DMatrix::identity(4, 4) * 2.0;
        for k in [0, 2] {
            (block[(k, k + 1)], block[(k + 1, k)]) = (1.0, -1.0);
        }
        let basis = DMatrix::from_fn(4, 4, |i, j| ((3 * i + 7 * j * j + i * j + 1) as f64).sin());
        let a = &basis * block * basis.clone().try_inverse().unwrap();
        let d = diagonalise_real(&a).unwrap();
        let values = DMatrix::from_diagonal(&d.values.clone().into());
        let residual = (a.map(Complex64::from) * &d.vectors - &d.vectors * values).norm();
        assert!(residual < 1e-14 * a.norm(), "{residual:e}");
        let error = (rebuilt(&d) - a.map(Complex64::from)).norm();
        assert!(error < 1e-9 * d.condition, "{error:e} {:e}", d.condition);
    }

    #[test]
    fn the_values_alone_are_those_with_the_vectors() {
        for size in [5, SMALL + 6] {
            let a = DMatrix::from_fn(size, size, |i, j| ((3 * i + 7 * j * j + 1) as f64).sin());
            let eigen = RealEigen::new(&a).unwrap();
            let values = eigen.values().to_vec();
            assert_eq!(values, eigen.diagonalised().unwrap().values);
        }
    }

    #[test]
    fn pairs_come_with_the_positive_imaginary_part_first_and_real_vectors_are_real() {
        let z = Complex64::new;
        let mut values = [z(2.0, 0.0), z(1.0, -3.0), z(1.0, 3.0), z(5.0, 0.0)];
        let mut vectors = DMatrix::from_fn(4, 4, |i, k| z((i + k) as f64 - 1.5, (i * k) as f64));
        let before = vectors.clone();
        let real = before.column(0).map(|x| z(x.re, 0.0));
        vectors.set_column(0, &(&real * Complex64::from_polar(1.0, 0.7)));
        pair_up(&mut values, &mut vectors);
        assert_eq!(
            values,
            [z(2.0, 0.0), z(1.0, 3.0), z(1.0, -3.0), z(5.0, 0.0)]
        );
        assert_eq!(vectors.column(1), before.column(2));
        assert_eq!(vectors.column(2), before.column(2).map(|x| x.conj()));
        let found = vectors.column(0);
        let either = (found - &real).norm().min((found + &real).norm());
        assert!(either < 1e-15 * real.norm(), "{found}");
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

    #[test]
    fn the_residual_is_relative_to_the_matrix() {
        let a = DMatrix::from_fn(5, 5, |i, j| ((3 * i + 7 * j * j + 1) as f64).sin());
        let d = diagonalise_real(&a).unwrap();
        let mut off = d.values.clone();
        off[0] += 1e-3;
        let images = (a.map(Complex64::from) * &d.vectors).column(0) - d.vectors.column(0) * off[0];
        let part = |x: &Complex64| {
            if off[0].im < 0.0 {
                x.im.abs()
            } else {
                x.re.abs()
            }
        };
        let expected = images.iter().map(part).fold(0.0, f64::max) / a.norm();
        for scale in [1.0, 1024.0, 1.0 / 1024.0] {
            let values: Vec<Complex64> = off.iter().map(|&x| x * scale).collect();
            let found = residual(&(&a * scale), &values, &d.vectors);
            assert!(
                (found / expected - 1.0).abs() < 1e-9,
                "{found:e} {expected:e}"
            );
            let values: Vec<Complex64> = d.values.iter().map(|&x| x * scale).collect();
            assert!(residual(&(&a * scale), &values, &d.vectors) < RESIDUAL);
        }
    }
}
