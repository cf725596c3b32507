//! What was done to each layer and channel.

use hankelite_control::Realisation;
use serde::Serialize;

/// What was done to one channel.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct ChannelRecord {
    /// Index of the channel.
    pub index: usize,
    /// Stored states before.
    pub(crate) order_before: usize,
    /// Stored states now; the layer may store more, with zero residue.
    pub order: usize,
    /// Real states of the balanced system that were kept (complex states for the complex
    /// realisation). Absent when nothing was balanced.
    pub(crate) states: Option<usize>,
    /// Which realisation was balanced. Absent when nothing was balanced.
    pub(crate) realisation: Option<Realisation>,
    /// Σ of the discarded Hankel singular values, in the time base that was balanced. Absent
    /// when nothing was balanced.
    pub(crate) discarded: Option<f64>,
    /// Jacobi rotations that the Hankel values took after an ordinary SVD; 0 for a mild spectrum.
    /// Absent when nothing was balanced.
    pub(crate) rotations: Option<usize>,
    /// A bound on the H∞ norm of the error, in the same time base: twice the sum of the distinct
    /// discarded values, or the sum of the removed modes' peak gains, or (H2-optimal, horizon) a
    /// certified upper bound of the norm itself. Infinite (null in JSON) where modes do not decay.
    pub error_bound: f64,
    /// ‖k − k_r‖₂ over the infinite horizon, discrete time; a change of the feedthrough counts
    /// into k\[0\]. Infinite (null in JSON) where modes do not decay.
    pub h2_error: f64,
    /// ‖k‖₂ over the infinite horizon, discrete time; infinite as `h2_error`.
    pub h2_norm: f64,
    /// ‖k − k_r‖₂ over the first L steps.
    pub kernel_error: f64,
    /// ‖k‖₂ over the first L steps.
    pub kernel_norm: f64,
    /// What was added to the feedthrough D. Absent when D stays as it is.
    pub feedthrough_change: Option<f64>,
    /// κ₂ of the eigenvectors that made the reduced system diagonal; 1 when nothing was balanced.
    pub(crate) condition: f64,
    /// What the layout costs: ‖k − k_r‖₂ of balanced truncation to as many stored modes, whatever the file
    /// can hold. Absent unless the method keeps to that ([`Method::RealPoles`](crate::compress::Method),
    /// [`Method::InLayout`](crate::compress::Method)).
    pub(crate) free_h2_error: Option<f64>,
    /// What calibration measured. Absent without calibration.
    pub weighted: Option<WeightedRecord>,
    /// What a person should know: a lower order than requested, a tie, a channel kept whole.
    pub notes: Vec<String>,
}

impl ChannelRecord {
    /// Of a channel with modes that do not decay; only its first samples have an error.
    pub(super) fn over_horizon(index: usize, order_before: usize, order: usize) -> Self {
        Self {
            index,
            order_before,
            order,
            states: None,
            realisation: None,
            discarded: None,
            rotations: None,
            error_bound: f64::INFINITY,
            h2_error: f64::INFINITY,
            h2_norm: f64::INFINITY,
            kernel_error: 0.0,
            kernel_norm: 0.0,
            feedthrough_change: None,
            condition: 1.0,
            free_h2_error: None,
            weighted: None,
            notes: Vec::new(),
        }
    }
}

/// Root mean squares of a channel's output and of its error, for its input.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct WeightedRecord {
    /// Of the output itself.
    pub norm: f64,
    /// Of the error of truncation balanced for white noise, at the same order.
    pub(crate) unweighted: f64,
    /// Of the error of the truncation that was taken.
    pub truncated: f64,
    /// After the residues and the feedthrough were fitted again; `truncated` when they were not.
    pub refitted: f64,
    /// After the poles were refined too; `refitted` when they were not.
    pub error: f64,
    /// What the layout costs: of the error of balanced truncation for the input with residues fitted
    /// again, to as many stored modes, whatever the file can hold. Absent where the file can hold all.
    pub(crate) free: Option<f64>,
    /// Of the error of the result, where it was fitted to the logits afterwards.
    pub(crate) fitted: Option<f64>,
    /// Steps in which the poles were refined.
    pub(crate) steps: usize,
    /// Whether the truncation balanced for white noise was taken, having the smaller error.
    pub(crate) white_noise: bool,
}

impl WeightedRecord {
    /// Of the error of the result.
    pub fn last(&self) -> f64 {
        self.fitted.unwrap_or(self.error)
    }

    /// Of what was fitted for white noise.
    pub(crate) fn of_white_noise(norm: f64, error: f64) -> Self {
        Self {
            unweighted: error,
            truncated: error,
            refitted: error,
            error,
            white_noise: true,
            ..Self::identity(norm)
        }
    }

