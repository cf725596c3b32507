//! The folder of a model, as a hub gives it: inspected, and made smaller as a whole.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Map, Value, json};

const MODELS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/large");

const CONFIGURATION: &str =
    "{\n  \"model_name\": \"a model\",\n  \"state_size\": 16,\n  \"hidden_size\": 4\n}\n";

fn run(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_compress-model"));
    command.args(arguments).output().unwrap()
}

/// What a command that ends well prints, errors and notes included.
fn said(arguments: &[&str]) -> String {
    let output = run(arguments);
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    assert!(output.status.success(), "{arguments:?}: {text:?}");
    text.concat()
}

fn refused(arguments: &[&str]) -> String {
    let output = run(arguments);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
    message
}

fn text(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap()
}

/// A folder with a model of 16 states in one file, and what stands beside it on a hub.
fn folder(at: &Path, configuration: &str) -> PathBuf {
    let folder = at.join("model");
    std::fs::create_dir_all(folder.join("assets")).unwrap();
    std::fs::copy(
        Path::new(MODELS).join("evo2.safetensors"),
        folder.join("model.safetensors"),
    )
    .unwrap();
    std::fs::write(folder.join("config.json"), configuration).unwrap();
    std::fs::write(folder.join("README.md"), "# A model\n\nIts licence.\n").unwrap();
    std::fs::write(folder.join("tokenizer.json"), "{\"a\": 1}").unwrap();
    std::fs::write(folder.join("assets/picture.bin"), [0, 1, 2]).unwrap();
    folder
}

/// Tensors of a safetensors file: header entries and bytes.
fn tensors(path: &Path) -> BTreeMap<String, (Value, Vec<u8>)> {
    let bytes = std::fs::read(path).unwrap();
    let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: Map<String, Value> = serde_json::from_slice(&bytes[8..8 + length]).unwrap();
    let entries = header
        .into_iter()
        .filter(|(name, _)| name != "__metadata__");
    let of = |(name, entry): (String, Value)| {
        let at = |end: usize| 8 + length + entry["data_offsets"][end].as_u64().unwrap() as usize;
        (name, (entry.clone(), bytes[at(0)..at(1)].to_vec()))
    };
    entries.map(of).collect()
}

fn write(path: &Path, tensors: &BTreeMap<String, (Value, Vec<u8>)>) {
    let (mut header, mut data) = (Map::new(), Vec::new());
    for (name, (entry, bytes)) in tensors {
        let mut entry = entry.clone();
        entry["data_offsets"] = json!([data.len(), data.len() + bytes.len()]);
        header.insert(name.clone(), entry);
        data.extend(bytes);
    }
    let header = serde_json::to_vec(&header).unwrap();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&length, header.as_slice(), &data].concat()).unwrap();
}

/// All files below a folder.
fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        if path.is_dir() {
            let below = files(&path).into_iter();
            all.extend(below.map(|(file, bytes)| (format!("{name}/{file}"), bytes)));
        } else {
            all.insert(name, std::fs::read(&path).unwrap());
        }
    }
    all
}

