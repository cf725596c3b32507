//! The trainer on a network of four tensors: parity with PyTorch, learning, early stopping, and
//! runs that are stopped or killed and go on.
#![cfg(all(feature = "train", feature = "cli"))]
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

mod common;

use std::path::Path;

use candle_core::DType;
use candle_core::Device;
use candle_core::Result;
use candle_core::Tensor;
use candle_core::Var;
use hankelite::checkpoint::Dtype;
use hankelite::checkpoint::RawTensor;
use hankelite::checkpoint::write_arrays;
use hankelite::data::Dataset;
use hankelite::data::Source;
use hankelite::data::Targets;
use hankelite::nn::Buffer;
use hankelite::nn::Group;
use hankelite::nn::Input;
use hankelite::nn::Mode;
use hankelite::nn::Parameter;
use hankelite::nn::SequenceModel;
use hankelite::train::AdamW;
use hankelite::train::Course;
use hankelite::train::End;
use hankelite::train::Entry;
use hankelite::train::Examples;
use hankelite::train::Folder;
use hankelite::train::Gradients;
use hankelite::train::Loss;
use hankelite::train::Monitor;
use hankelite::train::Objective;
use hankelite::train::Observer;
use hankelite::train::Outcome;
use hankelite::train::Recipe;
use hankelite::train::RecipeError;
use hankelite::train::Schedule;
use hankelite::train::Step;
use hankelite::train::Stop;
use hankelite::train::Task;
use hankelite::train::TrainError;
use hankelite::train::Training;
use hankelite::train::clip_factor;
use hankelite::train::scalar;
use hankelite::train::task_loss;
use rand_chacha::rand_core::RngCore;

const WIDTH: usize = 2;
const HIDDEN: usize = 5;
const CLASSES: usize = 3;

/// Mean over time of tanh(d ∘ (x W₁ + b)), dropout, then W₂; a buffer counts the forward passes
/// in training.
struct Small {
    parameters: Vec<Parameter>,
    buffers: Vec<Buffer>,
    dropout: bool,
}

impl Small {
    fn new(dtype: DType, start: impl Fn(&str, usize) -> Vec<f64>) -> Self {
        let parameter = |name: &str, shape: &[usize], group: Group| {
            let values = start(name, shape.iter().product());
            let tensor = Tensor::from_vec(values, shape, &Device::Cpu).unwrap();
            Parameter {
                name: name.to_string(),
                var: Var::from_tensor(&tensor.to_dtype(dtype).unwrap()).unwrap(),
                group,
            }
        };
        let passes = Tensor::zeros(1, dtype, &Device::Cpu).unwrap();
        Self {
            parameters: vec![
                parameter("d", &[HIDDEN], Group::Dynamics),
                parameter("w1", &[WIDTH, HIDDEN], Group::Plain),
                parameter("b", &[HIDDEN], Group::NoDecay),
                parameter("w2", &[HIDDEN, CLASSES], Group::Plain),
            ],
            buffers: vec![Buffer {
                name: "passes".to_string(),
                var: Var::from_tensor(&passes).unwrap(),
            }],
            dropout: true,
        }
    }

    /// The same start every time.
    fn started() -> Self {
        Self::new(DType::F32, |name, count| {
            let of = |i: usize| ((i * 7 + name.len() * 3) % 11) as f64 / 11.0 - 0.4;
            (0..count).map(of).collect()
        })
    }

    fn values(&self) -> Vec<Vec<f32>> {
        let parameters = self.parameters.iter().map(|parameter| &parameter.var);
        let buffers = self.buffers.iter().map(|buffer| &buffer.var);
        let all = parameters.chain(buffers);
        all.map(|var| var.flatten_all().unwrap().to_vec1().unwrap())
            .collect()
    }
}

