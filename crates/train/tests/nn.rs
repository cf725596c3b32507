//! Trainable networks against the host's evaluation, against PyTorch, and against themselves.

#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../../tests/common/models.rs"]
mod models;

use candle_core::{DType, Device, Tensor};
use candle_nn::Optimizer;
use hankelite::model::{Block, Model, Norm, Placement, Sequence};
use hankelite::{Declared, infer};
use hankelite_control::DiagonalSystem;
use hankelite_research::shallow::{
    Activation, IndRnn, Parameters, Query, Samples, Transformer, TransformerSize, Units,
};
use hankelite_train::nn::{
    Architecture, Initialisation, LayerKind, Mode, NetworkError, NetworkInput, Normalisation,
    OutputKind, Parameterisation, PoolingKind, SequenceModel, TrainableNetwork, TrainableOptions,
    random_model,
};
use num_complex::Complex64;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

type Tensors = std::collections::HashMap<String, Tensor>;

type Outcome = Result<(), Box<dyn std::error::Error>>;

const LENGTH: usize = 53;
const BATCH: usize = 5;

fn architecture(layer: LayerKind) -> Architecture {
    Architecture {
        layer,
        initialisation: None,
        channels: 6,
        states: 12,
        layers: 2,
        norm: Normalisation::Layer,
        placement: Placement::Pre,
        output: OutputKind::Glu,
        pooling: PoolingKind::Mean,
        dropout: 0.0,
        bidirectional: false,
        inputs: Some(2),
        vocabulary: None,
        outputs: 3,
        measurements: None,
        step_min: 0.001,
        step_max: 0.1,
    }
}

/// Architectures that between them have every part.
fn architectures() -> Vec<Architecture> {
    let kinds = [LayerKind::S4d, LayerKind::DssExp, LayerKind::DssSoftmax];
    let mut all: Vec<Architecture> = kinds.into_iter().map(architecture).collect();
    all.push(Architecture {
        norm: Normalisation::Batch,
        placement: Placement::Post,
        output: OutputKind::Linear,
        pooling: PoolingKind::Last,
        bidirectional: true,
        ..architecture(LayerKind::S4d)
    });
    all.push(Architecture {
        norm: Normalisation::Batch,
        states: 3,
        channels: 18,
        pooling: PoolingKind::None,
        inputs: None,
        vocabulary: Some(7),
        ..architecture(LayerKind::DssExp)
    });
    all.push(Architecture {
        initialisation: Some(Initialisation::Random),
        placement: Placement::Post,
        output: OutputKind::Linear,
        ..architecture(LayerKind::DssSoftmax)
    });
    all
}

/// Batch norms whose running statistics are not those of a new network.
fn trained_statistics(model: Model) -> Model {
    let mut parts = model.into_parts();
    for index in 0..parts.blocks.len() {
        models::change_layer(&mut parts, index, |layer| {
            let Some((Norm::Batch(norm), _)) = &mut layer.norm else {
                return;
            };
            norm.mean
                .iter_mut()
                .enumerate()
                .for_each(|(h, m)| *m = 0.1 * h as f64 - 0.2);
            norm.variance
                .iter_mut()
                .enumerate()
                .for_each(|(h, v)| *v = 0.5 + 0.1 * h as f64);
        });
    }
    Model::new(parts).expect("parts of a model fit it")
}

fn values() -> Vec<f32> {
    (0..BATCH * LENGTH * 2)
        .map(|i| (0.37 * i as f32).sin())
        .collect()
}

fn tokens() -> Vec<u32> {
    (0..BATCH * LENGTH).map(|i| (i * i % 7) as u32).collect()
}

fn input(architecture: &Architecture) -> candle_core::Result<NetworkInput> {
    let steps = match architecture.inputs {
        Some(inputs) => Tensor::from_vec(values(), (BATCH, LENGTH, inputs), &Device::Cpu)?,
        None => Tensor::from_vec(tokens(), (BATCH, LENGTH), &Device::Cpu)?,
    };
    Ok(NetworkInput {
        steps,
        lengths: None,
    })
}

fn options(architecture: &Architecture, dtype: DType) -> TrainableOptions {
    TrainableOptions {
        dtype,
        parameterisation: Some(architecture.layer.parameterisation()),
        ..TrainableOptions::new(LENGTH)
    }
}

fn outputs(network: &TrainableNetwork, input: &NetworkInput) -> candle_core::Result<Vec<f64>> {
    let out = network.forward(input, Mode::Evaluate)?;
    out.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
}

fn worst(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let far = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    far.fold(0.0, f64::max)
}

