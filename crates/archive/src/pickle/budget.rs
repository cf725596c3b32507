//! What the values of a pickle may take in memory and steps.

use crate::pickle::PickleError;

/// Bytes that the values of a short pickle may take, and once more when they are unfolded.
pub(super) const ROOM: usize = 24 << 20;
/// Bytes that they may take beside that for each byte of the pickle; the values of tensors take
/// about six.
pub(super) const ROOM_PER_BYTE: usize = 8;
/// The same when they are unfolded.
const UNFOLDED_PER_BYTE: usize = 4;
/// Nesting that is followed when values are unfolded.
pub(super) const DEPTH_LIMIT: usize = 64;
/// Steps that unfolding one pickle may take.
pub(super) const STEP_LIMIT: usize = 1 << 22;

/// What unfolding may still cost.
#[derive(Debug)]
pub(crate) struct Budget {
    steps: usize,
    depth: usize,
    /// Bytes.
    room: usize,
}

impl Budget {
    /// The whole budget of a short pickle.
    #[cfg(test)]
    pub(crate) fn new() -> Budget {
        Budget::of(0)
    }

    /// The whole budget of a pickle of so many bytes.
    pub(crate) fn of(length: usize) -> Budget {
        Budget {
            steps: STEP_LIMIT,
            depth: DEPTH_LIMIT,
            room: ROOM + UNFOLDED_PER_BYTE * length,
        }
    }

    /// Pays for some steps.
    pub(crate) fn steps(&mut self, count: usize) -> Result<(), PickleError> {
        self.steps = self.steps.checked_sub(count).ok_or(PickleError::TooLarge)?;
        Ok(())
    }

    /// Pays for some bytes of memory.
    pub(crate) fn hold(&mut self, bytes: usize) -> Result<(), PickleError> {
        self.room = self.room.checked_sub(bytes).ok_or(PickleError::TooLarge)?;
        Ok(())
    }

    /// Pays for one step and goes one level down; [`Budget::leave`] goes up.
    pub(crate) fn enter(&mut self) -> Result<(), PickleError> {
        self.steps(1)?;
        self.depth = self.depth.checked_sub(1).ok_or(PickleError::TooDeep)?;
        Ok(())
    }

    /// Goes one level up.
    pub(crate) fn leave(&mut self) {
        self.depth += 1;
    }
}
