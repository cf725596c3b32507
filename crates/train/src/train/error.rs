//! Why a training cannot start or go on.

use std::path::PathBuf;

use hankelite::checkpoint::CheckpointError;
use hankelite::compress::CompressError;
use hankelite::model::{InputError, ModelError};
use hankelite_archive::ArchiveError;
use hankelite_data::DataError;

use crate::nn::NetworkError;

/// Why settings cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RecipeError {
    /// A value out of its range.
    #[error("`{key}` is {found}, expected {allowed}")]
    Range {
        /// The key.
        key: &'static str,
        /// What stands there.
        found: String,
        /// What may stand there.
        allowed: String,
    },
    /// Two keys for one setting.
    #[error("`epochs` and `steps` are both given, expected one of them")]
    EpochsAndSteps,
    /// A warm-up longer than the training.
    #[error("`warmup` is {warmup} steps, expected at most {total}, all there are")]
    Warmup {
        /// Steps of warm-up.
        warmup: u64,
        /// All steps.
        total: u64,
    },
    /// A key that needs validation data.
    #[error("`{key}` needs validation data, and there are none")]
    NoValidation {
        /// The key.
        key: &'static str,
    },
    /// A distillation without a teacher.
    #[error("the table `[distil]` needs a teacher, and there is none, expected the key `teacher`")]
    NoTeacher,
    /// A choice by the distance from a teacher that there is none.
    #[error(
        "`monitor` is teacher, and there is none, expected a teacher and a table `[distil]`, or loss"
    )]
    NothingToMonitor,
    /// Layers that cannot be cut amid a training.
    #[error(
        "the table `[reduce]` is for layers of one system for each channel, whose modes decay: S4D or \
         DSS-exp"
    )]
    Growing,
    /// A choice by accuracy where the targets are numbers.
    #[error("`monitor` is accuracy, but the targets are numbers, expected loss")]
    NoAccuracy,
}

/// Why a training cannot start or go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TrainError {
    /// Settings that cannot be used.
    #[error(transparent)]
    Recipe(#[from] RecipeError),
    /// Data that cannot be used, e.g. fewer sequences than a batch.
    #[error(transparent)]
    Data(#[from] DataError),
    /// A snapshot that cannot be read or written.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A layer that cannot be reduced amid a training.
    #[error(transparent)]
    Compress(Box<CompressError>),
    /// The network behind a cut, which cannot be written or read.
    #[error(transparent)]
    Checkpoint(Box<CheckpointError>),
    /// The network behind a cut, which cannot be trained.
    #[error(transparent)]
    Network(Box<NetworkError>),
    /// Layers that do not fit together.
    #[error(transparent)]
    Model(Box<ModelError>),
    /// candle's message about shapes, memory or the device.
    #[error("candle: {0}")]
    Candle(#[from] candle_core::Error),
    /// A parameter that the loss does not depend on.
    #[error("parameter `{parameter}` receives no gradient, expected one for every parameter")]
    NoGradient {
        /// Its name.
        parameter: String,
    },
    /// The data have nothing to be answered.
    #[error("the data have no labels or targets to train on, and there is no teacher to follow")]
    NoTargets,
    /// A mask that no step passes.
    #[error("the mask of the targets lets no step of a batch count, expected at least one")]
    NothingCounts,
    /// Outputs of another shape than the targets.
    #[error(
        "the network gives outputs of shape {found:?}, expected {answers} answers of at least \
         {width} numbers{}", if *per_step { ", one for each step" } else { ", one for each sequence" }
    )]
    Outputs {
        /// Shape of the outputs.
        found: Vec<usize>,
        /// Answers in the targets.
        answers: usize,
        /// Classes, or numbers of an answer.
        width: usize,
        /// Whether there is an answer for each step.
        per_step: bool,
    },
    /// The data are not what the network takes.
    #[error(transparent)]
    Input(#[from] InputError),
    /// More classes than the head has logits.
    #[error("the data have labels up to {}, the model has {expected} classes", found - 1)]
    Classes {
        /// Classes of the data.
        found: usize,
        /// Logits of the model.
        expected: usize,
    },
    /// A model without encoder or head.
    #[error("the model has no {missing}: layers alone were read, expected a whole classifier")]
    NotAClassifier {
        /// `encoder` or `head`.
        missing: &'static str,
    },
    /// A loss or gradient that is not finite.
    #[error("{what} is {value} at step {step}: the training has diverged")]
    Diverged {
        /// Which number.
        what: &'static str,
        /// Its value.
        value: f64,
        /// Steps done before.
        step: u64,
    },
    /// A text that names no device.
    #[error("`{found}` is no device, expected cpu, cuda or cuda:N")]
    NoSuchPlace {
        /// The text.
        found: String,
    },
    /// A device that this machine or this build does not have.
    #[error("device cuda:{index} cannot be used: {reason}")]
    NoDevice {
        /// Its number.
        index: usize,
        /// Why.
        reason: String,
    },
    /// A folder that cannot be made or written.
    #[error("{}: {source}", path.display())]
    Io {
        /// The folder or file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A folder with files in it, for a new run.
    #[error("{}: the folder is not empty, expected a new one (--resume continues a run)", path.display())]
    NotEmpty {
        /// The folder.
        path: PathBuf,
    },
    /// A folder in which another program is at work.
    #[error(
        "{}: another program is at work in this folder, expected none: wait for its end, or name \
         another folder",
        path.display()
    )]
    InUse {
        /// The folder.
        path: PathBuf,
    },
    /// A folder without a run, to be continued.
    #[error("{}: no `config.toml` here, so there is no run to continue", path.display())]
    NothingToResume {
        /// The folder.
        path: PathBuf,
    },
    /// A run that was begun with other settings.
    #[error(
        "{}: the run was begun with other settings: line {line} is `{found}` now, `{expected}` then",
        path.display()
    )]
    OtherSettings {
        /// The run's `config.toml`.
        path: PathBuf,
        /// The first line that differs.
        line: usize,
        /// The line now.
        found: String,
        /// The line of the run.
        expected: String,
    },
    /// A snapshot that does not belong to the network, or is damaged.
    #[error("{}: {what}", path.display())]
    Snapshot {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
}

// Boxed, as they are large and rare.

impl From<CompressError> for TrainError {
    fn from(error: CompressError) -> Self {
        Self::Compress(Box::new(error))
    }
}

impl From<CheckpointError> for TrainError {
    fn from(error: CheckpointError) -> Self {
        Self::Checkpoint(Box::new(error))
    }
}

impl From<NetworkError> for TrainError {
    fn from(error: NetworkError) -> Self {
        Self::Network(Box::new(error))
    }
}

impl From<ModelError> for TrainError {
    fn from(error: ModelError) -> Self {
        Self::Model(Box::new(error))
    }
}
