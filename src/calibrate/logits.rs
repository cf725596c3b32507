//! Fitting all channels of a reduced network together to the logits of the full one.

use hankelite_control::{
    DiagonalSystem, InputWeight, gram_matrix, output_slopes, residue_gram, with_moved_residues,
};
use nalgebra::{Cholesky, DMatrix, DVector};
use rayon::prelude::*;
use serde::Serialize;

use crate::calibrate::{CalibrateError, Calibration};
use crate::compress::{CalibratedChannel, CalibratedLayer};
use crate::infer::{Network, Path as InferPath, combination};
use crate::model::{Model, Sequence};
use crate::progress::{ProgressSink, Stage, Within};

/// Steps at most.
const STEPS_MAX: usize = 4;

/// Every so many sequences one is kept to check the others.
const CHECK_EVERY: usize = 4;

/// Fewer sequences than this are too few to fit and check.
const SEQUENCES_MIN: usize = 8;

/// More sequences than this are not used for the gradients.
const SEQUENCES_MAX: usize = 200;

/// Of more classes than this, as many random combinations are used.
const COMBINATIONS_MAX: usize = 10;

/// The prices ρ that are tried.
const PRICES: [f64; 4] = [1000.0, 100.0, 10.0, 1.0];

/// A step must bring the checked logits nearer by this share.
const GAIN_MIN: f64 = 0.02;

/// The share of a mode's own square that its weights cost in any case.
const PARALLEL: f64 = 1e-4;

/// Numbers in the table of gradients at most, 1 GiB.
const SLOPES_MAX: usize = 1 << 27;

/// How all channels together were fitted to the logits.
///
/// Refinement takes every channel alone, without what the network makes of its error. Here the
/// residues and feedthroughs θ of all channels take Gauss–Newton steps on
///
/// ```text
/// Σ_s ‖z_s − z_s(θ + δ)‖² + ρ Σ_h I_h L n δ_hᵀ G_h δ_h
/// ```
///
/// z being the (centred) logits of the n sequences. G_h is the weighted metric of channel h
/// ([`residue_gram`]) and I_h its importance ([`crate::infer::importance`]), so
/// the second term is what the change of the layers' outputs would do to the logits were it noise:
/// the larger ρ, the less the gradients are trusted. A quarter of the sequences is held out: it
/// chooses ρ, and ends the fit where no step brings its logits nearer by two per cent. Labels are
/// not used.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct LogitFit {
    /// Steps that were taken.
    pub steps: usize,
    /// Parameters that could move.
    pub parameters: usize,
    /// ρ of every step.
    pub prices: Vec<f64>,
    /// Relative change of the logits before, over the held-out sequences.
    pub before: f64,
    /// After.
    pub after: f64,
}

/// √(Σ ‖z − z_r‖²/Σ ‖z‖²), centred over the classes where there are several.
pub(super) fn relative_change<T: AsRef<[f64]>>(full: &[T], reduced: &[Vec<f64>]) -> f64 {
    let squares = |difference: &[f64]| centred(difference).iter().map(|d| d * d).sum::<f64>();
    let (mut change, mut size) = (0.0, 0.0);
    for (full, reduced) in full.iter().zip(reduced) {
        let full = full.as_ref();
        let difference: Vec<f64> = full.iter().zip(reduced).map(|(a, b)| a - b).collect();
        change += squares(&difference);
        size += squares(full);
    }
    if change > 0.0 {
        (change / size).sqrt()
    } else {
        0.0
    }
}

fn centred(values: &[f64]) -> Vec<f64> {
    let mean = match values.len() {
        0 | 1 => 0.0,
        classes => values.iter().sum::<f64>() / classes as f64,
    };
    values.iter().map(|value| value - mean).collect()
}

/// What a fit goes by.
pub(super) struct LogitData<'a> {
    pub(super) calibration: &'a Calibration,
    pub(super) sequences: &'a [Sequence<'a>],
    /// Of the full model, for each sequence.
    pub(super) logits: &'a [Vec<f64>],
    /// The channels that the cuts were made from.
    pub(super) layers: &'a [CalibratedLayer],
    pub(super) observer: &'a dyn ProgressSink,
}

