//! The state space of a layer whose channels share modes: one recurrence with H inputs and H outputs.
//!
//! ```text
//! s_t = a ∘ s_{t−1} + B u_t,   y_t = D u_t + Re C s_t,   a = e^z
//! both directions: r_t = a ∘ r_{t+1} + B u_t,   y_t += Re C' r_t
//! ```
//!
//! Backwards, with g the gradient of y and B, C as real matrices of parts (C with −Im):
//!
//! ```text
//! q_t = Cᵀ g_t + ā ∘ q_{t+1},   ∂u_t = Dᵀ g_t + Bᵀ q_t
//! ∂B = Σ_t q_t u_tᵀ,   ∂C = Σ_t g_t s_tᵀ,   ∂z = ā Σ_t q_t conj(s_{t−1})
//! ```
//!
//! Both products are real ones of a tile of steps, and the recurrence runs in place between them,
//! with one mode in each vector lane. The states of the forward pass are kept.
//!
//! a is rounded once, so a^T would drift by T roundings. At the end of every chunk the state is put
//! right by the difference of the true a^T and the rounded one's, times the state at its start.

use num_complex::Complex64;
use pulp::{Arch, Simd, WithSimd};

use crate::product::{RowMajor, multiply_rows};
use crate::real::{LANE_WIDTH, LaneReal, add};

/// Numbers of a tile of inputs or states that the products work on at a time.
const TILE: usize = 1 << 15;

/// Steps between two corrections.
const CHUNK: usize = 64;

/// The parameters of a layer whose channels share modes.
#[derive(Clone, Copy)]
pub struct SharedDynamics<'a, T> {
    /// H.
    pub channels: usize,
    /// z of the P modes: the pole is e^z.
    pub exponents: &'a [Complex64],
    /// 2P × H by rows: Re B, then Im B.
    pub input: &'a [T],
    /// For each direction H × 2P by rows: Re C beside −Im C.
    pub output: &'a [T],
    /// D: its diagonal, or H × H by rows.
    pub feedthrough: &'a [T],
}

/// The gradients of a [`SharedDynamics`], of its shapes.
#[derive(Debug, Clone)]
pub struct SharedGradient<T> {
    /// Of z, ∂/∂Re + i ∂/∂Im.
    pub exponents: Vec<Complex64>,
    /// Of B.
    pub input: Vec<T>,
    /// Of C.
    pub output: Vec<T>,
    /// Of D.
    pub feedthrough: Vec<T>,
}

impl<T: LaneReal> SharedGradient<T> {
    /// Adds another one.
    pub fn add(&mut self, other: &Self) {
        let poles = self.exponents.iter_mut().zip(&other.exponents);
        poles.for_each(|(sum, own)| *sum += own);
        add(&mut self.input, &other.input);
        add(&mut self.output, &other.output);
        add(&mut self.feedthrough, &other.feedthrough);
    }
}

/// The recurrence of a layer whose channels share modes.
pub struct SharedScan<T> {
    channels: usize,
    length: usize,
    modes: usize,
    /// Modes with those that fill up the last vector.
    padded: usize,
    /// Re a, then Im a.
    poles: Vec<T>,
    /// e^{64 z} less the rounded pole's 64th power, as the poles.
    drift: Vec<T>,
    /// 2P × H.
    input: Vec<T>,
    /// H × 2P of each direction.
    outputs: Vec<Vec<T>>,
    feedthrough: Vec<T>,
}

/// Lanes of a vector on this machine.
struct Width<T>(std::marker::PhantomData<T>);

impl<T: LaneReal> WithSimd for Width<T> {
    type Output = usize;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> usize {
        LANE_WIDTH / T::vectors::<S>(&[T::zero(); LANE_WIDTH]).len()
    }
}

