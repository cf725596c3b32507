//! `compress-model sweep`.

mod sizes;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::bail;
use clap::Args;
use hankelite::advanced::{CalibratedReduction, Settings};
use hankelite::calibrate::TargetSize;
use hankelite::checkpoint::Checkpoint;
use hankelite::compress::Allocation;
use hankelite::rounding::Storage;
use hankelite::target::{Parts, Size};
use hankelite_data::Source;
use hankelite_report::{Page, SizeCurve, SizePoint};
use serde::Serialize;

use crate::cli::calibration::{
    CalibrationData, Form, Needed, Sharing, Ways, check_picture, prepare,
};
use crate::cli::common::{Declarations, Input, PARTS, grouped, open, positive, quoted, words};
use crate::cli::folders::Folders;
use crate::cli::picture::write_picture;
use crate::cli::printer::{Column, Growing, Printer};
use crate::cli::progress::Bars;
use crate::cli::report::{Alone, ReportFile, WrittenReport, percent, say_written, write_page};
use crate::cli::score::{First, Scores, labelled, score};
use crate::report::{Captions, Curve, curves_svg};

/// Mean states of a channel that are tried, up to half of what there is.
const ORDERS: [f64; 10] = [1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0];

const EXAMPLES: &str = "\
Examples:
  compress-model sweep model.pth --calibrate mnist:data/mnist --data mnist:data/mnist
  compress-model sweep model.pth --calibrate model.stats --picture sweep.svg
  compress-model sweep model.pth --calibrate train.safetensors --orders 2,3,4,6,8 --format json
  compress-model sweep model.pth --calibrate mnist:data/mnist --data mnist:data/mnist --times 2,4,6,8,12

With labels the recommended size is the smallest whose accuracy is within two standard errors of
the full model's. Without labels it is the knee: the point farthest below the line from the first
point to the last, error against the logarithm of the states.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// Unlabelled sequences (any data source of `evaluate`), the statistics that `calibrate`
    /// wrote, or captured inputs of the layers.
    #[arg(long, value_name = "DATA|STATS|INPUTS")]
    calibrate: String,
    /// Labelled data: also the accuracy at every size.
    #[arg(long, value_name = "DATA")]
    data: Option<Source>,
    /// Mean numbers of states to try [default: 1.5 to half of the stored states].
    #[arg(long, alias = "order", value_name = "R,R,...", value_delimiter = ',')]
    orders: Vec<f64>,
    /// The curve over bytes instead, states and maps together (`reduce --times`): how many times
    /// fewer bytes of weights and state than in single precision to try. Each row appears as it is
    /// finished.
    #[arg(
        long,
        value_name = "X,X,...",
        value_delimiter = ',',
        conflicts_with = "orders",
        allow_negative_numbers = true
    )]
    times: Vec<f64>,
    /// With --times: what is made smaller.
    #[arg(long, requires = "times", default_value = "all", value_parser = words::<Parts>(PARTS))]
    only: Parts,
    /// How many of the labelled sequences, from the first on, are scored [default: 2000 with --times,
    /// else all].
    #[arg(long, value_name = "N", requires = "data", value_parser = positive)]
    limit: Option<usize>,
    /// Draw the curve into an SVG file, or a PNG file where its name ends in
    /// .png.
    #[arg(long, value_name = "FILE.svg|FILE.png")]
    picture: Option<PathBuf>,
    #[command(flatten)]
    report: ReportFile,
    #[command(flatten)]
    folders: Folders,
    #[command(flatten)]
    ways: Ways,
    #[command(flatten)]
    sharing: Sharing,
    #[command(flatten)]
    declarations: Declarations,
}

/// One size.
#[derive(Serialize)]
struct Point {
    /// Mean states of a channel that were allowed.
    order: f64,
    /// Stored states that are used, over all channels.
    states: usize,
    share: f64,
    /// The share that was allowed: `reduce --budget`.
    budget: f64,
    /// The largest order of each layer: what its tensors store.
    stored: Vec<usize>,
    /// What is stored, relative to the full model: parameters of the file, or bytes of image and
    /// state.
    stored_share: f64,
    relative_error: f64,
    logit_change: Option<f64>,
    result: Option<Scores>,
    seconds: f64,
}

