//! The program as a person or a script meets it.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise and may show its figures"
)]

#[path = "../../../tests/common/mod.rs"]
mod common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{here, shared};
use hankelite_archive::{Dtype, RawTensor, write_arrays};
use serde_json::Value;

fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_compress-model"));
    command.args(arguments).env_remove("NO_COLOR");
    command.env_remove("COLUMNS");
    command
}

fn run(arguments: &[&str]) -> Output {
    program(arguments).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    let output = run(&[arguments, &["--format", "json"]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["schema_version"], 1, "{arguments:?}");
    document
}

/// Exit code 1, nothing on stdout, and every word in the message.
fn assert_fails(arguments: &[&str], words: &[&str]) {
    let output = run(arguments);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
    assert!(output.stdout.is_empty(), "{arguments:?}");
    assert!(
        message.contains("error:") && !message.contains("panicked"),
        "{message}"
    );
    for word in words {
        assert!(message.contains(word), "{word:?} in {message}");
    }
}

fn data(name: &str) -> String {
    here("data").join(name).display().to_string()
}

fn model(name: &str) -> String {
    let folder = common::top().join("models");
    folder.join(name).display().to_string()
}

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    fn files(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.0.path()).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    }
}

/// Waves without labels.
fn unlabelled(folder: &Folder) -> String {
    let (labelled, bare) = (
        folder.path("labelled.safetensors"),
        folder.path("bare.safetensors"),
    );
    let written = run(&[
        "data",
        "waves:count=20",
        "--split",
        "train",
        "--output",
        &labelled,
    ]);
    assert!(written.status.success());
    let bytes = std::fs::read(&labelled).unwrap();
    let arrays = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let inputs = arrays.tensor("inputs").unwrap();
    safetensors::serialize_to_file([("inputs", inputs)], None, bare.as_ref()).unwrap();
    std::fs::remove_file(labelled).unwrap();
    bare
}

#[test]
fn inspect_shows_a_table_and_a_picture() {
    let output = run(&["inspect", &model("waves/model.safetensors")]);
    let shown = text(&output.stdout);
    assert!(output.status.success());
    for word in [
        "S4D, 2 layers, 5,514 parameters",
        "s4_layers.1",
        "slowest |a|",
        "█",
        "1e-1 │",
        "of 16 channels 9 in 10 reach as high as █",
        "real states: two for each of the 32 that a channel stores",
    ] {
        assert!(shown.contains(word), "{word} in {shown}");
    }
    assert!(!shown.contains('\u{1b}'), "no colour into a pipe");
    // The file records where its norms stand; this one does not.
    assert!(!text(&output.stderr).contains("assumed"));
    let messages = text(&run(&["inspect", &data("s4d_classifier.pth")]).stderr);
    assert!(messages.contains("assumed: post-norm"), "{messages}");
}

/// The longest line that is no command to be copied, in characters, and all of the output.
fn widest(arguments: &[&str], columns: &str) -> (usize, String) {
    let output = program(arguments).env("COLUMNS", columns).output().unwrap();
    let message = text(&output.stderr);
    assert!(output.status.success(), "{arguments:?}: {message}");
    let shown = text(&output.stdout);
    let lines = shown
        .lines()
        .filter(|line| !line.trim_start().starts_with("compress-model "));
    let widest = lines.map(|line| line.chars().count()).max();
    (widest.unwrap(), shown)
}

#[test]
fn results_fit_into_the_window() {
    let folder = Folder::new();
    let (waves, small) = (
        model("waves/model.safetensors"),
        folder.path("s.safetensors"),
    );
    let few = ["--calibrate", "waves", "--sequences", "10"];
    let reduce = ["reduce", &waves, "--order", "4", "--output", &small];
    let inspect = ["inspect", &waves, "--channels"];
    let scores = ["--data", "waves:held_out=100"];
    let evaluate = ["evaluate", &waves, "--against", &small];
    let target = ["reduce", &waves, "--times", "4", "--dry-run"];
    let sweep = ["sweep", &waves, "--orders", "4,8"];
    let sizes = ["sweep", &waves, "--times", "2"];
    let compare = ["compare", &waves, "--orders", "4"];
    let bench = ["bench", &waves, "--steps", "100"];
    let commands = [
        [&reduce[..], &few, &scores].concat(),
        inspect.to_vec(),
        [&evaluate[..], &scores].concat(),
        [&target[..], &few].concat(),
        [&sweep[..], &few, &scores].concat(),
        [&sizes[..], &few, &scores].concat(),
        [&compare[..], &few].concat(),
        bench.to_vec(),
    ];
    for command in commands {
        for columns in ["60", "120"] {
            let (widest, shown) = widest(&command, columns);
            assert!(widest <= columns.parse().unwrap(), "{command:?}\n{shown}");
        }
    }
    // Narrower windows break lines by themselves; wider ones have no longer lines than 200.
    assert!(widest(&inspect, "20").0 > 20);
    assert!((130..=200).contains(&widest(&inspect, "500").0));
    // What stands aside is not lost.
    let (_, shown) = widest(&[&sweep[..], &few, &scores].concat(), "60");
    assert!(shown.contains("    of states 12.50 %, stored "), "{shown}");
}

