//! Balanced truncation, with the result diagonal again.

use nalgebra::{ComplexField, DMatrix};
use num_complex::Complex64;

use crate::control::block::{Block, shifted_poles};
use crate::control::hankel::factor_svd;
use crate::control::mirrored::Mirrored;
use crate::control::modes::{Modes, any_near_boundary, gaps};
use crate::control::realisation::{RealSystem, real_states};
use crate::control::{
    ControlError, GramianFactors, HankelValues, Realisation, complex_gramian_factors,
    real_gramian_factors,
};
use crate::linalg::{
    Diagonalised, GradedSvd, RealEigen, Scalar, diagonalise_complex, multiply, multiply_adjoint,
};
use crate::ssm::{DiagonalSystem, StableSystem, Time};

/// A system in balanced coordinates, ready to be cut at any order.
///
/// Both Gramians equal diag(σ). Cutting is taking the leading block, so many orders cost one
/// factorisation.
#[derive(Debug, Clone)]
pub struct Balanced {
    pub(super) hankel: HankelValues,
    pub(super) form: Form,
    pub(super) time: Time,
    pub(super) feedthrough: DMatrix<f64>,
    pub(super) metric: Metric,
}

/// For which input a system is balanced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Metric {
    /// White noise: both Gramians obey Lyapunov's equation.
    White,
    /// Another one: the controllability Gramian does not.
    Input,
}

/// What the balanced (A − I, B, C), in continuous time (A, B, C), is made from.
#[derive(Debug, Clone)]
pub(super) enum Form {
    Real(Projection<f64>),
    Complex(Projection<Complex64>),
}

/// Factors and singular vectors of as many states as the numerical rank. A block is formed when
/// it is requested: of most systems only the leading states are.
#[derive(Debug, Clone)]
pub(super) struct Projection<T: ComplexField<RealField = f64>> {
    sides: Sides<T>,
    svd: GradedSvd<T>,
    /// Values above rounding.
    rank: usize,
}

/// The two Gramian factors and what they are applied to.
#[derive(Debug, Clone)]
enum Sides<T: ComplexField<RealField = f64>> {
    Apart {
        /// F_o.
        left: DMatrix<T>,
        /// A F_c, or (A − I) F_c.
        moved: DMatrix<T>,
        input: DMatrix<T>,
        /// C F_c.
        output: DMatrix<T>,
    },
    Mirrored(Mirrored<T>),
}

/// A truncated system, diagonal again.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Reduced {
    /// The reduced system in the time base of the full one. A conjugate pair of the real
    /// realisation is one mode; a real pole is one mode too.
    pub system: DiagonalSystem,
    /// Balanced states kept. Below the requested number when that was above the numerical rank, or
    /// when rounding would have made a pole unstable.
    pub order: usize,
    /// 2 Σ_{j>order} σ_j.
    pub error_bound: f64,
    /// κ₂ of the eigenvectors that diagonalise the truncated matrix.
    pub condition: f64,
    /// Whether a lower order was taken because a higher one has a pole on or outside the boundary
    /// of stability in double precision.
    pub lowered: bool,
    /// Whether the cut fell between two equal Hankel singular values.
    pub tie: bool,
}

/// Balances a stable system with any numbers of inputs and outputs.
///
/// ```text
/// F_o* F_c = U Σ V*,   T_right = F_c V Σ^{−1/2},   T_left = Σ^{−1/2} U* F_o*
/// A_bal − I = T_left (A − I) T_right,   B_bal = T_left B,   C_bal = C T_right
/// ```
///
/// In discrete time A − I is projected instead of A: for small steps every pole is next to one,
/// and its distance from one is what carries the digits. Cost about 60 n³ flops.
///
/// # Errors
/// [`ControlError::Linalg`] when the Jacobi iteration does not settle.
///
/// # References
/// Ezoe and Sato, appendix A, in the square-root form that never inverts a Gramian.
pub fn balance(
    system: StableSystem<'_>,
    realisation: Realisation,
) -> Result<Balanced, ControlError> {
    let source = system.system();
    let (hankel, form) = match realisation {
        Realisation::Complex => {
            let (hankel, projection) = balance_complex(system)?;
            (hankel, Form::Complex(projection))
        }
        Realisation::Real => {
            let (hankel, projection) = balance_real(system)?;
            (hankel, Form::Real(projection))
        }
    };
    Ok(Balanced {
        hankel,
        form,
        time: source.time(),
        feedthrough: source.feedthrough().clone(),
        metric: Metric::White,
    })
}

