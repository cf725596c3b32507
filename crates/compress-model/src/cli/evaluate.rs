//! `compress-model evaluate`.

pub(in crate::cli) mod alternatives;
pub(in crate::cli) mod streamed;
#[cfg(feature = "train")]
mod trainer;

use std::path::PathBuf;

use alternatives::Alternative;
use anyhow::{Context, bail};
use clap::Args;
use hankelite::checkpoint::{Checkpoint, Provenance};
use hankelite::infer::Path;
use hankelite::read;
use hankelite::rounding::{Entries, Numbers};
use hankelite_archive::{
    Dtype, RawTensor, WeightSet, check_destination, check_output, write_arrays,
};
use hankelite_data::{Dataset, Source, Split};
use hankelite_report::{Page, Pair, Plotted, Story};
#[cfg(feature = "train")]
use hankelite_train::Place;
#[cfg(feature = "research")]
use hankelite_train::nn::baseline::BaselineNetwork;
use serde::Serialize;

use crate::cli::common::{Declarations, Input, Word, open, positive, word, words};
use crate::cli::image::{Beside, LayOut, MIXING, NUMBERS, is_image};
use crate::cli::printer::Printer;
use crate::cli::report::{
    WrittenReport, footprint, kernel_steps, laid_out, origin_rows, percent, rates, title,
    write_page,
};
use crate::cli::score::{Comparison, Engine, First, Scores, logits, show_scores};

/// Sequences on which a check of the declarations runs, unless --limit is given.
const CHECKED: usize = 500;

const EXAMPLES: &str = "\
Examples:
  compress-model evaluate model.pth --data mnist:data/mnist
  compress-model evaluate model.pth --data mnist:data/mnist --split train --limit 1000
  compress-model evaluate small.pth --data test.safetensors --format json
  compress-model evaluate model.pth --against small.pth --data test.safetensors
  compress-model evaluate small.pth --data mnist:data/mnist --stream --mixing int8
  compress-model evaluate model.pth --data test.safetensors --check

DATA is `mnist:DIR` (a folder with the idx files, compressed or not; pixels / 255, row by row), or
a safetensors file with `inputs` (B, L, d_in) or (B, L), integer tokens included, and `labels` (B).
All data sets and generated tasks: `compress-model data --help`.";

const DEVICE_EXAMPLE: &str = "
  compress-model evaluate model.pth --data imdb:aclImdb.tar.gz,length=1024 --device cpu
";

const TRAINER: &str = "

Networks of other layers (docs/training.md), and answers that are numbers or stand at every step,
are scored by the training engine: loss, accuracy, and the PSNR where the answers are the inputs,
images with numbers from 0 to 1.";

/// Those of what the program was built with.
fn examples() -> String {
    match cfg!(feature = "train") {
        true => EXAMPLES.replacen("\n\n", &format!("{DEVICE_EXAMPLE}\n"), 1) + TRAINER,
        false => EXAMPLES.to_string(),
    }
}

/// Options that streaming has no use for.
#[cfg(feature = "train")]
const STREAM_EXCLUDES: [&str; 5] = ["path", "precision", "device", "against", "logits"];
#[cfg(not(feature = "train"))]
const STREAM_EXCLUDES: [&str; 4] = ["path", "precision", "against", "logits"];

/// Options that a check of the declarations has no use for.
#[cfg(feature = "train")]
const CHECK_EXCLUDES: [&str; 6] = ["path", "precision", "device", "against", "logits", "stream"];
#[cfg(not(feature = "train"))]
const CHECK_EXCLUDES: [&str; 5] = ["path", "precision", "against", "logits", "stream"];

