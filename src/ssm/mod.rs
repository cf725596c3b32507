//! What a system is: diagonal and dense state space systems in continuous and discrete time.

mod blocks;
mod dense;
mod diagonal;
mod side_by_side;
mod time;

pub(crate) use blocks::RealBlock;
pub(crate) use blocks::block_input;
pub(crate) use blocks::block_output;
pub(crate) use blocks::real_blocks;

pub use dense::DenseSystem;
pub use diagonal::DiagonalSystem;
pub use diagonal::StableSystem;
pub use diagonal::SystemError;
pub(crate) use diagonal::zoh_gain;
pub use side_by_side::side_by_side;
pub use time::Time;
pub(crate) use time::from_bilinear;
pub(crate) use time::to_bilinear;