#[test]
fn outputs_equal_those_of_the_host() -> Outcome {
    for (index, architecture) in architectures().iter().enumerate() {
        let model = trained_statistics(random_model(architecture, LENGTH, 3)?);
        let host = infer::Network::new(&model, LENGTH, infer::Path::Fft)?;
        let (values, tokens) = (values(), tokens());
        let expected = (0..BATCH).map(|item| match architecture.inputs {
            Some(inputs) => {
                let row = LENGTH * inputs;
                host.logits(Sequence::Values(&values[item * row..(item + 1) * row]))
            }
            None => host.logits(Sequence::Tokens(
                &tokens[item * LENGTH..(item + 1) * LENGTH],
            )),
        });
        let expected: Vec<Vec<f64>> = expected.collect::<Result<_, _>>()?;
        for (dtype, tolerance) in [(DType::F64, 1e-9), (DType::F32, 1e-4)] {
            let network =
                TrainableNetwork::from_model(&model, &options(architecture, dtype), &Device::Cpu)?;
            let found = outputs(&network, &input(architecture)?)?;
            let far = worst(&found, &expected.concat());
            assert!(
                far < tolerance,
                "architecture {index} in {dtype:?}: {far:e}"
            );
        }
    }
    Ok(())
}

#[test]
fn a_padded_sequence_gives_the_logits_of_the_short_one() -> Outcome {
    for pooling in [PoolingKind::Mean, PoolingKind::Last] {
        let architecture = Architecture {
            pooling,
            ..architecture(LayerKind::S4d)
        };
        let model = random_model(&architecture, LENGTH, 3)?;
        let options = options(&architecture, DType::F64);
        let network = TrainableNetwork::from_model(&model, &options, &Device::Cpu)?;
        let lengths = vec![LENGTH, 1, 20, 33, 52];
        let padded = NetworkInput {
            lengths: Some(lengths.clone()),
            ..input(&architecture)?
        };
        let found = outputs(&network, &padded)?;
        for (item, &length) in lengths.iter().enumerate() {
            let short = NetworkInput {
                steps: padded.steps.narrow(0, item, 1)?.narrow(1, 0, length)?,
                lengths: None,
            };
            let alone = outputs(&network, &short)?;
            assert!(worst(&alone, &found[item * 3..(item + 1) * 3]) < 1e-12);
        }
    }
    Ok(())
}

#[test]
fn short_sequences_pool_their_own_steps_on_the_host_too() -> Outcome {
    let lengths = vec![LENGTH, 1, 20, 33, 52];
    for (index, architecture) in architectures().iter().enumerate() {
        let model = trained_statistics(random_model(architecture, LENGTH, 3)?);
        let host = infer::Network::new(&model, LENGTH, infer::Path::Fft)?;
        let (mut values, mut tokens) = (values(), tokens());
        let (mut expected, inputs) = (Vec::new(), architecture.inputs.unwrap_or(0));
        for (item, &length) in lengths.iter().enumerate() {
            let (first, last) = (item * LENGTH, (item + 1) * LENGTH);
            values[(first + length) * inputs..last * inputs].fill(0.0);
            tokens[first + length..last].fill(0);
            let own = first..first + length;
            let sequence = match inputs {
                0 => Sequence::Tokens(&tokens[own]),
                _ => Sequence::Values(&values[own.start * inputs..own.end * inputs]),
            };
            expected.extend(host.logits(sequence)?);
        }
        let steps = match inputs {
            0 => Tensor::from_vec(tokens, (BATCH, LENGTH), &Device::Cpu)?,
            _ => Tensor::from_vec(values, (BATCH, LENGTH, inputs), &Device::Cpu)?,
        };
        let lengths = Some(lengths.clone());
        let padded = NetworkInput { steps, lengths };
        let options = options(architecture, DType::F64);
        let network = TrainableNetwork::from_model(&model, &options, &Device::Cpu)?;
        let far = worst(&outputs(&network, &padded)?, &expected);
        assert!(far < 1e-9, "architecture {index}: {far:e}");
    }
    Ok(())
}

/// A checkpoint of trained weights: the file, and the length of its sequences.
fn check_checkpoint(path: &std::path::Path, length: usize) -> Outcome {
    let declared = Declared {
        norm: Some(Placement::Post),
        ..Declared::default()
    };
    let checkpoint = hankelite::read(path, &declared)?;
    let model = &checkpoint.model;
    let inputs = model.inputs().expect("a classifier has an encoder");
    let values: Vec<f32> = (0..2 * length * inputs)
        .map(|i| (0.1 * i as f32).sin().abs())
        .collect();
    let host = infer::Network::new(model, length, infer::Path::Fft)?;
    let halves = values.chunks_exact(length * inputs);
    let expected = halves.map(|sequence| host.logits(Sequence::Values(sequence)));
    let expected = expected.collect::<Result<Vec<_>, _>>()?.concat();
    for (dtype, tolerance) in [(DType::F64, 1e-9), (DType::F32, 1e-4)] {
        let options = TrainableOptions {
            dtype,
            ..TrainableOptions::new(length)
        };
        let network = TrainableNetwork::from_model(model, &options, &Device::Cpu)?;
        let input = NetworkInput {
            steps: Tensor::from_slice(&values, (2, length, inputs), &Device::Cpu)?,
            lengths: None,
        };
        let far = worst(&outputs(&network, &input)?, &expected);
        assert!(far < tolerance, "{}: {far:e} in {dtype:?}", path.display());
        let back = network.to_model()?;
        for (a, b) in back.blocks().iter().zip(model.blocks()) {
            assert_eq!(a.systems(), b.systems());
        }
    }
    Ok(())
}

