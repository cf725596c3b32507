//! The synthetic study of the generalisation measure: one linear state space layer learns the sine
//! of the middle value of a Gaussian process from 100 sequences of 1000 steps.
//!
//!     cargo run --release -p compress-model --example lagged_sine -- [SEEDS [PICTURE.svg]]
//!
//! prints the table for all arms and widths of the process, with mean and standard error over the
//! seeds (default 5).
#![allow(clippy::print_stdout, reason = "the program is there to print")]

use candle_core::{DType, Device};
use compress_model::report::{Captions, Curve, curves_with_errors_svg};
use hankelite::advanced::{StepStatistics, layer_measure};
use hankelite::model::{Placement, Sequence};
use hankelite_control::{DiagonalSystem, Time};
use hankelite_data::{Dataset, Source, Split};
use hankelite_train::nn::{
    Architecture, Filter, Initialisation, LayerKind, Normalisation, OutputKind, PoolingKind,
    random_model,
};
use hankelite_train::{
    Composed, FilterPenalty, Recipe, Regularise, Stop, Terms, Training, evaluate,
};
use nalgebra::DMatrix;

type Failure = Box<dyn std::error::Error>;

/// λ of the paper's synthetic study, for both penalties.
const LAMBDA: f64 = 0.01;

/// Widths b of the process.
const WIDTHS: [f64; 3] = [1.0, 0.1, 0.01];

/// How a training is helped.
struct Arm {
    name: &'static str,
    rescale: bool,
    penalty: Option<FilterPenalty>,
    decay: f64,
}

const fn arm(name: &'static str, rescale: bool, penalty: Option<FilterPenalty>) -> Arm {
    Arm {
        name,
        rescale,
        penalty,
        decay: 0.0,
    }
}

const ARMS: [Arm; 7] = [
    arm("neither", false, None),
    arm("rescale", true, None),
    arm("regularise", false, Some(FilterPenalty::Measure)),
    arm("both", true, Some(FilterPenalty::Measure)),
    arm("filter norm", false, Some(FilterPenalty::FilterNorm)),
    Arm {
        decay: 0.1,
        ..arm("decay of poles, 0.1", false, None)
    },
    Arm {
        decay: 10.0,
        ..arm("decay of poles, 10", false, None)
    },
];

/// What one training came to.
#[derive(Clone, Copy)]
struct Figures {
    /// Of the training sequences before the first step.
    initial: f64,
    train: f64,
    test: f64,
    /// τ/√n at the end.
    measure: f64,
}

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1);
    let seeds: u64 = arguments.next().map_or(Ok(5), |text| text.parse())?;
    let picture = arguments.next();
    println!("| b | arm | initial error | train error | test error | τ/√n |");
    println!("|---|---|---|---|---|---|");
    let mut curves: Vec<Curve> = Vec::new();
    let mut errors: Vec<Vec<f64>> = vec![Vec::new(); ARMS.len()];
    for width in WIDTHS {
        for (index, arm) in ARMS.iter().enumerate() {
            let runs = (0..seeds).map(|seed| run(width, arm, seed));
            let runs = runs.collect::<Result<Vec<Figures>, Failure>>()?;
            let column = |get: fn(&Figures) -> f64| mean(&runs.iter().map(get).collect::<Vec<_>>());
            let (test, error) = column(|run| run.test);
            let cells = [
                column(|run| run.initial),
                column(|run| run.train),
                (test, error),
                column(|run| run.measure),
            ];
            let cells = cells.map(|(mean, error)| format!("{mean:.3} ± {error:.3}"));
            println!("| {width} | {} | {} |", arm.name, cells.join(" | "));
            if curves.len() <= index {
                curves.push(Curve {
                    name: arm.name.to_string(),
                    points: Vec::new(),
                });
            }
            curves[index].points.insert(0, (width, test.log10()));
            errors[index].insert(0, error / (test * std::f64::consts::LN_10));
        }
    }
    if let Some(path) = picture {
        let captions = Captions {
            title: "lagged sine: test error, mean and standard error over seeds",
            x: "width b of the process",
            y: "log10 of the mean squared error",
        };
        std::fs::write(path, curves_with_errors_svg(&curves, &errors, &captions))?;
    }
    Ok(())
}

