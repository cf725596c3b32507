//! A reduced channel and what is recorded of it.

use hankelite_control::{ControlError, DiagonalSystem, Realisation, h2_norm};

use crate::compress::ChannelRecord;
use crate::compress::distance::{feedthrough_change, kernel_distance, response_error};

/// A system that may take the place of a channel.
#[derive(Debug, Clone)]
pub(super) struct Candidate {
    pub(super) system: DiagonalSystem,
    pub(super) states: Option<usize>,
    pub(super) realisation: Option<Realisation>,
    pub(super) discarded: Option<f64>,
    pub(super) rotations: Option<usize>,
    pub(super) error_bound: f64,
    pub(super) condition: f64,
    /// H2 error of balanced truncation with complex poles, where the poles had to be real.
    pub(super) free_h2_error: Option<f64>,
    pub(super) notes: Vec<String>,
}

impl Candidate {
    /// A system that nothing was balanced for.
    pub(super) fn whole(system: &DiagonalSystem, note: Option<String>) -> Self {
        Self {
            system: system.clone(),
            states: None,
            realisation: None,
            discarded: None,
            rotations: None,
            error_bound: 0.0,
            condition: 1.0,
            free_h2_error: None,
            notes: note.into_iter().collect(),
        }
    }

    /// The channel itself, where it has no more states than `order`.
    pub(super) fn within(system: &DiagonalSystem, order: usize) -> Option<Self> {
        let states = system.order();
        let note = (order > states).then(|| format!("kept whole: it has {states} states"));
        (order >= states).then(|| Self::whole(system, note))
    }

    /// Puts the feedthrough of the channel back, where the file has none that could be written.
    pub(super) fn keep_feedthrough(
        &mut self,
        channel: &DiagonalSystem,
    ) -> Result<(), ControlError> {
        self.system = DiagonalSystem::new(
            self.system.time(),
            self.system.exponents().to_vec(),
            self.system.input().clone(),
            self.system.output().clone(),
            channel.feedthrough().clone(),
        )?;
        let note = "the feedthrough D stays as it is, since the file has none for this layer";
        self.notes.push(note.into());
        Ok(())
    }

    /// The system, with its errors in the place of channel `channel`, `full`; those of the kernel
    /// over `kernel_length` steps.
    pub(super) fn measured(
        self,
        full: &DiagonalSystem,
        channel: usize,
        kernel_length: usize,
    ) -> Result<(DiagonalSystem, ChannelRecord), ControlError> {
        let stable = full.stable()?;
        let kernel = kernel_distance(full, &self.system, kernel_length)?;
        let record = ChannelRecord {
            index: channel,
            order_before: full.order(),
            order: self.system.order(),
            states: self.states,
            realisation: self.realisation,
            discarded: self.discarded,
            rotations: self.rotations,
            error_bound: self.error_bound,
            h2_error: response_error(stable, self.system.stable()?)?,
            h2_norm: h2_norm(stable)?,
            kernel_error: kernel.error,
            kernel_norm: kernel.norm,
            feedthrough_change: feedthrough_change(full, &self.system),
            condition: self.condition,
            free_h2_error: self.free_h2_error,
            weighted: None,
            notes: self.notes,
        };
        Ok((self.system, record))
    }
}
