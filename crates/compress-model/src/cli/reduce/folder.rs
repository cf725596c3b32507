//! What a reduction changes in the folder of a model, beside its tensors.

use std::path::Path;

use hankelite::checkpoint::{Checkpoint, FolderChanges};
use hankelite::compress::LayerRecord;
use hankelite_archive::Container;

use crate::cli::printer::Printer;

/// What changes with the orders of the layers; `None` where the checkpoint is no folder.
pub(super) fn changes(
    checkpoint: &Checkpoint,
    layers: &[LayerRecord],
) -> anyhow::Result<Option<FolderChanges>> {
    let orders: Vec<usize> = layers.iter().map(|layer| layer.order).collect();
    Ok(checkpoint.folder_changes(&orders)?)
}

/// Numbers that were set, or that are left to the user where a file alone is written.
pub(super) fn show(
    changes: Option<&FolderChanges>,
    output: Option<&str>,
    printer: &Printer,
) -> anyhow::Result<()> {
    let Some(changes) = changes else {
        return Ok(());
    };
    let file = output.and_then(|output| Container::of_path(Path::new(output)));
    for number in &changes.numbers {
        let (key, before, after) = (&number.key, number.before, number.after);
        printer.line(&match file {
            None => format!("{}   {key} {before} → {after}", number.file),
            Some(_) => format!(
                "{} is not written beside a single file: its network needs {key} {after} in place of {before}",
                number.file
            ),
        })?;
    }
    for note in &changes.notes {
        printer.note("note", note);
    }
    if file.is_none() && !changes.left_out.is_empty() {
        let left_out = changes.left_out.join(", ");
        printer.note("note", &format!("not copied: {left_out}"));
    }
    Ok(())
}
