//! Products of row-major slices, in single or double precision.

use faer::linalg::matmul::matmul;
use faer::{Accum, MatMut, MatRef, Par};

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
    /// Numbers from one row to the next.
    stride: usize,
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
            stride: columns,
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
        let (rows, columns) = (self.rows, self.columns);
        let stored =
            MatRef::from_row_major_slice_with_stride(self.data, rows, columns, self.stride);
        if self.transposed {
            stored.transpose()
        } else {
            stored
        }
    }
}

impl<T: RealNumber> RowMajor<'_, T> {
    /// Some columns of the matrix as it is stored, without moving a number.
    ///
    /// # Panics
    /// When the range ends behind the last column, or the matrix is a transpose or has no row.
    pub fn columns(self, range: std::ops::Range<usize>) -> Self {
        let fits = range.start <= range.end && range.end <= self.columns;
        assert!(fits && !self.transposed && self.rows > 0, "columns of it");
        let last = (self.rows - 1) * self.stride + range.end;
        Self {
            data: &self.data[range.start..last],
            columns: range.len(),
            ..self
        }
    }

    /// Rows and columns, of the transpose if it is one.
    pub fn shape(&self) -> (usize, usize) {
        if self.transposed {
            (self.columns, self.rows)
        } else {
            (self.rows, self.columns)
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

    #[test]
    fn columns_of_a_matrix_are_a_matrix() {
        let numbers: Vec<f64> = (0..12).map(f64::from).collect();
        let a = RowMajor::new(&numbers, 3, 4).columns(1..3);
        let one = [1.0, 0.0, 0.0, 1.0];
        let mut out = vec![0.0; 6];
        multiply_rows(&mut out, a, RowMajor::new(&one, 2, 2), false);
        assert_eq!(out, [1.0, 2.0, 5.0, 6.0, 9.0, 10.0]);
        let mut out = vec![0.0; 4];
        multiply_rows(&mut out, a.transpose(), a, false);
        assert_eq!(out, [107.0, 122.0, 122.0, 140.0]);
    }
}
