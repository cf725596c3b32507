//! Dense real systems, for models that are not diagonal and as an independent check.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::ssm::blocks::{RealBlock, block_input, block_output, real_blocks};
use crate::ssm::diagonal::{check_shape, check_time};
use crate::ssm::{DiagonalSystem, SystemError, Time};

/// A real state space system with n states, m inputs and p outputs.
///
/// ```text
/// continuous:  dx/dt = A x + B u,            y = C x + D u
/// discrete:    x_k   = A x_{k−1} + B u_k,    y_k = C x_k + D u_k
/// ```
///
/// As for [`DiagonalSystem`], the output at step k includes the input of step k; this moves the
/// transfer function by one step and changes no Gramian. The Markov parameters are C A^l B.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseSystem {
    time: Time,
    state: DMatrix<f64>,
    input: DMatrix<f64>,
    output: DMatrix<f64>,
    feedthrough: DMatrix<f64>,
}

impl DenseSystem {
    /// A system from A (n × n), B (n × m), C (p × n), D (p × m).
    ///
    /// # Errors
    /// [`SystemError::Shape`], [`SystemError::Step`]; [`SystemError::NotFinite`] with the row of
    /// the entry.
    pub fn new(
        time: Time,
        state: DMatrix<f64>,
        input: DMatrix<f64>,
        output: DMatrix<f64>,
        feedthrough: DMatrix<f64>,
    ) -> Result<Self, SystemError> {
        let (n, m, p) = (state.nrows(), input.ncols(), output.nrows());
        check_shape("state", state.shape(), (n, n))?;
        check_shape("input", input.shape(), (n, m))?;
        check_shape("output", output.shape(), (p, n))?;
        check_shape("feedthrough", feedthrough.shape(), (p, m))?;
        check_time(time)?;
        for (what, matrix) in [
            ("an entry of the state matrix in the row", &state),
            ("an entry of the input matrix in the row", &input),
            ("an entry of the output matrix in the row", &output),
            ("an entry of the feedthrough in the row", &feedthrough),
        ] {
            let mut rows = matrix.row_iter();
            if let Some(mode) = rows.position(|row| row.iter().any(|x| !x.is_finite())) {
                return Err(SystemError::NotFinite { what, mode });
            }
        }
        Ok(Self {
            time,
            state,
            input,
            output,
            feedthrough,
        })
    }

    /// The real system y = Re(C x) behind complex modes.
    ///
    /// ```text
    /// x + iy:  A = [Re a  −Im a; Im a  Re a],   B = √2 [Re b; Im b],   C = [Re c  −Im c]/√2
    /// ```
    ///
    /// A mode with Im λ = 0 is one state, or two when Re(c b) has rank two.
    ///
    /// # Errors
    /// [`SystemError::NotFinite`] when a pole e^{λΔ} overflows.
    pub fn from_diagonal(system: &DiagonalSystem) -> Result<Self, SystemError> {
        let blocks = real_blocks(system);
        let n = blocks.iter().map(RealBlock::states).sum();
        let mut state = DMatrix::zeros(n, n);
        let mut row = 0;
        for (block, pole) in blocks.iter().zip(system.poles()) {
            state[(row, row)] = pole.re;
            if !block.single {
                state[(row + 1, row + 1)] = pole.re;
                state[(row, row + 1)] = -pole.im;
                state[(row + 1, row)] = pole.im;
            }
            row += block.states();
        }
        Self::new(
            system.time(),
            state,
            block_input(&blocks, system.input().ncols()),
            block_output(&blocks, system.output().nrows()),
            system.feedthrough().clone(),
        )
    }

    /// The time base.
    pub fn time(&self) -> Time {
        self.time
    }

    /// The number n of states.
    pub fn order(&self) -> usize {
        self.state.nrows()
    }

    /// A (n × n).
    pub fn state(&self) -> &DMatrix<f64> {
        &self.state
    }

    /// B (n × m).
    pub fn input(&self) -> &DMatrix<f64> {
        &self.input
    }

    /// C (p × n).
    pub fn output(&self) -> &DMatrix<f64> {
        &self.output
    }

    /// D (p × m).
    pub fn feedthrough(&self) -> &DMatrix<f64> {
        &self.feedthrough
    }

    /// The Markov parameters C A^l B for l = 0 … count − 1. Cost n² (m + p) each.
    pub fn markov_parameters(&self, count: usize) -> Vec<DMatrix<f64>> {
        let mut reached = self.input.clone();
        let mut parameters = Vec::with_capacity(count);
        for _ in 0..count {
            parameters.push(&self.output * &reached);
            reached = &self.state * reached;
        }
        parameters
    }

    /// The transfer function C (s − A)⁻¹ B + D at one point, or `None` at a pole. In discrete
    /// time s is z and the function is that of C A^l B delayed by one step.
    pub fn transfer(&self, s: Complex64) -> Option<DMatrix<Complex64>> {
        let n = self.order();
        let shifted = DMatrix::identity(n, n) * s - self.state.map(Complex64::from);
        let reached = shifted.lu().solve(&self.input.map(Complex64::from))?;
        Some(self.output.map(Complex64::from) * reached + self.feedthrough.map(Complex64::from))
    }

