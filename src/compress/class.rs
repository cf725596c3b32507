//! Reducing a channel whose file can hold some systems only.

use hankelite_control::{
    ControlError, DiagonalSystem, HankelValues, InClass, Realisation, StableSystem, SystemClass,
    h2_in_class, h2_real_poles, hinf_error, part_slow_modes,
};

use crate::compress::candidate::Candidate;
use crate::compress::cut::{Cutter, horizon_values};
use crate::compress::distance::{kernel_distance, response_error};
use crate::compress::{ChannelRecord, Method, Plan, Rule};

/// The channel within the class of the least H2 error. Modes that do not decay are reduced over the plan's
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
    let order = |values: &HankelValues| order(plan, class, system.order(), values);
    let candidate = beside_free(system, order, |full, order| {
        let found = h2_in_class(full.system(), class, order, None)?;
        Ok(Candidate {
            error_bound: found.error_bound,
            notes: note(plan, &found).into_iter().collect(),
            ..Candidate::whole(&found.system, None)
        })
    })?;
    candidate.measured(system, channel, plan.kernel_length())
}

/// The channel with positive real poles of the least H2 error. Modes that hardly decay stay as they are.
///
/// # Errors
/// As [`h2_real_poles`].
pub(super) fn with_real_poles(
    system: &DiagonalSystem,
    plan: &Plan,
) -> Result<Candidate, ControlError> {
    let order = |values: &HankelValues| match plan.rule() {
        Rule::Order(order) => order,
        Rule::Energy(share) => values.order_for_energy(share).max(1),
        Rule::Tolerance(tolerance) => values.order_for_tolerance(tolerance).max(1),
    };
    beside_free(system, order, |full, order| {
        let parts = part_slow_modes(full).filter(|parts| parts.slow.order() < order);
        let (made, error_bound) = match parts {
            None => real_poles(full, order)?,
            Some(parts) => {
                let count = order - parts.slow.order();
                let (rest, bound) = real_poles(parts.rest.stable()?, count)?;
                (parts.with(&rest)?, bound)
            }
        };
        Ok(Candidate {
            error_bound,
            ..Candidate::whole(&made, None)
        })
    })
}

/// The system, and an upper bound on the H∞ norm of its error.
fn real_poles(full: StableSystem<'_>, order: usize) -> Result<(DiagonalSystem, f64), ControlError> {
    let made = h2_real_poles(full, order)?.system;
    let bound = hinf_error(full, made.stable()?, Realisation::Real)?.upper;
    Ok((made, bound))
}

/// What is made at an order, and beside it the error of balanced truncation to as many stored modes, which
/// the file need not be able to hold.
fn beside_free(
    system: &DiagonalSystem,
    order: impl Fn(&HankelValues) -> usize,
    made: impl Fn(StableSystem<'_>, usize) -> Result<Candidate, ControlError>,
) -> Result<Candidate, ControlError> {
    let full = system.stable()?;
    let cutter = Cutter::new(system, Method::Balanced, Realisation::Real, 0)?;
    let order = order(cutter.hankel());
    if let Some(whole) = Candidate::within(system, order) {
        return Ok(whole);
    }
    let free = cutter.fit(2 * order, order)?.system;
    Ok(Candidate {
        free_h2_error: Some(response_error(full, free.stable()?)?),
        ..made(full, order)?
    })
}

/// Stored modes: as many as the rule requires, and whole units of the class.
fn order(plan: &Plan, class: SystemClass, most: usize, values: &HankelValues) -> usize {
    let states = match plan.rule() {
        Rule::Order(order) => return whole_units(class, order),
        Rule::Energy(share) => values.order_for_energy(share),
        Rule::Tolerance(tolerance) => values.order_for_tolerance(tolerance),
    };
    let modes = class.modes();
    (states.div_ceil(2).div_ceil(modes).max(1) * modes).min(most)
}

fn whole_units(class: SystemClass, order: usize) -> usize {
    (order / class.modes()).max(1) * class.modes()
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
    let order = match plan.rule() {
        // Several inputs have no Hankel values over a horizon.
        Rule::Order(order) => whole_units(class, order),
        _ => order(
            plan,
            class,
            system.order(),
            &horizon_values(system, length)?,
        ),
    };
    let mut notes = Vec::new();
    let reduced = if order >= system.order() {
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
