//! A training of the smaller model, in the same command.

use std::path::{Path, PathBuf};

use anyhow::bail;
use hankelite::advanced::Targeted;
use hankelite::checkpoint::Checkpoint;
use hankelite::rounding::Storage;

use crate::cli::common::grouped;
use crate::cli::printer::Printer;
use crate::cli::reduce::arguments::Arguments;
use crate::cli::reduce::chosen::Given;
use crate::cli::report::percent;
use crate::cli::retrain::{Options, Retraining, Settings};
use crate::cli::training::{Measured, Sets, TrainingReport, require_folder};

impl Arguments {
    /// The folder of the training: beside what is written.
    fn run_folder(&self) -> PathBuf {
        let beside = self.output.as_ref().or(self.target_ways.image.as_ref());
        beside.map_or(PathBuf::from("run"), |path| path.with_extension("run"))
    }

    /// What would fail after the reduction.
    pub(super) fn require_trainable(&self) -> anyhow::Result<()> {
        if !self.training.train {
            return Ok(());
        }
        self.require_parts()?;
        require_folder(&self.run_folder(), self.training.resume)?;
        self.training.device.unwrap_or_default().open()?;
        Ok(())
    }

    /// Refuses to score the sequences that were trained on.
    fn require_parts(&self) -> anyhow::Result<()> {
        let Some(source) = &self.data else {
            return Ok(());
        };
        let named = source.to_string();
        let same = self.calibrate.as_ref().is_none_or(|own| *own == named);
        if same && source.splits().is_empty() {
            bail!(
                "{named} has no parts, and --train would train on the sequences that are scored: give the \
                 training sequences to --calibrate and others to --data"
            );
        }
        Ok(())
    }
}

/// Trains the smaller model, where that is requested, and puts the new numbers into what is stored.
pub(super) fn trained(
    arguments: &Arguments,
    given: &Given,
    [full, smaller]: [&Checkpoint; 2],
    made: &mut Targeted,
    printer: &Printer,
) -> anyhow::Result<Option<(Checkpoint, TrainingReport)>> {
    if !arguments.training.train {
        return Ok(None);
    }
    let name = name_of(&arguments.input.checkpoint, made);
    let (trained, report) = train(arguments, given, [full, smaller], name, printer)?;
    made.storage = Storage::chosen(&trained.model, &made.plan.storage())?;
    made.model = trained.model.clone();
    Ok(Some((trained, report)))
}

fn train(
    arguments: &Arguments,
    given: &Given,
    [full, smaller]: [&Checkpoint; 2],
    name: String,
    printer: &Printer,
) -> anyhow::Result<(Checkpoint, TrainingReport)> {
    let training = &arguments.training;
    let seed = given.sequences.seed();
    let mut options = Options::default();
    options.data = Some(given.calibrate.clone());
    options.teacher = Some(arguments.input.checkpoint.clone());
    options.epochs = training.epochs;
    options.seed = Some(seed);
    let mut settings = Settings::read(None, &options)?;
    let sets = Sets {
        // The smaller model is scored on --data, as it is stored.
        test: None,
        ..settings.data()?.read(seed, printer)?
    };
    settings.settle(&sets);
    let place = arguments.run_folder();
    let retraining = Retraining {
        settings: &settings,
        checkpoint: smaller,
        name,
        full: Some(full),
        sets: &sets,
        place: &place,
        resume: training.resume,
        device: training.device.unwrap_or_default(),
        printer,
    };
    let output = arguments.output.as_deref().unwrap_or(Path::new(""));
    let (trained, report, folder) = retraining.run(output, |_| Ok(()))?;
    report.keep(&folder)?;
    Ok((trained, report))
}

/// By which a run tells its start from others: the source, the bytes, and the states of each layer.
fn name_of(path: &Path, made: &Targeted) -> String {
    let layers = made.plan.orders.iter();
    let states: Vec<usize> = layers.map(|orders| orders.iter().sum()).collect();
    let bytes = made.size.total();
    format!("{}, {bytes} bytes, {states:?} states", path.display())
}

/// "2,160 steps on 8,100 sequences in 232 s, with the full model as the teacher; the best after epoch 12"
pub(super) fn in_words(report: &TrainingReport) -> String {
    let best = match report.best {
        Some(best) if best.epoch == 0 => {
            "; no epoch is better, and the model stays as it was".to_string()
        }
        Some(best) => format!("; the best after epoch {}", best.epoch),
        None => String::new(),
    };
    format!(
        "{} steps on {} sequences in {:.0} s, with the full model as the teacher{best}",
        grouped(report.steps as usize),
        grouped(report.sequences),
        report.seconds
    )
}

/// What the training came to, in two lines.
pub(super) fn show(report: &TrainingReport, printer: &Printer) -> anyhow::Result<()> {
    printer.line(&format!("trained    {}", in_words(report)))?;
    let (Some(before), Some(after)) = (&report.before, &report.validation) else {
        return Ok(());
    };
    let (name, of): (_, fn(&Measured) -> String) = match (before.accuracy, before.agreement) {
        (Some(_), _) => ("accuracy", |measured| rate(measured.accuracy)),
        (None, Some(_)) => ("the same answer as the teacher", |measured| {
            rate(measured.agreement)
        }),
        (None, None) => ("loss", |measured| format!("{:.4}", measured.loss)),
    };
    printer.line(&format!(
        "           {name} on training sequences held out: {} → {}",
        of(before),
        of(after)
    ))
}

fn rate(share: Option<f64>) -> String {
    share.map_or("-".to_string(), percent)
}