#[derive(Serialize)]
struct Document {
    checkpoint: String,
    origin: String,
    /// What the sizes are of.
    form: Form,
    weight: &'static str,
    states: usize,
    channels: usize,
    full: Option<Scores>,
    points: Vec<Point>,
    /// Index of the recommended point.
    recommended: usize,
    /// `within two standard errors`, or `knee`.
    rule: &'static str,
    command: String,
    picture: Option<String>,
    report: Option<WrittenReport>,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let path = &arguments.input.checkpoint;
    check(arguments)?;
    let checkpoint = open(path, &arguments.declarations.declared(), printer)?;
    let data = match &arguments.data {
        None => None,
        Some(source) => Some(labelled(&checkpoint, source)?),
    };
    if !arguments.times.is_empty() {
        return sizes::run(arguments, &checkpoint, data.as_ref(), printer);
    }
    let orders = orders(&arguments.orders, &checkpoint)?;
    let ways = &arguments.ways;
    let needed = Needed::with_page(arguments.report.path.is_some());
    let (source, sequences) = (&arguments.calibrate, ways.sequences());
    let calibration = CalibrationData::open(source, sequences, &checkpoint, needed, printer)?;
    let listed = calibration.listed();
    let bars = Bars::new(printer);
    let prepared = prepare(&checkpoint, &calibration, &listed, ways, &bars)?;
    let work = Work {
        arguments,
        checkpoint: &checkpoint,
        prepared: &prepared,
        bars: &bars,
        labelled: data.as_ref().map(|data| First::of(data, arguments.limit)),
    };
    let full = work.scored(&checkpoint, printer)?;
    let origin = calibration.origin();
    let form = arguments.sharing.form(Form::File);
    bars.clear();
    printer.heading(&format!("{}: {origin}", path.display()))?;
    let table = printer.growing(&columns(form, checkpoint.model.blocks().len()))?;
    let (points, weight) = work.points(&orders, &table, printer)?;
    let (recommended, rule) = recommend(&points, full.as_ref());
    let blocks = checkpoint.model.blocks().iter();
    let systems = blocks.flat_map(|block| block.systems());
    let document = Document {
        checkpoint: path.display().to_string(),
        origin: origin.to_string(),
        form,
        weight,
        states: systems.clone().map(|system| system.order()).sum(),
        channels: systems.count(),
        full,
        command: command(arguments, &points[recommended]),
        points,
        recommended,
        rule,
        picture: None,
        report: None,
    };
    let alone = Alone {
        path,
        checkpoint: &checkpoint,
        scores: None,
        statistics: calibration.statistics.as_ref(),
    };
    conclude(arguments, document, alone, &table, printer)
}

/// Refuses pictures and reports that would be written over what is read.
fn check(arguments: &Arguments) -> anyhow::Result<()> {
    let path = &arguments.input.checkpoint;
    let (calibrate, data) = (&arguments.calibrate, arguments.data.as_ref());
    let files = [&arguments.picture, &arguments.report.path];
    arguments.folders.make(files.into_iter().flatten())?;
    check_picture(arguments.picture.as_deref(), path, calibrate, data)?;
    arguments.report.check_beside(path, calibrate, data)
}

/// Draws and prints what was found.
fn conclude(
    arguments: &Arguments,
    mut document: Document,
    full: Alone<'_>,
    table: &Growing<'_>,
    printer: &Printer,
) -> anyhow::Result<()> {
    if let Some(picture) = &arguments.picture {
        write_picture(picture, &drawn(&document))?;
        document.picture = Some(picture.display().to_string());
    }
    if let Some(file) = &arguments.report.path {
        let scores = document.full.as_ref();
        let page = page(arguments, &document, &Alone { scores, ..full }, printer)?;
        document.report = Some(write_page(&page, file)?);
    }
    match printer.is_json() {
        true => printer.json(&document),
        false => show(&document, table, printer),
    }
}

fn orders(requested: &[f64], checkpoint: &Checkpoint) -> anyhow::Result<Vec<f64>> {
    let blocks = checkpoint.model.blocks().iter();
    let most = blocks.map(|block| block.order()).max().unwrap_or(0) as f64;
    let mut orders = match requested {
        [] => {
            let some = ORDERS.iter().copied().filter(|&order| order <= most / 2.0);
            some.collect::<Vec<f64>>()
        }
        requested => requested.to_vec(),
    };
    if orders.is_empty() {
        orders.push(most);
    }
    if let Some(wrong) = orders
        .iter()
        .find(|&&order| !(order >= 1.0 && order <= most))
    {
        bail!("--orders has {wrong}, expected numbers from 1 to {most}");
    }
    orders.sort_by(f64::total_cmp);
    orders.dedup();
    Ok(orders)
}

