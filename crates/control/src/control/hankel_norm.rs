//! Optimal Hankel-norm approximation from balanced coordinates.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::control::balance::Form;
use crate::control::block::Block;
use crate::control::modes::Modes;
use crate::control::norm::difference;
use crate::control::{Balanced, ControlError, HankelValues, Reduced, hankel_values};
use crate::linalg::{LinalgError, Scalar, diagonalise_complex, diagonalise_real};
use crate::ssm::{StableSystem, Time};

/// How far the Hankel norm of the error may lie above σ_{r+1}: a part of itself, and of σ₁.
const ALLOWED: (f64, f64) = (1e-6, 1e-9);

/// Singular values of C₂ below this part of its norm are rounding.
const SINGULAR: f64 = 1e-10;

impl Balanced {
    /// The system of order `states` whose error has the least Hankel norm, σ_{r+1}. `full` is the
    /// system that was balanced.
    ///
    /// ```text
    /// Σ = diag(Σ₁, σ I),  σ = σ_{r+1},  Γ = Σ₁² − σ² I,  U = −(C₂*)⁺ B₂
    /// Â = Γ⁻¹ (σ² A₁₁* + Σ₁ A₁₁ Σ₁ − σ C₁* U B₁*)     B̂ = Γ⁻¹ (Σ₁ B₁ + σ C₁* U)
    /// Ĉ = C₁ Σ₁ + σ U B₁*                             D̂ = D − σ U
    /// ```
    ///
    /// r of the eigenvalues of Â are stable; their modes are the result. A discrete system goes
    /// through s = (z − 1)/(z + 1), which keeps Σ. Its D stays: a Hankel norm does not see it, and
    /// D̂ belongs to the sample before the first. In continuous time D changes to D̂, as in
    /// SLICOT's AB09CD, and the H∞ error is at most `error_bound` = 2 Σ σ_j over the tail; in
    /// discrete time the bound is twice that.
    ///
    /// Where σ_{r+1} is repeated, all orders between give the same error: the least is taken,
    /// and reported in `order`. The result is checked: the Hankel norm of its error is computed.
    /// Cost about 30 n³ flops, and 50 (n + r)³ for the check.
    ///
    /// # Errors
    /// [`ControlError::HankelNorm`] when rounding has moved the error off its optimum by more
    /// than 1e-6 of itself and 1e-9 σ₁; [`ControlError::Linalg`].
    ///
    /// # References
    /// Glover, *All optimal Hankel-norm approximations*, Int. J. Control 39 (1984), theorem 6.3,
    /// with U as in SLICOT AB09CX.
    pub fn hankel_norm(
        &self,
        full: StableSystem<'_>,
        states: usize,
    ) -> Result<Reduced, ControlError> {
        let rank = self.hankel.numerical_rank();
        if states >= rank {
            return self.truncate(states);
        }
        let cut = Cut::new(&self.hankel, states);
        let optimum = match &self.form {
            Form::Real(form) => stable_modes(&half_plane(&form.whole(), self.time, 0.0)?, &cut)?,
            Form::Complex(form) => stable_modes(&half_plane(&form.whole(), self.time, 0.0)?, &cut)?,
        };
        cut.require(optimum.order)?;
        let (order, condition) = (optimum.order, optimum.condition);
        let feedthrough = match self.time {
            Time::Continuous => &self.feedthrough + &optimum.direct,
            Time::Discrete { .. } => self.feedthrough.clone(),
        };
        let (modes, factor) = optimum.modes_in(self.time);
        let system = modes.into_system(self.time, feedthrough)?;
        let error = difference(full, system.stable()?, self.feedthrough.clone())?;
        let found = hankel_values(error.stable()?, self.realisation())?.values()[0];
        let allowed = ALLOWED.0 * cut.sigma + ALLOWED.1 * self.hankel.values()[0];
        if found.is_nan() || found - cut.sigma > allowed {
            return Err(cut.missed(found));
        }
        Ok(Reduced {
            system,
            order,
            error_bound: factor * self.hankel.truncation_bound(order),
            condition,
            lowered: false,
            tie: order < states,
        })
    }
}

/// Where the values are cut: before the first that equals σ_{r+1}.
pub(super) struct Cut<'a> {
    values: &'a [f64],
    lead: usize,
    end: usize,
    sigma: f64,
}

impl<'a> Cut<'a> {
    /// For an order below the numerical rank.
    pub(super) fn new(hankel: &'a HankelValues, order: usize) -> Self {
        let rank = hankel.numerical_rank();
        let lead = (0..=order).rev().find(|&q| !hankel.tie_at(q)).unwrap_or(0);
        let end = (order + 1..rank)
            .find(|&q| !hankel.tie_at(q))
            .unwrap_or(rank);
        Self {
            values: &hankel.values()[..rank],
            lead,
            end,
            sigma: hankel.values()[lead],
        }
    }

    /// The order that is reached.
    pub(super) fn order(&self) -> usize {
        self.lead
    }

    /// An error unless this many modes are stable.
    pub(super) fn require(&self, order: usize) -> Result<(), ControlError> {
        if order == self.lead {
            return Ok(());
        }
        Err(self.missed(f64::NAN))
    }

    fn missed(&self, found: f64) -> ControlError {
        ControlError::HankelNorm {
            order: self.lead,
            found,
            expected: self.sigma,
        }
    }

    /// The places of all values but those equal to σ.
    fn others(&self) -> Vec<usize> {
        (0..self.lead).chain(self.end..self.values.len()).collect()
    }
}

