//! Inner products of exponentials: over all time, over some steps, or for an input.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::control::InputWeight;
use crate::control::metric::white_noise;
use crate::control::products::Pole;
use crate::linalg::{expm1, multiply};

/// How kernels are compared.
#[derive(Debug, Clone)]
pub(super) enum Measure {
    /// Over all time, or over so many steps.
    Steps(Option<usize>),
    /// For an input.
    Input(InputMeasure),
}

/// The mean square of the output error for inputs that all have one spectrum, with a little white noise.
#[derive(Debug, Clone)]
pub(super) struct InputMeasure {
    pub(super) weight: InputWeight,
    /// Powers and correlations of the inputs at one step, relative to the weight.
    pub(super) covariance: DMatrix<f64>,
    /// Whether the feedthrough is fitted too.
    pub(super) feedthrough: bool,
    /// Whether kernels end with the steps of the weight, as they have to where modes do not decay.
    pub(super) ends: bool,
}

/// M(s) = Σ_{l < L} e^{sl} and M′(s) = Σ l e^{sl}.
fn geometric(length: usize, s: Complex64) -> [Complex64; 2] {
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

/// Two numbers of every pair, left × right: of each the matrix with the right as it is (`true`), and that with
/// its conjugate.
fn pairs<T>(
    left: &[T],
    right: &[T],
    of: impl Fn(&T, &T, bool) -> [Complex64; 2],
) -> [[DMatrix<Complex64>; 2]; 2] {
    let empty = || [0, 1].map(|_| DMatrix::zeros(left.len(), right.len()));
    let mut both = [empty(), empty()];
    for (j, b) in right.iter().enumerate() {
        for (n, a) in left.iter().enumerate() {
            for (k, mirrored) in [true, false].into_iter().enumerate() {
                [both[0][k][(n, j)], both[1][k][(n, j)]] = of(a, b, mirrored);
            }
        }
    }
    both
}

impl Measure {
    /// Of a kernel's rows of inputs, what each input counts.
    pub(super) fn weighed(&self, input: &DMatrix<Complex64>) -> DMatrix<Complex64> {
        match self {
            Measure::Input(own) => multiply(input, &own.covariance.map(Complex64::from)),
            Measure::Steps(_) => input.clone(),
        }
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
        match self {
            Measure::Steps(Some(length)) => pairs(left, right, |&z, &w, mirrored| {
                geometric(*length, z + if mirrored { w } else { w.conj() })
            }),
            Measure::Steps(None) => {
                let poles = |points: &[Complex64]| -> Vec<Pole> {
                    points.iter().map(|&z| Pole::new(z)).collect()
                };
                pairs(&poles(left), &poles(right), |&a, &b, mirrored| {
                    let shift = a.turned_less_one(b, mirrored);
                    let first = -shift.inv();
                    [first, (shift + 1.0) * first * first]
                })
            }
            Measure::Input(own) if own.ends => own.sums_of_steps(left, right),
            Measure::Input(own) => {
                let products = own.weight.products();
                let noise = white_noise(&own.weight);
                let nodes = |points| products.with_slopes(&products.nodes(points));
                pairs(&nodes(left), &nodes(right), |a, b, mirrored| {
                    let noise = noise.product(a.pole, b.pole, mirrored);
                    let found = products.product(a, b, mirrored) + noise;
                    [found.value, found.second]
                })
            }
        }
    }
}

impl InputMeasure {
    /// [`Measure::sums`] as sums over the steps of the weight.
    fn sums_of_steps(
        &self,
        left: &[Complex64],
        right: &[Complex64],
    ) -> [[DMatrix<Complex64>; 2]; 2] {
        let length = self.weight.length();
        let signals = DMatrix::from_fn(left.len(), length, |n, l| (left[n] * l as f64).exp());
        // With the signals by the weight, and with their derivatives.
        [0, 1].map(|order| {
            let mut weighed = DMatrix::zeros(length, right.len());
            for (mut column, &w) in weighed.column_iter_mut().zip(right) {
                column.copy_from_slice(&self.applied(w, order));
            }
            [
                multiply(&signals, &weighed),
                multiply(&signals, &weighed.map(|x| x.conj())),
            ]
        })
    }

    /// (M + ω I) l^p e^{wl}.
    fn applied(&self, w: Complex64, order: i32) -> Vec<Complex64> {
        let length = self.weight.length();
        let steps = (0..length).map(|l| (l as f64).powi(order) * (w * l as f64).exp());
        let signal: Vec<Complex64> = steps.collect();
        let noise = white_noise(&self.weight).power;
        let [re, im] = [|x: &Complex64| x.re, |x: &Complex64| x.im].map(|part| {
            self.weight
                .applied(&signal.iter().map(part).collect::<Vec<_>>())
        });
        let weighed = re
            .into_iter()
            .zip(im)
            .map(|(re, im)| Complex64::new(re, im));
        weighed
            .zip(&signal)
            .map(|(x, own)| x + noise * own)
            .collect()
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
            let [value, rise] = geometric(50, s);
            let direct: Complex64 = terms.clone().sum();
            assert!((value - direct).norm() < 1e-10 * direct.norm(), "{s}");
            let direct: Complex64 = terms.zip(0..).map(|(x, l)| x * f64::from(l)).sum();
            assert!((rise - direct).norm() < 1e-9 * direct.norm(), "{s}");
        }
    }
}
