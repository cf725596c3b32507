//! A model in the tensors of its file: what differs from what the file holds, made once.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{Seek, Write};
use std::path::Path;

use hankelite_archive::{Archive, ArchiveError, Container, Dtype, RawTensor, ReadAt};
use hankelite_control::DiagonalSystem;

use crate::checkpoint::declared::Metadata;
use crate::checkpoint::encoded_layer::{ChangedLayer, KeptLayer, LayerEncoding};
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::{Encoded, Role};
use crate::checkpoint::provenance::Record;
use crate::checkpoint::raw::{floating, require_finite};
use crate::checkpoint::tensors::Tensors;
use crate::checkpoint::{Checkpoint, CheckpointError, Encoding};
use crate::model::{Block, Model};

/// A checkpoint whose changed tensors are made: ready to be counted and written.
pub struct EncodedCheckpoint<'a> {
    pub(super) encoding: &'a Encoding,
    /// With all layers of one size, where the network around them needs that.
    pub(super) model: Cow<'a, Model>,
    pub(super) record: &'a Record,
    /// The file with its changed tensors in their places.
    pub(super) archive: Archive,
    /// The same with layers put together that the file holds stacked.
    pub(super) stacked: Option<Archive>,
    /// Layers that the number format of the file would change too much.
    pub(super) kept: Vec<KeptLayer>,
}

/// Writes a checkpoint in the layout it came from, whole or not at all. Gives the systems of every
/// layer and channel, as rounded to the file's number format, those backwards in time after the others.
///
/// The finished file is read once before it takes its place.
///
/// Where a folder was read and `path` has no ending of a container, the whole folder is written: the
/// configuration with the new number of states, a section in the model card, all else copied.
///
/// Tensors whose part of the model did not change are copied bit for bit; the others keep their
/// name and dtype, and those around the systems their shape. The container follows the ending of
/// `path`, else that of the source. What was declared or assumed goes into the metadata, so that
/// the next command needs no flag.
///
/// # Errors
/// [`CheckpointError::Content`] where the layout cannot hold a pole;
/// [`ArchiveError`](hankelite_archive::ArchiveError) when the file cannot be written. Nothing is
/// left behind in either case.
pub fn write(
    checkpoint: &Checkpoint,
    path: impl AsRef<Path>,
) -> Result<Vec<Vec<DiagonalSystem>>, CheckpointError> {
    checkpoint.encode()?.write(path)
}

impl Checkpoint {
    /// Makes the tensors that differ from those of the file, for callers that count and write.
    ///
    /// # Errors
    /// As [`write()`], where the model cannot be encoded; and where the file holds all
    /// layers in one tensor and they cannot be that any more.
    pub fn encode(&self) -> Result<EncodedCheckpoint<'_>, CheckpointError> {
        let encoding = self.encoding.as_ref();
        let filled = self
            .filled()
            .map_err(|fault| fault.at(encoding.archive.path()))?;
        let model = filled.map_or(Cow::Borrowed(&self.model), Cow::Owned);
        let changed = encoding.changed_tensors(&model);
        let made = changed.and_then(|(changed, kept)| {
            let archive = encoding.archive.with(changed)?;
            let stacked = encoding.stacked(&archive)?;
            Ok(EncodedCheckpoint {
                encoding,
                model,
                record: &self.record,
                archive,
                stacked,
                kept,
            })
        });
        made.map_err(|fault| fault.at(encoding.archive.path()))
    }

    /// Real numbers in all tensors of the model, as it would be written.
    ///
    /// # Errors
    /// As [`write()`], where the model cannot be encoded.
    pub fn parameters(&self) -> Result<usize, CheckpointError> {
        Ok(self.encode()?.parameters())
    }
}

impl Encoding {
    fn changed_tensors(
        &self,
        model: &Model,
    ) -> Result<(BTreeMap<String, RawTensor>, Vec<KeptLayer>), Fault> {
        let Encoding {
            archive,
            structure,
            stored,
            ..
        } = self;
        require_equal("blocks", model.blocks().len(), stored.len())?;
        let tensors = Tensors::new(archive, &structure.prefix);
        let mut changed = changed_weights(structure.encode(model), archive, &tensors)?;
        leave_to_others(archive, &mut changed);
        let (mut systems, mut kept) = self.changed_systems(model, None)?;
        if self.scanned.is_some() && !kept.is_empty() {
            // Layers in one tensor have one format.
            systems = self.changed_systems(model, Some(Dtype::F32))?.0;
            kept.sort_by(|a, b| b.change.total_cmp(&a.change));
        }
        let apart = self.left_behind(&systems);
        match apart.or_else(|| leave_to_others(archive, &mut systems)) {
            Some((first, second)) => Err(Fault::Untied { first, second }),
            None => {
                changed.extend(systems);
                Ok((changed, kept))
            }
        }
    }

