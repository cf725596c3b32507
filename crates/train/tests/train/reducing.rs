//! Networks that become smaller while they are trained.

use candle_core::Device;
use hankelite::model::Model;
use hankelite_data::Dataset;
use hankelite_train::nn::{
    Architecture, Mode, NetworkError, SequenceModel, TrainableNetwork, TrainableOptions,
    random_model,
};
use hankelite_train::{
    Cut, Evaluation, Examples, Folder, Loss, Objective, Observer, Outcome, Recipe, RecipeError,
    Reducing, ReducingTraining, Step, Stop, Task, TrainError, evaluate, task_loss,
};

use crate::points::{CLASSES, points};
use crate::small::StopAfter;

const MODES: usize = 12;

fn architecture(layer: &str, states: usize, layers: usize) -> Architecture {
    let text = format!(
        "layer = \"{layer}\"\nchannels = 4\nstates = {states}\nlayers = {layers}\n\
         inputs = 2\noutputs = {CLASSES}"
    );
    toml::from_str(&text).unwrap()
}

fn network(model: &Model) -> Result<TrainableNetwork, NetworkError> {
    TrainableNetwork::from_model(model, &TrainableOptions::new(8), &Device::Cpu)
}

fn recipe() -> Recipe {
    Recipe {
        epochs: Some(6),
        batch: 16,
        seed: 3,
        ..Recipe::default()
    }
}

fn trained(
    settings: Reducing,
    (data, validation): (&Dataset, &Dataset),
    folder: Option<&Folder>,
    (observer, stop): (&mut dyn Observer, &Stop),
) -> Result<(TrainableNetwork, Outcome), TrainError> {
    let start =
        network(&random_model(&architecture("s4d", MODES, 2), data.length(), 1).unwrap()).unwrap();
    let recipe = recipe();
    let training = ReducingTraining {
        settings,
        data,
        validation,
        recipe: &recipe,
        network: &network,
    };
    training.run(start, &mut Task::default(), folder, (observer, stop))
}

/// All cuts that were observed.
#[derive(Default)]
struct Cuts(Vec<Cut>, u64);

impl Observer for Cuts {
    fn step(&mut self, step: &Step) {
        self.1 = step.step;
    }

    fn cut(&mut self, cut: &Cut) {
        self.0.push(cut.clone());
    }
}

fn values(network: &TrainableNetwork) -> Vec<Vec<f32>> {
    let all = network.parameters().iter();
    all.map(|one| one.var.flatten_all().unwrap().to_vec1().unwrap())
        .collect()
}

#[test]
fn a_network_is_cut_on_the_way_and_ends_smaller() {
    let place = tempfile::tempdir().unwrap();
    let data = points(place.path(), 96);
    let (data, held_out) = data.hold_out(24, 0).unwrap();
    let settings = Reducing {
        energy: 0.9,
        tolerance: 10.0,
        ..Reducing::default()
    };
    let mut seen = Cuts::default();
    let stop = Stop::default();
    let (network, outcome) =
        trained(settings, (&data, &held_out), None, (&mut seen, &stop)).unwrap();
    assert_eq!((outcome.steps, seen.1), (30, 30));
    assert_eq!(outcome.history.len(), 6);
    assert_eq!(outcome.cuts, seen.0);
    assert!(
        outcome.cuts.iter().all(|cut| cut.kept && cut.epoch <= 3),
        "{:?}",
        outcome.cuts
    );
    let last = outcome.cuts.last().unwrap();
    let orders: Vec<usize> = network
        .to_model()
        .unwrap()
        .blocks()
        .iter()
        .map(|b| b.order())
        .collect();
    assert_eq!(orders, last.orders);
    assert!(orders.iter().all(|&order| order < MODES), "{orders:?}");
    // What is left is the best epoch behind the last cut.
    let best = outcome.best.unwrap();
    assert!(best.epoch > last.epoch, "{best:?}");
    let found = evaluate(&network, &held_out, 16).unwrap();
    assert!((found.loss() - best.value).abs() < 1e-6);
}

/// The task, whose held-out loss is that of the opposite answers where a network has fewer numbers
/// than this.
struct Worse(usize);

impl Objective for Worse {
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
        let outputs = network.forward(&examples.input, Mode::Evaluate)?;
        let outputs = match numbers(network) < self.0 {
            true => outputs.neg()?,
            false => outputs,
        };
        let loss = task_loss(&outputs, &examples.targets, 0.0)?;
        Ok(Evaluation::new(loss.tally, None, examples.count))
    }
}

