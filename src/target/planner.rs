//! What brings a model to a target, whatever its layers.

use crate::calibrate::CalibratedReduction;
use crate::target::{Parts, SizePlan, TargetError, Targeted};

/// What a plan must keep within.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Limits {
    /// Bytes of image and state together.
    pub(crate) bytes: usize,
    /// Microseconds of a step on this machine; absent for any.
    pub(crate) microseconds: Option<f64>,
}

/// What chooses the sizes of all tensors of a model, and makes the model of a choice:
/// [`TargetReduction`](crate::target::TargetReduction) where every channel has a system of its own,
/// [`SharedTarget`](crate::target::SharedTarget) where channels share modes.
pub(crate) trait Planner {
    /// The layers that everything is made from.
    fn reduction(&self) -> &CalibratedReduction<'_>;

    /// The plan of least change within the limits.
    ///
    /// # Errors
    /// [`TargetError::TooSmall`]; [`TargetError::Other`]; [`TargetError::Calibrate`].
    fn plan_within(&self, limits: &Limits, parts: Parts) -> Result<SizePlan, TargetError>;

    /// The plan of fewest bytes that is expected to change the logits by at most this share; what
    /// the model that is built changes may differ.
    ///
    /// # Errors
    /// [`TargetError::Stream`]; [`TargetError::Calibrate`].
    fn plan_for_change(&self, change: f64, parts: Parts) -> Result<SizePlan, TargetError>;

    /// Microseconds of a step of the model of a plan on this machine, without making it.
    ///
    /// # Errors
    /// [`TargetError::Stream`].
    fn step_of(&self, plan: &SizePlan) -> Result<f64, TargetError>;

    /// Makes the model of a plan.
    ///
    /// # Errors
    /// [`TargetError::Calibrate`]; [`TargetError::Rounding`]; [`TargetError::Stream`].
    fn build(&self, plan: &SizePlan) -> Result<Targeted, TargetError>;
}