#[test]
fn inspect_gives_every_value_in_json() {
    let shown = json(&["inspect", &model("waves/model.safetensors")]);
    let layers = shown["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 2);
    assert_eq!(layers[0]["name"], "s4_layers.0");
    for (index, channel) in layers[1]["channels"].as_array().unwrap().iter().enumerate() {
        assert_eq!(channel["index"], index);
        assert_eq!(channel["states"], 32);
        assert_eq!(channel["stable"], true);
        let sigma: Vec<f64> =
            serde_json::from_value(channel["hankel_singular_values"].clone()).unwrap();
        assert!(sigma.len() > 32 && sigma.len() <= 64);
        assert!(sigma.windows(2).all(|pair| pair[0] >= pair[1]));
    }
    let complex = json(&[
        "inspect",
        &model("waves/model.safetensors"),
        "--realisation",
        "complex",
        "--time",
        "continuous",
    ]);
    let sigma = &complex["layers"][0]["channels"][0]["hankel_singular_values"];
    assert_eq!(sigma.as_array().unwrap().len(), 32);
}

#[test]
fn an_unstable_layer_is_shown_and_not_reduced() {
    let file = data("dss_softmax_unstable.pth");
    let shown = json(&["inspect", &file, "--length", "48"]);
    let channel = &shown["layers"][0]["channels"][0];
    assert_eq!(channel["stable"], false);
    assert_eq!(channel["unstable_modes"], serde_json::json!([1, 4]));
    let folder = Folder::new();
    let out = folder.path("out.pth");
    assert_fails(
        &[
            "reduce", &file, "--length", "48", "--order", "3", "--output", &out,
        ],
        &["s4_layers.0", "channel 0", "lambda = 3.000e-1"],
    );
    assert!(folder.files().is_empty());
}

#[test]
fn reduce_writes_a_smaller_file_that_reads_without_flags() {
    let folder = Folder::new();
    let out = folder.path("small.safetensors");
    let source = model("waves/model.safetensors");
    let record = json(&["reduce", &source, "--order", "8", "--output", &out]);
    assert_eq!(record["layers"][0]["order_before"], 32);
    assert_eq!(record["layers"][0]["order"], 8);
    let number = |key: &str| record[key].as_f64().unwrap();
    assert_eq!(number("parameters_before"), 5514.0);
    // Two layers of 16 channels lose 24 states of four numbers each.
    assert_eq!(number("parameters_after"), 5514.0 - 2.0 * 16.0 * 24.0 * 4.0);
    assert!(number("seconds") > 0.0 && number("rounding_error") < 1e-4);
    for layer in record["layers"].as_array().unwrap() {
        for key in [
            "discarded",
            "error_bound",
            "relative_h2_error",
            "relative_kernel_error",
        ] {
            assert!(layer[key].as_f64().unwrap() > 0.0, "{key}");
        }
    }
    let output = run(&["inspect", &out]);
    assert!(output.status.success());
    assert!(
        !text(&output.stderr).contains("assumed"),
        "{}",
        text(&output.stderr)
    );
    let size = |path: &str| std::fs::metadata(path).unwrap().len();
    assert!(size(&out) < size(&source));
}

#[test]
fn what_a_layout_holds_chooses_the_method_and_the_time_base() {
    let evo = data("large/evo2_bank.safetensors");
    let record = json(&["reduce", &evo, "--order", "4", "--dry-run"]);
    assert_eq!(record["plan"]["method"], "real-poles");
    let layer = &record["layers"][0];
    let number = |key: &str| layer[key].as_f64().unwrap();
    assert!(number("relative_h2_error") < 1e-3);
    assert!(number("free_relative_h2_error") > 0.0);
    let shown = run(&["reduce", &evo, "--order", "4", "--dry-run"]);
    let shown = text(&shown.stdout);
    assert!(shown.contains("real poles H2 error"), "{shown}");
    let other = ["reduce", &evo, "--order", "4", "--dry-run", "--method"];
    let record = json(&[&other[..], &["modal-h2"]].concat());
    assert_eq!(record["plan"]["method"], "modal-h2");
    assert!(record["layers"][0]["free_relative_h2_error"].is_null());
    let flow = data("large/flowstate.safetensors");
    let other = ["reduce", &flow, "--order", "4", "--dry-run"];
    assert_eq!(json(&other)["plan"]["time"], "continuous");
    let record = json(&[&other[..], &["--time", "discrete"]].concat());
    assert_eq!(record["plan"]["time"], "discrete");
    let plain = data("s4d_classifier.pth");
    let record = json(&["reduce", &plain, "--order", "3", "--dry-run"]);
    let plan = [&record["plan"]["method"], &record["plan"]["time"]];
    assert_eq!(plan, ["balanced", "discrete"]);
}

#[test]
fn layouts_that_hold_some_systems_only_are_reduced_to_these() {
    let folder = Folder::new();
    let (source, out) = (
        data("large/attenuate.safetensors"),
        folder.path("small.safetensors"),
    );
    let shown = run(&["reduce", &source, "--order", "3", "--output", &out]);
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let (lines, notes) = (text(&shown.stdout), text(&shown.stderr));
    assert!(lines.contains("in layout H2 error"), "{lines}");
    assert!(notes.contains("--to s5"), "{notes}");
    let record = json(&["reduce", &source, "--order", "3", "--dry-run"]);
    assert_eq!(record["plan"]["method"], "in-layout");
    assert!(run(&["inspect", &out]).status.success());
    // Oscillators take two stored modes each, and without damping they do not decay.
    let declared = [
        &data("large/linoss_imex.safetensors"),
        "--discretisation",
        "imex",
    ];
    let reduce = [&["reduce"], &declared[..], &["--order", "5", "--dry-run"]].concat();
    let refused = run(&reduce);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("--unstable --length L"));
    let record = json(&[&reduce[..], &["--unstable", "--length", "256"]].concat());
    let channel = &record["layers"][0]["channels"][0];
    assert_eq!(channel["order"], 4);
    let notes = channel["notes"].to_string();
    assert!(notes.contains("an oscillator takes two"), "{notes}");
    // Where a file holds all systems there is nothing to keep to.
    let plain = data("s4d_classifier.pth");
    let wrong = ["--method", "in-layout", "--dry-run"];
    let refused = run(&[&["reduce", &plain, "--order", "3"], &wrong[..]].concat());
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("expected another method"));
}

#[test]
fn layers_of_events_are_shown_and_reduced_in_continuous_time() {
    let source = data("large/event_ssm.safetensors");
    assert_fails(&["inspect", &source], &["Event-SSM", "async, dirac or zoh"]);
    for (form, time) in [
        ("async", "impulses"),
        ("dirac", "impulses"),
        ("zoh", "continuous"),
    ] {
        let declared = [&source, "--discretisation", form];
        let shown = json(&[&["inspect"], &declared[..]].concat());
        assert_eq!(shown["time"], time, "{form}");
        let reduced = [&["reduce"], &declared[..], &["--order", "4", "--dry-run"]].concat();
        assert_eq!(json(&reduced)["plan"]["time"], time, "{form}");
        // Calibration would take them one step apart.
        let notes = text(&run(&reduced).stderr);
        assert_eq!(notes.contains("--calibrate DATA"), form == "zoh", "{notes}");
    }
}

