//! The words of a report: its verdict, its figures, where they came from.

use std::fmt::Write as _;
use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use hankelite::checkpoint::Checkpoint;
use hankelite::compress::LayerRecord;
use hankelite::rounding::Storage;
use hankelite::target::{Size, step_microseconds};
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::cli::common::{grouped, quoted, short};
use crate::cli::printer::Printer;
use crate::cli::report::layers::{LayerSummary, Plotted};
use crate::cli::score::Scores;
use crate::report::{Cell, Fact, Page, PageTable};

/// Bytes of a model with its state, and microseconds of a step on this machine.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct Footprint {
    pub(in crate::cli) bytes: usize,
    pub(in crate::cli) microseconds: f64,
    /// How its numbers are stored, where that is not as in the written file.
    pub(in crate::cli) stored: &'static str,
}

impl Footprint {
    /// In single precision. Absent for models that cannot be run sample by sample, and where layers
    /// alone were read: what they take is not what their network takes.
    pub(in crate::cli) fn of(checkpoint: &Checkpoint) -> Option<Self> {
        if checkpoint.is_layers_alone() {
            return None;
        }
        let model = &checkpoint.model;
        let storage = Storage::single(model);
        Some(Self {
            bytes: Size::of(model, &storage).ok()?.total(),
            microseconds: step_microseconds(model, &storage).ok()?,
            stored: " in single precision",
        })
    }
}

/// A number before and, where there is a second model, after.
#[derive(Debug, Clone, Copy)]
pub(in crate::cli) struct Pair<T> {
    pub(in crate::cli) before: T,
    pub(in crate::cli) after: Option<T>,
}

impl<T> Pair<T> {
    /// Of one model.
    pub(in crate::cli) fn alone(before: T) -> Self {
        let after = None;
        Self { before, after }
    }
}

/// What a report is about, beside the curves.
pub(in crate::cli) struct Story<'a> {
    pub(in crate::cli) source: &'a Path,
    /// The second model's file, or what stands for it.
    pub(in crate::cli) other: Option<&'a str>,
    pub(in crate::cli) family: &'a str,
    pub(in crate::cli) parameters: Pair<usize>,
    pub(in crate::cli) footprint: Option<Pair<Footprint>>,
    /// Whether layers alone were read, of a network that cannot be run here.
    pub(in crate::cli) layers_alone: bool,
    pub(in crate::cli) accuracy: Option<Pair<&'a Scores>>,
    /// Relative change of the logits, and of which sequences.
    pub(in crate::cli) logit_change: Option<(f64, &'a str)>,
    pub(in crate::cli) assumptions: &'a [String],
    pub(in crate::cli) warnings: Vec<String>,
    /// Beside source, command and version.
    pub(in crate::cli) provenance: Vec<(String, String)>,
}

