//! Layers whose channels share modes (S5, LRU), to a target of bytes.
//!
//! Their matrices B and C hold most of the bytes, and all layers keep the same share of their modes.
//! So the choice is between fewer modes and fewer bits for B, C and the maps: for every kind of
//! entries the most modes that fit are found by packing, the models are made by the short way,
//! and the one that changes the logits least is made by the long one.

use hankelite_control::Refinement;

use crate::calibrate::{Calibrated, CalibratedReduction};
use crate::model::{Encoder, Model};
use crate::rounding::{Entries, Numbers, Storage};
use crate::target::{
    LayerChoice, LogitChanges, MapChoice, Parts, Size, SizePlan, TargetError, Targeted, stand_in,
};

/// Inputs that share a scale.
const GROUP: usize = 32;

/// The kinds of entries that are tried for all matrices together, most bits first.
const ENTRIES: [Entries; 5] = [
    Entries::Full,
    Entries::Bf16,
    Entries::Int8,
    Entries::Int4,
    Entries::Int3,
];

/// The most modes of every layer that fit with one kind of entries.
struct Draft {
    entries: Entries,
    orders: Vec<usize>,
}

/// A causal model whose channels share modes in at most so many bytes, image and state together:
/// B, C and the maps between channels with entries of one kind, and as many modes as fit. Cost
/// up to four reductions without a fit to the logits, and one with it.
///
/// # Errors
/// [`TargetError::TooSmall`]; [`TargetError::Calibrate`]; [`TargetError::Stream`].
pub fn shared_to_bytes(
    reduction: &CalibratedReduction<'_>,
    bytes: usize,
    parts: Parts,
) -> Result<Targeted, TargetError> {
    let model = reduction.model();
    let mut best: Option<(f64, Draft)> = None;
    let drafts = drafts(model, bytes, parts)?;
    let alone = drafts.len() == 1;
    for draft in drafts {
        let change = match alone {
            true => 0.0,
            false => {
                let (made, storage) = made(reduction, &draft, false)?;
                reduction.change(&storage.applied(&made.model)?)?
            }
        };
        if best.as_ref().is_none_or(|(least, _)| change < *least) {
            best = Some((change, draft));
        }
    }
    let Some((predicted, draft)) = best else {
        let least = least(model, parts)?;
        return Err(TargetError::TooSmall {
            target: bytes,
            least,
        });
    };
    let (made, storage) = made(reduction, &draft, true)?;
    let rounded = storage.applied(&made.model)?;
    let after = reduction.change(&rounded)?;
    let size = Size::of(&rounded, &storage)?;
    Ok(Targeted {
        plan: plan(model, &draft, predicted, size),
        model: rounded,
        storage,
        size,
        records: made.records,
        changes: LogitChanges {
            before_fit: reduction.change(&made.model)?,
            after,
        },
        fit: made.choice.fit,
    })
}

/// The reduced model, and how it is stored.
fn made(
    reduction: &CalibratedReduction<'_>,
    draft: &Draft,
    fit: bool,
) -> Result<(Calibrated, Storage), TargetError> {
    let made = reduction.shared_at(&draft.orders, Refinement::Full, fit)?;
    let storage = Storage::nearest(&made.model, draft.entries, GROUP)?;
    Ok((made, storage))
}

/// For each kind of entries the most modes that fit; kinds of fewer bits than one with which
/// everything fits are left out.
fn drafts(model: &Model, bytes: usize, parts: Parts) -> Result<Vec<Draft>, TargetError> {
    let mut drafts = Vec::new();
    for entries in entries_of(parts) {
        let most = largest_order(model);
        let (mut fits, mut not) = (0, most + 1);
        if parts == Parts::Maps {
            fits = match size(model, entries, most)? <= bytes {
                true => most,
                false => 0,
            };
        } else {
            while not - fits > 1 {
                let middle = fits.midpoint(not);
                match size(model, entries, middle)? <= bytes {
                    true => fits = middle,
                    false => not = middle,
                }
            }
        }
        if fits > 0 {
            let orders = orders(model, fits);
            drafts.push(Draft { entries, orders });
        }
        if fits == most {
            break;
        }
    }
    Ok(drafts)
}

fn entries_of(parts: Parts) -> impl Iterator<Item = Entries> {
    let count = match parts {
        Parts::States => 1,
        Parts::All | Parts::Maps => ENTRIES.len(),
    };
    ENTRIES.into_iter().take(count)
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
fn size(model: &Model, entries: Entries, largest: usize) -> Result<usize, TargetError> {
    let orders = orders(model, largest).into_iter();
    let stood = stand_in(model, &orders.map(|order| vec![order]).collect::<Vec<_>>())?;
    let storage = Storage::nearest(&stood, entries, GROUP)?;
    Ok(Size::of(&stood, &storage)?.total())
}

/// What is left of the fewest modes and bits.
fn least(model: &Model, parts: Parts) -> Result<usize, TargetError> {
    let order = match parts {
        Parts::Maps => largest_order(model),
        Parts::All | Parts::States => 1,
    };
    let sizes = entries_of(parts).map(|entries| size(model, entries, order));
    let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
    Ok(sizes.into_iter().min().unwrap_or(0))
}

fn plan(model: &Model, draft: &Draft, predicted: f64, size: Size) -> SizePlan {
    let choice = |entries| MapChoice {
        entries,
        group: GROUP,
    };
    let layers = model.blocks().iter().map(|block| LayerChoice {
        map: block.output().map(|_| choice(draft.entries)),
        numbers: Numbers::F32,
    });
    let linear = matches!(model.encoder(), Some(Encoder::Linear(_)));
    SizePlan {
        orders: draft.orders.iter().map(|&order| vec![order]).collect(),
        layers: layers.collect(),
        encoder: linear.then(|| choice(Entries::Full)),
        head: model.head().map(|_| choice(Entries::Full)),
        numbers: Numbers::F32,
        importance: "equal",
        predicted,
        size,
    }
}
