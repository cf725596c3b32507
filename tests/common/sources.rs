//! Sources by their text, and what a data set holds.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::{Path, PathBuf};

use hankelite::model::Sequence;
use hankelite_data::{Dataset, Source, Split, Targets};

pub(crate) fn source(text: &str) -> Source {
    text.parse().unwrap()
}

pub(crate) fn train(text: &str) -> Dataset {
    Dataset::read(&source(text), Some(Split::Train)).unwrap()
}

/// The message of the error, without a split.
pub(crate) fn refused(text: &str) -> String {
    Dataset::read(&source(text), None).unwrap_err().to_string()
}

pub(crate) fn values(data: &Dataset, index: usize) -> &[f32] {
    match data.sequence(index) {
        Sequence::Values(values) => values,
        Sequence::Tokens(_) => panic!("tokens"),
    }
}

pub(crate) fn tokens(data: &Dataset, index: usize) -> &[u32] {
    match data.sequence(index) {
        Sequence::Tokens(tokens) => tokens,
        Sequence::Values(_) => panic!("numbers"),
    }
}

pub(crate) fn answers(data: &Dataset) -> &[f32] {
    match data.targets() {
        Targets::Values { values, width: 1 } => values,
        other => panic!("{other:?}"),
    }
}

/// Everything a data set holds.
pub(crate) fn contents(data: &Dataset) -> hankelite_data::Batch {
    data.batch(&(0..data.len()).collect::<Vec<_>>())
}

pub(crate) fn file(folder: &Path, name: &str, bytes: &[u8]) -> PathBuf {
    let path = folder.join(name);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(&path, bytes).unwrap();
    path
}

/// Every generated task, small.
pub(crate) const TASKS: [&str; 10] = [
    "recall:delay=7,count=300,held_out=40",
    "adding:length=11,count=300,held_out=40",
    "copy:lag=5,count=300,held_out=40",
    "lagged-sine:length=20,count=300,held_out=40",
    "ar:lag=3,length=9,pairs=2,count=300,held_out=40",
    "listops:max_length=60,min_length=10,count=300,held_out=40",
    "waves:length=40,count=300,held_out=40",
    "sprites:frames=3,size=8,count=300,held_out=40",
    "sparse:size=16,frames=3,count=300,held_out=40",
    "teacher:length=5,width=3,heads=6,count=300,held_out=40",
];
