//! The recurrence of an unfolded network as an operation of candle.

use std::sync::Arc;

use candle_core::{CpuStorage, Result, Shape, Tensor, bail};
use hankelite_kernels::Workspaces;

use crate::nn::baseline::unroll::{Numbers, Saved, Sizes, Tensors};
use crate::nn::baseline::{unroll, unroll_backward, unroll_plain};
use crate::nn::operation::{Argument, Carried, Operation, apply3};
use crate::nn::real::Real;

/// The codes, batch × L × codes. On the processor this is one operation with its own gradient;
/// elsewhere it is put together from candle's.
pub(super) fn codes(
    tensors: &Tensors,
    sizes: Sizes,
    workspaces: &Arc<Workspaces>,
) -> Result<Tensor> {
    let parts = [
        &tensors.x,
        &tensors.map,
        &tensors.scale,
        &tensors.a,
        &tensors.b,
        &tensors.initial,
        &tensors.pull,
    ];
    let found = parts.map(Tensor::elem_count);
    if found != sizes.parts() {
        let expected = sizes.parts();
        bail!("a recurrence with {found:?} numbers in its parts, expected {expected:?}");
    }
    let weights = tensors.weights.as_ref().map_or(0, Tensor::elem_count);
    if (tensors.transition.elem_count(), weights) != sizes.matrices() {
        bail!(
            "a recurrence whose matrices do not fit its {} codes",
            sizes.codes
        );
    }
    if sizes.batch * sizes.length == 0 {
        let Sizes { batch, length, .. } = sizes;
        bail!("an empty batch: {batch} sequences of {length} steps");
    }
    if !tensors.x.device().is_cpu() {
        return unroll_plain::codes(tensors, sizes);
    }
    let flat = parts.map(Tensor::flatten_all);
    let flat = Tensor::cat(&flat.into_iter().collect::<Result<Vec<_>>>()?, 0)?;
    let weights = match &tensors.weights {
        Some(weights) => weights.clone(),
        None => Tensor::zeros(1, flat.dtype(), flat.device())?,
    };
    let op = Unrolled {
        sizes,
        workspaces: Arc::clone(workspaces),
        saved: Carried::default(),
    };
    apply3(op, [&weights, &tensors.transition, &flat])
}

struct Unrolled {
    sizes: Sizes,
    workspaces: Arc<Workspaces>,
    /// The `Saved<T>` of the forward pass.
    saved: Carried,
}

impl Unrolled {
    fn numbers<'a, T: Real>(&self, arguments: [Argument<'a>; 3]) -> Result<Numbers<'a, T>> {
        let [weights, transition, parts] = arguments;
        let mut rest = parts.numbers()?;
        let [x, map, scale, a, b, initial, pull] = self.sizes.parts().map(|size| {
            let (own, behind) = rest.split_at(size);
            rest = behind;
            own
        });
        Ok(Numbers {
            weights: weights.numbers()?,
            transition: transition.numbers()?,
            x,
            map,
            scale,
            a,
            b,
            initial,
            pull,
        })
    }
}

impl Operation<3> for Unrolled {
    const NAME: &'static str = "unfolded recurrence";

    fn forward<T: Real>(&self, arguments: [Argument<'_>; 3]) -> Result<(CpuStorage, Shape)> {
        let (sizes, workspace) = (self.sizes, self.workspaces.of());
        let (out, saved) = unroll::forward(self.numbers::<T>(arguments)?, sizes, workspace);
        self.saved.put(saved);
        let shape = Shape::from((sizes.batch, sizes.length, sizes.codes));
        Ok((T::to_cpu_storage_owned(out), shape))
    }

    fn backward<T: Real>(
        &self,
        arguments: [Argument<'_>; 3],
        slopes: Argument<'_>,
    ) -> Result<[Option<Tensor>; 3]> {
        let (sizes, workspace) = (self.sizes, self.workspaces.of());
        let numbers = self.numbers::<T>(arguments)?;
        let saved = self.saved.take::<Saved<T>>();
        // A second backward pass through the same output forms the steps again.
        let saved = saved.unwrap_or_else(|| unroll::forward(numbers, sizes, workspace).1);
        let found = unroll_backward::backward(slopes.numbers()?, numbers, &saved, sizes, workspace);
        let [weights, transition, parts] = arguments;
        let of_weights = match sizes.squares() {
            0 => None,
            _ => Some(weights.shaped(found.weights)?),
        };
        Ok([
            of_weights,
            Some(transition.shaped(found.transition)?),
            Some(parts.shaped(found.parts)?),
        ])
    }
}
