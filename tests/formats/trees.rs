//! Networks that are nearly the classifier of example.py, and tensors that share their numbers. The
//! fixtures are made by `tests/reference/make_trees.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::here;
use hankelite::advanced::{read_layerwise, reduce_layer};
use hankelite::checkpoint::{Checkpoint, Family, from_tensors};
use hankelite::infer::{Network, Path as Run};
use hankelite::model::Sequence;
use hankelite::{Declared, Plan, Rule, read, reduce, write};
use hankelite_archive::{Archive, Dtype, RawTensor};

fn file(name: &str) -> PathBuf {
    let name = match name.contains('.') {
        true => name.to_string(),
        false => format!("{name}.pth"),
    };
    here("data/trees").join(name)
}

fn open(name: &str) -> Checkpoint {
    read(file(name), &Declared::default()).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn reduced(checkpoint: &Checkpoint) -> Checkpoint {
    let plan = Plan::new(Rule::Order(2)).unwrap();
    checkpoint.with_model(reduce(&checkpoint.model, &plan).unwrap().model)
}

/// A checkpoint as a file holds it.
fn as_written(checkpoint: &Checkpoint) -> Checkpoint {
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("written.safetensors");
    write(checkpoint, &path).unwrap();
    read(&path, &Declared::default()).unwrap()
}

/// Numbers in all tensors, those of the same name in `twice` once.
fn numbers(path: &Path, twice: impl Fn(&str) -> bool) -> usize {
    let archive = Archive::open(path).unwrap();
    let once = archive.names().filter(|name| !twice(name));
    let shapes = once.map(|name| archive.shape(name).unwrap());
    shapes.map(|shape| shape.iter().product::<usize>()).sum()
}

fn assert_same(archive: &Archive, first: &str, second: &str) {
    assert_eq!(
        archive.tensor(first).unwrap(),
        archive.tensor(second).unwrap(),
        "{second}"
    );
}

#[test]
fn what_is_not_the_whole_classifier_is_read_as_layers_alone_with_the_reason() {
    let whole = read(here("data/s4d_classifier.pth"), &Declared::default()).unwrap();
    for (name, words) in [
        (
            "decoder_added",
            &["`aux_decoder.bias`", "`aux_decoder.weight`"][..],
        ),
        ("convolutions", &["`encoder.0.weight`", "`encoder.2.bias`"]),
        (
            "convolution",
            &[
                "`encoder.weight` has shape [4, 2, 5]",
                "expected [4, inputs]",
            ],
        ),
        ("other_layer", &["`s4_layers.2.conv.weight`"]),
    ] {
        let checkpoint = open(name);
        let note = checkpoint.notes().join("\n");
        for word in words {
            assert!(note.contains(word), "{name}: {note}");
        }
        assert!(checkpoint.is_layers_alone() && checkpoint.model.head().is_none());
        let systems = |c: &Checkpoint| -> Vec<_> {
            c.model
                .blocks()
                .iter()
                .map(|b| b.systems().to_vec())
                .collect()
        };
        assert_eq!(systems(&checkpoint), systems(&whole), "{name}");
        assert_eq!(checkpoint.model.blocks()[1].name(), "s4_layers.1");
        let out = tempfile::tempdir().unwrap();
        let path = out.path().join("small.pth");
        write(&reduced(&checkpoint), &path).unwrap();
        let (old, new) = (
            Archive::open(file(name)).unwrap(),
            Archive::open(&path).unwrap(),
        );
        for tensor in old.names().filter(|name| !name.contains(".kernel.")) {
            assert_eq!(
                old.tensor(tensor).unwrap(),
                new.tensor(tensor).unwrap(),
                "{tensor}"
            );
        }
        assert_eq!(
            read(&path, &Declared::default()).unwrap().model.blocks()[0].order(),
            2
        );
    }
}

#[test]
fn a_module_under_two_names_is_read_once_and_written_under_both() {
    let whole = read(here("data/s4d_classifier.pth"), &Declared::default()).unwrap();
    let small = as_written(&reduced(&whole));
    for name in ["two_names.pth", "two_names.safetensors"] {
        let checkpoint = open(name);
        assert_eq!(checkpoint.model, whole.model, "{name}");
        assert_eq!(checkpoint.layer_parameters(1), whole.layer_parameters(1));
        let note = checkpoint.notes().join("\n");
        assert!(note.contains("share their numbers"), "{note}");
        assert_eq!(
            checkpoint.parameters().unwrap(),
            whole.parameters().unwrap()
        );
        for ending in ["pth", "safetensors"] {
            let out = tempfile::tempdir().unwrap();
            let path = out.path().join(format!("small.{ending}"));
            let reduced = reduced(&checkpoint);
            assert_eq!(reduced.parameters().unwrap(), small.parameters().unwrap());
            write(&reduced, &path).unwrap();
            let written = Archive::open(&path).unwrap();
            for tensor in written
                .names()
                .filter(|name| !name.starts_with("backbone."))
            {
                assert_same(&written, tensor, &format!("backbone.{tensor}"));
                let shared = written.tied_to(tensor).is_some();
                assert_eq!(shared, ending == "pth", "{tensor}");
            }
            assert_eq!(
                read(&path, &Declared::default()).unwrap().model,
                small.model
            );
        }
    }
}

#[test]
fn layers_that_stand_beside_the_classifier_too_are_the_same_layers() {
    let whole = read(here("data/s4d_classifier.pth"), &Declared::default()).unwrap();
    let checkpoint = open("layers_twice");
    assert_eq!(checkpoint.model, whole.model);
    let out = tempfile::tempdir().unwrap();
    for (path, by_layers) in [("a.pth", false), ("b.pth", true)] {
        let path = out.path().join(path);
        match by_layers {
            false => {
                write(&reduced(&checkpoint), &path).unwrap();
            }
            true => reduce_by_layers("layers_twice", &path),
        }
        let written = Archive::open(&path).unwrap();
        let kernel = "s4_layers.1.kernel.C";
        assert_same(&written, kernel, "backbone.blocks.1.kernel.C");
        assert_eq!(written.shape(kernel).unwrap(), [4, 2, 2]);
        assert_eq!(written.tied_to(kernel), Some("backbone.blocks.1.kernel.C"));
        assert_eq!(
            read(&path, &Declared::default()).unwrap().model,
            as_written(&reduced(&whole)).model
        );
    }
}

/// Reduces a file one layer at a time.
fn reduce_by_layers(name: &str, path: &Path) {
    let layers = read_layerwise(file(name), &Declared::default()).unwrap();
    let plan = Plan::new(Rule::Order(2)).unwrap();
    let mut rewrite = layers.rewrite(Some(path)).unwrap();
    for index in 0..layers.outline().model.blocks().len() {
        let block = layers.layer(index).unwrap();
        let mut small = block.clone();
        reduce_layer(&mut small, &plan).unwrap();
        rewrite.set(index, block, &small).unwrap();
    }
    let expected = reduced(&open(name)).parameters().unwrap();
    assert_eq!(rewrite.parameters(), expected);
    rewrite.write(path).unwrap();
}

#[test]
fn a_layer_that_is_applied_twice_runs_twice_and_stays_one() {
    let checkpoint = open("tied_layers");
    assert_eq!(
        checkpoint.model.blocks()[0].systems(),
        checkpoint.model.blocks()[1].systems()
    );
    let golden = Archive::open(file("tied_layers_golden.safetensors")).unwrap();
    let values = |name: &str| golden.tensor(name).unwrap().to_f64().unwrap();
    let inputs: Vec<f32> = values("inputs").iter().map(|&x| x as f32).collect();
    let sequences: Vec<_> = inputs.chunks(96).map(Sequence::Values).collect();
    let network = Network::new(&checkpoint.model, 48, Run::Double).unwrap();
    let logits = network.logits_of_all(&sequences).unwrap().concat();
    for (found, expected) in logits.iter().zip(values("logits_postnorm")) {
        assert!((found - expected).abs() < 1e-9, "{found} for {expected}");
    }
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("small.pth");
    write(&reduced(&checkpoint), &path).unwrap();
    let written = Archive::open(&path).unwrap();
    assert_eq!(
        written.tied_to("s4_layers.1.kernel.C"),
        Some("s4_layers.0.kernel.C")
    );
    let twice = |name: &str| name.starts_with("s4_layers.1.");
    let counted = open("tied_layers").parameters().unwrap();
    assert_eq!(counted, numbers(&file("tied_layers"), twice));
    reduce_by_layers("tied_layers", &out.path().join("by_layers.pth"));

    // Different reductions of one layer have no place in the file.
    let small = reduced(&checkpoint);
    let first = checkpoint.model.blocks()[0].clone();
    let apart = checkpoint.with_model(small.model.with_block(0, first).unwrap());
    let error = write(&apart, out.path().join("apart.pth")).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("share their numbers in the file"), "{text}");
}

