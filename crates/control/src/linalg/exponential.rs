//! e^z − 1 near zero, where most of the time of many sums over pairs of poles goes.

use std::f64::consts::{FRAC_2_PI, FRAC_PI_4};

use num_complex::Complex64;

/// |x| up to which the series of eˣ − 1 below holds.
const GROWTH_MAX: f64 = 0.125;

/// |y| up to which few turns are taken off an angle.
const ANGLE_MAX: f64 = 3.2;

/// π/2 as two parts, of which the first has 33 bits: its multiples up to the third are exact.
const HALF_PI: [f64; 2] = [1.570_796_326_734_125_6, 6.077_100_506_506_192e-11];

/// What is left of an angle below this has lost digits with those two.
const ANGLE_LEFT_MIN: f64 = 1e-6;

/// Added and taken off again it leaves a whole number.
const ROUNDING: f64 = 6_755_399_441_055_744.0;

/// e^z − 1 without cancellation for small z.
///
/// ```text
/// Re = expm1(x) − 2 eˣ sin²(y/2),   Im = 2 eˣ sin(y/2) cos(y/2),   z = x + iy
/// ```
///
/// The error is a few ulp of |e^z − 1|; the imaginary part alone is accurate to a few ulp of
/// itself, which matters for poles that are almost real.
pub(crate) fn expm1(z: Complex64) -> Complex64 {
    let (sin, cos) = sin_cos(0.5 * z.im);
    let growth = if z.re.abs() <= GROWTH_MAX {
        small_growth(z.re)
    } else {
        z.re.exp_m1()
    };
    // One function fewer where the sum keeps all digits.
    let size = if z.re > -1.0 {
        growth + 1.0
    } else {
        z.re.exp()
    };
    Complex64::new(growth - 2.0 * size * sin * sin, 2.0 * size * sin * cos)
}

/// eˣ − 1 by its series to x¹¹/11!, in pairs of terms that do not wait for one another.
#[inline]
fn small_growth(x: f64) -> f64 {
    let (square, fourth) = (x * x, x * x * (x * x));
    let pair = |low: f64, high: f64| 1.0 / low + x * (1.0 / high);
    let low = pair(2.0, 6.0) + square * pair(24.0, 120.0);
    let high = pair(720.0, 5040.0) + square * pair(40_320.0, 362_880.0);
    let high = high + fourth * pair(3_628_800.0, 39_916_800.0);
    x + square * (low + fourth * high)
}

/// As [`f64::sin_cos`], to an ulp; the library's function takes twice as long, most of it for the mode of
/// rounding.
#[inline]
fn sin_cos(y: f64) -> (f64, f64) {
    if y.abs() <= FRAC_PI_4 {
        return small_sin_cos(y);
    }
    if y.abs() > ANGLE_MAX || y.is_nan() {
        return y.sin_cos();
    }
    let quarters = (y * FRAC_2_PI + ROUNDING) - ROUNDING;
    let left = (y - quarters * HALF_PI[0]) - quarters * HALF_PI[1];
    if left.abs() < ANGLE_LEFT_MIN {
        return y.sin_cos();
    }
    let (sin, cos) = small_sin_cos(left);
    match quarters as i8 {
        0 => (sin, cos),
        1 => (cos, -sin),
        -1 => (-cos, sin),
        _ => (-sin, -cos),
    }
}

/// By the series to y¹⁷/17! and y¹⁶/16!, for |y| up to π/4 and a little above.
#[inline]
fn small_sin_cos(y: f64) -> (f64, f64) {
    let z = y * y;
    let (w, v) = (z * z, z * z * (z * z));
    let pair = |low: f64, high: f64| 1.0 / low - z * (1.0 / high);
    // 2!, 4!, ..., 16!
    let cosine = (pair(2.0, 24.0) + w * pair(720.0, 40_320.0))
        + v * (pair(3_628_800.0, 479_001_600.0) + w * pair(87_178_291_200.0, 20_922_789_888_000.0));
    // 3!, 5!, ..., 17!
    let sine = (pair(6.0, 120.0) + w * pair(5040.0, 362_880.0))
        + v * (pair(39_916_800.0, 6_227_020_800.0)
            + w * pair(1_307_674_368_000.0, 355_687_428_096_000.0));
    (y - y * z * sine, 1.0 - z * cosine)
}

#[cfg(test)]
mod tests {
    use std::f64::consts::{FRAC_PI_2, PI, TAU};

    use super::*;
    use crate::linalg::WideComplex;

    #[test]
    fn a_difference_to_one_is_right_to_a_few_ulp_in_every_branch() {
        let sizes = [
            1e-300, 1e-12, 1e-7, 1e-3, 0.03, 0.1249, 0.1251, 0.7, 3.0, 40.0,
        ];
        let angles = [
            0.0,
            1e-12,
            1e-5,
            0.02,
            0.7,
            FRAC_PI_2 - 1e-4,
            FRAC_PI_2 + 1e-4,
            3.1,
            PI,
            PI + 1e-5,
            4.7,
            4.713,
            6.2,
            TAU - 1e-9,
            6.3,
            6.41,
            50.0,
        ];
        for (x, y) in sizes.iter().flat_map(|x| angles.map(|y| (-x, y))) {
            for (x, y) in [(x, y), (x, -y), (-0.1 * x, y)] {
                let z = Complex64::new(x, y);
                let exact = WideComplex::from(z).exp_m1().to_c64();
                let error = expm1(z) - exact;
                assert!(
                    error.norm() <= 6e-16 * exact.norm(),
                    "{z}: {error} of {exact}"
                );
                assert!(
                    error.im.abs() <= 9e-16 * exact.im.abs(),
                    "{z}: {error} of {exact}"
                );
            }
        }
    }

    #[test]
    fn angles_of_all_quarters_are_right_to_an_ulp() {
        for k in -3200..=3200 {
            let y = f64::from(k) * 1e-3;
            let (sin, cos) = sin_cos(y);
            assert!((sin - y.sin()).abs() <= 2.3e-16 * y.sin().abs(), "{y}");
            assert!((cos - y.cos()).abs() <= 2.3e-16 * y.cos().abs(), "{y}");
        }
    }

    #[test]
    fn what_is_no_number_stays_none() {
        assert!(expm1(Complex64::new(-0.1, f64::NAN)).im.is_nan());
        assert!(expm1(Complex64::new(f64::NAN, 0.1)).re.is_nan());
        assert!(expm1(Complex64::new(-0.1, f64::INFINITY)).im.is_nan());
    }

    #[test]
    fn it_agrees_with_exp_away_from_zero() {
        for (re, im) in [(-0.5, 2.0), (-3.0, -40.0), (-700.0, 1.0), (0.1, 3.1)] {
            let z = Complex64::new(re, im);
            assert!((expm1(z) - (z.exp() - 1.0)).norm() < 4e-16 * (1.0 + z.exp().norm()));
            let nearly_real = expm1(Complex64::new(re, 1e-9 * im)).im;
            let expected = re.exp() * (1e-9 * im).sin();
            assert!((nearly_real - expected).abs() <= 1e-15 * expected.abs());
        }
    }
}
