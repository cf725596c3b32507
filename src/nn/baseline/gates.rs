//! One step of a recurrent cell, unit by unit, and its gradient.

use pulp::Simd;
use pulp::WithSimd;

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
            let sources = (p, q, before);
            match cell {
                Cell::Tanh => tanh_forward(units, sources, kept, out),
                Cell::Lstm => lstm_forward(units, sources, (memory, kept), out),
                Cell::Gru => gru_forward(units, sources, kept, out),
                Cell::Mixed => mixed_forward(&self.constants, sources, kept, out),
                Cell::Independent => independent_forward(&self.constants, sources, kept, out),
            }
        }
    }
}

/// p, q and h⁻ of a sequence.
type Sources<'a, T> = (&'a [T], &'a [T], &'a [T]);

#[inline(always)]
fn tanh_forward<T: Real>(units: usize, (p, q, _): Sources<'_, T>, kept: &mut [T], out: &mut [T]) {
    (0..units).for_each(|j| {
        out[j] = (p[j] + q[j]).tangent();
        kept[j] = out[j];
    });
}

#[inline(always)]
fn lstm_forward<T: Real>(
    units: usize,
    (p, q, _): Sources<'_, T>,
    (memory, kept): (&mut [T], &mut [T]),
    out: &mut [T],
) {
    let (p, q) = (parts::<4, T>(p, units), parts::<4, T>(q, units));
    let [i, f, g, o, c, bent] = parts_mut(kept, units);
    (0..units).for_each(|j| {
        i[j] = (p[0][j] + q[0][j]).sigmoid();
        f[j] = (p[1][j] + q[1][j]).sigmoid();
        g[j] = (p[2][j] + q[2][j]).tangent();
        o[j] = (p[3][j] + q[3][j]).sigmoid();
        c[j] = memory[j];
        memory[j] = f[j] * c[j] + i[j] * g[j];
        bent[j] = memory[j].tangent();
        out[j] = o[j] * bent[j];
    });
}

#[inline(always)]
fn gru_forward<T: Real>(
    units: usize,
    (p, q, before): Sources<'_, T>,
    kept: &mut [T],
    out: &mut [T],
) {
    let (p, q) = (parts::<3, T>(p, units), parts::<3, T>(q, units));
    let [r, z, n, share, old] = parts_mut(kept, units);
    (0..units).for_each(|j| {
        r[j] = (p[0][j] + q[0][j]).sigmoid();
        z[j] = (p[1][j] + q[1][j]).sigmoid();
        share[j] = q[2][j];
        n[j] = (p[2][j] + r[j] * share[j]).tangent();
        old[j] = before[j];
        out[j] = n[j] + z[j] * (old[j] - n[j]);
    });
}

#[inline(always)]
fn mixed_forward<T: Real>(
    constants: &Constants<'_, T>,
    (p, q, before): Sources<'_, T>,
    kept: &mut [T],
    out: &mut [T],
) {
    let [alpha, beta] = constants.shares;
    let [a, old] = parts_mut(kept, constants.units);
    (0..constants.units).for_each(|j| {
        a[j] = (p[j] + q[j]).tangent();
        old[j] = before[j];
        out[j] = alpha * a[j] + beta * old[j];
    });
}

#[inline(always)]
fn independent_forward<T: Real>(
    constants: &Constants<'_, T>,
    (p, _, before): Sources<'_, T>,
    kept: &mut [T],
    out: &mut [T],
) {
    let [h, old] = parts_mut(kept, constants.units);
    (0..constants.units).for_each(|j| {
        old[j] = before[j];
        let sum = p[j] + constants.weights[j] * old[j];
        // Written so that a NaN stays one.
        h[j] = if sum < T::zero() { T::zero() } else { sum };
        out[j] = h[j];
    });
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
            match cell {
                Cell::Tanh => tanh_backward(units, (slope, kept), p, before),
                Cell::Lstm => lstm_backward(units, (slope, kept), (memory, p), before),
                Cell::Gru => gru_backward(units, (slope, kept), (p, q), before),
                Cell::Mixed => {
                    let outs = (p, before);
                    mixed_backward(&self.constants, (slope, kept), outs, self.sums);
                }
                Cell::Independent => {
                    let outs = (p, before);
                    independent_backward(&self.constants, (slope, kept), outs, self.sums);
                }
            }
        }
    }
}

