//! Training by a teacher, with labels and without.

use std::path::Path;

use candle_core::{DType, Device};
use hankelite_archive::{Archive, write_arrays};
use hankelite_data::{Dataset, Source, Targets};
use hankelite_train::nn::{SequenceModel, TrainableNetwork, TrainableOptions, random_model};
use hankelite_train::{
    Composed, Distil, Monitor, Outcome, Recipe, RecipeError, Stop, Task, Terms, TrainError,
    Training, evaluate, evaluate_by, logits,
};

use crate::points::points;

fn network(states: usize, seed: u64) -> TrainableNetwork {
    let text = format!(
        "layer = \"s4d\"\nchannels = 3\nstates = {states}\nlayers = 2\ninputs = 2\noutputs = 3"
    );
    let model = random_model(&toml::from_str(&text).unwrap(), 4, seed).unwrap();
    let options = TrainableOptions {
        dtype: DType::F64,
        ..TrainableOptions::new(4)
    };
    TrainableNetwork::from_model(&model, &options, &Device::Cpu).unwrap()
}

fn unlabelled(folder: &Path, count: usize) -> Dataset {
    points(folder, count);
    let archive = Archive::open(folder.join("points.safetensors")).unwrap();
    let inputs = archive.tensor("inputs").unwrap();
    let path = folder.join("unlabelled.safetensors");
    write_arrays(&path, [("inputs", inputs)], "").unwrap();
    let data = Dataset::read(&Source::Arrays(path), None).unwrap();
    assert!(matches!(data.targets(), Targets::None));
    data
}

fn taught(data: &Dataset, distil: Distil) -> (Outcome, TrainableNetwork) {
    let (data, held_out) = data.hold_out(12, 0).unwrap();
    let (student, teacher) = (network(2, 1), network(5, 2));
    let recipe = Recipe {
        epochs: Some(8),
        batch: 12,
        lr: 0.02,
        lr_dynamics: 0.01,
        average: 0.8,
        monitor: Monitor::Teacher,
        keep_start: true,
        ..Recipe::default()
    };
    let terms = Terms {
        distil: Some(distil),
        ..Terms::default()
    };
    let training = Training {
        network: &student,
        data: &data,
        validation: Some(&held_out),
        recipe: &recipe,
    };
    let mut objective = Composed::new(&student, &terms, Some(&teacher), 0.0).unwrap();
    let outcome = training.run(&mut objective, None, &mut (), &Stop::default());
    let outcome = outcome.unwrap();
    let found = evaluate_by(&mut objective, &student, &held_out, 5).unwrap();
    let best = outcome.best.unwrap();
    assert!((found.distance().unwrap() - best.value).abs() < 1e-9 * best.value);
    (outcome, student)
}

#[test]
fn a_teacher_is_followed_without_labels() {
    let folder = tempfile::tempdir().unwrap();
    let data = unlabelled(folder.path(), 60);
    let (outcome, _) = taught(&data, Distil::default());
    let (start, best) = (outcome.start.unwrap(), outcome.best.unwrap());
    assert!(best.value < 0.2 * start.distance().unwrap(), "{best:?}");
    // Without labels the accuracy is the share of the teacher's answers.
    let last = outcome.history.last().unwrap();
    assert!(last.validation_accuracy.unwrap() >= start.tally().accuracy().unwrap());
    assert!(last.terms["logits"] > 0.0 && last.terms["layers"] > 0.0);
}

#[test]
fn labels_of_weight_zero_are_not_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let distil = Distil {
        labels: 0.0,
        ..Distil::default()
    };
    let bare = unlabelled(folder.path(), 60);
    let labelled = points(folder.path(), 60);
    let values = |network: &TrainableNetwork| {
        let vars = network.parameters().iter().map(|p| p.var.flatten_all());
        vars.map(|var| var.unwrap().to_vec1::<f64>().unwrap())
            .collect::<Vec<_>>()
    };
    // The same steps; which epoch is taken may differ by the accuracy, so the last is compared.
    let ((_, one), (_, other)) = (taught(&bare, distil), taught(&labelled, distil));
    assert_eq!(values(&one), values(&other));
    let (_, third) = taught(&labelled, Distil::default());
    assert_ne!(values(&third), values(&one));
}

#[test]
fn agreement_with_the_teacher_is_what_its_logits_have() {
    let folder = tempfile::tempdir().unwrap();
    let data = unlabelled(folder.path(), 30);
    let (student, teacher) = (network(2, 1), network(5, 2));
    let terms = Terms {
        distil: Some(Distil::default()),
        ..Terms::default()
    };
    let mut objective = Composed::new(&student, &terms, Some(&teacher), 0.0).unwrap();
    let found = evaluate_by(&mut objective, &student, &data, 7).unwrap();
    let all: Vec<usize> = (0..30).collect();
    let largest = |network: &TrainableNetwork| -> Vec<usize> {
        let rows = logits(network, &data, &all).unwrap();
        let best = |row: &Vec<f64>| (0..3).max_by(|&a, &b| row[a].total_cmp(&row[b])).unwrap();
        rows.iter().map(best).collect()
    };
    let (own, taught) = (largest(&student), largest(&teacher));
    let same = own.iter().zip(&taught).filter(|(a, b)| a == b).count();
    assert_eq!(found.tally().accuracy(), Some(same as f64 / 30.0));
    // T² KL of the softmax of both, by hand.
    let softmax = |row: &[f64]| {
        let exp: Vec<f64> = row.iter().map(|x| (x / 2.0).exp()).collect();
        let sum: f64 = exp.iter().sum();
        exp.into_iter().map(|x| x / sum).collect::<Vec<_>>()
    };
    let (a, b) = (
        logits(&student, &data, &all).unwrap(),
        logits(&teacher, &data, &all).unwrap(),
    );
    let far = a.iter().zip(&b).map(|(own, taught)| {
        let (p, q) = (softmax(taught), softmax(own));
        let terms = p.iter().zip(&q).map(|(p, q)| p * (p / q).ln());
        4.0 * terms.sum::<f64>() / 30.0
    });
    let far: f64 = far.sum();
    let distance = found.distance().unwrap();
    assert!(
        (distance - far).abs() < 1e-12 * (1.0 + far),
        "{distance} {far}"
    );
}

#[test]
fn what_needs_labels_or_a_teacher_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = unlabelled(folder.path(), 30);
    let student = network(2, 1);
    let error = evaluate(&student, &data, 7).unwrap_err();
    assert!(matches!(error, TrainError::NoTargets), "{error}");
    let labelled = points(folder.path(), 30);
    let recipe = Recipe {
        batch: 10,
        monitor: Monitor::Teacher,
        ..Recipe::default()
    };
    let training = Training {
        network: &student,
        data: &labelled,
        validation: Some(&labelled),
        recipe: &recipe,
    };
    let error = training.check(&mut Task::default()).unwrap_err();
    let expected = RecipeError::NothingToMonitor;
    assert!(matches!(error, TrainError::Recipe(found) if found == expected));
}
