//! Checkpoints in the safetensors container.
//!
//! The header is read and checked when the file is opened; the bytes of a
//! tensor are read when they are requested. The header is also written here and
//! not by the `safetensors` crate: the crate keeps `__metadata__` in a hash map,
//! so two runs would give two different files, and it wants all tensors at once.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{Read, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use safetensors::tensor::{Metadata, TensorInfo};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::contents::{Contents, METADATA_KEY, Read as TensorRead, TensorFile};
use crate::error::ArchiveError;
use crate::tensor::{Header, RawTensor, byte_length};
use crate::unchanging::UnchangingFile;

/// Bytes before the header: its length.
const LENGTH_BYTES: u64 = 8;
/// The limit that the format's own readers keep.
const HEADER_LIMIT: u64 = 100_000_000;
/// The header's key for free text, which therefore names no tensor.
const TEXT_KEY: &str = "__metadata__";

/// An open safetensors file.
#[derive(Debug)]
pub(super) struct SafetensorsFile {
    path: PathBuf,
    file: Mutex<UnchangingFile>,
    data_start: u64,
    tensors: BTreeMap<String, TensorInfo>,
    texts: BTreeMap<String, String>,
}

/// Whether a file that starts with these bytes can be a safetensors file: the
/// header is a JSON object behind its length.
pub(super) fn is_safetensors(start: &[u8]) -> bool {
    start.get(8) == Some(&b'{')
}

/// Whether, besides, the length is one that a header can have.
pub(super) fn is_plausible(start: &[u8]) -> bool {
    let length = start.first_chunk().copied().map(u64::from_le_bytes);
    is_safetensors(start) && length.is_some_and(|length| length <= HEADER_LIMIT)
}

impl SafetensorsFile {
    /// Reads and checks the header.
    pub(super) fn open(
        path: &Path,
        mut file: UnchangingFile,
    ) -> Result<SafetensorsFile, ArchiveError> {
        let read = ArchiveError::read(path);
        let file_length = file.seek(SeekFrom::End(0)).map_err(&read)?;
        file.rewind().map_err(&read)?;
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(&read)?;
        let length = header_length(path, u64::from_le_bytes(length), file_length)?;
        let mut header = vec![0; length];
        file.read_exact(&mut header).map_err(&read)?;
        let metadata = parse_header(path, &header)?;
        let data_start = LENGTH_BYTES + length as u64;
        let data_length = file_length - data_start;
        if metadata.data_len() as u64 != data_length {
            return Err(ArchiveError::SafetensorsData {
                path: path.to_owned(),
                found: data_length,
                expected: metadata.data_len() as u64,
            });
        }
        let tensors = metadata.tensors().into_iter();
        let texts = metadata.metadata().clone().unwrap_or_default();
        Ok(SafetensorsFile {
            path: path.to_owned(),
            file: Mutex::new(file),
            data_start,
            tensors: tensors.map(|(name, info)| (name, info.clone())).collect(),
            texts: texts.into_iter().collect(),
        })
    }

    /// Where it lies.
    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Whether there is a tensor of that name.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// The texts under `__metadata__`.
    pub(super) fn texts(&self) -> &BTreeMap<String, String> {
        &self.texts
    }

    fn bytes(&self, start: usize, end: usize) -> std::io::Result<Vec<u8>> {
        // `open` compared the offsets with the length of the file.
        let mut bytes = vec![0; end - start];
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(self.data_start + start as u64))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl TensorFile for SafetensorsFile {
    fn headers(&self) -> Box<dyn Iterator<Item = Header<'_>> + '_> {
        Box::new(self.tensors.iter().map(|(name, info)| Header {
            name,
            dtype: info.dtype,
            shape: &info.shape,
        }))
    }

    fn tensor(&self, name: &str) -> Option<TensorRead<'_>> {
        let info = self.tensors.get(name)?;
        let (start, end) = info.data_offsets;
        let bytes = self
            .bytes(start, end)
            .map_err(ArchiveError::read(&self.path));
        Some(bytes.and_then(|bytes| {
            let tensor = RawTensor::new(info.dtype, info.shape.clone(), bytes);
            tensor.map(Cow::Owned).map_err(|error| error.of(name))
        }))
    }

    fn rows(&self, name: &str, rows: Range<usize>) -> Option<TensorRead<'_>> {
        let info = self.tensors.get(name)?;
        let (start, end) = info.data_offsets;
        let mut shape = info.shape.clone();
        let extent = shape.first_mut()?;
        let row = (end - start) / (*extent).max(1);
        *extent = rows.len();
        let bytes = self.bytes(start + rows.start * row, start + rows.end * row);
        let bytes = bytes.map_err(ArchiveError::read(&self.path));
        Some(bytes.and_then(|bytes| {
            let tensor = RawTensor::new(info.dtype, shape, bytes);
            tensor.map(Cow::Owned).map_err(|error| error.of(name))
        }))
    }

    fn metadata(&self) -> Option<&str> {
        self.texts.get(METADATA_KEY).map(String::as_str)
    }
}

