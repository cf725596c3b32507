//! From a model to a smaller model: choose orders, reduce every channel, keep a record.

mod allocate;
mod calibrated;
mod candidate;
mod cut;
mod distance;
mod inspect;
mod joint;
mod plan;
mod record;
mod reduce;
mod share;

pub use allocate::{Allocation, LANES_LEAST, allocate};
pub(crate) use allocate::{by_order, share};
pub use calibrated::{CalibratedChannel, CalibratedLayer, CutSystem, ErrorCurve};
pub use distance::{kernel_distance, kernel_norm};
use hankelite_control::ControlError;
pub use inspect::{ChannelSpectrum, LayerSpectrum, inspect, inspect_observed};
pub(crate) use joint::{JointRecord, record_of_joint};
pub use plan::{Method, Plan, PlanError, RealisationChoice, Rule, TimeBase};
pub use record::{ChannelRecord, LayerRecord, WeightedRecord};
pub use reduce::{Compressed, reduce, reduce_layer, reduce_observed};

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
    /// A layer whose channels do not have the same poles.
    #[error(
        "layer `{layer}`: its channels do not have the same poles (or run backwards in time), \
         expected a layer that shares them, as DSS does"
    )]
    NotShared {
        /// The layer.
        layer: String,
    },
    /// A method that changes the feedthrough, where the direction backwards in time has none.
    #[error(
        "layer `{layer}`, channel {channel}: the method changes the feedthrough of the direction \
         backwards in time, which has none; expected a method that keeps D, e.g. balanced"
    )]
    BackwardFeedthrough {
        /// The layer.
        layer: String,
        /// Index of the channel.
        channel: usize,
    },
    /// The observer requested the end of the work.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl CompressError {
    /// A fault of one channel of a layer.
    pub(crate) fn channel(block: &Block, channel: usize, source: ControlError) -> Self {
        Self::Channel {
            layer: block.name().to_string(),
            channel,
            source,
        }
    }
}
