//! A recurrent cell over all steps of a batch, as one operation of candle.
//!
//! Units are cut into slices that depend on their number alone. All slices of a step run at once;
//! then the state is put together and the next step begins. So the bits do not depend on the number
//! of threads.

use std::any::Any;
use std::ops::Range;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::MutexGuard;
use std::sync::PoisonError;

use candle_core::CpuStorage;
use candle_core::CustomOp3;
use candle_core::DType;
use candle_core::Layout;
use candle_core::Result;
use candle_core::Shape;
use candle_core::Tensor;
use candle_core::bail;
use pulp::Arch;
use rayon::prelude::*;

use crate::linalg::RowMajor;
use crate::linalg::multiply_rows;
use crate::nn::baseline::gates::Backward;
use crate::nn::baseline::gates::Cell;
use crate::nn::baseline::gates::Constants;
use crate::nn::baseline::gates::Forward;
use crate::nn::op::part;
use crate::nn::op::values;
use crate::nn::op::with_storage;
use crate::nn::plan::Size;
use crate::nn::pool::Lease;
use crate::nn::pool::Workspace;
use crate::nn::pool::Workspaces;
use crate::nn::real::Real;
use crate::nn::real::add;

/// The states h, batch × L × H, from
///
/// - `inputs`, batch × L × (gates · H): the shares of the inputs in all gates;
/// - `weights`: gates · H × H, or the H weights of [`Cell::Independent`];
/// - `vector`: the biases of the inputs, then those of the state, gates · H each; α and β of
///   [`Cell::Mixed`]; the bias of [`Cell::Independent`], H.
///
/// The state before the first step is zero. `keep` says whether a gradient may be asked for.
pub(super) fn recurrence(
    cell: Cell,
    (inputs, weights, vector): (&Tensor, &Tensor, &Tensor),
    workspaces: &Arc<Workspaces>,
    keep: bool,
) -> Result<Tensor> {
    let op = Recurrence {
        cell,
        keep,
        workspaces: Arc::clone(workspaces),
        kept: Mutex::new(None),
    };
    let inputs = inputs.contiguous()?;
    inputs.apply_op3(&weights.contiguous()?, &vector.contiguous()?, op)
}

struct Recurrence {
    cell: Cell,
    keep: bool,
    workspaces: Arc<Workspaces>,
    /// The `Kept<T>` of the forward pass, until the backward pass takes it.
    kept: Mutex<Option<Box<dyn Any + Send>>>,
}

/// What every slice keeps of the forward pass, and all states.
struct Kept<T: 'static + Copy> {
    slices: Vec<Lease<T>>,
    states: Vec<T>,
}

/// Runs all steps on a thread of the pool, so that no step changes threads to share its work out.
fn on_threads<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    rayon::scope(|_| work())
}

/// The tensors on the host.
#[derive(Clone, Copy)]
struct Operands<'a, T> {
    inputs: &'a [T],
    weights: &'a [T],
    vector: &'a [T],
}

