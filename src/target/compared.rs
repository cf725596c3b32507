//! Models that are the same up to a layer, compared by their logits.

use crate::calibrate::{CalibratedReduction, relative_change};
use crate::infer::{Network, Path as InferPath, Waiting};
use crate::model::Model;
use crate::progress::{ProgressSink, Within};
use crate::target::TargetError;

/// Some calibration sequences that wait before a layer. Models that have the layers so far in common
/// are compared with the full one from there on.
pub(super) struct Compared<'a> {
    /// Logits of the full model.
    full: Vec<&'a [f64]>,
    waiting: Waiting,
    layer: usize,
    length: usize,
    observer: &'a dyn ProgressSink,
}

impl<'a> Compared<'a> {
    /// Before the first layer of a model: the sequences whose index `counts`.
    pub(super) fn new(
        reduction: &'a CalibratedReduction<'a>,
        model: &Model,
        counts: impl Fn(usize) -> bool,
    ) -> Result<Self, TargetError> {
        let (length, observer) = (reduction.length(), reduction.observer());
        let all = reduction.sequences().iter().zip(reduction.logits());
        let some = all.enumerate().filter(|(index, _)| counts(*index));
        let (sequences, full): (Vec<_>, Vec<_>) = some
            .map(|(_, (&sequence, logits))| (sequence, logits.as_slice()))
            .unzip();
        // Layers run when models are compared: no more is needed here than the encoder.
        let first = model.with_blocks(model.blocks().iter().take(1).cloned().collect())?;
        let network = Network::new(&first, length, InferPath::Auto)?;
        Ok(Self {
            full,
            waiting: Waiting::new(&network, &sequences)?,
            layer: 0,
            length,
            observer,
        })
    }

    /// The relative change of the logits by a model with the same layers so far.
    pub(super) fn change(&self, model: &Model) -> Result<f64, TargetError> {
        let rest = model.with_blocks(model.blocks()[self.layer..].to_vec())?;
        let within = Within(self.observer);
        let network = Network::new(&rest, self.length, InferPath::Auto)?.observed(&within);
        let logits = self.waiting.logits(&network)?;
        Ok(relative_change(&self.full, &logits))
    }

    /// Goes through the next layer of a model.
    pub(super) fn pass(&mut self, model: &Model) -> Result<(), TargetError> {
        let next = alone(model, self.layer)?;
        let within = Within(self.observer);
        let network = Network::new(&next, self.length, InferPath::Auto)?.observed(&within);
        self.waiting.pass(&network)?;
        self.layer += 1;
        Ok(())
    }
}

/// A model of one of the layers.
pub(super) fn alone(model: &Model, layer: usize) -> Result<Model, TargetError> {
    Ok(model.with_blocks(vec![model.blocks()[layer].clone()])?)
}

/// The map that is rounded next.
#[derive(Clone, Copy)]
pub(super) struct MapPlace<'a> {
    pub(super) model: &'a Model,
    pub(super) layer: usize,
    /// The sequences that check, before this layer.
    pub(super) compared: &'a Compared<'a>,
}
