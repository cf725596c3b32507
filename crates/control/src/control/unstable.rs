//! Reduction of kernels of finite length, where some modes grow.

use num_complex::Complex64;

use crate::control::{ControlError, Realisation, balance, balance_over_horizon};
use crate::ssm::{DiagonalSystem, SystemError, Time};

/// Growth over the horizon, as a power of e, beyond which a mode is left out: a^L would leave
/// the range of doubles.
const GROWTH_MAX: f64 = 600.0;

/// How a kernel of finite length was reduced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum HorizonMethod {
    /// Nothing was reduced: the order requested is that of the system.
    Whole,
    /// Balanced by the Gramians over the horizon.
    FiniteHorizon,
    /// Stable modes by balanced truncation, growing modes the same way backwards in time.
    Split,
}

/// A system reduced for the sake of its first L kernel samples.
#[derive(Debug, Clone)]
#[must_use]
#[non_exhaustive]
pub struct OverHorizon {
    /// The reduced system, with at most the modes requested.
    pub system: DiagonalSystem,
    /// Which way had the smaller error.
    pub method: HorizonMethod,
    /// ‖k − k_r‖₂ over the horizon.
    pub kernel_error: f64,
    /// ‖k‖₂ over the horizon.
    pub kernel_norm: f64,
    /// Modes of the result that do not decay.
    pub unstable: usize,
    /// The larger κ₂ of the diagonalisations.
    pub condition: f64,
}

/// Reduces a discrete system to at most `order` stored modes so that its first `length` kernel
/// samples stay: for systems with modes that do not decay, which have no Hankel singular values.
///
/// Two ways are tried, and the smaller exact error ‖k − k_r‖₂ over the `length` samples wins.
///
/// ```text
/// finite horizon:  balance_over_horizon with h = L/2 and h = L, cut to the order
/// split:           k = k_s + k_u;  k_u[L−1−l] = Re Σ (r_i a_i^{L−1}) (1/a_i)^l decays
///                  both truncated, q + (order − q) modes, every q tried
/// ```
///
/// Modes with Re λ = 0 decay in neither direction and are kept as they are in the split. A mode
/// is one stored mode whether it is a pair or real. Cost about 2 · `order` diagonalisations of
/// that order, and O(n L) for each kernel.
///
/// # Errors
/// [`ControlError::Order`] for an order of 0; [`ControlError::System`] for continuous time, more
/// than one input or output, or a kernel that overflows.
///
/// # References
/// The stable and antistable split is that of Nagar and Singh, *An algorithmic approach for
/// system decomposition and balanced realized model reduction*, J. Franklin Inst. 341 (2004),
/// with the antistable part reversed over the horizon instead of over the whole line.
pub fn reduce_over_horizon(
    system: &DiagonalSystem,
    order: usize,
    length: usize,
) -> Result<OverHorizon, ControlError> {
    let kernel = system.kernel(length)?;
    if let Some(mode) = kernel.iter().position(|k| !k.is_finite()) {
        let what = "the kernel";
        return Err(ControlError::System(SystemError::NotFinite { what, mode }));
    }
    if order == 0 {
        let most = system.order();
        return Err(ControlError::Order { requested: 0, most });
    }
    let mut best = Best::new(&kernel);
    if order >= system.order() {
        best.offer(HorizonMethod::Whole, system.clone(), 1.0)?;
        return best.finish(system);
    }
    best.offer_finite_horizon(system, order, length)?;
    best.offer_splits(system, order, length)?;
    best.finish(system)
}

/// The best candidate so far.
struct Best<'a> {
    kernel: &'a [f64],
    winner: Option<OverHorizon>,
}

impl<'a> Best<'a> {
    fn new(kernel: &'a [f64]) -> Self {
        Self {
            kernel,
            winner: None,
        }
    }

