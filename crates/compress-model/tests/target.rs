//! `reduce` to a target of bytes, time or change, as a person or a script meets it.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/waves/model.safetensors"
);

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_compress-model"));
    command.args(arguments).output().unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = run(&[arguments, &["--format", "json"]].concat());
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{arguments:?}: {message}");
    serde_json::from_slice(&output.stdout).unwrap()
}

fn reduced(more: &[&str]) -> Value {
    let start = ["reduce", MODEL, "--calibrate", "waves", "--sequences", "50"];
    json(&[&start, more].concat())
}

fn total(size: &Value) -> u64 {
    size["weights"].as_u64().unwrap() + size["state"].as_u64().unwrap()
}

fn accuracy(path: &Path, more: &[&str]) -> f64 {
    let path = path.display().to_string();
    let start = ["evaluate", path.as_str(), "--data", "waves"];
    let document = json(&[&start, more].concat());
    let scores = document
        .get("models")
        .map_or(&document, |models| &models[0]);
    scores["accuracy"].as_f64().unwrap()
}

#[test]
fn image_and_checkpoint_of_a_target_hold_the_same_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let (file, image) = (
        folder.path().join("small.safetensors"),
        folder.path().join("small.edge"),
    );
    let names = [file.display().to_string(), image.display().to_string()];
    let document = reduced(&["--times", "5", "--output", &names[0], "--image", &names[1]]);
    let (before, after) = (total(&document["size_before"]), total(&document["size"]));
    assert!(5 * after <= before, "{before} {after}");
    let bytes = std::fs::metadata(&image).unwrap().len();
    assert_eq!(bytes, document["size"]["weights"].as_u64().unwrap());
    let of_file = accuracy(&file, &[]);
    let of_image = accuracy(&image, &["--stream"]);
    assert!(of_file > 0.96, "{of_file}");
    assert!((of_file - of_image).abs() < 0.005, "{of_file} {of_image}");
}

#[test]
fn bytes_and_change_are_kept_to() {
    let document = reduced(&["--max-bytes", "9k", "--dry-run"]);
    assert!(total(&document["size"]) <= 9_000);
    assert_eq!(document["image"], Value::Null);
    let both = reduced(&["--times", "5", "--max-microseconds", "1e6", "--dry-run"]);
    assert!(5 * total(&both["size"]) <= total(&both["size_before"]));
    let near = reduced(&["--max-change", "0.1", "--dry-run"]);
    assert!(near["held_out_change"].as_f64().unwrap() <= 0.1);
    assert!(total(&near["size"]) < total(&near["size_before"]) / 2);
}

#[test]
fn wrong_targets_are_refused() {
    for (more, code, words) in [
        (&["--times", "5"][..], 2, "--output"),
        (&["--times", "5", "--order", "8", "--dry-run"], 2, "--order"),
        (
            &["--times", "0.5", "--dry-run"],
            1,
            "--times is 0.5, expected a number above 1",
        ),
        (&["--max-bytes", "many", "--dry-run"], 2, "100k or 1.2M"),
        (
            &["--max-bytes", "100", "--dry-run"],
            1,
            "a target of 100 bytes, expected at least",
        ),
        (
            &[
                "--times",
                "5",
                "--output",
                "same.edge",
                "--image",
                "same.edge",
            ],
            1,
            "same.edge",
        ),
        (
            &["--max-microseconds", "1e-9", "--dry-run"],
            1,
            "us, expected at least",
        ),
    ] {
        let start = ["reduce", MODEL, "--calibrate", "waves", "--sequences", "20"];
        let output = run(&[&start, more].concat());
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{more:?}: {message}");
        assert!(message.contains(words), "{more:?}: {message}");
    }
    let output = run(&["reduce", MODEL, "--times", "5", "--dry-run"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn the_recommended_command_runs_as_it_stands() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a model's copy.safetensors");
    std::fs::copy(MODEL, &path).unwrap();
    let name = path.display().to_string();
    let start = [
        "sweep",
        &name,
        "--calibrate",
        "waves",
        "--norm",
        "post",
        "--orders",
        "4",
    ];
    let document = json(&[&start[..], &["--sequences", "20"]].concat());
    let command = document["command"].as_str().unwrap();
    assert!(
        command.contains("--norm post") && command.contains("--sequences 20"),
        "{command}"
    );
    let program = env!("CARGO_BIN_EXE_compress-model");
    let command = command.replacen("compress-model", program, 1);
    let shell = Command::new("sh")
        .args(["-c", &command])
        .current_dir(folder.path())
        .output();
    let output = shell.unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{command}: {message}");
    assert!(folder.path().join("small.safetensors").is_file());
}
