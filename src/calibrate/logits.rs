//! Fitting all channels of a reduced network together to the logits of the full one.

use hankelite_control::gram_matrix;
use nalgebra::{Cholesky, DMatrix, DVector};
use rayon::prelude::*;
use serde::Serialize;

use crate::calibrate::CalibrateError;
use crate::calibrate::parameters::{FittedNumbers, LogitData, Parameters, Prices};
use crate::infer::{Network, Path as InferPath, Setup, combination};
use crate::model::{Model, Sequence};
use crate::progress::{ProgressSink, Within, stage};

/// How long a fit goes on, and by what.
struct Limits {
    /// Steps at most.
    steps: usize,
    /// More sequences than this are not used for the gradients.
    sequences: usize,
    /// Of more classes than this, as many random combinations are used, other ones for each
    /// sequence.
    combinations: usize,
    /// The prices ρ that are tried.
    prices: &'static [f64],
    /// Where a step left the logits nearer than this share of what was left before to what the
    /// gradients promised, gradients taken again would lead to the same place, and the fit ends.
    straight: f64,
    /// Where the steps by some gradients bring the checked logits nearer by less than this share, they are
    /// the last: others would hardly be worth their gradients.
    last: f64,
    /// Whether steps go on by the same gradients as long as they help, before these are taken again. A step
    /// costs a few forward passes, gradients five times as many.
    again: bool,
}

/// Residues and feedthroughs alone.
const RESIDUES: Limits = Limits {
    steps: 4,
    sequences: 200,
    combinations: 10,
    prices: &[1000.0, 100.0, 10.0, 1.0],
    straight: 0.1,
    last: 0.05,
    again: false,
};

/// Biases and norms, too: more numbers, by more sequences with fewer combinations each.
const ALL_NUMBERS: Limits = Limits {
    steps: 8,
    sequences: 1000,
    combinations: 3,
    prices: &[1e4, 1000.0, 100.0, 10.0, 1.0],
    straight: 0.0,
    last: 0.05,
    again: true,
};

/// The same before maps are rounded. Another fit follows, so few gradients do.
const BEFORE_ROUNDING: Limits = Limits {
    last: 0.2,
    ..ALL_NUMBERS
};

/// Every so many sequences one is kept to check the others.
const CHECK_EVERY: usize = 4;

/// Fewer sequences than this are too few to fit and check.
const SEQUENCES_MIN: usize = 8;

/// A step must bring the checked logits nearer by this share.
const GAIN_MIN: f64 = 0.02;

/// Sequences whose gradients are taken before they are put in their places.
const TOGETHER: usize = 64;