/// The continuous block with the same Hankel operator, of A − I (`shift` 0) or A (`shift` 1) in
/// discrete time.
pub(super) fn half_plane<T: Scalar>(
    block: &Block<T>,
    time: Time,
    shift: f64,
) -> Result<Block<T>, LinalgError> {
    if time == Time::Continuous {
        return Ok(block.clone());
    }
    let n = block.a.nrows();
    let identity = DMatrix::<T>::identity(n, n);
    let shifted = &block.a - &identity * nalgebra::convert::<f64, T>(shift);
    let twice: T = nalgebra::convert(2.0);
    let inverse = (&shifted + identity * twice).try_inverse();
    let inverse = inverse.ok_or(LinalgError::NoUniqueSolution { size: n })?;
    let root: T = nalgebra::convert(std::f64::consts::SQRT_2);
    Ok(Block {
        a: &inverse * shifted,
        b: &inverse * &block.b * root,
        c: &block.c * inverse * root,
    })
}

/// The stable part of Glover's system, with poles s of the half-plane, and −σ Re U.
pub(super) struct Optimum {
    modes: Modes,
    pub(super) order: usize,
    condition: f64,
    pub(super) direct: DMatrix<f64>,
}

impl Optimum {
    /// The modes in a time base, and the factor of the error bound.
    pub(super) fn modes_in(self, time: Time) -> (Modes, f64) {
        let mut modes = self.modes;
        if time == Time::Continuous {
            return (modes, 1.0);
        }
        for (j, value) in modes.values.iter_mut().enumerate() {
            let scale = (Complex64::ONE - *value).inv();
            *value *= 2.0 * scale;
            let factor = 2.0 * scale * scale;
            modes.output.column_mut(j).apply(|c| *c *= factor);
        }
        (modes, 2.0)
    }
}

pub(super) fn stable_modes<T>(block: &Block<T>, cut: &Cut<'_>) -> Result<Optimum, ControlError>
where
    T: Scalar + Into<Complex64> + Diagonal,
{
    let others = cut.others();
    let (hat, u) = glover(block, cut, &others)?;
    let (modes, condition) = T::modes(&hat)?;
    let stable: Vec<usize> = (0..modes.values.len())
        .filter(|&j| modes.values[j].re < 0.0)
        .collect();
    let order = stable.iter().map(|&j| T::states(modes.values[j])).sum();
    Ok(Optimum {
        modes: modes.select(&stable),
        order,
        condition,
        direct: u.map(|x| -cut.sigma * x.into().re),
    })
}

/// (Â, B̂, Ĉ) and U.
fn glover<T: Scalar>(
    block: &Block<T>,
    cut: &Cut<'_>,
    others: &[usize],
) -> Result<(Block<T>, DMatrix<T>), LinalgError> {
    let group: Vec<usize> = (cut.lead..cut.end).collect();
    let (b2, c2) = (block.b.select_rows(&group), block.c.select_columns(&group));
    let floor = SINGULAR * c2.norm();
    let inverse = c2.adjoint().pseudo_inverse(floor);
    let inverse = inverse.map_err(|_| LinalgError::NotFinite {
        what: "the output weights of the values that are cut",
    })?;
    let u = -(inverse * b2);
    let a11 = block.a.select_rows(others).select_columns(others);
    let (b1, c1) = (block.b.select_rows(others), block.c.select_columns(others));
    let real = |x: f64| nalgebra::convert::<f64, T>(x);
    let sigma = cut.sigma;
    let turned = c1.adjoint() * &u;
    let mut a = a11.adjoint() * real(sigma * sigma) - &turned * b1.adjoint() * real(sigma);
    let mut b = &turned * real(sigma);
    let mut c = &u * b1.adjoint() * real(sigma);
    for (i, &place) in others.iter().enumerate() {
        let value = cut.values[place];
        let gamma = (value - sigma) * (value + sigma);
        for (j, &other) in others.iter().enumerate() {
            a[(i, j)] += a11[(i, j)] * real(value * cut.values[other]);
        }
        for k in 0..b.ncols() {
            b[(i, k)] = (b[(i, k)] + b1[(i, k)] * real(value)) / real(gamma);
        }
        for k in 0..c.nrows() {
            c[(k, i)] += c1[(k, i)] * real(value);
        }
        a.row_mut(i).apply(|x| *x /= real(gamma));
    }
    Ok((Block { a, b, c }, u))
}

/// Modal coordinates of real and complex blocks.
pub(super) trait Diagonal: Scalar {
    fn modes(block: &Block<Self>) -> Result<(Modes, f64), LinalgError>;

    /// States behind a mode that is kept.
    fn states(value: Complex64) -> usize;
}

impl Diagonal for f64 {
    fn modes(block: &Block<f64>) -> Result<(Modes, f64), LinalgError> {
        let (b, c) = (block.b.map(Complex64::from), block.c.map(Complex64::from));
        if block.a.is_empty() {
            return Ok((Modes::none(&b, &c), 1.0));
        }
        let d = diagonalise_real(&block.a)?;
        Ok((Modes::new(&d, &b, &c).upper_half(), d.condition))
    }

    fn states(value: Complex64) -> usize {
        if value.im == 0.0 { 1 } else { 2 }
    }
}

impl Diagonal for Complex64 {
    fn modes(block: &Block<Complex64>) -> Result<(Modes, f64), LinalgError> {
        if block.a.is_empty() {
            return Ok((Modes::none(&block.b, &block.c), 1.0));
        }
        let d = diagonalise_complex(&block.a)?;
        Ok((Modes::new(&d, &block.b, &block.c), d.condition))
    }

    fn states(_: Complex64) -> usize {
        1
    }
}