#[test]
fn trained_checkpoints_become_networks_with_the_same_logits() -> Outcome {
    check_checkpoint(&common::here("../models/waves/model.safetensors"), 96)
}

#[test]
#[ignore = "needs checkpoints beside the project"]
fn published_checkpoints_become_networks_with_the_same_logits() -> Outcome {
    for (file, length) in [("gevorgyg", 784), ("dallingordon", 1024)] {
        let path = common::shared(&format!("data/checkpoints/{file}/ckpt.pth"));
        check_checkpoint(&path, length)?;
    }
    Ok(())
}

fn close(a: &[f64], b: &[f64], tolerance: f64) -> bool {
    let far = a
        .iter()
        .zip(b)
        .map(|(a, b)| (a - b).abs() / (1.0 + b.abs()));
    a.len() == b.len() && far.fold(0.0, f64::max) < tolerance
}

fn same_block(a: &Block, b: &Block, tolerance: f64) -> bool {
    let output = |block: &Block| block.output().cloned().expect("blocks have an output map");
    let norm = |block: &Block| block.norm().cloned().expect("blocks have a norm");
    let (x, y) = (output(a), output(b));
    let ((n, place), (m, other)) = (norm(a), norm(b));
    let bias = |linear: &hankelite::model::Linear| linear.bias.clone().unwrap_or_default();
    x.gate == y.gate
        && place == other
        && close(
            x.linear.weight.as_slice(),
            y.linear.weight.as_slice(),
            tolerance,
        )
        && close(&bias(&x.linear), &bias(&y.linear), tolerance)
        && close(n.affine().0, m.affine().0, tolerance)
        && close(n.affine().1, m.affine().1, tolerance)
}

#[test]
fn a_network_that_was_not_trained_gives_its_model_back() -> Outcome {
    for architecture in architectures() {
        let model = trained_statistics(random_model(&architecture, LENGTH, 5)?);
        let network = TrainableNetwork::from_model(
            &model,
            &options(&architecture, DType::F32),
            &Device::Cpu,
        )?;
        let back = network.to_model()?;
        for (a, b) in back.blocks().iter().zip(model.blocks()) {
            assert_eq!(
                (a.systems(), a.backward(), a.name()),
                (b.systems(), b.backward(), b.name())
            );
            assert!(same_block(a, b, 1e-6));
        }
        let network = TrainableNetwork::from_model(
            &model,
            &options(&architecture, DType::F64),
            &Device::Cpu,
        )?;
        assert_eq!(network.to_model()?, model, "in f64 nothing is rounded");
    }
    Ok(())
}

#[test]
fn changed_dynamics_come_back_as_they_are_run() -> Outcome {
    for architecture in architectures() {
        let model = random_model(&architecture, LENGTH, 5)?;
        let options = options(&architecture, DType::F64);
        let network = TrainableNetwork::from_model(&model, &options, &Device::Cpu)?;
        for parameter in network.parameters() {
            let moved = parameter.var.affine(1.01, 0.003)?;
            parameter.var.set(&moved)?;
        }
        let input = input(&architecture)?;
        let expected = outputs(&network, &input)?;
        let again = TrainableNetwork::from_model(&network.to_model()?, &options, &Device::Cpu)?;
        let far = worst(&outputs(&again, &input)?, &expected);
        assert!(far < 1e-9, "{:?}: {far:e}", architecture.layer);
    }
    Ok(())
}

