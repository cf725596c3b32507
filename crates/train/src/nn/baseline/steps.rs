//! All steps of a recurrent cell and the way back, on slices of its units.
//!
//! Units are cut into slices that depend on their number alone. All slices of a step run at once;
//! then the state is put together and the next step begins. So the bits do not depend on the number
//! of threads.

use std::ops::Range;

use hankelite_kernels::{Lease, RowMajor, Workspace, add, multiply_rows};
use pulp::Arch;
use rayon::prelude::*;

use crate::nn::baseline::gates::{Backward, Cell, Constants, Forward};
use crate::nn::plan::Size;
use crate::nn::real::Real;

/// What every slice keeps of the forward pass, and all states.
pub(super) struct Kept<T: 'static + Copy> {
    slices: Vec<Lease<T>>,
    pub(super) states: Vec<T>,
}

/// The tensors on the host.
#[derive(Clone, Copy)]
pub(super) struct Operands<'a, T> {
    pub(super) inputs: &'a [T],
    pub(super) weights: &'a [T],
    pub(super) vector: &'a [T],
}

/// Numbers that all slices share.
#[derive(Clone, Copy)]
pub(super) struct Whole<'a, T> {
    pub(super) cell: Cell,
    pub(super) size: Size,
    pub(super) operands: Operands<'a, T>,
}

/// Some units over all steps.
struct Slice<T: 'static + Copy> {
    units: Range<usize>,
    /// H × gates · units: the rows of these units, turned, which is the faster form of a product
    /// of few rows.
    weights: Vec<T>,
    /// Biases of the inputs and of the state, gates · units each.
    biases: [Vec<T>; 2],
    inputs: Vec<T>,
    recurrent: Vec<T>,
    before: Vec<T>,
    out: Vec<T>,
    memory: Vec<T>,
    sums: Vec<T>,
    kept: Lease<T>,
}

/// The units of every slice: four of at least 128, so that a slice's products are worth a thread.
fn cuts(units: usize) -> Vec<Range<usize>> {
    let width = units.div_ceil(4).next_multiple_of(16).max(128);
    let starts = (0..units).step_by(width);
    starts
        .map(|first| first..(first + width).min(units))
        .collect()
}

impl<'a, T: Real> Whole<'a, T> {
    fn gates(&self) -> usize {
        self.cell.gates() * self.size.channels
    }

    /// Every number of gates × H that belongs to some units.
    fn rows(&self, units: &Range<usize>) -> impl Iterator<Item = Range<usize>> + use<T> {
        let (gates, channels, units) = (self.cell.gates(), self.size.channels, units.clone());
        (0..gates).map(move |gate| gate * channels + units.start..gate * channels + units.end)
    }

    fn constants<'b>(&self, slice: &Range<usize>) -> Constants<'b, T>
    where
        'a: 'b,
    {
        let Operands {
            weights, vector, ..
        } = self.operands;
        Constants {
            cell: self.cell,
            units: slice.len(),
            shares: match self.cell {
                Cell::Mixed => [vector[0], vector[1]],
                _ => [T::zero(); 2],
            },
            weights: match self.cell {
                Cell::Independent => &weights[slice.clone()],
                _ => &[],
            },
        }
    }

