//! y = W x for a W of small integers with a scale for each row and group of inputs.
//!
//! In single precision x is rounded to 8 bits first, with one scale, max |x| / 127. Then
//! y = s_x Σ_g s_g (Σ u x − o Σ x), where the entries are u − o: the sums are exact in 32 bits. In
//! double precision nothing is rounded, so that it stays a check of what the entries stand for.

use crate::matrix::Streams;
use crate::{Dots, ImageView, LANES, Matrix, Processor, QUADS, Real, StepFault, code};

/// Inputs to which rounded inputs are padded.
const PADDING: usize = 32;
/// Inputs whose largest is below are zero: what divides them would overflow.
const SMALLEST: f32 = 1e-30;

/// How the entries are stored.
trait Levels {
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

struct Int8;
struct Int4;
struct Int3;

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

/// The outputs of every stream. `room` holds [`words`] words for each.
#[inline(always)]
pub(crate) fn apply<T: Real, U: Processor<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    matrix: &Matrix,
    room: &mut [T],
    streams: &mut Streams<'_, T>,
) -> Result<(), StepFault> {
    match matrix.entries {
        code::INT8 => products::<T, U, Int8>(unit, image, matrix, room, streams),
        code::INT4 => products::<T, U, Int4>(unit, image, matrix, room, streams),
        _ => products::<T, U, Int3>(unit, image, matrix, room, streams),
    }
}

/// What a matrix of integers consists of.
struct Parts<'a> {
    blocks: &'a [[u8; QUADS]],
    scales: &'a [[u16; LANES]],
    inputs: usize,
    group: usize,
    /// Blocks of sixteen rows.
    tile: usize,
}

#[inline(always)]
fn products<T: Real, U: Processor<T>, L: Levels>(
    unit: U,
    image: &ImageView<'_, T>,
    matrix: &Matrix,
    room: &mut [T],
    streams: &mut Streams<'_, T>,
) -> Result<(), StepFault> {
    let (outputs, inputs) = (matrix.outputs as usize, matrix.inputs as usize);
    let (tiles, group) = (outputs / LANES, usize::from(matrix.group.max(1)));
    let tile = inputs.div_ceil(L::UNIT) * L::BLOCKS;
    let scales = outputs * inputs.div_ceil(group);
    let scales: &[u16] = image.slice(matrix.scales_at, scales, "scales")?;
    let blocks: &[u8] = image.slice(matrix.weights_at, tile * tiles * QUADS, "matrix")?;
    let parts = Parts {
        blocks: blocks.as_chunks().0,
        scales: scales.as_chunks().0,
        inputs,
        group,
        tile,
    };
    let words = words(inputs, group);
    let room: &mut [u32] = bytemuck::cast_slice_mut(room);
    let count = streams.outputs.len() / outputs.max(1);
    for stream in 0..count {
        let x = &streams.inputs[stream * streams.input_step..][..inputs];
        if let Some(x) = T::singles(x) {
            round(x, group, &mut room[stream * words..(stream + 1) * words]);
        }
    }
    // Sixteen rows serve all streams while they are near.
    for index in 0..tiles {
        for stream in 0..count {
            let x = &streams.inputs[stream * streams.input_step..][..inputs];
            let y = &mut streams.outputs[stream * outputs..][index * LANES..][..LANES];
            if T::singles(x).is_none() {
                exact::<T, L>(&parts, index, x, y);
            } else {
                let rounded = &room[stream * words..(stream + 1) * words];
                rows::<T, U, L>(unit, &parts, index, rounded, y);
            }
        }
    }
    Ok(())
}

/// Sixteen rows.
#[inline(always)]
fn rows<T: Real, U: Processor<T>, L: Levels>(
    unit: U,
    parts: &Parts<'_>,
    index: usize,
    rounded: &[u32],
    y: &mut [T],
) {
    let groups = parts.inputs.div_ceil(parts.group);
    let (scale, rest) = rounded.split_at(1);
    let (sums, mut x) = rest.split_at(groups);
    let mut blocks = &parts.blocks[index * parts.tile..(index + 1) * parts.tile];
    let scales = &parts.scales[index * groups..(index + 1) * groups];
    let (step, quads) = (parts.group / L::UNIT * L::BLOCKS, parts.group / 4);
    let mut total = [T::default(); LANES];
    for group in 0..groups {
        let (some, rest) = blocks.split_at(step.min(blocks.len()));
        let (quad, left) = x.split_at(quads.min(x.len()));
        (blocks, x) = (rest, left);
        let start = unit.same(sums[group].cast_signed().wrapping_mul(-L::OFFSET));
        let dots = unit.store(L::add(unit, start, some, quad));
        for part in 0..LANES / U::WIDTH {
            let at = part * U::WIDTH;
            let dots = unit.integers(&dots[at..at + U::WIDTH]);
            let scales = unit.bf16s(&scales[group][at..at + U::WIDTH]);
            let total = &mut U::vectors_mut(&mut total)[part];
            *total = unit.mul_add(dots, scales, *total);
        }
    }
    let scale = unit.splat(T::from_f32(f32::from_bits(scale[0])));
    for part in 0..LANES / U::WIDTH {
        let total = U::vectors(&total)[part];
        U::vectors_mut(y)[part] = unit.mul(total, scale);
    }
}

/// The same for inputs that are not rounded, one after the other.
fn exact<T: Real, L: Levels>(parts: &Parts<'_>, index: usize, x: &[T], y: &mut [T]) {
    let groups = parts.inputs.div_ceil(parts.group);
    let blocks = &parts.blocks[index * parts.tile..(index + 1) * parts.tile];
    let scales = &parts.scales[index * groups..(index + 1) * groups];
    y.fill(T::default());
    for (input, x) in x.iter().enumerate() {
        let unit = &blocks[input / L::UNIT * L::BLOCKS..];
        let scales = &scales[input / parts.group];
        for (lane, y) in y.iter_mut().enumerate() {
            let level = T::from_f64(L::level(unit, lane, input % L::UNIT).into());
            *y += T::from_bf16(scales[lane]) * level * *x;
        }
    }
}

/// Rounds inputs to −127 to 127 times a scale, into [`words`] words. Where one is not finite the
/// scale is not either.
#[inline(always)]
fn round(x: &[f32], group: usize, words: &mut [u32]) {
    // 1.5 · 2²³: a sum with it has the rounded number, ties to even, in its lowest bits.
    const MAGIC: f32 = 12_582_912.0;
    let mut largest = 0u32;
    for x in x {
        // As integers, so that what is no number is the largest.
        largest = largest.max(x.to_bits() & 0x7fff_ffff);
    }
    let largest = f32::from_bits(largest);
    let zero = largest < SMALLEST;
    let inverse = if zero { 0.0 } else { 127.0 / largest };
    let (scale, rest) = words.split_at_mut(1);
    scale[0] = if zero { 0.0 } else { largest / 127.0 }.to_bits();
    let (sums, quads) = rest.split_at_mut(x.len().div_ceil(group));
    let bytes: &mut [u8] = bytemuck::cast_slice_mut(quads);
    let (bytes, padding) = bytes.split_at_mut(x.len());
    padding.fill(0);
    for (byte, x) in bytes.iter_mut().zip(x) {
        *byte = (x * inverse + MAGIC).to_bits() as u8;
    }
    for (sum, bytes) in sums.iter_mut().zip(bytes.chunks(group)) {
        let mut total = 0;
        for byte in bytes {
            total += i32::from(byte.cast_signed());
        }
        *sum = total.cast_unsigned();
    }
}
