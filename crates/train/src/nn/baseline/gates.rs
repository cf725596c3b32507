//! One step of a recurrent cell, unit by unit, and its gradient.

use candle_core::Tensor;
use pulp::{Simd, WithSimd};

use crate::nn::real::Real;

/// What happens between the products and the state. p is the share of the inputs in a gate, with
/// its bias; q the share of the state before, with its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cell {
    /// h = tanh(p + q).
    Tanh,
    /// i, f, o = σ(p + q), g = tanh(p + q), c = f c⁻ + i g, h = o tanh c; in the order i, f, g, o.
    Lstm,
    /// r, z = σ(p + q), n = tanh(p + r q), h = (1 − z) n + z h⁻; in the order r, z, n.
    Gru,
    /// a = tanh(p + q), h = α a + β h⁻.
    Mixed,
    /// h = max(0, p + w h⁻).
    Independent,
}

impl Cell {
    /// Products of each unit.
    pub(super) fn gates(self) -> usize {
        match self {
            Cell::Lstm => 4,
            Cell::Gru => 3,
            Cell::Tanh | Cell::Mixed | Cell::Independent => 1,
        }
    }

    /// Numbers of each unit that the gradient needs again.
    pub(super) fn kept(self) -> usize {
        match self {
            Cell::Tanh => 1,
            Cell::Lstm => 6,
            Cell::Gru => 5,
            Cell::Mixed | Cell::Independent => 2,
        }
    }
}

/// What a cell runs on.
#[derive(Clone, Copy)]
pub(super) struct CellTensors<'a> {
    /// The shares of the inputs in all gates, batch × L × (gates · H).
    pub(super) inputs: &'a Tensor,
    /// gates · H × H, or the H weights of [`Cell::Independent`].
    pub(super) weights: &'a Tensor,
    /// The biases of the inputs, then those of the state, gates · H each; α and β of
    /// [`Cell::Mixed`]; the bias of [`Cell::Independent`], H.
    pub(super) vector: &'a Tensor,
}

/// What stays the same over all steps.
#[derive(Clone, Copy)]
pub(super) struct Constants<'a, T> {
    pub(super) cell: Cell,
    pub(super) units: usize,
    /// α and β of [`Cell::Mixed`].
    pub(super) shares: [T; 2],
    /// w of [`Cell::Independent`], else empty.
    pub(super) weights: &'a [T],
}

/// A step forward. All slices are row after row, one for each sequence.
pub(super) struct Forward<'a, T> {
    pub(super) constants: Constants<'a, T>,
    /// p, gates × units in a row.
    pub(super) inputs: &'a [T],
    /// q, likewise.
    pub(super) recurrent: &'a [T],
    /// h⁻.
    pub(super) before: &'a [T],
    /// c⁻, then c.
    pub(super) memory: &'a mut [T],
    /// What the gradient needs, kept × units in a row.
    pub(super) kept: &'a mut [T],
    /// h.
    pub(super) out: &'a mut [T],
}

/// The parts of a row.
#[inline(always)]
fn parts<const N: usize, T>(row: &[T], units: usize) -> [&[T]; N] {
    std::array::from_fn(|part| &row[part * units..][..units])
}

#[inline(always)]
fn parts_mut<const N: usize, T>(row: &mut [T], units: usize) -> [&mut [T]; N] {
    let mut parts = row.chunks_exact_mut(units);
    std::array::from_fn(|_| parts.next().expect("a row has its parts"))
}

/// to ← f of the entries of `from` at the same place: one formula in a loop without a branch, which
/// becomes vector code.
#[inline(always)]
fn set<const N: usize, T: Real>(to: &mut [T], from: [&[T]; N], f: impl Fn([T; N]) -> T) {
    let count = to.len();
    let from = from.map(|row| &row[..count]);
    for (index, to) in to.iter_mut().enumerate() {
        *to = f(std::array::from_fn(|row| from[row][index]));
    }
}

impl<T: Real> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Constants { cell, units, .. } = self.constants;
        let gates = cell.gates() * units;
        let rows = self
            .inputs
            .chunks_exact(gates)
            .zip(self.recurrent.chunks_exact(gates))
            .zip(self.before.chunks_exact(units))
            .zip(self.memory.chunks_exact_mut(units))
            .zip(self.kept.chunks_exact_mut(cell.kept() * units))
            .zip(self.out.chunks_exact_mut(units));
        for (((((p, q), before), memory), kept), out) in rows {
            let sources = Sources { p, q, before };
            match cell {
                Cell::Tanh => tanh_forward(sources, kept, out),
                Cell::Lstm => lstm_forward(units, sources, memory, kept, out),
                Cell::Gru => gru_forward(units, sources, kept, out),
                Cell::Mixed => mixed_forward(&self.constants, sources, kept, out),
                Cell::Independent => independent_forward(&self.constants, sources, kept, out),
            }
        }
    }
}

