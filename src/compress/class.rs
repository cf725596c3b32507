//! Reducing a channel whose file can hold systems of one class only.

use hankelite_control::{
    ControlError, DiagonalSystem, HankelValues, InClass, Realisation, SystemClass, h2_in_class,
};

use crate::compress::candidate::Candidate;
use crate::compress::cut::{Cutter, horizon_values};
use crate::compress::distance::{kernel_distance, response_error};
use crate::compress::{ChannelRecord, Method, Plan, Rule};

/// The channel within the class of the least H2 error, and beside it the error of balanced truncation to
/// as many stored modes, which no class restricts. Modes that do not decay are reduced over the plan's
/// number of steps, where it allows that.
///
/// # Errors
/// As [`h2_in_class`].
pub(super) fn within_class(
    system: &DiagonalSystem,
    plan: &Plan,
    class: SystemClass,
    channel: usize,
) -> Result<(DiagonalSystem, ChannelRecord), ControlError> {
    if plan.unstable() && !system.is_stable() {
        return over_horizon(system, plan, class, channel);
    }
    let full = system.stable()?;
    let cutter = Cutter::new(system, Method::Balanced, Realisation::Real, 0)?;
    let order = order(plan, class, system.order(), || Ok(cutter.hankel().clone()))?;
    if let Some(whole) = Candidate::within(system, order) {
        return whole.measured(system, channel, plan.kernel_length());
    }
    let found = h2_in_class(system, class, order, None)?;
    let free = cutter.fit(2 * order, order)?.system;
    let candidate = Candidate {
        error_bound: found.error_bound,
        free_h2_error: Some(response_error(full, free.stable()?)?),
        notes: note(plan, &found).into_iter().collect(),
        ..Candidate::whole(&found.system, None)
    };
    candidate.measured(system, channel, plan.kernel_length())
}

/// Stored modes: as many as the rule requires, and whole units of the class.
fn order(
    plan: &Plan,
    class: SystemClass,
    most: usize,
    values: impl Fn() -> Result<HankelValues, ControlError>,
) -> Result<usize, ControlError> {
    let modes = class.modes();
    let states = match plan.rule() {
        Rule::Order(order) => return Ok((order / modes).max(1) * modes),
        Rule::Energy(share) => values()?.order_for_energy(share),
        Rule::Tolerance(tolerance) => values()?.order_for_tolerance(tolerance),
    };
    Ok((states.div_ceil(2).div_ceil(modes).max(1) * modes).min(most))
}

/// What a person should know of an order that is not the requested one.
fn note(plan: &Plan, found: &InClass) -> Option<String> {
    match plan.rule() {
        Rule::Order(order) if order != found.system.order() => Some(format!(
            "{} of {order} stored states are used: an oscillator takes two",
            found.system.order()
        )),
        _ => None,
    }
}

fn over_horizon(
    system: &DiagonalSystem,
    plan: &Plan,
    class: SystemClass,
    channel: usize,
) -> Result<(DiagonalSystem, ChannelRecord), ControlError> {
    let length = plan.kernel_length();
    let values = || horizon_values(system, length);
    let order = order(plan, class, system.order(), values)?;
    let whole = order >= system.order();
    let mut notes = Vec::new();
    let reduced = if whole {
        system.clone()
    } else {
        let found = h2_in_class(system, class, order, Some(length))?;
        notes.extend(note(plan, &found));
        found.system
    };
    let (kernel_error, kernel_norm) = kernel_distance(system, &reduced, length)?;
    let growing = [system, &reduced].map(|system| system.unstable_modes().len());
    notes.push(format!(
        "{} modes did not decay before, {} do not now: reduced over L steps",
        growing[0], growing[1]
    ));
    let record = ChannelRecord {
        kernel_error,
        kernel_norm,
        notes,
        ..ChannelRecord::over_horizon(channel, system.order(), reduced.order())
    };
    Ok((reduced, record))
}
