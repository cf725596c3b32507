//! A file of named tensors, whatever its container.
//!
//! [`Archive::open`] reads the names, types and shapes of the tensors and leaves their bytes where
//! they are; [`Archive::tensor`] fetches one. So memory is bounded by the largest tensor
//! requested. [`Archive::write`] copies the file, with changed tensors, into any container.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::changes::Changes;
use crate::container::{Container, is_index};
use crate::contents::{Contents, Shapes, TensorFile, Ties, borrowed};
use crate::destination::Destination;
use crate::endings::require_own_ending;
use crate::error::ArchiveError;
use crate::foreign::{ForeignFormat, is_legacy_tar};
use crate::model_folder::{Beside as FolderFiles, NewFolder};
use crate::msgpack_file::MsgpackFile;
use crate::npz_file::NpzFile;
use crate::place::file_in;
use crate::safetensors_file::SafetensorsFile;
use crate::sharded_file::writer::Scheme;
use crate::sharded_file::{Beside, ShardedFile};
use crate::tensor::{Dtype, Header, RawTensor};
use crate::torch_file::{Setting, TorchFile};
use crate::unchanging::{ReadAt, UnchangingFile, Version};
use crate::weight_set::WeightSet;
use crate::zip_records::{Zip, is_zip, open_zip};
use crate::{msgpack_file, npz_file, safetensors_file, sharded_file, torch_file};

/// The named tensors of one file, or of several with an index.
///
/// Cost: the names and shapes of all tensors in memory; their bytes stay in the file.
#[derive(Debug)]
pub struct Archive {
    path: PathBuf,
    /// The folder that was named in the place of a file.
    folder: Option<PathBuf>,
    source: Arc<Source>,
    /// The file as it was opened; `None` for tensors in memory.
    seen: Option<Version>,
    /// What each tensor is called, and its name in the file, by which all others here go.
    names: Arc<BTreeMap<String, String>>,
    shapes: Shapes,
    changes: Changes,
    /// Of the file, and those that were added.
    tied: Arc<Ties>,
    /// The same as the changes leave them.
    ties: Ties,
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

impl Archive {
    /// Opens a file. Its first bytes decide the container, not its name. A folder stands for the
    /// checkpoint in it: the index of several files, a safetensors file or `pytorch_model.bin`.
    ///
    /// The description of the tensors is read and checked against the file's length; nothing in
    /// the file is ever run.
    ///
    /// # Errors
    /// [`ArchiveError`], with the file's path, for anything but a well-formed file in one of the
    /// formats of [`Container`] with one state dict in it.
    pub fn open(path: impl AsRef<Path>) -> Result<Archive, ArchiveError> {
        Self::opened(path.as_ref(), TorchFile::open)
    }

    /// As [`Archive::open`], for a file of `torch.save` with several dictionaries of tensors: of the
    /// entry `set`.
    ///
    /// # Errors
    /// As [`Archive::open`]; [`ArchiveError::NoSuchSet`].
    pub fn open_set(path: impl AsRef<Path>, set: &str) -> Result<Archive, ArchiveError> {
        Self::opened(path.as_ref(), |path, zip| {
            TorchFile::open_set(path, zip, set)
        })
    }

    /// Opens a file of arrays: as [`Archive::open`]; also an array of `numpy.save`, by the name of the
    /// file without its ending, and a tensor, or a tuple or list of tensors, of `torch.save`, named
    /// `0`, `1` and so on.
    ///
    /// # Errors
    /// As [`Archive::open`].
    pub fn open_arrays(path: impl AsRef<Path>) -> Result<Archive, ArchiveError> {
        let path = path.as_ref();
        if !path.is_file() {
            return Archive::open(path);
        }
        let (mut file, start) = open_file(path)?;
        if !npz_file::is_npy(&start) {
            return Self::opened(path, TorchFile::open_arrays);
        }
        let mut bytes = Vec::new();
        let read = file.read_to_end(&mut bytes);
        read.map_err(ArchiveError::read(path))?;
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        let array = (name.into_owned(), npz_file::read_npy(path, bytes)?);
        Ok(Archive::in_memory(&path.to_string_lossy(), [array].into()))
    }

