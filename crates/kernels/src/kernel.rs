//! Kernels of one channel from its modes, and the gradient of the modes.
//!
//! ```text
//! k[l] = Re Σ_n w_n e^{z_n (l − g_n (L−1))},   g_n = 1 where Re z_n > 0, else 0
//! ```
//!
//! A growing mode is anchored at its last sample, so no power overflows: it is a decaying mode
//! read backwards.
//!
//! With l = T a + b and T ≈ √L, e^{z l} = e^{z T a} e^{z b}: about 2√L powers per mode, formed in
//! f64, then one real product of an (L/T × 2N) and a (2N × T) matrix.

use num_complex::Complex64;
use pulp::{Arch, Simd, WithSimd};

use crate::product::{RowMajor, multiply_rows};
use crate::real::LaneReal;

/// The modes of one channel: exponents per step, and weights.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Modes {
    /// z_n: the pole is e^z.
    pub exponents: Vec<Complex64>,
    /// w_n: input times output.
    pub weights: Vec<Complex64>,
}

impl Modes {
    fn push(&mut self, exponent: Complex64, weight: Complex64) {
        self.exponents.push(exponent);
        self.weights.push(weight);
    }

    /// Decaying modes, and growing ones turned round.
    fn split(&self) -> (Self, Self) {
        let (mut decaying, mut growing) = (Self::default(), Self::default());
        for (&z, &w) in self.exponents.iter().zip(&self.weights) {
            if z.re > 0.0 {
                growing.push(-z, w);
            } else {
                decaying.push(z, w);
            }
        }
        (decaying, growing)
    }

    /// k[0..length]. Cost O(N √L) powers and 4 N L operations of a matrix product.
    pub fn kernel<T: LaneReal>(&self, length: usize) -> Vec<T> {
        let (decaying, growing) = self.split();
        let mut kernel = decaying.decaying_kernel::<T>(length);
        if !growing.exponents.is_empty() {
            let turned = growing.decaying_kernel::<T>(length);
            for (k, add) in kernel.iter_mut().zip(turned.iter().rev()) {
                *k += *add;
            }
        }
        kernel
    }

    /// The gradients of exponents and weights (∂/∂Re + i ∂/∂Im) from that of the kernel.
    pub fn gradient<T: LaneReal>(&self, of_kernel: &[T]) -> Self {
        let (decaying, growing) = self.split();
        let forward = decaying.decaying_gradient(of_kernel);
        let turned = if growing.exponents.is_empty() {
            Self::default()
        } else {
            let reversed: Vec<T> = of_kernel.iter().rev().copied().collect();
            growing.decaying_gradient(&reversed)
        };
        let (mut next, mut next_turned) = (0, 0);
        let mut gradient = Self::default();
        for z in &self.exponents {
            if z.re > 0.0 {
                gradient.push(-turned.exponents[next_turned], turned.weights[next_turned]);
                next_turned += 1;
            } else {
                gradient.push(forward.exponents[next], forward.weights[next]);
                next += 1;
            }
        }
        gradient
    }

    fn decaying_kernel<T: LaneReal>(&self, length: usize) -> Vec<T> {
        let (short, long) = levels(length);
        let wide = 2 * self.exponents.len();
        let near = self.powers::<T>(1, short, Start::One);
        let far = self.powers::<T>(short, long, Start::Weights);
        let mut kernel = vec![T::zero(); short * long];
        let near = RowMajor::new(&near, short, wide).transpose();
        multiply_rows(&mut kernel, RowMajor::new(&far, long, wide), near, false);
        kernel.truncate(length);
        kernel
    }

    /// With K the gradient of the kernel as an (L/T × T) matrix and E[b, n] = conj e^{z_n b}:
    ///
    /// ```text
    /// M = K E,   M' = K diag(b) E
    /// ∂w_n = Σ_a conj(e^{z_n T a}) M[a, n]
    /// ∂z_n = conj(w_n) Σ_a conj(e^{z_n T a}) (T a M[a, n] + M'[a, n])
    /// ```
    fn decaying_gradient<T: LaneReal>(&self, of_kernel: &[T]) -> Self {
        let (short, long) = levels(of_kernel.len());
        let count = self.exponents.len();
        let mut stacked = vec![T::zero(); 2 * short * long];
        stacked[..of_kernel.len()].copy_from_slice(of_kernel);
        for at in 0..of_kernel.len() {
            stacked[short * long + at] = T::of((at % short) as f64) * of_kernel[at];
        }
        // Rows hold (Re, −Im), that is, the conjugate powers.
        let near = self.powers::<T>(1, short, Start::OneConjugate);
        let mut products = vec![T::zero(); 2 * long * 2 * count];
        let stacked = RowMajor::new(&stacked, 2 * long, short);
        multiply_rows(
            &mut products,
            stacked,
            RowMajor::new(&near, short, 2 * count),
            false,
        );
        let (plain, ramped) = products.split_at(long * 2 * count);
        let mut gradient = Self {
            exponents: vec![Complex64::ZERO; count],
            weights: vec![Complex64::ZERO; count],
        };
        for n in 0..count {
            let step = (self.exponents[n] * short as f64).exp().conj();
            let mut power = Complex64::ONE;
            for a in 0..long {
                let at = a * 2 * count + n;
                let m = Complex64::new(plain[at].wide(), plain[at + count].wide());
                let ramp = Complex64::new(ramped[at].wide(), ramped[at + count].wide());
                gradient.weights[n] += power * m;
                gradient.exponents[n] += power * (m * (short * a) as f64 + ramp);
                power *= step;
            }
            gradient.exponents[n] *= self.weights[n].conj();
        }
        gradient
    }

