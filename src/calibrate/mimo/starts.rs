//! Two starts with fewer modes: balanced truncation by moments, and the best of the modes themselves.

use hankelite_control::{
    ControlError, DenseSystem, DiagonalSystem, Time, dense_moment_balance, diagonalise,
};
use nalgebra::{Cholesky, DMatrix};
use num_complex::Complex64;

use crate::calibrate::mimo::modes::Modes;
use crate::calibrate::mimo::moments::Moments;

/// Rounds of exchanging modes at most.
const EXCHANGES: usize = 3;

/// What keeps the moments of nearly parallel states invertible, relative to their mean square.
const RIDGE: f64 = 1e-9;

/// The least decay of a mode that truncation made unstable.
const DECAY_MIN: f64 = 1e-6;

/// Balanced truncation of the real system by its moments, to the largest order whose modes are at
/// most `order` stored ones; what is left of these is filled with modes from `others`. `None` where
/// no order can be made diagonal.
///
/// # Errors
/// [`ControlError`] where the moments cannot be factored.
pub(super) fn balanced(
    modes: &Modes,
    moments: &Moments,
    order: usize,
    others: &[usize],
) -> Result<Option<Modes>, ControlError> {
    let system = real_system(modes)?;
    let states = moments.controllability(modes);
    let balanced = dense_moment_balance(&system, &states, &moments.observability(modes))?;
    let cuts = (order..=2 * order).rev();
    let mut cuts = cuts.filter_map(|states| {
        let cut = balanced.truncate(states).ok()?;
        let (system, _) = diagonalise(&cut.system).ok()?;
        (system.order() <= order).then_some(system)
    });
    let Some(system) = cuts.next() else {
        return Ok(None);
    };
    let mut made = from_stacked(modes, &system);
    let fill = order - made.order();
    made.append(modes, &others[..fill.min(others.len())]);
    Ok(Some(made))
}

/// The real system in the coordinates (Re x, Im x), with the outputs of both directions below each
/// other.
fn real_system(modes: &Modes) -> Result<DenseSystem, ControlError> {
    let (order, outputs) = (modes.order(), modes.feedthrough.nrows());
    let mut state = DMatrix::zeros(2 * order, 2 * order);
    for (i, a) in modes.poles().iter().enumerate() {
        state[(i, i)] = a.re;
        state[(order + i, order + i)] = a.re;
        state[(i, order + i)] = -a.im;
        state[(order + i, i)] = a.im;
    }
    let input = DMatrix::from_fn(2 * order, modes.input.ncols(), |k, j| {
        let b = modes.input[(k % order, j)];
        if k < order { b.re } else { b.im }
    });
    let output = DMatrix::from_fn(outputs * modes.directions(), 2 * order, |h, k| {
        let c = modes.outputs[h / outputs][(h % outputs, k % order)];
        if k < order { c.re } else { -c.im }
    });
    let through = DMatrix::zeros(output.nrows(), input.ncols());
    let time = Time::Discrete { step: 1.0 };
    Ok(DenseSystem::new(time, state, input, output, through)?)
}

fn from_stacked(modes: &Modes, system: &DiagonalSystem) -> Modes {
    let outputs = modes.feedthrough.nrows();
    let directions = 0..modes.directions();
    let exponents = system.scaled_exponents().into_iter();
    Modes {
        exponents: exponents.map(decaying).collect(),
        input: system.input().clone(),
        outputs: directions
            .map(|d| system.output().rows(d * outputs, outputs).into_owned())
            .collect(),
        feedthrough: modes.feedthrough.clone(),
        lag: modes.lag,
        feedthrough_stays: modes.feedthrough_stays,
    }
}

/// A mode that grows decays as fast instead.
fn decaying(z: Complex64) -> Complex64 {
    let least = if z.re < 0.0 { 0.0 } else { DECAY_MIN };
    Complex64::new(-z.re.abs().max(least), z.im)
}

impl Modes {
    /// Some of the modes.
    pub(super) fn chosen(&self, which: &[usize]) -> Self {
        Self {
            exponents: which.iter().map(|&i| self.exponents[i]).collect(),
            input: self.input.select_rows(which),
            outputs: self
                .outputs
                .iter()
                .map(|c| c.select_columns(which))
                .collect(),
            feedthrough: self.feedthrough.clone(),
            lag: self.lag,
            feedthrough_stays: self.feedthrough_stays,
        }
    }

    /// The same modes behind another B.
    pub(super) fn with_input(&self, input: DMatrix<Complex64>) -> Self {
        Self {
            input,
            ..self.clone()
        }
    }

