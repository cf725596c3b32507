//! One step of a streamed model: H channels, 6 layers, pre-norm, against the time that the same
//! bytes take to be read.
//!
//!     cargo bench -p compress-model --bench stream -- [CHANNELS [PAIRS]] [PICTURE.svg]
//!
//! Without PAIRS of states: 32, 16, 8, 4 and 2. A picture shows
//! the medians over the states with gated maps, and a second one the bytes.
#![allow(clippy::print_stdout, reason = "a benchmark prints what it measured")]

use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use compress_model::report::{Captions, Curve, curves_svg};
use hankelite::advanced::read_nanoseconds;
use hankelite::model::{
    Block, BlockParts, Encoder, Gate, Head, LayerNorm, Linear, Model, ModelParts, Nonlinearity,
    Norm, OutputLinear, Placement,
};
use hankelite::rounding::{Entries, GROUP, Numbers, Storage};
use hankelite::stream::{Image, Runner};
use hankelite_control::{DiagonalSystem, Time};
use nalgebra::DMatrix;
use num_complex::Complex64;

const LAYERS: usize = 6;
const STEPS: usize = 2000;
const ROUNDS: usize = 7;

/// What a row of the table measures.
struct Setting {
    channels: usize,
    modes: usize,
    gated: bool,
    entries: Entries,
    numbers: Numbers,
    streams: usize,
}

fn wave(k: usize) -> f64 {
    (1.7 * k as f64).sin()
}

fn linear(inputs: usize, outputs: usize) -> Linear {
    let scale = 1.0 / (inputs as f64).sqrt();
    let weight = DMatrix::from_fn(inputs, outputs, |i, j| scale * wave(i * outputs + j));
    Linear {
        weight: Arc::new(weight),
        bias: Some(vec![0.01; outputs]),
    }
}

fn model(channels: usize, modes: usize, gated: bool) -> Model {
    let system = |h: usize| {
        let exponents = (0..modes).map(|n| Complex64::new(-0.5, n as f64));
        let residues = (0..modes).map(|n| Complex64::new(wave(h + n), wave(h + 2 * n)));
        let step = 0.001 * 1.02f64.powi(h as i32);
        let residues: Vec<Complex64> = residues.map(|r| 0.1 * r).collect();
        let time = Time::Discrete { step };
        DiagonalSystem::siso(time, exponents.collect(), &residues, wave(h)).expect("finite")
    };
    let block = |index: usize| {
        Block::new(BlockParts {
            name: format!("layers.{index}"),
            systems: (0..channels).map(system).collect(),
            backward: Vec::new(),
            backward_from: 1,
            holds_feedthrough: true,
            class: None,
            activation: Nonlinearity::Gelu,
            output: Some(OutputLinear {
                linear: linear(channels, if gated { 2 * channels } else { channels }),
                gate: if gated { Gate::Halves } else { Gate::None },
            }),
            norm: Some((
                Norm::Layer(LayerNorm {
                    weight: vec![1.0; channels],
                    bias: vec![0.0; channels],
                    epsilon: 1e-5,
                }),
                Placement::Pre,
            )),
        })
        .expect("the parts fit")
    };
    Model::new(ModelParts {
        encoder: Some(Encoder::Linear(linear(1, channels))),
        blocks: (0..LAYERS).map(block).collect(),
        final_norm: None,
        head: Some(Head {
            pooling: None,
            linear: linear(channels, 10),
        }),
    })
    .expect("the parts fit")
}

