//! A recurrent cell over all steps of a batch, as one operation of candle.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{CpuStorage, CustomOp3, DType, Layout, Result, Shape, Tensor, bail};

use crate::nn::baseline::gates::Cell;
use crate::nn::baseline::steps::{Kept, Operands, Whole};
use crate::nn::op::{part, shaped_like, values, with_storage};
use crate::nn::plan::Size;
use crate::nn::pool::{Workspace, Workspaces};
use crate::nn::real::Real;

/// The states h, batch × L × H, from
///
/// - `inputs`, batch × L × (gates · H): the shares of the inputs in all gates;
/// - `weights`: gates · H × H, or the H weights of [`Cell::Independent`];
/// - `vector`: the biases of the inputs, then those of the state, gates · H each; α and β of
///   [`Cell::Mixed`]; the bias of [`Cell::Independent`], H.
///
/// The state before the first step is zero. `keep` says whether a gradient may be requested.
pub(super) fn recurrence(
    cell: Cell,
    (inputs, weights, vector): (&Tensor, &Tensor, &Tensor),
    workspaces: &Arc<Workspaces>,
    keep: bool,
) -> Result<Tensor> {
    let op = Recurrence {
        cell,
        keep,
        workspaces: Arc::clone(workspaces),
        kept: Mutex::new(None),
    };
    let inputs = inputs.contiguous()?;
    inputs.apply_op3(&weights.contiguous()?, &vector.contiguous()?, op)
}

struct Recurrence {
    cell: Cell,
    keep: bool,
    workspaces: Arc<Workspaces>,
    /// The `Kept<T>` of the forward pass, until the backward pass takes it.
    kept: Mutex<Option<Box<dyn Any + Send>>>,
}

/// Runs all steps on a thread of the pool, so that no step changes threads to share its work out.
fn on_threads<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| work())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recurrence {
    fn size(&self, shapes: [&Shape; 3]) -> Result<Size> {
        let (batch, length, gates) = shapes[0].dims3()?;
        let channels = gates / self.cell.gates();
        let (weights, vector) = match self.cell {
            Cell::Independent => (channels, channels),
            Cell::Mixed => (gates * channels, 2),
            Cell::Tanh | Cell::Lstm | Cell::Gru => (gates * channels, 2 * gates),
        };
        let found = (shapes[1].elem_count(), shapes[2].elem_count());
        if found != (weights, vector) || gates != channels * self.cell.gates() {
            bail!("a cell of {channels} units has {found:?} numbers, expected {weights}, {vector}");
        }
        if batch * length * channels == 0 {
            bail!("an empty batch: {batch} sequences of {length} steps");
        }
        Ok(Size {
            batch,
            length,
            channels,
        })
    }

    fn forward<T: Real>(
        &self,
        (operands, size): (Operands<'_, T>, Size),
        workspace: &Workspace<T>,
    ) -> (CpuStorage, Shape) {
        let cell = self.cell;
        let whole = Whole {
            cell,
            size,
            operands,
        };
        let kept = on_threads(|| whole.forward(self.keep, workspace));
        let out = kept.states.clone();
        if self.keep {
            *locked(&self.kept) = Some(Box::new(kept));
        }
        let shape = Shape::from((size.batch, size.length, size.channels));
        (T::to_cpu_storage_owned(out), shape)
    }

    fn backward<T: Real>(
        &self,
        arguments: [&Tensor; 3],
        slopes: &Tensor,
        workspace: &Workspace<T>,
    ) -> Result<[Tensor; 3]> {
        let size = self.size(arguments.map(Tensor::shape))?;
        let kept = locked(&self.kept).take();
        let kept = kept.and_then(|kept| kept.downcast::<Kept<T>>().ok());
        // A second backward pass through the same output forms the steps again, from the inputs.
        let inputs = match kept {
            Some(_) => Vec::new(),
            None => values::<T>(arguments[0])?,
        };
        let (vector, slopes) = (values::<T>(arguments[2])?, values::<T>(slopes)?);
        let [of_inputs, of_weights, of_vector] = with_storage(arguments[1], |storage, layout| {
            let whole = Whole {
                cell: self.cell,
                size,
                operands: Operands {
                    inputs: &inputs,
                    weights: part(storage, layout)?,
                    vector: &vector,
                },
            };
            Ok(on_threads(|| {
                let kept = kept.map_or_else(|| whole.forward(true, workspace), |kept| *kept);
                whole.backward(kept, &slopes, workspace)
            }))
        })?;
        Ok([
            shaped_like(of_inputs, arguments[0])?,
            shaped_like(of_weights, arguments[1])?,
            shaped_like(of_vector, arguments[2])?,
        ])
    }
}

fn operands<'a, T: Real>(storages: [(&'a CpuStorage, &Layout); 3]) -> Result<Operands<'a, T>> {
    let [inputs, weights, vector] = storages.map(|(storage, layout)| part(storage, layout));
    Ok(Operands {
        inputs: inputs?,
        weights: weights?,
        vector: vector?,
    })
}

impl CustomOp3 for Recurrence {
    fn name(&self) -> &'static str {
        "recurrence"
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
        let size = self.size([l1.shape(), l2.shape(), l3.shape()])?;
        let storages = [(s1, l1), (s2, l2), (s3, l3)];
        Ok(match s1 {
            CpuStorage::F32(_) => {
                self.forward((operands::<f32>(storages)?, size), &self.workspaces.single)
            }
            CpuStorage::F64(_) => {
                self.forward((operands::<f64>(storages)?, size), &self.workspaces.double)
            }
            _ => bail!("a recurrence runs in f32 or f64"),
        })
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
        let [inputs, weights, vector] = match arg1.dtype() {
            DType::F64 => self.backward(arguments, grad_res, &self.workspaces.double)?,
            _ => self.backward(arguments, grad_res, &self.workspaces.single)?,
        };
        Ok((Some(inputs), Some(weights), Some(vector)))
    }
}
