//! Folders as Hugging Face keeps models: reduced into a folder that loads as it is.

#![allow(clippy::unwrap_used, reason = "a test stops where it is wrong")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

const CONFIG: &str =
    "{\n  \"model_type\": \"stripedhyena\",\n  \"state_size\": 16,\n  \"hidden_size\": 4\n}\n";

fn fixture(name: &str) -> PathBuf {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    top.join("tests/data/large").join(name)
}

/// A folder with weights, configurations, a card and files that are no business of ours.
fn model(folder: &Path) -> PathBuf {
    let model = folder.join("model");
    fs::create_dir_all(model.join("tokenizer")).unwrap();
    fs::copy(fixture("evo2.safetensors"), model.join("model.safetensors")).unwrap();
    fs::write(model.join("config.json"), CONFIG).unwrap();
    fs::write(
        model.join("evo.yml"),
        "state_size: 16  # modes\nnum_layers: 2\n",
    )
    .unwrap();
    fs::write(
        model.join("README.md"),
        "---\nlicense: apache-2.0\n---\n# Evo\n",
    )
    .unwrap();
    fs::write(model.join("tokenizer/vocab.txt"), "ACGT").unwrap();
    fs::write(model.join("pytorch_model.bin"), "other weights").unwrap();
    model
}

fn reduce(folder: &Path, arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_compress-model"));
    command
        .current_dir(folder)
        .args(["reduce", "model"])
        .args(arguments);
    command.output().unwrap()
}

fn text(folder: &Path, file: &str) -> String {
    fs::read_to_string(folder.join(file)).unwrap()
}

fn poles(folder: &Path) -> Vec<usize> {
    let file = hankelite_archive::Archive::open(folder).unwrap();
    file.shape("blocks.2.filter.log_poles").unwrap().to_vec()
}

#[test]
fn a_folder_becomes_one_that_loads_as_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let source = model(folder.path());
    let done = reduce(
        folder.path(),
        &["--order", "4", "-o", "small", "--format", "json"],
    );
    assert!(done.status.success(), "{done:?}");
    let small = folder.path().join("small");
    assert_eq!(poles(&small), [4, 4, 1]);
    assert_eq!(text(&small, "config.json"), CONFIG.replace("16", "4"));
    assert_eq!(
        text(&small, "evo.yml"),
        "state_size: 4  # modes\nnum_layers: 2\n"
    );
    assert_eq!(text(&small, "tokenizer/vocab.txt"), "ACGT");
    assert!(!small.join("pytorch_model.bin").exists());
    let card = text(&small, "README.md");
    assert!(
        card.starts_with("---\nlicense: apache-2.0\n---\n# Evo\n"),
        "{card}"
    );
    assert!(
        card.contains("# Smaller version") && card.contains("[4, 4]"),
        "{card}"
    );
    let document: Value = serde_json::from_slice(&done.stdout).unwrap();
    let changes = &document["folder"];
    assert_eq!(changes["settings"][0]["setting"], "state_size");
    assert_eq!(changes["settings"][0]["after"], 4);
    assert_eq!(
        changes["left_out"],
        serde_json::json!(["pytorch_model.bin"])
    );
    assert_eq!(text(&source, "config.json"), CONFIG);
    // Nothing but the two folders is left.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);

    let again = reduce(folder.path(), &["--order", "4", "-o", "small"]);
    assert_eq!(again.status.code(), Some(1));
    let error = String::from_utf8_lossy(&again.stderr).into_owned();
    assert!(
        error.contains("small: a folder with something in it"),
        "{error}"
    );
}

#[test]
fn shards_keep_their_index_and_a_configuration_that_disagrees_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let source = model(folder.path());
    let file = hankelite_archive::Archive::open(source.join("model.safetensors")).unwrap();
    file.write(&source, hankelite_archive::Container::Sharded, "")
        .unwrap();
    fs::remove_file(source.join("model.safetensors")).unwrap();
    fs::write(source.join("config.json"), CONFIG.replace("16", "12")).unwrap();
    let done = reduce(folder.path(), &["--order", "4", "-o", "small"]);
    assert!(done.status.success(), "{done:?}");
    let small = folder.path().join("small");
    assert!(small.join("model.safetensors.index.json").is_file());
    assert!(small.join("model-00001-of-00001.safetensors").is_file());
    assert_eq!(poles(&small), [4, 4, 1]);
    assert_eq!(text(&small, "config.json"), CONFIG.replace("16", "12"));
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        said.contains("config.json: `state_size` is 12, which stays"),
        "{said}"
    );
    assert!(said.contains("the tensors have 16 states"), "{said}");
}

#[test]
fn layers_of_unequal_size_leave_nothing_behind_where_one_number_holds_all() {
    let folder = tempfile::tempdir().unwrap();
    let source = model(folder.path());
    fs::copy(
        fixture("evo1.safetensors"),
        source.join("model.safetensors"),
    )
    .unwrap();
    fs::write(source.join("config.json"), CONFIG.replace("16", "8")).unwrap();
    let done = reduce(folder.path(), &["--energy", "0.7", "-o", "small"]);
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{said}");
    assert!(
        said.contains("one number of states for all layers (`state_size`)"),
        "{said}"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}
