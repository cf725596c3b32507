//! Steps of B where its normal equations are too large to form.

use hankelite_control::{cross_gram, product};
use nalgebra::{Cholesky, DMatrix, DVector};
use num_complex::Complex64;
use rayon::prelude::*;

use crate::calibrate::mimo::modes::Modes;
use crate::calibrate::mimo::sample::Sample;

/// Prices of moving B and the poles, relative to the curvature.
pub(super) const PRICES: [f64; 3] = [1e-4, 1e-2, 1.0];

/// Products with the normal equations for one step.
const PRODUCTS: usize = 12;

/// Samples that scale the numbers.
const SAMPLES_SEEN: usize = 2;

/// Least squares for B: with J the derivative of the outputs by B, and e what is left of them,
///
/// ```text
/// (JᵀMJ + price · diag) δ = JᵀM e
/// ```
///
/// A product with JᵀMJ is one run of the modes forwards and one of their adjoints, O(T r m). Scaled to a
/// diagonal of ones, all prices are solved in the space that a few products span (Lanczos).
pub(super) struct InputCurvature<'a> {
    samples: &'a [&'a Sample],
    modes: &'a Modes,
    metric: &'a DMatrix<f64>,
    /// WᵀMW.
    output: DMatrix<f64>,
    /// The root of the inverse of the diagonal.
    scale: DVector<f64>,
}

/// Numbers of B, the real parts first, as a matrix.
pub(super) fn input_of(modes: &Modes, numbers: &DVector<f64>) -> DMatrix<Complex64> {
    let (order, inputs) = modes.input.shape();
    let (re, im) = numbers.as_slice().split_at(order * inputs);
    let both = re.iter().zip(im).map(|(&re, &im)| Complex64::new(re, im));
    DMatrix::from_iterator(order, inputs, both)
}

fn numbers_of(input: &DMatrix<Complex64>) -> DVector<f64> {
    let parts = input.iter().map(|b| b.re).chain(input.iter().map(|b| b.im));
    DVector::from_iterator(2 * input.len(), parts)
}

