//! The page of a pipeline for a browser: what is kept of the accuracy, at which size, how every
//! training went.

use std::path::Path;

use hankelite_report::{
    Cell, ChartAxis, ChartLine, ChartSection, Fact, Ink, LineChart, Page, PageTable, SizeCurve,
    SizePoint,
};
use serde_json::{Value, json};

use crate::cli::common::{grouped, short};
use crate::cli::pipeline::report::{Cell as Found, Mean, Report};
use crate::cli::pipeline::settings::{Arm, Config};
use crate::cli::pipeline::study::{Record, training_folder};
use crate::cli::report::{identified, made_by};

/// What a pipeline found, and where.
pub(super) struct Results<'a> {
    /// The file of the settings, and what is in it.
    pub(super) settings: (&'a Path, &'a Config),
    /// The folder of all runs.
    pub(super) root: &'a Path,
    pub(super) report: &'a Report,
    /// Of all trainings.
    pub(super) records: &'a [Record],
}

/// The reduced network that the page puts forward, beside the unreduced one trained on.
struct Chosen<'a> {
    small: &'a Found,
    full: &'a Found,
    /// Whether it lies within two standard errors of the unreduced one.
    near: bool,
}

impl Results<'_> {
    /// # Errors
    /// Files that cannot be read.
    pub(super) fn page(&self) -> anyhow::Result<Page> {
        let chosen = self.chosen();
        let (file, config) = self.settings;
        Ok(Page {
            title: format!("Pipeline {}", file.display()),
            verdict: self.verdict(chosen.as_ref()),
            facts: chosen
                .as_ref()
                .map_or(Vec::new(), |chosen| self.facts(chosen)),
            tables: vec![self.networks(), settings(config)?],
            sizes: self.sizes(chosen.as_ref()),
            sections: vec![self.accuracies(chosen.as_ref()), self.trainings()],
            warnings: self.warnings(),
            provenance: self.provenance()?,
            record: json!({
                "settings": config,
                "results": self.report,
                "histories": self.histories(),
            }),
            ..Page::default()
        })
    }

    /// The fewest states within two standard errors of the unreduced network; where there are
    /// none, or no standard errors, the most.
    fn chosen(&self) -> Option<Chosen<'_>> {
        let report = self.report;
        let full = report.cell(report.full, Arm::Reduced)?;
        let mut orders = report.orders();
        orders.retain(|&order| order != report.full);
        let cells = orders.iter().rev();
        let cells: Vec<&Found> = cells
            .filter_map(|&order| report.cell(order, Arm::Reduced))
            .collect();
        let near = |cell: &&&Found| {
            let gap = cell.behind_unreduced.and_then(|gap| {
                let error = gap.standard_error?;
                Some(self.worse(gap.mean) <= 2.0 * error)
            });
            gap.unwrap_or(false)
        };
        let first = cells.iter().find(near);
        Some(Chosen {
            small: first.or(cells.last())?,
            full,
            near: first.is_some(),
        })
    }

    /// A difference of values, counted so that more is worse.
    fn worse(&self, behind: f64) -> f64 {
        if self.report.is_accuracy() {
            behind
        } else {
            -behind
        }
    }

    /// A value in its unit.
    fn valued(&self, mean: Mean) -> String {
        let unit = if self.report.is_accuracy() { " %" } else { "" };
        format!("{}{unit}", mean.shown(self.report.digits))
    }

    /// What the values are of.
    fn measure(&self) -> &'static str {
        if self.report.is_accuracy() {
            "accuracy"
        } else {
            "loss"
        }
    }

    /// How far a mean of differences is from nothing.
    fn gap(&self, behind: Mean) -> String {
        let worse = self.worse(behind.mean);
        let size = Mean {
            mean: worse.abs(),
            ..behind
        };
        let size = size.shown(self.report.digits);
        let points = if self.report.is_accuracy() {
            " points"
        } else {
            ""
        };
        let side = if worse > 0.0 { "behind" } else { "ahead of" };
        format!("{size}{points} {side}")
    }

    fn verdict(&self, chosen: Option<&Chosen<'_>>) -> String {
        let (report, measure) = (self.report, self.measure());
        let Some(Chosen { small, full, near }) = chosen else {
            return self.verdict_without();
        };
        let mut text = format!(
            "Reduced from {} to {} states a channel and trained on, the network has {} {measure} \
             of {}",
            full.order,
            small.order,
            article(measure),
            self.valued(small.after)
        );
        if let Some(behind) = small.behind_unreduced {
            text += &format!(", {} the unreduced network", self.gap(behind));
        }
        if *near {
            text += " (within two standard errors)";
        }
        if let (Some(after), Some(before)) = (small.bytes, full.bytes) {
            let [after, before] = [after, before].map(grouped);
            text += &format!(", in {after} bytes instead of {before}");
        }
        let fresh = |arm: Arm| report.cell(small.order, arm).map(|cell| cell.after);
        let starts = [Arm::SkewHippo, Arm::Random];
        let starts = starts
            .into_iter()
            .filter_map(|arm| Some((fresh(arm)?, arm)));
        let best = starts.min_by(|a, b| self.worse(b.0.mean).total_cmp(&self.worse(a.0.mean)));
        if let Some((best, arm)) = best {
            text += &format!(
                "; a fresh network of its size ({}) comes to {} in the same steps",
                arm.name(),
                self.valued(best)
            );
        }
        if let Some(long) = fresh(Arm::SkewHippoLong) {
            text += &format!(
                ", and to {} in those of the pretraining as well",
                self.valued(long)
            );
        }
        text + "."
    }

    /// Of a run without a reduced network, or before there is one.
    fn verdict_without(&self) -> String {
        let cells = self.report.cells.iter();
        let best = cells.min_by(|a, b| {
            self.worse(b.after.mean)
                .total_cmp(&self.worse(a.after.mean))
        });
        match best {
            None => "No training of a network behind its pretraining is finished.".to_string(),
            Some(best) => format!(
                "No reduced network is finished; of the others {} with {} states a channel is \
                 best, with {} {} of {}.",
                best.arm.name(),
                best.order,
                article(self.measure()),
                self.measure(),
                self.valued(best.after)
            ),
        }
    }

    fn facts(&self, Chosen { small, full, .. }: &Chosen<'_>) -> Vec<Fact> {
        let counted = |name: &str, [before, after]: [usize; 2]| Fact {
            name: name.to_string(),
            before: grouped(before),
            after: Some(grouped(after)),
            note: format!("{:.1} %", 100.0 * after as f64 / before.max(1) as f64),
        };
        let mut facts = vec![counted("States of a channel", [full.order, small.order])];
        if let (Some(before), Some(after)) = (full.bytes, small.bytes) {
            let mut bytes = counted("Bytes of weights and state", [before, after]);
            bytes.note += " in single precision";
            facts.push(bytes);
        }
        facts.push(counted("Parameters", [full.parameters, small.parameters]));
        let measure = self.measure();
        let gap = small.behind_unreduced;
        facts.push(Fact {
            name: format!("{}, unreduced → reduced, both trained on", titled(measure)),
            before: self.valued(full.after),
            after: Some(self.valued(small.after)),
            note: gap.map_or(String::new(), |gap| {
                format!("{} the unreduced, seed by seed", self.gap(gap))
            }),
        });
        facts.push(Fact {
            name: format!(
                "{} of the reduced, before → after training",
                titled(measure)
            ),
            before: self.valued(small.before),
            after: Some(self.valued(small.after)),
            note: format!("{:.0} steps", small.steps.mean),
        });
        facts.push(Fact {
            name: "Repetitions".to_string(),
            before: self.report.counted_seeds(),
            after: None,
            note: "± is the standard error of their mean".to_string(),
        });
        facts
    }

    /// Size against what the reduced networks reach.
    fn sizes(&self, chosen: Option<&Chosen<'_>>) -> Option<SizeCurve> {
        let report = self.report;
        let full = report.cell(report.full, Arm::Reduced)?;
        let mut cells: Vec<&Found> = report.cells.iter().collect();
        cells.retain(|cell| cell.arm == Arm::Reduced && cell.order != report.full);
        cells.reverse();
        if cells.is_empty() {
            return None;
        }
        let known = full.bytes.is_some() && cells.iter().all(|cell| cell.bytes.is_some());
        let point = |cell: &Found| SizePoint {
            x: match cell.bytes {
                Some(bytes) if known => bytes as f64 / 1000.0,
                _ => cell.order as f64,
            },
            y: cell.after.mean,
            error: cell.after.standard_error,
            details: self.details(cell),
            command: None,
        };
        let recommended = chosen.filter(|chosen| chosen.near).and_then(|chosen| {
            let index = cells
                .iter()
                .position(|cell| cell.order == chosen.small.order);
            let why = "the smallest within two standard errors of the unreduced network";
            Some((index?, why.to_string()))
        });
        Some(SizeCurve {
            x: match known {
                true => "kB of weights and state",
                false => "states of each channel",
            }
            .to_string(),
            y: format!("{}, after training", report.measure),
            points: cells.iter().map(|cell| point(cell)).collect(),
            full: Some(point(full)),
            recommended,
        })
    }

    fn details(&self, cell: &Found) -> Vec<(String, String)> {
        let named = |name: &str, text: String| (name.to_string(), text);
        let mut all = vec![
            named("States of a channel", cell.order.to_string()),
            named("Parameters", grouped(cell.parameters)),
        ];
        all.extend(cell.bytes.map(|bytes| named("Bytes", grouped(bytes))));
        all.push(named("Before training", self.valued(cell.before)));
        all.push(named("After training", self.valued(cell.after)));
        let behind = cell.behind_unreduced.map(|gap| {
            let text = format!("{} the unreduced", self.gap(gap));
            named("Seed by seed", text)
        });
        all.extend(behind);
        if let Some(&seed) = self.report.seeds.first() {
            let folder = training_folder(self.root, seed, cell.order, cell.arm);
            let file = folder.join("model.safetensors");
            all.push(named("The first of the files", file.display().to_string()));
        }
        all
    }

    /// Every arm over states, before and after its training.
    fn accuracies(&self, chosen: Option<&Chosen<'_>>) -> ChartSection {
        let kept = chosen.map_or("Before training".to_string(), |Chosen { small, .. }| {
            format!(
                "Before training: reduced has {} with {} states",
                self.valued(small.before),
                small.order
            )
        });
        let charts = vec![
            self.over_states(&self.best_arm(), |cell| cell.after),
            self.over_states(&kept, |cell| cell.before),
        ];
        let part = "the test part, or of the validation part where the data have no test part";
        ChartSection {
            title: titled(self.measure()),
            heading: format!("{} over states", titled(self.measure())),
            caption: format!(
                "The {} of {part}: means over the seeds with their standard errors. Orange starts \
                 with the pretrained network, blue and green start afresh; what each arm is stands \
                 above the table.",
                self.measure()
            ),
            charts,
        }
    }

    /// Who is best after training, and how often.
    fn best_arm(&self) -> String {
        let report = self.report;
        let mut orders = report.orders();
        orders.retain(|&order| order != report.full);
        let best = |order: &usize| {
            let cells = report.cells.iter().filter(|cell| cell.order == *order);
            let best = cells.min_by(|a, b| {
                self.worse(b.after.mean)
                    .total_cmp(&self.worse(a.after.mean))
            });
            best.map(|cell| cell.arm)
        };
        let winners: Vec<Arm> = orders.iter().filter_map(best).collect();
        let wins = |arm: Arm| winners.iter().filter(|&&winner| winner == arm).count();
        match winners.iter().max_by_key(|&&arm| wins(arm)) {
            None => "After training".to_string(),
            Some(&arm) => format!(
                "After training: {} is best at {} of {} numbers of states",
                arm.name(),
                wins(arm),
                orders.len()
            ),
        }
    }

    fn over_states(&self, title: &str, value: impl Fn(&Found) -> Mean) -> LineChart {
        let report = self.report;
        let mut orders = report.orders();
        orders.reverse();
        let line = |arm: Arm| {
            let of = |&order: &usize| report.cell(order, arm).map(&value);
            let means: Vec<Option<Mean>> = orders.iter().map(of).collect();
            let mean = |mean: &Option<Mean>| mean.map_or(f64::NAN, |mean| mean.mean);
            let error = |mean: &Option<Mean>| mean.and_then(|mean| mean.standard_error);
            let (ink, dashed) = look(arm);
            ChartLine {
                name: arm.name().to_string(),
                ink,
                dashed,
                values: means.iter().map(mean).collect(),
                errors: means
                    .iter()
                    .map(|mean| error(mean).unwrap_or(f64::NAN))
                    .collect(),
            }
        };
        LineChart {
            title: title.to_string(),
            x: ChartAxis {
                label: "states of each channel".to_string(),
                short: "states".to_string(),
                log: true,
                at_places: true,
            },
            y: plain_axis(report.measure),
            places: orders.iter().map(|&order| order as f64).collect(),
            lines: report.arms().into_iter().map(line).collect(),
        }
    }

    /// The loss of every training, epoch by epoch.
    fn trainings(&self) -> ChartSection {
        let loss = self.loss();
        let mut charts = vec![self.pretraining()];
        charts.extend(
            self.report
                .orders()
                .iter()
                .map(|&order| self.training(order)),
        );
        ChartSection {
            title: "Training".to_string(),
            heading: "Loss over epochs".to_string(),
            caption: format!(
                "Means over the seeds of {}, one chart for each number of states. A training \
                 keeps the weights of its best epoch, unless its settings have it otherwise.",
                loss.words()
            ),
            charts: charts
                .into_iter()
                .filter(|chart| !chart.lines.is_empty())
                .collect(),
        }
    }

    /// Which loss all trainings have.
    fn loss(&self) -> Loss {
        let mut entries = self.records.iter().flat_map(|record| &record.history);
        match entries.all(|entry| entry.validation_loss.is_some()) {
            true => Loss::Validation,
            false => Loss::Training,
        }
    }

    fn pretraining(&self) -> LineChart {
        let of = |record: &&Record| record.row.arm.is_none();
        let records: Vec<&Record> = self.records.iter().filter(of).collect();
        let kinds = [
            (Loss::Training, "training", Ink::First),
            (Loss::Validation, "validation", Ink::Second),
        ];
        let lines = kinds.into_iter().map(|(loss, name, ink)| {
            let values = epochs(&records, loss);
            ChartLine {
                name: name.to_string(),
                ink,
                dashed: false,
                values,
                errors: Vec::new(),
            }
        });
        let order = records.first().map_or(0, |record| record.row.order);
        let title = format!("Pretraining with {order} states");
        over_epochs(title, lines.collect())
    }

    fn training(&self, order: usize) -> LineChart {
        let loss = self.loss();
        let lines = self.report.arms().into_iter().map(|arm| {
            let of = |record: &&Record| (record.row.order, record.row.arm) == (order, Some(arm));
            let records: Vec<&Record> = self.records.iter().filter(of).collect();
            let (ink, dashed) = look(arm);
            ChartLine {
                name: arm.name().to_string(),
                ink,
                dashed,
                values: epochs(&records, loss),
                errors: Vec::new(),
            }
        });
        let lines: Vec<ChartLine> = lines.filter(|line| !line.values.is_empty()).collect();
        let best = lines.iter().filter_map(|line| {
            let finite = line
                .values
                .iter()
                .copied()
                .filter(|value| value.is_finite());
            Some((finite.min_by(f64::total_cmp)?, &line.name))
        });
        let best = best.min_by(|a, b| a.0.total_cmp(&b.0));
        let title = match best {
            None => format!("{order} states"),
            Some((least, name)) => format!("{order} states: {name} comes lowest, to {least:.4}"),
        };
        over_epochs(title, lines)
    }

    /// One row for each order and arm.
    fn networks(&self) -> PageTable {
        let header = [
            "arm",
            "states",
            "before training",
            "after training",
            "ahead of it: reduced",
            "ahead of it: unreduced",
            "bytes",
            "parameters",
            "steps",
            "seconds",
            "seeds",
        ];
        let value = |mean: Mean| Cell::number(mean.mean, |_| self.valued(mean));
        let digits = self.report.digits;
        let ahead = |mean: Option<Mean>| match mean {
            Some(mean) => Cell::number(mean.mean, |_| mean.shown(digits)),
            None => Cell::text("–"),
        };
        let count = |value: usize| Cell::number(value as f64, |_| grouped(value));
        let row = |cell: &Found| {
            vec![
                Cell::text(cell.arm.name()),
                count(cell.order),
                value(cell.before),
                value(cell.after),
                ahead(cell.behind_reduced),
                ahead(cell.behind_unreduced),
                cell.bytes.map_or(Cell::text("–"), count),
                count(cell.parameters),
                Cell::number(cell.steps.mean, |steps| format!("{steps:.0}")),
                Cell::number(cell.seconds.mean, short),
                count(cell.after.count),
            ]
        };
        PageTable {
            title: "Networks".to_string(),
            caption: format!(
                "{} of the test part, mean ± standard error over the seeds; “ahead of it” is the \
                 {} of the reduced or of the unreduced network less that of the row, both after \
                 training, seed by seed. Bytes are those of weights and state in single precision. \
                 reduced: the pretrained network, cut; skew-hippo and random: fresh networks with \
                 the same steps; skew-hippo-long: with the steps of the pretraining as well; \
                 skew-hippo-kept: the pretrained network with fresh poles and weights C. A click on \
                 a heading sorts.",
                titled(self.report.measure),
                self.measure()
            ),
            header: header.map(str::to_string).to_vec(),
            rows: self.report.cells.iter().map(row).collect(),
            folded: false,
        }
    }

    fn warnings(&self) -> Vec<String> {
        let (_, config) = self.settings;
        let mut warnings = Vec::new();
        let most = self.report.cells.iter().map(|cell| cell.after.count).max();
        let unfinished = |cell: &&Found| cell.after.count < config.seeds.len();
        let open = self.report.cells.iter().filter(unfinished).count();
        if open > 0 || self.report.cells.is_empty() {
            warnings.push(format!(
                "Not all is finished: of {} seeds, {open} rows of the table have fewer.",
                config.seeds.len()
            ));
        }
        if most == Some(1) {
            warnings.push(
                "There is one repetition, so there are no standard errors: differences may be \
                 those of another start."
                    .to_string(),
            );
        }
        warnings
    }

    fn provenance(&self) -> anyhow::Result<Vec<(String, String)>> {
        let (file, config) = self.settings;
        let named = |name: &str, text: String| (name.to_string(), text);
        let seeds: Vec<String> = config.seeds.iter().map(u64::to_string).collect();
        let mut all = vec![named("Settings", identified(file)?)];
        if let Some(checkpoint) = &config.checkpoint {
            all.push(named("Checkpoint", identified(checkpoint)?));
        }
        all.push(named("Data", config.data.source.clone()));
        all.push(named("Seeds", seeds.join(", ")));
        all.push(named("Folder", self.root.display().to_string()));
        all.extend(made_by());
        Ok(all)
    }

    /// The epochs of every training.
    fn histories(&self) -> Vec<Value> {
        let history = |record: &Record| {
            json!({
                "seed": record.row.seed,
                "order": record.row.order,
                "arm": record.row.arm,
                "epochs": record.history,
            })
        };
        self.records.iter().map(history).collect()
    }
}

