//! The report of a reduction.

use std::path::Path;

use hankelite::calibrate::Calibration;
use hankelite::checkpoint::Checkpoint;
use hankelite_report::{Page, Pair, Plotted, Story};

use crate::cli::printer::Printer;
use crate::cli::reduce::Document;
use crate::cli::report::{footprint, laid_out, origin_rows, rates, title};

/// The report of a reduction of the first model to the second.
pub(super) fn page(
    [full, reduced]: [&Checkpoint; 2],
    document: &Document<'_>,
    statistics: Option<&Calibration>,
    printer: &Printer,
) -> anyhow::Result<Page> {
    let choice = document.calibration.as_ref();
    let held_out = document
        .held_out_change
        .map(|change| (change, "held-out sequences"));
    let calibrated = choice.and_then(|choice| choice.logit_change);
    let calibrated = calibrated.map(|change| (change, "the calibration sequences"));
    let footprint = footprint(full).map(|before| Pair {
        before,
        after: footprint(reduced),
    });
    let source = Path::new(&document.checkpoint);
    let other = Some(document.output.as_deref().unwrap_or("dry run"));
    let origin = choice.map(|choice| ("Calibration".to_string(), choice.origin.clone()));
    let story = Story {
        title: title(source, other),
        family: document.family,
        parameters: Pair {
            before: document.parameters_before,
            after: Some(document.parameters_after),
        },
        footprint,
        layers_alone: full.is_layers_alone(),
        accuracy: rates(document.before.as_ref(), document.after.as_ref()),
        logit_change: held_out.or(calibrated),
        assumptions: document.assumptions,
        warnings: document.notes.to_vec(),
        provenance: origin_rows(source, other, origin)?,
    };
    let drawn = Plotted {
        full: &full.model,
        reduced: Some(&reduced.model),
        calibration: statistics,
        records: Some(&document.layers),
        steps: document.kernel_length,
    };
    laid_out(story, &drawn, document, printer)
}
