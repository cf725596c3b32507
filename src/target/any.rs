//! The planner for the layers at hand.

use crate::calibrate::CalibratedReduction;
use crate::target::{
    Limits, Parts, Planner, SharedTarget, SizePlan, TargetError, TargetReduction, Targeted,
};

/// Plans that are made at most to find one whose step is fast enough.
const TRIES: usize = 4;

/// What plans the sizes of the model that is reduced. Cost as [`TargetReduction::new`] where every
/// channel has a system of its own, else nothing.
///
/// # Errors
/// Those of [`TargetReduction::new`].
pub(super) fn planner<'a>(
    reduction: &'a CalibratedReduction<'a>,
) -> Result<Box<dyn Planner + 'a>, TargetError> {
    Ok(match reduction.shares_modes() {
        true => Box::new(SharedTarget::new(reduction)),
        false => Box::new(TargetReduction::new(reduction)?),
    })
}

impl Planner for TargetReduction<'_> {
    fn reduction(&self) -> &CalibratedReduction<'_> {
        self.reduction
    }

    /// Channels of other orders take other times at the same bytes: where a step takes too long,
    /// fewer bytes are tried.
    fn plan_within(&self, limits: &Limits, parts: Parts) -> Result<SizePlan, TargetError> {
        let Some(target) = limits.microseconds else {
            return self.plan(limits.bytes, parts);
        };
        let mut bytes = self.bytes_for_step(target, limits.bytes, parts)?;
        let mut least = f64::INFINITY;
        for _ in 0..TRIES {
            let plan = self.plan(bytes, parts)?;
            least = least.min(TargetReduction::step_of(self, &plan)?);
            if least <= target {
                return Ok(plan);
            }
            bytes = bytes * 9 / 10;
        }
        Err(TargetError::too_slow(target, least))
    }

    fn plan_for_change(&self, change: f64, parts: Parts) -> Result<SizePlan, TargetError> {
        TargetReduction::plan_for_change(self, change, parts)
    }

    fn step_of(&self, plan: &SizePlan) -> Result<f64, TargetError> {
        TargetReduction::step_of(self, plan)
    }

    fn build(&self, plan: &SizePlan) -> Result<Targeted, TargetError> {
        TargetReduction::build(self, plan)
    }
}
