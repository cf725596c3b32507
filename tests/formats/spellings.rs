//! Layers in further spellings, and networks without a layer that can be read. The fixtures are made by
//! `tests/reference/make_spellings.py`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::here;
use hankelite::checkpoint::{Checkpoint, CheckpointError};
use hankelite::{Declared, Plan, Rule, read, reduce, write};
use hankelite_archive::{Archive, Container, Dtype, RawTensor, write_arrays};

fn file(name: &str) -> PathBuf {
    here("data/spellings").join(name)
}

fn fault(path: &Path, declared: &Declared) -> String {
    match read(path, declared).map(|_| ()).unwrap_err() {
        CheckpointError::Content(content) => content.to_string(),
        other => panic!("{other}"),
    }
}

/// The kernels of all layers and channels against those of the script.
fn assert_kernels(checkpoint: &Checkpoint, name: &str) {
    let truth = Archive::open(file("kernels.safetensors")).unwrap();
    let expected = truth.tensor(name).unwrap().to_f64().unwrap();
    let systems = checkpoint
        .model
        .blocks()
        .iter()
        .flat_map(|block| block.systems());
    let found: Vec<f64> = systems
        .flat_map(|system| system.kernel(40).unwrap())
        .collect();
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    for (found, expected) in found.iter().zip(&expected) {
        assert!(
            (found - expected).abs() <= 1e-6 * scale,
            "{name}: {found} for {expected}"
        );
    }
}

#[test]
fn low_rank_layers_of_annotated_s4_are_named_and_made_diagonal() {
    for name in ["dplr_64", "dplr_128"] {
        let path = file(&format!("{name}.msgpack"));
        let error = read(&path, &Declared::default()).map(|_| ()).unwrap_err();
        assert!(error.to_string().contains("annotated-s4"), "{error}");
        assert!(error.hint().unwrap().contains("--diagonalise"));
        let mut declared = Declared {
            diagonalise: Some(16),
            ..Declared::default()
        };
        assert!(fault(&path, &declared).contains("the file does not record"));
        declared.length = Some(32);
        let full = read(&path, &declared).unwrap();
        assert_kernels(&full, name);
        assert_eq!(full.model.blocks()[0].name(), "params/layers_0/seq");
        assert_eq!(
            full.parameters_of_file(),
            Archive::open(&path).unwrap().elements()
        );
        assert!(
            full.carried()
                .iter()
                .any(|name| name == "params/decoder/kernel")
        );
    }
}

#[test]
fn complex_numbers_of_two_doubles_are_read_as_pairs_and_come_back() {
    let path = file("dplr_128.msgpack");
    let archive = Archive::open(&path).unwrap();
    let name = "params/layers_0/seq/P";
    assert_eq!(archive.dtype(name), Some(Dtype::F64));
    assert_eq!(archive.shape(name).unwrap(), [8, 3, 2]);
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("same.msgpack");
    archive.write(&out, Container::Msgpack, "").unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), std::fs::read(&out).unwrap());
    // Changed numbers keep the type.
    let values: Vec<f64> = (0..48).map(f64::from).collect();
    let tensor = RawTensor::from_f64(Dtype::F64, vec![8, 3, 2], &values).unwrap();
    let changed = archive
        .with(BTreeMap::from([(name.to_string(), tensor)]))
        .unwrap();
    changed.write(&out, Container::Msgpack, "").unwrap();
    let back = Archive::open(&out).unwrap();
    assert_eq!(back.tensor(name).unwrap().to_f64().unwrap(), values);
    let bytes = std::fs::read(&out).unwrap();
    let double = bytes
        .windows(10)
        .filter(|part| part == b"complex128")
        .count();
    assert_eq!(double, 4);
}

#[test]
fn weights_may_be_products_of_split_tensors() {
    let folder = tempfile::tempdir().unwrap();
    let full = read(file("product.safetensors"), &Declared::default()).unwrap();
    assert_eq!(full.family(), "own layout");
    assert_kernels(&full, "product");
    let same = folder.path().join("same.safetensors");
    write(&full, &same).unwrap();
    assert_eq!(read(&same, &Declared::default()).unwrap().model, full.model);
    let small = reduce(&full.model, &Plan::new(Rule::Order(2)).unwrap())
        .unwrap()
        .model;
    let path = folder.path().join("small.safetensors");
    write(&full.with_model(small.clone()), &path).unwrap();
    let back = read(&path, &Declared::default()).unwrap();
    for (a, b) in back.model.blocks()[1]
        .systems()
        .iter()
        .zip(small.blocks()[1].systems())
    {
        let (a, b) = (a.kernel(40).unwrap(), b.kernel(40).unwrap());
        let scale = b.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5 * scale));
    }
}

