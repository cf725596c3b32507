//! How much of a file is held in memory.

use crate::ssm::DiagonalSystem;
use crate::ssm::SystemError;

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
    /// What stays of the systems of a layer.
    pub(super) fn of_layer(
        self,
        systems: Vec<DiagonalSystem>,
    ) -> Result<Vec<DiagonalSystem>, SystemError> {
        if self != Parts::Outline {
            return Ok(systems);
        }
        let orders = systems.iter().map(DiagonalSystem::order);
        let largest = orders.enumerate().max_by_key(|(_, order)| *order);
        let largest = largest.map(|(index, _)| index);
        let outline =
            systems
                .into_iter()
                .enumerate()
                .map(|(index, system)| match Some(index) == largest {
                    true => Ok(system),
                    false => DiagonalSystem::siso(system.time(), Vec::new(), &[], 0.0),
                });
        outline.collect()
    }
}
