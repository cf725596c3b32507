//! What one instruction works on.

use crate::Real;

/// Numbers that stand side by side in an image: sixteen channels, or sixteen rows of a matrix. A
/// full vector of f32 on the widest units, and a whole line of cache.
pub const LANES: usize = 16;

/// A vector unit: how many numbers one instruction takes, and the arithmetic on them.
///
/// [`Plain`] takes one. Others are written by whoever may ask the processor what it has. All give
/// the same sums in the same order; a fused product rounds once, a plain one twice.
pub trait Unit<T: Real>: Copy {
    /// What one instruction works on; its width divides [`LANES`].
    type Vector: Copy;

    /// The vectors that sixteen lanes consist of.
    fn vectors(lanes: &[T; LANES]) -> &[Self::Vector];
    /// The same, to be written.
    fn vectors_mut(lanes: &mut [T; LANES]) -> &mut [Self::Vector];
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
}

/// One number at a time: any processor.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

impl<T: Real> Unit<T> for Plain {
    type Vector = T;

    #[inline(always)]
    fn vectors(lanes: &[T; LANES]) -> &[T] {
        lanes
    }
    #[inline(always)]
    fn vectors_mut(lanes: &mut [T; LANES]) -> &mut [T] {
        lanes
    }
    #[inline(always)]
    fn splat(self, value: T) -> T {
        value
    }
    #[inline(always)]
    fn add(self, a: T, b: T) -> T {
        a + b
    }
    #[inline(always)]
    fn sub(self, a: T, b: T) -> T {
        a - b
    }
    #[inline(always)]
    fn mul(self, a: T, b: T) -> T {
        a * b
    }
    #[inline(always)]
    fn mul_add(self, a: T, b: T, c: T) -> T {
        a * b + c
    }
}
