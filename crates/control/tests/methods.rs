//! Every way of reducing a system, on every reference system: errors, bounds, published numbers.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test stops at the first surprise and may show its figures"
)]

#[path = "../../../tests/common/mod.rs"]
mod common;
#[path = "../../../tests/common/systems.rs"]
mod systems;

use common::{here, json, reals, worst_relative};
use hankelite_control::{
    Balanced, ControlError, DiagonalSystem, ModalScore, Realisation, StableSystem, Time, balance,
    balance_for_dc, balance_over_horizon, dc_gain, h2_error, h2_norm, h2_optimal, h2_refine,
    hankel_values, hinf_error, hinf_norm, modal_scores, modal_truncation, reduce_over_horizon,
    zoh_gain,
};
use num_complex::Complex64;
use systems::{complexes, own_systems, shared_systems};

const REALISATIONS: [Realisation; 2] = [Realisation::Real, Realisation::Complex];

/// What part of the norm the error of a truncation is known to in double precision. The frequency
/// of a pole at -1e-8 + 5i is known to some ulps of 5, each 1e-7 of its decay, and a peak that stands
/// so far beside another leaves that part of its gain.
fn formed_to(name: &str) -> f64 {
    match name {
        "nearaxis8" | "near_axis" => 3e-6,
        "wide8" | "wide16" => 1e-7,
        _ => 1e-9,
    }
}

/// A number of the file, written as a string.
fn number(value: &serde_json::Value) -> Option<f64> {
    value.as_str().map(|text| text.parse().unwrap())
}

#[test]
fn h_infinity_norms_match_the_shared_references() {
    let mut worst = 0.0_f64;
    for reference in shared_systems() {
        let (name, value) = (&reference.name, &reference.value);
        for (time, system) in reference.both_times() {
            for (key, realisation) in [
                ("hinf_norm_complex", Realisation::Complex),
                ("hinf_norm_real_part", Realisation::Real),
            ] {
                let Some(expected) = value[time].get(key).and_then(|x| number(&x["value"])) else {
                    continue;
                };
                let found = hinf_norm(system.stable().unwrap(), realisation).unwrap();
                let error = (found.value / expected - 1.0).abs();
                worst = worst.max(error);
                let gap = found.upper / found.value - 1.0;
                assert!(
                    error < 1e-9,
                    "{name} {time} {key}: {} {expected}",
                    found.value
                );
                assert!(
                    (0.0..2e-9).contains(&gap),
                    "{name} {time} {key}: gap {gap:e}"
                );
            }
        }
    }
    println!("worst relative difference {worst:e}");
}

#[test]
fn the_lightly_damped_peak_of_slicot_ab13dd_is_found() {
    // Blocks [0 1; -k -d] with B = (1, 0), C = (1, 0): (s + d)/(s² + d s + k).
    let (mut poles, mut residues) = (Vec::new(), Vec::new());
    for (k, d) in [(0.5, 2e-4), (1.0, 2e-5), (2.0, 2e-6)] {
        let pole = Complex64::new(-d / 2.0, f64::sqrt(k - d * d / 4.0));
        poles.push(pole);
        residues.push(2.0 * (pole + d) / (2.0 * pole + d));
    }
    let system = DiagonalSystem::siso(Time::Continuous, poles, &residues, 0.0).unwrap();
    let found = hinf_norm(system.stable().unwrap(), Realisation::Real).unwrap();
    println!("{found:?}");
    assert!((found.value / 0.500_000_000_1e6 - 1.0).abs() < 1e-9);
    assert!((found.frequency - 2.0_f64.sqrt()).abs() < 1e-9);
    assert!(found.upper / found.value < 1.0 + 2e-9);
}

