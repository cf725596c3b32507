//! Channels reduced for their inputs: stability, exact errors, order of the errors, the white
//! limit, refinement.

use hankelite::advanced::CalibratedLayer;
use hankelite::compress::{CompressError, LayerRecord};
use hankelite::model::{Block, BlockParts, Nonlinearity};
use hankelite_control::{
    ControlError, DiagonalSystem, InputStatistics, InputWeight, Realisation, Refinement,
    SystemError, Time, balance, balance_weighted, lags_of, weighted_error, weighted_norm,
    weighted_refine,
};
use nalgebra::DMatrix;
use num_complex::Complex64;
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

const REFINEMENTS: [Refinement; 3] = [Refinement::None, Refinement::Residues, Refinement::Full];

fn system(step: f64, modes: &[(f64, f64, f64, f64)], feedthrough: f64) -> DiagonalSystem {
    let exponents = modes.iter().map(|m| Complex64::new(m.0, m.1)).collect();
    let residues: Vec<_> = modes.iter().map(|m| Complex64::new(m.2, m.3)).collect();
    DiagonalSystem::siso(Time::Discrete { step }, exponents, &residues, feedthrough).unwrap()
}

/// Poles as S4D starts them, with random decays and residues.
fn random_system(modes: usize, seed: u64) -> DiagonalSystem {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let modes: Vec<_> = (0..modes)
        .map(|n| {
            let mut uniform = |low: f64, high: f64| random.random_range(low..high);
            (
                -uniform(0.1, 2.0),
                n as f64 * uniform(1.0, 4.0),
                uniform(-1.0, 1.0),
                uniform(-1.0, 1.0),
            )
        })
        .collect();
    system(0.05, &modes, 0.3)
}

/// Systems that are hard in one way each.
fn hard_systems() -> Vec<(&'static str, DiagonalSystem)> {
    let twice = [(-0.3, 2.0, 0.5, 0.2), (-0.3, 2.0, -0.1, 0.4)];
    let close = [(-0.3, 2.0, 0.5, 0.2), (-0.3 - 1e-9, 2.0, -0.5, 0.4)];
    let real = [
        (-0.5, 0.0, 1.0, 0.7),
        (-2.0, 0.0, -0.4, 0.0),
        (-9.0, 0.0, 2.0, 0.0),
    ];
    let mixed = [
        (-0.5, 0.0, 1.0, 0.7),
        (-0.2, 3.0, 1.0, 0.5),
        (-4.0, -8.0, 1.0, 0.0),
    ];
    let axis = [
        (-1e-9, 0.7, 1.0, 0.0),
        (-1e-14, 0.0, 1.0, 0.0),
        (-0.5, 2.0, 0.3, 0.1),
    ];
    let silent = [
        (-0.5, 1.0, 0.0, 0.0),
        (-0.3, 2.0, 0.0, 0.0),
        (-0.1, 0.0, 0.0, 0.0),
    ];
    vec![
        ("random", random_system(6, 3)),
        ("one pair", system(0.1, &[(-0.4, 2.0, 1.0, 0.5)], 0.0)),
        ("one real pole", system(0.1, &[(-0.4, 0.0, 1.0, 0.5)], 0.0)),
        (
            "repeated",
            system(0.1, &[&twice[..], &twice[..], &mixed[..]].concat(), 0.1),
        ),
        ("nearly repeated", system(0.1, &close, 0.0)),
        ("real poles", system(0.1, &real, 0.0)),
        ("real and pairs", system(0.1, &mixed, -0.2)),
        ("next to the axis", system(1.0, &axis, 0.0)),
        ("tiny step", system(1e-9, &mixed, 0.0)),
        ("huge step", system(1e6, &mixed, 0.5)),
        ("silent", system(0.1, &silent, 0.5)),
    ]
}

/// Sequences in rows: noise, coloured noise, at rest, one frequency, one pulse.
fn inputs(length: usize) -> Vec<(&'static str, DMatrix<f64>)> {
    let mut random = ChaCha8Rng::seed_from_u64(11);
    let noise = DMatrix::from_fn(3, length, |_, _| random.random_range(-1.0..1.0));
    let mut coloured = noise.clone();
    for t in 1..length {
        for n in 0..3 {
            coloured[(n, t)] += 0.9 * coloured[(n, t - 1)] + 0.05;
        }
    }
    let time = |t: usize| t as f64;
    vec![
        ("noise", noise),
        ("coloured", coloured),
        ("constant", DMatrix::from_element(1, length, 0.7)),
        (
            "sine",
            DMatrix::from_fn(1, length, |_, t| (0.25 * time(t)).sin()),
        ),
        (
            "pulse",
            DMatrix::from_fn(1, length, |_, t| f64::from(u8::from(t == 2))),
        ),
        (
            "late pulse",
            DMatrix::from_fn(1, length, |_, t| f64::from(u8::from(t + 1 == length))),
        ),
        (
            "faint",
            DMatrix::from_fn(1, length, |_, t| 1e-160 * (0.3 * time(t)).cos()),
        ),
    ]
}

