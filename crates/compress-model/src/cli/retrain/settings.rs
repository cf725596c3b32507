//! The settings of a retraining: a file, options before it, and defaults that never lose.

use std::collections::BTreeSet;
use std::iter::repeat;
use std::path::{Path, PathBuf};

use crate::cli::terms::Rescale;
use anyhow::{Context, bail};
use clap::Args;
use hankelite::checkpoint::Checkpoint;
use hankelite::model::Model;
use hankelite::rounding::{Entries, LayerChoice, MapChoice, StorageChoice};
use hankelite_train::nn::HeldMaps;
use hankelite_train::{Distil, Monitor, Recipe, Regularise, Terms, Trial, Trust};
use serde::{Deserialize, Serialize};

use crate::cli::common::{word_of, words};
use crate::cli::image::MIXING;
use crate::cli::training::{Data, Sets};
use crate::cli::{terms, training};

/// Where `lr` starts, before a trial multiplies it.
const RATE: f64 = 0.004;

/// The same for the dynamics.
const RATE_DYNAMICS: f64 = 0.002;

/// What stays of the averaged weights at a step.
const AVERAGE: f64 = 0.99;

/// The share of the steps over which the rates rise.
const WARMUP: f64 = 0.05;

/// Options for the most used keys of the configuration.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Settings")]
pub(in crate::cli) struct Options {
    /// The sequences; see `compress-model data --help`.
    #[arg(long, value_name = "DATA")]
    pub(in crate::cli) data: Option<String>,
    /// The full network: training follows its logits and the outputs of its layers.
    #[arg(long, value_name = "FULL")]
    pub(in crate::cli) teacher: Option<PathBuf>,
    /// Passes over the training data [default: 10].
    #[arg(long, value_name = "N")]
    pub(in crate::cli) epochs: Option<u64>,
    /// Sequences of a step [default: 50].
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Learning rate of all weights but the dynamics [default: found by a trial].
    #[arg(long, value_name = "RATE")]
    lr: Option<f64>,
    /// Learning rate of the dynamics [default: found by a trial, or half of --lr].
    #[arg(long, value_name = "RATE")]
    lr_dynamics: Option<f64>,
    /// How the output maps of the layers, and B and C of layers with several inputs, are rounded in
    /// training, in the written file and by `pack` [default: as recorded in the checkpoint for each
    /// map, else full].
    #[arg(long, value_parser = words::<Entries>(MIXING))]
    mixing: Option<Entries>,
    /// Decides order and held-out sequences [default: 0].
    #[arg(long, value_name = "SEED")]
    pub(in crate::cli) seed: Option<u64>,
}

/// How maps are held in training: the table `[maps]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Maps {
    /// Of the output maps of all layers.
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<Entries>,
    /// Inputs that share a scale, with `entries`.
    #[serde(skip_serializing_if = "Option::is_none")]
    group: Option<usize>,
    /// Of the encoder.
    #[serde(skip_serializing_if = "Option::is_none")]
    encoder: Option<MapChoice>,
    /// Of the output map of each layer, in the place of `entries`.
    #[serde(skip_serializing_if = "Option::is_none")]
    layers: Option<Vec<MapChoice>>,
    /// Of the head.
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<MapChoice>,
}

impl Maps {
    /// The output maps of all layers alike.
    fn of(entries: Entries) -> Self {
        Self {
            entries: Some(entries),
            group: None,
            encoder: None,
            layers: None,
            head: None,
        }
    }

    fn check(&self) -> anyhow::Result<()> {
        if self.entries.is_some() && self.layers.is_some() {
            bail!("[maps] has both `entries` and `layers`, expected one of them");
        }
        if self.entries.is_none() && self.group.is_some() {
            bail!(
                "[maps] has `group` without `entries`; each of `layers` has a `group` of its own"
            );
        }
        Ok(())
    }

    /// How a network is stored: its maps so, B and C of a layer with several inputs as its map, all else
    /// as was recorded.
    fn storage(&self, recorded: Option<&StorageChoice>, model: &Model) -> StorageChoice {
        let layers = model.blocks().len();
        let same = self.entries.map(|entries| {
            let choice = MapChoice::of(entries);
            let group = self.group.unwrap_or(choice.group);
            MapChoice { group, ..choice }
        });
        let maps = match &self.layers {
            Some(each) => each.iter().copied().map(Some).collect(),
            None => vec![same; layers],
        };
        let recorded = recorded.cloned().unwrap_or_default();
        let others = recorded
            .layers
            .into_iter()
            .chain(repeat(LayerChoice::default()));
        let layers = maps.into_iter().zip(others).zip(model.blocks());
        let layers = layers.map(|((map, own), block)| LayerChoice {
            map,
            systems: map.filter(|_| !block.is_siso()),
            ..own
        });
        StorageChoice {
            layers: layers.collect(),
            encoder: self.encoder,
            head: self.head,
            numbers: recorded.numbers,
        }
    }
}

