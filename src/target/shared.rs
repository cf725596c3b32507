//! Layers whose channels share modes (S5, LRU), to a target.
//!
//! Their matrices B and C hold most of the bytes, and all layers keep the same share of their modes.
//! So the choice is between fewer modes and fewer bits for B and C and for the maps: for every pair
//! of kinds the most modes that fit are found by packing, or the fewest that change the logits by no
//! more than is allowed; the models are made the short way, and the best one the long way.

use std::cell::RefCell;

use hankelite_control::Refinement;

use crate::calibrate::CalibratedReduction;
use crate::model::{Encoder, Model};
use crate::rounding::{Entries, GROUP, LayerChoice, MapChoice, MapStorage, Numbers, Storage};
use crate::target::planner::{Limits, Planner};
use crate::target::shared_maps::{self, SharedChoice};
use crate::target::{
    LogitChanges, Parts, Size, SizePlan, TargetError, Targeted, stand_in, step_microseconds,
};

/// Bits of the entries of a head that is not in single precision: it is small, and next to the
/// logits.
const HEAD: Entries = Entries::Int8;

/// Sequences on which it is looked for how few modes will do.
const MEASURED: usize = 24;

/// How the matrices of all layers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kinds {
    /// B and C.
    systems: Entries,
    /// The maps between channels.
    maps: Entries,
}

impl Kinds {
    /// Everything in single precision.
    const EXACT: Self = Self {
        systems: Entries::Full,
        maps: Entries::Full,
    };

    /// Every pair, most bits first; without a map between channels, B and C alone.
    fn of(model: &Model, parts: Parts) -> Vec<Self> {
        let kinds = match parts {
            Parts::States => &Entries::ALL[..1],
            Parts::All | Parts::Maps => &Entries::ALL[..],
        };
        let mapped = model.blocks().iter().any(|block| block.output().is_some());
        let pairs = kinds
            .iter()
            .flat_map(|&systems| kinds.iter().map(move |&maps| Self { systems, maps }));
        pairs
            .filter(|pair| mapped || pair.systems == pair.maps)
            .collect()
    }

    /// The pair of a plan.
    fn planned(plan: &SizePlan) -> Self {
        let first = |choice: fn(&LayerChoice) -> Option<MapChoice>| {
            let entries = plan.layers.iter().find_map(choice);
            entries.map(|choice| choice.entries)
        };
        let systems = first(|layer| layer.systems).unwrap_or(Entries::Full);
        Self {
            systems,
            maps: first(|layer| layer.map).unwrap_or(systems),
        }
    }

    fn are_integers(self) -> bool {
        self.systems.bits().and(self.maps.bits()).is_some()
    }

    /// Whether there are no fewer bits anywhere.
    fn covers(self, other: Self) -> bool {
        self.systems <= other.systems && self.maps <= other.maps
    }

    /// A model rounded for what its maps take, and how it is stored.
    fn rounded(
        self,
        reduction: &CalibratedReduction<'_>,
        model: &Model,
        for_logits: bool,
    ) -> Result<(Model, Storage), TargetError> {
        let storage = self.storage(model)?;
        if self == Self::EXACT {
            return Ok((storage.applied(model)?, storage));
        }
        let choice = SharedChoice {
            systems: MapChoice::of(self.systems),
            maps: MapChoice::of(self.maps),
            for_logits,
        };
        shared_maps::rounded(reduction, model, choice, storage)
    }

    fn storage(self, model: &Model) -> Result<Storage, TargetError> {
        let mut storage = Storage::nearest(model, self.systems, GROUP)?;
        for (layer, block) in storage.layers.iter_mut().zip(model.blocks()) {
            if let Some(output) = block.output() {
                layer.map = MapStorage::nearest(&output.linear, self.maps, GROUP)?;
            }
        }
        if !self.are_integers() {
            return Ok(storage);
        }
        if let Some(head) = model.head() {
            storage.head = MapStorage::nearest(&head.linear, HEAD, GROUP)?;
        }
        Ok(storage.with_numbers(Numbers::F16))
    }
}

