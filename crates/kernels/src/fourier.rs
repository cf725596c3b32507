//! Fourier transforms of sixteen pairs of real sequences at once.
//!
//! Two real sequences with the same real kernel are one complex sequence u₁ + i u₂: convolution
//! with a real kernel leaves both apart. Sixteen such pairs stand side by side in vector lanes, so
//! no step of the transform crosses lanes, and nothing is special about real input.
//!
//! The forward transform decimates in frequency and leaves its bins in digit-reversed order; the
//! inverse is its adjoint and takes them so. A product of spectra needs no order.
//!
//! Of a real kernel the bins k and n − k are conjugate. In the reversed order of digits, with blocks
//! of n = n₀ > n₁ > … > 1 points, each a radix smaller, those at n_{l+1} to n_l − 1 stand mirrored:
//! what is at i is the conjugate of what is at n_{l+1} + n_l − 1 − i, so half of them are stored.

use std::ops::Range;

use hankelite_control::Convolver;
use pulp::{Arch, Simd, WithSimd};

use crate::real::{LANE_WIDTH, LaneReal};

/// One sample, or one bin, of sixteen complex sequences.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub struct Point<T> {
    /// LaneReal parts, or the first sequence of each pair.
    pub re: [T; LANE_WIDTH],
    /// Imaginary parts, or the second one.
    pub im: [T; LANE_WIDTH],
}

impl<T: LaneReal> Point<T> {
    /// All lanes 0.
    pub fn zero() -> Self {
        Self {
            re: [T::zero(); LANE_WIDTH],
            im: [T::zero(); LANE_WIDTH],
        }
    }
}

/// Points of one block that fit into the first cache, 32 KiB of f32.
const BLOCK: usize = 256;

/// Radices and twiddle factors of one size.
pub struct LaneTransform<T> {
    size: usize,
    levels: Vec<Level<T>>,
    /// Bins before this one are stored whole.
    whole: usize,
    /// Those behind it.
    mirrors: Vec<Mirror>,
    arch: Arch,
}

/// Bins of a real sequence that stand mirrored about their centre.
#[derive(Debug, Clone, Copy)]
struct Mirror {
    /// The first bin.
    start: usize,
    /// Behind the last one.
    end: usize,
    /// Where the first half, with the centre, is stored.
    stored: usize,
}

impl Mirror {
    /// Bins that are stored.
    fn half(&self) -> usize {
        (self.end - self.start).div_ceil(2)
    }
}

/// One pass over blocks of radix · quarter points.
struct Level<T> {
    radix: usize,
    /// e^{−2πi jk/(radix · part)} for j in 0..part and k in 1..radix.
    twiddles: Vec<(T, T)>,
    /// Points of the parts that a block falls into.
    part: usize,
}

impl<T: LaneReal> Level<T> {
    fn new(block: usize, radix: usize) -> Self {
        let part = block / radix;
        let mut twiddles = Vec::with_capacity(part * (radix - 1));
        for j in 0..part {
            for k in 1..radix {
                let angle = -2.0 * std::f64::consts::PI * ((j * k) % block) as f64 / block as f64;
                twiddles.push((T::of(angle.cos()), T::of(angle.sin())));
            }
        }
        Self {
            radix,
            twiddles,
            part,
        }
    }
}

impl<T: LaneReal> LaneTransform<T> {
    /// A plan for at least `least` points: 4 · 2^a 3^b 5^c.
    pub fn new(least: usize) -> Self {
        let size = Convolver::fft_size(least, 4);
        let (mut levels, mut mirrors) = (Vec::new(), Vec::new());
        let (mut block, mut whole) = (size, size);
        for radix in radices(size) {
            let part = block / radix;
            levels.push(Level::new(block, radix));
            // The first pass is never part of the block that is multiplied.
            if block > BLOCK || block == size {
                mirrors.push(Mirror {
                    start: part,
                    end: block,
                    stored: 0,
                });
                whole = part;
            }
            block = part;
        }
        let mut stored = whole;
        for mirror in mirrors.iter_mut().rev() {
            mirror.stored = stored;
            stored += mirror.half();
        }
        Self {
            size,
            levels,
            whole,
            mirrors,
            arch: Arch::new(),
        }
    }

