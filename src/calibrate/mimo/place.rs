//! The numbers of a system that several channels share, as they are fitted to the logits.

use hankelite_control::{cross_gram, gram_matrix, product};
use hankelite_kernels::SharedGradient;
use nalgebra::{Cholesky, DMatrix, DVector};
use num_complex::Complex64;
use rayon::prelude::*;

use crate::calibrate::mimo::modes::{Modes, is_diagonal};
use crate::calibrate::mimo::sample::joined;
use crate::calibrate::mimo::unit::Unit;
use crate::infer::{InferError, Network, OutputGradients, SystemSlopes};
use crate::model::{Block, BlockParts, Sequence};
use crate::progress::in_order;

/// Sequences that show how large the states are.
const SEQUENCES_SEEN: usize = 20;

/// The share of a state's own square that its weights cost in any case.
const PARALLEL: f64 = 1e-4;

/// Smaller squares are raised to this share of the largest.
const LEAST: f64 = 1e-6;

/// A smaller mean squared gradient is raised to this.
const SLOPE_MIN: f64 = 1e-24;

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

/// A system of a network.
#[derive(Clone, Copy)]
pub(super) struct Numbered<'a> {
    pub(super) layer: usize,
    /// Among those of the layer.
    pub(super) index: usize,
    /// What it was cut from.
    pub(super) unit: &'a Unit,
}

/// Where the numbers of one system stand: W, D, B, and the poles.
pub(super) struct Place<'a> {
    pub(super) of: Numbered<'a>,
    pub(super) first: usize,
    pub(super) count: usize,
    through: Through,
}

impl<'a> Place<'a> {
    /// Of a system as it is in its layer, behind `first` other numbers.
    pub(super) fn new(of: Numbered<'a>, block: &Block, first: usize) -> Self {
        let modes = Modes::of(block, of.index);
        let mut place = Self {
            of,
            first,
            count: 0,
            through: Through::of(&modes),
        };
        place.count = place.numbers(&modes).len();
        place
    }

    /// The numbers of a system as they are.
    fn numbers(&self, modes: &Modes) -> Vec<f64> {
        let mut numbers = modes.output_matrix().as_slice().to_vec();
        numbers.extend(self.through.entries(&modes.feedthrough));
        numbers.extend(modes.input.iter().flat_map(|b| [b.re, b.im]));
        let poles = modes.exponents.iter();
        numbers.extend(poles.flat_map(|z| [(-z.re).ln(), z.im]));
        numbers
    }

    /// A system of such numbers.
    fn modes_of(&self, mut modes: Modes, numbers: &[f64]) -> Modes {
        let (outputs, states) = (modes.feedthrough.nrows(), modes.states_count());
        let (w, rest) = numbers.split_at(outputs * states);
        modes.set_output_matrix(&DMatrix::from_column_slice(outputs, states, w));
        let entries = self.through.entries(&modes.feedthrough).len();
        let (d, rest) = rest.split_at(entries);
        self.through.put(d, &mut modes.feedthrough);
        let (b, poles) = rest.split_at(2 * modes.input.len());
        for (entry, pair) in modes.input.iter_mut().zip(b.chunks_exact(2)) {
            *entry = Complex64::new(pair[0], pair[1]);
        }
        for (z, pair) in modes.exponents.iter_mut().zip(poles.chunks_exact(2)) {
            *z = Complex64::new(-pair[0].exp(), pair[1]);
        }
        modes
    }

    /// Moves the numbers of its layer; `None` where the systems are not finite.
    pub(super) fn moved(&self, block: &Block, parts: &mut BlockParts, step: &[f64]) -> Option<()> {
        let modes = Modes::of(block, self.of.index);
        let own = &step[self.first..self.first + self.count];
        let numbers = self.numbers(&modes).into_iter().zip(own);
        let numbers: Vec<f64> = numbers.map(|(number, more)| number + more).collect();
        let time = block.systems()[self.of.index].time();
        let mut made = self.modes_of(modes, &numbers).systems(time).ok()?;
        if made.len() > 1 {
            parts.backward[self.of.index] = made.pop()?;
        }
        parts.systems[self.of.index] = made.pop()?;
        Some(())
    }

