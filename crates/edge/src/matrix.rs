//! y = W x + b, bound by the bytes of W: every entry is read once, in the order of the memory.

use bytemuck::Pod;

use crate::{ImageView, LANES, Matrix, Real, StepFault, Unit, code};

/// Inputs whose products go to different sums, so that no sum waits for the one before.
const SUMS: usize = 4;
/// Groups of rows that share the reading of an input.
const TILES: usize = 2;

/// Vectors of several streams, one after the other.
pub(crate) struct Streams<'a, T> {
    pub(crate) inputs: &'a [T],
    /// Numbers from one stream's inputs to the next: at least the columns of the matrix.
    pub(crate) input_step: usize,
    /// As many for each stream as the matrix has rows.
    pub(crate) outputs: &'a mut [T],
}

impl<'a, T> Streams<'a, T> {
    /// One stream.
    #[inline(always)]
    pub(crate) fn one(inputs: &'a [T], outputs: &'a mut [T]) -> Self {
        Self {
            inputs,
            input_step: inputs.len(),
            outputs,
        }
    }
}

/// The outputs of every stream.
#[inline(always)]
pub(crate) fn apply<T: Real, U: Unit<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    matrix: &Matrix,
    mut streams: Streams<'_, T>,
) -> Result<(), StepFault> {
    match matrix.entries {
        code::FULL => products::<T, U, Full>(unit, image, matrix, &mut streams)?,
        code::BF16 => products::<T, U, Bf16>(unit, image, matrix, &mut streams)?,
        _ => {
            products::<T, U, Int8>(unit, image, matrix, &mut streams)?;
            let outputs = matrix.outputs as usize;
            let scales = image.numbers(matrix.scales_at, outputs, "scales")?;
            for y in streams.outputs.chunks_exact_mut(outputs) {
                y.iter_mut().zip(scales).for_each(|(y, s)| *y = *y * *s);
            }
        }
    }
    if matrix.bias_at != 0 {
        let outputs = matrix.outputs as usize;
        let bias = image.numbers(matrix.bias_at, outputs, "bias")?;
        for y in streams.outputs.chunks_exact_mut(outputs) {
            y.iter_mut().zip(bias).for_each(|(y, b)| *y += *b);
        }
    }
    Ok(())
}

/// y ← W x. A few rows at a time serve all streams while they are near.
///
/// Nothing here is a closure: those would be compiled without the features of the vector unit.
#[inline(always)]
fn products<T: Real, U: Unit<T>, E: Entries<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    matrix: &Matrix,
    streams: &mut Streams<'_, T>,
) -> Result<(), StepFault> {
    let (outputs, inputs) = (matrix.outputs as usize, matrix.inputs as usize);
    let weights = image.slice::<E::Entry>(matrix.weights_at, outputs * inputs, "matrix")?;
    let weights = weights.as_chunks::<LANES>().0;
    let tiles = outputs / LANES;
    let mut tile = 0;
    while tile < tiles {
        let together = if tile + TILES <= tiles { TILES } else { 1 };
        let rows = &weights[tile * inputs..(tile + together) * inputs];
        let x = streams.inputs.chunks_exact(streams.input_step);
        let y = streams.outputs.chunks_exact_mut(outputs);
        for (x, y) in x.zip(y) {
            let (x, y) = (
                &x[..inputs],
                &mut y.as_chunks_mut().0[tile..tile + together],
            );
            if together == TILES {
                sum::<T, U, E, TILES>(unit, rows, x, y);
            } else {
                sum::<T, U, E, 1>(unit, rows, x, y);
            }
        }
        tile += together;
    }
    Ok(())
}

/// How the entries of a matrix are stored.
trait Entries<T: Real> {
    type Entry: Pod;

    /// The numbers of sixteen rows, short of their scales.
    fn numbers(entries: &[Self::Entry; LANES]) -> [T; LANES];
}

struct Full;
struct Bf16;
struct Int8;

impl<T: Real> Entries<T> for Full {
    type Entry = T;

    #[inline(always)]
    fn numbers(entries: &[T; LANES]) -> [T; LANES] {
        *entries
    }
}

impl<T: Real> Entries<T> for Bf16 {
    type Entry = u16;

    #[inline(always)]
    fn numbers(entries: &[u16; LANES]) -> [T; LANES] {
        let mut numbers = [T::default(); LANES];
        for (number, half) in numbers.iter_mut().zip(entries) {
            *number = T::from_f32(f32::from_bits(u32::from(*half) << 16));
        }
        numbers
    }
}

impl<T: Real> Entries<T> for Int8 {
    type Entry = i8;

    #[inline(always)]
    fn numbers(entries: &[i8; LANES]) -> [T; LANES] {
        let mut numbers = [T::default(); LANES];
        for (number, entry) in numbers.iter_mut().zip(entries) {
            *number = T::from_f32(f32::from(*entry));
        }
        numbers
    }
}

/// y ← Σ w_i x_i, over N groups of sixteen rows.
#[inline(always)]
fn sum<T: Real, U: Unit<T>, E: Entries<T>, const N: usize>(
    unit: U,
    weights: &[[E::Entry; LANES]],
    x: &[T],
    y: &mut [[T; LANES]],
) {
    let groups: [_; N] = core::array::from_fn(|n| {
        let rows = &weights[n * x.len()..(n + 1) * x.len()];
        rows.as_chunks::<SUMS>()
    });
    let (x_some, x_rest) = x.as_chunks::<SUMS>();
    for part in 0..U::vectors(&[T::default(); LANES]).len() {
        let mut sums = [[unit.splat(T::default()); SUMS]; N];
        for (index, x) in x_some.iter().enumerate() {
            for k in 0..SUMS {
                let x = unit.splat(x[k]);
                for n in 0..N {
                    let row = E::numbers(&groups[n].0[index][k]);
                    sums[n][k] = unit.mul_add(U::vectors(&row)[part], x, sums[n][k]);
                }
            }
        }
        for (index, x) in x_rest.iter().enumerate() {
            for n in 0..N {
                let row = E::numbers(&groups[n].1[index]);
                sums[n][0] = unit.mul_add(U::vectors(&row)[part], unit.splat(*x), sums[n][0]);
            }
        }
        for (y, sums) in y.iter_mut().zip(sums) {
            U::vectors_mut(y)[part] = total(unit, sums);
        }
    }
}

/// The sum of the sums, in pairs.
#[inline(always)]
fn total<T: Real, U: Unit<T>>(unit: U, mut sums: [U::Vector; SUMS]) -> U::Vector {
    let mut half = SUMS / 2;
    while half > 0 {
        for k in 0..half {
            sums[k] = unit.add(sums[k], sums[k + half]);
        }
        half /= 2;
    }
    sums[0]
}
