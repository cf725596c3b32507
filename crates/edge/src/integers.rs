//! y = W x for a W of small integers with a scale for each row and group of inputs.
//!
//! In single precision x is rounded to 8 bits first, with one scale, max |x| / 127. Then
//! y = s_x Σ_g s_g (Σ u x − o Σ x), where the entries are u − o: the sums are exact in 32 bits. In
//! double precision nothing is rounded, so that it stays a check of what the entries stand for.

use crate::matrix::Streams;
use crate::{Dots, ImageView, LANES, Matrix, Processor, QUADS, Real, StepFault, code};

/// Groups of rows that share the reading of an input.
const TILES: usize = 2;
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
    /// Bytes of a unit, for sixteen rows.
    const BYTES: usize;

    /// Adds the products of one unit.
    fn add<D: Dots>(unit: D, sums: D::Sums, bytes: &[u8], x: &[u32]) -> D::Sums;
    /// The entry of a row (lane) and input of a unit.
    fn level(bytes: &[u8], lane: usize, input: usize) -> i32;
}

struct Int8;
struct Int4;
struct Int3;

/// 64 bytes from `index` times 64 on.
#[inline(always)]
fn quads(bytes: &[u8], index: usize) -> &[u8; QUADS] {
    &bytes.as_chunks().0[index]
}

impl Levels for Int8 {
    const OFFSET: i32 = 128;
    const UNIT: usize = 4;
    const BYTES: usize = QUADS;

    #[inline(always)]
    fn add<D: Dots>(unit: D, sums: D::Sums, bytes: &[u8], x: &[u32]) -> D::Sums {
        unit.add_dots(sums, unit.load(quads(bytes, 0)), x[0])
    }
    fn level(bytes: &[u8], lane: usize, input: usize) -> i32 {
        i32::from(bytes[4 * lane + input]) - Self::OFFSET
    }
}

impl Levels for Int4 {
    const OFFSET: i32 = 8;
    const UNIT: usize = 8;
    const BYTES: usize = QUADS;

    #[inline(always)]
    fn add<D: Dots>(unit: D, sums: D::Sums, bytes: &[u8], x: &[u32]) -> D::Sums {
        let both = unit.load(quads(bytes, 0));
        let sums = unit.add_small_dots(sums, unit.bits::<0>(both, 15), x[0]);
        unit.add_small_dots(sums, unit.bits::<4>(both, 15), x[1])
    }
    fn level(bytes: &[u8], lane: usize, input: usize) -> i32 {
        let byte = bytes[4 * lane + input % 4];
        i32::from(byte >> (input / 4 * 4) & 15) - Self::OFFSET
    }
}

impl Levels for Int3 {
    const OFFSET: i32 = 4;
    const UNIT: usize = 32;
    const BYTES: usize = 3 * QUADS;

    #[inline(always)]
    fn add<D: Dots>(unit: D, sums: D::Sums, bytes: &[u8], x: &[u32]) -> D::Sums {
        let [first, second, upper] = [0, 1, 2].map(|index| unit.load(quads(bytes, index)));
        let x = &x[..8];
        let sums = quad::<D, 0, -2>(unit, sums, [first, upper], x[0]);
        let sums = quad::<D, 2, -1>(unit, sums, [first, upper], x[1]);
        let sums = quad::<D, 4, 0>(unit, sums, [first, upper], x[2]);
        let sums = quad::<D, 6, 1>(unit, sums, [first, upper], x[3]);
        let sums = quad::<D, 0, 2>(unit, sums, [second, upper], x[4]);
        let sums = quad::<D, 2, 3>(unit, sums, [second, upper], x[5]);
        let sums = quad::<D, 4, 4>(unit, sums, [second, upper], x[6]);
        quad::<D, 6, 5>(unit, sums, [second, upper], x[7])
    }
    fn level(bytes: &[u8], lane: usize, input: usize) -> i32 {
        let (quad, at) = (input / 4, 4 * lane + input % 4);
        let low = bytes[quad / 4 * QUADS + at] >> (quad % 4 * 2) & 3;
        let high = bytes[2 * QUADS + at] >> quad & 1;
        i32::from(high << 2 | low) - Self::OFFSET
    }
}