    /// Points that the spectrum of a real kernel is stored in.
    pub fn stored(&self) -> usize {
        self.whole + self.mirrors.iter().map(Mirror::half).sum::<usize>()
    }

    /// `stored` ← what is needed of the spectrum of a real kernel.
    pub fn store(&self, spectrum: &[Point<T>], stored: &mut [Point<T>]) {
        stored[..self.whole].copy_from_slice(&spectrum[..self.whole]);
        for mirror in &self.mirrors {
            let half = mirror.half();
            let own = &spectrum[mirror.start..mirror.start + half];
            stored[mirror.stored..mirror.stored + half].copy_from_slice(own);
        }
    }

    /// Of the block of bins from `first` on: how many are stored as they are, and where these and
    /// the mirror images of the others are.
    fn place(&self, first: usize, count: usize) -> Place {
        let Some(mirror) = self.mirrors.iter().find(|mirror| mirror.start <= first) else {
            return Place {
                direct: first..first + count,
                mirrored: 0..0,
            };
        };
        let (from, to) = (first - mirror.start, first - mirror.start + count);
        let (half, all) = (mirror.half(), mirror.end - mirror.start);
        let at = |place: usize| mirror.stored + place;
        Place {
            direct: at(from.min(half))..at(to.min(half)),
            mirrored: at(all - to.max(half))..at(all - from.max(half)),
        }
    }

    /// The number of points.
    pub fn size(&self) -> usize {
        self.size
    }

    /// data ← spectrum.
    pub fn forward(&self, data: &mut [Point<T>]) {
        for level in &self.levels {
            self.pass::<false, false>(level, data);
        }
    }

    /// data ← size · sequence.
    pub fn inverse(&self, data: &mut [Point<T>]) {
        for level in self.levels.iter().rev() {
            self.pass::<true, false>(level, data);
        }
    }

    /// data ← size · (kernel ∗ data), where the kernel is given by its stored spectrum. `data` is read
    /// in its first half, and only the first half of the answer is formed.
    pub fn convolve(&self, data: &mut [Point<T>], kernel: &[Point<T>]) {
        let first = &self.levels[0];
        self.pass::<false, true>(first, data);
        for (index, data) in data.chunks_exact_mut(first.part).enumerate() {
            self.convolve_part(1, index * first.part, data, kernel);
        }
        self.pass::<true, true>(first, data);
    }

    /// Depth first, so that a part goes through all its passes while it is in the cache. `at` is its
    /// first bin.
    fn convolve_part(&self, depth: usize, at: usize, data: &mut [Point<T>], kernel: &[Point<T>]) {
        if data.len() > BLOCK {
            let level = &self.levels[depth];
            self.pass::<false, false>(level, data);
            for (index, data) in data.chunks_exact_mut(level.part).enumerate() {
                self.convolve_part(depth + 1, at + index * level.part, data, kernel);
            }
            return self.pass::<true, false>(level, data);
        }
        self.descend(depth, data);
        let place = self.place(at, data.len());
        let (direct, mirrored) = data.split_at_mut(place.direct.len());
        self.arch.dispatch(Multiply::<T, false> {
            data: direct,
            kernel: &kernel[place.direct],
        });
        self.arch.dispatch(Multiply::<T, true> {
            data: mirrored,
            kernel: &kernel[place.mirrored],
        });
        for level in self.levels[depth..].iter().rev() {
            self.pass::<true, false>(level, data);
        }
    }

    fn descend(&self, depth: usize, data: &mut [Point<T>]) {
        for level in &self.levels[depth..] {
            self.pass::<false, false>(level, data);
        }
    }

