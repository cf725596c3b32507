//! The numbers of a network that are fitted to its logits.

use hankelite_control::{DiagonalSystem, residue_gram, with_moved_residues};
use nalgebra::{Cholesky, DMatrix, DVector};
use rayon::prelude::*;

use crate::calibrate::calibration::Summary;
use crate::compress::{CalibratedChannel, CalibratedLayer, CompressError};
use crate::infer::{InferError, Network, StepSums, VectorSlopes};
use crate::model::{Block, BlockParts, Head, Model, ModelParts, Norm, Sequence};
use crate::progress::{ProgressSink, in_order};

/// The share of a mode's own square that its weights cost in any case.
const PARALLEL: f64 = 1e-4;

/// The mean square of an input that counts at least, where all numbers move.
const INPUT_MIN: f64 = 1e-3;

/// Inputs of the fit to the logits.
pub(super) struct LogitData<'a> {
    pub(super) summary: &'a Summary,
    pub(super) sequences: &'a [Sequence<'a>],
    /// Of the full model, for each sequence.
    pub(super) logits: &'a [Vec<f64>],
    /// The channels that the cuts were made from.
    pub(super) layers: &'a [CalibratedLayer],
    pub(super) fitted: FittedNumbers,
    pub(super) observer: &'a dyn ProgressSink,
}

/// What moves in a fit to the logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum FittedNumbers {
    /// Residues and feedthroughs.
    Residues,
    /// The biases of the maps and of the head and the numbers of the norms, too, before maps are rounded:
    /// another fit follows.
    BeforeRounding,
    /// The same to the end.
    All,
}

/// One channel's residues and feedthrough.
struct Channel<'a> {
    layer: usize,
    channel: usize,
    /// Its first parameter.
    first: usize,
    full: &'a CalibratedChannel,
    /// I L n.
    importance: f64,
    /// Whether the feedthrough moves: where the file has a place for it.
    moves_feedthrough: bool,
    /// The least power of the input that counts for the feedthrough: one that the sequences hardly
    /// show must not let it grow without bound.
    input_min: f64,
}

/// Numbers that act at every step.
struct Vector {
    of: VectorOf,
    first: usize,
    count: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum VectorOf {
    /// The bias of the map between the channels of a layer.
    Bias(usize),
    /// The factors of a layer's norm.
    Factors(usize),
    /// Its offsets.
    Offsets(usize),
    /// The bias of the head.
    Head,
}

/// Which numbers move, and where each has its place.
pub(super) struct Parameters<'a> {
    channels: Vec<Channel<'a>>,
    vectors: Vec<Vector>,
    count: usize,
}

/// The derivatives from one sequence.
pub(super) struct Slopes {
    /// Parameters × combinations.
    pub(super) slopes: DMatrix<f64>,
    /// Of the parameters that act at every step: squares summed over steps and combinations.
    pub(super) squares: DVector<f64>,
    /// Of the network itself.
    pub(super) logits: Vec<f64>,
}

/// What a change of the parameters costs: a quadratic form, diagonal but within channels.
pub(super) struct Prices {
    /// Factors L_h of I_h L n G_h = L_h L_hᵀ; δ_h = L_h^{−T} times the new coordinates.
    channels: Vec<(usize, DMatrix<f64>)>,
    /// First parameter, and roots of the prices.
    vectors: (usize, DVector<f64>),
}

impl<'a> Parameters<'a> {
    /// The channels that were cut, have an input and change the logits; and the vectors, where
    /// they move.
    pub(super) fn new(data: &LogitData<'a>, model: &Model, sequences: usize) -> Self {
        let mut made = Self {
            channels: Vec::new(),
            vectors: Vec::new(),
            count: 0,
        };
        let samples = (data.summary.length * sequences) as f64;
        let vectors = data.fitted != FittedNumbers::Residues;
        for (layer, block) in model.blocks().iter().enumerate() {
            let importance = &data.summary.importance[layer];
            let channels = data.layers[layer].channels().iter().zip(block.systems());
            for (channel, ((full, system), importance)) in channels.zip(importance).enumerate() {
                let whole = system.order() >= full.system().order();
                if full.has_input() && *importance > 0.0 && !whole {
                    let place = Channel {
                        layer,
                        channel,
                        first: made.count,
                        full,
                        importance: importance * samples,
                        moves_feedthrough: block.holds_feedthrough(),
                        input_min: if vectors { INPUT_MIN } else { 0.0 },
                    };
                    made.count += 2 * system.order() + 1;
                    made.channels.push(place);
                }
            }
        }
        if vectors {
            made.add_vectors(model);
        }
        made
    }

