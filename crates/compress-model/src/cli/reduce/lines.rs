//! What a reduction prints.

use std::path::Path;

use hankelite::advanced::Longer;
use hankelite::calibrate::{Choice, GradientFit, Known, LogitFit};
use hankelite::checkpoint::FolderChanges;
use hankelite::compress::{LayerRecord, TimeBase};
use hankelite::{Plan, Rule};
use hankelite_archive::Container;
use hankelite_control::SystemClass;

use crate::cli::common::{grouped, quoted, short, wrote};
use crate::cli::printer::Printer;
use crate::cli::reduce::storage::{WrittenImage, show_kept};
use crate::cli::reduce::{Document, folder, free_family};
use crate::cli::report::percent;

pub(super) fn show(document: &Document<'_>, printer: &Printer) -> anyhow::Result<()> {
    let layers = match document.layers.len() {
        1 => "1 layer".to_string(),
        many => format!("{many} layers"),
    };
    let heading = format!("{}: {}, {layers}", document.checkpoint, document.family);
    printer.heading(&heading)?;
    match printer.is_verbose() {
        true => show_all(document, printer)?,
        false => summarise(document, printer)?,
    }
    if let Some(longer) = &document.longer {
        show_longer(longer, printer)?;
    }
    show_cost_of_layout(document, printer)?;
    show_notes(&document.layers, printer);
    show_kept(&document.kept_layers, printer);
    if let (Some(before), Some(after)) = (&document.before, &document.after) {
        printer.line(&format!("accuracy   {before} → {after}"))?;
    }
    warn_of_errors(document, printer);
    folder::show(
        document.folder.as_ref(),
        document.output.as_deref(),
        printer,
    )?;
    show_outcome(document, printer)?;
    for written in [&document.filters, &document.card].into_iter().flatten() {
        printer.line(&format!("wrote {written}"))?;
    }
    match &document.report {
        Some(report) => report.show(printer),
        None => Ok(()),
    }
}

/// States, parameters and errors of the whole network, a line each.
fn summarise(document: &Document<'_>, printer: &Printer) -> anyhow::Result<()> {
    let seconds = document.seconds;
    printer.line(&match &document.calibration {
        None => format!("states     {}", orders(&document.layers)),
        Some(choice) => format!("{}, {}", states_used(choice), orders(&document.layers)),
    })?;
    printer.line(&format!("{}, in {seconds:.2} s", parameters(document)))?;
    let steps = document.kernel_length;
    let Some(choice) = &document.calibration else {
        return match of_kernels(&document.layers) {
            Some(errors) => printer.line(&format!(
                "kernels    change by {errors}, over {steps} steps"
            )),
            None => Ok(()),
        };
    };
    let held_out = document.held_out_change;
    let held_out = held_out.or_else(|| choice.fit.as_ref().map(|fit| fit.after));
    let held_out = held_out.map_or(String::new(), |change| {
        format!(", {} on sequences held out", percent(change))
    });
    printer.line(&format!("{}{held_out}", error(choice)))?;
    printer.line(&format!(
        "calibrated on {} ({} steps)",
        choice.origin, choice.length
    ))
}

/// Everything that is known of single layers and of how the reduction went.
fn show_all(document: &Document<'_>, printer: &Printer) -> anyhow::Result<()> {
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
    let orders: Vec<usize> = document.layers.iter().map(|layer| layer.order).collect();
    printer.line(&format!(
        "{}, orders {orders:?}, in {:.2} s",
        parameters(document),
        document.seconds,
    ))
}

/// "parameters 5,514 → 2,442 (44.3 %)"
fn parameters(document: &Document<'_>) -> String {
    format!(
        "parameters {} → {} ({:.1} %)",
        grouped(document.parameters_before),
        grouped(document.parameters_after),
        100.0 * document.parameters_after as f64 / document.parameters_before as f64,
    )
}

/// "32 → 8 in each layer", or from the least to the most.
fn orders(layers: &[LayerRecord]) -> String {
    let range = |order: fn(&LayerRecord) -> usize| {
        let orders = layers.iter().map(order);
        let (least, most) = (orders.clone().min(), orders.max());
        match (least, most) {
            (Some(least), Some(most)) if least < most => format!("{least} to {most}"),
            (least, _) => least.unwrap_or(0).to_string(),
        }
    };
    let (before, after) = (
        range(|layer| layer.order_before),
        range(|layer| layer.order),
    );
    format!("{before} → {after} in each layer")
}

