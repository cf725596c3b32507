//! Encoder, blocks and pooling as one operation of candle.

use std::sync::Arc;

use candle_core::{CpuStorage, DType, Device, Result, Shape, Tensor, bail};
use hankelite_kernels::{Lease, Workspace, Workspaces};

use crate::nn::encode::{Steps, encode};
use crate::nn::operation::{Argument, Carried, Operation, apply3};
use crate::nn::plan::{Encoding, NetworkOutput, NetworkPlan, NetworkTensors, Size, Statistics};
use crate::nn::real::Real;
use crate::nn::stack::{SavedBlock, Slopes, Stack};
use crate::nn::{encode, plain, pooling};

/// What encoder, blocks and pooling give for the steps of a batch.
///
/// On the processor this is one operation with its own gradient; elsewhere it is put together from
/// candle's. Steps get a gradient only where there is no encoder.
pub(super) fn network(
    tensors: NetworkTensors<'_>,
    plan: &Arc<NetworkPlan>,
    workspaces: &Arc<Workspaces>,
) -> Result<NetworkOutput> {
    let NetworkTensors {
        steps,
        modes,
        parameters,
    } = tensors;
    let (modes_found, parameters_found) = (modes.elem_count(), parameters.elem_count());
    let (expected, expected_parameters) = plan.numbers();
    if (modes_found, parameters_found) != (expected, expected_parameters) {
        bail!(
            "{modes_found} mode numbers and {parameters_found} parameters, expected {expected} \
             and {expected_parameters}"
        );
    }
    if !parameters.device().is_cpu() {
        return plain::network(tensors, plan);
    }
    let found = Arc::new(Carried::default());
    let op = Whole {
        plan: Arc::clone(plan),
        workspaces: Arc::clone(workspaces),
        saved: Carried::default(),
        found: Arc::clone(&found),
    };
    let out = apply3(op, [steps, modes, parameters])?;
    let statistics = found.take().unwrap_or_default();
    split(&out, steps.dims(), plan, statistics)
}

/// Takes apart what the operation gives as one flat tensor: the result, then the outputs of all
/// blocks, then the numbers for the filters.
fn split(
    out: &Tensor,
    steps: &[usize],
    plan: &NetworkPlan,
    statistics: Statistics,
) -> Result<NetworkOutput> {
    let size = Size {
        batch: steps[0],
        length: steps[1],
        channels: plan.channels,
    };
    let penalties = plan.penalties();
    if !plan.layers && penalties == 0 {
        return Ok(NetworkOutput {
            out: out.clone(),
            layers: Vec::new(),
            penalties: None,
            statistics,
        });
    }
    let (whole, (first, shape)) = (size.numbers(), plan.result(size));
    let layer = |index: usize| {
        let layer = out.narrow(0, first + index * whole, whole)?;
        layer.reshape((size.batch, size.length, size.channels))
    };
    let count = plan.layers_given();
    Ok(NetworkOutput {
        out: out.narrow(0, 0, first)?.reshape(shape)?,
        layers: (0..count).map(layer).collect::<Result<_>>()?,
        penalties: match penalties {
            0 => None,
            numbers => Some(out.narrow(0, first + count * whole, numbers)?),
        },
        statistics,
    })
}

struct Whole {
    plan: Arc<NetworkPlan>,
    workspaces: Arc<Workspaces>,
    /// The `Vec<SavedBlock<T>>` of the forward pass.
    saved: Carried,
    /// The [`Statistics`] of the forward pass.
    found: Arc<Carried>,
}

