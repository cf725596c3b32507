//! `reduce` to a target of bytes, time or change, as a person or a script meets it.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;
use std::process::{Command, Output};

use hankelite_archive::{Dtype, RawTensor, write_arrays};
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

/// A model card has the figures of the document.
fn tells(card: &str, document: &Value) {
    let grouped = |bytes: u64| match bytes {
        0..1000 => bytes.to_string(),
        _ => format!("{},{:03}", bytes / 1000, bytes % 1000),
    };
    let [before, after] = ["size_before", "size"].map(|size| grouped(total(&document[size])));
    for words in [
        format!("| together, bytes | {before} | {after} | 1/5."),
        "a step on the machine that made it, microseconds | ".to_string(),
        "change of the logits of the calibration | ".to_string(),
        "change of the logits on sequences held out | ".to_string(),
        "over 512 steps, twice the calibrated length | ".to_string(),
        "| s4_layers.0 | ".to_string(),
        "| head | ".to_string(),
        "`small.edge` is an image".to_string(),
        "SHA-256 `839aec4a".to_string(),
    ] {
        assert!(card.contains(&words), "{words} in {card}");
    }
    assert!(
        card.contains(" by ") && card.contains("int"),
        "bits of maps in {card}"
    );
}

#[test]
fn image_and_checkpoint_of_a_target_hold_the_same_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let (file, image) = (
        folder.path().join("small.safetensors"),
        folder.path().join("small.edge"),
    );
    let names = [file.display().to_string(), image.display().to_string()];
    let card = folder.path().join("README.md");
    let card_name = card.display().to_string();
    let written = [
        "--output", &names[0], "--image", &names[1], "--card", &card_name,
    ];
    let document = reduced(&[&["--times", "5"][..], &written].concat());
    assert_eq!(document["card"], card_name);
    tells(&std::fs::read_to_string(&card).unwrap(), &document);
    let (before, after) = (total(&document["size_before"]), total(&document["size"]));
    assert!(5 * after <= before, "{before} {after}");
    let bytes = std::fs::metadata(&image).unwrap().len();
    assert_eq!(bytes, document["size"]["weights"].as_u64().unwrap());
    let of_file = accuracy(&file, &[]);
    let of_image = accuracy(&image, &["--stream"]);
    assert!(of_file > 0.96, "{of_file}");
    assert!((of_file - of_image).abs() < 0.005, "{of_file} {of_image}");
}

/// Bytes of the image of a checkpoint.
fn packed(file: &str, folder: &Path, more: &[&str]) -> Vec<u8> {
    let image = folder.join("packed.edge");
    let start = ["pack", file, "--output", &image.display().to_string()];
    json(&[&start, more].concat());
    std::fs::read(image).unwrap()
}

