//! How every tensor of a model is to be stored, without its numbers.

use serde::{Deserialize, Serialize};

use crate::rounding::{Entries, GROUP, Numbers};

/// How the entries of a map are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapChoice {
    /// Their kind.
    pub entries: Entries,
    /// Inputs that share a scale, for integers: a multiple of 16. Default 32.
    #[serde(default = "group")]
    pub group: usize,
}

fn group() -> usize {
    GROUP
}

impl MapChoice {
    /// Entries of a kind, with the default group.
    pub fn of(entries: Entries) -> Self {
        let group = GROUP;
        Self { entries, group }
    }
}

/// How one layer is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LayerChoice {
    /// The map between the channels; absent where there is none, or nothing is chosen.
    pub map: Option<MapChoice>,
    /// B and C of a system that all channels share; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub systems: Option<MapChoice>,
    /// Poles, residues, feedthroughs, norm and bias.
    pub numbers: Numbers,
}

/// How every tensor of a model is stored: what a [`Storage`](crate::rounding::Storage) is without
/// its numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct StorageChoice {
    /// The layers, first to last.
    pub layers: Vec<LayerChoice>,
    /// The encoder; absent where it is no linear map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub encoder: Option<MapChoice>,
    /// The head; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head: Option<MapChoice>,
    /// Biases of encoder and head, and the last norm.
    pub numbers: Numbers,
}
