//! A checkpoint whose layers are read, changed and written one at a time, so that memory is
//! bounded by the largest layer and not by the file.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use hankelite_archive::{Archive, Changes, ChangesOnDisk, Container, RawTensor};
use hankelite_control::DiagonalSystem;

use crate::checkpoint::declared::Metadata;
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::Dynamics;
use crate::checkpoint::parts::Parts;
use crate::checkpoint::tensors::Tensors;
use crate::checkpoint::{
    CheckpointError, Declared, Encoding, encode_layer, not_readable, read_parts, require_equal,
};
use crate::model::{Block, Model};

/// A checkpoint that was read once from end to end and of which no layer is in memory.
pub struct Layerwise {
    outline: Model,
    encoding: Arc<Encoding>,
}

/// Opens a checkpoint for work on one layer at a time. Every tensor is read and checked once, as
/// by [`crate::checkpoint::read`], and let go.
///
/// # Errors
/// As [`crate::checkpoint::read`].
pub fn read_layerwise(path: &Path, declared: &Declared) -> Result<Layerwise, CheckpointError> {
    let checkpoint = read_parts(path, declared, Parts::Outline)?;
    Ok(Layerwise {
        outline: checkpoint.model,
        encoding: checkpoint.encoding,
    })
}

impl Layerwise {
    /// The layers without what they hold: of each, one channel of the largest order is whole and
    /// the others have no modes.
    pub fn outline(&self) -> &Model {
        &self.outline
    }

    /// The family of the layers, as `Checkpoint::family`.
    pub fn family(&self) -> &'static str {
        let first = self.encoding.structure.layers.first();
        first.map_or("", |layout| layout.family())
    }

    /// What was declared, or assumed in its place.
    pub fn declared(&self) -> Declared {
        self.encoding.structure.settled
    }

    /// What was assumed because neither the file nor a person said it.
    pub fn assumptions(&self) -> &[String] {
        &self.encoding.structure.assumptions
    }

    /// What the file held besides the model.
    pub fn notes(&self) -> &[String] {
        &self.encoding.notes
    }

    /// Real numbers in all tensors of the file.
    pub fn parameters(&self) -> usize {
        parameters(&self.encoding.archive)
    }

    /// Reads one layer, with its systems and nothing else.
    ///
    /// # Errors
    /// The file can no longer be read, or has changed.
    ///
    /// # Panics
    /// If there is no layer of that index.
    pub fn layer(&self, index: usize) -> Result<Block, CheckpointError> {
        let dynamics = self.decode(index, &self.encoding.archive);
        let dynamics = dynamics.map_err(|fault| fault.at(self.encoding.archive.path()))?;
        let mut block = self.outline.blocks[index].clone();
        block.systems = dynamics.systems;
        block.backward = dynamics.backward;
        Ok(block)
    }

    fn decode(&self, index: usize, archive: &Archive) -> Result<Dynamics, Fault> {
        let structure = &self.encoding.structure;
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
        })
    }
}

/// Changed layers on their way into a file. They wait in a temporary file without a name.
pub struct Rewrite<'a> {
    source: &'a Layerwise,
    spill: ChangesOnDisk,
}

impl Rewrite<'_> {
    /// Encodes a layer. Gives its systems back as rounded to the number format of the file, those
    /// backwards in time after the others.
    ///
    /// # Errors
    /// As [`crate::checkpoint::write()`].
    ///
    /// # Panics
    /// If there is no layer of that index.
    pub fn set(
        &mut self,
        index: usize,
        block: &Block,
    ) -> Result<Vec<DiagonalSystem>, CheckpointError> {
        let archive = &self.source.encoding.archive;
        let encoded = self.encode(index, block);
        let (systems, changed) = encoded.map_err(|fault| fault.at(archive.path()))?;
        for (name, tensor) in changed {
            self.spill.add(name, &tensor)?;
        }
        Ok(systems)
    }

    fn encode(&self, index: usize, block: &Block) -> Result<Encoded, Fault> {
        let Encoding {
            archive, structure, ..
        } = self.source.encoding.as_ref();
        let tensors = Tensors::new(archive, &structure.prefix);
        let mut changed = BTreeMap::new();
        encode_layer(
            (block, structure.layers[index].as_ref()),
            &tensors,
            archive,
            &mut changed,
        )?;
        let archive = archive.with(changed)?;
        let dynamics = self.source.decode(index, &archive)?;
        let systems = [dynamics.systems, dynamics.backward].concat();
        let expected = block.systems.len() + block.backward.len();
        require_equal("channels", systems.len(), expected)?;
        match archive.into_changes() {
            Changes::InMemory(changed) => Ok((systems, changed)),
            _ => unreachable!("it was made of tensors in memory"),
        }
    }

    /// Real numbers in all tensors, as they would be written.
    pub fn parameters(&self) -> usize {
        let archive = &self.source.encoding.archive;
        let changed: usize = self.spill.headers().map(|header| size(header.shape)).sum();
        let names = archive.names().filter(|name| !self.spill.contains(name));
        changed
            + names
                .filter_map(|name| archive.shape(name))
                .map(size)
                .sum::<usize>()
    }

    /// Writes the checkpoint as [`crate::checkpoint::write()`] does. The finished file is read
    /// once, layer by layer, before it takes its place.
    ///
    /// # Errors
    /// As [`crate::checkpoint::write()`].
    ///
    /// # Panics
    /// If no output was named at the start.
    pub fn write(self, path: &Path) -> Result<(), CheckpointError> {
        let Encoding {
            archive, structure, ..
        } = self.source.encoding.as_ref();
        let container = Container::of_path(path).unwrap_or(archive.container());
        let metadata = Metadata::render(structure.settled, structure.own());
        let changed = archive.with(self.spill)?;
        let accept = |written: &Path| {
            let archive =
                Archive::open(written).map_err(|error| not_readable(error.into(), path))?;
            for index in 0..structure.layers.len() {
                let systems = self.source.decode(index, &archive);
                systems.map_err(|fault| not_readable(fault.at(written), path))?;
            }
            Ok::<(), CheckpointError>(())
        };
        changed.write_checked(path, container, &metadata, accept)
    }
}

/// The systems of a layer as rounded, and its changed tensors.
type Encoded = (Vec<DiagonalSystem>, BTreeMap<String, RawTensor>);

fn parameters(archive: &Archive) -> usize {
    let shapes = archive.names().filter_map(|name| archive.shape(name));
    shapes.map(size).sum()
}

fn size(shape: &[usize]) -> usize {
    shape.iter().product()
}
