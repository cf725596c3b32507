//! `compress-model reduce`.

mod arguments;
mod card;
mod chosen;
mod file_target;
mod folder;
mod layerwise;
mod lines;
mod places;
mod provenance;
mod report;
mod rounding;
mod storage;
mod target;
#[cfg(feature = "train")]
mod training;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, anyhow, bail};
use hankelite::advanced::{
    HeldApart, KeptLayer, Longer, Settings, Sizes, change_beyond, held_apart, reduce_observed,
};
use hankelite::calibrate::{Calibration, Choice, TargetSize};
use hankelite::checkpoint::{Checkpoint, EncodedCheckpoint, FolderChanges, Provenance};
use hankelite::compress::{LayerRecord, TimeBase};
use hankelite::model::Model;
use hankelite::rounding::Storage;
use hankelite::{Plan, Rule, Suited};
use hankelite_archive::{WeightSet, write_whole};
use hankelite_control::SystemClass;
use serde::Serialize;

pub(super) use arguments::Arguments;

use crate::cli::calibration::{CalibrationData, Needed, prepare};
use crate::cli::common::open;
use crate::cli::image::require_network;
use crate::cli::printer::Printer;
use crate::cli::progress::Bars;
use crate::cli::reduce::arguments::RuleArguments;
use crate::cli::reduce::card::{Card, both};
use crate::cli::reduce::file_target::{FileTarget, Found};
use crate::cli::reduce::lines::show;
use crate::cli::reduce::provenance::{Way, longest, measured, provenance};
use crate::cli::reduce::report::page;
use crate::cli::reduce::rounding::written;
use crate::cli::reduce::storage::{WrittenImage, stored, write_image};
use crate::cli::report::{WrittenReport, write_page};
use crate::cli::score::{First, Scores, labelled, score};

/// Steps over which kernels are compared unless the length of sequences is declared.
const KERNEL_LENGTH: usize = 1024;

#[derive(Serialize)]
struct Document<'a> {
    checkpoint: String,
    output: Option<String>,
    family: &'static str,
    /// The only systems that the layers can hold, where they cannot hold all.
    #[serde(skip)]
    class: Option<SystemClass>,
    /// Absent with calibration.
    plan: Option<&'a Plan>,
    /// What calibration chose. Absent without it.
    calibration: Option<Choice>,
    /// Relative change of the logits of sequences that took no part. With a target.
    held_out_change: Option<f64>,
    /// What to expect on longer sequences. With calibration, where the network ran.
    longer: Option<Longer>,
    dry_run: bool,
    /// What --image wrote.
    image: Option<WrittenImage>,
    report: Option<WrittenReport>,
    card: Option<String>,
    /// The folder of --filters.
    filters: Option<String>,
    /// What changes beside the tensors of a folder.
    folder: Option<FolderChanges>,
    /// Layers whose poles and residues are in a wider number format than that of --dtype or the file.
    kept_layers: Vec<KeptLayer>,
    parameters_before: usize,
    parameters_after: usize,
    seconds: f64,
    /// ‖k_written − k_planned‖/‖k‖ of the worst channel: what the file's number format costs.
    rounding_error: Option<f64>,
    /// Steps over which kernel errors were measured.
    kernel_length: usize,
    before: Option<Scores>,
    after: Option<Scores>,
    assumptions: &'a [String],
    notes: &'a [String],
    parts: &'a [WeightSet],
    layers: Vec<LayerRecord>,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let start = Instant::now();
    arguments.check()?;
    if arguments.is_whole() {
        return target::run(&arguments.with_places(), start, printer);
    }
    if arguments.is_of_layers_alone() {
        return layerwise::run(arguments, start, printer);
    }
    whole(arguments, start, printer)
}

