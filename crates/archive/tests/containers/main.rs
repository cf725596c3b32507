//! Containers: files that other libraries wrote, what goes in comes out, and hostile files.
#![allow(
    clippy::unwrap_used,
    reason = "a failure here is a failure of the test"
)]

#[path = "../../../../tests/common/mod.rs"]
mod common;

mod folders;
mod libraries;
mod random;
mod shards;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use hankelite_archive::{Archive, RawTensor};

fn fixture(name: &str) -> PathBuf {
    common::here("data/containers").join(name)
}

fn open(path: &Path) -> Archive {
    Archive::open(path).unwrap_or_else(|error| panic!("{}", chain(&error)))
}

/// An error with all its sources.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

fn all(archive: &Archive) -> BTreeMap<String, RawTensor> {
    let tensor = |name: &str| (name.to_owned(), archive.tensor(name).unwrap());
    archive.names().map(tensor).collect()
}
