//! Checkpoints in the safetensors container.
//!
//! The header is read and checked when the file is opened; the bytes of a
//! tensor are read when they are requested. The header is also written here and
//! not by the `safetensors` crate: the crate keeps `__metadata__` in a hash map,
//! so two runs would give two different files, and it wants all tensors at once.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use safetensors::tensor::{Metadata, TensorInfo};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use crate::archive::{Contents, METADATA_KEY};
use crate::archive_error::ArchiveError;
use crate::tensor::{Dtype, RawTensor, byte_length};

/// Bytes before the header: its length.
const LENGTH_BYTES: u64 = 8;
/// The limit that the format's own readers keep.
const HEADER_LIMIT: u64 = 100_000_000;
/// The header's key for free text, which therefore names no tensor.
const TEXT_KEY: &str = "__metadata__";

/// Name, element type and shape of a tensor.
pub(super) type Header<'a> = (&'a str, Dtype, &'a [usize]);

/// An open safetensors file.
#[derive(Debug)]
pub(super) struct SafetensorsFile {
    path: PathBuf,
    file: Mutex<File>,
    data_start: u64,
    tensors: BTreeMap<String, TensorInfo>,
    texts: BTreeMap<String, String>,
}

/// Whether a file that starts with these bytes can be a safetensors file: the
/// header is a JSON object behind its length.
pub(super) fn is_safetensors(start: &[u8]) -> bool {
    start.get(8) == Some(&b'{')
}

