//! Balancing for the input of a channel: the controllability Gramian under a coloured input.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::control::balance::{Form, Metric, project};
use crate::control::block::shifted_poles;
use crate::control::gramian::real_observability;
use crate::control::horizon::factor;
use crate::control::plane::Plane;
use crate::control::realisation::{
    RealMode, apply_modes, real_input, real_modes, real_output, real_states,
};
use crate::control::{Balanced, ControlError, GramianFactors, HankelValues, InputWeight, Reduced};
use crate::linalg::expm1;
use crate::ssm::{StableSystem, SystemError, Time};

/// A system balanced for its input, ready to be cut at any order.
#[derive(Debug, Clone)]
pub struct WeightedBalanced {
    balanced: Balanced,
    clipped: f64,
}

/// Balances the real discrete system for its input.
///
/// ```text
/// f(a) = Σ_m R(m) a^m
/// X_ij = b_i b̄_j (f(a_i) + f(a_j)‾ − R(0)) / (1 − a_i ā_j)     = Σ_{k,l} R(|k−l|) a_i^k b_i (a_j^l b_j)‾
/// Y_ij = b_i b_j (f(a_i) + f(a_j)  − R(0)) / (1 − a_i a_j)
/// ```
///
/// are the covariances of the modes under an input of autocorrelation R and, with them and their
/// conjugates, the controllability Gramian of the real coordinates. A weight by moments gives
/// Φ M Φᵀ instead, Φ the impulse responses of the states: their covariance over the steps of the
/// sequences, in closed form too. The observability
/// Gramian is the plain one, exact; so every truncation is stable, whatever the weight: in
/// balanced coordinates A₁₁ᵀ Σ₁ A₁₁ − Σ₁ ≤ 0.
///
/// The Gramian of an input may be singular (one frequency moves two states). It is factored by
/// Cholesky with complete pivoting, and rows of which only rounding is left are set aside
/// ([`WeightedBalanced::clipped`]). So it cannot fail, and values below about 1e-8 of the largest
/// are not right relative to themselves. Cost O(n L + n³), with the moments of s sequences
/// O(n s L + n³).
///
/// # Errors
/// [`ControlError::System`] for continuous time, and for more than one input or output.
///
/// # References
/// Enns, *Model reduction with balanced realizations*, CDC 1984 (input weighting).
pub fn balance_weighted(
    system: StableSystem<'_>,
    weight: &InputWeight,
) -> Result<WeightedBalanced, ControlError> {
    let source = system.system();
    let Time::Discrete { step } = source.time() else {
        return Err(ControlError::System(SystemError::WrongTime {
            found: "continuous",
            expected: "discrete",
        }));
    };
    let modes = real_modes(source.as_siso()?);
    let nodes: Vec<Complex64> = modes.iter().map(|mode| mode.lambda * step).collect();
    let gramian = match weight.is_stationary() {
        true => coloured_gramian(&modes, &nodes, weight),
        false => moment_gramian(&modes, &nodes, weight),
    };
    let (controllability, clipped) = factor(gramian)?;
    let factors = GramianFactors {
        controllability,
        observability: real_observability(Plane::of(source.time()), &modes),
    };
    let exponents: Vec<Complex64> = modes.iter().map(|mode| mode.lambda).collect();
    let shifted = shifted_poles(source.time(), &exponents);
    let input = real_input(&modes);
    let b = DMatrix::from_column_slice(input.len(), 1, &input);
    let c = DMatrix::from_row_slice(1, input.len(), &real_output(&modes));
    let apply = |x: &DMatrix<f64>| apply_modes(&modes, &shifted, x);
    let (hankel, projection) = project(factors, apply, &b, &c, real_states(source))?;
    Ok(WeightedBalanced {
        balanced: Balanced {
            hankel,
            form: Form::Real(projection),
            time: source.time(),
            feedthrough: source.feedthrough().clone(),
            metric: Metric::Input,
        },
        clipped,
    })
}

