//! Layers whose channels share modes (S5, LRU): against the host, against differences, and back.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../../tests/common/golden.rs"]
mod golden;
#[path = "../../../tests/common/models.rs"]
mod models;

use candle_core::{DType, Device, Tensor, Var};
use common::here;
use golden::{Golden, LENGTH, logits};
use hankelite::checkpoint::{Checkpoint, HalfGate};
use hankelite::control::num_complex::Complex64;
use hankelite::control::{DiagonalSystem, nalgebra::DMatrix};
use hankelite::model::{Model, Placement, Pooling};
use hankelite::rounding::{Entries, LayerChoice, MapChoice, Storage, StorageChoice};
use hankelite::{Declared, write};
use hankelite_train::nn::{
    HeldMaps, Mode, NetworkError, NetworkInput, Penalty, SequenceModel, TrainableNetwork,
    TrainableOptions, Wanted,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// S5 and LRU with every gate, both norms and places, both poolings, numbers and tokens.
const FIXTURES: [&str; 5] = [
    "s5_full_glu",
    "s5_half_glu2",
    "s5_gelu",
    "lru_half_glu1",
    "lru_tokens",
];

fn opened(name: &str) -> Checkpoint {
    let declared = Declared {
        norm: (name == "s5_half_glu2").then_some(Placement::Post),
        half_gate: (name == "s5_half_glu2").then_some(HalfGate::HalfGlu2),
        pooling: (name == "s5_gelu").then_some(Pooling::Last),
        ..Declared::default()
    };
    let file = here("data/flax").join(format!("{name}.safetensors"));
    hankelite::read(file, &declared).unwrap()
}

/// The same layers in both directions of time, and with a D that is no diagonal.
fn in_both_directions() -> Model {
    models::changed(&opened("s5_full_glu").model, |parts| {
        models::change_layer(parts, 0, |layer| {
            let own = &layer.systems[0];
            let turned = own.output().map(|c| Complex64::new(c.im, 0.5 * c.re));
            let none = own.feedthrough() * 0.0;
            layer.backward = vec![remade(own, turned, none)];
            layer.backward_from = 0;
        });
        models::change_layer(parts, 1, |layer| {
            let own = &layer.systems[0];
            let mut through = own.feedthrough().clone();
            through[(0, 1)] = 0.3;
            through[(2, 0)] = -0.2;
            layer.systems = vec![remade(own, own.output().clone(), through)];
        });
    })
}

fn remade(
    system: &DiagonalSystem,
    output: DMatrix<Complex64>,
    through: DMatrix<f64>,
) -> DiagonalSystem {
    let (exponents, input) = (system.exponents().to_vec(), system.input().clone());
    DiagonalSystem::new(system.time(), exponents, input, output, through).unwrap()
}

fn all_models() -> Vec<(String, Model)> {
    let files = FIXTURES.map(|name| (name.to_string(), opened(name).model));
    let mut all: Vec<_> = files.into();
    all.push(("both".to_string(), in_both_directions()));
    all
}

fn golden() -> Golden {
    Golden::open(here("data/flax/golden.safetensors"))
}

fn input(name: &str, data: &Golden) -> NetworkInput {
    let device = &Device::Cpu;
    let steps = match name {
        "lru_tokens" => {
            let tokens = data.tokens.concat();
            Tensor::from_vec(tokens, (data.tokens.len(), LENGTH), device).unwrap()
        }
        _ => {
            let values = data.values.concat();
            Tensor::from_vec(values, (data.values.len(), LENGTH, 2), device).unwrap()
        }
    };
    let lengths = None;
    NetworkInput { steps, lengths }
}

fn network(model: &Model, dtype: DType) -> TrainableNetwork {
    let options = TrainableOptions {
        dtype,
        ..TrainableOptions::new(LENGTH)
    };
    TrainableNetwork::from_model(model, &options, &Device::Cpu).unwrap()
}

fn numbers(tensor: &Tensor) -> Vec<f64> {
    let wide = tensor.to_dtype(DType::F64).unwrap();
    wide.flatten_all().unwrap().to_vec1().unwrap()
}

fn outputs(network: &TrainableNetwork, input: &NetworkInput) -> Vec<f64> {
    numbers(&network.forward(input, Mode::Evaluate).unwrap())
}

fn worst(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let far = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    far.fold(0.0, f64::max)
}

#[test]
fn outputs_are_those_of_the_host() {
    let data = golden();
    for (name, model) in all_models() {
        let expected = logits(&model, &data.sequences(&name));
        let input = input(&name, &data);
        let apart = worst(&outputs(&network(&model, DType::F64), &input), &expected);
        assert!(apart < 1e-10, "{name}: {apart:e}");
        let largest = expected.iter().fold(0.0f64, |m, y| m.max(y.abs()));
        let apart = worst(&outputs(&network(&model, DType::F32), &input), &expected);
        assert!(
            apart < 1e-5 * (1.0 + largest),
            "{name}: {apart:e} of {largest}"
        );
    }
}

/// Sets one entry of a variable.
fn moved(var: &Var, at: usize, by: f64) {
    let mut values = numbers(var);
    values[at] += by;
    let next = Tensor::from_vec(values, var.shape(), var.device()).unwrap();
    var.set(&next.to_dtype(var.dtype()).unwrap()).unwrap();
}

/// A number that depends on the outputs of the network and of all layers.
fn loss(network: &TrainableNetwork, input: &NetworkInput) -> Tensor {
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let wanted = Wanted {
        layers: true,
        penalty: None,
    };
    let traced = network
        .traced(input, Mode::Train(&mut random), wanted)
        .unwrap();
    let weighted = |x: &Tensor, seed: f64| {
        let count = x.elem_count();
        let waves = (0..count).map(|i| (1.1 * i as f64 + seed).sin());
        let waves = Tensor::from_vec(waves.collect::<Vec<_>>(), x.shape(), &Device::Cpu);
        let waves = waves.unwrap().to_dtype(x.dtype()).unwrap();
        (x * waves).unwrap().sum_all().unwrap()
    };
    let layers = traced.layers.iter();
    let layers = layers.map(|layer| weighted(layer, 0.7));
    layers.fold(weighted(&traced.outputs, 0.2), |sum, layer| {
        (sum + layer).unwrap()
    })
}

#[test]
fn gradients_are_those_of_differences() {
    let data = golden();
    for (name, model) in all_models() {
        let options = TrainableOptions {
            dtype: DType::F64,
            dropout: 0.3,
            ..TrainableOptions::new(LENGTH)
        };
        let network = TrainableNetwork::from_model(&model, &options, &Device::Cpu).unwrap();
        let input = input(&name, &data);
        let store = loss(&network, &input).backward().unwrap();
        for parameter in network.parameters() {
            let own = numbers(store.get(&parameter.var).unwrap());
            for at in [0, own.len() / 2, own.len() - 1] {
                let h = 1e-5;
                let at_of = |by: f64| {
                    moved(&parameter.var, at, by);
                    let value = numbers(&loss(&network, &input))[0];
                    moved(&parameter.var, at, -by);
                    value
                };
                let slope = (at_of(h) - at_of(-h)) / (2.0 * h);
                assert!(
                    (slope - own[at]).abs() < 1e-6 * (10.0 + slope.abs()),
                    "{name}, {} {at}: {slope} {}",
                    parameter.name,
                    own[at]
                );
            }
        }
    }
}

#[test]
fn a_trained_network_is_a_model_of_the_same_outputs_and_is_written_in_its_layout() {
    let data = golden();
    let folder = tempfile::tempdir().unwrap();
    for (name, model) in all_models() {
        let network = network(&model, DType::F64);
        assert!(network.to_model().unwrap() == model, "{name}");
        let input = input(&name, &data);
        let before = outputs(&network, &input);
        for parameter in network.parameters() {
            (0..parameter.var.elem_count()).for_each(|at| {
                moved(&parameter.var, at, 0.02 * (1.0 + 0.3 * at as f64).sin());
            });
        }
        let after = outputs(&network, &input);
        assert!(worst(&before, &after) > 1e-3, "{name}");
        let trained = network.to_model().unwrap();
        let found = logits(&trained, &data.sequences(&name));
        let apart = worst(&after, &found);
        assert!(apart < 1e-10, "{name}: {apart:e}");
        if name == "both" {
            continue;
        }
        let path = folder.path().join(format!("{name}.safetensors"));
        write(&opened(&name).with_model(trained), &path).unwrap();
        let again = hankelite::read(&path, &Declared::default()).unwrap();
        let apart = worst(&after, &logits(&again.model, &data.sequences(&name)));
        let largest = after.iter().fold(1.0f64, |m, y| m.max(y.abs()));
        assert!(apart < 3e-5 * largest, "{name}: {apart:e}");
    }
}

#[test]
fn the_number_of_threads_changes_no_bit() {
    let data = golden();
    for (name, model) in all_models() {
        let network = network(&model, DType::F32);
        let mut input = input(&name, &data);
        // Several slabs.
        input.steps = Tensor::cat(&[&input.steps; 9], 0).unwrap();
        let bits = |threads: usize| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
            pool.unwrap().install(|| {
                let loss = loss(&network, &input);
                let store = loss.backward().unwrap();
                let gradients = network.parameters().iter();
                let gradients = gradients.map(|p| numbers(store.get(&p.var).unwrap()));
                let mut all = gradients.collect::<Vec<_>>().concat();
                all.extend(numbers(&loss));
                all.iter().map(|x| x.to_bits()).collect::<Vec<_>>()
            })
        };
        assert_eq!(bits(1), bits(2), "{name}");
        assert_eq!(bits(1), bits(3), "{name}");
    }
}

