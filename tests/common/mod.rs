//! What several test programs share: where the reference material lies, and how it is read.
#![allow(dead_code, reason = "each test program uses a part")]

use std::path::{Path, PathBuf};

use serde_json::Value;

/// The top of the workspace.
pub(crate) fn top() -> &'static Path {
    let mut above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let top = above.find(|folder| folder.join("tests/common").is_dir());
    top.expect("the tests stand in their workspace")
}

/// A file of the data sets and checkpoints that stand beside the project; for tests marked
/// `#[ignore]`, which `.ci/run` runs where there are such data.
pub(crate) fn shared(relative: &str) -> PathBuf {
    let path = top().join("../shared").join(relative);
    assert!(
        path.exists(),
        "no {}: it does not come with the project",
        path.display()
    );
    path
}

/// A file below `tests/`.
pub(crate) fn here(relative: &str) -> PathBuf {
    top().join("tests").join(relative)
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
