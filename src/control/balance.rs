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
    hankel: HankelValues,
    form: Form,
    time: Time,
    feedthrough: DMatrix<f64>,
}

/// (A − I, B, C) in discrete time, (A, B, C) in continuous time, k × k with σ_k above rounding.
#[derive(Debug, Clone)]
enum Form {
    Real(Block<f64>),
    Complex(Block<Complex64>),
}

#[derive(Debug, Clone)]
pub(super) struct Block<T: ComplexField<RealField = f64>> {
    pub(super) a: DMatrix<T>,
    pub(super) b: DMatrix<T>,
    pub(super) c: DMatrix<T>,
}

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
            let svd = factor_svd(&factors)?;
            let weights = (source.input(), source.output());
            let (hankel, block) = project(&factors, &svd, apply, weights);
            (hankel, Form::Complex(block))
        }
        Realisation::Real => {
            let real = RealSystem::of(source);
            let factors = real_gramian_factors(system)?;
            let shifted = shifted_poles(source.time(), &real.exponents());
            let apply = |x: &DMatrix<f64>| real.apply(&shifted, x);
            let svd = factor_svd(&factors)?;
            let weights = (&real.input, &real.output);
            let (hankel, block) = project(&factors, &svd, apply, weights);
            (hankel.of_states(real_states(source)), Form::Real(block))
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
fn shifted_poles(time: Time, exponents: &[Complex64]) -> Vec<Complex64> {
    let shifted = exponents.iter().map(|&lambda| match time {
        Time::Continuous => lambda,
        Time::Discrete { step } => expm1(lambda * step),
    });
    shifted.collect()
}

/// The balanced (A, B, C) of as many states as the numerical rank, `apply` being A.
pub(super) fn project<T: Scalar>(
    factors: &GramianFactors<T>,
    svd: &GradedSvd<T>,
    apply: impl Fn(&DMatrix<T>) -> DMatrix<T>,
    (b, c): (&DMatrix<T>, &DMatrix<T>),
) -> (HankelValues, Block<T>) {
    let states = factors.controllability.nrows();
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
    (hankel, block)
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
            let (modes, condition) = self.diagonal_modes(order)?;
            match self.to_system(modes) {
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

    /// The truncated system in modal coordinates, with the part whose real output is heard.
    fn diagonal_modes(&self, order: usize) -> Result<(Modes, f64), ControlError> {
        if order == 0 {
            return Ok((Modes::none(&self.feedthrough), 1.0));
        }
        match &self.form {
            Form::Complex(block) => {
                let block = block.leading(order);
                let d = diagonalise_complex(&block.a)?;
                let modes = Modes::new(&d, &block.b, &block.c);
                Ok((modes, d.condition))
            }
            Form::Real(block) => {
                let block = block.leading(order);
                let d = diagonalise_real(&block.a)?;
                let b = block.b.map(Complex64::from);
                let c = block.c.map(Complex64::from);
                let modes = Modes::new(&d, &b, &c).heard();
                Ok((modes, d.condition))
            }
        }
    }

    fn to_system(&self, modes: Modes) -> Result<DiagonalSystem, SystemError> {
        let exponents = modes
            .values
            .iter()
            .map(|&value| exponent_of(self.time, value))
            .collect();
        if self.feedthrough.shape() == (1, 1) {
            let residues = modes.output.iter().zip(modes.input.iter());
            let residues: Vec<Complex64> = residues.map(|(c, b)| c * b).collect();
            return DiagonalSystem::siso(self.time, exponents, &residues, self.feedthrough[(0, 0)]);
        }
        let feedthrough = self.feedthrough.clone();
        DiagonalSystem::new(self.time, exponents, modes.input, modes.output, feedthrough)
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
    /// No modes, as many inputs and outputs as the feedthrough has.
    fn none(feedthrough: &DMatrix<f64>) -> Self {
        Self {
            values: Vec::new(),
            input: DMatrix::zeros(0, feedthrough.ncols()),
            output: DMatrix::zeros(feedthrough.nrows(), 0),
        }
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
