//! Modes so slow that beside them double precision cannot hold the others.

use nalgebra::DMatrix;

use crate::control::{ControlError, in_parallel};
use crate::ssm::{DiagonalSystem, StableSystem, SystemError, Time};

/// How many times stronger than all others together slow modes are. Of σ₁ double precision keeps about
/// sixteen digits: this leaves seven for the others.
const STRONGER: f64 = 1e9;

/// How much slower than the fastest mode they decay at least: a mode that is only strong shares its
/// states with others, and is balanced with them.
const SLOWER: f64 = 1e-6;

/// A stable system as the sum of two.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct SlowParts {
    /// The slow modes, strongest first, without feedthrough.
    pub slow: DiagonalSystem,
    /// The others in their order, with the feedthrough.
    pub rest: DiagonalSystem,
}

/// Parts a system whose slowest modes outweigh all others so far that these are lost beside them.
///
/// ```text
/// s_n = ‖c_n‖ ‖b_n‖ / (1 − |a_n|²),  in continuous time over −2 Re λ_n
/// slow: the leading modes of which each has s_n ≥ 1e9 Σ s of all that follow, and a millionth of the
///       fastest mode's decay at most
/// ```
///
/// A mode with −Re λΔ = 1e-20 has a Hankel value of about 1e20 times its weight. Every other state then
/// falls below the rounding of σ₁. In the limit of no decay the Gramians have no entry between such a mode and
/// the others, so that balanced truncation keeps it and balances the others by themselves. Reduce
/// `rest`, and add `slow` by [`SlowParts::with`]: errors and bounds of `rest` are those of the whole.
///
/// `None` where no mode stands apart so far, as in any ordinary model. Cost O(n log n).
#[must_use]
pub fn part_slow_modes(system: StableSystem<'_>) -> Option<SlowParts> {
    let source = system.system();
    let decays = decays(source);
    let strength = |n: usize| {
        let weight = source.output().column(n).norm() * source.input().row(n).norm();
        weight / decays[n]
    };
    let strengths: Vec<f64> = (0..source.order()).map(strength).collect();
    let mut order: Vec<usize> = (0..source.order()).collect();
    order.sort_by(|&i, &j| strengths[j].total_cmp(&strengths[i]));
    let most = SLOWER * decays.iter().copied().fold(0.0, f64::max);
    let slow = order.iter().take_while(|&&n| decays[n] <= most).count();
    let mut tail: f64 = order[slow..].iter().map(|&n| strengths[n]).sum();
    for count in (1..=slow.min(order.len().saturating_sub(1))).rev() {
        if strengths[order[count - 1]] >= STRONGER * tail && strengths[order[count - 1]] > 0.0 {
            return SlowParts::of(source, &order[..count]);
        }
        tail += strengths[order[count - 1]];
    }
    None
}

/// 1 − |a|², or −2 Re λ, of every mode.
fn decays(system: &DiagonalSystem) -> Vec<f64> {
    let exponents = system.scaled_exponents().into_iter();
    let decays = exponents.map(|z| match system.time() {
        Time::Continuous => -2.0 * z.re,
        Time::Discrete { .. } => -(2.0 * z.re).exp_m1(),
    });
    decays.collect()
}

impl SlowParts {
    fn of(source: &DiagonalSystem, slow: &[usize]) -> Option<Self> {
        let others = (0..source.order()).filter(|n| !slow.contains(n));
        let others: Vec<usize> = others.collect();
        let none = DMatrix::zeros(source.output().nrows(), source.input().ncols());
        Some(Self {
            slow: selected(source, slow, none).ok()?,
            rest: selected(source, &others, source.feedthrough().clone()).ok()?,
        })
    }

    /// A system in the place of `rest`, with the slow modes behind its own.
    ///
    /// # Errors
    /// [`ControlError::DifferentTime`]; [`ControlError::System`] for other numbers of inputs or outputs.
    pub fn with(&self, rest: &DiagonalSystem) -> Result<DiagonalSystem, ControlError> {
        in_parallel(rest, &self.slow)
    }

    /// A system that [`SlowParts::with`] gave, in two again: what stands for `rest`, and the modes behind
    /// it, without feedthrough. `None` for one of fewer modes than there are slow ones.
    pub fn split(&self, whole: &DiagonalSystem) -> Option<(DiagonalSystem, DiagonalSystem)> {
        let kept = whole.order().checked_sub(self.slow.order())?;
        let places: Vec<usize> = (0..whole.order()).collect();
        let (rest, slow) = places.split_at(kept);
        let through = whole.feedthrough();
        let none = DMatrix::zeros(through.nrows(), through.ncols());
        Some((
            selected(whole, rest, through.clone()).ok()?,
            selected(whole, slow, none).ok()?,
        ))
    }
}

