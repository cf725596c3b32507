//! A checkpoint as a set of named tensors, whatever its container.
//!
//! [`Archive::open`] reads what the file says about its tensors and leaves
//! their bytes where they are; [`Archive::tensor`] fetches one. So memory is
//! bounded by the largest tensor requested. [`Archive::write`] copies the file
//! with some tensors replaced, into any container.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::archive_error::ArchiveError;
use crate::destination::Destination;
use crate::msgpack_file::MsgpackFile;
use crate::npz_file::NpzFile;
use crate::safetensors_file::SafetensorsFile;
use crate::sharded_file::ShardedFile;
use crate::spill::Spill;
use crate::tensor::{Dtype, RawTensor};
use crate::torch_file::{Document, Setting, TorchFile};
use crate::zip_records::{is_zip, open_zip};
use crate::{msgpack_file, npz_file, safetensors_file, sharded_file, torch_file};

/// Key under which our own text lies in a safetensors header.
pub(super) const METADATA_KEY: &str = "hankelite";

/// A file format for named tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Container {
    /// The safetensors format.
    Safetensors,
    /// Several safetensors files beside an index that says which tensor is in which.
    Sharded,
    /// The zip format of `torch.save`.
    Torch,
    /// The zip format of `numpy.savez`.
    Npz,
    /// The MessagePack format of `flax.serialization`.
    Msgpack,
}

impl Container {
    /// The container that a file's ending stands for, in upper or lower case: `.safetensors`;
    /// `.index.json`; `.pt`, `.pth`, `.ckpt`, `.bin`; `.npz`; `.msgpack`, `.flax`. `None` for
    /// others.
    #[must_use]
    pub fn of_path(path: &Path) -> Option<Container> {
        let extension = path.extension().and_then(OsStr::to_str)?;
        match extension.to_ascii_lowercase().as_str() {
            "safetensors" => Some(Container::Safetensors),
            "json" if sharded_file::is_index(path) => Some(Container::Sharded),
            "pt" | "pth" | "ckpt" | "bin" => Some(Container::Torch),
            "npz" => Some(Container::Npz),
            "msgpack" | "flax" => Some(Container::Msgpack),
            _ => None,
        }
    }
}

/// The named tensors of one checkpoint.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    source: Arc<Source>,
    /// Element type and shape of every tensor, replaced ones as they are now.
    tensors: BTreeMap<String, (Dtype, Vec<usize>)>,
    replaced: Replaced,
}

#[derive(Debug)]
enum Source {
    Safetensors(SafetensorsFile),
    Sharded(ShardedFile),
    Torch(TorchFile),
    Npz(NpzFile),
    Msgpack(MsgpackFile),
    /// No file yet.
    Memory(BTreeMap<String, RawTensor>),
}

/// Tensors that stand in the place of those of the file.
#[derive(Debug)]
pub enum Replaced {
    Memory(BTreeMap<String, RawTensor>),
    Spilled(Spill),
}

impl Archive {
    /// Opens a checkpoint. Its first bytes decide the container, not its name. A folder stands
    /// for the one index of safetensors files in it.
    ///
    /// What the file says about its tensors is read and checked against the
    /// file's length; nothing in the file is ever run.
    ///
    /// # Errors
    /// [`ArchiveError`], with the file's path, for anything but a well-formed file in one of the
    /// formats of [`Container`] with one state dict in it.
    pub fn open(path: &Path) -> Result<Archive, ArchiveError> {
        let path = sharded_file::index_in(path)?;
        let (file, start) = open_file(&path)?;
        let source = if is_zip(&start) {
            let zip = open_zip(&path, file)?;
            match npz_file::is_npz(&zip) {
                true => Source::Npz(NpzFile::open(&path, zip)?),
                false => Source::Torch(TorchFile::open(&path, zip)?),
            }
        } else if safetensors_file::is_safetensors(&start) {
            Source::Safetensors(SafetensorsFile::open(&path, file)?)
        } else if sharded_file::is_json(&start) && sharded_file::is_index(&path) {
            Source::Sharded(ShardedFile::open(&path, file)?)
        } else if msgpack_file::is_msgpack(&start) {
            Source::Msgpack(MsgpackFile::open(&path, file)?)
        } else {
            return Err(foreign_format(&path, &start));
        };
        Ok(Archive {
            path,
            tensors: source.tensors(),
            source: Arc::new(source),
            replaced: Replaced::none(),
        })
    }

