//! How far rounding to the number format of the written file changes the kernels.

use std::path::Path;

use hankelite::checkpoint::{Checkpoint, Written, write};
use hankelite::compress::kernel_distance;
use hankelite::model::{Block, Model};
use hankelite_control::DiagonalSystem;
use rayon::prelude::*;

use crate::cli::printer::Printer;
use crate::cli::reduce::percent;

/// Rounding that changes a kernel by more gets a warning.
const ROUNDING_MAX: f64 = 0.01;

/// Writes a checkpoint: what was read back, and how far rounding changed a kernel.
pub(super) fn written(
    reduced: &Checkpoint,
    output: &Path,
    kernel_length: usize,
    printer: &Printer,
) -> anyhow::Result<(Checkpoint, f64)> {
    let written = write(reduced, output)?;
    let worst = worst_difference(&reduced.model, &written, kernel_length)?;
    warn_of_rounding(worst, printer);
    let mut model = reduced.model.clone();
    for (block, mut systems) in model.blocks.iter_mut().zip(written.layers) {
        block.backward = systems.split_off(block.systems.len());
        block.systems = systems;
    }
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
fn worst_difference(planned: &Model, written: &Written, length: usize) -> anyhow::Result<f64> {
    let pairs = planned.blocks.iter().zip(&written.layers);
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
    let planned = planned.systems.iter().chain(&planned.backward);
    let pairs: Vec<_> = planned.zip(written).collect();
    let errors = pairs.par_iter().map(|(planned, written)| {
        let (error, norm) = kernel_distance(planned, written, length)?;
        Ok(if error > 0.0 { error / norm } else { 0.0 })
    });
    errors.try_reduce(|| 0.0, |a, b| Ok(f64::max(a, b)))
}
