//! `compress-model check`: whether a model keeps within limits, for use in a build.

use anyhow::{Context, bail};
use clap::Args;
use hankelite::stream::Runner;
use hankelite_data::{Dataset, Source};
use serde::Serialize;

use crate::cli::common::{Declarations, Input, Usage, grouped, positive};
use crate::cli::evaluate::streamed::logits;
use crate::cli::image::{LayOut, open_streamed};
use crate::cli::printer::Printer;
use crate::cli::quantities::{accuracy, bytes};
use crate::cli::score::First;

const EXAMPLES: &str = "\
Examples:
  compress-model check small.edge --max-bytes 64k
  compress-model check small.edge --max-bytes 64k --data test.npz --min-accuracy 98
  compress-model check small.pth --data mnist:data/mnist --min-accuracy 0.98 --limit 2000

Exit code 0 where all limits are kept, else 1. A model is run one sample at a time, as a device does; a
checkpoint is laid out as recorded in it.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// The most bytes of weights and of one stream's state together.
    #[arg(long, value_name = "BYTES", value_parser = bytes)]
    max_bytes: Option<usize>,
    /// The least accuracy: 98, 98% or 0.98.
    #[arg(long, value_name = "PERCENT", value_parser = accuracy, requires = "data")]
    min_accuracy: Option<f64>,
    /// Labelled data (any data source of `evaluate`).
    #[arg(long, value_name = "DATA", requires = "min_accuracy")]
    data: Option<Source>,
    /// How many of the sequences, from the first on, are scored [default: all].
    #[arg(long, value_name = "N", requires = "data", value_parser = positive)]
    limit: Option<usize>,
    #[command(flatten)]
    declarations: Declarations,
}

#[derive(Serialize)]
struct Document {
    model: String,
    kept: bool,
    limits: Vec<Limit>,
}

/// One limit, and what the model has.
#[derive(Serialize)]
struct Limit {
    name: &'static str,
    found: f64,
    limit: f64,
    kept: bool,
    #[serde(skip)]
    words: String,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    if arguments.max_bytes.is_none() && arguments.min_accuracy.is_none() {
        bail!(Usage(
            "no limit: give --max-bytes, or --data with --min-accuracy".to_string()
        ));
    }
    let path = &arguments.input.checkpoint;
    let streamed = open_streamed(path, &LayOut::default(), &arguments.declarations, printer)?;
    let runner = Runner::<f32>::from_image(streamed.image);
    let runner = runner.with_context(|| path.display().to_string())?;
    let mut limits = Vec::new();
    limits.extend(arguments.max_bytes.map(|most| of_bytes(&runner, most)));
    if let (Some(source), Some(least)) = (&arguments.data, arguments.min_accuracy) {
        let data = Dataset::read(source, None)?;
        let first = First::of(&data, arguments.limit);
        limits.push(of_accuracy(&runner, first, least, printer)?);
    }
    let document = Document {
        model: path.display().to_string(),
        kept: limits.iter().all(|limit| limit.kept),
        limits,
    };
    if printer.is_json() {
        printer.json(&document)?;
    } else {
        for limit in &document.limits {
            printer.line(&limit.words)?;
        }
    }
    let broken = document.limits.iter().filter(|limit| !limit.kept);
    let broken: Vec<&str> = broken.map(|limit| limit.name).collect();
    match broken.as_slice() {
        [] => Ok(()),
        broken => bail!("{}: {} not kept", path.display(), broken.join(" and ")),
    }
}

fn of_bytes(runner: &Runner, most: usize) -> Limit {
    let found = runner.weight_bytes() + runner.state_bytes();
    Limit {
        name: "--max-bytes",
        found: found as f64,
        limit: most as f64,
        kept: found <= most,
        words: format!(
            "{} bytes of weights and state, at most {}",
            grouped(found),
            grouped(most)
        ),
    }
}

fn of_accuracy(
    runner: &Runner,
    sequences: First<'_>,
    least: f64,
    printer: &Printer,
) -> anyhow::Result<Limit> {
    if sequences.data.labels().is_none() {
        bail!("the data have no `labels`, which an accuracy needs");
    }
    let scores = logits(runner, sequences, printer)?.scores(sequences.data)?;
    let found = scores.accuracy.unwrap_or(0.0);
    Ok(Limit {
        name: "--min-accuracy",
        found,
        limit: least,
        kept: found >= least,
        words: format!(
            "accuracy {scores} on {} sequences, at least {:.2} %",
            scores.examples,
            100.0 * least
        ),
    })
}