fn header_length(path: &Path, found: u64, file_length: u64) -> Result<usize, ArchiveError> {
    let left = file_length.saturating_sub(LENGTH_BYTES);
    let limit = left.min(HEADER_LIMIT);
    match usize::try_from(found) {
        Ok(length) if found <= limit => Ok(length),
        _ => Err(ArchiveError::SafetensorsHeaderLength {
            path: path.to_owned(),
            found,
            limit,
        }),
    }
}

/// The crate checks that the tensors follow each other without gap or overlap
/// and that each takes the bytes of its type and shape.
fn parse_header(path: &Path, header: &[u8]) -> Result<Metadata, ArchiveError> {
    serde_json::from_slice(header).map_err(|source| ArchiveError::SafetensorsHeader {
        path: path.to_owned(),
        source,
    })
}

/// Writes the contents tensor by tensor, with these texts beside our own.
pub(super) fn write<'a>(
    out: &mut impl Write,
    path: &Path,
    contents: &Contents<'a>,
    mut texts: BTreeMap<&'a str, &'a str>,
) -> Result<(), ArchiveError> {
    texts.remove(METADATA_KEY);
    if !contents.metadata.is_empty() {
        texts.insert(METADATA_KEY, contents.metadata);
    }
    let tensors = contents.headers().collect();
    write_part(out, path, contents, Part { tensors, texts })
}

/// What goes into one file.
pub(super) struct Part<'a> {
    pub(super) tensors: Vec<Header<'a>>,
    pub(super) texts: BTreeMap<&'a str, &'a str>,
}

/// Writes some of the tensors, and the texts beside them.
///
/// Tensors are ordered as the `safetensors` crate does: wide element types
/// first, so that each tensor is aligned to its own type, then by name.
pub(super) fn write_part<'a>(
    out: &mut impl Write,
    path: &Path,
    contents: &Contents<'a>,
    mut part: Part<'a>,
) -> Result<(), ArchiveError> {
    let order = &mut part.tensors;
    order.sort_by(|a, b| b.dtype.cmp(&a.dtype).then(a.name.cmp(b.name)));
    let header = header_bytes(path, &part)?;
    let failed = ArchiveError::write(path);
    let length = header.len() as u64;
    out.write_all(&length.to_le_bytes()).map_err(&failed)?;
    out.write_all(&header).map_err(&failed)?;
    for header in &part.tensors {
        let tensor = contents.tensor(header.name)?;
        out.write_all(tensor.bytes()).map_err(&failed)?;
    }
    Ok(())
}

fn header_bytes(path: &Path, part: &Part<'_>) -> Result<Vec<u8>, ArchiveError> {
    let header = FileHeader {
        texts: &part.texts,
        tensors: offsets(path, &part.tensors)?,
    };
    let bytes = serde_json::to_vec(&header);
    let mut bytes = bytes.map_err(|error| ArchiveError::write(path)(error.into()))?;
    // The format wants the data to start at a multiple of eight.
    bytes.resize(bytes.len().next_multiple_of(8), b' ');
    if bytes.len() as u64 > HEADER_LIMIT {
        return Err(ArchiveError::SafetensorsHeaderLength {
            path: path.to_owned(),
            found: bytes.len() as u64,
            limit: HEADER_LIMIT,
        });
    }
    Ok(bytes)
}

fn offsets<'a>(
    path: &Path,
    order: &[Header<'a>],
) -> Result<Vec<(&'a str, TensorInfo)>, ArchiveError> {
    let mut start = 0;
    let mut infos = Vec::with_capacity(order.len());
    for &Header { name, dtype, shape } in order {
        if name == TEXT_KEY {
            return Err(ArchiveError::ReservedName {
                path: path.to_owned(),
                tensor: name.to_owned(),
            });
        }
        let length = byte_length(dtype, shape).expect("lengths were checked on reading");
        let info = TensorInfo {
            dtype,
            shape: shape.to_vec(),
            data_offsets: (start, start + length),
        };
        infos.push((name, info));
        start += length;
    }
    Ok(infos)
}

/// The header, written in the order given.
struct FileHeader<'a> {
    texts: &'a BTreeMap<&'a str, &'a str>,
    tensors: Vec<(&'a str, TensorInfo)>,
}

impl Serialize for FileHeader<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.texts.is_empty() {
            map.serialize_entry(TEXT_KEY, self.texts)?;
        }
        for (name, info) in &self.tensors {
            map.serialize_entry(name, info)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests;
