//! One training step of an unfolded network that reconstructs signals from measurements: forward,
//! squared error, backward, AdamW.
//!
//! `cargo bench -p hankelite-train --bench unfolded -- [--net reweighted|l1-l1|sista] [--signal N] [--measurements M]
//! [--hidden H] [--layers K] [--len L] [--batch B] [--steps S]` prints one line of JSON: CPU
//! milliseconds of a step, of all threads together (least and median), wall milliseconds (median),
//! and the least CPU milliseconds of the forward and the backward pass. `RAYON_NUM_THREADS` sets the
//! threads. `benches/unfolded_torch.py` runs it and PyTorch by turns.
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

fn architecture() -> Result<BaselineArchitecture, Failure> {
    let name = text("net").unwrap_or_else(|| "reweighted".to_string());
    let kinds = BaselineKind::ALL.into_iter();
    let mut named = kinds.filter(|kind| kind.is_unfolded() && kind.name() == name);
    let signal = number("signal", 256)?;
    Ok(BaselineArchitecture {
        layer: named.next().ok_or("no such network")?,
        hidden: number("hidden", 1024)?,
        layers: number("layers", 3)?,
        inputs: Some(signal),
        vocabulary: None,
        outputs: signal,
        pooling: PoolingKind::None,
        measurements: Some(number("measurements", 51)?),
        output: BaselineOutput::Dictionary,
        omega1: None,
        omega2: None,
    })
}

/// CPU milliseconds of all threads so far; the wall's where the system does not report it.
fn cpu(start: Instant) -> f64 {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten();
    let times = threads.flatten().filter_map(|task| {
        let text = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<f64>().ok()
    });
    match times.sum::<f64>() {
        0.0 => 1e3 * start.elapsed().as_secs_f64(),
        nanoseconds => 1e-6 * nanoseconds,
    }
}

fn least_and_median(times: &mut [f64]) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}

fn main() -> Result<(), Failure> {
    keep_freed_memory();
    let architecture = architecture()?;
    let (batch, length) = (number("batch", 32)?, number("len", 20)?);
    let (signal, count) = (architecture.signal(), number("steps", 10)?);
    let network = BaselineNetwork::random(&architecture, 0, DType::F32, &Device::Cpu)?;
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let steps = (0..batch * length * signal).map(|_| random.random::<f32>());
    let shape = (batch, length, signal);
    let steps = Tensor::from_vec(steps.collect::<Vec<_>>(), shape, &Device::Cpu)?;
    let input = NetworkInput {
        steps: steps.clone(),
        lengths: None,
    };
    let mut optimiser = AdamW::new(network.parameters(), Recipe::default().optimiser())?;
    let start = Instant::now();
    let [mut whole, mut walls, mut forward, mut backward] = [const { Vec::new() }; 4];
    for step in 0..count + 2 {
        let (wall, begin) = (Instant::now(), cpu(start));
        let out = network.forward(&input, Mode::Train(&mut random))?;
        let loss = (out - &steps)?.sqr()?.mean_all()?;
        let half = cpu(start);
        let store = loss.backward()?;
        let three_quarters = cpu(start);
        let gradients = Gradients::of(&network, &store)?;
        optimiser.step(&gradients, 3e-4, 1.0)?;
        if step >= 2 {
            whole.push(cpu(start) - begin);
            walls.push(1e3 * wall.elapsed().as_secs_f64());
            forward.push(half - begin);
            backward.push(three_quarters - half);
        }
    }
    let ((least, median), (_, wall)) = (least_and_median(&mut whole), least_and_median(&mut walls));
    let ((forward, _), (backward, _)) = (
        least_and_median(&mut forward),
        least_and_median(&mut backward),
    );
    println!(
        "{{\"net\": \"{}\", \"hidden\": {}, \"cpu\": {least:.2}, \"median\": {median:.2}, \"wall\": \
         {wall:.2}, \"forward\": {forward:.2}, \"backward\": {backward:.2}}}",
        architecture.layer.name(),
        architecture.hidden,
    );
    Ok(())
}
