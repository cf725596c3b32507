//! What every choice does to the logits, measured.

use crate::calibrate::{CalibratedReduction, Importance};
use crate::compress::{Allocation, ErrorCurve, share};
use crate::infer::{Network, Path as InferPath};
use crate::model::{Block, BlockParts, Encoder, Head, Linear, Model, OutputLinear};
use crate::progress::stage;
use crate::rounding::{Entries, LayerStorage, MapChoice, MapMoments, MapStorage, Numbers, Storage};
use crate::target::TargetError;
use crate::target::compared::Compared;
use hankelite_control::Refinement;
use nalgebra::DMatrix;
use rayon::prelude::*;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// Fewer sequences than this are too few to compare choices by.
const SEQUENCES_MIN: usize = 8;

/// Sequences on which every choice is measured.
const MEASURED: usize = 24;

/// The share of all states with which layers are cut to see what their states matter.
const SHARE: f64 = 1.0 / 6.0;

/// Weights of a map for each calibration sequence with which half of what rounding does stays:
/// few sequences determine few weights.
const WEIGHTS_HALF: f64 = 30.0;

/// The factor on the measured change of a map at two bits. At a tenth of the bytes of a CIFAR model the
/// held-out logits change by 12.4 % with a factor of 1, and by 10.9 % with 1.5 and 2.5.
const TWO_BITS: f64 = 1.5;

/// A factor on the measured change of a map, for entries that are too coarse for the fits that follow to
/// make good: several such maps change the logits by more than the sum of what each does alone. `None`
/// for all others.
pub fn coarse_factor(entries: Entries) -> Option<f64> {
    (entries == Entries::Int2).then_some(TWO_BITS)
}

/// Sequences whose moments are summed on one thread, in order: sums do not depend on the threads.
const GROUP: usize = 4;

/// A choice for one map, with what it costs.
#[derive(Debug, Clone)]
pub(super) struct Priced {
    pub(super) choice: MapChoice,
    /// The entries for the inputs in the full network.
    pub(super) storage: MapStorage,
    /// Squared relative change of the logits, as far as fitting to them leaves it.
    pub(super) change: f64,
}

/// What the output error of every channel does to the logits, by one kind of importance.
#[derive(Clone)]
pub(super) struct Weights {
    pub(super) kind: &'static str,
    /// Squared relative change of the logits for each unit of squared error.
    pub(super) channels: Vec<Vec<f64>>,
}

impl Weights {
    /// The same with those of one layer multiplied.
    pub(super) fn with_factor(&self, layer: usize, factor: f64) -> Self {
        let mut other = self.clone();
        other.channels[layer]
            .iter_mut()
            .for_each(|weight| *weight *= factor);
        other
    }
}

/// A model whose choices were measured, to be brought to any size.
pub(crate) struct TargetReduction<'a> {
    pub(super) reduction: &'a CalibratedReduction<'a>,
    /// With the errors that were needed so far.
    curves: RwLock<Vec<Vec<ErrorCurve>>>,
    pub(super) weights: Vec<Weights>,
    /// For each layer; empty where it has no map.
    pub(super) maps: Vec<Vec<Priced>>,
    pub(super) encoder: Vec<Priced>,
    pub(super) head: Vec<Priced>,
    /// Squared change of the logits by half precision of each layer's numbers.
    pub(super) half: Vec<f64>,
    /// By that of the biases of encoder and head.
    pub(super) half_ends: f64,
}

impl<'a> TargetReduction<'a> {
    /// Measures every choice. Cost some 30 forward passes over two dozen sequences for a model of
    /// four layers, and the lower half of all error curves.
    ///
    /// # Errors
    /// [`TargetError`] for too few sequences; [`TargetError::Calibrate`]; [`TargetError::Rounding`].
    pub(crate) fn new(reduction: &'a CalibratedReduction<'a>) -> Result<Self, TargetError> {
        let found = reduction.sequences().len();
        if found < SEQUENCES_MIN {
            return Err(TargetError::Other(format!(
                "{found} calibration sequences, expected at least {SEQUENCES_MIN}: choices are compared \
                 by their logits"
            )));
        }
        let systems = reduction.model().blocks().iter().flat_map(Block::systems);
        let largest = systems.map(|system| system.order()).max().unwrap_or(0);
        // The upper half of the orders takes most of the time, and few channels need it.
        let curves = reduction.curves(Refinement::Full, largest.div_ceil(2))?;
        let mut made = Self {
            curves: RwLock::new(curves),
            reduction,
            weights: Vec::new(),
            maps: Vec::new(),
            encoder: Vec::new(),
            head: Vec::new(),
            half: Vec::new(),
            half_ends: 0.0,
        };
        let layers = reduction.model().blocks().len();
        reduction.observer().begin(stage::CHOICES, 3 * layers + 1);
        made.measure_layers()?;
        made.measure_ends()?;
        Ok(made)
    }