/// The arguments on the host.
struct Inputs<'a, T> {
    steps: Steps<'a, T>,
    modes: &'a [f64],
    encoder: &'a [T],
    blocks: &'a [T],
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

    fn inputs<'a, T: Real>(&self, arguments: [Argument<'a>; 3]) -> Result<Inputs<'a, T>> {
        let [steps, modes, parameters] = arguments;
        let encoder = self.plan.encoding.parameters(self.plan.channels);
        let (encoder, blocks) = parameters.numbers()?.split_at(encoder);
        Ok(Inputs {
            steps: match steps.dtype() {
                DType::U32 => Steps::Tokens(steps.numbers()?),
                _ => Steps::Numbers(steps.numbers()?),
            },
            modes: modes.numbers()?,
            encoder,
            blocks,
        })
    }

    fn stack<'a, T: Real>(
        &'a self,
        inputs: &Inputs<'a, T>,
        size: Size,
        workspace: &'a Workspace<T>,
    ) -> Stack<'a, T> {
        Stack {
            plans: &self.plan.blocks,
            size,
            modes: inputs.modes,
            parameters: inputs.blocks,
            workspace,
        }
    }

    fn run<T: Real>(
        &self,
        inputs: &Inputs<'_, T>,
        size: Size,
        keep: bool,
    ) -> Result<(Lease<T>, Vec<SavedBlock<T>>)> {
        let (workspace, encoding) = (self.workspaces.of::<T>(), self.plan.encoding);
        let x = encode(encoding, inputs.steps, inputs.encoder, size, workspace)?;
        Ok(self.stack(inputs, size, workspace).forward(x, keep))
    }

    fn gradient_of_channels<T: Real>(&self, g: &[T], size: Size) -> Lease<T> {
        let workspace = self.workspaces.of::<T>();
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

impl Operation<3> for Whole {
    const NAME: &'static str = "network";

    fn forward<T: Real>(&self, arguments: [Argument<'_>; 3]) -> Result<(CpuStorage, Shape)> {
        let (plan, size) = (&self.plan, self.size(arguments[0].shape())?);
        let further = plan.layers || plan.penalties() > 0;
        let inputs = self.inputs::<T>(arguments)?;
        let (out, saved) = self.run(&inputs, size, plan.training || further)?;
        self.found.put(statistics(&saved));
        let (_, mut shape) = plan.result(size);
        let mut result = match &plan.pooling {
            None => out.to_vec(),
            Some(weights) => pooling::pool(&out, weights, size),
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
            self.saved.put(saved);
        }
        Ok((T::to_cpu_storage_owned(result), shape))
    }

    fn backward<T: Real>(
        &self,
        arguments: [Argument<'_>; 3],
        slopes: Argument<'_>,
    ) -> Result<[Option<Tensor>; 3]> {
        let [steps, modes, parameters] = arguments;
        let (plan, size) = (&self.plan, self.size(steps.shape())?);
        let (own, rest) = slopes.numbers::<T>()?.split_at(plan.result(size).0);
        let g = self.gradient_of_channels(own, size);
        let (layers, penalties) = rest.split_at(plan.layers_given() * size.numbers());
        let inputs = self.inputs::<T>(arguments)?;
        let saved = match self.saved.take::<Vec<SavedBlock<T>>>() {
            Some(saved) => saved,
            // A second backward pass through the same output forms the parts again.
            None => self.run(&inputs, size, true)?.1,
        };
        let slopes = Slopes {
            g,
            layers: plan.layers.then_some(layers),
            penalties,
        };
        let stack = self.stack(&inputs, size, self.workspaces.of::<T>());
        let mut of_parameters = vec![T::zero(); parameters.shape().elem_count()];
        let (of_encoder, of_blocks) = of_parameters.split_at_mut(inputs.encoder.len());
        let (g, of_modes) = stack.backward(saved, slopes, of_blocks);
        let encoder = encode::backward(plan.encoding, inputs.steps, &g, size);
        of_encoder.copy_from_slice(&encoder);
        let of_steps = match plan.encoding {
            Encoding::None => Some(Tensor::from_slice(&g, steps.shape(), &Device::Cpu)?),
            Encoding::Linear { .. } | Encoding::Embedding { .. } => None,
        };
        Ok([
            of_steps,
            Some(modes.shaped(of_modes)?),
            Some(parameters.shaped(of_parameters)?),
        ])
    }
}

#[cfg(test)]
mod tests;
