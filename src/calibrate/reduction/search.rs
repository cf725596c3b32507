//! The search for orders of all channels.

use std::collections::BTreeSet;

use hankelite_control::Refinement;

use crate::calibrate::logits::relative_change;
use crate::calibrate::{CalibrateError, CalibratedReduction, Importance, Settings, TargetSize};
use crate::compress::{Allocation, ErrorCurve, share};
use crate::infer::{Network, Path as InferPath};
use crate::model::Model;
use crate::progress::{Within, stage};

/// A trial is run on one of so many sequences first.
const FEW_OF: usize = 4;

/// A trial that changes their logits by so much more than the best one is not run on the others.
const WORSE: f64 = 1.05;

/// As [`WORSE`], for channels that are refined by a few steps and compared with the best one's, refined to
/// the end.
const DRAFT_WORSE: f64 = 1.15;

/// Errors of channels are known up to this order at least, whatever is shared out.
const LIKELY_LEAST: usize = 8;

/// Rounds of trying factors on layers.
const ROUNDS: usize = 3;

/// The factors tried on the importance of one layer.
const FACTORS: [f64; 2] = [2.0, 0.5];

/// A model whose channels are cut as the settings have it.
pub(super) struct Trial {
    pub(super) model: Model,
    pub(super) allotted: Allotted,
    /// The relative change of the logits, where it is known.
    pub(super) change: Option<f64>,
}

/// States shared among the channels.
pub(super) struct Allotted {
    pub(super) orders: Vec<Vec<usize>>,
    pub(super) importance: &'static str,
    /// On the importance of each layer.
    pub(super) factors: Vec<f64>,
}

/// How far the channels of an allocation are refined.
#[derive(Clone, Copy)]
enum Depth {
    /// By a few steps.
    Draft,
    /// As the settings have it.
    Refined,
}

/// The best allocation that was tried.
struct Best {
    trial: Trial,
    kind: Importance,
    /// The relative change of the logits of the first sequences alone.
    change_of_few: f64,
}

/// A search for the allocation that changes the logits least, of those that the settings allow.
pub(super) struct Search<'s, 'a> {
    reduction: &'s CalibratedReduction<'a>,
    settings: &'s Settings,
    /// States in all.
    budget: usize,
    /// With the errors that were needed so far; none where one order is given for all channels.
    curves: Vec<Vec<ErrorCurve>>,
    /// Orders of the allocations that were run.
    tried: BTreeSet<Vec<Vec<usize>>>,
}

impl<'s, 'a> Search<'s, 'a> {
    pub(super) fn new(
        reduction: &'s CalibratedReduction<'a>,
        settings: &'s Settings,
        budget: usize,
    ) -> Result<Self, CalibrateError> {
        let channels = reduction.layers.iter().map(|layer| layer.channels().len());
        // Most channels get no more than twice the mean order.
        let likely = (2 * budget).div_ceil(channels.sum::<usize>().max(1));
        let curves = match (settings.allocation, settings.size) {
            (Allocation::Model, TargetSize::Order(_)) => Vec::new(),
            _ => reduction.curves(settings.refinement, likely.max(LIKELY_LEAST))?,
        };
        Ok(Self {
            reduction,
            settings,
            budget,
            curves,
            tried: BTreeSet::new(),
        })
    }

    pub(super) fn best(mut self) -> Result<Trial, CalibrateError> {
        let Self {
            reduction,
            settings,
            ..
        } = self;
        let compare = settings.allocation != Allocation::Model
            && settings.importance == Importance::Auto
            && !reduction.logits.is_empty()
            && !matches!(settings.size, TargetSize::Error(_));
        let kinds: &[Importance] = match settings.importance {
            Importance::Auto if compare => {
                &[Importance::Equal, Importance::Root, Importance::Gradient]
            }
            Importance::Auto | Importance::Equal => &[Importance::Equal],
            Importance::Root => &[Importance::Root],
            Importance::Gradient => &[Importance::Gradient],
        };
        let layers = reduction.layers.len();
        let rounds = if compare { ROUNDS } else { 0 };
        let trials = kinds.len() + rounds * layers * FACTORS.len();
        reduction.observer.begin(stage::ALLOCATION, trials);
        let ones = vec![1.0; layers];
        if !compare {
            reduction.observer.step()?;
            let mut allotted = self.allotted(kinds[0], &ones)?;
            allotted.factors.clear();
            let model = self.model(&allotted, Depth::Refined)?;
            return Ok(Trial {
                change: None,
                model,
                allotted,
            });
        }
        let mut best: Option<Best> = None;
        for (kind, allotted) in self.promising_first(kinds, &ones)? {
            let better = self.better(kind, allotted, best.as_ref())?;
            best = better.or(best);
        }
        let mut best = best.expect("one at least was compared with none");
        for _ in 0..rounds {
            if !self.try_factors(&mut best)? {
                break;
            }
        }
        Ok(best.trial)
    }

