//! From the steps of the data to channels, and the gradients of the encoder.

use candle_core::{Result, bail};
use hankelite_kernels::{Lease, RowMajor, Workspace, multiply_rows};
use rayon::prelude::*;

use crate::nn::plan::{Encoding, Size};
use crate::nn::real::Real;

/// Steps of a batch on the host.
#[derive(Clone, Copy)]
pub(super) enum Steps<'a, T> {
    Numbers(&'a [T]),
    Tokens(&'a [u32]),
}

/// The most sums that gradients are gathered in.
const SEGMENTS: usize = 16;

/// The channels of all steps.
///
/// # Errors
/// Steps of the wrong kind; a token outside the table.
pub(super) fn encode<T: Real>(
    encoding: Encoding,
    steps: Steps<'_, T>,
    parameters: &[T],
    size: Size,
    workspace: &Workspace<T>,
) -> Result<Lease<T>> {
    let (channels, count) = (size.channels, size.batch * size.length);
    let mut out = workspace.numbers(count * channels);
    match (encoding, steps) {
        (Encoding::None, Steps::Numbers(steps)) => out.copy_from_slice(steps),
        (Encoding::Linear { inputs }, Steps::Numbers(steps)) => {
            let (weight, bias) = parameters.split_at(channels * inputs);
            let piece = piece(count);
            let rows = out.par_chunks_mut(piece * channels);
            rows.zip(steps.par_chunks(piece * inputs))
                .for_each(|(out, steps)| {
                    for row in out.chunks_exact_mut(channels) {
                        row.copy_from_slice(bias);
                    }
                    let weight = RowMajor::new(weight, channels, inputs).transpose();
                    let steps = RowMajor::new(steps, steps.len() / inputs, inputs);
                    multiply_rows(out, steps, weight, true);
                });
        }
        (Encoding::Embedding { vocabulary }, Steps::Tokens(tokens)) => {
            let outside = tokens.iter().find(|&&token| token as usize >= vocabulary);
            if let Some(token) = outside {
                bail!("token {token} is outside the vocabulary of {vocabulary}");
            }
            let rows = out.par_chunks_exact_mut(channels).zip(tokens);
            rows.for_each(|(row, &token)| {
                let start = token as usize * channels;
                row.copy_from_slice(&parameters[start..start + channels]);
            });
        }
        (Encoding::Embedding { .. }, Steps::Numbers(_)) => {
            bail!("the encoder is an embedding: expected tokens in u32")
        }
        (_, Steps::Tokens(_)) => bail!("the encoder is linear: expected numbers, not tokens"),
    }
    Ok(out)
}

/// Rows that one thread takes at a time.
fn piece(count: usize) -> usize {
    count.div_ceil(SEGMENTS).max(64)
}

/// The gradient of the encoder's parameters from that of the channels.
pub(super) fn backward<T: Real>(
    encoding: Encoding,
    steps: Steps<'_, T>,
    g: &[T],
    size: Size,
) -> Vec<T> {
    let channels = size.channels;
    let count = encoding.parameters(channels);
    let rows = piece(size.batch * size.length);
    let parts = g.par_chunks(rows * channels).enumerate();
    let parts: Vec<Vec<T>> = match (encoding, steps) {
        (Encoding::Linear { inputs }, Steps::Numbers(steps)) => parts
            .map(|(index, g)| {
                let start = index * rows * inputs;
                let own = g.len() / channels;
                let steps = &steps[start..start + own * inputs];
                let mut sums = vec![T::zero(); count];
                let (weight, bias) = sums.split_at_mut(channels * inputs);
                let turned = RowMajor::new(g, own, channels).transpose();
                multiply_rows(weight, turned, RowMajor::new(steps, own, inputs), false);
                for row in g.chunks_exact(channels) {
                    bias.iter_mut().zip(row).for_each(|(sum, g)| *sum += *g);
                }
                sums
            })
            .collect(),
        (Encoding::Embedding { .. }, Steps::Tokens(tokens)) => parts
            .map(|(index, g)| {
                let mut sums = vec![T::zero(); count];
                let tokens = &tokens[index * rows..];
                for (row, &token) in g.chunks_exact(channels).zip(tokens) {
                    let start = token as usize * channels;
                    let sums = &mut sums[start..start + channels];
                    sums.iter_mut().zip(row).for_each(|(sum, g)| *sum += *g);
                }
                sums
            })
            .collect(),
        _ => Vec::new(),
    };
    let mut total = vec![T::zero(); count];
    for part in parts {
        total
            .iter_mut()
            .zip(part)
            .for_each(|(sum, more)| *sum += more);
    }
    total
}
