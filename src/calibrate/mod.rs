//! Reduction for the inputs that the layers of a network really get.
//!
//! Balanced truncation takes every input for white noise. Here a few unlabelled sequences are run
//! through the network first. Every channel is then balanced, refined and given its states for its
//! own input: [`Calibration`] holds what was gathered, [`CalibratedReduction`] the balanced
//! channels, and [`CalibratedReduction::reduce`] makes a smaller model of any size from them.

mod calibration;
pub(crate) mod captured;
mod fingerprint;
mod gradients;
mod logits;
pub(crate) mod longer;
mod mimo;
mod parameters;
pub(crate) mod reduction;
pub(crate) mod rescale;
pub(crate) mod settings;
pub(crate) mod statistics;
pub(crate) mod steps;

use std::fmt;

pub use calibration::{Calibration, Known, LayerCalibration};
pub use gradients::GradientFit;
use hankelite_archive::ArchiveError;
use hankelite_control::StatisticsError;
pub use logits::LogitFit;
pub(crate) use logits::{Combinations, left, relative_change};
use mimo::LayerSequences;
pub(crate) use mimo::states;
pub(crate) use parameters::FittedNumbers;
pub use reduction::Choice;
pub(crate) use reduction::{CalibratedReduction, CalibrationRun};
pub use settings::{Importance, TargetSize};
pub(crate) use settings::{Settings, WeightChoice};
pub(crate) use statistics::input_statistics;

use crate::compress::CompressError;
use crate::infer::InferError;
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
    /// Statistics of another model: what was found, and what was expected.
    #[error("the statistics are of another model: {0}")]
    OtherModel(String),
    /// Settings that make no sense, or do not go together.
    #[error("{0}")]
    Setting(String),
    /// Anything else: what was found, what was expected, where.
    #[error("{0}")]
    Other(String),
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

impl CalibrateError {
    /// Of a number that makes no sense.
    pub(crate) fn setting(what: &str, found: f64, expected: impl fmt::Display) -> Self {
        Self::Setting(format!("{what} is {found}, expected {expected}"))
    }

    /// Of statistics that no input of a layer has.
    fn of_layer(layer: &str, fault: StatisticsError) -> Self {
        Self::Other(format!("layer `{layer}`: {fault}"))
    }
}
