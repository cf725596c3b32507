//! `compress-model retrain`.

mod settings;

use std::path::{Path, PathBuf};

use clap::Args;
use hankelite::advanced::Rescaled;
use hankelite::checkpoint::{Checkpoint, DssVersion};
use hankelite::model::Model;
use hankelite::write;
use hankelite_archive::check_output;
use hankelite_data::Dataset;
use hankelite_train::nn::{HeldMaps, Parameterisation, TrainableNetwork, TrainableOptions};
use hankelite_train::{
    Best, Composed, Folder, Outcome, Place, Recipe, Start, Stop, Terms, Training, TrialOutcome,
    require_suitable,
};
pub(super) use settings::{Options, Settings};

use crate::cli::common::{Declarations, Input, open, require_length};
use crate::cli::printer::Printer;
use crate::cli::terms::Rescaling;
use crate::cli::training::{Sets, TrainingReport, measured_by};
use crate::cli::{terms, training};

const EXAMPLES: &str = "\
Examples:
  compress-model retrain small.pth --teacher full.pth --data mnist:data/mnist --output better.pth
  compress-model retrain small.pth --data mnist:data/mnist --epochs 5 --output better.pth
  compress-model retrain small.pth --config retrain.toml --output better.pth --resume

With --teacher the network learns to answer as the unreduced one, layer by layer too; labels are
then not needed, and count alone at the end where there are some. Without settings the learning
rates are found by short trials on held-out sequences, and what is written is the best of all
epochs and the start.

FILE has the tables [data], [train] and perhaps [trial], [maps], [regularise], [trust] and
[distil]; options go before it. docs/training.md and docs/pipeline.md have all keys with defaults and ranges. The new
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
    /// Where to train: cpu, cuda or cuda:N; cuda needs a program built with the feature `cuda`.
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Place,
    #[command(flatten)]
    settings: Options,
    #[command(flatten)]
    declarations: Declarations,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let path = &arguments.input.checkpoint;
    check_output(&arguments.output, &[path])?;
    let mut settings = Settings::read(arguments.config.as_deref(), &arguments.settings)?;
    let place = run_folder(arguments);
    training::require_folder(&place, arguments.resume)?;
    // Whether the device is there is known before data are read.
    arguments.device.open()?;
    let declared = arguments.declarations.declared();
    let checkpoint = open(path, &declared, printer)?;
    let full = settings.file.teacher.as_ref();
    let full = full
        .map(|path| open(path, &declared, printer))
        .transpose()?;
    let sets = settings.data()?.read(settings.file.train.seed, printer)?;
    settings.settle(&sets);
    if let Some(note) = settings.note(&checkpoint) {
        printer.note("note", &note);
    }
    let retraining = Retraining {
        settings: &settings,
        checkpoint: &checkpoint,
        name: path.display().to_string(),
        full: full.as_ref(),
        sets: &sets,
        place: &place,
        resume: arguments.resume,
        device: arguments.device,
        printer,
    };
    let output = &arguments.output;
    let written = |trained: &Checkpoint| {
        write(trained, output)?;
        Ok(())
    };
    let (_, document, folder) = retraining.run(output, written)?;
    training::finish(&document, &folder, printer)
}

/// All that decides what a training comes to, and where it is kept.
pub(super) struct Retraining<'a> {
    pub(super) settings: &'a Settings,
    pub(super) checkpoint: &'a Checkpoint,
    /// By which the run knows the checkpoint.
    pub(super) name: String,
    /// The teacher.
    pub(super) full: Option<&'a Checkpoint>,
    pub(super) sets: &'a Sets,
    /// The folder of the run.
    pub(super) place: &'a Path,
    pub(super) resume: bool,
    pub(super) device: Place,
    pub(super) printer: &'a Printer,
}

impl Retraining<'_> {
    /// Trains and hands the checkpoint to `write` before it is measured. `output` is where it goes, for the
    /// record.
    pub(super) fn run(
        &self,
        output: &Path,
        write: impl FnOnce(&Checkpoint) -> anyhow::Result<()>,
    ) -> anyhow::Result<(Checkpoint, TrainingReport, Folder)> {
        let (settings, checkpoint, sets) = (self.settings, self.checkpoint, self.sets);
        require_suitable(&checkpoint.model, &sets.train)?;
        require_length(checkpoint, sets.train.length())?;
        terms::require_filters(&checkpoint.model, &settings.terms())?;
        let way = Way {
            settings,
            beside: &settings.terms(),
            device: self.device,
        };
        let start = way.start(checkpoint, self.full, &sets.train, self.printer)?;
        let recipe = &settings.file.train;
        let mut objective =
            terms::objective(&start.network, way.beside, start.taught.as_ref(), recipe)?;
        let training = Training {
            network: &start.network,
            data: &sets.train,
            validation: sets.validation.as_ref(),
            recipe,
        };
        training.check(&mut objective)?;
        let folder = training::folder(self.place, &settings.text(&self.name)?, self.resume)?;
        let run = Run {
            settings,
            training,
            sets,
            folder,
            printer: self.printer,
        };
        let beginning = TrainingReport {
            output: output.display().to_string(),
            device: self.device.to_string(),
            rescaled: start.rescaled,
            ..TrainingReport::default()
        };
        let (trained, document) = run.run(&mut objective, beginning, || {
            let mut trained = checkpoint.with_model(start.network.to_model()?);
            if let Some(storage) = settings.storage(checkpoint) {
                trained = trained.with_storage(storage);
            }
            write(&trained)?;
            Ok(trained)
        })?;
        Ok((trained, document, run.folder))
    }
}

