//! Modes that several channels share, in one direction of time or in both, on whole sequences.

use hankelite_control::{DiagonalSystem, SystemError, Time};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::model::Block;

/// A system of a layer: r modes behind m inputs and before p outputs. Of a layer that runs in both
/// directions, both have the same modes and input weights.
///
/// ```text
/// x_k = a x_{k−1} + B u_k,   x'_k = a x'_{k+1} + B u_k,   y_k = Re(C x_k) + Re(C' x'_{k+s}) + D u_k
/// ```
///
/// States stand in real coordinates z = (Re x, Im x, Re x', Im x'), so that y = W z + D u with
/// W = (Re C, −Im C, Re C', −Im C').
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Modes {
    /// λΔ, r of them: a = e^{λΔ}.
    pub(super) exponents: Vec<Complex64>,
    /// B, r × m.
    pub(super) input: DMatrix<Complex64>,
    /// C, p × r, of each direction.
    pub(super) outputs: Vec<DMatrix<Complex64>>,
    /// D, p × m.
    pub(super) feedthrough: DMatrix<f64>,
    /// s: the lag at which kernels backwards in time start.
    pub(super) lag: usize,
    /// Whether D stays as it is, because the file has no place for it.
    pub(super) feedthrough_stays: bool,
}

impl Modes {
    /// The modes of a system of a layer, and of the one backwards in time where there is one: it must have
    /// the same modes and input weights.
    pub(super) fn of(block: &Block, unit: usize) -> Self {
        let forward = &block.systems()[unit];
        let both = std::iter::once(forward).chain(block.backward().get(unit));
        Self {
            exponents: forward.scaled_exponents(),
            input: forward.input().clone(),
            outputs: both.map(|system| system.output().clone()).collect(),
            feedthrough: forward.feedthrough().clone(),
            lag: block.backward_from(),
            feedthrough_stays: !block.holds_feedthrough(),
        }
    }

    /// The systems of all directions.
    pub(super) fn systems(&self, time: Time) -> Result<Vec<DiagonalSystem>, SystemError> {
        let step = match time {
            Time::Discrete { step } => step,
            Time::Continuous => 1.0,
        };
        let none = DMatrix::zeros(self.feedthrough.nrows(), self.feedthrough.ncols());
        let directions = self.outputs.iter().enumerate();
        let systems = directions.map(|(direction, output)| {
            let exponents = self.exponents.iter().map(|z| z / step).collect();
            let through = if direction == 0 {
                &self.feedthrough
            } else {
                &none
            };
            let (input, output) = (self.input.clone(), output.clone());
            DiagonalSystem::new(time, exponents, input, output, through.clone())
        });
        systems.collect()
    }

    pub(super) fn order(&self) -> usize {
        self.exponents.len()
    }

    pub(super) fn directions(&self) -> usize {
        self.outputs.len()
    }

    /// Columns of z.
    pub(super) fn states_count(&self) -> usize {
        2 * self.order() * self.directions()
    }

    pub(super) fn poles(&self) -> Vec<Complex64> {
        self.exponents.iter().map(|z| z.exp()).collect()
    }

    /// W, p × columns of z.
    pub(super) fn output_matrix(&self) -> DMatrix<f64> {
        let order = self.order();
        DMatrix::from_fn(self.feedthrough.nrows(), self.states_count(), |h, k| {
            let c = self.outputs[k / (2 * order)][(h, k % order)];
            if (k / order).is_multiple_of(2) {
                c.re
            } else {
                -c.im
            }
        })
    }

    /// Puts W in place.
    pub(super) fn set_output_matrix(&mut self, w: &DMatrix<f64>) {
        let order = self.order();
        for (direction, output) in self.outputs.iter_mut().enumerate() {
            let first = 2 * order * direction;
            *output = DMatrix::from_fn(w.nrows(), order, |h, i| {
                Complex64::new(w[(h, first + i)], -w[(h, first + order + i)])
            });
        }
    }

    /// z of every step, L × its columns, from u, L × m. Cost O(L r m).
    pub(super) fn states(&self, u: &DMatrix<f64>) -> DMatrix<f64> {
        let driven = [
            u * self.input.map(|b| b.re).transpose(),
            u * self.input.map(|b| b.im).transpose(),
        ];
        let (order, length) = (self.order(), u.nrows());
        let mut z = DMatrix::zeros(length, self.states_count());
        let poles = self.poles();
        for direction in 0..self.directions() {
            for (i, &pole) in poles.iter().enumerate() {
                let [mut re, mut im] =
                    [0, 1].map(|part| driven[part].column(i).as_slice().to_vec());
                recur(pole, &mut re, &mut im, direction == 1);
                let first = 2 * order * direction + i;
                for (part, of) in [(0, re), (1, im)] {
                    let mut column = z.column_mut(first + part * order);
                    column.copy_from_slice(&self.seen(of, direction));
                }
            }
        }
        z
    }

    /// A signal of a direction as the output of a step sees it: backwards in time it comes from
    /// `lag` steps later.
    fn seen(&self, mut signal: Vec<f64>, direction: usize) -> Vec<f64> {
        if direction == 1 && self.lag > 0 {
            let lag = self.lag.min(signal.len());
            signal.drain(..lag);
            signal.resize(signal.len() + lag, 0.0);
        }
        signal
    }

