//! The state space of one layer as a recurrence: cheaper than a convolution for few modes.
//!
//! ```text
//! s_t = a s_{t−1} + u_t,   y_t = D u_t + Re Σ w s_t,   a = e^z
//! ```
//!
//! Backwards, with g the gradient of y:
//!
//! ```text
//! q_t = g_t + a q_{t+1},   ∂u_t = D g_t + Re Σ w q_t
//! ∂w = Σ_t g_t conj(s_t),   ∂z = conj(w a X),   X = Σ_t q_t s_{t−1}
//! ```
//!
//! The states of the forward pass are formed again, chunk by chunk.
//!
//! a is rounded once, so a^T would drift by T roundings. At the end of every chunk the state is
//! put right by the difference of the true a^T and the rounded one's, times the state at its start.

use num_complex::Complex64;
use pulp::{Arch, Simd, WithSimd};

use crate::convolution::{Dynamics, DynamicsGradient};
use crate::fourier::Point;
use crate::kernel::Modes;
use crate::lanes::Lanes;
use crate::pool::Lease;
use crate::real::{LANE_WIDTH, LaneReal};

/// Steps between two corrections, and between two saved states.
const CHUNK: usize = 64;

/// One mode of the channels of a group.
#[derive(Clone, Copy)]
struct LaneMode<T> {
    pole: Point<T>,
    weight: Point<T>,
    /// e^{64 z} less the rounded pole's 64th power.
    drift: Point<T>,
}

/// The modes of one group of channels.
struct Group<T> {
    modes: Vec<LaneMode<T>>,
    feedthrough: [T; LANE_WIDTH],
}

/// A layer's recurrences.
pub struct Scan<T> {
    lanes: Lanes,
    groups: Vec<Group<T>>,
    modes: usize,
}

impl<T: LaneReal> Scan<T> {
    /// For layers whose modes all decay and run forward in time.
    pub fn new(lanes: Lanes, dynamics: &Dynamics<'_, T>) -> Self {
        let counts = dynamics.forward.iter().map(|modes| modes.exponents.len());
        let modes = counts.max().unwrap_or(0);
        let group = |group: usize| {
            let mut lane_modes = vec![LaneMode::zero(); modes];
            let mut feedthrough = [T::zero(); LANE_WIDTH];
            for (lane, feedthrough) in feedthrough.iter_mut().enumerate() {
                let Some(h) = lanes.channel_of_lane(group, lane) else {
                    continue;
                };
                *feedthrough = dynamics.feedthrough[h];
                let channel = &dynamics.forward[h];
                let pairs = channel.exponents.iter().zip(&channel.weights);
                for (mode, (&z, &w)) in lane_modes.iter_mut().zip(pairs) {
                    mode.set(lane, z, w);
                }
            }
            Group {
                modes: lane_modes,
                feedthrough,
            }
        };
        Self {
            lanes,
            groups: (0..lanes.groups).map(group).collect(),
            modes,
        }
    }

    /// y ← the layer's output on a slab.
    pub fn forward(&self, u: &[T], y: &mut [T], scratch: &mut [Lease<Point<T>>; 2]) {
        y.copy_from_slice(u);
        self.apply(y, scratch);
    }

    /// As [`Scan::forward`], in place.
    pub fn apply(&self, y: &mut [T], [first, second]: &mut [Lease<Point<T>>; 2]) {
        let length = self.lanes.length;
        let (input, output) = (&mut first[..length], &mut second[..length]);
        for (index, group) in self.groups.iter().enumerate() {
            self.lanes.pack(y, index, input);
            Arch::new().dispatch(Forward {
                group,
                input,
                output,
            });
            self.lanes.unpack(output, index, y);
        }
    }

    /// For each group: X and Σ g conj(s) of every mode, and Σ g u.
    pub fn sums(&self) -> usize {
        self.groups.len() * (2 * self.modes + 1)
    }

    /// Points of each of the two buffers that [`Scan::apply`] works in.
    pub fn apply_scratch(&self) -> [usize; 2] {
        [self.lanes.length; 2]
    }

