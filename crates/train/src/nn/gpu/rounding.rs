//! Maps at few bits, straight through: `cuda/rounding.cu`.

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Result, Tensor};
use hankelite::advanced::Levels;

use super::{File, Grid, address, int, launch, room, structures};
use crate::nn::gradient::{Known, of_two};

#[repr(C)]
#[derive(Clone, Copy)]
struct RoundingShape {
    outputs: i32,
    inputs: i32,
    group: i32,
    groups: i32,
    lowest: f32,
    highest: f32,
    step: f32,
}

structures!(RoundingShape: 28);

/// Weights (outputs × inputs) at the levels of their ranges (outputs × groups), with a scale for each `group`
/// of inputs.
pub(in crate::nn) fn rounded(
    [weight, range]: [&Tensor; 2],
    group: usize,
    levels: Levels,
) -> Result<Tensor> {
    let ((outputs, inputs), (_, groups)) = (weight.dims2()?, range.dims2()?);
    let shape = RoundingShape {
        outputs: int(outputs)?,
        inputs: int(inputs)?,
        group: int(group)?,
        groups: int(groups)?,
        lowest: levels.lowest as f32,
        highest: levels.highest as f32,
        step: levels.step as f32,
    };
    let (w, r) = (weight.detach().contiguous()?, range.detach().contiguous()?);
    let value = room(w.shape(), DType::F32, w.device())?;
    let (from, ranges, to) = (address(&w)?, address(&r)?, address(&value)?);
    launch(
        w.device(),
        (File::Rounding, "rounding_values"),
        Grid::of(w.elem_count()),
        &[&from, &ranges, &to, &shape],
    )?;
    let backward = move |slopes: &Tensor| {
        let like = |tensor: &Tensor| room(tensor.shape(), DType::F32, tensor.device());
        let (slopes, of_weight, of_range) = (slopes.contiguous()?, like(&w)?, like(&r)?);
        let given = [address(&w)?, address(&r)?, address(&slopes)?];
        let (to_weight, to_range) = (address(&of_weight)?, address(&of_range)?);
        launch(
            w.device(),
            (File::Rounding, "rounding_slopes"),
            Grid::of_warps(r.elem_count()),
            &[
                &given[0], &given[1], &given[2], &to_weight, &to_range, &shape,
            ],
        )?;
        Ok([of_weight, of_range])
    };
    of_two([weight, range], Known::new(value, backward))
}
