//! Checkpoints of `numpy.savez`: a zip file with one `.npy` record for each array.
//!
//! A `.npy` record is a header, which is a Python dictionary, and the elements (NumPy Enhancement
//! Proposal 1, and `numpy/lib/format.py`). Only the header is read when the file is opened.
//! Our own text is the comment of the zip file, which NumPy does not look at.

mod error;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{Seek, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub use error::NpyError;

use crate::contents::{Contents, Read, TensorFile};
use crate::error::ArchiveError;
use crate::strides::gather;
use crate::tensor::{Dtype, Header as TensorHeader, RawTensor, byte_length};
use crate::zip_records::{
    Record, RecordWriter, Zip, check_stored, list_records, read_range, read_record, record_error,
};

const MAGIC: [u8; 6] = *b"\x93NUMPY";
/// What follows the name of an array in that of its record.
const ENDING: &str = ".npy";
/// NumPy itself reads no longer header by default.
const HEADER_LIMIT: usize = 10_000;
/// NumPy leaves room in the header for the first axis to grow to so many digits.
const AXIS_DIGITS: usize = 21;

/// NumPy's codes of little-endian types.
const CODES: [(&str, Dtype); 13] = [
    ("<f8", Dtype::F64),
    ("<f4", Dtype::F32),
    ("<f2", Dtype::F16),
    ("<c8", Dtype::C64),
    ("<i8", Dtype::I64),
    ("<i4", Dtype::I32),
    ("<i2", Dtype::I16),
    ("|i1", Dtype::I8),
    ("<u8", Dtype::U64),
    ("<u4", Dtype::U32),
    ("<u2", Dtype::U16),
    ("|u1", Dtype::U8),
    ("|b1", Dtype::BOOL),
];

/// An open `.npz` file.
#[derive(Debug)]
pub(crate) struct NpzFile {
    path: PathBuf,
    zip: Mutex<Zip>,
    arrays: BTreeMap<String, Array>,
    metadata: Option<String>,
    notes: Vec<String>,
}

#[derive(Debug)]
struct Array {
    header: Header,
    record: Record,
    /// First byte of the elements.
    start: usize,
}

#[derive(Debug)]
struct Header {
    dtype: Dtype,
    shape: Vec<usize>,
    /// Whether the first axis is the fastest.
    fortran: bool,
}

/// Whether a zip file is one of NumPy and none of PyTorch.
pub(crate) fn is_npz(zip: &Zip) -> bool {
    let mut names = zip.file_names().filter_map(Result::ok);
    let mut all = zip.file_names().filter_map(Result::ok);
    let pickles = all.any(|name| is_pickle(&name));
    names.any(|name| name.ends_with(ENDING)) && !pickles
}

fn is_pickle(name: &str) -> bool {
    name == "data.pkl" || name.ends_with("/data.pkl")
}

impl NpzFile {
    /// Reads the header of every array.
    pub(crate) fn open(path: &Path, mut zip: Zip) -> Result<NpzFile, ArchiveError> {
        let mut arrays = BTreeMap::new();
        let mut notes = Vec::new();
        for (name, record) in list_records(path, &mut zip)? {
            let Some(name) = name.strip_suffix(ENDING) else {
                notes.push(format!(
                    "record `{name}` is no array and is left out of what is written"
                ));
                continue;
            };
            check_stored(path, &mut zip, &record)?;
            let read = |start: usize, bytes: &mut [u8]| {
                read_range(&mut zip, record.index, start as u64, bytes)
            };
            let found = read_header(record.length, read).map_err(|error| match error {
                Wrong::Io(source) => record_error(path, &record, source),
                Wrong::Npy(source) => npy_error(path, name, source),
            });
            let (header, start) = found?;
            let array = Array {
                header,
                record: record.clone(),
                start,
            };
            arrays.insert(name.to_owned(), array);
        }
        let comment = String::from_utf8(zip.comment().to_vec()).ok();
        Ok(NpzFile {
            path: path.to_owned(),
            metadata: comment.filter(|comment| comment.starts_with('{')),
            zip: Mutex::new(zip),
            arrays,
            notes,
        })
    }
}

impl TensorFile for NpzFile {
    fn headers(&self) -> Box<dyn Iterator<Item = TensorHeader<'_>> + '_> {
        Box::new(self.arrays.iter().map(|(name, array)| TensorHeader {
            name,
            dtype: array.header.dtype,
            shape: &array.header.shape,
        }))
    }

