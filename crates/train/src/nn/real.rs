//! The number types of the fast path: those of the kernels that are candle's, too.

use candle_core::WithDType;

/// f32 in training, f64 where gradients are checked.
pub(super) trait Real: hankelite_kernels::LaneReal + WithDType {}

impl Real for f32 {}
impl Real for f64 {}
