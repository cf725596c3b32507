//! Some sequences of a data set.

use hankelite::model::Sequence;

use crate::targets::Targets;

/// The inputs of a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum Steps {
    /// count × length × width.
    Values(Vec<f32>),
    /// count × length.
    Tokens(Vec<u32>),
}

/// Some sequences as host arrays, row-major, padding included.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Batch {
    /// The inputs.
    pub steps: Steps,
    /// The number of sequences.
    pub count: usize,
    /// The stored number of steps of each.
    pub length: usize,
    /// The true number of steps of each, where some are padded.
    pub lengths: Option<Vec<usize>>,
    /// What is to be answered, for these sequences only.
    pub targets: Targets,
}

impl Batch {
    /// Sequence `index` of the batch with its padding.
    ///
    /// # Panics
    /// If `index` is not below `count`.
    pub fn sequence(&self, index: usize) -> Sequence<'_> {
        match &self.steps {
            Steps::Values(values) => {
                let size = values.len() / self.count;
                Sequence::Values(&values[index * size..(index + 1) * size])
            }
            Steps::Tokens(tokens) => {
                Sequence::Tokens(&tokens[index * self.length..(index + 1) * self.length])
            }
        }
    }
}