    /// Slices of no steps are for the way back.
    fn slice(&self, units: Range<usize>, steps: usize, workspace: &Workspace<T>) -> Slice<T> {
        let (batch, own) = (self.size.batch, units.len());
        let (gates, channels) = (self.cell.gates() * own, self.size.channels);
        let Operands {
            weights, vector, ..
        } = self.operands;
        let gathered = |from: &[T]| -> Vec<T> {
            let rows = self.rows(&units);
            rows.flat_map(|rows| &from[rows]).copied().collect()
        };
        let biases = match self.cell {
            Cell::Tanh | Cell::Lstm | Cell::Gru => {
                let (first, second) = vector.split_at(self.gates());
                [gathered(first), gathered(second)]
            }
            Cell::Mixed => [vec![T::zero(); gates], vec![T::zero(); gates]],
            Cell::Independent => [gathered(vector), vec![T::zero(); gates]],
        };
        let zeros = |count: usize| vec![T::zero(); batch * count];
        Slice {
            weights: match self.cell {
                _ if steps == 0 => Vec::new(),
                Cell::Independent => Vec::new(),
                _ => turned(weights, self.rows(&units).flatten(), channels),
            },
            biases,
            inputs: zeros(gates),
            recurrent: zeros(gates),
            before: zeros(own),
            out: zeros(own),
            memory: zeros(own),
            sums: vec![T::zero(); own.max(2)],
            kept: workspace.numbers(steps * batch * self.cell.kept() * own),
            units,
        }
    }

    /// All states, and what is kept of the steps.
    pub(super) fn forward(&self, keep: bool, workspace: &Workspace<T>) -> Kept<T> {
        let Size {
            batch,
            length,
            channels,
        } = self.size;
        let steps = if keep { length } else { 1 };
        let made = cuts(channels).into_iter();
        let mut slices: Vec<_> = made
            .map(|units| self.slice(units, steps, workspace))
            .collect();
        let mut state = vec![T::zero(); batch * channels];
        let mut states = vec![T::zero(); batch * length * channels];
        for t in 0..length {
            let place = if keep { t } else { 0 };
            let each = slices.par_iter_mut();
            each.for_each(|slice| slice.forward(self, t, place, &state));
            for slice in &slices {
                scatter(&slice.out, &slice.units, &mut state, channels);
            }
            let rows = states.chunks_exact_mut(length * channels);
            for (to, from) in rows.zip(state.chunks_exact(channels)) {
                to[t * channels..][..channels].copy_from_slice(from);
            }
        }
        Kept {
            slices: slices.into_iter().map(|slice| slice.kept).collect(),
            states,
        }
    }
}

/// Some rows of a matrix of rows `width` wide as the columns of another one.
fn turned<T: Real>(from: &[T], rows: impl Iterator<Item = usize>, width: usize) -> Vec<T> {
    let rows: Vec<usize> = rows.collect();
    let mut to = vec![T::zero(); rows.len() * width];
    for (block, some) in rows.chunks(16).enumerate() {
        // Sixteen rows at a time, so that whole cache lines are written.
        for (column, to) in to.chunks_exact_mut(rows.len()).enumerate() {
            for (to, row) in to[16 * block..].iter_mut().zip(some) {
                *to = from[row * width + column];
            }
        }
    }
    to
}

/// Columns of a matrix of rows `width` wide, from rows of their own.
fn scatter<T: Copy>(from: &[T], columns: &Range<usize>, to: &mut [T], width: usize) {
    let rows = to.chunks_exact_mut(width);
    for (to, from) in rows.zip(from.chunks_exact(columns.len())) {
        to[columns.clone()].copy_from_slice(from);
    }
}

impl<T: Real> Slice<T> {
    /// Step t, kept at `place`, from the whole state before it.
    fn forward(&mut self, whole: &Whole<'_, T>, t: usize, place: usize, state: &[T]) {
        let Size {
            length, channels, ..
        } = whole.size;
        let (own, gates) = (self.units.len(), whole.gates());
        let width = whole.cell.gates() * own;
        let sequences = whole.operands.inputs.chunks_exact(length * gates);
        for (to, sequence) in self.inputs.chunks_exact_mut(width).zip(sequences) {
            let step = &sequence[t * gates..][..gates];
            let rows = whole.rows(&self.units);
            let parts = to
                .chunks_exact_mut(own)
                .zip(self.biases[0].chunks_exact(own));
            for ((to, bias), row) in parts.zip(rows) {
                let sums = to.iter_mut().zip(bias).zip(&step[row]);
                sums.for_each(|((to, bias), x)| *to = *bias + *x);
            }
        }
        for to in self.recurrent.chunks_exact_mut(width) {
            to.copy_from_slice(&self.biases[1]);
        }
        if t > 0 && !self.weights.is_empty() {
            let weights = RowMajor::new(&self.weights, channels, width);
            let state = RowMajor::new(state, whole.size.batch, channels);
            multiply_rows(&mut self.recurrent, state, weights, true);
        }
        std::mem::swap(&mut self.before, &mut self.out);
        let kept = whole.size.batch * whole.cell.kept() * own;
        Arch::new().dispatch(Forward {
            constants: whole.constants(&self.units),
            inputs: &self.inputs,
            recurrent: &self.recurrent,
            before: &self.before,
            memory: &mut self.memory,
            kept: &mut self.kept[place * kept..][..kept],
            out: &mut self.out,
        });
    }

