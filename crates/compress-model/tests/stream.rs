//! `compress-model stream`, `pack`, `bench` and `evaluate --stream`.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../../../tests/common/mod.rs"]
mod common;

use std::fs;
use std::io::Write;
use std::process::{Command, Output, Stdio};

use hankelite::model::Model;
use hankelite::rounding::Storage;
use hankelite::stream::Runner;
use hankelite_onnx::Form;
use serde_json::Value;
use sha2::{Digest, Sha256};

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

/// A sound of 16 bits, as a WAV file and as raw samples, and the same numbers.
fn sound(file: &std::path::Path) -> (Vec<u8>, String) {
    let spec = hound::WavSpec {
        channels: 1,
        sample_rate: 8000,
        bits_per_sample: 16,
        sample_format: hound::SampleFormat::Int,
    };
    let samples: Vec<i16> = (0..64i32)
        .map(|k| ((k * 997 % 4001 - 2000) * 16) as i16)
        .collect();
    let mut writer = hound::WavWriter::create(file, spec).unwrap();
    samples
        .iter()
        .for_each(|x| writer.write_sample(*x).unwrap());
    writer.finalize().unwrap();
    let raw = samples.iter().flat_map(|x| x.to_le_bytes()).collect();
    let numbers = samples
        .iter()
        .map(|x| (f32::from(*x) / 32768.0).to_string());
    (raw, numbers.collect::<Vec<_>>().join(" "))
}

#[test]
fn sound_comes_from_a_pipe_too() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("noise.wav");
    let (raw, numbers) = sound(&file);
    let expected = program(&["stream", WAVES], numbers.as_bytes());
    assert_eq!(text(&expected.stdout).lines().count(), 64);
    let wav = std::fs::read(&file).unwrap();
    for (form, input) in [("s16", &raw), ("wav", &wav)] {
        let found = program(&["stream", WAVES, "--from", form], input);
        assert!(found.status.success(), "{}", text(&found.stderr));
        assert_eq!(text(&found.stdout), text(&expected.stdout), "{form}");
    }
    let cut = program(&["stream", WAVES, "--from", "s16"], &raw[..raw.len() - 1]);
    assert_eq!(cut.status.code(), Some(1));
    assert!(
        text(&cut.stderr).contains("standard input, number 64: the input ends within a number")
    );
    let none = program(&["stream", WAVES, "--from", "wav"], b"RIFF");
    assert_eq!(none.status.code(), Some(1));
    assert!(
        text(&none.stderr).contains("standard input"),
        "{}",
        text(&none.stderr)
    );
}

fn json_lines(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    let lines = text(&output.stdout);
    lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

#[test]
fn lines_of_json_have_the_time_of_their_sample() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("noise.wav");
    let (_, numbers) = sound(&file);
    let outputs = program(
        &["stream", WAVES, "--every", "16", "--format", "json"],
        numbers.as_bytes(),
    );
    let outputs: Vec<Value> = json_lines(&outputs);
    let jsonl = ["stream", WAVES, "--every", "16", "--to", "jsonl"];
    let lines = json_lines(&program(
        &[&jsonl[..], &["--input", file.to_str().unwrap()]].concat(),
        b"",
    ));
    assert_eq!(lines.len(), 4);
    for (index, line) in lines.iter().enumerate() {
        let step = 16 * (index + 1);
        assert_eq!(line["step"], step);
        assert_eq!(line["time"], (step - 1) as f64 / 8000.0);
        assert_eq!(line["outputs"], outputs[index]);
    }
    let of_hertz =
        |more: &[&str]| json_lines(&program(&[&jsonl[..], more].concat(), numbers.as_bytes()));
    assert_eq!(of_hertz(&["--hertz", "8000"]), lines);
    let classes = of_hertz(&["--class"]);
    assert_eq!(classes[0]["time"], Value::Null);
    assert!(classes[0]["class"].is_u64() && classes[0].get("outputs").is_none());
    let raw = program(&["stream", WAVES, "--class", "--to", "f32"], b"1");
    assert_eq!(raw.status.code(), Some(2), "{}", text(&raw.stderr));
}

