//! Normalisation of rows of channels, with gradients.
//!
//! ```text
//! y = w (x − μ)/√(v + ε) + b
//! ```
//!
//! μ and v are mean and population variance over the channels of a row (layer norm) or over all
//! rows of a channel (batch norm).

use pulp::{Arch, Simd, WithSimd};

use crate::real::LaneReal;

/// Weight and bias, and what is added to the variance.
#[derive(Clone, Copy)]
pub struct Affine<'a, T> {
    /// w.
    pub weight: &'a [T],
    /// b.
    pub bias: &'a [T],
    /// ε.
    pub epsilon: f64,
}

/// The gradients of weight and bias.
pub struct AffineGradient<'a, T> {
    /// Of w.
    pub weight: &'a mut [T],
    /// Of b.
    pub bias: &'a mut [T],
}

/// Normalises every row in place over its channels.
pub fn layer_norm<T: LaneReal>(rows: &mut [T], affine: Affine<'_, T>) {
    Arch::new().dispatch(LayerForward { rows, affine });
}

/// g ← the gradient of the rows x, given that of their layer norm.
pub fn layer_norm_backward<T: LaneReal>(
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
pub struct ChannelStatistics<T> {
    /// μ.
    pub mean: Vec<T>,
    /// v.
    pub variance: Vec<T>,
    /// 1/√(v + ε).
    pub scale: Vec<T>,
}

impl<T: LaneReal> ChannelStatistics<T> {
    /// From mean and population variance of every channel.
    pub fn new(mean: Vec<T>, variance: Vec<T>, epsilon: f64) -> Self {
        let scale = variance.iter();
        let scale = scale.map(|v| T::one() / (*v + T::of(epsilon)).root());
        Self {
            scale: scale.collect(),
            mean,
            variance,
        }
    }

    /// Normalises every row in place.
    pub fn apply(&self, rows: &mut [T], affine: Affine<'_, T>) {
        Arch::new().dispatch(BatchForward {
            rows,
            statistics: self,
            affine,
        });
    }

    /// Adds Σ g x̂ and Σ g over the rows: the gradients of weight and bias.
    pub fn sums(&self, x: &[T], g: &[T], sums: AffineGradient<'_, T>) {
        let statistics = self;
        Arch::new().dispatch(BatchSums {
            x,
            g,
            statistics,
            sums,
        });
    }

    /// g ← the gradient of x, given the weight and the means of g x̂ and g over all rows.
    ///
    /// ```text
    /// ∂x = w s (g − mean g − x̂ mean(g x̂))
    /// ```
    pub fn backward(&self, x: &[T], g: &mut [T], weight: &[T], means: Means<'_, T>) {
        let statistics = self;
        Arch::new().dispatch(BatchBackward {
            x,
            g,
            statistics,
            weight,
            means,
        });
    }
}

/// Means over all rows for each channel: of g x̂, and of g.
#[derive(Clone, Copy)]
pub struct Means<'a, T> {
    /// Of g x̂.
    pub tilted: &'a [T],
    /// Of g.
    pub plain: &'a [T],
}

struct BatchForward<'a, T> {
    rows: &'a mut [T],
    statistics: &'a ChannelStatistics<T>,
    affine: Affine<'a, T>,
}

impl<T: LaneReal> WithSimd for BatchForward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let ChannelStatistics { mean, scale, .. } = self.statistics;
        for row in self.rows.chunks_exact_mut(mean.len()) {
            let affine = self.affine.weight.iter().zip(self.affine.bias);
            let normal = row.iter_mut().zip(mean).zip(scale);
            for (((x, m), s), (w, b)) in normal.zip(affine) {
                *x = (*x - *m) * *s * *w + *b;
            }
        }
    }
}

struct BatchSums<'a, T> {
    x: &'a [T],
    g: &'a [T],
    statistics: &'a ChannelStatistics<T>,
    sums: AffineGradient<'a, T>,
}

impl<T: LaneReal> WithSimd for BatchSums<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let ChannelStatistics { mean, scale, .. } = self.statistics;
        let rows = self.x.chunks_exact(mean.len());
        for (x, g) in rows.zip(self.g.chunks_exact(mean.len())) {
            let sums = self.sums.weight.iter_mut().zip(self.sums.bias.iter_mut());
            let normal = x.iter().zip(mean).zip(scale).zip(g);
            for ((((x, m), s), g), (of_w, of_b)) in normal.zip(sums) {
                *of_w += *g * (*x - *m) * *s;
                *of_b += *g;
            }
        }
    }
}

struct BatchBackward<'a, T> {
    x: &'a [T],
    g: &'a mut [T],
    statistics: &'a ChannelStatistics<T>,
    weight: &'a [T],
    means: Means<'a, T>,
}

impl<T: LaneReal> WithSimd for BatchBackward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let ChannelStatistics { mean, scale, .. } = self.statistics;
        let rows = self.x.chunks_exact(mean.len());
        for (x, g) in rows.zip(self.g.chunks_exact_mut(mean.len())) {
            let Means { tilted, plain } = self.means;
            let means = self.weight.iter().zip(tilted).zip(plain);
            let normal = x.iter().zip(mean).zip(scale).zip(g);
            for ((((x, m), s), g), ((w, tilted), plain)) in normal.zip(means) {
                let normal = (*x - *m) * *s;
                *g = *w * *s * (*g - *plain - normal * *tilted);
            }
        }
    }
}

