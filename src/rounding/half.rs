//! Numbers in IEEE half precision.

use std::f64::consts::TAU;

use half::f16;
use hankelite_control::{DiagonalSystem, SystemError, Time};
use num_complex::Complex64;

use crate::rounding::RoundingError;

/// The power of two that the largest number of a group is brought to: far enough from the largest
/// half (65,504), and as far as can be from the smallest normal one (2⁻¹⁴).
const TOP: i32 = 14;

/// The nearest half.
pub(super) fn rounded(value: f64) -> f64 {
    // A number beyond the largest one becomes that: finite, and seen in the logits.
    let most = f16::MAX.to_f64();
    f16::from_f64(value.clamp(-most, most)).to_f64()
}

/// The exponents k of the factors 2^k that d = a − 1 and the residues of a layer are multiplied by
/// before they are rounded to halves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HalfExponents {
    pub(crate) poles: i32,
    pub(crate) residues: i32,
}

impl HalfExponents {
    /// Those of systems of one input and output each.
    pub(crate) fn of(systems: &[DiagonalSystem]) -> Result<Self, SystemError> {
        let parts = |z: Complex64| [z.re, z.im];
        let poles = systems.iter().flat_map(DiagonalSystem::poles);
        let poles = exponent(poles.flat_map(|a| parts(a - 1.0)));
        let mut residues = Vec::new();
        for system in systems {
            residues.extend(system.as_siso()?.residues());
        }
        let residues = exponent(residues.into_iter().flat_map(parts));
        Ok(Self { poles, residues })
    }
}

/// Exponents that an image has room for.
const EXPONENTS: std::ops::RangeInclusive<i32> = -100..=100;

/// The exponent k of the factor 2^k that brings the largest of some numbers to
/// [2^14, 2^15).
fn exponent(numbers: impl Iterator<Item = f64>) -> i32 {
    let largest = numbers.fold(0.0, |most: f64, x| most.max(x.abs()));
    match largest > 0.0 {
        true => (TOP - largest.log2().floor() as i32).clamp(*EXPONENTS.start(), *EXPONENTS.end()),
        false => 0,
    }
}

/// The nearest number that a half times 2^{−k} is.
fn scaled(value: f64, k: i32) -> f64 {
    rounded(value * f64::from(k).exp2()) * f64::from(-k).exp2()
}

/// Systems of one input and output each whose d = a − 1 and residues are halves times a power of
/// two, which all systems share. Poles stay inside the unit circle.
pub(super) fn systems(systems: &[DiagonalSystem]) -> Result<Vec<DiagonalSystem>, RoundingError> {
    let exponents = HalfExponents::of(systems)?;
    let mut residues = Vec::with_capacity(systems.len());
    for system in systems {
        residues.push(system.as_siso()?.residues().collect::<Vec<_>>());
    }
    let each = systems.iter().zip(residues);
    let each = each.map(|(system, residues)| {
        let residues = residues.into_iter().map(|r| {
            Complex64::new(
                scaled(r.re, exponents.residues),
                scaled(r.im, exponents.residues),
            )
        });
        let step = match system.time() {
            Time::Discrete { step } => step,
            Time::Continuous => 1.0,
        };
        let moved = system.scaled_exponents().into_iter().map(|exponent| {
            let moved = pole(exponent.exp(), exponents.poles).ln();
            // The turn of the circle that the exponent stands for.
            let turns = ((exponent.im - moved.im) / TAU).round();
            Complex64::new(moved.re, moved.im + turns * TAU) / step
        });
        let d = rounded(system.feedthrough()[(0, 0)]);
        let residues: Vec<Complex64> = residues.collect();
        Ok(DiagonalSystem::siso(
            system.time(),
            moved.collect(),
            &residues,
            d,
        )?)
    });
    each.collect()
}

/// The nearest pole whose d is a half times 2^{−k}; inside the unit circle where the pole is.
fn pole(a: Complex64, k: i32) -> Complex64 {
    let (up, down) = (f64::from(k).exp2(), f64::from(-k).exp2());
    let im = scaled(a.im, k);
    // Never above zero where the pole is inside the circle.
    let mut re = f16::from_f64((a.re - 1.0) * up);
    let mut moved = Complex64::new(1.0 + re.to_f64() * down, im);
    while a.norm() < 1.0 && moved.norm() >= 1.0 {
        // The next half further from zero.
        re = f16::from_bits((re.to_bits() | 0x8000) + 1);
        moved.re = 1.0 + re.to_f64() * down;
    }
    moved
}

#[cfg(test)]
mod tests {
    use super::*;

    fn system(exponents: &[[f64; 2]], residues: &[[f64; 2]]) -> DiagonalSystem {
        let complex = |z: &[[f64; 2]]| z.iter().map(|&[re, im]| Complex64::new(re, im)).collect();
        let (exponents, residues): (Vec<_>, Vec<_>) = (complex(exponents), complex(residues));
        DiagonalSystem::siso(Time::Discrete { step: 0.01 }, exponents, &residues, 0.3).unwrap()
    }

    #[test]
    fn rounding_twice_changes_nothing_more() {
        let banks = [
            system(&[[-0.5, 3.1], [-0.01, 90.0]], &[[1.3, -0.2], [1e-4, 0.0]]),
            system(&[[-7.0, 0.0], [-0.5, 400.0]], &[[0.01, 0.02], [3.3, 0.7]]),
        ];
        let once = systems(&banks).unwrap();
        let twice = systems(&once).unwrap();
        for (once, twice) in once.iter().zip(&twice) {
            for (a, b) in once.poles().iter().zip(twice.poles()) {
                assert!((a - b).norm() < 1e-14, "{a} {b}");
            }
            let pair = [once, twice].map(|s| s.as_siso().unwrap().residues().collect::<Vec<_>>());
            assert_eq!(pair[0], pair[1]);
        }
        for (full, once) in banks.iter().zip(&once) {
            for (a, b) in full.poles().iter().zip(once.poles()) {
                assert!((a - b).norm() <= (a - 1.0).norm() / 2048.0);
            }
            // The turn of the circle stays: exponents move little.
            for (a, b) in full.exponents().iter().zip(once.exponents()) {
                assert!((a - b).norm() < 0.01 * a.norm(), "{a} {b}");
            }
        }
    }

    #[test]
    fn poles_stay_inside_the_circle() {
        let slow = system(&[[-1e-7, 150.0], [-1e-9, 2.0]], &[[1.0, 0.0], [1.0, 0.0]]);
        let rounded = systems(std::slice::from_ref(&slow)).unwrap();
        assert!(rounded[0].is_stable());
    }
}
