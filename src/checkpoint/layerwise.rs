//! A checkpoint whose layers are read, changed and written one at a time, so that memory is
//! bounded by the largest layer and not by the file.

use std::collections::BTreeMap;
use std::path::Path;

use hankelite_archive::{Archive, Changes, ChangesOnDisk, Container, RawTensor};
use hankelite_control::DiagonalSystem;

use crate::checkpoint::declared::Metadata;
use crate::checkpoint::encode::{not_readable, require_equal};
use crate::checkpoint::encoded_layer::{ChangedLayer, KeptLayer};
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::Dynamics;
use crate::checkpoint::parts::Parts;
use crate::checkpoint::provenance::{Provenance, Record};
use crate::checkpoint::tensors::Tensors;
use crate::checkpoint::{Checkpoint, CheckpointError, Declared, Encoding, read_parts};
use crate::model::Block;

/// A checkpoint that was read once from end to end and of which no layer is in memory.
pub struct Layerwise(Checkpoint);

/// Opens a checkpoint for work on one layer at a time. Every tensor is read and checked once, as
/// by [`crate::read`], and let go.
///
/// # Errors
/// As [`crate::read`].
pub fn read_layerwise(
    path: impl AsRef<Path>,
    declared: &Declared,
) -> Result<Layerwise, CheckpointError> {
    Ok(Layerwise(read_parts(
        path.as_ref(),
        declared,
        Parts::Outline,
    )?))
}

impl Layerwise {
    /// The checkpoint without what its layers hold: of each, one channel of the largest order is
    /// whole and the others have no modes.
    pub fn outline(&self) -> &Checkpoint {
        &self.0
    }

    /// Reads one layer, with its systems and nothing else.
    ///
    /// # Errors
    /// The file can no longer be read, or has changed.
    ///
    /// # Panics
    /// If there is no layer of that index.
    pub fn layer(&self, index: usize) -> Result<Block, CheckpointError> {
        let dynamics = self.decode(index, &self.0.encoding.archive);
        let dynamics = dynamics.map_err(|fault| fault.at(self.0.encoding.archive.path()))?;
        let block = self.0.model.blocks()[index].with_systems(dynamics.systems, dynamics.backward);
        block.map_err(|error| Fault::Model(error).at(self.0.encoding.archive.path()))
    }

    fn decode(&self, index: usize, archive: &Archive) -> Result<Dynamics, Fault> {
        let structure = &self.0.encoding.structure;
        structure.layers[index].decode(&Tensors::new(archive, &structure.prefix))
    }

    /// Starts to make a changed checkpoint, for the place `output`; for none, only its size is
    /// found.
    ///
    /// # Errors
    /// No temporary file can be made beside `output`.
    pub fn rewrite(&self, output: Option<&Path>) -> Result<Rewrite<'_>, CheckpointError> {
        let spill = match output {
            Some(output) => ChangesOnDisk::beside(output)?,
            None => ChangesOnDisk::headers_only(),
        };
        Ok(Rewrite {
            source: self,
            spill,
            kept: output.is_some(),
            firsts: BTreeMap::new(),
            record: Record::default(),
            wide: Vec::new(),
            orders: BTreeMap::new(),
        })
    }
}

/// Changed layers on their way into a file. They wait in a temporary file without a name.
pub struct Rewrite<'a> {
    source: &'a Layerwise,
    spill: ChangesOnDisk,
    /// Whether tensors are kept, and not only their sizes.
    kept: bool,
    /// Of tensors that are tied, the one that was set first, by the one they are tied to.
    firsts: BTreeMap<String, String>,
    /// For the metadata.
    record: Record,
    wide: Vec<KeptLayer>,
    /// The states of each layer that was set.
    orders: BTreeMap<usize, usize>,
}

