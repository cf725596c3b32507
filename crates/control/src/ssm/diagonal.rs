//! Diagonal systems with complex modes and a real output.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::ssm::{Time, zoh_gain};

/// A diagonal state space system with n complex modes, m real inputs and p real outputs.
///
/// ```text
/// continuous:  dx/dt = diag(λ) x + B u,            y = Re(C x) + D u
/// discrete:    x_k   = diag(a) x_{k−1} + B u_k,    y_k = Re(C x_k) + D u_k,   a = e^{λΔ}
/// ```
///
/// The exponents λ are kept in both time bases: 1 − a_i ā_j computed from λ loses no digits,
/// however close the poles are to the unit circle or to each other. In discrete time B is the
/// discretised input matrix. The output at step k includes the input of step k.
///
/// A conjugate pair stands as one mode with the residue that its real part needs; no factor 2
/// and no other convention of a file leaks in here.
#[derive(Debug, Clone, PartialEq)]
pub struct DiagonalSystem {
    time: Time,
    exponents: Vec<Complex64>,
    input: DMatrix<Complex64>,
    output: DMatrix<Complex64>,
    feedthrough: DMatrix<f64>,
}

/// Why numbers do not make a system, or a system lacks what was requested of it.
#[derive(Debug, Clone, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum SystemError {
    /// A matrix has the wrong shape.
    #[error("the {matrix} matrix has shape {found:?}, expected {expected:?}")]
    Shape {
        /// `input`, `output` or `feedthrough`; `state` of a dense system; `step` of a change.
        matrix: &'static str,
        /// Rows and columns found.
        found: (usize, usize),
        /// Rows and columns expected.
        expected: (usize, usize),
    },
    /// A NaN or an infinity.
    #[error("{what} of mode {mode} is not finite")]
    NotFinite {
        /// Which number.
        what: &'static str,
        /// Index of the mode (for the feedthrough, of its entry; for a dense system, the row).
        mode: usize,
    },
    /// A step that is not a positive number.
    #[error("the step is {step}, expected a positive number")]
    Step {
        /// The step found.
        step: f64,
    },
    /// Modes that do not decay, where decay is needed.
    #[error("{} of {order} modes do not decay: {}", modes.len(), list_modes(modes))]
    Unstable {
        /// Index and exponent λ of each such mode.
        modes: Vec<(usize, Complex64)>,
        /// Number of modes of the system.
        order: usize,
    },
    /// A function for one input and one output met something else.
    #[error("the system has {inputs} inputs and {outputs} outputs, expected one of each")]
    NotSiso {
        /// Inputs found.
        inputs: usize,
        /// Outputs found.
        outputs: usize,
    },
    /// Two systems that are to be compared have different numbers of inputs or outputs.
    #[error(
        "the system has {inputs} inputs and {outputs} outputs, expected {expected_inputs} and \
         {expected_outputs}"
    )]
    Size {
        /// Inputs found.
        inputs: usize,
        /// Outputs found.
        outputs: usize,
        /// Inputs expected.
        expected_inputs: usize,
        /// Outputs expected.
        expected_outputs: usize,
    },
    /// A function for one time base met the other.
    #[error("the system is in {found} time, expected {expected} time")]
    WrongTime {
        /// Time base found.
        found: &'static str,
        /// Time base expected.
        expected: &'static str,
    },
}

fn list_modes(modes: &[(usize, Complex64)]) -> String {
    let shown: Vec<String> = modes
        .iter()
        .take(4)
        .map(|(i, pole)| format!("mode {i} has lambda = {:.3e}{:+.3e}i", pole.re, pole.im))
        .collect();
    let more = if modes.len() > 4 { ", ..." } else { "" };
    format!("{}{more}", shown.join(", "))
}

