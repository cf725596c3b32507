//! The program killed at any moment, out of space, without leave to write, and run twice at once:
//! what it writes is there whole or not at all, and a run that is resumed ends in the same bytes.
//!
//! `HANKELITE_KILLS=200 cargo test --release -p compress-model --test interrupted -- --nocapture
//! --test-threads 1` kills every command 200 times and shows where the kills met it; the default
//! is four times, which is quick.
#![cfg(all(target_os = "linux", feature = "train"))]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
#![allow(clippy::print_stderr, reason = "the full form shows what it met")]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const WAVES: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../models/waves/model.safetensors"
);

/// Of networks that train in a second.
const CONFIG: &str = r#"
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

/// The name of the index of a sharded checkpoint.
const INDEX: &str = "model.safetensors.index.json";

/// Bytes of files by their paths below a folder.
type Files = BTreeMap<String, Vec<u8>>;

/// A folder to work in.
struct Work(tempfile::TempDir);

impl Work {
    fn new() -> Self {
        let work = Self(tempfile::tempdir().unwrap());
        std::fs::write(work.path("config.toml"), CONFIG).unwrap();
        work
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_compress-model"));
        command.args(arguments).arg("-q").current_dir(self.0.path());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    }

    fn output(&self, arguments: &[&str]) -> Output {
        let mut command = self.command(arguments);
        command.stderr(Stdio::piped()).output().unwrap()
    }

    /// Runs to the end.
    fn done(&self, arguments: &[&str]) {
        let output = self.output(arguments);
        let message = message(&output);
        assert!(output.status.success(), "{arguments:?}: {message}");
    }

    /// What a run to the end writes into a place, which is then as it was before.
    fn written(&self, arguments: &[&str], place: &str) -> Files {
        self.done(arguments);
        let files = files(&self.path(place));
        remove(&self.path(place));
        files
    }
}

