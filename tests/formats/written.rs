//! What a reduced layer is, where a file has no place for D, a mode hardly decays, or numbers are halves.

use std::collections::BTreeMap;

use hankelite::advanced::CalibratedLayer;
use hankelite::archive::{Archive, Dtype, RawTensor};
use hankelite::checkpoint::{Checkpoint, Discretisation, Transform, from_tensors};
use hankelite::compress::{LayerRecord, Method, TimeBase};
use hankelite::model::Block;
use hankelite::{Declared, Plan, Rule, read, reduce, write};
use hankelite_control::{DiagonalSystem, InputWeight, Refinement};
use nalgebra::DMatrix;
use num_complex::Complex64;

const METHODS: [Method; 7] = [
    Method::Balanced,
    Method::Residualised,
    Method::HankelNorm,
    Method::H2Optimal,
    Method::Horizon,
    Method::ModalHinf,
    Method::ModalH2,
];

/// Steps over which kernels are compared.
const STEPS: usize = 200;

const CHANNELS: usize = 3;
const MODES: usize = 6;

/// The tensors of an S4D layer, mode 2 of channel 1 with this logarithm of its decay.
fn tensors(slow: f64, dtype: Dtype, with_d: bool) -> BTreeMap<String, RawTensor> {
    let wave = |k: usize| ((k * k + 3 * k + 1) as f64).sin();
    let grid = CHANNELS * MODES;
    let mut log_decay: Vec<f64> = (0..grid).map(|k| -0.7 + 0.2 * wave(k)).collect();
    log_decay[MODES + 2] = slow;
    let frequency = (0..grid).map(|k| 3.1 * (k % MODES) as f64 + 0.3 * wave(k + 7));
    let tensor = |shape: &[usize], values: Vec<f64>| {
        RawTensor::from_f64(dtype, shape.to_vec(), &values).unwrap()
    };
    let mut all = BTreeMap::from([
        (
            "kernel.log_dt".to_string(),
            tensor(&[CHANNELS], vec![-3.0, -2.5, -2.0]),
        ),
        (
            "kernel.log_A_real".to_string(),
            tensor(&[CHANNELS, MODES], log_decay),
        ),
        (
            "kernel.A_imag".to_string(),
            tensor(&[CHANNELS, MODES], frequency.collect()),
        ),
        (
            "kernel.C".to_string(),
            tensor(
                &[CHANNELS, MODES, 2],
                (0..2 * grid).map(|k| wave(k + 31)).collect(),
            ),
        ),
    ]);
    if with_d {
        all.insert("D".to_string(), tensor(&[CHANNELS], vec![0.5, -0.25, 1.0]));
    }
    all
}

fn layer(slow: f64, with_d: bool) -> Checkpoint {
    let tensors = tensors(slow, Dtype::F64, with_d);
    from_tensors("a layer", tensors, &Declared::default()).unwrap()
}

/// Re Σ c b e^{zl}, and D with the first sample: sample by sample.
fn response(system: &DiagonalSystem) -> Vec<f64> {
    let poles = system.scaled_exponents();
    let sample = |l: usize| {
        let modes = poles
            .iter()
            .enumerate()
            .map(|(n, z)| system.output()[(0, n)] * system.input()[(n, 0)] * (z * l as f64).exp());
        let kernel: Complex64 = modes.sum();
        kernel.re
            + if l == 0 {
                system.feedthrough()[(0, 0)]
            } else {
                0.0
            }
    };
    (0..STEPS).map(sample).collect()
}

fn distance(a: &DiagonalSystem, b: &DiagonalSystem) -> f64 {
    let (a, b) = (response(a), response(b));
    let squares = a.iter().zip(b).map(|(a, b)| (a - b).powi(2));
    squares.sum::<f64>().sqrt()
}

/// Every channel's recorded kernel error is the distance of the responses.
fn assert_recorded(full: &Block, small: &Block, record: &LayerRecord, what: &str) {
    let pairs = full.systems().iter().zip(small.systems());
    for ((a, b), channel) in pairs.zip(&record.channels) {
        let measured = distance(a, b);
        let bound = 0.01 * channel.kernel_error + 1e-9 * channel.kernel_norm;
        assert!(
            (measured - channel.kernel_error).abs() <= bound,
            "{what}, channel {}: measured {measured}, recorded {}",
            channel.index,
            channel.kernel_error
        );
    }
}

