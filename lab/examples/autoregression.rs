//! AR(lag): validation loss and the norm of the mean Jacobian of the shallow transformer, the
//! IndRNN and a diagonal state space model, full and reduced, against the lag.
//!
//!     cargo run --release -p compress-model --example autoregression -- [SEEDS [FOLDER]]
//!
//! prints the tables of docs/lab/autoregression.md and writes its two pictures into the folder.
#![allow(clippy::print_stdout, reason = "the program is there to print")]

use candle_core::Device;
use compress_model::report::{Captions, Curve, curves_with_errors_svg};
use hankelite::Reducer;
use hankelite::model::{Model, Placement, Sequence};
use hankelite_data::{Dataset, Source, Split};
use hankelite_research::shallow::{
    Activation, Descent, IndRnn, Query, Samples, Transformer, TransformerSize, Units, descend,
    loss, mean_gradient,
};
use hankelite_train::nn::{
    Architecture, Group, Initialisation, LayerKind, Mode, Normalisation, OutputKind, PoolingKind,
    SequenceModel, TrainableNetwork, TrainableOptions,
};
use hankelite_train::{
    Examples, Loss, Objective, Recipe, Stop, Task, TrainError, Training, evaluate,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

type Failure = Box<dyn std::error::Error + Send + Sync>;

const LAGS: [usize; 3] = [2, 8, 24];
const SCALES: [f64; 2] = [1.0, 0.28];

/// Training and validation windows, and steps.
const WINDOWS: usize = 400;
const STEPS: usize = 400;

/// Steps from one look at validation loss and Jacobian to the next.
const EVERY: usize = 5;

/// d, units of transformer and IndRNN, and γ.
const WIDTH: usize = 17;
const UNITS: usize = 64;
const GAMMA: f64 = 1.0;

/// Channels of the state space layer, its modes, and those that are left.
const CHANNELS: usize = 8;
const STATES: usize = 16;
const REDUCED: usize = 4;

/// What is measured of one set of windows: the least validation losses, and the largest norms of the
/// mean Jacobian.
#[derive(Clone, Copy)]
struct Figures {
    /// Of always answering 0.
    zero: f64,
    /// Transformer, IndRNN, state space model, reduced, reduced and trained on.
    losses: [f64; 5],
    /// Transformer by W, IndRNN by w, state space model by its poles, the same reduced while it is
    /// trained on.
    jacobians: [f64; 4],
}

const MODELS: [&str; 5] = [
    "transformer",
    "IndRNN",
    "S4D, 16 modes",
    "reduced to 4",
    "and trained on",
];

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let seeds: u64 = arguments.next().map_or(Ok(3), |text| text.parse())?;
    let folder = arguments.next();
    let rows = SCALES
        .iter()
        .flat_map(|&scale| LAGS.map(|lag| (scale, lag)));
    let runs: Vec<(f64, usize, u64)> = rows
        .clone()
        .flat_map(|(scale, lag)| (0..seeds).map(move |seed| (scale, lag, seed)))
        .collect();
    let figures = runs
        .par_iter()
        .map(|&(scale, lag, seed)| run(scale, lag, seed));
    let figures = figures.collect::<Result<Vec<Figures>, Failure>>()?;
    let figures = figures.chunks_exact(seeds.max(1) as usize);
    let table: Vec<_> = rows
        .zip(figures)
        .map(|((scale, lag), figures)| (scale, lag, figures.to_vec()))
        .collect();
    print_losses(&table);
    print_jacobians(&table);
    print_memory();
    match folder {
        Some(folder) => draw(&table, &folder),
        None => Ok(()),
    }
}

type Table = [(f64, usize, Vec<Figures>)];

fn run(scale: f64, lag: usize, seed: u64) -> Result<Figures, Failure> {
    let source: Source =
        format!("ar:lag={lag},scale={scale},count={WINDOWS},held_out={WINDOWS},seed={seed}")
            .parse()?;
    let train = Dataset::read(&source, Some(Split::Train))?;
    let held_out = Dataset::read(&source, Some(Split::Test))?;
    let (samples, validation) = (Samples::of(&train)?, Samples::of(&held_out)?);
    let size = TransformerSize {
        units: UNITS,
        width: WIDTH,
    };
    let transformer = Transformer::symmetric(size, Query::Last, Activation::Tanh, seed)?;
    let indrnn = IndRnn::symmetric(size, GAMMA, Activation::Tanh, seed)?;
    let transformer = shallow(transformer, &samples, &validation)?;
    let indrnn = shallow(indrnn, &samples, &validation)?;
    let space = state_space((&train, &held_out), seed)?;
    let squares = validation.labels().iter().map(|y| y * y);
    Ok(Figures {
        zero: squares.sum::<f64>() / WINDOWS as f64,
        losses: [transformer.0, indrnn.0, space[0].0, space[1].0, space[2].0],
        jacobians: [transformer.1, indrnn.1, space[0].1, space[2].1],
    })
}

