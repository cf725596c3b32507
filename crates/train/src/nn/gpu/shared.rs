//! A layer whose channels share modes: its recurrence and its end are `cuda/shared.cu`, between candle's
//! products of matrices.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Result, Tensor, bail};

use super::bank::Activation;
use super::{CHUNK, File, Grid, MOST_BLOCKS, THREADS, address, int, launch, room, structures};

#[repr(C)]
#[derive(Clone, Copy)]
struct SharedShape {
    batch: i32,
    length: i32,
    modes: i32,
    reverse: i32,
    conjugate: i32,
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct SharedEnd {
    first: u64,
    second: u64,
    third: u64,
    u: u64,
    feedthrough: u64,
    mask: u64,
    length: i32,
    channels: i32,
    gelu: i32,
    unused: i32,
}

structures!(SharedShape: 20, SharedEnd: 64);

/// Whether the grids of the kernels hold so many sequences and steps.
pub(super) fn fits(dims: &[usize]) -> bool {
    let grid =
        |batch: usize, length: usize| batch <= MOST_BLOCKS && length.div_ceil(CHUNK) <= MOST_BLOCKS;
    matches!(*dims, [batch, length, ..] if grid(batch, length))
}

/// The numbers of a layer, as [`shared`](crate::nn::shared) has them, or the places of their gradients.
/// Each is flat and contiguous.
pub(super) struct Numbers {
    /// Re z, then Im z, in f64.
    pub(super) exponents: Tensor,
    /// D: its diagonal, or channels × channels.
    pub(super) feedthrough: Tensor,
    /// γ ∘ B, 2 P × channels.
    pub(super) input: Tensor,
    /// For each direction C, channels × 2 P.
    pub(super) output: Tensor,
}

/// A layer on a batch.
pub(super) struct Layer {
    u: Tensor,
    numbers: Numbers,
    activation: Activation,
    /// Of each direction, for the way back.
    states: Vec<Tensor>,
}

impl Layer {
    pub(super) fn new(u: Tensor, numbers: Numbers, activation: Activation) -> Self {
        Self {
            u,
            numbers,
            activation,
            states: Vec::new(),
        }
    }

    /// Batch × L × channels.
    pub(super) fn inputs(&self) -> &Tensor {
        &self.u
    }

    fn parts(&self) -> usize {
        self.numbers.exponents.elem_count()
    }

    fn recurrence(&self, direction: usize) -> Recurrence {
        Recurrence {
            exponents: self.numbers.exponents.clone(),
            reverse: direction == 1,
        }
    }

    fn input(&self) -> Result<Tensor> {
        self.numbers.input.reshape((self.parts(), ()))
    }

    fn output(&self, direction: usize) -> Result<Tensor> {
        let all = self
            .numbers
            .output
            .reshape(((), self.u.dim(2)?, self.parts()))?;
        all.get(direction)
    }

    fn directions(&self) -> Result<usize> {
        Ok(self.numbers.output.elem_count() / (self.u.dim(2)? * self.parts()))
    }

    /// D where it is no diagonal.
    fn dense(&self) -> Result<Option<Tensor>> {
        let channels = self.u.dim(2)?;
        let through = &self.numbers.feedthrough;
        let is_dense = through.elem_count() > channels;
        is_dense
            .then(|| through.reshape((channels, channels)))
            .transpose()
    }

    /// The outputs, and those activated.
    pub(super) fn forward(&mut self) -> Result<[Tensor; 2]> {
        let (batch, length, channels) = self.u.dims3()?;
        let (device, parts) = (self.u.device().clone(), self.parts());
        let rows = self.u.reshape((batch * length, channels))?;
        let v = rows.matmul(&self.input()?.t()?)?;
        let v = v.reshape((batch, length, parts))?;
        let mut products = Vec::new();
        for direction in 0..self.directions()? {
            let states = self.recurrence(direction).states(&v)?;
            let states = states.reshape((batch * length, parts))?;
            products.push(states.matmul(&self.output(direction)?.t()?)?);
            self.states.push(states);
        }
        let dense = self.dense()?.map(|dense| rows.matmul(&dense.t()?));
        let dense = dense.transpose()?;
        let mut end = self.end()?;
        end.first = address(&products[0])?;
        end.second = products.get(1).map_or(Ok(0), address)?;
        end.third = dense.as_ref().map_or(Ok(0), address)?;
        end.u = address(&self.u)?;
        let like = || room(self.u.shape(), DType::F32, &device);
        let [y, activated] = [like()?, like()?];
        let (to, further, count) = (address(&y)?, address(&activated)?, self.count());
        launch(
            &device,
            (File::Shared, "shared_outputs"),
            Grid::of(self.u.elem_count()),
            &[&end, &to, &further, &count],
        )?;
        Ok([y, activated])
    }

