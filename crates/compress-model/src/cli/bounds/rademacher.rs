//! `compress-model bounds rademacher`.

use anyhow::bail;
use clap::{Args, ValueEnum};
use hankelite_research::bounds::{
    Bound, FastRnn, LayerNorms, Risk, SequenceSizes, Signals, SpectralRnn, Tied,
};
use serde::Serialize;

use crate::cli::bounds::quantities::{Quantity, show};
use crate::cli::common::positive;
use crate::cli::printer::Printer;

const EXAMPLES: &str = "\
Examples:
  compress-model bounds rademacher --kind reweighted --alpha 0.8,0.9,0.9 --beta 0.5 --state 1.2
  compress-model bounds rademacher --kind reweighted --layers 3 --alpha 0.9 --beta 0.5 --length 20 \\
      --correlation 1 --loss-max 1
  compress-model bounds rademacher --kind sista --layers 3 --alpha 0.8,0.9 --beta 0.5,0.3 --state 1.2
  compress-model bounds rademacher --kind fastrnn --alpha 0.9 --beta 0.7 --gate 0.02 --length 20
  compress-model bounds rademacher --kind spectral --frobenius 3,2,1 --spectral 1,0.9,1.2 --outputs 10

Numbers in --alpha and --beta by kind:
  reweighted   row-sum norms of W_l and U_l, one for each layer, or one for all --layers
  one-layer    row-sum norms of W and U; the state starts at 0
  l1-l1        row-sum norms of W_1, W_2; of U_1                 (one step)
  sista        row-sum norms of W_1, W_2; of U_1, U_2            (one step)
  fastrnn      Frobenius norms of W; of U
Equations are those of the reweighted l1-l1 paper; docs/theory.md has them, with its errors.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, allow_negative_numbers = true)]
pub(super) struct Arguments {
    /// The network.
    #[arg(long, value_enum)]
    kind: Kind,
    /// Norms of the weights from state to state (see below).
    #[arg(
        long,
        value_name = "A,..",
        value_delimiter = ',',
        required_if_eq_any(NORMED)
    )]
    alpha: Vec<f64>,
    /// Norms of the weights from input to state (see below).
    #[arg(
        long,
        value_name = "B,..",
        value_delimiter = ',',
        required_if_eq_any(NORMED)
    )]
    beta: Vec<f64>,
    /// Layers [default: as many as --alpha has; 3 for l1-l1 and sista].
    #[arg(long, value_name = "N", value_parser = positive)]
    layers: Option<usize>,
    /// Training sequences.
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 8000)]
    samples: usize,
    /// Numbers in an input of one step.
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 51)]
    measurements: usize,
    /// Numbers in the state.
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 1024)]
    hidden: usize,
    /// Steps of a sequence.
    #[arg(long, value_name = "L", value_parser = positive, default_value_t = 1)]
    length: usize,
    /// Size of the inputs: the root of the largest mean square of a coordinate at a step; for
    /// fastrnn and spectral the largest 2-norm of an input.
    #[arg(long, value_name = "B", default_value_t = 1.0)]
    input: f64,
    /// Size of the state before the first step, in the same way.
    #[arg(long, value_name = "B", default_value_t = 0.0)]
    state: f64,
    /// Row-sum norm of G: also show how far a step can drive two states apart.
    #[arg(long, value_name = "G")]
    correlation: Option<f64>,
    /// Of fastrnn: the gate alpha_f; beta_f is 1 - alpha_f.
    #[arg(long, value_name = "A", required_if_eq("kind", "fastrnn"))]
    gate: Option<f64>,
    /// Of spectral: Frobenius norms of W, U, Y.
    #[arg(
        long,
        value_name = "W,U,Y",
        value_delimiter = ',',
        required_if_eq("kind", "spectral")
    )]
    frobenius: Vec<f64>,
    /// Of spectral: largest singular values of W, U, Y.
    #[arg(
        long,
        value_name = "W,U,Y",
        value_delimiter = ',',
        required_if_eq("kind", "spectral")
    )]
    spectral: Vec<f64>,
    /// Of spectral: numbers in an output.
    #[arg(long, value_name = "N", value_parser = positive, default_value_t = 1)]
    outputs: usize,
    /// The largest loss of a sequence: also show the gap between risk and training loss.
    #[arg(long, value_name = "E")]
    loss_max: Option<f64>,
    /// The bounds on risk hold with probability 1 - D.
    #[arg(long, value_name = "D", default_value_t = 0.05)]
    confidence: f64,
}

/// Kinds that take --alpha and --beta.
const NORMED: [(&str, &str); 5] = [
    ("kind", "reweighted"),
    ("kind", "one-layer"),
    ("kind", "l1-l1"),
    ("kind", "sista"),
    ("kind", "fastrnn"),
];

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Kind {
    /// (15); with --length 1 (16).
    Reweighted,
    /// (56).
    OneLayer,
    /// (17).
    #[value(name = "l1-l1")]
    #[serde(rename = "l1-l1")]
    L1L1,
    /// (18).
    Sista,
    /// (52) and the corrected (53).
    #[value(name = "fastrnn")]
    #[serde(rename = "fastrnn")]
    FastRnn,
    /// (55), an order only.
    Spectral,
}

