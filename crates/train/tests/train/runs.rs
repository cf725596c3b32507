//! Whole runs: learning, early stopping, and going on.

use std::path::Path;

use candle_core::{DType, Device, Tensor, Var};
use hankelite_archive::{Dtype, RawTensor, write_arrays};
use hankelite_data::{Dataset, Source, Targets};
use hankelite_train::nn::{Buffer, Mode, Parameter, SequenceModel};
use hankelite_train::{
    Course, End, Entry, Examples, Folder, Loss, Monitor, Objective, Recipe, RecipeError, Stop,
    Task, Term, TrainError, Training, scalar,
};

use crate::points::{CLASSES, points};
use crate::small::{Small, StopAfter, recipe, refused, run, run_in};

#[test]
fn points_are_learnt() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 96);
    let (data, held_out) = data.hold_out(24, 0).unwrap();
    let network = Small::started();
    let recipe = Recipe {
        epochs: Some(20),
        label_smoothing: 0.0,
        ..recipe()
    };
    let sets = (&data, Some(&held_out));
    let outcome = run(&network, sets, &recipe).unwrap();
    assert_eq!(outcome.end, Some(End::Finished));
    assert_eq!(outcome.steps, 20 * 5);
    let first = &outcome.history[0];
    let last = outcome.history.last().unwrap();
    assert!(first.train_loss > 0.6, "{first:?}");
    assert!(last.validation_loss.unwrap() < 0.1, "{last:?}");
    assert_eq!(last.validation_accuracy, Some(1.0));
    // What stays in the network is the best epoch.
    let best = outcome.best.unwrap();
    let found = hankelite_train::evaluate(&network, &held_out, 7).unwrap();
    assert!((found.loss() - best.value).abs() < 1e-6);
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 40);
    let weights = |seed: u64| {
        let network = Small::started();
        let recipe = Recipe { seed, ..recipe() };
        run(&network, (&data, None), &recipe).unwrap();
        network.values()
    };
    assert_eq!(weights(1), weights(1));
    assert_ne!(weights(1), weights(2));
}

#[test]
fn a_run_that_was_stopped_anywhere_goes_on_bit_for_bit() {
    let place = tempfile::tempdir().unwrap();
    let data = points(place.path(), 70);
    let (data, held_out) = data.hold_out(14, 0).unwrap();
    let sets = (&data, Some(&held_out));
    let whole = Small::started();
    let path = place.path().join("whole");
    let folder = Folder::create(&path, "seed = 5\n").unwrap();
    let stop = Stop::default();
    let expected = run_in(&whole, sets, &recipe(), (Some(&folder), &mut (), &stop)).unwrap();
    // 56 sequences make 4 batches: within an epoch, at its end, and behind the last step.
    for after in [1, 3, 4, 5, 17, 24] {
        let path = place.path().join(format!("stopped-{after}"));
        let folder = Folder::create(&path, "seed = 5\n").unwrap();
        let stop = Stop::default();
        let mut observer = StopAfter(after, stop.clone());
        let network = Small::started();
        let part = run_in(
            &network,
            sets,
            &recipe(),
            (Some(&folder), &mut observer, &stop),
        )
        .unwrap();
        assert_eq!((part.end, part.steps), (None, after));
        drop(folder);
        let folder = Folder::resume(&path, "seed = 5\n").unwrap();
        let network = Small::started();
        let stop = Stop::default();
        let found = run_in(&network, sets, &recipe(), (Some(&folder), &mut (), &stop)).unwrap();
        assert_eq!(network.values(), whole.values(), "{after}");
        assert_eq!(
            without_time(&found.history),
            without_time(&expected.history)
        );
        assert_eq!(found.best, expected.best);
        let lines = std::fs::read_to_string(folder.metrics()).unwrap();
        assert_eq!(lines.lines().count(), 6);
    }
}

fn without_time(history: &[Entry]) -> Vec<Entry> {
    let timeless = |entry: &Entry| {
        let mut entry = entry.clone();
        entry.seconds = 0.0;
        entry
    };
    history.iter().map(timeless).collect()
}

