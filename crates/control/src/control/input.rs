//! The input of a channel: its autocorrelation, and the output error that it makes of a kernel's
//! error.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::linalg::{Convolver, cholesky_root, multiply, multiply_adjoint};

/// Added to R(0), relative to it: white noise at this level, so that no frequency is free.
const FLOOR: f64 = 1e-6;

/// Added to the diagonal of moments, relative to its mean, so that they have a Cholesky factor.
const JITTER: f64 = 1e-10;

/// A mean square below this counts as zero: what is added to it would be no normal number.
const POWER_MIN: f64 = 1e-280;

/// Input statistics of one layer, gathered from sequences of L steps.
///
/// ```text
/// R_h(m) = mean over sequences of (1/L) Σ_t u_h[t] u_h[t+m],   m = 0..L−1,  u = 0 outside
/// μ_h    = mean over sequences and steps of u_h[t]
/// ```
///
/// Every lag is divided by L, not by its number of products: only then is the spectrum a mean of
/// periodograms and never negative. The mean stays inside R: it is a constant input is input
/// too.
#[derive(Debug, Clone, PartialEq)]
pub struct InputStatistics {
    mean: Vec<f64>,
    autocorrelation: DMatrix<f64>,
    sequences: usize,
}

/// Why numbers are not statistics of an input.
#[derive(Debug, Clone, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum StatisticsError {
    /// The parts do not belong together.
    #[error("{found} means and {expected} autocorrelations, expected one of each per channel")]
    Channels {
        /// Means found.
        found: usize,
        /// Autocorrelations found.
        expected: usize,
    },
    /// No lag at all, or no sequence behind it.
    #[error("statistics of {sequences} sequences of {length} steps, expected at least one of each")]
    Empty {
        /// Sequences.
        sequences: usize,
        /// Steps.
        length: usize,
    },
    /// A NaN or an infinity.
    #[error("channel {channel}: {what} is not finite")]
    NotFinite {
        /// The channel.
        channel: usize,
        /// Which number.
        what: &'static str,
    },
    /// |R(m)| above R(0), or R(0) below μ²: no signal has that.
    #[error("channel {channel}: {what}: no signal has this autocorrelation")]
    Impossible {
        /// The channel.
        channel: usize,
        /// What is wrong.
        what: String,
    },
}

impl InputStatistics {
    /// Statistics from their parts: H means, R as L × H.
    ///
    /// # Errors
    /// [`StatisticsError`] for parts that no signals have.
    pub fn new(
        mean: Vec<f64>,
        autocorrelation: DMatrix<f64>,
        sequences: usize,
    ) -> Result<Self, StatisticsError> {
        let (length, channels) = autocorrelation.shape();
        if mean.len() != channels {
            return Err(StatisticsError::Channels {
                found: mean.len(),
                expected: channels,
            });
        }
        if length == 0 || sequences == 0 {
            return Err(StatisticsError::Empty { sequences, length });
        }
        for (channel, (&mean, lags)) in mean.iter().zip(autocorrelation.column_iter()).enumerate() {
            check_channel(channel, mean, lags.as_slice())?;
        }
        Ok(Self {
            mean,
            autocorrelation,
            sequences,
        })
    }

    /// μ_h of every channel.
    pub fn mean(&self) -> &[f64] {
        &self.mean
    }

    /// R, L × H.
    pub fn autocorrelation(&self) -> &DMatrix<f64> {
        &self.autocorrelation
    }

    /// How many sequences stand behind R.
    pub fn sequences(&self) -> usize {
        self.sequences
    }

    /// The number of channels H.
    pub fn channels(&self) -> usize {
        self.mean.len()
    }

    /// The number of steps L.
    pub fn length(&self) -> usize {
        self.autocorrelation.nrows()
    }

    /// The weight of channel h. `None` for a channel whose input is zero.
    pub fn weight(&self, channel: usize) -> Option<InputWeight> {
        let lags = self.autocorrelation.column(channel);
        (lags[0] > POWER_MIN).then(|| InputWeight::coloured(lags.as_slice()))
    }
}

