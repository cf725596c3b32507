//! `compress-model evaluate`.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use clap::{Args, ValueEnum};
use hankelite::checkpoint::{Checkpoint, read};
use hankelite::infer::{Agreement, Network, Path, Score};
use hankelite::model::{Model, Sequence};
use hankelite_archive::{Dtype, RawTensor, check_destination, write_arrays};
use hankelite_data::{Dataset, Source, Split};
#[cfg(feature = "train")]
use hankelite_train::Place;
#[cfg(feature = "train")]
use hankelite_train::nn;
#[cfg(feature = "train")]
use hankelite_train::nn::NetworkOptions;
#[cfg(feature = "train")]
use hankelite_train::nn::baseline::Baseline;
#[cfg(feature = "train")]
use hankelite_train::require_suitable;
use serde::Serialize;

use crate::cli::alternatives::{Alternative, alternatives};
use crate::cli::common::{Declarations, Input, open, positive, require_length};
use crate::cli::image::Mixing;
use crate::cli::printer::Printer;
#[cfg(feature = "train")]
use crate::cli::retrain::parameterisation;
#[cfg(feature = "train")]
use crate::cli::scored;
use crate::cli::{alternatives, streamed};

/// Sequences on which a check of the declarations runs, unless told.
const CHECKED: usize = 500;

/// Sequences between two steps of the progress bar.
const BATCH: usize = 64;

const EXAMPLES: &str = "\
Examples:
  compress-model evaluate model.pth --data mnist:data/mnist
  compress-model evaluate model.pth --data mnist:data/mnist --split train --limit 1000
  compress-model evaluate small.pth --data test.safetensors --format json
  compress-model evaluate model.pth --against small.pth --data test.safetensors
  compress-model evaluate small.pth --data mnist:data/mnist --stream --mixing int8
  compress-model evaluate model.pth --data test.safetensors --check
  compress-model evaluate model.pth --data imdb:aclImdb.tar.gz,length=1024 --device cpu

DATA is `mnist:DIR` (a folder with the idx files, compressed or not; pixels / 255, row by row), or
a safetensors file with `inputs` (B, L, d_in) or (B, L), integer tokens included, and `labels` (B).
All data sets and generated tasks: `compress-model data --help`.

Networks of other layers (docs/training.md), and answers that are numbers or stand at every step,
are scored by the training engine: loss, accuracy, and the PSNR where the answers are the inputs,
images with numbers from 0 to 1.";

/// Options that streaming has no use for.
#[cfg(feature = "train")]
const STREAM_EXCLUDES: [&str; 4] = ["path", "device", "against", "logits"];
#[cfg(not(feature = "train"))]
const STREAM_EXCLUDES: [&str; 3] = ["path", "against", "logits"];

/// Options that a check of the declarations has no use for.
#[cfg(feature = "train")]
const CHECK_EXCLUDES: [&str; 5] = ["path", "device", "against", "logits", "stream"];
#[cfg(not(feature = "train"))]
const CHECK_EXCLUDES: [&str; 4] = ["path", "against", "logits", "stream"];

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    pub(super) input: Input,
    /// Where the sequences come from: mnist:DIR, or a safetensors file (see below).
    #[arg(long, value_name = "DATA")]
    data: Source,
    /// The part of the data [default: test, where there are parts].
    #[arg(long, value_enum)]
    split: Option<Part>,
    /// Use the first N sequences only.
    #[arg(long, value_name = "N", value_parser = positive)]
    limit: Option<usize>,
    /// Compare logits with those of another checkpoint on the same data.
    #[arg(long, value_name = "OTHER")]
    against: Option<PathBuf>,
    /// How the layers are run: both give the same numbers to rounding.
    #[arg(long, value_enum, default_value_t = Run::Fft)]
    path: Run,
    /// Run on the training engine, in single precision, on cpu, cuda or cuda:N, and pool true
    /// lengths only; without it, in double precision on the host.
    #[cfg(feature = "train")]
    #[arg(long, value_name = "DEVICE", conflicts_with = "path")]
    pub(super) device: Option<Place>,
    /// Run one sample at a time in single precision, as a device does (CKPT may be an image), and
    /// compare with the convolution in double precision.
    #[arg(long, conflicts_with_all = STREAM_EXCLUDES)]
    pub(super) stream: bool,
    /// How the maps between channels are stored while streaming.
    #[arg(long, value_enum, requires = "stream")]
    pub(super) mixing: Option<Mixing>,
    /// Declare one thing after the other otherwise, on the first sequences (500 without --limit),
    /// and say where that fits the labels clearly better.
    #[arg(long, conflicts_with_all = CHECK_EXCLUDES)]
    check: bool,
    /// Write the logits to a safetensors file (tensor `logits`, B × classes, f64).
    #[arg(long, value_name = "FILE")]
    logits: Option<PathBuf>,
    #[command(flatten)]
    pub(super) declarations: Declarations,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    Train,
    Test,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Run {
    /// Convolution by FFT.
    Fft,
    /// The recurrence, as a device runs it.
    Recurrence,
}

