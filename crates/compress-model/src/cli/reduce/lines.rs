//! What a reduction prints.

use std::path::Path;

use hankelite::calibrate::{Choice, GradientFit, Known, LogitFit, Longer};
use hankelite::compress::{LayerRecord, Method, Plan, Rule};
use hankelite_archive::Container;

use crate::cli::common::{grouped, quoted, short, wrote};
use crate::cli::printer::Printer;
use crate::cli::reduce::Document;
use crate::cli::reduce::storage::{WrittenImage, show_kept};
use crate::cli::report::percent;

pub(super) fn show(document: &Document<'_>, printer: &Printer) -> anyhow::Result<()> {
    printer.heading(&format!("{}: {}", document.checkpoint, document.family))?;
    show_layers(document, printer)?;
    if let Some(choice) = &document.calibration {
        show_choice(choice, printer)?;
    }
    if let Some(change) = document.held_out_change {
        let change = percent(change);
        printer.line(&format!(
            "The logits of held-out sequences change by {change}."
        ))?;
    }
    if let Some(longer) = &document.longer {
        show_longer(longer, printer)?;
    }
    show_real_poles(document, printer)?;
    show_notes(&document.layers, printer);
    show_kept(&document.kept_layers, printer);
    let orders: Vec<usize> = document.layers.iter().map(|layer| layer.order).collect();
    printer.line(&format!(
        "parameters {} → {} ({:.1} %), orders {orders:?}, in {:.2} s",
        grouped(document.parameters_before),
        grouped(document.parameters_after),
        100.0 * document.parameters_after as f64 / document.parameters_before as f64,
        document.seconds,
    ))?;
    if let (Some(before), Some(after)) = (&document.before, &document.after) {
        printer.line(&format!("accuracy   {before} → {after}"))?;
    }
    warn_of_errors(document, printer);
    show_outcome(document, printer)?;
    if let Some(card) = &document.card {
        printer.line(&format!("wrote {card}"))?;
    }
    match &document.report {
        Some(report) => report.show(printer),
        None => Ok(()),
    }
}

/// Kernel errors from which on a network is unlikely to be what it was.
const LARGE: f64 = 0.1;

/// A warning where kernels change much, with a command that does better.
fn warn_of_errors(document: &Document<'_>, printer: &Printer) {
    let errors = document
        .layers
        .iter()
        .map(|layer| layer.relative_kernel_error);
    let worst = errors.fold(0.0, f64::max);
    // Calibration leaves the real axis.
    let calibrates = |plan: &&Plan| worst > LARGE && plan.method() != Method::RealPoles;
    let Some(plan) = document.plan.filter(calibrates) else {
        return;
    };
    let size = match plan.rule() {
        Rule::Order(order) => format!("--order {order}"),
        _ => "--budget 1/4".to_string(),
    };
    let text = format!(
        "kernels change by up to {}, since every channel was reduced for white noise: `compress-model \
         reduce {} --calibrate DATA {size} --output FILE` reduces for the inputs that the layers get; DATA are \
         sequences, or captured inputs of the layers",
        percent(worst),
        quoted(&document.checkpoint),
    );
    printer.note("warning", &text);
}

/// How much larger than that of free poles an error is, from which on another layout is worth naming.
const WORSE: f64 = 1.1;

/// Errors below this share of a kernel are small whatever the poles.
const SMALL: f64 = 1e-3;

/// What it cost to keep poles real, and a layout without that cost.
fn show_real_poles(document: &Document<'_>, printer: &Printer) -> anyhow::Result<()> {
    let layers = document.layers.iter();
    let mut both = layers.filter_map(|layer| {
        let free = layer.free_relative_h2_error?;
        Some((layer.relative_h2_error, free, &layer.name))
    });
    let worst = both.clone().max_by(|a, b| a.0.total_cmp(&b.0));
    let Some((real, free, name)) = worst else {
        return Ok(());
    };
    printer.line(&format!(
        "real poles H2 error {}, {} with free poles at the same order ({})",
        percent(real),
        percent(free),
        name,
    ))?;
    if both.any(|(real, free, _)| real > SMALL && real > WORSE * free) {
        let text = format!(
            "the layout of {} holds positive real poles only; `compress-model convert {} FILE --to s4d` \
             writes one that holds all poles, which the original code does not load",
            document.family,
            quoted(&document.checkpoint),
        );
        printer.note("hint", &text);
    }
    Ok(())
}

/// A row for each layer.
fn show_layers(document: &Document<'_>, printer: &Printer) -> anyhow::Result<()> {
    let length = document.kernel_length;
    let kernel = format!("kernel error, L = {length}");
    let (cut, bound) = match document.calibration.is_some() {
        true => ("weighted error", "truncated only"),
        false => ("Σσ cut (all)", "bound (worst)"),
    };
    let header = [
        "layer", "states", cut, bound, "H2 error", &kernel, "cond(V)",
    ];
    let rows = document.layers.iter().map(|layer| {
        let (cut, bound) = match layer.relative_weighted_error {
            Some(error) => (percent(error), percent(layer.relative_truncation_error())),
            None => (
                layer.discarded.map_or("-".to_string(), short),
                finite(layer.error_bound, short),
            ),
        };
        vec![
            layer.name.clone(),
            states(layer),
            cut,
            bound,
            finite(layer.relative_h2_error, percent),
            percent(layer.relative_kernel_error),
            short(layer.condition),
        ]
    });
    printer.table(&header, rows.collect())
}

/// What to expect on sequences longer than those of the calibration.
pub(super) fn show_longer(longer: &Longer, printer: &Printer) -> anyhow::Result<()> {
    printer.line(&format!(
        "On sequences of {} steps, twice as long as those of the calibration, the logits change by {}; on \
         those of {} steps by {}.",
        longer.steps * 2,
        percent(longer.change_of_pairs),
        longer.steps,
        percent(longer.change),
    ))
}

