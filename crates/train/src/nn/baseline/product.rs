//! X Wᵀ for rows X, with gradients that are products too.

use candle_core::{CpuStorage, CustomOp2, DType, Layout, Result, Shape, Tensor, bail};
use rayon::prelude::*;

use crate::nn::op::{part, shaped_like, with_slices};
use crate::nn::product::{RowMajor, multiply_rows};
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
    let x = x.reshape(((), inputs))?.contiguous()?;
    let out = x.apply_op2(&weight.contiguous()?, RowsTimes)?;
    shape.push(outputs);
    out.reshape(shape)
}

struct RowsTimes;

/// Rows that one thread takes at a time.
fn piece(rows: usize) -> usize {
    rows.div_ceil(4).max(128)
}

fn forward<T: Real>((x, weight): (&[T], &[T]), [rows, inputs, outputs]: [usize; 3]) -> Vec<T> {
    let mut out = vec![T::zero(); rows * outputs];
    let weight = RowMajor::new(weight, outputs, inputs).transpose();
    let pieces = out.par_chunks_mut(piece(rows) * outputs);
    let pieces = pieces.zip(x.par_chunks(piece(rows) * inputs));
    pieces.for_each(|(out, x)| {
        let x = RowMajor::new(x, x.len() / inputs, inputs);
        multiply_rows(out, x, weight, false);
    });
    out
}

/// The gradients of X and W.
fn backward<T: Real>(
    (x, weight, slopes): (&[T], &[T], &[T]),
    [rows, inputs, outputs]: [usize; 3],
) -> [Vec<T>; 2] {
    let mut of_x = vec![T::zero(); rows * inputs];
    let weight = RowMajor::new(weight, outputs, inputs);
    let pieces = of_x.par_chunks_mut(piece(rows) * inputs);
    let pieces = pieces.zip(slopes.par_chunks(piece(rows) * outputs));
    pieces.for_each(|(out, slopes)| {
        let slopes = RowMajor::new(slopes, slopes.len() / outputs, outputs);
        multiply_rows(out, slopes, weight, false);
    });
    let mut of_weight = vec![T::zero(); outputs * inputs];
    let (x, slopes) = (
        RowMajor::new(x, rows, inputs),
        RowMajor::new(slopes, rows, outputs),
    );
    let pieces = of_weight.par_chunks_mut(piece(outputs) * inputs);
    pieces.enumerate().for_each(|(index, out)| {
        let first = index * piece(outputs);
        let own = slopes.columns(first..first + out.len() / inputs);
        multiply_rows(out, own.transpose(), x, false);
    });
    [of_x, of_weight]
}

impl CustomOp2 for RowsTimes {
    fn name(&self) -> &'static str {
        "rows times a matrix"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let ((rows, inputs), (outputs, _)) = (l1.shape().dims2()?, l2.shape().dims2()?);
        let sizes = [rows, inputs, outputs];
        let out = match s1 {
            CpuStorage::F32(_) => CpuStorage::F32(forward((part(s1, l1)?, part(s2, l2)?), sizes)),
            CpuStorage::F64(_) => CpuStorage::F64(forward((part(s1, l1)?, part(s2, l2)?), sizes)),
            _ => bail!("a network runs in f32 or f64"),
        };
        Ok((out, Shape::from((rows, outputs))))
    }

    fn bwd(
        &self,
        arg1: &Tensor,
        arg2: &Tensor,
        _res: &Tensor,
        grad_res: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [of_x, of_weight] = match arg1.dtype() {
            DType::F64 => gradients::<f64>(arg1, arg2, grad_res)?,
            _ => gradients::<f32>(arg1, arg2, grad_res)?,
        };
        Ok((Some(of_x), Some(of_weight)))
    }
}

fn gradients<T: Real>(x: &Tensor, weight: &Tensor, slopes: &Tensor) -> Result<[Tensor; 2]> {
    let ((rows, inputs), outputs) = (x.dims2()?, weight.dim(0)?);
    let sizes = [rows, inputs, outputs];
    let [of_x, of_weight] = with_slices([x, weight, slopes], |[x, weight, slopes]| {
        backward::<T>((x, weight, slopes), sizes)
    })?;
    Ok([shaped_like(of_x, x)?, shaped_like(of_weight, weight)?])
}
