//! A checkpoint in a web page: bytes in, spectra, smaller files and predictions out.
//!
//! [`Session`] does the work on any machine. Built for wasm32, the library exports what the page
//! calls.

mod cut;
mod given;
#[cfg(target_arch = "wasm32")]
mod page;
#[cfg(target_arch = "wasm32")]
mod page_file;
mod place;
mod play;
mod record;
mod report;
mod saved;

use std::collections::BTreeMap;

pub use cut::Request;
pub use given::{Known, Sample};
use hankelite::advanced::read_dynamics_of_files;
use hankelite::archive::ReadAt;
use hankelite::checkpoint::{Checkpoint, Provenance, read_files};
use hankelite::compress::{LayerSpectrum, TimeBase, inspect};
use hankelite::model::{Encoder, InputKind};
use hankelite::rounding::Storage;
use hankelite::target::Size;
use hankelite::{Declared, ProgressSink, Realisation, Suited};
pub use place::{File, InMemory, NewFile};
pub use play::Which;
pub use record::{Accuracy, Preview, Reduced};
pub use report::Asked;
pub use saved::Download;
use serde::{Deserialize, Serialize};

use crate::given::Given;
use crate::play::Player;
use crate::saved::Made;

/// What goes wrong, in words for a person.
pub type Fault = Box<dyn std::error::Error>;

/// An opened checkpoint, the data beside it, and what was made of it.
pub struct Session {
    name: String,
    file: File,
    checkpoint: Checkpoint,
    reading: Reading,
    given: Option<Given>,
    made: Option<Made>,
    players: [Option<Player>; 2],
}

/// How much of a checkpoint is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Reading {
    /// All of it, so that it runs.
    Whole,
    /// The systems of its layers; everything else stays in the file until it is copied.
    Parts,
}

/// What the page shows first.
#[derive(Debug, Serialize)]
pub struct Opened<'a> {
    family: &'a str,
    parameters: usize,
    /// Weights and state of one stream in single precision; `None` for layers alone.
    bytes: Option<usize>,
    assumptions: &'a [String],
    notes: &'a [String],
    provenance: Option<&'a Provenance>,
    /// What was declared, or assumed in its place.
    declared: Declared,
    /// Numbers of a step, for a network of numbers.
    width: Option<usize>,
    /// Tokens that it knows, for one of tokens.
    vocabulary: Option<usize>,
    /// Why it does not run sample by sample; `None` where it does.
    not_streamed: Option<String>,
    layers: Vec<LayerSpectrum>,
}

/// What a person can declare of what no tensor records: the keys of [`Declared`], and the words of
/// each, or none for a number.
pub const CHOICES: [(&str, &[&str]); 13] = [
    ("norm", &["pre", "post"]),
    ("pooling", &["mean", "last"]),
    ("length", &[]),
    (
        "discretisation",
        &[
            "zoh", "bilinear", "dss", "im", "imex", "imex2", "ex", "dirac", "async",
        ],
    ),
    ("dss_version", &DSS_VERSIONS),
    ("dt_transform", &TRANSFORMS),
    ("real_transform", &TRANSFORMS),
    ("bandlimit", &[]),
    ("conj_sym", &["true", "false"]),
    ("clip_eigs", &["true", "false"]),
    ("half_gate", &["half-glu1", "half-glu2"]),
    ("gelu", &["exact", "tanh"]),
    ("diagonalise", &[]),
];

const TRANSFORMS: [&str; 5] = ["exp", "softplus", "none", "relu", "sigmoid"];
const DSS_VERSIONS: [&str; 6] = [
    "softmax",
    "exp",
    "exp-re-im",
    "exp-no-scale",
    "clip",
    "clip-no-scale",
];

impl Session {
    /// Reads a checkpoint of one file, or of several, one of which is their index.
    ///
    /// # Errors
    /// For several files without an index, and as [`read_files`].
    pub fn open(
        mut files: Vec<(String, File)>,
        declared: &Declared,
        reading: Reading,
    ) -> Result<Self, Fault> {
        let is_index = |(name, _): &(String, File)| name.ends_with(".index.json");
        let main = match files.len() {
            1 => 0,
            _ => files
                .iter()
                .position(is_index)
                .ok_or_else(|| unrelated(&files))?,
        };
        let (name, file) = files.swap_remove(main);
        let shared = |file: &File| Box::new(File::clone(file)) as Box<dyn ReadAt>;
        let beside: BTreeMap<_, _> = files
            .iter()
            .map(|(name, file)| (name.clone(), shared(file)))
            .collect();
        let checkpoint = match reading {
            Reading::Whole => read_files(&name, shared(&file), beside, declared)?,
            Reading::Parts => read_dynamics_of_files(&name, shared(&file), beside, declared)?,
        };
        Ok(Self {
            checkpoint,
            name,
            file,
            reading,
            given: None,
            made: None,
            players: [None, None],
        })
    }

    /// The spectra of all layers, and what is known of the file.
    ///
    /// # Errors
    /// As [`inspect`].
    pub fn inspect(&self, sink: &dyn ProgressSink) -> Result<Opened<'_>, Fault> {
        let known = &self.checkpoint;
        let time = Suited::to(known).time;
        let full = match self.reading {
            Reading::Whole => Size::of(&known.model, &Storage::single(&known.model)).ok(),
            Reading::Parts => None,
        };
        let takes = known.model.encoder().map(Encoder::takes);
        let (width, vocabulary) = match takes {
            Some(InputKind::Numbers { width }) => (Some(width), None),
            Some(InputKind::Tokens { vocabulary }) => (None, Some(vocabulary)),
            None => (None, None),
        };
        Ok(Opened {
            family: known.family(),
            parameters: known.parameters_of_file(),
            bytes: full.map(Size::total),
            assumptions: known.assumptions(),
            notes: known.notes(),
            provenance: known.provenance(),
            declared: known.declared(),
            width,
            vocabulary,
            not_streamed: self.player().err().map(|fault| fault.to_string()),
            layers: self.spectra(time, sink)?,
        })
    }

    fn spectra(
        &self,
        time: TimeBase,
        sink: &dyn ProgressSink,
    ) -> Result<Vec<LayerSpectrum>, Fault> {
        let known = &self.checkpoint;
        let spectra = inspect(&known.model, time, Realisation::Real, sink)?;
        let layers = spectra.into_iter().enumerate();
        let layers = layers.map(|(index, one)| Ok(one.with_steps(known.steps_of_modes(index)?)));
        layers.collect()
    }

    /// The network as it was opened.
    fn player(&self) -> Result<Player, Fault> {
        self.require_whole()?;
        Player::of(&self.checkpoint)
    }

    fn require_whole(&self) -> Result<(), Fault> {
        match self.reading {
            Reading::Whole => Ok(()),
            Reading::Parts => Err("of this file the systems alone were read".into()),
        }
    }
}

fn unrelated(files: &[(String, File)]) -> String {
    let names: Vec<&str> = files.iter().map(|(name, _)| name.as_str()).collect();
    let names = names.join(", ");
    match files.is_empty() {
        true => "no file was given".to_string(),
        false => format!(
            "{names}: several files without an index, expected one checkpoint, or the files of one \
             with its model.safetensors.index.json"
        ),
    }
}

/// What went wrong, with what lies behind it.
pub fn in_words(fault: &dyn std::error::Error) -> String {
    let mut said = fault.to_string();
    let mut behind = fault.source();
    while let Some(cause) = behind {
        let text = cause.to_string();
        if !said.contains(&text) {
            said = format!("{said}: {text}");
        }
        behind = cause.source();
    }
    said
}