impl SequenceModel for Small {
    fn forward(&self, input: &Input, mode: Mode<'_>) -> Result<Tensor> {
        let var = |index: usize| self.parameters[index].var.as_tensor();
        let (batch, length, width) = input.steps.dims3()?;
        let x = input.steps.reshape((batch * length, width))?;
        let x = x.matmul(var(1))?.broadcast_add(var(2))?;
        let x = x.broadcast_mul(var(0))?.tanh()?;
        let mut x = x.reshape((batch, length, HIDDEN))?.mean(1)?;
        if let Mode::Train(generator) = mode {
            let passes = &self.buffers[0].var;
            passes.set(&(passes.as_tensor().detach() + 1.0)?)?;
            if self.dropout {
                let keep = (0..batch * HIDDEN).map(|_| (generator.next_u32() % 8 > 0) as u32);
                let keep = Tensor::from_vec(keep.collect(), (batch, HIDDEN), x.device())?;
                let keep = keep.to_dtype(x.dtype())?;
                x = (x * keep)?;
            }
        }
        x.matmul(var(3))
    }

    fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    fn buffers(&self) -> &[Buffer] {
        &self.buffers
    }

    fn device(&self) -> &Device {
        &Device::Cpu
    }
}

/// Sequences of noise around one of three points of the plane; the class is the point.
fn points(folder: &Path, count: usize) -> Dataset {
    let mut state = 12345u64;
    let mut noise = || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (state >> 40) as f64 / f64::from(1u32 << 24) - 0.5
    };
    let centres = [(1.0, 0.0), (-0.5, 0.8), (-0.5, -0.8)];
    let (mut inputs, mut labels) = (vec![], vec![]);
    for index in 0..count {
        let (x, y) = centres[index % CLASSES];
        labels.extend((index as i64 % CLASSES as i64).to_le_bytes());
        (0..4).for_each(|_| inputs.extend([x + noise(), y + noise()]));
    }
    let path = folder.join("points.safetensors");
    let inputs = RawTensor::from_f64(Dtype::F32, vec![count, 4, WIDTH], &inputs);
    let labels = RawTensor {
        dtype: Dtype::I64,
        shape: vec![count],
        bytes: labels,
    };
    write_arrays(&path, &[("inputs", inputs), ("labels", labels)]).unwrap();
    Dataset::read(&Source::Arrays(path), None).unwrap()
}

fn recipe() -> Recipe {
    Recipe {
        epochs: Some(6),
        batch: 16,
        lr: 0.05,
        lr_dynamics: 0.02,
        clip: Some(1.0),
        warmup: 3,
        label_smoothing: 0.05,
        snapshot_every: 2,
        seed: 5,
        ..Recipe::default()
    }
}

/// A run of `network` on `data`, validated on `validation`.
fn run(
    network: &Small,
    (data, validation): (&Dataset, Option<&Dataset>),
    recipe: &Recipe,
    folder: Option<&Folder>,
    observer: &mut dyn Observer,
    stop: &Stop,
) -> std::result::Result<Outcome, TrainError> {
    let training = Training {
        network,
        data,
        validation,
        recipe,
    };
    let label_smoothing = recipe.label_smoothing;
    training.run(&mut Task { label_smoothing }, folder, observer, stop)
}

/// Stops behind a step.
struct StopAfter(u64, Stop);

impl Observer for StopAfter {
    fn step(&mut self, step: &Step) {
        if step.step >= self.0 {
            self.1.ask();
        }
    }
}

/// `check` returns the error of a training that cannot run.
fn refused(data: (&Dataset, Option<&Dataset>), recipe: &Recipe) -> TrainError {
    let network = Small::started();
    run(&network, data, recipe, None, &mut (), &Stop::default()).unwrap_err()
}

