//! `compress-model stream`, `pack`, `bench` and `evaluate --stream`.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../../../tests/common/mod.rs"]
mod common;

use std::io::Write;
use std::process::{Command, Output, Stdio};

use hankelite::stream::Runner;
use serde_json::Value;

fn program(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_compress-model"));
    command.args(arguments).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    // A program that has enough closes the pipe.
    let _ = child.stdin.take().unwrap().write_all(input);
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

const WAVES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/waves/model.safetensors"
);

/// A tone as text, and what the library makes of it.
fn tone() -> (String, Vec<Vec<f32>>) {
    let model = hankelite::read(WAVES, &hankelite::Declared::default())
        .unwrap()
        .model;
    let mut runner = Runner::new(&model).unwrap();
    let samples: Vec<f32> = (0..50).map(|k| (0.3 * k as f32).sin()).collect();
    let lines: Vec<String> = samples.iter().map(f32::to_string).collect();
    let outputs = samples.iter().map(|&x| runner.step(&[x]).unwrap().to_vec());
    (lines.join("\n"), outputs.collect())
}

#[test]
fn the_program_streams_what_the_library_streams() {
    let (lines, expected) = tone();
    let numbers =
        |line: &str| -> Vec<f32> { line.split(' ').map(|y| y.parse().unwrap()).collect() };
    let output = program(&["stream", WAVES], lines.as_bytes());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let found: Vec<Vec<f32>> = text(&output.stdout).lines().map(numbers).collect();
    assert_eq!(found, expected);

    let some = program(&["stream", WAVES, "--every", "20"], lines.as_bytes());
    let some: Vec<Vec<f32>> = text(&some.stdout).lines().map(numbers).collect();
    assert_eq!(some, [expected[19].clone(), expected[39].clone()]);

    let raw: Vec<u8> = lines
        .lines()
        .flat_map(|x| x.parse::<f32>().unwrap().to_le_bytes())
        .collect();
    let last = ["stream", WAVES, "--from", "f32", "--to", "f32", "--last"];
    let last = program(&last, &raw).stdout;
    let last: Vec<f32> = last
        .as_chunks()
        .0
        .iter()
        .map(|b| f32::from_le_bytes(*b))
        .collect();
    assert_eq!(last, expected[49]);

    let json = program(
        &["stream", WAVES, "--last", "--format", "json"],
        lines.as_bytes(),
    );
    let json: Vec<f32> = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(json, expected[49]);

    let class = program(&["stream", WAVES, "--last", "--class"], lines.as_bytes());
    let class: usize = text(&class.stdout).trim().parse().unwrap();
    assert!(expected[49].iter().all(|y| *y <= expected[49][class]));
}

#[test]
fn bad_samples_are_named_and_a_closed_pipe_is_no_error() {
    let output = program(&["stream", WAVES], b"0.5 1\n2\n\n1e\n");
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        text(&output.stdout).lines().count(),
        3,
        "what was good was streamed"
    );
    let message = text(&output.stderr);
    assert!(
        message.contains("standard input, line 4: found `1e`, expected a finite number"),
        "{message}"
    );

    let missing = program(&["stream", WAVES, "--input", "no/such.wav"], b"");
    assert_eq!(missing.status.code(), Some(1));
    assert!(text(&missing.stderr).contains("no/such.wav"));

    let mut command = Command::new(env!("CARGO_BIN_EXE_compress-model"));
    command.args(["stream", WAVES]).stdin(Stdio::piped());
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    drop(child.stdout.take());
    let _ = child
        .stdin
        .take()
        .unwrap()
        .write_all(&b"0.5\n".repeat(20_000));
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn sound_streams_at_full_scale_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tone.wav");
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: 8000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let mut writer = hound::WavWriter::create(&file, spec).unwrap();
    let samples = [0i16, 8192, -16384, 32767];
    samples
        .iter()
        .for_each(|&sample| writer.write_sample(sample).unwrap());
    writer.finalize().unwrap();
    let sound = program(&["stream", WAVES, "--input", file.to_str().unwrap()], b"");
    assert!(sound.status.success(), "{}", text(&sound.stderr));
    let numbers = program(&["stream", WAVES], b"0 0.25 -0.5 0.999969482421875");
    assert_eq!(text(&sound.stdout), text(&numbers.stdout));
}

#[test]
fn an_image_runs_in_place_of_its_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("waves.edge");
    let image = file.to_str().unwrap();
    let packed = program(&["pack", WAVES, "--mixing", "int8", "--output", image], b"");
    assert!(packed.status.success(), "{}", text(&packed.stderr));
    let (lines, _) = tone();
    let direct = program(&["stream", WAVES, "--mixing", "int8"], lines.as_bytes());
    let from_image = program(&["stream", image], lines.as_bytes());
    assert_eq!(text(&from_image.stdout), text(&direct.stdout));
    let twice = program(&["stream", image, "--mixing", "bf16"], b"");
    assert_eq!(twice.status.code(), Some(1));
    assert!(text(&twice.stderr).contains("keeps the entries and numbers it was packed with"));
    // An image never takes the place of the checkpoint it is made from.
    let onto = program(&["pack", WAVES, "--output", WAVES], b"");
    assert_eq!(onto.status.code(), Some(1));

    let bench = [
        "bench",
        WAVES,
        "--against",
        image,
        "--steps",
        "20",
        "--format",
        "json",
    ];
    let bench: Value = serde_json::from_slice(&program(&bench, b"").stdout).unwrap();
    assert_eq!(
        bench["rows"][1]["weight_bytes"],
        std::fs::metadata(&file).unwrap().len()
    );
    for row in bench["rows"].as_array().unwrap() {
        for figure in [
            "median_us",
            "percentile_99_us",
            "samples_per_second",
            "floor_us",
        ] {
            assert!(row[figure].as_f64().unwrap() > 0.0, "{row}");
        }
    }
}

