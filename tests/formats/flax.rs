//! The classifiers of lindermanlab/S5 and minimal-LRU in their flax trees, run as their code runs
//! them, and their calibrated reduction. The fixtures and their logits are made by
//! `tests/reference/make_flax.py`.

use std::path::PathBuf;

use crate::common::here;
use crate::golden::{Golden, LENGTH, largest_difference, logits};
use hankelite::advanced::{
    CalibratedReduction, Captured, Settings, Sizes, WeightChoice, change_beyond,
};
use hankelite::calibrate::{Calibration, Known, TargetSize};
use hankelite::checkpoint::{Checkpoint, HalfGate, from_tensors};
use hankelite::infer::{Network, Path as InferPath};
use hankelite::model::{Gate, Model, Nonlinearity, Placement, Pooling, Sequence};
use hankelite::rounding::{Entries, Numbers, Storage};
use hankelite::stream::{Image, Runner};
use hankelite::target::{Parts, WholeSize};
use hankelite::{Declared, Plan, Rule, read, reduce, write};
use hankelite_archive::{Archive, Dtype, RawTensor, write_arrays};
use hankelite_control::Refinement;

const MODELS: [&str; 5] = [
    "s5_full_glu",
    "s5_half_glu2",
    "s5_gelu",
    "lru_half_glu1",
    "lru_tokens",
];

fn file(name: &str) -> PathBuf {
    here("data/flax").join(format!("{name}.safetensors"))
}

fn opened(name: &str) -> Checkpoint {
    let declared = Declared {
        norm: (name == "s5_half_glu2").then_some(Placement::Post),
        half_gate: (name == "s5_half_glu2").then_some(HalfGate::HalfGlu2),
        pooling: (name == "s5_gelu").then_some(Pooling::Last),
        ..Declared::default()
    };
    read(file(name), &declared).unwrap()
}

/// The sequences and logits of all fixtures.
fn golden() -> Golden {
    Golden::open(file("golden"))
}

#[test]
fn logits_are_those_of_the_original_formulas() {
    let data = golden();
    for name in MODELS {
        let expected = data.truth(&format!("{name}/logits"));
        let found = logits(&opened(name).model, &data.sequences(name));
        let apart = largest_difference(&found, &expected);
        assert!(apart < 1e-10, "{name}: {apart:e}");
    }
}

/// What the last steps of each sequence give, with a runner of either precision.
macro_rules! streamed {
    ($runner:expr, $sequences:expr, $number:ty) => {{
        let (mut runner, mut all): (Runner<$number>, _) = ($runner, Vec::new());
        for sequence in $sequences {
            runner.reset();
            let mut last = Vec::new();
            match sequence {
                Sequence::Tokens(tokens) => {
                    for &token in *tokens {
                        last = runner.step_tokens(&[token]).unwrap().to_vec();
                    }
                }
                Sequence::Values(values) => {
                    for step in values.chunks(runner.inputs()) {
                        let step: Vec<_> = step.iter().map(|&x| x.into()).collect();
                        last = runner.step(&step).unwrap().to_vec();
                    }
                }
            }
            all.extend(last.into_iter().map(f64::from));
        }
        all
    }};
}

#[test]
fn maps_and_systems_of_few_bits_stream_as_the_model_that_they_stand_for() {
    let data = golden();
    for name in MODELS {
        let model = opened(name).model;
        let sequences = data.sequences(name);
        let mut bytes = usize::MAX;
        for (entries, numbers) in [
            (Entries::Bf16, Numbers::F32),
            (Entries::Int8, Numbers::F32),
            (Entries::Int8, Numbers::F16),
            (Entries::Int4, Numbers::F16),
        ] {
            let storage = Storage::nearest(&model, entries, 16).unwrap();
            let storage = storage.with_numbers(numbers);
            let expected = logits(&storage.applied(&model).unwrap(), &sequences);
            let image = Image::packed_double(&model, &storage).unwrap();
            let found = streamed!(Runner::from_image(image).unwrap(), &sequences, f64);
            let apart = largest_difference(&found, &expected);
            assert!(apart < 1e-10, "{name}, {entries:?}: {apart:e}");
            // Inputs of the maps are rounded to 8 bits, too.
            let image = Image::packed(&model, &storage).unwrap();
            let smaller = image.as_bytes().len();
            let found = streamed!(Runner::from_image(image).unwrap(), &sequences, f32);
            let (apart, scale) = (
                largest_difference(&found, &expected),
                largest_difference(&expected, &vec![0.0; expected.len()]),
            );
            assert!(apart < 0.03 * scale, "{name}, {entries:?}: {apart:e}");
            assert!(smaller < bytes, "{name}, {entries:?}: {smaller} bytes");
            bytes = smaller;
        }
    }
}

