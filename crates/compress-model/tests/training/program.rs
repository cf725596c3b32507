//! The program: settings, runs that are stopped or killed, what is refused.

use std::path::Path;

use crate::points::points;

/// The program on a small task: classes of points, four steps each.
pub(crate) struct Program(tempfile::TempDir);

const CONFIG: &str = r#"
[model]
layer = "s4d"
channels = 4
states = 3
layers = 2
inputs = 2
outputs = 3
dropout = 0.1

[data]
source = "POINTS"
hold_out = 0.2

[train]
epochs = 8
batch = 16
lr = 0.02
snapshot_every = 1
seed = 3
"#;

impl Program {
    pub(crate) fn new(count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        points(folder.path(), count);
        let program = Self(folder);
        program.config(CONFIG);
        program
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Writes `config.toml`.
    pub(crate) fn config(&self, text: &str) {
        let text = text.replace("POINTS", &self.path("points.safetensors"));
        std::fs::write(self.path("config.toml"), text).unwrap();
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_compress-model"));
        command.args(arguments).current_dir(self.0.path());
        command.stdout(std::process::Stdio::null());
        command.stderr(std::process::Stdio::null());
        command
    }

    pub(crate) fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let arguments = [arguments, &["--format", "json", "-q"]].concat();
        let mut command = self.command(&arguments);
        let output = command
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {message}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Exit code 1, and every word in the message.
    pub(crate) fn refuses(&self, arguments: &[&str], words: &[&str]) {
        let mut command = self.command(arguments);
        let output = command
            .stderr(std::process::Stdio::piped())
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        for word in words {
            assert!(message.contains(word), "{word:?} in {message}");
        }
    }

    /// Writes the points without their labels to `bare.safetensors`.
    pub(crate) fn bare(&self) {
        let points = self.path("points.safetensors");
        let archive = hankelite_archive::Archive::open(Path::new(&points)).unwrap();
        let inputs = archive.tensor("inputs").unwrap();
        let bare = self.path("bare.safetensors");
        hankelite_archive::write_arrays(Path::new(&bare), [("inputs", inputs)], "").unwrap();
    }

    pub(crate) fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }
}

pub(crate) fn loss(report: &serde_json::Value) -> f64 {
    report["loss"].as_f64().unwrap()
}

const PRETRAIN: [&str; 4] = ["pretrain", "config.toml", "--output", "run"];

#[test]
fn the_program_pretrains() {
    let program = Program::new(120);
    let record = program.json(&PRETRAIN);
    let history = record["history"].as_array().unwrap();
    assert_eq!(history.len(), 8);
    let validated = |entry: &serde_json::Value| entry["validation_loss"].as_f64().unwrap();
    let best = history.iter().map(validated).fold(f64::INFINITY, f64::min);
    let measured = loss(&record["validation"]);
    assert!((best - measured).abs() < 1e-6, "{best} {measured}");
    assert!(best < 0.5 * validated(&history[0]), "{history:?}");
    for file in [
        "config.toml",
        "metrics.jsonl",
        "last.safetensors",
        "best.safetensors",
    ] {
        assert!(!program.bytes(&format!("run/{file}")).is_empty(), "{file}");
    }
    let kept: serde_json::Value =
        serde_json::from_slice(&program.bytes("run/record.json")).unwrap();
    assert_eq!(kept, record);
}

