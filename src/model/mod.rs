//! A whole network as plain host data: the hub that every other room reads and writes.
//!
//! A model holds no file, no layout and no device. The reduced model has the same type as the
//! full one, so every tool works on both.

mod block;
mod check;
mod parts;
mod sequence;

use std::sync::Arc;

pub use block::Block;
use nalgebra::DMatrix;
pub use parts::{
    BatchNorm, BlockParts, Gate, LayerNorm, Linear, Nonlinearity, Norm, OutputLinear, Placement,
};
pub use sequence::{InputError, InputKind, InputSignal, Sequence};

/// What a [`Model`] is made of, unchecked.
#[derive(Debug, Clone, PartialEq)]
pub struct ModelParts {
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

/// A sequence model, checked: encoder, blocks, pooling and head follow one another, and all numbers
/// are finite. A file that holds one layer alone gives a model with one block and neither encoder
/// nor head.
#[derive(Debug, Clone, PartialEq)]
pub struct Model(ModelParts);

/// Why parts do not make a model: what was found, what was expected, where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ModelError(String);

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
    /// The number of channels it gives.
    pub fn width(&self) -> usize {
        match self {
            Encoder::Linear(linear) => linear.weight.ncols(),
            Encoder::Embedding(table) => table.nrows(),
        }
    }

    /// The input of one step.
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
    /// Checks the parts of a network.
    ///
    /// # Errors
    /// [`ModelError`]: parts that do not follow one another, a number that is not finite.
    pub fn new(parts: ModelParts) -> Result<Self, ModelError> {
        check_network(&parts)?;
        Ok(Self(parts))
    }

    /// The same network with other layers, e.g. reduced ones.
    ///
    /// # Errors
    /// As [`Model::new`].
    pub fn with_blocks(&self, blocks: Vec<Block>) -> Result<Self, ModelError> {
        let stored = &self.0;
        Self::new(ModelParts {
            encoder: stored.encoder.clone(),
            blocks,
            final_norm: stored.final_norm.clone(),
            head: stored.head.clone(),
        })
    }

    /// The same network with another layer in the place `index`.
    ///
    /// # Errors
    /// As [`Model::new`].
    ///
    /// # Panics
    /// If there is no layer of that index.
    pub fn with_block(&self, index: usize, block: Block) -> Result<Self, ModelError> {
        let mut blocks = self.0.blocks.clone();
        blocks[index] = block;
        self.with_blocks(blocks)
    }

    /// The parts, to be changed and checked again.
    pub fn into_parts(self) -> ModelParts {
        self.0
    }

    /// What turns the data into channels.
    pub fn encoder(&self) -> Option<&Encoder> {
        self.0.encoder.as_ref()
    }

    /// Whether every channel of every layer is a causal system of its own: S4D and DSS in one direction,
    /// and not S5, LRU or layers in both directions.
    pub fn is_bank(&self) -> bool {
        let mut blocks = self.blocks().iter();
        blocks.all(|block| block.backward().is_empty() && block.is_siso())
    }

    /// The layers, first to last.
    pub fn blocks(&self) -> &[Block] {
        &self.0.blocks
    }

    /// A normalisation between the last layer and the head.
    pub fn final_norm(&self) -> Option<&Norm> {
        self.0.final_norm.as_ref()
    }

    /// What turns channels into logits.
    pub fn head(&self) -> Option<&Head> {
        self.0.head.as_ref()
    }

    /// The number of inputs of each step; for an embedding, the size of the vocabulary.
    pub fn inputs(&self) -> Option<usize> {
        self.encoder().map(|encoder| match encoder.takes() {
            InputKind::Numbers { width } => width,
            InputKind::Tokens { vocabulary } => vocabulary,
        })
    }

    /// The number of classes.
    pub fn classes(&self) -> Option<usize> {
        self.head().map(|head| head.linear.weight.ncols())
    }
}

/// Whether encoder, layers, normalisation and head follow one another.
fn check_network(parts: &ModelParts) -> Result<(), ModelError> {
    if let Some(encoder) = &parts.encoder {
        check_encoder(encoder)?;
    }
    let last = parts.blocks.last().map(|block| block.width());
    let width = last.or(parts.encoder.as_ref().map(Encoder::width));
    if let (Some(norm), Some(width)) = (&parts.final_norm, width) {
        check::norm("the last normalisation", norm, width)?;
    }
    if let (Some(head), Some(width)) = (&parts.head, width) {
        check::linear("the head", &head.linear, width)?;
    }
    // Layers out of a network that is not known need not follow one another.
    let Some(encoder) = &parts.encoder else {
        return Ok(());
    };
    let mut width = encoder.width();
    for block in &parts.blocks {
        check::size(block.name(), "channels", block.channels(), width)?;
        width = block.width();
    }
    Ok(())
}

fn check_encoder(encoder: &Encoder) -> Result<(), ModelError> {
    let place = "the encoder";
    match encoder {
        Encoder::Linear(map) => check::linear(place, map, map.weight.nrows()),
        Encoder::Embedding(table) => check::finite(place, "table", table.as_slice()),
    }
}