/// σ_{r+1} ≤ error ≤ 2 Σ of the distinct tail, for the realisation that was balanced.
fn check_bracket(name: &str, system: &DiagonalSystem, realisation: Realisation, orders: &[usize]) {
    let full = system.stable().unwrap();
    let balanced = balance(full, realisation).unwrap();
    let sigma = balanced.hankel();
    let size = hinf_norm(full, realisation).unwrap().value;
    let slack = formed_to(name) * size;
    for &order in orders {
        let Ok(reduced) = balanced.truncate(order) else {
            // At a tie the truncated matrix can be defective.
            assert!(sigma.tie_at(order), "{name} {order}");
            continue;
        };
        let norm = hinf_error(full, reduced.system.stable().unwrap(), realisation).unwrap();
        let next = sigma.values().get(reduced.order).copied().unwrap_or(0.0);
        let place = format!("{name} {:?} {realisation:?} {order}", system.time());
        assert!(norm.value <= norm.upper, "{place}");
        assert!(next <= norm.upper + slack, "{place}: {next:e} {norm:?}");
        let bound = sigma.truncation_bound(reduced.order);
        assert!(
            norm.value <= bound + slack,
            "{place}: {bound:e} {norm:?} {size:e}"
        );
        if reduced.order == order {
            assert_eq!(reduced.error_bound, bound, "{place}");
        }
    }
}

#[test]
fn every_truncation_error_lies_between_its_bounds() {
    let mut count = 0;
    for reference in own_systems().into_iter().chain(shared_systems()) {
        for (_, system) in reference.both_times() {
            let n = system.order();
            for realisation in REALISATIONS {
                let most = if realisation == Realisation::Real {
                    2 * n
                } else {
                    n
                };
                let stride = if n > 16 { n / 8 } else { 1 };
                let orders: Vec<usize> = (0..=most).step_by(stride).collect();
                if n <= 64 {
                    check_bracket(&reference.name, &system, realisation, &orders);
                    count += orders.len();
                }
            }
        }
    }
    println!("{count} reductions");
}

#[test]
fn h_infinity_errors_match_the_shared_references() {
    let mut worst = 0.0_f64;
    for reference in shared_systems() {
        for (time, system) in reference.both_times() {
            let full = system.stable().unwrap();
            let balanced = balance(full, Realisation::Complex).unwrap();
            let size = hinf_norm(full, Realisation::Complex).unwrap().value;
            for cut in reference.value[time]["truncations"].as_array().unwrap() {
                let order = cut["r"].as_u64().unwrap() as usize;
                for (key, realisation) in [
                    ("hinf_error_complex", Realisation::Complex),
                    ("hinf_error_real_part", Realisation::Real),
                ] {
                    let Some(expected) = cut.get(key).and_then(|x| number(&x["value"])) else {
                        continue;
                    };
                    let reduced = balanced.truncate(order).unwrap();
                    let reduced = reduced.system.stable().unwrap();
                    let found = hinf_error(full, reduced, realisation).unwrap();
                    let error = (found.value - expected).abs() / size;
                    let allowed = formed_to(&reference.name);
                    let place = format!("{} {time} {key} {order}", reference.name);
                    if reference.name != "nearaxis8" {
                        worst = worst.max(error);
                    }
                    assert!(error < allowed, "{place}: {error:e} {found:?} {expected}");
                }
            }
        }
    }
    println!("worst difference {worst:e} of the full norm");
}