    /// Points of each of the two buffers that a pass works in.
    pub fn scratch(&self) -> usize {
        2 * self.lanes.length
    }

    /// u ← its gradient, from the gradient `g` of y.
    pub fn backward(
        &self,
        g: &[T],
        u: &mut [T],
        sums: &mut [Point<T>],
        [first, second]: &mut [Lease<Point<T>>; 2],
    ) {
        let length = self.lanes.length;
        // The second half of the first buffer takes the gradient of u.
        let (of_y, of_u) = first[..2 * length].split_at_mut(length);
        let input = &mut second[..length];
        let each = sums.chunks_exact_mut(2 * self.modes + 1);
        for (index, (group, sums)) in self.groups.iter().zip(each).enumerate() {
            self.lanes.pack(g, index, of_y);
            self.lanes.pack(u, index, input);
            Arch::new().dispatch(Backward {
                group,
                input,
                of_y,
                of_u,
                sums,
            });
            self.lanes.unpack(of_u, index, u);
        }
    }

    /// Points of the sums of [`Scan::residue_slopes`].
    pub fn residue_sums(&self) -> usize {
        self.sums()
    }

    /// Σ_t g_t s_t of every mode, s being its states under the input u (L × H), and Σ_t g_t u_t, for
    /// one or two gradients g (each L × H) by the outputs; read by [`Scan::residue_slope`].
    pub fn residue_slopes(
        &self,
        u: &[T],
        g: &[T],
        sums: &mut [Point<T>],
        [first, second]: &mut [Lease<Point<T>>; 2],
    ) {
        let length = self.lanes.length;
        let (input, of_y) = (&mut first[..length], &mut second[..length]);
        let each = sums.chunks_exact_mut(2 * self.modes + 1);
        for (index, (group, sums)) in self.groups.iter().zip(each).enumerate() {
            self.lanes.pack(u, index, input);
            self.lanes.pack(g, index, of_y);
            sums.fill(Point::zero());
            Arch::new().dispatch(ResidueSlopes {
                modes: &group.modes,
                input,
                of_y,
                sums,
            });
        }
    }

    /// The derivatives of Σ_t g_t y_t by Re w_n, Im w_n of the modes of channel h and, last, by D,
    /// where `part` is 0 for the first g and 1 for the second.
    pub fn residue_slope(
        &self,
        sums: &[Point<T>],
        channel: usize,
        part: usize,
    ) -> impl Iterator<Item = f64> {
        let per_group = 2 * self.modes + 1;
        let group = channel / LANE_WIDTH;
        let sums = &sums[group * per_group..(group + 1) * per_group];
        let lane = channel % LANE_WIDTH;
        sums.iter().enumerate().map(move |(index, point)| {
            let value = if part == 0 {
                point.re[lane]
            } else {
                point.im[lane]
            };
            // ∂y/∂Im w = −Im s.
            match index % 2 == 1 {
                true => -value.wide(),
                false => value.wide(),
            }
        })
    }

    /// The gradients of the dynamics from the sums over all slabs.
    pub fn gradient(&self, dynamics: &Dynamics<'_, T>, sums: &[Point<T>]) -> DynamicsGradient<T> {
        let per_group = 2 * self.modes + 1;
        let mut gradient = DynamicsGradient {
            forward: Vec::new(),
            backward: Vec::new(),
            feedthrough: Vec::new(),
        };
        for (h, channel) in dynamics.forward.iter().enumerate() {
            let (group, width) = (h / LANE_WIDTH, self.lanes.channels_of(h / LANE_WIDTH).1);
            let sums = &sums[group * per_group..(group + 1) * per_group];
            let sum = |point: &Point<T>| -> Complex64 {
                let lanes = (0..self.lanes.stacked).map(|copy| h % LANE_WIDTH + copy * width);
                let each =
                    lanes.map(|lane| Complex64::new(point.re[lane].wide(), point.im[lane].wide()));
                each.sum()
            };
            let mut modes = Modes::default();
            let pairs = channel.exponents.iter().zip(&channel.weights);
            for (n, (&z, &w)) in pairs.enumerate() {
                modes
                    .exponents
                    .push((w * z.exp() * sum(&sums[2 * n])).conj());
                modes.weights.push(sum(&sums[2 * n + 1]));
            }
            gradient.forward.push(modes);
            let of_feedthrough = sum(&sums[2 * self.modes]);
            gradient.feedthrough.push(T::of(of_feedthrough.re));
        }
        gradient
    }
}

