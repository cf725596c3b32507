//! Reducing channels for their input.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};

use hankelite_control::{
    ClassInput, ControlError, DiagonalSystem, InputWeight, Realisation, Refined, Refinement,
    RefinementState, SlowParts, SystemClass, WeightedChannel, balance, balance_weighted,
    in_parallel, part_slow_modes, weighted_in_class,
};
use nalgebra::DMatrix;
use rayon::prelude::*;

use crate::compress::candidate::Candidate;
use crate::compress::class::{nearest, note_of_units, whole_units};
use crate::compress::cut::{Cutter, Form, balance_slow};
use crate::compress::record::WeightedRecord;
use crate::compress::store::{NumberStore, Target};
use crate::compress::{ChannelFault, ChannelRecord, CompressError, LayerRecord};
use crate::model::Block;
use crate::progress::in_order;

/// Orders at which the error of a channel is tabulated: all up to this one, then a quarter more
/// each time.
const DENSE_ORDERS: usize = 8;

/// The note of a channel whose input is zero.
const SILENT: &str = "its input is zero in the calibration data: balanced for white noise";

/// Gauss–Newton steps of a draft.
const DRAFT_STEPS: usize = 4;

/// One channel to be balanced for its input and cut at any order. Every cut is made once.
pub(crate) struct CalibratedChannel {
    system: DiagonalSystem,
    /// Where the file has a place for some systems only, that it is cut to.
    class: Option<SystemClass>,
    holds_feedthrough: bool,
    /// Its slow modes and the others, where there are any so slow that they must be taken apart
    /// ([`part_slow_modes`]): the others are then what is balanced and refined.
    parts: Option<SlowParts>,
    /// What is balanced, prepared for the weight of its input; absent where that is zero.
    target: Option<Target>,
    norm: f64,
    /// What truncation gave, by order. The balanced forms, N² numbers several times, are not kept.
    starts: Mutex<BTreeMap<usize, Arc<Start>>>,
    cuts: Mutex<BTreeMap<(usize, bool), Arc<Cut>>>,
    /// Cuts whose refinement was broken off, by order.
    drafts: Mutex<BTreeMap<usize, Arc<Draft>>>,
}

/// What is balanced of a channel, cut at one order and refined by a few steps.
struct Draft {
    system: DiagonalSystem,
    /// Where the steps stand; absent where nothing is refined.
    descent: Option<RefinementState>,
}

/// The balanced forms of a channel: for white noise, and for its input where that is not zero.
struct Balancings {
    white: Cutter,
    weighted: Option<Cutter>,
}

/// What is balanced of a channel, truncated at an order for its input or for white noise, whichever leaves less.
struct Start {
    candidate: Candidate,
    /// With the best residues; absent where the input is zero.
    refitted: Option<Refined>,
    /// √E of the truncation for white noise.
    unweighted: f64,
    white_noise: bool,
}

/// A channel cut at one order.
struct Cut {
    candidate: Candidate,
    record: WeightedRecord,
}

/// Squared weighted errors of systems in the place of a layer's channels.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerErrors {
    /// Σ E_h(error).
    pub error: f64,
    /// Σ E_h(output).
    pub output: f64,
}

/// The squared weighted error of a channel at some orders, never rising with the order.
#[derive(Debug, Clone, PartialEq)]
pub struct ErrorCurve {
    /// Orders, rising, from 1 to the full one.
    pub orders: Vec<usize>,
    /// E at each order; 0 at the full one. Fewer than orders where those of the last are not known.
    pub errors: Vec<f64>,
}

impl ErrorCurve {
    /// The error at an order; between the orders that the curve lists it stays. 0 where it is not known.
    pub(crate) fn at(&self, order: usize) -> f64 {
        let place = self.orders.partition_point(|&known| known <= order);
        let error = self.errors.get(place.saturating_sub(1));
        error.copied().unwrap_or(0.0)
    }

