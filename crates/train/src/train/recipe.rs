//! How a network is trained: settings with defaults and ranges.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::train::RecipeError;
use crate::train::objective::Evaluation;
use crate::train::optimiser::AdamWSettings;
use crate::train::schedule::{Course, Schedule};

/// Epochs when neither `epochs` nor `steps` is given.
const EPOCHS: u64 = 10;

/// How a network is trained. Every field is a key of the table `[train]` of a configuration.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Recipe {
    /// Passes over the training data, 1 to 1,000,000. Default 10, where `steps` is not given.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub epochs: Option<u64>,
    /// Steps of the optimiser, 1 to 10⁹, in place of `epochs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub steps: Option<u64>,
    /// Sequences of each step, 1 to the size of the data. Default 50. The last batch of an epoch
    /// may be smaller.
    pub batch: usize,
    /// Learning rate of all weights but the dynamics, 0 to 1. Default 0.004.
    pub lr: f64,
    /// Learning rate of the dynamics (Δ, poles, B), 0 to 1. Default 0.001.
    pub lr_dynamics: f64,
    /// Learning rate of the steps Δ alone, 0 to 1. Default: `lr_dynamics`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lr_steps: Option<f64>,
    /// Decoupled decay of weight matrices, 0 to 10. Default 0.01. Biases, normalisations and
    /// steps Δ never decay.
    pub weight_decay: f64,
    /// Decoupled decay of poles, as they are trained, 0 to 10. Default 0.
    pub weight_decay_poles: f64,
    /// The largest norm of all gradients together, above 0 to 10⁶. Default 10, which only a step
    /// that goes wrong reaches. `None`, which no file can hold, is no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip: Option<f64>,
    /// β, the share that stays of the averaged weights at a step, 0 up to below 1; 0 averages
    /// nothing. Default 0. Averaged weights are what is validated and kept: behind step t,
    /// w̄ ← w̄ + (1 − min(β, (1 + t)/(10 + t)))(w − w̄).
    pub average: f64,
    /// Steps of linear warm-up, 0 to the number of steps. Default 0.
    pub warmup: u64,
    /// `constant`, `cosine` or `plateau`. Default `cosine`.
    pub schedule: Course,
    /// The smallest share of the learning rates that a schedule comes down to, 0 to 1.
    /// Default 0.
    pub floor: f64,
    /// Epochs without a better validation value before `plateau` cuts the rates, 1 to 10⁶.
    /// Default 3.
    pub plateau: u64,
    /// What it cuts them to, above 0 and below 1. Default 0.5.
    pub plateau_factor: f64,
    /// Decides order, dropout, the sequences held out and, in pretraining, the start: 0 to
    /// 2⁶³ − 1. Default 0.
    pub seed: u64,
    /// Epochs in a row without a better validation value before training stops, 0 to 10⁶; 0
    /// never stops. Default 0.
    pub patience: u64,
    /// What `best` is chosen by: `loss` or `accuracy` of the validation part, or its distance from
    /// the `teacher`. Default `loss`.
    pub monitor: Monitor,
    /// Whether the start counts among the epochs that `best` is chosen of. Then none is taken
    /// whose validation accuracy is below the start's (without classes, whose loss is above), and,
    /// where the loss is monitored, none whose mean squared error (of numbers, or of the probabilities
    /// of classes) is not below the start's by more than a standard error of the difference. Default
    /// false.
    pub keep_start: bool,
    /// The share of a label that is spread over all classes, 0 to 0.99. Default 0.
    pub label_smoothing: f64,
    /// Steps between two snapshots beside those at the end of every epoch, 0 to 10⁹; 0 takes
    /// none. Default 0.
    pub snapshot_every: u64,
    /// `f32` or `f64`. Default `f32`.
    pub precision: Precision,
}

/// What `best` is chosen by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Monitor {
    /// The smaller the better.
    Loss,
    /// The larger the better.
    Accuracy,
    /// The distance from a teacher, the smaller the better.
    Teacher,
}

