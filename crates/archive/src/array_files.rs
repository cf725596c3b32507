//! Arrays and texts that are no checkpoint, written whole or not at all.

use std::collections::HashMap;
use std::io;
use std::io::Write;
use std::path::Path;

use crate::archive::METADATA_KEY;
use crate::archive_error::ArchiveError;
use crate::destination::Destination;
use crate::tensor::{Dtype, RawTensor};

/// Writes one array of f64 as a safetensors file, whole or not at all.
///
/// # Errors
/// The path is that of a folder or in a missing folder; writing fails.
pub fn write_array(
    path: &Path,
    name: &str,
    shape: &[usize],
    values: &[f64],
) -> Result<(), ArchiveError> {
    let tensor = RawTensor::from_f64(Dtype::F64, shape.to_vec(), values);
    write_arrays(path, &[(name, tensor)])
}

/// Writes arrays as a safetensors file, whole or not at all.
///
/// # Errors
/// As [`write_array`]; also when bytes do not fill their shape.
pub fn write_arrays(path: &Path, arrays: &[(&str, RawTensor)]) -> Result<(), ArchiveError> {
    write_arrays_with(path, arrays, None)
}

/// As [`write_arrays`], with a text that [`Archive::metadata`](crate::Archive::metadata) gives back.
///
/// # Errors
/// As [`write_arrays`].
pub fn write_arrays_with(
    path: &Path,
    arrays: &[(&str, RawTensor)],
    metadata: Option<&str>,
) -> Result<(), ArchiveError> {
    let destination = Destination::new(path, &[])?;
    let failed = |error| destination.failed(io::Error::other(error));
    let mut views = Vec::with_capacity(arrays.len());
    for (name, array) in arrays {
        let (dtype, shape) = (array.dtype, array.shape.clone());
        let view = safetensors::tensor::TensorView::new(dtype, shape, &array.bytes);
        views.push((*name, view.map_err(failed)?));
    }
    // One key: a map of several would be written in a random order.
    let metadata = metadata.map(|text| HashMap::from([(METADATA_KEY.into(), text.into())]));
    let bytes = safetensors::serialize(views, metadata).map_err(failed)?;
    destination.write(
        |out| {
            out.write_all(&bytes)
                .map_err(|error| destination.failed(error))
        },
        |_| Ok(()),
    )
}

/// Writes a text, whole or not at all.
///
/// # Errors
/// As [`write_array`].
pub fn write_text(path: &Path, text: &str) -> Result<(), ArchiveError> {
    let destination = Destination::new(path, &[])?;
    destination.write(
        |out| {
            out.write_all(text.as_bytes())
                .map_err(|error| destination.failed(error))
        },
        |_| Ok(()),
    )
}
