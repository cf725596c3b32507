//! `compress-model inspect`.

use anyhow::Context;
use clap::Args;
use hankelite::advanced::{LayerMeasure, layer_measure, step_statistics};
use hankelite::checkpoint::{Checkpoint, Provenance};
use hankelite::compress::{LayerSpectrum, TimeBase, inspect};
use hankelite::infer::{Network, Path};
use hankelite::{Declared, Suited};
use hankelite_archive::WeightSet;
use hankelite_control::Realisation;
use hankelite_data::{Dataset, Source};
use serde::Serialize;

use crate::cli::common::{
    Declarations, Input, TIME_BASES, grouped, open, open_dynamics, positive, require_length, short,
    words,
};
use crate::cli::printer::Printer;
use crate::cli::progress::Bars;
use crate::cli::report::{Alone, ReportFile, write_page};
use crate::report::{Spread, log_bars};

const EXAMPLES: &str = "\
Examples:
  compress-model inspect model.pth
  compress-model inspect model.pth --channels
  compress-model inspect model.pth --time continuous --realisation complex
  compress-model inspect model.pth --data mnist:data/mnist
  compress-model inspect model.pth --format json | jq '.layers[0].channels[0]'";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// The time base whose Hankel singular values are shown [default: discrete; for layers that run at
    /// any step continuous, or impulses].
    #[arg(hide_short_help = true, long, value_parser = words::<TimeBase>(TIME_BASES))]
    time: Option<TimeBase>,
    /// The system whose values are shown: the real one, whose output the network uses, or the
    /// complex
    /// modes as stored.
    #[arg(hide_short_help = true, long, default_value = "real", value_parser = words::<Realisation>(["real", "complex"]))]
    realisation: Realisation,
    /// Show a row for each channel too.
    #[arg(long)]
    channels: bool,
    /// Sequences (any data source of `evaluate`): also show the generalisation measure of every
    /// layer on its inputs.
    #[arg(long, value_name = "DATA")]
    data: Option<Source>,
    /// With --data: use the first N sequences only.
    #[arg(hide_short_help = true, long, value_name = "N", value_parser = positive, requires = "data")]
    limit: Option<usize>,
    #[command(flatten)]
    report: ReportFile,
    #[command(flatten)]
    declarations: Declarations,
}

#[derive(Serialize)]
struct Document<'a> {
    checkpoint: String,
    family: &'static str,
    parameters: usize,
    time: TimeBase,
    realisation: Realisation,
    assumptions: &'a [String],
    notes: &'a [String],
    /// The sets of weights of the file, where there are several.
    parts: &'a [WeightSet],
    /// How the file came about, where this program reduced it.
    provenance: Option<&'a Provenance>,
    layers: Vec<Layer>,
}

#[derive(Serialize)]
struct Layer {
    parameters: usize,
    #[serde(flatten)]
    spectrum: LayerSpectrum,
    /// Absent without data.
    measure: Option<LayerMeasure>,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let path = &arguments.input.checkpoint;
    let declared = arguments.declarations.declared();
    let data = Measured {
        source: arguments.data.as_ref(),
        limit: arguments.limit,
    };
    let mut inputs = vec![path.as_path()];
    inputs.extend(arguments.data.as_ref().and_then(Source::path));
    arguments.report.check(&inputs)?;
    let (checkpoint, measures) = match (&arguments.report.path, &arguments.data) {
        // The bytes of a device are those of the whole network.
        (Some(_), None) => (open(path, &declared, printer)?, Vec::new()),
        _ => open_measured(path, &declared, data, printer)?,
    };
    let realisation = arguments.realisation;
    let time = arguments.time.unwrap_or(Suited::to(&checkpoint).time);
    let mut document = Document {
        checkpoint: path.display().to_string(),
        family: checkpoint.family(),
        parameters: checkpoint.parameters()?,
        time,
        realisation,
        assumptions: checkpoint.assumptions(),
        notes: checkpoint.notes(),
        parts: checkpoint.weight_sets(),
        provenance: checkpoint.provenance(),
        layers: layers(&checkpoint, time, realisation, printer)?,
    };
    for (layer, measure) in document.layers.iter_mut().zip(measures) {
        layer.measure = Some(measure);
    }
    let written = match &arguments.report.path {
        Some(file) => {
            let alone = Alone {
                path,
                checkpoint: &checkpoint,
                scores: None,
                statistics: None,
            };
            Some(write_page(&alone.page(&document, printer)?, file)?)
        }
        None => None,
    };
    if printer.is_json() {
        return printer.json(&document);
    }
    show(&document, arguments.channels, printer)?;
    match written {
        Some(report) => report.show(printer),
        None => Ok(()),
    }
}

