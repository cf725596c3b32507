//! What a training keeps: averaged weights, and the start where nothing is better.

use candle_core::Tensor;
use hankelite_data::Targets;
use hankelite_train::nn::{Mode, SequenceModel};
use hankelite_train::{
    Entry, Evaluation, Examples, Folder, Loss, Monitor, Objective, Outcome, Recipe, RecipeError,
    Stop, Task, TrainError, Training, task_loss,
};

use crate::points::points;
use crate::runs::contrary;
use crate::small::{Small, StopAfter, recipe, refused, run, run_in};

#[test]
fn averaged_weights_follow_their_formula() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 40);
    let after = |steps: u64, average: f64| {
        let network = Small::started();
        let recipe = Recipe {
            epochs: None,
            steps: Some(steps),
            average,
            warmup: 0,
            ..recipe()
        };
        run(&network, (&data, None), &recipe).unwrap();
        network.values()
    };
    let mut expected = Small::started().values();
    // The course of the rates depends on the number of steps, so that only the first is the same.
    for (found, share) in [
        (after(1, 0.6), 1.0 - 2.0 / 11.0),
        (after(1, 0.1), 1.0 - 0.1),
    ] {
        let last = after(1, 0.0);
        let mean: Vec<Vec<f32>> = (expected.iter().zip(&last))
            .map(|(start, last)| {
                let pairs = start.iter().zip(last);
                pairs
                    .map(|(a, b)| (f64::from(*a) + share * f64::from(b - a)) as f32)
                    .collect()
            })
            .collect();
        let apart = found.iter().flatten().zip(mean.iter().flatten());
        let worst = apart.fold(0.0f32, |worst, (a, b)| worst.max((a - b).abs()));
        assert!(worst < 1e-6, "{worst}");
        assert_ne!(found, last);
    }
    // Weights that do not move keep every bit.
    let still = Recipe {
        lr: 0.0,
        lr_dynamics: 0.0,
        average: 0.9,
        ..recipe()
    };
    let network = Small::started();
    run(&network, (&data, None), &still).unwrap();
    // The buffer counts the passes.
    expected.pop();
    assert_eq!(network.values()[..4], expected[..]);
}

#[test]
fn the_start_is_kept_where_nothing_is_better_and_after_a_stop_too() {
    let place = tempfile::tempdir().unwrap();
    let (data, validation) = contrary(place.path());
    let sets = (&data, Some(&validation));
    let recipe = Recipe {
        keep_start: true,
        ..recipe()
    };
    let network = Small::started();
    let outcome = run(&network, sets, &recipe).unwrap();
    let best = outcome.best.unwrap();
    let start = outcome.start.clone().unwrap();
    assert_eq!((best.epoch, best.step), (0, 0));
    assert_eq!(best.value, start.tally().loss());
    assert!(outcome.history.iter().all(|entry| !entry.best));
    assert_eq!(network.values(), Small::started().values());
    let folder = Folder::create(place.path().join("run"), "").unwrap();
    let stop = Stop::default();
    let mut observer = StopAfter(7, stop.clone());
    let first = Small::started();
    run_in(&first, sets, &recipe, (Some(&folder), &mut observer, &stop)).unwrap();
    let network = Small::started();
    let stop = Stop::default();
    let again = run_in(&network, sets, &recipe, (Some(&folder), &mut (), &stop)).unwrap();
    assert_eq!(again.best, outcome.best);
    assert_eq!(again.start, outcome.start);
    assert_eq!(network.values(), Small::started().values());
    // Without that, the first epoch is the best.
    let plain = Recipe {
        keep_start: false,
        ..recipe
    };
    let outcome = run(&Small::started(), sets, &plain).unwrap();
    assert!(outcome.best.unwrap().epoch > 0 && outcome.start.is_none());
}

/// A training whose distance from a teacher falls with every measurement, while the accuracy is as
/// scripted.
struct Scripted {
    accuracies: Vec<f64>,
    measured: usize,
}

impl Objective for Scripted {
    fn loss(
        &mut self,
        network: &dyn SequenceModel,
        examples: &Examples,
        mode: Mode<'_>,
    ) -> Result<Loss, TrainError> {
        Task::default().loss(network, examples, mode)
    }

    fn measure(
        &mut self,
        network: &dyn SequenceModel,
        examples: &Examples,
    ) -> Result<Evaluation, TrainError> {
        let right = (self.accuracies[self.measured] * 10.0).round() as usize;
        self.measured += 1;
        let labels: Vec<usize> = (0..10).map(|i| usize::from(i >= right)).collect();
        let outputs = Tensor::new(&[[1.0f32, 0.0]; 10], network.device())?;
        let targets = Targets::Classes { labels, classes: 2 };
        let tally = task_loss(&outputs, &targets, 0.0)?.tally;
        let distance = 1.0 / self.measured as f64;
        Ok(Evaluation::new(tally, Some(distance), examples.count))
    }
}

