//! `compress-model sweep --times`: the curve of accuracy over bytes, states and maps together.

use std::time::Instant;

use anyhow::bail;
use hankelite::advanced::{HeldApart, Sizes, held_apart, step_microseconds};
use hankelite::checkpoint::Checkpoint;
use hankelite::rounding::Storage;
use hankelite::target::{Parts, Size, WholeSize};
use hankelite_data::Dataset;
use hankelite_report::{Page, SizeCurve, SizePoint};
use serde::Serialize;

use crate::cli::calibration::{CalibrationData, Needed, prepare};
use crate::cli::common::{grouped, quoted, short, word_of};
use crate::cli::picture::write_picture;
use crate::cli::printer::{Column, Growing, Printer};
use crate::cli::progress::Bars;
use crate::cli::report::{Alone, WrittenReport, percent, say_written, write_page};
use crate::cli::score::{CHANGE_MAX, First, Scores, score};
use crate::cli::sweep::Arguments;
use crate::report::{Captions, Curve, curves_svg};

/// Sequences that are scored where no number is given.
const LIMIT: usize = 2000;

/// One size.
#[derive(Serialize)]
struct Row {
    times: f64,
    size: Size,
    step_microseconds: f64,
    /// Relative change of the logits of the calibration sequences that were used, and of those
    /// held out.
    change: f64,
    held_out_change: Option<f64>,
    result: Option<Scores>,
    seconds: f64,
}

#[derive(Serialize)]
struct Document {
    checkpoint: String,
    origin: String,
    only: Parts,
    full: Row,
    rows: Vec<Row>,
    /// Index of the recommended row; absent where none comes near enough.
    recommended: Option<usize>,
    command: Option<String>,
    picture: Option<String>,
    report: Option<WrittenReport>,
}

/// Makes the model of every size in turn, and shows each as it is finished.
pub(super) fn run(
    arguments: &Arguments,
    checkpoint: &Checkpoint,
    data: Option<&Dataset>,
    printer: &Printer,
) -> anyhow::Result<()> {
    check(&arguments.times)?;
    let ways = &arguments.ways;
    let (source, sequences) = (&arguments.calibrate, ways.sequences());
    let needed = Needed::with_page(arguments.report.path.is_some());
    let calibration = CalibrationData::open(source, sequences, checkpoint, needed, printer)?;
    let listed = calibration.listed();
    if listed.is_empty() {
        bail!(
            "--times runs the calibration sequences through the network; {} holds statistics or inputs of layers",
            arguments.calibrate
        );
    }
    let HeldApart { used, held_out } = held_apart(&listed);
    let bars = Bars::new(printer);
    let prepared = prepare(checkpoint, &calibration, &used, ways, &bars)?;
    let sizes = Sizes::new(&prepared, &held_out, arguments.only)?;
    bars.clear();
    let work = Work {
        checkpoint,
        sizes: &sizes,
        labelled: data.map(|data| First::of(data, arguments.limit.or(Some(LIMIT)))),
        bars: &bars,
    };
    let full = work.full(printer)?;
    let origin = calibration.origin().to_string();
    let mut document = Document {
        checkpoint: arguments.input.checkpoint.display().to_string(),
        origin,
        only: arguments.only,
        full,
        rows: Vec::new(),
        recommended: None,
        command: None,
        picture: None,
        report: None,
    };
    let table = begin(&document, printer)?;
    let mut times = arguments.times.clone();
    times.sort_by(f64::total_cmp);
    for (index, &times) in times.iter().enumerate() {
        bars.part(format!("size {} of {}", index + 1, arguments.times.len()));
        let row = work.row(times, printer)?;
        bars.clear();
        table.row(&cells(&row))?;
        document.rows.push(row);
    }
    conclude(arguments, &mut document)?;
    if let Some(file) = &arguments.report.path {
        let full = Alone {
            path: &arguments.input.checkpoint,
            checkpoint,
            scores: document.full.result.as_ref(),
            statistics: calibration.statistics.as_ref(),
        };
        let page = page(arguments, &document, &full, printer)?;
        document.report = Some(write_page(&page, file)?);
    }
    finish(&document, printer)
}

/// Refuses numbers that make nothing smaller.
fn check(times: &[f64]) -> anyhow::Result<()> {
    match times.iter().find(|x| !(**x > 1.0 && x.is_finite())) {
        Some(wrong) => bail!("--times has {wrong}, expected numbers above 1"),
        None => Ok(()),
    }
}