#[test]
fn residualisation_keeps_the_gain_at_rest_within_the_error_bound() {
    let (mut worst, mut count) = (0.0_f64, 0);
    for reference in own_systems().into_iter().chain(shared_systems()) {
        for (time, system) in reference.both_times() {
            let full = system.stable().unwrap();
            let gain = dc_gain(full)[(0, 0)];
            for realisation in REALISATIONS {
                if system.order() > 16 {
                    continue;
                }
                let balanced = balance_for_dc(full, realisation).unwrap();
                let size = hinf_norm(full, realisation).unwrap().value;
                for order in 0..=balanced.hankel().numerical_rank() {
                    let place = format!("{} {time} {realisation:?} {order}", reference.name);
                    let Ok(reduced) = balanced.residualise(order) else {
                        assert!(balanced.hankel().tie_at(order), "{place}");
                        continue;
                    };
                    let small = reduced.system.stable().unwrap();
                    let error = (dc_gain(small)[(0, 0)] - gain).abs() / size;
                    worst = worst.max(error);
                    assert!(error < 1e-13, "{place}: {error:e}");
                    // Of a complex feedthrough only the real part is kept: the real output counts.
                    let found = hinf_error(full, small, Realisation::Real).unwrap().value;
                    let bound = reduced.error_bound + formed_to(&reference.name) * size;
                    assert!(found <= bound, "{place}: {found:e} {bound:e}");
                    count += 1;
                }
            }
        }
    }
    println!("{count} residualisations, worst gain error {worst:e} of the norm");
}

/// The real system with the transfer function numerator/denominator, its poles by Durand and
/// Kerner's iteration.
fn from_fraction(numerator: &[f64], denominator: &[f64]) -> DiagonalSystem {
    let at = |p: &[f64], s: Complex64| p.iter().fold(Complex64::ZERO, |sum, &c| sum * s + c);
    let degree = denominator.len() - 1;
    let mut roots: Vec<Complex64> = (0..degree)
        .map(|k| Complex64::new(0.4, 0.9).powi(k as i32))
        .collect();
    for _ in 0..500 {
        for i in 0..degree {
            let others = (0..degree).filter(|&j| j != i).map(|j| roots[i] - roots[j]);
            let product: Complex64 = others.product();
            let shift = at(denominator, roots[i]) / (product * denominator[0]);
            roots[i] -= shift;
        }
    }
    let (mut poles, mut residues) = (Vec::new(), Vec::new());
    for i in 0..degree {
        let others = (0..degree).filter(|&j| j != i).map(|j| roots[i] - roots[j]);
        let slope: Complex64 = others.product::<Complex64>() * denominator[0];
        let residue = at(numerator, roots[i]) / slope;
        if roots[i].im.abs() < 1e-10 {
            poles.push(Complex64::from(roots[i].re));
            residues.push(Complex64::from(residue.re));
        } else if roots[i].im > 0.0 {
            poles.push(roots[i]);
            residues.push(2.0 * residue);
        }
    }
    DiagonalSystem::siso(Time::Continuous, poles, &residues, 0.0).unwrap()
}

/// C A^k B for k = 0 to 4.
fn markov(system: &DiagonalSystem) -> Vec<f64> {
    let residues = system.residues().unwrap();
    let modes = || system.exponents().iter().zip(&residues);
    (0..5)
        .map(|k| modes().map(|(z, r)| (r * z.powi(k)).re).sum())
        .collect()
}

/// C A^k B of a symmetric 2 × 2 system with C = Bᵀ.
fn symmetric_markov(a: [f64; 3], b: [f64; 2]) -> Vec<f64> {
    let mut x = b;
    (0..5)
        .map(|_| {
            let value = b[0] * x[0] + b[1] * x[1];
            x = [a[0] * x[0] + a[1] * x[1], a[1] * x[0] + a[2] * x[1]];
            value
        })
        .collect()
}

#[test]
fn python_controls_balred_truncates_and_matches_dc_to_the_same_system() {
    // control/tests/modelsimp_test.py, testBalredTruncate and testBalredMatchDC: C₃ is .7031.
    let system = from_fraction(&[1.0, 11.0, 44.9984, 32.0], &[1.0, 15.0, 60.0, 200.0, 60.0]);
    let full = system.stable().unwrap();
    let cut = balance(full, Realisation::Real)
        .unwrap()
        .truncate(2)
        .unwrap();
    let expected = symmetric_markov([-1.958, -1.194, -0.8344], [0.9057, 0.4068]);
    for (found, expected) in markov(&cut.system).iter().zip(&expected) {
        assert!((found / expected - 1.0).abs() < 3e-3, "{found} {expected}");
    }
    let rest = balance_for_dc(full, Realisation::Real)
        .unwrap()
        .residualise(2)
        .unwrap();
    let feedthrough = rest.system.feedthrough()[(0, 0)];
    assert!((feedthrough + 0.083_839_02).abs() < 1e-8, "{feedthrough}");
    let a = [-4.430_947_73, -4.552_329_04, -5.361_952_06];
    let expected = symmetric_markov(a, [1.362_356_73, 1.031_143_88]);
    for (found, expected) in markov(&rest.system).iter().zip(&expected) {
        assert!((found / expected - 1.0).abs() < 1e-7, "{found} {expected}");
    }
}