    fn offer(
        &mut self,
        method: HorizonMethod,
        system: DiagonalSystem,
        condition: f64,
    ) -> Result<(), ControlError> {
        let found = system.kernel(self.kernel.len())?;
        let squares = self
            .kernel
            .iter()
            .zip(&found)
            .map(|(k, r)| (k - r) * (k - r));
        let kernel_error = squares.sum::<f64>().sqrt();
        let least = self
            .winner
            .as_ref()
            .map_or(f64::INFINITY, |winner| winner.kernel_error);
        if kernel_error < least {
            self.winner = Some(OverHorizon {
                unstable: system.unstable_modes().len(),
                system,
                method,
                kernel_error,
                kernel_norm: self.kernel.iter().map(|k| k * k).sum::<f64>().sqrt(),
                condition,
            });
        }
        Ok(())
    }

    /// The winner; an empty system when no candidate had a finite kernel.
    fn finish(mut self, full: &DiagonalSystem) -> Result<OverHorizon, ControlError> {
        if self.winner.is_none() {
            let feedthrough = full.feedthrough()[(0, 0)];
            let empty = DiagonalSystem::siso(full.time(), Vec::new(), &[], feedthrough)?;
            self.offer(HorizonMethod::Split, empty, 1.0)?;
        }
        Ok(self.winner.expect("an empty system has a finite kernel"))
    }

    /// A horizon whose growth overflows offers nothing: the split stands.
    fn offer_finite_horizon(
        &mut self,
        system: &DiagonalSystem,
        order: usize,
        length: usize,
    ) -> Result<(), ControlError> {
        for horizon in [length.div_ceil(2), length] {
            let Ok(balanced) = balance_over_horizon(system, horizon.max(1), Realisation::Real)
            else {
                continue;
            };
            let mut states = 2 * order;
            while let Ok(reduced) = balanced.truncate(states) {
                if reduced.system.order() <= order {
                    let method = HorizonMethod::FiniteHorizon;
                    self.offer(method, reduced.system, reduced.condition)?;
                    break;
                }
                states = reduced.order - 1;
            }
        }
        Ok(())
    }

    fn offer_splits(
        &mut self,
        system: &DiagonalSystem,
        order: usize,
        length: usize,
    ) -> Result<(), ControlError> {
        let parts = Parts::new(system, length)?;
        let Some(free) = order.checked_sub(parts.marginal.len()) else {
            return Ok(());
        };
        let forward = cuts(system.time(), &parts.stable, free)?;
        let backward = cuts(system.time(), &parts.reversed, free)?;
        for (q, ahead) in forward.iter().enumerate() {
            // What the stable part cannot use goes to the other, so no slot stays empty.
            let rest = (free - q).min(backward.len() - 1);
            let behind = &backward[rest];
            let mut modes = parts.marginal.clone();
            modes.extend_from_slice(&ahead.modes);
            modes.extend(forwards(system.time(), &behind.modes, length));
            let joined = from_modes(system.time(), &modes, system.feedthrough()[(0, 0)])?;
            self.offer(
                HorizonMethod::Split,
                joined,
                ahead.condition.max(behind.condition),
            )?;
        }
        Ok(())
    }
}

type Modes = Vec<(Complex64, Complex64)>;

/// Exponents and residues, apart by the sign of Re λ.
struct Parts {
    stable: Modes,
    /// The growing modes run backwards from the last sample.
    reversed: Modes,
    marginal: Modes,
}

impl Parts {
    fn new(system: &DiagonalSystem, length: usize) -> Result<Self, ControlError> {
        let step = step_of(system.time());
        let last = length.saturating_sub(1) as f64;
        let mut parts = Self {
            stable: Vec::new(),
            reversed: Vec::new(),
            marginal: Vec::new(),
        };
        for (lambda, residue) in system.as_siso()?.modes() {
            if lambda.re < 0.0 {
                parts.stable.push((lambda, residue));
            } else if lambda.re > 0.0 {
                let end = residue * (lambda * step * last).exp();
                parts.reversed.push((-lambda, end));
            } else {
                parts.marginal.push((lambda, residue));
            }
        }
        Ok(parts)
    }
}