/// A sequence, with the logits of the full model.
struct Example<'a> {
    sequence: Sequence<'a>,
    logits: &'a [f64],
}

/// The sequences that fit and those that check.
struct Parts<'a> {
    fit: Vec<Example<'a>>,
    check: Vec<Example<'a>>,
}

impl<'a> Parts<'a> {
    fn new(data: &LogitData<'a>) -> Self {
        let pairs = data.sequences.iter().zip(data.logits);
        let (mut fit, mut check) = (Vec::new(), Vec::new());
        for (index, (&sequence, logits)) in pairs.take(SEQUENCES_MAX).enumerate() {
            let example = Example { sequence, logits };
            match (index + 1) % CHECK_EVERY {
                0 => check.push(example),
                _ => fit.push(example),
            }
        }
        Self { fit, check }
    }
}

/// One channel's parameters within those of the network.
struct Place<'a> {
    layer: usize,
    channel: usize,
    first: usize,
    full: &'a CalibratedChannel,
    weight: &'a InputWeight,
    /// I L n.
    importance: f64,
}

/// The fitted model, or `None` without enough sequences or without pooled logits, or where the
/// table of gradients would be too large.
pub(super) fn fit_logits(
    data: &LogitData<'_>,
    start: &Model,
) -> Result<Option<(Model, LogitFit)>, CalibrateError> {
    let pooled = start.head().and_then(|head| head.pooling).is_some();
    if !pooled || data.sequences.len() < SEQUENCES_MIN {
        return Ok(None);
    }
    let parts = Parts::new(data);
    let (places, parameters) = places(data, start, parts.fit.len());
    let combinations = combinations(start.classes().unwrap_or(0));
    let rows = parts.fit.len() * combinations.len();
    if parameters == 0 || rows.saturating_mul(parameters) > SLOPES_MAX {
        return Ok(None);
    }
    let fitting = Fitting {
        length: data.calibration.length(),
        parts,
        places,
        combinations,
        observer: &Within(data.observer),
    };
    data.observer.begin(Stage::LogitFit, STEPS_MAX);
    let mut model = start.clone();
    let before = fitting.change(&model)?;
    let mut fit = LogitFit {
        steps: 0,
        parameters,
        prices: Vec::new(),
        before,
        after: before,
    };
    while fit.steps < STEPS_MAX && fit.after > 0.0 {
        let Some(step) = fitting.best_step(&model, fit.after)? else {
            break;
        };
        model = step.model;
        fit.after = step.change;
        fit.prices.push(step.price);
        fit.steps += 1;
        data.observer.step()?;
    }
    Ok(Some((model, fit)))
}

/// A model after one more step.
struct Stepped {
    model: Model,
    price: f64,
    /// Relative change of the logits over the held-out sequences.
    change: f64,
}

/// The parts of a fit that stay the same from step to step.
struct Fitting<'a> {
    length: usize,
    parts: Parts<'a>,
    places: Vec<Place<'a>>,
    combinations: Vec<Vec<f64>>,
    observer: &'a dyn ProgressSink,
}

impl Fitting<'_> {
    /// The step of the best price; `None` where none is better than `change` by enough.
    fn best_step(&self, model: &Model, change: f64) -> Result<Option<Stepped>, CalibrateError> {
        let problem = Problem::new(self, model)?;
        let mut best: Option<Stepped> = None;
        for price in PRICES {
            let Some(candidate) = problem.moved(model, &self.places, price) else {
                continue;
            };
            let after = self.change(&candidate)?;
            let known = best.as_ref().map(|known| known.change);
            if after < known.unwrap_or(change * (1.0 - GAIN_MIN)) {
                best = Some(Stepped {
                    model: candidate,
                    price,
                    change: after,
                });
            }
        }
        Ok(best)
    }

    /// The relative change of the logits over the held-out sequences.
    fn change(&self, model: &Model) -> Result<f64, CalibrateError> {
        let network = Network::new(model, self.length, InferPath::Auto)?.observed(self.observer);
        let check = &self.parts.check;
        let sequences: Vec<_> = check.iter().map(|example| example.sequence).collect();
        let full: Vec<_> = check.iter().map(|example| example.logits).collect();
        let changed = relative_change(&full, &network.logits_of_all(&sequences)?);
        Ok(if changed.is_finite() {
            changed
        } else {
            f64::INFINITY
        })
    }
}

