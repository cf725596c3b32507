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

/// Adds every row, times that of `by` where it is given, to `sums`, and the squares of its numbers to `squares`.
///
/// # Panics
/// When the sums are not as many as the squares, or none.
pub fn add_squares(sums: &mut [f64], squares: &mut [f64], rows: &[f32], by: Option<&[f32]>) {
    assert_eq!(
        sums.len(),
        squares.len(),
        "a sum and a square for each number"
    );
    Arch::new().dispatch(AddSquares {
        sums,
        squares,
        rows,
        by,
    });
}

struct AddSquares<'a> {
    sums: &'a mut [f64],
    squares: &'a mut [f64],
    rows: &'a [f32],
    by: Option<&'a [f32]>,
}

impl AddSquares<'_> {
    #[inline(always)]
    fn add(&mut self, row: impl Iterator<Item = f32>) {
        let sums = self.sums.iter_mut().zip(self.squares.iter_mut());
        for (value, (sum, square)) in row.map(f64::from).zip(sums) {
            *sum += value;
            *square += value * value;
        }
    }
}

impl WithSimd for AddSquares<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(mut self, _: S) {
        let width = self.sums.len();
        let rows = self.rows.chunks_exact(width);
        match self.by {
            None => rows.for_each(|row| self.add(row.iter().copied())),
            Some(by) => {
                for (row, by) in rows.zip(by.chunks_exact(width)) {
                    self.add(row.iter().zip(by).map(|(value, by)| value * by));
                }
            }
        }
    }
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
