//! From a model to a smaller model: choose orders, reduce every channel, keep a record.

use std::io;

mod allocate;
pub(crate) mod calibrated;
mod candidate;
mod class;
mod cut;
pub(crate) mod distance;
mod inspect;
mod joint;
pub(crate) mod plan;
mod record;
pub(crate) mod reduce;
mod share;
mod store;

pub use allocate::Allocation;
pub(crate) use allocate::{by_order, share};
pub(crate) use calibrated::{CalibratedChannel, CalibratedLayer, CutSystem, ErrorCurve};
pub(crate) use class::{note_of_units, whole_units};
use hankelite_control::ControlError;
pub use inspect::{ChannelSpectrum, LayerSpectrum, inspect};
pub(crate) use joint::{JointRecord, record_of_joint};
pub use plan::{Method, PlanError, RealisationChoice, TimeBase};
pub(crate) use plan::{Plan, Rule};
pub use record::{ChannelRecord, LayerRecord, WeightedRecord};
pub use reduce::Compressed;
pub(crate) use reduce::reduce_observed;
pub(crate) use store::{NumberStore, Place};

use crate::model::{Block, ModelError};
use crate::progress::Cancelled;

/// Why a model was not reduced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CompressError {
    /// The settings make no sense, or none for this model.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// Systems that do not fit their layer.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A channel cannot be reduced, e.g. because a mode does not decay.
    #[error("layer `{layer}`, channel {channel}: {source}")]
    Channel {
        /// The layer.
        layer: String,
        /// Index of the channel.
        channel: usize,
        /// What is wrong with it.
        source: ControlError,
    },
    /// The temporary file for what does not fit into memory.
    #[error(
        "the moments of the inputs lie in a temporary file in `{folder}`: {0}; set TMPDIR to a folder with \
         more room, or take the spectrum, which needs none (--weight spectrum)",
        folder = std::env::temp_dir().display()
    )]
    Store(#[from] io::Error),
    /// A mode that does not decay, in a system of several inputs or outputs: which, and where.
    #[error("{0}")]
    SharedGrowing(String),
    /// Anything else: what was found, what was expected, where.
    #[error("{0}")]
    Other(String),
    /// The observer requested the end of the work.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl CompressError {
    /// A fault of one channel of a layer.
    pub(crate) fn channel(block: &Block, channel: usize, fault: impl Into<ChannelFault>) -> Self {
        match fault.into() {
            ChannelFault::Control(source) => Self::Channel {
                layer: block.name().to_string(),
                channel,
                source,
            },
            ChannelFault::Store(source) => Self::Store(source),
        }
    }
}

/// Why a channel cannot be reduced.
#[derive(Debug)]
pub(crate) enum ChannelFault {
    Control(ControlError),
    /// Its long vectors cannot be written or read.
    Store(io::Error),
}

impl From<ControlError> for ChannelFault {
    fn from(fault: ControlError) -> Self {
        Self::Control(fault)
    }
}

impl From<io::Error> for ChannelFault {
    fn from(fault: io::Error) -> Self {
        Self::Store(fault)
    }
}