#[test]
fn channels_of_different_orders_keep_theirs() -> Outcome {
    let architecture = architecture(LayerKind::S4d);
    let model = random_model(&architecture, LENGTH, 5)?;
    let few = random_model(
        &Architecture {
            states: 5,
            ..architecture.clone()
        },
        LENGTH,
        6,
    )?;
    let model = models::changed(&model, |parts| {
        models::change_layer(parts, 0, |layer| {
            layer.systems[2] = few.blocks()[0].systems()[2].clone()
        });
    });
    let options = options(&architecture, DType::F64);
    let network = TrainableNetwork::from_model(&model, &options, &Device::Cpu)?;
    let loss = network
        .forward(&input(&architecture)?, train(&mut random()))?
        .sqr()?
        .sum_all()?;
    let store = loss.backward()?;
    for parameter in network.parameters() {
        let gradient = store
            .get(&parameter.var)
            .expect("every parameter has a gradient");
        parameter
            .var
            .set(&(parameter.var.as_tensor() - gradient * 1e-3)?)?;
    }
    let back = network.to_model()?;
    assert_eq!(back.blocks()[0].systems()[2].order(), 5);
    assert_eq!(back.blocks()[0].systems()[1].order(), 12);
    let again = TrainableNetwork::from_model(&back, &options, &Device::Cpu)?;
    let input = input(&architecture)?;
    assert!(worst(&outputs(&again, &input)?, &outputs(&network, &input)?) < 1e-10);
    Ok(())
}

/// A file pads channels of a lower order with modes of weight zero.
#[test]
fn modes_without_weight_get_none_by_training() -> Outcome {
    let architecture = architecture(LayerKind::S4d);
    let model = random_model(&architecture, LENGTH, 5)?;
    let model = models::changed(&model, |parts| {
        models::change_layer(parts, 0, |layer| {
            let full = &layer.systems[2];
            let mut residues = full.residues().unwrap();
            residues[3..7].fill(Complex64::ZERO);
            let (time, exponents) = (full.time(), full.exponents().to_vec());
            let through = full.feedthrough()[(0, 0)];
            let padded = DiagonalSystem::siso(time, exponents, &residues, through);
            layer.systems[2] = padded.unwrap();
        });
    });
    let options = options(&architecture, DType::F64);
    let network = TrainableNetwork::from_model(&model, &options, &Device::Cpu)?;
    let input = input(&architecture)?;
    let parameters = network.parameters().iter().map(|p| p.var.clone());
    let mut optimiser = candle_nn::AdamW::new_lr(parameters.collect(), 1e-3)?;
    for _ in 0..3 {
        let loss = network.forward(&input, Mode::Evaluate)?.sqr()?.sum_all()?;
        optimiser.backward_step(&loss)?;
    }
    let back = network.to_model()?;
    for (h, system) in back.blocks()[0].systems().iter().enumerate() {
        for (n, residue) in system.residues()?.iter().enumerate() {
            let is_padding = h == 2 && (3..7).contains(&n);
            assert_eq!(*residue == Complex64::ZERO, is_padding, "{h} {n}");
        }
    }
    let again = TrainableNetwork::from_model(&back, &options, &Device::Cpu)?;
    assert!(worst(&outputs(&again, &input)?, &outputs(&network, &input)?) < 1e-10);
    Ok(())
}

fn random() -> ChaCha8Rng {
    ChaCha8Rng::seed_from_u64(11)
}

fn train(random: &mut ChaCha8Rng) -> Mode<'_> {
    Mode::Train(random)
}

#[test]
fn every_parameter_receives_a_gradient() -> Outcome {
    for architecture in architectures() {
        let network = TrainableNetwork::random(&architecture, LENGTH, 2, &Device::Cpu)?;
        let out = network.forward(&input(&architecture)?, train(&mut random()))?;
        let weights = Tensor::arange(0f32, out.elem_count() as f32, &Device::Cpu)?;
        let weights = weights.sin()?.reshape(out.shape())?;
        let store = (out * weights)?.sum_all()?.backward()?;
        for parameter in network.parameters() {
            let name = &parameter.name;
            let gradient = store
                .get(&parameter.var)
                .unwrap_or_else(|| panic!("{name}: none"));
            let gradient = gradient
                .to_dtype(DType::F64)?
                .flatten_all()?
                .to_vec1::<f64>()?;
            let largest = gradient.iter().fold(0.0, |m: f64, g| m.max(g.abs()));
            assert!(gradient.iter().all(|g| g.is_finite()), "{name}: not finite");
            assert!(largest > 1e-9, "{name}: {largest:e}");
        }
    }
    Ok(())
}

