//! The state space of a layer whose channels share modes from candle's own products, around a recurrence
//! with a gradient of its own: what runs where the processor's path does not, and the independent
//! check of that path.

use candle_core::{Result, Tensor};
use num_complex::Complex64;

#[cfg(feature = "cuda")]
use crate::nn::gpu;
use crate::nn::gradient::{Known, of_two};
use crate::nn::tensors::host;

/// The numbers of a layer, as [`shared`](super::shared) has them, each flat.
pub(super) struct SharedNumbers<'a> {
    /// Re z, then Im z, in f64.
    pub(super) exponents: &'a Tensor,
    /// D: its diagonal, or channels × channels.
    pub(super) feedthrough: Tensor,
    /// γ ∘ B, 2 P × channels.
    pub(super) input: Tensor,
    /// For each direction C, channels × 2 P.
    pub(super) output: Tensor,
}

/// y, batch × L × channels, from u.
pub(super) fn respond(u: &Tensor, numbers: &SharedNumbers<'_>) -> Result<Tensor> {
    let (batch, length, channels) = u.dims3()?;
    let parts = numbers.exponents.elem_count();
    let rows = u.reshape((batch * length, channels))?;
    let input = numbers.input.reshape((parts, channels))?;
    let v = rows.matmul(&input.t()?)?.reshape((batch, length, parts))?;
    let through = &numbers.feedthrough;
    let mut y = match through.elem_count() > channels {
        true => rows.matmul(&through.reshape((channels, channels))?.t()?)?,
        false => rows.broadcast_mul(through)?,
    };
    let outputs = numbers.output.reshape(((), channels, parts))?;
    for direction in 0..outputs.dim(0)? {
        let states = states(&v, numbers.exponents, direction == 1)?;
        let states = states.reshape((batch * length, parts))?;
        y = (y + states.matmul(&outputs.get(direction)?.t()?)?)?;
    }
    y.reshape(u.shape())
}

/// s_t = a s_{t−1} + v_t, or backwards in time, with gradients of v and the exponents.
fn states(v: &Tensor, exponents: &Tensor, reverse: bool) -> Result<Tensor> {
    let (own, detached) = (v.detach().contiguous()?, exponents.detach().contiguous()?);
    #[cfg(feature = "cuda")]
    if gpu::takes(v.device(), v.dtype()) {
        let recurrence = gpu::shared::Recurrence {
            exponents: detached,
            reverse,
        };
        let value = recurrence.states(&own)?;
        let kept = value.clone();
        let backward = move |slopes: &Tensor| recurrence.gradients(&kept, slopes);
        return of_two([v, exponents], Known::new(value, backward));
    }
    let recurrence = Recurrence {
        exponents: detached,
        reverse,
    };
    let value = recurrence.along(&own, false)?;
    let kept = value.clone();
    let backward = move |slopes: &Tensor| recurrence.gradients(&kept, slopes);
    of_two([v, exponents], Known::new(value, backward))
}

/// The recurrence on the host.
struct Recurrence {
    exponents: Tensor,
    reverse: bool,
}

impl Recurrence {
    fn poles(&self) -> Result<Vec<Complex64>> {
        let numbers = host(&self.exponents)?;
        let (re, im) = numbers.split_at(numbers.len() / 2);
        let pairs = re.iter().zip(im);
        Ok(pairs
            .map(|(&re, &im)| Complex64::new(re, im).exp())
            .collect())
    }

    /// Over v, or back with the conjugate poles.
    fn along(&self, v: &Tensor, back: bool) -> Result<Tensor> {
        let (batch, length, parts) = v.dims3()?;
        let (mut numbers, modes) = (host(v)?, parts / 2);
        for (mode, pole) in self.poles()?.into_iter().enumerate() {
            let pole = if back { pole.conj() } else { pole };
            for sequence in 0..batch {
                let mut state = Complex64::ZERO;
                for step in 0..length {
                    let step = match self.reverse != back {
                        true => length - 1 - step,
                        false => step,
                    };
                    let at = (sequence * length + step) * parts + mode;
                    state = pole * state + Complex64::new(numbers[at], numbers[at + modes]);
                    (numbers[at], numbers[at + modes]) = (state.re, state.im);
                }
            }
        }
        Tensor::from_vec(numbers, v.shape(), v.device())?.to_dtype(v.dtype())
    }

    /// Of v and the exponents: q_t = ā q_{t+1} + g_t and ∂z = ā Σ q_t conj(s_{t−1}).
    fn gradients(&self, states: &Tensor, slopes: &Tensor) -> Result<[Tensor; 2]> {
        let (batch, length, parts) = states.dims3()?;
        let (of_v, modes) = (self.along(slopes, true)?, parts / 2);
        let (q, s) = (host(&of_v)?, host(states)?);
        let mut of_exponents = vec![0.0; parts];
        for (mode, pole) in self.poles()?.into_iter().enumerate() {
            let mut sum = Complex64::ZERO;
            for row in (0..batch * length).filter(|row| row % length > 0) {
                let (now, before) = match self.reverse {
                    true => (row - 1, row),
                    false => (row, row - 1),
                };
                let part = |all: &[f64], row: usize| {
                    let at = row * parts + mode;
                    Complex64::new(all[at], all[at + modes])
                };
                sum += part(&q, now) * part(&s, before).conj();
            }
            let slope = pole.conj() * sum;
            (of_exponents[mode], of_exponents[modes + mode]) = (slope.re, slope.im);
        }
        let shape = self.exponents.shape();
        let of_exponents = Tensor::from_vec(of_exponents, shape, self.exponents.device())?;
        Ok([of_v, of_exponents])
    }
}
