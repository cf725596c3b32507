//! The two number types of the fast path, f32 and f64, and their vectors.

use hankelite_edge::{erf, exp};
use pulp::Simd;

use crate::double::{self, DENSITY_AT_ZERO};
use crate::product::RealNumber;

/// Numbers that one lane group holds: a full vector of f32 on the widest units.
pub const LANE_WIDTH: usize = 16;

/// f32 in training, f64 where gradients are checked.
///
/// A `Vector` is what one instruction works on; its width depends on the machine and is a
/// divisor of [`LANE_WIDTH`].
pub trait LaneReal:
    num_traits::NumAssign + PartialOrd + RealNumber + Default + Send + Sync + std::any::Any
{
    /// What one instruction works on.
    type Vector<S: Simd>: Copy;

    /// The vectors that `lanes` consists of.
    fn vectors<S: Simd>(lanes: &[Self; LANE_WIDTH]) -> &[Self::Vector<S>];
    /// The same, to be changed.
    fn vectors_mut<S: Simd>(lanes: &mut [Self; LANE_WIDTH]) -> &mut [Self::Vector<S>];
    /// Whole vectors, and what is left.
    fn parts<S: Simd>(row: &[Self]) -> (&[Self::Vector<S>], &[Self]);
    /// The same, to be changed.
    fn parts_mut<S: Simd>(row: &mut [Self]) -> (&mut [Self::Vector<S>], &mut [Self]);
    /// The sum of all lanes.
    fn sum<S: Simd>(simd: S, a: Self::Vector<S>) -> Self;
    /// The same number in all lanes.
    fn splat<S: Simd>(simd: S, value: Self) -> Self::Vector<S>;
    /// a + b.
    fn plus<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// a − b.
    fn minus<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// a b.
    fn times<S: Simd>(simd: S, a: Self::Vector<S>, b: Self::Vector<S>) -> Self::Vector<S>;
    /// a b + c.
    fn fused<S: Simd>(
        simd: S,
        a: Self::Vector<S>,
        b: Self::Vector<S>,
        c: Self::Vector<S>,
    ) -> Self::Vector<S>;

    /// Smaller numbers are taken as zero in powers: products with subnormals are slow.
    const TINY: f64;

    /// Rounded.
    fn of(value: f64) -> Self;
    /// As f64.
    fn wide(self) -> f64;
    /// √x.
    fn root(self) -> Self;
    /// a Φ(a) and its derivative Φ(a) + a φ(a), with the exact normal distribution.
    fn gelu_with_slope(self) -> (Self, Self);
    /// a Φ(a).
    fn gelu(self) -> Self;
    /// a (1 + tanh(√(2/π) (a + 0.044715 a³)))/2, and its derivative.
    #[inline(always)]
    fn gelu_tanh_with_slope(self) -> (Self, Self) {
        let (half, one) = (Self::of(0.5), Self::one());
        let (root, cubic) = (Self::of(ROOT_2_OF_PI), Self::of(CUBIC));
        let square = self * self;
        let tangent = (root * self * (one + cubic * square)).tangent();
        let inner = root * (one + Self::of(3.0 * CUBIC) * square);
        let share = half * (one + tangent);
        let slope = share + half * self * (one - tangent * tangent) * inner;
        (self * share, slope)
    }
    /// e^x for x ≤ 0; f32 stops at e^−80.
    fn power(self) -> Self;
    /// 1/(1 + e^−x).
    fn sigmoid(self) -> Self;
    /// tanh x.
    fn tangent(self) -> Self;
}