    /// The adjoint of [`LaneTransform::convolve`]: for the gradient g of its output and its input u,
    ///
    /// ```text
    /// g ← size · (g correlated with the kernel),   sum ← sum + G ∘ conj U
    /// ```
    ///
    /// The real part of the inverse transform of `sum` is size times the gradient of the kernel:
    /// each product of two of the four real spectra is the spectrum of a real sequence, and those
    /// of unlike pairs stand in the imaginary part.
    pub fn correlate(
        &self,
        g: &mut [Point<T>],
        u: &mut [Point<T>],
        kernel: &[Point<T>],
        sum: &mut [Point<T>],
    ) {
        let first = &self.levels[0];
        self.pass::<false, true>(first, g);
        self.pass::<false, true>(first, u);
        let parts = g
            .chunks_exact_mut(first.part)
            .zip(u.chunks_exact_mut(first.part));
        let sums = sum.chunks_exact_mut(first.part).enumerate();
        for ((g, u), (index, sum)) in parts.zip(sums) {
            self.correlate_part(1, index * first.part, Adjoint { g, u, kernel, sum });
        }
        self.pass::<true, true>(first, g);
    }

    fn correlate_part(&self, depth: usize, at: usize, part: Adjoint<'_, T, false>) {
        let Adjoint { g, u, kernel, sum } = part;
        if g.len() > BLOCK {
            let level = &self.levels[depth];
            self.pass::<false, false>(level, g);
            self.pass::<false, false>(level, u);
            let parts = g
                .chunks_exact_mut(level.part)
                .zip(u.chunks_exact_mut(level.part));
            let sums = sum.chunks_exact_mut(level.part).enumerate();
            for ((g, u), (index, sum)) in parts.zip(sums) {
                let part = Adjoint { g, u, kernel, sum };
                self.correlate_part(depth + 1, at + index * level.part, part);
            }
            return self.pass::<true, false>(level, g);
        }
        self.descend(depth, g);
        self.descend(depth, u);
        let place = self.place(at, g.len());
        let split = place.direct.len();
        let (g_direct, g_mirrored) = g.split_at_mut(split);
        let (u_direct, u_mirrored) = u.split_at_mut(split);
        let (sum_direct, sum_mirrored) = sum.split_at_mut(split);
        self.arch.dispatch(Adjoint::<T, false> {
            g: g_direct,
            u: u_direct,
            kernel: &kernel[place.direct],
            sum: sum_direct,
        });
        self.arch.dispatch(Adjoint::<T, true> {
            g: g_mirrored,
            u: u_mirrored,
            kernel: &kernel[place.mirrored],
            sum: sum_mirrored,
        });
        for level in self.levels[depth..].iter().rev() {
            self.pass::<true, false>(level, g);
        }
    }

    fn pass<const INVERSE: bool, const HALF: bool>(&self, level: &Level<T>, data: &mut [Point<T>]) {
        match level.radix {
            2 => self
                .arch
                .dispatch(Pass::<T, 2, INVERSE, HALF> { level, data }),
            3 => self
                .arch
                .dispatch(Pass::<T, 3, INVERSE, HALF> { level, data }),
            4 => self
                .arch
                .dispatch(Pass::<T, 4, INVERSE, HALF> { level, data }),
            _ => self
                .arch
                .dispatch(Pass::<T, 5, INVERSE, HALF> { level, data }),
        }
    }
}

/// The factors of a good size: 4 first, as the half transforms need it.
fn radices(mut size: usize) -> Vec<usize> {
    let mut radices = Vec::new();
    for radix in [4, 2, 5, 3] {
        while size.is_multiple_of(radix) {
            radices.push(radix);
            size /= radix;
        }
    }
    radices
}

/// Vectors of a complex number in each lane.
type Complex<T, S> = (<T as LaneReal>::Vector<S>, <T as LaneReal>::Vector<S>);

#[inline(always)]
fn load<T: LaneReal, S: Simd>(point: &Point<T>, c: usize) -> Complex<T, S> {
    (T::vectors::<S>(&point.re)[c], T::vectors::<S>(&point.im)[c])
}

