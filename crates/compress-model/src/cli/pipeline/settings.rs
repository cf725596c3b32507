//! The configuration of a pipeline.

use std::path::PathBuf;

use anyhow::bail;
use hankelite::compress::{Method, RealisationChoice, TimeBase};
use hankelite_train::nn::Architecture;
use hankelite_train::{Distil, Recipe, Regularise, Terms, Trust};
use serde::{Deserialize, Serialize};

use crate::cli::terms::Rescale;
use crate::cli::training::Data;

/// What is trained at each order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Arm {
    /// The pretrained network, reduced.
    Reduced,
    /// A fresh network with the Skew-HiPPO start.
    SkewHippo,
    /// A fresh network with random poles.
    Random,
    /// A fresh network with the Skew-HiPPO start, for the steps of pretraining and main training
    /// together.
    SkewHippoLong,
    /// The pretrained network with poles and weights C drawn afresh, Skew-HiPPO.
    SkewHippoKept,
}

pub(super) const ARMS: [Arm; 5] = [
    Arm::Reduced,
    Arm::SkewHippo,
    Arm::Random,
    Arm::SkewHippoLong,
    Arm::SkewHippoKept,
];

impl Arm {
    /// Whether it starts with weights of the pretrained network.
    pub(super) fn is_pretrained(self) -> bool {
        matches!(self, Arm::Reduced | Arm::SkewHippoKept)
    }

    /// As the configuration and the folders have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Arm::Reduced => "reduced",
            Arm::SkewHippo => "skew-hippo",
            Arm::Random => "random",
            Arm::SkewHippoLong => "skew-hippo-long",
            Arm::SkewHippoKept => "skew-hippo-kept",
        }
    }
}

/// The file.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Config {
    /// Every seed is a repetition from the start.
    #[serde(default = "seeds")]
    pub(super) seeds: Vec<u64>,
    #[serde(default = "arms")]
    pub(super) arms: Vec<Arm>,
    /// The share of channels that dropout sets to zero in every training.
    #[serde(default)]
    pub(super) dropout: f64,
    /// What C and D of the arms that come from the pretrained network are multiplied with before
    /// their training.
    #[serde(default)]
    pub(super) rescale: Rescale,
    /// The same for networks from scratch, the pretraining too: `none` or `unit`.
    #[serde(default)]
    pub(super) rescale_fresh: Rescale,
    /// A pretrained network, in place of [model] and [pretrain].
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) checkpoint: Option<PathBuf>,
    /// With `checkpoint`: the steps that its training counts for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) checkpoint_steps: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) model: Option<Architecture>,
    pub(super) data: Data,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) pretrain: Option<Recipe>,
    pub(super) reduce: Reduction,
    pub(super) train: Recipe,
    /// Of every main training.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) regularise: Option<Regularise>,
    /// Of the reduced network.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trust: Option<Trust>,
    /// Of the reduced network, with the pretrained one as its teacher.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) distil: Option<Distil>,
}

/// The table `[reduce]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Reduction {
    /// Stored states of each channel.
    pub(super) orders: Vec<usize>,
    #[serde(default = "balanced")]
    pub(super) method: Method,
    #[serde(default = "discrete")]
    pub(super) time: TimeBase,
    #[serde(default = "real")]
    pub(super) realisation: RealisationChoice,
    /// So many training sequences, for a calibrated reduction in place of `method`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) calibrate: Option<usize>,
}

fn seeds() -> Vec<u64> {
    vec![0, 1, 2]
}

fn arms() -> Vec<Arm> {
    ARMS.to_vec()
}

fn balanced() -> Method {
    Method::Balanced
}

fn discrete() -> TimeBase {
    TimeBase::Discrete
}

fn real() -> RealisationChoice {
    RealisationChoice::Real
}

impl Config {
    /// The terms of an arm's main training.
    pub(super) fn terms(&self, arm: Arm) -> Terms {
        let reduced = arm == Arm::Reduced;
        Terms {
            regularise: self.regularise,
            trust: self.trust.filter(|_| reduced),
            distil: self.distil.filter(|_| reduced),
        }
    }

    /// Everything that can be checked without data.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        if self.seeds.is_empty() || self.arms.is_empty() || self.reduce.orders.is_empty() {
            bail!("`seeds`, `arms` and `orders` need at least one entry each");
        }
        once("seeds", &self.seeds)?;
        once("arms", &self.arms)?;
        once("orders", &self.reduce.orders)?;
        if self.reduce.orders.contains(&0) {
            bail!("`orders` holds 0, expected orders of at least 1");
        }
        match (&self.checkpoint, &self.model, &self.pretrain) {
            (Some(_), None, None) | (None, Some(_), Some(_)) => {}
            _ => bail!("expected either `checkpoint` or the tables [model] and [pretrain]"),
        }
        let long = self.arms.contains(&Arm::SkewHippoLong);
        if long && self.checkpoint.is_some() && self.checkpoint_steps.is_none() {
            bail!(
                "the arm `skew-hippo-long` needs `checkpoint_steps`: a checkpoint does not record \
                 how long it was trained"
            );
        }
        if self.checkpoint.is_none() && self.checkpoint_steps.is_some() {
            bail!("`checkpoint_steps` is given without `checkpoint`");
        }
        if self
            .model
            .as_ref()
            .is_some_and(|model| model.measurements.is_some())
        {
            bail!("`measurements` are trained by `pretrain` alone, a pipeline has none");
        }
        if self.rescale_fresh == Rescale::Match {
            bail!("`rescale_fresh` is match, expected none or unit: nothing was reduced there");
        }
        self.terms(Arm::Reduced).check()?;
        if self.reduce.calibrate == Some(0) {
            bail!("`calibrate` is 0, expected at least 1 sequence");
        }
        for recipe in [Some(&self.train), self.pretrain.as_ref()]
            .into_iter()
            .flatten()
        {
            recipe.check()?;
            if recipe.seed != 0 {
                bail!("`seed` stands in a recipe, but a pipeline takes its `seeds`");
            }
        }
        Ok(())
    }
}

fn once<T: PartialEq + std::fmt::Debug>(key: &str, entries: &[T]) -> anyhow::Result<()> {
    for (index, entry) in entries.iter().enumerate() {
        if entries[..index].contains(entry) {
            bail!("`{key}` holds {entry:?} twice");
        }
    }
    Ok(())
}
