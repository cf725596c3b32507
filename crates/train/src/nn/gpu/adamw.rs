//! The optimiser's step for all parameters at once, and the norm of all gradients: `cuda/adamw.cu`.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Result, Tensor, bail};

use super::list::{HEAD, List, THREADS};
use super::{File, Grid, address, launch, room, structures, takes};

/// Words of a piece.
const PIECE: usize = 8;

/// A parameter with its gradient and moments, all of one shape, in f32, contiguous. What is updated is
/// updated in place.
pub(crate) struct Piece<'a> {
    pub(crate) parameter: &'a Tensor,
    pub(crate) gradient: &'a Tensor,
    pub(crate) moments: [&'a Tensor; 2],
    /// What the rate of each number is multiplied with.
    pub(crate) scale: Option<&'a Tensor>,
    pub(crate) keep: f64,
    pub(crate) step_size: f64,
}

/// The numbers that all parameters of a step share.
#[derive(Clone, Copy)]
pub(crate) struct Shared {
    pub(crate) beta1: f64,
    pub(crate) beta2: f64,
    pub(crate) root: f64,
    pub(crate) epsilon: f64,
    /// What every gradient is multiplied with.
    pub(crate) factor: f64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct AdamWNumbers {
    beta1: f32,
    beta2: f32,
    root: f32,
    epsilon: f32,
    most: f64,
}

structures!(AdamWNumbers: 24);

/// Whether the kernels take such tensors.
pub(crate) fn holds(tensor: &Tensor) -> bool {
    takes(tensor.device(), tensor.dtype()) && tensor.is_contiguous()
}

/// θ, m and v of all pieces after one step.
pub(crate) fn step(pieces: &[Piece<'_>], shared: Shared) -> Result<()> {
    let Some(first) = pieces.first() else {
        return Ok(());
    };
    let words = pieces.iter().map(Piece::words);
    let counts = pieces.iter().map(|piece| piece.parameter.elem_count());
    // A norm that is finite, and the factor.
    let head = [1f64.to_bits(), shared.factor.to_bits()];
    let device = first.parameter.device();
    let list = List::new(device, head, words.collect::<Result<Vec<_>>>()?, counts)?;
    let numbers = AdamWNumbers {
        beta1: shared.beta1 as f32,
        beta2: shared.beta2 as f32,
        root: shared.root as f32,
        epsilon: shared.epsilon as f32,
        most: f64::INFINITY,
    };
    launch(
        device,
        (File::AdamW, "adamw_step"),
        list.grid(),
        &[&list.pieces, &list.tiles, &list.head, &numbers],
    )
}

/// The Euclidean norm of gradients in f32, contiguous, in double precision: the host waits once.
pub(crate) fn norm(gradients: &[&Tensor]) -> Result<f64> {
    let Some(first) = gradients.first() else {
        return Ok(0.0);
    };
    let device = first.device();
    let words = gradients.iter().map(|gradient| {
        let own = address(gradient)?;
        let count = gradient.elem_count() as u64;
        // The last word: the norm includes it.
        Ok([0, own, 0, 0, 0, count, 0, 1])
    });
    let counts = gradients.iter().map(|gradient| gradient.elem_count());
    let list = List::new(
        device,
        [0; HEAD],
        words.collect::<Result<Vec<_>>>()?,
        counts,
    )?;
    let (squares, norm) = (
        room(list.count.max(1), DType::F64, device)?,
        room(2, DType::F64, device)?,
    );
    let (to, found) = (address(&squares)?, address(&norm)?);
    launch(
        device,
        (File::AdamW, "adamw_squares"),
        list.grid(),
        &[&list.pieces, &list.tiles, &to],
    )?;
    let numbers = AdamWNumbers {
        beta1: 0.0,
        beta2: 0.0,
        root: 1.0,
        epsilon: 0.0,
        most: f64::INFINITY,
    };
    let one = Grid {
        blocks: [1, 1, 1],
        threads: [THREADS, 1],
    };
    let count = super::int(list.count)?;
    let kernel = (File::AdamW, "adamw_norm");
    launch(device, kernel, one, &[&to, &count, &found, &numbers])?;
    norm.get(0)?.to_scalar()
}

impl Piece<'_> {
    fn words(&self) -> Result<[u64; PIECE]> {
        let [first, second] = self.moments;
        let count = self.parameter.elem_count();
        if [self.gradient, first, second].map(Tensor::elem_count) != [count; 3] {
            bail!("a gradient has another shape than its parameter");
        }
        let pair = |low: u32, high: u32| u64::from(low) | u64::from(high) << 32;
        Ok([
            address(self.parameter)?,
            address(self.gradient)?,
            address(first)?,
            address(second)?,
            self.scale.map_or(Ok(0), address)?,
            count as u64,
            pair(
                (self.keep as f32).to_bits(),
                (self.step_size as f32).to_bits(),
            ),
            1,
        ])
    }
}