/// What the network of a changed first layer is refused with.
fn refused(change: impl FnOnce(&mut hankelite::model::BlockParts)) -> NetworkError {
    let model = models::changed(&in_both_directions(), |parts| {
        models::change_layer(parts, 0, change);
    });
    let options = TrainableOptions::new(LENGTH);
    let network = TrainableNetwork::from_model(&model, &options, &Device::Cpu);
    network.err().expect("such a layer is refused")
}

#[test]
fn layers_that_cannot_be_trained_are_refused_by_name() {
    let name = in_both_directions().blocks()[0].name().to_string();
    let grows = refused(|layer| {
        let grown = |system: &DiagonalSystem| {
            let mut exponents = system.exponents().to_vec();
            exponents[1].re = 0.1;
            let (input, output) = (system.input().clone(), system.output().clone());
            let through = system.feedthrough().clone();
            DiagonalSystem::new(system.time(), exponents, input, output, through).unwrap()
        };
        layer.systems = layer.systems.iter().map(grown).collect();
        layer.backward = layer.backward.iter().map(grown).collect();
    });
    assert!(matches!(&grows, NetworkError::Pole { layer, .. } if *layer == name));
    assert!(grows.to_string().contains("does not decay"), "{grows}");
    let apart = refused(|layer| {
        let own = &layer.backward[0];
        let input = own.input() * Complex64::from(2.0);
        let (exponents, output) = (own.exponents().to_vec(), own.output().clone());
        let through = own.feedthrough().clone();
        let other = DiagonalSystem::new(own.time(), exponents, input, output, through);
        layer.backward = vec![other.unwrap()];
    });
    assert!(
        apart.to_string().contains("input weights of their own"),
        "{apart}"
    );
    let late = refused(|layer| layer.backward_from = 1);
    assert!(
        late.to_string().contains("starts at the next sample"),
        "{late}"
    );
    for message in [apart.to_string(), late.to_string()] {
        assert!(message.contains(&name), "{message}");
    }
}

