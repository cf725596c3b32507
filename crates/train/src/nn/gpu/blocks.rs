//! Encoder, blocks and pooling as one operation: `cuda/block.cu` around `cuda/bank.cu`, with candle's products
//! of matrices.
//!
//! candle's way back adds each gradient to a tensor of zeros, and the host starts a kernel for each operation.
//! Here a block takes seven kernels forwards and about twenty on the way back. It keeps its input, what its
//! state space takes and gives, the activated form of that, and the outputs of a gate's map.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Device, Result, Tensor};
use hankelite::model::Placement;
use hankelite_kernels::Mixing;

use super::bank::{self, Activation};
use super::shared;
use super::{File, Grid, THREADS, address, int, launch, room, structures, takes};
use crate::nn::gradient::{Known, of_three, of_two};
use crate::nn::plan::{BlockPlan, Encoding, NetworkOutput, NetworkPlan, NormKind, Size};

/// The most partial sums of the gradients of a norm or a bias.
const SHARES: usize = 256;

/// The most numbers of a batch, as the kernels count them.
const MOST: usize = i32::MAX as usize;

/// Columns and rows that a block of threads sums at a time, as in the kernels.
const COLUMNS: usize = 32;
const LINES: usize = THREADS / COLUMNS;

#[repr(C)]
#[derive(Clone, Copy)]
struct BlockShape {
    batch: i32,
    length: i32,
    channels: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct BlockEnd {
    mixed: u64,
    bias: u64,
    active: u64,
    mask: u64,
    residual: u64,
    form: i32,
    unused: i32,
}

structures!(BlockShape: 12, BlockEnd: 48);

/// Whether the kernels hold a whole network for such steps, batch × L (× inputs).
pub(in crate::nn) fn holds(plan: &NetworkPlan, steps: &Tensor, dtype: DType) -> bool {
    let block = |plan: &BlockPlan| {
        let by_layer = plan.norm.is_none_or(|norm| norm.kind == NormKind::Layer);
        let kept = plan.mixing != Mixing::Response && plan.penalty.is_none();
        let fits = match plan.shared {
            Some(_) => shared::fits(steps.dims()),
            None => bank::fits(plan, steps.dims()),
        };
        by_layer && kept && fits
    };
    let few = steps.dims().iter().take(2).product::<usize>() * plan.channels * 2 <= MOST;
    takes(steps.device(), dtype) && few && plan.blocks.iter().all(block)
}

/// As `plain::network`. `steps` are the encoded ones where the encoder is not linear.
pub(in crate::nn) fn network(
    [steps, modes, parameters]: [&Tensor; 3],
    plan: &NetworkPlan,
) -> Result<NetworkOutput> {
    let (batch, length, _) = steps.dims3()?;
    let channels = plan.channels;
    let network = Network {
        plan: plan.clone(),
        size: Size {
            batch,
            length,
            channels,
        },
        given: [
            steps.detach().contiguous()?,
            modes.detach().contiguous()?,
            parameters.detach().contiguous()?,
        ],
        weights: Weights::of(plan.pooling.as_deref(), steps.device())?,
    };
    let (value, kept) = network.forward()?;
    let result = match plan.encoding {
        Encoding::Linear { .. } => {
            let backward = move |slopes: &Tensor| {
                let [_, of_modes, of_parameters] = network.backward(&kept, slopes)?;
                Ok([of_modes, of_parameters])
            };
            of_two([modes, parameters], Known::new(value, backward))
        }
        Encoding::None | Encoding::Embedding { .. } => {
            let backward = move |slopes: &Tensor| network.backward(&kept, slopes);
            of_three([steps, modes, parameters], Known::new(value, backward))
        }
    };
    split(&result?, plan, (batch, length, channels))
}

/// Takes apart what [`Network::forward`] puts in a row.
fn split(
    value: &Tensor,
    plan: &NetworkPlan,
    (batch, length, channels): (usize, usize, usize),
) -> Result<NetworkOutput> {
    let (count, whole) = (plan.layers_given(), batch * length * channels);
    let layer = |at: usize| {
        let layer = value.narrow(0, at * whole, whole)?;
        layer.reshape((batch, length, channels))
    };
    let out = match (count, &plan.pooling) {
        (0, _) => value.clone(),
        (_, None) => layer(count - 1)?,
        (_, Some(_)) => {
            let pooled = value.narrow(0, count * whole, batch * channels)?;
            pooled.reshape((batch, channels))?
        }
    };
    Ok(NetworkOutput {
        out,
        layers: (0..count).map(layer).collect::<Result<_>>()?,
        penalties: None,
        statistics: vec![None; plan.blocks.len()],
    })
}

/// A network on a batch.
struct Network {
    plan: NetworkPlan,
    size: Size,
    /// Steps, modes and parameters, as `plain::network` takes them.
    given: [Tensor; 3],
    weights: Option<Weights>,
}

/// Weights of a pooling.
struct Weights {
    /// Batch × L; `None` where all are `one`.
    each: Option<Tensor>,
    one: f32,
}

impl Weights {
    fn of(weights: Option<&[f64]>, device: &Device) -> Result<Option<Self>> {
        let Some(weights) = weights else {
            return Ok(None);
        };
        let one = weights.first().copied().unwrap_or(0.0);
        let each = match weights.iter().all(|&weight| weight == one) {
            true => None,
            false => Some(on_device(weights, device)?),
        };
        let one = one as f32;
        Ok(Some(Self { each, one }))
    }

