//! One seed of a pipeline: every stage in a folder of its own, so that a run that was stopped goes
//! on where it stood.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use hankelite::advanced::Rescaled;
use hankelite::checkpoint::Checkpoint;
use hankelite::compress::LayerRecord;
use hankelite::model::{Block, BlockParts, Model, ModelError, Sequence};
use hankelite::rounding::Storage;
use hankelite::target::Size;
use hankelite::{Declared, Plan, Reducer, Rule, read, reduce, write};
use hankelite_data::Dataset;
use hankelite_train::nn::{
    Architecture, Initialisation, LayerKind, Parameterisation, TrainableNetwork, TrainableOptions,
    random_model, with_fresh_dynamics,
};
use hankelite_train::{
    Entry, Folder, Place, Recipe, Start, Stop, Terms, Training, require_suitable,
};
use serde::{Deserialize, Serialize};

use crate::cli::common::{open, require_length};
use crate::cli::pipeline::settings::{Arm, Config};
use crate::cli::printer::Printer;
use crate::cli::retrain::parameterisation;
use crate::cli::terms::Rescale;
use crate::cli::terms::Rescaling;
use crate::cli::training::{Data, Measured, Sets, measured};
use crate::cli::{pretrain, terms, training};

/// What every stage needs.
pub(super) struct Tools<'a> {
    pub(super) device: Place,
    pub(super) printer: &'a Printer,
    pub(super) stop: Stop,
}

/// One training: a line of the report's table.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Row {
    pub(super) seed: u64,
    pub(super) order: usize,
    /// `pretrain` has none.
    pub(super) arm: Option<Arm>,
    /// The test part before training.
    pub(super) before: Measured,
    /// After it.
    pub(super) after: Measured,
    pub(super) steps: u64,
    pub(super) seconds: f64,
    pub(super) parameters: usize,
    /// Of weights and state in single precision; absent for networks that cannot be run sample by
    /// sample, and in records of earlier versions.
    #[serde(default)]
    pub(super) bytes: Option<usize>,
    /// How far each group of parameters has moved from the start, relative to its size there.
    #[serde(default)]
    pub(super) moved: BTreeMap<String, f64>,
}

/// `record.json` of a training.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Record {
    #[serde(flatten)]
    pub(super) row: Row,
    #[serde(default, skip_deserializing)]
    rescaled: Vec<Rescaled>,
    /// Epoch by epoch.
    pub(super) history: Vec<Entry>,
}

/// `config.toml` of a training.
#[derive(Serialize)]
struct Job<'a> {
    seed: u64,
    order: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    arm: Option<Arm>,
    dropout: f64,
    rescale: Rescale,
    data: &'a Data,
    train: &'a Recipe,
    #[serde(flatten)]
    terms: Terms,
}

/// One training of a seed.
struct Stage<'a> {
    order: usize,
    /// `None` for the pretraining.
    arm: Option<Arm>,
    recipe: &'a Recipe,
    /// Its folder.
    place: &'a Path,
    /// The network before the reduction.
    full: Option<&'a Checkpoint>,
}

/// One seed before its pretraining.
pub(super) struct Prepared<'a> {
    config: &'a Config,
    seed: u64,
    sets: &'a Sets,
    tools: &'a Tools<'a>,
    /// A checkpoint that is to be reduced, or the start of a pretraining in its layout.
    start: Checkpoint,
    kind: LayerKind,
}

/// One seed with its pretrained network.
pub(super) struct Study<'a> {
    prepared: Prepared<'a>,
    place: PathBuf,
    full: Checkpoint,
    architecture: Architecture,
    /// The pretraining, where there was one.
    pretrained: Option<Record>,
}