    /// The error curves of all channels.
    pub(super) fn curves(&self) -> RwLockReadGuard<'_, Vec<Vec<ErrorCurve>>> {
        self.curves.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Finds more errors of channels, given by layer and channel.
    pub(super) fn lengthen(&self, channels: &[(usize, usize)]) -> Result<(), TargetError> {
        let mut curves = self.curves.write().unwrap_or_else(PoisonError::into_inner);
        let reduction = self.reduction;
        Ok(reduction.lengthen(&mut curves, channels, Refinement::Full)?)
    }

    /// The full model.
    pub(crate) fn model(&self) -> &'a Model {
        self.reduction.model()
    }

    /// The squared relative change of the logits over the sequences that measure.
    pub(super) fn change(&self, model: &Model) -> Result<f64, TargetError> {
        let change = self.reduction.change_over(model, MEASURED)?;
        Ok(change * change)
    }

    /// Cuts each layer alone, rounds its map alone, and takes half precision in it alone.
    fn measure_layers(&mut self) -> Result<(), TargetError> {
        let kinds = [Importance::Equal, Importance::Root, Importance::Gradient];
        let cuts = kinds.map(|kind| self.cut_alone(kind));
        let mut cuts = cuts.into_iter().collect::<Result<Vec<_>, _>>()?;
        let moments = self.map_moments()?;
        let mut compared = Compared::new(self.reduction, self.model(), |index| index < MEASURED)?;
        for (layer, moments) in moments.iter().enumerate() {
            self.reduction.observer().step()?;
            for (weights, orders) in &mut cuts {
                self.measure_states(layer, weights, &orders[layer], &compared)?;
            }
            self.reduction.observer().step()?;
            let priced = self.measure_map(layer, moments, &compared)?;
            self.maps.push(priced);
            self.reduction.observer().step()?;
            let half = Storage {
                layers: self.numbers_of(|at| at == layer),
                ..Storage::default()
            };
            self.half
                .push(compared.change(&half.applied(self.model())?)?.powi(2));
            compared.pass(self.model())?;
        }
        self.weights = cuts.into_iter().map(|(weights, _)| weights).collect();
        Ok(())
    }

    /// The weights of one kind of importance, and orders of all channels by them.
    fn cut_alone(&self, kind: Importance) -> Result<(Weights, Vec<Vec<usize>>), TargetError> {
        let blocks = self.model().blocks();
        let systems = blocks.iter().flat_map(Block::systems);
        let all: usize = systems.map(|system| system.order()).sum();
        let channels: usize = blocks.iter().map(Block::channels).sum();
        let budget = ((SHARE * all as f64) as usize).max(channels);
        let (channels, kind) = self.reduction.importance(kind, &vec![1.0; blocks.len()]);
        loop {
            let curves = self.curves();
            let shared = share(&curves, &channels, Allocation::Channel, budget, None);
            drop(curves);
            if shared.unknown.is_empty() {
                return Ok((Weights { kind, channels }, shared.orders));
            }
            self.lengthen(&shared.unknown)?;
        }
    }

    /// Compares the change by the cut of one layer alone with the one that importance predicts.
    fn measure_states(
        &self,
        layer: usize,
        weights: &mut Weights,
        orders: &[usize],
        compared: &Compared<'_>,
    ) -> Result<(), TargetError> {
        let block = &self.model().blocks()[layer];
        let systems = self.reduction.cut(layer, orders, Refinement::Residues)?;
        let block = block.with_systems(systems, Vec::new())?;
        let change = compared
            .change(&self.model().with_block(layer, block)?)?
            .powi(2);
        let own = &mut weights.channels[layer];
        let curves = self.curves();
        let parts = own.iter().zip(&curves[layer]).zip(orders);
        let expected: f64 = parts.map(|((w, curve), &n)| w * curve.at(n)).sum();
        let factor = match expected > 0.0 {
            true => change / expected,
            false => 0.0,
        };
        own.iter_mut().for_each(|w| *w *= factor);
        Ok(())
    }

    /// Rounds the map of one layer alone, in every way.
    fn measure_map(
        &self,
        layer: usize,
        moments: &MapMoments,
        compared: &Compared<'_>,
    ) -> Result<Vec<Priced>, TargetError> {
        let block = &self.model().blocks()[layer];
        let Some(output) = block.output() else {
            return Ok(Vec::new());
        };
        let weights = output.linear.weight.len() as f64;
        let sequences = self.reduction.sequences().len() as f64;
        let fitted = weights / (weights + WEIGHTS_HALF * sequences);
        let priced = choices(output.linear.weight.nrows())
            .into_iter()
            .map(|choice| {
                let MapChoice { entries, group } = choice;
                let map = moments.compensated(&output.linear, entries, group)?;
                let left = match entries {
                    Entries::Full => 0.0,
                    _ => coarse_factor(entries).unwrap_or(fitted),
                };
                let mut change = 0.0;
                if left > 0.0 {
                    let model = self
                        .model()
                        .with_block(layer, with_map(block, map.linear)?)?;
                    change = left * compared.change(&model)?.powi(2);
                }
                Ok(Priced {
                    choice,
                    storage: map.storage,
                    change,
                })
            });
        priced.collect()
    }

    /// Half precision for the numbers of some layers.
    fn numbers_of(&self, half: impl Fn(usize) -> bool) -> Vec<LayerStorage> {
        let layers = 0..self.model().blocks().len();
        let layers = layers.map(|layer| LayerStorage {
            numbers: match half(layer) {
                true => Numbers::F16,
                false => Numbers::F32,
            },
            ..LayerStorage::default()
        });
        layers.collect()
    }

    /// Rounds encoder and head alone, and takes half precision at both alone.
    fn measure_ends(&mut self) -> Result<(), TargetError> {
        self.reduction.observer().step()?;
        let kinds = [Entries::Full, Entries::Bf16, Entries::Int8, Entries::Int4];
        let layers = self.numbers_of(|_| false);
        let priced = |linear: &Linear, entries, of: &dyn Fn(MapStorage) -> Storage| {
            let group = groups(linear.weight.nrows())[0];
            let storage = MapStorage::nearest(linear, entries, group)?;
            let stored = Storage {
                layers: layers.clone(),
                ..of(storage.clone())
            };
            Ok::<_, TargetError>(Priced {
                choice: MapChoice { entries, group },
                storage,
                change: self.change(&stored.applied(self.model())?)?,
            })
        };
        let mut encoder = Vec::new();
        if let Some(Encoder::Linear(linear)) = self.model().encoder() {
            // Integers come in groups of inputs; most encoders have fewer.
            let few = linear.weight.nrows() < 16;
            for &entries in if few { &kinds[..2] } else { &kinds[..] } {
                encoder.push(priced(linear, entries, &|encoder| Storage {
                    encoder,
                    ..Storage::default()
                })?);
            }
        }
        let mut head = Vec::new();
        if let Some(Head { linear, .. }) = self.model().head() {
            for entries in kinds {
                head.push(priced(linear, entries, &|head| Storage {
                    head,
                    ..Storage::default()
                })?);
            }
        }
        (self.encoder, self.head) = (encoder, head);
        let half = Storage {
            numbers: Numbers::F16,
            layers,
            ..Storage::default()
        };
        self.half_ends = self.change(&half.applied(self.model())?)?;
        Ok(())
    }

    /// Moments of what every map takes in the full network.
    fn map_moments(&self) -> Result<Vec<MapMoments>, TargetError> {
        let network = Network::new(self.model(), self.reduction.length(), InferPath::Auto)?;
        let blocks = self.model().blocks();
        let few = &self.reduction.sequences()[..self.reduction.sequences().len().min(MEASURED)];
        let empty = || -> Vec<MapMoments> {
            blocks
                .iter()
                .map(|block| MapMoments::new(block.outputs()))
                .collect()
        };
        let groups = few.par_chunks(GROUP).map(|members| {
            let mut sums = empty();
            for &sequence in members {
                let mut signal = network.encode(sequence)?;
                for (layer, sums) in sums.iter_mut().enumerate() {
                    let y = network.response(layer, &signal.x)?;
                    let activated = network.activated(layer, &y)?;
                    let own: DMatrix<f64> = activated.rows(0, signal.steps).into_owned();
                    sums.add(&own, &own)?;
                    signal.x = network.finished(layer, &signal.x, &y)?;
                }
            }
            Ok(sums)
        });
        let mut total = empty();
        for sums in groups.collect::<Result<Vec<_>, TargetError>>()? {
            total
                .iter_mut()
                .zip(&sums)
                .for_each(|(total, own)| total.merge(own));
        }
        Ok(total)
    }
}

