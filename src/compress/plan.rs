//! What to do to a model, checked.

use hankelite_control::Realisation;
use serde::{Deserialize, Serialize};

use crate::model::Model;

/// How much of a channel is kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Rule {
    /// This many stored states in every channel, 1 to N.
    Order(usize),
    /// The smallest order that keeps this share of Σ σ_j², above 0 and at most 1.
    Energy(f64),
    /// The smallest order whose error bound 2 Σ_{j>q} σ_j is at most this times σ₁, at least 0.
    Tolerance(f64),
}

/// How a channel is made smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// Balanced truncation: new poles and residues.
    Balanced,
    /// Balanced residualisation: as truncation, but the gain at rest stays, and the feedthrough D
    /// changes.
    Residualised,
    /// The modes with the largest |residue|/(1 − |a|) stay as they are; the others go.
    ModalHinf,
    /// The modes with the largest |residue|/√(1 − |a|²) stay as they are; the others go.
    ModalH2,
    /// Balanced truncation, then poles and residues are moved to a minimum of the H2 error.
    H2Optimal,
    /// Truncation balanced over the first `kernel_length` steps instead of all time.
    Horizon,
    /// The least Hankel norm of the error: new poles and residues.
    HankelNorm,
}

/// In which time base the channels are balanced or scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeBase {
    /// As the network runs: what lies beyond the Nyquist frequency costs no states.
    Discrete,
    /// Before discretisation, as in the paper.
    Continuous,
}

/// Which realisation is balanced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RealisationChoice {
    /// The conjugate-closed system whose real output the network uses.
    Real,
    /// The complex modes as stored, as in the paper.
    Complex,
    /// Both, keeping for each channel the one with the smaller exact H2 error.
    Auto,
}

impl RealisationChoice {
    pub(super) fn candidates(self) -> &'static [Realisation] {
        match self {
            RealisationChoice::Real => &[Realisation::Real],
            RealisationChoice::Complex => &[Realisation::Complex],
            RealisationChoice::Auto => &[Realisation::Real, Realisation::Complex],
        }
    }
}

/// Checked settings of a reduction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    rule: Rule,
    /// How states are chosen. Default: balanced truncation.
    pub method: Method,
    /// The time base. Default: discrete.
    pub time: TimeBase,
    /// The realisation. Default: real. Modal truncation knows no realisation.
    pub realisation: RealisationChoice,
    /// Steps over which the kernel error is measured; also the horizon of [`Method::Horizon`] and
    /// of unstable channels. Default: 1024.
    pub kernel_length: usize,
    /// Whether channels with modes that do not decay are reduced over `kernel_length` steps
    /// instead of refused. Default: no.
    pub unstable: bool,
    /// Whether all channels of a layer get the same poles, where they have the same before: the
    /// error is larger, but the public DSS, and layers of state-spaces/s4 with `n_ssm` below the
    /// number of channels, load the result with nothing changed but N. Only
    /// [`Method::Balanced`] knows it. Default: no.
    pub share_poles: bool,
}

/// Why settings make no sense.
#[derive(Debug, Clone, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum PlanError {
    /// An order of zero, or above what every layer has.
    #[error("the order is {requested}, expected {}", order_range(*most))]
    Order {
        /// The order requested.
        requested: usize,
        /// The largest order of any layer.
        most: usize,
    },
    /// A share of energy outside (0, 1].
    #[error("the energy is {found}, expected a share above 0 and at most 1")]
    Energy {
        /// The number found.
        found: f64,
    },
    /// A tolerance that is negative or not a number.
    #[error("the tolerance is {found}, expected a number of at least 0")]
    Tolerance {
        /// The number found.
        found: f64,
    },
    /// Rules that read Hankel singular values, with a method that has none.
    #[error("modal truncation takes an order, not an energy or a tolerance")]
    ModalNeedsOrder,
    /// Shared poles by a method that reduces every channel alone.
    #[error("shared poles come from balanced truncation: --method balanced, without --unstable")]
    SharedNeedsBalanced,
    /// Balancing over a horizon before discretisation.
    #[error("the method horizon counts steps: it takes discrete time, not continuous time")]
    HorizonNeedsSteps,
}

impl Plan {
    /// A plan with the default method, time base and realisation.
    ///
    /// # Errors
    /// [`PlanError`] for a rule whose number is out of range.
    pub fn new(rule: Rule) -> Result<Self, PlanError> {
        match rule {
            Rule::Order(0) => {
                return Err(PlanError::Order {
                    requested: 0,
                    most: 0,
                });
            }
            Rule::Energy(found) if !(found > 0.0 && found <= 1.0) => {
                return Err(PlanError::Energy { found });
            }
            Rule::Tolerance(found) if !(found >= 0.0 && found.is_finite()) => {
                return Err(PlanError::Tolerance { found });
            }
            _ => {}
        }
        Ok(Self {
            rule,
            method: Method::Balanced,
            time: TimeBase::Discrete,
            realisation: RealisationChoice::Real,
            kernel_length: 1024,
            unstable: false,
            share_poles: false,
        })
    }

    /// How much is kept.
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// Whether the plan suits a model: an order that some layer has.
    ///
    /// # Errors
    /// [`PlanError::Order`], [`PlanError::ModalNeedsOrder`], [`PlanError::HorizonNeedsSteps`].
    pub fn check(&self, model: &Model) -> Result<(), PlanError> {
        let most = model
            .blocks()
            .iter()
            .map(|block| block.order())
            .max()
            .unwrap_or(0);
        let modal = matches!(self.method, Method::ModalHinf | Method::ModalH2);
        match self.rule {
            Rule::Order(requested) if requested > most => Err(PlanError::Order { requested, most }),
            Rule::Energy(_) | Rule::Tolerance(_) if modal => Err(PlanError::ModalNeedsOrder),
            _ if self.share_poles && (self.method != Method::Balanced || self.unstable) => {
                Err(PlanError::SharedNeedsBalanced)
            }
            _ if self.method == Method::Horizon && self.time == TimeBase::Continuous => {
                Err(PlanError::HorizonNeedsSteps)
            }
            _ => Ok(()),
        }
    }
}

fn order_range(most: usize) -> String {
    if most == 0 {
        return "at least 1".to_string();
    }
    format!("1 to {most} (the stored states of each channel)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_named() {
        let zero = Plan::new(Rule::Order(0)).unwrap_err();
        assert_eq!(zero.to_string(), "the order is 0, expected at least 1");
        for found in [0.0, -0.5, 1.5] {
            assert_eq!(
                Plan::new(Rule::Energy(found)),
                Err(PlanError::Energy { found })
            );
        }
        assert!(matches!(
            Plan::new(Rule::Energy(f64::NAN)),
            Err(PlanError::Energy { .. })
        ));
        let found = f64::INFINITY;
        assert_eq!(
            Plan::new(Rule::Tolerance(found)),
            Err(PlanError::Tolerance { found })
        );
    }
}
