//! The state space of a block with one system for each channel, and GELU around it: `cuda/bank.cu`.
//!
//! A block keeps its input and the output of its state space for the way back, whatever its modes:
//! states are formed again.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Result, Tensor};
use hankelite_kernels::GeluForm;

use super::{File, Grid, MOST_BLOCKS, THREADS, address, int, launch, room, structures, takes};
use crate::nn::gradient::{Known, of_three};
use crate::nn::plan::BlockPlan;

/// Steps of a thread, and the logarithm of the most threads that share a channel, as in the kernels.
const STEPS: usize = 32;
const MOST_LOG_LANES: u32 = 5;

/// The most modes of a channel, as in the kernels.
const MOST_MODES: usize = 256;

/// Numbers of a mode: pole, weight and five powers of the pole.
const MODE: usize = 14;

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

#[repr(C)]
#[derive(Clone, Copy)]
struct BankSlopes {
    given: u64,
    y: u64,
    mask: u64,
    feedthrough: u64,
    of_input: u64,
    of_feedthrough: u64,
    gelu: i32,
    further: i32,
}

structures!(BankShape: 28, BankEnds: 32, BankSlopes: 56);

/// What stands behind the state space: GELU, and a mask of batch × channels.
#[derive(Clone)]
pub(in crate::nn) struct Activation {
    pub(in crate::nn) form: GeluForm,
    pub(in crate::nn) mask: Option<Tensor>,
}

impl Activation {
    pub(super) fn form(&self) -> i32 {
        match self.form {
            GeluForm::Exact => 1,
            GeluForm::Tanh => 2,
        }
    }

    pub(super) fn mask(&self) -> Result<u64> {
        self.mask.as_ref().map_or(Ok(0), address)
    }
}

/// Whether the kernels hold the state space of a block for such inputs, batch × L × H.
pub(in crate::nn) fn holds(plan: &BlockPlan, u: &Tensor) -> bool {
    takes(u.device(), u.dtype()) && fits(plan, u.dims())
}

/// Whether the grids of the kernels hold a block on so many sequences and steps.
pub(super) fn fits(plan: &BlockPlan, dims: &[usize]) -> bool {
    let grid =
        |batch: usize, length: usize| batch <= MOST_BLOCKS && batch * length <= i32::MAX as usize;
    plan.shared.is_none()
        && !plan.may_grow
        && plan.modes <= MOST_MODES
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
    /// As the recurrences take them.
    table: Tensor,
}

impl Bank {
    fn new(modes: Tensor) -> Result<Self> {
        let (device, all) = (modes.device(), modes.elem_count() / 4);
        let table = room((all, MODE), DType::F32, device)?;
        let (from, to) = (address(&modes)?, address(&table)?);
        let kernel = (File::Bank, "bank_table");
        launch(device, kernel, Grid::of(all), &[&from, &to, &int(all)?])?;
        Ok(Self { modes, table })
    }
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

    fn shape(&self, index: usize) -> Result<BankShape> {
        let (batch, length, channels) = self.dims()?;
        let lanes = length.div_ceil(STEPS).next_power_of_two();
        Ok(BankShape {
            batch: int(batch)?,
            length: int(length)?,
            channels: int(channels)?,
            modes: int(self.count)?,
            log_lanes: lanes.ilog2().min(MOST_LOG_LANES) as i32,
            reverse: i32::from(index == 1),
            delayed: i32::from(index == 1),
        })
    }

    /// Blocks over the channels and sequences.
    fn grid(shape: &BankShape) -> Grid {
        let columns = THREADS >> shape.log_lanes;
        let (channels, batch) = (shape.channels as usize, shape.batch as usize);
        Grid {
            blocks: [channels.div_ceil(columns), batch, 1],
            threads: [THREADS, 1],
        }
    }

