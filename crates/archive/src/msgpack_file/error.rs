//! What can be wrong with a MessagePack file.

use std::io;

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
    /// Names that are together longer than the file accounts for.
    #[error("the names up to byte {offset} are together longer than {limit} bytes")]
    Names {
        /// Where the last of them ends.
        offset: u64,
        /// The limit for a file of its length.
        limit: u64,
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
