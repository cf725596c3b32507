//! Trainings whose network becomes smaller on the way.

use std::path::PathBuf;

use candle_core::{DType, Tensor};
use hankelite::advanced::reduce_layer;
use hankelite::checkpoint::Checkpoint;
use hankelite::compress::{LayerSpectrum, TimeBase, inspect};
use hankelite::model::Model;
use hankelite::{Declared, Plan, Rule, read, write};
use hankelite_control::Realisation;
use hankelite_data::Dataset;
use serde::{Deserialize, Serialize};

use super::{Carried, Outcome, Run, Training};
use crate::nn::{NetworkError, Parameter, SequenceModel, TrainableNetwork};
use crate::train::batch::evaluate_by;
use crate::train::folder::Folder;
use crate::train::objective::Objective;
use crate::train::observer::{Observer, Stop};
use crate::train::recipe::{Recipe, within};
use crate::train::snapshot::{self, Cut, Progress};
use crate::train::{RecipeError, TrainError};

/// Reduction during a training: the table `[reduce]`. Behind every so many epochs each layer is cut
/// by balanced truncation to the smallest order that keeps a share of its Hankel singular values,
/// and the network goes on from there, smaller; where its loss on held-out sequences rises by more
/// than a tolerance, it goes on as it was.
///
/// # References
/// Chahine, Nazari, Rus and Rusch 2025, "The curious case of in-training compression of state space
/// models" (CompreSSM), for layers with several inputs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Reducing {
    /// The share of Σ σ that a layer keeps, the mean over its channels: above 0, to 1. Default 0.99.
    pub energy: f64,
    /// Epochs from one cut to the next, 1 to 10⁶. Default 1.
    pub every: u64,
    /// The share of all steps behind which nothing is cut, 0 to 1. Default 0.5.
    pub until: f64,
    /// The fewest stored states of a channel, at least 1. Default 1.
    pub least: usize,
    /// How much of itself the held-out loss may rise by at a cut, 0 to 10. Default 0.05.
    pub tolerance: f64,
}

impl Default for Reducing {
    fn default() -> Self {
        Self {
            energy: 0.99,
            every: 1,
            until: 0.5,
            least: 1,
            tolerance: 0.05,
        }
    }
}

impl Reducing {
    /// Checks every range.
    ///
    /// # Errors
    /// A [`RecipeError`] with the key and what may stand there.
    pub fn check(&self) -> Result<(), RecipeError> {
        within("energy", self.energy, f64::MIN_POSITIVE..=1.0)?;
        within("every", self.every, 1..=1_000_000)?;
        within("until", self.until, 0.0..=1.0)?;
        within("least", self.least, 1..=1_000_000)?;
        within("tolerance", self.tolerance, 0.0..=10.0)
    }

    /// The smallest order that keeps the share, the mean over the channels; never above what there
    /// is. Of 2r real states r are stored.
    fn order(&self, layer: &LayerSpectrum) -> usize {
        let kept = |order: usize| {
            let shares = layer.channels.iter().map(|channel| {
                let values = &channel.hankel_singular_values;
                let whole: f64 = values.iter().sum();
                match whole > 0.0 {
                    true => values.iter().take(2 * order).sum::<f64>() / whole,
                    false => 1.0,
                }
            });
            shares.sum::<f64>() / layer.channels.len().max(1) as f64
        };
        let least = self.least.min(layer.order);
        let found = (least..layer.order).find(|&order| kept(order) >= self.energy);
        found.unwrap_or(layer.order)
    }

    /// The epoch behind which the next cut is due; none of those that were looked at.
    fn due(&self, progress: &Progress, total: u64, looked_at: u64) -> u64 {
        if progress.step as f64 > self.until * total as f64 {
            return u64::MAX;
        }
        let tried = progress.cuts.last().map_or(0, |cut| cut.epoch);
        let first = progress.epoch.max(1).max(looked_at.max(tried) + 1);
        first.div_ceil(self.every) * self.every
    }
}

/// What a [`Reducing`] training starts with, beside its network.
pub struct ReducingTraining<'a> {
    /// How it is cut.
    pub settings: Reducing,
    /// What it is trained on.
    pub data: &'a Dataset,
    /// What decides whether a cut stays, and the best epoch since the last one.
    pub validation: &'a Dataset,
    /// The settings of the training. Averaged weights start again at a cut.
    pub recipe: &'a Recipe,
    /// Makes a network of a smaller model, as the first one was made.
    pub network: &'a dyn Fn(&Model) -> Result<TrainableNetwork, NetworkError>,
}

