//! Hankel theory for bare arrays.

use hankelite::control::nalgebra::DMatrix;
use hankelite::control::num_complex::Complex64;
use hankelite::control::{ControlError, DiagonalSystem, Realisation, Time, balance};
use numpy::{PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2, ToPyArray};
use pyo3::prelude::*;

use crate::failure::{Failure, Outcome};

/// Exponents, B, C, D and the step of a system; NaN stands for continuous time.
type Arrays<'py> = (
    PyReadonlyArray1<'py, Complex64>,
    PyReadonlyArray2<'py, Complex64>,
    PyReadonlyArray2<'py, Complex64>,
    PyReadonlyArray2<'py, f64>,
    f64,
);

/// The same going out, always with a row of exponents.
pub(crate) type ArraysOut<'py> = (
    Bound<'py, PyArray1<Complex64>>,
    Bound<'py, PyArray2<Complex64>>,
    Bound<'py, PyArray2<Complex64>>,
    Bound<'py, PyArray2<f64>>,
    Option<f64>,
);

fn failed(error: ControlError) -> Failure {
    let message = error.to_string();
    Failure::of_system(None, 0, &error, message)
}

pub(crate) fn matrix<T: numpy::Element + hankelite::control::nalgebra::Scalar + Copy>(
    array: &PyReadonlyArray2<'_, T>,
) -> DMatrix<T> {
    let view = array.as_array();
    DMatrix::from_fn(view.nrows(), view.ncols(), |i, j| view[(i, j)])
}

fn system(arrays: &Arrays<'_>) -> Outcome<DiagonalSystem> {
    let (exponents, input, output, feedthrough, step) = arrays;
    let time = match step.is_nan() {
        true => Time::Continuous,
        false => Time::Discrete { step: *step },
    };
    let exponents = exponents.as_array().to_vec();
    let made = DiagonalSystem::new(
        time,
        exponents,
        matrix(input),
        matrix(output),
        matrix(feedthrough),
    );
    made.map_err(|error| failed(error.into()))
}

fn realisation(complex: bool) -> Realisation {
    match complex {
        true => Realisation::Complex,
        false => Realisation::Real,
    }
}

pub(crate) fn array<'py, T: numpy::Element + hankelite::control::nalgebra::Scalar + Copy>(
    py: Python<'py>,
    matrix: &DMatrix<T>,
) -> Bound<'py, PyArray2<T>> {
    let (rows, columns) = matrix.shape();
    let by_rows = numpy::ndarray::Array2::from_shape_fn((rows, columns), |(i, j)| matrix[(i, j)]);
    by_rows.to_pyarray(py)
}

/// A system as arrays.
pub(crate) fn arrays<'py>(py: Python<'py>, system: &DiagonalSystem) -> ArraysOut<'py> {
    let step = match system.time() {
        Time::Continuous => None,
        Time::Discrete { step } => Some(step),
    };
    (
        PyArray1::from_slice(py, system.exponents()),
        array(py, system.input()),
        array(py, system.output()),
        array(py, system.feedthrough()),
        step,
    )
}

/// Hankel singular values of a system, descending.
#[pyfunction]
pub(crate) fn hankel_values<'py>(
    py: Python<'py>,
    arrays: Arrays<'py>,
    complex: bool,
) -> PyResult<Bound<'py, PyArray1<f64>>> {
    let system = system(&arrays)?;
    let values = py.detach(|| {
        let stable = system.stable().map_err(|error| failed(error.into()))?;
        let values = hankelite::control::hankel_values(stable, realisation(complex));
        Ok::<_, Failure>(values.map_err(failed)?.values().to_vec())
    })?;
    Ok(PyArray1::from_vec(py, values))
}

/// A system cut to so many balanced states, with its error bound, the states kept and the condition
/// of the eigenvectors.
#[pyfunction]
pub(crate) fn balanced_truncation<'py>(
    py: Python<'py>,
    arrays: Arrays<'py>,
    states: usize,
    complex: bool,
) -> PyResult<(ArraysOut<'py>, f64, usize, f64)> {
    let full = system(&arrays)?;
    if states == 0 {
        return Err(Failure::setting("the number of states is 0, expected at least 1").into());
    }
    let reduced = py.detach(|| {
        let stable = full.stable().map_err(|error| failed(error.into()))?;
        let balanced = balance(stable, realisation(complex)).map_err(failed)?;
        balanced.truncate(states).map_err(failed)
    })?;
    let out = self::arrays(py, &reduced.system);
    Ok((out, reduced.error_bound, reduced.order, reduced.condition))
}

/// The H2 norm of the real output.
#[pyfunction]
pub(crate) fn h2_norm(py: Python<'_>, arrays: Arrays<'_>) -> PyResult<f64> {
    let system = system(&arrays)?;
    let norm = py.detach(|| {
        let stable = system.stable().map_err(|error| failed(error.into()))?;
        hankelite::control::h2_norm(stable).map_err(failed)
    });
    Ok(norm?)
}

/// The H∞ norm: the largest gain found, a certified upper bound, and the frequency.
#[pyfunction]
pub(crate) fn hinf_norm(
    py: Python<'_>,
    arrays: Arrays<'_>,
    complex: bool,
) -> PyResult<(f64, f64, f64)> {
    let system = system(&arrays)?;
    let norm = py.detach(|| {
        let stable = system.stable().map_err(|error| failed(error.into()))?;
        hankelite::control::hinf_norm(stable, realisation(complex)).map_err(failed)
    })?;
    Ok((norm.value, norm.upper, norm.frequency))
}
