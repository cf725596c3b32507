//! `compress-model bounds model`.

use anyhow::bail;
use clap::Args;
use hankelite::advanced::{LayerMeasure, reduce_layer};
use hankelite::compress::TimeBase;
use hankelite::model::Block;
use hankelite::{Plan, Rule};
use hankelite_data::Source;
use serde::Serialize;

use crate::cli::common::{Declarations, Input, TIME_BASES, positive, short, words};
use crate::cli::inspect::{Measured, open_measured};
use crate::cli::printer::Printer;

const EXAMPLES: &str = "\
Examples:
  compress-model bounds model model.pth
  compress-model bounds model model.pth --orders 2,4,8,16 --time continuous
  compress-model bounds model model.pth --data mnist:data/mnist --limit 500 --format json";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// Stored states that every channel would keep [default: 1/8, 1/4 and 1/2 of them].
    #[arg(long, value_name = "R,..", value_delimiter = ',', value_parser = positive)]
    orders: Vec<usize>,
    /// The time base that would be balanced.
    #[arg(long, default_value = "discrete", value_parser = words::<TimeBase>(TIME_BASES))]
    time: TimeBase,
    /// Sequences (any data source of `evaluate`): also show psi, tau and their bound on the
    /// generalisation gap, measured on the layers' inputs.
    #[arg(long, value_name = "DATA")]
    data: Option<Source>,
    /// With --data: use the first N sequences only.
    #[arg(long, value_name = "N", value_parser = positive, requires = "data")]
    limit: Option<usize>,
    #[command(flatten)]
    declarations: Declarations,
}

#[derive(Serialize)]
struct Document {
    checkpoint: String,
    orders: Vec<usize>,
    layers: Vec<Layer>,
}

#[derive(Serialize)]
struct Layer {
    name: String,
    /// One for each order; empty for an unstable layer.
    tails: Vec<Tail>,
    measure: Option<LayerMeasure>,
    /// ψ²/√n of every channel, the part of the bound that the weights decide; absent without data.
    psi_squared_per_root: Option<Vec<f64>>,
    notes: Vec<String>,
}

/// 2 Σ of the Hankel values that go, which bounds the H∞ norm of a channel's error.
#[derive(Serialize)]
struct Tail {
    order: usize,
    /// The largest of the channels.
    largest: f64,
    channels: Vec<f64>,
    /// The H2 error of the layer that truncation makes, for comparison.
    relative_h2_error: f64,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let path = &arguments.input.checkpoint;
    let declared = arguments.declarations.declared();
    let data = Measured {
        source: arguments.data.as_ref(),
        limit: arguments.limit,
    };
    let (checkpoint, measures) = open_measured(path, &declared, data, printer)?;
    let blocks = checkpoint.model.blocks();
    let orders = orders(&arguments.orders, blocks)?;
    let progress = printer.progress(blocks.len(), "layers");
    let mut layers = Vec::with_capacity(blocks.len());
    let mut measures = measures.into_iter();
    for block in blocks {
        layers.push(layer(block, &orders, arguments.time, measures.next())?);
        progress.inc(1);
    }
    progress.finish_and_clear();
    let document = Document {
        checkpoint: path.display().to_string(),
        orders,
        layers,
    };
    match printer.is_json() {
        true => printer.json(&document),
        false => show(&document, printer),
    }
}

fn orders(requested: &[usize], blocks: &[Block]) -> anyhow::Result<Vec<usize>> {
    let most = blocks.iter().map(Block::order).max().unwrap_or(0);
    if let Some(wrong) = requested.iter().find(|&&order| order > most) {
        bail!("--orders has {wrong}, expected 1 to {most}");
    }
    if !requested.is_empty() {
        return Ok(requested.to_vec());
    }
    let mut shares: Vec<usize> = [8, 4, 2].map(|share| (most / share).max(1)).to_vec();
    shares.dedup();
    Ok(shares)
}