#[test]
fn streamed_steps_give_the_logits_of_the_original_formulas() {
    let data = golden();
    for name in MODELS {
        let expected = data.truth(&format!("{name}/logits"));
        let model = opened(name).model;
        let sequences = data.sequences(name);
        let found = streamed!(Runner::double(&model).unwrap(), &sequences, f64);
        let apart = largest_difference(&found, &expected);
        assert!(apart < 1e-10, "{name}: {apart:e}");
        let found = streamed!(Runner::new(&model).unwrap(), &sequences, f32);
        let apart = largest_difference(&found, &expected);
        assert!(apart < 1e-4, "{name}: {apart:e}");
    }
}

#[test]
fn what_no_tensor_records_is_assumed_and_can_be_declared() {
    let read = |declared: &Declared| read(file("s5_half_glu2"), declared).unwrap();
    let assumed = read(&Declared::default());
    let gate = |checkpoint: &Checkpoint| checkpoint.model.blocks()[0].output().unwrap().gate;
    assert_eq!(gate(&assumed), Gate::Activated);
    for text in ["pre-norm", "mean pooling", "half_glu1"] {
        let mut found = assumed.assumptions().iter();
        assert!(found.any(|line| line.contains(text)), "{text}");
    }
    let declared = Declared {
        half_gate: Some(HalfGate::HalfGlu2),
        ..Declared::default()
    };
    assert_eq!(gate(&read(&declared)), Gate::Response);
    let activation = assumed.model.blocks()[0].activation();
    assert_eq!(activation, Nonlinearity::GeluTanh);
}

#[test]
fn unchanged_models_come_back_bit_for_bit_and_reduced_ones_as_they_were_written() {
    let (folder, data) = (tempfile::tempdir().unwrap(), golden());
    for name in MODELS {
        let checkpoint = opened(name);
        let path = folder.path().join(format!("{name}.safetensors"));
        write(&checkpoint, &path).unwrap();
        let (before, after) = (
            Archive::open(file(name)).unwrap(),
            Archive::open(&path).unwrap(),
        );
        for tensor in before.names() {
            assert_eq!(
                before.tensor(tensor).unwrap(),
                after.tensor(tensor).unwrap()
            );
        }
        let plan = Plan::new(Rule::Order(4)).unwrap();
        let reduced = reduce(&checkpoint.model, &plan).unwrap();
        write(&checkpoint.with_model(reduced.model.clone()), &path).unwrap();
        // What was declared stands in the file.
        let again = read(&path, &Declared::default()).unwrap();
        assert!(again.assumptions().is_empty(), "{:?}", again.assumptions());
        let sequences = data.sequences(name);
        let apart = largest_difference(
            &logits(&again.model, &sequences),
            &logits(&reduced.model, &sequences),
        );
        assert!(apart < 1e-4, "{name}: {apart:e}");
    }
}

#[test]
fn a_tree_with_one_tensor_more_is_layers_alone_and_the_note_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("more.safetensors");
    let bytes = std::fs::read(file("lru_half_glu1")).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let mut all = tensors.tensors();
    let bias = tensors.tensor("params/decoder/bias").unwrap();
    all.push(("params/decoder/scale".to_string(), bias));
    let bytes = safetensors::serialize(all, None).unwrap();
    std::fs::write(&path, bytes).unwrap();
    let checkpoint = read(&path, &Declared::default()).unwrap();
    assert!(checkpoint.is_layers_alone());
    let note = checkpoint.notes().join("\n");
    assert!(note.contains("`params/decoder/scale`"), "{note}");
}

