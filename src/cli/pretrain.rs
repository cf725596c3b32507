//! `compress-model pretrain`.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use serde::Deserialize;
use serde::Serialize;

use crate::calibrate::Rescale;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::CheckpointError;
use crate::checkpoint::write;
use crate::cli::printer::Printer;
use crate::cli::terms;
use crate::cli::training;
use crate::cli::training::Data;
use crate::cli::training::Document;
use crate::cli::training::measured;
use crate::model::Model;
use crate::nn::Architecture;
use crate::nn::LayerKind;
use crate::nn::Network;
use crate::nn::NetworkOptions;
use crate::nn::random_model;
use crate::train::Place;
use crate::train::Recipe;
use crate::train::Regularise;
use crate::train::Start;
use crate::train::Terms;
use crate::train::Training;
use crate::train::require_suitable;

const EXAMPLES: &str = "\
Examples:
  compress-model pretrain digits.toml --output runs/digits
  compress-model pretrain digits.toml --output runs/digits --resume
  compress-model pretrain digits.toml --output runs/digits-gpu --device cuda:0

CONFIG has the tables [model], [data], [train] and perhaps [regularise]; docs/training.md and
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
    /// Where to train: cpu, cuda or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Place,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Config {
    /// What C and D are multiplied with at the start: `none` or `unit`.
    #[serde(default)]
    rescale: Rescale,
    model: Architecture,
    data: Data,
    #[serde(default)]
    train: Recipe,
    #[serde(skip_serializing_if = "Option::is_none")]
    regularise: Option<Regularise>,
}

impl Config {
    /// Everything that can be told without data; gives the terms of the objective.
    fn check(&self) -> anyhow::Result<Terms> {
        self.train.check()?;
        if self.rescale == Rescale::Match {
            bail!(
                "`rescale` is match, but a network from scratch was not reduced: expected none or \
                 unit"
            );
        }
        let beside = Terms {
            regularise: self.regularise,
            ..Terms::default()
        };
        terms::check(&beside, false)?;
        Ok(beside)
    }
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let config: Config = training::parse(&arguments.config)?;
    let beside = config.check()?;
    training::require_folder(&arguments.output, arguments.resume)?;
    let device = arguments.device.open()?;
    let recipe = &config.train;
    let sets = config.data.read(recipe.seed, printer)?;
    let length = sets.train.length();
    let start = random_model(&config.model, length, recipe.seed)?;
    require_suitable(&start, &sets.train)?;
    let data = (&sets.train, recipe);
    let (start, rescaled) = terms::rescaled(&start, (config.rescale, None), data, printer)?;
    // What cannot be written at the end is better known now.
    checkpoint(&config.model, &start, length)?;
    let options = NetworkOptions {
        dtype: recipe.precision.dtype(),
        dropout: config.model.dropout,
        parameterisation: Some(config.model.layer.parameterisation()),
        ..NetworkOptions::new(length)
    };
    let network = Network::from_model(&start, &options, &device)?;
    let training = Training {
        network: &network,
        data: &sets.train,
        validation: sets.validation.as_ref(),
        recipe,
    };
    training.check()?;
    let text = toml::to_string(&config)?;
    let folder = training::folder(&arguments.output, &text, arguments.resume)?;
    let mut objective = terms::objective(&network, &beside, None, recipe)?;
    let start = Start::of(&network)?;
    let stop = training::stop_on_interrupt()?;
    let outcome = training::train(&training, &mut objective, (&folder, &stop), printer)?;
    let checkpoint = checkpoint(&config.model, &network.to_model()?, length)?;
    let output = folder.path().join("model.safetensors");
    write(&checkpoint, &output)?;
    let measured = |data| measured(&network, data, recipe.batch);
    let document = Document {
        output: output.display().to_string(),
        folder: folder.path().display().to_string(),
        device: arguments.device.to_string(),
        parameters: checkpoint.parameters()?,
        sequences: sets.train.len(),
        validation: measured(sets.validation.as_ref())?,
        test: measured(sets.test.as_ref())?,
        rescaled,
        moved: start.moved(&network)?,
        ..Document::of(outcome, recipe)
    };
    training::finish(&document, &folder, printer)
}

/// Modes that may grow need the layout of DSS-softmax; all others are written as S4D, which more
/// programs read.
pub(super) fn checkpoint(
    architecture: &Architecture,
    model: &Model,
    length: usize,
) -> Result<Checkpoint, CheckpointError> {
    match architecture.layer {
        LayerKind::DssSoftmax => Checkpoint::new_dss_softmax(model, length),
        LayerKind::S4d | LayerKind::DssExp => Checkpoint::new_s4d(model),
    }
}