impl<T: LaneReal> SharedScan<T> {
    /// For sequences of `length` steps. Every mode decays.
    ///
    /// # Panics
    /// When the matrices do not fit the numbers of channels and modes.
    pub fn new(length: usize, dynamics: SharedDynamics<'_, T>) -> Self {
        let (channels, modes) = (dynamics.channels, dynamics.exponents.len());
        let width = Arch::new().dispatch(Width::<T>(std::marker::PhantomData));
        let padded = modes.next_multiple_of(width);
        assert_eq!(dynamics.input.len(), 2 * modes * channels, "B is 2P x H");
        let mut poles = vec![T::zero(); 2 * padded];
        let mut drift = poles.clone();
        for (n, z) in dynamics.exponents.iter().enumerate() {
            let pole = z.exp();
            (poles[n], poles[padded + n]) = (T::of(pole.re), T::of(pole.im));
            let rounded = Complex64::new(poles[n].wide(), poles[padded + n].wide());
            let apart = (z * CHUNK as f64).exp() - rounded.powu(CHUNK as u32);
            (drift[n], drift[padded + n]) = (T::of(apart.re), T::of(apart.im));
        }
        let mut input = vec![T::zero(); 2 * padded * channels];
        let half = modes * channels;
        input[..half].copy_from_slice(&dynamics.input[..half]);
        input[padded * channels..padded * channels + half].copy_from_slice(&dynamics.input[half..]);
        let outputs = dynamics.output.chunks_exact(2 * half);
        let outputs: Vec<Vec<T>> = outputs.map(|own| widened(own, modes, padded)).collect();
        assert!(matches!(outputs.len(), 1 | 2), "C is H x 2P, once or twice");
        Self {
            channels,
            length,
            modes,
            padded,
            poles,
            drift,
            input,
            outputs,
            feedthrough: dynamics.feedthrough.to_vec(),
        }
    }

    fn is_dense(&self) -> bool {
        self.feedthrough.len() > self.channels
    }

    /// Numbers of the states of one sequence.
    pub fn states(&self) -> usize {
        self.outputs.len() * self.length * 2 * self.padded
    }

    /// Numbers that [`SharedScan::backward`] works in.
    pub fn scratch(&self) -> usize {
        (self.tile() + 1) * 2 * self.padded
    }

    /// Steps of a tile.
    fn tile(&self) -> usize {
        let tile = TILE / self.channels.max(2 * self.padded);
        let whole = tile - tile % CHUNK;
        whole.clamp(CHUNK.min(self.length), self.length)
    }

    /// y ← the layer's output, and its states, on some sequences u.
    pub fn forward(&self, u: &[T], y: &mut [T], states: &mut [T]) {
        let row = self.length * self.channels;
        let sequences = u.chunks_exact(row).zip(y.chunks_exact_mut(row));
        let states = states.chunks_exact_mut(self.states());
        for ((u, y), states) in sequences.zip(states) {
            let each = states.chunks_exact_mut(self.states() / self.outputs.len());
            for (direction, states) in each.enumerate() {
                self.run(u, y, states, direction);
            }
            self.pass_through(u, y);
        }
    }

    /// The steps of all tiles, in the order of a direction.
    fn tiles(&self, turned: bool) -> impl Iterator<Item = std::ops::Range<usize>> {
        let (tile, length) = (self.tile(), self.length);
        let count = length.div_ceil(tile);
        (0..count).map(move |index| {
            let index = if turned { count - 1 - index } else { index };
            index * tile..(index * tile + tile).min(length)
        })
    }

    /// One direction on one sequence.
    fn run(&self, u: &[T], y: &mut [T], states: &mut [T], direction: usize) {
        let (channels, width) = (self.channels, 2 * self.padded);
        let input = RowMajor::new(&self.input, width, channels).transpose();
        let output = RowMajor::new(&self.outputs[direction], channels, width).transpose();
        let turned = direction == 1;
        let mut last = vec![T::zero(); width];
        for steps in self.tiles(turned) {
            let count = steps.len();
            let (own, wide) = (scaled(&steps, channels), scaled(&steps, width));
            let states = &mut states[wide];
            let u = RowMajor::new(&u[own.clone()], count, channels);
            multiply_rows(states, u, input, false);
            Arch::new().dispatch(Recur {
                poles: &self.poles,
                drift: &self.drift,
                rows: states,
                last: &mut last,
                turned,
            });
            let states = RowMajor::new(states, count, width);
            multiply_rows(&mut y[own], states, output, turned);
        }
    }