#[test]
fn the_bits_that_a_target_chose_are_packed_and_trained() {
    let folder = tempfile::tempdir().unwrap();
    let [small, image, better] = ["small.safetensors", "small.edge", "better.safetensors"]
        .map(|name| folder.path().join(name).display().to_string());
    let target = ["--max-bytes", "8k", "--output", &small, "--image", &image];
    let document = reduced(&target);
    let entries = |choice: &Value| choice["entries"].as_str().unwrap().to_string();
    let plan = &document["size_plan"];
    let layers = plan["layers"].as_array().unwrap().iter();
    let mut chosen: Vec<_> = layers.map(|layer| entries(&layer["map"])).collect();
    chosen.extend(["encoder", "head"].map(|name| entries(&plan[name])));
    assert!(chosen.iter().any(|entries| entries != "full"), "{chosen:?}");
    // A group of entries of both signs may be held by either sign of its scale.
    let bytes = std::fs::read(&image).unwrap();
    let length = |more: &[&str]| packed(&small, folder.path(), more).len();
    assert_eq!(length(&[]), bytes.len());
    // Wider numbers beside the maps leave these at their bits.
    let wide = length(&["--numbers", "f32"]);
    assert!(bytes.len() < wide && wide < length(&["--mixing", "full"]));
    let data = "waves:length=256,count=200,held_out=50";
    let own = json(&["evaluate", &image, "--stream", "--data", data]);
    let again = json(&["evaluate", &small, "--stream", "--data", data]);
    assert_eq!(own["loss"], again["loss"]);
    assert!(own["loss"].as_f64().unwrap() > 0.0);

    let start = ["retrain", &small, "--data", data, "--teacher", MODEL];
    let settings = ["--epochs", "2", "--lr", "0.002", "--output", &better];
    let output = run(&[&start[..], &settings].concat());
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{stderr}");
    assert!(stderr.contains("as recorded in the checkpoint"), "{stderr}");
    let trained = packed(&better, folder.path(), &[]);
    assert_eq!(trained.len(), bytes.len());
    assert!(trained != bytes);
    // What was evaluated and written is what the image holds, but for the halves of the poles.
    let stored = json(&["evaluate", &better, "--stream", "--data", data]);
    let plain = json(&["evaluate", &better, "--data", data]);
    let plain = plain.get("models").map_or(&plain, |models| &models[0]);
    let [stored, plain] = [&stored, plain].map(|scores| scores["loss"].as_f64().unwrap());
    assert!((stored - plain).abs() <= 0.02 * plain, "{stored} {plain}");
}

#[test]
fn one_command_reduces_and_trains_at_the_bits() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let (small, image, card) = (path("a.safetensors"), path("a.edge"), path("a.md"));
    let data = "waves:length=256,count=400,held_out=50";
    let start = ["reduce", MODEL, "--calibrate", data, "--sequences", "50"];
    let train = ["--times", "10", "--train", "--epochs", "2", "--data", data];
    let places = ["--output", &small, "--image", &image, "--card", &card];
    let all = [&start[..], &train, &places].concat();
    let document = json(&all);
    let trained = &document["trained"];
    // A tenth of 400 sequences is held out; the default is 50 a step.
    assert_eq!(trained["sequences"], 360);
    assert_eq!(trained["steps"], 16);
    let loss = |measured: &Value| measured["loss"].as_f64().unwrap();
    let (before, after) = (loss(&trained["before"]), loss(&trained["validation"]));
    assert!(after < 0.7 * before, "{before} {after}");
    // The image is that of the trained checkpoint, in as many bytes as before.
    let bytes = std::fs::read(&image).unwrap();
    assert_eq!(packed(&small, folder.path(), &[]), bytes);
    let size = &document["size"];
    assert_eq!(size["weights"].as_u64().unwrap(), bytes.len() as u64);
    assert!(10 * total(size) <= total(&document["size_before"]));
    let shown = json(&["evaluate", &small, "--data", data]);
    let shown = shown.get("models").map_or(&shown, |models| &models[0]);
    assert_eq!(document["after"]["accuracy"], shown["accuracy"]);
    let card = std::fs::read_to_string(&card).unwrap();
    assert!(
        card.contains("| trained | 16 steps on 360 sequences"),
        "{card}"
    );
    assert!(!card.contains("no training"), "{card}");
    assert!(card.contains("own input, before the training |"), "{card}");
    // The folder of the run keeps the same training, which ends where it ended.
    let again = run(&all);
    assert_eq!(again.status.code(), Some(1));
    let resumed = json(&[&all[..], &["--resume"]].concat());
    assert_eq!(resumed["trained"]["validation"], trained["validation"]);
    assert_eq!(std::fs::read(&image).unwrap(), bytes);
    let other: Vec<&str> = all
        .iter()
        .map(|&a| if a == "10" { "5" } else { a })
        .collect();
    let other = run(&[&other[..], &["--resume"]].concat());
    assert_eq!(other.status.code(), Some(1), "another start goes on");
}

