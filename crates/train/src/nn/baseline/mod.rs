//! Other sequence models, trained on the same tasks by the same trainer, so that a reduced state
//! space model can be judged beside them.
//!
//! A [`BaselineNetwork`] is a body between maps: an optional trainable measurement S before it, and after
//! it the dictionary Q_D of a reconstruction or a head. Bodies of this file's neighbours are
//! stacked recurrent cells, where layer l feeds layer l + 1 at the same step, networks unfolded
//! from sparse solvers, and one layer of attention.
//!
//! # References
//! Spec of the reweighted ℓ1-ℓ1 family: Le, Luong and Deligiannis, *A deep recurrent neural network
//! via unfolding reweighted ℓ1-ℓ1 minimization*. Arda, Cayci and Eryilmaz, *Finite-time analysis of
//! gradient descent for shallow transformers*.

mod architecture;
mod attend;
mod attention;
mod body;
mod dictionary;
mod file;
mod gates;
mod network;
mod orthogonal;
mod plain;
mod product;
mod prox;
mod recurrence;
mod sparse;
mod stacked;
mod steps;
mod unfolded;
mod unroll;
mod unroll_backward;
mod unroll_op;
mod unroll_plain;

pub use architecture::{BaselineArchitecture, BaselineKind, BaselineOutput};
pub use body::{Formed, FormedLayer, SingleLayer};
pub use dictionary::{dct_dictionary, squared_norm};
pub use network::BaselineNetwork;
pub use prox::{Prox2Slopes, prox2, prox2_median, prox2_slopes, prox2_table};
pub use sparse::{
    Iterations, Reweighting, SparseError, SparseProblem, SparseSequence, SparseSolver,
};
