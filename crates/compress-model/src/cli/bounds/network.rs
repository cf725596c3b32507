//! `compress-model bounds network`.

use std::path::{Path, PathBuf};

use anyhow::bail;
use clap::Args;
use hankelite::model::Sequence;
use hankelite_data::{Dataset, Source, Split};
use hankelite_research::bounds::{Bound, NetworkBound, Risk, TrainingData, Weights, of_network};
use hankelite_train::nn::baseline::{BaselineKind, BaselineNetwork, Formed, SingleLayer};
use hankelite_train::{Place, Precision};
use nalgebra::{DMatrix, DVector};
use serde::Serialize;

use crate::cli::common::short;
use crate::cli::printer::Printer;

const EXAMPLES: &str = "\
Examples:
  compress-model pretrain reweighted.toml --output runs/reweighted
  compress-model bounds network runs/reweighted/model.safetensors --data sparse
  compress-model bounds network runs/reweighted/model.safetensors --data sparse --format json";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    /// A network unfolded from a sparse solver, or a single layer of `rnn`, `indrnn`, `fastrnn` or
    /// `spectralrnn`: the file that `pretrain` wrote.
    #[arg(value_name = "FILE")]
    network: PathBuf,
    /// What it was trained on: the training part gives the number of sequences, their length and the
    /// size of the network's input.
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
    training: TrainingData,
    #[serde(flatten)]
    found: NetworkBound,
    /// (14), where a largest loss is given.
    gap: Option<Bound>,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let path = &arguments.network;
    if !BaselineNetwork::is_file(path) {
        bail!(
            "{}: not a network of `pretrain` without state space layers (`bounds model` takes state \
             space checkpoints)",
            path.display()
        );
    }
    let network = BaselineNetwork::read(path, Precision::F64.dtype(), &Place::Cpu.open()?)?;
    let kind = network.architecture().layer;
    let form = form(&network, path)?;
    let training = training(&network, &form, &arguments.data, arguments.confidence)?;
    let found = bounds(kind, &form, &training)?;
    if kind == BaselineKind::SpectralRnn && arguments.loss_max.is_some() {
        bail!("--loss-max with `spectralrnn`: (55) is an order, which (14) cannot start from");
    }
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

/// What the bounds are of.
enum Form {
    Unfolded(Formed),
    Single {
        layer: SingleLayer,
        output: DMatrix<f64>,
    },
}

fn form(network: &BaselineNetwork, path: &Path) -> anyhow::Result<Form> {
    if let Some(formed) = network.formed()? {
        return Ok(Form::Unfolded(formed));
    }
    match (network.single_layer()?, network.output()?) {
        (Some(layer), Some(output)) => Ok(Form::Single { layer, output }),
        _ => {
            let architecture = network.architecture();
            bail!(
                "{}: {} layers of `{}`, expected sista, l1-l1 or reweighted, or one layer of rnn, \
                 indrnn, fastrnn or spectralrnn",
                path.display(),
                architecture.layers,
                architecture.layer.name()
            )
        }
    }
}

/// The sizes of the training part and of the body's inputs in it.
fn training(
    network: &BaselineNetwork,
    form: &Form,
    source: &Source,
    confidence: f64,
) -> anyhow::Result<TrainingData> {
    let data = Dataset::read(source, Some(Split::Train))?;
    let expected = network.architecture().inputs;
    match (data.width(), expected) {
        (Some(found), Some(expected)) if found == expected => {}
        (None, _) | (_, None) => bail!(
            "{source} into {}: tokens, but the bounds are of networks that take numbers",
            network.architecture().layer.name()
        ),
        (Some(found), Some(expected)) => {
            bail!("{source}: {found} numbers at each step, expected the {expected} of the network")
        }
    }
    let inputs = Magnitudes::of(&data, network.sensing()?.as_ref());
    let (input, state) = match form {
        Form::Unfolded(formed) => {
            let state = formed.initial.iter().fold(0.0, |most, h| h.abs().max(most));
            (inputs.mean_square.sqrt(), state)
        }
        Form::Single { layer, .. } => match network.architecture().layer {
            BaselineKind::FastRnn | BaselineKind::SpectralRnn => (inputs.square_sum.sqrt(), 0.0),
            // A bias is the weight of one more input, which is always 1.
            _ if layer.bias.is_some() => (inputs.mean_square.sqrt().max(1.0), 0.0),
            _ => (inputs.mean_square.sqrt(), 0.0),
        },
    };
    Ok(TrainingData {
        samples: data.len(),
        length: data.length(),
        input,
        state,
        confidence,
    })
}

/// How large the measurements are.
struct Magnitudes {
    /// B_x²: the largest mean square over the sequences of any measurement at any step.
    mean_square: f64,
    /// B²: the largest ‖x_t‖² of any sequence at any step.
    square_sum: f64,
}

impl Magnitudes {
    fn of(data: &Dataset, sensing: Option<&DMatrix<f64>>) -> Self {
        let (width, length) = (data.width().unwrap_or(1), data.length());
        let measured = sensing.map_or(width, DMatrix::nrows);
        let mut squares = DMatrix::<f64>::zeros(measured, length);
        let mut square_sum: f64 = 0.0;
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
            let measured = measured.component_mul(&measured);
            square_sum = square_sum.max(measured.row_sum().max());
            squares += measured;
        }
        Self {
            mean_square: squares.max() / data.len().max(1) as f64,
            square_sum,
        }
    }
}

fn bounds(
    kind: BaselineKind,
    form: &Form,
    training: &TrainingData,
) -> anyhow::Result<NetworkBound> {
    match form {
        Form::Unfolded(formed) => of_unfolded(kind, formed, training),
        Form::Single { layer, output } => of_single(kind, layer, output, training),
    }
}

fn of_single(
    kind: BaselineKind,
    layer: &SingleLayer,
    output: &DMatrix<f64>,
    training: &TrainingData,
) -> anyhow::Result<NetworkBound> {
    let SingleLayer {
        recurrent, input, ..
    } = layer;
    let weights = match (kind, layer.shares) {
        (_, Some(gates)) => Weights::FastRnn {
            recurrent,
            input,
            gates,
        },
        (BaselineKind::SpectralRnn, _) => Weights::Spectral {
            recurrent,
            input,
            output,
        },
        _ => {
            let columns = input.ncols();
            let widened = layer.bias.iter().fold(input.clone(), |input, bias| {
                let mut input = input.insert_column(columns, 0.0);
                input.set_column(columns, &DVector::from_column_slice(bias));
                input
            });
            return Ok(of_network(
                &Weights::Unfolded {
                    recurrent: std::slice::from_ref(recurrent),
                    input: &[widened],
                    correlation: None,
                },
                training,
            )?);
        }
    };
    Ok(of_network(&weights, training)?)
}

fn of_unfolded(
    kind: BaselineKind,
    formed: &Formed,
    training: &TrainingData,
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