#[test]
fn rates_of_zero_change_nothing_and_the_host_finds_the_same_loss() {
    let program = Program::new(120);
    program.json(&PRETRAIN);
    let model = "run/model.safetensors";
    let before = program.json(&["evaluate", model, "--data", "points.safetensors"]);
    let still = "[data]\nsource = \"POINTS\"\nhold_out = 0.9\n\n\
                 [train]\nepochs = 1\nbatch = 5\nlr = 0.0\nlr_dynamics = 0.0\n";
    program.config(still);
    let retrain = [
        "retrain",
        model,
        "--config",
        "config.toml",
        "--output",
        "same.pth",
    ];
    let record = program.json(&retrain);
    assert_eq!(record["before"], record["validation"]);
    let after = program.json(&["evaluate", "same.pth", "--data", "points.safetensors"]);
    assert!((loss(&before) - loss(&after)).abs() < 1e-6);
    // The network in single precision, the host in double precision, on all points.
    let all = still.replace("epochs = 1", "epochs = 1\nprecision = \"f64\"");
    program.config(&all);
    let retrain = [
        "retrain",
        model,
        "--config",
        "config.toml",
        "--output",
        "double.pth",
    ];
    let double = program.json(&retrain);
    let (single, double) = (loss(&record["validation"]), loss(&double["validation"]));
    assert!(
        single != double && (single - double).abs() < 1e-6,
        "{single} {double}"
    );
}

#[test]
fn a_reduced_model_is_trained_further_in_its_layout() {
    let program = Program::new(120);
    program.json(&PRETRAIN);
    let model = "run/model.safetensors";
    program.json(&["reduce", model, "--order", "1", "--output", "small.pth"]);
    let data = [
        "--data",
        "points.safetensors",
        "--epochs",
        "3",
        "--lr",
        "0.01",
    ];
    let retrain = ["retrain", "small.pth", "--output", "better.pth"];
    let record = program.json(&[&retrain[..], &data].concat());
    assert!(
        loss(&record["validation"]) < loss(&record["before"]),
        "{record}"
    );
    let names = |file: &str| {
        let archive = hankelite_archive::Archive::open(Path::new(&program.path(file))).unwrap();
        let shape = |name: &str| (name.to_string(), archive.shape(name).unwrap().to_vec());
        archive.names().map(shape).collect::<Vec<_>>()
    };
    assert_eq!(names("small.pth"), names("better.pth"));
}

#[test]
fn a_network_in_both_directions_is_trained_written_reduced_and_trained_again() {
    let program = Program::new(120);
    program.config(&CONFIG.replace("states = 3", "states = 3\nbidirectional = true"));
    let record = program.json(&PRETRAIN);
    let history = record["history"].as_array().unwrap();
    let first = history[0]["validation_loss"].as_f64().unwrap();
    assert!(loss(&record["validation"]) < first, "{record}");
    let model = "run/model.safetensors";
    let scored = program.json(&["evaluate", model, "--data", "points.safetensors"]);
    assert!(scored["accuracy"].as_f64().unwrap() > 0.6, "{scored}");
    program.json(&["reduce", model, "--order", "2", "--output", "small.pth"]);
    let retrain = [
        "retrain",
        "small.pth",
        "--teacher",
        model,
        "--output",
        "better.pth",
    ];
    let data = ["--data", "points.safetensors", "--epochs", "4"];
    let record = program.json(&[&retrain[..], &data].concat());
    assert!(
        loss(&record["validation"]) < loss(&record["before"]),
        "{record}"
    );
    // The host runs what was written to the same loss.
    let again = program.json(&["evaluate", "better.pth", "--data", "points.safetensors"]);
    assert!(again["accuracy"].as_f64().unwrap() > 0.6, "{again}");
}

/// A network with its reduction and the points without labels.
fn reduced(program: &Program) {
    program.json(&PRETRAIN);
    let model = "run/model.safetensors";
    program.json(&["reduce", model, "--order", "1", "--output", "small.pth"]);
    program.bare();
}

const TAUGHT: [&str; 6] = [
    "retrain",
    "small.pth",
    "--teacher",
    "run/model.safetensors",
    "--data",
    "bare.safetensors",
];