fn plan(order: usize, method: Method, time: TimeBase) -> Option<Plan> {
    let plan = Plan::new(Rule::Order(order))
        .unwrap()
        .with_kernel_length(STEPS);
    plan.with_method(method).ok()?.with_time(time).ok()
}

#[test]
fn a_mode_of_any_rate_leaves_the_others_their_states() {
    for method in METHODS {
        for time in [TimeBase::Discrete, TimeBase::Continuous] {
            for order in [1, 3] {
                let Some(plan) = plan(order, method, time) else {
                    continue;
                };
                let mut known = None;
                for slow in [-30.0, -38.0, -40.0, -100.0, -690.0] {
                    let full = layer(slow, true);
                    let made = reduce(&full.model, &plan).unwrap();
                    let what = format!("{method:?} {time:?} {order} {slow}");
                    let (before, after) = (&full.model.blocks()[0], &made.model.blocks()[0]);
                    assert_recorded(before, after, &made.records[0], &what);
                    let channel = &made.records[0].channels[1];
                    assert_eq!(channel.order, order, "{what}");
                    let error = channel.kernel_error / channel.kernel_norm;
                    let first = *known.get_or_insert(error);
                    assert!(
                        (error / first - 1.0).abs() < 1e-3,
                        "{what}: {error} {first}"
                    );
                }
            }
        }
    }
}

fn weight(channel: usize, moments: bool) -> Option<InputWeight> {
    let mut inputs = DMatrix::zeros(5, STEPS);
    for n in 0..5 {
        let mut last = 0.0;
        for t in 0..STEPS {
            last = 0.9 * last + ((t * t + 7 * n + channel) as f64).sin();
            inputs[(n, t)] = last;
        }
    }
    match moments {
        true => InputWeight::moments(&inputs),
        false => InputWeight::of_sequences(&inputs),
    }
}

#[test]
fn a_mode_of_any_rate_leaves_the_others_their_states_for_an_input_too() {
    for moments in [true, false] {
        for refinement in [Refinement::None, Refinement::Residues, Refinement::Full] {
            let mut known = None;
            for slow in [-38.0, -40.0, -100.0, -690.0] {
                let full = layer(slow, true);
                let before = &full.model.blocks()[0];
                let layer = CalibratedLayer::new(before, |h| weight(h, moments)).unwrap();
                let mut after = before.clone();
                let record = layer
                    .reduce(&mut after, &[3; CHANNELS], refinement, STEPS)
                    .unwrap();
                let what = format!("moments {moments}, {refinement:?}, {slow}");
                assert_recorded(before, &after, &record, &what);
                let weighted = record.channels[1].weighted.as_ref().unwrap();
                let error = weighted.last() / weighted.norm;
                let first = *known.get_or_insert(error);
                assert!(
                    (error / first - 1.0).abs() < 0.02,
                    "{what}: {error} {first}"
                );
                // Below the number of its slow modes, and at the whole channel.
                let curve = &layer.curves(before, refinement).unwrap()[1];
                assert!(
                    curve.errors.windows(2).all(|pair| pair[1] <= pair[0]),
                    "{what}"
                );
                assert!(curve.errors.iter().all(|error| error.is_finite()), "{what}");
            }
        }
    }
}

#[test]
fn a_layer_without_a_place_for_d_keeps_it_under_every_method() {
    let full = layer(-0.7, false);
    assert!(!full.model.blocks()[0].holds_feedthrough());
    let folder = tempfile::tempdir().unwrap();
    for method in METHODS {
        for time in [TimeBase::Discrete, TimeBase::Continuous] {
            let Some(plan) = plan(3, method, time) else {
                continue;
            };
            let made = reduce(&full.model, &plan);
            if method == Method::Residualised {
                let error = made.unwrap_err().to_string();
                assert!(
                    error.contains("no tensor `D`") && error.contains("`layer`"),
                    "{error}"
                );
                continue;
            }
            let made = made.unwrap();
            let what = format!("{method:?} {time:?}");
            let after = &made.model.blocks()[0];
            let kept = |system: &DiagonalSystem| system.feedthrough()[(0, 0)] == 0.0;
            assert!(after.systems().iter().all(kept), "{what}");
            assert_recorded(&full.model.blocks()[0], after, &made.records[0], &what);
            let path = folder.path().join("small.safetensors");
            drop(write(&full.with_model(made.model.clone()), &path).unwrap());
            let back = read(&path, &Declared::default()).unwrap();
            assert_recorded(
                &full.model.blocks()[0],
                &back.model.blocks()[0],
                &made.records[0],
                &what,
            );
        }
    }
}

