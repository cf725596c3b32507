//! X Wᵀ for rows X, with gradients that are products too.

use candle_core::{CpuStorage, Result, Shape, Tensor, bail};
use hankelite_kernels::{RowMajor, multiply_rows};
use rayon::prelude::*;

use crate::nn::operation::{Argument, Operation, apply2};
use crate::nn::real::Real;

/// (…, inputs) and W, outputs × inputs, to (…, outputs).
///
/// candle's own product gives the gradient of Wᵀ, whose transpose is added to zeros entry by
/// entry; at a thousand units that takes as long as the product.
pub(super) fn rows_times(x: &Tensor, weight: &Tensor) -> Result<Tensor> {
    if !x.device().is_cpu() {
        return x.broadcast_matmul(&weight.t()?);
    }
    let mut shape = x.dims().to_vec();
    let (inputs, (outputs, expected)) = (shape.pop().unwrap_or(0), weight.dims2()?);
    if inputs != expected {
        bail!("rows of {inputs} numbers for a map that takes {expected}");
    }
    let out = apply2(RowsTimes, [&x.reshape(((), inputs))?, weight])?;
    shape.push(outputs);
    out.reshape(shape)
}

struct RowsTimes;

/// Rows that one thread takes at a time.
fn piece(rows: usize) -> usize {
    rows.div_ceil(4).max(128)
}

/// X is rows × inputs, W outputs × inputs.
#[derive(Clone, Copy)]
struct Sizes {
    rows: usize,
    inputs: usize,
    outputs: usize,
}

impl Sizes {
    fn of(x: &Shape, weight: &Shape) -> Result<Self> {
        let ((rows, inputs), (outputs, _)) = (x.dims2()?, weight.dims2()?);
        Ok(Self {
            rows,
            inputs,
            outputs,
        })
    }
}

fn forward<T: Real>(x: &[T], weight: &[T], sizes: Sizes) -> Vec<T> {
    let mut out = vec![T::zero(); sizes.rows * sizes.outputs];
    let weight = RowMajor::new(weight, sizes.outputs, sizes.inputs).transpose();
    let pieces = out.par_chunks_mut(piece(sizes.rows) * sizes.outputs);
    let pieces = pieces.zip(x.par_chunks(piece(sizes.rows) * sizes.inputs));
    pieces.for_each(|(out, x)| {
        let x = RowMajor::new(x, x.len() / sizes.inputs, sizes.inputs);
        multiply_rows(out, x, weight, false);
    });
    out
}

fn gradient_of_rows<T: Real>(weight: &[T], slopes: &[T], sizes: Sizes) -> Vec<T> {
    let mut of_x = vec![T::zero(); sizes.rows * sizes.inputs];
    let weight = RowMajor::new(weight, sizes.outputs, sizes.inputs);
    let pieces = of_x.par_chunks_mut(piece(sizes.rows) * sizes.inputs);
    let pieces = pieces.zip(slopes.par_chunks(piece(sizes.rows) * sizes.outputs));
    pieces.for_each(|(out, slopes)| {
        let slopes = RowMajor::new(slopes, slopes.len() / sizes.outputs, sizes.outputs);
        multiply_rows(out, slopes, weight, false);
    });
    of_x
}

fn gradient_of_weight<T: Real>(x: &[T], slopes: &[T], sizes: Sizes) -> Vec<T> {
    let mut of_weight = vec![T::zero(); sizes.outputs * sizes.inputs];
    let x = RowMajor::new(x, sizes.rows, sizes.inputs);
    let slopes = RowMajor::new(slopes, sizes.rows, sizes.outputs);
    let pieces = of_weight.par_chunks_mut(piece(sizes.outputs) * sizes.inputs);
    pieces.enumerate().for_each(|(index, out)| {
        let first = index * piece(sizes.outputs);
        let own = slopes.columns(first..first + out.len() / sizes.inputs);
        multiply_rows(out, own.transpose(), x, false);
    });
    of_weight
}

impl Operation<2> for RowsTimes {
    const NAME: &'static str = "rows times a matrix";

    fn forward<T: Real>(&self, [x, weight]: [Argument<'_>; 2]) -> Result<(CpuStorage, Shape)> {
        let sizes = Sizes::of(x.shape(), weight.shape())?;
        let out = forward::<T>(x.numbers()?, weight.numbers()?, sizes);
        let shape = Shape::from((sizes.rows, sizes.outputs));
        Ok((T::to_cpu_storage_owned(out), shape))
    }

    fn backward<T: Real>(
        &self,
        [x, weight]: [Argument<'_>; 2],
        slopes: Argument<'_>,
    ) -> Result<[Option<Tensor>; 2]> {
        let sizes = Sizes::of(x.shape(), weight.shape())?;
        let slopes = slopes.numbers::<T>()?;
        let of_x = gradient_of_rows(weight.numbers()?, slopes, sizes);
        let of_weight = gradient_of_weight(x.numbers()?, slopes, sizes);
        Ok([Some(x.shaped(of_x)?), Some(weight.shaped(of_weight)?)])
    }
}
