//! Tensors whose gradients are formulas of our own, on any device.
//!
//! candle's way back through a product forms the gradients of both sides, constants too, and adds each
//! to a tensor of zeros: six kernels for one on the way there. On a GPU, where the host starts every
//! kernel, a training step of a small network is the time of these starts.

use candle_core::{
    CpuStorage, CudaStorage, CustomOp1, CustomOp2, CustomOp3, Device, Layout, Result, Shape,
    Storage, Tensor, bail,
};

use crate::nn::operation::Carried;

/// The gradients of the arguments, from that of the value.
type Backward<const N: usize> = Box<dyn Fn(&Tensor) -> Result<[Tensor; N]> + Send + Sync>;

/// A value that was computed from N tensors.
pub(super) struct Known<const N: usize> {
    /// A tensor.
    value: Carried,
    backward: Backward<N>,
}

/// The value as a function of one tensor.
pub(super) fn of_one(argument: &Tensor, known: Known<1>) -> Result<Tensor> {
    argument.apply_op1(known)
}

/// The value as a function of two tensors.
pub(super) fn of_two([a, b]: [&Tensor; 2], known: Known<2>) -> Result<Tensor> {
    a.apply_op2(b, known)
}

/// The value as a function of three tensors.
pub(super) fn of_three([a, b, c]: [&Tensor; 3], known: Known<3>) -> Result<Tensor> {
    a.apply_op3(b, c, known)
}

/// Runs candle's operations so that what they need to know of shapes goes to a GPU once for each
/// shape, and not before every kernel. Small numbers that operations take from the host are kept
/// there, too: none that change from step to step may be among them.
pub(super) fn with_kept_shapes<T>(
    device: &Device,
    operations: impl FnOnce() -> Result<T>,
) -> Result<T> {
    #[cfg(feature = "cuda")]
    let _kept = match device {
        Device::Cuda(device) => Some(device.enable_cuda_graph_htod_cache()),
        _ => None,
    };
    #[cfg(not(feature = "cuda"))]
    let _ = device;
    operations()
}

impl<const N: usize> Known<N> {
    /// Of a tensor that depends on no variable.
    pub(super) fn new(
        value: Tensor,
        backward: impl Fn(&Tensor) -> Result<[Tensor; N]> + Send + Sync + 'static,
    ) -> Self {
        let carried = Carried::default();
        carried.put(value);
        Self {
            value: carried,
            backward: Box::new(backward),
        }
    }

    /// Contiguous, from the start of its storage.
    fn value(&self) -> Result<Tensor> {
        let Some(value) = self.value.take::<Tensor>() else {
            bail!("a value was taken twice");
        };
        match value.layout().start_offset() {
            0 => value.contiguous(),
            _ => value.force_contiguous(),
        }
    }

    fn on_host(&self) -> Result<(CpuStorage, Shape)> {
        let value = self.value()?;
        let (storage, layout) = value.storage_and_layout();
        match &*storage {
            Storage::Cpu(storage) => Ok((storage.clone(), layout.shape().clone())),
            _ => bail!("expected a tensor on the processor"),
        }
    }

    fn on_gpu(&self) -> Result<(CudaStorage, Shape)> {
        use candle_core::backend::BackendStorage;
        let value = self.value()?;
        let (storage, layout) = value.storage_and_layout();
        match &*storage {
            Storage::Cuda(storage) => Ok((storage.try_clone(layout)?, layout.shape().clone())),
            _ => bail!("expected a tensor on a GPU"),
        }
    }

    fn gradients(&self, slopes: &Tensor) -> Result<[Tensor; N]> {
        with_kept_shapes(slopes.device(), || (self.backward)(&slopes.contiguous()?))
    }
}

const NAME: &str = "with a gradient of its own";

impl CustomOp1 for Known<1> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(&self, _: &CpuStorage, _: &Layout) -> Result<(CpuStorage, Shape)> {
        self.on_host()
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.on_gpu()
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, slopes: &Tensor) -> Result<Option<Tensor>> {
        let [only] = self.gradients(slopes)?;
        Ok(Some(only))
    }
}

impl CustomOp2 for Known<2> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.on_host()
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.on_gpu()
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        slopes: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        Ok(self.gradients(slopes)?.map(Some).into())
    }
}

impl CustomOp3 for Known<3> {
    fn name(&self) -> &'static str {
        NAME
    }

    fn cpu_fwd(
        &self,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
        _: &CpuStorage,
        _: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        self.on_host()
    }

    fn cuda_fwd(
        &self,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
        _: &CudaStorage,
        _: &Layout,
    ) -> Result<(CudaStorage, Shape)> {
        self.on_gpu()
    }

    fn bwd(
        &self,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        _: &Tensor,
        slopes: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        Ok(self.gradients(slopes)?.map(Some).into())
    }
}