#[test]
fn a_training_that_cannot_be_scored_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("rows.csv").display().to_string();
    std::fs::write(&file, "0,1,2\n".repeat(20)).unwrap();
    let small = folder.path().join("s.pth").display().to_string();
    let start = ["reduce", MODEL, "--train", "--output", &small];
    let refused = |more: &[&str]| {
        let output = run(&[&start[..], more].concat());
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), stderr)
    };
    let (code, text) = refused(&["--order", "4"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(
        text.contains("retrain small.pth --teacher model.pth"),
        "{text}"
    );
    for more in [
        &["--data", &file][..],
        &["--calibrate", &file, "--data", &file, "--times", "6"],
    ] {
        let (code, text) = refused(more);
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("has no parts"), "{text}");
    }
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

fn length(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().len()
}

#[test]
fn a_target_of_a_file_is_that_of_the_written_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.safetensors");
    let name = path.display().to_string();
    let whole = length(Path::new(MODEL));
    for more in [&[][..], &["--dtype", "f16"], &["--allocate", "model"]] {
        let target = whole * 6 / 10;
        let bytes = target.to_string();
        let start = ["--max-bytes", &bytes, "--for", "file", "--output", &name];
        let document = reduced(&[&start, more].concat());
        assert!(length(&path) <= target, "{more:?}: {}", length(&path));
        assert!(
            length(&path) * 10 > target * 9,
            "{more:?}: {}",
            length(&path)
        );
        assert!(
            document["held_out_change"].as_f64().unwrap() < 0.3,
            "{more:?}"
        );
        assert!(accuracy(&path, &[]) > 0.95, "{more:?}");
    }
    let start = ["--max-change", "0.05", "--for", "file", "--output", &name];
    let document = reduced(&start);
    assert!(document["held_out_change"].as_f64().unwrap() <= 0.05);
    assert!(length(&path) < whole);
}

#[test]
fn a_budget_is_a_share_of_what_is_stored() {
    let folder = tempfile::tempdir().unwrap();
    let (file, image) = (
        folder.path().join("small.pth"),
        folder.path().join("small.edge"),
    );
    let names = [file.display().to_string(), image.display().to_string()];
    let orders = |document: &Value| -> Vec<Vec<u64>> {
        let layers = document["layers"].as_array().unwrap().iter();
        let channels = layers.map(|layer| layer["channels"].as_array().unwrap());
        let order = |channel: &Value| channel["order"].as_u64().unwrap();
        channels
            .map(|all| all.iter().map(order).collect())
            .collect()
    };
    let of_file = reduced(&["--budget", "0.25", "--output", &names[0]]);
    for layer in orders(&of_file) {
        assert!(layer.iter().all(|order| *order == layer[0]), "{layer:?}");
    }
    let of_image = reduced(&["--budget", "0.25", "--image", &names[1]]);
    let mut different = false;
    for mut layer in orders(&of_image) {
        layer.sort_unstable();
        layer.reverse();
        different |= layer.first() != layer.last();
        assert!(
            layer.chunks(4).all(|group| group[0] == group[3]),
            "{layer:?}"
        );
    }
    assert!(different);
    for document in [of_file, of_image] {
        let all: u64 = orders(&document).iter().flatten().sum();
        let before = document["calibration"]["states_before"].as_u64().unwrap();
        assert!(4 * all <= before, "{all} of {before}");
    }
    assert!(accuracy(&image, &["--stream"]) > 0.95);
}

/// Arguments, the exit code, and words of the message.
const WRONG: &[(&[&str], i32, &str)] = &[
    (&["--times", "5"], 2, "--output"),
    (&["--times", "5", "--order", "8", "--dry-run"], 2, "--order"),
    (
        &["--times", "0.5", "--dry-run"],
        1,
        "--times is 0.5, expected a number above 1",
    ),
    (&["--max-bytes", "many", "--dry-run"], 2, "64KiB or 1.2M"),
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
        &["--max-bytes", "1k", "--for", "file", "--dry-run"],
        1,
        "--for image takes them down",
    ),
    (
        &[
            "--times",
            "2",
            "--for",
            "file",
            "--only",
            "maps",
            "--dry-run",
        ],
        1,
        "--only maps goes with --for image",
    ),
    (
        &["--max-microseconds", "9", "--for", "file", "--dry-run"],
        1,
        "leave out --for file",
    ),
    (
        &[
            "--budget",
            "0.5",
            "--for",
            "file",
            "--allocate",
            "channel",
            "--dry-run",
        ],
        1,
        "--for image, or --allocate layer",
    ),
    (
        &["--max-microseconds", "1e-9", "--dry-run"],
        1,
        "us, expected at least",
    ),
];

