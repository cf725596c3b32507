//! Numbers that say how well a trained layer or network may be expected to generalise.
//!
//! Of a state space layer the measure τ ([`layer_measure`]); of recurrent networks bounds on the
//! Rademacher complexity ([`LayerNorms`], [`Tied`], [`FastRnn`], [`SpectralRnn`]), from numbers or
//! from trained weights ([`of_network`]); of shallow transformers the constants of a finite-time
//! analysis ([`FiniteTime`]).

mod error;
mod finite_time;
mod measure;
mod network;
mod rademacher;

pub use error::BoundError;
pub use error::Caveat;
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
pub use network::NetworkBound;
pub use network::Training;
pub use network::Weights;
pub use network::frobenius_norm;
pub use network::of_network;
pub use network::row_sum_norm;
pub use network::spectral_norm;
pub use rademacher::Bound;
pub use rademacher::FastRnn;
pub use rademacher::LayerNorms;
pub use rademacher::Risk;
pub use rademacher::Signals;
pub use rademacher::Sizes;
pub use rademacher::SpectralRnn;
pub use rademacher::Tied;
pub use rademacher::geometric;

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
