//! A model to a target of bytes, time or change.

mod lines;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, bail};
use hankelite::advanced::{
    HeldApart, KeptLayer, LogitChanges, Longer, Sizes, Targeted, change_beyond, held_apart,
    step_microseconds,
};
use hankelite::calibrate::{Calibration, LogitFit};
use hankelite::checkpoint::{Checkpoint, FolderChanges, Provenance};
use hankelite::compress::LayerRecord;
use hankelite::model::Sequence;
use hankelite::read;
use hankelite::rounding::{MapChoice, Storage};
use hankelite::target::{Size, SizePlan, WholeSize};
use hankelite_archive::{WeightSet, write_whole};
use hankelite_data::Dataset;
use hankelite_report::{Footprint, Page, Pair, Plotted, Story};
use serde::Serialize;

use crate::cli::calibration::{CalibrationData, Needed, prepare};
use crate::cli::common::{grouped, open, quoted, short};
use crate::cli::printer::Printer;
use crate::cli::progress::Bars;
use crate::cli::reduce::arguments::Arguments;
use crate::cli::reduce::card::{Card, Table, both};
use crate::cli::reduce::chosen::{Choice, Given, SCORED, Search, WITHIN, conventions};
use crate::cli::reduce::folder;
use crate::cli::reduce::provenance::{Way, measured, provenance};
use crate::cli::reduce::storage::{WrittenImage, stored, write_image};
use crate::cli::reduce::target::lines::{show, show_chosen};
#[cfg(feature = "train")]
use crate::cli::reduce::training;
use crate::cli::report::{
    WrittenReport, kernel_steps, laid_out, origin_rows, rates, title, write_page,
};
use crate::cli::score::{First, Scores, score};
#[cfg(feature = "train")]
use crate::cli::training::TrainingReport;

#[derive(Serialize)]
struct Document {
    checkpoint: String,
    family: &'static str,
    output: Option<String>,
    image: Option<WrittenImage>,
    report: Option<WrittenReport>,
    card: Option<String>,
    dry_run: bool,
    origin: String,
    /// Sequences that calibrated, and those held out.
    sequences: [usize; 2],
    size_before: Size,
    size: Size,
    step_microseconds_before: f64,
    step_microseconds: f64,
    parameters_before: usize,
    parameters_after: usize,
    size_plan: SizePlan,
    /// Largest order of each layer: what a checkpoint of one order for each layer stores.
    d_state: Vec<usize>,
    changes: LogitChanges,
    held_out_change: Option<f64>,
    /// What to expect on longer sequences.
    longer: Option<Longer>,
    fit: Option<LogitFit>,
    /// What changes beside the tensors of a folder.
    folder: Option<FolderChanges>,
    /// Layers whose poles and residues are not in the number format of --dtype.
    kept_layers: Vec<KeptLayer>,
    before: Option<Scores>,
    after: Option<Scores>,
    /// Where no size was given.
    #[serde(skip_serializing_if = "Option::is_none")]
    chosen: Option<Choice>,
    /// With --train. `changes` and `held_out_change` are of the model before the training.
    #[cfg(feature = "train")]
    #[serde(skip_serializing_if = "Option::is_none")]
    trained: Option<TrainingReport>,
    seconds: f64,
    assumptions: Vec<String>,
    notes: Vec<String>,
    parts: Vec<WeightSet>,
    layers: Vec<LayerRecord>,
}

