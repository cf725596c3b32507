//! Differences of poles in continuous and discrete time.

use num_complex::Complex64;

use crate::linalg::expm1;
use crate::ssm::Time;

/// Where the poles live: the left half-plane, or the unit disc seen through exponents.
#[derive(Clone, Copy)]
pub(super) enum Plane {
    Half,
    Disc { step: f64 },
}

impl Plane {
    pub(super) fn of(time: Time) -> Self {
        match time {
            Time::Continuous => Plane::Half,
            Time::Discrete { step } => Plane::Disc { step },
        }
    }

    /// −(λ_i + λ_j), or 1 − a_i a_j.
    pub(super) fn sum_gap(self, x: Complex64, y: Complex64) -> Complex64 {
        match self {
            Plane::Half => -(x + y),
            Plane::Disc { step } => -stepped_expm1(x, y, step),
        }
    }

    /// λ_i − λ_j, or a_i − a_j, taken from the larger of the two so that nothing overflows.
    pub(super) fn difference(self, x: Complex64, y: Complex64) -> Complex64 {
        match self {
            Plane::Half => x - y,
            Plane::Disc { step } if x.re > y.re => -(x * step).exp() * stepped_expm1(y, -x, step),
            Plane::Disc { step } => (y * step).exp() * stepped_expm1(x, -y, step),
        }
    }

    /// −2 Re λ, or 1 − |a|²: |g|² over this is the diagonal entry of the Gramian.
    pub(super) fn decay(self, x: Complex64) -> f64 {
        match self {
            Plane::Half => -2.0 * x.re,
            Plane::Disc { step } => -(2.0 * x.re * step).exp_m1(),
        }
    }
}
/// Turns beyond this many radians per step lose digits in the plain product.
const LONG_TURN: f64 = 4.0;

/// e^{(x + y)Δ} − 1. Where the angle is many turns, what the rounded sum and product leave out
/// is put back to first order: an angle of thousands would lose four digits otherwise.
fn stepped_expm1(x: Complex64, y: Complex64, step: f64) -> Complex64 {
    let sum = x + y;
    let z = sum * step;
    if z.im.abs() < LONG_TURN {
        return expm1(z);
    }
    let shadow = sum.im - x.im;
    let left_out = (x.im - (sum.im - shadow)) + (y.im - shadow);
    let angle = sum.im.mul_add(step, -z.im) + left_out * step;
    expm1(z) + z.exp() * Complex64::new(0.0, angle)
}
