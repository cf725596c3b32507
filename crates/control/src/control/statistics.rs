//! What is known of the inputs of a layer's channels: means and autocorrelations.

use nalgebra::DMatrix;

use crate::control::InputWeight;

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
        InputWeight::of_lags(self.autocorrelation.column(channel).as_slice())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_no_signal_has_are_named() {
        let lags = |values: &[f64]| DMatrix::from_column_slice(values.len(), 1, values);
        let make = |mean: f64, values: &[f64]| InputStatistics::new(vec![mean], lags(values), 3);
        let made = make(0.5, &[1.0, -0.9, 0.2]).unwrap();
        assert_eq!((made.length(), made.mean()), (3, &[0.5][..]));
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
