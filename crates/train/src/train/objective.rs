//! What is minimised, and what is done to the parameters after a step.

use hankelite_data::Targets;

use crate::nn::{Mode, NetworkInput, Parameter, SequenceModel};
use crate::train::TrainError;
use crate::train::loss::{Loss, Term, task_loss};

/// Some sequences on the device, with what is to be answered.
#[derive(Debug)]
pub struct Examples {
    /// The input of the network.
    pub input: NetworkInput,
    /// What it is to answer.
    pub targets: Targets,
    /// The number of sequences.
    pub count: usize,
}

/// What is minimised. An objective may add terms to the loss of the task (a regulariser, the
/// distance to a teacher's logits) and change the parameters after each step (a projection onto a
/// trust region). It must not depend on anything but its own settings, the examples and the
/// network, so that a run that was stopped goes on the same.
pub trait Objective {
    /// Runs the network and forms the loss. All randomness comes from `mode`.
    ///
    /// # Errors
    /// [`TrainError`], where outputs and targets do not suit each other.
    fn loss(
        &mut self,
        network: &dyn SequenceModel,
        examples: &Examples,
        mode: Mode<'_>,
    ) -> Result<Loss, TrainError>;

    /// Called after every step of the optimiser, before snapshots and validation. Gives further
    /// numbers for the means of the epoch.
    ///
    /// # Errors
    /// candle's.
    fn after_step(&mut self, parameters: &[Parameter]) -> Result<Vec<Term>, TrainError> {
        let _ = parameters;
        Ok(Vec::new())
    }
}

/// The loss of the task alone; see [`task_loss`].
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Task {
    /// The share of a label that is spread over all classes.
    pub label_smoothing: f64,
}

impl Objective for Task {
    fn loss(
        &mut self,
        network: &dyn SequenceModel,
        examples: &Examples,
        mode: Mode<'_>,
    ) -> Result<Loss, TrainError> {
        let outputs = network.forward(&examples.input, mode)?;
        task_loss(&outputs, &examples.targets, self.label_smoothing)
    }
}