    fn address(&self) -> Result<u64> {
        self.each.as_ref().map_or(Ok(0), address)
    }
}

/// In single precision; never kept from step to step.
fn on_device(numbers: &[f64], device: &Device) -> Result<Tensor> {
    let numbers: Vec<f32> = numbers.iter().map(|&x| x as f32).collect();
    Tensor::from_slice(&numbers, numbers.len(), device)
}

/// A block with its own parts of the tensors of the network.
struct Block<'a> {
    plan: &'a BlockPlan,
    size: Size,
    modes: Tensor,
    parameters: Tensor,
}

/// The state space of a block on a batch.
enum Space {
    Bank(bank::Layer),
    Shared(shared::Layer),
}

/// What the backward pass of a block takes.
struct Kept {
    space: Space,
    /// What the state space gives, and that activated and masked.
    y: Tensor,
    active: Tensor,
    /// What the map gives, where its form is a gate.
    mixed: Option<Tensor>,
    outer_mask: Option<Tensor>,
    norm: Option<KeptNorm>,
}

struct KeptNorm {
    x: Tensor,
    statistics: Tensor,
}

impl Network {
    fn device(&self) -> &Device {
        self.given[1].device()
    }

    fn blocks(&self) -> Result<Vec<Block<'_>>> {
        let channels = self.size.channels;
        let (mut start, mut start_modes) = (self.plan.encoding.parameters(channels), 0);
        let block = |plan| {
            let (size, modes) = (
                BlockPlan::parameters(plan, channels),
                plan.mode_numbers(channels),
            );
            let block = Block {
                plan,
                size: self.size,
                modes: self.given[1].narrow(0, start_modes, modes)?,
                parameters: self.given[2].narrow(0, start, size)?,
            };
            (start, start_modes) = (start + size, start_modes + modes);
            Ok(block)
        };
        self.plan.blocks.iter().map(block).collect()
    }

    /// The result; where the outputs of the blocks are wanted, flat, they stand first and the pooled ones
    /// behind them.
    fn forward(&self) -> Result<(Tensor, Vec<Kept>)> {
        let (mut x, mut kept, mut layers) = (self.encoded()?, Vec::new(), Vec::new());
        for block in self.blocks()? {
            let (out, own) = block.forward(&x)?;
            if self.plan.layers {
                layers.push(out.flatten_all()?);
            }
            kept.push(own);
            x = out;
        }
        let pooled = match &self.weights {
            None => None,
            Some(weights) => Some(self.pooled(&x, weights)?),
        };
        if !self.plan.layers {
            return Ok((pooled.unwrap_or(x), kept));
        }
        if let Some(pooled) = pooled {
            layers.push(pooled.flatten_all()?);
        }
        Ok((Tensor::cat(&layers, 0)?, kept))
    }

    /// Gradients of steps, modes and parameters; of the steps an empty one behind a linear encoder.
    fn backward(&self, kept: &[Kept], slopes: &Tensor) -> Result<[Tensor; 3]> {
        let device = self.device();
        let of_modes = room(self.given[1].shape(), DType::F64, device)?;
        let of_parameters = room(self.given[2].shape(), DType::F32, device)?;
        let blocks = self.blocks()?;
        let (mut end, mut end_modes) = (of_parameters.elem_count(), of_modes.elem_count());
        let (mut g, layers) = self.of_last(slopes)?;
        for (at, (block, kept)) in blocks.iter().zip(kept).enumerate().rev() {
            if let (Some(layers), true) = (&layers, at + 1 < blocks.len()) {
                g = (g + layers.get(at)?)?;
            }
            end -= block.parameters.elem_count();
            end_modes -= block.modes.elem_count();
            let own = of_parameters.narrow(0, end, block.parameters.elem_count())?;
            let own_modes = of_modes.narrow(0, end_modes, block.modes.elem_count())?;
            g = block.backward(kept, &g, [&own_modes, &own])?;
        }
        if let Encoding::Linear { inputs } = self.plan.encoding {
            self.encoder_slopes(&g, inputs, &of_parameters)?;
        } else if end > 0 {
            // That of a table is formed where its rows are taken.
            of_parameters.narrow(0, 0, end)?.zero_set()?;
        }
        Ok([g, of_modes, of_parameters])
    }

    /// The gradient of the last block's outputs, and those of all blocks where they were given out.
    fn of_last(&self, slopes: &Tensor) -> Result<(Tensor, Option<Tensor>)> {
        let Size {
            batch,
            length,
            channels,
        } = self.size;
        let (count, whole) = (self.plan.layers_given(), self.size.numbers());
        let spread = |slopes: &Tensor| match &self.weights {
            None => slopes.reshape((batch, length, channels)),
            Some(weights) => self.spread(slopes, weights),
        };
        if count == 0 {
            return Ok((spread(slopes)?, None));
        }
        let layers = slopes.narrow(0, 0, count * whole)?;
        let layers = layers.reshape((count, batch, length, channels))?;
        let last = layers.get(count - 1)?;
        let last = match &self.weights {
            None => last,
            Some(_) => (last + spread(&slopes.narrow(0, count * whole, batch * channels)?)?)?,
        };
        Ok((last, Some(layers)))
    }

    fn encoded(&self) -> Result<Tensor> {
        let Encoding::Linear { inputs } = self.plan.encoding else {
            return Ok(self.given[0].clone());
        };
        let channels = self.size.channels;
        let parameters = &self.given[2];
        let weight = parameters.narrow(0, 0, channels * inputs)?;
        let rows = self.given[0].reshape(((), inputs))?;
        let mixed = rows.matmul(&weight.reshape((channels, inputs))?.t()?)?;
        let end = BlockEnd {
            mixed: address(&mixed)?,
            bias: address(&parameters.narrow(0, channels * inputs, channels)?)?,
            active: 0,
            mask: 0,
            residual: 0,
            form: form(Mixing::Plain),
            unused: 0,
        };
        run_end(end, self.size, self.device())
    }

    fn encoder_slopes(&self, g: &Tensor, inputs: usize, to: &Tensor) -> Result<()> {
        let channels = self.size.channels;
        let (g, rows) = (
            g.reshape(((), channels))?,
            self.given[0].reshape(((), inputs))?,
        );
        let of_weight = g.t()?.matmul(&rows)?;
        to.slice_set(&of_weight.flatten_all()?, 0, 0)?;
        let of_bias = to.narrow(0, channels * inputs, channels)?;
        sums(&g, By::Nothing, [&of_bias, &of_bias])
    }

    fn pooled(&self, x: &Tensor, weights: &Weights) -> Result<Tensor> {
        let Size {
            batch, channels, ..
        } = self.size;
        let pooled = room((batch, channels), DType::F32, self.device())?;
        let (from, to) = (address(x)?, address(&pooled)?);
        let grid = Grid {
            blocks: [channels.div_ceil(COLUMNS), batch, 1],
            threads: [COLUMNS, LINES],
        };
        let kernel = (File::Block, "block_pool");
        let given = weights.address()?;
        let arguments: [&dyn super::Argument; 5] =
            [&from, &given, &weights.one, &to, &shape(self.size)?];
        launch(self.device(), kernel, grid, &arguments)?;
        Ok(pooled)
    }

    fn spread(&self, slopes: &Tensor, weights: &Weights) -> Result<Tensor> {
        let slopes = slopes.contiguous()?;
        let out = room(numbers(self.size), DType::F32, self.device())?;
        let (from, to, given) = (address(&slopes)?, address(&out)?, weights.address()?);
        launch(
            self.device(),
            (File::Block, "block_spread"),
            Grid::of(out.elem_count()),
            &[&from, &given, &weights.one, &to, &shape(self.size)?],
        )?;
        Ok(out)
    }
}