#[test]
fn equal_layers_are_two_of_one_network_and_not_one() {
    let archive = Archive::open(file("lru_half_glu1")).unwrap();
    let tensors = archive.names().map(|name| {
        let source = name.replace("layers_1", "layers_0");
        (name.to_string(), archive.tensor(&source).unwrap())
    });
    let checkpoint = from_tensors("twice", tensors.collect(), &Declared::default()).unwrap();
    assert_eq!(checkpoint.model.blocks().len(), 2);
    assert!(checkpoint.model.head().is_some());
    let tied = checkpoint.tied_layers().unwrap();
    assert_eq!(tied[0], "params/encoder/layers_0/seq");
}

fn calibrated(model: &Model, sequences: &[Sequence<'_>], settings: &Settings) -> (Model, f64) {
    let network = Network::new(model, LENGTH, InferPath::Auto).unwrap();
    let statistics = Calibration::gather(&network, sequences, "the test").unwrap();
    let choice = WeightChoice::Auto;
    let reduction = CalibratedReduction::new(model, &statistics, sequences, choice, &()).unwrap();
    let made = reduction.reduce(settings).unwrap();
    assert_eq!(made.choice.known, Known::Network);
    assert_eq!(made.records.len(), model.blocks().len());
    (made.model, made.choice.logit_change.unwrap())
}

#[test]
fn every_part_of_the_calibration_brings_the_logits_nearer() {
    let data = golden();
    for name in ["s5_full_glu", "s5_half_glu2", "lru_half_glu1", "lru_tokens"] {
        let (checkpoint, sequences) = (opened(name), data.sequences(name));
        let model = &checkpoint.model;
        let mut settings = Settings::new(TargetSize::Order(3));
        let fitted = calibrated(model, &sequences, &settings).1;
        settings.fit_logits = false;
        let (alone, refined) = calibrated(model, &sequences, &settings);
        assert!(alone.blocks().iter().all(|block| block.order() == 3));
        settings.refinement = Refinement::None;
        let truncated = calibrated(model, &sequences, &settings).1;
        let plan = Plan::new(Rule::Order(3)).unwrap();
        let white = reduce(model, &plan).unwrap().model;
        let network = Network::new(model, LENGTH, InferPath::Auto).unwrap();
        let statistics = Calibration::gather(&network, &sequences, "the test").unwrap();
        let choice = WeightChoice::Auto;
        let reduction =
            CalibratedReduction::new(model, &statistics, &sequences, choice, &()).unwrap();
        let white = reduction.logit_change(&white).unwrap().unwrap();
        let all = format!("{name}: white {white}, {truncated}, {refined}, {fitted}");
        assert!(refined < truncated && refined < 0.8 * white, "{all}");
        assert!(fitted <= refined, "{all}");
    }
}

#[test]
fn shared_modes_and_bits_come_down_together_to_a_target_of_bytes() {
    let data = golden();
    let (checkpoint, sequences) = (opened("lru_half_glu1"), data.sequences("lru_half_glu1"));
    let model = &checkpoint.model;
    let network = Network::new(model, LENGTH, InferPath::Auto).unwrap();
    let statistics = Calibration::gather(&network, &sequences, "the test").unwrap();
    let choice = WeightChoice::Auto;
    let reduction = CalibratedReduction::new(model, &statistics, &sequences, choice, &()).unwrap();
    let sizes = |parts| Sizes::new(&reduction, &[], parts).unwrap();
    let all = sizes(Parts::All);
    let full = all.full().total();
    let bytes = |most| WholeSize {
        bytes: Some(most),
        ..WholeSize::default()
    };
    for parts in [Parts::All, Parts::Maps] {
        let most = full * 7 / 10;
        let made = sizes(parts).meet(&bytes(most)).unwrap();
        let image = Image::packed(&made.model, &made.storage).unwrap();
        assert!(made.size.total() <= most && image.as_bytes().len() == made.size.weights);
        let change = reduction.logit_change(&made.model).unwrap().unwrap();
        assert!((change - made.changes.after).abs() < 1e-12);
        assert!(change < 0.1, "{parts:?}: {change}");
        let orders = made.model.blocks().iter().map(|block| vec![block.order()]);
        assert_eq!(orders.collect::<Vec<_>>(), made.plan.orders);
    }
    // Everything fits: nothing changes.
    let made = all.meet(&bytes(full)).unwrap();
    assert_eq!((made.changes.after, made.model), (0.0, model.clone()));
    let error = all.meet(&bytes(300)).unwrap_err().to_string();
    assert!(error.contains("300 bytes, expected at least"), "{error}");

    // A target of time leaves room for any model, or for none.
    let within = |microseconds| {
        all.meet(&WholeSize {
            microseconds: Some(microseconds),
            ..WholeSize::default()
        })
    };
    assert_eq!(within(1e6).unwrap().size.total(), full);
    let error = within(1e-6).unwrap_err().to_string();
    assert!(error.starts_with("a step of 0.000001 us, "), "{error}");
}

#[test]
fn fewer_bytes_are_found_for_every_change_of_the_logits() {
    let data = golden();
    let (checkpoint, sequences) = (opened("lru_half_glu1"), data.sequences("lru_half_glu1"));
    let network = Network::new(&checkpoint.model, LENGTH, InferPath::Auto).unwrap();
    let statistics = Calibration::gather(&network, &sequences, "the test").unwrap();
    let choice = WeightChoice::Auto;
    let reduction =
        CalibratedReduction::new(&checkpoint.model, &statistics, &sequences, choice, &()).unwrap();
    let sizes = Sizes::new(&reduction, &[], Parts::All).unwrap();
    let mut before = sizes.full().total();
    for change in [0.02, 0.1, 0.5] {
        let size = WholeSize {
            change: Some(change),
            ..WholeSize::default()
        };
        let made = sizes.meet(&size).unwrap();
        assert_eq!(made.size, made.plan.size);
        assert!(made.changes.after <= change, "{:?}", made.changes);
        assert!(made.size.total() < before, "{change}");
        before = made.size.total();
    }
}

/// √(Σ (d − d̄)²/Σ (z − z̄)²) of logits z and their differences d, class by class.
fn centred_change(full: &[f64], reduced: &[f64], classes: usize) -> f64 {
    let squares = |values: &[f64]| -> f64 {
        let of = |row: &[f64]| {
            let mean = row.iter().sum::<f64>() / classes as f64;
            row.iter().map(|value| (value - mean).powi(2)).sum::<f64>()
        };
        values.chunks(classes).map(of).sum()
    };
    let difference: Vec<f64> = full.iter().zip(reduced).map(|(a, b)| a - b).collect();
    (squares(&difference) / squares(full)).sqrt()
}

#[test]
fn agreement_beyond_the_calibrated_length_is_that_of_joined_sequences() {
    let data = golden();
    for name in ["lru_half_glu1", "lru_tokens"] {
        let (checkpoint, sequences) = (opened(name), data.sequences(name));
        let settings = Settings::new(TargetSize::Order(3));
        let (small, _) = calibrated(&checkpoint.model, &sequences, &settings);
        let models = [&checkpoint.model, &small];
        let longer = change_beyond(models[0], models[1], &sequences, LENGTH).unwrap();
        let longer = longer.unwrap();
        assert_eq!(longer.steps, LENGTH);

        let pairs = sequences.len().min(32) / 2;
        let single = models.map(|model| {
            let network = Network::new(model, LENGTH, InferPath::Auto).unwrap();
            let logits = network.logits_of_all(&sequences[..2 * pairs]);
            logits.unwrap().concat()
        });
        let joined = models.map(|model| {
            let network = Network::new(model, 2 * LENGTH, InferPath::Auto).unwrap();
            let of = |pair: usize| match name {
                "lru_tokens" => {
                    let joined = data.tokens[2 * pair..2 * pair + 2].concat();
                    network.logits(Sequence::Tokens(&joined)).unwrap()
                }
                _ => {
                    let joined = data.values[2 * pair..2 * pair + 2].concat();
                    network.logits(Sequence::Values(&joined)).unwrap()
                }
            };
            (0..pairs).flat_map(of).collect::<Vec<f64>>()
        });
        let classes = single[0].len() / (2 * pairs);
        let expected = centred_change(&single[0], &single[1], classes);
        assert!(
            (longer.change - expected).abs() < 1e-12,
            "{longer:?} {expected}"
        );
        let expected = centred_change(&joined[0], &joined[1], classes);
        assert!(expected > 0.0 && (longer.change_of_pairs - expected).abs() < 1e-12);
        let one = change_beyond(models[0], models[1], &sequences[..1], LENGTH).unwrap();
        assert_eq!(one, None);
    }
}

#[test]
fn the_full_order_is_the_network_itself() {
    let data = golden();
    for name in MODELS {
        let (checkpoint, sequences) = (opened(name), data.sequences(name));
        let settings = Settings::new(TargetSize::Order(6));
        let (model, change) = calibrated(&checkpoint.model, &sequences, &settings);
        assert_eq!(model, checkpoint.model, "{name}");
        assert_eq!(change, 0.0);
    }
}

#[test]
fn a_largest_error_is_met_with_the_fewest_modes() {
    let data = golden();
    let (checkpoint, sequences) = (opened("lru_half_glu1"), data.sequences("lru_half_glu1"));
    let order = |error: f64| {
        let settings = Settings::new(TargetSize::Error(error));
        let (model, _) = calibrated(&checkpoint.model, &sequences, &settings);
        model.blocks()[0].order()
    };
    let (loose, tight) = (order(0.5), order(1e-3));
    assert!(loose < tight && tight <= 6, "{loose} {tight}");
}

#[test]
fn what_needs_the_sequences_is_refused_without_them() {
    let data = golden();
    let (checkpoint, sequences) = (opened("s5_gelu"), data.sequences("s5_gelu"));
    let network = Network::new(&checkpoint.model, LENGTH, InferPath::Auto).unwrap();
    let statistics = Calibration::gather(&network, &sequences, "the test").unwrap();
    let choice = WeightChoice::Auto;
    let refused = CalibratedReduction::new(&checkpoint.model, &statistics, &[], choice, &());
    let message = refused.err().unwrap().to_string();
    assert!(
        message.contains("need the calibration sequences"),
        "{message}"
    );
}

/// Inputs of the layers, and gradients by their outputs, in a file.
fn captured(model: &Model, gradients: bool) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("captured.safetensors");
    let mut tensors = Vec::new();
    for (layer, block) in model.blocks().iter().enumerate() {
        let wave = |n: usize| (0.7 * n as f64 + layer as f64).sin() + 0.5 * (0.11 * n as f64).cos();
        let mut add = |name: String, shape: Vec<usize>| {
            let values: Vec<f64> = (0..shape.iter().product()).map(wave).collect();
            let tensor = RawTensor::from_f64(Dtype::F32, shape, &values).unwrap();
            tensors.push((name, tensor));
        };
        let (name, channels) = (block.name(), block.channels());
        add(name.to_string(), vec![12, LENGTH, channels]);
        if gradients {
            let shape = vec![12, 2, LENGTH, block.outputs()];
            add(format!("{name}.output_gradient"), shape);
        }
    }
    write_arrays(&path, tensors, "").unwrap();
    (folder, path)
}

