//! The program's commands for other sequence models.

use std::process::{Command, Output};

use hankelite_archive::{Dtype, RawTensor, write_arrays};
use serde_json::Value;

/// A folder to work in.
pub(crate) struct Work(tempfile::TempDir);

impl Work {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    pub(crate) fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path(name), text).unwrap();
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_compress-model"));
        let command = command.args(arguments).current_dir(self.0.path());
        command.output().unwrap()
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.run(&[arguments, &["--format", "json", "-q"]].concat());
        let message = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{arguments:?}: {message}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Exit code 1, and every word in the message.
    pub(crate) fn refuses(&self, arguments: &[&str], words: &[&str]) {
        let output = self.run(arguments);
        let message = String::from_utf8_lossy(&output.stderr);
        // Words may be broken at the end of a line.
        let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        for word in words {
            assert!(message.contains(word), "{word:?} in {message}");
        }
    }

    pub(crate) fn pretrain(&self, config: &str) -> Value {
        self.write("config.toml", config);
        self.json(&["pretrain", "config.toml", "--output", "run"])
    }
}

pub(crate) fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

const GRU: &str = r#"
[model]
layer = "gru"
hidden = 8
layers = 2
inputs = 2
outputs = 1
pooling = "last"

[data]
source = "adding:length=10,count=200,held_out=50"

[train]
epochs = 2
schedule = "plateau"
plateau = 1
plateau_factor = 0.3
"#;

pub(crate) const MODEL: &str = "run/model.safetensors";

#[test]
fn a_baseline_is_trained_written_and_scored() {
    let work = Work::new();
    let record = work.pretrain(GRU);
    // Two layers of 3 (8 inputs' and 8 states' weights and two biases) for each unit, and the head.
    let count = 3 * 8 * (2 + 8 + 2) + 3 * 8 * (8 + 8 + 2) + 9;
    assert_eq!(record["parameters"], count);
    assert_eq!(record["recipe"]["plateau_factor"], 0.3);
    let data = "adding:length=10,count=200,held_out=50";
    let scored = work.json(&["evaluate", MODEL, "--data", data, "--split", "test"]);
    assert_eq!(
        (&scored["layer"], &scored["parameters"]),
        (&"gru".into(), &count.into())
    );
    assert_eq!(scored["examples"], 50);
    assert_eq!(scored["psnr"], Value::Null);
    let apart = number(&scored["loss"]) - number(&record["test"]["loss"]);
    assert!(apart.abs() < 1e-6, "{apart}");
}

#[test]
fn commands_for_state_spaces_say_what_the_file_is() {
    let work = Work::new();
    work.pretrain(GRU);
    let words = [
        "network of `gru` layers",
        "nothing to inspect, reduce or stream",
    ];
    work.refuses(&["inspect", MODEL], &words);
    work.refuses(
        &[
            "reduce",
            MODEL,
            "--order",
            "2",
            "--output",
            "small.safetensors",
        ],
        &words,
    );
    work.refuses(&["stream", MODEL], &words);
    let data = ["--data", "adding:length=10,count=20,held_out=5"];
    work.refuses(
        &[&["retrain", MODEL, "--output", "x.pth"], &data[..]].concat(),
        &words,
    );
    let against = [&["evaluate", MODEL, "--against", MODEL], &data[..]].concat();
    work.refuses(&against, &["scored alone"]);
    assert!(!std::path::Path::new(&work.path("small.safetensors")).exists());
}

#[test]
fn what_a_configuration_may_not_say_is_told() {
    let work = Work::new();
    let refuses = |from: &str, to: &str, words: &[&str]| {
        work.write("config.toml", &GRU.replace(from, to));
        work.refuses(&["pretrain", "config.toml", "--output", "run"], words);
    };
    refuses(
        "\"gru\"",
        "\"mamba\"",
        &[
            "`layer` is \"mamba\", expected one of `s4d`",
            "`gru`",
            "`reweighted`",
        ],
    );
    refuses(
        "layer = \"gru\"",
        "",
        &["missing field `layer`, expected one of `s4d`"],
    );
    refuses(
        "hidden",
        "channels",
        &["unknown field `channels`", "`hidden`"],
    );
    refuses(
        "\"gru\"",
        "\"s4d\"",
        &["unknown field `hidden`", "`channels`"],
    );
    refuses(
        "hidden = 8",
        "hidden = 0",
        &["`hidden` is 0, expected at least 1"],
    );
    refuses(
        "inputs = 2",
        "inputs = 3",
        &["the data have 2 numbers at each step"],
    );
    refuses(
        "plateau_factor = 0.3",
        "plateau_factor = 1.0",
        &["`plateau_factor` is 1, expected above 0 and below 1"],
    );
    refuses(
        "[train]",
        "[regularise]\nweight = 0.1\n[train]",
        &["[regularise]"],
    );
}