    fn tensor(&self, name: &str) -> Option<Read<'_>> {
        let Array {
            header,
            record,
            start,
        } = self.arrays.get(name)?;
        let mut zip = self.zip.lock().unwrap_or_else(PoisonError::into_inner);
        let bytes = read_record(&self.path, &mut zip, record);
        Some(bytes.and_then(|mut bytes| {
            bytes.drain(..start);
            let bytes = header.row_major(bytes);
            let tensor = RawTensor::new(header.dtype, header.shape.clone(), bytes);
            tensor.map(Cow::Owned).map_err(|error| error.of(name))
        }))
    }

    fn rows(&self, name: &str, rows: Range<usize>) -> Option<Read<'_>> {
        let Array {
            header,
            record,
            start,
        } = self.arrays.get(name)?;
        if header.fortran && header.shape.len() > 1 {
            let tensor = self.tensor(name)?;
            return Some(tensor.and_then(|tensor| {
                let part = tensor.rows(rows).map_err(|error| error.of(name));
                part.map(Cow::Owned)
            }));
        }
        let mut shape = header.shape.clone();
        let extent = shape.first_mut()?;
        let row = (record.length as usize - start) / (*extent).max(1);
        *extent = rows.len();
        let mut bytes = vec![0; row * rows.len()];
        let from = (start + rows.start * row) as u64;
        let mut zip = self.zip.lock().unwrap_or_else(PoisonError::into_inner);
        let read = read_range(&mut zip, record.index, from, &mut bytes);
        let read = read.map_err(|source| record_error(&self.path, record, source));
        Some(read.and_then(|()| {
            let tensor = RawTensor::new(header.dtype, shape, bytes);
            tensor.map(Cow::Owned).map_err(|error| error.of(name))
        }))
    }

    fn metadata(&self) -> Option<&str> {
        self.metadata.as_deref()
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}

impl Header {
    fn row_major(&self, bytes: Vec<u8>) -> Vec<u8> {
        if !self.fortran || self.shape.len() < 2 || bytes.is_empty() {
            return bytes;
        }
        let mut stride = 1;
        let strides = self.shape.iter().map(|extent| {
            let own = stride;
            stride *= extent;
            own
        });
        let strides: Vec<usize> = strides.collect();
        gather(&bytes, self.dtype.bitsize() / 8, &self.shape, &strides)
    }

    /// From the text of a Python dictionary with three keys.
    fn parse(text: &str) -> Result<Header, NpyError> {
        let lacking = |expected| NpyError::Header { expected };
        let after = |key: &str| {
            let (_, rest) = text.split_once(&format!("'{key}':"))?;
            Some(rest.trim_start())
        };
        let fortran = match after("fortran_order") {
            Some(rest) if rest.starts_with("False") => false,
            Some(rest) if rest.starts_with("True") => true,
            _ => return Err(lacking("`fortran_order`")),
        };
        let inside = after("shape").and_then(|rest| rest.strip_prefix('('));
        let inside = inside.and_then(|rest| rest.split_once(')'));
        let (inside, _) = inside.ok_or(lacking("a tuple `shape`"))?;
        let extents = inside.split(',').map(str::trim);
        let extents = extents.filter(|extent| !extent.is_empty());
        let shape: Result<Vec<usize>, _> = extents.map(str::parse).collect();
        let shape = shape.map_err(|_| lacking("a `shape` of whole numbers"))?;
        let code = after("descr").ok_or(lacking("`descr`"))?;
        Ok(Header {
            dtype: dtype_of(code)?,
            shape,
            fortran,
        })
    }
}