    /// Whether the error at an order is known; that of the highest, the channel itself, is 0.
    pub(crate) fn knows(&self, order: usize) -> bool {
        let known = self.unknown().is_none_or(|unknown| order < unknown);
        known || self.orders.last() == Some(&order)
    }

    /// The first order whose error is not known.
    pub(crate) fn unknown(&self) -> Option<usize> {
        self.orders.get(self.errors.len()).copied()
    }
}

impl CalibratedChannel {
    /// The channel itself.
    pub(crate) fn system(&self) -> &DiagonalSystem {
        &self.system
    }

    /// √E of the channel's own kernel: the root mean square of its output; 0 where its input is
    /// zero.
    pub(crate) fn norm(&self) -> f64 {
        self.norm
    }

    /// Whether its input is not zero.
    pub(crate) fn has_input(&self) -> bool {
        self.target.is_some()
    }

    /// What is balanced of the channel under the weight of its input; `None` where that is zero.
    pub(crate) fn target(&self) -> Result<Option<Cow<'_, WeightedChannel>>, ChannelFault> {
        self.target.as_ref().map(Target::channel).transpose()
    }

    /// Prepares a channel, which is balanced twice when it is cut: for its input and for white noise.
    /// `weight`, of which what the channel sees is kept ([`InputWeight::seen_by`]), is `None` for a
    /// channel whose input is zero; it is balanced for white noise only.
    fn new(
        system: &DiagonalSystem,
        weight: Option<InputWeight>,
        block: &Block,
        store: Option<&Arc<NumberStore>>,
    ) -> Result<Self, ChannelFault> {
        let (class, holds_feedthrough) = (block.class(), block.holds_feedthrough());
        let stable = system.stable().map_err(ControlError::from)?;
        let parts = part_slow_modes(stable).filter(|_| class.is_none());
        let rest = parts.as_ref().map_or(system, |parts| &parts.rest);
        let prepared = |weight: InputWeight| {
            let target = WeightedChannel::new(rest, &weight.seen_by(system))?;
            Ok::<_, ControlError>(match holds_feedthrough {
                true => target,
                false => target.with_feedthrough_held(),
            })
        };
        let target = weight.map(prepared).transpose()?;
        let norm = match (&target, &parts) {
            (None, _) => 0.0,
            (Some(target), None) => target.norm(),
            // The error of nothing but the slow modes turned round is the channel itself.
            (Some(target), Some(parts)) => target.error(&turned(&parts.slow)?)?,
        };
        Ok(Self {
            norm,
            parts,
            target: target
                .map(|target| Target::new(target, store))
                .transpose()?,
            system: system.clone(),
            class,
            holds_feedthrough,
            starts: Mutex::default(),
            cuts: Mutex::default(),
            drafts: Mutex::default(),
        })
    }

    /// What is balanced: the channel without its slow modes.
    fn rest(&self) -> &DiagonalSystem {
        self.parts
            .as_ref()
            .map_or(&self.system, |parts| &parts.rest)
    }

    /// The order that is left beside the slow modes; `None` where these are more.
    fn order_beside(&self, order: usize) -> Option<usize> {
        order.checked_sub(self.parts.as_ref().map_or(0, |parts| parts.slow.order()))
    }

    /// A system in the place of what is balanced, with the slow modes.
    fn whole(&self, reduced: &DiagonalSystem) -> Result<DiagonalSystem, ControlError> {
        match &self.parts {
            Some(parts) => parts.with(reduced),
            None => Ok(reduced.clone()),
        }
    }

    /// A channel of fewer states than it has slow modes: these alone, truncated.
    fn truncated_slow(&self, parts: &SlowParts, order: usize) -> Result<Candidate, ControlError> {
        let slow = balance_slow(&parts.slow, Realisation::Real)?;
        let mut candidate = truncated(&Form::Truncate(slow).into(), order)?;
        let none = truncated(&self.balanced(None)?.white, 0)?;
        candidate.system = in_parallel(&none.system, &candidate.system)?;
        candidate
            .notes
            .push("its slow modes need more states".into());
        Ok(candidate)
    }

    fn balanced(&self, target: Option<&WeightedChannel>) -> Result<Balancings, ControlError> {
        let stable = self.rest().stable()?;
        let weighted = target.map(|target| balance_weighted(stable, target.weight()));
        Ok(Balancings {
            white: Form::Truncate(balance(stable, Realisation::Real)?).into(),
            weighted: weighted
                .transpose()?
                .map(|made| Form::Weighted(made).into()),
        })
    }

    /// The squared weighted error of any system in the place of this channel; 0 where its input is
    /// zero.
    fn error_of(&self, reduced: &DiagonalSystem) -> Result<f64, ChannelFault> {
        let Some(target) = self.target()? else {
            return Ok(0.0);
        };
        let error = match &self.parts {
            None => target.error(reduced)?,
            Some(parts) => match parts.split(reduced) {
                // What both have drops out to the last digit.
                Some((rest, slow)) if slow == parts.slow => target.error(&rest)?,
                _ => target.error(&in_parallel(reduced, &turned(&parts.slow)?)?)?,
            },
        };
        Ok(error.powi(2))
    }

    /// Squared weighted errors after truncation and refitting of the residues, or after truncation
    /// alone where nothing is to be refined. Errors up to an order alone: high orders take most of the
    /// time.
    fn curve_to(&self, refinement: Refinement, most: usize) -> Result<ErrorCurve, ChannelFault> {
        let full = self.system.order().max(1);
        let mut orders = Vec::new();
        let mut order = 1;
        while order < full {
            orders.push(order);
            order += (order / 4)
                .max(1)
                .min(if order < DENSE_ORDERS { 1 } else { full });
        }
        let mut least = f64::INFINITY;
        let mut errors = Vec::with_capacity(orders.len() + 1);
        let known = orders.partition_point(|&order| order <= most);
        // Of slow modes alone, or within a class of systems.
        let cut = |order: &usize| self.class.is_some() || self.order_beside(*order).is_none();
        let few = orders[..known].partition_point(cut);
        for &order in &orders[..few] {
            let cut = self.make_cut(order, Refinement::None)?;
            least = least.min(cut.record.error.powi(2));
            errors.push(least);
        }
        let beside: Vec<usize> = orders[few..known]
            .iter()
            .filter_map(|&order| self.order_beside(order))
            .collect();
        for start in self.starts(&beside, self.target()?.as_deref())? {
            let error = match (&start.refitted, refinement) {
                (None, _) => 0.0,
                (Some(made), Refinement::None) => made.truncated,
                (Some(made), _) => made.error,
            };
            least = least.min(error.powi(2));
            errors.push(least);
        }
        orders.push(full);
        if full <= most {
            errors.push(0.0);
        }
        Ok(ErrorCurve { orders, errors })
    }

    /// The cut at an order: a known one, or made now. Cuts without refinement are not kept.
    fn cut(&self, order: usize, refinement: Refinement) -> Result<Arc<Cut>, ChannelFault> {
        if refinement == Refinement::None {
            return Ok(Arc::new(self.make_cut(order, refinement)?));
        }
        let key = (order, refinement == Refinement::Full);
        if let Some(cut) = locked(&self.cuts).get(&key) {
            return Ok(Arc::clone(cut));
        }
        let cut = Arc::new(self.make_cut(order, refinement)?);
        locked(&self.cuts).insert(key, Arc::clone(&cut));
        Ok(cut)
    }

    /// The full refinement at an order where it is known; else a few of its steps, which the refinement
    /// goes on from.
    fn draft(&self, order: usize) -> Result<DiagonalSystem, ChannelFault> {
        if let Some(cut) = locked(&self.cuts).get(&(order, true)) {
            return Ok(cut.candidate.system.clone());
        }
        if let Some(whole) = Candidate::within(&self.system, order) {
            return Ok(whole.system);
        }
        let beside = self.order_beside(order).filter(|_| self.class.is_none());
        let Some(beside) = beside else {
            return Ok(self.cut(order, Refinement::Full)?.candidate.system.clone());
        };
        if let Some(draft) = locked(&self.drafts).get(&beside) {
            return Ok(self.whole(&draft.system)?);
        }
        let draft = Arc::new(self.make_draft(beside)?);
        locked(&self.drafts).insert(beside, Arc::clone(&draft));
        Ok(self.whole(&draft.system)?)
    }

    fn make_draft(&self, order: usize) -> Result<Draft, ChannelFault> {
        let target = self.target()?;
        let start = self.start(order, target.as_deref())?;
        let system = &start.candidate.system;
        let Some((target, refitted)) = target.zip(start.refitted.clone()) else {
            let (system, descent) = (system.clone(), None);
            return Ok(Draft { system, descent });
        };
        let (refined, descent) = target.draft(system, refitted, order, DRAFT_STEPS)?;
        Ok(Draft {
            system: refined.system,
            descent: Some(descent),
        })
    }

    /// What truncation gives at several orders: known ones, and the others from one balancing.
    fn starts(
        &self,
        orders: &[usize],
        target: Option<&WeightedChannel>,
    ) -> Result<Vec<Arc<Start>>, ChannelFault> {
        let missing = |order: &&usize| !locked(&self.starts).contains_key(*order);
        let missing: Vec<usize> = orders.iter().filter(missing).copied().collect();
        if !missing.is_empty() {
            let balanced = self.balanced(target)?;
            for order in missing {
                let start = Arc::new(truncated_best(&balanced, order, target)?);
                locked(&self.starts).insert(order, start);
            }
        }
        let starts = locked(&self.starts);
        Ok(orders
            .iter()
            .map(|order| Arc::clone(&starts[order]))
            .collect())
    }

    fn start(
        &self,
        order: usize,
        target: Option<&WeightedChannel>,
    ) -> Result<Arc<Start>, ChannelFault> {
        let starts = self.starts(&[order], target)?;
        Ok(Arc::clone(&starts[0]))
    }

    fn make_cut(&self, order: usize, refinement: Refinement) -> Result<Cut, ChannelFault> {
        if let Some(candidate) = Candidate::within(&self.system, order) {
            let record = WeightedRecord::identity(self.norm);
            return Ok(Cut { candidate, record });
        }
        if let Some(class) = self.class {
            return self.cut_in_class(class, order, refinement);
        }
        let Some(beside) = self.order_beside(order) else {
            return self.cut_slow(order);
        };
        let target = self.target()?;
        let start = self.start(beside, target.as_deref())?;
        let mut candidate = start.candidate.clone();
        let Some((target, refitted)) = target.zip(start.refitted.clone()) else {
            candidate.system = self.whole(&candidate.system)?;
            let record = WeightedRecord::identity(0.0);
            return Ok(Cut { candidate, record });
        };
        let refined = match refinement {
            Refinement::Full => self.descended(&target, &candidate.system, refitted, beside)?,
            Refinement::None => Refined::unrefined(&candidate.system, refitted.truncated),
            _ => refitted,
        };
        candidate.system = self.whole(&refined.system)?;
        Ok(Cut {
            candidate,
            record: WeightedRecord {
                norm: self.norm,
                unweighted: start.unweighted,
                truncated: refined.truncated,
                refitted: refined.refitted,
                error: refined.error,
                free: None,
                fitted: None,
                steps: refined.steps,
                white_noise: start.white_noise,
            },
        })
    }

    /// The cut at an order to a system of a class: that of the least H2 error, and from there that of the
    /// least weighted error.
    fn cut_in_class(
        &self,
        class: SystemClass,
        order: usize,
        refinement: Refinement,
    ) -> Result<Cut, ChannelFault> {
        let full = self.system.stable().map_err(ControlError::from)?;
        let (requested, order) = (order, whole_units(class, order));
        let mut candidate = nearest(full, class, order)?;
        candidate.notes.extend(note_of_units(requested, order));
        let Some(target) = self.target()? else {
            candidate.notes.push(SILENT.into());
            let record = WeightedRecord::identity(0.0);
            return Ok(Cut { candidate, record });
        };
        let before = target.error(&candidate.system)?;
        let mut record = WeightedRecord::of_white_noise(self.norm, before);
        if refinement != Refinement::None {
            let input = ClassInput {
                weight: target.weight(),
                covariance: &DMatrix::identity(1, 1),
                feedthrough: self.holds_feedthrough,
            };
            let found = weighted_in_class(&self.system, &candidate.system, class, input)?;
            record.error = target.error(&found.system)?;
            (record.steps, record.white_noise) = (found.steps, false);
            (candidate.system, candidate.error_bound) = (found.system, f64::INFINITY);
            let start = self.start(order, Some(&target))?;
            record.free = start.refitted.as_ref().map(|free| free.error);
        }
        Ok(Cut { candidate, record })
    }

    /// The cut at an order below the number of slow modes, which is not refined.
    fn cut_slow(&self, order: usize) -> Result<Cut, ChannelFault> {
        let parts = self.parts.as_ref().expect("there are slow modes");
        let candidate = self.truncated_slow(parts, order)?;
        let error = self.error_of(&candidate.system)?.sqrt();
        let record = WeightedRecord::of_white_noise(self.norm, error);
        Ok(Cut { candidate, record })
    }

    /// The full refinement, which takes a draft's place.
    fn descended(
        &self,
        target: &WeightedChannel,
        start: &DiagonalSystem,
        refitted: Refined,
        order: usize,
    ) -> Result<Refined, ControlError> {
        let draft = locked(&self.drafts).remove(&order);
        match draft.and_then(|draft| draft.descent.clone()) {
            Some(descent) => target.resume(start, refitted, descent),
            None => target.descend(start, refitted, order),
        }
    }

    /// The best residues and feedthrough for the poles that a system has; that system where the input is
    /// zero, where it is no smaller than the channel, and within a class of systems.
    fn refitted(
        &self,
        system: &DiagonalSystem,
        ridge: f64,
    ) -> Result<DiagonalSystem, ChannelFault> {
        if system.order() >= self.system.order() || self.class.is_some() {
            return Ok(system.clone());
        }
        let Some(target) = self.target()? else {
            return Ok(system.clone());
        };
        let Some(parts) = &self.parts else {
            return Ok(target.residues(system, ridge)?);
        };
        match parts.split(system) {
            Some((rest, slow)) => Ok(in_parallel(&target.residues(&rest, ridge)?, &slow)?),
            None => Ok(system.clone()),
        }
    }

    /// The record of a system that was made from a cut.
    fn record_of(
        &self,
        cut: &Cut,
        system: &DiagonalSystem,
        index: usize,
        kernel_length: usize,
    ) -> Result<ChannelRecord, ChannelFault> {
        let mut candidate = cut.candidate.clone();
        let fitted = candidate.system != *system;
        candidate.system = system.clone();
        let (_, mut record) = candidate.measured(&self.system, index, kernel_length)?;
        let mut weighted = cut.record.clone();
        if fitted {
            weighted.fitted = Some(self.error_of(system)?.sqrt());
        }
        record.weighted = Some(weighted);
        Ok(record)
    }
}

