//! Gains of discretisations: the residue of a mode whose stored weight is one.

use num_complex::Complex64;

use crate::linalg::expm1;

/// What the public code of DSS adds to squared moduli, or the least that it lets them be.
pub const DSS_EPSILON: f64 = 1e-7;

/// (e^{λΔ} − 1)/λ, and Δ at λ = 0: what a zero-order hold multiplies the input weight with.
pub fn zoh_gain(lambda: Complex64, step: f64) -> Complex64 {
    let z = lambda * step;
    if z.l1_norm() < SMALL {
        // The square of a very small λ, which a quotient takes, would be no number any more.
        return step * (1.0 + 0.5 * z);
    }
    expm1(z) / lambda
}

/// Below this the next term of (e^z − 1)/z, z²/6, is beneath rounding.
const SMALL: f64 = 1e-8;

/// The gain of DSS-exp: the zero-order hold with |λ|² of at least [`DSS_EPSILON`].
///
/// ```text
/// (e^z − 1) λ̄ / max(|λ|², ε),   z = λΔ
/// ```
///
/// z stands apart from λ because a file may keep one step for Re λ and another for Im λ. The gain
/// is 0 at λ = 0.
///
/// # References
/// ag1988/dss, `src/models/sequence/ss/standalone/dss.py`, the versions `exp`, `exp-re-im`, `clip`.
pub fn dss_exp_gain(lambda: Complex64, z: Complex64) -> Complex64 {
    expm1(z) * lambda.conj() / lambda.norm_sqr().max(DSS_EPSILON)
}

/// The gain of DSS-softmax over a kernel of `length` samples, z = λΔ as for [`dss_exp_gain`].
///
/// ```text
/// (e^{sz} − 1) r((e^{szL} − 1) λ) e^{−gz(L−1)},   r(x) = x̄/(|x|² + ε)
/// g = 1 where Re λ > 0, else 0;   s = 1 − 2g
/// ```
///
/// Up to ε this is (e^z − 1)/λ / (e^{zL} − 1), written with powers that decay, so that nothing
/// overflows. For L → ∞ and a decaying mode it tends to −(e^z − 1) λ̄/(|λ|² + ε); it is 0 at λ = 0.
/// For a growing mode it falls as e^{−Re z (L−1)}, and its square leaves the range of doubles long
/// before it does: divide by it with [`undo_gain`].
///
/// # References
/// ag1988/dss, `src/models/sequence/ss/standalone/dss.py`; Gupta, Gu and Berant, "Diagonal state
/// spaces are as effective as structured state spaces", Proposition 1.
pub fn dss_softmax_gain(lambda: Complex64, z: Complex64, length: usize) -> Complex64 {
    let length = length as f64;
    let growing = lambda.re > 0.0;
    let decaying = if growing { -z } else { z };
    let x = expm1(decaying * length) * lambda;
    let shift = if growing {
        (-z * (length - 1.0)).exp()
    } else {
        Complex64::ONE
    };
    expm1(decaying) * x.conj() / (x.norm_sqr() + DSS_EPSILON) * shift
}

/// The weight w with w · gain = residue, also where |gain|² is too small or too large for a double.
pub fn undo_gain(residue: Complex64, gain: Complex64) -> Complex64 {
    let size = gain.re.abs().max(gain.im.abs());
    (residue / size) / (gain / size)
}

/// The sum of e^{zl} over l = 0 … L − 1 for L = `terms`, and L where e^z = 1.
///
/// ```text
/// (e^{zL} − 1)/(e^z − 1)
/// ```
///
/// Both differences are taken without cancellation.
pub fn geometric_sum(z: Complex64, terms: usize) -> Complex64 {
    let count = terms as f64;
    if z.l1_norm() * count < SMALL {
        return count * (1.0 + 0.5 * (count - 1.0) * z);
    }
    match expm1(z) {
        Complex64::ZERO => Complex64::from(count),
        one => expm1(z * count) / one,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gain_of_a_hold_is_the_step_at_the_smallest_exponents() {
        let step = 0.01;
        for size in [
            0.0,
            1e-300,
            1e-200,
            1e-17,
            1e-9,
            1e-6 * (1.0 - 1e-9),
            1e-6,
            1e-3,
        ] {
            for turn in [0.0, 1.0, 1.6, 3.0] {
                let lambda = Complex64::from_polar(size, turn);
                let z = lambda * step;
                let series = step * (1.0 + z * (0.5 + z * (1.0 / 6.0 + z / 24.0)));
                let error = (zoh_gain(lambda, step) - series).norm() / step;
                assert!(error < 1e-15, "{size:e} {turn}: {error:e}");
            }
        }
    }

    #[test]
    fn small_and_large_gains_are_undone() {
        let (a, b) = (Complex64::new(3.0, -1.0), Complex64::new(0.5, 2.0));
        for size in [1e-290, 1e-160, 1.0, 1e160, 1e290] {
            let found = undo_gain(a * size, b * size);
            assert!((found - a / b).norm() < 1e-15, "{size:e}");
        }
    }

    /// Without ε the softmax divides (e^z − 1)/λ by e^{zL} − 1; DSS-exp does not divide.
    #[test]
    fn gains_are_the_hold_but_for_epsilon_and_the_softmax() {
        for lambda in [Complex64::new(-0.5, 30.0), Complex64::new(0.4, -20.0)] {
            let (step, length) = (0.01, 200);
            let z = lambda * step;
            let hold = zoh_gain(lambda, step);
            assert!((dss_exp_gain(lambda, z) / hold - 1.0).norm() < 1e-14);
            let expected = hold / ((z * length as f64).exp() - 1.0);
            let found = dss_softmax_gain(lambda, z, length);
            assert!((found / expected - 1.0).norm() < 1e-8, "{found} {expected}");
        }
        let zero = Complex64::ZERO;
        assert_eq!(zoh_gain(zero, 0.25), Complex64::from(0.25));
        assert_eq!(dss_exp_gain(zero, zero), zero);
        assert_eq!(dss_softmax_gain(zero, zero, 10), zero);
    }

    /// A mode that grows to e^{390} over the kernel: the square of its gain is no double.
    #[test]
    fn the_gain_of_a_growing_mode_can_be_undone() {
        let lambda = Complex64::new(3.81, 1.68);
        let gain = dss_softmax_gain(lambda, lambda * 0.1, 1024);
        assert!(gain.norm() > 0.0 && gain.norm_sqr() == 0.0);
        let weight = Complex64::new(0.3, -0.8);
        assert!((undo_gain(weight * gain, gain) - weight).norm() < 1e-12);
    }

    #[test]
    fn geometric_sums_are_those_of_their_terms() {
        for z in [Complex64::new(-0.1, 0.7), Complex64::new(1e-9, 1e-9)] {
            let direct: Complex64 = (0..20).map(|l| (z * f64::from(l)).exp()).sum();
            assert!((geometric_sum(z, 20) - direct).norm() < 1e-12);
        }
        assert_eq!(geometric_sum(Complex64::ZERO, 7), Complex64::from(7.0));
    }
}