#[test]
fn modal_truncation_errs_by_at_most_the_gains_of_what_goes() {
    for reference in own_systems() {
        for (time, system) in reference.both_times() {
            let full = system.stable().unwrap();
            let gains = modal_scores(full, ModalScore::Hinf).unwrap();
            for score in [ModalScore::Hinf, ModalScore::H2] {
                for order in 0..=system.order() {
                    let reduced = modal_truncation(full, order, score).unwrap();
                    let small = reduced.stable().unwrap();
                    let kept: f64 = modal_scores(small, ModalScore::Hinf).unwrap().iter().sum();
                    let all: f64 = gains.iter().sum();
                    let error = hinf_error(full, small, Realisation::Real).unwrap().value;
                    assert!(
                        error <= all - kept + 1e-12 * all,
                        "{} {time}",
                        reference.name
                    );
                }
            }
        }
    }
}

/// The error's transfer function Σ e_l w^l and its derivative Σ l e_l w^l at w = e^{z}, for real
/// output; in continuous time ∫ e(t) e^{zt} and ∫ t e(t) e^{zt}.
fn at_mirror(system: &DiagonalSystem, z: Complex64) -> [Complex64; 2] {
    let modes = system
        .scaled_exponents()
        .into_iter()
        .zip(system.residues().unwrap());
    let mut sums = [Complex64::ZERO; 2];
    for (pole, residue) in modes {
        for (pole, residue) in [(pole, residue), (pole.conj(), residue.conj())] {
            let s = pole + z;
            let (value, slope) = match system.time() {
                Time::Continuous => (-s.inv(), (s * s).inv()),
                Time::Discrete { .. } => {
                    let gap = -s * zoh_gain(s, 1.0);
                    (gap.inv(), s.exp() / (gap * gap))
                }
            };
            sums[0] += 0.5 * residue * value;
            sums[1] += 0.5 * residue * slope;
        }
    }
    sums
}

#[test]
fn h2_refinement_never_loses_to_balanced_truncation_and_interpolates_at_the_mirror_images() {
    let (mut runs, mut converged, mut gains) = (0, 0, Vec::new());
    for reference in own_systems() {
        for (time, system) in reference.both_times() {
            let full = system.stable().unwrap();
            let norm = h2_norm(full).unwrap();
            for states in 1..2 * system.order() {
                let place = format!("{} {time} {states}", reference.name);
                let (refined, start) = h2_optimal(full, states).unwrap();
                let small = refined.system.stable().unwrap();
                let before = h2_error(full, start.system.stable().unwrap()).unwrap();
                assert_eq!(refined.error_before, before, "{place}");
                assert!(refined.error <= before, "{place}");
                assert_eq!(h2_error(full, small).unwrap(), refined.error, "{place}");
                runs += 1;
                if !refined.converged {
                    println!(
                        "{place}: slope {:.1e} after {}, error {:.1e}, before {:.1e}",
                        refined.slope,
                        refined.steps,
                        refined.error / norm,
                        before / norm
                    );
                    continue;
                }
                converged += 1;
                if before > 1e-6 * norm {
                    gains.push(refined.error / before);
                }
                if refined.error < 1e-6 * norm {
                    continue;
                }
                let residues = refined.system.residues().unwrap();
                for (z, residue) in refined.system.scaled_exponents().into_iter().zip(residues) {
                    let there = at_mirror(&system, z);
                    let small = at_mirror(&refined.system, z);
                    let decay = -2.0 * z.re;
                    let width = if system.time() == Time::Continuous {
                        decay
                    } else {
                        -(-decay).exp_m1()
                    };
                    // ‖e^{zl}‖ = width^{-1/2}, ‖l e^{zl}‖ ≈ width^{-3/2}.
                    let value = (there[0] - small[0]).norm() * width.sqrt() / refined.error;
                    let slope = (there[1] - small[1]).norm() * width.powf(1.5) / refined.error;
                    // A real pole moves along the axis only; one without residue need not move.
                    if z.im != 0.0 && residue.norm() > 1e-3 * width.sqrt() * norm {
                        assert!(value < 1e-6 && slope < 1e-5, "{place}: {value:e} {slope:e}");
                    }
                }
            }
        }
    }
    gains.sort_by(f64::total_cmp);
    let median = gains[gains.len() / 2];
    println!(
        "{runs} runs, {converged} converged, error/before: median {median:.4}, least {:.4}",
        gains[0]
    );
    // The rest: errors at rounding level, poles within 1e-8 of the axis, and pairs whose
    // imaginary part runs to zero because they want to become two real poles.
    assert!(converged * 20 >= runs * 17, "{converged} of {runs}");
}