/// Reduces all layers at once.
fn whole(arguments: &Arguments, start: Instant, printer: &Printer) -> anyhow::Result<()> {
    let path = &arguments.input.checkpoint;
    let checkpoint = open(path, &arguments.declarations.declared(), printer)?;
    if arguments.target_ways.image.is_some() {
        require_network(path, &checkpoint)?;
    }
    let data = arguments.data.as_ref();
    let data = data
        .map(|source| labelled(&checkpoint, source))
        .transpose()?;
    let Work {
        model,
        layers,
        plan,
        calibration,
        held_out_change,
        longer,
        kernel_length,
        statistics,
        made,
    } = work(arguments, &checkpoint, printer).with_context(|| path.display().to_string())?;
    let mut reduced = checkpoint.with_model(model).with_provenance(made.clone());
    let encoded = stored(&reduced, arguments.dtype)?;
    let mut document = Document {
        family: checkpoint.family(),
        class: checkpoint.system_class(),
        plan: plan.as_ref(),
        calibration,
        held_out_change,
        longer,
        kernel_length,
        kept_layers: encoded.kept_layers().to_vec(),
        folder: folder::changes(&checkpoint, &layers)?,
        parameters_before: checkpoint.parameters_of_file(),
        parameters_after: encoded.parameters(),
        assumptions: checkpoint.assumptions(),
        notes: checkpoint.notes(),
        parts: checkpoint.weight_sets(),
        layers,
        ..Document::new(arguments)
    };
    if !arguments.dry_run {
        document.image = write_image(arguments, &reduced.model, &Storage::single(&reduced.model))?;
    }
    if let Some(output) = arguments.output.as_deref().filter(|_| !arguments.dry_run) {
        let to = (&reduced, output);
        let (held, worst) = write(arguments, encoded, to, kernel_length, printer)?;
        document.rounding_error = Some(worst);
        // What is measured below is what the file holds.
        reduced = held;
    }
    document.filters = write_filters(arguments, &reduced)?;
    document.seconds = start.elapsed().as_secs_f64();
    if let Some(data) = &data {
        document.before = Some(score(&checkpoint, First::all(data), printer)?);
        document.after = Some(score(&reduced, First::all(data), printer)?);
    }
    let models = [&checkpoint, &reduced];
    let made = (&made, statistics.as_ref());
    describe(arguments, models, &mut document, made, printer)?;
    finish(&document, printer)
}

/// Writes the smaller checkpoint: what the file holds, and how far rounding changed a kernel.
fn write(
    arguments: &Arguments,
    encoded: EncodedCheckpoint<'_>,
    (reduced, output): (&Checkpoint, &Path),
    kernel_length: usize,
    printer: &Printer,
) -> anyhow::Result<(Checkpoint, f64)> {
    let read_back = encoded.write(output)?;
    let (written, worst) = written(reduced, read_back, kernel_length, printer)?;
    let held = match arguments.dtype {
        None => written,
        Some(_) => hankelite::read(output, &arguments.declarations.declared())?,
    };
    Ok((held, worst))
}

/// Writes the filters of every layer into the folder that is asked for, which is made where its own folder
/// exists.
fn write_filters(arguments: &Arguments, reduced: &Checkpoint) -> anyhow::Result<Option<String>> {
    let Some(folder) = arguments.filters.as_deref().filter(|_| !arguments.dry_run) else {
        return Ok(None);
    };
    let files = reduced.filter_files()?;
    if !folder.is_dir() {
        std::fs::create_dir(folder)
            .with_context(|| format!("{}: the folder cannot be made", folder.display()))?;
    }
    for (name, bytes) in files {
        write_whole(folder.join(name), bytes)?;
    }
    Ok(Some(folder.display().to_string()))
}

/// Writes the card and the report.
fn describe(
    arguments: &Arguments,
    models: [&Checkpoint; 2],
    document: &mut Document<'_>,
    (made, statistics): (&Provenance, Option<&Calibration>),
    printer: &Printer,
) -> anyhow::Result<()> {
    if let Some(file) = arguments.card.as_deref().filter(|_| !arguments.dry_run) {
        write_whole(file, document.card_of(made).markdown())?;
        document.card = Some(file.display().to_string());
    }
    if let Some(file) = &arguments.report.path {
        let page = page(models, document, statistics, printer)?;
        document.report = Some(write_page(&page, file)?);
    }
    Ok(())
}

