//! Choosing the sizes of all tensors together.

use hankelite_control::Refinement;
use serde::Serialize;

use crate::compress::by_order;
use crate::model::Block;
use crate::progress::stage;
use crate::rounding::{
    LayerChoice, LayerStorage, MapChoice, MapStorage, Numbers, Storage, StorageChoice,
};
use crate::target::menu::{Priced, Weights};
use crate::target::price::stand_in;
use crate::target::{Size, TargetError, TargetReduction, step_microseconds};

/// Halvings of the range of the price of a byte.
const HALVINGS: usize = 26;

/// The same where every one is timed.
const HALVINGS_TIMED: usize = 14;

/// Rounds of trying factors on layers.
const ROUNDS: usize = 2;

/// The factors tried on the weight of one layer.
const FACTORS: [f64; 2] = [2.0, 0.5];

/// Logarithms of the lowest and the highest price of a byte.
const PRICES: (f64, f64) = (-40.0, 4.0);

/// What may be made smaller.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Parts {
    /// Everything.
    #[default]
    All,
    /// The states of the channels; all numbers stay in single precision.
    States,
    /// The maps and the precision of the other numbers.
    Maps,
}

/// Sizes of all tensors of a model.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SizePlan {
    /// Stored states of every channel of every layer.
    pub orders: Vec<Vec<usize>>,
    /// The layers, first to last.
    pub layers: Vec<LayerChoice>,
    /// The encoder; absent where it is no linear map.
    pub encoder: Option<MapChoice>,
    /// The head; absent where there is none.
    pub head: Option<MapChoice>,
    /// Biases of encoder and head.
    pub(crate) numbers: Numbers,
    /// What decided which channels keep more states: `equal`, `root` or `gradient`.
    pub(crate) importance: &'static str,
    /// Relative change of the logits, each choice having been measured alone.
    pub(crate) predicted: f64,
    /// Bytes of image and state.
    pub size: Size,
}

impl SizePlan {
    /// How every tensor is stored.
    pub fn storage(&self) -> StorageChoice {
        StorageChoice {
            layers: self.layers.clone(),
            encoder: self.encoder,
            head: self.head,
            numbers: self.numbers,
        }
    }
}

/// A plan, what it was made by, and the squared change of the logits by its cuts.
struct Attempt {
    weights: Weights,
    plan: SizePlan,
    change: f64,
}

/// A choice at one price of a byte.
struct Draft {
    orders: Vec<Vec<usize>>,
    numbers: Vec<Numbers>,
    /// Places in the menus.
    maps: Vec<Option<usize>>,
    encoder: Option<usize>,
    head: Option<usize>,
    ends: Numbers,
    change: f64,
    /// Channels, by layer and channel, that took an order whose error is not known: it counted as 0.
    unknown: Vec<(usize, usize)>,
}

/// What is made at one price of a byte.
struct Tried<T> {
    made: T,
    /// Whether it keeps within the limit.
    keeps: bool,
    unknown: Vec<(usize, usize)>,
}

/// The end of the range of prices at which limits are kept.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kept {
    Low,
    High,
}

/// Bytes of a number.
fn bytes_of(numbers: Numbers) -> f64 {
    match numbers {
        Numbers::F32 => 4.0,
        Numbers::F16 => 2.0,
    }
}