#[test]
fn layers_alone_are_reduced_for_captured_inputs() {
    for (name, gradients) in [("lru_half_glu1", true), ("s5_gelu", false)] {
        let model = opened(name).model;
        let (_folder, path) = captured(&model, gradients);
        let inputs = Captured::open(&path, &model, 100).unwrap();
        let statistics = inputs.statistics("the test", &()).unwrap();
        let choice = WeightChoice::Auto;
        let reduction =
            CalibratedReduction::of_captured(&model, &statistics, &inputs, choice, &()).unwrap();
        let mut errors = Vec::new();
        for order in [2, 3] {
            let made = reduction
                .reduce(&Settings::new(TargetSize::Order(order)))
                .unwrap();
            assert!(
                made.model
                    .blocks()
                    .iter()
                    .all(|block| block.order() == order)
            );
            let known = [Known::Inputs, Known::InputsAndGradients][usize::from(gradients)];
            assert_eq!(made.choice.known, known, "{name}");
            assert_eq!(made.records.len(), model.blocks().len());
            assert!(made.choice.logit_change.is_none());
            errors.push(made.choice.relative_error);
        }
        assert!(
            errors[1] < errors[0] && errors[0] < 1.0,
            "{name}: {errors:?}"
        );
        let most = Settings::new(TargetSize::Error(errors[0]));
        let met = reduction.reduce(&most).unwrap();
        assert!(met.choice.relative_error <= errors[0], "{name}");
    }
}