#[test]
fn ten_steps_are_those_of_pytorch() {
    let reference = common::json(&common::here("reference/train_steps.json"));
    let numbers = |key: &str| common::reals(&reference[key]);
    for (dtype, tolerance) in [(DType::F64, 1e-13), (DType::F32, 2e-6)] {
        let mut network = Small::new(dtype, |name, _| common::reals(&reference["start"][name]));
        network.dropout = false;
        let x = Tensor::from_vec(numbers("x"), (4, 3, WIDTH), &Device::Cpu).unwrap();
        let steps = x.to_dtype(dtype).unwrap();
        let input = Input {
            steps,
            lengths: None,
        };
        let targets = Targets::Classes {
            labels: vec![0, 2, 1, 2],
            classes: CLASSES,
        };
        let schedule = Schedule {
            course: Course::Cosine,
            warmup: 3,
            total: 10,
            floor: 0.1,
        };
        let settings = Recipe {
            lr: 0.05,
            lr_dynamics: 0.02,
            weight_decay: 0.1,
            ..Recipe::default()
        };
        let mut optimiser = AdamW::new(network.parameters(), settings.optimiser()).unwrap();
        let (losses, norms) = (numbers("losses"), numbers("norms"));
        for step in 0..10 {
            let outputs = network.forward(&input, Mode::Evaluate).unwrap();
            let loss = task_loss(&outputs, &targets, 0.1).unwrap().value;
            let found = scalar(&loss).unwrap();
            assert!(
                (found - losses[step]).abs() < tolerance,
                "{dtype:?} {step} {found}"
            );
            let store = loss.backward().unwrap();
            let gradients = Gradients::collect(network.parameters(), &store).unwrap();
            let norm = gradients.norm().unwrap();
            assert!(
                (norm - norms[step]).abs() < tolerance,
                "{dtype:?} {step} {norm}"
            );
            let rate = schedule.factor(step as u64, 0);
            let scale = clip_factor(norm, Some(0.4));
            optimiser.step(&gradients, rate, scale).unwrap();
        }
        for parameter in network.parameters() {
            let expected = common::reals(&reference["end"][&parameter.name]);
            let found = parameter.var.to_dtype(DType::F64).unwrap();
            let found = found.flatten_all().unwrap().to_vec1::<f64>().unwrap();
            for (found, expected) in found.iter().zip(expected) {
                let name = &parameter.name;
                assert!(
                    (found - expected).abs() < tolerance,
                    "{name} {found} {expected}"
                );
            }
        }
    }
}

#[test]
fn only_plain_weights_decay() {
    let network = Small::started();
    let before = network.values();
    let settings = Recipe {
        lr: 0.5,
        lr_dynamics: 0.5,
        weight_decay: 0.2,
        ..Recipe::default()
    };
    let mut optimiser = AdamW::new(network.parameters(), settings.optimiser()).unwrap();
    let loss = network
        .parameters()
        .iter()
        .map(|p| p.var.sum_all().unwrap());
    let loss = loss.reduce(|sum, one| (sum + one).unwrap()).unwrap();
    let gradients = Gradients::collect(network.parameters(), &loss.backward().unwrap()).unwrap();
    // Gradients of zero leave the decay alone.
    optimiser.step(&gradients, 1.0, 0.0).unwrap();
    let after = network.values();
    assert_eq!((&after[0], &after[2]), (&before[0], &before[2]));
    for index in [1, 3] {
        let expected: Vec<f32> = before[index].iter().map(|w| w * 0.9).collect();
        assert_eq!(after[index], expected);
    }
}

#[test]
fn a_parameter_without_a_gradient_is_an_error() {
    let network = Small::started();
    let loss = network.parameters()[0].var.sum_all().unwrap();
    let error = Gradients::collect(network.parameters(), &loss.backward().unwrap()).unwrap_err();
    assert!(matches!(error, TrainError::NoGradient { parameter } if parameter == "w1"));
}

#[test]
fn points_are_learnt() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 96);
    let (data, held_out) = data.hold_out(24, 0).unwrap();
    let network = Small::started();
    let stop = Stop::default();
    let recipe = Recipe {
        epochs: Some(20),
        label_smoothing: 0.0,
        ..recipe()
    };
    let sets = (&data, Some(&held_out));
    let outcome = run(&network, sets, &recipe, None, &mut (), &stop).unwrap();
    assert_eq!(outcome.end, Some(End::Finished));
    assert_eq!(outcome.steps, 20 * 5);
    let first = &outcome.history[0];
    let last = outcome.history.last().unwrap();
    assert!(first.train_loss > 0.6, "{first:?}");
    assert!(last.validation_loss.unwrap() < 0.1, "{last:?}");
    assert_eq!(last.validation_accuracy, Some(1.0));
    // What stays in the network is the best epoch.
    let best = outcome.best.unwrap();
    let found = hankelite::train::evaluate(&network, &held_out, 7).unwrap();
    assert!((found.loss() - best.value).abs() < 1e-6);
}

