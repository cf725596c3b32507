//! Single steps: parity with PyTorch, groups, gradients.

use candle_core::{DType, Device, Tensor, Var};
use hankelite_data::Targets;
use hankelite_train::nn::{Group, Mode, NetworkInput, Parameter, SequenceModel};
use hankelite_train::{
    AdamW, Course, Gradients, Recipe, Schedule, TrainError, clip_factor, scalar, task_loss,
};

use crate::common;
use crate::points::CLASSES;
use crate::small::{Small, WIDTH};

#[test]
fn ten_steps_are_those_of_pytorch() {
    let reference = common::json(&common::here("reference/train_steps.json"));
    for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 2e-6)] {
        let mut network = Small::new(dtype, |name, _| common::reals(&reference["start"][name]));
        network.dropout = false;
        let (losses, norms) = ten_steps(&network, &common::reals(&reference["x"]));
        let close = |what: &str, found: &[f64], expected: &serde_json::Value| {
            for (found, expected) in found.iter().zip(common::reals(expected)) {
                let error = (found - expected).abs();
                assert!(error < tolerance, "{dtype:?} {what}: {found} {expected}");
            }
        };
        close("losses", &losses, &reference["losses"]);
        close("norms", &norms, &reference["norms"]);
        for parameter in network.parameters() {
            let found = parameter.var.to_dtype(DType::F64).unwrap();
            let found = found.flatten_all().unwrap().to_vec1().unwrap();
            close(&parameter.name, &found, &reference["end"][&parameter.name]);
        }
    }
}

/// Ten steps with groups, clipping, warm-up and cosine: the losses and the norms before each.
fn ten_steps(network: &Small, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let x = Tensor::from_slice(x, (4, 3, WIDTH), &Device::Cpu).unwrap();
    let input = NetworkInput {
        steps: x.to_dtype(network.parameters()[0].var.dtype()).unwrap(),
        lengths: None,
    };
    let targets = Targets::Classes {
        labels: vec![0, 2, 1, 2],
        classes: CLASSES,
    };
    let schedule = Schedule {
        course: Course::Cosine,
        warmup: 3,
        total: 10,
        floor: 0.1,
        plateau_factor: 0.5,
    };
    let settings = Recipe {
        lr: 0.05,
        lr_dynamics: 0.02,
        weight_decay: 0.1,
        weight_decay_poles: 0.0,
        ..Recipe::default()
    };
    let mut optimiser = AdamW::new(network.parameters(), settings.optimiser()).unwrap();
    let one = |step: u64| {
        let outputs = network.forward(&input, Mode::Evaluate).unwrap();
        let loss = task_loss(&outputs, &targets, 0.1).unwrap().value;
        let store = loss.backward().unwrap();
        let gradients = Gradients::collect(network.parameters(), &store).unwrap();
        let norm = gradients.norm().unwrap();
        let (rate, scale) = (schedule.factor(step, 0), clip_factor(norm, Some(0.4)));
        optimiser.step(&gradients, rate, scale).unwrap();
        (scalar(&loss).unwrap(), norm)
    };
    (0..10).map(one).unzip()
}

#[test]
fn only_plain_weights_decay() {
    let network = Small::started();
    let before = network.values();
    let settings = Recipe {
        lr: 0.5,
        lr_dynamics: 0.5,
        weight_decay: 0.2,
        ..Recipe::default()
    };
    let mut optimiser = AdamW::new(network.parameters(), settings.optimiser()).unwrap();
    let loss = network
        .parameters()
        .iter()
        .map(|p| p.var.sum_all().unwrap());
    let loss = loss.reduce(|sum, one| (sum + one).unwrap()).unwrap();
    let gradients = Gradients::collect(network.parameters(), &loss.backward().unwrap()).unwrap();
    // Gradients of zero leave the decay alone.
    optimiser.step(&gradients, 1.0, 0.0).unwrap();
    let after = network.values();
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]));
    for index in [1, 3] {
        let expected: Vec<f32> = before[index].iter().map(|w| w * 0.9).collect();
        assert_eq!(after[index], expected);
    }
}

#[test]
fn a_parameter_without_a_gradient_is_an_error() {
    let network = Small::started();
    let loss = network.parameters()[0].var.sum_all().unwrap();
    let error = Gradients::collect(network.parameters(), &loss.backward().unwrap()).unwrap_err();
    assert!(matches!(error, TrainError::NoGradient { parameter } if parameter == "w1"));
}

/// θ with a scale s takes the steps of φ in θ = θ₀ + s φ.
#[test]
fn a_scaled_rate_is_a_change_of_variables() {
    let tensor = |values: &[f64]| Tensor::new(values, &Device::Cpu).unwrap();
    let (start, scale) = (tensor(&[0.7, -1.3, 2.0]), tensor(&[1.0, 1e-3, 0.2]));
    let parameter = |var: &Var, scale: Option<&Tensor>| Parameter {
        name: "p".to_string(),
        var: var.clone(),
        group: Group::Poles,
        scale: scale.cloned(),
    };
    let theta = Var::from_tensor(&start).unwrap();
    let phi = Var::from_tensor(&start.zeros_like().unwrap()).unwrap();
    let of_phi = || (&start + (phi.as_tensor() * &scale).unwrap()).unwrap();
    let scaled = [parameter(&theta, Some(&scale))];
    let plain = [parameter(&phi, None)];
    let settings = Recipe::default().optimiser();
    let mut one = AdamW::new(&scaled, settings).unwrap();
    let mut other = AdamW::new(&plain, settings).unwrap();
    let loss = |theta: &Tensor| theta.powf(4.0).unwrap().sum_all().unwrap();
    for _ in 0..6 {
        let store = loss(theta.as_tensor()).backward().unwrap();
        let of_theta = Gradients::collect(&scaled, &store).unwrap();
        let store = loss(&of_phi()).backward().unwrap();
        let gradients = Gradients::collect(&plain, &store).unwrap();
        let (a, b) = (of_theta.norm().unwrap(), gradients.norm().unwrap());
        assert!((a - b).abs() < 1e-12 * b, "{a} {b}");
        one.step(&of_theta, 3.0, clip_factor(a, Some(1.0))).unwrap();
        other
            .step(&gradients, 3.0, clip_factor(b, Some(1.0)))
            .unwrap();
    }
    let far = (theta.as_tensor() - of_phi()).unwrap().abs().unwrap();
    let far = far.max_all().unwrap().to_scalar::<f64>().unwrap();
    assert!(far < 1e-14, "{far}");
    let moved = (theta.as_tensor() - &start)
        .unwrap()
        .to_vec1::<f64>()
        .unwrap();
    assert!(moved[0].abs() > 1e-2 && moved[1].abs() < 1e-4, "{moved:?}");
}
