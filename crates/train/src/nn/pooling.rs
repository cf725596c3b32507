//! Sums over time with given weights.

use hankelite_kernels::{Lease, Workspace, add};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::nn::plan::Size;
use crate::nn::real::Real;

/// The weighted sum over time of each sequence of x: batch × H.
pub(super) fn pool<T: Real>(x: &[T], weights: &[f64], size: Size) -> Vec<T> {
    let row = size.length * size.channels;
    let mut pooled = vec![T::zero(); size.batch * size.channels];
    let sequences = x.par_chunks(row).zip(weights.par_chunks(size.length));
    let sequences = sequences.zip(pooled.par_chunks_mut(size.channels));
    sequences.for_each(|((x, weights), pooled)| {
        Arch::new().dispatch(Pool { x, weights, pooled });
    });
    pooled
}

/// The gradient of x from that of its pooled form.
pub(super) fn spread<T: Real>(
    g: &[T],
    weights: &[f64],
    size: Size,
    workspace: &Workspace<T>,
) -> Lease<T> {
    let row = size.length * size.channels;
    let mut out = workspace.numbers(size.batch * row);
    let sequences = out.par_chunks_mut(row).zip(weights.par_chunks(size.length));
    let sequences = sequences.zip(g.par_chunks(size.channels));
    sequences.for_each(|((out, weights), g)| {
        for (out, weight) in out.chunks_exact_mut(size.channels).zip(weights) {
            let weight = T::of(*weight);
            out.iter_mut().zip(g).for_each(|(x, g)| *x = weight * *g);
        }
    });
    out
}

struct Pool<'a, T> {
    x: &'a [T],
    weights: &'a [f64],
    pooled: &'a mut [T],
}

impl<T: Real> WithSimd for Pool<'_, T> {
    type Output = ();

    /// Sums of 64 steps, and sums of those: the rounding does not grow with the length.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let channels = self.pooled.len();
        let mut part = vec![T::zero(); channels];
        let chunks = self.x.chunks(64 * channels).zip(self.weights.chunks(64));
        for (rows, weights) in chunks {
            part.fill(T::zero());
            for (row, weight) in rows.chunks_exact(channels).zip(weights) {
                let weight = T::of(*weight);
                for (sum, x) in part.iter_mut().zip(row) {
                    *sum += weight * *x;
                }
            }
            add(self.pooled, &part);
        }
    }
}
