//! H2 norms of real outputs.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::control::formed::FEW_MODES;
use crate::control::realisation::RealSystem;
use crate::control::{ControlError, in_parallel, real_gramian_factors};
use crate::linalg::{expm1, multiply, multiply_adjoint, multiply_transpose};
use crate::ssm::{DiagonalSystem, StableSystem, Time};

/// A sum of signed terms that is at least this share of the sum of their sizes has twelve digits.
const LITTLE_CANCELS: f64 = 1e-3;

/// The H2 norm of the real output, which is the ℓ2 (L2) norm of the kernel Re(C A^l B).
/// The feedthrough is left out.
///
/// ```text
/// ‖G‖₂² = tr(C W_c Cᵀ) = ‖C F_c‖²_F   (real realisation)
///       = ½ Re Σ_ij (w_i w̄_j/(1 − a_i ā_j) + w_i w_j/(1 − a_i a_j))
/// ```
///
/// w_i w̄_j stands for (c_i* c_j)(b_i b_j*) of several inputs or outputs. The second form is taken where
/// its terms cancel by less than a factor of 1000. Else the norm of the factor times C is taken, not
/// the root of the quadratic form: so an error norm is right down to about 1e-16 of the systems' own
/// size, not 1e-8. Cost O(n²) products for each input and output.
///
/// # Errors
/// As [`real_gramian_factors`].
pub fn h2_norm(system: StableSystem<'_>) -> Result<f64, ControlError> {
    if let Some(norm) = norm_by_sums(system.system()) {
        return Ok(norm);
    }
    let output = RealSystem::of(system.system()).output;
    let factors = real_gramian_factors(system)?;
    // Scaled first: the squares of very small or large weights leave the range of doubles.
    let scale = output
        .iter()
        .fold(f64::MIN_POSITIVE, |most, c| most.max(c.abs()));
    Ok(((output / scale) * factors.controllability).norm() * scale)
}

/// The norm as the sum over all pairs of modes, where few digits cancel.
fn norm_by_sums(system: &DiagonalSystem) -> Option<f64> {
    let Ok(siso) = system.as_siso() else {
        let many = system.order() > FEW_MODES;
        return many.then(|| norm_of_several(system)).flatten();
    };
    let residues: Vec<Complex64> = siso.residues().collect();
    let scale = residues.iter().fold(0.0, |most, w| w.norm().max(most));
    if !(scale > 0.0 && scale.is_finite()) {
        return None;
    }
    let (points, discrete) = match system.time() {
        Time::Discrete { .. } => (system.scaled_exponents(), true),
        Time::Continuous => (system.exponents().to_vec(), false),
    };
    let whole = |z: Complex64| whole(z, discrete);
    let modes: Vec<_> = points
        .iter()
        .zip(residues.iter().map(|w| w / scale))
        .collect();
    let (mut sum, mut sizes) = (0.0, 0.0);
    for (i, (a, w)) in modes.iter().enumerate() {
        for (j, (b, v)) in modes.iter().enumerate().take(i + 1) {
            let share = if i == j { 0.5 } else { 1.0 };
            for term in [w * v.conj() * whole(*a + b.conj()), w * v * whole(*a + *b)] {
                sum += share * term.re;
                sizes += share * term.norm();
            }
        }
    }
    (sum > LITTLE_CANCELS * sizes && sizes.is_finite()).then(|| sum.sqrt() * scale)
}

/// The sum of a ā' over all steps, or its integral, from the sum of two exponents.
fn whole(z: Complex64, discrete: bool) -> Complex64 {
    -(if discrete { expm1(z) } else { z }).inv()
}

/// As [`norm_by_sums`], of several inputs or outputs.
fn norm_of_several(system: &DiagonalSystem) -> Option<f64> {
    let largest = |m: &DMatrix<Complex64>| m.iter().fold(0.0, |most, x| x.norm().max(most));
    let scales = (largest(system.input()), largest(system.output()));
    if !(scales.0 * scales.1 > 0.0 && (scales.0 * scales.1).is_finite()) {
        return None;
    }
    let discrete = system.time() != Time::Continuous;
    let points = match discrete {
        true => system.scaled_exponents(),
        false => system.exponents().to_vec(),
    };
    let (b, c) = (
        system.input().unscale(scales.0),
        system.output().unscale(scales.1),
    );
    let (sum, sizes) = kernel_square(&points, &b, &c, |z| whole(z, discrete));
    let right = sum > LITTLE_CANCELS * sizes && sizes.is_finite();
    right.then(|| sum.sqrt() * scales.0 * scales.1)
}