fn check_channel(channel: usize, mean: f64, lags: &[f64]) -> Result<(), StatisticsError> {
    if !mean.is_finite() {
        let what = "the mean";
        return Err(StatisticsError::NotFinite { channel, what });
    }
    if !lags.iter().all(|r| r.is_finite()) {
        let what = "the autocorrelation";
        return Err(StatisticsError::NotFinite { channel, what });
    }
    let (power, slack) = (lags[0], 1e-6 * lags[0].abs());
    let impossible = |what: String| Err(StatisticsError::Impossible { channel, what });
    if let Some(lag) = (0..lags.len()).find(|&m| lags[m].abs() > power + slack) {
        return impossible(format!(
            "R({lag}) = {:e} is above R(0) = {power:e}",
            lags[lag]
        ));
    }
    if mean * mean > power + slack {
        return impossible(format!(
            "the mean {mean:e} is above the root of R(0) = {power:e}"
        ));
    }
    Ok(())
}

/// The metric that an input makes of kernel errors: the mean square of the output error.
///
/// ```text
/// spectrum:  E(d) = Σ_{i,j<L} d_i d_j R(|i−j|) = (1/2L) Σ_k S(k) |D(k)|²     on 2L frequencies
/// moments:   E(d) = dᵀ M d,   M_ij = mean over sequences of (1/L) Σ_{t<L} u[t−i] u[t−j]
/// ```
///
/// Moments give exactly the mean square of (d ∗ u) over the steps of the sequences, start-up
/// included. The spectrum gives that of a stationary input with the same autocorrelation; it
/// needs L numbers instead of L².
#[derive(Debug, Clone)]
pub struct InputWeight {
    length: usize,
    metric: Metric,
}

#[derive(Debug, Clone)]
enum Metric {
    Spectrum {
        lags: Vec<f64>,
        /// √(m_k S(k)/2L) at the frequencies πk/L, k = 0..=L; m counts both signs.
        roots: Vec<f64>,
    },
    Moments {
        /// G with Gᵀ G = M + jitter · 1, L × L.
        root: DMatrix<f64>,
        jitter: f64,
    },
}

impl InputWeight {
    /// White noise of unit power over `length` steps.
    pub fn white(length: usize) -> Self {
        let mut lags = vec![0.0; length.max(1)];
        lags[0] = 1.0;
        Self::spectrum(lags)
    }

    /// The spectrum of sequences, one in each row of `inputs` (sequences × L). `None` when
    /// they are zero.
    pub fn of_sequences(inputs: &DMatrix<f64>) -> Option<Self> {
        let (sequences, length) = inputs.shape();
        if length == 0 {
            return None;
        }
        let mut power = vec![0.0; length + 1];
        let mut padded = vec![0.0; 2 * length];
        for row in inputs.row_iter() {
            padded.fill(0.0);
            padded.iter_mut().zip(row.iter()).for_each(|(p, &u)| *p = u);
            let spectrum = Convolver::transform(&mut padded);
            power
                .iter_mut()
                .zip(&spectrum)
                .for_each(|(p, u)| *p += u.norm_sqr());
        }
        let lags = lags_of(&power, sequences);
        (lags[0] > POWER_MIN).then(|| Self::coloured(&lags))
    }

    /// From R(0..L), R(0) > 0, with a white floor of 1e-6 R(0).
    fn coloured(lags: &[f64]) -> Self {
        let mut lags = lags.to_vec();
        lags[0] *= 1.0 + FLOOR;
        Self::spectrum(lags)
    }

    fn spectrum(lags: Vec<f64>) -> Self {
        let length = lags.len();
        let root = |(k, s): (usize, f64)| {
            let multiplicity = if k == 0 || k == length { 1.0 } else { 2.0 };
            (multiplicity * s.max(0.0) / (2 * length) as f64).sqrt()
        };
        let spectrum = even_spectrum(&lags).into_iter().enumerate();
        let roots = spectrum.map(root).collect();
        Self {
            length,
            metric: Metric::Spectrum { lags, roots },
        }
    }

    /// The exact moments of sequences, one in each row of `inputs` (sequences × L). `None` when
    /// they are zero. Cost O(n L² + L³); memory O(L²).
    ///
    /// ```text
    /// M_ij = Γ_{L−1−i, L−1−j} + M_{i+1, j+1},   Γ_st = mean over sequences of u[s] u[t] / L
    /// ```
    pub fn moments(inputs: &DMatrix<f64>) -> Option<Self> {
        let (sequences, length) = inputs.shape();
        Self::of_products(&(multiply_adjoint(inputs, inputs) / (sequences * length).max(1) as f64))
    }

