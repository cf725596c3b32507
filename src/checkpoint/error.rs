//! What is wrong with a checkpoint, with the place and the numbers.

use std::path::PathBuf;

use hankelite_archive::ArchiveError;
use hankelite_control::SystemError;
use num_complex::Complex64;

use crate::model::ModelError;

/// Why a file was not read or not written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckpointError {
    /// The container itself: missing, truncated, of another format, not writable.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// The tensors inside do not make a model that can be read.
    #[error(transparent)]
    Content(ContentError),
}

/// What is wrong with the tensors of a file, or with a model that is to be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {fault}", path.display())]
pub struct ContentError {
    path: PathBuf,
    #[source]
    fault: Fault,
}

impl ContentError {
    /// The names of the sets of weights, where the file holds several and one is to be chosen.
    pub fn parts(&self) -> &[String] {
        match &self.fault {
            Fault::AllParts { parts } => parts,
            _ => &[],
        }
    }
}

impl CheckpointError {
    /// A way out, when one is known.
    pub fn hint(&self) -> Option<String> {
        match self {
            CheckpointError::Content(content) => content.fault.hint(),
            CheckpointError::Archive(ArchiveError::SeveralStateDicts { .. }) => {
                Some("--part NAME reads one of them".to_string())
            }
            CheckpointError::Archive(_) => None,
        }
    }
}

