//! Sums over the rows of a matrix, and a row or column as a whole matrix, as products with ones.
//!
//! candle's kernels for broadcast operands divide in 64 bits several times for each number, and a sum
//! along the first axis keeps few units of a GPU busy.

use candle_core::{Result, Tensor};

use crate::nn::tables::Table;

/// Numbers from which on one more kernel is less than what the divisions take.
const LARGE: usize = 1 << 20;

/// The sum of all rows, as a matrix of one row.
pub(super) fn sum_of_rows(matrix: &Tensor) -> Result<Tensor> {
    ones(matrix.dim(0)?, matrix)?.matmul(matrix)
}

/// One row, or one column, repeated to a matrix of so many rows and columns.
pub(super) fn repeated(line: &Tensor, rows: usize, columns: usize) -> Result<Tensor> {
    match rows * columns >= LARGE {
        true => product(line, rows, columns),
        false => line.broadcast_as((rows, columns)),
    }
}

fn product(line: &Tensor, rows: usize, columns: usize) -> Result<Tensor> {
    let (found_rows, found_columns) = line.dims2()?;
    let tall = match found_rows == rows {
        true => line.clone(),
        false => ones(rows, line)?.t()?.matmul(line)?,
    };
    match found_columns == columns {
        true => Ok(tall),
        false => tall.matmul(&ones(columns, line)?),
    }
}

/// 1 × count.
fn ones(count: usize, like: &Tensor) -> Result<Tensor> {
    let table = Table::Ones { count }.on(like.device(), like.dtype())?;
    Ok(table[0].clone())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nn::tensors::waves::{wave, worst};

    #[test]
    fn products_with_ones_repeat_rows_and_columns() {
        for shape in [[1, 5], [4, 1], [4, 5], [1, 1]] {
            let line = wave(&shape, [0.0, 1.0, 2.0]);
            let expected = line.broadcast_as((4, 5)).unwrap();
            let short = repeated(&line, 4, 5).unwrap();
            assert_eq!(
                worst(&product(&line, 4, 5).unwrap(), &expected),
                0.0,
                "{shape:?}"
            );
            assert_eq!(worst(&short, &expected), 0.0, "{shape:?}");
        }
        let row = wave(&[1, LARGE / 4], [0.0, 1.0, 2.0]);
        let expected = row.broadcast_as((4, LARGE / 4)).unwrap();
        assert_eq!(
            worst(&repeated(&row, 4, LARGE / 4).unwrap(), &expected),
            0.0
        );
    }

    #[test]
    fn the_sum_of_rows_is_that_along_the_first_axis() {
        let matrix = wave(&[7, 3], [0.1, 1.0, 2.0]);
        let expected = matrix.sum_keepdim(0).unwrap();
        assert!(worst(&sum_of_rows(&matrix).unwrap(), &expected) < 1e-15);
    }
}
