//! How poles and weights are trained, and the gain that each form gives a mode.

use hankelite_control::{dss_exp_gain, dss_softmax_gain, zoh_gain};
use num_complex::Complex64;

/// How poles and weights are trained.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Parameterisation {
    /// Decaying poles; C.
    S4d,
    /// Decaying poles; W of DSS-exp.
    DssExp,
    /// Any poles; W of DSS-softmax for the network's length.
    DssSoftmax,
}

/// A parameterisation with the L of DSS-softmax and of the sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ModeForm {
    pub(super) kind: Parameterisation,
    pub(super) length: usize,
    /// Whether the rates of poles are scaled.
    pub(super) scaled: bool,
}

impl ModeForm {
    /// The residue of a mode whose weight is one.
    pub(super) fn gain(self, lambda: Complex64, step: f64) -> Complex64 {
        let z = lambda * step;
        match self.kind {
            Parameterisation::S4d => 2.0 * zoh_gain(lambda, step),
            Parameterisation::DssExp => dss_exp_gain(lambda, z),
            Parameterisation::DssSoftmax => dss_softmax_gain(lambda, z, self.length),
        }
    }
}
