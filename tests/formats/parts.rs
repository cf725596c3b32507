//! Files with several sets of weights: entries of a Torch file (`tests/reference/make_parts.py`), and
//! modules of one state dict.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::common::here;
use hankelite::checkpoint::{Checkpoint, CheckpointError, Family, PartName};
use hankelite::{Declared, Plan, Rule, read, reduce, write};
use hankelite_archive::{Archive, Container, RawTensor};

fn part(name: &str) -> Declared {
    Declared {
        part: Some(PartName::new(name).unwrap()),
        ..Declared::default()
    }
}

fn fixture(name: &str) -> PathBuf {
    here("data/parts").join(name)
}

fn tensors(path: &Path) -> BTreeMap<String, RawTensor> {
    let archive = Archive::open(path).unwrap();
    let names = archive.names();
    let read = names.map(|name| (name.to_string(), archive.tensor(name).unwrap()));
    read.collect()
}

/// A small network twice, the second time with other weights.
fn modules(folder: &Path, prefixes: [&str; 2]) -> PathBuf {
    let network = tensors(&here("../models/waves/model.safetensors"));
    let mut both = BTreeMap::new();
    for (copy, prefix) in prefixes.into_iter().enumerate() {
        for (name, tensor) in &network {
            let values = tensor.to_f64().unwrap();
            let values: Vec<f64> = values
                .iter()
                .map(|x| x * (1.0 + 0.125 * copy as f64))
                .collect();
            let shape = tensor.shape().to_vec();
            let tensor = RawTensor::from_f64(tensor.dtype(), shape, &values).unwrap();
            both.insert(format!("{prefix}{name}"), tensor);
        }
    }
    let path = folder.join("both.safetensors");
    let archive = Archive::in_memory("both", both);
    archive.write(&path, Container::Safetensors, "").unwrap();
    path
}

fn halved(full: &Checkpoint) -> Checkpoint {
    let plan = Plan::new(Rule::Order(2)).unwrap();
    full.with_model(reduce(&full.model, &plan).unwrap().model)
}

fn error(result: Result<Checkpoint, CheckpointError>) -> String {
    let error = result.map(|_| ()).unwrap_err();
    format!("{error}; {}", error.hint().unwrap_or_default())
}

/// Names of the sets, with whether they are read.
fn sets(checkpoint: &Checkpoint) -> Vec<(&str, bool)> {
    let sets = checkpoint.weight_sets().iter();
    sets.map(|set| (set.name.as_str(), set.read)).collect()
}

#[test]
fn one_module_is_read_and_reduced_and_the_other_is_copied() {
    let folder = tempfile::tempdir().unwrap();
    let path = modules(folder.path(), ["student.", "teacher."]);
    let small = folder.path().join("small.safetensors");
    let network = read(
        here("../models/waves/model.safetensors"),
        &Declared::default(),
    )
    .unwrap();
    let layers = network.model.blocks().len();
    // Without a name the layers of both.
    let both = read(&path, &Declared::default()).unwrap();
    assert_eq!(both.model.blocks().len(), 2 * layers);
    assert_eq!(sets(&both), [("student", true), ("teacher", true)]);
    let notes = both.notes().join("; ");
    assert!(notes.contains("the layers of all are read"), "{notes}");
    // One of them is a whole network.
    let teacher = read(&path, &part("teacher")).unwrap();
    assert!(teacher.is_network() && teacher.model.head().is_some());
    assert_eq!(sets(&teacher), [("student", false), ("teacher", true)]);
    let notes = teacher.notes().join("; ");
    assert!(
        notes.contains("`teacher` is read, the others are copied"),
        "{notes}"
    );
    let bytes = teacher.weight_sets()[0].bytes;
    assert_eq!(bytes as usize, 4 * network.parameters_of_file());
    write(&halved(&teacher), &small).unwrap();
    let (before, after) = (tensors(&path), tensors(&small));
    assert!(before.keys().eq(after.keys()));
    let changed = before
        .iter()
        .filter(|(name, tensor)| after[*name] != **tensor);
    let changed: Vec<&String> = changed.map(|(name, _)| name).collect();
    let poles = |name: &&&String| name.ends_with("log_A_real");
    assert_eq!(changed.iter().filter(poles).count(), layers);
    for name in changed {
        assert!(name.starts_with("teacher.s4_layers."), "{name}");
    }
    // The file says which one it was.
    let again = read(&small, &Declared::default()).unwrap();
    assert_eq!(sets(&again), [("student", false), ("teacher", true)]);
    assert_eq!(again.model.blocks()[0].order(), 2);
    let all = read(&small, &part("all")).unwrap();
    assert_eq!(all.model.blocks().len(), 2 * layers);
    let wrong = error(read(&path, &part("ema")));
    let size = format!("one of `student` ({bytes} bytes), `teacher` ({bytes} bytes)");
    assert!(
        wrong.contains("no set of weights is called `ema`"),
        "{wrong}"
    );
    assert!(wrong.contains(&size), "{wrong}");
}

