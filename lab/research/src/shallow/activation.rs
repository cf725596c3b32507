//! Smooth bounded activations, and the exponential that they and the softmax take, eight units at a
//! time.
//!
//! Everything works on arrays that the compiler turns into vector instructions; there is no call
//! into a mathematical library, so a seed gives the same bytes on every machine.

use std::array::from_fn;

use crate::bounds::Smoothness;

/// Units that are worked on together.
pub(super) const LANES: usize = 8;

/// One number for each of eight units.
pub(super) type Lane = [f64; LANES];

/// What stands between the parts of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// tanh x.
    Tanh,
    /// 1/(1 + e^(−x)).
    Logistic,
}

impl Activation {
    /// The bounds a0, a1, a2 of the activation and its first two derivatives.
    pub fn smoothness(self) -> Smoothness {
        match self {
            Self::Tanh => Smoothness::TANH,
            Self::Logistic => Smoothness::LOGISTIC,
        }
    }

    /// act(x) and act'(x). From e^(−|x|), so that nothing overflows; the error is below 4·10⁻¹⁶,
    /// absolute.
    #[inline(always)]
    pub(super) fn value_and_slope(self, x: &Lane) -> (Lane, Lane) {
        match self {
            Self::Tanh => {
                let small = exp(&from_fn(|i| -2.0 * x[i].abs()));
                let share: Lane = from_fn(|i| 1.0 / (1.0 + small[i]));
                let value = from_fn(|i| ((1.0 - small[i]) * share[i]).copysign(x[i]));
                (value, from_fn(|i| 4.0 * small[i] * share[i] * share[i]))
            }
            Self::Logistic => {
                let small = exp(&from_fn(|i| -x[i].abs()));
                let share: Lane = from_fn(|i| 1.0 / (1.0 + small[i]));
                let value = |i: usize| {
                    if x[i] < 0.0 {
                        small[i] * share[i]
                    } else {
                        share[i]
                    }
                };
                (from_fn(value), from_fn(|i| small[i] * share[i] * share[i]))
            }
        }
    }
}

/// 1/ln 2.
const LOG2_E: f64 = std::f64::consts::LOG2_E;
/// ln 2 in two parts; the first has 32 trailing zero bits, so that its multiples are exact.
const LN2_HIGH: f64 = 0.693_147_180_369_123_8;
const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
/// 1.5·2⁵²: a number near zero added to it is rounded to a whole one.
const ROUND: f64 = 6_755_399_441_055_744.0;
/// Below, e^x is written as e^LEAST, which is 10⁻³⁰⁴.
const LEAST: f64 = -700.0;

/// 1/k!, k = 13 … 2.
const TAYLOR: [f64; 12] = [
    1.605_904_383_682_161_5e-10,
    2.087_675_698_786_81e-9,
    2.505_210_838_544_172e-8,
    2.755_731_922_398_589e-7,
    2.755_731_922_398_589e-6,
    2.480_158_730_158_73e-5,
    1.984_126_984_126_984e-4,
    1.388_888_888_888_889e-3,
    8.333_333_333_333_333e-3,
    4.166_666_666_666_666_4e-2,
    0.166_666_666_666_666_66,
    0.5,
];

/// e^x for x ≤ 0, to one unit in the last place down to x = −700: x = k ln 2 + r and the Taylor sum
/// of e^r, |r| ≤ ln 2/2, whose remainder is below 10⁻¹⁷.
#[inline(always)]
pub(super) fn exp(x: &Lane) -> Lane {
    from_fn(|i| {
        // In this order, so that what is no number stays none.
        let x = if x[i] < LEAST { LEAST } else { x[i] };
        let shifted = x * LOG2_E + ROUND;
        let k = shifted - ROUND;
        let r = (x - k * LN2_HIGH) - k * LN2_LOW;
        let mut sum = TAYLOR[0];
        for &term in &TAYLOR[1..] {
            sum = sum * r + term;
        }
        // e^r = 1 + (r + r² sum): the small part first.
        let sum = 1.0 + (r + r * r * sum);
        // The low bits of `shifted` hold k; they go to the exponent.
        let power = shifted.to_bits().wrapping_shl(52);
        f64::from_bits(sum.to_bits().wrapping_add(power))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponential_is_that_of_the_library_to_an_ulp() {
        for step in 0..70_000 {
            let x = -0.01 * f64::from(step) - 1e-3 * f64::from(step % 7);
            let (found, expected) = (exp(&[x; LANES])[3], libm::exp(x));
            let relative = (found - expected).abs() / expected;
            assert!(x < LEAST || relative < 2.3e-16, "{x}: {relative:e}");
        }
        assert_eq!(exp(&[0.0; LANES]), [1.0; LANES]);
        assert!(exp(&[-1e9; LANES])[0] < 1e-300);
    }

    #[test]
    fn activations_are_their_formulas_and_within_their_bounds() {
        for step in -4000..4000 {
            let x = 0.005 * f64::from(step);
            let logistic = 1.0 / (1.0 + libm::exp(-x));
            let tanh = libm::tanh(x);
            let pairs = [
                (Activation::Tanh, tanh, 1.0 - tanh * tanh),
                (Activation::Logistic, logistic, logistic * (1.0 - logistic)),
            ];
            for (activation, value, slope) in pairs {
                let (found, rise) = activation.value_and_slope(&[x; LANES]);
                assert!((found[1] - value).abs() < 4e-16, "{activation:?} at {x}");
                assert!((rise[1] - slope).abs() < 4e-16, "{activation:?} at {x}");
                let bounds = activation.smoothness();
                assert!(found[1].abs() <= bounds.value && rise[1] <= bounds.slope);
            }
        }
    }

    #[test]
    fn the_curvature_bound_is_reached_and_not_passed() {
        for activation in [Activation::Tanh, Activation::Logistic] {
            let slope = |x: f64| activation.value_and_slope(&[x; LANES]).1[0];
            let step = 1e-5;
            let curves = (0..30_000).map(|k| {
                let x = 1e-4 * f64::from(k);
                (slope(x + step) - slope(x - step)).abs() / (2.0 * step)
            });
            let largest = curves.fold(0.0, f64::max);
            let bound = activation.smoothness().curvature;
            assert!((largest / bound - 1.0).abs() < 1e-7, "{largest} {bound}");
        }
    }
}
