//! Encoder, blocks and pooling as one operation of candle.

use std::any::Any;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use candle_core::{
    CpuStorage, CustomOp3, DType, Layout, Result, Shape, Storage, Tensor, WithDType, bail,
};

use crate::nn::encode::{Encoding, Steps, encode};
use crate::nn::plan::{NetworkPlan, Size};
use crate::nn::pool::{Lease, Workspace, Workspaces};
use crate::nn::real::Real;
use crate::nn::stack::SavedBlock;
use crate::nn::{encode, plain, pooling, stack};

/// Mean and population variance of every channel, for each block with a batch norm.
pub(super) type Statistics = Vec<Option<(Vec<f64>, Vec<f64>)>>;

/// What a network gives on a batch.
pub(super) struct Answer {
    /// Batch × H with a pooling, else batch × L × H.
    pub(super) out: Tensor,
    /// The outputs of all blocks, where they are requested.
    pub(super) layers: Vec<Tensor>,
    /// One number for the filters of each block that is requested one.
    pub(super) penalties: Option<Tensor>,
    pub(super) statistics: Statistics,
}

/// What encoder, blocks and pooling give for the steps of a batch, from the modes of all blocks
/// (f64, flat) and the parameters of encoder and blocks (flat), in the order of [`NetworkPlan`].
///
/// On the processor this is one operation with its own gradient; elsewhere it is put together from
/// candle's. Steps get a gradient only where there is no encoder.
pub(super) fn network(
    (steps, modes, parameters): (&Tensor, &Tensor, &Tensor),
    (plan, workspaces): (&Arc<NetworkPlan>, &Arc<Workspaces>),
) -> Result<Answer> {
    let (modes_found, parameters_found) = (modes.elem_count(), parameters.elem_count());
    let (expected, expected_parameters) = plan.numbers();
    if (modes_found, parameters_found) != (expected, expected_parameters) {
        bail!(
            "{modes_found} mode numbers and {parameters_found} parameters, expected {expected} \
             and {expected_parameters}"
        );
    }
    if !parameters.device().is_cpu() {
        return plain::network(steps, modes, parameters, plan);
    }
    let found = Arc::new(Mutex::new(Vec::new()));
    let op = Whole {
        plan: Arc::clone(plan),
        workspaces: Arc::clone(workspaces),
        saved: Mutex::new(None),
        found: Arc::clone(&found),
    };
    let steps = steps.contiguous()?;
    let out = steps.apply_op3(&modes.contiguous()?, &parameters.contiguous()?, op)?;
    let statistics = std::mem::take(&mut *locked(&found));
    split(&out, steps.dims(), (plan, statistics))
}

/// Takes apart what the operation gives as one flat tensor: the result, then the outputs of all
/// blocks, then the numbers for the filters.
fn split(
    out: &Tensor,
    steps: &[usize],
    (plan, statistics): (&NetworkPlan, Statistics),
) -> Result<Answer> {
    let (batch, length, channels) = (steps[0], steps[1], plan.channels);
    let penalties = plan.penalties();
    if !plan.layers && penalties == 0 {
        return Ok(Answer {
            out: out.clone(),
            layers: Vec::new(),
            penalties: None,
            statistics,
        });
    }
    let whole = batch * length * channels;
    let first = match plan.pooling {
        Some(_) => batch * channels,
        None => whole,
    };
    let result = out.narrow(0, 0, first)?;
    let layer = |index: usize| {
        let layer = out.narrow(0, first + index * whole, whole)?;
        layer.reshape((batch, length, channels))
    };
    let count = if plan.layers { plan.blocks.len() } else { 0 };
    let end = first + count * whole;
    Ok(Answer {
        out: match plan.pooling {
            Some(_) => result.reshape((batch, channels))?,
            None => result.reshape((batch, length, channels))?,
        },
        layers: (0..count).map(layer).collect::<Result<_>>()?,
        penalties: match penalties {
            0 => None,
            count => Some(out.narrow(0, end, count)?),
        },
        statistics,
    })
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

struct Whole {
    plan: Arc<NetworkPlan>,
    workspaces: Arc<Workspaces>,
    /// The `Vec<SavedBlock<T>>` of the forward pass, until the backward pass takes it.
    saved: Mutex<Option<Box<dyn Any + Send>>>,
    found: Arc<Mutex<Statistics>>,
}

pub(super) fn part<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
    let all = storage.as_slice::<T>()?;
    match layout.contiguous_offsets() {
        Some((start, end)) => Ok(&all[start..end]),
        None => bail!("a network takes contiguous tensors"),
    }
}

