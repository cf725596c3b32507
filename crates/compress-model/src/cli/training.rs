//! What `pretrain` and `retrain` share: data with a validation part, the progress bar, Ctrl-C, and
//! what is reported at the end.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use hankelite::advanced::Rescaled;
use hankelite_data::{Dataset, Source, Split};
use hankelite_train::nn::{SequenceModel, TrainableNetwork};
use hankelite_train::{
    Best, Cut, Entry, Folder, Monitor, Objective, Observer, Outcome, Recipe, ReducingTraining,
    Step, Stop, Tally, Task, Training, Trial, TrialOutcome, Tried, evaluate_by, psnr,
};
use indicatif::ProgressBar;
use serde::{Deserialize, Serialize};

use crate::cli::common::grouped;
use crate::cli::printer::{Printer, versioned};

/// The share that is held out by default.
const HOLD_OUT: f64 = 0.1;

/// The table `[data]`.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Data {
    /// Where the sequences come from; its part `train`, where it has parts.
    pub(super) source: String,
    /// The part that is validated on, `validation` or `test`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) validation: Option<Split>,
    /// The share of the training sequences that is held out for validation instead.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) hold_out: Option<f64>,
}

/// The data of a training.
pub(super) struct Sets {
    pub(super) train: Dataset,
    pub(super) validation: Option<Dataset>,
    /// The test part, where the source has one that nothing was chosen on.
    pub(super) test: Option<Dataset>,
}

impl Data {
    /// A source with the default validation part.
    pub(super) fn of(source: &str) -> Self {
        Self {
            source: source.to_string(),
            validation: None,
            hold_out: None,
        }
    }

    /// Reads the sequences and holds the validation part out.
    pub(super) fn read(&self, seed: u64, printer: &Printer) -> anyhow::Result<Sets> {
        let source: Source = self.source.parse()?;
        let splits = source.splits();
        let whole = Dataset::read(
            &source,
            splits.contains(&Split::Train).then_some(Split::Train),
        )?;
        for note in whole.notes() {
            printer.note("note", note);
        }
        let part = self.validation;
        let (train, validation) = match (part, self.hold_out) {
            (Some(Split::Train), _) => {
                bail!("`validation` is train, expected validation or test")
            }
            (Some(_), Some(_)) => {
                bail!("`validation` and `hold_out` are both given, expected one of them")
            }
            (Some(part), None) => (whole, Some(Dataset::read(&source, Some(part))?)),
            (None, share) => held_out(whole, share.unwrap_or(HOLD_OUT), seed)?,
        };
        let test = splits.contains(&Split::Test) && part != Some(Split::Test);
        let test = match test {
            true => Some(Dataset::read(&source, Some(Split::Test))?),
            false => None,
        };
        Ok(Sets {
            train,
            validation,
            test,
        })
    }
}

fn held_out(whole: Dataset, share: f64, seed: u64) -> anyhow::Result<(Dataset, Option<Dataset>)> {
    if !(0.0..=0.9).contains(&share) {
        bail!("`hold_out` is {share}, expected 0 to 0.9");
    }
    let count = (share * whole.len() as f64).round() as usize;
    if count == 0 {
        return Ok((whole, None));
    }
    let (train, validation) = whole.hold_out(count, seed)?;
    Ok((train, Some(validation)))
}

/// A text with every key of a configuration, and an error that names the place.
pub(super) fn parse<T: serde::de::DeserializeOwned>(path: &Path) -> anyhow::Result<T> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    parsed(path, &text)
}

/// The same for the text of a file.
pub(super) fn parsed<T: serde::de::DeserializeOwned>(path: &Path, text: &str) -> anyhow::Result<T> {
    toml::from_str(text)
        .map_err(|error| anyhow::anyhow!("{}: {}", path.display(), error.to_string().trim_end()))
}

/// Whether a run may start, or go on, in a folder: for a check before data are read.
pub(super) fn require_folder(path: &Path, resume: bool) -> anyhow::Result<()> {
    match resume {
        true => Folder::require_free(path)?,
        false => Folder::require_new(path)?,
    }
    Ok(())
}

/// The folder of a new run, or of one that goes on.
pub(super) fn folder(path: &Path, config: &str, resume: bool) -> anyhow::Result<Folder> {
    Ok(match resume {
        true => Folder::resume(path, config)?,
        false => Folder::create(path, config)?,
    })
}

