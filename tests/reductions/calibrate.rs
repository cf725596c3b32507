//! Reduction for the inputs of the layers of a network, through the whole network.

use std::path::Path;
use std::sync::{Arc, Mutex};

use crate::common::shared;
use crate::models::{change_layer, changed, linear_encoder, with_systems};
use hankelite::advanced::{
    Calibrated, CalibratedReduction, CalibrationRun, Settings, WeightChoice, importance,
    input_statistics, layer_inputs,
};
use hankelite::calibrate::{CalibrateError, Calibration, Importance, Known, TargetSize};
use hankelite::compress::{Allocation, Method};
use hankelite::infer::{InferError, Network, Path as Run, Score};
use hankelite::model::{
    Block, BlockParts, Encoder, Gate, Head, LayerNorm, Linear, Model, ModelParts, Nonlinearity,
    Norm, OutputLinear, Placement, Pooling, Sequence,
};
use hankelite::target::{TargetError, WholeSize};
use hankelite::{Declared, Plan, ProgressSink, Reducer, Rule, read, reduce};
use hankelite_archive::{Archive, ArchiveError, Dtype, RawTensor, write_arrays};
use hankelite_control::{DiagonalSystem, InputWeight, Refinement, Time};
use hankelite_data::{Dataset, Source, Split};
use nalgebra::DMatrix;
use num_complex::Complex64;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const LENGTH: usize = 40;
const CHANNELS: usize = 3;
const CLASSES: usize = 4;

struct Draw(ChaCha8Rng);

impl Draw {
    fn number(&mut self) -> f64 {
        self.0.random_range(-1.0..1.0)
    }

    fn linear(&mut self, inputs: usize, outputs: usize) -> Linear {
        Linear {
            weight: Arc::new(DMatrix::from_fn(inputs, outputs, |_, _| self.number())),
            bias: Some((0..outputs).map(|_| 0.3 * self.number()).collect()),
        }
    }

    fn system(&mut self) -> DiagonalSystem {
        let modes = 0..5;
        let pole = |draw: &mut Self, n: i32| {
            Complex64::new(
                -0.9 - 0.8 * draw.number(),
                3.0 * f64::from(n) + draw.number(),
            )
        };
        let exponents: Vec<_> = modes.clone().map(|n| pole(self, n)).collect();
        let residues: Vec<_> = modes
            .map(|_| Complex64::new(self.number(), self.number()))
            .collect();
        let time = Time::Discrete { step: 0.1 };
        DiagonalSystem::siso(time, exponents, &residues, self.number()).unwrap()
    }

    fn block(&mut self, index: usize, norm: Option<Placement>, gated: Option<bool>) -> Block {
        let scales = |draw: &mut Self| (0..CHANNELS).map(|_| 1.0 + 0.5 * draw.number()).collect();
        Block::new(BlockParts {
            name: format!("layers.{index}"),
            systems: (0..CHANNELS).map(|_| self.system()).collect(),
            backward: Vec::new(),
            backward_from: 1,
            holds_feedthrough: true,
            class: None,
            activation: Nonlinearity::Gelu,
            output: gated.map(|gated| OutputLinear {
                linear: self.linear(CHANNELS, if gated { 2 * CHANNELS } else { CHANNELS }),
                gate: if gated { Gate::Halves } else { Gate::None },
            }),
            norm: norm.map(|placement| {
                let norm = LayerNorm {
                    weight: scales(self),
                    bias: scales(self),
                    epsilon: 1e-5,
                };
                (Norm::Layer(norm), placement)
            }),
        })
        .unwrap()
    }
}

fn layer_norm(block: &mut BlockParts) -> &mut LayerNorm {
    match &mut block.norm {
        Some((Norm::Layer(norm), _)) => norm,
        _ => unreachable!("the samples have layer norms"),
    }
}

fn model(norm: Option<Placement>, gated: Option<bool>, pooling: Pooling) -> Model {
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(8));
    Model::new(ModelParts {
        encoder: Some(Encoder::Linear(draw.linear(2, CHANNELS))),
        blocks: (0..2).map(|index| draw.block(index, norm, gated)).collect(),
        head: Some(Head {
            pooling: Some(pooling),
            linear: draw.linear(CHANNELS, CLASSES),
        }),
        // As in the networks that are trained that way.
        final_norm: match draw.block(2, norm, None).norm() {
            Some((norm, Placement::Pre)) => Some(norm.clone()),
            _ => None,
        },
    })
    .unwrap()
}

fn usual() -> Model {
    model(Some(Placement::Post), Some(true), Pooling::Mean)
}

fn every_model() -> Vec<Model> {
    let mut models = Vec::new();
    for norm in [None, Some(Placement::Pre), Some(Placement::Post)] {
        for gated in [None, Some(false), Some(true)] {
            for pooling in [Pooling::Mean, Pooling::Last] {
                models.push(model(norm, gated, pooling));
            }
        }
    }
    models
}

/// Slow waves with noise, two numbers at each step.
fn data(count: usize) -> Vec<Vec<f32>> {
    let mut draw = Draw(ChaCha8Rng::seed_from_u64(77));
    let sequence = |draw: &mut Draw| {
        let (pace, offset) = (0.1 + 0.1 * draw.number(), draw.number());
        let value =
            |t: usize, draw: &mut Draw| (pace * t as f64).sin() + offset + 0.2 * draw.number();
        let values = (0..2 * LENGTH).map(|t| value(t, draw) as f32);
        values.collect()
    };
    (0..count).map(|_| sequence(&mut draw)).collect()
}

fn views(data: &[Vec<f32>]) -> Vec<Sequence<'_>> {
    data.iter().map(|values| Sequence::Values(values)).collect()
}

fn on_threads<T: Send>(threads: usize, job: impl FnOnce() -> T + Send) -> T {
    let pool = rayon::ThreadPoolBuilder::new().num_threads(threads);
    pool.build().unwrap().install(job)
}