    fn opened(
        path: &Path,
        torch: impl FnOnce(&Path, Zip) -> Result<TorchFile, ArchiveError>,
    ) -> Result<Archive, ArchiveError> {
        let folder = path.is_dir().then(|| path.to_owned());
        let path = file_in(path)?;
        let (file, start) = open_file(&path)?;
        let archive = Self::of_file(path, (file, &start), torch)?;
        Ok(Archive { folder, ..archive })
    }

    /// As [`Archive::open`], from the bytes of one file. `name` stands for the file in messages.
    /// Nothing is looked up on disk.
    ///
    /// # Errors
    /// As [`Archive::open`]; also for the index of a sharded checkpoint, which is several files.
    pub fn from_bytes(name: impl AsRef<Path>, bytes: Vec<u8>) -> Result<Archive, ArchiveError> {
        Self::from_files(name, Box::new(bytes), BTreeMap::new())
    }

    /// As [`Archive::from_bytes`], from bytes that stay where they are until they are needed; `beside`
    /// holds, by their names, the files that an index lists.
    ///
    /// # Errors
    /// As [`Archive::open`].
    pub fn from_files(
        name: impl AsRef<Path>,
        bytes: Box<dyn ReadAt>,
        beside: BTreeMap<String, Box<dyn ReadAt>>,
    ) -> Result<Archive, ArchiveError> {
        let path = name.as_ref().to_owned();
        let file = UnchangingFile::given(bytes);
        let start = first_bytes(&file).map_err(ArchiveError::read(&path))?;
        match start.is_empty() {
            true => Err(ArchiveError::Empty { path }),
            false if sharded_file::is_json(&start) && is_index(&path) => {
                let file = ShardedFile::open(&path, file, Beside::Given(beside))?;
                Ok(Archive::of(path, Source::Sharded(file)))
            }
            false => Self::of_file(path, (file, &start), TorchFile::open),
        }
    }

    /// Of a file and its first bytes.
    fn of_file(
        path: PathBuf,
        (file, start): (UnchangingFile, &[u8]),
        torch: impl FnOnce(&Path, Zip) -> Result<TorchFile, ArchiveError>,
    ) -> Result<Archive, ArchiveError> {
        let seen = file.version();
        let source = if is_zip(start) {
            let zip = open_zip(&path, file)?;
            match npz_file::is_npz(&zip) {
                true => Source::Npz(NpzFile::open(&path, zip)?),
                false => Source::Torch(torch(&path, zip)?),
            }
        } else if msgpack_file::is_msgpack(start) && !safetensors_file::is_plausible(start) {
            // The ninth byte of such a file may be the brace of a safetensors header.
            Source::Msgpack(MsgpackFile::open(&path, file)?)
        } else if safetensors_file::is_safetensors(start) {
            Source::Safetensors(SafetensorsFile::open(&path, file)?)
        } else if sharded_file::is_json(start) && is_index(&path) {
            Source::Sharded(ShardedFile::open(&path, file, Beside::Folder)?)
        } else {
            return Err(foreign_format(&path, start));
        };
        Ok(Archive {
            seen,
            ..Archive::of(path, source)
        })
    }

    /// Tensors that are in no file yet; `name` stands for one in messages.
    #[must_use]
    pub fn in_memory(name: &str, tensors: BTreeMap<String, RawTensor>) -> Archive {
        Archive::of(name.into(), Source::Memory(tensors))
    }

    fn of(path: PathBuf, source: Source) -> Archive {
        let ties = source.file().ties();
        let shapes = source.shapes();
        let names = shapes.keys().map(|name| (name.clone(), name.clone()));
        Archive {
            path,
            folder: None,
            names: Arc::new(names.collect()),
            shapes,
            tied: Arc::new(ties.clone()),
            ties,
            source: Arc::new(source),
            seen: None,
            changes: Changes::default(),
        }
    }

    /// The sets of weights among which one is read: the entries with tensors of the top object of a
    /// file of `torch.save`. Empty where there is but one, and for other files.
    #[must_use]
    pub fn sets(&self) -> &[WeightSet] {
        match self.source.as_ref() {
            Source::Torch(file) => file.sets(),
            _ => &[],
        }
    }

