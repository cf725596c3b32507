//! `compress-model bounds finite-time`.

use anyhow::bail;
use clap::{Args, ValueEnum};
use hankelite_research::bounds::{FiniteTime, Radii, Smoothness};
use serde::Serialize;

use crate::cli::bounds::quantities::{Quantity, rows};
use crate::cli::common::{positive, short};
use crate::cli::printer::Printer;

const EXAMPLES: &str = "\
Examples:
  compress-model bounds finite-time
  compress-model bounds finite-time --heads 4096 --steps 100000 --format json
  compress-model bounds finite-time --heads 64 --width 17 --trust 1,1,0.5 --transport 1,0.5,0.5

The number of tokens is in none of the bounds.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub(super) struct Arguments {
    /// Heads m, an even number.
    #[arg(long, value_name = "M", value_parser = positive, default_value_t = 256)]
    heads: usize,
    /// Numbers in a token, d.
    #[arg(long, value_name = "D", value_parser = positive, default_value_t = 8)]
    width: usize,
    /// Training samples.
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 5000)]
    samples: usize,
    /// Steps of projected descent, each of size 1/sqrt(steps).
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 4000)]
    steps: usize,
    /// Trust radii of c, U, W times sqrt(M), or one for all.
    #[arg(long, value_name = "C,U,W", value_delimiter = ',', default_value = "3")]
    trust: Vec<f64>,
    /// Bounds of the transport that the labels come from, or one for all.
    #[arg(long, value_name = "C,U,W", value_delimiter = ',', default_value = "3")]
    transport: Vec<f64>,
    /// The activation.
    #[arg(long, value_enum, default_value_t = Activation::Tanh)]
    activation: Activation,
    /// The bound on the approximation fails with at most this probability.
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    failure: f64,
    /// The bound on the first neurons fails with at most this probability.
    #[arg(long, value_name = "P", default_value_t = 0.05)]
    failure_start: f64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Activation {
    Tanh,
    Logistic,
}

#[derive(Serialize)]
struct Document {
    of: FiniteTime,
    steps: usize,
    quantities: Vec<Quantity>,
    notes: Vec<String>,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let bounds = arguments.bounds()?;
    let document = Document {
        steps: arguments.steps,
        quantities: quantities(&bounds, arguments.steps),
        notes: notes(&bounds, arguments.steps),
        of: bounds,
    };
    if printer.is_json() {
        return printer.json(&document);
    }
    printer.table(&["quantity", "value"], rows(&document.quantities).collect())?;
    for note in &document.notes {
        printer.line(&format!("note: {note}"))?;
    }
    Ok(())
}

impl Arguments {
    fn bounds(&self) -> anyhow::Result<FiniteTime> {
        Ok(FiniteTime {
            heads: self.heads,
            width: self.width,
            samples: self.samples,
            trust: radii("--trust", &self.trust)?,
            transport: radii("--transport", &self.transport)?,
            activation: match self.activation {
                Activation::Tanh => Smoothness::TANH,
                Activation::Logistic => Smoothness::LOGISTIC,
            },
            failure: probability("--failure", self.failure)?,
            failure_start: probability("--failure-start", self.failure_start)?,
        })
    }
}

fn radii(name: &str, values: &[f64]) -> anyhow::Result<Radii> {
    if let Some(wrong) = values.iter().find(|r| !(**r >= 0.0 && r.is_finite())) {
        bail!("{name} has {wrong}, expected finite numbers, 0 or more");
    }
    match *values {
        [all] => Ok(Radii::all(all)),
        [c, u, w] => Ok(Radii { c, u, w }),
        _ => bail!("{name} has {} numbers, expected 1 or 3", values.len()),
    }
}

fn probability(name: &str, value: f64) -> anyhow::Result<f64> {
    if !(value > 0.0 && value < 0.5) {
        bail!("{name} is {value}, expected between 0 and 0.5");
    }
    Ok(value)
}

fn quantities(bounds: &FiniteTime, steps: usize) -> Vec<Quantity> {
    let all = [
        ("B_U", "length of a neuron", bounds.neuron()),
        ("L1", "slope of a head", bounds.lipschitz()),
        ("L2", "curvature of a head", bounds.smoothness()),
        (
            "B_lin",
            "distance to the linearisation",
            bounds.linearisation(),
        ),
        (
            "B_lin with L2/2",
            "as in the proof",
            bounds.linearisation_tight(),
        ),
        (
            "B_app",
            "error of the linearised teacher",
            bounds.approximation(),
        ),
        ("B_CoF", "drift of the gradients", bounds.drift()),
        ("A", "gradient of the network", bounds.gradient()),
        ("f_max", "output", bounds.output()),
        ("y_max", "label", bounds.label()),
        (
            "B_grad",
            "squared gradient of the loss",
            bounds.loss_gradient(),
        ),
        (
            "Theorem 1",
            "least loss of the steps",
            bounds.least_loss(steps),
        ),
        (
            "Theorem 1, average",
            "loss of the average iterate",
            bounds.average_iterate_loss(steps),
        ),
    ];
    let each = all.map(|(name, meaning, value)| Quantity {
        name,
        meaning,
        value,
    });
    each.to_vec()
}

/// Assumptions that fail for these numbers.
fn notes(bounds: &FiniteTime, steps: usize) -> Vec<String> {
    let mut notes = Vec::new();
    let (trust, transport) = (bounds.trust, bounds.transport);
    let inside = [
        ("c", trust.c, transport.c),
        ("U", trust.u, transport.u),
        ("W", trust.w, transport.w),
    ];
    for (name, radius, needed) in inside {
        if radius < needed {
            notes.push(format!(
                "the trust radius of {name}, {radius}, is below the transport's {needed}: the \
                 theorem assumes that the region holds the transported network"
            ));
        }
    }
    if !bounds.heads.is_multiple_of(2) {
        notes.push("an odd number of heads: the symmetric start takes them in pairs".to_string());
    }
    let (loss, zero) = (bounds.least_loss(steps), bounds.label().powi(2));
    if loss >= zero {
        notes.push(format!(
            "vacuous: the bound on the loss is not below y_max² = {}, which the answer 0 keeps; \
             use it for how things scale",
            short(zero)
        ));
    }
    notes
}
