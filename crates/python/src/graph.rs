//! Networks as ONNX files.

use std::path::Path;

use hankelite::archive::write_whole;
use hankelite::checkpoint::Checkpoint;
use hankelite::rounding::Storage;
use hankelite_onnx::{Form, export};

use crate::failure::{Failure, Outcome};

/// Writes the graph of a network whose tensors are stored as it records, else in single precision.
pub(crate) fn write_graph(checkpoint: &Checkpoint, path: &Path, sequence: bool) -> Outcome<()> {
    let model = &checkpoint.model;
    let storage = match checkpoint.storage() {
        Some(choice) => Storage::chosen(model, choice).map_err(failed)?,
        None => Storage::single(model),
    };
    let form = match sequence {
        true => Form::Sequence,
        false => Form::Step,
    };
    let mut metadata = Vec::new();
    if let Some(made) = checkpoint.provenance() {
        let made = serde_json::to_string(made).map_err(failed)?;
        metadata.push(("hankelite.provenance".to_string(), made));
    }
    let exported = export(model, &storage, form, &metadata).map_err(failed)?;
    Ok(write_whole(path, &exported.bytes)?)
}

fn failed(error: impl std::error::Error) -> Failure {
    Failure::new("ExportError", error)
}
