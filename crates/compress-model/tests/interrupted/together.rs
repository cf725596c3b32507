//! Two programs at once, a source that changes while it is read, and Ctrl-C.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

use crate::files::{Files, files, put, remove, require_sound};
use crate::work::{
    CONFIG, PIPELINE, PRETRAIN, RETRAIN, WAVES, Work, kills, pipeline, reduced, refused, sharded,
};

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

/// A pool that waits in a loop takes the cores of whatever else is at work.
#[test]
fn a_training_starts_no_pool_of_candle() {
    let work = reduced();
    let mut retrain = RETRAIN.to_vec();
    retrain[7] = "4000";
    retrain.extend(["--threads", "1"]);
    let mut training = work.command(&retrain).spawn().unwrap();
    let start = Instant::now();
    while !work.path("better.run").join("metrics.jsonl").exists() {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(2));
    }
    let tasks = std::fs::read_dir(format!("/proc/{}/task", training.id())).unwrap();
    let names: Vec<_> = tasks
        .map(|task| std::fs::read_to_string(task.unwrap().path().join("comm")).unwrap())
        .collect();
    training.kill().unwrap();
    training.wait().unwrap();
    assert!(
        !names.iter().any(|name| name.starts_with("candle")),
        "{names:?}"
    );
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