#[test]
fn a_teacher_is_enough_and_nothing_is_lost_by_it() {
    let program = Program::new(200);
    reduced(&program);
    let record = program.json(&[&TAUGHT[..], &["--output", "better.pth"]].concat());
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    let (before, after) = (&record["before"], &record["validation"]);
    assert!(
        number(&after["distance"]) < number(&before["distance"]),
        "{record}"
    );
    assert!(
        number(&after["agreement"]) >= number(&before["agreement"]),
        "{record}"
    );
    assert!(before["accuracy"].is_null(), "there are no labels");
    let trial = &record["trial"];
    let tried = trial["tried"].as_array().unwrap();
    // Searched for from 1 upwards, and further where that is not enough.
    assert_eq!(number(&tried[0]["factor"]), 1.0);
    assert!(tried.len() >= 3, "{trial}");
    assert_eq!(trial["start"], before["distance"]);
    let best = tried.iter().map(|tried| number(&tried["value"]));
    let best = best.fold(f64::INFINITY, f64::min);
    let taken = tried
        .iter()
        .find(|tried| tried["factor"] == trial["factor"])
        .unwrap();
    assert!(number(&taken["value"]) <= 1.25 * best, "{trial}");
    assert_eq!(record["recipe"]["lr"], taken["lr"]);
    assert_eq!(record["recipe"]["monitor"], "teacher");
    // A label counts where there is one.
    let labelled = [
        &TAUGHT[..5],
        &[
            "points.safetensors",
            "--seed",
            "1",
            "--output",
            "labelled.pth",
        ],
    ]
    .concat();
    let record = program.json(&labelled);
    // It counts alone at the end, and decides which epoch is the best.
    assert_eq!(record["recipe"]["monitor"], "loss");
    assert!(
        loss(&record["validation"]) <= loss(&record["before"]),
        "{record}"
    );
    let bare = [
        "retrain",
        "small.pth",
        "--data",
        "bare.safetensors",
        "--output",
        "no.pth",
    ];
    program.refuses(&bare, &["no labels", "no teacher"]);
}

#[test]
fn a_start_that_is_not_bettered_is_written_and_reported() {
    let program = Program::new(60);
    reduced(&program);
    let still = ["--lr", "0", "--epochs", "2", "--output", "same.pth"];
    let record = program.json(&[&TAUGHT[..], &still].concat());
    assert_eq!(record["best"]["epoch"], 0);
    assert_eq!(record["before"], record["validation"]);
    assert!(record["trial"].is_null());
    let note = record["notes"][0].as_str().unwrap();
    assert!(note.contains("brought nothing"), "{note}");
    let tensors = |file: &str| {
        let archive = hankelite_archive::Archive::open(Path::new(&program.path(file))).unwrap();
        let bytes = |name: &str| archive.tensor(name).unwrap().bytes().to_vec();
        archive.names().map(bytes).collect::<Vec<_>>()
    };
    assert_eq!(tensors("small.pth"), tensors("same.pth"));
}

#[test]
fn a_retraining_that_was_killed_anywhere_goes_on_to_the_same_bytes() {
    let program = Program::new(200);
    reduced(&program);
    let run =
        |name: &'static str| [&TAUGHT[..], &["-q", "--epochs", "4", "--output", name]].concat();
    assert!(
        program
            .command(&run("whole.safetensors"))
            .status()
            .unwrap()
            .success()
    );
    killed_until_done(&program, &run("killed.safetensors"), "killed.run");
    assert_eq!(
        program.bytes("whole.safetensors"),
        program.bytes("killed.safetensors")
    );
}

#[test]
fn a_program_that_was_killed_anywhere_goes_on_to_the_same_bytes() {
    let program = Program::new(200);
    let whole = ["pretrain", "config.toml", "--output", "whole", "-q"];
    assert!(program.command(&whole).status().unwrap().success());
    let run = ["pretrain", "config.toml", "--output", "killed", "-q"];
    killed_until_done(&program, &run, "killed");
    assert_eq!(
        program.bytes("whole/model.safetensors"),
        program.bytes("killed/model.safetensors")
    );
    let left = std::fs::read_dir(program.path("killed")).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(!left.into_iter().any(|name| name.ends_with(".part")));
}

