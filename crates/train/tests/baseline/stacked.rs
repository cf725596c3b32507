//! Stacked recurrent cells.

use candle_core::{DType, Device, Tensor};
use hankelite_archive::Archive;
use hankelite_train::nn::baseline::{
    BaselineArchitecture, BaselineKind, BaselineNetwork, BaselineOutput,
};
use hankelite_train::nn::{
    ArchitectureError, Mode, NetworkError, NetworkInput, PoolingKind, SequenceModel,
};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::common::here;

const STACKED: [BaselineKind; 6] = [
    BaselineKind::Rnn,
    BaselineKind::Lstm,
    BaselineKind::Gru,
    BaselineKind::IndRnn,
    BaselineKind::FastRnn,
    BaselineKind::SpectralRnn,
];

pub(crate) fn small(layer: BaselineKind) -> BaselineArchitecture {
    BaselineArchitecture {
        layer,
        hidden: 5,
        layers: 2,
        inputs: Some(3),
        vocabulary: None,
        outputs: 5,
        pooling: PoolingKind::None,
        measurements: None,
        output: BaselineOutput::Linear,
        omega1: None,
        omega2: None,
    }
}

pub(crate) fn double(architecture: &BaselineArchitecture) -> BaselineNetwork {
    BaselineNetwork::random(architecture, 1, DType::F64, &Device::Cpu).unwrap()
}

pub(crate) fn numbers(steps: Tensor) -> NetworkInput {
    NetworkInput {
        steps,
        lengths: None,
    }
}

/// Numbers that look random.
pub(crate) fn wave(shape: &[usize], seed: f64) -> Tensor {
    let count: usize = shape.iter().product();
    let numbers = (0..count).map(|i| ((i * i) as f64 * 0.37 + seed).sin());
    Tensor::from_vec(numbers.collect::<Vec<_>>(), shape, &Device::Cpu).unwrap()
}

pub(crate) fn trained(network: &BaselineNetwork, input: &NetworkInput) -> Tensor {
    let mut random = ChaCha8Rng::seed_from_u64(0);
    network.forward(input, Mode::Train(&mut random)).unwrap()
}

pub(crate) fn largest(tensor: &Tensor) -> f64 {
    let flat = tensor.abs().unwrap().flatten_all().unwrap();
    flat.max(0).unwrap().to_scalar().unwrap()
}

fn apart(a: &Tensor, b: &Tensor) -> f64 {
    largest(&(a - b).unwrap())
}

/// torch's names of our parameters.
fn torch_name(name: &str) -> Option<String> {
    let (layer, part) = name.strip_prefix("layers.")?.split_once('.')?;
    let part = match part {
        "input" => "weight_ih",
        "state" => "weight_hh",
        "input_bias" => "bias_ih",
        "state_bias" => "bias_hh",
        _ => return None,
    };
    Some(format!("{part}_l{layer}"))
}

/// tests/reference/make_cells.py
#[test]
fn cells_of_torch_give_its_states_and_gradients() {
    let archive = Archive::open(here("data/cells.safetensors")).unwrap();
    let tensor = |name: &str| {
        let array = archive.tensor(name).unwrap();
        Tensor::from_vec(array.to_f64().unwrap(), array.shape(), &Device::Cpu).unwrap()
    };
    for kind in [BaselineKind::Rnn, BaselineKind::Lstm, BaselineKind::Gru] {
        let network = double(&small(kind));
        let name = kind.name();
        for parameter in network.parameters() {
            let value = match (parameter.name.as_str(), torch_name(&parameter.name)) {
                (_, Some(torch)) => tensor(&format!("{name}.{torch}")),
                ("head.weight", _) => Tensor::eye(5, DType::F64, &Device::Cpu).unwrap(),
                ("head.bias", _) => Tensor::zeros(5, DType::F64, &Device::Cpu).unwrap(),
                (other, _) => panic!("{other}"),
            };
            parameter.var.set(&value).unwrap();
        }
        let out = trained(&network, &numbers(tensor(&format!("{name}.x"))));
        assert!(
            apart(&out, &tensor(&format!("{name}.out"))) < 1e-12,
            "{name}"
        );
        let slopes = tensor(&format!("{name}.slopes"));
        let gradients = (out * slopes)
            .unwrap()
            .sum_all()
            .unwrap()
            .backward()
            .unwrap();
        for parameter in network.parameters() {
            if let Some(torch) = torch_name(&parameter.name) {
                let found = gradients.get(&parameter.var).unwrap();
                let expected = tensor(&format!("{name}.grad.{torch}"));
                assert!(apart(found, &expected) < 1e-12, "{name} {torch}");
            }
        }
    }
}

