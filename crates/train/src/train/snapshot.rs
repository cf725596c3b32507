//! The whole state of a training in one safetensors file.
//!
//! Tensors `parameter.NAME`, `first.NAME`, `second.NAME` (the moments of the optimiser),
//! `buffer.NAME` and, where weights are averaged, `average.INDEX`; the tensor `progress` holds the bytes of a JSON text. A file is written whole or
//! not at all.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use candle_core::{DType, Device, Tensor};
use hankelite_archive::{Archive, Dtype, RawTensor, write_arrays};
use serde::{Deserialize, Serialize};

use crate::nn::SequenceModel;
use crate::train::TrainError;
use crate::train::average::Average;
use crate::train::loss::Tally;
use crate::train::objective::Evaluation;
use crate::train::optimiser::AdamW;

/// The tensor that holds the bytes of [`Progress`].
const PROGRESS: &str = "progress";

/// Where a training stands. Together with weights, buffers and moments it decides all that
/// follows.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[non_exhaustive]
pub struct Progress {
    /// Steps of the optimiser.
    pub step: u64,
    /// Finished epochs.
    pub epoch: u64,
    /// Batches done of the epoch at hand.
    pub batch: usize,
    /// What the epoch at hand has shown so far.
    pub tally: Tally,
    /// Sums of the objective's further terms in this epoch.
    pub terms: BTreeMap<String, f64>,
    /// Sum of the norms of the gradients in this epoch.
    pub gradient_norms: f64,
    /// What the start shows on the validation part, where it counts.
    pub start: Option<Evaluation>,
    /// The best epoch.
    pub best: Option<Best>,
    /// Epochs in a row without a better one.
    pub waiting: u64,
    /// The same since the rates were cut last.
    pub stalled: u64,
    /// How often the rates were cut.
    pub halvings: u32,
    /// Bytes of `metrics.jsonl` that belong to this state.
    pub metrics_bytes: u64,
    /// Seconds of training, over all starts.
    pub seconds: f64,
    /// Why the training is over, if it is.
    pub end: Option<End>,
    /// The cuts that were tried.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cuts: Vec<Cut>,
}

/// A cut that was tried amid a training.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Cut {
    /// Epochs done then.
    pub epoch: u64,
    /// Steps done then.
    pub step: u64,
    /// Stored states of each layer's channels before.
    pub orders_before: Vec<usize>,
    /// The same behind it.
    pub orders: Vec<usize>,
    /// The held-out loss before.
    pub loss_before: f64,
    /// The held-out loss behind it, without a step of training.
    pub loss_behind: f64,
    /// Whether the training went on with the smaller network.
    pub kept: bool,
}

/// The best epoch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Best {
    /// Counted from 1; 0 is the start.
    pub epoch: u64,
    /// Steps done then.
    pub step: u64,
    /// Its validation loss, accuracy or distance from the teacher, by the recipe's `monitor`.
    pub value: f64,
}

/// Why a training is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum End {
    /// All steps are done.
    Finished,
    /// The validation value stalled for as many epochs as the recipe's `patience`.
    Stalled,
}

/// All tensors that a training goes on from.
pub(super) struct State<'a> {
    pub(super) network: &'a dyn SequenceModel,
    pub(super) optimiser: &'a mut AdamW,
    /// Averaged weights; none where nothing is averaged.
    pub(super) average: Option<&'a mut Average>,
}

/// Writes everything that the training goes on from.
pub(super) fn write(path: &Path, state: &State<'_>, progress: &Progress) -> Result<(), TrainError> {
    let mut arrays = Vec::new();
    for (name, tensor) in tensors(state) {
        let array = raw(&name, &tensor)?;
        arrays.push((name, array));
    }
    let text = serde_json::to_vec(progress).expect("plain fields serialise");
    let progress = RawTensor::new(Dtype::U8, vec![text.len()], text);
    let progress = progress.map_err(|error| error.of(PROGRESS))?;
    arrays.push((PROGRESS.to_string(), progress));
    Ok(write_arrays(path, arrays, "")?)
}

/// Where the training of a snapshot stands.
pub(super) fn progress(path: &Path) -> Result<Progress, TrainError> {
    progress_of(&Archive::open(path)?, path)
}

fn progress_of(archive: &Archive, path: &Path) -> Result<Progress, TrainError> {
    let text = archive.tensor(PROGRESS)?;
    serde_json::from_slice(text.bytes()).map_err(|error| TrainError::Snapshot {
        path: path.to_path_buf(),
        what: format!("`{PROGRESS}` cannot be read: {error}"),
    })
}

