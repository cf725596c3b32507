//! y = W x + b, bound by the bytes of W: every entry is read once, in the order of the memory.

use crate::entries::{Bf16, Entries, Full};
use crate::streams::Streams;
use crate::{ImageView, LANES, Matrix, Piece, Processor, Real, StepFault, Unit, code, integers};

/// Inputs whose products go to different sums, so that no sum waits for the one before.
const SUMS: usize = 4;
/// Groups of rows that share the reading of an input; on bare metal one, as a second loop takes flash.
const TILES: usize = if cfg!(target_os = "none") { 1 } else { 2 };

/// The outputs of every stream. `room` is for inputs that are rounded.
#[cfg_attr(not(target_os = "none"), inline(always))]
pub(crate) fn apply<T: Real, U: Processor<T>>(
    unit: U,
    image: &ImageView<'_, T>,
    matrix: &Matrix,
    room: &mut [T],
    streams: Streams<'_, T>,
) -> Result<(), StepFault> {
    unit.apart(Map {
        unit,
        image,
        matrix,
        room,
        streams,
    })
}

struct Map<'i, 's, 'v, T, U> {
    unit: U,
    image: &'s ImageView<'i, T>,
    matrix: &'s Matrix,
    room: &'v mut [T],
    streams: Streams<'v, T>,
}

impl<T: Real, U: Processor<T>> Piece for Map<'_, '_, '_, T, U> {
    type Output = Result<(), StepFault>;

    #[cfg_attr(not(target_os = "none"), inline(always))]
    fn run(self) -> Self::Output {
        let Map {
            unit,
            image,
            matrix,
            room,
            mut streams,
        } = self;
        match matrix.entries {
            code::FULL => products::<T, U, Full>(unit, image, matrix, &mut streams)?,
            code::BF16 => products::<T, U, Bf16>(unit, image, matrix, &mut streams)?,
            _ => integers::apply(unit, image, matrix, room, &mut streams)?,
        }
        if let Some(bias) = image.bias(matrix)? {
            for y in streams.outputs.chunks_exact_mut(matrix.outputs as usize) {
                bias.add_to(unit, y);
            }
        }
        Ok(())
    }
}

/// y ← W x. A few rows at a time serve all streams while they are near.
///
/// Nothing here is a closure: those would be compiled without the features of the vector unit.
#[cfg_attr(not(target_os = "none"), inline(always))]
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

/// y ← Σ w_i x_i, over N groups of sixteen rows.
#[cfg_attr(not(target_os = "none"), inline(always))]
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
    for part in 0..LANES / U::WIDTH {
        let mut sums = [[unit.splat(T::default()); SUMS]; N];
        for (index, x) in x_some.iter().enumerate() {
            for k in 0..SUMS {
                let x = unit.splat(x[k]);
                for n in 0..N {
                    let row = E::vector(unit, &groups[n].0[index][k], part);
                    sums[n][k] = unit.mul_add(row, x, sums[n][k]);
                }
            }
        }
        for (index, x) in x_rest.iter().enumerate() {
            for n in 0..N {
                let row = E::vector(unit, &groups[n].1[index], part);
                sums[n][0] = unit.mul_add(row, unit.splat(*x), sums[n][0]);
            }
        }
        for (y, sums) in y.iter_mut().zip(sums) {
            U::vectors_mut(y)[part] = total(unit, sums);
        }
    }
}

/// The sum of the sums, in pairs.
#[cfg_attr(not(target_os = "none"), inline(always))]
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