/// The square of the kernel Re(C e^{zt} B) from the sum of e^{zt} over time, `over`, and the sum of the
/// sizes of its terms, of which the square keeps all but rounding.
///
/// ```text
/// ½ Re Σ_ij [(C*C)_ij (BB*)_ji over(z̄_i + z_j) + (CᵀC)_ij (BBᵀ)_ij over(z_i + z_j)]
/// ```
///
/// Cost n² products for each input and output, in blocks.
pub fn kernel_square(
    exponents: &[Complex64],
    input: &DMatrix<Complex64>,
    output: &DMatrix<Complex64>,
    over: impl Fn(Complex64) -> Complex64,
) -> (f64, f64) {
    let outputs = [
        multiply_adjoint(output, output),
        multiply_transpose(output, output),
    ];
    let inputs = [
        multiply(input, &input.adjoint()),
        multiply(input, &input.transpose()),
    ];
    let (mut sum, mut sizes) = (0.0, 0.0);
    for (j, &right) in exponents.iter().enumerate() {
        for (i, &left) in exponents.iter().enumerate().take(j + 1) {
            let share = if i == j { 0.5 } else { 1.0 };
            for (mirrored, left) in [(0, left.conj()), (1, left)] {
                // Both are Hermitian, or symmetric.
                let weight = outputs[mirrored][(i, j)]
                    * match mirrored {
                        0 => inputs[0][(i, j)].conj(),
                        _ => inputs[1][(i, j)],
                    };
                let term = weight * over(left + right);
                sum += share * term.re;
                sizes += share * term.norm();
            }
        }
    }
    (sum, sizes)
}

/// The H2 norm of the difference of two stable systems on the same time base: the ℓ2 distance of
/// their infinite kernels, feedthrough left out.
///
/// # Errors
/// [`ControlError::DifferentTime`]; [`ControlError::System`] when the numbers of inputs or
/// outputs differ.
pub fn h2_error(full: StableSystem<'_>, reduced: StableSystem<'_>) -> Result<f64, ControlError> {
    let shape = full.system().feedthrough().shape();
    let difference = difference(full, reduced, DMatrix::zeros(shape.0, shape.1))?;
    h2_norm(difference.stable()?)
}

/// The system full − reduced, with the modes of both and the given feedthrough. Modes that both have drop
/// out: beside one that hardly decays their difference would be lost in rounding.
pub(super) fn difference(
    full: StableSystem<'_>,
    reduced: StableSystem<'_>,
    feedthrough: DMatrix<f64>,
) -> Result<DiagonalSystem, ControlError> {
    let (full, reduced) = (full.system(), reduced.system());
    if full.time() != reduced.time() {
        return Err(ControlError::DifferentTime);
    }
    reduced.require_size(full.input().ncols(), full.output().nrows())?;
    let (of_full, of_reduced) = modes_apart(full, reduced);
    let part = |system: &DiagonalSystem, modes: &[usize], sign: f64, through: DMatrix<f64>| {
        DiagonalSystem::new(
            system.time(),
            modes.iter().map(|&n| system.exponents()[n]).collect(),
            system.input().select_rows(modes),
            system.output().select_columns(modes) * Complex64::from(sign),
            through,
        )
    };
    let none = DMatrix::zeros(feedthrough.nrows(), feedthrough.ncols());
    let kept = part(full, &of_full, 1.0, feedthrough)?;
    in_parallel(&kept, &part(reduced, &of_reduced, -1.0, none)?)
}