fn steps_of<'a, T: Real>(storage: &'a CpuStorage, layout: &Layout) -> Result<Steps<'a, T>> {
    match storage {
        CpuStorage::U32(_) => Ok(Steps::Tokens(part(storage, layout)?)),
        _ => Ok(Steps::Numbers(part(storage, layout)?)),
    }
}

/// Runs `work` on the storage of a contiguous tensor on the host.
pub(super) fn with_storage<R>(
    tensor: &Tensor,
    work: impl FnOnce(&CpuStorage, &Layout) -> Result<R>,
) -> Result<R> {
    let tensor = tensor.contiguous()?;
    let (storage, layout) = tensor.storage_and_layout();
    match &*storage {
        Storage::Cpu(storage) => work(storage, layout),
        _ => bail!("expected a tensor on the processor"),
    }
}

/// Runs `work` on the numbers of tensors on the host.
pub(super) fn with_slices<T: Real, R, const N: usize>(
    tensors: [&Tensor; N],
    work: impl FnOnce([&[T]; N]) -> R,
) -> Result<R> {
    let whole: Vec<Tensor> = tensors
        .iter()
        .map(|tensor| tensor.contiguous())
        .collect::<Result<_>>()?;
    let held: Vec<_> = whole.iter().map(Tensor::storage_and_layout).collect();
    let mut slices = [&[] as &[T]; N];
    for (slice, (storage, layout)) in slices.iter_mut().zip(&held) {
        *slice = match &**storage {
            Storage::Cpu(storage) => part(storage, layout)?,
            _ => bail!("expected a tensor on the processor"),
        };
    }
    Ok(work(slices))
}

/// Numbers as a tensor of the shape of another one, beside it.
pub(super) fn shaped_like<T: WithDType>(numbers: Vec<T>, like: &Tensor) -> Result<Tensor> {
    Tensor::from_vec(numbers, like.shape(), like.device())
}

pub(super) fn values<T: Real>(tensor: &Tensor) -> Result<Vec<T>> {
    with_storage(
        tensor,
        |storage, layout| Ok(part(storage, layout)?.to_vec()),
    )
}

impl Whole {
    fn size(&self, shape: &Shape) -> Result<Size> {
        let channels = self.plan.channels;
        let (batch, length, width) = match self.plan.encoding {
            Encoding::Embedding { .. } => {
                let (batch, length) = shape.dims2()?;
                (batch, length, 1)
            }
            Encoding::Linear { .. } | Encoding::None => shape.dims3()?,
        };
        let expected = match self.plan.encoding {
            Encoding::Embedding { .. } => 1,
            Encoding::Linear { inputs } => inputs,
            Encoding::None => channels,
        };
        if width != expected {
            bail!("a step has {width} numbers, expected {expected}");
        }
        if batch * length == 0 {
            bail!("an empty batch: {batch} sequences of {length} steps");
        }
        let pooling = self.plan.pooling.as_ref();
        if pooling.is_some_and(|weights| weights.len() != batch * length) {
            bail!("the weights of a pooling are batch x length numbers");
        }
        Ok(Size {
            batch,
            length,
            channels,
        })
    }

