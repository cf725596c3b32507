//! The vectors of a processor and numbers of fewer bits as such.

use hankelite_edge::{LANES, Real};
use pulp::Simd;

/// Vectors, and narrower ones of the same processor.
pub(super) trait Machine: Simd {
    type Eight: Machine;
    type Four: Machine;

    fn eight(self) -> Self::Eight;
    fn four(self) -> Self::Four;

    /// The first numbers of half precision.
    #[inline(always)]
    fn halves(self, halves: &[u16]) -> Self::f32s {
        halves_of::<Self, f32>(self, halves)
    }
    /// The first numbers whose upper halves these are.
    #[inline(always)]
    fn bf16s(self, uppers: &[u16]) -> Self::f32s {
        bf16s_of::<Self, f32>(self, uppers)
    }
    /// The first integers as numbers.
    #[inline(always)]
    fn integers(self, integers: &[i32]) -> Self::f32s {
        integers_of::<Self, f32>(self, integers)
    }
}

#[inline(always)]
pub(super) fn halves_of<S: Simd, T: Vectors<S>>(_: S, halves: &[u16]) -> T::Vector {
    let mut lanes = [T::default(); LANES];
    for (lane, half) in lanes[..T::WIDTH].iter_mut().zip(halves) {
        *lane = T::from_half(*half);
    }
    T::vectors(&lanes)[0]
}

#[inline(always)]
pub(super) fn bf16s_of<S: Simd, T: Vectors<S>>(_: S, uppers: &[u16]) -> T::Vector {
    let mut lanes = [T::default(); LANES];
    for (lane, upper) in lanes[..T::WIDTH].iter_mut().zip(uppers) {
        *lane = T::from_bf16(*upper);
    }
    T::vectors(&lanes)[0]
}

#[inline(always)]
pub(super) fn integers_of<S: Simd, T: Vectors<S>>(_: S, integers: &[i32]) -> T::Vector {
    let mut lanes = [T::default(); LANES];
    for (lane, integer) in lanes[..T::WIDTH].iter_mut().zip(integers) {
        *lane = T::from_f32(*integer as f32);
    }
    T::vectors(&lanes)[0]
}

/// Numbers of which a processor has vectors.
pub(super) trait Vectors<S: Simd>: Real {
    type Vector: Copy;
    const WIDTH: usize;
    fn vectors(numbers: &[Self]) -> &[Self::Vector];
}

impl<S: Simd> Vectors<S> for f32 {
    type Vector = S::f32s;
    const WIDTH: usize = S::F32_LANES;

    #[inline(always)]
    fn vectors(numbers: &[f32]) -> &[S::f32s] {
        S::as_simd_f32s(numbers).0
    }
}

impl<S: Simd> Vectors<S> for f64 {
    type Vector = S::f64s;
    const WIDTH: usize = S::F64_LANES;

    #[inline(always)]
    fn vectors(numbers: &[f64]) -> &[S::f64s] {
        S::as_simd_f64s(numbers).0
    }
}

#[cfg(target_arch = "aarch64")]
impl Machine for pulp::aarch64::Neon {
    type Eight = Self;
    type Four = Self;

    #[inline(always)]
    fn eight(self) -> Self {
        self
    }
    #[inline(always)]
    fn four(self) -> Self {
        self
    }
}
