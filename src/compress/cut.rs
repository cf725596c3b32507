//! One type for all methods that balance first and cut then.

use hankelite_control::{
    Balanced, ControlError, DcBalanced, DiagonalSystem, HankelValues, HorizonBalanced, Realisation,
    Reduced, SlowParts, WeightedBalanced, balance, balance_for_dc, balance_over_horizon,
    hankel_values, in_parallel, part_slow_modes,
};
use num_complex::Complex64;

use crate::compress::Method;

/// A balanced channel, to be cut at any order.
pub(super) struct Cutter {
    /// Of the whole channel, or of all but its slow modes.
    form: Form,
    slow: Option<SlowModes>,
}

/// Balanced by one of the methods.
pub(super) enum Form {
    Truncate(Balanced),
    Residualise(DcBalanced),
    Horizon(HorizonBalanced),
    Weighted(WeightedBalanced),
    HankelNorm(Balanced, DiagonalSystem),
}

/// Modes so slow that the others are balanced without them: see [`part_slow_modes`].
struct SlowModes {
    parts: SlowParts,
    /// Of the whole channel.
    hankel: HankelValues,
    /// The slow modes themselves, for orders below their number.
    balanced: Balanced,
}

/// The least decay per second that slow modes are balanced with: of a slower one the Gramian's square
/// would be no number, and no sequence is long enough to show the difference.
const DECAY_MIN: f64 = 1e-100;

/// Slow modes balanced by themselves.
pub(super) fn balance_slow(
    slow: &DiagonalSystem,
    realisation: Realisation,
) -> Result<Balanced, ControlError> {
    let exponents = slow.exponents().iter();
    let bounded = exponents.map(|z| Complex64::new(z.re.min(-DECAY_MIN), z.im));
    let bounded = DiagonalSystem::new(
        slow.time(),
        bounded.collect(),
        slow.input().clone(),
        slow.output().clone(),
        slow.feedthrough().clone(),
    )?;
    balance(bounded.stable()?, realisation)
}

/// Hankel values of a system over so many steps, which growing modes have too.
pub(super) fn horizon_values(
    system: &DiagonalSystem,
    length: usize,
) -> Result<HankelValues, ControlError> {
    let horizon = length.div_ceil(2).max(1);
    let balanced = balance_over_horizon(system, horizon, Realisation::Real)?;
    Ok(balanced.hankel().clone())
}

impl SlowModes {
    fn of(system: &DiagonalSystem, realisation: Realisation) -> Result<Option<Self>, ControlError> {
        let Some(parts) = part_slow_modes(system.stable()?) else {
            return Ok(None);
        };
        let balanced = balance_slow(&parts.slow, realisation)?;
        let rest = hankel_values(parts.rest.stable()?, realisation)?;
        Ok(Some(Self {
            hankel: balanced.hankel().joined(&rest),
            balanced,
            parts,
        }))
    }

    fn states(&self) -> usize {
        self.balanced.hankel().values().len()
    }
}

impl Cutter {
    /// Balances as the method needs; methods that balance nothing get plain balancing.
    pub(super) fn new(
        system: &DiagonalSystem,
        method: Method,
        realisation: Realisation,
        horizon: usize,
    ) -> Result<Self, ControlError> {
        if method == Method::Horizon {
            let form = Form::Horizon(balance_over_horizon(system, horizon, realisation)?);
            return Ok(form.into());
        }
        let slow = SlowModes::of(system, realisation)?;
        let rest = slow.as_ref().map_or(system, |slow| &slow.parts.rest);
        let stable = rest.stable()?;
        let form = match method {
            Method::Residualised => Form::Residualise(balance_for_dc(stable, realisation)?),
            Method::HankelNorm => Form::HankelNorm(balance(stable, realisation)?, rest.clone()),
            _ => Form::Truncate(balance(stable, realisation)?),
        };
        Ok(Self { form, slow })
    }

    /// The values of the whole channel.
    pub(super) fn hankel(&self) -> &HankelValues {
        match &self.slow {
            Some(slow) => &slow.hankel,
            None => self.form.hankel(),
        }
    }

    /// States that stand above rounding.
    pub(super) fn rank(&self) -> usize {
        let slow = self.slow.as_ref().map_or(0, SlowModes::states);
        slow + self.form.hankel().numerical_rank()
    }

    /// The channel, and a system that [`Cutter::fit`] gave for it, both without the slow modes that
    /// they share: what a method changes further, and what norms of the difference are taken of.
    pub(super) fn apart(
        &self,
        full: &DiagonalSystem,
        reduced: &DiagonalSystem,
    ) -> (DiagonalSystem, DiagonalSystem) {
        let parts = self.slow.as_ref().map(|slow| &slow.parts);
        let apart = parts.and_then(|parts| Some((parts.rest.clone(), parts.split(reduced)?.0)));
        apart.unwrap_or_else(|| (full.clone(), reduced.clone()))
    }

    /// The same with the slow modes again.
    pub(super) fn whole(&self, reduced: DiagonalSystem) -> Result<DiagonalSystem, ControlError> {
        match &self.slow {
            Some(slow) => slow.parts.with(&reduced),
            None => Ok(reduced),
        }
    }

    /// The largest balanced order whose diagonal form is stable and fits into `slots` stored
    /// states: a pair takes one, and a real pole takes one too.
    pub(super) fn fit(&self, requested: usize, slots: usize) -> Result<Reduced, ControlError> {
        let Some(slow) = &self.slow else {
            return self.form.fit(requested, slots);
        };
        let (modes, states) = (slow.parts.slow.order(), slow.states());
        if let (Some(slots), Some(requested)) =
            (slots.checked_sub(modes), requested.checked_sub(states))
        {
            let mut reduced = self.form.fit(requested, slots)?;
            reduced.system = slow.parts.with(&reduced.system)?;
            reduced.order += states;
            return Ok(reduced);
        }
        let mut reduced = slow.balanced.truncate_within(requested, slots)?;
        let none = self.form.fit(0, 0)?;
        reduced.system = in_parallel(&none.system, &reduced.system)?;
        reduced.error_bound += none.error_bound;
        Ok(reduced)
    }
}

impl From<Form> for Cutter {
    fn from(form: Form) -> Self {
        Self { form, slow: None }
    }
}

impl Form {
    fn hankel(&self) -> &HankelValues {
        match self {
            Form::Truncate(balanced) => balanced.hankel(),
            Form::Residualise(balanced) => balanced.hankel(),
            Form::Horizon(balanced) => balanced.hankel(),
            Form::Weighted(balanced) => balanced.hankel(),
            Form::HankelNorm(balanced, _) => balanced.hankel(),
        }
    }

    /// The cut at an order; over a horizon it has no error bound.
    fn cut(&self, states: usize) -> Result<Reduced, ControlError> {
        match self {
            Form::Truncate(balanced) => balanced.truncate(states),
            Form::Residualise(balanced) => balanced.residualise(states),
            Form::Weighted(balanced) => balanced.truncate(states),
            Form::HankelNorm(balanced, full) => balanced.hankel_norm(full.stable()?, states),
            Form::Horizon(balanced) => Ok(balanced.truncate(states)?.into()),
        }
    }

    fn fit(&self, requested: usize, slots: usize) -> Result<Reduced, ControlError> {
        match self {
            Form::Truncate(balanced) => return balanced.truncate_within(requested, slots),
            Form::Weighted(balanced) => return balanced.truncate_within(requested, slots),
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
