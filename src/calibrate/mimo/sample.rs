//! What a system is fitted to.

use nalgebra::DMatrix;

/// What a system gets, and what it should give.
#[derive(Debug, Clone)]
pub(super) struct Sample {
    /// u, L × m.
    pub(super) input: DMatrix<f64>,
    /// y, L × p.
    pub(super) target: DMatrix<f64>,
}

/// Columns side by side.
pub(super) fn joined(parts: &[&DMatrix<f64>]) -> DMatrix<f64> {
    let columns = parts.iter().map(|part| part.ncols()).sum();
    let mut all = DMatrix::zeros(parts[0].nrows(), columns);
    let mut first = 0;
    for part in parts {
        all.columns_mut(first, part.ncols()).copy_from(part);
        first += part.ncols();
    }
    all
}