#[test]
fn wrong_targets_are_refused() {
    for &(more, code, words) in WRONG {
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
fn what_needs_one_system_per_channel_is_refused_before_anything_slow() {
    let shared = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/flax/s5_full_glu.safetensors"
    );
    let start = ["reduce", shared, "--calibrate", "waves", "--dry-run"];
    for (more, words) in [
        (
            &["--order", "2", "--allocate", "layer"][..],
            "leave --allocate out",
        ),
        (
            &["--order", "2", "--importance", "root"],
            "leave --importance out",
        ),
        (&["--order", "2", "--sequential"], "leave --sequential out"),
    ] {
        let output = run(&[&start, more].concat());
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{more:?}: {message}");
        assert!(message.contains(words), "{more:?}: {message}");
        assert!(message.contains("s5_full_glu.safetensors"), "{message}");
    }
}

#[test]
fn shared_modes_come_down_to_a_change_and_to_a_time() {
    let shared = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/flax/s5_full_glu.safetensors"
    );
    let start = ["reduce", shared, "--calibrate", "waves", "--dry-run"];
    let near = json(&[&start[..], &["--max-change", "0.2"]].concat());
    assert!(near["held_out_change"].as_f64().unwrap() <= 0.2);
    let bytes = |size: &serde_json::Value| {
        size["weights"].as_u64().unwrap() + size["state"].as_u64().unwrap()
    };
    assert!(bytes(&near["size"]) < bytes(&near["size_before"]));
    let fast = json(&[&start[..], &["--times", "1.5", "--max-microseconds", "1e6"]].concat());
    assert!(bytes(&fast["size"]) * 3 <= bytes(&fast["size_before"]) * 2);
    let slow = run(&[&start[..], &["--max-microseconds", "1e-6"]].concat());
    let message = String::from_utf8_lossy(&slow.stderr).into_owned();
    assert_eq!(slow.status.code(), Some(1), "{message}");
    assert!(
        message.contains("the fastest of the sizes that were tried"),
        "{message}"
    );

    let swept = json(&[
        "sweep",
        shared,
        "--calibrate",
        "waves",
        "--times",
        "1.2,1.5",
    ]);
    assert_eq!(swept["rows"].as_array().unwrap().len(), 2);
}

/// Ten sequences of 64 steps, number `changed` turned round.
fn ten_sequences(path: &Path, changed: Option<usize>) {
    let value = |n: usize, t: usize| {
        let sign = if changed == Some(n) { -1.0 } else { 1.0 };
        sign * ((t * t % 37) as f64 * (0.2 + 0.1 * n as f64)).sin()
    };
    let values: Vec<f64> = (0..640).map(|i| value(i / 64, i % 64)).collect();
    let inputs = RawTensor::from_f64(Dtype::F32, vec![10, 64, 1], &values).unwrap();
    write_arrays(path, [("inputs", inputs)], "").unwrap();
}

#[test]
fn sequences_that_are_held_out_take_no_part_in_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let made = |changed: Option<usize>| {
        ten_sequences(&folder.path().join("data.safetensors"), changed);
        let words = ["reduce", MODEL, "--calibrate", &path("data.safetensors")];
        let target = ["--times", "3", "--image", &path("small.edge")];
        json(&[&words[..], &target].concat());
        std::fs::read(folder.path().join("small.edge")).unwrap()
    };
    let first = made(None);
    let same = (0..10).filter(|&n| made(Some(n)) == first).count();
    assert_eq!(same, 2, "a fifth of ten sequences is held out");
}