/// The run was requested to stop before its end.
#[derive(Debug, thiserror::Error)]
#[error("stopped behind step {step}; everything is kept in {}", folder.display())]
pub(super) struct Interrupted {
    step: u64,
    folder: PathBuf,
}

/// What the step at hand may still take after Ctrl-C.
const GRACE: Duration = Duration::from_millis(500);

/// Ctrl-C ends the training after the current step. Where that takes long, or a validation is under
/// way, the program ends without it: as every file is whole at any time, nothing is lost but what
/// came behind the last snapshot. To be called once.
pub(super) fn stop_on_interrupt(printer: &Printer) -> anyhow::Result<Stop> {
    let stop = Stop::default();
    let (flag, printer) = (stop.clone(), *printer);
    ctrlc::set_handler(move || {
        flag.request();
        std::thread::sleep(GRACE);
        printer.note(
            "stopped",
            "amid a step; --resume goes on from the last snapshot",
        );
        std::process::exit(super::INTERRUPTED.into());
    })?;
    Ok(stop)
}

/// Trains to the end, with a bar on stderr.
pub(super) fn train(
    training: &Training<'_>,
    objective: &mut dyn Objective,
    folder: &Folder,
    stop: &Stop,
    printer: &Printer,
) -> anyhow::Result<Outcome> {
    let mut shown = Progress::new(printer, TRAINING);
    let outcome = training.run(objective, Some(folder), &mut shown, stop);
    shown.clear();
    ended(outcome?, folder)
}

/// The same for a network that becomes smaller on the way.
pub(super) fn train_reducing(
    training: &ReducingTraining<'_>,
    start: TrainableNetwork,
    objective: &mut dyn Objective,
    folder: &Folder,
    (stop, printer): (&Stop, &Printer),
) -> anyhow::Result<(TrainableNetwork, Outcome)> {
    let mut shown = Progress::new(printer, TRAINING);
    let outcome = training.run(start, objective, Some(folder), (&mut shown, stop));
    shown.clear();
    let (network, outcome) = outcome?;
    Ok((network, ended(outcome, folder)?))
}

fn ended(outcome: Outcome, folder: &Folder) -> anyhow::Result<Outcome> {
    if outcome.end.is_none() {
        let (step, folder) = (outcome.steps, folder.path().to_path_buf());
        return Err(Interrupted { step, folder }.into());
    }
    Ok(outcome)
}

/// The file in the folder of a run that keeps what the trial of rates came to.
const TRIAL: &str = "trial.json";

/// Tries the rates, or reads what a trial of this run came to before; `None` where nothing is tried.
pub(super) fn tried(
    trial: &Trial,
    training: &Training<'_>,
    objective: &mut dyn Objective,
    folder: &Folder,
    (stop, printer): (&Stop, &Printer),
) -> anyhow::Result<Option<TrialOutcome>> {
    let place = folder.path().join(TRIAL);
    if place.is_file() {
        let text = std::fs::read_to_string(&place).with_context(|| place.display().to_string())?;
        let found = serde_json::from_str(&text).with_context(|| place.display().to_string())?;
        return Ok(Some(found));
    }
    let mut shown = Progress::new(printer, "trying rates");
    let outcome = trial.run(training, objective, &mut shown, stop);
    shown.clear();
    let outcome = outcome?;
    if stop.requested() {
        let (step, folder) = (0, folder.path().to_path_buf());
        return Err(Interrupted { step, folder }.into());
    }
    if let Some(outcome) = &outcome {
        folder.write(TRIAL, &serde_json::to_vec_pretty(outcome)?)?;
        if outcome.start.is_some() {
            let value = held_out_value(outcome.start, outcome.monitor);
            printer.message(&format!("before training: {value}"));
        }
        for tried in &outcome.tried {
            printer.message(&tried_line(tried, outcome));
        }
    }
    Ok(outcome)
}

/// What decides about rates, in words.
fn held_out_value(value: Option<f64>, monitor: Monitor) -> String {
    match (value, monitor) {
        (None, _) => "diverged".to_string(),
        (Some(value), Monitor::Teacher) => format!("held-out distance from the teacher {value:.5}"),
        (Some(value), Monitor::Accuracy) => format!("held-out accuracy {:.2} %", 100.0 * value),
        (Some(value), _) => format!("held-out loss {value:.5}"),
    }
}

