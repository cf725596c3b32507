//! `compress-model bounds`.

mod finite_time;
mod model;
#[cfg(feature = "train")]
mod network;
mod rademacher;

use clap::{Args, Subcommand};
use hankelite_research::bounds::Bound;
use serde::Serialize;

use crate::cli::common::short;
use crate::cli::printer::Printer;

const EXAMPLES: &str = "\
Examples:
  compress-model bounds model model.pth --orders 4,8,16
  compress-model bounds model model.pth --data mnist:data/mnist
  compress-model bounds rademacher --kind reweighted --layers 3 --alpha 0.9 --beta 0.5 --length 20
  compress-model bounds finite-time --heads 256 --width 8

`compress-model bounds NAME --help` shows the options of one calculator, with examples.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(subcommand)]
    calculator: Calculator,
}

#[derive(Debug, Subcommand)]
enum Calculator {
    /// Of a state space checkpoint: error bounds of truncation, and the generalisation measure.
    Model(model::Arguments),
    /// Of recurrent networks with given norms: Rademacher complexity and risk.
    Rademacher(rademacher::Arguments),
    /// Of a trained network unfolded from a sparse solver, or of one recurrent layer: the same on its
    /// own norms.
    #[cfg(feature = "train")]
    Network(network::Arguments),
    /// Of projected descent on shallow transformers: the constants of its finite-time analysis.
    FiniteTime(finite_time::Arguments),
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    match &arguments.calculator {
        Calculator::Model(arguments) => model::run(arguments, printer),
        Calculator::Rademacher(arguments) => rademacher::run(arguments, printer),
        #[cfg(feature = "train")]
        Calculator::Network(arguments) => network::run(arguments, printer),
        Calculator::FiniteTime(arguments) => finite_time::run(arguments, printer),
    }
}

/// A number with its symbol and what it is.
#[derive(Clone, Serialize)]
struct Quantity {
    name: &'static str,
    meaning: &'static str,
    value: f64,
}

/// A row of a table for each.
fn rows(quantities: &[Quantity]) -> impl Iterator<Item = Vec<String>> + '_ {
    quantities.iter().map(|quantity| {
        let (name, meaning) = (quantity.name, quantity.meaning);
        vec![format!("{name}, {meaning}"), short(quantity.value)]
    })
}

/// A table of quantities and bounds, and below it what is to be known of them.
fn show(quantities: &[Quantity], bounds: &[Bound], printer: &Printer) -> anyhow::Result<()> {
    let found = bounds.iter();
    let found = found.map(|bound| vec![format!("bound {}", bound.equation), short(bound.value)]);
    printer.table(
        &["quantity", "value"],
        rows(quantities).chain(found).collect(),
    )?;
    for bound in bounds {
        for caveat in &bound.caveats {
            printer.line(&format!("note: {}: {caveat}", bound.equation))?;
        }
    }
    Ok(())
}
