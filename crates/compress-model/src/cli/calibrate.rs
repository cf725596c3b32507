//! `compress-model calibrate`.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, anyhow, bail};
use clap::Args;
use hankelite::calibrate::{CalibrateError, Calibration};
use hankelite_archive::check_output;
use serde::Serialize;

use crate::cli::calibration::{CalibrationData, Needed, Part, Sequences, source_path};
use crate::cli::common::{Declarations, open, short};
use crate::cli::folders::Folders;
use crate::cli::printer::Printer;

const EXAMPLES: &str = "\
Examples:
  compress-model calibrate model.pth --data mnist:data/mnist --output model.stats
  compress-model calibrate model.pth --data train.safetensors --sequences 30 --output model.stats
  compress-model calibrate model.pth --inputs inputs.safetensors --output model.stats
  compress-model reduce model.pth --calibrate model.stats --order 4 --output small.pth
  compress-model calibrate model.pth --data train.safetensors --part 1/2 --output one.stats
  compress-model calibrate --merge one.stats two.stats --output model.stats

Statistics are a safetensors file: for each layer the autocorrelation (H × L) and the mean of every
channel's input, and the importance of its output for the logits. They serve `sweep`, `compare` and
`reduce --calibrate` without the data; with the data they do a little better, because they can
use exact moments and compare logits. Several machines share the work by --part, and --merge
gives what one run over all sequences gives, to rounding.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// The checkpoint: .safetensors, or a .pt, .pth or .ckpt file of torch.save.
    #[arg(value_name = "CKPT", required_unless_present = "merge")]
    checkpoint: Option<PathBuf>,
    /// Unlabelled sequences: any data source of `evaluate`.
    #[arg(long, value_name = "DATA", required_unless_present_any = ["inputs", "merge"])]
    data: Option<String>,
    /// Only the K-th of N equal shares of the sequences: the others are for other machines.
    #[arg(long, value_name = "K/N", requires = "data")]
    part: Option<Part>,
    /// Merge statistics files instead of measuring.
    #[arg(long, value_name = "STATS", num_args = 2.., conflicts_with_all = ["checkpoint", "data", "inputs"])]
    merge: Vec<PathBuf>,
    /// Inputs of the layers, captured in another program: a tensor (B, L, H) for each layer under its
    /// name, and perhaps NAME.output_gradient (B, K, L, H); .safetensors or .npz.
    #[arg(long, value_name = "FILE", conflicts_with = "data")]
    inputs: Option<PathBuf>,
    /// Where the statistics go.
    #[arg(long, short, value_name = "STATS")]
    output: PathBuf,
    #[command(flatten)]
    folders: Folders,
    #[command(flatten)]
    sequences: Sequences,
    #[command(flatten)]
    declarations: Declarations,
}

#[derive(Serialize)]
struct Layer<'a> {
    name: &'a str,
    channels: usize,
    /// (mean of R(0) over channels)^{1/2}.
    input_rms: f64,
    /// Mean of the squared mean over that of R(0): the constant share of the input's power.
    constant_share: f64,
    /// The largest importance over the mean.
    importance_spread: f64,
    /// Channels whose input is zero.
    zero_inputs: usize,
}

#[derive(Serialize)]
struct Document<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    checkpoint: Option<String>,
    /// What was put together.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    merged: Vec<String>,
    output: String,
    origin: &'a str,
    sequences: usize,
    length: usize,
    seconds: f64,
    layers: Vec<Layer<'a>>,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let start = Instant::now();
    arguments.folders.make([&arguments.output])?;
    let calibration = match &arguments.checkpoint {
        Some(path) => gathered(arguments, path, printer)?,
        None => merged(arguments)?,
    };
    calibration.write(&arguments.output)?;
    let shown = |path: &PathBuf| path.display().to_string();
    let document = Document {
        checkpoint: arguments.checkpoint.as_ref().map(shown),
        merged: arguments.merge.iter().map(shown).collect(),
        output: shown(&arguments.output),
        origin: calibration.origin(),
        sequences: calibration.sequences(),
        length: calibration.length(),
        seconds: start.elapsed().as_secs_f64(),
        layers: calibration.layers().iter().map(layer).collect(),
    };
    if printer.is_json() {
        return printer.json(&document);
    }
    show(&document, printer)
}