/// The truncation for the input, or for white noise where that leaves less.
fn truncated_best(
    balanced: &Balancings,
    order: usize,
    target: Option<&WeightedChannel>,
) -> Result<Start, ControlError> {
    let mut white = truncated(&balanced.white, order)?;
    let Some((target, cutter)) = target.zip(balanced.weighted.as_ref()) else {
        white.notes.push(SILENT.into());
        return Ok(Start {
            candidate: white,
            refitted: None,
            unweighted: 0.0,
            white_noise: true,
        });
    };
    let refitted =
        |start: &Candidate| target.refine(start.system.stable()?, order, Refinement::Residues);
    let weighted = truncated(cutter, order)?;
    let of_weighted = refitted(&weighted)?;
    let unweighted = target.error(&white.system)?;
    if unweighted >= of_weighted.truncated {
        return Ok(Start {
            candidate: weighted,
            refitted: Some(of_weighted),
            unweighted,
            white_noise: false,
        });
    }
    let note = "balanced for white noise, which left the smaller weighted error";
    white.notes.push(note.into());
    Ok(Start {
        refitted: Some(refitted(&white)?),
        candidate: white,
        unweighted,
        white_noise: true,
    })
}

/// The system −G, without feedthrough: what takes modes off another.
fn turned(modes: &DiagonalSystem) -> Result<DiagonalSystem, ControlError> {
    Ok(DiagonalSystem::new(
        modes.time(),
        modes.exponents().to_vec(),
        modes.input().clone(),
        -modes.output(),
        modes.feedthrough() * 0.0,
    )?)
}

