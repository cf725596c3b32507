//! `compress-model bounds network`.

use std::path::PathBuf;

use anyhow::Context;
use anyhow::bail;
use clap::Args;
use nalgebra::DMatrix;
use serde::Serialize;

use crate::bounds::Bound;
use crate::bounds::NetworkBound;
use crate::bounds::Risk;
use crate::bounds::Training;
use crate::bounds::Weights;
use crate::bounds::of_network;
use crate::cli::common::short;
use crate::cli::printer::Printer;
use crate::data::Dataset;
use crate::data::Source;
use crate::data::Split;
use crate::infer::Sequence;
use crate::nn::baseline::Baseline;
use crate::nn::baseline::BaselineKind;
use crate::nn::baseline::Formed;
use crate::train::Place;
use crate::train::Precision;

const EXAMPLES: &str = "\
Examples:
  compress-model pretrain reweighted.toml --output runs/reweighted
  compress-model bounds network runs/reweighted/model.safetensors --data sparse
  compress-model bounds network runs/reweighted/model.safetensors --data sparse --format json";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// A network unfolded from a sparse solver: the file that `pretrain` wrote.
    #[arg(value_name = "FILE")]
    network: PathBuf,
    /// What it was trained on: the training part gives the number of sequences, their length and the
    /// size of what the network hears.
    #[arg(long, value_name = "DATA")]
    data: Source,
    /// The largest loss of an answer: also show the bound (14) on the gap between training and test.
    #[arg(long, value_name = "B")]
    loss_max: Option<f64>,
    /// The bound on the gap fails with at most this probability.
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    confidence: f64,
}

#[derive(Serialize)]
struct Document {
    network: String,
    layer: &'static str,
    training: Training,
    #[serde(flatten)]
    found: NetworkBound,
    /// (14), where a largest loss is given.
    gap: Option<Bound>,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let path = &arguments.network;
    if !Baseline::is_file(path) {
        bail!(
            "{}: not a network of `pretrain` without state space layers (`bounds model` takes state \
             space checkpoints)",
            path.display()
        );
    }
    let network = Baseline::read(path, (Precision::F64.dtype(), &Place::Cpu.open()?))?;
    let kind = network.architecture().layer;
    let formed = network.formed()?.with_context(|| {
        format!(
            "{}: layers of `{}`, expected sista, l1-l1 or reweighted",
            path.display(),
            kind.name()
        )
    })?;
    let training = training(&network, &formed, &arguments.data, arguments.confidence)?;
    let found = bounds(kind, &formed, &training)?;
    let gap = match (arguments.loss_max, found.bounds.first()) {
        (Some(loss_max), Some(bound)) => {
            let confidence = arguments.confidence;
            let risk = Risk {
                loss_max,
                confidence,
            };
            Some(risk.gap(bound.value, training.samples)?)
        }
        _ => None,
    };
    let document = Document {
        network: path.display().to_string(),
        layer: kind.name(),
        training,
        found,
        gap,
    };
    match printer.is_json() {
        true => printer.json(&document),
        false => show(&document, printer),
    }
}

/// The sizes of the training part and of what the body hears in it.
fn training(
    network: &Baseline,
    formed: &Formed,
    source: &Source,
    confidence: f64,
) -> anyhow::Result<Training> {
    let data = Dataset::read(source, Some(Split::Train))?;
    let expected = network.architecture().inputs;
    if data.width() != expected {
        bail!(
            "{source}: {:?} numbers at each step, expected the {:?} of the network",
            data.width(),
            expected
        );
    }
    Ok(Training {
        samples: data.len(),
        length: data.length(),
        input: largest_mean_square(&data, network.sensing()?.as_ref()).sqrt(),
        state: formed.initial.iter().fold(0.0, |most, h| h.abs().max(most)),
        confidence,
    })
}

/// B_x²: the largest mean square over the sequences of any measurement at any step.
fn largest_mean_square(data: &Dataset, sensing: Option<&DMatrix<f64>>) -> f64 {
    let (width, length) = (data.width().unwrap_or(1), data.length());
    let heard = sensing.map_or(width, DMatrix::nrows);
    let mut squares = DMatrix::<f64>::zeros(heard, length);
    for index in 0..data.len() {
        let Sequence::Values(values) = data.sequence(index) else {
            continue;
        };
        let values = values.iter().map(|&value| f64::from(value));
        let signal = DMatrix::from_iterator(width, length, values);
        let measured = match sensing {
            Some(sensing) => sensing * signal,
            None => signal,
        };
        squares += measured.component_mul(&measured);
    }
    squares.max() / data.len().max(1) as f64
}

fn bounds(
    kind: BaselineKind,
    formed: &Formed,
    training: &Training,
) -> anyhow::Result<NetworkBound> {
    let recurrent: Vec<_> = formed.layers.iter().map(|l| l.recurrent.clone()).collect();
    let input: Vec<_> = formed.layers.iter().map(|l| l.input.clone()).collect();
    if kind == BaselineKind::Sista
        && let Some(skip) = &formed.from_last
    {
        return Ok(of_network(
            &Weights::Sista {
                recurrent: [&recurrent[0], recurrent.last().unwrap_or(&recurrent[0])],
                input: &input[0],
                skip,
                layers: recurrent.len(),
            },
            training,
        )?);
    }
    let weights = Weights::Unfolded {
        recurrent: &recurrent,
        input: &input,
        correlation: Some(&formed.transition),
    };
    Ok(of_network(&weights, training)?)
}

fn show(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    let training = document.training;
    printer.line(&format!(
        "{}: {} layers, trained on {} sequences of {} steps, B_x = {}, |h_0| = {}",
        document.network,
        document.layer,
        training.samples,
        training.length,
        short(training.input),
        short(training.state)
    ))?;
    let norms = document.found.norms.iter();
    let mut rows: Vec<Vec<String>> = norms.map(|(n, v)| vec![n.clone(), short(*v)]).collect();
    if let Some(joint) = document.found.contraction {
        let name = "joint contraction of a step".to_string();
        rows.push(vec![name, short(joint)]);
    }
    let bounds: Vec<&Bound> = document.found.bounds.iter().chain(&document.gap).collect();
    for bound in &bounds {
        rows.push(vec![
            format!("bound {}", bound.equation),
            short(bound.value),
        ]);
    }
    printer.table(&["quantity", "value"], rows)?;
    for bound in bounds {
        for caveat in &bound.caveats {
            printer.line(&format!("note: {}: {caveat}", bound.equation))?;
        }
    }
    Ok(())
}
