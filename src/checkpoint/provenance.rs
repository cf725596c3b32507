//! How a file came about.

use serde::{Deserialize, Serialize};

use crate::rounding::StorageChoice;

/// How a reduced checkpoint was made: stands in the metadata of the file that is written. It holds
/// no time and no place, so that the same command writes the same bytes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Provenance {
    /// The name of the file that was reduced, without its folder.
    pub source: String,
    /// The SHA-256 of that file, in hexadecimal digits; empty for a folder.
    pub source_sha256: String,
    /// In a few words.
    pub method: String,
    /// Stored states of each channel before, layer by layer.
    pub orders_before: Vec<usize>,
    /// The same now.
    pub orders: Vec<usize>,
    /// Where the calibration sequences came from, and by which seed. Absent without calibration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibration: Option<String>,
    /// The error of each layer's output for its own input with calibration, of its kernels over the
    /// first steps without, both relative.
    pub errors: Vec<f64>,
    /// Relative change of the logits, where it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logit_change: Option<f64>,
    /// Steps of the calibration sequences, where the network ran on them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub calibrated_steps: Option<usize>,
    /// Relative change of the logits of pairs of calibration sequences one after the other: of what
    /// is to be expected beyond `calibrated_steps`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub change_of_pairs: Option<f64>,
    /// Version of the program.
    pub version: String,
}

/// What a written file says of itself beside its tensors.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(super) struct Record {
    /// How the file came about, where it was reduced here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) provenance: Option<Provenance>,
    /// How its tensors are meant to be stored in an image.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) storage: Option<StorageChoice>,
}
