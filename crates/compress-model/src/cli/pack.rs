//! `compress-model pack`.

use std::path::PathBuf;

use clap::Args;
use hankelite::stream::{ImageShares, Runner};
use hankelite_archive::{check_destination, write_whole};
use serde::Serialize;

use crate::cli::common::{Declarations, Input, grouped};
use crate::cli::folders::Folders;
use crate::cli::image::{LayOut, open_streamed};
use crate::cli::printer::Printer;

const EXAMPLES: &str = "\
Examples:
  compress-model pack small.pth --output small.edge
  compress-model pack small.pth --mixing int8 --output small.edge
  compress-model pack small.pth --mixing int4 --group 16 --numbers f16 --output small.edge
  compress-model bench model.pth --against small.edge

An image holds what a step reads and nothing else, in the order of reading. `stream`, `bench` and
`evaluate --stream` take it in place of a checkpoint; a device runs it where it lies (docs/streaming.md).
Encoder, head and states stay f32.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// The image to write.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
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
    image: String,
    image_bytes: usize,
    state_bytes: usize,
    work_bytes: usize,
    /// Absent for what was an image before.
    shares: Option<ImageShares>,
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let input = &arguments.input.checkpoint;
    arguments.folders.make([&arguments.output])?;
    check_destination(&arguments.output, &[input.as_path()])?;
    let streamed = open_streamed(input, &arguments.lay_out, &arguments.declarations, printer)?;
    let runner = Runner::<f32>::from_image(streamed.image)?;
    write_whole(&arguments.output, runner.image().as_bytes())?;
    let document = Document {
        checkpoint: input.display().to_string(),
        image: arguments.output.display().to_string(),
        image_bytes: runner.weight_bytes(),
        state_bytes: runner.state_bytes(),
        work_bytes: runner.work_bytes(),
        shares: runner.image().shares().cloned(),
    };
    if printer.is_json() {
        return printer.json(&document);
    }
    printer.line(&format!(
        "{}: {} bytes; a stream needs {} bytes of state and {} to work in",
        document.image,
        grouped(document.image_bytes),
        grouped(document.state_bytes),
        grouped(document.work_bytes),
    ))?;
    let Some(shares) = &document.shares else {
        return Ok(());
    };
    let lanes: Vec<String> = shares.lanes.iter().map(usize::to_string).collect();
    printer.line(&format!(
        "systems {} bytes, maps {}, all else {}; channels side by side in each layer: {}",
        grouped(shares.systems),
        grouped(shares.maps),
        grouped(shares.rest),
        lanes.join(", "),
    ))
}
