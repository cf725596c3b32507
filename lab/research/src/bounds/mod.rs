//! Bounds on how well a trained network generalises.
//!
//! Of recurrent networks bounds on the
//! Rademacher complexity ([`LayerNorms`], [`Tied`], [`FastRnn`], [`SpectralRnn`]), from numbers or
//! from trained weights ([`of_network`]); of shallow transformers the constants of a finite-time
//! analysis ([`FiniteTime`]).

mod error;
mod finite_time;
mod network;
mod rademacher;

pub use error::{BoundError, Caveat};
pub use finite_time::{FiniteTime, Radii, Smoothness};
pub use network::{
    NetworkBound, TrainingData, Weights, frobenius_norm, of_network, row_sum_norm, spectral_norm,
};
pub use rademacher::{
    Bound, FastRnn, LayerNorms, Risk, SequenceSizes, Signals, SpectralRnn, Tied, geometric,
};
