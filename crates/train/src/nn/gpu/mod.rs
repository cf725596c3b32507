//! The kernels of `cuda/`: loaded, and started on tensors.
//!
//! With `HANKELITE_GPU=plain` in the environment the same is put together from candle's operations: an
//! independent check.

pub(crate) mod adamw;
pub(super) mod bank;
pub(super) mod blocks;
pub(super) mod leaf;
mod list;
pub(super) mod modes;
pub(super) mod rounding;
pub(super) mod shared;

use std::sync::LazyLock;

use candle_core::cuda_backend::cudarc::driver::{
    DevicePtr, DeviceRepr, LaunchArgs, LaunchConfig, PushKernelArg,
};
use candle_core::cuda_backend::{CudaStorageSlice, WrapErr};
use candle_core::{DType, Device, Error, Result, Shape, Storage, Tensor, bail};

/// Steps of a chunk and threads of a block, as in `cuda/scan.h`.
const CHUNK: usize = 128;
const THREADS: usize = 128;

/// The most blocks along the second and third side of a grid.
const MOST_BLOCKS: usize = 65_535;

static ARE_WANTED: LazyLock<bool> =
    LazyLock::new(|| std::env::var("HANKELITE_GPU").map_or(true, |way| way != "plain"));

/// Whether kernels of our own work on tensors of this type there.
pub(super) fn takes(device: &Device, dtype: DType) -> bool {
    matches!(device, Device::Cuda(_)) && dtype == DType::F32 && *ARE_WANTED
}

/// A file of `cuda/`.
#[derive(Clone, Copy)]
enum File {
    AdamW,
    Bank,
    Block,
    Join,
    Modes,
    Rounding,
    Shared,
}

impl File {
    fn name_and_ptx(self) -> (&'static str, &'static str) {
        match self {
            File::AdamW => (
                "hankelite-adamw",
                include_str!(concat!(env!("OUT_DIR"), "/adamw.ptx")),
            ),
            File::Bank => (
                "hankelite-bank",
                include_str!(concat!(env!("OUT_DIR"), "/bank.ptx")),
            ),
            File::Block => (
                "hankelite-block",
                include_str!(concat!(env!("OUT_DIR"), "/block.ptx")),
            ),
            File::Join => (
                "hankelite-join",
                include_str!(concat!(env!("OUT_DIR"), "/join.ptx")),
            ),
            File::Modes => (
                "hankelite-modes",
                include_str!(concat!(env!("OUT_DIR"), "/modes.ptx")),
            ),
            File::Rounding => (
                "hankelite-rounding",
                include_str!(concat!(env!("OUT_DIR"), "/rounding.ptx")),
            ),
            File::Shared => (
                "hankelite-shared",
                include_str!(concat!(env!("OUT_DIR"), "/shared.ptx")),
            ),
        }
    }
}

/// Blocks and the threads of each.
#[derive(Clone, Copy)]
struct Grid {
    blocks: [usize; 3],
    threads: [usize; 2],
}

impl Grid {
    /// A thread for each of so many numbers.
    fn of(count: usize) -> Self {
        Self {
            blocks: [count.div_ceil(THREADS), 1, 1],
            threads: [THREADS, 1],
        }
    }

    /// A warp for each of so many rows.
    fn of_warps(rows: usize) -> Self {
        Self {
            blocks: [rows.div_ceil(4), 1, 1],
            threads: [32, 4],
        }
    }

    fn config(self) -> Result<LaunchConfig> {
        let side = |count: usize| u32::try_from(count).map_err(Error::wrap);
        let [x, y, z] = self.blocks;
        let [across, down] = self.threads;
        Ok(LaunchConfig {
            grid_dim: (side(x)?, side(y)?, side(z)?),
            block_dim: (side(across)?, side(down)?, 1),
            shared_mem_bytes: 0,
        })
    }
}

/// What a kernel takes: an address, a number, or a structure of them.
trait Argument {
    fn push<'a>(&'a self, call: &mut LaunchArgs<'a>);
}

impl<T: DeviceRepr> Argument for T {
    fn push<'a>(&'a self, call: &mut LaunchArgs<'a>) {
        call.arg(self);
    }
}

/// Starts a kernel behind all that was started before. The arguments are those of its signature, and the
/// tensors whose addresses are among them have the sizes that it takes; memory that is given back in the
/// meantime is given back behind it.
fn launch(
    device: &Device,
    (file, name): (File, &str),
    grid: Grid,
    arguments: &[&dyn Argument],
) -> Result<()> {
    let Device::Cuda(device) = device else {
        bail!("{name} runs on a GPU only");
    };
    let (module, ptx) = file.name_and_ptx();
    let function = device.get_or_load_custom_func(name, module, ptx)?;
    let mut call = function.builder();
    arguments
        .iter()
        .for_each(|argument| argument.push(&mut call));
    let config = grid.config()?;
    #[allow(unsafe_code, reason = "a kernel trusts its arguments")]
    unsafe {
        call.launch(config).w()?;
    }
    Ok(())
}

/// Where the numbers of a contiguous tensor on a GPU stand.
fn address(tensor: &Tensor) -> Result<u64> {
    let (storage, layout) = tensor.storage_and_layout();
    let Storage::Cuda(storage) = &*storage else {
        bail!("expected a tensor on a GPU");
    };
    let Some((from, _)) = layout.contiguous_offsets() else {
        bail!("expected a contiguous tensor");
    };
    let stream = storage.device.cuda_stream();
    let start = match &storage.slice {
        CudaStorageSlice::F32(all) => all.device_ptr(&stream).0,
        CudaStorageSlice::F64(all) => all.device_ptr(&stream).0,
        _ => bail!("no kernel takes numbers of the type {:?}", tensor.dtype()),
    };
    Ok(start + (from * tensor.dtype().size_in_bytes()) as u64)
}

/// A tensor for a kernel to write.
fn room(shape: impl Into<Shape>, dtype: DType, device: &Device) -> Result<Tensor> {
    #[allow(
        unsafe_code,
        reason = "the kernel that it is made for writes every number"
    )]
    unsafe {
        Tensor::empty(shape, dtype, device)
    }
}

/// As kernels count.
fn int(count: usize) -> Result<i32> {
    i32::try_from(count).map_err(Error::wrap)
}

/// Structures of kernels: in C's layout, of numbers and addresses alone.
macro_rules! structures {
    ($($name:ty: $bytes:literal),+) => {$(
        const _: () = assert!(std::mem::size_of::<$name>() == $bytes, "as the kernel has it");
        #[allow(unsafe_code, reason = "in C's layout, of numbers and addresses alone")]
        unsafe impl DeviceRepr for $name {}
    )+};
}
use structures;
