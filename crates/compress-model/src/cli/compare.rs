//! `compress-model compare`.

use std::path::PathBuf;
use std::time::Instant;

use anyhow::bail;
use clap::Args;
use hankelite::advanced::{CalibratedReduction, Settings, reduce_observed};
use hankelite::calibrate::TargetSize;
use hankelite::checkpoint::Checkpoint;
use hankelite::compress::{Allocation, LayerRecord, Method, RealisationChoice, TimeBase};
use hankelite::model::Model;
use hankelite::{Plan, Rule};
use hankelite_control::Refinement;
use hankelite_data::Source;
use hankelite_report::{Cell, Page, PageTable};
use serde::Serialize;

use crate::cli::calibration::{CalibrationData, Needed, Ways, check_picture, prepare};
use crate::cli::common::{Declarations, Input, open, positive};
use crate::cli::picture::write_picture;
use crate::cli::printer::{Column, Printer};
use crate::cli::progress::Bars;
use crate::cli::report::{Alone, ReportFile, WrittenReport, percent, say_written, write_page};
use crate::cli::score::{First, Scores, labelled, score};
use crate::report::{Captions, Curve, curves_svg};

const EXAMPLES: &str = "\
Examples:
  compress-model compare model.pth --calibrate mnist:data/mnist --orders 8,4 --data mnist:data/mnist
  compress-model compare model.pth --calibrate model.stats --orders 4 --format json

Every method keeps the same number of states. The rows, from the pruning papers to calibration:
modal scores (H-infinity: LAST, AIRE-Prune; H2), balanced truncation of the complex modes in
continuous time (Ezoe and Sato), of the real system in discrete time for white noise, its
residualisation, and balancing for the layers' inputs, refined, and shared among channels.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// Unlabelled sequences (any data source of `evaluate`), the statistics that `calibrate`
    /// wrote, or captured inputs of the layers.
    #[arg(long, value_name = "DATA|STATS|INPUTS")]
    calibrate: String,
    /// Labelled data: also accuracies.
    #[arg(long, value_name = "DATA")]
    data: Option<Source>,
    /// How many of the labelled sequences, from the first on, are scored [default: all].
    #[arg(long, value_name = "N", requires = "data", value_parser = positive)]
    limit: Option<usize>,
    /// States of a channel to keep: a number, or several.
    #[arg(
        long,
        alias = "order",
        value_name = "R,R,...",
        value_delimiter = ',',
        required = true
    )]
    orders: Vec<usize>,
    /// Draw accuracy (or, without --data, the output error) against states into an SVG file, or a PNG file where its name ends in
    /// .png.
    #[arg(long, value_name = "FILE.svg|FILE.png")]
    picture: Option<PathBuf>,
    #[command(flatten)]
    report: ReportFile,
    #[command(flatten)]
    ways: Ways,
    #[command(flatten)]
    declarations: Declarations,
}

/// A way to make a model smaller.
#[derive(Clone, Copy)]
enum Contender {
    Plain(Method, TimeBase, RealisationChoice),
    Calibrated {
        refinement: Refinement,
        allocation: Allocation,
        /// All channels together.
        fit_logits: bool,
    },
}

/// Of the real system in discrete time.
const fn plain(method: Method) -> Contender {
    Contender::Plain(method, TimeBase::Discrete, RealisationChoice::Real)
}

const EZOE_SATO: Contender = Contender::Plain(
    Method::Balanced,
    TimeBase::Continuous,
    RealisationChoice::Complex,
);

/// With the same order everywhere.
const fn calibrated(refinement: Refinement) -> Contender {
    Contender::Calibrated {
        refinement,
        allocation: Allocation::Model,
        fit_logits: false,
    }
}

const fn refined(allocation: Allocation, fit_logits: bool) -> Contender {
    Contender::Calibrated {
        refinement: Refinement::Full,
        allocation,
        fit_logits,
    }
}

