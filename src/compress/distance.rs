//! How far a reduced system is from the full one.

use hankelite_control::{
    ControlError, DiagonalSystem, StableSystem, geometric_sum, h2_error, kernel_square,
};
use nalgebra::{DMatrix, DVector};
use num_complex::Complex64;

/// How the feedthrough changed, where it did: the new one less the old one, or of several inputs or
/// outputs the norm of that.
pub(super) fn feedthrough_change(full: &DiagonalSystem, reduced: &DiagonalSystem) -> Option<f64> {
    let change = reduced.feedthrough() - full.feedthrough();
    let change = match change.as_slice() {
        [one] => *one,
        _ => change.norm(),
    };
    (change != 0.0).then_some(change)
}

/// The ℓ2 distance of the impulse responses, feedthrough included: where D changes, it makes up
/// for a part of k\[0\].
pub(super) fn response_error(
    full: StableSystem<'_>,
    reduced: StableSystem<'_>,
) -> Result<f64, ControlError> {
    let error = h2_error(full, reduced)?;
    let (full, reduced) = (full.system(), reduced.system());
    let change = reduced.feedthrough() - full.feedthrough();
    if change.iter().all(|change| *change == 0.0) {
        return Ok(error);
    }
    let first = |system: &DiagonalSystem| (system.output() * system.input()).map(|z| z.re);
    let rest = &change - 2.0 * (first(full) - first(reduced));
    Ok((error * error + change.dot(&rest)).max(0.0).sqrt())
}

/// How far a kernel is from that of the full system.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct KernelDistance {
    /// ‖k − k_r‖.
    pub error: f64,
    /// ‖k‖ of the full system.
    pub norm: f64,
}

impl KernelDistance {
    /// The error as a share of the norm; 0 without an error.
    pub fn relative(self) -> f64 {
        match self.error > 0.0 {
            true => self.error / self.norm,
            false => 0.0,
        }
    }
}

/// The distance over the first `length` samples, a change of D counted with k\[0\].
///
/// With one input and one output the samples are formed. Else the squares come from
///
/// ```text
/// Σ_l ‖Re(C Λ^l B)‖² = ½ Re Σ_ij [(C*C)_ij (BB*)_ji g(ā_i a_j) + (CᵀC)_ij (BBᵀ)_ij g(a_i a_j)]
/// g(x) = (1 − x^L)/(1 − x)
/// ```
///
/// at O(n²) instead of O(n m p L); differences below 1e-8 of the norm then drown in rounding.
///
/// # Errors
/// [`ControlError::System`] for systems in continuous time, or of other sizes.
pub fn kernel_distance(
    full: &DiagonalSystem,
    reduced: &DiagonalSystem,
    length: usize,
) -> Result<KernelDistance, ControlError> {
    reduced.require_size(full.input().ncols(), full.output().nrows())?;
    if full.as_siso().is_err() {
        return Ok(mimo_distance(full, reduced, length));
    }
    let change = feedthrough_change(full, reduced).unwrap_or(0.0);
    let full = DVector::from_vec(full.kernel(length)?);
    let mut reduced = DVector::from_vec(reduced.kernel(length)?);
    if let Some(first) = reduced.get_mut(0) {
        *first += change;
    }
    // Scaled first: the squares of very small or large kernels leave the range of doubles.
    let scale = full.amax().max(f64::MIN_POSITIVE);
    let norm = |x: DVector<f64>| (x / scale).norm() * scale;
    Ok(KernelDistance {
        error: norm(&full - reduced),
        norm: norm(full),
    })
}

/// ‖k‖ over the first `length` samples, feedthrough left out; `usize::MAX` of them are all. By the sum
/// above, so that it costs no more over more samples, to 1e-8 of the largest parts of the kernel.
pub fn kernel_norm(system: &DiagonalSystem, length: usize) -> f64 {
    let exponents = system.scaled_exponents();
    square(&exponents, system.input(), system.output(), length)
        .max(0.0)
        .sqrt()
}