#[derive(Debug, Args)]
#[command(after_help = examples())]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// Where the sequences come from: mnist:DIR, or a safetensors file (see below).
    #[arg(long, value_name = "DATA")]
    data: Source,
    /// The part of the data [default: test, where there are parts].
    #[arg(long, value_parser = words::<Split>(["train", "test"]))]
    split: Option<Split>,
    /// Use the first N sequences only.
    #[arg(long, value_name = "N", value_parser = positive)]
    limit: Option<usize>,
    /// Compare logits with those of another checkpoint on the same data.
    #[arg(long, value_name = "OTHER")]
    against: Option<PathBuf>,
    /// How the layers are run: all give the same numbers to rounding.
    #[arg(hide_short_help = true, long, default_value = "auto", value_parser = words::<Path>(PATHS))]
    path: Path,
    /// The numbers that whole sequences run in [default: single, which is several times as fast;
    /// double with --against, --logits and --stream, whose differences would drown in rounding, and
    /// where a layer has no single precision, as one with more inputs than outputs].
    #[arg(long, value_enum, conflicts_with = "path")]
    precision: Option<Precision>,
    /// Run on the training engine, in single precision, on cpu, cuda or cuda:N. Pooling then covers
    /// the true lengths only.
    #[cfg(feature = "train")]
    #[arg(long, value_name = "DEVICE", conflicts_with_all = ["path", "precision"])]
    device: Option<Place>,
    /// Run one sample at a time in single precision, as a device does (CKPT may be an image), and
    /// compare with the convolution in double precision.
    #[arg(long, conflicts_with_all = STREAM_EXCLUDES)]
    stream: bool,
    /// How the maps between channels are stored while streaming.
    #[arg(hide_short_help = true, long, requires = "stream", value_parser = words::<Entries>(MIXING))]
    mixing: Option<Entries>,
    /// How the numbers beside the maps are stored while streaming.
    #[arg(hide_short_help = true, long, requires = "stream", value_parser = words::<Numbers>(NUMBERS))]
    numbers: Option<Numbers>,
    /// Inputs of a map that share a scale while streaming: a multiple of 16 [default: 32].
    #[arg(hide_short_help = true, long, requires = "stream", value_name = "N", value_parser = positive)]
    group: Option<usize>,
    /// Try the alternatives of each assumption in turn, on the first sequences (500 without --limit),
    /// and report those that fit the labels clearly better.
    #[arg(hide_short_help = true, long, conflicts_with_all = CHECK_EXCLUDES)]
    check: bool,
    /// Write the logits to a safetensors file (tensor `logits`, B × classes, f64).
    #[arg(hide_short_help = true, long, value_name = "FILE")]
    logits: Option<PathBuf>,
    /// With --against: also write a report on both, one HTML file for a browser.
    #[arg(long, value_name = "FILE.html", requires = "against")]
    report: Option<PathBuf>,
    #[command(flatten)]
    declarations: Declarations,
}

/// The numbers that whole sequences run in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Precision {
    /// 24 bits.
    Single,
    /// 53 bits.
    Double,
}

const PATHS: [Word; 3] = [
    word(
        "auto",
        "Convolution by FFT where a layer has one, else the recurrence",
    ),
    word(
        "fft",
        "Convolution by FFT in double precision; refused for systems with several inputs or outputs",
    ),
    word("recurrence", "The recurrence in double precision"),
];

impl Arguments {
    /// Whether the training engine alone can score this: a network without state space layers, or
    /// answers that are not one class for each sequence.
    #[cfg(feature = "train")]
    fn is_for_trainer(&self, data: &Dataset) -> anyhow::Result<bool> {
        let alone = self.against.is_none() && self.logits.is_none() && !self.stream && !self.check;
        #[cfg(feature = "research")]
        if BaselineNetwork::is_file(&self.input.checkpoint) {
            if !alone {
                bail!(
                    "{}: a network without state space layers, which is scored alone: expected none \
                     of --against, --logits, --stream and --check",
                    self.input.checkpoint.display()
                );
            }
            return Ok(true);
        }
        Ok(alone && trainer::are_answers(data))
    }

    /// Whether there is an option that an image cannot follow.
    fn takes_checkpoint(&self) -> bool {
        #[cfg(feature = "train")]
        if self.device.is_some() {
            return true;
        }
        let compared = self.against.is_some() || self.logits.is_some() || self.check;
        compared || self.precision.is_some() || self.path != Path::Auto
    }