#[test]
fn h2_refinement_accepts_any_stable_start() {
    let reference = &own_systems()[3];
    let [_, (_, system)] = reference.both_times();
    let full = system.stable().unwrap();
    let modal = modal_truncation(full, 3, ModalScore::H2).unwrap();
    let refined = h2_refine(full, modal.stable().unwrap()).unwrap();
    println!("{} -> {}", refined.error_before, refined.error);
    assert!(refined.converged && refined.error < refined.error_before);
}

fn unstable_systems() -> Vec<(serde_json::Value, DiagonalSystem, usize)> {
    let names = ["softmax_unstable4", "softmax_unstable6"];
    let files = names
        .iter()
        .map(|name| here(&format!("reference/systems/{name}.json")));
    files
        .map(|path| {
            let value = json(&path);
            let lambda = complexes(&value["lambda"]);
            let forward = &value["residues_forward"];
            let (re, im) = (reals(&forward["re"]), reals(&forward["im"]));
            let residues: Vec<Complex64> = re
                .into_iter()
                .zip(im)
                .map(|(re, im)| Complex64::new(re, im))
                .collect();
            let time = Time::Discrete {
                step: value["Delta"].as_f64().unwrap(),
            };
            let system = DiagonalSystem::siso(time, lambda, &residues, 0.0).unwrap();
            let length = value["L"].as_u64().unwrap() as usize;
            (value, system, length)
        })
        .collect()
}

#[test]
fn finite_horizon_values_match_the_shared_references() {
    for (value, system, length) in unstable_systems() {
        for (key, horizon) in [
            ("hsv_horizon_L", length),
            ("hsv_horizon_L_over_2", length / 2),
        ] {
            let expected = reals(&value[key]["f64"]);
            let balanced = balance_over_horizon(&system, horizon, Realisation::Complex).unwrap();
            let error = worst_relative(balanced.hankel().values(), &expected);
            println!(
                "{} {key}: {error:e}, clipped {:e}",
                value["name"],
                balanced.clipped()
            );
            assert!(error < 1e-10, "{} {key}: {error:e}", value["name"]);
        }
    }
}

#[test]
fn over_a_long_horizon_finite_values_are_those_of_the_infinite_one() {
    let reference = &own_systems()[2];
    let [_, (_, system)] = reference.both_times();
    for realisation in REALISATIONS {
        let sigma = balance(system.stable().unwrap(), realisation).unwrap();
        let finite = balance_over_horizon(&system, 4000, realisation).unwrap();
        let pairs = sigma.hankel().values().iter().zip(finite.hankel().values());
        for (infinite, finite) in pairs {
            let error = (infinite - finite).abs() / sigma.hankel().values()[0];
            assert!(error < 1e-12, "{infinite} {finite}");
        }
    }
}

