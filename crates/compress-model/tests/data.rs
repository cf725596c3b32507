//! `compress-model data`.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

#[path = "../../../tests/common/sources.rs"]
mod sources;

use hankelite_data::Dataset;
use sources::{contents, source, train, values};

fn program(arguments: &[&str]) -> (Option<i32>, String, String) {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_compress-model"));
    let output = command.arg("data").args(arguments).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    (
        output.status.code(),
        text(output.stdout),
        text(output.stderr),
    )
}

#[test]
fn the_program_describes_and_writes_data() {
    let task = "listops:max_length=40,min_length=5,count=50,held_out=20";
    let (code, shown, _) = program(&[task]);
    assert_eq!(code, Some(0));
    for word in [
        "train",
        "validation",
        "test",
        "vocabulary",
        "example 0",
        "answer: class",
        "[",
    ] {
        assert!(shown.contains(word), "{word} in {shown}");
    }
    let (_, json, _) = program(&[
        "adding:length=6,count=30",
        "--example",
        "2",
        "--format",
        "json",
    ]);
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let part = &json["parts"][0];
    assert_eq!(
        (&part["part"], &part["sequences"], &part["width"]),
        (&"train".into(), &30.into(), &2.into())
    );
    let shown: Vec<f32> = serde_json::from_value(part["example"]["values"].clone()).unwrap();
    assert_eq!(shown, values(&train("adding:length=6,count=30"), 2));

    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("out.safetensors").display().to_string();
    let (code, shown, messages) = program(&[task, "--split", "test", "--output", &path]);
    assert_eq!((code, shown.as_str()), (Some(0), ""));
    assert!(messages.contains("out.safetensors"));
    let written = Dataset::read(&source(&path), None).unwrap();
    assert_eq!(
        contents(&written),
        contents(&Dataset::read(&source(task), None).unwrap())
    );

    for (arguments, expected, word) in [
        (&[task, "--output", &path][..], 1, "--split"),
        (&["imdb:nothing", "--split", "validation"], 1, "hint: hold"),
        (&["imdb:nothing"], 1, "nothing"),
        (&[path.as_str(), "--output", &path], 1, "out.safetensors"),
        (&[task, "--example", "50"], 1, "less than 50"),
        (&["adding:lenght=5"], 2, "its keys are length"),
    ] {
        let (code, shown, message) = program(arguments);
        assert_eq!(
            (code, shown.as_str()),
            (Some(expected), ""),
            "{arguments:?}: {message}"
        );
        assert!(message.contains(word), "{word:?} in {message}");
    }
}
