//! Models that are streamed: checkpoints, and images that were packed before.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, bail};
use clap::Args;
use hankelite::checkpoint::{Checkpoint, Provenance};
use hankelite::model::Model;
use hankelite::rounding::{Entries, GROUP, Numbers, Storage, StorageChoice};
use hankelite::stream::Image;

use crate::cli::common::{Declarations, Word, open, positive, word, words};
use crate::cli::printer::Printer;
use crate::cli::quantities::above_zero;

/// How the entries of the maps between channels are stored.
pub(super) const MIXING: [Word; 6] = [
    word("full", "f32"),
    word("bf16", "bfloat16"),
    word("int8", "8-bit integers with a scale for each row and group"),
    word("int4", "4-bit integers, likewise"),
    word("int3", "3-bit integers, likewise"),
    word("int2", "2-bit integers, likewise: -3, -1, 1 and 3"),
];

/// How the numbers beside the maps are stored.
pub(super) const NUMBERS: [Word; 2] = [
    word("f32", "Single precision"),
    word(
        "f16",
        "Half precision; poles and residues times a power of two",
    ),
];

/// How a checkpoint is laid out. Of an image nothing can be chosen any more.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct LayOut {
    /// How the maps between channels are stored, and B and C of layers whose channels share modes (S5,
    /// LRU) [default: as recorded in the checkpoint for each map, else full].
    #[arg(long, value_parser = words::<Entries>(MIXING))]
    pub(super) mixing: Option<Entries>,
    /// For signals of another rate: every step Δ of the layers times R. A model of 16 kHz runs at
    /// 8 kHz with --rate 16/8.
    #[arg(long, value_name = "R", value_parser = above_zero)]
    pub(super) rate: Option<f64>,
    #[command(flatten)]
    pub(super) beside: Beside,
}

/// What is chosen beside the maps.
#[derive(Debug, Clone, Default, Args)]
pub(super) struct Beside {
    /// How poles, residues, feedthroughs, norms and biases are stored [default: as recorded in the
    /// checkpoint where --mixing is not given, else f32].
    #[arg(long, value_parser = words::<Numbers>(NUMBERS))]
    pub(super) numbers: Option<Numbers>,
    /// Inputs of a map that share a scale: a multiple of 16 [default: 32].
    #[arg(long, value_name = "N", value_parser = positive)]
    pub(super) group: Option<usize>,
    /// Run the layers of a network that the program does not know one after the other, without what
    /// stands between and around them.
    #[arg(long)]
    pub(super) layers_only: bool,
}

/// What a file gives to stream.
pub(super) struct Streamed {
    pub(super) image: Image,
    /// Absent for an image.
    pub(super) model: Option<Model>,
    /// Whether entries and numbers are those that an image or the record of a checkpoint names.
    pub(super) as_recorded: bool,
    /// How the checkpoint was reduced, where it says so.
    pub(super) made: Option<Provenance>,
}

/// Reads a checkpoint and lays it out, or takes an image as it is.
pub(super) fn open_streamed(
    path: &Path,
    lay_out: &LayOut,
    declarations: &Declarations,
    printer: &Printer,
) -> anyhow::Result<Streamed> {
    if is_image(path) {
        let beside = &lay_out.beside;
        if lay_out.mixing.is_some() || beside.numbers.is_some() || beside.group.is_some() {
            bail!(
                "{} is an image and keeps the entries and numbers it was packed with; --mixing, \
                 --numbers and --group need a checkpoint",
                path.display()
            );
        }
        if lay_out.rate.is_some() {
            bail!(
                "{} is an image and keeps the rate it was packed for; --rate needs a checkpoint",
                path.display()
            );
        }
        let bytes = std::fs::read(path).with_context(|| path.display().to_string())?;
        let image = Image::from_bytes(&bytes);
        return Ok(Streamed {
            image,
            model: None,
            as_recorded: true,
            made: None,
        });
    }
    let checkpoint = open_at_rate(path, lay_out, declarations, printer)?;
    if !lay_out.beside.layers_only {
        require_network(path, &checkpoint)?;
    }
    let made = checkpoint.provenance().cloned();
    let image = storage_of(&checkpoint, lay_out)
        .and_then(|storage| Ok(Image::packed(&checkpoint.model, &storage)?))
        .with_context(|| path.display().to_string())?;
    let as_recorded = recorded(&checkpoint, lay_out).is_some();
    if as_recorded {
        let text = "maps are stored as recorded in the checkpoint; --mixing full stores f32";
        printer.note("note", text);
    }
    let model = checkpoint.model;
    let systems = model.blocks().iter().flat_map(|block| block.systems());
    let growing = systems.flat_map(|system| system.unstable_modes()).count();
    if growing > 0 {
        let text = format!("{growing} modes do not decay: a long signal can grow without bound");
        printer.note("note", &text);
    }
    let model = Some(model);
    Ok(Streamed {
        image,
        model,
        as_recorded,
        made,
    })
}

