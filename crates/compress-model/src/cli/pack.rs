//! `compress-model pack`.

use std::path::PathBuf;

use anyhow::bail;
use clap::Args;
use hankelite::stream::{ImageShares, Runner, c_header as header};
use hankelite_archive::{check_destination, write_whole};
use serde::Serialize;

use crate::cli::arduino;
use crate::cli::c_header;
use crate::cli::common::{Declarations, Input, grouped};
use crate::cli::folders::Folders;
use crate::cli::image::{LayOut, open_streamed};
use crate::cli::printer::Printer;

const EXAMPLES: &str = "\
Examples:
  compress-model pack small.pth --output small.edge
  compress-model pack small.pth --mixing int8 --output small.edge
  compress-model pack small.pth --mixing int4 --group 16 --numbers f16 --output small.edge
  compress-model pack small.pth --mixing int8 --c-header small.h
  compress-model pack small.pth --mixing int8 --arduino libraries/Small
  compress-model pack model-16k.pth --rate 16/8 --output model-8k.edge
  compress-model bench model.pth --against small.edge

An image holds what a step reads and nothing else, in the order of reading. `stream`, `bench` and
`evaluate --stream` take it in place of a checkpoint; a device runs it where it lies (docs/streaming.md).
Encoder, head and states stay f32.";

#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct Arguments {
    #[command(flatten)]
    input: Input,
    /// The image to write; may be left out with --c-header or --arduino.
    #[arg(long, short, value_name = "FILE", required_unless_present_any = ["c_header", "arduino"])]
    output: Option<PathBuf>,
    /// The image as C, with its sizes as macros: for the C runtime in the folder `device`.
    #[arg(long, value_name = "FILE.h", value_parser = c_header::place)]
    c_header: Option<PathBuf>,
    /// A new folder with a library for the Arduino tools: the image, the C runtime and a sketch.
    #[arg(long, value_name = "FOLDER", value_parser = arduino::place)]
    arduino: Option<PathBuf>,
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
    /// Absent where it was not requested.
    image: Option<String>,
    /// Absent where it was not requested.
    c_header: Option<String>,
    /// Absent where it was not requested.
    arduino: Option<String>,
    image_bytes: usize,
    state_bytes: usize,
    work_bytes: usize,
    /// Absent for what was an image before.
    shares: Option<ImageShares>,
}

impl Arguments {
    /// What to write: files, and a folder.
    fn places(&self) -> impl Iterator<Item = &PathBuf> {
        self.files().chain(&self.arduino)
    }

    fn files(&self) -> impl Iterator<Item = &PathBuf> {
        self.output.iter().chain(&self.c_header)
    }

    /// What would fail after the work.
    fn check(&self) -> anyhow::Result<()> {
        if let Some(output) = self.output.as_ref().filter(|output| c_header::is_c(output)) {
            let (output, header) = (output.display(), output.with_extension("h"));
            bail!(
                "{output}: --output writes an image, which is no C; --c-header {} writes it as C",
                header.display()
            );
        }
        self.folders.make(self.places())?;
        for file in self.files() {
            check_destination(file, &[self.input.checkpoint.as_path()])?;
        }
        if let Some(folder) = &self.arduino {
            arduino::check(folder, &self.input.checkpoint)?;
        }
        Ok(())
    }
}

pub(super) fn run(arguments: &Arguments, printer: &Printer) -> anyhow::Result<()> {
    let input = &arguments.input.checkpoint;
    arguments.check()?;
    let streamed = open_streamed(input, &arguments.lay_out, &arguments.declarations, printer)?;
    let runner = Runner::<f32>::from_image(streamed.image)?;
    if let Some(output) = &arguments.output {
        write_whole(output, runner.image().as_bytes())?;
    }
    let from = input.file_name().unwrap_or_default().to_string_lossy();
    if let Some(file) = &arguments.c_header {
        write_whole(file, header(file, &from, &runner))?;
    }
    if let Some(folder) = &arguments.arduino {
        arduino::write_library(folder, &from, &runner)?;
    }
    let shown = |file: &PathBuf| file.display().to_string();
    let document = Document {
        checkpoint: input.display().to_string(),
        image: arguments.output.as_ref().map(shown),
        c_header: arguments.c_header.as_ref().map(shown),
        arduino: arguments.arduino.as_ref().map(shown),
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
        arguments.places().map(shown).collect::<Vec<_>>().join(", "),
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