impl TargetReduction<'_> {
    /// The plan of least change that takes at most so many bytes, image and state together.
    ///
    /// At a price λ for a byte every choice is by itself the one of least change + λ · bytes; λ is
    /// then halved in until the whole fits. Of the three kinds of importance that take part in the
    /// sharing of states, the one is taken whose channels, cut so, change the logits least. Cost
    /// three forward passes over two dozen sequences.
    ///
    /// # Errors
    /// [`TargetError::TooSmall`].
    pub(crate) fn plan(&self, bytes: usize, parts: Parts) -> Result<SizePlan, TargetError> {
        self.best_plan(parts, |weights| self.plan_by(weights, bytes, parts))
    }

    /// The plan of fewest bytes whose choices, each by itself, change the logits by at most this
    /// share together. Cost as [`TargetReduction::plan`].
    ///
    /// # Errors
    /// [`TargetError::Stream`].
    pub(crate) fn plan_for_change(
        &self,
        change: f64,
        parts: Parts,
    ) -> Result<SizePlan, TargetError> {
        self.best_plan(parts, |weights| {
            let tried = self.best_price(Kept::Low, HALVINGS, |price| {
                let mut draft = self.draft(weights, price, parts);
                Ok(Tried {
                    keeps: draft.change.sqrt() <= change,
                    unknown: std::mem::take(&mut draft.unknown),
                    made: draft,
                })
            })?;
            let size = self.size(&tried.made)?;
            Ok(self.finished(tried.made, size, weights.kind))
        })
    }

    /// The most bytes, up to `bytes`, whose plan takes at most so many microseconds for a step on
    /// this machine. Cost a second.
    ///
    /// # Errors
    /// [`TargetError`] for a step that no choice makes so fast.
    pub(crate) fn bytes_for_step(
        &self,
        microseconds: f64,
        bytes: usize,
        parts: Parts,
    ) -> Result<usize, TargetError> {
        let weights = &self.weights[0];
        let tried = self.best_price(Kept::High, HALVINGS_TIMED, |price| {
            let draft = self.draft(weights, price, parts);
            let model = stand_in(self.model(), &draft.orders)?;
            let storage = self.storage(&draft);
            let taken = step_microseconds(&model, &storage)?;
            let size = Size::of(&model, &storage)?.total();
            Ok(Tried {
                made: (taken, size),
                keeps: taken <= microseconds,
                unknown: draft.unknown,
            })
        })?;
        let (least, size) = tried.made;
        match tried.keeps {
            true => Ok(size.min(bytes)),
            false => Err(TargetError::too_slow(microseconds, least)),
        }
    }

    /// Microseconds of a step of the model of a plan on this machine, without making it.
    ///
    /// # Errors
    /// [`TargetError::Stream`].
    pub(crate) fn step_of(&self, plan: &SizePlan) -> Result<f64, TargetError> {
        let model = stand_in(self.model(), &plan.orders)?;
        let place = |menu: &[Priced], choice: Option<MapChoice>| {
            menu.iter().position(|priced| Some(priced.choice) == choice)
        };
        let maps = self.maps.iter().zip(&plan.layers);
        let draft = Draft {
            orders: Vec::new(),
            numbers: plan.layers.iter().map(|layer| layer.numbers).collect(),
            maps: maps.map(|(menu, layer)| place(menu, layer.map)).collect(),
            encoder: place(&self.encoder, plan.encoder),
            head: place(&self.head, plan.head),
            ends: plan.numbers,
            change: 0.0,
            unknown: Vec::new(),
        };
        step_microseconds(&model, &self.storage(&draft))
    }

    /// Of one plan for each kind of importance the one whose channels, cut so, change the logits
    /// least; then factors on the weight of single layers are tried, and kept where they change the
    /// logits less.
    fn best_plan(
        &self,
        parts: Parts,
        plan: impl Fn(&Weights) -> Result<SizePlan, TargetError>,
    ) -> Result<SizePlan, TargetError> {
        if parts == Parts::Maps {
            return plan(&self.weights[0]);
        }
        let attempt = |weights: Weights| {
            let plan = plan(&weights)?;
            let change = self.change(&self.cut(&plan.orders, Refinement::Residues)?)?;
            self.reduction.observer().step()?;
            Ok::<_, TargetError>(Attempt {
                weights,
                plan,
                change,
            })
        };
        let layers = self.maps.len();
        let trials = self.weights.len() + ROUNDS * layers * FACTORS.len();
        self.reduction.observer().begin(stage::ALLOCATION, trials);
        let mut best = attempt(self.weights[0].clone())?;
        for weights in &self.weights[1..] {
            let other = attempt(weights.clone())?;
            if other.change < best.change {
                best = other;
            }
        }
        for _ in 0..ROUNDS {
            let before = best.change;
            for layer in 0..layers {
                for factor in FACTORS {
                    let other = attempt(best.weights.with_factor(layer, factor))?;
                    if other.change < best.change {
                        best = other;
                        break;
                    }
                }
            }
            if best.change == before {
                break;
            }
        }
        Ok(best.plan)
    }

    fn plan_by(
        &self,
        weights: &Weights,
        bytes: usize,
        parts: Parts,
    ) -> Result<SizePlan, TargetError> {
        let tried = self.best_price(Kept::High, HALVINGS, |price| {
            let mut draft = self.draft(weights, price, parts);
            let size = self.size(&draft)?;
            Ok(Tried {
                keeps: size.total() <= bytes,
                unknown: std::mem::take(&mut draft.unknown),
                made: (draft, size),
            })
        })?;
        let (draft, size) = tried.made;
        match tried.keeps {
            true => Ok(self.finished(draft, size, weights.kind)),
            false => Err(TargetError::too_small(bytes, size.total())),
        }
    }

    /// What is made at the last price that keeps within a limit, found by halving the range of prices
    /// from its end `kept`; what is made at that end where nothing keeps within it.
    ///
    /// Errors that are not known count as 0. Bytes fall and the change rises with the price, so that
    /// where both sides of the limit are drafted from what is known, nothing else in the range matters;
    /// else more is found out, and the range is halved again.
    fn best_price<T>(
        &self,
        kept: Kept,
        halvings: usize,
        at: impl Fn(f64) -> Result<Tried<T>, TargetError>,
    ) -> Result<Tried<T>, TargetError> {
        loop {
            let (mut low, mut high) = PRICES;
            let end = match kept {
                Kept::Low => low,
                Kept::High => high,
            };
            let (mut best, mut beyond) = (at(end.exp())?, Vec::new());
            let halvings = if best.keeps { halvings } else { 0 };
            for _ in 0..halvings {
                let middle = 0.5 * (low + high);
                let tried = at(middle.exp())?;
                match tried.keeps == (kept == Kept::Low) {
                    true => low = middle,
                    false => high = middle,
                }
                match tried.keeps {
                    true => best = tried,
                    false => beyond = tried.unknown,
                }
            }
            let mut unknown: Vec<_> = best.unknown.iter().copied().chain(beyond).collect();
            if unknown.is_empty() {
                return Ok(best);
            }
            unknown.sort_unstable();
            unknown.dedup();
            self.lengthen(&unknown)?;
        }
    }

    fn finished(&self, draft: Draft, size: Size, importance: &'static str) -> SizePlan {
        let choice = |menu: &[Priced], at: Option<usize>| at.map(|at| menu[at].choice);
        let layers = self.maps.iter().zip(&draft.maps).zip(&draft.numbers);
        let layers = layers.map(|((menu, at), numbers)| LayerChoice {
            map: choice(menu, *at),
            systems: None,
            numbers: *numbers,
        });
        SizePlan {
            layers: layers.collect(),
            encoder: choice(&self.encoder, draft.encoder),
            head: choice(&self.head, draft.head),
            numbers: draft.ends,
            importance,
            predicted: draft.change.sqrt(),
            size,
            orders: draft.orders,
        }
    }

    /// The best choice of everything at a price of a byte.
    fn draft(&self, weights: &Weights, price: f64, parts: Parts) -> Draft {
        let mut draft = Draft {
            orders: Vec::new(),
            numbers: Vec::new(),
            maps: Vec::new(),
            encoder: pick(&self.encoder, price, parts),
            head: pick(&self.head, price, parts),
            ends: Numbers::F32,
            change: 0.0,
            unknown: Vec::new(),
        };
        for (layer, block) in self.model().blocks().iter().enumerate() {
            let (orders, numbers, change) = self.layer(weights, layer, price, parts);
            draft.change += change;
            let curves = self.curves();
            let taken = curves[layer].iter().zip(&orders).enumerate();
            let unknown = taken.filter(|(_, (curve, order))| !curve.knows(**order));
            draft.unknown.extend(unknown.map(|(h, _)| (layer, h)));
            draft.orders.push(filled(block, &orders));
            draft.numbers.push(numbers);
            draft.maps.push(pick(&self.maps[layer], price, parts));
        }
        let menus = self.maps.iter().zip(&draft.maps);
        let ends = [(&self.encoder, &draft.encoder), (&self.head, &draft.head)];
        for (menu, at) in menus.chain(ends) {
            draft.change += at.map_or(0.0, |at| menu[at].change);
        }
        let ends = self.end_numbers() as f64;
        if parts != Parts::States && self.half_ends < price * 2.0 * ends {
            draft.ends = Numbers::F16;
            draft.change += self.half_ends;
        }
        draft
    }

    /// Orders of a layer's channels, the precision of its numbers, and what both change.
    fn layer(
        &self,
        weights: &Weights,
        layer: usize,
        price: f64,
        parts: Parts,
    ) -> (Vec<usize>, Numbers, f64) {
        let block = &self.model().blocks()[layer];
        let vectors = vector_numbers(block) as f64;
        let kinds: &[Numbers] = match parts {
            Parts::States => &[Numbers::F32],
            _ => &[Numbers::F32, Numbers::F16],
        };
        let curves = self.curves();
        let tried = kinds.iter().map(|&numbers| {
            let mode = 4.0 * bytes_of(numbers) + 8.0;
            let mut change = match numbers {
                Numbers::F32 => 0.0,
                Numbers::F16 => self.half[layer],
            };
            let mut cost = change + price * vectors * bytes_of(numbers);
            let channels = curves[layer].iter().zip(&weights.channels[layer]);
            let orders = channels.map(|(curve, weight)| {
                let value = |&order: &usize| weight * curve.at(order) + price * mode * order as f64;
                let least = match parts {
                    Parts::Maps => curve.orders.last(),
                    _ => curve
                        .orders
                        .iter()
                        .min_by(|a, b| value(a).total_cmp(&value(b))),
                };
                let order = least.copied().unwrap_or(1);
                change += weight * curve.at(order);
                cost += value(&order);
                order
            });
            let orders: Vec<usize> = orders.collect();
            (cost, (orders, numbers, change))
        });
        let best = tried.min_by(|(a, _), (b, _)| a.total_cmp(b));
        best.map_or_else(|| (Vec::new(), Numbers::F32, 0.0), |(_, best)| best)
    }

    /// Numbers of the biases of encoder and head.
    fn end_numbers(&self) -> usize {
        let encoder = match self.model().encoder() {
            Some(crate::model::Encoder::Linear(linear)) => linear.bias.as_ref(),
            _ => None,
        };
        let head = self
            .model()
            .head()
            .and_then(|head| head.linear.bias.as_ref());
        encoder.map_or(0, Vec::len) + head.map_or(0, Vec::len)
    }

    fn size(&self, draft: &Draft) -> Result<Size, TargetError> {
        let model = stand_in(self.model(), &draft.orders)?;
        Size::of(&model, &self.storage(draft))
    }

    /// The storage of a draft, with the entries that were measured.
    fn storage(&self, draft: &Draft) -> Storage {
        let stored = |menu: &[Priced], at: Option<usize>| match at {
            Some(at) => menu[at].storage.clone(),
            None => MapStorage::Full,
        };
        let layers = self.maps.iter().zip(&draft.maps).zip(&draft.numbers);
        let layers = layers.map(|((menu, at), numbers)| LayerStorage {
            map: stored(menu, *at),
            numbers: *numbers,
            ..LayerStorage::default()
        });
        Storage {
            encoder: stored(&self.encoder, draft.encoder),
            layers: layers.collect(),
            head: stored(&self.head, draft.head),
            numbers: draft.ends,
        }
    }
}