impl Run {
    fn path(self) -> Path {
        match self {
            Run::Fft => Path::Fft,
            Run::Recurrence => Path::Recurrence,
        }
    }
}

/// What runs the layers.
enum Engine {
    /// Double precision.
    Host(Path),
    /// The training engine.
    #[cfg(feature = "train")]
    Trainer(Place),
}

#[cfg(feature = "train")]
impl Arguments {
    /// Whether the training engine alone can score this: a network without state space layers, or
    /// answers that are not one class for each sequence.
    fn is_for_trainer(&self, data: &Dataset) -> anyhow::Result<bool> {
        let compared = self.against.is_some() || self.logits.is_some();
        if !Baseline::is_file(&self.input.checkpoint) {
            let plain = !compared && !self.stream && !self.check;
            return Ok(plain && scored::are_answers(data));
        }
        if compared || self.stream || self.check {
            bail!(
                "{}: a network without state space layers, which is scored alone: expected none of \
                 --against, --logits, --stream and --check",
                self.input.checkpoint.display()
            );
        }
        Ok(true)
    }
}

impl Arguments {
    fn split(&self) -> Option<Split> {
        self.split.map(|part| match part {
            Part::Train => Split::Train,
            Part::Test => Split::Test,
        })
    }

    fn engine(&self) -> Engine {
        #[cfg(feature = "train")]
        if let Some(place) = self.device {
            return Engine::Trainer(place);
        }
        Engine::Host(self.path.path())
    }
}

/// What one checkpoint scored.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Report {
    /// 0 to 1; absent without labels, as are the next two.
    pub(super) accuracy: Option<f64>,
    pub(super) standard_error: Option<f64>,
    loss: Option<f64>,
    examples: usize,
    seconds: f64,
    examples_per_second: f64,
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.accuracy, self.standard_error) {
            (Some(accuracy), Some(error)) => {
                write!(f, "{:.2} ± {:.2} %", 100.0 * accuracy, 100.0 * error)
            }
            _ => write!(f, "no labels"),
        }
    }
}

#[derive(Serialize)]
struct Document<'a> {
    checkpoint: String,
    #[serde(flatten)]
    report: &'a Report,
    assumptions: &'a [String],
    notes: &'a [String],
    against: Option<Comparison>,
}

#[derive(Serialize)]
pub(super) struct Comparison {
    pub(super) checkpoint: String,
    #[serde(flatten)]
    pub(super) report: Report,
    pub(super) max_difference: f64,
    pub(super) mean_difference: f64,
    pub(super) agreement: f64,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    if let Some(file) = &arguments.logits {
        check_destination(file, &inputs(arguments))?;
    }
    let data = Dataset::read(&arguments.data, arguments.split())?;
    let count = arguments.limit.unwrap_or(data.len()).min(data.len());
    #[cfg(feature = "train")]
    if arguments.is_for_trainer(&data)? {
        return scored::run(arguments, (&data, count), printer);
    }
    if data.labels().is_none() && arguments.against.is_none() && arguments.logits.is_none() {
        bail!(
            "the data have no `labels`, which an accuracy needs (--against and --logits do without)"
        );
    }
    if arguments.stream {
        return streamed::run(arguments, &data, count, printer);
    }
    let declared = arguments.declarations.declared();
    let checkpoint = open(&arguments.input.checkpoint, &declared, printer)?;
    if arguments.check {
        let count = count.min(arguments.limit.unwrap_or(CHECKED));
        return check(arguments, &checkpoint, (&data, count), printer);
    }
    let engine = arguments.engine();
    let here = |file: &PathBuf| format!("{} on {}", file.display(), arguments.data);
    let first = logits(&checkpoint, &data, count, &engine, printer)
        .with_context(|| here(&arguments.input.checkpoint))?;
    if let Some(file) = &arguments.logits {
        let flat = first.logits.concat();
        let shape = vec![count, flat.len() / count.max(1)];
        let logits = RawTensor::from_f64(Dtype::F64, shape, &flat)?;
        write_arrays(file, [("logits", logits)], "")?;
    }
    let report = first.report(&data)?;
    let against = match &arguments.against {
        None => None,
        Some(other) => {
            let checkpoint = open(other, &declared, printer)?;
            let second =
                logits(&checkpoint, &data, count, &engine, printer).with_context(|| here(other))?;
            Some(compare(
                other.display().to_string(),
                &first,
                &second,
                &data,
            )?)
        }
    };
    let document = Document {
        checkpoint: arguments.input.checkpoint.display().to_string(),
        report: &report,
        assumptions: checkpoint.assumptions(),
        notes: checkpoint.notes(),
        against,
    };
    if printer.is_json() {
        return printer.json(&document);
    }
    show(&document, printer)
}

