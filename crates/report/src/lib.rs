//! Reports on state space models and what was made of them, as one HTML file for a browser.
//!
//! [`Plotted`] computes the curves of one model or two, [`Story`] puts them into words, and
//! [`page_html`] writes the file.

mod ink;
mod layers;
mod number;
mod packed;
mod page;
mod response;
mod story;

pub use ink::Ink;
pub use layers::{LayerSummary, Plotted, ReportError, used_poles};
pub use number::{grouped, percent, short};
pub use packed::{Levels, Packed};
pub use page::{
    Cell, ChannelPlots, ChartAxis, ChartLine, ChartSection, Fact, FrequencyPlot, LayerPlots,
    LineChart, Measure, Page, PageTable, SizeCurve, SizePoint, SpectrumPlot, page_html,
};
pub use story::{Accuracy, Footprint, Pair, Story};