impl Rewrite<'_> {
    /// A note of how the file came about, for its metadata.
    pub fn note(&mut self, provenance: Provenance) {
        self.record.provenance = Some(provenance);
    }

    /// Encodes a layer that was `stored` so in the file. Gives its systems back as rounded to the
    /// number format of the file, those backwards in time after the others.
    ///
    /// # Errors
    /// As [`crate::write()`].
    ///
    /// # Panics
    /// If there is no layer of that index.
    pub fn set(
        &mut self,
        index: usize,
        stored: Block,
        block: &Block,
    ) -> Result<Vec<DiagonalSystem>, CheckpointError> {
        let archive = &self.source.0.encoding.archive;
        self.orders.insert(index, block.order());
        let encoded = self.encode(index, stored, block);
        let encoded = encoded.map_err(|fault| fault.at(archive.path()))?;
        self.wide.extend(encoded.kept);
        for (name, tensor) in encoded.tensors {
            self.add(name, &tensor)
                .map_err(|fault| fault.at(archive.path()))?;
        }
        Ok(encoded.systems)
    }

    /// Sets a tensor aside, unless one that it is tied to holds the same already.
    fn add(&mut self, name: String, tensor: &RawTensor) -> Result<(), Fault> {
        let archive = &self.source.0.encoding.archive;
        let root = archive.tied_to(&name).unwrap_or(&name).to_string();
        let Some(first) = self.firsts.get(&root).filter(|first| **first != name) else {
            self.firsts.insert(root, name.clone());
            return Ok(self.spill.add(name, tensor)?);
        };
        // Where only sizes are kept there is nothing to compare with.
        let same = !self.kept || self.spill.tensor(first).transpose()?.as_ref() == Some(tensor);
        let first = first.clone();
        match same {
            true => Ok(()),
            false => Err(Fault::Untied {
                first,
                second: name,
            }),
        }
    }

    fn encode(&self, index: usize, stored: Block, block: &Block) -> Result<EncodedLayer, Fault> {
        let encoding = self.source.0.encoding.as_ref();
        let ChangedLayer {
            tensors: changed,
            kept,
        } = encoding.changed_layer(index, &stored, block, None)?;
        // What follows needs the memory.
        drop(stored);
        let archive = encoding.archive.with(changed)?;
        let dynamics = self.source.decode(index, &archive)?;
        let systems = [dynamics.systems, dynamics.backward].concat();
        let expected = block.systems().len() + block.backward().len();
        require_equal("channels", systems.len(), expected)?;
        match archive.into_changes() {
            Changes::InMemory(tensors) => Ok(EncodedLayer {
                systems,
                tensors,
                kept,
            }),
            _ => unreachable!("it was made of tensors in memory"),
        }
    }

    /// Layers whose poles and residues are in a wider number format than that of the file, which would
    /// change them too much.
    pub fn kept_layers(&self) -> &[KeptLayer] {
        &self.wide
    }

    /// Real numbers in all tensors, as they would be written. Those that several tensors share count
    /// once.
    pub fn parameters(&self) -> usize {
        let encoding = &self.source.0.encoding;
        let archive = &encoding.archive;
        let root = |name| archive.tied_to(name).unwrap_or(name);
        let changed = self.spill.headers();
        let changed: BTreeMap<&str, usize> = changed
            .map(|header| (root(header.name), size(header.shape)))
            .collect();
        if let Some(scanned) = &encoding.scanned {
            let stored = |name| archive.shape(name).map_or(0, size);
            let known = |name| changed.get(name).copied().unwrap_or_else(|| stored(name));
            return scanned.elements(archive.names().map(|name| (name, known(name))));
        }
        let names = archive.names();
        let others =
            names.filter(|name| !archive.repeats(name) && !changed.contains_key(root(name)));
        let others = others.filter_map(|name| archive.shape(name)).map(size);
        changed.values().sum::<usize>() + others.sum::<usize>()
    }

    /// Writes the checkpoint as [`crate::write()`] does. The finished file is read
    /// once, layer by layer, before it takes its place.
    ///
    /// # Errors
    /// As [`crate::write()`].
    ///
    /// # Panics
    /// If no output was named at the start.
    pub fn write(self, path: &Path) -> Result<(), CheckpointError> {
        let encoding = self.source.0.encoding.as_ref();
        let Encoding {
            archive, structure, ..
        } = encoding;
        let metadata = Metadata::render(structure.settled, structure.own(), &self.record);
        let blocks = self.source.0.model.blocks().iter().enumerate();
        let orders =
            blocks.map(|(index, block)| *self.orders.get(&index).unwrap_or(&block.order()));
        let orders: Vec<usize> = orders.collect();
        if encoding
            .needs_one_size(&orders)
            .map_err(|fault| fault.at(path))?
        {
            return Err(Fault::SeveralOrders { orders }.at(path));
        }
        let mut changed = archive.with(self.spill)?;
        if let Some(stacked) = encoding.stacked(&changed).map_err(|fault| fault.at(path))? {
            changed = stacked;
        }
        let container = Container::of_path(path).unwrap_or(changed.container());
        let accept = |written: &Path| {
            let archive = encoding.reopened(written);
            let archive = archive.map_err(|error| not_readable(error.into(), path))?;
            for index in 0..structure.layers.len() {
                let systems = self.source.decode(index, &archive);
                systems.map_err(|fault| not_readable(fault.at(written), path))?;
            }
            Ok::<(), CheckpointError>(())
        };
        match Container::of_path(path) {
            None if changed.folder().is_some() => {
                let texts = encoding.folder_texts(&orders, &self.record);
                let texts = texts.map_err(|fault| fault.at(path))?;
                changed.write_folder(path, &metadata, &texts, accept)
            }
            _ => changed.write_checked(path, container, &metadata, accept),
        }
    }
}

/// A layer on its way into a file.
struct EncodedLayer {
    /// As rounded.
    systems: Vec<DiagonalSystem>,
    tensors: BTreeMap<String, RawTensor>,
    kept: Option<KeptLayer>,
}

fn size(shape: &[usize]) -> usize {
    shape.iter().product()
}
