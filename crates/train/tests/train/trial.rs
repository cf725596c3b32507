//! Rates that are tried before a training.

use hankelite_data::Dataset;
use hankelite_train::{
    Monitor, Recipe, RecipeError, Stop, Task, TrainError, Training, Trial, TrialOutcome,
};

use crate::points::points;
use crate::small::{Small, StopAfter, recipe, run};

fn trial(factors: &[f64], steps: u64) -> Trial {
    Trial {
        factors: Some(factors.to_vec()),
        steps: Some(steps),
    }
}

fn tried(
    network: &Small,
    (data, held_out): (&Dataset, Option<&Dataset>),
    trial: &Trial,
    stop_after: u64,
) -> Result<Option<TrialOutcome>, TrainError> {
    let recipe = recipe();
    let training = Training {
        network,
        data,
        validation: held_out,
        recipe: &recipe,
    };
    let stop = Stop::default();
    let mut observer = StopAfter(stop_after, stop.clone());
    trial.run(&training, &mut Task::default(), &mut observer, &stop)
}

#[test]
fn of_rates_that_are_nearly_equal_the_largest_is_taken() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 96);
    let (data, held_out) = data.hold_out(24, 0).unwrap();
    let network = Small::started();
    // After a single step hardly anything has moved.
    let found = tried(
        &network,
        (&data, Some(&held_out)),
        &trial(&[0.2, 0.01, 0.1], 1),
        100,
    );
    let found = found.unwrap().unwrap();
    let values: Vec<f64> = found
        .tried
        .iter()
        .map(|tried| tried.value.unwrap())
        .collect();
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    assert!(
        values.iter().all(|value| *value < 1.25 * least),
        "{values:?}"
    );
    assert_eq!(found.factor, 0.2);
}

#[test]
fn a_trial_takes_the_best_of_short_trainings_and_leaves_no_trace() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 96);
    let (data, held_out) = data.hold_out(24, 0).unwrap();
    let sets = (&data, Some(&held_out));
    let network = Small::started();
    let found = tried(&network, sets, &trial(&[0.01, 1.0, 0.1], 6), 100);
    let found = found.unwrap().unwrap();
    assert_eq!(network.values(), Small::started().values());
    assert_eq!((found.steps, found.sequences), (6, 24));
    assert_eq!(found.monitor, Monitor::Loss);
    assert_eq!(found.factor, 1.0, "{found:?}");
    for tried in &found.tried {
        let short = Recipe {
            epochs: None,
            steps: Some(6),
            lr: 0.05 * tried.factor,
            lr_dynamics: 0.02 * tried.factor,
            warmup: 0,
            snapshot_every: 0,
            label_smoothing: 0.0,
            ..recipe()
        };
        assert_eq!((tried.lr, tried.lr_dynamics), (short.lr, short.lr_dynamics));
        let alone = Small::started();
        let outcome = run(&alone, sets, &short).unwrap();
        let last = outcome.history.last().unwrap();
        assert_eq!(tried.value, last.validation_loss);
        assert_eq!(tried.accuracy, last.validation_accuracy);
    }
    let applied = found.apply(&recipe());
    assert_eq!((applied.lr, applied.lr_dynamics), (0.05, 0.02));
    let again = tried(&network, sets, &trial(&[0.01, 1.0, 0.1], 6), 100);
    assert_eq!(again.unwrap().unwrap(), found);
}

#[test]
fn without_factors_rates_are_searched_for() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 96);
    let (data, held_out) = data.hold_out(24, 0).unwrap();
    let sets = (&data, Some(&held_out));
    let search = Trial {
        steps: Some(6),
        ..Trial::default()
    };
    let network = Small::started();
    let found = tried(&network, sets, &search, 1000).unwrap().unwrap();
    let factors: Vec<f64> = found.tried.iter().map(|tried| tried.factor).collect();
    assert!(factors.starts_with(&[1.0, 2.0]), "{found:?}");
    assert!(found.factor >= 1.0, "{found:?}");
    assert!(
        found.start.unwrap() > found.tried[0].value.unwrap(),
        "{found:?}"
    );
}

#[test]
fn a_trial_that_is_stopped_gives_nothing_and_one_rate_needs_none() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 96);
    let (data, held_out) = data.hold_out(24, 0).unwrap();
    let sets = (&data, Some(&held_out));
    let network = Small::started();
    let stopped = tried(&network, sets, &trial(&[0.5, 1.0], 6), 3);
    assert_eq!(stopped.unwrap(), None);
    assert_eq!(network.values(), Small::started().values());
    assert_eq!(tried(&network, sets, &trial(&[0.5], 6), 100).unwrap(), None);
    // Never more steps than the training has, 24 here.
    let long = tried(&network, sets, &trial(&[0.5, 1.0], 1000), 10_000);
    assert_eq!(long.unwrap().unwrap().steps, 30);
}

#[test]
fn what_cannot_be_tried_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 96);
    let network = Small::started();
    let error = tried(&network, (&data, None), &trial(&[0.5, 1.0], 6), 9).unwrap_err();
    let expected = RecipeError::NoValidation { key: "trial" };
    assert!(matches!(error, TrainError::Recipe(found) if found == expected));
    let cases = [
        ("factors = [1.0, 0.0]", "`factors` is 0"),
        ("factors = [nan]", "`factors` is NaN"),
        ("steps = 0", "`steps` is 0, expected 1 to 1000000000"),
    ];
    for (text, message) in cases {
        let trial: Trial = toml::from_str(text).unwrap();
        let error = trial.check().unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
    assert_eq!(toml::from_str::<Trial>("").unwrap(), Trial::default());
}
