//! The settings of a calibrated reduction, checked.

use hankelite_control::Refinement;
use serde::{Deserialize, Serialize};

use crate::calibrate::CalibrateError;
use crate::compress::Allocation;
use crate::model::Model;

/// How small a model becomes.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum TargetSize {
    /// This many stored states for each channel, in the mean.
    Order(usize),
    /// This share of all stored states, above 0 and at most 1.
    Budget(f64),
    /// The fewest states with which the output error of all channels together, relative to their
    /// output, is at most this: (Σ_h E_h(error)/Σ_h E_h(output))^{1/2}.
    Error(f64),
}

/// How much the output error of a channel counts when states are shared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Importance {
    /// All the others are tried, then factors 2 and 1/2 on single layers; the allocation that
    /// changes the logits of the calibration sequences least is taken. Equal without sequences.
    Auto,
    /// An output error counts the same everywhere.
    Equal,
    /// By the root of [`Importance::Gradient`].
    Root,
    /// By the sensitivity of the logits to it, [`crate::advanced::importance`].
    Gradient,
}

/// Which metric stands for the input.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum WeightChoice {
    /// Moments where the sequences are at hand and their moments take 4 GiB at most, else the spectrum.
    Auto,
    /// Exact second moments of the sequences.
    Moments,
    /// The spectrum of a stationary input with the same autocorrelation.
    Spectrum,
}

/// Settings of a calibrated reduction.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Settings {
    /// How small.
    pub size: TargetSize,
    /// How states are shared. Default: one order for the model where an order is given, else one
    /// for each layer, as a checkpoint stores them.
    pub allocation: Allocation,
    /// What counts when they are shared. Default: auto.
    pub importance: Importance,
    /// What is refined after truncation. Default: everything.
    pub refinement: Refinement,
    /// Whether each layer is reduced again for its input in the reduced network, where that brings
    /// the logits nearer. Default: no.
    pub sequential: bool,
    /// Whether all channels together are fitted to the logits of the calibration sequences in the
    /// end, see [`crate::calibrate::LogitFit`]. Needs sequences and pooled logits, and is left out
    /// without them, and for [`TargetSize::Error`], whose promise it would not keep. Default: yes.
    pub fit_logits: bool,
    /// Steps over which the kernel error is measured. Default: those of the calibration.
    pub kernel_length: Option<usize>,
}

impl Settings {
    /// Default settings for a size.
    pub fn new(size: TargetSize) -> Self {
        Self {
            size,
            allocation: match size {
                TargetSize::Order(_) => Allocation::Model,
                _ => Allocation::Layer,
            },
            importance: Importance::Auto,
            refinement: Refinement::Full,
            sequential: false,
            fit_logits: true,
            kernel_length: None,
        }
    }

    /// Refuses what has no meaning where channels share modes, or layers run in both directions: all
    /// layers keep the same share there, and follow one another as they are reduced.
    ///
    /// # Errors
    /// [`CalibrateError::Ignored`] with the first such setting.
    pub(super) fn require_for_shared(&self) -> Result<(), CalibrateError> {
        let usual = Self::new(self.size);
        let ignored = [
            ("allocation", self.allocation != usual.allocation),
            ("importance", self.importance != usual.importance),
            ("sequential", self.sequential),
        ];
        match ignored.into_iter().find(|(_, set)| *set) {
            Some((setting, _)) => Err(CalibrateError::Other(format!(
                "the setting `{setting}` is for causal layers with one system for each channel; here \
                 channels share modes (S5, LRU), or layers run in both directions: leave it out"
            ))),
            None => Ok(()),
        }
    }

    /// The states that may be kept in all: one for each channel at least.
    ///
    /// # Errors
    /// [`CalibrateError::Setting`] for numbers out of range.
    pub(super) fn budget(&self, model: &Model) -> Result<usize, CalibrateError> {
        let systems = model.blocks().iter().flat_map(|block| block.systems());
        let orders: Vec<usize> = systems.map(|system| system.order()).collect();
        let most = orders.iter().copied().max().unwrap_or(0);
        let all: usize = orders.iter().sum();
        let wrong = |what, found: f64, expected: String| {
            Err(CalibrateError::setting(what, found, expected))
        };
        match self.size {
            TargetSize::Order(order) if order == 0 || order > most => {
                let range = format!("1 to {most} (the stored states of each channel)");
                wrong("the order", order as f64, range)
            }
            TargetSize::Order(order) => Ok(order * orders.len()),
            TargetSize::Budget(share) if !(share > 0.0 && share <= 1.0) => {
                let range = "a share above 0 and at most 1".to_string();
                wrong("the budget", share, range)
            }
            TargetSize::Budget(share) => {
                let budget = (share * all as f64 * (1.0 + 4.0 * f64::EPSILON)) as usize;
                if budget < orders.len() {
                    let least = orders.len() as f64 / all.max(1) as f64;
                    let range = format!("at least {least:.4}: one state for each channel");
                    return wrong("the budget", share, range);
                }
                Ok(budget)
            }
            TargetSize::Error(error) if !(error >= 0.0 && error.is_finite()) => {
                let range = "a number of at least 0".to_string();
                wrong("the largest error", error, range)
            }
            TargetSize::Error(_) => Ok(all),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_shared_modes_ignore_are_refused_by_name() {
        let size = TargetSize::Budget(0.5);
        assert!(Settings::new(size).require_for_shared().is_ok());
        let mut changed = [(); 3].map(|()| Settings::new(size));
        changed[0].allocation = Allocation::Channel;
        changed[1].importance = Importance::Equal;
        changed[2].sequential = true;
        let names = ["`allocation`", "`importance`", "`sequential`"];
        for (settings, name) in changed.iter().zip(names) {
            let error = settings.require_for_shared().unwrap_err().to_string();
            assert!(error.contains(name), "{error}");
        }
    }
}