impl<'a> Study<'a> {
    /// Everything that can be checked before the first step.
    pub(super) fn prepare(
        config: &'a Config,
        seed: u64,
        sets: &'a Sets,
        output: &Path,
        tools: &'a Tools<'a>,
    ) -> anyhow::Result<Prepared<'a>> {
        let length = sets.train.length();
        let (start, kind) = match (&config.checkpoint, &config.model) {
            (Some(path), _) => {
                let checkpoint = open(path, &Declared::default(), tools.printer)?;
                require_length(&checkpoint, length)?;
                let kind = kind_of(&checkpoint);
                (checkpoint, kind)
            }
            (None, Some(model)) => {
                let start = random_model(model, length, seed)?;
                (pretrain::checkpoint(model, &start, length)?, model.layer)
            }
            (None, None) => bail!("neither `checkpoint` nor [model]"),
        };
        require_suitable(&start.model, &sets.train)
            .with_context(|| format!("{}, seed {seed}", output.display()))?;
        if sets.test.is_none() && sets.validation.is_none() {
            bail!("the data have no part `test` and nothing is held out: nothing to measure on");
        }
        let full = start.model.blocks().iter().map(|block| block.order()).max();
        for &order in &config.reduce.orders {
            if order > full.unwrap_or(0) {
                let full = full.unwrap_or(0);
                bail!("`orders` holds {order}, expected at most {full}, the states there are");
            }
        }
        Ok(Prepared {
            config,
            seed,
            sets,
            tools,
            start,
            kind,
        })
    }

    /// All trainings of this seed, one after the other.
    pub(super) fn records(&self) -> anyhow::Result<Vec<Record>> {
        let mut records: Vec<Record> = self.pretrained.iter().cloned().collect();
        for (order, arm) in trainings(self.prepared.config, self.architecture.states) {
            records.push(self.record(order, arm)?);
        }
        Ok(records)
    }

    fn record(&self, order: usize, arm: Arm) -> anyhow::Result<Record> {
        let prepared = &self.prepared;
        let mut recipe = prepared.recipe(&prepared.config.train);
        if arm == Arm::SkewHippoLong {
            let batches = prepared.sets.train.len().div_ceil(recipe.batch) as u64;
            let own = recipe.total(batches);
            let spent = self.pretrained.as_ref().map(|record| record.row.steps);
            let spent = spent.or(prepared.config.checkpoint_steps).unwrap_or(0);
            (recipe.epochs, recipe.steps) = (None, Some(own + spent));
        }
        let place = place_of(&self.place, order, arm);
        prepared.tools.printer.message(&format!(
            "seed {}, order {order}, {}",
            prepared.seed,
            arm.name()
        ));
        let start = || self.start(order, arm);
        let stage = Stage {
            order,
            arm: Some(arm),
            recipe: &recipe,
            place: &place,
            full: Some(&self.full),
        };
        prepared.train(&stage, start)
    }

    /// Where an arm starts.
    fn start(&self, order: usize, arm: Arm) -> anyhow::Result<Checkpoint> {
        let (seed, length) = (self.prepared.seed, self.prepared.sets.train.length());
        let architecture = |initialisation| Architecture {
            states: order,
            initialisation: Some(initialisation),
            ..self.architecture.clone()
        };
        let model = match arm {
            Arm::Reduced => return self.reduced(order),
            Arm::SkewHippo | Arm::SkewHippoLong => {
                random_model(&architecture(Initialisation::SkewHippo), length, seed)?
            }
            Arm::Random => random_model(&architecture(Initialisation::Random), length, seed)?,
            Arm::SkewHippoKept => {
                let architecture = architecture(Initialisation::SkewHippo);
                with_fresh_dynamics(&self.full.model, &architecture, length, seed)?
            }
        };
        Ok(self.full.with_model(renamed(&model, &self.full.model)?))
    }

    /// The reduced network, as it is written: extraction is part of the layout.
    fn reduced(&self, order: usize) -> anyhow::Result<Checkpoint> {
        let folder = self.place.join(format!("order-{order}"));
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let file = folder.join("reduced.safetensors");
        if !file.is_file() {
            let (model, records) = self.cut(order)?;
            let text = serde_json::to_vec_pretty(&records)?;
            hankelite_archive::write_whole(folder.join("reduction.json"), &text)?;
            write(&self.full.with_model(model), &file)?;
        }
        Ok(read(&file, &self.full.declared())?)
    }

    fn cut(&self, order: usize) -> anyhow::Result<(Model, Vec<LayerRecord>)> {
        let settings = &self.prepared.config.reduce;
        let (model, sets) = (&self.full.model, self.prepared.sets);
        let length = sets.train.length();
        if let Some(count) = settings.calibrate {
            let count = count.min(sets.train.len());
            let data = sets.train.sample(count, self.prepared.seed)?;
            let listed: Vec<Sequence<'_>> = (0..count).map(|i| data.unpadded(i)).collect();
            let reducer = Reducer::new(model).calibrated(&listed).length(length);
            let cut = reducer.order(order).run()?;
            return Ok((cut.model, cut.records));
        }
        // Only channels with modes that do not decay are concerned by `unstable`.
        let plan = Plan::new(Rule::Order(order))?
            .with_realisation(settings.realisation)
            .with_kernel_length(length)
            .with_method(settings.method)?
            .with_time(settings.time)?
            .with_unstable(true)?;
        let cut = reduce(model, &plan)?;
        Ok((cut.model, cut.records))
    }
}

