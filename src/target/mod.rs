//! A whole model to a target: so many bytes, or so little change, states and maps together.
//!
//! [`Sizes`] measures once what every choice does to the logits of the calibration sequences: fewer
//! states in a channel, fewer bits in a map, half precision for the other numbers. A [`SizePlan`]
//! takes the choices whose change is least for the bytes they save. To make its model, channels are
//! cut and refined, maps rounded layer by layer for the inputs that they get in the smaller network,
//! and residues, feedthroughs, biases and norms fitted together to the logits of the full one. Labels
//! are not used, and nothing is trained.

mod any;
mod build;
mod ends;
mod menu;
mod plan;
mod planner;
mod price;
mod rows;
mod shared;
mod sizes;

pub use build::{LogitChanges, Targeted};
pub(crate) use menu::TargetReduction;
pub use plan::{Parts, SizePlan};
pub(crate) use planner::{Limits, Planner};
pub use price::{Size, stand_in, step_microseconds};
pub(crate) use shared::SharedTarget;
pub use sizes::{Drawn, Met, Sizes, WholeSize};

use hankelite_control::SystemClass;

use crate::calibrate::CalibrateError;
use crate::infer::InferError;
use crate::model::ModelError;
use crate::progress::Cancelled;
use crate::rounding::RoundingError;
use crate::stream::StreamError;

/// Why a model is not brought to a target.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// The channels cannot be reduced for their inputs.
    #[error(transparent)]
    Calibrate(#[from] CalibrateError),
    /// A map that cannot be rounded.
    #[error(transparent)]
    Rounding(#[from] RoundingError),
    /// A model that has no image.
    #[error(transparent)]
    Stream(#[from] StreamError),
    /// Too few sequences.
    #[error(
        "{found} calibration sequences, expected at least {expected}: choices are \
         compared by their logits"
    )]
    Sequences {
        /// Sequences at hand.
        found: usize,
        /// Sequences that are needed.
        expected: usize,
    },
    /// Layers that hold some systems only: what fits all numbers of a model together does not keep to these.
    #[error(
        "layer `{layer}` holds {class} only, and a size of states and maps together needs layers that hold \
         all systems: expected an order or a share of the states"
    )]
    Restricted {
        /// Its name.
        layer: String,
        /// What it can hold.
        class: SystemClass,
    },
    /// A target that no choice reaches.
    #[error(
        "a target of {target} bytes, expected at least {least}: what is left of one state for each channel and the fewest bits"
    )]
    TooSmall {
        /// The bytes requested.
        target: usize,
        /// The fewest bytes.
        least: usize,
    },
    /// A step that no choice makes so fast.
    #[error(
        "a step of {target} us, expected at least {least:.2} us: the fastest of the sizes that were tried on this machine"
    )]
    TooSlow {
        /// The microseconds requested.
        target: f64,
        /// The fewest microseconds.
        least: f64,
    },
    /// A change of the logits that no model within the other targets keeps to.
    #[error("a change of the logits by at most {target} takes {takes}")]
    Change {
        /// The relative change requested.
        target: f64,
        /// The size that it needs, in words.
        takes: String,
    },
    /// No size that keeps the accuracy.
    #[error("every size loses {least:.2} points of accuracy or more, expected at most {points}")]
    Accuracy {
        /// The points that may be lost.
        points: f64,
        /// What the best of the sizes loses.
        least: f64,
    },
    /// The observer requested the end of the work.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl From<InferError> for TargetError {
    fn from(error: InferError) -> Self {
        CalibrateError::from(error).into()
    }
}

impl From<ModelError> for TargetError {
    fn from(error: ModelError) -> Self {
        CalibrateError::from(error).into()
    }
}
