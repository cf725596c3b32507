//! Whole models to a target, states and maps together, on the shipped model.

use hankelite::advanced::{CalibratedReduction, Sizes, WeightChoice};
use hankelite::calibrate::Calibration;
use hankelite::infer::{Network, Path as Run};
use hankelite::model::{Model, Pooling, Sequence};
use hankelite::rounding::{Entries, MapStorage, Numbers, Storage};
use hankelite::stream::{Image, Runner};
use hankelite::target::{Parts, TargetError, WholeSize};
use hankelite::{Declared, read};
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use crate::draws::{self, Draw, PLAIN};
use crate::models::{change_layer, changed};

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

/// What a test does with the shipped model, ready to be brought to a size; then sequences that are not its
/// own.
fn with_sizes(
    parts: Parts,
    test: impl FnOnce(&CalibratedReduction<'_>, &Sizes<'_>, &[Sequence<'_>]),
) {
    with_sizes_of(&shipped(), &tones(40), parts, test);
}

/// The same for any model; the first 32 sequences calibrate it.
fn with_sizes_of(
    model: &Model,
    tones: &[Vec<f32>],
    parts: Parts,
    test: impl FnOnce(&CalibratedReduction<'_>, &Sizes<'_>, &[Sequence<'_>]),
) {
    let all = listed(tones);
    let (used, other) = all.split_at(32);
    let network = Network::new(model, LENGTH, Run::Auto).unwrap();
    let calibration = Calibration::gather(&network, used, "tones").unwrap();
    let choice = WeightChoice::Auto;
    let prepared = CalibratedReduction::new(model, &calibration, used, choice, &()).unwrap();
    test(
        &prepared,
        &Sizes::new(&prepared, other, parts).unwrap(),
        other,
    );
}

fn bytes(most: usize) -> WholeSize {
    WholeSize {
        bytes: Some(most),
        ..WholeSize::default()
    }
}

#[test]
fn a_target_of_bytes_is_met_by_what_an_image_takes() {
    with_sizes(Parts::All, |prepared, sizes, other| {
        let full = sizes.full();
        let mut changes = Vec::new();
        for times in [3, 6, 9] {
            let most = full.total() / times;
            let made = sizes.meet(&bytes(most)).unwrap();
            let planned = made.plan.size;
            assert!(planned.total() <= most, "1/{times}: {planned:?}");
            // What is left over is less than a channel's lanes take.
            assert!(planned.total() > most * 8 / 10, "1/{times}: {planned:?}");
            let image = Image::packed(&made.model, &made.storage).unwrap();
            let runner = Runner::<f32>::from_image(image).unwrap();
            assert_eq!(runner.weight_bytes(), made.size.weights);
            assert_eq!(runner.state_bytes(), made.size.state);
            assert!(made.size.total() <= most, "1/{times}: {:?}", made.size);
            let change = prepared.change_on(&made.model, other).unwrap();
            assert_eq!(made.held_out_change, Some(change));
            changes.push(change);
        }
        assert!(changes[0] < 0.1, "{changes:?}");
        assert!(changes[2] < 0.6, "{changes:?}");
        assert!(changes[0] < changes[2], "{changes:?}");
    });
}

#[test]
fn the_model_is_what_its_storage_stores() {
    with_sizes(Parts::All, |prepared, sizes, other| {
        let made = sizes.meet(&WholeSize::times(6.0)).unwrap();
        let integers = made.storage.layers.iter();
        let integers = integers.filter(|layer| matches!(layer.map, MapStorage::Integers(_)));
        assert_eq!(integers.count(), made.model.blocks().len());
        let stored = made.storage.applied(&made.model).unwrap();
        for (own, stored) in made.model.blocks().iter().zip(stored.blocks()) {
            assert_eq!(own.output(), stored.output());
            assert_eq!(own.norm(), stored.norm());
        }
        assert!(prepared.change_on(&stored, other).unwrap() < 1.0);
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
    with_sizes(Parts::States, |_, sizes, _| {
        let most = sizes.full().total() / 2;
        let states = sizes.meet(&bytes(most)).unwrap().plan;
        let single = states.layers.iter().all(|layer| {
            layer.numbers == Numbers::F32 && layer.map.unwrap().entries == Entries::Full
        });
        assert!(single && states.size.total() <= most);
    });
    with_sizes(Parts::Maps, |_, sizes, _| {
        let most = sizes.full().total() * 8 / 10;
        let maps = sizes.meet(&bytes(most)).unwrap().plan;
        for (orders, block) in maps.orders.iter().zip(shipped().blocks()) {
            assert!(orders.iter().all(|&order| order == block.order()));
        }
        assert!(maps.size.total() <= most);
    });
}

#[test]
fn a_smaller_change_takes_more_bytes() {
    with_sizes(Parts::All, |_, sizes, _| {
        let found = [0.02, 0.1, 0.4].map(|change| {
            let size = WholeSize {
                change: Some(change),
                ..WholeSize::default()
            };
            let met = sizes.meet(&size).unwrap();
            assert!(met.held_out_change.unwrap() <= change);
            met.size.total()
        });
        assert!(found[0] > found[1] && found[1] > found[2], "{found:?}");
    });
}

#[test]
fn sizes_are_tried_from_large_to_small_until_two_do_not_do() {
    with_sizes(Parts::All, |_, sizes, _| {
        let mut tried = Vec::new();
        let found = sizes.smallest(|times, met| {
            tried.push((times, met.size.total()));
            Ok::<_, TargetError>(times < 2.5 || times == 4.0)
        });
        let found = found.unwrap().unwrap();
        assert_eq!((found.times, found.made.size.total()), tried[2]);
        let all: Vec<f64> = tried.iter().map(|one| one.0).collect();
        assert_eq!(all, [2.0, 3.0, 4.0, 6.0, 8.0]);
        assert!(
            tried.windows(2).all(|pair| pair[1].1 < pair[0].1),
            "{tried:?}"
        );
        let none = sizes.smallest(|_, _| Ok::<_, TargetError>(false)).unwrap();
        assert!(none.is_none());
        let stopped = sizes.smallest(|_, _| Err(TargetError::Cancelled(hankelite::Cancelled)));
        assert!(matches!(stopped, Err(TargetError::Cancelled(_))));
    });
}

#[test]
fn a_size_does_not_depend_on_the_sizes_before() {
    let plan = |all: &[f64]| {
        let mut plan = None;
        with_sizes(Parts::States, |_, sizes, _| {
            for &times in all {
                plan = Some(sizes.meet(&WholeSize::times(times)).unwrap().plan);
            }
        });
        plan.unwrap()
    };
    // The larger one needs to know what high orders leave, of which half is known at first.
    let larger = plan(&[1.2]);
    assert!(larger.orders.iter().flatten().any(|&order| order > 16));
    for times in [1.3, 2.0] {
        assert_eq!(plan(&[times]), plan(&[1.2, times]), "1/{times}");
    }
}

#[test]
fn targets_out_of_reach_are_refused() {
    with_sizes(Parts::All, |_, sizes, _| {
        let error = sizes.meet(&bytes(500)).unwrap_err();
        assert!(matches!(error, TargetError::TooSmall(_)), "{error}");
        let expected = "a target of 500 bytes, expected at least ";
        assert!(error.to_string().starts_with(expected), "{error}");
        let size = WholeSize {
            microseconds: Some(1e-6),
            ..WholeSize::default()
        };
        let error = sizes.meet(&size).unwrap_err().to_string();
        let expected = "a step of 0.000001 us, expected at least ";
        assert!(error.starts_with(expected), "{error}");
        let error = sizes.meet(&WholeSize::times(1.0)).unwrap_err().to_string();
        assert!(error.contains("is 1, expected a number above 1"), "{error}");
    });
    let (model, tones) = (shipped(), tones(4));
    let few = listed(&tones);
    let network = Network::new(&model, LENGTH, Run::Auto).unwrap();
    let calibration = Calibration::gather(&network, &few, "tones").unwrap();
    let choice = WeightChoice::Auto;
    let prepared = CalibratedReduction::new(&model, &calibration, &few, choice, &()).unwrap();
    let error = Sizes::new(&prepared, &[], Parts::All).err().unwrap();
    let expected = "4 calibration sequences, expected at least 8: ";
    assert!(error.to_string().starts_with(expected), "{error}");
}

/// Three layers of 16 channels that share twelve modes.
fn of_shared_modes() -> Model {
    let draw = Draw {
        gated: true,
        pooling: Some(Pooling::Mean),
        ..PLAIN
    };
    let mut random = ChaCha8Rng::seed_from_u64(5);
    changed(&draws::model(&draw, 3), |parts| {
        for layer in 0..parts.blocks.len() {
            let shared = draws::shared(&mut random, 16, 12, layer == 1).into_parts();
            change_layer(parts, layer, |layer| layer.systems = shared.systems);
        }
    })
}

#[test]
fn shared_modes_are_rounded_for_what_their_maps_take() {
    let model = of_shared_modes();
    // Two tones a sequence.
    let tones: Vec<Vec<f32>> = tones(80).chunks(2).map(|pair| pair.concat()).collect();
    with_sizes_of(&model, &tones, Parts::Maps, |prepared, sizes, other| {
        let mut bits = Vec::new();
        for times in [3.0, 4.5, 5.5] {
            let made = sizes.meet(&WholeSize::times(times)).unwrap();
            let nearest = Storage::chosen(&model, &made.plan.storage()).unwrap();
            let nearest = prepared.change_on(&nearest.applied(&model).unwrap(), other);
            let (nearest, change) = (nearest.unwrap(), made.held_out_change.unwrap());
            assert!(change < 0.85 * nearest, "1/{times}: {change} {nearest}");
            // The storage has the model's own numbers.
            let image = Image::packed(&made.model, &made.storage).unwrap();
            assert_eq!(image.as_bytes().len(), made.size.weights);
            let again = Storage::chosen(&made.model, &made.plan.storage()).unwrap();
            let again = prepared.change_on(&again.applied(&made.model).unwrap(), other);
            assert!((again.unwrap() - change).abs() < 1e-9);
            bits.push(made.plan.layers[0].systems.unwrap().entries);
        }
        assert!(bits.is_sorted() && bits[0] < bits[2], "{bits:?}");
    });
}
