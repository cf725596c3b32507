//! Diagonal systems with several inputs and outputs: values, norms and truncations against
//! high-precision references, and the invariances that hold for any system.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops where it is wrong"
)]

#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../../tests/common/systems.rs"]
mod systems;

use common::{here, json, reals, worst_relative};
use hankelite_control::{
    ControlError, DenseSystem, DiagonalSystem, Realisation, SystemError, Time, balance,
    balance_for_dc, balance_over_horizon, complex_gramian_factors, dc_gain, dense_balance,
    h2_error, h2_norm, h2_optimal, hankel_values, hinf_error, hinf_norm, real_gramian_factors,
};
use nalgebra::DMatrix;
use num_complex::Complex64;
use serde_json::Value;
use systems::pairs;

fn systems() -> Vec<Value> {
    let file = json(&here("reference/mimo_hankel.json"));
    file["systems"].as_array().unwrap().clone()
}

fn system(value: &Value, time: Time) -> DiagonalSystem {
    let [lambda, b, c] = ["lambda", "b", "c"].map(|key| pairs(&value[key]));
    let [m, p] = ["inputs", "outputs"].map(|key| value[key].as_u64().unwrap() as usize);
    let n = lambda.len();
    DiagonalSystem::new(
        time,
        lambda,
        DMatrix::from_row_slice(n, m, &b),
        DMatrix::from_row_slice(p, n, &c),
        DMatrix::from_fn(p, m, |i, j| (i + 2 * j) as f64),
    )
    .unwrap()
}

