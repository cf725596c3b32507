//! Other sequence models, trained on the same tasks by the same trainer, so that a reduced state
//! space model can be judged beside them.
//!
//! # References
//! Spec of the reweighted ℓ1-ℓ1 family: Le, Luong and Deligiannis, *A deep recurrent neural network
//! via unfolding reweighted ℓ1-ℓ1 minimization*. Arda, Cayci and Eryilmaz, *Finite-time analysis of
//! gradient descent for shallow transformers*.

#[allow(dead_code, reason = "the bodies follow")]
mod body;
mod dictionary;
mod prox;
mod sparse;
#[allow(dead_code, reason = "the network around it follows")]
mod unfolded;
mod unroll;
mod unroll_op;
mod unroll_plain;

pub use dictionary::dct_dictionary;
pub use dictionary::squared_norm;
pub use prox::Prox2Slopes;
pub use prox::prox2;
pub use prox::prox2_median;
pub use prox::prox2_slopes;
pub use prox::prox2_table;
pub use sparse::Iterations;
pub use sparse::Reweighting;
pub use sparse::SparseError;
pub use sparse::SparseProblem;
pub use sparse::SparseSequence;
pub use sparse::SparseSolver;
pub use unfolded::Formed;
pub use unfolded::FormedLayer;