/// The modes of every layer, and how what they are is stored.
#[derive(Debug, Clone)]
struct Draft {
    kinds: Kinds,
    orders: Vec<usize>,
    size: Size,
}

/// Sizes of a causal model whose channels share modes. A plan takes as many modes as fit, B and C
/// with entries of one kind and the maps between channels of another; where both are integers the
/// head has 8 bits, and norms and biases half precision. Models that plans are compared by are made
/// without a fit to the logits, and kept for the next plan.
pub(crate) struct SharedTarget<'a> {
    reduction: &'a CalibratedReduction<'a>,
    /// By the modes of every layer.
    made: RefCell<Vec<(Vec<usize>, Model)>>,
    changes: RefCell<Vec<(Tried, f64)>>,
}

/// What was tried, and on how many sequences.
#[derive(Debug, Clone, PartialEq)]
struct Tried {
    kinds: Kinds,
    orders: Vec<usize>,
    sequences: usize,
}

impl<'a> SharedTarget<'a> {
    /// Nothing is computed yet.
    pub(crate) fn new(reduction: &'a CalibratedReduction<'a>) -> Self {
        Self {
            reduction,
            made: RefCell::default(),
            changes: RefCell::default(),
        }
    }

    fn model(&self) -> &'a Model {
        self.reduction.model()
    }

    /// The relative change of the logits of some sequences by fewer modes and fewer bits, before any
    /// fit to them.
    fn change(&self, tried: &Tried) -> Result<f64, TargetError> {
        let measured = |(known, change): &(Tried, f64)| (known == tried).then_some(*change);
        if let Some(change) = self.changes.borrow().iter().find_map(measured) {
            return Ok(change);
        }
        let model = self.made_with(&tried.orders)?;
        let (rounded, _) = tried.kinds.rounded(self.reduction, &model, false)?;
        let change = self.reduction.change_over(&rounded, tried.sequences)?;
        self.changes.borrow_mut().push((tried.clone(), change));
        Ok(change)
    }

    /// The model of so many modes in every layer, made the short way.
    fn made_with(&self, orders: &[usize]) -> Result<Model, TargetError> {
        let known = |(known, model): &(Vec<usize>, Model)| (known == orders).then(|| model.clone());
        if let Some(model) = self.made.borrow().iter().find_map(known) {
            return Ok(model);
        }
        let made = self.reduction.shared_at(orders, Refinement::Full, false)?;
        let model = made.model.clone();
        self.made.borrow_mut().push((orders.to_vec(), made.model));
        Ok(model)
    }

    /// For each pair of kinds the most modes within the limits; pairs of fewer bits than one with
    /// which as many modes fit are left out.
    fn drafts(&self, limits: &Limits, parts: Parts) -> Result<Vec<Draft>, TargetError> {
        let most = largest_order(self.model());
        let least = if parts == Parts::Maps { most } else { 1 };
        let mut drafts: Vec<(usize, Draft)> = Vec::new();
        for kinds in Kinds::of(self.model(), parts) {
            let small = |modes| Ok(size(self.model(), kinds, modes)?.total() <= limits.bytes);
            let Some(mut fits) = most_that(least, most, small)? else {
                continue;
            };
            if let Some(allowed) = limits.microseconds {
                let fast = |modes| Ok(microseconds(self.model(), kinds, modes)? <= allowed);
                let Some(fast) = most_that(least, fits, fast)? else {
                    continue;
                };
                fits = fast;
            }
            let known =
                |(modes, draft): &(usize, Draft)| *modes >= fits && draft.kinds.covers(kinds);
            if !drafts.iter().any(known) {
                drafts.push((fits, self.draft(kinds, fits)?));
            }
        }
        Ok(drafts.into_iter().map(|(_, draft)| draft).collect())
    }

    fn on_all(&self, draft: &Draft) -> Tried {
        Tried {
            kinds: draft.kinds,
            orders: draft.orders.clone(),
            sequences: self.reduction.sequences().len(),
        }
    }

    fn draft(&self, kinds: Kinds, largest: usize) -> Result<Draft, TargetError> {
        Ok(Draft {
            kinds,
            orders: orders(self.model(), largest),
            size: size(self.model(), kinds, largest)?,
        })
    }

    /// The limit that the fewest modes and bits do not keep.
    fn unmet(&self, limits: &Limits, parts: Parts) -> Result<TargetError, TargetError> {
        let model = self.model();
        let modes = match parts {
            Parts::Maps => largest_order(model),
            Parts::All | Parts::States => 1,
        };
        let (mut bytes, mut step) = (usize::MAX, f64::INFINITY);
        for kinds in Kinds::of(model, parts) {
            bytes = bytes.min(size(model, kinds, modes)?.total());
            step = step.min(microseconds(model, kinds, modes)?);
        }
        Ok(match limits.microseconds {
            Some(target) if bytes <= limits.bytes => TargetError::too_slow(target, step),
            _ => TargetError::too_small(limits.bytes, bytes),
        })
    }

    /// The fewest modes, not below `from`, that change the logits by at most so much; none where
    /// all of them change them by more.
    fn fewest(&self, kinds: Kinds, from: usize, change: f64) -> Result<Option<usize>, TargetError> {
        let most = largest_order(self.model());
        let meets = |modes| {
            let tried = Tried {
                kinds,
                orders: orders(self.model(), modes),
                sequences: MEASURED,
            };
            Ok::<_, TargetError>(self.change(&tried)? <= change)
        };
        if !meets(most)? {
            return Ok(None);
        }
        let (mut below, mut fits) = (from - 1, most);
        while fits - below > 1 {
            let middle = below.midpoint(fits);
            match meets(middle)? {
                true => fits = middle,
                false => below = middle,
            }
        }
        Ok(Some(fits))
    }
}

