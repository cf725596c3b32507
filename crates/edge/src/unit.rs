//! What one instruction works on.

use crate::Real;

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
