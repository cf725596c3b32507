//! What can be wrong with a `.npy` record.

/// Why an array of a `.npz` file cannot be read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NpyError {
    /// The record does not start as a `.npy` file does.
    #[error("it does not start as a .npy file of version 1 to 3 does")]
    Magic,
    /// The header is longer than the record or than any.
    #[error("its header has {found} bytes, expected at most {limit}")]
    HeaderLength {
        /// The length declared.
        found: usize,
        /// What the record or NumPy leaves room for.
        limit: usize,
    },
    /// The header is malformed.
    #[error("its header lacks {expected}")]
    Header {
        /// What is missing.
        expected: &'static str,
    },
    /// The numbers are big endian.
    #[error("its elements are of type `{found}`, expected little endian")]
    ByteOrder {
        /// NumPy's code.
        found: String,
    },
    /// Elements of a type that is not supported.
    #[error(
        "its elements are of type `{found}`, expected real numbers of 16 to 64 bits, integers, \
         booleans or complex64"
    )]
    ElementType {
        /// NumPy's code.
        found: String,
    },
    /// The record is longer or shorter than the header declares.
    #[error("it has {found} bytes of elements, expected {} for shape {shape:?}", show(.expected))]
    Length {
        /// Bytes behind the header.
        found: u64,
        /// Bytes that type and shape take; `None` beyond any memory.
        expected: Option<usize>,
        /// The shape.
        shape: Vec<usize>,
    },
}

fn show(expected: &Option<usize>) -> String {
    expected.map_or("more than any memory".to_owned(), |bytes| bytes.to_string())
}