/// Reads a checkpoint, for signals of the rate that the options say.
pub(super) fn open_at_rate(
    path: &Path,
    lay_out: &LayOut,
    declarations: &Declarations,
    printer: &Printer,
) -> anyhow::Result<Checkpoint> {
    let mut checkpoint = open(path, &declarations.declared(), printer)?;
    if let Some(rate) = lay_out.rate {
        checkpoint.model = checkpoint.model_with_steps_times(rate)?;
    }
    Ok(checkpoint)
}

/// The storage that is recorded in the checkpoint, where no option names another for the maps.
fn recorded<'a>(checkpoint: &'a Checkpoint, lay_out: &LayOut) -> Option<&'a StorageChoice> {
    let is_given = lay_out.mixing.is_some() || lay_out.beside.group.is_some();
    checkpoint.storage().filter(|_| !is_given)
}

/// How a checkpoint's tensors are stored: as it records, or as the options say.
pub(super) fn storage_of(checkpoint: &Checkpoint, lay_out: &LayOut) -> anyhow::Result<Storage> {
    let model = &checkpoint.model;
    let beside = &lay_out.beside;
    let mut storage = match recorded(checkpoint, lay_out) {
        Some(choice) => Storage::chosen(model, choice)?,
        None => {
            let entries = lay_out.mixing.unwrap_or_default();
            Storage::nearest(model, entries, beside.group.unwrap_or(GROUP))?
        }
    };
    if let Some(numbers) = beside.numbers {
        storage = storage.with_numbers(numbers);
    }
    Ok(storage)
}

/// Layers of a network that is not understood.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(super) struct LayersAlone(String);

impl LayersAlone {
    /// What can be done.
    pub(super) const HINT: &str = "docs/formats.md lists the networks that are understood; `stream`, \
        `bench` and `pack` with --layers-only run the layers one after the other, without encoder, \
        norms and head";
}

/// Refuses layers out of a network that is not understood: they do not run as if they were one.
pub(super) fn require_network(path: &Path, checkpoint: &Checkpoint) -> anyhow::Result<()> {
    const SHOWN: usize = 4;
    if !checkpoint.is_layers_alone() {
        return Ok(());
    }
    let names = checkpoint.carried();
    let shown = names.iter().take(SHOWN).map(|name| format!("`{name}`"));
    let shown: Vec<String> = shown.collect();
    let rest = match names.len() > SHOWN {
        true => " and others",
        false => "",
    };
    let found = match names {
        [] => "nothing stands around them".to_string(),
        [_] => format!("1 tensor is not understood: {}", shown.join(", ")),
        _ => format!(
            "{} tensors are not understood: {}{rest}",
            names.len(),
            shown.join(", ")
        ),
    };
    let path = path.display();
    bail!(LayersAlone(format!(
        "{path}: layers alone were read, expected a whole network; {found}"
    )))
}

/// Whether the file starts as an image does. A file that cannot be read is none; reading it as a
/// checkpoint reports what is wrong.
pub(super) fn is_image(path: &Path) -> bool {
    let mut start = [0; 4];
    let read = File::open(path).and_then(|mut file| file.read_exact(&mut start));
    read.is_ok() && Image::is_image(&start)
}
