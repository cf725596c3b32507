//! Signals from few measurements: unfolded networks, stacked recurrent cells and a diagonal state
//! space model, full and reduced, all with a trainable measurement in front.
//!
//!     cargo run --release -p compress-model --example reconstruct -- TABLE [--seeds N] [--epochs N] [--picture X.svg]
//!
//! TABLE is `kinds` (every network at one size), `rate` (over the share of measurements), `width`
//! (over the units) or `depth` (over the layers); `--at 0.1,0.3` chooses its columns and
//! `--networks gru,l1-l1,s4d` its rows. Signals are `sparse` (64 numbers, 20 steps, 500 sequences) unless `--data`
//! names another source; `--hidden` and `--rate` are 128 and 0.25. Printed is the ratio of signal to
//! error, 10 log10(Σ s²/Σ (s − ŝ)²) of every test sequence, as mean ± standard error over the seeds,
//! and for films (sources whose values end at 1) the peak signal-to-noise ratio.
#![allow(clippy::print_stdout, reason = "the program is there to print")]

use std::time::Instant;

use candle_core::{DType, Device};
use clap::{Parser, ValueEnum};
use compress_model::report::{Captions, Curve, curves_with_errors_svg};
use hankelite::Reducer;
use hankelite::model::{Model, Sequence};
use hankelite_data::{Dataset, Source, Split, Targets};
use hankelite_train::nn::baseline::{
    BaselineArchitecture, BaselineKind, BaselineNetwork, BaselineOutput,
};
use hankelite_train::nn::{
    Architecture, PoolingKind, SequenceModel, TrainableNetwork, TrainableOptions, random_model,
};
use hankelite_train::{Composed, Recipe, Stop, Terms, Training, keep_freed_memory, logits};

type Failure = Box<dyn std::error::Error>;

/// Stored states of every channel of the state space model, and after reduction.
const STATES: usize = 16;
const REDUCED: usize = 4;
/// What the state space model is called among the networks.
const STATE_SPACE: &str = "s4d";
/// Training sequences that decide what a reduction keeps.
const CALIBRATION: usize = 100;

#[derive(Debug, Clone, Copy, ValueEnum)]
enum Table {
    Kinds,
    Rate,
    Width,
    Depth,
}

#[derive(Debug, Parser)]
struct Arguments {
    #[arg(value_enum)]
    table: Table,
    /// Rates, widths or depths of the columns.
    #[arg(long, value_delimiter = ',')]
    at: Vec<f64>,
    /// Rows; names of a configuration's `layer`.
    #[arg(long, value_delimiter = ',')]
    networks: Vec<String>,
    #[arg(long, default_value = "sparse")]
    data: String,
    #[arg(long, default_value_t = 3)]
    seeds: u64,
    #[arg(long, default_value_t = 40)]
    epochs: u64,
    #[arg(long, default_value_t = 128)]
    hidden: usize,
    #[arg(long, default_value_t = 3)]
    layers: usize,
    #[arg(long, default_value_t = 0.25)]
    rate: f64,
    #[arg(long, default_value_t = 0.003)]
    lr: f64,
    #[arg(long)]
    picture: Option<String>,
}

/// The three parts of a source.
struct Parts {
    train: Dataset,
    validation: Dataset,
    test: Dataset,
}

/// Sizes that a column of a table stands for.
#[derive(Clone, Copy)]
struct Sizes {
    rate: f64,
    hidden: usize,
    layers: usize,
}

/// What is trained.
#[derive(Clone, Copy)]
enum Arm {
    BaselineNetwork(BaselineKind),
    /// S4D layers, trained and then reduced.
    StateSpace,
}

/// What a training gave: for every network that came out of it a number, and its parameters.
struct Found {
    ratios: Vec<f64>,
    parameters: Vec<usize>,
}

