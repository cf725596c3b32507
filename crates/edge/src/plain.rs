//! Arithmetic of any processor.

use crate::{Dots, LANES, QUADS, Real, Unit};

/// One number at a time: any processor.
#[derive(Debug, Clone, Copy, Default)]
pub struct Plain;

impl<T: Real> Unit<T> for Plain {
    type Vector = T;
    type Eight = Self;
    type Four = Self;
    const WIDTH: usize = 1;

    #[inline(always)]
    fn eight(self) -> Self {
        self
    }
    #[inline(always)]
    fn four(self) -> Self {
        self
    }
    #[inline(always)]
    fn vectors(numbers: &[T]) -> &[T] {
        numbers
    }
    #[inline(always)]
    fn vectors_mut(numbers: &mut [T]) -> &mut [T] {
        numbers
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
    #[inline(always)]
    fn div(self, a: T, b: T) -> T {
        a / b
    }
    #[inline(always)]
    fn max(self, a: T, b: T) -> T {
        if a > b { a } else { b }
    }
    #[inline(always)]
    fn min(self, a: T, b: T) -> T {
        if a < b { a } else { b }
    }
    #[inline(always)]
    fn power_of_two(self, shifted: T) -> T {
        T::power_of_two(shifted)
    }
    #[inline(always)]
    fn halves(self, halves: &[u16]) -> T {
        T::from_half(halves[0])
    }
    #[inline(always)]
    fn bf16s(self, uppers: &[u16]) -> T {
        T::from_bf16(uppers[0])
    }
    #[inline(always)]
    fn integers(self, integers: &[i32]) -> T {
        T::from_f32(integers[0] as f32)
    }
}

impl Dots for Plain {
    type Bytes = [u8; QUADS];
    type Sums = [i32; LANES];

    #[inline(always)]
    fn load(self, bytes: &[u8; QUADS]) -> [u8; QUADS] {
        *bytes
    }
    #[inline(always)]
    fn bits<const SHIFT: i32>(self, mut bytes: [u8; QUADS], mask: u8) -> [u8; QUADS] {
        for byte in &mut bytes {
            *byte = *byte >> SHIFT & mask;
        }
        bytes
    }
    #[inline(always)]
    fn or(self, mut a: [u8; QUADS], b: [u8; QUADS]) -> [u8; QUADS] {
        for (a, b) in a.iter_mut().zip(b) {
            *a |= b;
        }
        a
    }
    #[inline(always)]
    fn same(self, sum: i32) -> [i32; LANES] {
        [sum; LANES]
    }
    #[inline(always)]
    fn add_dots(self, mut sums: [i32; LANES], bytes: [u8; QUADS], x: u32) -> [i32; LANES] {
        let x = x.to_le_bytes().map(|x| i32::from(x.cast_signed()));
        for (sum, row) in sums.iter_mut().zip(bytes.as_chunks::<4>().0) {
            for (byte, x) in row.iter().zip(x) {
                *sum = sum.wrapping_add(i32::from(*byte) * x);
            }
        }
        sums
    }
    #[inline(always)]
    fn add(self, mut a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        for (a, b) in a.iter_mut().zip(b) {
            *a = a.wrapping_add(b);
        }
        a
    }
    #[inline(always)]
    fn add_eighths(self, mut sums: [i32; LANES], eights: [i32; LANES]) -> [i32; LANES] {
        for (sum, eights) in sums.iter_mut().zip(eights) {
            *sum = sum.wrapping_add(eights >> 3);
        }
        sums
    }
    #[inline(always)]
    fn store(self, sums: [i32; LANES]) -> [i32; LANES] {
        sums
    }
}