#[test]
fn a_table_of_tokens_that_is_the_decoder_too_stays_one() {
    let checkpoint = open("tied_ends");
    assert!(checkpoint.model.encoder().is_some() && checkpoint.carried().is_empty());
    let counted = numbers(&file("tied_ends"), |name| name == "encoder.weight");
    assert_eq!(checkpoint.parameters().unwrap(), counted);
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("small.pth");
    write(&reduced(&checkpoint), &path).unwrap();
    let written = Archive::open(&path).unwrap();
    assert_eq!(written.tied_to("encoder.weight"), Some("decoder.weight"));
}

#[test]
fn views_of_one_storage_stay_views_of_one_storage() {
    let checkpoint = open("views");
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("small.pth");
    write(&reduced(&checkpoint), &path).unwrap();
    let (old, new) = (
        Archive::open(file("views")).unwrap(),
        Archive::open(&path).unwrap(),
    );
    for name in ["head.weight", "head.rows", "zero"] {
        assert_eq!(
            old.tensor(name).unwrap(),
            new.tensor(name).unwrap(),
            "{name}"
        );
        // `zero` has the elements of `head.weight` along other axes; `head.rows` has a part.
        assert_eq!(new.repeats(name), name == "zero", "{name}");
    }
    let twice = |name: &str| name == "zero";
    assert_eq!(
        checkpoint.parameters().unwrap(),
        numbers(&file("views"), twice)
    );
    let storages = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        // Once before the record and once in the directory at the end.
        bytes.windows(6).filter(|part| part == b"/data/").count() / 2
    };
    assert_eq!(storages(&path), storages(&file("views")));
}

