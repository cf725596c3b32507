//! Networks of S5, minimal-LRU and lru-reduction in the names of torch, run as their code runs them.
//! The fixtures and their logits are made by `tests/reference/make_stacks.py`.

use std::path::{Path, PathBuf};

use crate::common::here;
use crate::golden::{Golden, LENGTH, largest_difference, logits};
use hankelite::advanced::{CalibratedReduction, Settings, WeightChoice};
use hankelite::calibrate::{Calibration, TargetSize};
use hankelite::checkpoint::{Checkpoint, Family, Gelu, HalfGate};
use hankelite::infer::{Network, Path as InferPath};
use hankelite::model::{Gate, Nonlinearity, Placement, Pooling};
use hankelite::stream::Runner;
use hankelite::{Declared, Plan, Rule, read, reduce, write};
use hankelite_archive::{Archive, Dtype, RawTensor, write_arrays};

const FILES: [&str; 5] = [
    "s5_full_glu.pth",
    "s5_half_glu2.safetensors",
    "lru_gelu",
    "lru_tokens.safetensors",
    "dlru.pth",
];

fn file(name: &str) -> PathBuf {
    here("data/stacks").join(name)
}

fn stem(name: &str) -> &str {
    name.split('.').next().unwrap()
}

fn declared(name: &str) -> Declared {
    Declared {
        norm: (stem(name) == "s5_half_glu2").then_some(Placement::Post),
        half_gate: (stem(name) == "s5_half_glu2").then_some(HalfGate::HalfGlu2),
        pooling: match stem(name) {
            "lru_gelu" => Some(Pooling::Last),
            "dlru" => Some(Pooling::Mean),
            _ => None,
        },
        gelu: (stem(name) == "lru_tokens").then_some(Gelu::Tanh),
        ..Declared::default()
    }
}

fn opened(name: &str) -> Checkpoint {
    read(file(name), &declared(name)).unwrap()
}

/// The sequences and logits of all fixtures.
fn golden() -> Golden {
    Golden::open(file("golden.safetensors"))
}

#[test]
fn logits_are_those_of_the_original_formulas() {
    let data = golden();
    for name in FILES {
        let checkpoint = opened(name);
        assert!(
            !checkpoint.is_layers_alone() && checkpoint.carried().is_empty(),
            "{name}"
        );
        let found = logits(&checkpoint.model, &data.sequences(name));
        let apart = largest_difference(&found, &data.truth(&format!("{}/logits", stem(name))));
        assert!(apart < 1e-10, "{name}: {apart:e}");
    }
}

#[test]
fn streamed_steps_give_the_logits_of_the_original_formulas() {
    let data = golden();
    for name in [
        "s5_full_glu.pth",
        "s5_half_glu2.safetensors",
        "lru_gelu",
        "dlru.pth",
    ] {
        let model = opened(name).model;
        let mut runner = Runner::double(&model).unwrap();
        let mut found = Vec::new();
        for sequence in &data.values {
            runner.reset();
            let mut last = Vec::new();
            for step in sequence.chunks(2) {
                let step: Vec<f64> = step.iter().map(|&x| x.into()).collect();
                last = runner.step(&step).unwrap().to_vec();
            }
            found.extend(last);
        }
        let apart = largest_difference(&found, &data.truth(&format!("{}/logits", stem(name))));
        assert!(apart < 1e-10, "{name}: {apart:e}");
    }
}

#[test]
fn a_network_without_pooling_gives_outputs_at_every_step_until_one_is_declared() {
    let data = golden();
    let plain = read(file("dlru.pth"), &Declared::default()).unwrap();
    assert_eq!(plain.model.head().unwrap().pooling, None);
    let told = plain.assumptions().join("\n");
    assert!(told.contains("outputs at every step"), "{told}");
    let apart = largest_difference(
        &logits(&plain.model, &data.sequences("dlru.pth")),
        &data.truth("dlru/steps"),
    );
    assert!(apart < 1e-10, "{apart:e}");
    // Also where the file says so.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dlru.pth");
    write(&plain, &path).unwrap();
    let again = read(&path, &Declared::default()).unwrap();
    assert!(again.assumptions().is_empty(), "{:?}", again.assumptions());
    assert_eq!(again.model, plain.model);
    let pooled = read(&path, &declared("dlru.pth")).unwrap();
    assert_eq!(pooled.model, opened("dlru.pth").model);
}

#[test]
fn the_defaults_of_torch_are_assumed_and_can_be_declared() {
    let read = |declared: &Declared| read(file("s5_half_glu2.safetensors"), declared).unwrap();
    let assumed = read(&Declared::default());
    for text in [
        "pre-norm",
        "mean pooling",
        "half_glu1",
        "GELU with the exact normal distribution",
        "1e-5",
    ] {
        let mut found = assumed.assumptions().iter();
        assert!(found.any(|line| line.contains(text)), "{text}");
    }
    let block = &assumed.model.blocks()[0];
    assert_eq!(block.activation(), Nonlinearity::Gelu);
    assert_eq!(block.output().unwrap().gate, Gate::Activated);
    assert_eq!(block.name(), "layers.0.seq");
    let tanh = read(&Declared {
        gelu: Some(Gelu::Tanh),
        ..Declared::default()
    });
    assert_eq!(tanh.model.blocks()[0].activation(), Nonlinearity::GeluTanh);
    assert!(tanh.assumptions().iter().all(|line| !line.contains("GELU")));
}

