//! Second moments of states, adjoint states and gradients: sums over sequences.

use hankelite_control::{geometric_sum, gram_matrix};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::calibrate::mimo::modes::Modes;

/// What is added to the metric of the outputs, whose mean diagonal entry is 1: no output is free.
const METRIC_MIN: f64 = 0.05;

/// Moments of one system of a layer, in the network as it is.
#[derive(Debug, Clone)]
pub(super) struct Moments {
    /// Σ z zᵀ.
    pub(super) states: DMatrix<f64>,
    /// Σ p pᵀ over steps and combinations of the logits, both directions added: 2r × 2r.
    pub(super) adjoints: DMatrix<f64>,
    /// Σ g gᵀ, p × p.
    pub(super) gradients: DMatrix<f64>,
    /// Steps, for the horizon of an adjoint without gradients.
    pub(super) length: usize,
}

impl Moments {
    pub(super) fn new(modes: &Modes, length: usize) -> Self {
        let (states, order) = (modes.states_count(), modes.order());
        let outputs = modes.feedthrough.nrows();
        Self {
            states: DMatrix::zeros(states, states),
            adjoints: DMatrix::zeros(2 * order, 2 * order),
            gradients: DMatrix::zeros(outputs, outputs),
            length,
        }
    }

    /// Adds a sequence u, L × m.
    pub(super) fn add_input(&mut self, modes: &Modes, u: &DMatrix<f64>) {
        self.states += gram_matrix(&modes.states(u));
    }

    /// Adds derivatives of a combination of the logits by y, L × p.
    pub(super) fn add_gradient(&mut self, modes: &Modes, g: &DMatrix<f64>) {
        self.gradients += gram_matrix(g);
        for p in modes.adjoints(g) {
            self.adjoints += gram_matrix(&p);
        }
    }

    pub(super) fn merge(&mut self, other: &Self) {
        self.states += &other.states;
        self.adjoints += &other.adjoints;
        self.gradients += &other.gradients;
    }

    /// M: the moments of the gradients with a mean diagonal entry of 1, and a little of the
    /// identity; that alone where there are no gradients.
    pub(super) fn metric(&self) -> DMatrix<f64> {
        let outputs = self.gradients.nrows();
        let identity = DMatrix::identity(outputs, outputs);
        let trace = self.gradients.trace();
        if !(trace > 0.0 && trace.is_finite()) {
            return identity;
        }
        &self.gradients * (outputs as f64 / trace) + identity * METRIC_MIN
    }

    /// Q of balancing: measured, or over L steps of white noise at the outputs, each of which then
    /// counts the same.
    pub(super) fn observability(&self, modes: &Modes) -> DMatrix<f64> {
        if self.adjoints.trace() > 0.0 {
            return self.adjoints.clone();
        }
        white_adjoints(modes, self.length)
    }

    /// G of balancing, both directions added: 2r × 2r.
    pub(super) fn controllability(&self, modes: &Modes) -> DMatrix<f64> {
        let size = 2 * modes.order();
        let mut sum = DMatrix::zeros(size, size);
        for direction in 0..modes.directions() {
            let first = direction * size;
            sum += self.states.view((first, first), (size, size));
        }
        sum
    }
}

/// Σ_k (W A^k)ᵀ (W A^k) over L steps, in closed form.
///
/// ```text
/// X_ij = (C*C)_ij g(ā_i a_j),  Y_ij = (CᵀC)_ij g(a_i a_j),  g(e^z) = Σ_l e^{zl}
/// Q = ½ [Re(X + Y)  −Im(X + Y); ·  Re(X − Y)]
/// ```
fn white_adjoints(modes: &Modes, length: usize) -> DMatrix<f64> {
    let order = modes.order();
    let mut q = DMatrix::zeros(2 * order, 2 * order);
    for output in &modes.outputs {
        let (xs, ys) = (output.adjoint() * output, output.transpose() * output);
        for i in 0..order {
            for j in 0..order {
                let (a, b) = (modes.exponents[i], modes.exponents[j]);
                let x: Complex64 = xs[(i, j)] * geometric_sum(a.conj() + b, length);
                let y: Complex64 = ys[(i, j)] * geometric_sum(a + b, length);
                q[(i, j)] += 0.5 * (x + y).re;
                q[(i, order + j)] -= 0.5 * (x + y).im;
                q[(order + j, i)] -= 0.5 * (x + y).im;
                q[(order + i, order + j)] += 0.5 * (x - y).re;
            }
        }
    }
    q
}

impl Moments {
    /// Those of white noise at every input and every output, over L steps.
    pub(super) fn white(modes: &Modes, length: usize) -> Self {
        // The states of (A, B) are the adjoint states of (Aᵀ, Bᵀ), in conjugate coordinates.
        let dual = Modes {
            exponents: modes.exponents.iter().map(Complex64::conj).collect(),
            input: modes.outputs[0].adjoint(),
            outputs: vec![modes.input.adjoint(); modes.directions()],
            feedthrough: modes.feedthrough.transpose(),
            lag: modes.lag,
            feedthrough_stays: modes.feedthrough_stays,
        };
        let size = 2 * modes.order();
        let own = white_adjoints(&dual, length) / modes.directions().max(1) as f64;
        let mut states = DMatrix::zeros(modes.states_count(), modes.states_count());
        for direction in 0..modes.directions() {
            let first = direction * size;
            states
                .view_mut((first, first), (size, size))
                .copy_from(&own);
        }
        let outputs = modes.feedthrough.nrows();
        Self {
            states,
            adjoints: white_adjoints(modes, length),
            gradients: DMatrix::zeros(outputs, outputs),
            length,
        }
    }
}
