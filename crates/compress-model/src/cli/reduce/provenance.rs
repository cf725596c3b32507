//! The note of a written file on how it was made.

use std::path::Path;

use hankelite::Plan;
use hankelite::advanced::Longer;
use hankelite::calibrate::Choice;
use hankelite::checkpoint::{Checkpoint, Provenance};
use hankelite::compress::LayerRecord;

use crate::cli::common::word_of;
use crate::cli::report::hash_of;

/// How layers were made smaller.
pub(super) enum Way<'a> {
    Plan(&'a Plan),
    Calibrated(&'a Choice),
    /// To a target, calibrated on what is named.
    Target(&'a str),
}

/// The note of a reduction of a file, for its metadata.
pub(super) fn provenance(
    (source, read): (&Path, &Checkpoint),
    layers: &[LayerRecord],
    way: &Way<'_>,
) -> anyhow::Result<Provenance> {
    let sha256 = match source.is_file() {
        true => hash_of(source)?.1,
        false => String::new(),
    };
    // The hash is that of what was read.
    read.require_in_place()?;
    let (method, calibration) = match way {
        Way::Plan(plan) => {
            let [method, time, realisation] = [
                word_of(&plan.method()),
                word_of(&plan.time()),
                word_of(&plan.realisation()),
            ];
            (format!("{method}, {time} time, {realisation} system"), None)
        }
        Way::Calibrated(choice) => (
            format!(
                "balanced for the layers' inputs by their {}, refined",
                choice.weight
            ),
            Some(choice.origin.clone()),
        ),
        Way::Target(origin) => (
            "states and maps to a target, balanced for the layers' inputs, refined".to_string(),
            Some((*origin).to_string()),
        ),
    };
    let logit_change = match way {
        Way::Calibrated(choice) => choice.logit_change,
        _ => None,
    };
    let error = |layer: &LayerRecord| {
        let error = layer.relative_weighted_error;
        error.unwrap_or(layer.relative_kernel_error)
    };
    let name = source.file_name().unwrap_or(source.as_os_str());
    Ok(Provenance {
        source: name.to_string_lossy().into_owned(),
        source_sha256: sha256,
        method,
        orders_before: layers.iter().map(|layer| layer.order_before).collect(),
        orders: layers.iter().map(|layer| layer.order).collect(),
        calibration,
        errors: layers.iter().map(error).map(rounded).collect(),
        logit_change: logit_change.map(rounded),
        calibrated_steps: None,
        change_of_pairs: None,
        version: env!("CARGO_PKG_VERSION").to_string(),
    })
}

/// The note with what was measured beyond the calibrated steps.
pub(super) fn measured(mut note: Provenance, longer: Option<Longer>) -> Provenance {
    note.calibrated_steps = longer.map(|longer| longer.steps);
    note.change_of_pairs = longer.map(|longer| rounded(longer.change_of_pairs));
    note
}

/// In four digits, which is what the note is worth and keeps its length the same.
fn rounded(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// A note that is no shorter than that of any calibrated reduction of a checkpoint: what a file of
/// so many bytes has to leave room for.
pub(super) fn longest(
    source: &Path,
    checkpoint: &Checkpoint,
    origin: &str,
) -> anyhow::Result<Provenance> {
    let mut note = provenance((source, checkpoint), &[], &Way::Target(origin))?;
    let blocks = checkpoint.model.blocks();
    note.orders_before = blocks.iter().map(|block| block.order()).collect();
    note.orders.clone_from(&note.orders_before);
    // The most characters of four digits.
    note.errors = vec![1.234e-5; blocks.len()];
    note.logit_change = Some(1.234e-5);
    note.calibrated_steps = Some(u32::MAX as usize);
    note.change_of_pairs = Some(1.234e-5);
    Ok(note)
}