    /// y ← y + D u.
    fn pass_through(&self, u: &[T], y: &mut [T]) {
        let channels = self.channels;
        if self.is_dense() {
            let d = RowMajor::new(&self.feedthrough, channels, channels).transpose();
            multiply_rows(y, RowMajor::new(u, self.length, channels), d, true);
            return;
        }
        Arch::new().dispatch(Diagonal {
            factors: &self.feedthrough,
            rows: u,
            out: y,
        });
    }

    /// Numbers of the sums of gradients over sequences.
    pub fn sums(&self) -> usize {
        let matrix = 2 * self.padded * self.channels;
        2 * self.padded + (1 + self.outputs.len()) * matrix + self.feedthrough.len()
    }

    /// of_u ← the gradient of the input u, from the gradient g of y and the states; adds to the
    /// `sums` for [`SharedScan::gradient`].
    pub fn backward(
        &self,
        way: SharedWay<'_, T>,
        of_u: &mut [T],
        sums: &mut [T],
        scratch: &mut [T],
    ) {
        let row = self.length * self.channels;
        let sequences = way.u.chunks_exact(row).zip(way.g.chunks_exact(row));
        let states = way.states.chunks_exact(self.states());
        let outputs = of_u.chunks_exact_mut(row).zip(states);
        let matrix = 2 * self.padded * self.channels;
        let (of_poles, rest) = sums.split_at_mut(2 * self.padded);
        let (input, rest) = rest.split_at_mut(matrix);
        let (output, feedthrough) = rest.split_at_mut(matrix * self.outputs.len());
        for ((u, g), (of_u, states)) in sequences.zip(outputs) {
            let each = states.chunks_exact(states.len() / self.outputs.len());
            let each = each.zip(output.chunks_exact_mut(matrix));
            for (direction, (states, output)) in each.enumerate() {
                let own = SharedWay { u, g, states };
                let mut pull = Pull {
                    scan: self,
                    of_poles,
                    input,
                    output,
                    scratch,
                };
                pull.run(own, of_u, direction);
            }
            self.pull_through(u, g, of_u, feedthrough);
        }
    }

    /// of_u ← of_u + Dᵀ g, and the sums of D.
    fn pull_through(&self, u: &[T], g: &[T], of_u: &mut [T], sums: &mut [T]) {
        let (channels, length) = (self.channels, self.length);
        if self.is_dense() {
            let rows = RowMajor::new(g, length, channels);
            let d = RowMajor::new(&self.feedthrough, channels, channels);
            multiply_rows(of_u, rows, d, true);
            let u = RowMajor::new(u, length, channels);
            multiply_rows(sums, rows.transpose(), u, true);
            return;
        }
        Arch::new().dispatch(Diagonal {
            factors: &self.feedthrough,
            rows: g,
            out: of_u,
        });
        Arch::new().dispatch(Columns { u, g, sums });
    }

    /// The gradients of the dynamics from the sums over all sequences.
    pub fn gradient(&self, exponents: &[Complex64], sums: &[T]) -> SharedGradient<T> {
        let matrix = 2 * self.padded * self.channels;
        let (of_poles, rest) = sums.split_at(2 * self.padded);
        let (input, rest) = rest.split_at(matrix);
        let (output, feedthrough) = rest.split_at(matrix * self.outputs.len());
        let tilts = of_poles.iter().zip(&of_poles[self.padded..]);
        let tilts = tilts.map(|(re, im)| Complex64::new(re.wide(), im.wide()));
        let slopes = exponents.iter().zip(tilts);
        let half = self.modes * self.channels;
        let imaginary = &input[matrix / 2..][..half];
        let narrowed = output
            .chunks_exact(self.padded)
            .flat_map(|part| &part[..self.modes]);
        SharedGradient {
            exponents: slopes.map(|(z, tilt)| z.exp().conj() * tilt).collect(),
            input: [&input[..half], imaginary].concat(),
            output: narrowed.copied().collect(),
            feedthrough: feedthrough.to_vec(),
        }
    }
}