    /// Adds modes of another system, without a part in the output.
    fn append(&mut self, from: &Self, which: &[usize]) {
        let more = from.chosen(which);
        let (before, after) = (self.order(), self.order() + which.len());
        self.exponents.extend(more.exponents);
        self.input = DMatrix::from_fn(after, self.input.ncols(), |i, j| match i < before {
            true => self.input[(i, j)],
            false => more.input[(i - before, j)],
        });
        for output in &mut self.outputs {
            *output = DMatrix::from_fn(output.nrows(), after, |h, i| match i < before {
                true => output[(h, i)],
                false => Complex64::ZERO,
            });
        }
    }
}

/// The modes that explain most of the output in the metric M, each with its whole state, best first:
/// forward selection, then exchange of single modes.
///
/// ```text
/// maximise tr(T_S G_SS⁻¹ T_Sᵀ),   T = M^{1/2} W G
/// ```
///
/// Cost O(r P²) for each sweep of r² exchanges, P being the modes there are.
pub(super) fn selected(modes: &Modes, moments: &Moments, order: usize) -> Vec<usize> {
    let full = Explained::new(modes, moments);
    let mut chosen = Vec::new();
    let mut left = full.clone();
    while chosen.len() < order.min(modes.order()) {
        let best = left.best(&chosen);
        left.eliminate(best);
        chosen.push(best);
    }
    for _ in 0..EXCHANGES {
        let mut changed = false;
        for place in 0..chosen.len() {
            let mut left = full.clone();
            let others = chosen.iter().enumerate().filter(|(i, _)| *i != place);
            let others: Vec<usize> = others.map(|(_, mode)| *mode).collect();
            others.iter().for_each(|&mode| left.eliminate(mode));
            let best = left.best(&others);
            changed |= best != chosen[place];
            chosen[place] = best;
        }
        if !changed {
            break;
        }
    }
    chosen
}

/// What is left of states and output when some modes are taken out of both.
#[derive(Clone)]
struct Explained {
    /// G, what is left of it.
    states: DMatrix<f64>,
    /// T.
    output: DMatrix<f64>,
    order: usize,
    directions: usize,
    /// Added to the diagonal of a mode's own block.
    ridge: Vec<f64>,
}

impl Explained {
    fn new(modes: &Modes, moments: &Moments) -> Self {
        let root = Cholesky::new(moments.metric()).map(|root| root.l().transpose());
        let weighted = modes.output_matrix() * &moments.states;
        Self {
            output: root.map_or_else(|| weighted.clone(), |root| root * &weighted),
            ridge: moments
                .states
                .diagonal()
                .iter()
                .map(|g| RIDGE * g)
                .collect(),
            states: moments.states.clone(),
            order: modes.order(),
            directions: modes.directions(),
        }
    }

    /// The columns of a mode.
    fn columns(&self, mode: usize) -> Vec<usize> {
        let parts = 0..2 * self.directions;
        parts.map(|part| part * self.order + mode).collect()
    }

    /// The inverse of a mode's own block.
    fn own(&self, columns: &[usize]) -> Option<DMatrix<f64>> {
        let size = columns.len();
        let mut block = DMatrix::from_fn(size, size, |i, j| self.states[(columns[i], columns[j])]);
        // A real mode has an imaginary part of zero.
        let least = columns.iter().map(|&k| self.ridge[k]).fold(0.0, f64::max);
        for (i, _) in columns.iter().enumerate() {
            block[(i, i)] += least.max(f64::MIN_POSITIVE);
        }
        Cholesky::new(block).map(|root| root.inverse())
    }

    /// What a mode explains of what is left.
    fn gain(&self, mode: usize) -> f64 {
        let columns = self.columns(mode);
        let Some(inverse) = self.own(&columns) else {
            return 0.0;
        };
        let output = self.output.select_columns(&columns);
        (&output * inverse).component_mul(&output).sum()
    }

    /// The mode that explains most, but for those taken.
    fn best(&self, taken: &[usize]) -> usize {
        let free = (0..self.order).filter(|mode| !taken.contains(mode));
        let gains = free.map(|mode| (mode, self.gain(mode)));
        let best = gains.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)));
        best.map_or(0, |(mode, _)| mode)
    }

    fn eliminate(&mut self, mode: usize) {
        let columns = self.columns(mode);
        let Some(inverse) = self.own(&columns) else {
            return;
        };
        let states = self.states.select_columns(&columns) * inverse;
        let rows = self.states.select_rows(&columns);
        self.output -= self.output.select_columns(&columns) * (states.transpose());
        self.states -= states * rows;
    }
}
