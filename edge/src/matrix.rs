//! y = W x + b, bound by the bytes of W: every entry is read once, in the order of the memory.

use bytemuck::Pod;

use crate::Fault;
use crate::Image;
use crate::LANES;
use crate::Matrix;
use crate::Real;
use crate::Unit;
use crate::code;

/// Inputs whose products go to different sums, so that no sum waits for the one before.
const SUMS: usize = 8;

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
    image: &Image<'_, T>,
    matrix: &Matrix,
    mut streams: Streams<'_, T>,
) -> Result<(), Fault> {
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

/// y ← W x. Sixteen rows at a time serve all streams while they are near.
///
/// Nothing here is a closure: those would be compiled without the features of the vector unit.
#[inline(always)]
fn products<T: Real, U: Unit<T>, E: Entries<T>>(
    unit: U,
    image: &Image<'_, T>,
    matrix: &Matrix,
    streams: &mut Streams<'_, T>,
) -> Result<(), Fault> {
    let (outputs, inputs) = (matrix.outputs as usize, matrix.inputs as usize);
    let weights = image.slice::<E::Entry>(matrix.weights_at, outputs * inputs, "matrix")?;
    let weights = weights.as_chunks::<LANES>().0;
    for tile in 0..outputs / LANES {
        let rows = &weights[tile * inputs..(tile + 1) * inputs];
        let x = streams.inputs.chunks_exact(streams.input_step);
        let y = streams.outputs.chunks_exact_mut(outputs);
        for (x, y) in x.zip(y) {
            E::sum(unit, rows, &x[..inputs], &mut y.as_chunks_mut().0[tile]);
        }
    }
    Ok(())
}

/// How the entries of a matrix are stored.
trait Entries<T: Real> {
    type Entry: Pod;

    /// y ← Σ w_i x_i, over sixteen rows; short of their scales.
    fn sum<U: Unit<T>>(unit: U, weights: &[[Self::Entry; LANES]], x: &[T], y: &mut [T; LANES]);
}

struct Full;
struct Bf16;
struct Int8;

impl<T: Real> Entries<T> for Full {
    type Entry = T;

    #[inline(always)]
    fn sum<U: Unit<T>>(unit: U, weights: &[[T; LANES]], x: &[T], y: &mut [T; LANES]) {
        sum_products(unit, weights, x, y);
    }
}

/// Entries that are widened row by row.
macro_rules! small_entries {
    ($name:ident, $entry:ident, |$narrow:ident| $wide:expr) => {
        impl<T: Real> Entries<T> for $name {
            type Entry = $entry;

            #[inline(always)]
            fn sum<U: Unit<T>>(unit: U, weights: &[[$entry; LANES]], x: &[T], y: &mut [T; LANES]) {
                for (part, out) in U::vectors_mut(y).iter_mut().enumerate() {
                    let mut sums = [unit.splat(T::default()); SUMS];
                    for (some, x) in weights.chunks(SUMS).zip(x.chunks(SUMS)) {
                        for ((w, x), sum) in some.iter().zip(x).zip(&mut sums) {
                            let mut wide = [T::default(); LANES];
                            for (wide, $narrow) in wide.iter_mut().zip(w) {
                                *wide = T::from_f32($wide);
                            }
                            *sum = unit.mul_add(U::vectors(&wide)[part], unit.splat(*x), *sum);
                        }
                    }
                    *out = total(unit, sums);
                }
            }
        }
    };
}

small_entries!(Bf16, u16, |half| f32::from_bits(u32::from(*half) << 16));
small_entries!(Int8, i8, |entry| f32::from(*entry));

/// y ← Σ w_i x_i, over sixteen rows.
#[inline(always)]
fn sum_products<T: Real, U: Unit<T>>(unit: U, weights: &[[T; LANES]], x: &[T], y: &mut [T; LANES]) {
    for (part, out) in U::vectors_mut(y).iter_mut().enumerate() {
        let zero = unit.splat(T::default());
        let mut sums = [zero; SUMS];
        let (some, rest) = weights.as_chunks::<SUMS>();
        let (x_some, x_rest) = x.as_chunks::<SUMS>();
        for (w, x) in some.iter().zip(x_some) {
            for k in 0..SUMS {
                let row = U::vectors(&w[k]);
                sums[k] = unit.mul_add(row[part], unit.splat(x[k]), sums[k]);
            }
        }
        for ((w, x), sum) in rest.iter().zip(x_rest).zip(&mut sums) {
            *sum = unit.mul_add(U::vectors(w)[part], unit.splat(*x), *sum);
        }
        *out = total(unit, sums);
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