impl Story<'_> {
    /// The page of this story with the curves of its models and the record of the command.
    ///
    /// # Errors
    /// Models that cannot be laid over one another; files that cannot be read.
    pub(in crate::cli) fn page(
        self,
        drawn: &Plotted<'_>,
        record: &impl Serialize,
        printer: &Printer,
    ) -> anyhow::Result<Page> {
        self.page_of(drawn.layers(printer)?, drawn, record)
    }

    /// The same from layers that are already known.
    ///
    /// # Errors
    /// Files that cannot be read.
    pub(in crate::cli) fn page_of(
        mut self,
        layers: Vec<LayerSummary>,
        drawn: &Plotted<'_>,
        record: &impl Serialize,
    ) -> anyhow::Result<Page> {
        if let Some(records) = drawn.records {
            self.warnings.extend(remarks(records));
        }
        let name = file_name(self.source);
        let title = match self.other {
            Some(other) => format!("{name} → {}", file_name(Path::new(other))),
            None => name.to_string(),
        };
        Ok(Page {
            title,
            verdict: self.verdict(&layers),
            facts: self.facts(&layers),
            tables: vec![layer_table(&layers, drawn)],
            assumptions: self.assumptions.to_vec(),
            provenance: self.provenance()?,
            warnings: self.warnings,
            record: serde_json::to_value(record)?,
            layers: layers.into_iter().map(|layer| layer.plots).collect(),
            ..Page::default()
        })
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
            let text = format!(
                "runs in {} bytes instead of {}{} and takes {} µs a step instead of {}",
                grouped(after.bytes),
                grouped(before.bytes),
                after.stored,
                short(after.microseconds),
                short(before.microseconds)
            );
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
                let _ = write!(text, "; its accuracy is {after} instead of {before}");
                if let Some(change) = change_of(before, after) {
                    let _ = write!(text, ", {change}");
                }
            }
            (_, Some((change, sequences))) => {
                let _ = write!(
                    text,
                    "; the logits of {sequences} change by {}",
                    percent(change)
                );
            }
            _ => {
                let errors = layers
                    .iter()
                    .filter_map(|l| l.weighted_error.or(l.kernel_error));
                let worst = errors.fold(0.0, f64::max);
                let what = match layers.iter().any(|layer| layer.weighted_error.is_some()) {
                    true => "output of its worst layer for its own input changes",
                    false => "kernels of its worst layer change",
                };
                let _ = write!(text, "; the {what} by {}", percent(worst));
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
            let times = after.map(|after| before.microseconds / after.microseconds);
            facts.push(Fact {
                name: "A step on this machine".to_string(),
                before: format!("{} µs", short(before.microseconds)),
                after: after.map(|after| format!("{} µs", short(after.microseconds))),
                note: times.map_or(String::new(), |times| format!("{times:.2} times as fast")),
            });
        }
        if let Some(Pair { before, after }) = self.accuracy {
            let note = after.and_then(|after| change_of(before, after));
            facts.push(Fact {
                name: "Accuracy".to_string(),
                before: before.to_string(),
                after: after.map(Scores::to_string),
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

    fn provenance(&self) -> anyhow::Result<Vec<(String, String)>> {
        let mut all = vec![("Source".to_string(), identified(self.source)?)];
        if let Some(other) = self.other.map(Path::new).filter(|path| path.is_file()) {
            all.push(("Smaller model".to_string(), identified(other)?));
        }
        all.extend(self.provenance.iter().cloned());
        all.extend(made_by());
        Ok(all)
    }
}

/// The command and the version that make a report.
pub(in crate::cli) fn made_by() -> [(String, String); 2] {
    let version = format!("compress-model {}", env!("CARGO_PKG_VERSION"));
    [
        ("Command".to_string(), typed_command()),
        ("Version".to_string(), version),
    ]
}

/// The command as it was typed, quoted for a shell.
pub(in crate::cli) fn typed_command() -> String {
    let words = typed_words();
    let words: Vec<String> = words.iter().map(|word| quoted(word)).collect();
    format!("compress-model {}", words.join(" "))
}

/// Its words, without the program's name.
pub(in crate::cli) fn typed_words() -> Vec<String> {
    let words = std::env::args_os().skip(1);
    words
        .map(|word| word.to_string_lossy().into_owned())
        .collect()
}

/// A file by its path, its bytes and its hash.
pub(in crate::cli) fn identified(path: &Path) -> anyhow::Result<String> {
    let shown = path.display();
    if path.is_dir() {
        return Ok(format!("{shown}, a folder"));
    }
    let (bytes, hash) = hash_of(path).with_context(|| shown.to_string())?;
    Ok(format!(
        "{shown}, {} bytes, SHA-256 {hash}",
        grouped(bytes as usize)
    ))
}

/// Bytes and SHA-256 of a file.
pub(in crate::cli) fn hash_of(path: &Path) -> std::io::Result<(u64, String)> {
    let mut file = std::fs::File::open(path)?;
    let (mut hasher, mut bytes) = (Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 16];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        hasher.update(&buffer[..read]);
        bytes += read as u64;
    }
    let mut hash = String::new();
    for byte in hasher.finalize() {
        let _ = write!(hash, "{byte:02x}");
    }
    Ok((bytes, hash))
}

fn file_name(path: &Path) -> std::borrow::Cow<'_, str> {
    let name = path.file_name().unwrap_or(path.as_os_str());
    let above = path.parent().and_then(Path::file_name);
    match above {
        Some(above) => PathBuf::from(above)
            .join(name)
            .to_string_lossy()
            .into_owned()
            .into(),
        None => name.to_string_lossy(),
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

/// How far two accuracies are apart, in words.
fn change_of(before: &Scores, after: &Scores) -> Option<String> {
    let change = after.accuracy? - before.accuracy?;
    let error = before.standard_error?.hypot(after.standard_error?);
    let far = match change.abs() <= 2.0 * error {
        true => "within two standard errors",
        false => "more than two standard errors",
    };
    let points = format!("{:+.2}", 100.0 * change).replace('-', "−");
    Some(format!("{points} points, {far}"))
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

/// A share in per cent, in three digits or so.
pub(in crate::cli) fn percent(share: f64) -> String {
    match share {
        0.0 => "0 %".to_string(),
        share if share < 1e-4 => format!("{:.1e} %", 100.0 * share),
        share => format!("{:.2} %", 100.0 * share),
    }
}
