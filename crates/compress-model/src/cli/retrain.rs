//! `compress-model retrain`.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use hankelite::calibrate::{Rescale, Rescaled};
use hankelite::checkpoint::{Checkpoint, DssVersion, write};
use hankelite::model::Model;
use hankelite_archive::check_destination;
use hankelite_data::Dataset;
use hankelite_train::nn::{Parameterisation, TrainableNetwork, TrainableOptions};
use hankelite_train::{
    Distil, Place, Recipe, Regularise, Start, Terms, Training, Trust, require_suitable,
};
use serde::{Deserialize, Serialize};

use crate::cli::common::{Declarations, Input, open, require_length};
use crate::cli::printer::Printer;
use crate::cli::terms::Rescaling;
use crate::cli::training::{Data, TrainingReport, measured};
use crate::cli::{terms, training};

const EXAMPLES: &str = "\
Examples:
  compress-model retrain small.pth --data mnist:data/mnist --epochs 5 --output better.pth
  compress-model retrain small.pth --config retrain.toml --output better.pth
  compress-model retrain small.pth --config retrain.toml --output better.pth --resume

FILE has the tables [data], [train] and perhaps [regularise], [trust] and [distil]; options go
before it. docs/training.md and docs/pipeline.md have all keys with defaults and ranges. The new
checkpoint has the layout of CKPT. Ctrl-C ends the step and the run, with exit code 130; --resume
goes on, to the same bytes.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// Where the trained checkpoint goes. Its ending chooses the container.
    #[arg(long, short, value_name = "OUT")]
    output: PathBuf,
    /// Settings: a TOML file.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The folder of the run [default: OUT with the ending `run`].
    #[arg(long, value_name = "DIR")]
    run: Option<PathBuf>,
    /// Go on with the run in that folder.
    #[arg(long)]
    resume: bool,
    /// Where to train: cpu, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Place,
    #[command(flatten)]
    settings: Settings,
    #[command(flatten)]
    declarations: Declarations,
}

/// Options for the most used keys of the configuration.
#[derive(Debug, Args)]
#[command(next_help_heading = "Settings")]
struct Settings {
    /// The sequences; see `compress-model data --help`.
    #[arg(long, value_name = "DATA")]
    data: Option<String>,
    /// Passes over the training data [default: 10].
    #[arg(long, value_name = "N")]
    epochs: Option<u64>,
    /// Sequences of a step [default: 50].
    #[arg(long, value_name = "N")]
    batch: Option<usize>,
    /// Learning rate of all weights but the dynamics [default: 0.004].
    #[arg(long, value_name = "RATE")]
    lr: Option<f64>,
    /// Learning rate of the dynamics [default: 0.001].
    #[arg(long, value_name = "RATE")]
    lr_dynamics: Option<f64>,
    /// Decides order and held-out sequences [default: 0].
    #[arg(long, value_name = "SEED")]
    seed: Option<u64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    /// The share of channels that dropout sets to zero.
    #[serde(default)]
    dropout: f64,
    /// What C and D are multiplied with at the start.
    #[serde(default)]
    rescale: Rescale,
    /// The network before its reduction.
    teacher: Option<PathBuf>,
    data: Option<Data>,
    #[serde(default)]
    train: Recipe,
    regularise: Option<Regularise>,
    trust: Option<Trust>,
    distil: Option<Distil>,
}

impl File {
    fn terms(&self) -> Terms {
        Terms {
            regularise: self.regularise,
            trust: self.trust,
            distil: self.distil,
        }
    }
}

/// What `config.toml` in the folder of the run holds.
#[derive(Serialize)]
struct Config<'a> {
    checkpoint: String,
    dropout: f64,
    rescale: Rescale,
    #[serde(skip_serializing_if = "Option::is_none")]
    teacher: Option<String>,
    data: &'a Data,
    train: &'a Recipe,
    #[serde(flatten)]
    terms: Terms,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let path = &arguments.input.checkpoint;
    check_destination(&arguments.output, &[path])?;
    let file = settings(arguments)?;
    let Some(data) = &file.data else {
        bail!("no data: expected --data, or `source` in the table [data] of --config");
    };
    let recipe = &file.train;
    recipe.check()?;
    let beside = file.terms();
    terms::check(&beside, file.teacher.is_some())?;
    let place = run_folder(arguments);
    training::require_folder(&place, arguments.resume)?;
    // Whether the device is there is known before data are read.
    arguments.device.open()?;
    let declared = arguments.declarations.declared();
    let checkpoint = open(path, &declared, printer)?;
    let full = file.teacher.as_ref();
    let full = full
        .map(|path| open(path, &declared, printer))
        .transpose()?;
    let sets = data.read(recipe.seed, printer)?;
    require_suitable(&checkpoint.model, &sets.train)?;
    require_length(&checkpoint, sets.train.length())?;
    let way = Way {
        file: &file,
        beside: &beside,
        device: arguments.device,
    };
    let start = way.start(&checkpoint, full.as_ref(), &sets.train, printer)?;
    let network = &start.network;
    let training = Training {
        network,
        data: &sets.train,
        validation: sets.validation.as_ref(),
        recipe,
    };
    training.check()?;
    let config = toml::to_string(&config(path, &file, data))?;
    let folder = training::folder(&place, &config, arguments.resume)?;
    let measured = |data| measured(network, data, recipe.batch);
    let before = measured(sets.validation.as_ref())?;
    let mut objective = terms::objective(network, &beside, start.taught.as_ref(), recipe)?;
    let moved = Start::of(network)?;
    let stop = training::stop_on_interrupt()?;
    let outcome = training::train(&training, &mut objective, &folder, &stop, printer)?;
    let trained = checkpoint.with_model(network.to_model()?);
    write(&trained, &arguments.output)?;
    let document = TrainingReport {
        output: arguments.output.display().to_string(),
        folder: folder.path().display().to_string(),
        device: arguments.device.to_string(),
        parameters: trained.parameters()?,
        sequences: sets.train.len(),
        before,
        validation: measured(sets.validation.as_ref())?,
        test: measured(sets.test.as_ref())?,
        rescaled: start.rescaled,
        moved: moved.moved(network)?,
        ..TrainingReport::of(outcome, recipe)
    };
    training::finish(&document, &folder, printer)
}

