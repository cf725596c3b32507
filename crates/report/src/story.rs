//! The words of a report: its verdict, its figures, where they came from.

use std::fmt::{self, Write as _};

use hankelite::compress::LayerRecord;
use serde_json::Value;

use crate::layers::{LayerSummary, Plotted};
use crate::number::{grouped, percent, short};
use crate::page::{Cell, Fact, Page, PageTable};

/// Bytes of a model with its state, and the time of a step.
#[derive(Debug, Clone, Copy)]
pub struct Footprint {
    /// Weights and the state of one stream.
    pub bytes: usize,
    /// Microseconds of a step on this machine; absent where none was timed.
    pub microseconds: Option<f64>,
    /// How its numbers are stored, where that is not as in the written file.
    pub stored: &'static str,
}

/// A share of right answers with its standard error, both 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Accuracy {
    /// Of all sequences.
    pub share: f64,
    /// Of that share.
    pub error: f64,
}

impl fmt::Display for Accuracy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [share, error] = [self.share, self.error].map(|value| 100.0 * value);
        write!(f, "{share:.2} ± {error:.2} %")
    }
}

/// A number before and, where there is a second model, after.
#[derive(Debug, Clone, Copy)]
pub struct Pair<T> {
    /// Of the first model.
    pub before: T,
    /// Of the second.
    pub after: Option<T>,
}

impl<T> Pair<T> {
    /// Of one model.
    pub fn alone(before: T) -> Self {
        let after = None;
        Self { before, after }
    }
}

/// What a report is about, beside the curves.
pub struct Story<'a> {
    /// The heading: the files by their names.
    pub title: String,
    /// As [`hankelite::checkpoint::Checkpoint::family`] has it.
    pub family: &'a str,
    /// Of the files.
    pub parameters: Pair<usize>,
    /// Absent where the network does not run sample by sample.
    pub footprint: Option<Pair<Footprint>>,
    /// Whether layers alone were read, of a network that cannot be run here.
    pub layers_alone: bool,
    /// On labelled data.
    pub accuracy: Option<Pair<Accuracy>>,
    /// Relative change of the logits, and of which sequences.
    pub logit_change: Option<(f64, &'a str)>,
    /// What was assumed of the files.
    pub assumptions: &'a [String],
    /// What a person should know.
    pub warnings: Vec<String>,
    /// Where everything came from, name by name.
    pub provenance: Vec<(String, String)>,
}

