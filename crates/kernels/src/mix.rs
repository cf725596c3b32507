//! What follows the state space in a block: GELU, the linear map that mixes channels, the gate.
//!
//! ```text
//! z = p ∘ GELU(y),   m = W z + b,   o = q ∘ m
//! gated: o = q ∘ a ∘ sigmoid(c),  (a, c) being the halves of m, or (z, m), or (y, m)
//! ```
//!
//! p and q are dropout masks of one sequence, 0 or 1/(1−rate) for each channel, the same at
//! every step.

use pulp::{Arch, Simd, WithSimd};

use crate::elements::{GeluForm, gelu};
use crate::product::{RowMajor, multiply_rows};
use crate::real::{LaneReal, add};

/// The map after the state space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mixing {
    /// None: a bare layer ends with the GELU.
    None,
    /// H × H.
    Plain,
    /// 2H × H and a gate.
    Gated,
    /// H × H, which gates what the activation gives.
    Activated,
    /// H × H, which gates what the state space gives.
    Response,
}

impl Mixing {
    /// Rows of W.
    pub fn rows(self, channels: usize) -> usize {
        match self {
            Mixing::None => 0,
            Mixing::Plain | Mixing::Activated | Mixing::Response => channels,
            Mixing::Gated => 2 * channels,
        }
    }

    /// Whether there is a gate.
    fn has_gate(self) -> bool {
        !matches!(self, Mixing::None | Mixing::Plain)
    }
}

/// Weights and masks for the rows of one sequence.
#[derive(Clone, Copy)]
pub struct Mix<'a, T> {
    /// Which map.
    pub mixing: Mixing,
    /// What stands before it.
    pub gelu: GeluForm,
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
    gates: Vec<T>,
}

/// What [`Mix::pull`] takes of some rows, kept for later.
#[derive(Default)]
pub struct MixSlopes<T> {
    slope: Vec<T>,
    mixed: Vec<T>,
}

impl<T> MixScratch<T> {
    /// Exchanges what the rows that were linearised last leave with that of others.
    pub fn exchange(&mut self, slopes: &mut MixSlopes<T>) {
        std::mem::swap(&mut self.slope, &mut slopes.slope);
        std::mem::swap(&mut self.mixed, &mut slopes.mixed);
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
        gelu(y, active, self.gelu);
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
            Mixing::Activated | Mixing::Response => {
                self.linear(active, out, rows);
                let gated = self.gated(active, y);
                Arch::new().dispatch(HalfGate { gated, out });
            }
        }
        scale(out, self.outer, channels);
    }

    /// What a map of one half gates.
    fn gated<'a>(&self, active: &'a [T], y: &'a [T]) -> &'a [T] {
        match self.mixing {
            Mixing::Response => y,
            _ => active,
        }
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
        self.linearise(y, None, scratch);
        scale(g, self.outer, self.channels);
        self.pull(g, gradient.y, scratch);
        let rows = y.len() / self.channels;
        let outputs = self.bias.len();
        if self.mixing != Mixing::None {
            let of_map = self.of_map(g, scratch);
            let active = RowMajor::new(&scratch.active[..y.len()], rows, self.channels);
            let turned = RowMajor::new(of_map, rows, outputs).transpose();
            multiply_rows(gradient.weight, turned, active, true);
            Arch::new().dispatch(SumRows {
                rows: of_map,
                sums: gradient.bias,
            });
        }
    }

    /// The gradient of the map's outputs, after [`Mix::pull`] of g; none without a map.
    pub fn of_map<'a>(&self, g: &'a [T], scratch: &'a MixScratch<T>) -> &'a [T] {
        match self.mixing {
            Mixing::None => &[],
            Mixing::Plain => g,
            Mixing::Gated => &scratch.of_map[..2 * g.len()],
            Mixing::Activated | Mixing::Response => &scratch.gates[..g.len()],
        }
    }

    /// What the map takes of the rows that were linearised last, so many numbers.
    pub fn active(scratch: &MixScratch<T>, count: usize) -> &[T] {
        &scratch.active[..count]
    }

    /// Prepares [`Mix::pull`] for the rows y, and gives o where it is wanted, as [`Mix::forward`] does.
    pub fn linearise(&self, y: &[T], out: Option<&mut [T]>, scratch: &mut MixScratch<T>) {
        let (channels, rows) = (self.channels, y.len() / self.channels);
        let active = sized(&mut scratch.active, y.len());
        let slope = sized(&mut scratch.slope, y.len());
        let gelu = self.gelu;
        Arch::new().dispatch(ActivateWithSlope {
            y,
            active,
            slope,
            gelu,
        });
        scale(active, self.inner, channels);
        if !self.mixing.has_gate() {
            let Some(out) = out else { return };
            match self.mixing {
                Mixing::None => out.copy_from_slice(active),
                _ => self.linear(active, out, rows),
            }
            return scale(out, self.outer, channels);
        }
        let mixed = sized(&mut scratch.mixed, 2 * y.len());
        if self.mixing == Mixing::Gated {
            self.linear(active, mixed, rows);
        } else {
            let gates = sized(&mut scratch.gates, y.len());
            self.linear(active, gates, rows);
            join(self.gated(active, y), gates, mixed, channels);
        }
        if let Some(out) = out {
            let by_gate = Gate {
                mixed,
                out,
                channels,
            };
            Arch::new().dispatch(by_gate);
            scale(out, self.outer, channels);
        }
        Arch::new().dispatch(GateSlopes { mixed, channels });
    }

    /// The gradient of y from that of q ∘ o, for the rows that were linearised last; any number of
    /// gradients may be pulled back after one linearisation.
    pub fn pull(&self, g: &[T], of_y: &mut [T], scratch: &mut MixScratch<T>) {
        let (channels, rows) = (self.channels, g.len() / self.channels);
        let weight = RowMajor::new(self.weight, self.bias.len(), channels);
        if self.mixing.has_gate() {
            let of_map = sized(&mut scratch.of_map, 2 * g.len());
            Arch::new().dispatch(GatePull {
                slopes: &scratch.mixed[..2 * g.len()],
                of_map,
                g,
                channels,
            });
        }
        match self.mixing {
            Mixing::None => of_y.copy_from_slice(g),
            Mixing::Plain => multiply_rows(of_y, RowMajor::new(g, rows, channels), weight, false),
            Mixing::Gated => {
                let of_map = RowMajor::new(&scratch.of_map[..2 * g.len()], rows, 2 * channels);
                multiply_rows(of_y, of_map, weight, false);
            }
            Mixing::Activated | Mixing::Response => {
                let gates = sized(&mut scratch.gates, g.len());
                let of_gated = match self.mixing {
                    Mixing::Activated => Some(&mut *of_y),
                    _ => None,
                };
                part(&scratch.of_map[..2 * g.len()], of_gated, gates, channels);
                let of_map = RowMajor::new(gates, rows, channels);
                multiply_rows(of_y, of_map, weight, self.mixing == Mixing::Activated);
            }
        }
        scale(of_y, self.inner, channels);
        Arch::new().dispatch(Product {
            out: of_y,
            by: &scratch.slope[..g.len()],
        });
        if self.mixing == Mixing::Response {
            let rows = scratch.of_map.chunks_exact(2 * channels);
            for (of_y, of_map) in of_y.chunks_exact_mut(channels).zip(rows) {
                add(of_y, &of_map[..channels]);
            }
        }
    }
}