#[test]
fn the_same_seed_gives_the_same_bytes_and_another_does_not() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 40);
    let weights = |seed: u64| {
        let network = Small::started();
        let recipe = Recipe { seed, ..recipe() };
        run(
            &network,
            (&data, None),
            &recipe,
            None,
            &mut (),
            &Stop::default(),
        )
        .unwrap();
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
    let expected = run(&whole, sets, &recipe(), Some(&folder), &mut (), &stop).unwrap();
    // 56 sequences make 4 batches: within an epoch, at its end, and behind the last step.
    for after in [1, 3, 4, 5, 17, 24] {
        let path = place.path().join(format!("stopped-{after}"));
        let folder = Folder::create(&path, "seed = 5\n").unwrap();
        let stop = Stop::default();
        let mut observer = StopAfter(after, stop.clone());
        let network = Small::started();
        let part = run(
            &network,
            sets,
            &recipe(),
            Some(&folder),
            &mut observer,
            &stop,
        )
        .unwrap();
        assert_eq!((part.end, part.steps), (None, after));
        let folder = Folder::resume(&path, "seed = 5\n").unwrap();
        let network = Small::started();
        let stop = Stop::default();
        let found = run(&network, sets, &recipe(), Some(&folder), &mut (), &stop).unwrap();
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
    let timeless = |entry: &Entry| Entry {
        seconds: 0.0,
        ..entry.clone()
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
    run(
        &Small::started(),
        (&data, None),
        &recipe(),
        Some(&folder),
        &mut observer,
        &stop,
    )
    .unwrap();
    // As when the process dies while it appends a line.
    let mut text = std::fs::read(folder.metrics()).unwrap();
    text.extend(b"{\"epoch\": 9");
    std::fs::write(folder.metrics(), text).unwrap();
    std::fs::write(path.join(".hankelite-x.part"), "half").unwrap();
    let folder = Folder::resume(&path, "").unwrap();
    assert!(!path.join(".hankelite-x.part").exists());
    let stop = Stop::default();
    let network = Small::started();
    let outcome = run(
        &network,
        (&data, None),
        &recipe(),
        Some(&folder),
        &mut (),
        &stop,
    )
    .unwrap();
    let text = std::fs::read_to_string(folder.metrics()).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    assert_eq!(lines.collect::<Vec<Entry>>(), outcome.history);
    // A run that is over says so again, and gives the same weights.
    let values = network.values();
    let network = Small::started();
    let again = run(
        &network,
        (&data, None),
        &recipe(),
        Some(&folder),
        &mut (),
        &stop,
    )
    .unwrap();
    assert_eq!(again, outcome);
    assert_eq!(network.values(), values);
}

/// The directory of the child process of the next test.
const CHILD: &str = "HANKELITE_TRAIN_CHILD";

/// Not a test by itself: what the child process does.
#[test]
fn child() {
    let Ok(path) = std::env::var(CHILD) else {
        return;
    };
    let path = Path::new(&path);
    let data = points(path, 40);
    let place = path.join("run");
    let folder = Folder::resume(&place, "")
        .or_else(|_| Folder::create(&place, ""))
        .unwrap();
    let long = long();
    let network = Small::started();
    run(
        &network,
        (&data, Some(&data)),
        &long,
        Some(&folder),
        &mut (),
        &Stop::default(),
    )
    .unwrap();
}

/// Many short steps with many snapshots, so that a kill falls into any of their parts.
fn long() -> Recipe {
    Recipe {
        epochs: Some(60),
        snapshot_every: 1,
        ..recipe()
    }
}

#[test]
fn a_run_that_was_killed_anywhere_goes_on_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let data = points(folder.path(), 40);
    let whole = Small::started();
    run(
        &whole,
        (&data, Some(&data)),
        &long(),
        None,
        &mut (),
        &Stop::default(),
    )
    .unwrap();
    let start = || {
        std::process::Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child"])
            .env(CHILD, folder.path())
            .stdout(std::process::Stdio::null())
            .spawn()
            .unwrap()
    };
    let mut kills = 0;
    // Moments that differ from run to run; what comes out must not.
    loop {
        let mut child = start();
        std::thread::sleep(std::time::Duration::from_millis(60 + 37 * kills));
        if child
            .try_wait()
            .unwrap()
            .is_some_and(|status| status.success())
        {
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        if kills == 8 {
            assert!(start().wait().unwrap().success());
            break;
        }
    }
    let run_folder = Folder::resume(&folder.path().join("run"), "").unwrap();
    let network = Small::started();
    let stop = Stop::default();
    let sets = (&data, Some(&data));
    let outcome = run(&network, sets, &long(), Some(&run_folder), &mut (), &stop).unwrap();
    assert!(kills > 0, "the child was never killed");
    assert_eq!(network.values(), whole.values());
    assert_eq!(outcome.history.len(), 60);
}

/// A validation part that gets worse as the training part is learnt: its labels are turned round.
fn contrary(folder: &Path) -> (Dataset, Dataset) {
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
    let archive = hankelite::checkpoint::Archive::open(&path).unwrap();
    let inputs = archive.tensor("inputs").unwrap();
    let labels = RawTensor {
        dtype: Dtype::I64,
        shape: vec![48],
        bytes: turned,
    };
    let path = folder.join("turned.safetensors");
    write_arrays(&path, &[("inputs", inputs), ("labels", labels)]).unwrap();
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
        let outcome = run(&network, sets, &recipe, None, &mut (), &Stop::default()).unwrap();
        assert_eq!(outcome.end, Some(End::Stalled));
        let best = outcome.best.unwrap();
        assert_eq!(outcome.history.len() as u64, best.epoch + patience);
        let marked: Vec<u64> = (outcome.history.iter())
            .filter(|entry| entry.best)
            .map(|entry| entry.epoch)
            .collect();
        assert_eq!(marked.last(), Some(&best.epoch));
        let kept = hankelite::train::evaluate(&network, &validation, 16).unwrap();
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
    let outcome = run(
        &Small::started(),
        sets,
        &recipe,
        None,
        &mut (),
        &Stop::default(),
    )
    .unwrap();
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
    let outcome = run(
        &Small::started(),
        sets,
        &recipe,
        None,
        &mut (),
        &Stop::default(),
    )
    .unwrap();
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
    let outcome = run(
        &Small::started(),
        (&data, None),
        &recipe,
        None,
        &mut (),
        &Stop::default(),
    );
    let outcome = outcome.unwrap();
    let steps: Vec<u64> = outcome.history.iter().map(|entry| entry.step).collect();
    assert_eq!((steps, outcome.steps), (vec![3, 4], 4));
}

#[test]
fn what_cannot_work_is_told_before_the_first_step() {
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
    let numbers = Dataset::read(&task, Some(hankelite::data::Split::Train)).unwrap();
    let mut small = recipe();
    small.batch = 4;
    small.monitor = Monitor::Accuracy;
    let error = refused((&numbers, Some(&numbers)), &small);
    assert!(matches!(error, TrainError::Recipe(RecipeError::NoAccuracy)));
    let steps = "copy:lag=5,count=8".parse::<Source>().unwrap();
    let steps = Dataset::read(&steps, Some(hankelite::data::Split::Train)).unwrap();
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
    let error = Folder::create(&place.path().join("file/run"), "").unwrap_err();
    assert!(matches!(error, TrainError::Io { .. }), "{error}");
}

#[test]
fn a_snapshot_of_another_network_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let data = points(place.path(), 20);
    let folder = Folder::create(&place.path().join("run"), "").unwrap();
    let recipe = Recipe {
        epochs: Some(1),
        warmup: 0,
        ..recipe()
    };
    let again = |network: &Small| {
        run(
            network,
            (&data, None),
            &recipe,
            Some(&folder),
            &mut (),
            &Stop::default(),
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
    let error = run(
        &network,
        (&data, None),
        &recipe,
        None,
        &mut (),
        &Stop::default(),
    );
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

    fn after_step(&mut self, parameters: &[Parameter]) -> std::result::Result<(), TrainError> {
        Ok(parameters[0].var.set(&self.start)?)
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
    assert!(history[5].terms["norm"] < history[0].terms["norm"]);
}

#[test]
fn every_key_is_documented() {
    let full = Recipe {
        epochs: Some(1),
        steps: Some(1),
        clip: Some(1.0),
        ..Recipe::default()
    };
    let text = toml::to_string(&full).unwrap();
    let architecture = hankelite::nn::Architecture {
        inputs: Some(1),
        vocabulary: Some(1),
        initialisation: Some(hankelite::nn::Initialisation::Lin),
        ..toml::from_str(MODEL).unwrap()
    };
    let text = text + &toml::to_string(&architecture).unwrap();
    let documented = include_str!("../docs/training.md");
    for line in text.lines() {
        let key = line.split(' ').next().unwrap();
        assert!(documented.contains(&format!("| `{key}` |")), "{key}");
    }
}

const MODEL: &str =
    "layer = \"s4d\"\nchannels = 1\nstates = 1\nlayers = 1\ninputs = 1\noutputs = 1";

/// The program on a small task: classes of points, four steps each.
struct Program(tempfile::TempDir);

const CONFIG: &str = r#"
[model]
layer = "s4d"
channels = 4
states = 3
layers = 2
inputs = 2
outputs = 3
dropout = 0.1

[data]
source = "POINTS"
hold_out = 0.2

[train]
epochs = 8
batch = 16
lr = 0.02
snapshot_every = 1
seed = 3
"#;

impl Program {
    fn new(count: usize) -> Self {
        let folder = tempfile::tempdir().unwrap();
        points(folder.path(), count);
        let program = Self(folder);
        program.config(CONFIG);
        program
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).display().to_string()
    }

    /// Writes `config.toml`.
    fn config(&self, text: &str) {
        let text = text.replace("POINTS", &self.path("points.safetensors"));
        std::fs::write(self.path("config.toml"), text).unwrap();
    }

    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_compress-model"));
        command.args(arguments).current_dir(self.0.path());
        command.stdout(std::process::Stdio::null());
        command.stderr(std::process::Stdio::null());
        command
    }

    fn json(&self, arguments: &[&str]) -> serde_json::Value {
        let arguments = [arguments, &["--format", "json", "-q"]].concat();
        let mut command = self.command(&arguments);
        let output = command
            .stdout(std::process::Stdio::piped())
            .stderr(std::process::Stdio::piped())
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{arguments:?}: {message}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// Exit code 1, and every word in the message.
    fn refuses(&self, arguments: &[&str], words: &[&str]) {
        let mut command = self.command(arguments);
        let output = command
            .stderr(std::process::Stdio::piped())
            .output()
            .unwrap();
        let message = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {message}");
        for word in words {
            assert!(message.contains(word), "{word:?} in {message}");
        }
    }

    fn bytes(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.path(name)).unwrap()
    }
}

#[test]
fn the_program_pretrains_and_retrains() {
    let program = Program::new(120);
    let start = ["pretrain", "config.toml", "--output", "run"];
    let record = program.json(&start);
    let history = record["history"].as_array().unwrap();
    assert_eq!(history.len(), 8);
    let loss = |entry: &serde_json::Value| entry["validation_loss"].as_f64().unwrap();
    let best = history.iter().map(loss).fold(f64::INFINITY, f64::min);
    let measured = record["validation"]["loss"].as_f64().unwrap();
    assert!((best - measured).abs() < 1e-6, "{best} {measured}");
    assert!(best < 0.5 * loss(&history[0]), "{history:?}");
    for file in [
        "config.toml",
        "metrics.jsonl",
        "last.safetensors",
        "best.safetensors",
        "record.json",
    ] {
        assert!(!program.bytes(&format!("run/{file}")).is_empty(), "{file}");
    }
    // The host, in double precision, finds the same loss over all points as the network.
    let evaluated = program.json(&[
        "evaluate",
        "run/model.safetensors",
        "--data",
        "points.safetensors",
    ]);
    program.config("[train]\nepochs = 1\nbatch = 5\nlr = 0.0\nlr_dynamics = 0.0\n[data]\nsource = \"POINTS\"\nhold_out = 0.9\n");
    let still = [
        "retrain",
        "run/model.safetensors",
        "--config",
        "config.toml",
        "--output",
    ];
    let record = program.json(&[&still[..], &["same.pth"]].concat());
    let again = program.json(&["evaluate", "same.pth", "--data", "points.safetensors"]);
    let loss = |report: &serde_json::Value| report["loss"].as_f64().unwrap();
    assert!((loss(&evaluated) - loss(&again)).abs() < 1e-6);
    let (before, after) = (&record["before"], &record["validation"]);
    assert_eq!(before, after, "rates of zero change nothing");
    // A reduced model is trained further, in the layout it came from.
    let reduce = [
        "reduce",
        "run/model.safetensors",
        "--order",
        "1",
        "--output",
        "small.pth",
    ];
    program.json(&reduce);
    let retrain = [
        "retrain",
        "small.pth",
        "--data",
        "points.safetensors",
        "--epochs",
        "3",
        "--lr",
        "0.01",
    ];
    let record = program.json(&[&retrain[..], &["--output", "better.pth"]].concat());
    let loss = |report: &serde_json::Value| report["loss"].as_f64().unwrap();
    assert!(
        loss(&record["validation"]) < loss(&record["before"]),
        "{record}"
    );
    let names = |file: &str| {
        let archive = hankelite::checkpoint::Archive::open(Path::new(&program.path(file))).unwrap();
        let shape = |name: &str| (name.to_string(), archive.shape(name).unwrap().to_vec());
        archive.names().map(shape).collect::<Vec<_>>()
    };
    assert_eq!(names("small.pth"), names("better.pth"));
}

#[test]
fn a_program_that_was_killed_anywhere_goes_on_to_the_same_bytes() {
    let program = Program::new(200);
    let whole = ["pretrain", "config.toml", "--output", "whole", "-q"];
    assert!(program.command(&whole).status().unwrap().success());
    let mut kills = 0;
    loop {
        let mut arguments = vec!["pretrain", "config.toml", "--output", "killed", "-q"];
        if Path::new(&program.path("killed/config.toml")).exists() {
            arguments.push("--resume");
        }
        let mut child = program.command(&arguments).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(40 + 31 * kills));
        if child
            .try_wait()
            .unwrap()
            .is_some_and(|status| status.success())
        {
            break;
        }
        child.kill().unwrap();
        child.wait().unwrap();
        kills += 1;
        if kills == 6 {
            arguments.retain(|argument| *argument != "--resume");
            arguments.push("--resume");
            assert!(program.command(&arguments).status().unwrap().success());
            break;
        }
    }
    assert!(kills > 0);
    assert_eq!(
        program.bytes("whole/model.safetensors"),
        program.bytes("killed/model.safetensors")
    );
    let left = std::fs::read_dir(program.path("killed")).unwrap();
    let left = left.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    assert!(!left.into_iter().any(|name| name.ends_with(".part")));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_the_step_and_the_run_goes_on_to_the_same_bytes() {
    let program = Program::new(200);
    program.config(
        &CONFIG
            .replace("epochs = 8", "epochs = 40")
            .replace("every = 1", "every = 0"),
    );
    let whole = ["pretrain", "config.toml", "--output", "whole", "-q"];
    assert!(program.command(&whole).status().unwrap().success());
    let stopped = ["pretrain", "config.toml", "--output", "stopped", "-q"];
    let mut child = program.command(&stopped).spawn().unwrap();
    // Once there are metrics, the training runs.
    while !Path::new(&program.path("stopped/metrics.jsonl")).exists() {
        assert!(
            child.try_wait().unwrap().is_none(),
            "ended before it was stopped"
        );
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    let signal = std::process::Command::new("kill")
        .args(["-INT", &child.id().to_string()])
        .status();
    assert!(signal.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    assert!(!Path::new(&program.path("stopped/model.safetensors")).exists());
    let resumed = [&stopped[..], &["--resume"]].concat();
    assert!(program.command(&resumed).status().unwrap().success());
    assert_eq!(
        program.bytes("whole/model.safetensors"),
        program.bytes("stopped/model.safetensors")
    );
}

#[test]
fn the_number_of_threads_changes_no_byte() {
    let program = Program::new(60);
    for threads in ["1", "2"] {
        let run = [
            "pretrain",
            "config.toml",
            "-q",
            "--threads",
            threads,
            "--output",
            threads,
        ];
        assert!(program.command(&run).status().unwrap().success());
    }
    assert_eq!(
        program.bytes("1/model.safetensors"),
        program.bytes("2/model.safetensors")
    );
}

#[test]
fn the_program_tells_what_cannot_work_before_it_trains() {
    let program = Program::new(60);
    let start = ["pretrain", "config.toml", "--output", "run"];
    let cases: [(&str, &str, &[&str]); 13] = [
        ("batch = 16", "batch = 49", &["a batch of 49", "1 to 48"]),
        (
            "batch = 16",
            "batsh = 16",
            &["unknown field `batsh`", "`batch`", "config.toml"],
        ),
        ("batch = 16", "batch = -1", &["config.toml", "batch = -1"]),
        ("lr = 0.02", "lr = 2.0", &["`lr` is 2, expected 0 to 1"]),
        (
            "seed = 3",
            "warmup = 100",
            &["`warmup` is 100 steps", "at most 24"],
        ),
        ("seed = 3", "steps = 3", &["`epochs` and `steps`"]),
        (
            "inputs = 2",
            "inputs = 3",
            &["2 numbers at each step", "takes 3"],
        ),
        (
            "inputs = 2",
            "vocabulary = 9",
            &["the data are numbers", "takes tokens"],
        ),
        (
            "outputs = 3",
            "outputs = 2",
            &["labels up to 2", "2 classes"],
        ),
        ("channels = 4", "channels = 0", &["`channels` is 0"]),
        (
            "states = 3",
            "states = 3\nbidirectional = true",
            &["bidirectional"],
        ),
        (
            "hold_out = 0.2",
            "hold_out = 0.95",
            &["`hold_out` is 0.95", "0 to 0.9"],
        ),
        (
            "hold_out = 0.2\n\n[train]",
            "hold_out = 0.0\n\n[train]\npatience = 1",
            &["patience"],
        ),
    ];
    for (from, to, words) in cases {
        program.config(&CONFIG.replace(from, to));
        program.refuses(&start, words);
        assert!(!Path::new(&program.path("run")).exists(), "{to}");
    }
    program.config(CONFIG);
    program.refuses(
        &["pretrain", "missing.toml", "--output", "run"],
        &["missing.toml"],
    );
    if !cfg!(feature = "cuda") {
        let device = [&start[..], &["--device", "cuda:1"]].concat();
        program.refuses(&device, &["cuda:1", "without the feature `cuda`"]);
    }
    let resume = [&start[..], &["--resume"]].concat();
    program.refuses(&resume, &["no run to continue"]);
    let beneath = [
        "pretrain",
        "config.toml",
        "--output",
        "points.safetensors/run",
    ];
    program.refuses(&beneath, &["points.safetensors/run"]);
    assert!(program.command(&start).status().unwrap().success());
    program.refuses(&start, &["not empty", "--resume"]);
    program.config(&CONFIG.replace("lr = 0.02", "lr = 0.03"));
    program.refuses(&resume, &["other settings", "lr = 0.03", "lr = 0.02"]);
    // The softmax kernel holds for its own length.
    program.config(&CONFIG.replace("s4d", "dss-softmax"));
    let softmax = ["pretrain", "config.toml", "--output", "softmax", "-q"];
    assert!(program.command(&softmax).status().unwrap().success());
    let model = "softmax/model.safetensors";
    let long = [
        "retrain",
        model,
        "--length",
        "9",
        "--data",
        "points.safetensors",
        "--output",
        "out.pth",
    ];
    program.refuses(&long, &["declared for L = 9", "4"]);
    let no_data = ["retrain", model, "--output", "out.pth"];
    program.refuses(&no_data, &["--data"]);
}
