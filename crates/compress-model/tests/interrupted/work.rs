//! A folder to work in, and the commands that run there.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::files::{Files, INDEX, files, remove};

pub(crate) const WAVES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/waves/model.safetensors"
);

/// Of networks that train in a second.
pub(crate) const CONFIG: &str = r#"
[model]
layer = "s4d"
channels = 4
states = 3
layers = 2
inputs = 1
outputs = 10
dropout = 0.1

[data]
source = "waves:length=32,count=240,held_out=40"

[train]
epochs = 4
batch = 16
lr = 0.02
snapshot_every = 3
"#;

/// A folder to work in.
pub(crate) struct Work(tempfile::TempDir);

impl Work {
    pub(crate) fn new() -> Self {
        let work = Self(tempfile::tempdir().unwrap());
        std::fs::write(work.path("config.toml"), CONFIG).unwrap();
        work
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_compress-model"));
        command.args(arguments).arg("-q").current_dir(self.0.path());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        command.stderr(Stdio::piped()).output().unwrap()
    }

    /// Runs to the end.
    pub(crate) fn done(&self, arguments: &[&str]) {
        let output = self.output(arguments);
        let message = message(&output);
        assert!(output.status.success(), "{arguments:?}: {message}");
    }

    /// What a run to the end writes into a place, which is then as it was before.
    pub(crate) fn written(&self, arguments: &[&str], place: &str) -> Files {
        self.done(arguments);
        let files = files(&self.path(place));
        remove(&self.path(place));
        files
    }
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Exit code 1 and every word in the message, which does not name a temporary file.
pub(crate) fn refused(output: &Output, words: &[&str]) {
    let message = message(output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} in {message}");
    }
    assert!(!message.contains(".part"), "{message}");
}

/// A sharded checkpoint to start from.
pub(crate) fn sharded() -> Work {
    let work = Work::new();
    std::fs::create_dir(work.path("source")).unwrap();
    let index = format!("source/{INDEX}");
    work.done(&["reduce", WAVES, "--order", "16", "--output", &index]);
    work
}

pub(crate) const PRETRAIN: [&str; 4] = ["pretrain", "config.toml", "--output", "run"];

/// Retrains a reduced network with its teacher.
pub(crate) const RETRAIN: [&str; 10] = [
    "retrain",
    "small.pth",
    "--teacher",
    "run/model.safetensors",
    "--data",
    "waves:length=32,count=240,held_out=40",
    "--epochs",
    "3",
    "--output",
    "better.safetensors",
];

pub(crate) fn reduced() -> Work {
    let work = Work::new();
    work.done(&PRETRAIN);
    let model = "run/model.safetensors";
    work.done(&["reduce", model, "--order", "1", "--output", "small.pth"]);
    work
}

pub(crate) const PIPELINE: [&str; 4] = ["pipeline", "pipeline.toml", "--output", "all"];

pub(crate) fn pipeline() -> Work {
    let work = Work::new();
    let text = format!("seeds = [0]\narms = [\"reduced\", \"random\"]\n{CONFIG}");
    let text = text
        .replace("dropout = 0.1\n", "")
        .replace("epochs = 4", "epochs = 2");
    let pretrain = text.split_once("[train]").unwrap().1;
    let text = format!("{text}\n[pretrain]{pretrain}\n[reduce]\norders = [1]\n");
    std::fs::write(work.path("pipeline.toml"), text).unwrap();
    work
}

pub(crate) fn kills() -> usize {
    let number = std::env::var("HANKELITE_KILLS").ok();
    number.map_or(4, |number| number.parse().unwrap())
}