/// The places of the modes of each of two systems that are not modes of the other, number for number.
fn modes_apart(full: &DiagonalSystem, reduced: &DiagonalSystem) -> (Vec<usize>, Vec<usize>) {
    let same = |i: usize, j: usize| {
        full.exponents()[i] == reduced.exponents()[j]
            && full.input().row(i) == reduced.input().row(j)
            && full.output().column(i) == reduced.output().column(j)
    };
    let mut of_full: Vec<usize> = (0..full.order()).collect();
    let mut of_reduced = Vec::new();
    for j in 0..reduced.order() {
        match of_full.iter().position(|&i| same(i, j)) {
            Some(place) => _ = of_full.remove(place),
            None => of_reduced.push(j),
        }
    }
    (of_full, of_reduced)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::samples::pairs_and_real_poles;

    const TIMES: [Time; 2] = [Time::Continuous, Time::Discrete { step: 0.3 }];

    #[test]
    fn the_sum_over_pairs_is_the_norm_of_the_kernel() {
        let system = pairs_and_real_poles(TIMES[1], 0.5);
        let kernel = system.kernel(2000).unwrap();
        let direct = kernel.iter().map(|k| k * k).sum::<f64>().sqrt();
        let found = norm_by_sums(&system).unwrap();
        assert!((found / direct - 1.0).abs() < 1e-13, "{found} {direct}");
        // ∫ |Re w e^{zt}|² = (|w|²/(−2 Re z) + Re(w²/(−2z)))/2.
        let (z, w) = (Complex64::new(-0.7, 2.0), Complex64::new(30.0, -40.0));
        let system = DiagonalSystem::siso(TIMES[0], vec![z], &[w], 0.0).unwrap();
        let direct = (0.5 * (w.norm_sqr() / 1.4 + (w * w / (-2.0 * z)).re)).sqrt();
        let found = norm_by_sums(&system).unwrap();
        assert!((found / direct - 1.0).abs() < 1e-14, "{found} {direct}");
    }

    #[test]
    fn terms_that_cancel_by_more_than_a_thousand_are_left_to_the_factor() {
        for time in TIMES {
            // w and −w (1 − δ) at one pole leave δ²/(2 − δ)² of their terms.
            for (share, taken) in [(1.1e-3_f64, true), (0.9e-3, false)] {
                let delta = 2.0 * share.sqrt() / (1.0 + share.sqrt());
                let residues = [Complex64::ONE, Complex64::from(delta - 1.0)];
                let poles = vec![Complex64::from(-1.0); 2];
                let system = DiagonalSystem::siso(time, poles, &residues, 0.0).unwrap();
                assert_eq!(norm_by_sums(&system).is_some(), taken, "{time:?} {share}");
                let whole = match time {
                    Time::Continuous => 0.5,
                    Time::Discrete { step } => -(-2.0 * step).exp_m1().recip(),
                };
                let norm = h2_norm(system.stable().unwrap()).unwrap();
                assert!((norm / (delta * whole.sqrt()) - 1.0).abs() < 1e-12);
            }
        }
    }

    #[test]
    fn a_silent_system_has_no_norm_and_very_small_ones_keep_theirs() {
        for (size, norm) in [(0.0, 0.0), (1e-200, 0.5e-200), (1e200, 0.5e200)] {
            let pole = vec![Complex64::from(-2.0)];
            let residue = [Complex64::from(size)];
            let system = DiagonalSystem::siso(TIMES[0], pole, &residue, 1.0).unwrap();
            let found = h2_norm(system.stable().unwrap()).unwrap();
            assert!((found - norm).abs() <= 1e-15 * norm, "{found:e}");
        }
    }

    #[test]
    fn the_error_norm_is_that_of_the_stacked_modes() {
        for time in TIMES {
            let full = pairs_and_real_poles(time, 0.5);
            let pole = vec![Complex64::new(-0.5, 3.0)];
            let reduced = DiagonalSystem::siso(time, pole, &[Complex64::ONE], 0.1).unwrap();
            let (full, reduced) = (full.stable().unwrap(), reduced.stable().unwrap());
            let difference = difference(full, reduced, DMatrix::from_element(1, 1, 0.4)).unwrap();
            assert_eq!(difference.order(), 6);
            assert_eq!(difference.feedthrough()[(0, 0)], 0.4);
            let residues = difference.residues().unwrap();
            assert_eq!(residues[5], -Complex64::ONE);
            assert_eq!(residues[..5], full.system().residues().unwrap());
            let norm = h2_norm(difference.stable().unwrap()).unwrap();
            assert_eq!(h2_error(full, reduced).unwrap(), norm);
        }
        let [one, other] = TIMES.map(|time| pairs_and_real_poles(time, 0.0));
        let found = h2_error(one.stable().unwrap(), other.stable().unwrap());
        assert_eq!(found, Err(ControlError::DifferentTime));
    }
}
