//! How far rounding to the number format of the written file changes the kernels.

use hankelite::advanced::kernel_distance;
use hankelite::checkpoint::Checkpoint;
use hankelite::model::{Block, Model};
use hankelite_control::DiagonalSystem;
use rayon::prelude::*;

use crate::cli::printer::Printer;
use crate::cli::report::percent;

/// Rounding that changes a kernel by more gets a warning.
const ROUNDING_MAX: f64 = 0.01;

/// The checkpoint as its written file holds it, and how far rounding changed a kernel.
pub(super) fn written(
    reduced: &Checkpoint,
    written: Vec<Vec<DiagonalSystem>>,
    kernel_length: usize,
    printer: &Printer,
) -> anyhow::Result<(Checkpoint, f64)> {
    let worst = worst_difference(&reduced.model, &written, kernel_length)?;
    warn_of_rounding(worst, printer);
    let blocks = reduced.model.blocks().iter().zip(written);
    let blocks = blocks.map(|(block, mut systems)| {
        let backward = systems.split_off(block.systems().len());
        block.with_systems(systems, backward)
    });
    let model = reduced
        .model
        .with_blocks(blocks.collect::<Result<_, _>>()?)?;
    Ok((reduced.with_model(model), worst))
}

pub(super) fn warn_of_rounding(worst: f64, printer: &Printer) {
    if worst > ROUNDING_MAX {
        let text = format!(
            "rounding to the file's number format changes a kernel by {}: its residues nearly cancel; \
             accuracies are those of the written file",
            percent(worst)
        );
        printer.note("warning", &text);
    }
}

/// The largest relative difference of any channel's kernel between what was planned and written.
fn worst_difference(
    planned: &Model,
    written: &[Vec<DiagonalSystem>],
    length: usize,
) -> anyhow::Result<f64> {
    let pairs = planned.blocks().iter().zip(written);
    pairs
        .map(|(planned, written)| layer_difference(planned, written, length))
        .try_fold(0.0, |worst, layer| Ok(f64::max(worst, layer?)))
}

/// The same of one layer.
pub(super) fn layer_difference(
    planned: &Block,
    written: &[DiagonalSystem],
    length: usize,
) -> anyhow::Result<f64> {
    let planned = planned.systems().iter().chain(planned.backward());
    let pairs: Vec<_> = planned.zip(written).collect();
    let errors = pairs
        .par_iter()
        .map(|(planned, written)| Ok(kernel_distance(planned, written, length)?.relative()));
    errors.try_reduce(|| 0.0, |a, b| Ok(f64::max(a, b)))
}
