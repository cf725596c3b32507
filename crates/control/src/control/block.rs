//! Systems by their matrices.

use nalgebra::{ComplexField, DMatrix};
use num_complex::Complex64;

use crate::linalg::expm1;
use crate::ssm::Time;

/// A, in discrete time A − I, with B and C.
#[derive(Debug, Clone)]
pub(super) struct Block<T: ComplexField<RealField = f64>> {
    pub(super) a: DMatrix<T>,
    pub(super) b: DMatrix<T>,
    pub(super) c: DMatrix<T>,
}

impl<T: ComplexField<RealField = f64>> Block<T> {
    /// That of the leading `order` states.
    pub(super) fn leading(&self, order: usize) -> Block<T> {
        Block {
            a: self.a.view((0, 0), (order, order)).into_owned(),
            b: self.b.rows(0, order).into_owned(),
            c: self.c.columns(0, order).into_owned(),
        }
    }
}

/// λ in continuous time, a − 1 in discrete time.
pub(super) fn shifted_poles(time: Time, exponents: &[Complex64]) -> Vec<Complex64> {
    let shifted = exponents.iter().map(|&lambda| match time {
        Time::Continuous => lambda,
        Time::Discrete { step } => expm1(lambda * step),
    });
    shifted.collect()
}