    /// The same file with another of its [`Archive::sets`]. The one that was read before is then
    /// left out of what is written.
    ///
    /// # Errors
    /// [`ArchiveError::NoSuchSet`]; the file can no longer be read.
    pub fn of_set(&self, set: &str) -> Result<Archive, ArchiveError> {
        let Source::Torch(file) = self.source.as_ref() else {
            return Err(ArchiveError::NoSuchSet {
                path: self.path.clone(),
                set: set.to_owned(),
                found: "none".to_owned(),
            });
        };
        let source = Source::Torch(file.of_set(set)?);
        Ok(Archive {
            folder: self.folder.clone(),
            seen: self.seen,
            ..Archive::of(self.path.clone(), source)
        })
    }

    /// The same file, of which only the tensors are seen whose names start with `prefix`. All others
    /// are written as they are.
    #[must_use]
    pub fn below(mut self, prefix: &str) -> Archive {
        let names = self.names.iter();
        let names = names.filter(|(name, _)| name.starts_with(prefix));
        let names: BTreeMap<String, String> = names
            .map(|(name, in_file)| (name.clone(), in_file.clone()))
            .collect();
        let seen: BTreeSet<&String> = names.values().collect();
        // A change of what is seen does not reach the others.
        let within = |ties: &Ties| {
            let ties = ties.iter();
            let ties = ties.filter(|(name, first)| seen.contains(name) == seen.contains(first));
            ties.map(|(name, first)| (name.clone(), first.clone()))
                .collect::<Ties>()
        };
        (self.ties, self.tied) = (within(&self.ties), Arc::new(within(&self.tied)));
        self.names = Arc::new(names);
        self
    }

    /// The names, in the file, of the tensors that are not seen.
    pub fn unseen(&self) -> impl Iterator<Item = &str> {
        let seen: BTreeSet<&String> = self.names.values().collect();
        let names = self.shapes.keys();
        names
            .filter(move |name| !seen.contains(name))
            .map(String::as_str)
    }

    /// The same file, whose tensors are called by other names from here on: `called` gives that of a
    /// tensor by its name in the file, and `None` where that stays. They are written under the names
    /// that they have in the file. Tensors that are changed in this archive are those of the file
    /// again. `None` where two tensors would have one name.
    #[must_use]
    pub fn renamed(&self, called: impl Fn(&str) -> Option<String>) -> Option<Archive> {
        let pairs = self.names.values().map(|in_file| {
            let name = called(in_file).unwrap_or_else(|| in_file.clone());
            (name, in_file.clone())
        });
        let names: BTreeMap<String, String> = pairs.collect();
        (names.len() == self.names.len()).then(|| Archive {
            path: self.path.clone(),
            folder: self.folder.clone(),
            names: Arc::new(names),
            source: Arc::clone(&self.source),
            seen: self.seen,
            shapes: self.source.shapes(),
            changes: Changes::default(),
            ties: self.tied.as_ref().clone(),
            tied: Arc::clone(&self.tied),
        })
    }

    /// A file with the tensors of another, called as they are there.
    #[must_use]
    pub fn called_as_in(mut self, other: &Archive) -> Archive {
        let known = other.names.iter();
        let called: BTreeMap<&str, &str> =
            known.map(|(name, in_file)| (&**in_file, &**name)).collect();
        let pairs = self.names.values().map(|in_file| {
            let name = called.get(&**in_file).copied().unwrap_or(in_file);
            (name.to_owned(), in_file.clone())
        });
        self.names = Arc::new(pairs.collect());
        self
    }

    /// The same, with tensors called as they are in the file.
    #[must_use]
    pub fn called_as_in_file(mut self) -> Archive {
        let names = self.shapes.keys();
        self.names = Arc::new(names.map(|name| (name.clone(), name.clone())).collect());
        self
    }

    /// The name of a tensor in the file, where it may be called otherwise here.
    #[must_use]
    pub fn name_in_file<'a>(&'a self, name: &'a str) -> &'a str {
        self.names.get(name).map_or(name, String::as_str)
    }

