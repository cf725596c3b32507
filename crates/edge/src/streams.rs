//! Signals side by side.

use crate::LANES;

/// Vectors of several streams, one after the other.
pub(crate) struct Streams<'a, T> {
    pub(crate) inputs: &'a [T],
    /// Numbers from one stream's inputs to the next: at least the columns of the matrix.
    pub(crate) input_step: usize,
    /// As many for each stream as the matrix has rows.
    pub(crate) outputs: &'a mut [T],
}

impl<'a, T> Streams<'a, T> {
    /// One stream.
    #[inline(always)]
    pub(crate) fn one(inputs: &'a [T], outputs: &'a mut [T]) -> Self {
        Self {
            inputs,
            input_step: inputs.len(),
            outputs,
        }
    }

    /// Sixteen outputs of a stream, of as many as the matrix has rows.
    #[inline(always)]
    pub(crate) fn lanes(&mut self, stream: usize, rows: usize, index: usize) -> &mut [T; LANES] {
        &mut self.outputs[stream * rows + index * LANES..]
            .as_chunks_mut()
            .0[0]
    }
}