    /// Tensors that are in no file yet; `name` stands for one in messages.
    pub fn in_memory(name: &str, tensors: BTreeMap<String, RawTensor>) -> Archive {
        let source = Source::Memory(tensors);
        Archive {
            path: name.into(),
            tensors: source.tensors(),
            source: Arc::new(source),
            replaced: Replaced::none(),
        }
    }

    /// The same file with some tensors replaced; those that are replaced already in this archive
    /// are those of the file again.
    ///
    /// # Errors
    /// A tensor that is not in the file, or whose bytes do not fill its shape.
    pub fn with(&self, replaced: Replaced) -> Result<Archive, ArchiveError> {
        let mut tensors = self.source.tensors();
        for (name, dtype, shape) in replaced.headers() {
            let Some(header) = tensors.get_mut(name) else {
                return Err(self.no_such_tensor(name));
            };
            *header = (dtype, shape.to_vec());
        }
        if let Replaced::Memory(replaced) = &replaced {
            for (name, tensor) in replaced {
                tensor.check(name)?;
            }
        }
        Ok(Archive {
            path: self.path.clone(),
            source: Arc::clone(&self.source),
            tensors,
            replaced,
        })
    }

    /// What was given to [`Archive::with`].
    pub fn into_replaced(self) -> Replaced {
        self.replaced
    }

