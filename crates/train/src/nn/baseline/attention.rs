//! One layer of causal attention with one neuron for each head: the shallow transformer.

use candle_core::{D, Result, Tensor, Var, bail};

use crate::nn::baseline::attend::attend;
use crate::nn::baseline::body::{Body, Frame};
use crate::nn::baseline::product::rows_times;
use crate::nn::random::Draw;
use crate::nn::tensors::{TensorType, parameter, var};
use crate::nn::{Group, Mode, Parameter};

/// The most scores of one batch, 4 GiB in single precision.
const MOST: u128 = 1 << 30;

/// h_i(t) = m^(−1/2) tanh(U_iᵀ a_i(t)),  a_i(t) = Σ_{s ≤ t} softmax_s(x_sᵀ W_i x_t) x_s.
///
/// Each step attends to itself and what came before, so the last code is the feature of the
/// shallow transformer with the last token as its query.
///
/// # References
/// Arda, Cayci and Eryilmaz, (2) to (4).
pub(super) struct Attention {
    /// W, (d m) × d: row j of all heads after row j − 1 of all.
    keys: Var,
    /// U, m × d.
    neurons: Var,
    parameters: Vec<Parameter>,
}

impl Attention {
    /// W and U of N(0, 1) entries; the second half of the heads repeats the first.
    pub(super) fn new(
        heads: usize,
        width: usize,
        draw: &mut Draw,
        to: TensorType<'_>,
    ) -> Result<Self> {
        let half = heads / 2;
        let mut drawn = |count: usize| -> Vec<f64> { (0..count).map(|_| draw.normal()).collect() };
        let firsts = drawn(width * half * width);
        let rows = firsts.chunks(half * width);
        let keys: Vec<f64> = rows.flat_map(|rows| rows.repeat(2)).collect();
        let keys = var(&keys, &[width * heads, width], to)?;
        let neurons = var(&drawn(half * width).repeat(2), &[heads, width], to)?;
        let parameters = vec![
            parameter("attention.", "keys", &keys, Group::Plain),
            parameter("attention.", "neurons", &neurons, Group::Plain),
        ];
        Ok(Self {
            keys,
            neurons,
            parameters,
        })
    }
}

impl Body for Attention {
    fn codes(&self, input: &Tensor, _: &Frame<'_>, _: Mode<'_>) -> Result<Tensor> {
        let keys = rows_times(input, self.keys.as_tensor())?;
        // U_iᵀ a_i is the mean of the U_iᵀ x_s.
        let values = rows_times(input, self.neurons.as_tensor())?;
        let means = match input.device().is_cpu() {
            true => attend(input, &keys, &values)?,
            false => step_by_step(input, &keys, &values)?,
        };
        means.tanh()? / (self.neurons.dim(0)? as f64).sqrt()
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }
}

/// As [`attend`], put together from candle's operations: for devices other than the processor, and
/// as the check of the fast path. Keeps all scores, batch · m · L² numbers.
fn step_by_step(x: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    let ((batch, length, width), heads) = (x.dims3()?, values.dim(2)?);
    if batch as u128 * heads as u128 * (length as u128).pow(2) > MOST {
        bail!(
            "attention over {length} steps of {batch} sequences by {heads} heads takes more than \
             2^30 scores; use a smaller batch, fewer heads or shorter sequences"
        );
    }
    let keys = keys
        .reshape((batch, length, width, heads))?
        .transpose(2, 3)?;
    let keys = keys.contiguous()?.reshape((batch, length * heads, width))?;
    let scores = keys.matmul(&x.transpose(1, 2)?.contiguous()?)?;
    let scores = scores.reshape((batch, length, heads, length))?;
    let scores = scores.broadcast_add(&causal(length, TensorType::of(x))?)?;
    let values = values.transpose(1, 2)?.unsqueeze(1)?;
    softmax(&scores)?.broadcast_mul(&values)?.sum(D::Minus1)
}

/// 1 × L × 1 × L: 0 where step s ≤ t may be looked at, −∞ behind t.
fn causal(length: usize, to: TensorType<'_>) -> Result<Tensor> {
    let step = |index: usize| match index % length <= index / length {
        true => 0.0,
        false => f32::NEG_INFINITY,
    };
    let numbers: Vec<f32> = (0..length * length).map(step).collect();
    let mask = Tensor::from_vec(numbers, (1, length, 1, length), to.device)?;
    mask.to_dtype(to.dtype)
}

/// Over the last dimension. The largest score, which cancels, carries no gradient.
fn softmax(scores: &Tensor) -> Result<Tensor> {
    let largest = scores.detach().max_keepdim(D::Minus1)?;
    let powers = scores.broadcast_sub(&largest)?.exp()?;
    powers.broadcast_div(&powers.sum_keepdim(D::Minus1)?)
}

#[cfg(test)]
mod tests {
    use candle_core::{DType, Device};

    use super::*;
    use crate::nn::tensors::waves::{wave, worst};

    #[test]
    fn the_operation_is_that_of_single_steps() {
        for heads in [1, 7, 40] {
            let vars = [
                wave(&[3, 5, 4], [0.0, 2.0, 0.1]),
                wave(&[3, 5, 4 * heads], [0.0, 2.0, 1.0]),
                wave(&[3, 5, heads], [0.0, 2.0, 2.0]),
            ];
            let [x, keys, values] = [0, 1, 2].map(|index| vars[index].as_tensor());
            let fast = attend(x, keys, values).unwrap();
            let slow = step_by_step(x, keys, values).unwrap();
            assert!(worst(&fast, &slow) < 1e-14);
            let weights = wave(&[3, 5, heads], [0.0, 2.0, 3.0]);
            let gradients = |out: &Tensor| {
                let sum = (out * weights.as_tensor()).unwrap().sum_all().unwrap();
                sum.backward().unwrap()
            };
            let (of_fast, of_slow) = (gradients(&fast), gradients(&slow));
            for var in &vars {
                let [a, b] = [&of_fast, &of_slow].map(|all| all.get(var).unwrap());
                let size = worst(b, &b.zeros_like().unwrap());
                assert!(size > 1e-3 && worst(a, b) < 1e-13 * size.max(1.0));
            }
            let single = |tensor: &Tensor| tensor.to_dtype(DType::F32).unwrap();
            let single = attend(&single(x), &single(keys), &single(values)).unwrap();
            assert!(worst(&single.to_dtype(DType::F64).unwrap(), &slow) < 1e-5);
        }
    }

    #[test]
    fn too_many_scores_are_refused_where_they_are_kept() {
        let [x, keys, values] = [3, 6, 2]
            .map(|width| Tensor::zeros((1, 30_000, width), DType::F32, &Device::Cpu).unwrap());
        let error = step_by_step(&x, &keys, &values).unwrap_err();
        assert!(error.to_string().contains("smaller batch"), "{error}");
    }
}