/// Rows of 2P numbers with room for more modes.
fn widened<T: LaneReal>(rows: &[T], modes: usize, padded: usize) -> Vec<T> {
    let mut wide = vec![T::zero(); rows.len() / modes * padded];
    for (wide, own) in wide.chunks_exact_mut(padded).zip(rows.chunks_exact(modes)) {
        wide[..modes].copy_from_slice(own);
    }
    wide
}

fn scaled(steps: &std::ops::Range<usize>, by: usize) -> std::ops::Range<usize> {
    steps.start * by..steps.end * by
}

/// What the way back through [`SharedScan`] starts from, for some sequences.
#[derive(Clone, Copy)]
pub struct SharedWay<'a, T> {
    /// The input.
    pub u: &'a [T],
    /// The gradient of the output.
    pub g: &'a [T],
    /// The states that the forward pass left.
    pub states: &'a [T],
}

/// The way back through one direction of one sequence.
struct Pull<'a, T> {
    scan: &'a SharedScan<T>,
    of_poles: &'a mut [T],
    input: &'a mut [T],
    output: &'a mut [T],
    scratch: &'a mut [T],
}

impl<T: LaneReal> Pull<'_, T> {
    fn run(&mut self, way: SharedWay<'_, T>, of_u: &mut [T], direction: usize) {
        let (channels, width) = (self.scan.channels, 2 * self.scan.padded);
        let input = RowMajor::new(&self.scan.input, width, channels);
        let output = RowMajor::new(&self.scan.outputs[direction], channels, width);
        let turned = direction == 1;
        let (last, rows) = self.scratch.split_at_mut(width);
        last.fill(T::zero());
        for steps in self.scan.tiles(!turned) {
            let count = steps.len();
            let (own, wide) = (scaled(&steps, channels), scaled(&steps, width));
            let rows = &mut rows[..wide.len()];
            let g = RowMajor::new(&way.g[own.clone()], count, channels);
            multiply_rows(rows, g, output, false);
            Arch::new().dispatch(PullStates {
                poles: &self.scan.poles,
                rows,
                last,
                before: before(way.states, &wide, width, turned),
                states: &way.states[wide.clone()],
                sums: self.of_poles,
                turned,
            });
            let states = RowMajor::new(&way.states[wide], count, width);
            multiply_rows(self.output, g.transpose(), states, true);
            let rows = RowMajor::new(rows, count, width);
            let u = RowMajor::new(&way.u[own.clone()], count, channels);
            multiply_rows(self.input, rows.transpose(), u, true);
            multiply_rows(&mut of_u[own], rows, input, turned);
        }
    }
}

/// The state that the first step of a tile came from, in the order of time of its direction.
fn before<'a, T>(
    states: &'a [T],
    wide: &std::ops::Range<usize>,
    width: usize,
    turned: bool,
) -> Option<&'a [T]> {
    match turned {
        true => states.get(wide.end..wide.end + width),
        false => wide
            .start
            .checked_sub(width)
            .map(|at| &states[at..wide.start]),
    }
}

/// Modes that one pass over the rows takes, in vectors.
const TOGETHER: usize = 4;

/// The same on the way back, which holds sums, too.
const TOGETHER_BACK: usize = 2;

/// Rows ← a ∘ (the row before) + rows.
struct Recur<'a, T> {
    poles: &'a [T],
    drift: &'a [T],
    rows: &'a mut [T],
    /// The row before the first one; the last one after it.
    last: &'a mut [T],
    turned: bool,
}

