//! `compress-model export`.

use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::Args;
use hankelite::checkpoint::Checkpoint;
use hankelite_archive::{check_destination, write_whole};
use hankelite_onnx::{Exported, Form, Port, PortEntries};
use serde::Serialize;

use crate::cli::common::{Declarations, Input, grouped};
use crate::cli::folders::Folders;
use crate::cli::image::{LayOut, open_at_rate, require_network, storage_of};
use crate::cli::printer::Printer;
use crate::cli::report::hash_of;

const EXAMPLES: &str = "\
Examples:
  compress-model export small.pth --onnx step.onnx
  compress-model export small.pth --onnx small.onnx --sequence
  compress-model export small.pth --onnx step.onnx --mixing int4

The step takes a sample and the states of all layers, which are zero at first, and gives logits and
new states. `--sequence` takes all samples at once; layers in both directions need it. Maps of 8, 4
and 3 bits stay integers in the file, 3 bits as 4. docs/onnx.md shows how the file is run.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// The ONNX file to write.
    #[arg(long, value_name = "FILE")]
    onnx: PathBuf,
    /// Write the graph of a whole sequence in place of one step.
    #[arg(long)]
    sequence: bool,
    #[command(flatten)]
    folders: Folders,
    #[command(flatten)]
    lay_out: LayOut,
    #[command(flatten)]
    declarations: Declarations,
}

#[derive(Serialize)]
struct Document {
    checkpoint: String,
    onnx: String,
    bytes: usize,
    /// The version of ONNX's operators that a runtime has to know.
    opset: i64,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

/// What goes in or comes out.
#[derive(Serialize)]
struct Tensor {
    name: String,
    /// `float32` or `int64`.
    entries: &'static str,
    /// Numbers, `batch` and `time`.
    shape: Vec<String>,
}

impl Tensor {
    fn of(port: &Port) -> Self {
        Self {
            name: port.name.clone(),
            entries: match port.entries {
                PortEntries::Float32 => "float32",
                PortEntries::Int64 => "int64",
            },
            shape: port.shape.iter().map(ToString::to_string).collect(),
        }
    }

    fn shown(&self) -> String {
        format!("{} ({})", self.name, self.shape.join(", "))
    }
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let (input, output) = (&arguments.input.checkpoint, &arguments.onnx);
    arguments.folders.make([output])?;
    check_destination(output, &[input.as_path()])?;
    let checkpoint = open_at_rate(input, &arguments.lay_out, &arguments.declarations, printer)?;
    if !arguments.lay_out.beside.layers_only {
        require_network(input, &checkpoint)?;
    }
    let exported = exported(input, &checkpoint, arguments)?;
    write_whole(output, &exported.bytes)?;
    let document = Document {
        checkpoint: input.display().to_string(),
        onnx: output.display().to_string(),
        bytes: exported.bytes.len(),
        opset: exported.opset,
        inputs: exported.inputs.iter().map(Tensor::of).collect(),
        outputs: exported.outputs.iter().map(Tensor::of).collect(),
    };
    if printer.is_json() {
        return printer.json(&document);
    }
    let shown = |tensors: &[Tensor]| {
        let each: Vec<String> = tensors.iter().map(Tensor::shown).collect();
        each.join(", ")
    };
    printer.line(&format!(
        "{}: {} bytes, opset {}\ntakes {}\ngives {}",
        document.onnx,
        grouped(document.bytes),
        document.opset,
        shown(&document.inputs),
        shown(&document.outputs),
    ))
}

fn exported(
    input: &Path,
    checkpoint: &Checkpoint,
    arguments: &Arguments,
) -> anyhow::Result<Exported> {
    let storage = storage_of(checkpoint, &arguments.lay_out)?;
    let form = match arguments.sequence {
        true => Form::Sequence,
        false => Form::Step,
    };
    let metadata = metadata(input, checkpoint)?;
    let exported = hankelite_onnx::export(&checkpoint.model, &storage, form, &metadata);
    exported.with_context(|| input.display().to_string())
}

/// Where the numbers come from.
fn metadata(input: &Path, checkpoint: &Checkpoint) -> anyhow::Result<Vec<(String, String)>> {
    let name = input.file_name().unwrap_or(input.as_os_str());
    let mut entries = vec![("source", name.to_string_lossy().into_owned())];
    if input.is_file() {
        entries.push(("source_sha256", hash_of(input)?.1));
    }
    // The hash is that of what was read.
    checkpoint.require_in_place()?;
    if let Some(made) = checkpoint.provenance() {
        entries.push(("provenance", serde_json::to_string(made)?));
    }
    let entry = |(key, value)| (format!("hankelite.{key}"), value);
    Ok(entries.into_iter().map(entry).collect())
}