#[inline(always)]
fn tanh_backward<T: Real>(units: usize, (slope, h): (&[T], &[T]), p: &mut [T], before: &mut [T]) {
    let one = T::of(1.0);
    (0..units).for_each(|j| {
        p[j] = slope[j] * (one - h[j] * h[j]);
        before[j] = T::zero();
    });
}

#[inline(always)]
fn lstm_backward<T: Real>(
    units: usize,
    (slope, kept): (&[T], &[T]),
    (memory, p): (&mut [T], &mut [T]),
    before: &mut [T],
) {
    let one = T::of(1.0);
    let [i, f, g, o, c, bent] = parts(kept, units);
    let p = parts_mut::<4, T>(p, units);
    (0..units).for_each(|j| {
        let of_c = memory[j] + slope[j] * o[j] * (one - bent[j] * bent[j]);
        p[0][j] = of_c * g[j] * i[j] * (one - i[j]);
        p[1][j] = of_c * c[j] * f[j] * (one - f[j]);
        p[2][j] = of_c * i[j] * (one - g[j] * g[j]);
        p[3][j] = slope[j] * bent[j] * o[j] * (one - o[j]);
        memory[j] = of_c * f[j];
        before[j] = T::zero();
    });
}

#[inline(always)]
fn gru_backward<T: Real>(
    units: usize,
    (slope, kept): (&[T], &[T]),
    (p, q): (&mut [T], &mut [T]),
    before: &mut [T],
) {
    let one = T::of(1.0);
    let [r, z, n, share, old] = parts(kept, units);
    let (p, q) = (parts_mut::<3, T>(p, units), parts_mut::<3, T>(q, units));
    (0..units).for_each(|j| {
        let of_n = slope[j] * (one - z[j]) * (one - n[j] * n[j]);
        p[0][j] = of_n * share[j] * r[j] * (one - r[j]);
        p[1][j] = slope[j] * (old[j] - n[j]) * z[j] * (one - z[j]);
        p[2][j] = of_n;
        q[0][j] = p[0][j];
        q[1][j] = p[1][j];
        q[2][j] = of_n * r[j];
        before[j] = slope[j] * z[j];
    });
}

#[inline(always)]
fn mixed_backward<T: Real>(
    constants: &Constants<'_, T>,
    (slope, kept): (&[T], &[T]),
    (p, before): (&mut [T], &mut [T]),
    sums: &mut [T],
) {
    let one = T::of(1.0);
    let [alpha, beta] = constants.shares;
    let [a, old] = parts(kept, constants.units);
    let [mut of_alpha, mut of_beta] = [T::zero(); 2];
    (0..constants.units).for_each(|j| {
        p[j] = alpha * slope[j] * (one - a[j] * a[j]);
        before[j] = beta * slope[j];
        of_alpha += slope[j] * a[j];
        of_beta += slope[j] * old[j];
    });
    sums[0] += of_alpha;
    sums[1] += of_beta;
}

#[inline(always)]
fn independent_backward<T: Real>(
    constants: &Constants<'_, T>,
    (slope, kept): (&[T], &[T]),
    (p, before): (&mut [T], &mut [T]),
    sums: &mut [T],
) {
    let [h, old] = parts(kept, constants.units);
    (0..constants.units).for_each(|j| {
        p[j] = if h[j] > T::zero() {
            slope[j]
        } else {
            T::zero()
        };
        before[j] = constants.weights[j] * p[j];
        sums[j] += p[j] * old[j];
    });
}