/// Both metrics of sequences, and white noise.
fn weights(signal: &DMatrix<f64>) -> Vec<(&'static str, InputWeight)> {
    let moments = InputWeight::moments(signal).map(|weight| ("moments", weight));
    let spectrum = InputWeight::of_sequences(signal).map(|weight| ("spectrum", weight));
    let white = ("white", InputWeight::white(signal.ncols()));
    moments.into_iter().chain(spectrum).chain([white]).collect()
}

fn block(system: &DiagonalSystem) -> Block {
    Block::new(BlockParts {
        name: "layer".into(),
        systems: vec![system.clone()],
        backward: Vec::new(),
        backward_from: 1,
        holds_feedthrough: true,
        class: None,
        activation: Nonlinearity::Gelu,
        output: None,
        norm: None,
    })
    .unwrap()
}

fn reduced(
    system: &DiagonalSystem,
    weight: Option<&InputWeight>,
    order: usize,
    refinement: Refinement,
) -> (DiagonalSystem, LayerRecord) {
    let mut block = block(system);
    let layer = CalibratedLayer::new(&block, |_| weight.cloned()).unwrap();
    let record = layer.reduce(&mut block, &[order], refinement, 50).unwrap();
    (block.systems()[0].clone(), record)
}

fn assert_inside(system: &DiagonalSystem, place: &str) {
    for (lambda, pole) in system.exponents().iter().zip(system.poles()) {
        assert!(lambda.re < 0.0 && pole.norm() <= 1.0, "{place}: {lambda}");
    }
}

