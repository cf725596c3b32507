//! How many digits of the Hankel singular values four routes keep, on reference systems with
//! 40-digit truth.
//!
//! ```text
//! cargo run --release -p hankelite-control --example accuracy -- FOLDER_OF_REFERENCES > docs/accuracy.md
//! ```
//!
//! A reference is a JSON file with `lambda`, `b`, `c` (`re_f64`, `im_f64`), `Delta`, and the
//! values under `continuous.hsv.f64` and `discrete_zoh.hsv.f64`. The three other routes are
//! written here as people write them: from computed Gramians.
#![allow(
    clippy::print_stdout,
    reason = "an example that makes a page prints it"
)]

use std::collections::BTreeMap;
use std::path::Path;

use hankelite_control::{DiagonalSystem, Realisation, Time, hankel_values};
use nalgebra::{DMatrix, DVector, SymmetricEigen};
use num_complex::Complex64;
use serde_json::Value;

type Failure = Box<dyn std::error::Error>;
type Matrix = DMatrix<Complex64>;

/// Names of the routes, in the order of their columns.
const ROUTES: [&str; 4] = [
    "this library",
    "Cholesky + SVD",
    "textbook W_c^½",
    "√eig(W_c W_o)",
];

fn main() -> Result<(), Failure> {
    let folder = std::env::args().nth(1).ok_or("usage: accuracy FOLDER")?;
    let mut families: BTreeMap<String, [Vec<f64>; 4]> = BTreeMap::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_none_or(|kind| kind != "json") {
            continue;
        }
        let value: Value = serde_json::from_str(&std::fs::read_to_string(&path)?)?;
        if value.get("kind").is_none() {
            measure(&path, &value, &mut families)?;
        }
    }
    println!("| family | values | {} |", ROUTES.join(" | "));
    println!("|---|---|{}", "---|".repeat(ROUTES.len()));
    for (family, errors) in &families {
        let cells: Vec<String> = errors.iter().map(|errors| cell(errors)).collect();
        println!("| {family} | {} | {} |", errors[0].len(), cells.join(" | "));
    }
    Ok(())
}

fn measure(
    path: &Path,
    value: &Value,
    families: &mut BTreeMap<String, [Vec<f64>; 4]>,
) -> Result<(), Failure> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let family: String = name.chars().take_while(|c| !c.is_ascii_digit()).collect();
    let part = |key: &str| -> Result<Vec<Complex64>, Failure> {
        let re: Vec<f64> = serde_json::from_value(value[key]["re_f64"].clone())?;
        let im: Vec<f64> = serde_json::from_value(value[key]["im_f64"].clone())?;
        Ok(re
            .into_iter()
            .zip(im)
            .map(|(re, im)| Complex64::new(re, im))
            .collect())
    };
    let (lambda, b, c) = (part("lambda")?, part("b")?, part("c")?);
    let n = lambda.len();
    let continuous = DiagonalSystem::new(
        Time::Continuous,
        lambda,
        Matrix::from_column_slice(n, 1, &b),
        Matrix::from_row_slice(1, n, &c),
        DMatrix::zeros(1, 1),
    )?;
    let step = value["Delta"].as_f64().ok_or("Delta")?;
    let discrete = continuous.zoh(step)?;
    for (key, system) in [("continuous", continuous), ("discrete_zoh", discrete)] {
        let truth: Vec<f64> = serde_json::from_value(value[key]["hsv"]["f64"].clone())?;
        let errors = families.entry(family.clone()).or_default();
        let (w_c, w_o) = gramians(&system);
        let found = [
            Some(
                hankel_values(system.stable()?, Realisation::Complex)?
                    .values()
                    .to_vec(),
            ),
            cholesky_route(&w_c, &w_o),
            textbook_route(&w_c, &w_o),
            product_route(&w_c, &w_o),
        ];
        for (errors, found) in errors.iter_mut().zip(found) {
            for (j, truth) in truth.iter().enumerate().filter(|(_, truth)| **truth > 0.0) {
                // A route that fails has lost the value altogether.
                let error = found
                    .as_ref()
                    .map_or(f64::INFINITY, |found| (found[j] - truth).abs() / truth);
                errors.push(if error.is_nan() { f64::INFINITY } else { error });
            }
        }
    }
    Ok(())
}

/// Both Gramians in closed form, as anybody would compute them.
fn gramians(system: &DiagonalSystem) -> (Matrix, Matrix) {
    let poles = DVector::from_vec(system.poles());
    let (b, c, n) = (system.input(), system.output(), system.order());
    let gap = |x: Complex64, y: Complex64| match system.time() {
        Time::Continuous => -(x + y),
        Time::Discrete { .. } => 1.0 - x * y,
    };
    let w_c = Matrix::from_fn(n, n, |i, j| {
        b[i] * b[j].conj() / gap(poles[i], poles[j].conj())
    });
    let w_o = Matrix::from_fn(n, n, |i, j| {
        c[i].conj() * c[j] / gap(poles[i].conj(), poles[j])
    });
    (w_c, w_o)
}

fn descending(mut values: Vec<f64>) -> Vec<f64> {
    values.sort_by(|a, b| b.total_cmp(a));
    values
}

fn cholesky_route(w_c: &Matrix, w_o: &Matrix) -> Option<Vec<f64>> {
    let (l_c, l_o) = (w_c.clone().cholesky()?.l(), w_o.clone().cholesky()?.l());
    let svd = nalgebra::SVD::try_new(l_o.adjoint() * l_c, false, false, f64::EPSILON, 100_000)?;
    Some(descending(svd.singular_values.iter().copied().collect()))
}

fn textbook_route(w_c: &Matrix, w_o: &Matrix) -> Option<Vec<f64>> {
    let eigen = SymmetricEigen::try_new(w_c.clone(), f64::EPSILON, 100_000)?;
    let roots = eigen
        .eigenvalues
        .map(|value| Complex64::from(value.max(0.0).sqrt()));
    let root = &eigen.eigenvectors * Matrix::from_diagonal(&roots) * eigen.eigenvectors.adjoint();
    let inner = SymmetricEigen::try_new(&root * w_o * &root, f64::EPSILON, 100_000)?;
    let values = inner.eigenvalues.iter().map(|value| value.max(0.0).sqrt());
    Some(descending(values.collect()))
}

fn product_route(w_c: &Matrix, w_o: &Matrix) -> Option<Vec<f64>> {
    let schur = nalgebra::Schur::try_new(w_c * w_o, f64::EPSILON, 100_000)?;
    let values = schur.eigenvalues()?;
    Some(descending(
        values
            .iter()
            .map(|value| value.re.max(0.0).sqrt())
            .collect(),
    ))
}

/// Worst and median error, and how many values have no digit right.
fn cell(errors: &[f64]) -> String {
    let mut sorted = errors.to_vec();
    sorted.sort_by(f64::total_cmp);
    let (worst, median) = (sorted[sorted.len() - 1], sorted[sorted.len() / 2]);
    let lost = errors.iter().filter(|&&error| error > 0.1).count();
    let worst = if worst.is_finite() {
        format!("{worst:.0e}")
    } else {
        "fails".to_string()
    };
    match lost {
        0 => format!("{worst} / {median:.0e}"),
        lost => format!("{worst} / {median:.0e}, {lost} lost"),
    }
}
