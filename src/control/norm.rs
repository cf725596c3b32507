//! H2 norms of what a system lets be heard.

use nalgebra::DMatrix;
use nalgebra::DVector;

use crate::control::ControlError;
use crate::control::real_gramian_factors;
use crate::control::realisation::real_modes;
use crate::control::realisation::real_output;
use crate::ssm::DiagonalSystem;
use crate::ssm::StableSystem;

/// The H2 norm of the real output, which is the ℓ2 (L2) norm of the kernel Re(C A^l B).
/// The feedthrough is left out.
///
/// ```text
/// ‖G‖₂² = c W_c cᵀ = ‖F_cᵀ cᵀ‖²   (real realisation)
/// ```
///
/// The norm of the factor times c is taken, not the root of the quadratic form: so an error
/// norm is right down to about 1e-16 of the systems' own size, not 1e-8. Cost O(n²).
///
/// # Errors
/// [`ControlError::System`] unless the system has one input and one output.
pub fn h2_norm(system: StableSystem<'_>) -> Result<f64, ControlError> {
    let modes = real_modes(system.system())?;
    let factors = real_gramian_factors(system)?;
    let output = DVector::from_vec(real_output(&modes));
    // Scaled first: the squares of very small or large weights leave the range of doubles.
    let scale = output.amax().max(f64::MIN_POSITIVE);
    Ok((factors.controllability.transpose() * (output / scale)).norm() * scale)
}

/// The H2 norm of the difference of two stable systems on the same time base: the ℓ2 distance of
/// their infinite kernels, feedthrough left out.
///
/// # Errors
/// [`ControlError::DifferentTime`]; [`ControlError::System`] as [`h2_norm`].
pub fn h2_error(full: StableSystem<'_>, reduced: StableSystem<'_>) -> Result<f64, ControlError> {
    let difference = difference(full, reduced, DMatrix::zeros(1, 1))?;
    h2_norm(difference.stable()?)
}

/// The system full − reduced, with the modes of both and the given feedthrough.
pub(super) fn difference(
    full: StableSystem<'_>,
    reduced: StableSystem<'_>,
    feedthrough: DMatrix<f64>,
) -> Result<DiagonalSystem, ControlError> {
    let (full, reduced) = (full.system(), reduced.system());
    if full.time() != reduced.time() {
        return Err(ControlError::DifferentTime);
    }
    full.require_siso()?;
    reduced.require_siso()?;
    let exponents = [full.exponents(), reduced.exponents()].concat();
    let inputs: Vec<_> = full
        .input()
        .iter()
        .chain(reduced.input())
        .copied()
        .collect();
    let minus = reduced.output().iter().map(|c| -c);
    let outputs: Vec<_> = full.output().iter().copied().chain(minus).collect();
    Ok(DiagonalSystem::new(
        full.time(),
        exponents,
        DMatrix::from_column_slice(inputs.len(), 1, &inputs),
        DMatrix::from_row_slice(1, outputs.len(), &outputs),
        feedthrough,
    )?)
}