/// Vectors of the real and imaginary parts of M vectors of modes.
#[derive(Clone, Copy)]
struct Parts<V, const M: usize> {
    re: [V; M],
    im: [V; M],
}

impl<V: Copy, const M: usize> Parts<V, M> {
    /// Of a row of 2P numbers, from vector `first` on.
    #[inline(always)]
    fn of<T: LaneReal<Vector<S> = V>, S: Simd>(row: &[T], first: usize) -> Self {
        let (re, im) = row.split_at(row.len() / 2);
        let (re, im) = (T::parts::<S>(re).0, T::parts::<S>(im).0);
        Self {
            re: std::array::from_fn(|m| re[first + m]),
            im: std::array::from_fn(|m| im[first + m]),
        }
    }

    #[inline(always)]
    fn put<T: LaneReal<Vector<S> = V>, S: Simd>(&self, row: &mut [T], first: usize) {
        let (re, im) = row.split_at_mut(row.len() / 2);
        T::parts_mut::<S>(re).0[first..first + M].copy_from_slice(&self.re);
        T::parts_mut::<S>(im).0[first..first + M].copy_from_slice(&self.im);
    }

    /// self ← by ∘ self + more.
    #[inline(always)]
    fn step<T: LaneReal<Vector<S> = V>, S: Simd>(
        &mut self,
        simd: S,
        by: &Factors<V, M>,
        more: &Self,
    ) {
        for m in 0..M {
            let re = T::fused(simd, by.re[m], self.re[m], more.re[m]);
            let im = T::fused(simd, by.re[m], self.im[m], more.im[m]);
            let turned = T::fused(simd, by.im[m], self.re[m], im);
            self.re[m] = T::fused(simd, by.minus_im[m], self.im[m], re);
            self.im[m] = turned;
        }
    }
}

/// Poles of M vectors of modes.
struct Factors<V, const M: usize> {
    re: [V; M],
    im: [V; M],
    minus_im: [V; M],
}

impl<V: Copy, const M: usize> Factors<V, M> {
    /// Of a row of 2P numbers, from vector `first` on.
    #[inline(always)]
    fn of<T: LaneReal<Vector<S> = V>, S: Simd>(simd: S, row: &[T], first: usize) -> Self {
        let Parts { re, im } = Parts::<V, M>::of::<T, S>(row, first);
        let zero = T::splat(simd, T::zero());
        let minus_im = im.map(|x| T::minus(simd, zero, x));
        Self { re, im, minus_im }
    }

    #[inline(always)]
    fn conjugate(self) -> Self {
        Self {
            re: self.re,
            im: self.minus_im,
            minus_im: self.im,
        }
    }
}

impl<T: LaneReal> Recur<'_, T> {
    #[inline(always)]
    fn run<const M: usize, S: Simd>(&mut self, simd: S, first: usize) {
        let width = self.poles.len();
        let poles = Factors::<_, M>::of::<T, S>(simd, self.poles, first);
        let drift = Factors::<_, M>::of::<T, S>(simd, self.drift, first);
        let mut state = Parts::<_, M>::of::<T, S>(self.last, first);
        let mut start = state;
        let count = self.rows.len() / width;
        for index in 0..count {
            let at = if self.turned {
                count - 1 - index
            } else {
                index
            };
            let row = &mut self.rows[at * width..(at + 1) * width];
            let more = Parts::<_, M>::of::<T, S>(row, first);
            state.step::<T, S>(simd, &poles, &more);
            if (index + 1) % CHUNK == 0 {
                start.step::<T, S>(simd, &drift, &state);
                state = start;
            }
            state.put::<T, S>(row, first);
        }
        state.put::<T, S>(self.last, first);
    }
}

impl<T: LaneReal> WithSimd for Recur<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let vectors = T::parts::<S>(self.poles).0.len() / 2;
        let (mut first, whole) = (0, vectors - vectors % TOGETHER);
        while first < whole {
            self.run::<TOGETHER, S>(simd, first);
            first += TOGETHER;
        }
        for first in first..vectors {
            self.run::<1, S>(simd, first);
        }
    }
}