fn balance_complex(
    system: StableSystem<'_>,
) -> Result<(HankelValues, Projection<Complex64>), ControlError> {
    let source = system.system();
    let states = source.order();
    if let Ok(siso) = source.as_siso() {
        return project_mirrored(Mirrored::of_complex(siso, source.time()), states);
    }
    let factors = complex_gramian_factors(system)?;
    let shifted = shifted_poles(source.time(), source.exponents());
    let apply = |x: &DMatrix<Complex64>| {
        let mut out = x.clone();
        for mut column in out.column_iter_mut() {
            for (entry, factor) in column.iter_mut().zip(&shifted) {
                *entry *= factor;
            }
        }
        out
    };
    project(factors, apply, source.input(), source.output(), states)
}

fn balance_real(system: StableSystem<'_>) -> Result<(HankelValues, Projection<f64>), ControlError> {
    let source = system.system();
    let states = real_states(source);
    if let Ok(siso) = source.as_siso() {
        return project_mirrored(Mirrored::of_real(siso, source.time()), states);
    }
    let real = RealSystem::of(source);
    let factors = real_gramian_factors(system)?;
    let shifted = shifted_poles(source.time(), &real.exponents());
    let apply = |x: &DMatrix<f64>| real.apply(&shifted, x);
    project(factors, apply, &real.input, &real.output, states)
}

/// As [`project`] from one factor.
fn project_mirrored<T: Scalar>(
    mirrored: Mirrored<T>,
    states: usize,
) -> Result<(HankelValues, Projection<T>), ControlError> {
    let svd = mirrored.svd()?;
    let hankel = HankelValues::traced(&svd, states);
    let projection = Projection {
        rank: hankel.numerical_rank(),
        svd,
        sides: Sides::Mirrored(mirrored),
    };
    Ok((hankel, projection))
}

/// Hankel values and the projection onto as many states as the numerical rank, `apply` being A, of
/// a system stored with `states` states.
pub(super) fn project<T: Scalar>(
    factors: GramianFactors<T>,
    apply: impl Fn(&DMatrix<T>) -> DMatrix<T>,
    b: &DMatrix<T>,
    c: &DMatrix<T>,
    states: usize,
) -> Result<(HankelValues, Projection<T>), ControlError> {
    let svd = factor_svd(&factors)?;
    let hankel = HankelValues::traced(&svd, states);
    let sides = Sides::Apart {
        moved: apply(&factors.controllability),
        output: multiply(c, &factors.controllability),
        left: factors.observability,
        input: b.clone(),
    };
    let projection = Projection {
        rank: hankel.numerical_rank(),
        svd,
        sides,
    };
    Ok((hankel, projection))
}

impl<T: Scalar> Projection<T> {
    /// The balanced (A, B, C) of the leading `order` states. Cost 4 n² `order` products.
    pub(super) fn leading(&self, order: usize) -> Block<T> {
        let (factor, moved, input, output) = match &self.sides {
            Sides::Mirrored(mirrored) => return mirrored.leading(&self.svd, order),
            Sides::Apart {
                left,
                moved,
                input,
                output,
            } => (left, moved, input, output),
        };
        let scaled = |mut vectors: DMatrix<T>| {
            for (mut column, sigma) in vectors.column_iter_mut().zip(&self.svd.sigma) {
                column.scale_mut(sigma.sqrt().recip());
            }
            vectors
        };
        let v = scaled(self.svd.right(order));
        let left = multiply(factor, &scaled(self.svd.left(order)));
        Block {
            a: multiply_adjoint(&left, &multiply(moved, &v)),
            b: multiply_adjoint(&left, input),
            c: multiply(output, &v),
        }
    }

    /// All states above rounding.
    pub(super) fn whole(&self) -> Block<T> {
        self.leading(self.rank)
    }
}

impl Form {
    /// The leading `order` states in modal coordinates, with one mode of each pair where they are
    /// real, and κ₂(V). Small decays are taken from the Gramians where these are known. `None` where
    /// there are more than `most` modes.
    pub(super) fn modes(
        &self,
        order: usize,
        most: usize,
        gramians: Gramians<'_>,
    ) -> Result<Option<(Modes, f64)>, ControlError> {
        match self {
            Form::Complex(_) if order > most => Ok(None),
            Form::Complex(projection) => {
                let kept = projection.leading(order);
                if order == 0 {
                    return Ok(Some((Modes::none(&kept.b, &kept.c), 1.0)));
                }
                let d = diagonalise_complex(&kept.a)?;
                let mut modes = Modes::new(&d, &kept.b, &kept.c);
                modes.gaps = gramians.gaps(&d, &kept, || projection.whole());
                Ok(Some((modes, d.condition)))
            }
            Form::Real(projection) => {
                let kept = projection.leading(order);
                let (b, c) = (kept.b.map(Complex64::from), kept.c.map(Complex64::from));
                if order == 0 {
                    return Ok(Some((Modes::none(&b, &c), 1.0)));
                }
                let eigen = RealEigen::new(&kept.a)?;
                let upper = eigen.values().iter().filter(|value| value.im >= 0.0);
                if upper.count() > most {
                    return Ok(None);
                }
                let d = eigen.diagonalised()?;
                let mut modes = Modes::new(&d, &b, &c);
                modes.gaps = gramians.gaps(&d, &kept, || projection.whole());
                Ok(Some((modes.upper_half(), d.condition)))
            }
        }
    }

