//! Operations of candle on the processor, each with a gradient of its own.

use std::any::Any;
use std::sync::{Mutex, PoisonError};

#[cfg(feature = "baselines")]
use candle_core::CustomOp2;
use candle_core::backend::BackendStorage;
use candle_core::{
    CpuStorage, CustomOp3, DType, Device, Layout, Result, Shape, Storage, Tensor, WithDType, bail,
};

use crate::nn::real::Real;

/// A contiguous tensor on the processor.
#[derive(Clone, Copy)]
pub(super) struct Argument<'a> {
    storage: &'a CpuStorage,
    layout: &'a Layout,
}

impl<'a> Argument<'a> {
    pub(super) fn dtype(self) -> DType {
        self.storage.dtype()
    }

    pub(super) fn shape(self) -> &'a Shape {
        self.layout.shape()
    }

    /// # Errors
    /// Another number type.
    pub(super) fn numbers<T: WithDType>(self) -> Result<&'a [T]> {
        let all = self.storage.as_slice::<T>()?;
        match self.layout.contiguous_offsets() {
            Some((start, end)) => Ok(&all[start..end]),
            None => bail!("an operation takes contiguous tensors"),
        }
    }

    /// A tensor of the same shape.
    pub(super) fn shaped<T: WithDType>(self, numbers: Vec<T>) -> Result<Tensor> {
        Tensor::from_vec(numbers, self.shape(), &Device::Cpu)
    }
}

/// An operation on N tensors of the processor. T is the number type of the last one.
pub(super) trait Operation<const N: usize>: Send + Sync + 'static {
    const NAME: &'static str;

    fn forward<T: Real>(&self, arguments: [Argument<'_>; N]) -> Result<(CpuStorage, Shape)>;

    /// The gradients of the arguments, from that of the result. `None` for those that need none.
    fn backward<T: Real>(
        &self,
        arguments: [Argument<'_>; N],
        slopes: Argument<'_>,
    ) -> Result<[Option<Tensor>; N]>;
}

/// Applies an operation to two tensors.
#[cfg(feature = "baselines")]
pub(super) fn apply2(operation: impl Operation<2>, [a, b]: [&Tensor; 2]) -> Result<Tensor> {
    a.contiguous()?
        .apply_op2(&b.contiguous()?, Fused(operation))
}

/// Applies an operation to three tensors.
pub(super) fn apply3(operation: impl Operation<3>, [a, b, c]: [&Tensor; 3]) -> Result<Tensor> {
    let (b, c) = (b.contiguous()?, c.contiguous()?);
    a.contiguous()?.apply_op3(&b, &c, Fused(operation))
}

struct Fused<O>(O);

impl<O> Fused<O> {
    fn forward<const N: usize>(
        &self,
        storages: [&CpuStorage; N],
        layouts: [&Layout; N],
    ) -> Result<(CpuStorage, Shape)>
    where
        O: Operation<N>,
    {
        let arguments = std::array::from_fn(|index| Argument {
            storage: storages[index],
            layout: layouts[index],
        });
        match storages[N - 1].dtype() {
            DType::F32 => self.0.forward::<f32>(arguments),
            DType::F64 => self.0.forward::<f64>(arguments),
            found => bail!("{} runs in f32 or f64, not in {found:?}", O::NAME),
        }
    }

    fn backward<const N: usize>(
        &self,
        arguments: [&Tensor; N],
        slopes: &Tensor,
    ) -> Result<[Option<Tensor>; N]>
    where
        O: Operation<N>,
    {
        let tensors = arguments.into_iter().chain([slopes]);
        let tensors: Vec<Tensor> = tensors.map(Tensor::contiguous).collect::<Result<_>>()?;
        let held: Vec<_> = tensors.iter().map(Tensor::storage_and_layout).collect();
        let mut all = Vec::with_capacity(N + 1);
        for (storage, layout) in &held {
            match &**storage {
                Storage::Cpu(storage) => all.push(Argument { storage, layout }),
                _ => bail!("expected a tensor on the processor"),
            }
        }
        let arguments = std::array::from_fn(|index| all[index]);
        match all[N - 1].dtype() {
            DType::F64 => self.0.backward::<f64>(arguments, all[N]),
            _ => self.0.backward::<f32>(arguments, all[N]),
        }
    }
}

#[cfg(feature = "baselines")]
impl<O: Operation<2>> CustomOp2 for Fused<O> {
    fn name(&self) -> &'static str {
        O::NAME
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.forward([s1, s2], [l1, l2])
    }

    fn bwd(
        &self,
        arg1: &Tensor,
        arg2: &Tensor,
        _res: &Tensor,
        grad_res: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok(self.backward([arg1, arg2], grad_res)?.into())
    }
}

impl<O: Operation<3>> CustomOp3 for Fused<O> {
    fn name(&self) -> &'static str {
        O::NAME
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
        self.forward([s1, s2, s3], [l1, l2, l3])
    }

    fn bwd(
        &self,
        arg1: &Tensor,
        arg2: &Tensor,
        arg3: &Tensor,
        _res: &Tensor,
        grad_res: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        Ok(self.backward([arg1, arg2, arg3], grad_res)?.into())
    }
}

/// What a forward pass leaves for the backward pass. A second backward pass finds nothing.
#[derive(Default)]
pub(super) struct Carried(Mutex<Option<Box<dyn Any + Send>>>);

impl Carried {
    pub(super) fn put<C: Send + 'static>(&self, carried: C) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(carried));
    }

    pub(super) fn take<C: 'static>(&self) -> Option<C> {
        let carried = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        Some(*carried?.downcast::<C>().ok()?)
    }
}
