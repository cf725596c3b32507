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
    /// The blocks of 32 inputs.
    type Whole;

    /// Whole groups of 32 inputs, and the blocks that are left.
    fn wholes(blocks: &[[u8; QUADS]]) -> (&[Self::Whole], &[[u8; QUADS]]);
    /// Adds the products of 32 inputs, without a loop.
    fn add_whole<D: Dots>(unit: D, sums: D::Sums, whole: &Self::Whole, x: &[u32; 8]) -> D::Sums;
    /// Adds the products of units that are no 32 inputs.
    fn add_rest<D: Dots>(unit: D, sums: D::Sums, rest: &[[u8; QUADS]], x: &[u32]) -> D::Sums;
    /// The entry of a row (lane) and input of a unit.
    fn level(blocks: &[[u8; QUADS]], lane: usize, input: usize) -> i32;

    /// Adds the products of all units of a group. Counted loops here, as iterators side by side are
    /// not always inlined.
    #[inline(always)]
    fn add<D: Dots>(unit: D, mut sums: D::Sums, blocks: &[[u8; QUADS]], x: &[u32]) -> D::Sums {
        let (wholes, rest) = Self::wholes(blocks);
        let (whole_x, _) = x.as_chunks::<8>();
        let count = wholes.len().min(whole_x.len());
        for k in 0..count {
            sums = Self::add_whole(unit, sums, &wholes[k], &whole_x[k]);
        }
        Self::add_rest(unit, sums, rest, &x[8 * count..])
    }
}

pub(crate) struct Int8;
pub(crate) struct Int4;
pub(crate) struct Int3;

impl Levels for Int8 {
    const OFFSET: i32 = 128;
    const UNIT: usize = 4;
    const BLOCKS: usize = 1;
    type Whole = [[u8; QUADS]; 8];

    #[inline(always)]
    fn wholes(blocks: &[[u8; QUADS]]) -> (&[Self::Whole], &[[u8; QUADS]]) {
        blocks.as_chunks()
    }
    #[inline(always)]
    fn add_whole<D: Dots>(unit: D, sums: D::Sums, whole: &Self::Whole, x: &[u32; 8]) -> D::Sums {
        Self::add_rest(unit, sums, whole, x)
    }
    #[inline(always)]
    fn add_rest<D: Dots>(unit: D, mut sums: D::Sums, rest: &[[u8; QUADS]], x: &[u32]) -> D::Sums {
        for k in 0..rest.len().min(x.len()) {
            sums = unit.add_dots(sums, unit.load(&rest[k]), x[k]);
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
    type Whole = [[u8; QUADS]; 4];

    #[inline(always)]
    fn wholes(blocks: &[[u8; QUADS]]) -> (&[Self::Whole], &[[u8; QUADS]]) {
        blocks.as_chunks()
    }
    #[inline(always)]
    fn add_whole<D: Dots>(unit: D, sums: D::Sums, whole: &Self::Whole, x: &[u32; 8]) -> D::Sums {
        Self::add_rest(unit, sums, whole, x)
    }
    #[inline(always)]
    fn add_rest<D: Dots>(unit: D, mut sums: D::Sums, rest: &[[u8; QUADS]], x: &[u32]) -> D::Sums {
        let x = x.as_chunks().0;
        for k in 0..rest.len().min(x.len()) {
            sums = nibbles(unit, sums, &rest[k], x[k]);
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
    type Whole = [[u8; QUADS]; 3];

    #[inline(always)]
    fn wholes(blocks: &[[u8; QUADS]]) -> (&[Self::Whole], &[[u8; QUADS]]) {
        blocks.as_chunks()
    }
    #[inline(always)]
    fn add_whole<D: Dots>(unit: D, sums: D::Sums, whole: &Self::Whole, x: &[u32; 8]) -> D::Sums {
        let [sums, eights] = triples(unit, [sums, unit.same(0)], whole, x);
        unit.add_eighths(sums, eights)
    }
    #[inline(always)]
    fn add_rest<D: Dots>(_: D, sums: D::Sums, _: &[[u8; QUADS]], _: &[u32]) -> D::Sums {
        sums
    }
    fn level(blocks: &[[u8; QUADS]], lane: usize, input: usize) -> i32 {
        let (quad, at) = (input / 4, 4 * lane + input % 4);
        let [a, b, c] = [0, 1, 2].map(|plane| i32::from(blocks[plane][at]));
        let level = match quad {
            0 => a & 7,
            1 => a >> 3 & 7,
            2 => b & 7,
            3 => b >> 3 & 7,
            4 => c & 7,
            5 => c >> 3 & 7,
            6 => a >> 6 | (c >> 4 & 4),
            _ => b >> 6 | (c >> 5 & 4),
        };
        level - Self::OFFSET
    }
}

/// Adds the products of eight inputs.
#[inline(always)]
fn nibbles<D: Dots>(unit: D, sums: D::Sums, block: &[u8; QUADS], x: [u32; 2]) -> D::Sums {
    let both = unit.load(block);
    let sums = unit.add_small_dots(sums, unit.bits::<0>(both, 15), x[0]);
    unit.add_small_dots(sums, unit.bits::<4>(both, 15), x[1])
}

/// Adds the products of 32 inputs to sums and to sums of eight times as much: three bits in the middle
/// of a byte are left there.
#[inline(always)]
fn triples<D: Dots>(
    unit: D,
    [sums, eights]: [D::Sums; 2],
    [a, b, c]: &[[u8; QUADS]; 3],
    x: &[u32; 8],
) -> [D::Sums; 2] {
    const LOW: u8 = 7;
    const MIDDLE: u8 = 7 << 3;
    let (a, b, c) = (unit.load(a), unit.load(b), unit.load(c));
    let sums = unit.add_small_dots(sums, unit.bits::<0>(a, LOW), x[0]);
    let eights = unit.add_small_dots(eights, unit.bits::<0>(a, MIDDLE), x[1]);
    let sums = unit.add_small_dots(sums, unit.bits::<0>(b, LOW), x[2]);
    let eights = unit.add_small_dots(eights, unit.bits::<0>(b, MIDDLE), x[3]);
    let sums = unit.add_small_dots(sums, unit.bits::<0>(c, LOW), x[4]);
    let eights = unit.add_small_dots(eights, unit.bits::<0>(c, MIDDLE), x[5]);
    let spread = unit.or(unit.bits::<6>(a, 3), unit.bits::<4>(c, 4));
    let sums = unit.add_small_dots(sums, spread, x[6]);
    let spread = unit.or(unit.bits::<6>(b, 3), unit.bits::<5>(c, 4));
    [unit.add_small_dots(sums, spread, x[7]), eights]
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

/// Words of inputs that were rounded: their scale, what is taken from the sums of each group, and four inputs a word.
pub(crate) fn words(inputs: usize, group: usize) -> usize {
    1 + inputs.div_ceil(group) + inputs.next_multiple_of(PADDING) / 4
}
