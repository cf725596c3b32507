//! Numbers, and vectors of them.

use core::ops::{Add, AddAssign, Div, Mul, Sub};

use bytemuck::Pod;

/// f32 or f64.
pub trait Real:
    Pod
    + Default
    + PartialOrd
    + Add<Output = Self>
    + Sub<Output = Self>
    + Mul<Output = Self>
    + Div<Output = Self>
    + AddAssign
{
    /// What is added to every input of a recurrence, so that no state decays into subnormal
    /// numbers, which many processors are slow at. Far below what the outputs can show.
    const TINY: Self;
    /// Whether inputs of integers are not rounded.
    const EXACT: bool;
    /// Bytes of one number: 4 or 8.
    const BYTES: u32;
    /// From f32, exactly.
    fn from_f32(value: f32) -> Self;
    /// From IEEE half precision, exactly.
    #[inline(always)]
    fn from_half(half: u16) -> Self {
        // The sign, then exponent and mantissa where f32 has them; the exponents differ by 112.
        let bits = (i32::from(half.cast_signed()) << 13) as u32 & 0x8fff_e000;
        Self::from_f32(f32::from_bits(bits) * f32::from_bits((112 + 127) << 23))
    }
    /// From the upper half of an f32, exactly.
    #[inline(always)]
    fn from_bf16(upper: u16) -> Self {
        Self::from_f32(f32::from_bits(u32::from(upper) << 16))
    }
    /// The numbers where they are of single precision: those are rounded to 8 bits before
    /// products with integers.
    fn singles(numbers: &[Self]) -> Option<&[f32]>;
    /// From f64, rounded.
    fn from_f64(value: f64) -> Self;
    /// To f64, exactly.
    fn to_f64(self) -> f64;
    /// √a.
    fn sqrt(self) -> Self;
    /// a Φ(a), with the exact normal distribution Φ.
    fn gelu(self) -> Self;
    /// a (1 + tanh z)/2 with z = √(2/π) (a + 0.044715 a³), which is a/(1 + e^{−2z}).
    #[inline(always)]
    fn gelu_tanh(self) -> Self {
        let twice = Self::from_f64(2.0 * SQRT_2_OVER_PI);
        let cubic = Self::from_f64(2.0 * SQRT_2_OVER_PI * 0.044_715);
        self * (self * (twice + cubic * (self * self))).sigmoid()
    }
    /// 1/(1 + e^{−a}).
    fn sigmoid(self) -> Self;
    /// 2^k, where k stands in the lowest bits: those of k + 1.5 · 2²³, in f64 of k + 1.5 · 2⁵².
    fn power_of_two(shifted: Self) -> Self;
    /// The activation of whole vectors of numbers.
    fn activate<U: Unit<Self>>(unit: U, activation: u8, numbers: &mut [Self]);
    /// gates ← values ∘ sigmoid(gates), for whole vectors of numbers.
    fn gate<U: Unit<Self>>(unit: U, gates: &mut [Self], values: &[Self]);
}

pub(crate) const SQRT_2_OVER_PI: f64 =
    core::f64::consts::FRAC_2_SQRT_PI * core::f64::consts::FRAC_1_SQRT_2;

/// Numbers that stand side by side in an image: sixteen channels, or sixteen rows of a matrix. A
/// full vector of f32 on the widest units, and a whole line of cache.
pub const LANES: usize = 16;

/// A vector unit: how many numbers one instruction takes, and the arithmetic on them.
///
/// [`crate::Plain`] takes one. Others are written where the features of the processor are known. All give
/// the same sums in the same order; a fused product rounds once, a plain one twice.
pub trait Unit<T: Real>: Copy {
    /// What one instruction works on.
    type Vector: Copy;
    /// The same processor with vectors whose width divides 8.
    type Eight: Unit<T>;
    /// The same processor with vectors whose width divides 4.
    type Four: Unit<T>;

    /// Numbers of a vector; divides [`LANES`].
    const WIDTH: usize;

    /// The narrower vectors.
    fn eight(self) -> Self::Eight;
    /// The narrowest vectors.
    fn four(self) -> Self::Four;
    /// The vectors that some numbers consist of; those that fill none are left out.
    fn vectors(numbers: &[T]) -> &[Self::Vector];
    /// The same, to be written.
    fn vectors_mut(numbers: &mut [T]) -> &mut [Self::Vector];
    /// The same number in every lane.
    fn splat(self, value: T) -> Self::Vector;
    /// a + b.
    fn add(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// a − b.
    fn sub(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// a b.
    fn mul(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// a b + c.
    fn mul_add(self, a: Self::Vector, b: Self::Vector, c: Self::Vector) -> Self::Vector;
    /// a / b.
    fn div(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// a where it is larger, else b.
    fn max(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// a where it is smaller, else b.
    fn min(self, a: Self::Vector, b: Self::Vector) -> Self::Vector;
    /// [`Real::power_of_two`].
    fn power_of_two(self, shifted: Self::Vector) -> Self::Vector;
    /// to ← the numbers of `from` at `places`, one for each of them.
    #[inline(always)]
    fn gather(self, from: &[T], places: &[u8], to: &mut [T]) {
        for (to, &place) in to.iter_mut().zip(places) {
            *to = from[usize::from(place)];
        }
    }
    /// The first numbers of IEEE half precision.
    fn halves(self, halves: &[u16]) -> Self::Vector;
    /// The first numbers whose upper halves as f32 these are.
    fn bf16s(self, uppers: &[u16]) -> Self::Vector;
    /// The first integers, rounded as f32.
    fn integers(self, integers: &[i32]) -> Self::Vector;
}
