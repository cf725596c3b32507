//! The recurrence of an unfolded network over a batch of sequences, with its gradient.
//!
//! With M = J = S Q_D (ℓ1-ℓ1 and reweighted) or M = [J; Q_D] (Sista), s = −w ∘ (M h − y):
//!
//! ```text
//! ℓ1-ℓ1, reweighted   h⁽⁰⁾ = ħ = G_c h_{t−1},                       y = x_t
//! Sista               z = F Q_D h_{t−1}, h⁽⁰⁾ = Q_Dᵀ z, ħ = 0,       y = [x_t; z]
//! layer l             v = h⁽ˡ⁻¹⁾ + Mᵀ s,   u = Z_l v or v,   h⁽ˡ⁾ = prox2(u; a_l, b_l, ħ)
//! ```
//!
//! No product of codes × codes matrices is formed. States are codes × batch, so that a piece of a
//! product is a run of rows, and each piece is the same whatever the number of threads. The
//! gradients of the square matrices are single products over all steps.
//!
//! # References
//! Le, Luong and Deligiannis, Algorithm 1 and equations (9) to (12).

use rayon::prelude::*;

use crate::linalg::RowMajor;
use crate::linalg::multiply_rows;
use crate::nn::baseline::prox;
use crate::nn::pool::Lease;
use crate::nn::pool::Workspace;
use crate::nn::real::Real;
use crate::nn::real::add;

/// Multiplications that are worth a piece of their own.
const PIECE: usize = 1 << 22;

/// The least rows of a piece.
const PIECE_ROWS: usize = 128;

/// The sizes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) length: usize,
    /// Numbers in a measurement x_t.
    pub(super) inputs: usize,
    /// Rows of Q_D in M; 0 but for Sista.
    pub(super) signal: usize,
    pub(super) codes: usize,
    pub(super) layers: usize,
    /// Whether there are matrices Z_l.
    pub(super) reweighted: bool,
}

impl Sizes {
    /// Rows of M.
    pub(super) fn rows(&self) -> usize {
        self.inputs + self.signal
    }

    /// Numbers in the transition (G_c, or F Q_D) and in all Z_l.
    pub(super) fn matrices(&self) -> (usize, usize) {
        let rows = match self.signal {
            0 => self.codes,
            signal => signal,
        };
        let weights = self.layers * usize::from(self.reweighted);
        (rows * self.codes, weights * self.codes * self.codes)
    }

    /// Numbers in a state.
    fn state(&self) -> usize {
        self.codes * self.batch
    }

    fn heard(&self) -> usize {
        self.rows() * self.batch
    }

    /// Columns of all steps side by side.
    fn columns(&self) -> usize {
        self.length * self.batch
    }

    /// Numbers in x, M, w, a, b, h_0.
    pub(super) fn parts(&self) -> [usize; 6] {
        let (rows, layers) = (self.rows(), self.layers * self.codes);
        [
            self.columns() * self.inputs,
            rows * self.codes,
            rows,
            layers,
            layers,
            self.codes,
        ]
    }
}

/// What the recurrence is made of, row-major.
#[derive(Clone, Copy)]
pub(super) struct Numbers<'a, T> {
    /// Z_l one after another; nothing where there are none.
    pub(super) weights: &'a [T],
    /// G_c, or F Q_D.
    pub(super) transition: &'a [T],
    /// x, batch × L × inputs.
    pub(super) x: &'a [T],
    pub(super) map: &'a [T],
    /// w, one for each row of M.
    pub(super) scale: &'a [T],
    /// Thresholds, layers × codes.
    pub(super) a: &'a [T],
    pub(super) b: &'a [T],
    pub(super) initial: &'a [T],
}

/// The gradients of [`Numbers`], in the same order.
pub(super) struct Gradients<T> {
    pub(super) weights: Vec<T>,
    pub(super) transition: Vec<T>,
    /// Of x, M, w, a, b, h_0, one after another.
    pub(super) parts: Vec<T>,
}

/// What the backward pass needs of the forward pass.
pub(super) struct Saved<T> {
    /// h⁽⁰⁾ to h⁽ⁿ⁾ of every step.
    states: Lease<T>,
    /// u of every step and layer.
    arguments: Lease<T>,
    /// M h − y of every step and layer.
    residuals: Lease<T>,
    /// y of every step.
    heard: Lease<T>,
    /// v of every layer, codes × (L · batch); nothing where there are no matrices Z_l.
    descended: Lease<T>,
}

