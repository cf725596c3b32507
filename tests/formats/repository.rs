//! The sequence model of the full state-spaces/s4 repository: logits of the original code, files
//! that come back bit for bit, and what is done with networks that are nearly that. The fixtures are
//! made by `tests/reference/make_repository.py`.

use std::path::PathBuf;

use crate::common::here;
use hankelite::advanced::{CalibratedReduction, Settings, WeightChoice};
use hankelite::calibrate::{Calibration, TargetSize};
use hankelite::checkpoint::{Checkpoint, Family};
use hankelite::infer::{Network, Path as Run};
use hankelite::model::{Model, Norm, Placement, Pooling, Sequence};
use hankelite::stream::Runner;
use hankelite::{Declared, Plan, Rule, read, reduce, write};
use hankelite_archive::Archive;

const LENGTH: usize = 20;

fn file(name: &str) -> PathBuf {
    here("data/repository").join(format!("{name}.ckpt"))
}

fn open(name: &str) -> Checkpoint {
    read(file(name), &Declared::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn truth(key: &str) -> Vec<f64> {
    let truth = Archive::open(here("data/repository/truth.safetensors")).unwrap();
    truth.tensor(key).unwrap().to_f64().unwrap()
}

/// The inputs of a fixture: tokens, or two numbers at each step.
struct Inputs {
    tokens: Vec<u32>,
    values: Vec<f32>,
}

impl Inputs {
    fn of(name: &str) -> Self {
        let all = truth(&format!("{name}/inputs"));
        let (mut tokens, mut values) = (Vec::new(), Vec::new());
        match name {
            "post" => tokens = all.iter().map(|&x| x as u32).collect(),
            _ => values = all.iter().map(|&x| x as f32).collect(),
        }
        Self { tokens, values }
    }

    fn sequences(&self) -> Vec<Sequence<'_>> {
        let tokens = self.tokens.chunks(LENGTH).map(Sequence::Tokens);
        let values = self.values.chunks(2 * LENGTH).map(Sequence::Values);
        tokens.chain(values).collect()
    }
}

fn logits(name: &str, model: &Model, run: Run) -> Vec<f64> {
    let inputs = Inputs::of(name);
    let network = Network::new(model, LENGTH, run).unwrap();
    network.logits_of_all(&inputs.sequences()).unwrap().concat()
}

fn assert_close(found: &[f64], expected: &[f64], tolerance: f64) {
    assert_eq!(found.len(), expected.len());
    let each = found.iter().zip(expected).map(|(a, b)| (a - b).abs());
    let most = each.fold(0.0, f64::max);
    assert!(most < tolerance, "{most:e}: {found:?} for {expected:?}");
}

#[test]
fn logits_are_those_of_the_original_code() {
    for (name, pooling) in [("post", "mean"), ("pre", "last"), ("pre", "mean")] {
        let declared = Declared {
            pooling: match (name, pooling) {
                // A person knows better than the settings in the file.
                ("pre", "mean") => Some(Pooling::Mean),
                _ => None,
            },
            ..Declared::default()
        };
        let checkpoint = read(file(name), &declared).unwrap();
        let expected = truth(&format!("{name}/{pooling}"));
        for run in [Run::Double, Run::Recurrence] {
            assert_close(&logits(name, &checkpoint.model, run), &expected, 1e-8);
        }
        assert_close(&logits(name, &checkpoint.model, Run::Auto), &expected, 1e-5);
    }
}

#[test]
fn placement_norms_and_pooling_are_found_in_the_file() {
    let (post, pre) = (open("post"), open("pre"));
    for (checkpoint, placement) in [(&post, Placement::Post), (&pre, Placement::Pre)] {
        let mut norms = checkpoint.model.blocks().iter().map(|b| b.norm());
        assert!(norms.all(|norm| norm.unwrap().1 == placement));
        assert_eq!(checkpoint.declared().norm, Some(placement));
        assert_eq!(
            (checkpoint.carried().len(), checkpoint.model.blocks().len()),
            (0, 2)
        );
    }
    assert!(post.model.final_norm().is_none());
    assert!(matches!(
        post.model.blocks()[1].norm(),
        Some((Norm::Batch(_), _))
    ));
    assert!(matches!(pre.model.final_norm(), Some(Norm::Layer(_))));
    assert_eq!(post.model.blocks()[0].backward().len(), 4);
    assert_eq!(post.model.blocks()[0].outputs(), 8);
    let told = [&post, &pre].map(|checkpoint| checkpoint.assumptions().join("\n"));
    assert!(told[0].contains("decoder.mode = \"pool\""), "{}", told[0]);
    assert!(told[1].contains("decoder.mode = \"last\""), "{}", told[1]);
}

#[test]
fn a_declared_placement_that_the_tensors_deny_is_an_error() {
    for (name, norm, tensor) in [
        ("post", Placement::Pre, "`model.norm.norm.weight`"),
        ("pre", Placement::Post, "`net.model.norm.norm.weight`"),
    ] {
        let norm = Some(norm);
        let declared = Declared {
            norm,
            ..Declared::default()
        };
        let error = read(file(name), &declared).map(|_| ()).unwrap_err();
        let error = error.to_string();
        assert!(error.contains(tensor), "{error}");
    }
}

/// The tensors of `second` that are not those of `first`.
fn changed(first: &std::path::Path, second: &std::path::Path) -> Vec<String> {
    let (first, second) = (
        Archive::open(first).unwrap(),
        Archive::open(second).unwrap(),
    );
    assert!(first.names().eq(second.names()));
    let names = first.names().filter(|name| {
        let pair = [&first, &second].map(|archive| archive.tensor(name).unwrap());
        pair[0] != pair[1]
    });
    names.map(str::to_string).collect()
}

#[test]
fn unchanged_tensors_come_back_bit_for_bit_and_changed_ones_in_place() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["post", "pre", "positional", "sum"] {
        for path in ["same.ckpt", "same.safetensors"].map(|path| folder.path().join(path)) {
            let full = open(name);
            write(&full, &path).unwrap();
            assert_eq!(changed(&file(name), &path), [""; 0], "{name}");
            let again = read(&path, &full.declared()).unwrap();
            if full.model.head().is_some() {
                assert_eq!(again.model, full.model, "{name}");
            }
        }
    }
    let full = open("pre");
    let model = crate::models::changed(&full.model, |parts| {
        let Some(Norm::Layer(norm)) = &mut parts.final_norm else {
            unreachable!("a layer norm was read");
        };
        norm.bias[1] = 0.25;
        parts.head.as_mut().unwrap().linear.bias.as_mut().unwrap()[0] = 0.5;
    });
    let path = folder.path().join("changed.safetensors");
    write(&full.with_model(model.clone()), &path).unwrap();
    assert_eq!(
        changed(&file("pre"), &path),
        [
            "net.decoder.0.output_transform.bias",
            "net.model.norm.norm.bias"
        ]
    );
    assert_eq!(read(&path, &Declared::default()).unwrap().model, model);
}

