//! Alternating least squares fits of a reduced system to the outputs that a full one gives.

use hankelite_control::{cross_gram, gram_matrix, solve_positive};
use nalgebra::{Cholesky, DMatrix, DVector};
use num_complex::Complex64;
use rayon::prelude::*;

use crate::calibrate::mimo::curvature::{InputCurvature, PRICES, input_of};
use crate::calibrate::mimo::filtered;
use crate::calibrate::mimo::modes::{Modes, is_diagonal};
use crate::calibrate::mimo::sample::{Sample, joined};

/// Of the sequences every so many is held out.
pub(super) const CHECK_EVERY: usize = 5;

/// Groups of sequences whose sums are taken on one thread, in order.
const GROUPS: usize = 8;

/// Ridges of the fit of C and D, relative to states of unit size.
const RIDGES: [f64; 4] = [1e-8, 1e-6, 1e-4, 1e-3];

/// Numbers of B up to which their normal equations are formed.
const TOGETHER: usize = 512;

/// Most steps that a fit of B uses.
const STEPS_MAX: usize = 8_192;

/// A round that gains less than this share of the error is the last.
const GAIN_MIN: f64 = 0.01;

/// An output error of less than this share is left alone.
const ERROR_MIN: f64 = 1e-10;

/// Samples, and the metric of the outputs.
pub(super) struct Problem<'a> {
    samples: &'a [Sample],
    metric: &'a DMatrix<f64>,
    /// Moments of (u, y), which no system changes.
    known: Sums,
}

/// A system and its squared errors, summed over steps.
#[derive(Debug, Clone)]
pub(super) struct Fitted {
    pub(super) modes: Modes,
    /// Over the held-out sequences.
    pub(super) check: f64,
    /// Over all.
    pub(super) error: f64,
}

/// A matrix of sums over the sequences that fit, and one over those held out.
struct Sums {
    fit: DMatrix<f64>,
    check: DMatrix<f64>,
}

/// The blocks (z, u, y) of moments.
struct Blocks<'a> {
    sums: &'a DMatrix<f64>,
    states: usize,
    inputs: usize,
    outputs: usize,
}

impl<'a> Blocks<'a> {
    fn new(sums: &'a DMatrix<f64>, modes: &Modes) -> Self {
        Self {
            sums,
            states: modes.states_count(),
            inputs: modes.feedthrough.ncols(),
            outputs: modes.feedthrough.nrows(),
        }
    }

    fn block(&self, row: usize, column: usize) -> DMatrix<f64> {
        let starts = [0, self.states, self.states + self.inputs];
        let sizes = [self.states, self.inputs, self.outputs];
        let (start, size) = ((starts[row], starts[column]), (sizes[row], sizes[column]));
        self.sums.view(start, size).into_owned()
    }

    /// tr(M E), E being the moments of y − W z − D u.
    ///
    /// ```text
    /// tr M (Y − 2 W Z_y − 2 D U_y + W Z Wᵀ + 2 W Z_u Dᵀ + D U Dᵀ)
    /// ```
    fn error(&self, w: &DMatrix<f64>, d: &DMatrix<f64>, metric: &DMatrix<f64>) -> f64 {
        let by_states = metric * w;
        let by_inputs = through(&d.transpose(), metric).transpose();
        let alone = metric.dot(&self.block(2, 2));
        let across = by_states.dot(&self.block(0, 2).transpose())
            + by_inputs.dot(&self.block(1, 2).transpose())
            - by_states.dot(&through(d, &self.block(1, 0)));
        let own =
            by_states.dot(&(w * self.block(0, 0))) + by_inputs.dot(&through(d, &self.block(1, 1)));
        (alone - 2.0 * across + own).max(0.0)
    }
}

/// D X.
fn through(d: &DMatrix<f64>, x: &DMatrix<f64>) -> DMatrix<f64> {
    if !is_diagonal(d) {
        return d * x;
    }
    let mut scaled = x.clone();
    for (mut row, d) in scaled.row_iter_mut().zip(d.diagonal().iter()) {
        row *= *d;
    }
    scaled
}

