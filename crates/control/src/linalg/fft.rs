//! Causal convolution of real sequences by FFT.

use std::cell::RefCell;
use std::sync::Arc;

use num_complex::Complex64;
use realfft::{ComplexToReal, RealFftPlanner, RealToComplex};

/// Plans and sizes for causal convolutions of one length; shared by threads.
///
/// ```text
/// y[t] = Σ_{j=0..t} k[j] u[t−j],   t = 0..length−1
/// ```
pub struct Convolver {
    length: usize,
    padded: usize,
    forward: Arc<dyn RealToComplex<f64>>,
    backward: Arc<dyn ComplexToReal<f64>>,
}

impl Convolver {
    /// Plans for sequences of `length` samples.
    pub fn new(length: usize) -> Self {
        let padded = Self::fft_size(2 * length, 2);
        let mut planner = RealFftPlanner::new();
        Self {
            length,
            padded,
            forward: planner.plan_fft_forward(padded),
            backward: planner.plan_fft_inverse(padded),
        }
    }

    /// A number of points that a Fourier transform takes fast: the least 2^a 3^b 5^c at or above
    /// `least` that is a multiple of `of`, itself of that form.
    pub fn fft_size(least: usize, of: usize) -> usize {
        let smooth = |mut n: usize| {
            for prime in [2, 3, 5] {
                while n.is_multiple_of(prime) {
                    n /= prime;
                }
            }
            n == 1
        };
        let mut size = least.next_multiple_of(of).max(of);
        while !smooth(size) {
            size += of;
        }
        size
    }

    /// The spectrum of a real sequence of any length n, without padding: n/2 + 1 values. The
    /// sequence is used as scratch.
    pub fn transform(sequence: &mut [f64]) -> Vec<Complex64> {
        thread_local! {
            static PLANNER: RefCell<RealFftPlanner<f64>> = RefCell::new(RealFftPlanner::new());
        }
        let plan = PLANNER.with_borrow_mut(|planner| planner.plan_fft_forward(sequence.len()));
        let mut spectrum = plan.make_output_vec();
        plan.process(sequence, &mut spectrum)
            .expect("both buffers have the planned sizes");
        spectrum
    }

    /// The reverse of [`Convolver::transform`] for a sequence of even length n, times n: from n/2 + 1
    /// values, which are used as scratch.
    pub(crate) fn back(spectrum: &mut [Complex64]) -> Vec<f64> {
        thread_local! {
            static PLANNER: RefCell<RealFftPlanner<f64>> = RefCell::new(RealFftPlanner::new());
        }
        let size = 2 * (spectrum.len() - 1);
        // A real signal has a real first and last bin; rounding leaves dust the plan refuses.
        if let [first, .., last] = spectrum {
            (first.im, last.im) = (0.0, 0.0);
        }
        let plan = PLANNER.with_borrow_mut(|planner| planner.plan_fft_inverse(size));
        let mut sequence = plan.make_output_vec();
        plan.process(spectrum, &mut sequence)
            .expect("both buffers have the planned sizes");
        sequence
    }

    /// The spectrum of the first `length` samples of a sequence, zero-padded against wrap-around.
    /// Later samples reach none of the outputs.
    pub fn spectrum(&self, sequence: &[f64]) -> Vec<Complex64> {
        let mut padded = vec![0.0; self.padded];
        let used = sequence.len().min(self.length);
        padded[..used].copy_from_slice(&sequence[..used]);
        let mut spectrum = self.forward.make_output_vec();
        self.forward
            .process(&mut padded, &mut spectrum)
            .expect("both buffers have the planned sizes");
        spectrum
    }

    /// Convolves with a kernel given by its [`Convolver::spectrum`]. Cost O(L log L).
    pub fn convolve(&self, kernel: &[Complex64], sequence: &[f64]) -> Vec<f64> {
        let mut spectrum = self.spectrum(sequence);
        for (value, k) in spectrum.iter_mut().zip(kernel) {
            *value *= k;
        }
        // A real signal has a real first and last bin; rounding leaves dust the plan refuses.
        let last = spectrum.len() - 1;
        spectrum[0].im = 0.0;
        if self.padded.is_multiple_of(2) {
            spectrum[last].im = 0.0;
        }
        let mut padded = self.backward.make_output_vec();
        self.backward
            .process(&mut spectrum, &mut padded)
            .expect("both buffers have the planned sizes");
        padded.truncate(self.length);
        let scale = 1.0 / self.padded as f64;
        padded.iter_mut().for_each(|value| *value *= scale);
        padded
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fft_convolution_equals_the_direct_sum() {
        for length in [1, 2, 3, 17, 64, 101] {
            let kernel: Vec<f64> = (0..length).map(|i| (0.3 * i as f64).cos()).collect();
            let input: Vec<f64> = (0..length).map(|i| (1.7 * i as f64).sin()).collect();
            let convolver = Convolver::new(length);
            let fast = convolver.convolve(&convolver.spectrum(&kernel), &input);
            for t in 0..length {
                let direct: f64 = (0..=t).map(|j| kernel[j] * input[t - j]).sum();
                assert!((fast[t] - direct).abs() < 1e-12, "{length} {t}");
            }
        }
    }

    #[test]
    fn sizes_are_even_and_smooth() {
        assert_eq!(Convolver::fft_size(0, 2), 2);
        assert_eq!(Convolver::fft_size(1568, 2), 1600);
        assert_eq!(Convolver::fft_size(97, 2), 100);
    }
}