#[test]
fn all_modules_are_reduced_together() {
    let folder = tempfile::tempdir().unwrap();
    let path = modules(folder.path(), ["model.", "ema_model.module."]);
    let small = folder.path().join("small.safetensors");
    let all = read(&path, &part("all")).unwrap();
    assert_eq!(sets(&all), [("ema_model", true), ("model", true)]);
    write(&halved(&all), &small).unwrap();
    for name in ["ema_model", "model"] {
        let one = read(&small, &part(name)).unwrap();
        assert!(one.is_network(), "{name}");
        assert!(one.model.blocks().iter().all(|block| block.order() == 2));
    }
}

#[test]
fn a_module_is_converted_beside_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let path = modules(folder.path(), ["student.", "teacher."]);
    let converted = folder.path().join("converted.safetensors");
    let student = read(&path, &part("student")).unwrap();
    write(&student.converted(Family::DssExp).unwrap(), &converted).unwrap();
    let (before, after) = (tensors(&path), tensors(&converted));
    for (name, tensor) in before
        .iter()
        .filter(|(name, _)| name.starts_with("teacher."))
    {
        assert_eq!(&after[name], tensor, "{name}");
    }
    let again = read(&converted, &Declared::default()).unwrap();
    assert_eq!(again.family(), "DSS");
    assert_eq!(sets(&again), [("student", true), ("teacher", false)]);
}

#[test]
fn one_entry_of_a_torch_file_is_read_and_written_alone() {
    let folder = tempfile::tempdir().unwrap();
    let small = folder.path().join("small.pth");
    let path = fixture("ema.pth");
    let first = read(&path, &Declared::default()).unwrap();
    assert_eq!(sets(&first), [("model", true), ("model_ema", false)]);
    let notes = first.notes().join("; ");
    assert!(
        notes.contains("`model` is read, and a file that is written holds it alone"),
        "{notes}"
    );
    assert!(notes.contains("--part NAME takes another"), "{notes}");
    let mean = read(&path, &part("model_ema")).unwrap();
    assert_ne!(mean.model.blocks()[0], first.model.blocks()[0]);
    assert_eq!(mean.weight_sets()[1].bytes, mean.weight_sets()[0].bytes);
    write(&halved(&mean), &small).unwrap();
    let archive = Archive::open(&small).unwrap();
    assert_eq!(archive.wrapper(), Some("model_ema"));
    let again = read(&small, &part("model_ema")).unwrap();
    assert_eq!(again.model.blocks()[0].order(), 2);
    assert!(again.weight_sets().is_empty());
    // Nothing is left of the name in another container.
    let flat = folder.path().join("small.safetensors");
    write(&halved(&mean), &flat).unwrap();
    assert_eq!(
        read(&flat, &Declared::default()).unwrap().model.blocks()[0].order(),
        2
    );
    let wrong = error(read(&path, &part("ema")));
    assert!(
        wrong.contains("one of `model` (") && wrong.contains("`model_ema` ("),
        "{wrong}"
    );
    let all = error(read(&path, &part("all")));
    assert!(all.contains("holds one of them"), "{all}");
    assert!(all.contains("--part model, --part model_ema"), "{all}");
}

#[test]
fn an_entry_without_a_usual_name_is_asked_for() {
    let path = fixture("halves.pth");
    let asked = error(read(&path, &Declared::default()));
    assert!(asked.contains("`generator`, `other`"), "{asked}");
    assert!(asked.contains("--part NAME reads one of them"), "{asked}");
    let other = read(&path, &part("other")).unwrap();
    assert_eq!(sets(&other), [("generator", false), ("other", true)]);
}

#[test]
fn a_file_with_one_set_of_weights_has_no_parts() {
    let path = here("../models/waves/model.safetensors");
    assert!(
        read(&path, &Declared::default())
            .unwrap()
            .weight_sets()
            .is_empty()
    );
    let wrong = error(read(&path, &part("ema")));
    assert!(
        wrong.contains("the file holds one set of weights"),
        "{wrong}"
    );
    assert!(PartName::new("").is_none() && PartName::new(&"x".repeat(65)).is_none());
}
