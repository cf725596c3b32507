//! Reducing a channel whose file can hold some systems only.

use hankelite_control::{
    ControlError, DiagonalSystem, HankelValues, Realisation, StableSystem, SystemClass,
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
    let full = system.stable()?;
    let cutter = Cutter::new(system, Method::Balanced, Realisation::Real, 0)?;
    let order = order(plan, class, system.order(), cutter.hankel());
    if let Some(whole) = Candidate::within(system, order) {
        return whole.measured(system, channel, plan.kernel_length());
    }
    let mut made = nearest(full, class, order)?;
    made.notes.extend(note(plan, &made.system));
    // The file need not be able to hold it.
    let free = cutter.fit(2 * order, order)?.system;
    made.free_h2_error = Some(response_error(full, free.stable()?)?);
    made.measured(system, channel, plan.kernel_length())
}

/// The system of a class of the least H2 error with at most so many stored modes.
///
/// # Errors
/// As [`h2_in_class`] and [`h2_real_poles`].
pub(super) fn nearest(
    full: StableSystem<'_>,
    class: SystemClass,
    order: usize,
) -> Result<Candidate, ControlError> {
    let (system, error_bound) = match class {
        SystemClass::RealPoles => nearest_real(full, order)?,
        _ => {
            let found = h2_in_class(full.system(), class, whole_units(class, order), None)?;
            (found.system, found.error_bound)
        }
    };
    Ok(Candidate {
        error_bound,
        ..Candidate::whole(&system, None)
    })
}

/// With positive real poles, and a bound on the H∞ norm of the error. Modes that hardly decay stay as they
/// are.
fn nearest_real(
    full: StableSystem<'_>,
    order: usize,
) -> Result<(DiagonalSystem, f64), ControlError> {
    let parts = part_slow_modes(full).filter(|parts| parts.slow.order() < order);
    let Some(parts) = parts else {
        return real_poles(full, order);
    };
    let count = order - parts.slow.order();
    let (rest, bound) = real_poles(parts.rest.stable()?, count)?;
    Ok((parts.with(&rest)?, bound))
}

/// The system, and an upper bound on the H∞ norm of its error.
fn real_poles(full: StableSystem<'_>, order: usize) -> Result<(DiagonalSystem, f64), ControlError> {
    let made = h2_real_poles(full, order)?.system;
    let bound = hinf_error(full, made.stable()?, Realisation::Real)?.upper;
    Ok((made, bound))
}

/// Stored modes: as many as the rule requires, and whole units of the class.
fn order(plan: &Plan, class: SystemClass, most: usize, values: &HankelValues) -> usize {
    let states = match plan.rule() {
        Rule::Order(order) => return whole_units(class, order),
        Rule::Energy(share) => values.order_for_energy(share),
        Rule::Tolerance(tolerance) => values.order_for_tolerance(tolerance),
    };
    let stored = match class {
        SystemClass::RealPoles => states,
        _ => states.div_ceil(2),
    };
    let modes = class.modes();
    (stored.div_ceil(modes).max(1) * modes).min(most)
}

/// As many stored modes of these as make whole units of a class, one at least.
pub(crate) fn whole_units(class: SystemClass, order: usize) -> usize {
    (order / class.modes()).max(1) * class.modes()
}

/// What a person should know of an order that is not the requested one.
fn note(plan: &Plan, found: &DiagonalSystem) -> Option<String> {
    match plan.rule() {
        Rule::Order(order) => note_of_units(order, found.order()),
        _ => None,
    }
}

/// The same for an order and what is used of it.
pub(crate) fn note_of_units(order: usize, used: usize) -> Option<String> {
    (order != used)
        .then(|| format!("{used} of {order} stored states are used: an oscillator takes two"))
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
        notes.extend(note(plan, &found.system));
        found.system
    };
    let record = record_over_horizon([system, &reduced], channel, length)?;
    notes.extend(record.notes);
    Ok((reduced, ChannelRecord { notes, ..record }))
}

/// What is recorded of a system and the one in its place where modes do not decay.
pub(super) fn record_over_horizon(
    systems: [&DiagonalSystem; 2],
    channel: usize,
    length: usize,
) -> Result<ChannelRecord, ControlError> {
    let [full, reduced] = systems;
    let kernel = kernel_distance(full, reduced, length)?;
    let growing = systems.map(|system| system.unstable_modes().len());
    Ok(ChannelRecord {
        kernel_error: kernel.error,
        kernel_norm: kernel.norm,
        notes: vec![format!(
            "{} modes did not decay before, {} do not now: reduced over L steps",
            growing[0], growing[1]
        )],
        ..ChannelRecord::over_horizon(channel, full.order(), reduced.order())
    })
}
