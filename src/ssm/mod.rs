//! What a system is: diagonal state space systems in continuous and discrete time.

mod diagonal;
mod time;

pub use diagonal::DiagonalSystem;
pub use diagonal::StableSystem;
pub use diagonal::SystemError;
pub(crate) use diagonal::zoh_gain;
pub use time::Time;