/// Σ of a matrix of each sample, over those that fit and those held out.
fn sums(samples: &[Sample], of: impl Fn(&Sample) -> DMatrix<f64> + Sync) -> Sums {
    let numbered: Vec<_> = samples.iter().enumerate().collect();
    let size = numbered.len().div_ceil(GROUPS).max(1);
    let groups = numbered.par_chunks(size).map(|group| {
        let mut sums: [Option<DMatrix<f64>>; 2] = [None, None];
        for (index, sample) in group {
            let own = of(sample);
            match &mut sums[usize::from(is_held_out(*index, samples.len()))] {
                Some(sum) => *sum += own,
                none => *none = Some(own),
            }
        }
        sums
    });
    let mut total: [Option<DMatrix<f64>>; 2] = [None, None];
    for sums in groups.collect::<Vec<_>>() {
        for (total, own) in total.iter_mut().zip(sums) {
            match (total.as_mut(), own) {
                (Some(total), Some(own)) => *total += own,
                (None, own) => *total = own,
                (_, None) => {}
            }
        }
    }
    let [fit, check] = total;
    let fit = fit.unwrap_or_default();
    let check = check.unwrap_or_else(|| fit.clone());
    Sums { fit, check }
}

fn is_held_out(index: usize, count: usize) -> bool {
    count >= CHECK_EVERY && index % CHECK_EVERY == CHECK_EVERY - 1
}

/// The moments of (z, u, y) from Σ z (z, u, y)ᵀ and those of (u, y).
fn bordered(own: &DMatrix<f64>, known: &DMatrix<f64>) -> DMatrix<f64> {
    let (states, size) = own.shape();
    let mut whole = DMatrix::zeros(size, size);
    whole.rows_mut(0, states).copy_from(own);
    let right = own.columns(states, size - states).transpose();
    whole
        .view_mut((states, 0), (size - states, states))
        .copy_from(&right);
    whole
        .view_mut((states, states), known.shape())
        .copy_from(known);
    whole
}

impl<'a> Problem<'a> {
    pub(super) fn new(samples: &'a [Sample], metric: &'a DMatrix<f64>) -> Self {
        Self {
            known: sums(samples, |sample| {
                gram_matrix(&joined(&[&sample.input, &sample.target]))
            }),
            samples,
            metric,
        }
    }

    /// The squared output ‖y‖² in the metric.
    pub(super) fn size(&self) -> f64 {
        let sums = self.samples.par_iter().map(|sample| {
            let moments = gram_matrix(&sample.target);
            self.metric.component_mul(&moments).sum()
        });
        sums.collect::<Vec<f64>>().iter().sum()
    }

    fn moments(&self, modes: &Modes) -> Sums {
        let own = sums(self.samples, |sample| {
            let z = modes.states(&sample.input);
            let across = [&sample.input, &sample.target].map(|known| cross_gram(&z, known));
            joined(&[&gram_matrix(&z), &across[0], &across[1]])
        });
        Sums {
            fit: bordered(&own.fit, &self.known.fit),
            check: bordered(&own.check, &self.known.check),
        }
    }

    /// The errors of a system as it is.
    pub(super) fn measured(&self, modes: Modes) -> Fitted {
        let sums = self.moments(&modes);
        self.measured_by(modes, &sums)
    }

    fn measured_by(&self, modes: Modes, sums: &Sums) -> Fitted {
        let w = modes.output_matrix();
        let error = |sums| Blocks::new(sums, &modes).error(&w, &modes.feedthrough, self.metric);
        let (fit, check) = (error(&sums.fit), error(&sums.check));
        Fitted {
            // Of few sequences those that fit are also those that check.
            error: match self.samples.len() < CHECK_EVERY {
                true => fit,
                false => fit + check,
            },
            check,
            modes,
        }
    }

    /// C and D by ridge least squares; of the ridges the one with the least error on the held-out
    /// sequences, and the system as it is where none is better.
    pub(super) fn outputs_fitted(&self, modes: Modes) -> Fitted {
        let sums = self.moments(&modes);
        let blocks = Blocks::new(&sums.fit, &modes);
        let mut best = self.measured_by(modes.clone(), &sums);
        for ridge in RIDGES {
            let Some((w, d)) = ridged(&blocks, &modes, ridge) else {
                continue;
            };
            let mut candidate = modes.clone();
            candidate.set_output_matrix(&w);
            candidate.feedthrough = d;
            let candidate = self.measured_by(candidate, &sums);
            if candidate.check < best.check {
                best = candidate;
            }
        }
        best
    }

    /// Rounds of fits of B, of the poles, and of C and D after each. Every step only where the error
    /// on the held-out sequences falls.
    pub(super) fn alternated(&self, start: Fitted, rounds: usize) -> Fitted {
        let size = self.size();
        let mut best = start;
        for _ in 0..rounds {
            let before = best.check;
            if best.error <= ERROR_MIN * size {
                break;
            }
            match 2 * best.modes.input.len() {
                numbers if numbers <= TOGETHER => self.input_step(&mut best),
                _ => self.large_input_step(&mut best),
            }
            self.pole_step(&mut best);
            if best.check > (1.0 - GAIN_MIN) * before {
                break;
            }
        }
        best
    }