    /// The gradients of p and q of step t, with `out` that of h and `before` that of the state
    /// before it but for the product.
    fn backward(&mut self, whole: &Whole<'_, T>, t: usize) {
        let kept = whole.size.batch * whole.cell.kept() * self.units.len();
        Arch::new().dispatch(Backward {
            constants: whole.constants(&self.units),
            slope: &self.out,
            memory: &mut self.memory,
            kept: &self.kept[t * kept..][..kept],
            inputs: &mut self.inputs,
            recurrent: &mut self.recurrent,
            before: &mut self.before,
            sums: &mut self.sums,
        });
    }

    /// The gradient of the state before, with what comes from that of q of all units.
    fn through_product(&mut self, whole: &Whole<'_, T>, of_products: &[T]) {
        let Size {
            batch, channels, ..
        } = whole.size;
        let products = RowMajor::new(of_products, batch, whole.gates());
        let weights = RowMajor::new(whole.operands.weights, whole.gates(), channels);
        let weights = weights.columns(self.units.clone());
        multiply_rows(&mut self.before, products, weights, true);
    }
}

/// Gradients of a backward pass: of the inputs, the weights and the vector.
pub(super) type Gradients<T> = [Vec<T>; 3];

impl<T: Real> Whole<'_, T> {
    pub(super) fn backward(
        &self,
        kept: Kept<T>,
        slopes: &[T],
        workspace: &Workspace<T>,
    ) -> Gradients<T> {
        let Size {
            batch,
            length,
            channels,
        } = self.size;
        let gates = self.gates();
        let made = cuts(channels).into_iter().zip(kept.slices);
        let mut slices: Vec<_> = made
            .map(|(units, kept)| Slice {
                kept,
                ..self.slice(units, 0, workspace)
            })
            .collect();
        let mut of_inputs = vec![T::zero(); batch * length * gates];
        let apart = self.cell == Cell::Gru;
        let mut of_products = vec![T::zero(); if apart { of_inputs.len() } else { 0 }];
        let mut step = vec![T::zero(); batch * gates];
        for t in (0..length).rev() {
            slices.par_iter_mut().for_each(|slice| {
                slice.add_slopes(slopes, self.size, t);
                slice.backward(self, t);
            });
            self.gathered(&slices, |slice| &slice.inputs, &mut step);
            self.place(&step, t, &mut of_inputs);
            if apart {
                self.gathered(&slices, |slice| &slice.recurrent, &mut step);
                self.place(&step, t, &mut of_products);
            }
            if t > 0 && self.cell != Cell::Independent {
                let each = slices.par_iter_mut();
                each.for_each(|slice| slice.through_product(self, &step));
            }
        }
        let products = if apart { &of_products } else { &of_inputs };
        let of_weights = self.of_weights(&slices, products, &kept.states);
        let of_vector = self.of_vector(&slices, &of_inputs, products);
        [of_inputs, of_weights, of_vector]
    }

    /// batch × gates · H from the slices' own parts.
    fn gathered(&self, slices: &[Slice<T>], part: fn(&Slice<T>) -> &[T], step: &mut [T]) {
        let gates = self.gates();
        for slice in slices {
            let own = slice.units.len();
            let rows = part(slice).chunks_exact(self.cell.gates() * own);
            for (to, from) in step.chunks_exact_mut(gates).zip(rows) {
                for (rows, from) in self.rows(&slice.units).zip(from.chunks_exact(own)) {
                    to[rows].copy_from_slice(from);
                }
            }
        }
    }

    /// Puts step t of all sequences into its place.
    fn place(&self, step: &[T], t: usize, all: &mut [T]) {
        let gates = self.gates();
        let sequences = all.chunks_exact_mut(self.size.length * gates);
        for (to, from) in sequences.zip(step.chunks_exact(gates)) {
            to[t * gates..][..gates].copy_from_slice(from);
        }
    }

    /// Σ over all steps of (gradient of q)(state before)ᵀ, in one product.
    fn of_weights(&self, slices: &[Slice<T>], products: &[T], states: &[T]) -> Vec<T> {
        let Size {
            batch,
            length,
            channels,
        } = self.size;
        if self.cell == Cell::Independent {
            let sums = slices.iter().map(|slice| &slice.sums[..slice.units.len()]);
            return sums.flatten().copied().collect();
        }
        let gates = self.gates();
        let mut before = vec![T::zero(); states.len()];
        let row = length * channels;
        for (to, from) in before.chunks_exact_mut(row).zip(states.chunks_exact(row)) {
            to[channels..].copy_from_slice(&from[..row - channels]);
        }
        let before = RowMajor::new(&before, batch * length, channels);
        let products = RowMajor::new(products, batch * length, gates);
        let mut out = vec![T::zero(); gates * channels];
        let rows = gates.div_ceil(4).max(128);
        let chunks = out.par_chunks_mut(rows * channels).enumerate();
        chunks.for_each(|(index, out)| {
            let first = index * rows;
            let own = products.columns(first..first + out.len() / channels);
            multiply_rows(out, own.transpose(), before, false);
        });
        out
    }

    fn of_vector(&self, slices: &[Slice<T>], of_inputs: &[T], products: &[T]) -> Vec<T> {
        let gates = self.gates();
        match self.cell {
            Cell::Tanh | Cell::Lstm | Cell::Gru => {
                let sums = column_sums(of_inputs, gates);
                match self.cell {
                    Cell::Gru => [sums, column_sums(products, gates)].concat(),
                    _ => [&sums[..], &sums].concat(),
                }
            }
            Cell::Independent => column_sums(of_inputs, gates),
            Cell::Mixed => {
                let mut sums = vec![T::zero(); 2];
                for slice in slices {
                    sums[0] += slice.sums[0];
                    sums[1] += slice.sums[1];
                }
                sums
            }
        }
    }
}

/// Sums of 64 rows, and sums of those: the rounding does not grow with their number.
fn column_sums<T: Real>(rows: &[T], width: usize) -> Vec<T> {
    let mut sums = vec![T::zero(); width];
    let mut part = vec![T::zero(); width];
    for rows in rows.chunks(64 * width) {
        part.fill(T::zero());
        for row in rows.chunks_exact(width) {
            add(&mut part, row);
        }
        add(&mut sums, &part);
    }
    sums
}

impl<T: Real> Slice<T> {
    /// `out` ← the gradient of the states of step t, with what the later step gave.
    fn add_slopes(&mut self, slopes: &[T], size: Size, t: usize) {
        let Size {
            length, channels, ..
        } = size;
        let own = self.units.len();
        let sequences = slopes.chunks_exact(length * channels);
        let rows = self.out.chunks_exact_mut(own).zip(sequences);
        for ((to, from), before) in rows.zip(self.before.chunks_exact(own)) {
            let from = &from[t * channels..][self.units.clone()];
            let each = to.iter_mut().zip(from).zip(before);
            each.for_each(|((to, from), before)| *to = *from + *before);
        }
    }
}
