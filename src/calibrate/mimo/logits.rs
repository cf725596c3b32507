//! The systems of all layers fitted together to the logits of the full network.

use std::collections::VecDeque;

use hankelite_control::cross_gram;
use nalgebra::{DMatrix, DVector};
use num_complex::Complex64;
use rayon::prelude::*;

use crate::calibrate::logits::{centred, relative_change};
use crate::calibrate::mimo::modes::{Modes, is_diagonal};
use crate::calibrate::mimo::unit::Unit;
use crate::calibrate::{CalibrateError, LogitFit};
use crate::infer::{Network, OutputGradients, Path as InferPath};
use crate::model::{Block, Model, Sequence};
use crate::progress::{ProgressSink, Stage, Within};

/// Of the sequences every so many checks the others.
const CHECK_EVERY: usize = 5;

/// Fewer sequences than this are too few to fit and check.
const SEQUENCES_MIN: usize = 10;

/// From this many sequences on B and the poles move, too.
const SEQUENCES_ALL: usize = 300;

/// Iterations of each of the two fits.
const ITERATIONS: [usize; 2] = [150, 100];

/// Iterations between two looks at the held-out sequences.
const LOOK_EVERY: usize = 10;

/// Looks without gain before the end.
const PATIENCE: usize = 4;

/// What the residual stream counts beside the logits.
const STREAM_SHARE: f64 = 0.3;

/// Pairs that the curvature is taken from.
const MEMORY: usize = 10;

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

/// C and D of all layers, then B and poles too where there are enough sequences, by L-BFGS on
///
/// ```text
/// Σ ‖Δz‖²/Σ ‖z‖² + 0.3 mean_l Σ ‖Δx_l‖²/Σ ‖x_l‖²
/// ```
///
/// z being the centred logits and x_l the residual stream behind layer l. Without the second term
/// the fit takes to what is particular to its sequences. A fifth of these is held out and chooses
/// the iterate. `None` with too few sequences, and where none differs from those that take part.
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
    let stages = match fitting.examples.len() + fitting.held_out.len() >= SEQUENCES_ALL {
        true => &[false, true][..],
        false => &[false],
    };
    let total = ITERATIONS[..stages.len()].iter().sum();
    problem.observer.begin(Stage::LogitFit, total);
    let before = fitting.held_out_change(start)?;
    let mut best = (start.clone(), before);
    let mut fit = LogitFit {
        steps: 0,
        parameters: 0,
        prices: Vec::new(),
        before,
        after: before,
    };
    for (&all, &iterations) in stages.iter().zip(&ITERATIONS) {
        fitting.parameters = Parameters::new(problem, &best.0, &fitting.examples, all)?;
        fit.parameters = fitting.parameters.count;
        fit.steps += fitting.descend(&mut best, iterations)?;
    }
    fit.after = best.1;
    Ok(Some((best.0, fit)))
}

/// A sequence of the fit, with what the full network makes of it.
struct Example<'a> {
    sequence: Sequence<'a>,
    /// Centred.
    logits: Vec<f64>,
    /// Behind every layer, the steps that are no padding, in single precision.
    streams: Vec<DMatrix<f32>>,
}

struct Fitting<'a> {
    problem: &'a LogitProblem<'a>,
    examples: Vec<Example<'a>>,
    held_out: Vec<usize>,
    /// Σ ‖z‖², and Σ ‖x_l‖² of every layer.
    sizes: (f64, Vec<f64>),
    parameters: Parameters,
}

/// Which numbers move, in coordinates in which they change the logits about alike.
struct Parameters {
    start: Model,
    places: Vec<Place>,
    count: usize,
}

/// Which entries of D move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Through {
    /// None: the file has no place for D.
    Stays,
    Diagonal,
    All,
}

impl Through {
    fn of(modes: &Modes) -> Self {
        match is_diagonal(&modes.feedthrough) {
            _ if modes.feedthrough_stays => Self::Stays,
            true => Self::Diagonal,
            false => Self::All,
        }
    }

    /// Entries for each input.
    fn for_each_input(self, outputs: usize) -> usize {
        match self {
            Self::Stays => 0,
            Self::Diagonal => 1,
            Self::All => outputs,
        }
    }

    /// The entries of a matrix of D's shape.
    fn entries(self, d: &DMatrix<f64>) -> Vec<f64> {
        match self {
            Self::Stays => Vec::new(),
            Self::Diagonal => d.diagonal().as_slice().to_vec(),
            Self::All => d.as_slice().to_vec(),
        }
    }

