//! Causal attention of many heads over a batch, as one operation of candle.
//!
//! Heads stand side by side, so that a loop over them is vector code. Scores are formed again on the
//! way back: what a sequence needs is L rows of scores, not L².

use candle_core::{CpuStorage, Result, Shape, Tensor, bail};
use pulp::{Arch, Simd, WithSimd};
use rayon::prelude::*;

use crate::nn::operation::{Argument, Operation, apply3};
use crate::nn::real::Real;

/// z_i(t) = Σ_{s ≤ t} softmax_s(x_sᵀ k_i(t)) v_i(s), batch × L × m, from
///
/// - `x`, batch × L × d;
/// - `keys`, batch × L × (d · m): k_i(t), number j of all heads after number j − 1 of all;
/// - `values`, batch × L × m: v_i(s).
///
/// O(batch · L² · d · m) operations, the same bits for any number of threads.
pub(super) fn attend(x: &Tensor, keys: &Tensor, values: &Tensor) -> Result<Tensor> {
    apply3(Attend, [x, keys, values])
}

struct Attend;

/// Numbers of a step and heads.
#[derive(Clone, Copy)]
struct Size {
    length: usize,
    width: usize,
    heads: usize,
}

impl Size {
    fn of(shapes: [&Shape; 3]) -> Result<Self> {
        let (batch, length, width) = shapes[0].dims3()?;
        let (_, _, heads) = shapes[2].dims3()?;
        let expected = [batch * length * width * heads, batch * length * heads];
        let found = [shapes[1].elem_count(), shapes[2].elem_count()];
        if found != expected || expected[0] == 0 {
            bail!("attention to {found:?} keys and values, expected {expected:?}, not 0");
        }
        Ok(Self {
            length,
            width,
            heads,
        })
    }

    /// Numbers of one sequence: of x, of the keys, of the values.
    fn numbers(self) -> [usize; 3] {
        [self.width, self.width * self.heads, self.heads].map(|each| each * self.length)
    }
}

/// One sequence.
#[derive(Clone, Copy)]
struct Sequence<'a, T> {
    size: Size,
    x: &'a [T],
    keys: &'a [T],
    values: &'a [T],
}

/// Room for the softmax of one step: shares, L × m, and the largest score and the sum of each head.
struct Shares<T> {
    shares: Vec<T>,
    largest: Vec<T>,
    sums: Vec<T>,
}

impl<T: Real> Shares<T> {
    fn new(size: Size) -> Self {
        let zeros = |count: usize| vec![T::zero(); count];
        Self {
            shares: zeros(size.length * size.heads),
            largest: zeros(size.heads),
            sums: zeros(size.heads),
        }
    }
}

/// to ← to + factor · row.
#[inline(always)]
fn add_scaled<T: Real>(to: &mut [T], factor: T, row: &[T]) {
    let pairs = to.iter_mut().zip(row);
    pairs.for_each(|(to, row)| *to += factor * *row);
}

/// to ← to + a ∘ b.
#[inline(always)]
fn add_products<T: Real>(to: &mut [T], a: &[T], b: &[T]) {
    let each = to.iter_mut().zip(a).zip(b);
    each.for_each(|((to, a), b)| *to += *a * *b);
}

impl<T: Real> Sequence<'_, T> {
    fn keys_of(&self, t: usize) -> &[T] {
        let row = self.size.width * self.size.heads;
        &self.keys[t * row..][..row]
    }

    /// softmax_s of step t, s ≤ t, m numbers in a row.
    #[inline(always)]
    fn shares(&self, t: usize, room: &mut Shares<T>) {
        let Size { width, heads, .. } = self.size;
        let rows = &mut room.shares[..(t + 1) * heads];
        rows.fill(T::zero());
        let keys = self.keys_of(t);
        for (row, x) in rows.chunks_exact_mut(heads).zip(self.x.chunks_exact(width)) {
            for (key, &x) in keys.chunks_exact(heads).zip(x) {
                add_scaled(row, x, key);
            }
        }
        room.largest.copy_from_slice(&rows[..heads]);
        for row in rows.chunks_exact(heads) {
            let pairs = room.largest.iter_mut().zip(row);
            pairs.for_each(|(largest, score)| {
                *largest = if *score > *largest { *score } else { *largest };
            });
        }
        room.sums.fill(T::zero());
        for row in rows.chunks_exact_mut(heads) {
            let each = row.iter_mut().zip(&room.largest).zip(&mut room.sums);
            each.for_each(|((score, largest), sum)| {
                *score = (*score - *largest).power();
                *sum += *score;
            });
        }
        for row in rows.chunks_exact_mut(heads) {
            let pairs = row.iter_mut().zip(&room.sums);
            pairs.for_each(|(share, sum)| *share /= *sum);
        }
    }

    /// z(t) of filled shares.
    #[inline(always)]
    fn mean(&self, t: usize, room: &Shares<T>, z: &mut [T]) {
        let heads = self.size.heads;
        z.fill(T::zero());
        let rows = room.shares.chunks_exact(heads).take(t + 1);
        for (share, value) in rows.zip(self.values.chunks_exact(heads)) {
            add_products(z, share, value);
        }
    }
}

struct Forward<'a, T> {
    sequence: Sequence<'a, T>,
    out: &'a mut [T],
}

