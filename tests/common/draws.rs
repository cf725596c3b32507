//! Random models with every part that streams, and their signals.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::sync::Arc;

use hankelite::model::{
    BatchNorm, Block, BlockParts, Encoder, Gate, Head, InputKind, LayerNorm, Linear, Model,
    ModelParts, Nonlinearity, Norm, OutputLinear, Placement, Pooling, Sequence,
};
use hankelite::rounding::{Entries, MapStorage, Numbers, Storage};
use hankelite::stream::Runner;
use hankelite_control::{DiagonalSystem, Time};
use nalgebra::DMatrix;
use num_complex::Complex64;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::models::{change_layer, changed};

/// What is drawn for a random model.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Draw {
    pub(crate) channels: usize,
    /// Modes of every channel, or up to as many where they differ.
    pub(crate) modes: usize,
    pub(crate) ragged: bool,
    pub(crate) gated: bool,
    pub(crate) placement: Placement,
    pub(crate) batch_norm: bool,
    pub(crate) pooling: Option<Pooling>,
    pub(crate) tokens: bool,
}

pub(crate) const PLAIN: Draw = Draw {
    channels: 16,
    modes: 8,
    ragged: false,
    gated: false,
    placement: Placement::Pre,
    batch_norm: false,
    pooling: Some(Pooling::Mean),
    tokens: false,
};

/// Sizes that fill lanes and that do not, and every part a model can have.
pub(crate) const DRAWS: [Draw; 6] = [
    PLAIN,
    Draw {
        channels: 20,
        ragged: true,
        gated: true,
        placement: Placement::Post,
        ..PLAIN
    },
    Draw {
        channels: 5,
        batch_norm: true,
        pooling: Some(Pooling::Last),
        ..PLAIN
    },
    Draw {
        channels: 33,
        ragged: true,
        batch_norm: true,
        placement: Placement::Post,
        pooling: None,
        ..PLAIN
    },
    Draw {
        channels: 12,
        tokens: true,
        gated: true,
        ..PLAIN
    },
    Draw {
        channels: 1,
        modes: 3,
        ..PLAIN
    },
];

pub(crate) fn linear(random: &mut ChaCha8Rng, inputs: usize, outputs: usize) -> Linear {
    let scale = 1.7 / (inputs as f64).sqrt();
    let mut draw = || random.random_range(-1.0..1.0);
    let weight = DMatrix::from_fn(inputs, outputs, |_, _| scale * draw());
    let bias = (0..outputs).map(|_| 0.3 * draw()).collect();
    Linear {
        weight: Arc::new(weight),
        bias: Some(bias),
    }
}

/// Decays within 2 to 2,000 steps.
pub(crate) fn exponents(random: &mut ChaCha8Rng, modes: usize) -> Vec<Complex64> {
    let mut one = || {
        let decay = 10f64.powf(random.random_range(-3.3..-0.3));
        Complex64::new(-decay, random.random_range(0.0..3.0))
    };
    (0..modes).map(|_| one()).collect()
}

/// A layer whose channels share one system, and nothing else.
pub(crate) fn shared(random: &mut ChaCha8Rng, channels: usize, modes: usize, dense: bool) -> Block {
    let mut entry = || {
        Complex64::new(
            random.random_range(-1.0..1.0),
            random.random_range(-1.0..1.0),
        )
    };
    let input = DMatrix::from_fn(modes, channels, |_, _| entry());
    let output = DMatrix::from_fn(channels, modes, |_, _| 0.1 * entry());
    let through = DMatrix::from_fn(channels, channels, |i, j| {
        if dense || i == j { entry().re } else { 0.0 }
    });
    let time = Time::Discrete { step: 1.0 };
    let exponents = exponents(random, modes);
    let system = DiagonalSystem::new(time, exponents, input, output, through).unwrap();
    Block::new(BlockParts {
        name: format!("{modes} modes"),
        systems: vec![system],
        backward: Vec::new(),
        backward_from: 1,
        holds_feedthrough: true,
        class: None,
        activation: Nonlinearity::Gelu,
        output: None,
        norm: None,
    })
    .unwrap()
}

pub(crate) fn norm(random: &mut ChaCha8Rng, draw: &Draw) -> Norm {
    let mut numbers = |low: f64, high: f64| -> Vec<f64> {
        (0..draw.channels)
            .map(|_| random.random_range(low..high))
            .collect()
    };
    let (weight, bias, epsilon) = (numbers(0.5, 1.5), numbers(-0.2, 0.2), 1e-5);
    if draw.batch_norm {
        return Norm::Batch(BatchNorm {
            weight,
            bias,
            mean: numbers(-0.5, 0.5),
            variance: numbers(0.5, 2.0),
            epsilon,
        });
    }
    Norm::Layer(LayerNorm {
        weight,
        bias,
        epsilon,
    })
}

