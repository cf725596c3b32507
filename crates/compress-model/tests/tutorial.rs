//! Every command of the tutorial and the how-tos, as it stands there.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../../../tests/common/mod.rs"]
mod common;

use std::path::Path;
use std::process::Command;

/// The lines of the blocks of shell commands of a page.
fn commands(page: &str) -> Vec<String> {
    let text = std::fs::read_to_string(common::top().join(page)).unwrap();
    let blocks = text.split("```sh\n").skip(1);
    let lines = blocks.flat_map(|block| block.split("```").next().unwrap().lines());
    lines.map(str::to_string).collect()
}

/// Runs the commands of a page in the top folder, the program by its name; their outputs.
fn run(page: &str, at_least: usize) -> Vec<String> {
    let commands = commands(page);
    assert!(commands.len() >= at_least, "{page}: {commands:?}");
    let folder = Path::new(env!("CARGO_BIN_EXE_compress-model"))
        .parent()
        .unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    // A person starts without that folder.
    let first = commands
        .iter()
        .find(|line| line.contains("target/tutorial"));
    assert_eq!(
        first.map(String::as_str),
        Some("mkdir -p target/tutorial"),
        "{page}"
    );
    let outputs = commands.iter().map(|line| {
        let mut shell = Command::new("bash");
        shell.args(["-o", "pipefail", "-c", line]);
        let output = shell
            .env("PATH", &path)
            .current_dir(common::top())
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{page}: {line}\n{message}");
        String::from_utf8(output.stdout).unwrap()
    });
    outputs.collect()
}

#[test]
fn the_tutorial_runs_as_it_stands() {
    let shown = run("docs/tutorial.md", 9);
    assert!(shown[2].contains("recommended"), "{}", shown[2]);
    assert!(shown[3].contains("2,442 (44.3 %)"), "{}", shown[3]);
    assert!(
        shown[5].contains("reduced from model.safetensors"),
        "{}",
        shown[5]
    );
    // A sixth of the bytes; ten scores.
    assert!(shown[6].contains(": S4D, 1/6."), "{}", shown[6]);
    assert_eq!(shown[7].split_whitespace().count(), 10, "{}", shown[7]);
}

#[test]
fn the_how_to_of_sizes_runs_as_it_stands() {
    run("docs/how-to-choose-a-size.md", 5);
}

#[test]
fn the_frequent_questions_run_as_they_stand() {
    run("docs/faq.md", 6);
}