impl Story<'_> {
    /// The page of this story, with the curves of [`Plotted::layers`] and what a command gives as JSON.
    pub fn page(mut self, layers: Vec<LayerSummary>, drawn: &Plotted<'_>, record: Value) -> Page {
        if let Some(records) = drawn.records {
            self.warnings.extend(remarks(records));
        }
        Page {
            verdict: self.verdict(&layers),
            facts: self.facts(&layers),
            tables: vec![layer_table(&layers, drawn)],
            title: self.title,
            assumptions: self.assumptions.to_vec(),
            provenance: self.provenance,
            warnings: self.warnings,
            record,
            layers: layers.into_iter().map(|layer| layer.plots).collect(),
            ..Page::default()
        }
    }

    /// What was found, in a sentence.
    fn verdict(&self, layers: &[LayerSummary]) -> String {
        let Some(parameters) = self.parameters.after else {
            return self.verdict_of_one(layers);
        };
        let ratio = parameters as f64 / self.parameters.before.max(1) as f64;
        let stores = format!("stores {:.1} % of the parameters", 100.0 * ratio);
        let runs = self.footprint.and_then(|pair| {
            let (before, after) = (pair.before, pair.after?);
            let mut text = format!(
                "runs in {} bytes instead of {}{}",
                grouped(after.bytes),
                grouped(before.bytes),
                after.stored
            );
            if let (Some(before), Some(after)) = (before.microseconds, after.microseconds) {
                let (before, after) = (short(before), short(after));
                let _ = write!(text, " and takes {after} µs a step instead of {before}");
            }
            Some((text, after.stored.is_empty()))
        });
        let mut text = match runs {
            // An image: the parameters of a checkpoint say little about it.
            Some((runs, true)) => format!("The smaller model {runs}"),
            Some((runs, false)) => format!("The smaller model {stores}, {runs}"),
            None => format!("The smaller model {stores}"),
        };
        if self.layers_alone {
            text.push_str("; layers alone were read, so the network itself was not run");
        }
        match (self.accuracy, self.logit_change) {
            (
                Some(Pair {
                    before,
                    after: Some(after),
                }),
                _,
            ) => {
                let change = change_of(before, after);
                let _ = write!(
                    text,
                    "; its accuracy is {after} instead of {before}, {change}"
                );
            }
            (_, Some((change, sequences))) => {
                let _ = write!(
                    text,
                    "; the logits of {sequences} change by {}",
                    percent(change)
                );
            }
            _ => {
                let _ = write!(text, "; {}", change_of_layers(layers));
            }
        }
        text + "."
    }

    fn verdict_of_one(&self, layers: &[LayerSummary]) -> String {
        let needed: Vec<(usize, f64)> = layers.iter().filter_map(|layer| layer.needed).collect();
        let all: usize = needed.iter().map(|(all, _)| all).sum();
        let few: f64 = needed.iter().map(|(_, few)| few).sum();
        let channels: usize = layers.iter().map(|layer| layer.plots.channels.count).sum();
        let mut text = format!(
            "{}, {} layers, {channels} channels",
            self.family,
            layers.len()
        );
        if let Some(Pair { before, .. }) = self.accuracy {
            let _ = write!(text, ", accuracy {before}");
        }
        let growing = layers.iter().filter(|layer| layer.needed.is_none()).count();
        if growing > 0 {
            let _ = write!(text, "; {growing} layers have no stable channel");
        }
        if all == 0 || !few.is_finite() {
            return text + ".";
        }
        format!(
            "{text}: in the median channel, {:.0} of {all} real states over all layers leave an \
             error bound of 1 % of the largest Hankel singular value, so about {:.0} % could be \
             cut for any input. For the inputs that the layers really have, more: calibrate.",
            few,
            100.0 * (1.0 - few / all as f64)
        )
    }

    fn facts(&self, layers: &[LayerSummary]) -> Vec<Fact> {
        let mut facts = vec![counted("Parameters", self.parameters)];
        let states = layers.iter().map(|layer| layer.states);
        let (before, after) = states.fold((0, Some(0)), |(before, after), layer| {
            (before + layer.0, after.and_then(|sum| Some(sum + layer.1?)))
        });
        facts.push(counted("Stored states", Pair { before, after }));
        if self.layers_alone {
            facts.push(Fact {
                name: "Bytes and time of a step".to_string(),
                before: "layers alone".to_string(),
                after: None,
                note: "the network around them is not known".to_string(),
            });
        }
        if let Some(Pair { before, after }) = self.footprint {
            let bytes = Pair {
                before: before.bytes,
                after: after.map(|after| after.bytes),
            };
            let mut counted = counted("Bytes of weights and state", bytes);
            counted.note.push_str(after.unwrap_or(before).stored);
            facts.push(counted);
            facts.extend(step_time(before, after));
        }
        if let Some(Pair { before, after }) = self.accuracy {
            let note = after.map(|after| change_of(before, after));
            facts.push(Fact {
                name: "Accuracy".to_string(),
                before: before.to_string(),
                after: after.map(|after| after.to_string()),
                note: note.unwrap_or_default(),
            });
        }
        if let Some((change, sequences)) = self.logit_change {
            facts.push(Fact {
                name: "Change of the logits".to_string(),
                before: percent(change),
                after: None,
                note: format!("of {sequences}"),
            });
        }
        facts
    }
}

fn counted(name: &str, Pair { before, after }: Pair<usize>) -> Fact {
    Fact {
        name: name.to_string(),
        before: grouped(before),
        after: after.map(grouped),
        note: after.map_or(String::new(), |after| {
            format!("{:.1} %", 100.0 * after as f64 / before.max(1) as f64)
        }),
    }
}

/// The time of a step, where it was measured.
fn step_time(before: Footprint, after: Option<Footprint>) -> Option<Fact> {
    let before = before.microseconds?;
    let after = after.and_then(|after| after.microseconds);
    let in_words = |microseconds| format!("{} µs", short(microseconds));
    let times = after.map(|after| format!("{:.2} times as fast", before / after));
    Some(Fact {
        name: "A step on this machine".to_string(),
        before: in_words(before),
        after: after.map(in_words),
        note: times.unwrap_or_default(),
    })
}