/// Recommends a size, and draws the curve.
fn conclude(arguments: &Arguments, document: &mut Document) -> anyhow::Result<()> {
    document.recommended = recommended(document);
    let row = document.recommended.map(|at| &document.rows[at]);
    document.command = row.map(|row| command(arguments, row));
    if let Some(picture) = &arguments.picture {
        write_picture(picture, &drawn_curve(document))?;
        document.picture = Some(picture.display().to_string());
    }
    Ok(())
}

struct Work<'a> {
    checkpoint: &'a Checkpoint,
    sizes: &'a Sizes<'a>,
    labelled: Option<First<'a>>,
    bars: &'a Bars<'a>,
}

impl Work<'_> {
    fn scored(&self, model: &Checkpoint, printer: &Printer) -> anyhow::Result<Option<Scores>> {
        let scores = self.labelled.map(|first| score(model, first, printer));
        scores.transpose()
    }

    /// The full model in single precision.
    fn full(&self, printer: &Printer) -> anyhow::Result<Row> {
        let start = Instant::now();
        let model = &self.checkpoint.model;
        let storage = Storage::single(model);
        Ok(Row {
            times: 1.0,
            size: self.sizes.full(),
            step_microseconds: step_microseconds(model, &storage)?,
            change: 0.0,
            held_out_change: None,
            result: self.scored(self.checkpoint, printer)?,
            seconds: start.elapsed().as_secs_f64(),
        })
    }

    fn row(&self, times: f64, printer: &Printer) -> anyhow::Result<Row> {
        let start = Instant::now();
        let made = self.sizes.meet(&WholeSize::times(times))?;
        self.bars.clear();
        let seconds = start.elapsed().as_secs_f64();
        let smaller = self.checkpoint.with_model(made.model.clone());
        Ok(Row {
            times,
            size: made.size,
            step_microseconds: step_microseconds(&made.model, &made.storage)?,
            change: made.changes.after,
            held_out_change: made.held_out_change,
            result: self.scored(&smaller, printer)?,
            seconds,
        })
    }
}

/// The smallest model within two standard errors of the full one, or, without labels, that changes
/// the logits little.
fn recommended(document: &Document) -> Option<usize> {
    let full = document.full.result.as_ref();
    let best = full.and_then(|full| full.accuracy.zip(full.standard_error));
    let near = |row: &Row| match best {
        Some((best, error)) => {
            let reached = row.result.as_ref().and_then(|result| result.accuracy);
            reached.is_some_and(|reached| reached >= best - 2.0 * error)
        }
        None => row.held_out_change.unwrap_or(row.change) <= CHANGE_MAX,
    };
    document.rows.iter().rposition(near)
}

fn command(arguments: &Arguments, row: &Row) -> String {
    let only = match arguments.only {
        Parts::All => String::new(),
        only => format!(" --only {}", word_of(&only)),
    };
    format!(
        "compress-model reduce {} --calibrate {}{}{} --times {}{only} --image small.edge",
        quoted(&arguments.input.checkpoint.display().to_string()),
        quoted(&arguments.calibrate),
        arguments.ways.typed() + &arguments.sharing.typed(),
        arguments.declarations.typed(),
        row.times,
    )
}

fn drawn_curve(document: &Document) -> String {
    let kilobytes = |row: &Row| row.size.total() as f64 / 1e3;
    let labelled = document.full.result.is_some();
    let height = |row: &Row| match &row.result {
        Some(result) => 100.0 * result.accuracy.unwrap_or(f64::NAN),
        None => 100.0 * row.held_out_change.unwrap_or(row.change),
    };
    let smallest_first = document.rows.iter().rev();
    let mut points: Vec<_> = smallest_first
        .map(|row| (kilobytes(row), height(row)))
        .collect();
    points.push((kilobytes(&document.full), height(&document.full)));
    let ring = document.recommended.map(|at| &document.rows[at]);
    let ring = ring.map(|row| (kilobytes(row), height(row)));
    let error = |row: &Row| {
        let error = row.result.as_ref().and_then(|result| result.standard_error);
        100.0 * error.unwrap_or(0.0)
    };
    let rows = document.rows.iter().rev().chain([&document.full]);
    let errors = rows.map(error).collect();
    let title = match document.recommended.map(|at| &document.rows[at]) {
        Some(row) => format!("1/{} of the bytes: {}", row.times, why(labelled)),
        None => format!("none of these sizes is {}", why(labelled)),
    };
    let captions = Captions {
        title: &title,
        x: "kilobytes of weights and state",
        y: match labelled {
            true => "accuracy, %",
            false => "change of the logits, %",
        },
    };
    let name = "states and maps together".to_string();
    curves_svg(&[Curve { name, points }], &[errors], &captions, ring)
}

