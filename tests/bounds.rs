//! The generalisation measure: its invariants, and the rescaling that rests on it.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use hankelite::bounds::{StepStatistics, filter_norm, layer_measure, psi, psi_gradient};
use hankelite::calibrate::{Rescale, rescale};
use hankelite::checkpoint::{Declared, read};
use hankelite::compress::{Plan, Rule, reduce};
use hankelite::infer::{Network, Path as Run, Sequence, heard, step_statistics};
use hankelite::linalg::Convolver;
use hankelite::model::Model;
use hankelite::ssm::{DiagonalSystem, Time};
use nalgebra::DMatrix;
use num_complex::Complex64;

mod common;

/// The positive frequencies of the Skew-HiPPO start for four states, to ten digits.
const SKEW_HIPPO: [f64; 4] = [0.4274887123, 1.9577941509, 5.3542085150, 19.8574103710];

/// A smooth number for every index.
fn number(seed: f64, index: usize) -> f64 {
    (12.9898 * index as f64 + seed).sin()
}

fn system(step: f64, feedthrough: f64) -> DiagonalSystem {
    let poles: Vec<Complex64> = SKEW_HIPPO.map(|w| Complex64::new(-0.5, w)).to_vec();
    let weights = (0..4).map(|n| Complex64::new(number(1.0, n), number(2.0, n)));
    let residues = weights
        .zip(&poles)
        .map(|(w, pole)| w * ((pole * step).exp() - 1.0) / pole);
    let residues: Vec<Complex64> = residues.collect();
    DiagonalSystem::siso(Time::Discrete { step }, poles, &residues, feedthrough).unwrap()
}

fn scaled(system: &DiagonalSystem, by: f64) -> DiagonalSystem {
    let residues: Vec<Complex64> = system.residues().unwrap().iter().map(|r| r * by).collect();
    let (time, poles) = (system.time(), system.exponents().to_vec());
    DiagonalSystem::siso(time, poles, &residues, system.feedthrough()[(0, 0)] * by).unwrap()
}

fn statistics(length: usize) -> (Vec<f64>, Vec<f64>) {
    let mean = (0..length).map(|t| number(3.0, t)).collect();
    let deviation = (0..length).map(|t| 1.0 + 0.5 * number(4.0, t)).collect();
    (mean, deviation)
}

fn column(values: &[f64]) -> DMatrix<f64> {
    DMatrix::from_column_slice(values.len(), 1, values)
}

#[test]
fn the_measure_is_the_square_of_the_scale_and_one_after_division() {
    let (mean, deviation) = statistics(200);
    let statistics = StepStatistics::new(column(&mean), column(&deviation), 7).unwrap();
    for feedthrough in [0.0, 3.0] {
        let tau = |system: DiagonalSystem| layer_measure(&[system], &statistics).unwrap().tau;
        let full = system(0.02, feedthrough);
        let before = tau(full.clone());
        let tripled = tau(scaled(&full, 3.0));
        assert!((tripled / before - 9.0).abs() < 1e-12);
        let unit = tau(scaled(&full, 1.0 / before.sqrt()));
        assert!((unit - 1.0).abs() < 1e-12, "{unit}");
    }
    // As printed in the papers (C and D times the root) it is far from one.
    let full = system(0.02, 3.0);
    let measure = layer_measure(std::slice::from_ref(&full), &statistics).unwrap();
    let printed = scaled(&full, measure.tau.sqrt());
    let printed = layer_measure(&[printed], &statistics).unwrap().tau;
    assert!((printed / measure.tau.powi(2) - 1.0).abs() < 1e-12);
    assert!((measure.per_root() - measure.tau / 7f64.sqrt()).abs() < 1e-12);
}

