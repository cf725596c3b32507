//! `compress-model pretrain`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use hankelite::checkpoint::Checkpoint;
use hankelite::model::Model;
use hankelite::write;
use hankelite_train::nn::{
    Architecture, LayerKind, NetworkError, SequenceModel, TrainableNetwork, TrainableOptions,
    random_model,
};
use hankelite_train::{
    Folder, Objective, Outcome, Place, Recipe, RecipeError, Reducing, ReducingTraining, Regularise,
    Start, Terms, Training, require_suitable,
};
#[cfg(feature = "research")]
use hankelite_train::{
    Task,
    nn::baseline::{BaselineArchitecture, BaselineNetwork},
    require_fitting,
};
use serde::{Deserialize, Serialize};

use crate::cli::design::Design;
#[cfg(feature = "research")]
use crate::cli::design::takes;
use crate::cli::printer::Printer;
use crate::cli::terms::Rescale;
use crate::cli::terms::Rescaling;
use crate::cli::training::{Data, Sets, TrainingReport, measured};
use crate::cli::{terms, training};

const EXAMPLES: &str = "\
Examples:
  compress-model pretrain digits.toml --output runs/digits
  compress-model pretrain digits.toml --output runs/digits --resume
  compress-model pretrain digits.toml --output runs/digits-gpu --device cuda:0

CONFIG has the tables [model], [data], [train] and perhaps [regularise] and [reduce], by which the
layers become smaller while they are trained; docs/training.md and
docs/pipeline.md have all keys with defaults and ranges. Ctrl-C ends the step and the run, with exit
code 130; --resume goes on, to the same bytes.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The settings: a TOML file.
    #[arg(value_name = "CONFIG")]
    config: PathBuf,
    /// The folder of the run; the model goes into its file model.safetensors.
    #[arg(long, short, value_name = "DIR")]
    output: PathBuf,
    /// Go on with the run in that folder.
    #[arg(long)]
    resume: bool,
    /// Where to train: cpu, cuda or cuda:N; cuda needs a program built with the feature `cuda`.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Place,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// What C and D are multiplied with at the start: `none` or `unit`.
    #[serde(default)]
    rescale: Rescale,
    model: Design,
    data: Data,
    #[serde(default)]
    train: Recipe,
    #[serde(skip_serializing_if = "Option::is_none")]
    regularise: Option<Regularise>,
    /// Cuts on the way.
    #[serde(skip_serializing_if = "Option::is_none")]
    reduce: Option<Reducing>,
}

impl Config {
    /// Everything that can be checked without data; gives the terms of the objective.
    fn check(&self) -> anyhow::Result<Terms> {
        self.train.check()?;
        if self.rescale == Rescale::Match {
            bail!(
                "`rescale` is match, but a network from scratch was not reduced: expected none or \
                 unit"
            );
        }
        self.model.check()?;
        let measured = match &self.model {
            Design::StateSpace(architecture) => architecture.measurements.is_some(),
            #[cfg(feature = "research")]
            Design::BaselineNetwork(architecture) => {
                let layer = architecture.layer.name();
                if self.regularise.is_some() {
                    bail!("[regularise] is for state space layers, the layers are {layer}");
                }
                true
            }
        };
        if measured && self.rescale != Rescale::None {
            bail!("`rescale` is for state space layers behind a plain encoder, expected none");
        }
        self.check_reduce()?;
        let beside = Terms {
            regularise: self.regularise,
            ..Terms::default()
        };
        terms::check(&beside, false)?;
        Ok(beside)
    }

    /// Whether the layers can become smaller on the way, where that is requested.
    fn check_reduce(&self) -> anyhow::Result<()> {
        let Some(reduce) = &self.reduce else {
            return Ok(());
        };
        reduce.check()?;
        match &self.model {
            Design::StateSpace(architecture) => {
                if architecture.measurements.is_some() {
                    bail!("[reduce] is for networks without `measurements`");
                }
                Ok(())
            }
            #[cfg(feature = "research")]
            Design::BaselineNetwork(architecture) => {
                let layer = architecture.layer.name();
                bail!("[reduce] is for state space layers, the layers are {layer}")
            }
        }
    }
}