#[rustfmt::skip]
const CONTENDERS: [(&str, Contender); 12] = [
    ("modal, H-infinity score (LAST, AIRE-Prune)", plain(Method::ModalHinf)),
    ("modal, H2 score", plain(Method::ModalH2)),
    ("balanced, continuous, complex (Ezoe and Sato)", EZOE_SATO),
    ("balanced, discrete, real, white input", plain(Method::Balanced)),
    ("residualised, discrete, real, white input", plain(Method::Residualised)),
    ("H2-optimal, white input", plain(Method::H2Optimal)),
    ("calibrated truncation", calibrated(Refinement::None)),
    ("calibrated, residues refined", calibrated(Refinement::Residues)),
    ("calibrated, refined", calibrated(Refinement::Full)),
    ("calibrated, refined, fitted to the logits", refined(Allocation::Model, true)),
    ("calibrated, refined, shared among channels", refined(Allocation::Channel, false)),
    ("calibrated, refined, shared, fitted to the logits", refined(Allocation::Channel, true)),
];

#[derive(Serialize)]
struct Row {
    method: &'static str,
    order: usize,
    /// Stored states that are used.
    states: usize,
    /// (Σ E_h(error)/Σ E_h(output))^{1/2} for the layers' inputs.
    weighted_error: f64,
    /// The same for white noise, over all time.
    h2_error: f64,
    logit_change: Option<f64>,
    result: Option<Scores>,
    seconds: f64,
}

#[derive(Serialize)]
struct Document {
    checkpoint: String,
    origin: String,
    full: Option<Scores>,
    rows: Vec<Row>,
    picture: Option<String>,
    report: Option<WrittenReport>,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let path = &arguments.input.checkpoint;
    let data = arguments.data.as_ref();
    check_picture(
        arguments.picture.as_deref(),
        path,
        &arguments.calibrate,
        data,
    )?;
    arguments
        .report
        .check_beside(path, &arguments.calibrate, data)?;
    let checkpoint = open(path, &arguments.declarations.declared(), printer)?;
    check_orders(arguments, &checkpoint)?;
    let data = match &arguments.data {
        None => None,
        Some(source) => Some(labelled(&checkpoint, source)?),
    };
    let calibration = CalibrationData::open(
        &arguments.calibrate,
        arguments.ways.sequences(),
        &checkpoint,
        Needed::with_page(arguments.report.path.is_some()),
        printer,
    )?;
    let listed = calibration.listed();
    let bars = Bars::new(printer);
    let prepared = prepare(&checkpoint, &calibration, &listed, &arguments.ways, &bars)?;
    let work = Work {
        arguments,
        checkpoint: &checkpoint,
        prepared: &prepared,
        bars: &bars,
        labelled: data.as_ref().map(|data| First::of(data, arguments.limit)),
    };
    let full = work.scored(&checkpoint, printer)?;
    let (checkpoint_name, origin) = (path.display().to_string(), calibration.origin());
    bars.clear();
    printer.heading(&format!("{checkpoint_name}: {origin}"))?;
    let document = Document {
        rows: work.rows(printer)?,
        checkpoint: checkpoint_name,
        origin: origin.to_string(),
        full,
        picture: None,
        report: None,
    };
    let alone = Alone {
        path,
        checkpoint: &checkpoint,
        scores: None,
        statistics: calibration.statistics.as_ref(),
    };
    conclude(arguments, document, alone, printer)
}

/// Draws and prints what was found.
fn conclude(
    arguments: &Arguments,
    mut document: Document,
    full: Alone<'_>,
    printer: &Printer,
) -> anyhow::Result<()> {
    if let Some(picture) = &arguments.picture {
        write_picture(picture, &drawn(&document))?;
        document.picture = Some(picture.display().to_string());
    }
    if let Some(file) = &arguments.report.path {
        let page = page(&document, full, printer)?;
        document.report = Some(write_page(&page, file)?);
    }
    match printer.is_json() {
        true => printer.json(&document),
        false => show(&document, printer),
    }
}

