//! Balancing of dense systems by other Gramians: frequency-weighted, and of the relative error.

use nalgebra::DMatrix;

use crate::control::dense::{balanced_by, real_factor, stable_schur};
use crate::control::gramian::grade_columns;
use crate::control::{ControlError, DenseBalanced, GramianFactors};
use crate::linalg::{Equation, LinalgError, Triangular, diagonalise_real, symmetric_root};
use crate::ssm::{DenseSystem, SystemError, Time};

/// Balances a stable continuous system for a small weighted error W_o (G − G_r) W_i.
///
/// ```text
/// G W_i:  [A  B C_i; 0  A_i], [B D_i; B_i]      W_o G:  [A  0; B_o C  A_o], [D_o C  C_o]
/// ```
///
/// The controllability Gramian is the leading block of that of G W_i, the observability Gramian
/// that of W_o G. Factors are cut, not Gramians, so that nothing is lost. With one weight left out
/// the result is stable; with both nothing guarantees it, and no error bound is known. Cost about
/// 70 (n + n_w)³.
///
/// # Errors
/// [`ControlError::System`] for discrete time, for an unstable system or weight, and for a weight
/// of the wrong size; [`ControlError::Linalg`].
///
/// # References
/// Enns, *Model reduction with balanced realizations: an error bound and a frequency weighted
/// generalization*, CDC 1984; SLICOT AB09ID.
pub fn dense_weighted_balance(
    system: &DenseSystem,
    input_weight: Option<&DenseSystem>,
    output_weight: Option<&DenseSystem>,
) -> Result<DenseBalanced, ControlError> {
    require_continuous(system)?;
    let n = system.order();
    let (a, b, c) = (system.state(), system.input(), system.output());
    let leading = |a: &DMatrix<f64>, b: &DMatrix<f64>| -> Result<DMatrix<f64>, ControlError> {
        let factor = stable_schur(Time::Continuous, a)?.factor(Equation::Lyapunov, b)?;
        Ok(grade_columns(&real_factor(&factor).rows(0, n).into_owned()))
    };
    let controllability = match input_weight {
        None => leading(a, b)?,
        Some(weight) => {
            require_outputs(weight, b.ncols())?;
            let joined = joined(a, &(b * weight.output()), weight.state());
            leading(
                &joined,
                &stacked(&(b * weight.feedthrough()), weight.input()),
            )?
        }
    };
    let observability = match output_weight {
        None => leading(&a.transpose(), &c.transpose())?,
        Some(weight) => {
            require_inputs(weight, c.nrows())?;
            // The dual of W_o G is G* W_o*.
            let side = (weight.input() * c).transpose();
            let joined = joined(&a.transpose(), &side, &weight.state().transpose());
            let direct = (weight.feedthrough() * c).transpose();
            leading(&joined, &stacked(&direct, &weight.output().transpose()))?
        }
    };
    let factors = GramianFactors {
        controllability,
        observability,
    };
    balanced_by(system, &factors, false)
}

/// Balances a system by measured Gramians: the second moments of its states over some inputs, and
/// those of its adjoint states over some gradients by its output.
///
/// ```text
/// G = mean x xᵀ,   Q = mean p pᵀ,   p_k = Aᵀ p_{k+1} + Cᵀ g_k
/// ```
///
/// With g the gradients of a network's logits, balanced states count by what they do to these for
/// the inputs that occur. The result need not be stable and no error bound is known. With the
/// Gramians of white noise it is [`dense_balance`](crate::control::dense_balance), to the root of
/// machine precision. Cost about 100 n³.
///
/// # Errors
/// [`ControlError::System`] for moments of another size; [`ControlError::Linalg`].
///
/// # References
/// Moore, *Principal component analysis in linear systems*, IEEE Trans. Automat. Control 26 (1981);
/// Lall, Marsden and Glavaški, *A subspace approach to balanced truncation for model reduction of
/// nonlinear control systems*, Int. J. Robust Nonlinear Control 12 (2002).
pub fn dense_moment_balance(
    system: &DenseSystem,
    states: &DMatrix<f64>,
    adjoints: &DMatrix<f64>,
) -> Result<DenseBalanced, ControlError> {
    let n = system.order();
    for moments in [states, adjoints] {
        if moments.shape() != (n, n) {
            return Err(ControlError::System(SystemError::Shape {
                matrix: "moments",
                found: moments.shape(),
                expected: (n, n),
            }));
        }
    }
    let factors = GramianFactors {
        controllability: symmetric_root(states)?,
        observability: symmetric_root(adjoints)?,
    };
    balanced_by(system, &factors, false)
}

