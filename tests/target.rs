//! Whole models to a target, states and maps together, on the shipped model.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use hankelite::calibrate::{CalibratedReduction, Calibration, WeightChoice};
use hankelite::infer::{Network, Path as Run};
use hankelite::model::Sequence;
use hankelite::rounding::{Entries, MapStorage, Numbers, Storage};
use hankelite::stream::{Image, Runner};
use hankelite::target::{Parts, Size, TargetError, TargetReduction};
use hankelite::{Declared, Model, read};

const LENGTH: usize = 256;

fn shipped() -> Model {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/models/waves/model.safetensors"
    );
    read(path, &Declared::default()).unwrap().model
}

/// Tones of some frequencies, with an overtone.
fn tones(count: usize) -> Vec<Vec<f32>> {
    let tone = |n: usize| {
        let at = |t: usize| {
            let angle = 0.01 * (n + 3) as f32 * t as f32;
            angle.sin() + 0.3 * (2.7 * angle + n as f32).sin()
        };
        (0..LENGTH).map(at).collect()
    };
    (0..count).map(tone).collect()
}

fn listed(tones: &[Vec<f32>]) -> Vec<Sequence<'_>> {
    tones.iter().map(|tone| Sequence::Values(tone)).collect()
}

/// What a test does with a model that is ready to be brought to a target.
fn with_target(test: impl FnOnce(&Model, &TargetReduction<'_>, &[Sequence<'_>])) {
    let (model, tones) = (shipped(), tones(40));
    let all = listed(&tones);
    let (used, other) = all.split_at(32);
    let network = Network::new(&model, LENGTH, Run::Auto).unwrap();
    let calibration = Calibration::gather(&network, used, "tones").unwrap();
    let choice = WeightChoice::Auto;
    let prepared = CalibratedReduction::new(&model, &calibration, used, choice).unwrap();
    test(&model, &TargetReduction::new(&prepared).unwrap(), other);
}

#[test]
fn a_target_of_bytes_is_met_by_what_an_image_takes() {
    with_target(|model, target, other| {
        let full = Size::of(model, &Storage::single(model)).unwrap();
        let mut changes = Vec::new();
        for times in [3, 6, 9] {
            let bytes = full.total() / times;
            let plan = target.plan(bytes, Parts::All).unwrap();
            assert!(plan.size.total() <= bytes, "1/{times}: {:?}", plan.size);
            // What is left over is less than a channel's lanes take.
            assert!(
                plan.size.total() > bytes * 8 / 10,
                "1/{times}: {:?}",
                plan.size
            );
            let made = target.build(&plan).unwrap();
            let image = Image::packed(&made.model, &made.storage).unwrap();
            let runner = Runner::<f32>::from_image(image).unwrap();
            assert_eq!(runner.weight_bytes(), made.size.weights);
            assert_eq!(runner.state_bytes(), made.size.state);
            assert!(made.size.total() <= bytes, "1/{times}: {:?}", made.size);
            changes.push(target.reduction().change_on(&made.model, other).unwrap());
        }
        assert!(changes[0] < 0.1, "{changes:?}");
        assert!(changes[2] < 0.6, "{changes:?}");
        assert!(changes[0] < changes[2], "{changes:?}");
    });
}

#[test]
fn the_model_is_what_its_storage_stores() {
    with_target(|model, target, other| {
        let bytes = Size::of(model, &Storage::single(model)).unwrap().total() / 6;
        let made = target
            .build(&target.plan(bytes, Parts::All).unwrap())
            .unwrap();
        let integers = made.storage.layers.iter();
        let integers = integers.filter(|layer| matches!(layer.map, MapStorage::Integers(_)));
        assert_eq!(integers.count(), model.blocks().len());
        let stored = made.storage.applied(&made.model).unwrap();
        for (own, stored) in made.model.blocks().iter().zip(stored.blocks()) {
            assert_eq!(own.output(), stored.output());
            assert_eq!(own.norm(), stored.norm());
        }
        assert!(target.reduction().change_on(&stored, other).unwrap() < 1.0);
        let logits = |model| {
            Network::new(model, LENGTH, Run::Auto)
                .unwrap()
                .logits(other[0])
        };
        let (own, stored) = (logits(&made.model).unwrap(), logits(&stored).unwrap());
        for (own, stored) in own.iter().zip(stored) {
            assert!(
                (own - stored).abs() < 1e-9 * (1.0 + own.abs()),
                "{own} {stored}"
            );
        }
    });
}

#[test]
fn parts_that_were_not_requested_stay() {
    with_target(|model, target, _| {
        let full = Size::of(model, &Storage::single(model)).unwrap().total();
        let states = target.plan(full / 2, Parts::States).unwrap();
        let single = states.layers.iter().all(|layer| {
            layer.numbers == Numbers::F32 && layer.map.unwrap().entries == Entries::Full
        });
        assert!(single && states.size.total() <= full / 2);
        let maps = target.plan(full * 8 / 10, Parts::Maps).unwrap();
        for (orders, block) in maps.orders.iter().zip(model.blocks()) {
            assert!(orders.iter().all(|&order| order == block.order()));
        }
        assert!(maps.size.total() <= full * 8 / 10);
    });
}

#[test]
fn a_smaller_change_takes_more_bytes() {
    with_target(|_, target, _| {
        let sizes = [0.02, 0.1, 0.4].map(|change| {
            let plan = target.plan_for_change(change, Parts::All).unwrap();
            assert!(plan.predicted <= change);
            plan.size.total()
        });
        assert!(sizes[0] > sizes[1] && sizes[1] > sizes[2], "{sizes:?}");
    });
}

#[test]
fn targets_out_of_reach_are_refused() {
    with_target(|_, target, _| {
        let error = target.plan(500, Parts::All).unwrap_err();
        assert!(matches!(error, TargetError::TooSmall { target: 500, least } if least > 500));
        let error = target
            .bytes_for_step(1e-6, 1 << 20, Parts::All)
            .unwrap_err();
        assert!(matches!(error, TargetError::TooSlow { .. }));
    });
    let (model, tones) = (shipped(), tones(4));
    let few = listed(&tones);
    let network = Network::new(&model, LENGTH, Run::Auto).unwrap();
    let calibration = Calibration::gather(&network, &few, "tones").unwrap();
    let choice = WeightChoice::Auto;
    let prepared = CalibratedReduction::new(&model, &calibration, &few, choice).unwrap();
    let error = TargetReduction::new(&prepared).err().unwrap();
    let expected = TargetError::Sequences {
        found: 4,
        expected: 8,
    };
    assert_eq!(error.to_string(), expected.to_string());
}
