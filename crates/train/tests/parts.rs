//! Parts of networks from files: the normalisation before the head, and poles that both directions of
//! time share.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../../tests/common/models.rs"]
mod models;

use candle_core::{DType, Device, Tensor, Var};
use common::here;
use hankelite::control::num_complex::Complex64;
use hankelite::control::{DiagonalSystem, Time};
use hankelite::model::{BatchNorm, Encoder, Model, Norm, Sequence};
use hankelite::rounding::{Entries, LayerChoice, MapChoice, Storage, StorageChoice};
use hankelite::{Declared, infer};
use hankelite_archive::Archive;
use hankelite_train::nn::{
    Architecture, HeldMaps, LayerKind, Mode, NetworkInput, SequenceModel, TrainableNetwork,
    TrainableOptions, random_model,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const LENGTH: usize = 20;

/// The pre-norm network of the full state-spaces/s4 repository, with a normalisation before its head.
fn pre() -> Model {
    let file = here("data/repository/pre.ckpt");
    hankelite::read(file, &Declared::default()).unwrap().model
}

/// The same with a batch norm in that place.
fn pre_with_batch_norm() -> Model {
    models::changed(&pre(), |parts| {
        let norm = parts.final_norm.as_mut().unwrap();
        let (weight, bias, epsilon) = norm.affine();
        *norm = Norm::Batch(BatchNorm {
            weight: weight.to_vec(),
            bias: bias.to_vec(),
            mean: bias.iter().map(|x| 0.3 + x).collect(),
            variance: bias.iter().map(|x| 0.4 + x.abs()).collect(),
            epsilon,
        });
    })
}

fn network(model: &Model) -> TrainableNetwork {
    let options = TrainableOptions {
        dtype: DType::F64,
        ..TrainableOptions::new(LENGTH)
    };
    TrainableNetwork::from_model(model, &options, &Device::Cpu).unwrap()
}

fn truth(key: &str) -> Vec<f64> {
    let truth = Archive::open(here("data/repository/truth.safetensors")).unwrap();
    truth.tensor(key).unwrap().to_f64().unwrap()
}

fn inputs() -> (Vec<f32>, NetworkInput) {
    let values: Vec<f32> = truth("pre/inputs").iter().map(|&x| x as f32).collect();
    let shape = (values.len() / (2 * LENGTH), LENGTH, 2);
    let steps = Tensor::from_vec(values.clone(), shape, &Device::Cpu).unwrap();
    let lengths = None;
    (values, NetworkInput { steps, lengths })
}

fn outputs(network: &TrainableNetwork, input: &NetworkInput) -> Vec<f64> {
    let out = network.forward(input, Mode::Evaluate).unwrap();
    out.flatten_all().unwrap().to_vec1().unwrap()
}

fn worst(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let far = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    far.fold(0.0, f64::max)
}

#[test]
fn a_normalisation_before_the_head_gives_the_logits_of_the_original_code_and_of_the_host() {
    let (values, input) = inputs();
    assert!(worst(&outputs(&network(&pre()), &input), &truth("pre/last")) < 1e-8);
    for model in [pre(), pre_with_batch_norm()] {
        let host = infer::Network::new(&model, LENGTH, infer::Path::Fft).unwrap();
        let sequences: Vec<_> = values.chunks(2 * LENGTH).map(Sequence::Values).collect();
        let expected = host.logits_of_all(&sequences).unwrap().concat();
        let network = network(&model);
        assert!(worst(&outputs(&network, &input), &expected) < 1e-9);
        assert!(network.to_model().unwrap() == model);
    }
}

/// Every entry of the last normalisation and of the head, by differences.
#[test]
fn its_gradients_agree_with_differences() {
    let (_, input) = inputs();
    for (model, buffers) in [(pre(), 0), (pre_with_batch_norm(), 2)] {
        let network = network(&model);
        assert_eq!(network.buffers().len(), buffers);
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let mut loss = || {
            let out = network.forward(&input, Mode::Train(&mut random)).unwrap();
            (out.sqr().unwrap() * 0.5).unwrap().sum_all().unwrap()
        };
        let store = loss().backward().unwrap();
        let checked = network.parameters().iter().filter(|parameter| {
            let name = &parameter.name;
            name.starts_with("final_norm") || name == "blocks.0.weights"
        });
        let mut count = 0;
        for parameter in checked {
            let var = &parameter.var;
            let own = store.get(var).unwrap().flatten_all().unwrap();
            let own = own.to_vec1::<f64>().unwrap();
            for (at, own) in own.iter().enumerate() {
                let h = 1e-5;
                let slope =
                    (moved(var, at, h, &mut loss) - moved(var, at, -h, &mut loss)) / (2.0 * h);
                let name = &parameter.name;
                let far = (slope - own).abs();
                assert!(
                    far < 1e-6 * (1.0 + slope.abs()),
                    "{name} {at}: {slope} {own}"
                );
                count += 1;
            }
        }
        assert!(count > 8, "{count}");
    }
}

/// The loss with one entry of a variable moved.
fn moved(var: &Var, at: usize, by: f64, loss: &mut impl FnMut() -> Tensor) -> f64 {
    let before = var.as_tensor().copy().unwrap();
    let mut values = before.flatten_all().unwrap().to_vec1::<f64>().unwrap();
    values[at] += by;
    var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu).unwrap())
        .unwrap();
    let found = loss().to_scalar().unwrap();
    var.set(&before).unwrap();
    found
}

