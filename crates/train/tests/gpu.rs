//! A GPU against the processor: outputs and gradients of the same networks. `.ci/gpu` runs it.
#![cfg(feature = "cuda")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use candle_core::{Device, Tensor};
use hankelite_train::nn::{
    Architecture, Mode, NetworkInput, Penalty, SequenceModel, TrainableNetwork, Wanted,
};
use hankelite_train::{Gradients, scalar};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

const LENGTH: usize = 300;
const BATCH: usize = 6;

/// Every kind of layer, norm, place and output, with and without dropout.
const NETWORKS: [&str; 5] = [
    "layer = \"s4d\"",
    "layer = \"s4d\"\ndropout = 0.2",
    "layer = \"dss-exp\"\nplacement = \"post\"\noutput = \"linear\"",
    "layer = \"dss-softmax\"\npooling = \"last\"",
    "layer = \"s4d\"\nnorm = \"batch\"\nbidirectional = true",
];

fn network(text: &str, device: &Device) -> TrainableNetwork {
    let text = format!("{text}\nchannels = 16\nstates = 8\nlayers = 3\ninputs = 2\noutputs = 5");
    let architecture: Architecture = toml::from_str(&text).unwrap();
    TrainableNetwork::random(&architecture, LENGTH, 7, device).unwrap()
}

/// Outputs, and the gradients of a loss that holds the outputs, all layers and the filters.
fn found(text: &str, penalty: Penalty, device: &Device) -> (Vec<f32>, Vec<(String, Vec<f32>)>) {
    let network = network(text, device);
    let steps = (0..BATCH * LENGTH * 2).map(|i| (i as f32 * 0.37).sin());
    let steps = Tensor::from_vec(steps.collect::<Vec<_>>(), (BATCH, LENGTH, 2), device).unwrap();
    let input = NetworkInput {
        steps,
        lengths: None,
    };
    let mut random = ChaCha8Rng::seed_from_u64(0);
    let wanted = Wanted {
        layers: true,
        penalty: Some(penalty),
    };
    let traced = network
        .traced(&input, Mode::Train(&mut random), wanted)
        .unwrap();
    let mut loss = traced.outputs.sqr().unwrap().mean_all().unwrap();
    for layer in &traced.layers {
        loss = (loss + layer.sqr().unwrap().mean_all().unwrap()).unwrap();
    }
    let penalty = traced.penalties.unwrap().sum_all().unwrap();
    let penalty = penalty.to_dtype(loss.dtype()).unwrap();
    loss = (loss + (penalty * 1e-3).unwrap()).unwrap();
    assert!(scalar(&loss).unwrap().is_finite());
    let store = loss.backward().unwrap();
    let gradients = network.parameters().iter().map(|parameter| {
        let gradient = store.get(parameter.var.as_tensor()).unwrap();
        let values = gradient.flatten_all().unwrap().to_vec1::<f32>().unwrap();
        (parameter.name.clone(), values)
    });
    let outputs = traced.outputs.flatten_all().unwrap().to_vec1().unwrap();
    // The norm is summed on the device.
    Gradients::collect(network.parameters(), &store)
        .unwrap()
        .norm()
        .unwrap();
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

#[test]
fn a_gpu_gives_what_the_processor_gives() {
    let gpu = Device::new_cuda(0).unwrap();
    let measured = NETWORKS.map(|text| (text, Penalty::Measure));
    let others = [Penalty::FilterNorm, Penalty::Hankel].map(|penalty| (NETWORKS[0], penalty));
    for (text, penalty) in measured.into_iter().chain(others) {
        let (outputs, gradients) = found(text, penalty, &gpu);
        let (expected, expected_gradients) = found(text, penalty, &Device::Cpu);
        assert!(apart(&outputs, &expected) < 1e-4, "{text}");
        for ((name, own), (_, expected)) in gradients.iter().zip(&expected_gradients) {
            let apart = apart(own, expected);
            assert!(apart < 1e-4, "{text} {penalty:?}: {name} is {apart} apart");
        }
    }
}