/// The least validation loss and the largest ‖mean ∇_W f‖ over the steps of plain descent with
/// lr = 1/√steps.
fn shallow<M: Units>(
    mut model: M,
    samples: &Samples,
    validation: &Samples,
) -> Result<(f64, f64), Failure> {
    let (mut least, mut largest) = (f64::INFINITY, 0.0f64);
    let mut watch = |step: usize, model: &M| {
        if !step.is_multiple_of(EVERY) {
            return;
        }
        let jacobian = mean_gradient(model, samples);
        let square: f64 = jacobian.group(2).iter().map(|value| value * value).sum();
        largest = largest.max(square.sqrt());
        least = least.min(loss(model, validation));
    };
    let descent = Descent::theory(STEPS, None);
    descend(&mut model, samples, &descent, &mut watch)?;
    Ok((least.min(loss(&model, validation)), largest))
}

/// The loss of the task, with a look at the Jacobian by the poles now and then.
#[derive(Default)]
struct Watched {
    task: Task,
    steps: usize,
    largest: f64,
}

impl Objective for Watched {
    fn loss(
        &mut self,
        network: &dyn SequenceModel,
        examples: &Examples,
        mode: Mode<'_>,
    ) -> Result<Loss, TrainError> {
        if self.steps.is_multiple_of(EVERY) {
            // Without dropout nothing is drawn; evaluation alone keeps no gradients.
            let mut random = ChaCha8Rng::seed_from_u64(0);
            let mean = network.forward(&examples.input, Mode::Train(&mut random))?;
            let mean = mean.mean_all()?;
            let gradients = mean.backward()?;
            let mut square = 0.0;
            let poles = network.parameters().iter();
            for parameter in poles.filter(|parameter| parameter.group == Group::Poles) {
                let Some(gradient) = gradients.get(&parameter.var) else {
                    let parameter = parameter.name.clone();
                    return Err(TrainError::NoGradient { parameter });
                };
                let sum = gradient.sqr()?.sum_all()?;
                square += f64::from(sum.to_scalar::<f32>()?);
            }
            self.largest = self.largest.max(square.sqrt());
        }
        self.steps += 1;
        self.task.loss(network, examples, mode)
    }
}

/// Validation loss and largest Jacobian of the full network, of the reduced one as it comes, and
/// after a quarter of the steps more.
fn state_space(data: (&Dataset, &Dataset), seed: u64) -> Result<[(f64, f64); 3], Failure> {
    let length = data.0.length();
    let network = TrainableNetwork::random(&architecture(), length, seed, &Device::Cpu)?;
    let full = train(&network, data, (STEPS, 0.01), seed)?;
    let reduced = reduced(&network.to_model()?, data.0)?;
    let network =
        TrainableNetwork::from_model(&reduced, &TrainableOptions::new(length), &Device::Cpu)?;
    let before = evaluate(&network, data.1, WINDOWS)?.loss();
    let after = train(&network, data, (STEPS / 4, 0.003), seed)?;
    Ok([full, (before, 0.0), after])
}

/// The model cut to [`REDUCED`] modes, calibrated on the training windows.
fn reduced(full: &Model, data: &Dataset) -> Result<Model, Failure> {
    let windows: Vec<Sequence<'_>> = (0..data.len()).map(|index| data.sequence(index)).collect();
    let reducer = Reducer::new(full).calibrated(&windows);
    Ok(reducer.length(data.length()).order(REDUCED).run()?.model)
}

/// Trains by AdamW with all windows in each step; the network ends at its least validation loss.
fn train(
    network: &TrainableNetwork,
    (data, held_out): (&Dataset, &Dataset),
    (steps, lr): (usize, f64),
    seed: u64,
) -> Result<(f64, f64), Failure> {
    let recipe = Recipe {
        epochs: Some(steps as u64),
        batch: WINDOWS,
        lr,
        lr_dynamics: 0.3 * lr,
        seed,
        ..Recipe::default()
    };
    let training = Training {
        network,
        data,
        validation: Some(held_out),
        recipe: &recipe,
    };
    let mut watched = Watched::default();
    training.run(&mut watched, None, &mut (), &Stop::default())?;
    Ok((
        evaluate(network, held_out, WINDOWS)?.loss(),
        watched.largest,
    ))
}

fn architecture() -> Architecture {
    Architecture {
        layer: LayerKind::S4d,
        initialisation: Some(Initialisation::SkewHippo),
        channels: CHANNELS,
        states: STATES,
        layers: 1,
        norm: Normalisation::Layer,
        placement: Placement::Pre,
        output: OutputKind::Glu,
        pooling: PoolingKind::Last,
        dropout: 0.0,
        bidirectional: false,
        measurements: None,
        inputs: Some(WIDTH),
        vocabulary: None,
        outputs: 1,
        step_min: 0.02,
        step_max: 0.5,
    }
}

