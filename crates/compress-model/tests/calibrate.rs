//! Statistics that several processes gather, as one run would.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;
use std::process::{Command, Output};

use hankelite::calibrate::Calibration;

const MODEL: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/waves/model.safetensors"
);

fn run(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_compress-model"));
    command.current_dir(folder);
    command.arg("calibrate").args(arguments).output().unwrap()
}

fn gathered(folder: &Path, output: &str, more: &[&str]) -> Calibration {
    let start = [
        MODEL,
        "--data",
        "waves",
        "--sequences",
        "10",
        "--output",
        output,
    ];
    let done = run(folder, &[&start, more].concat());
    let message = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{message}");
    Calibration::read(&folder.join(output)).unwrap()
}

#[test]
fn parts_put_together_are_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let whole = gathered(folder, "whole.stats", &[]);
    let counts = ["1/3", "2/3", "3/3"].map(|part| {
        let name = format!("{}.stats", &part[..1]);
        gathered(folder, &name, &["--part", part]).sequences()
    });
    assert_eq!(counts, [3, 3, 4]);
    let names = ["3.stats", "1.stats", "2.stats"];
    let done = run(
        folder,
        &[&["--merge"], &names[..], &["--output", "all.stats"]].concat(),
    );
    let message = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(done.status.success(), "{message}");
    let merged = Calibration::read(&folder.join("all.stats")).unwrap();
    assert_eq!(merged.origin(), whole.origin());
    assert_eq!((merged.sequences(), merged.known()), (10, whole.known()));
    // The network runs in single precision, several sequences at a time.
    for (own, whole) in merged.layers().iter().zip(whole.layers()) {
        let pairs = own.statistics.autocorrelation().iter();
        let lags = pairs.zip(whole.statistics.autocorrelation());
        let means = own.statistics.mean().iter().zip(whole.statistics.mean());
        let importances = own.importance.iter().zip(&whole.importance);
        let size = whole.statistics.autocorrelation().amax();
        for (a, b) in lags.chain(means) {
            assert!((a - b).abs() < 1e-6 * (size + size.sqrt()), "{a} {b}");
        }
        for (a, b) in importances {
            assert!((a / b - 1.0).abs() < 1e-6, "{a} {b}");
        }
    }
    let model = MODEL.to_string();
    let reduce = [
        "reduce",
        &model,
        "--calibrate",
        "all.stats",
        "--order",
        "8",
        "--dry-run",
    ];
    let mut command = Command::new(env!("CARGO_BIN_EXE_compress-model"));
    assert!(
        command
            .current_dir(folder)
            .args(reduce)
            .output()
            .unwrap()
            .status
            .success()
    );
}

#[test]
fn what_does_not_go_together_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    gathered(folder, "one.stats", &[]);
    gathered(folder, "two.stats", &["--calibration-seed", "1"]);
    let other = ["one.stats", "one.stats", "--output", "all.stats"];
    let short = "waves:length=64";
    let shorter = [
        MODEL,
        "--data",
        short,
        "--sequences",
        "10",
        "--output",
        "short.stats",
    ];
    assert!(run(folder, &shorter).status.success());
    for (arguments, code, words) in [
        (&other[..], 1, "are both of 10 sequences of waves"),
        (
            &["one.stats", "short.stats", "--output", "all.stats"],
            1,
            "64 steps",
        ),
        (
            &["one.stats", "missing.stats", "--output", "all.stats"],
            1,
            "missing.stats",
        ),
        (
            &["one.stats", MODEL, "--output", "all.stats"],
            1,
            "no input statistics",
        ),
        (
            &["one.stats", "two.stats", "--output", "one.stats"],
            1,
            "one.stats",
        ),
        (&["one.stats", "--output", "all.stats"], 2, "2 values"),
    ] {
        let done = run(folder, &[&["--merge"], arguments].concat());
        let message = String::from_utf8_lossy(&done.stderr).into_owned();
        assert_eq!(done.status.code(), Some(code), "{arguments:?}: {message}");
        assert!(message.contains(words), "{arguments:?}: {message}");
        assert!(!folder.join("all.stats").exists());
    }
    let both = [
        "--merge",
        "one.stats",
        "two.stats",
        "--output",
        "both.stats",
    ];
    assert!(run(folder, &both).status.success());
    let both = Calibration::read(&folder.join("both.stats")).unwrap();
    assert!(both.origin().contains(" + ") && both.sequences() == 20);
}

#[test]
fn wrong_shares_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    for part in ["0/3", "4/3", "1", "1/0", "a/b"] {
        let done = run(
            folder,
            &[MODEL, "--data", "waves", "--part", part, "--output", "x"],
        );
        assert_eq!(done.status.code(), Some(2), "{part}");
    }
}