#[test]
fn layouts_that_hold_some_systems_only_are_calibrated_within_them() {
    let folder = Folder::new();
    let source = data("large/mega_transformers.safetensors");
    let (inputs, out) = (
        folder.path("inputs.safetensors"),
        folder.path("small.safetensors"),
    );
    let described = json(&["inspect", &source]);
    let layers = described["layers"].as_array().unwrap().iter();
    let tensors = layers.map(|layer| {
        let channels = layer["channels"].as_array().unwrap().len();
        let values: Vec<f64> = (0..6 * 80 * channels)
            .map(|i| (i as f64 * 0.02).sin())
            .collect();
        let tensor = RawTensor::from_f64(Dtype::F32, vec![6, 80, channels], &values).unwrap();
        (layer["name"].as_str().unwrap().to_string(), tensor)
    });
    write_arrays(&inputs, tensors, "").unwrap();
    let reduce = ["reduce", &source, "--calibrate", &inputs];
    let shown = run(&[&reduce[..], &["--order", "3", "--output", &out]].concat());
    assert!(shown.status.success(), "{}", text(&shown.stderr));
    let lines = text(&shown.stdout);
    assert!(lines.contains("real poles weighted error"), "{lines}");
    let written = json(&["inspect", &out]);
    assert_eq!(written["family"], described["family"]);
    let record = json(&[&reduce[..], &["--order", "3", "--dry-run"]].concat());
    for layer in record["layers"].as_array().unwrap() {
        assert!(layer["free_relative_weighted_error"].as_f64().unwrap() > 0.0);
        for channel in layer["channels"].as_array().unwrap() {
            let number = |key: &str| channel["weighted"][key].as_f64().unwrap();
            assert!(number("error") < number("truncated") && number("steps") > 0.0);
        }
    }
    let refused = run(&[&reduce[..], &["--times", "2", "--output", &out]].concat());
    assert_eq!(refused.status.code(), Some(1));
}

#[test]
fn the_same_command_writes_the_same_bytes_and_a_dry_run_writes_none() {
    let folder = Folder::new();
    let source = data("s4d_classifier.pth");
    for ending in ["pth", "safetensors"] {
        let out = folder.path(&format!("same.{ending}"));
        let arguments = ["reduce", &source, "--order", "3", "--output", &out];
        assert!(run(&arguments).status.success());
        let first = std::fs::read(&out).unwrap();
        assert!(run(&arguments).status.success());
        assert_eq!(first, std::fs::read(&out).unwrap());
    }
    let before = folder.files().len();
    let out = folder.path("none.pth");
    let arguments = [
        "reduce",
        &source,
        "--order",
        "3",
        "--output",
        &out,
        "--dry-run",
    ];
    assert!(run(&arguments).status.success());
    assert_eq!(folder.files().len(), before);
    assert!(
        run(&["reduce", &source, "--order", "3", "--dry-run"])
            .status
            .success()
    );
}

#[test]
fn evaluate_scores_compares_and_writes_logits() {
    let folder = Folder::new();
    let source = model("waves/model.safetensors");
    let test = "waves:held_out=400".to_string();
    let logits = folder.path("logits.safetensors");
    let shown = json(&["evaluate", &source, "--data", &test, "--logits", &logits]);
    assert!(
        (shown["accuracy"].as_f64().unwrap() - 0.9675).abs() < 0.006,
        "{shown}"
    );
    assert_eq!(shown["examples"], 400);
    assert!(shown["loss"].as_f64().unwrap() < 0.2);
    let archive = hankelite_archive::Archive::open(Path::new(&logits)).unwrap();
    assert_eq!(archive.shape("logits"), Some(&[400, 10][..]));
    let out = folder.path("same.pth");
    assert!(
        run(&["reduce", &source, "--order", "32", "--output", &out])
            .status
            .success()
    );
    let shown = json(&[
        "evaluate",
        &source,
        "--data",
        &test,
        "--limit",
        "20",
        "--against",
        &out,
    ]);
    assert_eq!(shown["against"]["max_difference"], 0.0);
    assert_eq!(shown["against"]["agreement"], 1.0);
    assert_eq!(shown["examples"], 20);
    let unlabelled = unlabelled(&folder);
    let other = ["--path", "recurrence", "--against", &out];
    let shown = json(&[&["evaluate", &source, "--data", &unlabelled][..], &other].concat());
    assert_eq!(shown["accuracy"], Value::Null);
    assert_fails(
        &["evaluate", &source, "--data", &unlabelled],
        &["no `labels`"],
    );
    #[cfg(feature = "train")]
    the_training_engine_gives_the_same(&folder, &source, &test, &logits);
}

/// In single precision.
#[cfg(feature = "train")]
fn the_training_engine_gives_the_same(folder: &Folder, source: &str, test: &str, logits: &str) {
    let engine = folder.path("engine.safetensors");
    let device = ["--device", "cpu", "--logits", &engine];
    let shown = json(&[&["evaluate", source, "--data", test][..], &device].concat());
    assert!((shown["accuracy"].as_f64().unwrap() - 0.9675).abs() < 0.006);
    let read = |file: &str| {
        let archive = hankelite_archive::Archive::open(Path::new(file)).unwrap();
        archive.tensor("logits").unwrap().to_f64().unwrap()
    };
    for (a, b) in read(logits).iter().zip(read(&engine)) {
        assert!((a - b).abs() < 1e-4 * (1.0 + a.abs()), "{a} {b}");
    }
    let elsewhere = ["--device", "cuda:7"];
    assert_fails(
        &[&["evaluate", source, "--data", test][..], &elsewhere].concat(),
        &["cuda"],
    );
}

