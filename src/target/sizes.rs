//! Models of several sizes from one preparation.

use serde::{Deserialize, Serialize};

use crate::calibrate::{CalibrateError, CalibratedReduction};
use crate::model::{Model, Sequence};
use crate::rounding::Storage;
use crate::target::any::planner;
use crate::target::planner::{Limits, Planner};
use crate::target::{Parts, Size, SizePlan, TargetError, Targeted};

/// How many times fewer bytes are tried where no size is given.
const TRIED: [f64; 8] = [2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0];

/// Sizes in a row that do not do before the search ends.
const MISSES: usize = 2;

/// Every so many sequences one is kept out of all choices and fits.
const HELD_OUT_EVERY: usize = 5;

/// Models that are made at most to meet a target that only a finished model shows.
const TRIES: usize = 4;

/// What a smaller model keeps within: all that are given hold together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct WholeSize {
    /// So many times fewer bytes than in single precision, above 1: image and state of one stream
    /// together.
    pub times: Option<f64>,
    /// So many bytes, of the same.
    pub bytes: Option<usize>,
    /// Microseconds of a step on this machine.
    pub microseconds: Option<f64>,
    /// The largest relative change of the logits of held-out sequences. Then the fewest bytes are
    /// looked for, else the least change within the other limits.
    pub change: Option<f64>,
}

impl WholeSize {
    /// So many times fewer bytes.
    pub fn times(times: f64) -> Self {
        Self {
            times: Some(times),
            ..Self::default()
        }
    }

    /// What a planner keeps within, of a model of `full` bytes.
    fn limits(&self, full: usize) -> Result<Limits, CalibrateError> {
        let above = |what, found: Option<f64>, least: f64| match found {
            Some(found) if !(found > least && found.is_finite()) => {
                let expected = format!("a number above {least}");
                Err(CalibrateError::setting(what, found, expected))
            }
            _ => Ok(()),
        };
        above("the number of times fewer bytes", self.times, 1.0)?;
        above("the microseconds of a step", self.microseconds, 0.0)?;
        above("the change of the logits", self.change, 0.0)?;
        let share = self.times.map(|times| (full as f64 / times) as usize);
        let bytes = [self.bytes, share].into_iter().flatten().min();
        Ok(Limits {
            bytes: bytes.unwrap_or(full).min(full),
            microseconds: self.microseconds,
        })
    }
}

/// Sequences for two purposes.
#[derive(Debug, Clone, PartialEq)]
pub struct HeldApart<'a> {
    /// Those that make a model.
    pub used: Vec<Sequence<'a>>,
    /// Those that check it.
    pub held_out: Vec<Sequence<'a>>,
}

/// Every fifth sequence is held out, and left out where it equals one of the others, as it would check
/// nothing.
pub fn held_apart<'a>(listed: &[Sequence<'a>]) -> HeldApart<'a> {
    let (mut used, mut held_out) = (Vec::new(), Vec::new());
    for (index, &sequence) in listed.iter().enumerate() {
        match (index + 1) % HELD_OUT_EVERY {
            0 => held_out.push(sequence),
            _ => used.push(sequence),
        }
    }
    held_out.retain(|sequence| !used.contains(sequence));
    HeldApart { used, held_out }
}

/// The smallest model that was accepted.
#[derive(Debug)]
pub struct Smallest {
    /// How many times fewer bytes were asked for.
    pub times: f64,
    /// The model.
    pub made: Targeted,
}

/// Smaller models of any size, states and maps together. What all sizes have in common is done once.
pub struct Sizes<'a> {
    planner: Box<dyn Planner + 'a>,
    full: Size,
    parts: Parts,
    held_out: &'a [Sequence<'a>],
}