/// Reads a snapshot into a network, its optimiser and its average. Nothing is changed where it does
/// not fit.
pub(super) fn read(path: &Path, state: &mut State<'_>) -> Result<Progress, TrainError> {
    let network = state.network;
    let archive = Archive::open(path)?;
    let fault = |what: String| TrainError::Snapshot {
        path: path.to_path_buf(),
        what,
    };
    let current = tensors(state);
    require_names(&archive, &current).map_err(fault)?;
    let progress = progress_of(&archive, path)?;
    let mut stored = BTreeMap::new();
    for (name, tensor) in &current {
        let array = archive.tensor(name)?;
        let found = from_raw(&array, tensor.dtype(), network.device()).map_err(fault)?;
        if found.shape() != tensor.shape() {
            return Err(fault(format!(
                "tensor `{name}` has shape {:?}, expected {:?}",
                found.dims(),
                tensor.dims()
            )));
        }
        stored.insert(name.clone(), found);
    }
    for parameter in network.parameters() {
        let name = format!("parameter.{}", parameter.name);
        parameter.var.set(&stored[&name])?;
    }
    for buffer in network.buffers() {
        buffer
            .var
            .set(&stored[&format!("buffer.{}", buffer.name)])?;
    }
    let moments: Vec<_> = state
        .optimiser
        .moments()
        .map(|(name, ..)| {
            let part = |part: &str| stored[&format!("{part}.{name}")].clone();
            (part("first"), part("second"))
        })
        .collect();
    state.optimiser.restore(progress.step, moments);
    if let Some(average) = &mut state.average {
        let count = average.weights().len();
        average.restore((0..count).map(|index| stored[&averaged(index)].clone()));
    }
    Ok(progress)
}

/// The name of an averaged tensor.
fn averaged(index: usize) -> String {
    format!("average.{index}")
}

/// All tensors of the state, by the names of the file.
fn tensors(state: &State<'_>) -> Vec<(String, Tensor)> {
    let State {
        network, optimiser, ..
    } = state;
    let mut all = Vec::new();
    let average = state.average.iter().flat_map(|average| average.weights());
    for (index, tensor) in average.enumerate() {
        all.push((averaged(index), tensor.clone()));
    }
    for parameter in network.parameters() {
        let tensor = parameter.var.as_tensor().clone();
        all.push((format!("parameter.{}", parameter.name), tensor));
    }
    for (name, first, second) in optimiser.moments() {
        all.push((format!("first.{name}"), first.clone()));
        all.push((format!("second.{name}"), second.clone()));
    }
    for buffer in network.buffers() {
        let tensor = buffer.var.as_tensor().clone();
        all.push((format!("buffer.{}", buffer.name), tensor));
    }
    all
}

/// The names in the file must be those of the state, no more and no fewer.
fn require_names(archive: &Archive, expected: &[(String, Tensor)]) -> Result<(), String> {
    let found: BTreeSet<&str> = archive.names().collect();
    let expected = expected.iter().map(|(name, _)| name.as_str());
    let expected: BTreeSet<&str> = expected.chain([PROGRESS]).collect();
    if let Some(name) = expected.difference(&found).next() {
        return Err(format!(
            "no tensor `{name}`: not a snapshot of this network"
        ));
    }
    match found.difference(&expected).next() {
        None => Ok(()),
        Some(name) => Err(format!("tensor `{name}` is not one of this network")),
    }
}

fn raw(name: &str, tensor: &Tensor) -> Result<RawTensor, TrainError> {
    let flat = tensor.flatten_all()?;
    let (dtype, bytes) = match tensor.dtype() {
        DType::F64 => {
            let values = flat.to_vec1::<f64>()?;
            (
                Dtype::F64,
                values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            )
        }
        _ => {
            let values = flat.to_vec1::<f32>()?;
            (
                Dtype::F32,
                values.iter().flat_map(|x| x.to_le_bytes()).collect(),
            )
        }
    };
    let raw = RawTensor::new(dtype, tensor.dims().to_vec(), bytes);
    Ok(raw.map_err(|error| error.of(name))?)
}

fn from_raw(array: &RawTensor, dtype: DType, device: &Device) -> Result<Tensor, String> {
    let own = match array.dtype() {
        Dtype::F64 => DType::F64,
        Dtype::F32 => DType::F32,
        other => return Err(format!("a tensor of {other}, expected F32 or F64")),
    };
    if own != dtype {
        let found = array.dtype();
        return Err(format!(
            "a tensor of {found}, expected {dtype:?}, the precision of the run"
        ));
    }
    Tensor::from_raw_buffer(array.bytes(), own, array.shape(), device)
        .map_err(|error| error.to_string())
}
