//! A recurrent cell over all steps of a batch, as one operation of candle.

use std::sync::Arc;

use candle_core::{CpuStorage, Result, Shape, Tensor, bail};
use hankelite_kernels::Workspaces;

use crate::nn::baseline::gates::{Cell, CellTensors};
use crate::nn::baseline::steps::{Kept, Operands, Whole};
use crate::nn::operation::{Argument, Carried, Operation, apply3};
use crate::nn::plan::Size;
use crate::nn::real::Real;

/// The states h, batch × L × H. The state before the first step is zero. `keep` is set where a
/// gradient may be requested.
pub(super) fn recurrence(
    cell: Cell,
    tensors: CellTensors<'_>,
    workspaces: &Arc<Workspaces>,
    keep: bool,
) -> Result<Tensor> {
    let op = Recurrence {
        cell,
        keep,
        workspaces: Arc::clone(workspaces),
        kept: Carried::default(),
    };
    apply3(op, [tensors.inputs, tensors.weights, tensors.vector])
}

struct Recurrence {
    cell: Cell,
    keep: bool,
    workspaces: Arc<Workspaces>,
    /// The `Kept<T>` of the forward pass.
    kept: Carried,
}

/// Runs all steps on a thread of the pool, so that no step changes threads to share its work out.
fn on_threads<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| work())
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

    fn whole<'a, T: Real>(&self, arguments: [Argument<'a>; 3]) -> Result<Whole<'a, T>> {
        let size = self.size(arguments.map(Argument::shape))?;
        let [inputs, weights, vector] = arguments;
        Ok(Whole {
            cell: self.cell,
            size,
            operands: Operands {
                inputs: inputs.numbers()?,
                weights: weights.numbers()?,
                vector: vector.numbers()?,
            },
        })
    }
}

impl Operation<3> for Recurrence {
    const NAME: &'static str = "recurrence";

    fn forward<T: Real>(&self, arguments: [Argument<'_>; 3]) -> Result<(CpuStorage, Shape)> {
        let (whole, workspace) = (self.whole::<T>(arguments)?, self.workspaces.of());
        let kept = on_threads(|| whole.forward(self.keep, workspace));
        let out = kept.states.clone();
        if self.keep {
            self.kept.put(kept);
        }
        let size = whole.size;
        let shape = Shape::from((size.batch, size.length, size.channels));
        Ok((T::to_cpu_storage_owned(out), shape))
    }

    fn backward<T: Real>(
        &self,
        arguments: [Argument<'_>; 3],
        slopes: Argument<'_>,
    ) -> Result<[Option<Tensor>; 3]> {
        let (whole, workspace) = (self.whole::<T>(arguments)?, self.workspaces.of());
        let (kept, slopes) = (self.kept.take::<Kept<T>>(), slopes.numbers()?);
        let [of_inputs, of_weights, of_vector] = on_threads(|| {
            // A second backward pass through the same output forms the steps again.
            let kept = kept.unwrap_or_else(|| whole.forward(true, workspace));
            whole.backward(kept, slopes, workspace)
        });
        let [inputs, weights, vector] = arguments;
        Ok([
            Some(inputs.shaped(of_inputs)?),
            Some(weights.shaped(of_weights)?),
            Some(vector.shaped(of_vector)?),
        ])
    }
}