#[derive(Serialize)]
struct CheckDocument {
    checkpoint: String,
    #[serde(flatten)]
    report: Report,
    alternatives: Vec<Alternative>,
}

fn check(
    arguments: &Arguments,
    checkpoint: &Checkpoint,
    (data, count): (&Dataset, usize),
    printer: &Printer,
) -> anyhow::Result<()> {
    if data.labels().is_none() {
        bail!("the data have no `labels`, which a check of the declarations needs");
    }
    let path = &arguments.input.checkpoint;
    // What was settled, or, where the file is not of the form that it was read in, what was said.
    let settled = checkpoint.declared();
    let declared = match read(path, &settled) {
        Ok(_) => settled,
        Err(_) => arguments.declarations.declared(),
    };
    let (report, alternatives) = alternatives(path, declared, (data, count), printer)?;
    if printer.is_json() {
        let checkpoint = path.display().to_string();
        return printer.json(&CheckDocument {
            checkpoint,
            report,
            alternatives,
        });
    }
    alternatives::show(&report, &alternatives, printer)
}

/// The files that a run reads, none of which it may write.
fn inputs(arguments: &Arguments) -> Vec<&std::path::Path> {
    let mut inputs = vec![arguments.input.checkpoint.as_path()];
    inputs.extend(arguments.against.as_deref());
    inputs.extend(arguments.data.path());
    inputs
}

/// Labelled data that suit a checkpoint: for a check before long work.
pub(super) fn labelled(checkpoint: &Checkpoint, source: &Source) -> anyhow::Result<Dataset> {
    let data = Dataset::read(source, None)?;
    if data.labels().is_none() {
        bail!("{source}: no `labels`, which an accuracy needs");
    }
    Network::new(&checkpoint.model, data.length(), Path::Recurrence)?.logits(data.sequence(0))?;
    Ok(data)
}

/// Accuracy and loss of a checkpoint on all of a data set.
pub(super) fn score(
    checkpoint: &Checkpoint,
    data: &Dataset,
    path: Path,
    printer: &Printer,
) -> anyhow::Result<Report> {
    let engine = Engine::Host(path);
    logits(checkpoint, data, data.len(), &engine, printer)?.report(data)
}

/// The same for the first sequences of a data set.
pub(super) fn score_first(
    checkpoint: &Checkpoint,
    data: &Dataset,
    count: usize,
    printer: &Printer,
) -> anyhow::Result<Report> {
    let engine = Engine::Host(Path::Fft);
    logits(checkpoint, data, count, &engine, printer)?.report(data)
}

impl Report {
    pub(super) fn examples(&self) -> usize {
        self.examples
    }
}

/// The logits of the first sequences of a data set, and how long they took.
pub(super) struct Logits {
    pub(super) logits: Vec<Vec<f64>>,
    pub(super) seconds: f64,
}

fn logits(
    checkpoint: &Checkpoint,
    data: &Dataset,
    count: usize,
    engine: &Engine,
    printer: &Printer,
) -> anyhow::Result<Logits> {
    require_length(checkpoint, data.length())?;
    let path = match engine {
        Engine::Host(path) => *path,
        #[cfg(feature = "train")]
        Engine::Trainer(place) => {
            let start = Instant::now();
            let logits = trainer_logits(checkpoint, data, count, place, printer)?;
            let seconds = start.elapsed().as_secs_f64();
            return Ok(Logits { logits, seconds });
        }
    };
    host_logits(&checkpoint.model, data, count, path, printer)
}

/// The same in double precision on the host.
pub(super) fn host_logits(
    model: &Model,
    data: &Dataset,
    count: usize,
    path: Path,
    printer: &Printer,
) -> anyhow::Result<Logits> {
    let start = Instant::now();
    let network = Network::new(model, data.length(), path)?;
    in_batches(data, count, printer, |sequences| {
        Ok(network.logits_of_all(sequences)?)
    })
    .map(|logits| Logits {
        logits,
        seconds: start.elapsed().as_secs_f64(),
    })
}