impl Block<'_> {
    fn part(&self, range: std::ops::Range<usize>) -> Result<Tensor> {
        self.parameters.narrow(0, range.start, range.len())
    }

    fn is_placed(&self, placement: Placement) -> bool {
        self.plan
            .norm
            .is_some_and(|norm| norm.placement == placement)
    }

    fn rows(&self) -> usize {
        self.size.batch * self.size.length
    }

    /// W of the map, outputs × channels; `None` without one.
    fn weight(&self) -> Result<Option<Tensor>> {
        let channels = self.size.channels;
        match self.plan.mixing.rows(channels) {
            0 => Ok(None),
            rows => {
                let weight = self.part(self.plan.places(channels).weight)?;
                Ok(Some(weight.reshape((rows, channels))?))
            }
        }
    }

    fn mask(&self, numbers: &[f64]) -> Result<Option<Tensor>> {
        match numbers {
            [] => Ok(None),
            _ => Ok(Some(on_device(numbers, self.modes.device())?)),
        }
    }

    fn forward(&self, x: &Tensor) -> Result<(Tensor, Kept)> {
        let channels = self.size.channels;
        let (u, mut norm) = match self.is_placed(Placement::Pre) {
            true => self.normalised(x)?,
            false => (x.clone(), None),
        };
        let activation = Activation {
            form: self.plan.gelu,
            mask: self.mask(&self.plan.inner_mask)?,
        };
        let (space, [y, active]) = self.space(u, activation)?;
        let mixed = match self.weight()? {
            None => None,
            Some(weight) => {
                let rows = active.reshape((self.rows(), channels))?;
                Some(rows.matmul(&weight.t()?)?)
            }
        };
        let mut kept = Kept {
            space,
            y,
            active,
            mixed,
            outer_mask: self.mask(&self.plan.outer_mask)?,
            norm: None,
        };
        let residual = self.plan.norm.is_some().then_some(x);
        let mut out = run_end(self.end(&kept, residual)?, self.size, x.device())?;
        if self.is_placed(Placement::Post) {
            (out, norm) = self.normalised(&out)?;
        }
        if self.plan.mixing == Mixing::Plain {
            kept.mixed = None;
        }
        kept.norm = norm;
        Ok((out, kept))
    }

    /// Writes the gradients of modes and parameters; gives that of the block's input.
    fn backward(&self, kept: &Kept, g: &Tensor, out: [&Tensor; 2]) -> Result<Tensor> {
        let g = g.contiguous()?;
        let g = match &kept.norm {
            Some(norm) if self.is_placed(Placement::Post) => {
                self.norm_slopes(norm, [&g, out[1]], None)?
            }
            _ => g,
        };
        let of_active = self.map_slopes(kept, &g, out[1])?;
        let of_u = self.space_slopes(kept, &of_active, out)?;
        match (&kept.norm, self.is_placed(Placement::Pre)) {
            (Some(norm), true) => self.norm_slopes(norm, [&of_u, out[1]], Some(&g)),
            (Some(_), false) => of_u + g,
            (None, _) => Ok(of_u),
        }
    }

    /// The state space on its inputs; its outputs, and those activated.
    fn space(&self, u: Tensor, activation: Activation) -> Result<(Space, [Tensor; 2])> {
        let places = self.plan.places(self.size.channels);
        if self.plan.shared.is_none() {
            let given = [u, self.modes.clone(), self.part(places.feedthrough)?];
            let layer = bank::Layer::new(given, self.plan, Some(activation))?;
            let (y, active) = layer.forward()?;
            return Ok((Space::Bank(layer), [y, active]));
        }
        let numbers = self.shared_numbers([&self.modes, &self.parameters])?;
        let mut layer = shared::Layer::new(u, numbers, activation);
        let found = layer.forward()?;
        Ok((Space::Shared(layer), found))
    }

    /// Of modes and parameters, or of their gradients.
    fn shared_numbers(&self, [modes, parameters]: [&Tensor; 2]) -> Result<shared::Numbers> {
        let places = self.plan.places(self.size.channels);
        let part = |range: std::ops::Range<usize>| parameters.narrow(0, range.start, range.len());
        Ok(shared::Numbers {
            exponents: modes.clone(),
            feedthrough: part(places.feedthrough)?,
            input: part(places.input)?,
            output: part(places.output)?,
        })
    }

    /// The gradient of what goes into the state space; writes those of its modes and parameters.
    fn space_slopes(&self, kept: &Kept, slopes: &Tensor, out: [&Tensor; 2]) -> Result<Tensor> {
        let through = self.plan.places(self.size.channels).feedthrough;
        let of_through = out[1].narrow(0, through.start, through.len())?;
        let layer = match &kept.space {
            Space::Bank(layer) => {
                return layer.backward(&kept.y, slopes, [out[0], &of_through]);
            }
            Space::Shared(layer) => layer,
        };
        let [of_u, g] = layer.backward(&kept.y, slopes, &self.shared_numbers(out)?)?;
        if through.len() == self.size.channels {
            let flat = (self.rows(), self.size.channels);
            let of_plain = room(through.len(), DType::F32, g.device())?;
            let by = By::Numbers(layer.inputs());
            sums(&g.reshape(flat)?, by, [&of_plain, &of_through])?;
        }
        Ok(of_u)
    }

    fn normalised(&self, x: &Tensor) -> Result<(Tensor, Option<KeptNorm>)> {
        let places = self.plan.places(self.size.channels);
        let epsilon = self.plan.norm.map_or(0.0, |norm| norm.epsilon) as f32;
        let (z, statistics) = (
            room(x.shape(), DType::F32, x.device())?,
            room((self.rows(), 2), DType::F32, x.device())?,
        );
        let [weight, bias] = [places.norm_weight, places.norm_bias].map(|range| self.part(range));
        let (weight, bias) = (address(&weight?)?, address(&bias?)?);
        let (from, to, found) = (address(x)?, address(&z)?, address(&statistics)?);
        let shape = shape(self.size)?;
        launch(
            x.device(),
            (File::Block, "block_normalise"),
            Grid::of_warps(self.rows()),
            &[&from, &weight, &bias, &to, &found, &epsilon, &shape],
        )?;
        let x = x.clone();
        Ok((z, Some(KeptNorm { x, statistics })))
    }

    /// The gradient of what is normalised, with what else flows there; writes those of weight and bias.
    fn norm_slopes(
        &self,
        norm: &KeptNorm,
        [of_z, out]: [&Tensor; 2],
        residual: Option<&Tensor>,
    ) -> Result<Tensor> {
        let (channels, device) = (self.size.channels, of_z.device());
        let places = self.plan.places(channels);
        let of_x = room(of_z.shape(), DType::F32, device)?;
        let weight = address(&self.part(places.norm_weight.clone())?)?;
        let (from, x, found) = (
            address(of_z)?,
            address(&norm.x)?,
            address(&norm.statistics)?,
        );
        let (to, further) = (address(&of_x)?, residual.map_or(Ok(0), address)?);
        let shape = shape(self.size)?;
        launch(
            device,
            (File::Block, "block_normalise_slopes"),
            Grid::of_warps(self.rows()),
            &[&from, &x, &weight, &found, &further, &to, &shape],
        )?;
        let of_weight = out.narrow(0, places.norm_weight.start, channels)?;
        let of_bias = out.narrow(0, places.norm_bias.start, channels)?;
        let g = of_z.reshape((self.rows(), channels))?;
        sums(&g, By::Normalised(norm), [&of_bias, &of_weight])?;
        Ok(of_x)
    }

    fn end(&self, kept: &Kept, residual: Option<&Tensor>) -> Result<BlockEnd> {
        let bias = self.plan.places(self.size.channels).bias;
        let or_none = |tensor: Option<&Tensor>| tensor.map_or(Ok(0), address);
        Ok(BlockEnd {
            mixed: or_none(kept.mixed.as_ref())?,
            bias: match bias.is_empty() {
                true => 0,
                false => address(&self.part(bias)?)?,
            },
            active: address(&kept.active)?,
            mask: or_none(kept.outer_mask.as_ref())?,
            residual: or_none(residual)?,
            form: form(self.plan.mixing),
            unused: 0,
        })
    }

    /// The gradient of the activated outputs; writes those of the map.
    fn map_slopes(&self, kept: &Kept, g: &Tensor, out: &Tensor) -> Result<Tensor> {
        let channels = self.size.channels;
        let rows = self.plan.mixing.rows(channels);
        let (of_mixed, of_active) = self.end_slopes(kept, g)?;
        let (Some(weight), Some(of_mixed)) = (self.weight()?, of_mixed) else {
            return Ok(of_active.unwrap_or_else(|| g.clone()));
        };
        let of_mixed = of_mixed.reshape((self.rows(), rows))?;
        let active = kept.active.reshape((self.rows(), channels))?;
        let places = self.plan.places(channels);
        let of_weight = of_mixed.t()?.matmul(&active)?;
        out.slice_set(&of_weight.flatten_all()?, 0, places.weight.start)?;
        let of_bias = out.narrow(0, places.bias.start, rows)?;
        sums(&of_mixed, By::Nothing, [&of_bias, &of_bias])?;
        let through = of_mixed.matmul(&weight)?.reshape(numbers(self.size))?;
        match of_active {
            None => Ok(through),
            Some(own) => through + own,
        }
    }

    /// Of what the map gives, and of the activated outputs beside it.
    fn end_slopes(&self, kept: &Kept, g: &Tensor) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let mixing = self.plan.mixing;
        let masked = kept.outer_mask.is_some();
        match mixing {
            Mixing::Plain if !masked => return Ok((Some(g.clone()), None)),
            Mixing::None if !masked => return Ok((None, Some(g.clone()))),
            _ => {}
        }
        let (device, size) = (g.device(), self.size);
        let mixed = match mixing.rows(size.channels) {
            0 => None,
            rows => Some(room((self.rows(), rows), DType::F32, device)?),
        };
        let active = match mixing {
            Mixing::None | Mixing::Activated => Some(room(numbers(size), DType::F32, device)?),
            _ => None,
        };
        let [to_mixed, to_active] = [&mixed, &active].map(|to| to.as_ref().map_or(Ok(0), address));
        let (end, from) = (self.end(kept, None)?, address(g)?);
        let (to_mixed, to_active, shape) = (to_mixed?, to_active?, shape(size)?);
        launch(
            device,
            (File::Block, "block_end_slopes"),
            Grid::of(size.numbers()),
            &[&end, &from, &to_mixed, &to_active, &shape],
        )?;
        Ok((mixed, active))
    }
}

