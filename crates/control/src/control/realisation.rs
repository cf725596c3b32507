//! Which system is balanced: the complex modes as stored, or the real system behind them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::ssm::{DiagonalSystem, Siso, block_input, block_output, real_blocks};

/// Which of two systems with the same stored modes is meant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
pub enum Realisation {
    /// y = Re(C x): the conjugate-closed system of twice the order, whose output the network
    /// uses. A mode with Im λ = 0 counts once, unless several inputs and outputs show a residue
    /// Re(c b) of rank two.
    Real,
    /// y = C x with complex y: the modes as they are stored. This is what the paper balances.
    Complex,
}

/// One mode of the real system, with input weight 1.
#[derive(Debug, Clone, Copy)]
pub(super) struct RealMode {
    pub(super) lambda: Complex64,
    pub(super) residue: Complex64,
    /// Whether the mode is one real state; otherwise it is a conjugate pair, two real states.
    pub(super) single: bool,
}

impl RealMode {
    fn new(lambda: Complex64, residue: Complex64) -> Self {
        let single = lambda.im == 0.0;
        let mut mode = Self {
            lambda,
            residue: Complex64::ZERO,
            single,
        };
        mode.absorb(lambda, residue);
        mode
    }

    /// Adds the residue of a mode with the same or the conjugate pole.
    fn absorb(&mut self, lambda: Complex64, residue: Complex64) {
        self.residue += match self.single {
            true => Complex64::from(residue.re),
            false if lambda.im == self.lambda.im => residue,
            false => residue.conj(),
        };
    }

    pub(super) fn states(&self) -> usize {
        if self.single { 1 } else { 2 }
    }
}

/// The modes of the real system, without duplicates. A real pole keeps Re(c b), all that
/// Re(C x) can show of it; every mode takes the input weight 1 and its residue as output weight.
///
/// Modes with the same pole, or with conjugate poles, make one mode with the sum of their
/// residues: taken apart they would hide a cancellation from every later step.
pub(super) fn real_modes(system: Siso<'_>) -> Vec<RealMode> {
    let mut modes: Vec<RealMode> = Vec::with_capacity(system.exponents().len());
    let mut known = HashMap::new();
    for (lambda, residue) in system.modes() {
        let key = (lambda.re.to_bits(), lambda.im.abs().to_bits());
        match known.entry(key) {
            Entry::Vacant(place) => {
                place.insert(modes.len());
                modes.push(RealMode::new(lambda, residue));
            }
            Entry::Occupied(place) => modes[*place.get()].absorb(lambda, residue),
        }
    }
    modes
}

/// States of the real system as stored: two for a pair; for a real pole the rank of Re(c b), at
/// least one.
pub(super) fn real_states(system: &DiagonalSystem) -> usize {
    if system.as_siso().is_err() {
        return real_blocks(system).iter().map(|block| block.states()).sum();
    }
    let states = system.exponents().iter().map(|lambda| match lambda.im {
        0.0 => 1,
        _ => 2,
    });
    states.sum()
}

/// The real system in the coordinates of its Gramian factors.
#[derive(Debug, Clone)]
pub(super) struct RealSystem {
    /// λ and whether the mode is one real state, for each mode.
    modes: Vec<(Complex64, bool)>,
    /// B, one row for each real state.
    pub(super) input: DMatrix<f64>,
    /// C, one column for each real state.
    pub(super) output: DMatrix<f64>,
}

impl RealSystem {
    /// With one input and one output the modes of [`real_modes`]; otherwise a block for each
    /// stored mode.
    pub(super) fn of(system: &DiagonalSystem) -> Self {
        if let Ok(siso) = system.as_siso() {
            let modes = real_modes(siso);
            let (input, output) = (real_input(&modes), real_output(&modes));
            return Self {
                modes: modes
                    .iter()
                    .map(|mode| (mode.lambda, mode.single))
                    .collect(),
                input: DMatrix::from_column_slice(input.len(), 1, &input),
                output: DMatrix::from_row_slice(1, output.len(), &output),
            };
        }
        let blocks = real_blocks(system);
        Self {
            modes: blocks
                .iter()
                .map(|block| (block.lambda, block.single))
                .collect(),
            input: block_input(&blocks, system.input().ncols()),
            output: block_output(&blocks, system.output().nrows()),
        }
    }