impl<T: LaneReal> LaneMode<T> {
    fn zero() -> Self {
        Self {
            pole: Point::zero(),
            weight: Point::zero(),
            drift: Point::zero(),
        }
    }

    fn set(&mut self, lane: usize, z: Complex64, w: Complex64) {
        let put = |point: &mut Point<T>, value: Complex64| {
            point.re[lane] = T::of(value.re);
            point.im[lane] = T::of(value.im);
        };
        put(&mut self.pole, z.exp());
        put(&mut self.weight, w);
        let (re, im) = (self.pole.re[lane].wide(), self.pole.im[lane].wide());
        let rounded = Complex64::new(re, im).powu(CHUNK as u32);
        put(&mut self.drift, (z * CHUNK as f64).exp() - rounded);
    }
}

/// The state of one mode for both parts of the points: two real inputs, so two complex states.
#[derive(Clone, Copy)]
struct State<V> {
    re: [V; 2],
    im: [V; 2],
}

/// Vectors of one mode's constants.
#[derive(Clone, Copy)]
struct Constant<V> {
    re: V,
    im: V,
    minus_im: V,
}

impl<V: Copy> Constant<V> {
    #[inline(always)]
    fn of<T: LaneReal<Vector<S> = V>, S: Simd>(simd: S, point: &Point<T>, c: usize) -> Self {
        let im = T::vectors::<S>(&point.im)[c];
        let zero = T::splat(simd, T::zero());
        Self {
            re: T::vectors::<S>(&point.re)[c],
            im,
            minus_im: T::minus(simd, zero, im),
        }
    }
}

impl<V: Copy> State<V> {
    #[inline(always)]
    fn zero<T: LaneReal<Vector<S> = V>, S: Simd>(simd: S) -> Self {
        let zero = T::splat(simd, T::zero());
        Self {
            re: [zero; 2],
            im: [zero; 2],
        }
    }

    /// constant · self + (input, 0).
    #[inline(always)]
    fn step<T: LaneReal<Vector<S> = V>, S: Simd>(
        self,
        simd: S,
        by: Constant<V>,
        input: [V; 2],
    ) -> Self {
        let mut next = self;
        for part in [0, 1] {
            let re = T::fused(simd, by.minus_im, self.im[part], input[part]);
            next.re[part] = T::fused(simd, by.re, self.re[part], re);
            let im = T::times(simd, by.im, self.re[part]);
            next.im[part] = T::fused(simd, by.re, self.im[part], im);
        }
        next
    }

    /// self + constant · other.
    #[inline(always)]
    fn corrected<T: LaneReal<Vector<S> = V>, S: Simd>(
        self,
        simd: S,
        by: Constant<V>,
        other: Self,
    ) -> Self {
        let mut next = self;
        for part in [0, 1] {
            let re = T::fused(simd, by.re, other.re[part], self.re[part]);
            next.re[part] = T::fused(simd, by.minus_im, other.im[part], re);
            let im = T::fused(simd, by.re, other.im[part], self.im[part]);
            next.im[part] = T::fused(simd, by.im, other.re[part], im);
        }
        next
    }

    /// (to + Re(constant · self)) for both parts.
    #[inline(always)]
    fn read<T: LaneReal<Vector<S> = V>, S: Simd>(
        self,
        simd: S,
        by: Constant<V>,
        to: [V; 2],
    ) -> [V; 2] {
        let one = |part: usize| {
            let re = T::fused(simd, by.re, self.re[part], to[part]);
            T::fused(simd, by.minus_im, self.im[part], re)
        };
        [one(0), one(1)]
    }
}

#[inline(always)]
fn both<T: LaneReal, S: Simd>(point: &Point<T>, c: usize) -> [T::Vector<S>; 2] {
    [T::vectors::<S>(&point.re)[c], T::vectors::<S>(&point.im)[c]]
}

