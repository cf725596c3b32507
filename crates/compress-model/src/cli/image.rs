//! Models that are streamed: checkpoints, and images that were packed before.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use clap::ValueEnum;
use hankelite::model::Model;
use hankelite::stream::{Entries, Image};

use crate::cli::common::{Declarations, open};
use crate::cli::printer::Printer;

/// How the entries of the maps between channels are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum Mixing {
    /// f32.
    Full,
    /// bfloat16.
    Bf16,
    /// 8-bit integers with a scale for each row.
    Int8,
}

impl Mixing {
    pub(super) fn entries(self) -> Entries {
        match self {
            Mixing::Full => Entries::Full,
            Mixing::Bf16 => Entries::Bf16,
            Mixing::Int8 => Entries::Int8,
        }
    }
}

/// What a file gives to stream.
pub(super) struct Streamed {
    pub(super) image: Image,
    /// Absent for an image.
    pub(super) model: Option<Model>,
}

/// Reads a checkpoint and lays it out, or takes an image as it is.
pub(super) fn open_streamed(
    path: &Path,
    mixing: Option<Mixing>,
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
    let entries = mixing.map_or(Entries::Full, Mixing::entries);
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
/// checkpoint says what is wrong.
fn is_image(path: &Path) -> bool {
    let mut start = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && Image::is_image(&start)
}
