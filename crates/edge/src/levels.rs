//! Entries of few bits, as an image stores them.

use crate::record::code;
use crate::{Dots, QUADS, StepFault};

/// Inputs to which rounded inputs are padded.
const PADDING: usize = 32;

/// How the entries are stored.
pub(crate) trait Levels {
    /// What is subtracted from the unsigned entries, of two bits from twice the entries.
    const OFFSET: i32;
    /// Inputs of a unit.
    const UNIT: usize;
    /// Times 64 bytes of a unit, for sixteen rows.
    const BLOCKS: usize;
    /// The blocks of 32 inputs.
    type Whole;

    /// Whole groups of 32 inputs, and the blocks that are left.
    fn wholes(blocks: &[[u8; QUADS]]) -> (&[Self::Whole], &[[u8; QUADS]]);
    /// Four inputs of every row in each of eight, of 32 inputs.
    fn quads<D: Dots>(unit: D, whole: &Self::Whole) -> [D::Bytes; 8];
    /// Adds the products of those to sums, without a loop that counts. Where some of them hold eight
    /// times the entries, or half of what they stand for, theirs go to the other sums.
    fn add_quads<D: Dots>(
        unit: D,
        sums: [D::Sums; 2],
        quads: [D::Bytes; 8],
        x: &[u32; 8],
    ) -> [D::Sums; 2];
    /// The sums together with the others, at what these are worth.
    #[inline(always)]
    fn total<D: Dots>(_: D, [sums, _]: [D::Sums; 2]) -> D::Sums {
        sums
    }
    /// Adds the products of units that are no 32 inputs.
    fn add_rest<D: Dots>(unit: D, sums: D::Sums, rest: &[[u8; QUADS]], x: &[u32]) -> D::Sums;
    /// The entry of a row (lane) and input of a unit.
    fn level(blocks: &[[u8; QUADS]], lane: usize, input: usize) -> i32;
}