/// The same without the file.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    /// Reading or converting a tensor failed.
    #[error("{0}")]
    Archive(#[source] ArchiveError),
    /// A known kind of model that this version does not take.
    #[error("this is {what}, found by tensor `{tensor}`; {why}")]
    Unsupported {
        /// The kind of model.
        what: &'static str,
        /// The tensor that gives it away.
        tensor: String,
        /// Why it is refused.
        why: &'static str,
    },
    /// Filters in files of their own, of layers that have no such files.
    #[error(
        "layer `{layer}` ({family}) has no files of poles and residues, expected a filter of StripedHyena \
         in a numbered block (`blocks.0.filter`)"
    )]
    NoFilters {
        /// Its name.
        layer: String,
        /// The family of its layout.
        family: &'static str,
    },
    /// A network of this program without state space layers.
    #[error(
        "this is a network of `{layer}` layers, not of state space layers: it has no Gramians, \
         Hankel singular values or states, so there is nothing to inspect, reduce or stream"
    )]
    Baseline {
        /// Its layers.
        layer: String,
    },
    /// No set of weights of the file has the name that was asked for.
    #[error(
        "no set of weights is called `{part}`, expected {}",
        match parts.as_str() {
            "" => "no name: the file holds one set of weights".to_string(),
            parts => format!("one of {parts}"),
        }
    )]
    NoSuchPart {
        /// The name.
        part: String,
        /// Those that there are, with their bytes.
        parts: String,
    },
    /// Sets of weights that cannot be written back together.
    #[error(
        "the sets of weights ({}) are entries of their own, and a file that is written holds one of \
         them, expected one name",
        quoted(parts)
    )]
    AllParts {
        /// Their names.
        parts: Vec<String>,
    },
    /// Layers without a step Δ of a continuous system.
    #[error(
        "layer `{layer}` runs at one rate only: the layout {family} has no step of a continuous \
         system to change; expected S4D, S5 or DSS with a hold"
    )]
    OneRate {
        /// Its name.
        layer: String,
        /// The family of its layout.
        family: &'static str,
    },
    /// A factor of the steps that makes no step.
    #[error("steps times {factor}, expected a positive number")]
    StepFactor {
        /// The factor.
        factor: f64,
    },
    /// Nothing in the file is a known state space layer.
    #[error("no diagonal state space layer among {tensors} tensors (`{first}`, ...)")]
    NoLayer {
        /// Number of tensors.
        tensors: usize,
        /// The first name.
        first: String,
    },
    /// Nothing in the file is a layer as a person described it.
    #[error(
        "no layer has the tensors of the described layout ({}); {}",
        quoted(tensors),
        nearest(nearly)
    )]
    NoOwnLayer {
        /// The tensors of such a layer.
        tensors: Vec<String>,
        /// Places that have some of them, and which they lack.
        nearly: Vec<(String, Vec<String>)>,
    },
    /// A tensor is not there.
    #[error("tensor `{tensor}` is missing, expected {expected}")]
    Missing {
        /// Its full name.
        tensor: String,
        /// What it should hold.
        expected: String,
    },
    /// Tensors that no part of the model uses.
    #[error("{} tensors belong to no known part of the model: {}", tensors.len(), first_few(tensors))]
    Unconsumed {
        /// Their full names.
        tensors: Vec<String>,
    },
    /// A shape that disagrees with the others.
    #[error("tensor `{tensor}` has shape {found:?}, expected {expected}")]
    Shape {
        /// Its full name.
        tensor: String,
        /// The shape in the file.
        found: Vec<usize>,
        /// The shape that the other tensors ask for.
        expected: String,
    },
    /// A NaN or an infinity.
    #[error("tensor `{tensor}` holds {value} at flat index {index}, expected finite numbers")]
    NotFinite {
        /// Its full name.
        tensor: String,
        /// The value.
        value: f64,
        /// Index in row-major order.
        index: usize,
    },
    /// Layers of different families in one file.
    #[error(
        "layer `{first}` is {first_family}, layer `{other}` is {other_family}; expected one family"
    )]
    MixedFamilies {
        /// First layer.
        first: String,
        /// Its family.
        first_family: &'static str,
        /// A layer that differs.
        other: String,
        /// Its family.
        other_family: &'static str,
    },
    /// The file does not record it, and nobody declared it.
    #[error("the file does not record {what}, which {needed_for} needs")]
    Undeclared {
        /// What is missing.
        what: &'static str,
        /// Where it enters.
        needed_for: &'static str,
        /// How to declare it.
        hint: &'static str,
    },
    /// A declaration that contradicts the tensors.
    #[error("{declared} is declared, but tensor `{tensor}` contradicts it")]
    Contradiction {
        /// The declaration.
        declared: String,
        /// The tensor that contradicts it.
        tensor: String,
    },
    /// A channel whose numbers make no system.
    #[error("layer `{layer}`, channel {channel}: {source}")]
    System {
        /// The layer.
        layer: String,
        /// The channel.
        channel: usize,
        /// What is wrong.
        source: SystemError,
    },
    /// A mode without a direction.
    #[error(
        "layer `{layer}`, channel {channel}: a mode turns by {angle:.0e} radians in one step, expected \
         at most 4e13, of which double precision keeps some digits"
    )]
    NoPhase {
        /// The layer.
        layer: String,
        /// The channel.
        channel: usize,
        /// |Im λ| Δ.
        angle: f64,
    },
    /// A system that the layout cannot hold.
    #[error("layer `{layer}`, channel {channel}: pole {:.3e}{:+.3e}i cannot be written as {layout}: {why}", pole.re, pole.im)]
    NotRepresentable {
        /// The layout.
        layout: &'static str,
        /// The layer.
        layer: String,
        /// The channel.
        channel: usize,
        /// The exponent λ.
        pole: Complex64,
        /// What the layout lacks.
        why: &'static str,
    },
    /// Two directions of a layer that have grown apart.
    #[error(
        "layer `{layer}`, channel {channel}: its two directions have different poles, expected the \
         same, all that the layout holds"
    )]
    NotShared {
        /// The layer.
        layer: String,
        /// The channel.
        channel: usize,
    },
    /// Tensors that are one in the file and would be two.
    #[error(
        "tensors `{first}` and `{second}` share their numbers in the file, but the layers that they \
         belong to differ now; expected equal ones"
    )]
    Untied {
        /// One of them.
        first: String,
        /// Another one.
        second: String,
    },
    /// A layer in diagonal-plus-low-rank form that cannot be made diagonal.
    #[error("layer `{layer}`, channel {channel}, made diagonal: {source}")]
    Diagonalised {
        /// The layer.
        layer: String,
        /// The channel.
        channel: usize,
        /// What is wrong.
        source: hankelite_control::ControlError,
    },
    /// Diagonal systems in a layer that is not diagonal.
    #[error("layer `{layer}` is S4 in diagonal-plus-low-rank form, which is only read")]
    Diagonal {
        /// The layer.
        layer: String,
    },
    /// A feedthrough that changed, where the layout has no tensor for it.
    #[error(
        "layer `{layer}`: its feedthrough D changed, and no tensor `D` was found beside its kernel to write \
         it to; expected a change that keeps D, or a file that holds D"
    )]
    NoFeedthrough {
        /// The layer.
        layer: String,
    },
    /// A feedthrough between channels in a layout that has one number for each.
    #[error(
        "layer `{layer}`: the feedthrough has an entry at row {row}, column {column}; expected a \
         diagonal matrix, all that the layout holds"
    )]
    DenseFeedthrough {
        /// The layer.
        layer: String,
        /// Row of the entry.
        row: usize,
        /// Its column.
        column: usize,
    },
    /// Tensors of stacked layers that cannot be one.
    #[error(
        "tensor `{tensor}` is that of all layers, stacked; found {why}, expected one shape and format"
    )]
    Stacked {
        /// Its full name.
        tensor: String,
        /// What differs.
        why: String,
    },
    /// A number that the file's number format cannot hold.
    #[error("tensor `{tensor}` would hold {value:e}, which does not fit its dtype {dtype:?}")]
    Overflow {
        /// Its full name.
        tensor: String,
        /// The number.
        value: f64,
        /// The number format of the file.
        dtype: hankelite_archive::Dtype,
    },
    /// A length that no sequence has.
    #[error("the sequence length is {found}, expected 1 to {most}")]
    Length {
        /// The length declared.
        found: usize,
        /// The longest that is taken.
        most: usize,
    },
    /// Tensors that do not make a model.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// A file that was written cannot be read again, and was not kept.
    #[error("what was to be written cannot be read back: {source}")]
    NotReadable {
        /// What is wrong with it.
        source: Box<CheckpointError>,
    },
    /// Layers of different orders, one after the other, for a network that has one number for all.
    #[error("layers have {orders:?} states, and the configuration has one number for all")]
    SeveralOrders {
        /// The orders.
        orders: Vec<usize>,
    },
    /// A model with other blocks or channels than the file it is to be written after.
    #[error("the model has {found} {what}, the file it came from has {expected}")]
    OtherModel {
        /// `blocks` or `channels`.
        what: &'static str,
        /// Found in the model.
        found: usize,
        /// Found in the file.
        expected: usize,
    },
    /// Layers that run backwards in time too, as no layout written here holds them.
    #[error(
        "the model is bidirectional in a way that no layout written here holds; expected causal \
         layers, or all in both directions, backwards from the next step on, with poles that decay"
    )]
    Bidirectional,
    /// A normalisation before the head, for a layout without.
    #[error(
        "the model has a normalisation between its last layer and its head, which the S4Model of \
         example.py has not"
    )]
    FinalNorm,
    /// A model that lacks a part of the layout it is to be written in.
    #[error("the model has no {missing}, which the S4Model of example.py needs")]
    Incomplete {
        /// The part.
        missing: &'static str,
    },
    /// A sidecar or a metadata record that cannot be understood.
    #[error("the declarations in {place} cannot be read: {message}")]
    Declarations {
        /// The sidecar's path, or the metadata key.
        place: String,
        /// The parser's words.
        message: String,
    },
}