#[test]
fn reduced_files_run_as_the_reduced_model_does() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.safetensors");
    for name in ["post", "pre"] {
        let full = open(name);
        let small = reduce(&full.model, &Plan::new(Rule::Order(4)).unwrap()).unwrap();
        write(&full.with_model(small.model.clone()), &path).unwrap();
        let back = read(&path, &Declared::default()).unwrap();
        assert!(back.model.blocks().iter().all(|block| block.order() == 4));
        let expected = logits(name, &small.model, Run::Double);
        assert_close(&logits(name, &back.model, Run::Double), &expected, 1e-4);
        // All the rest is as it was.
        let tensors = changed(&file(name), &path);
        assert!(tensors.iter().all(|name| name.contains(".layer.layer.")));
    }
}

#[test]
fn calibration_goes_through_the_last_norm() {
    let full = open("pre");
    let inputs = Inputs::of("pre");
    let sequences = inputs.sequences();
    let network = Network::new(&full.model, LENGTH, Run::Double).unwrap();
    let calibration = Calibration::gather(&network, &sequences, "").unwrap();
    let prepared = CalibratedReduction::new(
        &full.model,
        &calibration,
        &sequences,
        WeightChoice::Auto,
        &(),
    )
    .unwrap();
    let small = prepared
        .reduce(&Settings::new(TargetSize::Order(4)))
        .unwrap();
    let change = prepared.logit_change(&small.model).unwrap().unwrap();
    let plain = reduce(&full.model, &Plan::new(Rule::Order(4)).unwrap()).unwrap();
    let without = prepared.logit_change(&plain.model).unwrap().unwrap();
    assert!(change < without, "{change} calibrated, {without} without");
    let other = crate::models::changed(&full.model, |parts| parts.final_norm = None);
    assert!(calibration.check(&other).is_err());
}

#[test]
fn the_last_norm_is_streamed() {
    let model = open("pre").model;
    let inputs = Inputs::of("pre");
    let expected = truth("pre/last");
    let mut runner = Runner::double(&model).unwrap();
    let mut outputs = Vec::new();
    for step in inputs.values[..2 * LENGTH].chunks(2) {
        let step: Vec<f64> = step.iter().map(|&value| value.into()).collect();
        outputs = runner.step(&step).unwrap().to_vec();
    }
    assert_close(&outputs, &expected[..3], 1e-8);
}

#[test]
fn other_kernels_of_the_same_repository_are_the_same_network() {
    for (name, families) in [
        ("pre", &[Family::S4V3, Family::S4d, Family::DssExp][..]),
        ("post", &[Family::S4V3, Family::DssExp]),
    ] {
        let full = open(name);
        let expected = logits(name, &full.model, Run::Double);
        for &family in families {
            let other = full.converted(family).unwrap();
            assert_close(&logits(name, &other.model, Run::Double), &expected, 1e-3);
        }
    }
}

#[test]
fn a_new_file_of_another_tree_has_no_place_for_the_last_norm() {
    let error = Checkpoint::new_s4d(&open("pre").model).map(|_| ());
    let error = error.unwrap_err().to_string();
    assert!(error.contains("between its last layer and its head"));
}

/// What is nearly the network, but is not, is read as layers, and says why.
#[test]
fn other_networks_are_read_as_layers() {
    for (name, carried, why) in [
        ("positional", 18, "tensor `encoder.1.weight`"),
        ("sum", 14, "decoder.mode = \"sum\""),
    ] {
        let checkpoint = open(name);
        let model = &checkpoint.model;
        assert!(
            model.encoder().is_none() && model.head().is_none() && model.final_norm().is_none()
        );
        assert_eq!(
            (model.blocks().len(), checkpoint.carried().len()),
            (2, carried)
        );
        let notes = checkpoint.notes().join("\n");
        assert!(notes.contains(why), "{notes}");
        assert!(notes.contains("can be inspected, reduced and written, not run"));
        let small = reduce(model, &Plan::new(Rule::Order(3)).unwrap()).unwrap();
        assert!(small.model.blocks().iter().all(|block| block.order() == 3));
    }
    // A pooling that is declared stands against that of the file.
    let declared = Declared {
        pooling: Some(Pooling::Last),
        ..Declared::default()
    };
    let model = read(file("sum"), &declared).unwrap().model;
    assert_close(
        &logits("pre", &model, Run::Double),
        &truth("pre/last"),
        1e-8,
    );
}