/// How much the layers themselves change.
fn change_of_layers(layers: &[LayerSummary]) -> String {
    let errors = layers
        .iter()
        .filter_map(|l| l.weighted_error.or(l.kernel_error));
    let worst = errors.fold(0.0, f64::max);
    let what = match layers.iter().any(|layer| layer.weighted_error.is_some()) {
        true => "output of its worst layer for its own input changes",
        false => "kernels of its worst layer change",
    };
    format!("the {what} by {}", percent(worst))
}

/// How far two accuracies are apart, in words.
fn change_of(before: Accuracy, after: Accuracy) -> String {
    let change = after.share - before.share;
    let error = before.error.hypot(after.error);
    let far = match change.abs() <= 2.0 * error {
        true => "within two standard errors",
        false => "more than two standard errors",
    };
    let points = format!("{:+.2}", 100.0 * change).replace('-', "−");
    format!("{points} points, {far}")
}

/// Every remark once, with the channels that it concerns.
fn remarks(records: &[LayerRecord]) -> Vec<String> {
    let mut remarks: Vec<(String, usize)> = Vec::new();
    for layer in records {
        for note in layer.channels.iter().flat_map(|channel| &channel.notes) {
            let text = format!("{}: {note}", layer.name);
            match remarks.iter_mut().find(|(known, _)| *known == text) {
                Some((_, count)) => *count += 1,
                None => remarks.push((text, 1)),
            }
        }
    }
    let shown = remarks.into_iter().map(|(text, count)| match count {
        1 => text,
        count => format!("{text} ({count} channels)"),
    });
    shown.collect()
}

fn layer_table(layers: &[LayerSummary], drawn: &Plotted<'_>) -> PageTable {
    let two = drawn.reduced.is_some();
    let recorded = drawn.records.filter(|_| two);
    let bounded = drawn
        .records
        .unwrap_or_default()
        .iter()
        .any(|layer| layer.error_bound.is_finite());
    let weighted = layers.iter().any(|layer| layer.weighted_error.is_some());
    let kernel = format!("kernel error, {} steps", drawn.steps);
    let mut header = vec!["layer", "channels", "states stored"];
    if two {
        header.extend(["after", "used, mean", &kernel]);
    }
    header.extend(weighted.then_some("error for own input"));
    if recorded.is_some() {
        header.push("H2 error");
        header.extend(bounded.then_some("error bound (worst)"));
        header.push("cond(V)");
    }
    header.extend(["real states for a 1 % bound", "slowest |a|"]);
    let count = |value: usize| Cell::number(value as f64, |value| format!("{value:.0}"));
    let share = |value: Option<f64>| Cell::number(value.unwrap_or(f64::NAN), percent);
    let row = |(index, layer): (usize, &LayerSummary)| {
        let channels = layer.plots.channels.count;
        let mut row = vec![
            Cell::text(&layer.plots.name),
            count(channels),
            count(layer.order.0),
        ];
        if let (Some(order), Some(states)) = (layer.order.1, layer.states.1) {
            let mean = states as f64 / channels.max(1) as f64;
            row.extend([
                count(order),
                Cell::number(mean, |mean| format!("{mean:.2}")),
            ]);
            row.push(share(layer.kernel_error));
        }
        row.extend(weighted.then(|| share(layer.weighted_error)));
        if let Some(record) = recorded.and_then(|records| records.get(index)) {
            row.push(share(Some(record.relative_h2_error)));
            row.extend(bounded.then(|| Cell::number(record.error_bound, short)));
            row.push(Cell::number(record.condition, short));
        }
        let needed = layer.needed.map_or(f64::NAN, |(_, needed)| needed);
        row.push(Cell::number(needed, |needed| format!("{needed:.0}")));
        row.push(Cell::number(layer.slowest, |slowest| {
            format!("{slowest:.6}")
        }));
        row
    };
    PageTable {
        title: "Layers".to_string(),
        caption: "A click on a heading sorts. Errors are root mean squares over the channels of a \
                  layer, relative to the full model. A stored state is a conjugate pair or a real \
                  pole."
            .to_string(),
        header: header.into_iter().map(str::to_string).collect(),
        rows: layers.iter().enumerate().map(row).collect(),
        folded: false,
    }
}
