//! The systems of all layers fitted together to the logits of the full network.

use std::ops::Range;

use nalgebra::DVector;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::calibrate::logits::{centred, relative_change};
use crate::calibrate::mimo::fit::CHECK_EVERY;
use crate::calibrate::mimo::place::{Numbered, Place, PlacePrice, place_prices};
use crate::calibrate::mimo::unit::Unit;
use crate::calibrate::{CalibrateError, LogitFit};
use crate::infer::{Network, Path as InferPath, Setup, SystemSlopes};
use crate::model::{Block, Model, Sequence};
use crate::progress::{ProgressSink, Within, stage};

/// Fewer sequences than this are too few to fit and check.
const SEQUENCES_MIN: usize = 10;

/// Steps of the descent.
const STEPS: usize = 320;

/// The share of the sequences that a step takes, as a divisor. With half as many sequences deep cuts lose
/// accuracy.
const SHARE: usize = 10;

/// Groups of sequences of a step whose slopes are summed on one thread, in order.
const GROUPS: usize = 8;

/// Steps between two looks at the held-out sequences.
const LOOK_EVERY: usize = 20;

/// The longest step of a coordinate, relative to the root mean square of those of C and to the square root
/// of the change that is left: a network that is near needs short steps.
const RATE: f64 = 0.085;

/// The share of all steps over which their length rises.
const WARM_UP: f64 = 0.1;

/// The weight of the residual stream beside the logits.
const STREAM_SHARE: f64 = 0.3;

/// Bytes that the full network's residual stream may take.
const STREAMS_MAX: usize = 1 << 30;

/// A network to be fitted, and what it is fitted to.
pub(super) struct LogitProblem<'a> {
    pub(super) full: &'a Model,
    pub(super) sequences: &'a [Sequence<'a>],
    pub(super) logits: &'a [Vec<f64>],
    pub(super) length: usize,
    /// Of the full network: their gradients scale the parameters.
    pub(super) layers: &'a [Vec<Unit>],
    pub(super) observer: &'a dyn ProgressSink,
}

/// All systems of all layers, by Adam on
///
/// ```text
/// Σ ‖Δz‖²/Σ ‖z‖² + 0.3 mean_l Σ ‖Δx_l‖²/Σ ‖x_l‖²
/// ```
///
/// z being the centred logits and x_l the residual stream behind layer l. Coordinates are those of
/// [`PlacePrice`], in which steps of all numbers change the logits about alike. A step takes a tenth of the
/// sequences, and its length falls as half a cosine. Without the second term the fit overfits its
/// sequences. A fifth of the sequences is held out and chooses the step. `None` with too few sequences, and
/// where each held-out one is also among the others.
pub(super) fn fit_outputs(
    problem: &LogitProblem<'_>,
    start: &Model,
) -> Result<Option<(Model, LogitFit)>, CalibrateError> {
    if problem.sequences.len() < SEQUENCES_MIN {
        return Ok(None);
    }
    let mut fitting = Fitting::new(problem, start)?;
    if fitting.held_out.is_empty() {
        return Ok(None);
    }
    problem.observer.begin(stage::LOGIT_FIT, STEPS);
    let before = fitting.held_out_change(start)?;
    let mut best = (start.clone(), before);
    fitting.parameters = Parameters::new(problem, start, &fitting.examples)?;
    let mut fit = LogitFit {
        steps: fitting.descend(&mut best)?,
        parameters: fitting.parameters.count,
        prices: Vec::new(),
        before,
        after: before,
    };
    fit.after = best.1;
    Ok(Some((best.0, fit)))
}

/// A sequence of the fit, with what the full network makes of it.
struct Example<'a> {
    sequence: Sequence<'a>,
    /// Centred.
    logits: Vec<f64>,
    /// Steps that are no padding.
    steps: usize,
    /// Behind every layer L × width, by rows.
    streams: Vec<f32>,
}

