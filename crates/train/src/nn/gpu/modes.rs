//! Poles and weights of all layers: `cuda/modes.cu`, with the formulas of [`modes`](crate::nn::modes).

use candle_core::cuda_backend::cudarc::driver::DeviceRepr;
use candle_core::{DType, Result, Tensor};
use hankelite_control::DSS_EPSILON;

use super::{File, Grid, address, int, launch, room, structures};
use crate::nn::Parameterisation;
use crate::nn::gradient::{Known, of_one};
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

/// Parameters of all layers in a row, f64: log Δ, then all decays, all frequencies, and weights.
struct Given {
    row: Tensor,
    used: Option<Tensor>,
    /// Of log Δ.
    rows: usize,
    shape: ModesShape,
}

/// As `modes::modes`, from parameters in a row with so many steps Δ; `used` as in [`Formulas`].
pub(in crate::nn) fn modes(
    formulas: &Formulas,
    used: Option<Tensor>,
    (row, rows): (&Tensor, usize),
) -> Result<Tensor> {
    let given = Given {
        row: row.detach().contiguous()?,
        used: used.map(|used| used.contiguous()).transpose()?,
        rows,
        shape: ModesShape {
            layers: int(formulas.layers)?,
            channels: int(rows / formulas.layers)?,
            modes: int((row.elem_count() / rows - 1) / 4)?,
            form: match formulas.form.kind {
                Parameterisation::S4d => 0,
                Parameterisation::DssExp => 1,
                Parameterisation::DssSoftmax => 2,
            },
            own: int(formulas.form.length)?,
            length: int(formulas.length)?,
            epsilon: DSS_EPSILON,
        },
    };
    let value = given.values()?;
    let backward = move |slopes: &Tensor| Ok([given.gradients(slopes)?]);
    of_one(row, Known::new(value, backward))
}

impl Given {
    /// Modes of all layers.
    fn total(&self) -> usize {
        (self.row.elem_count() - self.rows) / 4
    }

    /// Where steps, poles and weights start in such a row.
    fn places(&self, row: &Tensor) -> Result<[u64; 3]> {
        let start = address(row)?;
        let at = |number: usize| start + (number * size_of::<f64>()) as u64;
        Ok([at(0), at(self.rows), at(self.rows + 2 * self.total())])
    }

    fn addresses(&self) -> Result<ModesGiven> {
        let [log_step, poles, weights] = self.places(&self.row)?;
        Ok(ModesGiven {
            log_step,
            poles,
            weights,
            used: self.used.as_ref().map_or(Ok(0), address)?,
        })
    }

    fn values(&self) -> Result<Tensor> {
        let out = room(4 * self.total(), DType::F64, self.row.device())?;
        let (given, to) = (self.addresses()?, address(&out)?);
        launch(
            self.row.device(),
            (File::Modes, "modes_values"),
            Grid::of(self.total()),
            &[&given, &to, &self.shape],
        )?;
        Ok(out)
    }

    fn gradients(&self, slopes: &Tensor) -> Result<Tensor> {
        let out = room(self.row.shape(), DType::F64, self.row.device())?;
        let slopes = slopes.contiguous()?;
        let [of_log_step, of_poles, of_weights] = self.places(&out)?;
        let to = ModesSlopes {
            of_log_step,
            of_poles,
            of_weights,
        };
        let (given, from) = (self.addresses()?, address(&slopes)?);
        launch(
            self.row.device(),
            (File::Modes, "modes_gradients"),
            Grid::of_warps(self.rows),
            &[&given, &from, &to, &self.shape],
        )?;
        Ok(out)
    }
}