#[test]
fn statistics_are_sums_over_the_layer_inputs() {
    let data = data(45);
    let sequences = views(&data);
    for model in every_model() {
        let network = Network::new(&model, LENGTH, Run::Fft).unwrap();
        let statistics = input_statistics(&network, &sequences).unwrap();
        assert_eq!(statistics.len(), 2);
        for (layer, statistics) in statistics.iter().enumerate() {
            let inputs = layer_inputs(&network, &sequences, layer).unwrap();
            assert_eq!((statistics.sequences(), statistics.length()), (45, LENGTH));
            for (h, input) in inputs.iter().enumerate() {
                assert_eq!(input.shape(), (45, LENGTH));
                assert!((statistics.mean()[h] - input.mean()).abs() < 1e-12);
                let found = statistics.autocorrelation().column(h);
                for m in 0..LENGTH {
                    let rows = input.row_iter();
                    let sums = rows.map(|u| (m..LENGTH).map(|t| u[t] * u[t - m]).sum::<f64>());
                    let direct = sums.sum::<f64>() / input.len() as f64;
                    assert!((found[m] - direct).abs() < 1e-12 * found[0], "{m}");
                    assert!(found[m].abs() <= found[0]);
                }
            }
        }
    }
}

#[test]
fn padding_counts_as_zero() {
    let (model, data) = (usual(), data(9));
    let steps = LENGTH - 7;
    let short: Vec<_> = data
        .iter()
        .map(|u| Sequence::Values(&u[..2 * steps]))
        .collect();
    let of = |length| {
        let network = Network::new(&model, length, Run::Fft).unwrap();
        input_statistics(&network, &short).unwrap()
    };
    let share = steps as f64 / LENGTH as f64;
    for (padded, alone) in of(LENGTH).iter().zip(of(steps)) {
        let (padded, alone) = (padded.autocorrelation(), alone.autocorrelation());
        assert!((padded.rows(0, steps) - alone * share).amax() < 1e-12);
        assert!(padded.rows(steps, LENGTH - steps).amax() < 1e-12);
    }
}

#[test]
fn what_is_gathered_does_not_depend_on_the_threads() {
    let (model, data) = (usual(), data(45));
    let gather = || gathered(&model, &data);
    let one = on_threads(1, gather);
    assert_eq!(one, on_threads(3, gather));
    assert_eq!(
        (one.sequences(), one.length(), one.origin()),
        (45, LENGTH, "waves")
    );
    assert_eq!(one.layers()[1].name, "layers.1");
}

/// A model with a step added to the imaginary part of one residue, or (`mode` past the last) to D.
fn moved(model: &Model, layer: usize, channel: usize, mode: usize, step: f64) -> Model {
    let mut systems = model.blocks()[layer].systems().to_vec();
    let system = &mut systems[channel];
    let mut residues = system.residues().unwrap();
    let mut d = system.feedthrough()[(0, 0)];
    match residues.get_mut(mode) {
        Some(residue) => residue.im += step,
        None => d += step,
    }
    let exponents = system.exponents().to_vec();
    *system = DiagonalSystem::siso(system.time(), exponents, &residues, d).unwrap();
    let block = model.blocks()[layer].with_systems(systems, Vec::new());
    model.with_block(layer, block.unwrap()).unwrap()
}

#[test]
fn slopes_are_differences_of_the_logits() {
    let data = data(1);
    let combination = [0.7, -0.3, 0.1, -0.5];
    let whole = every_model().into_iter().map(|model| (model, LENGTH));
    // Of a shorter sequence no step of the padding has a gradient.
    for (model, steps) in whole.chain([(usual(), LENGTH - 7)]) {
        let sequence = Sequence::Values(&data[0][..2 * steps]);
        let value = |model: &Model| {
            let network = Network::new(model, LENGTH, Run::Fft).unwrap();
            let logits = network.logits(sequence).unwrap();
            let parts = logits.iter().zip(combination);
            parts.map(|(z, c)| z * c).sum::<f64>()
        };
        let network = Network::new(&model, LENGTH, Run::Fft).unwrap();
        let gradients = network.output_gradients(sequence, &combination).unwrap();
        for (layer, gradients) in gradients.iter().enumerate() {
            let inputs = layer_inputs(&network, &[sequence], layer).unwrap();
            for (h, input) in inputs.iter().enumerate() {
                let (u, j) = (gradients.input.column(h), gradients.gradient.column(h));
                assert_eq!(u.transpose(), input.row(0));
                // Σ_t J_t u_{t−l}: the gradient of the logits by lag l of the kernel.
                let lag = |l: usize| (l..LENGTH).map(|t| j[t] * u[t - l]).sum::<f64>();
                let lags: Vec<f64> = (0..LENGTH).map(lag).collect();
                let system = &model.blocks()[layer].systems()[h];
                for mode in 0..=system.order() {
                    let step = 1e-6;
                    let at = |step: f64| value(&moved(&model, layer, h, mode, step));
                    let difference = (at(step) - at(-step)) / (2.0 * step);
                    let slope = match system.poles().get(mode) {
                        None => lags[0],
                        Some(pole) => {
                            let powers = lags.iter().enumerate();
                            powers.map(|(l, f)| -f * pole.powu(l as u32).im).sum()
                        }
                    };
                    let error = (difference - slope).abs();
                    let scale = 1.0 + j.norm() * u.norm();
                    assert!(error < 1e-7 * scale, "{layer} {h} {mode}: {error:e}");
                }
            }
        }
    }
}