impl ReducingTraining<'_> {
    /// Whether this can run at all, as [`Training::check`]; nothing is trained.
    ///
    /// # Errors
    /// [`RecipeError::Growing`], and as [`Training::check`].
    pub fn check(
        &self,
        network: &TrainableNetwork,
        objective: &mut dyn Objective,
    ) -> Result<(), TrainError> {
        self.settings.check()?;
        // Channels × modes: layers whose channels share modes have one row of them.
        let decays =
            |parameter: &Parameter| parameter.name.ends_with(DECAY) && parameter.var.rank() == 2;
        if !network.parameters().iter().any(decays) {
            return Err(RecipeError::Growing.into());
        }
        self.training(network).check(objective)
    }

    /// Trains to the end, or until requested to stop; gives the network that is left, which holds
    /// the weights of the best epoch since the last cut. With a folder that has a snapshot, goes on
    /// from there, to the same bytes. Each cut leaves `reduced-STEP.safetensors` in the folder.
    ///
    /// The first and second moments of the optimiser go on: those of a mode are those of the mode
    /// with the nearest pole before the cut.
    ///
    /// # Errors
    /// As [`Training::run`]; [`TrainError::Compress`] where a layer cannot be balanced, so that
    /// modes that do not decay are refused.
    pub fn run(
        &self,
        start: TrainableNetwork,
        objective: &mut dyn Objective,
        folder: Option<&Folder>,
        (observer, stop): (&mut dyn Observer, &Stop),
    ) -> Result<(TrainableNetwork, Outcome), TrainError> {
        let mut network = match folder {
            Some(folder) => self.last_cut(folder)?.unwrap_or(start),
            None => start,
        };
        self.check(&network, objective)?;
        let (mut carried, mut looked_at) = (None, 0);
        loop {
            let mut run = Run::new(self.training(&network), folder, carried.take())?;
            run.weigh_start(objective)?;
            observer.start(run.progress.step, run.schedule.total);
            let due = self
                .settings
                .due(&run.progress, run.schedule.total, looked_at);
            if !run.until(due, objective, observer, stop)? {
                let outcome = run.outcome();
                return Ok((network, outcome));
            }
            if run.progress.end.is_some() {
                run.restore_best()?;
                let outcome = run.outcome();
                return Ok((network, outcome));
            }
            looked_at = due;
            let is_early =
                run.progress.step as f64 <= self.settings.until * run.schedule.total as f64;
            let smaller = match is_early {
                true => self.cut(&network, objective, &mut run.progress, folder)?,
                false => None,
            };
            if let Some(cut) = run.progress.cuts.last().filter(|cut| cut.epoch == due) {
                observer.cut(cut);
            }
            carried = Some(match &smaller {
                None => run.carried(),
                Some(smaller) => {
                    let moments = moments(network.parameters(), smaller.parameters(), &run)?;
                    run.carried_over(moments)
                }
            });
            if let Some(smaller) = smaller {
                network = smaller;
            }
        }
    }

    fn training<'b>(&'b self, network: &'b TrainableNetwork) -> Training<'b> {
        Training {
            network,
            data: self.data,
            validation: Some(self.validation),
            recipe: self.recipe,
        }
    }

    /// The network that the last snapshot belongs to, where it has been cut.
    fn last_cut(&self, folder: &Folder) -> Result<Option<TrainableNetwork>, TrainError> {
        if !folder.last().exists() {
            return Ok(None);
        }
        let progress = snapshot::progress(&folder.last())?;
        let kept = progress.cuts.iter().rev().find(|cut| cut.kept);
        let network = |cut: &Cut| {
            let checkpoint = read(place(folder, cut.step), &Declared::default())?;
            Ok((self.network)(&checkpoint.model)?)
        };
        kept.map(network).transpose()
    }

    /// The network with smaller layers, where any can be made smaller and the held-out loss does not
    /// rise too much.
    fn cut(
        &self,
        network: &TrainableNetwork,
        objective: &mut dyn Objective,
        progress: &mut Progress,
        folder: Option<&Folder>,
    ) -> Result<Option<TrainableNetwork>, TrainError> {
        let model = network.to_model()?;
        let spectra = inspect(&model, TimeBase::Discrete, Realisation::Real, &())?;
        let orders: Vec<usize> = spectra.iter().map(|l| self.settings.order(l)).collect();
        let before: Vec<usize> = spectra.iter().map(|layer| layer.order).collect();
        if orders == before {
            return Ok(None);
        }
        let mut blocks = model.blocks().to_vec();
        for (block, &order) in blocks.iter_mut().zip(&orders) {
            let plan =
                Plan::new(Rule::Order(order)).map_err(hankelite::compress::CompressError::from)?;
            reduce_layer(block, &plan)?;
        }
        let model = model.with_blocks(blocks)?;
        // As it will be read, if the run is interrupted.
        let model = match folder {
            None => model,
            Some(folder) => {
                let place = place(folder, progress.step);
                write(&Checkpoint::new_s4d(&model)?, &place)?;
                read(&place, &Declared::default())?.model
            }
        };
        let smaller = (self.network)(&model)?;
        let mut loss = |network: &TrainableNetwork| {
            let found = evaluate_by(objective, network, self.validation, self.recipe.batch)?;
            Ok::<_, TrainError>(found.tally().loss())
        };
        let (loss_before, loss_behind) = (loss(network)?, loss(&smaller)?);
        let kept = loss_behind <= loss_before * (1.0 + self.settings.tolerance);
        progress.cuts.push(Cut {
            epoch: progress.epoch,
            step: progress.step,
            orders_before: before,
            orders,
            loss_before,
            loss_behind,
            kept,
        });
        Ok(kept.then_some(smaller))
    }
}

