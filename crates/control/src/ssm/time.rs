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
///
/// Its real part is ½ ln(1 + 2 Re z/|1 − z/2|²): right relative to itself, however slow the mode.
pub fn from_bilinear(z: Complex64) -> Complex64 {
    let half = 0.5 * z;
    let decay = 0.5 * (2.0 * z.re / (1.0 - half).norm_sqr()).ln_1p();
    Complex64::new(decay, ln_1p(half).im - ln_1p(-half).im)
}

/// The z whose bilinear discretisation has the pole eˣ, a and b being the parts of x.
///
/// ```text
/// 2 tanh(x/2) = (sinh a + i sin b)/(sinh²(a/2) + cos²(b/2))
/// ```
pub fn to_bilinear(x: Complex64) -> Complex64 {
    if x.re.abs() > FAR {
        // Squares of the hyperbolic sine would overflow.
        let shifted = expm1(x);
        return 2.0 * shifted / (shifted + 2.0);
    }
    let below = (0.5 * x.re).sinh().powi(2) + (0.5 * x.im).cos().powi(2);
    Complex64::new(x.re.sinh(), x.im.sin()) / below
}

/// Decays beyond this leave nothing after a step.
const FAR: f64 = 40.0;

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
            Complex64::new(-1e-20, 9.3),
            Complex64::new(-1e-300, 0.2),
        ] {
            let x = from_bilinear(z);
            let back = to_bilinear(x);
            assert!((back - z).norm() < 1e-12 * z.norm(), "{z} {back}");
            // Decays by themselves, too.
            assert!((back.re / z.re - 1.0).abs() < 1e-12, "{z} {back}");
            let pole = (1.0 + 0.5 * z) / (1.0 - 0.5 * z);
            assert!((x.exp() - pole).norm() < 1e-15, "{z} {x}");
        }
    }
}