/// As in the kernels.
fn form(mixing: Mixing) -> i32 {
    match mixing {
        Mixing::None => 0,
        Mixing::Plain => 1,
        Mixing::Gated => 2,
        Mixing::Activated | Mixing::Response => 3,
    }
}

fn shape(size: Size) -> Result<BlockShape> {
    Ok(BlockShape {
        batch: int(size.batch)?,
        length: int(size.length)?,
        channels: int(size.channels)?,
    })
}

fn numbers(size: Size) -> (usize, usize, usize) {
    (size.batch, size.length, size.channels)
}

fn run_end(end: BlockEnd, size: Size, device: &Device) -> Result<Tensor> {
    let out = room(numbers(size), DType::F32, device)?;
    let to = address(&out)?;
    launch(
        device,
        (File::Block, "block_end"),
        Grid::of(out.elem_count()),
        &[&end, &to, &shape(size)?],
    )?;
    Ok(out)
}

/// What else the rows are multiplied with before they are summed.
enum By<'a> {
    Nothing,
    Numbers(&'a Tensor),
    Normalised(&'a KeptNorm),
}

/// Writes the sums of the rows of g, and those of g times something else.
fn sums(g: &Tensor, by: By<'_>, [plain, scaled]: [&Tensor; 2]) -> Result<()> {
    let ((rows, columns), device) = (g.dims2()?, g.device());
    let shares = SHARES.min(rows.div_ceil(LINES));
    let partial = room((shares, 2 * columns), DType::F64, device)?;
    let (from, to) = (address(g)?, address(&partial)?);
    let (x, statistics, scaled) = match by {
        By::Nothing => (0, 0, 0),
        By::Numbers(x) => (address(x)?, 0, address(scaled)?),
        By::Normalised(norm) => (
            address(&norm.x)?,
            address(&norm.statistics)?,
            address(scaled)?,
        ),
    };
    let grid = Grid {
        blocks: [columns.div_ceil(COLUMNS), shares, 1],
        threads: [COLUMNS, LINES],
    };
    let count = rows as i64;
    launch(
        device,
        (File::Block, "block_sums"),
        grid,
        &[&from, &x, &statistics, &to, &int(columns)?, &count],
    )?;
    let plain = address(plain)?;
    launch(
        device,
        (File::Block, "block_totals"),
        Grid::of_warps(columns),
        &[&to, &plain, &scaled, &int(columns)?, &int(shares)?],
    )
}