impl Planner for SharedTarget<'_> {
    fn reduction(&self) -> &CalibratedReduction<'_> {
        self.reduction
    }

    /// Cost a reduction without a fit to the logits for each number of modes that fits, about four.
    fn plan_within(&self, limits: &Limits, parts: Parts) -> Result<SizePlan, TargetError> {
        let mut best: Option<(f64, Draft)> = None;
        for draft in self.drafts(limits, parts)? {
            let change = self.change(&self.on_all(&draft))?;
            if best.as_ref().is_none_or(|(least, _)| change < *least) {
                best = Some((change, draft));
            }
        }
        match best {
            Some((predicted, draft)) => Ok(plan(self.model(), draft, predicted)),
            None => Err(self.unmet(limits, parts)?),
        }
    }

    /// Cost as above, for about eight numbers of modes. What keeps within the change with more bits
    /// needs no fewer modes with fewer bits, so that most pairs of kinds are left out unseen.
    fn plan_for_change(&self, change: f64, parts: Parts) -> Result<SizePlan, TargetError> {
        let model = self.model();
        let first = match parts {
            Parts::Maps => largest_order(model),
            Parts::All | Parts::States => 1,
        };
        // The full model changes nothing, and is at hand where nothing smaller will do.
        let exact = Kinds::EXACT;
        let mut best = self.draft(exact, largest_order(model))?;
        let mut needs: Vec<(Kinds, Option<usize>)> = Vec::new();
        for kinds in Kinds::of(model, parts) {
            let above = needs.iter().filter(|(known, _)| known.covers(kinds));
            // None, more than all modes, counts as the most.
            let from = above.map(|(_, modes)| modes.unwrap_or(usize::MAX)).max();
            let from = from.unwrap_or(first);
            if from == usize::MAX || size(model, kinds, from)?.total() >= best.size.total() {
                continue;
            }
            let modes = self.fewest(kinds, from, change)?;
            needs.push((kinds, modes));
            if let Some(modes) = modes {
                let draft = self.draft(kinds, modes)?;
                if draft.size.total() < best.size.total() {
                    best = draft;
                }
            }
        }
        let predicted = self.change(&self.on_all(&best))?;
        Ok(plan(model, best, predicted))
    }

    fn step_of(&self, plan: &SizePlan) -> Result<f64, TargetError> {
        let model = stand_in(self.model(), &plan.orders)?;
        step_microseconds(&model, &Kinds::planned(plan).storage(&model)?)
    }

    /// Cost a calibrated reduction.
    fn build(&self, plan: &SizePlan) -> Result<Targeted, TargetError> {
        let orders: Vec<usize> = plan.orders.iter().flatten().copied().collect();
        let made = self.reduction.shared_at(&orders, Refinement::Full, true)?;
        let (rounded, storage) = Kinds::planned(plan).rounded(self.reduction, &made.model, true)?;
        Ok(Targeted {
            plan: plan.clone(),
            size: Size::of(&rounded, &storage)?,
            records: made.records,
            changes: LogitChanges {
                before_fit: self.reduction.change(&made.model)?,
                after: self.reduction.change(&rounded)?,
            },
            held_out_change: None,
            fit: made.choice.fit,
            model: rounded,
            storage,
        })
    }
}

