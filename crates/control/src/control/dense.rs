//! Gramians, Hankel values, truncation and norms of dense real systems.
//!
//! The factors come from a Schur form, so they carry errors of 10⁻¹⁵ of their norm: a Hankel
//! value is right to about 10⁻¹⁴ σ₁, not relative to itself. For diagonal systems use
//! [`hankel_values`](crate::control::hankel_values) and [`balance`](crate::control::balance).

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::control::block::Block;
use crate::control::gramian::grade_columns;
use crate::control::hankel_norm::{Cut, half_plane, stable_modes};
use crate::control::modes::{Modes, exponent_of};
use crate::control::{ControlError, GramianFactors, HankelValues};
use crate::linalg::{
    Equation, GradedSvd, LinalgError, Triangular, dense_svd, diagonalise_real, multiply,
    multiply_adjoint,
};
use crate::ssm::{DenseSystem, DiagonalSystem, SystemError, Time};

/// The Gramians W_c and W_o of a dense system.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DenseGramians {
    /// W_c: A W_c + W_c Aᵀ + B Bᵀ = 0, or A W_c Aᵀ − W_c + B Bᵀ = 0.
    pub controllability: DMatrix<f64>,
    /// W_o: Aᵀ W_o + W_o A + Cᵀ C = 0, or Aᵀ W_o A − W_o + Cᵀ C = 0.
    pub observability: DMatrix<f64>,
}

/// Both Gramians, by the general solver of the matrix equation. Cost about 70 n³.
///
/// # Errors
/// [`ControlError::System`] for an unstable system; [`ControlError::Linalg`].
///
/// # References
/// Bartels and Stewart, *Algorithm 432*, Comm. ACM 15 (1972).
pub fn dense_gramians(system: &DenseSystem) -> Result<DenseGramians, ControlError> {
    let equation = equation(system.time());
    let schur = stable_schur(system.time(), system.state())?;
    let dual = Triangular::new(&system.state().transpose())?;
    let (b, c) = (system.input(), system.output());
    Ok(DenseGramians {
        controllability: schur.solve(equation, &(b * b.transpose()))?,
        observability: dual.solve(equation, &(c.transpose() * c))?,
    })
}

/// F_c and F_o with W = F Fᵀ, without forming W. Cost about 70 n³.
///
/// # Errors
/// [`ControlError::System`] for an unstable system; [`ControlError::Linalg`].
///
/// # References
/// Hammarling, IMA J. Numer. Anal. 2 (1982).
pub fn dense_gramian_factors(system: &DenseSystem) -> Result<GramianFactors<f64>, ControlError> {
    let equation = equation(system.time());
    let schur = stable_schur(system.time(), system.state())?;
    let dual = Triangular::new(&system.state().transpose())?;
    let controllability = schur.factor(equation, system.input())?;
    let observability = dual.factor(equation, &system.output().transpose())?;
    Ok(GramianFactors {
        controllability: real_factor(&controllability),
        observability: real_factor(&observability),
    })
}

/// F F* is real: Re F and Im F side by side stand for F, and a QR brings them to n columns.
pub(super) fn real_factor(factor: &DMatrix<Complex64>) -> DMatrix<f64> {
    let columns = factor.ncols();
    let parts = DMatrix::from_fn(factor.nrows(), 2 * columns, |i, j| {
        if j < columns {
            factor[(i, j)].re
        } else {
            factor[(i, j - columns)].im
        }
    });
    grade_columns(&parts)
}

fn equation(time: Time) -> Equation {
    match time {
        Time::Continuous => Equation::Lyapunov,
        Time::Discrete { .. } => Equation::Stein,
    }
}

