//! What is told of a smaller model.

use hankelite::compress::LayerRecord;
use serde::Serialize;

/// What a size without data gives.
#[derive(Debug, Serialize)]
pub struct Preview {
    /// Of the file.
    pub parameters: usize,
    /// Weights and state of one stream in single precision.
    pub bytes: Option<usize>,
    /// (Σ ‖k − k_r‖²/Σ ‖k‖²)^{1/2} of the layer where it is largest.
    pub kernel_error: f64,
}

/// What was done.
#[derive(Debug, Clone, Serialize)]
pub struct Reduced {
    pub(crate) parameters_before: usize,
    /// Of the smaller file.
    pub parameters_after: usize,
    pub(crate) file_bytes: u64,
    /// Weights and state of one stream.
    pub(crate) bytes: Option<usize>,
    /// Whether these were asked for.
    #[serde(skip)]
    pub(crate) bytes_met: bool,
    /// Relative change of the logits of the calibration sequences; with a size of the whole model,
    /// of those that were held out.
    pub logit_change: Option<f64>,
    /// With labels, of sequences that did not calibrate.
    pub accuracy: Option<Accuracy>,
    /// One for each layer.
    pub layers: Vec<LayerRecord>,
}

/// Shares of right answers.
#[derive(Debug, Clone, Serialize)]
pub struct Accuracy {
    /// Sequences.
    pub scored: usize,
    /// Of the model as it came.
    pub full: f64,
    /// Of the smaller one.
    pub reduced: f64,
    /// Standard error of the difference.
    pub error: f64,
}
