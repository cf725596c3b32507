//! A model as small as its accuracy allows: no size is given, and sizes are tried from large to
//! small.

use anyhow::bail;
use hankelite::Declared;
use hankelite::advanced::{Sizes, Smallest, Targeted};
use hankelite::checkpoint::Checkpoint;
use hankelite::infer::Answers;
use hankelite::target::Size;
use hankelite_data::Dataset;
use serde::Serialize;

use crate::cli::calibration::{Sequences, require_axes};
use crate::cli::evaluate::alternatives::{Alternative, tried};
use crate::cli::printer::Printer;
use crate::cli::progress::Bars;
use crate::cli::reduce::arguments::Arguments;
use crate::cli::score::{CHANGE_MAX, Engine, First, Scores, labelled, logits};

/// Points of accuracy that may be lost where no number is given.
pub(super) const WITHIN: f64 = 0.5;

/// Sequences that are scored at most.
pub(super) const SCORED: usize = 2000;

/// Sequences by which the conventions of a file are checked.
const CHECKED: usize = 300;

/// A size that was tried.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Tried {
    pub(super) times: f64,
    pub(super) size: Size,
    /// Relative change of the logits of held-out sequences, of the calibration's where there are
    /// none.
    pub(super) change: f64,
    /// 0 to 1; absent without labels.
    pub(super) accuracy: Option<f64>,
    /// Standard error of its difference from the full model's.
    pub(super) difference_error: Option<f64>,
    /// Whether it is near enough.
    pub(super) accepted: bool,
}

/// How a size was chosen.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Choice {
    /// Points of accuracy that may be lost; with labels.
    pub(super) within: Option<f64>,
    /// The relative change of the logits that is allowed; without labels.
    pub(super) change_max: Option<f64>,
    pub(super) times: f64,
    pub(super) tried: Vec<Tried>,
    /// Sequences with labels that were scored.
    pub(super) scored: usize,
    #[serde(skip)]
    pub(super) scores: Option<[Scores; 2]>,
}

/// What the sizes are compared on.
pub(super) struct Search<'a> {
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) sizes: &'a Sizes<'a>,
    /// Labelled sequences that the calibration does not use.
    pub(super) data: Option<&'a Dataset>,
    /// Points.
    pub(super) within: f64,
}

/// What labelled sequences say of a model.
struct Scored {
    scores: Scores,
    answers: Answers,
}

impl Scored {
    fn of(checkpoint: &Checkpoint, data: &Dataset, printer: &Printer) -> anyhow::Result<Self> {
        let first = First::of(data, Some(SCORED));
        let engine = Engine::Host(hankelite::infer::Path::Auto);
        let made = logits(checkpoint, first, &engine, printer)?;
        Ok(Self {
            answers: Answers::of(&made.logits, data.labels().unwrap_or_default()),
            scores: made.scores(data)?,
        })
    }
}

impl Search<'_> {
    /// The smallest model that is near enough.
    ///
    /// # Errors
    /// None is, with what was reached.
    pub(super) fn run(
        &self,
        bars: &Bars<'_>,
        printer: &Printer,
    ) -> anyhow::Result<(Targeted, Choice)> {
        let of = |data| Scored::of(self.checkpoint, data, printer);
        let full = self.data.map(of).transpose()?;
        let (mut tried, mut best) = (Vec::new(), None);
        let found = self.sizes.smallest(|times, met| {
            let (one, scores) = self.one(times, met, full.as_ref(), printer)?;
            bars.clear();
            let accepted = one.accepted;
            if accepted {
                best = scores;
            }
            tried.push(one);
            Ok::<_, anyhow::Error>(accepted)
        })?;
        let Some(Smallest { times, made }) = found else {
            bail!(self.none(full.as_ref(), &tried));
        };
        let scored = full.as_ref().map_or(0, |full| full.answers.count());
        let both = full.zip(best).map(|(full, small)| [full.scores, small]);
        let choice = Choice {
            within: both.is_some().then_some(self.within),
            change_max: both.is_none().then_some(CHANGE_MAX),
            times,
            tried,
            scored,
            scores: both,
        };
        Ok((made, choice))
    }

    /// What one size loses.
    fn one(
        &self,
        times: f64,
        met: &Targeted,
        full: Option<&Scored>,
        printer: &Printer,
    ) -> anyhow::Result<(Tried, Option<Scores>)> {
        let change = met.held_out_change.unwrap_or(met.changes.after);
        let small = self.data.map(|data| {
            let smaller = self.checkpoint.with_model(met.model.clone());
            Scored::of(&smaller, data, printer)
        });
        let small = small.transpose()?;
        let loss = full
            .zip(small.as_ref())
            .map(|(full, small)| full.answers.loss_of(&small.answers));
        let tried = Tried {
            times,
            size: met.size,
            change,
            accuracy: small.as_ref().and_then(|small| small.scores.accuracy),
            difference_error: loss.map(|loss| loss.standard_error),
            accepted: match loss {
                Some(loss) => 100.0 * loss.loss <= self.within,
                None => change <= CHANGE_MAX,
            },
        };
        Ok((tried, small.map(|small| small.scores)))
    }

    /// That no size does.
    fn none(&self, full: Option<&Scored>, tried: &[Tried]) -> String {
        let reached = tried.iter().map(|one| match one.accuracy {
            Some(accuracy) => format!("1/{} {:.2} %", one.times, 100.0 * accuracy),
            None => format!(
                "1/{} changes logits by {:.2} %",
                one.times,
                100.0 * one.change
            ),
        });
        let reached = reached.collect::<Vec<_>>().join(", ");
        match full.and_then(|full| full.scores.accuracy) {
            Some(accuracy) => format!(
                "no size is within {} points of the full model's {:.2} %: {reached} (--within allows \
                 more points; --sequences 500 calibrates better)",
                self.within,
                100.0 * accuracy
            ),
            None => format!(
                "no size changes the logits of held-out sequences by at most {:.0} %: {reached} (--times X \
                 takes a size; --data with labels measures accuracy)",
                100.0 * CHANGE_MAX
            ),
        }
    }
}