#[test]
fn a_network_becomes_smaller_while_it_is_trained_and_kills_change_no_byte() {
    let program = Program::new(200);
    let text = CONFIG.replace("states = 3", "states = 12");
    program.config(&format!(
        "{text}\n[reduce]\nenergy = 0.9\ntolerance = 10.0\n"
    ));
    let whole = ["pretrain", "config.toml", "--output", "whole"];
    let record = program.json(&whole);
    let cuts = record["cuts"].as_array().unwrap();
    let last = cuts.last().unwrap();
    assert_eq!(last["kept"], true, "{cuts:?}");
    assert!(
        cuts.iter().all(|cut| cut["epoch"].as_u64() <= Some(4)),
        "{cuts:?}"
    );
    let model = program.path("whole/model.safetensors");
    let spectrum = program.json(&["inspect", &model]);
    let orders = spectrum["layers"].as_array().unwrap().iter();
    let orders: Vec<u64> = orders
        .map(|layer| layer["order"].as_u64().unwrap())
        .collect();
    assert_eq!(serde_json::json!(orders), last["orders"]);
    assert!(orders.iter().all(|&order| order < 12), "{orders:?}");
    let scored = program.json(&[
        "evaluate",
        &model,
        "--data",
        &program.path("points.safetensors"),
    ]);
    assert!(scored["accuracy"].as_f64() > Some(0.9), "{scored}");
    let run = ["pretrain", "config.toml", "--output", "killed", "-q"];
    killed_until_done(&program, &run, "killed");
    assert_eq!(
        program.bytes("whole/model.safetensors"),
        program.bytes("killed/model.safetensors")
    );
}

#[test]
fn networks_that_cannot_become_smaller_on_the_way_are_named() {
    let program = Program::new(60);
    let refused = |text: &str, words: &[&str]| {
        program.config(&format!("{text}\n[reduce]\n"));
        let place = program.path("run");
        std::fs::remove_dir_all(&place).ok();
        program.refuses(&PRETRAIN, words);
        assert!(!Path::new(&place).exists(), "nothing was begun");
    };
    refused(
        &CONFIG.replace("s4d", "dss-softmax"),
        &["[reduce]", "S4D or DSS-exp"],
    );
    refused(
        &CONFIG.replace("hold_out = 0.2", "hold_out = 0"),
        &["reduce", "validation"],
    );
    refused(
        &CONFIG.replace("dropout = 0.1", "measurements = 1"),
        &["[reduce]", "measurements"],
    );
}