fn truncated(cutter: &Cutter, order: usize) -> Result<Candidate, ControlError> {
    let reduced = cutter.fit(2 * order, order)?;
    Ok(Candidate {
        states: Some(reduced.order),
        realisation: Some(Realisation::Real),
        rotations: Some(cutter.hankel().rotations()),
        error_bound: f64::INFINITY,
        condition: reduced.condition,
        ..Candidate::whole(&reduced.system, None)
    })
}

/// What a lock guards. A thread that panicked while holding it left the map whole.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// A layer with its channels balanced for their inputs.
pub struct CalibratedLayer {
    channels: Vec<CalibratedChannel>,
}

/// A system made from a cut, see [`CalibratedLayer::record_of`].
#[derive(Debug, Clone, Copy)]
pub(crate) struct CutSystem<'a> {
    /// The order of the cut.
    pub(crate) order: usize,
    /// The system that stands for the channel now.
    pub(crate) system: &'a DiagonalSystem,
}

impl CalibratedLayer {
    /// Prepares all channels of a layer, in parallel; `weight` gives the metric of each one's
    /// input, `None` where that is zero.
    ///
    /// # Errors
    /// [`CompressError::Channel`].
    pub fn new(
        block: &Block,
        weight: impl Fn(usize) -> Option<InputWeight> + Sync,
    ) -> Result<Self, CompressError> {
        let mut made = Self::empty();
        made.add(block, 0..block.systems().len(), weight, None)?;
        Ok(made)
    }