    /// What a tensor is called here.
    fn called<'a>(&'a self, own: &'a str) -> &'a str {
        if self.names.get(own).is_some_and(|in_file| in_file == own) {
            return own;
        }
        let mut pairs = self.names.iter();
        let found = pairs.find(|(_, in_file)| *in_file == own);
        found.map_or(own, |(name, _)| name)
    }

    /// The same file, of which some tensors are tied: each of the keys follows a change of its
    /// value, and PyTorch gets one storage for both. Tensors that share a storage in a Torch file
    /// are tied already.
    ///
    /// # Errors
    /// [`ArchiveError::NoSuchTensor`] for a tensor that is not in the file.
    pub fn tied(mut self, ties: BTreeMap<String, String>) -> Result<Archive, ArchiveError> {
        for (name, first) in ties {
            if let Some(tensor) = [&name, &first]
                .into_iter()
                .find(|name| !self.contains(name))
            {
                return Err(ArchiveError::NoSuchTensor {
                    path: self.path,
                    tensor: tensor.clone(),
                });
            }
            let [name, first] = [name, first].map(|name| self.name_in_file(&name).to_owned());
            let first = self.ties.get(&first).cloned().unwrap_or(first);
            let followers = self.ties.iter_mut().filter(|(_, known)| **known == name);
            followers.for_each(|(_, known)| known.clone_from(&first));
            if name != first {
                self.ties.insert(name, first);
            }
        }
        self.tied = Arc::new(self.ties.clone());
        Ok(self)
    }

    /// The tensor that this one is tied to: the first, in the order of names, of those that share
    /// their elements. `None` for that one, and for all that stand alone.
    #[must_use]
    pub fn tied_to(&self, name: &str) -> Option<&str> {
        let first = self.ties.get(self.name_in_file(name))?;
        Some(self.called(first))
    }

    /// Numbers in all tensors. Those that several tensors share count once.
    #[must_use]
    pub fn elements(&self) -> usize {
        let names = self.names().filter(|name| !self.repeats(name));
        let shapes = names.filter_map(|name| self.shape(name));
        shapes.map(|shape| shape.iter().product::<usize>()).sum()
    }

    /// Whether all numbers of a tensor are counted with one before it: it is tied, or looks at the
    /// same elements along other axes.
    #[must_use]
    pub fn repeats(&self, name: &str) -> bool {
        let (contents, name) = (self.contents(""), self.name_in_file(name));
        let unchanged = || !contents.is_changed(name) && self.source.file().repeats(name);
        self.ties.contains_key(name) || unchanged()
    }

    /// The same file with some tensors changed, and those that are tied to them with them; element
    /// types and shapes may differ from those in the file. Tensors that are changed already in this archive are those of the file again.
    /// The file is not read.
    ///
    /// # Errors
    /// [`ArchiveError::NoSuchTensor`] for a tensor that is not in the file.
    pub fn with(&self, changes: impl Into<Changes>) -> Result<Archive, ArchiveError> {
        let changes = changes
            .into()
            .renamed(|name| self.name_in_file(name).to_owned());
        let mut shapes = self.source.shapes();
        for Header { name, dtype, shape } in changes.headers() {
            let Some(known) = shapes.get_mut(name) else {
                return Err(ArchiveError::NoSuchTensor {
                    path: self.path.clone(),
                    tensor: name.to_owned(),
                });
            };
            *known = (dtype, shape.to_vec());
        }
        let ties = self.ties_led_by(&changes);
        for (name, first) in &ties {
            if changes.contains(first) {
                shapes.insert(name.clone(), shapes[first].clone());
            }
        }
        Ok(Archive {
            path: self.path.clone(),
            folder: self.folder.clone(),
            names: Arc::clone(&self.names),
            source: Arc::clone(&self.source),
            seen: self.seen,
            tied: Arc::clone(&self.tied),
            ties,
            shapes,
            changes,
        })
    }