fn states(path: &Path) -> Vec<u64> {
    let path = path.display().to_string();
    let output = run(&["inspect", &path, "--format", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let layers = document["layers"].as_array().unwrap().clone();
    let order = |layer: &Value| layer["order"].as_u64().unwrap();
    layers.iter().map(order).collect()
}

#[test]
fn a_folder_is_written_whole_with_its_number_of_states() {
    let place = tempfile::tempdir().unwrap();
    let source = folder(place.path(), CONFIGURATION);
    let before = files(&source);
    let small = place.path().join("small");
    let [from, to] = [&source, &small].map(|path| path.display().to_string());
    let printed = said(&["reduce", &from, "--order", "6", "--output", &to]);
    assert!(printed.contains("state_size"), "{printed}");
    assert_eq!(files(&source), before, "the source stays as it was");

    let after = files(&small);
    assert_eq!(
        before.keys().collect::<Vec<_>>(),
        after.keys().collect::<Vec<_>>()
    );
    for name in ["tokenizer.json", "assets/picture.bin"] {
        assert_eq!(before[name], after[name], "{name}");
    }
    let expected = CONFIGURATION.replace("16", "6");
    assert_eq!(text(&small.join("config.json")), expected);
    let card = text(&small.join("README.md"));
    assert!(card.starts_with("# A model\n\nIts licence.\n"), "{card}");
    assert!(
        card.contains("`state_size` in `config.json`: 6 instead of 16"),
        "{card}"
    );
    assert_eq!(
        states(&small),
        states(&source).iter().map(|_| 6).collect::<Vec<_>>()
    );
    let left: Vec<_> = std::fs::read_dir(place.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "nothing else is left: {left:?}");
}

#[test]
fn shards_keep_their_names_and_get_an_index_that_is_right() {
    let place = tempfile::tempdir().unwrap();
    let source = folder(place.path(), CONFIGURATION);
    let mut second = tensors(&source.join("model.safetensors"));
    let first: Vec<String> = second.keys().take(second.len() / 2).cloned().collect();
    let first: BTreeMap<_, _> = first
        .into_iter()
        .map(|name| (name.clone(), second.remove(&name).unwrap()))
        .collect();
    std::fs::remove_file(source.join("model.safetensors")).unwrap();
    let (mut map, mut size) = (Map::new(), 0);
    for (number, part) in [&first, &second].into_iter().enumerate() {
        let name = format!("model-0000{}-of-00002.safetensors", number + 1);
        write(&source.join(&name), part);
        map.extend(part.keys().map(|key| (key.clone(), json!(name))));
        size += part.values().map(|(_, bytes)| bytes.len()).sum::<usize>();
    }
    let index = json!({"metadata": {"total_size": size}, "weight_map": map});
    let named = source.join("model.safetensors.index.json");
    std::fs::write(named, index.to_string()).unwrap();

    let small = place.path().join("small");
    let [from, to] = [&source, &small].map(|path| path.display().to_string());
    said(&["reduce", &from, "--order", "4", "--output", &to]);
    assert_eq!(
        files(&source).keys().collect::<Vec<_>>(),
        files(&small).keys().collect::<Vec<_>>()
    );
    let index: Value =
        serde_json::from_str(&text(&small.join("model.safetensors.index.json"))).unwrap();
    let (mut size, mut names) = (0, 0);
    for number in 1..=2 {
        let file = format!("model-0000{number}-of-00002.safetensors");
        for (name, (_, bytes)) in tensors(&small.join(&file)) {
            assert_eq!(index["weight_map"][&name], json!(file), "{name}");
            size += bytes.len();
            names += 1;
        }
    }
    assert_eq!(index["weight_map"].as_object().unwrap().len(), names);
    assert_eq!(index["metadata"]["total_size"], json!(size));
    assert!(states(&small).iter().all(|&states| states == 4));
}

#[test]
fn layers_of_one_number_are_filled_up_and_what_is_left_out_is_named() {
    let place = tempfile::tempdir().unwrap();
    let source = folder(place.path(), CONFIGURATION);
    std::fs::remove_file(source.join("config.json")).unwrap();
    let yaml = "model:\n  state_size: 16   # of each layer\n  hidden_size: 4\n";
    std::fs::write(source.join("config.yaml"), yaml).unwrap();
    std::fs::write(source.join("other.onnx"), "other weights").unwrap();
    std::fs::create_dir(source.join(".hidden")).unwrap();
    let small = place.path().join("small");
    let [from, to] = [&source, &small].map(|path| path.display().to_string());
    let energy = ["--energy", "0.99999"];
    let printed = said(&[&["reduce", &from, "--output", &to], &energy[..]].concat());
    assert!(printed.contains("filled up to 4"), "{printed}");
    assert!(
        printed.contains("not copied: .hidden, other.onnx"),
        "{printed}"
    );
    // The two layers need 4 and 3.
    assert_eq!(states(&small), [4, 4]);
    let expected = yaml.replace("16", "4");
    assert_eq!(text(&small.join("config.yaml")), expected);
    assert!(!small.join("other.onnx").exists() && !small.join(".hidden").exists());
}

#[test]
fn one_order_for_the_whole_model_is_the_most_that_a_layer_needs() {
    let place = tempfile::tempdir().unwrap();
    let source = folder(place.path(), CONFIGURATION);
    let small = place.path().join("small");
    let [from, to] = [&source, &small].map(|path| path.display().to_string());
    let energy = ["reduce", &from, "--energy", "0.99999"];
    let one = ["--allocate", "model", "--output", &to];
    let printed = said(&[&energy[..], &one].concat());
    assert!(!printed.contains("filled up"), "{printed}");
    assert_eq!(states(&small), [4, 4]);
    assert!(text(&small.join("config.json")).contains("\"state_size\": 4"));
    // The layer that needs 3 has a smaller error with 4.
    let errors = |arguments: &[&str]| {
        let json = ["--dry-run", "--format", "json"];
        let output = run(&[&energy[..], arguments, &json].concat());
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        let layers = document["layers"].as_array().unwrap().clone();
        let error = |layer: &Value| layer["relative_h2_error"].as_f64().unwrap();
        layers.iter().map(error).collect::<Vec<_>>()
    };
    let (own, shared) = (errors(&[]), errors(&["--allocate", "model"]));
    assert!(shared[1] < 0.9 * own[1], "{own:?} {shared:?}");
    // The file alone, too; other ways of sharing need data.
    let file = source.join("model.safetensors").display().to_string();
    let alone = place.path().join("alone.safetensors").display().to_string();
    said(&[
        "reduce",
        &file,
        "--tolerance",
        "0.001",
        "--allocate",
        "model",
        "--output",
        &alone,
    ]);
    let found = states(Path::new(&alone));
    assert_eq!(found[0], found[1], "{found:?}");
    let output = run(&[
        "reduce",
        &file,
        "--energy",
        "0.9",
        "--allocate",
        "layer",
        "--dry-run",
    ]);
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{message}");
    assert!(message.contains("go with --calibrate"), "{message}");
}

#[test]
fn filters_of_stripedhyena_are_written_layer_by_layer_and_read_again() {
    let place = tempfile::tempdir().unwrap();
    let at = |name: &str| place.path().join(name).display().to_string();
    let source = format!("{MODELS}/evo1.safetensors");
    let (filters, small) = (at("filters"), at("small.safetensors"));
    let printed = said(&[
        "reduce",
        &source,
        "--energy",
        "0.95",
        "--filters",
        &filters,
        "--output",
        &small,
    ]);
    assert!(printed.contains("filters"), "{printed}");
    let written = files(Path::new(&filters));
    let names: Vec<&str> = written.keys().map(String::as_str).collect();
    let expected = [
        "approx_poles_1.pt",
        "approx_poles_3.pt",
        "approx_residues_1.pt",
        "approx_residues_3.pt",
    ];
    assert_eq!(names, expected);
    let own = states(Path::new(&filters));
    println!("states by layer: {own:?}");
    assert_ne!(own[0], own[1], "each layer has its own size");
    assert_eq!(own, states(Path::new(&small)));
    // They can be made smaller, too, and are refused where one of a pair is missing.
    said(&[
        "reduce",
        &filters,
        "--order",
        "1",
        "--output",
        &at("one.safetensors"),
    ]);
    std::fs::remove_file(Path::new(&filters).join("approx_residues_3.pt")).unwrap();
    let message = refused(&["inspect", &filters]);
    assert!(message.contains("approx_residues_3.pt"), "{message}");
    let evo2 = format!("{MODELS}/evo2.safetensors");
    let message = refused(&[
        "reduce",
        &evo2,
        "--order",
        "4",
        "--filters",
        &at("no"),
        "--output",
        &at("no.safetensors"),
    ]);
    assert!(
        message.contains("no files of poles and residues"),
        "{message}"
    );
}

#[test]
fn a_configuration_that_disagrees_is_named_and_stays() {
    let place = tempfile::tempdir().unwrap();
    let wrong = CONFIGURATION.replace("16", "12");
    let source = folder(place.path(), &wrong);
    let small = place.path().join("small");
    let [from, to] = [&source, &small].map(|path| path.display().to_string());
    let printed = said(&["inspect", &from]);
    let words =
        "config.json disagrees with the tensors: `state_size` is 12, the layers hold 16 states";
    let flat = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat(&printed).contains(words), "{printed}");
    said(&["reduce", &from, "--order", "6", "--output", &to]);
    assert_eq!(text(&small.join("config.json")), wrong);
}

#[test]
fn an_error_names_its_file_once() {
    let place = tempfile::tempdir().unwrap();
    let small = place.path().join("small.safetensors").display().to_string();
    let source = format!("{MODELS}/evo2.safetensors");
    let balanced = ["--method", "balanced", "--order", "4", "--output", &small];
    let message = refused(&[&["reduce", &source], &balanced[..]].concat());
    assert_eq!(message.matches("evo2.safetensors").count(), 1, "{message}");
}

#[test]
fn folders_without_a_model_are_refused_by_name() {
    let place = tempfile::tempdir().unwrap();
    let empty = place.path().join("empty");
    std::fs::create_dir(&empty).unwrap();
    let named = empty.display().to_string();
    assert!(refused(&["inspect", &named]).contains(&named));
    let absent = place.path().join("absent").display().to_string();
    assert!(refused(&["inspect", &absent]).contains(&absent));

    // Two checkpoints side by side are not told apart.
    let source = folder(place.path(), CONFIGURATION);
    let taken = place.path().join("taken");
    std::fs::create_dir(&taken).unwrap();
    std::fs::write(taken.join("pytorch_model.bin"), "other").unwrap();
    let [from, to] = [&source, &taken].map(|path| path.display().to_string());
    let message = refused(&["reduce", &from, "--order", "6", "--output", &to]);
    assert!(message.contains("pytorch_model.bin"), "{message}");
    assert_eq!(files(&taken).len(), 1);
}
