//! The generalisation measure: its invariants, and the rescaling that rests on it. The Rademacher
//! bounds: figures of an independent script, and the paper's own cross-checks.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use hankelite::advanced::{
    StepStatistics, layer_inputs, layer_measure, psi_gradient, rescale, step_statistics,
};
use hankelite::infer::{Network, Path as Run};
use hankelite::model::{Model, Sequence};
use hankelite::{Declared, Plan, Rule, read, reduce};
use hankelite_control::{Convolver, DiagonalSystem, Time};
use hankelite_research::bounds::{
    BoundError, Caveat, FastRnn, LayerNorms, Risk, SequenceSizes, Signals, SpectralRnn, Tied,
    TrainingData, Weights, geometric, of_network, row_sum_norm, spectral_norm,
};
use nalgebra::DMatrix;
use num_complex::Complex64;

#[path = "../../../tests/common/mod.rs"]
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

/// The measure of a channel, without its gradient.
fn psi(kernel: &[f64], mean: &[f64], deviation: &[f64]) -> f64 {
    psi_gradient(kernel, mean, deviation).psi
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
    let own = psi(&kernel(length), &mean, &deviation);
    let before = |values: &[f64]| [zeros(length), values.to_vec()].concat();
    let left = psi(&kernel(2 * length), &before(&mean), &before(&deviation));
    assert_eq!(left, own);
    let mut logs = Vec::new();
    for pad in [64, 256, 1024, 2048, 4096] {
        let behind = |values: &[f64]| [values.to_vec(), zeros(pad)].concat();
        let (padded, whole) = (kernel(length + pad), (behind(&mean), behind(&deviation)));
        let right = psi(&padded, &whole.0, &whole.1);
        let shifted = psi(&padded[pad..], &mean, &deviation);
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
        (psi(&coarse, &coarse_mean, &coarse_deviation) / fine).powi(2)
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
    assert!((found / expected - 1.0).abs() < 1e-12);
}

#[test]
fn the_gradient_agrees_with_differences() {
    let kernel = system(0.05, 0.0).kernel(60).unwrap();
    let (mean, deviation) = statistics(60);
    let found = psi_gradient(&kernel, &mean, &deviation);
    let slopes = found.gradient;
    assert_eq!(found.psi, psi(&kernel, &mean, &deviation));
    for at in 0..60 {
        let moved = |by: f64| {
            let mut kernel = kernel.clone();
            kernel[at] += by;
            psi(&kernel, &mean, &deviation)
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
        let kept = layer_inputs(&network, &sequences, layer).unwrap();
        let expected = StepStatistics::of(&kept).unwrap();
        assert!((found.mean() - expected.mean()).amax() < 1e-12);
        assert!((found.deviation() - expected.deviation()).amax() < 1e-12);
    }
    // One sequence alone has no spread.
    let one = step_statistics(&network, &sequences[..1]).unwrap();
    assert_eq!(one[0].deviation().amax(), 0.0);
}

#[test]
fn rescaling_gives_every_layer_in_order_the_requested_measure() {
    let (model, inputs) = small();
    let sequences: Vec<Sequence<'_>> = inputs.iter().map(|x| Sequence::Values(x)).collect();
    let rescale = |model, like| rescale(model, like, &sequences, 48, &());
    let measures = |model: &Model| -> Vec<f64> {
        let network = Network::new(model, 48, Run::Fft).unwrap();
        let statistics = step_statistics(&network, &sequences).unwrap();
        let layers = model.blocks().iter().zip(&statistics);
        layers
            .map(|(block, s)| layer_measure(block.systems(), s).unwrap().tau)
            .collect()
    };
    let unit = rescale(&model, None).unwrap();
    assert_eq!(unit.records.len(), model.blocks().len());
    for tau in measures(&unit.model) {
        assert!((tau - 1.0).abs() < 1e-10, "{tau}");
    }
    // Nothing was cut, so nothing is to be made up for.
    let same = rescale(&model, Some(&model)).unwrap();
    assert!(same.model == model);
    let plan = Plan::new(Rule::Order(1)).unwrap();
    let cut = reduce(&model, &plan).unwrap().model;
    let matched = rescale(&cut, Some(&model)).unwrap();
    for (found, wanted) in measures(&matched.model).iter().zip(measures(&model)) {
        assert!((found / wanted - 1.0).abs() < 1e-10, "{found} {wanted}");
    }
    assert!(measures(&cut)[0] != measures(&model)[0]);
    let one = vec![model.blocks()[0].clone()];
    let shorter = model.with_blocks(one).unwrap();
    assert!(rescale(&cut, Some(&shorter)).is_err());
}

const SIZES: SequenceSizes = SequenceSizes {
    samples: 8000,
    measurements: 51,
    hidden: 1024,
    length: 20,
};

const ONE_STEP: SequenceSizes = SequenceSizes { length: 1, ..SIZES };

fn signals(input: f64, state: f64) -> Signals {
    Signals { input, state }
}

fn layers(alpha: &[f64], beta: &[f64]) -> LayerNorms {
    LayerNorms::new(alpha.to_vec(), beta.to_vec()).unwrap()
}

#[track_caller]
fn near(found: f64, expected: f64) {
    let error = (found / expected - 1.0).abs();
    assert!(
        error < 1e-12,
        "{found}, expected {expected}: {error:.1e} apart"
    );
}

/// Figures of `tests/reference/bounds.py`, 16 of its 40 digits; the first five agree with those
/// published in the specification to their eleven or twelve digits.
#[test]
fn complexities_are_those_of_the_reference_script() {
    let step = layers(&[0.8, 0.9, 0.9], &[0.5; 3]);
    let bound = step
        .reweighted(&ONE_STEP, &signals(1.0, 1.2), None)
        .unwrap();
    near(bound.value, 0.108183834263196);
    assert_eq!((bound.equation, &bound.caveats[..]), ("(16)", &[][..]));
    let sista = Tied {
        first: 0.8,
        later: 0.9,
        input: 0.5,
        skip: 0.3,
        layers: 3,
    };
    let bound = sista.one_step(&SIZES, &signals(1.0, 1.2)).unwrap();
    near(bound.value, 0.1380153347627038);
    let one = |alpha: f64| layers(&[alpha], &[0.5]).one_layer(&SIZES, 1.0).unwrap();
    near(one(0.9).value, 0.5655226455507278);
    near(one(1.0).value, 1.287585646502005);
    let deep = layers(&[0.9; 3], &[0.5; 3]);
    let bound = deep.reweighted(&SIZES, &signals(1.0, 0.1), None).unwrap();
    near(bound.value, 1.050542318014899);
    assert_eq!(bound.caveats, [Caveat::FixedActivation]);
    near(
        fast(0.02, 0.9).exponential(&SIZES, 1.5).unwrap().value,
        0.0116108752832842,
    );
    near(
        fast(0.02, 0.5).exponential(&SIZES, 1.5).unwrap().value,
        0.009861059780774073,
    );
    let spectral = SpectralRnn {
        frobenius: [3.0, 2.0, 1.0],
        spectral: [1.1, 0.9, 1.2],
        outputs: 10,
    };
    let bound = spectral.order(&SIZES, 1.5, 0.05).unwrap();
    near(bound.value, 15519.4114623515);
    assert_eq!(
        bound.caveats,
        [
            Caveat::OrderOnly,
            Caveat::Growth {
                gain: 1.1,
                steps: 19
            }
        ]
    );
    let risk = Risk {
        loss_max: 3.0,
        confidence: 0.05,
    };
    let gap = risk.gap(0.25, 8000).unwrap();
    near(gap.value, 0.8971812669906018);
    assert!(gap.caveats.is_empty());
    let vacuous = risk.gap(1.5, 8000).unwrap().caveats;
    assert_eq!(vacuous, [Caveat::Vacuous { loss_max: 3.0 }]);
}

fn fast(gate: f64, recurrent: f64) -> FastRnn {
    FastRnn {
        gate,
        keep: 1.0 - gate,
        recurrent,
        input: 0.7,
    }
}

#[test]
fn the_bounds_of_a_step_of_one_layer_and_of_tied_layers_agree() {
    let inputs = signals(1.3, 0.7);
    for depth in 1..8 {
        let tied = Tied {
            first: 1.1,
            later: 0.6,
            input: 0.4,
            skip: 0.0,
            layers: depth,
        };
        let mut alpha = vec![0.6; depth];
        alpha[0] = 1.1;
        let general = layers(&alpha, &vec![0.4; depth]);
        let general = general.reweighted(&ONE_STEP, &inputs, None).unwrap();
        let own = tied.one_step(&ONE_STEP, &inputs).unwrap();
        near(own.value, general.value);
        assert_eq!(own.equation, "(17)");
        let skip = Tied { skip: 0.2, ..tied };
        let sista = skip.one_step(&ONE_STEP, &inputs).unwrap();
        assert_eq!(sista.equation, "(18)");
        // One layer has nothing to skip.
        assert_eq!(sista.value > own.value, depth > 1);
    }
    for alpha in [0.0, 0.5, 1.0, 1.7] {
        let one = layers(&[alpha], &[0.4]);
        let general = one.unrolled(&SIZES, &signals(1.3, 0.0)).unwrap();
        near(one.one_layer(&SIZES, 1.3).unwrap().value, general.value);
    }
}

#[test]
fn the_geometric_sum_has_its_limit_and_no_jump_there() {
    assert_eq!((geometric(1.0, 20), geometric(0.0, 20)), (20.0, 1.0));
    assert_eq!((geometric(0.3, 0), geometric(1.0, 0)), (0.0, 0.0));
    near(geometric(1.0 + (-30f64).exp2(), 1000), 1_000.000_465_195_77);
    for k in [1, 2, 7, 100] {
        for q in [0.1, 0.999, 1.001, 1.5, 1.0 - 1e-12, 1.0 + 1e-12] {
            let sum: f64 = (0..k).map(|i| f64::powi(q, i)).sum();
            near(geometric(q, k as usize), sum);
        }
    }
    let value = |alpha: f64| {
        let one = layers(&[alpha], &[0.5]);
        one.one_layer(&SIZES, 1.0).unwrap().value
    };
    for offset in [1e-15, 1e-12, 1e-9] {
        let slope = (value(1.0 + offset) / value(1.0 - offset) - 1.0) / offset;
        // d log geo/dq = (L − 1)/2 at q = 1; rounding of 1 ± offset counts for the smallest.
        let rounding = 40.0 * f64::EPSILON / offset;
        assert!((slope - 19.0).abs() < 1e-3 + rounding, "{offset}: {slope}");
    }
}

/// The corrected (53) is never below (52) where its assumption holds; the printed one always is.
#[test]
fn the_linear_bound_of_a_slow_gate_is_above_the_exponential_one() {
    for length in 1..=1000 {
        let sizes = SequenceSizes { length, ..SIZES };
        let limit = 0.5 / length as f64;
        for share in [-1.0, 0.0, 1e-9, 0.3, 0.9, 1.0] {
            for gate in [0.01, 0.3, 1.0] {
                // x = share / (2L) by the choice of α_F, as far as it is a norm.
                let recurrent = 0.5 * (1.0 + share * limit / gate);
                if recurrent < 0.0 {
                    continue;
                }
                let network = fast(gate, recurrent);
                let exact = network.exponential(&sizes, 1.5).unwrap();
                let linear = network.linear(&sizes, 1.5).unwrap();
                assert!(linear.value >= exact.value, "L {length}, x {share}/2L");
                // α_F was rounded: at the limit itself either may come out.
                if share < 1.0 {
                    assert!(linear.caveats.is_empty(), "{:?}", linear.caveats);
                }
                let steps = length as f64 + 1.0;
                let printed = 2.0 * network.excess() * steps - 1.0;
                let printed = printed / (2.0 * recurrent - 1.0);
                let scale = 2.0 * gate / 8000f64.sqrt() * 1.5 * 0.7;
                if share > 0.0 {
                    assert!(scale * printed < exact.value, "{printed}");
                }
            }
        }
    }
    // Beyond the assumption the linear one falls below, and reports that it does not hold.
    let wild = fast(0.5, 1.5);
    let linear = wild.linear(&SIZES, 1.5).unwrap();
    assert!(linear.value < wild.exponential(&SIZES, 1.5).unwrap().value);
    let (excess, limit) = (1.0, 0.025);
    assert_eq!(linear.caveats, [Caveat::TooFast { excess, limit }]);
    let loose = FastRnn { keep: 0.9, ..wild };
    let caveats = loose.exponential(&SIZES, 1.5).unwrap().caveats;
    assert_eq!(caveats[0], Caveat::Gates { sum: 1.4 });
}

/// prox(u; a, b, ħ) = argmin a|v| + b|v − ħ| + ½(v − u)², as a median.
fn prox(u: f64, a: f64, b: f64, side: f64) -> f64 {
    let tilt = if side < 0.0 { b - a } else { a - b };
    let mut values = [0.0, side, u + a + b, u - tilt, u - a - b];
    values.sort_by(f64::total_cmp);
    values[2]
}

/// Two copies of a random reweighted layer stack, driven by equal inputs from two states: they are
/// apart by no more than the joint constant allows, while Λ_0 alone is too small.
#[test]
fn two_states_are_driven_apart_by_no_more_than_the_joint_constant() {
    let (hidden, depth) = (6, 3);
    let matrix = |seed: f64, scale: f64| {
        DMatrix::from_fn(hidden, hidden, |i, j| {
            scale * number(seed, 1 + i * hidden + j)
        })
    };
    let mut beyond = 0;
    for trial in 0..400 {
        let seed = f64::from(trial);
        let recurrent: Vec<_> = (0..depth)
            .map(|l| matrix(seed + 7.1 * l as f64, 0.2))
            .collect();
        let correlation = matrix(seed + 0.3, 0.35);
        let step = |state: &DMatrix<f64>| {
            let side = &correlation * state;
            let mut code = state.clone();
            for w in &recurrent {
                code = (w * code).zip_map(&side, |u, side| prox(u + 0.4, 0.3, 0.5, side));
            }
            code
        };
        let start = |seed: f64| DMatrix::from_fn(hidden, 1, |i, _| number(seed, i));
        let (one, other) = (start(seed + 0.5), start(seed + 0.6));
        let apart = |a: &DMatrix<f64>, b: &DMatrix<f64>| (a - b).amax();
        let gain = apart(&step(&one), &step(&other)) / apart(&one, &other);
        let norms = LayerNorms::new(
            recurrent.iter().map(row_sum_norm).collect(),
            vec![0.0; depth],
        );
        let norms = norms.unwrap();
        let joint = norms.contraction(row_sum_norm(&correlation)).unwrap();
        assert!(gain <= joint * (1.0 + 1e-12), "{gain} {joint}");
        beyond += usize::from(gain > norms.step_gain());
    }
    assert!(beyond > 20, "Λ_0 was exceeded {beyond} times");
    let above = layers(&[0.5, 2.0], &[0.0, 0.0]);
    assert_eq!(above.contraction(0.7).unwrap(), 1.4);
    assert_eq!(above.contraction(0.1).unwrap(), 1.0);
}

const TRAINING: TrainingData = TrainingData {
    samples: 8000,
    length: 20,
    input: 1.5,
    state: 0.1,
    confidence: 0.05,
};

/// The sizes of the weights of [`two_layers`].
const SMALL: SequenceSizes = SequenceSizes {
    measurements: 3,
    hidden: 2,
    ..SIZES
};

/// W_1, W_2 with row sums 0.8, 0.9; U_1, U_2 with 0.6, 1.
fn two_layers() -> ([DMatrix<f64>; 2], [DMatrix<f64>; 2]) {
    let recurrent = [[0.5, -0.3, 0.1, 0.1], [0.0, 0.9, -0.2, 0.2]];
    let input = [
        [0.1, -0.2, 0.3, 0.0, 0.0, 0.0],
        [0.0, 0.0, 0.0, 0.5, 0.0, -0.5],
    ];
    (
        recurrent.map(|rows| DMatrix::from_row_slice(2, 2, &rows)),
        input.map(|rows| DMatrix::from_row_slice(2, 3, &rows)),
    )
}

/// ‖G‖ = 1.25.
fn correlation() -> DMatrix<f64> {
    DMatrix::from_row_slice(2, 2, &[1.0, 0.25, 0.0, 1.0])
}

#[test]
fn an_unfolded_network_is_bounded_by_the_norms_of_its_own_weights() {
    let (recurrent, input) = two_layers();
    let matrix = correlation();
    let of = |correlation| {
        let weights = Weights::Unfolded {
            recurrent: &recurrent,
            input: &input,
            correlation,
        };
        of_network(&weights, &TRAINING).unwrap()
    };
    let norms = layers(&[0.8, 0.9], &[0.6, 1.0]);
    let expected = norms.unrolled(&SMALL, &signals(1.5, 0.1)).unwrap().value;
    let plain = of(None);
    near(plain.bounds[0].value, expected);
    assert!(plain.bounds[0].caveats.is_empty() && plain.contraction.is_none());
    let joint = of(Some(&matrix));
    near(joint.bounds[0].value, expected);
    near(joint.contraction.unwrap(), 1.25);
    let caveats = [
        Caveat::FixedActivation,
        Caveat::NoContraction { contraction: 1.25 },
    ];
    assert_eq!(joint.bounds[0].caveats, caveats);
}

#[test]
fn other_networks_are_bounded_by_the_norms_of_their_own_weights() {
    let (recurrent, input) = two_layers();
    let of = |weights: Weights<'_>| of_network(&weights, &TRAINING).unwrap();
    let found = of(Weights::FastRnn {
        recurrent: &recurrent[0],
        input: &input[0],
        gates: [0.02, 0.98],
    });
    let fast = FastRnn {
        gate: 0.02,
        keep: 0.98,
        recurrent: 0.6,
        input: 0.14f64.sqrt(),
    };
    let exponential = fast.exponential(&SMALL, 1.5).unwrap().value;
    near(found.bounds[0].value, exponential);
    near(
        found.bounds[1].value,
        fast.linear(&SMALL, 1.5).unwrap().value,
    );
    let skip = correlation();
    let found = of(Weights::Sista {
        recurrent: [&recurrent[0], &recurrent[1]],
        input: &input[0],
        skip: &skip,
        layers: 3,
    });
    let tied = Tied {
        first: 0.8,
        later: 0.9,
        input: 0.6,
        skip: 1.25,
        layers: 3,
    };
    let expected = tied.one_step(&SMALL, &signals(1.5, 0.1)).unwrap().value;
    near(found.bounds[0].value, expected);
    let output = DMatrix::from_row_slice(1, 2, &[3.0, 4.0]);
    let found = of(Weights::Spectral {
        recurrent: &recurrent[1],
        input: &input[0],
        output: &output,
    });
    // W*W = [[.04, -.04], [-.04, .85]]: half of .89 + √(.81² + .08²).
    let norm = ((0.89 + (0.81f64.powi(2) + 0.08f64.powi(2)).sqrt()) / 2.0).sqrt();
    near(found.norms[3].1, norm);
    near(found.norms[5].1, 5.0);
}

#[test]
fn numbers_that_make_no_sense_are_named() {
    let value = |error: BoundError| matches!(error, BoundError::Value { .. });
    let refused =
        |alpha: &[f64], beta: &[f64]| LayerNorms::new(alpha.to_vec(), beta.to_vec()).unwrap_err();
    for wrong in [-0.1, f64::NAN, f64::INFINITY] {
        assert!(value(refused(&[wrong], &[0.5])) && value(refused(&[0.5], &[wrong])));
    }
    assert!(matches!(refused(&[], &[]), BoundError::Layers { .. }));
    assert!(matches!(refused(&[0.5], &[]), BoundError::Layers { .. }));
    let two = layers(&[0.5; 2], &[0.5; 2]);
    let error = two.one_layer(&SIZES, 1.0).unwrap_err();
    assert_eq!(error, BoundError::OneLayer { found: 2 });
    let none = SequenceSizes {
        samples: 0,
        ..SIZES
    };
    let error = two.unrolled(&none, &signals(1.0, 0.0)).unwrap_err();
    assert_eq!(error.to_string(), "samples is 0, expected 1 or more");
    assert!(value(
        two.unrolled(&SIZES, &signals(-1.0, 0.0)).unwrap_err()
    ));
    assert!(value(fast(1.5, 0.5).linear(&SIZES, 1.0).unwrap_err()));
    assert!(value(two.contraction(f64::NAN).unwrap_err()));
    let risk = Risk {
        loss_max: 1.0,
        confidence: 0.0,
    };
    assert!(value(risk.gap(0.5, 10).unwrap_err()));
    let steep = layers(&[100.0], &[1.0]);
    let long = SequenceSizes {
        length: 1000,
        ..SIZES
    };
    let bound = steep.unrolled(&long, &signals(1.0, 0.0)).unwrap();
    assert!(bound.value.is_infinite() && bound.caveats.contains(&Caveat::Overflow));
    assert_eq!(
        steep.unrolled(&long, &signals(0.0, 0.0)).unwrap().value,
        0.0
    );
}

#[test]
fn weights_that_fit_no_network_are_named() {
    let value = |error: BoundError| matches!(error, BoundError::Value { .. });
    let (square, tall) = (DMatrix::<f64>::zeros(2, 2), DMatrix::<f64>::zeros(3, 2));
    let mut holed = square.clone();
    holed[(0, 0)] = f64::NAN;
    assert!(row_sum_norm(&holed).is_nan() && spectral_norm(&holed).is_nan());
    let of = |recurrent: &DMatrix<f64>, input: &DMatrix<f64>| {
        let weights = Weights::FastRnn {
            recurrent,
            input,
            gates: [0.5, 0.5],
        };
        of_network(&weights, &TRAINING).unwrap_err()
    };
    assert!(value(of(&holed, &square)));
    assert!(matches!(of(&tall, &square), BoundError::Shape { .. }));
    assert!(
        of(&square, &tall)
            .to_string()
            .contains("U_1 has shape (3, 2), expected (2, 2)")
    );
}