    /// Rows j = 0..rows of s_n e^{z_n stride j}, real parts before imaginary parts.
    fn powers<T: LaneReal>(&self, stride: usize, rows: usize, start: Start) -> Vec<T> {
        let steps = self.exponents.iter().map(|z| (z * stride as f64).exp());
        let (step_re, step_im) = steps.map(|step| (step.re, step.im)).unzip();
        let ones = self.weights.iter().map(|_| (1.0, 0.0));
        let (re, im) = match start {
            Start::One | Start::OneConjugate => ones.unzip(),
            Start::Weights => self.weights.iter().map(|w| (w.re, w.im)).unzip(),
        };
        let sign = match start {
            Start::One => 1.0,
            // Re(p q) = Re p Re q − Im p Im q.
            Start::OneConjugate | Start::Weights => -1.0,
        };
        let mut table = vec![T::zero(); rows * 2 * self.exponents.len()];
        Arch::new().dispatch(Powers {
            table: &mut table,
            power: (re, im),
            step: (step_re, step_im),
            sign,
        });
        table
    }
}

/// What the powers are multiplied with, and the sign of their imaginary parts.
#[derive(Clone, Copy)]
enum Start {
    One,
    OneConjugate,
    Weights,
}

/// T and ⌈length/T⌉.
fn levels(length: usize) -> (usize, usize) {
    let short = ((length as f64).sqrt().ceil() as usize).next_multiple_of(16);
    (short, length.div_ceil(short))
}

struct Powers<'a, T> {
    table: &'a mut [T],
    power: (Vec<f64>, Vec<f64>),
    step: (Vec<f64>, Vec<f64>),
    sign: f64,
}

impl<T: LaneReal> WithSimd for Powers<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) {
        let count = self.step.0.len();
        if count == 0 {
            return;
        }
        let (power_re, power_im) = (&mut self.power.0[..], &mut self.power.1[..]);
        let (power_re, power_im) = (&mut power_re[..count], &mut power_im[..count]);
        let (step_re, step_im) = (&self.step.0[..count], &self.step.1[..count]);
        let kept = |x: f64| if x.abs() < T::TINY { 0.0 } else { x };
        for row in self.table.chunks_exact_mut(2 * count) {
            let (row_re, row_im) = row.split_at_mut(count);
            for n in 0..count {
                let (re, im) = (power_re[n], power_im[n]);
                row_re[n] = T::of(kept(re));
                row_im[n] = T::of(kept(self.sign * im));
                power_re[n] = kept(re * step_re[n] - im * step_im[n]);
                power_im[n] = kept(re * step_im[n] + im * step_re[n]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Modes {
        Modes {
            exponents: vec![
                Complex64::new(-0.02, 0.7),
                Complex64::new(0.01, -0.3),
                Complex64::new(-3.0, 2.0),
                Complex64::new(0.9, 0.1),
            ],
            weights: vec![
                Complex64::new(1.0, -0.5),
                Complex64::new(0.2, 0.9),
                Complex64::new(-1.4, 0.3),
                Complex64::new(0.6, 0.6),
            ],
        }
    }

    fn direct(modes: &Modes, length: usize) -> Vec<f64> {
        let term = |l: usize, n: usize| {
            let z = modes.exponents[n];
            let anchor = if z.re > 0.0 { length as f64 - 1.0 } else { 0.0 };
            (modes.weights[n] * (z * (l as f64 - anchor)).exp()).re
        };
        let count = modes.exponents.len();
        (0..length)
            .map(|l| (0..count).map(|n| term(l, n)).sum())
            .collect()
    }

    #[test]
    fn the_two_levels_give_the_direct_sum() {
        for length in [1, 2, 15, 16, 17, 100, 257, 2000] {
            let expected = direct(&sample(), length);
            let wide = sample().kernel::<f64>(length);
            let narrow = sample().kernel::<f32>(length);
            for l in 0..length {
                assert!((wide[l] - expected[l]).abs() < 1e-12, "{length} {l}");
                assert!(
                    (f64::from(narrow[l]) - expected[l]).abs() < 2e-6,
                    "{length} {l}"
                );
            }
        }
    }

    #[test]
    fn the_gradient_agrees_with_differences() {
        let length = 40;
        let weights: Vec<f64> = (0..length).map(|l| (1.1 * l as f64).cos()).collect();
        let loss = |modes: &Modes| -> f64 {
            let kernel = modes.kernel::<f64>(length);
            kernel.iter().zip(&weights).map(|(k, g)| k * g).sum()
        };
        let gradient = sample().gradient(&weights);
        let h = 1e-6;
        for n in 0..4 {
            for direction in [Complex64::ONE, Complex64::I] {
                let along = |g: Complex64| (g.conj() * direction).re;
                let (mut above, mut below) = (sample(), sample());
                above.exponents[n] += h * direction;
                below.exponents[n] -= h * direction;
                let slope = (loss(&above) - loss(&below)) / (2.0 * h);
                assert!((slope - along(gradient.exponents[n])).abs() < 1e-7, "z {n}");
                let (mut above, mut below) = (sample(), sample());
                above.weights[n] += h * direction;
                below.weights[n] -= h * direction;
                let slope = (loss(&above) - loss(&below)) / (2.0 * h);
                assert!((slope - along(gradient.weights[n])).abs() < 1e-8, "w {n}");
            }
        }
    }
}
