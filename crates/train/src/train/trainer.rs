//! The loop.

mod reducing;

pub use reducing::{Reducing, ReducingTraining};

use std::time::{Duration, Instant};

use candle_core::Tensor;
use hankelite_data::{Batches, Dataset, Targets};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::nn::{Mode, SequenceModel};
use crate::train::average::{self, Average};
use crate::train::batch::{evaluate_by, examples};
use crate::train::folder::Folder;
use crate::train::loss::scalar;
use crate::train::objective::{Evaluation, Examples, Objective};
use crate::train::observer::{Entry, Observer, Step, Stop};
use crate::train::optimiser::{AdamW, Gradients, clip_factor};
use crate::train::recipe::{Monitor, Recipe};
use crate::train::schedule::{Course, Schedule};
use crate::train::snapshot::{Best, Cut, End, Progress, State};
use crate::train::{RecipeError, TrainError, snapshot};

/// Streams of the generator from here on are for dropout; the data room shuffles from 2⁶³ on.
const DROPOUT: u64 = 1 << 62;

/// A run that is killed loses no more than this.
const SNAPSHOT_EVERY: Duration = Duration::from_secs(30);

/// A network with the data and the settings of its training.
#[derive(Clone, Copy)]
pub struct Training<'a> {
    /// What is trained, in place.
    pub network: &'a dyn SequenceModel,
    /// What it is trained on.
    pub data: &'a Dataset,
    /// What `best`, early stopping and the plateau schedule go by.
    pub validation: Option<&'a Dataset>,
    /// The settings.
    pub recipe: &'a Recipe,
}

/// What a training came to.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Outcome {
    /// Why it is over; `None` when it was requested to stop before.
    pub end: Option<End>,
    /// One entry for each finished epoch.
    pub history: Vec<Entry>,
    /// What the start shows on the validation part, where it counts (`keep_start`).
    pub start: Option<Evaluation>,
    /// The best epoch by the validation part; where the network was cut, of those behind.
    pub best: Option<Best>,
    /// The cuts that were tried on the way.
    pub cuts: Vec<Cut>,
    /// Steps done in all.
    pub steps: u64,
    /// Seconds of training, over all starts.
    pub seconds: f64,
}

/// All that moves while a training runs.
struct Run<'a> {
    training: Training<'a>,
    folder: Option<&'a Folder>,
    optimiser: AdamW,
    average: Option<Average>,
    schedule: Schedule,
    progress: Progress,
    history: Vec<Entry>,
    /// Parameters and buffers of the best epoch.
    best: Option<Vec<Tensor>>,
    /// When this start began, less the seconds of those before.
    clock: Clock,
    /// When the last snapshot was written.
    kept: Instant,
}

/// What a run goes on with behind another one, whose network was another.
struct Carried {
    progress: Progress,
    history: Vec<Entry>,
    moments: Vec<(Tensor, Tensor)>,
    /// `None` starts the average again.
    average: Option<Average>,
    best: Option<Vec<Tensor>>,
    seconds: f64,
    /// Whether the network is a smaller one now.
    is_cut: bool,
}

struct Clock {
    start: Instant,
    before: f64,
}

impl Clock {
    fn seconds(&self) -> f64 {
        self.before + self.start.elapsed().as_secs_f64()
    }
}

