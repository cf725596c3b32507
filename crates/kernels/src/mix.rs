//! What follows the state space in a block: GELU, the linear map that mixes channels, the gate.
//!
//! ```text
//! o = q ∘ m,   m = W (p ∘ GELU(y)) + b,   or m = a ∘ sigmoid(c) with (a, c) the halves of that
//! ```
//!
//! p and q are dropout masks of one sequence, 0 or 1/(1−rate) for each channel, the same at
//! every step.

use pulp::{Arch, Simd, WithSimd};

use crate::product::{RowMajor, multiply_rows};
use crate::real::Real;

/// The map after the state space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixing {
    /// None: a bare layer ends with the GELU.
    None,
    /// H × H.
    Plain,
    /// 2H × H and a gate.
    Gated,
}

impl Mixing {
    /// Rows of W.
    pub fn rows(self, channels: usize) -> usize {
        match self {
            Mixing::None => 0,
            Mixing::Plain => channels,
            Mixing::Gated => 2 * channels,
        }
    }
}

/// Weights and masks for the rows of one sequence.
#[derive(Clone, Copy)]
pub struct Mix<'a, T> {
    /// Which map.
    pub mixing: Mixing,
    /// H.
    pub channels: usize,
    /// W, rows × H by rows; empty for no map.
    pub weight: &'a [T],
    /// b, one for each row of W.
    pub bias: &'a [T],
    /// p.
    pub inner: Option<&'a [T]>,
    /// q.
    pub outer: Option<&'a [T]>,
}

/// The gradients of y, which is set, and of W and b, which are added to.
pub struct MixGradient<'a, T> {
    /// Of y.
    pub y: &'a mut [T],
    /// Of W.
    pub weight: &'a mut [T],
    /// Of b.
    pub bias: &'a mut [T],
}

/// Room for the rows in work, kept between calls.
#[derive(Default)]
pub struct MixScratch<T> {
    active: Vec<T>,
    slope: Vec<T>,
    mixed: Vec<T>,
}

fn sized<T: Real>(buffer: &mut Vec<T>, count: usize) -> &mut [T] {
    if buffer.len() < count {
        buffer.resize(count, T::zero());
    }
    &mut buffer[..count]
}

impl<T: Real> Mix<'_, T> {
    /// o from y, row by row.
    pub fn forward(&self, y: &[T], out: &mut [T], scratch: &mut MixScratch<T>) {
        let (channels, rows) = (self.channels, y.len() / self.channels);
        let active = sized(&mut scratch.active, y.len());
        Arch::new().dispatch(Activate { y, active });
        scale(active, self.inner, channels);
        match self.mixing {
            Mixing::None => out.copy_from_slice(active),
            Mixing::Plain => self.linear(active, out, rows),
            Mixing::Gated => {
                let mixed = sized(&mut scratch.mixed, 2 * y.len());
                self.linear(active, mixed, rows);
                Arch::new().dispatch(Gate {
                    mixed,
                    out,
                    channels,
                });
            }
        }
        scale(out, self.outer, channels);
    }

    fn linear(&self, active: &[T], out: &mut [T], rows: usize) {
        let outputs = self.bias.len();
        for row in out.chunks_exact_mut(outputs) {
            row.copy_from_slice(self.bias);
        }
        let weight = RowMajor::new(self.weight, outputs, self.channels).transpose();
        multiply_rows(
            out,
            RowMajor::new(active, rows, self.channels),
            weight,
            true,
        );
    }

    /// The gradients from that of o; `g` is used up.
    pub fn backward(
        &self,
        y: &[T],
        g: &mut [T],
        mut gradient: MixGradient<'_, T>,
        scratch: &mut MixScratch<T>,
    ) {
        let channels = self.channels;
        let active = sized(&mut scratch.active, y.len());
        let slope = sized(&mut scratch.slope, y.len());
        Arch::new().dispatch(ActivateWithSlope { y, active, slope });
        scale(active, self.inner, channels);
        scale(g, self.outer, channels);
        match self.mixing {
            Mixing::None => gradient.y.copy_from_slice(g),
            Mixing::Plain => self.linear_backward(active, g, &mut gradient),
            Mixing::Gated => {
                let mixed = sized(&mut scratch.mixed, 2 * y.len());
                self.linear(active, mixed, y.len() / channels);
                Arch::new().dispatch(GateBackward { mixed, g, channels });
                self.linear_backward(active, mixed, &mut gradient);
            }
        }
        scale(gradient.y, self.inner, channels);
        Arch::new().dispatch(Product {
            out: gradient.y,
            by: slope,
        });
    }

    fn linear_backward(&self, active: &[T], g: &[T], gradient: &mut MixGradient<'_, T>) {
        let (outputs, channels) = (self.bias.len(), self.channels);
        let rows = active.len() / channels;
        let weight = RowMajor::new(self.weight, outputs, channels);
        let of_out = RowMajor::new(g, rows, outputs);
        multiply_rows(gradient.y, of_out, weight, false);
        let active = RowMajor::new(active, rows, channels);
        multiply_rows(gradient.weight, of_out.transpose(), active, true);
        Arch::new().dispatch(SumRows {
            rows: g,
            sums: gradient.bias,
        });
    }
}

