//! Reducing a channel whose file holds positive real poles only.

use hankelite_control::{
    ControlError, DiagonalSystem, Realisation, StableSystem, h2_real_poles, hinf_error,
    part_slow_modes,
};

use crate::compress::candidate::Candidate;
use crate::compress::cut::Cutter;
use crate::compress::distance::response_error;
use crate::compress::{Method, Plan, Rule};

/// The channel with positive real poles of the least H2 error, and beside it the error of balanced
/// truncation to as many stored modes, complex ones allowed. Modes that hardly decay stay as they are.
///
/// # Errors
/// As [`h2_real_poles`].
pub(super) fn with_real_poles(
    system: &DiagonalSystem,
    plan: &Plan,
) -> Result<Candidate, ControlError> {
    let horizon = plan.kernel_length();
    let cutter = Cutter::new(system, Method::Balanced, Realisation::Real, horizon)?;
    let order = match plan.rule() {
        Rule::Order(order) => order,
        Rule::Energy(share) => cutter.hankel().order_for_energy(share).max(1),
        Rule::Tolerance(tolerance) => cutter.hankel().order_for_tolerance(tolerance).max(1),
    };
    if let Some(whole) = Candidate::within(system, order) {
        return Ok(whole);
    }
    let full = system.stable()?;
    let free = cutter.fit(2 * order, order)?.system;
    let parts = part_slow_modes(full).filter(|parts| parts.slow.order() < order);
    let (made, error_bound) = match parts {
        None => fitted(full, order)?,
        Some(parts) => {
            let count = order - parts.slow.order();
            let (rest, bound) = fitted(parts.rest.stable()?, count)?;
            (parts.with(&rest)?, bound)
        }
    };
    Ok(Candidate {
        error_bound,
        free_h2_error: Some(response_error(full, free.stable()?)?),
        ..Candidate::whole(&made, None)
    })
}

/// The system, and an upper bound on the H∞ norm of its error.
fn fitted(full: StableSystem<'_>, order: usize) -> Result<(DiagonalSystem, f64), ControlError> {
    let made = h2_real_poles(full, order)?.system;
    let bound = hinf_error(full, made.stable()?, Realisation::Real)?.upper;
    Ok((made, bound))
}