/// Central differences of every entry of every parameter.
pub(crate) fn check_gradients(network: &BaselineNetwork, input: &NetworkInput) {
    let out = trained(network, input);
    let slopes = wave(out.dims(), 5.0);
    let loss = |out: Tensor| -> f64 {
        let sum = (out * &slopes).unwrap().sum_all().unwrap();
        sum.to_scalar().unwrap()
    };
    let gradients = (out * &slopes)
        .unwrap()
        .sum_all()
        .unwrap()
        .backward()
        .unwrap();
    let step = 1e-6;
    for parameter in network.parameters() {
        let found = gradients.get(&parameter.var);
        let found = found.unwrap_or_else(|| panic!("{} has no gradient", parameter.name));
        let found = found.flatten_all().unwrap().to_vec1::<f64>().unwrap();
        let values = parameter
            .var
            .flatten_all()
            .unwrap()
            .to_vec1::<f64>()
            .unwrap();
        let moved = |index: usize, by: f64| {
            let mut values = values.clone();
            values[index] += by;
            let tensor = Tensor::from_vec(values, parameter.var.shape(), &Device::Cpu);
            parameter.var.set(&tensor.unwrap()).unwrap();
            loss(network.forward(input, Mode::Evaluate).unwrap())
        };
        for (index, found) in found.iter().enumerate() {
            let expected = (moved(index, step) - moved(index, -step)) / (2.0 * step);
            let (name, layer) = (&parameter.name, network.architecture().layer);
            assert!(
                (found - expected).abs() < 1e-7 * expected.abs().max(1.0),
                "{layer:?} {name}[{index}]: {found} {expected}"
            );
        }
        moved(0, 0.0);
    }
}

#[test]
fn gradients_of_every_parameter_agree_with_differences() {
    for kind in STACKED {
        let reconstruction = BaselineArchitecture {
            outputs: 3,
            measurements: Some(2),
            output: BaselineOutput::Dictionary,
            ..small(kind)
        };
        check_gradients(&double(&reconstruction), &numbers(wave(&[2, 4, 3], 0.5)));
        let classifier = BaselineArchitecture {
            inputs: None,
            vocabulary: Some(4),
            pooling: PoolingKind::Mean,
            ..small(kind)
        };
        let tokens = Tensor::from_slice(&[0u32, 3, 1, 2, 2, 1, 0, 0], (2, 4), &Device::Cpu);
        let input = NetworkInput {
            steps: tokens.unwrap(),
            lengths: Some(vec![4, 2]),
        };
        check_gradients(&double(&classifier), &input);
    }
}

/// Each IndRNN, FastRNN and SpectralRNN step by its formula.
#[test]
fn cells_without_a_counterpart_follow_their_formulas() {
    let x = wave(&[1, 3, 3], 0.5);
    for kind in [BaselineKind::IndRnn, BaselineKind::FastRnn] {
        let network = double(&BaselineArchitecture {
            layers: 1,
            ..small(kind)
        });
        let part = |name: &str| {
            let mut all = network.parameters().iter();
            let found = all.find(|one| one.name == name).unwrap();
            found.var.flatten_all().unwrap().to_vec1::<f64>().unwrap()
        };
        let (w, u) = (part("layers.0.input"), part("layers.0.state"));
        let steps = x.squeeze(0).unwrap().to_vec2::<f64>().unwrap();
        let mut h = [0.0; 5];
        for step in &steps {
            let before = h;
            for j in 0..5 {
                let p: f64 = (0..3).map(|i| w[3 * j + i] * step[i]).sum();
                h[j] = if kind == BaselineKind::IndRnn {
                    (p + u[j] * before[j]).max(0.0)
                } else {
                    let q: f64 = (0..5).map(|i| u[5 * j + i] * before[i]).sum();
                    let share = 1.0 / (1.0 + 3f64.exp());
                    share * (p + q).tanh() + (1.0 - share) * before[j]
                };
            }
        }
        let (weight, bias) = (part("head.weight"), part("head.bias"));
        let out = trained(&network, &numbers(x.clone())).get(0).unwrap();
        let out = out.get(2).unwrap().to_vec1::<f64>().unwrap();
        for j in 0..5 {
            let sum: f64 = (0..5).map(|i| weight[5 * j + i] * h[i]).sum();
            assert!((out[j] - sum - bias[j]).abs() < 1e-14, "{kind:?}");
        }
    }
}