/// A loss that an epoch has.
#[derive(Clone, Copy)]
enum Loss {
    Training,
    Validation,
}

impl Loss {
    fn words(self) -> &'static str {
        match self {
            Loss::Training => "the training loss, before each step",
            Loss::Validation => "the loss of the validation part",
        }
    }
}

/// Means over trainings of the loss of every epoch that one of them has.
fn epochs(records: &[&Record], loss: Loss) -> Vec<f64> {
    let count = records.iter().map(|record| record.history.len()).max();
    let of = |epoch: usize| {
        let entries = records
            .iter()
            .filter_map(|record| record.history.get(epoch));
        let values = entries.filter_map(|entry| match loss {
            Loss::Training => Some(entry.train_loss),
            Loss::Validation => entry.validation_loss,
        });
        let values: Vec<f64> = values.collect();
        Mean::of(&values).map_or(f64::NAN, |mean| mean.mean)
    };
    let values: Vec<f64> = (0..count.unwrap_or(0)).map(of).collect();
    match values.iter().any(|value| value.is_finite()) {
        true => values,
        false => Vec::new(),
    }
}

/// Lines that may be of different lengths, over the epochs of the longest.
fn over_epochs(title: String, mut lines: Vec<ChartLine>) -> LineChart {
    lines.retain(|line| !line.values.is_empty());
    let most = lines
        .iter()
        .map(|line| line.values.len())
        .max()
        .unwrap_or(0);
    let finite = || lines.iter().flat_map(|line| &line.values);
    let finite = || finite().copied().filter(|value| value.is_finite());
    let (low, high) = finite().fold((f64::INFINITY, 0.0f64), |(low, high), value| {
        (low.min(value), high.max(value))
    });
    LineChart {
        title,
        x: ChartAxis {
            label: "epoch".to_string(),
            short: "epoch".to_string(),
            log: false,
            at_places: false,
        },
        y: ChartAxis {
            log: low > 0.0 && high > 10.0 * low,
            ..plain_axis("loss")
        },
        places: (1..=most).map(|epoch| epoch as f64).collect(),
        lines: lines
            .into_iter()
            .map(|mut line| {
                line.values.resize(most, f64::NAN);
                line
            })
            .collect(),
    }
}

