//! Every layout: kernels by the formula of the original code, before and after a reduction, and
//! files that come back bit for bit. The fixtures and the truth are made by
//! `tests/reference/make_layouts.py`, which says how to make them again.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::here;
use hankelite::advanced::read_dynamics;
use hankelite::checkpoint::{Checkpoint, CheckpointError, Family, Transform};
use hankelite::compress::Method;
use hankelite::model::{Block, Model};
use hankelite::{Declared, Plan, Rule, read, reduce, write};
use hankelite_archive::{Archive, Dtype, RawTensor};
use hankelite_control::DiagonalSystem;
use nalgebra::DMatrix;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use safetensors::tensor::TensorView;

fn folder() -> PathBuf {
    here("data/layouts")
}

fn settings() -> BTreeMap<String, Declared> {
    let text = std::fs::read_to_string(folder().join("settings.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn file(name: &str) -> PathBuf {
    folder().join(format!("{name}.safetensors"))
}

/// Samples of one system, C Λ^l B, outputs × inputs.
fn samples(system: &DiagonalSystem, length: usize) -> Vec<DMatrix<f64>> {
    let poles = system.scaled_exponents();
    let sample = |l: usize| {
        let mut input = system.input().clone();
        for (mut row, z) in input.row_iter_mut().zip(&poles) {
            row *= (*z * l as f64).exp();
        }
        (system.output() * input).map(|z| z.re)
    };
    (0..length).map(sample).collect()
}

/// What a bank of systems gives: row c H + h is output c of system h.
fn response(systems: &[DiagonalSystem], length: usize) -> (Vec<DMatrix<f64>>, DMatrix<f64>) {
    let rows: usize = systems.iter().map(|system| system.output().nrows()).sum();
    let columns: usize = systems.iter().map(|system| system.input().ncols()).sum();
    let place = |parts: &[DMatrix<f64>]| {
        let mut whole = DMatrix::zeros(rows, columns);
        let mut first = 0;
        for (h, part) in parts.iter().enumerate() {
            for c in 0..part.nrows() {
                for j in 0..part.ncols() {
                    whole[(c * parts.len() + h, first + j)] = part[(c, j)];
                }
            }
            first += part.ncols();
        }
        whole
    };
    let each: Vec<_> = systems
        .iter()
        .map(|system| samples(system, length))
        .collect();
    let kernels = (0..length).map(|l| {
        let parts: Vec<_> = each.iter().map(|samples| samples[l].clone()).collect();
        place(&parts)
    });
    let through: Vec<_> = systems
        .iter()
        .map(|system| system.feedthrough().clone())
        .collect();
    (kernels.collect(), place(&through))
}

/// Rows × columns × L, row-major, of all layers one after the other.
fn stacked(blocks: &[Block], length: usize, part: &str) -> Vec<f64> {
    let mut out = Vec::new();
    for block in blocks {
        let (kernels, through) = match part {
            "backward" => response(block.backward(), length),
            _ => response(block.systems(), length),
        };
        for i in 0..through.nrows() {
            for j in 0..through.ncols() {
                match part {
                    "d" => out.push(through[(i, j)]),
                    _ => out.extend(kernels.iter().map(|k| k[(i, j)])),
                }
            }
        }
    }
    out
}

fn assert_truth(name: &str, model: &Model, truth: &Archive) {
    let mut seen = 0;
    for key in truth.names() {
        let Some(rest) = key.strip_prefix(&format!("{name}/")) else {
            continue;
        };
        let (length, part) = rest.split_once('/').unwrap();
        let expected = truth.tensor(key).unwrap().to_f64().unwrap();
        let found = stacked(model.blocks(), length.parse().unwrap(), part);
        assert_eq!(found.len(), expected.len(), "{key}");
        let scale = expected.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        for (found, expected) in found.iter().zip(&expected) {
            assert!(
                (found - expected).abs() <= 1e-6 * scale,
                "{key}: {found} for {expected}"
            );
        }
        seen += 1;
    }
    let parts = if model.blocks()[0].backward().is_empty() {
        2
    } else {
        3
    };
    assert_eq!(seen, 2 * parts, "{name}: two lengths of every kernel");
}

fn open(name: &str) -> Checkpoint {
    read(file(name), &settings()[name]).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Read as diagonal, and written as that.
fn is_dplr(name: &str) -> bool {
    name.contains("dplr")
}

/// The smaller model of every fixture. The moving average holds poles as they are only.
fn reduced(name: &str, full: &Model) -> Model {
    let mut plan = Plan::new(Rule::Order(3)).unwrap();
    if name.starts_with("mega") || name == "s4_v4_real" {
        plan = plan.with_method(Method::ModalH2).unwrap();
    }
    reduce(full, &plan)
        .unwrap_or_else(|error| panic!("{name}: {error}"))
        .model
}

#[test]
fn kernels_are_those_of_the_original_formula() {
    let truth = Archive::open(folder().join("kernels.safetensors")).unwrap();
    for name in settings().keys() {
        assert_truth(name, &open(name).model, &truth);
    }
}

#[test]
fn kernels_of_written_reduced_files_are_those_of_the_original_formula() {
    let truth = Archive::open(folder().join("kernels.safetensors")).unwrap();
    for (name, declared) in settings() {
        let small = reduced(&name, &open(&name).model);
        let declared = match is_dplr(&name) {
            true => Declared::default(),
            false => declared,
        };
        let kept = read(file(&format!("{name}.reduced")), &declared).unwrap();
        assert_truth(&format!("{name}.reduced"), &kept.model, &truth);
        // The reduction of today, to the rounding of the file.
        assert_truth(&format!("{name}.reduced"), &small, &truth);
        assert!(
            small.blocks().iter().all(|block| block.order() == 3),
            "{name}"
        );
    }
}

/// Not a check: writes the reduced files that the script then gives the kernels of.
#[test]
#[ignore = "writes fixtures; see tests/reference/make_layouts.py"]
fn write_reduced_fixtures() {
    for name in settings().keys() {
        let full = open(name);
        let small = full.with_model(reduced(name, &full.model));
        write(&small, file(&format!("{name}.reduced"))).unwrap();
    }
}

fn assert_same_bytes(name: &str, first: &Path, second: &Path) {
    let (first, second) = (
        Archive::open(first).unwrap(),
        Archive::open(second).unwrap(),
    );
    assert_eq!(
        first.names().collect::<Vec<_>>(),
        second.names().collect::<Vec<_>>(),
        "{name}"
    );
    for tensor in first.names() {
        assert_eq!(
            first.tensor(tensor).unwrap(),
            second.tensor(tensor).unwrap(),
            "{name}: {tensor}"
        );
    }
}

#[test]
fn unchanged_files_come_back_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    for (name, declared) in settings().into_iter().filter(|(name, _)| !is_dplr(name)) {
        let full = open(&name);
        let path = folder.path().join("same.safetensors");
        write(&full, &path).unwrap();
        assert_same_bytes(&name, &file(&name), &path);
        // What was declared is in the file.
        let again = read(&path, &Declared::default()).unwrap();
        assert_eq!(again.model, full.model, "{name}");
        let dynamics = read_dynamics(file(&name), &declared).unwrap();
        assert_eq!(
            dynamics.model.blocks()[0].systems(),
            full.model.blocks()[0].systems(),
            "{name}"
        );
    }
}

#[test]
fn a_reduced_file_keeps_every_name_and_all_that_is_not_dynamics() {
    for name in settings().keys().filter(|name| !is_dplr(name)) {
        let full = Archive::open(file(name)).unwrap();
        let small = Archive::open(file(&format!("{name}.reduced"))).unwrap();
        assert_eq!(
            full.names().collect::<Vec<_>>(),
            small.names().collect::<Vec<_>>(),
            "{name}"
        );
        for tensor in full.names() {
            let (a, b) = (full.tensor(tensor).unwrap(), small.tensor(tensor).unwrap());
            assert_eq!(a.dtype(), b.dtype(), "{name}: {tensor}");
            // DSS shares its poles among the channels; reduced channels have their own.
            let own = usize::from(name.starts_with("dss") && tensor.contains("Lambda"));
            assert_eq!(a.shape().len() + own, b.shape().len(), "{name}: {tensor}");
        }
    }
}

fn fault(name: &str, declared: &Declared) -> String {
    match read(file(name), declared).map(|_| ()).unwrap_err() {
        CheckpointError::Content(content) => content.to_string(),
        other => panic!("{other}"),
    }
}

#[test]
fn what_cannot_be_told_is_asked_for_and_what_contradicts_is_refused() {
    let nothing = Declared::default();
    assert!(fault("s4_v4", &nothing).contains("the file does not record"));
    assert!(fault("annotated_dss", &nothing).contains("the file does not record"));
    assert!(fault("s4_dplr_v4", &nothing).contains("found by tensor"));
    let declared = Declared {
        conj_sym: Some(true),
        ..nothing
    };
    assert!(fault("lru", &declared).contains("contradicts"));
    let declared = Declared {
        bandlimit: Some(1.0),
        ..nothing
    };
    assert!(fault("s4_v3_bilinear", &declared).contains("contradicts"));
    assert!(open("s5").assumptions().len() == 3);
}

#[test]
fn settings_of_the_training_run_are_believed() {
    let saved = read(folder().join("lightning.ckpt"), &Declared::default()).unwrap();
    let plain = open("s4_v4_softplus_bidirectional");
    assert_eq!(saved.model, plain.model);
    let told = saved.assumptions().join("\n");
    assert!(
        told.contains("model.layer.dt_transform = \"softplus\""),
        "{told}"
    );
    // A person knows better.
    let declared = Declared {
        dt_transform: Some(Transform::Exp),
        ..Declared::default()
    };
    let other = read(folder().join("lightning.ckpt"), &declared).unwrap();
    assert_ne!(other.model, plain.model);
}

#[test]
fn poles_that_a_layout_cannot_hold_are_named() {
    let folder = tempfile::tempdir().unwrap();
    for (name, pole) in [("mega", "0 and 1"), ("s4_v4_real", "real poles")] {
        let full = open(name);
        let plan = Plan::new(Rule::Order(3)).unwrap();
        let model = reduce(&full.model, &plan).unwrap().model;
        let mut systems = model.blocks()[0].systems().to_vec();
        let system = &mut systems[0];
        let mut exponents = system.exponents().to_vec();
        exponents[0].im += 0.5;
        let (time, order) = (system.time(), exponents.len());
        let residues = vec![num_complex::Complex64::ONE; order];
        *system = DiagonalSystem::siso(time, exponents, &residues, 0.0).unwrap();
        let backward = model.blocks()[0].backward().to_vec();
        let block = model.blocks()[0].with_systems(systems, backward).unwrap();
        let model = model.with_block(0, block).unwrap();
        let path = folder.path().join("out.safetensors");
        let error = write(&full.with_model(model), &path)
            .unwrap_err()
            .to_string();
        assert!(error.contains(pole), "{error}");
        assert!(!path.exists());
    }
}

#[test]
fn a_conversion_keeps_the_systems_or_says_why_not() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("converted.safetensors");
    let families = [
        Family::S4d,
        Family::S4V3,
        Family::S4V4,
        Family::DssExp,
        Family::DssSoftmax,
        Family::S5,
        Family::Lru,
    ];
    for family in families {
        let declared = Declared {
            length: Some(64),
            ..settings()["s4d_flat"]
        };
        let full = read(file("s4d_flat"), &declared).unwrap();
        write(&full.converted(family).unwrap(), &path).unwrap();
        let back = read(&path, &Declared::default()).unwrap();
        assert_eq!(back.carried().len(), full.carried().len(), "{family:?}");
        for part in ["forward", "d"] {
            let before = stacked(full.model.blocks(), 40, part);
            let after = stacked(back.model.blocks(), 40, part);
            let scale = before.iter().fold(0.0f64, |most, x| most.max(x.abs()));
            assert_eq!(before.len(), after.len(), "{family:?} {part}");
            let mut pairs = before.iter().zip(&after);
            assert!(
                pairs.all(|(a, b)| (a - b).abs() < 1e-5 * scale),
                "{family:?} {part}"
            );
        }
    }
    // Complex poles in a moving average; a softmax without a length; many inputs in a bank.
    let fails = |name: &str, family| {
        open(name)
            .converted(family)
            .map(|_| ())
            .unwrap_err()
            .to_string()
    };
    assert!(fails("s4d_flat", Family::Mega).contains("real poles between 0 and 1"));
    assert!(fails("s4d_flat", Family::DssSoftmax).contains("the sequence length L"));
    assert!(fails("s5", Family::S4d).contains("inputs of a system"));
    assert!(fails("s5_bidirectional", Family::Lru).contains("backwards"));
}

#[test]
fn shared_poles_stay_shared_in_the_file_and_cost_something() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shared.safetensors");
    for name in [
        "dss_exp_re_im",
        "dss_clip_no_scale",
        "dss_softmax_channels",
        "s4_v4",
    ] {
        let full = open(name);
        let plan = Plan::new(Rule::Order(3)).unwrap();
        let own = reduce(&full.model, &plan).unwrap();
        let plan = plan.with_shared_poles(true).unwrap();
        let shared = reduce(&full.model, &plan).unwrap();
        write(&full.with_model(shared.model.clone()), &path).unwrap();
        let (before, after) = (
            Archive::open(file(name)).unwrap(),
            Archive::open(&path).unwrap(),
        );
        for tensor in before.names() {
            let (a, b) = (before.shape(tensor).unwrap(), after.shape(tensor).unwrap());
            // Nothing but N changes.
            let n = |shape: &[usize]| {
                shape
                    .iter()
                    .map(|&n| if n == 6 { 3 } else { n })
                    .collect::<Vec<_>>()
            };
            assert_eq!(n(a), b, "{name}: {tensor}");
        }
        let errors = [&own, &shared].map(|made| made.records[0].relative_kernel_error);
        println!(
            "{name}: kernel error {:.4} with own poles, {:.4} shared",
            errors[0], errors[1]
        );
        assert!(errors[0] < errors[1] && errors[1] < 1.0, "{name}");
        let small = read(&path, &settings()[name]).unwrap().model;
        let poles = small.blocks()[0].systems()[0].exponents();
        assert_eq!(poles.len(), 3);
    }
    let flat = open("s4d_flat");
    let plan = Plan::new(Rule::Order(3)).unwrap();
    let plan = plan.with_shared_poles(true).unwrap();
    assert!(reduce(&flat.model, &plan).is_err());
}