#[test]
fn every_kind_of_numbers_is_packed_and_measured() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("waves.edge");
    let image = file.to_str().unwrap();
    let mut sizes = Vec::new();
    for mixing in ["full", "bf16", "int8", "int4", "int3"] {
        let kinds = ["--mixing", mixing, "--numbers", "f16", "--group", "16"];
        let arguments = [&["pack", WAVES, "--output", image][..], &kinds].concat();
        let packed = program(&arguments, b"");
        assert!(packed.status.success(), "{}", text(&packed.stderr));
        assert!(text(&packed.stdout).contains("channels side by side in each layer: 16, 16"));
        sizes.push(std::fs::metadata(&file).unwrap().len());
    }
    // Three bits take as much as four where 16 inputs share a scale.
    assert!(sizes.is_sorted_by(|a, b| a >= b), "{sizes:?}");
    assert_eq!(sizes[3], sizes[4]);
    let bench = program(
        &[
            "bench", WAVES, "--mixing", "all", "--steps", "20", "--format", "json",
        ],
        b"",
    );
    let bench: Value = serde_json::from_slice(&bench.stdout).unwrap();
    let rows = bench["rows"].as_array().unwrap().iter();
    let rows: Vec<&str> = rows.map(|row| row["mixing"].as_str().unwrap()).collect();
    assert_eq!(rows, ["full", "bf16", "int8", "int4", "int3"]);
    let odd = program(
        &["stream", WAVES, "--mixing", "int8", "--group", "24"],
        b"0",
    );
    assert_eq!(odd.status.code(), Some(1));
    assert!(text(&odd.stderr).contains("groups of 24 inputs, expected a multiple of 16"));
}

/// The bundled model with some names changed.
fn renamed(folder: &std::path::Path, rename: impl Fn(&str) -> String) -> String {
    let bytes = std::fs::read(WAVES).unwrap();
    let (_, metadata) = safetensors::SafeTensors::read_metadata(&bytes).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let renamed = tensors.iter().map(|(name, view)| (rename(name), view));
    let file = folder.join("renamed.safetensors");
    let metadata = metadata.metadata().clone();
    safetensors::serialize_to_file(renamed, metadata, &file).unwrap();
    file.to_str().unwrap().to_string()
}

#[test]
fn layers_out_of_an_unknown_network_are_not_run_as_if_they_were_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = renamed(folder.path(), |name| {
        let name = name
            .replace("encoder.", "front.")
            .replace("decoder.", "back.");
        name.replace("s4_layers.", "stack.")
    });
    let image = folder.path().join("wrong.edge");
    let image_name = image.to_str().unwrap();
    let commands: [&[&str]; 3] = [
        &["pack", &file, "--output", image_name],
        &["stream", &file],
        &["bench", &file, "--steps", "10"],
    ];
    let mut packed = false;
    for command in commands {
        let refused = program(command, b"");
        assert_eq!(refused.status.code(), Some(1), "{command:?}");
        let words = text(&refused.stderr);
        assert!(words.contains("layers alone were read"), "{words}");
        assert!(words.contains("tensors are not understood: `"), "{words}");
        assert!(words.contains("--layers-only"), "{words}");
        assert!(!image.exists());
        let anyway = program(&[command, &["--layers-only"]].concat(), b"");
        assert!(anyway.status.success(), "{}", text(&anyway.stderr));
        packed |= std::fs::remove_file(&image).is_ok();
    }
    assert!(packed);
    // Nor does a reduction write them as an image.
    let command = ["reduce", &file, "--calibrate", "waves", "--order", "4"];
    let refused = program(&[&command[..], &["--image", image_name]].concat(), b"");
    assert_eq!(refused.status.code(), Some(1));
    let words = text(&refused.stderr);
    assert!(words.contains("tensors are not understood: `"), "{words}");
    assert!(!image.exists());
}

#[test]
fn streaming_scores_as_the_convolution_to_the_sequence() {
    let data = ["--data", "waves", "--limit", "200", "--format", "json"];
    let evaluate = |model: &str, more: &[&str]| -> Value {
        let output = program(
            &[&["evaluate", model, "--stream"], &data[..], more].concat(),
            b"",
        );
        assert!(output.status.success(), "{}", text(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    };
    let report = evaluate(WAVES, &[]);
    let convolution = &report["convolution"];
    assert_eq!(report["accuracy"], convolution["accuracy"]);
    assert_eq!(convolution["agreement"], 1.0);
    assert!(convolution["max_difference"].as_f64().unwrap() < 1e-3);
    let small = evaluate(WAVES, &["--mixing", "int8"]);
    assert!(small["weight_bytes"].as_f64() < report["weight_bytes"].as_f64());
    assert!(small["convolution"]["agreement"].as_f64().unwrap() > 0.97);
}

#[test]
#[ignore = "needs data sets and checkpoints beside the project"]
fn a_published_checkpoint_streams_to_the_image() {
    let files = ["data/checkpoints/gevorgyg/ckpt.pth", "data/mnist"];
    let [checkpoint, mnist] = files.map(common::shared);
    let data = format!("mnist:{}", mnist.display());
    let arguments = [
        "evaluate",
        checkpoint.to_str().unwrap(),
        "--stream",
        "--data",
        &data,
    ];
    let arguments = [&arguments[..], &["--limit", "300", "--format", "json"]].concat();
    let output = program(&arguments, b"");
    assert!(output.status.success(), "{}", text(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["accuracy"], report["convolution"]["accuracy"]);
    assert_eq!(report["convolution"]["agreement"], 1.0);
}