    /// y, L × p.
    pub(super) fn response(&self, u: &DMatrix<f64>) -> DMatrix<f64> {
        self.response_of(&self.states(u), u)
    }

    /// The same from z.
    pub(super) fn response_of(&self, z: &DMatrix<f64>, u: &DMatrix<f64>) -> DMatrix<f64> {
        let mut y = z * self.output_matrix().transpose();
        match is_diagonal(&self.feedthrough) {
            true => {
                let channels = y.column_iter_mut().zip(u.column_iter());
                for ((mut y, u), d) in channels.zip(self.feedthrough.diagonal().iter()) {
                    y.axpy(*d, &u, 1.0);
                }
            }
            false => y += u * self.feedthrough.transpose(),
        }
        y
    }

    /// The derivatives ∂x/∂a of every state, in the order of z.
    ///
    /// ```text
    /// d_k = a d_{k−1} + x_{k−1}
    /// ```
    pub(super) fn pole_slopes(&self, u: &DMatrix<f64>) -> DMatrix<f64> {
        let unseen = Self {
            lag: 0,
            ..self.clone()
        };
        let states = unseen.states(u);
        let (order, length) = (self.order(), u.nrows());
        let mut slopes = DMatrix::zeros(length, states.ncols());
        for direction in 0..self.directions() {
            for (i, &pole) in self.poles().iter().enumerate() {
                let first = 2 * order * direction + i;
                let [mut re, mut im] = [0, 1].map(|part| {
                    let column = states.column(first + part * order);
                    let mut moved = vec![0.0; length];
                    for t in 1..length {
                        match direction {
                            0 => moved[t] = column[t - 1],
                            _ => moved[t - 1] = column[t],
                        }
                    }
                    moved
                });
                recur(pole, &mut re, &mut im, direction == 1);
                for (part, of) in [(0, re), (1, im)] {
                    let mut column = slopes.column_mut(first + part * order);
                    column.copy_from_slice(&self.seen(of, direction));
                }
            }
        }
        slopes
    }

    /// λ_i^k ∗ u_j for the modes `first..first + count`: column ((direction · 2 + part) · count + i) m + j.
    pub(super) fn filtered(&self, u: &DMatrix<f64>, first: usize, count: usize) -> DMatrix<f64> {
        let (inputs, length) = (u.ncols(), u.nrows());
        let mut out = DMatrix::zeros(length, 2 * self.directions() * count * inputs);
        let poles = self.poles();
        for direction in 0..self.directions() {
            for i in 0..count {
                for j in 0..inputs {
                    let mut re = u.column(j).as_slice().to_vec();
                    let mut im = vec![0.0; length];
                    recur(poles[first + i], &mut re, &mut im, direction == 1);
                    for (part, of) in [(0, re), (1, im)] {
                        let place = ((direction * 2 + part) * count + i) * inputs + j;
                        let mut column = out.column_mut(place);
                        column.copy_from_slice(&self.seen(of, direction));
                    }
                }
            }
        }
        out
    }

    /// The adjoint states of every direction, each (Re p, Im p), L × 2 r, from the derivatives g by
    /// y, L × p.
    ///
    /// ```text
    /// p_k = ā p_{k+1} + C* g_k
    /// ```
    pub(super) fn adjoints(&self, g: &DMatrix<f64>) -> Vec<DMatrix<f64>> {
        let (order, length) = (self.order(), g.nrows());
        let directions = self.outputs.iter().enumerate();
        let adjoints = directions.map(|(direction, output)| {
            let parts = [g * output.map(|c| c.re), g * output.map(|c| -c.im)];
            let mut p = DMatrix::zeros(length, 2 * order);
            for (i, pole) in self.poles().iter().enumerate() {
                let mut driven = [0, 1].map(|part| parts[part].column(i).as_slice().to_vec());
                if direction == 1 && self.lag > 0 {
                    for part in &mut driven {
                        let lag = self.lag.min(length);
                        part.rotate_right(lag);
                        part[..lag].fill(0.0);
                    }
                }
                let [mut re, mut im] = driven;
                recur(pole.conj(), &mut re, &mut im, direction == 0);
                p.column_mut(i).copy_from_slice(&re);
                p.column_mut(order + i).copy_from_slice(&im);
            }
            p
        });
        adjoints.collect()
    }
}

/// Whether D has entries on its diagonal only, as most layouts store it.
pub(super) fn is_diagonal(d: &DMatrix<f64>) -> bool {
    let places = (0..d.ncols()).flat_map(|j| (0..d.nrows()).map(move |i| (i, j)));
    d.is_square() && places.filter(|(i, j)| i != j).all(|place| d[place] == 0.0)
}

/// s ← a s + x along a signal, or from its end.
fn recur(pole: Complex64, re: &mut [f64], im: &mut [f64], reversed: bool) {
    let mut state = Complex64::ZERO;
    let mut step = |re: &mut f64, im: &mut f64| {
        state = pole * state + Complex64::new(*re, *im);
        (*re, *im) = (state.re, state.im);
    };
    let pairs = re.iter_mut().zip(im);
    match reversed {
        false => pairs.for_each(|(re, im)| step(re, im)),
        true => pairs.rev().for_each(|(re, im)| step(re, im)),
    }
}