impl Monitor {
    /// Its value; none of a teacher that is not there, and no accuracy without classes.
    pub(super) fn of(self, found: &Evaluation) -> Option<f64> {
        match self {
            Monitor::Loss => Some(found.tally().loss()),
            Monitor::Accuracy => found.tally().accuracy(),
            Monitor::Teacher => found.distance(),
        }
    }
}

/// The number format that a network is trained in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Precision {
    /// Single.
    F32,
    /// Double: for checks.
    F64,
}

impl Precision {
    /// candle's name of it.
    pub fn dtype(self) -> candle_core::DType {
        match self {
            Precision::F32 => candle_core::DType::F32,
            Precision::F64 => candle_core::DType::F64,
        }
    }
}

impl Default for Recipe {
    fn default() -> Self {
        Self {
            epochs: None,
            steps: None,
            batch: 50,
            lr: 0.004,
            lr_dynamics: 0.001,
            lr_steps: None,
            weight_decay: 0.01,
            weight_decay_poles: 0.0,
            clip: Some(10.0),
            average: 0.0,
            warmup: 0,
            schedule: Course::Cosine,
            floor: 0.0,
            plateau: 3,
            plateau_factor: 0.5,
            seed: 0,
            patience: 0,
            monitor: Monitor::Loss,
            keep_start: false,
            label_smoothing: 0.0,
            snapshot_every: 0,
            precision: Precision::F32,
        }
    }
}

impl Recipe {
    /// Checks every range that does not depend on data.
    ///
    /// # Errors
    /// A [`RecipeError`] with the key and what may stand there.
    pub fn check(&self) -> Result<(), RecipeError> {
        if self.epochs.is_some() && self.steps.is_some() {
            return Err(RecipeError::EpochsAndSteps);
        }
        within("epochs", self.epochs.unwrap_or(EPOCHS), 1..=1_000_000)?;
        within("steps", self.steps.unwrap_or(1), 1..=1_000_000_000)?;
        within("batch", self.batch, 1..=1_000_000_000)?;
        within("lr", self.lr, 0.0..=1.0)?;
        within("lr_dynamics", self.lr_dynamics, 0.0..=1.0)?;
        within("lr_steps", self.lr_steps.unwrap_or(0.0), 0.0..=1.0)?;
        within("weight_decay", self.weight_decay, 0.0..=10.0)?;
        within("weight_decay_poles", self.weight_decay_poles, 0.0..=10.0)?;
        if let Some(clip) = self.clip
            && !(clip > 0.0 && clip <= 1e6)
        {
            return Err(range("clip", clip, "above 0, to 1000000".to_string()));
        }
        if !(0.0..1.0).contains(&self.average) {
            let allowed = "0 up to below 1".to_string();
            return Err(range("average", self.average, allowed));
        }
        within("warmup", self.warmup, 0..=1_000_000_000)?;
        within("floor", self.floor, 0.0..=1.0)?;
        within("plateau", self.plateau, 1..=1_000_000)?;
        let cut = self.plateau_factor;
        if !(cut > 0.0 && cut < 1.0) {
            return Err(range(
                "plateau_factor",
                cut,
                "above 0 and below 1".to_string(),
            ));
        }
        within("seed", self.seed, 0..=i64::MAX as u64)?;
        within("patience", self.patience, 0..=1_000_000)?;
        within("label_smoothing", self.label_smoothing, 0.0..=0.99)?;
        within("snapshot_every", self.snapshot_every, 0..=1_000_000_000)
    }

    /// All steps of a training with so many batches in an epoch.
    pub fn total(&self, batches: u64) -> u64 {
        let epochs = self.epochs.unwrap_or(EPOCHS);
        self.steps.unwrap_or(epochs.saturating_mul(batches))
    }

    /// The settings of the optimiser.
    pub fn optimiser(&self) -> AdamWSettings {
        AdamWSettings {
            lr: self.lr,
            lr_dynamics: self.lr_dynamics,
            lr_steps: self.lr_steps.unwrap_or(self.lr_dynamics),
            weight_decay: self.weight_decay,
            weight_decay_poles: self.weight_decay_poles,
            beta1: 0.9,
            beta2: 0.999,
            epsilon: 1e-8,
        }
    }