impl<T: Real> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let mut room = Shares::new(self.sequence.size);
        let rows = self.out.chunks_exact_mut(self.sequence.size.heads);
        for (t, z) in rows.enumerate() {
            self.sequence.shares(t, &mut room);
            self.sequence.mean(t, &room, z);
        }
    }
}

struct Backward<'a, T> {
    sequence: Sequence<'a, T>,
    /// The gradient of z.
    slopes: &'a [T],
    of_x: &'a mut [T],
    of_keys: &'a mut [T],
    of_values: &'a mut [T],
}

impl<T: Real> WithSimd for Backward<'_, T> {
    type Output = ();

    /// With p = g(t) ∘ share: v(s) gets p; the score gets q = p ∘ (v(s) − z(t)), of which k(t) gets
    /// q x_s and x_s gets Σ_i q_i k_i(t).
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let sequence = self.sequence;
        let Size {
            length,
            width,
            heads,
        } = sequence.size;
        let mut room = Shares::new(sequence.size);
        let (mut z, mut q) = (vec![T::zero(); heads], vec![T::zero(); heads]);
        // What each head gives to x; summed in the end.
        let mut of_x = vec![T::zero(); length * width * heads];
        for t in 0..length {
            sequence.shares(t, &mut room);
            sequence.mean(t, &room, &mut z);
            let slope = &self.slopes[t * heads..][..heads];
            let keys = sequence.keys_of(t);
            let of_keys = &mut self.of_keys[t * width * heads..][..width * heads];
            for s in 0..=t {
                let share = &room.shares[s * heads..][..heads];
                let value = &sequence.values[s * heads..][..heads];
                add_products(&mut self.of_values[s * heads..][..heads], slope, share);
                for i in 0..heads {
                    q[i] = slope[i] * share[i] * (value[i] - z[i]);
                }
                let x = &sequence.x[s * width..][..width];
                let to_x = &mut of_x[s * width * heads..][..width * heads];
                let rows = of_keys.chunks_exact_mut(heads).zip(x);
                rows.for_each(|(of_key, &x)| add_scaled(of_key, x, &q));
                let rows = to_x.chunks_exact_mut(heads).zip(keys.chunks_exact(heads));
                rows.for_each(|(to_x, key)| add_products(to_x, &q, key));
            }
        }
        for (to, from) in self.of_x.iter_mut().zip(of_x.chunks_exact(heads)) {
            *to = from.iter().fold(T::zero(), |sum, x| sum + *x);
        }
    }
}

fn forward<T: Real>(operands: [&[T]; 3], size: Size) -> Vec<T> {
    let [of_x, of_keys, of_values] = size.numbers();
    let [x, keys, values] = operands;
    let mut out = vec![T::zero(); values.len()];
    let sequences = x
        .par_chunks(of_x)
        .zip(keys.par_chunks(of_keys))
        .zip(values.par_chunks(of_values));
    let each = out.par_chunks_mut(of_values).zip(sequences);
    each.for_each(|(out, ((x, keys), values))| {
        let sequence = Sequence {
            size,
            x,
            keys,
            values,
        };
        Arch::new().dispatch(Forward { sequence, out });
    });
    out
}

/// The gradients of x, keys and values.
fn backward<T: Real>([x, keys, values]: [&[T]; 3], slopes: &[T], size: Size) -> [Vec<T>; 3] {
    let [of_x, of_keys, of_values] = size.numbers();
    let [mut to_x, mut to_keys, mut to_values] =
        [x, keys, values].map(|all| vec![T::zero(); all.len()]);
    let sequences = x
        .par_chunks(of_x)
        .zip(keys.par_chunks(of_keys))
        .zip(values.par_chunks(of_values))
        .zip(slopes.par_chunks(of_values));
    let gradients = to_x
        .par_chunks_mut(of_x)
        .zip(to_keys.par_chunks_mut(of_keys))
        .zip(to_values.par_chunks_mut(of_values));
    gradients.zip(sequences).for_each(
        |(((of_x, of_keys), of_values), (((x, keys), values), slopes))| {
            let sequence = Sequence {
                size,
                x,
                keys,
                values,
            };
            Arch::new().dispatch(Backward {
                sequence,
                slopes,
                of_x,
                of_keys,
                of_values,
            });
        },
    );
    [to_x, to_keys, to_values]
}

impl Operation<3> for Attend {
    const NAME: &'static str = "causal attention";

    fn forward<T: Real>(&self, arguments: [Argument<'_>; 3]) -> Result<(CpuStorage, Shape)> {
        let size = Size::of(arguments.map(Argument::shape))?;
        let out = forward::<T>(operands(arguments)?, size);
        Ok((T::to_cpu_storage_owned(out), arguments[2].shape().clone()))
    }

    fn backward<T: Real>(
        &self,
        arguments: [Argument<'_>; 3],
        slopes: Argument<'_>,
    ) -> Result<[Option<Tensor>; 3]> {
        let size = Size::of(arguments.map(Argument::shape))?;
        let [of_x, of_keys, of_values] =
            backward::<T>(operands(arguments)?, slopes.numbers()?, size);
        let [x, keys, values] = arguments;
        Ok([
            Some(x.shaped(of_x)?),
            Some(keys.shaped(of_keys)?),
            Some(values.shaped(of_values)?),
        ])
    }
}

fn operands<'a, T: Real>(arguments: [Argument<'a>; 3]) -> Result<[&'a [T]; 3]> {
    let [x, keys, values] = arguments.map(Argument::numbers);
    Ok([x?, keys?, values?])
}