    /// The ties once some tensors are changed: of those that are tied together, the ones without a
    /// change follow the first with one.
    fn ties_led_by(&self, changes: &Changes) -> Ties {
        let mut leaders: BTreeMap<&str, &str> = BTreeMap::new();
        for (name, first) in self.tied.iter() {
            let changed = [first, name]
                .into_iter()
                .find(|name| changes.contains(name));
            if let Some(changed) = changed {
                leaders.entry(first).or_insert(changed);
            }
        }
        let leader = |first: &str| leaders.get(first).copied().unwrap_or(first).to_owned();
        let firsts: BTreeSet<_> = self.tied.values().collect();
        let mut ties = Ties::new();
        let all = self
            .tied
            .iter()
            .chain(firsts.into_iter().map(|first| (first, first)));
        for (name, first) in all.filter(|(name, _)| !changes.contains(name)) {
            let leader = leader(first);
            if *name != leader {
                ties.insert(name.clone(), leader);
            }
        }
        ties
    }

    /// What was given to [`Archive::with`], without a copy.
    #[must_use]
    pub fn into_changes(mut self) -> Changes {
        let changes = std::mem::take(&mut self.changes);
        changes.renamed(|name| self.called(name).to_owned())
    }

    /// Every tensor's name, element type and shape, sorted by name.
    pub fn headers(&self) -> impl Iterator<Item = Header<'_>> {
        self.names.iter().map(|(name, in_file)| {
            let (dtype, shape) = &self.shapes[in_file];
            Header {
                name,
                dtype: *dtype,
                shape,
            }
        })
    }

    /// The names of all tensors, sorted. A tensor of nested dictionaries is named by its keys,
    /// joined by dots (in MessagePack files by slashes).
    pub fn names(&self) -> impl Iterator<Item = &str> + Clone {
        self.names.keys().map(String::as_str)
    }

