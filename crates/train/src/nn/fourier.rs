//! Convolutions over time as products with Fourier matrices: dense and regular, which suits a GPU.
//!
//! A cycle of n = n₁ n₂ steps with n₁ and n₂ without a common divisor is a cycle of n₁ times a cycle of
//! n₂: step t stands in row t mod n₁ and column t mod n₂ (Good and Thomas). A convolution over the cycle
//! is one over rows and columns, and its transform one of each, with no factors in between: 2 n₁ + n₂
//! multiplications per step. Of real sequences half of the columns of a spectrum are enough. Channels
//! stay where they are, last.

use candle_core::{DType, Device, Result, Tensor};

use crate::nn::gradient::{Known, of_two, with_kept_shapes};
use crate::nn::pair::Pair;
use crate::nn::rows::{repeated, sum_of_rows};
use crate::nn::tables::Table;

/// The sizes of a cycle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Cycle {
    rows: usize,
    columns: usize,
}

/// Real and imaginary part of a spectrum, batch × (rows × half of the columns × channels).
type Spectrum = Pair;

impl Cycle {
    /// The smallest that is about as long as wide and has at least so many steps.
    pub(super) fn of_at_least(steps: usize) -> Self {
        let rows = (steps as f64).sqrt().ceil() as usize;
        let mut columns = steps.div_ceil(rows);
        while divisor(rows, columns) > 1 {
            columns += 1;
        }
        Self { rows, columns }
    }

    pub(super) fn steps(self) -> usize {
        self.rows * self.columns
    }

    /// Columns of a spectrum.
    fn half(self) -> usize {
        self.columns / 2 + 1
    }

    /// Of sequences, batch × L × channels, with zeros behind them.
    fn spectrum(self, x: &Tensor) -> Result<Spectrum> {
        let Self { rows, columns } = self;
        let (batch, length, channels) = x.dims3()?;
        let padded = match length < self.steps() {
            true => x.pad_with_zeros(1, 0, 1)?,
            false => x.contiguous()?,
        };
        let [cells, _] = self.places(length, x.device())?;
        let grid = padded.index_select(&cells, 1)?;
        let grid = grid.reshape((batch * rows, columns, channels))?;
        let [along_columns, _] = self.matrices(self.of_columns(), x)?;
        let half = times(&along_columns, &grid)?;
        let half = half.reshape((batch, 2 * rows, self.half() * channels))?;
        let part = |matrix: &Tensor| times(matrix, &half)?.reshape((batch, ()));
        let [re, im] = self.matrices(Table::Rows { rows }, x)?;
        Ok(Pair(part(&re)?, part(&im)?))
    }

    /// The first `length` steps of the sequences of a spectrum, batch × L × channels.
    fn sequences(self, Pair(re, im): &Spectrum, length: usize) -> Result<Tensor> {
        let rows = self.rows;
        let (batch, numbers) = re.dims2()?;
        let channels = numbers / (rows * self.half());
        let shape = (batch, rows, self.half() * channels);
        let [along_re, along_im] = self.matrices(Table::Rows { rows }, re)?;
        let x = (times(&along_re.t()?, &re.reshape(shape)?)?
            + times(&along_im.t()?, &im.reshape(shape)?)?)?;
        let x = x.reshape((batch * rows, 2 * self.half(), channels))?;
        let [_, back] = self.matrices(self.of_columns(), re)?;
        let grid = times(&back, &x)?.reshape((batch, self.steps(), channels))?;
        let [_, places] = self.places(length, re.device())?;
        grid.index_select(&places, 1)
    }

    /// The step of every cell, and the cell of every step.
    fn places(self, length: usize, device: &Device) -> Result<[Tensor; 2]> {
        let Self { rows, columns } = self;
        let table = Table::Cells {
            rows,
            columns,
            length,
        };
        Ok(pair(table.on(device, DType::U32)?))
    }

    fn of_columns(self) -> Table {
        Table::Columns {
            columns: self.columns,
            steps: self.steps(),
        }
    }

    fn matrices(self, table: Table, like: &Tensor) -> Result<[Tensor; 2]> {
        Ok(pair(table.on(like.device(), like.dtype())?))
    }
}

fn pair(tables: Vec<Tensor>) -> [Tensor; 2] {
    [tables[0].clone(), tables[1].clone()]
}

fn divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { divisor(b, a % b) }
}

/// The product of one matrix with each of many.
fn times(matrix: &Tensor, many: &Tensor) -> Result<Tensor> {
    let (rows, columns) = matrix.dims2()?;
    matrix
        .broadcast_as((many.dim(0)?, rows, columns))?
        .matmul(many)
}

