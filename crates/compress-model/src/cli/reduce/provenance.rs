//! What a written file and its card say of how it was made.

use std::fmt::Write as _;
use std::path::Path;

use hankelite::calibrate::{Choice, Longer};
use hankelite::checkpoint::{Checkpoint, Provenance};
use hankelite::compress::{LayerRecord, Plan};

use crate::cli::common::{grouped, word_of};
use crate::cli::reduce::Document;
use crate::cli::report::{hash_of, percent, typed_command};

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
    note.calibrated_steps = Some(usize::MAX >> 32);
    note.change_of_pairs = Some(1.234e-5);
    Ok(note)
}

/// A model card in the form of Hugging Face: a head in YAML, then words.
pub(super) fn card(document: &Document<'_>, provenance: &Provenance) -> String {
    let output = document.output.as_deref().unwrap_or_default();
    let name = Path::new(output)
        .file_stem()
        .unwrap_or_default()
        .to_string_lossy();
    let family = document.family.to_lowercase();
    let mut card = format!(
        "---\ntags:\n- state-space-model\n- {family}\n- model-compression\n- hankelite\n---\n\n# {name}\n\n\
         A smaller version of `{}`: {} with {} instead of {} parameters. It loads in the code of the \
         original with nothing changed but the state size, {:?} instead of {:?}.\n\n\
         ## How it was made\n\
         | | |\n|---|---|\n| source | `{}`, SHA-256 `{}` |\n| method | {} |\n",
        provenance.source,
        document.family,
        grouped(document.parameters_after),
        grouped(document.parameters_before),
        provenance.orders,
        provenance.orders_before,
        provenance.source,
        provenance.source_sha256,
        provenance.method,
    );
    let mut row = |name: &str, text: &str| {
        let _ = writeln!(card, "| {name} | {text} |");
    };
    if let Some(calibration) = &provenance.calibration {
        row(
            "calibrated on",
            &format!("{calibration}; no labels, no training"),
        );
    }
    let errors: Vec<String> = provenance
        .errors
        .iter()
        .map(|&error| percent(error))
        .collect();
    let of = match provenance.calibration {
        Some(_) => "error of each layer's output for its own input",
        None => "error of each layer's kernels",
    };
    row(of, &errors.join(", "));
    if let Some(change) = provenance.logit_change {
        row("change of the logits", &percent(change));
    }
    row("program", &format!("compress-model {}", provenance.version));
    row("command", &format!("`{}`", typed_command()));
    if let (Some(before), Some(after)) = (&document.before, &document.after) {
        let _ = write!(
            card,
            "\n## Evaluation\n| | before | after |\n|---|---|---|\n| accuracy on {} sequences | {before} | {after} |\n",
            after.examples
        );
    }
    card.push_str(
        "\n## Limits\nNumbers that were carried along from the source's file, such as a stored \
         accuracy or epoch, are those of the source. Licence and data are those of the source.\n",
    );
    card
}
