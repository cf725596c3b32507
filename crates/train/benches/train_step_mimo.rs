//! One training step of an LRU: forward, cross entropy, backward, AdamW; beside
//! `benches/train_step_mimo.py`, the same step in JAX.
//!
//! `RAYON_NUM_THREADS=1 taskset -c 0 cargo bench -p hankelite-train --bench train_step_mimo -- --h 32
//! --p 32 --layers 3 --len 196 --batch 50 --steps 7` prints one line of JSON: median, least and
//! largest wall and CPU seconds of a step. Pre-norm, half_glu1 with the tanh form of GELU, mean pooling. With
//! `--cuda`, in a build with that feature, the step runs on the first GPU until the device is done.
#![allow(clippy::print_stdout, reason = "the program is there to print")]

use std::time::Instant;

use candle_core::{Device, Tensor};
use hankelite::control::{DiagonalSystem, Time};
use hankelite::model::{
    Block, BlockParts, Encoder, Gate, Head, LayerNorm, Linear, Model, ModelParts, Nonlinearity,
    Norm, OutputLinear, Placement, Pooling,
};
use hankelite_train::nn::{Mode, NetworkInput, SequenceModel, TrainableNetwork, TrainableOptions};
use hankelite_train::{AdamW, AdamWSettings, Gradients, keep_freed_memory};
use nalgebra::DMatrix;
use num_complex::Complex64;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

type Failure = Box<dyn std::error::Error>;

/// Rates and decay of all groups.
const SETTINGS: AdamWSettings = AdamWSettings {
    lr: 1e-3,
    lr_dynamics: 1e-3,
    lr_steps: 1e-3,
    weight_decay: 0.01,
    weight_decay_poles: 0.0,
    beta1: 0.9,
    beta2: 0.999,
    epsilon: 1e-8,
};

const CLASSES: usize = 10;

fn number(name: &str, default: usize) -> Result<usize, Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().position(|a| *a == format!("--{name}")) {
        Some(at) => Ok(arguments.get(at + 1).ok_or("a value is missing")?.parse()?),
        None => Ok(default),
    }
}

/// Uniform numbers.
struct Draw(ChaCha8Rng);

impl Draw {
    fn within(&mut self, low: f64, high: f64) -> f64 {
        self.0.random_range(low..high)
    }

    fn linear(&mut self, inputs: usize, outputs: usize) -> Linear {
        let size = 1.0 / (inputs as f64).sqrt();
        let weight = DMatrix::from_fn(inputs, outputs, |_, _| self.within(-size, size));
        let bias = Some(vec![0.0; outputs]);
        Linear {
            weight: weight.into(),
            bias,
        }
    }

    fn system(&mut self, channels: usize, modes: usize) -> Result<DiagonalSystem, Failure> {
        let exponents = (0..modes).map(|_| {
            let decay = self.within(0.9, 0.999f64).ln();
            Complex64::new(decay, self.within(0.01, std::f64::consts::PI))
        });
        let exponents: Vec<Complex64> = exponents.collect();
        let mut matrix = |rows: usize, columns: usize, size: f64| {
            DMatrix::from_fn(rows, columns, |_, _| {
                Complex64::new(self.within(-size, size), self.within(-size, size))
            })
        };
        let input = matrix(modes, channels, (channels as f64).powf(-0.5));
        let output = matrix(channels, modes, (modes as f64).powf(-0.5));
        let through = DMatrix::from_diagonal_element(channels, channels, 0.5);
        let time = Time::Discrete { step: 1.0 };
        Ok(DiagonalSystem::new(
            time, exponents, input, output, through,
        )?)
    }

    fn block(&mut self, index: usize, channels: usize, modes: usize) -> Result<Block, Failure> {
        let norm = LayerNorm {
            weight: vec![1.0; channels],
            bias: vec![0.0; channels],
            epsilon: 1e-6,
        };
        Ok(Block::new(BlockParts {
            name: format!("layers.{index}"),
            systems: vec![self.system(channels, modes)?],
            backward: Vec::new(),
            backward_from: 0,
            holds_feedthrough: true,
            class: None,
            activation: Nonlinearity::GeluTanh,
            output: Some(OutputLinear {
                linear: self.linear(channels, channels),
                gate: Gate::Activated,
            }),
            norm: Some((Norm::Layer(norm), Placement::Pre)),
        })?)
    }
}

fn model() -> Result<Model, Failure> {
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(0));
    let (channels, modes) = (number("h", 32)?, number("p", 32)?);
    let encoder = Encoder::Linear(draw.linear(1, channels));
    let blocks = (0..number("layers", 3)?).map(|index| draw.block(index, channels, modes));
    Ok(Model::new(ModelParts {
        encoder: Some(encoder),
        blocks: blocks.collect::<Result<_, _>>()?,
        final_norm: None,
        head: Some(Head {
            pooling: Some(Pooling::Mean),
            linear: draw.linear(channels, CLASSES),
        }),
    })?)
}

/// CPU seconds of all threads so far.
fn cpu_seconds() -> f64 {
    let seconds = |task: std::fs::DirEntry| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        let nanoseconds: f64 = text.split_whitespace().next()?.parse().ok()?;
        Some(nanoseconds * 1e-9)
    };
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    tasks.flatten().filter_map(seconds).sum()
}

/// Median, least and largest.
fn summary(mut times: Vec<f64>) -> String {
    times.sort_by(f64::total_cmp);
    let (median, most) = (times[times.len() / 2], times[times.len() - 1]);
    let least = times[0];
    format!("{{\"median\": {median:.5}, \"min\": {least:.5}, \"max\": {most:.5}}}")
}

fn main() -> Result<(), Failure> {
    keep_freed_memory();
    let (batch, length) = (number("batch", 50)?, number("len", 196)?);
    let options = TrainableOptions::new(length);
    let device = match std::env::args().any(|argument| argument == "--cuda") {
        true => Device::new_cuda(0)?,
        false => Device::Cpu,
    };
    let network = TrainableNetwork::from_model(&model()?, &options, &device)?;
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let steps = (0..batch * length).map(|_| random.random::<f32>() - 0.5);
    let input = NetworkInput {
        steps: Tensor::from_vec(steps.collect::<Vec<_>>(), (batch, length, 1), &device)?,
        lengths: None,
    };
    let labels = (0..batch).map(|_| random.random_range(0..CLASSES as u32));
    let labels = Tensor::from_vec(labels.collect::<Vec<u32>>(), batch, &device)?;
    let mut optimiser = AdamW::new(network.parameters(), SETTINGS)?;
    let (mut wall, mut cpu) = (Vec::new(), Vec::new());
    for step in 0..2 + number("steps", 7)? {
        let (start, cpu_start) = (Instant::now(), cpu_seconds());
        let outputs = network.forward(&input, Mode::Train(&mut random))?;
        let loss = candle_nn::loss::cross_entropy(&outputs, &labels)?;
        let gradients = Gradients::of(&network, &loss.backward()?)?;
        optimiser.step(&gradients, 1.0, 1.0)?;
        device.synchronize()?;
        if step >= 2 {
            wall.push(start.elapsed().as_secs_f64());
            cpu.push(cpu_seconds() - cpu_start);
        }
    }
    println!(
        "{{\"threads\": {}, \"wall\": {}, \"cpu\": {}}}",
        rayon::current_num_threads(),
        summary(wall),
        summary(cpu),
    );
    Ok(())
}