/// Numbers that all slices share.
#[derive(Clone, Copy)]
struct Whole<'a, T> {
    cell: Cell,
    size: Size,
    operands: Operands<'a, T>,
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
    fn forward(&self, keep: bool, workspace: &Workspace<T>) -> Kept<T> {
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
            each.for_each(|slice| slice.forward(self, (t, place), &state));
            for slice in &slices {
                scatter(&slice.out, &slice.units, (&mut state, channels));
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
fn scatter<T: Copy>(from: &[T], columns: &Range<usize>, (to, width): (&mut [T], usize)) {
    let rows = to.chunks_exact_mut(width);
    for (to, from) in rows.zip(from.chunks_exact(columns.len())) {
        to[columns.clone()].copy_from_slice(from);
    }
}

impl<T: Real> Slice<T> {
    /// Step t, kept at `place`, from the whole state before it.
    fn forward(&mut self, whole: &Whole<'_, T>, (t, place): (usize, usize), state: &[T]) {
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
type Gradients<T> = [Vec<T>; 3];

impl<T: Real> Whole<'_, T> {
    fn backward(&self, kept: Kept<T>, slopes: &[T], workspace: &Workspace<T>) -> Gradients<T> {
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
                slice.add_slopes((slopes, self.size), t);
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
    fn add_slopes(&mut self, (slopes, size): (&[T], Size), t: usize) {
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

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recurrence {
    fn size(&self, shapes: [&Shape; 3]) -> Result<Size> {
        let (batch, length, gates) = shapes[0].dims3()?;
        let channels = gates / self.cell.gates();
        let (weights, vector) = match self.cell {
            Cell::Independent => (channels, channels),
            Cell::Mixed => (gates * channels, 2),
            Cell::Tanh | Cell::Lstm | Cell::Gru => (gates * channels, 2 * gates),
        };
        let found = (shapes[1].elem_count(), shapes[2].elem_count());
        if found != (weights, vector) || gates != channels * self.cell.gates() {
            bail!("a cell of {channels} units has {found:?} numbers, expected {weights}, {vector}");
        }
        if batch * length * channels == 0 {
            bail!("an empty batch: {batch} sequences of {length} steps");
        }
        Ok(Size {
            batch,
            length,
            channels,
        })
    }

    fn forward<T: Real>(
        &self,
        (operands, size): (Operands<'_, T>, Size),
        workspace: &Workspace<T>,
    ) -> (CpuStorage, Shape) {
        let cell = self.cell;
        let whole = Whole {
            cell,
            size,
            operands,
        };
        let kept = on_threads(|| whole.forward(self.keep, workspace));
        let out = kept.states.clone();
        if self.keep {
            *locked(&self.kept) = Some(Box::new(kept));
        }
        let shape = Shape::from((size.batch, size.length, size.channels));
        (T::to_cpu_storage_owned(out), shape)
    }

    fn backward<T: Real>(
        &self,
        arguments: [&Tensor; 3],
        slopes: &Tensor,
        workspace: &Workspace<T>,
    ) -> Result<[Tensor; 3]> {
        let size = self.size(arguments.map(Tensor::shape))?;
        let kept = locked(&self.kept).take();
        let kept = kept.and_then(|kept| kept.downcast::<Kept<T>>().ok());
        // A second backward pass through the same output forms the steps again, from the inputs.
        let inputs = match kept {
            Some(_) => Vec::new(),
            None => values::<T>(arguments[0])?,
        };
        let (vector, slopes) = (values::<T>(arguments[2])?, values::<T>(slopes)?);
        let [of_inputs, of_weights, of_vector] = with_storage(arguments[1], |storage, layout| {
            let whole = Whole {
                cell: self.cell,
                size,
                operands: Operands {
                    inputs: &inputs,
                    weights: part(storage, layout)?,
                    vector: &vector,
                },
            };
            Ok(on_threads(|| {
                let kept = kept.map_or_else(|| whole.forward(true, workspace), |kept| *kept);
                whole.backward(kept, &slopes, workspace)
            }))
        })?;
        let device = arguments[0].device();
        let tensor =
            |numbers: Vec<T>, like: &Tensor| Tensor::from_vec(numbers, like.shape(), device);
        Ok([
            tensor(of_inputs, arguments[0])?,
            tensor(of_weights, arguments[1])?,
            tensor(of_vector, arguments[2])?,
        ])
    }
}

fn operands<'a, T: Real>(storages: [(&'a CpuStorage, &Layout); 3]) -> Result<Operands<'a, T>> {
    let [inputs, weights, vector] = storages.map(|(storage, layout)| part(storage, layout));
    Ok(Operands {
        inputs: inputs?,
        weights: weights?,
        vector: vector?,
    })
}

impl CustomOp3 for Recurrence {
    fn name(&self) -> &'static str {
        "recurrence"
    }

    fn cpu_fwd(
        &self,
        s1: &CpuStorage,
        l1: &Layout,
        s2: &CpuStorage,
        l2: &Layout,
        s3: &CpuStorage,
        l3: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        let size = self.size([l1.shape(), l2.shape(), l3.shape()])?;
        let storages = [(s1, l1), (s2, l2), (s3, l3)];
        Ok(match s1 {
            CpuStorage::F32(_) => {
                self.forward((operands::<f32>(storages)?, size), &self.workspaces.single)
            }
            CpuStorage::F64(_) => {
                self.forward((operands::<f64>(storages)?, size), &self.workspaces.double)
            }
            _ => bail!("a recurrence runs in f32 or f64"),
        })
    }

    fn bwd(
        &self,
        arg1: &Tensor,
        arg2: &Tensor,
        arg3: &Tensor,
        _res: &Tensor,
        grad_res: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let arguments = [arg1, arg2, arg3];
        let [inputs, weights, vector] = match arg1.dtype() {
            DType::F64 => self.backward(arguments, grad_res, &self.workspaces.double)?,
            _ => self.backward(arguments, grad_res, &self.workspaces.single)?,
        };
        Ok((Some(inputs), Some(weights), Some(vector)))
    }
}