#[inline(always)]
fn store<T: LaneReal, S: Simd>(point: &mut Point<T>, c: usize, value: Complex<T, S>) {
    T::vectors_mut::<S>(&mut point.re)[c] = value.0;
    T::vectors_mut::<S>(&mut point.im)[c] = value.1;
}

#[inline(always)]
fn plus<T: LaneReal, S: Simd>(simd: S, a: Complex<T, S>, b: Complex<T, S>) -> Complex<T, S> {
    (T::plus(simd, a.0, b.0), T::plus(simd, a.1, b.1))
}

#[inline(always)]
fn minus<T: LaneReal, S: Simd>(simd: S, a: Complex<T, S>, b: Complex<T, S>) -> Complex<T, S> {
    (T::minus(simd, a.0, b.0), T::minus(simd, a.1, b.1))
}

/// a + i b.
#[inline(always)]
fn plus_turned<T: LaneReal, S: Simd>(simd: S, a: Complex<T, S>, b: Complex<T, S>) -> Complex<T, S> {
    (T::minus(simd, a.0, b.1), T::plus(simd, a.1, b.0))
}

/// a − i b.
#[inline(always)]
fn minus_turned<T: LaneReal, S: Simd>(
    simd: S,
    a: Complex<T, S>,
    b: Complex<T, S>,
) -> Complex<T, S> {
    (T::plus(simd, a.0, b.1), T::minus(simd, a.1, b.0))
}

/// a w, or a conj(w).
#[inline(always)]
fn turn<const INVERSE: bool, T: LaneReal, S: Simd>(
    simd: S,
    a: Complex<T, S>,
    w: (T, T),
) -> Complex<T, S> {
    let (re, im) = w;
    let im = if INVERSE { T::zero() - im } else { im };
    let (w_re, w_im) = (T::splat(simd, re), T::splat(simd, im));
    let minus_im = T::splat(simd, T::zero() - im);
    let re = T::fused(simd, a.0, w_re, T::times(simd, a.1, minus_im));
    (re, T::fused(simd, a.0, w_im, T::times(simd, a.1, w_re)))
}

/// The transform of R numbers, without scale.
#[inline(always)]
fn small<const R: usize, const INVERSE: bool, T: LaneReal, S: Simd>(
    simd: S,
    a: [Complex<T, S>; R],
) -> [Complex<T, S>; R] {
    let mut b = a;
    if R == 2 {
        b[0] = plus::<T, S>(simd, a[0], a[1]);
        b[1] = minus::<T, S>(simd, a[0], a[1]);
    } else if R == 4 {
        let (s02, d02) = (
            plus::<T, S>(simd, a[0], a[2]),
            minus::<T, S>(simd, a[0], a[2]),
        );
        let (s13, d13) = (
            plus::<T, S>(simd, a[1], a[3]),
            minus::<T, S>(simd, a[1], a[3]),
        );
        b[0] = plus::<T, S>(simd, s02, s13);
        b[2] = minus::<T, S>(simd, s02, s13);
        b[1] = minus_turned::<T, S>(simd, d02, d13);
        b[3] = plus_turned::<T, S>(simd, d02, d13);
        if INVERSE {
            b.swap(1, 3);
        }
    } else {
        b = odd::<R, INVERSE, T, S>(simd, a);
    }
    b
}