fn message(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// All files below a folder, or the one at the path, under the empty name.
fn files(place: &Path) -> Files {
    let mut found = Files::new();
    if place.is_file() {
        found.insert(String::new(), std::fs::read(place).unwrap());
    }
    if !place.is_dir() {
        return found;
    }
    for entry in std::fs::read_dir(place).unwrap() {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        for (below, bytes) in files(&entry.path()) {
            let both = [name.as_str(), below.as_str()];
            found.insert(both.join("/").trim_end_matches('/').to_string(), bytes);
        }
    }
    found
}

/// The same files with the same bytes, which are too many for a message.
fn require_same(found: &Files, expected: &Files, run: &[&str]) {
    let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{run:?}");
    let other = found
        .iter()
        .find(|(name, bytes)| expected[*name] != **bytes);
    assert!(other.is_none(), "{run:?}: {:?} differs", other.unwrap().0);
}

fn remove(place: &Path) {
    match place.is_dir() {
        true => std::fs::remove_dir_all(place).unwrap(),
        false if place.exists() => std::fs::remove_file(place).unwrap(),
        false => {}
    }
}

/// A file below a folder; the empty name is that of the place itself.
fn below(place: &Path, name: &str) -> PathBuf {
    match name.is_empty() {
        true => place.to_path_buf(),
        false => place.join(name),
    }
}

fn put(place: &Path, contents: &Files) {
    for (name, bytes) in contents {
        let file = below(place, name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }
}

/// What a killed program leaves while it writes: `.hankelite-XXXXXX.part`, a file or a folder.
fn unfinished(place: &Path) -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir(place) else {
        return BTreeSet::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let part = |name: &String| name.starts_with(".hankelite-") && name.ends_with(".part");
    names.filter(part).collect()
}

fn kills() -> usize {
    let number = std::env::var("HANKELITE_KILLS").ok();
    number.map_or(4, |number| number.parse().unwrap())
}

fn is_full_form() -> bool {
    std::env::var_os("HANKELITE_KILLS").is_some()
}

/// Kills a program at random moments, and counts what it met.
struct Killer {
    random: ChaCha8Rng,
    whole: Duration,
    /// Kills before, while and after a file was written, and runs that ended by themselves.
    met: [usize; 4],
    start: Instant,
}

impl Killer {
    fn new(whole: Duration) -> Self {
        Self {
            random: ChaCha8Rng::seed_from_u64(0),
            whole,
            met: [0; 4],
            start: Instant::now(),
        }
    }

    fn kills(&self) -> usize {
        self.met[..3].iter().sum()
    }

    /// Kills at a random moment of the whole time, or every other time once something is being
    /// written into the folder, which takes a thousandth of it. Whether the program had ended, which it may only do well.
    fn kill(&mut self, mut child: Child, folder: &Path) -> bool {
        let before = unfinished(folder);
        let mut wrote = false;
        let limit = self.whole.mul_f64(self.random.random_range(0.0..1.1));
        let writing = self.kills() % 2 == 1;
        let start = Instant::now();
        while child.try_wait().unwrap().is_none() && (writing || start.elapsed() < limit) {
            wrote |= unfinished(folder).difference(&before).next().is_some();
            if writing && wrote {
                let more = self.random.random_range(0..3000);
                std::thread::sleep(Duration::from_micros(more));
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        // A program that ended first is not killed.
        let _ = child.kill();
        let code = child.wait().unwrap().code();
        assert!(
            matches!(code, None | Some(0)),
            "ended by itself with {code:?}"
        );
        let ended = code.is_some();
        let left = unfinished(folder).difference(&before).next().is_some();
        let met = match (ended, left, wrote) {
            (true, ..) => 3,
            (_, true, _) => 1,
            (_, _, true) => 2,
            _ => 0,
        };
        self.met[met] += 1;
        ended
    }

    fn show(&self, command: &str, place: &str) {
        let [before, during, after, ended] = self.met;
        let seconds = self.start.elapsed().as_secs_f64();
        eprintln!(
            "| `{command}`, {place} | {} | {before} | {during} | {after} | {ended} | {seconds:.0} |",
            self.kills()
        );
    }
}

/// Kills a command that writes into one place, where nothing or something older stands.
fn killed(work: &Work, run: &[&str], place: &str, old: &Files) {
    let start = Instant::now();
    let new = work.written(run, place);
    assert!(!new.is_empty() && new != *old, "{run:?}");
    let mut killer = Killer::new(start.elapsed());
    let path = work.path(place);
    let folder = match path.is_dir() || new.contains_key(INDEX) && !old.is_empty() {
        true => path.clone(),
        false => work.path(""),
    };
    let mut round = 0;
    while killer.kills() < kills() {
        round += 1;
        let old = if round % 2 == 0 {
            old.clone()
        } else {
            Files::new()
        };
        for name in new.keys() {
            remove(&below(&path, name));
        }
        put(&path, &old);
        killer.kill(work.command(run).spawn().unwrap(), &folder);
        let mut found = files(&path);
        found.retain(|name, _| !name.contains(".part"));
        // Without its index a sharded checkpoint is none.
        let none = new.contains_key(INDEX) && !found.contains_key(INDEX);
        assert!(
            none || found == old || found == new,
            "{run:?} {:?}",
            found.keys()
        );
    }
    killer.show(run[0], place);
    // The next run takes away what the killed ones left.
    work.done(run);
    require_same(&files(&path), &new, run);
    assert!(unfinished(&work.path("")).is_empty(), "{run:?}");
}

#[test]
fn reduce_writes_whole_files_or_none() {
    let work = Work::new();
    let run = |order| {
        [
            "reduce",
            WAVES,
            "--order",
            order,
            "--output",
            "small.safetensors",
        ]
    };
    let old = work.written(&run("4"), "small.safetensors");
    killed(&work, &run("8"), "small.safetensors", &old);
}

#[test]
fn reduce_writes_whole_sharded_checkpoints_or_none() {
    let work = sharded();
    let run = |order| ["reduce", "source", "--order", order, "--output", "small"];
    let old = work.written(&run("4"), "small");
    killed(&work, &run("8"), "small", &old);
}

#[test]
fn calibrate_writes_whole_statistics_or_none() {
    let work = Work::new();
    let run = |sequences| {
        let data = ["calibrate", WAVES, "--data", "waves:length=32,count=40"];
        [
            &data[..],
            &["--sequences", sequences, "--output", "waves.stats"],
        ]
        .concat()
    };
    let old = work.written(&run("5"), "waves.stats");
    killed(&work, &run("10"), "waves.stats", &old);
}

#[test]
fn sweep_writes_whole_pictures_or_none() {
    let work = Work::new();
    let data = "waves:length=32,count=40";
    let run = |orders| {
        let sweep = ["sweep", WAVES, "--calibrate", data, "--sequences", "5"];
        [&sweep[..], &["--orders", orders, "--picture", "curve.svg"]].concat()
    };
    let old = work.written(&run("2,4"), "curve.svg");
    killed(&work, &run("2,3"), "curve.svg", &old);
}

/// Kills a command with a folder of its own and resumes it, again and again; `same` names what a
/// run that was never interrupted gives byte for byte.
fn resumed(work: &Work, run: &[&str], folder: &str, same: fn(&str) -> bool, output: Option<&str>) {
    let start = Instant::now();
    work.done(run);
    let mut killer = Killer::new(start.elapsed());
    let all = |work: &Work| {
        let mut all = files(&work.path(folder));
        if let Some(output) = output {
            all.extend([(
                output.to_string(),
                std::fs::read(work.path(output)).unwrap(),
            )]);
        }
        all
    };
    let whole = all(work);
    let names: Vec<&String> = whole.keys().filter(|name| same(name)).collect();
    assert!(!names.is_empty());
    while killer.kills() < kills() {
        remove(&work.path(folder));
        output.inspect(|output| remove(&work.path(output)));
        loop {
            let mut again = run.to_vec();
            if work.path(folder).join("config.toml").exists() {
                again.push("--resume");
            }
            let ended = killer.kill(work.command(&again).spawn().unwrap(), &work.path(folder));
            require_sound(&work.path(folder), &whole);
            if ended {
                break;
            }
            let written = output.is_some_and(|output| work.path(output).exists());
            assert!(!written || files(&work.path(output.unwrap()))[""] == whole[output.unwrap()]);
        }
        // A run that is over may be resumed.
        work.done(&[run, &["--resume"]].concat());
        let found = all(work);
        assert!(found.keys().eq(whole.keys()), "{run:?} {:?}", found.keys());
        for name in &names {
            assert!(found[*name] == whole[*name], "{run:?}: {name} differs");
        }
    }
    killer.show(run[0], output.unwrap_or(folder));
}

/// Every file can be read to its end, and none is there that a whole run does not leave.
fn require_sound(folder: &Path, whole: &Files) {
    for (name, bytes) in files(folder) {
        if name.contains(".part") {
            continue;
        }
        assert!(whole.contains_key(&name), "{name}");
        let text = || std::str::from_utf8(&bytes).unwrap();
        match Path::new(&name).extension().and_then(|end| end.to_str()) {
            Some("safetensors") => drop(safetensors::SafeTensors::deserialize(&bytes).unwrap()),
            Some("json") => drop(serde_json::from_str::<serde_json::Value>(text()).unwrap()),
            Some("toml") => drop(text().parse::<toml::Table>().unwrap()),
            _ => {}
        }
    }
}

const PRETRAIN: [&str; 4] = ["pretrain", "config.toml", "--output", "run"];

#[test]
fn pretrain_resumed_gives_the_same_bytes() {
    let work = Work::new();
    resumed(
        &work,
        &PRETRAIN,
        "run",
        |name| name == "model.safetensors",
        None,
    );
}

/// Retrains a reduced network with its teacher.
const RETRAIN: [&str; 10] = [
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

fn reduced() -> Work {
    let work = Work::new();
    work.done(&PRETRAIN);
    let model = "run/model.safetensors";
    work.done(&["reduce", model, "--order", "1", "--output", "small.pth"]);
    work
}

#[test]
fn retrain_resumed_gives_the_same_bytes() {
    let output = "better.safetensors";
    let same = |name: &str| name == "better.safetensors";
    resumed(&reduced(), &RETRAIN, "better.run", same, Some(output));
}

const PIPELINE: [&str; 4] = ["pipeline", "pipeline.toml", "--output", "all"];

fn pipeline() -> Work {
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

#[test]
fn pipeline_resumed_gives_the_same_bytes() {
    let same =
        |name: &str| name.ends_with("model.safetensors") || name.ends_with("reduced.safetensors");
    resumed(&pipeline(), &PIPELINE, "all", same, None);
}

/// The same with files of at most 4 kB, as `ulimit -f` makes them.
fn cramped(work: &Work, arguments: &[&str]) -> Output {
    let mut command = Command::new("bash");
    // Without the signal the system reports an error, as it does where a disk is full.
    command.args(["-c", "trap '' XFSZ; ulimit -f 4; exec \"$@\"", "bash"]);
    command
        .arg(env!("CARGO_BIN_EXE_compress-model"))
        .args(arguments);
    command
        .arg("-q")
        .current_dir(work.0.path())
        .output()
        .unwrap()
}

/// Exit code 1 and every word in the message, which does not name a temporary file.
fn refused(output: &Output, words: &[&str]) {
    let message = message(output);
    assert_eq!(output.status.code(), Some(1), "{message}");
    for word in words {
        assert!(message.contains(word), "{word:?} in {message}");
    }
    assert!(!message.contains(".part"), "{message}");
}

/// Commands that write one file or folder, with its name.
fn writers() -> Vec<(Vec<&'static str>, &'static str)> {
    let data = "waves:length=128,count=40";
    let small = ["--sequences", "5", "--output"];
    let calibrate = ["calibrate", WAVES, "--data", data];
    let calibrated = ["reduce", WAVES, "--order", "8", "--calibrate", data];
    let sweep = ["sweep", WAVES, "--calibrate", data, "--sequences", "5"];
    let curve = ["--orders", "2,4", "--picture", "curve.svg"];
    let reduce = ["reduce", WAVES, "--order", "8", "--output"];
    vec![
        ([&reduce[..], &["a.safetensors"]].concat(), "a.safetensors"),
        ([&reduce[..], &["b.pth"]].concat(), "b.pth"),
        ([&calibrated[..], &small, &["c.npz"]].concat(), "c.npz"),
        ([&calibrate[..], &small, &["d.stats"]].concat(), "d.stats"),
        ([&sweep[..], &curve].concat(), "curve.svg"),
        (
            vec!["reduce", "source", "--order", "8", "--output", "sharded"],
            "sharded",
        ),
    ]
}

/// A sharded checkpoint to start from.
fn sharded() -> Work {
    let work = Work::new();
    std::fs::create_dir(work.path("source")).unwrap();
    let index = format!("source/{INDEX}");
    work.done(&["reduce", WAVES, "--order", "16", "--output", &index]);
    work
}

#[test]
fn without_room_the_old_file_stays_and_the_message_names_the_new_one() {
    let work = sharded();
    for (run, place) in writers() {
        for old in [
            Files::new(),
            Files::from([("old".to_string(), b"old".to_vec())]),
        ] {
            let file = place.contains('.');
            let old = old.into_iter().map(|(name, bytes)| match file {
                true => (String::new(), bytes),
                false => (name, bytes),
            });
            let old: Files = old.collect();
            put(&work.path(place), &old);
            refused(&cramped(&work, &run), &[place, "File too large"]);
            require_same(&files(&work.path(place)), &old, &run);
            assert!(unfinished(&work.path("")).is_empty(), "{run:?}");
            assert!(unfinished(&work.path(place)).is_empty(), "{run:?}");
        }
    }
}

#[test]
fn a_training_without_room_goes_on_once_there_is_some() {
    let work = reduced();
    let whole = work.written(&RETRAIN, "better.safetensors");
    remove(&work.path("better.run"));
    refused(&cramped(&work, &RETRAIN), &["better.run", "File too large"]);
    assert!(!work.path("better.safetensors").exists());
    work.done(&[&RETRAIN[..], &["--resume"]].concat());
    require_same(&files(&work.path("better.safetensors")), &whole, &RETRAIN);
}

/// A file system of its own of 16 kB; `None` without the rights of root.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(place: PathBuf) -> Option<Self> {
        std::fs::create_dir(&place).unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=16k", "tmpfs"])
            .arg(&place);
        let mounted = mount.stderr(Stdio::null()).status();
        mounted
            .is_ok_and(|status| status.success())
            .then_some(Self(place))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn a_full_disk_is_told_by_its_name() {
    let work = sharded();
    let Some(disk) = SmallDisk::new(work.path("disk")) else {
        assert!(
            !is_full_form(),
            "the full form mounts a small disk, which takes root"
        );
        eprintln!("not run: a full disk, which takes root to mount (limits on files ran)");
        return;
    };
    std::fs::write(disk.0.join("old.safetensors"), vec![7; 8192]).unwrap();
    let before = files(&disk.0);
    let data = "waves:length=128,count=40";
    let runs: [(&[&str], &str); 4] = [
        (
            &["reduce", WAVES, "--order", "8", "--output"],
            "old.safetensors",
        ),
        (&["reduce", "source", "--order", "8", "--output"], "sharded"),
        (
            &[
                "calibrate",
                WAVES,
                "--data",
                data,
                "--sequences",
                "5",
                "--output",
            ],
            "new.stats",
        ),
        (&["pretrain", "config.toml", "--output"], "run"),
    ];
    for (run, name) in runs {
        let place = format!("disk/{name}");
        let output = work.output(&[run, &[&place]].concat());
        refused(&output, &[&place, "No space left on device"]);
        let mut found = files(&disk.0);
        found.retain(|name, _| !name.starts_with("run/"));
        require_same(&found, &before, run);
        remove(&work.path("disk/run"));
    }
}

#[test]
fn a_folder_that_takes_no_files_is_told_by_its_name() {
    let work = sharded();
    // Not even root writes there.
    for (run, place) in writers() {
        let there = format!("/sys/{place}");
        let run: Vec<&str> = run
            .iter()
            .map(|word| match *word == place {
                true => there.as_str(),
                false => word,
            })
            .collect();
        refused(&work.output(&run), &[&there, "cannot be written"]);
    }
    refused(
        &work.output(&["pretrain", "config.toml", "--output", "/sys/run"]),
        &["/sys/run"],
    );
}

#[test]
fn of_two_programs_that_write_one_place_the_last_wins_whole() {
    let work = sharded();
    for (source, place) in [(WAVES, "small.safetensors"), ("source", "small")] {
        let run = |order| ["reduce", source, "--order", order, "--output", place];
        let either = [
            work.written(&run("4"), place),
            work.written(&run("8"), place),
        ];
        put(&work.path(place), &either[0]);
        for _ in 0..kills() {
            let both = ["4", "8"].map(|order| work.command(&run(order)).spawn().unwrap());
            for mut one in both {
                assert!(one.wait().unwrap().success());
            }
            let found = files(&work.path(place));
            assert!(either.contains(&found), "{:?}", found.keys());
        }
    }
}

#[test]
fn a_second_training_in_the_same_folder_is_refused() {
    let work = reduced();
    remove(&work.path("run"));
    work.done(&PRETRAIN);
    let long = CONFIG.replace("epochs = 4", "epochs = 4000");
    std::fs::write(work.path("config.toml"), &long).unwrap();
    let pipeline = pipeline();
    let text = std::fs::read_to_string(pipeline.path("pipeline.toml")).unwrap();
    let text = text.replace("epochs = 2", "epochs = 4000");
    std::fs::write(work.path("pipeline.toml"), text).unwrap();
    let pretrain = ["pretrain", "config.toml", "--output", "long"];
    let mut retrain = RETRAIN;
    retrain[7] = "4000";
    let runs: [(&[&str], &str); 3] = [
        (&pretrain, "long"),
        (&retrain, "better.run"),
        (&PIPELINE, "all"),
    ];
    for (run, folder) in runs {
        let mut first = work.command(run).spawn().unwrap();
        let start = Instant::now();
        while !work.path(folder).join("config.toml").exists() {
            assert!(start.elapsed() < Duration::from_secs(60), "{run:?}");
            std::thread::sleep(Duration::from_millis(2));
        }
        for again in [run.to_vec(), [run, &["--resume"]].concat()] {
            refused(&work.output(&again), &[folder, "another program"]);
        }
        assert!(first.try_wait().unwrap().is_none(), "{run:?}");
        first.kill().unwrap();
        first.wait().unwrap();
    }
}

#[test]
fn a_source_that_changes_is_read_whole_or_refused() {
    let work = Work::new();
    let models = ["one.safetensors", "two.safetensors"];
    for (order, model) in ["16", "12"].into_iter().zip(models) {
        work.done(&["reduce", WAVES, "--order", order, "--output", model]);
    }
    let run = [
        "reduce",
        "model.safetensors",
        "--order",
        "8",
        "--output",
        "small.safetensors",
    ];
    let either = models.map(|model| {
        std::fs::copy(work.path(model), work.path("model.safetensors")).unwrap();
        work.written(&run, "small.safetensors")
    });
    let bytes = models.map(|model| std::fs::read(work.path(model)).unwrap());
    let mut random = ChaCha8Rng::seed_from_u64(1);
    let mut refusals = 0;
    for round in 0..3 * kills() {
        let model = work.path("model.safetensors");
        let (first, then) = (&bytes[round % 2], &bytes[(round + 1) % 2]);
        std::fs::write(&model, first).unwrap();
        let mut command = work.command(&run);
        let child = command.stderr(Stdio::piped()).spawn().unwrap();
        std::thread::sleep(Duration::from_micros(random.random_range(0..60_000)));
        match round % 3 {
            0 => std::fs::write(&model, then).unwrap(),
            1 => std::fs::write(&model, &first[..first.len() / 2]).unwrap(),
            _ => {
                std::fs::write(work.path("new"), then).unwrap();
                std::fs::rename(work.path("new"), &model).unwrap();
            }
        }
        let output = child.wait_with_output().unwrap();
        match output.status.code() {
            Some(0) => assert!(either.contains(&files(&work.path("small.safetensors")))),
            _ => {
                refused(&output, &["model.safetensors"]);
                refusals += 1;
                assert!(!work.path("small.safetensors").exists());
            }
        }
        remove(&work.path("small.safetensors"));
    }
    eprintln!(
        "a source that changes: {refusals} of {} refused",
        3 * kills()
    );
}

#[test]
fn ctrl_c_ends_a_step_of_many_seconds_within_one() {
    let work = Work::new();
    let long = CONFIG.replace("channels = 4", "channels = 256");
    let long = long.replace("length=32", "length=4096");
    std::fs::write(
        work.path("config.toml"),
        long.replace("batch = 16", "batch = 200"),
    )
    .unwrap();
    let mut child = work.command(&PRETRAIN).spawn().unwrap();
    while !work.path("run/config.toml").exists() {
        assert!(
            child.try_wait().unwrap().is_none(),
            "ended before it was stopped"
        );
        std::thread::sleep(Duration::from_millis(2));
    }
    // Once the settings are written, the first step begins.
    std::thread::sleep(Duration::from_millis(300));
    let start = Instant::now();
    let signal = Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(signal.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    // Of which the program takes 0.8 s, and a busy machine what it takes.
    assert!(
        start.elapsed() < Duration::from_secs(3),
        "{:?}",
        start.elapsed()
    );
    require_sound(
        &work.path("run"),
        &Files::from(["config.toml", "lock"].map(|name| (name.to_string(), Vec::new()))),
    );
}