    /// Whether there is a tensor of that name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.names.contains_key(name)
    }

    /// The shape of a tensor, empty for a scalar.
    #[must_use]
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        let header = self.shapes.get(self.names.get(name)?);
        header.map(|(_, shape)| shape.as_slice())
    }

    /// The element type of a tensor.
    #[must_use]
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        let header = self.shapes.get(self.names.get(name)?);
        header.map(|(dtype, _)| *dtype)
    }

    /// Reads one tensor from the file, or from the changes.
    ///
    /// # Errors
    /// [`ArchiveError::NoSuchTensor`], or the file can no longer be read.
    pub fn tensor(&self, name: &str) -> Result<RawTensor, ArchiveError> {
        let name = self.name_in_file(name);
        self.contents("").tensor(name).map(Cow::into_owned)
    }

    /// Reads some entries of the first axis of a tensor of the file. Of safetensors files, sharded or
    /// not, and of npz files in C order only their bytes are read.
    ///
    /// # Errors
    /// As [`Archive::tensor`].
    ///
    /// # Panics
    /// If the tensor has no such entries.
    pub fn rows(&self, name: &str, rows: Range<usize>) -> Result<RawTensor, ArchiveError> {
        let extent = self.shape(name).and_then(|shape| shape.first().copied());
        if let Some(extent) = extent {
            assert!(
                rows.start <= rows.end && rows.end <= extent,
                "{rows:?} of {extent}"
            );
        }
        let in_file = self.name_in_file(name);
        match self.contents("").is_changed(in_file) || extent.is_none() {
            true => self
                .tensor(name)?
                .rows(rows)
                .map_err(|error| error.of(name)),
            false => match self.source.file().rows(in_file, rows) {
                Some(read) => read.map(Cow::into_owned),
                None => self.tensor(name),
            },
        }
    }

    /// The text that [`Archive::write`] stored beside the tensors, if any.
    #[must_use]
    pub fn metadata(&self) -> Option<&str> {
        self.source.file().metadata()
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

    /// The container the file is in; safetensors for tensors in memory, that of one file for several
    /// of PyTorch.
    #[must_use]
    pub fn container(&self) -> Container {
        match self.source.as_ref() {
            Source::Safetensors(_) | Source::Memory(_) => Container::Safetensors,
            Source::Sharded(file) if file.is_of_torch() => Container::Torch,
            Source::Sharded(_) => Container::Sharded,
            Source::Torch(_) => Container::Torch,
            Source::Npz(_) => Container::Npz,
            Source::Msgpack(_) => Container::Msgpack,
        }
    }

    /// The keys that lead from the top object to the state dict, joined by dots, such as `model`;
    /// `None` when the tensors stand at the top.
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

    /// The folder that was named in the place of the file.
    #[must_use]
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// The files beside the checkpoint in its folder: those that [`Archive::write_folder`] copies, and
    /// those that it leaves out. `None` where no folder was named.
    ///
    /// # Errors
    /// [`ArchiveError::Read`]
    pub fn beside(&self) -> Result<Option<FolderFiles>, ArchiveError> {
        let Some(folder) = &self.folder else {
            return Ok(None);
        };
        let files = self.files();
        let own = files.iter().filter_map(|file| file.file_name()).collect();
        let found = FolderFiles::of(folder, &own);
        found.map(Some).map_err(ArchiveError::read(folder))
    }

    /// Whether the path still is that of the file that was opened, as it was then: for notes that
    /// name it. Reading goes on in the file that was opened, whatever takes its name, and fails
    /// once that is changed.
    ///
    /// # Errors
    /// [`ArchiveError::Read`], where it is not.
    pub fn require_in_place(&self) -> Result<(), ArchiveError> {
        let in_place = self.seen.map(|seen| seen.require_at(&self.path));
        in_place
            .unwrap_or(Ok(()))
            .map_err(ArchiveError::read(&self.path))
    }

    /// What the file holds that will be left out when it is written again, one sentence each,
    /// such as the state of an optimiser.
    #[must_use]
    pub fn notes(&self) -> &[String] {
        self.source.file().notes()
    }

    /// Writes all tensors to `path`, changed ones as they are now.
    ///
    /// All other tensors keep their bytes, and in a Torch file those that share a storage still do.
    /// A Torch file made from a Torch file keeps its wrapper,
    /// the order and `_metadata` of its state dict, and the plain data beside it; a safetensors
    /// file made from a safetensors file keeps the texts in its header; a sharded checkpoint made
    /// from a sharded one keeps which tensor is in which file; a MessagePack file made from a
    /// MessagePack file keeps its tree. Across containers only the tensors go, and a
    /// safetensors file made from a Torch file has the text `format: pt`. `metadata` takes
    /// the place of the text that [`Archive::metadata`] gave; when empty, none is stored.
    /// MessagePack has no place for it.
    ///
    /// For [`Container::Sharded`], `path` is that of an index, or of a folder, which is made if
    /// there is none; a checkpoint that was not sharded goes into files of at most 5 GB.
    ///
    /// The file appears whole or not at all: it is written beside its place and then renamed,
    /// replacing a file that was there. Equal contents and file name give equal bytes. One tensor
    /// at a time is in memory.
    ///
    /// # Errors
    /// The path is that of the file being read, of a write-protected one, of a folder or in a
    /// missing folder, or its ending stands for something else than tensors; the container cannot
    /// hold an element type or a name; reading or writing fails.
    pub fn write(
        &self,
        path: impl AsRef<Path>,
        container: Container,
        metadata: &str,
    ) -> Result<(), ArchiveError> {
        self.write_checked(path, container, metadata, |_| Ok(()))
    }

    /// As [`Archive::write`]; `check` may read the finished file, under its temporary name, and
    /// only where it gives no error does the file take its place. Of a sharded checkpoint it gets
    /// the index.
    ///
    /// # Errors
    /// As [`Archive::write`], and those of `check`.
    pub fn write_checked<E: From<ArchiveError>>(
        &self,
        path: impl AsRef<Path>,
        container: Container,
        metadata: &str,
        check: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<(), E> {
        let (path, contents) = (path.as_ref(), self.contents(metadata));
        require_own_ending(path)?;
        if container == Container::Sharded {
            let scheme = Scheme {
                source: self.source.sharded(),
                texts: self.source.texts(),
                inputs: self.files(),
            };
            return sharded_file::writer::write(path, &contents, &scheme, check);
        }
        Destination::new(path, &self.files())?
            .write(|out| Ok(self.fill(out, path, container, &contents)?), check)
    }

    /// Writes the folder that was named in the place of a file again: the checkpoint in its own container
    /// and under its own names, `texts` by the names of their files, and copies of all other files
    /// but those with other weights, hidden folders, and folders that are links. Where no folder was named,
    /// as [`Archive::write_checked`] of several files.
    ///
    /// A new folder appears at once. In one that exists files of these names are replaced, the
    /// checkpoint goes first and comes last. `check` gets the index, or the only file of tensors.
    ///
    /// # Errors
    /// As [`Archive::write_checked`]; [`ArchiveError::OtherCheckpoint`], where the folder holds one
    /// of another name.
    pub fn write_folder<E: From<ArchiveError>>(
        &self,
        path: impl AsRef<Path>,
        metadata: &str,
        texts: &BTreeMap<String, String>,
        check: impl FnOnce(&Path) -> Result<(), E>,
    ) -> Result<(), E> {
        let path = path.as_ref();
        let main = self.path.file_name().and_then(|name| name.to_str());
        let (Some(source), Some(main)) = (&self.folder, main) else {
            return self.write_checked(path, Container::Sharded, metadata, check);
        };
        require_own_ending(path)?;
        let contents = self.contents(metadata);
        let sharded = match self.source.as_ref() {
            Source::Sharded(file) => Some(file),
            _ => None,
        };
        let shards = sharded.into_iter().flat_map(ShardedFile::shard_paths);
        let shards = shards.filter_map(|shard| shard.file_name().map(Path::new));
        let new = NewFolder {
            source,
            shards: shards.collect(),
            main,
            texts,
            inputs: self.files(),
        };
        let fill = |folder: &Path| match sharded {
            Some(file) => sharded_file::writer::fill(folder, &contents, file),
            None => self.fill_new(&folder.join(main), &contents),
        };
        new.write(path, fill, check)
    }

    /// Writes what goes into one file, in the container of the source.
    fn fill_new(&self, path: &Path, contents: &Contents<'_>) -> Result<(), ArchiveError> {
        let failed = ArchiveError::write(path);
        let mut out = io::BufWriter::new(std::fs::File::create_new(path).map_err(&failed)?);
        self.fill(&mut out, path, self.container(), contents)?;
        let file = out.into_inner().map_err(|error| failed(error.into()))?;
        file.sync_all().map_err(failed)
    }

    /// Bytes of the file that [`Archive::write`] would write to `path`; of a sharded checkpoint
    /// those of its tensors in one file. Reads every tensor, writes nothing.
    ///
    /// # Errors
    /// The container cannot hold an element type or a name; reading fails.
    pub fn written_bytes(
        &self,
        path: impl AsRef<Path>,
        container: Container,
        metadata: &str,
    ) -> Result<u64, ArchiveError> {
        let mut counted = Counted::default();
        let contents = self.contents(metadata);
        self.fill(&mut counted, path.as_ref(), container, &contents)?;
        Ok(counted.bytes)
    }

    /// The bytes of the file that [`Archive::write`] would write to `path`; for
    /// [`Container::Sharded`] those of one safetensors file with all tensors.
    ///
    /// # Errors
    /// The container cannot hold an element type or a name; reading fails.
    pub fn to_bytes(
        &self,
        path: impl AsRef<Path>,
        container: Container,
        metadata: &str,
    ) -> Result<Vec<u8>, ArchiveError> {
        let mut out = io::Cursor::new(Vec::new());
        self.write_to(&mut out, path, container, metadata)?;
        Ok(out.into_inner())
    }

    /// Writes the bytes of [`Archive::to_bytes`] to an empty place. Memory is bounded by the largest
    /// tensor.
    ///
    /// # Errors
    /// As [`Archive::to_bytes`]; writing fails.
    pub fn write_to(
        &self,
        out: impl Write + Seek,
        path: impl AsRef<Path>,
        container: Container,
        metadata: &str,
    ) -> Result<(), ArchiveError> {
        self.fill(out, path.as_ref(), container, &self.contents(metadata))
    }

    /// Writes what goes into one file.
    fn fill(
        &self,
        mut out: impl Write + Seek,
        path: &Path,
        container: Container,
        contents: &Contents<'_>,
    ) -> Result<(), ArchiveError> {
        match container {
            Container::Torch => torch_file::writer::write(out, path, contents, self.source.torch()),
            Container::Npz => npz_file::write(out, path, contents),
            Container::Msgpack => {
                msgpack_file::writer::write(&mut out, path, contents, self.source.msgpack())
            }
            Container::Safetensors | Container::Sharded => {
                safetensors_file::write(&mut out, path, contents, self.source.texts())
            }
        }
    }

    fn contents<'a>(&'a self, metadata: &'a str) -> Contents<'a> {
        Contents {
            path: &self.path,
            file: self.source.file(),
            changes: &self.changes,
            ties: &self.ties,
            shapes: &self.shapes,
            metadata,
        }
    }

    /// The files that are being read.
    fn files(&self) -> Vec<&Path> {
        let mut files = vec![self.path.as_path()];
        if let Source::Sharded(file) = self.source.as_ref() {
            files.extend(file.shard_paths());
        }
        files
    }
}

impl Source {
    fn file(&self) -> &dyn TensorFile {
        match self {
            Source::Safetensors(file) => file,
            Source::Sharded(file) => file,
            Source::Torch(file) => file,
            Source::Npz(file) => file,
            Source::Msgpack(file) => file,
            Source::Memory(tensors) => tensors,
        }
    }

    fn shapes(&self) -> Shapes {
        let headers = self.file().headers();
        let owned = |header: Header<'_>| {
            let shape = (header.dtype, header.shape.to_vec());
            (header.name.to_owned(), shape)
        };
        headers.map(owned).collect()
    }

    fn torch(&self) -> Option<&TorchFile> {
        match self {
            Source::Torch(file) => Some(file),
            _ => None,
        }
    }

    fn msgpack(&self) -> Option<&MsgpackFile> {
        match self {
            Source::Msgpack(file) => Some(file),
            _ => None,
        }
    }

    /// A checkpoint whose distribution over files can be kept.
    fn sharded(&self) -> Option<&ShardedFile> {
        match self {
            Source::Sharded(file) if !file.is_of_torch() => Some(file),
            _ => None,
        }
    }

    /// The texts in the header of a safetensors file. Made from a Torch file, it has the one that
    /// PyTorch's own writers put there, which some loaders insist on.
    fn texts(&self) -> BTreeMap<&str, &str> {
        match self {
            Source::Safetensors(file) => borrowed(file.texts()),
            Source::Sharded(file) => file.texts(),
            Source::Torch(_) => BTreeMap::from([("format", "pt")]),
            _ => BTreeMap::new(),
        }
    }
}

