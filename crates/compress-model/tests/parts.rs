//! Files with several sets of weights: listed, chosen by name, and reduced one by one.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// The entries `model` and `model_ema`.
const FILE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../tests/data/parts/ema.pth"
);

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_compress-model"));
    command.args(arguments).output().unwrap()
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).unwrap()
}

/// What a command that ends well prints on stdout and on stderr.
fn said(arguments: &[&str]) -> [String; 2] {
    let output = run(arguments);
    let said = [output.stdout, output.stderr].map(text);
    assert!(output.status.success(), "{arguments:?}: {said:?}");
    said
}

fn refused(arguments: &[&str]) -> String {
    let output = run(arguments);
    let message = text(output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
    message
}

#[test]
fn inspect_lists_the_sets_of_weights_with_their_bytes() {
    let [shown, notes] = said(&["inspect", FILE]);
    assert!(notes.contains("`model` is read"), "{notes}");
    // One note says so.
    assert_eq!(notes.matches("`model_ema`").count(), 1, "{notes}");
    let row = |name: &str| {
        let mut lines = shown
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>());
        lines.find(|words| words.contains(&name)).unwrap().join(" ")
    };
    // Two layers of 3 channels and 4 modes, and a map of 3 × 2, in single precision.
    assert!(row("model").contains("11 456 yes"), "{shown}");
    assert!(row("model_ema").contains("11 456 no"), "{shown}");
    let [json, _] = said(&["inspect", FILE, "--part", "model_ema", "--format", "json"]);
    let document: Value = serde_json::from_str(&json).unwrap();
    let parts = document["parts"].as_array().unwrap();
    let read: Vec<(&str, bool)> = parts
        .iter()
        .map(|part| {
            (
                part["name"].as_str().unwrap(),
                part["read"].as_bool().unwrap(),
            )
        })
        .collect();
    assert_eq!(read, [("model", false), ("model_ema", true)]);
}

#[test]
fn one_set_is_reduced_and_all_are_two_commands() {
    let folder = tempfile::tempdir().unwrap();
    let small = folder.path().join("small.pth");
    let small = small.to_str().unwrap();
    let refused = refused(&[
        "reduce", FILE, "--part", "all", "--order", "2", "--output", small,
    ]);
    for part in ["model", "model_ema"] {
        let command = format!("--part {part} --order 2 --output {}", named(small, part));
        assert!(refused.contains(&command), "{refused}");
    }
    said(&[
        "reduce",
        FILE,
        "--part",
        "model_ema",
        "--order",
        "2",
        "--output",
        small,
    ]);
    let [json, _] = said(&["inspect", small, "--format", "json"]);
    let document: Value = serde_json::from_str(&json).unwrap();
    assert_eq!(document["layers"][0]["order"], 2);
    assert_eq!(document["parts"].as_array().unwrap().len(), 0);
}

fn named(path: &str, part: &str) -> String {
    let path = Path::new(path);
    let file = format!("small-{part}.pth");
    path.with_file_name(file).display().to_string()
}

#[test]
fn a_wrong_name_lists_those_that_there_are() {
    let error = refused(&["inspect", FILE, "--part", "ema"]);
    assert!(
        error.contains("no set of weights is called `ema`"),
        "{error}"
    );
    assert!(
        error.contains("`model` (456 bytes), `model_ema` (456 bytes)"),
        "{error}"
    );
}