    /// How the model is laid out for streaming.
    fn lay_out(&self) -> LayOut {
        LayOut {
            mixing: self.mixing,
            rate: None,
            beside: Beside {
                numbers: self.numbers,
                group: self.group,
                layers_only: false,
            },
        }
    }

    fn engine(&self) -> Engine {
        #[cfg(feature = "train")]
        if let Some(place) = self.device {
            return Engine::Trainer(place);
        }
        let exact = self.against.is_some() || self.logits.is_some();
        let precision = match exact {
            true => self.precision.unwrap_or(Precision::Double),
            false => self.precision.unwrap_or(Precision::Single),
        };
        Engine::Host(match (self.path, precision) {
            (Path::Auto, Precision::Double) => Path::Double,
            (path, _) => path,
        })
    }
}

#[derive(Serialize)]
struct Document<'a> {
    checkpoint: String,
    #[serde(flatten)]
    scores: &'a Scores,
    assumptions: &'a [String],
    notes: &'a [String],
    parts: &'a [WeightSet],
    against: Option<Comparison>,
    report: Option<WrittenReport>,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    if let Some(file) = &arguments.logits {
        check_output(file, &inputs(arguments))?;
    }
    if let Some(page) = &arguments.report {
        check_destination(page, &inputs(arguments))?;
    }
    let data = Dataset::read(&arguments.data, arguments.split)?;
    let mut first = First::of(&data, arguments.limit);
    #[cfg(feature = "train")]
    if arguments.is_for_trainer(&data)? {
        return trainer::run(arguments, first, printer);
    }
    if data.labels().is_none() && arguments.against.is_none() && arguments.logits.is_none() {
        bail!(
            "the data have no `labels`, which an accuracy needs (--against and --logits do without)"
        );
    }
    let image = is_image(&arguments.input.checkpoint);
    if image && arguments.takes_checkpoint() {
        bail!(
            "{} is an image, which is run one sample at a time: --against, --logits, \
             --check, --path, --precision and --device take checkpoints",
            arguments.input.checkpoint.display()
        );
    }
    if arguments.stream || image {
        return streamed::run(arguments, first, printer);
    }
    let declared = arguments.declarations.declared();
    let checkpoint = open(&arguments.input.checkpoint, &declared, printer)?;
    if arguments.check {
        first.count = first.count.min(arguments.limit.unwrap_or(CHECKED));
        return check(arguments, &checkpoint, first, printer);
    }
    evaluated(arguments, &checkpoint, first, printer)
}

/// Scores a checkpoint, and compares it with another where one is given.
fn evaluated(
    arguments: &Arguments,
    checkpoint: &Checkpoint,
    sequences: First<'_>,
    printer: &Printer,
) -> anyhow::Result<()> {
    let First { data, count } = sequences;
    warn_of_length(checkpoint.provenance(), data.length(), printer);
    let engine = arguments.engine();
    let of = |checkpoint: &Checkpoint, file: &PathBuf| {
        let logits = logits(checkpoint, sequences, &engine, printer);
        logits.with_context(|| format!("{} on {}", file.display(), arguments.data))
    };
    let own = of(checkpoint, &arguments.input.checkpoint)?;
    if let Some(file) = &arguments.logits {
        let flat = own.logits.concat();
        let shape = vec![count, flat.len() / count.max(1)];
        let logits = RawTensor::from_f64(Dtype::F64, shape, &flat)?;
        write_arrays(file, [("logits", logits)], "")?;
    }
    let scores = own.scores(data)?;
    let other = match &arguments.against {
        None => None,
        Some(file) => Some((
            file,
            open(file, &arguments.declarations.declared(), printer)?,
        )),
    };
    let against = match &other {
        None => None,
        Some((file, other)) => {
            let second = of(other, file)?;
            Some(own.compare(file.display().to_string(), &second, data)?)
        }
    };
    let mut document = Document {
        checkpoint: arguments.input.checkpoint.display().to_string(),
        scores: &scores,
        assumptions: checkpoint.assumptions(),
        notes: checkpoint.notes(),
        parts: checkpoint.weight_sets(),
        against,
        report: None,
    };
    if let (Some(path), Some((_, other))) = (&arguments.report, &other) {
        let page = page(arguments, [checkpoint, other], &document, printer)?;
        document.report = Some(write_page(&page, path)?);
    }
    if printer.is_json() {
        return printer.json(&document);
    }
    let against = document.against.as_ref();
    show_scores(&document.checkpoint, &scores, against, printer)?;
    match &document.report {
        Some(report) => report.show(printer),
        None => Ok(()),
    }
}