    /// Without channels so far.
    pub(crate) fn empty() -> Self {
        let channels = Vec::new();
        Self { channels }
    }

    /// Prepares further channels of the layer, whose long vectors go to the store, if there is one.
    ///
    /// # Errors
    /// [`CompressError::Channel`]; [`CompressError::Store`].
    pub(crate) fn add(
        &mut self,
        block: &Block,
        channels: Range<usize>,
        weight: impl Fn(usize) -> Option<InputWeight> + Sync,
        store: Option<&Arc<NumberStore>>,
    ) -> Result<(), CompressError> {
        let made = channels.into_par_iter().map(|index| {
            let (system, weight) = (&block.systems()[index], weight(index));
            CalibratedChannel::new(system, weight, block, store)
                .map_err(|e| CompressError::channel(block, index, e))
        });
        self.channels.extend(in_order(made)?);
        Ok(())
    }

    /// The channels, in order.
    pub(crate) fn channels(&self) -> &[CalibratedChannel] {
        &self.channels
    }

    /// Of any systems in the place of the channels.
    ///
    /// # Errors
    /// [`CompressError::Channel`].
    pub fn errors_of(&self, block: &Block) -> Result<LayerErrors, CompressError> {
        let channels = self.channels.par_iter().zip(block.systems()).enumerate();
        let errors = channels.map(|(index, (channel, system))| {
            let error = channel.error_of(system);
            error.map_err(|error| CompressError::channel(block, index, error))
        });
        let errors = in_order(errors)?;
        let norms = self.channels.iter().map(|channel| channel.norm.powi(2));
        Ok(LayerErrors {
            error: errors.iter().sum(),
            output: norms.sum(),
        })
    }