/// Multiplies every row with a mask.
fn scale<T: Real>(rows: &mut [T], mask: Option<&[T]>, channels: usize) {
    let Some(mask) = mask else { return };
    for row in rows.chunks_exact_mut(channels) {
        row.iter_mut().zip(mask).for_each(|(x, m)| *x *= *m);
    }
}

struct Activate<'a, T> {
    y: &'a [T],
    active: &'a mut [T],
}

impl<T: Real> WithSimd for Activate<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (active, y) in self.active.iter_mut().zip(self.y) {
            *active = y.gelu();
        }
    }
}

struct ActivateWithSlope<'a, T> {
    y: &'a [T],
    active: &'a mut [T],
    slope: &'a mut [T],
}

impl<T: Real> WithSimd for ActivateWithSlope<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let outputs = self.active.iter_mut().zip(self.slope);
        for ((active, slope), y) in outputs.zip(self.y) {
            (*active, *slope) = y.gelu_with_slope();
        }
    }
}

/// out ← a ∘ sigmoid(c).
struct Gate<'a, T> {
    mixed: &'a [T],
    out: &'a mut [T],
    channels: usize,
}

impl<T: Real> WithSimd for Gate<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let rows = self.mixed.chunks_exact(2 * self.channels);
        for (mixed, out) in rows.zip(self.out.chunks_exact_mut(self.channels)) {
            let (a, c) = mixed.split_at(self.channels);
            for ((out, a), c) in out.iter_mut().zip(a).zip(c) {
                *out = *a * c.sigmoid();
            }
        }
    }
}

/// (a, c) ← their gradients.
struct GateBackward<'a, T> {
    mixed: &'a mut [T],
    g: &'a [T],
    channels: usize,
}

impl<T: Real> WithSimd for GateBackward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let rows = self.mixed.chunks_exact_mut(2 * self.channels);
        for (mixed, g) in rows.zip(self.g.chunks_exact(self.channels)) {
            let (a, c) = mixed.split_at_mut(self.channels);
            for ((a, c), g) in a.iter_mut().zip(c).zip(g) {
                let open = c.sigmoid();
                *c = *g * *a * open * (T::one() - open);
                *a = *g * open;
            }
        }
    }
}

struct Product<'a, T> {
    out: &'a mut [T],
    by: &'a [T],
}

impl<T: Real> WithSimd for Product<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (out, by) in self.out.iter_mut().zip(self.by) {
            *out *= *by;
        }
    }
}

struct SumRows<'a, T> {
    rows: &'a [T],
    sums: &'a mut [T],
}

impl<T: Real> WithSimd for SumRows<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for row in self.rows.chunks_exact(self.sums.len()) {
            for (sum, value) in self.sums.iter_mut().zip(row) {
                *sum += *value;
            }
        }
    }
}