fn both_times(value: &Value) -> [(&'static str, DiagonalSystem); 2] {
    let step = value["step"].as_f64().unwrap();
    [
        ("continuous", system(value, Time::Continuous)),
        ("discrete", system(value, Time::Discrete { step })),
    ]
}

#[test]
fn every_hankel_value_and_norm_matches_high_precision() {
    let mut failures = Vec::new();
    for value in systems() {
        let name = value["name"].as_str().unwrap();
        for (time, system) in both_times(&value) {
            let stable = system.stable().unwrap();
            for (key, realisation) in [
                ("real", Realisation::Real),
                ("complex", Realisation::Complex),
            ] {
                let expected = reals(&value[key][time]["hsv"]);
                let sigma = hankel_values(stable, realisation).unwrap();
                let error = worst_relative(sigma.values(), &expected);
                println!("{name:20} {time:10} {key:8} {error:9.2e}");
                if error.is_nan() || error >= 1e-10 {
                    failures.push(format!("{name} {time} {key}: {error:e}"));
                }
            }
            let expected: f64 = value["real"][time]["h2"].as_str().unwrap().parse().unwrap();
            let error = (h2_norm(stable).unwrap() / expected - 1.0).abs();
            if error.is_nan() || error >= 1e-12 {
                failures.push(format!("{name} {time} h2: {error:e}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Re(C A^l B) for l = 0..count.
fn markov(system: &DiagonalSystem, count: usize) -> Vec<DMatrix<f64>> {
    let poles = system.poles();
    let mut state = system.input().clone();
    let mut out = Vec::new();
    for _ in 0..count {
        out.push((system.output() * &state).map(|x| x.re));
        for (mut row, pole) in state.row_iter_mut().zip(&poles) {
            row *= *pole;
        }
    }
    out
}

#[test]
fn truncations_are_diagonal_again_and_match_high_precision() {
    let mut seen = 0;
    for value in systems() {
        let name = value["name"].as_str().unwrap();
        let [_, (_, system)] = both_times(&value);
        let full = system.stable().unwrap();
        let balanced = balance(full, Realisation::Real).unwrap();
        let none = Vec::new();
        for cut in value["real"]["discrete"]["truncations"]
            .as_array()
            .unwrap_or(&none)
        {
            seen += 1;
            let order = cut["order"].as_u64().unwrap() as usize;
            let reduced = balanced.truncate(order).unwrap();
            assert_eq!(reduced.order, order, "{name}");
            assert_eq!(reduced.system.feedthrough(), system.feedthrough());
            let (m, p) = (system.input().ncols(), system.output().nrows());
            let expected = cut["markov"].as_array().unwrap();
            let found = markov(&reduced.system, expected.len());
            let size = markov(&system, 1)[0].amax();
            for (found, expected) in found.iter().zip(expected) {
                let expected = DMatrix::from_row_slice(p, m, &reals(expected));
                let worst = (found - expected).amax() / size;
                assert!(worst < 1e-10, "{name} order {order}: {worst:e}");
            }
            let expected: f64 = cut["h2_error"].as_str().unwrap().parse().unwrap();
            let found = h2_error(full, reduced.system.stable().unwrap()).unwrap();
            let error = (found - expected).abs() / h2_norm(full).unwrap();
            println!("{name:20} order {order}: h2 error {error:9.2e}");
            assert!(error < 1e-10, "{name} order {order}: {found} {expected}");
        }
    }
    assert!(seen > 8, "{seen}");
}

#[test]
fn full_order_gives_the_same_impulse_response_and_half_of_it_stays_within_the_bound() {
    for value in systems() {
        let name = value["name"].as_str().unwrap();
        let [_, (_, system)] = both_times(&value);
        let full = system.stable().unwrap();
        let balanced = balance(full, Realisation::Real).unwrap();
        let reduced = balanced.truncate(usize::MAX).unwrap();
        let size = markov(&system, 1)[0].norm();
        for (x, y) in markov(&system, 12).iter().zip(markov(&reduced.system, 12)) {
            let worst = (x - y).norm() / size;
            assert!(worst < 1e-8 * reduced.condition, "{name}: {worst:e}");
        }
        let half = balanced
            .truncate(balanced.hankel().numerical_rank() / 2)
            .unwrap();
        // The L2 norm of the error of one input channel is below the H-infinity bound; rounding
        // of the eigenvectors comes on top.
        let inputs = system.input().ncols() as f64;
        let error = h2_error(full, half.system.stable().unwrap()).unwrap();
        let rounding = 1e-14 * half.condition * h2_norm(full).unwrap();
        assert!(
            error <= inputs.sqrt() * half.error_bound + rounding,
            "{name}: {error:e} {:e} {rounding:e}",
            half.error_bound
        );
    }
}

/// Turns inputs and outputs by unitary matrices, permutes modes and rescales them.
fn disguised(system: &DiagonalSystem) -> DiagonalSystem {
    let n = system.order();
    let turned = |size: usize| {
        let raw = DMatrix::from_fn(size, size, |i, j| ((3 * i + 5 * j * j + 1) as f64).sin());
        raw.qr().q().map(Complex64::from)
    };
    let order: Vec<usize> = (0..n).rev().collect();
    let mut input = system.input().select_rows(&order) * turned(system.input().ncols());
    let mut output = turned(system.output().nrows()) * system.output().select_columns(&order);
    for i in 0..n {
        let scale = Complex64::new(0.3, -1.7);
        input.row_mut(i).iter_mut().for_each(|b| *b *= scale);
        output.column_mut(i).iter_mut().for_each(|c| *c /= scale);
    }
    let exponents = order.iter().map(|&i| system.exponents()[i]).collect();
    let feedthrough = system.feedthrough().clone();
    DiagonalSystem::new(system.time(), exponents, input, output, feedthrough).unwrap()
}

#[test]
fn values_do_not_depend_on_the_order_of_modes_nor_on_unitary_changes_of_inputs_and_outputs() {
    for value in systems() {
        let name = value["name"].as_str().unwrap();
        // Turning them in double precision changes these systems themselves.
        if [
            "weak_input",
            "rounded_parallel",
            "closed",
            "near_real_real_rows",
        ]
        .contains(&name)
            || name.starts_with("real_")
            || ["poor", "cluster", "huge_step"].contains(&name)
        {
            continue;
        }
        for (time, system) in both_times(&value) {
            let sigma = hankel_values(system.stable().unwrap(), Realisation::Real).unwrap();
            let other = disguised(&system);
            let other = hankel_values(other.stable().unwrap(), Realisation::Real).unwrap();
            let error = worst_relative(other.values(), sigma.values());
            assert!(error < 1e-10, "{name} {time}: {error:e}");
        }
    }
}

#[test]
fn one_input_and_one_output_stacked_twice_give_the_values_of_the_single_system_doubled() {
    let lambda = vec![Complex64::new(-0.5, 3.0), Complex64::new(-0.7, 1.0)];
    let c = [Complex64::new(1.0, -2.0), Complex64::new(0.3, 0.5)];
    let time = Time::Discrete { step: 0.1 };
    let single = DiagonalSystem::siso(time, lambda.clone(), &c, 0.0).unwrap();
    let double = DiagonalSystem::new(
        time,
        lambda,
        DMatrix::from_element(2, 2, Complex64::ONE),
        DMatrix::from_fn(2, 2, |_, j| c[j]),
        DMatrix::zeros(2, 2),
    )
    .unwrap();
    for realisation in [Realisation::Real, Realisation::Complex] {
        let one = hankel_values(single.stable().unwrap(), realisation).unwrap();
        let two = hankel_values(double.stable().unwrap(), realisation).unwrap();
        let expected: Vec<f64> = one.values().iter().map(|x| 2.0 * x).collect();
        assert!(worst_relative(two.values(), &expected) < 1e-14);
    }
}

#[test]
fn a_system_without_inputs_has_no_values_but_zero() {
    let lambda = vec![Complex64::new(-0.5, 3.0); 2];
    let zero = DiagonalSystem::new(
        Time::Continuous,
        lambda,
        DMatrix::zeros(2, 0),
        DMatrix::from_element(2, 2, Complex64::ONE),
        DMatrix::zeros(2, 0),
    )
    .unwrap();
    let stable = zero.stable().unwrap();
    assert_eq!(
        hankel_values(stable, Realisation::Real).unwrap().values(),
        [0.0; 4]
    );
    assert_eq!(h2_norm(stable).unwrap(), 0.0);
    let reduced = balance(stable, Realisation::Real)
        .unwrap()
        .truncate(3)
        .unwrap();
    assert_eq!(reduced.order, 0);
    assert_eq!(reduced.system.output().shape(), (2, 0));
}

#[test]
fn zero_rows_and_repeated_poles_take_no_column() {
    let lambda = vec![Complex64::new(-0.5, 3.0); 4];
    let mut input = DMatrix::from_fn(4, 2, |i, j| Complex64::new(i as f64 + 0.1, j as f64 - 0.7));
    input.row_mut(1).fill(Complex64::ZERO);
    let output = DMatrix::from_fn(2, 4, |i, j| Complex64::new(j as f64, i as f64));
    for time in [Time::Continuous, Time::Discrete { step: 0.1 }] {
        let (input, output) = (input.clone(), output.clone());
        let feedthrough = DMatrix::zeros(2, 2);
        let system = DiagonalSystem::new(time, lambda.clone(), input, output, feedthrough).unwrap();
        let stable = system.stable().unwrap();
        let factors = complex_gramian_factors(stable).unwrap();
        assert_eq!(factors.controllability.ncols(), 2);
        let factors = real_gramian_factors(stable).unwrap();
        assert_eq!(factors.controllability.ncols(), 4);
        assert_eq!(factors.observability.ncols(), 4);
    }
}

#[test]
fn an_error_norm_asks_for_equal_numbers_of_inputs_and_outputs() {
    let values = systems();
    let (one, two) = (
        system(&values[0], Time::Continuous),
        system(&values[1], Time::Continuous),
    );
    let error = h2_error(one.stable().unwrap(), two.stable().unwrap()).unwrap_err();
    let expected = SystemError::Size {
        inputs: 4,
        outputs: 4,
        expected_inputs: 2,
        expected_outputs: 3,
    };
    assert_eq!(error, ControlError::System(expected));
}

#[test]
fn extreme_numbers_give_a_result_or_an_error_and_never_a_panic() {
    let sizes: [f64; 7] = [0.0, 1e-320, 1e-300, 1e-160, 1.0, 1e160, 1e300];
    for (k, &rate) in sizes.iter().enumerate() {
        for (l, &weight) in sizes.iter().enumerate() {
            let lambda = vec![
                Complex64::new(-rate.max(1e-320), weight),
                Complex64::new(-1.0, -rate),
                Complex64::new(-2.0, 0.0),
            ];
            let input = DMatrix::from_fn(3, 2, |i, j| {
                Complex64::new(sizes[(i + j + k) % 7], -sizes[(i * j + l) % 7])
            });
            let output = DMatrix::from_fn(2, 3, |i, j| {
                Complex64::new(weight, sizes[(2 * i + j + l) % 7])
            });
            for time in [Time::Continuous, Time::Discrete { step: 0.1 }] {
                let (input, output) = (input.clone(), output.clone());
                let feedthrough = DMatrix::zeros(2, 2);
                let system = DiagonalSystem::new(time, lambda.clone(), input, output, feedthrough);
                let system = system.unwrap();
                let stable = system.stable().unwrap();
                for realisation in [Realisation::Real, Realisation::Complex] {
                    if let Ok(balanced) = balance(stable, realisation) {
                        let _ = balanced.truncate(2);
                    }
                }
                let _ = h2_norm(stable);
            }
        }
    }
}

/// Orders from none to all.
fn some_orders(rank: usize) -> Vec<usize> {
    let mut orders = vec![0, rank / 4, rank / 2, rank - rank.min(1), rank];
    orders.dedup();
    orders
}

const REALISATIONS: [Realisation; 2] = [Realisation::Real, Realisation::Complex];

#[test]
fn residualisation_keeps_the_gain_at_rest_and_the_poles_inside() {
    let (mut worst, mut count) = (0.0_f64, 0);
    for value in systems() {
        let name = value["name"].as_str().unwrap();
        for (time, system) in both_times(&value) {
            let full = system.stable().unwrap();
            let gain = dc_gain(full);
            for realisation in REALISATIONS {
                let balanced = balance_for_dc(full, realisation).unwrap();
                for order in some_orders(balanced.hankel().numerical_rank()) {
                    let reduced = balanced.residualise(order).unwrap();
                    let place = format!("{name} {time} {realisation:?} {order}");
                    assert!(reduced.order == order || reduced.lowered, "{place}");
                    let small = reduced.system.stable().unwrap();
                    let error = (dc_gain(small) - &gain).norm() / gain.norm();
                    worst = worst.max(error);
                    assert!(error < 1e-13, "{place}: {error:e}");
                    count += 1;
                }
            }
        }
    }
    println!("{count} residualisations, worst gain error {worst:e}");
}

#[test]
fn a_residualised_diagonal_system_is_the_residualised_dense_one() {
    for value in systems() {
        let name = value["name"].as_str().unwrap();
        let [(_, system), _] = both_times(&value);
        let full = system.stable().unwrap();
        let diagonal = balance_for_dc(full, Realisation::Real).unwrap();
        let dense = DenseSystem::from_diagonal(&system).unwrap();
        let dense = dense_balance(&dense).unwrap();
        let sigma = diagonal.hankel().values();
        for order in 1..sigma.len().min(12) {
            // The dense path knows values and directions to 1e-14 of the largest value.
            let (kept, cut) = (sigma[order - 1], sigma[order]);
            if cut < 1e-4 * sigma[0] || kept - cut < 1e-3 * sigma[0] {
                continue;
            }
            let found = diagonal.residualise(order).unwrap().system;
            let found = DenseSystem::from_diagonal(&found).unwrap();
            let expected = dense.residualise(order).unwrap().system;
            let mut worst = 0.0_f64;
            for frequency in [0.0, 0.1, 1.0, 3.0, 10.0, 100.0] {
                let s = Complex64::new(0.0, frequency);
                let (x, y) = (found.transfer(s).unwrap(), expected.transfer(s).unwrap());
                worst = worst.max((x - &y).norm() / y.norm());
            }
            println!("{name:20} {order:2}: {worst:9.2e}");
            assert!(worst < 1e-9, "{name} {order}: {worst:e}");
        }
    }
}

#[test]
fn over_a_long_horizon_values_are_those_of_the_infinite_one_and_the_full_order_is_exact() {
    let mut seen = 0;
    for value in systems() {
        let name = value["name"].as_str().unwrap();
        let [_, (_, system)] = both_times(&value);
        let exponents = system.scaled_exponents();
        let slowest = exponents
            .iter()
            .map(|z| -z.re)
            .fold(f64::INFINITY, f64::min);
        // The two members of an almost real pair cancel in a Gramian that is formed.
        if slowest < 1e-3 || name.starts_with("near_real") {
            continue;
        }
        seen += 1;
        let horizon = (40.0 / slowest) as usize + 2;
        for realisation in REALISATIONS {
            let infinite = hankel_values(system.stable().unwrap(), realisation).unwrap();
            let finite = balance_over_horizon(&system, horizon, realisation).unwrap();
            let size = infinite.values()[0];
            let pairs = infinite.values().iter().zip(finite.hankel().values());
            // A Gramian that is formed keeps values to the root of rounding.
            for (x, y) in pairs {
                assert!(
                    (x - y).abs() < 3e-8 * size,
                    "{name} {realisation:?}: {x} {y}"
                );
            }
            let error = (infinite.values()[0] - finite.hankel().values()[0]).abs() / size;
            assert!(error < 1e-12, "{name} {realisation:?}: {error:e}");
        }
        let finite = balance_over_horizon(&system, 20, Realisation::Real).unwrap();
        let same = finite.truncate(usize::MAX).unwrap();
        let lost = finite
            .hankel()
            .values()
            .iter()
            .filter(|x| **x < 1e-7)
            .count();
        if lost == 0 {
            let size = markov(&system, 1)[0].norm();
            for (x, y) in markov(&system, 12).iter().zip(markov(&same.system, 12)) {
                let worst = (x - y).norm() / size;
                assert!(worst < 1e-11 * same.condition, "{name}: {worst:e}");
            }
        }
    }
    assert!(seen > 3, "{seen}");
}

#[test]
fn values_over_a_horizon_are_those_of_the_block_hankel_matrix() {
    let [_, (_, system)] = both_times(&systems()[0]);
    for horizon in [1, 3, 16] {
        let parameters = markov(&system, 2 * horizon);
        let (p, m) = parameters[0].shape();
        let hankel = DMatrix::from_fn(p * horizon, m * horizon, |i, j| {
            parameters[i / p + j / m][(i % p, j % m)]
        });
        let expected = hankel.singular_values();
        let found = balance_over_horizon(&system, horizon, Realisation::Real).unwrap();
        let largest = expected[0];
        for (x, y) in found.hankel().values().iter().zip(expected.iter()) {
            assert!((x - y).abs() < 1e-10 * largest, "{horizon}: {x} {y}");
        }
    }
}

/// ‖G‖₂ at one frequency, by the dense system behind the modes.
fn gain_at(system: &DenseSystem, frequency: f64) -> f64 {
    let s = match system.time() {
        Time::Continuous => Complex64::new(0.0, frequency),
        Time::Discrete { .. } => Complex64::new(0.0, frequency).exp(),
    };
    // The transfer function of the dense system is that of C A^l B one step later.
    let shift = match system.time() {
        Time::Continuous => Complex64::ONE,
        Time::Discrete { .. } => s,
    };
    let direct = system.feedthrough().map(Complex64::from);
    let strict = system.transfer(s).unwrap() - &direct;
    (strict * shift + direct).singular_values()[0]
}

#[test]
fn h_infinity_norms_bound_a_sweep_and_are_attained_where_they_say() {
    let mut closest = f64::INFINITY;
    for value in systems() {
        let name = value["name"].as_str().unwrap();
        for (time, system) in both_times(&value) {
            let found = hinf_norm(system.stable().unwrap(), Realisation::Real).unwrap();
            let gap = found.upper / found.value - 1.0;
            assert!((0.0..1e-8).contains(&gap), "{name} {time}: {found:?}");
            let dense = DenseSystem::from_diagonal(&system).unwrap();
            if found.frequency.is_finite() && name != "huge_step" {
                let there = gain_at(&dense, found.frequency);
                let error = (there / found.value - 1.0).abs();
                // A pole e^z beside the circle is rounded in the dense matrix.
                let allowed = match name {
                    "near_axis" | "tiny_step" => 1e-6,
                    _ => 1e-9,
                };
                assert!(error < allowed, "{name} {time}: {there} {found:?}");
            }
            for k in 0..400 {
                let frequency = match system.time() {
                    Time::Continuous => 1e-3 * 1.04_f64.powi(k),
                    Time::Discrete { .. } => std::f64::consts::PI * f64::from(k) / 399.0,
                };
                let gain = gain_at(&dense, frequency);
                assert!(
                    gain <= found.upper * (1.0 + 1e-12),
                    "{name} {time} {frequency}"
                );
                closest = closest.min(found.upper / gain);
            }
        }
    }
    println!("a sweep of 400 points comes within {:.1e}", closest - 1.0);
}

#[test]
fn h_infinity_norms_do_not_depend_on_unitary_changes_of_inputs_and_outputs() {
    for value in systems() {
        for (time, system) in both_times(&value) {
            let flat = DMatrix::zeros(system.output().nrows(), system.input().ncols());
            let (lambda, b, c) = (
                system.exponents().to_vec(),
                system.input().clone(),
                system.output().clone(),
            );
            let system = DiagonalSystem::new(system.time(), lambda, b, c, flat).unwrap();
            let other = disguised(&system);
            let [x, y] = [&system, &other].map(|system| {
                let norm = hinf_norm(system.stable().unwrap(), Realisation::Real);
                norm.unwrap().value
            });
            assert!(
                (x / y - 1.0).abs() < 1e-8,
                "{} {time}: {x} {y}",
                value["name"]
            );
        }
    }
}

#[test]
fn a_single_channel_seen_as_one_of_several_has_its_norm() {
    let lambda = vec![Complex64::new(-1e-7, 3.0), Complex64::new(-0.7, 1.0)];
    let c = [Complex64::new(1.0, -2.0), Complex64::new(0.3, 0.5)];
    for time in [Time::Continuous, Time::Discrete { step: 0.1 }] {
        let single = DiagonalSystem::siso(time, lambda.clone(), &c, 0.5).unwrap();
        let single = single.stable().unwrap();
        // The same response in both entries of a diagonal 2 x 2 matrix, one of them halved.
        let twice = [&lambda[..], &lambda[..]].concat();
        let input = DMatrix::from_fn(4, 2, |i, j| {
            Complex64::from(f64::from(u8::from(i / 2 == j)))
        });
        let output = DMatrix::from_fn(2, 4, |i, j| {
            if i != j / 2 {
                return Complex64::ZERO;
            }
            c[j % 2] * if i == 0 { 1.0 } else { 0.5 }
        });
        let direct = DMatrix::from_row_slice(2, 2, &[0.5, 0.0, 0.0, 0.25]);
        let several = DiagonalSystem::new(time, twice, input, output, direct).unwrap();
        for realisation in REALISATIONS {
            let one = hinf_norm(single, realisation).unwrap();
            let two = hinf_norm(several.stable().unwrap(), realisation).unwrap();
            assert!(
                (two.value / one.value - 1.0).abs() < 1e-9,
                "{one:?} {two:?}"
            );
            assert!(
                (two.frequency - one.frequency).abs() < 1e-9,
                "{one:?} {two:?}"
            );
        }
    }
}

#[test]
fn errors_of_truncation_and_residualisation_lie_within_their_bounds() {
    let mut count = 0;
    for value in systems() {
        let name = value["name"].as_str().unwrap();
        for (time, system) in both_times(&value) {
            let full = system.stable().unwrap();
            let size = hinf_norm(full, Realisation::Real).unwrap().value;
            let balanced = balance(full, Realisation::Real).unwrap();
            let resting = balance_for_dc(full, Realisation::Real).unwrap();
            // Frequencies are known to some ulps, and peaks to that part of their decay.
            let ratio = |z: &Complex64| z.norm() / -z.re;
            let formed = 30.0 * f64::EPSILON;
            let formed = formed * system.exponents().iter().map(ratio).fold(0.0, f64::max);
            for order in some_orders(balanced.hankel().numerical_rank()) {
                let place = format!("{name} {time} {order}");
                let cut = balanced.truncate(order).unwrap();
                let rest = resting.residualise(order).unwrap();
                for (reduced, hankel) in [(&cut, balanced.hankel()), (&rest, resting.hankel())] {
                    // Directions of close values are known to rounding over their distance.
                    let sigma = |k: usize| hankel.values().get(k).copied().unwrap_or(0.0);
                    let distance = match order {
                        0 => f64::INFINITY,
                        _ => (sigma(order - 1) - sigma(order)) / sigma(0),
                    };
                    let mixed = 1e-16 / distance;
                    let slack = (1e-12 * reduced.condition + formed + mixed) * size;
                    let small = reduced.system.stable().unwrap();
                    let error = hinf_error(full, small, Realisation::Real).unwrap();
                    assert!(
                        error.value <= reduced.error_bound + slack,
                        "{place}: {error:?} {:e} {:e} {size:e}",
                        reduced.error_bound,
                        reduced.condition
                    );
                    count += 1;
                }
                let small = cut.system.stable().unwrap();
                let error = hinf_error(full, small, Realisation::Real).unwrap();
                let sigma = balanced.hankel().values();
                let next = sigma.get(cut.order).copied().unwrap_or(0.0);
                let slack = (1e-12 * cut.condition + formed) * size;
                assert!(next <= error.upper + slack, "{place}: {next:e} {error:?}");
            }
        }
    }
    println!("{count} reductions");
}

#[test]
fn h2_refinement_never_loses_to_truncation_and_mostly_ends_at_a_stationary_point() {
    let (mut runs, mut converged, mut gains) = (0, 0, Vec::new());
    for value in systems() {
        let name = value["name"].as_str().unwrap();
        // Poles on the axis, or many turns or decades within a step, leave no digits to descend by.
        if ["near_axis", "aliased", "huge_step", "scaled"].contains(&name) {
            continue;
        }
        for (time, system) in both_times(&value) {
            let full = system.stable().unwrap();
            let norm = h2_norm(full).unwrap();
            let states = hankel_values(full, Realisation::Real)
                .unwrap()
                .numerical_rank()
                / 2;
            if system.order() > 12 || states == 0 {
                continue;
            }
            let (refined, start) = h2_optimal(full, states).unwrap();
            let place = format!("{name} {time} {states}");
            let before = h2_error(full, start.system.stable().unwrap()).unwrap();
            assert_eq!(refined.error_before, before, "{place}");
            let found = h2_error(full, refined.system.stable().unwrap()).unwrap();
            assert_eq!(refined.error, found, "{place}");
            assert!(found <= before, "{place}");
            assert_eq!(refined.system.feedthrough(), system.feedthrough());
            runs += 1;
            converged += usize::from(refined.converged);
            if before > 1e-6 * norm {
                gains.push(found / before);
            }
            println!("{place}: {:.4}, {} steps", found / before, refined.steps);
        }
    }
    gains.sort_by(f64::total_cmp);
    let median = gains[gains.len() / 2];
    println!("{runs} runs, {converged} converged, error/before: median {median:.4}");
    assert!(
        runs > 10 && converged * 4 >= runs * 3,
        "{converged} of {runs}"
    );
    assert!(median < 0.99, "{median}");
}