impl Choice {
    /// The sizes in one line.
    pub(super) fn shown(&self) -> String {
        let rows = self.tried.iter().map(|one| match one.accuracy {
            Some(accuracy) => format!("1/{} {:.2} %", one.times, 100.0 * accuracy),
            None => format!("1/{} {:.1} %", one.times, 100.0 * one.change),
        });
        let rows = rows.collect::<Vec<_>>().join(", ");
        match self.within {
            Some(within) => format!(
                "the smallest within {within} points on {} sequences: {rows}",
                self.scored
            ),
            None => format!(
                "the smallest that changes the logits of held-out sequences by at most {:.0} %: {rows}",
                100.0 * CHANGE_MAX
            ),
        }
    }

    /// Where the sequences are too few to tell what is asked for.
    pub(super) fn remark(&self) -> Option<String> {
        let within = self.within.filter(|within| *within > 0.0)?;
        let last = self.tried.iter().rfind(|one| one.accepted)?;
        let error = 100.0 * last.difference_error?;
        let needed = self.scored as f64 * (2.0 * error / within).powi(2);
        (2.0 * error > within).then(|| {
            format!(
                "{} sequences tell accuracies apart that differ by {:.2} points; {within} points take about \
                 {:.0}",
                self.scored,
                2.0 * error,
                needed.ceil()
            )
        })
    }
}

/// What a target is made from.
pub(super) struct Given {
    /// The source of the calibration.
    pub(super) calibrate: String,
    pub(super) sequences: Sequences,
    /// With labels, for the accuracies.
    pub(super) data: Option<Dataset>,
}

impl Given {
    /// What the arguments name. Without a size, one set of data does for both: its parts where it has
    /// such, else so many of its sequences, at most half, calibrate, and the others are scored.
    pub(super) fn of(arguments: &Arguments, checkpoint: &Checkpoint) -> anyhow::Result<Self> {
        let sequences = arguments.ways.sequences().clone();
        let Some(source) = &arguments.data else {
            return Ok(Self {
                calibrate: arguments.calibrate.clone().unwrap_or_default(),
                sequences,
                data: None,
            });
        };
        if !arguments.is_without_size() {
            return Ok(Self {
                calibrate: arguments.calibrate.clone().unwrap_or_default(),
                sequences,
                data: Some(labelled(checkpoint, source)?),
            });
        }
        let data = Dataset::read(source, None)?;
        require_axes(&checkpoint.model, &data, &source.to_string())?;
        let named = source.to_string();
        let same = arguments.calibrate.as_ref().is_none_or(|own| *own == named);
        let one_set = same && source.splits().is_empty();
        let (data, sequences) = match one_set {
            false => (data, sequences),
            true if data.len() < 2 => bail!("{source} has 1 sequence, expected at least 2"),
            true => {
                let sequences = sequences.at_most(data.len() / 2);
                (sequences.left_of(&data)?, sequences)
            }
        };
        Ok(Self {
            calibrate: arguments.calibrate.clone().unwrap_or(named),
            sequences,
            data: Some(data).filter(|data| data.labels().is_some()),
        })
    }
}

/// What fits the labels of a file better than what was assumed.
pub(super) struct Convention {
    /// The flag without its dashes, and its value.
    pub(super) setting: String,
    pub(super) declared: Declared,
}

/// The convention of a file that fits its labels, where what was assumed clearly does not.
pub(super) fn conventions(
    arguments: &Arguments,
    checkpoint: &Checkpoint,
    data: &Dataset,
    printer: &Printer,
) -> anyhow::Result<Option<Convention>> {
    if checkpoint.assumptions().is_empty() {
        return Ok(None);
    }
    let first = First::of(data, Some(CHECKED));
    let path = &arguments.input.checkpoint;
    let (own, others) = tried(path, checkpoint.declared(), first, printer)?;
    let better = others.iter().filter(|other| other.is_better());
    let best = better.max_by(|a, b| a.accuracy().total_cmp(&b.accuracy()));
    Ok(best.map(|best: &Alternative| {
        let text = format!(
            "{} fits the labels of {} sequences clearly better ({} instead of {own}) and is taken: give \
             --{}",
            best.setting(),
            own.examples,
            best.scores(),
            best.setting(),
        );
        printer.note("warning", &text);
        Convention {
            setting: best.setting().to_string(),
            declared: best.declared(),
        }
    }))
}
