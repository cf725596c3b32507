//! The proximal operator of two absolute values, in three equal forms.
//!
//! ```text
//! prox2(u; a, b, ħ) = argmin_v a|v| + b|v − ħ| + ½(v − u)²,   a, b ≥ 0
//! ```
//!
//! It is piecewise linear in u with slopes 1 and 0; the flats lie at 0 and at the side value ħ.
//!
//! # References
//! Le, Luong and Deligiannis, equations (7) for ħ ≥ 0 and (8) for ħ < 0. **The last line of (8)
//! is corrected here**: for u < ħ − a − b the value is u + a + b. The paper prints u − a + b, in
//! (20) too, which jumps by 2a at u = ħ − a − b and is no minimum.

use pulp::{Arch, Simd, WithSimd};

use crate::nn::real::Real;

/// prox2 by the branch-free form; the same as [`prox2_table`] and [`prox2_median`].
///
/// With lo = min(0, ħ), hi = max(0, ħ), sgn(0) = +1:
///
/// ```text
/// prox2 = clip(u − sgn(ħ)(a − b), lo, hi) + min(u + a + b − lo, 0) + max(u − a − b − hi, 0)
/// ```
///
/// Assumes a, b ≥ 0. One-Lipschitz in u, and jointly in (u, ħ) for the largest absolute difference.
///
/// ```
/// use hankelite_train::nn::baseline::prox2;
///
/// assert_eq!(prox2(3.0, 0.5, 0.25, 0.0), 2.25); // soft thresholding by a + b
/// assert_eq!(prox2(1.1, 0.5, 0.75, 1.0), 1.0); // held at the side value
/// ```
#[must_use]
pub fn prox2(u: f64, a: f64, b: f64, side: f64) -> f64 {
    value(u, a, b, side)
}

/// prox2 by the cases of (7) and (8), the last line of (8) corrected.
#[must_use]
pub fn prox2_table(u: f64, a: f64, b: f64, side: f64) -> f64 {
    let flat_then_slope = if side >= 0.0 {
        [
            (u > side + a + b, u - a - b),
            (u >= side + a - b, side),
            (u > a - b, u - a + b),
            (u >= -a - b, 0.0),
        ]
    } else {
        [
            (u > a + b, u - a - b),
            (u >= -a + b, 0.0),
            (u > side - a + b, u + a - b),
            (u >= side - a - b, side),
        ]
    };
    let found = flat_then_slope.iter().find(|(holds, _)| *holds);
    found.map_or(u + a + b, |(_, value)| *value)
}

/// prox2 as median{0, ħ, u + a + b, u − sgn(ħ)(a − b), u − a − b}, with sgn(0) = +1.
#[must_use]
pub fn prox2_median(u: f64, a: f64, b: f64, side: f64) -> f64 {
    let sign = if side >= 0.0 { 1.0 } else { -1.0 };
    let mut five = [0.0, side, u + a + b, u - sign * (a - b), u - a - b];
    five.sort_by(f64::total_cmp);
    five[2]
}

/// The derivatives of [`prox2`].
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Prox2Slopes<T = f64> {
    /// By u: 1 on the slopes, 0 on the flats.
    pub u: T,
    /// By a: −sgn(v) on the slopes, 0 on the flats.
    pub a: T,
    /// By b: −sgn(v − ħ) on the slopes, 0 on the flats.
    pub b: T,
    /// By ħ: 1 on the flat at ħ, else 0.
    pub side: T,
}

/// The derivatives of prox2 at u; at a knot, those of the flat. For ħ = 0, where both flats lie at
/// 0, those of (7) from the right: u ≥ a − b belongs to the flat at ħ.
#[must_use]
pub fn prox2_slopes(u: f64, a: f64, b: f64, side: f64) -> Prox2Slopes {
    slopes(u, a, b, side)
}

#[inline(always)]
fn least<T: Real>(x: T, y: T) -> T {
    if x < y { x } else { y }
}

#[inline(always)]
fn most<T: Real>(x: T, y: T) -> T {
    if x > y { x } else { y }
}

