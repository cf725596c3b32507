//! The metric in which a channel is refined: its input, and a little of what comes after.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::control::{ControlError, InputWeight};
use crate::ssm::{DiagonalSystem, SystemError};

/// −Re z of every pole stays below this: one step leaves 1e-7 of it.
pub(super) const DECAY_MAX: f64 = 16.0;

/// Steps between two exact powers.
const POWER_BLOCK: usize = 64;

/// What white noise of the input's power counts, in amplitude, behind the weight's last step.
const TAIL_WEIGHT: f64 = 0.01;

/// Steps behind the last one at which the tail is looked at, and where e^{−16} of it is left.
const TAIL: (usize, f64) = (96, 16.0);

/// The last step that is looked at, however slow the poles.
const TAIL_MAX: f64 = 1e9;

/// √E(k + D e₀ − k_r − D_r e₀): the root mean square of the output error under the weight.
///
/// # Errors
/// [`ControlError::System`] as [`DiagonalSystem::kernel`].
pub fn weighted_error(
    full: &DiagonalSystem,
    reduced: &DiagonalSystem,
    weight: &InputWeight,
) -> Result<f64, ControlError> {
    let mut error = response(full, weight.length())?;
    for (e, r) in error.iter_mut().zip(response(reduced, weight.length())?) {
        *e -= r;
    }
    Ok(weight.norm(&error))
}

/// The weighted norm √E(k + D e₀) of a system's own response.
///
/// # Errors
/// As [`weighted_error`].
pub fn weighted_norm(system: &DiagonalSystem, weight: &InputWeight) -> Result<f64, ControlError> {
    Ok(weight.norm(&response(system, weight.length())?))
}

/// The impulse response with the feedthrough in its first value.
fn response(system: &DiagonalSystem, length: usize) -> Result<Vec<f64>, SystemError> {
    let siso = system.as_siso()?;
    let mut kernel = siso.kernel(length)?;
    if let Some(first) = kernel.first_mut() {
        *first += siso.feedthrough();
    }
    Ok(kernel)
}

/// The weight of an input with, behind its last step, white noise of the same power times
/// [`TAIL_WEIGHT`]: what the calibration did not show must not ring on after it.
pub(super) struct Metric<'a> {
    pub(super) weight: &'a InputWeight,
    /// The least −Re z of the full channel.
    pub(super) slowest: f64,
    /// Steps behind the last one, with the weight of each.
    tail: Vec<(usize, f64)>,
}

impl<'a> Metric<'a> {
    pub(super) fn new(full: &DiagonalSystem, weight: &'a InputWeight) -> Self {
        let slowest = slowest(full);
        let tail = tail(weight, slowest);
        Self {
            weight,
            slowest,
            tail,
        }
    }

    /// k + D e₀ at every step and at each one behind.
    pub(super) fn response(&self, system: &DiagonalSystem) -> Result<DMatrix<f64>, SystemError> {
        let mut signal = response(system, self.weight.length())?;
        let exponents = system.scaled_exponents();
        let modes: Vec<_> = exponents
            .into_iter()
            .zip(system.as_siso()?.residues())
            .collect();
        signal.extend(self.tail.iter().map(|&(l, _)| {
            let terms = modes.iter().map(|(z, w)| (w * (z * l as f64).exp()).re);
            terms.sum::<f64>()
        }));
        Ok(DMatrix::from_vec(signal.len(), 1, signal))
    }

    /// The rows of signals, one value for each step and for each one behind, whose sum of squares
    /// is the error.
    pub(super) fn image(&self, signals: &DMatrix<f64>) -> DMatrix<f64> {
        let length = self.weight.length();
        let within = self.weight.image(&signals.rows(0, length).into_owned());
        let rows = within.nrows();
        let mut image = within.resize_vertically(rows + self.tail.len(), 0.0);
        for (k, (_, weight)) in self.tail.iter().enumerate() {
            image.set_row(rows + k, &(signals.row(length + k) * *weight));
        }
        image
    }

    /// e^{zl} at every step and at each one behind, with l.
    pub(super) fn powers(&self, z: Complex64) -> impl Iterator<Item = (usize, Complex64)> + '_ {
        let within = powers(z, self.weight.length()).into_iter().enumerate();
        let behind = self
            .tail
            .iter()
            .map(move |&(l, _)| (l, (z * l as f64).exp()));
        within.chain(behind)
    }

    /// Two columns for each mode, Re e^{zl} and −Im e^{zl}, and one for the feedthrough.
    pub(super) fn basis(&self, nodes: &[Complex64]) -> DMatrix<f64> {
        let mut signals = DMatrix::zeros(self.rows(), 2 * nodes.len() + 1);
        for (n, &z) in nodes.iter().enumerate() {
            for (row, (_, power)) in self.powers(z).enumerate() {
                signals[(row, 2 * n)] = power.re;
                signals[(row, 2 * n + 1)] = -power.im;
            }
        }
        signals[(0, 2 * nodes.len())] = 1.0;
        signals
    }

    pub(super) fn rows(&self) -> usize {
        self.weight.length() + self.tail.len()
    }
}

/// Steps behind the last one up to where the slowest pole has died down, ever farther apart, each
/// with the weight that makes their sum of squares one over all steps.
fn tail(weight: &InputWeight, slowest: f64) -> Vec<(usize, f64)> {
    let (points, reach) = TAIL;
    let length = weight.length() as f64;
    let mut first = vec![0.0; weight.length()];
    first[0] = TAIL_WEIGHT;
    let power = weight.norm(&first);
    let growth = ((reach / slowest).min(TAIL_MAX) / length).powf(1.0 / points as f64);
    let start = |k: usize| (length * growth.powi(k as i32)).floor();
    let steps = (0..points).map(|k| (start(k) as usize, start(k + 1) - start(k)));
    let steps = steps.filter(|(_, gap)| *gap > 0.0);
    steps.map(|(l, gap)| (l, power * gap.sqrt())).collect()
}

/// The least −Re z of a channel with stable poles.
pub(super) fn slowest(system: &DiagonalSystem) -> f64 {
    let decays = system.scaled_exponents().into_iter().map(|z| -z.re);
    decays.fold(DECAY_MAX, f64::min).max(f64::MIN_POSITIVE)
}

/// e^{zl} for l < length.
pub(super) fn powers(z: Complex64, length: usize) -> Vec<Complex64> {
    let pole = z.exp();
    let mut powers = Vec::with_capacity(length);
    let mut power = Complex64::ONE;
    for l in 0..length {
        power = match l % POWER_BLOCK {
            0 => (z * l as f64).exp(),
            _ => power * pole,
        };
        powers.push(power);
    }
    powers
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_do_not_drift() {
        let z = Complex64::new(-1e-4, 2.9);
        for (l, power) in powers(z, 3000).into_iter().enumerate() {
            // The angle itself is rounded.
            let error = (power - (z * l as f64).exp()).norm();
            assert!(error < 1e-15 * (64.0 + 3.0 * l as f64), "{l}: {error:e}");
        }
    }
}
