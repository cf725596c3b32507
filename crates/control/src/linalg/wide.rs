//! Arithmetic with twice the digits of a double, for the few places where differences cancel.
//!
//! A number is an unevaluated sum of two doubles, 106 bits. An operation costs 10 to 20 flops, so
//! this is for O(n²) work beside an O(n³) factorisation, not for the factorisation.

use std::ops::{Add, Div, Mul, Neg, Sub};

use num_complex::Complex64;

/// hi + lo with |lo| ≤ ulp(hi)/2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Wide {
    hi: f64,
    lo: f64,
}

/// ln 2 and π/2 as sums of three doubles: a multiple of them is right to 106 bits and more.
const LN_2: [f64; 3] = [
    std::f64::consts::LN_2,
    2.319_046_813_846_299_6e-17,
    5.707_708_438_416_212e-34,
];
const HALF_PI: [f64; 3] = [
    std::f64::consts::FRAC_PI_2,
    6.123_233_995_736_766e-17,
    -1.497_384_904_859_169_8e-33,
];

/// Below this exponent eˣ counts as zero.
const EXPONENT_MIN: f64 = -745.0;

fn two_sum(a: f64, b: f64) -> Wide {
    let hi = a + b;
    let shadow = hi - a;
    let lo = (a - (hi - shadow)) + (b - shadow);
    Wide { hi, lo }
}

/// As [`two_sum`] for |a| ≥ |b|. An infinite or NaN sum keeps no remainder.
fn quick_two_sum(a: f64, b: f64) -> Wide {
    let hi = a + b;
    let lo = if hi.is_finite() { b - (hi - a) } else { 0.0 };
    Wide { hi, lo }
}

/// The exact product of two doubles (short of underflow).
pub(crate) fn two_product(a: f64, b: f64) -> Wide {
    let hi = a * b;
    let lo = if hi.is_finite() {
        a.mul_add(b, -hi)
    } else {
        0.0
    };
    Wide { hi, lo }
}

impl From<f64> for Wide {
    fn from(hi: f64) -> Self {
        Self { hi, lo: 0.0 }
    }
}

impl Add for Wide {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        let head = two_sum(self.hi, other.hi);
        let tail = two_sum(self.lo, other.lo);
        let sum = quick_two_sum(head.hi, head.lo + tail.hi);
        quick_two_sum(sum.hi, sum.lo + tail.lo)
    }
}

impl Neg for Wide {
    type Output = Self;
    fn neg(self) -> Self {
        Self {
            hi: -self.hi,
            lo: -self.lo,
        }
    }
}

impl Sub for Wide {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + (-other)
    }
}

impl Mul for Wide {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        let head = two_product(self.hi, other.hi);
        quick_two_sum(head.hi, head.lo + (self.hi * other.lo + self.lo * other.hi))
    }
}

impl Div for Wide {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        let first = self.hi / other.hi;
        let rest = self - other.scale(first);
        let second = rest.hi / other.hi;
        let rest = rest - other.scale(second);
        quick_two_sum(first, second) + Self::from(rest.hi / other.hi)
    }
}

impl Wide {
    const ZERO: Self = Self { hi: 0.0, lo: 0.0 };
    const ONE: Self = Self { hi: 1.0, lo: 0.0 };
    /// √½.
    pub(crate) const ROOT_HALF: Self = Self {
        hi: std::f64::consts::FRAC_1_SQRT_2,
        lo: -4.833_646_656_726_457e-17,
    };

    /// The nearest double.
    pub(crate) fn to_f64(self) -> f64 {
        self.hi + self.lo
    }

    /// The product with a double.
    pub(crate) fn scale(self, factor: f64) -> Self {
        let head = two_product(self.hi, factor);
        quick_two_sum(head.hi, head.lo + self.lo * factor)
    }

    /// √x, and 0 for a negative x.
    pub(crate) fn sqrt(self) -> Self {
        if self.hi <= 0.0 {
            return Self::ZERO;
        }
        let root = self.hi.sqrt();
        let rest = self - two_product(root, root);
        quick_two_sum(root, rest.hi / (2.0 * root))
    }

    /// eˣ, accurate relative to itself down to the smallest normal double.
    pub(crate) fn exp(self) -> Self {
        if self.hi < EXPONENT_MIN {
            return Self::ZERO;
        }
        let turns = (self.hi / LN_2[0]).round();
        let exp = reduced_expm1(minus_multiple(self, turns, LN_2)) + Self::ONE;
        // 2^1024 is no double, e^709 is one: two factors.
        let half = (0.5 * turns).floor();
        let power = |exponent: f64| 2.0_f64.powi(exponent as i32);
        exp.scale(power(half)).scale(power(turns - half))
    }