    /// The error curves of all channels, in parallel: squared weighted errors after truncation and
    /// refitting of the residues, or after truncation alone where nothing is to be refined.
    ///
    /// # Errors
    /// [`CompressError::Channel`].
    pub fn curves(
        &self,
        block: &Block,
        refinement: Refinement,
    ) -> Result<Vec<ErrorCurve>, CompressError> {
        let all: Vec<usize> = (0..self.channels.len()).collect();
        self.curves_to(block, &all, refinement, usize::MAX)
    }

    /// Those of some channels, with the errors up to an order alone.
    pub(crate) fn curves_to(
        &self,
        block: &Block,
        channels: &[usize],
        refinement: Refinement,
        most: usize,
    ) -> Result<Vec<ErrorCurve>, CompressError> {
        let curves = channels.par_iter().map(|&index| {
            let curve = self.channels[index].curve_to(refinement, most);
            curve.map_err(|e| CompressError::channel(block, index, e))
        });
        in_order(curves)
    }

    /// The channels cut to `orders[h]` stored states, without records.
    ///
    /// # Errors
    /// [`CompressError::Channel`].
    pub(crate) fn systems(
        &self,
        block: &Block,
        orders: &[usize],
        refinement: Refinement,
    ) -> Result<Vec<DiagonalSystem>, CompressError> {
        let channels = self.channels.par_iter().zip(orders).enumerate();
        let systems = channels.map(|(index, (channel, &order))| {
            let cut = channel.cut(order, refinement);
            let cut = cut.map_err(|error| CompressError::channel(block, index, error))?;
            Ok(cut.candidate.system.clone())
        });
        in_order(systems)
    }