#[derive(Serialize)]
struct Document {
    kind: Kind,
    sizes: SequenceSizes,
    quantities: Vec<Quantity>,
    bounds: Vec<Bound>,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    arguments.check()?;
    let sizes = arguments.sizes();
    let mut quantities = Vec::new();
    let mut bounds = match arguments.kind {
        Kind::Reweighted | Kind::OneLayer => arguments.stack(&sizes, &mut quantities)?,
        Kind::L1L1 | Kind::Sista => vec![arguments.tied()?.one_step(&sizes, &arguments.signals())?],
        Kind::FastRnn => arguments.fast(&sizes, &mut quantities)?,
        Kind::Spectral => arguments.of_spectral(&sizes)?,
    };
    if let (Some(loss_max), Some(complexity)) = (arguments.loss_max, bounds.first()) {
        let confidence = arguments.confidence;
        let risk = Risk {
            loss_max,
            confidence,
        };
        bounds.push(risk.gap(complexity.value, sizes.samples)?);
    }
    let document = Document {
        kind: arguments.kind,
        sizes,
        quantities,
        bounds,
    };
    match printer.is_json() {
        true => printer.json(&document),
        false => show(&document.quantities, &document.bounds, printer),
    }
}

impl Arguments {
    /// An option that the kind does not use is an error.
    fn check(&self) -> anyhow::Result<()> {
        let (kind, stack) = (self.kind, [Kind::Reweighted, Kind::OneLayer]);
        let starts = [Kind::Reweighted, Kind::L1L1, Kind::Sista];
        let unused = [
            ("--state", self.state != 0.0 && !starts.contains(&kind)),
            (
                "--correlation",
                self.correlation.is_some() && !stack.contains(&kind),
            ),
            ("--gate", self.gate.is_some() && kind != Kind::FastRnn),
        ];
        if let Some((name, _)) = unused.iter().find(|(_, unused)| *unused) {
            bail!("{name} plays no part in this --kind, expected it left out");
        }
        Ok(())
    }

    fn sizes(&self) -> SequenceSizes {
        SequenceSizes {
            samples: self.samples,
            measurements: self.measurements,
            hidden: self.hidden,
            length: self.length,
        }
    }

    fn signals(&self) -> Signals {
        Signals {
            input: self.input,
            state: self.state,
        }
    }

    fn stack(
        &self,
        sizes: &SequenceSizes,
        shown: &mut Vec<Quantity>,
    ) -> anyhow::Result<Vec<Bound>> {
        let given = self.alpha.len().max(self.beta.len());
        let layers = self.layers.unwrap_or(given);
        let norms = LayerNorms::new(
            each("--alpha", &self.alpha, layers)?,
            each("--beta", &self.beta, layers)?,
        )?;
        shown.push(quantity("Lambda_0", "gain of a step", norms.step_gain()));
        shown.push(quantity(
            "sum beta_l Lambda_l",
            "gain of the inputs",
            norms.input_gain(),
        ));
        if let Some(correlation) = self.correlation {
            let joint = norms.contraction(correlation)?;
            shown.push(quantity(
                "max(Lambda_0, G)",
                "joint contraction of a step",
                joint,
            ));
        }
        Ok(vec![match self.kind {
            Kind::OneLayer => norms.one_layer(sizes, self.input)?,
            _ => norms.reweighted(sizes, &self.signals(), self.correlation)?,
        }])
    }

    fn tied(&self) -> anyhow::Result<Tied> {
        let inputs = if self.kind == Kind::Sista { 2 } else { 1 };
        counted("--alpha", &self.alpha, 2)?;
        counted("--beta", &self.beta, inputs)?;
        Ok(Tied {
            first: self.alpha[0],
            later: self.alpha[1],
            input: self.beta[0],
            skip: self.beta.get(1).copied().unwrap_or(0.0),
            layers: self.layers.unwrap_or(3),
        })
    }

    fn fast(&self, sizes: &SequenceSizes, shown: &mut Vec<Quantity>) -> anyhow::Result<Vec<Bound>> {
        counted("--alpha", &self.alpha, 1)?;
        counted("--beta", &self.beta, 1)?;
        let gate = self.gate.unwrap_or_default();
        let network = FastRnn {
            gate,
            keep: 1.0 - gate,
            recurrent: self.alpha[0],
            input: self.beta[0],
        };
        shown.push(quantity(
            "x = alpha_f (2 alpha_F - 1)",
            "growth of a step",
            network.excess(),
        ));
        Ok(vec![
            network.exponential(sizes, self.input)?,
            network.linear(sizes, self.input)?,
        ])
    }

    fn of_spectral(&self, sizes: &SequenceSizes) -> anyhow::Result<Vec<Bound>> {
        if self.loss_max.is_some() {
            bail!(
                "--loss-max with --kind spectral: (55) is an order, which (14) cannot start from"
            );
        }
        counted("--frobenius", &self.frobenius, 3)?;
        counted("--spectral", &self.spectral, 3)?;
        let three = |values: &[f64]| [values[0], values[1], values[2]];
        let network = SpectralRnn {
            frobenius: three(&self.frobenius),
            spectral: three(&self.spectral),
            outputs: self.outputs,
        };
        Ok(vec![network.order(sizes, self.input, self.confidence)?])
    }
}

fn quantity(name: &'static str, meaning: &'static str, value: f64) -> Quantity {
    Quantity {
        name,
        meaning,
        value,
    }
}

/// One number for each layer; a single one stands for all.
fn each(name: &str, values: &[f64], layers: usize) -> anyhow::Result<Vec<f64>> {
    match values {
        [one] => Ok(vec![*one; layers]),
        all => {
            counted(name, all, layers)?;
            Ok(all.to_vec())
        }
    }
}

fn counted(name: &str, values: &[f64], expected: usize) -> anyhow::Result<()> {
    if values.len() != expected {
        bail!(
            "{name} has {} numbers, expected {expected} (--help lists them)",
            values.len()
        );
    }
    Ok(())
}
