//! How the time of balancing grows with the states of a channel and with the channels of a
//! layer, as a picture.
//!
//! ```text
//! cargo run --release -p compress-model --example scaling -- docs/pictures/scaling.svg
//! ```
#![allow(
    clippy::print_stdout,
    reason = "an example that measures prints what it measured"
)]

use std::time::Instant;

use hankelite::advanced::reduce_layer;
use hankelite::model::{Block, BlockParts, Nonlinearity};
use hankelite::{Plan, Rule};
use hankelite_control::{DiagonalSystem, Realisation, Time, balance};
use num_complex::Complex64;
use plotters::prelude::*;

type Failure = Box<dyn std::error::Error>;
/// Title of a panel, label of its axis, and its curves: name and (x, milliseconds).
type Panel = (&'static str, &'static str, Vec<(String, Vec<(f64, f64)>)>);

/// Poles of S4D-Lin and residues without a pattern.
fn channel(modes: usize, seed: usize) -> Result<DiagonalSystem, Failure> {
    let at = |i: usize, k: f64| (1.0 + k * (i * 7919 + seed * 104_729) as f64).sin();
    let exponents = (0..modes)
        .map(|i| {
            Complex64::new(
                -0.5 - 0.2 * at(i, 0.37),
                3.1 * (i as f64 + 0.1 * at(i, 0.11)),
            )
        })
        .collect();
    let residues: Vec<_> = (0..modes)
        .map(|i| Complex64::new(at(i, 0.53), at(i, 0.71)))
        .collect();
    Ok(DiagonalSystem::siso(
        Time::Discrete { step: 0.01 },
        exponents,
        &residues,
        0.0,
    )?)
}

/// The median of several runs, in milliseconds.
fn milliseconds(mut work: impl FnMut() -> Result<(), Failure>) -> Result<f64, Failure> {
    let mut times = Vec::new();
    for _ in 0..5 {
        let start = Instant::now();
        work()?;
        times.push(1e3 * start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

fn over_states() -> Result<Panel, Failure> {
    let mut curves = Vec::new();
    for (name, realisation) in [
        ("complex, N states", Realisation::Complex),
        ("real, 2N states", Realisation::Real),
    ] {
        let mut points = Vec::new();
        for modes in [8, 16, 32, 64, 128, 256] {
            let system = channel(modes, 1)?;
            let time = milliseconds(|| {
                balance(system.stable()?, realisation)?.truncate(modes / 4)?;
                Ok(())
            })?;
            println!("{name}, N = {modes}: {time:.3} ms");
            points.push((modes as f64, time));
        }
        curves.push((name.to_string(), points));
    }
    Ok(("one channel, one thread", "N, modes", curves))
}

fn over_channels() -> Result<Panel, Failure> {
    let mut curves = Vec::new();
    for threads in [1, 2] {
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()?;
        let mut points = Vec::new();
        for channels in [16, 64, 256, 1024] {
            let systems = (0..channels).map(|seed| channel(32, seed));
            let block = Block::new(BlockParts {
                name: "layer".into(),
                systems: systems.collect::<Result<_, _>>()?,
                backward: Vec::new(),
                backward_from: 1,
                holds_feedthrough: true,
                class: None,
                activation: Nonlinearity::Gelu,
                output: None,
                norm: None,
            })?;
            let plan = Plan::new(Rule::Order(8))?;
            let time = milliseconds(|| {
                let mut block = block.clone();
                pool.install(|| reduce_layer(&mut block, &plan))?;
                Ok(())
            })?;
            println!("{threads} threads, {channels} channels: {time:.1} ms");
            points.push((channels as f64, time));
        }
        curves.push((format!("threads: {threads}"), points));
    }
    Ok(("a layer of N = 32, reduced to 8", "channels", curves))
}

fn draw(path: &str, panels: &[Panel]) -> Result<(), Failure> {
    let root = SVGBackend::new(path, (960, 420)).into_drawing_area();
    root.fill(&WHITE)?;
    for (area, (title, label, curves)) in root.split_evenly((1, panels.len())).iter().zip(panels) {
        let points = || curves.iter().flat_map(|(_, points)| points.iter().copied());
        let x = points().map(|p| p.0).fold(f64::INFINITY, f64::min)
            ..points().map(|p| p.0).fold(0.0, f64::max);
        let y = 0.7 * points().map(|p| p.1).fold(f64::INFINITY, f64::min)
            ..1.5 * points().map(|p| p.1).fold(0.0, f64::max);
        let mut chart = ChartBuilder::on(area)
            .caption(*title, ("sans-serif", 18))
            .margin(12)
            .x_label_area_size(40)
            .y_label_area_size(60)
            .build_cartesian_2d(x.log_scale(), y.log_scale())?;
        chart
            .configure_mesh()
            .x_desc(*label)
            .y_desc("ms")
            .x_labels(4)
            .y_labels(6)
            .light_line_style(TRANSPARENT)
            .x_label_formatter(&|x| format!("{x:.0}"))
            .draw()?;
        for (index, (name, points)) in curves.iter().enumerate() {
            let colour = Palette99::pick(index).to_rgba();
            chart
                .draw_series(
                    LineSeries::new(points.iter().copied(), colour.stroke_width(2)).point_size(3),
                )?
                .label(name)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour));
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE)
            .border_style(BLACK)
            .draw()?;
    }
    Ok(root.present()?)
}

fn main() -> Result<(), Failure> {
    let path = std::env::args()
        .nth(1)
        .ok_or("usage: scaling PICTURE.svg")?;
    draw(&path, &[over_states()?, over_channels()?])
}
