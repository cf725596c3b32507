//! The generalisation measure of a layer.

use hankelite_control::{DiagonalSystem, SystemError};
use nalgebra::DMatrix;
use rayon::prelude::*;

use crate::progress::in_order;

/// Why a measure cannot be formed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[error("{0}")]
pub struct MeasureError(String);

/// The error of statistics that are none, or of another layer.
fn wrong<T>(what: impl std::fmt::Display) -> Result<T, MeasureError> {
    Err(MeasureError(format!("the statistics {what}")))
}

/// Mean and standard deviation of the input of a layer, step by step, each L × H, over sequences.
#[derive(Debug, Clone, PartialEq)]
pub struct StepStatistics {
    mean: DMatrix<f64>,
    deviation: DMatrix<f64>,
    sequences: usize,
}

impl StepStatistics {
    /// From mean and standard deviation, each L × H, and the number of sequences behind them. The
    /// papers leave open which variance is meant; here it is the one without correction, 1/n.
    ///
    /// # Errors
    /// [`MeasureError`] for different shapes, and for numbers that are not finite or
    /// deviations below zero.
    pub fn new(
        mean: DMatrix<f64>,
        deviation: DMatrix<f64>,
        sequences: usize,
    ) -> Result<Self, MeasureError> {
        if mean.shape() != deviation.shape() {
            return wrong("have different shapes");
        }
        let finite = mean.iter().all(|value| value.is_finite());
        let spread = |value: &f64| *value >= 0.0 && value.is_finite();
        if !finite || !deviation.iter().all(spread) {
            return wrong("hold numbers that are not finite, or deviations below zero");
        }
        Ok(Self {
            mean,
            deviation,
            sequences,
        })
    }

    /// Of the sequences of one layer: for each channel sequences × L.
    ///
    /// # Errors
    /// As [`StepStatistics::new`]; [`MeasureError`] for no sequences.
    pub fn of(inputs: &[DMatrix<f64>]) -> Result<Self, MeasureError> {
        let Some(first) = inputs.first().filter(|first| first.nrows() > 0) else {
            return wrong("are of no sequences");
        };
        let (sequences, length) = first.shape();
        let mut mean = DMatrix::zeros(length, inputs.len());
        let mut deviation = DMatrix::zeros(length, inputs.len());
        for (h, values) in inputs.iter().enumerate() {
            for (t, column) in values.column_iter().enumerate() {
                let centre = column.mean();
                let squares = column.iter().map(|value| (value - centre).powi(2));
                mean[(t, h)] = centre;
                deviation[(t, h)] = (squares.sum::<f64>() / sequences as f64).sqrt();
            }
        }
        Self::new(mean, deviation, sequences)
    }

    /// The means, L × H.
    pub fn mean(&self) -> &DMatrix<f64> {
        &self.mean
    }

    /// The standard deviations, L × H.
    pub fn deviation(&self) -> &DMatrix<f64> {
        &self.deviation
    }
}

/// Partial sums of [`parts`].
const SUMS: usize = 8;

/// The two parts of ψ, Σ |k_i| s_{L−1−i} and Σ k_i m_{L−1−i}, of a channel from its kernel and the mean
/// and standard deviation of its input, all of one length L (of longer ones the first samples of the
/// kernel and the last steps count). Cost O(L).
fn parts(kernel: &[f64], mean: &[f64], deviation: &[f64]) -> (f64, f64) {
    let length = kernel.len().min(mean.len()).min(deviation.len());
    let (mean, deviation) = (
        &mean[mean.len() - length..],
        &deviation[deviation.len() - length..],
    );
    // Sums that do not wait for each other.
    let (mut spread, mut drift) = ([0.0; SUMS], [0.0; SUMS]);
    let steps = mean.rchunks(SUMS).zip(deviation.rchunks(SUMS));
    for (kernel, (mean, deviation)) in kernel[..length].chunks(SUMS).zip(steps) {
        let steps = mean.iter().rev().zip(deviation.iter().rev());
        let sums = spread.iter_mut().zip(&mut drift);
        for ((k, (m, s)), (spread, drift)) in kernel.iter().zip(steps).zip(sums) {
            *spread += k.abs() * s;
            *drift += k * m;
        }
    }
    (spread.iter().sum(), drift.iter().sum())
}