fn numbers(network: &dyn SequenceModel) -> usize {
    let all = network.parameters().iter();
    all.map(|parameter| parameter.var.elem_count()).sum()
}

#[test]
fn a_cut_that_costs_too_much_is_taken_back() {
    let place = tempfile::tempdir().unwrap();
    let data = points(place.path(), 96);
    let (data, held_out) = data.hold_out(24, 0).unwrap();
    let start = network(&random_model(&architecture("s4d", MODES, 2), 4, 1).unwrap()).unwrap();
    let whole = numbers(&start);
    let (recipe, settings) = (
        recipe(),
        Reducing {
            energy: 0.9,
            ..Reducing::default()
        },
    );
    let training = ReducingTraining {
        settings,
        data: &data,
        validation: &held_out,
        recipe: &recipe,
        network: &network,
    };
    let with = (&mut () as &mut dyn Observer, &Stop::default());
    let (network, outcome) = training.run(start, &mut Worse(whole), None, with).unwrap();
    assert_eq!(numbers(&network), whole);
    let epochs: Vec<u64> = outcome.cuts.iter().map(|cut| cut.epoch).collect();
    assert_eq!(
        epochs,
        [1, 2, 3],
        "tried again behind each epoch of the first half"
    );
    for cut in &outcome.cuts {
        assert!(
            !cut.kept && cut.loss_behind > 1.05 * cut.loss_before,
            "{cut:?}"
        );
    }
    // The weights are those of a training that was never cut.
    let never = Reducing {
        until: 0.0,
        ..settings
    };
    let sets = (&data, &held_out);
    let (plain, _) = trained(never, sets, None, (&mut (), &Stop::default())).unwrap();
    assert_eq!(values(&network), values(&plain));
}

#[test]
fn cuts_that_change_nothing_leave_the_training_as_it_is() {
    let place = tempfile::tempdir().unwrap();
    let data = points(place.path(), 96);
    let (data, held_out) = data.hold_out(24, 0).unwrap();
    let sets = (&data, &held_out);
    let of = |energy: f64, every: u64| {
        let settings = Reducing {
            energy,
            every,
            ..Reducing::default()
        };
        let stop = Stop::default();
        let (network, outcome) = trained(settings, sets, None, (&mut (), &stop)).unwrap();
        assert_eq!(outcome.cuts, []);
        values(&network)
    };
    // Looked at behind each epoch, and never.
    assert_eq!(of(1.0, 1), of(0.5, 100));
}

#[test]
fn a_run_that_was_stopped_anywhere_goes_on_to_the_same_bytes() {
    let place = tempfile::tempdir().unwrap();
    let data = points(place.path(), 96);
    let (data, held_out) = data.hold_out(24, 0).unwrap();
    let sets = (&data, &held_out);
    let settings = Reducing {
        energy: 0.93,
        tolerance: 10.0,
        ..Reducing::default()
    };
    let folder = |name: &str| Folder::create(place.path().join(name), "").unwrap();
    let stop = Stop::default();
    let whole = folder("whole");
    let (expected, outcome) = trained(settings, sets, Some(&whole), (&mut (), &stop)).unwrap();
    assert!(
        outcome.cuts.iter().any(|cut| cut.kept),
        "{:?}",
        outcome.cuts
    );
    // Amid an epoch, at its end, which is a cut, and behind the last one.
    for after in [2, 5, 7, 10, 15, 16, 22, 30] {
        let name = format!("stopped-{after}");
        let stop = Stop::default();
        let mut observer = StopAfter(after, stop.clone());
        let first = folder(&name);
        trained(settings, sets, Some(&first), (&mut observer, &stop)).unwrap();
        drop(first);
        let again = Folder::resume(place.path().join(&name), "").unwrap();
        let (network, found) =
            trained(settings, sets, Some(&again), (&mut (), &Stop::default())).unwrap();
        assert_eq!(
            values(&network),
            values(&expected),
            "stopped behind {after}"
        );
        assert_eq!(found.cuts, outcome.cuts);
    }
}

/// Stops at the first cut, when its snapshot is there.
struct AtCut(Stop, bool);

impl Observer for AtCut {
    fn start(&mut self, _: u64, _: u64) {
        if self.1 {
            self.0.request();
        }
    }

    fn cut(&mut self, _: &Cut) {
        self.1 = true;
    }
}