/// Kills the program some milliseconds after its start, later each time, and resumes it.
pub(crate) fn killed_until_done(program: &Program, run: &[&str], folder: &str) {
    let mut kills = 0;
    loop {
        let mut arguments = run.to_vec();
        if Path::new(&program.path(&format!("{folder}/config.toml"))).exists() {
            arguments.push("--resume");
        }
        let mut child = program.command(&arguments).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(40 + 31 * kills));
        if child
            .try_wait()
            .unwrap()
            .is_some_and(|status| status.success())
        {
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        if kills == 6 {
            arguments.retain(|argument| *argument != "--resume");
            arguments.push("--resume");
            assert!(program.command(&arguments).status().unwrap().success());
            break;
        }
    }
    assert!(kills > 0);
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_step_and_the_run_goes_on_to_the_same_bytes() {
    let program = Program::new(200);
    program.config(
        &CONFIG
            .replace("epochs = 8", "epochs = 40")
            .replace("every = 1", "every = 0"),
    );
    let whole = ["pretrain", "config.toml", "--output", "whole", "-q"];
    assert!(program.command(&whole).status().unwrap().success());
    let stopped = ["pretrain", "config.toml", "--output", "stopped", "-q"];
    let mut child = program.command(&stopped).spawn().unwrap();
    // Once there are metrics, the training runs.
    while !Path::new(&program.path("stopped/metrics.jsonl")).exists() {
        assert!(
            child.try_wait().unwrap().is_none(),
            "ended before it was stopped"
        );
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let signal = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(signal.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!Path::new(&program.path("stopped/model.safetensors")).exists());
    let resumed = [&stopped[..], &["--resume"]].concat();
    assert!(program.command(&resumed).status().unwrap().success());
    assert_eq!(
        program.bytes("whole/model.safetensors"),
        program.bytes("stopped/model.safetensors")
    );
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let program = Program::new(60);
    for threads in ["1", "2"] {
        let run = [
            "pretrain",
            "config.toml",
            "-q",
            "--threads",
            threads,
            "--output",
            threads,
        ];
        assert!(program.command(&run).status().unwrap().success());
    }
    assert_eq!(
        program.bytes("1/model.safetensors"),
        program.bytes("2/model.safetensors")
    );
}

#[test]
fn settings_that_cannot_work_are_told_before_training() {
    let program = Program::new(60);
    let cases: [(&str, &str, &[&str]); 13] = [
        ("batch = 16", "batch = 49", &["a batch of 49", "1 to 48"]),
        (
            "batch = 16",
            "batsh = 16",
            &["unknown field `batsh`", "`batch`", "config.toml"],
        ),
        ("batch = 16", "batch = -1", &["config.toml", "batch = -1"]),
        ("lr = 0.02", "lr = 2.0", &["`lr` is 2, expected 0 to 1"]),
        (
            "seed = 3",
            "warmup = 100",
            &["`warmup` is 100 steps", "at most 24"],
        ),
        ("seed = 3", "steps = 3", &["`epochs` and `steps`"]),
        (
            "inputs = 2",
            "inputs = 3",
            &["2 numbers at each step", "takes 3"],
        ),
        (
            "inputs = 2",
            "vocabulary = 9",
            &["the data are numbers", "takes tokens"],
        ),
        (
            "outputs = 3",
            "outputs = 2",
            &["labels up to 2", "2 classes"],
        ),
        ("channels = 4", "channels = 0", &["`channels` is 0"]),
        (
            "layer = \"s4d\"",
            "layer = \"dss-softmax\"\nbidirectional = true",
            &["bidirectional"],
        ),
        (
            "hold_out = 0.2",
            "hold_out = 0.95",
            &["`hold_out` is 0.95", "0 to 0.9"],
        ),
        (
            "hold_out = 0.2\n\n[train]",
            "hold_out = 0.0\n\n[train]\npatience = 1",
            &["patience"],
        ),
    ];
    for (from, to, words) in cases {
        program.config(&CONFIG.replace(from, to));
        program.refuses(&PRETRAIN, words);
        assert!(!Path::new(&program.path("run")).exists(), "{to}");
    }
}

#[test]
fn places_that_cannot_work_are_told_before_training() {
    let program = Program::new(60);
    program.refuses(
        &["pretrain", "missing.toml", "--output", "run"],
        &["missing.toml"],
    );
    if !cfg!(feature = "cuda") {
        let device = [&PRETRAIN[..], &["--device", "cuda:1"]].concat();
        program.refuses(&device, &["cuda:1", "without the feature `cuda`"]);
    }
    let resume = [&PRETRAIN[..], &["--resume"]].concat();
    program.refuses(&resume, &["no run to continue"]);
    let beneath = [
        "pretrain",
        "config.toml",
        "--output",
        "points.safetensors/run",
    ];
    program.refuses(&beneath, &["points.safetensors/run"]);
    assert!(program.command(&PRETRAIN).status().unwrap().success());
    program.refuses(&PRETRAIN, &["not empty", "--resume"]);
    program.config(&CONFIG.replace("lr = 0.02", "lr = 0.03"));
    program.refuses(&resume, &["other settings", "lr = 0.03", "lr = 0.02"]);
}

#[test]
fn the_softmax_kernel_is_retrained_at_its_own_length_only() {
    let program = Program::new(60);
    // The softmax kernel holds for its own length.
    program.config(&CONFIG.replace("s4d", "dss-softmax"));
    let softmax = ["pretrain", "config.toml", "--output", "softmax", "-q"];
    assert!(program.command(&softmax).status().unwrap().success());
    let model = "softmax/model.safetensors";
    let long = [
        "retrain",
        model,
        "--length",
        "9",
        "--data",
        "points.safetensors",
        "--output",
        "out.pth",
    ];
    program.refuses(&long, &["declared for L = 9", "4"]);
    let no_data = ["retrain", model, "--output", "out.pth"];
    program.refuses(&no_data, &["--data"]);
}
