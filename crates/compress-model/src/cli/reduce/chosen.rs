//! A model as small as its accuracy allows: no size is given, and sizes are tried from large to
//! small.

use anyhow::bail;
use hankelite::checkpoint::{Checkpoint, Declared};
use hankelite::target::{Met, Parts, Planner, Size};
use hankelite_data::Dataset;
use serde::Serialize;

use crate::cli::calibration::{Sequences, require_axes};
use crate::cli::evaluate::alternatives::{Alternative, tried};
use crate::cli::printer::Printer;
use crate::cli::progress::Bars;
use crate::cli::reduce::arguments::Arguments;
use crate::cli::score::{Engine, First, Logits, Scores, labelled, logits};

/// How many times fewer bytes are tried.
const TIMES: [f64; 8] = [2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0];

/// Points of accuracy that may be lost where no number is given.
pub(super) const WITHIN: f64 = 0.5;

/// Sizes in a row that do not do before the search ends.
const MISSES: usize = 2;

/// Sequences that are scored at most.
const SCORED: usize = 2000;

/// Sequences by which the conventions of a file are checked.
const CHECKED: usize = 300;

/// Without labels, the change of the logits of held-out sequences that is allowed.
const CHANGE_MAX: f64 = 0.05;

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
    pub(super) planner: &'a dyn Planner,
    pub(super) full: Size,
    pub(super) parts: Parts,
    pub(super) held_out: &'a [hankelite::model::Sequence<'a>],
    /// Labelled sequences that the calibration does not use.
    pub(super) data: Option<&'a Dataset>,
    /// Points.
    pub(super) within: f64,
}

/// The logits of the labelled sequences, and which of them are right.
struct Scored {
    scores: Scores,
    right: Vec<bool>,
}

impl Scored {
    fn of(checkpoint: &Checkpoint, data: &Dataset, printer: &Printer) -> anyhow::Result<Self> {
        let first = First::of(data, Some(SCORED));
        let made = logits(
            checkpoint,
            first,
            &Engine::Host(hankelite::infer::Path::Auto),
            printer,
        )?;
        Ok(Self {
            scores: made.scores(data)?,
            right: right(&made, data),
        })
    }

    /// How much less accurate another model is on the same sequences, with the standard error. One
    /// difference more than was seen is counted: none on few sequences proves little.
    fn loss(&self, other: &Self) -> (f64, f64) {
        let pairs = self.right.iter().zip(&other.right);
        let apart = pairs.map(|(own, other)| f64::from(*own) - f64::from(*other));
        let (count, mut sum, mut squares) = (self.right.len() as f64, 0.0, 0.0);
        for one in apart {
            sum += one;
            squares += one * one;
        }
        (sum / count, (squares + 1.0).sqrt() / count)
    }
}

fn right(made: &Logits, data: &Dataset) -> Vec<bool> {
    let labels = data.labels().unwrap_or_default();
    let rows = made.logits.iter().zip(labels);
    rows.map(|(logits, &label)| hankelite::infer::Score::class(logits) == label)
        .collect()
}

impl Search<'_> {
    /// The smallest model that is near enough.
    ///
    /// # Errors
    /// None is, with what was reached.
    pub(super) fn run(&self, bars: &Bars<'_>, printer: &Printer) -> anyhow::Result<(Met, Choice)> {
        let full = self
            .data
            .map(|data| Scored::of(self.checkpoint, data, printer));
        let full = full.transpose()?;
        let (mut best, mut tried, mut misses) = (None, Vec::new(), 0);
        for times in TIMES {
            bars.part(format!("1/{times} of the bytes"));
            let Some((met, one, scores)) = self.one(times, full.as_ref(), printer)? else {
                break;
            };
            bars.clear();
            misses = if one.accepted { 0 } else { misses + 1 };
            if one.accepted {
                best = Some((met, times, scores));
            }
            tried.push(one);
            if misses == MISSES {
                break;
            }
        }
        let Some((met, times, scores)) = best else {
            bail!(self.none(full.as_ref(), &tried));
        };
        let scored = full.as_ref().map_or(0, |full| full.right.len());
        let both = full.zip(scores).map(|(full, small)| [full.scores, small]);
        let choice = Choice {
            within: both.is_some().then_some(self.within),
            change_max: both.is_none().then_some(CHANGE_MAX),
            times,
            tried,
            scored,
            scores: both,
        };
        Ok((met, choice))
    }

    /// One size; `None` where it is smaller than what can be reached.
    fn one(
        &self,
        times: f64,
        full: Option<&Scored>,
        printer: &Printer,
    ) -> anyhow::Result<Option<(Met, Tried, Option<Scores>)>> {
        let bytes = (self.full.total() as f64 / times) as usize;
        let plan = match self.planner.plan_within(&bytes.into(), self.parts) {
            Err(hankelite::target::TargetError::TooSmall { .. }) => return Ok(None),
            plan => plan?,
        };
        let made = self.planner.build(&plan)?;
        let held_out_change = match self.held_out {
            [] => None,
            held_out => Some(self.planner.reduction().change_on(&made.model, held_out)?),
        };
        let change = held_out_change.unwrap_or(made.changes.after);
        let small = match self.data {
            None => None,
            Some(data) => {
                let smaller = self.checkpoint.with_model(made.model.clone());
                Some(Scored::of(&smaller, data, printer)?)
            }
        };
        let loss = full
            .zip(small.as_ref())
            .map(|(full, small)| full.loss(small));
        let tried = Tried {
            times,
            size: made.size,
            change,
            accuracy: small.as_ref().and_then(|small| small.scores.accuracy),
            difference_error: loss.map(|(_, error)| error),
            accepted: match loss {
                Some((loss, _)) => 100.0 * loss <= self.within,
                None => change <= CHANGE_MAX,
            },
        };
        let met = Met {
            made,
            held_out_change,
        };
        Ok(Some((met, tried, small.map(|small| small.scores))))
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