    /// The best of the present system and those after each of some steps.
    fn try_steps(
        &self,
        best: &mut Fitted,
        steps: &[DVector<f64>],
        moved: impl Fn(&Modes, &DVector<f64>) -> Modes,
    ) {
        let start = best.modes.clone();
        for step in steps {
            if step.iter().any(|x| !x.is_finite()) {
                continue;
            }
            let candidate = self.outputs_fitted(moved(&start, step));
            if candidate.check < best.check {
                *best = candidate;
            }
        }
    }

    /// Samples for steps of B: those that fit, or every so many of them.
    fn samples_for_inputs(&self) -> Vec<&'a Sample> {
        let steps = self.samples.iter().map(|sample| sample.input.nrows());
        let every = steps.sum::<usize>().div_ceil(STEPS_MAX).max(1);
        let kept = self.samples.iter().enumerate();
        let kept = kept.filter(|(index, _)| !is_held_out(*index, self.samples.len()));
        kept.map(|(_, sample)| sample).step_by(every).collect()
    }

    /// B by ridge least squares, from the moments of λ_i^k ∗ u_j.
    fn input_step(&self, best: &mut Fitted) {
        let modes = &best.modes;
        let sums = filtered::moments(&self.samples_for_inputs(), modes);
        let (normal, slope) = normal_equations(modes, self.metric, &sums, modes.input.ncols());
        self.try_steps(best, &priced(&normal, &slope), |modes, step| {
            let (order, inputs) = modes.input.shape();
            let (re, im) = step.as_slice().split_at(order * inputs);
            let by = |parts: &[f64]| DMatrix::from_row_slice(order, inputs, parts);
            modes.with_input(&modes.input + by(re).zip_map(&by(im), Complex64::new))
        });
    }

    /// The same where normal equations would be too large to form.
    fn large_input_step(&self, best: &mut Fitted) {
        let samples = self.samples_for_inputs();
        let steps = InputCurvature::new(&samples, &best.modes, self.metric).steps();
        self.try_steps(best, &steps, |modes, step| {
            modes.with_input(&modes.input + input_of(modes, step))
        });
    }

    /// Poles by a Gauss–Newton step, with the sensitivities projected against the states; no pole
    /// goes more than half its way to the circle.
    fn pole_step(&self, best: &mut Fitted) {
        let modes = &best.modes;
        let k = modes.states_count();
        let sums = sums(self.samples, |sample| {
            let states = modes.states(&sample.input);
            let rest = &sample.target - modes.response_of(&states, &sample.input);
            let slopes = modes.pole_slopes(&sample.input);
            gram_matrix(&joined(&[&states, &slopes, &rest]))
        });
        let Some(sums) = projected(&sums.fit, k) else {
            return;
        };
        let (normal, slope) = normal_equations(modes, self.metric, &sums, 1);
        self.try_steps(best, &priced(&normal, &slope), |modes, step| {
            let mut moved = modes.clone();
            let order = modes.order();
            for (i, pole) in modes.poles().into_iter().enumerate() {
                let by = Complex64::new(step[i], step[order + i]);
                let most = 0.5 * (1.0 - pole.norm()).max(0.0);
                let by = by * (most / by.norm().max(most)).min(1.0);
                moved.exponents[i] += (by / pole + 1.0).ln();
            }
            moved
        });
    }
}

/// Least squares steps at each price.
fn priced(normal: &DMatrix<f64>, slope: &DVector<f64>) -> Vec<DVector<f64>> {
    let mean = normal.trace() / normal.nrows().max(1) as f64;
    let steps = PRICES.iter().filter_map(|price| {
        let mut priced = normal.clone();
        for i in 0..priced.nrows() {
            priced[(i, i)] += price * normal[(i, i)] + 1e-12 * mean;
        }
        solve_positive(&priced, slope)
    });
    steps.collect()
}

/// The moments of what comes behind the first k columns, with these projected out.
fn projected(sums: &DMatrix<f64>, k: usize) -> Option<DMatrix<f64>> {
    let rest = sums.nrows() - k;
    let mut own = sums.view((0, 0), (k, k)).into_owned();
    let least = 1e-9 * own.trace() / k.max(1) as f64;
    (0..k).for_each(|i| own[(i, i)] += 1e-9 * sums[(i, i)] + least * 1e-3);
    let across = sums.view((0, k), (k, rest)).into_owned();
    let root = Cholesky::new(own)?;
    Some(sums.view((k, k), (rest, rest)) - across.transpose() * root.solve(&across))
}

