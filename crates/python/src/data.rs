//! Sequences in files.

use hankelite::model::Sequence;
use hankelite_data::{Dataset, Source};
use numpy::ndarray::{Array2, Array3};
use numpy::{IntoPyArray, PyArray1, ToPyArray};
use pyo3::prelude::*;

use crate::failure::{Failure, in_python, with_reasons};

/// Numbers (sequences × steps × inputs) or tokens (sequences × steps), the class of each sequence where
/// the file has it, and what a person should know.
type DataOut<'py> = (
    Bound<'py, PyAny>,
    Option<Bound<'py, PyArray1<i64>>>,
    Vec<String>,
);

/// Reads a file, or a source with a name in front (`mnist:FOLDER`).
#[pyfunction]
pub(crate) fn read_data<'py>(py: Python<'py>, source: &str) -> PyResult<DataOut<'py>> {
    let source: Source = source.parse().map_err(Failure::setting)?;
    let data = py.detach(|| Dataset::read(&source, None));
    let data = data.map_err(|error| Failure::new("CalibrationError", with_reasons(&error)))?;
    let inputs = inputs(py, &data)?;
    let labels = data.labels().map(|labels| {
        let labels: Vec<i64> = labels.iter().map(|&label| label as i64).collect();
        labels.to_pyarray(py)
    });
    let notes = data.notes().iter().map(|text| in_python(text)).collect();
    Ok((inputs, labels, notes))
}

fn inputs<'py>(py: Python<'py>, data: &Dataset) -> PyResult<Bound<'py, PyAny>> {
    let (mut values, mut tokens) = (Vec::new(), Vec::new());
    for index in 0..data.len() {
        match data.sequence(index) {
            Sequence::Values(row) => values.extend_from_slice(row),
            Sequence::Tokens(row) => tokens.extend_from_slice(row),
        }
    }
    let (count, steps) = (data.len(), data.length());
    let shaped = match data.width() {
        Some(width) => Array3::from_shape_vec((count, steps, width), values)
            .map(|array| array.into_pyarray(py).into_any()),
        None => Array2::from_shape_vec((count, steps), tokens)
            .map(|array| array.into_pyarray(py).into_any()),
    };
    Ok(shaped.map_err(|error| Failure::new("CalibrationError", error))?)
}