/// The least and the largest error of a kernel, and where it is.
fn of_kernels(layers: &[LayerRecord]) -> Option<String> {
    let error = |layer: &&LayerRecord| layer.relative_kernel_error;
    let by_error = |a: &&LayerRecord, b: &&LayerRecord| error(a).total_cmp(&error(b));
    let (least, worst) = (
        layers.iter().min_by(by_error)?,
        layers.iter().max_by(by_error)?,
    );
    let largest = percent(error(&worst));
    Some(match layers.len() {
        1 => largest,
        _ => format!("{} to {largest} ({})", percent(error(&least)), worst.name),
    })
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
    // What does not decay is calibrated for oscillators alone, and events count as one step apart.
    let calibrates = |plan: &&Plan| {
        let decays = document.class.is_some() || !plan.unstable();
        worst > LARGE && decays && plan.time() != TimeBase::Impulses
    };
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

/// What it cost to keep to what the layout can hold, and a layout without that cost.
fn show_cost_of_layout(document: &Document<'_>, printer: &Printer) -> anyhow::Result<()> {
    let calibrated = document.calibration.is_some();
    let layers = document.layers.iter();
    let mut both = layers.filter_map(|layer| {
        let (held, free) = match calibrated {
            true => (
                layer.relative_weighted_error?,
                layer.free_relative_weighted_error?,
            ),
            false => (layer.relative_h2_error, layer.free_relative_h2_error?),
        };
        Some((held, free, &layer.name))
    });
    let worst = both.clone().max_by(|a, b| a.0.total_cmp(&b.0));
    let Some((held, free, name)) = worst else {
        return Ok(());
    };
    // Real poles may be asked for where the file holds all.
    let class = document.class.unwrap_or(SystemClass::RealPoles);
    let what = match class {
        SystemClass::RealPoles => "real poles",
        _ => "in layout",
    };
    let of = if calibrated { "weighted" } else { "H2" };
    printer.line(&format!(
        "{what} {of} error {}, {} with free poles at the same order ({name})",
        percent(held),
        percent(free),
    ))?;
    if both.any(|(held, free, _)| held > SMALL && held > WORSE * free) {
        let free = free_family(class);
        let text = format!(
            "the layout of {} holds {class} only; `compress-model convert {} FILE --to {free}` writes one that \
             holds all poles, which the original code does not load",
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
    let mut shared = states_used(choice);
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
    let mut error = error(choice);
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

/// "states     1,024 → 256 used (25.0 %)"
fn states_used(choice: &Choice) -> String {
    format!(
        "states     {} → {} used ({:.1} %)",
        grouped(choice.states_before),
        grouped(choice.states),
        100.0 * choice.states as f64 / choice.states_before as f64
    )
}

/// "error      10.92 % of the layers' output, 5.73 % of the logits"
fn error(choice: &Choice) -> String {
    let of_layers = percent(choice.relative_error);
    let of_logits = choice.logit_change;
    let of_logits = of_logits.map_or(String::new(), |change| {
        format!(", {} of the logits", percent(change))
    });
    format!("error      {of_layers} of the layers' output{of_logits}")
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
            match &document.folder {
                Some(changes) => with_copies(changes, output),
                None => container(Path::new(output)).to_string(),
            },
            percent(rounding),
        )),
        _ if document.image.is_some() => Ok(()),
        _ => printer.line("dry run: nothing was written"),
    }
}

/// How many files were copied with a checkpoint.
fn with_copies(changes: &FolderChanges, output: &str) -> String {
    match (Container::of_path(output), changes.copied) {
        (Some(_), _) | (None, 0) => String::new(),
        (None, 1) => " with 1 file beside the tensors".to_string(),
        (None, copied) => format!(" with {copied} files beside the tensors"),
    }
}

/// A remark when the ending of the output names no container.
fn container(output: &Path) -> &'static str {
    match Container::of_path(output) {
        Some(_) => "",
        None => " (in the container of the source, since its ending names none)",
    }
}

/// Remarks that a summary has room for.
const REMARKS: usize = 2;

/// Every remark once, with the channels that it concerns.
fn show_notes(layers: &[LayerRecord], printer: &Printer) {
    let mut seen: Vec<(&str, Vec<(&str, usize)>)> = Vec::new();
    for layer in layers {
        for channel in &layer.channels {
            let place = (layer.name.as_str(), channel.index);
            for note in &channel.notes {
                match seen.iter_mut().find(|(text, _)| text == note) {
                    Some((_, places)) => places.push(place),
                    None => seen.push((note, vec![place])),
                }
            }
        }
    }
    let shown = if printer.is_verbose() {
        seen.len()
    } else {
        REMARKS
    };
    for (text, places) in seen.iter().take(shown) {
        printer.note("note", &format!("{}: {text}", which(places)));
    }
    if let Some(left @ 1..) = seen.len().checked_sub(shown) {
        printer.note(
            "note",
            &format!("{left} more remarks on channels: -v lists them"),
        );
    }
}

/// "s4_layers.3, channel 36", "s4_layers.3, 4 channels" or "9 channels of 3 layers".
fn which(places: &[(&str, usize)]) -> String {
    let mut layers: Vec<&str> = places.iter().map(|&(layer, _)| layer).collect();
    layers.dedup();
    match (layers.as_slice(), places) {
        ([layer], [(_, channel)]) => format!("{layer}, channel {channel}"),
        ([layer], many) => format!("{layer}, {} channels", many.len()),
        (layers, many) => format!("{} channels of {} layers", many.len(), layers.len()),
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
