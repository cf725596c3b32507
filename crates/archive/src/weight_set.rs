//! Sets of weights that one file holds.

use serde::Serialize;

/// One of several sets of weights of a file, such as those of a network and their running mean.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WeightSet {
    /// What its names start with, or the entry of the file that holds it.
    pub name: String,
    /// Tensors.
    pub tensors: usize,
    /// Bytes of their elements.
    pub bytes: u64,
    /// Whether it is read.
    pub read: bool,
}

impl WeightSet {
    /// A set.
    #[must_use]
    pub fn new(name: String, tensors: usize, bytes: u64, read: bool) -> Self {
        Self {
            name,
            tensors,
            bytes,
            read,
        }
    }
}