fn step_of(time: Time) -> f64 {
    match time {
        Time::Continuous => 1.0,
        Time::Discrete { step } => step,
    }
}

fn from_modes(
    time: Time,
    modes: &[(Complex64, Complex64)],
    feedthrough: f64,
) -> Result<DiagonalSystem, ControlError> {
    let (exponents, residues): (Vec<_>, Vec<_>) = modes.iter().copied().unzip();
    Ok(DiagonalSystem::siso(
        time,
        exponents,
        &residues,
        feedthrough,
    )?)
}

/// A part reduced to some number of stored modes.
struct Cut {
    modes: Modes,
    condition: f64,
}

/// The best truncation of a stable part to at most q modes, for q = 0 to `most`.
fn cuts(time: Time, modes: &Modes, most: usize) -> Result<Vec<Cut>, ControlError> {
    let mut cuts = vec![Cut {
        modes: Vec::new(),
        condition: 1.0,
    }];
    if modes.is_empty() || most == 0 {
        return Ok(cuts);
    }
    let system = from_modes(time, modes, 0.0)?;
    let balanced = balance(system.stable()?, Realisation::Real)?;
    for slots in 1..=most.min(modes.len()) {
        if slots == modes.len() {
            let modes = modes.clone();
            cuts.push(Cut {
                modes,
                condition: 1.0,
            });
            break;
        }
        let mut states = 2 * slots;
        let reduced = loop {
            let reduced = balanced.truncate(states)?;
            if reduced.system.order() <= slots {
                break reduced;
            }
            states = reduced.order - 1;
        };
        cuts.push(Cut {
            modes: reduced.system.as_siso()?.modes().collect(),
            condition: reduced.condition,
        });
    }
    Ok(cuts)
}