/// A rate that was tried, in one line.
fn tried_line(tried: &Tried, outcome: &TrialOutcome) -> String {
    let value = held_out_value(tried.value, outcome.monitor);
    let chosen = if tried.factor == outcome.factor {
        ", taken"
    } else {
        ""
    };
    let Tried {
        lr, lr_dynamics, ..
    } = tried;
    format!(
        "rates {lr} and {lr_dynamics}, {} steps: {value}{chosen}",
        outcome.steps
    )
}

/// What the bar of a training shows in front.
const TRAINING: &str = "training";

/// Draws the bar, and a line for each epoch of a training proper.
struct Progress<'a> {
    printer: &'a Printer,
    what: &'static str,
    bar: Option<ProgressBar>,
    start: Instant,
    examples: usize,
}

impl<'a> Progress<'a> {
    fn new(printer: &'a Printer, what: &'static str) -> Self {
        Self {
            printer,
            what,
            bar: None,
            start: Instant::now(),
            examples: 0,
        }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

impl Observer for Progress<'_> {
    fn start(&mut self, step: u64, total: u64) {
        self.clear();
        let bar = self.printer.progress(total as usize, self.what);
        bar.set_position(step);
        bar.reset_eta();
        self.start = Instant::now();
        self.bar = Some(bar);
    }

    fn step(&mut self, step: &Step) {
        let Some(bar) = &self.bar else { return };
        self.examples += step.examples;
        let rate = self.examples as f64 / self.start.elapsed().as_secs_f64();
        let right = step
            .accuracy
            .map_or(String::new(), |share| format!(" ({:.1} %)", 100.0 * share));
        bar.set_message(format!(
            "epoch {}, loss {:.4}{right}, {rate:.0} examples/s",
            step.epoch, step.loss
        ));
        bar.set_position(step.step);
    }

    fn epoch(&mut self, entry: &Entry) {
        let Some(bar) = self.bar.as_ref().filter(|_| self.what == TRAINING) else {
            return;
        };
        let text = line(entry);
        bar.suspend(|| self.printer.message(&text));
    }

    fn cut(&mut self, cut: &Cut) {
        self.clear();
        self.printer.message(&cut_line(cut));
    }
}

/// A cut in one line.
fn cut_line(cut: &Cut) -> String {
    let Cut {
        orders_before: before,
        orders,
        loss_before,
        loss_behind,
        ..
    } = cut;
    let result = match cut.kept {
        true => "kept",
        false => "taken back",
    };
    format!(
        "cut behind epoch {}: {before:?} states to {orders:?}, validation {loss_before:.4} to \
         {loss_behind:.4}, {result}",
        cut.epoch
    )
}

/// An epoch in one line.
fn line(entry: &Entry) -> String {
    let part = |loss: f64, accuracy: Option<f64>| match accuracy {
        Some(accuracy) => format!("{loss:.4} ({:.2} %)", 100.0 * accuracy),
        None => format!("{loss:.5}"),
    };
    let trained = part(entry.train_loss, entry.train_accuracy);
    let mut text = format!("epoch {}: loss {trained}", entry.epoch);
    if let Some(loss) = entry.validation_loss {
        let validated = part(loss, entry.validation_accuracy);
        text = format!("{text}, validation {validated}");
        if let Some(distance) = entry.validation_distance {
            text.push_str(&format!(", {distance:.5} from the teacher"));
        }
        if entry.best {
            text.push_str(", the best so far");
        }
    }
    text
}

/// Loss and accuracy on a data set.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(super) struct Measured {
    pub(super) loss: f64,
    /// The share of right answers, by labels.
    pub(super) accuracy: Option<f64>,
    /// Without labels: the share of answers that are the teacher's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) agreement: Option<f64>,
    pub(super) answers: u64,
    /// The mean distance of the outputs from the teacher's, where one was followed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) distance: Option<f64>,
    /// In dB, of networks that are to give images back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) psnr: Option<f64>,
}

impl From<Tally> for Measured {
    fn from(tally: Tally) -> Self {
        let share = tally.accuracy();
        let by_teacher = tally.is_by_teacher();
        Self {
            loss: tally.loss(),
            accuracy: share.filter(|_| !by_teacher),
            agreement: share.filter(|_| by_teacher),
            answers: tally.answers(),
            distance: None,
            psnr: None,
        }
    }
}

