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
#[error("{0}")]
pub struct PlanError(String);

/// The error of settings that make no sense.
fn wrong<T>(what: impl Into<String>) -> Result<T, PlanError> {
    Err(PlanError(what.into()))
}

impl Plan {
    /// A plan with the default method, time base and realisation.
    ///
    /// # Errors
    /// [`PlanError`] for a rule whose number is out of range.
    pub fn new(rule: Rule) -> Result<Self, PlanError> {
        match rule {
            Rule::Order(0) => {
                return wrong("the order is 0, expected at least 1");
            }
            Rule::Energy(found) if !(found > 0.0 && found <= 1.0) => {
                let expected = "a share above 0 and at most 1";
                return wrong(format!("the energy is {found}, expected {expected}"));
            }
            Rule::Tolerance(found) if !(found >= 0.0 && found.is_finite()) => {
                let expected = "a number of at least 0";
                return wrong(format!("the tolerance is {found}, expected {expected}"));
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
    /// [`PlanError`] for a method that takes discrete time only.
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
    /// [`PlanError`] for a method that the setting excludes.
    pub fn with_unstable(self, unstable: bool) -> Result<Self, PlanError> {
        Self { unstable, ..self }.consistent()
    }

    /// The same plan, where all channels of a layer get the same poles, if they have the same
    /// before: the error is larger, but the public DSS, and layers of state-spaces/s4 with `n_ssm`
    /// below the number of channels, load the result with nothing changed but N. Only
    /// [`Method::Balanced`] can do it. Default: no.
    ///
    /// # Errors
    /// [`PlanError`] for a method that the setting excludes.
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
            return wrong("modal truncation takes an order, not an energy or a tolerance");
        }
        if self.share_poles && (self.method != Method::Balanced || self.unstable) {
            return wrong(
                "shared poles come from balanced truncation: --method balanced, without --unstable",
            );
        }
        let counts = match self.method {
            _ if self.time == TimeBase::Discrete => return Ok(self),
            Method::Horizon => {
                "the method horizon counts steps: it takes discrete time, not continuous time"
            }
            Method::RealPoles => {
                "the method real-poles fits the poles that the file holds: it takes discrete time, \
                 not continuous time"
            }
            Method::InLayout => {
                "the method in-layout fits the systems that the file holds: it takes discrete time"
            }
            _ => return Ok(self),
        };
        wrong(counts)
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
    /// [`PlanError`] for an order that no layer has, and for a class of systems where there is none.
    pub fn check(&self, model: &Model) -> Result<(), PlanError> {
        let mut blocks = model.blocks().iter();
        if self.method == Method::InLayout && blocks.all(|block| block.class().is_none()) {
            return wrong(
                "the method in-layout is for files that cannot hold all systems; this one holds all, \
                 expected another method, such as h2-optimal",
            );
        }
        let orders = model.blocks().iter().map(|block| block.order());
        let most = orders.max().unwrap_or(0);
        match self.rule {
            Rule::Order(requested) if requested > most => wrong(format!(
                "the order is {requested}, expected 1 to {most} (the stored states of each channel)"
            )),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_named() {
        let zero = Plan::new(Rule::Order(0)).unwrap_err();
        assert_eq!(zero.to_string(), "the order is 0, expected at least 1");
        for found in [0.0, -0.5, 1.5, f64::NAN] {
            let error = Plan::new(Rule::Energy(found)).unwrap_err().to_string();
            let expected = "expected a share above 0 and at most 1";
            assert_eq!(error, format!("the energy is {found}, {expected}"));
        }
        let error = Plan::new(Rule::Tolerance(f64::INFINITY)).unwrap_err();
        let expected = "the tolerance is inf, expected a number of at least 0";
        assert_eq!(error.to_string(), expected);
    }
}
