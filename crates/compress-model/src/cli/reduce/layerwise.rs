//! Reducing one layer after the other, so that memory is bounded by the largest.

use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use hankelite::advanced::{Layerwise, Rewrite, reduce_layer};
use hankelite::compress::LayerRecord;
use hankelite::{Plan, ProgressSink};

use crate::cli::common::open_layerwise;
use crate::cli::printer::Printer;
use crate::cli::progress::Bars;
use crate::cli::reduce::arguments::Arguments;
use crate::cli::reduce::folder;
use crate::cli::reduce::provenance::{Way, provenance};
use crate::cli::reduce::rounding::{layer_difference, warn_of_rounding};
use crate::cli::reduce::{Document, finish, plan};

pub(super) fn run(arguments: &Arguments, start: Instant, printer: &Printer) -> anyhow::Result<()> {
    let path = &arguments.input.checkpoint;
    let source = open_layerwise(path, &arguments.declarations.declared(), printer)?;
    let here = || path.display().to_string();
    let outline = source.outline();
    let plan = plan(arguments, outline).with_context(here)?;
    let output = arguments.output.as_deref().filter(|_| !arguments.dry_run);
    let mut rewrite = source.rewrite(output)?;
    let (layers, worst) = reduce(&source, &plan, &mut rewrite, printer).with_context(here)?;
    let parameters_after = rewrite.parameters();
    let kept_layers = rewrite.kept_layers().to_vec();
    if let Some(output) = output {
        rewrite.note(provenance((path, outline), &layers, &Way::Plan(&plan)).with_context(here)?);
        rewrite.write(output)?;
        warn_of_rounding(worst, printer);
    }
    let document = Document {
        family: outline.family(),
        class: outline.system_class(),
        plan: Some(&plan),
        kernel_length: plan.kernel_length(),
        parameters_before: outline.parameters_of_file(),
        parameters_after,
        kept_layers,
        folder: folder::changes(outline, &layers)?,
        assumptions: outline.assumptions(),
        notes: outline.notes(),
        parts: outline.weight_sets(),
        rounding_error: output.map(|_: &Path| worst),
        layers,
        seconds: start.elapsed().as_secs_f64(),
        ..Document::new(arguments)
    };
    finish(&document, printer)
}

/// Reduces every layer: what was done, and how far rounding to the file's number format changes a kernel.
fn reduce(
    source: &Layerwise,
    plan: &Plan,
    rewrite: &mut Rewrite<'_>,
    printer: &Printer,
) -> anyhow::Result<(Vec<LayerRecord>, f64)> {
    let count = source.outline().model.blocks().len();
    let bars = Bars::new(printer);
    bars.begin("reducing layers", count);
    let mut records = Vec::with_capacity(count);
    let mut worst: f64 = 0.0;
    for index in 0..count {
        let stored = source.layer(index)?;
        let mut block = stored.clone();
        records.push(reduce_layer(&mut block, plan)?);
        let rounded = rewrite.set(index, stored, &block)?;
        let change = layer_difference(&block, &rounded, plan.kernel_length())?;
        worst = worst.max(change);
        bars.advance(1);
    }
    Ok((records, worst))
}
