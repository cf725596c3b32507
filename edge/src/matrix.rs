//! y = W x + b, bound by the bytes of W: every entry is read once, in the order of the memory.

use crate::Fault;
use crate::Image;
use crate::LANES;
use crate::Matrix;
use crate::Real;
use crate::Unit;
use crate::code;

/// Inputs whose products go to different sums, so that no sum waits for the one before.
const SUMS: usize = 4;
/// Inputs whose small entries are widened at once.
const WIDENED: usize = 16;

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

/// The outputs of every stream. Sixteen rows at a time serve all streams while they are near.
#[inline(always)]
pub(crate) fn apply<T: Real, U: Unit<T>>(
    unit: U,
    image: &Image<'_, T>,
    matrix: &Matrix,
    mut streams: Streams<'_, T>,
) -> Result<(), Fault> {
    let (outputs, inputs) = (matrix.outputs as usize, matrix.inputs as usize);
    let (at, count) = (matrix.weights_at, outputs * inputs);
    match matrix.entries {
        code::FULL => {
            let weights = image.lanes(at, count, "matrix")?;
            each_tile(matrix, &mut streams, |tile, x, y| {
                let rows = weights.get(tile * inputs..(tile + 1) * inputs);
                sum_products(unit, rows.unwrap_or_default(), x, y);
            });
        }
        code::BF16 => {
            let weights = image.slice::<u16>(at, count, "matrix")?.as_chunks().0;
            each_tile(matrix, &mut streams, |tile, x, y| {
                let rows = weights.get(tile * inputs..(tile + 1) * inputs);
                let widen = |half: u16| {
                    let bits = u32::from(half) << 16;
                    T::from_f32(f32::from_bits(bits))
                };
                sum_widened(unit, rows.unwrap_or_default(), x, y, widen);
            });
        }
        _ => {
            let weights = image.slice::<i8>(at, count, "matrix")?.as_chunks().0;
            let scales = image.lanes(matrix.scales_at, outputs, "scales")?;
            each_tile(matrix, &mut streams, |tile, x, y| {
                let rows = weights.get(tile * inputs..(tile + 1) * inputs);
                let widen = |entry: i8| T::from_f32(f32::from(entry));
                sum_widened(unit, rows.unwrap_or_default(), x, y, widen);
                if let Some(scales) = scales.get(tile) {
                    y.iter_mut().zip(scales).for_each(|(y, s)| *y = *y * *s);
                }
            });
        }
    }
    add_bias(image, matrix, &mut streams)
}

/// Calls `rows` for every group of sixteen rows and every stream, with the stream's inputs and the
/// group's outputs.
#[inline(always)]
fn each_tile<T: Real>(
    matrix: &Matrix,
    streams: &mut Streams<'_, T>,
    mut rows: impl FnMut(usize, &[T], &mut [T; LANES]),
) {
    let (outputs, inputs) = (matrix.outputs as usize, matrix.inputs as usize);
    for tile in 0..outputs / LANES {
        let x = streams.inputs.chunks_exact(streams.input_step);
        let y = streams.outputs.chunks_exact_mut(outputs);
        for (x, y) in x.zip(y) {
            if let (Some(x), Some(y)) = (x.get(..inputs), y.as_chunks_mut().0.get_mut(tile)) {
                rows(tile, x, y);
            }
        }
    }
}

#[inline(always)]
fn add_bias<T: Real>(
    image: &Image<'_, T>,
    matrix: &Matrix,
    streams: &mut Streams<'_, T>,
) -> Result<(), Fault> {
    if matrix.bias_at == 0 {
        return Ok(());
    }
    let outputs = matrix.outputs as usize;
    let bias = image.numbers(matrix.bias_at, outputs, "bias")?;
    for y in streams.outputs.chunks_exact_mut(outputs) {
        y.iter_mut().zip(bias).for_each(|(y, b)| *y += *b);
    }
    Ok(())
}

/// y ← Σ w_i x_i, over sixteen rows.
#[inline(always)]
fn sum_products<T: Real, U: Unit<T>>(unit: U, weights: &[[T; LANES]], x: &[T], y: &mut [T; LANES]) {
    for (part, out) in U::vectors_mut(y).iter_mut().enumerate() {
        let zero = unit.splat(T::default());
        let mut sums = [zero; SUMS];
        let (fours, rest) = weights.as_chunks::<SUMS>();
        let (x_fours, x_rest) = x.as_chunks::<SUMS>();
        for (w, x) in fours.iter().zip(x_fours) {
            for k in 0..SUMS {
                let row = U::vectors(&w[k]);
                sums[k] = unit.mul_add(row[part], unit.splat(x[k]), sums[k]);
            }
        }
        for (w, x) in rest.iter().zip(x_rest) {
            let row = U::vectors(w);
            sums[0] = unit.mul_add(row[part], unit.splat(*x), sums[0]);
        }
        let (left, right) = (unit.add(sums[0], sums[1]), unit.add(sums[2], sums[3]));
        *out = unit.add(left, right);
    }
}

/// The same with entries that are widened first, a few inputs at a time.
#[inline(always)]
fn sum_widened<T: Real, U: Unit<T>, E: Copy>(
    unit: U,
    weights: &[[E; LANES]],
    x: &[T],
    y: &mut [T; LANES],
    widen: impl Fn(E) -> T,
) {
    let mut wide = [[T::default(); LANES]; WIDENED];
    let mut part = [T::default(); LANES];
    *y = part;
    for (some, x) in weights.chunks(WIDENED).zip(x.chunks(WIDENED)) {
        for (wide, narrow) in wide.iter_mut().zip(some) {
            for (wide, narrow) in wide.iter_mut().zip(narrow) {
                *wide = widen(*narrow);
            }
        }
        sum_products(unit, wide.get(..x.len()).unwrap_or_default(), x, &mut part);
        y.iter_mut().zip(&part).for_each(|(y, more)| *y += *more);
    }
}