    fn add_vectors(&mut self, model: &Model) {
        let mut add = |of, count| {
            let first = self.count;
            self.vectors.push(Vector { of, first, count });
            self.count += count;
        };
        for (layer, block) in model.blocks().iter().enumerate() {
            let bias = block
                .output()
                .and_then(|output| output.linear.bias.as_ref());
            if let Some(bias) = bias {
                add(VectorOf::Bias(layer), bias.len());
            }
            if let Some((norm, _)) = block.norm() {
                let (factors, offsets, _) = norm.affine();
                add(VectorOf::Factors(layer), factors.len());
                add(VectorOf::Offsets(layer), offsets.len());
            }
        }
        let bias = model.head().and_then(|head| head.linear.bias.as_ref());
        if let Some(bias) = bias {
            add(VectorOf::Head, bias.len());
        }
    }

    /// The first parameter of a channel that moves.
    pub(super) fn place(&self, layer: usize, channel: usize) -> Option<usize> {
        let key = (layer, channel);
        let found = self
            .channels
            .binary_search_by_key(&key, |own| (own.layer, own.channel));
        Some(self.channels[found.ok()?].first)
    }

    /// Clears the slopes (a row for each parameter) of feedthroughs that do not move. Their price is apart
    /// from all others', so that no step moves them.
    pub(super) fn hold_feedthroughs(&self, model: &Model, slopes: &mut DMatrix<f64>) {
        for place in self.channels.iter().filter(|p| !p.moves_feedthrough) {
            let system = &model.blocks()[place.layer].systems()[place.channel];
            slopes.row_mut(place.first + 2 * system.order()).fill(0.0);
        }
    }

    /// How many numbers move.
    pub(super) fn count(&self) -> usize {
        self.count
    }

    fn vectors_from(&self) -> usize {
        self.vectors
            .first()
            .map_or(self.count, |vector| vector.first)
    }

    /// The slopes of the combinations of the logits of one sequence.
    pub(super) fn slopes(
        &self,
        network: &Network<'_>,
        sequence: Sequence<'_>,
        combinations: &[Vec<f64>],
    ) -> Result<Slopes, InferError> {
        let mut slopes = DMatrix::zeros(self.count, combinations.len());
        let from = self.vectors_from();
        let mut squares = DVector::zeros(self.count - from);
        let vectors = !self.vectors.is_empty();
        let logits = network.number_slopes(sequence, combinations, vectors, |layer| {
            for place in self.channels.iter().filter(|p| p.layer == layer.layer) {
                for (mut column, own) in slopes
                    .column_iter_mut()
                    .skip(layer.first)
                    .zip(&layer.residues)
                {
                    let own = &own[place.channel];
                    column.rows_mut(place.first, own.len()).copy_from_slice(own);
                }
            }
            for vector in &self.vectors {
                for (k, own) in layer.vectors.iter().enumerate() {
                    let Some(own) = vector.of.sums(layer.layer, own) else {
                        continue;
                    };
                    let mut column = slopes.column_mut(layer.first + k);
                    let mut rows = column.rows_mut(vector.first, vector.count);
                    rows.copy_from_slice(&own.sum);
                    let mut rows = squares.rows_mut(vector.first - from, vector.count);
                    rows += DVector::from_column_slice(&own.squares);
                }
            }
        })?;
        self.hold_feedthroughs(network.model(), &mut slopes);
        for vector in self.vectors.iter().filter(|v| v.of == VectorOf::Head) {
            for (k, combination) in combinations.iter().enumerate() {
                for (i, c) in combination.iter().enumerate() {
                    slopes[(vector.first + i, k)] = *c;
                    squares[vector.first - from + i] += c * c;
                }
            }
        }
        Ok(Slopes {
            slopes,
            squares,
            logits,
        })
    }

    /// The prices at a model, from the squares of all sequences: what a change of the layers'
    /// outputs would do to the logits were it noise.
    ///
    /// # Errors
    /// [`CompressError::Store`].
    pub(super) fn prices<'s>(
        &self,
        model: &Model,
        squares: impl Iterator<Item = &'s DVector<f64>>,
    ) -> Result<Prices, CompressError> {
        let channels = self.channels.par_iter();
        let channels =
            channels.map(|place| Ok::<_, CompressError>((place.first, factor(model, place)?)));
        let from = self.vectors_from();
        let mut total = DVector::zeros(self.count - from);
        squares.for_each(|squares| total += squares);
        // A number that changes nothing still costs something.
        let least = 1e-12 * total.max();
        let roots = total.map(|square: f64| square.max(least).sqrt());
        Ok(Prices {
            channels: in_order(channels)?,
            vectors: (from, roots.map(|root| if root > 0.0 { root } else { 1.0 })),
        })
    }

    /// The model with all numbers moved; `None` where it is not finite.
    pub(super) fn moved(&self, model: &Model, step: &[f64]) -> Option<Model> {
        let blocks = model.blocks().iter();
        let mut blocks: Vec<BlockParts> = blocks.map(|block| block.clone().into_parts()).collect();
        let mut head = model.head().cloned();
        for place in &self.channels {
            let system = &mut blocks[place.layer].systems[place.channel];
            let own = &step[place.first..place.first + 2 * system.order() + 1];
            *system = with_moved_residues(system, own).ok()?;
        }
        for vector in &self.vectors {
            let own = &step[vector.first..vector.first + vector.count];
            let numbers = vector.of.numbers(&mut blocks, head.as_mut())?;
            numbers
                .iter_mut()
                .zip(own)
                .for_each(|(number, more)| *number += more);
        }
        let blocks = blocks.into_iter().map(Block::new);
        Model::new(ModelParts {
            encoder: model.encoder().cloned(),
            blocks: blocks.collect::<Result<_, _>>().ok()?,
            final_norm: model.final_norm().cloned(),
            head,
        })
        .ok()
    }
}

