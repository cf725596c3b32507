//! Encoder, blocks and pooling as one operation of candle.

use std::any::Any;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use candle_core::CpuStorage;
use candle_core::CustomOp3;
use candle_core::DType;
use candle_core::Layout;
use candle_core::Result;
use candle_core::Shape;
use candle_core::Storage;
use candle_core::Tensor;
use candle_core::WithDType;
use candle_core::bail;

use crate::nn::encode;
use crate::nn::encode::Encoding;
use crate::nn::encode::Steps;
use crate::nn::encode::encode;
use crate::nn::plain;
use crate::nn::plan::NetworkPlan;
use crate::nn::plan::Size;
use crate::nn::pool::Lease;
use crate::nn::pool::Workspace;
use crate::nn::pool::Workspaces;
use crate::nn::pooling;
use crate::nn::real::Real;
use crate::nn::stack;
use crate::nn::stack::SavedBlock;

/// Mean and population variance of every channel, for each block with a batch norm.
pub(super) type Statistics = Vec<Option<(Vec<f64>, Vec<f64>)>>;

/// What a network gives on a batch.
pub(super) struct Answer {
    /// Batch × H with a pooling, else batch × L × H.
    pub(super) out: Tensor,
    /// The outputs of all blocks, where they are asked for.
    pub(super) layers: Vec<Tensor>,
    /// One number for the filters of each block that is asked for one.
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

fn part<'a, T: WithDType>(storage: &'a CpuStorage, layout: &Layout) -> Result<&'a [T]> {
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
fn with_storage<R>(
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

fn values<T: Real>(tensor: &Tensor) -> Result<Vec<T>> {
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
mod tests {
    use candle_core::Device;
    use candle_core::Var;

    use super::*;
    use crate::model::Placement;
    use crate::nn::Penalty;
    use crate::nn::mix::Mixing;
    use crate::nn::plan::BlockPlan;
    use crate::nn::plan::NormKind;
    use crate::nn::plan::NormPlan;

    const BATCH: usize = 5;
    const LENGTH: usize = 37;

    /// A smooth number for every index.
    fn number(seed: f64, index: usize) -> f64 {
        (12.9898 * index as f64 + seed).sin()
    }

    fn block(modes: usize, norm: Option<(NormKind, Placement)>, mixing: Mixing) -> BlockPlan {
        BlockPlan {
            modes,
            bidirectional: false,
            mixing,
            norm: norm.map(|(kind, placement)| NormPlan {
                kind,
                placement,
                epsilon: 1e-5,
            }),
            inner_mask: Vec::new(),
            outer_mask: Vec::new(),
            running: None,
            penalty: None,
        }
    }

    /// Every kind of block, each twice in a row, with and without dropout and a way back.
    fn cases(channels: usize) -> Vec<Vec<BlockPlan>> {
        let mut cases = vec![vec![block(3, None, Mixing::None)]];
        for modes in [2, 11] {
            for kind in [NormKind::Layer, NormKind::Batch] {
                for placement in [Placement::Pre, Placement::Post] {
                    for mixing in [Mixing::Plain, Mixing::Gated] {
                        let plain = block(modes, Some((kind, placement)), mixing);
                        let mut other = plain.clone();
                        other.bidirectional = modes == 11;
                        let mask = |seed: f64| -> Vec<f64> {
                            let all = (0..BATCH * channels).map(|i| number(seed, i));
                            all.map(|x| if x > 0.6 { 0.0 } else { 1.25 }).collect()
                        };
                        other.inner_mask = mask(0.3);
                        other.outer_mask = mask(0.8);
                        cases.push(vec![plain, other]);
                    }
                }
            }
        }
        cases
    }

    struct Inputs {
        x: Var,
        modes: Var,
        parameters: Var,
    }

    fn inputs(plans: &[BlockPlan], channels: usize, growing: bool) -> Result<Inputs> {
        let var = |values: Vec<f64>, shape: &[usize]| {
            Var::from_tensor(&Tensor::from_vec(values, shape, &Device::Cpu)?)
        };
        let mut modes = Vec::new();
        for plan in plans {
            let count = channels * plan.modes;
            for direction in 0..plan.mode_numbers(channels) / (4 * count) {
                let seed = direction as f64;
                let decay = |i: usize| -0.3 - 0.29 * number(seed, i);
                // The first mode of a channel may grow.
                let sign = |i: usize| {
                    if growing && i.is_multiple_of(plan.modes) {
                        -1.0
                    } else {
                        1.0
                    }
                };
                modes.extend((0..count).map(|i| sign(i) * decay(i)));
                modes.extend((0..count).map(|i| 1.5 * number(seed + 1.0, i)));
                modes.extend((0..2 * count).map(|i| number(seed + 2.0, i) / plan.modes as f64));
            }
        }
        let parameters: usize = plans.iter().map(|plan| plan.parameters(channels)).sum();
        let parameters: Vec<f64> = (0..parameters)
            .map(|i| 0.3 + 0.7 * number(4.0, i))
            .collect();
        let count = BATCH * LENGTH * channels;
        let (modes_len, parameters_len) = (modes.len(), parameters.len());
        Ok(Inputs {
            x: var(
                (0..count).map(|i| number(5.0, i)).collect(),
                &[BATCH, LENGTH, channels],
            )?,
            modes: var(modes, &[modes_len])?,
            parameters: var(parameters, &[parameters_len])?,
        })
    }

    type Form = fn(&Inputs, &Arc<NetworkPlan>) -> Result<Tensor>;

    /// Pooled where dropout is on, so that both outputs are tried.
    fn pooling(plans: &[BlockPlan]) -> Option<Vec<f64>> {
        let pooled = plans.iter().any(|plan| !plan.inner_mask.is_empty());
        pooled.then(|| (0..BATCH * LENGTH).map(|i| number(7.0, i)).collect())
    }

    fn whole(blocks: Vec<BlockPlan>, channels: usize) -> Arc<NetworkPlan> {
        Arc::new(NetworkPlan {
            channels,
            encoding: Encoding::None,
            pooling: pooling(&blocks),
            layers: false,
            training: true,
            blocks,
        })
    }

    /// Everything that a network gives, flat.
    fn flat_answer(answer: &Answer) -> Result<Tensor> {
        let mut parts = vec![answer.out.flatten_all()?];
        for layer in &answer.layers {
            parts.push(layer.flatten_all()?);
        }
        parts.extend(answer.penalties.clone());
        Tensor::cat(&parts, 0)
    }

    fn fast(inputs: &Inputs, plan: &Arc<NetworkPlan>) -> Result<Tensor> {
        let tensors: (&Tensor, &Tensor, &Tensor) = (&inputs.x, &inputs.modes, &inputs.parameters);
        flat_answer(&network(tensors, (plan, &Workspaces::new()))?)
    }

    fn slow(inputs: &Inputs, plan: &Arc<NetworkPlan>) -> Result<Tensor> {
        let (x, modes) = (&inputs.x, &inputs.modes);
        flat_answer(&plain::network(x, modes, &inputs.parameters, plan)?)
    }

    /// Plans that give out the outputs of all blocks, a number for the filters, or both.
    fn asking(cases: Vec<Vec<BlockPlan>>, channels: usize) -> Vec<Arc<NetworkPlan>> {
        let asked = |(index, blocks): (usize, Vec<BlockPlan>)| {
            let mut plan = NetworkPlan {
                layers: index % 3 != 1,
                ..(*whole(blocks, channels)).clone()
            };
            let penalty = match index % 3 {
                0 => None,
                1 => Some(Penalty::Measure),
                _ => Some(Penalty::FilterNorm),
            };
            plan.blocks
                .iter_mut()
                .for_each(|block| block.penalty = penalty);
            Arc::new(plan)
        };
        cases.into_iter().enumerate().map(asked).collect()
    }

    /// A weighted sum of the outputs.
    fn loss(form: Form, inputs: &Inputs, plan: &Arc<NetworkPlan>) -> Result<Tensor> {
        let out = form(inputs, plan)?;
        let weights: Vec<f64> = (0..out.elem_count()).map(|i| number(6.0, i)).collect();
        let weights = Tensor::from_vec(weights, out.shape(), &Device::Cpu)?;
        (out * weights)?.sum_all()
    }

    fn gradients(form: Form, inputs: &Inputs, plan: &Arc<NetworkPlan>) -> Result<Vec<f64>> {
        let store = loss(form, inputs, plan)?.backward()?;
        let mut all = Vec::new();
        for var in [&inputs.x, &inputs.modes, &inputs.parameters] {
            let gradient = store.get(var).expect("every input has a gradient");
            all.extend(gradient.flatten_all()?.to_vec1::<f64>()?);
        }
        Ok(all)
    }

    fn worst(a: &[f64], b: &[f64]) -> f64 {
        assert_eq!(a.len(), b.len());
        let far = a
            .iter()
            .zip(b)
            .map(|(a, b)| (a - b).abs() / (1.0 + b.abs()));
        far.fold(0.0, f64::max)
    }

    #[test]
    fn both_forms_agree_in_values_and_gradients() -> Result<()> {
        for channels in [3, 16, 21] {
            for (index, plans) in cases(channels).into_iter().enumerate() {
                let plan = whole(plans, channels);
                for growing in [false, true] {
                    let inputs = inputs(&plan.blocks, channels, growing)?;
                    let flat = |x: Tensor| x.flatten_all()?.to_vec1::<f64>();
                    let values = (flat(fast(&inputs, &plan)?)?, flat(slow(&inputs, &plan)?)?);
                    let far = worst(&values.0, &values.1);
                    assert!(
                        far < 1e-10,
                        "{channels} case {index}: values differ by {far:e}"
                    );
                    let (a, b) = (
                        gradients(fast, &inputs, &plan)?,
                        gradients(slow, &inputs, &plan)?,
                    );
                    let far = worst(&a, &b);
                    assert!(
                        far < 1e-8,
                        "{channels} case {index}: gradients differ by {far:e}"
                    );
                }
            }
        }
        Ok(())
    }

    #[test]
    fn gradients_agree_with_differences() -> Result<()> {
        let channels = 5;
        let plain = cases(channels).into_iter();
        let plain = plain.map(|plans| whole(plans, channels));
        // What a layer hears counts as a constant in the measure, so differences do not see it.
        let asking = asking(cases(channels), channels).into_iter();
        let asking = asking.filter(|plan| plan.blocks[0].penalty != Some(Penalty::Measure));
        for (index, plan) in plain.chain(asking.take(6)).enumerate() {
            let inputs = inputs(&plan.blocks, channels, index % 2 == 0)?;
            let gradient = gradients(fast, &inputs, &plan)?;
            let mut start = 0;
            for var in [&inputs.x, &inputs.modes, &inputs.parameters] {
                let before = var.flatten_all()?.to_vec1::<f64>()?;
                // A few directions of each input; every entry has its part in each.
                for seed in 0..3 {
                    let direction = |i: usize| number(f64::from(seed), i);
                    let h = 1e-5;
                    let at = |steps: f64| -> Result<f64> {
                        let moved = before.iter().enumerate();
                        let moved: Vec<f64> =
                            moved.map(|(i, v)| v + steps * h * direction(i)).collect();
                        var.set(&Tensor::from_vec(moved, var.shape(), &Device::Cpu)?)?;
                        loss(fast, &inputs, &plan)?.to_scalar::<f64>()
                    };
                    let central = |m: f64| Ok::<f64, candle_core::Error>(at(m)? - at(-m)?);
                    // Fourth order: layer norms of few channels bend strongly.
                    let slope = (8.0 * central(1.0)? - central(2.0)?) / (12.0 * h);
                    var.set(&Tensor::from_slice(&before, var.shape(), &Device::Cpu)?)?;
                    let own = &gradient[start..start + before.len()];
                    let along: f64 = own.iter().enumerate().map(|(i, g)| g * direction(i)).sum();
                    let scale = own.iter().map(|g| g * g).sum::<f64>().sqrt();
                    assert!(
                        (slope - along).abs() < 1e-6 * scale,
                        "case {index} seed {seed}: {slope} {along} {scale}"
                    );
                }
                start += before.len();
            }
        }
        Ok(())
    }

    /// In a single block the dynamics do not change what is heard.
    #[test]
    fn the_gradient_of_the_measure_agrees_with_differences() -> Result<()> {
        let channels = 3;
        for modes in [2, 11] {
            let norm = Some((NormKind::Layer, Placement::Pre));
            let mut block = block(modes, norm, Mixing::Plain);
            block.penalty = Some(Penalty::Measure);
            let plan = whole(vec![block], channels);
            let inputs = inputs(&plan.blocks, channels, modes == 11)?;
            let tau = || -> Result<Tensor> {
                let tensors = (&*inputs.x, &*inputs.modes, &*inputs.parameters);
                let answer = network(tensors, (&plan, &Workspaces::new()))?;
                answer.penalties.expect("it was asked for").sum_all()
            };
            let store = tau()?.backward()?;
            for (var, count) in [(&inputs.modes, usize::MAX), (&inputs.parameters, channels)] {
                let before = var.flatten_all()?.to_vec1::<f64>()?;
                let own = store.get(var).expect("a gradient").to_vec1::<f64>()?;
                for at in 0..before.len().min(count) {
                    let h = 1e-6;
                    let moved = |by: f64| -> Result<f64> {
                        let mut values = before.clone();
                        values[at] += by;
                        var.set(&Tensor::from_vec(values, var.shape(), &Device::Cpu)?)?;
                        tau()?.to_scalar::<f64>()
                    };
                    let slope = (moved(h)? - moved(-h)?) / (2.0 * h);
                    var.set(&Tensor::from_slice(&before, var.shape(), &Device::Cpu)?)?;
                    let far = (slope - own[at]).abs();
                    assert!(
                        far < 1e-6 * (1.0 + slope.abs()),
                        "{at}: {slope} {}",
                        own[at]
                    );
                }
            }
        }
        Ok(())
    }

    #[test]
    fn both_forms_agree_in_what_is_asked_beside_the_outputs() -> Result<()> {
        for channels in [3, 21] {
            for (index, plan) in asking(cases(channels), channels).into_iter().enumerate() {
                let inputs = inputs(&plan.blocks, channels, index % 2 == 0)?;
                let (a, b) = (fast(&inputs, &plan)?, slow(&inputs, &plan)?);
                let far = worst(&a.to_vec1::<f64>()?, &b.to_vec1::<f64>()?);
                assert!(
                    far < 1e-10,
                    "{channels} case {index}: values differ by {far:e}"
                );
                // The modulus has a corner; both forms take the same side of it.
                let (a, b) = (
                    gradients(fast, &inputs, &plan)?,
                    gradients(slow, &inputs, &plan)?,
                );
                let far = worst(&a, &b);
                assert!(
                    far < 1e-8,
                    "{channels} case {index}: gradients differ by {far:e}"
                );
            }
        }
        Ok(())
    }

    #[test]
    fn both_forms_of_the_encoders_agree() -> Result<()> {
        let channels = 18;
        let tokens: Vec<u32> = (0..BATCH * LENGTH).map(|i| (i * i % 5) as u32).collect();
        let tokens = Tensor::from_vec(tokens, (BATCH, LENGTH), &Device::Cpu)?;
        let count = BATCH * LENGTH * 3;
        let values: Vec<f64> = (0..count).map(|i| number(1.0, i)).collect();
        let values = Tensor::from_vec(values, (BATCH, LENGTH, 3), &Device::Cpu)?;
        let embedding = Encoding::Embedding { vocabulary: 5 };
        for (encoding, steps) in [
            (Encoding::Linear { inputs: 3 }, values),
            (embedding, tokens),
        ] {
            let norm = Some((NormKind::Layer, Placement::Pre));
            let plan = Arc::new(NetworkPlan {
                channels,
                encoding,
                blocks: vec![block(2, norm, Mixing::Plain)],
                pooling: None,
                layers: false,
                training: true,
            });
            let Inputs { modes, .. } = inputs(&plan.blocks, channels, false)?;
            let parameters = (0..plan.numbers().1).map(|i| number(2.0, i));
            let parameters = Tensor::from_iter(parameters, &Device::Cpu)?;
            let parameters = Var::from_tensor(&parameters)?;
            let workspaces = Workspaces::new();
            let fast = network((&steps, &modes, &parameters), (&plan, &workspaces))?.out;
            let slow = plain::network(&steps, &modes, &parameters, &plan)?.out;
            let gradient = |out: &Tensor| {
                let store = (out * out)?.sum_all()?.backward()?;
                let gradient = store.get(&parameters).expect("a gradient");
                gradient.to_vec1::<f64>()
            };
            assert!(worst(&gradient(&fast)?, &gradient(&slow)?) < 1e-10);
            let flat = |x: Tensor| x.flatten_all()?.to_vec1::<f64>();
            assert!(worst(&flat(fast)?, &flat(slow)?) < 1e-12);
        }
        Ok(())
    }

    #[test]
    fn a_second_backward_pass_gives_the_same_gradients() -> Result<()> {
        let plan = whole(cases(3).remove(3), 3);
        let inputs = inputs(&plan.blocks, 3, false)?;
        let loss = loss(fast, &inputs, &plan)?;
        let first = loss.backward()?;
        let second = loss.backward()?;
        for var in [&inputs.x, &inputs.modes, &inputs.parameters] {
            let flat = |store: &candle_core::backprop::GradStore| {
                let gradient = store.get(var).expect("every input has a gradient");
                gradient.flatten_all()?.to_vec1::<f64>()
            };
            assert_eq!(flat(&first)?, flat(&second)?);
        }
        Ok(())
    }
}