/// Microseconds of a step: median and 99th percentile of single steps, and the mean without a clock
/// between them.
fn measure(runner: &mut Runner) -> [f64; 3] {
    let inputs: Vec<f32> = (0..runner.streams()).map(|k| wave(k) as f32).collect();
    let mut times = Vec::with_capacity(STEPS);
    let start = Instant::now();
    for _ in 0..STEPS {
        black_box(
            runner
                .step(black_box(&inputs))
                .expect("one input for each stream"),
        );
    }
    let mean = start.elapsed().as_secs_f64() * 1e6 / STEPS as f64;
    for _ in 0..STEPS {
        let start = Instant::now();
        black_box(
            runner
                .step(black_box(&inputs))
                .expect("one input for each stream"),
        );
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    [times[STEPS / 2], times[STEPS * 99 / 100], mean]
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let numbers = arguments.iter().filter_map(|text| text.parse().ok());
    let numbers: Vec<usize> = numbers.collect();
    let picture = arguments.iter().find(|text| text.ends_with(".svg"));
    let channels = numbers.first().copied().unwrap_or(256);
    let pairs = match numbers.get(1) {
        Some(&pairs) => vec![pairs],
        None => vec![32, 16, 8, 4, 2],
    };
    let (mut curves, mut sizes) = (Vec::new(), Vec::new());
    println!("{channels} channels, {LAYERS} layers; microseconds, best round of {ROUNDS}");
    println!(
        "mixing  entries  numbers  pairs  streams   bytes     floor   median  p99   mean  median/floor"
    );
    for gated in [false, true] {
        for entries in Entries::ALL {
            let of = |modes| Setting {
                channels,
                modes,
                gated,
                entries,
                numbers: Numbers::F32,
                streams: 1,
            };
            let rows = pairs.iter().map(|&modes| {
                let [bytes, median] = row(of(modes));
                [modes as f64, median, bytes / 1024.0]
            });
            let rows: Vec<[f64; 3]> = rows.collect();
            if entries == Entries::Full {
                let streams = 4;
                row(Setting { streams, ..of(4) });
            } else if entries.bits().is_some() {
                let numbers = Numbers::F16;
                row(Setting { numbers, ..of(4) });
            }
            if gated {
                let entries = format!("{entries:?}").to_lowercase();
                curves.push(curve(&entries, &rows, 1));
                sizes.push(curve(&entries, &rows, 2));
            }
        }
    }
    if let Some(path) = picture {
        let title = format!("One step of {LAYERS} gated layers of {channels} channels");
        draw(path, &curves, &title, "microseconds");
        let title = format!("Weights and state of {LAYERS} gated layers of {channels} channels");
        draw(&path.replace(".svg", "-bytes.svg"), &sizes, &title, "KiB");
    }
}

fn draw(path: &str, curves: &[Curve], title: &str, y: &str) {
    let x = "pairs of states of each channel";
    let picture = curves_svg(curves, &[], &Captions { title, x, y }, None);
    std::fs::write(path, picture).expect("the picture's folder");
}

fn curve(entries: &str, rows: &[[f64; 3]], column: usize) -> Curve {
    let points = rows.iter().map(|row| (row[0], row[column])).collect();
    let name = format!("{entries} maps");
    Curve { name, points }
}

/// Bytes and the median of a step.
fn row(setting: Setting) -> [f64; 2] {
    let Setting {
        channels,
        modes,
        gated,
        entries,
        numbers,
        streams,
    } = setting;
    let model = model(channels, modes, gated);
    let storage = Storage::nearest(&model, entries, GROUP).expect("finite");
    let storage = storage.with_numbers(numbers);
    let image = Image::packed(&model, &storage).expect("a causal model");
    let runner = Runner::from_image(image).and_then(|runner| runner.with_streams(streams));
    let mut runner = runner.expect("an image of our own");
    let bytes = runner.weight_bytes() + runner.state_bytes();
    let (mut best, mut floor) = ([f64::INFINITY; 3], f64::INFINITY);
    for _ in 0..ROUNDS {
        floor = floor.min(read_nanoseconds(bytes) * 1e-3);
        let times = measure(&mut runner);
        if times[0] < best[0] {
            best = times;
        }
    }
    println!(
        "{:6}  {:7}  {:7}  {modes:5}  {streams:7}  {bytes:8}  {floor:6.2}  {:6.2}  {:6.2}  {:6.2}  {:.2}",
        if gated { "gated" } else { "plain" },
        format!("{entries:?}").to_lowercase(),
        format!("{numbers:?}").to_lowercase(),
        best[0],
        best[1],
        best[2],
        best[0] / floor
    );
    [bytes as f64, best[0]]
}
