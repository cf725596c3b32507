//! A number for the filters of a block, its gradient by the kernels, and what it needs of the batch.

use rayon::prelude::*;

use crate::bounds::psi_gradient;
use crate::nn::plan::Size;
use crate::nn::real::Real;

/// Numbers of a batch that one thread normalises at a time.
const TILE: usize = 1 << 14;

/// Mean and standard deviation of the input of a state space at every step, channels × L.
pub(super) struct Heard {
    mean: Vec<f64>,
    deviation: Vec<f64>,
}

/// The mean over the channels of ψ², and its gradient by their kernels.
pub(super) struct BlockPenalty<T> {
    pub(super) value: f64,
    slopes: Vec<Vec<T>>,
}

impl<T: Real> BlockPenalty<T> {
    /// Of kernels with D in their first sample; without statistics for mean 0 and deviation 1.
    pub(super) fn new(kernels: &[Vec<T>], heard: Option<&Heard>) -> Self {
        let channels = kernels.len();
        let channel = |(h, kernel): (usize, &Vec<T>)| {
            let length = kernel.len();
            let kernel: Vec<f64> = kernel.iter().map(|k| k.to_f64()).collect();
            let (psi, slopes) = match heard {
                Some(heard) => {
                    let place = h * length..(h + 1) * length;
                    psi_gradient(&kernel, &heard.mean[place.clone()], &heard.deviation[place])
                }
                None => psi_gradient(&kernel, &vec![0.0; length], &vec![1.0; length]),
            };
            let psi = psi.value();
            let factor = 2.0 * psi / channels as f64;
            let slopes = slopes.iter().map(|slope| T::of(factor * slope)).collect();
            (psi * psi / channels as f64, slopes)
        };
        let parts = kernels.par_iter().enumerate().map(channel);
        let (squares, slopes): (Vec<f64>, Vec<Vec<T>>) = parts.unzip();
        Self {
            value: squares.iter().sum(),
            slopes,
        }
    }

    /// Multiplies the gradient with that of the number.
    pub(super) fn scale(&mut self, by: T) {
        for slope in self.slopes.iter_mut().flatten() {
            *slope *= by;
        }
    }

    /// The gradient of every channel's kernel.
    pub(super) fn slopes(&self) -> &[Vec<T>] {
        &self.slopes
    }
}

/// Mean and deviation over the batch of rows of x (batch × L × H), brought by `normalise` to what a
/// state space hears. A tile of a few steps of all sequences is in the cache at a time.
pub(super) fn heard_by_tiles<T: Real>(
    x: &[T],
    size: Size,
    normalise: impl Fn(&mut [T]) + Sync,
) -> Heard {
    let Size {
        batch,
        length,
        channels,
    } = size;
    let steps = (TILE / (batch * channels)).clamp(1, length);
    let tiles: Vec<usize> = (0..length).step_by(steps).collect();
    let tile = |&start: &usize| {
        let width = steps.min(length - start) * channels;
        let mut rows = vec![T::zero(); batch * width];
        for (sequence, rows) in rows.chunks_exact_mut(width).enumerate() {
            let from = (sequence * length + start) * channels;
            rows.copy_from_slice(&x[from..from + width]);
        }
        normalise(&mut rows);
        moments(&rows, width)
    };
    let found: Vec<(Vec<f64>, Vec<f64>)> = tiles.par_iter().map(tile).collect();
    let mut heard = Heard {
        mean: vec![0.0; length * channels],
        deviation: vec![0.0; length * channels],
    };
    for (start, (mean, deviation)) in tiles.iter().zip(&found) {
        for (at, (mean, deviation)) in mean.iter().zip(deviation).enumerate() {
            let place = (at % channels) * length + start + at / channels;
            heard.mean[place] = *mean;
            heard.deviation[place] = *deviation;
        }
    }
    heard
}

/// Mean and population deviation of each of `width` columns.
fn moments<T: Real>(rows: &[T], width: usize) -> (Vec<f64>, Vec<f64>) {
    let share = width as f64 / rows.len() as f64;
    let mut mean = vec![0.0; width];
    for row in rows.chunks_exact(width) {
        let pairs = mean.iter_mut().zip(row);
        pairs.for_each(|(sum, value)| *sum += value.to_f64());
    }
    mean.iter_mut().for_each(|sum| *sum *= share);
    let mut deviation = vec![0.0; width];
    for row in rows.chunks_exact(width) {
        for ((sum, mean), value) in deviation.iter_mut().zip(&mean).zip(row) {
            *sum += (value.to_f64() - mean).powi(2);
        }
    }
    let root = |sum: &mut f64| *sum = (*sum * share).sqrt();
    deviation.iter_mut().for_each(root);
    (mean, deviation)
}