#[test]
fn sequences_with_other_axes_or_of_bytes_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("data.safetensors");
    let data = file.display().to_string();
    let words = [
        "reduce",
        MODEL,
        "--calibrate",
        &data,
        "--order",
        "8",
        "--dry-run",
    ];
    let values: Vec<f64> = (0..640).map(|i| f64::from(i * i % 251)).collect();
    let write = |shape: &[usize]| {
        let inputs = RawTensor::from_f64(Dtype::F32, shape.to_vec(), &values).unwrap();
        write_arrays(&file, [("inputs", inputs)], "").unwrap();
        let output = run(&words);
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    let told = write(&[10, 1, 64]);
    assert!(
        told.contains("10 sequences of 1 steps with 64 values each"),
        "{told}"
    );
    assert!(told.contains("did you mean [10, 64, 1]"), "{told}");
    let told = write(&[10, 64, 1]);
    assert!(
        told.contains("all values are whole numbers from 0 to 249"),
        "{told}"
    );
}

#[test]
fn sequences_that_repeat_are_told_and_check_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    let inputs = RawTensor::from_f64(Dtype::F32, vec![20, 64, 1], &[0.5; 1280]).unwrap();
    let data = path("data.safetensors");
    write_arrays(&data, [("inputs", inputs)], "").unwrap();
    let words = [
        "reduce",
        MODEL,
        "--calibrate",
        &data,
        "--order",
        "8",
        "--dry-run",
    ];
    let output = run(&[&words[..], &["--format", "json"]].concat());
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        told.contains("1 of 20 calibration sequences are different"),
        "{told}"
    );
    assert!(told.contains("root mean square of 0.5000"), "{told}");
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(document["calibration"]["fit"].is_null(), "{document}");
}

