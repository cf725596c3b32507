//! Systems side by side with one output.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::control::ControlError;
use crate::ssm::DiagonalSystem;

/// The sum of two systems: the modes of both, those of the second last.
///
/// # Errors
/// [`ControlError::DifferentTime`]; [`ControlError::System`] when the numbers of inputs or outputs
/// differ.
pub fn in_parallel(
    first: &DiagonalSystem,
    second: &DiagonalSystem,
) -> Result<DiagonalSystem, ControlError> {
    if first.time() != second.time() {
        return Err(ControlError::DifferentTime);
    }
    let (inputs, outputs) = (first.input().ncols(), first.output().nrows());
    second.require_size(inputs, outputs)?;
    let (kept, order) = (first.order(), first.order() + second.order());
    let entry = |i: usize| i.checked_sub(kept);
    let input = DMatrix::from_fn(order, inputs, |i, j| match entry(i) {
        None => first.input()[(i, j)],
        Some(i) => second.input()[(i, j)],
    });
    let output = DMatrix::from_fn(outputs, order, |i, j| match entry(j) {
        None => first.output()[(i, j)],
        Some(j) => second.output()[(i, j)],
    });
    let exponents: Vec<Complex64> = [first.exponents(), second.exponents()].concat();
    let feedthrough = first.feedthrough() + second.feedthrough();
    Ok(DiagonalSystem::new(
        first.time(),
        exponents,
        input,
        output,
        feedthrough,
    )?)
}