impl Fault {
    pub(super) fn at(self, path: &std::path::Path) -> CheckpointError {
        match self {
            // The container's errors name the file themselves.
            Fault::Archive(error) if error.names_file() => CheckpointError::Archive(error),
            fault => CheckpointError::Content(ContentError {
                path: path.to_path_buf(),
                fault,
            }),
        }
    }

    fn hint(&self) -> Option<String> {
        match self {
            Fault::Baseline { .. } => {
                Some("`evaluate` scores it, `pretrain` trains another one".to_string())
            }
            Fault::SeveralOrders { .. } => {
                Some("--order R, or --allocate model, gives all layers one number of states".to_string())
            }
            Fault::AllParts { parts } => {
                let each = parts.iter().map(|part| format!("--part {part}"));
                Some(format!(
                    "one command for each, with an output of its own: {}",
                    each.collect::<Vec<_>>().join(", ")
                ))
            }
            Fault::Undeclared { hint, .. } => Some((*hint).to_string()),
            Fault::NoLayer { .. } => Some(
                "layers are known by their tensor names, e.g. S4D (log_dt, log_A_real, A_imag, C), \
                 DSS (log_dt, Lambda or Lambda_log_neg_re, W), S5 (Lambda_re, B, C, log_step), LRU \
                 (nu_log, theta_log); docs/formats.md lists them all"
                    .to_string(),
            ),
            Fault::Unsupported { what, .. } if what.contains("DPLR") => Some(
                "--diagonalise R reads each channel as a diagonal system of R modes, with the error \
                 of its kernel stated"
                    .to_string(),
            ),
            Fault::Untied { .. } => Some(
                "a module that is applied twice has one reduction: reduce it without calibration, or \
                 save the state_dict with a copy of every tensor"
                    .to_string(),
            ),
            Fault::Unconsumed { .. } => Some(
                "a file is only rewritten when every tensor in it is understood; save the \
                 state_dict of the S4Model or of one layer alone"
                    .to_string(),
            ),
            _ => None,
        }
    }
}

impl From<ArchiveError> for Fault {
    fn from(error: ArchiveError) -> Self {
        Fault::Archive(error)
    }
}

fn quoted(names: &[String]) -> String {
    let quoted = names.iter().map(|name| format!("`{name}`"));
    quoted.collect::<Vec<_>>().join(", ")
}

/// Which places had some of the names of a layout, and which they lack.
fn nearest(nearly: &[(String, Vec<String>)]) -> String {
    let places = nearly.iter().map(|(place, lacking)| {
        let place = if place.is_empty() { "the top" } else { place };
        format!("`{place}` lacks {}", quoted(lacking))
    });
    match nearly {
        [] => "no tensor has one of these names".to_string(),
        _ => places.collect::<Vec<_>>().join("; "),
    }
}

fn first_few(names: &[String]) -> String {
    let shown: Vec<String> = names
        .iter()
        .take(5)
        .map(|name| format!("`{name}`"))
        .collect();
    let more = if names.len() > 5 { ", ..." } else { "" };
    format!("{}{more}", shown.join(", "))
}