/// For odd R, with s_p = a_p + a_{R−p} and d_p = a_p − a_{R−p}:
///
/// ```text
/// b_k, b_{R−k} = a_0 + Σ_p cos(2πkp/R) s_p ∓ i Σ_p sin(2πkp/R) d_p
/// ```
#[inline(always)]
fn odd<const R: usize, const INVERSE: bool, T: LaneReal, S: Simd>(
    simd: S,
    a: [Complex<T, S>; R],
) -> [Complex<T, S>; R] {
    let mut b = a;
    for p in 1..=R / 2 {
        b[0] = plus::<T, S>(simd, b[0], plus::<T, S>(simd, a[p], a[R - p]));
    }
    for k in 1..=R / 2 {
        let zero = T::splat(simd, T::zero());
        let (mut even, mut uneven) = (a[0], (zero, zero));
        for p in 1..=R / 2 {
            let (cos, sin) = ODD_TURNS[R / 2 - 1][k * p % R];
            let (cos, sin) = (T::splat(simd, T::of(cos)), T::splat(simd, T::of(sin)));
            let s = plus::<T, S>(simd, a[p], a[R - p]);
            let d = minus::<T, S>(simd, a[p], a[R - p]);
            even = (
                T::fused(simd, cos, s.0, even.0),
                T::fused(simd, cos, s.1, even.1),
            );
            uneven = (
                T::fused(simd, sin, d.0, uneven.0),
                T::fused(simd, sin, d.1, uneven.1),
            );
        }
        let (low, high) = if INVERSE { (R - k, k) } else { (k, R - k) };
        b[low] = minus_turned::<T, S>(simd, even, uneven);
        b[high] = plus_turned::<T, S>(simd, even, uneven);
    }
    b
}

/// (cos, sin)(2πm/R) for R = 3 and R = 5.
const ODD_TURNS: [[(f64, f64); 5]; 2] = [
    [
        (1.0, 0.0),
        (-0.5, 0.866_025_403_784_438_6),
        (-0.5, -0.866_025_403_784_438_6),
        (0.0, 0.0),
        (0.0, 0.0),
    ],
    [
        (1.0, 0.0),
        (0.309_016_994_374_947_4, 0.951_056_516_295_153_5),
        (-0.809_016_994_374_947_4, 0.587_785_252_292_473_1),
        (-0.809_016_994_374_947_4, -0.587_785_252_292_473_1),
        (0.309_016_994_374_947_4, -0.951_056_516_295_153_5),
    ],
];

/// One level over all its blocks. With `HALF` the second half of the block is taken as zero
/// (forward) or not formed (inverse).
struct Pass<'a, T, const R: usize, const INVERSE: bool, const HALF: bool> {
    level: &'a Level<T>,
    data: &'a mut [Point<T>],
}

impl<T: LaneReal, const R: usize, const INVERSE: bool, const HALF: bool> WithSimd
    for Pass<'_, T, R, INVERSE, HALF>
{
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let part = self.level.part;
        for block in self.data.chunks_exact_mut(R * part) {
            butterfly::<R, INVERSE, HALF, false, T, S>(simd, block, 0, &[]);
            let twiddles = self.level.twiddles.chunks_exact(R - 1);
            for (j, twiddles) in twiddles.enumerate().skip(1) {
                butterfly::<R, INVERSE, HALF, true, T, S>(simd, block, j, twiddles);
            }
        }
    }
}

#[inline(always)]
fn butterfly<
    const R: usize,
    const INVERSE: bool,
    const HALF: bool,
    const TURN: bool,
    T: LaneReal,
    S: Simd,
>(
    simd: S,
    block: &mut [Point<T>],
    j: usize,
    twiddles: &[(T, T)],
) {
    let part = block.len() / R;
    let used = if HALF { R / 2 } else { R };
    for c in 0..T::vectors::<S>(&block[0].re).len() {
        let zero = T::splat(simd, T::zero());
        let mut a = [(zero, zero); R];
        let loaded = if INVERSE { R } else { used };
        for k in 0..loaded {
            a[k] = load::<T, S>(&block[j + k * part], c);
            if INVERSE && TURN && k > 0 {
                a[k] = turn::<true, T, S>(simd, a[k], twiddles[k - 1]);
            }
        }
        let b = small::<R, INVERSE, T, S>(simd, a);
        let stored = if INVERSE { used } else { R };
        for k in 0..stored {
            let mut value = b[k];
            if !INVERSE && TURN && k > 0 {
                value = turn::<false, T, S>(simd, value, twiddles[k - 1]);
            }
            store::<T, S>(&mut block[j + k * part], c, value);
        }
    }
}

/// Where the spectrum of a kernel is stored for a block of bins.
struct Place {
    direct: Range<usize>,
    /// In reversed order, and conjugate.
    mirrored: Range<usize>,
}

