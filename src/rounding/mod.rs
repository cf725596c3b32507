//! Numbers of few bits: how the tensors of a model are stored where every byte counts.
//!
//! A [`Storage`] holds for each tensor how it is stored. [`Storage::applied`] gives the model that its
//! numbers stand for, so that what is scored, written to a checkpoint and laid out in an image is
//! one and the same.

mod choice;
pub(crate) mod compensated;
mod half;
pub(crate) mod levels;
pub(crate) mod matrix;
pub(crate) mod shared;
mod storage;

pub use choice::{LayerChoice, MapChoice, StorageChoice};
pub(crate) use compensated::{MapMoments, RoundedColumn};
pub(crate) use half::HalfExponents;
pub(crate) use levels::Levels;
pub(crate) use matrix::RoundedMatrix;
pub(crate) use shared::SharedMaps;
pub use storage::{LayerStorage, MapStorage, SharedStorage, Storage};

use crate::model::ModelError;

/// Inputs of a row of integers that share a scale, where no other number is given: as many as
/// entries of 3 bits are packed by.
pub const GROUP: usize = 32;

/// How the entries of a map are stored.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Entries {
    /// As all other numbers.
    #[default]
    Full,
    /// The upper half of an f32: 8 bits of precision.
    Bf16,
    /// 8-bit integers, times a scale for each row and group of inputs.
    Int8,
    /// 4-bit integers, two to a byte.
    Int4,
    /// 3-bit integers.
    Int3,
    /// 2-bit integers, −3, −1, 1 or 3.
    Int2,
}

impl Entries {
    /// Every kind, most bits first.
    pub const ALL: [Self; 6] = [
        Self::Full,
        Self::Bf16,
        Self::Int8,
        Self::Int4,
        Self::Int3,
        Self::Int2,
    ];

    /// Bits of an integer entry; `None` for floating point.
    pub fn bits(self) -> Option<u32> {
        match self {
            Self::Full | Self::Bf16 => None,
            Self::Int8 => Some(8),
            Self::Int4 => Some(4),
            Self::Int3 => Some(3),
            Self::Int2 => Some(2),
        }
    }
}

/// How the numbers that are no entries of a map are stored: poles, residues, feedthroughs, norms
/// and biases.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Default,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Numbers {
    /// Single precision.
    #[default]
    F32,
    /// IEEE half precision, 11 bits. Poles as d = a − 1, times a power of two for each layer.
    F16,
}

/// Why a matrix is not rounded.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RoundingError {
    /// Bits or groups that no matrix has, numbers that are not finite, sizes that do not fit.
    #[error("{0}")]
    Matrix(String),
    /// A rounded model that is none.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A rounded system that is none.
    #[error(transparent)]
    System(#[from] hankelite_control::SystemError),
}

/// Whether something is of as many `parts` as are expected.
fn same(what: &str, parts: &str, found: usize, expected: usize) -> Result<(), RoundingError> {
    match found == expected {
        true => Ok(()),
        false => Err(RoundingError::Matrix(format!(
            "{what} of {found} {parts}, expected {expected}"
        ))),
    }
}
