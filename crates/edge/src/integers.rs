//! y = W x for a W of small integers with a scale for each row and group of inputs.
//!
//! In single precision x is rounded to 8 bits first, with one scale, max |x| / 127. Then
//! y = s_x Σ_g s_g (Σ u x − o Σ x), where the entries are u − o: the sums are exact in 32 bits. In
//! double precision nothing is rounded, so that it stays a check of what the entries stand for.

use crate::levels::{Int3, Int4, Int8, Levels, words};
use crate::streams::Streams;
use crate::{ImageView, LANES, Matrix, Processor, QUADS, Real, StepFault, code};

/// Inputs whose largest is below are zero: what divides them would overflow.
const SMALLEST: f32 = 1e-30;

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