#[inline(always)]
fn put<T: LaneReal, S: Simd>(point: &mut Point<T>, c: usize, value: [T::Vector<S>; 2]) {
    T::vectors_mut::<S>(&mut point.re)[c] = value[0];
    T::vectors_mut::<S>(&mut point.im)[c] = value[1];
}

/// output ← feedthrough ∘ input, which the modes are added to.
#[inline(always)]
fn pass_through<T: LaneReal, S: Simd>(
    simd: S,
    feedthrough: &[T; LANE_WIDTH],
    input: &[Point<T>],
    output: &mut [Point<T>],
) {
    for (input, output) in input.iter().zip(output) {
        for (c, &d) in T::vectors::<S>(feedthrough).iter().enumerate() {
            let [re, im] = both::<T, S>(input, c);
            put::<T, S>(output, c, [T::times(simd, d, re), T::times(simd, d, im)]);
        }
    }
}

struct Forward<'a, T> {
    group: &'a Group<T>,
    input: &'a [Point<T>],
    output: &'a mut [Point<T>],
}

impl<T: LaneReal> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        pass_through::<T, S>(simd, &self.group.feedthrough, self.input, self.output);
        let width = T::vectors::<S>(&self.group.feedthrough).len();
        let (pairs, rest) = self.group.modes.as_chunks::<2>();
        for c in 0..width {
            for pair in pairs {
                run::<2, T, S>(simd, pair, c, self.input, self.output);
            }
            for one in rest {
                run::<1, T, S>(simd, &[*one], c, self.input, self.output);
            }
        }
    }
}

/// Adds M modes to the output.
#[inline(always)]
fn run<const M: usize, T: LaneReal, S: Simd>(
    simd: S,
    modes: &[LaneMode<T>; M],
    c: usize,
    input: &[Point<T>],
    output: &mut [Point<T>],
) {
    let poles: [_; M] = std::array::from_fn(|m| Constant::of::<T, S>(simd, &modes[m].pole, c));
    let weights: [_; M] = std::array::from_fn(|m| Constant::of::<T, S>(simd, &modes[m].weight, c));
    let mut states = [State::zero::<T, S>(simd); M];
    for (input, output) in input.chunks(CHUNK).zip(output.chunks_mut(CHUNK)) {
        let start = states;
        for (input, output) in input.iter().zip(output) {
            let u = both::<T, S>(input, c);
            let mut y = both::<T, S>(output, c);
            for m in 0..M {
                states[m] = states[m].step::<T, S>(simd, poles[m], u);
                y = states[m].read::<T, S>(simd, weights[m], y);
            }
            put::<T, S>(output, c, y);
        }
        // The last chunk may be shorter, but nothing follows it.
        for m in 0..M {
            let drift = Constant::of::<T, S>(simd, &modes[m].drift, c);
            states[m] = states[m].corrected::<T, S>(simd, drift, start[m]);
        }
    }
}

struct ResidueSlopes<'a, T> {
    modes: &'a [LaneMode<T>],
    /// The input in the first parts.
    input: &'a [Point<T>],
    of_y: &'a [Point<T>],
    /// For each mode the sums with Re s and with Im s; last those with u.
    sums: &'a mut [Point<T>],
}

impl<T: LaneReal> WithSimd for ResidueSlopes<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Some((of_input, of_modes)) = self.sums.split_last_mut() else {
            return;
        };
        let width = T::vectors::<S>(&of_input.re).len();
        let (pairs, rest) = self.modes.as_chunks::<2>();
        let (pair_sums, rest_sums) = of_modes.split_at_mut(4 * pairs.len());
        for c in 0..width {
            let chunks = pairs.iter().zip(pair_sums.chunks_exact_mut(4));
            for (pair, sums) in chunks {
                gather::<2, T, S>(simd, pair, c, [self.input, self.of_y], sums);
            }
            for (one, sums) in rest.iter().zip(rest_sums.chunks_exact_mut(2)) {
                gather::<1, T, S>(simd, &[*one], c, [self.input, self.of_y], sums);
            }
            let zero = T::splat(simd, T::zero());
            let mut total = [zero; 2];
            for (u, g) in self.input.iter().zip(self.of_y) {
                let ([u, _], g) = (both::<T, S>(u, c), both::<T, S>(g, c));
                total = std::array::from_fn(|part| T::fused(simd, u, g[part], total[part]));
            }
            put::<T, S>(of_input, c, total);
        }
    }
}