#[test]
fn reduce_can_show_what_the_accuracy_lost() {
    let folder = Folder::new();
    let out = folder.path("small.pth");
    let test = "waves:held_out=400".to_string();
    let source = model("waves/model.safetensors");
    let record = json(&[
        "reduce", &source, "--order", "16", "--output", &out, "--data", &test,
    ]);
    let before = record["before"]["accuracy"].as_f64().unwrap();
    let after = record["after"]["accuracy"].as_f64().unwrap();
    assert!(
        before > 0.96 && after > 0.1 && after < before,
        "{before} {after}"
    );
}

#[test]
fn wrong_files_are_told_apart_and_named() {
    let folder = Folder::new();
    let empty = folder.path("empty.pth");
    std::fs::write(&empty, b"").unwrap();
    let nowhere = folder.path("nowhere.pth");
    assert_fails(&["inspect", &nowhere], &["nowhere.pth"]);
    assert_fails(&["inspect", &empty], &["empty.pth", "empty"]);
    assert_fails(&["inspect", &folder.path("")], &["folder"]);
    for (file, words) in [
        ("bad/lfs_pointer.pth", &["Git LFS", "git lfs pull"][..]),
        ("bad/legacy.pth", &["1.6"]),
        ("bad/evil.pth", &["system"]),
        ("bad/dplr.pth", &["DPLR", "kernel.P"]),
        ("bad/mamba.safetensors", &["Mamba"]),
        ("bad/nan.safetensors", &["s4_layers.1.kernel.C", "NaN"]),
        (
            "bad/extra.safetensors",
            &["belong to no known part", "hint:"],
        ),
    ] {
        assert_fails(&["inspect", &data(file)], words);
        assert_fails(
            &["inspect", &data(file)],
            &[Path::new(file).file_name().unwrap().to_str().unwrap()],
        );
    }
}

#[test]
fn wrong_numbers_and_wrong_outputs_write_nothing() {
    let folder = Folder::new();
    let source = folder.path("source.pth");
    std::fs::copy(data("s4d_classifier.pth"), &source).unwrap();
    let out = folder.path("out.pth");
    let refused = |options: &[&str], words: &[&str]| {
        let start = ["reduce", &source, "--output", &out];
        assert_fails(&[&start[..], options].concat(), words);
    };
    refused(&["--order", "0"], &["order is 0", "at least 1"]);
    refused(&["--order", "7"], &["order is 7", "1 to 6"]);
    refused(&["--energy", "1.5"], &["1.5"]);
    refused(&["--tolerance=-1"], &["-1"]);
    refused(
        &["--energy", "0.9", "--method", "modal"],
        &["modal", "order"],
    );
    refused(&["--order", "3", "--unstable"], &["--length"]);
    let unstable = data("dss_softmax_unstable.pth");
    let start = ["reduce", &unstable, "--length", "48", "--order", "3"];
    let words = ["mode 1 has lambda", "--unstable --length L"];
    assert_fails(&[&start[..], &["--output", &out]].concat(), &words);
    let missing = folder.path("no/out.pth");
    assert_fails(
        &["reduce", &source, "--order", "3", "--output", &missing],
        &["does not exist"],
    );
    assert_fails(
        &["reduce", &source, "--order", "3", "--output", &source],
        &["source.pth"],
    );
    assert_eq!(folder.files().len(), 1);
}

#[test]
fn an_output_that_is_no_plain_file_or_an_input_is_refused() {
    let folder = Folder::new();
    let source = folder.path("source.safetensors");
    std::fs::copy(data("s4d_classifier.safetensors"), &source).unwrap();
    let before = std::fs::read(&source).unwrap();
    let evaluate = ["evaluate", &source, "--data", &source, "--logits", &source];
    assert_fails(&evaluate, &["is being read"]);
    assert_eq!(std::fs::read(&source).unwrap(), before);
    #[cfg(unix)]
    {
        let reduce =
            |out: &str| assert_fails(&["reduce", &source, "--order", "3", "-o", out], &["device"]);
        reduce("/dev/null");
        let link = folder.path("link.safetensors");
        std::fs::write(folder.path("target.safetensors"), b"old").unwrap();
        std::os::unix::fs::symlink(folder.path("target.safetensors"), &link).unwrap();
        assert!(
            run(&["reduce", &source, "--order", "3", "-o", &link])
                .status
                .success()
        );
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_ne!(
            std::fs::read(folder.path("target.safetensors")).unwrap(),
            b"old"
        );
    }
}

#[test]
fn a_failed_run_leaves_an_existing_output_as_it_was() {
    let folder = Folder::new();
    let out = folder.path("out.safetensors");
    std::fs::write(&out, b"precious").unwrap();
    let source = data("s4d_classifier.pth");
    let missing = folder.path("no-data.safetensors");
    let arguments = ["reduce", &source, "--order", "3", "-o", &out, "--data"];
    assert_fails(
        &[&arguments[..], &[&missing]].concat(),
        &["no-data.safetensors"],
    );
    let unlabelled = unlabelled(&folder);
    assert_fails(&[&arguments[..], &[&unlabelled]].concat(), &["no `labels`"]);
    assert_eq!(std::fs::read(&out).unwrap(), b"precious");
}

#[test]
fn even_the_loosest_rule_writes_a_file_that_can_be_read() {
    let folder = Folder::new();
    let out = folder.path("out.safetensors");
    let source = model("waves/model.safetensors");
    let record = json(&["reduce", &source, "--tolerance", "1e9", "-o", &out]);
    assert_eq!(record["layers"][0]["order"], 1);
    assert_eq!(record["layers"][0]["channels"][0]["order"], 0);
    assert!(run(&["inspect", &out]).status.success());
}

#[test]
fn a_length_that_no_sequence_has_is_refused_wherever_it_stands() {
    let source = model("waves/model.safetensors");
    for length in ["16777217", "2305843009213693952"] {
        let arguments = [
            "reduce",
            &source,
            "--order",
            "4",
            "--dry-run",
            "--length",
            length,
        ];
        assert_fails(&arguments, &["sequence length", length]);
    }
    let folder = Folder::new();
    let copy = folder.path("model.safetensors");
    std::fs::copy(&source, &copy).unwrap();
    std::fs::write(folder.path("model.hankelite.toml"), "length = 0\n").unwrap();
    assert_fails(&["inspect", &copy], &["sequence length is 0"]);
}