/// The report: the sizes to choose from, beside the full model's layers.
fn page(
    arguments: &Arguments,
    document: &Document,
    full: &Alone<'_>,
    printer: &Printer,
) -> anyhow::Result<Page> {
    let mut page = full.page(document, printer)?;
    let labelled = document.full.result.is_some();
    let point = |row: &Row| SizePoint {
        x: row.size.total() as f64 / 1e3,
        y: match (labelled, &row.result) {
            (true, result) => 100.0 * result.as_ref().and_then(|r| r.accuracy).unwrap_or(f64::NAN),
            _ => 100.0 * row.held_out_change.unwrap_or(row.change),
        },
        error: row
            .result
            .as_ref()
            .and_then(|r| Some(100.0 * r.standard_error?)),
        details: details(row),
        command: (row.times > 1.0).then(|| command(arguments, row)),
    };
    if let Some(row) = document.recommended.map(|at| &document.rows[at]) {
        let reached = match &row.result {
            Some(result) => format!("an accuracy of {result}"),
            None => format!(
                "logits changed by {}",
                percent(row.held_out_change.unwrap_or(row.change))
            ),
        };
        page.verdict = format!(
            "1/{} of the bytes, {} instead of {}: {reached}, {}.",
            row.times,
            grouped(row.size.total()),
            grouped(document.full.size.total()),
            why(labelled)
        );
    }
    let mut points: Vec<SizePoint> = document.rows.iter().map(point).collect();
    points.reverse();
    let last = document.rows.len().saturating_sub(1);
    page.sizes = Some(SizeCurve {
        x: "kilobytes of weights and state".to_string(),
        y: match labelled {
            true => "accuracy, %".to_string(),
            false => "change of the logits, %".to_string(),
        },
        points,
        full: labelled.then(|| point(&document.full)),
        recommended: document
            .recommended
            .map(|at| (last - at, why(labelled).to_string())),
    });
    Ok(page)
}

fn details(row: &Row) -> Vec<(String, String)> {
    let named = |name: &str, text: String| (name.to_string(), text);
    let mut details = vec![
        named("Of the bytes", format!("1/{}", row.times)),
        named("Weights", format!("{} bytes", grouped(row.size.weights))),
        named("State", format!("{} bytes", grouped(row.size.state))),
        named(
            "A step on this machine",
            format!("{} µs", short(row.step_microseconds)),
        ),
        named("Change of the logits", percent(row.change)),
    ];
    let held_out = row
        .held_out_change
        .map(|change| named("The same, held out", percent(change)));
    details.extend(held_out);
    details.extend(
        row.result
            .as_ref()
            .map(|result| named("Accuracy", result.to_string())),
    );
    details
}

fn why(labelled: bool) -> &'static str {
    match labelled {
        true => "the smallest within two standard errors of the full model",
        false => "the smallest that changes the logits of held-out sequences by at most 5 %",
    }
}

/// The columns of the table: rows are shown one by one.
fn columns() -> [Column<'static>; 8] {
    let column = |name, least, aside| Column { name, least, aside };
    [
        column("times", 7, false),
        column("weights", 9, false),
        column("state", 7, false),
        column("step us", 8, true),
        column("change", 8, false),
        column("held out", 8, false),
        column("accuracy", 16, false),
        column("seconds", 7, true),
    ]
}

/// The heading, the header and the full model.
fn begin<'p>(document: &Document, printer: &'p Printer) -> anyhow::Result<Growing<'p>> {
    printer.heading(&format!("{}: {}", document.checkpoint, document.origin))?;
    let table = printer.growing(&columns())?;
    table.row(&cells(&document.full))?;
    Ok(table)
}

fn cells(row: &Row) -> [String; 8] {
    let percent = |value: f64| format!("{:.2} %", 100.0 * value);
    let accuracy = row
        .result
        .as_ref()
        .map_or("-".to_string(), Scores::to_string);
    [
        format!("1/{}", row.times),
        grouped(row.size.weights),
        grouped(row.size.state),
        short(row.step_microseconds),
        percent(row.change),
        row.held_out_change.map_or("-".to_string(), percent),
        accuracy,
        format!("{:.1}", row.seconds),
    ]
}

fn finish(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    if printer.is_json() {
        return printer.json(document);
    }
    let why = why(document.full.result.is_some());
    match (&document.command, document.recommended) {
        (Some(command), Some(at)) => printer.line(&format!(
            "recommended: 1/{}, {why}\n  {command}",
            document.rows[at].times
        ))?,
        _ => printer.line(&format!("none of these sizes is {why}"))?,
    }
    say_written(
        document.picture.as_deref(),
        document.report.as_ref(),
        printer,
    )
}
