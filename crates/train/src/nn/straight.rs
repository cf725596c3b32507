//! Maps held at few bits while they are trained: rounded on the way forward, straight through on the
//! way back.

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};
use hankelite::rounding::{Entries, GROUP, RoundedMatrix};
use nalgebra::DMatrix;
use serde::{Deserialize, Serialize};

use crate::nn::tensors::host;

/// How the output maps of the layers are held in training: the table `[maps]`. They are rounded as
/// [`RoundedMatrix::nearest`] rounds them, and so they are evaluated and written; gradients pass the
/// rounding as if it were not there, into weights of full precision.
///
/// # References
/// Bengio, Léonard and Courville 2013 (the straight-through estimator).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MapRounding {
    /// `int8`, `int4` or `int3`.
    pub entries: Entries,
    /// Inputs that share a scale, at least 1. Default 32.
    #[serde(default = "group")]
    pub group: usize,
}

fn group() -> usize {
    GROUP
}

impl MapRounding {
    /// Entries of a kind, with the default group.
    pub fn of(entries: Entries) -> Self {
        let group = GROUP;
        Self { entries, group }
    }

    /// Bits of an entry, for settings that can be used.
    pub fn bits(&self) -> Option<u32> {
        self.entries.bits().filter(|_| self.group > 0)
    }

    /// The weights (outputs × inputs) as they are held, with the gradient of the weights themselves.
    pub(super) fn held(self, weight: &Tensor) -> Result<Tensor> {
        let device = weight.device().clone();
        let weight = weight.to_device(&candle_core::Device::Cpu)?.contiguous()?;
        weight.apply_op1(StraightThrough(self))?.to_device(&device)
    }

    /// The same numbers on the host, inputs × outputs.
    pub(super) fn rounded(self, weight: &Tensor) -> Result<DMatrix<f64>> {
        let (outputs, inputs) = weight.dims2()?;
        let matrix = DMatrix::from_vec(inputs, outputs, host(weight)?);
        let Some(bits) = self.bits() else {
            return Ok(matrix);
        };
        match RoundedMatrix::nearest(&matrix, bits, self.group) {
            Ok(rounded) => Ok(rounded.weight()),
            Err(error) => bail!("a map cannot be rounded: {error}"),
        }
    }
}

struct StraightThrough(MapRounding);

impl CustomOp1 for StraightThrough {
    fn name(&self) -> &'static str {
        "straight-through-rounding"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Some((from, to)) = layout.contiguous_offsets() else {
            bail!("a map must be contiguous");
        };
        let shape = layout.shape().clone();
        let device = &candle_core::Device::Cpu;
        let weight = match storage {
            CpuStorage::F32(all) => Tensor::from_slice(&all[from..to], &shape, device)?,
            CpuStorage::F64(all) => Tensor::from_slice(&all[from..to], &shape, device)?,
            _ => bail!("a map must be f32 or f64"),
        };
        let rounded = self.0.rounded(&weight)?;
        let numbers = rounded.as_slice();
        let storage = match weight.dtype() {
            DType::F64 => CpuStorage::F64(numbers.to_vec()),
            _ => CpuStorage::F32(numbers.iter().map(|&x| x as f32).collect()),
        };
        Ok((storage, shape))
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, slopes: &Tensor) -> Result<Option<Tensor>> {
        Ok(Some(slopes.clone()))
    }
}