pub(super) fn stable_schur(time: Time, state: &DMatrix<f64>) -> Result<Triangular, ControlError> {
    let schur = Triangular::new(state)?;
    let values = schur.eigenvalues();
    let unstable = |value: &Complex64| match time {
        Time::Continuous => value.re >= 0.0,
        Time::Discrete { .. } => value.norm() >= 1.0,
    };
    let modes: Vec<(usize, Complex64)> = values
        .iter()
        .enumerate()
        .filter(|(_, value)| unstable(value))
        .map(|(i, &value)| (i, pole_exponent(time, value)))
        .collect();
    if modes.is_empty() {
        return Ok(schur);
    }
    let order = values.len();
    Err(SystemError::Unstable { modes, order }.into())
}

fn pole_exponent(time: Time, pole: Complex64) -> Complex64 {
    match time {
        Time::Continuous => pole,
        Time::Discrete { .. } => exponent_of(time, pole - 1.0),
    }
}

/// The Hankel singular values of a stable dense system, right to about 10⁻¹⁴ σ₁. Cost about
/// 150 n³.
///
/// # Errors
/// As [`dense_gramian_factors`].
pub fn dense_hankel_values(system: &DenseSystem) -> Result<HankelValues, ControlError> {
    let svd = product_svd(&dense_gramian_factors(system)?)?;
    Ok(HankelValues::new(svd.sigma, system.order()))
}

fn product_svd(factors: &GramianFactors<f64>) -> Result<GradedSvd<f64>, ControlError> {
    Ok(dense_svd(
        &(factors.observability.transpose() * &factors.controllability),
    )?)
}

/// The H2 norm ‖C F_c‖_F of a stable dense system, feedthrough left out.
///
/// # Errors
/// As [`dense_gramian_factors`].
pub fn dense_h2_norm(system: &DenseSystem) -> Result<f64, ControlError> {
    let schur = stable_schur(system.time(), system.state())?;
    let factor = schur.factor(equation(system.time()), system.input())?;
    Ok((system.output().map(Complex64::from) * factor).norm())
}

/// A dense system in balanced coordinates, ready to be cut at any order.
#[derive(Debug, Clone)]
pub struct DenseBalanced {
    hankel: HankelValues,
    block: Block<f64>,
    time: Time,
    feedthrough: DMatrix<f64>,
    /// Whether the Gramians are those of the system, so that error bounds hold.
    bounded: bool,
}

/// A truncated dense system.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct DenseReduced {
    /// The reduced system.
    pub system: DenseSystem,
    /// States kept; below the requested number when that was above the numerical rank.
    pub order: usize,
    /// 2 Σ_{j>order} σ_j; infinite after weighted or stochastic balancing, for which none is known.
    pub error_bound: f64,
    /// Whether the cut fell between two equal Hankel singular values.
    pub tie: bool,
}

/// Balances a stable dense system by the square-root method; see
/// [`balance`](crate::control::balance) for the equations. Cost about 160 n³.
///
/// # Errors
/// As [`dense_gramian_factors`].
///
/// # References
/// Tombs and Postlethwaite, *Truncated balanced realization of a stable non-minimal state-space
/// system*, Int. J. Control 46 (1987).
pub fn dense_balance(system: &DenseSystem) -> Result<DenseBalanced, ControlError> {
    balanced_by(system, &dense_gramian_factors(system)?, true)
}

/// The system balanced by these factors, whatever Gramians they belong to.
pub(super) fn balanced_by(
    system: &DenseSystem,
    factors: &GramianFactors<f64>,
    bounded: bool,
) -> Result<DenseBalanced, ControlError> {
    let svd = product_svd(factors)?;
    let hankel = HankelValues::new(svd.sigma.clone(), system.order());
    let block = leading_block(system, factors, &svd, hankel.numerical_rank());
    Ok(DenseBalanced {
        hankel,
        block,
        time: system.time(),
        feedthrough: system.feedthrough().clone(),
        bounded,
    })
}