/// The element type of what follows `descr`, such as `'<f4', …`.
fn dtype_of(rest: &str) -> Result<Dtype, NpyError> {
    let quoted = rest
        .strip_prefix('\'')
        .and_then(|rest| rest.split_once('\''));
    let Some((code, _)) = quoted else {
        // A list of fields.
        let found = rest.chars().take(40).collect();
        return Err(NpyError::ElementType { found });
    };
    let found = || code.to_owned();
    if let Some((_, dtype)) = CODES.iter().find(|(known, _)| *known == code) {
        return Ok(*dtype);
    }
    let little = format!("<{}", code.trim_start_matches('>'));
    match CODES.iter().any(|(known, _)| *known == little) {
        true => Err(NpyError::ByteOrder { found: found() }),
        false => Err(NpyError::ElementType { found: found() }),
    }
}

enum Wrong {
    Io(std::io::Error),
    Npy(NpyError),
}

impl From<NpyError> for Wrong {
    fn from(error: NpyError) -> Wrong {
        Wrong::Npy(error)
    }
}

fn npy_error(path: &Path, array: &str, source: NpyError) -> ArchiveError {
    ArchiveError::Npy {
        path: path.to_owned(),
        array: array.to_owned(),
        source: Box::new(source),
    }
}

/// The header of an array in so many bytes, and where its elements begin; `read` fetches bytes from
/// a place on.
fn read_header(
    length: u64,
    mut read: impl FnMut(usize, &mut [u8]) -> std::io::Result<()>,
) -> Result<(Header, usize), Wrong> {
    let mut read = |start: usize, bytes: &mut [u8]| read(start, bytes).map_err(Wrong::Io);
    let room = usize::try_from(length).unwrap_or(usize::MAX);
    let mut start = [0; 12];
    if room < start.len() {
        return Err(NpyError::Magic.into());
    }
    read(0, &mut start)?;
    let [.., major, _, a, b, c, d] = start;
    let (first, length) = match major {
        1 => (10, usize::from(u16::from_le_bytes([a, b]))),
        2 | 3 => (12, u32::from_le_bytes([a, b, c, d]) as usize),
        _ => return Err(NpyError::Magic.into()),
    };
    if !start.starts_with(&MAGIC) {
        return Err(NpyError::Magic.into());
    }
    let limit = HEADER_LIMIT.min(room - first);
    if length > limit {
        let found = length;
        return Err(NpyError::HeaderLength { found, limit }.into());
    }
    let mut text = vec![0; length];
    read(first, &mut text)?;
    let header = Header::parse(&String::from_utf8_lossy(&text))?;
    let found = (room - first - length) as u64;
    let expected = byte_length(header.dtype, &header.shape);
    if expected.map(|bytes| bytes as u64) != Some(found) {
        let shape = header.shape;
        return Err(NpyError::Length {
            found,
            expected,
            shape,
        }
        .into());
    }
    Ok((header, first + length))
}

/// Whether a file begins as those of `numpy.save` do.
pub(crate) fn is_npy(start: &[u8]) -> bool {
    start.starts_with(&MAGIC)
}

/// The array of a file of `numpy.save`, whose bytes are at hand.
pub(crate) fn read_npy(path: &Path, mut bytes: Vec<u8>) -> Result<RawTensor, ArchiveError> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let part = |start: usize, part: &mut [u8]| {
        let found = bytes.get(start..).and_then(|rest| rest.get(..part.len()));
        let found = found.ok_or(std::io::ErrorKind::UnexpectedEof)?;
        part.copy_from_slice(found);
        Ok(())
    };
    let found = read_header(bytes.len() as u64, part).map_err(|error| match error {
        Wrong::Io(source) => ArchiveError::read(path)(source),
        Wrong::Npy(source) => npy_error(path, &name, source),
    });
    let (header, start) = found?;
    bytes.drain(..start);
    let bytes = header.row_major(bytes);
    let tensor = RawTensor::new(header.dtype, header.shape, bytes);
    tensor.map_err(|error| error.of(&name))
}

