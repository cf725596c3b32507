//! Learning rates found by short trainings.

use serde::{Deserialize, Serialize};

use crate::train::batch::evaluate_by;
use crate::train::objective::Objective;
use crate::train::observer::{Entry, Observer, Stop};
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

/// Where a search begins, and the least and the largest factor that it tries.
const SEARCH: (f64, f64, f64) = (1.0, 1.0 / 256.0, 8.0);

/// What a search goes up and down by.
const UP_DOWN: (f64, f64) = (2.0, 0.25);

/// A trial of learning rates before a training: the table `[trial]`. From the same start, with the
/// same batches and a course of the rates of its own, the network is trained for a few steps with
/// each factor. Taken is the largest factor whose held-out value (loss, distance from the teacher or
/// share of errors, by the recipe's `monitor`) is within a quarter of the best: few steps favour rates
/// that are too small for many.
///
/// Without factors they are searched for, as a network that is nearly as good as it can be needs far
/// smaller rates than one that is not: from 1 upwards in twos, to 8, as long as the largest betters
/// the start and is within the quarter, or is the best of several; and downwards in fours, to 1/256, as
/// long as the smallest is the best.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Trial {
    /// What `lr` and `lr_dynamics` are multiplied with, each above 0, to 1000; one or none tries
    /// nothing. Default: searched for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub factors: Option<Vec<f64>>,
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
    /// The held-out value before the first step.
    pub start: Option<f64>,
    /// All factors, in the order in which they were tried.
    pub tried: Vec<Tried>,
    /// The factor that is taken.
    pub factor: f64,
}