#[test]
fn a_table_of_a_sensor_streams_by_its_headings() {
    let table = "t,volume,note\n0.5,0.25,a\n\n1.0,-0.5,b\n12:30,0.125,c\n";
    let csv = ["stream", WAVES, "--from", "csv", "--columns", "volume"];
    let found = program(&csv, table.as_bytes());
    let expected = program(&["stream", WAVES], b"0.25 -0.5 0.125");
    assert!(found.status.success(), "{}", text(&found.stderr));
    assert_eq!(text(&found.stdout), text(&expected.stdout));
    let timed = [&csv[..], &["--time", "t", "--to", "jsonl"]].concat();
    let lines = json_lines(&program(&timed, table.as_bytes()));
    let times: Vec<&Value> = lines.iter().map(|line| &line["time"]).collect();
    assert_eq!(
        times,
        [&Value::from(0.5), &Value::from(1.0), &Value::from("12:30")]
    );
    // A file's name says that it is one, with or without headings.
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("x.csv");
    std::fs::write(&file, "0.25\n-0.5\n0.125\n").unwrap();
    let named = program(&["stream", WAVES, "--input", file.to_str().unwrap()], b"");
    assert_eq!(text(&named.stdout), text(&expected.stdout));

    for (arguments, words) in [
        (
            &["--from", "csv"][..],
            "has 3 columns (choose with --columns), but the model takes 1",
        ),
        (
            &["--from", "csv", "--columns", "x"],
            "no column `x`, expected one of `t`, `volume`, `note`",
        ),
        (
            &["--from", "csv", "--columns", "note"],
            "line 2: found `a`, expected a finite number",
        ),
        (
            &["--columns", "t"],
            "--columns and --time need a table: --from csv",
        ),
    ] {
        let refused = program(&[&["stream", WAVES], arguments].concat(), table.as_bytes());
        assert_eq!(refused.status.code(), Some(1));
        assert!(
            text(&refused.stderr).contains(words),
            "{}",
            text(&refused.stderr)
        );
    }
}

/// The graph of a step, with what `export` records of the shipped model.
fn graph_of(model: &Model) -> Vec<u8> {
    let sha256 = Sha256::digest(fs::read(WAVES).unwrap());
    let sha256: String = sha256.iter().map(|byte| format!("{byte:02x}")).collect();
    let source = "model.safetensors".to_string();
    let metadata = [
        ("hankelite.source".to_string(), source),
        ("hankelite.source_sha256".to_string(), sha256),
    ];
    let storage = Storage::single(model);
    let exported = hankelite_onnx::export(model, &storage, Form::Step, &metadata);
    exported.unwrap().bytes
}

#[test]
fn another_rate_changes_the_steps_of_streams_and_images() {
    let checkpoint = hankelite::read(WAVES, &hankelite::Declared::default()).unwrap();
    let model = checkpoint.model_with_steps_times(2.0).unwrap();
    let mut runner = Runner::new(&model).unwrap();
    let (lines, plain) = tone();
    let numbers = lines.lines().map(|x| x.parse::<f32>().unwrap());
    let outputs: Vec<Vec<f32>> = numbers
        .map(|x| runner.step(&[x]).unwrap().to_vec())
        .collect();
    assert_ne!(outputs, plain);
    let shown = |outputs: &Vec<f32>| {
        let words: Vec<String> = outputs.iter().map(f32::to_string).collect();
        words.join(" ") + "\n"
    };
    let expected: String = outputs.iter().map(shown).collect();
    let streamed = program(&["stream", WAVES, "--rate", "16/8"], lines.as_bytes());
    assert_eq!(
        text(&streamed.stdout),
        expected,
        "{}",
        text(&streamed.stderr)
    );

    let folder = tempfile::tempdir().unwrap();
    let image = folder.path().join("half.edge");
    let image = image.to_str().unwrap();
    let packed = program(&["pack", WAVES, "--rate", "2", "--output", image], b"");
    assert!(packed.status.success(), "{}", text(&packed.stderr));
    let from_image = program(&["stream", image], lines.as_bytes());
    assert_eq!(text(&from_image.stdout), expected);

    let graph = folder.path().join("half.onnx");
    let graph = graph.to_str().unwrap();
    let exported = program(&["export", WAVES, "--rate", "2", "--onnx", graph], b"");
    assert!(exported.status.success(), "{}", text(&exported.stderr));
    let graph = fs::read(graph).unwrap();
    assert!(graph == graph_of(&model) && graph != graph_of(&checkpoint.model));

    let lru = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/data/flax/lru_tokens.safetensors"
    );
    for (file, rate, code, words) in [
        (image, "2", 1, "keeps the rate it was packed for"),
        (lru, "2", 1, "runs at one rate only: the layout LRU"),
        (WAVES, "0", 2, "expected a number above 0"),
    ] {
        let refused = program(&["stream", file, "--rate", rate], b"");
        assert_eq!(
            refused.status.code(),
            Some(code),
            "{}",
            text(&refused.stderr)
        );
        assert!(
            text(&refused.stderr).contains(words),
            "{}",
            text(&refused.stderr)
        );
    }
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
    for mixing in ["full", "bf16", "int8", "int4", "int3", "int2"] {
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
    assert_eq!(rows, ["full", "bf16", "int8", "int4", "int3", "int2"]);
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
