//! The blocks from candle's own operations: what runs where the processor's path does not, and the
//! independent check of that path.
//!
//! Whatever takes many operations has a [gradient of its own](crate::nn::gradient).

use candle_core::{DType, Result, Tensor, bail};
use hankelite::model::Placement;
use hankelite_kernels::Mixing;

use crate::nn::elements::{gated, gelu, layer_norm, linear, sigmoid};
use crate::nn::fourier::{Cycle, convolve};
#[cfg(feature = "cuda")]
use crate::nn::gpu::{bank, blocks};
use crate::nn::gradient::{Known, of_one, with_kept_shapes};
use crate::nn::pair::Pair;
use crate::nn::plan::{
    BlockPlan, Encoding, NetworkOutput, NetworkPlan, NetworkTensors, NormKind, NormPlan,
};
use crate::nn::shared_plain::SharedNumbers;
use crate::nn::tables::Table;
use crate::nn::{Penalty, host, shared_plain};

/// As `op::network`.
pub(super) fn network(tensors: NetworkTensors<'_>, plan: &NetworkPlan) -> Result<NetworkOutput> {
    let NetworkTensors {
        steps,
        modes,
        parameters,
    } = tensors;
    let (channels, plan_layers) = (plan.channels, plan.layers);
    #[cfg(feature = "cuda")]
    if blocks::holds(plan, steps, parameters.dtype()) {
        let steps = match plan.encoding {
            Encoding::Linear { .. } => steps.clone(),
            _ => encode(steps, parameters, plan)?,
        };
        return blocks::network([&steps, modes, parameters], plan);
    }
    let (mut x, mut statistics) = (encode(steps, parameters, plan)?, Vec::new());
    let (mut layers, mut penalties) = (Vec::new(), Vec::new());
    let kernels = kernels(plan, modes, &x)?;
    let (mut start, mut start_modes) = (plan.encoding.parameters(channels), 0);
    for (plan, kernels) in plan.blocks.iter().zip(&kernels) {
        let (size, own_modes) = (plan.parameters(channels), plan.mode_numbers(channels));
        let block = Block {
            plan,
            channels,
            kernels,
            modes: modes.narrow(0, start_modes, own_modes)?,
            parameters: parameters.narrow(0, start, size)?,
        };
        start_modes += own_modes;
        penalties.extend(block.penalty(&x)?);
        let (out, found) = block.forward(&x)?;
        layers.extend(plan_layers.then(|| out.clone()));
        x = out;
        statistics.push(found);
        start += size;
    }
    if let Some(weights) = &plan.pooling {
        let (batch, length, _) = x.dims3()?;
        let weights = Tensor::from_slice(weights, (batch, 1, length), x.device())?;
        x = weights.to_dtype(x.dtype())?.matmul(&x)?.squeeze(1)?;
    }
    Ok(NetworkOutput {
        out: x,
        layers,
        penalties: match penalties.is_empty() {
            true => None,
            false => Some(Tensor::stack(&penalties, 0)?),
        },
        statistics,
    })
}

fn encode(steps: &Tensor, parameters: &Tensor, plan: &NetworkPlan) -> Result<Tensor> {
    let channels = plan.channels;
    match plan.encoding {
        Encoding::None => Ok(steps.clone()),
        Encoding::Linear { inputs } => {
            let (batch, length, _) = steps.dims3()?;
            let weight = parameters.narrow(0, 0, channels * inputs)?;
            let bias = parameters.narrow(0, channels * inputs, channels)?;
            let rows = steps.reshape((batch * length, inputs))?;
            let weight = weight.reshape((channels, inputs))?;
            linear(&rows, [&weight, &bias])?.reshape((batch, length, channels))
        }
        Encoding::Embedding { vocabulary } => {
            let (batch, length) = steps.dims2()?;
            let table = parameters.narrow(0, 0, vocabulary * channels)?;
            let table = table.reshape((vocabulary, channels))?;
            let rows = table.index_select(&steps.flatten_all()?, 0)?;
            rows.reshape((batch, length, channels))
        }
    }
}

struct Block<'a> {
    plan: &'a BlockPlan,
    channels: usize,
    /// Channels × L, for each direction; empty where [`has_kernels`] says so.
    kernels: &'a [Tensor],
    /// The numbers of the modes.
    modes: Tensor,
    parameters: Tensor,
}