impl DiagonalSystem {
    /// A system from its parts: n exponents, B (n × m), C (p × n), D (p × m).
    ///
    /// # Errors
    /// [`SystemError::Shape`], [`SystemError::NotFinite`], [`SystemError::Step`].
    pub fn new(
        time: Time,
        exponents: Vec<Complex64>,
        input: DMatrix<Complex64>,
        output: DMatrix<Complex64>,
        feedthrough: DMatrix<f64>,
    ) -> Result<Self, SystemError> {
        let (n, m, p) = (exponents.len(), input.ncols(), output.nrows());
        check_shape("input", input.shape(), (n, m))?;
        check_shape("output", output.shape(), (p, n))?;
        check_shape("feedthrough", feedthrough.shape(), (p, m))?;
        check_time(time)?;
        check_finite("the exponent", exponents.iter().map(|x| x.is_finite()))?;
        check_finite("the input weight", rows_finite(&input))?;
        check_finite("the output weight", rows_finite(&output.transpose()))?;
        check_finite("the feedthrough", feedthrough.iter().map(|x| x.is_finite()))?;
        Ok(Self {
            time,
            exponents,
            input,
            output,
            feedthrough,
        })
    }

    /// One input and one output from exponents and residues: B = 1, C = residues.
    ///
    /// # Errors
    /// As [`DiagonalSystem::new`].
    pub fn siso(
        time: Time,
        exponents: Vec<Complex64>,
        residues: &[Complex64],
        feedthrough: f64,
    ) -> Result<Self, SystemError> {
        let n = exponents.len();
        Self::new(
            time,
            exponents,
            DMatrix::from_element(n, 1, Complex64::ONE),
            DMatrix::from_row_slice(1, residues.len(), residues),
            DMatrix::from_element(1, 1, feedthrough),
        )
    }

    /// The time base.
    pub fn time(&self) -> Time {
        self.time
    }

    /// The number n of modes.
    pub fn order(&self) -> usize {
        self.exponents.len()
    }

    /// The exponents λ, also in discrete time.
    pub fn exponents(&self) -> &[Complex64] {
        &self.exponents
    }

    /// The input matrix B (n × m), discretised in discrete time.
    pub fn input(&self) -> &DMatrix<Complex64> {
        &self.input
    }

    /// The output matrix C (p × n).
    pub fn output(&self) -> &DMatrix<Complex64> {
        &self.output
    }

    /// The feedthrough D (p × m).
    pub fn feedthrough(&self) -> &DMatrix<f64> {
        &self.feedthrough
    }

    /// λ in continuous time, λΔ in discrete time: the exponents in units of one step.
    pub fn scaled_exponents(&self) -> Vec<Complex64> {
        let step = match self.time {
            Time::Continuous => 1.0,
            Time::Discrete { step } => step,
        };
        self.exponents.iter().map(|lambda| lambda * step).collect()
    }

    /// The poles: λ in continuous time, a = e^{λΔ} in discrete time.
    pub fn poles(&self) -> Vec<Complex64> {
        match self.time {
            Time::Continuous => self.exponents.clone(),
            Time::Discrete { .. } => self.scaled_exponents().iter().map(|z| z.exp()).collect(),
        }
    }

    /// An error unless the system has the given numbers of inputs and outputs.
    ///
    /// # Errors
    /// [`SystemError::Size`].
    pub fn require_size(&self, inputs: usize, outputs: usize) -> Result<(), SystemError> {
        let found = (self.input.ncols(), self.output.nrows());
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

    /// Index and exponent of every mode that does not decay (Re λ ≥ 0). A mode whose residue is
    /// zero counts too.
    pub fn unstable_modes(&self) -> Vec<(usize, Complex64)> {
        let modes = self.exponents.iter().copied().enumerate();
        modes.filter(|(_, lambda)| lambda.re >= 0.0).collect()
    }

    /// Whether every mode decays.
    pub fn is_stable(&self) -> bool {
        self.exponents.iter().all(|lambda| lambda.re < 0.0)
    }

    /// The same system, checked to be stable: the type that infinite-horizon functions take.
    ///
    /// # Errors
    /// [`SystemError::Unstable`] with the list of modes.
    pub fn stable(&self) -> Result<StableSystem<'_>, SystemError> {
        let modes = self.unstable_modes();
        if modes.is_empty() {
            return Ok(StableSystem(self));
        }
        Err(SystemError::Unstable {
            modes,
            order: self.order(),
        })
    }