/// The report: all methods as a table, beside the full model's layers.
fn page(document: &Document, full: Alone<'_>, printer: &Printer) -> anyhow::Result<Page> {
    let scores = document.full.as_ref();
    let full = Alone { scores, ..full };
    let mut page = full.page(document, printer)?;
    let number = |value: f64| Cell::number(value, percent);
    let rows = document.rows.iter().map(|row| {
        let accuracy = row.result.as_ref().and_then(|result| result.accuracy);
        let shown = row.result.as_ref().map_or(String::new(), Scores::to_string);
        vec![
            Cell::text(row.method),
            Cell::number(row.order as f64, |order| format!("{order:.0}")),
            number(row.weighted_error),
            number(row.h2_error),
            number(row.logit_change.unwrap_or(f64::NAN)),
            Cell::number(accuracy.unwrap_or(f64::NAN), |_| shown.clone()),
        ]
    });
    let header = [
        "method",
        "states",
        "error for own input",
        "error for white noise",
    ];
    let header = header.into_iter().chain(["logit change", "accuracy"]);
    let table = PageTable {
        title: "Methods".to_string(),
        caption: "Every method keeps the same number of states of a channel.".to_string(),
        header: header.map(str::to_string).collect(),
        rows: rows.collect(),
        folded: false,
    };
    if let Some(best) = best(&document.rows) {
        let reached = match &best.result {
            Some(result) => format!("an accuracy of {result}"),
            None => format!("the least output error, {}", percent(best.weighted_error)),
        };
        page.verdict = format!(
            "At {} states a channel, the fewest that were tried, “{}” is best: {reached}.",
            best.order, best.method
        );
    }
    page.tables.push(table);
    Ok(page)
}

/// The best method at the fewest states.
fn best(rows: &[Row]) -> Option<&Row> {
    let least = rows.iter().map(|row| row.order).min()?;
    let merit = |row: &Row| match row.result.as_ref().and_then(|result| result.accuracy) {
        Some(accuracy) => accuracy,
        None => -row.weighted_error,
    };
    let fewest = rows.iter().filter(|row| row.order == least);
    fewest.max_by(|a, b| merit(a).total_cmp(&merit(b)))
}

fn check_orders(arguments: &Arguments, checkpoint: &Checkpoint) -> anyhow::Result<()> {
    let blocks = checkpoint.model.blocks().iter();
    let most = blocks.map(|block| block.order()).max().unwrap_or(0);
    if let Some(wrong) = arguments
        .orders
        .iter()
        .find(|&&order| order == 0 || order > most)
    {
        bail!("--orders has {wrong}, expected 1 to {most}");
    }
    Ok(())
}