fn plain_axis(label: &str) -> ChartAxis {
    ChartAxis {
        label: label.to_string(),
        short: label.to_string(),
        log: false,
        at_places: false,
    }
}

/// Orange starts with the pretrained network, blue and green afresh; a variant is dashed.
fn look(arm: Arm) -> (Ink, bool) {
    match arm {
        Arm::Reduced => (Ink::Second, false),
        Arm::SkewHippoKept => (Ink::Second, true),
        Arm::SkewHippo => (Ink::First, false),
        Arm::SkewHippoLong => (Ink::First, true),
        Arm::Random => (Ink::Input, false),
    }
}

fn article(word: &str) -> &'static str {
    match word.starts_with('a') {
        true => "an",
        false => "a",
    }
}

/// With a capital.
fn titled(words: &str) -> String {
    let mut letters = words.chars();
    let first = letters
        .next()
        .map(|letter| letter.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

/// All settings with their defaults, key by key.
fn settings(config: &Config) -> anyhow::Result<PageTable> {
    let mut rows = Vec::new();
    keys("", &serde_json::to_value(config)?, &mut rows);
    Ok(PageTable {
        title: "Settings".to_string(),
        caption: "Every key of the file with its value, defaults included; docs/pipeline.md and \
                  docs/training.md have their meanings."
            .to_string(),
        header: ["key", "value"].map(str::to_string).to_vec(),
        rows,
        folded: true,
    })
}

fn keys(above: &str, value: &Value, rows: &mut Vec<Vec<Cell>>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                let name = match above {
                    "" => key.clone(),
                    above => format!("{above}.{key}"),
                };
                keys(&name, value, rows);
            }
        }
        Value::Null => {}
        Value::String(text) => rows.push(vec![Cell::text(above), Cell::text(text)]),
        other => rows.push(vec![Cell::text(above), Cell::text(&other.to_string())]),
    }
}
