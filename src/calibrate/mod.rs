//! Reduction for the inputs that the layers of a network really get.
//!
//! Balanced truncation takes every input for white noise. Here a few unlabelled sequences are run
//! through the network first. Every channel is then balanced, refined and given its states for its
//! own input: [`Calibration`] holds what was gathered, [`CalibratedReduction`] the balanced
//! channels, and [`CalibratedReduction::reduce`] makes a smaller model of any size from them.

mod calibration;
mod captured;
mod fingerprint;
mod gradients;
mod logits;
mod longer;
mod mimo;
mod parameters;
mod reduction;
mod rescale;
mod settings;
mod statistics;
mod steps;

use std::path::PathBuf;

pub use calibration::{Calibration, Known, LayerCalibration};
pub use captured::Captured;
pub use gradients::GradientFit;
use hankelite_archive::ArchiveError;
use hankelite_control::StatisticsError;
pub use logits::LogitFit;
pub(crate) use logits::{Combinations, left};
pub use longer::{Longer, change_beyond};
use mimo::LayerSequences;
pub use reduction::{Calibrated, CalibratedReduction, CalibrationRun, Choice};
pub use rescale::{Rescale, Rescaled, Rescaling, rescale};
pub use settings::{Importance, Settings, TargetSize, WeightChoice};
pub use statistics::{input_statistics, layer_inputs};
pub use steps::step_statistics;

use crate::compress::CompressError;
use crate::infer::InferError;
use crate::measure::MeasureError;
use crate::model::ModelError;
use crate::progress::Cancelled;

/// Why a model was not reduced for its input.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CalibrateError {
    /// The network does not run on the sequences.
    #[error(transparent)]
    Infer(InferError),
    /// A channel cannot be reduced.
    #[error(transparent)]
    Compress(CompressError),
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
    /// A file of captured inputs that does not fit the model.
    #[error("{0}")]
    Captured(String),
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
        /// The model of the statistics.
        found: String,
        /// The model at hand.
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
    /// A setting that is for causal layers with one system for each channel.
    #[error(
        "the setting `{setting}` is for causal layers with one system for each channel; here channels share \
         modes (S5, LRU), or layers run in both directions: leave it out"
    )]
    Ignored {
        /// Which setting.
        setting: &'static str,
    },
    /// Settings of a [`crate::Reducer`] that do not go together.
    #[error("the reducer has {found}, expected {expected}")]
    Reducer {
        /// What was set.
        found: &'static str,
        /// What goes instead.
        expected: &'static str,
    },
    /// Moments without sequences, or too large.
    #[error("{0}")]
    Weight(String),
    /// The observer requested the end of the work.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl From<InferError> for CalibrateError {
    fn from(error: InferError) -> Self {
        match error {
            InferError::Cancelled(cancelled) => Self::Cancelled(cancelled),
            error => Self::Infer(error),
        }
    }
}

impl From<CompressError> for CalibrateError {
    fn from(error: CompressError) -> Self {
        match error {
            CompressError::Cancelled(cancelled) => Self::Cancelled(cancelled),
            error => Self::Compress(error),
        }
    }
}
