//! Numbers that say how well a trained layer or network may be expected to generalise.
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
    NetworkBound, Training, Weights, frobenius_norm, of_network, row_sum_norm, spectral_norm,
};
pub use rademacher::{
    Bound, FastRnn, LayerNorms, Risk, Signals, Sizes, SpectralRnn, Tied, geometric,
};