#[test]
fn names_from_a_file_cannot_command_the_terminal() {
    let folder = Folder::new();
    let path = folder.path("odd.safetensors");
    let header = r#"{"x\u001b[31m":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.as_bytes());
    bytes.extend([0; 4]);
    std::fs::write(&path, bytes).unwrap();
    let output = run(&["inspect", &path]);
    assert_eq!(output.status.code(), Some(1));
    assert!(!output.stderr.contains(&0x1b), "{}", text(&output.stderr));
}

#[test]
fn wrong_usage_exits_with_two_and_help_with_zero() {
    for arguments in [
        &["reduce", "x.pth", "--output", "y.pth"][..],
        &[
            "reduce", "x.pth", "--output", "y.pth", "--order", "3", "--energy", "0.5",
        ],
        &["reduce", "x.pth", "--order", "3"],
        &["frobnicate"],
        &["evaluate", "x.pth"],
        &["inspect", "x.pth", "--threads", "20000"],
        &[],
    ] {
        assert_eq!(run(arguments).status.code(), Some(2), "{arguments:?}");
    }
    for arguments in [
        &["--help"][..],
        &["inspect", "--help"],
        &["reduce", "--help"],
        &["evaluate", "--help"],
        #[cfg(feature = "train")]
        &["pretrain", "--help"],
        #[cfg(feature = "train")]
        &["retrain", "--help"],
        &["--version"],
    ] {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}");
        let help = text(&output.stdout);
        assert!(
            help.contains("Examples:") || arguments == ["--version"],
            "{help}"
        );
    }
}

#[test]
#[cfg(feature = "research")]
fn short_help_has_the_flags_that_matter_and_long_help_all() {
    let help = |command: &str, how: &str| text(&run(&[command, how]).stdout);
    for (command, shown, hidden) in [
        ("reduce", "--times", "--max-microseconds"),
        ("reduce", "--report", "--importance"),
        ("inspect", "--channels", "--realisation <"),
        ("sweep", "--calibrate", "--refine"),
        ("evaluate", "--against", "--numbers"),
    ] {
        let (short, long) = (help(command, "-h"), help(command, "--help"));
        assert!(short.contains(shown) && !short.contains(hidden), "{short}");
        assert!(long.contains(shown) && long.contains(hidden), "{long}");
        assert!(
            short.lines().count() < 60,
            "{command}: {}",
            short.lines().count()
        );
    }
    let top = text(&run(&["--help"]).stdout);
    for word in ["Train:", "Look and make smaller:", "Exit codes: 0 done"] {
        assert!(top.contains(word), "{word}");
    }
    // Every command stands in a group.
    let listed = top
        .lines()
        .filter(|line| line.starts_with("  ") && !line.contains("compress-model"));
    let known = listed.filter_map(|line| line.split_whitespace().next());
    let known: Vec<&str> = known.collect();
    for command in [
        "inspect",
        "reduce",
        "report",
        "bounds",
        "man",
        "completions",
        "bench",
    ] {
        assert!(known.contains(&command), "{command}");
    }
}

#[test]
fn shells_and_man_get_their_pages() {
    for (shell, word) in [
        ("bash", "complete -F"),
        ("zsh", "#compdef"),
        ("fish", "complete -c"),
    ] {
        let script = text(&run(&["completions", shell]).stdout);
        assert!(
            script.contains(word) && script.contains("compress-model"),
            "{shell}"
        );
    }
    let folder = Folder::new();
    assert!(run(&["man", &folder.path("")]).status.success());
    let page = std::fs::read_to_string(folder.path("compress-model-reduce.1")).unwrap();
    assert!(page.contains("calibrate") && page.contains(".TH"), "{page}");
    assert_fails(&["man", &folder.path("nowhere")], &["nowhere", "folder"]);
}

#[test]
fn the_page_of_commands_is_the_help() {
    let page = common::top().join("docs/cli.md");
    let page = std::fs::read_to_string(page).unwrap();
    let commands = [
        &[][..],
        &["inspect"],
        &["reduce"],
        &["calibrate"],
        &["sweep"],
        &["compare"],
        &["evaluate"],
        &["report"],
        &["completions"],
        &["man"],
        &["pretrain"],
        &["retrain"],
        &["pipeline"],
        &["convert"],
        &["stream"],
        &["bench"],
        &["check"],
        &["pack"],
        &["export"],
        &["bounds"],
        &["bounds", "model"],
        &["bounds", "rademacher"],
        &["bounds", "network"],
        &["bounds", "finite-time"],
        &["data"],
    ];
    for command in commands {
        let help = text(&run(&[command, &["--help"]].concat()).stdout);
        assert!(page.contains(help.trim_end()), "docs/cli.md lacks:\n{help}");
    }
}

#[test]
fn errors_are_documents_where_json_is_requested() {
    let folder = Folder::new();
    let (file, missing) = (data("s4d_classifier.pth"), folder.path("a b/small.pth"));
    let reduce = ["reduce", &file, "--order", "2", "--output", &missing];
    // The whole command, which works as it stands there.
    let hint = format!("compress-model reduce {file} --order 2 --output '{missing}'");
    let (hint, json_hint) = (
        format!("{hint} --create-folders"),
        format!("{hint} --format json --create-folders"),
    );
    let output = run(&reduce);
    let shown = text(&output.stderr);
    assert!(shown.contains(&format!("hint: {hint}")), "{shown}");
    let of = |arguments: &[&str], code: i32, kind: &str| {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}");
        assert!(output.stdout.is_empty(), "{arguments:?}");
        let shown = text(&output.stderr);
        let document: Value = serde_json::from_str(shown.lines().last().unwrap()).unwrap();
        assert_eq!(document["schema_version"], 1, "{shown}");
        assert_eq!(document["error"]["kind"], kind, "{shown}");
        document["error"].clone()
    };
    let error = of(&[&reduce[..], &["--format", "json"]].concat(), 1, "run");
    assert_eq!(error["hint"], json_hint);
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("does not exist"), "{message}");
    // A command that does not take the option.
    let compare = ["compare", &file, "--calibrate", "waves", "--orders", "2"];
    let missing = folder.path("a b/curve.svg");
    let output = run(&[&compare[..], &["--picture", &missing]].concat());
    let hint = format!("hint: mkdir -p '{}'", folder.path("a b"));
    let shown = text(&output.stderr);
    assert!(shown.contains(&hint), "{shown}");
    let error = of(&["reduce", &file, "--format=json"], 2, "usage");
    let message = error["message"].as_str().unwrap();
    assert!(message.contains("--output"), "{message}");
}

