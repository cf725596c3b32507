//! `compress-model evaluate --stream`: one sample at a time, as a device runs.

use std::time::Instant;

use anyhow::{Context, bail};
use hankelite::infer::Path;
use hankelite::model::Sequence;
use hankelite::stream::{Runner, StreamError};
use hankelite_data::Dataset;
use rayon::prelude::*;
use serde::Serialize;

use crate::cli::common::grouped;
use crate::cli::evaluate::{
    Arguments, Comparison, Logits, Report, compare, host_logits, in_batches, show_scores,
};
use crate::cli::image::open_streamed;
use crate::cli::printer::Printer;

#[derive(Serialize)]
struct Document<'a> {
    checkpoint: String,
    #[serde(flatten)]
    report: &'a Report,
    weight_bytes: usize,
    state_bytes: usize,
    /// Absent for an image, which has no double precision to compare with.
    convolution: Option<Comparison>,
}

pub(super) fn run(
    arguments: &Arguments,
    data: &Dataset,
    count: usize,
    printer: &Printer,
) -> anyhow::Result<()> {
    let path = &arguments.input.checkpoint;
    if data.labels().is_none() {
        bail!("the data have no `labels`, which an accuracy needs");
    }
    let streamed = open_streamed(path, arguments.mixing, &arguments.declarations, printer)?;
    let runner = Runner::<f32>::from_image(streamed.image);
    let runner = runner.with_context(|| path.display().to_string())?;
    let first = logits(&runner, data, count, printer)
        .with_context(|| format!("{}: streaming", path.display()))?;
    let report = first.report(data)?;
    let convolution = match &streamed.model {
        None => None,
        Some(model) => {
            let second = host_logits(model, data, count, Path::Fft, printer)?;
            let name = "by convolution".to_string();
            Some(compare(name, &first, &second, data)?)
        }
    };
    let document = Document {
        checkpoint: path.display().to_string(),
        report: &report,
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
    show_scores(
        (&name, document.report),
        document.convolution.as_ref(),
        printer,
    )?;
    printer.line(&format!(
        "{} bytes of weights, {} bytes of state",
        grouped(document.weight_bytes),
        grouped(document.state_bytes),
    ))
}

fn logits(
    runner: &Runner,
    data: &Dataset,
    count: usize,
    printer: &Printer,
) -> anyhow::Result<Logits> {
    let start = Instant::now();
    let logits = in_batches(data, count, printer, |sequences| {
        let each = sequences.par_iter();
        let each = each.map_init(
            || runner.clone(),
            |runner, sequence| last(runner, *sequence),
        );
        Ok(each.collect::<Result<_, StreamError>>()?)
    })?;
    let seconds = start.elapsed().as_secs_f64();
    Ok(Logits { logits, seconds })
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