    /// The channels cut to `orders[h]` stored states and refined by a few steps, for a first comparison;
    /// those whose full refinement is known by that.
    ///
    /// # Errors
    /// [`CompressError::Channel`].
    pub(crate) fn drafts(
        &self,
        block: &Block,
        orders: &[usize],
    ) -> Result<Vec<DiagonalSystem>, CompressError> {
        let channels = self.channels.par_iter().zip(orders).enumerate();
        let systems = channels.map(|(index, (channel, &order))| {
            let draft = channel.draft(order);
            draft.map_err(|error| CompressError::channel(block, index, error))
        });
        in_order(systems)
    }

    /// The best residues and feedthroughs for the poles that some systems have, each in the
    /// weighted error of its channel alone and with a ridge, see [`hankelite_control::weighted_residues`]. Channels whose input is zero, and systems that are no
    /// smaller than their channel, stay as they are.
    ///
    /// # Errors
    /// [`CompressError::Channel`].
    pub(crate) fn refitted(
        &self,
        block: &Block,
        systems: &[DiagonalSystem],
        ridge: f64,
    ) -> Result<Vec<DiagonalSystem>, CompressError> {
        let channels = self.channels.par_iter().zip(systems).enumerate();
        let refitted = channels.map(|(index, (channel, system))| {
            let refitted = channel.refitted(system, ridge);
            refitted.map_err(|e| CompressError::channel(block, index, e))
        });
        in_order(refitted)
    }

