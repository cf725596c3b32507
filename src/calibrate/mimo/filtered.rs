//! Moments of inputs that modes have filtered, from products with the inputs alone.

use hankelite_control::{cross_gram, gram_matrix};
use nalgebra::DMatrix;
use num_complex::Complex64;
use rayon::prelude::*;

use crate::calibrate::mimo::modes::Modes;
use crate::calibrate::mimo::sample::{Sample, joined};

/// |1 − a b| below which the quotient of [`Sums::pair`] would lose more than six digits.
const NEAR_ONE: f64 = 1e-6;

/// Σ f fᵀ over the samples, f being all columns of (λ_i^k ∗ u_j, e), e being what is left of the output.
///
/// With x_i = λ_i^k ∗ u, G_i = Σ x_i uᵀ, U = Σ u uᵀ and the states E_i at the end of each sequence
///
/// ```text
/// Σ x_i x_j* = (G_i + G_j* − U − a_i ā_j Σ E_i E_j*) / (1 − a_i ā_j)
/// Σ x_i x_jᵀ = (G_i + G_jᵀ − U − a_i a_j Σ E_i E_jᵀ) / (1 − a_i a_j)
/// ```
///
/// since x_i less a_i times itself one step before is u. Cost r m (m + p) products a step in place of
/// (r m)². Modes in both directions of time, or next to the circle, are multiplied out.
pub(super) fn moments(samples: &[&Sample], modes: &Modes) -> DMatrix<f64> {
    let poles = modes.poles();
    let near = |a: &Complex64, b: Complex64| (1.0 - a * b).norm() < NEAR_ONE;
    let mut pairs = poles
        .iter()
        .flat_map(|a| poles.iter().map(move |b| (a, *b)));
    if modes.directions() > 1 || pairs.any(|(a, b)| near(a, b) || near(a, b.conj())) {
        return multiplied_out(samples, modes);
    }
    let parts = samples.par_iter().map(|sample| {
        let f = modes.filtered(&sample.input, 0, modes.order());
        let both = joined(&[&sample.input, &rest(sample, modes)]);
        let last = f.row(f.nrows() - 1).into_owned();
        (cross_gram(&f, &both), gram_matrix(&both), last)
    });
    let parts: Vec<_> = parts.collect();
    let ends: Vec<_> = parts.iter().map(|(_, _, last)| last.clone()).collect();
    let mut parts = parts.into_iter();
    let (mut across, mut known, _) = parts.next().expect("there is a sample");
    for (a, k, _) in parts {
        across += a;
        known += k;
    }
    let sums = Sums {
        inputs: modes.input.ncols(),
        ends: gram_matrix(&DMatrix::from_rows(&ends)),
        poles,
        across,
        known,
    };
    sums.whole()
}

/// What a system leaves of the output.
fn rest(sample: &Sample, modes: &Modes) -> DMatrix<f64> {
    &sample.target - modes.response(&sample.input)
}

fn multiplied_out(samples: &[&Sample], modes: &Modes) -> DMatrix<f64> {
    let each = samples.par_iter().map(|sample| {
        let f = modes.filtered(&sample.input, 0, modes.order());
        gram_matrix(&joined(&[&f, &rest(sample, modes)]))
    });
    let mut each = each.collect::<Vec<_>>().into_iter();
    let first = each.next().expect("there is a sample");
    each.fold(first, |sum, own| sum + own)
}

/// Sums over the samples.
struct Sums {
    inputs: usize,
    poles: Vec<Complex64>,
    /// Σ f (u, e)ᵀ: real parts of all modes and inputs, then imaginary parts.
    across: DMatrix<f64>,
    /// Σ (u, e)(u, e)ᵀ.
    known: DMatrix<f64>,
    /// Σ of the products of the last f of each sample.
    ends: DMatrix<f64>,
}

impl Sums {
    fn whole(&self) -> DMatrix<f64> {
        let (count, inputs) = (self.poles.len(), self.inputs);
        let rows = self.across.nrows();
        let left = self.known.nrows() - inputs;
        let mut whole = DMatrix::zeros(rows + left, rows + left);
        for i in 0..count {
            for j in 0..count {
                self.pair(i, j, &mut whole);
            }
        }
        let by_rest = self.across.columns(inputs, left);
        whole.view_mut((0, rows), (rows, left)).copy_from(&by_rest);
        whole
            .view_mut((rows, 0), (left, rows))
            .copy_from(&by_rest.transpose());
        whole
            .view_mut((rows, rows), (left, left))
            .copy_from(&self.known.view((inputs, inputs), (left, left)));
        whole
    }

    /// The blocks of modes i and j.
    fn pair(&self, i: usize, j: usize, whole: &mut DMatrix<f64>) {
        let (count, inputs) = (self.poles.len(), self.inputs);
        let place = |mode: usize, part: usize| (part * count + mode) * inputs;
        let (a, b) = (self.poles[i], self.poles[j]);
        let (direct, mirrored) = (a * b.conj(), a * b);
        let inverse = ((1.0 - direct).inv(), (1.0 - mirrored).inv());
        let g = |mode: usize, k: usize, l: usize| {
            let [re, im] = [0, 1].map(|part| self.across[(place(mode, part) + k, l)]);
            Complex64::new(re, im)
        };
        for l in 0..inputs {
            for k in 0..inputs {
                let end = |p: usize, q: usize| self.ends[(place(i, p) + k, place(j, q) + l)];
                let (rr, ri, ir, ii) = (end(0, 0), end(0, 1), end(1, 0), end(1, 1));
                let (own, other) = (g(i, k, l) - self.known[(k, l)], g(j, l, k));
                let x = own + other.conj() - direct * Complex64::new(rr + ii, ir - ri);
                let y = own + other - mirrored * Complex64::new(rr - ii, ri + ir);
                let (x, y) = (0.5 * x * inverse.0, 0.5 * y * inverse.1);
                whole[(place(i, 0) + k, place(j, 0) + l)] = x.re + y.re;
                whole[(place(i, 0) + k, place(j, 1) + l)] = y.im - x.im;
                whole[(place(i, 1) + k, place(j, 0) + l)] = x.im + y.im;
                whole[(place(i, 1) + k, place(j, 1) + l)] = x.re - y.re;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_by_quotients_are_those_multiplied_out() {
        let wave = |x: usize| ((7 * x + x * x % 5) as f64).sin();
        let exponents = (0..3).map(|n| Complex64::new(-1e-4 - 0.3 * n as f64, 0.4 + n as f64));
        let entry = |i: usize, j: usize| Complex64::new(wave(i + 3 * j), wave(2 * i + j + 9));
        let modes = Modes {
            exponents: exponents.collect(),
            input: DMatrix::from_fn(3, 2, entry),
            outputs: vec![DMatrix::from_fn(4, 3, entry)],
            feedthrough: DMatrix::from_fn(4, 2, |i, j| wave(i + j)),
            lag: 0,
            feedthrough_stays: false,
        };
        let samples = [20, 31].map(|length| Sample {
            input: DMatrix::from_fn(length, 2, |t, j| wave(t + 40 * j)),
            target: DMatrix::from_fn(length, 4, |t, j| wave(3 * t + j)),
        });
        let samples: Vec<&Sample> = samples.iter().collect();
        for (chosen, most) in [(&[1, 2][..], 1e-11), (&[0, 1, 2], 1e-9)] {
            let modes = modes.chosen(chosen);
            let found = moments(&samples, &modes);
            let expected = multiplied_out(&samples, &modes);
            let largest = expected.diagonal().max();
            assert!((&found - &expected).amax() < most * largest, "{chosen:?}");
        }
    }
}