/// How the names of the decays of poles end, where all modes decay.
const DECAY: &str = "log_decay";

/// Where the network behind a cut lies.
fn place(folder: &Folder, step: u64) -> PathBuf {
    folder.path().join(format!("reduced-{step}.safetensors"))
}

/// First and second moments for the parameters of a smaller network.
fn moments(
    before: &[Parameter],
    behind: &[Parameter],
    run: &Run<'_>,
) -> Result<Vec<(Tensor, Tensor)>, TrainError> {
    let old = |name: &str| run.optimiser.moments().find(|(found, ..)| *found == name);
    let mut all = Vec::with_capacity(behind.len());
    for (index, parameter) in behind.iter().enumerate() {
        let Some((_, first, second)) = old(&parameter.name) else {
            let zeros = parameter.var.zeros_like()?;
            all.push((zeros.clone(), zeros));
            continue;
        };
        if first.shape() == parameter.var.shape() {
            all.push((first.clone(), second.clone()));
            continue;
        }
        let nearest = nearest(before, behind, index)?;
        let nearest = match first.dims() {
            [_, _, parts] => nearest.unsqueeze(2)?.repeat((1, 1, *parts))?,
            _ => nearest,
        };
        let taken = |moment: &Tensor| moment.contiguous()?.gather(&nearest, 1);
        all.push((taken(first)?, taken(second)?));
    }
    Ok(all)
}

/// For each mode that the parameter `index` belongs to the one with the nearest pole before, channels
/// × modes. The poles of a layer are listed before its weights, and once where both directions share
/// them.
fn nearest(before: &[Parameter], behind: &[Parameter], index: usize) -> Result<Tensor, TrainError> {
    let is_decay = |parameter: &&Parameter| parameter.name.ends_with(DECAY);
    let decay = behind[..=index].iter().rev().find(is_decay);
    let decay = decay.ok_or(RecipeError::Growing)?.name.as_str();
    let frequency = format!("{}frequency", decay.trim_end_matches(DECAY));
    let numbers = |all: &[Parameter], name: &str| -> Result<Vec<Vec<f64>>, TrainError> {
        let found = all.iter().find(|parameter| parameter.name == name);
        let found = found.ok_or(RecipeError::Growing)?;
        Ok(found.var.to_dtype(DType::F64)?.to_vec2()?)
    };
    let (old_decay, old_frequency) = (numbers(before, decay)?, numbers(before, &frequency)?);
    let (decay, frequency) = (numbers(behind, decay)?, numbers(behind, &frequency)?);
    let (channels, modes) = (decay.len(), decay.first().map_or(0, Vec::len));
    let mut indices = Vec::with_capacity(channels * modes);
    for h in 0..channels {
        for n in 0..modes {
            let apart = |m: usize| {
                let real = old_decay[h][m].exp() - decay[h][n].exp();
                real.hypot(old_frequency[h][m] - frequency[h][n])
            };
            let each = 0..old_decay[h].len();
            let found = each.min_by(|&a, &b| apart(a).total_cmp(&apart(b)));
            indices.push(found.unwrap_or(0) as u32);
        }
    }
    let device = behind[0].var.device();
    Ok(Tensor::from_vec(indices, (channels, modes), device)?)
}

impl Run<'_> {
    /// What another run of the same network goes on with.
    fn carried(mut self) -> Carried {
        Carried {
            moments: self
                .optimiser
                .moments()
                .map(|(_, a, b)| (a.clone(), b.clone()))
                .collect(),
            average: self.average.take(),
            best: self.best.take(),
            seconds: self.clock.seconds(),
            progress: self.progress,
            history: self.history,
            is_cut: false,
        }
    }

    /// What the run of a smaller network goes on with: no epoch of it has been seen yet, and its
    /// weights have no average.
    fn carried_over(self, moments: Vec<(Tensor, Tensor)>) -> Carried {
        let mut carried = Carried {
            moments,
            average: None,
            best: None,
            is_cut: true,
            ..self.carried()
        };
        let progress = &mut carried.progress;
        (progress.best, progress.start) = (None, None);
        (progress.waiting, progress.stalled) = (0, 0);
        carried
    }
}
