//! One type for all methods that balance first and cut then.

use hankelite_control::{
    Balanced, ControlError, DcBalanced, DiagonalSystem, HankelValues, HorizonBalanced, Realisation,
    Reduced, WeightedBalanced, balance, balance_for_dc, balance_over_horizon,
};

use crate::compress::Method;

/// A balanced channel, to be cut at any order.
pub(super) enum Cutter {
    Truncate(Balanced),
    Residualise(DcBalanced),
    Horizon(HorizonBalanced),
    Weighted(WeightedBalanced),
    HankelNorm(Balanced, DiagonalSystem),
}

impl Cutter {
    /// Balances as the method needs; methods that balance nothing get plain balancing.
    pub(super) fn new(
        system: &DiagonalSystem,
        method: Method,
        realisation: Realisation,
        horizon: usize,
    ) -> Result<Self, ControlError> {
        let stable = system.stable()?;
        Ok(match method {
            Method::Residualised => Cutter::Residualise(balance_for_dc(stable, realisation)?),
            Method::Horizon => Cutter::Horizon(balance_over_horizon(system, horizon, realisation)?),
            Method::HankelNorm => Cutter::HankelNorm(balance(stable, realisation)?, system.clone()),
            _ => Cutter::Truncate(balance(stable, realisation)?),
        })
    }

    pub(super) fn hankel(&self) -> &HankelValues {
        match self {
            Cutter::Truncate(balanced) => balanced.hankel(),
            Cutter::Residualise(balanced) => balanced.hankel(),
            Cutter::Horizon(balanced) => balanced.hankel(),
            Cutter::Weighted(balanced) => balanced.hankel(),
            Cutter::HankelNorm(balanced, _) => balanced.hankel(),
        }
    }

    /// The cut at an order; over a horizon it has no error bound.
    fn cut(&self, states: usize) -> Result<Reduced, ControlError> {
        match self {
            Cutter::Truncate(balanced) => balanced.truncate(states),
            Cutter::Residualise(balanced) => balanced.residualise(states),
            Cutter::Weighted(balanced) => balanced.truncate(states),
            Cutter::HankelNorm(balanced, full) => balanced.hankel_norm(full.stable()?, states),
            Cutter::Horizon(balanced) => Ok(balanced.truncate(states)?.into()),
        }
    }

    /// The largest balanced order whose diagonal form is stable and fits into `slots` stored
    /// states: a pair takes one, and a real pole takes one too.
    pub(super) fn fit(&self, requested: usize, slots: usize) -> Result<Reduced, ControlError> {
        match self {
            Cutter::Truncate(balanced) => return balanced.truncate_within(requested, slots),
            Cutter::Weighted(balanced) => return balanced.truncate_within(requested, slots),
            _ => {}
        }
        let mut states = requested;
        let mut lowered = false;
        loop {
            let mut reduced = self.cut(states)?;
            let fits = reduced.system.order() <= slots;
            if fits && reduced.system.is_stable() {
                reduced.lowered |= lowered;
                return Ok(reduced);
            }
            lowered |= fits;
            states = reduced.order - 1;
        }
    }
}
