//! Networks for signals of another rate: kernels by the public formula (`tests/reference/make_rates.py`),
//! those of files whose steps are other ones, and what has one rate only.
#![allow(clippy::unwrap_used, reason = "a test stops where it is wrong")]

mod common;

use std::collections::BTreeMap;

use common::here;
use hankelite::advanced::read_dynamics;
use hankelite::model::Model;
use hankelite::{Declared, read};
use hankelite_archive::{Archive, Dtype, RawTensor};
use hankelite_control::DiagonalSystem;
use serde::Deserialize;

#[derive(Deserialize)]
struct AtRate {
    rate: f64,
    kernels: Vec<Vec<f64>>,
}

fn declared(name: &str) -> Declared {
    let settings = std::fs::read_to_string(here("data/layouts/settings.json")).unwrap();
    let settings: BTreeMap<String, Declared> = serde_json::from_str(&settings).unwrap();
    let stem = name.trim_start_matches("layouts/");
    let stem = stem.trim_end_matches(".safetensors");
    settings.get(stem).copied().unwrap_or_default()
}

/// C Λ^l B for every output and input of a system.
fn rows(system: &DiagonalSystem, length: usize) -> Vec<Vec<f64>> {
    let poles = system.scaled_exponents();
    let sample = |i: usize, j: usize, l: usize| {
        let modes = poles.iter().enumerate();
        let parts = modes
            .map(|(n, z)| system.output()[(i, n)] * (*z * l as f64).exp() * system.input()[(n, j)]);
        parts.sum::<num_complex::Complex64>().re
    };
    let (outputs, inputs) = system.feedthrough().shape();
    let pairs = (0..outputs).flat_map(|i| (0..inputs).map(move |j| (i, j)));
    pairs
        .map(|(i, j)| (0..length).map(|l| sample(i, j, l)).collect())
        .collect()
}

fn kernels(model: &Model, length: usize) -> Vec<Vec<f64>> {
    let systems = model.blocks().iter().flat_map(|block| block.all_systems());
    systems.flat_map(|system| rows(system, length)).collect()
}

fn assert_close(found: &[Vec<f64>], expected: &[Vec<f64>], what: &str) {
    let largest = expected
        .iter()
        .flatten()
        .fold(0.0_f64, |most, x| most.max(x.abs()));
    assert!(largest > 0.0, "{what}");
    assert_eq!(found.len(), expected.len(), "{what}");
    for (found, expected) in found.iter().flatten().zip(expected.iter().flatten()) {
        assert!(
            (found - expected).abs() < 1e-11 * largest,
            "{what}: {found} for {expected}"
        );
    }
}

#[test]
fn kernels_at_a_rate_are_those_of_the_public_formula() {
    let truth = std::fs::read_to_string(here("reference/rates.json")).unwrap();
    let truth: BTreeMap<String, Vec<AtRate>> = serde_json::from_str(&truth).unwrap();
    assert_eq!(truth.len(), 4);
    for (name, rates) in truth {
        let file = here("data").join(&name);
        let mut declared = declared(&name);
        // The limit of make_rates.py.
        declared.bandlimit = declared.bandlimit.map(|_| 0.2);
        let checkpoint = read_dynamics(&file, &declared).unwrap();
        for AtRate {
            rate,
            kernels: expected,
        } in rates
        {
            let model = checkpoint.model_with_steps_times(rate).unwrap();
            let found = kernels(&model, expected[0].len());
            assert_close(&found, &expected, &format!("{name}, {rate}"));
        }
        // Nothing moves at the rate of the file.
        let same = checkpoint.model_with_steps_times(1.0).unwrap();
        let systems = |model: &Model| -> Vec<DiagonalSystem> {
            let blocks = model.blocks().iter();
            blocks
                .flat_map(|block| block.all_systems().cloned())
                .collect()
        };
        assert_eq!(systems(&same), systems(&checkpoint.model), "{name}");
    }
}

/// What names of stored steps end with, and whether they are logarithms.
const STEPS: [&str; 4] = ["log_dt", "log_step", "inv_dt", "log_Delta"];

