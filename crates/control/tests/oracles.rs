//! The Hankel core against independent ways to the same numbers, and against invariances.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise and may show its figures"
)]

#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../../tests/common/systems.rs"]
mod systems;

use std::f64::consts::PI;

use hankelite_control::{
    DiagonalSystem, ModalScore, Realisation, Time, balance, complex_gramian_factors, h2_norm,
    hankel_values, hinf_norm, modal_scores, real_gramian_factors,
};
use nalgebra::{DMatrix, DVector};
use num_complex::Complex64;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use systems::{own_systems, siso};

const REALISATIONS: [Realisation; 2] = [Realisation::Real, Realisation::Complex];

fn sigma(system: &DiagonalSystem, realisation: Realisation) -> Vec<f64> {
    let values = hankel_values(system.stable().unwrap(), realisation).unwrap();
    values.values().to_vec()
}

/// Every value within `tolerance` of the largest.
fn assert_close(found: &[f64], expected: &[f64], tolerance: f64, place: &str) {
    assert_eq!(found.len(), expected.len(), "{place}");
    let largest = expected.iter().copied().fold(0.0, f64::max);
    for (x, y) in found.iter().zip(expected) {
        assert!(
            (x - y).abs() <= tolerance * largest,
            "{place}: {found:?} {expected:?}"
        );
    }
}

/// Scaled exponents and residues of the conjugate-closed system, a real pole once.
fn closed_modes(system: &DiagonalSystem) -> Vec<(Complex64, Complex64)> {
    let modes = system
        .scaled_exponents()
        .into_iter()
        .zip(system.residues().unwrap());
    modes
        .flat_map(|(z, r)| match z.im {
            0.0 => vec![(z, Complex64::from(r.re))],
            _ => vec![(z, 0.5 * r), (z.conj(), 0.5 * r.conj())],
        })
        .collect()
}

/// The condition number of the unit eigenvectors that belong to these eigenvalues.
fn eigenvector_condition(matrix: &DMatrix<Complex64>, values: &DVector<Complex64>) -> f64 {
    let n = values.len();
    let vector = |value: &Complex64| {
        let shifted = matrix - DMatrix::identity(n, n) * *value;
        shifted.svd(false, true).v_t.unwrap().row(n - 1).adjoint()
    };
    let vectors: Vec<_> = values.iter().map(vector).collect();
    let sigma = DMatrix::from_columns(&vectors).singular_values();
    sigma[0] / sigma[n - 1]
}

/// Discrete systems with |a| between e^{-1.5} and e^{-0.05}, one to six modes, no two poles alike.
fn systems() -> impl Strategy<Value = DiagonalSystem> {
    let mode = (
        -1.5..-0.05_f64,
        -3.0..3.0_f64,
        -1.0..1.0_f64,
        -1.0..1.0_f64,
        prop::bool::weighted(0.2),
    );
    prop::collection::vec(mode, 1..=6).prop_map(|modes| {
        let exponent =
            |m: &(f64, f64, f64, f64, bool)| Complex64::new(m.0, if m.4 { 0.0 } else { m.1 });
        let residues: Vec<Complex64> = modes.iter().map(|m| Complex64::new(m.2, m.3)).collect();
        let exponents = modes.iter().map(exponent).collect();
        DiagonalSystem::siso(Time::Discrete { step: 1.0 }, exponents, &residues, 0.0).unwrap()
    })
}

/// A fixed seed: the same systems in every run.
fn settings() -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(20_260_101),
        ..ProptestConfig::with_cases(64)
    }
}

