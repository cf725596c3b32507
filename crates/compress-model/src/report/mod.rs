//! Pictures of plain numbers, for the terminal and as SVG. Nothing here knows what the numbers mean.

mod bars;
mod curves;

pub use bars::{Bars, log_bars};
pub use curves::{Captions, Curve, curves_svg, curves_with_errors_svg};
