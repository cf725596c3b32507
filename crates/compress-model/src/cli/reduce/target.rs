//! A model to a target of bytes, time or change.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, bail};
use clap::Args;
use hankelite::calibrate::{CalibratedReduction, Calibration, LogitFit, Longer, change_beyond};
use hankelite::checkpoint::{Checkpoint, KeptLayer};
use hankelite::compress::LayerRecord;
use hankelite::model::{Model, Sequence};
use hankelite::rounding::Storage;
use hankelite::target::{
    Limits, LogitChanges, MapChoice, Parts, Planner, Size, SizePlan, Targeted, planner,
    step_microseconds,
};
use hankelite_data::Dataset;
use serde::Serialize;

use crate::cli::calibration::{CalibrationData, Drawn, prepare};
use crate::cli::common::{PARTS, grouped, open, short, words};
use crate::cli::printer::Printer;
use crate::cli::progress::Bars;
use crate::cli::reduce::provenance::{Way, measured, provenance};
use crate::cli::reduce::storage::{show_kept, stored, write_image};
use crate::cli::reduce::{Arguments, percent, show_longer};
use crate::cli::report::{
    Footprint, Pair, Plotted, Story, WrittenReport, kernel_steps, write_page,
};
use crate::cli::score::{First, Scores, labelled, score};
use crate::report::Page;

/// Plans that are made at most to meet a target that only a finished model shows.
const TRIES: usize = 4;

/// Targets of the whole model.
#[derive(Debug, Args)]
#[group(id = "target", multiple = true)]
#[command(next_help_heading = "Targets")]
pub(super) struct TargetArguments {
    /// With --calibrate: states and maps together in at most so many bytes, those of the image and
    /// of one stream's state. `k` stands for a thousand, `M` for a million.
    #[arg(hide_short_help = true, long, value_name = "BYTES", value_parser = bytes, requires = "calibrate")]
    max_bytes: Option<usize>,
    /// With --calibrate: this many times fewer bytes than in single precision.
    #[arg(
        long,
        value_name = "X",
        requires = "calibrate",
        allow_negative_numbers = true
    )]
    times: Option<f64>,
    /// With --calibrate: a step of at most so many microseconds on this machine.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "T",
        requires = "calibrate",
        allow_negative_numbers = true
    )]
    pub(super) max_microseconds: Option<f64>,
    /// With --calibrate: the fewest bytes with which the logits of held-out calibration sequences
    /// change by at most this share.
    #[arg(
        hide_short_help = true,
        long,
        value_name = "E",
        requires = "calibrate",
        allow_negative_numbers = true
    )]
    pub(super) max_change: Option<f64>,
}

/// What goes with a target.
#[derive(Debug, Args)]
#[command(next_help_heading = "Targets")]
pub(super) struct TargetWays {
    /// What a target makes smaller.
    #[arg(hide_short_help = true, long, requires = "target", default_value = "all", value_parser = words::<Parts>(PARTS))]
    pub(super) only: Parts,
    /// The image of the smaller model, for `stream`, `bench` and devices. The checkpoint of
    /// --output holds the same numbers.
    #[arg(long, value_name = "FILE", requires = "calibrate")]
    pub(super) image: Option<PathBuf>,
}

impl TargetArguments {
    pub(super) fn is_set(&self) -> bool {
        self.max_bytes.is_some()
            || self.times.is_some()
            || self.max_microseconds.is_some()
            || self.max_change.is_some()
    }

    /// The bytes that are allowed, of so many.
    pub(super) fn bytes_of(&self, full: u64) -> Option<u64> {
        let times = self.times.map(|times| (full as f64 / times) as u64);
        let most = self.max_bytes.map(|most| most as u64);
        times.into_iter().chain(most).min()
    }

    /// Refuses what is no target of a model whose channels share modes.
    pub(super) fn check_shared(&self, model: &Model) -> anyhow::Result<()> {
        let mut blocks = model.blocks().iter();
        if blocks.any(|block| !block.backward().is_empty()) {
            bail!(
                "a target takes causal layers; here they run in both directions: choose the size \
                 by --order or --budget"
            );
        }
        Ok(())
    }

    /// Refuses numbers that are no targets.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        for (name, value, least) in [
            ("--times", self.times, 1.0),
            ("--max-microseconds", self.max_microseconds, 0.0),
            ("--max-change", self.max_change, 0.0),
        ] {
            if let Some(value) = value
                && !(value > least && value.is_finite())
            {
                bail!("{name} is {value}, expected a number above {least}");
            }
        }
        Ok(())
    }
}