impl<'a> Prepared<'a> {
    /// The stage before all reductions.
    pub(super) fn pretrained(self, root: &Path) -> anyhow::Result<Study<'a>> {
        let place = seed_folder(root, self.seed);
        let (full, record) = match &self.config.pretrain {
            None => (self.start.clone(), None),
            Some(recipe) => {
                let folder = place.join("pretrain");
                self.tools
                    .printer
                    .message(&format!("seed {}, pretraining", self.seed));
                let order = self.start.model.blocks().iter().map(|block| block.order());
                let order = order.max().unwrap_or(0);
                let start = || Ok(self.start.clone());
                let stage = Stage {
                    order,
                    arm: None,
                    recipe: &self.recipe(recipe),
                    place: &folder,
                    full: None,
                };
                let record = self.train(&stage, start)?;
                let declared = self.start.declared();
                (
                    read(folder.join("model.safetensors"), &declared)?,
                    Some(record),
                )
            }
        };
        let Some(architecture) = Architecture::of(&full.model, self.kind) else {
            bail!("layers alone were read, which cannot be trained: expected a whole classifier");
        };
        Ok(Study {
            prepared: self,
            place,
            full,
            architecture,
            pretrained: record,
        })
    }

    fn recipe(&self, recipe: &Recipe) -> Recipe {
        Recipe {
            seed: self.seed,
            ..recipe.clone()
        }
    }

    /// One training in its folder; only its record, where it is finished.
    fn train(
        &self,
        stage: &Stage<'_>,
        start: impl FnOnce() -> anyhow::Result<Checkpoint>,
    ) -> anyhow::Result<Record> {
        let job = self.job(stage);
        let begun = stage.place.join("config.toml").is_file();
        let folder = training::folder(stage.place, &toml::to_string(&job)?, begun)?;
        if let Some(record) = finished_record(stage.place)? {
            return Ok(record);
        }
        let record = self.trained(stage, &job, &folder, &start()?)?;
        folder.write(Folder::RECORD, &serde_json::to_vec_pretty(&record)?)?;
        Ok(record)
    }

    fn job<'b>(&'b self, stage: &Stage<'b>) -> Job<'b> {
        let arm = stage.arm;
        Job {
            seed: self.seed,
            order: stage.order,
            arm,
            dropout: self.config.dropout,
            rescale: match arm.is_some_and(Arm::is_pretrained) {
                true => self.config.rescale,
                false => self.config.rescale_fresh,
            },
            data: &self.config.data,
            train: stage.recipe,
            terms: arm.map_or(Terms::default(), |arm| self.config.terms(arm)),
        }
    }

    /// Trains to the end and writes the model.
    fn trained(
        &self,
        stage: &Stage<'_>,
        job: &Job<'_>,
        folder: &Folder,
        start: &Checkpoint,
    ) -> anyhow::Result<Record> {
        let (recipe, printer, stop) = (stage.recipe, self.tools.printer, &self.tools.stop);
        let like = stage.full.map(|full| &full.model);
        let rescaling = Rescaling {
            mode: job.rescale,
            like,
        };
        let rescaled =
            terms::rescaled(&start.model, &rescaling, &self.sets.train, recipe, printer)?;
        let network = self.network(&rescaled.model)?;
        let before = self.test(&network, recipe)?;
        let training = Training {
            network: &network,
            data: &self.sets.train,
            validation: self.sets.validation.as_ref(),
            recipe,
        };
        let taught = like.filter(|_| job.terms.distil.is_some());
        let taught = taught.map(|model| self.network(model)).transpose()?;
        let mut objective = terms::objective(&network, &job.terms, taught.as_ref(), recipe)?;
        let moved = Start::of(&network)?;
        let outcome = training::train(&training, &mut objective, folder, stop, printer)?;
        let trained = start.with_model(network.to_model()?);
        write(&trained, stage.place.join("model.safetensors"))?;
        Ok(Record {
            row: Row {
                seed: self.seed,
                order: stage.order,
                arm: stage.arm,
                before,
                after: self.test(&network, recipe)?,
                steps: outcome.steps,
                seconds: outcome.seconds,
                parameters: trained.parameters()?,
                bytes: Size::of(&trained.model, &Storage::single(&trained.model))
                    .ok()
                    .map(|size| size.total()),
                moved: moved.moved(&network)?,
            },
            rescaled: rescaled.records,
            history: outcome.history,
        })
    }

    fn network(&self, model: &Model) -> anyhow::Result<TrainableNetwork> {
        let options = TrainableOptions {
            dtype: self.config.train.precision.dtype(),
            dropout: self.config.dropout,
            parameterisation: Some(self.kind.parameterisation()),
            ..TrainableOptions::new(self.sets.train.length())
        };
        let device = self.tools.device.open()?;
        Ok(TrainableNetwork::from_model(model, &options, &device)?)
    }

    /// The part that nothing was chosen on, where there is one.
    fn test(&self, network: &TrainableNetwork, recipe: &Recipe) -> anyhow::Result<Measured> {
        let part: Option<&Dataset> = self.sets.test.as_ref().or(self.sets.validation.as_ref());
        let found = measured(network, part, recipe.batch)?;
        found.context("no part to measure on")
    }
}