#[test]
fn zeros_before_change_nothing_and_zeros_behind_shift_the_kernel() {
    let (length, step) = (256, 0.02);
    let system = system(step, 0.7);
    let (mean, deviation) = statistics(length);
    let kernel = |length: usize| {
        let mut kernel = system.kernel(length).unwrap();
        kernel[0] += 0.7;
        kernel
    };
    let zeros = |count: usize| vec![0.0; count];
    let own = psi(&kernel(length), &mean, &deviation).value();
    let before = |values: &[f64]| [zeros(length), values.to_vec()].concat();
    let left = psi(&kernel(2 * length), &before(&mean), &before(&deviation)).value();
    assert_eq!(left, own);
    let mut logs = Vec::new();
    for pad in [64, 256, 1024, 2048, 4096] {
        let behind = |values: &[f64]| [values.to_vec(), zeros(pad)].concat();
        let (padded, whole) = (kernel(length + pad), (behind(&mean), behind(&deviation)));
        let right = psi(&padded, &whole.0, &whole.1).value();
        let shifted = psi(&padded[pad..], &mean, &deviation).value();
        assert!((right / shifted - 1.0).abs() < 1e-12, "{pad}");
        logs.push((pad as f64, right.ln()));
    }
    // The slowest mode decides: ln ψ falls by Δ/2 for each step of padding.
    let ((x1, y1), (x2, y2)) = (logs[2], logs[4]);
    let slope = (y2 - y1) / (x2 - x1);
    assert!((slope / (-0.5 * step) - 1.0).abs() < 0.1, "{slope}");
}

#[test]
fn half_the_rate_takes_twice_the_step() {
    let length = 1024;
    // Output: equal at every second step for an input that is held for two.
    let fine = system(0.01, 0.0);
    let coarse = {
        let residues = fine.residues().unwrap();
        let pairs = residues.iter().zip(fine.poles());
        // C (e^{2z} − 1)/λ from C (e^z − 1)/λ.
        let residues: Vec<Complex64> = pairs.map(|(r, pole)| r * (1.0 + pole)).collect();
        let time = Time::Discrete { step: 0.02 };
        DiagonalSystem::siso(time, fine.exponents().to_vec(), &residues, 0.0).unwrap()
    };
    let input: Vec<f64> = (0..length / 2).map(|j| number(5.0, j)).collect();
    let held: Vec<f64> = input.iter().flat_map(|&u| [u, u]).collect();
    let run = |system: &DiagonalSystem, input: &[f64]| {
        let convolver = Convolver::new(input.len());
        let kernel = system.kernel(input.len()).unwrap();
        convolver.convolve(&convolver.spectrum(&kernel), input)
    };
    let (a, b) = (run(&coarse, &input), run(&fine, &held));
    for j in 0..length / 2 {
        assert!((a[j] - b[2 * j + 1]).abs() < 1e-12, "{j}");
    }
    // Measure: the ratio comes near one from below as the step becomes small.
    let ratio = |step: f64| {
        let length = 2 * (2.56 / step).round() as usize;
        let at = |t: usize, shift: f64| (0.3 * t as f64 * step + shift).sin();
        let coarse_mean: Vec<f64> = (0..length / 2).map(|j| at(2 * j, 0.4)).collect();
        let coarse_deviation: Vec<f64> = (0..length / 2).map(|j| 1.5 + at(2 * j, 1.0)).collect();
        let twice = |values: &[f64]| values.iter().flat_map(|&v| [v, v]).collect::<Vec<_>>();
        let fine = system(step, 0.0).kernel(length).unwrap();
        let coarse: Vec<f64> = fine.chunks(2).map(|pair| pair[0] + pair[1]).collect();
        let fine = psi(&fine, &twice(&coarse_mean), &twice(&coarse_deviation));
        (psi(&coarse, &coarse_mean, &coarse_deviation).value() / fine.value()).powi(2)
    };
    let ratios = [0.02, 0.01, 0.005, 0.0025].map(ratio);
    assert!(
        ratios.windows(2).all(|pair| pair[0] < pair[1]),
        "{ratios:?}"
    );
    assert!(ratios[2] >= 0.99 && ratios[3] <= 1.0, "{ratios:?}");
}

#[test]
fn two_reversed_sums_are_the_last_entries_of_two_convolutions() {
    let length = 300;
    let kernel = system(0.05, 0.0).kernel(length).unwrap();
    let (mean, deviation) = statistics(length);
    let convolver = Convolver::new(length);
    let sizes: Vec<f64> = kernel.iter().map(|k| k.abs()).collect();
    let spread = convolver.convolve(&convolver.spectrum(&sizes), &deviation)[length - 1];
    let drift = convolver.convolve(&convolver.spectrum(&kernel), &mean)[length - 1];
    let found = psi(&kernel, &mean, &deviation);
    let expected = spread + drift.abs();
    assert!((found.value() / expected - 1.0).abs() < 1e-12);
}

