//! How the state space of one layer is laid out in a file: one file for each family, with `decode`
//! beside `encode`.

mod annotated;
mod annotated_dplr;
mod attenuate;
mod bank;
mod bigs;
mod centaurus;
mod delayed_lru;
mod dplr;
mod dss;
mod ema;
mod encoded;
mod find;
mod flow_state;
mod hyena;
mod laughing_hyena;
mod lin_oss;
mod lrnnx;
mod lru;
mod lru_rec;
mod mega_heads;
mod megalodon;
mod mimo_dplr;
mod own;
mod phase;
mod s4_repo;
mod s4d;
mod s5;
mod sizes;
#[cfg(test)]
mod table;
mod transform;

use std::fmt::Debug;

pub(super) use dss::Dss;
pub(super) use encoded::{Encoded, PADDING_EXPONENT, Role};
pub(super) use find::{Found, Kind, find_layers, nearly};
use hankelite_archive::Dtype;
use hankelite_control::{DiagonalSystem, SystemClass};
pub(super) use hyena::HyenaForm;
pub(super) use lru::REAL_POLE_ANGLE;
pub use own::OwnLayout;
pub(super) use s4_repo::Version;
pub(super) use s4d::S4d;
pub(super) use s5::is_of_events;
pub(super) use sizes::SizeKeys;
pub use transform::Transform;

use crate::checkpoint::declared::AnyStep;
use crate::checkpoint::error::Fault;
use crate::checkpoint::tensors::Tensors;
use crate::model::Block;

/// The systems of one layer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Dynamics {
    /// Forwards in time: one for each channel, or one for all.
    pub(super) systems: Vec<DiagonalSystem>,
    /// Backwards in time, as many or none.
    pub(super) backward: Vec<DiagonalSystem>,
    /// The lag at which the kernels of `backward` start, 0 or 1.
    pub(super) backward_from: usize,
    /// What was lost in reading, for a person.
    pub(super) note: Option<String>,
}

impl Dynamics {
    pub(super) fn causal(systems: Vec<DiagonalSystem>) -> Self {
        Self {
            systems,
            backward: Vec::new(),
            backward_from: 1,
            note: None,
        }
    }

    pub(super) fn of(block: &Block) -> Self {
        Self {
            systems: block.systems().to_vec(),
            backward: block.backward().to_vec(),
            backward_from: block.backward_from(),
            note: None,
        }
    }
}

impl Dynamics {
    /// What a person should know of modes that turn so far in one step that rounding decides where
    /// they point.
    ///
    /// # Errors
    /// [`Fault::NoPhase`] where that is so in double precision.
    pub(super) fn note_of_phase(&self, layer: &str) -> Result<Option<String>, Fault> {
        /// What is left of a direction, in radians, is worth a kernel's hundredth.
        const UNSURE: f64 = 0.01;
        let mut farthest = 0.0_f64;
        for (channel, system) in self.systems.iter().enumerate() {
            let angles = system.scaled_exponents().into_iter().map(|z| z.im.abs());
            let angle = angles.fold(0.0, f64::max);
            if angle * f64::EPSILON > UNSURE {
                let layer = layer.to_string();
                return Err(Fault::NoPhase {
                    layer,
                    channel,
                    angle,
                });
            }
            farthest = farthest.max(angle);
        }
        let unsure = farthest * f64::from(f32::EPSILON) > UNSURE;
        Ok(unsure.then(|| {
            format!(
                "`{layer}`: modes turn by up to {farthest:.0e} radians in one step, of which single \
                 precision keeps less than two digits: kernels are those of double precision"
            )
        }))
    }
}

/// How the state space of one layer is laid out in the file.
pub(super) trait Layout: Debug + Send + Sync {
    /// The family, e.g. `S4D`.
    fn family(&self) -> &'static str;

    /// Reads the systems, with the conventions of the file folded in.
    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault>;

    /// Tensors for systems that are not those of the file. The tensors of the file are at hand
    /// for what the layout keeps beside the systems, e.g. a second step.
    fn encode(&self, dynamics: &Dynamics, tensors: &Tensors<'_>) -> Result<Vec<Encoded>, Fault>;

    /// The only systems that the file can hold, where it cannot hold all.
    fn class(&self, _: &Tensors<'_>) -> Option<SystemClass> {
        None
    }

    /// Where the network runs its layers at other steps than those of the file, what their input is.
    fn at_any_step(&self) -> Option<AnyStep> {
        None
    }

    /// The steps Δ of the modes, where each mode has its own; else those of the systems are all.
    fn steps_of_modes(&self, _: &Tensors<'_>) -> Result<Option<Vec<f64>>, Fault> {
        Ok(None)
    }

    /// Tensors that stand for others of the file from the start, because what is written could not
    /// keep those.
    fn unfolded(&self, _: &Tensors<'_>) -> Result<Option<Unfolded>, Fault> {
        Ok(None)
    }
}

/// What stands for some tensors of a layer.
pub(super) struct Unfolded {
    /// The tensors of the file.
    pub(super) instead: Vec<String>,
    /// What they stand for, with number formats.
    pub(super) tensors: Vec<(Encoded, Dtype)>,
    /// For a person.
    pub(super) note: String,
}

/// Poles that a layout cannot hold.
fn not_representable(
    layout: &'static str,
    layer: &str,
    channel: usize,
    pole: num_complex::Complex64,
    why: &'static str,
) -> Fault {
    let layer = layer.to_string();
    Fault::NotRepresentable {
        layout,
        layer,
        channel,
        pole,
        why,
    }
}

/// Systems of a layer that has only one direction.
fn require_causal(dynamics: &Dynamics) -> Result<&[DiagonalSystem], Fault> {
    match dynamics.backward.len() {
        0 => Ok(&dynamics.systems),
        found => Err(Fault::OtherModel {
            what: "systems that run backwards in time",
            found,
            expected: 0,
        }),
    }
}
