//! Arrays that are no checkpoint.

use std::collections::BTreeMap;
use std::path::Path;

use crate::archive::Archive;
use crate::container::Container;
use crate::error::ArchiveError;
use crate::tensor::RawTensor;

/// Writes arrays as a safetensors file, whole or not at all, with a text that
/// [`Archive::metadata`] gives back; none when it is empty. Of two arrays of one name the last is
/// written.
///
/// # Errors
/// The path is that of a folder or in a missing folder; writing fails.
pub fn write_arrays<N: Into<String>>(
    path: impl AsRef<Path>,
    arrays: impl IntoIterator<Item = (N, RawTensor)>,
    metadata: &str,
) -> Result<(), ArchiveError> {
    let arrays = arrays.into_iter();
    let arrays: BTreeMap<String, RawTensor> =
        arrays.map(|(name, array)| (name.into(), array)).collect();
    Archive::in_memory("arrays in memory", arrays).write(path, Container::Safetensors, metadata)
}