/// p, q and h⁻ of a sequence.
struct Sources<'a, T> {
    p: &'a [T],
    q: &'a [T],
    before: &'a [T],
}

#[inline(always)]
fn tanh_forward<T: Real>(sources: Sources<'_, T>, kept: &mut [T], out: &mut [T]) {
    set(kept, [sources.p, sources.q], |[p, q]| (p + q).tangent());
    out.copy_from_slice(kept);
}

#[inline(always)]
fn lstm_forward<T: Real>(
    units: usize,
    sources: Sources<'_, T>,
    memory: &mut [T],
    kept: &mut [T],
    out: &mut [T],
) {
    let Sources { p, q, .. } = sources;
    let (p, q) = (parts::<4, T>(p, units), parts::<4, T>(q, units));
    let [i, f, g, o, c, bent] = parts_mut(kept, units);
    set(i, [p[0], q[0]], |[p, q]| (p + q).sigmoid());
    set(f, [p[1], q[1]], |[p, q]| (p + q).sigmoid());
    set(g, [p[2], q[2]], |[p, q]| (p + q).tangent());
    set(o, [p[3], q[3]], |[p, q]| (p + q).sigmoid());
    c.copy_from_slice(memory);
    set(memory, [i, f, g, c], |[i, f, g, c]| f * c + i * g);
    set(bent, [memory], |[c]| c.tangent());
    set(out, [o, bent], |[o, bent]| o * bent);
}

#[inline(always)]
fn gru_forward<T: Real>(units: usize, sources: Sources<'_, T>, kept: &mut [T], out: &mut [T]) {
    let Sources { p, q, before } = sources;
    let (p, q) = (parts::<3, T>(p, units), parts::<3, T>(q, units));
    let [r, z, n, share, old] = parts_mut(kept, units);
    set(r, [p[0], q[0]], |[p, q]| (p + q).sigmoid());
    set(z, [p[1], q[1]], |[p, q]| (p + q).sigmoid());
    share.copy_from_slice(q[2]);
    old.copy_from_slice(before);
    set(n, [p[2], r, share], |[p, r, q]| (p + r * q).tangent());
    set(out, [z, n, old], |[z, n, old]| n + z * (old - n));
}

#[inline(always)]
fn mixed_forward<T: Real>(
    constants: &Constants<'_, T>,
    sources: Sources<'_, T>,
    kept: &mut [T],
    out: &mut [T],
) {
    let Sources { p, q, before } = sources;
    let [alpha, beta] = constants.shares;
    let [a, old] = parts_mut(kept, constants.units);
    old.copy_from_slice(before);
    set(a, [p, q], |[p, q]| (p + q).tangent());
    set(out, [a, old], |[a, old]| alpha * a + beta * old);
}

#[inline(always)]
fn independent_forward<T: Real>(
    constants: &Constants<'_, T>,
    sources: Sources<'_, T>,
    kept: &mut [T],
    out: &mut [T],
) {
    let Sources { p, before, .. } = sources;
    let [h, old] = parts_mut(kept, constants.units);
    old.copy_from_slice(before);
    set(h, [p, constants.weights, old], |[p, w, old]| {
        let sum = p + w * old;
        // Written so that a NaN stays one.
        if sum < T::zero() { T::zero() } else { sum }
    });
    out.copy_from_slice(h);
}

/// The gradient of a step, from that of h.
pub(super) struct Backward<'a, T> {
    pub(super) constants: Constants<'a, T>,
    /// Of h.
    pub(super) slope: &'a [T],
    /// Of c, then of c⁻.
    pub(super) memory: &'a mut [T],
    pub(super) kept: &'a [T],
    /// Of p.
    pub(super) inputs: &'a mut [T],
    /// Of q; left alone where it is that of p.
    pub(super) recurrent: &'a mut [T],
    /// Of h⁻, but for what comes through q.
    pub(super) before: &'a mut [T],
    /// Sums for α and β, or for w.
    pub(super) sums: &'a mut [T],
}

impl<T: Real> WithSimd for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Constants { cell, units, .. } = self.constants;
        let gates = cell.gates() * units;
        let rows = self
            .slope
            .chunks_exact(units)
            .zip(self.memory.chunks_exact_mut(units))
            .zip(self.kept.chunks_exact(cell.kept() * units))
            .zip(self.inputs.chunks_exact_mut(gates))
            .zip(self.recurrent.chunks_exact_mut(gates))
            .zip(self.before.chunks_exact_mut(units));
        for (((((slope, memory), kept), p), q), before) in rows {
            let known = Known { slope, kept };
            let outs = Outs { p, q, before };
            match cell {
                Cell::Tanh => tanh_backward(known, outs),
                Cell::Lstm => lstm_backward(units, known, memory, outs),
                Cell::Gru => gru_backward(units, known, outs),
                Cell::Mixed => mixed_backward(&self.constants, known, outs, self.sums),
                Cell::Independent => independent_backward(&self.constants, known, outs, self.sums),
            }
        }
    }
}

