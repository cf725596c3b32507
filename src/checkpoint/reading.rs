//! Reading whole files, or the systems of their layers alone.

use std::collections::BTreeMap;
use std::path::Path;

use hankelite_archive::{Archive, ReadAt};

use super::parts::Parts;
use super::{Checkpoint, CheckpointError, Declared, decode_given, read_parts};

/// Reads a checkpoint: safetensors, or a zip file of `torch.save`.
///
/// `declared` states what no tensor records; the file's own metadata and the sidecar fill its gaps,
/// and where a public script has a default, that is taken and listed in
/// [`Checkpoint::assumptions`]. Tensors of any floating type are raised to f64 once.
///
/// # Errors
/// [`CheckpointError`] with file, tensor, what was found and what was expected.
pub fn read(path: impl AsRef<Path>, declared: &Declared) -> Result<Checkpoint, CheckpointError> {
    read_parts(path.as_ref(), declared, Parts::Whole)
}

/// As [`read`], but the model holds the systems of every layer and nothing else: it can be
/// inspected, reduced and written, not run. All other tensors are checked one by one and stay in
/// the file, so memory is bounded by the dynamics and the largest tensor.
///
/// # Errors
/// As [`read`].
pub fn read_dynamics(
    path: impl AsRef<Path>,
    declared: &Declared,
) -> Result<Checkpoint, CheckpointError> {
    read_parts(path.as_ref(), declared, Parts::Dynamics)
}

/// As [`read_dynamics`], from bytes as [`crate::checkpoint::read_files`] takes them.
///
/// # Errors
/// As [`read`].
pub fn read_dynamics_of_files(
    name: impl AsRef<Path>,
    bytes: Box<dyn ReadAt>,
    beside: BTreeMap<String, Box<dyn ReadAt>>,
    declared: &Declared,
) -> Result<Checkpoint, CheckpointError> {
    let archive = Archive::from_files(name, bytes, beside)?;
    decode_given(archive, declared, Parts::Dynamics)
}
