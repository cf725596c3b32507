//! The settings of a reduction, checked.

use hankelite_control::{DiagonalSystem, Realisation, SystemError, Time};
use serde::{Deserialize, Serialize};

use crate::model::Model;

/// How much of a channel is kept.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
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
#[non_exhaustive]
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
    /// Positive real poles at a minimum of the H2 error, for layouts that hold no others (Evo 2, MEGA).
    RealPoles,
    /// What the layout can hold, at a minimum of the H2 error: for layouts with a class of their own
    /// ([`Checkpoint::system_class`](crate::checkpoint::Checkpoint::system_class)).
    InLayout,
}

/// In which time base the channels are balanced or scored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TimeBase {
    /// As the network runs: what lies beyond the Nyquist frequency costs no states.
    Discrete,
    /// Before discretisation, as in the paper: the input is held from sample to sample.
    Continuous,
    /// Before discretisation, each sample an impulse, as for events at any times.
    Impulses,
}

impl TimeBase {
    /// A discrete system in this time base.
    pub(super) fn of(self, system: &DiagonalSystem) -> Result<DiagonalSystem, SystemError> {
        match self {
            TimeBase::Discrete => Ok(system.clone()),
            TimeBase::Continuous => system.undo_zoh(),
            TimeBase::Impulses => system.undo_impulses(),
        }
    }

    /// A system of this time base with the step of a discrete one.
    pub(super) fn sampled(
        self,
        system: DiagonalSystem,
        as_of: &DiagonalSystem,
    ) -> Result<DiagonalSystem, SystemError> {
        match (self, as_of.time()) {
            (TimeBase::Continuous, Time::Discrete { step }) => system.zoh(step),
            (TimeBase::Impulses, Time::Discrete { step }) => system.impulses(step),
            _ => Ok(system),
        }
    }

