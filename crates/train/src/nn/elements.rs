//! What stands around the state space of a block, from candle's operations with gradients of our own.

use candle_core::{D, Result, Tensor};
use hankelite_kernels::GeluForm;

use crate::nn::gradient::{Known, of_one, of_three, with_kept_shapes};
use crate::nn::rows::{repeated, sum_of_rows};

/// The coefficient of the cube in the tanh form of GELU.
const CUBIC: f64 = 0.044715;

/// √(2/π).
const ROOT: f64 = std::f64::consts::FRAC_2_SQRT_PI * std::f64::consts::FRAC_1_SQRT_2;

/// x, … × channels, with mean 0 and variance 1 over the channels, times weight plus bias.
pub(super) fn layer_norm(x: &Tensor, affine: [&Tensor; 2], epsilon: f64) -> Result<Tensor> {
    let shape = x.shape().clone();
    let (value, parts) = with_kept_shapes(x.device(), || {
        let rows = x.detach().flatten_to(D::Minus2)?;
        let (count, channels) = rows.dims2()?;
        let wide = |line: &Tensor| repeated(line, count, channels);
        let centred = (&rows - wide(&rows.mean_keepdim(1)?)?)?;
        let variance = centred.sqr()?.mean_keepdim(1)?;
        let inverse = wide(&(variance + epsilon)?.sqrt()?.recip()?)?;
        let normal = (centred * &inverse)?;
        let [weight, bias] = affine.map(|line| line.detach().unsqueeze(0));
        let weight = wide(&weight?)?;
        let value = ((&normal * &weight)? + wide(&bias?)?)?;
        Ok((value.reshape(&shape)?, [normal, inverse, weight]))
    })?;
    let backward = move |slopes: &Tensor| {
        let [normal, inverse, weight] = &parts;
        let (count, channels) = normal.dims2()?;
        let slopes = slopes.reshape((count, channels))?;
        let of_weight = sum_of_rows(&(&slopes * normal)?)?.squeeze(0)?;
        let of_normal = (&slopes * weight)?;
        let wide_mean = |x: &Tensor| repeated(&x.mean_keepdim(1)?, count, channels);
        let along = wide_mean(&(&of_normal * normal)?)?;
        let rest = (&of_normal - wide_mean(&of_normal)?)?;
        let of_x = ((rest - (normal * along)?)? * inverse)?.reshape(&shape)?;
        Ok([of_x, of_weight, sum_of_rows(&slopes)?.squeeze(0)?])
    };
    of_three([x, affine[0], affine[1]], Known::new(value, backward))
}

/// a Φ(a), or its tanh form.
pub(super) fn gelu(a: &Tensor, form: GeluForm) -> Result<Tensor> {
    let argument = a.detach();
    let (value, share) = with_kept_shapes(a.device(), || {
        let share = match form {
            GeluForm::Exact => (&argument * std::f64::consts::FRAC_1_SQRT_2)?.erf()?,
            GeluForm::Tanh => {
                ((argument.sqr()?.affine(CUBIC, 1.0)? * &argument)? * ROOT)?.tanh()?
            }
        };
        let share = share.affine(0.5, 0.5)?;
        Ok(((&argument * &share)?, share))
    })?;
    let backward = move |slopes: &Tensor| {
        let square = argument.sqr()?;
        // The slope of the share.
        let density = match form {
            GeluForm::Exact => ((square * -0.5)?.exp()? * (0.5 * ROOT))?,
            // That of (1 + tanh x)/2 is 2 s (1 − s).
            GeluForm::Tanh => {
                let inner = square.affine(6.0 * CUBIC * ROOT, 2.0 * ROOT)?;
                ((&share - share.sqr()?)? * inner)?
            }
        };
        Ok([(slopes * ((density * &argument)? + &share)?)?])
    };
    of_one(a, Known::new(value, backward))
}

pub(super) fn sigmoid(x: &Tensor) -> Result<Tensor> {
    (x.neg()?.exp()? + 1.0)?.recip()
}

/// The first half of the last axis times the sigmoid of the second.
pub(super) fn gated(x: &Tensor) -> Result<Tensor> {
    let (value, first, share) = with_kept_shapes(x.device(), || {
        let halves = x.detach().chunk(2, D::Minus1)?;
        let share = sigmoid(&halves[1])?;
        Ok(((&halves[0] * &share)?, halves[0].clone(), share))
    })?;
    let backward = move |slopes: &Tensor| {
        let of_first = (slopes * &share)?;
        let of_second = ((&of_first * &first)? * share.affine(-1.0, 1.0)?)?;
        Ok([Tensor::cat(&[of_first, of_second], D::Minus1)?])
    };
    of_one(x, Known::new(value, backward))
}

/// x Wᵀ + b, with x rows × inputs, W outputs × inputs.
pub(super) fn linear(x: &Tensor, [weight, bias]: [&Tensor; 2]) -> Result<Tensor> {
    let (rows, map) = (x.detach(), weight.detach());
    let value = with_kept_shapes(x.device(), || {
        let (count, outputs) = (rows.dim(0)?, map.dim(0)?);
        let bias = repeated(&bias.detach().unsqueeze(0)?, count, outputs)?;
        rows.matmul(&map.t()?)? + bias
    })?;
    let backward = move |slopes: &Tensor| {
        let of_weight = slopes.t()?.matmul(&rows)?;
        let of_bias = sum_of_rows(slopes)?.squeeze(0)?;
        Ok([slopes.matmul(&map)?, of_weight, of_bias])
    };
    of_three([x, weight, bias], Known::new(value, backward))
}
