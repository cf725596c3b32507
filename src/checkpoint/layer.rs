//! The layer families behind one face.

use crate::checkpoint::dss::Dss;
use crate::checkpoint::encoded::Encoded;
use crate::checkpoint::error::Fault;
use crate::checkpoint::s4d::S4d;
use crate::checkpoint::tensors::Tensors;
use crate::ssm::DiagonalSystem;

/// How the state space of one layer is laid out in the file.
#[derive(Debug, Clone)]
pub(super) enum LayerLayout {
    S4d(S4d),
    Dss(Dss),
}

impl LayerLayout {
    pub(super) fn family(&self) -> &'static str {
        match self {
            LayerLayout::S4d(_) => "S4D",
            LayerLayout::Dss(_) => "DSS",
        }
    }

    pub(super) fn decode(&self, tensors: &Tensors<'_>) -> Result<Vec<DiagonalSystem>, Fault> {
        match self {
            LayerLayout::S4d(layout) => layout.decode(tensors),
            LayerLayout::Dss(layout) => layout.decode(tensors),
        }
    }

    /// Tensors for systems that are not those of the file. The tensors of the file are at hand
    /// for what the layout keeps beside the systems, e.g. a second step.
    pub(super) fn encode(
        &self,
        systems: &[DiagonalSystem],
        tensors: &Tensors<'_>,
    ) -> Result<Vec<Encoded>, Fault> {
        match self {
            LayerLayout::S4d(layout) => layout.encode(systems),
            LayerLayout::Dss(layout) => layout.encode(systems, tensors),
        }
    }

    /// Tensors for systems that came from no file.
    pub(super) fn encode_new(&self, systems: &[DiagonalSystem]) -> Result<Vec<Encoded>, Fault> {
        match self {
            LayerLayout::S4d(layout) => layout.encode(systems),
            LayerLayout::Dss(layout) => layout.encode_new(systems),
        }
    }
}