/// out ← left · right, or out + left · right, in pieces of rows.
fn multiply<T: Real>(
    left: &[T],
    right: RowMajor<'_, T>,
    (inner, columns): (usize, usize),
    out: &mut [T],
    add: bool,
) {
    let rows = (PIECE / (inner * columns).max(1)).max(PIECE_ROWS);
    let piece = |(out, left): (&mut [T], &[T])| {
        let left = RowMajor::new(left, out.len() / columns, inner);
        multiply_rows(out, left, right, add);
    };
    if out.len() <= rows * columns {
        return piece((out, left));
    }
    let pieces = out.par_chunks_mut(rows * columns);
    pieces.zip(left.par_chunks(rows * inner)).for_each(piece);
}

fn transposed<T: Real>(matrix: &[T], columns: usize) -> Vec<T> {
    const BLOCK: usize = 32;
    let rows = matrix.len() / columns;
    let mut out = vec![T::zero(); matrix.len()];
    for first in (0..rows).step_by(BLOCK) {
        for start in (0..columns).step_by(BLOCK) {
            for column in start..(start + BLOCK).min(columns) {
                for row in first..(first + BLOCK).min(rows) {
                    out[column * rows + row] = matrix[row * columns + column];
                }
            }
        }
    }
    out
}

/// Writes a state next to those of the other steps.
fn place<T: Copy>(state: &[T], wide: &mut [T], step: usize, batch: usize) {
    let columns = wide.len() / (state.len() / batch);
    let rows = wide.chunks_exact_mut(columns);
    for (row, own) in rows.zip(state.chunks_exact(batch)) {
        row[step * batch..][..batch].copy_from_slice(own);
    }
}

/// Entry (b, t, i) of batch × L × width to (i, b) of `state`.
fn gather<T: Copy>(all: &[T], state: &mut [T], step: usize, (length, batch): (usize, usize)) {
    let width = all.len() / (length * batch);
    for (item, row) in all[step * width..].chunks(length * width).enumerate() {
        for (index, value) in row[..width].iter().enumerate() {
            state[index * batch + item] = *value;
        }
    }
}

/// The reverse of [`gather`].
fn scatter<T: Copy>(state: &[T], all: &mut [T], step: usize, (length, batch): (usize, usize)) {
    let width = all.len() / (length * batch);
    for (item, row) in all[step * width..].chunks_mut(length * width).enumerate() {
        for (index, value) in row[..width].iter_mut().enumerate() {
            *value = state[index * batch + item];
        }
    }
}

impl<T: Real> Saved<T> {
    fn new(sizes: Sizes, workspace: &Workspace<T>) -> Self {
        let Sizes { length, layers, .. } = sizes;
        let wide = usize::from(sizes.reweighted) * layers * length;
        Self {
            states: workspace.numbers(length * (layers + 1) * sizes.state()),
            arguments: workspace.numbers(length * layers * sizes.state()),
            residuals: workspace.numbers(length * layers * sizes.heard()),
            heard: workspace.numbers(length * sizes.heard()),
            descended: workspace.numbers(wide * sizes.state()),
        }
    }

    /// The code that a step starts from: that of the step before, or h_0.
    fn before<'a>(&'a self, step: usize, sizes: Sizes, initial: &'a [T]) -> &'a [T] {
        match step {
            0 => initial,
            _ => {
                let state = sizes.state();
                let end = step * (sizes.layers + 1) * state;
                &self.states[end - state..end]
            }
        }
    }
}

/// h_0 for every sequence.
fn repeated<T: Real>(initial: &[T], batch: usize) -> Vec<T> {
    let rows = initial
        .iter()
        .flat_map(|&value| std::iter::repeat_n(value, batch));
    rows.collect()
}

/// The codes, batch × L × codes, and what was saved.
pub(super) fn forward<T: Real>(
    numbers: Numbers<'_, T>,
    sizes: Sizes,
    workspace: &Workspace<T>,
) -> (Vec<T>, Saved<T>) {
    let Sizes {
        batch,
        length,
        layers,
        ..
    } = sizes;
    let mut out = vec![T::zero(); sizes.columns() * sizes.codes];
    let mut saved = Saved::new(sizes, workspace);
    let run = Forward {
        numbers,
        sizes,
        map_transposed: transposed(numbers.map, sizes.codes),
        dictionary: transposed(&numbers.map[sizes.inputs * sizes.codes..], sizes.codes),
        zeros: vec![T::zero(); sizes.state()],
    };
    let mut last = repeated(numbers.initial, batch);
    for step in 0..length {
        run.step(step, &last, &mut saved);
        let end = (step + 1) * (layers + 1) * sizes.state();
        last.copy_from_slice(&saved.states[end - sizes.state()..end]);
        scatter(&last, &mut out, step, (length, batch));
    }
    (out, saved)
}