    /// eˣ − 1, accurate relative to itself.
    pub(crate) fn exp_m1(self) -> Self {
        if self.hi.abs() < 0.5 * LN_2[0] {
            reduced_expm1(self)
        } else {
            self.exp() - Self::ONE
        }
    }

    /// (sin x, cos x); right to about |x| 2⁻¹⁰⁵ for |x| up to 10⁷.
    pub(crate) fn sin_cos(self) -> (Self, Self) {
        let turns = (self.hi / HALF_PI[0]).round();
        let x = minus_multiple(self, turns, HALF_PI);
        let square = x * x;
        let (mut sine, mut cosine) = (Self::ZERO, Self::ZERO);
        for k in (1..=15).rev() {
            let n = f64::from(2 * k);
            cosine = (Self::ONE + cosine) * -square / Self::from(n * (n - 1.0));
            sine = (Self::ONE + sine) * -square / Self::from(n * (n + 1.0));
        }
        let (sine, cosine) = (x + x * sine, Self::ONE + cosine);
        match turns.rem_euclid(4.0) as u8 {
            0 => (sine, cosine),
            1 => (cosine, -sine),
            2 => (-sine, -cosine),
            _ => (-cosine, sine),
        }
    }
}

/// x − count · constant.
fn minus_multiple(x: Wide, count: f64, constant: [f64; 3]) -> Wide {
    constant
        .iter()
        .fold(x, |rest, &part| rest - two_product(count, part))
}

/// eˣ − 1 for |x| ≤ ln 2 / 2, by a series on x/16 and four doublings e(e + 2).
fn reduced_expm1(x: Wide) -> Wide {
    let x = x.scale(0.0625);
    let mut series = Wide::ZERO;
    for k in (2..=18).rev() {
        series = (Wide::ONE + series) * x / Wide::from(f64::from(k));
    }
    let mut e = x + x * series;
    for _ in 0..4 {
        e = e * (e + Wide::from(2.0));
    }
    e
}

/// A complex number of [`Wide`] parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct WideComplex {
    /// The real part.
    pub re: Wide,
    /// The imaginary part.
    pub im: Wide,
}

impl From<Complex64> for WideComplex {
    fn from(z: Complex64) -> Self {
        Self {
            re: Wide::from(z.re),
            im: Wide::from(z.im),
        }
    }
}

impl Add for WideComplex {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self {
            re: self.re + other.re,
            im: self.im + other.im,
        }
    }
}

impl Neg for WideComplex {
    type Output = Self;
    fn neg(self) -> Self {
        Self {
            re: -self.re,
            im: -self.im,
        }
    }
}

impl Sub for WideComplex {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        self + (-other)
    }
}

impl Mul for WideComplex {
    type Output = Self;
    fn mul(self, other: Self) -> Self {
        Self {
            re: self.re * other.re - self.im * other.im,
            im: self.re * other.im + self.im * other.re,
        }
    }
}

impl Div for WideComplex {
    type Output = Self;
    fn div(self, other: Self) -> Self {
        // Scaled by a power of two: the square of the modulus could leave the range.
        let scale = 1.0 / power_of_two_below(other.norm());
        let other = other.scale(scale);
        let square = other.re * other.re + other.im * other.im;
        let product = (self * other.conj()).scale(scale);
        Self {
            re: product.re / square,
            im: product.im / square,
        }
    }
}

impl WideComplex {
    /// Zero.
    pub(crate) const ZERO: Self = Self {
        re: Wide::ZERO,
        im: Wide::ZERO,
    };

    /// z Δ, exact for parts that are doubles (short of underflow).
    pub(crate) fn product(z: Complex64, step: f64) -> Self {
        Self {
            re: two_product(z.re, step),
            im: two_product(z.im, step),
        }
    }

    /// The conjugate.
    pub(crate) fn conj(self) -> Self {
        Self {
            re: self.re,
            im: -self.im,
        }
    }

    /// The modulus to double precision.
    pub(crate) fn norm(self) -> f64 {
        self.re.hi.hypot(self.im.hi)
    }

    /// Whether both parts are zero.
    pub(crate) fn is_zero(self) -> bool {
        self.re.hi == 0.0 && self.im.hi == 0.0
    }

    /// The product with a double.
    pub(crate) fn scale(self, factor: f64) -> Self {
        Self {
            re: self.re.scale(factor),
            im: self.im.scale(factor),
        }
    }

    /// The product with a real number.
    pub(crate) fn scale_wide(self, factor: Wide) -> Self {
        Self {
            re: self.re * factor,
            im: self.im * factor,
        }
    }

    /// |z|².
    pub(crate) fn norm_sqr(self) -> Wide {
        self.re * self.re + self.im * self.im
    }

