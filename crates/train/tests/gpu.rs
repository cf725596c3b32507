//! A GPU against the processor: outputs and gradients of the same networks. `.ci/gpu` runs it.
#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use candle_core::{Device, Tensor};
use hankelite_train::nn::{
    Architecture, Mode, NetworkInput, Penalty, SequenceModel, TrainableNetwork, TrainableOptions,
    Wanted,
};
use hankelite_train::{AdamW, AdamWSettings, Gradients, clip_factor, scalar};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

/// Sequences and their steps.
#[derive(Clone, Copy)]
struct Shape {
    batch: usize,
    length: usize,
}

const SHORT: Shape = Shape {
    batch: 6,
    length: 300,
};

/// More than one tile of the kernels, whose threads hold 1,024 steps together.
const LONG: Shape = Shape {
    batch: 2,
    length: 1100,
};

/// Every kind of layer, norm, place and output, with and without dropout.
const NETWORKS: [&str; 9] = [
    "layer = \"s4d\"",
    "layer = \"s4d\"\ndropout = 0.2",
    "layer = \"s4d\"\noutput = \"linear\"\ndropout = 0.2",
    "layer = \"s4d\"\npooling = \"none\"\nplacement = \"post\"",
    "layer = \"dss-exp\"\nplacement = \"post\"\noutput = \"linear\"",
    "layer = \"dss-exp\"\nbidirectional = true",
    "layer = \"dss-softmax\"\npooling = \"last\"",
    "layer = \"s4d\"\nnorm = \"batch\"\nbidirectional = true",
    "layer = \"dss-exp\"\npooling = \"last\"",
];

/// Layers whose channels share modes, by file.
const SHARED: [(&str, &[u8]); 2] = [
    (
        "an S5",
        include_bytes!("../../../tests/data/flax/s5_full_glu.safetensors"),
    ),
    (
        "an LRU",
        include_bytes!("../../../tests/data/flax/lru_half_glu1.safetensors"),
    ),
];

fn network(text: &str, length: usize, device: &Device) -> TrainableNetwork {
    let text = format!("{text}\nchannels = 16\nstates = 8\nlayers = 3\ninputs = 2\noutputs = 5");
    let architecture: Architecture = toml::from_str(&text).unwrap();
    TrainableNetwork::random(&architecture, length, 7, device).unwrap()
}

fn of_file(bytes: &[u8], length: usize, device: &Device) -> TrainableNetwork {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("model.safetensors");
    std::fs::write(&file, bytes).unwrap();
    let model = hankelite::read(&file, &hankelite::Declared::default())
        .unwrap()
        .model;
    TrainableNetwork::from_model(&model, &TrainableOptions::new(length), device).unwrap()
}

fn input(Shape { batch, length }: Shape, device: &Device) -> NetworkInput {
    let steps = (0..batch * length * 2).map(|i| (i as f32 * 0.37).sin());
    let steps = Tensor::from_vec(steps.collect::<Vec<_>>(), (batch, length, 2), device).unwrap();
    let lengths = None;
    NetworkInput { steps, lengths }
}

/// Outputs, and the gradients of a loss that holds the outputs and all that is wanted.
fn found(
    network: &TrainableNetwork,
    shape: Shape,
    wanted: Wanted,
) -> (Vec<f32>, Vec<(String, Vec<f32>)>) {
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let input = input(shape, network.device());
    let traced = network
        .traced(&input, Mode::Train(&mut random), wanted)
        .unwrap();
    let mut loss = traced.outputs.sqr().unwrap().mean_all().unwrap();
    for layer in &traced.layers {
        loss = (loss + layer.sqr().unwrap().mean_all().unwrap()).unwrap();
    }
    if let Some(penalties) = traced.penalties {
        let penalty = penalties.sum_all().unwrap();
        let penalty = penalty.to_dtype(loss.dtype()).unwrap();
        loss = (loss + (penalty * 1e-3).unwrap()).unwrap();
    }
    assert!(scalar(&loss).unwrap().is_finite());
    let store = loss.backward().unwrap();
    let found = network.gradients(&store).unwrap();
    let gradients = network.parameters().iter().zip(found);
    let gradients = gradients.map(|(parameter, gradient)| {
        let values = gradient.unwrap().flatten_all().unwrap().to_vec1::<f32>();
        (parameter.name.clone(), values.unwrap())
    });
    let outputs = traced.outputs.flatten_all().unwrap().to_vec1().unwrap();
    (outputs, gradients.collect())
}

/// Relative to the largest number.
fn apart(a: &[f32], b: &[f32]) -> f32 {
    let largest = b.iter().fold(1e-6f32, |most, x| most.max(x.abs()));
    let worst = a
        .iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs())
        .fold(0.0, f32::max);
    worst / largest
}