    /// As [`InputWeight::moments`], from the products Γ (L × L) themselves, e.g. sums that were
    /// gathered without keeping the sequences. `None` when they are zero.
    ///
    /// # Panics
    /// If Γ is not square.
    pub fn of_products(gamma: &DMatrix<f64>) -> Option<Self> {
        assert!(gamma.is_square(), "products of all pairs of steps");
        let length = gamma.nrows();
        let mut moments = DMatrix::zeros(length, length);
        for j in (0..length).rev() {
            for i in (0..length).rev() {
                let later = match i.max(j) + 1 < length {
                    true => moments[(i + 1, j + 1)],
                    false => 0.0,
                };
                moments[(i, j)] = gamma[(length - 1 - i, length - 1 - j)] + later;
            }
        }
        let scale = moments.trace() / length.max(1) as f64;
        if !(scale > POWER_MIN && scale.is_finite()) {
            return None;
        }
        let mut jitter = JITTER * scale;
        loop {
            let mut shifted = moments.clone();
            (0..length).for_each(|i| shifted[(i, i)] += jitter);
            if let Some(root) = cholesky_root(&shifted) {
                let metric = Metric::Moments { root, jitter };
                return Some(Self { length, metric });
            }
            jitter *= 10.0;
        }
    }

    /// The number of steps L.
    pub fn length(&self) -> usize {
        self.length
    }

    /// R(0), ..., R(L−1) of a weight by spectrum.
    pub(super) fn lags(&self) -> Option<&[f64]> {
        match &self.metric {
            Metric::Spectrum { lags, .. } => Some(lags),
            Metric::Moments { .. } => None,
        }
    }

    /// The images of signals (columns of at most L values): their inner products are those of the
    /// metric, but for the jitter of moments.
    pub(super) fn image(&self, signals: &DMatrix<f64>) -> DMatrix<f64> {
        match &self.metric {
            Metric::Moments { root, .. } if signals.nrows() == self.length => {
                multiply(root, signals)
            }
            Metric::Moments { root, .. } => {
                let used = root.columns(0, signals.nrows()).into_owned();
                multiply(&used, signals)
            }
            Metric::Spectrum { roots, .. } => {
                let mut images = DMatrix::zeros(2 * roots.len(), signals.ncols());
                let mut padded = vec![0.0; 2 * self.length];
                for (signal, mut image) in signals.column_iter().zip(images.column_iter_mut()) {
                    padded.fill(0.0);
                    padded[..signal.len()].copy_from_slice(signal.as_slice());
                    let spectrum = Convolver::transform(&mut padded).into_iter();
                    for (k, (d, root)) in spectrum.zip(roots).enumerate() {
                        image[2 * k] = d.re * root;
                        image[2 * k + 1] = d.im * root;
                    }
                }
                images
            }
        }
    }

    /// √E(d) of a kernel's error d, of which the first L values count.
    pub fn norm(&self, error: &[f64]) -> f64 {
        let kept = error.len().min(self.length);
        let error = DMatrix::from_column_slice(kept, 1, &error[..kept]);
        let square = self.image(&error).norm_squared();
        match self.metric {
            Metric::Spectrum { .. } => square.sqrt(),
            Metric::Moments { jitter, .. } => {
                (square - jitter * error.norm_squared()).max(0.0).sqrt()
            }
        }
    }
}

/// f(z) = Σ_m R(m) e^{zm}.
pub(super) fn generating(lags: &[f64], z: Complex64) -> Complex64 {
    let a = z.exp();
    let lags = lags.iter().rev();
    lags.fold(Complex64::ZERO, |sum, &r| sum * a + r)
}

/// The spectrum Σ_m R(|m|) cos(πkm/L), k = 0..=L, of lags that are zero from L on.
fn even_spectrum(lags: &[f64]) -> Vec<f64> {
    let length = lags.len();
    let mut even = vec![0.0; 2 * length];
    even[..length].copy_from_slice(lags);
    for m in 1..length {
        even[2 * length - m] = lags[m];
    }
    let spectrum = Convolver::transform(&mut even);
    spectrum.iter().map(|value| value.re).collect()
}

