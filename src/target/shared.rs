//! Layers whose channels share modes (S5, LRU), to a target of bytes.
//!
//! Their matrices B and C hold most of the bytes, and all layers keep the same share of their modes.
//! So the choice is between fewer modes and fewer bits for B and C and for the maps: for every pair
//! of kinds the most modes that fit are found by packing, the models are made the short way, and the
//! one that changes the logits least is made the long way.

use hankelite_control::Refinement;

use crate::calibrate::CalibratedReduction;
use crate::model::{Encoder, Model};
use crate::rounding::{Entries, GROUP, MapStorage, Numbers, Storage};
use crate::target::{
    LayerChoice, LogitChanges, MapChoice, Parts, Size, SizePlan, TargetError, Targeted, stand_in,
};

/// Bits of the entries of a head that is not in single precision: it is small, and next to the
/// logits.
const HEAD: Entries = Entries::Int8;

/// How the matrices of all layers are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Kinds {
    /// B and C.
    systems: Entries,
    /// The maps between channels.
    maps: Entries,
}

impl Kinds {
    /// Every pair, most bits first.
    fn of(parts: Parts) -> Vec<Self> {
        let count = match parts {
            Parts::States => 1,
            Parts::All | Parts::Maps => Entries::ALL.len(),
        };
        let kinds = &Entries::ALL[..count];
        let with = |systems: &Entries| {
            let systems = *systems;
            kinds.iter().map(move |&maps| Self { systems, maps })
        };
        kinds.iter().flat_map(with).collect()
    }

    /// Whether there are no fewer bits anywhere.
    fn covers(self, other: Self) -> bool {
        self.systems <= other.systems && self.maps <= other.maps
    }

    fn storage(self, model: &Model) -> Result<Storage, TargetError> {
        let mut storage = Storage::nearest(model, self.systems, GROUP)?;
        for (layer, block) in storage.layers.iter_mut().zip(model.blocks()) {
            if let Some(output) = block.output() {
                layer.map = MapStorage::nearest(&output.linear, self.maps, GROUP)?;
            }
        }
        if self.systems.bits().is_none() || self.maps.bits().is_none() {
            return Ok(storage);
        }
        if let Some(head) = model.head() {
            storage.head = MapStorage::nearest(&head.linear, HEAD, GROUP)?;
        }
        Ok(storage.with_numbers(Numbers::F16))
    }
}

/// The most modes of every layer that fit.
struct Draft {
    kinds: Kinds,
    orders: Vec<usize>,
}

/// A causal model whose channels share modes in at most so many bytes, image and state together:
/// B and C with entries of one kind, the maps between channels of another, and as many modes as
/// fit. Where both are integers the head has 8 bits, and norms and biases half precision. Cost a
/// reduction without a fit to the logits for each number of modes that fits, about four, and one
/// with it.
///
/// # Errors
/// [`TargetError::TooSmall`]; [`TargetError::Calibrate`]; [`TargetError::Stream`].
pub fn shared_to_bytes(
    reduction: &CalibratedReduction<'_>,
    bytes: usize,
    parts: Parts,
) -> Result<Targeted, TargetError> {
    let model = reduction.model();
    let Some((predicted, draft)) = best(reduction, drafts(model, bytes, parts)?)? else {
        let least = least(model, parts)?;
        return Err(TargetError::TooSmall {
            target: bytes,
            least,
        });
    };
    let made = reduction.shared_at(&draft.orders, Refinement::Full, true)?;
    let storage = draft.kinds.storage(&made.model)?;
    let rounded = storage.applied(&made.model)?;
    let size = Size::of(&rounded, &storage)?;
    Ok(Targeted {
        plan: plan(model, &draft, predicted, size),
        size,
        records: made.records,
        changes: LogitChanges {
            before_fit: reduction.change(&made.model)?,
            after: reduction.change(&rounded)?,
        },
        fit: made.choice.fit,
        model: rounded,
        storage,
    })
}

