//! A network on labelled data: its logits, and what they score.

use std::ops::Range;
use std::time::Instant;

use anyhow::bail;
use hankelite::checkpoint::Checkpoint;
use hankelite::infer::{Network, Path, Score};
use hankelite::model::Model;
use hankelite_data::{Dataset, Source};
use hankelite_report::Accuracy;
#[cfg(feature = "train")]
use hankelite_train::{Place, nn, nn::TrainableOptions, require_suitable};
use serde::Serialize;

use crate::cli::common::require_length;
use crate::cli::printer::Printer;
#[cfg(feature = "train")]
use crate::cli::retrain::parameterisation;

/// Sequences between two steps of the progress bar.
const BATCH: usize = 64;

/// Without labels, the relative change of the logits of held-out sequences up to which a smaller
/// model is chosen.
pub(super) const CHANGE_MAX: f64 = 0.05;

/// The first sequences of a data set.
#[derive(Clone, Copy)]
pub(super) struct First<'a> {
    pub(super) data: &'a Dataset,
    pub(super) count: usize,
}

impl<'a> First<'a> {
    /// All of them.
    pub(super) fn all(data: &'a Dataset) -> Self {
        Self::of(data, None)
    }

    /// So many, or all where there are no more or none is said.
    pub(super) fn of(data: &'a Dataset, limit: Option<usize>) -> Self {
        let count = limit.unwrap_or(data.len()).min(data.len());
        Self { data, count }
    }
}

/// What runs the layers.
pub(super) enum Engine {
    /// Double precision.
    Host(Path),
    /// The training engine.
    #[cfg(feature = "train")]
    Trainer(Place),
}

/// What one checkpoint scored.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Scores {
    /// 0 to 1; absent without labels, as are the next two.
    pub(super) accuracy: Option<f64>,
    pub(super) standard_error: Option<f64>,
    loss: Option<f64>,
    pub(super) examples: usize,
    seconds: f64,
    examples_per_second: f64,
}

impl std::fmt::Display for Scores {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.rate() {
            Some(rate) => rate.fmt(f),
            None => write!(f, "no labels"),
        }
    }
}

impl Scores {
    /// Absent without labels.
    pub(super) fn rate(&self) -> Option<Accuracy> {
        Some(Accuracy {
            share: self.accuracy?,
            error: self.standard_error?,
        })
    }
}

/// The scores of a second checkpoint, and how far its logits are from those of the first.
#[derive(Serialize)]
pub(super) struct Comparison {
    pub(super) checkpoint: String,
    #[serde(flatten)]
    pub(super) scores: Scores,
    max_difference: f64,
    mean_difference: f64,
    agreement: f64,
}

/// Labelled data that suit a checkpoint: for a check before long work.
pub(super) fn labelled(checkpoint: &Checkpoint, source: &Source) -> anyhow::Result<Dataset> {
    let data = Dataset::read(source, None)?;
    if data.labels().is_none() {
        bail!("{source}: no `labels`, which an accuracy needs");
    }
    Network::new(&checkpoint.model, data.length(), Path::Recurrence)?.logits(data.sequence(0))?;
    Ok(data)
}

/// Accuracy and loss of a checkpoint, right to single precision.
pub(super) fn score(
    checkpoint: &Checkpoint,
    sequences: First<'_>,
    printer: &Printer,
) -> anyhow::Result<Scores> {
    let engine = Engine::Host(Path::Auto);
    logits(checkpoint, sequences, &engine, printer)?.scores(sequences.data)
}

/// The logits of some sequences, and how long they took.
pub(super) struct Logits {
    pub(super) logits: Vec<Vec<f64>>,
    seconds: f64,
}

pub(super) fn logits(
    checkpoint: &Checkpoint,
    sequences: First<'_>,
    engine: &Engine,
    printer: &Printer,
) -> anyhow::Result<Logits> {
    require_length(checkpoint, sequences.data.length())?;
    match engine {
        Engine::Host(path) => host_logits(&checkpoint.model, sequences, *path, printer),
        #[cfg(feature = "train")]
        Engine::Trainer(place) => trainer_logits(checkpoint, sequences, place, printer),
    }
}

/// The same on the host.
pub(super) fn host_logits(
    model: &Model,
    sequences: First<'_>,
    path: Path,
    printer: &Printer,
) -> anyhow::Result<Logits> {
    let First { data, count } = sequences;
    Logits::timed(|| {
        let network = Network::new(model, data.length(), path)?;
        in_batches(count, printer, |batch| {
            let listed: Vec<_> = batch.map(|index| data.unpadded(index)).collect();
            Ok(network.logits_of_all(&listed)?)
        })
    })
}

/// The same by the training engine.
#[cfg(feature = "train")]
fn trainer_logits(
    checkpoint: &Checkpoint,
    sequences: First<'_>,
    place: &Place,
    printer: &Printer,
) -> anyhow::Result<Logits> {
    let First { data, count } = sequences;
    Logits::timed(|| {
        let network = trainable(checkpoint, data, place)?;
        in_batches(count, printer, |batch| {
            let indices: Vec<usize> = batch.collect();
            Ok(hankelite_train::logits(&network, data, &indices)?)
        })
    })
}

/// The network of a checkpoint on the training engine.
#[cfg(feature = "train")]
pub(super) fn trainable(
    checkpoint: &Checkpoint,
    data: &Dataset,
    place: &Place,
) -> anyhow::Result<nn::TrainableNetwork> {
    let device = place.open()?;
    require_suitable(&checkpoint.model, data)?;
    let options = TrainableOptions {
        parameterisation: parameterisation(checkpoint),
        ..TrainableOptions::new(data.length())
    };
    Ok(nn::TrainableNetwork::from_model(
        &checkpoint.model,
        &options,
        &device,
    )?)
}