    /// The same, however many modes there are.
    pub(super) fn all_modes(
        &self,
        order: usize,
        gramians: Gramians<'_>,
    ) -> Result<(Modes, f64), ControlError> {
        let modes = self.modes(order, usize::MAX, gramians)?;
        Ok(modes.expect("no limit was given"))
    }
}

/// What is known of the Gramians of a block that was cut to its leading states.
#[derive(Clone, Copy)]
pub(super) enum Gramians<'a> {
    /// Nothing.
    Unknown,
    /// Both are diag(σ), and so they stay when the block is cut.
    Kept(&'a [f64]),
    /// The same for (A − I)⁻¹, which obeys M Σ + Σ M* + Σ = −(M B)(M B)*.
    Reciprocal(&'a [f64]),
    /// Both are diag(σ) for the whole block of a discrete system: A₁₁ Σ₁ A₁₁* − Σ₁ is
    /// −B₁ B₁* − A₁₂ Σ₂ A₁₂*.
    Cut(&'a [f64]),
    /// The same of the observability Gramian alone.
    CutObserved(&'a [f64]),
}

impl Gramians<'_> {
    /// See [`gaps`]. Hardly any system has a mode so near the boundary, so the block before the cut
    /// is formed only then.
    fn gaps<T>(
        self,
        d: &Diagonalised,
        kept: &Block<T>,
        whole: impl Fn() -> Block<T>,
    ) -> Vec<Option<f64>>
    where
        T: Scalar + Into<Complex64>,
    {
        let (order, size) = (kept.a.nrows(), kept.a.norm());
        let (sigma, distance): (_, fn(Complex64) -> f64) = match self {
            Gramians::Unknown => return vec![None; order],
            Gramians::Kept(sigma) => (sigma, |value| 2.0 * value.re),
            Gramians::Reciprocal(sigma) => (sigma, |value| 2.0 * value.re + 1.0),
            Gramians::Cut(sigma) | Gramians::CutObserved(sigma) => {
                (sigma, |value| 2.0 * value.re + value.norm_sqr())
            }
        };
        if !any_near_boundary(d, size, distance) {
            return vec![None; order];
        }
        let (b, c) = (kept.b.map(Into::into), kept.c.map(Into::into));
        let (b, c) = match self {
            Gramians::Cut(_) => with_cut(&whole(), sigma, b, c),
            Gramians::CutObserved(_) => {
                let (_, c) = with_cut(&whole(), sigma, b, c);
                // No input: the quotient of that side is no offer.
                (DMatrix::zeros(order, 0), c)
            }
            _ => (b, c),
        };
        gaps(d, size, &sigma[..order], &b, &c)
    }
}

/// B and C of the leading states with what the cut took: the columns A₁₂ Σ₂^{1/2} and the rows
/// Σ₂^{1/2} A₂₁.
fn with_cut<T: Scalar + Into<Complex64>>(
    whole: &Block<T>,
    sigma: &[f64],
    b: DMatrix<Complex64>,
    c: DMatrix<Complex64>,
) -> (DMatrix<Complex64>, DMatrix<Complex64>) {
    let (order, m, p) = (b.nrows(), b.ncols(), c.nrows());
    let tail = whole.a.nrows() - order;
    let mut b = b.resize_horizontally(m + tail, Complex64::ZERO);
    let mut c = c.resize_vertically(p + tail, Complex64::ZERO);
    for k in 0..tail {
        let root = sigma[order + k].sqrt();
        for i in 0..order {
            b[(i, m + k)] = whole.a[(i, order + k)].into() * root;
            c[(p + k, i)] = whole.a[(order + k, i)].into() * root;
        }
    }
    (b, c)
}

impl Balanced {
    /// The Hankel singular values, one per state of the realisation.
    pub fn hankel(&self) -> &HankelValues {
        &self.hankel
    }

    /// Which realisation was balanced.
    pub fn realisation(&self) -> Realisation {
        match self.form {
            Form::Real(_) => Realisation::Real,
            Form::Complex(_) => Realisation::Complex,
        }
    }

    /// Keeps the `states` leading balanced states and diagonalises what is left.
    ///
    /// ```text
    /// A_r = V diag(ν) V⁻¹,   b_j = (V⁻¹ B_r)_j,   c_j = (C_r V)_j
    /// ```
    ///
    /// With one input and one output b is one and c is the residue. Of a conjugate pair one mode
    /// stays, with twice its c.
    ///
    /// A truncated stable system is stable; when rounding still puts a pole on or outside the
    /// boundary, the next lower order is taken and reported in `order`.
    ///
    /// # Errors
    /// [`ControlError::Linalg`] when the truncated matrix has no complete set of eigenvectors.
    ///
    /// # References
    /// Ezoe and Sato, section IV-B (parameter extraction).
    pub fn truncate(&self, states: usize) -> Result<Reduced, ControlError> {
        self.truncate_within(states, usize::MAX)
    }

    /// As [`Balanced::truncate`], of the largest order up to `states` whose diagonal form has at most
    /// `modes` modes. Of orders with more only the eigenvalues are computed.
    ///
    /// # Errors
    /// As [`Balanced::truncate`].
    pub fn truncate_within(&self, states: usize, modes: usize) -> Result<Reduced, ControlError> {
        let mut order = states.min(self.hankel.numerical_rank());
        let mut lowered = false;
        loop {
            if let Some((found, condition)) = self.modes(order, modes)? {
                match found.into_system(self.time, self.feedthrough.clone()) {
                    Ok(system) if system.is_stable() => {
                        return Ok(Reduced {
                            system,
                            order,
                            error_bound: self.hankel.truncation_bound(order),
                            condition,
                            lowered,
                            tie: self.hankel.tie_at(order),
                        });
                    }
                    Err(error) if order == 0 => return Err(error.into()),
                    _ => lowered = true,
                }
            }
            order -= 1;
        }
    }

    fn modes(&self, order: usize, most: usize) -> Result<Option<(Modes, f64)>, ControlError> {
        let sigma = self.hankel.values();
        let gramians = match (self.time, self.metric) {
            (_, Metric::Input) => Gramians::CutObserved(sigma),
            (Time::Continuous, _) => Gramians::Kept(sigma),
            (Time::Discrete { .. }, _) => Gramians::Cut(sigma),
        };
        self.form.modes(order, most, gramians)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two modes of a discrete balanced system of three states, the first 1e-9 from the boundary. The second
    /// is strong at the input or at the output, so that the other side is the better one for the first.
    fn block(strong_output: bool) -> (Block<Complex64>, [f64; 3], f64) {
        let (sigma, distance, share) = ([2.0, 1.0, 0.25], 1e-9, 0.75);
        let real = |x: f64| Complex64::from(x);
        let slow = Complex64::from_polar(1.0 - distance, 0.9) - 1.0;
        let gap = distance * (2.0 - distance);
        // Three quarters of the first gap come from the state that is cut.
        let cut = (share * gap * sigma[0] / sigma[2]).sqrt();
        let own = ((1.0 - share) * gap * sigma[0]).sqrt();
        let mut a = DMatrix::from_diagonal(&vec![slow, real(-0.5), real(-0.9)].into());
        (a[(0, 2)], a[(2, 0)]) = (real(cut), real(-cut));
        let (strong, none) = (real(1.0), real(0.0));
        let seconds = if strong_output {
            [none, strong]
        } else {
            [strong, none]
        };
        let b = DMatrix::from_column_slice(3, 1, &[real(own), seconds[0], none]);
        let c = DMatrix::from_row_slice(1, 3, &[real(own), seconds[1], none]);
        (Block { a, b, c }, sigma, gap)
    }

    #[test]
    fn a_decay_of_a_cut_system_is_what_its_own_input_and_the_states_that_were_cut_bring() {
        for strong_output in [false, true] {
            let (whole, sigma, gap) = block(strong_output);
            let kept = whole.leading(2);
            let d = Diagonalised {
                values: vec![kept.a[(0, 0)], kept.a[(1, 1)]],
                vectors: DMatrix::identity(2, 2),
                inverse: DMatrix::identity(2, 2),
                condition: 1.0,
            };
            let found = Gramians::Cut(&sigma).gaps(&d, &kept, || whole.clone());
            let first = found[0].expect("a quotient is better than an eigenvalue there");
            assert!((first / gap - 1.0).abs() < 1e-9, "{first} {gap}");
            assert_eq!(
                Gramians::Unknown.gaps(&d, &kept, || whole.clone()),
                [None, None]
            );
        }
    }
}