#[test]
fn both_directions_keep_one_set_of_poles() {
    let text = "layer = \"s4d\"\nchannels = 3\nstates = 4\nlayers = 2\ninputs = 2\noutputs = 3\n\
                bidirectional = true";
    let architecture: Architecture = toml::from_str(text).unwrap();
    assert_eq!(architecture.layer, LayerKind::S4d);
    let model = random_model(&architecture, LENGTH, 1).unwrap();
    let network = network(&model);
    let names: Vec<&str> = network.parameters().iter().map(|p| &*p.name).collect();
    assert!(names.contains(&"blocks.1.backward.weights"));
    assert!(!names.iter().any(|name| name.contains("backward.log")));
    assert!(network.to_model().unwrap() == model);
    // Moved by their gradients, which are the sums over both directions.
    let (_, input) = inputs();
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let mut loss = || {
        let out = network.forward(&input, Mode::Train(&mut random)).unwrap();
        (out.sqr().unwrap() * 0.5).unwrap().sum_all().unwrap()
    };
    let store = loss().backward().unwrap();
    let mut frequency = None;
    for parameter in network.parameters() {
        let gradient = store.get(&parameter.var).unwrap();
        if parameter.name == "blocks.0.frequency" {
            let own = gradient.flatten_all().unwrap().to_vec1::<f64>().unwrap()[2];
            let h = 1e-5;
            let var = &parameter.var;
            let slope = (moved(var, 2, h, &mut loss) - moved(var, 2, -h, &mut loss)) / (2.0 * h);
            assert!(
                (slope - own).abs() < 1e-6 * (1.0 + slope.abs()),
                "{slope} {own}"
            );
            frequency = Some(own);
        }
    }
    assert!(frequency.unwrap() != 0.0);
    for parameter in network.parameters() {
        let gradient = store.get(&parameter.var).unwrap();
        let next = (parameter.var.as_tensor().detach() - (gradient * 1e-3).unwrap()).unwrap();
        parameter.var.set(&next).unwrap();
    }
    let after = network.to_model().unwrap();
    assert!(after != model);
    for block in after.blocks() {
        for (one, other) in block.systems().iter().zip(block.backward()) {
            assert_eq!(one.exponents(), other.exponents());
            assert_eq!(one.time(), other.time());
            assert!(one.residues().unwrap() != other.residues().unwrap());
        }
    }
}

/// The output maps of all layers alike.
fn alike(layers: usize, choice: MapChoice) -> HeldMaps {
    HeldMaps {
        layers: vec![Some(choice); layers],
        ..HeldMaps::default()
    }
}

/// A network whose output maps are held at few bits, and the same without.
fn held(entries: Entries) -> (TrainableNetwork, TrainableNetwork) {
    let options = TrainableOptions {
        dtype: DType::F64,
        maps: alike(pre().blocks().len(), MapChoice::of(entries)),
        ..TrainableOptions::new(LENGTH)
    };
    let held = TrainableNetwork::from_model(&pre(), &options, &Device::Cpu).unwrap();
    let rounded = network(&held.to_model().unwrap());
    (held, rounded)
}

