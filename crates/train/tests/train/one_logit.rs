//! Networks of one logit, that of a sigmoid.

use std::path::Path;

use candle_core::Device;
use hankelite_archive::{Dtype, RawTensor, write_arrays};
use hankelite_data::{Dataset, Source};
use hankelite_train::nn::{Architecture, SequenceModel, TrainableNetwork};
use hankelite_train::{
    Composed, Distil, Recipe, Stop, Task, Terms, TrainError, Training, evaluate, evaluate_by,
    require_suitable,
};

const LENGTH: usize = 6;

/// Sequences about 1 or -1, of class 1 or 0; or of three classes.
fn signs(folder: &Path, classes: usize) -> Dataset {
    let count = 60;
    let (mut inputs, mut labels) = (vec![], vec![]);
    for index in 0..count {
        labels.extend(((index % classes) as i64).to_le_bytes());
        let sign = 2.0 * (index % 2) as f64 - 1.0;
        inputs.extend((0..LENGTH).map(|step| sign + 0.1 * ((index * 7 + step * 3) % 5) as f64));
    }
    let path = folder.join(format!("signs-{classes}.safetensors"));
    let inputs = RawTensor::from_f64(Dtype::F32, vec![count, LENGTH, 1], &inputs).unwrap();
    let labels = RawTensor::new(Dtype::I64, vec![count], labels).unwrap();
    write_arrays(&path, [("inputs", inputs), ("labels", labels)], "").unwrap();
    Dataset::read(&Source::Arrays(path), None).unwrap()
}

fn network(seed: u64) -> TrainableNetwork {
    let text = "layer = \"s4d\"\nchannels = 4\nstates = 3\nlayers = 1\ninputs = 1\noutputs = 1";
    let architecture: Architecture = toml::from_str(text).unwrap();
    TrainableNetwork::random(&architecture, LENGTH, seed, &Device::Cpu).unwrap()
}

#[test]
fn one_logit_learns_two_classes_and_no_more() {
    let place = tempfile::tempdir().unwrap();
    let data = signs(place.path(), 2);
    let network = network(0);
    require_suitable(&network.to_model().unwrap(), &data).unwrap();
    let recipe = Recipe {
        epochs: Some(15),
        batch: 20,
        lr: 0.02,
        ..Recipe::default()
    };
    let training = Training {
        network: &network,
        data: &data,
        validation: None,
        recipe: &recipe,
    };
    let before = evaluate(&network, &data, 20).unwrap();
    let stop = Stop::default();
    training
        .run(&mut Task::default(), None, &mut (), &stop)
        .unwrap();
    let after = evaluate(&network, &data, 20).unwrap();
    assert_eq!(after.accuracy(), Some(1.0));
    assert!(after.loss() < 0.3 * before.loss(), "{before:?} {after:?}");
    let three = signs(place.path(), 3);
    let error = require_suitable(&network.to_model().unwrap(), &three).unwrap_err();
    assert!(
        matches!(error, TrainError::Classes { found: 3, .. }),
        "{error}"
    );
}

#[test]
fn a_teacher_of_one_logit_is_followed() {
    let place = tempfile::tempdir().unwrap();
    let data = signs(place.path(), 2);
    let (own, other) = (network(0), network(1));
    let terms = Terms {
        distil: Some(Distil::default()),
        ..Terms::default()
    };
    let distance = |teacher: &dyn SequenceModel| {
        let mut objective = Composed::new(&own, &terms, Some(teacher), 0.0).unwrap();
        let found = evaluate_by(&mut objective, &own, &data, 20).unwrap();
        found.distance().unwrap()
    };
    assert!(distance(&own).abs() < 1e-6);
    assert!(distance(&other) > 1e-4);
}