    /// The exponents, one for each mode.
    pub(super) fn exponents(&self) -> Vec<Complex64> {
        self.modes.iter().map(|&(lambda, _)| lambda).collect()
    }

    /// X M for the same M as in [`RealSystem::apply`].
    pub(super) fn apply_right(&self, x: &DMatrix<f64>, factors: &[Complex64]) -> DMatrix<f64> {
        let conjugate: Vec<Complex64> = factors.iter().map(|factor| factor.conj()).collect();
        self.apply(&conjugate, &x.transpose()).transpose()
    }

    /// The complex row of each mode behind a matrix with one row for each real state: b of `input`,
    /// and c̄ of the transposed output (c̄/2 of a pair).
    pub(super) fn complex_rows(&self, real: &DMatrix<f64>) -> DMatrix<Complex64> {
        let mut row = 0;
        let mut rows = DMatrix::zeros(self.modes.len(), real.ncols());
        for (i, &(_, single)) in self.modes.iter().enumerate() {
            for j in 0..real.ncols() {
                rows[(i, j)] = if single {
                    Complex64::from(real[(row, j)])
                } else {
                    Complex64::new(real[(row, j)], real[(row + 1, j)]) / ROOT_TWO
                };
            }
            row += if single { 1 } else { 2 };
        }
        rows
    }

    /// For each real state its mode, and whether it is the imaginary part of it.
    pub(super) fn states(&self) -> Vec<(usize, bool)> {
        let modes = self.modes.iter().enumerate();
        let parts = modes.flat_map(|(i, &(_, single))| {
            let parts = if single { 1 } else { 2 };
            (0..parts).map(move |part| (i, part == 1))
        });
        parts.collect()
    }

    /// Whether mode i is one real state.
    pub(super) fn is_single(&self, i: usize) -> bool {
        self.modes[i].1
    }

    /// M X for the real block-diagonal M that multiplies mode i by `factors[i]`.
    pub(super) fn apply(&self, factors: &[Complex64], x: &DMatrix<f64>) -> DMatrix<f64> {
        apply_blocks(self.modes.iter().map(|&(_, single)| single), factors, x)
    }
}

/// The real coordinates of a pair are (√2 Re x, √2 Im x), a unitary image of (x, x̄), so that
/// Gramian factors keep their size.
pub(super) const ROOT_TWO: f64 = std::f64::consts::SQRT_2;

/// The input weights in real coordinates.
pub(super) fn real_input(modes: &[RealMode]) -> Vec<f64> {
    let mut input = Vec::new();
    for mode in modes {
        if mode.single {
            input.push(1.0);
        } else {
            input.extend([ROOT_TWO, 0.0]);
        }
    }
    input
}

/// The output weights in real coordinates: Re(c x) = (Re c · √2 Re x − Im c · √2 Im x)/√2.
pub(super) fn real_output(modes: &[RealMode]) -> Vec<f64> {
    let mut output = Vec::new();
    for mode in modes {
        if mode.single {
            output.push(mode.residue.re);
        } else {
            output.extend([mode.residue.re / ROOT_TWO, -mode.residue.im / ROOT_TWO]);
        }
    }
    output
}

/// M X for the real block-diagonal M that multiplies mode i by `factors[i]`.
pub(super) fn apply_modes(
    modes: &[RealMode],
    factors: &[Complex64],
    x: &DMatrix<f64>,
) -> DMatrix<f64> {
    apply_blocks(modes.iter().map(|mode| mode.single), factors, x)
}