#[test]
fn every_reduced_pole_is_inside_the_unit_circle_at_every_order() {
    for length in [1, 2, 5, 60] {
        for (input, signal) in inputs(length) {
            for (metric, weight) in weights(&signal) {
                for (name, full) in hard_systems() {
                    let place = format!("{name}, {input}, {metric}, {length} steps");
                    let mut block = block(&full);
                    let layer = CalibratedLayer::new(&block, |_| Some(weight.clone())).unwrap();
                    for order in 1..=full.order() {
                        for refinement in REFINEMENTS {
                            let record = layer.reduce(&mut block, &[order], refinement, length);
                            let record = record.unwrap();
                            let small = &block.systems()[0];
                            let place = format!("{place}, order {order}, {refinement:?}");
                            assert_inside(small, &place);
                            assert!(small.order() <= order, "{place}");
                            assert_eq!(record.channels[0].order, small.order(), "{place}");
                            let signal = record.channels[0].weighted.as_ref().unwrap();
                            assert!(signal.error <= signal.refitted, "{place}");
                            assert!(signal.refitted <= signal.truncated, "{place}");
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn every_cut_of_a_weighted_balancing_is_stable() {
    let (name, signal) = inputs(80).swap_remove(1);
    for seed in 0..12 {
        let full = random_system(8, seed);
        for (metric, weight) in weights(&signal) {
            let balanced = balance_weighted(full.stable().unwrap(), &weight).unwrap();
            for states in 0..=16 {
                let cut = balanced.truncate(states).unwrap();
                assert_inside(&cut.system, &format!("{name} {metric} {seed} {states}"));
                assert!(cut.order <= states && !cut.lowered);
                assert_eq!(cut.error_bound, f64::INFINITY);
            }
        }
    }
}

#[test]
fn only_modes_that_do_not_decay_are_refused() {
    let weight = InputWeight::white(20);
    for growth in [0.0, 0.1] {
        let full = system(0.1, &[(-0.4, 2.0, 1.0, 0.5), (growth, 1.0, 1.0, 0.0)], 0.0);
        let error = CalibratedLayer::new(&block(&full), |_| Some(weight.clone()));
        let error = error.err().unwrap();
        let CompressError::Channel { source, .. } = error else {
            panic!("{error}");
        };
        let ControlError::System(SystemError::Unstable { modes, order: 2 }) = source else {
            panic!("{source}");
        };
        assert_eq!(modes[0].0, 1);
    }
    let mut continuous = Vec::new();
    let zero = [Complex64::ONE];
    continuous.push(Complex64::new(-1.0, 0.0));
    let full = DiagonalSystem::siso(Time::Continuous, continuous, &zero, 0.0).unwrap();
    let error = balance_weighted(full.stable().unwrap(), &weight).unwrap_err();
    assert!(matches!(
        error,
        ControlError::System(SystemError::WrongTime { .. })
    ));
    let error = weighted_refine(&full, full.stable().unwrap(), 1, &weight, Refinement::Full);
    assert!(matches!(
        error,
        Err(ControlError::System(SystemError::WrongTime { .. }))
    ));
}

/// The output by the recurrence.
fn run(system: &DiagonalSystem, input: &[f64]) -> Vec<f64> {
    let d = system.feedthrough()[(0, 0)];
    let mut output: Vec<f64> = input.iter().map(|u| d * u).collect();
    for (pole, residue) in system.poles().into_iter().zip(system.residues().unwrap()) {
        let mut state = Complex64::ZERO;
        for (y, u) in output.iter_mut().zip(input) {
            state = pole * state + u;
            *y += (residue * state).re;
        }
    }
    output
}

/// The mean square difference of two outputs over the steps of the sequences.
fn played(full: &DiagonalSystem, small: &DiagonalSystem, signal: &DMatrix<f64>) -> f64 {
    let mut sum = 0.0;
    for row in signal.row_iter() {
        let input: Vec<f64> = row.iter().copied().collect();
        let outputs = run(full, &input).into_iter().zip(run(small, &input));
        sum += outputs.map(|(a, b)| (a - b) * (a - b)).sum::<f64>();
    }
    sum / signal.len() as f64
}

#[test]
fn the_error_by_moments_is_the_mean_square_error_of_the_outputs() {
    let mut worst = 0.0_f64;
    for (input, signal) in inputs(120).into_iter().take(6) {
        let weight = InputWeight::moments(&signal).unwrap();
        for seed in 0..4 {
            let full = random_system(7, seed);
            for refinement in REFINEMENTS {
                for order in [1, 2, 4] {
                    let (small, record) = reduced(&full, Some(&weight), order, refinement);
                    let direct = played(&full, &small, &signal);
                    let found = weighted_error(&full, &small, &weight).unwrap().powi(2);
                    let norm = weighted_norm(&full, &weight).unwrap().powi(2);
                    // An error of nothing but rounding has no digits of its own.
                    let floor = 1e-10 * direct + 1e-16 * norm;
                    let place = format!("{input} {seed} {refinement:?} {order}");
                    assert!(
                        (found - direct).abs() < floor,
                        "{place}: {found:e} {direct:e}"
                    );
                    if direct > 1e-10 * norm {
                        worst = worst.max((found / direct - 1.0).abs());
                    }
                    let kept = record.channels[0].weighted.as_ref().unwrap();
                    assert!((kept.error.powi(2) - found).abs() < 1e-10 * norm, "{place}");
                }
            }
        }
    }
    assert!(worst < 1e-10, "{worst:e}");
}

/// R(m) by its definition.
fn lags(signal: &DMatrix<f64>) -> Vec<f64> {
    let (sequences, length) = signal.shape();
    let lag = |m: usize| {
        let rows = signal.row_iter();
        let sums = rows.map(|u| (0..length - m).map(|t| u[t] * u[t + m]).sum::<f64>());
        sums.sum::<f64>() / (sequences * length) as f64
    };
    (0..length).map(lag).collect()
}

#[test]
fn the_error_by_spectrum_is_the_toeplitz_form_of_the_autocorrelation() {
    for (input, signal) in inputs(90).into_iter().take(6) {
        let mut lags = lags(&signal);
        let weight = InputWeight::of_sequences(&signal).unwrap();
        // The floor is part of the metric.
        lags[0] *= 1.0 + 1e-6;
        let full = random_system(5, 2);
        for order in [1, 3] {
            let (small, _) = reduced(&full, Some(&weight), order, Refinement::Residues);
            let change = full.feedthrough()[(0, 0)] - small.feedthrough()[(0, 0)];
            let mut d: Vec<f64> = full.kernel(90).unwrap();
            d.iter_mut()
                .zip(small.kernel(90).unwrap())
                .for_each(|(d, k)| *d -= k);
            d[0] += change;
            let pairs = (0..90).flat_map(|i| (0..90).map(move |j| (i, j)));
            let direct: f64 = pairs.map(|(i, j)| d[i] * d[j] * lags[i.abs_diff(j)]).sum();
            let found = weighted_error(&full, &small, &weight).unwrap().powi(2);
            assert!(
                (found - direct).abs() < 1e-10 * direct,
                "{input}: {found:e} {direct:e}"
            );
        }
    }
}

#[test]
fn statistics_and_sequences_give_the_same_spectrum() {
    for (input, signal) in inputs(64).into_iter().take(6) {
        let r = lags(&signal);
        let mean = signal.mean();
        let statistics =
            InputStatistics::new(vec![mean], DMatrix::from_vec(64, 1, r), signal.nrows()).unwrap();
        let (first, second) = (
            statistics.weight(0).unwrap(),
            InputWeight::of_sequences(&signal).unwrap(),
        );
        let full = random_system(4, 9);
        let (a, b) = (
            weighted_norm(&full, &first).unwrap(),
            weighted_norm(&full, &second).unwrap(),
        );
        assert!((a - b).abs() < 1e-9 * b, "{input}: {a:e} {b:e}");
    }
    let silence = DMatrix::zeros(2, 30);
    assert!(InputWeight::moments(&silence).is_none());
    assert!(InputWeight::of_sequences(&silence).is_none());
    for empty in [
        DMatrix::zeros(0, 30),
        DMatrix::zeros(3, 0),
        DMatrix::zeros(0, 0),
    ] {
        assert!(InputWeight::moments(&empty).is_none());
        assert!(InputWeight::of_sequences(&empty).is_none());
    }
    assert!(lags_of(&[], 3).is_empty() && lags_of(&[1.0], 3).is_empty());
}

#[test]
fn a_steeper_curve_never_rises_and_ends_at_nothing() {
    for (input, signal) in inputs(70) {
        for (metric, weight) in weights(&signal) {
            for (name, full) in hard_systems() {
                let block = block(&full);
                let layer = CalibratedLayer::new(&block, |_| Some(weight.clone())).unwrap();
                let curve = layer.curves(&block, Refinement::Full).unwrap().remove(0);
                let place = format!("{name}, {input}, {metric}");
                assert_eq!(curve.orders[0], 1, "{place}");
                assert_eq!(curve.orders.last(), Some(&full.order()), "{place}");
                assert!(curve.orders.is_sorted_by(|a, b| a < b), "{place}");
                assert!(curve.errors.is_sorted_by(|a, b| a >= b), "{place}");
                assert_eq!(curve.errors.last(), Some(&0.0), "{place}");
                // The fit sees moments with a little white noise, a share of 1e-10.
                let power = signal.norm_squared() / signal.len() as f64;
                let kernel: f64 = full.kernel(70).unwrap().iter().map(|k| k * k).sum();
                let output = layer.errors_of(&block).unwrap().output;
                let most = output + 1e-9 * power * kernel;
                assert!(curve.errors[0] <= most, "{place}: no better than silence");
            }
        }
    }
}

#[test]
fn the_full_order_is_the_identity_to_the_bit() {
    let (_, signal) = inputs(50).swap_remove(1);
    for (metric, weight) in weights(&signal) {
        for (name, full) in hard_systems() {
            for refinement in REFINEMENTS {
                for more in [0, 3] {
                    let order = full.order() + more;
                    let (same, record) = reduced(&full, Some(&weight), order, refinement);
                    assert_eq!(same, full, "{name} {metric}");
                    let channel = &record.channels[0];
                    assert_eq!(channel.weighted.as_ref().unwrap().error, 0.0);
                    assert_eq!(channel.notes.len(), usize::from(more > 0));
                }
            }
        }
    }
}

fn kernel_gap(a: &DiagonalSystem, b: &DiagonalSystem, length: usize) -> f64 {
    let (a, b) = (a.kernel(length).unwrap(), b.kernel(length).unwrap());
    let gap: f64 = a.iter().zip(&b).map(|(a, b)| (a - b) * (a - b)).sum();
    let size: f64 = a.iter().map(|a| a * a).sum();
    (gap / size).sqrt()
}

#[test]
fn a_white_weight_is_plain_balanced_truncation() {
    for seed in 0..6 {
        let full = random_system(6, seed);
        let plain = balance(full.stable().unwrap(), Realisation::Real).unwrap();
        let weight = InputWeight::white(40);
        let signal = balance_weighted(full.stable().unwrap(), &weight).unwrap();
        let (plain_values, values) = (plain.hankel().values(), signal.hankel().values());
        for (found, expected) in values.iter().zip(plain_values) {
            let error = (found - expected).abs();
            // The formed Gramian has no digits below the root of rounding.
            assert!(error < 1e-7 * plain_values[0], "{found:e} {expected:e}");
        }
        for states in [2, 4, 6, 8] {
            let (a, b) = (
                plain.truncate(states).unwrap().system,
                signal.truncate(states).unwrap().system,
            );
            let gap = kernel_gap(&a, &b, 400);
            assert!(gap < 1e-7, "{seed} {states}: {gap:e}");
            for pole in a.poles() {
                let near = b.poles().into_iter().map(|p| (p - pole).norm());
                let nearest = near.fold(f64::INFINITY, f64::min);
                assert!(nearest < 1e-7, "{seed} {states}: {nearest:e}");
            }
        }
    }
}

#[test]
fn long_noise_nears_a_white_weight() {
    let full = random_system(4, 1);
    let plain = balance(full.stable().unwrap(), Realisation::Real).unwrap();
    let plain = plain.truncate(4).unwrap().system;
    let mut random = ChaCha8Rng::seed_from_u64(5);
    let mut gaps = Vec::new();
    // The modes have decayed to 1e-2 within the 256 steps.
    for sequences in [20, 5120] {
        let root = 3f64.sqrt();
        let noise = DMatrix::from_fn(sequences, 256, |_, _| random.random_range(-root..root));
        let weight = InputWeight::moments(&noise).unwrap();
        let signal = balance_weighted(full.stable().unwrap(), &weight).unwrap();
        gaps.push(kernel_gap(&plain, &signal.truncate(4).unwrap().system, 256));
    }
    assert!(gaps[1] < 0.02 && gaps[1] < 0.5 * gaps[0], "{gaps:?}");
}

/// Two modes that matter among six.
fn nearly_two() -> DiagonalSystem {
    let mut modes = vec![(-0.6, 2.0, 1.0, 0.4), (-0.3, 5.0, -0.7, 0.2)];
    for n in 0..4 {
        modes.push((-1.0 - f64::from(n), 3.0 * f64::from(n) + 1.0, 1e-9, -1e-9));
    }
    system(0.1, &modes, 0.3)
}

#[test]
fn a_system_of_few_modes_is_recovered() {
    let (_, signal) = inputs(200).swap_remove(1);
    let full = nearly_two();
    for (metric, weight) in weights(&signal) {
        // A start that is near, but not there.
        let start = [(-0.7, 1.8, 1.0, 0.0), (-0.25, 5.3, 1.0, 0.0)];
        let start = system(0.1, &start, 0.0);
        let refined =
            weighted_refine(&full, start.stable().unwrap(), 2, &weight, Refinement::Full).unwrap();
        let norm = weighted_norm(&full, &weight).unwrap();
        assert!(
            refined.error < 1e-7 * norm,
            "{metric}: {:e}",
            refined.error / norm
        );
        assert!(refined.steps > 1 && refined.refitted < refined.truncated);
        for &(re, im, _, _) in &[(-0.6, 2.0, 0.0, 0.0), (-0.3, 5.0, 0.0, 0.0)] {
            let pole = Complex64::new(re, im);
            let found = refined.system.exponents().iter();
            let nearest = found
                .map(|z| (z - pole).norm())
                .fold(f64::INFINITY, f64::min);
            assert!(nearest < 1e-5, "{metric}: {nearest:e}");
        }
    }
}

#[test]
fn the_feedthrough_is_fitted_again() {
    let (_, signal) = inputs(100).swap_remove(0);
    let full = system(0.1, &[(-0.5, 2.0, 1.0, 0.3), (-600.0, 0.0, 0.8, 0.0)], 0.25);
    let weight = InputWeight::moments(&signal).unwrap();
    // The fast mode is a feedthrough of 0.8 but for e^{-60}.
    let start = system(0.1, &[(-0.5, 2.0, 1.0, 0.3)], 0.25);
    let start = start.stable().unwrap();
    let refined = weighted_refine(&full, start, 1, &weight, Refinement::Residues).unwrap();
    let d = refined.system.feedthrough()[(0, 0)];
    assert!((d - 1.05).abs() < 1e-8, "{d}");
    assert!(refined.error < 1e-8 && refined.truncated > 0.1);
}

/// ∂E by (ln −Re z, Im z) of every mode, by central differences.
fn gradient(full: &DiagonalSystem, small: &DiagonalSystem, weight: &InputWeight) -> f64 {
    let Time::Discrete { step } = full.time() else {
        unreachable!("the samples are discrete");
    };
    let (h, residues) = (1e-5, small.residues().unwrap());
    let moved = |mode: usize, stretch: f64, turn: f64| {
        let mut exponents = small.exponents().to_vec();
        let z = exponents[mode] * step;
        exponents[mode] = Complex64::new(z.re * f64::exp(stretch), z.im + turn) / step;
        let d = small.feedthrough()[(0, 0)];
        let moved = DiagonalSystem::siso(full.time(), exponents, &residues, d).unwrap();
        weighted_error(full, &moved, weight).unwrap().powi(2)
    };
    let mut square = 0.0;
    for mode in 0..small.order() {
        let stretched = (moved(mode, h, 0.0) - moved(mode, -h, 0.0)) / (2.0 * h);
        let turned = (moved(mode, 0.0, h) - moved(mode, 0.0, -h)) / (2.0 * h);
        square += stretched * stretched + turned * turned;
    }
    square.sqrt()
}

#[test]
fn refinement_ends_where_the_error_is_flat() {
    // Long enough for every kernel to die: what comes behind changes where steps end.
    let (_, signal) = inputs(600).swap_remove(1);
    let mut shares = Vec::new();
    for (metric, weight) in weights(&signal) {
        for seed in 0..5 {
            let full = random_system(6, seed);
            let (start, _) = reduced(&full, Some(&weight), 2, Refinement::Residues);
            let (end, _) = reduced(&full, Some(&weight), 2, Refinement::Full);
            let (first, last) = (
                gradient(&full, &start, &weight),
                gradient(&full, &end, &weight),
            );
            let again = end.stable().unwrap();
            let again = weighted_refine(&full, again, 2, &weight, Refinement::Full).unwrap();
            let gain = 1.0 - again.error / again.truncated;
            assert!(gain < 0.01, "{metric} {seed}: {gain:e} was left");
            shares.push(last / first);
        }
    }
    // Steps end when one gains less than 1e-4: in a long valley the slope is not yet zero.
    shares.sort_by(f64::total_cmp);
    assert!(shares[7] < 0.1 && shares[14] < 0.25, "{shares:?}");
}

#[test]
fn refinement_is_never_worse_than_its_start() {
    let mut random = ChaCha8Rng::seed_from_u64(21);
    let (_, signal) = inputs(60).swap_remove(1);
    for (metric, weight) in weights(&signal) {
        for seed in 0..20 {
            let full = random_system(5, seed);
            // A start that has nothing to do with the system.
            let start = random_system(random.random_range(1..4), 100 + seed);
            let stable = start.stable().unwrap();
            for refinement in REFINEMENTS {
                let refined = weighted_refine(&full, stable, 3, &weight, refinement).unwrap();
                let started = weighted_error(&full, &start, &weight).unwrap();
                let ended = weighted_error(&full, &refined.system, &weight).unwrap();
                // In closed form, and by the samples of the kernels.
                let norm = weighted_norm(&full, &weight).unwrap() + started;
                let near = |a: f64, b: f64| (a * a - b * b).abs() < 1e-10 * norm * norm;
                assert!(near(refined.truncated, started), "{metric} {seed}");
                assert!(near(refined.error, ended), "{metric} {seed}");
                assert!(refined.error <= refined.refitted);
                assert!(refined.refitted <= refined.truncated);
                assert!(refined.system.is_stable() && refined.system.order() <= 3);
                if refinement == Refinement::None {
                    assert_eq!(refined.system, start);
                }
            }
        }
    }
}

#[test]
fn a_channel_without_input_is_balanced_for_white_noise() {
    let full = random_system(6, 4);
    let (small, record) = reduced(&full, None, 2, Refinement::Full);
    let plain = balance(full.stable().unwrap(), Realisation::Real).unwrap();
    let expected = plain.truncate(4).unwrap().system;
    assert!(small.order() <= 2 && kernel_gap(&expected, &small, 200) < 1e-12);
    let notes = &record.channels[0].notes;
    assert!(notes[0].starts_with("its input is zero"), "{notes:?}");
    assert_eq!(record.relative_weighted_error, Some(0.0));
}