    /// Of a channel that stays as it is, or whose output is zero.
    pub(crate) fn identity(norm: f64) -> Self {
        Self {
            norm,
            unweighted: 0.0,
            truncated: 0.0,
            refitted: 0.0,
            error: 0.0,
            free: None,
            fitted: None,
            steps: 0,
            white_noise: false,
        }
    }
}

/// What was done to one layer.
#[derive(Debug, Clone, Serialize)]
#[non_exhaustive]
pub struct LayerRecord {
    /// The layer's name.
    pub name: String,
    /// Stored states of each channel before.
    pub order_before: usize,
    /// Stored states of each channel now: the largest of any channel, and one at least.
    pub order: usize,
    /// Σ of the discarded Hankel singular values of all channels. Absent when none was balanced.
    pub discarded: Option<f64>,
    /// The largest error bound of any channel.
    pub error_bound: f64,
    /// (Σ_h ‖k_h − k_{r,h}‖² / Σ_h ‖k_h‖²)^{1/2} over the infinite horizon.
    pub relative_h2_error: f64,
    /// The same of balanced truncation, where the method keeps to what the layout can hold.
    pub free_relative_h2_error: Option<f64>,
    /// The same over the first L steps.
    pub relative_kernel_error: f64,
    /// (Σ_h E_h(error) / Σ_h E_h(output))^{1/2} for the layer's input. Absent without calibration.
    pub relative_weighted_error: Option<f64>,
    /// The same of balanced truncation, where the channels keep to what the layout can hold.
    pub free_relative_weighted_error: Option<f64>,
    /// The largest condition of any channel.
    pub condition: f64,
    /// The channels.
    pub channels: Vec<ChannelRecord>,
}

impl LayerRecord {
    pub(super) fn new(name: String, order_before: usize, channels: Vec<ChannelRecord>) -> Self {
        let largest = |get: fn(&ChannelRecord) -> f64| channels.iter().map(get).fold(0.0, f64::max);
        let relative = |error: fn(&ChannelRecord) -> f64, norm: fn(&ChannelRecord) -> f64| {
            let error: f64 = channels.iter().map(|c| error(c).powi(2)).sum();
            let norm: f64 = channels.iter().map(|c| norm(c).powi(2)).sum();
            ratio(error.sqrt(), norm.sqrt())
        };
        let weighted = |error: fn(&WeightedRecord) -> f64| {
            let own = channels.iter().filter_map(|c| c.weighted.as_ref());
            let sums = own.fold(None, |sums: Option<(f64, f64)>, w| {
                let (square, norm) = sums.unwrap_or_default();
                Some((square + error(w).powi(2), norm + w.norm.powi(2)))
            });
            sums.map(|(square, norm)| ratio(square.sqrt(), norm.sqrt()))
        };
        let mut held = channels.iter().filter_map(|c| c.weighted.as_ref());
        let held = held.any(|w| w.free.is_some());
        let real = channels.iter().any(|c| c.free_h2_error.is_some());
        let free = |c: &ChannelRecord| c.free_h2_error.unwrap_or(c.h2_error);
        let discarded: Vec<f64> = channels.iter().filter_map(|c| c.discarded).collect();
        Self {
            name,
            order_before,
            order: channels.iter().map(|c| c.order).max().unwrap_or(0).max(1),
            discarded: (!discarded.is_empty()).then(|| discarded.iter().sum()),
            error_bound: largest(|c| c.error_bound),
            relative_h2_error: relative(|c| c.h2_error, |c| c.h2_norm),
            free_relative_h2_error: real.then(|| relative(free, |c| c.h2_norm)),
            relative_kernel_error: relative(|c| c.kernel_error, |c| c.kernel_norm),
            relative_weighted_error: weighted(WeightedRecord::last),
            free_relative_weighted_error: weighted(|w| w.free.unwrap_or(w.last())).filter(|_| held),
            condition: largest(|c| c.condition),
            channels,
        }
    }
}

impl LayerRecord {
    /// As `relative_weighted_error`, before the refinement; 0 without calibration.
    pub fn relative_truncation_error(&self) -> f64 {
        let weighted = self.channels.iter().filter_map(|c| c.weighted.as_ref());
        let (error, norm) = weighted.fold((0.0, 0.0), |(error, norm), w| {
            (error + w.truncated.powi(2), norm + w.norm.powi(2))
        });
        ratio(f64::sqrt(error), f64::sqrt(norm))
    }
}

/// error / norm; 0 where both are, infinite when the norms do not exist.
fn ratio(error: f64, norm: f64) -> f64 {
    if error == 0.0 || error == f64::INFINITY {
        return error;
    }
    error / norm
}