    /// The name.
    pub fn name(self) -> &'static str {
        match self {
            TimeBase::Discrete => "discrete",
            TimeBase::Continuous => "continuous",
            TimeBase::Impulses => "impulses",
        }
    }
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
///
/// ```
/// use hankelite::{Plan, Rule, compress::Method};
///
/// let plan = Plan::new(Rule::Order(8))?.with_method(Method::H2Optimal)?;
/// assert!(Plan::new(Rule::Energy(0.99))?.with_method(Method::ModalH2).is_err());
/// # assert_eq!(plan.kernel_length(), 1024);
/// # Ok::<(), hankelite::compress::PlanError>(())
/// ```
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Plan {
    rule: Rule,
    method: Method,
    time: TimeBase,
    realisation: RealisationChoice,
    kernel_length: usize,
    unstable: bool,
    share_poles: bool,
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
    /// Real poles before discretisation.
    #[error(
        "the method real-poles fits the poles that the file holds: it takes discrete time, not \
         continuous time"
    )]
    RealPolesNeedSteps,
    /// A class of systems before discretisation.
    #[error("the method in-layout fits the systems that the file holds: it takes discrete time")]
    InLayoutNeedsSteps,
    /// A class of systems where the file can hold all.
    #[error(
        "the method in-layout is for files that cannot hold all systems; this one holds all, expected \
         another method, such as h2-optimal"
    )]
    NoClass,
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

    /// The same plan with another method. Default: balanced truncation.
    ///
    /// # Errors
    /// [`PlanError`] for a method that the other settings exclude.
    pub fn with_method(self, method: Method) -> Result<Self, PlanError> {
        Self { method, ..self }.consistent()
    }

    /// The same plan in another time base. Default: discrete.
    ///
    /// # Errors
    /// [`PlanError::HorizonNeedsSteps`]; [`PlanError::RealPolesNeedSteps`].
    pub fn with_time(self, time: TimeBase) -> Result<Self, PlanError> {
        Self { time, ..self }.consistent()
    }

    /// The same plan with another realisation. Default: real. Modal truncation uses none.
    #[must_use]
    pub fn with_realisation(self, realisation: RealisationChoice) -> Self {
        Self {
            realisation,
            ..self
        }
    }

    /// The same plan with another number of steps over which the kernel error is measured; also the
    /// horizon of [`Method::Horizon`] and of unstable channels. Default: 1024.
    #[must_use]
    pub fn with_kernel_length(self, kernel_length: usize) -> Self {
        Self {
            kernel_length,
            ..self
        }
    }

    /// The same plan, where channels with modes that do not decay are reduced over
    /// [`Plan::kernel_length`] steps instead of refused. Default: no.
    ///
    /// # Errors
    /// [`PlanError::SharedNeedsBalanced`].
    pub fn with_unstable(self, unstable: bool) -> Result<Self, PlanError> {
        Self { unstable, ..self }.consistent()
    }

    /// The same plan, where all channels of a layer get the same poles, if they have the same
    /// before: the error is larger, but the public DSS, and layers of state-spaces/s4 with `n_ssm`
    /// below the number of channels, load the result with nothing changed but N. Only
    /// [`Method::Balanced`] can do it. Default: no.
    ///
    /// # Errors
    /// [`PlanError::SharedNeedsBalanced`].
    pub fn with_shared_poles(self, share_poles: bool) -> Result<Self, PlanError> {
        Self {
            share_poles,
            ..self
        }
        .consistent()
    }

    /// The same plan with another rule, which is in range.
    pub(super) fn with_rule(self, rule: Rule) -> Self {
        Self { rule, ..self }
    }

    /// Whether the settings go together.
    fn consistent(self) -> Result<Self, PlanError> {
        let modal = matches!(self.method, Method::ModalHinf | Method::ModalH2);
        if modal && !matches!(self.rule, Rule::Order(_)) {
            return Err(PlanError::ModalNeedsOrder);
        }
        if self.share_poles && (self.method != Method::Balanced || self.unstable) {
            return Err(PlanError::SharedNeedsBalanced);
        }
        if self.method == Method::Horizon && self.time != TimeBase::Discrete {
            return Err(PlanError::HorizonNeedsSteps);
        }
        if self.method == Method::RealPoles && self.time != TimeBase::Discrete {
            return Err(PlanError::RealPolesNeedSteps);
        }
        if self.method == Method::InLayout && self.time != TimeBase::Discrete {
            return Err(PlanError::InLayoutNeedsSteps);
        }
        Ok(self)
    }

    /// How much is kept.
    pub fn rule(&self) -> Rule {
        self.rule
    }

    /// How a channel is reduced.
    pub fn method(&self) -> Method {
        self.method
    }

    /// The time base that is balanced.
    pub fn time(&self) -> TimeBase {
        self.time
    }

    /// The realisation that is balanced.
    pub fn realisation(&self) -> RealisationChoice {
        self.realisation
    }

    /// Steps over which the kernel error is measured.
    pub fn kernel_length(&self) -> usize {
        self.kernel_length
    }

    /// Whether channels with modes that do not decay are reduced too.
    pub fn unstable(&self) -> bool {
        self.unstable
    }

    /// Whether all channels of a layer get the same poles.
    pub(crate) fn share_poles(&self) -> bool {
        self.share_poles
    }

    /// Whether the plan suits a model.
    ///
    /// # Errors
    /// [`PlanError::Order`] for an order that no layer has; [`PlanError::NoClass`].
    pub fn check(&self, model: &Model) -> Result<(), PlanError> {
        let mut blocks = model.blocks().iter();
        if self.method == Method::InLayout && blocks.all(|block| block.class().is_none()) {
            return Err(PlanError::NoClass);
        }
        let orders = model.blocks().iter().map(|block| block.order());
        let most = orders.max().unwrap_or(0);
        match self.rule {
            Rule::Order(requested) if requested > most => Err(PlanError::Order { requested, most }),
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
