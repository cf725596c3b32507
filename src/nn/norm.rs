//! Normalisation of rows of channels, with gradients.
//!
//! ```text
//! y = w (x − μ)/√(v + ε) + b
//! ```
//!
//! μ and v are mean and population variance over the channels of a row (layer norm) or over all
//! rows of a channel (batch norm).

use pulp::Arch;
use pulp::Simd;
use pulp::WithSimd;

use crate::nn::real::LANES;
use crate::nn::real::Real;

/// Weight and bias, and what is added to the variance.
#[derive(Clone, Copy)]
pub(super) struct Affine<'a, T> {
    pub(super) weight: &'a [T],
    pub(super) bias: &'a [T],
    pub(super) epsilon: f64,
}

/// The gradients of weight and bias.
pub(super) struct AffineGradient<'a, T> {
    pub(super) weight: &'a mut [T],
    pub(super) bias: &'a mut [T],
}

/// Normalises every row in place over its channels.
pub(super) fn layer_norm<T: Real>(rows: &mut [T], affine: Affine<'_, T>) {
    Arch::new().dispatch(LayerForward { rows, affine });
}

/// g ← the gradient of the rows x, given that of their layer norm.
pub(super) fn layer_norm_backward<T: Real>(
    x: &[T],
    g: &mut [T],
    affine: Affine<'_, T>,
    gradient: AffineGradient<'_, T>,
) {
    Arch::new().dispatch(LayerBackward {
        x,
        g,
        affine,
        gradient,
    });
}

/// Mean and 1/√(v + ε) of each channel, over all rows.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChannelStatistics<T> {
    pub(super) mean: Vec<T>,
    pub(super) variance: Vec<T>,
    pub(super) scale: Vec<T>,
}

impl<T: Real> ChannelStatistics<T> {
    pub(super) fn new(mean: Vec<T>, variance: Vec<T>, epsilon: f64) -> Self {
        let scale = variance.iter();
        let scale = scale.map(|v| T::one() / (*v + T::of(epsilon)).root());
        Self {
            scale: scale.collect(),
            mean,
            variance,
        }
    }

    /// Normalises every row in place.
    pub(super) fn apply(&self, rows: &mut [T], affine: Affine<'_, T>) {
        let channels = self.mean.len();
        for row in rows.chunks_exact_mut(channels) {
            for h in 0..channels {
                let normal = (row[h] - self.mean[h]) * self.scale[h];
                row[h] = normal * affine.weight[h] + affine.bias[h];
            }
        }
    }

    /// Adds Σ g (x − μ)/√(v + ε) and Σ g over the rows: the gradients of weight and bias.
    pub(super) fn sums(&self, x: &[T], g: &[T], sums: AffineGradient<'_, T>) {
        let channels = self.mean.len();
        for (x, g) in x.chunks_exact(channels).zip(g.chunks_exact(channels)) {
            for h in 0..channels {
                sums.weight[h] += g[h] * (x[h] - self.mean[h]) * self.scale[h];
                sums.bias[h] += g[h];
            }
        }
    }

    /// g ← the gradient of x, given the sums over all `count` rows.
    ///
    /// ```text
    /// ∂x = w s (g − Σg/n − x̂ Σ(g x̂)/n)
    /// ```
    pub(super) fn backward(
        &self,
        x: &[T],
        g: &mut [T],
        weight: &[T],
        (sums, count): ((&[T], &[T]), usize),
    ) {
        let channels = self.mean.len();
        let share = T::of(1.0 / count as f64);
        for (x, g) in x.chunks_exact(channels).zip(g.chunks_exact_mut(channels)) {
            for h in 0..channels {
                let normal = (x[h] - self.mean[h]) * self.scale[h];
                let centred = g[h] - (sums.1[h] + normal * sums.0[h]) * share;
                g[h] = weight[h] * self.scale[h] * centred;
            }
        }
    }
}

/// Σ over all entries by sixteen running sums, so that the loop becomes vector code.
#[inline(always)]
fn total<T: Real>(count: usize, term: impl Fn(usize) -> T) -> T {
    let mut sums = [T::zero(); LANES];
    let whole = count - count % LANES;
    for start in (0..whole).step_by(LANES) {
        for (lane, sum) in sums.iter_mut().enumerate() {
            *sum += term(start + lane);
        }
    }
    for (at, sum) in (whole..count).zip(sums.iter_mut()) {
        *sum += term(at);
    }
    for half in [8, 4, 2, 1] {
        for lane in 0..half {
            let upper = sums[lane + half];
            sums[lane] += upper;
        }
    }
    sums[0]
}

#[inline(always)]
fn mean_and_scale<T: Real>(row: &[T], epsilon: f64) -> (T, T) {
    let share = T::of(1.0 / row.len() as f64);
    let mean = total(row.len(), |h| row[h]) * share;
    let square = total(row.len(), |h| (row[h] - mean) * (row[h] - mean));
    (mean, T::one() / (square * share + T::of(epsilon)).root())
}

struct LayerForward<'a, T> {
    rows: &'a mut [T],
    affine: Affine<'a, T>,
}

impl<T: Real> WithSimd for LayerForward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let channels = self.affine.weight.len();
        let (weight, bias) = (self.affine.weight, &self.affine.bias[..channels]);
        for row in self.rows.chunks_exact_mut(channels) {
            let (mean, scale) = mean_and_scale(row, self.affine.epsilon);
            for h in 0..channels {
                row[h] = (row[h] - mean) * scale * weight[h] + bias[h];
            }
        }
    }
}

struct LayerBackward<'a, T> {
    x: &'a [T],
    g: &'a mut [T],
    affine: Affine<'a, T>,
    gradient: AffineGradient<'a, T>,
}

impl<T: Real> WithSimd for LayerBackward<'_, T> {
    type Output = ();

    /// With x̂ the normalised row and q = w ∘ g: ∂x = s (q − mean q − x̂ mean(q x̂)).
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let weight = self.affine.weight;
        let channels = weight.len();
        let share = T::of(1.0 / channels as f64);
        let of_weight = &mut self.gradient.weight[..channels];
        let of_bias = &mut self.gradient.bias[..channels];
        let rows = self.x.chunks_exact(channels);
        for (x, g) in rows.zip(self.g.chunks_exact_mut(channels)) {
            let (mean, scale) = mean_and_scale(x, self.affine.epsilon);
            let centre = total(channels, |h| weight[h] * g[h]) * share;
            let tilt = total(channels, |h| weight[h] * g[h] * (x[h] - mean)) * scale * share;
            for h in 0..channels {
                let normal = (x[h] - mean) * scale;
                of_weight[h] += g[h] * normal;
                of_bias[h] += g[h];
                g[h] = scale * (weight[h] * g[h] - centre - normal * tilt);
            }
        }
    }
}