#[test]
fn importance_is_the_mean_square_slope_of_the_centred_logits() {
    let (model, data) = (usual(), data(1));
    let network = Network::new(&model, LENGTH, Run::Fft).unwrap();
    let copies = vec![Sequence::Values(&data[0]); 3000];
    let found = importance(&network, &copies).unwrap();
    let mut expected = vec![vec![0.0; CHANNELS]; 2];
    for class in 0..CLASSES {
        let mut centred = [-1.0 / CLASSES as f64; CLASSES];
        centred[class] += 1.0;
        let gradients = network.output_gradients(copies[0], &centred).unwrap();
        for (expected, gradients) in expected.iter_mut().zip(&gradients) {
            for (expected, slope) in expected.iter_mut().zip(gradients.gradient.column_iter()) {
                *expected += slope.norm_squared() / LENGTH as f64;
            }
        }
    }
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        // Random signs: the spread of 3000 draws is about 2 %.
        assert!((found / expected - 1.0).abs() < 0.1, "{found} {expected}");
    }
}

#[test]
fn data_that_do_not_fit_are_named() {
    let (model, data) = (usual(), data(3));
    let gather = |model: &Model, length: usize, sequences: &[Sequence<'_>]| {
        let network = Network::new(model, length, Run::Fft).unwrap();
        Calibration::gather(&network, sequences, "here").unwrap_err()
    };
    let none = gather(&model, LENGTH, &[]);
    let expected = "no sequences to gather statistics from";
    assert_eq!(none.to_string(), expected);
    let long = gather(&model, LENGTH - 1, &views(&data));
    assert!(long.to_string().starts_with("sequence 0: "), "{long}");
    let empty = gather(&model, 0, &[Sequence::Values(&[])]);
    let expected = "the input of layer 0: statistics of 1 sequences of 0 steps";
    assert!(empty.to_string().starts_with(expected), "{empty}");
    let large = changed(&model, |parts| {
        let linear = linear_encoder(parts);
        linear.weight = Arc::new(linear.weight.as_ref() * 1e200);
    });
    let error = gather(&large, LENGTH, &views(&data));
    let CalibrateError::Infer(InferError::Statistics(what)) = &error else {
        panic!("{error}");
    };
    assert!(what.starts_with("the input of layer 0: "), "{error}");
    assert!(what.contains("not finite"), "{error}");
}

fn gathered(model: &Model, data: &[Vec<f32>]) -> Calibration {
    let network = Network::new(model, LENGTH, Run::Auto).unwrap();
    Calibration::gather(&network, &views(data), "waves").unwrap()
}

#[test]
fn a_file_gives_back_what_was_written_with_equal_bytes() {
    let (model, data) = (usual(), data(5));
    let calibration = gathered(&model, &data);
    let folder = tempfile::tempdir().unwrap();
    let [first, second] = ["a.safetensors", "b.safetensors"].map(|name| folder.path().join(name));
    calibration.write(&first).unwrap();
    let back = Calibration::read(&first).unwrap();
    assert_eq!(back, calibration);
    back.check(&model).unwrap();
    back.write(&second).unwrap();
    assert_eq!(
        std::fs::read(&first).unwrap(),
        std::fs::read(&second).unwrap()
    );
    assert!(Calibration::is_file_of(&first));
    assert!(
        calibration
            .write(&folder.path().join("no/such/folder"))
            .is_err()
    );
}

#[test]
fn any_other_model_is_refused() {
    let (model, data) = (usual(), data(3));
    let calibration = gathered(&model, &data);
    let refused = |change: &dyn Fn(&mut ModelParts)| {
        let other = changed(&model, change);
        let error = calibration.check(&other).unwrap_err();
        assert!(matches!(error, CalibrateError::OtherModel(_)));
        let error = CalibratedReduction::new(&other, &calibration, &[], WeightChoice::Auto, &())
            .err()
            .unwrap();
        error.to_string()
    };
    let more = |x: &mut Vec<f64>| x[0] += 1e-12;
    let shape = refused(&|m| drop(m.blocks.pop()));
    assert!(shape.contains("layers.1 (3)"), "{shape}");
    refused(&|m| change_layer(m, 0, |layer| layer.name.push('x')));
    refused(&|m| {
        (m.encoder, m.head, m.final_norm) = (None, None, None);
        change_layer(m, 1, |layer| {
            (layer.output, layer.norm) = (None, None);
            layer.systems.pop();
        });
    });
    let print = refused(&|m| change_layer(m, 0, |layer| layer.systems.swap(0, 1)));
    assert!(print.contains("fingerprint"), "{print}");
    refused(&|m| change_layer(m, 0, |layer| more(&mut layer_norm(layer).weight)));
    refused(&|m| change_layer(m, 0, |layer| more(&mut layer_norm(layer).bias)));
    refused(&|m| {
        change_layer(m, 1, |layer| {
            layer.norm.as_mut().unwrap().1 = Placement::Pre
        })
    });
    refused(&|m| {
        change_layer(m, 0, |layer| {
            let output = layer.output.as_mut().unwrap();
            more(output.linear.bias.as_mut().unwrap());
        });
    });
    refused(&|m| more(m.head.as_mut().unwrap().linear.bias.as_mut().unwrap()));
    refused(&|m| m.head.as_mut().unwrap().pooling = Some(Pooling::Last));
    refused(&|m| m.head.as_mut().unwrap().pooling = None);
    let norm = || model.blocks()[0].norm().map(|(norm, _)| norm.clone());
    refused(&|m| {
        m.final_norm = norm();
        change_layer(m, 0, |layer| layer.norm = None);
    });
    refused(&|m| m.final_norm = norm());
    refused(&|m| more(linear_encoder(m).bias.as_mut().unwrap()));
}

type Change<'a> = &'a dyn Fn(&mut Vec<f64>);

