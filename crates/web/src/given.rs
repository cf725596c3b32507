//! Data beside the checkpoint: what calibrates, and what is scored.

use hankelite::infer::{Answers, Network, Path};
use hankelite::model::{Model, Sequence};
use hankelite_data::{Dataset, Source};
use serde::Serialize;

use crate::{Fault, Session};

/// Sequences that calibrate.
const SEQUENCES: usize = 100;
/// Sequences that are scored at most.
const SCORED: usize = 500;
/// Draws the sequences that calibrate.
const SEED: u64 = 0;

/// Sequences in their two parts.
pub(crate) struct Given {
    /// Which calibrate, in words.
    pub(crate) origin: String,
    pub(crate) calibrating: Dataset,
    /// The others, at most [`SCORED`] of them.
    pub(crate) others: Option<Dataset>,
    /// The share of these that the model answers rightly.
    pub(crate) accuracy: Option<f64>,
}

/// What the data hold.
#[derive(Debug, Serialize)]
pub struct Known {
    /// Sequences that calibrate.
    pub calibrating: usize,
    /// Other ones.
    pub others: usize,
    /// Share of these that the model answers rightly, where there are labels.
    pub accuracy: Option<f64>,
}

/// One sequence.
#[derive(Debug, Serialize)]
pub struct Sample {
    /// Step by step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub values: Option<Vec<f32>>,
    /// Likewise, of a model that takes tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<u32>>,
    /// Its class, where it is known.
    pub label: Option<usize>,
}

impl Given {
    /// Of a file, or without bytes of a generated task.
    fn new(name: &str, bytes: Vec<u8>) -> Result<Self, Fault> {
        let data = match bytes.is_empty() {
            true => generated(name)?,
            false => Dataset::from_bytes(name, bytes)?,
        };
        let count = SEQUENCES.min(data.len());
        let origin = format!("{count} sequences of {name}, seed {SEED}");
        let (others, calibrating) = match data.len() > count {
            true => data
                .hold_out(count, SEED)
                .map(|(rest, own)| (Some(rest), own))?,
            false => (None, data),
        };
        let first = |rest: Dataset| rest.take(SCORED.min(rest.len()));
        Ok(Self {
            origin,
            calibrating,
            others: others.map(first).transpose()?,
            accuracy: None,
        })
    }

    /// What a model answers to the sequences that do not calibrate, where these have labels.
    pub(crate) fn answers(&self, model: &Model) -> Result<Option<Answers>, Fault> {
        let Some(others) = &self.others else {
            return Ok(None);
        };
        let Some(labels) = others.labels().filter(|_| model.head().is_some()) else {
            return Ok(None);
        };
        let listed = listed(others);
        let network = Network::new(model, steps(&listed, model), Path::Auto)?;
        Ok(Some(Answers::of(&network.logits_of_all(&listed)?, labels)))
    }
}

impl Session {
    /// Takes data: the bytes of a safetensors or `.npz` file, or none and the name of a generated task
    /// as the program spells it (`waves`).
    ///
    /// # Errors
    /// As [`Dataset::from_bytes`] and [`Dataset::read`], and for sequences that the network does not
    /// take.
    pub fn use_data(&mut self, name: &str, bytes: Vec<u8>) -> Result<Known, Fault> {
        self.require_whole()?;
        let mut given = Given::new(name, bytes)?;
        let answers = given.answers(&self.checkpoint.model)?;
        given.accuracy = answers.map(|answers| answers.accuracy());
        let known = Known {
            calibrating: given.calibrating.len(),
            others: given.others.as_ref().map_or(0, Dataset::len),
            accuracy: given.accuracy,
        };
        self.given = Some(given);
        Ok(known)
    }

    /// One sequence of the data, by preference of those that do not calibrate; behind the last one
    /// comes the first. `None` without data.
    pub fn sequence(&self, index: usize) -> Option<Sample> {
        let given = self.given.as_ref()?;
        let data = given.others.as_ref().unwrap_or(&given.calibrating);
        let index = index % data.len().max(1);
        let (values, tokens) = match data.unpadded(index) {
            Sequence::Values(values) => (Some(values.to_vec()), None),
            Sequence::Tokens(tokens) => (None, Some(tokens.to_vec())),
        };
        Some(Sample {
            values,
            tokens,
            label: data.labels().map(|labels| labels[index]),
        })
    }
}

/// All sequences of a set.
pub(crate) fn listed(data: &Dataset) -> Vec<Sequence<'_>> {
    (0..data.len()).map(|i| data.unpadded(i)).collect()
}

/// Those of the longest sequence.
pub(crate) fn steps(sequences: &[Sequence<'_>], model: &Model) -> usize {
    let inputs = model.inputs().unwrap_or(1).max(1);
    let steps = sequences.iter().map(|sequence| match sequence {
        Sequence::Values(values) => values.len() / inputs,
        Sequence::Tokens(tokens) => tokens.len(),
    });
    steps.max().unwrap_or(0)
}

fn generated(name: &str) -> Result<Dataset, Fault> {
    let source: Source = name.parse()?;
    match source.path() {
        None => Ok(Dataset::read(&source, None)?),
        Some(path) => Err(format!("{} is a file, expected its bytes", path.display()).into()),
    }
}
