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

    /// A pole, with what differences need.
    pub(super) fn placed(self, node: Complex64) -> Placed {
        let power = match self {
            Plane::Half => Complex64::ONE,
            Plane::Disc { step } => (node * step).exp(),
        };
        Placed { node, power }
    }

    /// λ_i − λ_j, or a_i − a_j, taken from the larger of the two so that nothing overflows.
    pub(super) fn difference(self, x: Placed, y: Placed) -> Complex64 {
        match self {
            Plane::Half => x.node - y.node,
            Plane::Disc { step } if x.node.re > y.node.re => {
                -x.power * stepped_expm1(y.node, -x.node, step)
            }
            Plane::Disc { step } => y.power * stepped_expm1(x.node, -y.node, step),
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

/// A pole λ.
#[derive(Clone, Copy)]
pub(super) struct Placed {
    pub(super) node: Complex64,
    /// a = e^{λΔ}; 1 in continuous time.
    pub(super) power: Complex64,
}

impl Placed {
    pub(super) fn conj(self) -> Self {
        Self {
            node: self.node.conj(),
            power: self.power.conj(),
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::linalg::WideComplex;

    #[test]
    fn gaps_and_differences_are_right_after_many_turns() {
        let step = 0.37;
        let nodes = [
            (-0.1, 3.3),
            (-0.3, 21.7),
            (-1.3, -7777.7),
            (-2.0, 12345.6),
            (-0.2, 1e5 / 3.0),
        ];
        let nodes = nodes.map(|(re, im)| Complex64::new(re, im));
        let plane = Plane::of(Time::Discrete { step });
        let exact = |sum: WideComplex| sum.scale_wide(step.into()).exp_m1().to_c64();
        for &x in &nodes {
            for &y in &nodes {
                let [wide_x, wide_y] = [x, y].map(WideComplex::from);
                let expected = -exact(wide_x + wide_y);
                let found = plane.sum_gap(x, y);
                assert!(
                    (found - expected).norm() < 1e-15,
                    "{x} {y} {found} {expected}"
                );
                let expected = exact(wide_x) - exact(wide_y);
                // e^{zΔ} by itself is off by an ulp of the angle.
                let bound = 1e-15 + 1e-16 * step * x.im.abs().max(y.im.abs());
                let difference = |plane: Plane| plane.difference(plane.placed(x), plane.placed(y));
                assert!((difference(plane) - expected).norm() < bound, "{x} {y}");
                let continuous = Plane::of(Time::Continuous);
                assert_eq!(continuous.sum_gap(x, y), -(x + y));
                assert_eq!(difference(continuous), x - y);
            }
        }
    }

    #[test]
    fn a_difference_with_a_pole_that_is_gone_at_once_is_the_other_pole() {
        let plane = Plane::Disc { step: 1.0 };
        let (slow, gone) = (Complex64::new(-0.5, 0.3), Complex64::new(-3000.0, 0.0));
        let difference = |x, y| plane.difference(plane.placed(x), plane.placed(y));
        assert!((difference(slow, gone) - slow.exp()).norm() < 1e-15);
        assert!((difference(gone, slow) + slow.exp()).norm() < 1e-15);
    }

    #[test]
    fn decays_are_the_gaps_of_a_pole_with_its_own_conjugate() {
        for plane in [Plane::Half, Plane::Disc { step: 0.2 }] {
            for re in [-1e-12, -0.3, -40.0] {
                let x = Complex64::new(re, 1.7);
                let gap = plane.sum_gap(x, x.conj());
                assert!((gap / plane.decay(x) - 1.0).norm() < 1e-15);
            }
        }
    }
}
