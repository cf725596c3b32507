//! A whole network as plain host data: the hub that every other room reads and writes.
//!
//! A model holds no file, no layout and no device. The reduced model has the same type as the
//! full one, so every tool works on both.

mod block;
mod sequence;

use std::sync::Arc;

pub use block::{BatchNorm, Block, LayerNorm, Linear, Norm, OutputLinear, Placement};
use nalgebra::DMatrix;
pub use sequence::{InputError, InputKind, Sequence};

/// A sequence model: encoder, blocks, pooling and head. A file that holds one layer alone gives a
/// model with one block and neither encoder nor head.
#[derive(Debug, Clone, PartialEq)]
pub struct Model {
    /// What turns the data into channels.
    pub encoder: Option<Encoder>,
    /// The layers, first to last.
    pub blocks: Vec<Block>,
    /// A normalisation between the last layer and the head, as pre-norm networks of the full
    /// state-spaces/s4 repository have.
    pub final_norm: Option<Norm>,
    /// What turns channels into logits.
    pub head: Option<Head>,
}

/// The map from data to channels.
#[derive(Debug, Clone, PartialEq)]
pub enum Encoder {
    /// x = Wᵀ u + b at every step.
    Linear(Linear),
    /// Column `token` of a (channels × vocabulary) table.
    Embedding(Arc<DMatrix<f64>>),
}

/// Pooling over time and the linear map to outputs.
#[derive(Debug, Clone, PartialEq)]
pub struct Head {
    /// How the steps of a sequence become one vector; `None` gives outputs at every step.
    pub pooling: Option<Pooling>,
    /// From channels to classes, or to the outputs of a step.
    pub linear: Linear,
}

/// How the steps of a sequence become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pooling {
    /// The mean over all steps.
    Mean,
    /// The last step.
    Last,
}

impl Encoder {
    /// What it takes at each step.
    pub fn takes(&self) -> InputKind {
        match self {
            Encoder::Linear(linear) => InputKind::Numbers {
                width: linear.weight.nrows(),
            },
            Encoder::Embedding(table) => InputKind::Tokens {
                vocabulary: table.ncols(),
            },
        }
    }
}

impl Model {
    /// The number of inputs of each step; for an embedding, the size of the vocabulary.
    pub fn inputs(&self) -> Option<usize> {
        self.encoder.as_ref().map(|encoder| match encoder.takes() {
            InputKind::Numbers { width } => width,
            InputKind::Tokens { vocabulary } => vocabulary,
        })
    }

    /// The number of classes.
    pub fn classes(&self) -> Option<usize> {
        self.head.as_ref().map(|head| head.linear.weight.ncols())
    }
}
