//! What every choice does to the logits, measured.

use crate::calibrate::{CalibratedReduction, Importance};
use crate::compress::{Allocation, ErrorCurve, allocate};
use crate::infer::{Network, Path as InferPath};
use crate::model::{Block, BlockParts, Encoder, Head, Linear, Model, OutputLinear};
use crate::progress::stage;
use crate::rounding::{Entries, LayerStorage, MapChoice, MapMoments, MapStorage, Numbers, Storage};
use crate::target::TargetError;
use hankelite_control::Refinement;
use nalgebra::DMatrix;
use rayon::prelude::*;

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
    pub(super) curves: Vec<Vec<ErrorCurve>>,
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
    /// Measures every choice. Cost some 40 forward passes over two dozen sequences for a model of
    /// four layers, and the error curves of `reduction` where it has none yet.
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
        let mut made = Self {
            curves: reduction.curves(Refinement::Full, usize::MAX)?,
            reduction,
            weights: Vec::new(),
            maps: Vec::new(),
            encoder: Vec::new(),
            head: Vec::new(),
            half: Vec::new(),
            half_ends: 0.0,
        };
        let layers = reduction.model().blocks().len();
        reduction.observer().begin(stage::CHOICES, 3 * layers + 2);
        made.measure_states()?;
        made.measure_maps()?;
        made.measure_ends()?;
        made.measure_half()?;
        Ok(made)
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

    /// Cuts each layer alone, and compares the change with the one that importance predicts.
    fn measure_states(&mut self) -> Result<(), TargetError> {
        let blocks = self.model().blocks();
        let kinds = [Importance::Equal, Importance::Root, Importance::Gradient];
        let all: usize = blocks
            .iter()
            .flat_map(Block::systems)
            .map(|s| s.order())
            .sum();
        let channels: usize = blocks.iter().map(Block::channels).sum();
        let budget = ((SHARE * all as f64) as usize).max(channels);
        let mut weights: Vec<Weights> = Vec::new();
        for (index, kind) in kinds.into_iter().enumerate() {
            let ones = vec![1.0; blocks.len()];
            let (channels, kind) = self.reduction.importance(kind, &ones);
            let orders = allocate(&self.curves, &channels, Allocation::Channel, budget, None);
            let mut own = Weights { kind, channels };
            for (layer, block) in blocks.iter().enumerate() {
                if index == 0 {
                    self.reduction.observer().step()?;
                }
                let systems = self
                    .reduction
                    .cut(layer, &orders[layer], Refinement::Residues)?;
                let block = block.with_systems(systems, Vec::new())?;
                let change = self.change(&self.model().with_block(layer, block)?)?;
                let parts = own.channels[layer].iter().zip(&self.curves[layer]);
                let parts = parts.zip(&orders[layer]);
                let expected: f64 = parts.map(|((w, curve), &n)| w * curve.at(n)).sum();
                let factor = if expected > 0.0 {
                    change / expected
                } else {
                    0.0
                };
                own.channels[layer].iter_mut().for_each(|w| *w *= factor);
            }
            weights.push(own);
        }
        self.weights = weights;
        Ok(())
    }

    /// Rounds the map of each layer alone.
    fn measure_maps(&mut self) -> Result<(), TargetError> {
        let moments = self.map_moments()?;
        for (layer, (block, moments)) in self.model().blocks().iter().zip(&moments).enumerate() {
            self.reduction.observer().step()?;
            let mut priced = Vec::new();
            if let Some(output) = block.output() {
                let weights = output.linear.weight.len() as f64;
                let sequences = self.reduction.sequences().len() as f64;
                let fitted = weights / (weights + WEIGHTS_HALF * sequences);
                for choice in choices(output.linear.weight.nrows()) {
                    let MapChoice { entries, group } = choice;
                    let map = moments.compensated(&output.linear, entries, group)?;
                    let change = match entries {
                        Entries::Full => 0.0,
                        _ => {
                            let left = coarse_factor(entries).unwrap_or(fitted);
                            let block = with_map(block, map.linear)?;
                            left * self.change(&self.model().with_block(layer, block)?)?
                        }
                    };
                    priced.push(Priced {
                        choice,
                        storage: map.storage,
                        change,
                    });
                }
            }
            self.maps.push(priced);
        }
        Ok(())
    }

    /// Rounds encoder and head alone.
    fn measure_ends(&mut self) -> Result<(), TargetError> {
        self.reduction.observer().step()?;
        let kinds = [Entries::Full, Entries::Bf16, Entries::Int8, Entries::Int4];
        let layers = vec![LayerStorage::default(); self.model().blocks().len()];
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
        Ok(())
    }

    /// Takes half precision in each layer alone, and at the ends.
    fn measure_half(&mut self) -> Result<(), TargetError> {
        let count = self.model().blocks().len();
        let stored = |at: Option<usize>| Storage {
            numbers: match at {
                None => Numbers::F16,
                Some(_) => Numbers::F32,
            },
            layers: (0..count)
                .map(|layer| LayerStorage {
                    numbers: match at == Some(layer) {
                        true => Numbers::F16,
                        false => Numbers::F32,
                    },
                    ..LayerStorage::default()
                })
                .collect(),
            ..Storage::default()
        };
        for layer in 0..count {
            self.reduction.observer().step()?;
            let change = self.change(&stored(Some(layer)).applied(self.model())?)?;
            self.half.push(change);
        }
        self.half_ends = self.change(&stored(None).applied(self.model())?)?;
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