struct Forward<'a, T> {
    numbers: Numbers<'a, T>,
    sizes: Sizes,
    map_transposed: Vec<T>,
    /// Q_Dᵀ, for Sista.
    dictionary: Vec<T>,
    /// The side value of Sista.
    zeros: Vec<T>,
}

/// out ← −w ∘ rows.
fn scale_rows<T: Real>(rows: &[T], scale: &[T], out: &mut [T]) {
    let batch = rows.len() / scale.len();
    let pairs = rows.chunks_exact(batch).zip(out.chunks_exact_mut(batch));
    for ((row, out), scale) in pairs.zip(scale) {
        let scale = T::zero() - *scale;
        out.iter_mut().zip(row).for_each(|(o, r)| *o = scale * *r);
    }
}

impl<T: Real> Forward<'_, T> {
    fn step(&self, step: usize, last: &[T], saved: &mut Saved<T>) {
        let (sizes, numbers) = (self.sizes, self.numbers);
        let (state, heard) = (sizes.state(), sizes.heard());
        let (codes, batch) = (sizes.codes, sizes.batch);
        let y = &mut saved.heard[step * heard..][..heard];
        let (x, z) = y.split_at_mut(sizes.inputs * batch);
        gather(numbers.x, x, step, (sizes.length, batch));
        let count = (sizes.layers + 1) * state;
        let states = &mut saved.states[step * count..][..count];
        let last = RowMajor::new(last, codes, batch);
        if sizes.signal == 0 {
            let first = &mut states[..state];
            multiply(numbers.transition, last, (codes, batch), first, false);
        } else {
            multiply(numbers.transition, last, (codes, batch), z, false);
            let shape = (sizes.signal, batch);
            let z = RowMajor::new(z, sizes.signal, batch);
            multiply(&self.dictionary, z, shape, &mut states[..state], false);
        }
        let mut scaled = vec![T::zero(); heard];
        for layer in 0..sizes.layers {
            let at = step * sizes.layers + layer;
            let (known, after) = states.split_at_mut((layer + 1) * state);
            let before = &known[layer * state..];
            let residual = &mut saved.residuals[at * heard..][..heard];
            let h = RowMajor::new(before, codes, batch);
            multiply(numbers.map, h, (codes, batch), residual, false);
            residual.iter_mut().zip(&*y).for_each(|(r, y)| *r -= *y);
            scale_rows(residual, numbers.scale, &mut scaled);
            let u = &mut saved.arguments[at * state..][..state];
            u.copy_from_slice(before);
            self.descend((step, layer), &scaled, u, &mut saved.descended);
            let side = match sizes.signal {
                0 => &known[..state],
                _ => &self.zeros,
            };
            let own = layer * codes..(layer + 1) * codes;
            let thresholds = (&numbers.a[own.clone()], &numbers.b[own]);
            prox::forward((u, side), thresholds, batch, &mut after[..state]);
        }
    }

    /// u ← Z (u + Mᵀ s).
    fn descend(&self, (step, layer): (usize, usize), s: &[T], u: &mut [T], wide: &mut [T]) {
        let sizes = self.sizes;
        let (rows, codes, batch) = (sizes.rows(), sizes.codes, sizes.batch);
        let s = RowMajor::new(s, rows, batch);
        multiply(&self.map_transposed, s, (rows, batch), u, true);
        if sizes.reweighted {
            let count = sizes.length * sizes.state();
            place(u, &mut wide[layer * count..][..count], step, batch);
            let matrix = &self.numbers.weights[layer * codes * codes..][..codes * codes];
            let v = u.to_vec();
            let v = RowMajor::new(&v, codes, batch);
            multiply(matrix, v, (codes, batch), u, false);
        }
    }
}