    /// The outputs of all directions, and what is given out.
    pub(super) fn forward(&self) -> Result<(Tensor, Tensor)> {
        let like = || room(self.u.shape(), DType::F32, self.u.device());
        let y = like()?;
        let activated = self.activation.as_ref().map(|_| like()).transpose()?;
        for (index, bank) in self.banks.iter().enumerate() {
            let shape = self.shape(index)?;
            let mut ends = BankEnds {
                further: i32::from(index > 0),
                ..BankEnds::default()
            };
            if index == 0 {
                ends.feedthrough = address(&self.feedthrough)?;
            }
            if let (Some(to), Some(activation)) = (&activated, &self.activation)
                && index + 1 == self.banks.len()
            {
                ends.activated = address(to)?;
                (ends.gelu, ends.mask) = (activation.form(), activation.mask()?);
            }
            let (from, table, to) = (address(&self.u)?, address(&bank.table)?, address(&y)?);
            launch(
                self.u.device(),
                (File::Bank, "bank_outputs"),
                Self::grid(&shape),
                &[&from, &table, &to, &ends, &shape],
            )?;
        }
        let given_out = activated.unwrap_or_else(|| y.clone());
        Ok((y, given_out))
    }

    /// The gradient of the inputs; writes those of modes and feedthrough.
    pub(super) fn backward(
        &self,
        y: &Tensor,
        slopes: &Tensor,
        [of_modes, of_feedthrough]: [&Tensor; 2],
    ) -> Result<Tensor> {
        let slopes = slopes.contiguous()?;
        let of_input = room(self.u.shape(), DType::F32, self.u.device())?;
        let activation = self.activation.as_ref();
        let mut given = BankSlopes {
            given: address(&slopes)?,
            y: address(y)?,
            mask: activation.map_or(Ok(0), Activation::mask)?,
            feedthrough: address(&self.feedthrough)?,
            of_input: address(&of_input)?,
            of_feedthrough: 0,
            gelu: activation.map_or(0, Activation::form),
            further: 0,
        };
        let all = of_modes.elem_count() / self.banks.len();
        for index in 0..self.banks.len() {
            let own = of_modes.narrow(0, index * all, all)?;
            let through = (index == 0).then_some(of_feedthrough);
            self.gradients(index, given, [Some(&own), through])?;
            (given.feedthrough, given.further) = (0, 1);
        }
        Ok(of_input)
    }

    /// Adds to the gradient of the inputs; writes those of the modes of a direction and of D.
    fn gradients(
        &self,
        index: usize,
        mut slopes: BankSlopes,
        out: [Option<&Tensor>; 2],
    ) -> Result<()> {
        let (batch, length, channels) = self.dims()?;
        let (bank, shape) = (&self.banks[index], self.shape(index)?);
        let (device, all) = (self.u.device(), channels * self.count);
        let tiles = length.div_ceil(STEPS << shape.log_lanes);
        let starts = match tiles {
            1 => None,
            _ => Some(room((batch * tiles * all, 2), DType::F32, device)?),
        };
        let partial = room((batch * all, 4), DType::F64, device)?;
        let through = room((batch, channels), DType::F64, device)?;
        let (u, table) = (address(&self.u)?, address(&bank.table)?);
        let (starts, sums) = (starts.as_ref().map_or(Ok(0), address)?, address(&partial)?);
        slopes.of_feedthrough = address(&through)?;
        launch(
            device,
            (File::Bank, "bank_slopes"),
            Self::grid(&shape),
            &[&u, &table, &starts, &sums, &slopes, &shape],
        )?;
        let [of_modes, of_feedthrough] = out.map(|out| out.map_or(Ok(0), address));
        let (modes, of_modes, of_feedthrough) = (address(&bank.modes)?, of_modes?, of_feedthrough?);
        launch(
            device,
            (File::Bank, "bank_gradients"),
            Grid::of_warps(all),
            &[
                &modes,
                &sums,
                &slopes.of_feedthrough,
                &of_modes,
                &of_feedthrough,
                &shape.batch,
                &shape,
            ],
        )
    }
}
