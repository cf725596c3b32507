//! Products of row-major slices, in single or double precision.

use faer::Accum;
use faer::MatMut;
use faer::MatRef;
use faer::Par;
use faer::linalg::matmul::matmul;

/// The real numbers of [`multiply_rows`]: f32 and f64.
pub trait RealNumber: faer::traits::ComplexField + Copy {}

impl RealNumber for f32 {}
impl RealNumber for f64 {}

/// A row-major matrix, or the transpose of one.
#[derive(Debug, Clone, Copy)]
pub struct RowMajor<'a, T> {
    data: &'a [T],
    rows: usize,
    columns: usize,
    transposed: bool,
}

impl<'a, T: RealNumber> RowMajor<'a, T> {
    /// The matrix whose rows stand one after another in `data`.
    ///
    /// # Panics
    /// Unless `data` holds rows × columns numbers.
    pub fn new(data: &'a [T], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "a matrix has rows x columns");
        Self {
            data,
            rows,
            columns,
            transposed: false,
        }
    }

    /// Its transpose, without moving a number.
    pub fn transpose(self) -> Self {
        Self {
            transposed: !self.transposed,
            ..self
        }
    }

    fn view(&self) -> MatRef<'a, T> {
        let stored = MatRef::from_row_major_slice(self.data, self.rows, self.columns);
        if self.transposed {
            stored.transpose()
        } else {
            stored
        }
    }
}

/// out ← A B, or out ← out + A B, for a row-major `out`, on the calling thread.
///
/// # Panics
/// When the shapes do not fit.
pub fn multiply_rows<T: RealNumber>(
    out: &mut [T],
    a: RowMajor<'_, T>,
    b: RowMajor<'_, T>,
    add: bool,
) {
    let (a, b) = (a.view(), b.view());
    let out = MatMut::from_row_major_slice_mut(out, a.nrows(), b.ncols());
    let accumulate = if add { Accum::Add } else { Accum::Replace };
    matmul(out, accumulate, a, b, T::one_impl(), Par::Seq);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_rows_and_of_transposes() {
        let a = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let b = [1.0, -1.0, 0.5, 2.0, 0.0, 3.0];
        let a = RowMajor::new(&a, 2, 3);
        let mut out = vec![0.0; 4];
        multiply_rows(&mut out, a, RowMajor::new(&b, 3, 2), false);
        assert_eq!(out, [2.0, 12.0, 6.5, 24.0]);
        multiply_rows(&mut out, a, RowMajor::new(&b, 2, 3).transpose(), true);
        assert_eq!(out, [2.0 + 0.5, 12.0 + 11.0, 6.5 + 2.0, 24.0 + 26.0]);
    }
}