#[test]
fn a_layer_that_lacks_a_tensor_is_an_error_in_any_network() {
    let archive = Archive::open(file("decoder_added")).unwrap();
    let names = archive
        .names()
        .filter(|name| *name != "s4_layers.1.kernel.log_A_real");
    let tensors = names.map(|name| (name.to_string(), archive.tensor(name).unwrap()));
    let less = Archive::in_memory("less", tensors.collect());
    let out = tempfile::tempdir().unwrap();
    let path = out.path().join("less.safetensors");
    less.write(&path, hankelite_archive::Container::Safetensors, "")
        .unwrap();
    let error = read(&path, &Declared::default())
        .map(|_| ())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("`s4_layers.1.kernel.log_A_real` is missing"),
        "{error}"
    );
}

#[test]
fn what_is_converted_has_one_name() {
    let converted = open("two_names").converted(Family::S4V4).unwrap();
    let note = converted.notes().join("\n");
    assert!(
        note.contains("other names of the same tensors are left out"),
        "{note}"
    );
    assert_eq!(converted.model.blocks().len(), 2);
    assert_eq!(converted.carried().len(), 0);
}

/// The tensors of the fixture classifier under other names, and what was added to them.
fn classifier_as(name: impl Fn(&str) -> String, more: &[&str]) -> BTreeMap<String, RawTensor> {
    let archive = Archive::open(here("data/s4d_classifier.pth")).unwrap();
    let stored = archive.names();
    let stored = stored.map(|own| (name(own), archive.tensor(own).unwrap()));
    let count = RawTensor::new(Dtype::I64, vec![], 7_i64.to_le_bytes().to_vec()).unwrap();
    let more = more.iter().map(|name| (name.to_string(), count.clone()));
    stored.chain(more).collect()
}

#[test]
fn wrappers_and_a_count_of_averages_do_not_hide_a_network() {
    let plain = read(here("data/s4d_classifier.pth"), &Declared::default()).unwrap();
    let compiled = |name: &str| name.replacen("s4_layers.0.", "s4_layers.0._orig_mod.", 1);
    let sharded = |name: &str| {
        format!(
            "module.{}",
            name.replace("output_linear.", "output_linear._fsdp_wrapped_module.")
        )
    };
    let cases = [
        ("compiled", classifier_as(compiled, &[])),
        ("sharded", classifier_as(sharded, &[])),
        (
            "averaged",
            classifier_as(|name| format!("module.{name}"), &["n_averaged"]),
        ),
    ];
    let out = tempfile::tempdir().unwrap();
    for (name, tensors) in cases {
        let checkpoint = from_tensors(name, tensors.clone(), &Declared::default()).unwrap();
        assert!(
            !checkpoint.is_layers_alone(),
            "{name}: {:?}",
            checkpoint.notes()
        );
        assert_eq!(checkpoint.carried().len(), 0, "{name}");
        let (read_as, expected) = (&checkpoint.model, &plain.model);
        assert_eq!(
            read_as.blocks()[0].systems(),
            expected.blocks()[0].systems()
        );
        let kernel = &checkpoint.system_tensors(0)[0];
        assert!(tensors.contains_key(kernel), "{name}: {kernel}");

        let path = out.path().join(format!("{name}.safetensors"));
        write(&reduced(&checkpoint), &path).unwrap();
        let written = Archive::open(&path).unwrap();
        assert!(
            written.names().eq(tensors.keys().map(String::as_str)),
            "{name}"
        );
        let again = read(&path, &Declared::default()).unwrap();
        let systems = |of: &Checkpoint| of.model.blocks()[1].systems().to_vec();
        assert_eq!(
            systems(&again),
            systems(&as_written(&reduced(&plain))),
            "{name}"
        );
    }
}

#[test]
fn two_tensors_that_would_have_one_name_keep_theirs() {
    let compiled = |name: &str| name.replacen("s4_layers.0.", "s4_layers.0._orig_mod.", 1);
    let mut tensors = classifier_as(compiled, &[]);
    let norm = tensors["norms.0.weight"].clone();
    tensors.insert("norms.0._orig_mod.weight".into(), norm);
    let checkpoint = from_tensors("two", tensors, &Declared::default()).unwrap();
    assert!(checkpoint.is_layers_alone());
}
