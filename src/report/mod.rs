//! Pictures of plain numbers for the terminal. Nothing here knows what the numbers mean.

mod bars;

pub use bars::Bars;
pub use bars::log_bars;
