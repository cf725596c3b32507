//! Two Gramians by their factors.

use nalgebra::{ComplexField, DMatrix};

/// F_c and F_o with W_c = F_c F_c* and W_o = F_o F_o*.
///
/// The columns are as many as the Gramian's rank, which is exact: a repeated pole or a zero
/// weight takes no column.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct GramianFactors<T: ComplexField<RealField = f64>> {
    /// The factor of the controllability Gramian, one row per state.
    pub controllability: DMatrix<T>,
    /// The factor of the observability Gramian, one row per state.
    pub observability: DMatrix<T>,
}
