//! One training step: forward, cross entropy, backward, AdamW.
//!
//! `cargo bench -p hankelite-train --bench train_step -- [--family F] [--h H] [--n N] [--layers K] [--len L]
//! [--batch B] [--steps S] [--warmup W] [--classes C] [--glu] [--postnorm] [--penalty]` prints one line
//! of JSON: wall seconds per step, CPU seconds of all threads and of the calling thread alone (median,
//! least, largest), and the peak of resident memory. With `--penalty` every second step has the sum of
//! the generalisation measures of all layers in its loss; its CPU seconds, and their median over that
//! of the other steps, are printed too; with `--filter-norm` the filter norms
//! stand in their place.
//! With `--cuda`, in a build with that feature, the step runs on the first GPU, and wall time is that until
//! the device is done.
//! Families: `s4d` (N/2 stored pairs), `dss_exp`, `dss_softmax` (N modes). `RAYON_NUM_THREADS`
//! sets the threads; it is read when the pool starts.
#![allow(clippy::print_stdout, reason = "the program is there to print")]

use std::time::Instant;

use candle_core::{Device, Tensor};
use hankelite::model::Placement;
use hankelite_train::nn::{
    Architecture, LayerKind, Mode, NetworkInput, Normalisation, OutputKind, Penalty, PoolingKind,
    SequenceModel, TrainableNetwork, Wanted,
};
use hankelite_train::{AdamW, AdamWSettings, Gradients, keep_freed_memory};
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

fn number(name: &str, default: usize) -> Result<usize, Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    match arguments.iter().position(|a| *a == format!("--{name}")) {
        Some(at) => Ok(arguments.get(at + 1).ok_or("a value is missing")?.parse()?),
        None => Ok(default),
    }
}

fn flag(name: &str) -> bool {
    std::env::args().any(|argument| argument == format!("--{name}"))
}

fn family() -> Result<LayerKind, Failure> {
    let arguments: Vec<String> = std::env::args().collect();
    let at = arguments.iter().position(|a| a == "--family");
    match at.and_then(|at| arguments.get(at + 1)).map(String::as_str) {
        Some("s4d") => Ok(LayerKind::S4d),
        None | Some("dss_exp") => Ok(LayerKind::DssExp),
        Some("dss_softmax") => Ok(LayerKind::DssSoftmax),
        Some(other) => Err(format!("no family `{other}`").into()),
    }
}

fn architecture() -> Result<Architecture, Failure> {
    let layer = family()?;
    let stored = number("n", 16)?;
    Ok(Architecture {
        layer,
        initialisation: None,
        channels: number("h", 16)?,
        states: if layer == LayerKind::S4d {
            stored / 2
        } else {
            stored
        },
        layers: number("layers", 4)?,
        norm: Normalisation::Layer,
        placement: if flag("postnorm") {
            Placement::Post
        } else {
            Placement::Pre
        },
        output: if flag("glu") {
            OutputKind::Glu
        } else {
            OutputKind::Linear
        },
        pooling: PoolingKind::Mean,
        dropout: 0.0,
        bidirectional: false,
        inputs: Some(1),
        vocabulary: None,
        outputs: number("classes", 10)?,
        measurements: None,
        step_min: 1e-3,
        step_max: 1e-1,
    })
}

/// CPU seconds so far: of all threads, and of the calling one, which works alone wherever the
/// step is not shared out.
fn cpu_seconds() -> (f64, f64) {
    let seconds = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path).ok()?;
        let nanoseconds: f64 = text.split_whitespace().next()?.parse().ok()?;
        Some(nanoseconds * 1e-9)
    };
    let threads = std::fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let each = threads.filter_map(|task| seconds(task.path().join("schedstat")));
    let own = seconds("/proc/thread-self/schedstat".into());
    (each.sum(), own.unwrap_or(0.0))
}

/// The peak of resident memory in MiB.
fn peak_mib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    number.unwrap_or(0.0) / 1024.0
}