/// The channels that were cut, have an input and change the logits, with the number of all their
/// parameters.
fn places<'a>(data: &LogitData<'a>, model: &Model, sequences: usize) -> (Vec<Place<'a>>, usize) {
    let mut places = Vec::new();
    let mut first = 0;
    let samples = (data.calibration.length() * sequences) as f64;
    for (layer, block) in model.blocks().iter().enumerate() {
        let importance = &data.calibration.layers()[layer].importance;
        let channels = data.layers[layer].channels().iter().zip(block.systems());
        for (channel, ((full, system), importance)) in channels.zip(importance).enumerate() {
            let whole = system.order() >= full.system().order();
            if let Some(weight) = full.weight()
                && *importance > 0.0
                && !whole
            {
                places.push(Place {
                    layer,
                    channel,
                    first,
                    full,
                    weight,
                    importance: importance * samples,
                });
                first += 2 * system.order() + 1;
            }
        }
    }
    (places, first)
}

/// Combinations whose squares sum to the square of the centred logits: each of these, or, where
/// there are many classes, random signs over √m, with which they do so in the mean.
fn combinations(classes: usize) -> Vec<Vec<f64>> {
    if classes <= COMBINATIONS_MAX {
        let one = |k| Vec::from_iter((0..classes).map(|c| f64::from(u8::from(c == k))));
        return (0..classes).map(|k| centred(&one(k))).collect();
    }
    let scale = (COMBINATIONS_MAX as f64).sqrt().recip();
    let signs = |index| {
        combination(index, classes)
            .iter()
            .map(|sign| sign * scale)
            .collect()
    };
    (0..COMBINATIONS_MAX).map(signs).collect()
}

/// The linear least squares problem of one step, in coordinates in which the price is ρ ‖δ‖².
struct Problem {
    /// J, one row for each sequence and combination.
    slopes: DMatrix<f64>,
    /// Jᵀ J or J Jᵀ, the smaller.
    gram: DMatrix<f64>,
    residual: DVector<f64>,
    /// Factors L_h of I_h L n G_h = L_h L_hᵀ; δ_h = L_h^{−T} times the new coordinates.
    factors: Vec<DMatrix<f64>>,
}

impl Problem {
    fn new(fitting: &Fitting<'_>, model: &Model) -> Result<Self, CalibrateError> {
        let Fitting {
            places,
            combinations,
            ..
        } = fitting;
        let network = Network::new(model, fitting.length, InferPath::Auto)?;
        let examples = fitting.parts.fit.par_iter();
        let rows = examples.map(|example| {
            fitting.observer.check()?;
            rows_of(&network, example, places, combinations)
        });
        let rows = rows.collect::<Result<Vec<_>, _>>()?;
        let parameters = rows.first().map_or(0, |(slopes, _)| slopes.nrows());
        let each = combinations.len();
        let mut slopes = DMatrix::zeros(parameters, rows.len() * each);
        let mut residual = DVector::zeros(rows.len() * each);
        for (s, (own, rest)) in rows.iter().enumerate() {
            slopes.columns_mut(s * each, each).copy_from(own);
            residual.rows_mut(s * each, each).copy_from(rest);
        }
        let factors = places.par_iter().map(|place| factor(model, place));
        let factors: Vec<_> = factors.collect();
        for (place, factor) in places.iter().zip(&factors) {
            let mut own = slopes.rows_mut(place.first, factor.nrows());
            factor.solve_lower_triangular_mut(&mut own);
        }
        let across = slopes.transpose();
        let gram = match slopes.nrows() <= slopes.ncols() {
            true => gram_matrix(&across),
            false => gram_matrix(&slopes),
        };
        Ok(Self {
            slopes: across,
            gram,
            residual,
            factors,
        })
    }

