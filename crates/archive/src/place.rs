//! Whether files could be written to a place: a check before long work.

use std::path::Path;

use crate::container::{Container, is_index};
use crate::destination::{Destination, folder_of, require_replaceable};
use crate::endings::require_own_ending;
use crate::error::ArchiveError;
use crate::sharded_file::index_in;

/// Whether a file could be written to `path`, which must be none of `inputs`: for a check before
/// long work. A path of an index, or one without a known ending where an input is a sharded
/// checkpoint, stands for such a checkpoint, and may be a folder.
///
/// # Errors
/// [`ArchiveError`] when the path is one of the inputs, a folder, a device, a write-protected file,
/// or in a missing folder.
pub fn check_destination(
    path: impl AsRef<Path>,
    inputs: &[impl AsRef<Path>],
) -> Result<(), ArchiveError> {
    let path = path.as_ref();
    let inputs: Vec<&Path> = inputs.iter().map(AsRef::as_ref).collect();
    let sharded = match Container::of_path(path) {
        Some(container) => container == Container::Sharded,
        None => inputs
            .iter()
            .any(|input| input.is_dir() || Container::of_path(input) == Some(Container::Sharded)),
    };
    if sharded {
        return check_sharded(path, &inputs);
    }
    Destination::new(path, &inputs).map(drop)
}

/// As [`check_destination`], of a file of tensors: a name that stands for something else, such as
/// `small.onnx`, is refused too.
///
/// # Errors
/// [`ArchiveError::ForeignEnding`], and as [`check_destination`].
pub fn check_output(
    path: impl AsRef<Path>,
    inputs: &[impl AsRef<Path>],
) -> Result<(), ArchiveError> {
    require_own_ending(path.as_ref())?;
    check_destination(path, inputs)
}

/// Whether a sharded checkpoint could be written to a path: the folder of an index, or a folder
/// that is there or can be made.
fn check_sharded(path: &Path, inputs: &[&Path]) -> Result<(), ArchiveError> {
    let folder = if is_index(path) {
        folder_of(path)
    } else {
        path
    };
    let outer = match is_index(path) {
        true => folder,
        false => folder_of(path),
    };
    if !outer.is_dir() {
        return Err(ArchiveError::MissingFolder {
            path: path.to_owned(),
            folder: outer.to_owned(),
        });
    }
    if folder.exists() && !folder.is_dir() {
        return Err(ArchiveError::NotAFolder {
            path: path.to_owned(),
        });
    }
    let Ok(place) = path.canonicalize() else {
        return Ok(());
    };
    if !place.is_dir() {
        require_replaceable(path)?;
    }
    for input in inputs {
        let index = index_in(input).unwrap_or(input.to_path_buf());
        let taken = [index.as_path(), folder_of(&index)];
        let same = |taken: &Path| taken.canonicalize().is_ok_and(|taken| taken == place);
        if taken.into_iter().any(same) {
            return Err(ArchiveError::SameFile {
                path: path.to_owned(),
            });
        }
    }
    Ok(())
}
