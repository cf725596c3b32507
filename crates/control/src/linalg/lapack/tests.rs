//! The two paths of the dense factorisations beside each other.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::linalg::{lapack, pure};

const SIZES: [usize; 6] = [1, 2, 5, 16, 40, 64];

/// Well conditioned, without symmetry, eigenvalues apart.
fn sample(size: usize) -> DMatrix<f64> {
    DMatrix::from_fn(size, size, |i, j| {
        let off = ((i * i + 3 * j + i * j) as f64).sin() / (size as f64);
        if i == j { off + 1.0 + i as f64 } else { off }
    })
}

fn sorted(values: impl IntoIterator<Item = Complex64>) -> Vec<Complex64> {
    let mut values: Vec<Complex64> = values.into_iter().collect();
    values.sort_by(|x, y| x.re.total_cmp(&y.re).then(x.im.total_cmp(&y.im)));
    values
}

#[test]
fn both_schur_forms_rebuild_the_matrix_and_have_the_same_eigenvalues() {
    for size in SIZES {
        let a = sample(size);
        let mut found = Vec::new();
        for (q, t) in [
            pure::real_schur(&a).unwrap(),
            lapack::real_schur(&a).unwrap(),
        ] {
            let backward = (&q * &t * q.transpose() - &a).norm() / a.norm();
            assert!(backward < 1e-12, "{size}: {backward:e}");
            let orthogonal = (q.transpose() * &q - DMatrix::identity(size, size)).norm();
            assert!(orthogonal < 1e-12, "{size}: {orthogonal:e}");
            found.push(sorted(t.complex_eigenvalues().iter().copied()));
        }
        for (x, y) in found[0].iter().zip(&found[1]) {
            assert!((x - y).norm() < 1e-12 * a.norm(), "{size}: {x} {y}");
        }
    }
}

#[test]
fn both_singular_value_decompositions_agree() {
    for size in SIZES {
        let a = sample(size).columns(0, size.div_ceil(2)).into_owned();
        let found = [pure::dense_svd(&a).unwrap(), lapack::dense_svd(&a).unwrap()];
        for svd in &found {
            let sigma = DMatrix::from_diagonal(&svd.sigma.clone().into());
            let backward =
                (svd.left(svd.sigma.len()) * sigma * svd.right(svd.sigma.len()).transpose() - &a)
                    .norm()
                    / a.norm();
            assert!(backward < 1e-12, "{size}: {backward:e}");
        }
        for (x, y) in found[0].sigma.iter().zip(&found[1].sigma) {
            assert!((x - y).abs() < 1e-12 * a.norm(), "{size}: {x} {y}");
        }
    }
}

#[test]
fn both_symmetric_eigendecompositions_agree() {
    for size in SIZES {
        let a = sample(size);
        let a = &a + a.transpose();
        let found = [
            pure::symmetric_eigen(&a).unwrap(),
            lapack::symmetric_eigen(&a).unwrap(),
        ];
        let mut values = Vec::new();
        for (omega, v) in found {
            let diagonal = DMatrix::from_diagonal(&omega.clone().into());
            let backward = (&v * diagonal * v.transpose() - &a).norm() / a.norm();
            assert!(backward < 1e-12, "{size}: {backward:e}");
            values.push(sorted(omega.into_iter().map(Complex64::from)));
        }
        for (x, y) in values[0].iter().zip(&values[1]) {
            assert!((x - y).norm() < 1e-12 * a.norm(), "{size}: {x} {y}");
        }
    }
}

#[test]
fn a_matrix_with_nan_is_an_error_and_an_empty_one_is_not() {
    let nan = DMatrix::from_element(3, 3, f64::NAN);
    assert!(lapack::real_schur(&nan).is_err());
    assert!(lapack::dense_svd(&nan).is_err());
    assert!(lapack::symmetric_eigen(&nan).is_err());
    let empty = DMatrix::zeros(0, 0);
    assert!(lapack::real_schur(&empty).is_ok());
    assert!(lapack::dense_svd(&empty).unwrap().sigma.is_empty());
    assert!(lapack::symmetric_eigen(&empty).unwrap().0.is_empty());
}