/// A checkpoint as written, in the container of the source.
fn written(checkpoint: &Checkpoint, name: &str, folder: &Path) -> PathBuf {
    let path = folder.join(name);
    write(checkpoint, &path).unwrap();
    path
}

#[test]
fn unchanged_networks_come_back_bit_for_bit_and_reduced_ones_as_they_were_written() {
    let (folder, data) = (tempfile::tempdir().unwrap(), golden());
    for name in FILES {
        let checkpoint = opened(name);
        let path = written(&checkpoint, name, folder.path());
        let (before, after) = (
            Archive::open(file(name)).unwrap(),
            Archive::open(&path).unwrap(),
        );
        assert_eq!(before.container(), after.container(), "{name}");
        assert!(before.names().eq(after.names()), "{name}");
        for tensor in before.names() {
            let pair = [&before, &after].map(|archive| archive.tensor(tensor).unwrap());
            assert_eq!(pair[0], pair[1], "{name}: {tensor}");
        }
        let plan = Plan::new(Rule::Order(4)).unwrap();
        let reduced = reduce(&checkpoint.model, &plan).unwrap();
        let small = checkpoint.with_model(reduced.model.clone());
        let path = written(&small, &format!("small_{name}"), folder.path());
        let after = Archive::open(&path).unwrap();
        assert!(before.names().eq(after.names()), "{name}");
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
fn networks_with_one_tensor_more_less_or_other_are_layers_alone_and_the_note_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.safetensors");
    let archive = Archive::open(file("dlru.pth")).unwrap();
    let all = |out: &str| {
        let names = archive.names().filter(|name| *name != out);
        let tensors = names.map(|name| (name.to_string(), archive.tensor(name).unwrap()));
        tensors.collect::<Vec<(String, RawTensor)>>()
    };
    let mut more = all("");
    more.push((
        "decoder.scale".to_string(),
        archive.tensor("decoder.bias").unwrap(),
    ));
    let mut wide = all("decoder.weight");
    let weight = RawTensor::from_f64(Dtype::F32, vec![2, 5], &[0.5; 10]).unwrap();
    wide.push(("decoder.weight".to_string(), weight));
    for (tensors, name) in [
        (more, "decoder.scale"),
        (wide, "decoder.weight"),
        (all("decoder.bias"), "decoder.bias"),
        (all("blocks.1.ln.bias"), "blocks.1.ln.bias"),
        (all("encoder.bias"), "encoder.bias"),
    ] {
        write_arrays(&path, tensors, "").unwrap();
        let checkpoint = read(&path, &Declared::default()).unwrap();
        assert!(checkpoint.is_layers_alone(), "{name}");
        let note = checkpoint.notes().join("\n");
        assert!(note.contains(&format!("`{name}`")), "{note}");
    }
}

#[test]
fn a_conversion_keeps_what_was_declared_of_the_network() {
    let data = golden();
    for (name, family) in [
        ("lru_tokens.safetensors", Family::S5),
        ("s5_half_glu2.safetensors", Family::Lru),
    ] {
        let (full, sequences) = (opened(name), data.sequences(name));
        let other = full.converted(family).unwrap();
        let pair = [&full.model, &other.model].map(|model| logits(model, &sequences));
        let apart = largest_difference(&pair[0], &pair[1]);
        assert!(apart < 1e-4, "{name}: {apart:e}");
    }
}

#[test]
fn calibration_takes_dense_feedthroughs_and_exact_gelu() {
    let data = golden();
    for name in ["s5_full_glu.pth", "dlru.pth"] {
        let (checkpoint, sequences) = (opened(name), data.sequences(name));
        let model = &checkpoint.model;
        let network = Network::new(model, LENGTH, InferPath::Auto).unwrap();
        let statistics = Calibration::gather(&network, &sequences, "the test").unwrap();
        let choice = WeightChoice::Auto;
        let reduction =
            CalibratedReduction::new(model, &statistics, &sequences, choice, &()).unwrap();
        let settings = Settings::new(TargetSize::Order(3));
        let made = reduction.reduce(&settings).unwrap();
        let plan = Plan::new(Rule::Order(3)).unwrap();
        let white = reduce(model, &plan).unwrap().model;
        let white = reduction.logit_change(&white).unwrap().unwrap();
        let fitted = made.choice.logit_change.unwrap();
        assert!(fitted < 0.8 * white, "{name}: {fitted} for {white}");
        let folder = tempfile::tempdir().unwrap();
        let path = written(
            &checkpoint.with_model(made.model.clone()),
            "small.pth",
            folder.path(),
        );
        let again = read(&path, &Declared::default()).unwrap();
        let apart = largest_difference(
            &logits(&again.model, &sequences),
            &logits(&made.model, &sequences),
        );
        assert!(apart < 1e-4, "{name}: {apart:e}");
    }
}
