//! The shallow transformer as a trainable network, beside its theory's own code.

use candle_core::{IndexOp, Tensor};
use hankelite_research::shallow::{
    Activation, Parameters, Query, Transformer, TransformerSize, Units,
};
use hankelite_train::nn::baseline::{
    BaselineArchitecture, BaselineKind, BaselineNetwork, BaselineOutput,
};
use hankelite_train::nn::{ArchitectureError, NetworkInput, PoolingKind, SequenceModel};

use crate::stacked::{check_gradients, double, largest, numbers, small, trained, wave};

const HEADS: usize = 6;
const WIDTH: usize = 3;

fn architecture(pooling: PoolingKind, outputs: usize) -> BaselineArchitecture {
    BaselineArchitecture {
        hidden: HEADS,
        layers: 1,
        outputs,
        pooling,
        ..small(BaselineKind::Transformer)
    }
}

fn values(network: &BaselineNetwork, name: &str) -> Vec<f64> {
    let mut all = network.parameters().iter();
    let found = all.find(|parameter| parameter.name == name).unwrap();
    found.var.flatten_all().unwrap().to_vec1().unwrap()
}

/// Replaces a parameter by a wave, so that twins are no longer equal.
fn move_away(network: &BaselineNetwork, seed: f64) {
    for (index, parameter) in network.parameters().iter().enumerate() {
        let step = wave(parameter.var.dims(), seed + index as f64);
        let moved = (parameter.var.as_tensor() + step).unwrap();
        parameter.var.set(&moved).unwrap();
    }
}

/// Where a number of the theory, of all heads after the number before it, stands in a parameter.
fn place(name: &str, at: usize) -> usize {
    let (number, head) = (at / HEADS, at % HEADS);
    match name {
        "attention.keys" => (number / WIDTH * HEADS + head) * WIDTH + number % WIDTH,
        "attention.neurons" => head * WIDTH + number,
        _ => head,
    }
}

/// The same heads in the code of the theory: each number of all heads after the other.
fn theory(network: &BaselineNetwork) -> Transformer {
    let size = TransformerSize {
        units: HEADS,
        width: WIDTH,
    };
    let start = Transformer::symmetric(size, Query::Last, Activation::Tanh, 0).unwrap();
    let mut parameters: Parameters = start.parameters().clone();
    let names = ["head.weight", "attention.neurons", "attention.keys"];
    for (group, name) in names.into_iter().enumerate() {
        let found = values(network, name);
        for (at, value) in parameters.group_mut(group).iter_mut().enumerate() {
            *value = found[place(name, at)];
        }
    }
    start.with_parameters(parameters)
}

#[test]
fn outputs_are_zero_at_the_start() {
    for pooling in [PoolingKind::Last, PoolingKind::Mean, PoolingKind::None] {
        let network = double(&architecture(pooling, 4));
        let out = trained(&network, &numbers(wave(&[2, 5, WIDTH], 0.3)));
        assert!(largest(&out) < 1e-15, "{}", largest(&out));
        move_away(&network, 1.0);
        let out = trained(&network, &numbers(wave(&[2, 5, WIDTH], 0.3)));
        assert!(largest(&out) > 1e-2);
    }
    let dictionary = BaselineArchitecture {
        output: BaselineOutput::Dictionary,
        ..architecture(PoolingKind::None, WIDTH)
    };
    let out = trained(&double(&dictionary), &numbers(wave(&[2, 5, WIDTH], 0.3)));
    assert!(largest(&out) < 1e-15);
}

/// Output and gradient at the last token, (2) to (8), for sequences of every length up to five.
#[test]
fn the_last_step_is_that_of_the_theory() {
    let network = double(&architecture(PoolingKind::None, 1));
    move_away(&network, 2.0);
    let model = theory(&network);
    let bias = values(&network, "head.bias")[0];
    let steps = wave(&[1, 5, WIDTH], 0.7);
    let out = trained(&network, &numbers(steps.clone()));
    for length in 1..=5 {
        let tokens = steps.i((0, ..length)).unwrap().flatten_all().unwrap();
        let tokens: Vec<f64> = tokens.to_vec1().unwrap();
        let answer = out.i((0, length - 1, 0)).unwrap();
        let expected = model.output(&tokens) + bias;
        assert!((answer.to_scalar::<f64>().unwrap() - expected).abs() < 1e-14);
        let gradients = answer.backward().unwrap();
        let expected = model.gradient(&tokens);
        let names = ["head.weight", "attention.neurons", "attention.keys"];
        for (group, name) in names.into_iter().enumerate() {
            let mut all = network.parameters().iter();
            let parameter = all.find(|parameter| parameter.name == name).unwrap();
            let found = gradients.get(&parameter.var).unwrap();
            let found: Vec<f64> = found.flatten_all().unwrap().to_vec1().unwrap();
            for (at, expected) in expected.group(group).iter().enumerate() {
                let found = found[place(name, at)];
                assert!(
                    (found - expected).abs() < 1e-13,
                    "{name}: {found} {expected}"
                );
            }
        }
    }
}

#[test]
fn a_step_does_not_hear_what_comes_after() {
    let network = double(&architecture(PoolingKind::None, 2));
    move_away(&network, 3.0);
    let steps = wave(&[2, 6, WIDTH], 0.1);
    let start = steps.i((.., ..4)).unwrap().contiguous().unwrap();
    let other = Tensor::cat(&[&start, &wave(&[2, 2, WIDTH], 9.0)], 1).unwrap();
    let [whole, changed] = [steps, other].map(|steps| trained(&network, &numbers(steps)));
    let apart = (whole - changed).unwrap();
    assert_eq!(largest(&apart.i((.., ..4)).unwrap()), 0.0);
    assert!(largest(&apart.i((.., 4..)).unwrap()) > 1e-3);
}

#[test]
fn gradients_are_those_of_differences() {
    let reconstruction = BaselineArchitecture {
        measurements: Some(2),
        output: BaselineOutput::Dictionary,
        ..architecture(PoolingKind::None, WIDTH)
    };
    let network = double(&reconstruction);
    move_away(&network, 4.0);
    check_gradients(&network, &numbers(wave(&[2, 4, WIDTH], 0.5)));
    let network = double(&architecture(PoolingKind::Mean, 2));
    move_away(&network, 5.0);
    let padded = NetworkInput {
        steps: wave(&[2, 4, WIDTH], 1.5),
        lengths: Some(vec![4, 2]),
    };
    check_gradients(&network, &padded);
}

#[test]
fn what_attention_cannot_be_is_reported() {
    let good = architecture(PoolingKind::Mean, 2);
    let cases = [
        (
            BaselineArchitecture {
                layers: 2,
                ..good.clone()
            },
            "layers",
        ),
        (
            BaselineArchitecture {
                hidden: 5,
                ..good.clone()
            },
            "hidden",
        ),
        (
            BaselineArchitecture {
                hidden: 1 << 20,
                inputs: Some(1024),
                ..good
            },
            "hidden",
        ),
    ];
    for (architecture, expected) in cases {
        match architecture.check() {
            Err(ArchitectureError::Range { key, .. }) => assert_eq!(key, expected),
            other => panic!("{other:?}"),
        }
    }
}