/// Writes the contents as `numpy.savez` does, array by array.
pub(crate) fn write(
    out: impl Write + Seek,
    path: &Path,
    contents: &Contents<'_>,
) -> Result<(), ArchiveError> {
    let mut records = RecordWriter::new(path, out, String::new());
    let written = write_arrays(&mut records, path, contents);
    let written = written.and_then(|()| records.comment(contents.metadata));
    records.finish(written)
}

fn write_arrays<W: Write + Seek>(
    records: &mut RecordWriter<'_, W>,
    path: &Path,
    contents: &Contents<'_>,
) -> Result<(), ArchiveError> {
    for TensorHeader { name, dtype, shape } in contents.headers() {
        let Some((code, _)) = CODES.iter().find(|(_, known)| *known == dtype) else {
            return Err(ArchiveError::NoDtype {
                path: path.to_owned(),
                tensor: name.to_owned(),
                found: dtype,
                container: "npz",
            });
        };
        let tensor = contents.tensor(name)?;
        let header = header_bytes(code, shape);
        records.write(&format!("{name}{ENDING}"), &[&header, tensor.bytes()])?;
    }
    Ok(())
}

/// The header as NumPy writes it: ended by a new line at a multiple of 64 bytes.
fn header_bytes(code: &str, shape: &[usize]) -> Vec<u8> {
    let extents: Vec<String> = shape.iter().map(usize::to_string).collect();
    let tuple = match extents.as_slice() {
        [only] => format!("({only},)"),
        several => format!("({})", several.join(", ")),
    };
    let mut text = format!("{{'descr': '{code}', 'fortran_order': False, 'shape': {tuple}, }}");
    if let Some(first) = extents.first() {
        text.push_str(&" ".repeat(AXIS_DIGITS.saturating_sub(first.len())));
    }
    let before = MAGIC.len() + 4;
    let padding = (before + text.len() + 1).next_multiple_of(64) - (before + text.len() + 1);
    text.push_str(&" ".repeat(padding));
    text.push('\n');
    let length = (text.len() as u16).to_le_bytes();
    [&MAGIC[..], &[1, 0], &length, text.as_bytes()].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_as_numpy_writes_them() {
        for shape in [vec![], vec![3], vec![3, 0, 7]] {
            let bytes = header_bytes("<c8", &shape);
            assert_eq!(bytes.len() % 64, 0);
            let header = Header::parse(std::str::from_utf8(&bytes[10..]).unwrap()).unwrap();
            assert_eq!((header.dtype, header.fortran), (Dtype::C64, false));
            assert_eq!(header.shape, shape);
        }
    }

    #[test]
    fn each_fault_of_a_header_has_its_error() {
        type Test = fn(&NpyError) -> bool;
        let cases: [(&str, Test); 7] = [
            ("", |e| matches!(e, NpyError::Header { .. })),
            (
                "{'descr': '<f4', 'fortran_order': 0, 'shape': (1,), }",
                |e| matches!(e, NpyError::Header { .. }),
            ),
            (
                "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
                |e| matches!(e, NpyError::Header { .. }),
            ),
            ("{'fortran_order': False, 'shape': (1,), }", |e| {
                matches!(e, NpyError::Header { .. })
            }),
            (
                "{'descr': '>f4', 'fortran_order': False, 'shape': (1,), }",
                |e| matches!(e, NpyError::ByteOrder { .. }),
            ),
            (
                "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
                |e| matches!(e, NpyError::ElementType { .. }),
            ),
            (
                "{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,), }",
                |e| matches!(e, NpyError::ElementType { .. }),
            ),
        ];
        for (text, expected) in cases {
            let error = Header::parse(text).unwrap_err();
            assert!(expected(&error), "{text}: {error}");
        }
    }

    #[test]
    fn the_first_axis_of_fortran_order_is_the_fastest() {
        let header = Header {
            dtype: Dtype::U8,
            shape: vec![2, 3],
            fortran: true,
        };
        assert_eq!(header.row_major(vec![0, 3, 1, 4, 2, 5]), [0, 1, 2, 3, 4, 5]);
    }
}