impl Document<'_> {
    /// What the arguments hold already.
    fn new(arguments: &Arguments) -> Self {
        let output = arguments.output.as_ref();
        Self {
            checkpoint: arguments.input.checkpoint.display().to_string(),
            output: output.map(|output| output.display().to_string()),
            family: "",
            class: None,
            plan: None,
            calibration: None,
            held_out_change: None,
            longer: None,
            image: None,
            report: None,
            card: None,
            filters: None,
            folder: None,
            kept_layers: Vec::new(),
            dry_run: arguments.dry_run,
            parameters_before: 0,
            parameters_after: 0,
            seconds: 0.0,
            rounding_error: None,
            kernel_length: KERNEL_LENGTH,
            before: None,
            after: None,
            assumptions: &[],
            notes: &[],
            parts: &[],
            layers: Vec::new(),
        }
    }
}

impl Document<'_> {
    /// The model card.
    fn card_of<'a>(&'a self, made: &'a Provenance) -> Card<'a> {
        let on = |what: &str, change: Option<f64>| Some((what.to_string(), change?));
        Card {
            output: self.output.as_deref(),
            image: self.image.as_ref().map(|image| image.path.as_str()),
            family: self.family,
            parameters: [self.parameters_before, self.parameters_after],
            scores: both(&self.before, &self.after),
            made,
            trained: None,
            changes: [
                on("", made.logit_change),
                on(" on sequences held out", self.held_out_change),
            ]
            .into_iter()
            .flatten()
            .collect(),
            tables: Vec::new(),
        }
    }
}

fn finish(document: &Document<'_>, printer: &Printer) -> anyhow::Result<()> {
    if printer.is_json() {
        return printer.json(document);
    }
    show(document, printer)
}

/// A reduced model and how it came about.
struct Work {
    model: Model,
    layers: Vec<LayerRecord>,
    plan: Option<Plan>,
    calibration: Option<Choice>,
    held_out_change: Option<f64>,
    longer: Option<Longer>,
    kernel_length: usize,
    /// Of the layers' inputs, with calibration.
    statistics: Option<Calibration>,
    /// For the file's metadata.
    made: Provenance,
}

fn work(arguments: &Arguments, checkpoint: &Checkpoint, printer: &Printer) -> anyhow::Result<Work> {
    if let Some(source) = &arguments.calibrate {
        return calibrated(arguments, source, checkpoint, printer);
    }
    let mut plan = plan(arguments, checkpoint)?;
    if arguments.sharing.is_one_order() {
        plan = plan.with_one_order(&checkpoint.model, &Bars::new(printer))?;
    }
    let reduced = reduce_observed(&checkpoint.model, &plan, &Bars::new(printer))?;
    let source = &arguments.input.checkpoint;
    Ok(Work {
        made: provenance((source, checkpoint), &reduced.records, &Way::Plan(&plan))?,
        model: reduced.model,
        layers: reduced.records,
        kernel_length: plan.kernel_length(),
        plan: Some(plan),
        calibration: None,
        held_out_change: None,
        longer: None,
        statistics: None,
    })
}

/// How a calibrated reduction goes about it.
fn settings(arguments: &Arguments, checkpoint: &Checkpoint) -> anyhow::Result<Settings> {
    let rule = &arguments.rule;
    let size = match (rule.order, rule.budget, rule.max_error) {
        (Some(order), ..) => TargetSize::Order(order),
        (_, Some(share), _) => TargetSize::Budget(share),
        (.., Some(error)) => TargetSize::Error(error),
        _ if arguments.target.is_set() => TargetSize::Budget(1.0),
        _ => bail!("--calibrate takes --order, --budget, --max-error or a target"),
    };
    let mut settings = Settings::new(size);
    arguments.ways.apply(&mut settings);
    let (sharing, form) = (&arguments.sharing, arguments.form());
    sharing.apply(form, &checkpoint.model, &mut settings)?;
    settings.kernel_length = checkpoint.declared().length;
    Ok(settings)
}

