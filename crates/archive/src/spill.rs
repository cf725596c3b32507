//! Tensors set aside in a temporary file until the checkpoint they belong to is written.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::archive_error::ArchiveError;
use crate::destination::folder_of;
use crate::tensor::{Dtype, RawTensor};

/// Tensors in a file without a name, which the system removes with the process.
#[derive(Debug)]
pub struct Spill {
    /// The folder it lies in, for messages.
    folder: PathBuf,
    /// `None` where only element types and shapes are kept.
    file: Option<Mutex<File>>,
    end: u64,
    tensors: BTreeMap<String, Place>,
}

#[derive(Debug)]
struct Place {
    dtype: Dtype,
    shape: Vec<usize>,
    start: u64,
    length: usize,
}

impl Spill {
    /// An empty one, beside a file that is to be written.
    pub fn beside(path: &Path) -> Result<Spill, ArchiveError> {
        let folder = folder_of(path).to_owned();
        let file = tempfile::tempfile_in(&folder);
        let file = file.map_err(|source| ArchiveError::Write {
            path: folder.clone(),
            source,
        })?;
        Ok(Spill {
            folder,
            file: Some(Mutex::new(file)),
            end: 0,
            tensors: BTreeMap::new(),
        })
    }

    /// An empty one that keeps no bytes.
    pub fn of_headers() -> Spill {
        Spill {
            folder: PathBuf::new(),
            file: None,
            end: 0,
            tensors: BTreeMap::new(),
        }
    }

    /// Adds a tensor, in the place of an earlier one of that name.
    pub fn add(&mut self, name: String, tensor: RawTensor) -> Result<(), ArchiveError> {
        tensor.check(&name)?;
        let written = self.append(&tensor.bytes);
        written.map_err(|source| ArchiveError::Write {
            path: self.folder.clone(),
            source,
        })?;
        let place = Place {
            dtype: tensor.dtype,
            shape: tensor.shape,
            start: self.end,
            length: tensor.bytes.len(),
        };
        self.end += tensor.bytes.len() as u64;
        self.tensors.insert(name, place);
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(file) = &mut self.file else {
            return Ok(());
        };
        let file = file.get_mut().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(self.end))?;
        file.write_all(bytes)
    }

    /// Every tensor's header.
    pub fn tensors(&self) -> impl Iterator<Item = (&str, Dtype, &[usize])> {
        let tensors = self.tensors.iter();
        tensors.map(|(name, place)| (name.as_str(), place.dtype, place.shape.as_slice()))
    }

    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Reads one tensor back; `None` when there is none of that name.
    pub fn tensor(&self, name: &str) -> Option<Result<RawTensor, ArchiveError>> {
        let place = self.tensors.get(name)?;
        let tensor = self
            .bytes(self.file.as_ref()?, place)
            .map(|bytes| RawTensor {
                dtype: place.dtype,
                shape: place.shape.clone(),
                bytes,
            });
        Some(tensor.map_err(|source| ArchiveError::Read {
            path: self.folder.clone(),
            source,
        }))
    }

    fn bytes(&self, file: &Mutex<File>, place: &Place) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; place.length];
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(place.start))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tensors_come_back_and_the_last_of_a_name_counts() {
        let folder = tempfile::tempdir().unwrap();
        let mut spill = Spill::beside(&folder.path().join("out")).unwrap();
        let tensor = |values: &[f64]| RawTensor::from_f64(Dtype::F32, vec![values.len()], values);
        spill.add("a".into(), tensor(&[1.0, 2.0])).unwrap();
        spill.add("b".into(), tensor(&[])).unwrap();
        spill.add("a".into(), tensor(&[3.0])).unwrap();
        assert_eq!(spill.tensor("a").unwrap().unwrap(), tensor(&[3.0]));
        assert_eq!(spill.tensor("b").unwrap().unwrap(), tensor(&[]));
        assert!(spill.tensor("c").is_none());
        let names: Vec<_> = spill.tensors().map(|(name, ..)| name).collect();
        assert_eq!(names, ["a", "b"]);
        // Nothing of it can be seen in the folder.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