/// Turns a reversed part round again: 1/a, and the residue at the first sample. A mode that grows
/// by more than e^600 shows in the last samples only and is left out.
fn forwards(time: Time, modes: &Modes, length: usize) -> Modes {
    let step = step_of(time);
    let last = length.saturating_sub(1) as f64;
    let growth = |lambda: &Complex64| -lambda.re * step * last;
    let kept = modes
        .iter()
        .filter(|(lambda, _)| growth(lambda) < GROWTH_MAX);
    kept.map(|&(lambda, end)| (-lambda, end * (lambda * step * last).exp()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> DiagonalSystem {
        let exponents = [
            (0.3, 2.0),
            (-0.4, 0.0),
            (0.25, 5.0),
            (-0.1, -9.0),
            (0.2, 0.0),
            (-0.3, 4.0),
            (-0.35, 4.5),
            (0.28, 2.2),
        ];
        let exponents = exponents.map(|(re, im)| Complex64::new(re, im)).to_vec();
        let residues: Vec<Complex64> = exponents
            .iter()
            .enumerate()
            .map(|(i, z)| Complex64::from_polar((-8.0 * z.re.max(0.0)).exp(), i as f64))
            .collect();
        DiagonalSystem::siso(Time::Discrete { step: 0.1 }, exponents, &residues, 0.3).unwrap()
    }

    #[test]
    fn the_error_falls_with_the_order_and_the_full_order_is_exact() {
        let system = sample();
        let errors: Vec<f64> = (1..=8)
            .map(|order| {
                let reduced = reduce_over_horizon(&system, order, 100).unwrap();
                assert!(reduced.system.order() <= order);
                assert_eq!(reduced.system.feedthrough()[(0, 0)], 0.3);
                assert_eq!(reduced.unstable, reduced.system.unstable_modes().len());
                println!(
                    "{order} {:?} {:.3e}",
                    reduced.method,
                    reduced.kernel_error / reduced.kernel_norm
                );
                reduced.kernel_error / reduced.kernel_norm
            })
            .collect();
        assert_eq!(errors[7], 0.0);
        assert!(errors[5] < 0.1 && errors[0] < 1.0, "{errors:?}");
    }

    #[test]
    fn a_reversed_part_turned_round_twice_is_itself() {
        let system = sample();
        let parts = Parts::new(&system, 50).unwrap();
        let back = forwards(system.time(), &parts.reversed, 50);
        let growing = system.as_siso().unwrap().modes();
        let growing: Modes = growing.filter(|(z, _)| z.re > 0.0).collect();
        assert_eq!(back.len(), growing.len());
        for ((z, r), (found, residue)) in growing.iter().zip(&back) {
            assert!(z == found && (r - residue).norm() < 1e-12 * r.norm());
        }
    }

    #[test]
    fn splits_offer_all_modes_that_fit() {
        let system = sample();
        let kernel = system.kernel(100).unwrap();
        let size = kernel.iter().map(|k| k * k).sum::<f64>().sqrt();
        for (order, share) in [(3, 0.9), (5, 0.5), (7, 0.05)] {
            let mut best = Best::new(&kernel);
            best.offer_splits(&system, order, 100).unwrap();
            let offered = best.winner.unwrap();
            assert_eq!(offered.system.order(), order);
            assert!(
                offered.kernel_error < share * size,
                "{order}: {}",
                offered.kernel_error / size
            );
        }
    }

    #[test]
    fn what_a_finite_horizon_offers_has_all_states_that_fit() {
        let system = sample();
        let kernel = system.kernel(100).unwrap();
        let mut error = f64::INFINITY;
        for order in 1..8 {
            let mut best = Best::new(&kernel);
            best.offer_finite_horizon(&system, order, 100).unwrap();
            let winner = best.finish(&system).unwrap();
            assert!(winner.system.order() + 1 >= order, "{order}");
            assert!(winner.kernel_error < 1.1 * error, "{order}");
            error = winner.kernel_error;
        }
    }

    #[test]
    fn a_mode_that_grows_past_all_numbers_is_left_out() {
        let time = Time::Discrete { step: 0.1 };
        let reversed = [-20.0, -130.0].map(|re| (Complex64::from(re), Complex64::ONE));
        let kept = forwards(time, &reversed.to_vec(), 50);
        assert_eq!(kept.len(), 1);
        let (lambda, residue) = kept[0];
        assert_eq!(lambda.re, 20.0);
        assert!((residue.re / (-98.0_f64).exp() - 1.0).abs() < 1e-12);
    }

    #[test]
    fn a_mode_on_the_boundary_is_kept() {
        let exponents = [(0.0, 2.0), (-1.0, 5.0), (0.1, 1.0), (-2.0, 0.0)];
        let exponents = exponents.map(|(re, im)| Complex64::new(re, im)).to_vec();
        let residues = [5.0, 1.0, 0.01, 0.5].map(Complex64::from);
        let time = Time::Discrete { step: 0.1 };
        let system = DiagonalSystem::siso(time, exponents, &residues, 0.0).unwrap();
        let reduced = reduce_over_horizon(&system, 3, 64).unwrap();
        assert!(
            reduced.kernel_error < 0.2 * reduced.kernel_norm,
            "{reduced:?}"
        );
        assert!(reduced.unstable >= 1);
    }

    #[test]
    fn an_order_of_zero_and_an_endless_kernel_are_errors() {
        let error = reduce_over_horizon(&sample(), 0, 10).unwrap_err();
        assert_eq!(
            error,
            ControlError::Order {
                requested: 0,
                most: 8
            }
        );
        let error = reduce_over_horizon(&sample(), 2, 100_000).unwrap_err();
        assert!(matches!(
            error,
            ControlError::System(SystemError::NotFinite { .. })
        ));
    }
}