fn layers(
    checkpoint: &Checkpoint,
    time: TimeBase,
    realisation: Realisation,
    printer: &Printer,
) -> anyhow::Result<Vec<Layer>> {
    let spectra = inspect(&checkpoint.model, time, realisation, &Bars::new(printer))?;
    let layers = spectra.into_iter().enumerate();
    let layers = layers.map(|(index, spectrum)| {
        Ok(Layer {
            parameters: checkpoint.layer_parameters(index),
            spectrum: spectrum.with_steps(checkpoint.steps_of_modes(index)?),
            measure: None,
        })
    });
    layers.collect()
}

/// The sequences that a generalisation measure is taken on.
pub(super) struct Measured<'a> {
    /// `None` for no measure.
    pub(super) source: Option<&'a Source>,
    /// The first so many; `None` for all.
    pub(super) limit: Option<usize>,
}

/// A checkpoint, and with data the generalisation measure of every layer on its inputs; without data the network around the layers need not be known.
pub(super) fn open_measured(
    path: &std::path::Path,
    declared: &Declared,
    data: Measured<'_>,
    printer: &Printer,
) -> anyhow::Result<(Checkpoint, Vec<LayerMeasure>)> {
    let Some(source) = data.source else {
        return Ok((open_dynamics(path, declared, printer)?, Vec::new()));
    };
    let checkpoint = open(path, declared, printer)?;
    let measures = measures(&checkpoint, source, data.limit)?;
    Ok((checkpoint, measures))
}

fn measures(
    checkpoint: &Checkpoint,
    source: &Source,
    limit: Option<usize>,
) -> anyhow::Result<Vec<LayerMeasure>> {
    let data = Dataset::read(source, None)?;
    require_length(checkpoint, data.length())?;
    let count = limit.unwrap_or(data.len()).min(data.len());
    let sequences: Vec<_> = (0..count).map(|index| data.sequence(index)).collect();
    let model = &checkpoint.model;
    let network = Network::new(model, data.length(), Path::Double)?;
    let statistics = step_statistics(&network, &sequences)?;
    let layers = model.blocks().iter().zip(&statistics);
    let measured = layers.map(|(block, statistics)| {
        let measure = layer_measure(block.systems(), statistics);
        measure.with_context(|| format!("layer `{}`", block.name()))
    });
    measured.collect()
}

fn show_measures(document: &Document<'_>, printer: &Printer) -> anyhow::Result<()> {
    let measured = document.layers.iter();
    let measured: Vec<_> = measured
        .filter_map(|layer| Some((&layer.spectrum.name, layer.measure.as_ref()?)))
        .collect();
    let Some((_, first)) = measured.first() else {
        return Ok(());
    };
    printer.line("")?;
    let sequences = first.sequences;
    printer.heading(&format!(
        "generalisation measure on the layers' inputs, n = {sequences} sequences"
    ))?;
    let header = ["layer", "ψ median", "ψ max", "τ = mean ψ²", "τ/√n"];
    let rows = measured.iter().map(|(name, measure)| {
        let mut psi = measure.psi.clone();
        psi.sort_by(f64::total_cmp);
        vec![
            name.to_string(),
            short(psi[psi.len() / 2]),
            short(psi[psi.len() - 1]),
            short(measure.tau),
            short(measure.per_root()),
        ]
    });
    printer.table(&header, rows.collect())
}