/// Mean of a row and 1/√(v + ε).
#[inline(always)]
fn mean_and_scale<T: LaneReal, S: Simd>(simd: S, row: &[T], epsilon: T) -> (T, T) {
    let share = T::one() / T::of(row.len() as f64);
    let (vectors, rest) = T::parts::<S>(row);
    let mut sum = T::splat(simd, T::zero());
    for &x in vectors {
        sum = T::plus(simd, sum, x);
    }
    let mean = rest.iter().fold(T::sum(simd, sum), |sum, &x| sum + x) * share;
    let centre = T::splat(simd, mean);
    let mut square = T::splat(simd, T::zero());
    for &x in vectors {
        let x = T::minus(simd, x, centre);
        square = T::fused(simd, x, x, square);
    }
    let square = T::sum(simd, square);
    let square = rest
        .iter()
        .fold(square, |sum, &x| sum + (x - mean) * (x - mean));
    (mean, T::one() / (square * share + epsilon).root())
}

struct LayerForward<'a, T> {
    rows: &'a mut [T],
    affine: Affine<'a, T>,
}

impl<T: LaneReal> WithSimd for LayerForward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let (weight, weight_rest) = T::parts::<S>(self.affine.weight);
        let (bias, bias_rest) = T::parts::<S>(self.affine.bias);
        let epsilon = T::of(self.affine.epsilon);
        for row in self.rows.chunks_exact_mut(self.affine.weight.len()) {
            let (mean, scale) = mean_and_scale(simd, row, epsilon);
            let (vectors, rest) = T::parts_mut::<S>(row);
            let (centre, factor) = (T::splat(simd, mean), T::splat(simd, scale));
            for ((x, &w), &b) in vectors.iter_mut().zip(weight).zip(bias) {
                let normal = T::times(simd, T::minus(simd, *x, centre), factor);
                *x = T::fused(simd, normal, w, b);
            }
            for ((x, w), b) in rest.iter_mut().zip(weight_rest).zip(bias_rest) {
                *x = (*x - mean) * scale * *w + *b;
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

impl<T: LaneReal> WithSimd for LayerBackward<'_, T> {
    type Output = ();

    /// With x̂ the normalised row and q = w ∘ g: ∂x = s (q − mean q − x̂ mean(q x̂)).
    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let channels = self.affine.weight.len();
        let rows = self.x.chunks_exact(channels);
        let epsilon = T::of(self.affine.epsilon);
        let (weight, weight_rest) = T::parts::<S>(self.affine.weight);
        let (of_weight, of_weight_rest) = T::parts_mut::<S>(self.gradient.weight);
        let (of_bias, of_bias_rest) = T::parts_mut::<S>(self.gradient.bias);
        for (x, g) in rows.zip(self.g.chunks_exact_mut(channels)) {
            let (mean, scale) = mean_and_scale(simd, x, epsilon);
            let (x, x_rest) = T::parts::<S>(x);
            let (g, g_rest) = T::parts_mut::<S>(g);
            let (centre, factor) = (T::splat(simd, mean), T::splat(simd, scale));
            // Σ q and Σ q (x − μ).
            let (mut plain, mut tilted) = (T::splat(simd, T::zero()), T::splat(simd, T::zero()));
            for ((&x, &g), &w) in x.iter().zip(&*g).zip(weight) {
                let q = T::times(simd, w, g);
                plain = T::plus(simd, plain, q);
                tilted = T::fused(simd, q, T::minus(simd, x, centre), tilted);
            }
            let (mut plain, mut tilted) = (T::sum(simd, plain), T::sum(simd, tilted));
            for ((&x, &g), &w) in x_rest.iter().zip(&*g_rest).zip(weight_rest) {
                plain += w * g;
                tilted += w * g * (x - mean);
            }
            let share = T::one() / T::of(channels as f64);
            let (plain, tilted) = (plain * share, tilted * share * scale);
            let (level, slope) = (T::splat(simd, plain), T::splat(simd, tilted));
            let sums = of_weight.iter_mut().zip(of_bias.iter_mut());
            for (((&x, g), &w), (of_w, of_b)) in x.iter().zip(g).zip(weight).zip(sums) {
                let normal = T::times(simd, T::minus(simd, x, centre), factor);
                *of_w = T::fused(simd, *g, normal, *of_w);
                *of_b = T::plus(simd, *of_b, *g);
                let q = T::minus(simd, T::times(simd, w, *g), level);
                let q = T::minus(simd, q, T::times(simd, normal, slope));
                *g = T::times(simd, factor, q);
            }
            let sums = of_weight_rest.iter_mut().zip(of_bias_rest.iter_mut());
            for (((x, g), w), (of_w, of_b)) in x_rest.iter().zip(g_rest).zip(weight_rest).zip(sums)
            {
                let normal = (*x - mean) * scale;
                *of_w += *g * normal;
                *of_b += *g;
                *g = scale * (*w * *g - plain - normal * tilted);
            }
        }
    }
}