/// The sums of M modes with their states; those of 64 steps first, so that rounding does not grow
/// with the length.
#[inline(always)]
fn gather<const M: usize, T: LaneReal, S: Simd>(
    simd: S,
    modes: &[LaneMode<T>; M],
    c: usize,
    [input, of_y]: [&[Point<T>]; 2],
    sums: &mut [Point<T>],
) {
    let poles: [_; M] = std::array::from_fn(|m| Constant::of::<T, S>(simd, &modes[m].pole, c));
    let zero = T::splat(simd, T::zero());
    let mut states = [[zero; 2]; M];
    let mut totals = [[[zero; 2]; 2]; M];
    for (input, of_y) in input.chunks(CHUNK).zip(of_y.chunks(CHUNK)) {
        let start = states;
        let mut own = [[[zero; 2]; 2]; M];
        for (u, g) in input.iter().zip(of_y) {
            let ([u, _], g) = (both::<T, S>(u, c), both::<T, S>(g, c));
            for m in 0..M {
                let [re, im] = states[m];
                let next = T::fused(simd, poles[m].minus_im, im, u);
                let next = T::fused(simd, poles[m].re, re, next);
                let turned = T::times(simd, poles[m].im, re);
                states[m] = [next, T::fused(simd, poles[m].re, im, turned)];
                for (part, &g) in g.iter().enumerate() {
                    own[m][0][part] = T::fused(simd, g, states[m][0], own[m][0][part]);
                    own[m][1][part] = T::fused(simd, g, states[m][1], own[m][1][part]);
                }
            }
        }
        for m in 0..M {
            let drift = Constant::of::<T, S>(simd, &modes[m].drift, c);
            let [re, im] = start[m];
            let next = T::fused(simd, drift.re, re, states[m][0]);
            let next_im = T::fused(simd, drift.re, im, states[m][1]);
            states[m] = [
                T::fused(simd, drift.minus_im, im, next),
                T::fused(simd, drift.im, re, next_im),
            ];
            for (total, own) in totals[m].iter_mut().flatten().zip(own[m].iter().flatten()) {
                *total = T::plus(simd, *total, *own);
            }
        }
    }
    for (sum, total) in sums.iter_mut().zip(totals.iter().flatten()) {
        put::<T, S>(sum, c, *total);
    }
}

struct Backward<'a, T> {
    group: &'a Group<T>,
    input: &'a [Point<T>],
    of_y: &'a [Point<T>],
    of_u: &'a mut [Point<T>],
    sums: &'a mut [Point<T>],
}

impl<T: LaneReal> WithSimd for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        pass_through::<T, S>(simd, &self.group.feedthrough, self.of_y, self.of_u);
        let width = T::vectors::<S>(&self.group.feedthrough).len();
        let modes = self.group.modes.len();
        for c in 0..width {
            for m in 0..modes {
                let sums = &mut self.sums[2 * m..2 * m + 2];
                let series = Series {
                    input: self.input,
                    of_y: self.of_y,
                    of_u: &mut *self.of_u,
                };
                run_back::<T, S>(simd, &self.group.modes[m], c, series, sums);
            }
            let zero = T::splat(simd, T::zero());
            let mut total = zero;
            for (u, g) in self.input.iter().zip(self.of_y) {
                let (u, g) = (both::<T, S>(u, c), both::<T, S>(g, c));
                total = T::fused(simd, u[0], g[0], T::fused(simd, u[1], g[1], total));
            }
            let sum = &mut T::vectors_mut::<S>(&mut self.sums[2 * modes].re)[c];
            *sum = T::plus(simd, *sum, total);
        }
    }
}