    /// The derivatives by the numbers.
    pub(super) fn slopes(&self, block: &Block, of: &SystemSlopes) -> Vec<f64> {
        let modes = Modes::of(block, self.of.index);
        match of {
            SystemSlopes::Shared(gradient) => self.slopes_of(&modes, gradient),
            SystemSlopes::Outputs(OutputGradients { input, gradient }) => {
                let steps = input.nrows();
                let (u, g) = (
                    self.of.unit.inputs(input, steps),
                    self.of.unit.outputs(gradient, steps),
                );
                self.slopes_by(&modes, &u, &g)
            }
        }
    }

    /// From those by the matrices of a system that all channels share.
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
        let (order, inputs) = modes.input.shape();
        let (re, im) = gradient.input.split_at(order * inputs);
        let places = (0..inputs).flat_map(|j| (0..order).map(move |i| i * inputs + j));
        slopes.extend(places.flat_map(|at| [f64::from(re[at]), f64::from(im[at])]));
        let poles = gradient.exponents.iter().zip(&modes.exponents);
        slopes.extend(poles.flat_map(|(by, z)| [by.re * z.re, by.im]));
        slopes
    }

    /// From the layer's input and the derivatives by its output.
    fn slopes_by(&self, modes: &Modes, u: &DMatrix<f64>, g: &DMatrix<f64>) -> Vec<f64> {
        let states = modes.states(u);
        let mut slopes = cross_gram(g, &states).as_slice().to_vec();
        slopes.extend(self.through.slopes(g, u));
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
        slopes
    }
}

/// What changes of the numbers of a system cost: what the change of its outputs would do to the logits
/// were it noise.
///
/// ```text
/// tr(M δW X δWᵀ) + Σ_i p_i² δ_iᵀ U δ_i + Σ_k p_k² δ_k²
/// ```
///
/// M is the moment of the gradients by the outputs, X the mean moment of the states, with that of the
/// inputs where all of D moves. Of the second term δ_i are the rows of B, and U is the mean moment of the
/// inputs. The third is of the other numbers.
pub(super) struct PlacePrice {
    outputs: Whitening,
    inputs: Whitening,
    /// The first number behind those of `outputs`, and p from there on.
    rest: (usize, Vec<f64>),
    /// What W itself costs, and how many entries it has.
    pub(super) size: (f64, usize),
}

impl PlacePrice {
    fn new(place: &Place<'_>, modes: &Modes, seen: &Seen) -> Self {
        let gradients = &place.of.unit.moments.gradients;
        let mean = (gradients.trace() / gradients.nrows() as f64).max(SLOPE_MIN);
        let metric = place.of.unit.moments.metric() * mean;
        let (moments, squares) = seen.means();
        let states = modes.states_count();
        let part = |first: usize, count: usize| {
            let part = moments.view((first, first), (count, count));
            part.into_owned()
        };
        let (columns, mut rest) = match place.through {
            Through::All => (moments.nrows(), Vec::new()),
            Through::Stays => (states, Vec::new()),
            Through::Diagonal => {
                let diagonal = metric.diagonal();
                let channels = squares.iter().zip(&diagonal);
                (states, channels.map(|(u, m)| (u * m).sqrt()).collect())
            }
        };
        let first = place.first + metric.nrows() * columns;
        let inputs = Whitening {
            first: first + rest.len(),
            height: 2 * modes.order(),
            rows: None,
            columns: inverse_root(part(states, squares.len())),
        };
        rest.extend(of_modes(modes, &metric, &moments));
        let w = modes.output_matrix();
        Self {
            size: ((&metric * &w).dot(&(&w * part(0, states))), w.len()),
            outputs: Whitening {
                first: place.first,
                height: metric.nrows(),
                rows: Some(inverse_root(metric)),
                columns: inverse_root(part(0, columns)),
            },
            inputs,
            rest: (first, rest),
        }
    }

    /// Slopes by the coordinates in which the price is ‖δ‖², in place of those by the numbers.
    pub(super) fn divide(&self, slopes: &mut DVector<f64>) {
        self.turn(slopes, DMatrix::clone);
    }

    /// Numbers in place of the coordinates.
    pub(super) fn restore(&self, step: &mut DVector<f64>) {
        self.turn(step, DMatrix::transpose);
    }