/// The covariance of the states over the steps of the sequences behind a weight by moments.
fn moment_gramian(modes: &[RealMode], nodes: &[Complex64], weight: &InputWeight) -> DMatrix<f64> {
    let products = weight.products();
    let nodes = products.nodes(nodes);
    real_gramian(modes, |i, j| {
        [false, true].map(|mirrored| products.value(&nodes[i], &nodes[j], mirrored))
    })
}

/// The covariance of the states under a stationary input, over all time.
fn coloured_gramian(modes: &[RealMode], nodes: &[Complex64], weight: &InputWeight) -> DMatrix<f64> {
    let products = weight.products();
    let (f, power) = (products.with_sample(nodes), products.power());
    let moment = |i: usize, z: Complex64, f_other: Complex64| {
        -(f[i] + f_other - power) / expm1(nodes[i] + z)
    };
    real_gramian(modes, |i, j| {
        [
            moment(i, nodes[j].conj(), f[j].conj()),
            moment(i, nodes[j], f[j]),
        ]
    })
}

/// The covariance of the coordinates (√2 Re x, √2 Im x) of each pair, or x of a real mode, when
/// every mode takes the input with weight 1, from the covariances of two modes and of one with the
/// mirror image of the other.
fn real_gramian(
    modes: &[RealMode],
    covariances: impl Fn(usize, usize) -> [Complex64; 2],
) -> DMatrix<f64> {
    let first: Vec<usize> = modes
        .iter()
        .scan(0, |at, mode| {
            let place = *at;
            *at += mode.states();
            Some(place)
        })
        .collect();
    let states = modes.iter().map(RealMode::states).sum();
    let mut gramian = DMatrix::zeros(states, states);
    let share = |mode: &RealMode| if mode.single { 0.5_f64.sqrt() } else { 1.0 };
    for j in 0..modes.len() {
        for i in 0..modes.len() {
            let scale = share(&modes[i]) * share(&modes[j]);
            let [x, y] = covariances(i, j).map(|value| value * scale);
            let block = [[x.re + y.re, y.im - x.im], [y.im + x.im, x.re - y.re]];
            for (p, row) in block.iter().take(modes[i].states()).enumerate() {
                for (q, &value) in row.iter().take(modes[j].states()).enumerate() {
                    gramian[(first[i] + p, first[j] + q)] = value;
                }
            }
        }
    }
    gramian
}

impl WeightedBalanced {
    /// The weighted Hankel singular values, one per real state: square roots of the eigenvalues
    /// of the product of the weighted controllability and the plain observability Gramian.
    pub fn hankel(&self) -> &HankelValues {
        self.balanced.hankel()
    }

    /// The largest diagonal entry of the Gramian that was set aside as rounding, relative to what
    /// it was before the elimination.
    pub fn clipped(&self) -> f64 {
        self.clipped
    }

    /// Keeps the `states` leading states and diagonalises what is left. No bound is known for the
    /// error: `error_bound` is infinite.
    ///
    /// # Errors
    /// As [`Balanced::truncate`].
    pub fn truncate(&self, states: usize) -> Result<Reduced, ControlError> {
        self.truncate_within(states, usize::MAX)
    }