    /// Both systems side by side with the outputs subtracted: the error of `other`.
    ///
    /// # Errors
    /// [`SystemError::Size`]; [`SystemError::WrongTime`] for different time bases.
    pub fn minus(&self, other: &Self) -> Result<Self, SystemError> {
        let (inputs, outputs) = (self.input.ncols(), self.output.nrows());
        if (other.input.ncols(), other.output.nrows()) != (inputs, outputs) {
            return Err(SystemError::Size {
                inputs: other.input.ncols(),
                outputs: other.output.nrows(),
                expected_inputs: inputs,
                expected_outputs: outputs,
            });
        }
        if self.time != other.time {
            return Err(SystemError::WrongTime {
                found: other.time.name(),
                expected: self.time.name(),
            });
        }
        let (n, k) = (self.order(), other.order());
        let mut state = DMatrix::zeros(n + k, n + k);
        state.view_mut((0, 0), (n, n)).copy_from(&self.state);
        state.view_mut((n, n), (k, k)).copy_from(&other.state);
        let mut input = DMatrix::zeros(n + k, inputs);
        input.rows_mut(0, n).copy_from(&self.input);
        input.rows_mut(n, k).copy_from(&other.input);
        let mut output = DMatrix::zeros(outputs, n + k);
        output.columns_mut(0, n).copy_from(&self.output);
        output.columns_mut(n, k).copy_from(&-&other.output);
        let feedthrough = &self.feedthrough - &other.feedthrough;
        Self::new(self.time, state, input, output, feedthrough)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_real_realisation_has_the_kernel_of_the_diagonal_system() {
        let exponents = vec![
            Complex64::new(-0.5, 3.0),
            Complex64::new(-0.7, 0.0),
            Complex64::new(-0.9, -7.0),
        ];
        let input = DMatrix::from_fn(3, 2, |i, j| Complex64::new(i as f64 + 0.3, j as f64 - 0.8));
        let output = DMatrix::from_fn(2, 3, |i, j| Complex64::new(j as f64 - 0.1, 1.0 - i as f64));
        for time in [Time::Continuous, Time::Discrete { step: 0.1 }] {
            let (input, output) = (input.clone(), output.clone());
            let feedthrough = DMatrix::from_element(2, 2, 0.5);
            let system =
                DiagonalSystem::new(time, exponents.clone(), input, output, feedthrough).unwrap();
            let dense = DenseSystem::from_diagonal(&system).unwrap();
            assert_eq!(dense.order(), 6);
            let poles = system.poles();
            let parameters = dense.markov_parameters(8);
            assert_eq!(parameters.len(), 8);
            for (l, found) in parameters.iter().enumerate() {
                let mut reached = system.input().clone();
                for (mut row, pole) in reached.row_iter_mut().zip(&poles) {
                    row *= pole.powu(l as u32);
                }
                let expected = (system.output() * reached).map(|x| x.re);
                assert!((found - &expected).norm() < 1e-13 * (1.0 + expected.norm()));
            }
        }
    }

    #[test]
    fn a_real_pole_with_real_rows_is_one_state() {
        let row = |values: [f64; 2]| values.map(Complex64::from);
        let system = DiagonalSystem::new(
            Time::Continuous,
            vec![Complex64::new(-1.0, 0.0)],
            DMatrix::from_row_slice(1, 2, &row([1.0, 2.0])) * Complex64::new(0.0, 1.0),
            DMatrix::from_column_slice(2, 1, &[Complex64::new(0.5, 1.0), Complex64::new(1.0, 3.0)]),
            DMatrix::zeros(2, 2),
        )
        .unwrap();
        let dense = DenseSystem::from_diagonal(&system).unwrap();
        assert_eq!(dense.order(), 1);
        // Re(c i p) = −Im c p.
        let expected = DMatrix::from_row_slice(2, 2, &[-1.0, -2.0, -3.0, -6.0]);
        assert!((dense.output() * dense.input() - expected).norm() < 1e-15);
    }

    #[test]
    fn faults_of_the_parts_are_named() {
        let one = DMatrix::from_element(1, 1, 1.0);
        let wide = DMatrix::from_element(1, 2, 1.0);
        let new = |state, input| {
            DenseSystem::new(Time::Continuous, state, input, one.clone(), one.clone())
        };
        assert_eq!(
            new(wide.clone(), one.clone()),
            Err(SystemError::Shape {
                matrix: "state",
                found: (1, 2),
                expected: (1, 1),
            })
        );
        let nan = DMatrix::from_element(1, 1, f64::NAN);
        let error = new(nan, one.clone()).unwrap_err();
        assert!(error.to_string().contains("state matrix"), "{error}");
        let system = new(one.clone(), one.clone()).unwrap();
        let time = Time::Discrete { step: 1.0 };
        let other = DenseSystem::new(time, one.clone(), one.clone(), one.clone(), one.clone());
        assert_eq!(
            system.minus(&other.unwrap()),
            Err(SystemError::WrongTime {
                found: "discrete",
                expected: "continuous",
            })
        );
    }
}
