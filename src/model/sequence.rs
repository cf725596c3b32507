//! What a network takes.

/// One input sequence, of at most the L steps that the network was prepared for. A shorter one is
/// padded with zeros or token 0, which only layers that run backwards in time hear; its own steps
/// alone are pooled.
#[derive(Debug, Clone, Copy)]
pub enum Sequence<'a> {
    /// Steps × inputs numbers, step by step.
    Values(&'a [f32]),
    /// Indices into an embedding, one for each step.
    Tokens(&'a [u32]),
}
