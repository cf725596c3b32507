//! How much of a file is held in memory.

use hankelite_control::{DiagonalSystem, SystemError};
use nalgebra::DMatrix;

use crate::checkpoint::layout::Dynamics;
use crate::model::Model;

/// How much of a file becomes the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Parts {
    /// Everything, so that the model can run.
    Whole,
    /// The systems only.
    Dynamics,
    /// Of every layer one channel of the largest order; the others without modes.
    Outline,
}

impl Parts {
    /// What a model holds.
    pub(super) fn of(model: &Model) -> Self {
        match model.head() {
            Some(_) => Parts::Whole,
            None => Parts::Dynamics,
        }
    }

    /// What is read of a file: all systems, where they are to be written as diagonal ones.
    pub(super) fn of_file(self, low_rank: bool) -> Self {
        match (low_rank, self) {
            (true, Parts::Outline) => Parts::Dynamics,
            _ => self,
        }
    }

    /// What stays of the systems of a layer.
    pub(super) fn of_layer(self, dynamics: Dynamics) -> Result<Dynamics, SystemError> {
        if self != Parts::Outline {
            return Ok(dynamics);
        }
        Ok(Dynamics {
            systems: outline(dynamics.systems)?,
            backward: outline(dynamics.backward)?,
            ..dynamics
        })
    }
}

fn outline(systems: Vec<DiagonalSystem>) -> Result<Vec<DiagonalSystem>, SystemError> {
    let orders = systems.iter().map(DiagonalSystem::order);
    let largest = orders.enumerate().max_by_key(|(_, order)| *order);
    let largest = largest.map(|(index, _)| index);
    let numbered = systems.into_iter().enumerate();
    let outline = numbered.map(|(index, system)| match Some(index) == largest {
        true => Ok(system),
        false => without_modes(&system),
    });
    outline.collect()
}

fn without_modes(system: &DiagonalSystem) -> Result<DiagonalSystem, SystemError> {
    let (inputs, outputs) = (system.input().ncols(), system.output().nrows());
    DiagonalSystem::new(
        system.time(),
        Vec::new(),
        DMatrix::zeros(0, inputs),
        DMatrix::zeros(outputs, 0),
        DMatrix::zeros(outputs, inputs),
    )
}