/// Mean and standard error.
fn mean(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0) / count).sqrt())
}

fn run(width: f64, arm: &Arm, seed: u64) -> Result<Figures, Failure> {
    let source: Source = format!("lagged-sine:width={width},seed={seed}").parse()?;
    let train = Dataset::read(&source, Some(Split::Train))?;
    let test = Dataset::read(&source, Some(Split::Test))?;
    let statistics = statistics(&train)?;
    let mut system = start(seed)?;
    if arm.rescale {
        let tau = layer_measure(std::slice::from_ref(&system), &statistics)?.tau;
        system = scaled(&system, 1.0 / tau.sqrt())?;
    }
    let filter = Filter::new(&system, DType::F64, &Device::Cpu)?;
    let initial = evaluate(&filter, &train, 100)?.loss();
    // As in the paper: Δ and A at 1e-3, C at 1e-2 with a decay of 1e-2, 100 steps of all data.
    let recipe = Recipe {
        epochs: Some(100),
        batch: 100,
        lr: 1e-2,
        lr_dynamics: 1e-3,
        weight_decay: 1e-2,
        weight_decay_poles: arm.decay,
        seed,
        ..Recipe::default()
    };
    let training = Training {
        network: &filter,
        data: &train,
        validation: None,
        recipe: &recipe,
    };
    let regularise = arm.penalty.map(|penalty| Regularise {
        penalty,
        weight: LAMBDA,
    });
    let terms = Terms {
        regularise,
        ..Terms::default()
    };
    let mut objective = Composed::new(&filter, &terms, None, 0.0)?;
    training.run(&mut objective, None, &mut (), &Stop::default())?;
    let trained = layer_measure(&[filter.to_system()?], &statistics)?;
    Ok(Figures {
        initial,
        train: evaluate(&filter, &train, 100)?.loss(),
        test: evaluate(&filter, &test, 250)?.loss(),
        measure: trained.per_root(),
    })
}

/// 32 conjugate pairs at the Skew-HiPPO poles, C complex normal, log Δ uniform in
/// [log 0.001, log 0.1], D = 0.
fn start(seed: u64) -> Result<DiagonalSystem, Failure> {
    let model = random_model(&architecture(), 1000, 1000 + seed)?;
    scaled(&model.blocks()[0].systems()[0], 1.0)
}

fn architecture() -> Architecture {
    Architecture {
        layer: LayerKind::S4d,
        initialisation: Some(Initialisation::SkewHippo),
        channels: 1,
        states: 32,
        layers: 1,
        norm: Normalisation::Layer,
        placement: Placement::Pre,
        output: OutputKind::Linear,
        pooling: PoolingKind::Last,
        dropout: 0.0,
        bidirectional: false,
        inputs: Some(1),
        vocabulary: None,
        outputs: 1,
        measurements: None,
        step_min: 0.001,
        step_max: 0.1,
    }
}

/// The same system without feedthrough and with C times a factor.
fn scaled(system: &DiagonalSystem, by: f64) -> Result<DiagonalSystem, Failure> {
    let residues: Vec<_> = system.residues()?.iter().map(|r| r * by).collect();
    let (time, exponents): (Time, Vec<_>) = (system.time(), system.exponents().to_vec());
    Ok(DiagonalSystem::siso(time, exponents, &residues, 0.0)?)
}

/// Mean and deviation of every step over the sequences.
fn statistics(data: &Dataset) -> Result<StepStatistics, Failure> {
    let mut values = DMatrix::zeros(data.len(), data.length());
    for n in 0..data.len() {
        if let Sequence::Values(sequence) = data.sequence(n) {
            for (t, &value) in sequence.iter().enumerate() {
                values[(n, t)] = f64::from(value);
            }
        }
    }
    Ok(StepStatistics::of(&[values])?)
}
