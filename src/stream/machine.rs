//! The vectors of a processor and numbers of fewer bits as such.

use hankelite_edge::{LANES, Real};
use pulp::Simd;

/// Vectors, and narrower ones of the same processor.
pub(super) trait Machine: Copy {
    type Simd: Simd;
    type Eight: Machine;
    type Four: Machine;

    fn simd(self) -> Self::Simd;
    fn eight(self) -> Self::Eight;
    fn four(self) -> Self::Four;

    /// The first numbers of half precision.
    #[inline(always)]
    fn halves(self, halves: &[u16]) -> <Self::Simd as Simd>::f32s {
        halves_of::<Self::Simd, f32>(self.simd(), halves)
    }
    /// The first numbers whose upper halves these are.
    #[inline(always)]
    fn bf16s(self, uppers: &[u16]) -> <Self::Simd as Simd>::f32s {
        bf16s_of::<Self::Simd, f32>(self.simd(), uppers)
    }
    /// The first integers as numbers.
    #[inline(always)]
    fn integers(self, integers: &[i32]) -> <Self::Simd as Simd>::f32s {
        integers_of::<Self::Simd, f32>(self.simd(), integers)
    }
    /// [`Real::power_of_two`].
    #[inline(always)]
    fn powers(self, shifted: <Self::Simd as Simd>::f32s) -> <Self::Simd as Simd>::f32s {
        let simd = self.simd();
        let bits = simd.transmute_u32s_f32s(shifted);
        let bits = simd.wrapping_dyn_shl_u32s(bits, simd.splat_u32s(23));
        simd.transmute_f32s_u32s(simd.add_u32s(bits, simd.splat_u32s(0x3f80_0000)))
    }
    /// The numbers of `from` at places.
    #[inline(always)]
    fn gather(self, from: &[f32], places: &[u8], to: &mut [f32]) {
        gather_of(self, from, places, to);
    }
}

/// One number after the other.
#[inline(always)]
pub(super) fn gather_of<S: Machine, T: Real>(_: S, from: &[T], places: &[u8], to: &mut [T]) {
    for (to, &place) in to.iter_mut().zip(places) {
        *to = from[usize::from(place)];
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

/// As [`Machine::powers`], one number after the other.
#[inline(always)]
pub(super) fn powers_of<S: Simd, T: Vectors<S>>(_: S, shifted: T::Vector) -> T::Vector {
    let mut lanes = [T::default(); LANES];
    T::vectors_mut(&mut lanes)[0] = shifted;
    for lane in &mut lanes[..T::WIDTH] {
        *lane = T::power_of_two(*lane);
    }
    T::vectors(&lanes)[0]
}

/// Numbers of which a processor has vectors.
pub(super) trait Vectors<S: Simd>: Real {
    type Vector: Copy;
    const WIDTH: usize;
    fn vectors(numbers: &[Self]) -> &[Self::Vector];
    fn vectors_mut(numbers: &mut [Self]) -> &mut [Self::Vector];
}

impl<S: Simd> Vectors<S> for f32 {
    type Vector = S::f32s;
    const WIDTH: usize = S::F32_LANES;

    #[inline(always)]
    fn vectors(numbers: &[f32]) -> &[S::f32s] {
        S::as_simd_f32s(numbers).0
    }
    #[inline(always)]
    fn vectors_mut(numbers: &mut [f32]) -> &mut [S::f32s] {
        S::as_mut_simd_f32s(numbers).0
    }
}

impl<S: Simd> Vectors<S> for f64 {
    type Vector = S::f64s;
    const WIDTH: usize = S::F64_LANES;

    #[inline(always)]
    fn vectors(numbers: &[f64]) -> &[S::f64s] {
        S::as_simd_f64s(numbers).0
    }
    #[inline(always)]
    fn vectors_mut(numbers: &mut [f64]) -> &mut [S::f64s] {
        S::as_mut_simd_f64s(numbers).0
    }
}

#[cfg(target_arch = "aarch64")]
impl Machine for pulp::aarch64::Neon {
    type Simd = Self;
    type Eight = Self;
    type Four = Self;

    #[inline(always)]
    fn simd(self) -> Self {
        self
    }
    #[inline(always)]
    fn eight(self) -> Self {
        self
    }
    #[inline(always)]
    fn four(self) -> Self {
        self
    }
}