/// Samples of every system forwards and backwards, outputs × inputs, against those of the script.
fn assert_samples(checkpoint: &Checkpoint, name: &str, tolerance: f64) {
    let truth = Archive::open(file("kernels.safetensors")).unwrap();
    let expected = truth.tensor(name).unwrap().to_f64().unwrap();
    let mut found = Vec::new();
    for system in checkpoint
        .model
        .blocks()
        .iter()
        .flat_map(|block| block.all_systems())
    {
        for output in system.output().row_iter() {
            for input in system.input().column_iter() {
                let weights = output.iter().zip(input.iter()).map(|(c, b)| c * b);
                let weights: Vec<_> = weights.zip(system.scaled_exponents()).collect();
                let sample = |l: u8| {
                    weights
                        .iter()
                        .map(|(w, z)| (w * (z * f64::from(l)).exp()).re)
                        .sum::<f64>()
                };
                found.extend((0..40).map(sample));
            }
        }
    }
    assert_eq!(found.len(), expected.len());
    let scale = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    for (found, expected) in found.iter().zip(&expected) {
        let apart = (found - expected).abs();
        assert!(apart <= tolerance * scale, "{name}: {found} for {expected}");
    }
}

#[test]
fn factors_of_b_and_c_are_multiplied_and_written_as_what_they_stand_for() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["s5_factored", "s5_factored_both"] {
        let path = file(&format!("{name}.safetensors"));
        let full = read(&path, &Declared::default()).unwrap();
        assert_eq!(full.family(), "S5 (torch)");
        assert_samples(&full, name, 1e-6);
        let notes = full.notes().join("\n");
        assert!(
            notes.contains("layers.1.seq: B and C are stored as products")
                && notes.contains("rank 2"),
            "{notes}"
        );
        let mut assumed = full.assumptions().iter();
        assert!(assumed.any(|line| line.contains("all modes are stored")));
        assert_eq!(
            full.parameters_of_file(),
            Archive::open(&path).unwrap().elements()
        );
        let out = folder.path().join("out.safetensors");
        write(&full, &out).unwrap();
        let (before, after) = (Archive::open(&path).unwrap(), Archive::open(&out).unwrap());
        for kept in ["Lambda", "D", "log_step"].map(|part| format!("layers.0.seq.{part}")) {
            assert_eq!(
                before.tensor(&kept).unwrap(),
                after.tensor(&kept).unwrap(),
                "{kept}"
            );
        }
        assert!(!after.contains("layers.0.seq.BH") && after.contains("head.weight"));
        let columns = if name == "s5_factored" { 8 } else { 16 };
        assert_eq!(after.shape("layers.0.seq.C").unwrap(), [3, columns]);
        assert_eq!(after.dtype("layers.0.seq.C"), Some(Dtype::C64));
        assert_eq!(after.shape("layers.0.seq.B").unwrap(), [8, 3, 2]);
        assert_samples(&read(&out, &Declared::default()).unwrap(), name, 1e-6);
        // Reduced: the plain layout of s5-pytorch, at another order.
        let plan = Plan::new(Rule::Order(4)).unwrap();
        let small = reduce(&full.model, &plan).unwrap().model;
        write(&full.with_model(small.clone()), &out).unwrap();
        let after = Archive::open(&out).unwrap();
        assert_eq!(after.shape("layers.0.seq.C").unwrap(), [3, columns / 2]);
        let back = read(&out, &Declared::default()).unwrap();
        for (a, b) in back.model.blocks()[1]
            .all_systems()
            .zip(small.blocks()[1].all_systems())
        {
            let apart = (a.output() * a.input() - b.output() * b.input()).map(|z| z.re);
            assert!(apart.norm() < 1e-5 * (b.output() * b.input()).norm());
        }
        let layerwise = hankelite::advanced::read_layerwise(&path, &Declared::default()).unwrap();
        assert_eq!(
            layerwise.layer(1).unwrap().systems(),
            full.model.blocks()[1].systems()
        );
    }
}

#[test]
fn low_rank_layers_of_one_system_are_named_and_made_diagonal() {
    let folder = tempfile::tempdir().unwrap();
    let diagonalise = |order| Declared {
        diagonalise: Some(order),
        ..Declared::default()
    };
    for name in ["mimo_dplr", "mimo_dplr_split"] {
        let path = file(&format!("{name}.safetensors"));
        let error = read(&path, &Declared::default()).map(|_| ()).unwrap_err();
        assert!(
            error.to_string().contains("one system for all channels"),
            "{error}"
        );
        assert!(error.to_string().contains("blocks.0.P"), "{error}");
        assert!(error.hint().unwrap().contains("--diagonalise"));
        let full = read(&path, &diagonalise(16)).unwrap();
        assert_samples(&full, name, 1e-6);
        assert_eq!(full.carried(), ["head.weight"]);
        assert_eq!(full.family(), "S5");
        let out = folder.path().join("diagonal.safetensors");
        write(&full, &out).unwrap();
        assert_samples(&read(&out, &Declared::default()).unwrap(), name, 1e-6);
        let small = read(&path, &diagonalise(4)).unwrap();
        assert!(small.model.blocks().iter().all(|block| block.order() <= 4));
        let notes = small.notes().join("\n");
        assert!(
            notes.contains("blocks.1: 8 modes of S4 (DPLR) became"),
            "{notes}"
        );
    }
}