/// The settings of a size: a share of all stored states.
fn settings(
    order: f64,
    arguments: &Arguments,
    checkpoint: &Checkpoint,
) -> anyhow::Result<Settings> {
    let systems = || {
        checkpoint
            .model
            .blocks()
            .iter()
            .flat_map(|block| block.systems())
    };
    let all: usize = systems().map(|system| system.order()).sum();
    let share = order * systems().count() as f64 / all.max(1) as f64;
    let mut settings = Settings::new(TargetSize::Budget(share.min(1.0)));
    arguments.ways.apply(&mut settings);
    let sharing = &arguments.sharing;
    sharing.apply(sharing.form(Form::File), &checkpoint.model, &mut settings)?;
    if settings.allocation == Allocation::Model {
        settings.size = TargetSize::Order(order.floor() as usize);
    }
    settings.kernel_length = checkpoint.declared().length;
    Ok(settings)
}

/// What every size is made from and measured on.
struct Work<'a> {
    arguments: &'a Arguments,
    checkpoint: &'a Checkpoint,
    prepared: &'a CalibratedReduction<'a>,
    bars: &'a Bars<'a>,
    labelled: Option<First<'a>>,
}

impl Work<'_> {
    fn scored(&self, model: &Checkpoint, printer: &Printer) -> anyhow::Result<Option<Scores>> {
        let scores = self.labelled.map(|first| score(model, first, printer));
        scores.transpose()
    }

    /// One point for each size, and the metric that was used.
    fn points(
        &self,
        orders: &[f64],
        table: &Growing<'_>,
        printer: &Printer,
    ) -> anyhow::Result<(Vec<Point>, &'static str)> {
        let mut points = Vec::with_capacity(orders.len());
        let mut weight = "spectrum";
        let blocks = self.checkpoint.model.blocks().iter();
        let channels = blocks.map(|block| block.systems().len()).sum();
        for (index, &order) in orders.iter().enumerate() {
            let part = format!("size {} of {}", index + 1, orders.len());
            self.bars.part(part);
            let (point, by) = self.point(order, printer)?;
            table.row(&cells(&point, channels, ""))?;
            points.push(point);
            weight = by;
        }
        Ok((points, weight))
    }

    fn stored_share(&self, reduced: &Checkpoint) -> anyhow::Result<f64> {
        let [full, reduced] = match self.arguments.sharing.form(Form::File) {
            Form::File => [self.checkpoint.parameters()?, reduced.parameters()?],
            Form::Image => {
                let of = |model| Ok(Size::of(model, &Storage::single(model))?.total());
                let both: [anyhow::Result<usize>; 2] =
                    [&self.checkpoint.model, &reduced.model].map(of);
                let [full, reduced] = both;
                [full?, reduced?]
            }
        };
        Ok(reduced as f64 / full as f64)
    }

    fn point(&self, order: f64, printer: &Printer) -> anyhow::Result<(Point, &'static str)> {
        let start = Instant::now();
        let settings = settings(order, self.arguments, self.checkpoint)?;
        let calibrated = self.prepared.reduce(&settings)?;
        self.bars.clear();
        let seconds = start.elapsed().as_secs_f64();
        let choice = calibrated.choice;
        let reduced = self.checkpoint.with_model(calibrated.model);
        let stored_share = self.stored_share(&reduced)?;
        let result = self.scored(&reduced, printer)?;
        let budget = match settings.size {
            TargetSize::Budget(share) => share,
            _ => choice.states as f64 / choice.states_before as f64,
        };
        let point = Point {
            order,
            budget,
            states: choice.states,
            share: choice.states as f64 / choice.states_before as f64,
            stored: calibrated.records.iter().map(|layer| layer.order).collect(),
            stored_share,
            relative_error: choice.relative_error,
            logit_change: choice.logit_change,
            result,
            seconds,
        };
        Ok((point, choice.weight))
    }
}