fn gathered(arguments: &Arguments, path: &Path, printer: &Printer) -> anyhow::Result<Calibration> {
    let source = arguments.data.as_deref().and_then(source_path);
    let mut inputs = vec![path];
    inputs.extend(source.as_deref().or(arguments.inputs.as_deref()));
    check_output(&arguments.output, &inputs)?;
    let checkpoint = open(path, &arguments.declarations.declared(), printer)?;
    let sequences = arguments.sequences.clone().of_part(arguments.part);
    let statistics = match (&arguments.inputs, &arguments.data) {
        (Some(file), _) => {
            CalibrationData::captured(file, &sequences, &checkpoint, printer)?.statistics
        }
        (None, source) => {
            let source = source.as_deref().unwrap_or_default();
            let needed = Needed::Statistics;
            CalibrationData::open(source, &sequences, &checkpoint, needed, printer)?.statistics
        }
    };
    statistics.context("no statistics were gathered")
}

fn merged(arguments: &Arguments) -> anyhow::Result<Calibration> {
    let paths: Vec<&Path> = arguments.merge.iter().map(PathBuf::as_path).collect();
    check_output(&arguments.output, &paths)?;
    let read = |path: &&Path| Calibration::read(path).with_context(|| path.display().to_string());
    let parts = paths.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    for (index, part) in parts.iter().enumerate() {
        let twin = parts[..index]
            .iter()
            .position(|known| known.origin() == part.origin());
        if let Some(twin) = twin {
            bail!(
                "{} and {} are both of {}: expected other sequences in each, as --part and \
                 --calibration-seed choose them",
                paths[twin].display(),
                paths[index].display(),
                part.origin()
            );
        }
    }
    let origins: Vec<&str> = parts.iter().map(Calibration::origin).collect();
    Calibration::merged(&parts, &joined(&origins)).map_err(|error| match error {
        CalibrateError::OtherModel(what) => {
            anyhow!("statistics that do not go together: {what}")
        }
        other => other.into(),
    })
}

/// The origin of all parts: that of the whole where they are all of one, else all of them.
fn joined(origins: &[&str]) -> String {
    let parts = origins.iter().map(|origin| {
        let (whole, part) = origin.rsplit_once(", part ")?;
        Some((whole, part.parse::<Part>().ok()?))
    });
    let parts: Option<Vec<_>> = parts.collect();
    match parts.as_deref() {
        Some([(whole, first), others @ ..])
            if others.len() + 1 == first.of
                && others
                    .iter()
                    .all(|(w, part)| w == whole && part.of == first.of) =>
        {
            (*whole).to_string()
        }
        _ => origins.join(" + "),
    }
}

fn layer(layer: &hankelite::calibrate::LayerCalibration) -> Layer<'_> {
    let statistics = &layer.statistics;
    let channels = statistics.channels();
    let power: Vec<f64> = statistics
        .autocorrelation()
        .row(0)
        .iter()
        .copied()
        .collect();
    let mean = |values: f64| values / channels.max(1) as f64;
    let power_mean = mean(power.iter().sum());
    let constant = mean(statistics.mean().iter().map(|m| m * m).sum());
    let importance = mean(layer.importance.iter().sum());
    let most = layer.importance.iter().copied().fold(0.0, f64::max);
    Layer {
        name: &layer.name,
        channels,
        input_rms: power_mean.sqrt(),
        constant_share: ratio(constant, power_mean),
        importance_spread: ratio(most, importance),
        zero_inputs: power.iter().filter(|&&p| p <= 0.0).count(),
    }
}

/// 0 where there is nothing to divide by.
fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}

fn show(document: &Document<'_>, printer: &Printer) -> anyhow::Result<()> {
    let of = document.checkpoint.clone();
    let of = of.unwrap_or_else(|| document.merged.join(" + "));
    printer.heading(&format!("{of}: {}", document.origin))?;
    let header = [
        "layer",
        "channels",
        "input rms",
        "constant share",
        "importance, max/mean",
        "zero inputs",
    ];
    let rows = document.layers.iter().map(|layer| {
        vec![
            layer.name.to_string(),
            layer.channels.to_string(),
            short(layer.input_rms),
            format!("{:.1} %", 100.0 * layer.constant_share),
            short(layer.importance_spread),
            layer.zero_inputs.to_string(),
        ]
    });
    printer.table(&header, rows.collect())?;
    printer.line(&format!(
        "wrote {} ({} sequences of {} steps, {:.2} s)",
        document.output, document.sequences, document.length, document.seconds
    ))
}