/// The logits of the first sequences, some at a time, with a progress bar.
pub(super) fn in_batches(
    count: usize,
    printer: &Printer,
    run: impl Fn(Range<usize>) -> anyhow::Result<Vec<Vec<f64>>>,
) -> anyhow::Result<Vec<Vec<f64>>> {
    let progress = printer.progress(count, "sequences");
    let mut logits = Vec::with_capacity(count);
    for first in (0..count).step_by(BATCH) {
        let batch = first..(first + BATCH).min(count);
        progress.inc(batch.len() as u64);
        logits.extend(run(batch)?);
    }
    progress.finish_and_clear();
    Ok(logits)
}

impl Logits {
    pub(super) fn timed(
        run: impl FnOnce() -> anyhow::Result<Vec<Vec<f64>>>,
    ) -> anyhow::Result<Self> {
        let start = Instant::now();
        let logits = run()?;
        let seconds = start.elapsed().as_secs_f64();
        Ok(Self { logits, seconds })
    }

    pub(super) fn scores(&self, data: &Dataset) -> anyhow::Result<Scores> {
        let mut score = Score::default();
        for (index, logits) in self.logits.iter().enumerate() {
            let Some(labels) = data.labels() else { break };
            let classes = Score::classes(logits.len());
            if labels[index] >= classes {
                bail!(
                    "label {} of sequence {index} is outside the model's {classes} classes",
                    labels[index]
                );
            }
            score.add(logits, labels[index]);
        }
        let scored = (score.examples() > 0).then_some(score);
        Ok(Scores {
            accuracy: scored.map(|score| score.accuracy()),
            standard_error: scored.map(|score| score.standard_error()),
            loss: scored.map(|score| score.loss()),
            examples: self.logits.len(),
            seconds: self.seconds,
            examples_per_second: self.logits.len() as f64 / self.seconds,
        })
    }

    /// How far these logits are from those of another checkpoint on the same sequences.
    pub(super) fn compare(
        &self,
        checkpoint: String,
        other: &Logits,
        data: &Dataset,
    ) -> anyhow::Result<Comparison> {
        let mut pairs = self.logits.iter().zip(&other.logits);
        if let Some((one, other)) = pairs.find(|(one, other)| one.len() != other.len()) {
            bail!(
                "{checkpoint} has {} classes, expected {}",
                other.len(),
                one.len()
            );
        }
        let apart = Apart::of(&self.logits, &other.logits);
        Ok(Comparison {
            checkpoint,
            scores: other.scores(data)?,
            max_difference: apart.largest,
            mean_difference: apart.mean,
            agreement: apart.agreement,
        })
    }
}

/// How far logits of the same sequences are apart.
#[derive(Debug, PartialEq)]
struct Apart {
    largest: f64,
    mean: f64,
    /// The share of sequences with the same class, 0 to 1.
    agreement: f64,
}

impl Apart {
    fn of(first: &[Vec<f64>], second: &[Vec<f64>]) -> Self {
        let pairs = first.iter().zip(second);
        let differences = pairs
            .clone()
            .flat_map(|(one, other)| one.iter().zip(other))
            .map(|(one, other)| (one - other).abs());
        let differences: Vec<f64> = differences.collect();
        let same = pairs.filter(|(one, other)| Score::class(one) == Score::class(other));
        Self {
            largest: differences.iter().copied().fold(0.0, f64::max),
            mean: differences.iter().sum::<f64>() / differences.len() as f64,
            agreement: same.count() as f64 / first.len() as f64,
        }
    }
}

/// Accuracies, and how far the logits are apart.
pub(super) fn show_scores(
    name: &str,
    scores: &Scores,
    against: Option<&Comparison>,
    printer: &Printer,
) -> anyhow::Result<()> {
    let header = ["checkpoint", "accuracy", "loss", "examples", "examples/s"];
    let row = |name: &str, scores: &Scores| {
        let loss = scores.loss.map(|loss| format!("{loss:.5}"));
        vec![
            name.to_string(),
            scores.to_string(),
            loss.unwrap_or("-".to_string()),
            scores.examples.to_string(),
            format!("{:.0}", scores.examples_per_second),
        ]
    };
    let mut rows = vec![row(name, scores)];
    rows.extend(against.map(|other| row(&other.checkpoint, &other.scores)));
    printer.table(&header, rows)?;
    let Some(other) = against else { return Ok(()) };
    printer.line(&format!(
        "logits differ by at most {:.3e}, on average {:.3e}; same class on {:.2} % of the sequences",
        other.max_difference,
        other.mean_difference,
        100.0 * other.agreement,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_are_compared_by_their_largest_and_mean_difference_and_their_classes() {
        let first = [vec![1.0, 2.0], vec![1.0, 2.0]];
        let second = [vec![1.5, 2.0], vec![1.0, -2.0]];
        let expected = Apart {
            largest: 4.0,
            mean: 4.5 / 4.0,
            agreement: 0.5,
        };
        assert_eq!(Apart::of(&first, &second), expected);
        // Of one logit the sign is the class.
        let apart = Apart::of(&[vec![1.0], vec![1.0]], &[vec![-1.0], vec![2.0]]);
        assert_eq!(apart.agreement, 0.5);
    }
}