/// A run that is about to start.
struct Run<'a> {
    arguments: &'a Arguments,
    config: &'a Config,
    beside: &'a Terms,
    sets: &'a Sets,
    printer: &'a Printer,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let config: Config = training::parse(&arguments.config)?;
    let beside = config.check()?;
    training::require_folder(&arguments.output, arguments.resume)?;
    // Whether the device is there is known before data are read.
    arguments.device.open()?;
    let sets = config.data.read(config.train.seed, printer)?;
    let run = Run {
        arguments,
        config: &config,
        beside: &beside,
        sets: &sets,
        printer,
    };
    match &config.model {
        Design::StateSpace(architecture) => run.state_space(architecture),
        #[cfg(feature = "research")]
        Design::BaselineNetwork(architecture) => run.baseline(architecture),
    }
}

/// The note where a measurement was folded into the encoder.
fn folded(rows: usize, inputs: usize) -> String {
    format!(
        "the encoder that is written is the product of the trained one and its {rows} measurements \
         of {inputs} numbers; retraining it no longer holds the rank {rows}"
    )
}

impl Run<'_> {
    fn state_space(&self, architecture: &Architecture) -> anyhow::Result<()> {
        let (sets, recipe) = (self.sets, &self.config.train);
        let length = sets.train.length();
        let start = random_model(architecture, length, recipe.seed)?;
        require_suitable(&start, &sets.train)?;
        let rescaling = Rescaling {
            mode: self.config.rescale,
            like: None,
        };
        let rescaled = terms::rescaled(&start, &rescaling, &sets.train, recipe, self.printer)?;
        // What cannot be written at the end is better known now.
        checkpoint(architecture, &rescaled.model, length)?;
        let options = TrainableOptions {
            dtype: recipe.precision.dtype(),
            dropout: architecture.dropout,
            parameterisation: Some(architecture.layer.parameterisation()),
            ..TrainableOptions::new(length)
        };
        let device = self.arguments.device.open()?;
        let made = |model: &Model| TrainableNetwork::from_model(model, &options, &device);
        let network = made(&rescaled.model)?.measured(architecture.measurements, recipe.seed)?;
        let mut objective = terms::objective(&network, self.beside, None, recipe)?;
        let rows = architecture.measurements;
        let notes = rows.map(|rows| folded(rows, architecture.inputs.unwrap_or(0)));
        let beginning = TrainingReport {
            rescaled: rescaled.records,
            notes: notes.into_iter().collect(),
            ..TrainingReport::default()
        };
        let written = |network: &TrainableNetwork, output: &Path| {
            let checkpoint = checkpoint(architecture, &network.to_model()?, length)?;
            write(&checkpoint, output)?;
            Ok(checkpoint.parameters()?)
        };
        if let Some(settings) = self.config.reduce {
            let objective = &mut objective;
            let cutting = Cutting {
                settings,
                network: &made,
            };
            return self.reduced(network, cutting, objective, (beginning, &written));
        }
        self.trained(&network, &mut objective, beginning, |output| {
            written(&network, output)
        })
    }

    /// As [`Run::trained`], for a network that becomes smaller on the way.
    fn reduced(
        &self,
        network: TrainableNetwork,
        cutting: Cutting<'_>,
        objective: &mut dyn Objective,
        (beginning, written): (TrainingReport, &Written<'_>),
    ) -> anyhow::Result<()> {
        let (sets, recipe) = (self.sets, &self.config.train);
        let Some(validation) = &sets.validation else {
            return Err(RecipeError::NoValidation { key: "reduce" }.into());
        };
        let training = ReducingTraining {
            settings: cutting.settings,
            data: &sets.train,
            validation,
            recipe,
            network: cutting.network,
        };
        training.check(&network, objective)?;
        let folder = self.folder()?;
        let stop = training::stop_on_interrupt(self.printer)?;
        let with = (&stop, self.printer);
        let (network, outcome) =
            training::train_reducing(&training, network, objective, &folder, with)?;
        let ended = Ended {
            outcome,
            moved: BTreeMap::new(),
            folder: &folder,
        };
        self.report(&network, ended, beginning, |output| {
            written(&network, output)
        })
    }

    #[cfg(feature = "research")]
    fn baseline(&self, architecture: &BaselineArchitecture) -> anyhow::Result<()> {
        let recipe = &self.config.train;
        require_fitting(takes(architecture), architecture.outputs, &self.sets.train)?;
        let (dtype, device) = (recipe.precision.dtype(), self.arguments.device.open()?);
        let network = BaselineNetwork::random(architecture, recipe.seed, dtype, &device)?;
        let mut objective = Task {
            label_smoothing: recipe.label_smoothing,
        };
        self.trained(
            &network,
            &mut objective,
            TrainingReport::default(),
            |output| {
                network.write(output)?;
                Ok(network.numbers())
            },
        )
    }

    /// Trains, writes by `write`, which gives the numbers written, and reports.
    fn trained(
        &self,
        network: &dyn SequenceModel,
        objective: &mut dyn Objective,
        beginning: TrainingReport,
        write: impl FnOnce(&Path) -> anyhow::Result<usize>,
    ) -> anyhow::Result<()> {
        let training = self.training(network);
        training.check(objective)?;
        let folder = self.folder()?;
        let start = Start::of(network)?;
        let stop = training::stop_on_interrupt(self.printer)?;
        let outcome = training::train(&training, objective, &folder, &stop, self.printer)?;
        let ended = Ended {
            outcome,
            moved: start.moved(network)?,
            folder: &folder,
        };
        self.report(network, ended, beginning, write)
    }

    fn training<'b>(&'b self, network: &'b dyn SequenceModel) -> Training<'b> {
        Training {
            network,
            data: &self.sets.train,
            validation: self.sets.validation.as_ref(),
            recipe: &self.config.train,
        }
    }

    fn folder(&self) -> anyhow::Result<Folder> {
        let text = toml::to_string(self.config)?;
        training::folder(&self.arguments.output, &text, self.arguments.resume)
    }

    /// Writes the network and reports.
    fn report(
        &self,
        network: &dyn SequenceModel,
        ended: Ended<'_>,
        beginning: TrainingReport,
        write: impl FnOnce(&Path) -> anyhow::Result<usize>,
    ) -> anyhow::Result<()> {
        let (sets, recipe, folder) = (self.sets, &self.config.train, ended.folder);
        let output = folder.path().join("model.safetensors");
        let parameters = write(&output)?;
        for note in &beginning.notes {
            self.printer.note("note", note);
        }
        let measured = |data| measured(network, data, recipe.batch);
        let document = TrainingReport {
            output: output.display().to_string(),
            folder: folder.path().display().to_string(),
            device: self.arguments.device.to_string(),
            parameters,
            sequences: sets.train.len(),
            validation: measured(sets.validation.as_ref())?,
            test: measured(sets.test.as_ref())?,
            moved: ended.moved,
            rescaled: beginning.rescaled,
            notes: beginning.notes,
            ..TrainingReport::of(ended.outcome, recipe)
        };
        training::finish(&document, folder, self.printer)
    }
}

/// Writes a network into a file; gives the numbers written.
type Written<'a> = dyn Fn(&TrainableNetwork, &Path) -> anyhow::Result<usize> + 'a;

/// How a network becomes smaller on the way.
struct Cutting<'a> {
    settings: Reducing,
    /// Makes a network of a smaller model.
    network: &'a dyn Fn(&Model) -> Result<TrainableNetwork, NetworkError>,
}

/// A training that is over.
struct Ended<'a> {
    outcome: Outcome,
    /// How far each group of parameters has moved; empty where the network is another one now.
    moved: BTreeMap<String, f64>,
    folder: &'a Folder,
}

/// Modes that may grow need the layout of DSS-softmax; all others are written as S4D, which more
/// programs read.
pub(super) fn checkpoint(
    architecture: &Architecture,
    model: &Model,
    length: usize,
) -> anyhow::Result<Checkpoint> {
    Ok(match architecture.layer {
        LayerKind::DssSoftmax => Checkpoint::new_dss_softmax(model, length)?,
        LayerKind::S4d | LayerKind::DssExp => Checkpoint::new_s4d(model)?,
    })
}