/// The description of what `s4d_flat` holds.
const FLAT: &str = r#"
hold = "zoh"
factor = 2.0
weight = "C"
feedthrough = "D"
[step]
name = "log_dt"
transform = "exp"
[decay]
name = "log_A_real"
transform = "exp"
[frequency]
name = "A_imag"
"#;

#[test]
fn a_layout_of_ones_own_is_described_in_toml_and_travels_with_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let (path, small) = (
        folder.path().join("mine.safetensors"),
        folder.path().join("small.safetensors"),
    );
    std::fs::copy(file("s4d_flat"), &path).unwrap();
    std::fs::write(folder.path().join("mine.layout.toml"), FLAT).unwrap();
    let known = open("s4d_flat");
    let own = read(&path, &Declared::default()).unwrap();
    assert_eq!(own.family(), "own layout");
    for part in ["forward", "d"] {
        let pairs = stacked(own.model.blocks(), 30, part);
        for (a, b) in pairs.iter().zip(stacked(known.model.blocks(), 30, part)) {
            assert!((a - b).abs() < 1e-13);
        }
    }
    let reduced = reduce(&own.model, &Plan::new(Rule::Order(3)).unwrap()).unwrap();
    write(&own.with_model(reduced.model.clone()), &small).unwrap();
    let back = read(&small, &Declared::default()).unwrap();
    assert_eq!(back.family(), "own layout");
    let (a, b) = (
        stacked(reduced.model.blocks(), 30, "forward"),
        stacked(back.model.blocks(), 30, "forward"),
    );
    assert!(a.iter().zip(&b).all(|(a, b)| (a - b).abs() < 1e-5));
    // A description that is wrong is told, with its place.
    for wrong in [
        FLAT.replace("2.0", "0.0"),
        FLAT.replace("exp", "log"),
        FLAT.replace("[step]", "[steps]"),
    ] {
        std::fs::write(folder.path().join("mine.layout.toml"), wrong).unwrap();
        let error = read(&path, &Declared::default())
            .map(|_| ())
            .unwrap_err()
            .to_string();
        assert!(error.contains("mine.layout.toml"), "{error}");
    }
}

