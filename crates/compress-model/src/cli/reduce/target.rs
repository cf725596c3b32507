//! A model to a target of bytes, time or change.

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};
use hankelite::calibrate::{Calibration, LogitFit, Longer, change_beyond};
use hankelite::checkpoint::{Checkpoint, KeptLayer, Provenance};
use hankelite::compress::LayerRecord;
use hankelite::rounding::{MapChoice, Storage};
use hankelite::target::{
    Drawn, Goal, Limits, LogitChanges, Met, Size, SizePlan, Targeted, meet, planner,
    step_microseconds,
};
use hankelite_archive::write_whole;
use hankelite_data::Dataset;
use serde::Serialize;

use crate::cli::calibration::{CalibrationData, Needed, prepare};
use crate::cli::common::{grouped, open, short};
use crate::cli::printer::Printer;
use crate::cli::progress::Bars;
use crate::cli::reduce::arguments::Arguments;
use crate::cli::reduce::card::{Card, Table, both};
use crate::cli::reduce::lines::show_longer;
use crate::cli::reduce::provenance::{Way, measured, provenance};
use crate::cli::reduce::storage::{show_kept, stored, write_image};
use crate::cli::report::{
    Footprint, Pair, Plotted, Story, WrittenReport, kernel_steps, percent, write_page,
};
use crate::cli::score::{First, Scores, labelled, score};
use crate::report::Page;

#[derive(Serialize)]
struct Document {
    checkpoint: String,
    family: &'static str,
    output: Option<String>,
    image: Option<String>,
    report: Option<WrittenReport>,
    card: Option<String>,
    dry_run: bool,
    origin: String,
    /// Sequences that took part, and those that did not.
    sequences: [usize; 2],
    size_before: Size,
    size: Size,
    step_microseconds_before: f64,
    step_microseconds: f64,
    parameters_before: usize,
    parameters_after: usize,
    plan: SizePlan,
    /// Largest order of each layer: what a checkpoint of one order for each layer stores.
    d_state: Vec<usize>,
    changes: LogitChanges,
    held_out_change: Option<f64>,
    /// What to expect on longer sequences.
    longer: Option<Longer>,
    fit: Option<LogitFit>,
    /// Layers whose poles and residues are not in the number format of --dtype.
    kept_layers: Vec<KeptLayer>,
    before: Option<Scores>,
    after: Option<Scores>,
    seconds: f64,
    assumptions: Vec<String>,
    notes: Vec<String>,
    layers: Vec<LayerRecord>,
}

pub(super) fn run(arguments: &Arguments, start: Instant, printer: &Printer) -> anyhow::Result<()> {
    let path = &arguments.input.checkpoint;
    let checkpoint = open(path, &arguments.declarations.declared(), printer)?;
    if checkpoint.is_layers_alone() {
        bail!(
            "{}: only the layers of this file are understood; a target needs the whole network",
            path.display()
        );
    }
    let data = match &arguments.data {
        None => None,
        Some(source) => Some(labelled(&checkpoint, source)?),
    };
    let work = || reduced(arguments, &checkpoint, data.as_ref(), start, printer);
    let document = work().with_context(|| path.display().to_string())?;
    if printer.is_json() {
        return printer.json(&document);
    }
    show(&document, printer)
}