/// Warns of sequences that are longer than those which the model was reduced for.
fn warn_of_length(made: Option<&Provenance>, length: usize, printer: &Printer) {
    let Some((made, steps)) = made.and_then(|made| Some((made, made.calibrated_steps?))) else {
        return;
    };
    if length <= steps {
        return;
    }
    let measured = made.change_of_pairs.map_or(String::new(), |change| {
        format!(
            "; on calibration sequences joined to {} steps its logits changed by {}",
            2 * steps,
            percent(change)
        )
    });
    printer.note(
        "warning",
        &format!(
            "reduced for sequences of {steps} steps, these have {length}{measured}. Calibrate at \
             the length at which it runs"
        ),
    );
}

/// The report on two checkpoints.
fn page(
    arguments: &Arguments,
    [full, other]: [&Checkpoint; 2],
    document: &Document<'_>,
    printer: &Printer,
) -> anyhow::Result<Page> {
    let against = document.against.as_ref();
    let source = &arguments.input.checkpoint;
    let other_name = against.map(|against| against.checkpoint.as_str());
    let data = [("Accuracy on".to_string(), arguments.data.to_string())];
    let story = Story {
        title: title(source, other_name),
        family: full.family(),
        parameters: Pair {
            before: full.parameters()?,
            after: Some(other.parameters()?),
        },
        footprint: footprint(full).map(|before| Pair {
            before,
            after: footprint(other),
        }),
        layers_alone: full.is_layers_alone(),
        accuracy: rates(
            Some(document.scores),
            against.map(|against| &against.scores),
        ),
        logit_change: None,
        assumptions: document.assumptions,
        warnings: document.notes.to_vec(),
        provenance: origin_rows(source, other_name, data)?,
    };
    let plotted = Plotted {
        full: &full.model,
        reduced: Some(&other.model),
        calibration: None,
        records: None,
        steps: kernel_steps(full, None),
    };
    laid_out(story, &plotted, document, printer)
}

#[derive(Serialize)]
struct CheckDocument {
    checkpoint: String,
    #[serde(flatten)]
    scores: Scores,
    alternatives: Vec<Alternative>,
}

fn check(
    arguments: &Arguments,
    checkpoint: &Checkpoint,
    sequences: First<'_>,
    printer: &Printer,
) -> anyhow::Result<()> {
    if sequences.data.labels().is_none() {
        bail!("the data have no `labels`, which a check of the declarations needs");
    }
    let path = &arguments.input.checkpoint;
    // What was settled, or, where the file is not of the form that it was read in, what was declared.
    let settled = checkpoint.declared();
    let declared = match read(path, &settled) {
        Ok(_) => settled,
        Err(_) => arguments.declarations.declared(),
    };
    let (scores, alternatives) = alternatives::tried(path, declared, sequences, printer)?;
    if printer.is_json() {
        let checkpoint = path.display().to_string();
        return printer.json(&CheckDocument {
            checkpoint,
            scores,
            alternatives,
        });
    }
    alternatives::show(&scores, &alternatives, printer)
}

/// The files that a run reads, none of which it may write.
fn inputs(arguments: &Arguments) -> Vec<&std::path::Path> {
    let mut inputs = vec![arguments.input.checkpoint.as_path()];
    inputs.extend(arguments.against.as_deref());
    inputs.extend(arguments.data.path());
    inputs
}