type Found = Option<(Vec<f64>, Vec<f64>)>;

impl Block<'_> {
    fn forward(&self, x: &Tensor) -> Result<(Tensor, Found)> {
        match &self.plan.norm {
            None => Ok((self.branch(x)?, None)),
            Some(norm) if norm.placement == Placement::Pre => {
                let (z, found) = self.normalised(norm, x)?;
                Ok(((self.branch(&z)? + x)?, found))
            }
            Some(norm) => self.normalised(norm, &(self.branch(x)? + x)?),
        }
    }

    /// The number for the filters, where it is requested.
    fn penalty(&self, x: &Tensor) -> Result<Option<Tensor>> {
        let Some(penalty) = self.plan.penalty else {
            return Ok(None);
        };
        let input = match &self.plan.norm {
            Some(norm) if norm.placement == Placement::Pre => self.normalised(norm, x)?.0,
            _ => x.clone(),
        };
        let input = match penalty {
            Penalty::FilterNorm | Penalty::Hankel => None,
            Penalty::Measure => Some(&input),
        };
        Ok(Some(mean_square(&self.kernel()?, input)?))
    }

    /// The kernel forward in time, with D in its first sample.
    fn kernel(&self) -> Result<Tensor> {
        let d = self.parameter(self.plan.places(self.channels).feedthrough)?;
        let kernel = &self.kernels[0];
        kernel + d.unsqueeze(1)?.pad_with_zeros(1, 0, kernel.dim(1)? - 1)?
    }

    /// Those of both directions over a cycle of so many steps.
    fn cyclic_kernel(&self, steps: usize) -> Result<Tensor> {
        let kernel = self.kernel()?;
        match self.kernels.get(1) {
            None => Ok(kernel),
            Some(backward) => {
                let rest = steps - kernel.dim(1)?;
                kernel.pad_with_zeros(1, 0, rest)? + turned(backward)?.pad_with_zeros(1, rest, 0)?
            }
        }
    }

    fn parameter(&self, range: std::ops::Range<usize>) -> Result<Tensor> {
        self.parameters.narrow(0, range.start, range.len())
    }

    fn normalised(&self, norm: &NormPlan, x: &Tensor) -> Result<(Tensor, Found)> {
        let places = self.plan.places(self.channels);
        let (weight, bias) = (
            self.parameter(places.norm_weight)?,
            self.parameter(places.norm_bias)?,
        );
        if norm.kind == NormKind::Layer {
            return Ok((layer_norm(x, [&weight, &bias], norm.epsilon)?, None));
        }
        let (mean, variance, found) = self.channel_statistics(x)?;
        let scale = (variance + norm.epsilon)?.sqrt()?;
        let normal = x.broadcast_sub(&mean)?.broadcast_div(&scale)?;
        let out = normal.broadcast_mul(&weight)?.broadcast_add(&bias)?;
        Ok((out, found))
    }

    fn channel_statistics(&self, x: &Tensor) -> Result<(Tensor, Tensor, Found)> {
        if let Some((mean, variance)) = &self.plan.running {
            let tensor = |values: &[f64]| Tensor::new(values, x.device())?.to_dtype(x.dtype());
            let found = Some((mean.clone(), variance.clone()));
            return Ok((tensor(mean)?, tensor(variance)?, found));
        }
        let rows = x.reshape(((), self.channels))?;
        let mean = rows.mean(0)?;
        let variance = rows.broadcast_sub(&mean)?.sqr()?.mean(0)?;
        let found = Some((host(&mean)?, host(&variance)?));
        Ok((mean, variance, found))
    }

    /// The state space's output.
    fn state_space(&self, u: &Tensor) -> Result<Tensor> {
        let places = self.plan.places(self.channels);
        if self.plan.shared.is_some() {
            let numbers = SharedNumbers {
                exponents: &self.modes,
                feedthrough: self.parameter(places.feedthrough)?,
                input: self.parameter(places.input)?,
                output: self.parameter(places.output)?,
            };
            return shared_plain::respond(u, &numbers);
        }
        #[cfg(feature = "cuda")]
        if bank::holds(self.plan, u) {
            let through = self.parameter(places.feedthrough)?;
            return bank::respond([u, &self.modes, &through], self.plan, None);
        }
        let cycle = Cycle::of_at_least(2 * u.dim(1)?);
        convolve(cycle, u, &self.cyclic_kernel(cycle.steps())?)
    }

    /// The state space's output, where the mixing takes it, and that activated and masked.
    fn response(&self, u: &Tensor) -> Result<(Option<Tensor>, Tensor)> {
        #[cfg(feature = "cuda")]
        if self.plan.mixing != Mixing::Response && bank::holds(self.plan, u) {
            let activation = bank::Activation {
                form: self.plan.gelu,
                mask: mask(&self.plan.inner_mask, u)?,
            };
            let through = self.parameter(self.plan.places(self.channels).feedthrough)?;
            let given = [u, &self.modes, &through];
            return Ok((None, bank::respond(given, self.plan, Some(activation))?));
        }
        let y = self.state_space(u)?;
        let active = masked(gelu(&y, self.plan.gelu)?, &self.plan.inner_mask)?;
        Ok((Some(y), active))
    }

    fn branch(&self, u: &Tensor) -> Result<Tensor> {
        let places = self.plan.places(self.channels);
        let (y, active) = self.response(u)?;
        let rows = self.plan.mixing.rows(self.channels);
        let out = if rows == 0 {
            active.clone()
        } else {
            let weight = self
                .parameter(places.weight)?
                .reshape((rows, self.channels))?;
            let flat = active.reshape(((), self.channels))?;
            let mixed = linear(&flat, [&weight, &self.parameter(places.bias)?])?;
            let (batch, length, _) = u.dims3()?;
            mixed.reshape((batch, length, rows))?
        };
        let out = match self.plan.mixing {
            Mixing::None | Mixing::Plain => out,
            Mixing::Gated => gated(&out)?,
            Mixing::Activated => (active * sigmoid(&out)?)?,
            Mixing::Response => match y {
                Some(y) => (y * sigmoid(&out)?)?,
                None => bail!("a gate on the response needs the response"),
            },
        };
        masked(out, &self.plan.outer_mask)
    }
}

