//! Sequences, and the logits that the original formulas give for them, of one folder of fixtures.
#![allow(dead_code, reason = "each test program uses a part")]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::path::Path;

use hankelite::infer::{Network, Path as InferPath};
use hankelite::model::{Model, Sequence};
use hankelite_archive::Archive;

/// Steps of every sequence.
pub(crate) const LENGTH: usize = 24;

/// A golden file.
pub(crate) struct Golden {
    archive: Archive,
    /// Two numbers a step.
    pub(crate) values: Vec<Vec<f32>>,
    pub(crate) tokens: Vec<Vec<u32>>,
}

impl Golden {
    pub(crate) fn open(path: impl AsRef<Path>) -> Self {
        let archive = Archive::open(path).unwrap();
        let inputs = archive.tensor("inputs").unwrap().to_f64().unwrap();
        let tokens = archive.tensor("tokens").unwrap().to_i64().unwrap();
        let single = |values: &[f64]| values.iter().map(|&x| x as f32).collect();
        let index = |tokens: &[i64]| tokens.iter().map(|&token| token as u32).collect();
        Self {
            archive,
            values: inputs.chunks(2 * LENGTH).map(single).collect(),
            tokens: tokens.chunks(LENGTH).map(index).collect(),
        }
    }

    /// What a fixture takes: tokens, where its name has them.
    pub(crate) fn sequences(&self, name: &str) -> Vec<Sequence<'_>> {
        match name.starts_with("lru_tokens") {
            true => self.tokens.iter().map(|t| Sequence::Tokens(t)).collect(),
            false => self.values.iter().map(|v| Sequence::Values(v)).collect(),
        }
    }

    /// A tensor of the file.
    pub(crate) fn truth(&self, key: &str) -> Vec<f64> {
        self.archive.tensor(key).unwrap().to_f64().unwrap()
    }
}

/// The logits of all sequences, one after the other.
pub(crate) fn logits(model: &Model, sequences: &[Sequence<'_>]) -> Vec<f64> {
    let network = Network::new(model, LENGTH, InferPath::Double).unwrap();
    network.logits_of_all(sequences).unwrap().concat()
}

pub(crate) fn largest_difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    let apart = a.iter().zip(b).map(|(a, b)| (a - b).abs());
    apart.fold(0.0, f64::max)
}
