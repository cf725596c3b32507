//! The folder of a model, as Hugging Face lays it out: one checkpoint, its configuration, and all else
//! that belongs to it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::container::{USUAL, is_index};
use crate::error::ArchiveError;
use crate::several::Place;
use crate::temporary::is_temporary;

/// Endings of files with the tensors of a model, of whichever program.
const WEIGHTS: [&str; 11] = [
    "safetensors",
    "bin",
    "pt",
    "pth",
    "ckpt",
    "msgpack",
    "h5",
    "onnx",
    "gguf",
    "tflite",
    "ot",
];

/// The files of a folder beside its checkpoint.
#[derive(Debug, Clone, Default)]
pub struct Beside {
    /// What is copied, relative to the folder.
    pub copied: Vec<PathBuf>,
    /// What is not: other weights, and hidden or linked folders.
    pub left_out: Vec<PathBuf>,
}

impl Beside {
    /// The files of a folder whose checkpoint is in the files `own`.
    pub(crate) fn of(folder: &Path, own: &BTreeSet<&OsStr>) -> io::Result<Beside> {
        let mut beside = Beside::default();
        beside.add(folder, Path::new(""), own)?;
        beside.copied.sort();
        beside.left_out.sort();
        Ok(beside)
    }

    fn add(&mut self, folder: &Path, within: &Path, own: &BTreeSet<&OsStr>) -> io::Result<()> {
        let top = within == Path::new("");
        for entry in std::fs::read_dir(folder.join(within))? {
            let entry = entry?;
            let name = entry.file_name();
            let (place, path) = (within.join(&name), entry.path());
            if is_temporary(&name) || top && own.contains(name.as_os_str()) {
                continue;
            }
            let hidden = name.as_encoded_bytes().starts_with(b".");
            let linked = entry.file_type()?.is_symlink();
            // Files of the hub's own store are links.
            match std::fs::metadata(&path) {
                Ok(found) if found.is_dir() && !hidden && !linked => {
                    self.add(folder, &place, own)?;
                }
                Ok(found) if found.is_file() && !(top && is_weights(&place)) => {
                    self.copied.push(place);
                }
                _ => self.left_out.push(place),
            }
        }
        Ok(())
    }
}

/// Whether a file holds the tensors of a model, or an index of such files, by its name.
fn is_weights(path: &Path) -> bool {
    let ending = path.extension().and_then(OsStr::to_str);
    let ending = ending.map(str::to_ascii_lowercase);
    ending.is_some_and(|ending| WEIGHTS.contains(&ending.as_str())) || is_index(path)
}

/// A folder that is to be written.
pub(crate) struct NewFolder<'a> {
    /// Where it is made from.
    pub(crate) source: &'a Path,
    /// The files of tensors, without the main one.
    pub(crate) shards: Vec<&'a Path>,
    /// The index, or the only file of tensors.
    pub(crate) main: &'a str,
    /// Texts by the names of their files, in the place of files that are copied, or new.
    pub(crate) texts: &'a BTreeMap<String, String>,
    pub(crate) inputs: Vec<&'a Path>,
}

impl NewFolder<'_> {
    /// Writes all files under temporary names, the tensors by `fill`, shows the main one to `check`, and
    /// then puts them in their places, the main one last.
    pub(crate) fn write<E: From<ArchiveError>>(
        &self,
        path: &Path,
        fill: impl FnOnce(&Path) -> Result<(), ArchiveError>,
        check: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<(), E> {
        let place = Place::of_folder(path, self.main)?;
        require_no_other(path, self.main)?;
        let own = self.shards.iter().map(|shard| shard.as_os_str());
        let own = own.chain([OsStr::new(self.main)]).collect();
        let read = ArchiveError::read(self.source);
        let mut beside = Beside::of(self.source, &own).map_err(read)?;
        // A copy within its source does not hold itself.
        let itself = path.canonicalize().ok();
        beside.copied.retain(|file| {
            let place = self.source.join(file).canonicalize().ok();
            let mut places = itself.iter().zip(&place);
            !places.any(|(itself, place)| place.starts_with(itself))
        });
        let texts = self.texts.keys().map(Path::new);
        let copied = beside.copied.iter().map(PathBuf::as_path);
        let copied: Vec<&Path> = copied.filter(|file| !self.replaces(file)).collect();
        let files: Vec<&Path> = copied.iter().copied().chain(texts).collect();
        let files = [&self.shards[..], &files].concat();
        place.check(&files, &self.inputs)?;
        let failed = |error| place.failed(error);
        let (temporary, _lock) = place.temporary().map_err(failed)?;
        let folder = temporary.path();
        fill(folder).map_err(|error| place.renamed(error))?;
        for file in copied {
            copy(&self.source.join(file), &folder.join(file))
                .map_err(|error| place.renamed(error))?;
        }
        for (name, text) in self.texts {
            new_file(&folder.join(name), text.as_bytes()).map_err(failed)?;
        }
        check(&folder.join(self.main))?;
        Ok(place.move_in(temporary, &files).map_err(failed)?)
    }

    fn replaces(&self, file: &Path) -> bool {
        file.to_str()
            .is_some_and(|name| self.texts.contains_key(name))
    }
}

/// A folder that exists must hold no other checkpoint, which would stand beside the new one.
pub(crate) fn require_no_other(folder: &Path, main: &str) -> Result<(), ArchiveError> {
    let mut usual = USUAL.iter().filter(|name| **name != main);
    match usual.find(|name| folder.join(name).exists()) {
        Some(name) => Err(ArchiveError::OtherCheckpoint {
            path: folder.to_owned(),
            file: (*name).to_owned(),
        }),
        None => Ok(()),
    }
}

fn copy(from: &Path, to: &Path) -> Result<(), ArchiveError> {
    let failed = ArchiveError::write(to);
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder).map_err(&failed)?;
    }
    let mut source = File::open(from).map_err(ArchiveError::read(from))?;
    let mut file = File::create_new(to).map_err(&failed)?;
    io::copy(&mut source, &mut file).map_err(&failed)?;
    let permissions = source.metadata().map(|found| found.permissions());
    permissions
        .and_then(|permissions| file.set_permissions(permissions))
        .map_err(&failed)?;
    file.sync_all().map_err(failed)
}

fn new_file(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = File::create_new(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
