//! Learning rates found by short trainings.

use serde::{Deserialize, Serialize};

use crate::train::objective::Objective;
use crate::train::observer::{Observer, Stop};
use crate::train::recipe::{Monitor, Recipe, within};
use crate::train::trainer::Training;
use crate::train::{RecipeError, TrainError, average};

/// The share of a training that each rate is tried for, where no steps are given.
const SHARE: u64 = 20;

/// The fewest and the most steps of a trial, where none are given.
const STEPS: (u64, u64) = (20, 200);

/// How many held-out sequences decide.
const SEQUENCES: usize = 1000;

/// How much worse than the best a larger rate may be. Few steps favour small rates (Wu et al. 2018,
/// "Understanding short-horizon bias"), and many steps at a rate too small get nowhere.
const TOLERANCE: f64 = 1.25;

/// A trial of learning rates before a training: the table `[trial]`. From the same start, with the
/// same batches and a course of the rates of its own, the network is trained for a few steps with
/// each factor. Taken is the largest factor whose held-out value (loss, distance from the teacher or
/// share of errors, by the recipe's `monitor`) is within a quarter of the best: few steps favour rates
/// that are too small for many.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Trial {
    /// What `lr` and `lr_dynamics` are multiplied with, each above 0, to 1000; one or none tries
    /// nothing. Default 0.25, 1, 2, 4.
    pub factors: Vec<f64>,
    /// Steps of each, 1 to 10⁹. Default: a twentieth of the training, 20 to 200, and never more
    /// than it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
}

/// What a factor came to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Tried {
    /// What the rates were multiplied with.
    pub factor: f64,
    /// The rate of all weights but the dynamics.
    pub lr: f64,
    /// The rate of the dynamics.
    pub lr_dynamics: f64,
    /// The held-out value after the steps; `None` where the training diverged.
    pub value: Option<f64>,
    /// The held-out accuracy, where there are classes.
    pub accuracy: Option<f64>,
}

/// What a trial came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct TrialOutcome {
    /// Steps that each factor was tried for.
    pub steps: u64,
    /// Held-out sequences that decided.
    pub sequences: usize,
    /// What `value` is of the tried: the recipe's `monitor`.
    pub monitor: Monitor,
    /// All factors, as they were given.
    pub tried: Vec<Tried>,
    /// The factor that is taken.
    pub factor: f64,
}

impl Default for Trial {
    fn default() -> Self {
        Self {
            factors: vec![0.25, 1.0, 2.0, 4.0],
            steps: None,
        }
    }
}

impl Trial {
    /// Checks every range.
    ///
    /// # Errors
    /// A [`RecipeError`] with the key and what may stand there.
    pub fn check(&self) -> Result<(), RecipeError> {
        within("steps", self.steps.unwrap_or(1), 1..=1_000_000_000)?;
        let mut factors = self.factors.iter();
        factors.try_for_each(|&factor| within("factors", factor, f64::MIN_POSITIVE..=1e3))
    }

    /// Tries all factors and puts the network back as it was. `None` when it was requested to stop,
    /// and where there are fewer than two factors. The same outcome for the same start, data and
    /// settings.
    ///
    /// # Errors
    /// [`RecipeError::NoValidation`] without held-out sequences; [`TrainError::Diverged`] where no
    /// factor can be trained with; as [`Training::run`].
    ///
    /// # Cost
    /// As many steps for each factor, with one evaluation of at most 1000 sequences.
    pub fn run(
        &self,
        training: &Training<'_>,
        objective: &mut dyn Objective,
        observer: &mut dyn Observer,
        stop: &Stop,
    ) -> Result<Option<TrialOutcome>, TrainError> {
        self.check()?;
        if self.factors.len() < 2 {
            return Ok(None);
        }
        let Some(validation) = training.validation else {
            return Err(RecipeError::NoValidation { key: "trial" }.into());
        };
        let sequences = validation.len().min(SEQUENCES);
        let validation = validation.take(sequences)?;
        let steps = self.steps_of(training);
        let short = Training {
            validation: Some(&validation),
            ..*training
        };
        let start = average::weights(training.network)?;
        let mut tried = Vec::new();
        let mut failure = None;
        for &factor in &self.factors {
            let recipe = short_recipe(training.recipe, factor, steps);
            let training = Training {
                recipe: &recipe,
                ..short
            };
            let outcome = training.run(objective, None, observer, stop);
            average::put(training.network, &start)?;
            let last = match outcome {
                Ok(outcome) if outcome.end.is_none() => return Ok(None),
                Ok(outcome) => outcome.history.last().cloned(),
                Err(error @ TrainError::Diverged { .. }) => {
                    failure = Some(error);
                    None
                }
                Err(error) => return Err(error),
            };
            let monitor = recipe.monitor;
            tried.push(Tried {
                factor,
                lr: recipe.lr,
                lr_dynamics: recipe.lr_dynamics,
                value: last.as_ref().and_then(|entry| match monitor {
                    Monitor::Loss => entry.validation_loss,
                    Monitor::Accuracy => entry.validation_accuracy,
                    Monitor::Teacher => entry.validation_distance,
                }),
                accuracy: last.and_then(|entry| entry.validation_accuracy),
            });
        }
        let monitor = training.recipe.monitor;
        match (best(&tried, monitor), failure) {
            (Some(factor), _) => Ok(Some(TrialOutcome {
                steps,
                sequences,
                monitor,
                tried,
                factor,
            })),
            (None, Some(failure)) => Err(failure),
            (None, None) => Err(RecipeError::NothingToMonitor.into()),
        }
    }

    fn steps_of(&self, training: &Training<'_>) -> u64 {
        let recipe = training.recipe;
        let batches = training.data.len().div_ceil(recipe.batch.max(1)) as u64;
        let total = recipe.total(batches);
        let share = (total / SHARE).clamp(STEPS.0, STEPS.1);
        self.steps.unwrap_or(share).min(total)
    }
}

impl TrialOutcome {
    /// The recipe with the rates that are taken.
    pub fn apply(&self, recipe: &Recipe) -> Recipe {
        scaled(recipe, self.factor)
    }
}

/// Rates stay in their range.
fn scaled(recipe: &Recipe, factor: f64) -> Recipe {
    Recipe {
        lr: (recipe.lr * factor).min(1.0),
        lr_dynamics: (recipe.lr_dynamics * factor).min(1.0),
        lr_steps: recipe.lr_steps.map(|rate| (rate * factor).min(1.0)),
        ..recipe.clone()
    }
}

/// The recipe of one short training.
fn short_recipe(recipe: &Recipe, factor: f64, steps: u64) -> Recipe {
    Recipe {
        epochs: None,
        steps: Some(steps),
        warmup: recipe.warmup.min(steps / 10),
        patience: 0,
        snapshot_every: 0,
        keep_start: false,
        ..scaled(recipe, factor)
    }
}

/// The largest factor whose value is within the tolerance of the best.
fn best(tried: &[Tried], monitor: Monitor) -> Option<f64> {
    let cost = |tried: &Tried| match monitor {
        Monitor::Accuracy => tried.value.map(|value| 1.0 - value),
        Monitor::Loss | Monitor::Teacher => tried.value,
    };
    let costs = tried.iter().filter_map(cost);
    let least = costs.min_by(f64::total_cmp)?;
    let near = |tried: &&Tried| cost(tried).is_some_and(|cost| cost <= TOLERANCE * least);
    let factors = tried.iter().filter(near).map(|tried| tried.factor);
    factors.max_by(f64::total_cmp)
}
