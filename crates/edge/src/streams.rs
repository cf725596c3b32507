//! Signals side by side.

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
}
