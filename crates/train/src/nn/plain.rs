//! The blocks from candle's own operations: what runs where the processor's path does not, and the
//! independent check of that path.
//!
//! Transforms are products with Fourier matrices: a sequence of n = n₁ n₂ samples, written as an
//! n₁ × n₂ matrix, is multiplied from both sides, with twiddle factors in between. That is
//! 4 (n₁ + n₂) multiplications per sample, dense and regular, which suits a GPU.

use candle_core::{D, DType, Device, Result, Tensor, bail};
use hankelite::model::Placement;
use hankelite_kernels::{GeluForm, Mixing};

use crate::nn::plan::{
    BlockPlan, Encoding, NetworkOutput, NetworkPlan, NetworkTensors, NormKind, NormPlan,
};
use crate::nn::tables::Table;
use crate::nn::{Penalty, host};

/// As `op::network`.
pub(super) fn network(tensors: NetworkTensors<'_>, plan: &NetworkPlan) -> Result<NetworkOutput> {
    let NetworkTensors {
        steps,
        modes,
        parameters,
    } = tensors;
    let (channels, plan_layers) = (plan.channels, plan.layers);
    let (mut x, mut statistics) = (encode(steps, parameters, plan)?, Vec::new());
    let (mut layers, mut penalties) = (Vec::new(), Vec::new());
    let (mut modes_start, mut start) = (0, plan.encoding.parameters(channels));
    for plan in &plan.blocks {
        let (count, size) = (plan.mode_numbers(channels), plan.parameters(channels));
        let block = Block {
            plan,
            channels,
            modes: modes.narrow(0, modes_start, count)?,
            parameters: parameters.narrow(0, start, size)?,
        };
        penalties.extend(block.penalty(&x)?);
        let (out, found) = block.forward(&x)?;
        layers.extend(plan_layers.then(|| out.clone()));
        x = out;
        statistics.push(found);
        (modes_start, start) = (modes_start + count, start + size);
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
            let x = rows.matmul(&weight.reshape((channels, inputs))?.t()?)?;
            x.broadcast_add(&bias)?.reshape((batch, length, channels))
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
        let kernels = kernels(self.plan, self.channels, &self.modes, x)?;
        let d = self.parameter(self.plan.places(self.channels).feedthrough)?;
        let d = d.unsqueeze(1)?.pad_with_zeros(1, 0, x.dim(1)? - 1)?;
        let input = match penalty {
            Penalty::FilterNorm | Penalty::Hankel => None,
            Penalty::Measure => Some(&input),
        };
        Ok(Some(mean_square(&(&kernels[0] + d)?, input)?))
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
        let (mean, variance, found) = match norm.kind {
            NormKind::Layer => {
                let mean = x.mean_keepdim(D::Minus1)?;
                let variance = x.broadcast_sub(&mean)?.sqr()?.mean_keepdim(D::Minus1)?;
                (mean, variance, None)
            }
            NormKind::Batch => self.channel_statistics(x)?,
        };
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

    fn branch(&self, u: &Tensor) -> Result<Tensor> {
        if self.plan.shared.is_some() {
            bail!("layers whose channels share modes run on the processor only");
        }
        let places = self.plan.places(self.channels);
        let kernels = kernels(self.plan, self.channels, &self.modes, u)?;
        let feedthrough = self.parameter(places.feedthrough)?;
        let y = (convolve(u, &kernels)? + u.broadcast_mul(&feedthrough)?)?;
        let active = match self.plan.gelu {
            GeluForm::Exact => gelu(&y)?,
            GeluForm::Tanh => gelu_tanh(&y)?,
        };
        let active = masked(active, &self.plan.inner_mask)?;
        let rows = self.plan.mixing.rows(self.channels);
        let out = if rows == 0 {
            active.clone()
        } else {
            let weight = self
                .parameter(places.weight)?
                .reshape((rows, self.channels))?;
            let flat = active.reshape(((), self.channels))?;
            let mixed = flat.matmul(&weight.t()?)?;
            let mixed = mixed.broadcast_add(&self.parameter(places.bias)?)?;
            let (batch, length, _) = u.dims3()?;
            mixed.reshape((batch, length, rows))?
        };
        let out = match self.plan.mixing {
            Mixing::None | Mixing::Plain => out,
            Mixing::Gated => {
                let halves = out.chunk(2, D::Minus1)?;
                (&halves[0] * sigmoid(&halves[1])?)?
            }
            Mixing::Activated => (active * sigmoid(&out)?)?,
            Mixing::Response => (y * sigmoid(&out)?)?,
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

/// a Φ(a). The gradient of candle's `gelu_erf` has a constant of six digits.
fn gelu(a: &Tensor) -> Result<Tensor> {
    let erf = (a * std::f64::consts::FRAC_1_SQRT_2)?.erf()?;
    a * ((erf + 1.0)? * 0.5)?
}

/// a (1 + tanh(√(2/π) (a + 0.044715 a³)))/2.
fn gelu_tanh(a: &Tensor) -> Result<Tensor> {
    let root = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;
    let inner = ((a.sqr()? * 0.044715)? + 1.0)?;
    let tangent = ((a * inner)? * root)?.tanh()?;
    a * ((tangent + 1.0)? * 0.5)?
}

fn sigmoid(x: &Tensor) -> Result<Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}

/// Multiplies with a mask of batch × channels.
fn masked(x: Tensor, mask: &[f64]) -> Result<Tensor> {
    if mask.is_empty() {
        return Ok(x);
    }
    let (batch, _, channels) = x.dims3()?;
    let mask = Tensor::from_slice(mask, (batch, 1, channels), x.device())?;
    x.broadcast_mul(&mask.to_dtype(x.dtype())?)
}

/// One kernel (channels × L) for each direction.
fn kernels(plan: &BlockPlan, channels: usize, modes: &Tensor, u: &Tensor) -> Result<Vec<Tensor>> {
    let directions = 1 + usize::from(plan.bidirectional);
    let modes = modes.reshape((directions, 4, channels, plan.modes))?;
    let kernel = |direction: usize| {
        let parts = (0..4).map(|part| modes.get(direction)?.get(part));
        kernel(&parts.collect::<Result<Vec<_>>>()?, u.dim(1)?)?.to_dtype(u.dtype())
    };
    (0..directions).map(kernel).collect()
}

/// As `kernel::Modes::kernel`, for all channels: from Re z, Im z, Re w, Im w.
pub(super) fn kernel(modes: &[Tensor], length: usize) -> Result<Tensor> {
    // A GPU would have to finish all its work before the host can look.
    kernel_of(modes, length, modes[0].device().is_cpu())
}

/// The same; where it `looks` for modes that grow, none cost nothing.
fn kernel_of(modes: &[Tensor], length: usize, looks: bool) -> Result<Tensor> {
    let growing = modes[0].gt(0.0)?.to_dtype(DType::F64)?;
    let decaying = (1.0 - &growing)?;
    let sign = (&decaying - &growing)?;
    let exponents = [modes[0].mul(&sign)?, modes[1].mul(&sign)?];
    let weights =
        |mask: &Tensor| -> Result<[Tensor; 2]> { Ok([modes[2].mul(mask)?, modes[3].mul(mask)?]) };
    let forward = decaying_kernel(&exponents, &weights(&decaying)?, length)?;
    if looks && growing.sum_all()?.to_scalar::<f64>()? == 0.0 {
        return Ok(forward);
    }
    forward + turned(&decaying_kernel(&exponents, &weights(&growing)?, length)?)?
}

fn decaying_kernel(z: &[Tensor; 2], w: &[Tensor; 2], length: usize) -> Result<Tensor> {
    let short = (length as f64).sqrt().ceil() as usize;
    let long = length.div_ceil(short);
    let powers = |stride: usize, count: usize| -> Result<[Tensor; 2]> {
        let steps = Table::Steps { stride, count }.on(z[0].device(), DType::F64)?;
        let size = z[0].unsqueeze(2)?.broadcast_mul(&steps[0])?.exp()?;
        let angle = z[1].unsqueeze(2)?.broadcast_mul(&steps[0])?;
        Ok([size.mul(&angle.cos()?)?, size.mul(&angle.sin()?)?])
    };
    let near = Tensor::cat(&powers(1, short)?, 1)?;
    let [far_re, far_im] = powers(short, long)?;
    let (w_re, w_im) = (w[0].unsqueeze(2)?, w[1].unsqueeze(2)?);
    let re = (far_re.broadcast_mul(&w_re)? - far_im.broadcast_mul(&w_im)?)?;
    let im = (far_re.broadcast_mul(&w_im)? + far_im.broadcast_mul(&w_re)?)?;
    let far = Tensor::cat(&[re, im.neg()?], 1)?;
    let channels = z[0].dim(0)?;
    let kernel = far.transpose(1, 2)?.contiguous()?.matmul(&near)?;
    kernel
        .reshape((channels, long * short))?
        .narrow(1, 0, length)
}

/// Fourier matrices for one size.
struct Fourier {
    rows: usize,
    columns: usize,
    /// Cosines and sines of each.
    first: Vec<Tensor>,
    second: Vec<Tensor>,
    twiddles: Vec<Tensor>,
}

impl Fourier {
    fn new(least: usize, dtype: DType, device: &Device) -> Result<Self> {
        let rows = (least as f64).sqrt().ceil() as usize;
        let columns = least.div_ceil(rows);
        let table = |rows: usize, columns: usize, period: usize| {
            Table::Waves {
                rows,
                columns,
                period,
            }
            .on(device, dtype)
        };
        Ok(Self {
            rows,
            columns,
            first: table(rows, rows, rows)?,
            second: table(columns, columns, columns)?,
            twiddles: table(columns, rows, rows * columns)?,
        })
    }

    /// (…, n) → the spectrum, (…, rows, columns), real and imaginary part.
    fn forward(&self, x: &Tensor) -> Result<[Tensor; 2]> {
        let (rows, columns) = (self.rows, self.columns);
        let turned = x
            .reshape(((), rows, columns))?
            .transpose(1, 2)?
            .contiguous()?;
        let flat = turned.reshape(((), rows))?;
        let re = flat.matmul(&self.first[0])?.reshape(((), columns, rows))?;
        let im = flat.matmul(&self.first[1])?.reshape(((), columns, rows))?;
        let [re, im] = times([&re, &im], [&self.twiddles[0], &self.twiddles[1]])?;
        let flat = |x: Tensor| x.transpose(1, 2)?.contiguous()?.reshape(((), columns));
        let (re, im) = (flat(re)?, flat(im)?);
        let (cos, sin) = (&self.second[0], &self.second[1]);
        let real = (re.matmul(cos)? - im.matmul(sin)?)?;
        let imaginary = (re.matmul(sin)? + im.matmul(cos)?)?;
        let shape = ((), rows, columns);
        Ok([real.reshape(shape)?, imaginary.reshape(shape)?])
    }

    /// The real part of the inverse, (…, n).
    fn inverse(&self, [re, im]: [Tensor; 2]) -> Result<Tensor> {
        let (rows, columns) = (self.rows, self.columns);
        let (re, im) = (re.reshape(((), columns))?, im.reshape(((), columns))?);
        let (cos, sin) = (&self.second[0], &self.second[1]);
        let real = (re.matmul(cos)? + im.matmul(sin)?)?;
        let imaginary = (im.matmul(cos)? - re.matmul(sin)?)?;
        let turned = |x: Tensor| {
            x.reshape(((), rows, columns))?
                .transpose(1, 2)?
                .contiguous()
        };
        let (real, imaginary) = (turned(real)?, turned(imaginary)?);
        let back = [&self.twiddles[0], &self.twiddles[1].neg()?];
        let [re, im] = times([&real, &imaginary], back)?;
        let (re, im) = (re.reshape(((), rows))?, im.reshape(((), rows))?);
        let x = (re.matmul(&self.first[0])? + im.matmul(&self.first[1])?)?;
        let x = x
            .reshape(((), columns, rows))?
            .transpose(1, 2)?
            .contiguous()?;
        x.reshape(((), rows * columns))? * (1.0 / (rows * columns) as f64)
    }
}

fn times(a: [&Tensor; 2], b: [&Tensor; 2]) -> Result<[Tensor; 2]> {
    let re = (a[0].broadcast_mul(b[0])? - a[1].broadcast_mul(b[1])?)?;
    let im = (a[0].broadcast_mul(b[1])? + a[1].broadcast_mul(b[0])?)?;
    Ok([re, im])
}

/// The convolution of u (batch × L × H) with the kernels of one or two directions.
fn convolve(u: &Tensor, kernels: &[Tensor]) -> Result<Tensor> {
    let (batch, length, channels) = u.dims3()?;
    let fourier = Fourier::new(2 * length, u.dtype(), u.device())?;
    let (rows, columns) = (fourier.rows, fourier.columns);
    let size = rows * columns;
    let mut kernel = kernels[0].pad_with_zeros(1, 0, size - length)?;
    if let Some(backward) = kernels.get(1) {
        kernel = (kernel + turned(backward)?.pad_with_zeros(1, size - length, 0)?)?;
    }
    let u = u.transpose(1, 2)?.contiguous()?;
    let u = u.pad_with_zeros(2, 0, size - length)?;
    let [u_re, u_im] = fourier.forward(&u.reshape((batch * channels, size))?)?;
    let [k_re, k_im] = fourier.forward(&kernel)?;
    let shape = (batch, channels, rows, columns);
    let (u_re, u_im) = (u_re.reshape(shape)?, u_im.reshape(shape)?);
    let y = fourier.inverse(times([&u_re, &u_im], [&k_re, &k_im])?)?;
    let y = y.reshape((batch, channels, size))?.narrow(2, 0, length)?;
    y.transpose(1, 2)?.contiguous()
}

#[cfg(test)]
mod tests {
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
