//! Balanced truncation, with the result diagonal again.

use nalgebra::ComplexField;
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::control::ControlError;
use crate::control::GramianFactors;
use crate::control::HankelValues;
use crate::control::Realisation;
use crate::control::complex_gramian_factors;
use crate::control::hankel::factor_svd;
use crate::control::real_gramian_factors;
use crate::control::realisation::apply_modes;
use crate::control::realisation::real_input;
use crate::control::realisation::real_modes;
use crate::control::realisation::real_output;
use crate::control::realisation::real_states;
use crate::linalg::Diagonalised;
use crate::linalg::Scalar;
use crate::linalg::diagonalise_complex;
use crate::linalg::diagonalise_real;
use crate::linalg::expm1;
use crate::linalg::ln_1p;
use crate::linalg::multiply;
use crate::linalg::multiply_adjoint;
use crate::ssm::DiagonalSystem;
use crate::ssm::StableSystem;
use crate::ssm::SystemError;
use crate::ssm::Time;

/// The smallest pole kept apart from zero: ln of it is the fastest decay per step that is
/// written, e^{−700} after one step.
const POLE_MIN: f64 = 1e-304;

/// A system in balanced coordinates, ready to be cut at any order.
///
/// Both Gramians equal diag(σ). Cutting is taking the leading block, so many orders cost one
/// factorisation.
#[derive(Debug, Clone)]
pub struct Balanced {
    pub(super) hankel: HankelValues,
    pub(super) form: Form,
    pub(super) time: Time,
    pub(super) feedthrough: f64,
}

/// (A − I, b, c) in discrete time, (A, b, c) in continuous time, k × k with σ_k above rounding.
#[derive(Debug, Clone)]
pub(super) enum Form {
    Real(Block<f64>),
    Complex(Block<Complex64>),
}

#[derive(Debug, Clone)]
pub(super) struct Block<T: ComplexField<RealField = f64>> {
    pub(super) a: DMatrix<T>,
    pub(super) b: DMatrix<T>,
    pub(super) c: DMatrix<T>,
}

/// Shifted poles ν and the residues whose real part is heard, with κ₂ of the eigenvectors.
pub(super) type DiagonalModes = (Vec<(Complex64, Complex64)>, f64);

/// A truncated system, diagonal again.
#[derive(Debug, Clone)]
pub struct Reduced {
    /// The reduced system in the time base of the full one. A conjugate pair of the real
    /// realisation is one mode; a real pole is one mode too.
    pub system: DiagonalSystem,
    /// Balanced states kept. Below the asked number when that was above the numerical rank, or
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

/// Balances a stable system with one input and one output.
///
/// ```text
/// F_o* F_c = U Σ V*,   T_right = F_c V Σ^{−1/2},   T_left = Σ^{−1/2} U* F_o*
/// A_bal − I = T_left (A − I) T_right,   b_bal = T_left b,   c_bal = c T_right
/// ```
///
/// In discrete time A − I is projected instead of A: for small steps every pole is next to one,
/// and its distance from one is what carries the digits. Cost about 60 n³ flops.
///
/// # Errors
/// [`ControlError::System`] unless the system has one input and one output.
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
            let factors = complex_gramian_factors(system)?;
            let states = source.order();
            let shifted = shifted_poles(source.time(), source.exponents());
            let apply = |x: &DMatrix<Complex64>| {
                let mut out = x.clone();
                for (mut row, factor) in out.row_iter_mut().zip(&shifted) {
                    row *= *factor;
                }
                out
            };
            let (hankel, block) =
                project(&factors, apply, source.input(), source.output(), states)?;
            (hankel, Form::Complex(block))
        }
        Realisation::Real => {
            let modes = real_modes(source)?;
            let states = real_states(source);
            let factors = real_gramian_factors(system)?;
            let exponents: Vec<Complex64> = modes.iter().map(|mode| mode.lambda).collect();
            let shifted = shifted_poles(source.time(), &exponents);
            let input = real_input(&modes);
            let b = DMatrix::from_column_slice(input.len(), 1, &input);
            let c = DMatrix::from_row_slice(1, input.len(), &real_output(&modes));
            let apply = |x: &DMatrix<f64>| apply_modes(&modes, &shifted, x);
            let (hankel, block) = project(&factors, apply, &b, &c, states)?;
            (hankel, Form::Real(block))
        }
    };
    Ok(Balanced {
        hankel,
        form,
        time: source.time(),
        feedthrough: source.feedthrough()[(0, 0)],
    })
}

/// λ in continuous time, a − 1 in discrete time.
pub(super) fn shifted_poles(time: Time, exponents: &[Complex64]) -> Vec<Complex64> {
    let shifted = exponents.iter().map(|&lambda| match time {
        Time::Continuous => lambda,
        Time::Discrete { step } => expm1(lambda * step),
    });
    shifted.collect()
}