fn reduced(
    arguments: &Arguments,
    checkpoint: &Checkpoint,
    data: Option<&Dataset>,
    start: Instant,
    printer: &Printer,
) -> anyhow::Result<Document> {
    arguments.check_model(&checkpoint.model)?;
    let source = arguments.calibrate.as_deref().unwrap_or_default();
    let sequences = arguments.ways.sequences();
    let needed = Needed::with_page(arguments.report.path.is_some());
    let calibration = CalibrationData::open(source, sequences, checkpoint, needed, printer)?;
    let listed = calibration.listed();
    if listed.is_empty() {
        bail!(
            "a target runs the calibration sequences through the network; {source} holds statistics or inputs of layers"
        );
    }
    let drawn = Drawn::new(&listed);
    let bars = Bars::new(printer);
    let ways = &arguments.ways;
    let prepared = prepare(checkpoint, &calibration, &drawn.used, ways, &bars)?;
    let full = Full::new(checkpoint)?;
    let goal = goal(arguments, full.size.total());
    let Met {
        made,
        held_out_change,
        ..
    } = meet(&*planner(&prepared)?, &goal, &drawn.held_out)?;
    bars.clear();
    let steps = calibration.length();
    let longer = change_beyond(&checkpoint.model, &made.model, &listed, steps)?;
    let way = Way::Target(calibration.origin());
    let source = (arguments.input.checkpoint.as_path(), checkpoint);
    let note = measured(provenance(source, &made.records, &way)?, longer);
    let smaller = checkpoint
        .with_model(made.model.clone())
        .with_provenance(note.clone())
        .with_storage(made.plan.storage());
    let mut document = Document {
        origin: calibration.origin().to_string(),
        sequences: [drawn.used.len(), drawn.held_out.len()],
        size_before: full.size,
        step_microseconds_before: full.microseconds,
        step_microseconds: step_microseconds(&made.model, &made.storage)?,
        held_out_change,
        longer,
        ..Document::new(arguments, checkpoint, &made)?
    };
    write(arguments, &smaller, &made, &mut document)?;
    document.seconds = start.elapsed().as_secs_f64();
    if let Some(data) = data {
        document.before = Some(score(checkpoint, First::all(data), printer)?);
        document.after = Some(score(&smaller, First::all(data), printer)?);
    }
    if let Some(file) = arguments.card.as_deref().filter(|_| !arguments.dry_run) {
        write_whole(file, document.card_of(&note).markdown())?;
        document.card = Some(file.display().to_string());
    }
    let Some(path) = &arguments.report.path else {
        return Ok(document);
    };
    let models = [checkpoint, &smaller];
    let page = document.page(models, calibration.statistics.as_ref(), printer)?;
    document.report = Some(write_page(&page, path)?);
    Ok(document)
}

impl Document {
    /// What follows from the model and how it was made.
    fn new(
        arguments: &Arguments,
        checkpoint: &Checkpoint,
        made: &Targeted,
    ) -> anyhow::Result<Self> {
        Ok(Self {
            checkpoint: arguments.input.checkpoint.display().to_string(),
            family: checkpoint.family(),
            output: None,
            image: None,
            report: None,
            card: None,
            dry_run: arguments.dry_run,
            origin: String::new(),
            sequences: [0; 2],
            size_before: made.size,
            size: made.size,
            step_microseconds_before: 0.0,
            step_microseconds: 0.0,
            parameters_before: checkpoint.parameters()?,
            parameters_after: 0,
            plan: made.plan.clone(),
            d_state: made.records.iter().map(|layer| layer.order).collect(),
            changes: made.changes,
            held_out_change: None,
            longer: None,
            fit: made.fit.clone(),
            kept_layers: Vec::new(),
            before: None,
            after: None,
            seconds: 0.0,
            assumptions: checkpoint.assumptions().to_vec(),
            notes: checkpoint.notes().to_vec(),
            layers: made.records.clone(),
        })
    }
}

impl Document {
    /// The report on the models before and after.
    fn page(
        &self,
        [full, smaller]: [&Checkpoint; 2],
        statistics: Option<&Calibration>,
        printer: &Printer,
    ) -> anyhow::Result<Page> {
        let footprint = |size: Size, microseconds| Footprint {
            bytes: size.total(),
            microseconds,
            stored: "",
        };
        let after = footprint(self.size, self.step_microseconds);
        let name = self.output.as_deref().or(self.image.as_deref());
        let story = Story {
            source: Path::new(&self.checkpoint),
            other: Some(name.unwrap_or("dry run")),
            family: self.family,
            parameters: Pair {
                before: self.parameters_before,
                after: Some(self.parameters_after),
            },
            footprint: Some(Pair {
                before: footprint(self.size_before, self.step_microseconds_before),
                after: Some(after),
            }),
            layers_alone: false,
            accuracy: self.before.as_ref().map(|before| Pair {
                before,
                after: self.after.as_ref(),
            }),
            logit_change: Some(match self.held_out_change {
                Some(change) => (change, "held-out sequences"),
                None => (self.changes.after, "the calibration sequences"),
            }),
            assumptions: &self.assumptions,
            warnings: self.notes.clone(),
            provenance: vec![("Calibration".to_string(), self.origin.clone())],
        };
        let drawn = Plotted {
            full: &full.model,
            reduced: Some(&smaller.model),
            calibration: statistics,
            records: Some(&self.layers),
            steps: kernel_steps(full, statistics.map(Calibration::length)),
        };
        story.page(&drawn, self, printer)
    }
}

