//! The filters of StripedHyena in files of their own, which give each layer its own number of modes:
//! `approx_poles_{i}.pt` and `approx_residues_{i}.pt`, complex tensors (modes, filters), i being the
//! number of the block, from 1. `StripedHyena.load_poles_residues` of togethercomputer/stripedhyena reads
//! them after the checkpoint.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hankelite_archive::{Archive, ArchiveError, RawTensor, tensor_file};
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::{Dynamics, HyenaForm, Kind};
use crate::checkpoint::tensors::Tensors;
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::model::Block;

/// What the names of the two files of a layer start with, and the tensor of a checkpoint that each stands
/// for.
const FILES: [(&str, &str); 2] = [("approx_poles_", "poles"), ("approx_residues_", "residues")];

impl Checkpoint {
    /// The files with the filters of every layer, by their names: not filled up to the largest layer, in
    /// single precision.
    ///
    /// # Errors
    /// [`CheckpointError::Content`] for layers that are no filters of StripedHyena or have no number, and
    /// where a layer cannot be written.
    pub fn filter_files(&self) -> Result<BTreeMap<String, Vec<u8>>, CheckpointError> {
        let path = self.encoding.archive.path();
        let mut files = BTreeMap::new();
        for (index, block) in self.model.blocks().iter().enumerate() {
            let made = self.filters_of(index, block);
            for (name, tensor) in made.map_err(|fault| fault.at(path))? {
                let bytes = tensor_file(Path::new(&name), tensor);
                let bytes = bytes.map_err(|error| Fault::from(error).at(path))?;
                files.insert(name, bytes);
            }
        }
        Ok(files)
    }

    fn filters_of(&self, index: usize, block: &Block) -> Result<Vec<(String, RawTensor)>, Fault> {
        let structure = &self.encoding.structure;
        let found = &structure.found[index];
        let number =
            number_of(&found.place).filter(|_| found.kind == Kind::Hyena(HyenaForm::Complex));
        let Some(number) = number else {
            let layer = block.name().to_string();
            let family = structure.layers[index].family();
            return Err(Fault::NoFilters { layer, family });
        };
        let tensors = Tensors::new(&self.encoding.archive, &structure.prefix);
        let encoded = structure.layers[index].encode(&Dynamics::of(block), &tensors)?;
        let files = FILES.iter().filter_map(|(head, tensor)| {
            let own = format!("{}{tensor}", found.place);
            let one = encoded.iter().find(|encoded| encoded.name == own)?;
            Some((*head, one))
        });
        let files = files.map(|(head, one)| {
            let pairs = one.data.chunks_exact(2);
            let pairs: Vec<_> = pairs.map(|z| Complex64::new(z[0], z[1])).collect();
            let count = one.shape.as_ref().map_or(1, |shape| shape[0].max(1));
            let tensor = transposed(&pairs, count).map_err(|error| error.of(&one.name))?;
            Ok((format!("{head}{number}.pt"), tensor))
        });
        files.collect()
    }
}

/// Rows as columns.
fn transposed(
    values: &[Complex64],
    rows: usize,
) -> Result<RawTensor, hankelite_archive::TensorError> {
    let columns = values.len() / rows;
    let turned = (0..columns).flat_map(|j| (0..rows).map(move |i| values[i * columns + j]));
    RawTensor::from_c64(vec![columns, rows], &turned.collect::<Vec<_>>())
}

/// The number of a block in the names of the files: that in the place of its filter, and one more.
fn number_of(place: &str) -> Option<usize> {
    let rest = place.strip_suffix("filter.")?.trim_end_matches('.');
    let number: usize = rest.rsplit('.').next()?.parse().ok()?;
    number.checked_add(1)
}

/// The files of a folder that holds such files and no checkpoint, as if they were one.
///
/// # Errors
/// One of a pair is missing; a file cannot be read or holds something else.
pub(super) fn open(folder: &Path) -> Result<Option<Archive>, ArchiveError> {
    if !folder.is_dir() || !matches!(Archive::open(folder), Err(ArchiveError::Folder { .. })) {
        return Ok(None);
    }
    let mut tensors = BTreeMap::new();
    for (number, path) in numbered(folder)? {
        for (head, tensor) in FILES {
            let path = path.with_file_name(format!("{head}{number}.pt"));
            let block = number - 1;
            tensors.insert(
                format!("blocks.{block}.filter.{tensor}"),
                filters_in(&path)?,
            );
        }
    }
    let name = folder.display().to_string();
    Ok((!tensors.is_empty()).then(|| Archive::in_memory(&name, tensors)))
}

/// The files of poles in a folder, by their numbers.
fn numbered(folder: &Path) -> Result<BTreeMap<usize, PathBuf>, ArchiveError> {
    let read = |source| ArchiveError::Read {
        path: folder.to_path_buf(),
        source,
    };
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(folder).map_err(read)? {
        let path = entry.map_err(read)?.path();
        let name = path.file_name().and_then(|name| name.to_str());
        let number = name.and_then(|name| {
            let rest = name.strip_prefix(FILES[0].0)?.strip_suffix(".pt")?;
            rest.parse().ok().filter(|number| *number > 0)
        });
        found.extend(number.map(|number| (number, path)));
    }
    Ok(found)
}

/// (filters, modes, 1) of what a file holds as (modes, filters).
fn filters_in(path: &Path) -> Result<RawTensor, ArchiveError> {
    let archive = Archive::open_arrays(path)?;
    let name = archive.names().next().unwrap_or_default();
    let tensor = archive.tensor(name)?;
    let values = tensor.to_c64().map_err(|error| error.of(name))?;
    let modes = tensor.shape().first().copied().unwrap_or(1).max(1);
    let turned = transposed(&values, modes).map_err(|error| error.of(name))?;
    let shape = [turned.shape(), &[1]].concat();
    turned.reshaped(shape).map_err(|error| error.of(name))
}