/// The best entry of a menu at a price of a byte.
fn pick(menu: &[Priced], price: f64, parts: Parts) -> Option<usize> {
    if parts == Parts::States {
        return (!menu.is_empty()).then_some(0);
    }
    let value = |at: &usize| menu[*at].change + price * map_bytes(&menu[*at].storage, menu);
    (0..menu.len()).min_by(|a, b| value(a).total_cmp(&value(b)))
}

/// Bytes of a map's entries and scales.
fn map_bytes(storage: &MapStorage, menu: &[Priced]) -> f64 {
    let entries = menu.iter().find_map(|priced| match &priced.storage {
        MapStorage::Integers(rounded) => Some(rounded.levels().len()),
        _ => None,
    });
    match storage {
        MapStorage::Full => 4.0 * entries.unwrap_or(1) as f64,
        MapStorage::Bf16 => 2.0 * entries.unwrap_or(1) as f64,
        MapStorage::Integers(rounded) => {
            let bits = f64::from(rounded.bits()) * rounded.levels().len() as f64;
            bits / 8.0 + 2.0 * rounded.scales().len() as f64
        }
    }
}

/// Numbers of a layer that act at every step.
fn vector_numbers(block: &Block) -> usize {
    let bias = block
        .output()
        .and_then(|output| output.linear.bias.as_ref());
    let norm = block
        .norm()
        .map_or(0, |(norm, _)| 2 * norm.affine().0.len());
    block.channels() + norm + bias.map_or(0, Vec::len)
}

/// Orders raised to what the lanes of their groups store anyhow: channels are gathered by order,
/// and a group takes as many modes as its largest.
fn filled(block: &Block, orders: &[usize]) -> Vec<usize> {
    let mut filled = orders.to_vec();
    for group in by_order(orders) {
        let most = group.iter().map(|&channel| orders[channel]).max();
        for channel in group {
            let own = block.systems()[channel].order();
            filled[channel] = most.unwrap_or(own).min(own);
        }
    }
    filled
}