macro_rules! vectors_of {
    ($t:ident, $vector:ident, $view:ident, $view_mut:ident, $splat:ident, $add:ident, $sub:ident,
     $mul:ident, $fma:ident, $sum:ident) => {
        type Vector<S: Simd> = S::$vector;

        #[inline(always)]
        fn vectors<S: Simd>(lanes: &[Self; LANE_WIDTH]) -> &[Self::Vector<S>] {
            S::$view(lanes).0
        }
        #[inline(always)]
        fn vectors_mut<S: Simd>(lanes: &mut [Self; LANE_WIDTH]) -> &mut [Self::Vector<S>] {
            S::$view_mut(lanes).0
        }
        #[inline(always)]
        fn parts<S: Simd>(row: &[Self]) -> (&[Self::Vector<S>], &[Self]) {
            S::$view(row)
        }
        #[inline(always)]
        fn parts_mut<S: Simd>(row: &mut [Self]) -> (&mut [Self::Vector<S>], &mut [Self]) {
            S::$view_mut(row)
        }
        #[inline(always)]
        fn sum<S: Simd>(simd: S, a: S::$vector) -> Self {
            simd.$sum(a)
        }
        #[inline(always)]
        fn splat<S: Simd>(simd: S, value: Self) -> Self::Vector<S> {
            simd.$splat(value)
        }
        #[inline(always)]
        fn plus<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
            simd.$add(a, b)
        }
        #[inline(always)]
        fn minus<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
            simd.$sub(a, b)
        }
        #[inline(always)]
        fn times<S: Simd>(simd: S, a: S::$vector, b: S::$vector) -> S::$vector {
            simd.$mul(a, b)
        }
        #[inline(always)]
        fn fused<S: Simd>(simd: S, a: S::$vector, b: S::$vector, c: S::$vector) -> S::$vector {
            simd.$fma(a, b, c)
        }
        #[inline(always)]
        fn of(value: f64) -> Self {
            value as $t
        }
        #[inline(always)]
        fn wide(self) -> f64 {
            self.into()
        }
        #[inline(always)]
        fn root(self) -> Self {
            self.sqrt()
        }
    };
}

impl LaneReal for f64 {
    const TINY: f64 = 1e-290;

    vectors_of!(
        f64,
        f64s,
        as_simd_f64s,
        as_mut_simd_f64s,
        splat_f64s,
        add_f64s,
        sub_f64s,
        mul_f64s,
        mul_add_e_f64s,
        reduce_sum_f64s
    );

    #[inline(always)]
    fn gelu_with_slope(self) -> (Self, Self) {
        let (distribution, density) = double::normal(self);
        (self * distribution, distribution + self * density)
    }
    #[inline(always)]
    fn gelu(self) -> Self {
        self * double::normal(self).0
    }
    /// By the sigmoid of 2v, which keeps all digits where a is far below zero.
    #[inline(always)]
    fn gelu_tanh_with_slope(self) -> (Self, Self) {
        let square = self * self;
        let share = double::sigmoid(2.0 * ROOT_2_OF_PI * self * (1.0 + CUBIC * square));
        let inner = ROOT_2_OF_PI * (1.0 + 3.0 * CUBIC * square);
        let slope = share + 2.0 * self * share * (1.0 - share) * inner;
        (self * share, slope)
    }
    #[inline(always)]
    fn power(self) -> Self {
        double::exp(self)
    }
    #[inline(always)]
    fn sigmoid(self) -> Self {
        double::sigmoid(self)
    }
    fn tangent(self) -> Self {
        self.tanh()
    }
}

impl LaneReal for f32 {
    const TINY: f64 = 1e-30;

    vectors_of!(
        f32,
        f32s,
        as_simd_f32s,
        as_mut_simd_f32s,
        splat_f32s,
        add_f32s,
        sub_f32s,
        mul_f32s,
        mul_add_e_f32s,
        reduce_sum_f32s
    );

    #[inline(always)]
    fn gelu_with_slope(self) -> (Self, Self) {
        let distribution = 0.5 + 0.5 * erf(self * std::f32::consts::FRAC_1_SQRT_2);
        let density = exp((-0.5 * self * self).max(-80.0)) * DENSITY_AT_ZERO as f32;
        (self * distribution, distribution + self * density)
    }
    #[inline(always)]
    fn gelu(self) -> Self {
        self * (0.5 + 0.5 * erf(self * std::f32::consts::FRAC_1_SQRT_2))
    }
    #[inline(always)]
    fn power(self) -> Self {
        exp(self.max(-80.0))
    }
    #[inline(always)]
    fn sigmoid(self) -> Self {
        1.0 / (1.0 + exp((-self).clamp(-80.0, 80.0)))
    }
    #[inline(always)]
    fn tangent(self) -> Self {
        tanh(self)
    }
}