/// Rows (a, c) of rows a and of rows c.
fn join<T: LaneReal>(a: &[T], c: &[T], both: &mut [T], channels: usize) {
    let rows = a.chunks_exact(channels).zip(c.chunks_exact(channels));
    for (both, (a, c)) in both.chunks_exact_mut(2 * channels).zip(rows) {
        let (first, second) = both.split_at_mut(channels);
        first.copy_from_slice(a);
        second.copy_from_slice(c);
    }
}

/// Rows a, where they are wanted, and rows c of rows (a, c).
fn part<T: LaneReal>(both: &[T], a: Option<&mut [T]>, c: &mut [T], channels: usize) {
    let rows = both.chunks_exact(2 * channels);
    for (both, c) in rows.clone().zip(c.chunks_exact_mut(channels)) {
        c.copy_from_slice(&both[channels..]);
    }
    let Some(a) = a else { return };
    for (both, a) in rows.zip(a.chunks_exact_mut(channels)) {
        a.copy_from_slice(&both[..channels]);
    }
}

/// Multiplies every row with a mask.
fn scale<T: LaneReal>(rows: &mut [T], mask: Option<&[T]>, channels: usize) {
    let Some(mask) = mask else { return };
    for row in rows.chunks_exact_mut(channels) {
        row.iter_mut().zip(mask).for_each(|(x, m)| *x *= *m);
    }
}

struct ActivateWithSlope<'a, T> {
    y: &'a [T],
    active: &'a mut [T],
    slope: &'a mut [T],
    gelu: GeluForm,
}

impl<T: LaneReal> WithSimd for ActivateWithSlope<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let outputs = self.active.iter_mut().zip(self.slope);
        match self.gelu {
            GeluForm::Exact => {
                for ((active, slope), y) in outputs.zip(self.y) {
                    (*active, *slope) = y.gelu_with_slope();
                }
            }
            GeluForm::Tanh => {
                for ((active, slope), y) in outputs.zip(self.y) {
                    (*active, *slope) = y.gelu_tanh_with_slope();
                }
            }
        }
    }
}

/// out ← gated ∘ sigmoid(out).
struct HalfGate<'a, T> {
    gated: &'a [T],
    out: &'a mut [T],
}

impl<T: LaneReal> WithSimd for HalfGate<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for (out, a) in self.out.iter_mut().zip(self.gated) {
            *out = *a * out.sigmoid();
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