/// The mean over the channels of ψ² for kernels, channels × L, and their inputs, batch × L ×
/// channels, whose mean and deviation count as constants; for mean 0 and deviation 1 without it.
pub(super) fn mean_square(kernels: &Tensor, input: Option<&Tensor>) -> Result<Tensor> {
    let psi = match input {
        None => kernels.abs()?.sum(1)?,
        Some(input) => {
            let input = input.detach();
            let mean = input.mean(0)?;
            let variance = input.broadcast_sub(&mean)?.sqr()?.mean(0)?;
            let steps = |steps: Tensor| turned(&steps.t()?.contiguous()?);
            let spread = (kernels.abs()? * steps(variance.sqrt()?)?)?.sum(1)?;
            (spread + (kernels * steps(mean)?)?.sum(1)?.abs()?)?
        }
    };
    psi.sqr()?.mean_all()
}

/// The columns of a matrix in reverse order.
pub(super) fn turned(matrix: &Tensor) -> Result<Tensor> {
    let length = matrix.dim(1)?;
    let order = Table::Backwards { length }.on(matrix.device(), DType::U32)?;
    matrix.contiguous()?.index_select(&order[0], 1)
}

/// Multiplies with a mask of batch × channels.
fn masked(x: Tensor, numbers: &[f64]) -> Result<Tensor> {
    match mask(numbers, &x)? {
        None => Ok(x),
        Some(mask) => x.broadcast_mul(&mask),
    }
}

/// A mask of batch × 1 × channels for x; `None` where there is none.
fn mask(numbers: &[f64], x: &Tensor) -> Result<Option<Tensor>> {
    if numbers.is_empty() {
        return Ok(None);
    }
    let (batch, _, channels) = x.dims3()?;
    let mask = Tensor::from_slice(numbers, (batch, 1, channels), x.device())?;
    Ok(Some(mask.to_dtype(x.dtype())?))
}

/// Whether a block's outputs on x, or a number for its filters, are made from kernels.
fn has_kernels(plan: &BlockPlan, x: &Tensor) -> bool {
    #[cfg(feature = "cuda")]
    let scans = bank::holds(plan, x);
    #[cfg(not(feature = "cuda"))]
    let (scans, _) = (false, x);
    plan.shared.is_none() && (plan.penalty.is_some() || !scans)
}

