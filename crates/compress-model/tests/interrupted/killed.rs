//! Killed at any moment: files are whole or not there, and a run that is resumed ends in the same
//! bytes.

use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::files::{
    Files, INDEX, below, files, put, remove, require_same, require_sound, unfinished,
};
use crate::work::{PIPELINE, PRETRAIN, RETRAIN, WAVES, Work, kills, pipeline, reduced, sharded};

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
    /// written into the folder, which takes a thousandth of it. Whether the program had ended,
    /// which it may only do well.
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

#[test]
fn retrain_resumed_gives_the_same_bytes() {
    let output = "better.safetensors";
    let same = |name: &str| name == "better.safetensors";
    resumed(&reduced(), &RETRAIN, "better.run", same, Some(output));
}

#[test]
fn pipeline_resumed_gives_the_same_bytes() {
    let same =
        |name: &str| name.ends_with("model.safetensors") || name.ends_with("reduced.safetensors");
    resumed(&pipeline(), &PIPELINE, "all", same, None);
}
