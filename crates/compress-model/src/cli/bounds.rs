//! `compress-model bounds`.

#[cfg(feature = "research")]
mod finite_time;
mod model;
#[cfg(feature = "research")]
mod network;
#[cfg(feature = "research")]
mod quantities;
#[cfg(feature = "research")]
mod rademacher;

use clap::{Args, Subcommand};

use crate::cli::printer::Printer;

#[cfg(feature = "research")]
const EXAMPLES: &str = "\
Examples:
  compress-model bounds model model.pth --orders 4,8,16
  compress-model bounds model model.pth --data mnist:data/mnist
  compress-model bounds rademacher --kind reweighted --layers 3 --alpha 0.9 --beta 0.5 --length 20
  compress-model bounds finite-time --heads 256 --width 8

`compress-model bounds NAME --help` shows the options of one calculator, with examples.";

#[cfg(not(feature = "research"))]
const EXAMPLES: &str = "\
Examples:
  compress-model bounds model model.pth --orders 4,8,16
  compress-model bounds model model.pth --data mnist:data/mnist";

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
    #[cfg(feature = "research")]
    Rademacher(rademacher::Arguments),
    /// Of a trained network unfolded from a sparse solver, or of one recurrent layer: the same on its
    /// own norms.
    #[cfg(feature = "research")]
    Network(network::Arguments),
    /// Of projected descent on shallow transformers: the constants of its finite-time analysis.
    #[cfg(feature = "research")]
    FiniteTime(finite_time::Arguments),
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    match &arguments.calculator {
        Calculator::Model(arguments) => model::run(arguments, printer),
        #[cfg(feature = "research")]
        Calculator::Rademacher(arguments) => rademacher::run(arguments, printer),
        #[cfg(feature = "research")]
        Calculator::Network(arguments) => network::run(arguments, printer),
        #[cfg(feature = "research")]
        Calculator::FiniteTime(arguments) => finite_time::run(arguments, printer),
    }
}
