//! Which file a path stands for, and whether one could be written to it: a check before long work.

use std::path::{Path, PathBuf};

use crate::container::{Container, is_index, is_torch_index};
use crate::destination::{Destination, folder_of, require_replaceable};
use crate::endings::require_own_ending;
use crate::error::ArchiveError;
use crate::foreign::ForeignFormat;
use crate::sharded_file::INDEX_NAME;

/// What programs call the checkpoint in a folder, the first that is there.
const USUAL: [&str; 4] = [
    INDEX_NAME,
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
];

/// The path itself; for a folder, that of the checkpoint in it.
pub(crate) fn file_in(path: &Path) -> Result<PathBuf, ArchiveError> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let usual = USUAL.iter().map(|name| path.join(name));
    if let Some(usual) = usual.into_iter().find(|file| file.is_file()) {
        return Ok(usual);
    }
    let read = ArchiveError::read(path);
    let (mut indices, mut files) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(path).map_err(&read)? {
        let entry = entry.map_err(&read)?.path();
        match Container::of_path(&entry) {
            Some(Container::Sharded) => indices.push(entry),
            Some(Container::Safetensors) => files.push(entry),
            _ => {}
        }
    }
    let only = |mut found: Vec<PathBuf>| found.pop().filter(|_| found.is_empty());
    // The files of an index are no checkpoints of their own.
    let found = match indices.is_empty() {
        true => only(files),
        false => only(indices),
    };
    let path = path.to_owned();
    found.ok_or_else(|| match ForeignFormat::of_folder(&path) {
        Some(format) => ArchiveError::ForeignFormat { path, format },
        None => ArchiveError::Folder { path },
    })
}

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
    let inputs = inputs.iter().map(AsRef::as_ref);
    let inputs: Vec<PathBuf> = inputs
        .map(|input: &Path| file_in(input).unwrap_or_else(|_| input.to_owned()))
        .collect();
    let inputs: Vec<&Path> = inputs.iter().map(PathBuf::as_path).collect();
    let sharded = match Container::of_path(path) {
        Some(container) => container == Container::Sharded,
        None => inputs
            .iter()
            .any(|input| is_index(input) && !is_torch_index(input)),
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
        let taken = [*input, folder_of(input)];
        let same = |taken: &Path| taken.canonicalize().is_ok_and(|taken| taken == place);
        if taken.into_iter().any(same) {
            return Err(ArchiveError::SameFile {
                path: path.to_owned(),
            });
        }
    }
    Ok(())
}