impl<'a> Sizes<'a> {
    /// Measures what every choice does to the logits of the calibration sequences, where every channel
    /// has a system of its own; layers that share modes are tried size by size. What becomes smaller is
    /// `parts`; `held_out` are sequences that the calibration did not use ([`held_apart`]).
    ///
    /// Cost about a calibrated reduction.
    ///
    /// # Errors
    /// [`Sizes::check`]; [`TargetError`] for too few sequences; [`TargetError::Stream`] for a model that has no image;
    /// [`TargetError::Calibrate`].
    pub fn new(
        reduction: &'a CalibratedReduction<'a>,
        held_out: &'a [Sequence<'a>],
        parts: Parts,
    ) -> Result<Self, TargetError> {
        let model = reduction.model();
        Self::check(model)?;
        Ok(Self {
            full: Size::of(model, &Storage::single(model))?,
            planner: planner(reduction)?,
            parts,
            held_out,
        })
    }

    /// Whether states and maps of a model can be made smaller together.
    ///
    /// # Errors
    /// [`TargetError`] for layers that hold some systems only: what fits all numbers of a model together
    /// does not keep to these.
    pub fn check(model: &Model) -> Result<(), TargetError> {
        let mut blocks = model.blocks().iter();
        match blocks.find_map(|block| Some((block.name(), block.class()?))) {
            Some((layer, class)) => Err(TargetError::Other(format!(
                "layer `{layer}` holds {class} only, and a size of states and maps together needs layers \
                 that hold all systems: expected an order or a share of the states"
            ))),
            None => Ok(()),
        }
    }

    /// Bytes of the full model in single precision.
    pub fn full(&self) -> Size {
        self.full
    }

    /// The model that keeps within a size. Cost about a calibrated reduction, up to four for a change
    /// of the logits.
    ///
    /// # Errors
    /// [`CalibrateError::Setting`] for a number that makes nothing smaller; [`TargetError::TooSmall`]
    /// and [`TargetError::Other`] for a size that is out of reach.
    pub fn meet(&self, size: &WholeSize) -> Result<Targeted, TargetError> {
        let limits = size.limits(self.full.total())?;
        match size.change {
            None => self.built(&self.planner.plan_within(&limits, self.parts)?),
            Some(change) => self.least_for(change, &limits),
        }
    }

    /// The fewest bytes for a change of the logits. What a finished model changes is not what its choices
    /// change one by one, so that what was aimed at is corrected by what came out.
    fn least_for(&self, target: f64, limits: &Limits) -> Result<Targeted, TargetError> {
        let (mut aim, mut best) = (target, None::<Targeted>);
        for _ in 0..TRIES {
            let plan = self.planner.plan_for_change(aim, self.parts)?;
            if let Some(takes) = self.exceeded(&plan, limits)? {
                match best {
                    Some(_) => break,
                    None => return Err(TargetError::out_of_reach(target, &takes)),
                }
            }
            let met = self.built(&plan)?;
            let reached = met.held_out_change.unwrap_or(met.changes.after);
            let (meets, ratio) = (reached <= target, target / reached.max(1e-12));
            let size = met.size.total();
            if meets && best.as_ref().is_none_or(|known| size < known.size.total()) {
                best = Some(met);
            }
            if meets && ratio < 1.1 {
                break;
            }
            aim *= ratio.clamp(0.3, 3.0) * if meets { 0.97 } else { 0.95 };
        }
        let takes = "more than the models that were tried";
        best.ok_or_else(|| TargetError::out_of_reach(target, takes))
    }

    fn built(&self, plan: &SizePlan) -> Result<Targeted, TargetError> {
        let mut made = self.planner.build(plan)?;
        if !self.held_out.is_empty() {
            let reduction = self.planner.reduction();
            made.held_out_change = Some(reduction.change_on(&made.model, self.held_out)?);
        }
        Ok(made)
    }

    /// The limit that a plan does not keep, in words.
    fn exceeded(&self, plan: &SizePlan, limits: &Limits) -> Result<Option<String>, TargetError> {
        if plan.size.total() > limits.bytes {
            return Ok(Some(format!("more than {} bytes", limits.bytes)));
        }
        let Some(most) = limits.microseconds else {
            return Ok(None);
        };
        let takes = self.planner.step_of(plan)?;
        Ok((takes > most).then(|| format!("a step of {takes:.2} us, more than {most} us")))
    }

    /// The smallest model that `accept` takes. Sizes of a half down
    /// to a twenty-fourth of the bytes are made in turn, until two in a row are not accepted or there is
    /// nothing left to leave out. `None` where none is accepted.
    ///
    /// # Errors
    /// Those of [`Sizes::meet`] and of `accept`.
    pub fn smallest<E: From<TargetError>>(
        &self,
        mut accept: impl FnMut(f64, &Targeted) -> Result<bool, E>,
    ) -> Result<Option<Smallest>, E> {
        let (mut best, mut misses) = (None, 0);
        for times in TRIED {
            let met = match self.meet(&WholeSize::times(times)) {
                Err(TargetError::TooSmall(_)) => break,
                met => met?,
            };
            if accept(times, &met)? {
                best = Some(Smallest { times, made: met });
                misses = 0;
            } else {
                misses += 1;
            }
            if misses == MISSES {
                break;
            }
        }
        Ok(best)
    }
}
