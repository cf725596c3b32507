//! y = W x for a W of small integers with a scale for each row and group of inputs.
//!
//! In single precision x is rounded to 8 bits first, with one scale, max |x| / 127. Then
//! y = s_x Σ_g s_g (Σ u x − o Σ x), where the entries are u − o: the sums are exact in 32 bits. In
//! double precision nothing is rounded, so that it stays a check of what the entries stand for.

use crate::levels::{Int2, Int3, Int4, Int8, Levels, words};
use crate::streams::Streams;
use crate::{Dots, ImageView, LANES, Matrix, Processor, QUADS, Real, StepFault, code};

/// Inputs whose largest is below are zero: what divides them would overflow.
const SMALLEST: f32 = 1e-30;

/// Inputs of the usual group, whose products are written out without a loop.
const USUAL: usize = 32;

/// Streams, or steps, that share the unpacking of entries; on bare metal one, as a second loop takes flash.
const TOGETHER: usize = if cfg!(target_os = "none") { 1 } else { 4 };

/// The outputs of every stream. `room` holds [`words`] words for each.
#[cfg_attr(not(target_os = "none"), inline(always))]
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
        code::INT2 => products::<T, U, Int2>(unit, image, matrix, room, streams),
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
#[cfg_attr(not(target_os = "none"), inline(always))]
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
        let mut done = 0;
        while T::EXACT && done < count {
            let x = &streams.inputs[done * streams.input_step..][..inputs];
            rows.exact::<T, L>(x, streams.lanes(done, outputs, index));
            done += 1;
        }
        while done + TOGETHER <= count {
            let room = &room[done * words..][..TOGETHER * words];
            let made = rows.rounded::<T, U, L, TOGETHER>(unit, room);
            for (more, made) in made.iter().enumerate() {
                *streams.lanes(done + more, outputs, index) = *made;
            }
            done += TOGETHER;
        }
        while done < count {
            let made = rows.rounded::<T, U, L, 1>(unit, &room[done * words..][..words]);
            *streams.lanes(done, outputs, index) = made[0];
            done += 1;
        }
    }
    Ok(())
}

impl Rows<'_> {
    /// The outputs of S streams for inputs that were rounded: those of one stream after the other.
    /// What the entries are unpacked to serves all.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    fn rounded<T: Real, U: Processor<T>, L: Levels, const S: usize>(
        self,
        unit: U,
        rounded: &[u32],
    ) -> [[T; LANES]; S] {
        let words = rounded.len() / S;
        let groups = self.scales.len();
        let mut total = [[T::default(); LANES]; S];
        // A last group of fewer inputs may have fewer blocks.
        if self.group == USUAL && L::wholes(self.blocks).0.len() == groups {
            let blocks = &L::wholes(self.blocks).0[..groups];
            for group in 0..groups {
                let quads = L::quads(unit, &blocks[group]);
                for s in 0..S {
                    let (start, x) = rounded[s * words..][1..words].split_at(groups);
                    let start = [unit.same(start[group].cast_signed()), unit.same(0)];
                    let x = &x.as_chunks().0[group];
                    let dots = L::total(unit, L::add_quads(unit, start, quads, x));
                    add_scaled::<T, U>(unit, dots, &self.scales[group], &mut total[s]);
                }
            }
        } else {
            let (mut blocks, mut first) = (self.blocks, 0);
            let step = self.group / L::UNIT * L::BLOCKS;
            for group in 0..groups {
                let (some, rest) = blocks.split_at(step.min(blocks.len()));
                let dots = self.group_dots::<U, L, S>(unit, some, rounded, [group, first]);
                for s in 0..S {
                    add_scaled::<T, U>(unit, dots[s], &self.scales[group], &mut total[s]);
                }
                blocks = rest;
                first += self.group / 4;
            }
        }
        for s in 0..S {
            let scale = unit.splat(T::from_f32(f32::from_bits(rounded[s * words])));
            let total = U::vectors_mut(&mut total[s]);
            for part in total.iter_mut().take(LANES / U::WIDTH) {
                *part = unit.mul(*part, scale);
            }
        }
        total
    }

    /// The products of the units of one group, whose first words of inputs stand at `first`. Two chains of
    /// sums, so that neither waits for the other.
    #[cfg_attr(not(target_os = "none"), inline(always))]
    fn group_dots<D: Dots, L: Levels, const S: usize>(
        self,
        unit: D,
        blocks: &[[u8; QUADS]],
        rounded: &[u32],
        [group, first]: [usize; 2],
    ) -> [D::Sums; S] {
        let (words, head) = (rounded.len() / S, 1 + self.scales.len());
        let zero = unit.same(0);
        let mut sums = [[[zero; 2]; 2]; S];
        for s in 0..S {
            sums[s][0][0] = unit.same(rounded[s * words + 1 + group].cast_signed());
        }
        let (wholes, rest) = L::wholes(blocks);
        for (at, whole) in wholes.iter().enumerate() {
            let quads = L::quads(unit, whole);
            for s in 0..S {
                let x = &rounded[s * words..][..words][head + first + 8 * at..];
                let x = &x.as_chunks().0[0];
                let [one, other] = sums[s];
                sums[s] = [other, L::add_quads(unit, one, quads, x)];
            }
        }
        let mut made = [zero; S];
        for s in 0..S {
            let x = &rounded[s * words..][..words][head + first + 8 * wholes.len()..];
            let [one, other] = sums[s];
            let one = [L::add_rest(unit, one[0], rest, x), one[1]];
            made[s] = unit.add(L::total(unit, one), L::total(unit, other));
        }
        made
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
#[cfg_attr(not(target_os = "none"), inline(always))]
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
#[cfg_attr(not(target_os = "none"), inline(always))]
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
    for (x, byte) in x.iter().zip(&mut *bytes) {
        *byte = (x * inverse + MAGIC).to_bits() as u8;
    }
    for (sum, bytes) in sums.iter_mut().zip(bytes.chunks(group)) {
        let mut total = 0;
        for byte in bytes {
            total += i32::from(byte.cast_signed());
        }
        *sum = (-L::OFFSET).wrapping_mul(total).cast_unsigned();
    }
}