    fn turn(&self, numbers: &mut DVector<f64>, factor: fn(&DMatrix<f64>) -> DMatrix<f64>) {
        let (first, rest) = &self.rest;
        let own = numbers.as_mut_slice()[*first..].iter_mut();
        own.zip(rest).for_each(|(x, p)| *x /= p);
        for whitening in [&self.outputs, &self.inputs] {
            whitening.turn(numbers.as_mut_slice(), factor);
        }
    }
}

/// A matrix Δ, by columns, whose price is tr(Δᵀ L Lᵀ Δ K Kᵀ).
struct Whitening {
    first: usize,
    /// Rows of Δ.
    height: usize,
    /// L⁻¹; `None` for the identity.
    rows: Option<DMatrix<f64>>,
    /// K⁻¹.
    columns: DMatrix<f64>,
}

impl Whitening {
    /// L⁻¹ G K⁻ᵀ, or L⁻ᵀ Δ K⁻¹ with transposed factors.
    fn turn(&self, numbers: &mut [f64], factor: fn(&DMatrix<f64>) -> DMatrix<f64>) {
        let width = self.columns.nrows();
        let own = &mut numbers[self.first..self.first + self.height * width];
        let mut turned = DMatrix::from_column_slice(self.height, width, own);
        if let Some(rows) = &self.rows {
            turned = product(&factor(rows), &turned);
        }
        turned = product(&turned, &factor(&self.columns).transpose());
        own.copy_from_slice(turned.as_slice());
    }
}

/// p of B, for its rows, and of the poles, by what a mode's state does to the outputs.
///
/// ```text
/// ½ Σ w_kᵀ M w_k  of the columns w_k of W that belong to a mode, for a state of mean square 1
/// ```
///
/// A change δ of b, a row of B, is taken to be filtered as b itself is.
fn of_modes(modes: &Modes, metric: &DMatrix<f64>, moments: &DMatrix<f64>) -> Vec<f64> {
    let (order, inputs) = modes.input.shape();
    let (count, w) = (modes.states_count(), modes.output_matrix());
    let u = moments.view((count, count), (inputs, inputs));
    let parts = |i: usize| (i..count).step_by(order);
    let weights = (0..order).map(|i| {
        let squares = parts(i).map(|k| w.column(k).dot(&(metric * w.column(k))));
        0.5 * squares.sum::<f64>()
    });
    let states = (0..order).map(|i| {
        let squares = parts(i).map(|k| moments[(k, k)]);
        squares.sum::<f64>() / modes.directions() as f64
    });
    let (weights, states) = (floored(weights.collect()), floored(states.collect()));
    let gains = (0..order).map(|i| {
        let b = modes.input.row(i).transpose();
        let driven = [b.map(|b| b.re), b.map(|b| b.im)].map(|b| b.dot(&(u * &b)));
        states[i].powi(2) / driven.iter().sum::<f64>().max(f64::MIN_POSITIVE)
    });
    let gains: Vec<f64> = gains.map(f64::sqrt).collect();
    // A row of zeros says nothing of the filter.
    let most = 1e3 * gains.iter().copied().fold(f64::INFINITY, f64::min);
    let rows = weights
        .iter()
        .zip(&gains)
        .map(|(w, gain)| w * gain.min(most));
    let rows: Vec<f64> = rows.flat_map(|p| [p; 2]).collect();
    let poles = modes.exponents.iter().zip(weights.iter().zip(&states));
    let poles = poles.flat_map(|(z, (weight, state))| {
        let p = weight * state;
        [p, p / (-z.re).clamp(1e-3, 1.0)]
    });
    rows.repeat(inputs).into_iter().chain(poles).collect()
}

/// Roots of squares, none less than a thousandth of the largest: what does nothing now may do something after
/// a step.
fn floored(squares: Vec<f64>) -> Vec<f64> {
    let roots: Vec<f64> = squares.into_iter().map(|x| x.max(0.0).sqrt()).collect();
    let least = (1e-3 * roots.iter().copied().fold(0.0, f64::max)).max(1e-12);
    roots.into_iter().map(|x| x.max(least)).collect()
}

