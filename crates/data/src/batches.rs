//! Batches in a seeded order.

use crate::dataset::Dataset;
use crate::draw::Draw;
use crate::error::DataError;

/// Streams of a seed from here on are for shuffling, those below for generated sequences.
const SHUFFLE: u64 = 1 << 63;

/// The batches of one epoch: every sequence once, in an order that depends on the seed and the
/// epoch alone. So a run that stops goes on at any batch, and the data need not be read twice.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batches {
    order: Vec<usize>,
    size: usize,
}

impl Batches {
    /// Batches of `size` sequences; the last one may be smaller.
    ///
    /// # Errors
    /// [`DataError::BatchSize`] for a size of 0 or above the number of sequences.
    pub fn new(data: &Dataset, size: usize, seed: u64, epoch: u64) -> Result<Self, DataError> {
        let most = data.len();
        if size == 0 || size > most {
            return Err(DataError::BatchSize { size, most });
        }
        let order = Draw::new(seed, SHUFFLE | epoch).order(most);
        Ok(Self { order, size })
    }

    /// The number of batches.
    pub fn len(&self) -> usize {
        self.order.len().div_ceil(self.size)
    }

    /// Never: there is at least one batch.
    pub fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// The indices of batch `index`, for [`Dataset::batch`]; `None` behind the last one.
    pub fn get(&self, index: usize) -> Option<&[usize]> {
        self.order.chunks(self.size).nth(index)
    }

    /// All batches from batch `first` on.
    pub fn from(&self, first: usize) -> impl Iterator<Item = &[usize]> {
        self.order.chunks(self.size).skip(first)
    }
}
