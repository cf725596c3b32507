//! No public name stands twice in the workspace.
//!
//! A line that begins with `pub` names something public: the lint `unreachable_pub` keeps out
//! what is not. The program is not looked at, since nobody uses it as a library.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const SOURCES: [&str; 8] = [
    "src",
    "crates/archive/src",
    "crates/control/src",
    "crates/data/src",
    "crates/edge/src",
    "crates/kernels/src",
    "lab/research/src",
    "crates/train/src",
];

const KINDS: [&str; 6] = ["struct", "enum", "trait", "fn", "type", "const"];

fn collect(folder: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).expect("a folder of sources can be read") {
        let path = entry.expect("an entry can be read").path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            files.push(path);
        }
    }
}

/// The public names that a file makes at its top level.
fn names(text: &str) -> Vec<String> {
    let made = text.lines().filter_map(|line| {
        let rest = line.strip_prefix("pub ")?;
        let rest = rest.strip_prefix("const fn ").map_or(rest, |_| &rest[6..]);
        let (kind, rest) = rest.split_once(' ')?;
        let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_'));
        let name = &rest[..end.unwrap_or(rest.len())];
        KINDS.contains(&kind).then(|| name.to_string())
    });
    made.collect()
}

#[test]
fn public_names_stand_once() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut places: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for sources in SOURCES {
        let mut files = Vec::new();
        collect(&top.join(sources), &mut files);
        assert!(!files.is_empty(), "{sources}");
        for file in files {
            let text = fs::read_to_string(&file).expect("a source file is UTF-8 text");
            let place = file
                .strip_prefix(top)
                .unwrap_or(&file)
                .display()
                .to_string();
            for name in names(&text) {
                places.entry(name).or_default().push(place.clone());
            }
        }
    }
    assert!(places.contains_key("Model") && places.contains_key("hankel_values"));
    places.retain(|_, places| places.len() > 1);
    assert!(places.is_empty(), "{places:#?}");
}

#[test]
fn names_are_found() {
    let text = "pub struct One<'a>(u8);\npub const fn two() {}\npub(crate) enum Three {}\n    pub fn four() {}\npub const FIVE: u8 = 5;\npub use six::Seven;";
    assert_eq!(names(text), ["One", "two", "FIVE"]);
}