#[test]
fn gradients_of_parameters_agree_with_differences() -> Outcome {
    for architecture in architectures() {
        let model = random_model(&architecture, LENGTH, 9)?;
        let options = options(&architecture, DType::F64);
        let network = TrainableNetwork::from_model(&model, &options, &Device::Cpu)?;
        let input = input(&architecture)?;
        let loss = || {
            let out = network.forward(&input, train(&mut random()))?;
            let count = out.elem_count() as f64;
            let weights = Tensor::arange(0f64, count, &Device::Cpu)?.sin()?;
            (out.flatten_all()? * weights)?.sum_all()
        };
        let store = loss()?.backward()?;
        for parameter in network.parameters() {
            let var = &parameter.var;
            let before = var.as_tensor().copy()?;
            let direction = Tensor::arange(1f64, 1.0 + var.elem_count() as f64, &Device::Cpu)?;
            let direction = direction.cos()?.reshape(var.shape())?;
            let h = 1e-5;
            let at = |steps: f64| -> candle_core::Result<f64> {
                var.set(&(&before + (&direction * (steps * h))?)?)?;
                loss()?.to_scalar::<f64>()
            };
            let slope = (8.0 * (at(1.0)? - at(-1.0)?) - (at(2.0)? - at(-2.0)?)) / (12.0 * h);
            var.set(&before)?;
            let gradient = store.get(var).expect("every parameter has a gradient");
            let along = (gradient * &direction)?.sum_all()?.to_scalar::<f64>()?;
            let size = gradient.sqr()?.sum_all()?.sqrt()?.to_scalar::<f64>()?;
            let far = (slope - along).abs();
            let name = &parameter.name;
            assert!(
                far < 1e-6 * (size + 1e-2),
                "{name}: {slope} {along} of {size}"
            );
        }
    }
    Ok(())
}

#[test]
fn outputs_and_gradients_are_the_same_for_any_number_of_threads() -> Outcome {
    let architecture = Architecture {
        norm: Normalisation::Batch,
        ..architecture(LayerKind::DssExp)
    };
    let numbers = |threads: usize| -> Vec<Vec<f32>> {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build();
        let work = || -> Result<Vec<Vec<f32>>, Box<dyn std::error::Error>> {
            let network = TrainableNetwork::random(&architecture, LENGTH, 2, &Device::Cpu)?;
            let steps: Vec<f32> = (0..40 * LENGTH * 2)
                .map(|i| (0.7 * i as f32).sin())
                .collect();
            let input = NetworkInput {
                steps: Tensor::from_vec(steps, (40, LENGTH, 2), &Device::Cpu)?,
                lengths: None,
            };
            let out = network.forward(&input, train(&mut random()))?;
            let store = out.sqr()?.sum_all()?.backward()?;
            let mut all = vec![out.flatten_all()?.to_vec1()?];
            for parameter in network.parameters() {
                let gradient = store.get(&parameter.var).expect("a gradient");
                all.push(gradient.flatten_all()?.to_vec1()?);
            }
            Ok(all)
        };
        let pool = pool.expect("a pool of threads");
        pool.install(|| work().map_err(|error| error.to_string()))
            .expect("the network runs")
    };
    let one = numbers(1);
    assert_eq!(one, numbers(2));
    assert_eq!(one, numbers(5));
    Ok(())
}

#[test]
fn dropout_comes_from_the_given_source_and_keeps_the_mean() -> Outcome {
    let architecture = Architecture {
        dropout: 0.4,
        ..architecture(LayerKind::S4d)
    };
    let network = TrainableNetwork::random(&architecture, LENGTH, 2, &Device::Cpu)?;
    let input = input(&architecture)?;
    let run = |random: &mut ChaCha8Rng| -> candle_core::Result<Vec<f32>> {
        let out = network.forward(&input, Mode::Train(random))?;
        out.flatten_all()?.to_vec1()
    };
    assert_eq!(run(&mut random())?, run(&mut random())?);
    let mut source = random();
    assert_ne!(run(&mut source)?, run(&mut source)?);
    let evaluated = network.forward(&input, Mode::Evaluate)?;
    let again = network.forward(&input, Mode::Evaluate)?;
    let flat = |x: &Tensor| x.flatten_all()?.to_vec1::<f32>();
    assert_eq!(flat(&evaluated)?, flat(&again)?);
    Ok(())
}

#[test]
fn batch_norm_learns_the_statistics_of_its_input() -> Outcome {
    let architecture = Architecture {
        norm: Normalisation::Batch,
        layers: 1,
        ..architecture(LayerKind::S4d)
    };
    let network = TrainableNetwork::random(&architecture, LENGTH, 2, &Device::Cpu)?;
    assert_eq!(network.buffers().len(), 2);
    let input = input(&architecture)?;
    let mut random = random();
    for _ in 0..200 {
        network.forward(&input, Mode::Train(&mut random))?;
    }
    // With the batch's own statistics learnt, evaluation on it is what training computes, up to
    // the factor n/(n−1) of the variance.
    let trained = network.forward(&input, Mode::Train(&mut random))?;
    let evaluated = network.forward(&input, Mode::Evaluate)?;
    let far = (trained - evaluated)?
        .abs()?
        .max_all()?
        .to_scalar::<f32>()?;
    assert!(far < 1e-2, "{far}");
    Ok(())
}

