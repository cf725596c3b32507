//! Python bindings of hankelite: what the package `hankelite` in `python/` is made over.
//!
//! Nothing here knows of torch or JAX: arrays are NumPy's, settings and records are JSON, and the
//! Python part turns both into what a user sees.

mod checkpoint;
mod control;
mod data;
mod failure;
mod graph;
mod progress;
mod rounding;
mod statistics;
mod stream;
mod target;

use pyo3::prelude::*;

/// The compiled part of the package `hankelite`.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::checkpoint::Checkpoint;
    #[pymodule_export]
    use super::control::{balanced_truncation, h2_norm, hankel_values, hinf_norm};
    #[pymodule_export]
    use super::data::read_data;
    #[pymodule_export]
    use super::rounding::{IntegerEntries, best_scales, integer_entries, rounded_map};
    #[pymodule_export]
    use super::statistics::{read_statistics, write_statistics};
    #[pymodule_export]
    use super::stream::Stream;
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