/// The largest number from `least` to `most` that does, where all below one that does do.
fn most_that(
    least: usize,
    most: usize,
    does: impl Fn(usize) -> Result<bool, TargetError>,
) -> Result<Option<usize>, TargetError> {
    if does(most)? {
        return Ok(Some(most));
    }
    let (mut fits, mut not) = (least - 1, most);
    while not - fits > 1 {
        let middle = fits.midpoint(not);
        match does(middle)? {
            true => fits = middle,
            false => not = middle,
        }
    }
    Ok((fits >= least).then_some(fits))
}

fn largest_order(model: &Model) -> usize {
    let orders = model.blocks().iter().map(|block| block.order());
    orders.max().unwrap_or(0)
}

/// The modes of every layer where the largest keeps so many.
fn orders(model: &Model, largest: usize) -> Vec<usize> {
    let most = largest_order(model).max(1);
    let blocks = model.blocks().iter();
    let kept = |order: usize| (order * largest).div_ceil(most).max(1);
    blocks.map(|block| kept(block.order())).collect()
}

/// Bytes of image and state, without a reduction.
fn size(model: &Model, kinds: Kinds, largest: usize) -> Result<Size, TargetError> {
    let stood = stand_in(model, &shared(&orders(model, largest)))?;
    Size::of(&stood, &kinds.storage(&stood)?)
}

/// Microseconds of a step, without a reduction.
fn microseconds(model: &Model, kinds: Kinds, largest: usize) -> Result<f64, TargetError> {
    let stood = stand_in(model, &shared(&orders(model, largest)))?;
    step_microseconds(&stood, &kinds.storage(&stood)?)
}

/// One system a layer.
fn shared(orders: &[usize]) -> Vec<Vec<usize>> {
    orders.iter().map(|&order| vec![order]).collect()
}

fn plan(model: &Model, draft: Draft, predicted: f64) -> SizePlan {
    let Kinds { systems, maps } = draft.kinds;
    let (numbers, head) = match draft.kinds.are_integers() {
        true => (Numbers::F16, HEAD),
        false => (Numbers::F32, Entries::Full),
    };
    let choice = MapChoice::of;
    let layers = model.blocks().iter().map(|block| LayerChoice {
        map: block.output().map(|_| choice(maps)),
        systems: Some(choice(systems)),
        numbers,
    });
    let linear = matches!(model.encoder(), Some(Encoder::Linear(_)));
    SizePlan {
        orders: shared(&draft.orders),
        layers: layers.collect(),
        encoder: linear.then(|| choice(Entries::Full)),
        head: model.head().map(|_| choice(head)),
        numbers,
        importance: "equal",
        predicted,
        size: draft.size,
    }
}