impl Trial {
    /// Checks every range.
    ///
    /// # Errors
    /// A [`RecipeError`] with the key and what may stand there.
    pub fn check(&self) -> Result<(), RecipeError> {
        within("steps", self.steps.unwrap_or(1), 1..=1_000_000_000)?;
        let mut factors = self.factors.iter().flatten();
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
        if self.factors.as_ref().is_some_and(|given| given.len() < 2) {
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
        let Recipe { monitor, batch, .. } = *training.recipe;
        let found = evaluate_by(objective, training.network, &validation, batch)?;
        let mut values = Values {
            monitor,
            start: monitor.of(&found),
            tried: Vec::new(),
        };
        let weights = average::weights(training.network)?;
        let mut failure = None;
        while let Some(factor) = self.following(&values) {
            let recipe = short_recipe(training.recipe, factor, steps);
            let outcome = Training {
                recipe: &recipe,
                ..short
            }
            .run(objective, None, observer, stop);
            average::put(training.network, &weights)?;
            let last = match outcome {
                Ok(outcome) if outcome.end.is_none() => return Ok(None),
                Ok(outcome) => outcome.history.last().cloned(),
                Err(error @ TrainError::Diverged { .. }) => {
                    failure = Some(error);
                    None
                }
                Err(error) => return Err(error),
            };
            values
                .tried
                .push(Tried::new(factor, &recipe, last.as_ref()));
        }
        match (values.best(), failure) {
            (Some(factor), _) => Ok(Some(TrialOutcome {
                steps,
                sequences,
                monitor,
                start: values.start,
                tried: values.tried,
                factor,
            })),
            (None, Some(failure)) => Err(failure),
            (None, None) => Err(RecipeError::NothingToMonitor.into()),
        }
    }

    /// The factor to be tried next.
    fn following(&self, values: &Values) -> Option<f64> {
        match &self.factors {
            Some(factors) => factors.get(values.tried.len()).copied(),
            None => values.following(),
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

impl Tried {
    /// What `recipe` came to in the last epoch of a short training; none where it diverged.
    fn new(factor: f64, recipe: &Recipe, last: Option<&Entry>) -> Self {
        Self {
            factor,
            lr: recipe.lr,
            lr_dynamics: recipe.lr_dynamics,
            value: last.and_then(|entry| match recipe.monitor {
                Monitor::Loss => entry.validation_loss,
                Monitor::Accuracy => entry.validation_accuracy,
                Monitor::Teacher => entry.validation_distance,
            }),
            accuracy: last.and_then(|entry| entry.validation_accuracy),
        }
    }
}

/// What is known amid a trial.
struct Values {
    monitor: Monitor,
    start: Option<f64>,
    tried: Vec<Tried>,
}

impl Values {
    /// The smaller the better; infinite where a training diverged.
    fn cost(&self, value: Option<f64>) -> f64 {
        match (value, self.monitor) {
            (None, _) => f64::INFINITY,
            (Some(value), Monitor::Accuracy) => 1.0 - value,
            (Some(value), Monitor::Loss | Monitor::Teacher) => value,
        }
    }

    fn least(&self) -> f64 {
        let costs = self.tried.iter().map(|tried| self.cost(tried.value));
        costs.fold(f64::INFINITY, f64::min)
    }

    /// Whether a factor betters the start, which all do that has no value.
    fn betters(&self, tried: &Tried) -> bool {
        let start = self
            .start
            .map_or(f64::INFINITY, |start| self.cost(Some(start)));
        self.cost(tried.value) < start
    }

    /// The next factor of a search: up first where the start is bettered, else down first. A start
    /// that no rate betters, however small, may be one whose running statistics are not yet those of
    /// the data.
    fn following(&self) -> Option<f64> {
        let (first, bottom, top) = SEARCH;
        let by_factor = |a: &&Tried, b: &&Tried| a.factor.total_cmp(&b.factor);
        let largest = self.tried.iter().max_by(by_factor);
        let smallest = self.tried.iter().min_by(by_factor);
        let (Some(largest), Some(smallest)) = (largest, smallest) else {
            return Some(first);
        };
        let least = self.least();
        let is_best = |tried: &Tried| self.cost(tried.value) == least;
        let is_near = self.cost(largest.value) <= TOLERANCE * least;
        let goes_up = (self.betters(largest) && is_near)
            || (self.tried.len() > 1 && least.is_finite() && is_best(largest));
        let up = (largest.factor < top && goes_up).then_some(largest.factor * UP_DOWN.0);
        let goes_down = smallest.factor > bottom && is_best(smallest);
        let down = goes_down.then_some(smallest.factor * UP_DOWN.1);
        up.or(down)
    }

    /// The largest factor whose value is within the tolerance of the best.
    fn best(&self) -> Option<f64> {
        let least = self.least();
        if least == f64::INFINITY {
            return None;
        }
        let near = |tried: &&Tried| self.cost(tried.value) <= TOLERANCE * least;
        let factors = self.tried.iter().filter(near).map(|tried| tried.factor);
        factors.max_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The factors that a search tries, and the one that it takes, where a factor comes to `cost`.
    fn searched(start: f64, cost: impl Fn(f64) -> f64) -> (Vec<f64>, Option<f64>) {
        let mut values = Values {
            monitor: Monitor::Loss,
            start: Some(start),
            tried: Vec::new(),
        };
        while let Some(factor) = values.following() {
            let value = Some(cost(factor)).filter(|cost| cost.is_finite());
            values.tried.push(Tried {
                factor,
                lr: factor,
                lr_dynamics: factor,
                value,
                accuracy: None,
            });
        }
        let factors = values.tried.iter().map(|tried| tried.factor).collect();
        (factors, values.best())
    }

    #[test]
    fn a_search_goes_up_as_long_as_that_is_nearly_as_good() {
        let (tried, taken) = searched(2.0, |factor| 1.0 / factor);
        assert_eq!((tried, taken), (vec![1.0, 2.0, 4.0, 8.0], Some(8.0)));
        let (tried, taken) = searched(2.0, |factor| factor);
        let down = vec![1.0, 2.0, 0.25, 0.0625, 0.015625, 0.00390625];
        assert_eq!((tried, taken), (down, Some(0.00390625)));
        // 1, then 2 is too bad, and 1/4 is not better: enough.
        let (tried, taken) = searched(2.0, |factor: f64| 1.0 + factor.log2().abs());
        assert_eq!((tried, taken), (vec![1.0, 2.0, 0.25], Some(1.0)));
    }

    #[test]
    fn a_search_goes_down_to_where_a_good_start_gets_better() {
        // Noise that grows with the rate, on a start that little can be gained of.
        let noisy = |factor: f64| 1.0 - 0.02 * factor.min(0.05) + 0.6 * factor;
        let (tried, taken) = searched(1.0, noisy);
        assert_eq!(tried, [1.0, 0.25, 0.0625, 0.015625, 0.00390625]);
        // Of those within a quarter of the best the largest.
        assert_eq!(taken, Some(0.25));
    }

    #[test]
    fn a_search_goes_up_where_every_rate_is_worse_than_the_start_and_small_ones_most() {
        let (tried, taken) = searched(0.1, |factor| 1.0 / factor);
        assert_eq!((tried, taken), (vec![1.0, 0.25, 2.0, 4.0, 8.0], Some(8.0)));
    }

    #[test]
    fn a_search_outlives_trainings_that_diverge() {
        let diverging = |factor: f64| if factor > 0.1 { f64::INFINITY } else { factor };
        let (tried, taken) = searched(1.0, diverging);
        assert_eq!(tried[..3], [1.0, 0.25, 0.0625]);
        assert_eq!(taken, Some(0.00390625));
        assert_eq!(searched(1.0, |_| f64::INFINITY).1, None);
    }
}
