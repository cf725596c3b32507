//! Reduction for what the layers of a network really hear.
//!
//! Balanced truncation takes every input for white noise. Here a few unlabelled sequences are run
//! through the network first. Every channel is then balanced, refined and given its states for
//! the input it really gets: [`Calibration`] holds what was gathered, [`Prepared`] the balanced
//! channels, and [`Prepared::reduce`] makes a smaller model of any size from them.

mod calibration;
mod logits;
mod prepared;
mod rescale;
mod settings;
mod statistics;
mod steps;

use std::path::PathBuf;

pub use calibration::{Calibration, LayerCalibration};
use hankelite_archive::ArchiveError;
use hankelite_control::StatisticsError;
pub use logits::LogitFit;
pub use prepared::{Calibrated, Choice, Prepared};
pub use rescale::{Rescale, Rescaled, rescale};
pub use settings::{Importance, Settings, Size, WeightChoice};
pub use statistics::{input_statistics, layer_inputs};
pub use steps::step_statistics;

use crate::compress::CompressError;
use crate::infer::InferError;
use crate::measure::MeasureError;
use crate::model::ModelError;

/// Why a model was not reduced for its input.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The network does not run on the sequences.
    #[error(transparent)]
    Infer(#[from] InferError),
    /// A channel cannot be reduced.
    #[error(transparent)]
    Compress(#[from] CompressError),
    /// Systems that do not fit their layer.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A file that cannot be read.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A file without statistics.
    #[error("{}: no input statistics in it, expected a file of `compress-model calibrate`", path.display())]
    NotStatistics {
        /// The file.
        path: PathBuf,
    },
    /// Statistics that no input has.
    #[error("layer `{layer}`: {source}")]
    Statistics {
        /// The layer.
        layer: String,
        /// What is wrong.
        source: StatisticsError,
    },
    /// A layer whose generalisation measure cannot be formed.
    #[error("the measure of layer {layer}: {source}")]
    Measure {
        /// Index of the layer.
        layer: usize,
        /// What is wrong.
        source: MeasureError,
    },
    /// Statistics of another model.
    #[error("the statistics are of another model: {found}, expected {expected}")]
    OtherModel {
        /// What the statistics say.
        found: String,
        /// What the model says.
        expected: String,
    },
    /// A size that makes no sense.
    #[error("{what} is {found}, expected {expected}")]
    Setting {
        /// Which setting.
        what: &'static str,
        /// The number found.
        found: f64,
        /// What it should be.
        expected: String,
    },
    /// Moments without sequences, or too large.
    #[error("{0}")]
    Weight(String),
}