    /// The names of all tensors, sorted. A tensor of nested dictionaries is
    /// named by its keys, joined by dots.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// Whether there is a tensor of that name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The shape of a tensor, empty for a scalar.
    #[must_use]
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.tensors.get(name).map(|(_, shape)| shape.as_slice())
    }

    /// The element type of a tensor.
    #[must_use]
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        self.tensors.get(name).map(|(dtype, _)| *dtype)
    }

    /// Reads one tensor from the file.
    ///
    /// # Errors
    /// No tensor of that name, or the file can no longer be read.
    pub fn tensor(&self, name: &str) -> Result<RawTensor, ArchiveError> {
        let replaced = match &self.replaced {
            Replaced::Memory(tensors) => tensors.get(name).cloned().map(Ok),
            Replaced::Spilled(spill) => spill.tensor(name),
        };
        let tensor = replaced.or_else(|| match self.source.as_ref() {
            Source::Safetensors(file) => file.tensor(name),
            Source::Sharded(file) => file.tensor(name),
            Source::Torch(file) => file.tensor(name),
            Source::Npz(file) => file.tensor(name),
            Source::Msgpack(file) => file.tensor(name),
            Source::Memory(tensors) => tensors.get(name).cloned().map(Ok),
        });
        tensor.unwrap_or_else(|| Err(self.no_such_tensor(name)))
    }

    /// The text that [`Archive::write`] stored beside the tensors, if any.
    #[must_use]
    pub fn metadata(&self) -> Option<&str> {
        match self.source.as_ref() {
            Source::Safetensors(file) => file.texts().get(METADATA_KEY).map(String::as_str),
            Source::Sharded(file) => file.metadata(),
            Source::Torch(file) => file.metadata(),
            Source::Npz(file) => file.metadata(),
            Source::Msgpack(_) | Source::Memory(_) => None,
        }
    }

    /// The settings of the training run, as PyTorch Lightning keeps them in `hyper_parameters`
    /// and `datamodule_hyper_parameters`: the keys that lead to each number, text or truth value,
    /// joined by dots, without those two names; the former wins. Empty for other files.
    #[must_use]
    pub fn settings(&self) -> &BTreeMap<String, Setting> {
        const NONE: &BTreeMap<String, Setting> = &BTreeMap::new();
        match self.source.as_ref() {
            Source::Torch(file) => file.settings(),
            _ => NONE,
        }
    }

    /// The container the file is in.
    #[must_use]
    pub fn container(&self) -> Container {
        match self.source.as_ref() {
            Source::Safetensors(_) | Source::Memory(_) => Container::Safetensors,
            Source::Sharded(_) => Container::Sharded,
            Source::Torch(_) => Container::Torch,
            Source::Npz(_) => Container::Npz,
            Source::Msgpack(_) => Container::Msgpack,
        }
    }

    /// The keys that lead from the top object to the state dict, joined by
    /// dots, such as `model`; `None` when the tensors stand at the top.
    #[must_use]
    pub fn wrapper(&self) -> Option<&str> {
        match self.source.as_ref() {
            Source::Torch(file) => file.wrapper(),
            _ => None,
        }
    }

    /// The file that was opened; of a sharded checkpoint, its index.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What the file holds that will be left out when it is written again, one
    /// sentence each, such as the state of an optimiser.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        match self.source.as_ref() {
            Source::Torch(file) => file.notes(),
            Source::Npz(file) => file.notes(),
            Source::Msgpack(file) => file.notes(),
            Source::Safetensors(_) | Source::Sharded(_) | Source::Memory(_) => &[],
        }
    }

    /// Writes the checkpoint to `path` with the tensors in `changed` replaced;
    /// element type and shape may differ from those in the file.
    ///
    /// All other tensors keep their bytes. A Torch file made from a Torch file
    /// keeps its wrapper, the order and `_metadata` of its state dict, and the
    /// plain data beside it; a safetensors file made from a safetensors file
    /// keeps the texts in its header; a sharded checkpoint made from a sharded
    /// one keeps which tensor is in which file; a MessagePack file made from a
    /// MessagePack file keeps its tree. Across containers only the tensors go.
    /// `metadata` takes the place of the text that [`Archive::metadata`] gave;
    /// when empty, none is stored. MessagePack has no place for it.
    ///
    /// For [`Container::Sharded`], `path` is that of an index, or of a folder,
    /// which is made if there is none; a checkpoint that was not sharded goes
    /// into files of at most 5 GB.
    ///
    /// The file appears whole or not at all: it is written beside its place and
    /// then renamed, replacing a file that was there. Equal contents and file
    /// name give equal bytes.
    ///
    /// # Errors
    /// The path is that of the file being read, of a folder or in a missing
    /// folder; a changed tensor is not in the file, or its bytes do not fill its
    /// shape; the container cannot hold an element type or a name; reading or
    /// writing fails.
    pub fn write(
        &self,
        path: &Path,
        container: Container,
        changed: &BTreeMap<String, RawTensor>,
        metadata: &str,
    ) -> Result<(), ArchiveError> {
        self.write_accepted(path, container, (changed, metadata), |_| Ok(()))
    }

    /// As [`Archive::write`]; the finished file is shown to `accept`, under its temporary name,
    /// before it takes its place.
    pub fn write_accepted<E: From<ArchiveError>>(
        &self,
        path: &Path,
        container: Container,
        (changed, metadata): (&BTreeMap<String, RawTensor>, &str),
        accept: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<(), E> {
        for (name, tensor) in changed {
            if !self.contains(name) {
                return Err(self.no_such_tensor(name).into());
            }
            tensor.check(name)?;
        }
        let contents = Contents {
            archive: self,
            changed,
            metadata,
        };
        if container == Container::Sharded {
            return sharded_file::writer::write(path, &contents, accept);
        }
        Destination::new(path, &self.files())?.write(
            |out| {
                let written = match container {
                    Container::Torch => torch_file::writer::write(out, path, &contents),
                    Container::Npz => npz_file::write(out, path, &contents),
                    Container::Msgpack => msgpack_file::writer::write(out, path, &contents),
                    Container::Safetensors | Container::Sharded => {
                        safetensors_file::write(out, path, &contents)
                    }
                };
                Ok(written?)
            },
            accept,
        )
    }

    /// The files that are being read.
    fn files(&self) -> Vec<&Path> {
        let mut files = vec![self.path.as_path()];
        if let Source::Sharded(file) = self.source.as_ref() {
            files.extend(file.shard_paths());
        }
        files
    }

    fn no_such_tensor(&self, name: &str) -> ArchiveError {
        ArchiveError::NoSuchTensor {
            path: self.path.clone(),
            tensor: name.to_owned(),
        }
    }
}