pub(super) fn run(arguments: &Arguments, start: Instant, printer: &Printer) -> anyhow::Result<()> {
    let path = &arguments.input.checkpoint;
    #[cfg(feature = "train")]
    arguments.require_trainable()?;
    let mut checkpoint = open(path, &arguments.declarations.declared(), printer)?;
    if checkpoint.is_layers_alone() {
        bail!(
            "{}: only the layers of this file are understood; a target needs the whole network. \
             docs/calibrate-your-own-network.md captures the layers' inputs in PyTorch or JAX; then \
             `--calibrate CAPTURED --max-error 0.05` keeps the fewest states with that error",
            path.display()
        );
    }
    let given = Given::of(arguments, &checkpoint)?;
    let labelled = given.data.as_ref();
    if arguments.target_ways.within.is_some() && labelled.is_none() {
        bail!("--within is points of accuracy: give --data DATA with labels, or leave it out");
    }
    let better = match labelled.filter(|_| arguments.is_without_size()) {
        Some(data) => conventions(arguments, &checkpoint, data, printer)?,
        None => None,
    };
    if let Some(better) = &better {
        checkpoint = read(path, &better.declared)?;
    }
    let work = || reduced(arguments, &checkpoint, &given, start, printer);
    let document = work().with_context(|| path.display().to_string())?;
    if printer.is_json() {
        return printer.json(&document);
    }
    match &document.chosen {
        Some(choice) => {
            let declared = better.map_or(String::new(), |better| format!(" --{}", better.setting));
            let again = again(arguments, &given, choice, &declared);
            show_chosen(&document, choice, &again, printer)
        }
        None => show(&document, printer),
    }
}

/// The command that makes the same model again.
fn again(arguments: &Arguments, given: &Given, choice: &Choice, declared: &str) -> String {
    let data = arguments.data.as_ref();
    let data = data.map(|source| format!(" --data {}", quoted(&source.to_string())));
    let places = [
        (" --output ", &arguments.output),
        (" --image ", &arguments.target_ways.image),
    ];
    let places = places.into_iter().filter_map(|(flag, path)| {
        let path = path.as_ref()?.display().to_string();
        Some(flag.to_string() + &quoted(&path))
    });
    #[cfg(feature = "train")]
    let training = arguments.training.typed();
    #[cfg(not(feature = "train"))]
    let training = "";
    format!(
        "compress-model reduce {} --calibrate {}{}{}{declared}{} --times {}{training}{}",
        quoted(&arguments.input.checkpoint.display().to_string()),
        quoted(&given.calibrate),
        arguments.ways.typed_with(&given.sequences),
        arguments.declarations.typed(),
        data.unwrap_or_default(),
        choice.times,
        places.collect::<String>(),
    )
}

fn reduced(
    arguments: &Arguments,
    checkpoint: &Checkpoint,
    given: &Given,
    start: Instant,
    printer: &Printer,
) -> anyhow::Result<Document> {
    arguments.check_model(&checkpoint.model)?;
    let calibration = calibration(arguments, checkpoint, given, printer)?;
    let listed = calibration.listed();
    let Made {
        met: made,
        chosen,
        full,
        sequences,
    } = made(
        arguments,
        (checkpoint, given),
        &calibration,
        &listed,
        printer,
    )?;
    #[cfg(feature = "train")]
    let mut made = made;
    let steps = calibration.length();
    let way = Way::Target(calibration.origin());
    let source = (arguments.input.checkpoint.as_path(), checkpoint);
    let note = provenance(source, &made.records, &way)?;
    let smaller = checkpoint
        .with_model(made.model.clone())
        .with_storage(made.plan.storage());
    #[cfg(feature = "train")]
    let (smaller, trained) =
        training::trained(arguments, given, [checkpoint, &smaller], &mut made, printer)?
            .map_or((smaller, None), |(trained, report)| (trained, Some(report)));
    let longer = change_beyond(&checkpoint.model, &made.model, &listed, steps)?;
    let note = measured(note, longer);
    let smaller = smaller.with_provenance(note.clone());
    let mut document = Document {
        origin: calibration.origin().to_string(),
        sequences,
        size_before: full,
        step_microseconds_before: full_step(checkpoint)?,
        step_microseconds: step_microseconds(&made.model, &made.storage)?,
        held_out_change: made.held_out_change,
        longer,
        #[cfg(feature = "train")]
        trained,
        ..Document::new(arguments, checkpoint, &made)?
    };
    write(arguments, &smaller, &made, &mut document)?;
    document.seconds = start.elapsed().as_secs_f64();
    let models = [checkpoint, &smaller];
    document.score(models, given.data.as_ref(), chosen, printer)?;
    if let Some(file) = arguments.card.as_deref().filter(|_| !arguments.dry_run) {
        write_whole(file, document.card_of(&note).markdown())?;
        document.card = Some(file.display().to_string());
    }
    if let Some(path) = &arguments.report.path {
        let page = document.page(models, calibration.statistics.as_ref(), printer)?;
        document.report = Some(write_page(&page, path)?);
    }
    Ok(document)
}