#[test]
fn an_epoch_that_loses_accuracy_is_not_taken_though_it_is_nearer_the_teacher() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 48);
    let (data, held_out) = data.hold_out(16, 0).unwrap();
    let recipe = Recipe {
        epochs: Some(4),
        monitor: Monitor::Teacher,
        keep_start: true,
        ..recipe()
    };
    let network = Small::started();
    let training = Training {
        network: &network,
        data: &data,
        validation: Some(&held_out),
        recipe: &recipe,
    };
    // Two measurements are those of the check.
    let mut objective = Scripted {
        accuracies: vec![0.5, 0.5, 0.7, 0.6, 0.7, 0.8, 0.6],
        measured: 0,
    };
    let outcome = training.run(&mut objective, None, &mut (), &Stop::default());
    let outcome = outcome.unwrap();
    let best: Vec<bool> = outcome.history.iter().map(|entry| entry.best).collect();
    assert_eq!(best, [false, true, true, false]);
    assert_eq!(outcome.best.unwrap().epoch, 3);
    assert_eq!(outcome.start.unwrap().tally().accuracy(), Some(0.7));
}

/// A training whose logits of the right class are as scripted, for each measurement one row.
struct Spoken<const SIZE: usize> {
    logits: Vec<[f32; SIZE]>,
    measured: usize,
}

impl<const SIZE: usize> Objective for Spoken<SIZE> {
    fn loss(
        &mut self,
        network: &dyn SequenceModel,
        examples: &Examples,
        mode: Mode<'_>,
    ) -> Result<Loss, TrainError> {
        Task::default().loss(network, examples, mode)
    }

    fn measure(
        &mut self,
        network: &dyn SequenceModel,
        _: &Examples,
    ) -> Result<Evaluation, TrainError> {
        let logits = self.logits[self.measured];
        self.measured += 1;
        let rows = logits.map(|logit| [logit, 0.0]);
        let outputs = Tensor::new(&rows, network.device())?;
        let targets = Targets::Classes {
            labels: vec![0; SIZE],
            classes: 2,
        };
        let tally = task_loss(&outputs, &targets, 0.0)?.tally;
        // Of both classes: 2 (1 − p)² where p = 1/(1 + e^−logit).
        let errors = logits.map(|logit| 2.0 * (1.0 + f64::from(logit).exp()).powi(-2));
        Ok(Evaluation::new(tally, None, SIZE).with_squared_errors(errors.to_vec()))
    }
}

/// A training of as many epochs as there are logits, of a network whose logits were `start`.
fn kept<const SIZE: usize>(start: [f32; SIZE], epochs: &[[f32; SIZE]]) -> Outcome {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 40);
    let (data, held_out) = data.hold_out(SIZE, 0).unwrap();
    let recipe = Recipe {
        epochs: Some(epochs.len() as u64),
        keep_start: true,
        ..recipe()
    };
    let training = Training {
        network: &Small::started(),
        data: &data,
        validation: Some(&held_out),
        recipe: &recipe,
    };
    // Two measurements are those of the check.
    let mut objective = Spoken {
        logits: [&[start; 3], epochs].concat(),
        measured: 0,
    };
    let outcome = training.run(&mut objective, None, &mut (), &Stop::default());
    let outcome = outcome.unwrap();
    let start = outcome.start.as_ref().unwrap().tally().loss();
    let lower = |entry: &Entry| entry.validation_loss.unwrap() < start;
    assert!(outcome.history.iter().all(lower));
    outcome
}

#[test]
fn an_epoch_that_gains_no_more_than_noise_is_not_taken() {
    // The first epoch gains much in one sequence of four and loses in the others, the second a
    // little in all, the third less than that.
    let start = [2.0, 1.0, 3.0, 2.5];
    let gained = |by: [f32; 4]| [0, 1, 2, 3].map(|k: usize| start[k] + by[k]);
    let outcome = kept(
        start,
        &[
            gained([-0.1, 2.0, -0.1, -0.1]),
            gained([0.1, 0.05, 0.2, 0.1]),
            gained([0.05, 0.025, 0.1, 0.05]),
            gained([0.2, 0.1, 0.4, 0.2]),
        ],
    );
    let loss = |epoch: usize| outcome.history[epoch].validation_loss.unwrap();
    assert!(loss(0) < loss(3));
    let best: Vec<bool> = outcome.history.iter().map(|entry| entry.best).collect();
    assert_eq!(best, [false, true, false, true]);
}

#[test]
fn an_epoch_with_better_probabilities_is_taken_though_its_loss_is_noisy() {
    // Two sequences that are wrong before and after have most of the loss: in the first epoch
    // they alone change, in the second five of eight become right, too.
    let start = [-0.1, -0.1, -0.1, -0.1, -0.1, -3.0, -9.0, 3.0];
    let noisy = [-0.1, -0.1, -0.1, -0.1, -0.1, -8.0, -3.0, 3.0];
    let right = [0.1, 0.1, 0.1, 0.1, 0.1, -8.0, -3.0, 3.0];
    let outcome = kept(start, &[noisy, right]);
    let best: Vec<bool> = outcome.history.iter().map(|entry| entry.best).collect();
    assert_eq!(best, [false, true]);
}

#[test]
fn what_is_kept_by_held_out_sequences_needs_some() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 24);
    let teacher = Recipe {
        monitor: Monitor::Teacher,
        ..recipe()
    };
    let start = Recipe {
        keep_start: true,
        ..recipe()
    };
    for (key, recipe) in [("monitor", teacher), ("keep_start", start)] {
        let error = refused((&data, None), &recipe);
        let expected = RecipeError::NoValidation { key };
        assert!(matches!(error, TrainError::Recipe(found) if found == expected));
    }
}