fn main() -> Result<(), Failure> {
    keep_freed_memory();
    let arguments = Arguments::parse();
    let parts = parts(&arguments.data)?;
    let columns = columns(&arguments);
    let names: Vec<&str> = columns.iter().map(|(name, _)| name.as_str()).collect();
    println!(
        "| network | {} | parameters, last column | seconds of a training |",
        names.join(" | ")
    );
    println!("|{}", "---|".repeat(columns.len() + 3));
    let (mut curves, mut errors) = (Vec::new(), Vec::new());
    for arm in arms(&arguments)? {
        let start = Instant::now();
        let mut cells = vec![Vec::new(); arm.names().len()];
        let mut parameters = Vec::new();
        for &(_, sizes) in &columns {
            let seeds = (0..arguments.seeds).map(|seed| arm.run(&arguments, sizes, &parts, seed));
            let seeds = seeds.collect::<Result<Vec<Found>, Failure>>()?;
            parameters = seeds[0].parameters.clone();
            for (network, cells) in cells.iter_mut().enumerate() {
                let ratios: Vec<f64> = seeds.iter().map(|found| found.ratios[network]).collect();
                cells.push(mean(&ratios));
            }
        }
        let trainings = columns.len() as f64 * arguments.seeds as f64;
        let seconds = start.elapsed().as_secs_f64() / trainings;
        for ((name, cells), parameters) in arm.names().iter().zip(cells).zip(parameters) {
            let texts: Vec<String> = cells
                .iter()
                .map(|(m, e)| format!("{m:.2} ± {e:.2}"))
                .collect();
            println!(
                "| {name} | {} | {parameters} | {seconds:.0} |",
                texts.join(" | ")
            );
            let points = columns.iter().zip(&cells);
            let points = points.map(|((_, sizes), cell)| (sizes.at(arguments.table), cell.0));
            let points = points.collect();
            curves.push(Curve {
                name: name.clone(),
                points,
            });
            errors.push(cells.iter().map(|cell| cell.1).collect());
        }
    }
    if let Some(path) = &arguments.picture {
        let captions = Captions {
            title: &format!("reconstruction of {}", arguments.data),
            x: match arguments.table {
                Table::Rate => "measurements for each number of the signal",
                Table::Width => "units of every layer",
                Table::Depth | Table::Kinds => "layers",
            },
            y: "decibels, mean and standard error over seeds",
        };
        std::fs::write(path, curves_with_errors_svg(&curves, &errors, &captions))?;
    }
    Ok(())
}

fn parts(source: &str) -> Result<Parts, Failure> {
    let source: Source = source.parse()?;
    Ok(Parts {
        train: Dataset::read(&source, Some(Split::Train))?,
        validation: Dataset::read(&source, Some(Split::Validation))?,
        test: Dataset::read(&source, Some(Split::Test))?,
    })
}

fn columns(arguments: &Arguments) -> Vec<(String, Sizes)> {
    let Arguments {
        rate,
        hidden,
        layers,
        ..
    } = *arguments;
    let one = Sizes {
        rate,
        hidden,
        layers,
    };
    let usual: &[f64] = match arguments.table {
        Table::Kinds => &[layers as f64],
        Table::Rate => &[0.1, 0.2, 0.3, 0.4, 0.5],
        Table::Width => &[64.0, 128.0, 256.0, 512.0],
        Table::Depth => &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
    };
    let chosen = match arguments.at.as_slice() {
        [] => usual,
        at => at,
    };
    let column = |&at: &f64| match arguments.table {
        Table::Rate => (format!("rate {at}"), Sizes { rate: at, ..one }),
        Table::Width => {
            let hidden = at as usize;
            (format!("{hidden} units"), Sizes { hidden, ..one })
        }
        Table::Depth | Table::Kinds => {
            let layers = at as usize;
            (format!("{layers} layers"), Sizes { layers, ..one })
        }
    };
    chosen.iter().map(column).collect()
}

fn arms(arguments: &Arguments) -> Result<Vec<Arm>, Failure> {
    let few = ["gru", "indrnn", "sista", "l1-l1", "reweighted", STATE_SPACE];
    let all = BaselineKind::ALL.iter().map(|kind| kind.name());
    let names: Vec<&str> = match (arguments.networks.as_slice(), arguments.table) {
        ([], Table::Kinds) => all.chain([STATE_SPACE]).collect(),
        ([], _) => few.into(),
        (chosen, _) => chosen.iter().map(String::as_str).collect(),
    };
    names.into_iter().map(arm).collect()
}

fn arm(name: &str) -> Result<Arm, Failure> {
    let kind = BaselineKind::ALL
        .into_iter()
        .find(|kind| kind.name() == name);
    match kind {
        Some(kind) => Ok(Arm::BaselineNetwork(kind)),
        None if name == STATE_SPACE => Ok(Arm::StateSpace),
        None => Err(format!("unknown network {name}").into()),
    }
}

impl Sizes {
    fn at(self, table: Table) -> f64 {
        match table {
            Table::Rate => self.rate,
            Table::Width => self.hidden as f64,
            Table::Depth | Table::Kinds => self.layers as f64,
        }
    }
}

impl Arm {
    fn names(self) -> Vec<String> {
        match self {
            Arm::BaselineNetwork(kind) => vec![kind.name().to_string()],
            Arm::StateSpace => vec![
                format!("S4D, {STATES} states"),
                format!("S4D, {STATES} → {REDUCED} states"),
            ],
        }
    }

    fn run(
        self,
        arguments: &Arguments,
        sizes: Sizes,
        parts: &Parts,
        seed: u64,
    ) -> Result<Found, Failure> {
        match self {
            Arm::BaselineNetwork(kind) => baseline(arguments, kind, sizes, parts, seed),
            Arm::StateSpace => state_space(arguments, sizes, parts, seed),
        }
    }
}

fn measurements(sizes: Sizes, parts: &Parts) -> usize {
    let signal = parts.train.width().unwrap_or(1);
    ((sizes.rate * signal as f64).round() as usize).max(1)
}