#[test]
fn penalties_on_filters_are_refused_by_name() {
    let data = golden();
    for name in ["s5_full_glu", "lru_half_glu1"] {
        let network = network(&opened(name).model, DType::F32);
        for penalty in [Penalty::Measure, Penalty::FilterNorm, Penalty::Hankel] {
            let wanted = Wanted {
                layers: false,
                penalty: Some(penalty),
            };
            let traced = network.traced(&input(name, &data), Mode::Evaluate, wanted);
            let message = traced.expect_err("there is none").to_string();
            assert!(message.contains("several inputs"), "{message}");
            assert!(message.contains("regularise"), "{message}");
        }
    }
}

/// The B and C of every layer at 4 bits.
fn held(model: &Model) -> (StorageChoice, TrainableNetwork) {
    let layer = LayerChoice {
        systems: Some(MapChoice::of(Entries::Int4)),
        ..LayerChoice::default()
    };
    let choice = StorageChoice {
        layers: vec![layer; model.blocks().len()],
        ..StorageChoice::default()
    };
    let options = TrainableOptions {
        dtype: DType::F64,
        maps: HeldMaps::of(&choice),
        ..TrainableOptions::new(LENGTH)
    };
    let network = TrainableNetwork::from_model(model, &options, &Device::Cpu).unwrap();
    (choice, network)
}

