//! Signals Re(β e^{zl}), the weights that bring them nearest to a kernel, and the slopes of the error.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::control::in_class::measure::Measure;
use crate::linalg::{multiply, multiply_adjoint, multiply_transpose, solve_positive_columns};
use crate::ssm::DiagonalSystem;

/// What the square of a signal alone costs, as a share of it: signals that cancel to a thousandth of
/// themselves cost a thousandth of the kernel's square, so that single precision holds what is found.
const RIDGE: f64 = 1e-9;

/// The exponent of a signal that is a sample at step 0 to the last digit.
const SAMPLE: Complex64 = Complex64::new(-64.0, 0.0);

/// Signals of as many inputs as β has columns; or slopes by their exponents and β, ∂/∂Re + i ∂/∂Im.
#[derive(Debug, Clone)]
pub(super) struct Signals {
    pub(super) exponents: Vec<Complex64>,
    /// β, signals × inputs.
    pub(super) input: DMatrix<Complex64>,
}

/// The kernel that is approximated.
pub(super) struct Target {
    modes: Signals,
    output: DMatrix<Complex64>,
    measure: Measure,
    square: f64,
}

/// The best weights of some signals.
#[derive(Debug, Clone)]
pub(super) struct Fit {
    /// Outputs × signals.
    pub(super) output: DMatrix<f64>,
    /// What the feedthrough gains, where it is fitted too: outputs × inputs.
    pub(super) feedthrough: Option<DMatrix<f64>>,
    /// The squared error, and what the weights cost ([`RIDGE`]).
    pub(super) square: f64,
    /// The squared error alone.
    pub(super) error: f64,
    /// The square of what each signal brings, alone.
    pub(super) energies: Vec<f64>,
    /// By exponents and β.
    pub(super) slopes: Signals,
}

/// Products of signals, with those of their derivatives by the second exponent.
struct Products {
    /// β·γ, with what each input counts.
    plain: DMatrix<Complex64>,
    /// β·γ̄, likewise.
    mixed: DMatrix<Complex64>,
    /// P(z, w) and P(z, w̄).
    sums: [DMatrix<Complex64>; 2],
    /// P′ of the same, by w and by w̄.
    rises: [DMatrix<Complex64>; 2],
}

impl Products {
    fn new(left: &Signals, right: &Signals, measure: &Measure) -> Self {
        let weighed = measure.weighed(&left.input);
        let turned = right.input.transpose();
        let [sums, rises] = measure.sums(&left.exponents, &right.exponents);
        Self {
            plain: multiply(&weighed, &turned),
            mixed: multiply(&weighed, &turned.map(|x| x.conj())),
            sums,
            rises,
        }
    }

    /// β·γ P(z, w) + β·γ̄ P(z, w̄): twice the inner products, before the real part.
    fn whole(&self) -> DMatrix<Complex64> {
        self.plain.component_mul(&self.sums[0]) + self.mixed.component_mul(&self.sums[1])
    }
}

impl Signals {
    fn of(system: &DiagonalSystem) -> Self {
        Self {
            exponents: system.scaled_exponents(),
            input: system.input().clone(),
        }
    }

    /// The same, and behind them a sample at step 0 for each input.
    fn with_samples(&self) -> Self {
        let (count, inputs) = self.input.shape();
        let mut input = self
            .input
            .clone()
            .resize_vertically(count + inputs, Complex64::ZERO);
        (0..inputs).for_each(|h| input[(count + h, h)] = Complex64::ONE);
        let mut exponents = self.exponents.clone();
        exponents.resize(count + inputs, SAMPLE);
        Self { exponents, input }
    }
}

impl Measure {
    /// ⟨K, K'⟩ of two kernels by their modes and C.
    fn inner(&self, modes: [&Signals; 2], outputs: [&DMatrix<Complex64>; 2]) -> f64 {
        let products = Products::new(modes[0], modes[1], self);
        let turned = outputs[1].map(|x| x.conj());
        let plain = multiply_transpose(outputs[0], outputs[1])
            .component_mul(&products.plain)
            .component_mul(&products.sums[0]);
        let mixed = multiply_transpose(outputs[0], &turned)
            .component_mul(&products.mixed)
            .component_mul(&products.sums[1]);
        0.5 * (plain.sum() + mixed.sum()).re
    }
}

impl Target {
    pub(super) fn new(full: &DiagonalSystem, measure: Measure) -> Self {
        let modes = Signals::of(full);
        let output = full.output().clone();
        Self {
            square: measure.inner([&modes, &modes], [&output, &output]),
            modes,
            output,
            measure,
        }
    }

    /// The square of the kernel.
    pub(super) fn square(&self) -> f64 {
        self.square
    }

    /// The norm of an error, relative to that of the kernel.
    pub(super) fn relative(&self, square: f64) -> f64 {
        if self.square <= 0.0 {
            return 0.0;
        }
        (square.max(0.0) / self.square).sqrt()
    }

    /// Whether an error is as small as rounding.
    pub(super) fn is_rounding(&self, square: f64) -> bool {
        square <= 1e-14 * self.square
    }

    /// G with its ridge, and F; last those of the feedthrough, where it is fitted too.
    pub(super) fn normal_equations(&self, signals: &Signals) -> (DMatrix<f64>, DMatrix<f64>) {
        let [own, across] = self.products(&self.fitted(signals));
        self.equations(&own, &across)
    }