/// The modes at some places.
fn selected(
    source: &DiagonalSystem,
    places: &[usize],
    feedthrough: DMatrix<f64>,
) -> Result<DiagonalSystem, SystemError> {
    DiagonalSystem::new(
        source.time(),
        places.iter().map(|&n| source.exponents()[n]).collect(),
        source.input().select_rows(places),
        source.output().select_columns(places),
        feedthrough,
    )
}

#[cfg(test)]
mod tests {
    use num_complex::Complex64;

    use super::*;
    use crate::control::{Realisation, balance, h2_error};

    const TIMES: [Time; 2] = [Time::Continuous, Time::Discrete { step: 0.5 }];

    /// Six modes, two of which decay so slowly; each with its own number as residue.
    fn system(time: Time, slow: [f64; 2]) -> DiagonalSystem {
        let pole = |n: usize| match n {
            1 => Complex64::from(-slow[0]),
            4 => Complex64::new(-slow[1], 0.7),
            n => Complex64::new(-0.2 - 0.1 * n as f64, 0.4 * n as f64),
        };
        let residues: Vec<_> = (0..6).map(|n| Complex64::from(1.0 + n as f64)).collect();
        DiagonalSystem::siso(time, (0..6).map(pole).collect(), &residues, 0.25).unwrap()
    }

    fn residues(system: &DiagonalSystem) -> Vec<f64> {
        system.output().iter().map(|c| c.re).collect()
    }

    #[test]
    fn modes_that_hide_all_others_are_taken_apart() {
        for time in TIMES {
            for (slow, taken) in [
                ([1e-3, 1e-4], vec![]),
                ([1e-3, 1e-7], vec![]),
                ([1e-3, 1e-14], vec![5.0]),
                ([1e-14, 1e-14], vec![5.0, 2.0]),
                ([1e-300, 1e-14], vec![2.0, 5.0]),
                ([1e-300, 1e-3], vec![2.0]),
            ] {
                let whole = system(time, slow);
                let parts = part_slow_modes(whole.stable().unwrap());
                let Some(parts) = parts else {
                    assert!(taken.is_empty(), "{slow:?}");
                    continue;
                };
                assert_eq!(residues(&parts.slow), taken, "{slow:?}");
                assert_eq!(parts.slow.feedthrough()[(0, 0)], 0.0);
                let back = parts.with(&parts.rest).unwrap();
                assert_eq!(parts.split(&back), Some((parts.rest, parts.slow)));
                let apart = h2_error(whole.stable().unwrap(), back.stable().unwrap()).unwrap();
                assert_eq!(apart, 0.0);
                assert_eq!(back.feedthrough(), whole.feedthrough());
            }
        }
    }

    #[test]
    fn strong_modes_and_modes_without_a_share_stay() {
        let time = TIMES[1];
        let poles = vec![Complex64::new(-0.2, 1.0), Complex64::new(-0.3, 2.0)];
        let strong = [1e12, 1.0].map(Complex64::from);
        let strong = DiagonalSystem::siso(time, poles.clone(), &strong, 0.0).unwrap();
        assert_eq!(part_slow_modes(strong.stable().unwrap()), None);
        let slow = vec![Complex64::new(-1e-20, 1.0), poles[1]];
        let unused = [0.0, 1.0].map(Complex64::from);
        let unused = DiagonalSystem::siso(time, slow.clone(), &unused, 0.0).unwrap();
        assert_eq!(part_slow_modes(unused.stable().unwrap()), None);
        let none = DiagonalSystem::siso(time, slow, &[Complex64::ZERO; 2], 0.0).unwrap();
        assert_eq!(part_slow_modes(none.stable().unwrap()), None);
        let empty = DiagonalSystem::siso(time, Vec::new(), &[], 0.0).unwrap();
        assert_eq!(part_slow_modes(empty.stable().unwrap()), None);
    }

    #[test]
    fn parted_the_others_are_reduced_as_beside_a_mode_that_double_precision_bears() {
        for time in TIMES {
            // Both ways are right where a mode decays by 1e-11 and the others by more than 0.1.
            let whole = system(time, [1e-11, 0.3]);
            let parts = part_slow_modes(whole.stable().unwrap()).unwrap();
            let plain = balance(whole.stable().unwrap(), Realisation::Real).unwrap();
            let plain = plain.truncate(7).unwrap().system;
            let rest = balance(parts.rest.stable().unwrap(), Realisation::Real).unwrap();
            let rest = rest.truncate(6).unwrap();
            let parted = parts.with(&rest.system).unwrap();
            let error = |reduced: &DiagonalSystem| {
                h2_error(whole.stable().unwrap(), reduced.stable().unwrap()).unwrap()
            };
            let (a, b) = (error(&plain), error(&parted));
            assert!((a / b - 1.0).abs() < 1e-3, "{a} {b}");
        }
    }
}