/// What a file may hold.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// The share of channels that dropout sets to zero.
    #[serde(default)]
    pub(super) dropout: f64,
    /// Whether the rates of poles are scaled down where the kernel would turn over at a small step.
    #[serde(default = "yes")]
    pub(super) scaled_poles: bool,
    /// What C and D are multiplied with at the start.
    #[serde(default)]
    pub(super) rescale: Rescale,
    /// The network before its reduction.
    pub(super) teacher: Option<PathBuf>,
    pub(super) data: Option<Data>,
    #[serde(default)]
    pub(super) train: Recipe,
    /// Rates that are tried first.
    pub(super) trial: Option<Trial>,
    /// How the maps are held.
    maps: Option<Maps>,
    regularise: Option<Regularise>,
    trust: Option<Trust>,
    distil: Option<Distil>,
}

fn yes() -> bool {
    true
}

/// What `config.toml` in the folder of the run holds.
#[derive(Serialize)]
struct Config<'a> {
    checkpoint: String,
    dropout: f64,
    scaled_poles: bool,
    rescale: Rescale,
    #[serde(skip_serializing_if = "Option::is_none")]
    teacher: Option<String>,
    data: &'a Data,
    train: &'a Recipe,
    #[serde(skip_serializing_if = "Option::is_none")]
    trial: Option<&'a Trial>,
    #[serde(skip_serializing_if = "Option::is_none")]
    maps: Option<&'a Maps>,
    #[serde(flatten)]
    terms: Terms,
}

/// All settings of a retraining.
pub(in crate::cli) struct Settings {
    pub(super) file: File,
    /// The keys of `[train]` that were given.
    given: BTreeSet<String>,
}

impl Settings {
    /// The file, with the options before it, checked as far as it can be without data.
    pub(in crate::cli) fn read(config: Option<&Path>, options: &Options) -> anyhow::Result<Self> {
        let mut settings = match config {
            None => Self {
                file: toml::from_str("")?,
                given: BTreeSet::new(),
            },
            Some(path) => {
                let text =
                    std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
                Self {
                    file: training::parsed(path, &text)?,
                    given: keys(&training::parsed(path, &text)?),
                }
            }
        };
        settings.take(options);
        settings.complete();
        settings.data()?;
        settings.file.train.check()?;
        if let Some(trial) = &settings.file.trial {
            trial.check()?;
        }
        if let Some(maps) = &settings.file.maps {
            maps.check()?;
        }
        terms::check(&settings.terms(), settings.file.teacher.is_some())?;
        Ok(settings)
    }

    /// The data, which there must be.
    pub(in crate::cli) fn data(&self) -> anyhow::Result<&Data> {
        match &self.file.data {
            Some(data) => Ok(data),
            None => bail!("no data: expected --data, or `source` in the table [data] of --config"),
        }
    }

    pub(super) fn terms(&self) -> Terms {
        Terms {
            regularise: self.file.regularise,
            trust: self.file.trust,
            distil: self.file.distil,
        }
    }

    /// Which maps are held.
    pub(super) fn held(&self, checkpoint: &Checkpoint) -> HeldMaps {
        let storage = self.storage(checkpoint);
        storage.map_or_else(HeldMaps::default, |storage| HeldMaps::of(&storage))
    }

    /// What is to be known where maps are held that nobody named.
    pub(super) fn note(&self, checkpoint: &Checkpoint) -> Option<String> {
        let held = self.held(checkpoint);
        if self.file.maps.is_some() || held.is_empty() {
            return None;
        }
        let mut kinds: Vec<_> = held.all().map(|choice| choice.entries).collect();
        kinds.sort();
        let each = kinds.chunk_by(|a, b| a == b);
        let each = each.map(|same| format!("{} at {}", same.len(), word_of(&same[0])));
        Some(format!(
            "maps are held in training as recorded in the checkpoint: {}; --mixing full trains them in \
             full precision",
            each.collect::<Vec<_>>().join(", ")
        ))
    }

