//! Balanced residualisation: the states that are cut follow their steady state.

use nalgebra::{DMatrix, DVector};
use num_complex::Complex64;

use crate::control::balance::{Form, Gramians, Metric, project};
use crate::control::block::shifted_poles;
use crate::control::modes::Modes;
use crate::control::realisation::{RealSystem, real_states};
use crate::control::{
    Balanced, ControlError, HankelValues, Realisation, Reduced, complex_gramian_factors,
    real_gramian_factors,
};
use crate::linalg::expm1;
use crate::ssm::{DiagonalSystem, StableSystem, Time};

/// A balanced system, ready to be residualised at any order.
///
/// In discrete time this is not the system of [`crate::control::balance`]: the output of a
/// [`DiagonalSystem`] includes the input of the same step, and that direct part k\[0\] must be set
/// apart first. What is balanced is the rest of the kernel, k\[1\], k\[2\], …, whose Hankel singular
/// values are at most those of the whole.
#[derive(Debug, Clone)]
pub struct DcBalanced {
    /// The reciprocal system, whose feedthrough is the gain at rest.
    reciprocal: Balanced,
}

/// Balances a stable system for [`DcBalanced::residualise`].
///
/// ```text
/// continuous:  N = A,      (b, c, D)
/// discrete:    N = A − I,  (b, c A, D + Re c b)      k[0] = Re c b,  k[l] = Re (c a) a^{l−1} b
/// reciprocal:  (N⁻¹, N⁻¹ b, c N⁻¹, D − c N⁻¹ b)      G at 1/s, with the Gramians of the system itself
/// ```
///
/// N⁻¹ is diagonal, so nothing is solved for, however far apart the poles lie. Cost as
/// [`crate::control::balance`].
///
/// # Errors
/// [`ControlError::Linalg`] when the Jacobi iteration does not settle.
///
/// # References
/// As [`DcBalanced::residualise`].
pub fn balance_for_dc(
    system: StableSystem<'_>,
    realisation: Realisation,
) -> Result<DcBalanced, ControlError> {
    let delayed = without_direct_part(system.system())?;
    let (hankel, form) = match realisation {
        Realisation::Real => reciprocal_real(delayed.stable()?)?,
        Realisation::Complex => reciprocal_complex(delayed.stable()?)?,
    };
    Ok(DcBalanced {
        reciprocal: Balanced {
            hankel,
            form,
            time: delayed.time(),
            feedthrough: dc_gain(system),
            metric: Metric::White,
        },
    })
}

/// The system itself in continuous time; that of k\[1\], k\[2\], … in discrete time.
fn without_direct_part(source: &DiagonalSystem) -> Result<DiagonalSystem, ControlError> {
    if source.time() == Time::Continuous {
        return Ok(source.clone());
    }
    let mut output = source.output().clone();
    for (mut column, pole) in output.column_iter_mut().zip(source.poles()) {
        column *= pole;
    }
    Ok(DiagonalSystem::new(
        source.time(),
        source.exponents().to_vec(),
        source.input().clone(),
        output,
        source.feedthrough().clone(),
    )?)
}

/// 1/ν for every exponent.
fn reciprocals(time: Time, exponents: &[Complex64]) -> Vec<Complex64> {
    let shifted = shifted_poles(time, exponents).into_iter();
    shifted.map(|value| value.inv()).collect()
}

fn reciprocal_complex(system: StableSystem<'_>) -> Result<(HankelValues, Form), ControlError> {
    let source = system.system();
    let inverse = DVector::from_vec(reciprocals(source.time(), source.exponents()));
    let inverse = DMatrix::from_diagonal(&inverse);
    let factors = complex_gramian_factors(system)?;
    let (b, c) = (&inverse * source.input(), source.output() * &inverse);
    let apply = |x: &DMatrix<Complex64>| &inverse * x;
    let (hankel, projection) = project(factors, apply, &b, &c, source.order())?;
    Ok((hankel, Form::Complex(projection)))
}