/// The file with one array changed, or left out.
fn damaged(path: &Path, name: &str, change: Option<Change<'_>>) -> CalibrateError {
    let archive = Archive::open(path).unwrap();
    let mut arrays = Vec::new();
    for tensor in archive.names() {
        let raw = archive.tensor(tensor).unwrap();
        if tensor != name {
            arrays.push((tensor, raw));
        } else if let Some(change) = change {
            let mut values = raw.to_f64().unwrap();
            change(&mut values);
            let shape = match values.len() == raw.shape().iter().product::<usize>() {
                true => raw.shape().to_vec(),
                false => vec![values.len()],
            };
            arrays.push((
                tensor,
                RawTensor::from_f64(Dtype::F64, shape, &values).unwrap(),
            ));
        }
    }
    let out = path.with_extension("damaged");
    write_arrays(&out, arrays, archive.metadata().unwrap_or_default()).unwrap();
    Calibration::read(&out).unwrap_err()
}

#[test]
fn damaged_files_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    gathered(&usual(), &data(3)).write(&path).unwrap();
    for name in ["0.autocorrelation", "1.mean", "1.importance"] {
        let error = damaged(&path, name, None);
        let missing = matches!(
            error,
            CalibrateError::Archive(ArchiveError::NoSuchTensor { .. })
        );
        assert!(missing && error.to_string().contains(name), "{error}");
        for bad in [f64::NAN, f64::INFINITY] {
            let error = damaged(&path, name, Some(&|values| values[1] = bad));
            let error = error.to_string();
            assert!(error.starts_with("layer `layers."), "{error}");
            assert!(error.contains("not finite"), "{error}");
        }
        let error = damaged(
            &path,
            name,
            Some(&|values| values.truncate(values.len() - 1)),
        );
        assert!(error.to_string().starts_with("layer `layers."), "{error}");
    }
    let error = damaged(&path, "1.importance", Some(&|values| values[0] = -1.0));
    assert!(error.to_string().starts_with("layer `layers."), "{error}");
    let error = damaged(&path, "0.autocorrelation", Some(&|values| values[3] = 1e9));
    assert!(error.to_string().contains("no signal has this"), "{error}");
    for other in ["s4d_classifier.safetensors", "bad/cnn.pth"] {
        let path = crate::common::here("data").join(other);
        let error = Calibration::read(&path).unwrap_err().to_string();
        assert!(error.contains("no input statistics in it"), "{error}");
        assert!(!Calibration::is_file_of(&path));
    }
    let missing = Calibration::read(&folder.path().join("nothing")).unwrap_err();
    assert!(matches!(missing, CalibrateError::Archive(_)));
}

#[test]
fn mutated_files_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.safetensors");
    let model = usual();
    let calibration = gathered(&model, &data(2));
    calibration.write(&path).unwrap();
    let bytes = std::fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let mut read_back = 0;
    for round in 0..3000 {
        let mut bytes = bytes.clone();
        // Most in the header, where the structure is.
        let most = if round % 4 == 0 { bytes.len() } else { header };
        for _ in 0..random.random_range(1..4) {
            let place = random.random_range(0..most);
            bytes[place] = match random.random_range(0..3) {
                0 => random.random(),
                1 => bytes[place] ^ (1 << random.random_range(0..8)),
                _ => random.random_range(b'0'..=b'9'),
            };
        }
        if round % 10 == 0 {
            bytes.truncate(random.random_range(0..=most));
        }
        std::fs::write(&path, &bytes).unwrap();
        if let Ok(back) = Calibration::read(&path) {
            read_back += 1;
            // Whatever is read can be used or is refused; a few of them are tried.
            if read_back % 8 == 0
                && let Ok(prepared) =
                    CalibratedReduction::new(&model, &back, &[], WeightChoice::Auto, &())
            {
                let settings = Settings::new(TargetSize::Order(2));
                drop(prepared.reduce(&settings));
            }
        }
    }
    assert!(read_back > 0 && read_back < 3000, "{read_back}");
}

fn sizes() -> Vec<Settings> {
    let mut all = Vec::new();
    for size in [
        TargetSize::Order(2),
        TargetSize::Order(5),
        TargetSize::Budget(0.5),
        TargetSize::Error(0.1),
    ] {
        for allocation in [Allocation::Model, Allocation::Layer, Allocation::Channel] {
            for refinement in [Refinement::None, Refinement::Residues, Refinement::Full] {
                let mut settings = Settings::new(size);
                (settings.allocation, settings.refinement) = (allocation, refinement);
                all.push(settings);
            }
        }
    }
    let mut sequential = Settings::new(TargetSize::Budget(0.4));
    sequential.sequential = true;
    all.push(sequential);
    for importance in [Importance::Equal, Importance::Root, Importance::Gradient] {
        let mut settings = Settings::new(TargetSize::Budget(0.4));
        settings.importance = importance;
        all.push(settings);
    }
    all
}

fn states(model: &Model) -> usize {
    let systems = model.blocks().iter().flat_map(|block| block.systems());
    systems.map(DiagonalSystem::order).sum()
}

#[test]
fn reductions_are_equal_to_the_bit_for_any_number_of_threads() {
    let (model, data) = (usual(), data(8));
    let job = || {
        let (sequences, calibration) = (views(&data), gathered(&model, &data));
        let mut models = Vec::new();
        for choice in [WeightChoice::Moments, WeightChoice::Spectrum] {
            let prepared =
                CalibratedReduction::new(&model, &calibration, &sequences, choice, &()).unwrap();
            for settings in sizes().iter().rev().take(8) {
                let found = prepared.reduce(settings).unwrap();
                let record = serde_json::to_string(&(&found.records, &found.choice)).unwrap();
                models.push((found.model, record));
            }
        }
        models
    };
    assert!(on_threads(1, job) == on_threads(3, job));
}

