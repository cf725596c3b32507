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

/// Inputs of the usual group, whose products are written out without a loop.
const USUAL: usize = 32;

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

/// Sixteen rows of a matrix of integers.
#[derive(Clone, Copy)]
struct Rows<'a> {
    blocks: &'a [[u8; QUADS]],
    scales: &'a [[u16; LANES]],
    /// Inputs that share a scale.
    group: usize,
}

/// Nothing here divides or asks for more places than it has to: rows are short.
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
    let (tile, groups) = (inputs.div_ceil(L::UNIT) * L::BLOCKS, inputs.div_ceil(group));
    let scales: &[u16] = image.slice(matrix.scales_at, outputs * groups, "scales")?;
    let blocks: &[u8] = image.slice(matrix.weights_at, tile * tiles * QUADS, "matrix")?;
    let (mut blocks, mut scales) = (blocks.as_chunks().0, scales.as_chunks().0);
    let words = words(inputs, group);
    let room: &mut [u32] = bytemuck::cast_slice_mut(room);
    let count = streams.outputs.len() / outputs.max(1);
    for stream in 0..count {
        let x = &streams.inputs[stream * streams.input_step..][..inputs];
        if let Some(x) = T::singles(x) {
            round::<L>(x, group, &mut room[stream * words..][..words]);
        }
    }
    // Sixteen rows serve all streams while they are near.
    for index in 0..tiles {
        let (own, own_scales);
        (own, blocks) = blocks.split_at(tile);
        (own_scales, scales) = scales.split_at(groups);
        let rows = Rows {
            blocks: own,
            scales: own_scales,
            group,
        };
        for stream in 0..count {
            let x = &streams.inputs[stream * streams.input_step..][..inputs];
            let y = &mut streams.outputs[stream * outputs..].as_chunks_mut().0[index];
            if T::singles(x).is_none() {
                rows.exact::<T, L>(x, y);
            } else {
                rows.rounded::<T, U, L>(unit, &room[stream * words..][..words], y);
            }
        }
    }
    Ok(())
}

impl Rows<'_> {
    /// The outputs for inputs that were rounded.
    #[inline(always)]
    fn rounded<T: Real, U: Processor<T>, L: Levels>(
        self,
        unit: U,
        rounded: &[u32],
        y: &mut [T; LANES],
    ) {
        let (scale, rest) = rounded.split_at(1);
        let (sums, x) = rest.split_at(self.scales.len());
        let mut total = [T::default(); LANES];
        // A last group of fewer inputs may have fewer blocks.
        if self.group == USUAL && L::wholes(self.blocks).0.len() == sums.len() {
            let (blocks, x) = (L::wholes(self.blocks).0, x.as_chunks().0);
            let count = sums.len().min(blocks.len()).min(x.len());
            let (sums, blocks, x) = (&sums[..count], &blocks[..count], &x[..count]);
            let scales = &self.scales[..count];
            for group in 0..count {
                let start = unit.same(sums[group].cast_signed());
                let dots = L::add_whole(unit, start, &blocks[group], &x[group]);
                add_scaled::<T, U>(unit, dots, &scales[group], &mut total);
            }
        } else {
            let (mut blocks, mut x) = (self.blocks, x);
            let (step, quads) = (self.group / L::UNIT * L::BLOCKS, self.group / 4);
            for (sum, scales) in sums.iter().zip(self.scales) {
                let (some, rest) = blocks.split_at(step.min(blocks.len()));
                let (quad, left) = x.split_at(quads.min(x.len()));
                (blocks, x) = (rest, left);
                let dots = L::add(unit, unit.same(sum.cast_signed()), some, quad);
                add_scaled::<T, U>(unit, dots, scales, &mut total);
            }
        }
        let scale = unit.splat(T::from_f32(f32::from_bits(scale[0])));
        for part in 0..LANES / U::WIDTH {
            let total = U::vectors(&total)[part];
            U::vectors_mut(y)[part] = unit.mul(total, scale);
        }
    }

    /// The same for inputs that are not rounded, one after the other.
    fn exact<T: Real, L: Levels>(self, x: &[T], y: &mut [T; LANES]) {
        y.fill(T::default());
        for (input, x) in x.iter().enumerate() {
            let unit = &self.blocks[input / L::UNIT * L::BLOCKS..];
            let scales = &self.scales[input / self.group];
            for (lane, y) in y.iter_mut().enumerate() {
                let level = T::from_f64(L::level(unit, lane, input % L::UNIT).into());
                *y += T::from_bf16(scales[lane]) * level * *x;
            }
        }
    }
}

/// Adds the sums of a group of inputs times its scales.
#[inline(always)]
fn add_scaled<T: Real, U: Processor<T>>(
    unit: U,
    dots: U::Sums,
    scales: &[u16; LANES],
    total: &mut [T; LANES],
) {
    let dots = unit.store(dots);
    for part in 0..LANES / U::WIDTH {
        let at = part * U::WIDTH;
        let dots = unit.integers(&dots[at..at + U::WIDTH]);
        let scales = unit.bf16s(&scales[at..at + U::WIDTH]);
        let total = &mut U::vectors_mut(total)[part];
        *total = unit.mul_add(dots, scales, *total);
    }
}

/// Rounds inputs to −127 to 127 times a scale, into [`words`] words: the scale, −o Σ x of each group,
/// and the inputs. Where one is not finite the scale is not either.
#[inline(always)]
fn round<L: Levels>(x: &[f32], group: usize, words: &mut [u32]) {
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
    let groups = x.chunks(group).zip(bytes.chunks_mut(group));
    for (sum, (x, bytes)) in sums.iter_mut().zip(groups) {
        let mut total = 0;
        for (x, byte) in x.iter().zip(bytes) {
            let level = (x * inverse + MAGIC).to_bits() as u8;
            total += i32::from(level.cast_signed());
            *byte = level;
        }
        *sum = (-L::OFFSET).wrapping_mul(total).cast_unsigned();
    }
}
