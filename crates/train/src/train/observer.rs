//! What a training reports while it runs, and how it is stopped.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::{Deserialize, Serialize};

use crate::train::snapshot::Cut;

/// One finished epoch: a line of `metrics.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Entry {
    /// Counted from 1.
    pub epoch: u64,
    /// Steps of the optimiser so far.
    pub step: u64,
    /// The factor of the learning rates in the last step.
    pub rate: f64,
    /// Mean loss of the task over the epoch, before each step.
    pub train_loss: f64,
    /// The same for the accuracy, where there are classes.
    pub train_accuracy: Option<f64>,
    /// Loss of the validation part after the epoch.
    pub validation_loss: Option<f64>,
    /// Accuracy of the validation part.
    pub validation_accuracy: Option<f64>,
    /// Distance of the validation part from the teacher, where there is one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub validation_distance: Option<f64>,
    /// Mean norm of the gradients before clipping.
    pub gradient_norm: f64,
    /// Means of the objective's further terms.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    pub terms: BTreeMap<String, f64>,
    /// Whether this is the best epoch so far.
    pub best: bool,
    /// Seconds of training so far, over all starts.
    pub seconds: f64,
}

/// One finished step.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct Step {
    /// Steps so far.
    pub step: u64,
    /// Steps in all.
    pub total: u64,
    /// The epoch, counted from 1.
    pub epoch: u64,
    /// Mean loss of the task in this epoch so far.
    pub loss: f64,
    /// The same for the accuracy, where there are classes.
    pub accuracy: Option<f64>,
    /// Sequences of this step.
    pub examples: usize,
}

/// Receives the progress of a training. `()` drops it.
pub trait Observer {
    /// The training starts or goes on behind `step` of `total` steps.
    fn start(&mut self, step: u64, total: u64) {
        let _ = (step, total);
    }

    /// A step is done.
    fn step(&mut self, step: &Step) {
        let _ = step;
    }

    /// The network was cut, or it was tried in vain.
    fn cut(&mut self, cut: &Cut) {
        let _ = cut;
    }

    /// An epoch is done and, where there are data, validated.
    fn epoch(&mut self, entry: &Entry) {
        let _ = entry;
    }
}

impl Observer for () {}

/// A flag that stops a training after the step at hand. Copies share it.
#[derive(Debug, Clone, Default)]
pub struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Asks for the stop. Returns whether it had been requested before.
    pub fn request(&self) -> bool {
        self.0.swap(true, Ordering::SeqCst)
    }

    /// Whether it was requested.
    pub fn requested(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }
}