#[test]
fn only_so_many_sequences_are_scored() {
    let more = ["--sequences", "10", "--calibrate", "waves", "--orders", "4"];
    let data = ["--data", "waves", "--limit", "30"];
    for command in ["sweep", "compare"] {
        let document = json(&[&[command, MODEL], &more[..], &data].concat());
        assert_eq!(document["full"]["examples"], 30, "{command}");
        let rows = document.get("points").or(document.get("rows")).unwrap();
        assert_eq!(rows[0]["result"]["examples"], 30, "{command}");
    }
    let without = run(&[&["sweep", MODEL], &more[..], &["--limit", "30"]].concat());
    assert_eq!(without.status.code(), Some(2));
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

/// The program in a folder of its own.
fn run_in(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_compress-model"));
    command
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

#[test]
fn without_a_size_the_smallest_model_within_a_loss_is_written_and_made_again() {
    let folder = tempfile::tempdir().unwrap();
    let data = "waves:length=256,count=200,held_out=400";
    let search = [
        "reduce",
        MODEL,
        "--data",
        data,
        "--sequences",
        "40",
        "--within",
        "2",
    ];
    let output = run_in(folder.path(), &search);
    let shown = String::from_utf8_lossy(&output.stdout).into_owned();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{message}");
    assert!(shown.lines().count() <= 10, "{shown}");
    for name in [
        "model-small.safetensors",
        "model-small.edge",
        "model-small.html",
    ] {
        assert!(folder.path().join(name).is_file(), "{name}");
        assert!(shown.contains(&format!("wrote {name}")), "{shown}");
    }
    let image = std::fs::read(folder.path().join("model-small.edge")).unwrap();
    let again = shown.lines().find_map(|line| line.strip_prefix("again:"));
    let again = again
        .unwrap()
        .trim()
        .replace("model-small.edge", "again.edge");
    let again = again.replace("model-small.safetensors", "again.safetensors");
    let words: Vec<&str> = again.split_whitespace().skip(1).collect();
    let output = run_in(folder.path(), &words);
    assert!(output.status.success(), "{again}");
    assert!(std::fs::read(folder.path().join("again.edge")).unwrap() == image);
}

#[test]
fn a_size_is_chosen_by_sequences_that_do_not_calibrate() {
    let folder = tempfile::tempdir().unwrap();
    let arrays = folder.path().join("d.safetensors").display().to_string();
    let source = "waves:length=256,count=120,held_out=10";
    let written = run(&["data", source, "--split", "train", "--output", &arrays]);
    assert!(written.status.success());
    let search = [
        "reduce",
        MODEL,
        "--data",
        &arrays,
        "--within",
        "4",
        "--dry-run",
    ];
    let document = json(&search);
    let chosen = &document["chosen"];
    // Half of 120 calibrate, of which every fifth is held out; the other half is scored.
    assert_eq!(chosen["scored"], 60);
    assert_eq!(document["sequences"], serde_json::json!([48, 12]));
    let tried = chosen["tried"].as_array().unwrap();
    let mut accepted = tried.iter().filter(|one| one["accepted"] == true);
    assert_eq!(accepted.next_back().unwrap()["times"], chosen["times"]);
    assert!(total(&document["size"]) as f64 <= total(&document["size_before"]) as f64 / 2.0);
    let full = document["before"]["accuracy"].as_f64().unwrap();
    let small = document["after"]["accuracy"].as_f64().unwrap();
    assert!(small >= full - 0.04);
    // Named twice, one set is split all the same.
    let document = json(&[&search[..], &["--calibrate", &arrays]].concat());
    assert_eq!(document["chosen"]["scored"], 60);
    let strict = [
        "reduce",
        MODEL,
        "--data",
        &arrays,
        "--within",
        "0",
        "--dry-run",
    ];
    let output = run(&[&strict[..], &["--only", "states", "--format", "json"]].concat());
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    match serde_json::from_slice::<Value>(&output.stdout) {
        Ok(document) => assert!(
            document["after"]["accuracy"].as_f64() >= document["before"]["accuracy"].as_f64()
        ),
        Err(_) => assert!(message.contains("no size is within 0 points"), "{message}"),
    }
}

#[test]
fn points_without_labels_and_comparisons_of_images_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("m.edge").display().to_string();
    assert!(run(&["pack", MODEL, "--output", &image]).status.success());
    let refused = |arguments: &[&str], words: &str| {
        let output = run(arguments);
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{message}");
        assert!(message.contains(words), "{message}");
    };
    let unlabelled = [
        "reduce",
        MODEL,
        "--calibrate",
        "waves",
        "--within",
        "1",
        "--dry-run",
    ];
    refused(&unlabelled, "--within is points of accuracy");
    let against = [
        "evaluate",
        &image,
        "--data",
        "waves:count=5",
        "--against",
        MODEL,
    ];
    refused(&against, "is an image, which is run one sample at a time");
}

#[test]
fn limits_that_are_kept_exit_with_zero_and_others_with_one() {
    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("m.edge").display().to_string();
    assert!(run(&["pack", MODEL, "--output", &image]).status.success());
    let data = ["--data", "waves:count=5,held_out=100", "--min-accuracy"];
    let code = |more: &[&str]| run(&[&["check", &image][..], more].concat()).status.code();
    assert_eq!(code(&["--max-bytes", "64KiB"]), Some(0));
    assert_eq!(code(&["--max-bytes", "10k"]), Some(1));
    for reached in ["90%", "90", "0.9"] {
        assert_eq!(code(&[&data[..], &[reached]].concat()), Some(0));
    }
    assert_eq!(code(&[&data[..], &["100"]].concat()), Some(1));
    assert_eq!(code(&[&data[..], &["110"]].concat()), Some(2));
    assert_eq!(code(&[]), Some(2));
    let document = json(&["check", MODEL, "--max-bytes", "1M"]);
    assert_eq!(document["kept"], true);
    // An image is scored without a word more.
    let scored = json(&["evaluate", &image, "--data", "waves:count=5,held_out=100"]);
    assert!(scored["accuracy"].as_f64().unwrap() > 0.9);
}
