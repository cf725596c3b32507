//! Signals Re(β e^{zl}), the weights that bring them nearest to a kernel, and the slopes of the error.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::control::norm::kernel_square;
use crate::linalg::{
    expm1, multiply, multiply_adjoint, multiply_transpose, solve_positive_columns,
};
use crate::ssm::DiagonalSystem;

/// What the square of a signal alone costs, as a share of it: signals that cancel to a thousandth of
/// themselves cost a thousandth of the kernel's square, so that single precision holds what is found.
const RIDGE: f64 = 1e-9;

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
    horizon: Option<usize>,
    square: f64,
}

/// The best weights of some signals.
#[derive(Debug, Clone)]
pub(super) struct Fit {
    /// Outputs × signals.
    pub(super) output: DMatrix<f64>,
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
    /// β·γ.
    plain: DMatrix<Complex64>,
    /// β·γ̄.
    mixed: DMatrix<Complex64>,
    /// M(z + w) and M(z + w̄).
    sums: [DMatrix<Complex64>; 2],
    /// M′ of the same.
    rises: [DMatrix<Complex64>; 2],
}

/// M(s) = Σ_{l < L} e^{sl} and M′(s) = Σ l e^{sl}.
fn sums(horizon: Option<usize>, s: Complex64) -> (Complex64, Complex64) {
    let Some(length) = horizon else {
        let first = -expm1(s).inv();
        return (first, s.exp() * first * first);
    };
    let l = length as f64;
    if s.norm() * l < 1e-3 {
        // Σ l^p for p = 0, 1, 2, 3.
        let powers = [
            l,
            l * (l - 1.0) / 2.0,
            l * (l - 1.0) * (2.0 * l - 1.0) / 6.0,
        ];
        let cubes = powers[1] * powers[1];
        let value = powers[0] + s * (powers[1] + 0.5 * s * powers[2]);
        return (value, powers[1] + s * (powers[2] + 0.5 * s * cubes));
    }
    let (whole, step) = (expm1(l * s), expm1(s));
    let value = whole / step;
    let rise = (l * (whole + 1.0) - value * (step + 1.0)) / step;
    (value, rise)
}

impl Products {
    fn new(left: &Signals, right: &Signals, horizon: Option<usize>) -> Self {
        let (rows, columns) = (left.exponents.len(), right.exponents.len());
        let turned = right.input.transpose();
        let mut sums_of = [0, 1].map(|_| DMatrix::zeros(rows, columns));
        let mut rises = sums_of.clone();
        for (j, &w) in right.exponents.iter().enumerate() {
            for (n, &z) in left.exponents.iter().enumerate() {
                for (k, w) in [w, w.conj()].into_iter().enumerate() {
                    (sums_of[k][(n, j)], rises[k][(n, j)]) = sums(horizon, z + w);
                }
            }
        }
        Self {
            plain: multiply(&left.input, &turned),
            mixed: multiply(&left.input, &turned.map(|x| x.conj())),
            sums: sums_of,
            rises,
        }
    }

    /// β·γ M(z + w) + β·γ̄ M(z + w̄): twice the inner products, before the real part.
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
}

impl Target {
    pub(super) fn new(full: &DiagonalSystem, horizon: Option<usize>) -> Self {
        let modes = Signals::of(full);
        let output = full.output().clone();
        let over = |z| sums(horizon, z).0;
        let (square, _) = kernel_square(&modes.exponents, &modes.input, &output, over);
        Self {
            square,
            modes,
            output,
            horizon,
        }
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

    /// G with its ridge, and F.
    pub(super) fn normal_equations(&self, signals: &Signals) -> (DMatrix<f64>, DMatrix<f64>) {
        let own = Products::new(signals, signals, self.horizon);
        let across = Products::new(&self.modes, signals, self.horizon);
        self.equations(&own, &across)
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
        let own = Products::new(signals, signals, self.horizon);
        let across = Products::new(&self.modes, signals, self.horizon);
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
        Fit {
            error: square - RIDGE * energies.iter().sum::<f64>(),
            slopes: self.slopes(signals, &output, [&own, &across]),
            square,
            energies,
            output,
        }
    }

    /// Where signals are so alike that no weights are found: worse than any.
    fn none(&self, signals: &Signals) -> Fit {
        let count = signals.exponents.len();
        Fit {
            output: DMatrix::zeros(self.output.nrows(), count),
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
        let input = (among - signs).map(|x| x.conj()) - mixed;
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
                // M(z_j + z̄_k) is the conjugate of M(z_k + z̄_j).
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_over_a_horizon_are_sums() {
        for s in [
            (0.0, 0.0),
            (-1e-6, 2e-6),
            (0.0, 0.4),
            (-0.3, 1.0),
            (0.0, 1e-3),
        ] {
            let s = Complex64::new(s.0, s.1);
            let terms = (0..50).map(|l| (s * f64::from(l)).exp());
            let (value, rise) = sums(Some(50), s);
            let direct: Complex64 = terms.clone().sum();
            assert!((value - direct).norm() < 1e-10 * direct.norm(), "{s}");
            let direct: Complex64 = terms.zip(0..).map(|(x, l)| x * f64::from(l)).sum();
            assert!((rise - direct).norm() < 1e-9 * direct.norm(), "{s}");
        }
    }
}