    /// The allocations of some kinds, where channels are refined to the end those first that change the
    /// logits least by drafts: the others may then be seen to be worse by their drafts.
    fn promising_first(
        &mut self,
        kinds: &[Importance],
        factors: &[f64],
    ) -> Result<Vec<(Importance, Allotted)>, CalibrateError> {
        let mut found = Vec::with_capacity(kinds.len());
        for &kind in kinds {
            let allotted = self.allotted(kind, factors)?;
            let change = match self.settings.refinement {
                Refinement::Full => self.change_of_draft(&allotted)?,
                _ => 0.0,
            };
            found.push((change, kind, allotted));
        }
        found.sort_by(|a, b| a.0.total_cmp(&b.0));
        let in_order = found.into_iter();
        Ok(in_order.map(|(_, kind, own)| (kind, own)).collect())
    }

    /// The relative change of the logits of the first sequences, by channels refined in a few steps.
    fn change_of_draft(&self, allotted: &Allotted) -> Result<f64, CalibrateError> {
        let model = self.model(allotted, Depth::Draft)?;
        self.reduction.change_over(&model, self.few())
    }

    /// How many sequences a trial is run on first.
    fn few(&self) -> usize {
        self.reduction.sequences.len().div_ceil(FEW_OF)
    }

    /// Tries factors on the importance of single layers; whether one was better.
    fn try_factors(&mut self, best: &mut Best) -> Result<bool, CalibrateError> {
        let mut found = false;
        for layer in 0..self.reduction.layers.len() {
            for factor in FACTORS {
                let mut factors = best.trial.allotted.factors.clone();
                factors[layer] *= factor;
                let allotted = self.allotted(best.kind, &factors)?;
                if let Some(better) = self.better(best.kind, allotted, Some(best))? {
                    *best = better;
                    found = true;
                    break;
                }
            }
        }
        Ok(found)
    }

    /// An allocation's model, if it is better than the best that is known. One that is clearly worse over a
    /// quarter of the sequences is not run on the others; one with orders that were run before is no better.
    fn better(
        &mut self,
        kind: Importance,
        allotted: Allotted,
        known: Option<&Best>,
    ) -> Result<Option<Best>, CalibrateError> {
        let reduction = self.reduction;
        reduction.observer.step()?;
        if !self.tried.insert(allotted.orders.clone()) {
            return Ok(None);
        }
        if let Some(known) = known
            && self.settings.refinement == Refinement::Full
            && self.change_of_draft(&allotted)? >= DRAFT_WORSE * known.change_of_few
        {
            return Ok(None);
        }
        let model = self.model(&allotted, Depth::Refined)?;
        let within = Within(reduction.observer);
        let network = Network::new(&model, reduction.length(), InferPath::Auto)?;
        let network = network.observed(&within);
        let (few, others) = reduction.sequences.split_at(self.few());
        let mut reduced = network.logits_of_all(few)?;
        let change_of_few = relative_change(&reduction.logits[..few.len()], &reduced);
        if known.is_some_and(|known| change_of_few >= WORSE * known.change_of_few) {
            return Ok(None);
        }
        reduced.extend(network.logits_of_all(others)?);
        let change = Some(relative_change(&reduction.logits, &reduced));
        if known.is_some_and(|known| change >= known.trial.change) {
            return Ok(None);
        }
        let trial = Trial {
            model,
            allotted,
            change,
        };
        Ok(Some(Best {
            trial,
            kind,
            change_of_few,
        }))
    }

    fn allotted(&mut self, kind: Importance, factors: &[f64]) -> Result<Allotted, CalibrateError> {
        let (importance, name) = self.reduction.importance(kind, factors);
        Ok(Allotted {
            orders: self.orders(&importance)?,
            importance: name,
            factors: factors.to_vec(),
        })
    }

    fn orders(&mut self, importance: &[Vec<f64>]) -> Result<Vec<Vec<usize>>, CalibrateError> {
        let Self {
            reduction,
            settings,
            budget,
            ..
        } = *self;
        if let (Allocation::Model, TargetSize::Order(order)) = (settings.allocation, settings.size)
        {
            return Ok(reduction.uniform(order));
        }
        let target = match settings.size {
            TargetSize::Error(error) => {
                let channels = reduction.layers.iter().flat_map(|layer| layer.channels());
                let norms = channels.zip(importance.iter().flatten());
                let whole: f64 = norms.map(|(channel, i)| i * channel.norm().powi(2)).sum();
                Some(error * error * whole)
            }
            _ => None,
        };
        loop {
            let shared = share(
                &self.curves,
                importance,
                settings.allocation,
                budget,
                target,
            );
            if shared.unknown.is_empty() {
                return Ok(shared.orders);
            }
            let refinement = self.settings.refinement;
            reduction.lengthen(&mut self.curves, &shared.unknown, refinement)?;
        }
    }

    /// The model of an allocation, cut and refined as the settings have it, or by a few steps.
    fn model(&self, allotted: &Allotted, depth: Depth) -> Result<Model, CalibrateError> {
        let reduction = self.reduction;
        let layers = reduction.model.blocks().iter().zip(&allotted.orders);
        let blocks = layers.enumerate().map(|(layer, (block, orders))| {
            let systems = match depth {
                Depth::Draft => reduction.layers[layer].drafts(block, orders)?,
                Depth::Refined => reduction.cut(layer, orders, self.settings.refinement)?,
            };
            Ok(block.with_systems(systems, Vec::new())?)
        });
        let blocks = blocks.collect::<Result<_, CalibrateError>>()?;
        Ok(reduction.model.with_blocks(blocks)?)
    }
}