/// All trainings of a seed: every arm at every order, and the unreduced network once more.
fn trainings(config: &Config, full: usize) -> Vec<(usize, Arm)> {
    let mut all = Vec::new();
    if config.arms.contains(&Arm::Reduced) && !config.reduce.orders.contains(&full) {
        all.push((full, Arm::Reduced));
    }
    for &order in &config.reduce.orders {
        all.extend(config.arms.iter().map(|&arm| (order, arm)));
    }
    all
}

/// What is finished in a folder.
pub(super) fn finished(config: &Config, root: &Path) -> anyhow::Result<Vec<Record>> {
    let mut records = Vec::new();
    for &seed in &config.seeds {
        let place = seed_folder(root, seed);
        let first = finished_record(&place.join("pretrain"))?;
        let full = match (&first, &config.checkpoint) {
            (Some(record), _) => record.row.order,
            (None, Some(path)) => {
                let model = read(path, &Declared::default())?.model;
                model.blocks().iter().map(|b| b.order()).max().unwrap_or(0)
            }
            (None, None) => continue,
        };
        records.extend(first);
        for (order, arm) in trainings(config, full) {
            records.extend(finished_record(&place_of(&place, order, arm))?);
        }
    }
    Ok(records)
}

fn seed_folder(root: &Path, seed: u64) -> PathBuf {
    root.join(format!("seed-{seed}"))
}

/// The folder of one training of a seed, below that of the run.
pub(super) fn training_folder(root: &Path, seed: u64, order: usize, arm: Arm) -> PathBuf {
    place_of(&seed_folder(root, seed), order, arm)
}

fn place_of(place: &Path, order: usize, arm: Arm) -> PathBuf {
    place.join(format!("order-{order}")).join(arm.name())
}

fn finished_record(place: &Path) -> anyhow::Result<Option<Record>> {
    let file = place.join(Folder::RECORD);
    if !file.is_file() {
        return Ok(None);
    }
    let here = || file.display().to_string();
    let text = std::fs::read_to_string(&file).with_context(here)?;
    Ok(Some(serde_json::from_str(&text).with_context(here)?))
}

/// The names of the layers are those of the file that the model is to be written like.
fn renamed(model: &Model, like: &Model) -> Result<Model, ModelError> {
    let blocks = model.blocks().iter().zip(like.blocks());
    let blocks = blocks.map(|(block, like)| {
        Block::new(BlockParts {
            name: like.name().to_string(),
            ..block.clone().into_parts()
        })
    });
    model.with_blocks(blocks.collect::<Result<_, _>>()?)
}

fn kind_of(checkpoint: &Checkpoint) -> LayerKind {
    let systems = checkpoint.model.blocks().iter();
    let decays = systems
        .flat_map(|block| block.systems().iter().chain(block.backward()))
        .all(|system| system.is_stable());
    match parameterisation(checkpoint) {
        Some(Parameterisation::DssSoftmax) => LayerKind::DssSoftmax,
        Some(Parameterisation::DssExp) => LayerKind::DssExp,
        Some(Parameterisation::S4d) | None if decays => LayerKind::S4d,
        Some(Parameterisation::S4d) | None => LayerKind::DssSoftmax,
    }
}
