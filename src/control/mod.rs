//! Hankel theory of diagonal systems: Gramian factors, Hankel singular values, reduction by
//! balanced truncation, residualisation, modes, H2-optimal refinement and finite horizons, and
//! the H2 and H∞ norms that measure it.
//!
//! Gramians of diagonal systems are Cauchy-like. They are never formed: their factors come
//! straight from poles and weights, and every small difference is taken before it is multiplied.
//! So each Hankel singular value is right relative to itself, and no factorisation can fail.

mod balance;
mod cauchy;
mod dense;
mod dense_weighted;
mod generators;
mod gramian;
mod h2_kernel;
mod h2_optimal;
mod hankel;
mod hankel_norm;
mod hinf;
mod horizon;
mod input;
mod metric;
mod modal;
mod modes;
mod norm;
mod plane;
mod quick;
mod realisation;
mod refine;
mod residualise;
mod response;
#[cfg(test)]
mod samples;
mod tangent;
mod unstable;
mod weighted;

pub use balance::Balanced;
pub use balance::Reduced;
pub use balance::balance;
pub use dense::DenseBalanced;
pub use dense::DenseGramians;
pub use dense::DenseReduced;
pub use dense::dense_balance;
pub use dense::dense_gramian_factors;
pub use dense::dense_gramians;
pub use dense::dense_h2_norm;
pub use dense::dense_hankel_values;
pub use dense::diagonalise;
pub use dense_weighted::dense_stochastic_balance;
pub use dense_weighted::dense_weighted_balance;
pub use gramian::GramianFactors;
pub use gramian::complex_gramian_factors;
pub use gramian::real_gramian_factors;
pub use h2_optimal::H2Refined;
pub use h2_optimal::h2_optimal;
pub use h2_optimal::h2_refine;
pub use hankel::HankelValues;
pub use hankel::hankel_values;
pub use hinf::HinfNorm;
pub use hinf::hinf_error;
pub use hinf::hinf_norm;
pub use horizon::HorizonBalanced;
pub use horizon::HorizonReduced;
pub use horizon::balance_over_horizon;
pub use input::InputStatistics;
pub use input::InputWeight;
pub use input::StatisticsError;
pub use input::lags_of;
pub use modal::ModalScore;
pub use modal::modal_scores;
pub use modal::modal_truncation;
pub use norm::h2_error;
pub use norm::h2_norm;
pub use realisation::Realisation;
pub use refine::Refined;
pub use refine::Refinement;
pub use refine::weighted_error;
pub use refine::weighted_norm;
pub use refine::weighted_refine;
pub use residualise::DcBalanced;
pub use residualise::balance_for_dc;
pub use residualise::dc_gain;
pub use tangent::output_slopes;
pub use tangent::residue_gram;
pub use tangent::with_moved_residues;
pub use unstable::HorizonMethod;
pub use unstable::OverHorizon;
pub use unstable::reduce_over_horizon;
pub use weighted::WeightedBalanced;
pub use weighted::balance_weighted;

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
    #[error("order {asked} is out of range, expected 1 to {most}")]
    Order {
        /// The order asked for.
        asked: usize,
        /// The number of modes.
        most: usize,
    },
}
