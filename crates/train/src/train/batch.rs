//! Batches of the host on the device, and the evaluation of whole data sets.

use candle_core::{DType, Device, Tensor};
use hankelite::infer::Score;
use hankelite::model::{InputKind, Model};
use hankelite_data::{Batch, Dataset, Steps};

use crate::nn::{Mode, NetworkInput, SequenceModel};
use crate::train::TrainError;
use crate::train::loss::Tally;
use crate::train::objective::{Evaluation, Examples, Objective, Task};

/// A batch as a network takes it.
///
/// # Errors
/// candle's.
pub fn input(batch: &Batch, dtype: DType, device: &Device) -> candle_core::Result<NetworkInput> {
    let (count, length) = (batch.count, batch.length);
    let steps = match &batch.steps {
        Steps::Values(values) => {
            let width = values.len() / (count * length);
            Tensor::from_slice(values, (count, length, width), device)?.to_dtype(dtype)?
        }
        Steps::Tokens(tokens) => Tensor::from_slice(tokens, (count, length), device)?,
    };
    Ok(NetworkInput {
        steps,
        lengths: batch.lengths.clone(),
    })
}

/// Some sequences of a data set, on the device of the network and in its number format.
pub(super) fn examples(
    network: &dyn SequenceModel,
    data: &Dataset,
    indices: &[usize],
) -> candle_core::Result<Examples> {
    let dtype = network
        .parameters()
        .first()
        .map_or(DType::F32, |parameter| parameter.var.dtype());
    let batch = data.batch(indices);
    Ok(Examples {
        input: input(&batch, dtype, network.device())?,
        targets: batch.targets,
        count: batch.count,
    })
}

/// Loss and accuracy of a network on all of a data set, without smoothing or further terms, in
/// batches of `size` in the stored order.
///
/// # Errors
/// [`TrainError`], where data and network do not suit each other.
pub fn evaluate(
    network: &dyn SequenceModel,
    data: &Dataset,
    size: usize,
) -> Result<Tally, TrainError> {
    Ok(*evaluate_by(&mut Task::default(), network, data, size)?.tally())
}

/// As [`evaluate`], with the distance from the teacher of an objective; data without labels will do
/// where there is one.
///
/// # Errors
/// As [`evaluate`].
pub fn evaluate_by(
    objective: &mut dyn Objective,
    network: &dyn SequenceModel,
    data: &Dataset,
    size: usize,
) -> Result<Evaluation, TrainError> {
    let indices: Vec<usize> = (0..data.len()).collect();
    let mut whole = Evaluation::default();
    for batch in indices.chunks(size.max(1)) {
        let examples = examples(network, data, batch)?;
        match objective.measure(network, &examples) {
            Ok(part) => whole.add(&part),
            // A batch in which no step counts adds nothing.
            Err(TrainError::NothingCounts) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(whole)
}

/// The logits of some sequences; for a network without pooling its outputs step by step.
///
/// # Errors
/// candle's.
pub fn logits(
    network: &dyn SequenceModel,
    data: &Dataset,
    indices: &[usize],
) -> Result<Vec<Vec<f64>>, TrainError> {
    let examples = examples(network, data, indices)?;
    let outputs = network.forward(&examples.input, Mode::Evaluate)?;
    Ok(outputs.to_dtype(DType::F64)?.flatten_from(1)?.to_vec2()?)
}

/// Whether a model can be trained on data: both whole, of one width or vocabulary, and with a
/// logit for every class.
///
/// # Errors
/// [`TrainError::NotAClassifier`], [`TrainError::Input`], [`TrainError::Classes`].
pub fn require_suitable(model: &Model, data: &Dataset) -> Result<(), TrainError> {
    let missing = |missing| TrainError::NotAClassifier { missing };
    let encoder = model.encoder().ok_or(missing("encoder"))?;
    let outputs = model.classes().ok_or(missing("head"))?;
    require_fitting(encoder.takes(), outputs, data)
}

/// Whether a network that takes such steps, and gives so many outputs, can be trained on data. One
/// output stands for two classes.
///
/// # Errors
/// [`TrainError::Input`], [`TrainError::Classes`].
pub fn require_fitting(takes: InputKind, outputs: usize, data: &Dataset) -> Result<(), TrainError> {
    takes.require(data.kind())?;
    match data.classes() {
        Some(found) if found > Score::classes(outputs) => Err(TrainError::Classes {
            found,
            expected: outputs,
        }),
        _ => Ok(()),
    }
}