/// What calibration chose, in a few lines.
fn show_choice(choice: &Choice, printer: &Printer) -> anyhow::Result<()> {
    printer.line(&format!(
        "calibrated on {} ({} steps), weighted by {}",
        choice.origin,
        choice.length,
        match choice.weight {
            "moments" => "their exact moments",
            _ => "their spectrum",
        },
    ))?;
    let mut shared = format!(
        "states     {} → {} used ({:.1} %)",
        grouped(choice.states_before),
        grouped(choice.states),
        100.0 * choice.states as f64 / choice.states_before as f64
    );
    if let Some(importance) = choice.importance {
        shared.push_str(&format!(", shared by {importance} importance"));
    }
    if choice.layer_factors.iter().any(|&factor| factor != 1.0) {
        let factors = choice.layer_factors.iter().map(f64::to_string);
        let factors: Vec<String> = factors.collect();
        shared.push_str(&format!(", layers times {}", factors.join(", ")));
    }
    printer.line(&shared)?;
    if let Some(text) = known(choice.known) {
        printer.line(text)?;
    }
    let mut error = format!(
        "error      {} of the layers' output",
        percent(choice.relative_error)
    );
    if let Some(change) = choice.logit_change {
        error.push_str(&format!(", {} of the logits", percent(change)));
    }
    match choice.sequential {
        Some(true) => {
            error.push_str("; layers reduced again for their inputs in the reduced network")
        }
        Some(false) => error.push_str("; reducing layers again brought nothing"),
        None => {}
    }
    printer.line(&error)?;
    if let Some(fit) = &choice.gradient_fit {
        printer.line(&fitted_by_gradients(fit))?;
    }
    match &choice.fit {
        Some(fit) => printer.line(&fitted(fit)),
        None => Ok(()),
    }
}

/// Which parts of the method could not run.
fn known(known: Known) -> Option<&'static str> {
    match known {
        Known::Inputs => {
            Some("Only the inputs of the layers are known: each channel was reduced by itself.")
        }
        Known::InputsAndGradients => Some(
            "Only the inputs of the layers and gradients of the logits are known: no logits were compared.",
        ),
        Known::Network => None,
    }
}

/// What fitting all channels together to first order brought.
fn fitted_by_gradients(fit: &GradientFit) -> String {
    match fit.price {
        None => "A fit of all channels together by gradients brings nothing.".to_string(),
        Some(_) => format!(
            "A fit of {} residues and feedthroughs by gradients brings the change of the logits, to first \
             order on held-out sequences, from {} to {}.",
            grouped(fit.parameters),
            short(fit.before),
            short(fit.after)
        ),
    }
}

/// What fitting all channels together brought.
fn fitted(fit: &LogitFit) -> String {
    if fit.steps == 0 {
        return "A fit of all channels together to the logits brings nothing.".to_string();
    }
    format!(
        "A fit of {} residues and feedthroughs to the logits brings their change on held-out sequences from {} \
         to {} ({} {}).",
        grouped(fit.parameters),
        percent(fit.before),
        percent(fit.after),
        fit.steps,
        if fit.steps == 1 { "step" } else { "steps" },
    )
}

/// "32 → 8", and where channels need different orders also what they use of it.
fn states(layer: &LayerRecord) -> String {
    let least = layer.channels.iter().map(|channel| channel.order).min();
    let stored = format!("{} → {}", layer.order_before, layer.order);
    match least {
        Some(least) if least < layer.order => format!("{stored} ({least} to {} used)", layer.order),
        _ => stored,
    }
}

fn show_outcome(document: &Document<'_>, printer: &Printer) -> anyhow::Result<()> {
    if let Some(WrittenImage { path, size }) = &document.image {
        let text = wrote(path, Path::new(&document.checkpoint));
        printer.line(&format!(
            "{text}: {} bytes of weights, {} of state",
            grouped(size.weights),
            grouped(size.state)
        ))?;
    }
    match (&document.output, document.rounding_error) {
        (Some(output), Some(rounding)) => printer.line(&format!(
            "{}{} and read it back; rounding to its number format changes kernels by {}",
            wrote(output, Path::new(&document.checkpoint)),
            container(Path::new(output)),
            percent(rounding),
        )),
        _ if document.image.is_some() => Ok(()),
        _ => printer.line("dry run: nothing was written"),
    }
}

/// A remark when the ending of the output names no container.
fn container(output: &Path) -> &'static str {
    match Container::of_path(output) {
        Some(_) => "",
        None => " (in the container of the source, since its ending names none)",
    }
}

/// Every remark once, with how many channels it concerns.
fn show_notes(layers: &[LayerRecord], printer: &Printer) {
    for layer in layers {
        let mut seen: Vec<(&str, Vec<usize>)> = Vec::new();
        for channel in &layer.channels {
            for note in &channel.notes {
                match seen.iter_mut().find(|(text, _)| *text == note) {
                    Some((_, channels)) => channels.push(channel.index),
                    None => seen.push((note, vec![channel.index])),
                }
            }
        }
        for (text, channels) in seen {
            let which = match channels.as_slice() {
                [one] => format!("channel {one}"),
                many => format!("{} channels", many.len()),
            };
            printer.note("note", &format!("{}, {which}: {text}", layer.name));
        }
    }
}

/// A number, or a dash where unstable modes leave none.
fn finite(value: f64, show: fn(f64) -> String) -> String {
    if value.is_finite() {
        show(value)
    } else {
        "-".to_string()
    }
}