impl VectorOf {
    /// Its derivatives, if it belongs to this layer.
    fn sums(self, layer: usize, slopes: &VectorSlopes) -> Option<&StepSums> {
        match self {
            Self::Bias(of) if of == layer => Some(&slopes.bias),
            Self::Factors(of) if of == layer => Some(&slopes.factors),
            Self::Offsets(of) if of == layer => Some(&slopes.offsets),
            _ => None,
        }
    }

    /// The numbers themselves.
    fn numbers<'p>(
        self,
        blocks: &'p mut [BlockParts],
        head: Option<&'p mut Head>,
    ) -> Option<&'p mut Vec<f64>> {
        let norm_of = |blocks: &'p mut [BlockParts], layer: usize| {
            let (norm, _) = blocks.get_mut(layer)?.norm.as_mut()?;
            Some(match norm {
                Norm::Layer(norm) => [&mut norm.weight, &mut norm.bias],
                Norm::Batch(norm) => [&mut norm.weight, &mut norm.bias],
            })
        };
        match self {
            Self::Bias(layer) => {
                let output = blocks.get_mut(layer)?.output.as_mut()?;
                output.linear.bias.as_mut()
            }
            Self::Factors(layer) => norm_of(blocks, layer).map(|[factors, _]| factors),
            Self::Offsets(layer) => norm_of(blocks, layer).map(|[_, offsets]| offsets),
            Self::Head => head?.linear.bias.as_mut(),
        }
    }
}

impl Prices {
    /// Slopes by the new coordinates, in which the price is ‖δ‖², in place of those by the
    /// parameters (rows).
    pub(super) fn divide(&self, slopes: &mut DMatrix<f64>) {
        for (first, factor) in &self.channels {
            let mut own = slopes.rows_mut(*first, factor.nrows());
            factor.solve_lower_triangular_mut(&mut own);
        }
        let (from, roots) = &self.vectors;
        for (i, root) in roots.iter().enumerate() {
            slopes.row_mut(from + i).scale_mut(1.0 / root);
        }
    }

    /// Parameters in place of the new coordinates.
    pub(super) fn restore(&self, step: &mut DVector<f64>) {
        for (first, factor) in &self.channels {
            let mut own = step.rows(*first, factor.nrows()).into_owned();
            factor.tr_solve_lower_triangular_mut(&mut own);
            step.rows_mut(*first, factor.nrows()).copy_from(&own);
        }
        let (from, roots) = &self.vectors;
        for (i, root) in roots.iter().enumerate() {
            step[from + i] /= root;
        }
    }
}

/// The Cholesky factor of a channel's price. Every weight costs a little by itself too, so that
/// columns that are all but parallel (of fast poles, say) do not get large weights that cancel.
fn factor(model: &Model, place: &Channel<'_>) -> Result<DMatrix<f64>, CompressError> {
    let block = &model.blocks()[place.layer];
    let system: &DiagonalSystem = &block.systems()[place.channel];
    let target = place.full.target();
    let target = target.map_err(|fault| CompressError::channel(block, place.channel, fault))?;
    let order = 2 * system.order() + 1;
    let mut price = match &target {
        Some(target) => residue_gram(system, target.weight()),
        None => DMatrix::zeros(order, order),
    };
    price *= place.importance;
    let last = price.nrows() - 1;
    if !place.moves_feedthrough {
        let own = price[(last, last)];
        price.row_mut(last).fill(0.0);
        price.column_mut(last).fill(0.0);
        price[(last, last)] = own;
    }
    for n in 0..last / 2 {
        let (re, im) = (2 * n, 2 * n + 1);
        let share = PARALLEL * (price[(re, re)] + price[(im, im)]);
        price[(re, re)] += share;
        price[(im, im)] += share;
    }
    price[(last, last)] *= 1.0 + PARALLEL;
    price[(last, last)] += place.input_min * place.importance;
    let root = Cholesky::new(price.clone());
    Ok(root.map_or_else(
        || DMatrix::from_diagonal(&price.diagonal().map(|p| p.abs().sqrt())),
        |root| root.unpack(),
    ))
}