fn check(model: &Model, found: &Calibrated, settings: &Settings) {
    let place = format!("{settings:?}");
    let used = states(&found.model);
    assert_eq!(found.choice.states, used, "{place}");
    assert_eq!(found.choice.states_before, 30, "{place}");
    let within = match settings.size {
        TargetSize::Order(order) => 6 * order,
        TargetSize::Budget(share) => (share * 30.0 + 1e-9) as usize,
        _ => 30,
    };
    assert!(used <= within, "{place}: {used}");
    let mut sums = (0.0, 0.0);
    for (layer, block) in found.model.blocks().iter().enumerate() {
        assert_eq!(found.records[layer].order, block.order(), "{place}");
        assert_eq!(block.norm(), model.blocks()[layer].norm());
        for (channel, system) in found.records[layer].channels.iter().zip(block.systems()) {
            assert_eq!(channel.order, system.order(), "{place}");
            assert!(system.is_stable());
            let weighted = channel.weighted.as_ref().unwrap();
            sums.0 += weighted.last().powi(2);
            sums.1 += weighted.norm.powi(2);
        }
    }
    let relative = f64::sqrt(sums.0 / sums.1);
    assert!(
        (found.choice.relative_error - relative).abs() < 1e-12,
        "{place}"
    );
    if let TargetSize::Error(most) = settings.size {
        assert!(relative <= most, "{place}: {relative}");
    }
    if settings.size == TargetSize::Order(5) {
        assert_eq!(&found.model, model, "{place}");
    }
}

#[test]
fn records_say_what_was_done() {
    let (model, data) = (usual(), data(8));
    let (sequences, calibration) = (views(&data), gathered(&model, &data));
    for (sequences, choice) in [
        (&sequences[..], WeightChoice::Moments),
        (&sequences[..], WeightChoice::Spectrum),
        (&[], WeightChoice::Auto),
    ] {
        let prepared =
            CalibratedReduction::new(&model, &calibration, sequences, choice, &()).unwrap();
        for settings in sizes() {
            let found = prepared.reduce(&settings);
            if settings.sequential && sequences.is_empty() {
                let error = found.unwrap_err().to_string();
                assert!(error.starts_with("--sequential needs"), "{error}");
                continue;
            }
            let found = found.unwrap();
            check(&model, &found, &settings);
            assert_eq!(found.choice.logit_change.is_some(), !sequences.is_empty());
            let moments = choice == WeightChoice::Moments;
            assert_eq!(
                found.choice.weight,
                if moments { "moments" } else { "spectrum" }
            );
        }
    }
}

#[test]
fn more_states_bring_the_logits_nearer() {
    let (model, data) = (usual(), data(8));
    let (sequences, calibration) = (views(&data), gathered(&model, &data));
    let prepared =
        CalibratedReduction::new(&model, &calibration, &sequences, WeightChoice::Auto, &())
            .unwrap();
    let mut changes = Vec::new();
    for order in 1..=5 {
        let mut by_channel = Settings::new(TargetSize::Order(order));
        by_channel.allocation = Allocation::Channel;
        let uniform = prepared
            .reduce(&Settings::new(TargetSize::Order(order)))
            .unwrap();
        let shared = prepared.reduce(&by_channel).unwrap();
        changes.push([uniform, shared].map(|found| found.choice.logit_change.unwrap()));
    }
    assert_eq!(changes[4], [0.0, 0.0]);
    // Three channels share a group of lanes, so only layers differ.
    assert!(changes.iter().all(|[uniform, shared]| shared <= uniform));
    assert!(changes[3][1] < 0.1 * changes[1][1], "{changes:?}");
}

#[test]
fn sizes_and_weights_out_of_range_are_named() {
    let (model, data) = (usual(), data(3));
    let (sequences, calibration) = (views(&data), gathered(&model, &data));
    let prepared =
        CalibratedReduction::new(&model, &calibration, &[], WeightChoice::Auto, &()).unwrap();
    let wrong = [
        TargetSize::Order(0),
        TargetSize::Order(6),
        TargetSize::Budget(0.0),
        TargetSize::Budget(1.1),
        TargetSize::Budget(0.1),
        TargetSize::Budget(f64::NAN),
        TargetSize::Error(-0.1),
        TargetSize::Error(f64::NAN),
        TargetSize::Error(f64::INFINITY),
    ];
    for size in wrong {
        let error = prepared.reduce(&Settings::new(size)).unwrap_err();
        assert!(
            matches!(error, CalibrateError::Setting(_)),
            "{size:?}: {error}"
        );
    }
    let error = CalibratedReduction::new(&model, &calibration, &[], WeightChoice::Moments, &())
        .err()
        .unwrap();
    assert!(error.to_string().contains("sequences"), "{error}");
    let long = vec![0.0; 2 * LENGTH + 2];
    let wrong = [sequences[0], Sequence::Values(&long)];
    let error = CalibratedReduction::new(&model, &calibration, &wrong, WeightChoice::Auto, &())
        .err()
        .unwrap();
    assert!(error.to_string().starts_with("sequence 1: "), "{error}");
}

#[test]
fn a_channel_without_input_does_not_stop_the_others() {
    let model = changed(&usual(), |parts| {
        let linear = linear_encoder(parts);
        let mut weight = linear.weight.as_ref().clone();
        weight.column_mut(1).fill(0.0);
        linear.weight = Arc::new(weight);
        linear.bias.as_mut().unwrap()[1] = 0.0;
    });
    let data = data(4);
    let (sequences, calibration) = (views(&data), gathered(&model, &data));
    assert!(calibration.layers()[0].statistics.weight(1).is_none());
    for choice in [WeightChoice::Moments, WeightChoice::Spectrum] {
        let prepared =
            CalibratedReduction::new(&model, &calibration, &sequences, choice, &()).unwrap();
        for settings in [
            Settings::new(TargetSize::Order(2)),
            Settings::new(TargetSize::Budget(0.4)),
        ] {
            let found = prepared.reduce(&settings).unwrap();
            check(&model, &found, &settings);
            let dead = &found.records[0].channels[1];
            assert!(
                dead.notes
                    .iter()
                    .any(|note| note.starts_with("its input is zero"))
            );
            assert!(dead.weighted.as_ref().unwrap().error == 0.0);
        }
    }
}

