//! Balancing over a finite horizon: Gramians of h steps, with or without stability.

use nalgebra::{ComplexField, DMatrix, DVector};
use num_complex::Complex64;

use crate::control::balance::{Form, Gramians, Metric, project};
use crate::control::block::shifted_poles;
use crate::control::realisation::{RealSystem, real_states};
use crate::control::{Balanced, ControlError, GramianFactors, HankelValues, Realisation, Reduced};
use crate::ssm::{DiagonalSystem, SystemError, Time, geometric_sum};

/// A discrete system balanced over a horizon, ready to be cut at any order.
#[derive(Debug, Clone)]
pub struct HorizonBalanced {
    balanced: Balanced,
    clipped: f64,
}

/// A system truncated over a horizon, diagonal again.
#[derive(Debug, Clone)]
#[must_use]
#[non_exhaustive]
pub struct HorizonReduced {
    /// The reduced system.
    pub system: DiagonalSystem,
    /// Balanced states kept; below the requested number when that was above the numerical rank.
    pub order: usize,
    /// κ₂ of the eigenvectors that diagonalise the truncated matrix.
    pub condition: f64,
    /// Whether every mode decays. Nothing guarantees it, not even for a stable full system.
    pub stable: bool,
    /// Whether the cut fell between two equal Hankel singular values.
    pub tie: bool,
}

/// Balances a system by its Gramians over `horizon` steps. The poles may lie anywhere: a finite
/// sum needs no stability.
///
/// ```text
/// (W_c^h)_ij = b_i b̄_j (1 − q^h)/(1 − q),   q = a_i ā_j        = Σ_{l<h} a^l b (a^l b)*
/// (W_o^h)_ij = c̄_i c_j (1 − q̄^h)/(1 − q̄)                       h where q = 1
/// ```
///
/// 1 − q^h is −expm1(h(λ_i + λ̄_j)Δ), so every entry is right relative to itself except where the
/// two members of an almost real pair cancel. Each Gramian is factored by Cholesky with complete
/// pivoting. A row whose remaining diagonal entry falls below 4 n ε of what it was is set aside,
/// because only rounding is left of it; [`HorizonBalanced::clipped`] is how much that was. So
/// values below about 1e-8 of the largest are not right relative to themselves, unlike those of
/// [`crate::control::hankel_values`].
///
/// The Hankel singular values are those of k[i + j], i, j < h: they see 2h − 1 kernel samples.
/// A kernel of length L is covered by h = L/2; h = L weighs its end more and what follows it too.
/// Cost about 60 n³ flops, whatever the horizon.
///
/// # Errors
/// [`ControlError::System`] for continuous time, and where growth over the horizon overflows.
///
/// # References
/// Gawronski and Juang, *Model reduction in limited time and frequency intervals*, Int. J.
/// Systems Sci. 21 (1990).
pub fn balance_over_horizon(
    system: &DiagonalSystem,
    horizon: usize,
    realisation: Realisation,
) -> Result<HorizonBalanced, ControlError> {
    let Time::Discrete { step } = system.time() else {
        return Err(ControlError::System(SystemError::WrongTime {
            found: "continuous",
            expected: "discrete",
        }));
    };
    let (hankel, form, clipped) = match realisation {
        Realisation::Real => balance_real(system, step, horizon)?,
        Realisation::Complex => balance_complex(system, horizon)?,
    };
    Ok(HorizonBalanced {
        balanced: Balanced {
            hankel,
            form,
            time: system.time(),
            feedthrough: system.feedthrough().clone(),
            metric: Metric::White,
        },
        clipped,
    })
}

type BalancedForm = (HankelValues, Form, f64);