impl Source {
    /// Element type and shape of every tensor.
    fn tensors(&self) -> BTreeMap<String, (Dtype, Vec<usize>)> {
        let owned = |(name, dtype, shape): (&str, Dtype, &[usize])| {
            (name.to_owned(), (dtype, shape.to_vec()))
        };
        match self {
            Source::Safetensors(file) => file.tensors().map(owned).collect(),
            Source::Sharded(file) => file.tensors().map(owned).collect(),
            Source::Torch(file) => file.tensors().map(owned).collect(),
            Source::Npz(file) => file.tensors().map(owned).collect(),
            Source::Msgpack(file) => file.tensors().map(owned).collect(),
            Source::Memory(tensors) => headers(tensors).map(owned).collect(),
        }
    }
}

impl Replaced {
    fn none() -> Replaced {
        Replaced::Memory(BTreeMap::new())
    }

    fn headers(&self) -> Box<dyn Iterator<Item = (&str, Dtype, &[usize])> + '_> {
        match self {
            Replaced::Memory(tensors) => Box::new(headers(tensors)),
            Replaced::Spilled(spill) => Box::new(spill.tensors()),
        }
    }

    fn contains(&self, name: &str) -> bool {
        match self {
            Replaced::Memory(tensors) => tensors.contains_key(name),
            Replaced::Spilled(spill) => spill.contains(name),
        }
    }
}

fn headers(tensors: &BTreeMap<String, RawTensor>) -> impl Iterator<Item = (&str, Dtype, &[usize])> {
    tensors
        .iter()
        .map(|(name, tensor)| (name.as_str(), tensor.dtype, tensor.shape.as_slice()))
}

/// What is to be written: an archive with some tensors replaced.
pub(super) struct Contents<'a> {
    archive: &'a Archive,
    changed: &'a BTreeMap<String, RawTensor>,
    metadata: &'a str,
}