/// How far B, C and D of two models are apart, relative to the largest.
fn apart(one: &Model, other: &Model) -> f64 {
    let blocks = one.blocks().iter().zip(other.blocks());
    let apart = blocks.map(|(one, other)| {
        let (one, other) = (&one.systems()[0], &other.systems()[0]);
        let far = |a: &DMatrix<Complex64>, b: &DMatrix<Complex64>| (a - b).norm() / b.norm();
        let through = (one.feedthrough() - other.feedthrough()).norm() / other.feedthrough().norm();
        far(one.input(), other.input())
            .max(far(one.output(), other.output()))
            .max(through)
    });
    apart.fold(0.0, f64::max)
}

#[test]
fn input_and_output_weights_of_few_bits_compute_and_are_written_as_an_image_stores_them() {
    let dense = models::changed(&in_both_directions(), |parts| {
        models::change_layer(parts, 0, |layer| layer.backward.clear());
    });
    let data = golden();
    for (name, model) in [
        ("lru_half_glu1", opened("lru_half_glu1").model),
        ("both", dense),
    ] {
        let (choice, held) = held(&model);
        let stored = |model: &Model| {
            let storage = Storage::chosen(model, &choice).unwrap();
            storage.applied(model).unwrap()
        };
        let written = held.to_model().unwrap();
        assert!(apart(&written, &model) > 1e-3);
        // Rounded once, in coordinates in which B and C are of one size; rounded again, nothing changes.
        assert!(apart(&written, &stored(&written)) < 1e-12);
        let input = input(name, &data);
        let own = outputs(&held, &input);
        assert!(worst(&own, &outputs(&network(&written, DType::F64), &input)) < 1e-10);
        // Every number moves: through the rounding, or by the scales.
        let store = loss(&held, &input).backward().unwrap();
        let mut ranges = 0;
        for parameter in held.parameters() {
            let slopes = numbers(store.get(&parameter.var).unwrap());
            assert!(slopes.iter().any(|x| *x != 0.0), "{}", parameter.name);
            ranges += usize::from(parameter.name.ends_with("range"));
        }
        assert_eq!(ranges, 2 * model.blocks().len());

        // Scales and weights that training has moved are found again in what it wrote.
        for parameter in held.parameters() {
            if parameter.name.ends_with("range") || parameter.name.ends_with("input") {
                let moved = parameter.var.affine(1.07, 0.0).unwrap();
                parameter.var.set(&moved).unwrap();
            }
        }
        let moved = held.to_model().unwrap();
        assert!(apart(&moved, &written) > 1e-3);
        assert!(apart(&moved, &stored(&moved)) < 1e-12);
    }
}

#[test]
fn what_was_held_comes_through_a_file_and_is_rounded_to_itself() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["lru_half_glu1", "s5_full_glu", "s5_gelu"] {
        let source = opened(name);
        let (choice, held) = held(&source.model);
        let path = folder.path().join(format!("{name}.safetensors"));
        write(&source.with_model(held.to_model().unwrap()), &path).unwrap();
        let read = hankelite::read(&path, &Declared::default()).unwrap().model;
        assert!(apart(&read, &held.to_model().unwrap()) < 1e-6, "{name}");
        let storage = Storage::chosen(&read, &choice).unwrap();
        let stored = storage.applied(&read).unwrap();
        let far = apart(&stored, &read);
        assert!(far < 1e-6, "{name}: {far:e}");
    }
}