fn penalty() -> Penalty {
    match (flag("filter-norm"), flag("hankel")) {
        (true, _) => Penalty::FilterNorm,
        (_, true) => Penalty::Hankel,
        _ => Penalty::Measure,
    }
}

fn median(times: &[f64]) -> f64 {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Median, least and largest.
fn summary(times: Vec<f64>) -> String {
    let least = times.iter().copied().fold(f64::INFINITY, f64::min);
    let most = times.iter().copied().fold(0.0, f64::max);
    let median = median(&times);
    format!("{{\"median\": {median:.5}, \"min\": {least:.5}, \"max\": {most:.5}}}")
}

/// Random steps and labels.
fn data(
    random: &mut ChaCha8Rng,
    (batch, length): (usize, usize),
    classes: usize,
    device: &Device,
) -> Result<(NetworkInput, Tensor), Failure> {
    let steps = (0..batch * length).map(|_| random.random::<f32>() - 0.5);
    let steps = Tensor::from_vec(steps.collect::<Vec<_>>(), (batch, length, 1), device)?;
    let labels = (0..batch).map(|_| random.random_range(0..classes as u32));
    let labels = Tensor::from_vec(labels.collect::<Vec<u32>>(), batch, device)?;
    let lengths = None;
    Ok((NetworkInput { steps, lengths }, labels))
}

fn main() -> Result<(), Failure> {
    keep_freed_memory();
    let architecture = architecture()?;
    let (batch, length) = (number("batch", 16)?, number("len", 2048)?);
    let base = peak_mib();
    let device = match flag("cuda") {
        true => Device::new_cuda(0)?,
        false => Device::Cpu,
    };
    let network = TrainableNetwork::random(&architecture, length, 0, &device)?;
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let (input, labels) = data(&mut random, (batch, length), architecture.outputs, &device)?;
    let mut optimiser = AdamW::new(network.parameters(), SETTINGS)?;
    let (mut cpu, mut alone, mut wall) = (Vec::new(), Vec::new(), Vec::new());
    let mut penalised = Vec::new();
    let warmup = number("warmup", 2)?;
    let kinds = 1 + usize::from(flag("penalty"));
    for step in 0..warmup + kinds * number("steps", 7)? {
        let wanted = Wanted {
            layers: false,
            penalty: (step % kinds == 1).then(penalty),
        };
        let (start, cpu_start) = (Instant::now(), cpu_seconds());
        let traced = network.traced(&input, Mode::Train(&mut random), wanted)?;
        let mut loss = candle_nn::loss::cross_entropy(&traced.outputs, &labels)?;
        if let Some(penalties) = traced.penalties {
            loss = (loss + (penalties.sum_all()? * 1e-4)?)?;
        }
        let gradients = Gradients::of(&network, &loss.backward()?)?;
        optimiser.step(&gradients, 1.0, 1.0)?;
        device.synchronize()?;
        if step >= warmup && wanted.penalty.is_some() {
            penalised.push(cpu_seconds().0 - cpu_start.0);
        } else if step >= warmup {
            wall.push(start.elapsed().as_secs_f64());
            let cpu_end = cpu_seconds();
            cpu.push(cpu_end.0 - cpu_start.0);
            alone.push(cpu_end.1 - cpu_start.1);
        }
    }
    let penalty = match penalised.is_empty() {
        true => String::new(),
        false => {
            let ratio = median(&penalised) / median(&cpu);
            let cpu = summary(penalised);
            format!(", \"penalty_cpu\": {cpu}, \"penalty_ratio\": {ratio:.4}")
        }
    };
    println!(
        "{{\"threads\": {}, \"wall\": {}, \"cpu\": {}, \"alone\": {}, \"rss_train_mib\": {:.0}, \
         \"rss_base_mib\": {base:.0}{penalty}}}",
        rayon::current_num_threads(),
        summary(wall),
        summary(cpu),
        summary(alone),
        peak_mib(),
    );
    Ok(())
}
