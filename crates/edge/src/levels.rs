//! Entries of few bits, as an image stores them.

use crate::record::code;
use crate::{Dots, QUADS, StepFault};

/// Inputs to which rounded inputs are padded.
const PADDING: usize = 32;

/// How the entries are stored.
pub(crate) trait Levels {
    /// What is subtracted from the unsigned entries.
    const OFFSET: i32;
    /// Inputs of a unit.
    const UNIT: usize;
    /// Times 64 bytes of a unit, for sixteen rows.
    const BLOCKS: usize;

    /// Adds the products of all units of a group; groups of 32 inputs are the usual ones and have no
    /// loop. Counted loops elsewhere, as iterators side by side are not always inlined.
    fn add<D: Dots>(unit: D, sums: D::Sums, blocks: &[[u8; QUADS]], x: &[u32]) -> D::Sums;
    /// The entry of a row (lane) and input of a unit.
    fn level(blocks: &[[u8; QUADS]], lane: usize, input: usize) -> i32;
}

pub(crate) struct Int8;
pub(crate) struct Int4;
pub(crate) struct Int3;

impl Levels for Int8 {
    const OFFSET: i32 = 128;
    const UNIT: usize = 4;
    const BLOCKS: usize = 1;

    #[inline(always)]
    fn add<D: Dots>(unit: D, mut sums: D::Sums, blocks: &[[u8; QUADS]], x: &[u32]) -> D::Sums {
        if let (Some(blocks), Some(x)) = (blocks.as_array::<8>(), x.as_array::<8>()) {
            for k in 0..8 {
                sums = unit.add_dots(sums, unit.load(&blocks[k]), x[k]);
            }
            return sums;
        }
        let count = blocks.len().min(x.len());
        let (blocks, x) = (&blocks[..count], &x[..count]);
        for k in 0..count {
            sums = unit.add_dots(sums, unit.load(&blocks[k]), x[k]);
        }
        sums
    }
    fn level(blocks: &[[u8; QUADS]], lane: usize, input: usize) -> i32 {
        i32::from(blocks[0][4 * lane + input]) - Self::OFFSET
    }
}

impl Levels for Int4 {
    const OFFSET: i32 = 8;
    const UNIT: usize = 8;
    const BLOCKS: usize = 1;

    #[inline(always)]
    fn add<D: Dots>(unit: D, mut sums: D::Sums, blocks: &[[u8; QUADS]], x: &[u32]) -> D::Sums {
        let x = x.as_chunks::<2>().0;
        if let (Some(blocks), Some(x)) = (blocks.as_array::<4>(), x.as_array::<4>()) {
            for k in 0..4 {
                sums = nibbles(unit, sums, &blocks[k], x[k]);
            }
            return sums;
        }
        let count = blocks.len().min(x.len());
        let (blocks, x) = (&blocks[..count], &x[..count]);
        for k in 0..count {
            sums = nibbles(unit, sums, &blocks[k], x[k]);
        }
        sums
    }
    fn level(blocks: &[[u8; QUADS]], lane: usize, input: usize) -> i32 {
        let byte = blocks[0][4 * lane + input % 4];
        i32::from(byte >> (input / 4 * 4) & 15) - Self::OFFSET
    }
}

impl Levels for Int3 {
    const OFFSET: i32 = 4;
    const UNIT: usize = 32;
    const BLOCKS: usize = 3;

    #[inline(always)]
    fn add<D: Dots>(unit: D, mut sums: D::Sums, blocks: &[[u8; QUADS]], x: &[u32]) -> D::Sums {
        let (blocks, x) = (blocks.as_chunks::<3>().0, x.as_chunks::<8>().0);
        let count = blocks.len().min(x.len());
        let (blocks, x) = (&blocks[..count], &x[..count]);
        for k in 0..count {
            let (first, second) = (unit.load(&blocks[k][0]), unit.load(&blocks[k][1]));
            let (upper, x) = (unit.load(&blocks[k][2]), &x[k]);
            sums = quad::<D, 0, -2>(unit, sums, first, upper, x[0]);
            sums = quad::<D, 2, -1>(unit, sums, first, upper, x[1]);
            sums = quad::<D, 4, 0>(unit, sums, first, upper, x[2]);
            sums = quad::<D, 6, 1>(unit, sums, first, upper, x[3]);
            sums = quad::<D, 0, 2>(unit, sums, second, upper, x[4]);
            sums = quad::<D, 2, 3>(unit, sums, second, upper, x[5]);
            sums = quad::<D, 4, 4>(unit, sums, second, upper, x[6]);
            sums = quad::<D, 6, 5>(unit, sums, second, upper, x[7]);
        }
        sums
    }
    fn level(blocks: &[[u8; QUADS]], lane: usize, input: usize) -> i32 {
        let (quad, at) = (input / 4, 4 * lane + input % 4);
        let low = blocks[quad / 4][at] >> (quad % 4 * 2) & 3;
        let high = blocks[2][at] >> quad & 1;
        i32::from(high << 2 | low) - Self::OFFSET
    }
}

/// Adds the products of eight inputs.
#[inline(always)]
fn nibbles<D: Dots>(unit: D, sums: D::Sums, block: &[u8; QUADS], x: [u32; 2]) -> D::Sums {
    let both = unit.load(block);
    let sums = unit.add_small_dots(sums, unit.bits::<0>(both, 15), x[0]);
    unit.add_small_dots(sums, unit.bits::<4>(both, 15), x[1])
}

/// Adds the products of four inputs: two lower bits from one plane, the upper from the other.
#[inline(always)]
fn quad<D: Dots, const LOW: i32, const HIGH: i32>(
    unit: D,
    sums: D::Sums,
    lower: D::Bytes,
    upper: D::Bytes,
    x: u32,
) -> D::Sums {
    let low = unit.bits::<LOW>(lower, 3);
    let bytes = unit.or(low, unit.bits::<HIGH>(upper, 4));
    unit.add_small_dots(sums, bytes, x)
}

/// Whether a group of inputs is one of whole units.
pub(crate) fn check_group(kind: u8, group: u16) -> Result<(), StepFault> {
    let unit = if kind == code::INT3 { 32 } else { 16 };
    match group > 0 && group.is_multiple_of(unit) {
        true => Ok(()),
        false => Err(StepFault::Record {
            what: "number of inputs that share a scale",
            found: group.into(),
        }),
    }
}

/// Bytes of sixteen rows.
pub(crate) fn tile_bytes(kind: u8, inputs: usize) -> usize {
    let blocks = match kind {
        code::INT8 => inputs.div_ceil(Int8::UNIT) * Int8::BLOCKS,
        code::INT4 => inputs.div_ceil(Int4::UNIT) * Int4::BLOCKS,
        _ => inputs.div_ceil(Int3::UNIT) * Int3::BLOCKS,
    };
    blocks * QUADS
}

/// Words of inputs that were rounded: their scale, the sum of each group, and four inputs a word.
pub(crate) fn words(inputs: usize, group: usize) -> usize {
    1 + inputs.div_ceil(group) + inputs.next_multiple_of(PADDING) / 4
}
