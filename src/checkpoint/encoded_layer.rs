//! The tensors of a changed layer, in a number format that holds its systems well enough.

use std::collections::BTreeMap;

use hankelite_archive::{Dtype, RawTensor};
use hankelite_control::{
    DiagonalSystem, InputWeight, StableSystem, Time, WeightedChannel, h2_error, h2_norm,
};

use crate::checkpoint::Encoding;
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::{Dynamics, Encoded, Role};
use crate::checkpoint::raw::raw_tensor;
use crate::checkpoint::tensors::Tensors;
use crate::model::Block;

/// The largest relative H2 error of a system that rounding its numbers may make.
pub(super) const CHANGE_MAX: f64 = 0.01;

/// What a residue may cost that is fitted to rounded poles, as a share of its mode's norm, over what
/// its format rounds it by.
const RIDGE: f64 = 4.0;

/// Steps over which residues are fitted to rounded poles.
const FIT_STEPS: usize = 1024;

/// A layer whose poles and residues are in a wider number format than was wanted, which would change
/// them too much.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct KeptLayer {
    /// Its name in the file.
    pub layer: String,
    /// The largest relative H2 error of a system, had it been rounded; infinite where that would
    /// have made a number too large, or a mode that does not decay.
    pub change: f64,
    /// The number format that the layer has instead, e.g. `F32`.
    pub dtype: String,
}

/// The tensors of a changed layer.
pub(super) struct ChangedLayer {
    pub(super) tensors: BTreeMap<String, RawTensor>,
    /// Where they are in a wider format than was wanted.
    pub(super) kept: Option<KeptLayer>,
}

/// What a layer's systems are encoded from, and in which format.
pub(super) struct LayerEncoding<'a> {
    pub(super) index: usize,
    pub(super) block: &'a Block,
    /// Which tensors change.
    pub(super) roles: Vec<Role>,
    /// The format of real tensors; none for that of the file.
    pub(super) dtype: Option<Dtype>,
}

/// In which format real tensors of systems are.
#[derive(Clone, Copy)]
enum Width {
    /// In the one that was requested, or that of the file.
    AsWanted,
    /// In that of the file, but single precision for half.
    Single,
}

impl From<BTreeMap<String, RawTensor>> for ChangedLayer {
    fn from(tensors: BTreeMap<String, RawTensor>) -> Self {
        let kept = None;
        Self { tensors, kept }
    }
}

/// Whether rounding to a format leaves fewer digits than single precision.
fn is_half(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F16 | Dtype::BF16)
}

/// What a half rounds a number by, relative to it.
fn rounding(dtype: Dtype) -> f64 {
    match dtype {
        Dtype::BF16 => 2f64.powi(-9),
        _ => 2f64.powi(-12),
    }
}

impl Encoding {
    /// The tensors of a layer's systems. In half precision poles are rounded first, where that brings the
    /// layer nearer, and residues fitted again to them; a layer that this changes by more than one
    /// per cent is in single precision instead.
    pub(super) fn encoded_layer(&self, layer: &LayerEncoding<'_>) -> Result<ChangedLayer, Fault> {
        let dynamics = Dynamics::of(layer.block);
        let tensors = match self.tensors_of(layer, &dynamics, Width::AsWanted) {
            Err(Fault::Overflow { dtype, .. }) if is_half(dtype) => {
                return self.widened(layer, &dynamics, f64::INFINITY);
            }
            tensors => tensors?,
        };
        let mut formats = tensors.values().map(RawTensor::dtype);
        let Some(half) = formats.find(|dtype| is_half(*dtype)) else {
            return Ok(tensors.into());
        };
        let rounded = self.read_back(layer.index, &tensors);
        let lost = |rounded: &Option<Dynamics>| {
            rounded
                .as_ref()
                .map_or(f64::INFINITY, |rounded| change(&dynamics, rounded))
        };
        let before = lost(&rounded);
        if before <= CHANGE_MAX {
            return Ok(tensors.into());
        }
        let fitted = rounded.and_then(|rounded| fitted_to(&dynamics, &rounded, rounding(half)));
        let fitted =
            fitted.and_then(|fitted| self.tensors_of(layer, &fitted, Width::AsWanted).ok());
        match fitted {
            Some(tensors) if lost(&self.read_back(layer.index, &tensors)) <= CHANGE_MAX => {
                Ok(tensors.into())
            }
            _ => self.widened(layer, &dynamics, before),
        }
    }

    fn widened(
        &self,
        layer: &LayerEncoding<'_>,
        dynamics: &Dynamics,
        change: f64,
    ) -> Result<ChangedLayer, Fault> {
        let tensors = self.tensors_of(layer, dynamics, Width::Single)?;
        let format = tensors.values().map(RawTensor::dtype).find(|d| is_real(*d));
        let kept = Some(KeptLayer {
            layer: layer.block.name().to_string(),
            change,
            dtype: format!("{:?}", format.unwrap_or(Dtype::F32)),
        });
        Ok(ChangedLayer { tensors, kept })
    }