#[test]
fn metrics_that_no_snapshot_knows_of_are_written_again() {
    let place = tempfile::tempdir().unwrap();
    let data = points(place.path(), 40);
    let path = place.path().join("run");
    let folder = Folder::create(&path, "").unwrap();
    let stop = Stop::default();
    let mut observer = StopAfter(7, stop.clone());
    run_in(
        &Small::started(),
        (&data, None),
        &recipe(),
        (Some(&folder), &mut observer, &stop),
    )
    .unwrap();
    // As when the process dies while it appends a line.
    let mut text = std::fs::read(folder.metrics()).unwrap();
    text.extend(b"{\"epoch\": 9");
    std::fs::write(folder.metrics(), text).unwrap();
    std::fs::write(path.join(".hankelite-x.part"), "half").unwrap();
    drop(folder);
    let folder = Folder::resume(&path, "").unwrap();
    assert!(!path.join(".hankelite-x.part").exists());
    let stop = Stop::default();
    let network = Small::started();
    let outcome = run_in(
        &network,
        (&data, None),
        &recipe(),
        (Some(&folder), &mut (), &stop),
    )
    .unwrap();
    let text = std::fs::read_to_string(folder.metrics()).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    assert_eq!(lines.collect::<Vec<Entry>>(), outcome.history);
    // A run that is over is reported as over again, and gives the same weights.
    let values = network.values();
    let network = Small::started();
    let again = run_in(
        &network,
        (&data, None),
        &recipe(),
        (Some(&folder), &mut (), &stop),
    )
    .unwrap();
    assert_eq!(again, outcome);
    assert_eq!(network.values(), values);
}

/// A validation part that gets worse as the training part is learnt: its labels are turned round.
pub(crate) fn contrary(folder: &Path) -> (Dataset, Dataset) {
    let good = points(folder, 48);
    let Targets::Classes { labels, .. } = good.targets() else {
        panic!("points have classes");
    };
    let turned: Vec<u8> = labels
        .iter()
        .flat_map(|label| ((label + 1) as i64 % CLASSES as i64).to_le_bytes())
        .collect();
    let path = folder.join("contrary.safetensors");
    good.write(&path).unwrap();
    let archive = hankelite_archive::Archive::open(&path).unwrap();
    let inputs = archive.tensor("inputs").unwrap();
    let labels = RawTensor::new(Dtype::I64, vec![48], turned).unwrap();
    let path = folder.join("turned.safetensors");
    write_arrays(&path, [("inputs", inputs), ("labels", labels)], "").unwrap();
    let bad = Dataset::read(&Source::Arrays(path), None).unwrap();
    (good, bad)
}

#[test]
fn patience_counts_epochs_without_a_better_value() {
    let folder = tempfile::tempdir().unwrap();
    let (data, validation) = contrary(folder.path());
    for patience in [1, 3] {
        let recipe = Recipe {
            epochs: Some(12),
            patience,
            warmup: 0,
            ..recipe()
        };
        let network = Small::started();
        let sets = (&data, Some(&validation));
        let outcome = run(&network, sets, &recipe).unwrap();
        assert_eq!(outcome.end, Some(End::Stalled));
        let best = outcome.best.unwrap();
        assert_eq!(outcome.history.len() as u64, best.epoch + patience);
        let marked: Vec<u64> = (outcome.history.iter())
            .filter(|entry| entry.best)
            .map(|entry| entry.epoch)
            .collect();
        assert_eq!(marked.last(), Some(&best.epoch));
        let kept = hankelite_train::evaluate(&network, &validation, 16).unwrap();
        assert!((kept.loss() - best.value).abs() < 1e-6);
    }
}

#[test]
fn a_patience_as_long_as_the_training_never_stops_it() {
    let folder = tempfile::tempdir().unwrap();
    let (data, validation) = contrary(folder.path());
    let sets = (&data, Some(&validation));
    let recipe = Recipe {
        epochs: Some(4),
        patience: 4,
        ..recipe()
    };
    let outcome = run(&Small::started(), sets, &recipe).unwrap();
    assert_eq!(outcome.end, Some(End::Finished));
    assert_eq!(outcome.history.len(), 4);
}