/// The sequences that calibrate.
fn calibration(
    arguments: &Arguments,
    checkpoint: &Checkpoint,
    given: &Given,
    printer: &Printer,
) -> anyhow::Result<CalibrationData> {
    let (source, sequences) = (given.calibrate.as_str(), &given.sequences);
    let needed = Needed::with_page(arguments.report.path.is_some());
    let calibration = CalibrationData::open(source, sequences, checkpoint, needed, printer)?;
    if calibration.listed().is_empty() {
        bail!(
            "a target runs the calibration sequences through the network; {source} holds statistics or inputs of layers"
        );
    }
    Ok(calibration)
}

/// A smaller model, and how it came about.
struct Made {
    met: Targeted,
    chosen: Option<Choice>,
    /// In single precision.
    full: Size,
    /// That calibrate, and that are held out.
    sequences: [usize; 2],
}

/// The model that meets the targets, or the smallest that does without them.
fn made(
    arguments: &Arguments,
    (checkpoint, given): (&Checkpoint, &Given),
    calibration: &CalibrationData,
    listed: &[Sequence<'_>],
    printer: &Printer,
) -> anyhow::Result<Made> {
    let HeldApart { used, held_out } = held_apart(listed);
    let bars = Bars::new(printer);
    let ways = &arguments.ways;
    let prepared = prepare(checkpoint, calibration, &used, ways, &bars)?;
    let sizes = Sizes::new(&prepared, &held_out, arguments.target_ways.only)?;
    let (met, chosen) = match arguments.is_without_size() {
        false => (sizes.meet(&wanted(arguments))?, None),
        true => {
            let search = Search {
                checkpoint,
                sizes: &sizes,
                data: given.data.as_ref(),
                within: arguments.target_ways.within.unwrap_or(WITHIN),
            };
            let (met, choice) = search.run(&bars, printer)?;
            (met, Some(choice))
        }
    };
    bars.clear();
    Ok(Made {
        met,
        chosen,
        full: sizes.full(),
        sequences: [used.len(), held_out.len()],
    })
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
            size_plan: made.plan.clone(),
            d_state: made.records.iter().map(|layer| layer.order).collect(),
            changes: made.changes,
            held_out_change: None,
            longer: None,
            fit: made.fit.clone(),
            folder: None,
            kept_layers: Vec::new(),
            before: None,
            after: None,
            chosen: None,
            #[cfg(feature = "train")]
            trained: None,
            seconds: 0.0,
            assumptions: checkpoint.assumptions().to_vec(),
            notes: checkpoint.notes().to_vec(),
            parts: checkpoint.weight_sets().to_vec(),
            layers: made.records.clone(),
        })
    }
}

impl Document {
    /// Adds the accuracies before and after: those by which the size was chosen, where it was.
    fn score(
        &mut self,
        [full, smaller]: [&Checkpoint; 2],
        data: Option<&Dataset>,
        chosen: Option<Choice>,
        printer: &Printer,
    ) -> anyhow::Result<()> {
        let known = chosen.as_ref().and_then(|choice| choice.scores.clone());
        match (known, data) {
            (Some([before, _]), Some(data)) if self.training().is_some() => {
                let first = First::of(data, Some(SCORED));
                self.before = Some(before);
                self.after = Some(score(smaller, first, printer)?);
            }
            (Some([before, after]), _) => (self.before, self.after) = (Some(before), Some(after)),
            (None, Some(data)) => {
                self.before = Some(score(full, First::all(data), printer)?);
                self.after = Some(score(smaller, First::all(data), printer)?);
            }
            (None, None) => {}
        }
        self.chosen = chosen;
        Ok(())
    }

