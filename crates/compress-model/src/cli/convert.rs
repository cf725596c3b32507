//! `compress-model convert`.

use std::path::PathBuf;

use clap::Args;
use hankelite::advanced::kernel_distance;
use hankelite::checkpoint::Family;
use hankelite::model::Model;
use hankelite::write;
use hankelite_archive::{WeightSet, check_output};
use hankelite_control::side_by_side;
use serde::Serialize;

use crate::cli::common::{Declarations, Input, Word, open, short, word, words};
use crate::cli::folders::Folders;
use crate::cli::printer::Printer;

/// Steps over which kernels are compared, unless a length is declared.
const LENGTH: usize = 1024;

const EXAMPLES: &str = "\
Examples:
  compress-model convert model.ckpt model.safetensors --to s4d --dt-transform softplus
  compress-model convert dplr.pth diagonal.pth --to s4d --diagonalise 16 --dt-transform exp
  compress-model convert s4d.pth dss.pth --to dss-softmax --length 784

The systems are the same, in the tensors of another family; all other tensors are copied. Where a
family cannot hold a pole or the shape of a system, the command names it and why. The output maps
and normalisations around the layers are not rewritten, but for the last axis of width one that the
S4Model of example.py has in its S4D form.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// Where the converted checkpoint goes; .safetensors or .pth.
    #[arg(value_name = "OUT")]
    output: PathBuf,
    /// The family to convert to.
    #[arg(long, value_name = "LAYOUT", value_parser = words::<Family>(FAMILIES))]
    to: Family,
    #[command(flatten)]
    folders: Folders,
    #[command(flatten)]
    declarations: Declarations,
}

const FAMILIES: [Word; 10] = [
    word(
        "s4d",
        "Standalone S4D of state-spaces/s4 (models/s4/s4d.py)",
    ),
    word("s4v3", "Diagonal kernel of state-spaces/s4 v3 (disc=zoh)"),
    word(
        "s4v4",
        "Diagonal kernel of state-spaces/s4 v4 (disc=zoh, dt_transform=exp)",
    ),
    word("dss-exp", "DSS, version exp, with poles for every channel"),
    word(
        "dss-softmax",
        "DSS, version softmax, with poles for every channel",
    ),
    word("s5", "S5 (flax): all channels in one system"),
    word("lru", "LRU: all channels in one system"),
    word("mega", "Moving average of MEGA: real poles between 0 and 1"),
    word("stripedhyena", "Modal filters of StripedHyena and Evo 1"),
    word("evo2", "Modal filters of Evo 2: positive real poles"),
];

#[derive(Serialize)]
struct Document {
    checkpoint: String,
    output: String,
    from: &'static str,
    to: &'static str,
    kernel_length: usize,
    /// Largest relative difference of the kernels of any system.
    kernel_difference: f64,
    parameters: usize,
    parameters_before: usize,
    /// The sets of weights of the file, where there are several.
    parts: Vec<WeightSet>,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let path = &arguments.input.checkpoint;
    arguments.folders.make([&arguments.output])?;
    check_output(&arguments.output, &[path])?;
    let full = open(path, &arguments.declarations.declared(), printer)?;
    let converted = full.converted(arguments.to)?;
    drop(write(&converted, &arguments.output)?);
    let length = converted.declared().length.unwrap_or(LENGTH);
    let document = Document {
        checkpoint: path.display().to_string(),
        output: arguments.output.display().to_string(),
        from: full.family(),
        to: converted.family(),
        kernel_length: length,
        kernel_difference: difference(&full.model, &converted.model, length)?,
        parameters: converted.parameters()?,
        parameters_before: full.parameters()?,
        parts: full.weight_sets().to_vec(),
    };
    if printer.is_json() {
        return printer.json(&document);
    }
    let difference = format!(
        "kernels over {length} steps differ by {} of their norm at most",
        short(document.kernel_difference)
    );
    printer.heading(&format!(
        "{}: {} as {}; {difference}; parameters {} → {}",
        document.output,
        document.from,
        document.to,
        document.parameters_before,
        document.parameters
    ))
}

fn difference(full: &Model, converted: &Model, length: usize) -> anyhow::Result<f64> {
    let mut worst = 0.0f64;
    for (a, b) in full.blocks().iter().zip(converted.blocks()) {
        for (before, after) in [(a.systems(), b.systems()), (a.backward(), b.backward())] {
            let joined = match (before.len(), after.len()) {
                (many, 1) if many > 1 => vec![side_by_side(before)?],
                _ => before.to_vec(),
            };
            for (before, after) in joined.iter().zip(after) {
                worst = worst.max(kernel_distance(before, after, length)?.relative());
            }
        }
    }
    Ok(worst)
}
