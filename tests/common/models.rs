//! Models with changed parts.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use hankelite::control::DiagonalSystem;
use hankelite::model::{Block, BlockParts, Encoder, Linear, Model, ModelParts};

/// The model with its parts changed.
pub(crate) fn changed(model: &Model, change: impl FnOnce(&mut ModelParts)) -> Model {
    let mut parts = model.clone().into_parts();
    change(&mut parts);
    Model::new(parts).unwrap()
}

/// Changes the parts of one layer.
pub(crate) fn change_layer(
    parts: &mut ModelParts,
    index: usize,
    change: impl FnOnce(&mut BlockParts),
) {
    let mut layer = parts.blocks[index].clone().into_parts();
    change(&mut layer);
    parts.blocks[index] = Block::new(layer).unwrap();
}

/// The model with every system changed.
pub(crate) fn with_systems(
    model: &Model,
    change: impl Fn(&DiagonalSystem) -> DiagonalSystem,
) -> Model {
    let blocks = model.blocks().iter().map(|block| {
        let all = |systems: &[DiagonalSystem]| systems.iter().map(&change).collect();
        let (forward, backward) = (all(block.systems()), all(block.backward()));
        block.with_systems(forward, backward).unwrap()
    });
    model.with_blocks(blocks.collect()).unwrap()
}

/// The map of a linear encoder.
pub(crate) fn linear_encoder(parts: &mut ModelParts) -> &mut Linear {
    match &mut parts.encoder {
        Some(Encoder::Linear(linear)) => linear,
        _ => panic!("the model has no linear encoder"),
    }
}