/// Balances a stable continuous system for a small relative error G⁻¹ (G − G_r) (balanced
/// stochastic truncation).
///
/// ```text
/// B_w = W_c Cᵀ + B Dᵀ,   R = D Dᵀ + β² I
/// Aᵀ X + X A + (C − B_wᵀ X)ᵀ R⁻¹ (C − B_wᵀ X) = 0
/// ```
///
/// X replaces the observability Gramian, and the Hankel values are those of the phase of
/// \[G  β I\], below one. β trades the relative for the absolute error; it must be positive where D
/// has no full row rank. No absolute error bound is known. Cost about 200 n³.
///
/// # Errors
/// [`ControlError::System`] for discrete time or an unstable system; [`ControlError::Linalg`] when
/// R is singular, or the Riccati equation has no stabilising solution.
///
/// # References
/// Desai and Pal, *A transformation approach to stochastic model reduction*, IEEE Trans. Automat.
/// Control 29 (1984); Varga and Fasol, *A new square-root balancing-free stochastic truncation
/// model reduction algorithm*, IFAC 1993; SLICOT AB09HD.
pub fn dense_stochastic_balance(
    system: &DenseSystem,
    beta: f64,
) -> Result<DenseBalanced, ControlError> {
    require_continuous(system)?;
    let (a, b, c) = (system.state(), system.input(), system.output());
    let factor = stable_schur(Time::Continuous, a)?.factor(Equation::Lyapunov, b)?;
    let controllability = real_factor(&factor);
    let d = system.feedthrough();
    let (n, p) = (a.nrows(), c.nrows());
    let singular = LinalgError::NoUniqueSolution { size: n };
    let cross =
        &controllability * (controllability.transpose() * c.transpose()) + b * d.transpose();
    let weight = d * d.transpose() + DMatrix::identity(p, p) * (beta * beta);
    let weight = weight.cholesky().ok_or(singular.clone())?;
    let state = a - &cross * weight.solve(c);
    let quadratic = &cross * weight.solve(&cross.transpose());
    let constant = c.transpose() * weight.solve(c);
    let x = stabilising_solution(&state, &quadratic, &constant).ok_or(singular)?;
    let factors = GramianFactors {
        controllability,
        observability: symmetric_root(&x)?,
    };
    balanced_by(system, &factors, false)
}

/// X with Aᵀ X + X A + X S X + Q = 0 and A + S X stable: the stable invariant subspace of
/// [A  S; −Q  −Aᵀ], followed by one Newton step.
fn stabilising_solution(
    a: &DMatrix<f64>,
    s: &DMatrix<f64>,
    q: &DMatrix<f64>,
) -> Option<DMatrix<f64>> {
    let n = a.nrows();
    let mut hamiltonian = DMatrix::zeros(2 * n, 2 * n);
    hamiltonian.view_mut((0, 0), (n, n)).copy_from(a);
    hamiltonian.view_mut((0, n), (n, n)).copy_from(s);
    hamiltonian.view_mut((n, 0), (n, n)).copy_from(&-q);
    hamiltonian
        .view_mut((n, n), (n, n))
        .copy_from(&-a.transpose());
    let d = diagonalise_real(&hamiltonian).ok()?;
    let mut basis = Vec::new();
    for (j, value) in d.values.iter().enumerate() {
        // Of a pair the upper member gives both columns.
        if value.re < 0.0 && value.im >= 0.0 {
            basis.push(d.vectors.column(j).map(|x| x.re));
            if value.im > 0.0 {
                basis.push(d.vectors.column(j).map(|x| x.im));
            }
        }
    }
    if basis.len() != n {
        return None;
    }
    let basis = DMatrix::from_columns(&basis);
    let upper = basis.rows(0, n).transpose();
    let x = upper.lu().solve(&basis.rows(n, n).transpose())?;
    let x = (&x + x.transpose()) * 0.5;
    // (A + S X)ᵀ X' + X' (A + S X) + Q − X S X = 0.
    let closed = Triangular::new(&(a + s * &x).transpose()).ok()?;
    closed.solve(Equation::Lyapunov, &(q - &x * s * &x)).ok()
}

fn joined(a: &DMatrix<f64>, side: &DMatrix<f64>, weight: &DMatrix<f64>) -> DMatrix<f64> {
    let (n, k) = (a.nrows(), weight.nrows());
    let mut joined = DMatrix::zeros(n + k, n + k);
    joined.view_mut((0, 0), (n, n)).copy_from(a);
    joined.view_mut((0, n), (n, k)).copy_from(side);
    joined.view_mut((n, n), (k, k)).copy_from(weight);
    joined
}

fn stacked(upper: &DMatrix<f64>, lower: &DMatrix<f64>) -> DMatrix<f64> {
    let (n, k) = (upper.nrows(), lower.nrows());
    let mut stacked = DMatrix::zeros(n + k, upper.ncols());
    stacked.rows_mut(0, n).copy_from(upper);
    stacked.rows_mut(n, k).copy_from(lower);
    stacked
}

fn require_continuous(system: &DenseSystem) -> Result<(), SystemError> {
    match system.time() {
        Time::Continuous => Ok(()),
        Time::Discrete { .. } => Err(SystemError::WrongTime {
            found: "discrete",
            expected: "continuous",
        }),
    }
}

fn require_outputs(weight: &DenseSystem, outputs: usize) -> Result<(), SystemError> {
    require_continuous(weight)?;
    require_size(weight, weight.input().ncols(), outputs)
}

fn require_inputs(weight: &DenseSystem, inputs: usize) -> Result<(), SystemError> {
    require_continuous(weight)?;
    require_size(weight, inputs, weight.output().nrows())
}

fn require_size(weight: &DenseSystem, inputs: usize, outputs: usize) -> Result<(), SystemError> {
    let found = (weight.input().ncols(), weight.output().nrows());
    if found == (inputs, outputs) {
        return Ok(());
    }
    Err(SystemError::Size {
        inputs: found.0,
        outputs: found.1,
        expected_inputs: inputs,
        expected_outputs: outputs,
    })
}
