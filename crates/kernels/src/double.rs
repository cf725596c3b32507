//! Functions of double precision in arithmetic alone, so that loops over them run in vector lanes.
//!
//! The C library's take each number for itself.

/// e^x to 2 units of the last place; below e^−708 it stays there, above e^709 too.
///
/// x = n ln 2 + r with |r| ≤ (ln 2)/2, the series of e^r to r¹³/13!, and n added to the exponent.
#[inline(always)]
pub(crate) fn exp(x: f64) -> f64 {
    /// 1.5 · 2⁵²: a sum with it is rounded to a whole number, which its last bits hold.
    const MAGIC: f64 = 6_755_399_441_055_744.0;
    /// ln 2 in two parts, the first with zeros at its end.
    const LN2_HIGH: f64 = 6.931_471_803_691_238e-1;
    const LN2_LOW: f64 = 1.908_214_929_270_587_7e-10;
    let x = x.clamp(-708.0, 709.0);
    let shifted = x * std::f64::consts::LOG2_E + MAGIC;
    let n = shifted - MAGIC;
    let r = (x - n * LN2_HIGH) - n * LN2_LOW;
    let mut series = SERIES[0];
    for &coefficient in &SERIES[1..] {
        series = series * r + coefficient;
    }
    f64::from_bits(series.to_bits().wrapping_add(shifted.to_bits() << 52))
}

/// 1/13!, …, 1/1!, 1.
const SERIES: [f64; 14] = {
    let mut series = [1.0; 14];
    let (mut k, mut factorial) = (1, 1.0);
    while k < series.len() {
        factorial *= k as f64;
        series[series.len() - 1 - k] = 1.0 / factorial;
        k += 1;
    }
    series
};

/// 1/(1 + e^−x).
#[inline(always)]
pub(crate) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + exp(-x))
}

/// The normal distribution Φ(a) and its density φ(a), each with all digits in both tails.
///
/// Φ(−x√2) = erfc(x)/2, and (1 + 2x) e^{x²} erfc(x) of x ≥ 0 is a polynomial of (x − 3.75)/(x + 3.75),
/// to 3e-16.
///
/// # References
/// The variable is that of M. M. Shepherd, J. G. Laframboise, *Chebyshev approximation of
/// (1 + 2x) exp(x²) erfc x in 0 ≤ x < ∞*, Math. Comp. 36 (1981). The coefficients were computed with 50
/// digits, by interpolation in 64 Chebyshev points.
#[inline(always)]
pub(crate) fn normal(a: f64) -> (f64, f64) {
    const CENTRE: f64 = 3.75;
    let x = a.abs() * std::f64::consts::FRAC_1_SQRT_2;
    let t = (x - CENTRE) / (x + CENTRE);
    let mut scaled = SCALED_TAIL[SCALED_TAIL.len() - 1];
    for &coefficient in SCALED_TAIL[..SCALED_TAIL.len() - 1].iter().rev() {
        scaled = scaled * t + coefficient;
    }
    let decay = exp(-0.5 * a * a);
    let tail = 0.5 * scaled / (1.0 + 2.0 * x) * decay;
    let distribution = if a > 0.0 { 1.0 - tail } else { tail };
    (distribution, decay * DENSITY_AT_ZERO)
}

/// 1/√(2π).
pub(crate) const DENSITY_AT_ZERO: f64 = 0.398_942_280_401_432_7;

/// By powers of the variable, from the constant on.
#[allow(clippy::excessive_precision, reason = "as computed")]
const SCALED_TAIL: [f64; 23] = [
    1.23751263083782753,
    -0.140240598585545256,
    0.00358541548547902564,
    0.0822767384899950626,
    -0.108803930142444613,
    0.0923043211642812499,
    -0.0586933985766493384,
    0.0283622773721111388,
    -0.00974657968326526223,
    0.00175562616519706507,
    0.00029371437804495803,
    -0.000290155352460776553,
    0.0000516465297417741613,
    0.0000223875657149118166,
    -0.0000114380480333468936,
    -9.79262570730352203e-7,
    1.74198215862248159e-6,
    -5.0844653786873022e-8,
    -2.48571262480167429e-7,
    1.87908232237004813e-8,
    3.19792667166680429e-8,
    -1.95513588689856165e-9,
    -2.62310734713347576e-9,
];

#[cfg(test)]
mod tests {
    use super::*;

    fn close(found: f64, expected: f64, digits: f64, at: f64) {
        let error = (found - expected).abs();
        assert!(error <= digits * expected.abs(), "{at}: {found} {expected}");
    }

    #[test]
    fn exponentials_have_all_digits() {
        for i in -7_080_000..=7_090_000 {
            let x = f64::from(i) * 1e-4;
            close(exp(x), x.exp(), 6e-16, x);
        }
        assert_eq!((exp(0.0), exp(-0.0)), (1.0, 1.0));
        assert!(exp(-1e5) > 0.0 && exp(-1e5) < 1e-307 && exp(1e5).is_finite());
    }

    #[test]
    fn the_normal_distribution_has_all_digits_in_both_tails() {
        for i in -200_000..=200_000 {
            let a = f64::from(i) * 1e-4;
            let (distribution, density) = normal(a);
            let tail = 0.5 * libm::erfc(-a * std::f64::consts::FRAC_1_SQRT_2);
            // The argument's own rounding is magnified by a² in the reference.
            close(distribution, tail, 1e-15 + 4e-16 * a * a, a);
            let expected = (-0.5 * a * a).exp() * DENSITY_AT_ZERO;
            close(density, expected, 1e-15, a);
        }
        assert_eq!(normal(0.0).0, 0.5);
        assert_eq!(normal(50.0).0, 1.0);
    }

    #[test]
    fn sigmoids_have_all_digits() {
        for i in -70_000..=70_000 {
            let x = f64::from(i) * 1e-2;
            close(sigmoid(x), 1.0 / (1.0 + (-x).exp()), 1e-15, x);
        }
    }
}