#[test]
fn a_fit_for_an_input_keeps_a_d_that_has_no_place() {
    for with_d in [true, false] {
        let full = layer(-0.7, with_d);
        let before = &full.model.blocks()[0];
        let layer = CalibratedLayer::new(before, |h| weight(h, true)).unwrap();
        for refinement in [Refinement::Residues, Refinement::Full] {
            let mut after = before.clone();
            let record = layer
                .reduce(&mut after, &[2; CHANNELS], refinement, STEPS)
                .unwrap();
            let pairs = before.systems().iter().zip(after.systems());
            let same = pairs.map(|(a, b)| a.feedthrough() == b.feedthrough());
            assert!(
                same.into_iter().all(|same| same != with_d),
                "{with_d} {refinement:?}"
            );
            assert_recorded(before, &after, &record, "calibrated");
        }
    }
}

#[test]
fn a_d_that_changed_is_not_written_where_it_has_no_place() {
    let full = layer(-0.7, false);
    let block = &full.model.blocks()[0];
    let moved = block.systems().iter().map(|system| {
        DiagonalSystem::new(
            system.time(),
            system.exponents().to_vec(),
            system.input().clone(),
            system.output().clone(),
            DMatrix::from_element(1, 1, 0.5),
        )
        .unwrap()
    });
    let block = block.with_systems(moved.collect(), Vec::new()).unwrap();
    let other = full.with_model(full.model.with_block(0, block).unwrap());
    let error = other.encode().err().unwrap().to_string();
    assert!(error.contains("its feedthrough D changed"), "{error}");
}

#[test]
fn halves_that_would_change_a_layer_are_written_as_singles() {
    for dtype in [Dtype::BF16, Dtype::F16] {
        let tensors = tensors(-0.7, dtype, true);
        let full = from_tensors("a layer", tensors, &Declared::default()).unwrap();
        for order in [2, 4] {
            let small = reduce(&full.model, &Plan::new(Rule::Order(order)).unwrap()).unwrap();
            let small = full.with_model(small.model);
            let encoded = small.encode().unwrap();
            let kept = encoded.kept_layers().to_vec();
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("small.safetensors");
            drop(encoded.write(&path).unwrap());
            let back = read(&path, &Declared::default()).unwrap();
            let pairs = small.model.blocks()[0].systems().iter();
            for (planned, found) in pairs.zip(back.model.blocks()[0].systems()) {
                let size = distance(
                    planned,
                    &DiagonalSystem::siso(planned.time(), vec![], &[], 0.0).unwrap(),
                );
                let change = distance(planned, found) / size;
                assert!(change < 0.012, "{dtype:?} {order}: {change}");
            }
            let archive = hankelite::archive::Archive::open(&path).unwrap();
            let format = archive.dtype("kernel.C").unwrap();
            assert_eq!(
                format == Dtype::F32,
                !kept.is_empty(),
                "{dtype:?} {order}: {kept:?}"
            );
            // In single precision where that is requested, and not the digits of halves in it.
            let wide = small.encode().unwrap().in_dtype(Dtype::F32).unwrap();
            assert!(wide.kept_layers().is_empty());
            drop(wide.write(&path).unwrap());
            let back = read(&path, &Declared::default()).unwrap();
            let pairs = small.model.blocks()[0].systems().iter();
            for (planned, found) in pairs.zip(back.model.blocks()[0].systems()) {
                assert!(distance(planned, found) < 1e-4);
            }
        }
    }
}

/// A diagonal kernel of state-spaces/s4 v4 whose step goes through a ReLU; channel 1 has a step of 0.
fn without_step() -> BTreeMap<String, RawTensor> {
    let made = tensors(-0.7, Dtype::F32, true);
    let mut renamed: BTreeMap<String, RawTensor> = made
        .into_iter()
        .map(|(name, tensor)| (name.replace("log_A_real", "A_real"), tensor))
        .collect();
    renamed.remove("kernel.log_dt");
    let tensor = |shape: &[usize], values: &[f64]| {
        RawTensor::from_f64(Dtype::F32, shape.to_vec(), values).unwrap()
    };
    let mut put = |name: &str, made: RawTensor| renamed.insert(name.to_string(), made);
    put("kernel.inv_dt", tensor(&[CHANNELS, 1], &[0.1, -0.2, 0.3]));
    let grid = [1, CHANNELS, MODES, 2];
    let one = [1.0, 0.0].repeat(CHANNELS * MODES);
    put("kernel.B", tensor(&grid, &one));
    let c: Vec<f64> = (0..2 * CHANNELS * MODES)
        .map(|k| (k as f64).cos())
        .collect();
    put("kernel.C", tensor(&grid, &c));
    put("D", tensor(&[1, CHANNELS], &[0.5, -0.25, 1.0]));
    renamed
}