/// L⁻¹ of X = L Lᵀ; of the diagonal alone where X is not positive. Every number costs a little by itself
/// too, so that directions that are all but parallel do not get large weights that cancel.
fn inverse_root(mut square: DMatrix<f64>) -> DMatrix<f64> {
    let least = (LEAST * square.diagonal().max()).max(f64::MIN_POSITIVE);
    for i in 0..square.nrows() {
        square[(i, i)] += PARALLEL * square[(i, i)] + least;
    }
    let roots = square.diagonal().map(|x| x.sqrt().recip());
    let root = Cholesky::new(square).and_then(|root| {
        let mut inverse = DMatrix::identity(roots.len(), roots.len());
        let solved = root.l_dirty().solve_lower_triangular_mut(&mut inverse);
        solved.then_some(inverse)
    });
    root.unwrap_or_else(|| DMatrix::from_diagonal(&roots))
}

/// Moments of what a system gets and of its states.
#[derive(Clone)]
struct Seen {
    /// Σ (z, u)(z, u)ᵀ.
    moments: DMatrix<f64>,
    inputs: usize,
    steps: usize,
}

impl Seen {
    fn of(modes: &Modes, u: &DMatrix<f64>) -> Self {
        Self {
            moments: gram_matrix(&joined(&[&modes.states(u), u])),
            inputs: u.ncols(),
            steps: u.nrows(),
        }
    }

    /// Of every step, and the mean squares of the inputs: none is less than a thousandth of the largest.
    fn means(&self) -> (DMatrix<f64>, Vec<f64>) {
        let mean = &self.moments / self.steps.max(1) as f64;
        let states = mean.nrows() - self.inputs;
        let inputs: Vec<f64> = (states..mean.nrows()).map(|i| mean[(i, i)]).collect();
        let least = inputs.iter().copied().fold(1e-24, f64::max) * 1e-6;
        (mean, inputs.into_iter().map(|x| x.max(least)).collect())
    }
}

