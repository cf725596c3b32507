//! The recurrence of an unfolded network from candle's own operations: what runs where the
//! processor's path does not, and the independent check of that path.

use candle_core::{Result, Tensor};

use crate::nn::baseline::unroll::{Sizes, Tensors};

/// As `unroll_op::codes`, for all forms but the formed one.
pub(super) fn codes(tensors: &Tensors, sizes: Sizes) -> Result<Tensor> {
    let (batch, codes) = (sizes.batch, sizes.codes);
    let initial = tensors.initial.reshape((1, codes))?;
    let mut last = initial.broadcast_as((batch, codes))?.contiguous()?;
    let mut all = Vec::with_capacity(sizes.length);
    for step in 0..sizes.length {
        let x = tensors.x.narrow(1, step, 1)?.squeeze(1)?;
        let carried = last.matmul(&tensors.transition.t()?)?;
        let (mut h, y, side) = match sizes.signal() {
            0 => (carried.clone(), x, carried),
            signal => {
                let dictionary = tensors.map.narrow(0, sizes.inputs, signal)?;
                let first = carried.matmul(&dictionary)?;
                let zeros = first.zeros_like()?;
                (first, Tensor::cat(&[x, carried], 1)?, zeros)
            }
        };
        for layer in 0..sizes.layers {
            let residual = (h.matmul(&tensors.map.t()?)? - &y)?;
            let step = residual.broadcast_mul(&tensors.scale)?;
            let mut u = (h - step.matmul(&tensors.map)?)?;
            if let Some(weights) = &tensors.weights {
                u = u.matmul(&weights.get(layer)?.t()?)?;
            }
            h = prox2(&u, &tensors.a.get(layer)?, &tensors.b.get(layer)?, &side)?;
        }
        all.push(h.clone());
        last = h;
    }
    Tensor::stack(&all, 1)
}

/// prox2 of rows of codes, with thresholds for each code. The cases are masks, so that the gradient
/// is that of `prox::backward` at the knots too.
pub(super) fn prox2(u: &Tensor, a: &Tensor, b: &Tensor, side: &Tensor) -> Result<Tensor> {
    let dtype = u.dtype();
    let mask = |holds: Tensor| holds.to_dtype(dtype);
    let sum = (a + b)?;
    let difference = (a - b)?;
    let (low, high) = (side.minimum(0.0)?, side.maximum(0.0)?);
    let positive = mask(side.ge(0.0)?)?;
    let sign = positive.affine(2.0, -1.0)?;
    let upper = u.broadcast_sub(&sum)?;
    let lower = u.broadcast_add(&sum)?;
    let shifted = (u - sign.broadcast_mul(&difference)?)?;
    let top = mask(upper.gt(&high)?)?;
    let bottom = mask(lower.lt(&low)?)?;
    let (above, below) = (mask(shifted.gt(&low)?)?, mask(shifted.lt(&high)?)?);
    let middle = (&above * &below)?;
    let flat = (((&top + &bottom)? + &middle)?.affine(-1.0, 1.0))?;
    // Beyond the side value: above it where that is positive, below it where it is negative.
    let (not_above, not_below) = (above.affine(-1.0, 1.0)?, below.affine(-1.0, 1.0)?);
    let negative = positive.affine(-1.0, 1.0)?;
    let beyond = ((&positive * &not_below)? + (negative * not_above)?)?;
    let held = (flat * beyond)?.mul(side)?;
    let slopes = ((top * upper)? + (bottom * lower)?)?;
    (slopes + (middle * shifted)?)? + held
}
