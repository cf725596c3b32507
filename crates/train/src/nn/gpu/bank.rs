//! The state space of a block with one system for each channel, and GELU behind it: `cuda/bank.cu`.
//!
//! A block keeps its input and the output of its state space for the way back, whatever its modes:
//! states are formed again, chunk by chunk.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Result, Tensor};
use hankelite_kernels::GeluForm;

use super::{
    CHUNK, File, Grid, MOST_BLOCKS, THREADS, address, int, launch, room, structures, takes,
};
use crate::nn::gradient::{Known, of_three};
use crate::nn::plan::BlockPlan;

/// Modes of a thread, as in the kernels.
const MODES: usize = 8;

/// The most threads that share a channel.
const LANES: usize = 32;

/// The most partial sums of the gradients of modes and D: enough blocks for a GPU.
const SHARES: usize = 128;

#[repr(C)]
#[derive(Clone, Copy)]
struct BankShape {
    batch: i32,
    length: i32,
    channels: i32,
    modes: i32,
    log_lanes: i32,
    reverse: i32,
    delayed: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct BankEnds {
    feedthrough: u64,
    mask: u64,
    activated: u64,
    gelu: i32,
    further: i32,
}

structures!(BankShape: 28, BankEnds: 32);

/// What stands behind the state space: GELU, and a mask of batch × channels.
#[derive(Clone)]
pub(in crate::nn) struct Activation {
    pub(in crate::nn) form: GeluForm,
    pub(in crate::nn) mask: Option<Tensor>,
}

impl Activation {
    fn form(&self) -> i32 {
        match self.form {
            GeluForm::Exact => 1,
            GeluForm::Tanh => 2,
        }
    }

    fn mask(&self) -> Result<u64> {
        self.mask.as_ref().map_or(Ok(0), address)
    }
}

/// Whether the kernels hold the state space of a block for such inputs, batch × L × H.
pub(in crate::nn) fn holds(plan: &BlockPlan, u: &Tensor) -> bool {
    takes(u.device(), u.dtype()) && fits(plan, u.dims())
}

/// Whether the grids of the kernels hold a block on so many sequences and steps.
pub(super) fn fits(plan: &BlockPlan, dims: &[usize]) -> bool {
    let fits = |count: usize| count <= MOST_BLOCKS;
    let grid = |batch: usize, length: usize| {
        fits(batch) && fits(length.div_ceil(CHUNK)) && batch * length <= i32::MAX as usize
    };
    plan.shared.is_none()
        && !plan.may_grow
        && plan.modes <= MODES * LANES
        && matches!(*dims, [batch, length, ..] if grid(batch, length))
}

/// y = D u + k * u from the modes of a block, f64 and flat as [`BlockPlan`] has them; activated where that
/// is asked for.
pub(in crate::nn) fn respond(
    [u, modes, feedthrough]: [&Tensor; 3],
    plan: &BlockPlan,
    activation: Option<Activation>,
) -> Result<Tensor> {
    let detached = |tensor: &Tensor| tensor.detach().contiguous();
    let given = [detached(u)?, detached(modes)?, detached(feedthrough)?];
    let (numbers, through) = (modes.shape().clone(), feedthrough.shape().clone());
    let layer = Layer::new(given, plan, activation)?;
    let (y, value) = layer.forward()?;
    let backward = move |slopes: &Tensor| {
        let of_modes = room(&numbers, DType::F64, slopes.device())?;
        let of_feedthrough = room(&through, DType::F32, slopes.device())?;
        let of_input = layer.backward(&y, slopes, [&of_modes, &of_feedthrough])?;
        Ok([of_input, of_modes, of_feedthrough])
    };
    of_three([u, modes, feedthrough], Known::new(value, backward))
}

/// A block's state space on a batch.
pub(super) struct Layer {
    u: Tensor,
    /// For each direction of time.
    banks: Vec<Bank>,
    feedthrough: Tensor,
    /// Modes of a channel.
    count: usize,
    activation: Option<Activation>,
}

/// The modes of one direction of time.
struct Bank {
    modes: Tensor,
    /// Poles and weights in single precision, and the powers of the poles over a chunk.
    table: Tensor,
    far: Tensor,
}

impl Bank {
    fn new(modes: Tensor) -> Result<Self> {
        let (device, all) = (modes.device(), modes.elem_count() / 4);
        let (table, far) = (
            room((all, 4), DType::F32, device)?,
            room((all, 2), DType::F64, device)?,
        );
        let (from, to, powers) = (address(&modes)?, address(&table)?, address(&far)?);
        let kernel = (File::Bank, "bank_table");
        let arguments: [&dyn super::Argument; 4] = [&from, &to, &powers, &int(all)?];
        launch(device, kernel, Grid::of(all), &arguments)?;
        Ok(Self { modes, table, far })
    }
}

/// One direction of time, on the way there or back.
struct Direction<'a> {
    bank: &'a Bank,
    shape: BankShape,
}

