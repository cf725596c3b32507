//! Other sequence models, trained on the same tasks by the same trainer, so that a reduced state
//! space model can be judged beside them.
//!
//! # References
//! Spec of the reweighted ℓ1-ℓ1 family: Le, Luong and Deligiannis, *A deep recurrent neural network
//! via unfolding reweighted ℓ1-ℓ1 minimization*. Arda, Cayci and Eryilmaz, *Finite-time analysis of
//! gradient descent for shallow transformers*.

#[allow(dead_code, reason = "the bodies follow")]
mod body;
