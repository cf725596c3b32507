//! Checkpoints of `flax.serialization.to_bytes`: nested maps in the MessagePack format.
//!
//! An array is an extension of type 1, or 3 for a scalar, that holds (shape, name of the element
//! type, bytes); `flax/serialization.py`. A tensor is named by its keys, joined by `/`. The file is
//! walked once when it is opened and remembered as pieces: ranges of bytes that are copied as they
//! are, and arrays. So a file that is written back unchanged is the same to the byte.

mod parser;
pub(super) mod writer;

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::archive_error::ArchiveError;
use crate::msgpack_file::parser::Parser;
use crate::tensor::{Dtype, RawTensor};

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

/// Why a MessagePack file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MsgpackError {
    /// The file ends within a value.
    #[error("the file ends at byte {offset}, expected {wanted} more bytes")]
    Truncated {
        /// Where it ends.
        offset: u64,
        /// How many bytes are missing.
        wanted: u64,
    },
    /// Bytes behind the value.
    #[error("the value ends at byte {offset}, expected the end of the file there")]
    Trailing {
        /// Where the value ends.
        offset: u64,
    },
    /// A byte that starts no value.
    #[error("byte 0x{found:02x} at {offset} starts no value")]
    Head {
        /// Where it stands.
        offset: u64,
        /// The byte.
        found: u8,
    },
    /// The file's value is no map.
    #[error("the file holds a value that is no map, expected a map of names")]
    NotAMap,
    /// No array in the file.
    #[error("the file holds no array")]
    NoTensors,
    /// A key that is neither text nor a whole number.
    #[error("a key at byte {offset} is neither text nor a small whole number")]
    Key {
        /// Where it stands.
        offset: u64,
    },
    /// A longer name than any model has.
    #[error("a name at byte {offset} is longer than {limit} bytes")]
    NameLength {
        /// Where it stands.
        offset: u64,
        /// The limit.
        limit: usize,
    },
    /// Deeper nesting than any model has.
    #[error("values at byte {offset} are nested deeper than {limit} levels")]
    TooDeep {
        /// Where they stand.
        offset: u64,
        /// The limit.
        limit: usize,
    },
    /// An extension of type 1 or 3 is no array of flax.
    #[error("array `{tensor}` is malformed: it lacks {expected}")]
    Array {
        /// The array.
        tensor: String,
        /// What is missing.
        expected: &'static str,
    },
    /// Elements of a type that is not supported.
    #[error(
        "array `{tensor}` is of type `{found}`, expected real elements, integers, booleans or \
         complex64"
    )]
    ElementType {
        /// The array.
        tensor: String,
        /// NumPy's name of the type.
        found: String,
    },
    /// An array in several pieces.
    #[error(
        "array `{tensor}` is cut into chunks, as flax does above 1 GiB, expected it whole; write \
         it to a safetensors file instead"
    )]
    Chunked {
        /// The array.
        tensor: String,
    },
    /// Two arrays have the same name.
    #[error("two arrays are called `{tensor}`")]
    Twice {
        /// The name.
        tensor: String,
    },
    /// The file cannot be read.
    #[error("a part of the file cannot be read")]
    Io(#[from] io::Error),
}

/// Where an array lies.
#[derive(Debug)]
struct Array {
    dtype: Dtype,
    shape: Vec<usize>,
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
pub(super) struct MsgpackFile {
    path: PathBuf,
    file: Mutex<File>,
    arrays: BTreeMap<String, Array>,
    pieces: Vec<Piece>,
    notes: Vec<String>,
}

/// Whether a file that starts with these bytes can be a map with text as its first key.
pub(super) fn is_msgpack(start: &[u8]) -> bool {
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
    pub(super) fn open(path: &Path, file: File) -> Result<MsgpackFile, ArchiveError> {
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

    /// Every array's header.
    pub(super) fn tensors(&self) -> impl Iterator<Item = (&str, Dtype, &[usize])> {
        let arrays = self.arrays.iter();
        arrays.map(|(name, array)| (name.as_str(), array.dtype, array.shape.as_slice()))
    }

    /// What will be left out when the file is written.
    pub(super) fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Reads one array; `None` when there is none of that name.
    pub(super) fn tensor(&self, name: &str) -> Option<Result<RawTensor, ArchiveError>> {
        let array = self.arrays.get(name)?;
        let tensor = self.bytes(array.elements).map(|bytes| RawTensor {
            dtype: array.dtype,
            shape: array.shape.clone(),
            bytes,
        });
        Some(tensor.map_err(|source| ArchiveError::Read {
            path: self.path.clone(),
            source,
        }))
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