impl<'a> InputCurvature<'a> {
    pub(super) fn new(
        samples: &'a [&'a Sample],
        modes: &'a Modes,
        metric: &'a DMatrix<f64>,
    ) -> Self {
        let w = modes.output_matrix();
        let mut made = Self {
            output: cross_gram(&w, &(metric * &w)),
            samples,
            modes,
            metric,
            scale: DVector::zeros(0),
        };
        made.scale = made
            .diagonal()
            .map(|x: f64| if x > 0.0 { x.sqrt().recip() } else { 0.0 });
        made
    }

    /// About the diagonal of JᵀMJ, from some of the samples, but for what real and imaginary parts have in
    /// common.
    fn diagonal(&self) -> DVector<f64> {
        let (order, inputs) = self.modes.input.shape();
        let mut sizes = DMatrix::zeros(order, inputs);
        let some = &self.samples[..self.samples.len().min(SAMPLES_SEEN)];
        let share = self.samples.len() as f64 / some.len().max(1) as f64;
        for i in 0..order {
            let parts = some.par_iter().map(|sample| {
                let f = self.modes.filtered(&sample.input, i, 1);
                DVector::from_iterator(f.ncols(), f.column_iter().map(|f| f.norm_squared()))
            });
            let parts = parts.collect::<Vec<_>>();
            let squares = parts.into_iter().reduce(|sum, own| sum + own);
            let squares = squares.expect("there is a sample");
            for direction in 0..self.modes.directions() {
                let first = 2 * order * direction + i;
                let [re, im] = [first, first + order].map(|k| self.output[(k, k)]);
                for j in 0..inputs {
                    let at = 2 * direction * inputs + j;
                    sizes[(i, j)] += 0.5 * share * (re + im) * (squares[at] + squares[at + inputs]);
                }
            }
        }
        numbers_of(&sizes.map(|x| Complex64::new(x, x)))
    }

    /// Σ over the samples of the derivatives by B, from those by z.
    fn pulled(&self, by_states: impl Fn(&Sample) -> DMatrix<f64> + Sync) -> DVector<f64> {
        let parts = self.samples.par_iter().map(|sample| {
            let adjoints = self.modes.adjoints_driven(by_states(sample));
            self.modes.input_slopes(&adjoints, &sample.input)
        });
        let parts = parts.collect::<Vec<_>>();
        let sum = parts.into_iter().reduce(|sum, own| sum + own);
        numbers_of(&sum.expect("there is a sample")).component_mul(&self.scale)
    }

    fn product(&self, by: &DVector<f64>) -> DVector<f64> {
        let moved = input_of(self.modes, &by.component_mul(&self.scale));
        let moved = self.modes.with_input(moved);
        self.pulled(|sample| product(&moved.states(&sample.input), &self.output))
    }

    /// A step for each price.
    pub(super) fn steps(&self) -> Vec<DVector<f64>> {
        let weights = self.metric * self.modes.output_matrix();
        let slope = self.pulled(|sample| {
            product(
                &(&sample.target - self.modes.response(&sample.input)),
                &weights,
            )
        });
        let size = slope.norm();
        if !(size > 0.0 && size.is_finite()) {
            return Vec::new();
        }
        let (basis, small) = self.spanned(slope / size);
        let steps = PRICES.iter().filter_map(|&price| {
            let count = basis.ncols();
            let priced = &small + DMatrix::identity(count, count) * price;
            let mut first = DVector::zeros(count);
            first[0] = size;
            let own = Cholesky::new(priced)?.solve(&first);
            Some((&basis * own).component_mul(&self.scale))
        });
        steps.collect()
    }

    /// An orthonormal basis of what products with a vector span, and JᵀMJ in it.
    fn spanned(&self, first: DVector<f64>) -> (DMatrix<f64>, DMatrix<f64>) {
        let mut basis = vec![first];
        let mut products = Vec::new();
        for _ in 0..PRODUCTS {
            let last = basis.last().expect("there is a first");
            let product = self.product(last);
            let mut next = product.clone();
            products.push(product);
            // Twice, since the first pass leaves rounding errors.
            for known in basis.iter().chain(&basis) {
                next.axpy(-known.dot(&next), known, 1.0);
            }
            let size = next.norm();
            if basis.len() == PRODUCTS || size.is_nan() || size <= 1e-10 {
                break;
            }
            basis.push(next / size);
        }
        basis.truncate(products.len());
        let (basis, products) = (
            DMatrix::from_columns(&basis),
            DMatrix::from_columns(&products),
        );
        let small = cross_gram(&basis, &products);
        let small = (&small + small.transpose()) * 0.5;
        (basis, small)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_those_of_the_normal_equations() {
        let wave = |x: usize| ((7 * x + x * x % 5) as f64).sin();
        let entry = |i: usize, j: usize| Complex64::new(wave(i + 3 * j), wave(2 * i + j + 9));
        let modes = Modes {
            exponents: vec![Complex64::new(-0.2, 0.4), Complex64::new(-0.5, 1.7)],
            input: DMatrix::from_fn(2, 2, entry),
            outputs: vec![DMatrix::from_fn(3, 2, entry); 2],
            feedthrough: DMatrix::from_fn(3, 2, |i, j| wave(i + j)),
            lag: 1,
            feedthrough_stays: false,
        };
        let samples = [20, 31].map(|length| Sample {
            input: DMatrix::from_fn(length, 2, |t, j| wave(t + 40 * j)),
            target: DMatrix::from_fn(length, 3, |t, j| wave(3 * t + j)),
        });
        let samples: Vec<&Sample> = samples.iter().collect();
        let metric = DMatrix::from_diagonal(&DVector::from_vec(vec![1.0, 2.0, 0.5]));
        let curvature = InputCurvature::new(&samples, &modes, &metric);
        // J by what the outputs become for each number.
        let count = 2 * modes.input.len();
        let column = |at: usize| {
            let mut unit = DVector::zeros(count);
            unit[at] = 1.0;
            let mut moved = modes.with_input(input_of(&modes, &unit));
            moved.feedthrough.fill(0.0);
            let each = samples.iter().map(|s| moved.response(&s.input));
            each.collect::<Vec<_>>()
        };
        let columns: Vec<_> = (0..count).map(column).collect();
        let inner = |a: &[DMatrix<f64>], b: &[DMatrix<f64>]| -> f64 {
            a.iter().zip(b).map(|(a, b)| (a * &metric).dot(b)).sum()
        };
        let rest = samples.iter().map(|s| &s.target - modes.response(&s.input));
        let rest: Vec<_> = rest.collect();
        let normal = DMatrix::from_fn(count, count, |i, j| inner(&columns[i], &columns[j]));
        let slope = DVector::from_fn(count, |i, _| inner(&columns[i], &rest));
        let steps = curvature.steps();
        assert_eq!(steps.len(), PRICES.len());
        for (step, price) in steps.iter().zip(PRICES) {
            let ridge = curvature.diagonal() * price;
            let left = (&normal + DMatrix::from_diagonal(&ridge)) * step - &slope;
            assert!(left.norm() < 1e-8 * slope.norm(), "{price} {}", left.norm());
        }
    }
}