fn mimo_distance(full: &DiagonalSystem, reduced: &DiagonalSystem, length: usize) -> KernelDistance {
    let own = (full.scaled_exponents(), full.input(), full.output());
    let norm = kernel_norm(full, length);
    let change = reduced.feedthrough() - full.feedthrough();
    if full == reduced {
        return KernelDistance { error: 0.0, norm };
    }
    let (n, r) = (full.order(), reduced.order());
    let exponents = [own.0, reduced.scaled_exponents()].concat();
    let (m, p) = (own.1.ncols(), own.2.nrows());
    let input = DMatrix::from_fn(n + r, m, |i, j| match i < n {
        true => own.1[(i, j)],
        false => reduced.input()[(i - n, j)],
    });
    let output = DMatrix::from_fn(p, n + r, |i, j| match j < n {
        true => own.2[(i, j)],
        false => -reduced.output()[(i, j - n)],
    });
    let error = square(&exponents, &input, &output, length);
    // The first sample of the error with the change of D, less without it.
    let first = (&output * &input).map(|z| z.re);
    let error = error + change.dot(&(&change - 2.0 * first));
    KernelDistance {
        error: error.max(0.0).sqrt(),
        norm,
    }
}

fn square(
    exponents: &[Complex64],
    input: &DMatrix<Complex64>,
    output: &DMatrix<Complex64>,
    length: usize,
) -> f64 {
    kernel_square(exponents, input, output, |z| geometric_sum(z, length)).0
}

#[cfg(test)]
mod tests {
    use hankelite_control::Time;

    use super::*;

    fn system(order: usize, shift: f64) -> DiagonalSystem {
        let at = |i: usize, j: usize| {
            let x = (i * 7 + j * 3) as f64 + shift;
            Complex64::new(x.sin(), (1.7 * x).cos())
        };
        let exponents =
            (0..order).map(|n| Complex64::new(-0.1 - 0.05 * n as f64, n as f64 + shift));
        DiagonalSystem::new(
            Time::Discrete { step: 0.3 },
            exponents.collect(),
            DMatrix::from_fn(order, 3, at),
            DMatrix::from_fn(2, order, |i, j| at(i + 5, j)),
            DMatrix::from_fn(2, 3, |i, j| shift * (i + j) as f64),
        )
        .unwrap()
    }

    /// Sample by sample, C Λ^l B.
    fn samples(system: &DiagonalSystem, length: usize) -> Vec<DMatrix<f64>> {
        let poles = system.poles();
        let mut input = system.input().clone();
        let mut samples = Vec::new();
        for l in 0..length {
            let mut sample = (system.output() * &input).map(|z| z.re);
            if l == 0 {
                sample += system.feedthrough();
            }
            samples.push(sample);
            for (mut row, pole) in input.row_iter_mut().zip(&poles) {
                row *= *pole;
            }
        }
        samples
    }

    #[test]
    fn the_distance_of_larger_systems_is_that_of_their_samples() {
        let (full, reduced) = (system(5, 0.0), system(3, 0.4));
        let KernelDistance { error, norm } = kernel_distance(&full, &reduced, 20).unwrap();
        let (a, b) = (samples(&full, 20), samples(&reduced, 20));
        let square = |terms: &mut dyn Iterator<Item = f64>| terms.sum::<f64>().sqrt();
        let expected = square(&mut a.iter().zip(&b).map(|(a, b)| (a - b).norm_squared()));
        assert!((error / expected - 1.0).abs() < 1e-12, "{error} {expected}");
        let expected = square(&mut a.iter().map(DMatrix::norm_squared));
        assert!((norm / expected - 1.0).abs() < 1e-12, "{norm} {expected}");
        // The slowest mode has left e^{-120} of itself after 4000 samples.
        let whole = samples(&full, 4000);
        let expected = square(&mut whole.iter().map(DMatrix::norm_squared));
        let norm = kernel_norm(&full, usize::MAX);
        assert!((norm / expected - 1.0).abs() < 1e-12, "{norm} {expected}");
        assert_eq!(kernel_distance(&full, &full, 20).unwrap().error, 0.0);
    }
}