#[test]
fn no_checkpoint_goes_under_a_name_that_stands_for_something_else() {
    let folder = Folder::new();
    let source = data("s4d_classifier.safetensors");
    for name in [
        "small.onnx",
        "small.tflite",
        "small.h",
        "small.h5",
        "small.edge",
    ] {
        let out = folder.path(name);
        let ending = format!("`.{}`", name.rsplit('.').next().unwrap());
        let words = [ending.as_str(), "expected .safetensors", "hint:"];
        assert_fails(&["reduce", &source, "--order", "3", "-o", &out], &words);
        assert_fails(&["convert", &source, &out, "--to", "dss-exp"], &words);
    }
    assert!(folder.files().is_empty());
}

#[test]
fn the_hint_at_what_was_meant_by_an_ending_works_as_typed() {
    let folder = Folder::new();
    let source = data("s4d_classifier.safetensors");
    let cases = [
        ("small.onnx", "small.safetensors"),
        ("small.h5", "small.safetensors"),
    ];
    for (name, written) in cases {
        let out = folder.path(name);
        let message = text(&run(&["reduce", &source, "--order", "3", "-o", &out]).stderr);
        let hint = message.split_once("hint: ").unwrap().1;
        let hint = hint
            .trim_start_matches('`')
            .split(['`', '\n'])
            .next()
            .unwrap();
        let words: Vec<&str> = hint.split_whitespace().skip(1).collect();
        let output = run(&words);
        assert!(output.status.success(), "{hint}: {}", text(&output.stderr));
        assert!(Path::new(&folder.path(written)).is_file(), "{hint}");
    }
    // What is meant as C comes out as C, and a graph as a graph.
    for (name, within) in [("small.h", "small_image"), ("small.onnx", "new_state.1")] {
        let out = folder.path(name);
        let message = text(&run(&["reduce", &source, "--order", "3", "-o", &out]).stderr);
        let (_, next) = message.split_once("and then `compress-model ").unwrap();
        let (next, _) = next.split_once('`').unwrap();
        let words: Vec<&str> = next.split_whitespace().collect();
        let output = run(&words);
        assert!(output.status.success(), "{next}: {}", text(&output.stderr));
        let written = std::fs::read(out).unwrap();
        assert!(String::from_utf8_lossy(&written).contains(within), "{next}");
    }
}