/// out ← out + more.
pub fn add<T: LaneReal>(out: &mut [T], more: &[T]) {
    out.iter_mut().zip(more).for_each(|(x, y)| *x += *y);
}

/// √(2/π).
const ROOT_2_OF_PI: f64 = 0.797_884_560_802_865_4;

/// Of the tanh form of GELU.
const CUBIC: f64 = 0.044715;

/// tanh to 4e-7 of its size, as a quotient of polynomials.
///
/// # References
/// The coefficients of Eigen, `MathFunctionsImpl.h`, `generic_fast_tanh_float`.
#[inline(always)]
fn tanh(x: f32) -> f32 {
    let x = x.clamp(-7.905_311, 7.905_311);
    let square = x * x;
    let mut p = -2.760_768_4e-16;
    for c in [
        2.000_188e-13,
        -8.604_672e-11,
        5.122_297_3e-8,
        1.485_722_35e-5,
        6.372_619_5e-4,
        4.893_524_6e-3,
    ] {
        p = p * square + c;
    }
    let mut q = 1.198_258_4e-6;
    for c in [1.185_347_1e-4, 2.268_434_7e-3, 4.893_525e-3] {
        q = q * square + c;
    }
    x * p / q
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fast_functions_agree_with_the_exact_ones() {
        for i in -100_000..=100_000 {
            let x = i as f32 * 1e-3;
            let wide = f64::from(x);
            let (value, slope) = x.gelu_with_slope();
            let (exact, exact_slope) = wide.gelu_with_slope();
            let scale = wide.abs().max(1.0);
            assert!((f64::from(value) - exact).abs() < 5e-7 * scale, "gelu {x}");
            assert!((f64::from(x.gelu()) - exact).abs() < 5e-7 * scale, "{x}");
            assert!((f64::from(slope) - exact_slope).abs() < 1e-6, "slope {x}");
            assert!(
                (f64::from(x.sigmoid()) - wide.sigmoid()).abs() < 3e-7,
                "{x}"
            );
            if wide.abs() <= 80.0 {
                assert!(
                    (f64::from(exp(x)) / wide.exp() - 1.0).abs() < 4e-7,
                    "exp {x}"
                );
            }
        }
    }

    #[test]
    fn the_form_of_gelu_by_a_tanh_and_its_slope_are_those_of_double_precision() {
        let exact = |x: f64| 0.5 * x * (1.0 + (ROOT_2_OF_PI * (x + CUBIC * x.powi(3))).tanh());
        for i in -10_000..=10_000 {
            let x = i as f32 * 1e-3;
            let wide = f64::from(x);
            let (value, slope) = x.gelu_tanh_with_slope();
            let scale = wide.abs().max(1.0);
            assert!((f64::from(value) - exact(wide)).abs() < 1e-6 * scale, "{x}");
            let (value_wide, slope_wide) = wide.gelu_tanh_with_slope();
            assert!((value_wide - exact(wide)).abs() < 1e-14 * scale, "{x}");
            let difference = (exact(wide + 1e-5) - exact(wide - 1e-5)) / 2e-5;
            assert!((slope_wide - difference).abs() < 1e-9, "slope {x}");
            // 1 − tanh² cancels, and is multiplied with x and a slope of up to 70.
            let error = (f64::from(slope) - slope_wide).abs();
            assert!(
                error < 2e-6 * (1.0 + wide.abs().powi(3)),
                "slope {x}: {error}"
            );
        }
    }

    #[test]
    fn the_hyperbolic_tangent_is_that_of_double_precision() {
        for i in -100_000..=100_000 {
            let x = i as f32 * 1e-3;
            let wide = f64::from(x);
            let tangent = f64::from(LaneReal::tangent(x));
            assert!(
                (tangent - wide.tanh()).abs() <= 5e-7 * wide.tanh().abs(),
                "tanh {x}"
            );
        }
    }
}
