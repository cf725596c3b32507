//! Progress of long work, and its end on request.
//!
//! Every long function of the crate reports to a [`ProgressSink`]. `()` is one that ignores all of
//! it; a program implements it over its progress bar.

use rayon::prelude::*;

/// Parts of long work, each by what its units are.
pub(crate) mod stage {
    /// Hankel singular values; units are layers.
    pub(crate) const SPECTRA: &str = "Hankel values of layers";
    /// Reduction of every channel; units are layers.
    pub(crate) const REDUCTION: &str = "reducing layers";
    /// Statistics of the layer inputs; units are sequences.
    pub(crate) const LAYER_INPUTS: &str = "layer inputs of sequences";
    /// Sensitivity of the logits to every channel; units are sequences.
    pub(crate) const IMPORTANCE: &str = "output gradients of sequences";
    /// Balancing for the layer inputs; units are layers.
    pub(crate) const BALANCING: &str = "balancing layers";
    /// Error of every channel at every order; units are layers.
    pub(crate) const ERROR_CURVES: &str = "error curves of layers";
    /// Allocations of states that are tried; units are reduced models, at most.
    pub(crate) const ALLOCATION: &str = "allocations tried";
    /// Reduction of layer after layer for the inputs in the reduced network; units are layers.
    pub(crate) const SEQUENTIAL: &str = "reducing layers again";
    /// Moments of the states of layers whose channels share modes; units are sequences.
    pub(crate) const MOMENTS: &str = "moments of sequences";
    /// Fit of all channels to the logits; units are Gauss–Newton steps, at most.
    pub(crate) const LOGIT_FIT: &str = "steps of the fit to the logits";
    /// What every choice of a size does to the logits; units are groups of choices.
    pub(crate) const CHOICES: &str = "choices of sizes measured";
    /// Rounding of the maps; units are layers.
    pub(crate) const ROUNDING: &str = "rounding the maps of layers";
    /// Logits of sequences; units are sequences.
    pub(crate) const LOGITS: &str = "logits of sequences";
    /// Rescaling by the generalisation measure; units are layers.
    pub(crate) const RESCALING: &str = "rescaling layers";
}

/// Takes the progress of long work and can end it. Calls come from any thread.
///
/// Work is a row of stages: each begins once and ends where the next one begins, and their
/// number is not known before. A stage may end before all its units are done.
pub trait ProgressSink: Sync {
    /// A stage begins, of so many units: "reducing layers", of so many layers.
    fn begin(&self, stage: &'static str, total: usize) {
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
