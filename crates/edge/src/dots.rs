//! Products of small integers, exact in 32 bits.

use crate::LANES;

/// Bytes of sixteen rows, four inputs each: what one instruction of the widest units multiplies.
pub const QUADS: usize = 4 * LANES;

/// What multiplies bytes and adds the products in 32 bits, for sixteen rows side by side.
///
/// Sums wrap around, so that the order of additions does not matter. All units give the same.
pub trait Dots: Copy {
    /// Four unsigned bytes for each of sixteen rows.
    type Bytes: Copy;
    /// A sum of 32 bits for each of sixteen rows.
    type Sums: Copy;

    /// Bytes as the memory has them.
    fn load(self, bytes: &[u8; QUADS]) -> Self::Bytes;
    /// (b >> SHIFT) & mask of every byte; b << −SHIFT where SHIFT is negative. The mask leaves no bit
    /// that was shifted in.
    fn bits<const SHIFT: i32>(self, bytes: Self::Bytes, mask: u8) -> Self::Bytes;
    /// a | b.
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// The same sum for all rows.
    fn same(self, sum: i32) -> Self::Sums;
    /// sum + Σ b x over the four bytes of a row, x being four signed bytes, little-endian.
    fn add_dots(self, sums: Self::Sums, bytes: Self::Bytes, x: u32) -> Self::Sums;
    /// The same for bytes up to 15, where that is faster.
    #[inline(always)]
    fn add_small_dots(self, sums: Self::Sums, bytes: Self::Bytes, x: u32) -> Self::Sums {
        self.add_dots(sums, bytes, x)
    }
    /// The sums of the rows.
    fn store(self, sums: Self::Sums) -> [i32; LANES];
}

impl Dots for crate::Plain {
    type Bytes = [u8; QUADS];
    type Sums = [i32; LANES];

    #[inline(always)]
    fn load(self, bytes: &[u8; QUADS]) -> [u8; QUADS] {
        *bytes
    }
    #[inline(always)]
    fn bits<const SHIFT: i32>(self, mut bytes: [u8; QUADS], mask: u8) -> [u8; QUADS] {
        for byte in &mut bytes {
            let wide = u32::from(*byte);
            let shifted = match SHIFT < 0 {
                true => wide << -SHIFT,
                false => wide >> SHIFT,
            };
            *byte = shifted as u8 & mask;
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
    fn store(self, sums: [i32; LANES]) -> [i32; LANES] {
        sums
    }
}