/// Decays, frequencies and second moments of the weights of the first layer in a snapshot.
struct Modes {
    poles: Vec<(f64, f64)>,
    moments: Vec<[f64; 2]>,
    each: usize,
}

impl Modes {
    fn read(folder: &Folder) -> Self {
        let archive = hankelite_archive::Archive::open(folder.last()).unwrap();
        let numbers = |name: &str| archive.tensor(name).unwrap().to_f64().unwrap();
        let decay = numbers("parameter.blocks.0.log_decay");
        let frequency = numbers("parameter.blocks.0.frequency");
        let poles = decay.iter().zip(frequency);
        Self {
            poles: poles
                .map(|(decay, frequency)| (-decay.exp(), frequency))
                .collect(),
            moments: numbers("second.blocks.0.weights").as_chunks().0.to_vec(),
            each: archive.shape("parameter.blocks.0.log_decay").unwrap()[1],
        }
    }

    /// The index of the mode of a channel that is nearest to a pole.
    fn nearest(&self, channel: usize, pole: (f64, f64)) -> usize {
        let apart = |m: &usize| {
            let other = self.poles[*m];
            (pole.0 - other.0).hypot(pole.1 - other.1)
        };
        let own = channel * self.each..(channel + 1) * self.each;
        own.min_by(|a, b| apart(a).total_cmp(&apart(b))).unwrap()
    }
}

#[test]
fn moments_go_on_and_are_those_of_the_nearest_modes() {
    let place = tempfile::tempdir().unwrap();
    let data = points(place.path(), 96);
    let (data, held_out) = data.hold_out(24, 0).unwrap();
    let sets = (&data, &held_out);
    let settings = Reducing {
        energy: 0.9,
        tolerance: 10.0,
        until: 0.3,
        ..Reducing::default()
    };
    let folder = Folder::create(place.path().join("run"), "").unwrap();
    // The first cut is due behind step 5: what is there then, and behind the cut.
    let stop = Stop::default();
    let mut observer = StopAfter(5, stop.clone());
    trained(settings, sets, Some(&folder), (&mut observer, &stop)).unwrap();
    let before = Modes::read(&folder);
    assert_eq!((before.each, before.poles.len()), (MODES, 4 * MODES));
    let stop = Stop::default();
    let mut observer = AtCut(stop.clone(), false);
    trained(settings, sets, Some(&folder), (&mut observer, &stop)).unwrap();
    let behind = Modes::read(&folder);
    assert!(behind.each < MODES);
    for (at, (&pole, moments)) in behind.poles.iter().zip(&behind.moments).enumerate() {
        let nearest = before.nearest(at / behind.each, pole);
        assert_eq!(*moments, before.moments[nearest]);
    }
}

#[test]
fn what_cannot_be_cut_is_named() {
    let place = tempfile::tempdir().unwrap();
    let data = points(place.path(), 48);
    let (data, held_out) = data.hold_out(12, 0).unwrap();
    let softmax = architecture("dss-softmax", 4, 1);
    let options = TrainableOptions {
        parameterisation: Some(softmax.layer.parameterisation()),
        ..TrainableOptions::new(8)
    };
    let network = |model: &Model| TrainableNetwork::from_model(model, &options, &Device::Cpu);
    let start = network(&random_model(&softmax, 8, 0).unwrap()).unwrap();
    let recipe = recipe();
    let training = ReducingTraining {
        settings: Reducing::default(),
        data: &data,
        validation: &held_out,
        recipe: &recipe,
        network: &network,
    };
    let found = training.run(
        start,
        &mut Task::default(),
        None,
        (&mut (), &Stop::default()),
    );
    let error = found.err().unwrap();
    assert!(
        matches!(error, TrainError::Recipe(RecipeError::Growing)),
        "{error}"
    );
    let cases = [
        ("energy = 0.0", "`energy` is 0, expected"),
        ("every = 0", "`every` is 0, expected 1 to 1000000"),
        ("until = 1.5", "`until` is 1.5, expected 0 to 1"),
        ("least = 0", "`least` is 0, expected 1 to 1000000"),
        ("tolerance = -1.0", "`tolerance` is -1, expected 0 to 10"),
    ];
    for (text, message) in cases {
        let settings: Reducing = toml::from_str(text).unwrap();
        let error = settings.check().unwrap_err().to_string();
        assert!(error.starts_with(message), "{error}");
    }
}
