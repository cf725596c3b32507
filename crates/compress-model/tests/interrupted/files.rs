//! The files that a run leaves.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Bytes of files by their paths below a folder.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// The name of the index of a sharded checkpoint.
pub(crate) const INDEX: &str = "model.safetensors.index.json";

/// All files below a folder, or the one at the path, under the empty name.
pub(crate) fn files(place: &Path) -> Files {
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
pub(crate) fn require_same(found: &Files, expected: &Files, run: &[&str]) {
    let names = |files: &Files| files.keys().cloned().collect::<Vec<_>>();
    assert_eq!(names(found), names(expected), "{run:?}");
    let other = found
        .iter()
        .find(|(name, bytes)| expected[*name] != **bytes);
    assert!(other.is_none(), "{run:?}: {:?} differs", other.unwrap().0);
}

/// Every file can be read to its end, and none is there that a whole run does not leave.
pub(crate) fn require_sound(folder: &Path, whole: &Files) {
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

pub(crate) fn remove(place: &Path) {
    match place.is_dir() {
        true => std::fs::remove_dir_all(place).unwrap(),
        false if place.exists() => std::fs::remove_file(place).unwrap(),
        false => {}
    }
}

/// A file below a folder; the empty name is that of the place itself.
pub(crate) fn below(place: &Path, name: &str) -> PathBuf {
    match name.is_empty() {
        true => place.to_path_buf(),
        false => place.join(name),
    }
}

pub(crate) fn put(place: &Path, contents: &Files) {
    for (name, bytes) in contents {
        let file = below(place, name);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(file, bytes).unwrap();
    }
}

/// What a killed program leaves while it writes: `.hankelite-XXXXXX.part`, a file or a folder.
pub(crate) fn unfinished(place: &Path) -> BTreeSet<String> {
    let Ok(entries) = std::fs::read_dir(place) else {
        return BTreeSet::new();
    };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let part = |name: &String| name.starts_with(".hankelite-") && name.ends_with(".part");
    names.filter(part).collect()
}