struct Fitting<'a> {
    problem: &'a LogitProblem<'a>,
    examples: Vec<Example<'a>>,
    held_out: Vec<usize>,
    /// Σ ‖z‖², and Σ ‖x_l‖² of every layer.
    sizes: (f64, Vec<f64>),
    places: Vec<StreamPlace>,
    parameters: Parameters<'a>,
    /// Of the networks of all steps, whose buffers are the same.
    setup: Setup,
}

/// Where the stream behind a layer stands among those of all layers.
#[derive(Clone, Copy)]
struct StreamPlace {
    first: usize,
    width: usize,
}

impl StreamPlace {
    /// The steps that are no padding.
    fn of(self, steps: usize) -> Range<usize> {
        self.first..self.first + steps * self.width
    }
}

fn stream_places(problem: &LogitProblem<'_>) -> Vec<StreamPlace> {
    let mut first = 0;
    let widths = problem.full.blocks().iter().map(Block::width);
    let places = widths.map(|width| {
        let place = StreamPlace { first, width };
        first += width * problem.length;
        place
    });
    places.collect()
}

/// Which numbers move, in coordinates in which they change the logits about alike.
struct Parameters<'a> {
    start: Model,
    places: Vec<Place<'a>>,
    prices: Vec<PlacePrice>,
    count: usize,
}

impl<'a> Parameters<'a> {
    fn none(start: &Model) -> Self {
        Self {
            start: start.clone(),
            places: Vec::new(),
            prices: Vec::new(),
            count: 0,
        }
    }

    fn new(
        problem: &LogitProblem<'a>,
        start: &Model,
        examples: &[Example<'_>],
    ) -> Result<Self, CalibrateError> {
        let mut made = Self::none(start);
        for (layer, units) in problem.layers.iter().enumerate() {
            for (index, unit) in units.iter().enumerate() {
                let system = Numbered { layer, index, unit };
                let place = Place::new(system, &start.blocks()[layer], made.count);
                made.count += place.count;
                made.places.push(place);
            }
        }
        let network = Network::new(start, problem.length, InferPath::Auto)?;
        let seen: Vec<_> = examples.iter().map(|example| example.sequence).collect();
        made.prices = place_prices(&made.places, &network, &seen)?;
        Ok(made)
    }

    /// The root mean square of the coordinates of all C at the start.
    fn unit(&self) -> f64 {
        let sizes = self.prices.iter().map(|price| price.size);
        let (squares, counts): (Vec<f64>, Vec<usize>) = sizes.unzip();
        (squares.iter().sum::<f64>() / counts.iter().sum::<usize>().max(1) as f64).sqrt()
    }

    /// The network at some coordinates; `None` where it is not finite.
    fn model(&self, at: &DVector<f64>) -> Option<Model> {
        let mut step = at.clone();
        self.prices
            .iter()
            .for_each(|price| price.restore(&mut step));
        let blocks = self.start.blocks();
        let mut parts: Vec<_> = blocks.iter().map(|b| b.clone().into_parts()).collect();
        for place in &self.places {
            place.moved(
                &blocks[place.of.layer],
                &mut parts[place.of.layer],
                step.as_slice(),
            )?;
        }
        let blocks = parts.into_iter().map(Block::new);
        self.start
            .with_blocks(blocks.collect::<Result<_, _>>().ok()?)
            .ok()
    }
}

impl<'a> Fitting<'a> {
    fn new(problem: &'a LogitProblem<'a>, start: &Model) -> Result<Self, CalibrateError> {
        let network = Network::new(problem.full, problem.length, InferPath::Auto)?;
        let widths = problem.full.blocks().iter().map(Block::width);
        let bytes = 4 * problem.length * widths.sum::<usize>();
        let most = (STREAMS_MAX / bytes.max(1)).max(SEQUENCES_MIN);
        let held_out = |index: &usize| (index + 1).is_multiple_of(CHECK_EVERY);
        let all: Vec<usize> = (0..problem.sequences.len().min(most)).collect();
        let fit: Vec<usize> = all.iter().copied().filter(|i| !held_out(i)).collect();
        let of = |index: usize| problem.sequences[index];
        let examples = fit.par_iter().map(|&index| {
            let sequence = of(index);
            let signal = network.encode(sequence)?;
            Ok(Example {
                sequence,
                logits: centred(&problem.logits[index]),
                steps: signal.steps,
                streams: network.streams(sequence)?,
            })
        });
        let examples: Vec<Example<'_>> = examples.collect::<Result<_, CalibrateError>>()?;
        let logits = examples.iter().flat_map(|e| &e.logits).map(|z| z * z).sum();
        let streams = stream_places(problem).into_iter().map(|place| {
            let own = examples.iter().map(|e| &e.streams[place.of(e.steps)]);
            own.flatten().map(|x| f64::from(*x).powi(2)).sum()
        });
        Ok(Self {
            sizes: (logits, streams.collect()),
            // A sequence that is fitted cannot check.
            held_out: all
                .into_iter()
                .filter(held_out)
                .filter(|&index| !fit.iter().any(|&own| of(own) == of(index)))
                .collect(),
            places: stream_places(problem),
            examples,
            problem,
            parameters: Parameters::none(start),
            setup: Setup::default(),
        })
    }

