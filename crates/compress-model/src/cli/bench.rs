//! `compress-model bench`.

use std::hint::black_box;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Context;
use clap::Args;
use hankelite::advanced::read_nanoseconds;
use hankelite::model::InputKind;
use hankelite::rounding::Entries;
use hankelite::stream::Runner;
use serde::{Deserialize, Serialize};

use crate::cli::common::{
    Declarations, Input, Word, grouped, positive, short, word, word_of, words,
};
use crate::cli::image::{Beside, LayOut, MIXING, open_streamed};
use crate::cli::printer::Printer;

/// Rounds in which the models take turns.
const ROUNDS: usize = 7;

const EXAMPLES: &str = "\
Examples:
  compress-model bench model.pth
  compress-model bench model.pth --against small.pth
  compress-model bench small.pth --mixing int8 --numbers f16 --format json
  compress-model bench model.pth --mixing all

One sample at a time on one core. The floor is the time this machine takes to read as many bytes as
weights and state have, measured in the same run. Medians and percentiles are over single steps of
the best of seven rounds, in which the models take turns.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// A second checkpoint or image, measured in the same run.
    #[arg(long, value_name = "OTHER")]
    against: Option<PathBuf>,
    /// How the maps between channels are stored; `all` measures each.
    #[arg(long, value_parser = words::<Mixing>(mixings()))]
    mixing: Option<Mixing>,
    #[command(flatten)]
    beside: Beside,
    /// Steps of a round.
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 2000)]
    steps: usize,
    #[command(flatten)]
    declarations: Declarations,
}

/// One kind of entries, or each in turn.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Mixing {
    All,
    #[serde(untagged)]
    One(Entries),
}

fn mixings() -> Vec<Word> {
    let mut all = MIXING.to_vec();
    all.push(word("all", "A row for each of them"));
    all
}

impl Arguments {
    /// What is measured of a file.
    fn lay_outs(&self) -> Vec<LayOut> {
        let of = |mixing| LayOut {
            mixing,
            rate: None,
            beside: self.beside.clone(),
        };
        match self.mixing {
            None => vec![of(None)],
            Some(Mixing::One(entries)) => vec![of(Some(entries))],
            Some(Mixing::All) => Entries::ALL.map(|entries| of(Some(entries))).to_vec(),
        }
    }
}

#[derive(Serialize)]
struct Document {
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    checkpoint: String,
    /// Absent for an image.
    mixing: Option<Entries>,
    median_us: f64,
    percentile_99_us: f64,
    samples_per_second: f64,
    weight_bytes: usize,
    state_bytes: usize,
    floor_us: f64,
}

/// A model and the best round so far.
struct Timed {
    runner: Runner,
    row: Row,
    times: Vec<f64>,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let mut timed = Vec::new();
    let files = [
        Some(&arguments.input.checkpoint),
        arguments.against.as_ref(),
    ];
    for path in files.into_iter().flatten() {
        for lay_out in arguments.lay_outs() {
            timed.push(prepare(path, &lay_out, arguments, printer)?);
        }
    }
    for _ in 0..ROUNDS {
        for one in &mut timed {
            one.round(arguments.steps)?;
        }
    }
    let rows: Vec<Row> = timed.into_iter().map(|one| one.row).collect();
    if printer.is_json() {
        return printer.json(&Document { rows });
    }
    show(&rows, printer)
}

fn prepare(
    path: &Path,
    lay_out: &LayOut,
    arguments: &Arguments,
    printer: &Printer,
) -> anyhow::Result<Timed> {
    let streamed = open_streamed(path, lay_out, &arguments.declarations, printer)?;
    let mixing = (!streamed.as_recorded).then(|| lay_out.mixing.unwrap_or_default());
    let runner = Runner::<f32>::from_image(streamed.image);
    let runner = runner.with_context(|| path.display().to_string())?;
    let row = Row {
        checkpoint: path.display().to_string(),
        mixing,
        median_us: f64::INFINITY,
        percentile_99_us: f64::INFINITY,
        samples_per_second: 0.0,
        weight_bytes: runner.weight_bytes(),
        state_bytes: runner.state_bytes(),
        floor_us: f64::INFINITY,
    };
    Ok(Timed {
        runner,
        row,
        times: Vec::with_capacity(arguments.steps),
    })
}

impl Timed {
    fn round(&mut self, steps: usize) -> anyhow::Result<()> {
        let bytes = self.row.weight_bytes + self.row.state_bytes;
        self.row.floor_us = self.row.floor_us.min(read_nanoseconds(bytes) * 1e-3);
        let inputs = vec![0.5; self.runner.inputs()];
        self.times.clear();
        for _ in 0..steps {
            let start = Instant::now();
            match self.runner.takes() {
                InputKind::Tokens { .. } => {
                    black_box(self.runner.step_tokens(black_box(&[0]))?);
                }
                InputKind::Numbers { .. } => {
                    black_box(self.runner.step(black_box(&inputs))?);
                }
            }
            self.times.push(start.elapsed().as_secs_f64() * 1e6);
        }
        self.times.sort_by(f64::total_cmp);
        let median = self.times[steps / 2];
        if median < self.row.median_us {
            let total: f64 = self.times.iter().sum();
            self.row.median_us = median;
            self.row.percentile_99_us = self.times[steps * 99 / 100];
            self.row.samples_per_second = 1e6 * steps as f64 / total;
        }
        Ok(())
    }
}

fn show(rows: &[Row], printer: &Printer) -> anyhow::Result<()> {
    let header = [
        "checkpoint",
        "mixing",
        "median us",
        "99 % us",
        "samples/s",
        "weight bytes",
        "state bytes",
        "floor us",
        "median/floor",
    ];
    let cells = rows.iter().map(|row| {
        vec![
            row.checkpoint.clone(),
            row.mixing
                .map_or("as recorded".to_string(), |mixing| word_of(&mixing)),
            short(row.median_us),
            short(row.percentile_99_us),
            grouped(row.samples_per_second as usize),
            grouped(row.weight_bytes),
            grouped(row.state_bytes),
            short(row.floor_us),
            short(row.median_us / row.floor_us),
        ]
    });
    printer.table(&header, cells.collect())?;
    if let [first, second] = rows {
        let bytes = |row: &Row| (row.weight_bytes + row.state_bytes) as f64;
        printer.line(&format!(
            "{} takes {:.2} times the time and {:.2} times the bytes",
            second.checkpoint,
            second.median_us / first.median_us,
            bytes(second) / bytes(first),
        ))?;
    }
    Ok(())
}