#[test]
fn layouts_of_any_shape_come_back() {
    let mut random = ChaCha8Rng::seed_from_u64(3);
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("random.safetensors");
    let families = [
        Family::S4V3,
        Family::S4V4,
        Family::DssExp,
        Family::S5,
        Family::Lru,
    ];
    for _ in 0..40 {
        let (h, n) = (random.random_range(1..7), random.random_range(1..9));
        let mut tensors = BTreeMap::new();
        let mut add = |name: &str, shape: Vec<usize>, low: f32, high: f32| {
            let count = shape.iter().product::<usize>();
            let values = (0..count).map(|_| f64::from(random.random_range(low..high)));
            let values: Vec<f64> = values.collect();
            tensors.insert(
                name.to_string(),
                RawTensor::from_f64(Dtype::F32, shape, &values).unwrap(),
            );
        };
        for layer in ["a.", "b."] {
            add(&format!("{layer}log_dt"), vec![h], -4.0, -1.0);
            add(&format!("{layer}log_A_real"), vec![h, n], -2.0, 0.5);
            add(&format!("{layer}A_imag"), vec![h, n], -1.0, 20.0);
            add(&format!("{layer}C"), vec![h, n, 2], -2.0, 2.0);
            add(&format!("{layer}D"), vec![h], -2.0, 2.0);
        }
        let views: Vec<_> = tensors
            .iter()
            .map(|(name, tensor)| {
                let view = TensorView::new(tensor.dtype(), tensor.shape().to_vec(), tensor.bytes());
                (name.as_str(), view.unwrap())
            })
            .collect();
        safetensors::serialize_to_file(views, None, &path).unwrap();
        let full = read(&path, &Declared::default()).unwrap();
        let family = families[random.random_range(0..families.len())];
        let converted = full.converted(family).unwrap();
        let (one, two) = (
            folder.path().join("one.safetensors"),
            folder.path().join("two.safetensors"),
        );
        write(&converted, &one).unwrap();
        let back = read(&one, &Declared::default()).unwrap();
        write(&back, &two).unwrap();
        assert_same_bytes(&format!("{family:?} {h} {n}"), &one, &two);
        let (a, b) = (
            stacked(full.model.blocks(), 20, "forward"),
            stacked(back.model.blocks(), 20, "forward"),
        );
        let scale = a.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        assert!(
            a.iter().zip(&b).all(|(a, b)| (a - b).abs() <= 2e-5 * scale),
            "{family:?} {h} {n}"
        );
    }
}
