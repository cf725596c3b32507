//! Without room, or without leave to write.

use std::path::PathBuf;
use std::process::{Command, Output};

use crate::files::{Files, files, put, remove, require_same, unfinished};
use crate::work::{RETRAIN, WAVES, Work, reduced, refused, sharded};

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
        .current_dir(work.path(""))
        .output()
        .unwrap()
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

/// A file system of its own of 16 kB.
struct SmallDisk(PathBuf);

impl SmallDisk {
    fn new(place: PathBuf) -> Self {
        std::fs::create_dir(&place).unwrap();
        let mut mount = Command::new("mount");
        mount
            .args(["-t", "tmpfs", "-o", "size=16k", "tmpfs"])
            .arg(&place);
        let mounted = mount.status().unwrap();
        assert!(mounted.success(), "a small disk is mounted, as root");
        Self(place)
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
#[ignore = "mounts a file system, as root"]
fn a_full_disk_is_told_by_its_name() {
    let work = sharded();
    let disk = SmallDisk::new(work.path("disk"));
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