/// What every row is measured on.
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

    /// Every method at every order.
    fn rows(&self, printer: &Printer) -> anyhow::Result<Vec<Row>> {
        let orders = &self.arguments.orders;
        let count = CONTENDERS.len() * orders.len();
        let mut rows = Vec::with_capacity(count);
        let table = printer.growing(&COLUMNS)?;
        for &order in orders {
            for (name, contender) in CONTENDERS {
                let part = format!("reduction {} of {count}", rows.len() + 1);
                self.bars.part(part);
                let row = self.row(name, contender, order, printer)?;
                self.bars.clear();
                table.row(&cells(&row))?;
                rows.push(row);
            }
        }
        Ok(rows)
    }

    fn row(
        &self,
        method: &'static str,
        contender: Contender,
        order: usize,
        printer: &Printer,
    ) -> anyhow::Result<Row> {
        let start = Instant::now();
        let (model, records) = self.reduced(contender, order)?;
        self.bars.clear();
        let seconds = start.elapsed().as_secs_f64();
        let channels = records.iter().flat_map(|layer| &layer.channels);
        let (mut error, mut norm) = (0.0, 0.0);
        for channel in channels.clone() {
            error += channel.h2_error.powi(2);
            norm += channel.h2_norm.powi(2);
        }
        let states = channels.map(|channel| channel.order).sum();
        let weighted_error = self.prepared.relative_error(&model)?;
        let logit_change = self.prepared.logit_change(&model)?;
        let result = self.scored(&self.checkpoint.with_model(model), printer)?;
        Ok(Row {
            method,
            order,
            states,
            weighted_error,
            h2_error: if error > 0.0 {
                f64::sqrt(error / norm)
            } else {
                0.0
            },
            logit_change,
            result,
            seconds,
        })
    }

    fn reduced(
        &self,
        contender: Contender,
        order: usize,
    ) -> anyhow::Result<(Model, Vec<LayerRecord>)> {
        match contender {
            Contender::Plain(method, time, realisation) => {
                let plan = Plan::new(Rule::Order(order))?
                    .with_realisation(realisation)
                    .with_method(method)?
                    .with_time(time)?;
                let compressed = reduce_observed(&self.checkpoint.model, &plan, self.bars)?;
                Ok((compressed.model, compressed.records))
            }
            Contender::Calibrated {
                refinement,
                allocation,
                fit_logits,
            } => {
                let mut settings = Settings::new(TargetSize::Order(order));
                self.arguments.ways.apply(&mut settings);
                settings.refinement = refinement;
                settings.fit_logits = fit_logits;
                if self.checkpoint.model.is_bank() {
                    settings.allocation = allocation;
                }
                let calibrated = self.prepared.reduce(&settings)?;
                Ok((calibrated.model, calibrated.records))
            }
        }
    }
}

fn drawn(document: &Document) -> String {
    let y = |row: &Row| match &row.result {
        Some(result) => 100.0 * result.accuracy.unwrap_or(f64::NAN),
        None => 100.0 * row.weighted_error,
    };
    let curves = CONTENDERS.iter().map(|(name, _)| {
        let rows = document.rows.iter().filter(|row| row.method == *name);
        let mut points: Vec<_> = rows.map(|row| (row.order as f64, y(row))).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        Curve {
            name: name.to_string(),
            points,
        }
    });
    let title = best(&document.rows).map_or(String::new(), |best| {
        format!("best at {} states: {}", best.order, best.method)
    });
    let captions = Captions {
        title: &title,
        x: "states kept per channel, mean",
        y: match document.full {
            Some(_) => "accuracy, %",
            None => "output error, %",
        },
    };
    curves_svg(&curves.collect::<Vec<_>>(), &[], &captions, None)
}

const fn column(name: &'static str, least: usize, aside: bool) -> Column<'static> {
    Column { name, least, aside }
}

const COLUMNS: [Column<'_>; 8] = [
    column("method", 51, false),
    column("order", 5, false),
    column("states", 7, true),
    column("weighted error", 8, false),
    column("white error", 8, true),
    column("logit change", 8, false),
    column("accuracy", 16, false),
    column("seconds", 7, true),
];

fn cells(row: &Row) -> [String; 8] {
    let percent = |value: f64| format!("{:.2} %", 100.0 * value);
    let accuracy = row.result.as_ref().map(Scores::to_string);
    [
        row.method.to_string(),
        row.order.to_string(),
        row.states.to_string(),
        percent(row.weighted_error),
        percent(row.h2_error),
        row.logit_change.map_or("-".to_string(), percent),
        accuracy.unwrap_or("-".to_string()),
        format!("{:.2}", row.seconds),
    ]
}

fn show(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    if let Some(full) = &document.full {
        printer.line(&format!("full model: accuracy {full}"))?;
    }
    printer.line(
        "seconds: calibrated rows share the balancing, which was done before, and cuts already made",
    )?;
    say_written(
        document.picture.as_deref(),
        document.report.as_ref(),
        printer,
    )
}