    /// The record of systems that were made from cuts, one for each channel. The block must be the
    /// one that the layer was made from.
    ///
    /// # Errors
    /// [`CompressError::Channel`].
    pub(crate) fn record_of(
        &self,
        block: &Block,
        made: &[CutSystem<'_>],
        refinement: Refinement,
        kernel_length: usize,
    ) -> Result<LayerRecord, CompressError> {
        let channels = self.channels.par_iter().zip(made).enumerate();
        let records = channels.map(|(index, (channel, made))| {
            let cut = channel.cut(made.order, refinement);
            let record =
                cut.and_then(|cut| channel.record_of(&cut, made.system, index, kernel_length));
            record.map_err(|error| CompressError::channel(block, index, error))
        });
        let records = in_order(records)?;
        Ok(LayerRecord::new(
            block.name().to_string(),
            block.order(),
            records,
        ))
    }

    /// Cuts channel h to `orders[h]` stored states. The block must be the one that the layer was
    /// made from.
    ///
    /// # Errors
    /// [`CompressError::Channel`]; the block is then unchanged.
    pub fn reduce(
        &self,
        block: &mut Block,
        orders: &[usize],
        refinement: Refinement,
        kernel_length: usize,
    ) -> Result<LayerRecord, CompressError> {
        let systems = self.systems(block, orders, refinement)?;
        let made = orders.iter().zip(&systems);
        let made = made.map(|(&order, system)| CutSystem { order, system });
        let made: Vec<_> = made.collect();
        let record = self.record_of(block, &made, refinement, kernel_length)?;
        *block = block.with_systems(systems, Vec::new())?;
        Ok(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::{BlockParts, Nonlinearity};
    use hankelite_control::Time;
    use hankelite_control::num_complex::Complex64;

    fn block() -> Block {
        let systems = (0..3).map(|h| {
            let pole = |n: usize| Complex64::new(-0.3 - 0.2 * n as f64, (n + h) as f64);
            let poles = (0..6).map(pole).collect();
            let residues: Vec<_> = (0..6)
                .map(|n| Complex64::new(0.3, 0.1 * n as f64))
                .collect();
            DiagonalSystem::siso(Time::Discrete { step: 0.2 }, poles, &residues, 0.4).unwrap()
        });
        Block::new(BlockParts {
            name: "layer".into(),
            systems: systems.collect(),
            backward: Vec::new(),
            backward_from: 1,
            holds_feedthrough: true,
            class: None,
            activation: Nonlinearity::Gelu,
            output: None,
            norm: None,
        })
        .unwrap()
    }

    /// By moments, by the spectrum, and not at all.
    fn weight(channel: usize) -> Option<InputWeight> {
        let inputs = DMatrix::from_fn(4, 60, |n, t| ((n + 2) as f64 * 0.31 * t as f64).sin() + 0.3);
        match channel {
            0 => InputWeight::moments(&inputs),
            1 => InputWeight::of_sequences(&inputs),
            _ => None,
        }
    }

    #[test]
    fn channels_whose_vectors_lie_in_a_file_are_cut_as_those_in_memory() {
        let block = block();
        let store = Arc::new(NumberStore::new().unwrap());
        let held = CalibratedLayer::new(&block, weight).unwrap();
        let mut stored = CalibratedLayer::empty();
        for channels in [0..2, 2..3] {
            stored.add(&block, channels, weight, Some(&store)).unwrap();
        }
        let in_file =
            |channel: &CalibratedChannel| matches!(channel.target, Some(Target::Stored { .. }));
        let in_file: Vec<bool> = stored.channels().iter().map(in_file).collect();
        assert_eq!(in_file, [true, true, false]);
        let made = |layer: &CalibratedLayer| {
            let curves = layer.curves(&block, Refinement::Full).unwrap();
            let drafts = layer.drafts(&block, &[2, 3, 2]).unwrap();
            let systems = layer.systems(&block, &[2, 3, 2], Refinement::Full).unwrap();
            let refitted = layer.refitted(&block, &drafts, 1e-3).unwrap();
            let moved: Vec<_> = systems.iter().zip(&refitted).collect();
            let cuts = moved.iter().zip([2, 3, 2]);
            let cuts = cuts.map(|((_, system), order)| CutSystem { order, system });
            let cuts: Vec<_> = cuts.collect();
            let record = layer
                .record_of(&block, &cuts, Refinement::Full, 60)
                .unwrap();
            let record = serde_json::to_string(&record).unwrap();
            (curves, drafts, systems.clone(), refitted.clone(), record)
        };
        assert!(made(&held) == made(&stored));
        assert!(held.errors_of(&block).unwrap() == stored.errors_of(&block).unwrap());
    }
}