    /// The tensors of all changed systems, and the layers that are in a wider format than the file's.
    fn changed_systems(
        &self,
        model: &Model,
        dtype: Option<Dtype>,
    ) -> Result<(BTreeMap<String, RawTensor>, Vec<KeptLayer>), Fault> {
        let (mut systems, mut kept) = (BTreeMap::new(), Vec::new());
        for (index, block) in model.blocks().iter().enumerate() {
            let made = self.changed_layer(index, &self.stored[index], block, dtype)?;
            systems.extend(made.tensors);
            kept.extend(made.kept);
        }
        Ok((systems, kept))
    }
}

impl EncodedCheckpoint<'_> {
    /// Real numbers in all tensors. Those that several tensors share count once.
    pub fn parameters(&self) -> usize {
        self.whole().elements()
    }

    /// What is written.
    fn whole(&self) -> &Archive {
        self.stacked.as_ref().unwrap_or(&self.archive)
    }

    /// Bytes of the file that would be written to `path`, of a sharded checkpoint those of its
    /// tensors in one file. Reads every tensor once.
    ///
    /// # Errors
    /// As [`write()`], where the container cannot hold a tensor.
    pub fn file_bytes(&self, path: impl AsRef<Path>) -> Result<u64, CheckpointError> {
        let (path, structure) = (path.as_ref(), &self.encoding.structure);
        let metadata = Metadata::render(structure.settled, structure.own(), self.record);
        let whole = self.whole();
        let bytes = whole.written_bytes(path, self.container(path), &metadata);
        bytes.map_err(|error| Fault::from(error).at(path))
    }

    /// The container of a path: by its ending, else that of the source.
    fn container(&self, path: &Path) -> Container {
        Container::of_path(path).unwrap_or(self.whole().container())
    }

    /// The tensors, changed ones in the places of those of the file, by the names that are in it.
    pub fn into_archive(self) -> Archive {
        self.stacked.unwrap_or(self.archive).called_as_in_file()
    }

    /// Writes the file: see [`write()`].
    ///
    /// # Errors
    /// As [`write()`].
    pub fn write(
        &self,
        path: impl AsRef<Path>,
    ) -> Result<Vec<Vec<DiagonalSystem>>, CheckpointError> {
        let path = path.as_ref();
        let structure = &self.encoding.structure;
        let container = self.container(path);
        let metadata = Metadata::render(structure.settled, structure.own(), self.record);
        let mut layers = Vec::new();
        let accept = |written: &Path| {
            let archive = Archive::open(written);
            layers = self.read_back(archive, written, path)?;
            Ok::<(), CheckpointError>(())
        };
        let whole = self.whole();
        match Container::of_path(path) {
            None if whole.folder().is_some() => {
                let orders: Vec<usize> = self.model.blocks().iter().map(Block::order).collect();
                let texts = self.encoding.folder_texts(&orders, self.record);
                let texts = texts.map_err(|fault| fault.at(path))?;
                whole.write_folder(path, &metadata, &texts, accept)?;
            }
            _ => whole.write_checked(path, container, &metadata, accept)?,
        }
        Ok(layers)
    }

    /// Writes the bytes of the file that [`EncodedCheckpoint::write`] would write to `path` to an empty
    /// place; `again` gives what was written there, to be read once.
    ///
    /// # Errors
    /// As [`write()`].
    pub fn write_into<O: Write + Seek>(
        &self,
        path: impl AsRef<Path>,
        mut out: O,
        again: impl FnOnce(&O) -> Box<dyn ReadAt>,
    ) -> Result<Vec<Vec<DiagonalSystem>>, CheckpointError> {
        let (path, structure) = (path.as_ref(), &self.encoding.structure);
        let metadata = Metadata::render(structure.settled, structure.own(), self.record);
        let container = self.container(path);
        let done = self.whole().write_to(&mut out, path, container, &metadata);
        done.map_err(|error| Fault::from(error).at(path))?;
        let archive = Archive::from_files(path, again(&out), BTreeMap::new());
        self.read_back(archive, path, path)
    }

    /// The systems of a file as it was written. They are what encoding can spoil; all other numbers
    /// are only rounded.
    fn read_back(
        &self,
        archive: Result<Archive, ArchiveError>,
        written: &Path,
        path: &Path,
    ) -> Result<Vec<Vec<DiagonalSystem>>, CheckpointError> {
        let archive = archive.and_then(|archive| self.encoding.apart(archive));
        let archive = archive.map_err(|error| not_readable(error.into(), path))?;
        let tensors = Tensors::new(&archive, &self.encoding.structure.prefix);
        let layouts = self.encoding.structure.layers.iter();
        let layers = layouts.map(|layout| {
            let dynamics = layout.decode(&tensors);
            let dynamics = dynamics.map_err(|fault| not_readable(fault.at(written), path))?;
            Ok([dynamics.systems, dynamics.backward].concat())
        });
        layers.collect()
    }
}

impl Encoding {
    /// Layers put together that the file holds stacked, where it does.
    pub(super) fn stacked(&self, archive: &Archive) -> Result<Option<Archive>, Fault> {
        let scanned = self.scanned.as_ref();
        scanned.map(|scanned| scanned.together(archive)).transpose()
    }