/// Opens a file and reads the bytes that show its format.
fn open_file(path: &Path) -> Result<(UnchangingFile, Vec<u8>), ArchiveError> {
    let read = ArchiveError::read(path);
    // On some systems a folder can be opened, and only fails when it is read.
    if path.is_dir() {
        return Err(ArchiveError::folder(path));
    }
    // Opening a pipe without a writer would wait for ever.
    if std::fs::metadata(path).map_err(&read)?.is_file() {
        let file = UnchangingFile::open(path).map_err(&read)?;
        let start = first_bytes(&file).map_err(&read)?;
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

/// Enough of a file to know its format.
fn first_bytes(mut file: &UnchangingFile) -> io::Result<Vec<u8>> {
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
    if is_legacy_pickle || is_legacy_tar(start) {
        return ArchiveError::LegacyTorch { path };
    }
    if let Some(format) = ForeignFormat::of_start(start) {
        return ArchiveError::ForeignFormat { path, format };
    }
    if start.starts_with(b"version https://git-lfs") {
        return ArchiveError::GitLfsPointer { path };
    }
    let first = &start[..start.len().min(16)];
    let found = format!("it starts with \"{}\"", first.escape_ascii());
    ArchiveError::UnknownFormat { path, found }
}

/// A file that is counted instead of written.
#[derive(Debug, Default)]
struct Counted {
    at: u64,
    bytes: u64,
}

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.at += bytes.len() as u64;
        self.bytes = self.bytes.max(self.at);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for Counted {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let at = match to {
            SeekFrom::Start(at) => Some(at),
            SeekFrom::End(by) => self.bytes.checked_add_signed(by),
            SeekFrom::Current(by) => self.at.checked_add_signed(by),
        };
        self.at = at.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.at)
    }
}

#[cfg(test)]
mod tests;