#[test]
fn faults_are_named() -> Outcome {
    let good = architecture(LayerKind::S4d);
    let model = random_model(&good, LENGTH, 1)?;
    let made =
        |options: TrainableOptions| TrainableNetwork::from_model(&model, &options, &Device::Cpu);
    let options = options(&good, DType::F32);
    let too_much = TrainableOptions {
        dropout: 1.0,
        ..options.clone()
    };
    assert!(matches!(made(too_much), Err(NetworkError::Option { .. })));
    let half = TrainableOptions {
        dtype: DType::F16,
        ..options.clone()
    };
    assert!(matches!(made(half), Err(NetworkError::Dtype { .. })));
    let growing = Architecture {
        initialisation: Some(Initialisation::Random),
        ..architecture(LayerKind::DssSoftmax)
    };
    let growing = random_model(&growing, LENGTH, 1)?;
    let refused = TrainableNetwork::from_model(&growing, &options, &Device::Cpu);
    assert!(matches!(refused, Err(NetworkError::Pole { .. })));
    let guessed = TrainableOptions {
        parameterisation: None,
        ..options.clone()
    };
    let taken = TrainableNetwork::from_model(&growing, &guessed, &Device::Cpu)?;
    assert!(
        taken
            .parameters()
            .iter()
            .any(|p| p.name == "blocks.0.decay")
    );
    let other = models::changed(&model, |parts| {
        (parts.encoder, parts.head) = (None, None);
        models::change_layer(parts, 1, |layer| {
            (layer.output, layer.norm) = (None, None);
            layer.systems.pop();
        });
    });
    let refused = TrainableNetwork::from_model(&other, &options, &Device::Cpu);
    assert!(matches!(refused, Err(NetworkError::Channels { .. })));
    Ok(())
}

#[test]
fn inputs_that_do_not_fit_are_reported() -> Outcome {
    let good = architecture(LayerKind::S4d);
    let network = TrainableNetwork::random(&good, LENGTH, 1, &Device::Cpu)?;
    let wide = NetworkInput {
        steps: Tensor::zeros((1, LENGTH, 9), DType::F32, &Device::Cpu)?,
        lengths: None,
    };
    let error = network
        .forward(&wide, Mode::Evaluate)
        .unwrap_err()
        .to_string();
    assert!(error.contains("9 numbers, expected 2"), "{error}");
    let long = NetworkInput {
        lengths: Some(vec![LENGTH + 1; BATCH]),
        ..input(&good)?
    };
    let error = network
        .forward(&long, Mode::Evaluate)
        .unwrap_err()
        .to_string();
    assert!(error.contains("lengths from 1 to 53"), "{error}");
    let none = Architecture {
        inputs: None,
        ..good
    };
    assert!(matches!(
        TrainableNetwork::random(&none, LENGTH, 1, &Device::Cpu),
        Err(NetworkError::Architecture(_))
    ));
    Ok(())
}

#[test]
fn the_parameterisation_does_not_change_the_outputs() -> Outcome {
    let architecture = architecture(LayerKind::S4d);
    let model = random_model(&architecture, LENGTH, 4)?;
    let input = input(&architecture)?;
    let outputs_in = |kind| -> Result<Vec<f64>, Box<dyn std::error::Error>> {
        let options = TrainableOptions {
            parameterisation: Some(kind),
            ..options(&architecture, DType::F64)
        };
        let network = TrainableNetwork::from_model(&model, &options, &Device::Cpu)?;
        Ok(outputs(&network, &input)?)
    };
    let first = outputs_in(Parameterisation::S4d)?;
    for kind in [Parameterisation::DssExp, Parameterisation::DssSoftmax] {
        assert!(worst(&outputs_in(kind)?, &first) < 1e-9, "{kind:?}");
    }
    Ok(())
}

#[test]
fn an_optimiser_brings_the_loss_down() -> Outcome {
    let architecture = architecture(LayerKind::S4d);
    let network = TrainableNetwork::random(&architecture, LENGTH, 4, &Device::Cpu)?;
    let input = input(&architecture)?;
    let labels = Tensor::new(&[0u32, 1, 2, 0, 1], &Device::Cpu)?;
    let vars = network.parameters().iter().map(|p| p.var.clone()).collect();
    let mut optimiser = candle_nn::AdamW::new_lr(vars, 1e-2)?;
    let mut losses = Vec::new();
    let mut random = random();
    for _ in 0..150 {
        let logits = network.forward(&input, Mode::Train(&mut random))?;
        let loss = candle_nn::loss::cross_entropy(&logits, &labels)?;
        optimiser.backward_step(&loss)?;
        losses.push(loss.to_scalar::<f32>()?);
    }
    assert!(losses[149] < 0.1 * losses[0], "{losses:?}");
    Ok(())
}

