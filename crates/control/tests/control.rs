//! Hankel values, norms and balanced truncation against 30- to 40-digit references.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise and may show its figures"
)]

#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../../tests/common/systems.rs"]
mod systems;

use common::{here, json, reals, worst_relative};
use hankelite_control::{
    DiagonalSystem, Realisation, Time, balance, h2_error, h2_norm, hankel_values,
};
use nalgebra::DMatrix;
use num_complex::Complex64;
use serde_json::Value;
use systems::{complexes, pairs};

fn continuous(lambda: Vec<Complex64>, b: &[Complex64], c: &[Complex64]) -> DiagonalSystem {
    DiagonalSystem::new(
        Time::Continuous,
        lambda,
        DMatrix::from_column_slice(b.len(), 1, b),
        DMatrix::from_row_slice(1, c.len(), c),
        DMatrix::zeros(1, 1),
    )
    .unwrap()
}

/// The two time bases of one reference entry, with the name of its block in the file.
fn both_times(system: DiagonalSystem, step: f64) -> [(&'static str, DiagonalSystem); 2] {
    let discrete = system.zoh(step).unwrap();
    [("continuous", system), ("discrete_zoh", discrete)]
}

fn shared_systems() -> Vec<(String, Value)> {
    let mut systems: Vec<(String, Value)> = std::fs::read_dir(here("reference/systems"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "json"))
        .map(|path| {
            (
                path.file_stem().unwrap().to_string_lossy().into_owned(),
                json(&path),
            )
        })
        .filter(|(_, value)| value.get("kind").is_none())
        .collect();
    systems.sort_by(|a, b| a.0.cmp(&b.0));
    systems
}

fn shared_system(value: &Value) -> (DiagonalSystem, f64) {
    let [lambda, b, c] = ["lambda", "b", "c"].map(|key| complexes(&value[key]));
    (continuous(lambda, &b, &c), value["Delta"].as_f64().unwrap())
}

#[test]
fn every_hankel_value_of_the_shared_references_is_right_relative_to_itself() {
    for (name, value) in shared_systems() {
        let (system, step) = shared_system(&value);
        for (time, system) in both_times(system, step) {
            let expected = reals(&value[time]["hsv"]["f64"]);
            let sigma = hankel_values(system.stable().unwrap(), Realisation::Complex).unwrap();
            let error = worst_relative(sigma.values(), &expected);
            println!("{name:28} {time:12} {error:9.2e}");
            assert!(error < 1e-10, "{name} {time}: {error:e}");
        }
    }
}

fn own_systems() -> Vec<Value> {
    let file = json(&here("reference/real_hankel.json"));
    file["systems"].as_array().unwrap().clone()
}

fn own_system(value: &Value) -> (DiagonalSystem, f64) {
    let [lambda, b, c] = ["lambda", "b", "c"].map(|key| pairs(&value[key]));
    (continuous(lambda, &b, &c), value["step"].as_f64().unwrap())
}

#[test]
fn hankel_values_and_norms_of_both_realisations_match_high_precision() {
    let mut failures = Vec::new();
    for value in own_systems() {
        let name = value["name"].as_str().unwrap();
        let (system, step) = own_system(&value);
        for (time, system) in both_times(system, step) {
            let time = time.trim_end_matches("_zoh");
            for (key, realisation) in [
                ("real", Realisation::Real),
                ("complex", Realisation::Complex),
            ] {
                let expected = reals(&value[key][time]["hsv"]);
                let sigma = hankel_values(system.stable().unwrap(), realisation).unwrap();
                let error = worst_relative(sigma.values(), &expected);
                println!("{name:24} {time:10} {key:8} {error:9.2e}");
                if error >= 1e-10 {
                    failures.push(format!("{name} {time} {key}: {error:e}"));
                }
            }
            let expected: f64 = value["real"][time]["h2"].as_str().unwrap().parse().unwrap();
            let h2 = h2_norm(system.stable().unwrap()).unwrap();
            assert!(
                (h2 / expected - 1.0).abs() < 1e-10,
                "{name} {time}: {h2} {expected}"
            );
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
fn truncations_of_the_real_system_match_high_precision() {
    for value in own_systems() {
        let name = value["name"].as_str().unwrap();
        let (system, step) = own_system(&value);
        let system = system.zoh(step).unwrap();
        let balanced = balance(system.stable().unwrap(), Realisation::Real).unwrap();
        let block = &value["real"]["discrete"];
        let size = reals(&block["kernel_0_15"])
            .iter()
            .fold(0.0_f64, |m, x| m.max(x.abs()));
        for cut in block["truncations"].as_array().unwrap_or(&Vec::new()) {
            let order = cut["order"].as_u64().unwrap() as usize;
            let reduced = balanced.truncate(order).unwrap();
            assert_eq!(reduced.order, order, "{name}");
            let expected = reals(&cut["kernel_0_15"]);
            let kernel = reduced.system.kernel(16).unwrap();
            let worst = kernel.iter().zip(&expected).map(|(x, y)| (x - y).abs());
            let worst = worst.fold(0.0, f64::max) / size;
            let h2: f64 = cut["h2_error"].as_str().unwrap().parse().unwrap();
            let full = system.stable().unwrap();
            let found = h2_error(full, reduced.system.stable().unwrap()).unwrap();
            let scale = h2_norm(full).unwrap();
            println!(
                "{name:24} order {order:2}: kernel {worst:9.2e}, h2 {:9.2e}",
                (found - h2).abs() / scale
            );
            assert!(worst < 1e-9, "{name} order {order}: {worst:e}");
            assert!(
                (found - h2).abs() < 1e-9 * scale,
                "{name} order {order}: {found} {h2}"
            );
        }
    }
}

#[test]
fn truncations_of_the_shared_references_match_their_kernels_errors_and_bounds() {
    for (name, value) in shared_systems() {
        let (system, step) = shared_system(&value);
        for (time, system) in both_times(system, step) {
            let full = system.stable().unwrap();
            let balanced = balance(full, Realisation::Complex).unwrap();
            for cut in value[time]["truncations"].as_array().unwrap() {
                let order = cut["r"].as_u64().unwrap() as usize;
                let ratio = balanced.hankel().values()[order - 1] / balanced.hankel().values()[0];
                let Some(kernel) = cut.get("kernel_reduced_0_15") else {
                    continue;
                };
                if cut.get("skipped").is_some() || ratio < 1e-12 {
                    continue;
                }
                let reduced = balanced.truncate(order).unwrap();
                assert_eq!(reduced.order, order, "{name} {time}");
                let expected: Vec<f64> = complexes(kernel).iter().map(|k| k.re).collect();
                let discrete = match time {
                    "continuous" => reduced.system.zoh(step).unwrap(),
                    _ => reduced.system.clone(),
                };
                let found = discrete.kernel(16).unwrap();
                let size = complexes(kernel)
                    .iter()
                    .map(|k| k.norm())
                    .fold(0.0, f64::max);
                let worst = found.iter().zip(&expected).map(|(x, y)| (x - y).abs());
                let worst = worst.fold(0.0, f64::max) / size;
                assert!(worst < 1e-9, "{name} {time} r={order}: kernel {worst:e}");
                let bound: f64 = cut["twice_tail_bound"].as_str().unwrap().parse().unwrap();
                assert!(
                    (reduced.error_bound - bound).abs() <= 1e-9 * bound,
                    "{name} {time}"
                );
                if let Some(text) = cut.get("h2_error_real_part").and_then(Value::as_str) {
                    let expected: f64 = text.parse().unwrap();
                    let found = h2_error(full, reduced.system.stable().unwrap()).unwrap();
                    let scale = h2_norm(full).unwrap();
                    let error = (found - expected).abs() / scale;
                    // The frequency of a pole at -1e-8 + 5i is known to 1e-7 of its decay, which
                    // the error norm sees in the square.
                    let allowed = if name == "nearaxis8" { 1e-8 } else { 1e-9 };
                    assert!(error < allowed, "{name} {time} r={order}: {error:e}");
                }
            }
        }
    }
}

#[test]
fn norms_of_the_shared_references_match() {
    for (name, value) in shared_systems() {
        let (system, step) = shared_system(&value);
        for (time, system) in both_times(system, step) {
            let Some(text) = value[time].get("h2_norm_real_part").and_then(Value::as_str) else {
                continue;
            };
            let expected: f64 = text.parse().unwrap();
            let found = h2_norm(system.stable().unwrap()).unwrap();
            assert!(
                (found / expected - 1.0).abs() < 1e-9,
                "{name} {time}: {found} {expected}"
            );
        }
    }
}
