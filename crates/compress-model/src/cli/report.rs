//! `compress-model report`, and the reports of other commands.

mod origin;
mod pictures;

use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use hankelite::advanced::step_microseconds;
use hankelite::calibrate::Calibration;
use hankelite::checkpoint::Checkpoint;
use hankelite::rounding::Storage;
use hankelite::target::Size;
use hankelite_archive::{check_destination, write_whole};
use hankelite_data::{Dataset, Source};
use serde::Serialize;

pub(super) use self::origin::{hash_of, origin_rows, title, typed_command, typed_words};
#[cfg(feature = "train")]
pub(super) use self::origin::{identified, made_by};
use self::pictures::{SHOWN, Shown, picture};
pub(super) use hankelite_report::percent;
use hankelite_report::{Accuracy, Footprint, Page, Pair, Plotted, Story, page_html};

use crate::cli::calibration::{CalibrationData, Needed, Sequences, check_apart, source_path};
use crate::cli::common::{Declarations, Input, grouped, open, positive, words};
use crate::cli::folders::Folders;
use crate::cli::picture::{check_drawn, write_picture};
use crate::cli::printer::Printer;
use crate::cli::progress::Bars;
use crate::cli::score::{Comparison, Engine, First, Scores, logits};

/// Steps over which kernels are compared where neither a length is declared nor sequences are
/// measured.
const KERNEL_LENGTH: usize = 1024;

const EXAMPLES: &str = "\
Examples:
  compress-model report model.pth --output report.html
  compress-model report model.pth small.pth --output report.html
  compress-model report model.pth small.pth --calibrate mnist:data/mnist --output report.html
  compress-model report model.pth small.pth --picture spectra.svg --show spectra
  compress-model report model.pth small.pth --data mnist:data/mnist --limit 1000 --output report.html

The report is one file that needs no network: a browser opens it from disk. It shows Hankel spectra,
which channel keeps what, poles, kernels, and the error over frequency, beside the spectrum of each
layer's input where --calibrate measures it. `reduce --report` makes one with the record of the
reduction in it.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// A smaller checkpoint of the same network, to be shown beside the first.
    #[arg(value_name = "SMALL")]
    smaller: Option<PathBuf>,
    /// Where the report goes.
    #[arg(
        long,
        short,
        value_name = "FILE.html",
        required_unless_present = "picture"
    )]
    output: Option<PathBuf>,
    /// One kind of chart for all layers as an SVG file, or a PNG file where its name ends in .png; chosen by --show.
    #[arg(long, value_name = "FILE.svg|FILE.png")]
    picture: Option<PathBuf>,
    /// With --picture: what it shows.
    #[arg(long, default_value = "spectra", requires = "picture", value_parser = words::<Shown>(SHOWN))]
    show: Shown,
    #[command(flatten)]
    folders: Folders,
    /// Also the spectra of the layers' inputs and the errors for them: unlabelled sequences (any
    /// data source of `evaluate`), the statistics that `calibrate` wrote, or captured inputs.
    #[arg(long, value_name = "DATA|STATS|INPUTS")]
    calibrate: Option<String>,
    /// Labelled data: also accuracies.
    #[arg(long, value_name = "DATA")]
    data: Option<Source>,
    /// With --data: use the first N sequences only.
    #[arg(long, value_name = "N", value_parser = positive, requires = "data")]
    limit: Option<usize>,
    #[command(flatten)]
    sequences: Sequences,
    #[command(flatten)]
    declarations: Declarations,
}

/// The report that a command writes beside its results.
#[derive(Debug, Clone, Args)]
pub(super) struct ReportFile {
    /// Also write a report: one HTML file for a browser, which needs no network.
    #[arg(long = "report", value_name = "FILE.html")]
    pub(super) path: Option<PathBuf>,
}

impl ReportFile {
    /// Refuses to write over what is read.
    pub(super) fn check(&self, inputs: &[&Path]) -> anyhow::Result<()> {
        match &self.path {
            Some(path) => Ok(check_destination(path, inputs)?),
            None => Ok(()),
        }
    }