/// A count of bytes: `7600`, `7.6k`, `1.2M`.
fn bytes(text: &str) -> Result<usize, String> {
    let (digits, factor) = match text.chars().last() {
        Some('k' | 'K') => (&text[..text.len() - 1], 1e3),
        Some('m' | 'M') => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    let bytes = digits.parse::<f64>().ok().map(|number| number * factor);
    match bytes {
        Some(bytes) if (1.0..=4e9).contains(&bytes) => Ok(bytes as usize),
        _ => Err("expected a number of bytes, such as 7600, 100k or 1.2M".to_string()),
    }
}

#[derive(Serialize)]
struct Document {
    checkpoint: String,
    family: &'static str,
    output: Option<String>,
    image: Option<String>,
    report: Option<WrittenReport>,
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
    let calibration =
        CalibrationData::open(source, arguments.ways.sequences(), checkpoint, printer)?;
    let listed = calibration.listed();
    if listed.is_empty() {
        bail!(
            "a target runs the calibration sequences through the network; {source} holds statistics or inputs of layers"
        );
    }
    let drawn = Drawn::new(&listed);
    let bars = Bars::new(printer);
    let prepared = prepare(
        checkpoint,
        &calibration,
        &drawn.used,
        &arguments.ways,
        &bars,
    )?;
    let full = Full::new(checkpoint)?;
    let search = Search {
        arguments: &arguments.target,
        only: arguments.target_ways.only,
        target: &*planner(&prepared)?,
        held_out: &drawn.held_out,
        full: &full,
    };
    let Found {
        made,
        held_out_change,
    } = search.run()?;
    bars.clear();
    let steps = calibration.statistics.length();
    let longer = change_beyond(&checkpoint.model, &made.model, &listed, steps)?;
    let way = Way::Target(calibration.statistics.origin());
    let note = provenance(
        (&arguments.input.checkpoint, checkpoint),
        &made.records,
        &way,
    )?;
    let smaller = checkpoint
        .with_model(made.model.clone())
        .with_provenance(measured(note, longer));
    let mut document = Document {
        origin: calibration.statistics.origin().to_string(),
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
    if let Some(path) = &arguments.report.path {
        let models = [checkpoint, &smaller];
        let page = document.page(models, &calibration.statistics, printer)?;
        document.report = Some(write_page(&page, path)?);
    }
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
        statistics: &Calibration,
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
            calibration: Some(statistics),
            records: Some(&self.layers),
            steps: kernel_steps(full, Some(statistics.length())),
        };
        story.page(&drawn, self, printer)
    }
}

/// Writes what is requested.
fn write(
    arguments: &Arguments,
    smaller: &Checkpoint,
    made: &Targeted,
    document: &mut Document,
) -> anyhow::Result<()> {
    let (encoded, kept) = stored(smaller, arguments.dtype)?;
    document.parameters_after = encoded.parameters();
    document.kept_layers = kept;
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

/// A model and what it does to sequences that took no part.
struct Found {
    made: Targeted,
    held_out_change: Option<f64>,
}

impl Found {
    fn of(
        made: Targeted,
        reduction: &CalibratedReduction<'_>,
        held_out: &[Sequence<'_>],
    ) -> anyhow::Result<Self> {
        let held_out_change = match held_out {
            [] => None,
            held_out => Some(reduction.change_on(&made.model, held_out)?),
        };
        Ok(Self {
            made,
            held_out_change,
        })
    }
}

/// The search for the model that meets all targets.
struct Search<'a> {
    arguments: &'a TargetArguments,
    only: Parts,
    target: &'a dyn Planner,
    held_out: &'a [Sequence<'a>],
    full: &'a Full,
}

impl Search<'_> {
    fn run(&self) -> anyhow::Result<Found> {
        let limits = self.limits();
        let Some(change) = self.arguments.max_change else {
            return self.built(&self.target.plan_within(&limits, self.only)?);
        };
        // What a finished model changes is not what its choices change one by one: what was
        // aimed at is corrected by what came out.
        let mut aim = change;
        let mut best: Option<Found> = None;
        for _ in 0..TRIES {
            let plan = self.target.plan_for_change(aim, self.only)?;
            if let Some(exceeded) = self.exceeded(&plan, &limits)? {
                if best.is_some() {
                    break;
                }
                bail!("a change of at most {} takes {exceeded}", percent(change));
            }
            let found = self.built(&plan)?;
            let reached = found.held_out_change.unwrap_or(found.made.changes.after);
            let meets = reached <= change;
            let size = found.made.size.total();
            if meets
                && best
                    .as_ref()
                    .is_none_or(|known| size < known.made.size.total())
            {
                best = Some(found);
            }
            let ratio = change / reached.max(1e-12);
            if meets && ratio < 1.1 {
                break;
            }
            aim *= ratio.clamp(0.3, 3.0) * if meets { 0.97 } else { 0.95 };
        }
        best.with_context(|| {
            format!(
                "no model that was tried changes the logits by at most {}",
                percent(change)
            )
        })
    }

    /// What the targets of bytes and time allow.
    fn limits(&self) -> Limits {
        let full = self.full.size.total();
        let allowed = self.arguments.bytes_of(full as u64);
        Limits {
            bytes: allowed.map_or(full, |most| full.min(most as usize)),
            microseconds: self.arguments.max_microseconds,
        }
    }

    /// The limit that a plan does not keep.
    fn exceeded(&self, plan: &SizePlan, limits: &Limits) -> anyhow::Result<Option<String>> {
        if plan.size.total() > limits.bytes {
            let allowed = grouped(limits.bytes);
            return Ok(Some(format!("more than {allowed} bytes")));
        }
        let Some(most) = limits.microseconds else {
            return Ok(None);
        };
        let takes = self.target.step_of(plan)?;
        Ok((takes > most).then(|| format!("a step of {} us, more than {most} us", short(takes))))
    }

    fn built(&self, plan: &SizePlan) -> anyhow::Result<Found> {
        let made = self.target.build(plan)?;
        Found::of(made, self.target.reduction(), self.held_out)
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
        "parameters {} → {} in a checkpoint, d_state = {:?}, in {:.1} s",
        grouped(document.parameters_before),
        grouped(document.parameters_after),
        document.d_state,
        document.seconds,
    ))?;
    show_kept(&document.kept_layers, printer);
    let files = [&document.output, &document.image];
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