/// The kernels of all blocks, channels × L for each direction. Those of blocks with equally many modes
/// are made together: on a GPU the number of operations counts, not their size.
fn kernels(plan: &NetworkPlan, modes: &Tensor, x: &Tensor) -> Result<Vec<Vec<Tensor>>> {
    let (channels, length) = (plan.channels, x.dim(1)?);
    let like = |plan: &BlockPlan| {
        let wanted = has_kernels(plan, x);
        (
            wanted,
            plan.mode_numbers(channels),
            plan.bidirectional,
            plan.may_grow,
        )
    };
    let (mut all, mut start) = (Vec::new(), 0);
    for run in plan.blocks.chunk_by(|a, b| like(a) == like(b)) {
        let numbers = run.len() * run[0].mode_numbers(channels);
        let modes = modes.narrow(0, start, numbers)?;
        start += numbers;
        if !has_kernels(&run[0], x) {
            all.extend(run.iter().map(|_| Vec::new()));
            continue;
        }
        let modes = modes.reshape(((), 4, channels, run[0].modes))?;
        let found = match run[0].may_grow {
            true => {
                let flat = modes.transpose(0, 1)?.reshape((4, (), run[0].modes))?;
                let parts = (0..4).map(|part| flat.get(part));
                kernel(&parts.collect::<Result<Vec<_>>>()?, length)?
            }
            false => decaying_kernel(&modes, length)?,
        };
        let found = found.to_dtype(x.dtype())?.reshape(((), channels, length))?;
        let directions = 1 + usize::from(run[0].bidirectional);
        let each = (0..found.dim(0)?).map(|at| found.get(at));
        let each: Vec<Tensor> = each.collect::<Result<_>>()?;
        all.extend(each.chunks(directions).map(<[Tensor]>::to_vec));
    }
    Ok(all)
}

/// As `kernel::Modes::kernel`, for all channels: from Re z, Im z, Re w, Im w, where modes may grow.
pub(super) fn kernel(modes: &[Tensor], length: usize) -> Result<Tensor> {
    // A GPU would have to finish all its work before the host can look.
    kernel_of(modes, length, modes[0].device().is_cpu())
}

/// The same; where it `looks` for modes that grow, none cost nothing.
fn kernel_of(modes: &[Tensor], length: usize, looks: bool) -> Result<Tensor> {
    let growing = modes[0].gt(0.0)?.to_dtype(DType::F64)?;
    let decaying = (1.0 - &growing)?;
    let sign = (&decaying - &growing)?;
    let of = |mask: &Tensor| -> Result<Tensor> {
        let exponents = [modes[0].mul(&sign)?, modes[1].mul(&sign)?];
        let weights = [modes[2].mul(mask)?, modes[3].mul(mask)?];
        let parts = Tensor::stack(&[exponents, weights].concat(), 0)?;
        decaying_kernel(&parts.unsqueeze(0)?, length)
    };
    let forward = of(&decaying)?;
    if looks && growing.sum_all()?.to_scalar::<f64>()? == 0.0 {
        return Ok(forward);
    }
    forward + turned(&of(&growing)?)?
}

/// Of modes that decay, blocks × 4 × channels × modes: (blocks · channels) × L.
///
/// e^{z(s + S j)} = e^{zs} e^{zSj} with S about √L: two short tables and one product.
fn decaying_kernel(modes: &Tensor, length: usize) -> Result<Tensor> {
    let (blocks, _, channels, count) = modes.dims4()?;
    let short = (length as f64).sqrt().ceil() as usize;
    let long = length.div_ceil(short);
    let rows = blocks * channels;
    let detached = modes.detach();
    let (value, tables) = with_kept_shapes(modes.device(), || {
        let part = |part: usize| detached.narrow(1, part, 1)?.reshape((rows, count, 1));
        let z = Pair(part(0)?, part(1)?);
        let near = powers(&z, 1, short)?;
        let far = powers(&z, short, long)?;
        let weighted = far.times(&Pair(part(2)?, part(3)?))?;
        let tables = Powers {
            near,
            far,
            weighted,
        };
        let kernel = tables.joined_far()?.transpose(1, 2)?.contiguous()?;
        let kernel = kernel.matmul(&tables.joined_near()?)?;
        let kernel = kernel.reshape((rows, long * short))?;
        Ok((kernel.narrow(1, 0, length)?.contiguous()?, tables))
    })?;
    let backward = move |slopes: &Tensor| {
        let slopes = slopes.pad_with_zeros(1, 0, long * short - length)?;
        let slopes = slopes.reshape((rows, long, short))?;
        let parts = tables.gradients(&slopes, [short, long])?;
        let parts = parts.map(|part| part.reshape((blocks, channels, count)));
        let [a, b, c, d] = parts;
        Ok([Tensor::stack(&[a?, b?, c?, d?], 1)?])
    };
    of_one(modes, Known::new(value, backward))
}

