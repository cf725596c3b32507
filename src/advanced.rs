//! The steps of [`Reducer`](crate::Reducer), for code that combines them itself, as the trainer, the
//! Python package and the program do. Most users need only `Reducer` and the rooms.

// Rounding.
pub use crate::rounding::compensated::{CompensatedMap, MapMoments};
pub use crate::rounding::levels::Levels;
pub use crate::rounding::matrix::RoundedMatrix;
pub use crate::rounding::shared::SharedMaps;

// Files that are read in part, or layer by layer.
pub use crate::checkpoint::encoded_layer::KeptLayer;
pub use crate::checkpoint::layerwise::{Layerwise, Rewrite, read_layerwise};
pub use crate::checkpoint::reading::{read_dynamics, read_dynamics_of_files};

// Single layers and channels.
pub use crate::compress::calibrated::{CalibratedLayer, ErrorCurve, LayerErrors};
pub use crate::compress::distance::{KernelDistance, kernel_distance, kernel_norm};
pub use crate::compress::reduce::{reduce_layer, reduce_observed};

// The generalisation measure of a layer.
pub use crate::measure::{
    LayerMeasure, MeasureError, PsiGradient, StepStatistics, layer_measure, psi_gradient,
};

// Gradients of the logits, and the scale of inputs.
pub use crate::infer::adjoint::{OutputGradients, importance};
pub use crate::infer::norms::{InputScale, input_scale};

// Reductions to many sizes for the inputs of the layers.
pub use crate::calibrate::captured::Captured;
pub use crate::calibrate::longer::{Longer, change_beyond};
pub use crate::calibrate::reduction::{Calibrated, CalibratedReduction, CalibrationRun};
pub use crate::calibrate::rescale::{Rescaled, RescaledModel, rescale};
pub use crate::calibrate::settings::{Settings, WeightChoice};
pub use crate::calibrate::statistics::{input_statistics, layer_inputs};
pub use crate::calibrate::steps::step_statistics;

// The speed of memory.
pub use crate::stream::floor::read_nanoseconds;

// States and maps together.
pub use crate::target::build::{LogitChanges, Targeted};
pub use crate::target::menu::coarse_factor;
pub use crate::target::price::{stand_in, step_microseconds};
pub use crate::target::sizes::{HeldApart, Sizes, Smallest, held_apart};