/// The networks of `tests/reference/make_training.py`, in its order.
fn torch_networks() -> [(&'static str, Architecture); 3] {
    let common = |layer| Architecture {
        channels: 5,
        states: 6,
        ..architecture(layer)
    };
    [
        ("s4d", common(LayerKind::S4d)),
        (
            "exp",
            Architecture {
                norm: Normalisation::Batch,
                placement: Placement::Post,
                output: OutputKind::Linear,
                bidirectional: true,
                pooling: PoolingKind::Last,
                ..common(LayerKind::DssExp)
            },
        ),
        (
            "softmax",
            Architecture {
                placement: Placement::Post,
                inputs: None,
                vocabulary: Some(7),
                ..common(LayerKind::DssSoftmax)
            },
        ),
    ]
}

/// The model with other poles backwards in time than forwards, so that each direction has parameters
/// of its own.
fn with_poles_apart(model: &Model) -> Result<Model, Box<dyn std::error::Error>> {
    let mut blocks = model.blocks().to_vec();
    for block in &mut blocks {
        let apart = |system: &DiagonalSystem| {
            let poles = system.exponents().iter().map(|pole| pole * 1.5).collect();
            let residues = system.residues()?;
            DiagonalSystem::siso(system.time(), poles, &residues, 0.0)
        };
        let backward = block.backward().iter().map(apart);
        let backward = backward.collect::<Result<Vec<_>, _>>()?;
        *block = block.with_systems(block.systems().to_vec(), backward)?;
    }
    Ok(model.with_blocks(blocks)?)
}

/// A network with PyTorch's weights, and its input and labels.
fn like_torch(
    name: &str,
    architecture: &Architecture,
    tensors: &Tensors,
    dtype: DType,
) -> Result<(TrainableNetwork, NetworkInput, Tensor), Box<dyn std::error::Error>> {
    let steps = tensors[&format!("{name}/steps")].clone();
    let length = steps.dim(1)?;
    let model = with_poles_apart(&random_model(architecture, length, 0)?)?;
    let options = TrainableOptions {
        length,
        ..options(architecture, dtype)
    };
    let network = TrainableNetwork::from_model(&model, &options, &Device::Cpu)?;
    let before = format!("{name}/before/");
    let count = tensors
        .keys()
        .filter(|key| key.starts_with(&before))
        .count();
    assert_eq!(network.parameters().len(), count, "{name}");
    for parameter in network.parameters() {
        let value = &tensors[&format!("{before}{}", parameter.name)];
        parameter.var.set(&value.to_dtype(dtype)?)?;
    }
    let input = NetworkInput {
        steps,
        lengths: None,
    };
    Ok((network, input, tensors[&format!("{name}/labels")].clone()))
}

fn numbers(tensor: &Tensor) -> candle_core::Result<Vec<f64>> {
    tensor.flatten_all()?.to_dtype(DType::F64)?.to_vec1()
}

#[test]
fn logits_and_gradients_equal_those_of_pytorch() -> Outcome {
    let path = common::here("data/training.safetensors");
    let tensors = candle_core::safetensors::load(path, &Device::Cpu)?;
    for (name, architecture) in torch_networks() {
        for (dtype, tolerance) in [(DType::F64, 1e-9), (DType::F32, 1e-4)] {
            let (network, input, labels) = like_torch(name, &architecture, &tensors, dtype)?;
            let logits = network.forward(&input, train(&mut random()))?;
            let far = worst(
                &numbers(&logits)?,
                &numbers(&tensors[&format!("{name}/logits")])?,
            );
            assert!(
                far < tolerance,
                "{name} in {dtype:?}: logits differ by {far:e}"
            );
            let store = candle_nn::loss::cross_entropy(&logits, &labels)?.backward()?;
            for parameter in network.parameters() {
                let expected = numbers(&tensors[&format!("{name}/gradient/{}", parameter.name)])?;
                let size = expected.iter().fold(0.0, |m: f64, g| m.max(g.abs()));
                let found = store.get(&parameter.var).expect("a gradient");
                let far = worst(&numbers(found)?, &expected);
                let name = format!("{name} {}", parameter.name);
                assert!(
                    far < tolerance * (size + 1e-2),
                    "{name}: {far:e} of {size:e}"
                );
            }
        }
    }
    Ok(())
}

#[test]
fn ten_steps_of_adamw_equal_those_of_pytorch() -> Outcome {
    let path = common::here("data/training.safetensors");
    let tensors = candle_core::safetensors::load(path, &Device::Cpu)?;
    for (name, architecture) in torch_networks() {
        let (network, input, labels) = like_torch(name, &architecture, &tensors, DType::F64)?;
        let vars = network.parameters().iter().map(|p| p.var.clone());
        let settings = candle_nn::ParamsAdamW {
            lr: 0.01,
            weight_decay: 0.01,
            ..candle_nn::ParamsAdamW::default()
        };
        let mut optimiser = candle_nn::AdamW::new(vars.collect(), settings)?;
        for (step, expected) in numbers(&tensors[&format!("{name}/losses")])?
            .iter()
            .enumerate()
        {
            let logits = network.forward(&input, train(&mut random()))?;
            let loss = candle_nn::loss::cross_entropy(&logits, &labels)?;
            let far = (loss.to_scalar::<f64>()? - expected).abs();
            assert!(far < 1e-8, "{name} step {step}: {far:e}");
            optimiser.backward_step(&loss)?;
        }
        for parameter in network.parameters() {
            let expected = numbers(&tensors[&format!("{name}/after/{}", parameter.name)])?;
            let far = worst(&numbers(&parameter.var)?, &expected);
            assert!(far < 1e-8, "{name} {}: {far:e}", parameter.name);
        }
    }
    Ok(())
}

/// The three groups of a shallow model as variables: m, d × m, and rows × m.
fn shallow_variables(parameters: &Parameters) -> candle_core::Result<[candle_core::Var; 3]> {
    let units = parameters.units();
    let variable = |group: usize| {
        let shape = (parameters.groups()[group], units);
        candle_core::Var::from_slice(parameters.group(group), shape, &Device::Cpu)
    };
    Ok([variable(0)?, variable(1)?, variable(2)?])
}

/// The largest difference of the closed form to the gradients of a graph, which must give the same
/// output.
fn closed_form_against_graph<M: Units>(
    model: &M,
    tokens: &[f64],
    graph: impl Fn(&[candle_core::Var; 3], &Tensor) -> candle_core::Result<Tensor>,
) -> Result<f64, Box<dyn std::error::Error>> {
    let variables = shallow_variables(model.parameters())?;
    let shape = (tokens.len() / model.width(), model.width());
    let output = graph(
        &variables,
        &Tensor::from_slice(tokens, shape, &Device::Cpu)?,
    )?;
    let root = (model.parameters().units() as f64).sqrt();
    let output = (output.sum_all()? / root)?;
    assert!((output.to_scalar::<f64>()? - model.output(tokens)).abs() < 1e-14);
    let (gradients, closed) = (output.backward()?, model.gradient(tokens));
    let mut worst = 0.0f64;
    for (group, variable) in variables.iter().enumerate() {
        let gradient = gradients
            .get(variable)
            .ok_or("a gradient for every group")?;
        let gradient = gradient.flatten_all()?.to_vec1::<f64>()?;
        let pairs = gradient.iter().zip(closed.group(group));
        worst = pairs.map(|(x, y)| (x - y).abs()).fold(worst, f64::max);
    }
    Ok(worst)
}

/// Parameters off the symmetric start.
fn unsettle<M: Units>(model: &mut M) {
    let values = model.parameters_mut().values_mut().iter_mut().enumerate();
    values.for_each(|(i, value)| *value += 0.3 * (12.9898 * i as f64).sin());
}

#[test]
fn closed_forms_of_the_shallow_models_are_those_of_autograd() -> Outcome {
    let size = TransformerSize { units: 6, width: 3 };
    let samples = Samples::gaussian(4, 5, 3, 1)?;
    let mut transformer = Transformer::symmetric(size, Query::Last, Activation::Tanh, 2)?;
    let mut indrnn = IndRnn::symmetric(size, 0.9, Activation::Tanh, 2)?;
    unsettle(&mut transformer);
    unsettle(&mut indrnn);
    for tokens in samples.sequences() {
        let worst = closed_form_against_graph(&transformer, tokens, |[c, u, w], x| {
            let q = x.narrow(0, 4, 1)?.t()?.contiguous()?;
            let w = w.reshape((3, 3, 6))?.permute((2, 0, 1))?.contiguous()?;
            let keys = w.broadcast_matmul(&q)?;
            let shares = candle_nn::ops::softmax(&x.broadcast_matmul(&keys)?, 1)?;
            let attended = x.t()?.contiguous()?.broadcast_matmul(&shares)?.squeeze(2)?;
            let h = (attended * u.t()?)?.sum(1)?.tanh()?;
            c.squeeze(0)? * h
        })?;
        assert!(worst < 1e-14, "{worst:e}");
        let worst = closed_form_against_graph(&indrnn, tokens, |[c, u, w], x| {
            let mut h = Tensor::zeros((1, 6), DType::F64, &Device::Cpu)?;
            for t in 0..5 {
                h = (x.narrow(0, t, 1)?.matmul(u)? + (w.as_tensor() * h)?)?.tanh()?;
            }
            c.as_tensor() * h
        })?;
        assert!(worst < 1e-14, "{worst:e}");
    }
    Ok(())
}
