//! Progress of long work, and its end on request.
//!
//! Every long function of the crate reports to a [`ProgressSink`]. `()` is one that ignores all of
//! it; a program implements it over its progress bar.

use std::fmt;

use rayon::prelude::*;

/// A part of long work, by what its units are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Stage {
    /// Hankel singular values; units are layers.
    Spectra,
    /// Reduction of every channel; units are layers.
    Reduction,
    /// Statistics of the layer inputs; units are sequences.
    LayerInputs,
    /// Sensitivity of the logits to every channel; units are sequences.
    Importance,
    /// Balancing for the layer inputs; units are layers.
    Balancing,
    /// Error of every channel at every order; units are layers.
    ErrorCurves,
    /// Allocations of states that are tried; units are reduced models, at most.
    Allocation,
    /// Reduction of layer after layer for the inputs in the reduced network; units are layers.
    Sequential,
    /// Moments of the states of layers whose channels share modes; units are sequences.
    Moments,
    /// Fit of all channels to the logits; units are Gauss–Newton steps, at most.
    LogitFit,
    /// What every choice of a size does to the logits; units are groups of choices.
    Choices,
    /// Rounding of the maps; units are layers.
    Rounding,
    /// Logits of sequences; units are sequences.
    Logits,
    /// Rescaling by the generalisation measure; units are layers.
    Rescaling,
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Stage::Spectra => "Hankel values of layers",
            Stage::Reduction => "reducing layers",
            Stage::LayerInputs => "layer inputs of sequences",
            Stage::Importance => "output gradients of sequences",
            Stage::Balancing => "balancing layers",
            Stage::ErrorCurves => "error curves of layers",
            Stage::Allocation => "allocations tried",
            Stage::Sequential => "reducing layers again",
            Stage::Moments => "moments of sequences",
            Stage::LogitFit => "steps of the fit to the logits",
            Stage::Choices => "choices of sizes measured",
            Stage::Rounding => "rounding the maps of layers",
            Stage::Logits => "logits of sequences",
            Stage::Rescaling => "rescaling layers",
        })
    }
}

/// Takes the progress of long work and can end it. Calls come from any thread.
///
/// Work is a row of stages: each begins once and ends where the next one begins, and their
/// number is not known before. A stage may end before all its units are done.
pub trait ProgressSink: Sync {
    /// A stage begins, of so many units.
    fn begin(&self, stage: Stage, total: usize) {
        let _ = (stage, total);
    }

    /// So many more units of the stage are done.
    fn advance(&self, units: usize) {
        let _ = units;
    }

    /// Whether the work is to end. It then returns an error soon, [`Cancelled`] or the variant of
    /// that name, and nothing was changed.
    fn cancelled(&self) -> bool {
        false
    }
}

impl ProgressSink for () {}

/// The [`ProgressSink`] requested the end of the work.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the work was cancelled")]
pub struct Cancelled;

impl dyn ProgressSink + '_ {
    /// Counts one unit, or [`Cancelled`] where the work is to end.
    pub(crate) fn step(&self) -> Result<(), Cancelled> {
        self.advance(1);
        self.check()
    }

    /// [`Cancelled`] where the work is to end.
    pub(crate) fn check(&self) -> Result<(), Cancelled> {
        match self.cancelled() {
            true => Err(Cancelled),
            false => Ok(()),
        }
    }
}

/// Work within a unit of a stage: it can be cancelled but reports no stages of its own.
pub(crate) struct Within<'a>(pub(crate) &'a dyn ProgressSink);

impl ProgressSink for Within<'_> {
    fn cancelled(&self) -> bool {
        self.0.cancelled()
    }
}

/// What a parallel loop made, in order, or the first error in that order, whichever thread came
/// first: the same file is refused for the same reason each time.
pub(crate) fn in_order<T: Send, E: Send>(
    outcomes: impl IndexedParallelIterator<Item = Result<T, E>>,
) -> Result<Vec<T>, E> {
    outcomes.collect::<Vec<_>>().into_iter().collect()
}