fn layer(
    block: &Block,
    orders: &[usize],
    time: TimeBase,
    measure: Option<LayerMeasure>,
) -> anyhow::Result<Layer> {
    let mut notes = Vec::new();
    let all = || block.systems().iter().chain(block.backward());
    let unstable = all().filter(|system| !system.is_stable()).count();
    let mut tails = Vec::new();
    if unstable > 0 {
        notes.push(format!(
            "{unstable} channels have modes that do not decay: no Hankel values, so no tail; \
             `reduce --unstable` bounds the first L kernel samples instead"
        ));
    } else {
        for &order in orders {
            tails.push(tail(block, order, time)?);
        }
    }
    if measure.is_some() && !block.backward().is_empty() {
        notes.push("bidirectional: the measure is of the forward channels".to_string());
    }
    let per_root = measure.as_ref().map(|measure| {
        let root = (measure.sequences as f64).sqrt();
        measure.psi.iter().map(|psi| psi * psi / root).collect()
    });
    Ok(Layer {
        name: block.name().to_string(),
        tails,
        measure,
        psi_squared_per_root: per_root,
        notes,
    })
}

fn tail(block: &Block, order: usize, time: TimeBase) -> anyhow::Result<Tail> {
    let plan = Plan::new(Rule::Order(order))?.with_time(time)?;
    let record = reduce_layer(&mut block.clone(), &plan)?;
    Ok(Tail {
        order,
        largest: record.error_bound,
        channels: record.channels.iter().map(|c| c.error_bound).collect(),
        relative_h2_error: record.relative_h2_error,
    })
}

fn show(document: &Document, printer: &Printer) -> anyhow::Result<()> {
    printer.heading(&format!(
        "{}: twice the Hankel values cut off, which bounds the H∞ error, largest of the channels; in \
         brackets the relative H2 error of the layer",
        document.checkpoint
    ))?;
    let header: Vec<String> = document
        .orders
        .iter()
        .map(|r| format!("order {r}"))
        .collect();
    let header: Vec<&str> = std::iter::once("layer")
        .chain(header.iter().map(String::as_str))
        .collect();
    let rows = document.layers.iter().map(|layer| {
        let mut row = vec![layer.name.clone()];
        let tails = layer.tails.iter();
        row.extend(tails.map(|tail| {
            let (bound, percent) = (short(tail.largest), 100.0 * tail.relative_h2_error);
            format!("{bound} ({percent:.1} %)")
        }));
        row.resize(header.len(), "-".to_string());
        row
    });
    printer.table(&header, rows.collect())?;
    show_measures(&document.layers, printer)?;
    for layer in &document.layers {
        for note in &layer.notes {
            printer.line(&format!("note: {}: {note}", layer.name))?;
        }
    }
    Ok(())
}

fn show_measures(layers: &[Layer], printer: &Printer) -> anyhow::Result<()> {
    let measured: Vec<_> = layers
        .iter()
        .filter_map(|layer| Some((&layer.name, layer.measure.as_ref()?)))
        .collect();
    let Some((_, first)) = measured.first() else {
        return Ok(());
    };
    printer.line("")?;
    printer.heading(&format!(
        "generalisation measure on the layers' inputs, n = {} sequences",
        first.sequences
    ))?;
    let header = ["layer", "ψ max", "τ = mean ψ²", "ψ²/√n max", "τ/√n"];
    let rows = measured.iter().map(|(name, measure)| {
        let largest = measure.psi.iter().copied().fold(0.0, f64::max);
        vec![
            name.to_string(),
            short(largest),
            short(measure.tau),
            short(largest * largest / (measure.sequences as f64).sqrt()),
            short(measure.per_root()),
        ]
    });
    printer.table(&header, rows.collect())?;
    printer.line(
        "the gap of a single layer is at most (ψ + 1)² O(log^{3/2}(L n/δ)/√n); logarithms and the \
         constant are left out",
    )
}
