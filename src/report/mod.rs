//! Pictures of plain numbers, for the terminal and as SVG. Nothing here knows what the numbers mean.

mod bars;
#[cfg(feature = "cli")]
mod curves;

pub use bars::Bars;
pub use bars::log_bars;
#[cfg(feature = "cli")]
pub use curves::Captions;
#[cfg(feature = "cli")]
pub use curves::Curve;
#[cfg(feature = "cli")]
pub use curves::curves_svg;
#[cfg(feature = "cli")]
pub use curves::curves_with_errors_svg;