/// Rows ← ā ∘ (the row after) + rows, and Σ row · conj(the state before).
struct PullStates<'a, T> {
    poles: &'a [T],
    rows: &'a mut [T],
    /// The row after the last one; the first one after it.
    last: &'a mut [T],
    /// The state before the first one; none where it is zero.
    before: Option<&'a [T]>,
    states: &'a [T],
    sums: &'a mut [T],
    turned: bool,
}

impl<T: LaneReal> PullStates<'_, T> {
    #[inline(always)]
    fn run<const M: usize, S: Simd>(&mut self, simd: S, first: usize) {
        let width = self.poles.len();
        let poles = Factors::<_, M>::of::<T, S>(simd, self.poles, first).conjugate();
        let mut slope = Parts::<_, M>::of::<T, S>(self.last, first);
        let mut sums = Parts::<_, M>::of::<T, S>(self.sums, first);
        let count = self.rows.len() / width;
        for index in 0..count {
            let at = if self.turned {
                index
            } else {
                count - 1 - index
            };
            let row = &mut self.rows[at * width..(at + 1) * width];
            let more = Parts::<_, M>::of::<T, S>(row, first);
            slope.step::<T, S>(simd, &poles, &more);
            slope.put::<T, S>(row, first);
            let earlier = if self.turned {
                at + 1
            } else {
                at.wrapping_sub(1)
            };
            let earlier = match self.states.get(earlier.wrapping_mul(width)..) {
                Some(states) if earlier < count => &states[..width],
                _ => match self.before {
                    Some(before) => before,
                    None => continue,
                },
            };
            let state = Parts::<_, M>::of::<T, S>(earlier, first);
            for m in 0..M {
                let re = T::fused(simd, slope.re[m], state.re[m], sums.re[m]);
                sums.re[m] = T::fused(simd, slope.im[m], state.im[m], re);
                let im = T::fused(simd, slope.im[m], state.re[m], sums.im[m]);
                let cross = T::times(simd, slope.re[m], state.im[m]);
                sums.im[m] = T::minus(simd, im, cross);
            }
        }
        slope.put::<T, S>(self.last, first);
        sums.put::<T, S>(self.sums, first);
    }
}

impl<T: LaneReal> WithSimd for PullStates<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, simd: S) {
        let vectors = T::parts::<S>(self.poles).0.len() / 2;
        let (mut first, whole) = (0, vectors - vectors % TOGETHER_BACK);
        while first < whole {
            self.run::<TOGETHER_BACK, S>(simd, first);
            first += TOGETHER_BACK;
        }
        for first in first..vectors {
            self.run::<1, S>(simd, first);
        }
    }
}

/// out ← out + factors ∘ row, row by row.
struct Diagonal<'a, T> {
    factors: &'a [T],
    rows: &'a [T],
    out: &'a mut [T],
}

impl<T: LaneReal> WithSimd for Diagonal<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let channels = self.factors.len();
        let rows = self.rows.chunks_exact(channels);
        for (out, row) in self.out.chunks_exact_mut(channels).zip(rows) {
            for ((out, x), d) in out.iter_mut().zip(row).zip(self.factors) {
                *out += *x * *d;
            }
        }
    }
}

/// sums ← sums + Σ u ∘ g over the rows.
struct Columns<'a, T> {
    u: &'a [T],
    g: &'a [T],
    sums: &'a mut [T],
}

impl<T: LaneReal> WithSimd for Columns<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let channels = self.sums.len();
        let mut own = vec![T::zero(); channels];
        let rows = self.u.chunks_exact(channels);
        for (u, g) in rows.zip(self.g.chunks_exact(channels)) {
            for ((sum, u), g) in own.iter_mut().zip(u).zip(g) {
                *sum += *u * *g;
            }
        }
        add(self.sums, &own);
    }
}

#[cfg(test)]
mod tests;