/// Input, gradient of the output, and gradient of the input, which is added to.
struct Series<'a, T> {
    input: &'a [Point<T>],
    of_y: &'a [Point<T>],
    of_u: &'a mut [Point<T>],
}

/// One mode of one vector of channels, backwards in time.
#[inline(always)]
fn run_back<T: LaneReal, S: Simd>(
    simd: S,
    mode: &LaneMode<T>,
    c: usize,
    series: Series<'_, T>,
    sums: &mut [Point<T>],
) {
    let Series { input, of_y, of_u } = series;
    let pole = Constant::of::<T, S>(simd, &mode.pole, c);
    let weight = Constant::of::<T, S>(simd, &mode.weight, c);
    let drift = Constant::of::<T, S>(simd, &mode.drift, c);
    let zero = State::zero::<T, S>(simd);
    let mut starts = Vec::with_capacity(input.len().div_ceil(CHUNK));
    let mut state = zero;
    for chunk in input.chunks(CHUNK) {
        starts.push(state);
        let start = state;
        for u in chunk {
            state = state.step::<T, S>(simd, pole, both::<T, S>(u, c));
        }
        state = state.corrected::<T, S>(simd, drift, start);
    }
    let none = T::splat(simd, T::zero());
    let (mut tail, mut tilt, mut of_weight) = (zero, [none; 2], [none; 2]);
    let mut states = [zero; CHUNK + 1];
    for (index, chunk) in input.chunks(CHUNK).enumerate().rev() {
        states[0] = starts[index];
        for (at, u) in chunk.iter().enumerate() {
            states[at + 1] = states[at].step::<T, S>(simd, pole, both::<T, S>(u, c));
        }
        let end = tail;
        for at in (0..chunk.len()).rev() {
            let t = index * CHUNK + at;
            let g = both::<T, S>(&of_y[t], c);
            tail = tail.step::<T, S>(simd, pole, g);
            let gradient = tail.read::<T, S>(simd, weight, both::<T, S>(&of_u[t], c));
            put::<T, S>(&mut of_u[t], c, gradient);
            let (now, before) = (states[at + 1], states[at]);
            for part in [0, 1] {
                let (re, im) = (tail.re[part], tail.im[part]);
                tilt[0] = T::fused(simd, re, before.re[part], tilt[0]);
                let cross = T::times(simd, im, before.im[part]);
                tilt[0] = T::minus(simd, tilt[0], cross);
                tilt[1] = T::fused(simd, re, before.im[part], tilt[1]);
                tilt[1] = T::fused(simd, im, before.re[part], tilt[1]);
                of_weight[0] = T::fused(simd, g[part], now.re[part], of_weight[0]);
                let cross = T::times(simd, g[part], now.im[part]);
                of_weight[1] = T::minus(simd, of_weight[1], cross);
            }
        }
        if chunk.len() == CHUNK {
            tail = tail.corrected::<T, S>(simd, drift, end);
        }
    }
    for (sum, add) in sums.iter_mut().zip([tilt, of_weight]) {
        let [re, im] = both::<T, S>(sum, c);
        let total = [T::plus(simd, re, add[0]), T::plus(simd, im, add[1])];
        put::<T, S>(sum, c, total);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::convolution::Convolution;
    use crate::pool::Workspace;

    /// Two channels and three modes, and a slab of odd length that is not full.
    fn dynamics() -> Vec<Modes> {
        let mode = |h: usize, n: usize| {
            let (h, n) = (h as f64, n as f64);
            let exponent = Complex64::new(-0.01 - 0.2 * n * n - 0.03 * h, 0.3 * n + 0.1 * h);
            (exponent, Complex64::new(0.5 - h + n, 0.2 * n - 0.4))
        };
        let channel = |h: usize| {
            let (exponents, weights) = (0..3).map(|n| mode(h, n)).unzip();
            Modes { exponents, weights }
        };
        (0..2).map(channel).collect()
    }

    #[test]
    fn slopes_of_residues_are_those_of_the_outputs() {
        for length in [1, 64, 150] {
            let lanes = Lanes::unstacked(2, length);
            let forward = dynamics();
            let scan = Scan::new(
                lanes,
                &Dynamics {
                    forward: &forward,
                    backward: &[],
                    feedthrough: &[0.3, -1.2],
                },
            );
            let u: Vec<f64> = (0..2 * length).map(|i| (0.7 * i as f64).sin()).collect();
            let g: Vec<f64> = (0..4 * length).map(|i| (1.9 * i as f64).cos()).collect();
            let workspace = Workspace::new();
            let mut scratch = [workspace.points(length), workspace.points(length)];
            let mut sums = workspace.zero_points(scan.residue_sums());
            scan.residue_slopes(&u, &g, &mut sums, &mut scratch);
            for channel in 0..2 {
                for part in 0..2 {
                    let found: Vec<f64> = scan.residue_slope(&sums, channel, part).collect();
                    let at = |x: &[f64], t: usize| x[2 * t + channel];
                    let mut direct = Vec::new();
                    for z in &forward[channel].exponents {
                        let (mut state, mut sum) = (Complex64::ZERO, Complex64::ZERO);
                        for t in 0..length {
                            state = z.exp() * state + at(&u, t);
                            sum += state * at(&g[part * 2 * length..], t);
                        }
                        direct.extend([sum.re, -sum.im]);
                    }
                    direct.push(
                        (0..length)
                            .map(|t| at(&u, t) * at(&g[part * 2 * length..], t))
                            .sum(),
                    );
                    assert_eq!(found.len(), direct.len());
                    for (a, b) in found.iter().zip(&direct) {
                        assert!((a - b).abs() < 1e-11 * (1.0 + b.abs()), "{length}: {a} {b}");
                    }
                }
            }
        }
    }

    #[test]
    fn recurrence_and_convolution_agree_in_values_and_gradients() {
        for length in [1, 63, 64, 65, 201] {
            let lanes = Lanes::new(2, length);
            let forward = dynamics();
            let dynamics = Dynamics {
                forward: &forward,
                backward: &[],
                feedthrough: &[0.3, -1.2],
            };
            let (scan, convolution) = (
                Scan::new(lanes, &dynamics),
                Convolution::new(lanes, &dynamics, &Workspace::new(), false),
            );
            let count = 11 * length * 2;
            let u: Vec<f64> = (0..count).map(|i| (0.7 * i as f64).sin()).collect();
            let g: Vec<f64> = (0..count).map(|i| (1.9 * i as f64).cos()).collect();
            let workspace = Workspace::new();
            let points = 4 * length + 16;
            let mut scratch = [workspace.points(points), workspace.points(points)];
            let (mut y, mut z) = (vec![0.0; count], vec![0.0; count]);
            scan.forward(&u, &mut y, &mut scratch);
            convolution.forward(&u, &mut z, &mut scratch);
            let near = |what: &str, a: &[f64], b: &[f64]| {
                let far = a
                    .iter()
                    .zip(b)
                    .map(|(a, b)| (a - b).abs() / (1.0 + a.abs()));
                let far = far.fold(0.0, f64::max);
                assert!(far < 1e-10, "{length} {what} {far:e}");
            };
            near("y", &y, &z);
            let (mut of_u, mut of_u_too) = (u.clone(), u.clone());
            let mut sums = workspace.zero_points(scan.sums());
            let mut sums_too = workspace.zero_points(convolution.sums());
            scan.backward(&g, &mut of_u, &mut sums, &mut scratch);
            convolution.backward(&g, &mut of_u_too, &mut sums_too, &mut scratch);
            near("of u", &of_u, &of_u_too);
            let a = scan.gradient(&dynamics, &sums);
            let b = convolution.gradient(&dynamics, &mut sums_too, None);
            near("of d", &a.feedthrough, &b.feedthrough);
            let flat = |modes: &[Modes]| -> Vec<f64> {
                let each = modes
                    .iter()
                    .flat_map(|m| m.exponents.iter().chain(&m.weights));
                each.flat_map(|z| [z.re, z.im]).collect()
            };
            near("modes", &flat(&a.forward), &flat(&b.forward));
        }
    }
}