pub(super) fn project<T: Scalar>(
    factors: &GramianFactors<T>,
    apply: impl Fn(&DMatrix<T>) -> DMatrix<T>,
    b: &DMatrix<T>,
    c: &DMatrix<T>,
    states: usize,
) -> Result<(HankelValues, Block<T>), ControlError> {
    let svd = factor_svd(factors)?;
    let hankel = HankelValues::new(svd.sigma.clone(), states);
    let rank = hankel.numerical_rank();
    let mut right = multiply(
        &factors.controllability,
        &svd.v.columns(0, rank).into_owned(),
    );
    let mut left = multiply(&factors.observability, &svd.u.columns(0, rank).into_owned());
    for j in 0..rank {
        let root = svd.sigma[j].sqrt();
        right.column_mut(j).unscale_mut(root);
        left.column_mut(j).unscale_mut(root);
    }
    let block = Block {
        a: multiply_adjoint(&left, &apply(&right)),
        b: multiply_adjoint(&left, b),
        c: multiply(c, &right),
    };
    Ok((hankel, block))
}

impl<T: ComplexField<RealField = f64>> Block<T> {
    fn leading(&self, order: usize) -> Block<T> {
        Block {
            a: self.a.view((0, 0), (order, order)).into_owned(),
            b: self.b.rows(0, order).into_owned(),
            c: self.c.columns(0, order).into_owned(),
        }
    }
}

impl Form {
    /// The leading `order` states.
    pub(super) fn leading(&self, order: usize) -> Form {
        match self {
            Form::Real(block) => Form::Real(block.leading(order)),
            Form::Complex(block) => Form::Complex(block.leading(order)),
        }
    }

    /// A = V diag(ν) V⁻¹ and the residues (c V)_j (V⁻¹ b)_j.
    pub(super) fn diagonal_modes(&self) -> Result<DiagonalModes, ControlError> {
        match self {
            Form::Complex(block) => {
                if block.a.is_empty() {
                    return Ok((Vec::new(), 1.0));
                }
                let d = diagonalise_complex(&block.a)?;
                let residues = residues(&d, &block.b, &block.c);
                let modes = d.values.iter().copied().zip(residues).collect();
                Ok((modes, d.condition))
            }
            Form::Real(block) => {
                if block.a.is_empty() {
                    return Ok((Vec::new(), 1.0));
                }
                let d = diagonalise_real(&block.a)?;
                let b = block.b.map(Complex64::from);
                let c = block.c.map(Complex64::from);
                let residues = residues(&d, &b, &c);
                let modes = d.values.iter().copied().zip(residues);
                // Of a pair one member stays, with twice its residue.
                let kept = modes.filter(|(value, _)| value.im >= 0.0);
                let heard = kept.map(|(value, residue)| {
                    let share = if value.im > 0.0 {
                        2.0 * residue
                    } else {
                        Complex64::from(residue.re)
                    };
                    (value, share)
                });
                Ok((heard.collect(), d.condition))
            }
        }
    }
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
    /// A_r = V diag(ν) V⁻¹,   residue_j = (c_r V)_j (V⁻¹ b_r)_j
    /// ```
    ///
    /// A truncated stable system is stable; when rounding still puts a pole on or outside the
    /// boundary, the next lower order is taken and `order` says so.
    ///
    /// # Errors
    /// [`ControlError::Linalg`] when the truncated matrix has no complete set of eigenvectors.
    ///
    /// # References
    /// Ezoe and Sato, section IV-B (parameter extraction).
    pub fn truncate(&self, states: usize) -> Result<Reduced, ControlError> {
        let possible = states.min(self.hankel.numerical_rank());
        let mut order = possible;
        loop {
            let (modes, condition) = self.form.leading(order).diagonal_modes()?;
            match self.to_system(&modes, self.feedthrough) {
                Ok(system) if system.is_stable() => {
                    return Ok(Reduced {
                        system,
                        order,
                        error_bound: self.hankel.truncation_bound(order),
                        condition,
                        lowered: order < possible,
                        tie: self.hankel.tie_at(order),
                    });
                }
                Err(error) if order == 0 => return Err(error.into()),
                _ => order -= 1,
            }
        }
    }

    /// The diagonal system of shifted poles and residues, in the time base that was balanced.
    pub(super) fn to_system(
        &self,
        modes: &[(Complex64, Complex64)],
        feedthrough: f64,
    ) -> Result<DiagonalSystem, SystemError> {
        let exponents = modes
            .iter()
            .map(|&(value, _)| self.exponent(value))
            .collect();
        let residues: Vec<Complex64> = modes.iter().map(|&(_, residue)| residue).collect();
        DiagonalSystem::siso(self.time, exponents, &residues, feedthrough)
    }

    /// λ from a shifted pole: itself, or ln(1 + ν)/Δ on the principal branch. A pole that is
    /// zero to rounding becomes one that is gone after a single step.
    fn exponent(&self, value: Complex64) -> Complex64 {
        match self.time {
            Time::Continuous => value,
            Time::Discrete { step } => {
                let pole = value + 1.0;
                if pole.norm() < POLE_MIN {
                    return Complex64::from(POLE_MIN.ln()) / step;
                }
                ln_1p(value) / step
            }
        }
    }
}

fn residues(d: &Diagonalised, b: &DMatrix<Complex64>, c: &DMatrix<Complex64>) -> Vec<Complex64> {
    let outputs = c * &d.vectors;
    let inputs = &d.inverse * b;
    outputs
        .iter()
        .zip(inputs.iter())
        .map(|(c, b)| c * b)
        .collect()
}