/// What is apart by more than one part in ten thousand.
fn faults(
    what: &str,
    shape: Shape,
    wanted: Wanted,
    networks: [&TrainableNetwork; 2],
) -> Vec<String> {
    let [(outputs, gradients), (expected, expected_gradients)] =
        networks.map(|network| found(network, shape, wanted));
    let mut apart_by = vec![("outputs".to_string(), apart(&outputs, &expected))];
    for ((name, own), (_, expected)) in gradients.iter().zip(&expected_gradients) {
        apart_by.push((name.clone(), apart(own, expected)));
    }
    // Not below the limit: a number that is none is a fault, too.
    apart_by
        .retain(|(_, apart)| !matches!(apart.partial_cmp(&1e-4), Some(std::cmp::Ordering::Less)));
    let faults = apart_by.into_iter();
    let faults = faults.map(|(name, apart)| format!("{what}, {wanted:?}: {name} is {apart} apart"));
    faults.collect()
}

/// What differs between a GPU and the processor, for some networks and for layers that share modes.
fn compare(shape: Shape, networks: &[&str]) -> Vec<String> {
    let gpu = Device::new_cuda(0).unwrap();
    let devices = [&gpu, &Device::Cpu];
    let alone = |layers| Wanted {
        layers,
        penalty: None,
    };
    let with = |penalty| Wanted {
        layers: true,
        penalty: Some(penalty),
    };
    let made = |text| devices.map(|device| network(text, shape.length, device));
    let mut all = Vec::new();
    for text in networks {
        let [a, b] = made(text);
        for wanted in [alone(false), alone(true), with(Penalty::Measure)] {
            all.extend(faults(text, shape, wanted, [&a, &b]));
        }
    }
    let [a, b] = made(NETWORKS[0]);
    for wanted in [Penalty::FilterNorm, Penalty::Hankel].map(with) {
        all.extend(faults(NETWORKS[0], shape, wanted, [&a, &b]));
    }
    for (what, bytes) in SHARED {
        let [a, b] = devices.map(|device| of_file(bytes, shape.length, device));
        all.extend(faults(what, shape, alone(true), [&a, &b]));
    }
    all
}

#[test]
fn a_gpu_gives_what_the_processor_gives() {
    let all = compare(SHORT, &NETWORKS);
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// Without batch norm, which candle's operations run: over so many steps they give gradients by poles up to
/// 8e-4 from the processor's, which are within 5e-5 of double precision.
#[test]
fn long_sequences_give_what_the_processor_gives() {
    let networks = NETWORKS.iter().filter(|text| !text.contains("batch"));
    let all = compare(LONG, &networks.copied().collect::<Vec<_>>());
    assert!(all.is_empty(), "{}", all.join("\n"));
}

/// A few steps of the optimiser, clipped by the norm of all gradients.
fn trained(device: &Device) -> (Vec<f64>, Vec<(String, Vec<f32>)>) {
    let network = network(NETWORKS[0], SHORT.length, device);
    let settings = AdamWSettings {
        lr: 1e-3,
        lr_dynamics: 2e-3,
        lr_steps: 5e-4,
        weight_decay: 0.1,
        weight_decay_poles: 0.01,
        beta1: 0.9,
        beta2: 0.999,
        epsilon: 1e-8,
    };
    let mut optimiser = AdamW::new(network.parameters(), settings).unwrap();
    let mut norms = Vec::new();
    for _ in 0..3 {
        let outputs = network
            .forward(&input(SHORT, device), Mode::Evaluate)
            .unwrap();
        assert_eq!(outputs.dims(), [SHORT.batch, 5]);
        let mut random = ChaCha8Rng::seed_from_u64(0);
        let wanted = Wanted::default();
        let traced = network.traced(&input(SHORT, device), Mode::Train(&mut random), wanted);
        let loss = traced.unwrap().outputs.sqr().unwrap().mean_all().unwrap();
        let store = loss.backward().unwrap();
        let gradients = Gradients::of(&network, &store).unwrap();
        let norm = gradients
            .norm_of_moved(network.parameters(), &settings)
            .unwrap();
        let scale = clip_factor(norm, Some(0.5 * norm));
        optimiser.step(&gradients, 0.7, scale).unwrap();
        norms.push(norm);
    }
    let values = network.parameters().iter().map(|parameter| {
        let flat = parameter.var.as_tensor().flatten_all().unwrap();
        (parameter.name.clone(), flat.to_vec1::<f32>().unwrap())
    });
    (norms, values.collect())
}

#[test]
fn the_optimiser_takes_the_same_steps() {
    let gpu = Device::new_cuda(0).unwrap();
    let [(norms, values), (expected_norms, expected)] = [&gpu, &Device::Cpu].map(trained);
    for (norm, expected) in norms.iter().zip(&expected_norms) {
        assert!(
            (norm - expected).abs() < 1e-4 * expected,
            "{norm} {expected}"
        );
    }
    for ((name, own), (_, expected)) in values.iter().zip(&expected) {
        let apart = apart(own, expected);
        assert!(apart < 1e-3, "{name} is {apart} apart");
    }
}
