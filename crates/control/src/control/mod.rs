//! Hankel theory, as the head of the crate describes it.

mod balance;
mod block;
mod cauchy;
mod dense;
mod dense_weighted;
mod factors;
mod formed;
mod generators;
mod gramian;
mod h2_kernel;
mod h2_optimal;
mod hankel;
mod hankel_norm;
mod hinf;
mod horizon;
mod in_class;
mod input;
mod metric;
mod mirrored;
mod modal;
mod modes;
mod norm;
mod parallel;
mod plane;
mod products;
mod quick;
mod real_poles;
mod realisation;
mod refine;
mod residualise;
mod response;
#[cfg(test)]
mod samples;
mod slow;
mod statistics;
mod tangent;
mod unstable;
mod weighted;

pub use balance::{Balanced, Reduced, balance};
pub use dense::{
    DenseBalanced, DenseGramians, DenseReduced, dense_balance, dense_gramian_factors,
    dense_gramians, dense_h2_norm, dense_hankel_values, diagonalise,
};
pub use dense_weighted::{dense_moment_balance, dense_stochastic_balance, dense_weighted_balance};
pub use factors::GramianFactors;
pub use gramian::{complex_gramian_factors, real_gramian_factors};
pub use h2_optimal::{H2Refined, h2_optimal, h2_refine};
pub use hankel::{HankelValues, hankel_values};
pub use hinf::{HinfNorm, hinf_error, hinf_norm};
pub use horizon::{HorizonBalanced, HorizonReduced, balance_over_horizon};
pub use in_class::{
    ClassInput, InClass, OscillatorPoles, SystemClass, WeightedInClass, h2_in_class,
    weighted_in_class,
};
pub use input::{InputWeight, lags_of};
pub use metric::{weighted_error, weighted_norm};
pub use modal::{ModalScore, modal_scores, modal_truncation};
pub use norm::{h2_error, h2_norm, kernel_square};
pub use parallel::in_parallel;
pub use real_poles::{RealPoles, h2_real_poles};
pub use realisation::Realisation;
pub use refine::{
    PartedChannel, Refined, Refinement, RefinementState, WeightedChannel, weighted_refine,
    weighted_residues,
};
pub use residualise::{DcBalanced, balance_for_dc, dc_gain};
pub use slow::{SlowParts, part_slow_modes};
pub use statistics::{InputStatistics, StatisticsError};
pub use tangent::{output_slopes, residue_gram, with_moved_residues};
pub use unstable::{HorizonMethod, OverHorizon, reduce_over_horizon};
pub use weighted::{WeightedBalanced, balance_weighted};

use crate::linalg::LinalgError;
use crate::ssm::SystemError;

/// What can go wrong in this room.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum ControlError {
    /// The system does not suit the function.
    #[error(transparent)]
    System(#[from] SystemError),
    /// A factorisation failed.
    #[error(transparent)]
    Linalg(#[from] LinalgError),
    /// Two systems that are to be compared have different time bases or steps.
    #[error("the two systems have different time bases or steps")]
    DifferentTime,
    /// A Hankel-norm approximation that rounding has moved off its optimum.
    #[error(
        "the Hankel norm of the error is {found:e} at order {order}, expected {expected:e}: \
         rounding spoilt the approximation; use balanced truncation, or another order"
    )]
    HankelNorm {
        /// The order of the approximation.
        order: usize,
        /// The Hankel norm of its error; NaN when the number of stable modes is wrong.
        found: f64,
        /// σ_{order+1}, the least possible.
        expected: f64,
    },
    /// An order of zero, or above the number of modes.
    #[error("order {requested} is out of range, expected 1 to {most}")]
    Order {
        /// The order requested.
        requested: usize,
        /// The number of modes.
        most: usize,
    },
}
