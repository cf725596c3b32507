//! The shallow multi-head transformer and the IndRNN of the finite-time analysis of gradient
//! descent: models of m units that do not see each other, with closed-form gradients in double
//! precision, and the numbers that the theory speaks of.
//!
//! ```text
//! f(X; φ) = m^(−1/2) Σ_i c_i h_i(X)
//! transformer:  h_i = act(U_iᵀ a_i),  a_i = X softmax(Xᵀ W_i q)
//! IndRNN:       h_i = h_{i,L},        h_{i,t} = act(U_iᵀ X_t + w_i h_{i,t−1}),  h_{i,0} = 0
//! ```
//!
//! [`descend`] trains either inside a [`UnitTrustRegion`]. [`kernel_blocks`] and [`empirical_kernel`]
//! are the tangent kernel, [`Linearised`] the network's first-order part at its start, and
//! [`Transport`] makes labels that the theory can reach. The bounds beside them are
//! [`crate::bounds::FiniteTime`].
//!
//! Random numbers come from seeds. Samples run on all cores, in groups that do not depend on their
//! number: the same call gives the same bytes.
//!
//! # References
//! Arda, Cayci and Eryilmaz, *Finite-time analysis of gradient descent for shallow transformers*.

mod activation;
mod batch;
mod descent;
mod indrnn;
mod kernel;
mod linear;
mod parameters;
mod region;
mod samples;
mod teacher;
mod transformer;
mod units;

pub use activation::Activation;
pub use batch::{loss, loss_gradient, mean_gradient, outputs};
pub use descent::{Descent, DescentRecord, Sampling, descend};
pub use indrnn::IndRnn;
pub use kernel::{Kernel, empirical_kernel, kernel_blocks};
pub use linear::{Boundary, Linearised, boundary_point, largest_difference};
pub use parameters::Parameters;
pub use region::UnitTrustRegion;
pub use samples::Samples;
pub use teacher::{Transport, TransportTeacher};
pub use transformer::{Query, Transformer, TransformerSize};
pub use units::{Features, Units};

/// Why a model, its samples or a descent cannot be formed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ShallowError {
    /// A symmetric start needs pairs of units.
    #[error("a symmetric start has {found} units, expected an even number above zero")]
    Units {
        /// Units requested.
        found: usize,
    },
    /// A size of zero.
    #[error("{what} is zero, expected at least one")]
    Empty {
        /// Which size.
        what: &'static str,
    },
    /// Numbers that do not fit together.
    #[error("{what}: {found}, expected {expected}")]
    Shape {
        /// What was counted.
        what: &'static str,
        /// How many there are.
        found: usize,
        /// How many there should be.
        expected: usize,
    },
    /// A number that is not finite, or out of its range.
    #[error("{what} is {found}, expected {expected}")]
    Range {
        /// Of what.
        what: &'static str,
        /// What was found.
        found: f64,
        /// The range.
        expected: &'static str,
    },
    /// Data without one number to answer for each sequence.
    #[error("the data hold {found}, expected sequences of numbers with one number as target")]
    Data {
        /// What the data hold.
        found: &'static str,
    },
}