/// The gradient of h of a sequence, and what was kept of the step.
struct Known<'a, T> {
    slope: &'a [T],
    kept: &'a [T],
}

/// The gradients of p, q and h⁻ of a sequence.
struct Outs<'a, T> {
    p: &'a mut [T],
    q: &'a mut [T],
    before: &'a mut [T],
}

#[inline(always)]
fn tanh_backward<T: Real>(known: Known<'_, T>, outs: Outs<'_, T>) {
    let Known { slope, kept: h } = known;
    let Outs { p, before, .. } = outs;
    let one = T::of(1.0);
    set(p, [slope, h], |[slope, h]| slope * (one - h * h));
    before.fill(T::zero());
}

#[inline(always)]
fn lstm_backward<T: Real>(units: usize, known: Known<'_, T>, memory: &mut [T], outs: Outs<'_, T>) {
    let Known { slope, kept } = known;
    let Outs { p, before, .. } = outs;
    let one = T::of(1.0);
    let [i, f, g, o, c, bent] = parts(kept, units);
    let p = parts_mut::<4, T>(p, units);
    // The gradient of c stands in the row of `before` for a while.
    set(before, [memory, slope, o, bent], |[old, slope, o, bent]| {
        old + slope * o * (one - bent * bent)
    });
    set(p[0], [before, g, i], |[c, g, i]| c * g * i * (one - i));
    set(p[1], [before, c, f], |[of_c, c, f]| {
        of_c * c * f * (one - f)
    });
    set(p[2], [before, i, g], |[c, i, g]| c * i * (one - g * g));
    set(p[3], [slope, bent, o], |[slope, bent, o]| {
        slope * bent * o * (one - o)
    });
    set(memory, [before, f], |[c, f]| c * f);
    before.fill(T::zero());
}

#[inline(always)]
fn gru_backward<T: Real>(units: usize, known: Known<'_, T>, outs: Outs<'_, T>) {
    let Known { slope, kept } = known;
    let Outs { p, q, before } = outs;
    let one = T::of(1.0);
    let [r, z, n, share, old] = parts(kept, units);
    let ([p0, p1, p2], [q0, q1, q2]) = (parts_mut(p, units), parts_mut(q, units));
    set(p2, [slope, z, n], |[slope, z, n]| {
        slope * (one - z) * (one - n * n)
    });
    set(p0, [p2, share, r], |[of_n, q, r]| of_n * q * r * (one - r));
    set(p1, [slope, old, n, z], |[slope, old, n, z]| {
        slope * (old - n) * z * (one - z)
    });
    q0.copy_from_slice(p0);
    q1.copy_from_slice(p1);
    set(q2, [p2, r], |[of_n, r]| of_n * r);
    set(before, [slope, z], |[slope, z]| slope * z);
}

#[inline(always)]
fn mixed_backward<T: Real>(
    constants: &Constants<'_, T>,
    known: Known<'_, T>,
    outs: Outs<'_, T>,
    sums: &mut [T],
) {
    let Known { slope, kept } = known;
    let Outs { p, before, .. } = outs;
    let one = T::of(1.0);
    let [alpha, beta] = constants.shares;
    let [a, old] = parts(kept, constants.units);
    set(p, [slope, a], |[slope, a]| alpha * slope * (one - a * a));
    set(before, [slope], |[slope]| beta * slope);
    let dot = |row: &[T]| {
        let mut sum = T::zero();
        for (x, y) in slope.iter().zip(row) {
            sum += *x * *y;
        }
        sum
    };
    sums[0] += dot(a);
    sums[1] += dot(old);
}

#[inline(always)]
fn independent_backward<T: Real>(
    constants: &Constants<'_, T>,
    known: Known<'_, T>,
    outs: Outs<'_, T>,
    sums: &mut [T],
) {
    let Known { slope, kept } = known;
    let Outs { p, before, .. } = outs;
    let [h, old] = parts(kept, constants.units);
    set(
        p,
        [slope, h],
        |[slope, h]| {
            if h > T::zero() { slope } else { T::zero() }
        },
    );
    set(before, [constants.weights, p], |[w, p]| w * p);
    for ((sum, p), old) in sums.iter_mut().zip(&*p).zip(old) {
        *sum += *p * *old;
    }
}