    /// A file that was written after this one, with its layers apart.
    pub(super) fn reopened(&self, written: &Path) -> Result<Archive, ArchiveError> {
        self.apart(Archive::open(written)?)
    }

    /// The same, opened.
    fn apart(&self, archive: Archive) -> Result<Archive, ArchiveError> {
        match &self.scanned {
            Some(scanned) => scanned.again(&archive),
            None => Ok(archive.called_as_in(&self.archive)),
        }
    }

    /// A changed tensor and one that is tied to it, but belongs to a layer that did not change.
    fn left_behind(&self, changed: &BTreeMap<String, RawTensor>) -> Option<(String, String)> {
        let root = |name: &str| self.archive.tied_to(name).unwrap_or(name).to_string();
        let roots: BTreeMap<String, &String> =
            changed.keys().map(|name| (root(name), name)).collect();
        let prefix = self.structure.prefix.as_str();
        let mut kernels = self.archive.names().filter(|name| {
            let inside = name.strip_prefix(prefix);
            let mut found = self.structure.found.iter();
            inside.is_some_and(|name| found.any(|layer| layer.is_kernel(name)))
        });
        kernels.find_map(|name| {
            let first = roots.get(&root(name))?;
            (!changed.contains_key(name)).then(|| ((*first).clone(), name.to_string()))
        })
    }

    /// The tensors of one layer that differ from those of the file, which hold `stored`: in a number
    /// format, or in that of the file.
    pub(super) fn changed_layer(
        &self,
        index: usize,
        stored: &Block,
        block: &Block,
        dtype: Option<Dtype>,
    ) -> Result<ChangedLayer, Fault> {
        require_equal("channels", block.systems().len(), stored.systems().len())?;
        let backward = "systems that run backwards in time";
        require_equal(backward, block.backward().len(), stored.backward().len())?;
        let roles = changed_roles(block, stored);
        if roles.is_empty() {
            return Ok(BTreeMap::new().into());
        }
        self.encoded_layer(&LayerEncoding {
            index,
            block,
            roles,
            dtype,
        })
    }
}

/// Takes out all but the first of tied tensors that change to the same; two that do not.
fn leave_to_others(
    archive: &Archive,
    changed: &mut BTreeMap<String, RawTensor>,
) -> Option<(String, String)> {
    let mut firsts: BTreeMap<String, String> = BTreeMap::new();
    let (mut followers, mut apart) = (Vec::new(), None);
    for (name, tensor) in changed.iter() {
        let root = archive.tied_to(name).unwrap_or(name).to_string();
        match firsts.get(&root) {
            None => {
                firsts.insert(root, name.clone());
            }
            Some(first) if changed[first] == *tensor => followers.push(name.clone()),
            Some(first) => apart = Some((first.clone(), name.clone())),
        }
    }
    for name in followers {
        changed.remove(&name);
    }
    apart
}

pub(super) fn not_readable(source: CheckpointError, path: &Path) -> CheckpointError {
    let source = Box::new(source);
    Fault::NotReadable { source }.at(path)
}

/// The tensors around the systems that differ from those of the file, in its shapes and dtypes.
fn changed_weights(
    encoded: Vec<Encoded>,
    archive: &Archive,
    tensors: &Tensors<'_>,
) -> Result<BTreeMap<String, RawTensor>, Fault> {
    let mut changed = BTreeMap::new();
    for Encoded {
        name, shape, data, ..
    } in encoded
    {
        let found = shape.unwrap_or_default();
        let expected = format!("{found:?}, as in the model");
        let stored = tensors.values(&name, &expected)?;
        if stored.data == data {
            continue;
        }
        if stored.data.len() != data.len() {
            return Err(tensors.wrong_shape(&name, stored.shape, &expected));
        }
        let full = tensors.full(&name);
        let dtype = archive.dtype(&full).unwrap_or(Dtype::F32);
        let tensor = floating(&full, dtype, stored.shape, &data)?;
        require_finite(&full, &tensor, &data)?;
        changed.insert(full, tensor);
    }
    Ok(changed)
}

pub(super) fn require_equal(
    what: &'static str,
    found: usize,
    expected: usize,
) -> Result<(), Fault> {
    if found == expected {
        return Ok(());
    }
    Err(Fault::OtherModel {
        what,
        found,
        expected,
    })
}

/// Which parts of a layer's systems are not those of the file.
fn changed_roles(new: &Block, stored: &Block) -> Vec<Role> {
    let pairs = || new.all_systems().zip(stored.all_systems());
    let modes = |a: &DiagonalSystem, b: &DiagonalSystem| {
        a.exponents() == b.exponents() && a.input() == b.input() && a.output() == b.output()
    };
    let mut roles = Vec::new();
    if pairs().any(|(new, old)| !modes(new, old)) {
        roles.push(Role::Mode);
    }
    if pairs().any(|(new, old)| new.time() != old.time()) {
        // Poles are stored per step: a new step changes what every mode tensor holds.
        roles.extend([Role::Mode, Role::Step]);
    }
    if pairs().any(|(new, old)| new.feedthrough() != old.feedthrough()) {
        roles.push(Role::Feedthrough);
    }
    roles
}
