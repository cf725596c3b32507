//! What a model of a size is printed as.

use std::path::Path;

use crate::cli::common::{grouped, short, wrote};
use crate::cli::printer::Printer;
use crate::cli::reduce::chosen::Choice;
use crate::cli::reduce::folder;
use crate::cli::reduce::lines::show_longer;
use crate::cli::reduce::storage::show_kept;
use crate::cli::reduce::target::{Document, entries};
#[cfg(feature = "train")]
use crate::cli::reduce::training;
use crate::cli::report::percent;

/// What was made, in few lines, or with `--verbose` in tables.
pub(super) fn show(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    if !printer.is_verbose() {
        return summarise(document, printer);
    }
    printer.heading(&format!("{}: {}", document.checkpoint, document.family))?;
    show_layers(document, printer)?;
    show_sizes(document, printer)?;
    show_changes(document, printer)?;
    show_files(document, printer)
}

/// Bytes, change, accuracy and time of the whole network, a line each.
fn summarise(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    let (before, after) = (document.size_before.total(), document.size.total());
    let share = format!("1/{:.1}", before as f64 / after.max(1) as f64);
    show_heading(document, &share, printer)?;
    printer.line(&format!(
        "calibrated on {}: {} used, {} held out",
        document.origin, document.sequences[0], document.sequences[1],
    ))?;
    show_changes(document, printer)?;
    show_step(document, printer)?;
    document.show_written(printer)
}

/// "model.pth: S4D, 1/6.1 of the bytes, 31,136 → 5,132 (weights and state)"
fn show_heading(document: &Document, share: &str, printer: &Printer) -> anyhow::Result<()> {
    printer.heading(&format!(
        "{}: {}, {share} of the bytes, {} → {} (weights and state)",
        document.checkpoint,
        document.family,
        grouped(document.size_before.total()),
        grouped(document.size.total()),
    ))
}

/// "a step     0.681 → 0.741 us on this machine, in 6.3 s"
fn show_step(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    printer.line(&format!(
        "a step     {} → {} us on this machine, in {:.1} s",
        short(document.step_microseconds_before),
        short(document.step_microseconds),
        document.seconds
    ))
}

/// What became of logits and accuracy.
fn show_changes(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    let held_out = document.held_out_change.map_or(String::new(), |change| {
        format!(", {} on the sequences held out", percent(change))
    });
    let when = match document.training() {
        Some(_) => ", before the training",
        None => "",
    };
    printer.line(&format!(
        "logits     change by {}{held_out}{when}",
        percent(document.changes.after),
    ))?;
    show_training(document, printer)?;
    if let Some(longer) = &document.longer {
        show_longer(longer, printer)?;
    }
    if let (Some(before), Some(after)) = (&document.before, &document.after) {
        printer.line(&format!("accuracy   {before} → {after}"))?;
    }
    Ok(())
}

/// What the training did, where there was one.
#[cfg(feature = "train")]
fn show_training(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    let report = document.trained.as_ref();
    report.map_or(Ok(()), |report| training::show(report, printer))
}

/// Nothing, without a trainer.
#[cfg(not(feature = "train"))]
fn show_training(_: &Document, _: &Printer) -> anyhow::Result<()> {
    Ok(())
}

/// A row for each layer.
fn show_layers(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    let header = [
        "layer",
        "states",
        "largest",
        "map",
        "other numbers",
        "weighted error",
    ];
    let plan = &document.size_plan;
    let layers = document.layers.iter().zip(&plan.layers).zip(&plan.orders);
    let rows = layers.map(|((record, choice), orders)| {
        let states: usize = orders.iter().sum();
        vec![
            record.name.clone(),
            match orders.as_slice() {
                [shared] => match choice.systems {
                    Some(systems) => format!("{shared} shared, {}", entries(Some(systems))),
                    None => format!("{shared} shared"),
                },
                _ => format!("{:.2} a channel", states as f64 / orders.len() as f64),
            },
            orders.iter().max().copied().unwrap_or(0).to_string(),
            entries(choice.map),
            format!("{:?}", choice.numbers).to_lowercase(),
            record
                .relative_weighted_error
                .map_or("-".to_string(), percent),
        ]
    });
    printer.table(&header, rows.collect())
}

/// What was chosen where no size was given, in few lines.
pub(super) fn show_chosen(
    document: &Document,
    choice: &Choice,
    again: &str,
    printer: &Printer,
) -> anyhow::Result<()> {
    show_heading(document, &format!("1/{}", choice.times), printer)?;
    if let Some(text) = choice.remark() {
        printer.note("note", &text);
    }
    printer.line(&choice.shown())?;
    show_training(document, printer)?;
    match (&document.before, &document.after) {
        (Some(before), Some(after)) => printer.line(&format!("accuracy   {before} → {after}"))?,
        _ => printer.line(&format!(
            "logits     change by {} on the sequences held out",
            document.held_out_change.map_or("-".to_string(), percent)
        ))?,
    }
    show_step(document, printer)?;
    document.show_written(printer)?;
    printer.line(&format!("again:     {again}"))
}

/// What was calibrated on, and what bytes and time became.
fn show_sizes(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    let plan = &document.size_plan;
    printer.line(&format!(
        "calibrated on {}: {} used, {} held out; encoder {}, head {}",
        document.origin,
        document.sequences[0],
        document.sequences[1],
        entries(plan.encoder),
        entries(plan.head),
    ))?;
    let (before, after) = (document.size_before, document.size);
    for (name, before, after) in [
        ("weights", before.weights, after.weights),
        ("state", before.state, after.state),
        ("together", before.total(), after.total()),
    ] {
        printer.line(&format!(
            "{name:9}  {} → {} bytes (1/{:.1})",
            grouped(before),
            grouped(after),
            before as f64 / after.max(1) as f64
        ))?;
    }
    printer.line(&format!(
        "a step     {} → {} us on this machine ({:.2} times as fast)",
        short(document.step_microseconds_before),
        short(document.step_microseconds),
        document.step_microseconds_before / document.step_microseconds,
    ))
}

fn show_files(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    printer.line(&format!(
        "parameters {} → {} in a checkpoint, orders {:?}, in {:.1} s",
        grouped(document.parameters_before),
        grouped(document.parameters_after),
        document.d_state,
        document.seconds,
    ))?;
    document.show_written(printer)
}

impl Document {
    /// Layers that stay, and every file with its bytes and what of the target is in it.
    fn show_written(&self, printer: &Printer) -> anyhow::Result<()> {
        show_kept(&self.kept_layers, printer);
        folder::show(self.folder.as_ref(), self.output.as_deref(), printer)?;
        if let Some(output) = &self.output {
            let text = wrote(output, Path::new(&self.checkpoint));
            let orders = match self.family {
                "S4D" => {
                    let states = self.d_state.iter().map(|order| 2 * order);
                    format!("d_state of its layers {:?}", states.collect::<Vec<_>>())
                }
                _ => format!("modes of its layers {:?}", self.d_state),
            };
            printer.line(&format!("{text}: {orders}; maps are rounded, not packed"))?;
            if self.image.is_none() {
                printer.note(
                    "note",
                    "only an image holds maps in few bits: add --image small.edge",
                );
            }
        }
        if let Some(image) = self.image_path() {
            printer.line(&wrote(image, Path::new(&self.checkpoint)))?;
        }
        if let Some(card) = &self.card {
            printer.line(&format!("wrote {card}"))?;
        }
        if self.dry_run {
            printer.line("dry run: no model was written")?;
        }
        match &self.report {
            Some(report) => report.show(printer),
            None => Ok(()),
        }
    }
}
