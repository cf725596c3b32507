//! How the errors of a shallow transformer scale with its width: linearisation, approximation,
//! tangent kernel, training loss, each beside its bound where it has one.
//!
//!     cargo run --release -p compress-model --example finite_time -- [PICTURE.svg]
//!     cargo run --release -p compress-model --example finite_time -- train SEQUENCES STEPS SEEDS
//!     cargo run --release -p compress-model --example finite_time -- speed
//!
//! The first prints the tables of docs/lab/finite-time.md. The second is the
//! training alone, with a budget of one's own (the paper's is 5000 sequences, 4000 steps, 10 seeds).
//! The third times a gradient on one thread.
#![allow(clippy::print_stdout, reason = "the program is there to print")]

use std::time::Instant;

use compress_model::report::{Captions, Curve, curves_with_errors_svg};
use hankelite_research::bounds::{FiniteTime, Radii};
use hankelite_research::shallow::{
    Activation, Boundary, Descent, Kernel, Linearised, Query, Samples, Transformer,
    TransformerSize, Transport, TransportTeacher, boundary_point, descend, kernel_blocks,
    largest_difference, loss_gradient, outputs,
};

type Failure = Box<dyn std::error::Error>;

/// d, L, and m̃ heads of the teacher.
const WIDTH: usize = 8;
const LENGTH: usize = 16;
const TEACHER_HEADS: usize = 8192;

/// ρ = ν.
const RADII: Radii = Radii::all(3.0);

/// A row of a table: an error at every width, seed by seed.
struct Row {
    name: String,
    widths: Vec<usize>,
    /// For each width one number for each seed.
    errors: Vec<Vec<f64>>,
    /// Of the whole row.
    seconds: f64,
}

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["speed"] => speed(),
        ["train", count, steps, seeds] => {
            let name = format!("least training loss, {count} sequences, {steps} steps");
            let (count, steps) = (count.parse()?, steps.parse()?);
            let seeds = seeds.parse()?;
            print_table(&[timed(|| training(&name, 8, count, steps, seeds))?]);
            Ok(())
        }
        [] => scaling(None),
        [picture] => scaling(Some(picture)),
        _ => Err("usage: finite_time [PICTURE.svg | train SEQUENCES STEPS SEEDS | speed]".into()),
    }
}

fn scaling(picture: Option<&str>) -> Result<(), Failure> {
    let mut rows = Vec::new();
    let boundaries = [
        (
            Boundary::Independent,
            "linearisation, independent directions",
        ),
        (Boundary::Shared, "linearisation, one shared direction"),
        (
            Boundary::Adversarial,
            "linearisation, adversarial direction",
        ),
    ];
    for (boundary, name) in boundaries {
        rows.push(timed(|| linearisation(name, boundary, 10))?);
    }
    rows.push(timed(|| approximation(10))?);
    rows.push(timed(|| kernel(20))?);
    for (anchors, name) in [
        (8, "least training loss, 8 anchors"),
        (1, "least training loss, 1 anchor"),
    ] {
        rows.push(timed(|| training(name, anchors, 300, 400, 5))?);
    }
    print_table(&rows);
    print_bounds(&rows);
    match picture {
        Some(path) => draw(&rows, path),
        None => Ok(()),
    }
}

/// Runs and notes how long it took.
fn timed(run: impl FnOnce() -> Result<Row, Failure>) -> Result<Row, Failure> {
    let start = Instant::now();
    let mut row = run()?;
    row.seconds = start.elapsed().as_secs_f64();
    Ok(row)
}

/// An error for every width and seed.
fn row(
    name: &str,
    widths: &[usize],
    seeds: u64,
    error: impl Fn(usize, u64) -> Result<f64, Failure>,
) -> Result<Row, Failure> {
    let one = |&units: &usize| (0..seeds).map(|seed| error(units, seed)).collect();
    Ok(Row {
        name: name.to_string(),
        widths: widths.to_vec(),
        errors: widths.iter().map(one).collect::<Result<_, Failure>>()?,
        seconds: 0.0,
    })
}

fn start(units: usize, seed: u64) -> Result<Transformer, Failure> {
    let size = TransformerSize {
        units,
        width: WIDTH,
    };
    // Other heads for every width.
    let seed = 10_000 * seed + units as u64;
    Ok(Transformer::symmetric(
        size,
        Query::Last,
        Activation::Tanh,
        seed,
    )?)
}

fn sequences(count: usize, seed: u64) -> Result<Samples, Failure> {
    Ok(Samples::gaussian(count, LENGTH, WIDTH, 7_000_000 + seed)?)
}