impl<'a> Contents<'a> {
    /// Names, element types and shapes, sorted by name.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (&'a str, Dtype, &'a [usize])> {
        let changed = self.changed;
        self.archive
            .tensors
            .iter()
            .map(move |(name, (dtype, shape))| match changed.get(name) {
                Some(tensor) => (name.as_str(), tensor.dtype, tensor.shape.as_slice()),
                None => (name.as_str(), *dtype, shape.as_slice()),
            })
    }

    /// One tensor, from the changes or from the file.
    pub(super) fn tensor(&self, name: &str) -> Result<Cow<'a, RawTensor>, ArchiveError> {
        match self.changed.get(name) {
            Some(tensor) => Ok(Cow::Borrowed(tensor)),
            None => self.archive.tensor(name).map(Cow::Owned),
        }
    }

    /// Whether a tensor is other than in the file.
    pub(super) fn is_changed(&self, name: &str) -> bool {
        self.changed.contains_key(name) || self.archive.replaced.contains(name)
    }

    /// What surrounded the tensors in a Torch file.
    pub(super) fn document(&self) -> Option<&'a Document> {
        match self.archive.source.as_ref() {
            Source::Torch(file) => Some(file.document()),
            _ => None,
        }
    }

    /// The MessagePack file whose tree is to be kept.
    pub(super) fn msgpack(&self) -> Option<&'a MsgpackFile> {
        match self.archive.source.as_ref() {
            Source::Msgpack(file) => Some(file),
            _ => None,
        }
    }

    /// The sharded checkpoint whose scheme is to be kept.
    pub(super) fn sharded(&self) -> Option<&'a ShardedFile> {
        match self.archive.source.as_ref() {
            Source::Sharded(file) => Some(file),
            _ => None,
        }
    }

    /// The texts in the header of a safetensors file.
    pub(super) fn texts(&self) -> BTreeMap<&'a str, &'a str> {
        match self.archive.source.as_ref() {
            Source::Safetensors(file) => borrowed(file.texts()),
            Source::Sharded(file) => file.texts(),
            _ => BTreeMap::new(),
        }
    }

    /// The files that are being read.
    pub(super) fn inputs(&self) -> Vec<&'a Path> {
        self.archive.files()
    }

    /// Our own text, empty when none is to be stored.
    pub(super) fn metadata(&self) -> &'a str {
        self.metadata
    }
}

/// A map of texts without its ownership.
pub(super) fn borrowed(texts: &BTreeMap<String, String>) -> BTreeMap<&str, &str> {
    let texts = texts.iter();
    texts
        .map(|(key, text)| (key.as_str(), text.as_str()))
        .collect()
}

/// Opens a file and reads the bytes that tell its format.
fn open_file(path: &Path) -> Result<(File, Vec<u8>), ArchiveError> {
    let read = |source| ArchiveError::Read {
        path: path.to_owned(),
        source,
    };
    // On some systems a folder can be opened, and only fails when it is read.
    if path.is_dir() {
        return Err(ArchiveError::Folder {
            path: path.to_owned(),
        });
    }
    // Opening a pipe without a writer would wait for ever.
    if std::fs::metadata(path).map_err(read)?.is_file() {
        let mut file = File::open(path).map_err(read)?;
        let start = first_bytes(&mut file).map_err(read)?;
        return match start.is_empty() {
            true => Err(ArchiveError::Empty {
                path: path.to_owned(),
            }),
            false => Ok((file, start)),
        };
    }
    Err(ArchiveError::NotAFile {
        path: path.to_owned(),
    })
}

/// Enough of a file to tell its format by.
fn first_bytes(file: &mut File) -> io::Result<Vec<u8>> {
    /// Up to the magic of a tar file.
    const START: u64 = 263;
    let mut start = Vec::new();
    file.take(START).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(start)
}

/// Names a format that cannot be read, as precisely as its first bytes allow.
fn foreign_format(path: &Path, start: &[u8]) -> ArchiveError {
    /// The integer 0x1950a86a20f9469cfc6c, by which legacy files begin.
    const LEGACY: [u8; 12] = [
        0x8a, 0x0a, 0x6c, 0xfc, 0x9c, 0x46, 0xf9, 0x20, 0x6a, 0xa8, 0x50, 0x19,
    ];
    let path = path.to_owned();
    // Behind the two bytes that declare the protocol.
    let is_legacy_pickle = start.first() == Some(&0x80)
        && start.get(2..).is_some_and(|rest| rest.starts_with(&LEGACY));
    let is_tar = start
        .get(257..)
        .is_some_and(|rest| rest.starts_with(b"ustar"));
    if is_legacy_pickle || is_tar {
        return ArchiveError::LegacyTorch { path };
    }
    if start.starts_with(b"version https://git-lfs") {
        return ArchiveError::GitLfsPointer { path };
    }
    let first = &start[..start.len().min(16)];
    let found = format!("it starts with \"{}\"", first.escape_ascii());
    ArchiveError::UnknownFormat { path, found }
}

#[cfg(test)]
mod tests;
