//! Models of several sizes from one preparation.

use serde::{Deserialize, Serialize};

use crate::calibrate::{CalibrateError, CalibratedReduction};
use crate::model::Sequence;
use crate::rounding::Storage;
use crate::target::any::planner;
use crate::target::goal::{Goal, meet};
use crate::target::planner::{Limits, Planner};
use crate::target::{Met, Parts, Size, TargetError};

/// How many times fewer bytes are tried where no size is given.
const TRIED: [f64; 8] = [2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0];

/// Sizes in a row that do not do before the search ends.
const MISSES: usize = 2;

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

    /// What a planner takes, of a model of `full` bytes.
    fn goal(&self, full: usize, parts: Parts) -> Result<Goal, CalibrateError> {
        let above = |what, found: Option<f64>, least: f64| match found {
            Some(found) if !(found > least && found.is_finite()) => Err(CalibrateError::Setting {
                what,
                found,
                expected: format!("a number above {least}"),
            }),
            _ => Ok(()),
        };
        above("the number of times fewer bytes", self.times, 1.0)?;
        above("the microseconds of a step", self.microseconds, 0.0)?;
        above("the change of the logits", self.change, 0.0)?;
        let share = self.times.map(|times| (full as f64 / times) as usize);
        let bytes = [self.bytes, share].into_iter().flatten().min();
        Ok(Goal {
            limits: Limits {
                bytes: bytes.unwrap_or(full).min(full),
                microseconds: self.microseconds,
            },
            change: self.change,
            parts,
        })
    }
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
    /// `parts`; `held_out` are sequences that the calibration did not use ([`crate::target::Drawn`]).
    ///
    /// Cost about a calibrated reduction.
    ///
    /// # Errors
    /// [`TargetError::Sequences`]; [`TargetError::Stream`] for a model that has no image;
    /// [`TargetError::Calibrate`].
    pub fn new(
        reduction: &'a CalibratedReduction<'a>,
        held_out: &'a [Sequence<'a>],
        parts: Parts,
    ) -> Result<Self, TargetError> {
        let model = reduction.model();
        Ok(Self {
            full: Size::of(model, &Storage::single(model))?,
            planner: planner(reduction)?,
            parts,
            held_out,
        })
    }

    /// Bytes of the full model in single precision.
    pub fn full(&self) -> Size {
        self.full
    }

    /// The model that keeps within a size. Cost about a calibrated reduction, up to four for a change
    /// of the logits.
    ///
    /// # Errors
    /// [`CalibrateError::Setting`] for a number that makes nothing smaller; [`TargetError::TooSmall`],
    /// [`TargetError::TooSlow`] and [`TargetError::Change`] for a size that is out of reach.
    pub fn meet(&self, size: &WholeSize) -> Result<Met, TargetError> {
        let goal = size.goal(self.full.total(), self.parts)?;
        meet(&*self.planner, &goal, self.held_out)
    }

    /// The smallest model that `accept` takes, and how many times smaller it is. Sizes of a half down
    /// to a twenty-fourth of the bytes are made in turn, until two in a row are not accepted or there is
    /// nothing left to leave out. `None` where none is accepted.
    ///
    /// # Errors
    /// Those of [`Sizes::meet`] and of `accept`.
    pub fn smallest<E: From<TargetError>>(
        &self,
        mut accept: impl FnMut(f64, &Met) -> Result<bool, E>,
    ) -> Result<Option<(f64, Met)>, E> {
        let (mut best, mut misses) = (None, 0);
        for times in TRIED {
            let met = match self.meet(&WholeSize::times(times)) {
                Err(TargetError::TooSmall { .. }) => break,
                met => met?,
            };
            if accept(times, &met)? {
                best = Some((times, met));
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