#[test]
fn a_plateau_halves_the_rates() {
    let folder = tempfile::tempdir().unwrap();
    let (data, validation) = contrary(folder.path());
    let recipe = Recipe {
        epochs: Some(9),
        schedule: Course::Plateau,
        plateau: 2,
        warmup: 0,
        floor: 0.2,
        ..recipe()
    };
    let sets = (&data, Some(&validation));
    let outcome = run(&Small::started(), sets, &recipe).unwrap();
    let best = outcome.best.unwrap().epoch;
    for entry in &outcome.history {
        // The epoch that makes two without a better one still runs at the old rate.
        let halvings = entry.epoch.saturating_sub(best + 1) / 2;
        let expected = 0.5f64.powi(halvings as i32).max(0.2);
        assert_eq!(entry.rate, expected, "epoch {} best {best}", entry.epoch);
    }
}

#[test]
fn steps_may_end_within_an_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 40);
    let recipe = Recipe {
        epochs: None,
        steps: Some(4),
        ..recipe()
    };
    let outcome = run(&Small::started(), (&data, None), &recipe);
    let outcome = outcome.unwrap();
    let steps: Vec<u64> = outcome.history.iter().map(|entry| entry.step).collect();
    assert_eq!((steps, outcome.steps), (vec![3, 4], 4));
}

#[test]
fn what_cannot_work_is_reported_before_the_first_step() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 12);
    let with = |change: &dyn Fn(&mut Recipe)| {
        let mut recipe = recipe();
        recipe.batch = 4;
        change(&mut recipe);
        refused((&data, None), &recipe)
    };
    let error = with(&|recipe| recipe.batch = 13);
    assert_eq!(
        error.to_string(),
        "a batch of 13, expected 1 to 12, the number of sequences"
    );
    let error = with(&|recipe| recipe.lr = 2.0);
    assert!(matches!(
        error,
        TrainError::Recipe(RecipeError::Range { key: "lr", .. })
    ));
    let error = with(&|recipe| recipe.warmup = 19);
    let expected = RecipeError::Warmup {
        warmup: 19,
        total: 18,
    };
    assert!(matches!(error, TrainError::Recipe(found) if found == expected));
    for (key, change) in [
        (
            "patience",
            (|r: &mut Recipe| r.patience = 1) as fn(&mut Recipe),
        ),
        ("schedule", |r| r.schedule = Course::Plateau),
        ("monitor", |r| r.monitor = Monitor::Accuracy),
    ] {
        let error = with(&change);
        let expected = RecipeError::NoValidation { key };
        assert!(
            matches!(error, TrainError::Recipe(found) if found == expected),
            "{key}"
        );
    }
    let task = "adding:length=10,count=8".parse::<Source>().unwrap();
    let numbers = Dataset::read(&task, Some(hankelite_data::Split::Train)).unwrap();
    let mut small = recipe();
    small.batch = 4;
    small.monitor = Monitor::Accuracy;
    let error = refused((&numbers, Some(&numbers)), &small);
    assert!(matches!(error, TrainError::Recipe(RecipeError::NoAccuracy)));
    let steps = "copy:lag=5,count=8".parse::<Source>().unwrap();
    let steps = Dataset::read(&steps, Some(hankelite_data::Split::Train)).unwrap();
    let error = refused(
        (&steps, None),
        &Recipe {
            batch: 4,
            ..recipe()
        },
    );
    assert!(
        matches!(error, TrainError::Outputs { .. } | TrainError::Candle(_)),
        "{error}"
    );
}

#[test]
fn folders_that_do_not_suit_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("run");
    let error = Folder::resume(&path, "").unwrap_err();
    assert!(
        matches!(error, TrainError::NothingToResume { .. }),
        "{error}"
    );
    Folder::create(&path, "a = 1\nb = 2\n").unwrap();
    let error = Folder::create(&path, "a = 1\n").unwrap_err();
    assert!(matches!(error, TrainError::NotEmpty { .. }), "{error}");
    let error = Folder::resume(&path, "a = 1\nb = 3\n").unwrap_err();
    let named = matches!(&error, TrainError::OtherSettings { line: 2, found, expected, .. }
        if found == "b = 3" && expected == "b = 2");
    assert!(named, "{error}");
    std::fs::write(place.path().join("file"), "").unwrap();
    let error = Folder::create(place.path().join("file/run"), "").unwrap_err();
    assert!(matches!(error, TrainError::Io { .. }), "{error}");
}