    fn run<T: Real>(
        &self,
        (size, keep): (Size, bool),
        (steps, modes, parameters): (Steps<'_, T>, &[f64], &[T]),
        workspace: &Workspace<T>,
    ) -> Result<(Lease<T>, Vec<SavedBlock<T>>)> {
        let encoding = self.plan.encoding;
        let (encoder, parameters) = parameters.split_at(encoding.parameters(size.channels));
        let x = encode(encoding, steps, (encoder, size), workspace)?;
        let inputs = (x, modes, parameters);
        let plans = (&self.plan.blocks[..], keep);
        Ok(stack::forward(plans, size, inputs, workspace))
    }

    fn forward<T: Real>(
        &self,
        size: Size,
        inputs: (Steps<'_, T>, &[f64], &[T]),
        workspace: &Workspace<T>,
    ) -> Result<(CpuStorage, Shape)> {
        let plan = &self.plan;
        let further = plan.layers || plan.penalties() > 0;
        let (out, saved) = self.run((size, plan.training || further), inputs, workspace)?;
        *locked(&self.found) = statistics(&saved);
        let (batch, length, channels) = (size.batch, size.length, size.channels);
        let (mut result, mut shape) = match &plan.pooling {
            None => (out.to_vec(), Shape::from((batch, length, channels))),
            Some(weights) => (
                pooling::pool(&out, weights, size),
                Shape::from((batch, channels)),
            ),
        };
        if plan.layers {
            // The output of a block is the input of the next.
            let later = saved.iter().skip(1);
            later.for_each(|block| result.extend_from_slice(block.input()));
            result.extend_from_slice(&out);
        }
        let penalties = saved.iter().filter_map(|block| block.penalty.as_ref());
        result.extend(penalties.map(|penalty| T::of(penalty.value)));
        if further {
            shape = Shape::from(result.len());
        }
        if plan.training {
            *locked(&self.saved) = Some(Box::new(saved));
        }
        Ok((T::to_cpu_storage_owned(result), shape))
    }

    fn backward<T: Real>(
        &self,
        (steps, modes, parameters): (&Tensor, &Tensor, &Tensor),
        gradient: &Tensor,
        workspace: &Workspace<T>,
    ) -> Result<[Option<Tensor>; 3]> {
        let (plan, size) = (&self.plan, self.size(steps.shape())?);
        let all = values::<T>(gradient)?;
        let whole = size.batch * size.length * size.channels;
        let first = match plan.pooling {
            Some(_) => size.batch * size.channels,
            None => whole,
        };
        let (own, rest) = all.split_at(first);
        let g = self.gradient_of_channels(own, size, workspace);
        let count = if plan.layers { plan.blocks.len() } else { 0 };
        let (layers, penalties) = rest.split_at(count * whole);
        let further = stack::Further {
            layers: plan.layers.then_some(layers),
            penalties,
        };
        let saved = locked(&self.saved).take();
        let saved = saved.and_then(|saved| saved.downcast::<Vec<SavedBlock<T>>>().ok());
        let (mode_values, values) = (values::<f64>(modes)?, values::<T>(parameters)?);
        with_storage(steps, |storage, layout| {
            let data = steps_of::<T>(storage, layout)?;
            let saved = match saved {
                Some(saved) => *saved,
                // A second backward pass through the same output forms the parts again.
                None => {
                    let inputs = (data, &mode_values[..], &values[..]);
                    self.run((size, true), inputs, workspace)?.1
                }
            };
            let encoder = plan.encoding.parameters(size.channels);
            let mut of_parameters = vec![T::zero(); values.len()];
            let numbers = (
                &mode_values[..],
                &values[encoder..],
                &mut of_parameters[encoder..],
            );
            let saved = (saved, g, further);
            let (g, of_modes) = stack::backward(&plan.blocks, size, numbers, saved, workspace);
            let of_encoder = encode::backward(plan.encoding, data, &g, size);
            of_parameters[..encoder].copy_from_slice(&of_encoder);
            let device = steps.device();
            let of_steps = match plan.encoding {
                Encoding::None => Some(Tensor::from_slice(&g, steps.shape(), device)?),
                Encoding::Linear { .. } | Encoding::Embedding { .. } => None,
            };
            Ok([
                of_steps,
                Some(Tensor::from_vec(of_modes, modes.shape(), device)?),
                Some(Tensor::from_vec(of_parameters, parameters.shape(), device)?),
            ])
        })
    }

    fn gradient_of_channels<T: Real>(
        &self,
        g: &[T],
        size: Size,
        workspace: &Workspace<T>,
    ) -> Lease<T> {
        match &self.plan.pooling {
            Some(weights) => pooling::spread(g, weights, size, workspace),
            None => {
                let mut own = workspace.numbers(g.len());
                own.copy_from_slice(g);
                own
            }
        }
    }
}

fn statistics<T: Real>(saved: &[SavedBlock<T>]) -> Statistics {
    let numbers = |values: &[T]| values.iter().map(|v| v.to_f64()).collect();
    let each = saved.iter().map(|block| block.statistics.as_ref());
    each.map(|found| found.map(|found| (numbers(&found.mean), numbers(&found.variance))))
        .collect()
}

impl CustomOp3 for Whole {
    fn name(&self) -> &'static str {
        "network"
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
        let (size, modes) = (self.size(l1.shape())?, part(s2, l2)?);
        match s3 {
            CpuStorage::F32(_) => {
                let inputs = (steps_of(s1, l1)?, modes, part(s3, l3)?);
                self.forward(size, inputs, &self.workspaces.single)
            }
            CpuStorage::F64(_) => {
                let inputs = (steps_of(s1, l1)?, modes, part(s3, l3)?);
                self.forward(size, inputs, &self.workspaces.double)
            }
            _ => bail!("a network runs in f32 or f64"),
        }
    }

    fn bwd(
        &self,
        arg1: &Tensor,
        arg2: &Tensor,
        arg3: &Tensor,
        _res: &Tensor,
        grad_res: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let arguments = (arg1, arg2, arg3);
        let [steps, modes, parameters] = if arg3.dtype() == DType::F64 {
            self.backward(arguments, grad_res, &self.workspaces.double)?
        } else {
            self.backward(arguments, grad_res, &self.workspaces.single)?
        };
        Ok((steps, modes, parameters))
    }
}

#[cfg(test)]
mod tests;