#[test]
fn missing_folders_are_made_where_that_is_requested() {
    let folder = Folder::new();
    let file = data("s4d_classifier.pth");
    let within = |name: &str| folder.path(&format!("{name}/of a/folder/file"));
    let passes = |arguments: &[&str], outputs: &[&str]| {
        let output = run(&[arguments, &["--create-folders"]].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        for path in outputs {
            assert!(Path::new(path).is_file(), "{path}");
        }
    };
    let [small, page, card] = [
        format!("{}.pth", within("small")),
        format!("{}.html", within("page")),
        format!("{}.md", within("card")),
    ];
    let reduce = ["reduce", &file, "--order", "2", "--output", &small];
    let shown = ["--report", &page, "--card", &card];
    passes(&[&reduce[..], &shown].concat(), &[&small, &page, &card]);
    let converted = format!("{}.pth", within("converted"));
    passes(
        &["convert", &file, &converted, "--to", "s4v4"],
        &[&converted],
    );
    let image = within("image");
    passes(&["pack", &file, "--output", &image], &[&image]);
    let page = within("second page");
    passes(&["report", &file, "--output", &page], &[&page]);
    // A file where a folder is meant.
    let within = format!("{image}/folder/small.pth");
    let reduce = ["reduce", &file, "--order", "2", "--output", &within];
    let output = run(&[&reduce[..], &["--create-folders"]].concat());
    let shown = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{shown}");
    assert!(shown.contains("the folder cannot be made"), "{shown}");
}

/// The calculators that take numbers, not a checkpoint.
#[cfg(feature = "research")]
mod bounds {
    use super::*;

    /// The value of a bound by its equation.
    fn bound(document: &Value, equation: &str) -> f64 {
        let bounds = document["bounds"].as_array().unwrap();
        let bound = bounds.iter().find(|bound| bound["equation"] == equation);
        bound.unwrap()["value"].as_f64().unwrap()
    }

    fn rademacher(arguments: &str) -> Value {
        let words: Vec<&str> = arguments.split_whitespace().collect();
        json(&[&["bounds", "rademacher", "--kind"], &words[..]].concat())
    }

    #[track_caller]
    fn near(found: f64, figure: f64) {
        assert!((found / figure - 1.0).abs() < 1e-9, "{found}, {figure}");
    }

    #[test]
    fn bounds_have_their_published_figures_and_name_what_fails() {
        let step = rademacher("reweighted --alpha 0.8,0.9,0.9 --beta 0.5 --state 1.2");
        near(bound(&step, "(16)"), 0.10818383426);
        let sista = rademacher("sista --alpha 0.8,0.9 --beta 0.5,0.3 --state 1.2");
        near(bound(&sista, "(18)"), 0.13801533476);
        let one = rademacher("one-layer --alpha 1 --beta 0.5 --length 20");
        near(bound(&one, "(56)"), 1.28758564650);
        let deep = "reweighted --layers 3 --alpha 0.9 --beta 0.5 --length 20 --state 0.1";
        near(bound(&rademacher(deep), "(15)"), 1.05054231801);
        for (arguments, index, word) in [
            ("one-layer --alpha 1 --beta 0.5 --length 20", 0, "1 or more"),
            (
                &format!("{deep} --correlation 1.5"),
                0,
                "joint contraction is 1.5",
            ),
            (&format!("{deep} --loss-max 1"), 1, "vacuous"),
            (
                "fastrnn --alpha 3 --beta 1 --gate 0.5 --length 20",
                1,
                "(53) does not hold",
            ),
            (
                "spectral --frobenius 3,2,1 --spectral 1,0.9,1.2",
                0,
                "an order only",
            ),
            (
                "l1-l1 --alpha 1,1 --beta 1 --length 9",
                0,
                "the 9 steps of the sequence play no part",
            ),
        ] {
            let caveats = rademacher(arguments)["bounds"][index]["caveats"].to_string();
            assert!(caveats.contains(word), "{arguments}: {caveats}");
        }
    }

    #[test]
    fn the_constants_for_transformers_are_shown_and_what_they_assume() {
        let shown = json(&["bounds", "finite-time"]);
        let quantities = shown["quantities"].as_array().unwrap();
        let of = |name: &str| {
            let quantity = quantities.iter().find(|quantity| quantity["name"] == name);
            quantity.unwrap()["value"].as_f64().unwrap()
        };
        near(of("B_lin"), 112.0793730313029);
        near(of("B_grad"), 788864.6271566801);
        let note = |document: &Value| document["notes"][0].to_string();
        assert!(note(&shown).contains("vacuous"), "{shown}");
        let tight = json(&["bounds", "finite-time", "--trust", "1,5,5"]);
        assert!(note(&tight).contains("radius of c"), "{tight}");
    }

    #[test]
    fn norms_that_are_none_are_named() {
        for (words, message) in [
            (
                "rademacher --kind sista --alpha 1 --beta 1,1",
                "--alpha has 1 numbers, expected 2",
            ),
            (
                "rademacher --kind reweighted --alpha -1 --beta 1",
                "alpha is -1, expected",
            ),
            (
                "rademacher --kind fastrnn --alpha 1 --beta 1 --gate 2",
                "gate is 2, expected 0 to 1",
            ),
            (
                "rademacher --kind fastrnn --alpha 1 --beta 1 --gate 1 --state 1",
                "--state plays no part",
            ),
            (
                "finite-time --trust 1,2",
                "--trust has 2 numbers, expected 1 or 3",
            ),
            ("finite-time --failure 0", "--failure is 0"),
        ] {
            let words: Vec<&str> = words.split_whitespace().collect();
            assert_fails(&[&["bounds"], &words[..]].concat(), &[message]);
        }
        let output = run(&["bounds", "rademacher", "--kind", "fastrnn", "--alpha", "1"]);
        assert_eq!(output.status.code(), Some(2));
    }
}

/// The tail of a reduction is the bound that `reduce` records, the measure that of `inspect`.
#[test]
fn bounds_of_a_model_are_those_of_reduce_and_inspect() {
    let file = model("waves/model.safetensors");
    let measured = ["--data", "waves:held_out=30"];
    let shown = json(
        &[
            &["bounds", "model", &file, "--orders", "4,8"],
            &measured[..],
        ]
        .concat(),
    );
    let folder = Folder::new();
    let out = folder.path("small.safetensors");
    let record = json(&["reduce", &file, "--order", "8", "--output", &out]);
    let inspected = json(&[&["inspect", &file], &measured[..]].concat());
    for layer in 0..2 {
        let tails = &shown["layers"][layer]["tails"];
        let bound = &record["layers"][layer]["error_bound"];
        assert_eq!(&tails[1]["largest"], bound);
        assert!(tails[0]["largest"].as_f64() > bound.as_f64());
        let measure = &shown["layers"][layer]["measure"];
        assert_eq!(measure, &inspected["layers"][layer]["measure"]);
        let psi = measure["psi"][3].as_f64().unwrap();
        let share = shown["layers"][layer]["psi_squared_per_root"][3].as_f64();
        assert!((share.unwrap() - psi * psi / 30f64.sqrt()).abs() < 1e-9 * psi * psi);
    }
    assert_fails(
        &["bounds", "model", &file, "--orders", "99"],
        &["--orders has 99"],
    );
}

#[test]
fn colour_and_quiet_are_obeyed() {
    let file = model("waves/model.safetensors");
    let output = run(&["inspect", &file, "--color", "always", "--quiet"]);
    assert!(text(&output.stdout).contains("\u{1b}["));
    assert!(output.stderr.is_empty());
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_an_error_and_a_closed_pipe_is_none() {
    let file = model("waves/model.safetensors");
    let full = Path::new("/dev/full");
    if full.exists() {
        let output = program(&["inspect", &file])
            .stdout(std::fs::OpenOptions::new().write(true).open(full).unwrap())
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert!(!text(&output.stderr).contains("panicked"));
    }
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = program(&["inspect", &file])
        .stdout(writer)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
#[ignore = "needs data sets and checkpoints beside the project"]
fn a_real_file_of_another_person_is_reduced_and_scored() {
    let file = shared("data/checkpoints/gevorgyg/ckpt.pth");
    let mnist = shared("data/mnist");
    let folder = Folder::new();
    let out = folder.path("small.pth");
    let file = file.display().to_string();
    let record = json(&["reduce", &file, "--order", "16", "--output", &out]);
    println!("seconds: {}", record["seconds"]);
    let source = format!("mnist:{}", mnist.display());
    let shown = json(&["evaluate", &out, "--data", &source, "--limit", "200"]);
    assert!(shown["accuracy"].as_f64().unwrap() > 0.8, "{shown}");
}

/// The words that follow a mark in the code of a folder, comments left out, each with its place.
fn named(folder: &Path, mark: &str, words: &mut Vec<(String, String)>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            named(&path, mark, words);
        }
        if path.extension().is_none_or(|kind| kind != "rs") {
            continue;
        }
        let text = std::fs::read_to_string(&path).unwrap();
        let lines = text
            .lines()
            .filter(|line| !line.trim_start().starts_with("//"));
        for line in lines {
            for rest in line.split(mark).skip(1) {
                let end = rest
                    .find(|c: char| !(c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-'));
                let word = &rest[..end.unwrap_or(rest.len())];
                words.push((word.to_string(), format!("{}: {line}", path.display())));
            }
        }
    }
}

#[test]
fn what_a_message_names_exists() {
    let help = std::fs::read_to_string(common::top().join("docs/cli.md")).unwrap();
    let known = |word: &str| {
        let mut places = help.match_indices(word);
        places.any(|(at, _)| {
            !help[at + word.len()..].starts_with(|c: char| c.is_ascii_lowercase() || c == '-')
        })
    };
    for (mark, head, least) in [
        ("--", "--", 80),
        ("compress-model ", "## compress-model ", 60),
    ] {
        let mut words = Vec::new();
        for folder in [
            "src",
            "crates/archive/src",
            "crates/data/src",
            "crates/train/src",
            "crates/compress-model/src",
        ] {
            named(&common::top().join(folder), mark, &mut words);
        }
        words.retain(|(word, _)| word.starts_with(|c: char| c.is_ascii_lowercase()));
        assert!(words.len() > least, "{mark}: {}", words.len());
        for (word, place) in words {
            assert!(known(&format!("{head}{word}")), "{head}{word} in {place}");
        }
    }
}

#[test]
fn a_file_alone_is_told_in_three_lines_with_the_next_command() {
    let folder = Folder::new();
    let file = model("waves/model.safetensors");
    let output = run(&[&file]);
    let shown = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(shown.lines().count(), 3, "{shown}");
    for words in [
        "S4D, 2 layers of 16 channels with 32 states each, 5,514 parameters",
        "the whole network is understood",
        "next: compress-model reduce ",
    ] {
        assert!(shown.contains(words), "{words} in {shown}");
    }
    let layer = text(&run(&[&data("s4d_layer.safetensors")]).stdout);
    let alone =
        layer.contains("no network around the layers is known") && layer.contains("inspect");
    assert!(alone, "{layer}");
    let image = folder.path("m.edge");
    assert!(run(&["pack", &file, "--output", &image]).status.success());
    assert!(text(&run(&[&image]).stdout).contains("next: compress-model stream "));
    assert_fails(
        &["inspect", &image],
        &["an image of hankelite", "compress-model stream"],
    );
    assert_fails(&["nofile.pth"], &["nofile.pth", "No such file"]);
    let help = run(&["help", "reduce"]);
    assert_eq!(text(&help.stdout), text(&run(&["reduce", "--help"]).stdout));
}

#[test]
fn a_size_in_words_of_others_is_answered_in_ours() {
    let file = model("waves/model.safetensors");
    for flag in ["--d-state", "--n-states", "--ratio"] {
        let output = run(&["reduce", &file, flag, "16", "--output", "x.pth"]);
        let message = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{message}");
        assert!(
            message.contains("--order R is the number of complex states"),
            "{message}"
        );
    }
    let output = run(&["reduce", &file, "--order", "8", "--dry-run"]);
    let message = text(&output.stderr);
    let warned =
        message.contains("kernels change by up to") && message.contains("--calibrate DATA");
    assert!(warned, "{message}");
}

/// Parts of documents that the page of JSON names without what is in them.
const CLOSED: [&str; 7] = [
    "fit",
    "longer",
    "size_plan",
    "calibration",
    "weighted",
    "example",
    "constant_answer",
];

/// The keys of a document, of what is in it, and of the first entries of its lists.
fn keys(document: &Value, into: &mut Vec<String>) {
    match document {
        Value::Object(parts) => {
            for (key, part) in parts {
                into.push(key.clone());
                if !CLOSED.contains(&key.as_str()) {
                    keys(part, into);
                }
            }
        }
        Value::Array(entries) => entries.iter().take(1).for_each(|entry| keys(entry, into)),
        _ => {}
    }
}

/// What the page of JSON says of several commands, and of one.
fn page_of(page: &str, command: &str) -> String {
    let sections = page.split("\n## ");
    let wanted = sections.filter(|section| {
        section.starts_with("Keys of several") || section.lines().next() == Some(command)
    });
    let found: Vec<&str> = wanted.collect();
    assert_eq!(found.len(), 2, "{command}");
    found.concat()
}

#[test]
fn the_page_of_json_has_every_key() {
    let folder = Folder::new();
    let page = std::fs::read_to_string(common::top().join("docs/json.md")).unwrap();
    let (file, image) = (model("waves/model.safetensors"), folder.path("m.edge"));
    let target = [
        "--calibrate",
        "waves:length=64",
        "--sequences",
        "20",
        "--dry-run",
    ];
    let waves = ["--data", "waves:length=64,held_out=20"];
    let onnx = folder.path("m.onnx");
    let commands: [&[&str]; 10] = [
        &["pack", &file, "--output", &image],
        &["export", &file, "--onnx", &onnx],
        &["inspect", &file],
        &["reduce", &file, "--order", "8", "--dry-run"],
        &[&["reduce", &file, "--order", "8"], &target[..], &waves].concat(),
        &[&["reduce", &file, "--times", "2"], &target[..], &waves].concat(),
        &[&["evaluate", &file, "--against", &file], &waves[..]].concat(),
        &["bench", &file, "--steps", "100"],
        &["check", &image, "--max-bytes", "64k"],
        &["data", "waves"],
    ];
    for command in commands {
        let (mut found, said) = (Vec::new(), page_of(&page, command[0]));
        keys(&json(command), &mut found);
        found.retain(|key| !said.contains(&format!("`{key}`")));
        assert!(
            found.is_empty(),
            "{command:?}: docs/json.md lacks {found:?}"
        );
    }
    let failed = run(&["inspect", "nothing.pth", "--format", "json"]);
    let error: Value = serde_json::from_slice(&failed.stderr).unwrap();
    let (mut found, said) = (Vec::new(), page_of(&page, "error"));
    keys(&error, &mut found);
    found.retain(|key| !said.contains(&format!("`{key}`")));
    assert!(found.is_empty(), "{found:?}");
}