    /// The signals whose weights are fitted.
    fn fitted(&self, signals: &Signals) -> Signals {
        match self.measure.holds_feedthrough() {
            true => signals.with_samples(),
            false => signals.clone(),
        }
    }

    /// Among signals, and of the kernel's modes with them.
    fn products(&self, signals: &Signals) -> [Products; 2] {
        let with = |left: &Signals| Products::new(left, signals, &self.measure);
        [with(signals), with(&self.modes)]
    }

    /// The squared error of another kernel, the feedthrough aside.
    pub(super) fn square_of(&self, system: &DiagonalSystem) -> f64 {
        let (own, modes) = (system.output(), Signals::of(system));
        let among = self.measure.inner([&modes, &modes], [own, own]);
        let across = self
            .measure
            .inner([&self.modes, &modes], [&self.output, own]);
        self.square - 2.0 * across + among
    }

    fn equations(&self, own: &Products, across: &Products) -> (DMatrix<f64>, DMatrix<f64>) {
        let mut gram = own.whole().map(|x| 0.5 * x.re);
        let most = gram.diagonal().max();
        for j in 0..gram.nrows() {
            gram[(j, j)] += RIDGE * gram[(j, j)] + f64::EPSILON * most;
        }
        let right = multiply(&self.output, &across.whole()).map(|x| 0.5 * x.re);
        (gram, right)
    }

    /// The best weights, the error and its slopes.
    pub(super) fn fit(&self, signals: &Signals) -> Fit {
        let all = self.fitted(signals);
        let [own, across] = self.products(&all);
        let (gram, right) = self.equations(&own, &across);
        let output = solve_positive_columns(&gram, &right.transpose());
        let Some(output) = output.map(|found| found.transpose()) else {
            return self.none(signals);
        };
        let reached: f64 = output.component_mul(&right).iter().sum();
        let inner = multiply_adjoint(&output, &output);
        let energies = (0..gram.nrows()).map(|j| inner[(j, j)] * gram[(j, j)]);
        let energies: Vec<f64> = energies.collect();
        let square = self.square - reached;
        let slopes = self.slopes(&all, &output, [&own, &across]);
        let (count, inputs) = signals.input.shape();
        let extra = (output.ncols() > count).then(|| output.columns(count, inputs).into_owned());
        Fit {
            error: square - RIDGE * energies.iter().sum::<f64>(),
            slopes: Signals {
                exponents: slopes.exponents[..count].to_vec(),
                input: slopes.input.rows(0, count).into_owned(),
            },
            square,
            energies: energies[..count].to_vec(),
            output: output.columns(0, count).into_owned(),
            feedthrough: extra,
        }
    }

    /// Where signals are so alike that no weights are found: worse than any.
    fn none(&self, signals: &Signals) -> Fit {
        let count = signals.exponents.len();
        Fit {
            output: DMatrix::zeros(self.output.nrows(), count),
            feedthrough: None,
            square: f64::INFINITY,
            error: f64::INFINITY,
            energies: vec![1.0; count],
            slopes: Signals {
                exponents: vec![Complex64::ZERO; count],
                input: DMatrix::zeros(count, signals.input.ncols()),
            },
        }
    }

    /// At the best weights those of E = ‖K‖² − 2 tr(C Fᵀ) + tr(C G Cᵀ) with C held.
    fn slopes(&self, signals: &Signals, output: &DMatrix<f64>, at: [&Products; 2]) -> Signals {
        let [own, across] = at;
        let inner = multiply_adjoint(output, output).map(Complex64::from);
        let outer = multiply_transpose(&self.output, &output.map(Complex64::from));
        let weigh =
            |weights: &DMatrix<Complex64>, sums: &DMatrix<Complex64>| weights.component_mul(sums);
        let signs = multiply_transpose(&weigh(&outer, &across.sums[0]), &self.modes.input);
        let mixed = multiply_transpose(&weigh(&outer, &across.sums[1]), &self.modes.input);
        let conjugate = signals.input.map(|x| x.conj());
        let among = multiply(&weigh(&inner, &own.sums[0]), &signals.input)
            + multiply(&weigh(&inner, &own.sums[1]), &conjugate);
        let input = self
            .measure
            .weighed(&((among - signs).map(|x| x.conj()) - mixed));
        let count = signals.exponents.len();
        let exponents = (0..count).map(|j| {
            let mut plain = Complex64::ZERO;
            let mut turned = Complex64::ZERO;
            for n in 0..self.modes.exponents.len() {
                let at = (n, j);
                plain -= outer[at] * across.plain[at] * across.rises[0][at];
                turned -= outer[at] * across.mixed[at] * across.rises[1][at];
            }
            for k in 0..count {
                let rises = own.plain[(k, j)] * own.rises[0][(k, j)];
                let at = own.mixed[(k, j)] * own.rises[1][(k, j)];
                // P(z_j, z̄_k) is the conjugate of P(z_k, z̄_j).
                plain += inner[(k, j)] * (rises + at.conj());
            }
            plain.conj() + turned
        });
        Signals {
            exponents: exponents.collect(),
            input,
        }
    }
}