/// R(0..L) from Σ |U(k)|² on 2L frequencies (k = 0..=L) of `sequences` sequences of L steps.
pub fn lags_of(power: &[f64], sequences: usize) -> Vec<f64> {
    let length = power.len().saturating_sub(1);
    if length == 0 {
        return Vec::new();
    }
    // The inverse transform of an even real spectrum is its forward transform.
    let mut even = power.to_vec();
    even.extend(power.iter().rev().skip(1).take(length - 1));
    let transformed = Convolver::transform(&mut even);
    let scale = (2 * length * length * sequences.max(1)) as f64;
    transformed
        .iter()
        .take(length)
        .map(|value| value.re / scale)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn inputs(length: usize) -> DMatrix<f64> {
        DMatrix::from_fn(3, length, |n, t| {
            ((n + 2) as f64 * 0.61 * t as f64).sin() + 0.3
        })
    }

    #[test]
    fn the_root_of_moments_squares_to_them() {
        for length in [1, 2, 7, 30] {
            let inputs = inputs(length);
            let weight = InputWeight::moments(&inputs).unwrap();
            let Metric::Moments { root, jitter } = &weight.metric else {
                panic!("moments were requested");
            };
            let moment = |i: usize, j: usize| {
                let rows = inputs.row_iter();
                let sums = rows.map(|u| {
                    let steps = i.max(j)..length;
                    steps.map(|t| u[t - i] * u[t - j]).sum::<f64>()
                });
                sums.sum::<f64>() / inputs.len() as f64
            };
            let mut direct = DMatrix::from_fn(length, length, moment);
            let scale = direct.trace() / length as f64;
            assert!(*jitter <= 1e-9 * scale, "{length}: {jitter:e}");
            (0..length).for_each(|i| direct[(i, i)] += jitter);
            let error = (root.tr_mul(root) - &direct).norm() / direct.norm();
            assert!(error < 1e-13, "{length}: {error:e}");
        }
    }

    #[test]
    fn images_have_the_inner_products_of_the_metric() {
        let inputs = inputs(20);
        let signals = DMatrix::from_fn(20, 2, |t, j| (0.9f64 - 0.4 * j as f64).powi(t as i32));
        let weight = InputWeight::of_sequences(&inputs).unwrap();
        let lags = weight.lags().unwrap();
        let toeplitz = DMatrix::from_fn(20, 20, |i, j| lags[i.abs_diff(j)]);
        let direct = signals.transpose() * toeplitz * &signals;
        let images = weight.image(&signals);
        let error = (images.tr_mul(&images) - &direct).norm() / direct.norm();
        assert!(error < 1e-13, "{error:e}");
        // Signals shorter than the metric end in zeros.
        let short = signals.rows(0, 5).into_owned();
        let mut padded = DMatrix::zeros(20, 2);
        padded.rows_mut(0, 5).copy_from(&short);
        for weight in [InputWeight::moments(&inputs).unwrap(), weight] {
            let gap = (weight.image(&short) - weight.image(&padded)).norm();
            assert!(gap < 1e-13, "{gap:e}");
        }
    }

    #[test]
    fn white_noise_is_the_plain_norm() {
        let weight = InputWeight::white(6);
        assert!((weight.norm(&[3.0, 0.0, -4.0]) - 5.0).abs() < 1e-14);
        assert_eq!(weight.norm(&[]), 0.0);
        assert!(
            (weight.norm(&[1.0; 9]) - 6f64.sqrt()).abs() < 1e-14,
            "six steps count"
        );
    }

    #[test]
    fn numbers_that_no_signal_has_are_named() {
        let lags = |values: &[f64]| DMatrix::from_column_slice(values.len(), 1, values);
        let make = |mean: f64, values: &[f64]| InputStatistics::new(vec![mean], lags(values), 3);
        assert!(make(0.5, &[1.0, -0.9, 0.2]).is_ok());
        assert!(make(0.0, &[0.0, 0.0]).unwrap().weight(0).is_none());
        let error = |mean: f64, values: &[f64]| make(mean, values).unwrap_err();
        let nan = f64::NAN;
        assert!(matches!(
            error(nan, &[1.0]),
            StatisticsError::NotFinite {
                what: "the mean",
                ..
            }
        ));
        assert!(matches!(
            error(0.0, &[1.0, nan]),
            StatisticsError::NotFinite { .. }
        ));
        for (mean, values) in [(0.0, [1.0, 1.1]), (1.2, [1.0, 0.0]), (0.0, [-1.0, 0.0])] {
            let found = error(mean, &values);
            assert!(
                matches!(found, StatisticsError::Impossible { channel: 0, .. }),
                "{found}"
            );
        }
        let empty = StatisticsError::Empty {
            sequences: 3,
            length: 0,
        };
        assert_eq!(error(0.0, &[]), empty);
        let none = InputStatistics::new(vec![0.0], lags(&[1.0]), 0).unwrap_err();
        assert!(matches!(none, StatisticsError::Empty { sequences: 0, .. }));
        let two = InputStatistics::new(vec![0.0; 2], lags(&[1.0]), 1).unwrap_err();
        assert!(matches!(
            two,
            StatisticsError::Channels {
                found: 2,
                expected: 1
            }
        ));
    }
}