/// Adds the products of four inputs: two lower bits from one plane, the upper from the other.
#[inline(always)]
fn quad<D: Dots, const LOW: i32, const HIGH: i32>(
    unit: D,
    sums: D::Sums,
    [lower, upper]: [D::Bytes; 2],
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
    match kind {
        code::INT8 => inputs.div_ceil(Int8::UNIT) * Int8::BYTES,
        code::INT4 => inputs.div_ceil(Int4::UNIT) * Int4::BYTES,
        _ => inputs.div_ceil(Int3::UNIT) * Int3::BYTES,
    }
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
    weights: &'a [u8],
    scales: &'a [[u16; LANES]],
    inputs: usize,
    group: usize,
    /// Bytes of sixteen rows.
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
    let group = usize::from(matrix.group.max(1));
    let tile = inputs.div_ceil(L::UNIT) * L::BYTES;
    let scales = outputs * inputs.div_ceil(group);
    let scales: &[u16] = image.slice(matrix.scales_at, scales, "scales")?;
    let parts = Parts {
        weights: image.slice(matrix.weights_at, tile * (outputs / LANES), "matrix")?,
        scales: scales.as_chunks().0,
        inputs,
        group,
        tile,
    };
    let words = words(inputs, group);
    let room: &mut [u32] = bytemuck::cast_slice_mut(room);
    for (x, room) in streams
        .inputs
        .chunks_exact(streams.input_step)
        .zip(room.chunks_exact_mut(words))
    {
        if let Some(x) = T::singles(&x[..inputs]) {
            round(x, group, room);
        }
    }
    let tiles = outputs / LANES;
    let mut first = 0;
    while first < tiles {
        let together = if first + TILES <= tiles { TILES } else { 1 };
        let x = streams.inputs.chunks_exact(streams.input_step);
        let y = streams.outputs.chunks_exact_mut(outputs);
        for ((x, rounded), y) in x.zip(room.chunks_exact(words)).zip(y) {
            let y = &mut y.as_chunks_mut().0[first..first + together];
            if T::singles(x).is_none() {
                exact::<T, L>(&parts, first, x, y);
            } else if together == TILES {
                rows::<T, U, L, TILES>(unit, &parts, first, rounded, y);
            } else {
                rows::<T, U, L, 1>(unit, &parts, first, rounded, y);
            }
        }
        first += together;
    }
    Ok(())
}

/// N groups of sixteen rows from `first` on.
#[inline(always)]
fn rows<T: Real, U: Processor<T>, L: Levels, const N: usize>(
    unit: U,
    parts: &Parts<'_>,
    first: usize,
    rounded: &[u32],
    y: &mut [[T; LANES]],
) {
    let groups = parts.inputs.div_ceil(parts.group);
    let (scale, rest) = rounded.split_at(1);
    let (sums, x) = rest.split_at(groups);
    let weights = &parts.weights[first * parts.tile..(first + N) * parts.tile];
    let scales = &parts.scales[first * groups..(first + N) * groups];
    let units = parts.group / L::UNIT;
    let (bytes, quads) = (units * L::BYTES, parts.group / 4);
    let mut totals = [[T::default(); LANES]; N];
    for (index, sum) in sums.iter().enumerate() {
        let start = unit.same(sum.cast_signed().wrapping_mul(-L::OFFSET));
        let x = &x[index * quads..];
        let x = &x[..x.len().min(quads)];
        for (n, total) in totals.iter_mut().enumerate() {
            let tile = &weights[n * parts.tile..(n + 1) * parts.tile];
            let tile = &tile[index * bytes..];
            let mut dots = start;
            let each = tile.chunks_exact(L::BYTES).zip(x.chunks_exact(L::UNIT / 4));
            for (tile, x) in each {
                dots = L::add(unit, dots, tile, x);
            }
            let dots = unit.store(dots);
            let scales = &scales[n * groups + index];
            for (part, total) in U::vectors_mut(total).iter_mut().enumerate() {
                let at = part * U::WIDTH;
                let dots = unit.from_integers(&dots[at..at + U::WIDTH]);
                let scales = unit.from_bf16s(&scales[at..at + U::WIDTH]);
                *total = unit.mul_add(dots, scales, *total);
            }
        }
    }
    let scale = T::from_f32(f32::from_bits(scale[0]));
    for (y, total) in y.iter_mut().zip(totals) {
        for (y, total) in y.iter_mut().zip(total) {
            *y = total * scale;
        }
    }
}

/// The same for inputs that are not rounded, one after the other.
fn exact<T: Real, L: Levels>(parts: &Parts<'_>, first: usize, x: &[T], y: &mut [[T; LANES]]) {
    let groups = parts.inputs.div_ceil(parts.group);
    for (tile, y) in (first..).zip(y) {
        let weights = &parts.weights[tile * parts.tile..(tile + 1) * parts.tile];
        let scales = &parts.scales[tile * groups..(tile + 1) * groups];
        *y = [T::default(); LANES];
        for (input, x) in x[..parts.inputs].iter().enumerate() {
            let unit = &weights[input / L::UNIT * L::BYTES..];
            let scales = &scales[input / parts.group];
            for (lane, y) in y.iter_mut().enumerate() {
                let level = T::from_f64(L::level(unit, lane, input % L::UNIT).into());
                *y += T::from_bf16(scales[lane]) * level * *x;
            }
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
