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
use crate::real::LaneReal;

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
    of_map: Vec<T>,
}

impl<T> MixScratch<T> {
    /// The gradient of the map's outputs that [`Mix::pull`] left for so many numbers.
    pub fn of_map(&self, count: usize) -> &[T] {
        &self.of_map[..count]
    }
}

fn sized<T: LaneReal>(buffer: &mut Vec<T>, count: usize) -> &mut [T] {
    if buffer.len() < count {
        buffer.resize(count, T::zero());
    }
    &mut buffer[..count]
}

impl<T: LaneReal> Mix<'_, T> {
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
        gradient: MixGradient<'_, T>,
        scratch: &mut MixScratch<T>,
    ) {
        self.linearise(y, scratch);
        scale(g, self.outer, self.channels);
        self.pull(g, gradient.y, scratch);
        let rows = y.len() / self.channels;
        let outputs = self.bias.len();
        if self.mixing != Mixing::None {
            let of_map = match self.mixing {
                Mixing::Gated => &scratch.of_map[..rows * outputs],
                _ => g,
            };
            let active = RowMajor::new(&scratch.active[..y.len()], rows, self.channels);
            let turned = RowMajor::new(of_map, rows, outputs).transpose();
            multiply_rows(gradient.weight, turned, active, true);
            Arch::new().dispatch(SumRows {
                rows: of_map,
                sums: gradient.bias,
            });
        }
    }

    /// Prepares [`Mix::pull`] for the rows y.
    pub fn linearise(&self, y: &[T], scratch: &mut MixScratch<T>) {
        let active = sized(&mut scratch.active, y.len());
        let slope = sized(&mut scratch.slope, y.len());
        Arch::new().dispatch(ActivateWithSlope { y, active, slope });
        scale(active, self.inner, self.channels);
        if self.mixing == Mixing::Gated {
            let mixed = sized(&mut scratch.mixed, 2 * y.len());
            self.linear(active, mixed, y.len() / self.channels);
            Arch::new().dispatch(GateSlopes {
                mixed,
                channels: self.channels,
            });
        }
    }

    /// The gradient of y from that of q ∘ o, for the rows that were linearised last; any number of
    /// gradients may be pulled back after one linearisation. The gradient of the map's outputs is
    /// left in the scratch, where there is a gate; else it is `g`.
    pub fn pull(&self, g: &[T], of_y: &mut [T], scratch: &mut MixScratch<T>) {
        let (channels, rows) = (self.channels, g.len() / self.channels);
        let weight = RowMajor::new(self.weight, self.bias.len(), channels);
        match self.mixing {
            Mixing::None => of_y.copy_from_slice(g),
            Mixing::Plain => multiply_rows(of_y, RowMajor::new(g, rows, channels), weight, false),
            Mixing::Gated => {
                let of_map = sized(&mut scratch.of_map, 2 * g.len());
                Arch::new().dispatch(GatePull {
                    slopes: &scratch.mixed[..2 * g.len()],
                    of_map,
                    g,
                    channels,
                });
                let of_map = RowMajor::new(of_map, rows, 2 * channels);
                multiply_rows(of_y, of_map, weight, false);
            }
        }
        scale(of_y, self.inner, channels);
        Arch::new().dispatch(Product {
            out: of_y,
            by: &scratch.slope[..g.len()],
        });
    }
}

/// Multiplies every row with a mask.
fn scale<T: LaneReal>(rows: &mut [T], mask: Option<&[T]>, channels: usize) {
    let Some(mask) = mask else { return };
    for row in rows.chunks_exact_mut(channels) {
        row.iter_mut().zip(mask).for_each(|(x, m)| *x *= *m);
    }
}

struct Activate<'a, T> {
    y: &'a [T],
    active: &'a mut [T],
}

impl<T: LaneReal> WithSimd for Activate<'_, T> {
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

impl<T: LaneReal> WithSimd for ActivateWithSlope<'_, T> {
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

impl<T: LaneReal> WithSimd for Gate<'_, T> {
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

/// (a, c) ← the derivatives of a ∘ sigmoid(c) by both.
struct GateSlopes<'a, T> {
    mixed: &'a mut [T],
    channels: usize,
}

impl<T: LaneReal> WithSimd for GateSlopes<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for mixed in self.mixed.chunks_exact_mut(2 * self.channels) {
            let (a, c) = mixed.split_at_mut(self.channels);
            for (a, c) in a.iter_mut().zip(c) {
                let open = c.sigmoid();
                *c = *a * open * (T::one() - open);
                *a = open;
            }
        }
    }
}

/// The gradients of (a, c).
struct GatePull<'a, T> {
    slopes: &'a [T],
    of_map: &'a mut [T],
    g: &'a [T],
    channels: usize,
}

impl<T: LaneReal> WithSimd for GatePull<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let rows = self.slopes.chunks_exact(2 * self.channels);
        let rows = rows.zip(self.of_map.chunks_exact_mut(2 * self.channels));
        for ((slopes, of_map), g) in rows.zip(self.g.chunks_exact(self.channels)) {
            let (by_a, by_c) = slopes.split_at(self.channels);
            let (of_a, of_c) = of_map.split_at_mut(self.channels);
            let slopes = by_a.iter().zip(by_c).zip(g);
            for (((by_a, by_c), g), (of_a, of_c)) in slopes.zip(of_a.iter_mut().zip(of_c)) {
                *of_a = *g * *by_a;
                *of_c = *g * *by_c;
            }
        }
    }
}

struct Product<'a, T> {
    out: &'a mut [T],
    by: &'a [T],
}

impl<T: LaneReal> WithSimd for Product<'_, T> {
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

impl<T: LaneReal> WithSimd for SumRows<'_, T> {
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