/// That steps go through a ReLU.
fn behind_relu() -> Declared {
    Declared {
        dt_transform: Some(Transform::Relu),
        ..Declared::default()
    }
}

/// The model of tensors that would be written.
fn reopened(archive: &Archive, declared: &Declared) -> Checkpoint {
    let stored = archive.names();
    let stored = stored.map(|name| (name.to_string(), archive.tensor(name).unwrap()));
    from_tensors("again", stored.collect(), declared).unwrap()
}

#[test]
fn a_channel_with_a_step_of_zero_holds_no_state_and_is_cut_to_none() {
    let declared = behind_relu();
    let full = from_tensors("a layer", without_step(), &declared).unwrap();
    let note = full.notes().join("\n");
    assert!(
        note.contains("channel 1: a step of 0, so no state"),
        "{note}"
    );
    let dead = &full.model.blocks()[0].systems()[1];
    assert_eq!(response(dead)[0], -0.25);
    assert!(response(dead)[1..].iter().all(|sample| *sample == 0.0));

    let plan = plan(3, Method::Balanced, TimeBase::Discrete).unwrap();
    let made = reduce(&full.model, &plan).unwrap();
    assert_eq!(made.records[0].channels[1].order, 0);
    let written = full.with_model(made.model.clone());
    let archive = written.encode().unwrap().into_archive();
    let step = archive.tensor("kernel.inv_dt").unwrap().to_f64().unwrap();
    assert_eq!(step[1], f64::from(-0.2_f32));
    let again = reopened(&archive, &declared);
    for (a, b) in made.model.blocks()[0]
        .systems()
        .iter()
        .zip(again.model.blocks()[0].systems())
    {
        assert!(distance(a, b) < 1e-5);
    }
}

#[test]
fn a_channel_without_a_step_gets_one_where_it_comes_to_hold_a_state() {
    let declared = behind_relu();
    let full = from_tensors("a layer", without_step(), &declared).unwrap();
    let mut block = full.model.blocks()[0].clone().into_parts();
    let dead = &block.systems[1];
    let output = DMatrix::from_element(1, MODES, Complex64::ONE);
    let (input, through) = (dead.input().clone(), dead.feedthrough().clone());
    let exponents = dead.exponents().to_vec();
    let held = DiagonalSystem::new(dead.time(), exponents, input, output, through).unwrap();
    block.systems[1] = held.clone();
    let blocks = vec![Block::new(block).unwrap()];
    let model = full.model.with_blocks(blocks).unwrap();
    let archive = full.with_model(model).encode().unwrap().into_archive();
    let again = reopened(&archive, &declared);
    let found = &again.model.blocks()[0].systems()[1];
    assert!(distance(found, &held) < 1e-5);
}

#[test]
fn the_softmax_of_a_channel_without_a_step_is_refused() {
    let declared = Declared {
        discretisation: Some(Discretisation::Dss),
        length: Some(64),
        ..behind_relu()
    };
    let read = from_tensors("a layer", without_step(), &declared);
    let error = read.err().unwrap().to_string();
    assert!(
        error.contains("channel 1") && error.contains("step"),
        "{error}"
    );
}

#[test]
fn a_mode_that_turns_farther_than_digits_reach_is_refused_and_one_near_that_noted() {
    let turning = |frequency: f64| {
        let mut made = tensors(-0.7, Dtype::F64, true);
        let mut values = made["kernel.A_imag"].to_f64().unwrap();
        values[MODES + 1] = frequency;
        let shape = vec![CHANNELS, MODES];
        let tensor = RawTensor::from_f64(Dtype::F64, shape, &values).unwrap();
        made.insert("kernel.A_imag".to_string(), tensor);
        from_tensors("a layer", made, &Declared::default())
    };
    let error = turning(1e30).err().unwrap().to_string();
    assert!(
        error.contains("channel 1") && error.contains("radians in one step"),
        "{error}"
    );
    let noted = turning(1e8).unwrap().notes().join("\n");
    assert!(
        noted.contains("single precision keeps less than two digits"),
        "{noted}"
    );
    assert!(turning(1e4).unwrap().notes().is_empty());
}