fn balance_complex(system: &DiagonalSystem, horizon: usize) -> Result<BalancedForm, ControlError> {
    let nodes = system.scaled_exponents();
    let mirrored: Vec<Complex64> = nodes.iter().map(|z| z.conj()).collect();
    let gramian = |nodes: &[Complex64], rows: &DMatrix<Complex64>| {
        let mut gramian = rows * rows.adjoint();
        for j in 0..nodes.len() {
            for i in 0..nodes.len() {
                gramian[(i, j)] *= geometric_sum(nodes[i] + nodes[j].conj(), horizon);
            }
        }
        gramian
    };
    let (controllability, lost_c) = factor(gramian(&nodes, system.input()))?;
    let (observability, lost_o) = factor(gramian(&mirrored, &system.output().adjoint()))?;
    let factors = GramianFactors {
        controllability,
        observability,
    };
    let shifted = shifted_poles(system.time(), system.exponents());
    let diagonal = DMatrix::from_diagonal(&DVector::from_vec(shifted));
    let apply = |x: &DMatrix<Complex64>| &diagonal * x;
    let (b, c) = (system.input(), system.output());
    let (hankel, projection) = project(factors, apply, b, c, system.order())?;
    Ok((hankel, Form::Complex(projection), lost_c.max(lost_o)))
}

fn balance_real(
    system: &DiagonalSystem,
    step: f64,
    horizon: usize,
) -> Result<BalancedForm, ControlError> {
    let real = RealSystem::of(system);
    let exponents = real.exponents();
    let nodes: Vec<Complex64> = exponents.iter().map(|lambda| lambda * step).collect();
    let mirrored: Vec<Complex64> = nodes.iter().map(|z| z.conj()).collect();
    let gramian = |nodes: &[Complex64], rows: &DMatrix<f64>| {
        factor(window_gramian(
            &real,
            nodes,
            &real.complex_rows(rows),
            horizon,
        ))
    };
    let (controllability, lost_c) = gramian(&nodes, &real.input)?;
    let (observability, lost_o) = gramian(&mirrored, &real.output.transpose())?;
    let factors = GramianFactors {
        controllability,
        observability,
    };
    let shifted = shifted_poles(system.time(), &exponents);
    let apply = |x: &DMatrix<f64>| real.apply(&shifted, x);
    let states = real_states(system);
    let (hankel, projection) = project(factors, apply, &real.input, &real.output, states)?;
    Ok((hankel, Form::Real(projection), lost_c.max(lost_o)))
}

impl From<HorizonReduced> for Reduced {
    /// Over a horizon no error bound is known, and no order is lowered.
    fn from(cut: HorizonReduced) -> Self {
        Self {
            system: cut.system,
            order: cut.order,
            error_bound: f64::INFINITY,
            condition: cut.condition,
            lowered: false,
            tie: cut.tie,
        }
    }
}

impl HorizonBalanced {
    /// The Hankel singular values over the horizon, one per real state.
    pub fn hankel(&self) -> &HankelValues {
        self.balanced.hankel()
    }

    /// The largest diagonal entry that was set aside as rounding, relative to what that entry was
    /// before the elimination; 0 when both Gramians were used in full.
    pub fn clipped(&self) -> f64 {
        self.clipped
    }

    /// Keeps the `states` leading balanced states and diagonalises what is left. There is no
    /// error bound, and the result may be unstable: see `stable`.
    ///
    /// # Errors
    /// [`ControlError::Linalg`] when the truncated matrix has no complete set of eigenvectors.
    pub fn truncate(&self, states: usize) -> Result<HorizonReduced, ControlError> {
        let order = states.min(self.hankel().numerical_rank());
        let (modes, condition) = self.balanced.form.all_modes(order, Gramians::Unknown)?;
        let feedthrough = self.balanced.feedthrough.clone();
        let system = modes.into_system(self.balanced.time, feedthrough)?;
        Ok(HorizonReduced {
            stable: system.is_stable(),
            system,
            order,
            condition,
            tie: self.hankel().tie_at(order),
        })
    }
}