#[test]
fn a_folder_takes_one_program_at_a_time() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("run");
    let first = Folder::create(&path, "a = 1\n").unwrap();
    for error in [
        Folder::create(&path, "a = 1\n").unwrap_err(),
        Folder::resume(&path, "a = 1\n").unwrap_err(),
        Folder::require_new(&path).unwrap_err(),
        Folder::require_free(&path).unwrap_err(),
    ] {
        assert!(matches!(error, TrainError::InUse { .. }), "{error}");
    }
    drop(first);
    Folder::require_free(&path).unwrap();
    Folder::resume(&path, "a = 1\n").unwrap();
    // A program that was killed before it wrote its settings leaves a lock alone.
    std::fs::remove_file(path.join("config.toml")).unwrap();
    Folder::create(&path, "a = 2\n").unwrap();
}

#[test]
fn a_snapshot_of_another_network_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let data = points(place.path(), 20);
    let folder = Folder::create(place.path().join("run"), "").unwrap();
    let recipe = Recipe {
        epochs: Some(1),
        warmup: 0,
        ..recipe()
    };
    let again = |network: &Small| {
        run_in(
            network,
            (&data, None),
            &recipe,
            (Some(&folder), &mut (), &Stop::default()),
        )
    };
    again(&Small::started()).unwrap();
    let mut other = Small::started();
    other.buffers.clear();
    other.buffers.push(Buffer {
        name: "other".to_string(),
        var: Var::zeros(1, DType::F32, &Device::Cpu).unwrap(),
    });
    let error = again(&other).unwrap_err();
    assert!(error.to_string().contains("buffer.other"), "{error}");
    let doubled = Small::new(DType::F64, |_, count| vec![0.1; count]);
    let error = again(&doubled).unwrap_err();
    assert!(error.to_string().contains("precision"), "{error}");
    // Cut short, as by a full disk: never half read.
    let bytes = std::fs::read(folder.last()).unwrap();
    std::fs::write(folder.last(), &bytes[..bytes.len() / 2]).unwrap();
    let network = Small::started();
    let before = network.values();
    assert!(matches!(again(&network), Err(TrainError::Archive(_))));
    std::fs::remove_file(folder.best()).unwrap();
    assert!(matches!(again(&network), Err(TrainError::Archive(_))));
    drop(before);
}

#[test]
fn a_loss_that_is_no_number_ends_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 20);
    let network = Small::new(DType::F32, |_, count| vec![f64::INFINITY; count]);
    let recipe = Recipe {
        batch: 20,
        ..recipe()
    };
    let error = run(&network, (&data, None), &recipe);
    assert!(matches!(error, Err(TrainError::Diverged { step: 0, .. })));
}

/// Keeps `d` where it started, as a trust region of radius 0 does, and adds λ Σ w₂².
struct Held {
    start: Tensor,
}

impl Objective for Held {
    fn loss(
        &mut self,
        network: &dyn SequenceModel,
        examples: &Examples,
        mode: Mode<'_>,
    ) -> std::result::Result<Loss, TrainError> {
        let mut loss = Task::default().loss(network, examples, mode)?;
        let term = (network.parameters()[3].var.sqr()?.sum_all()? * 0.1)?;
        loss.terms.push(("norm", scalar(&term)?));
        loss.value = (loss.value + term)?;
        Ok(loss)
    }

    fn after_step(
        &mut self,
        parameters: &[Parameter],
    ) -> std::result::Result<Vec<Term>, TrainError> {
        parameters[0].var.set(&self.start)?;
        Ok(vec![("held", 1.0)])
    }
}

#[test]
fn an_objective_adds_terms_and_projects_after_each_step() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 20);
    let network = Small::started();
    let recipe = recipe();
    let before = network.values();
    let start = network.parameters()[0].var.as_tensor().copy().unwrap();
    let training = Training {
        network: &network,
        data: &data,
        validation: None,
        recipe: &recipe,
    };
    let outcome = training.run(&mut Held { start }, None, &mut (), &Stop::default());
    let history = outcome.unwrap().history;
    let after = network.values();
    assert_eq!(after[0], before[0]);
    assert_ne!(after[1], before[1]);
    assert_eq!(history[5].terms["held"], 1.0);
    assert!(history[5].terms["norm"] < history[0].terms["norm"]);
}