    /// The gradient of the inputs; writes those of the layer's numbers but D's where it is a diagonal, for
    /// which the gradient of y is given, too.
    pub(super) fn backward(
        &self,
        y: &Tensor,
        slopes: &Tensor,
        out: &Numbers,
    ) -> Result<[Tensor; 2]> {
        let (batch, length, channels) = self.u.dims3()?;
        let (device, parts) = (self.u.device(), self.parts());
        let rows = self.u.reshape((batch * length, channels))?;
        let g = self.of_outputs(y, slopes)?;
        let g_rows = g.reshape((batch * length, channels))?;
        let mut of_v: Option<Tensor> = None;
        let mut of_exponents: Option<Tensor> = None;
        for (direction, states) in self.states.iter().enumerate() {
            let of_output = g_rows.t()?.matmul(states)?.flatten_all()?;
            out.output
                .slice_set(&of_output, 0, direction * channels * parts)?;
            let of_states = g_rows.matmul(&self.output(direction)?)?;
            let shape = (batch, length, parts);
            let [own, own_exponents] = self
                .recurrence(direction)
                .gradients(&states.reshape(shape)?, &of_states.reshape(shape)?)?;
            of_v = Some(added(of_v, own)?);
            of_exponents = Some(added(of_exponents, own_exponents)?);
        }
        let (Some(of_v), Some(of_exponents)) = (of_v, of_exponents) else {
            bail!("a layer without a direction of time");
        };
        out.exponents.slice_set(&of_exponents, 0, 0)?;
        let of_v = of_v.reshape((batch * length, parts))?;
        let of_input = of_v.t()?.matmul(&rows)?.flatten_all()?;
        out.input.slice_set(&of_input, 0, 0)?;
        let through_input = of_v.matmul(&self.input()?)?;
        let mut end = self.end()?;
        end.first = address(&through_input)?;
        let dense = self
            .dense()?
            .map(|dense| g_rows.matmul(&dense))
            .transpose()?;
        if let Some(through) = &dense {
            end.third = address(through)?;
            let of_dense = g_rows.t()?.matmul(&rows)?.flatten_all()?;
            out.feedthrough.slice_set(&of_dense, 0, 0)?;
        }
        let of_u = room(self.u.shape(), DType::F32, device)?;
        let (from, to, count) = (address(&g)?, address(&of_u)?, self.count());
        launch(
            device,
            (File::Shared, "shared_input_slopes"),
            Grid::of(self.u.elem_count()),
            &[&end, &from, &to, &count],
        )?;
        Ok([of_u, g])
    }

    fn of_outputs(&self, y: &Tensor, slopes: &Tensor) -> Result<Tensor> {
        let slopes = slopes.contiguous()?;
        let g = room(y.shape(), DType::F32, y.device())?;
        let (given, at, to) = (address(&slopes)?, address(y)?, address(&g)?);
        launch(
            y.device(),
            (File::Shared, "shared_output_slopes"),
            Grid::of(y.elem_count()),
            &[&self.end()?, &given, &at, &to, &self.count()],
        )?;
        Ok(g)
    }

    fn count(&self) -> u32 {
        self.u.elem_count() as u32
    }

    /// Without products.
    fn end(&self) -> Result<SharedEnd> {
        let (_, length, channels) = self.u.dims3()?;
        Ok(SharedEnd {
            feedthrough: match self.dense()? {
                None => address(&self.numbers.feedthrough)?,
                Some(_) => 0,
            },
            mask: self.activation.mask()?,
            length: int(length)?,
            channels: int(channels)?,
            gelu: self.activation.form(),
            ..SharedEnd::default()
        })
    }
}

fn added(sum: Option<Tensor>, own: Tensor) -> Result<Tensor> {
    match sum {
        None => Ok(own),
        Some(sum) => sum + own,
    }
}

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