/// The Gramian over the horizon in the coordinates (√2 Re x, √2 Im x) of each pair, from the
/// complex row of each mode.
fn window_gramian(
    real: &RealSystem,
    nodes: &[Complex64],
    weights: &DMatrix<Complex64>,
    horizon: usize,
) -> DMatrix<f64> {
    let rows = real.states();
    let scale = |i: usize| {
        if real.is_single(i) {
            0.5_f64.sqrt()
        } else {
            1.0
        }
    };
    let (products, plain) = (weights * weights.adjoint(), weights * weights.transpose());
    let entry = |row: usize, column: usize| {
        let ((i, imaginary_i), (j, imaginary_j)) = (rows[row], rows[column]);
        let sum = |x: Complex64| geometric_sum(nodes[i] + x, horizon);
        // Σ x_i x̄_j and Σ x_i x_j.
        let hermitian = products[(i, j)] * sum(nodes[j].conj());
        let plain = plain[(i, j)] * sum(nodes[j]);
        let value = match (imaginary_i, imaginary_j) {
            (false, false) => hermitian.re + plain.re,
            (false, true) => plain.im - hermitian.im,
            (true, false) => plain.im + hermitian.im,
            (true, true) => hermitian.re - plain.re,
        };
        value * scale(i) * scale(j)
    };
    let states = rows.len();
    let mut gramian = DMatrix::zeros(states, states);
    for column in 0..states {
        for row in column..states {
            let value = entry(row, column);
            gramian[(row, column)] = value;
            gramian[(column, row)] = value;
        }
    }
    gramian
}

/// F with W = F F* by Cholesky with complete pivoting, and the largest relative diagonal entry
/// that was set aside.
pub(super) fn factor<T: ComplexField<RealField = f64>>(
    mut w: DMatrix<T>,
) -> Result<(DMatrix<T>, f64), ControlError> {
    let finite = |row: usize| w.row(row).iter().all(|x| x.clone().is_finite());
    if let Some(mode) = (0..w.nrows()).find(|&row| !finite(row)) {
        let what = "the growth over the horizon";
        return Err(ControlError::System(SystemError::NotFinite { what, mode }));
    }
    let n = w.nrows();
    let whole: Vec<f64> = (0..n).map(|i| w[(i, i)].clone().real()).collect();
    let floor = 4.0 * n as f64 * f64::EPSILON;
    let mut active: Vec<bool> = whole.iter().map(|&x| x > 0.0).collect();
    let mut columns: Vec<Vec<T>> = Vec::new();
    let mut clipped = 0.0_f64;
    loop {
        let left = |i: usize| w[(i, i)].clone().real();
        for i in 0..n {
            if active[i] && left(i) <= floor * whole[i] {
                clipped = clipped.max(left(i).abs() / whole[i]);
                active[i] = false;
            }
        }
        let candidates = (0..n).filter(|&i| active[i]);
        let Some(k) = candidates.max_by(|&i, &j| left(i).total_cmp(&left(j))) else {
            break;
        };
        columns.push(eliminate(&mut w, &active, k));
        active[k] = false;
    }
    let factor = DMatrix::from_fn(n, columns.len(), |i, j| columns[j][i].clone());
    Ok((factor, clipped))
}

