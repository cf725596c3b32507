//! The loop.

use std::time::Instant;

use candle_core::Tensor;
use hankelite_data::{Batches, Dataset, Targets};
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use crate::nn::{Mode, SequenceModel};
use crate::train::batch::{evaluate, examples};
use crate::train::folder::Folder;
use crate::train::loss::{scalar, task_loss};
use crate::train::objective::{Examples, Objective};
use crate::train::observer::{Entry, Observer, Step, Stop};
use crate::train::optimiser::{AdamW, Gradients, clip_factor};
use crate::train::recipe::{Monitor, Recipe};
use crate::train::schedule::{Course, Schedule};
use crate::train::snapshot::{Best, End, Progress};
use crate::train::{RecipeError, TrainError, snapshot};

/// Streams of the generator from here on are for dropout; the data room shuffles from 2⁶³ on.
const DROPOUT: u64 = 1 << 62;

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
    /// The best epoch by the validation part.
    pub best: Option<Best>,
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
    schedule: Schedule,
    progress: Progress,
    history: Vec<Entry>,
    /// Parameters and buffers of the best epoch.
    best: Option<Vec<Tensor>>,
    /// When this start began, less the seconds of those before.
    clock: Clock,
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
    pub fn check(&self) -> Result<(), TrainError> {
        self.recipe.check()?;
        let batches = Batches::new(self.data, self.recipe.batch, self.recipe.seed, 0)?;
        self.recipe
            .schedule(self.recipe.total(batches.len() as u64))?;
        self.check_validation()?;
        for data in [Some(self.data), self.validation].into_iter().flatten() {
            let first = examples(self.network, data, &[0])?;
            let outputs = self.network.forward(&first.input, Mode::Evaluate)?;
            match task_loss(&outputs, &first.targets, 0.0) {
                // The first sequence alone may have no step that counts.
                Ok(_) | Err(TrainError::NothingCounts) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
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
            if recipe.monitor == Monitor::Accuracy {
                return needs("monitor");
            }
        }
        let classes = matches!(
            self.data.targets(),
            Targets::Classes { .. } | Targets::StepClasses { .. }
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
        self.check()?;
        let mut run = Run::new(*self, folder)?;
        observer.start(run.progress.step, run.schedule.total);
        while run.progress.end.is_none() {
            if !run.epoch(objective, observer, stop)? {
                run.write_last()?;
                return Ok(run.outcome());
            }
        }
        run.restore_best()?;
        Ok(run.outcome())
    }
}

impl<'a> Run<'a> {
    fn new(training: Training<'a>, folder: Option<&'a Folder>) -> Result<Self, TrainError> {
        let (network, recipe) = (training.network, training.recipe);
        let batches = Batches::new(training.data, recipe.batch, recipe.seed, 0)?;
        let mut run = Self {
            training,
            folder,
            optimiser: AdamW::new(network.parameters(), recipe.optimiser())?,
            schedule: recipe.schedule(recipe.total(batches.len() as u64))?,
            progress: Progress::default(),
            history: Vec::new(),
            best: None,
            clock: Clock {
                start: Instant::now(),
                before: 0.0,
            },
        };
        if let Some(folder) = folder {
            run.resume(folder)?;
        }
        Ok(run)
    }

    /// Goes on from the last snapshot, if there is one.
    fn resume(&mut self, folder: &Folder) -> Result<(), TrainError> {
        let network = self.training.network;
        if folder.last().exists() {
            if folder.best().exists() {
                snapshot::read(&folder.best(), network, &mut self.optimiser)?;
                self.best = Some(weights(network)?);
            }
            self.progress = snapshot::read(&folder.last(), network, &mut self.optimiser)?;
        }
        self.history = folder.rewind(self.progress.metrics_bytes)?;
        self.clock.before = self.progress.seconds;
        Ok(())
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
            if every > 0 && self.progress.step.is_multiple_of(every) {
                self.write_last()?;
            }
        }
        if stop.requested() {
            return Ok(false);
        }
        let entry = self.end_of_epoch()?;
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
        let loss = objective.loss(network, examples, Mode::Train(&mut generator))?;
        require_finite("the loss", scalar(&loss.value)?, step)?;
        let store = loss.value.backward()?;
        let gradients = Gradients::collect(network.parameters(), &store)?;
        let norm = gradients.norm()?;
        require_finite("the norm of the gradients", norm, step)?;
        let rate = self.schedule.factor(step, self.progress.halvings);
        let scale = clip_factor(norm, recipe.clip);
        self.optimiser.step(&gradients, rate, scale)?;
        let further = objective.after_step(network.parameters())?;
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

    /// Validates, decides on best and end, and writes metrics and snapshots.
    fn end_of_epoch(&mut self) -> Result<Entry, TrainError> {
        let Training {
            network, recipe, ..
        } = self.training;
        let validation = match self.training.validation {
            Some(data) => Some(evaluate(network, data, recipe.batch)?),
            None => None,
        };
        let mut entry = self.entry();
        if let Some(tally) = validation {
            entry.validation_loss = Some(tally.loss());
            entry.validation_accuracy = tally.accuracy();
        }
        entry.best = self.weigh(&entry);
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
            self.best = Some(weights(network)?);
            self.write(Folder::best)?;
        }
        self.write_last()?;
        self.history.push(entry.clone());
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
    fn weigh(&mut self, entry: &Entry) -> bool {
        let monitor = self.training.recipe.monitor;
        let value = match monitor {
            Monitor::Loss => entry.validation_loss,
            Monitor::Accuracy => entry.validation_accuracy,
        };
        let Some(value) = value else { return true };
        let progress = &mut self.progress;
        let better = progress.best.is_none_or(|best| match monitor {
            Monitor::Loss => value < best.value,
            Monitor::Accuracy => value > best.value,
        });
        if better {
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
        self.write(Folder::last)
    }

    fn write(&mut self, place: fn(&Folder) -> std::path::PathBuf) -> Result<(), TrainError> {
        self.progress.seconds = self.clock.seconds();
        match self.folder {
            None => Ok(()),
            Some(folder) => snapshot::write(
                &place(folder),
                self.training.network,
                &self.optimiser,
                &self.progress,
            ),
        }
    }

    /// Puts the weights of the best epoch into the network.
    fn restore_best(&self) -> Result<(), TrainError> {
        let network = self.training.network;
        let Some(best) = &self.best else {
            return Ok(());
        };
        let parameters = network.parameters().iter().map(|parameter| &parameter.var);
        let buffers = network.buffers().iter().map(|buffer| &buffer.var);
        for (var, tensor) in parameters.chain(buffers).zip(best) {
            var.set(tensor)?;
        }
        Ok(())
    }

    fn outcome(self) -> Outcome {
        Outcome {
            end: self.progress.end,
            history: self.history,
            best: self.progress.best,
            steps: self.progress.step,
            seconds: self.progress.seconds,
        }
    }
}

/// Copies of all parameters, then of all buffers.
fn weights(network: &dyn SequenceModel) -> Result<Vec<Tensor>, TrainError> {
    let parameters = network.parameters().iter().map(|parameter| &parameter.var);
    let buffers = network.buffers().iter().map(|buffer| &buffer.var);
    let copies = parameters.chain(buffers).map(|var| var.as_tensor().copy());
    Ok(copies.collect::<candle_core::Result<_>>()?)
}

fn require_finite(what: &'static str, value: f64, step: u64) -> Result<(), TrainError> {
    if value.is_finite() {
        return Ok(());
    }
    Err(TrainError::Diverged { what, value, step })
}