/// The point to take, and by which rule.
fn recommend(points: &[Point], full: Option<&Scores>) -> (usize, &'static str) {
    let last = points.len() - 1;
    let accuracy = |report: &Scores| report.accuracy;
    if let Some((best, error)) = full.and_then(|full| full.accuracy.zip(full.standard_error)) {
        let near = |point: &Point| {
            let reached = point.result.as_ref().and_then(accuracy);
            reached.is_some_and(|reached| reached >= best - 2.0 * error)
        };
        let index = points.iter().position(near).unwrap_or(last);
        return (index, "within two standard errors");
    }
    let height = |point: &Point| point.logit_change.unwrap_or(point.relative_error);
    let (first, end) = (&points[0], &points[last]);
    let span = (end.order / first.order).ln();
    let below = |point: &Point| {
        let along = if span > 0.0 {
            (point.order / first.order).ln() / span
        } else {
            0.0
        };
        height(first) + along * (height(end) - height(first)) - height(point)
    };
    let farthest = (0..points.len()).max_by(|&i, &j| {
        let (one, other) = (below(&points[i]), below(&points[j]));
        one.total_cmp(&other).then(j.cmp(&i))
    });
    (farthest.unwrap_or(last), "knee")
}

/// The command that makes the recommended point, as it can be typed into a shell.
fn command(arguments: &Arguments, point: &Point) -> String {
    let path = &arguments.input.checkpoint;
    let size = match arguments.sharing.is_one_order() {
        true => format!("--order {}", point.order.floor()),
        false => format!("--budget {}", point.budget),
    };
    // In the container that the checkpoint came in.
    let name = match path.is_dir() {
        true => "small".to_string(),
        false => match path.extension() {
            Some(end) => format!("small.{}", end.to_string_lossy()),
            None => "small".to_string(),
        },
    };
    format!(
        "compress-model reduce {} --calibrate {}{}{} {size} --output {}",
        quoted(&path.display().to_string()),
        quoted(&arguments.calibrate),
        arguments.ways.typed() + &arguments.sharing.typed(),
        arguments.declarations.typed(),
        quoted(&name),
    )
}

fn drawn(document: &Document) -> String {
    let x = |point: &Point| point.states as f64 / document.channels.max(1) as f64;
    let (name, y): (_, fn(&Point) -> f64) = match document.full {
        Some(_) => ("accuracy, %", |point| {
            let accuracy = point.result.as_ref().and_then(|result| result.accuracy);
            100.0 * accuracy.unwrap_or(f64::NAN)
        }),
        None => ("change, % of what there is", |point| {
            100.0 * point.logit_change.unwrap_or(point.relative_error)
        }),
    };
    let mut points: Vec<(f64, f64)> = document.points.iter().map(|p| (x(p), y(p))).collect();
    let ring = points.get(document.recommended).copied();
    if let Some(full) = document.full.as_ref().and_then(|full| full.accuracy) {
        let all = document.states as f64 / document.channels.max(1) as f64;
        points.push((all, 100.0 * full));
    }
    let curve = Curve {
        name: "calibrated".to_string(),
        points,
    };
    let error = |scores: Option<&Scores>| {
        100.0
            * scores
                .and_then(|scores| scores.standard_error)
                .unwrap_or(0.0)
    };
    let results = document.points.iter().map(|point| point.result.as_ref());
    let errors = results.chain([document.full.as_ref()]).map(error).collect();
    let title = ring.map_or(String::new(), |(states, _)| {
        format!("{states:.2} states a channel: {}", why(document.rule))
    });
    let captions = Captions {
        title: &title,
        x: "states used per channel, mean",
        y: name,
    };
    curves_svg(&[curve], &[errors], &captions, ring)
}

