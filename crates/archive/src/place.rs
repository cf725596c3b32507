//! Which file a path stands for, and whether one could be written to it: a check before long work.

use std::path::{Path, PathBuf};

use crate::container::{Container, USUAL, is_index, is_torch_index};
use crate::destination::{Destination, folder_of, require_replaceable};
use crate::endings::require_own_ending;
use crate::error::ArchiveError;
use crate::foreign::ForeignFormat;
use crate::model_folder::require_no_other;

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
    // The files of an index are no checkpoints of their own.
    let mut found = match indices.is_empty() {
        true => files,
        false => indices,
    };
    let path = path.to_owned();
    match (found.len(), ForeignFormat::of_folder(&path)) {
        (1, _) => Ok(found.remove(0)),
        (0, Some(format)) => Err(ArchiveError::ForeignFormat { path, format }),
        (0, None) => Err(ArchiveError::folder(path)),
        _ => {
            let names = found.iter().filter_map(|file| file.file_name());
            let mut found: Vec<String> = names.map(|n| n.to_string_lossy().into()).collect();
            found.sort();
            Err(ArchiveError::Folder { path, found })
        }
    }
}

/// Whether a file could be written to `path`, which must be none of `inputs`: for a check before
/// long work. A path of an index, or one without a known ending where an input is a sharded
/// checkpoint, stands for such a checkpoint, and may be a folder; where an input is a folder, one
/// without a known ending stands for a folder.
///
/// # Errors
/// [`ArchiveError`] when the path is one of the inputs, a folder, a device, a write-protected file,
/// or in a missing folder.
pub fn check_destination(
    path: impl AsRef<Path>,
    inputs: &[impl AsRef<Path>],
) -> Result<(), ArchiveError> {
    let path = path.as_ref();
    let folder = inputs
        .iter()
        .map(AsRef::as_ref)
        .find(|input| input.is_dir());
    let folder = folder.filter(|_| Container::of_path(path).is_none());
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
    if let Some(folder) = folder {
        check_sharded(path, &inputs)?;
        let main = inputs.iter().find(|input| input.starts_with(folder));
        let main = main.and_then(|main| main.file_name()?.to_str());
        return require_no_other(path, main.unwrap_or_default());
    }
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