    /// As [`Balanced::truncate_within`], without a bound.
    ///
    /// # Errors
    /// As [`Balanced::truncate`].
    pub fn truncate_within(&self, states: usize, modes: usize) -> Result<Reduced, ControlError> {
        let reduced = self.balanced.truncate_within(states, modes)?;
        Ok(Reduced {
            error_bound: f64::INFINITY,
            ..reduced
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::samples::pairs_and_real_poles;
    use crate::ssm::DiagonalSystem;

    const LENGTH: usize = 40;

    fn sequences() -> Vec<(&'static str, DMatrix<f64>)> {
        let time = |t: usize| t as f64;
        let coloured =
            |n: usize, t: usize| (0.3 * time(t) + n as f64).sin() + (1.7 * time(t * t)).cos();
        vec![
            ("coloured", DMatrix::from_fn(3, LENGTH, coloured)),
            ("constant", DMatrix::from_element(1, LENGTH, 1.0)),
            (
                "sine",
                DMatrix::from_fn(1, LENGTH, |_, t| (0.4 * time(t)).sin()),
            ),
        ]
    }

    fn lags(inputs: &DMatrix<f64>) -> Vec<f64> {
        let lag = |m: usize| {
            let products = inputs.row_iter().map(|u| {
                let pairs = (0..LENGTH - m).map(|t| u[t] * u[t + m]);
                pairs.sum::<f64>()
            });
            products.sum::<f64>() / inputs.len() as f64
        };
        (0..LENGTH).map(lag).collect()
    }

    struct Sample {
        modes: Vec<RealMode>,
        nodes: Vec<Complex64>,
        a: DMatrix<f64>,
        b: DMatrix<f64>,
    }

    fn sample() -> Sample {
        let system = pairs_and_real_poles(Time::Discrete { step: 0.7 }, 0.0);
        let modes = real_modes(system.as_siso().unwrap());
        let input = real_input(&modes);
        let identity = DMatrix::identity(input.len(), input.len());
        Sample {
            a: apply_modes(&modes, &system.poles(), &identity),
            b: DMatrix::from_column_slice(input.len(), 1, &input),
            nodes: system.scaled_exponents(),
            modes,
        }
    }

    #[test]
    fn the_closed_form_is_the_sum_over_all_steps_and_lags() {
        let Sample { modes, nodes, a, b } = sample();
        // The slowest mode has decayed to e^{-42} after 600 steps.
        let mut responses = vec![b];
        for _ in 1..600 {
            responses.push(&a * &responses[responses.len() - 1]);
        }
        for (name, inputs) in sequences() {
            let lags = lags(&inputs);
            let mut direct = DMatrix::zeros(a.nrows(), a.nrows());
            for k in 0..responses.len() {
                let near = k.saturating_sub(LENGTH - 1)..responses.len().min(k + LENGTH);
                let mut sum = DMatrix::zeros(a.nrows(), 1);
                for l in near {
                    sum += &responses[l] * lags[k.abs_diff(l)];
                }
                direct += &responses[k] * sum.transpose();
            }
            let found = coloured_gramian(&modes, &nodes, &InputWeight::spectrum(lags));
            let error = (&found - &direct).norm() / direct.norm();
            assert!(error < 1e-13, "{name}: {error:e}");
            let (root, clipped) = factor(found).unwrap();
            let error = (&root * root.transpose() - &direct).norm() / direct.norm();
            assert!(
                error < 1e-13 && clipped < 1e-10,
                "{name}: {error:e} {clipped:e}"
            );
        }
    }

    #[test]
    fn the_factor_by_moments_is_the_covariance_of_the_states() {
        let Sample { modes, nodes, a, b } = sample();
        for (name, inputs) in sequences() {
            let mut covariance = DMatrix::zeros(a.nrows(), a.nrows());
            for u in inputs.row_iter() {
                let mut state = DMatrix::zeros(a.nrows(), 1);
                for &u in u.iter() {
                    state = &a * state + &b * u;
                    covariance += &state * state.transpose();
                }
            }
            covariance /= inputs.len() as f64;
            let weight = InputWeight::moments(&inputs).unwrap();
            let (root, clipped) = factor(moment_gramian(&modes, &nodes, &weight)).unwrap();
            assert!(clipped < 1e-8, "{name}: {clipped:e}");
            let error = (&root * root.transpose() - &covariance).norm() / covariance.norm();
            assert!(error < 1e-9, "{name}: {error:e}");
        }
    }

    #[test]
    fn each_weight_is_balanced_with_the_covariance_it_stands_for() {
        let Sample { modes, nodes, .. } = sample();
        let system = pairs_and_real_poles(Time::Discrete { step: 0.7 }, 0.0);
        let (name, inputs) = &sequences()[0];
        let moments = InputWeight::moments(inputs).unwrap();
        let stationary = InputWeight::of_sequences(inputs).unwrap();
        let observability = real_observability(Plane::of(system.time()), &modes);
        let observability = &observability * observability.transpose();
        let covariances = [
            moment_gramian(&modes, &nodes, &moments),
            coloured_gramian(&modes, &nodes, &stationary),
        ];
        for (weight, covariance) in [moments, stationary].iter().zip(covariances) {
            let balanced = balance_weighted(system.stable().unwrap(), weight).unwrap();
            let squares: f64 = balanced.hankel().values().iter().map(|s| s * s).sum();
            let expected = (&covariance * &observability).trace();
            assert!(
                (squares / expected - 1.0).abs() < 1e-8,
                "{name}: {squares} {expected}"
            );
        }
    }

    /// Poles that decay by this in a step, beside five of about 0.1, under six coloured sequences.
    fn slow_system(decay: f64, turn: f64) -> (DiagonalSystem, DMatrix<f64>) {
        let pole = |n: usize| match n {
            0 => Complex64::new(-decay, turn),
            n => Complex64::new(-0.05 - 0.01 * n as f64, 0.2 + 0.4 * n as f64),
        };
        let residue = |n: usize| Complex64::new(0.3, 0.1 * n as f64);
        let (poles, residues): (Vec<_>, Vec<_>) = (0..6).map(|n| (pole(n), residue(n))).unzip();
        let time = Time::Discrete { step: 1.0 };
        let system = DiagonalSystem::siso(time, poles, &residues, 0.0).unwrap();
        let mut inputs = DMatrix::zeros(6, 300);
        for n in 0..6 {
            let mut last = 0.0;
            for t in 0..300 {
                last = 0.97 * last + ((t * t + 7 * n) as f64).sin();
                inputs[(n, t)] = last;
            }
        }
        (system, inputs)
    }

    #[test]
    fn a_slow_pole_keeps_its_decay_under_every_input() {
        for decay in [1e-3, 1e-6, 1e-8, 1e-10] {
            for turn in [0.0, 0.3] {
                let (system, inputs) = slow_system(decay, turn);
                for weight in [
                    InputWeight::moments(&inputs),
                    InputWeight::of_sequences(&inputs),
                ] {
                    let balanced = balance_weighted(system.stable().unwrap(), &weight.unwrap());
                    // Nothing is cut, so the poles stay. The Gramian of an input has eight digits.
                    let reduced = balanced.unwrap().truncate(12).unwrap().system;
                    let decays = reduced.exponents().iter().map(|z| -z.re);
                    let least = decays.fold(f64::INFINITY, f64::min);
                    assert!(
                        (least / decay - 1.0).abs() < 1e-4,
                        "{decay:e} {turn} {least:e}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_singular_input_is_clipped_and_not_refused() {
        let system = pairs_and_real_poles(Time::Discrete { step: 0.7 }, 0.0);
        let stable = system.stable().unwrap();
        // One frequency without an end moves two states and no more: no decay, no floor.
        let sine: Vec<f64> = (0..400).map(|m| 0.5 * (0.4 * m as f64).cos()).collect();
        let (modes, nodes) = (
            real_modes(system.as_siso().unwrap()),
            system.scaled_exponents(),
        );
        let sine = InputWeight::spectrum(sine);
        let (root, _) = factor(coloured_gramian(&modes, &nodes, &sine)).unwrap();
        assert!(root.iter().all(|x| x.is_finite()));
        for (name, inputs) in sequences() {
            for weight in [
                InputWeight::moments(&inputs),
                InputWeight::of_sequences(&inputs),
            ] {
                let balanced = balance_weighted(stable, &weight.unwrap()).unwrap();
                assert!(balanced.clipped() < 1e-10, "{name}");
                assert!(balanced.hankel().values()[0] > 0.0);
                assert!(balanced.truncate(8).unwrap().system.is_stable());
            }
        }
    }
}