proptest! {
    #![proptest_config(settings())]

    #[test]
    fn cross_gramian_eigenvalues_are_the_values_with_signs(system in systems()) {
        // X_ij = b_i c_j/(1 − a_i a_j) with b = 1: a real SISO system has |eigenvalues| = σ.
        let modes = closed_modes(&system);
        let n = modes.len();
        let x = DMatrix::from_fn(n, n, |i, j| modes[j].1 / (1.0 - (modes[i].0 + modes[j].0).exp()));
        let trace: Complex64 = modes.iter().map(|(z, r)| r / (1.0 - (2.0 * z).exp())).sum();
        let values = x.clone().schur().eigenvalues().unwrap();
        prop_assume!(eigenvector_condition(&x, &values) < 1e4);
        let mut found: Vec<f64> = values.iter().map(|v| v.norm()).collect();
        found.sort_by(|a, b| b.total_cmp(a));
        let expected = sigma(&system, Realisation::Real);
        assert_close(&found, &expected, 1e-9, "cross-Gramian");
        let signed: f64 = values.iter().map(|v| v.re).sum();
        prop_assert!((signed - trace.re).abs() < 1e-9 * expected[0], "{} {}", signed, trace);
    }

    #[test]
    fn the_hankel_matrix_of_the_kernel_has_the_same_singular_values(system in systems()) {
        // |a| ≤ e^{-0.05}: after 800 samples e^{-40} is left.
        let size = 400;
        let kernel = system.kernel(2 * size).unwrap();
        let hankel = DMatrix::from_fn(size, size, |i, j| kernel[i + j]);
        let expected = sigma(&system, Realisation::Real);
        // Random range: a few more columns than the rank hold all of it.
        let columns = expected.len() + 8;
        let noise = |i: usize, j: usize| (0.7 * (i * i + 7 * i * j + 3 * j * j) as f64).sin();
        let probe = DMatrix::from_fn(size, columns, noise);
        let range = (&hankel * probe).qr().q();
        let found = (range.transpose() * hankel).singular_values();
        let found: Vec<f64> = found.iter().copied().take(expected.len()).collect();
        assert_close(&found, &expected, 1e-10, "Hankel matrix");
    }

    #[test]
    fn lyapunov_residuals_vanish(system in systems()) {
        let factors = complex_gramian_factors(system.stable().unwrap()).unwrap();
        let w_c = &factors.controllability * factors.controllability.adjoint();
        let w_o = &factors.observability * factors.observability.adjoint();
        let a = DMatrix::from_diagonal(&DVector::from_vec(system.poles()));
        let b = system.input() * system.input().adjoint();
        let c = system.output().adjoint() * system.output();
        let reach = &a * &w_c * a.adjoint() - &w_c + b;
        let view = a.adjoint() * &w_o * &a - &w_o + c;
        prop_assert!(reach.norm() < 1e-12 * w_c.norm());
        prop_assert!(view.norm() < 1e-12 * w_o.norm().max(1e-12));
    }

    #[test]
    fn the_h2_norm_is_c_w_c_and_the_sum_of_squares(system in systems()) {
        let full = system.stable().unwrap();
        let norm = h2_norm(full).unwrap();
        let direct: f64 = system.kernel(1600).unwrap().iter().map(|k| k * k).sum();
        prop_assert!((norm - direct.sqrt()).abs() < 1e-11 * norm, "{} {}", norm, direct.sqrt());
        let factors = complex_gramian_factors(full).unwrap();
        let w_c = &factors.controllability * factors.controllability.adjoint();
        let through = (system.output() * w_c * system.output().adjoint())[(0, 0)].re;
        let poles = system.poles();
        let residues = system.residues().unwrap();
        let terms = (0..1600).map(|l| {
            let term = |i: usize| residues[i] * poles[i].powi(l);
            (0..poles.len()).map(term).sum::<Complex64>().norm_sqr()
        });
        let direct: f64 = terms.sum();
        prop_assert!((through - direct).abs() < 1e-11 * direct, "{} {}", through, direct);
    }

    #[test]
    fn values_ignore_the_order_and_the_scale_of_the_states(system in systems(), d in 0.01..100.0_f64) {
        let n = system.order();
        let turned: Vec<usize> = (0..n).map(|i| (i + n / 2) % n).rev().collect();
        let factor = |i: usize| Complex64::from_polar(d.powi(i as i32 % 3 - 1), 2.0 * i as f64);
        let b: Vec<Complex64> = turned.iter().map(|&i| system.input()[(i, 0)] * factor(i)).collect();
        let c: Vec<Complex64> = turned.iter().map(|&i| system.output()[(0, i)] / factor(i)).collect();
        let poles = turned.iter().map(|&i| system.exponents()[i]).collect();
        let other = siso(system.time(), poles, &b, &c);
        for realisation in REALISATIONS {
            assert_close(&sigma(&other, realisation), &sigma(&system, realisation), 1e-11, "similar");
        }
        let size = hinf_norm(system.stable().unwrap(), Realisation::Real).unwrap();
        let same = hinf_norm(other.stable().unwrap(), Realisation::Real).unwrap();
        prop_assert!((size.value / same.value - 1.0).abs() < 3e-9);
    }

    #[test]
    fn values_scale_with_the_output(system in systems(), alpha in -8.0..8.0_f64) {
        prop_assume!(alpha.abs() > 1e-3);
        let output: Vec<Complex64> = system.output().iter().map(|c| c * alpha).collect();
        let poles = system.exponents().to_vec();
        let larger = siso(system.time(), poles, system.input().as_slice(), &output);
        for realisation in REALISATIONS {
            let expected: Vec<f64> =
                sigma(&system, realisation).iter().map(|s| s * alpha.abs()).collect();
            assert_close(&sigma(&larger, realisation), &expected, 1e-12, "scaled");
        }
    }

    #[test]
    fn the_gain_lies_between_the_largest_value_and_twice_the_sum(system in systems()) {
        for realisation in REALISATIONS {
            let values = sigma(&system, realisation);
            let norm = hinf_norm(system.stable().unwrap(), realisation).unwrap();
            prop_assert!(values[0] <= norm.upper * (1.0 + 1e-12));
            let all: f64 = values.iter().sum();
            prop_assert!(norm.value <= 2.0 * all * (1.0 + 1e-12));
            let gains = modal_scores(system.stable().unwrap(), ModalScore::Hinf).unwrap();
            prop_assert!(norm.value <= gains.iter().sum::<f64>() * (1.0 + 1e-12));
        }
    }
}

