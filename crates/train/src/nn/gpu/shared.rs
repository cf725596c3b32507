//! The recurrence of a layer whose channels share modes: `cuda/shared.cu`.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Result, Tensor};

use super::{CHUNK, File, Grid, THREADS, address, int, launch, room, structures};

#[repr(C)]
#[derive(Clone, Copy)]
struct SharedShape {
    batch: i32,
    length: i32,
    modes: i32,
    reverse: i32,
    conjugate: i32,
}

structures!(SharedShape: 20);

/// Exponents of the modes, f64 (Re z, then Im z), and how time runs for them.
#[derive(Clone)]
pub(in crate::nn) struct Recurrence {
    pub(in crate::nn) exponents: Tensor,
    pub(in crate::nn) reverse: bool,
}

impl Recurrence {
    fn shape(&self, of: &Tensor) -> Result<SharedShape> {
        let (batch, length, parts) = of.dims3()?;
        Ok(SharedShape {
            batch: int(batch)?,
            length: int(length)?,
            modes: int(parts / 2)?,
            reverse: i32::from(self.reverse),
            conjugate: 0,
        })
    }

    fn grid(of: &Tensor) -> Result<(usize, Grid)> {
        let (batch, length, parts) = of.dims3()?;
        let (chunks, modes) = (length.div_ceil(CHUNK), parts / 2);
        let blocks = [modes.div_ceil(THREADS), chunks, batch];
        let threads = [THREADS, 1];
        Ok((batch * chunks * modes, Grid { blocks, threads }))
    }

    /// s_t = a s_{t−1} + v_t, batch × L × (Re, then Im of the modes).
    pub(in crate::nn) fn states(&self, v: &Tensor) -> Result<Tensor> {
        self.scan(v, self.shape(v)?)
    }

    fn scan(&self, v: &Tensor, shape: SharedShape) -> Result<Tensor> {
        let (size, grid) = Self::grid(v)?;
        let (device, batch) = (v.device(), v.dim(0)?);
        let (starts, out) = (
            room((size, 2), DType::F32, device)?,
            room(v.shape(), DType::F32, device)?,
        );
        let (from, z) = (address(v)?, address(&self.exponents)?);
        let (at, to) = (address(&starts)?, address(&out)?);
        let kernel = |name| (File::Shared, name);
        launch(
            device,
            kernel("shared_ends"),
            grid,
            &[&from, &z, &at, &shape],
        )?;
        let joins = Grid::of(batch * shape.modes as usize);
        launch(device, kernel("shared_join"), joins, &[&z, &at, &shape])?;
        launch(
            device,
            kernel("shared_states"),
            grid,
            &[&from, &z, &at, &to, &shape],
        )?;
        Ok(out)
    }

    /// Of v and the exponents, from the states and their gradient.
    pub(in crate::nn) fn gradients(&self, states: &Tensor, slopes: &Tensor) -> Result<[Tensor; 2]> {
        let (shape, device) = (self.shape(states)?, states.device());
        let back = SharedShape {
            reverse: i32::from(!self.reverse),
            conjugate: 1,
            ..shape
        };
        let of_v = self.scan(&slopes.contiguous()?, back)?;
        let (size, grid) = Self::grid(states)?;
        let partial = room((size, 2), DType::F64, device)?;
        let of_exponents = room(self.exponents.shape(), DType::F64, device)?;
        let (q, s, sums) = (address(&of_v)?, address(states)?, address(&partial)?);
        let (z, to) = (address(&self.exponents)?, address(&of_exponents)?);
        let kernel = |name| (File::Shared, name);
        launch(
            device,
            kernel("shared_slopes"),
            grid,
            &[&q, &s, &sums, &shape],
        )?;
        let modes = Grid::of(shape.modes as usize);
        launch(
            device,
            kernel("shared_gradients"),
            modes,
            &[&z, &sums, &to, &shape],
        )?;
        Ok([of_v, of_exponents])
    }
}