#[inline(always)]
fn value<T: Real>(u: T, a: T, b: T, side: T) -> T {
    let zero = T::zero();
    let (lo, hi) = (least(zero, side), most(zero, side));
    let shift = if side >= zero { a - b } else { b - a };
    let middle = least(most(u - shift, lo), hi);
    middle + least(u + (a + b) - lo, zero) + most(u - (a + b) - hi, zero)
}

#[inline(always)]
fn slopes<T: Real>(u: T, a: T, b: T, side: T) -> Prox2Slopes<T> {
    let (zero, one) = (T::zero(), T::one());
    let (lo, hi) = (least(zero, side), most(zero, side));
    let positive = side >= zero;
    let (sign, shifted) = if positive {
        (one, u - (a - b))
    } else {
        (zero - one, u + (a - b))
    };
    let number = |holds: bool| if holds { one } else { zero };
    let top = number(u - (a + b) > hi);
    let bottom = number(u + (a + b) < lo);
    let middle = number((shifted > lo) & (shifted < hi));
    let slope = top + bottom + middle;
    let beyond = number(if positive {
        shifted >= hi
    } else {
        shifted <= lo
    });
    let outer = bottom - top;
    Prox2Slopes {
        u: slope,
        a: outer - sign * middle,
        b: outer + sign * middle,
        side: (one - slope) * beyond,
    }
}

/// out ← prox2 of every entry; rows × batch, with thresholds for each row.
pub(super) fn forward<T: Real>(known: Known<'_, T>, out: &mut [T]) {
    Arch::new().dispatch(Forward { known, out });
}

struct Forward<'a, T> {
    known: Known<'a, T>,
    out: &'a mut [T],
}

impl<T: Real> WithSimd for Forward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Known {
            u,
            side,
            a,
            b,
            batch,
        } = self.known;
        let rows = self.out.chunks_exact_mut(batch);
        let known = u.chunks_exact(batch).zip(side.chunks_exact(batch));
        for (index, (out, (u, side))) in rows.zip(known).enumerate() {
            let (a, b) = (a[index], b[index]);
            for (out, (u, side)) in out.iter_mut().zip(u.iter().zip(side)) {
                *out = value(*u, a, b, *side);
            }
        }
    }
}

/// The arguments of a layer's prox2, rows × batch, and its thresholds by row.
#[derive(Clone, Copy)]
pub(super) struct Known<'a, T> {
    pub(super) u: &'a [T],
    pub(super) side: &'a [T],
    pub(super) a: &'a [T],
    pub(super) b: &'a [T],
    pub(super) batch: usize,
}

/// The gradients beside that of u; those of side and thresholds are added to.
pub(super) struct Gradients<'a, T> {
    pub(super) side: &'a mut [T],
    pub(super) a: &'a mut [T],
    pub(super) b: &'a mut [T],
}

/// g ← the gradient of u from that of the value, in place.
pub(super) fn backward<T: Real>(g: &mut [T], known: Known<'_, T>, gradients: Gradients<'_, T>) {
    Arch::new().dispatch(Backward {
        g,
        known,
        gradients,
    });
}

struct Backward<'a, T> {
    g: &'a mut [T],
    known: Known<'a, T>,
    gradients: Gradients<'a, T>,
}

impl<T: Real> WithSimd for Backward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let Known {
            u,
            side,
            a,
            b,
            batch,
        } = self.known;
        let of_side = self.gradients.side.chunks_exact_mut(batch);
        let rows = self.g.chunks_exact_mut(batch).zip(of_side);
        let known = u.chunks_exact(batch).zip(side.chunks_exact(batch));
        for (index, ((g, of_side), (u, side))) in rows.zip(known).enumerate() {
            let (a, b) = (a[index], b[index]);
            let (mut of_a, mut of_b) = (T::zero(), T::zero());
            for at in 0..batch {
                let by = slopes(u[at], a, b, side[at]);
                of_side[at] += g[at] * by.side;
                of_a += g[at] * by.a;
                of_b += g[at] * by.b;
                g[at] *= by.u;
            }
            self.gradients.a[index] += of_a;
            self.gradients.b[index] += of_b;
        }
    }
}
