//! The model that meets all targets at once.

use crate::model::Sequence;
use crate::target::{Limits, Parts, Planner, SizePlan, TargetError, Targeted};

/// Every so many sequences one is kept out of all choices and fits.
const HELD_OUT_EVERY: usize = 5;

/// Models that are made at most to meet a target that only a finished model shows.
const TRIES: usize = 4;

/// The sequences that make a model, and those that check it.
#[derive(Debug, Clone)]
pub struct Drawn<'a> {
    /// That take part.
    pub used: Vec<Sequence<'a>>,
    /// Every fifth one, but for those that are the same as one that takes part.
    pub held_out: Vec<Sequence<'a>>,
}

impl<'a> Drawn<'a> {
    /// Holds every fifth sequence out. One that repeats a sequence that takes part would check nothing.
    pub fn new(listed: &[Sequence<'a>]) -> Self {
        let (mut used, mut held_out) = (Vec::new(), Vec::new());
        for (index, &sequence) in listed.iter().enumerate() {
            match (index + 1) % HELD_OUT_EVERY {
                0 => held_out.push(sequence),
                _ => used.push(sequence),
            }
        }
        held_out.retain(|sequence| !used.contains(sequence));
        Self { used, held_out }
    }
}

/// What a smaller model must be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Goal {
    /// Bytes and time.
    pub(super) limits: Limits,
    /// As [`WholeSize::change`](crate::target::WholeSize::change).
    pub(super) change: Option<f64>,
    /// What may be made smaller.
    pub(super) parts: Parts,
}

/// A model that meets a goal.
#[derive(Debug, Clone)]
#[must_use]
pub struct Met {
    /// The model.
    pub made: Targeted,
    /// The change of the logits of the held-out sequences; absent where there are none.
    pub held_out_change: Option<f64>,
}

/// The model that meets a goal. Cost a plan and a model, up to four of both for a goal of change:
/// what a finished model changes is not what its choices change one by one, so that what was aimed
/// at is corrected by what came out.
///
/// # Errors
/// Those of [`Planner`]; [`TargetError::Change`] where no model that was tried meets the goal.
pub(super) fn meet(
    planner: &dyn Planner,
    goal: &Goal,
    held_out: &[Sequence<'_>],
) -> Result<Met, TargetError> {
    let Some(target) = goal.change else {
        return built(
            planner,
            &planner.plan_within(&goal.limits, goal.parts)?,
            held_out,
        );
    };
    let (mut aim, mut best) = (target, None::<Met>);
    for _ in 0..TRIES {
        let plan = planner.plan_for_change(aim, goal.parts)?;
        if let Some(takes) = exceeded(planner, &plan, &goal.limits)? {
            match best {
                Some(_) => break,
                None => return Err(TargetError::Change { target, takes }),
            }
        }
        let met = built(planner, &plan, held_out)?;
        let reached = met.held_out_change.unwrap_or(met.made.changes.after);
        let (meets, ratio) = (reached <= target, target / reached.max(1e-12));
        let size = met.made.size.total();
        if meets
            && best
                .as_ref()
                .is_none_or(|known| size < known.made.size.total())
        {
            best = Some(met);
        }
        if meets && ratio < 1.1 {
            break;
        }
        aim *= ratio.clamp(0.3, 3.0) * if meets { 0.97 } else { 0.95 };
    }
    best.ok_or_else(|| TargetError::Change {
        target,
        takes: "more than the models that were tried".to_string(),
    })
}

fn built(
    planner: &dyn Planner,
    plan: &SizePlan,
    held_out: &[Sequence<'_>],
) -> Result<Met, TargetError> {
    let made = planner.build(plan)?;
    let held_out_change = match held_out {
        [] => None,
        held_out => Some(planner.reduction().change_on(&made.model, held_out)?),
    };
    Ok(Met {
        made,
        held_out_change,
    })
}

/// The limit that a plan does not keep, in words.
fn exceeded(
    planner: &dyn Planner,
    plan: &SizePlan,
    limits: &Limits,
) -> Result<Option<String>, TargetError> {
    if plan.size.total() > limits.bytes {
        return Ok(Some(format!("more than {} bytes", limits.bytes)));
    }
    let Some(most) = limits.microseconds else {
        return Ok(None);
    };
    let takes = planner.step_of(plan)?;
    Ok((takes > most).then(|| format!("a step of {takes:.2} us, more than {most} us")))
}
