//! What is minimised, and what is done to the parameters after a step.

use hankelite_data::Targets;
use serde::{Deserialize, Serialize};

use crate::nn::{Mode, NetworkInput, Parameter, SequenceModel};
use crate::train::TrainError;
use crate::train::loss::{Loss, Tally, Term, sequence_losses, task_loss};

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
/// trust region). It must not depend on anything but its own settings, the examples, the network and
/// the share of the training that is done, so that a run that was stopped goes on the same.
pub trait Objective {
    /// Called before every step with the share of the training that is done: 0 to below 1.
    fn before_step(&mut self, done: f64) {
        let _ = done;
    }

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

    /// What the network shows on examples, in evaluation: its task, without smoothing or further
    /// terms, and the distance from the teacher, where the objective has one.
    ///
    /// # Errors
    /// As [`Objective::loss`].
    fn measure(
        &mut self,
        network: &dyn SequenceModel,
        examples: &Examples,
    ) -> Result<Evaluation, TrainError> {
        let outputs = network.forward(&examples.input, Mode::Evaluate)?;
        let tally = task_loss(&outputs, &examples.targets, 0.0)?.tally;
        let losses = sequence_losses(&outputs, &examples.targets, examples.count)?;
        Ok(Evaluation::new(tally, None, examples.count).with_losses(losses))
    }

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

/// What a network shows on a data set.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Evaluation {
    tally: Tally,
    /// Sum over the sequences, where there is a teacher.
    distances: Option<f64>,
    sequences: u64,
    /// The loss of the task for each sequence, summed over its answers; empty where it is not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    losses: Vec<f64>,
}

impl Evaluation {
    /// Of so many sequences, with their mean distance from a teacher.
    pub fn new(tally: Tally, distance: Option<f64>, sequences: usize) -> Self {
        Self {
            tally,
            distances: distance.map(|distance| distance * sequences as f64),
            sequences: sequences as u64,
            losses: Vec::new(),
        }
    }

    /// With the loss of each sequence, summed over its answers. Without them nothing is known of the
    /// noise of a comparison.
    #[must_use]
    pub fn with_losses(self, losses: Vec<f64>) -> Self {
        Self { losses, ..self }
    }

    /// Adds that of other sequences.
    pub fn add(&mut self, other: &Self) {
        self.tally.add(&other.tally);
        self.sequences += other.sequences;
        self.losses.extend_from_slice(&other.losses);
        if let Some(more) = other.distances {
            self.distances = Some(self.distances.unwrap_or(0.0) + more);
        }
    }

    /// Loss and accuracy of the task; without labels those of answering as the teacher.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Whether the loss differs from another network's on the same sequences by no more than two
    /// standard errors of the difference. The differences of the sequences are taken, so what makes
    /// a sequence hard for both is no noise. `false` where the losses of the sequences are not known.
    pub(super) fn is_within_noise_of(&self, other: &Self) -> bool {
        let count = self.losses.len();
        if count < 2 || other.losses.len() != count {
            return false;
        }
        let pairs = self.losses.iter().zip(&other.losses);
        let differences: Vec<f64> = pairs.map(|(own, other)| own - other).collect();
        let mean = differences.iter().sum::<f64>() / count as f64;
        let squares: f64 = differences.iter().map(|d| (d - mean).powi(2)).sum();
        let error = (squares / (count * (count - 1)) as f64).sqrt();
        mean.abs() <= 2.0 * error
    }

    /// The mean distance of the outputs from a teacher's.
    pub fn distance(&self) -> Option<f64> {
        self.distances.map(|sum| sum / self.sequences as f64)
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