/// e^{z stride j} for j below `count`.
fn powers(z: &Pair, stride: usize, count: usize) -> Result<Pair> {
    let steps = Table::Steps { stride, count }.on(z.0.device(), DType::F64)?;
    let Pair(size, angle) = z.scaled(&steps[0])?;
    Pair(angle.cos()?, angle.sin()?).scaled(&size.exp()?)
}

/// Powers of the poles, rows × modes × steps: real and imaginary parts.
struct Powers {
    near: Pair,
    far: Pair,
    /// The weights times `far`.
    weighted: Pair,
}

impl Powers {
    /// Re w e^{zSj} over −Im of it: the real part of a product is then one product of matrices.
    fn joined_far(&self) -> Result<Tensor> {
        Tensor::cat(&[&self.weighted.0, &self.weighted.1.neg()?], 1)
    }

    fn joined_near(&self) -> Result<Tensor> {
        Tensor::cat(&[&self.near.0, &self.near.1], 1)
    }

    /// Of Re z, Im z, Re w, Im w, from those of the kernel, rows × long × short.
    fn gradients(&self, slopes: &Tensor, [short, long]: [usize; 2]) -> Result<[Tensor; 4]> {
        let count = self.near.0.dim(1)?;
        let halves = |x: &Tensor| -> Result<Pair> {
            Ok(Pair(x.narrow(1, 0, count)?, x.narrow(1, count, count)?))
        };
        let of_near = halves(&self.joined_far()?.matmul(slopes)?)?;
        let turned = slopes.transpose(1, 2)?.contiguous()?;
        let of_far = halves(&self.joined_near()?.matmul(&turned)?)?.conjugate()?;
        // Each power is e^{z steps}, whose slope by z is steps times itself, conjugated.
        let by_steps = |of: &Pair, powers: &Pair, stride: usize, count: usize| {
            let steps = Table::Steps { stride, count }.on(slopes.device(), DType::F64)?;
            let weighted = of.times_conjugate(powers)?.scaled(&steps[0])?;
            weighted.each(|part| part.sum(2))
        };
        let z = by_steps(&of_near, &self.near, 1, short)?;
        let Pair(z_re, z_im) = z.plus(&by_steps(&of_far, &self.weighted, short, long)?)?;
        let w = of_far.times_conjugate(&self.far)?;
        let Pair(w_re, w_im) = w.each(|part| part.sum(2))?;
        Ok([z_re, z_im, w_re, w_im])
    }
}

#[cfg(test)]
mod tests {
    use candle_core::Device;

    use super::*;

    fn rows(values: &[f64]) -> Tensor {
        Tensor::from_slice(values, (2, values.len() / 2), &Device::Cpu).unwrap()
    }

    #[test]
    fn a_kernel_is_the_same_without_looking_for_modes_that_grow() {
        let decaying = rows(&[-0.1, -0.3, -0.02, -1.0]);
        let mixed = rows(&[-0.1, 0.3, -0.02, -1.0]);
        for re in [decaying, mixed] {
            let others = [
                [0.4, -1.2, 0.9, 2.0],
                [1.0, -0.5, 0.25, 0.3],
                [0.0, 2.0, -1.0, 0.1],
            ];
            let modes: Vec<Tensor> = std::iter::once(re)
                .chain(others.iter().map(|part| rows(part)))
                .collect();
            let [looked, blind] = [true, false].map(|looks| {
                kernel_of(&modes, 23, looks)
                    .unwrap()
                    .to_vec2::<f64>()
                    .unwrap()
            });
            assert_eq!(looked, blind);
        }
    }
}
