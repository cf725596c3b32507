//! The time base of a system.

use num_complex::Complex64;

use crate::linalg::{expm1, ln_1p};

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

/// ln((1 + z/2)/(1 − z/2)): the exponent times the step that a bilinear discretisation gives z = λΔ.
pub fn from_bilinear(z: Complex64) -> Complex64 {
    ln_1p(0.5 * z) - ln_1p(-0.5 * z)
}

/// The z whose bilinear discretisation has the pole eˣ: 2 tanh(x/2).
pub fn to_bilinear(x: Complex64) -> Complex64 {
    let shifted = expm1(x);
    2.0 * shifted / (shifted + 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bilinear_map_and_its_inverse_keep_small_arguments() {
        for z in [
            Complex64::new(-1e-14, 1e-9),
            Complex64::new(-0.3, 2.0),
            Complex64::new(-40.0, 300.0),
            Complex64::new(-3.0, 0.0),
        ] {
            let back = to_bilinear(from_bilinear(z));
            assert!((back - z).norm() < 1e-12 * z.norm(), "{z} {back}");
        }
    }
}
