//! A checkpoint in another number format.

use std::collections::BTreeMap;

use hankelite_archive::{Archive, Changes, Dtype, RawTensor};

use crate::checkpoint::CheckpointError;
use crate::checkpoint::encode::EncodedCheckpoint;
use crate::checkpoint::encoded_layer::{CHANGE_MAX, KeptLayer, change};
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::Dynamics;
use crate::checkpoint::raw::{floating, require_finite};
use crate::checkpoint::tensors::Tensors;
use crate::model::Block;

impl EncodedCheckpoint<'_> {
    /// The same in another number format: every real tensor of the network in `dtype`, but the poles
    /// and residues of a layer where rounding them would change a system by more than one per cent
    /// in the H2 norm. What changed is encoded anew, and so has the digits of that format. Integers and
    /// complex tensors stay as they are. All tensors are held in memory.
    ///
    /// # Errors
    /// [`CheckpointError::Content`] for a number around the systems that `dtype` does not reach;
    /// [`ArchiveError`](hankelite_archive::ArchiveError) when the file cannot be read.
    pub fn in_dtype(mut self, dtype: Dtype) -> Result<Self, CheckpointError> {
        let path = self.archive.path().to_path_buf();
        self.change_dtype(dtype).map_err(|fault| fault.at(&path))?;
        Ok(self)
    }

    /// Layers whose poles and residues are in a wider number format than was wanted.
    pub fn kept_layers(&self) -> &[KeptLayer] {
        &self.kept
    }

    fn change_dtype(&mut self, dtype: Dtype) -> Result<(), Fault> {
        let mut tensors = self.rounded(dtype)?;
        self.kept.clear();
        let blocks = self.model.blocks();
        for (index, block) in blocks.iter().enumerate() {
            let stored = &self.encoding.stored[index];
            let made = self
                .encoding
                .changed_layer(index, stored, block, Some(dtype))?;
            if made.kept.is_some() {
                // Neither do the steps and poles that did not change take the format.
                self.put_back(index, block, &mut tensors)?;
            }
            tensors.extend(made.tensors);
            self.kept.extend(made.kept);
        }
        let whole = self.encoding.archive.with(tensors.clone())?;
        for (index, block) in blocks.iter().enumerate() {
            let known = self.kept.iter().any(|kept| kept.layer == block.name());
            let rounded = self.dynamics(index, &whole);
            let change = rounded.map_or(f64::INFINITY, |rounded| {
                change(&Dynamics::of(block), &rounded)
            });
            if !known && change > CHANGE_MAX {
                let format = self.put_back(index, block, &mut tensors)?;
                self.kept.push(KeptLayer {
                    layer: block.name().to_string(),
                    change,
                    dtype: format!("{format:?}"),
                });
            }
        }
        self.archive = self.encoding.archive.with(Changes::from(tensors))?;
        self.stacked = self.encoding.stacked(&self.archive)?;
        Ok(())
    }

    /// Puts the tensors of a layer's systems back as they are in the file's own format, which it gives.
    fn put_back(
        &self,
        index: usize,
        block: &Block,
        tensors: &mut BTreeMap<String, RawTensor>,
    ) -> Result<Dtype, Fault> {
        let mut format = Dtype::F32;
        for name in self.system_tensors(index, &Dynamics::of(block))? {
            if let Ok(tensor) = self.archive.tensor(&name) {
                format = tensor.dtype();
                tensors.insert(name, tensor);
            }
        }
        Ok(format)
    }

    /// All tensors that differ from those of the file: changed ones, and those in another format.
    fn rounded(&self, dtype: Dtype) -> Result<BTreeMap<String, RawTensor>, Fault> {
        let mut tensors = BTreeMap::new();
        for name in self.archive.names() {
            let tensor = self.archive.tensor(name)?;
            let real = matches!(
                tensor.dtype(),
                Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64
            );
            let inside = name.starts_with(&self.encoding.structure.prefix);
            if real && inside && tensor.dtype() != dtype {
                let values = tensor.to_f64().map_err(|error| error.of(name))?;
                let made = floating(name, dtype, tensor.shape().to_vec(), &values)?;
                require_finite(name, &made, &values)?;
                tensors.insert(name.to_string(), made);
            } else if tensor != self.encoding.archive.tensor(name)? {
                tensors.insert(name.to_string(), tensor);
            }
        }
        Ok(tensors)
    }

    fn dynamics(&self, index: usize, archive: &Archive) -> Result<Dynamics, Fault> {
        let structure = &self.encoding.structure;
        structure.layers[index].decode(&Tensors::new(archive, &structure.prefix))
    }

    /// The tensors that hold the systems of a layer.
    fn system_tensors(&self, index: usize, systems: &Dynamics) -> Result<Vec<String>, Fault> {
        let structure = &self.encoding.structure;
        let tensors = Tensors::new(&self.archive, &structure.prefix);
        let encoded = structure.layers[index].encode(systems, &tensors)?;
        let names = encoded.iter().map(|encoded| tensors.full(&encoded.name));
        Ok(names.collect())
    }
}