impl<'a> Training<'a> {
    /// Whether this can run at all: the ranges of the recipe, the size of the batch, the shapes
    /// of the outputs on the first sequence. Nothing is trained.
    ///
    /// # Errors
    /// A [`TrainError`] with what does not fit.
    pub fn check(&self, objective: &mut dyn Objective) -> Result<(), TrainError> {
        self.recipe.check()?;
        let batches = Batches::new(self.data, self.recipe.batch, self.recipe.seed, 0)?;
        self.recipe
            .schedule(self.recipe.total(batches.len() as u64))?;
        self.check_validation()?;
        for data in [Some(self.data), self.validation].into_iter().flatten() {
            let first = examples(self.network, data, &[0])?;
            match objective.measure(self.network, &first) {
                Ok(found) => self.check_monitor(&found)?,
                // The first sequence alone may have no step that counts.
                Err(TrainError::NothingCounts) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn check_monitor(&self, found: &Evaluation) -> Result<(), RecipeError> {
        match self.recipe.monitor {
            Monitor::Teacher if found.distance().is_none() => Err(RecipeError::NothingToMonitor),
            _ => Ok(()),
        }
    }

    fn check_validation(&self) -> Result<(), RecipeError> {
        let recipe = self.recipe;
        let needs = |key| Err(RecipeError::NoValidation { key });
        if self.validation.is_none() {
            if recipe.patience > 0 {
                return needs("patience");
            }
            if recipe.schedule == Course::Plateau {
                return needs("schedule");
            }
            if recipe.monitor != Monitor::Loss {
                return needs("monitor");
            }
            if recipe.keep_start {
                return needs("keep_start");
            }
        }
        // Without targets only a teacher's classes can be answered.
        let classes = !matches!(
            self.data.targets(),
            Targets::Values { .. } | Targets::StepValues { .. }
        );
        match recipe.monitor {
            Monitor::Accuracy if !classes => Err(RecipeError::NoAccuracy),
            _ => Ok(()),
        }
    }

    /// Trains to the end, or until requested to stop. With a folder that has a snapshot, goes on from
    /// there; a run that is over only loads its result.
    ///
    /// At the end the network holds the weights of the best epoch by the validation part, or
    /// without one those of the last step. After a stop it holds those of the last step.
    ///
    /// # Errors
    /// As [`Training::check`]; [`TrainError::Diverged`], [`TrainError::NoGradient`]; errors of
    /// files. Snapshots that were written before stay.
    pub fn run(
        &self,
        objective: &mut dyn Objective,
        folder: Option<&'a Folder>,
        observer: &mut dyn Observer,
        stop: &Stop,
    ) -> Result<Outcome, TrainError> {
        self.check(objective)?;
        let mut run = Run::new(*self, folder, None)?;
        run.weigh_start(objective)?;
        observer.start(run.progress.step, run.schedule.total);
        if run.until(u64::MAX, objective, observer, stop)? {
            run.restore_best()?;
        }
        Ok(run.outcome())
    }
}

impl<'a> Run<'a> {
    /// Goes on from what is carried over; else from the snapshot in the folder, where there is one.
    fn new(
        training: Training<'a>,
        folder: Option<&'a Folder>,
        carried: Option<Carried>,
    ) -> Result<Self, TrainError> {
        let (network, recipe) = (training.network, training.recipe);
        let batches = Batches::new(training.data, recipe.batch, recipe.seed, 0)?;
        let mut run = Self {
            training,
            folder,
            optimiser: AdamW::new(network.parameters(), recipe.optimiser())?,
            average: Average::of(network, recipe.average)?,
            schedule: recipe.schedule(recipe.total(batches.len() as u64))?,
            progress: Progress::default(),
            history: Vec::new(),
            best: None,
            clock: Clock {
                start: Instant::now(),
                before: 0.0,
            },
            kept: Instant::now(),
        };
        match (carried, folder) {
            (Some(carried), _) => run.take_over(carried)?,
            (None, Some(folder)) => run.resume(folder)?,
            (None, None) => {}
        }
        Ok(run)
    }

    /// Goes on where another run ended. The snapshot of a smaller network takes the place of that
    /// before; what was best then has another shape.
    fn take_over(&mut self, carried: Carried) -> Result<(), TrainError> {
        self.optimiser
            .restore(carried.progress.step, carried.moments);
        if carried.average.is_some() {
            self.average = carried.average;
        }
        (self.best, self.progress, self.history) =
            (carried.best, carried.progress, carried.history);
        self.clock.before = carried.seconds;
        if let (Some(folder), true) = (self.folder, carried.is_cut) {
            folder.forget_best()?;
        }
        self.write_last()
    }

    /// Trains until behind an epoch, or to the end. `false` when it was requested to stop.
    fn until(
        &mut self,
        epoch: u64,
        objective: &mut dyn Objective,
        observer: &mut dyn Observer,
        stop: &Stop,
    ) -> Result<bool, TrainError> {
        while self.progress.end.is_none() && self.progress.epoch < epoch {
            if !self.epoch(objective, observer, stop)? {
                self.write_last()?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Goes on from the last snapshot, if there is one.
    fn resume(&mut self, folder: &Folder) -> Result<(), TrainError> {
        let network = self.training.network;
        if folder.last().exists() {
            if folder.best().exists() {
                snapshot::read(&folder.best(), &mut self.state())?;
                self.best = Some(average::weights(network)?);
            }
            self.progress = snapshot::read(&folder.last(), &mut self.state())?;
        }
        self.history = folder.rewind(self.progress.metrics_bytes)?;
        self.clock.before = self.progress.seconds;
        Ok(())
    }

    fn state(&mut self) -> State<'_> {
        State {
            network: self.training.network,
            optimiser: &mut self.optimiser,
            average: self.average.as_mut(),
        }
    }

    /// Validates the start of a new run, where it counts as one of those that the best is chosen of.
    fn weigh_start(&mut self, objective: &mut dyn Objective) -> Result<(), TrainError> {
        let Training {
            network, recipe, ..
        } = self.training;
        let Some(data) = self.training.validation.filter(|_| recipe.keep_start) else {
            return Ok(());
        };
        if self.progress.start.is_some() {
            return Ok(());
        }
        let found = evaluate_by(objective, network, data, recipe.batch)?;
        let (epoch, step) = (0, 0);
        let best = recipe.monitor.of(&found);
        self.progress.best = best.map(|value| Best { epoch, step, value });
        self.progress.start = Some(found);
        self.best = Some(average::weights(network)?);
        self.write(Folder::best)?;
        self.write_last()
    }

    /// The rest of the epoch at hand, and its end. `false` when it was requested to stop.
    fn epoch(
        &mut self,
        objective: &mut dyn Objective,
        observer: &mut dyn Observer,
        stop: &Stop,
    ) -> Result<bool, TrainError> {
        let Training { data, recipe, .. } = self.training;
        let batches = Batches::new(data, recipe.batch, recipe.seed, self.progress.epoch)?;
        while let Some(indices) = batches.get(self.progress.batch) {
            if self.progress.step >= self.schedule.total {
                break;
            }
            if stop.requested() {
                return Ok(false);
            }
            let examples = examples(self.training.network, data, indices)?;
            self.step(objective, &examples)?;
            observer.step(&self.report(examples.count));
            let every = recipe.snapshot_every;
            let due = every > 0 && self.progress.step.is_multiple_of(every);
            if due || self.kept.elapsed() >= SNAPSHOT_EVERY {
                self.write_last()?;
            }
        }
        if stop.requested() {
            return Ok(false);
        }
        let entry = self.end_of_epoch(objective)?;
        observer.epoch(&entry);
        Ok(true)
    }

    /// One step: loss, gradients, clipping, optimiser, projection.
    fn step(
        &mut self,
        objective: &mut dyn Objective,
        examples: &Examples,
    ) -> Result<(), TrainError> {
        let Training {
            network, recipe, ..
        } = self.training;
        let step = self.progress.step;
        let mut generator = ChaCha8Rng::seed_from_u64(recipe.seed);
        generator.set_stream(DROPOUT | step);
        objective.before_step(step as f64 / self.schedule.total as f64);
        let loss = objective.loss(network, examples, Mode::Train(&mut generator))?;
        require_finite("the loss", scalar(&loss.value)?, step)?;
        let store = loss.value.backward()?;
        let gradients = Gradients::of(network, &store)?;
        let norm = gradients.norm_of_moved(network.parameters(), &recipe.optimiser())?;
        require_finite("the norm of the gradients", norm, step)?;
        let rate = self.schedule.factor(step, self.progress.halvings);
        let scale = clip_factor(norm, recipe.clip);
        self.optimiser.step(&gradients, rate, scale)?;
        let further = objective.after_step(network.parameters())?;
        if let Some(average) = &mut self.average {
            average.step(network, step + 1)?;
        }
        let progress = &mut self.progress;
        progress.step += 1;
        progress.batch += 1;
        progress.gradient_norms += norm;
        progress.tally.add(&loss.tally);
        for (name, value) in loss.terms.into_iter().chain(further) {
            *progress.terms.entry(name.to_string()).or_default() += value;
        }
        Ok(())
    }

    fn report(&self, examples: usize) -> Step {
        Step {
            step: self.progress.step,
            total: self.schedule.total,
            epoch: self.progress.epoch + 1,
            loss: self.progress.tally.loss(),
            accuracy: self.progress.tally.accuracy(),
            examples,
        }
    }

    /// Validates, decides on best and end, and writes metrics and snapshots. What is validated and
    /// kept are the averaged weights, where there are any.
    fn end_of_epoch(&mut self, objective: &mut dyn Objective) -> Result<Entry, TrainError> {
        let network = self.training.network;
        let trained = match &self.average {
            None => None,
            Some(average) => {
                let trained = average::weights(network)?;
                average::put(network, average.weights())?;
                Some(trained)
            }
        };
        let entry = self.validated(objective)?;
        self.progress = Progress {
            epoch: entry.epoch,
            batch: 0,
            tally: Default::default(),
            terms: Default::default(),
            gradient_norms: 0.0,
            end: self.end(),
            ..std::mem::take(&mut self.progress)
        };
        if let Some(folder) = self.folder {
            self.progress.metrics_bytes = folder.append(&entry)?;
        }
        if entry.best {
            self.best = Some(average::weights(network)?);
            self.write(Folder::best)?;
        }
        if let Some(trained) = trained {
            average::put(network, &trained)?;
        }
        self.write_last()?;
        self.history.push(entry.clone());
        Ok(entry)
    }

    /// The epoch at hand with what the network, as it stands, shows on the validation part.
    fn validated(&mut self, objective: &mut dyn Objective) -> Result<Entry, TrainError> {
        let Training {
            network, recipe, ..
        } = self.training;
        let found = match self.training.validation {
            Some(data) => Some(evaluate_by(objective, network, data, recipe.batch)?),
            None => None,
        };
        let mut entry = self.entry();
        if let Some(found) = &found {
            entry.validation_loss = Some(found.tally().loss());
            entry.validation_accuracy = found.tally().accuracy();
            entry.validation_distance = found.distance();
        }
        entry.best = self.weigh(&entry, found.as_ref());
        Ok(entry)
    }

    fn entry(&self) -> Entry {
        let progress = &self.progress;
        // At least one: an epoch begins only while steps are left.
        let steps = progress.batch.max(1) as f64;
        let last = progress.step.saturating_sub(1);
        let means = progress.terms.iter();
        Entry {
            epoch: progress.epoch + 1,
            step: progress.step,
            rate: self.schedule.factor(last, progress.halvings),
            train_loss: progress.tally.loss(),
            train_accuracy: progress.tally.accuracy(),
            validation_loss: None,
            validation_accuracy: None,
            validation_distance: None,
            gradient_norm: progress.gradient_norms / steps,
            terms: means
                .map(|(name, sum)| (name.clone(), sum / steps))
                .collect(),
            best: false,
            seconds: self.clock.seconds(),
        }
    }

    /// Whether the epoch is the best so far; counts those that are not. Without validation every
    /// epoch is.
    fn weigh(&mut self, entry: &Entry, found: Option<&Evaluation>) -> bool {
        let monitor = self.training.recipe.monitor;
        let Some(found) = found else { return true };
        let Some(value) = monitor.of(found) else {
            return true;
        };
        let progress = &mut self.progress;
        let better = progress.best.is_none_or(|best| match monitor {
            Monitor::Loss | Monitor::Teacher => value < best.value,
            Monitor::Accuracy => value > best.value,
        });
        let start = progress.start.as_ref();
        let lost = start.is_some_and(|start| {
            loses(found, start) || monitor == Monitor::Loss && !found.gains_beyond_noise_on(start)
        });
        if better && !lost {
            let (epoch, step) = (entry.epoch, entry.step);
            progress.best = Some(Best { epoch, step, value });
            (progress.waiting, progress.stalled) = (0, 0);
            return true;
        }
        progress.waiting += 1;
        progress.stalled += 1;
        if progress.stalled >= self.training.recipe.plateau {
            progress.stalled = 0;
            progress.halvings += 1;
        }
        false
    }

    fn end(&self) -> Option<End> {
        let patience = self.training.recipe.patience;
        if self.progress.step >= self.schedule.total {
            return Some(End::Finished);
        }
        (patience > 0 && self.progress.waiting >= patience).then_some(End::Stalled)
    }

    fn write_last(&mut self) -> Result<(), TrainError> {
        self.write(Folder::last)?;
        self.kept = Instant::now();
        Ok(())
    }

    fn write(&mut self, place: fn(&Folder) -> std::path::PathBuf) -> Result<(), TrainError> {
        self.progress.seconds = self.clock.seconds();
        match self.folder {
            None => Ok(()),
            Some(folder) => {
                let progress = self.progress.clone();
                snapshot::write(&place(folder), &self.state(), &progress)
            }
        }
    }

    /// Puts the weights of the best epoch into the network.
    fn restore_best(&self) -> Result<(), TrainError> {
        match &self.best {
            None => Ok(()),
            Some(best) => Ok(average::put(self.training.network, best)?),
        }
    }

    fn outcome(self) -> Outcome {
        Outcome {
            end: self.progress.end,
            history: self.history,
            start: self.progress.start,
            best: self.progress.best,
            cuts: self.progress.cuts,
            steps: self.progress.step,
            seconds: self.progress.seconds,
        }
    }
}

/// Whether the task is answered worse than at the start: by the accuracy, or where there are no
/// classes by the loss.
fn loses(now: &Evaluation, start: &Evaluation) -> bool {
    let (now, start) = (now.tally(), start.tally());
    match (now.accuracy(), start.accuracy()) {
        (Some(now), Some(start)) => now < start,
        _ => now.loss() > start.loss(),
    }
}

fn require_finite(what: &'static str, value: f64, step: u64) -> Result<(), TrainError> {
    if value.is_finite() {
        return Ok(());
    }
    Err(TrainError::Diverged { what, value, step })
}