/// The balanced (A, B, C) of the leading `rank` states.
fn leading_block(
    system: &DenseSystem,
    factors: &GramianFactors<f64>,
    svd: &GradedSvd<f64>,
    rank: usize,
) -> Block<f64> {
    let mut right = multiply(&factors.controllability, &svd.right(rank));
    let mut left = multiply(&factors.observability, &svd.left(rank));
    for j in 0..rank {
        let root = svd.sigma[j].sqrt();
        right.column_mut(j).unscale_mut(root);
        left.column_mut(j).unscale_mut(root);
    }
    Block {
        a: multiply_adjoint(&left, &(system.state() * &right)),
        b: multiply_adjoint(&left, system.input()),
        c: multiply(system.output(), &right),
    }
}

impl DenseBalanced {
    /// The Hankel singular values, one per state.
    pub fn hankel(&self) -> &HankelValues {
        &self.hankel
    }

    /// Keeps the `states` leading balanced states.
    ///
    /// # Errors
    /// [`ControlError::System`] when the result is not finite.
    pub fn truncate(&self, states: usize) -> Result<DenseReduced, ControlError> {
        let order = states.min(self.hankel.numerical_rank());
        self.reduced(self.block.leading(order), self.feedthrough.clone())
    }

    /// Keeps the `states` leading balanced states and sets the others to the values at which they
    /// would rest (s = 0, z = 1). The feedthrough changes.
    ///
    /// ```text
    /// N_r = N₁₁ − N₁₂ N₂₂⁻¹ N₂₁   b_r = b₁ − N₁₂ N₂₂⁻¹ b₂   c_r = c₁ − c₂ N₂₂⁻¹ N₂₁
    /// D_r = D − c₂ N₂₂⁻¹ b₂       N = A, or A − I in discrete time
    /// ```
    ///
    /// In discrete time C (zI − A)⁻¹ B + D is what keeps its gain, the transfer function of
    /// [`DenseSystem::transfer`].
    ///
    /// # Errors
    /// [`ControlError::Linalg`] when N₂₂ is singular to working precision.
    ///
    /// # References
    /// Liu and Anderson, *Singular perturbation approximation of balanced systems*, Int. J.
    /// Control 50 (1989); SLICOT AB09BD.
    pub fn residualise(&self, states: usize) -> Result<DenseReduced, ControlError> {
        let rank = self.hankel.numerical_rank();
        let order = states.min(rank);
        let Block { a, b, c } = self.block.leading(order);
        let shift = match self.time {
            Time::Continuous => 0.0,
            Time::Discrete { .. } => 1.0,
        };
        let rest = rank - order;
        let mut steady = self.block.a.view((order, order), (rest, rest)).into_owned();
        steady -= DMatrix::identity(rest, rest) * shift;
        let (n21, b2) = (
            self.block.a.view((order, 0), (rest, order)),
            self.block.b.rows(order, rest),
        );
        let (n12, c2) = (
            self.block.a.view((0, order), (order, rest)),
            self.block.c.columns(order, rest),
        );
        let lu = steady.lu();
        let singular = LinalgError::NoUniqueSolution { size: rest };
        let follow = lu.solve(&n21.into_owned()).ok_or(singular.clone())?;
        let driven = lu.solve(&b2.into_owned()).ok_or(singular)?;
        let block = Block {
            a: a - n12 * &follow,
            b: b - n12 * &driven,
            c: c - c2 * follow,
        };
        self.reduced(block, &self.feedthrough - c2 * driven)
    }

    fn reduced(
        &self,
        block: Block<f64>,
        feedthrough: DMatrix<f64>,
    ) -> Result<DenseReduced, ControlError> {
        let order = block.a.nrows();
        Ok(DenseReduced {
            system: DenseSystem::new(self.time, block.a, block.b, block.c, feedthrough)?,
            order,
            error_bound: if self.bounded {
                self.hankel.truncation_bound(order)
            } else {
                f64::INFINITY
            },
            tie: self.hankel.tie_at(order),
        })
    }

