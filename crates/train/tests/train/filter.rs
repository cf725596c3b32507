//! A linear layer alone, and the synthetic study of the generalisation measure.

use candle_core::{DType, Device};
use hankelite::advanced::{StepStatistics, layer_measure};
use hankelite::model::Sequence;
use hankelite_control::DiagonalSystem;
use hankelite_data::{Dataset, Source, Split};
use hankelite_train::nn::{
    Architecture, Filter, Mode, Penalty, SequenceModel, Wanted, random_model,
};
use hankelite_train::{
    Composed, FilterPenalty, Recipe, Regularise, Stop, Terms, Training, evaluate, input,
};
use nalgebra::DMatrix;

/// C times a factor, without D.
fn scaled(system: &DiagonalSystem, by: f64) -> DiagonalSystem {
    let residues: Vec<_> = system.residues().unwrap().iter().map(|r| r * by).collect();
    let (time, poles) = (system.time(), system.exponents().to_vec());
    DiagonalSystem::siso(time, poles, &residues, 0.0).unwrap()
}

fn start(seed: u64) -> DiagonalSystem {
    let text = "layer = \"s4d\"\ninitialisation = \"skew-hippo\"\nchannels = 1\nstates = 32\n\
                layers = 1\ninputs = 1\noutputs = 1";
    let architecture: Architecture = toml::from_str(text).unwrap();
    let model = random_model(&architecture, 1000, 1000 + seed).unwrap();
    scaled(&model.blocks()[0].systems()[0], 1.0)
}

fn read(width: f64, seed: u64, split: Split) -> Dataset {
    let source: Source = format!("lagged-sine:width={width},seed={seed}")
        .parse()
        .unwrap();
    Dataset::read(&source, Some(split)).unwrap()
}

fn values(data: &Dataset) -> DMatrix<f64> {
    let mut values = DMatrix::zeros(data.len(), data.length());
    for n in 0..data.len() {
        let Sequence::Values(sequence) = data.sequence(n) else {
            panic!("numbers were requested");
        };
        for (t, &value) in sequence.iter().enumerate() {
            values[(n, t)] = f64::from(value);
        }
    }
    values
}

#[test]
fn a_filter_gives_its_last_output_and_its_measure() {
    let (data, system) = (read(1.0, 0, Split::Train), start(0));
    let filter = Filter::new(&system, DType::F64, &Device::Cpu).unwrap();
    let batch = data.batch(&(0..100).collect::<Vec<_>>());
    let input = input(&batch, DType::F64, &Device::Cpu).unwrap();
    let traced = |penalty| {
        let wanted = Wanted {
            layers: false,
            penalty: Some(penalty),
        };
        filter.traced(&input, Mode::Evaluate, wanted).unwrap()
    };
    let found = traced(Penalty::Measure);
    let outputs = found
        .outputs
        .flatten_all()
        .unwrap()
        .to_vec1::<f64>()
        .unwrap();
    let (values, kernel) = (values(&data), system.kernel(1000).unwrap());
    for (n, found) in outputs.iter().enumerate() {
        let terms = (0..1000).map(|i| kernel[i] * values[(n, 999 - i)]);
        let expected: f64 = terms.sum();
        assert!((found - expected).abs() < 1e-10, "{n}: {found} {expected}");
    }
    let number = |penalty| traced(penalty).penalties.unwrap().to_vec1::<f64>().unwrap()[0];
    let statistics = StepStatistics::of(&[values]).unwrap();
    let tau = layer_measure(std::slice::from_ref(&system), &statistics)
        .unwrap()
        .tau;
    assert!((number(Penalty::Measure) / tau - 1.0).abs() < 1e-10);
    // ‖k‖₁²: τ of an input with mean 0 and variance 1.
    let norm = kernel.iter().map(|k| k.abs()).sum::<f64>().powi(2);
    assert!((number(Penalty::FilterNorm) / norm - 1.0).abs() < 1e-10);
    let back = filter.to_system().unwrap();
    assert_eq!(back, system);
}

/// Mean |y| before training, and the test error after it.
fn trained(width: f64, seed: u64, (rescale, regularise): (bool, bool)) -> (f64, f64) {
    let (train, test) = (
        read(width, seed, Split::Train),
        read(width, seed, Split::Test),
    );
    let statistics = StepStatistics::of(&[values(&train)]).unwrap();
    let mut system = start(seed);
    if rescale {
        let measure = layer_measure(std::slice::from_ref(&system), &statistics);
        system = scaled(&system, 1.0 / measure.unwrap().tau.sqrt());
    }
    let filter = Filter::new(&system, DType::F64, &Device::Cpu).unwrap();
    let all = train.batch(&(0..100).collect::<Vec<_>>());
    let all = input(&all, DType::F64, &Device::Cpu).unwrap();
    let outputs = filter.forward(&all, Mode::Evaluate).unwrap();
    let size = outputs.abs().unwrap().mean_all().unwrap();
    let recipe = Recipe {
        epochs: Some(100),
        batch: 100,
        lr: 1e-2,
        lr_dynamics: 1e-3,
        weight_decay: 1e-2,
        ..Recipe::default()
    };
    let terms = Terms {
        regularise: regularise.then_some(Regularise {
            penalty: FilterPenalty::Measure,
            weight: 0.01,
        }),
        ..Terms::default()
    };
    let training = Training {
        network: &filter,
        data: &train,
        validation: None,
        recipe: &recipe,
    };
    let mut objective = Composed::new(&filter, &terms, None, 0.0).unwrap();
    training
        .run(&mut objective, None, &mut (), &Stop::default())
        .unwrap();
    let loss = evaluate(&filter, &test, 250).unwrap().loss();
    (size.to_scalar::<f64>().unwrap(), loss)
}

/// Liu and Li, Table 1: both helps have the least test error, rescaling alone comes next; the
/// figures for both are 0.18, 0.59 and 0.60. No linear model can be better than the floors.
#[test]
fn rescaling_and_the_regulariser_lower_the_test_error_as_published() {
    let cases = [
        (1.0, 0.0709, 0.15..0.22),
        (0.1, 0.4917, 0.49..0.68),
        (0.01, 0.5, 0.50..0.68),
    ];
    for (width, floor, published) in cases {
        let mean = |arm: (bool, bool)| {
            let runs: Vec<(f64, f64)> = (0..3).map(|seed| trained(width, seed, arm)).collect();
            for &(size, loss) in &runs {
                assert!(!arm.0 || size <= 1.0, "b = {width}: {size} before training");
                assert!(loss > 0.9 * floor, "b = {width}: {loss}");
            }
            runs.iter().map(|run| run.1).sum::<f64>() / 3.0
        };
        let (neither, rescaled, both) = (
            mean((false, false)),
            mean((true, false)),
            mean((true, true)),
        );
        assert!(
            both < rescaled && rescaled < neither,
            "{width}: {both} {rescaled} {neither}"
        );
        assert!(published.contains(&both), "{width}: {both}");
    }
}
