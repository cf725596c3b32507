//! Phases of modes in layouts whose weights are real.

use nalgebra::DMatrix;
use num_complex::Complex64;

/// The largest imaginary part of a weight, relative to all of its mode, that is rounding.
const PHASE: f64 = 1e-9;

/// Turns the phase of each mode from its row of B to its column of C: that of the largest entry.
pub(super) fn turn_phases(input: &mut DMatrix<Complex64>, output: &mut DMatrix<Complex64>) {
    for n in 0..input.nrows() {
        let (mut row, mut column) = (input.row_mut(n), output.column_mut(n));
        let largest = row.iter().max_by(|a, b| a.norm().total_cmp(&b.norm()));
        let turn = Complex64::from_polar(1.0, largest.map_or(0.0, |b| b.arg()));
        row.iter_mut().for_each(|b| *b *= turn.conj());
        column.iter_mut().for_each(|c| *c *= turn);
    }
}

/// Whether the weights of a mode are real, but for rounding.
pub(super) fn is_real<'a>(mut weights: impl Iterator<Item = &'a Complex64> + Clone) -> bool {
    let square: f64 = weights.clone().map(Complex64::norm_sqr).sum();
    let size = square.sqrt().max(f64::MIN_POSITIVE);
    weights.all(|x| x.im.abs() <= PHASE * size)
}