/// Images of 4 pixels, to be given back from 2 measurements.
fn images(work: &Work) {
    let (count, length, width) = (30, 5, 4);
    let pixels = (0..count * length * width).map(|i| 0.5 + 0.5 * ((i * i) as f64 * 0.37).sin());
    let shape = vec![count, length, width];
    let images = RawTensor::from_f64(Dtype::F32, shape, &pixels.collect::<Vec<_>>()).unwrap();
    let path = work.path("images.safetensors");
    let arrays = [("inputs", images.clone()), ("targets", images)];
    write_arrays(&path, arrays, "").unwrap();
}

#[test]
fn a_reconstruction_is_scored_in_decibels() {
    let work = Work::new();
    images(&work);
    let record = work.pretrain(
        r#"
        [model]
        layer = "rnn"
        hidden = 8
        layers = 1
        inputs = 4
        outputs = 4
        pooling = "none"
        measurements = 2
        output = "dictionary"
        [data]
        source = "images.safetensors"
        [train]
        epochs = 2
        batch = 5
        "#,
    );
    assert!(number(&record["validation"]["psnr"]) > 0.0);
    let scored = |limit: &str| {
        let data = ["--data", "images.safetensors", "--limit", limit];
        work.json(&[&["evaluate", MODEL], &data[..]].concat())
    };
    // Of one sequence the mean over sequences is that of the error itself.
    let one = scored("1");
    let expected = -10.0 * number(&one["loss"]).log10();
    assert!((number(&one["psnr"]) - expected).abs() < 1e-4, "{one}");
    // Of several it is more, as the logarithm is concave.
    let all = scored("30");
    assert!(number(&all["psnr"]) > -10.0 * number(&all["loss"]).log10());
}

#[test]
fn a_measured_state_space_network_is_written_with_one_encoder() {
    let work = Work::new();
    images(&work);
    let record = work.pretrain(
        r#"
        [model]
        layer = "s4d"
        channels = 6
        states = 2
        layers = 1
        inputs = 4
        outputs = 4
        pooling = "none"
        measurements = 2
        [data]
        source = "images.safetensors"
        [train]
        epochs = 2
        batch = 5
        "#,
    );
    assert!(
        record["notes"][0].as_str().unwrap().contains("the rank 2"),
        "{record}"
    );
    let checkpoint = hankelite::read(work.path(MODEL), &Default::default()).unwrap();
    let Some(hankelite::model::Encoder::Linear(encoder)) = checkpoint.model.encoder() else {
        panic!("a linear encoder");
    };
    let sigma = nalgebra::DMatrix::clone(&encoder.weight).singular_values();
    assert!(sigma[1] > 1e-3 && sigma[2] < 1e-6, "{sigma}");
    // The file answers as the network that was trained.
    let scored = work.json(&["evaluate", MODEL, "--data", "images.safetensors"]);
    assert!(number(&scored["loss"]) > 0.0 && scored["psnr"].is_number());
    let held = number(&record["validation"]["psnr"]);
    assert!(
        (number(&scored["psnr"]) - held).abs() < 3.0,
        "{scored} {record}"
    );
    work.write("bad.toml", "[model]\nlayer = \"s4d\"\nchannels = 2\nstates = 2\nlayers = 1\nvocabulary = 4\noutputs = 2\nmeasurements = 2\n[data]\nsource = \"copy:lag=2\"\n");
    work.refuses(
        &["pretrain", "bad.toml", "--output", "other"],
        &["`measurements` are of numbers"],
    );
}

/// Specification C12 in small: below the answers that do not look at the input.
#[test]
fn trained_networks_beat_the_trivial_answers() {
    let work = Work::new();
    let baselines = [("adding", 1.0 / 6.0), ("copy", 10.0 * 8f64.ln() / 22.0)];
    for (task, trivial) in baselines {
        for layer in ["gru", "lstm", "indrnn", "s4d"] {
            let size = match layer {
                "s4d" => "channels = 32\nstates = 8",
                _ => "hidden = 32",
            };
            let data = match task {
                "adding" => {
                    "inputs = 2\noutputs = 1\npooling = \"last\"\n[data]\nsource = \"adding:length=10,count=1000,held_out=200\""
                }
                _ => {
                    "vocabulary = 10\noutputs = 10\npooling = \"none\"\n[data]\nsource = \"copy:lag=2,count=1000,held_out=200\""
                }
            };
            let run = format!("{task}-{layer}");
            work.write(
                "config.toml",
                &format!(
                    "[model]\nlayer = \"{layer}\"\n{size}\nlayers = 1\n{data}\n[train]\nepochs = 25\n\
                     batch = 20\nlr = 0.01\nweight_decay = 0.0\nclip = 1.0\n"
                ),
            );
            let record = work.json(&["pretrain", "config.toml", "--output", &run]);
            let loss = number(&record["test"]["loss"]);
            assert!(loss < 0.95 * trivial, "{run}: {loss}, trivial {trivial}");
        }
    }
}