fn reciprocal_real(system: StableSystem<'_>) -> Result<(HankelValues, Form), ControlError> {
    let source = system.system();
    let real = RealSystem::of(source);
    let inverse = reciprocals(source.time(), &real.exponents());
    let factors = real_gramian_factors(system)?;
    let b = real.apply(&inverse, &real.input);
    let c = real.apply_right(&real.output, &inverse);
    let apply = |x: &DMatrix<f64>| real.apply(&inverse, x);
    let (hankel, projection) = project(factors, apply, &b, &c, real_states(source))?;
    Ok((hankel, Form::Real(projection)))
}

impl DcBalanced {
    /// The Hankel singular values of what is balanced: in discrete time those of k\[1\], k\[2\], ….
    pub fn hankel(&self) -> &HankelValues {
        self.reciprocal.hankel()
    }

    /// Keeps the `states` leading balanced states, sets the others to the values at which they
    /// would rest, and diagonalises the result.
    ///
    /// With the balanced N, b and c split at the order r, residualisation is the first line, and
    /// truncation of the reciprocal system, the second, is the same thing:
    ///
    /// ```text
    /// N_r = N₁₁ − N₁₂ N₂₂⁻¹ N₂₁   b_r = b₁ − N₁₂ N₂₂⁻¹ b₂   c_r = c₁ − c₂ N₂₂⁻¹ N₂₁   D_r = D − c₂ N₂₂⁻¹ b₂
    /// (N⁻¹)₁₁ = V diag(μ) V⁻¹, residues ρ:   ν = 1/μ,   residue ρ ν²,   D_r = G(rest) + Σ ρ ν
    /// ```
    ///
    /// The gain at rest (s = 0, z = 1) is that of the full system, to rounding; the error is at
    /// most `error_bound` and largest at high frequency, where truncation is exact. The result is
    /// stable. In discrete time its residues are divided by their poles, which puts the direct
    /// part back: y_k sees u_k through k\[0\] + D.
    ///
    /// **The feedthrough changes.** It must be written with the reduced system; without it the
    /// result is worse than truncation. For the complex realisation the real part of D_r is kept,
    /// all that Re(C x + D_r u) can show; the error bound then holds for the real output.
    ///
    /// As for truncation a lower order is taken, and reported in `order`, when rounding would make a
    /// pole unstable.
    ///
    /// # Errors
    /// [`ControlError::Linalg`] when the result has no complete set of eigenvectors.
    ///
    /// # References
    /// Liu and Anderson, *Singular perturbation approximation of balanced systems*, Int. J.
    /// Control 50 (1989), also for the reciprocal system; SLICOT AB09BD computes the same.
    pub fn residualise(&self, states: usize) -> Result<Reduced, ControlError> {
        let possible = states.min(self.hankel().numerical_rank());
        let mut order = possible;
        loop {
            let sigma = self.hankel().values();
            let gramians = match self.reciprocal.time {
                Time::Continuous => Gramians::Kept(sigma),
                Time::Discrete { .. } => Gramians::Reciprocal(sigma),
            };
            let (modes, condition) = self.reciprocal.form.all_modes(order, gramians)?;
            match self.turn_back(modes) {
                Ok(system) => {
                    return Ok(Reduced {
                        system,
                        order,
                        error_bound: self.hankel().truncation_bound(order),
                        condition,
                        lowered: order < possible,
                        tie: self.hankel().tie_at(order),
                    });
                }
                Err(error) if order == 0 => return Err(error),
                _ => order -= 1,
            }
        }
    }