impl Document {
    /// The model card.
    fn card_of<'a>(&'a self, made: &'a Provenance) -> Card<'a> {
        let mut changes = vec![(" of the calibration".to_string(), self.changes.after)];
        let held_out = self.held_out_change;
        changes.extend(held_out.map(|change| (" on sequences held out".to_string(), change)));
        changes.extend(self.longer.map(|longer| {
            let on = format!(
                " over {} steps, twice those of the calibration",
                2 * longer.steps
            );
            (on, longer.change_of_pairs)
        }));
        Card {
            output: self.output.as_deref(),
            image: self.image.as_deref(),
            family: self.family,
            parameters: [self.parameters_before, self.parameters_after],
            scores: both(&self.before, &self.after),
            made,
            changes,
            tables: vec![self.sizes(), self.bits()],
        }
    }

    /// What a step reads and keeps, and how long it takes.
    fn sizes(&self) -> Table {
        let (before, after) = (self.size_before, self.size);
        let bytes = |name: &str, before: usize, after: usize| {
            let share = before as f64 / after.max(1) as f64;
            let cells = [grouped(before), grouped(after), format!("1/{share:.1}")];
            [&[name.to_string()][..], &cells].concat()
        };
        let [slow, fast] = [self.step_microseconds_before, self.step_microseconds];
        let step = [
            "a step on the machine that made it, microseconds".to_string(),
            short(slow),
            short(fast),
            format!("{:.2} times as fast", slow / fast),
        ];
        Table {
            title: "Size of the image",
            header: vec!["", "before, all f32", "after", ""],
            rows: vec![
                bytes("weights, bytes", before.weights, after.weights),
                bytes("state, bytes", before.state, after.state),
                bytes("together, bytes", before.total(), after.total()),
                step.to_vec(),
            ],
        }
    }

    /// How each tensor is stored.
    fn bits(&self) -> Table {
        let plan = &self.plan;
        let layers = self.layers.iter().zip(&plan.layers);
        let mut rows: Vec<Vec<String>> = layers
            .map(|(record, choice)| {
                let numbers = format!("{:?}", choice.numbers).to_lowercase();
                let maps = [entries(choice.map), entries(choice.systems), numbers];
                [&[record.name.clone()][..], &maps].concat()
            })
            .collect();
        for (name, map) in [("encoder", plan.encoder), ("head", plan.head)] {
            let none = || "-".to_string();
            rows.push(vec![name.to_string(), entries(map), none(), none()]);
        }
        Table {
            title: "Numbers of the image",
            header: vec!["", "map", "B and C, where shared", "other numbers"],
            rows,
        }
    }
}

/// Writes what is requested.
fn write(
    arguments: &Arguments,
    smaller: &Checkpoint,
    made: &Targeted,
    document: &mut Document,
) -> anyhow::Result<()> {
    let encoded = stored(smaller, arguments.dtype)?;
    document.parameters_after = encoded.parameters();
    document.kept_layers = encoded.kept_layers().to_vec();
    if arguments.dry_run {
        return Ok(());
    }
    if let Some(output) = &arguments.output {
        drop(encoded.write(output)?);
        document.output = Some(output.display().to_string());
    }
    document.image = write_image(arguments, &made.model, &made.storage)?.map(|image| image.path);
    Ok(())
}

/// What the targets ask of a model of so many bytes.
fn goal(arguments: &Arguments, full: usize) -> Goal {
    let targets = &arguments.target;
    let allowed = targets.bytes_of(full as u64);
    Goal {
        limits: Limits {
            bytes: allowed.map_or(full, |most| full.min(most as usize)),
            microseconds: targets.max_microseconds,
        },
        change: targets.max_change,
        parts: arguments.target_ways.only,
    }
}

