//! A number for the filters of a block, its gradient by the kernels, and what it needs of the batch.

use hankelite::advanced::{PsiGradient, psi_gradient};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::nn::plan::Size;
use crate::nn::real::Real;

/// Numbers of a batch that one thread normalises at a time.
const TILE: usize = 1 << 13;

/// Mean and standard deviation of the input of a state space at every step, channels × L.
pub(super) struct InputMoments {
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
    pub(super) fn new(kernels: &[Vec<T>], moments: Option<&InputMoments>) -> Self {
        let channels = kernels.len();
        let channel = |(h, kernel): (usize, &Vec<T>)| {
            let length = kernel.len();
            let kernel: Vec<f64> = kernel.iter().map(|k| k.to_f64()).collect();
            let PsiGradient { psi, gradient } = match moments {
                Some(moments) => {
                    let place = h * length..(h + 1) * length;
                    psi_gradient(
                        &kernel,
                        &moments.mean[place.clone()],
                        &moments.deviation[place],
                    )
                }
                None => psi_gradient(&kernel, &vec![0.0; length], &vec![1.0; length]),
            };
            let factor = 2.0 * psi / channels as f64;
            let slopes = gradient.iter();
            let slopes = slopes.map(|slope| T::of(factor * slope)).collect();
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

impl InputMoments {
    /// Of the input of a state space, batch × L × H. A tile of a few steps of all sequences is in the
    /// cache at a time.
    pub(super) fn of<T: Real>(input: &[T], size: Size) -> Self {
        let Size {
            batch,
            length,
            channels,
        } = size;
        let steps = (TILE / (batch * channels)).clamp(1, length);
        let tiles: Vec<usize> = (0..length).step_by(steps).collect();
        let tile = |&start: &usize| {
            let width = steps.min(length - start) * channels;
            let rows = (0..batch).map(|sequence| {
                let from = (sequence * length + start) * channels;
                &input[from..from + width]
            });
            moments(&rows.collect::<Vec<_>>(), channels)
        };
        let found: Vec<[Vec<f64>; 2]> = tiles.par_iter().map(tile).collect();
        let whole = |part: usize| {
            let mut whole = Vec::with_capacity(length * channels);
            for h in 0..channels {
                for tile in &found {
                    let width = tile[part].len() / channels;
                    whole.extend_from_slice(&tile[part][h * width..(h + 1) * width]);
                }
            }
            whole
        };
        Self {
            mean: whole(0),
            deviation: whole(1),
        }
    }
}

/// Mean and population deviation of each column of rows of steps × channels; they come as channels
/// × steps.
fn moments<T: Real>(rows: &[&[T]], channels: usize) -> [Vec<f64>; 2] {
    let width = rows.first().map_or(0, |row| row.len());
    let mut mean = vec![T::zero(); width];
    let mut square = vec![T::zero(); width];
    let share = T::of(1.0 / rows.len() as f64);
    Arch::new().dispatch(Moments {
        rows,
        share,
        mean: &mut mean,
        square: &mut square,
    });
    let steps = width / channels;
    let turned = |values: &[T], map: fn(f64) -> f64| -> Vec<f64> {
        let mut turned = Vec::with_capacity(width);
        for h in 0..channels {
            let column = values[h..].iter().step_by(channels).take(steps);
            turned.extend(column.map(|value| map(value.to_f64())));
        }
        turned
    };
    [turned(&mean, |mean| mean), turned(&square, f64::sqrt)]
}

/// Means and mean squared distances from them.
struct Moments<'a, T> {
    rows: &'a [&'a [T]],
    share: T,
    mean: &'a mut [T],
    square: &'a mut [T],
}

impl<T: Real> WithSimd for Moments<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let width = self.mean.len();
        let (mean, square) = (&mut self.mean[..width], &mut self.square[..width]);
        for row in self.rows {
            mean.iter_mut().zip(*row).for_each(|(sum, x)| *sum += *x);
        }
        mean.iter_mut().for_each(|sum| *sum *= self.share);
        for row in self.rows {
            let columns = square.iter_mut().zip(&*mean).zip(*row);
            columns.for_each(|((sum, mean), x)| *sum += (*x - *mean) * (*x - *mean));
        }
        square.iter_mut().for_each(|sum| *sum *= self.share);
    }
}