/// The gradients, given that of the codes.
pub(super) fn backward<T: Real>(
    g: &[T],
    numbers: Numbers<'_, T>,
    saved: &Saved<T>,
    (sizes, workspace): (Sizes, &Workspace<T>),
) -> Gradients<T> {
    let Sizes { batch, length, .. } = sizes;
    let (codes, wide) = (sizes.codes, length * sizes.state());
    let initial = repeated(numbers.initial, batch);
    let square = codes * codes;
    let mut run = Backward {
        numbers,
        saved,
        sizes,
        weights: numbers
            .weights
            .chunks_exact(square)
            .take(sizes.layers * usize::from(sizes.reweighted))
            .map(|matrix| transposed(matrix, codes))
            .collect(),
        transition: transposed(numbers.transition, codes),
        map_transposed: transposed(numbers.map, codes),
        of_arguments: workspace.numbers(saved.descended.len()),
        of_first: workspace.numbers(wide * usize::from(sizes.signal == 0)),
        found: Gradients {
            weights: vec![T::zero(); numbers.weights.len()],
            transition: vec![T::zero(); numbers.transition.len()],
            parts: vec![T::zero(); sizes.parts().iter().sum()],
        },
    };
    let mut carry = vec![T::zero(); sizes.state()];
    let mut own = vec![T::zero(); sizes.state()];
    for step in (0..length).rev() {
        gather(g, &mut own, step, (length, batch));
        add(&mut carry, &own);
        run.step(step, &mut carry, saved.before(step, sizes, &initial));
    }
    run.matrices(&initial, workspace);
    let of_initial = run.found.parts.len() - codes;
    for (sum, row) in run.found.parts[of_initial..]
        .iter_mut()
        .zip(carry.chunks(batch))
    {
        *sum = row.iter().copied().fold(T::zero(), |sum, x| sum + x);
    }
    run.found
}

struct Backward<'a, T> {
    numbers: Numbers<'a, T>,
    saved: &'a Saved<T>,
    sizes: Sizes,
    /// Z_lᵀ.
    weights: Vec<Vec<T>>,
    transition: Vec<T>,
    map_transposed: Vec<T>,
    /// The gradients of u and of G_c h_{t−1}, codes × (L · batch).
    of_arguments: Lease<T>,
    of_first: Lease<T>,
    found: Gradients<T>,
}

/// The parts of a gradient, one after another.
fn split<T, const N: usize>(mut all: &mut [T], sizes: [usize; N]) -> [&mut [T]; N] {
    sizes.map(|size| {
        let (own, rest) = std::mem::take(&mut all).split_at_mut(size);
        all = rest;
        own
    })
}