impl std::fmt::Display for Measured {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.accuracy, self.agreement) {
            (Some(share), _) => {
                write!(f, "loss {:.4}, accuracy {:.2} %", self.loss, 100.0 * share)
            }
            (None, Some(share)) => {
                let share = 100.0 * share;
                write!(
                    f,
                    "{share:.2} % of the answers are the teacher's, loss {:.4}",
                    self.loss
                )
            }
            (None, None) => write!(f, "loss {:.5}", self.loss),
        }?;
        if let Some(distance) = self.distance {
            write!(f, ", {distance:.5} from the teacher")?;
        }
        match self.psnr {
            Some(psnr) => write!(f, ", PSNR {psnr:.2} dB"),
            None => Ok(()),
        }
    }
}

/// What a training came to: the JSON document, and `record.json` in the folder of the run.
#[derive(Debug, Default, Serialize)]
pub(super) struct TrainingReport {
    /// The checkpoint that was written.
    pub(super) output: String,
    /// The folder of the run.
    pub(super) folder: String,
    /// Where it was trained.
    pub(super) device: String,
    /// Real numbers in the checkpoint.
    pub(super) parameters: usize,
    /// Sequences trained on.
    pub(super) sequences: usize,
    pub(super) steps: u64,
    pub(super) seconds: f64,
    pub(super) best: Option<Best>,
    /// The cuts that were tried on the way.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) cuts: Vec<Cut>,
    /// The validation part before training, where there is one.
    pub(super) before: Option<Measured>,
    /// The validation part with the weights that were written.
    pub(super) validation: Option<Measured>,
    /// The test part with the weights that were written.
    pub(super) test: Option<Measured>,
    /// What layers were multiplied with before the training.
    pub(super) rescaled: Vec<Rescaled>,
    /// What a reader of the result should know.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) notes: Vec<String>,
    /// How far each group of parameters has moved from the start, relative to its size there.
    pub(super) moved: BTreeMap<String, f64>,
    /// What each rate that was tried came to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) trial: Option<TrialOutcome>,
    /// The settings, with the rates that were taken.
    pub(super) recipe: Recipe,
    pub(super) history: Vec<Entry>,
}

impl TrainingReport {
    /// Writes the record into the folder of the run.
    pub(super) fn keep(&self, folder: &Folder) -> anyhow::Result<()> {
        Ok(folder.write(Folder::RECORD, versioned(self)?.as_bytes())?)
    }

    /// What is known of a run from its outcome alone.
    pub(super) fn of(outcome: Outcome, recipe: &Recipe) -> Self {
        Self {
            steps: outcome.steps,
            seconds: outcome.seconds,
            best: outcome.best,
            cuts: outcome.cuts,
            recipe: recipe.clone(),
            history: outcome.history,
            ..Self::default()
        }
    }
}

/// A data set measured with the network as it stands.
pub(super) fn measured(
    network: &dyn SequenceModel,
    data: Option<&Dataset>,
    batch: usize,
) -> anyhow::Result<Option<Measured>> {
    measured_by(&mut Task::default(), network, data, batch)
}

/// The same by an objective, which may have a teacher.
pub(super) fn measured_by(
    objective: &mut dyn Objective,
    network: &dyn SequenceModel,
    data: Option<&Dataset>,
    batch: usize,
) -> anyhow::Result<Option<Measured>> {
    let Some(data) = data else { return Ok(None) };
    let found = evaluate_by(objective, network, data, batch)?;
    Ok(Some(Measured {
        distance: found.distance(),
        psnr: psnr(network, data, batch)?,
        ..Measured::from(*found.tally())
    }))
}

/// Keeps the record and prints it.
pub(super) fn finish(
    document: &TrainingReport,
    folder: &Folder,
    printer: &Printer,
) -> anyhow::Result<()> {
    document.keep(folder)?;
    if printer.is_json() {
        return printer.json(document);
    }
    let best = match document.best {
        Some(best) if best.epoch == 0 => ", none better than the start".to_string(),
        Some(best) => format!(", the best after epoch {}", best.epoch),
        None => String::new(),
    };
    printer.line(&format!(
        "{} steps in {:.1} s{best}",
        document.steps, document.seconds
    ))?;
    for (name, measured) in [
        ("before    ", document.before),
        ("validation", document.validation),
        ("test      ", document.test),
    ] {
        if let Some(measured) = measured {
            printer.line(&format!("{name} {measured}"))?;
        }
    }
    printer.line(&format!(
        "wrote {}, {} parameters",
        document.output,
        grouped(document.parameters)
    ))
}