fn accuracy(model: &Model, data: &Dataset, count: usize) -> f64 {
    let network = Network::new(model, data.length(), Run::Fft).unwrap();
    let sequences: Vec<_> = (0..count).map(|index| data.sequence(index)).collect();
    let logits = network.logits_of_all(&sequences).unwrap();
    let mut score = Score::default();
    for (logits, &label) in logits.iter().zip(data.labels().unwrap()) {
        score.add(logits, label);
    }
    score.accuracy()
}

#[test]
#[ignore = "needs data sets and checkpoints beside the project"]
fn a_real_model_keeps_its_accuracy_at_a_quarter_and_an_eighth_of_its_states() {
    let checkpoint = shared("data/checkpoints/gevorgyg/ckpt.pth");
    let folder = shared("data/mnist");
    let model = read(&checkpoint, &Declared::default()).unwrap().model;
    let digits = |split| Dataset::read(&Source::Mnist(folder.clone()), Some(split)).unwrap();
    let (train, test) = (digits(Split::Train), digits(Split::Test));
    let sequences: Vec<_> = (0..30).map(|index| train.sequence(index)).collect();
    let network = Network::new(&model, 784, Run::Fft).unwrap();
    let calibration = Calibration::gather(&network, &sequences, "digits").unwrap();
    // Moments take three times as long and give 98.6 and 96.6 %.
    let choice = WeightChoice::Spectrum;
    let prepared = CalibratedReduction::new(&model, &calibration, &sequences, choice, &()).unwrap();
    for (order, least) in [(8, 0.95), (4, 0.90)] {
        let found = prepared
            .reduce(&Settings::new(TargetSize::Order(order)))
            .unwrap();
        let accuracy = accuracy(&found.model, &test, 500);
        println!("500 images, order {order}: {accuracy}");
        assert_eq!(found.choice.states, 64 * order);
        assert!(accuracy >= least, "{order}: {accuracy}");
    }
}

/// Every channel's parameters as single precision holds them.
fn rounded(model: &Model) -> Model {
    with_systems(model, |system| {
        let round = |z: &Complex64| Complex64::new(f64::from(z.re as f32), f64::from(z.im as f32));
        let exponents = system.exponents().iter().map(round).collect();
        let residues: Vec<_> = system.residues().unwrap().iter().map(round).collect();
        let feedthrough = f64::from(system.feedthrough()[(0, 0)] as f32);
        DiagonalSystem::siso(system.time(), exponents, &residues, feedthrough).unwrap()
    })
}

#[test]
fn a_fit_to_the_logits_brings_them_nearer_and_survives_single_precision() {
    let data = data(40);
    let (fitted_on, others) = data.split_at(32);
    for model in every_model() {
        let (sequences, calibration) = (views(fitted_on), gathered(&model, fitted_on));
        let prepared =
            CalibratedReduction::new(&model, &calibration, &sequences, WeightChoice::Auto, &())
                .unwrap();
        for order in [1, 2, 3] {
            let mut settings = Settings::new(TargetSize::Order(order));
            let fitted = prepared.reduce(&settings).unwrap();
            settings.fit_logits = false;
            let plain = prepared.reduce(&settings).unwrap();
            assert!(plain.choice.fit.is_none());
            let fit = fitted.choice.fit.as_ref().unwrap();
            assert_eq!(fit.prices.len(), fit.steps);
            assert!(fit.after <= fit.before);
            let change = |model: &Model| prepared.logit_change(model).unwrap().unwrap();
            assert_eq!(fitted.choice.logit_change, Some(change(&fitted.model)));
            if fit.steps > 0 {
                assert!(fit.after < 0.98 * fit.before);
                assert!(change(&fitted.model) < change(&plain.model));
            } else {
                assert_eq!(fitted.model, plain.model);
            }
            // Residues that nearly cancel would not survive.
            let written = rounded(&fitted.model);
            let network = |model| Network::new(model, LENGTH, Run::Fft).unwrap();
            let (exact, written) = (network(&fitted.model), network(&written));
            for sequence in views(others) {
                let (a, b) = (
                    exact.logits(sequence).unwrap(),
                    written.logits(sequence).unwrap(),
                );
                for (a, b) in a.iter().zip(b) {
                    assert!((a - b).abs() < 1e-4 * (1.0 + a.abs()), "{order}: {a} {b}");
                }
            }
        }
    }
}

/// Also on sequences that neither fitted nor chose anything.
#[test]
fn a_fit_to_the_logits_holds_on_other_sequences() {
    let (model, data) = (usual(), data(96));
    let (fitted_on, others) = data.split_at(64);
    let (sequences, calibration) = (views(fitted_on), gathered(&model, fitted_on));
    let prepared =
        CalibratedReduction::new(&model, &calibration, &sequences, WeightChoice::Auto, &())
            .unwrap();
    let mut settings = Settings::new(TargetSize::Order(1));
    let fitted = prepared.reduce(&settings).unwrap();
    settings.fit_logits = false;
    let plain = prepared.reduce(&settings).unwrap();
    let others = views(others);
    let calibration = gathered(&model, &data[64..]);
    let judge =
        CalibratedReduction::new(&model, &calibration, &others, WeightChoice::Auto, &()).unwrap();
    let change = |model: &Model| judge.logit_change(model).unwrap().unwrap();
    let (before, after) = (change(&plain.model), change(&fitted.model));
    assert!(fitted.choice.fit.unwrap().steps > 0);
    assert!(after < 0.95 * before, "{before} {after}");
}