fn apply_blocks(
    single: impl Iterator<Item = bool>,
    factors: &[Complex64],
    x: &DMatrix<f64>,
) -> DMatrix<f64> {
    let mut out = x.clone();
    let mut row = 0;
    for (single, factor) in single.zip(factors) {
        if single {
            out.row_mut(row).scale_mut(factor.re);
            row += 1;
            continue;
        }
        for j in 0..x.ncols() {
            let value = factor * Complex64::new(x[(row, j)], x[(row + 1, j)]);
            out[(row, j)] = value.re;
            out[(row + 1, j)] = value.im;
        }
        row += 2;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::samples::pairs_and_real_poles;
    use crate::ssm::Time;

    /// A pair, a real pole with a residue of rank one and one of rank two.
    fn several() -> DiagonalSystem {
        let exponents = [(-0.5, 3.1), (-0.4, 0.0), (-0.3, 0.0)];
        let entry = |i: usize, j: usize| match i {
            1 => Complex64::from((j + 1) as f64),
            _ => Complex64::new((i + j + 1) as f64, (2 * j) as f64 - 1.0),
        };
        DiagonalSystem::new(
            Time::Continuous,
            exponents.map(|(re, im)| Complex64::new(re, im)).to_vec(),
            DMatrix::from_fn(3, 2, entry),
            DMatrix::from_fn(2, 3, |i, j| entry(j, i).conj()),
            DMatrix::zeros(2, 2),
        )
        .unwrap()
    }

    #[test]
    fn the_real_system_has_the_markov_parameters_of_the_complex_one() {
        for system in [pairs_and_real_poles(Time::Continuous, 0.5), several()] {
            let real = RealSystem::of(&system);
            assert_eq!(real.exponents(), system.exponents());
            let (mut right, mut left) = (real.input.clone(), real.output.clone());
            let mut complex = system.input().clone();
            for power in 0..4 {
                let expected = (system.output() * &complex).map(|x| x.re);
                let bound = 1e-13 * (1.0 + expected.norm());
                assert!(
                    (&real.output * &right - &expected).norm() < bound,
                    "{power}"
                );
                assert!((&left * &real.input - &expected).norm() < bound, "{power}");
                right = real.apply(system.exponents(), &right);
                left = real.apply_right(&left, system.exponents());
                for (mut row, z) in complex.row_iter_mut().zip(system.exponents()) {
                    row *= *z;
                }
            }
        }
    }

    #[test]
    fn states_are_counted_and_named_by_mode_and_part() {
        let system = several();
        let real = RealSystem::of(&system);
        let parts = [(0, false), (0, true), (1, false), (2, false), (2, true)];
        assert_eq!(real.states(), parts);
        assert_eq!([0, 1, 2].map(|i| real.is_single(i)), [false, true, false]);
        assert_eq!(real_states(&system), 5);
        assert_eq!(real_states(&pairs_and_real_poles(Time::Continuous, 0.0)), 8);
        let rows = real.complex_rows(&real.input);
        assert!((rows - system.input()).norm() < 1e-14);
        let columns = real.complex_rows(&real.output.transpose());
        for (i, share) in [(0, 0.5), (1, 1.0), (2, 0.5)] {
            let expected = system.output().column(i).adjoint() * Complex64::from(share);
            assert!((columns.row(i) - expected).norm() < 1e-14, "{i}");
        }
    }

    #[test]
    fn modes_with_the_same_or_the_conjugate_pole_are_one_with_the_sum_of_their_residues() {
        let (pole, real) = (Complex64::new(-0.5, 2.0), Complex64::from(-0.5));
        let exponents = vec![pole, real, pole.conj(), pole, real];
        let residues: Vec<_> = (0..5).map(|k| Complex64::new(f64::from(k), 1.0)).collect();
        let system = DiagonalSystem::siso(Time::Continuous, exponents, &residues, 0.0).unwrap();
        let modes = real_modes(system.as_siso().unwrap());
        assert_eq!(modes.len(), 2);
        assert_eq!((modes[0].lambda, modes[0].states()), (pole, 2));
        assert_eq!(
            modes[0].residue,
            residues[0] + residues[2].conj() + residues[3]
        );
        assert_eq!((modes[1].lambda, modes[1].states()), (real, 1));
        assert_eq!(modes[1].residue, Complex64::from(5.0));
    }
}
