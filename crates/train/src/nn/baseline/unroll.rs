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
//! For few codes it is quicker to form W_2 = I − Mᵀ(w ∘ M) and P = Q_Dᵀ F Q_D of Sista:
//!
//! ```text
//! Sista, formed       h⁽⁰⁾ = P h_{t−1}, ħ = 0,   u = W_2 h⁽ˡ⁻¹⁾ + Jᵀ(w ∘ x_t) + ε h⁽⁰⁾
//! ```
//!
//! States are codes × batch, so that a piece of a
//! product is a run of rows, and each piece is the same whatever the number of threads. The
//! gradients of the square matrices are single products over all steps.
//!
//! # References
//! Le, Luong and Deligiannis, Algorithm 1 and equations (9) to (12).

use candle_core::Tensor;
use hankelite_kernels::{Lease, RowMajor, Workspace, add, multiply_rows};
use rayon::prelude::*;

use crate::nn::baseline::prox;
use crate::nn::real::Real;

/// Multiplications that are worth a piece of their own.
const PIECE: usize = 1 << 22;

/// The least rows of a piece.
const PIECE_ROWS: usize = 128;

/// How a step goes on from the code before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// ℓ1-ℓ1.
    Plain,
    /// With matrices Z_l.
    Reweighted,
    /// Sista, with so many rows of Q_D in M.
    Factored { signal: usize },
    /// Sista with W_2 and P formed.
    Formed,
}

/// The sizes of a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) batch: usize,
    pub(super) length: usize,
    /// Numbers in a measurement x_t.
    pub(super) inputs: usize,
    pub(super) codes: usize,
    pub(super) layers: usize,
    pub(super) form: Form,
}

impl Sizes {
    /// Rows of Q_D in M.
    pub(super) fn signal(&self) -> usize {
        match self.form {
            Form::Factored { signal } => signal,
            Form::Plain | Form::Reweighted | Form::Formed => 0,
        }
    }

    /// Rows of M.
    pub(super) fn rows(&self) -> usize {
        self.inputs + self.signal()
    }

    /// Whether the side value is 0.
    pub(super) fn soft(&self) -> bool {
        matches!(self.form, Form::Factored { .. } | Form::Formed)
    }

    /// The number of square matrices in the layers: Z_l, or the one W_2.
    pub(super) fn squares(&self) -> usize {
        match self.form {
            Form::Reweighted => self.layers,
            Form::Formed => 1,
            Form::Plain | Form::Factored { .. } => 0,
        }
    }

    /// Numbers in the transition (G_c, P, or F Q_D) and in all square matrices.
    pub(super) fn matrices(&self) -> (usize, usize) {
        let rows = match self.form {
            Form::Factored { signal } => signal,
            Form::Plain | Form::Reweighted | Form::Formed => self.codes,
        };
        (rows * self.codes, self.squares() * self.codes * self.codes)
    }

    /// The square matrix of a layer, and the place of a step among the states that went into it.
    pub(super) fn square(&self, step: usize, layer: usize) -> (usize, usize) {
        match self.form {
            Form::Formed => (0, step * self.layers + layer),
            _ => (layer, step),
        }
    }

    /// Numbers in the states that went into a square matrix.
    pub(super) fn wide(&self) -> usize {
        let steps = match self.form {
            Form::Formed => self.length * self.layers,
            _ => self.length,
        };
        steps * self.state()
    }

    /// Numbers in a state.
    pub(super) fn state(&self) -> usize {
        self.codes * self.batch
    }

    /// Numbers in y of a step.
    pub(super) fn targets(&self) -> usize {
        self.rows() * self.batch
    }

    /// Columns of all steps side by side.
    pub(super) fn columns(&self) -> usize {
        self.length * self.batch
    }

    /// Numbers in x, M, w, a, b, h_0, ε.
    pub(super) fn parts(&self) -> [usize; 7] {
        let (rows, layers) = (self.rows(), self.layers * self.codes);
        [
            self.columns() * self.inputs,
            rows * self.codes,
            rows,
            layers,
            layers,
            self.codes,
            1,
        ]
    }
}

