//! What a model of some size takes, without making it.

use std::hint::black_box;
use std::time::Instant;

use crate::control::DiagonalSystem;
use crate::model::{InputKind, Model};
use crate::rounding::Storage;
use crate::stream::{Image, Runner, StreamError};
use crate::target::TargetError;

/// Bytes of a model that runs sample by sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize)]
pub struct Size {
    /// Of the image.
    pub weights: usize,
    /// Of the state of one stream.
    pub state: usize,
}

impl Size {
    /// Both together.
    pub fn total(self) -> usize {
        self.weights + self.state
    }

    /// The size of a model as it is stored.
    ///
    /// # Errors
    /// [`TargetError::Stream`].
    pub fn of(model: &Model, storage: &Storage) -> Result<Self, TargetError> {
        let runner = Runner::<f32>::from_image(Image::packed(model, storage)?)?;
        Ok(Self {
            weights: runner.weight_bytes(),
            state: runner.state_bytes(),
        })
    }
}

/// The causal model with its first modes in the place of those that a reduction to these `orders`
/// (of every channel of every layer) would find: of the same bytes, and as fast.
///
/// # Errors
/// [`TargetError::Stream`]; [`TargetError::Calibrate`].
pub fn stand_in(model: &Model, orders: &[Vec<usize>]) -> Result<Model, TargetError> {
    let blocks = model.blocks().iter().zip(orders);
    let blocks = blocks.map(|(block, orders)| {
        let systems = block.systems().iter().zip(orders);
        let systems = systems.map(|(system, &order)| shortened(system, order));
        Ok(block.with_systems(systems.collect::<Result<_, TargetError>>()?, Vec::new())?)
    });
    Ok(model.with_blocks(blocks.collect::<Result<_, TargetError>>()?)?)
}

fn shortened(system: &DiagonalSystem, order: usize) -> Result<DiagonalSystem, TargetError> {
    let order = order.min(system.order());
    let made = DiagonalSystem::new(
        system.time(),
        system.exponents()[..order].to_vec(),
        system.input().rows(0, order).into_owned(),
        system.output().columns(0, order).into_owned(),
        system.feedthrough().clone(),
    );
    Ok(made.map_err(StreamError::System)?)
}

/// Steps of a round of timing, and rounds.
const STEPS: usize = 200;
const ROUNDS: usize = 7;

/// Microseconds of a step of a model as it is stored, on one core of this machine: the least of the
/// medians of some rounds. Takes some ten milliseconds.
///
/// # Errors
/// [`TargetError::Stream`].
pub fn step_microseconds(model: &Model, storage: &Storage) -> Result<f64, TargetError> {
    let mut runner = Runner::<f32>::from_image(Image::packed(model, storage)?)?;
    let inputs = vec![0.5; runner.inputs()];
    let takes = runner.takes();
    let mut best = f64::INFINITY;
    let mut times = Vec::with_capacity(STEPS);
    for _ in 0..ROUNDS {
        times.clear();
        for _ in 0..STEPS {
            let start = Instant::now();
            match takes {
                InputKind::Tokens { .. } => black_box(runner.step_tokens(black_box(&[0]))?),
                InputKind::Numbers { .. } => black_box(runner.step(black_box(&inputs))?),
            };
            times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        times.sort_by(f64::total_cmp);
        best = best.min(times[STEPS / 2]);
    }
    Ok(best)
}