/// ψ of a channel.
#[derive(Debug, Clone, PartialEq)]
pub struct PsiGradient {
    /// Its value.
    pub psi: f64,
    /// Its derivative by each sample of the kernel.
    pub gradient: Vec<f64>,
}

/// ψ of a channel and its gradient by the kernel, sign(k_i) s_{L−1−i} + sign(d) m_{L−1−i} with
/// d = Σ k_i m_{L−1−i}; the sign of zero is zero. Kernel, mean and standard deviation of the input are
/// of one length L; of longer ones the first samples of the kernel and the last steps count. Cost O(L).
pub fn psi_gradient(kernel: &[f64], mean: &[f64], deviation: &[f64]) -> PsiGradient {
    let (spread, drift) = parts(kernel, mean, deviation);
    let tilt = sign(drift);
    let steps = mean.iter().rev().zip(deviation.iter().rev());
    let slopes = kernel.iter().zip(steps);
    let slopes = slopes.map(|(&k, (m, s))| sign(k) * s + tilt * m);
    PsiGradient {
        psi: spread + drift.abs(),
        gradient: slopes.collect(),
    }
}

fn sign(value: f64) -> f64 {
    if value == 0.0 { 0.0 } else { value.signum() }
}

/// The generalisation measure τ of a state space layer, from its kernels and the mean and standard
/// deviation of its input at each step.
///
/// ```text
/// ψ = Σ_i |k_i| s_{L−1−i} + |Σ_i k_i m_{L−1−i}|      for one channel, i = 0..L−1
/// τ = mean over the channels of ψ²
/// ```
///
/// k is the whole kernel, with the feedthrough D in k_0. The measure looks at the last step. With
/// n training sequences the gap between risk and empirical risk of a single layer with bounded
/// labels is at most (ψ + 1)² times O(log^{3/2}(L n/δ)/√n), with probability 1 − δ; reported is
/// τ/√n.
///
/// # References
/// Liu and Li, *From generalization analysis to optimization designs for state space models*,
/// Theorem 1, Algorithms 1 and 2. There the sums are the last entries of two convolutions, of which
/// only these are needed.
#[derive(Debug, Clone, PartialEq, serde::Serialize)]
#[non_exhaustive]
pub struct LayerMeasure {
    /// ψ of each channel.
    pub psi: Vec<f64>,
    /// The mean of ψ².
    pub tau: f64,
    /// Sequences behind the statistics.
    pub sequences: usize,
}

impl LayerMeasure {
    /// τ/√n for n sequences, those of the statistics.
    pub fn per_root(&self) -> f64 {
        self.tau / (self.sequences as f64).sqrt()
    }
}

/// The measure of a layer from the systems of its channels. Channels run in parallel. Cost
/// O(N L) for each channel. Of a bidirectional layer these are the forward systems: at the last
/// step nothing comes from later ones.
///
/// # Errors
/// [`MeasureError`] for statistics of other channels, and for a kernel that cannot be formed.
pub fn layer_measure(
    systems: &[DiagonalSystem],
    statistics: &StepStatistics,
) -> Result<LayerMeasure, MeasureError> {
    let (length, found) = statistics.mean.shape();
    if found != systems.len() || found == 0 {
        let expected = systems.len();
        return wrong(format!("are of {found} channels, the layer has {expected}"));
    }
    let channel = |(h, system): (usize, &DiagonalSystem)| {
        let fault = |fault: SystemError| MeasureError(format!("channel {h}: {fault}"));
        let mut kernel = system.kernel(length).map_err(fault)?;
        if let Some(first) = kernel.first_mut() {
            *first += system.feedthrough()[(0, 0)];
        }
        let column = |matrix: &DMatrix<f64>| matrix.column(h).iter().copied().collect::<Vec<_>>();
        let (mean, deviation) = (column(&statistics.mean), column(&statistics.deviation));
        let (spread, drift) = parts(&kernel, &mean, &deviation);
        Ok(spread + drift.abs())
    };
    let psi = in_order(systems.par_iter().enumerate().map(channel))?;
    let tau = psi.iter().map(|psi| psi * psi).sum::<f64>() / psi.len() as f64;
    Ok(LayerMeasure {
        psi,
        tau,
        sequences: statistics.sequences,
    })
}
