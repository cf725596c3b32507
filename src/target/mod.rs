//! A whole model to a target: so many bytes, or so little change, states and maps together.
//!
//! [`Sizes`] measures once what every choice does to the logits of the calibration sequences: fewer
//! states in a channel, fewer bits in a map, half precision for the other numbers. A [`SizePlan`]
//! takes the choices whose change is least for the bytes they save. To make its model, channels are
//! cut and refined, maps rounded layer by layer for the inputs that they get in the smaller network,
//! and residues, feedthroughs, biases and norms fitted together to the logits of the full one. Labels
//! are not used, and nothing is trained.

mod any;
pub(crate) mod build;
mod compared;
mod ends;
pub(crate) mod menu;
mod plan;
mod planner;
pub(crate) mod price;
mod rows;
mod shared;
mod shared_maps;
pub(crate) mod sizes;

pub(crate) use build::{LogitChanges, Targeted};
pub(crate) use menu::TargetReduction;
pub use plan::{Parts, SizePlan};
pub(crate) use planner::{Limits, Planner};
pub use price::Size;
pub(crate) use price::{stand_in, step_microseconds};
pub(crate) use shared::SharedTarget;
pub use sizes::WholeSize;
pub(crate) use sizes::{HeldApart, Sizes, held_apart};

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
    /// A size in bytes that no choice reaches.
    #[error("{0}")]
    TooSmall(String),
    /// Anything else: what was found, what was expected, where.
    #[error("{0}")]
    Other(String),
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

impl TargetError {
    /// Of a size that no choice reaches.
    fn too_small(target: usize, least: usize) -> Self {
        Self::TooSmall(format!(
            "a target of {target} bytes, expected at least {least}: what is left of one state for each \
             channel and the fewest bits"
        ))
    }

    /// Of a step that no choice makes so fast.
    fn too_slow(target: f64, least: f64) -> Self {
        Self::Other(format!(
            "a step of {target} us, expected at least {least:.2} us: the fastest of the sizes that were \
             tried on this machine"
        ))
    }

    /// Of a change of the logits that no model within the other targets keeps to.
    fn out_of_reach(target: f64, takes: &str) -> Self {
        Self::Other(format!(
            "a change of the logits by at most {target} takes {takes}"
        ))
    }
}
