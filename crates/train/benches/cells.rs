//! One training step of stacked recurrent cells: forward, squared error, backward, AdamW.
//!
//! `cargo bench -p hankelite-train --bench cells -- [--cell lstm] [--inputs I] [--hidden H] [--layers K] [--len L]
//! [--batch B] [--steps S]` prints one line of JSON: wall milliseconds of a step (least and median)
//! and of its parts (least), and CPU milliseconds of all threads (mean over the steps). `RAYON_NUM_THREADS` sets the threads. `benches/cells_torch.py` takes the
//! same options and does the same in PyTorch.
#![allow(clippy::print_stdout, reason = "the program is there to print")]

use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use hankelite_train::nn::baseline::{
    BaselineArchitecture, BaselineKind, BaselineNetwork, BaselineOutput,
};
use hankelite_train::nn::{Mode, NetworkInput, PoolingKind, SequenceModel};
use hankelite_train::{AdamW, Gradients, Recipe, keep_freed_memory};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

type Failure = Box<dyn std::error::Error>;

fn text(name: &str) -> Option<String> {
    let arguments: Vec<String> = std::env::args().collect();
    let at = arguments.iter().position(|a| *a == format!("--{name}"))?;
    arguments.get(at + 1).cloned()
}

fn number(name: &str, default: usize) -> Result<usize, Failure> {
    Ok(text(name).map_or(Ok(default), |text| text.parse())?)
}

fn kind() -> Result<BaselineKind, Failure> {
    let name = text("cell").unwrap_or_else(|| "lstm".to_string());
    let found = BaselineKind::ALL
        .into_iter()
        .find(|kind| kind.name() == name);
    Ok(found.ok_or("no such cell")?)
}

/// CPU seconds of all threads so far.
fn cpu_seconds() -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let each = threads.flatten().filter_map(|thread| {
        let text = std::fs::read_to_string(thread.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    1e-9 * each.sum::<f64>()
}

fn least_and_median(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (1e3 * times[0], 1e3 * times[times.len() / 2])
}

fn main() -> Result<(), Failure> {
    keep_freed_memory();
    let (batch, length) = (number("batch", 32)?, number("len", 20)?);
    let (inputs, hidden) = (number("inputs", 51)?, number("hidden", 256)?);
    let architecture = BaselineArchitecture {
        layer: kind()?,
        hidden,
        layers: number("layers", 3)?,
        inputs: Some(inputs),
        vocabulary: None,
        outputs: 1,
        pooling: PoolingKind::Mean,
        measurements: None,
        output: BaselineOutput::Linear,
        omega1: None,
        omega2: None,
    };
    let network = BaselineNetwork::random(&architecture, 0, DType::F32, &Device::Cpu)?;
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let steps: Vec<f32> = (0..batch * length * inputs)
        .map(|_| random.random::<f32>() - 0.5)
        .collect();
    let input = NetworkInput {
        steps: Tensor::from_vec(steps, (batch, length, inputs), &Device::Cpu)?,
        lengths: None,
    };
    let mut optimiser = AdamW::new(network.parameters(), Recipe::default().optimiser())?;
    let [mut whole, mut forward, mut backward] = [Vec::new(), Vec::new(), Vec::new()];
    let (count, mut cpu) = (number("steps", 10)?, 0.0);
    for step in 0..count + 2 {
        if step == 2 {
            cpu = cpu_seconds();
        }
        let start = Instant::now();
        let out = network.forward(&input, Mode::Train(&mut random))?;
        let loss = out.sqr()?.mean_all()?;
        forward.push(start.elapsed().as_secs_f64());
        let store = loss.backward()?;
        backward.push(start.elapsed().as_secs_f64() - forward[forward.len() - 1]);
        let gradients = Gradients::of(&network, &store)?;
        optimiser.step(&gradients, 1e-3, 1.0)?;
        whole.push(start.elapsed().as_secs_f64());
    }
    let cpu = 1e3 * (cpu_seconds() - cpu) / count as f64;
    let after_warm_up = |times: Vec<f64>| least_and_median(times[2..].to_vec());
    let ((least, median), (forward, _)) = (after_warm_up(whole), after_warm_up(forward));
    let (backward, _) = after_warm_up(backward);
    println!(
        "{{\"cell\": \"{}\", \"hidden\": {hidden}, \"len\": {length}, \"ms\": {least:.2}, \
         \"median\": {median:.2}, \"cpu\": {cpu:.2}, \"forward\": {forward:.2}, \"backward\": {backward:.2}}}",
        architecture.layer.name()
    );
    Ok(())
}
