//! Tensors that take the place of those of a file, in memory or set aside on disk.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::destination::{folder_of, unnamed};
use crate::endings::require_own_ending;
use crate::error::ArchiveError;
use crate::tensor::{Dtype, Header, RawTensor};

/// Tensors that take the place of those of a file, by name. Element types and shapes may differ
/// from those in the file.
#[derive(Debug)]
#[non_exhaustive]
pub enum Changes {
    /// Held in memory.
    InMemory(BTreeMap<String, RawTensor>),
    /// Held in a temporary file.
    OnDisk(ChangesOnDisk),
}

impl Changes {
    /// Every tensor's header, sorted by name.
    pub(crate) fn headers(&self) -> Box<dyn Iterator<Item = Header<'_>> + '_> {
        match self {
            Changes::InMemory(all) => {
                Box::new(all.iter().map(|(name, tensor)| tensor.header(name)))
            }
            Changes::OnDisk(all) => Box::new(all.headers()),
        }
    }

    /// Whether there is a tensor of that name.
    pub(crate) fn contains(&self, name: &str) -> bool {
        match self {
            Changes::InMemory(all) => all.contains_key(name),
            Changes::OnDisk(all) => all.contains(name),
        }
    }

    /// The same under other names.
    pub(crate) fn renamed(self, called: impl Fn(&str) -> String) -> Changes {
        fn keys<V>(
            all: BTreeMap<String, V>,
            called: impl Fn(&str) -> String,
        ) -> BTreeMap<String, V> {
            let all = all.into_iter();
            all.map(|(name, value)| (called(&name), value)).collect()
        }
        match self {
            Changes::InMemory(all) => Changes::InMemory(keys(all, called)),
            Changes::OnDisk(mut all) => {
                all.tensors = keys(all.tensors, called);
                Changes::OnDisk(all)
            }
        }
    }

    /// One tensor; `None` when there is none of that name.
    pub(crate) fn tensor(&self, name: &str) -> Option<Result<Cow<'_, RawTensor>, ArchiveError>> {
        match self {
            Changes::InMemory(all) => all.get(name).map(|tensor| Ok(Cow::Borrowed(tensor))),
            Changes::OnDisk(all) => Some(all.tensor(name)?.map(Cow::Owned)),
        }
    }
}

/// No change.
impl Default for Changes {
    fn default() -> Self {
        Changes::InMemory(BTreeMap::new())
    }
}

impl From<BTreeMap<String, RawTensor>> for Changes {
    fn from(tensors: BTreeMap<String, RawTensor>) -> Self {
        Changes::InMemory(tensors)
    }
}

impl From<ChangesOnDisk> for Changes {
    fn from(tensors: ChangesOnDisk) -> Self {
        Changes::OnDisk(tensors)
    }
}

/// Changed tensors in a file without a name, which the system removes with the process. So a file
/// larger than memory can be changed tensor by tensor.
///
/// Cost: as many bytes on disk as the tensors have, those replaced by a later one of their name
/// included; in memory their names and shapes.
#[derive(Debug)]
pub struct ChangesOnDisk {
    /// The file that is to be written, for messages.
    output: PathBuf,
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

impl ChangesOnDisk {
    /// No change yet. The temporary file lies in the folder of `output`, a file that is to be
    /// written.
    ///
    /// # Errors
    /// [`ArchiveError::ForeignEnding`], as [`crate::Archive::write`] would give it in the end;
    /// [`ArchiveError::Write`] when no file can be made there.
    pub fn beside(output: impl AsRef<Path>) -> Result<ChangesOnDisk, ArchiveError> {
        let output = output.as_ref().to_owned();
        require_own_ending(&output)?;
        let file = tempfile::tempfile_in(folder_of(&output));
        let file = file.map_err(|error| ArchiveError::write(&output)(unnamed(error)))?;
        Ok(ChangesOnDisk {
            output,
            file: Some(Mutex::new(file)),
            ..ChangesOnDisk::headers_only()
        })
    }

    /// No change yet, and no file: only names, element types and shapes are kept, to learn what
    /// the changes would take. To read such a tensor is an error.
    #[must_use]
    pub fn headers_only() -> ChangesOnDisk {
        ChangesOnDisk {
            output: PathBuf::new(),
            file: None,
            end: 0,
            tensors: BTreeMap::new(),
        }
    }

    /// Adds a tensor, in the place of an earlier one of that name.
    ///
    /// # Errors
    /// [`ArchiveError::Write`].
    pub fn add(&mut self, name: String, tensor: &RawTensor) -> Result<(), ArchiveError> {
        let written = self.append(tensor.bytes());
        written.map_err(ArchiveError::write(&self.output))?;
        let length = tensor.bytes().len();
        let place = Place {
            dtype: tensor.dtype(),
            shape: tensor.shape().to_vec(),
            start: self.end,
            length,
        };
        self.end += length as u64;
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

    /// Every tensor's header, sorted by name.
    pub fn headers(&self) -> impl Iterator<Item = Header<'_>> {
        let tensors = self.tensors.iter();
        tensors.map(|(name, place)| Header {
            name,
            dtype: place.dtype,
            shape: &place.shape,
        })
    }

    /// Whether there is a tensor of that name.
    #[must_use]
    pub fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// Reads one tensor back; `None` when there is none of that name.
    ///
    /// # Errors
    /// [`ArchiveError::Read`]; also where only element types and shapes are kept.
    pub fn tensor(&self, name: &str) -> Option<Result<RawTensor, ArchiveError>> {
        let place = self.tensors.get(name)?;
        let bytes = self.bytes(place).map_err(ArchiveError::read(&self.output));
        Some(bytes.and_then(|bytes| {
            let tensor = RawTensor::new(place.dtype, place.shape.clone(), bytes);
            tensor.map_err(|error| error.of(name))
        }))
    }

    fn bytes(&self, place: &Place) -> io::Result<Vec<u8>> {
        let file = self.file.as_ref();
        let file = file.ok_or_else(|| io::Error::other("only the shapes of tensors were kept"))?;
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
        let mut changes = ChangesOnDisk::beside(folder.path().join("out")).unwrap();
        let tensor =
            |values: &[f64]| RawTensor::from_f64(Dtype::F32, vec![values.len()], values).unwrap();
        changes.add("a".into(), &tensor(&[1.0, 2.0])).unwrap();
        changes.add("b".into(), &tensor(&[])).unwrap();
        changes.add("a".into(), &tensor(&[3.0])).unwrap();
        assert_eq!(changes.tensor("a").unwrap().unwrap(), tensor(&[3.0]));
        assert_eq!(changes.tensor("b").unwrap().unwrap(), tensor(&[]));
        assert!(changes.tensor("c").is_none());
        let names: Vec<_> = changes.headers().map(|header| header.name).collect();
        assert_eq!(names, ["a", "b"]);
        // Nothing of it can be seen in the folder.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn shapes_without_a_file_cannot_be_read() {
        let mut changes = ChangesOnDisk::headers_only();
        let tensor = RawTensor::from_f64(Dtype::F32, vec![2], &[1.0, 2.0]).unwrap();
        changes.add("a".into(), &tensor).unwrap();
        assert!(changes.contains("a"));
        let error = changes.tensor("a").unwrap().unwrap_err();
        assert!(matches!(error, ArchiveError::Read { .. }), "{error}");
    }
}