#[test]
fn unstable_kernels_reduce_with_falling_errors() {
    for (value, system, length) in unstable_systems() {
        let full = system.kernel(length).unwrap();
        let mut last = f64::INFINITY;
        for order in 1..=system.order() {
            let reduced = reduce_over_horizon(&system, order, length).unwrap();
            let ratio = reduced.kernel_error / reduced.kernel_norm;
            println!(
                "{} {order}: {:?} {ratio:.3e}, {} unstable",
                value["name"], reduced.method, reduced.unstable
            );
            let kernel = reduced.system.kernel(length).unwrap();
            let squares = full.iter().zip(&kernel).map(|(k, r)| (k - r) * (k - r));
            assert_eq!(squares.sum::<f64>().sqrt(), reduced.kernel_error);
            assert!(ratio < 1.0 && reduced.kernel_error <= 1.2 * last);
            last = reduced.kernel_error;
        }
        assert_eq!(last, 0.0);
    }
}

/// How a Hankel-norm approximation came out: its excess over the optimum, or that it was refused.
fn check_hankel_norm(
    name: &str,
    full: StableSystem<'_>,
    balanced: &Balanced,
    order: usize,
) -> Option<f64> {
    let sigma = balanced.hankel().values();
    // Weights over nine decades, poles beside the axis: the balanced matrices are known to 1e-16 of
    // the largest entry.
    let hard = name.starts_with("near") || name.starts_with("wide");
    let place = format!("{name} {:?} {order}", full.system().time());
    let reduced = match balanced.hankel_norm(full, order) {
        Ok(reduced) => reduced,
        Err(error @ ControlError::HankelNorm { .. }) => {
            println!("{place}: {error}, sigma_1 {:e}", sigma[0]);
            // The formulas divide by the distance to the next values.
            let gap = |k: usize| (sigma[k - 1] - sigma[k]) / sigma[k - 1];
            let close =
                order > 0 && gap(order) < 1e-4 || order + 1 < sigma.len() && gap(order + 1) < 1e-4;
            let small = sigma[order] < 1e-7 * sigma[0];
            assert!(hard || close || small, "{place}");
            return None;
        }
        Err(error) => panic!("{place}: {error}"),
    };
    assert!(reduced.order <= order, "{place}");
    let small = reduced.system.stable().unwrap();
    let error = error_of(full, small);
    let found = hankel_values(error.stable().unwrap(), balanced.realisation()).unwrap();
    let found = found.values()[0];
    let next = sigma[reduced.order];
    // No system of this order does better.
    assert!(
        found > next * (1.0 - 1e-9) - 1e-13 * sigma[0],
        "{place}: {found}"
    );
    if order.is_multiple_of(3) {
        let norm = hinf_error(full, small, Realisation::Real).unwrap().value;
        let slack = formed_to(name) * 2.0 * sigma.iter().sum::<f64>();
        assert!(norm <= reduced.error_bound + slack, "{place}: {norm:e}");
    }
    if next < 1e-3 * sigma[0] {
        return Some(0.0);
    }
    let slack = if hard {
        1e-6 * next + 1e-9 * sigma[0]
    } else {
        0.0
    };
    assert!(
        found < next * (1.0 + 1e-8) + slack,
        "{place}: {found:e} {next:e}"
    );
    Some(if hard { 0.0 } else { found / next - 1.0 })
}