fn baseline(
    arguments: &Arguments,
    layer: BaselineKind,
    sizes: Sizes,
    parts: &Parts,
    seed: u64,
) -> Result<Found, Failure> {
    let signal = parts.train.width().unwrap_or(1);
    let architecture = BaselineArchitecture {
        layer,
        hidden: sizes.hidden,
        // Attention has one layer at any depth requested.
        layers: match layer {
            BaselineKind::Transformer => 1,
            _ => sizes.layers,
        },
        inputs: Some(signal),
        vocabulary: None,
        outputs: signal,
        pooling: PoolingKind::None,
        measurements: Some(measurements(sizes, parts)),
        output: BaselineOutput::Dictionary,
        omega1: None,
        omega2: None,
    };
    let network = BaselineNetwork::random(&architecture, seed, DType::F32, &Device::Cpu)?;
    train(&network, arguments, parts, seed)?;
    Ok(Found {
        ratios: vec![ratio(&network, &parts.test)?],
        parameters: vec![network.numbers()],
    })
}

fn state_space(
    arguments: &Arguments,
    sizes: Sizes,
    parts: &Parts,
    seed: u64,
) -> Result<Found, Failure> {
    let signal = parts.train.width().unwrap_or(1);
    let length = parts.train.length();
    let architecture: Architecture = toml::from_str(&format!(
        "layer = \"s4d\"\nchannels = {}\nstates = {STATES}\nlayers = {}\ninputs = {signal}\n\
         outputs = {signal}\npooling = \"none\"\nstep_min = 0.01\nstep_max = 1.0",
        sizes.hidden, sizes.layers
    ))?;
    let model = random_model(&architecture, length, seed)?;
    let options = TrainableOptions::new(length);
    let network = TrainableNetwork::from_model(&model, &options, &Device::Cpu)?;
    let network = network.measured(Some(measurements(sizes, parts)), seed)?;
    train(&network, arguments, parts, seed)?;
    let full = network.to_model()?;
    let small = reduced(&full, parts)?;
    let again = TrainableNetwork::from_model(&small, &options, &Device::Cpu)?;
    // The encoder of the written model is the product of the trained one and its measurement.
    let numbers = |network: &TrainableNetwork| {
        network
            .parameters()
            .iter()
            .map(|p| p.var.elem_count())
            .sum()
    };
    let (before, folded): (usize, usize) = (numbers(&network), numbers(&again));
    let encoder = sizes.hidden * signal;
    let measured = measurements(sizes, parts) * (sizes.hidden + signal);
    Ok(Found {
        ratios: vec![ratio(&network, &parts.test)?, ratio(&again, &parts.test)?],
        parameters: vec![before, folded + measured - encoder],
    })
}

/// The model cut to [`REDUCED`] states, calibrated on the first training sequences.
fn reduced(full: &Model, parts: &Parts) -> Result<Model, Failure> {
    let data = &parts.train;
    let count = data.len().min(CALIBRATION);
    let sequences: Vec<Sequence<'_>> = (0..count).map(|index| data.unpadded(index)).collect();
    let reducer = Reducer::new(full).calibrated(&sequences);
    Ok(reducer.length(data.length()).order(REDUCED).run()?.model)
}

/// As in the paper: the rate is cut to 0.3 where five epochs bring nothing, gradients to 0.25.
fn train(
    network: &dyn SequenceModel,
    arguments: &Arguments,
    parts: &Parts,
    seed: u64,
) -> Result<(), Failure> {
    let recipe: Recipe = toml::from_str(&format!(
        "epochs = {}\nbatch = 32\nlr = {}\nweight_decay = 0.0\nclip = 0.25\nseed = {seed}\n\
         schedule = \"plateau\"\nplateau = 5\nplateau_factor = 0.3",
        arguments.epochs, arguments.lr
    ))?;
    let training = Training {
        network,
        data: &parts.train,
        validation: Some(&parts.validation),
        recipe: &recipe,
    };
    let mut objective = Composed::new(network, &Terms::default(), None, 0.0)?;
    training.run(&mut objective, None, &mut (), &Stop::default())?;
    Ok(())
}

/// Signal over error in decibels, the mean over the sequences; for films the peak, 1, over it.
fn ratio(network: &dyn SequenceModel, data: &Dataset) -> Result<f64, Failure> {
    let Targets::StepValues { values, .. } = data.targets() else {
        return Err("expected a source whose targets are numbers at every step".into());
    };
    let row = values.len() / data.len();
    let film = values.iter().all(|value| (0.0..=1.0).contains(value));
    let mut sum = 0.0;
    for index in 0..data.len() {
        let found = logits(network, data, &[index])?.concat();
        let expected = &values[index * row..(index + 1) * row];
        let pairs = found.iter().zip(expected);
        let error: f64 = pairs.map(|(a, &b)| (a - f64::from(b)).powi(2)).sum();
        let signal: f64 = expected.iter().map(|&s| f64::from(s).powi(2)).sum();
        let peak = if film { row as f64 } else { signal };
        sum += 10.0 * (peak / error).log10();
    }
    Ok(sum / data.len() as f64)
}

/// Mean and standard error.
fn mean(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0) / count).sqrt())
}