/// The full model in single precision.
struct Full {
    size: Size,
    microseconds: f64,
}

impl Full {
    fn new(checkpoint: &Checkpoint) -> anyhow::Result<Self> {
        let model = &checkpoint.model;
        let storage = Storage::single(model);
        Ok(Self {
            size: Size::of(model, &storage)?,
            microseconds: step_microseconds(model, &storage)?,
        })
    }
}

fn show(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    printer.heading(&format!("{}: {}", document.checkpoint, document.family))?;
    let header = [
        "layer",
        "states",
        "largest",
        "map",
        "other numbers",
        "weighted error",
    ];
    let plan = &document.plan;
    let layers = document.layers.iter().zip(&plan.layers).zip(&plan.orders);
    let rows = layers.map(|((record, choice), orders)| {
        let states: usize = orders.iter().sum();
        vec![
            record.name.clone(),
            match orders.as_slice() {
                [shared] => match choice.systems {
                    Some(systems) => format!("{shared} shared, {}", entries(Some(systems))),
                    None => format!("{shared} shared"),
                },
                _ => format!("{:.2} a channel", states as f64 / orders.len() as f64),
            },
            orders.iter().max().copied().unwrap_or(0).to_string(),
            entries(choice.map),
            format!("{:?}", choice.numbers).to_lowercase(),
            record
                .relative_weighted_error
                .map_or("-".to_string(), percent),
        ]
    });
    printer.table(&header, rows.collect())?;
    show_sizes(document, printer)?;
    let held_out = document.held_out_change.map_or(String::new(), |change| {
        format!(", {} on the sequences held out", percent(change))
    });
    printer.line(&format!(
        "logits     change by {}{held_out}",
        percent(document.changes.after),
    ))?;
    if let Some(longer) = &document.longer {
        show_longer(longer, printer)?;
    }
    if let (Some(before), Some(after)) = (&document.before, &document.after) {
        printer.line(&format!("accuracy   {before} → {after}"))?;
    }
    show_files(document, printer)
}

/// What was calibrated on, and what bytes and time became.
fn show_sizes(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    let plan = &document.plan;
    printer.line(&format!(
        "calibrated on {}: {} took part, {} held out; encoder {}, head {}",
        document.origin,
        document.sequences[0],
        document.sequences[1],
        entries(plan.encoder),
        entries(plan.head),
    ))?;
    let (before, after) = (document.size_before, document.size);
    for (name, before, after) in [
        ("weights", before.weights, after.weights),
        ("state", before.state, after.state),
        ("together", before.total(), after.total()),
    ] {
        printer.line(&format!(
            "{name:9}  {} → {} bytes (1/{:.1})",
            grouped(before),
            grouped(after),
            before as f64 / after.max(1) as f64
        ))?;
    }
    printer.line(&format!(
        "a step     {} → {} us on this machine ({:.2} times as fast)",
        short(document.step_microseconds_before),
        short(document.step_microseconds),
        document.step_microseconds_before / document.step_microseconds,
    ))
}

fn show_files(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    printer.line(&format!(
        "parameters {} → {} in a checkpoint, orders {:?}, in {:.1} s",
        grouped(document.parameters_before),
        grouped(document.parameters_after),
        document.d_state,
        document.seconds,
    ))?;
    show_kept(&document.kept_layers, printer);
    let files = [&document.output, &document.image, &document.card];
    for file in files.into_iter().flatten() {
        printer.line(&format!("wrote {file}"))?;
    }
    if document.dry_run {
        printer.line("dry run: no model was written")?;
    }
    match &document.report {
        Some(report) => report.show(printer),
        None => Ok(()),
    }
}

/// How a map is stored, in words.
fn entries(choice: Option<MapChoice>) -> String {
    match choice {
        None => "-".to_string(),
        Some(MapChoice { entries, group }) => {
            let name = format!("{entries:?}").to_lowercase();
            match entries.bits() {
                Some(_) => format!("{name} by {group}"),
                None => name.replace("full", "f32"),
            }
        }
    }
}