    /// The report on the models before and after.
    fn page(
        &self,
        [full, smaller]: [&Checkpoint; 2],
        statistics: Option<&Calibration>,
        printer: &Printer,
    ) -> anyhow::Result<Page> {
        let footprint = |size: Size, microseconds| Footprint {
            bytes: size.total(),
            microseconds: Some(microseconds),
            stored: "",
        };
        let after = footprint(self.size, self.step_microseconds);
        let name = self.output.as_deref().or(self.image_path());
        let (source, other) = (Path::new(&self.checkpoint), Some(name.unwrap_or("dry run")));
        let mut origin = vec![("Calibration".to_string(), self.origin.clone())];
        let mut warnings = self.notes.clone();
        if let Some(text) = self.training() {
            origin.push(("Training".to_string(), text));
            warnings.push("The errors of the layers are those before the training.".to_string());
        }
        let story = Story {
            title: title(source, other),
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
            accuracy: rates(self.before.as_ref(), self.after.as_ref()),
            logit_change: match (self.training(), self.held_out_change) {
                (Some(_), _) => None,
                (None, Some(change)) => Some((change, "held-out sequences")),
                (None, None) => Some((self.changes.after, "the calibration sequences")),
            },
            assumptions: &self.assumptions,
            warnings,
            provenance: origin_rows(source, other, origin)?,
        };
        let drawn = Plotted {
            full: &full.model,
            reduced: Some(&smaller.model),
            calibration: statistics,
            records: Some(&self.layers),
            steps: kernel_steps(full, statistics.map(Calibration::length)),
        };
        laid_out(story, &drawn, self, printer)
    }
}

impl Document {
    fn image_path(&self) -> Option<&str> {
        Some(self.image.as_ref()?.path.as_str())
    }

    /// The model card.
    fn card_of<'a>(&'a self, made: &'a Provenance) -> Card<'a> {
        let trained = self.training();
        let when = match trained {
            Some(_) => ", before the training",
            None => "",
        };
        let mut changes = vec![(format!(" of the calibration{when}"), self.changes.after)];
        let held_out = self.held_out_change;
        changes.extend(held_out.map(|change| (format!(" on sequences held out{when}"), change)));
        changes.extend(self.longer.map(|longer| {
            let on = format!(
                " over {} steps, twice the calibrated length",
                2 * longer.steps
            );
            (on, longer.change_of_pairs)
        }));
        Card {
            output: self.output.as_deref(),
            image: self.image_path(),
            family: self.family,
            parameters: [self.parameters_before, self.parameters_after],
            scores: both(&self.before, &self.after),
            made,
            trained,
            changes,
            tables: vec![self.sizes(), self.bits()],
        }
    }

    /// What it was trained on, in a few words, where it was trained.
    #[cfg(feature = "train")]
    fn training(&self) -> Option<String> {
        let report = self.trained.as_ref()?;
        Some(training::in_words(report))
    }

    /// The same of a program without a trainer.
    #[cfg(not(feature = "train"))]
    fn training(&self) -> Option<String> {
        None
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
        let plan = &self.size_plan;
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
    document.folder = folder::changes(smaller, &document.layers)?;
    if arguments.dry_run {
        return Ok(());
    }
    if let Some(output) = &arguments.output {
        drop(encoded.write(output)?);
        document.output = Some(output.display().to_string());
    }
    document.image = write_image(arguments, &made.model, &made.storage)?;
    Ok(())
}

/// What the targets ask for.
fn wanted(arguments: &Arguments) -> WholeSize {
    let targets = &arguments.target;
    WholeSize {
        times: targets.times,
        bytes: targets.max_bytes,
        microseconds: targets.max_microseconds,
        change: targets.max_change,
    }
}

/// Microseconds of a step of the full model in single precision.
fn full_step(checkpoint: &Checkpoint) -> anyhow::Result<f64> {
    let model = &checkpoint.model;
    Ok(step_microseconds(model, &Storage::single(model))?)
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