pub(crate) struct Int8;
pub(crate) struct Int4;
pub(crate) struct Int3;
pub(crate) struct Int2;

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
    fn quads<D: Dots>(unit: D, whole: &Self::Whole) -> [D::Bytes; 8] {
        let [a, b, c, d, e, f, g, h] = whole;
        [
            unit.load(a),
            unit.load(b),
            unit.load(c),
            unit.load(d),
            unit.load(e),
            unit.load(f),
            unit.load(g),
            unit.load(h),
        ]
    }
    #[inline(always)]
    fn add_quads<D: Dots>(
        unit: D,
        [mut sums, none]: [D::Sums; 2],
        quads: [D::Bytes; 8],
        x: &[u32; 8],
    ) -> [D::Sums; 2] {
        for k in 0..8 {
            sums = unit.add_dots(sums, quads[k], x[k]);
        }
        [sums, none]
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
    fn quads<D: Dots>(unit: D, [a, b, c, d]: &Self::Whole) -> [D::Bytes; 8] {
        let (a, b, c, d) = (unit.load(a), unit.load(b), unit.load(c), unit.load(d));
        [
            unit.bits::<0>(a, 15),
            unit.bits::<4>(a, 15),
            unit.bits::<0>(b, 15),
            unit.bits::<4>(b, 15),
            unit.bits::<0>(c, 15),
            unit.bits::<4>(c, 15),
            unit.bits::<0>(d, 15),
            unit.bits::<4>(d, 15),
        ]
    }
    #[inline(always)]
    fn add_quads<D: Dots>(
        unit: D,
        [mut sums, none]: [D::Sums; 2],
        quads: [D::Bytes; 8],
        x: &[u32; 8],
    ) -> [D::Sums; 2] {
        for k in 0..8 {
            sums = unit.add_small_dots(sums, quads[k], x[k]);
        }
        [sums, none]
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
    /// Three bits in the middle of a byte are left there.
    #[inline(always)]
    fn quads<D: Dots>(unit: D, [a, b, c]: &Self::Whole) -> [D::Bytes; 8] {
        const LOW: u8 = 7;
        const MIDDLE: u8 = 7 << 3;
        let (a, b, c) = (unit.load(a), unit.load(b), unit.load(c));
        [
            unit.bits::<0>(a, LOW),
            unit.bits::<0>(a, MIDDLE),
            unit.bits::<0>(b, LOW),
            unit.bits::<0>(b, MIDDLE),
            unit.bits::<0>(c, LOW),
            unit.bits::<0>(c, MIDDLE),
            unit.or(unit.bits::<6>(a, 3), unit.bits::<4>(c, 4)),
            unit.or(unit.bits::<6>(b, 3), unit.bits::<5>(c, 4)),
        ]
    }
    #[inline(always)]
    fn add_quads<D: Dots>(
        unit: D,
        [sums, eights]: [D::Sums; 2],
        [a, b, c, d, e, f, g, h]: [D::Bytes; 8],
        x: &[u32; 8],
    ) -> [D::Sums; 2] {
        let sums = unit.add_small_dots(sums, a, x[0]);
        let eights = unit.add_small_dots(eights, b, x[1]);
        let sums = unit.add_small_dots(sums, c, x[2]);
        let eights = unit.add_small_dots(eights, d, x[3]);
        let sums = unit.add_small_dots(sums, e, x[4]);
        let eights = unit.add_small_dots(eights, f, x[5]);
        let sums = unit.add_small_dots(sums, g, x[6]);
        [unit.add_small_dots(sums, h, x[7]), eights]
    }
    #[inline(always)]
    fn total<D: Dots>(unit: D, [sums, eights]: [D::Sums; 2]) -> D::Sums {
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

impl Levels for Int2 {
    const OFFSET: i32 = 3;
    const UNIT: usize = 16;
    const BLOCKS: usize = 1;
    type Whole = [[u8; QUADS]; 2];

    #[inline(always)]
    fn wholes(blocks: &[[u8; QUADS]]) -> (&[Self::Whole], &[[u8; QUADS]]) {
        blocks.as_chunks()
    }
    #[inline(always)]
    fn quads<D: Dots>(unit: D, [a, b]: &Self::Whole) -> [D::Bytes; 8] {
        let ([a, b, c, d], [e, f, g, h]) = (pairs(unit, a), pairs(unit, b));
        [a, b, c, d, e, f, g, h]
    }
    #[inline(always)]
    fn add_quads<D: Dots>(
        unit: D,
        [sums, mut halves]: [D::Sums; 2],
        quads: [D::Bytes; 8],
        x: &[u32; 8],
    ) -> [D::Sums; 2] {
        for k in 0..8 {
            halves = unit.add_small_dots(halves, quads[k], x[k]);
        }
        [sums, halves]
    }
    #[inline(always)]
    fn total<D: Dots>(unit: D, [sums, halves]: [D::Sums; 2]) -> D::Sums {
        unit.add(sums, unit.add(halves, halves))
    }
    #[inline(always)]
    fn add_rest<D: Dots>(unit: D, sums: D::Sums, rest: &[[u8; QUADS]], x: &[u32]) -> D::Sums {
        let (x, mut halves) = (x.as_chunks::<4>().0, unit.same(0));
        for k in 0..rest.len().min(x.len()) {
            let quads = pairs(unit, &rest[k]);
            for q in 0..4 {
                halves = unit.add_small_dots(halves, quads[q], x[k][q]);
            }
        }
        Self::total(unit, [sums, halves])
    }
    fn level(blocks: &[[u8; QUADS]], lane: usize, input: usize) -> i32 {
        let byte = blocks[0][4 * lane + input % 4];
        2 * i32::from(byte >> (input / 4 * 2) & 3) - Self::OFFSET
    }
}

/// The four quads of a block of pairs of bits.
#[inline(always)]
fn pairs<D: Dots>(unit: D, block: &[u8; QUADS]) -> [D::Bytes; 4] {
    let all = unit.load(block);
    [
        unit.bits::<0>(all, 3),
        unit.bits::<2>(all, 3),
        unit.bits::<4>(all, 3),
        unit.bits::<6>(all, 3),
    ]
}

/// Adds the products of eight inputs.
#[inline(always)]
fn nibbles<D: Dots>(unit: D, sums: D::Sums, block: &[u8; QUADS], x: [u32; 2]) -> D::Sums {
    let both = unit.load(block);
    let sums = unit.add_small_dots(sums, unit.bits::<0>(both, 15), x[0]);
    unit.add_small_dots(sums, unit.bits::<4>(both, 15), x[1])
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
        code::INT2 => inputs.div_ceil(Int2::UNIT) * Int2::BLOCKS,
        _ => inputs.div_ceil(Int3::UNIT) * Int3::BLOCKS,
    };
    blocks * QUADS
}

/// Words of inputs that were rounded: their scale, what is taken from the sums of each group, and four inputs a word.
pub(crate) fn words(inputs: usize, group: usize) -> usize {
    1 + inputs.div_ceil(group) + inputs.next_multiple_of(PADDING) / 4
}