#[test]
fn low_rank_layers_that_do_not_say_all_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.safetensors");
    let declared = Declared {
        diagonalise: Some(4),
        length: Some(32),
        ..Declared::default()
    };
    let changed = |source: &str, out: &str, other: Option<(&str, RawTensor)>| {
        let archive = Archive::open(file(source)).unwrap();
        let names = archive.names().filter(|name| !name.ends_with(out));
        let mut tensors: BTreeMap<String, RawTensor> = names
            .map(|name| (name.to_string(), archive.tensor(name).unwrap()))
            .collect();
        tensors.extend(other.map(|(name, tensor)| (name.to_string(), tensor)));
        write_arrays(&path, tensors, "").unwrap();
        fault(&path, &declared).to_string()
    };
    for (source, out) in [
        ("mimo_dplr.safetensors", ".C"),
        ("mimo_dplr_split.safetensors", ".C"),
        ("dplr_64.msgpack", "/C"),
    ] {
        let text = changed(source, out, None);
        assert!(text.contains("without C"), "{source}: {text}");
    }
    let steps = RawTensor::from_f64(Dtype::F32, vec![8], &[-3.0; 8]).unwrap();
    let text = changed(
        "mimo_dplr.safetensors",
        "0.log_step",
        Some(("blocks.0.log_step", steps)),
    );
    assert!(
        text.contains("blocks.0.log_step") && text.contains("one step"),
        "{text}"
    );
    let banks = RawTensor::from_c64(vec![3, 8], &[-num_complex::Complex64::ONE; 24]).unwrap();
    let text = changed(
        "mimo_dplr.safetensors",
        "0.Lambda",
        Some(("blocks.0.Lambda", banks)),
    );
    assert!(text.contains("one set for all channels"), "{text}");
}

#[test]
fn factors_that_do_not_fit_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.safetensors");
    let archive = Archive::open(file("s5_factored.safetensors")).unwrap();
    for (changed, shape) in [
        ("BP", [8, 3]),
        ("BH", [3, 4]),
        ("CH", [2, 5]),
        ("CP", [2, 9]),
    ] {
        let name = format!("layers.0.seq.{changed}");
        let tensors = archive
            .names()
            .map(|name| (name.to_string(), archive.tensor(name).unwrap()));
        let mut tensors: BTreeMap<String, RawTensor> = tensors.collect();
        let values = vec![num_complex::Complex64::ONE; shape[0] * shape[1]];
        tensors.insert(
            name.clone(),
            RawTensor::from_c64(shape.to_vec(), &values).unwrap(),
        );
        write_arrays(&path, tensors, "").unwrap();
        let text = fault(&path, &Declared::default()).to_string();
        // A rank that differs shows in the second factor that is read.
        let pair = [name.clone(), name.replace("BP", "BH")];
        assert!(
            pair.iter().any(|name| text.contains(name.as_str())),
            "{changed}: {text}"
        );
    }
}

#[test]
fn a_layout_that_matches_nothing_reports_what_is_missing_where() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.safetensors");
    std::fs::copy(file("product.safetensors"), &path).unwrap();
    let layout = std::fs::read_to_string(file("product.layout.toml")).unwrap();
    let beside = folder.path().join("mine.layout.toml");
    std::fs::write(&beside, layout.replace("C_im", "C_imag")).unwrap();
    let text = fault(&path, &Declared::default());
    assert!(
        text.contains("`mix.0.` lacks `C_imag`; `mix.1.` lacks `C_imag`"),
        "{text}"
    );
}

#[test]
fn networks_without_a_layer_that_can_be_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.safetensors");
    for (tensors, word) in [
        (
            ["blocks.0.att.time_decay", "blocks.0.att.key.weight"],
            "RWKV",
        ),
        (
            [
                "model.layers.0.self_attn.q_proj.weight",
                "model.norm.weight",
            ],
            "transformer",
        ),
        (["h.0.attn.c_attn.weight", "wte.weight"], "transformer"),
        (["rnn.weight_ih_l0", "rnn.weight_hh_l0"], "GRU"),
        (
            ["features.0.weight", "classifier.1.weight"],
            "convolutional",
        ),
        (
            ["layers.0.mixer.x_proj.weight", "layers.0.mixer.A_log"],
            "a Mamba (selective)",
        ),
        (
            ["layers.0.mixer.dt_bias", "layers.0.mixer.A_log"],
            "a Mamba-2 (selective)",
        ),
        (
            ["layers.0.mixer.dt_bias", "layers.0.mixer.B_bias"],
            "a Mamba-3 (selective)",
        ),
    ] {
        let tensor = RawTensor::from_f64(Dtype::F32, vec![2, 2], &[0.0; 4]).unwrap();
        write_arrays(&path, tensors.map(|name| (name, tensor.clone())), "").unwrap();
        let found = fault(&path, &Declared::default());
        assert!(found.contains("found by tensor"), "{word}: {found}");
        assert!(found.contains(word), "{word}: {found}");
    }
}