/// data ← data ∘ kernel; with `MIRRORED` the kernel in reversed order, and conjugate.
struct Multiply<'a, T, const MIRRORED: bool> {
    data: &'a mut [Point<T>],
    kernel: &'a [Point<T>],
}

impl<T: LaneReal, const MIRRORED: bool> WithSimd for Multiply<'_, T, MIRRORED> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let last = self.kernel.len().wrapping_sub(1);
        for (index, data) in self.data.iter_mut().enumerate() {
            let kernel = &self.kernel[if MIRRORED { last - index } else { index }];
            for c in 0..T::vectors::<S>(&kernel.re).len() {
                let (a, b) = (load::<T, S>(data, c), load::<T, S>(kernel, c));
                store::<T, S>(data, c, product::<MIRRORED, T, S>(simd, a, b));
            }
        }
    }
}

/// sum ← sum + g ∘ conj u, then g ← g ∘ conj kernel; with `MIRRORED` the kernel as above.
struct Adjoint<'a, T, const MIRRORED: bool> {
    g: &'a mut [Point<T>],
    u: &'a mut [Point<T>],
    kernel: &'a [Point<T>],
    sum: &'a mut [Point<T>],
}

impl<T: LaneReal, const MIRRORED: bool> WithSimd for Adjoint<'_, T, MIRRORED> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let last = self.kernel.len().wrapping_sub(1);
        let sums = self.sum.iter_mut().enumerate();
        for ((g, u), (index, sum)) in self.g.iter_mut().zip(self.u).zip(sums) {
            let kernel = &self.kernel[if MIRRORED { last - index } else { index }];
            for c in 0..T::vectors::<S>(&kernel.re).len() {
                let (a, b) = (load::<T, S>(g, c), load::<T, S>(u, c));
                let total = product::<true, T, S>(simd, a, b);
                let total = plus::<T, S>(simd, load::<T, S>(sum, c), total);
                store::<T, S>(sum, c, total);
                let b = load::<T, S>(kernel, c);
                let g_new = match MIRRORED {
                    true => product::<false, T, S>(simd, a, b),
                    false => product::<true, T, S>(simd, a, b),
                };
                store::<T, S>(g, c, g_new);
            }
        }
    }
}

