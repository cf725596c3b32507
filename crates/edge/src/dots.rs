//! Products of small integers, exact in 32 bits.

use crate::{LANES, Real, Unit};

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
    /// (b >> SHIFT) & mask of every byte, SHIFT being 0, 2, 4, 5 or 6. The mask leaves no bit that was
    /// shifted in.
    fn bits<const SHIFT: i32>(self, bytes: Self::Bytes, mask: u8) -> Self::Bytes;
    /// a | b.
    fn or(self, a: Self::Bytes, b: Self::Bytes) -> Self::Bytes;
    /// The same sum for all rows.
    fn same(self, sum: i32) -> Self::Sums;
    /// sum + Σ b x over the four bytes of a row, x being four signed bytes, little-endian.
    fn add_dots(self, sums: Self::Sums, bytes: Self::Bytes, x: u32) -> Self::Sums;
    /// The same for bytes up to 127, where that is faster.
    #[inline(always)]
    fn add_small_dots(self, sums: Self::Sums, bytes: Self::Bytes, x: u32) -> Self::Sums {
        self.add_dots(sums, bytes, x)
    }
    /// a + b.
    fn add(self, a: Self::Sums, b: Self::Sums) -> Self::Sums;
    /// sums + eights/8, rounded down.
    fn add_eighths(self, sums: Self::Sums, eights: Self::Sums) -> Self::Sums;
    /// The sums of the rows.
    fn store(self, sums: Self::Sums) -> [i32; LANES];

    /// Runs a piece as a function of its own, compiled with the instructions of this unit: several places
    /// share it, and a step does not become one function that takes minutes to compile.
    #[inline(always)]
    fn apart<P: Piece>(self, piece: P) -> P::Output {
        alone(piece)
    }
}

/// A piece of a step.
pub trait Piece {
    /// What it gives.
    type Output;

    /// Has to be in line: what runs it decides with which instructions it is compiled.
    fn run(self) -> Self::Output;
}

/// A piece with the instructions that every processor has.
#[cfg_attr(not(target_os = "none"), inline(never))]
fn alone<P: Piece>(piece: P) -> P::Output {
    piece.run()
}

/// A processor: its vectors, and its products of integers.
pub trait Processor<T: Real>: Unit<T> + Dots {}

impl<T: Real, U: Unit<T> + Dots> Processor<T> for U {}