    /// The same, for a checkpoint, its calibration and labelled data.
    pub(super) fn check_beside(
        &self,
        checkpoint: &Path,
        calibrate: &str,
        data: Option<&Source>,
    ) -> anyhow::Result<()> {
        check_apart(self.path.as_deref(), checkpoint, calibrate, data)
    }
}

/// One model, which a report is about.
pub(super) struct Alone<'a> {
    pub(super) path: &'a Path,
    pub(super) checkpoint: &'a Checkpoint,
    pub(super) scores: Option<&'a Scores>,
    pub(super) statistics: Option<&'a Calibration>,
}

impl Alone<'_> {
    /// Its page.
    ///
    /// # Errors
    /// As [`laid_out`].
    pub(super) fn page(&self, record: &impl Serialize, printer: &Printer) -> anyhow::Result<Page> {
        let checkpoint = self.checkpoint;
        let origin = self
            .statistics
            .map(|statistics| ("Calibration".to_string(), statistics.origin().to_string()));
        let story = Story {
            title: title(self.path, None),
            family: checkpoint.family(),
            parameters: Pair::alone(checkpoint.parameters()?),
            footprint: footprint(checkpoint).map(Pair::alone),
            layers_alone: checkpoint.is_layers_alone(),
            accuracy: self.scores.and_then(Scores::rate).map(Pair::alone),
            logit_change: None,
            assumptions: checkpoint.assumptions(),
            warnings: checkpoint.notes().to_vec(),
            provenance: origin_rows(self.path, None, origin)?,
        };
        let plotted = Plotted {
            full: &checkpoint.model,
            reduced: None,
            calibration: self.statistics,
            records: None,
            steps: kernel_steps(checkpoint, self.statistics.map(Calibration::length)),
        };
        laid_out(story, &plotted, record, printer)
    }
}

/// The page of a story with the curves of its models and the record of the command.
///
/// # Errors
/// Models that cannot be laid over one another.
pub(super) fn laid_out(
    story: Story<'_>,
    plotted: &Plotted<'_>,
    record: &impl Serialize,
    printer: &Printer,
) -> anyhow::Result<Page> {
    let layers = plotted.layers(&Bars::new(printer))?;
    Ok(story.page(layers, plotted, serde_json::to_value(record)?))
}

/// Bytes and the time of a step, in single precision. Absent for models that cannot be run sample by
/// sample, and where layers alone were read: what they take is not what their network takes.
pub(super) fn footprint(checkpoint: &Checkpoint) -> Option<Footprint> {
    if checkpoint.is_layers_alone() {
        return None;
    }
    let model = &checkpoint.model;
    let storage = Storage::single(model);
    Some(Footprint {
        bytes: Size::of(model, &storage).ok()?.total(),
        microseconds: Some(step_microseconds(model, &storage).ok()?),
        stored: " in single precision",
    })
}

#[derive(Serialize)]
struct Document {
    checkpoint: String,
    family: &'static str,
    smaller: Option<String>,
    report: Option<WrittenReport>,
    picture: Option<String>,
    parameters: usize,
    parameters_after: Option<usize>,
    /// Where the calibration sequences came from.
    origin: Option<String>,
    scores: Option<Scores>,
    against: Option<Comparison>,
    layers: Vec<LayerErrors>,
}

#[derive(Serialize)]
struct LayerErrors {
    name: String,
    states: usize,
    states_after: Option<usize>,
}

/// What a report is made from.
struct Opened {
    full: Checkpoint,
    smaller: Option<Checkpoint>,
    calibration: Option<CalibrationData>,
}

impl Opened {
    fn new(arguments: &Arguments, printer: &Printer) -> anyhow::Result<Self> {
        let path = &arguments.input.checkpoint;
        let declared = arguments.declarations.declared();
        let full = open(path, &declared, printer)?;
        let smaller = match &arguments.smaller {
            None => None,
            Some(file) => Some(open(file, &declared, printer)?),
        };
        let calibration = match &arguments.calibrate {
            None => None,
            Some(source) => {
                let sequences = &arguments.sequences;
                let needed = Needed::Statistics;
                let data = CalibrationData::open(source, sequences, &full, needed, printer);
                Some(data.with_context(|| format!("{} on {source}", path.display()))?)
            }
        };
        Ok(Self {
            full,
            smaller,
            calibration,
        })
    }