#[test]
fn a_rate_is_a_file_with_other_steps() {
    let names = [
        "s4d_layer",
        "s4d_classifier",
        "dss_exp_layer",
        "layouts/s4_v2",
        "layouts/s4_v3_zoh_channels",
        "layouts/s4_v4",
        "layouts/s4_v4_untied_bilinear_channels",
        "layouts/dss_exp_bidirectional",
        "layouts/dss_exp_re_im",
        "layouts/s5_full",
        "layouts/s5_bidirectional",
        "layouts/s5_torch",
        "layouts/annotated_s4d",
        "large/attenuate",
        "large/flowstate",
    ];
    for name in names {
        let file = here("data").join(format!("{name}.safetensors"));
        let name = format!("{name}.safetensors");
        let checkpoint = read_dynamics(&file, &declared(&name)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let other = folder.path().join("other.safetensors");
        write_with_steps_times(&file, 1.75, &other);
        let expected = read_dynamics(&other, &declared(&name)).unwrap();
        let found = checkpoint.model_with_steps_times(1.75).unwrap();
        assert_close(&kernels(&found, 40), &kernels(&expected.model, 40), &name);
        assert_ne!(
            kernels(&found, 40),
            kernels(&checkpoint.model, 40),
            "{name}"
        );
    }
}

/// The file with the logarithms of its steps moved, in double precision.
fn write_with_steps_times(file: &std::path::Path, factor: f64, other: &std::path::Path) {
    let archive = Archive::open(file).unwrap();
    let is_step = |name: &&str| STEPS.iter().any(|step| name.ends_with(step));
    let steps: Vec<&str> = archive.names().filter(is_step).collect();
    assert!(!steps.is_empty(), "{}", file.display());
    let changed = steps.iter().map(|name| {
        let tensor = archive.tensor(name).unwrap();
        let moved = tensor
            .to_f64()
            .unwrap()
            .into_iter()
            .map(|log| log + factor.ln());
        let bytes = moved.flat_map(f64::to_le_bytes).collect::<Vec<u8>>();
        let shape = tensor.shape().to_vec();
        (
            name.to_string(),
            RawTensor::new(Dtype::F64, shape, bytes).unwrap(),
        )
    });
    let changed = archive.with(changed.collect::<BTreeMap<_, _>>()).unwrap();
    let all = changed
        .names()
        .map(|name| (name.to_string(), changed.tensor(name).unwrap()));
    let all: BTreeMap<String, RawTensor> = all.collect();
    let views = all.iter().map(|(name, tensor)| {
        let dtype = match tensor.dtype() {
            Dtype::F64 => safetensors::Dtype::F64,
            Dtype::C64 => safetensors::Dtype::C64,
            _ => safetensors::Dtype::F32,
        };
        let view =
            safetensors::tensor::TensorView::new(dtype, tensor.shape().to_vec(), tensor.bytes());
        (name.clone(), view.unwrap())
    });
    let metadata = archive
        .metadata()
        .map(|text| ("hankelite".to_string(), text.to_string()));
    let metadata = metadata.map(|pair| [pair].into_iter().collect());
    safetensors::serialize_to_file(views, metadata, other).unwrap();
}

#[test]
fn discrete_layers_have_one_rate() {
    for name in [
        "layouts/lru",
        "layouts/mega",
        "layouts/dss_softmax_channels",
        "layouts/dss_clip_no_scale",
        "layouts/s4_v3_dss",
        "layouts/annotated_dss",
        "large/evo1",
        "large/lrurec",
    ] {
        let name = format!("{name}.safetensors");
        let checkpoint = read_dynamics(here("data").join(&name), &declared(&name)).unwrap();
        let error = checkpoint.model_with_steps_times(2.0).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("runs at one rate only"), "{name}: {text}");
        // At its own rate it runs.
        checkpoint.model_with_steps_times(1.0).unwrap();
    }
    let checkpoint = read(
        here("data/s4d_classifier.safetensors"),
        &Declared::default(),
    )
    .unwrap();
    for factor in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let error = checkpoint.model_with_steps_times(factor).unwrap_err();
        assert!(
            error.to_string().contains("expected a positive number"),
            "{error}"
        );
    }
}
