//! What is minimised, and what is done to the parameters after a step.

use hankelite_data::Targets;
use serde::{Deserialize, Serialize};

use crate::nn::{Mode, NetworkInput, Parameter, SequenceModel};
use crate::train::TrainError;
use crate::train::loss::{Loss, Tally, Term, squared_errors, task_loss};

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
        let errors = squared_errors(&outputs, &examples.targets, examples.count)?;
        Ok(Evaluation::new(tally, None, examples.count).with_squared_errors(errors))
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
    /// Of each sequence; empty where they are not known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    squared_errors: Vec<f64>,
}

impl Evaluation {
    /// Of so many sequences, with their mean distance from a teacher.
    pub fn new(tally: Tally, distance: Option<f64>, sequences: usize) -> Self {
        Self {
            tally,
            distances: distance.map(|distance| distance * sequences as f64),
            sequences: sequences as u64,
            squared_errors: Vec::new(),
        }
    }

    /// With the squared error of each sequence: of answers that are numbers, or of the probabilities of
    /// the classes (Brier's score). Without them nothing is known of the noise of a comparison.
    #[must_use]
    pub fn with_squared_errors(self, squared_errors: Vec<f64>) -> Self {
        Self {
            squared_errors,
            ..self
        }
    }

    /// Adds that of other sequences.
    pub fn add(&mut self, other: &Self) {
        self.tally.add(&other.tally);
        self.sequences += other.sequences;
        self.squared_errors.extend_from_slice(&other.squared_errors);
        if let Some(more) = other.distances {
            self.distances = Some(self.distances.unwrap_or(0.0) + more);
        }
    }

    /// Loss and accuracy of the task; without labels those of answering as the teacher.
    pub fn tally(&self) -> &Tally {
        &self.tally
    }

    /// Whether the mean squared error is below another network's on the same sequences by more than a
    /// standard error of the difference. The differences of the sequences are taken, so what makes
    /// a sequence hard for both is no noise. `true` where the sequences are not known.
    pub(super) fn gains_beyond_noise_on(&self, other: &Self) -> bool {
        let (own, other) = (&self.squared_errors, &other.squared_errors);
        if own.len() < 2 || own.len() != other.len() {
            return true;
        }
        let gains: Vec<f64> = other
            .iter()
            .zip(own)
            .map(|(then, now)| then - now)
            .collect();
        let count = gains.len();
        let mean = gains.iter().sum::<f64>() / count as f64;
        let squares: f64 = gains.iter().map(|gain| (gain - mean).powi(2)).sum();
        mean > (squares / (count * (count - 1)) as f64).sqrt()
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