fn config<'a>(checkpoint: &Path, file: &'a File, data: &'a Data) -> Config<'a> {
    let teacher = file.teacher.as_ref();
    Config {
        checkpoint: checkpoint.display().to_string(),
        dropout: file.dropout,
        rescale: file.rescale,
        teacher: teacher.map(|path| path.display().to_string()),
        data,
        train: &file.train,
        terms: file.terms(),
    }
}

/// How networks are made.
struct Way<'a> {
    file: &'a File,
    beside: &'a Terms,
    device: Place,
}

/// Where a training starts.
struct Beginning {
    network: TrainableNetwork,
    /// The teacher of a distillation.
    taught: Option<TrainableNetwork>,
    rescaled: Vec<Rescaled>,
}

impl Way<'_> {
    fn start(
        &self,
        checkpoint: &Checkpoint,
        full: Option<&Checkpoint>,
        data: &Dataset,
        printer: &Printer,
    ) -> anyhow::Result<Beginning> {
        let device = self.device.open()?;
        let network = |model: &Model, checkpoint: &Checkpoint| {
            let options = TrainableOptions {
                dtype: self.file.train.precision.dtype(),
                dropout: self.file.dropout,
                parameterisation: parameterisation(checkpoint),
                ..TrainableOptions::new(data.length())
            };
            TrainableNetwork::from_model(model, &options, &device)
        };
        let (model, like) = (&checkpoint.model, full.map(|full| &full.model));
        let rescaling = Rescaling {
            mode: self.file.rescale,
            like,
        };
        let (start, rescaled) =
            terms::rescaled(model, &rescaling, data, &self.file.train, printer)?;
        let taught = full.filter(|_| self.beside.distil.is_some());
        if let Some(full) = taught {
            terms::require_alike(model, &full.model, self.beside)?;
        }
        let taught = taught.map(|full| network(&full.model, full));
        Ok(Beginning {
            network: network(&start, checkpoint)?,
            taught: taught.transpose()?,
            rescaled,
        })
    }
}

/// The file, with the options before it.
fn settings(arguments: &Arguments) -> anyhow::Result<File> {
    let mut file = match &arguments.config {
        Some(path) => training::parse(path)?,
        None => File::default(),
    };
    let given = &arguments.settings;
    if let Some(source) = &given.data {
        let data = file.data.get_or_insert_with(|| Data::of(source));
        data.source = source.clone();
    }
    let recipe = &mut file.train;
    if given.epochs.is_some() {
        (recipe.epochs, recipe.steps) = (given.epochs, None);
    }
    recipe.batch = given.batch.unwrap_or(recipe.batch);
    recipe.lr = given.lr.unwrap_or(recipe.lr);
    recipe.lr_dynamics = given.lr_dynamics.unwrap_or(recipe.lr_dynamics);
    recipe.seed = given.seed.unwrap_or(recipe.seed);
    Ok(file)
}

/// DSS layers are trained as what they are; all else as the network chooses.
pub(super) fn parameterisation(checkpoint: &Checkpoint) -> Option<Parameterisation> {
    match checkpoint.declared().dss_version {
        Some(DssVersion::Softmax) => Some(Parameterisation::DssSoftmax),
        Some(DssVersion::Exp | DssVersion::ExpReIm | DssVersion::ExpNoScale) => {
            Some(Parameterisation::DssExp)
        }
        _ => None,
    }
}

fn run_folder(arguments: &Arguments) -> PathBuf {
    let beside = |output: &Path| output.with_extension("run");
    let given = arguments.run.clone();
    given.unwrap_or_else(|| beside(&arguments.output))
}
