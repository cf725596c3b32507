//! What several test programs share: where the reference material lies, and how it is read.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(
    clippy::print_stdout,
    reason = "a skipped test says so in the test output"
)]

pub(crate) mod sources;
pub(crate) mod systems;

use std::path::{Path, PathBuf};

use num_complex::Complex64;
use serde_json::Value;

/// A file of the material that stands beside the project, or `None` with a printed notice on a
/// machine without it.
pub(crate) fn shared(relative: &str) -> Option<PathBuf> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../shared")
        .join(relative);
    if path.exists() {
        return Some(path);
    }
    println!("skipped: {relative} of the shared material is not on this machine");
    None
}

/// A file below `tests/`.
pub(crate) fn here(relative: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(relative)
}

pub(crate) fn json(path: &Path) -> Value {
    let text = std::fs::read_to_string(path).expect("a reference file can be read");
    serde_json::from_str(&text).expect("a reference file is JSON")
}

/// Numbers, or decimal strings of more digits than a double holds.
pub(crate) fn reals(value: &Value) -> Vec<f64> {
    let one = |x: &Value| match x {
        Value::String(text) => text.parse().expect("a decimal number"),
        other => other.as_f64().expect("a number"),
    };
    value
        .as_array()
        .expect("an array")
        .iter()
        .map(one)
        .collect()
}

/// `{re_f64: [..], im_f64: [..]}`.
pub(crate) fn complexes(value: &Value) -> Vec<Complex64> {
    let (re, im) = (reals(&value["re_f64"]), reals(&value["im_f64"]));
    re.into_iter()
        .zip(im)
        .map(|(re, im)| Complex64::new(re, im))
        .collect()
}

/// `[[re, im], ..]`.
pub(crate) fn pairs(value: &Value) -> Vec<Complex64> {
    let entries = value.as_array().expect("an array");
    let one = |pair: &Value| {
        let parts = reals(pair);
        Complex64::new(parts[0], parts[1])
    };
    entries.iter().map(one).collect()
}

/// The largest |found − expected| / |expected|; an expected zero must be found as zero.
pub(crate) fn worst_relative(found: &[f64], expected: &[f64]) -> f64 {
    assert_eq!(found.len(), expected.len());
    let each = found.iter().zip(expected).map(|(x, y)| {
        if *y == 0.0 {
            if *x == 0.0 { 0.0 } else { f64::INFINITY }
        } else {
            (x - y).abs() / y.abs()
        }
    });
    each.fold(0.0, f64::max)
}
