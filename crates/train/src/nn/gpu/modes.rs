//! Poles and weights of all layers: `cuda/modes.cu`, with the formulas of [`modes`](crate::nn::modes).

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Result, Tensor};
use hankelite_control::DSS_EPSILON;

use super::{File, Grid, address, int, launch, room, structures};
use crate::nn::Parameterisation;
use crate::nn::gradient::{Known, of_three};
use crate::nn::modes::Formulas;

#[repr(C)]
#[derive(Clone, Copy)]
struct ModesShape {
    layers: i32,
    channels: i32,
    modes: i32,
    form: i32,
    own: i32,
    length: i32,
    epsilon: f64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ModesGiven {
    log_step: u64,
    poles: u64,
    weights: u64,
    used: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct ModesSlopes {
    of_log_step: u64,
    of_poles: u64,
    of_weights: u64,
}

structures!(ModesShape: 32, ModesGiven: 32, ModesSlopes: 24);

/// Parameters of all layers, f64.
struct Given {
    parameters: [Tensor; 3],
    used: Option<Tensor>,
    shape: ModesShape,
}

/// As `modes::modes`; `used` as in [`Formulas`].
pub(in crate::nn) fn modes(
    formulas: &Formulas,
    used: Option<Tensor>,
    parameters: [&Tensor; 3],
) -> Result<Tensor> {
    let [log_step, poles, _] = parameters;
    let rows = log_step.elem_count();
    let shape = ModesShape {
        layers: int(formulas.layers)?,
        channels: int(rows / formulas.layers)?,
        modes: int(poles.elem_count() / (2 * rows))?,
        form: match formulas.form.kind {
            Parameterisation::S4d => 0,
            Parameterisation::DssExp => 1,
            Parameterisation::DssSoftmax => 2,
        },
        own: int(formulas.form.length)?,
        length: int(formulas.length)?,
        epsilon: DSS_EPSILON,
    };
    let [a, b, c] = parameters.map(|tensor| tensor.detach().contiguous());
    let given = Given {
        parameters: [a?, b?, c?],
        used: used.map(|used| used.contiguous()).transpose()?,
        shape,
    };
    let value = given.values()?;
    let backward = move |slopes: &Tensor| given.gradients(slopes);
    of_three(parameters, Known::new(value, backward))
}

impl Given {
    fn addresses(&self) -> Result<ModesGiven> {
        let [log_step, poles, weights] = &self.parameters;
        Ok(ModesGiven {
            log_step: address(log_step)?,
            poles: address(poles)?,
            weights: address(weights)?,
            used: self.used.as_ref().map_or(Ok(0), address)?,
        })
    }

    fn values(&self) -> Result<Tensor> {
        let poles = &self.parameters[1];
        let out = room(2 * poles.elem_count(), DType::F64, poles.device())?;
        let (given, to) = (self.addresses()?, address(&out)?);
        launch(
            poles.device(),
            (File::Modes, "modes_values"),
            Grid::of(poles.elem_count() / 2),
            &[&given, &to, &self.shape],
        )?;
        Ok(out)
    }

    fn gradients(&self, slopes: &Tensor) -> Result<[Tensor; 3]> {
        let [log_step, poles, weights] = &self.parameters;
        let like = |tensor: &Tensor| room(tensor.shape(), DType::F64, tensor.device());
        let out = [like(log_step)?, like(poles)?, like(weights)?];
        let slopes = slopes.contiguous()?;
        let to = ModesSlopes {
            of_log_step: address(&out[0])?,
            of_poles: address(&out[1])?,
            of_weights: address(&out[2])?,
        };
        let (given, from) = (self.addresses()?, address(&slopes)?);
        launch(
            poles.device(),
            (File::Modes, "modes_gradients"),
            Grid::of_warps(log_step.elem_count()),
            &[&given, &from, &to, &self.shape],
        )?;
        Ok(out)
    }
}