/// sup |f − f_lin| over 300 sequences at a point on the boundary of the trust region.
fn linearisation(name: &str, boundary: Boundary, seeds: u64) -> Result<Row, Failure> {
    row(
        name,
        &[8, 16, 32, 64, 128, 256, 512],
        seeds,
        |units, seed| {
            let (samples, model) = (sequences(300, seed)?, start(units, seed)?);
            let direction = 10_000 * seed + units as u64;
            let point = boundary_point(&model, RADII, boundary, &samples, direction);
            let linear = Linearised::at(&model).outputs(&point, &samples);
            let full = outputs(&model.with_parameters(point), &samples);
            Ok(largest_difference(&full, &linear))
        },
    )
}

fn transport(anchors: usize, seed: u64) -> Result<Transport, Failure> {
    let anchors = Samples::gaussian(anchors, LENGTH, WIDTH, 8_000_000 + seed)?;
    Ok(Transport::new(anchors, RADII))
}

fn teacher(transport: &Transport, seed: u64) -> Result<TransportTeacher, Failure> {
    let (seed, activation) = (9_000_000 + seed, Activation::Tanh);
    Ok(TransportTeacher::new(
        transport,
        TEACHER_HEADS,
        &Query::Last,
        activation,
        seed,
    )?)
}

/// sup |f_lin(φ̃) − y| over 300 sequences.
fn approximation(seeds: u64) -> Result<Row, Failure> {
    let samples = (0..seeds).map(|seed| sequences(300, seed));
    let samples = samples.collect::<Result<Vec<_>, Failure>>()?;
    let labels = (0..seeds)
        .zip(&samples)
        .map(|(seed, samples)| Ok(teacher(&transport(8, seed)?, seed)?.labels(samples)));
    let labels = labels.collect::<Result<Vec<_>, Failure>>()?;
    row(
        "approximation",
        &[8, 16, 32, 64, 128, 256],
        seeds,
        |units, seed| {
            let model = start(units, seed)?;
            let student = transport(8, seed)?.student(&model);
            let index = seed as usize;
            let linear = Linearised::at(&model).outputs(&student, &samples[index]);
            Ok(largest_difference(&linear, &labels[index]))
        },
    )
}

/// The relative distance of the empirical kernel of 6 sequences to that of 2¹⁸ heads.
fn kernel(seeds: u64) -> Result<Row, Failure> {
    let inputs = sequences(6, 0)?;
    let exact = kernel_blocks(&inputs, 1 << 18, &Query::Last, Activation::Tanh, 1)?.total();
    let widths = [64, 128, 256, 512, 1024, 2048, 4096];
    row("tangent kernel, relative", &widths, seeds, |units, seed| {
        let found = Kernel::over_heads(&start(units, seed)?, &inputs).total();
        Ok((found - &exact).norm() / exact.norm())
    })
}

/// The least training loss of projected descent.
fn training(
    name: &str,
    anchors: usize,
    count: usize,
    steps: usize,
    seeds: u64,
) -> Result<Row, Failure> {
    let mut sets = Vec::new();
    let mut variance = 0.0;
    for seed in 0..seeds {
        let samples = sequences(count, seed)?;
        let labels = teacher(&transport(anchors, seed)?, seed)?.labels(&samples);
        let mean = labels.iter().sum::<f64>() / count as f64;
        let squares = labels.iter().map(|label| (label - mean).powi(2));
        variance += squares.sum::<f64>() / count as f64 / seeds as f64;
        sets.push(samples.with_labels(labels)?);
    }
    println!("{name}: the labels have variance {variance:.5}\n");
    row(name, &[8, 16, 32, 64, 128, 256], seeds, |units, seed| {
        let mut model = start(units, seed)?;
        let descent = Descent::theory(steps, Some(RADII));
        let course = descend(&mut model, &sets[seed as usize], &descent, &mut |_, _| ())?;
        Ok(course.least)
    })
}

/// Mean and standard error.
fn mean(values: &[f64]) -> (f64, f64) {
    let count = values.len() as f64;
    let mean = values.iter().sum::<f64>() / count;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0).max(1.0) / count).sqrt())
}

impl Row {
    /// Least-squares slope of log mean error over log m for m at least `from`, and the standard
    /// error of the slopes of the single seeds.
    fn slope(&self, from: usize) -> (f64, f64) {
        let used = || {
            self.widths
                .iter()
                .zip(&self.errors)
                .filter(|(m, _)| **m >= from)
        };
        let points = |error: &dyn Fn(&[f64]) -> f64| -> Vec<(f64, f64)> {
            used()
                .map(|(&m, errors)| ((m as f64).ln(), error(errors).ln()))
                .collect()
        };
        let of_means = line(&points(&|errors| mean(errors).0));
        let seeds = 0..self.errors[0].len();
        let single: Vec<f64> = seeds
            .map(|seed| line(&points(&|errors| errors[seed])))
            .collect();
        (of_means, mean(&single).1)
    }
}

