//! What a smaller model is stored in: a checkpoint of some number format, an image.

use hankelite::advanced::KeptLayer;
use hankelite::checkpoint::{Checkpoint, EncodedCheckpoint};
use hankelite::model::Model;
use hankelite::rounding::Storage;
use hankelite::stream::Image;
use hankelite::target::Size;
use hankelite_archive::{Dtype, write_whole};
use serde::Serialize;

use crate::cli::printer::Printer;
use crate::cli::reduce::arguments::{Arguments, FileDtype};
use crate::cli::report::percent;

/// The tensors of a checkpoint in a number format.
pub(super) fn stored(
    checkpoint: &Checkpoint,
    dtype: Option<FileDtype>,
) -> anyhow::Result<EncodedCheckpoint<'_>> {
    let encoded = checkpoint.encode()?;
    Ok(match dtype {
        None => encoded,
        Some(FileDtype::F32) => encoded.in_dtype(Dtype::F32)?,
        Some(FileDtype::Bf16) => encoded.in_dtype(Dtype::BF16)?,
        Some(FileDtype::F16) => encoded.in_dtype(Dtype::F16)?,
    })
}

/// An image that was written.
#[derive(Serialize)]
pub(super) struct WrittenImage {
    pub(super) path: String,
    pub(super) size: Size,
}

/// Writes the image of --image.
pub(super) fn write_image(
    arguments: &Arguments,
    model: &Model,
    storage: &Storage,
) -> anyhow::Result<Option<WrittenImage>> {
    let Some(path) = &arguments.target_ways.image else {
        return Ok(None);
    };
    let packed = Image::packed(model, storage)?;
    write_whole(path, packed.as_bytes())?;
    Ok(Some(WrittenImage {
        path: path.display().to_string(),
        size: Size::of(model, storage)?,
    }))
}

/// Layers that do not take the number format of the file.
pub(super) fn show_kept(kept: &[KeptLayer], printer: &Printer) {
    for kept in kept {
        let lost = match kept.change.is_finite() {
            true => format!("would change a system by {}", percent(kept.change)),
            false => "has no such numbers, or makes a mode that does not decay".to_string(),
        };
        let text = format!(
            "{}: its poles and residues are in {}; half precision {lost}. Load the file into a module in \
             that format",
            kept.layer, kept.dtype
        );
        printer.note("note", &text);
    }
}