/// a b, or a conj(b).
#[inline(always)]
fn product<const CONJUGATE: bool, T: LaneReal, S: Simd>(
    simd: S,
    a: Complex<T, S>,
    b: Complex<T, S>,
) -> Complex<T, S> {
    if CONJUGATE {
        let re = T::fused(simd, a.0, b.0, T::times(simd, a.1, b.1));
        let cross = T::times(simd, a.0, b.1);
        return (re, T::minus(simd, T::times(simd, a.1, b.0), cross));
    }
    let cross = T::times(simd, a.1, b.1);
    let re = T::minus(simd, T::times(simd, a.0, b.0), cross);
    (re, T::fused(simd, a.0, b.1, T::times(simd, a.1, b.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(count: usize, phase: f64) -> Vec<Point<f64>> {
        let value = |t: usize, lane: usize, part: f64| {
            (0.7 * t as f64 + 1.3 * lane as f64 + phase + part).sin()
        };
        (0..count)
            .map(|t| Point {
                re: std::array::from_fn(|lane| value(t, lane, 0.0)),
                im: std::array::from_fn(|lane| value(t, lane, 0.4)),
            })
            .collect()
    }

    #[test]
    fn forward_then_inverse_is_size_times_the_sequence() {
        for least in [1, 4, 8, 12, 20, 60, 64, 1000, 1600] {
            let plan = LaneTransform::<f64>::new(least);
            let before = samples(plan.size(), 0.0);
            let mut data = before.clone();
            plan.forward(&mut data);
            plan.inverse(&mut data);
            for (a, b) in data.iter().zip(&before) {
                for lane in 0..LANE_WIDTH {
                    assert!((a.re[lane] / plan.size() as f64 - b.re[lane]).abs() < 1e-13);
                    assert!((a.im[lane] / plan.size() as f64 - b.im[lane]).abs() < 1e-13);
                }
            }
        }
    }

    /// Every bin from what is stored, for blocks as they are multiplied.
    #[test]
    fn a_real_spectrum_follows_from_half_of_it() {
        for least in [
            1, 12, 60, 250, 486, 500, 1024, 1944, 2500, 3888, 4096, 5000, 17_496,
        ] {
            let plan = LaneTransform::<f64>::new(least);
            let mut whole = samples(plan.size(), 0.2);
            whole
                .iter_mut()
                .for_each(|point| point.im = [0.0; LANE_WIDTH]);
            plan.forward(&mut whole);
            let mut stored = vec![Point::zero(); plan.stored()];
            plan.store(&whole, &mut stored);
            assert!(
                plan.stored() <= plan.size() / 2 + BLOCK,
                "{least}: {} points",
                plan.stored()
            );
            let block = plan.whole;
            for first in (0..plan.size()).step_by(block) {
                let place = plan.place(first, block);
                let (direct, mirrored) = (&stored[place.direct], &stored[place.mirrored]);
                assert_eq!(direct.len() + mirrored.len(), block);
                let conjugate = mirrored.iter().rev().map(|point| (point, -1.0));
                let all = direct.iter().map(|point| (point, 1.0)).chain(conjugate);
                for (found, (point, sign)) in whole[first..].iter().zip(all) {
                    for lane in 0..LANE_WIDTH {
                        assert!((found.re[lane] - point.re[lane]).abs() < 1e-9);
                        assert!((found.im[lane] - sign * point.im[lane]).abs() < 1e-9);
                    }
                }
            }
        }
    }

    #[test]
    fn convolution_and_its_adjoint_are_the_direct_sums() {
        for length in [1, 2, 3, 17, 30, 101, 333, 1100, 1215, 2187] {
            let plan = LaneTransform::<f64>::new(2 * length);
            let (n, scale) = (plan.size(), plan.size() as f64);
            let mut kernel = samples(length, 0.1);
            kernel
                .iter_mut()
                .for_each(|point| point.im = [0.0; LANE_WIDTH]);
            let pad = |mut points: Vec<Point<f64>>| {
                points.resize(n, Point::zero());
                points
            };
            let mut whole = pad(kernel.clone());
            plan.forward(&mut whole);
            let mut spectrum = vec![Point::zero(); plan.stored()];
            plan.store(&whole, &mut spectrum);
            let (u, g) = (samples(length, 0.8), samples(length, 2.9));
            let mut y = pad(u.clone());
            plan.convolve(&mut y, &spectrum);
            let (mut gu, mut again) = (pad(g.clone()), pad(u.clone()));
            let mut gk = vec![Point::zero(); n];
            plan.correlate(&mut gu, &mut again, &spectrum, &mut gk);
            plan.inverse(&mut gk);
            for t in 0..length {
                for lane in 0..LANE_WIDTH {
                    let sum = |terms: &dyn Fn(usize) -> f64, range: std::ops::Range<usize>| {
                        range.map(terms).sum::<f64>()
                    };
                    let direct = sum(&|j| kernel[j].re[lane] * u[t - j].im[lane], 0..t + 1);
                    assert!(
                        (y[t].im[lane] / scale - direct).abs() < 1e-11,
                        "{length} {t}"
                    );
                    let adjoint = |j: usize| kernel[j - t].re[lane] * g[j].re[lane];
                    let direct = sum(&adjoint, t..length);
                    assert!(
                        (gu[t].re[lane] / scale - direct).abs() < 1e-11,
                        "{length} {t}"
                    );
                    let both = |j: usize| {
                        g[j].re[lane] * u[j - t].re[lane] + g[j].im[lane] * u[j - t].im[lane]
                    };
                    let direct = sum(&both, t..length);
                    assert!(
                        (gk[t].re[lane] / scale - direct).abs() < 1e-11,
                        "{length} {t}"
                    );
                }
            }
        }
    }
}
