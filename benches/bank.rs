//! Hankel values and balanced truncation of a bank of systems on one thread, as one JSON line.
//!
//! ```text
//! cargo bench -p hankelite --bench bank -- INPUT.safetensors [ORDER] [SYSTEMS] [real|complex]
//! ```
//!
//! INPUT holds float64 arrays (S, N): `lambda_re`, `lambda_im`, and the same for `b` and `c`, of
//! continuous systems x' = λx + bu, y = cx. Each system is done from poles and weights to
//! Hankel values, reduced poles and residues. Reading is outside the timed part.
#![allow(
    clippy::print_stdout,
    clippy::unwrap_used,
    reason = "a measuring program prints, and stops at the first surprise"
)]

use std::path::Path;
use std::time::Instant;

use hankelite_archive::Archive;
use hankelite_control::{DiagonalSystem, Realisation, Time, balance};
use nalgebra::DMatrix;
use num_complex::Complex64;

fn main() {
    // Cargo adds `--bench`.
    let arguments = std::env::args().skip(1).filter(|word| word != "--bench");
    let arguments: Vec<String> = arguments.collect();
    let Some(input) = arguments.first() else {
        println!("bank: no input given; see the head of benches/bank.rs");
        return;
    };
    let systems = read(Path::new(input));
    let states = systems[0].order();
    let number = |index: usize| arguments.get(index).and_then(|word| word.parse().ok());
    let order = number(1).unwrap_or(states / 4);
    let count = number(2).unwrap_or(systems.len()).min(systems.len());
    let realisation = match arguments.get(3).map(String::as_str) {
        Some("real") => Realisation::Real,
        _ => Realisation::Complex,
    };
    let reduce = |system: &DiagonalSystem| {
        let balanced = balance(system.stable().unwrap(), realisation).unwrap();
        let reduced = balanced.truncate(order).unwrap();
        assert_eq!(reduced.order, order);
        balanced.hankel().values()[..4].to_vec()
    };
    reduce(&systems[0]);
    let (wall, cpu) = (Instant::now(), cpu_seconds());
    let first: Vec<Vec<f64>> = systems[..count].iter().map(reduce).collect();
    let (seconds, cpu) = (wall.elapsed().as_secs_f64(), cpu_seconds() - cpu);
    let line = serde_json::json!({
        "peer": "hankelite", "realisation": realisation, "systems": count, "N": states, "r": order,
        "seconds": seconds, "sec_per_system": seconds / count as f64,
        "cpu_seconds": cpu, "cpu_sec_per_system": cpu / count as f64,
        "hsv_first": first[0], "failures": 0,
    });
    println!("{line}");
}

/// Processor time of this thread, where the system tells it; else wall time.
fn cpu_seconds() -> f64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    let nanoseconds = text
        .split(' ')
        .next()
        .and_then(|word| word.parse::<f64>().ok());
    nanoseconds.map_or(0.0, |ns| 1e-9 * ns)
}

fn read(path: &Path) -> Vec<DiagonalSystem> {
    let archive = Archive::open(path).unwrap();
    let states = archive.shape("lambda_re").unwrap()[1];
    let complex = |name: &str| -> Vec<Complex64> {
        let part = |part: &str| {
            let name = format!("{name}_{part}");
            archive.tensor(&name).unwrap().to_f64().unwrap()
        };
        let pairs = part("re").into_iter().zip(part("im"));
        pairs.map(|(re, im)| Complex64::new(re, im)).collect()
    };
    let (lambda, b, c) = (complex("lambda"), complex("b"), complex("c"));
    let rows = lambda
        .chunks(states)
        .zip(b.chunks(states))
        .zip(c.chunks(states));
    rows.map(|((lambda, b), c)| {
        DiagonalSystem::new(
            Time::Continuous,
            lambda.to_vec(),
            DMatrix::from_column_slice(states, 1, b),
            DMatrix::from_row_slice(1, states, c),
            DMatrix::zeros(1, 1),
        )
        .unwrap()
    })
    .collect()
}
