//! What a system is: diagonal and dense state space systems in continuous and discrete time.

mod blocks;
mod dense;
mod diagonal;
mod side_by_side;
mod time;

pub(crate) use blocks::{RealBlock, block_input, block_output, real_blocks};
pub use dense::DenseSystem;
pub use diagonal::{DiagonalSystem, StableSystem, SystemError, zoh_gain};
pub use side_by_side::side_by_side;
pub use time::{Time, from_bilinear, to_bilinear};
