//! Nonlinearities of whole slices, with the products of their derivatives.

use pulp::{Arch, Simd, WithSimd};

use crate::real::LaneReal;

/// The form of GELU.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum GeluForm {
    /// With the exact normal distribution.
    #[default]
    Exact,
    /// By a tanh.
    Tanh,
}

/// out ← GELU(y).
pub fn gelu<T: LaneReal>(y: &[T], out: &mut [T], form: GeluForm) {
    Arch::new().dispatch(Gelu { y, out, form });
}

/// slope ← slope ∘ GELU′(y).
pub fn gelu_backward<T: LaneReal>(y: &[T], slope: &mut [T], form: GeluForm) {
    Arch::new().dispatch(GeluBackward { y, slope, form });
}

/// x ← 1/(1 + e^−x).
pub fn sigmoid<T: LaneReal>(x: &mut [T]) {
    Arch::new().dispatch(Sigmoid { x });
}

struct Gelu<'a, T> {
    y: &'a [T],
    out: &'a mut [T],
    form: GeluForm,
}

impl<T: LaneReal> WithSimd for Gelu<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let pairs = self.out.iter_mut().zip(self.y);
        match self.form {
            GeluForm::Exact => {
                for (out, y) in pairs {
                    *out = y.gelu();
                }
            }
            GeluForm::Tanh => {
                for (out, y) in pairs {
                    *out = y.gelu_tanh_with_slope().0;
                }
            }
        }
    }
}

struct GeluBackward<'a, T> {
    y: &'a [T],
    slope: &'a mut [T],
    form: GeluForm,
}

impl<T: LaneReal> WithSimd for GeluBackward<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let pairs = self.slope.iter_mut().zip(self.y);
        match self.form {
            GeluForm::Exact => {
                for (slope, y) in pairs {
                    *slope *= y.gelu_with_slope().1;
                }
            }
            GeluForm::Tanh => {
                for (slope, y) in pairs {
                    *slope *= y.gelu_tanh_with_slope().1;
                }
            }
        }
    }
}

struct Sigmoid<'a, T> {
    x: &'a mut [T],
}

impl<T: LaneReal> WithSimd for Sigmoid<'_, T> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        for x in self.x.iter_mut() {
            *x = x.sigmoid();
        }
    }
}
