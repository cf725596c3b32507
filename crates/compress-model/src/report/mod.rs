//! Pictures of plain numbers, for the terminal and as SVG. Nothing here computes what the numbers are of.

mod bars;
mod curves;
mod panels;
#[cfg(feature = "png")]
mod png;

pub use bars::{Bars, Spread, log_bars};
pub use curves::{Captions, Curve, curves_svg, curves_with_errors_svg};
pub use panels::{Mark, Panel, PanelAxis, panels_svg};
#[cfg(feature = "png")]
pub use png::{Fonts, PngError};
