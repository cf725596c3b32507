//! How poles and weights are trained, and the gain that each form gives a mode.

use hankelite_control::{expm1, zoh_gain};
use num_complex::Complex64;

/// What the public code of DSS adds to, or clamps, squared moduli with.
pub(super) const EPSILON: f64 = 1e-7;

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

/// A parameterisation with the L of DSS-softmax.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ModeForm {
    pub(super) kind: Parameterisation,
    pub(super) length: usize,
}

impl ModeForm {
    /// The residue of a mode whose weight is one.
    pub(super) fn gain(self, lambda: Complex64, step: f64) -> Complex64 {
        let z = lambda * step;
        match self.kind {
            Parameterisation::S4d => 2.0 * zoh_gain(lambda, step),
            Parameterisation::DssExp => expm1(z) * lambda.conj() / lambda.norm_sqr().max(EPSILON),
            Parameterisation::DssSoftmax => {
                let growing = lambda.re > 0.0;
                let decaying = if growing { -z } else { z };
                let x = expm1(decaying * self.length as f64) * lambda;
                let shift = if growing {
                    (-z * (self.length - 1) as f64).exp()
                } else {
                    Complex64::ONE
                };
                expm1(decaying) * x.conj() / (x.norm_sqr() + EPSILON) * shift
            }
        }
    }
}