    /// The model after the step of this price; `None` where it is not finite.
    fn moved(&self, model: &Model, places: &[Place<'_>], price: f64) -> Option<Model> {
        let mut priced = self.gram.clone();
        (0..priced.nrows()).for_each(|i| priced[(i, i)] += price);
        let root = Cholesky::new(priced)?;
        // (JᵀJ + ρ)⁻¹ Jᵀ = Jᵀ (JJᵀ + ρ)⁻¹
        let step = match self.slopes.ncols() <= self.slopes.nrows() {
            true => root.solve(&self.slopes.tr_mul(&self.residual)),
            false => self.slopes.tr_mul(&root.solve(&self.residual)),
        };
        let blocks = model.blocks().iter();
        let mut systems: Vec<_> = blocks.map(|block| block.systems().to_vec()).collect();
        for (place, factor) in places.iter().zip(&self.factors) {
            let mut own = step.rows(place.first, factor.nrows()).into_owned();
            factor.tr_solve_lower_triangular_mut(&mut own);
            let system = &mut systems[place.layer][place.channel];
            *system = with_moved_residues(system, own.as_slice()).ok()?;
        }
        let moved = model.blocks().iter().zip(systems);
        let moved = moved.map(|(block, systems)| block.with_systems(systems, Vec::new()));
        model
            .with_blocks(moved.collect::<Result<_, _>>().ok()?)
            .ok()
    }
}

/// Slopes of the combinations by all parameters, parameters × combinations, and what is left of the
/// full model's combinations, for one sequence.
fn rows_of(
    network: &Network<'_>,
    example: &Example<'_>,
    places: &[Place<'_>],
    combinations: &[Vec<f64>],
) -> Result<(DMatrix<f64>, DVector<f64>), CalibrateError> {
    let model = network.model();
    let system = |place: &Place<'_>| &model.blocks()[place.layer].systems()[place.channel];
    let last = places.last();
    let parameters = last.map_or(0, |place| place.first + 2 * system(place).order() + 1);
    let mut slopes = DMatrix::zeros(parameters, combinations.len());
    let reduced =
        network.differentiate(example.sequence, combinations, |layer, input, gradients| {
            for place in places.iter().filter(|place| place.layer == layer) {
                let input = input.column(place.channel);
                let output = output_slopes(system(place), input.as_slice());
                for (mut column, gradient) in slopes.column_iter_mut().zip(&gradients) {
                    let own = output.tr_mul(&gradient.column(place.channel));
                    column.rows_mut(place.first, own.nrows()).copy_from(&own);
                }
            }
        })?;
    let left = |combination: &Vec<f64>| {
        let terms = combination.iter().zip(example.logits.iter().zip(&reduced));
        terms
            .map(|(c, (full, reduced))| c * (full - reduced))
            .sum::<f64>()
    };
    let residual = DVector::from_iterator(combinations.len(), combinations.iter().map(left));
    Ok((slopes, residual))
}

/// The Cholesky factor of a channel's price. Every weight costs a little by itself too, so that
/// columns that are all but parallel (of fast poles, say) do not get large weights that cancel.
fn factor(model: &Model, place: &Place<'_>) -> DMatrix<f64> {
    let system: &DiagonalSystem = &model.blocks()[place.layer].systems()[place.channel];
    let mut price = residue_gram(place.full.system(), system, place.weight);
    price *= place.importance;
    let last = price.nrows() - 1;
    for n in 0..last / 2 {
        let (re, im) = (2 * n, 2 * n + 1);
        let share = PARALLEL * (price[(re, re)] + price[(im, im)]);
        price[(re, re)] += share;
        price[(im, im)] += share;
    }
    price[(last, last)] *= 1.0 + PARALLEL;
    let root = Cholesky::new(price.clone());
    root.map_or_else(
        || DMatrix::from_diagonal(&price.diagonal().map(|p| p.abs().sqrt())),
        |root| root.unpack(),
    )
}