pub(crate) fn model(draw: &Draw, seed: u64) -> Model {
    let random = &mut ChaCha8Rng::seed_from_u64(seed);
    let channels = draw.channels;
    let encoder = match draw.tokens {
        true => Encoder::Embedding(linear(random, channels, 7).weight),
        false => Encoder::Linear(linear(random, 2, channels)),
    };
    let mut blocks = Vec::new();
    for index in 0..3 {
        let mut systems = Vec::new();
        for _ in 0..channels {
            let modes = match draw.ragged {
                true => random.random_range(0..=draw.modes),
                false => draw.modes,
            };
            let exponents = exponents(random, modes);
            // Residues that leave every mode about as loud, whatever its decay.
            let residue = |z: &Complex64| Complex64::new(random.random(), random.random()) * -z.re;
            let residues: Vec<Complex64> = exponents.iter().map(residue).collect();
            let time = Time::Discrete { step: 1.0 };
            systems.push(DiagonalSystem::siso(time, exponents, &residues, 0.3).unwrap());
        }
        let outputs = if draw.gated { 2 * channels } else { channels };
        blocks.push(
            Block::new(BlockParts {
                name: format!("layers.{index}"),
                systems,
                backward: Vec::new(),
                backward_from: 1,
                holds_feedthrough: true,
                class: None,
                activation: Nonlinearity::Gelu,
                output: Some(OutputLinear {
                    linear: linear(random, channels, outputs),
                    gate: if draw.gated { Gate::Halves } else { Gate::None },
                }),
                norm: Some((norm(random, draw), draw.placement)),
            })
            .unwrap(),
        );
    }
    let head = Some(Head {
        pooling: draw.pooling,
        linear: linear(random, channels, 10),
    });
    Model::new(ModelParts {
        encoder: Some(encoder),
        blocks,
        final_norm: (draw.placement == Placement::Pre).then(|| norm(random, draw)),
        head,
    })
    .unwrap()
}

/// Inputs of a random model: a slow tone in noise, or tokens.
pub(crate) struct Signal {
    pub(crate) values: Vec<f32>,
    pub(crate) tokens: Vec<u32>,
}

impl Signal {
    pub(crate) fn new(length: usize) -> Self {
        let mut random = ChaCha8Rng::seed_from_u64(7);
        let tone = |k: usize| (0.01 * k as f64).sin();
        let values = (0..2 * length).map(|k| (tone(k) + random.random_range(-1.0..1.0)) as f32);
        let values = values.collect();
        let tokens = (0..length).map(|_| random.random_range(0..7)).collect();
        Self { values, tokens }
    }

    pub(crate) fn sequence(&self, draw: &Draw) -> Sequence<'_> {
        match draw.tokens {
            true => Sequence::Tokens(&self.tokens),
            false => Sequence::Values(&self.values),
        }
    }
}

/// The outputs of every step, one after the other.
pub(crate) fn streamed(runner: &mut Runner, signal: &Signal) -> Vec<f32> {
    let mut all = Vec::new();
    for (step, &token) in signal.tokens.iter().enumerate() {
        let outputs = match runner.takes() {
            InputKind::Tokens { .. } => runner.step_tokens(&[token]),
            InputKind::Numbers { .. } => runner.step(&signal.values[2 * step..2 * step + 2]),
        };
        all.extend(outputs.unwrap());
    }
    all
}

pub(crate) fn streamed_double(runner: &mut Runner<f64>, signal: &Signal) -> Vec<f64> {
    let mut all = Vec::new();
    for (step, &token) in signal.tokens.iter().enumerate() {
        let values = signal.values[2 * step..2 * step + 2].iter();
        let values: Vec<f64> = values.map(|&value| value.into()).collect();
        let outputs = match runner.takes() {
            InputKind::Tokens { .. } => runner.step_tokens(&[token]),
            InputKind::Numbers { .. } => runner.step(&values),
        };
        all.extend(outputs.unwrap());
    }
    all
}

/// A model whose channels keep the first of their modes.
pub(crate) fn of_orders(model: &Model, order: impl Fn(usize) -> usize) -> Model {
    let shorter = |(channel, system): (usize, &DiagonalSystem)| {
        let (exponents, residues) = (system.exponents(), system.residues().unwrap());
        let count = order(channel).min(residues.len());
        let exponents = exponents[..count].to_vec();
        DiagonalSystem::siso(system.time(), exponents, &residues[..count], 0.3).unwrap()
    };
    changed(model, |parts| {
        for layer in 0..parts.blocks.len() {
            change_layer(parts, layer, |layer| {
                let systems = layer.systems.iter().enumerate();
                layer.systems = systems.map(shorter).collect();
            });
        }
    })
}

/// Models whose channels stand 16, 8 and 4 wide, with maps that fill units of inputs and that do not.
pub(crate) fn of_all_lanes() -> Vec<(Draw, Model, usize)> {
    let gated = Draw {
        gated: true,
        ..PLAIN
    };
    let wide = Draw {
        channels: 64,
        ..gated
    };
    let odd = Draw {
        channels: 44,
        placement: Placement::Post,
        ..PLAIN
    };
    let batch = Draw {
        channels: 40,
        batch_norm: true,
        ..gated
    };
    vec![
        (gated, model(&gated, 21), 16),
        (wide, model(&wide, 22), 16),
        (odd, of_orders(&model(&odd, 23), |h| h % 9), 8),
        (batch, of_orders(&model(&batch, 24), |h| 8 - h / 8), 8),
        (gated, of_orders(&model(&gated, 25), |h| [1, 8][h % 2]), 8),
        (gated, of_orders(&model(&gated, 26), |h| 1 + 2 * (h % 4)), 4),
    ]
}

/// Everything that can be rounded, rounded.
pub(crate) fn storage(model: &Model, entries: Entries, numbers: Numbers) -> Storage {
    let mut storage = Storage::nearest(model, entries, 32).unwrap();
    let head = &model.head().unwrap().linear;
    storage.head = MapStorage::nearest(head, entries, 16).unwrap();
    if let Some(Encoder::Linear(linear)) = model.encoder() {
        storage.encoder = MapStorage::nearest(linear, entries, 48).unwrap();
    }
    storage.with_numbers(numbers)
}