/// The draft that changes the logits least, made the short way; models of equal orders are made
/// once.
fn best(
    reduction: &CalibratedReduction<'_>,
    drafts: Vec<Draft>,
) -> Result<Option<(f64, Draft)>, TargetError> {
    let mut known: Vec<(Vec<usize>, Model)> = Vec::new();
    let mut best: Option<(f64, Draft)> = None;
    for draft in drafts {
        let at = known.iter().position(|(orders, _)| *orders == draft.orders);
        let at = match at {
            Some(at) => at,
            None => {
                let made = reduction.shared_at(&draft.orders, Refinement::Full, false)?;
                known.push((draft.orders.clone(), made.model));
                known.len() - 1
            }
        };
        let model = &known[at].1;
        let change = reduction.change(&draft.kinds.storage(model)?.applied(model)?)?;
        if best.as_ref().is_none_or(|(least, _)| change < *least) {
            best = Some((change, draft));
        }
    }
    Ok(best)
}

/// For each pair of kinds the most modes that fit; pairs of fewer bits than one with which as many
/// modes fit are left out.
fn drafts(model: &Model, bytes: usize, parts: Parts) -> Result<Vec<Draft>, TargetError> {
    let most = largest_order(model);
    let mut drafts: Vec<(usize, Draft)> = Vec::new();
    for kinds in Kinds::of(parts) {
        let mut fits = 0;
        if size(model, kinds, most)? <= bytes {
            fits = most;
        } else if parts != Parts::Maps {
            let mut not = most;
            while not - fits > 1 {
                let middle = fits.midpoint(not);
                match size(model, kinds, middle)? <= bytes {
                    true => fits = middle,
                    false => not = middle,
                }
            }
        }
        let known = |(modes, draft): &(usize, Draft)| *modes >= fits && draft.kinds.covers(kinds);
        if fits > 0 && !drafts.iter().any(known) {
            let orders = orders(model, fits);
            drafts.push((fits, Draft { kinds, orders }));
        }
    }
    Ok(drafts.into_iter().map(|(_, draft)| draft).collect())
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
fn size(model: &Model, kinds: Kinds, largest: usize) -> Result<usize, TargetError> {
    let orders = orders(model, largest).into_iter();
    let stood = stand_in(model, &orders.map(|order| vec![order]).collect::<Vec<_>>())?;
    Ok(Size::of(&stood, &kinds.storage(&stood)?)?.total())
}

/// What is left of the fewest modes and bits.
fn least(model: &Model, parts: Parts) -> Result<usize, TargetError> {
    let order = match parts {
        Parts::Maps => largest_order(model),
        Parts::All | Parts::States => 1,
    };
    let kinds = Kinds::of(parts).into_iter();
    let sizes = kinds.map(|kinds| size(model, kinds, order));
    let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
    Ok(sizes.into_iter().min().unwrap_or(0))
}

fn plan(model: &Model, draft: &Draft, predicted: f64, size: Size) -> SizePlan {
    let Kinds { systems, maps } = draft.kinds;
    let (numbers, head) = match systems.bits().and(maps.bits()) {
        Some(_) => (Numbers::F16, HEAD),
        None => (Numbers::F32, Entries::Full),
    };
    let choice = |entries| MapChoice {
        entries,
        group: GROUP,
    };
    let layers = model.blocks().iter().map(|block| LayerChoice {
        map: block.output().map(|_| choice(maps)),
        systems: Some(choice(systems)),
        numbers,
    });
    let linear = matches!(model.encoder(), Some(Encoder::Linear(_)));
    SizePlan {
        orders: draft.orders.iter().map(|&order| vec![order]).collect(),
        layers: layers.collect(),
        encoder: linear.then(|| choice(Entries::Full)),
        head: model.head().map(|_| choice(head)),
        numbers,
        importance: "equal",
        predicted,
        size,
    }
}