/// Numbers in the table of gradients at most, 1 GiB.
pub(super) const SLOPES_MAX: usize = 1 << 27;

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
/// ([`hankelite_control::residue_gram`]) and I_h its importance ([`crate::advanced::importance`]), so
/// the second term is what the change of the layers' outputs would do to the logits were it noise:
/// the larger ρ, the less the gradients are trusted. A quarter of the sequences is held out: it
/// chooses ρ, and ends the steps by some gradients where no step brings its logits nearer by two per
/// cent. Gradients are taken again where the steps by the last ones brought five per cent or more (a fifth,
/// before maps are rounded). Of residues and feedthroughs alone one step is taken by each, and the fit
/// ends, too, where the logits of the others came to within a tenth of what was left of them to where the
/// gradients had them, unless ρ was the largest. Labels are not used.
///
/// Layers whose channels share modes are fitted by gradient descent instead (equations 36 and 37 of
/// `docs/theory.md`): `steps` is the step that was kept, and there are no prices.
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
pub(crate) fn relative_change(full: &[impl AsRef<[f64]>], reduced: &[impl AsRef<[f64]>]) -> f64 {
    let squares = |difference: &[f64]| centred(difference).iter().map(|d| d * d).sum::<f64>();
    let (mut change, mut size) = (0.0, 0.0);
    for (full, reduced) in full.iter().zip(reduced) {
        let (full, reduced) = (full.as_ref(), reduced.as_ref());
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

pub(super) fn centred(values: &[f64]) -> Vec<f64> {
    let mean = match values.len() {
        0 | 1 => 0.0,
        classes => values.iter().sum::<f64>() / classes as f64,
    };
    values.iter().map(|value| value - mean).collect()
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
    fn new(data: &LogitData<'a>, limits: &Limits) -> Self {
        let pairs = data.sequences.iter().zip(data.logits);
        let (mut fit, mut check) = (Vec::new(), Vec::new());
        for (index, (&sequence, logits)) in pairs.take(limits.sequences).enumerate() {
            let example = Example { sequence, logits };
            match is_checked(index) {
                true => check.push(example),
                false => fit.push(example),
            }
        }
        // A sequence that takes part cannot check.
        let repeats = |e: &Example<'_>| fit.iter().any(|own| own.sequence == e.sequence);
        check.retain(|example| !repeats(example));
        Self { fit, check }
    }
}

fn is_checked(index: usize) -> bool {
    (index + 1).is_multiple_of(CHECK_EVERY)
}

/// A fitted model.
pub(super) struct Fitted {
    pub(super) model: Model,
    pub(super) fit: LogitFit,
    /// Relative change of the logits over all sequences; absent where some were not used, or nothing
    /// changed.
    pub(super) change: Option<f64>,
}

/// The fitted model, or `None` without enough sequences, where none differs from those that take part,
/// without pooled logits, or where the table of gradients would be too large.
pub(super) fn fit_logits(
    data: &LogitData<'_>,
    start: &Model,
) -> Result<Option<Fitted>, CalibrateError> {
    let pooled = start.head().and_then(|head| head.pooling).is_some();
    if !pooled || data.sequences.len() < SEQUENCES_MIN {
        return Ok(None);
    }
    let limits = match data.fitted {
        FittedNumbers::Residues => &RESIDUES,
        FittedNumbers::BeforeRounding => &BEFORE_ROUNDING,
        FittedNumbers::All => &ALL_NUMBERS,
    };
    let parts = Parts::new(data, limits);
    if parts.check.is_empty() {
        return Ok(None);
    }
    let parameters = Parameters::new(data, start, parts.fit.len());
    let combinations = Combinations {
        classes: start.classes().unwrap_or(0),
        most: limits.combinations,
    };
    let rows = parts.fit.len() * combinations.each();
    let count = parameters.count();
    if count == 0 || rows.saturating_mul(count) > SLOPES_MAX {
        return Ok(None);
    }
    let all = parts.fit.len() + parts.check.len() == data.sequences.len();
    let fitting = Fitting {
        limits,
        length: data.summary.length,
        parts,
        parameters,
        combinations,
        setup: Setup::default(),
        observer: &Within(data.observer),
    };
    data.observer.begin(stage::LOGIT_FIT, limits.steps);
    let (place, fit) = fitting.run(start, data.observer)?;
    let change = (all && fit.steps > 0).then(|| fitting.change_of_all(&place));
    Ok(Some(Fitted {
        model: place.model,
        fit,
        change,
    }))
}

/// A model on the way, with its logits over the sequences that check and those that fit.
#[derive(Clone)]
struct Place {
    model: Model,
    checked: Vec<Vec<f64>>,
    /// Empty where they are not known yet.
    fitted: Vec<Vec<f64>>,
}

/// A model after one more step.
struct Stepped {
    place: Place,
    price: f64,
    /// The step in the coordinates of the problem.
    coordinates: DVector<f64>,
    /// Relative change of the logits over the held-out sequences.
    change: f64,
}

/// The parts of a fit that stay the same from step to step.
struct Fitting<'a> {
    limits: &'static Limits,
    length: usize,
    parts: Parts<'a>,
    parameters: Parameters<'a>,
    combinations: Combinations,
    /// Of all networks on the way.
    setup: Setup,
    observer: &'a dyn ProgressSink,
}

impl Fitting<'_> {
    /// Steps from a model on, as long as they help.
    fn run(
        &self,
        start: &Model,
        observer: &dyn ProgressSink,
    ) -> Result<(Place, LogitFit), CalibrateError> {
        let mut start = Place {
            checked: self.logits(start, &self.parts.check)?,
            fitted: Vec::new(),
            model: start.clone(),
        };
        let mut fit = LogitFit {
            steps: 0,
            parameters: self.parameters.count(),
            prices: Vec::new(),
            before: self.change(&start.checked),
            after: self.change(&start.checked),
        };
        let mut place = start.clone();
        while fit.steps < self.limits.steps && fit.after > 0.0 {
            let mut problem = Problem::new(self, &mut place)?;
            if fit.steps == 0 {
                start.fitted.clone_from(&place.fitted);
            }
            let (before, mut is_straight) = (fit.after, false);
            while let Some(mut step) = self.best_step(&problem, &place.model, fit.after)? {
                let helped = step.change <= (1.0 - self.limits.last) * before;
                let trusted = step.price < self.limits.prices[0];
                is_straight = helped && trusted && self.is_straight(&problem, &mut step)?;
                place = step.place;
                fit.after = step.change;
                fit.prices.push(step.price);
                fit.steps += 1;
                observer.step()?;
                if !self.limits.again || fit.steps == self.limits.steps {
                    break;
                }
                place.fitted = self.logits(&place.model, &self.parts.fit)?;
                problem.residual = self.residual(&place.fitted);
            }
            if is_straight || fit.after >= (1.0 - self.limits.last) * before {
                break;
            }
        }
        if fit.steps > 0 && place.fitted.is_empty() {
            place.fitted = self.logits(&place.model, &self.parts.fit)?;
        }
        // What the held-out sequences gain must not be lost on the others.
        if fit.steps > 0 && self.change_of_all(&place) >= self.change_of_all(&start) {
            fit.steps = 0;
            fit.prices.clear();
            fit.after = fit.before;
            return Ok((start, fit));
        }
        Ok((place, fit))
    }

    /// Whether a step ended so near to where the gradients had it that others would lead no farther.
    fn is_straight(&self, problem: &Problem, step: &mut Stepped) -> Result<bool, CalibrateError> {
        if self.limits.straight == 0.0 {
            return Ok(false);
        }
        step.place.fitted = self.logits(&step.place.model, &self.parts.fit)?;
        Ok(problem.missed(self, step) < self.limits.straight)
    }

    /// The step of the best price; `None` where none is better than `change` by enough.
    fn best_step(
        &self,
        problem: &Problem,
        model: &Model,
        change: f64,
    ) -> Result<Option<Stepped>, CalibrateError> {
        let mut best: Option<Stepped> = None;
        for &price in self.limits.prices {
            let Some(coordinates) = problem.coordinates(price) else {
                continue;
            };
            let Some(model) = problem.moved(model, &self.parameters, &coordinates) else {
                continue;
            };
            let checked = self.logits(&model, &self.parts.check)?;
            let after = self.change(&checked);
            let known = best.as_ref().map(|known| known.change);
            if after < known.unwrap_or(change * (1.0 - GAIN_MIN)) {
                let place = Place {
                    model,
                    checked,
                    fitted: Vec::new(),
                };
                best = Some(Stepped {
                    place,
                    price,
                    coordinates,
                    change: after,
                });
            }
        }
        Ok(best)
    }

    fn logits(
        &self,
        model: &Model,
        examples: &[Example<'_>],
    ) -> Result<Vec<Vec<f64>>, CalibrateError> {
        let network = Network::with_setup(model, self.length, InferPath::Auto, &self.setup)?;
        let network = network.observed(self.observer);
        let sequences: Vec<_> = examples.iter().map(|example| example.sequence).collect();
        Ok(network.logits_of_all(&sequences)?)
    }

    /// What is left of the full model's combinations over the sequences that fit.
    fn residual(&self, fitted: &[Vec<f64>]) -> DVector<f64> {
        let each = self.combinations.each();
        let mut residual = DVector::zeros(fitted.len() * each);
        for (s, (example, logits)) in self.parts.fit.iter().zip(fitted).enumerate() {
            let left = left(example.logits, logits, &self.combinations.of(s));
            residual.rows_mut(s * each, each).copy_from(&left);
        }
        residual
    }

    /// The relative change of the logits over the held-out sequences.
    fn change(&self, checked: &[Vec<f64>]) -> f64 {
        let full = self.parts.check.iter().map(|example| example.logits);
        finite_change(&full.collect::<Vec<_>>(), checked)
    }

    /// The same over all sequences, summed in their order.
    fn change_of_all(&self, place: &Place) -> f64 {
        let Parts { fit, check } = &self.parts;
        let fitted = fit.iter().zip(&place.fitted);
        let mut parts = [fitted, check.iter().zip(&place.checked)];
        let all = (0..fit.len() + check.len())
            .filter_map(|index| parts[usize::from(is_checked(index))].next());
        let (full, reduced): (Vec<_>, Vec<_>) = all
            .map(|(example, logits)| (example.logits, logits.as_slice()))
            .unzip();
        finite_change(&full, &reduced)
    }
}

/// As [`relative_change`], infinite where it is no number.
fn finite_change(full: &[&[f64]], reduced: &[impl AsRef<[f64]>]) -> f64 {
    let changed = relative_change(full, reduced);
    match changed.is_finite() {
        true => changed,
        false => f64::INFINITY,
    }
}

/// Combinations of the logits whose squares sum to the square of the centred logits: an orthonormal
/// basis of what is centred (Helmert's), one fewer than there are classes, or, where that is more than are
/// taken, random signs, other ones for each sequence, with which they do so in the mean.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Combinations {
    /// Classes of the model.
    pub(crate) classes: usize,
    /// Combinations of a sequence at most.
    pub(crate) most: usize,
}