/// The report: the sizes to choose from, beside the full model's layers.
fn page(
    arguments: &Arguments,
    document: &Document,
    full: &Alone<'_>,
    printer: &Printer,
) -> anyhow::Result<Page> {
    let mut page = full.page(document, printer)?;
    let channels = document.channels.max(1) as f64;
    let labelled = document.full.is_some();
    let point = |point: &Point| SizePoint {
        x: point.states as f64 / channels,
        y: match (labelled, &point.result) {
            (true, result) => 100.0 * result.as_ref().and_then(|r| r.accuracy).unwrap_or(f64::NAN),
            _ => 100.0 * point.logit_change.unwrap_or(point.relative_error),
        },
        error: point
            .result
            .as_ref()
            .and_then(|r| Some(100.0 * r.standard_error?)),
        details: details(point),
        command: Some(command(arguments, point)),
    };
    let full = document.full.as_ref().map(|scores| SizePoint {
        x: document.states as f64 / channels,
        y: 100.0 * scores.accuracy.unwrap_or(f64::NAN),
        error: scores.standard_error.map(|error| 100.0 * error),
        details: Vec::new(),
        command: None,
    });
    let best = &document.points[document.recommended];
    let reached = match (&best.result, best.logit_change) {
        (Some(result), _) => format!("an accuracy of {result}"),
        (_, Some(change)) => format!("logits changed by {}", percent(change)),
        _ => format!("an output error of {}", percent(best.relative_error)),
    };
    let why = why(document.rule);
    page.verdict = format!(
        "Keep {:.2} of {:.0} stored states a channel ({:.1} % of all): {reached}, {why}.",
        best.states as f64 / channels,
        document.states as f64 / channels,
        100.0 * best.share,
    );
    page.sizes = Some(SizeCurve {
        x: "stored states used per channel, mean".to_string(),
        y: match labelled {
            true => "accuracy, %".to_string(),
            false => "change of the logits, %".to_string(),
        },
        points: document.points.iter().map(point).collect(),
        full,
        recommended: Some((document.recommended, why.to_string())),
    });
    Ok(page)
}

fn details(point: &Point) -> Vec<(String, String)> {
    let named = |name: &str, text: String| (name.to_string(), text);
    let stored: Vec<String> = point.stored.iter().map(usize::to_string).collect();
    let mut details = vec![
        named(
            "Stored states",
            format!("{} ({})", grouped(point.states), percent(point.share)),
        ),
        named("Order of each layer", stored.join(", ")),
        named("Of what is stored now", percent(point.stored_share)),
        named("Error of the layers' output", percent(point.relative_error)),
    ];
    let change = point
        .logit_change
        .map(|change| named("Change of the logits", percent(change)));
    details.extend(change);
    details.extend(
        point
            .result
            .as_ref()
            .map(|result| named("Accuracy", result.to_string())),
    );
    details
}

fn why(rule: &str) -> &'static str {
    match rule {
        "knee" => "the knee of the curve",
        _ => "the smallest within two standard errors of the full model",
    }
}

/// The columns of the table.
fn columns(form: Form, layers: usize) -> [Column<'static>; 10] {
    let column = |name, least, aside| Column { name, least, aside };
    [
        column("", 1, false),
        column("states", 7, false),
        column("mean", 5, false),
        column("of states", 8, true),
        column("stored", 3 * layers - 1, true),
        match form {
            Form::File => column("in the file", 8, true),
            Form::Image => column("in the image", 8, true),
        },
        column("output error", 8, false),
        column("logit change", 8, false),
        column("accuracy", 16, false),
        column("seconds", 7, true),
    ]
}

fn cells(point: &Point, channels: usize, mark: &str) -> [String; 10] {
    let stored: Vec<String> = point.stored.iter().map(usize::to_string).collect();
    let percent = |value: f64| format!("{:.2} %", 100.0 * value);
    let accuracy = point.result.as_ref().map(Scores::to_string);
    [
        mark.to_string(),
        grouped(point.states),
        format!("{:.2}", point.states as f64 / channels.max(1) as f64),
        percent(point.share),
        stored.join(","),
        percent(point.stored_share),
        percent(point.relative_error),
        point.logit_change.map_or("-".to_string(), percent),
        accuracy.unwrap_or("-".to_string()),
        format!("{:.1}", point.seconds),
    ]
}

fn show(document: &Document, table: &Growing<'_>, printer: &Printer) -> anyhow::Result<()> {
    let recommended = &document.points[document.recommended];
    if let Some(full) = &document.full {
        printer.line(&format!(
            "full model: {} states, accuracy {full}",
            grouped(document.states)
        ))?;
    }
    let why = why(document.rule);
    printer.line(&format!("recommended: {why}"))?;
    table.row(&cells(recommended, document.channels, "→"))?;
    printer.line(&format!("  {}", document.command))?;
    say_written(
        document.picture.as_deref(),
        document.report.as_ref(),
        printer,
    )
}