/// Specification C7: S and Q_D included, two bias vectors for each cell.
#[test]
fn parameters_are_counted_as_in_the_paper() {
    for (layer, expected) in [
        (BaselineKind::Rnn, 5_576_448),
        (BaselineKind::Lstm, 21_480_192),
        (BaselineKind::Gru, 16_178_944),
    ] {
        let architecture = BaselineArchitecture {
            layer,
            hidden: 1024,
            layers: 3,
            inputs: Some(256),
            vocabulary: None,
            outputs: 256,
            pooling: PoolingKind::None,
            measurements: Some(51),
            output: BaselineOutput::Dictionary,
            omega1: None,
            omega2: None,
        };
        let network = BaselineNetwork::random(&architecture, 0, DType::F32, &Device::Cpu).unwrap();
        assert_eq!(network.numbers(), expected, "{layer:?}");
    }
}

#[test]
fn equal_seeds_give_equal_weights_and_a_file_gives_them_back() {
    let folder = std::env::temp_dir().join(format!("hankelite-cells-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = folder.join("model.safetensors");
    for kind in STACKED {
        let architecture = BaselineArchitecture {
            measurements: Some(2),
            ..small(kind)
        };
        let [one, same, other] = [3, 3, 4].map(|seed| {
            BaselineNetwork::random(&architecture, seed, DType::F32, &Device::Cpu).unwrap()
        });
        let input = numbers(wave(&[2, 4, 3], 0.5));
        let out = |network: &BaselineNetwork| {
            let out = network.forward(&input, Mode::Evaluate).unwrap();
            out.to_dtype(DType::F64).unwrap()
        };
        assert_eq!(apart(&out(&one), &out(&same)), 0.0, "{kind:?}");
        assert!(apart(&out(&one), &out(&other)) > 1e-3, "{kind:?}");
        one.write(&path).unwrap();
        let bytes = std::fs::read(&path).unwrap();
        same.write(&path).unwrap();
        assert_eq!(bytes, std::fs::read(&path).unwrap());
        assert!(BaselineNetwork::is_file(&path));
        let back = BaselineNetwork::read(&path, DType::F32, &Device::Cpu).unwrap();
        assert_eq!(back.architecture(), &architecture);
        assert_eq!(apart(&out(&one), &out(&back)), 0.0, "{kind:?}");
    }
    assert!(!BaselineNetwork::is_file(here(
        "data/s4d_classifier.safetensors"
    )));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn settings_that_make_no_sense_are_reported() {
    let refused = |architecture: &BaselineArchitecture| match BaselineNetwork::random(
        architecture,
        0,
        DType::F32,
        &Device::Cpu,
    ) {
        Err(NetworkError::Architecture(error)) => error,
        _ => panic!("expected a refusal"),
    };
    let good = small(BaselineKind::Gru);
    let error = refused(&BaselineArchitecture {
        hidden: 0,
        ..good.clone()
    });
    assert_eq!(error.to_string(), "`hidden` is 0, expected at least 1");
    let error = refused(&BaselineArchitecture {
        vocabulary: Some(2),
        ..good.clone()
    });
    assert_eq!(error, ArchitectureError::Encoder);
    let error = refused(&BaselineArchitecture {
        output: BaselineOutput::Dictionary,
        ..good.clone()
    });
    assert!(matches!(
        error,
        ArchitectureError::Dictionary {
            outputs: 5,
            signal: 3
        }
    ));
    let error = refused(&BaselineArchitecture {
        hidden: 1 << 40,
        ..good
    });
    assert!(matches!(
        error,
        ArchitectureError::Range { key: "hidden", .. }
    ));
}

#[test]
fn steps_that_do_not_fit_are_reported() {
    let network = double(&small(BaselineKind::Lstm));
    let refused = |network: &BaselineNetwork, steps: Tensor| {
        let error = network
            .forward(&numbers(steps), Mode::Evaluate)
            .unwrap_err();
        error.to_string()
    };
    let text = refused(&network, wave(&[2, 4, 2], 0.0));
    assert!(text.contains("expected batch x L x 3"), "{text}");
    let tokens = Tensor::zeros((2, 4), DType::U32, &Device::Cpu).unwrap();
    let text = refused(&network, tokens.clone());
    assert!(text.contains("takes numbers, not tokens"), "{text}");
    let tokens = (tokens + 7.0).unwrap();
    let embedded = double(&BaselineArchitecture {
        inputs: None,
        vocabulary: Some(7),
        ..small(BaselineKind::Lstm)
    });
    let text = refused(&embedded, tokens);
    assert!(
        text.contains("token 7 is outside the vocabulary of 7"),
        "{text}"
    );
}
