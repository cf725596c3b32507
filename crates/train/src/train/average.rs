//! Weights averaged over the steps of a training.

use candle_core::Tensor;

use crate::nn::SequenceModel;

/// Averaged weights w̄ of a network, buffers included: behind step t, counted from 1,
///
/// ```text
/// w̄ ← w̄ + (1 − min(β, (1 + t)/(10 + t)))(w − w̄)
/// ```
///
/// so that the first steps do not lean on the start. Weights that do not move stay as they are, to
/// the last bit.
///
/// # References
/// Polyak and Juditsky 1992; Tarvainen and Valpola 2017 (the exponential mean).
pub(super) struct Average {
    keep: f64,
    weights: Vec<Tensor>,
}

impl Average {
    /// Starts with the network as it stands; `None` for β = 0.
    pub(super) fn of(network: &dyn SequenceModel, keep: f64) -> candle_core::Result<Option<Self>> {
        let start = (keep > 0.0).then(|| weights(network)).transpose()?;
        Ok(start.map(|weights| Self { keep, weights }))
    }

    /// Takes in the network behind step `step`.
    pub(super) fn step(
        &mut self,
        network: &dyn SequenceModel,
        step: u64,
    ) -> candle_core::Result<()> {
        let early = (1 + step) as f64 / (10 + step) as f64;
        let share = 1.0 - self.keep.min(early);
        for (mean, var) in self.weights.iter_mut().zip(vars(network)) {
            *mean = (&*mean + ((var.as_tensor().detach() - &*mean)? * share)?)?;
        }
        Ok(())
    }

    /// The averaged parameters, then the buffers.
    pub(super) fn weights(&self) -> &[Tensor] {
        &self.weights
    }

    /// Puts back what [`Average::weights`] gave.
    pub(super) fn restore(&mut self, weights: impl Iterator<Item = Tensor>) {
        self.weights = weights.collect();
    }
}

fn vars(network: &dyn SequenceModel) -> impl Iterator<Item = &candle_core::Var> {
    let parameters = network.parameters().iter().map(|parameter| &parameter.var);
    parameters.chain(network.buffers().iter().map(|buffer| &buffer.var))
}

/// Copies of all parameters, then of all buffers.
pub(super) fn weights(network: &dyn SequenceModel) -> candle_core::Result<Vec<Tensor>> {
    vars(network).map(|var| var.as_tensor().copy()).collect()
}

/// Puts what [`weights`] gave into the network.
pub(super) fn put(network: &dyn SequenceModel, weights: &[Tensor]) -> candle_core::Result<()> {
    vars(network)
        .zip(weights)
        .try_for_each(|(var, tensor)| var.set(tensor))
}