impl Layer {
    /// On contiguous tensors: inputs, modes and feedthrough.
    pub(super) fn new(
        [u, modes, feedthrough]: [Tensor; 3],
        plan: &BlockPlan,
        activation: Option<Activation>,
    ) -> Result<Self> {
        let directions = 1 + usize::from(plan.bidirectional);
        let all = modes.elem_count() / directions;
        let bank = |index: usize| Bank::new(modes.narrow(0, index * all, all)?);
        Ok(Self {
            u,
            banks: (0..directions).map(bank).collect::<Result<_>>()?,
            feedthrough,
            count: plan.modes,
            activation,
        })
    }

    fn dims(&self) -> Result<(usize, usize, usize)> {
        self.u.dims3()
    }

    /// With time `turned` around, as gradients go.
    fn direction(&self, index: usize, turned: bool) -> Result<Direction<'_>> {
        let (batch, length, channels) = self.dims()?;
        let lanes = self.count.div_ceil(MODES).next_power_of_two();
        let shape = BankShape {
            batch: int(batch)?,
            length: int(length)?,
            channels: int(channels)?,
            modes: int(self.count)?,
            log_lanes: lanes.ilog2() as i32,
            reverse: i32::from((index == 1) != turned),
            delayed: i32::from(index == 1),
        };
        let bank = &self.banks[index];
        Ok(Direction { bank, shape })
    }

    /// Blocks over the channels, so many rows, and sequences.
    fn grid(&self, shape: &BankShape, rows: usize, sequences: usize) -> Grid {
        let columns = THREADS >> shape.log_lanes;
        Grid {
            blocks: [(shape.channels as usize).div_ceil(columns), rows, sequences],
            threads: [THREADS, 1],
        }
    }

    /// The states, and with `slopes` their slopes by z, at the start of each chunk.
    fn starts(&self, input: &Tensor, of: &Direction<'_>, slopes: bool) -> Result<[Tensor; 2]> {
        let (batch, length, channels) = self.dims()?;
        let (device, chunks) = (self.u.device(), length.div_ceil(CHUNK));
        let size = batch * chunks * channels * self.count;
        let made = [size, if slopes { size } else { 1 }];
        let made = made.map(|size| room((size, 2), DType::F32, device));
        let [states, further] = made;
        let (states, further) = (states?, further?);
        let to_states = address(&states)?;
        let to_slopes = if slopes { address(&further)? } else { 0 };
        let input = address(input)?;
        let (table, far) = (address(&of.bank.table)?, address(&of.bank.far)?);
        let grid = self.grid(&of.shape, chunks, batch);
        match slopes {
            true => launch(
                device,
                (File::Bank, "bank_slope_ends"),
                grid,
                &[&input, &table, &to_states, &to_slopes, &of.shape],
            )?,
            false => launch(
                device,
                (File::Bank, "bank_ends"),
                grid,
                &[&input, &table, &to_states, &of.shape],
            )?,
        }
        launch(
            device,
            (File::Bank, "bank_join"),
            Grid::of(batch * channels * self.count),
            &[&far, &to_states, &to_slopes, &of.shape],
        )?;
        Ok([states, further])
    }

    /// The outputs of all directions on an input, and the activated ones.
    fn run(&self, input: &Tensor, turned: bool, activated: Option<&Tensor>) -> Result<Tensor> {
        let (batch, length, _) = self.dims()?;
        let device = self.u.device();
        let y = room(self.u.shape(), DType::F32, device)?;
        for index in 0..self.banks.len() {
            let of = self.direction(index, turned)?;
            let [states, _] = self.starts(input, &of, false)?;
            let mut ends = BankEnds {
                further: i32::from(index > 0),
                ..BankEnds::default()
            };
            if index == 0 {
                ends.feedthrough = address(&self.feedthrough)?;
            }
            if let (Some(to), Some(activation)) = (activated, &self.activation)
                && index + 1 == self.banks.len()
            {
                ends.activated = address(to)?;
                (ends.gelu, ends.mask) = (activation.form(), activation.mask()?);
            }
            let (from, table) = (address(input)?, address(&of.bank.table)?);
            let (states, to) = (address(&states)?, address(&y)?);
            launch(
                device,
                (File::Bank, "bank_outputs"),
                self.grid(&of.shape, length.div_ceil(CHUNK), batch),
                &[&from, &table, &states, &to, &ends, &of.shape],
            )?;
        }
        Ok(y)
    }

    /// The outputs, and what is given out.
    pub(super) fn forward(&self) -> Result<(Tensor, Tensor)> {
        if self.activation.is_none() {
            let y = self.run(&self.u, false, None)?;
            return Ok((y.clone(), y));
        }
        let activated = room(self.u.shape(), DType::F32, self.u.device())?;
        let y = self.run(&self.u, false, Some(&activated))?;
        Ok((y, activated))
    }

    /// The gradient of the inputs; writes those of modes and feedthrough.
    pub(super) fn backward(
        &self,
        y: &Tensor,
        slopes: &Tensor,
        [of_modes, of_feedthrough]: [&Tensor; 2],
    ) -> Result<Tensor> {
        let g = self.of_outputs(y, slopes)?;
        let of_input = self.run(&g, true, None)?;
        for index in 0..self.banks.len() {
            let all = of_modes.elem_count() / self.banks.len();
            let own = of_modes.narrow(0, index * all, all)?;
            let through = (index == 0).then_some(of_feedthrough);
            self.gradients(&g, index, [Some(&own), through])?;
        }
        Ok(of_input)
    }

    /// The gradient of y from that of what is given out.
    fn of_outputs(&self, y: &Tensor, slopes: &Tensor) -> Result<Tensor> {
        let Some(activation) = &self.activation else {
            return slopes.contiguous();
        };
        let slopes = slopes.contiguous()?;
        let g = room(y.shape(), DType::F32, y.device())?;
        let (shape, form) = (self.direction_free_shape()?, activation.form());
        let (from, at, to) = (address(&slopes)?, address(y)?, address(&g)?);
        launch(
            y.device(),
            (File::Bank, "bank_gelu_slopes"),
            Grid::of(y.elem_count()),
            &[&from, &at, &activation.mask()?, &to, &shape, &form],
        )?;
        Ok(g)
    }

    /// For a kernel that looks at sizes alone.
    fn direction_free_shape(&self) -> Result<BankShape> {
        let (batch, length, channels) = self.dims()?;
        Ok(BankShape {
            batch: int(batch)?,
            length: int(length)?,
            channels: int(channels)?,
            modes: int(self.count)?,
            log_lanes: 0,
            reverse: 0,
            delayed: 0,
        })
    }

    /// Writes the gradients of the modes of a direction and of D.
    fn gradients(&self, g: &Tensor, index: usize, out: [Option<&Tensor>; 2]) -> Result<()> {
        let (batch, length, channels) = self.dims()?;
        let (device, all) = (self.u.device(), channels * self.count);
        let of = self.direction(index, false)?;
        let [states, slopes] = self.starts(&self.u, &of, true)?;
        let shares = SHARES.min(batch * length.div_ceil(CHUNK));
        let partial = room((shares * all, 4), DType::F64, device)?;
        let through = room((shares, channels), DType::F64, device)?;
        let (u, g, table) = (address(&self.u)?, address(g)?, address(&of.bank.table)?);
        let (states, slopes) = (address(&states)?, address(&slopes)?);
        let (sums, through) = (address(&partial)?, address(&through)?);
        launch(
            device,
            (File::Bank, "bank_slopes"),
            self.grid(&of.shape, shares, 1),
            &[&u, &g, &table, &states, &slopes, &sums, &through, &of.shape],
        )?;
        let [of_modes, of_feedthrough] = out.map(|out| out.map_or(Ok(0), address));
        let (modes, of_modes, of_feedthrough) =
            (address(&of.bank.modes)?, of_modes?, of_feedthrough?);
        launch(
            device,
            (File::Bank, "bank_gradients"),
            Grid::of_warps(all),
            &[
                &modes,
                &sums,
                &through,
                &of_modes,
                &of_feedthrough,
                &int(shares)?,
                &of.shape,
            ],
        )
    }
}