    /// Zero-order-hold discretisation with step Δ.
    ///
    /// ```text
    /// a = e^{λΔ},   B̄ = (e^{λΔ} − 1)/λ · B   (Δ B where λ = 0)
    /// ```
    ///
    /// # Errors
    /// [`SystemError::WrongTime`] for a discrete system, [`SystemError::Step`].
    ///
    /// # References
    /// Ezoe and Sato, eq. (31) and (32).
    pub fn zoh(&self, step: f64) -> Result<Self, SystemError> {
        self.sampled(step, |lambda| zoh_gain(lambda, step))
    }

    /// The system as it is driven by an impulse of area Δ u_k in each step, before its output is taken.
    ///
    /// ```text
    /// a = e^{λΔ},   B̄ = Δ B
    /// ```
    ///
    /// # Errors
    /// As [`DiagonalSystem::zoh`].
    pub fn impulses(&self, step: f64) -> Result<Self, SystemError> {
        self.sampled(step, |_| step.into())
    }

    fn sampled(
        &self,
        step: f64,
        gain: impl Fn(Complex64) -> Complex64,
    ) -> Result<Self, SystemError> {
        if self.time != Time::Continuous {
            return Err(SystemError::WrongTime {
                found: "discrete",
                expected: "continuous",
            });
        }
        let mut input = self.input.clone();
        for (mut row, &lambda) in input.row_iter_mut().zip(&self.exponents) {
            row *= gain(lambda);
        }
        Self::new(
            Time::Discrete { step },
            self.exponents.clone(),
            input,
            self.output.clone(),
            self.feedthrough.clone(),
        )
    }

    /// The continuous system whose zero-order-hold discretisation this is.
    ///
    /// # Errors
    /// [`SystemError::WrongTime`] for a continuous system; [`SystemError::NotFinite`] where
    /// e^{λΔ} = 1 with λ ≠ 0, which no zero-order hold gives.
    pub fn undo_zoh(&self) -> Result<Self, SystemError> {
        self.unsampled(zoh_gain)
    }

    /// The continuous system that [`DiagonalSystem::impulses`] samples as this one.
    ///
    /// # Errors
    /// [`SystemError::WrongTime`] for a continuous system.
    pub fn undo_impulses(&self) -> Result<Self, SystemError> {
        self.unsampled(|_, step| step.into())
    }

    fn unsampled(&self, gain: impl Fn(Complex64, f64) -> Complex64) -> Result<Self, SystemError> {
        let Time::Discrete { step } = self.time else {
            return Err(SystemError::WrongTime {
                found: "continuous",
                expected: "discrete",
            });
        };
        let mut input = self.input.clone();
        for (mut row, &lambda) in input.row_iter_mut().zip(&self.exponents) {
            row /= gain(lambda, step);
        }
        Self::new(
            Time::Continuous,
            self.exponents.clone(),
            input,
            self.output.clone(),
            self.feedthrough.clone(),
        )
    }
}

/// Checks that the step of a discrete time base is a positive number.
pub(super) fn check_time(time: Time) -> Result<(), SystemError> {
    match time {
        Time::Discrete { step } if !(step > 0.0 && step.is_finite()) => {
            Err(SystemError::Step { step })
        }
        _ => Ok(()),
    }
}

pub(super) fn check_shape(
    matrix: &'static str,
    found: (usize, usize),
    expected: (usize, usize),
) -> Result<(), SystemError> {
    if found == expected {
        return Ok(());
    }
    Err(SystemError::Shape {
        matrix,
        found,
        expected,
    })
}

fn rows_finite(matrix: &DMatrix<Complex64>) -> impl Iterator<Item = bool> + '_ {
    let rows = matrix.row_iter();
    rows.map(|row| row.iter().all(|x| x.is_finite()))
}

fn check_finite(
    what: &'static str,
    mut entries: impl Iterator<Item = bool>,
) -> Result<(), SystemError> {
    match entries.position(|finite| !finite) {
        None => Ok(()),
        Some(mode) => Err(SystemError::NotFinite { what, mode }),
    }
}

/// A [`DiagonalSystem`] whose modes were checked to decay.
#[derive(Debug, Clone, Copy)]
pub struct StableSystem<'a>(&'a DiagonalSystem);

