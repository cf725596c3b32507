//! `compress-model evaluate` by the training engine: networks without state space layers, and answers
//! that are not one class for each sequence.

use std::time::Instant;

use anyhow::bail;
use hankelite_data::{Dataset, Targets};
use hankelite_train::Place;
use hankelite_train::nn::SequenceModel;
#[cfg(feature = "research")]
use hankelite_train::{Precision, nn::baseline::BaselineNetwork, require_fitting};
use serde::Serialize;

use crate::cli::common::{grouped, open, require_length};
#[cfg(feature = "research")]
use crate::cli::design::takes;
use crate::cli::evaluate::Arguments;
use crate::cli::printer::Printer;
use crate::cli::score::{First, trainable};
use crate::cli::training::{Measured, measured};

/// Sequences that go through a network at once.
const BATCH: usize = 64;

#[derive(Serialize)]
struct Document {
    checkpoint: String,
    /// The layers of a network without state spaces.
    #[serde(skip_serializing_if = "Option::is_none")]
    layer: Option<&'static str>,
    parameters: usize,
    #[serde(flatten)]
    measured: Measured,
    examples: usize,
    seconds: f64,
    examples_per_second: f64,
}

/// Whether these answers are scored here, as far as state space layers are concerned.
pub(super) fn are_answers(data: &Dataset) -> bool {
    data.labels().is_none() && !matches!(data.targets(), Targets::None)
}

pub(super) fn run(
    arguments: &Arguments,
    sequences: First<'_>,
    printer: &Printer,
) -> anyhow::Result<()> {
    let data = sequences.data.take(sequences.count)?;
    let path = &arguments.input.checkpoint;
    let place = arguments.device.unwrap_or(Place::Cpu);
    let document = |layer, parameters, network: &dyn SequenceModel| {
        let start = Instant::now();
        let measured = measured(network, Some(&data), BATCH)?;
        let seconds = start.elapsed().as_secs_f64();
        let Some(measured) = measured else {
            bail!("the data have no answers to score");
        };
        Ok(Document {
            checkpoint: path.display().to_string(),
            layer,
            parameters,
            measured,
            examples: data.len(),
            seconds,
            examples_per_second: data.len() as f64 / seconds,
        })
    };
    #[cfg(feature = "research")]
    if BaselineNetwork::is_file(path) {
        let network = BaselineNetwork::read(path, Precision::F32.dtype(), &place.open()?)?;
        let architecture = network.architecture();
        require_fitting(takes(architecture), architecture.outputs, &data)?;
        let layer = Some(architecture.layer.name());
        return show(&document(layer, network.numbers(), &network)?, printer);
    }
    let checkpoint = open(path, &arguments.declarations.declared(), printer)?;
    require_length(&checkpoint, data.length())?;
    let network = trainable(&checkpoint, &data, &place)?;
    show(
        &document(None, checkpoint.parameters()?, &network)?,
        printer,
    )
}

fn show(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    if printer.is_json() {
        return printer.json(document);
    }
    let layer = document.layer.unwrap_or("state space");
    printer.line(&format!(
        "{}: {layer} layers, {} parameters",
        document.checkpoint,
        grouped(document.parameters)
    ))?;
    printer.line(&format!(
        "{} on {} sequences, {:.0} a second",
        document.measured, document.examples, document.examples_per_second
    ))
}