#[test]
fn hankel_norm_approximations_reach_the_least_error_or_say_that_they_do_not() {
    let (mut worst, mut count, mut refused) = (0.0_f64, 0, 0);
    for reference in own_systems().into_iter().chain(shared_systems()) {
        for (_, system) in reference.both_times() {
            if system.order() > 8 {
                continue;
            }
            let full = system.stable().unwrap();
            for realisation in REALISATIONS {
                let balanced = balance(full, realisation).unwrap();
                for order in 0..balanced.hankel().numerical_rank() {
                    match check_hankel_norm(&reference.name, full, &balanced, order) {
                        Some(excess) => worst = worst.max(excess),
                        None => refused += 1,
                    }
                    count += 1;
                }
            }
        }
    }
    println!("{count} approximations, {refused} refused, worst excess {worst:e}");
    assert!(refused * 5 <= count, "{refused} of {count} refused");
}

/// The modes of both systems, those of the second with the other sign.
fn error_of(full: StableSystem<'_>, reduced: StableSystem<'_>) -> DiagonalSystem {
    let (full, reduced) = (full.system(), reduced.system());
    let exponents = [full.exponents(), reduced.exponents()].concat();
    let mut residues = full.residues().unwrap();
    residues.extend(reduced.residues().unwrap().iter().map(|residue| -residue));
    DiagonalSystem::siso(full.time(), exponents, &residues, 0.0).unwrap()
}

#[test]
fn the_hankel_norm_approximation_of_an_all_pass_system_is_silence() {
    // Π (1 − ā z)/(z − a): every value is one, so every order below the full gives one.
    let poles = [0.5, -0.3, 0.8];
    let residue = |i: usize| {
        let others = (0..3).filter(|&j| j != i);
        let rest: f64 = others
            .map(|j| (1.0 - poles[j] * poles[i]) / (poles[i] - poles[j]))
            .product();
        Complex64::from((1.0 - poles[i] * poles[i]) * rest)
    };
    let exponents = poles.map(|a| Complex64::new(a, 0.0).ln()).to_vec();
    let residues: Vec<Complex64> = (0..3).map(residue).collect();
    let time = Time::Discrete { step: 1.0 };
    let system = DiagonalSystem::siso(time, exponents, &residues, 0.0).unwrap();
    let full = system.stable().unwrap();
    let balanced = balance(full, Realisation::Complex).unwrap();
    let reduced = balanced.hankel_norm(full, 2).unwrap();
    assert!(reduced.tie && reduced.order == 0, "{reduced:?}");
}

#[test]
fn a_truncation_has_as_many_modes_as_fit_and_not_one_fewer() {
    for reference in own_systems() {
        for (time, system) in reference.both_times() {
            let balanced = balance(system.stable().unwrap(), Realisation::Real).unwrap();
            let free = balanced.truncate(5).unwrap();
            let modes = free.system.order();
            let exact = balanced.truncate_within(5, modes).unwrap();
            assert_eq!(exact.system, free.system, "{} {time}", reference.name);
            if modes > 1 {
                let fewer = balanced.truncate_within(5, modes - 1).unwrap();
                assert!(fewer.system.order() < modes && fewer.order < free.order);
            }
        }
    }
}

/// A pair that hardly decays, all but alone: what is left of it decays as it did.
#[test]
fn residualisation_keeps_a_decay_next_to_the_circle() {
    let time = Time::Discrete { step: 1.0 };
    let exponents = [(-1e-12, 1.0), (-0.5, 0.2), (-1.5, 2.5)];
    let exponents = exponents.map(|(re, im)| Complex64::new(re, im)).to_vec();
    let residues = [1.0, 1e-3, 1e-3].map(Complex64::from);
    let system = DiagonalSystem::siso(time, exponents, &residues, 0.0).unwrap();
    for (realisation, order) in [(Realisation::Real, 2), (Realisation::Complex, 1)] {
        let balanced = balance_for_dc(system.stable().unwrap(), realisation).unwrap();
        let reduced = balanced.residualise(order).unwrap();
        assert_eq!(reduced.system.order(), 1);
        let decay = -reduced.system.exponents()[0].re;
        assert!(
            (decay / 1e-12 - 1.0).abs() < 1e-4,
            "{realisation:?}: {decay:e}"
        );
    }
}