/// The cyclic convolution of u, batch × L × channels, with kernels, channels × K: its first L steps.
///
/// Both K and L are at most the steps of the cycle. To rounding of the number type, relative to the
/// largest output.
pub(super) fn convolve(cycle: Cycle, u: &Tensor, kernels: &Tensor) -> Result<Tensor> {
    let length = u.dim(1)?;
    let width = kernels.dim(1)?;
    let (value, of_u, of_kernels) = with_kept_shapes(u.device(), || {
        let by_steps = kernels.detach().t()?.contiguous()?.unsqueeze(0)?;
        let of_u = cycle.spectrum(&u.detach())?;
        let (batch, numbers) = of_u.0.dims2()?;
        let of_kernels = cycle.spectrum(&by_steps)?;
        let of_kernels = of_kernels.each(|part| repeated(part, batch, numbers))?;
        let found = of_u.times(&of_kernels)?;
        Ok((cycle.sequences(&found, length)?, of_u, of_kernels))
    })?;
    let backward = move |slopes: &Tensor| {
        let of_slopes = cycle.spectrum(slopes)?;
        let back = of_slopes.times_conjugate(&of_kernels)?;
        let kernels = of_slopes.times_conjugate(&of_u)?.each(sum_of_rows)?;
        let kernels = cycle.sequences(&kernels, width)?;
        let kernels = kernels.squeeze(0)?.t()?.contiguous()?;
        Ok([cycle.sequences(&back, length)?, kernels])
    };
    of_two([u, kernels], Known::new(value, backward))
}

#[cfg(test)]
mod tests {

    use super::*;
    use crate::nn::tensors::waves::{wave, worst};

    #[test]
    fn a_cycle_is_long_enough_and_its_sides_have_no_common_divisor() {
        for steps in 1..600 {
            let cycle = Cycle::of_at_least(steps);
            assert!(cycle.steps() >= steps && divisor(cycle.rows, cycle.columns) == 1);
            assert!(cycle.columns <= cycle.rows + 1, "{steps}: {cycle:?}");
        }
        assert_eq!(Cycle::of_at_least(2048).steps(), 46 * 45);
    }

    #[test]
    fn sequences_come_back_from_their_spectrum() {
        for (length, steps) in [(1, 1), (7, 7), (12, 30), (37, 74)] {
            let cycle = Cycle::of_at_least(steps);
            let x = wave(&[3, length, 2], [0.1, 1.0, 5.0]);
            let back = cycle
                .sequences(&cycle.spectrum(&x).unwrap(), length)
                .unwrap();
            assert!(worst(&back, x.as_tensor()) < 1e-14, "{length} of {steps}");
        }
    }

    /// Step by step: y_t = Σ_j k_j u_{t − j}, with j over the whole cycle.
    fn by_steps(cycle: Cycle, u: &Tensor, kernels: &Tensor) -> Tensor {
        let (batch, length, channels) = u.dims3().unwrap();
        let (u, k) = (u.flatten_all().unwrap(), kernels.to_vec2::<f64>().unwrap());
        let u = u.to_vec1::<f64>().unwrap();
        let n = cycle.steps();
        let at = |index: usize| {
            let (b, t, h) = (
                index / channels / length,
                index / channels % length,
                index % channels,
            );
            let lags = k[h].iter().enumerate();
            let terms = lags.map(|(j, k)| match (t + n - j) % n {
                before if before < length => k * u[(b * length + before) * channels + h],
                _ => 0.0,
            });
            terms.sum::<f64>()
        };
        let y: Vec<f64> = (0..batch * length * channels).map(at).collect();
        Tensor::from_vec(y, (batch, length, channels), &Device::Cpu).unwrap()
    }

    #[test]
    fn a_convolution_is_that_of_single_steps_and_its_gradients_those_of_differences() {
        let cycle = Cycle::of_at_least(18);
        // Forward in time alone, and over the whole cycle.
        for width in [9, cycle.steps()] {
            let u = wave(&[2, 9, 3], [0.0, 1.0, 1.0]);
            let kernels = wave(&[3, width], [0.2, 0.7, 2.0]);
            let found = convolve(cycle, &u, &kernels).unwrap();
            assert!(worst(&found, &by_steps(cycle, &u, &kernels)) < 1e-13);
            let slopes = wave(&[2, 9, 3], [0.0, 1.0, 3.0]);
            let sum = |y: &Tensor| (y * slopes.as_tensor()).unwrap().sum_all().unwrap();
            let store = sum(&found).backward().unwrap();
            // The output is linear in each: the slope along a direction is the output there.
            for (var, other, first) in [(&u, &kernels, true), (&kernels, &u, false)] {
                let along = wave(var.dims(), [0.3, 1.0, 4.0]);
                let moved = match first {
                    true => by_steps(cycle, &along, other),
                    false => by_steps(cycle, other, &along),
                };
                let expected = sum(&moved).to_scalar::<f64>().unwrap();
                let gradient = (store.get(var).unwrap() * along.as_tensor()).unwrap();
                let found = gradient.sum_all().unwrap().to_scalar::<f64>().unwrap();
                assert!(
                    (found - expected).abs() < 1e-12,
                    "{width}: {found} {expected}"
                );
            }
        }
    }
}