/// A family that holds all systems, for layers that hold those of a class.
fn free_family(class: SystemClass) -> &'static str {
    match class {
        SystemClass::RealPoles => "s4d",
        SystemClass::RealInputs => "lru",
        SystemClass::Multiples => "stripedhyena",
        _ => "s5",
    }
}

/// Whether this model can be calibrated as requested.
fn check_calibration(
    arguments: &Arguments,
    checkpoint: &Checkpoint,
    printer: &Printer,
) -> anyhow::Result<()> {
    arguments.check_model(&checkpoint.model)?;
    if arguments.target.is_set() {
        let checked = Sizes::check(&checkpoint.model);
        checked.map_err(|error| anyhow!("{error} (--order or --budget)"))?;
    }
    if Suited::to(checkpoint).time == TimeBase::Impulses {
        let text =
            "calibration takes events one step apart; a reduction without data suits any times";
        printer.note("note", text);
    }
    Ok(())
}

fn calibrated(
    arguments: &Arguments,
    source: &str,
    checkpoint: &Checkpoint,
    printer: &Printer,
) -> anyhow::Result<Work> {
    check_calibration(arguments, checkpoint, printer)?;
    let settings = settings(arguments, checkpoint)?;
    let ways = &arguments.ways;
    let page = arguments.report.path.is_some();
    let (sequences, needed) = (ways.sequences(), Needed::with_page(page));
    let calibration = CalibrationData::open(source, sequences, checkpoint, needed, printer)?;
    let kernel_length = settings.kernel_length.unwrap_or(calibration.length());
    let (listed, bars) = (calibration.listed(), Bars::new(printer));
    let Found {
        calibrated,
        held_out_change,
    } = match arguments.target.is_set() {
        false => Found {
            calibrated: prepare(checkpoint, &calibration, &listed, ways, &bars)?
                .reduce(&settings)?,
            held_out_change: None,
        },
        true => {
            let HeldApart { used, held_out } = held_apart(&listed);
            let target = FileTarget {
                arguments,
                checkpoint,
                prepared: &prepare(checkpoint, &calibration, &used, ways, &bars)?,
                settings,
                held_out: &held_out,
                note: longest(
                    &arguments.input.checkpoint,
                    checkpoint,
                    calibration.origin(),
                )?,
            };
            target.reduced()?
        }
    };
    let steps = calibration.length();
    let longer = change_beyond(&checkpoint.model, &calibrated.model, &listed, steps)?;
    let way = Way::Calibrated(&calibrated.choice);
    Ok(Work {
        made: measured(
            provenance(
                (&arguments.input.checkpoint, checkpoint),
                &calibrated.records,
                &way,
            )?,
            longer,
        ),
        longer,
        model: calibrated.model,
        layers: calibrated.records,
        plan: None,
        kernel_length,
        calibration: Some(calibrated.choice),
        held_out_change,
        statistics: calibration.statistics,
    })
}

/// What to do with a model; of its layers only the largest order counts.
fn plan(arguments: &Arguments, checkpoint: &Checkpoint) -> anyhow::Result<Plan> {
    let RuleArguments {
        order,
        energy,
        tolerance,
        ..
    } = arguments.rule;
    let rule = match (order, energy, tolerance) {
        (Some(order), ..) => Rule::Order(order),
        (_, Some(share), _) => Rule::Energy(share),
        (.., Some(tolerance)) => Rule::Tolerance(tolerance),
        _ => bail!("one of --order, --energy and --tolerance is needed"),
    };
    let (length, suited) = (checkpoint.declared().length, Suited::to(checkpoint));
    if arguments.unstable && length.is_none() {
        bail!("--unstable keeps the first L kernel samples: declare L with --length");
    }
    let plan = Plan::new(rule)?
        .with_kernel_length(length.unwrap_or(KERNEL_LENGTH))
        .with_realisation(arguments.realisation)
        .with_method(arguments.method.unwrap_or(suited.method))?
        .with_time(arguments.time.unwrap_or(suited.time))?
        .with_unstable(arguments.unstable)?
        .with_shared_poles(arguments.share_poles)?;
    plan.check(&checkpoint.model)?;
    Ok(plan)
}