fn show(document: &Document<'_>, channels: bool, printer: &Printer) -> anyhow::Result<()> {
    printer.heading(&format!(
        "{}: {}, {} layers, {} parameters",
        document.checkpoint,
        document.family,
        document.layers.len(),
        grouped(document.parameters),
    ))?;
    if let Some(made) = document.provenance {
        let on = made.calibration.as_ref();
        let on = on.map_or(String::new(), |origin| format!(", calibrated on {origin}"));
        let hash = match made.source_sha256.as_str() {
            "" => String::new(),
            hash => format!(" (SHA-256 {hash})"),
        };
        printer.line(&format!(
            "reduced from {}{hash} by version {}: {}{on}; states {:?} → {:?}",
            made.source, made.version, made.method, made.orders_before, made.orders
        ))?;
    }
    show_parts(document.parts, printer)?;
    let header = [
        "layer",
        "channels",
        "states",
        "step min",
        "step max",
        "slowest |a|",
        "stable",
        "parameters",
    ];
    let rows = document.layers.iter().map(|layer| {
        let spectrum = &layer.spectrum;
        let slowest = spectrum
            .channels
            .iter()
            .map(|c| c.slowest_pole)
            .fold(0.0, f64::max);
        vec![
            spectrum.name.clone(),
            spectrum.channels.len().to_string(),
            spectrum.order.to_string(),
            short(spectrum.step_min),
            short(spectrum.step_max),
            format!("{slowest:.6}"),
            stability(spectrum),
            grouped(layer.parameters),
        ]
    });
    printer.table(&header, rows.collect())?;
    show_measures(document, printer)?;
    for layer in &document.layers {
        printer.line("")?;
        show_spectrum(&layer.spectrum, document, printer)?;
        if channels {
            show_channels(&layer.spectrum, printer)?;
        }
    }
    Ok(())
}

/// The sets of weights of a file that holds several.
fn show_parts(parts: &[WeightSet], printer: &Printer) -> anyhow::Result<()> {
    if parts.is_empty() {
        return Ok(());
    }
    let rows = parts.iter().map(|part| {
        let read = if part.read { "yes" } else { "no" };
        let bytes = grouped(usize::try_from(part.bytes).unwrap_or(usize::MAX));
        vec![part.name.clone(), grouped(part.tensors), bytes, read.into()]
    });
    printer.table(&["part", "tensors", "bytes", "read"], rows.collect())?;
    printer.line("")
}

fn stability(spectrum: &LayerSpectrum) -> String {
    let unstable = spectrum
        .channels
        .iter()
        .filter(|channel| !channel.stable)
        .count();
    if unstable == 0 {
        "yes".to_string()
    } else {
        format!("no ({unstable} channels)")
    }
}