    fn network<'m>(&self, model: &'m Model) -> Result<Network<'m>, CalibrateError> {
        let length = self.problem.length;
        Ok(Network::with_setup(
            model,
            length,
            InferPath::Auto,
            &self.setup,
        )?)
    }

    /// The relative change of the logits of the held-out sequences.
    fn held_out_change(&self, model: &Model) -> Result<f64, CalibrateError> {
        let within = Within(self.problem.observer);
        let network = self.network(model)?.observed(&within);
        let held_out = self.held_out.iter();
        let sequences: Vec<_> = held_out.map(|&i| self.problem.sequences[i]).collect();
        let full: Vec<_> = self
            .held_out
            .iter()
            .map(|&i| &self.problem.logits[i])
            .collect();
        let change = relative_change(&full, &network.logits_of_all(&sequences)?);
        Ok(if change.is_finite() {
            change
        } else {
            f64::INFINITY
        })
    }

    /// The derivatives of the loss of some examples; `None` where the network is not finite.
    fn slope(
        &self,
        at: &DVector<f64>,
        some: &[usize],
    ) -> Result<Option<DVector<f64>>, CalibrateError> {
        let Some(model) = self.parameters.model(at) else {
            return Ok(None);
        };
        let network = self.network(&model)?;
        let places = &self.parameters.places;
        let groups = some
            .par_chunks(some.len().div_ceil(GROUPS).max(1))
            .map(|own| {
                let mut slope = DVector::zeros(self.parameters.count);
                let mut add = |pulled: &[SystemSlopes]| {
                    for place in places {
                        let own =
                            place.slopes(&model.blocks()[place.of.layer], &pulled[place.of.layer]);
                        let mut into = slope.rows_mut(place.first, place.count);
                        into += DVector::from_vec(own);
                    }
                };
                let mut sums: Vec<SystemSlopes> = Vec::new();
                for &index in own {
                    self.problem.observer.check()?;
                    let example = &self.examples[index];
                    let pulled = network.pulled_back(example.sequence, |logits, streams| {
                        self.loss_slopes(example, logits, streams)
                    })?;
                    // A few in single precision; the others one by one.
                    match pulled
                        .iter()
                        .all(|own| matches!(own, SystemSlopes::Shared(_)))
                    {
                        true if sums.is_empty() => sums = pulled,
                        true => sums
                            .iter_mut()
                            .zip(&pulled)
                            .for_each(|(sum, own)| sum.add(own)),
                        false => add(&pulled),
                    }
                }
                if !sums.is_empty() {
                    add(&sums);
                }
                Ok(slope)
            });
        let groups = groups.collect::<Result<Vec<_>, CalibrateError>>()?;
        let mut slope = DVector::zeros(self.parameters.count);
        groups.iter().for_each(|own| slope += own);
        let prices = &self.parameters.prices;
        prices.iter().for_each(|price| price.divide(&mut slope));
        Ok(slope.iter().all(|g| g.is_finite()).then_some(slope))
    }

    /// The derivatives of the loss of one sequence by logits and residual streams.
    fn loss_slopes(
        &self,
        example: &Example<'_>,
        logits: &[f64],
        streams: &[f32],
    ) -> (Vec<f64>, Vec<f32>) {
        let (logit_size, stream_sizes) = &self.sizes;
        let pairs = centred(logits).into_iter().zip(&example.logits);
        let unit = logit_size.max(f64::MIN_POSITIVE);
        // The difference is centred, so its derivative by the logits is, too.
        let by_logits = pairs.map(|(a, b)| 2.0 * (a - b) / unit).collect();
        let share = STREAM_SHARE / stream_sizes.len().max(1) as f64;
        let mut by_streams = vec![0.0; streams.len()];
        for (place, size) in self.places.iter().zip(stream_sizes) {
            let factor = (2.0 * share / size.max(f64::MIN_POSITIVE)) as f32;
            let own = place.of(example.steps);
            let pairs = streams[own.clone()]
                .iter()
                .zip(&example.streams[own.clone()]);
            for (slope, (own, full)) in by_streams[own].iter_mut().zip(pairs) {
                *slope = factor * (own - full);
            }
        }
        (by_logits, by_streams)
    }

    /// Steps from the start; better models on the held-out sequences take the place of `best`. Gives the
    /// step that was kept.
    fn descend(&self, best: &mut (Model, f64)) -> Result<usize, CalibrateError> {
        let mut at = DVector::zeros(self.parameters.count);
        let mut adam = Adam::new(at.len());
        let unit = self.parameters.unit() * RATE * best.1.min(1.0).sqrt();
        let (mut kept, mut random) = (0, ChaCha8Rng::seed_from_u64(0));
        let mut order: Vec<usize> = (0..self.examples.len()).collect();
        // At least one sequence for each.
        let parts = SHARE.min(order.len()).max(1);
        for step in 1..=STEPS {
            self.problem.observer.step()?;
            let part = (step - 1) % parts;
            if part == 0 {
                order.shuffle(&mut random);
            }
            let some = &order[part * order.len() / parts..(part + 1) * order.len() / parts];
            let Some(slope) = self.slope(&at, some)? else {
                break;
            };
            adam.step(&mut at, &slope, unit * rate(step as f64 / STEPS as f64));
            if step % LOOK_EVERY == 0
                && let Some(model) = self.parameters.model(&at)
            {
                let change = self.held_out_change(&model)?;
                if change < best.1 {
                    *best = (model, change);
                    kept = step;
                }
            }
        }
        Ok(kept)
    }
}