impl SafetensorsFile {
    /// Reads and checks the header.
    pub(super) fn open(path: &Path, mut file: File) -> Result<SafetensorsFile, ArchiveError> {
        let read = |source| ArchiveError::Read {
            path: path.to_owned(),
            source,
        };
        let file_length = file.seek(SeekFrom::End(0)).map_err(read)?;
        file.rewind().map_err(read)?;
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(read)?;
        let length = header_length(path, u64::from_le_bytes(length), file_length)?;
        let mut header = vec![0; length];
        file.read_exact(&mut header).map_err(read)?;
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

    /// Every tensor's header.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (&str, Dtype, &[usize])> {
        let tensors = self.tensors.iter();
        tensors.map(|(name, info)| (name.as_str(), info.dtype, info.shape.as_slice()))
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

    /// Reads one tensor; `None` when there is none of that name.
    pub(super) fn tensor(&self, name: &str) -> Option<Result<RawTensor, ArchiveError>> {
        let info = self.tensors.get(name)?;
        let tensor = self.bytes(info).map(|bytes| RawTensor {
            dtype: info.dtype,
            shape: info.shape.clone(),
            bytes,
        });
        Some(tensor.map_err(|source| ArchiveError::Read {
            path: self.path.clone(),
            source,
        }))
    }

    fn bytes(&self, info: &TensorInfo) -> std::io::Result<Vec<u8>> {
        // `open` compared the offsets with the length of the file.
        let (start, end) = info.data_offsets;
        let mut bytes = vec![0; end - start];
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(self.data_start + start as u64))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes)
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
/// and that each takes the bytes its type and shape ask for.
fn parse_header(path: &Path, header: &[u8]) -> Result<Metadata, ArchiveError> {
    serde_json::from_slice(header).map_err(|source| ArchiveError::SafetensorsHeader {
        path: path.to_owned(),
        source,
    })
}

/// Writes the contents tensor by tensor.
pub(super) fn write(
    out: &mut impl Write,
    path: &Path,
    contents: &Contents<'_>,
) -> Result<(), ArchiveError> {
    let mut texts = contents.texts();
    texts.remove(METADATA_KEY);
    if !contents.metadata().is_empty() {
        texts.insert(METADATA_KEY, contents.metadata());
    }
    let tensors = contents.tensors().collect();
    write_part(out, path, contents, (tensors, texts))
}

/// Writes some of the tensors, and the texts beside them.
///
/// Tensors are ordered as the `safetensors` crate does: wide element types
/// first, so that each tensor is aligned to its own type, then by name.
pub(super) fn write_part<'a>(
    out: &mut impl Write,
    path: &Path,
    contents: &Contents<'a>,
    (mut order, texts): (Vec<Header<'a>>, BTreeMap<&'a str, &'a str>),
) -> Result<(), ArchiveError> {
    order.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
    let header = header_bytes(path, &order, texts)?;
    let failed = |source| ArchiveError::Write {
        path: path.to_owned(),
        source,
    };
    let length = header.len() as u64;
    out.write_all(&length.to_le_bytes()).map_err(failed)?;
    out.write_all(&header).map_err(failed)?;
    for (name, ..) in order {
        let tensor = contents.tensor(name)?;
        out.write_all(&tensor.bytes).map_err(failed)?;
    }
    Ok(())
}

fn header_bytes(
    path: &Path,
    order: &[(&str, Dtype, &[usize])],
    texts: BTreeMap<&str, &str>,
) -> Result<Vec<u8>, ArchiveError> {
    let header = FileHeader {
        texts,
        tensors: offsets(path, order)?,
    };
    let mut bytes = serde_json::to_vec(&header).map_err(|source| ArchiveError::Write {
        path: path.to_owned(),
        source: source.into(),
    })?;
    // The format asks that the data start at a multiple of eight.
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
    order: &[(&'a str, Dtype, &[usize])],
) -> Result<Vec<(&'a str, TensorInfo)>, ArchiveError> {
    let mut start = 0;
    let mut infos = Vec::with_capacity(order.len());
    for &(name, dtype, shape) in order {
        if name == TEXT_KEY {
            return Err(ArchiveError::ReservedName {
                path: path.to_owned(),
                tensor: name.to_owned(),
            });
        }
        let length = byte_length(dtype, shape).expect("lengths were checked on reading");
        infos.push((
            name,
            TensorInfo {
                dtype,
                shape: shape.to_vec(),
                data_offsets: (start, start + length),
            },
        ));
        start += length;
    }
    Ok(infos)
}

/// The header, written in the order given.
struct FileHeader<'a> {
    texts: BTreeMap<&'a str, &'a str>,
    tensors: Vec<(&'a str, TensorInfo)>,
}

impl Serialize for FileHeader<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        if !self.texts.is_empty() {
            map.serialize_entry(TEXT_KEY, &self.texts)?;
        }
        for (name, info) in &self.tensors {
            map.serialize_entry(name, info)?;
        }
        map.end()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use tempfile::TempDir;

    use super::*;
    use crate::archive::{Archive, Container};

    /// A file of the given header and data.
    fn bytes_of(header: &str, data: &[u8]) -> Vec<u8> {
        let length = header.len() as u64;
        [&length.to_le_bytes(), header.as_bytes(), data].concat()
    }

    fn open(folder: &TempDir, bytes: &[u8]) -> Result<Archive, ArchiveError> {
        let path = folder.path().join("model.safetensors");
        std::fs::write(&path, bytes).unwrap();
        Archive::open(&path)
    }

    fn small() -> Vec<u8> {
        let header = r#"{"__metadata__":{"hankelite":"{}","b":"c"},"y":{"dtype":"I64","shape":[],"data_offsets":[0,8]},"x":{"dtype":"F32","shape":[2,1],"data_offsets":[8,16]}}"#;
        bytes_of(header, &[7; 16])
    }

    #[test]
    fn tensors_and_texts_are_read() {
        let folder = TempDir::new().unwrap();
        let archive = open(&folder, &small()).unwrap();
        assert_eq!(archive.container(), Container::Safetensors);
        assert_eq!(archive.names().collect::<Vec<_>>(), ["x", "y"]);
        assert_eq!(archive.shape("x"), Some([2, 1].as_slice()));
        assert_eq!(archive.dtype("y"), Some(Dtype::I64));
        assert_eq!(archive.tensor("y").unwrap().bytes, [7; 8]);
        assert_eq!(archive.metadata(), Some("{}"));
        assert_eq!((archive.wrapper(), archive.notes().len()), (None, 0));
    }

    #[test]
    fn contradictions_in_the_header_are_refused() {
        let entry = |shape: &str, offsets: &str| {
            format!(r#"{{"x":{{"dtype":"F32","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let overlap = r#"{"x":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"y":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}"#;
        let cases = [
            entry("[2]", "[0,4]"),
            entry("[1]", "[4,8]"),
            entry("[1]", "[4,0]"),
            entry("[18446744073709551615,2]", "[0,8]"),
            entry("[-1]", "[0,8]"),
            overlap.to_owned(),
            "{".to_owned(),
            "{\"x\":1}".to_owned(),
        ];
        let folder = TempDir::new().unwrap();
        for header in cases {
            let error = open(&folder, &bytes_of(&header, &[0; 8])).unwrap_err();
            let expected = matches!(error, ArchiveError::SafetensorsHeader { .. });
            assert!(expected, "{header}: {error}");
        }
    }

    #[test]
    fn data_of_another_length_than_announced_are_refused() {
        let folder = TempDir::new().unwrap();
        let mut bytes = small();
        bytes.push(0);
        let error = open(&folder, &bytes).unwrap_err();
        let expected = matches!(
            error,
            ArchiveError::SafetensorsData {
                found: 17,
                expected: 16,
                ..
            }
        );
        assert!(expected, "{error}");
    }

    #[test]
    fn a_header_longer_than_the_file_is_refused_before_it_is_read() {
        let folder = TempDir::new().unwrap();
        let mut bytes = small();
        bytes[..8].copy_from_slice(&u64::MAX.to_le_bytes());
        let error = open(&folder, &bytes).unwrap_err();
        assert!(matches!(
            error,
            ArchiveError::SafetensorsHeaderLength { .. }
        ));
    }

    #[test]
    fn a_file_cut_short_anywhere_is_refused() {
        let folder = TempDir::new().unwrap();
        let bytes = small();
        for length in 0..bytes.len() {
            let error = open(&folder, &bytes[..length]).unwrap_err();
            let expected = matches!(
                error,
                ArchiveError::Empty { .. }
                    | ArchiveError::UnknownFormat { .. }
                    | ArchiveError::SafetensorsHeaderLength { .. }
                    | ArchiveError::SafetensorsData { .. }
            );
            assert!(expected, "{length}: {error}");
        }
    }

    #[test]
    fn no_damaged_byte_can_upset_the_reader() {
        let folder = TempDir::new().unwrap();
        let bytes = small();
        for at in 0..bytes.len() {
            for change in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= change;
                if let Ok(archive) = open(&folder, &damaged) {
                    for name in archive.names() {
                        archive.tensor(name).unwrap();
                    }
                }
            }
        }
    }

    #[test]
    fn the_crate_writes_the_same_bytes() {
        let folder = TempDir::new().unwrap();
        let archive = open(&folder, &small()).unwrap();
        let path = folder.path().join("out.safetensors");
        let plain = folder.path().join("plain.safetensors");
        let none = BTreeMap::new();
        // One text only: the crate's order of several is not reproducible.
        archive.write(&plain, Container::Torch, &none, "").unwrap();
        let archive = Archive::open(&plain).unwrap();
        archive
            .write(&path, Container::Safetensors, &none, "{}")
            .unwrap();
        let names = ["x", "y"];
        let tensors = names.map(|name| archive.tensor(name).unwrap());
        let views = tensors.iter().map(|tensor| {
            let shape = tensor.shape.clone();
            safetensors::tensor::TensorView::new(tensor.dtype, shape, &tensor.bytes).unwrap()
        });
        let views: Vec<_> = views.collect();
        let texts = HashMap::from([("hankelite".to_owned(), "{}".to_owned())]);
        let expected = safetensors::serialize(names.iter().zip(&views), Some(texts)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), expected);
    }

    #[test]
    fn other_texts_are_kept_and_sorted() {
        let folder = TempDir::new().unwrap();
        let archive = open(&folder, &small()).unwrap();
        let path = folder.path().join("out.safetensors");
        let none = BTreeMap::new();
        let container = Container::Safetensors;
        archive.write(&path, container, &none, "new").unwrap();
        let bytes = std::fs::read(&path).unwrap();
        let start = br#"{"__metadata__":{"b":"c","hankelite":"new"},"y":"#;
        assert_eq!(&bytes[8..8 + start.len()], start);
        archive.write(&path, container, &none, "").unwrap();
        assert_eq!(Archive::open(&path).unwrap().metadata(), None);
    }
}