/// The logits of the first sequences, some at a time, with a bar of progress.
pub(super) fn in_batches(
    data: &Dataset,
    count: usize,
    printer: &Printer,
    run: impl Fn(&[Sequence<'_>]) -> anyhow::Result<Vec<Vec<f64>>>,
) -> anyhow::Result<Vec<Vec<f64>>> {
    let progress = printer.progress(count, "sequences");
    let mut logits = Vec::with_capacity(count);
    for first in (0..count).step_by(BATCH) {
        let batch = first..(first + BATCH).min(count);
        let sequences: Vec<_> = batch.map(|index| data.unpadded(index)).collect();
        logits.extend(run(&sequences)?);
        progress.inc(sequences.len() as u64);
    }
    progress.finish_and_clear();
    Ok(logits)
}

/// The same by the training engine.
#[cfg(feature = "train")]
fn trainer_logits(
    checkpoint: &Checkpoint,
    data: &Dataset,
    count: usize,
    place: &Place,
    printer: &Printer,
) -> anyhow::Result<Vec<Vec<f64>>> {
    let device = place.open()?;
    require_suitable(&checkpoint.model, data)?;
    let options = NetworkOptions {
        parameterisation: parameterisation(checkpoint),
        ..NetworkOptions::new(data.length())
    };
    let network = nn::Network::from_model(&checkpoint.model, &options, &device)?;
    let progress = printer.progress(count, "sequences");
    let mut logits = Vec::with_capacity(count);
    for first in (0..count).step_by(BATCH) {
        let indices: Vec<usize> = (first..(first + BATCH).min(count)).collect();
        logits.extend(hankelite_train::logits(&network, data, &indices)?);
        progress.inc(indices.len() as u64);
    }
    progress.finish_and_clear();
    Ok(logits)
}

impl Logits {
    pub(super) fn report(&self, data: &Dataset) -> anyhow::Result<Report> {
        let mut score = Score::default();
        for (index, logits) in self.logits.iter().enumerate() {
            let Some(labels) = data.labels() else { break };
            if labels[index] >= logits.len() {
                bail!(
                    "label {} of sequence {index} is outside the model's {} classes",
                    labels[index],
                    logits.len()
                );
            }
            score.add(logits, labels[index]);
        }
        let scored = (score.examples() > 0).then_some(score);
        Ok(Report {
            accuracy: scored.map(|score| score.accuracy()),
            standard_error: scored.map(|score| score.standard_error()),
            loss: scored.map(|score| score.loss()),
            examples: self.logits.len(),
            seconds: self.seconds,
            examples_per_second: self.logits.len() as f64 / self.seconds,
        })
    }
}

pub(super) fn compare(
    checkpoint: String,
    first: &Logits,
    second: &Logits,
    data: &Dataset,
) -> anyhow::Result<Comparison> {
    let mut agreement = Agreement::default();
    for (one, other) in first.logits.iter().zip(&second.logits) {
        if one.len() != other.len() {
            bail!(
                "{checkpoint} has {} classes, expected {}",
                other.len(),
                one.len()
            );
        }
        agreement.add(one, other);
    }
    Ok(Comparison {
        checkpoint,
        report: second.report(data)?,
        max_difference: agreement.largest_difference(),
        mean_difference: agreement.mean_difference(),
        agreement: agreement.agreement(),
    })
}

fn show(document: &Document<'_>, printer: &Printer) -> anyhow::Result<()> {
    let name = &document.checkpoint;
    show_scores((name, document.report), document.against.as_ref(), printer)
}

/// Accuracies, and how far the logits are apart.
pub(super) fn show_scores(
    (name, report): (&str, &Report),
    against: Option<&Comparison>,
    printer: &Printer,
) -> anyhow::Result<()> {
    let header = ["checkpoint", "accuracy", "loss", "examples", "examples/s"];
    let row = |name: &str, report: &Report| {
        vec![
            name.to_string(),
            report.to_string(),
            report
                .loss
                .map_or("-".to_string(), |loss| format!("{loss:.5}")),
            report.examples.to_string(),
            format!("{:.0}", report.examples_per_second),
        ]
    };
    let mut rows = vec![row(name, report)];
    rows.extend(against.map(|other| row(&other.checkpoint, &other.report)));
    printer.table(&header, rows)?;
    let Some(other) = against else { return Ok(()) };
    printer.line(&format!(
        "logits differ by at most {:.3e}, on average {:.3e}; same class on {:.2} % of the sequences",
        other.max_difference,
        other.mean_difference,
        100.0 * other.agreement,
    ))
}
