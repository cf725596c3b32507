//! Other sequence models, trained on the same tasks by the same trainer, so that a reduced state
//! space model can be judged beside them.
//!
//! A [`Baseline`] is a body between maps: an optional trainable measurement S before it, and after
//! it the dictionary Q_D of a reconstruction or a head. Bodies of this file's neighbours are
//! stacked recurrent cells, where layer l feeds layer l + 1 at the same step, and networks unfolded
//! from sparse solvers.
//!
//! # References
//! Spec of the reweighted ℓ1-ℓ1 family: Le, Luong and Deligiannis, *A deep recurrent neural network
//! via unfolding reweighted ℓ1-ℓ1 minimization*. Arda, Cayci and Eryilmaz, *Finite-time analysis of
//! gradient descent for shallow transformers*.

mod architecture;
mod body;
mod file;
mod gates;
mod network;
mod orthogonal;
mod plain;
mod product;
mod recurrence;
mod stacked;

pub use architecture::BaselineArchitecture;
pub use architecture::BaselineKind;
pub use architecture::BaselineOutput;
pub use network::Baseline;