#[test]
fn every_value_of_an_all_pass_system_is_one() {
    // G = ∏ (1 − p̄ z)/(z − p) over p and p̄; k[l] = Σ ρ p^l with ρ its residues.
    let radii_angles = [(0.9, 0.4), (0.5, 1.1), (0.7, 2.0), (0.3, 2.9)];
    let half: Vec<Complex64> = radii_angles
        .iter()
        .map(|&(r, t)| Complex64::from_polar(r, t))
        .collect();
    let all: Vec<Complex64> = half.iter().flat_map(|&p| [p, p.conj()]).collect();
    let residue = |p: Complex64| {
        let factor = |&q: &Complex64| {
            let numerator = 1.0 - q.conj() * p;
            if q == p {
                numerator
            } else {
                numerator / (p - q)
            }
        };
        all.iter().map(factor).product::<Complex64>()
    };
    let residues: Vec<Complex64> = half.iter().map(|&p| 2.0 * residue(p)).collect();
    let exponents = half.iter().map(|p| p.ln()).collect();
    let time = Time::Discrete { step: 1.0 };
    let system = DiagonalSystem::siso(time, exponents, &residues, 0.0).unwrap();
    let values = sigma(&system, Realisation::Real);
    assert_eq!(values.len(), 8);
    for value in &values {
        assert!((value - 1.0).abs() < 1e-13, "{values:?}");
    }
    let balanced = balance(system.stable().unwrap(), Realisation::Real).unwrap();
    assert!((1..8).all(|order| balanced.hankel().tie_at(order)));
    // Equal values count once, wherever the cut falls.
    assert!((0..8).all(|order| (balanced.hankel().truncation_bound(order) - 2.0).abs() < 1e-12));
}