/// The slope of the least-squares line.
fn line(points: &[(f64, f64)]) -> f64 {
    let (x, _) = mean(&points.iter().map(|point| point.0).collect::<Vec<_>>());
    let (y, _) = mean(&points.iter().map(|point| point.1).collect::<Vec<_>>());
    let both: f64 = points
        .iter()
        .map(|point| (point.0 - x) * (point.1 - y))
        .sum();
    both / points
        .iter()
        .map(|point| (point.0 - x).powi(2))
        .sum::<f64>()
}

fn print_table(rows: &[Row]) {
    for row in rows {
        let (name, seeds, seconds) = (&row.name, row.errors[0].len(), row.seconds);
        println!("{name} ({seeds} seeds, {seconds:.1} s)\n");
        let widths: Vec<String> = row.widths.iter().map(|m| format!("m = {m}")).collect();
        println!("| {} | slope | slope, m ≥ 64 |", widths.join(" | "));
        println!("|{}", "---|".repeat(widths.len() + 2));
        let cells = row.errors.iter().map(|errors| {
            let (mean, error) = mean(errors);
            format!("{mean:.3e} ± {error:.0e}")
        });
        let cells: Vec<String> = cells.collect();
        let slopes = [row.slope(0), row.slope(64)].map(|(s, e)| format!("{s:.3} ± {e:.3}"));
        println!("| {} | {} |\n", cells.join(" | "), slopes.join(" | "));
    }
}

/// The largest measured errors beside B_lin and B_app.
fn print_bounds(rows: &[Row]) {
    println!("| m | linearisation, worst | B_lin | with L2/2 | approximation, worst | B_app |");
    println!("|---|---|---|---|---|---|");
    let worst = |row: &Row, index: usize| row.errors[index].iter().copied().fold(0.0, f64::max);
    for (index, &heads) in rows[3].widths.iter().enumerate() {
        let bounds = FiniteTime {
            heads,
            width: WIDTH,
            samples: 300,
            trust: RADII,
            transport: RADII,
            activation: Activation::Tanh.smoothness(),
            failure: 0.05,
            failure_start: 0.05,
        };
        let linear = (0..3)
            .map(|kind| worst(&rows[kind], index))
            .fold(0.0, f64::max);
        println!(
            "| {heads} | {linear:.3} | {:.1} | {:.1} | {:.3} | {:.1} |",
            bounds.linearisation(),
            bounds.linearisation_tight(),
            worst(&rows[3], index),
            bounds.approximation()
        );
    }
}

fn draw(rows: &[Row], path: &str) -> Result<(), Failure> {
    let (mut curves, mut bars) = (Vec::new(), Vec::new());
    for row in rows {
        let means: Vec<(f64, f64)> = row.errors.iter().map(|errors| mean(errors)).collect();
        let points = row.widths.iter().zip(&means);
        let points = points
            .map(|(&m, (mean, _))| (m as f64, mean.log10()))
            .collect();
        let errors = means
            .iter()
            .map(|(mean, error)| error / (mean * std::f64::consts::LN_10));
        let name = format!("{} ({:.2})", row.name, row.slope(0).0);
        curves.push(Curve { name, points });
        bars.push(errors.collect());
    }
    let captions = Captions {
        title: "errors over the width, mean and standard error over seeds (slopes in brackets)",
        x: "m, heads",
        y: "log10 of the error",
    };
    std::fs::write(path, curves_with_errors_svg(&curves, &bars, &captions))?;
    Ok(())
}

/// A full-batch gradient at the paper's sizes on one thread.
fn speed() -> Result<(), Failure> {
    let samples = sequences(5000, 1)?;
    let model = start(256, 1)?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build()?;
    let mut times: Vec<f64> = Vec::new();
    for _ in 0..7 {
        let start = Instant::now();
        let (loss, _) = pool.install(|| loss_gradient(&model, &samples));
        times.push(start.elapsed().as_secs_f64());
        assert!(loss == 0.0);
    }
    times.sort_by(f64::total_cmp);
    println!(
        "n_s = 5000, m = 256, d = 8, L = 16, one thread: {:.3} s",
        times[3]
    );
    Ok(())
}