/// The column of the factor for pivot k, taken off the active part of W.
fn eliminate<T: ComplexField<RealField = f64>>(
    w: &mut DMatrix<T>,
    active: &[bool],
    k: usize,
) -> Vec<T> {
    let n = w.nrows();
    let root = w[(k, k)].clone().real().sqrt();
    let mut column = vec![T::zero(); n];
    for i in (0..n).filter(|&i| active[i]) {
        column[i] = w[(i, k)].clone().unscale(root);
    }
    for (j, own) in w.as_mut_slice().chunks_exact_mut(n).enumerate() {
        if active[j] {
            let factor = column[j].clone().conjugate();
            // Rows that are done have a zero in the column.
            for (entry, x) in own.iter_mut().zip(&column) {
                *entry -= x.clone() * factor.clone();
            }
        }
    }
    column
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> DiagonalSystem {
        let exponents = [
            (0.3, 2.0),
            (-0.4, 0.0),
            (0.0, 0.0),
            (-0.1, -9.0),
            (0.2, 0.0),
        ];
        let exponents = exponents.map(|(re, im)| Complex64::new(re, im)).to_vec();
        let residues = [(1.0, 0.3), (0.2, -0.7), (0.5, 0.0), (-2.0, 0.1), (0.1, 0.0)];
        let residues = residues.map(|(re, im)| Complex64::new(re, im));
        DiagonalSystem::siso(Time::Discrete { step: 0.1 }, exponents, &residues, 0.0).unwrap()
    }

    /// Σ_{l<h} A^l B Bᵀ A^{lT} and Σ Aᵀ^l Cᵀ C A^l by their definitions.
    fn direct(system: &DiagonalSystem, horizon: usize) -> (DMatrix<f64>, DMatrix<f64>) {
        let real = RealSystem::of(system);
        let (mut x, mut y) = (real.input.clone(), real.output.clone());
        let states = x.nrows();
        let a = real.apply(&system.poles(), &DMatrix::identity(states, states));
        let mut sums = (
            DMatrix::zeros(states, states),
            DMatrix::zeros(states, states),
        );
        for _ in 0..horizon {
            sums.0 += &x * x.transpose();
            sums.1 += y.transpose() * &y;
            x = &a * x;
            y *= &a;
        }
        sums
    }

    /// Two inputs and three outputs.
    fn several() -> DiagonalSystem {
        let single = sample();
        let n = single.order();
        let entry = |i: usize, j: usize| {
            Complex64::new(((3 * i + j) as f64).sin(), ((i + 2 * j * j) as f64).cos())
        };
        DiagonalSystem::new(
            single.time(),
            single.exponents().to_vec(),
            DMatrix::from_fn(n, 2, entry),
            DMatrix::from_fn(3, n, entry),
            DMatrix::zeros(3, 2),
        )
        .unwrap()
    }

    #[test]
    fn the_factors_give_the_sums_over_the_horizon() {
        for system in [sample(), several()] {
            let real = RealSystem::of(&system);
            let nodes: Vec<Complex64> = system.scaled_exponents();
            let mirrored: Vec<Complex64> = nodes.iter().map(|z| z.conj()).collect();
            for horizon in [1, 2, 37] {
                let (w_c, w_o) = direct(&system, horizon);
                let rows = real.complex_rows(&real.input);
                let (found, clipped) =
                    factor(window_gramian(&real, &nodes, &rows, horizon)).unwrap();
                let error = (&found * found.transpose() - &w_c).norm() / w_c.norm();
                assert!(
                    error < 1e-13 && clipped < 1e-14,
                    "{horizon} {error:e} {clipped:e}"
                );
                let inputs = real.input.ncols();
                assert!(found.ncols() <= (horizon * inputs).min(real.input.nrows()));
                let rows = real.complex_rows(&real.output.transpose());
                let (found, _) = factor(window_gramian(&real, &mirrored, &rows, horizon)).unwrap();
                let error = (&found * found.transpose() - &w_o).norm() / w_o.norm();
                assert!(error < 1e-13, "{horizon} {error:e}");
            }
        }
    }

    #[test]
    fn the_full_order_is_the_system_itself() {
        let system = sample();
        let balanced = balance_over_horizon(&system, 100, Realisation::Real).unwrap();
        let same = balanced.truncate(7).unwrap();
        assert!(same.order == 7 && !same.stable);
        assert!((0.0..1e-12).contains(&balanced.clipped()));
        let kernels = system.kernel(100).unwrap();
        let size = kernels.iter().fold(0.0_f64, |m, k| m.max(k.abs()));
        for (k, found) in kernels.iter().zip(same.system.kernel(100).unwrap()) {
            assert!((k - found).abs() < 1e-10 * size, "{k} {found}");
        }
    }

    #[test]
    fn continuous_time_and_overflow_are_errors() {
        let pole = vec![Complex64::new(1.0, 0.0)];
        let one = [Complex64::ONE];
        let system = DiagonalSystem::siso(Time::Continuous, pole.clone(), &one, 0.0).unwrap();
        let error = balance_over_horizon(&system, 10, Realisation::Real).unwrap_err();
        assert!(matches!(
            error,
            ControlError::System(SystemError::WrongTime { .. })
        ));
        let time = Time::Discrete { step: 1.0 };
        let system = DiagonalSystem::siso(time, pole, &one, 0.0).unwrap();
        let error = balance_over_horizon(&system, 1000, Realisation::Real).unwrap_err();
        assert!(matches!(
            error,
            ControlError::System(SystemError::NotFinite { .. })
        ));
    }
}