/// The bilinear image z = (1 + sΔ/2)/(1 − sΔ/2) of a continuous system, once with the poles and
/// weights of the strictly proper part and once as the same transfer function on the circle.
fn tustin(system: &DiagonalSystem, step: f64) -> [DiagonalSystem; 2] {
    let half = 0.5 * step;
    let time = Time::Discrete { step };
    let lambda = system.exponents();
    let residues = system.residues().unwrap();
    let poles: Vec<Complex64> = lambda
        .iter()
        .map(|z| (1.0 + half * z) / (1.0 - half * z))
        .collect();
    let weights: Vec<Complex64> = lambda
        .iter()
        .zip(&residues)
        .map(|(z, r)| r * step / ((1.0 - half * z) * (1.0 - half * z)))
        .collect();
    let exponents: Vec<Complex64> = poles.iter().map(|a| a.ln() / step).collect();
    let direct: f64 = lambda
        .iter()
        .zip(&residues)
        .map(|(z, r)| (r * half / (1.0 - half * z)).re)
        .sum();
    // w/(z − a) = (w/a) (z/(z − a) − 1).
    let led: Vec<Complex64> = weights.iter().zip(&poles).map(|(w, a)| w / a).collect();
    let feedthrough = direct - led.iter().map(|w| w.re).sum::<f64>();
    [
        DiagonalSystem::siso(time, exponents.clone(), &weights, 0.0).unwrap(),
        DiagonalSystem::siso(time, exponents, &led, feedthrough).unwrap(),
    ]
}

#[test]
fn the_bilinear_map_keeps_values_and_the_h_infinity_norm_and_the_zero_order_hold_does_not() {
    for name in ["lin8", "some_real", "all_real", "wide"] {
        let reference = own_systems()
            .into_iter()
            .find(|system| system.name == name)
            .unwrap();
        let (system, step) = (&reference.system, 0.1);
        let [strict, whole] = tustin(system, step);
        for realisation in REALISATIONS {
            let expected = sigma(system, realisation);
            assert_close(&sigma(&strict, realisation), &expected, 1e-10, name);
        }
        let norm = hinf_norm(system.stable().unwrap(), Realisation::Real).unwrap();
        let mapped = hinf_norm(whole.stable().unwrap(), Realisation::Real).unwrap();
        assert!(
            (mapped.value / norm.value - 1.0).abs() < 1e-8,
            "{name} {norm:?} {mapped:?}"
        );
        // ω = (2/Δ) tan(θ/2).
        let frequency = 2.0 / step * (0.5 * mapped.frequency.min(PI - 1e-12)).tan();
        assert!(
            (frequency - norm.frequency).abs() < 1e-3 * (1.0 + norm.frequency),
            "{name}"
        );
        let held = sigma(&system.zoh(step).unwrap(), Realisation::Real)[0];
        assert!(
            (held / sigma(system, Realisation::Real)[0] - 1.0).abs() > 1e-6,
            "{name}"
        );
    }
}

#[test]
fn the_sum_of_squared_values_is_the_trace_of_the_product() {
    for reference in own_systems() {
        for (time, system) in reference.both_times() {
            let full = system.stable().unwrap();
            let factors = real_gramian_factors(full).unwrap();
            let product = factors.observability.transpose() * &factors.controllability;
            let squares: f64 = sigma(&system, Realisation::Real)
                .iter()
                .map(|s| s * s)
                .sum();
            let trace = product.norm_squared();
            assert!(
                (squares - trace).abs() <= 1e-12 * trace,
                "{} {time}",
                reference.name
            );
        }
    }
}

#[test]
fn a_system_of_half_the_gain_has_half_its_values_in_published_numbers() {
    // Discrete diag(.9, .5), b = c = 1, to 12 digits; halved outputs halve them.
    let poles = [0.9_f64, 0.5].map(|a| Complex64::from(a.ln())).to_vec();
    let time = Time::Discrete { step: 1.0 };
    for gain in [1.0, 0.5] {
        let residues = [Complex64::from(gain); 2];
        let system = DiagonalSystem::siso(time, poles.clone(), &residues, 0.0).unwrap();
        let expected = [5.975_308_443_86 * gain, 0.621_182_784_212 * gain];
        for realisation in REALISATIONS {
            assert_close(&sigma(&system, realisation), &expected, 1e-12, "published");
        }
    }
}