#[test]
fn maps_of_few_bits_compute_and_are_written_as_rounded_and_gradients_pass_them() {
    let (_, input) = inputs();
    let plain = outputs(&network(&pre()), &input);
    let mut moved = Vec::new();
    for entries in [Entries::Int8, Entries::Int4, Entries::Int3, Entries::Int2] {
        let (held, rounded) = held(entries);
        assert!(worst(&outputs(&held, &input), &outputs(&rounded, &input)) < 1e-12);
        moved.push(worst(&outputs(&held, &input), &plain));
        // What is written is what an image of as many bits stores.
        let model = held.to_model().unwrap();
        let stored = Storage::nearest(&pre(), entries, 32).unwrap();
        let stored = stored.applied(&pre()).unwrap();
        let maps = |model: &Model| {
            let maps = model.blocks().iter().map(|block| block.output().unwrap());
            maps.map(|map| map.linear.weight.as_slice().to_vec())
                .collect::<Vec<_>>()
                .concat()
        };
        assert_eq!(maps(&model), maps(&stored));
        // Rounded again, nothing changes.
        let again = Storage::nearest(&model, entries, 32).unwrap();
        assert_eq!(maps(&again.applied(&model).unwrap()), maps(&model));
        // Straight through: the gradients are those at the rounded weights.
        let gradients = |network: &TrainableNetwork| {
            let mut random = ChaCha8Rng::seed_from_u64(0);
            let out = network.forward(&input, Mode::Train(&mut random)).unwrap();
            let store = out.sqr().unwrap().sum_all().unwrap().backward().unwrap();
            let all = network.parameters().iter();
            let all = all.filter(|parameter| !parameter.name.ends_with("range"));
            let all = all.map(|parameter| {
                let gradient = store.get(&parameter.var).unwrap();
                gradient.flatten_all().unwrap().to_vec1::<f64>().unwrap()
            });
            all.collect::<Vec<_>>().concat()
        };
        let (own, expected) = (gradients(&held), gradients(&rounded));
        let size = expected.iter().fold(0.0f64, |m, x| m.max(x.abs()));
        assert!(worst(&own, &expected) < 1e-10 * size);
    }
    assert!(
        0.0 < moved[0] && moved[0] < moved[1].min(moved[2]),
        "{moved:?}"
    );
}

/// Bits of its own for every map, the ends included.
fn each_of_its_own() -> StorageChoice {
    let of = |entries| Some(MapChoice::of(entries));
    let kinds = [Entries::Int4, Entries::Bf16, Entries::Int3, Entries::Int2];
    let layers = kinds.into_iter().cycle().take(pre().blocks().len());
    let layers = layers.map(|entries| LayerChoice {
        map: of(entries),
        ..LayerChoice::default()
    });
    StorageChoice {
        layers: layers.collect(),
        encoder: of(Entries::Int8),
        head: of(Entries::Int4),
        ..StorageChoice::default()
    }
}

#[test]
fn maps_held_at_bits_of_their_own_are_written_as_a_storage_of_those() {
    let choice = each_of_its_own();
    let options = TrainableOptions {
        dtype: DType::F64,
        maps: HeldMaps::of(&choice),
        ..TrainableOptions::new(LENGTH)
    };
    let held = TrainableNetwork::from_model(&pre(), &options, &Device::Cpu).unwrap();
    let stored = |model: &Model| {
        let storage = Storage::chosen(model, &choice).unwrap();
        storage.applied(model).unwrap()
    };
    let maps = |model: &Model| {
        let blocks = model.blocks().iter();
        let blocks = blocks.map(|block| block.output().unwrap().linear.weight.clone());
        let Some(Encoder::Linear(encoder)) = model.encoder() else {
            panic!("an encoder of numbers");
        };
        let ends = [
            encoder.weight.clone(),
            model.head().unwrap().linear.weight.clone(),
        ];
        blocks.chain(ends).collect::<Vec<_>>()
    };
    let model = held.to_model().unwrap();
    assert_eq!(maps(&model), maps(&stored(&pre())));
    let (_, input) = inputs();
    assert!(worst(&outputs(&held, &input), &outputs(&network(&model), &input)) < 1e-12);

    // Scales that training has moved are found again in what it wrote.
    for parameter in held.parameters() {
        if parameter.name.ends_with("range") {
            let moved = parameter.var.affine(1.07, 0.0).unwrap();
            parameter.var.set(&moved).unwrap();
        }
    }
    let moved = held.to_model().unwrap();
    assert!(maps(&moved) != maps(&model));
    assert_eq!(maps(&stored(&moved)), maps(&moved));
}

