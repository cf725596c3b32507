//! The time base of a system.

/// Continuous or discrete time. The discrete form keeps its step Δ, so that a layout which
/// stores continuous parameters can be written back.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Time {
    /// dx/dt = Λ x + B u.
    Continuous,
    /// x_k = e^{ΛΔ} x_{k−1} + B u_k.
    Discrete {
        /// The step Δ > 0.
        step: f64,
    },
}

impl Time {
    /// `continuous` or `discrete`.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Time::Continuous => "continuous",
            Time::Discrete { .. } => "discrete",
        }
    }
}
