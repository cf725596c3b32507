//! Pictures of plain numbers, for the terminal and as SVG, and reports as HTML. Nothing here
//! computes what the numbers are of.

mod bars;
mod curves;
mod packed;
mod page;
mod panels;
#[cfg(feature = "png")]
mod png;

pub use bars::{Bars, Spread, log_bars};
pub use curves::{Captions, Curve, curves_svg, curves_with_errors_svg};
pub use packed::{Levels, Packed};
pub use page::{
    Cell, ChannelPlots, ChartAxis, ChartLine, ChartSection, Fact, FrequencyPlot, LayerPlots,
    LineChart, Measure, Page, PageTable, SizeCurve, SizePoint, SpectrumPlot, page_html,
};
pub use panels::{Ink, Mark, Panel, PanelAxis, panels_svg};
#[cfg(feature = "png")]
pub use png::{Fonts, PngError};