    fn statistics(&self) -> Option<&Calibration> {
        self.calibration.as_ref()?.statistics.as_ref()
    }

    fn plotted(&self) -> Plotted<'_> {
        Plotted {
            full: &self.full.model,
            reduced: self.smaller.as_ref().map(|smaller| &smaller.model),
            calibration: self.statistics(),
            records: None,
            steps: kernel_steps(&self.full, self.statistics().map(Calibration::length)),
        }
    }

    fn document(&self, arguments: &Arguments, printer: &Printer) -> anyhow::Result<Document> {
        let smaller = self.smaller.as_ref();
        let (scores, against) = scored(arguments, &self.full, smaller, printer)?;
        let shown = |path: &PathBuf| path.display().to_string();
        Ok(Document {
            checkpoint: shown(&arguments.input.checkpoint),
            family: self.full.family(),
            smaller: arguments.smaller.as_ref().map(shown),
            report: None,
            picture: None,
            parameters: self.full.parameters()?,
            parameters_after: smaller.map(Checkpoint::parameters).transpose()?,
            origin: self
                .statistics()
                .map(|statistics| statistics.origin().to_string()),
            scores,
            against,
            layers: layer_errors(&self.full, smaller),
        })
    }

    fn story<'a>(
        &'a self,
        arguments: &'a Arguments,
        document: &'a Document,
    ) -> anyhow::Result<Story<'a>> {
        let (source, other) = (&arguments.input.checkpoint, document.smaller.as_deref());
        let origins = origins(arguments, document.origin.as_deref());
        let against = document.against.as_ref();
        Ok(Story {
            title: title(source, other),
            family: document.family,
            parameters: Pair {
                before: document.parameters,
                after: document.parameters_after,
            },
            footprint: footprint(&self.full).map(|before| Pair {
                before,
                after: self.smaller.as_ref().and_then(footprint),
            }),
            layers_alone: self.full.is_layers_alone(),
            accuracy: rates(
                document.scores.as_ref(),
                against.map(|against| &against.scores),
            ),
            logit_change: None,
            assumptions: self.full.assumptions(),
            warnings: self.full.notes().to_vec(),
            provenance: origin_rows(source, other, origins)?,
        })
    }
}

/// Accuracies of two models.
pub(super) fn rates(before: Option<&Scores>, after: Option<&Scores>) -> Option<Pair<Accuracy>> {
    Some(Pair {
        before: before.and_then(Scores::rate)?,
        after: after.and_then(Scores::rate),
    })
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    check(arguments)?;
    let opened = Opened::new(arguments, printer)?;
    let mut document = opened.document(arguments, printer)?;
    let plotted = opened.plotted();
    let layers = plotted.layers(&Bars::new(printer))?;
    if let Some(file) = &arguments.picture {
        write_picture(file, &picture(arguments.show, &layers, &plotted))?;
        document.picture = Some(file.display().to_string());
    }
    let story = opened.story(arguments, &document)?;
    let page = story.page(layers, &plotted, serde_json::to_value(&document)?);
    printer.line(&page.verdict)?;
    if let Some(output) = &arguments.output {
        let report = write_page(&page, output)?;
        report.show(printer)?;
        document.report = Some(report);
    }
    if let Some(picture) = &document.picture {
        printer.line(&format!("wrote {picture}"))?;
    }
    match printer.is_json() {
        true => printer.json(&document),
        false => Ok(()),
    }
}

/// Refuses to write over what is read, and a picture that could not be drawn.
fn check(arguments: &Arguments) -> anyhow::Result<()> {
    if let Some(picture) = &arguments.picture {
        check_drawn(picture)?;
    }
    let calibrate = arguments.calibrate.as_deref().and_then(source_path);
    let mut inputs = vec![arguments.input.checkpoint.as_path()];
    inputs.extend(arguments.smaller.as_deref());
    inputs.extend(calibrate.as_deref());
    inputs.extend(arguments.data.as_ref().and_then(Source::path));
    let outputs = [&arguments.output, &arguments.picture];
    arguments.folders.make(outputs.into_iter().flatten())?;
    for output in outputs.into_iter().flatten() {
        check_destination(output, &inputs)?;
        inputs.push(output);
    }
    Ok(())
}

