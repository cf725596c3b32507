//! The gradient of the recurrence of an unfolded network.

use hankelite_kernels::{Lease, RowMajor, Workspace, add};

use crate::nn::baseline::prox;
use crate::nn::baseline::unroll::{
    Form, Numbers, Saved, Sizes, gather, multiply, place, repeated, scale_rows, scatter, transposed,
};
use crate::nn::real::Real;

/// The gradients of [`Numbers`], in the same order.
pub(super) struct Gradients<T> {
    pub(super) weights: Vec<T>,
    pub(super) transition: Vec<T>,
    /// Of x, M, w, a, b, h_0, one after another.
    pub(super) parts: Vec<T>,
}

/// The gradients, given that of the codes.
pub(super) fn backward<T: Real>(
    g: &[T],
    numbers: Numbers<'_, T>,
    saved: &Saved<T>,
    sizes: Sizes,
    workspace: &Workspace<T>,
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
            .take(sizes.squares())
            .map(|matrix| transposed(matrix, codes))
            .collect(),
        transition: transposed(numbers.transition, codes),
        map_transposed: transposed(numbers.map, codes),
        of_arguments: workspace.numbers(saved.descended.len()),
        of_first: workspace.numbers(wide * usize::from(sizes.signal() == 0)),
        found: Gradients {
            weights: vec![T::zero(); numbers.weights.len()],
            transition: vec![T::zero(); numbers.transition.len()],
            parts: vec![T::zero(); sizes.parts().iter().sum()],
        },
    };
    let mut carry = vec![T::zero(); sizes.state()];
    let mut own = vec![T::zero(); sizes.state()];
    for step in (0..length).rev() {
        gather(g, &mut own, step, sizes);
        add(&mut carry, &own);
        run.step(step, &mut carry, saved.before(step, sizes, &initial));
    }
    run.matrices(&initial, workspace);
    let [.., of_initial, _] = split(&mut run.found.parts, sizes.parts());
    for (sum, row) in of_initial.iter_mut().zip(carry.chunks(batch)) {
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
        let mut of_targets = vec![T::zero(); sizes.targets()];
        let mut of_drive = vec![T::zero(); state];
        for layer in (0..sizes.layers).rev() {
            self.threshold(step, layer, g, &mut of_first);
            if sizes.form == Form::Formed {
                add(&mut of_drive, g);
            }
            if sizes.squares() > 0 {
                self.turn(step, layer, g);
            }
            if sizes.form != Form::Formed {
                self.descend(step, layer, g, &mut of_targets);
            }
        }
        add(&mut of_first, g);
        if sizes.form == Form::Formed {
            self.drive(step, &of_drive, &mut of_first, &mut of_targets);
        }
        let (of_x, of_z) = of_targets.split_at_mut(sizes.inputs * batch);
        let [all_x, ..] = split(&mut self.found.parts, sizes.parts());
        scatter(of_x, all_x, step, sizes);
        if let Form::Factored { signal } = sizes.form {
            self.predicted(step, &of_first, of_z, last);
            let of_z = RowMajor::new(of_z, signal, batch);
            multiply(&self.transition, of_z, g, false);
        } else {
            place(&of_first, &mut self.of_first, step, batch);
            let of_first = RowMajor::new(&of_first, codes, batch);
            multiply(&self.transition, of_first, g, false);
        }
    }

    /// The gradients of Q_D and F Q_D in h⁽⁰⁾ = Q_Dᵀ z, z = F Q_D h_{t−1}; adds that of z.
    fn predicted(&mut self, step: usize, of_first: &[T], of_z: &mut [T], last: &[T]) {
        let sizes = self.sizes;
        let (codes, batch, targets) = (sizes.codes, sizes.batch, sizes.targets());
        let [_, map, ..] = split(&mut self.found.parts, sizes.parts());
        let z = &self.saved.targets[step * targets..][sizes.inputs * batch..targets];
        let own = sizes.inputs * codes..;
        let first = RowMajor::new(of_first, codes, batch);
        multiply(z, first.transpose(), &mut map[own.clone()], true);
        multiply(&self.numbers.map[own], first, of_z, true);
        let last = RowMajor::new(last, codes, batch).transpose();
        multiply(of_z, last, &mut self.found.transition, true);
    }

    /// Turns the gradient of Z v or W_2 v into that of v.
    fn turn(&mut self, step: usize, layer: usize, g: &mut [T]) {
        let sizes = self.sizes;
        let (codes, batch) = (sizes.codes, sizes.batch);
        let (matrix, at) = sizes.square(step, layer);
        let wide = &mut self.of_arguments[matrix * sizes.wide()..][..sizes.wide()];
        place(g, wide, at, batch);
        let of_u = g.to_vec();
        let of_u = RowMajor::new(&of_u, codes, batch);
        multiply(&self.weights[matrix], of_u, g, false);
    }

    /// The gradients in d = Mᵀ(w ∘ x) + ε h⁽⁰⁾; adds those of h⁽⁰⁾ and x.
    fn drive(&mut self, step: usize, g: &[T], of_first: &mut [T], of_x: &mut [T]) {
        let (sizes, numbers) = (self.sizes, self.numbers);
        let (codes, batch, targets) = (sizes.codes, sizes.batch, sizes.targets());
        let x = &self.saved.targets[step * targets..][..targets];
        let first = step * (sizes.layers + 1) * sizes.state();
        let first = &self.saved.states[first..first + sizes.state()];
        let [_, map, of_scale, .., of_pull] = split(&mut self.found.parts, sizes.parts());
        for (at, &g) in g.iter().enumerate() {
            of_first[at] += numbers.pull[0] * g;
            of_pull[0] += first[at] * g;
        }
        let of_drive = RowMajor::new(g, codes, batch);
        let mut of_scaled = vec![T::zero(); targets];
        multiply(numbers.map, of_drive, &mut of_scaled, false);
        let mut scaled = x.to_vec();
        for (row, &scale) in numbers.scale.iter().enumerate() {
            for at in row * batch..(row + 1) * batch {
                scaled[at] *= scale;
                of_scale[row] += of_scaled[at] * x[at];
                of_x[at] += of_scaled[at] * scale;
            }
        }
        multiply(&scaled, of_drive.transpose(), map, true);
    }

    /// Turns the gradient of h⁽ˡ⁾ into that of u.
    fn threshold(&mut self, step: usize, layer: usize, g: &mut [T], of_first: &mut [T]) {
        let (sizes, numbers) = (self.sizes, self.numbers);
        let (state, codes) = (sizes.state(), sizes.codes);
        let [_, _, _, of_a, of_b, ..] = split(&mut self.found.parts, sizes.parts());
        let own = layer * codes..(layer + 1) * codes;
        let zeros = match sizes.soft() {
            false => Vec::new(),
            true => vec![T::zero(); state],
        };
        let mut unused = zeros.clone();
        let (side, of_side) = match sizes.soft() {
            false => (
                &self.saved.states[step * (sizes.layers + 1) * state..][..state],
                of_first,
            ),
            true => (&zeros[..], &mut unused[..]),
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
    fn descend(&mut self, step: usize, layer: usize, g: &mut [T], of_targets: &mut [T]) {
        let (sizes, numbers) = (self.sizes, self.numbers);
        let (rows, codes, batch) = (sizes.rows(), sizes.codes, sizes.batch);
        let (state, targets) = (sizes.state(), sizes.targets());
        let at = step * sizes.layers + layer;
        let residual = &self.saved.residuals[at * targets..][..targets];
        let [_, map, of_scale, ..] = split(&mut self.found.parts, sizes.parts());
        let mut scaled = vec![T::zero(); targets];
        scale_rows(residual, numbers.scale, &mut scaled);
        let of_v = RowMajor::new(g, codes, batch);
        multiply(&scaled, of_v.transpose(), map, true);
        let mut of_scaled = vec![T::zero(); targets];
        multiply(numbers.map, of_v, &mut of_scaled, false);
        let rows_of = of_scaled
            .chunks_exact(batch)
            .zip(residual.chunks_exact(batch));
        for (sum, (g, r)) in of_scale.iter_mut().zip(rows_of) {
            g.iter().zip(r).for_each(|(g, r)| *sum -= *g * *r);
        }
        scale_rows(&of_scaled, numbers.scale, &mut scaled);
        of_targets
            .iter_mut()
            .zip(&scaled)
            .for_each(|(y, r)| *y -= *r);
        let before = (step * (sizes.layers + 1) + layer) * state;
        let before = RowMajor::new(&self.saved.states[before..before + state], codes, batch);
        multiply(&scaled, before.transpose(), map, true);
        let of_residual = RowMajor::new(&scaled, rows, batch);
        multiply(&self.map_transposed, of_residual, g, true);
    }

    /// The gradients of the square matrices, over all steps at once.
    fn matrices(&mut self, initial: &[T], workspace: &Workspace<T>) {
        let sizes = self.sizes;
        let (codes, columns, batch) = (sizes.codes, sizes.columns(), sizes.batch);
        if sizes.squares() > 0 {
            let wide = sizes.wide() / codes;
            let squares = self.found.weights.chunks_exact_mut(codes * codes);
            let of_u = self.of_arguments.chunks_exact(sizes.wide());
            let v = self.saved.descended.chunks_exact(sizes.wide());
            for (out, (of_u, v)) in squares.zip(of_u.zip(v)) {
                let v = RowMajor::new(v, codes, wide).transpose();
                multiply(of_u, v, out, false);
            }
        }
        if sizes.signal() == 0 {
            let mut last = workspace.numbers(codes * columns);
            for step in 0..sizes.length {
                let before = self.saved.before(step, sizes, initial);
                place(before, &mut last, step, batch);
            }
            let last = RowMajor::new(&last, codes, columns).transpose();
            multiply(&self.of_first, last, &mut self.found.transition, false);
        }
    }
}
