//! The recurrence of an unfolded network as an operation of candle.

use std::any::Any;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor, bail};

use crate::nn::baseline::unroll::{Numbers, Saved, Sizes};
use crate::nn::baseline::{unroll, unroll_backward, unroll_plain};
use crate::nn::op::{part, shaped_like, with_slices};
use crate::nn::pool::{Workspace, Workspaces};
use crate::nn::real::Real;

/// The tensors of a recurrence, as [`Numbers`] has them.
pub(super) struct Tensors {
    /// Z, layers × codes × codes, or W_2.
    pub(super) weights: Option<Tensor>,
    /// G_c or P, codes × codes, or F Q_D, signal × codes.
    pub(super) transition: Tensor,
    /// batch × L × inputs.
    pub(super) x: Tensor,
    /// M, rows × codes.
    pub(super) map: Tensor,
    /// w, one for each row.
    pub(super) scale: Tensor,
    /// layers × codes.
    pub(super) a: Tensor,
    pub(super) b: Tensor,
    /// h_0.
    pub(super) initial: Tensor,
    /// ε, one number.
    pub(super) pull: Tensor,
}

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
        Some(weights) => weights.contiguous()?,
        None => Tensor::zeros(1, flat.dtype(), flat.device())?,
    };
    let op = Unrolled {
        sizes,
        workspaces: Arc::clone(workspaces),
        saved: Mutex::new(None),
    };
    weights.apply_op3(&tensors.transition.contiguous()?, &flat, op)
}

struct Unrolled {
    sizes: Sizes,
    workspaces: Arc<Workspaces>,
    /// The `Saved<T>` of the forward pass.
    saved: Mutex<Option<Box<dyn Any + Send>>>,
}

impl Unrolled {
    fn numbers<'a, T: Real>(
        &self,
        weights: &'a [T],
        transition: &'a [T],
        parts: &'a [T],
    ) -> Numbers<'a, T> {
        let mut rest = parts;
        let [x, map, scale, a, b, initial, pull] = self.sizes.parts().map(|size| {
            let (own, behind) = rest.split_at(size);
            rest = behind;
            own
        });
        Numbers {
            weights,
            transition,
            x,
            map,
            scale,
            a,
            b,
            initial,
            pull,
        }
    }

    fn forward<T: Real>(&self, numbers: Numbers<'_, T>, workspace: &Workspace<T>) -> Vec<T> {
        let (out, saved) = unroll::forward(numbers, self.sizes, workspace);
        let mut place = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        *place = Some(Box::new(saved));
        out
    }

    fn backward<T: Real>(
        &self,
        arguments: [&Tensor; 3],
        g: &Tensor,
        workspace: &Workspace<T>,
    ) -> Result<[Option<Tensor>; 3]> {
        let [weights, transition, parts] = arguments;
        let mut place = self.saved.lock().unwrap_or_else(PoisonError::into_inner);
        let saved = place
            .take()
            .and_then(|saved| saved.downcast::<Saved<T>>().ok());
        drop(place);
        let slices = [weights, transition, parts, g];
        let found = with_slices(slices, |[weights, transition, parts, g]| {
            let numbers = self.numbers(weights, transition, parts);
            let saved = match saved {
                Some(saved) => *saved,
                // A second backward pass through the same output.
                None => unroll::forward(numbers, self.sizes, workspace).1,
            };
            unroll_backward::backward(g, numbers, &saved, (self.sizes, workspace))
        })?;
        let of_weights = match self.sizes.squares() {
            0 => None,
            _ => Some(shaped_like(found.weights, weights)?),
        };
        let of_transition = shaped_like(found.transition, transition)?;
        let of_parts = shaped_like(found.parts, parts)?;
        Ok([of_weights, Some(of_transition), Some(of_parts)])
    }
}

impl CustomOp3 for Unrolled {
    fn name(&self) -> &'static str {
        "unfolded recurrence"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let out = match s3 {
            CpuStorage::F32(_) => {
                let numbers = self.numbers(part(s1, l1)?, part(s2, l2)?, part(s3, l3)?);
                CpuStorage::F32(self.forward(numbers, &self.workspaces.single))
            }
            CpuStorage::F64(_) => {
                let numbers = self.numbers(part(s1, l1)?, part(s2, l2)?, part(s3, l3)?);
                CpuStorage::F64(self.forward(numbers, &self.workspaces.double))
            }
            _ => bail!("an unfolded network runs in f32 or f64"),
        };
        let Sizes {
            batch,
            length,
            codes,
            ..
        } = self.sizes;
        Ok((out, Shape::from((batch, length, codes))))
    }

    fn bwd(
        &self,
        arg1: &Tensor,
        arg2: &Tensor,
        arg3: &Tensor,
        _res: &Tensor,
        grad_res: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let arguments = [arg1, arg2, arg3];
        let [weights, transition, parts] = match arg3.dtype() {
            DType::F64 => self.backward(arguments, grad_res, &self.workspaces.double)?,
            _ => self.backward(arguments, grad_res, &self.workspaces.single)?,
        };
        Ok((weights, transition, parts))
    }
}