/// The picture shows the spread over channels of every σ_j/σ₁.
fn show_spectrum(
    spectrum: &LayerSpectrum,
    document: &Document<'_>,
    printer: &Printer,
) -> anyhow::Result<()> {
    let scaled = scaled(spectrum);
    let time = match document.time {
        TimeBase::Discrete => "discrete time",
        TimeBase::Continuous => "continuous time",
        TimeBase::Impulses => "continuous time, samples as impulses",
    };
    let system = match document.realisation {
        Realisation::Real => "real system",
        Realisation::Complex => "complex modes",
    };
    printer.heading(&format!(
        "{}: Hankel singular values, each over the largest of its channel ({time}, {system})",
        spectrum.name
    ))?;
    if scaled.is_empty() {
        return printer.line("  no stable channel: there are no Hankel singular values");
    }
    let spreads = spreads(&scaled);
    let bars = log_bars(&spreads, printer.width().saturating_sub(MARGIN));
    let margin = bars.labels.first().map_or(0, String::len);
    for (label, row) in bars.labels.iter().zip(&bars.rows) {
        printer.picture(label, row)?;
    }
    let wide = bars.rows.first().map_or(0, |row| row.chars().count());
    let floor = bars.labels.last().map_or("", String::as_str);
    printer.line(&format!("  {floor} └{}", "─".repeat(wide)))?;
    printer.line(&format!("  {:margin$}  {}", "", bars.numbers))?;
    let states = match document.realisation {
        Realisation::Real => format!(
            "real states: two for each of the {} that a channel stores",
            spectrum.order
        ),
        Realisation::Complex => "stored states".to_string(),
    };
    printer.line(&format!("  {:margin$}  {states}", ""))?;
    let below = spreads.iter().position(|spread| spread.median < bars.floor);
    if let (Some(first), Some(last)) = (below, spreads.last()) {
        let (first, last) = (first + 1, short(last.median));
        printer.line(&format!(
            "  {:margin$}  below the axis: the medians from {first} on, down to {last}",
            ""
        ))?;
    }
    match scaled.len() {
        1 => Ok(()),
        channels => printer.line(&format!(
            "  {:margin$}  of {channels} channels 9 in 10 reach as high as █, half as ▓, 1 in 10 \
             as ░",
            ""
        )),
    }
}

/// Beside the bars: labels and the axis.
const MARGIN: usize = 9;

/// The values of every stable channel over the largest of them.
fn scaled(spectrum: &LayerSpectrum) -> Vec<Vec<f64>> {
    let channels = spectrum.channels.iter();
    let channels = channels.filter_map(|channel| {
        let values = &channel.hankel_singular_values;
        let largest = values.first().filter(|&&largest| largest > 0.0)?;
        Some(values.iter().map(|value| value / largest).collect())
    });
    channels.collect()
}

/// Of every value the tenth, the half and the nine tenths of the channels.
fn spreads(scaled: &[Vec<f64>]) -> Vec<Spread> {
    let states = scaled.iter().map(Vec::len).max().unwrap_or(0);
    let spread = |j: usize| {
        let values = scaled.iter();
        let mut values: Vec<f64> = values
            .map(|values| values.get(j).copied().unwrap_or(0.0))
            .collect();
        values.sort_by(f64::total_cmp);
        let last = values.len() - 1;
        Spread {
            low: values[last / 10],
            median: values[values.len() / 2],
            high: values[last - last / 10],
        }
    };
    (0..states).map(spread).collect()
}

fn show_channels(spectrum: &LayerSpectrum, printer: &Printer) -> anyhow::Result<()> {
    let header = [
        "channel",
        "step",
        "slowest |a|",
        "σ1",
        "σ2",
        "σ3",
        "σ last",
        "90 % energy",
        "99.9 %",
    ];
    let rows = spectrum.channels.iter().map(|channel| {
        let sigma = &channel.hankel_singular_values;
        let value = |j: usize| sigma.get(j).map_or("-".to_string(), |&value| short(value));
        vec![
            channel.index.to_string(),
            short(channel.step),
            format!("{:.6}", channel.slowest_pole),
            value(0),
            value(1),
            value(2),
            value(sigma.len().saturating_sub(1)),
            states_for(sigma, 0.9),
            states_for(sigma, 0.999),
        ]
    });
    printer.table(&header, rows.collect())
}

/// How many states hold a share of Σ σ².
fn states_for(sigma: &[f64], share: f64) -> String {
    let total: f64 = sigma.iter().map(|value| value * value).sum();
    let mut sum = 0.0;
    for (index, value) in sigma.iter().enumerate() {
        sum += value * value;
        if sum >= share * total {
            return (index + 1).to_string();
        }
    }
    "-".to_string()
}
