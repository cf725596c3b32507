//! One sample in, one out.

use hankelite::model::{InputKind, Model};
use hankelite::stream::Runner;
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::failure::{Failure, Outcome};

/// A model with its state.
#[pyclass(module = "hankelite._core")]
pub(crate) struct Stream(Runner);

impl Stream {
    pub(crate) fn new(model: &Model) -> Outcome<Self> {
        Ok(Self(Runner::new(model)?))
    }
}

#[pymethods]
impl Stream {
    /// Outputs after one more sample.
    fn step<'py>(
        &mut self,
        py: Python<'py>,
        inputs: PyReadonlyArray1<'py, f32>,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let outputs = self.0.step(inputs.as_slice()?).map_err(Failure::from)?;
        Ok(PyArray1::from_slice(py, outputs))
    }

    /// Outputs after one more token.
    fn step_token<'py>(
        &mut self,
        py: Python<'py>,
        token: u32,
    ) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let outputs = self.0.step_tokens(&[token]).map_err(Failure::from)?;
        Ok(PyArray1::from_slice(py, outputs))
    }

    /// Sets the state to zero.
    fn reset(&mut self) {
        self.0.reset();
    }

    /// Numbers that a step takes, or the size of the vocabulary.
    #[getter]
    fn inputs(&self) -> usize {
        self.0.inputs()
    }

    /// Whether a step takes a token.
    #[getter]
    fn tokens(&self) -> bool {
        matches!(self.0.takes(), InputKind::Tokens { .. })
    }

    /// Numbers that a step gives.
    #[getter]
    fn outputs(&self) -> usize {
        self.0.outputs()
    }

    /// Bytes of the weights that a step reads.
    #[getter]
    fn weight_bytes(&self) -> usize {
        self.0.weight_bytes()
    }

    /// Bytes of the state.
    #[getter]
    fn state_bytes(&self) -> usize {
        self.0.state_bytes()
    }
}
