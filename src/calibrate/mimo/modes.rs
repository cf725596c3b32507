//! Modes that several channels share, in one direction of time or in both, on whole sequences.

use hankelite_control::{DiagonalSystem, SystemError, Time, cross_gram, product};
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

    /// A causal system in the place of these modes.
    pub(super) fn replaced(&self, system: &DiagonalSystem) -> Self {
        Self {
            exponents: system.scaled_exponents(),
            input: system.input().clone(),
            outputs: vec![system.output().clone()],
            feedthrough: system.feedthrough().clone(),
            ..self.clone()
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
        let (order, inputs) = self.input.shape();
        let driving = DMatrix::from_fn(inputs, 2 * order, |j, k| match k < order {
            true => self.input[(k, j)].re,
            false => self.input[(k - order, j)].im,
        });
        let driven = product(u, &driving);
        let mut z = DMatrix::zeros(u.nrows(), self.states_count());
        let poles = self.poles();
        for (direction, own) in self.each_direction(&mut z).enumerate() {
            own.copy_from_slice(driven.as_slice());
            recur(&poles, own, direction == 1);
            self.see(own, u.nrows(), direction);
        }
        z
    }

    /// The columns of every direction.
    fn each_direction<'a>(
        &self,
        columns: &'a mut DMatrix<f64>,
    ) -> std::slice::ChunksExactMut<'a, f64> {
        let own = columns.len() / self.directions();
        columns.as_mut_slice().chunks_exact_mut(own.max(1))
    }

    /// Columns of a direction as the output of a step sees them: backwards in time they come from
    /// `lag` steps later.
    fn see(&self, columns: &mut [f64], length: usize, direction: usize) {
        if direction == 1 && self.lag > 0 {
            let lag = self.lag.min(length);
            for column in columns.chunks_exact_mut(length.max(1)) {
                column.copy_within(lag.., 0);
                column[length - lag..].fill(0.0);
            }
        }
    }

    /// y, L × p.
    pub(super) fn response(&self, u: &DMatrix<f64>) -> DMatrix<f64> {
        self.response_of(&self.states(u), u)
    }

    /// The same from z.
    pub(super) fn response_of(&self, z: &DMatrix<f64>, u: &DMatrix<f64>) -> DMatrix<f64> {
        let mut y = product(z, &self.output_matrix().transpose());
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
        let mut slopes = unseen.states(u);
        let (poles, length) = (self.poles(), u.nrows());
        for (direction, own) in self.each_direction(&mut slopes).enumerate() {
            for column in own.chunks_exact_mut(length.max(1)) {
                match direction {
                    0 => {
                        column.rotate_right(1);
                        column[0] = 0.0;
                    }
                    _ => {
                        column.rotate_left(1);
                        column[length - 1] = 0.0;
                    }
                }
            }
            recur(&poles, own, direction == 1);
            self.see(own, length, direction);
        }
        slopes
    }

    /// λ_i^k ∗ u_j for the modes `first..first + count`: column ((direction · 2 + part) · count + i) m + j.
    pub(super) fn filtered(&self, u: &DMatrix<f64>, first: usize, count: usize) -> DMatrix<f64> {
        let (length, inputs) = u.shape();
        let mut out = DMatrix::zeros(length, 2 * self.directions() * count * inputs);
        let poles = self.poles();
        let poles = poles[first..first + count].iter();
        let poles: Vec<Complex64> = poles
            .flat_map(|&a| std::iter::repeat_n(a, inputs))
            .collect();
        for (direction, own) in self.each_direction(&mut out).enumerate() {
            let real = own.chunks_exact_mut(u.len().max(1)).take(count);
            real.for_each(|real| real.copy_from_slice(u.as_slice()));
            recur(&poles, own, direction == 1);
            self.see(own, length, direction);
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
        self.adjoints_driven(product(g, &self.output_matrix()))
    }

    /// The same from the derivatives by z, L × its columns.
    pub(super) fn adjoints_driven(&self, mut driven: DMatrix<f64>) -> Vec<DMatrix<f64>> {
        let length = driven.nrows();
        let conjugates: Vec<Complex64> = self.poles().iter().map(Complex64::conj).collect();
        let directions = self.each_direction(&mut driven).enumerate();
        let adjoints = directions.map(|(direction, own)| {
            if direction == 1 && self.lag > 0 {
                for column in own.chunks_exact_mut(length.max(1)) {
                    let lag = self.lag.min(length);
                    column.rotate_right(lag);
                    column[..lag].fill(0.0);
                }
            }
            recur(&conjugates, own, direction == 0);
            DMatrix::from_column_slice(length, 2 * self.order(), own)
        });
        adjoints.collect()
    }

    /// ∂/∂Re + i ∂/∂Im by B, from the adjoint states and the input.
    pub(super) fn input_slopes(
        &self,
        adjoints: &[DMatrix<f64>],
        u: &DMatrix<f64>,
    ) -> DMatrix<Complex64> {
        let order = self.order();
        let mut slopes = DMatrix::zeros(order, u.ncols());
        for p in adjoints {
            let by_input = cross_gram(p, u);
            let [re, im] = [0, order].map(|first| by_input.rows(first, order));
            slopes += re.zip_map(&im, Complex64::new);
        }
        slopes
    }
}

/// Whether D has entries on its diagonal only, as most layouts store it.
pub(super) fn is_diagonal(d: &DMatrix<f64>) -> bool {
    let places = (0..d.ncols()).flat_map(|j| (0..d.nrows()).map(move |i| (i, j)));
    d.is_square() && places.filter(|(i, j)| i != j).all(|place| d[place] == 0.0)
}

/// Modes whose recurrences run beside one another: each waits for its own last step.
const BESIDE: usize = 4;

/// s ← a s + x along columns, or from their end: the real parts of one column for each pole, then the
/// imaginary parts.
fn recur(poles: &[Complex64], columns: &mut [f64], reversed: bool) {
    let (re, im) = columns.split_at_mut(columns.len() / 2);
    let length = re.len() / poles.len().max(1);
    let some = (BESIDE * length).max(1);
    let parts = re.chunks_mut(some).zip(im.chunks_mut(some));
    for (poles, (re, im)) in poles.chunks(BESIDE).zip(parts) {
        if let Ok(poles) = poles.try_into() {
            recur_beside::<BESIDE>(poles, re, im, reversed);
            continue;
        }
        let each = re.chunks_mut(length).zip(im.chunks_mut(length));
        for (&pole, (re, im)) in poles.iter().zip(each) {
            recur_beside(&[pole], re, im, reversed);
        }
    }
}

fn recur_beside<const M: usize>(
    poles: &[Complex64; M],
    re: &mut [f64],
    im: &mut [f64],
    reversed: bool,
) {
    let length = re.len() / M;
    let mut states = [Complex64::ZERO; M];
    for step in 0..length {
        let t = if reversed { length - 1 - step } else { step };
        for (m, (state, pole)) in states.iter_mut().zip(poles).enumerate() {
            let at = m * length + t;
            *state = pole * *state + Complex64::new(re[at], im[at]);
            (re[at], im[at]) = (state.re, state.im);
        }
    }
}