impl Combinations {
    /// Combinations of a sequence.
    pub(crate) fn each(self) -> usize {
        self.most.min(self.exact())
    }

    /// Combinations that hold all of the centred logits.
    fn exact(self) -> usize {
        self.classes.max(2) - 1
    }

    /// Those of one sequence.
    pub(crate) fn of(self, sequence: usize) -> Vec<Vec<f64>> {
        let Self { classes, most } = self;
        if classes == 1 {
            return vec![vec![1.0]];
        }
        if self.exact() <= most {
            return (1..classes).map(|k| helmert(k, classes)).collect();
        }
        let scale = (most as f64).sqrt().recip();
        let signs = (0..most).map(|index| {
            let signs = combination(sequence * most + index, classes);
            signs.iter().map(|sign| sign * scale).collect()
        });
        signs.collect()
    }
}

/// The first k numbers against the one behind them, of length 1.
fn helmert(k: usize, classes: usize) -> Vec<f64> {
    let scale = ((k * (k + 1)) as f64).sqrt().recip();
    let mut own = vec![0.0; classes];
    own[..k].fill(scale);
    own[k] = -(k as f64) * scale;
    own
}

/// The linear least squares problem of one step, in coordinates in which the price is ρ ‖δ‖².
struct Problem {
    /// Jᵀ, one column for each sequence and combination.
    slopes: DMatrix<f64>,
    /// Jᵀ J or J Jᵀ, the smaller.
    gram: DMatrix<f64>,
    residual: DVector<f64>,
    /// δ in terms of the new coordinates.
    prices: Prices,
}