/// W and D of least Σ ‖y − W z − D u‖² with a ridge on both, towards 0 and towards the D before, which
/// may have to stay.
fn ridged(blocks: &Blocks<'_>, modes: &Modes, ridge: f64) -> Option<(DMatrix<f64>, DMatrix<f64>)> {
    let before = &modes.feedthrough;
    let scale = blocks.block(0, 0).diagonal();
    let scale = scale.map(|g: f64| if g > 0.0 { g.sqrt().recip() } else { 0.0 });
    let scaled = |mut rows: DMatrix<f64>| {
        for (mut row, s) in rows.row_iter_mut().zip(scale.iter()) {
            row *= *s;
        }
        rows
    };
    let mut states = scaled(scaled(blocks.block(0, 0)).transpose());
    (0..states.nrows()).for_each(|i| states[(i, i)] += ridge.max(1e-12));
    let root = Cholesky::new(states)?;
    let (across, targets) = (scaled(blocks.block(0, 1)), scaled(blocks.block(0, 2)));
    let (by_input, by_target) = (root.solve(&across), root.solve(&targets));
    let inputs = blocks.block(1, 1);
    // What is left of u and y when the states are taken out.
    let left = &inputs - across.transpose() * &by_input;
    let both = blocks.block(1, 2) - across.transpose() * &by_target;
    let d = match is_diagonal(before) {
        _ if modes.feedthrough_stays => before.clone(),
        true => DMatrix::from_diagonal(&DVector::from_fn(before.nrows(), |h, _| {
            let price = ridge * inputs[(h, h)];
            let below = left[(h, h)] + price;
            match below > 0.0 {
                true => (both[(h, h)] + price * before[(h, h)]) / below,
                false => before[(h, h)],
            }
        })),
        false => {
            let mut left = left;
            let mut both = both;
            for i in 0..inputs.nrows() {
                let price = ridge * inputs[(i, i)] + 1e-12 * inputs.trace();
                left[(i, i)] += price;
                for h in 0..before.nrows() {
                    both[(i, h)] += price * before[(h, i)];
                }
            }
            Cholesky::new(left)?.solve(&both).transpose()
        }
    };
    let w = scaled(by_target - by_input * d.transpose()).transpose();
    Some((w, d))
}

/// The normal equations of changes of numbers that enter through the states, from the moments of
/// (f, e): f has a column for each direction, part, mode and each of `inputs`, and e is what is left
/// of the output. The unknowns are the real parts of all (mode, input), then the imaginary parts.
///
/// ```text
/// y changes by Re(C_i f_ij (α + iβ)) = (Re C_i f' − Im C_i f'') α − (Im C_i f' + Re C_i f'') β
/// ```
fn normal_equations(
    modes: &Modes,
    metric: &DMatrix<f64>,
    sums: &DMatrix<f64>,
    inputs: usize,
) -> (DMatrix<f64>, DVector<f64>) {
    let (order, outputs) = (modes.order(), metric.nrows());
    let columns = modes.states_count();
    let w = modes.output_matrix();
    // The same for β: the columns of a mode change places, the first with its sign changed.
    let turned = DMatrix::from_fn(outputs, columns, |h, k| match k / order % 2 {
        0 => w[(h, k + order)],
        _ => -w[(h, k - order)],
    });
    let parts = [w, turned];
    let unknowns = 2 * order * inputs;
    let mut normal = DMatrix::zeros(unknowns, unknowns);
    let mut slope = DVector::zeros(unknowns);
    let place = |part: usize, k: usize, j: usize| (part * order + k % order) * inputs + j;
    for (p, own) in parts.iter().enumerate() {
        let weighted = metric * own;
        for k in 0..columns {
            for j in 0..inputs {
                let rest = sums.view((k * inputs + j, columns * inputs), (1, outputs));
                slope[place(p, k, j)] += (rest * weighted.column(k))[(0, 0)];
            }
        }
        for (q, other) in parts.iter().enumerate() {
            let products = weighted.transpose() * other;
            for k in 0..columns {
                for l in 0..columns {
                    let factor = products[(k, l)];
                    let from = (place(p, k, 0), place(q, l, 0));
                    let own = sums.view((k * inputs, l * inputs), (inputs, inputs));
                    let mut into = normal.view_mut(from, (inputs, inputs));
                    into.zip_apply(&own, |sum, f| *sum += factor * f);
                }
            }
        }
    }
    (normal, slope)
}