    /// The derivatives by the entries, from the input and the derivatives by the output.
    fn slopes(self, g: &DMatrix<f64>, u: &DMatrix<f64>) -> Vec<f64> {
        match self {
            Self::Stays => Vec::new(),
            Self::Diagonal => {
                let channels = g.column_iter().zip(u.column_iter());
                channels.map(|(g, u)| g.dot(&u)).collect()
            }
            Self::All => cross_gram(g, u).as_slice().to_vec(),
        }
    }

    fn put(self, entries: &[f64], d: &mut DMatrix<f64>) {
        match self {
            Self::Stays => {}
            Self::Diagonal => d.set_diagonal(&DVector::from_column_slice(entries)),
            Self::All => d.copy_from_slice(entries),
        }
    }
}

/// The numbers of one system.
struct Place {
    layer: usize,
    unit: usize,
    modes: Modes,
    first: usize,
    count: usize,
    /// What of D moves.
    through: Through,
    /// Whether B and poles move.
    all: bool,
    /// A number is its coordinate over its scale.
    scales: Vec<f64>,
}

impl Place {
    /// The numbers of a system as they are: W, D, then B and the poles.
    fn numbers(&self, modes: &Modes) -> Vec<f64> {
        let mut numbers = modes.output_matrix().as_slice().to_vec();
        numbers.extend(self.through.entries(&modes.feedthrough));
        if self.all {
            numbers.extend(modes.input.iter().flat_map(|b| [b.re, b.im]));
            let poles = modes.exponents.iter();
            numbers.extend(poles.flat_map(|z| [(-z.re).ln(), z.im]));
        }
        numbers
    }

    /// A system of such numbers.
    fn modes_of(&self, numbers: &[f64]) -> Modes {
        let mut modes = self.modes.clone();
        let (outputs, states) = (modes.feedthrough.nrows(), modes.states_count());
        let (w, rest) = numbers.split_at(outputs * states);
        modes.set_output_matrix(&DMatrix::from_column_slice(outputs, states, w));
        let inputs = modes.feedthrough.ncols();
        let (d, rest) = rest.split_at(inputs * self.through.for_each_input(outputs));
        self.through.put(d, &mut modes.feedthrough);
        if self.all {
            let (b, poles) = rest.split_at(2 * modes.input.len());
            for (entry, pair) in modes.input.iter_mut().zip(b.chunks_exact(2)) {
                *entry = Complex64::new(pair[0], pair[1]);
            }
            for (z, pair) in modes.exponents.iter_mut().zip(poles.chunks_exact(2)) {
                *z = Complex64::new(-pair[0].exp(), pair[1]);
            }
        }
        modes
    }

    /// The derivatives by the numbers, from the layer's input and those by its output.
    fn slopes(&self, modes: &Modes, u: &DMatrix<f64>, g: &DMatrix<f64>) -> Vec<f64> {
        let states = modes.states(u);
        let mut slopes = cross_gram(g, &states).as_slice().to_vec();
        slopes.extend(self.through.slopes(g, u));
        if self.all {
            let order = modes.order();
            let mut input = DMatrix::<Complex64>::zeros(order, u.ncols());
            for p in modes.adjoints(g) {
                let by_input = cross_gram(&p, u);
                let [re, im] = [0, order].map(|first| by_input.rows(first, order));
                input += re.zip_map(&im, Complex64::new);
            }
            slopes.extend(input.iter().flat_map(|b| [b.re, b.im]));
            // ∂y/∂a through the sensitivities: the columns of z in the place of the states.
            let moved = cross_gram(g, &modes.pole_slopes(u));
            let w = modes.output_matrix();
            for (i, (z, a)) in modes.exponents.iter().zip(modes.poles()).enumerate() {
                let mut by_pole = Complex64::ZERO;
                for direction in 0..modes.directions() {
                    let (re, im) = (2 * order * direction + i, 2 * order * direction + order + i);
                    let dot = |a: usize, b: usize| w.column(a).dot(&moved.column(b));
                    by_pole += Complex64::new(dot(re, re) + dot(im, im), dot(im, re) - dot(re, im));
                }
                // δa = a δz
                let by_exponent = a.conj() * by_pole;
                slopes.extend([by_exponent.re * z.re, by_exponent.im]);
            }
        }
        slopes
    }
}

impl Parameters {
    fn none(start: &Model) -> Self {
        Self {
            start: start.clone(),
            places: Vec::new(),
            count: 0,
        }
    }