    /// The systems of a layer as tensors hold them; none where they cannot be read.
    fn read_back(&self, index: usize, tensors: &BTreeMap<String, RawTensor>) -> Option<Dynamics> {
        let archive = self.archive.with(tensors.clone()).ok()?;
        let tensors = Tensors::new(&archive, &self.structure.prefix);
        self.structure.layers[index].decode(&tensors).ok()
    }

    /// The tensors of some systems in the place of a layer's.
    fn tensors_of(
        &self,
        layer: &LayerEncoding<'_>,
        dynamics: &Dynamics,
        width: Width,
    ) -> Result<BTreeMap<String, RawTensor>, Fault> {
        let tensors = Tensors::new(&self.archive, &self.structure.prefix);
        let encoded = self.structure.layers[layer.index].encode(dynamics, &tensors)?;
        let written = |role| encoded.iter().any(|encoded| encoded.role == role);
        if layer.roles.contains(&Role::Feedthrough) && !written(Role::Feedthrough) {
            let layer = layer.block.name().to_string();
            return Err(Fault::NoFeedthrough { layer });
        }
        let changed = encoded.into_iter();
        let changed = changed.filter(|encoded| layer.roles.contains(&encoded.role));
        let made = changed.map(
            |Encoded {
                 name, shape, data, ..
             }| {
                let name = tensors.full(&name);
                let stored = self.archive.dtype(&name).unwrap_or(Dtype::F32);
                let format = match (width, layer.dtype) {
                    _ if !is_real(stored) => stored,
                    (Width::Single, _) if is_half(stored) => Dtype::F32,
                    (Width::AsWanted, Some(dtype)) => dtype,
                    _ => stored,
                };
                let shape =
                    shape.unwrap_or_else(|| self.archive.shape(&name).unwrap_or(&[]).to_vec());
                let tensor = raw_tensor(&name, format, shape, &data)?;
                Ok((name, tensor))
            },
        );
        made.collect()
    }
}

/// Whether a format is of real numbers that are no integers.
fn is_real(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::F16 | Dtype::BF16 | Dtype::F32 | Dtype::F64)
}

/// The best residues for poles that were rounded, in white noise; D stays. `None` for layers with several
/// inputs or kernels, or of both directions.
fn fitted_to(planned: &Dynamics, rounded: &Dynamics, rounding: f64) -> Option<Dynamics> {
    if !planned.backward.is_empty() {
        return None;
    }
    let white = InputWeight::white(FIT_STEPS);
    let pairs = planned.systems.iter().zip(&rounded.systems);
    let systems = pairs.map(|(planned, rounded)| {
        let (planned, poles) = (in_steps(planned)?, first_modes(rounded, planned.order())?);
        let channel = WeightedChannel::new(&planned, &white).ok()?;
        let fitted = channel
            .with_feedthrough_held()
            .residues(&in_steps(&poles)?, RIDGE * rounding);
        let fitted = fitted.ok()?;
        DiagonalSystem::new(
            poles.time(),
            poles.exponents().to_vec(),
            fitted.input().clone(),
            fitted.output().clone(),
            planned.feedthrough().clone(),
        )
        .ok()
    });
    Some(Dynamics {
        systems: systems.collect::<Option<_>>()?,
        ..planned.clone()
    })
}

/// The leading modes of a system, behind which a layout fills up.
fn first_modes(system: &DiagonalSystem, count: usize) -> Option<DiagonalSystem> {
    let kept: Vec<usize> = (0..count.min(system.order())).collect();
    let made = DiagonalSystem::new(
        system.time(),
        kept.iter().map(|&n| system.exponents()[n]).collect(),
        system.input().select_rows(&kept),
        system.output().select_columns(&kept),
        system.feedthrough().clone(),
    );
    made.ok()
}

/// The largest relative H2 error of a system of a layer; infinite where one does not decay.
pub(super) fn change(planned: &Dynamics, rounded: &Dynamics) -> f64 {
    let pairs = planned.systems.iter().zip(&rounded.systems);
    let backward = planned.backward.iter().zip(&rounded.backward);
    let changes = pairs
        .chain(backward)
        .map(|(planned, rounded)| relative_error(planned, rounded).unwrap_or(f64::INFINITY));
    changes.fold(0.0, f64::max)
}

fn relative_error(planned: &DiagonalSystem, rounded: &DiagonalSystem) -> Option<f64> {
    let (planned, rounded) = (in_steps(planned)?, in_steps(rounded)?);
    let (planned, rounded): (StableSystem<'_>, _) =
        (planned.stable().ok()?, rounded.stable().ok()?);
    let error = h2_error(planned, rounded).ok()?;
    let norm = h2_norm(planned).ok()?;
    Some(if error > 0.0 { error / norm } else { 0.0 })
}

/// The same samples with a step of one: rounding changes the step, too.
fn in_steps(system: &DiagonalSystem) -> Option<DiagonalSystem> {
    let made = DiagonalSystem::new(
        Time::Discrete { step: 1.0 },
        system.scaled_exponents(),
        system.input().clone(),
        system.output().clone(),
        system.feedthrough().clone(),
    );
    made.ok()
}