impl<T: Real> Backward<'_, T> {
    /// Turns the gradient of h_t into that of h_{t−1}.
    fn step(&mut self, step: usize, g: &mut [T], last: &[T]) {
        let sizes = self.sizes;
        let (state, codes, batch) = (sizes.state(), sizes.codes, sizes.batch);
        let mut of_first = vec![T::zero(); state];
        let mut of_heard = vec![T::zero(); sizes.heard()];
        for layer in (0..sizes.layers).rev() {
            self.threshold((step, layer), g, &mut of_first);
            if sizes.reweighted {
                let count = sizes.length * state;
                let wide = &mut self.of_arguments[layer * count..][..count];
                place(g, wide, step, batch);
                let of_u = g.to_vec();
                let of_u = RowMajor::new(&of_u, codes, batch);
                multiply(&self.weights[layer], of_u, (codes, batch), g, false);
            }
            self.descend((step, layer), g, &mut of_heard);
        }
        add(&mut of_first, g);
        let (of_x, of_z) = of_heard.split_at_mut(sizes.inputs * batch);
        let [all_x, map, ..] = split(&mut self.found.parts, sizes.parts());
        scatter(of_x, all_x, step, (sizes.length, batch));
        if sizes.signal == 0 {
            place(&of_first, &mut self.of_first, step, batch);
            let of_first = RowMajor::new(&of_first, codes, batch);
            return multiply(&self.transition, of_first, (codes, batch), g, false);
        }
        // h⁽⁰⁾ = Q_Dᵀ z and z = F Q_D h_{t−1}.
        let heard = sizes.heard();
        let z = &self.saved.heard[step * heard..][sizes.inputs * batch..heard];
        let dictionary = sizes.inputs * codes..;
        let first = RowMajor::new(&of_first, codes, batch);
        let turned = first.transpose();
        multiply(
            z,
            turned,
            (batch, codes),
            &mut map[dictionary.clone()],
            true,
        );
        let dictionary = &self.numbers.map[dictionary];
        multiply(dictionary, first, (codes, batch), of_z, true);
        let last = RowMajor::new(last, codes, batch).transpose();
        multiply(of_z, last, (batch, codes), &mut self.found.transition, true);
        let of_z = RowMajor::new(of_z, sizes.signal, batch);
        multiply(&self.transition, of_z, (sizes.signal, batch), g, false);
    }

    /// Turns the gradient of h⁽ˡ⁾ into that of u.
    fn threshold(&mut self, (step, layer): (usize, usize), g: &mut [T], of_first: &mut [T]) {
        let (sizes, numbers) = (self.sizes, self.numbers);
        let (state, codes) = (sizes.state(), sizes.codes);
        let [_, _, _, of_a, of_b, _] = split(&mut self.found.parts, sizes.parts());
        let own = layer * codes..(layer + 1) * codes;
        let zeros = match sizes.signal {
            0 => Vec::new(),
            _ => vec![T::zero(); state],
        };
        let mut unused = zeros.clone();
        let (side, of_side) = match sizes.signal {
            0 => (
                &self.saved.states[step * (sizes.layers + 1) * state..][..state],
                of_first,
            ),
            _ => (&zeros[..], &mut unused[..]),
        };
        let at = step * sizes.layers + layer;
        let known = prox::Known {
            u: &self.saved.arguments[at * state..][..state],
            side,
            a: &numbers.a[own.clone()],
            b: &numbers.b[own.clone()],
            batch: sizes.batch,
        };
        let gradients = prox::Gradients {
            side: of_side,
            a: &mut of_a[own.clone()],
            b: &mut of_b[own],
        };
        prox::backward(g, known, gradients);
    }

    /// Turns the gradient of v into that of h⁽ˡ⁻¹⁾, and adds that of y.
    fn descend(&mut self, (step, layer): (usize, usize), g: &mut [T], of_heard: &mut [T]) {
        let (sizes, numbers) = (self.sizes, self.numbers);
        let (rows, codes, batch) = (sizes.rows(), sizes.codes, sizes.batch);
        let (state, heard) = (sizes.state(), sizes.heard());
        let at = step * sizes.layers + layer;
        let residual = &self.saved.residuals[at * heard..][..heard];
        let [_, map, of_scale, ..] = split(&mut self.found.parts, sizes.parts());
        let mut scaled = vec![T::zero(); heard];
        scale_rows(residual, numbers.scale, &mut scaled);
        let of_v = RowMajor::new(g, codes, batch);
        multiply(&scaled, of_v.transpose(), (batch, codes), map, true);
        let mut of_scaled = vec![T::zero(); heard];
        multiply(numbers.map, of_v, (codes, batch), &mut of_scaled, false);
        let rows_of = of_scaled
            .chunks_exact(batch)
            .zip(residual.chunks_exact(batch));
        for (sum, (g, r)) in of_scale.iter_mut().zip(rows_of) {
            g.iter().zip(r).for_each(|(g, r)| *sum -= *g * *r);
        }
        scale_rows(&of_scaled, numbers.scale, &mut scaled);
        of_heard.iter_mut().zip(&scaled).for_each(|(y, r)| *y -= *r);
        let before = (step * (sizes.layers + 1) + layer) * state;
        let before = RowMajor::new(&self.saved.states[before..before + state], codes, batch);
        multiply(&scaled, before.transpose(), (batch, codes), map, true);
        let of_residual = RowMajor::new(&scaled, rows, batch);
        multiply(&self.map_transposed, of_residual, (rows, batch), g, true);
    }

    /// The gradients of the square matrices, over all steps at once.
    fn matrices(&mut self, initial: &[T], workspace: &Workspace<T>) {
        let sizes = self.sizes;
        let (codes, columns, batch) = (sizes.codes, sizes.columns(), sizes.batch);
        let count = codes * columns;
        let shape = (columns, codes);
        if sizes.reweighted {
            let layers = self.found.weights.chunks_exact_mut(codes * codes);
            let of_u = self.of_arguments.chunks_exact(count);
            let v = self.saved.descended.chunks_exact(count);
            for (out, (of_u, v)) in layers.zip(of_u.zip(v)) {
                let v = RowMajor::new(v, codes, columns).transpose();
                multiply(of_u, v, shape, out, false);
            }
        }
        if sizes.signal == 0 {
            let mut last = workspace.numbers(count);
            for step in 0..sizes.length {
                let before = self.saved.before(step, sizes, initial);
                place(before, &mut last, step, batch);
            }
            let last = RowMajor::new(&last, codes, columns).transpose();
            multiply(
                &self.of_first,
                last,
                shape,
                &mut self.found.transition,
                false,
            );
        }
    }
}
