//! The systems of all layers fitted together to the logits of the full network.

use std::ops::Range;

use hankelite_control::cross_gram;
use hankelite_kernels::SharedGradient;
use nalgebra::{DMatrix, DVector};
use num_complex::Complex64;
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;

use crate::calibrate::logits::{centred, relative_change};
use crate::calibrate::mimo::fit::CHECK_EVERY;
use crate::calibrate::mimo::modes::{Modes, is_diagonal};
use crate::calibrate::mimo::unit::Unit;
use crate::calibrate::{CalibrateError, LogitFit};
use crate::infer::{Network, OutputGradients, Path as InferPath, Setup, SystemSlopes};
use crate::model::{Block, Model, Sequence};
use crate::progress::{ProgressSink, Within, stage};

/// Fewer sequences than this are too few to fit and check.
const SEQUENCES_MIN: usize = 10;

/// From this many sequences on B and the poles move, too.
const SEQUENCES_ALL: usize = 300;

/// Steps of the descent.
const STEPS: usize = 640;

/// The share of the sequences that a step takes, as a divisor. With half as many sequences deep cuts lose
/// accuracy, and with longer steps in turn mild cuts gain nothing.
const SHARE: usize = 10;

/// Groups of sequences of a step whose slopes are summed on one thread, in order.
const GROUPS: usize = 8;

/// Steps between two looks at the held-out sequences.
const LOOK_EVERY: usize = 20;

/// The longest step of a coordinate, relative to the root mean square of those of C.
const RATE: f64 = 0.02;

/// The share of all steps over which their length rises.
const WARM_UP: f64 = 0.1;

/// What the residual stream counts beside the logits.
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

/// C and D of all layers, and B and poles too where there are enough sequences, by Adam on
///
/// ```text
/// Σ ‖Δz‖²/Σ ‖z‖² + 0.3 mean_l Σ ‖Δx_l‖²/Σ ‖x_l‖²
/// ```
///
/// z being the centred logits and x_l the residual stream behind layer l; a step takes a tenth of the
/// sequences, and its length falls as half a cosine. Without the second term
/// the fit takes to what is particular to its sequences. A fifth of these is held out and chooses
/// the step. `None` with too few sequences, and where none differs from those that take part.
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
    let all = fitting.examples.len() + fitting.held_out.len() >= SEQUENCES_ALL;
    problem.observer.begin(stage::LOGIT_FIT, STEPS);
    let before = fitting.held_out_change(start)?;
    let mut best = (start.clone(), before);
    fitting.parameters = Parameters::new(problem, start, &fitting.examples, all)?;
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
    parameters: Parameters,
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

    /// The derivatives by the numbers, from those by the matrices of a system that all channels share.
    fn slopes_of(&self, modes: &Modes, gradient: &SharedGradient<f32>) -> Vec<f64> {
        let outputs = modes.feedthrough.nrows();
        let wide = |rows: &[f32]| rows.iter().map(|&g| f64::from(g)).collect::<Vec<f64>>();
        let columns = |rows: &[f32]| {
            let matrix = DMatrix::from_row_slice(outputs, rows.len() / outputs, &wide(rows));
            matrix.as_slice().to_vec()
        };
        let directions = gradient.output.len() / modes.directions();
        let parts = gradient.output.chunks_exact(directions.max(1));
        let mut slopes: Vec<f64> = parts.flat_map(columns).collect();
        match self.through {
            Through::Stays => {}
            Through::Diagonal => slopes.extend(wide(&gradient.feedthrough)),
            Through::All => slopes.extend(columns(&gradient.feedthrough)),
        }
        if self.all {
            let (order, inputs) = modes.input.shape();
            let (re, im) = gradient.input.split_at(order * inputs);
            let places = (0..inputs).flat_map(|j| (0..order).map(move |i| i * inputs + j));
            slopes.extend(places.flat_map(|at| [f64::from(re[at]), f64::from(im[at])]));
            let poles = gradient.exponents.iter().zip(&modes.exponents);
            slopes.extend(poles.flat_map(|(by, z)| [by.re * z.re, by.im]));
        }
        slopes
    }

    /// The derivatives by the numbers, from the layer's input and those by its output.
    fn slopes(&self, modes: &Modes, u: &DMatrix<f64>, g: &DMatrix<f64>) -> Vec<f64> {
        let states = modes.states(u);
        let mut slopes = cross_gram(g, &states).as_slice().to_vec();
        slopes.extend(self.through.slopes(g, u));
        if self.all {
            let order = modes.order();
            let input = modes.input_slopes(&modes.adjoints(g), u);
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

    /// The root mean square of the coordinates of all C.
    fn unit(&self, at: &DVector<f64>) -> f64 {
        let (mut squares, mut count) = (0.0, 0);
        for place in &self.places {
            let own = place.modes.feedthrough.nrows() * place.modes.states_count();
            squares += at.rows(place.first, own).norm_squared();
            count += own;
        }
        (squares / count.max(1) as f64).sqrt()
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
            for (unit, of) in problem.layers[layer].iter().enumerate() {
                let modes = Modes::of(&model.blocks()[layer], unit);
                let u = of.inputs(input, steps);
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
            // A sequence that takes part cannot check.
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
        let modes: Vec<Modes> = places
            .iter()
            .map(|p| self.parameters.modes(p, at))
            .collect();
        let groups = some
            .par_chunks(some.len().div_ceil(GROUPS).max(1))
            .map(|own| {
                let mut slope = DVector::zeros(self.parameters.count);
                let mut add = |pulled: &[SystemSlopes]| {
                    for (place, modes) in places.iter().zip(&modes) {
                        let own = self.place_slopes(place, modes, &pulled[place.layer]);
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
        for place in places {
            let own = slope.rows_mut(place.first, place.count);
            own.into_iter()
                .zip(&place.scales)
                .for_each(|(g, s)| *g /= s);
        }
        Ok(slope.iter().all(|g| g.is_finite()).then_some(slope))
    }

    fn place_slopes(&self, place: &Place, modes: &Modes, pulled: &SystemSlopes) -> Vec<f64> {
        let of = &self.problem.layers[place.layer][place.unit];
        match pulled {
            SystemSlopes::Shared(gradient) => place.slopes_of(modes, gradient),
            SystemSlopes::Outputs(OutputGradients { input, gradient }) => {
                let (input, gradient) = (
                    of.inputs(input, input.nrows()),
                    of.outputs(gradient, gradient.nrows()),
                );
                place.slopes(modes, &input, &gradient)
            }
        }
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
        let mut at = self.parameters.start();
        let mut adam = Adam::new(at.len());
        let unit = self.parameters.unit(&at);
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

/// The length of a step, after a share of all.
fn rate(share: f64) -> f64 {
    let fall = 0.5 * (1.0 + (std::f64::consts::PI * share).cos());
    RATE * fall * (share / WARM_UP).min(1.0)
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
