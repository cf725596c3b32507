//! Nonlinear functions in single precision, by the vector of any unit: the same formula everywhere.
//! One number at a time products and sums are rounded each, which the runtime in C repeats.

use crate::{Plain, Unit};

/// e^x for |x| ≤ 80, to two units in the last place, without a branch so that loops over it
/// become vector code.
#[inline(always)]
pub fn exp(x: f32) -> f32 {
    exp_of(Plain, x)
}

/// erf to 5e-7, as a quotient of polynomials.
///
/// # References
/// The coefficients of Eigen, `MathFunctionsImpl.h`, `generic_fast_erf_float`.
#[inline(always)]
pub fn erf(x: f32) -> f32 {
    erf_of(Plain, x)
}

/// a Φ(a), with the exact normal distribution Φ.
#[inline(always)]
pub(crate) fn gelu<U: Unit<f32>>(unit: U, a: U::Vector) -> U::Vector {
    let half = unit.splat(0.5);
    let erf = erf_of(
        unit,
        unit.mul(a, unit.splat(core::f32::consts::FRAC_1_SQRT_2)),
    );
    unit.mul(a, unit.mul_add(half, erf, half))
}

/// GELU by a tanh, of z = √(2/π) (a + 0.044715 a³): a/(1 + e^{−2z}). `factors` are those of 2z.
#[inline(always)]
pub(crate) fn gelu_tanh<U: Unit<f32>>(
    unit: U,
    a: U::Vector,
    [linear, cubic]: [f32; 2],
) -> U::Vector {
    let factor = unit.mul_add(unit.splat(cubic), unit.mul(a, a), unit.splat(linear));
    unit.mul(a, sigmoid(unit, unit.mul(a, factor)))
}

/// 1/(1 + e^{−a}).
#[inline(always)]
pub(crate) fn sigmoid<U: Unit<f32>>(unit: U, a: U::Vector) -> U::Vector {
    let one = unit.splat(1.0);
    let negative = clamp(unit, unit.mul(a, unit.splat(-1.0)), 80.0);
    unit.div(one, unit.add(one, exp_of(unit, negative)))
}

/// What lies beyond ±`limit` is brought there; what is no number stays so.
#[inline(always)]
fn clamp<U: Unit<f32>>(unit: U, x: U::Vector, limit: f32) -> U::Vector {
    unit.min(unit.splat(limit), unit.max(unit.splat(-limit), x))
}

/// x = k ln 2 + r with |r| ≤ ½ ln 2; e^r by its Taylor polynomial of degree 7, 2^k by the
/// exponent field. k is read off the low bits of x/ln 2 + 1.5·2²³.
#[inline(always)]
fn exp_of<U: Unit<f32>>(unit: U, x: U::Vector) -> U::Vector {
    const MAGIC: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let magic = unit.splat(MAGIC);
    let shifted = unit.mul_add(x, unit.splat(core::f32::consts::LOG2_E), magic);
    let k = unit.sub(shifted, magic);
    let r = unit.mul_add(k, unit.splat(-LN2_HIGH), x);
    let r = unit.mul_add(k, unit.splat(-LN2_LOW), r);
    let mut p = unit.splat(1.0 / 5040.0);
    for c in [
        1.0 / 720.0,
        1.0 / 120.0,
        1.0 / 24.0,
        1.0 / 6.0,
        0.5,
        1.0,
        1.0,
    ] {
        p = unit.mul_add(p, r, unit.splat(c));
    }
    unit.mul(p, unit.power_of_two(shifted))
}

#[inline(always)]
#[allow(clippy::excessive_precision, reason = "the coefficients as published")]
fn erf_of<U: Unit<f32>>(unit: U, x: U::Vector) -> U::Vector {
    let x = clamp(unit, x, 4.0);
    let square = unit.mul(x, x);
    let mut p = unit.splat(-2.726_142_258_013_06e-10);
    for c in [
        2.770_681_424_959_02e-08,
        -2.101_024_020_825_08e-06,
        -5.692_506_394_623_46e-05,
        -7.349_906_303_268_55e-04,
        -2.954_599_808_540_25e-03,
        -1.609_603_332_624_15e-02,
    ] {
        p = unit.mul_add(p, square, unit.splat(c));
    }
    let mut q = unit.splat(-1.456_607_184_649_96e-05);
    for c in [
        -2.133_740_552_789_05e-04,
        -1.682_826_974_382_03e-03,
        -7.373_329_167_204_68e-03,
        -1.426_473_905_141_89e-02,
    ] {
        q = unit.mul_add(q, square, unit.splat(c));
    }
    unit.div(unit.mul(x, p), q)
}