/// A run that is about to start or to go on.
struct Run<'a> {
    settings: &'a Settings,
    training: Training<'a>,
    sets: &'a Sets,
    folder: Folder,
    printer: &'a Printer,
}

impl Run<'_> {
    /// Tries rates, trains, writes by `write`, which gives what was written, and measures.
    fn run(
        &self,
        objective: &mut Composed<'_>,
        beginning: TrainingReport,
        write: impl FnOnce() -> anyhow::Result<Checkpoint>,
    ) -> anyhow::Result<(Checkpoint, TrainingReport)> {
        let (sets, network) = (self.sets, self.training.network);
        let batch = self.training.recipe.batch;
        let before = measured_by(objective, network, sets.validation.as_ref(), batch)?;
        let moved = Start::of(network)?;
        let stop = training::stop_on_interrupt(self.printer)?;
        let trial = self.tried(objective, &stop)?;
        let recipe = match &trial {
            Some(trial) => trial.apply(self.training.recipe),
            None => self.training.recipe.clone(),
        };
        let outcome = self.trained(objective, &recipe, &stop)?;
        let notes = note(outcome.best);
        for note in &notes {
            self.printer.note("note", note);
        }
        let written = write()?;
        let mut measured = |data| measured_by(objective, network, data, batch);
        let document = TrainingReport {
            output: beginning.output,
            folder: self.folder.path().display().to_string(),
            device: beginning.device,
            parameters: written.parameters()?,
            sequences: sets.train.len(),
            before,
            validation: measured(sets.validation.as_ref())?,
            test: measured(sets.test.as_ref())?,
            rescaled: beginning.rescaled,
            notes,
            moved: moved.moved(network)?,
            trial,
            ..TrainingReport::of(outcome, &recipe)
        };
        Ok((written, document))
    }

    fn tried(
        &self,
        objective: &mut Composed<'_>,
        stop: &Stop,
    ) -> anyhow::Result<Option<TrialOutcome>> {
        let Some(trial) = &self.settings.file.trial else {
            return Ok(None);
        };
        let (training, folder) = (&self.training, &self.folder);
        training::tried(trial, training, objective, folder, (stop, self.printer))
    }

    fn trained(
        &self,
        objective: &mut Composed<'_>,
        recipe: &Recipe,
        stop: &Stop,
    ) -> anyhow::Result<Outcome> {
        let training = Training {
            recipe,
            ..self.training
        };
        training::train(&training, objective, &self.folder, stop, self.printer)
    }
}

/// What is to be known where the start is the best there is.
fn note(best: Option<Best>) -> Vec<String> {
    let start = best.is_some_and(|best| best.epoch == 0);
    let text = "the training brought nothing: no epoch was better than the start on the held-out \
                sequences by more than noise, and the start is written";
    start.then(|| text.to_string()).into_iter().collect()
}

/// How networks are made.
struct Way<'a> {
    settings: &'a Settings,
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
        let network = |model: &Model, checkpoint: &Checkpoint, maps: HeldMaps| {
            let options = TrainableOptions {
                dtype: self.settings.file.train.precision.dtype(),
                dropout: self.settings.file.dropout,
                parameterisation: parameterisation(checkpoint),
                scaled_poles: self.settings.file.scaled_poles,
                maps,
                ..TrainableOptions::new(data.length())
            };
            TrainableNetwork::from_model(model, &options, &device)
        };
        let (model, like) = (&checkpoint.model, full.map(|full| &full.model));
        let rescaling = Rescaling {
            mode: self.settings.file.rescale,
            like,
        };
        let rescaled =
            terms::rescaled(model, &rescaling, data, &self.settings.file.train, printer)?;
        let taught = full.filter(|_| self.beside.distil.is_some());
        if let Some(full) = taught {
            terms::require_alike(model, &full.model, self.beside)?;
        }
        let taught = taught.map(|full| network(&full.model, full, HeldMaps::default()));
        Ok(Beginning {
            network: network(&rescaled.model, checkpoint, self.settings.held(checkpoint))?,
            taught: taught.transpose()?,
            rescaled: rescaled.records,
        })
    }
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
