//! `compress-model evaluate --stream`: one sample at a time, as a device runs.

use anyhow::{Context, bail};
use hankelite::infer::Path;
use hankelite::model::Sequence;
use hankelite::stream::{Runner, StreamError};
use rayon::prelude::*;
use serde::Serialize;

use crate::cli::common::grouped;
use crate::cli::evaluate::{Arguments, warn_of_length};
use crate::cli::image::open_streamed;
use crate::cli::printer::Printer;
use crate::cli::score::{Comparison, First, Logits, Scores, host_logits, in_batches, show_scores};

#[derive(Serialize)]
struct Document<'a> {
    checkpoint: String,
    #[serde(flatten)]
    scores: &'a Scores,
    weight_bytes: usize,
    state_bytes: usize,
    /// Absent for an image, which has no double precision to compare with.
    convolution: Option<Comparison>,
}

pub(super) fn run(
    arguments: &Arguments,
    sequences: First<'_>,
    printer: &Printer,
) -> anyhow::Result<()> {
    let data = sequences.data;
    let path = &arguments.input.checkpoint;
    if data.labels().is_none() {
        bail!("the data have no `labels`, which an accuracy needs");
    }
    let streamed = open_streamed(path, &arguments.lay_out(), &arguments.declarations, printer)?;
    warn_of_length(streamed.made.as_ref(), data.length(), printer);
    let runner = Runner::<f32>::from_image(streamed.image);
    let runner = runner.with_context(|| path.display().to_string())?;
    let first = logits(&runner, sequences, printer)
        .with_context(|| format!("{}: streaming", path.display()))?;
    let scores = first.scores(data)?;
    let convolution = match &streamed.model {
        None => None,
        Some(model) => {
            let second = host_logits(model, sequences, Path::Double, printer)?;
            let name = "by convolution".to_string();
            Some(first.compare(name, &second, data)?)
        }
    };
    let document = Document {
        checkpoint: path.display().to_string(),
        scores: &scores,
        weight_bytes: runner.weight_bytes(),
        state_bytes: runner.state_bytes(),
        convolution,
    };
    if printer.is_json() {
        return printer.json(&document);
    }
    show(&document, printer)
}

fn show(document: &Document<'_>, printer: &Printer) -> anyhow::Result<()> {
    let name = format!("{}, streamed", document.checkpoint);
    let convolution = document.convolution.as_ref();
    show_scores(&name, document.scores, convolution, printer)?;
    printer.line(&format!(
        "{} bytes of weights, {} bytes of state",
        grouped(document.weight_bytes),
        grouped(document.state_bytes),
    ))
}

/// The outputs of a model that runs one sample at a time.
pub(in crate::cli) fn logits(
    runner: &Runner,
    sequences: First<'_>,
    printer: &Printer,
) -> anyhow::Result<Logits> {
    let First { data, count } = sequences;
    let own = || runner.clone();
    Logits::timed(|| {
        in_batches(count, printer, |batch| {
            let each = batch.into_par_iter();
            let each = each.map_init(own, |runner, index| last(runner, data.unpadded(index)));
            Ok(each.collect::<Result<_, StreamError>>()?)
        })
    })
}

/// The outputs after the last step of a sequence, or those of every step where each has its own.
fn last(runner: &mut Runner, sequence: Sequence<'_>) -> Result<Vec<f64>, StreamError> {
    runner.reset();
    let mut outputs = Vec::new();
    let pools = runner.pools();
    let mut take = |stepped: &[f32]| {
        if pools {
            outputs.clear();
        }
        outputs.extend(stepped.iter().map(|&y| f64::from(y)));
    };
    match sequence {
        Sequence::Values(values) => {
            for inputs in values.chunks(runner.inputs()) {
                take(runner.step(inputs)?);
            }
        }
        Sequence::Tokens(tokens) => {
            for token in tokens {
                take(runner.step_tokens(&[*token])?);
            }
        }
    }
    Ok(outputs)
}
