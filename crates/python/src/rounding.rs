//! Maps of few bits, for networks that run in Python.

use hankelite::advanced::{Levels, MapMoments, RoundedMatrix, coarse_factor};
use hankelite::control::nalgebra::{DMatrix, DVector};
use hankelite::model::Linear;
use hankelite::rounding::{Entries, MapStorage, RoundingError};
use numpy::{PyArray1, PyArray2, PyReadonlyArray1, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::types::PyDict;

use crate::control::{array, matrix};
use crate::failure::Failure;

/// Sums over the steps of the inputs x of a map and of those u in the full network: the count, Σ x,
/// Σ u, Σ x xᵀ, Σ x uᵀ.
type Moments<'py> = (
    f64,
    PyReadonlyArray1<'py, f64>,
    PyReadonlyArray1<'py, f64>,
    PyReadonlyArray2<'py, f64>,
    PyReadonlyArray2<'py, f64>,
);

/// Levels (inputs, outputs) and scales (groups, outputs), where the entries are integers.
type Integers<'py> = (Bound<'py, PyArray2<i8>>, Bound<'py, PyArray2<f32>>);

/// The weight (inputs, outputs) that is stored, the bias, the integers and the relative error.
type Rounded<'py> = (
    Bound<'py, PyArray2<f64>>,
    Option<Bound<'py, PyArray1<f64>>>,
    Option<Integers<'py>>,
    f64,
);

fn failed(error: RoundingError) -> Failure {
    Failure::setting(error)
}

fn vector(array: &PyReadonlyArray1<'_, f64>) -> DVector<f64> {
    DVector::from_iterator(array.as_array().len(), array.as_array().iter().copied())
}

/// A kind of integer entries.
#[pyclass(frozen, get_all, module = "hankelite._core")]
pub(crate) struct IntegerEntries {
    /// Bits of an entry.
    bits: u32,
    /// The lowest level.
    lowest: i32,
    /// The highest level.
    highest: i32,
    /// From one level to the next.
    step: i32,
    /// On the measured change of a map.
    factor: f64,
}

/// Every kind of integer entries by its name, most bits first.
#[pyfunction]
pub(crate) fn integer_entries(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let kinds = PyDict::new(py);
    for entries in Entries::ALL {
        let Some(bits) = entries.bits() else {
            continue;
        };
        let levels = Levels::of(bits);
        let name = serde_json::to_value(entries).map_err(Failure::setting)?;
        let kind = IntegerEntries {
            bits,
            lowest: levels.lowest as i32,
            highest: levels.highest as i32,
            step: levels.step as i32,
            factor: coarse_factor(entries).unwrap_or(1.0),
        };
        kinds.set_item(name.as_str(), Bound::new(py, kind)?)?;
    }
    Ok(kinds)
}

/// A map (inputs, outputs) with entries of a kind, so that what it gives changes least.
#[pyfunction]
pub(crate) fn rounded_map<'py>(
    weight: PyReadonlyArray2<'py, f64>,
    bias: Option<PyReadonlyArray1<'py, f64>>,
    moments: Moments<'py>,
    entries: &str,
    group: usize,
) -> PyResult<Rounded<'py>> {
    let py = weight.py();
    let entries: Entries = serde_json::from_value(entries.into()).map_err(Failure::setting)?;
    let (count, reduced, full, own, cross) = &moments;
    let sums = [vector(reduced), vector(full)];
    let linear = Linear {
        weight: matrix(&weight).into(),
        bias: bias.map(|bias| vector(&bias).as_slice().to_vec()),
    };
    let moments = MapMoments::of_sums(*count, sums, matrix(own), matrix(cross)).map_err(failed)?;
    let made = py.detach(|| moments.compensated(&linear, entries, group));
    let made = made.map_err(failed)?;
    let weight: &DMatrix<f64> = &made.linear.weight;
    let integers = match &made.storage {
        MapStorage::Integers(rounded) => {
            Some((array(py, rounded.levels()), array(py, rounded.scales())))
        }
        _ => None,
    };
    let bias = made.linear.bias.map(|bias| PyArray1::from_vec(py, bias));
    Ok((array(py, weight), bias, integers, made.relative_error))
}

/// The scales (groups, outputs) that round a map (inputs, outputs) to integers with the least error.
#[pyfunction]
pub(crate) fn best_scales<'py>(
    weight: PyReadonlyArray2<'py, f64>,
    bits: u32,
    group: usize,
) -> PyResult<Bound<'py, PyArray2<f32>>> {
    let scales = RoundedMatrix::best_scales(&matrix(&weight), bits, group).map_err(failed)?;
    Ok(array(weight.py(), &scales))
}