    /// How the trained network is stored in an image: by `[maps]`, else as recorded in the
    /// checkpoint. `None` where neither is there.
    pub(super) fn storage(&self, checkpoint: &Checkpoint) -> Option<StorageChoice> {
        let recorded = checkpoint.storage();
        match &self.file.maps {
            Some(maps) => Some(maps.storage(recorded, &checkpoint.model)),
            None => recorded.cloned(),
        }
    }

    /// The text of `config.toml`.
    pub(super) fn text(&self, checkpoint: &str) -> anyhow::Result<String> {
        let file = &self.file;
        let teacher = file.teacher.as_ref();
        Ok(toml::to_string(&Config {
            checkpoint: checkpoint.to_string(),
            dropout: file.dropout,
            scaled_poles: file.scaled_poles,
            rescale: file.rescale,
            teacher: teacher.map(|path| path.display().to_string()),
            data: self.data()?,
            train: &file.train,
            trial: file.trial.as_ref(),
            maps: file.maps.as_ref(),
            terms: self.terms(),
        })?)
    }

    /// The defaults that depend on the data: warm-up, and what the best is chosen by.
    pub(in crate::cli) fn settle(&mut self, sets: &Sets) {
        // Labels decide what is best where they count alone at the end.
        let targets = sets.train.targets();
        let follows = (self.file.distil).is_some_and(|distil| !distil.fades(targets));
        let recipe = &mut self.file.train;
        let is_free = |key: &str| !self.given.contains(key);
        if is_free("warmup") {
            let batches = sets.train.len().div_ceil(recipe.batch) as u64;
            recipe.warmup = (WARMUP * recipe.total(batches) as f64) as u64;
        }
        if sets.validation.is_none() {
            self.file.trial = None;
            return;
        }
        if is_free("keep_start") {
            recipe.keep_start = true;
        }
        if is_free("monitor") && follows {
            recipe.monitor = Monitor::Teacher;
        }
    }

    fn take(&mut self, options: &Options) {
        let file = &mut self.file;
        if let Some(source) = &options.data {
            let data = file.data.get_or_insert_with(|| Data::of(source));
            data.source = source.clone();
        }
        if options.teacher.is_some() {
            file.teacher = options.teacher.clone();
        }
        if let Some(entries) = options.mixing {
            let maps = file.maps.get_or_insert_with(|| Maps::of(entries));
            (maps.entries, maps.layers) = (Some(entries), None);
        }
        let recipe = &mut file.train;
        if options.epochs.is_some() {
            (recipe.epochs, recipe.steps) = (options.epochs, None);
        }
        recipe.batch = options.batch.unwrap_or(recipe.batch);
        recipe.lr = options.lr.unwrap_or(recipe.lr);
        recipe.lr_dynamics = options.lr_dynamics.unwrap_or(recipe.lr_dynamics);
        recipe.seed = options.seed.unwrap_or(recipe.seed);
        let rates = [
            ("lr", options.lr.is_some()),
            ("lr_dynamics", options.lr_dynamics.is_some()),
        ];
        for (key, _) in rates.into_iter().filter(|(_, given)| *given) {
            self.given.insert(key.to_string());
        }
    }

    /// The defaults that depend on no data. Rates that were given are not tried.
    fn complete(&mut self) {
        let is_free = |key: &str| !self.given.contains(key);
        let file = &mut self.file;
        let recipe = &mut file.train;
        match (is_free("lr"), is_free("lr_dynamics")) {
            (true, true) => {
                (recipe.lr, recipe.lr_dynamics) = (RATE, RATE_DYNAMICS);
                file.trial.get_or_insert_default();
            }
            (false, true) => recipe.lr_dynamics = recipe.lr * RATE_DYNAMICS / RATE,
            (true, false) => recipe.lr = RATE,
            (false, false) => {}
        }
        if is_free("average") {
            recipe.average = AVERAGE;
        }
        // Poles of its own give a channel all that a step gives it, one by one and not all at once.
        if is_free("lr_steps") {
            recipe.lr_steps = Some(0.0);
        }
        // A teacher that is there for nothing else is followed.
        if file.teacher.is_some() && file.rescale != Rescale::Match {
            file.distil.get_or_insert_default();
        }
    }
}

/// The keys of the table `[train]`.
fn keys(whole: &toml::Table) -> BTreeSet<String> {
    let train = whole.get("train").and_then(toml::Value::as_table);
    let keys = train.into_iter().flat_map(toml::Table::keys);
    keys.cloned().collect()
}
