//! Numbers that say how well a trained layer may be expected to generalise.

mod finite_time;
mod measure;

pub use finite_time::FiniteTime;
pub use finite_time::Radii;
pub use finite_time::Smoothness;
pub use measure::LayerMeasure;
pub use measure::Psi;
pub use measure::StepStatistics;
pub use measure::filter_norm;
pub use measure::layer_measure;
pub use measure::psi;
pub use measure::psi_gradient;

use crate::ssm::SystemError;

/// Why a measure cannot be formed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum MeasureError {
    /// Statistics of other channels than the layer has.
    #[error("the statistics are of {found} channels, the layer has {expected}")]
    Channels {
        /// In the statistics.
        found: usize,
        /// In the layer.
        expected: usize,
    },
    /// Mean and deviation of different shapes, or numbers that are no statistics.
    #[error("the statistics {0}")]
    Statistics(&'static str),
    /// A channel whose kernel cannot be formed.
    #[error("channel {channel}: {source}")]
    Channel {
        /// Its index.
        channel: usize,
        /// What is wrong.
        source: SystemError,
    },
}