    /// The nearest double in each part.
    pub(crate) fn to_c64(self) -> Complex64 {
        Complex64::new(self.re.to_f64(), self.im.to_f64())
    }

    /// e^z.
    pub(crate) fn exp(self) -> Self {
        let (re, im) = (self.re.exp(), self.im.sin_cos());
        Self {
            re: re * im.1,
            im: re * im.0,
        }
    }

    /// e^z − 1, accurate relative to its modulus.
    ///
    /// ```text
    /// Re = expm1(x) cos y − 2 sin²(y/2),   Im = eˣ sin y,   z = x + iy
    /// ```
    pub(crate) fn exp_m1(self) -> Self {
        let growth = self.re.exp_m1();
        let (half, half_cosine) = self.im.scale(0.5).sin_cos();
        let chord = (half * half).scale(2.0);
        let sine = (half * half_cosine).scale(2.0);
        Self {
            re: growth * (Wide::ONE - chord) - chord,
            im: self.re.exp() * sine,
        }
    }
}

/// The largest power of two not above x; the smallest normal double for a smaller x.
pub(crate) fn power_of_two_below(x: f64) -> f64 {
    const EXPONENT: u64 = 0x7fe0_0000_0000_0000;
    let x = x.clamp(f64::MIN_POSITIVE, f64::from_bits(EXPONENT));
    f64::from_bits(x.to_bits() & 0x7ff0_0000_0000_0000)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// |x − (hi + lo)| relative to the value, for a reference given as two doubles.
    fn error(x: Wide, (hi, lo): (f64, f64)) -> f64 {
        ((x.hi - hi) + (x.lo - lo)).abs() / hi.abs()
    }

    #[test]
    fn exponentials_have_thirty_digits() {
        // mpmath, 400 bits, as the sum of two doubles.
        let cases = [
            (1e-20, (1e-20, 5e-41)),
            (0.3, (0.3498588075760031, 1.6549155728191776e-17)),
            (-0.3, (-0.2591817793182821, -1.805530505953e-18)),
            (2.5, (11.182493960703473, 2.0334002173348147e-16)),
            (-2.5, (-0.9179150013761012, -4.64380980895493e-17)),
            (-40.0, (-1.0, 4.248354255291589e-18)),
            (300.0, (1.9424263952412558e130, 1.1143145370175699e114)),
        ];
        for (x, expected) in cases {
            let found = error(Wide::from(x).exp_m1(), expected);
            assert!(found < 2e-30, "{x}: {found:e}");
        }
        assert_eq!(Wide::from(-1e300).exp_m1(), -Wide::ONE);
    }

    #[test]
    fn sines_keep_their_digits_after_many_turns() {
        let cases = [
            (
                0.7,
                (0.644217687237691, 2.8740567927338755e-18),
                (0.7648421872844885, -4.013780434022238e-17),
            ),
            (
                3.0,
                (0.1411200080598672, 8.577269787017502e-18),
                (-0.9899924966004454, -4.2060261566099734e-17),
            ),
            (
                2900.0,
                (-0.30504029122420173, -1.544422358012208e-17),
                (-0.9523394461691977, 5.4329387313818755e-17),
            ),
            (
                -1234.5,
                (-0.14539565052293643, 1.0722076316516586e-17),
                (-0.989373592132422, 3.4382785047781725e-17),
            ),
        ];
        for (x, sine, cosine) in cases {
            let (found_sine, found_cosine) = Wide::from(x).sin_cos();
            assert!(error(found_sine, sine) < 1e-28, "{x}");
            assert!(error(found_cosine, cosine) < 1e-28, "{x}");
        }
        let (sine, _) = Wide::from(std::f64::consts::PI).sin_cos();
        assert!((sine.to_f64() / 1.2246467991473532e-16 - 1.0).abs() < 1e-15);
    }

    #[test]
    fn quotients_and_roots_give_their_number_back() {
        let z = WideComplex::product(Complex64::new(0.1, -3.7), 1.0 / 3.0);
        let w = WideComplex::product(Complex64::new(-1e-200, 2e-200), 0.7);
        let back = z / w * w;
        assert!((back - z).norm() < 1e-30);
        // Three terms of the quotient, the last of them beside a divisor far from one.
        let divisor = Wide::from(1e12) * Wide::from(0.7);
        let rest = (Wide::from(1.1) / divisor * divisor - Wide::from(1.1)).to_f64();
        assert!(rest.abs() < 1e-30, "{rest:e}");
        let root = Wide::from(2.0).sqrt();
        assert!((root * root - Wide::from(2.0)).to_f64().abs() < 1e-31);
        assert_eq!(power_of_two_below(0.3), 0.25);
        assert_eq!(power_of_two_below(0.0), f64::MIN_POSITIVE);
    }
}