/// Groups of inputs that are tried: the widest that divides the map well, and narrower ones.
fn groups(inputs: usize) -> Vec<usize> {
    let widest = inputs.next_multiple_of(16);
    let mut groups: Vec<usize> = [32, 128].into_iter().filter(|&g| g <= widest).collect();
    if groups.is_empty() || (widest < 128 && widest != 32) {
        groups.push(widest);
    }
    groups
}

/// What a map can be stored as.
fn choices(inputs: usize) -> Vec<MapChoice> {
    let groups = groups(inputs);
    let widest = groups.last().copied().unwrap_or(16);
    let mut choices = vec![
        MapChoice {
            entries: Entries::Full,
            group: widest,
        },
        MapChoice {
            entries: Entries::Bf16,
            group: widest,
        },
        MapChoice {
            entries: Entries::Int8,
            group: widest,
        },
    ];
    let int4 = groups.iter().map(|&group| (Entries::Int4, group));
    // Three bits come by 32 inputs; where a group has fewer, an image stores four.
    let int3 = groups.iter().filter(|group| group.is_multiple_of(32));
    let int2 = groups.iter().map(|&group| (Entries::Int2, group));
    let integers = int4.chain(int3.map(|&group| (Entries::Int3, group)));
    let integers = integers.chain(int2);
    choices.extend(integers.map(|(entries, group)| MapChoice { entries, group }));
    choices
}

/// The block with another map.
pub(super) fn with_map(block: &Block, linear: Linear) -> Result<Block, TargetError> {
    let gate = block.output().map(|output| output.gate).unwrap_or_default();
    Ok(Block::new(BlockParts {
        output: Some(OutputLinear { linear, gate }),
        ..block.clone().into_parts()
    })?)
}
