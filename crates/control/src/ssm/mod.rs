//! What a system is: diagonal and dense state space systems in continuous and discrete time.

mod blocks;
mod dense;
mod diagonal;
mod gain;
mod side_by_side;
mod siso;
mod time;

pub(crate) use blocks::{RealBlock, block_input, block_output, real_blocks};
pub use dense::DenseSystem;
pub use diagonal::{DiagonalSystem, StableSystem, SystemError};
pub use gain::{DSS_EPSILON, dss_exp_gain, dss_softmax_gain, geometric_sum, undo_gain, zoh_gain};
pub use side_by_side::side_by_side;
pub use siso::Siso;
pub use time::{Time, from_bilinear, to_bilinear};