    /// From the modes of the reciprocal system to the system, with the feedthrough that its gain
    /// at rest lacks. An error where rounding made it unstable.
    fn turn_back(&self, mut modes: Modes) -> Result<DiagonalSystem, ControlError> {
        let (time, gain) = (self.reciprocal.time, &self.reciprocal.feedthrough);
        for j in 0..modes.values.len() {
            if let (Time::Continuous, Some(gap)) = (time, modes.gaps[j]) {
                modes.values[j].re = -0.5 * gap;
            }
            let value = modes.values[j].inv();
            modes.values[j] = value;
            // 1 − |a|² of ν = 1/μ is −(2 Re μ + 1)/|μ|², and −2 Re ν is −2 Re μ/|μ|².
            modes.gaps[j] = modes.gaps[j].map(|gap| gap * value.norm_sqr());
            let scale = match time {
                Time::Continuous => value * value,
                Time::Discrete { .. } => value * value / (value + 1.0),
            };
            modes.output.column_mut(j).apply(|c| *c *= scale);
        }
        let reduced = modes.into_system(time, DMatrix::zeros(gain.nrows(), gain.ncols()))?;
        let feedthrough = gain - dc_gain(reduced.stable()?);
        Ok(DiagonalSystem::new(
            time,
            reduced.exponents().to_vec(),
            reduced.input().clone(),
            reduced.output().clone(),
            feedthrough,
        )?)
    }
}

/// The gain of the real output at rest, p × m: s = 0, z = 1.
///
/// ```text
/// continuous: D − Re Σ c_i b_i/λ_i        discrete: D + Re Σ c_i b_i/(1 − a_i)
/// ```
///
/// # Examples
/// ```
/// use hankelite_control::dc_gain;
/// use hankelite_control::{DiagonalSystem, Time};
/// use num_complex::Complex64;
///
/// let pole = vec![Complex64::new(-2.0, 0.0)];
/// let system = DiagonalSystem::siso(Time::Continuous, pole, &[Complex64::ONE], 0.5)?;
/// assert_eq!(dc_gain(system.stable()?)[(0, 0)], 1.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn dc_gain(system: StableSystem<'_>) -> DMatrix<f64> {
    let system = system.system();
    let mut scaled = system.input().clone();
    for (mut row, z) in scaled.row_iter_mut().zip(system.scaled_exponents()) {
        row /= match system.time() {
            Time::Continuous => -z,
            Time::Discrete { .. } => -expm1(z),
        };
    }
    (system.output() * scaled).map(|x| x.re) + system.feedthrough()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::samples::pairs_and_real_poles;

    const TIMES: [Time; 2] = [Time::Continuous, Time::Discrete { step: 0.2 }];

    fn sample(time: Time) -> DiagonalSystem {
        pairs_and_real_poles(time, 0.75)
    }

    #[test]
    fn the_gain_at_rest_stays_and_the_poles_decay() {
        for time in TIMES {
            for realisation in [Realisation::Real, Realisation::Complex] {
                let system = sample(time);
                let full = system.stable().unwrap();
                let gain = dc_gain(full)[(0, 0)];
                let balanced = balance_for_dc(full, realisation).unwrap();
                for order in 0..=balanced.hankel().values().len() {
                    let reduced = balanced.residualise(order).unwrap();
                    assert_eq!(reduced.order, order);
                    let found = dc_gain(reduced.system.stable().unwrap())[(0, 0)];
                    let error = (found - gain).abs() / gain.abs();
                    assert!(error < 1e-12, "{time:?} {realisation:?} {order}: {error:e}");
                }
            }
        }
    }

    #[test]
    fn the_full_order_is_the_system_itself() {
        let system = sample(TIMES[1]);
        let balanced = balance_for_dc(system.stable().unwrap(), Realisation::Real).unwrap();
        let same = balanced.residualise(8).unwrap().system;
        assert!((same.feedthrough()[(0, 0)] - 0.75).abs() < 1e-12);
        let kernels = system
            .kernel(40)
            .unwrap()
            .into_iter()
            .zip(same.kernel(40).unwrap());
        for (k, found) in kernels {
            assert!((k - found).abs() < 1e-12);
        }
    }

    #[test]
    fn order_zero_is_the_gain_at_rest() {
        for time in TIMES {
            let system = sample(time);
            let full = system.stable().unwrap();
            let reduced = balance_for_dc(full, Realisation::Real)
                .unwrap()
                .residualise(0)
                .unwrap();
            let gain = dc_gain(full)[(0, 0)];
            assert_eq!(reduced.system.order(), 0);
            assert!((reduced.system.feedthrough()[(0, 0)] - gain).abs() < 1e-12 * gain.abs());
        }
    }
}