/// What the recurrence is made of, row-major.
#[derive(Clone, Copy)]
pub(super) struct Numbers<'a, T> {
    /// Z_l one after another, or W_2; anything where there are none.
    pub(super) weights: &'a [T],
    /// G_c, P, or F Q_D.
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
    /// ε, one number, for [`Form::Formed`].
    pub(super) pull: &'a [T],
}

/// The tensors of a recurrence, as [`Numbers`] has them.
pub(super) struct Tensors {
    /// Z, layers × codes × codes, or W_2.
    pub(super) weights: Option<Tensor>,
    /// G_c or P, codes × codes, or F Q_D, signal × codes.
    pub(super) transition: Tensor,
    /// batch × L × inputs.
    pub(super) x: Tensor,
    /// M, rows × codes.
    pub(super) map: Tensor,
    /// w, one for each row.
    pub(super) scale: Tensor,
    /// layers × codes.
    pub(super) a: Tensor,
    pub(super) b: Tensor,
    /// h_0.
    pub(super) initial: Tensor,
    /// ε, one number.
    pub(super) pull: Tensor,
}

/// What the backward pass needs of the forward pass.
pub(super) struct Saved<T> {
    /// h⁽⁰⁾ to h⁽ⁿ⁾ of every step.
    pub(super) states: Lease<T>,
    /// u of every step and layer.
    pub(super) arguments: Lease<T>,
    /// M h − y of every step and layer.
    pub(super) residuals: Lease<T>,
    /// y of every step.
    pub(super) targets: Lease<T>,
    /// What each square matrix is multiplied with, codes × columns.
    pub(super) descended: Lease<T>,
}

