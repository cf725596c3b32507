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
use crate::control::realisation::RealSystem;
use crate::control::realisation::real_states;
use crate::linalg::Diagonalised;
use crate::linalg::GradedSvd;
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
    pub(super) feedthrough: DMatrix<f64>,
}

/// (A − I, B, C) in discrete time, (A, B, C) in continuous time, k × k with σ_k above rounding.
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
            let factors = complex_gramian_factors(system)?;
            let shifted = shifted_poles(source.time(), source.exponents());
            let apply = |x: &DMatrix<Complex64>| {
                let mut out = x.clone();
                for (mut row, factor) in out.row_iter_mut().zip(&shifted) {
                    row *= *factor;
                }
                out
            };
            let states = source.order();
            let (hankel, block) =
                project(&factors, apply, source.input(), source.output(), states)?;
            (hankel, Form::Complex(block))
        }
        Realisation::Real => {
            let real = RealSystem::of(source);
            let factors = real_gramian_factors(system)?;
            let shifted = shifted_poles(source.time(), &real.exponents());
            let apply = |x: &DMatrix<f64>| real.apply(&shifted, x);
            let states = real_states(source);
            let (hankel, block) = project(&factors, apply, &real.input, &real.output, states)?;
            (hankel, Form::Real(block))
        }
    };
    Ok(Balanced {
        hankel,
        form,
        time: source.time(),
        feedthrough: source.feedthrough().clone(),
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

/// Hankel values and the balanced (A, B, C) of as many states as the numerical rank, `apply` being
/// A, of a system stored with `states` states.
pub(super) fn project<T: Scalar>(
    factors: &GramianFactors<T>,
    apply: impl Fn(&DMatrix<T>) -> DMatrix<T>,
    b: &DMatrix<T>,
    c: &DMatrix<T>,
    states: usize,
) -> Result<(HankelValues, Block<T>), ControlError> {
    let svd = factor_svd(factors)?;
    let hankel = HankelValues::traced(&svd, states);
    let block = project_onto(factors, &svd, hankel.numerical_rank(), apply, (b, c));
    Ok((hankel, block))
}

/// The balanced (A, B, C) of the leading `rank` states.
pub(super) fn project_onto<T: Scalar>(
    factors: &GramianFactors<T>,
    svd: &GradedSvd<T>,
    rank: usize,
    apply: impl Fn(&DMatrix<T>) -> DMatrix<T>,
    (b, c): (&DMatrix<T>, &DMatrix<T>),
) -> Block<T> {
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
    Block {
        a: multiply_adjoint(&left, &apply(&right)),
        b: multiply_adjoint(&left, b),
        c: multiply(c, &right),
    }
}

impl<T: ComplexField<RealField = f64>> Block<T> {
    pub(super) fn leading(&self, order: usize) -> Block<T> {
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

    /// The system in modal coordinates, with the part whose real output is heard, and κ₂(V).
    fn modes(&self) -> Result<(Modes, f64), ControlError> {
        match self {
            Form::Complex(block) => {
                if block.a.is_empty() {
                    return Ok((Modes::none(&block.b, &block.c), 1.0));
                }
                let d = diagonalise_complex(&block.a)?;
                Ok((Modes::new(&d, &block.b, &block.c), d.condition))
            }
            Form::Real(block) => {
                let b = block.b.map(Complex64::from);
                let c = block.c.map(Complex64::from);
                if block.a.is_empty() {
                    return Ok((Modes::none(&b, &c), 1.0));
                }
                let d = diagonalise_real(&block.a)?;
                Ok((Modes::new(&d, &b, &c).heard(), d.condition))
            }
        }
    }

    /// A = V diag(ν) V⁻¹ and the residues (c V)_j (V⁻¹ b)_j of one input and one output.
    pub(super) fn diagonal_modes(&self) -> Result<DiagonalModes, ControlError> {
        let (modes, condition) = self.modes()?;
        Ok((modes.residues(), condition))
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
    /// A_r = V diag(ν) V⁻¹,   b_j = (V⁻¹ B_r)_j,   c_j = (C_r V)_j
    /// ```
    ///
    /// With one input and one output b is one and c is the residue. Of a conjugate pair one mode
    /// stays, with twice its c.
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
            let (modes, condition) = self.form.leading(order).modes()?;
            match self.to_system_of_modes(modes) {
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

    fn to_system_of_modes(&self, modes: Modes) -> Result<DiagonalSystem, SystemError> {
        if self.feedthrough.shape() == (1, 1) {
            return self.to_system(&modes.residues(), self.feedthrough[(0, 0)]);
        }
        let exponents = modes
            .values
            .iter()
            .map(|&value| exponent_of(self.time, value))
            .collect();
        DiagonalSystem::new(
            self.time,
            exponents,
            modes.input,
            modes.output,
            self.feedthrough.clone(),
        )
    }

    /// The diagonal system of shifted poles and residues, in the time base that was balanced, with
    /// one input and one output.
    pub(super) fn to_system(
        &self,
        modes: &[(Complex64, Complex64)],
        feedthrough: f64,
    ) -> Result<DiagonalSystem, SystemError> {
        let exponents = modes
            .iter()
            .map(|&(value, _)| exponent_of(self.time, value))
            .collect();
        let residues: Vec<Complex64> = modes.iter().map(|&(_, residue)| residue).collect();
        DiagonalSystem::siso(self.time, exponents, &residues, feedthrough)
    }
}

/// λ from a shifted pole: itself, or ln(1 + ν)/Δ on the principal branch. A pole that is zero to
/// rounding becomes one that is gone after a single step.
pub(super) fn exponent_of(time: Time, value: Complex64) -> Complex64 {
    match time {
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

/// A system in modal coordinates: shifted poles ν, rows V⁻¹ B, columns C V.
pub(super) struct Modes {
    pub(super) values: Vec<Complex64>,
    pub(super) input: DMatrix<Complex64>,
    pub(super) output: DMatrix<Complex64>,
}

impl Modes {
    /// No modes, for order zero.
    fn none(b: &DMatrix<Complex64>, c: &DMatrix<Complex64>) -> Self {
        Self {
            values: Vec::new(),
            input: b.clone(),
            output: c.clone(),
        }
    }

    /// Shifted poles and residues of one input and one output.
    fn residues(&self) -> Vec<(Complex64, Complex64)> {
        let weights = self.output.iter().zip(self.input.iter());
        let residues = weights.map(|(c, b)| c * b);
        self.values.iter().copied().zip(residues).collect()
    }

    pub(super) fn new(d: &Diagonalised, b: &DMatrix<Complex64>, c: &DMatrix<Complex64>) -> Self {
        Self {
            values: d.values.clone(),
            input: &d.inverse * b,
            output: c * &d.vectors,
        }
    }

    /// Of each pair of a real system the upper member, with twice its output. The rows and columns
    /// of a real pole are real but for rounding.
    pub(super) fn heard(self) -> Self {
        let upper: Vec<usize> = (0..self.values.len())
            .filter(|&i| self.values[i].im >= 0.0)
            .collect();
        let values: Vec<Complex64> = upper.iter().map(|&i| self.values[i]).collect();
        let mut input = self.input.select_rows(&upper);
        let mut output = self.output.select_columns(&upper);
        for (i, value) in values.iter().enumerate() {
            if value.im > 0.0 {
                output.column_mut(i).scale_mut(2.0);
            } else {
                input.row_mut(i).iter_mut().for_each(|b| b.im = 0.0);
                output.column_mut(i).iter_mut().for_each(|c| c.im = 0.0);
            }
        }
        Self {
            values,
            input,
            output,
        }
    }
}