/// The prices of some systems of a network, by what they get in some of the sequences.
pub(super) fn place_prices(
    places: &[Place<'_>],
    network: &Network<'_>,
    sequences: &[Sequence<'_>],
) -> Result<Vec<PlacePrice>, InferError> {
    let blocks = network.model().blocks();
    let seen = sequences[..sequences.len().min(SEQUENCES_SEEN)].par_iter();
    let seen = seen.map(|&sequence| {
        let mut own = Vec::with_capacity(places.len());
        network.visit_inputs(&[sequence], usize::MAX, |_, layer, input, steps| {
            for place in places.iter().filter(|place| place.of.layer == layer) {
                let u = place.of.unit.inputs(input, steps);
                own.push(Seen::of(&Modes::of(&blocks[layer], place.of.index), &u));
            }
        })?;
        Ok::<_, InferError>(own)
    });
    let mut seen = in_order(seen)?.into_iter();
    let mut total: Vec<Seen> = seen.next().unwrap_or_default();
    for own in seen {
        for (sum, own) in total.iter_mut().zip(own) {
            sum.moments += own.moments;
            sum.steps += own.steps;
        }
    }
    let pairs = places.iter().zip(&total);
    let prices = pairs.map(|(place, seen)| {
        let modes = Modes::of(&blocks[place.of.layer], place.of.index);
        PlacePrice::new(place, &modes, seen)
    });
    Ok(prices.collect())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

    use super::*;
    use crate::calibrate::mimo::tests::{Draw, block};

    const LENGTH: usize = 12;

    /// A system of one or two directions, with a dense D where inputs and outputs are not as many.
    fn cases() -> [(Block, DMatrix<f64>, DMatrix<f64>); 3] {
        [(2, 2, 1), (2, 2, 2), (2, 3, 1)].map(|(inputs, outputs, directions)| {
            let mut draw = Draw::new(5);
            let modes = draw.modes(3, inputs, outputs, directions);
            let (u, g) = (draw.matrix(LENGTH, inputs), draw.matrix(LENGTH, outputs));
            (block(&modes), u, g)
        })
    }

    fn unit(block: &Block, u: &DMatrix<f64>, g: &DMatrix<f64>) -> Unit {
        let mut unit = Unit::of(block, LENGTH).unwrap().remove(0);
        unit.add_input(u, LENGTH);
        unit.add_gradients(std::slice::from_ref(g), LENGTH);
        unit
    }

    fn place<'a>(unit: &'a Unit, block: &Block) -> Place<'a> {
        let of = Numbered {
            layer: 0,
            index: 0,
            unit,
        };
        Place::new(of, block, 0)
    }

    fn price(place: &Place<'_>, block: &Block, u: &DMatrix<f64>) -> (PlacePrice, DMatrix<f64>) {
        let modes = Modes::of(block, 0);
        let seen = Seen::of(&modes, u);
        let means = seen.means().0;
        (PlacePrice::new(place, &modes, &seen), means)
    }

    #[test]
    fn slopes_are_those_of_differences() {
        for (block, u, g) in cases() {
            let unit = unit(&block, &u, &g);
            let place = place(&unit, &block);
            let of = SystemSlopes::Outputs(OutputGradients {
                input: u.clone(),
                gradient: g.clone(),
            });
            let slopes = place.slopes(&block, &of);
            let modes = Modes::of(&block, 0);
            let numbers = place.numbers(&modes);
            assert_eq!(slopes.len(), place.count);
            for (k, slope) in slopes.into_iter().enumerate() {
                let [up, down] = [1e-5, -1e-5].map(|more| {
                    let mut moved = numbers.clone();
                    moved[k] += more;
                    g.dot(&place.modes_of(modes.clone(), &moved).response(&u))
                });
                let difference = (up - down) / 2e-5;
                assert!(
                    (slope - difference).abs() < 1e-6 * (1.0 + slope.abs()),
                    "{k}"
                );
            }
        }
    }

    #[test]
    fn coordinates_price_changes_of_c_by_what_they_do_to_the_outputs() {
        for (block, u, g) in cases() {
            let unit = unit(&block, &u, &g);
            let place = place(&unit, &block);
            let (price, means) = price(&place, &block, &u);
            let modes = Modes::of(&block, 0);
            let (outputs, columns) = (modes.feedthrough.nrows(), price.outputs.columns.nrows());
            let mut x = DVector::zeros(place.count);
            let own = Draw::new(8).matrix(outputs, columns);
            x.rows_mut(0, own.len()).copy_from_slice(own.as_slice());
            price.restore(&mut x);
            let w = DMatrix::from_column_slice(outputs, columns, &x.as_slice()[..own.len()]);
            let mean = unit.moments.gradients.trace() / outputs as f64;
            let metric = unit.moments.metric() * mean;
            let moments = means.view((0, 0), (columns, columns));
            let expected = (metric * &w * moments).dot(&w);
            let found = own.norm_squared();
            assert!((found / expected - 1.0).abs() < 0.02, "{found} {expected}");
        }
    }

    #[test]
    fn modes_that_do_nothing_have_prices_like_the_others() {
        let (block, u, g) = cases()[0].clone();
        let unit = unit(&block, &u, &g);
        let place = place(&unit, &block);
        let usual = Modes::of(&block, 0);
        let mut idle = [usual.clone(), usual.clone()];
        idle[0].outputs[0].fill_column(1, Complex64::ZERO);
        idle[1].input.fill_row(1, Complex64::ZERO);
        let prices = |modes: &Modes| PlacePrice::new(&place, modes, &Seen::of(modes, &u)).rest.1;
        for modes in idle {
            for (own, usual) in prices(&modes).iter().zip(prices(&usual)) {
                assert!((1e-4..1e4).contains(&(own / usual)), "{own} {usual}");
            }
        }
    }

    #[test]
    fn slopes_by_coordinates_belong_to_the_numbers_of_coordinates() {
        for (block, u, g) in cases() {
            let unit = unit(&block, &u, &g);
            let place = place(&unit, &block);
            let (price, _) = price(&place, &block, &u);
            let mut draw = Draw::new(9);
            let [mut slopes, mut at] =
                [0, 1].map(|_| draw.matrix(place.count, 1).column(0).into_owned());
            let (known, own) = (slopes.clone(), at.clone());
            price.divide(&mut slopes);
            price.restore(&mut at);
            let (by_coordinates, by_numbers) = (slopes.dot(&own), known.dot(&at));
            assert!((by_coordinates - by_numbers).abs() < 1e-9 * by_numbers.abs());
        }
    }
}