/// Mean and standard error.
fn mean(values: impl Iterator<Item = f64>) -> (f64, f64) {
    let values: Vec<f64> = values.collect();
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0) / count).sqrt())
}

fn shown((mean, error): (f64, f64)) -> String {
    format!("{mean:.3} ± {error:.3}")
}

fn print_losses(table: &Table) {
    println!("| token scale | lag | always 0 | {} |", MODELS.join(" | "));
    println!("|{}", "---|".repeat(MODELS.len() + 3));
    for (scale, lag, runs) in table {
        let zero = shown(mean(runs.iter().map(|run| run.zero)));
        let cells = (0..5).map(|model| shown(mean(runs.iter().map(|run| run.losses[model]))));
        let cells: Vec<String> = cells.collect();
        println!("| {scale} | {lag} | {zero} | {} |", cells.join(" | "));
    }
    println!();
}

fn print_jacobians(table: &Table) {
    let heads = "transformer, by W | IndRNN, by w | S4D, by its poles | S4D, 4 modes";
    println!("| token scale | lag | {heads} | transformer / IndRNN |");
    println!("|---|---|---|---|---|---|---|");
    for (scale, lag, runs) in table {
        let cells = (0..4).map(|model| shown(mean(runs.iter().map(|run| run.jacobians[model]))));
        let cells: Vec<String> = cells.collect();
        let ratio = mean(runs.iter().map(|run| run.jacobians[0] / run.jacobians[1]));
        println!(
            "| {scale} | {lag} | {} | {} |",
            cells.join(" | "),
            shown(ratio)
        );
    }
    println!();
}

/// Numbers that a model carries from one token to the next.
fn print_memory() {
    println!("| lag | transformer, (lag + 1) d | IndRNN, m | S4D, 2 H N | S4D, 4 modes |");
    println!("|---|---|---|---|---|");
    for lag in LAGS {
        let (full, reduced) = (2 * CHANNELS * STATES, 2 * CHANNELS * REDUCED);
        println!(
            "| {lag} | {} | {UNITS} | {full} | {reduced} |",
            (lag + 1) * WIDTH
        );
    }
}

/// Curves of one figure over the lags, for every model and scale.
fn curves(
    table: &Table,
    names: &[&str],
    figure: impl Fn(&[Figures], usize) -> (f64, f64),
) -> (Vec<Curve>, Vec<Vec<f64>>) {
    let (mut curves, mut bars) = (Vec::new(), Vec::new());
    for scale in SCALES {
        for (index, name) in names.iter().enumerate() {
            let rows = || table.iter().filter(|row| row.0 == scale);
            let points = rows().map(|(_, lag, runs)| (*lag as f64, figure(runs, index).0));
            curves.push(Curve {
                name: format!("{name}, tokens × {scale}"),
                points: points.collect(),
            });
            bars.push(rows().map(|(_, _, runs)| figure(runs, index).1).collect());
        }
    }
    (curves, bars)
}

fn draw(table: &Table, folder: &str) -> Result<(), Failure> {
    let loss = |runs: &[Figures], model: usize| mean(runs.iter().map(|run| run.losses[model]));
    let (mut lines, bars) = curves(table, &MODELS, loss);
    for (name, value) in [("always 0", 0.1 / 0.19), ("no answer is better", 0.1)] {
        lines.push(Curve {
            name: name.to_string(),
            points: LAGS.map(|lag| (lag as f64, value)).to_vec(),
        });
    }
    let captions = Captions {
        title: "AR(lag): least validation loss, mean and standard error over seeds",
        x: "lag",
        y: "mean squared error",
    };
    let picture = curves_with_errors_svg(&lines, &bars, &captions);
    std::fs::write(format!("{folder}/autoregression-loss.svg"), picture)?;
    let jacobian = |runs: &[Figures], model: usize| {
        let (mean, error) = mean(runs.iter().map(|run| run.jacobians[model]));
        (mean.log10(), error / (mean * std::f64::consts::LN_10))
    };
    let names = [
        "transformer, W",
        "IndRNN, w",
        "S4D, poles",
        "S4D 4 modes, poles",
    ];
    let (lines, bars) = curves(table, &names, jacobian);
    let captions = Captions {
        title: "AR(lag): largest norm of the mean Jacobian over the steps",
        x: "lag",
        y: "log10 of the norm",
    };
    let picture = curves_with_errors_svg(&lines, &bars, &captions);
    std::fs::write(format!("{folder}/autoregression-jacobian.svg"), picture)?;
    Ok(())
}