#[test]
fn the_gradient_agrees_with_differences() {
    let kernel = system(0.05, 0.0).kernel(60).unwrap();
    let (mean, deviation) = statistics(60);
    let (found, slopes) = psi_gradient(&kernel, &mean, &deviation);
    assert_eq!(found, psi(&kernel, &mean, &deviation));
    for at in 0..60 {
        let moved = |by: f64| {
            let mut kernel = kernel.clone();
            kernel[at] += by;
            psi(&kernel, &mean, &deviation).value()
        };
        let h = 1e-6 * kernel[at].abs();
        let slope = (moved(h) - moved(-h)) / (2.0 * h);
        let far = (slope - slopes[at]).abs();
        assert!(
            far < 1e-6 * (1.0 + slopes[at].abs()),
            "{at}: {slope} {}",
            slopes[at]
        );
    }
}

#[test]
fn the_filter_norm_is_the_measure_of_mean_zero_and_variance_one() {
    let kernel = system(0.05, 0.0).kernel(80).unwrap();
    let of_white = psi(&kernel, &[0.0; 80], &[1.0; 80]).value().powi(2);
    assert!((filter_norm(&kernel) / of_white - 1.0).abs() < 1e-12);
}

fn small() -> (Model, Vec<Vec<f32>>) {
    let file = common::here("data/s4d_classifier.pth");
    let model = read(&file, &Declared::default()).unwrap().model;
    let width = model.inputs().unwrap();
    let sequence = |n: usize| (0..48 * width).map(move |t| number(n as f64, t) as f32);
    (model, (0..9).map(|n| sequence(n).collect()).collect())
}

#[test]
fn statistics_of_many_are_those_of_all_at_once() {
    let (model, inputs) = small();
    let sequences: Vec<Sequence<'_>> = inputs.iter().map(|x| Sequence::Values(x)).collect();
    let network = Network::new(&model, 48, Run::Fft).unwrap();
    let found = step_statistics(&network, &sequences).unwrap();
    for (layer, found) in found.iter().enumerate() {
        let kept = heard(&network, &sequences, layer).unwrap();
        let expected = StepStatistics::of(&kept).unwrap();
        assert_eq!(found.sequences(), 9);
        assert!((found.mean() - expected.mean()).amax() < 1e-12);
        assert!((found.deviation() - expected.deviation()).amax() < 1e-12);
    }
    // One sequence alone has no spread.
    let one = step_statistics(&network, &sequences[..1]).unwrap();
    assert_eq!(one[0].deviation().amax(), 0.0);
}

#[test]
fn rescaling_gives_every_layer_in_order_the_measure_asked_for() {
    let (model, inputs) = small();
    let sequences: Vec<Sequence<'_>> = inputs.iter().map(|x| Sequence::Values(x)).collect();
    let data = (48, &sequences[..]);
    let measures = |model: &Model| -> Vec<f64> {
        let network = Network::new(model, 48, Run::Fft).unwrap();
        let statistics = step_statistics(&network, &sequences).unwrap();
        let layers = model.blocks.iter().zip(&statistics);
        layers
            .map(|(block, s)| layer_measure(&block.systems, s).unwrap().tau)
            .collect()
    };
    let (same, records) = rescale(&model, Rescale::None, None, data).unwrap();
    assert!(same == model && records.is_empty());
    let (unit, records) = rescale(&model, Rescale::Unit, None, data).unwrap();
    assert_eq!(records.len(), model.blocks.len());
    for tau in measures(&unit) {
        assert!((tau - 1.0).abs() < 1e-10, "{tau}");
    }
    // Nothing was cut, so nothing is to be made up for.
    let (same, _) = rescale(&model, Rescale::Match, Some(&model), data).unwrap();
    assert!(same == model);
    let plan = Plan::new(Rule::Order(1)).unwrap();
    let cut = reduce(&model, &plan).unwrap().model;
    let (matched, _) = rescale(&cut, Rescale::Match, Some(&model), data).unwrap();
    for (found, wanted) in measures(&matched).iter().zip(measures(&model)) {
        assert!((found / wanted - 1.0).abs() < 1e-10, "{found} {wanted}");
    }
    assert!(measures(&cut)[0] != measures(&model)[0]);
    assert!(rescale(&cut, Rescale::Match, None, data).is_err());
}