/// out ← left · right, or out + left · right, in pieces of rows.
pub(super) fn multiply<T: Real>(left: &[T], right: RowMajor<'_, T>, out: &mut [T], add: bool) {
    let (inner, columns) = right.shape();
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

pub(super) fn transposed<T: Real>(matrix: &[T], columns: usize) -> Vec<T> {
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
pub(super) fn place<T: Copy>(state: &[T], wide: &mut [T], step: usize, batch: usize) {
    let columns = wide.len() / (state.len() / batch);
    let rows = wide.chunks_exact_mut(columns);
    for (row, own) in rows.zip(state.chunks_exact(batch)) {
        row[step * batch..][..batch].copy_from_slice(own);
    }
}

/// Entry (b, t, i) of batch × L × width to (i, b) of `state`.
pub(super) fn gather<T: Copy>(all: &[T], state: &mut [T], step: usize, sizes: Sizes) {
    let Sizes { length, batch, .. } = sizes;
    let width = all.len() / (length * batch);
    for (item, row) in all[step * width..].chunks(length * width).enumerate() {
        for (index, value) in row[..width].iter().enumerate() {
            state[index * batch + item] = *value;
        }
    }
}

/// The reverse of [`gather`].
pub(super) fn scatter<T: Copy>(state: &[T], all: &mut [T], step: usize, sizes: Sizes) {
    let Sizes { length, batch, .. } = sizes;
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
        Self {
            states: workspace.numbers(length * (layers + 1) * sizes.state()),
            arguments: workspace.numbers(length * layers * sizes.state()),
            residuals: workspace.numbers(length * layers * sizes.targets()),
            targets: workspace.numbers(length * sizes.targets()),
            descended: workspace.numbers(sizes.squares() * sizes.wide()),
        }
    }

    /// The code that a step starts from: that of the step before, or h_0.
    pub(super) fn before<'a>(&'a self, step: usize, sizes: Sizes, initial: &'a [T]) -> &'a [T] {
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
pub(super) fn repeated<T: Real>(initial: &[T], batch: usize) -> Vec<T> {
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
        scatter(&last, &mut out, step, sizes);
    }
    (out, saved)
}

struct Forward<'a, T> {
    numbers: Numbers<'a, T>,
    sizes: Sizes,
    map_transposed: Vec<T>,
    /// Q_Dᵀ, for the factored form.
    dictionary: Vec<T>,
    /// The side value of Sista.
    zeros: Vec<T>,
}

/// out ← −w ∘ rows.
pub(super) fn scale_rows<T: Real>(rows: &[T], scale: &[T], out: &mut [T]) {
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
        let (state, targets) = (sizes.state(), sizes.targets());
        let (codes, batch) = (sizes.codes, sizes.batch);
        let y = &mut saved.targets[step * targets..][..targets];
        let (x, z) = y.split_at_mut(sizes.inputs * batch);
        gather(numbers.x, x, step, sizes);
        let count = (sizes.layers + 1) * state;
        let states = &mut saved.states[step * count..][..count];
        let last = RowMajor::new(last, codes, batch);
        if let Form::Factored { signal } = sizes.form {
            multiply(numbers.transition, last, z, false);
            let z = RowMajor::new(z, signal, batch);
            let first = &mut states[..state];
            multiply(&self.dictionary, z, first, false);
        } else {
            let first = &mut states[..state];
            multiply(numbers.transition, last, first, false);
        }
        let drive = self.drive(y, &states[..state]);
        for layer in 0..sizes.layers {
            let at = step * sizes.layers + layer;
            let (known, after) = states.split_at_mut((layer + 1) * state);
            let u = &mut saved.arguments[at * state..][..state];
            u.copy_from_slice(&known[layer * state..]);
            if sizes.form != Form::Formed {
                let residual = &mut saved.residuals[at * targets..][..targets];
                self.descend(y, residual, u);
            }
            if sizes.squares() > 0 {
                self.turn(step, layer, u, &mut saved.descended);
            }
            add(u, &drive);
            let side = match sizes.soft() {
                false => &known[..state],
                true => &self.zeros,
            };
            let own = layer * codes..(layer + 1) * codes;
            let known = prox::Known {
                u,
                side,
                a: &numbers.a[own.clone()],
                b: &numbers.b[own],
                batch,
            };
            prox::forward(known, &mut after[..state]);
        }
    }

    /// d = Mᵀ(w ∘ x) + ε h⁽⁰⁾ of the formed form; nothing in the others.
    fn drive(&self, x: &[T], first: &[T]) -> Vec<T> {
        let (sizes, numbers) = (self.sizes, self.numbers);
        if sizes.form != Form::Formed {
            return Vec::new();
        }
        let mut negative = vec![T::zero(); x.len()];
        scale_rows(x, numbers.scale, &mut negative);
        negative.iter_mut().for_each(|s| *s = T::zero() - *s);
        let mut drive: Vec<T> = first.iter().map(|p| numbers.pull[0] * *p).collect();
        let scaled = RowMajor::new(&negative, sizes.rows(), sizes.batch);
        multiply(&self.map_transposed, scaled, &mut drive, true);
        drive
    }

    /// h ← h + Mᵀ s, and the residual M h − y.
    fn descend(&self, y: &[T], residual: &mut [T], h: &mut [T]) {
        let (sizes, numbers) = (self.sizes, self.numbers);
        let (rows, codes, batch) = (sizes.rows(), sizes.codes, sizes.batch);
        let before = RowMajor::new(h, codes, batch);
        multiply(numbers.map, before, residual, false);
        residual.iter_mut().zip(y).for_each(|(r, y)| *r -= *y);
        let mut scaled = vec![T::zero(); residual.len()];
        scale_rows(residual, numbers.scale, &mut scaled);
        let scaled = RowMajor::new(&scaled, rows, batch);
        multiply(&self.map_transposed, scaled, h, true);
    }

    /// v ← Z v, or W_2 v.
    fn turn(&self, step: usize, layer: usize, v: &mut [T], wide: &mut [T]) {
        let sizes = self.sizes;
        let (codes, batch) = (sizes.codes, sizes.batch);
        let (matrix, at) = sizes.square(step, layer);
        place(
            v,
            &mut wide[matrix * sizes.wide()..][..sizes.wide()],
            at,
            batch,
        );
        let matrix = &self.numbers.weights[matrix * codes * codes..][..codes * codes];
        let before = v.to_vec();
        let before = RowMajor::new(&before, codes, batch);
        multiply(matrix, before, v, false);
    }
}