    /// The schedule over `total` steps.
    ///
    /// # Errors
    /// [`RecipeError::Warmup`].
    pub fn schedule(&self, total: u64) -> Result<Schedule, RecipeError> {
        let Self { warmup, floor, .. } = *self;
        if warmup > total {
            return Err(RecipeError::Warmup { warmup, total });
        }
        Ok(Schedule {
            course: self.schedule,
            warmup,
            total,
            floor,
            plateau_factor: self.plateau_factor,
        })
    }
}

pub(super) fn within<T: PartialOrd + std::fmt::Display>(
    key: &'static str,
    found: T,
    allowed: RangeInclusive<T>,
) -> Result<(), RecipeError> {
    if allowed.contains(&found) {
        return Ok(());
    }
    let allowed = format!("{} to {}", allowed.start(), allowed.end());
    Err(range(key, found, allowed))
}

fn range(key: &'static str, found: impl std::fmt::Display, allowed: String) -> RecipeError {
    RecipeError::Range {
        key,
        found: found.to_string(),
        allowed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Recipe {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn an_empty_table_is_the_default_and_every_key_survives() {
        assert_eq!(read(""), Recipe::default());
        Recipe::default().check().unwrap();
        let full = Recipe {
            epochs: Some(3),
            clip: Some(1.0),
            schedule: Course::Plateau,
            average: 0.99,
            lr_steps: Some(0.0),
            keep_start: true,
            monitor: Monitor::Teacher,
            precision: Precision::F64,
            ..Recipe::default()
        };
        assert_eq!(read(&toml::to_string(&full).unwrap()), full);
    }

    #[test]
    fn a_value_out_of_range_is_named_with_its_range() {
        let cases = [
            ("epochs = 0", "`epochs` is 0, expected 1 to 1000000"),
            ("steps = 0", "`steps` is 0, expected 1 to 1000000000"),
            ("batch = 0", "`batch` is 0, expected 1 to 1000000000"),
            ("lr = -1e-3", "`lr` is -0.001, expected 0 to 1"),
            ("lr = nan", "`lr` is NaN, expected 0 to 1"),
            ("lr_dynamics = 2.0", "`lr_dynamics` is 2, expected 0 to 1"),
            (
                "weight_decay = 11.0",
                "`weight_decay` is 11, expected 0 to 10",
            ),
            ("clip = 0.0", "`clip` is 0, expected above 0, to 1000000"),
            ("average = 1.0", "`average` is 1, expected 0 up to below 1"),
            ("floor = 1.5", "`floor` is 1.5, expected 0 to 1"),
            ("plateau = 0", "`plateau` is 0, expected 1 to 1000000"),
            (
                "plateau_factor = 1.0",
                "`plateau_factor` is 1, expected above 0 and below 1",
            ),
            (
                "patience = 1000001",
                "`patience` is 1000001, expected 0 to 1000000",
            ),
            (
                "label_smoothing = 1.0",
                "`label_smoothing` is 1, expected 0 to 0.99",
            ),
            (
                "epochs = 1\nsteps = 1",
                "`epochs` and `steps` are both given, expected one of them",
            ),
        ];
        for (text, message) in cases {
            assert_eq!(read(text).check().unwrap_err().to_string(), message);
        }
    }

    #[test]
    fn an_unknown_key_and_a_wrong_word_name_what_there_is() {
        let error = toml::from_str::<Recipe>("learning_rate = 1").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("unknown field `learning_rate`"), "{text}");
        assert!(text.contains("`lr`"), "{text}");
        let error = toml::from_str::<Recipe>("schedule = \"linear\"").unwrap_err();
        let text = error.to_string();
        assert!(text.contains("`constant`, `cosine`, `plateau`"), "{text}");
    }

    #[test]
    fn steps_come_from_epochs_or_are_given() {
        assert_eq!(Recipe::default().total(7), 70);
        assert_eq!(read("epochs = 2").total(7), 14);
        assert_eq!(read("steps = 5").total(7), 5);
        let long = read("warmup = 6\nsteps = 5");
        let error = RecipeError::Warmup {
            warmup: 6,
            total: 5,
        };
        assert_eq!(long.schedule(5), Err(error));
        assert!(long.schedule(6).is_ok());
    }
}
