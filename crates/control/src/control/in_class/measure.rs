//! Inner products of exponentials: over all time, over some steps, or for an input.

use nalgebra::{DMatrix, DVector};
use num_complex::Complex64;

use crate::control::InputWeight;
use crate::control::metric::white_noise;
use crate::linalg::expm1;

/// How kernels are compared.
#[derive(Debug, Clone)]
pub(super) enum Measure {
    /// Over all time, or over so many steps.
    Steps(Option<usize>),
    /// For an input.
    Input(InputMeasure),
}

/// The mean square of the output error for inputs that all have one spectrum and are not correlated, with
/// a little white noise over all time.
#[derive(Debug, Clone)]
pub(super) struct InputMeasure {
    pub(super) weight: InputWeight,
    /// The power of each input, relative to the weight.
    pub(super) powers: DVector<f64>,
    /// Whether the feedthrough is fitted too.
    pub(super) feedthrough: bool,
}

/// M(s) = Σ_{l < L} e^{sl} and M′(s) = Σ l e^{sl}.
fn geometric(horizon: Option<usize>, s: Complex64) -> [Complex64; 2] {
    let Some(length) = horizon else {
        let first = -expm1(s).inv();
        return [first, s.exp() * first * first];
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
        return [value, powers[1] + s * (powers[2] + 0.5 * s * cubes)];
    }
    let (whole, step) = (expm1(l * s), expm1(s));
    let value = whole / step;
    let rise = (l * (whole + 1.0) - value * (step + 1.0)) / step;
    [value, rise]
}

impl Measure {
    /// Of a kernel's rows of inputs, what each input counts.
    pub(super) fn weighed(&self, input: &DMatrix<Complex64>) -> DMatrix<Complex64> {
        let mut weighed = input.clone();
        if let Measure::Input(own) = self {
            for (mut column, power) in weighed.column_iter_mut().zip(&own.powers) {
                column *= Complex64::from(*power);
            }
        }
        weighed
    }

    /// Whether the feedthrough is fitted too.
    pub(super) fn holds_feedthrough(&self) -> bool {
        matches!(self, Measure::Input(own) if own.feedthrough)
    }

    /// P(z, w) and P(z, w̄) of all pairs, and their derivatives by w and by w̄.
    pub(super) fn sums(
        &self,
        left: &[Complex64],
        right: &[Complex64],
    ) -> [[DMatrix<Complex64>; 2]; 2] {
        let (rows, columns) = (left.len(), right.len());
        let mut sums = [0, 1].map(|_| DMatrix::zeros(rows, columns));
        let mut rises = sums.clone();
        let mut put = |at: (usize, usize), k: usize, [sum, rise]: [Complex64; 2]| {
            (sums[k][at], rises[k][at]) = (sum, rise);
        };
        match self {
            Measure::Steps(horizon) => {
                for (j, &w) in right.iter().enumerate() {
                    for (n, &z) in left.iter().enumerate() {
                        put((n, j), 0, geometric(*horizon, z + w));
                        put((n, j), 1, geometric(*horizon, z + w.conj()));
                    }
                }
            }
            Measure::Input(own) => {
                let products = own.weight.products();
                let noise = white_noise(&own.weight);
                let nodes = |points| products.with_slopes(&products.nodes(points));
                let (left, right) = (nodes(left), nodes(right));
                for (j, b) in right.iter().enumerate() {
                    for (n, a) in left.iter().enumerate() {
                        for (k, mirrored) in [true, false].into_iter().enumerate() {
                            let found = products.product(a, b, mirrored)
                                + noise.product(a.pole, b.pole, mirrored);
                            put((n, j), k, [found.value, found.second]);
                        }
                    }
                }
            }
        }
        [sums, rises]
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
            let [value, rise] = geometric(Some(50), s);
            let direct: Complex64 = terms.clone().sum();
            assert!((value - direct).norm() < 1e-10 * direct.norm(), "{s}");
            let direct: Complex64 = terms.zip(0..).map(|(x, l)| x * f64::from(l)).sum();
            assert!((rise - direct).norm() < 1e-9 * direct.norm(), "{s}");
        }
    }
}