impl Problem {
    /// At a place, of which the logits are noted.
    fn new(fitting: &Fitting<'_>, place: &mut Place) -> Result<Self, CalibrateError> {
        let model = &place.model;
        let (length, setup) = (fitting.length, &fitting.setup);
        let network = Network::with_setup(model, length, InferPath::Auto, setup)?;
        let (fit, each) = (&fitting.parts.fit, fitting.combinations.each());
        let mut slopes = DMatrix::zeros(fitting.parameters.count(), fit.len() * each);
        let mut squares = Vec::with_capacity(fit.len());
        place.fitted.clear();
        for (first, some) in fit.chunks(TOGETHER).enumerate() {
            let own = some.par_iter().enumerate().map(|(s, example)| {
                fitting.observer.check()?;
                let combinations = fitting.combinations.of(first * TOGETHER + s);
                let parameters = &fitting.parameters;
                Ok(parameters.slopes(&network, example.sequence, &combinations)?)
            });
            for own in own.collect::<Result<Vec<_>, CalibrateError>>()? {
                let mut columns = slopes.columns_mut(squares.len() * each, each);
                columns.copy_from(&own.slopes);
                place.fitted.push(own.logits);
                squares.push(own.squares);
            }
        }
        let prices = fitting.parameters.prices(model, squares.iter())?;
        prices.divide(&mut slopes);
        let gram = match slopes.nrows() <= slopes.ncols() {
            true => gram_matrix(&slopes.transpose()),
            false => gram_matrix(&slopes),
        };
        Ok(Self {
            slopes,
            gram,
            residual: fitting.residual(&place.fitted),
            prices,
        })
    }

    /// The step of a price; `None` where the equations cannot be solved.
    fn coordinates(&self, price: f64) -> Option<DVector<f64>> {
        let mut priced = self.gram.clone();
        (0..priced.nrows()).for_each(|i| priced[(i, i)] += price);
        let root = Cholesky::new(priced)?;
        // (JᵀJ + ρ)⁻¹ Jᵀ = Jᵀ (JJᵀ + ρ)⁻¹
        Some(match self.slopes.nrows() <= self.slopes.ncols() {
            true => root.solve(&(&self.slopes * &self.residual)),
            false => &self.slopes * root.solve(&self.residual),
        })
    }

    /// The model after a step; `None` where it is not finite.
    fn moved(
        &self,
        model: &Model,
        parameters: &Parameters<'_>,
        coordinates: &DVector<f64>,
    ) -> Option<Model> {
        let mut step = coordinates.clone();
        self.prices.restore(&mut step);
        parameters.moved(model, step.as_slice())
    }

    /// How far the combinations ended from where the gradients had them, as a share of what was left
    /// of them before.
    fn missed(&self, fitting: &Fitting<'_>, step: &Stepped) -> f64 {
        let gap = self.slopes.tr_mul(&step.coordinates) - &self.residual;
        let ended = fitting.residual(&step.place.fitted);
        (gap + ended).norm() / self.residual.norm()
    }
}

/// What is left of the full model's combinations.
pub(crate) fn left(full: &[f64], reduced: &[f64], combinations: &[Vec<f64>]) -> DVector<f64> {
    let left = combinations.iter().map(|combination| {
        let terms = combination.iter().zip(full.iter().zip(reduced));
        terms
            .map(|(c, (full, reduced))| c * (full - reduced))
            .sum::<f64>()
    });
    DVector::from_iterator(combinations.len(), left)
}
