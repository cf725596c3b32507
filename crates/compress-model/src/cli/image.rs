//! Models that are streamed: checkpoints, and images that were packed before.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use hankelite::model::Model;
use hankelite::rounding::Entries;
use hankelite::stream::Image;

use crate::cli::common::{Declarations, Word, open, word};
use crate::cli::printer::Printer;

/// How the entries of the maps between channels are stored.
pub(super) const MIXING: [Word; 3] = [
    word("full", "f32"),
    word("bf16", "bfloat16"),
    word("int8", "8-bit integers with a scale for each row"),
];

/// What a file gives to stream.
pub(super) struct Streamed {
    pub(super) image: Image,
    /// Absent for an image.
    pub(super) model: Option<Model>,
}

/// Reads a checkpoint and lays it out, or takes an image as it is.
pub(super) fn open_streamed(
    path: &Path,
    mixing: Option<Entries>,
    declarations: &Declarations,
    printer: &Printer,
) -> anyhow::Result<Streamed> {
    if is_image(path) {
        if mixing.is_some() {
            bail!(
                "{} is an image and keeps the entries it was packed with; --mixing needs a checkpoint",
                path.display()
            );
        }
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        let image = Image::from_bytes(&bytes);
        return Ok(Streamed { image, model: None });
    }
    let checkpoint = open(path, &declarations.declared(), printer)?;
    let entries = mixing.unwrap_or_default();
    let image = Image::new(&checkpoint.model, entries);
    let image = image.with_context(|| path.display().to_string())?;
    let growing = checkpoint.model.blocks().iter().flat_map(|block| {
        let systems = block.systems().iter();
        systems.flat_map(|system| system.unstable_modes())
    });
    let growing = growing.count();
    if growing > 0 {
        let text = format!("{growing} modes do not decay: a long signal can grow without bound");
        printer.note("note", &text);
    }
    let model = Some(checkpoint.model);
    Ok(Streamed { image, model })
}

/// Whether the file starts as an image does. A file that cannot be read is none; reading it as a
/// checkpoint reports what is wrong.
fn is_image(path: &Path) -> bool {
    let mut start = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && Image::is_image(&start)
}