    /// The system of order `states` whose error has the least Hankel norm, σ_{r+1}; see
    /// [`Balanced::hankel_norm`](crate::control::Balanced::hankel_norm) for the equations. The
    /// state matrix is block-diagonal. Nothing checks the result.
    ///
    /// # Errors
    /// [`ControlError::HankelNorm`] when rounding leaves another number of stable modes;
    /// [`ControlError::Linalg`].
    ///
    /// # References
    /// Glover, Int. J. Control 39 (1984); SLICOT AB09CD.
    pub fn hankel_norm(&self, states: usize) -> Result<DenseReduced, ControlError> {
        if states >= self.hankel.numerical_rank() {
            return self.truncate(states);
        }
        let cut = Cut::new(&self.hankel, states);
        let block = half_plane(&self.block, self.time, 1.0)?;
        let optimum = stable_modes(&block, &cut)?;
        cut.require(optimum.order)?;
        let feedthrough = match self.time {
            Time::Continuous => &self.feedthrough + &optimum.direct,
            Time::Discrete { .. } => self.feedthrough.clone(),
        };
        let (modes, factor) = optimum.modes_in(self.time);
        let system = modes.into_system(self.time, feedthrough)?;
        let system = DenseSystem::from_diagonal(&system)?;
        Ok(DenseReduced {
            order: cut.order(),
            error_bound: factor * self.hankel.truncation_bound(cut.order()),
            tie: cut.order() < states,
            system,
        })
    }
}

/// The diagonal system with the same real output, and κ₂ of the eigenvectors: by that factor
/// rounding of A can grow in it. Of a conjugate pair one mode stays, with twice its c. Cost
/// about 60 n³.
///
/// # Errors
/// [`ControlError::Linalg`] for a matrix without a complete set of eigenvectors.
pub fn diagonalise(system: &DenseSystem) -> Result<(DiagonalSystem, f64), ControlError> {
    let d = diagonalise_real(system.state())?;
    let time = system.time();
    let b = system.input().map(Complex64::from);
    let c = system.output().map(Complex64::from);
    let modes = Modes::new(&d, &b, &c).upper_half();
    let exponents = modes.values.iter().map(|&pole| pole_exponent(time, pole));
    let diagonal = DiagonalSystem::new(
        time,
        exponents.collect(),
        modes.input,
        modes.output,
        system.feedthrough().clone(),
    )?;
    Ok((diagonal, d.condition))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{Realisation, hankel_values};
    use crate::linalg::symmetric_root;

    #[test]
    fn roots_of_computed_gramians_lose_what_factors_keep() {
        // Real poles −1 … −12: values down to 1e-17 of the largest.
        let a = DMatrix::from_fn(12, 12, |i, j| if i == j { -(i as f64 + 1.0) } else { 0.0 });
        let (b, c) = (
            DMatrix::from_element(12, 1, 1.0),
            DMatrix::from_element(1, 12, 1.0),
        );
        let system = DenseSystem::new(Time::Continuous, a, b, c, DMatrix::zeros(1, 1)).unwrap();
        let factors = dense_gramian_factors(&system).unwrap();
        let gramians = dense_gramians(&system).unwrap();
        let w = &factors.controllability * factors.controllability.transpose();
        assert!((&w - &gramians.controllability).norm() < 1e-14);
        let root = |w: &DMatrix<f64>| symmetric_root(w).unwrap();
        let (c, o) = (
            root(&gramians.controllability),
            root(&gramians.observability),
        );
        let textbook = (o.transpose() * c).singular_values();
        let dense = dense_hankel_values(&system).unwrap();
        let diagonal = diagonalise(&system).unwrap().0;
        let sigma = hankel_values(diagonal.stable().unwrap(), Realisation::Real).unwrap();
        let error = |found: &[f64], k: usize| (found[k] / sigma.values()[k] - 1.0).abs();
        assert!(error(textbook.as_slice(), 0) < 1e-12 && error(dense.values(), 0) < 1e-12);
        assert!(error(textbook.as_slice(), 10) > 1e-6 && error(textbook.as_slice(), 11) > 1e-2);
        assert!(error(dense.values(), 6) < 1e-10 && error(dense.values(), 9) < 1e-6);
    }
}