/// Keeps the stages with their totals and units done; cancels after so many units in all.
#[derive(Default)]
struct Recorder {
    stages: Mutex<Vec<(&'static str, usize, usize)>>,
    limit: Option<usize>,
}

impl Recorder {
    fn units(&self) -> usize {
        let stages = self.stages.lock().unwrap();
        stages.iter().map(|(.., done)| done).sum()
    }
}

impl ProgressSink for Recorder {
    fn begin(&self, stage: &'static str, total: usize) {
        self.stages.lock().unwrap().push((stage, total, 0));
    }

    fn advance(&self, units: usize) {
        let mut stages = self.stages.lock().unwrap();
        stages.last_mut().expect("a stage has begun").2 += units;
    }

    fn cancelled(&self) -> bool {
        self.limit.is_some_and(|limit| self.units() >= limit)
    }
}

fn is_cancelled(error: &TargetError) -> bool {
    matches!(error, TargetError::Calibrate(CalibrateError::Cancelled(_)))
}

#[test]
fn every_stage_is_reported_and_can_be_cancelled() {
    let (model, data) = (usual(), data(9));
    let sequences = views(&data);
    let reducer = Reducer::new(&model).calibrated(&sequences);
    let reducer = reducer.target(TargetSize::Budget(0.5));
    let recorder = Recorder::default();
    let _ = reducer.clone().observer(&recorder).run().unwrap();
    let stages = recorder.stages.lock().unwrap().clone();
    let begun: Vec<_> = stages.iter().map(|(stage, ..)| *stage).collect();
    let expected = [
        "output gradients of sequences",
        "balancing layers",
        "error curves of layers",
        "allocations tried",
        "steps of the fit to the logits",
    ];
    assert_eq!(begun, expected);
    for (stage, total, done) in &stages {
        let early = ["allocations tried", "steps of the fit to the logits"].contains(stage);
        assert!(done == total || early && done < total, "{stage:?}");
    }
    for limit in (0..recorder.units()).step_by(3) {
        let recorder = Recorder {
            limit: Some(limit),
            ..Recorder::default()
        };
        let error = reducer.clone().observer(&recorder).run().unwrap_err();
        assert!(is_cancelled(&error), "{error}");
    }
    let cancelled = Recorder {
        limit: Some(1),
        ..Recorder::default()
    };
    let plain = Reducer::new(&model).order(2).observer(&cancelled).run();
    assert!(is_cancelled(&plain.unwrap_err()));
    assert_eq!(cancelled.units(), 1);
}

#[test]
fn a_reducer_does_what_its_parts_do() {
    let (model, data) = (usual(), data(9));
    let sequences = views(&data);
    let reducer = Reducer::new(&model);
    let plan = Plan::new(Rule::Energy(0.9)).unwrap();
    let plan = plan.with_method(Method::H2Optimal).unwrap();
    let expected = reduce(&model, &plan).unwrap();
    let found = reducer
        .clone()
        .method(Method::H2Optimal)
        .rule(Rule::Energy(0.9))
        .run();
    let found = found.unwrap();
    assert!(found.model == expected.model && found.choice.is_none());
    let calibration = gathered(&model, &data);
    let auto = WeightChoice::Auto;
    for known in [&sequences[..], &[]] {
        let balanced = CalibratedReduction::new(&model, &calibration, known, auto, &()).unwrap();
        let expected = balanced
            .reduce(&Settings::new(TargetSize::Order(2)))
            .unwrap();
        let found = reducer.clone().calibrated(known).statistics(&calibration);
        assert!(found.order(2).run().unwrap().model == expected.model);
        if !known.is_empty() {
            // The length is that of the sequences.
            let found = reducer.clone().calibrated(known).order(2).run().unwrap();
            assert!(found.model == expected.model);
            let choice = found.choice.unwrap();
            assert_eq!(choice.length, LENGTH);
            let signal = choice.signal.unwrap();
            assert_eq!(signal.different, 9);
            assert!(signal.root_mean_square.unwrap() > 0.0);
        }
    }
}

#[test]
fn sequences_alone_give_what_they_give_with_their_statistics() {
    let (model, data) = (usual(), data(9));
    let sequences = views(&data);
    let gathered = gathered(&model, &data);
    let run = CalibrationRun {
        sequences: &sequences,
        length: LENGTH,
        origin: gathered.origin(),
    };
    let choices = [
        (WeightChoice::Auto, "moments"),
        (WeightChoice::Moments, "moments"),
        (WeightChoice::Spectrum, "spectrum"),
    ];
    let settings = Settings::new(TargetSize::Budget(0.5));
    for (choice, weight) in choices {
        let expected =
            CalibratedReduction::new(&model, &gathered, &sequences, choice, &()).unwrap();
        let expected = expected.reduce(&settings).unwrap();
        let found = CalibratedReduction::of_sequences(&model, run, choice, &()).unwrap();
        let found = found.reduce(&settings).unwrap();
        assert!(found.model == expected.model, "{weight}");
        let choice = |made: &Calibrated| serde_json::to_value(&made.choice).unwrap();
        assert_eq!(choice(&found), choice(&expected));
        assert_eq!(found.choice.weight, weight);
    }
}

#[test]
fn sequences_alone_are_refused_as_with_their_statistics() {
    let (model, data) = (usual(), data(9));
    let sequences = views(&data);
    let run = CalibrationRun {
        sequences: &sequences,
        length: LENGTH,
        origin: "here",
    };
    let refused = |model: &Model, run| {
        let made = CalibratedReduction::of_sequences(model, run, WeightChoice::Auto, &());
        made.err().unwrap().to_string()
    };
    let none = CalibrationRun {
        sequences: &[],
        ..run
    };
    assert!(refused(&model, none).contains("no sequences"));
    let short = refused(&model, CalibrationRun { length: 0, ..run });
    assert!(short.contains("9 sequences of 0 steps"), "{short}");
    for size in [1e38, 1e200] {
        let large = changed(&model, |parts| {
            change_layer(parts, 0, |block| {
                let linear = &mut block.output.as_mut().unwrap().linear;
                linear.weight = Arc::new(linear.weight.as_ref() * size);
            });
        });
        let network = Network::new(&large, LENGTH, Run::Auto).unwrap();
        let expected = Calibration::gather(&network, &sequences, "here").unwrap_err();
        assert_eq!(refused(&large, run), expected.to_string());
        assert!(expected.to_string().contains("layer 1"), "{expected}");
    }
}

#[test]
fn statistics_and_moments_of_other_origin_give_the_same_reduction() {
    let (model, data) = (usual(), data(9));
    let sequences = views(&data);
    let gathered = gathered(&model, &data);
    let layers = gathered.layers().iter();
    let made = Calibration::new(
        layers.cloned().collect(),
        gathered.origin(),
        Known::InputsAndGradients,
    );
    let made = made.unwrap();
    assert!(made.layers() == gathered.layers());
    let network = Network::new(&model, LENGTH, Run::Auto).unwrap();
    let blocks = 0..model.blocks().len();
    let inputs = blocks.map(|layer| layer_inputs(&network, &sequences, layer).unwrap());
    let inputs: Vec<_> = inputs.collect();
    let weight = |layer: usize, channel: usize| {
        let own = &inputs[layer][channel];
        let products = own.tr_mul(own) / own.len() as f64;
        InputWeight::of_products(&products)
    };
    let found = CalibratedReduction::by_weights(&model, &made, weight, &()).unwrap();
    let moments = WeightChoice::Moments;
    let expected = CalibratedReduction::new(&model, &gathered, &sequences, moments, &()).unwrap();
    // The products are summed in another order.
    for refinement in [Refinement::Residues, Refinement::Full] {
        let mut settings = Settings::new(TargetSize::Order(2));
        settings.fit_logits = false;
        settings.refinement = refinement;
        let found = found.reduce(&settings).unwrap();
        let expected = expected.reduce(&settings).unwrap();
        assert_eq!(found.choice.weight, "moments");
        for (found, expected) in found.records.iter().zip(&expected.records) {
            let found = found.relative_weighted_error.unwrap();
            let expected = expected.relative_weighted_error.unwrap();
            assert!(
                (found - expected).abs() < 1e-6 * expected,
                "{found} {expected}"
            );
        }
    }
    assert!(Calibration::new(Vec::new(), "", Known::Inputs).is_err());
}

#[test]
fn settings_of_a_reducer_that_do_not_go_together_are_named() {
    let (model, data) = (usual(), data(9));
    let gathered = gathered(&model, &data);
    let sequences = views(&data);
    let white = Reducer::new(&model);
    let calibrated = white.clone().calibrated(&sequences);
    let wrong = [
        (white.clone(), "no size"),
        (white.clone().target(TargetSize::Budget(0.5)), "a budget"),
        (
            white.target(TargetSize::Error(0.1)),
            "a budget or a largest error",
        ),
        (
            calibrated.clone().rule(Rule::Tolerance(0.1)),
            "an energy or a tolerance",
        ),
        (
            calibrated.clone().method(Method::ModalH2).order(2),
            "a method",
        ),
        (Reducer::new(&model).times(4.0), "a size of the whole model"),
        (
            calibrated.clone().statistics(&gathered).times(2.0),
            "statistics with a size of the whole model",
        ),
    ];
    for (reducer, expected) in wrong {
        let error = reducer.run().unwrap_err().to_string();
        assert!(
            error.starts_with(&format!("the reducer has {expected}")),
            "{error}"
        );
    }
    let error = calibrated.times(0.5).run().unwrap_err().to_string();
    assert!(error.contains("expected a number above 1"), "{error}");
}

#[test]
fn a_reducer_brings_a_whole_model_to_its_sizes() {
    let (model, data) = (usual(), data(11));
    let sequences = views(&data);
    let reducer = Reducer::new(&model).calibrated(&sequences);
    let half = reducer.clone().times(2.0).run().unwrap();
    let whole = half.whole.unwrap();
    assert!(2 * whole.size.total() <= whole.full.total());
    assert!(whole.held_out_change.is_some() && half.choice.is_none());
    let mut size = WholeSize {
        bytes: Some(whole.full.total() / 2),
        ..WholeSize::default()
    };
    let same = reducer.clone().whole(size).run().unwrap();
    assert!(same.model == half.model);
    // The tighter of two limits holds.
    size.times = Some(1.5);
    let both = reducer.whole(size).run().unwrap();
    assert!(both.model == half.model);
}

#[test]
fn a_reducer_finds_the_smallest_model_within_an_accuracy() {
    let (model, data) = (usual(), data(11));
    let sequences = views(&data);
    let network = Network::new(&model, LENGTH, Run::Auto).unwrap();
    let logits = network.logits_of_all(&sequences).unwrap();
    let labels: Vec<usize> = logits.iter().map(|row| Score::class(row)).collect();
    let reducer = Reducer::new(&model).calibrated(&sequences);
    // All classes may be lost, or none.
    let all = reducer
        .clone()
        .within(100.0, &sequences, &labels)
        .run()
        .unwrap();
    let whole = all.whole.unwrap();
    assert!(2 * whole.size.total() <= whole.full.total());
    let error = reducer
        .clone()
        .within(-1.0, &sequences, &labels)
        .run()
        .unwrap_err();
    let expected = "points of accuracy or more, expected at most -1";
    assert!(error.to_string().ends_with(expected), "{error}");
    let wrong = reducer.within(1.0, &sequences, &labels[1..]);
    let error = wrong.run().unwrap_err().to_string();
    assert!(
        error.contains("expected one label for each sequence"),
        "{error}"
    );
}