/// The length of a step after a share of all, as a share of the longest.
fn rate(share: f64) -> f64 {
    let fall = 0.5 * (1.0 + (std::f64::consts::PI * share).cos());
    fall * (share / WARM_UP).min(1.0)
}

/// Means of the slopes and of their squares (Kingma and Ba 2015, algorithm 1).
struct Adam {
    first: DVector<f64>,
    second: DVector<f64>,
    steps: i32,
}

impl Adam {
    const DECAYS: [f64; 2] = [0.9, 0.99];

    fn new(count: usize) -> Self {
        Self {
            first: DVector::zeros(count),
            second: DVector::zeros(count),
            steps: 0,
        }
    }

    fn step(&mut self, at: &mut DVector<f64>, slope: &DVector<f64>, rate: f64) {
        self.steps += 1;
        let [one, two] = Self::DECAYS;
        let whole = Self::DECAYS.map(|decay| 1.0 - decay.powi(self.steps));
        let means = self.first.iter_mut().zip(&mut self.second);
        for ((at, g), (first, second)) in at.iter_mut().zip(slope).zip(means) {
            *first = one * *first + (1.0 - one) * g;
            *second = two * *second + (1.0 - two) * g * g;
            let size = (*second / whole[1]).sqrt().max(f64::MIN_POSITIVE);
            *at -= rate * (*first / whole[0]) / size;
        }
    }
}