    fn new(
        problem: &LogitProblem<'_>,
        start: &Model,
        examples: &[Example<'_>],
        all: bool,
    ) -> Result<Self, CalibrateError> {
        let mut made = Self::none(start);
        let sizes = sizes(problem, start, examples)?;
        for (layer, (units, sizes)) in problem.layers.iter().zip(sizes).enumerate() {
            let block = &start.blocks()[layer];
            for (unit, (of, size)) in units.iter().zip(sizes).enumerate() {
                let gradients = &of.moments.gradients;
                let slope = gradients.trace() / (gradients.nrows() * size.steps.max(1)) as f64;
                let modes = Modes::of(block, unit);
                let mut place = Place {
                    layer,
                    unit,
                    through: Through::of(&modes),
                    all,
                    first: made.count,
                    count: 0,
                    scales: Vec::new(),
                    modes,
                };
                place.scales = size.scales(&place, slope.sqrt().max(1e-12));
                place.count = place.scales.len();
                made.count += place.count;
                made.places.push(place);
            }
        }
        Ok(made)
    }

    /// Coordinates of the start.
    fn start(&self) -> DVector<f64> {
        let numbers = self.places.iter().flat_map(|place| {
            let numbers = place.numbers(&place.modes);
            let scaled = numbers.into_iter().zip(&place.scales);
            scaled.map(|(x, s)| x * s).collect::<Vec<f64>>()
        });
        DVector::from_iterator(self.count, numbers)
    }

    fn modes(&self, place: &Place, at: &DVector<f64>) -> Modes {
        let own = at.as_slice()[place.first..place.first + place.count].iter();
        let numbers: Vec<f64> = own.zip(&place.scales).map(|(x, s)| x / s).collect();
        place.modes_of(&numbers)
    }

    /// The network at some coordinates; `None` where it is not finite.
    fn model(&self, at: &DVector<f64>) -> Option<Model> {
        let mut blocks = self.start.blocks().to_vec();
        for place in &self.places {
            let block = &blocks[place.layer];
            let time = block.systems()[place.unit].time();
            let mut made = self.modes(place, at).systems(time).ok()?;
            let (mut systems, mut backward) = (block.systems().to_vec(), block.backward().to_vec());
            if made.len() > 1 {
                backward[place.unit] = made.pop()?;
            }
            systems[place.unit] = made.pop()?;
            blocks[place.layer] = block.with_systems(systems, backward).ok()?;
        }
        self.start.with_blocks(blocks).ok()
    }
}

/// Mean squares of what a system gets and of its states.
#[derive(Clone)]
struct Sizes {
    states: DVector<f64>,
    inputs: DVector<f64>,
    steps: usize,
}

impl Sizes {
    /// What each number of a system does to the logits, about.
    fn scales(&self, place: &Place, slope: f64) -> Vec<f64> {
        let modes = &place.modes;
        let (outputs, order) = (modes.feedthrough.nrows(), modes.order());
        let mean = |squares: &DVector<f64>| {
            let mean = squares.map(|x: f64| (x / self.steps.max(1) as f64).sqrt());
            let least = (1e-3 * mean.max()).max(1e-12);
            mean.map(|x| x.max(least))
        };
        let (states, inputs) = (mean(&self.states), mean(&self.inputs));
        let mut scales = Vec::new();
        for size in states.iter() {
            scales.extend(std::iter::repeat_n(slope * size, outputs));
        }
        for size in inputs.iter() {
            let repeated = place.through.for_each_input(outputs);
            scales.extend(std::iter::repeat_n(slope * size, repeated));
        }
        if place.all {
            let weight = |i: usize| {
                let columns = modes.outputs.iter().map(|c| c.column(i).norm_squared());
                (columns.sum::<f64>() / outputs as f64).sqrt().max(1e-6)
            };
            for size in inputs.iter() {
                for (i, z) in modes.exponents.iter().enumerate() {
                    let filtered = size / (2.0 * -z.re).sqrt().clamp(1e-2, 1.0);
                    scales.extend([slope * weight(i) * filtered; 2]);
                }
            }
            for (i, z) in modes.exponents.iter().enumerate() {
                let state = states[i].hypot(states[order + i]);
                let turned = state / (-z.re).clamp(1e-3, 1.0);
                scales.extend([slope * weight(i) * state, slope * weight(i) * turned]);
            }
        }
        scales
    }
}

/// The sizes of every system of every layer, over some of the examples.
fn sizes(
    problem: &LogitProblem<'_>,
    model: &Model,
    examples: &[Example<'_>],
) -> Result<Vec<Vec<Sizes>>, CalibrateError> {
    let network = Network::new(model, problem.length, InferPath::Auto)?;
    let mut total: Vec<Vec<Option<Sizes>>> = problem
        .layers
        .iter()
        .map(|units| vec![None; units.len()])
        .collect();
    for example in examples.iter().take(2 * SEQUENCES_MIN) {
        network.visit_inputs(&[example.sequence], usize::MAX, |_, layer, input, steps| {
            let u = input.rows(0, steps).into_owned();
            for (unit, of) in problem.layers[layer].iter().enumerate() {
                let modes = Modes::of(&model.blocks()[layer], unit);
                let u = of.inputs(&u);
                let squares = |m: &DMatrix<f64>| {
                    DVector::from_iterator(m.ncols(), m.column_iter().map(|c| c.norm_squared()))
                };
                let own = Sizes {
                    states: squares(&modes.states(&u)),
                    inputs: squares(&u),
                    steps,
                };
                match &mut total[layer][unit] {
                    Some(sum) => {
                        sum.states += own.states;
                        sum.inputs += own.inputs;
                        sum.steps += own.steps;
                    }
                    none => *none = Some(own),
                }
            }
        })?;
    }
    let sizes = total
        .into_iter()
        .map(|units| units.into_iter().flatten().collect());
    Ok(sizes.collect())
}

/// A value and its derivatives.
struct Point {
    at: DVector<f64>,
    value: f64,
    slope: DVector<f64>,
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
            let streams = network.streams(sequence)?;
            let single = |x: DMatrix<f64>| x.rows(0, signal.steps).map(|x| x as f32);
            Ok(Example {
                sequence,
                logits: centred(&problem.logits[index]),
                streams: streams.into_iter().map(single).collect(),
            })
        });
        let examples: Vec<Example<'_>> = examples.collect::<Result<_, CalibrateError>>()?;
        let logits = examples.iter().flat_map(|e| &e.logits).map(|z| z * z).sum();
        let layers = 0..problem.layers.len();
        let streams = layers.map(|layer| {
            let own = examples.iter().map(|e| &e.streams[layer]);
            own.flatten().map(|x| f64::from(*x).powi(2)).sum()
        });
        Ok(Self {
            sizes: (logits, streams.collect()),
            // A sequence that takes part cannot check.
            held_out: all
                .into_iter()
                .filter(held_out)
                .filter(|&index| !fit.iter().any(|&own| of(own) == of(index)))
                .collect(),
            examples,
            problem,
            parameters: Parameters::none(start),
        })
    }

    /// The relative change of the logits of the held-out sequences.
    fn held_out_change(&self, model: &Model) -> Result<f64, CalibrateError> {
        let within = Within(self.problem.observer);
        let network = Network::new(model, self.problem.length, InferPath::Auto)?.observed(&within);
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

    /// The loss and its derivatives; `None` where the network is not finite.
    fn point(&self, at: DVector<f64>) -> Result<Option<Point>, CalibrateError> {
        let Some(model) = self.parameters.model(&at) else {
            return Ok(None);
        };
        let network = Network::new(&model, self.problem.length, InferPath::Auto)?;
        let places = &self.parameters.places;
        let modes: Vec<Modes> = places
            .iter()
            .map(|p| self.parameters.modes(p, &at))
            .collect();
        let size = self.examples.len().div_ceil(8).max(1);
        let groups = self.examples.par_chunks(size).map(|examples| {
            let mut value = 0.0;
            let mut slope = DVector::zeros(self.parameters.count);
            for example in examples {
                self.problem.observer.check()?;
                let pulled = network.pulled_back(example.sequence, |logits, streams| {
                    let (loss, slopes) = self.loss(example, logits, streams);
                    value += loss;
                    slopes
                })?;
                for (place, modes) in places.iter().zip(&modes) {
                    let OutputGradients { input, gradient } = &pulled[place.layer];
                    let of = &self.problem.layers[place.layer][place.unit];
                    let own = place.slopes(modes, &of.inputs(input), &of.outputs(gradient));
                    let mut into = slope.rows_mut(place.first, place.count);
                    into += DVector::from_vec(own);
                }
            }
            Ok((value, slope))
        });
        let groups = groups.collect::<Result<Vec<_>, CalibrateError>>()?;
        let mut point = Point {
            slope: DVector::zeros(self.parameters.count),
            value: 0.0,
            at,
        };
        for (value, slope) in groups {
            point.value += value;
            point.slope += slope;
        }
        for place in places {
            let own = point.slope.rows_mut(place.first, place.count);
            own.into_iter()
                .zip(&place.scales)
                .for_each(|(g, s)| *g /= s);
        }
        let finite = point.value.is_finite() && point.slope.iter().all(|g| g.is_finite());
        Ok(finite.then_some(point))
    }

    /// The loss of one sequence, and its derivatives by logits and residual streams.
    fn loss(
        &self,
        example: &Example<'_>,
        logits: &[f64],
        streams: &[DMatrix<f64>],
    ) -> (f64, (Vec<f64>, Vec<DMatrix<f64>>)) {
        let (logit_size, stream_sizes) = &self.sizes;
        let pairs = centred(logits).into_iter().zip(&example.logits);
        let apart: Vec<f64> = pairs.map(|(a, b)| a - b).collect();
        let unit = logit_size.max(f64::MIN_POSITIVE);
        let mut loss = apart.iter().map(|d| d * d).sum::<f64>() / unit;
        // The difference is centred, so its derivative by the logits is, too.
        let by_logits = apart.iter().map(|d| 2.0 * d / unit).collect();
        let share = STREAM_SHARE / streams.len().max(1) as f64;
        let layers = streams.iter().zip(&example.streams).zip(stream_sizes);
        let by_streams = layers.map(|((own, full), size)| {
            let unit = share / size.max(f64::MIN_POSITIVE);
            let mut slope = DMatrix::zeros(own.nrows(), own.ncols());
            for (column, h) in full.column_iter().zip(0..) {
                for (t, full) in column.iter().enumerate() {
                    let apart = own[(t, h)] - f64::from(*full);
                    loss += unit * apart * apart;
                    slope[(t, h)] = 2.0 * unit * apart;
                }
            }
            slope
        });
        let by_streams = by_streams.collect();
        (loss, (by_logits, by_streams))
    }

    /// Iterations from the best model; better ones on the held-out sequences take its place. Gives
    /// the iteration that was kept.
    fn descend(&self, best: &mut (Model, f64), iterations: usize) -> Result<usize, CalibrateError> {
        let Some(mut here) = self.point(self.parameters.start())? else {
            return Ok(0);
        };
        let mut memory = Memory::default();
        let (mut kept, mut since) = (0, 0);
        for iteration in 1..=iterations {
            self.problem.observer.step()?;
            let Some(next) = self.line(&here, &memory.direction(&here.slope), iteration == 1)?
            else {
                break;
            };
            memory.add(&next.at - &here.at, &next.slope - &here.slope);
            here = next;
            if iteration % LOOK_EVERY == 0
                && let Some(model) = self.parameters.model(&here.at)
            {
                let change = self.held_out_change(&model)?;
                since += 1;
                if change < best.1 {
                    *best = (model, change);
                    (kept, since) = (iteration, 0);
                }
                if since >= PATIENCE {
                    break;
                }
            }
        }
        Ok(kept)
    }

    /// The first point along a direction with a lower loss by a share of what the slope promises.
    fn line(
        &self,
        here: &Point,
        direction: &DVector<f64>,
        first: bool,
    ) -> Result<Option<Point>, CalibrateError> {
        let promise = here.slope.dot(direction);
        let mut length = match first {
            true => (0.1 * here.value / promise.abs().max(f64::MIN_POSITIVE)).min(1.0),
            false => 1.0,
        };
        for _ in 0..12 {
            if let Some(point) = self.point(&here.at + direction * length)?
                && point.value <= here.value + 1e-4 * length * promise
            {
                return Ok(Some(point));
            }
            length *= 0.4;
        }
        Ok(None)
    }
}

/// Steps and the changes of the slope over them (Nocedal and Wright, algorithm 7.4).
#[derive(Default)]
struct Memory(VecDeque<(DVector<f64>, DVector<f64>)>);

impl Memory {
    fn add(&mut self, step: DVector<f64>, change: DVector<f64>) {
        if step.dot(&change) <= 1e-12 * step.norm() * change.norm() {
            return;
        }
        if self.0.len() == MEMORY {
            self.0.pop_front();
        }
        self.0.push_back((step, change));
    }

    fn direction(&self, slope: &DVector<f64>) -> DVector<f64> {
        let mut direction = -slope;
        let mut factors = Vec::with_capacity(self.0.len());
        for (step, change) in self.0.iter().rev() {
            let factor = step.dot(&direction) / step.dot(change);
            direction -= change * factor;
            factors.push(factor);
        }
        if let Some((step, change)) = self.0.back() {
            direction *= step.dot(change) / change.norm_squared();
        }
        for ((step, change), factor) in self.0.iter().zip(factors.into_iter().rev()) {
            let back = change.dot(&direction) / step.dot(change);
            direction += step * (factor - back);
        }
        direction
    }
}