#[test]
fn rounding_that_cannot_be_is_refused() {
    let layers = pre().blocks().len();
    let odd = MapChoice {
        entries: Entries::Int4,
        group: 24,
    };
    let wrong = [
        (alike(layers, odd), "a multiple of 16"),
        (
            alike(layers + 1, MapChoice::of(Entries::Int4)),
            "those of the network",
        ),
    ];
    for (maps, expected) in wrong {
        let options = TrainableOptions {
            maps,
            ..TrainableOptions::new(LENGTH)
        };
        let error = TrainableNetwork::from_model(&pre(), &options, &Device::Cpu).err();
        let error = error.unwrap().to_string();
        assert!(error.contains(expected), "{error}");
    }
}

/// Two real poles 1 ± h as the pair 1 ± i h: the weights are as 1/h, and cancel.
fn nearly_one(h: f64) -> Model {
    let text = "layer = \"s4d\"\nchannels = 1\nstates = 2\nlayers = 1\ninputs = 2\noutputs = 3";
    let model = random_model(&toml::from_str(text).unwrap(), LENGTH, 1).unwrap();
    models::with_systems(&model, |system| {
        let poles = vec![Complex64::new(-1.0, h), Complex64::new(-2.0, 30.0)];
        let residues = [Complex64::new(0.2, -0.1 / h), Complex64::new(0.5, 0.3)];
        let time = Time::Discrete { step: 0.1 };
        let d = system.feedthrough()[(0, 0)];
        DiagonalSystem::siso(time, poles, &residues, d).unwrap()
    })
}

#[test]
fn rates_of_poles_are_scaled_where_the_kernel_turns_over() {
    let of = |model: &Model| {
        let options = TrainableOptions {
            dtype: DType::F64,
            scaled_poles: true,
            ..TrainableOptions::new(LENGTH)
        };
        TrainableNetwork::from_model(model, &options, &Device::Cpu).unwrap()
    };
    for h in [1e-2, 1e-4] {
        let network = of(&nearly_one(h));
        let scaled: Vec<_> = (network.parameters().iter())
            .filter_map(|one| Some((&*one.name, one.scale.as_ref()?)))
            .collect();
        let names: Vec<&str> = scaled.iter().map(|(name, _)| *name).collect();
        assert_eq!(names, ["blocks.0.log_decay", "blocks.0.frequency"]);
        let values =
            |(_, scale): &(&str, &Tensor)| scale.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        // Together the two poles may move freely, apart they may not.
        let (decay, frequency) = (values(&scaled[0]), values(&scaled[1]));
        assert!(decay[0] > 0.1, "{h}: {decay:?}");
        assert!(
            frequency[0] < 30.0 * h && frequency[0] > h / 30.0,
            "{h}: {frequency:?}"
        );
        for scale in [decay[1], frequency[1]] {
            assert!(scale > 0.3 && scale <= 1.0, "{h}: {scale}");
        }
    }
    // By the definition: the kernel moves by the share of its norm that the step is.
    let (h, by) = (1e-3, 1e-9);
    let network = of(&nearly_one(h));
    let kernel = |network: &TrainableNetwork| -> Vec<f64> {
        let model = network.to_model().unwrap();
        let system = &model.blocks()[0].systems()[0];
        let mut kernel = vec![0.0; LENGTH];
        for (z, w) in system.exponents().iter().zip(system.residues().unwrap()) {
            for (l, k) in kernel.iter_mut().enumerate() {
                *k += (w * (z * 0.1 * l as f64).exp()).re;
            }
        }
        kernel[0] += system.feedthrough()[(0, 0)];
        kernel
    };
    let before = kernel(&network);
    let norm = |k: &[f64]| k.iter().map(|x| x * x).sum::<f64>().sqrt();
    for parameter in network.parameters() {
        let Some(scale) = &parameter.scale else {
            continue;
        };
        let scale = scale.flatten_all().unwrap().to_vec1::<f64>().unwrap()[0];
        let start = parameter.var.as_tensor().copy().unwrap();
        let mut moved = start.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        moved[0] += by * scale;
        let moved = Tensor::from_vec(moved, start.shape(), &Device::Cpu).unwrap();
        parameter.var.set(&moved).unwrap();
        let after = kernel(&network);
        parameter.var.set(&start).unwrap();
        let apart: Vec<f64> = before.iter().zip(&after).map(|(a, b)| a - b).collect();
        let share = norm(&apart) / norm(&before) / by;
        assert!(share < 1.001, "{}: {share}", parameter.name);
        assert!(scale == 1.0 || share > 0.999, "{}: {share}", parameter.name);
    }
}