/// Accuracies of both, and how far their logits are apart.
fn scored(
    arguments: &Arguments,
    full: &Checkpoint,
    smaller: Option<&Checkpoint>,
    printer: &Printer,
) -> anyhow::Result<(Option<Scores>, Option<Comparison>)> {
    let Some(source) = &arguments.data else {
        return Ok((None, None));
    };
    let data = Dataset::read(source, None)?;
    if data.labels().is_none() {
        bail!("{source}: no `labels`, which an accuracy needs");
    }
    let count = arguments.limit.unwrap_or(data.len()).min(data.len());
    let first = First { data: &data, count };
    let engine = Engine::Host(hankelite::infer::Path::Auto);
    let of = |checkpoint: &Checkpoint| logits(checkpoint, first, &engine, printer);
    let own = of(full)
        .with_context(|| format!("{} on {source}", arguments.input.checkpoint.display()))?;
    let scores = own.scores(&data)?;
    let against = match (smaller, &arguments.smaller) {
        (Some(smaller), Some(file)) => {
            let name = file.display().to_string();
            let other = of(smaller).with_context(|| format!("{name} on {source}"))?;
            Some(own.compare(name, &other, &data)?)
        }
        _ => None,
    };
    Ok((Some(scores), against))
}

fn layer_errors(full: &Checkpoint, smaller: Option<&Checkpoint>) -> Vec<LayerErrors> {
    let blocks = full.model.blocks().iter().enumerate();
    let layers = blocks.map(|(index, block)| LayerErrors {
        name: block.name().to_string(),
        states: block.order(),
        states_after: smaller
            .and_then(|smaller| smaller.model.blocks().get(index))
            .map(|block| block.order()),
    });
    layers.collect()
}

fn origins(arguments: &Arguments, origin: Option<&str>) -> Vec<(String, String)> {
    let named = |name: &str, text: String| (name.to_string(), text);
    let calibration = origin.map(|origin| named("Calibration", origin.to_string()));
    let data = arguments.data.as_ref().map(|data| {
        let part = arguments
            .limit
            .map_or(String::new(), |n| format!(", the first {n}"));
        named("Accuracy on", format!("{data}{part}"))
    });
    calibration.into_iter().chain(data).collect()
}

/// Steps over which kernels are compared: as declared, those of the sequences, or
/// [`KERNEL_LENGTH`].
pub(super) fn kernel_steps(checkpoint: &Checkpoint, sequences: Option<usize>) -> usize {
    let declared = checkpoint.declared().length;
    declared.or(sequences).unwrap_or(KERNEL_LENGTH)
}

/// A report that was written.
#[derive(Debug, Serialize)]
pub(super) struct WrittenReport {
    path: String,
    bytes: usize,
}

impl WrittenReport {
    pub(super) fn show(&self, printer: &Printer) -> anyhow::Result<()> {
        printer.line(&format!(
            "wrote {} ({} kB, for a browser)",
            self.path,
            grouped(self.bytes.div_ceil(1000))
        ))
    }
}

/// Names the files that were written.
pub(super) fn say_written(
    picture: Option<&str>,
    report: Option<&WrittenReport>,
    printer: &Printer,
) -> anyhow::Result<()> {
    if let Some(picture) = picture {
        printer.line(&format!("wrote {picture}"))?;
    }
    report.map_or(Ok(()), |report| report.show(printer))
}

/// Writes a report, whole or not at all.
pub(super) fn write_page(page: &Page, path: &Path) -> anyhow::Result<WrittenReport> {
    let html = page_html(page);
    write_whole(path, &html)?;
    Ok(WrittenReport {
        path: path.display().to_string(),
        bytes: html.len(),
    })
}