impl<'a> StableSystem<'a> {
    /// The system itself.
    pub fn system(&self) -> &'a DiagonalSystem {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(time: Time) -> DiagonalSystem {
        let exponents = vec![Complex64::new(-0.5, 3.0), Complex64::new(-2.0, 0.0)];
        let residues = [Complex64::new(1.0, -2.0), Complex64::new(0.3, 0.1)];
        DiagonalSystem::siso(time, exponents, &residues, 0.25).unwrap()
    }

    #[test]
    fn the_kernel_is_the_impulse_response_of_the_recurrence() {
        let system = sample(Time::Discrete { step: 0.05 });
        let kernel = system.kernel(300).unwrap();
        let poles = system.poles();
        assert_eq!(system.as_siso().unwrap().exponents(), system.exponents());
        let mut state = [Complex64::ZERO; 2];
        for (k, expected) in kernel.iter().enumerate() {
            let u = if k == 0 { 1.0 } else { 0.0 };
            for i in 0..2 {
                state[i] = poles[i] * state[i] + system.input()[(i, 0)] * u;
            }
            let y: Complex64 = (0..2).map(|i| system.output()[(0, i)] * state[i]).sum();
            assert!((y.re - expected).abs() < 1e-12, "{k}");
        }
    }

    #[test]
    fn undoing_the_hold_gives_the_continuous_system_back() {
        let system = sample(Time::Continuous);
        let back = system.zoh(0.01).unwrap().undo_zoh().unwrap();
        assert!((back.input() - system.input()).norm() < 1e-14);
        assert_eq!(back.exponents(), system.exponents());
    }

    #[test]
    fn impulses_of_the_area_of_a_step_leave_the_sampled_kernel() {
        let system = sample(Time::Continuous);
        let sampled = system.impulses(0.01).unwrap();
        let wanted = |l: usize| {
            let modes = system.exponents().iter().zip(system.output().iter());
            let modes = modes.map(|(&z, &c)| (c * (z * 0.01 * l as f64).exp()).re);
            0.01 * modes.sum::<f64>() + if l == 0 { 0.25 } else { 0.0 }
        };
        let input = system.input().iter().all(|&b| b == Complex64::ONE);
        assert!(input, "a residue stands in C");
        for (l, found) in sampled.kernel(50).unwrap().into_iter().enumerate() {
            let wanted = wanted(l) - if l == 0 { 0.25 } else { 0.0 };
            assert!((found - wanted).abs() < 1e-14, "{l}: {found} {wanted}");
        }
        let back = sampled.undo_impulses().unwrap();
        assert!((back.input() - system.input()).norm() < 1e-14);
        assert_eq!(back.time(), Time::Continuous);
        assert!(back.undo_impulses().is_err() && sampled.impulses(0.01).is_err());
    }

    #[test]
    fn faults_of_the_parts_are_named() {
        let one = vec![Complex64::ONE];
        let wrong = DiagonalSystem::siso(Time::Continuous, one.clone(), &[], 0.0);
        assert!(matches!(
            wrong,
            Err(SystemError::Shape {
                matrix: "output",
                ..
            })
        ));
        let nan = [Complex64::new(f64::NAN, 0.0)];
        let wrong = DiagonalSystem::siso(Time::Continuous, one.clone(), &nan, 0.0);
        assert_eq!(
            wrong,
            Err(SystemError::NotFinite {
                what: "the output weight",
                mode: 0
            })
        );
        let time = Time::Discrete { step: -1.0 };
        let wrong = DiagonalSystem::siso(time, one, &[Complex64::ONE], 0.0);
        assert_eq!(wrong, Err(SystemError::Step { step: -1.0 }));
    }

    #[test]
    fn an_unstable_mode_is_listed_by_index() {
        let exponents = vec![Complex64::new(-1.0, 0.0), Complex64::new(0.5, 2.0)];
        let residues = [Complex64::ONE; 2];
        let system = DiagonalSystem::siso(Time::Continuous, exponents, &residues, 0.0).unwrap();
        let error = system.stable().unwrap_err();
        assert!(
            error
                .to_string()
                .contains("1 of 2 modes do not decay: mode 1")
        );
        assert_eq!(system.unstable_modes().len(), 1);
    }
}
