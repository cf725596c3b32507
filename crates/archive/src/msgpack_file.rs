//! Checkpoints of `flax.serialization.to_bytes`: nested maps in the MessagePack format.
//!
//! An array is an extension of type 1, or 3 for a scalar, that holds (shape, name of the element
//! type, bytes); `flax/serialization.py`. A tensor is named by its keys, joined by `/`. The file is
//! walked once when it is opened and remembered as pieces: ranges of bytes that are copied as they
//! are, and arrays. So a file that is written back unchanged is the same to the byte.

mod error;
mod parser;
pub(crate) mod writer;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub use error::MsgpackError;

use crate::contents::{Read as TensorRead, TensorFile};
use crate::error::ArchiveError;
use crate::msgpack_file::parser::Parser;
use crate::tensor::{Dtype, Header, RawTensor};
use crate::unchanging::UnchangingFile;

/// What joins the keys that lead to a tensor.
const SEPARATOR: char = '/';

/// NumPy's names of the element types.
const TYPES: [(&str, Dtype); 16] = [
    ("float64", Dtype::F64),
    ("float32", Dtype::F32),
    ("float16", Dtype::F16),
    ("bfloat16", Dtype::BF16),
    ("complex64", Dtype::C64),
    ("int64", Dtype::I64),
    ("int32", Dtype::I32),
    ("int16", Dtype::I16),
    ("int8", Dtype::I8),
    ("uint64", Dtype::U64),
    ("uint32", Dtype::U32),
    ("uint16", Dtype::U16),
    ("uint8", Dtype::U8),
    ("bool", Dtype::BOOL),
    ("float8_e4m3fn", Dtype::F8_E4M3),
    ("float8_e5m2", Dtype::F8_E5M2),
];

/// NumPy's name of complex numbers of two doubles, for which there is no element type here.
const COMPLEX_DOUBLE: &str = "complex128";

/// Where an array lies.
#[derive(Debug)]
struct Array {
    dtype: Dtype,
    shape: Vec<usize>,
    /// Whether it is of complex128, which is read as pairs of float64 on a last axis of two.
    double: bool,
    /// Type of the extension.
    code: i8,
    /// The extension, with its head.
    whole: Range,
    /// Its elements.
    elements: Range,
}

/// Bytes of the file.
#[derive(Debug, Clone, Copy)]
struct Range {
    start: u64,
    length: u64,
}

/// What the file is put together from again.
#[derive(Debug)]
enum Piece {
    Copied(Range),
    Array(String),
    New(Vec<u8>),
}

/// An open MessagePack file.
#[derive(Debug)]
pub(crate) struct MsgpackFile {
    path: PathBuf,
    file: Mutex<UnchangingFile>,
    arrays: BTreeMap<String, Array>,
    pieces: Vec<Piece>,
    notes: Vec<String>,
}

/// Whether a file that starts with these bytes can be a map with text as its first key.
pub(crate) fn is_msgpack(start: &[u8]) -> bool {
    let text = |at: usize| matches!(start.get(at), Some(0xa0..=0xbf | 0xd9..=0xdb));
    match start.first() {
        Some(0x81..=0x8f) => text(1),
        Some(0xde) => text(3),
        Some(0xdf) => text(5),
        _ => false,
    }
}

impl MsgpackFile {
    /// Walks through the file.
    pub(crate) fn open(path: &Path, file: UnchangingFile) -> Result<MsgpackFile, ArchiveError> {
        let parsed = Parser::new(&file).and_then(Parser::run);
        let parsed = parsed.map_err(|source| ArchiveError::Msgpack {
            path: path.to_owned(),
            source: Box::new(source),
        })?;
        Ok(MsgpackFile {
            path: path.to_owned(),
            file: Mutex::new(file),
            arrays: parsed.arrays,
            pieces: parsed.pieces,
            notes: parsed.notes,
        })
    }

    fn bytes(&self, range: Range) -> io::Result<Vec<u8>> {
        // The parser compared the ranges with the length of the file.
        let mut bytes = vec![0; range.length as usize];
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(range.start))?;
        file.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl TensorFile for MsgpackFile {
    fn headers(&self) -> Box<dyn Iterator<Item = Header<'_>> + '_> {
        Box::new(self.arrays.iter().map(|(name, array)| Header {
            name,
            dtype: array.dtype,
            shape: &array.shape,
        }))
    }

    fn tensor(&self, name: &str) -> Option<TensorRead<'_>> {
        let array = self.arrays.get(name)?;
        let bytes = self.bytes(array.elements);
        let bytes = bytes.map_err(ArchiveError::read(&self.path));
        Some(bytes.and_then(|bytes| {
            let tensor = RawTensor::new(array.dtype, array.shape.clone(), bytes);
            tensor.map(Cow::Owned).map_err(|error| error.of(name))
        }))
    }

    fn notes(&self) -> &[String] {
        &self.notes
    }
}
