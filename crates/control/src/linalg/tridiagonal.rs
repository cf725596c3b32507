//! Eigenvectors of real symmetric tridiagonal matrices.

use nalgebra::DMatrix;
use pulp::{Arch, Simd, WithSimd};

/// Sweeps allowed for each eigenvalue; two are usual.
const SWEEPS_PER_VALUE: usize = 60;

/// A symmetric tridiagonal matrix with the diagonal d and the entries e beside it, which turns into
/// the diagonal matrix of its eigenvalues.
pub(super) struct Tridiagonal {
    diagonal: Vec<f64>,
    beside: Vec<f64>,
    /// Orthonormal columns, by now the product of all rotations.
    vectors: DMatrix<f64>,
}

impl Tridiagonal {
    /// # Panics
    /// Unless `beside` is one shorter than `diagonal`, or both are empty.
    pub(super) fn new(diagonal: Vec<f64>, beside: Vec<f64>) -> Self {
        let size = diagonal.len();
        assert_eq!(beside.len(), size.saturating_sub(1));
        let vectors = DMatrix::identity(size, size);
        Self {
            diagonal,
            beside,
            vectors,
        }
    }

    /// Eigenvalues, ascending, and orthonormal eigenvectors. `None` when the iteration does not
    /// converge.
    ///
    /// Implicit QR steps with Wilkinson's shift, from the top down. A matrix whose rows shrink
    /// downwards keeps its small eigenvalues, and its vectors their small entries. An entry e_k
    /// counts as zero when e_k² ≤ ε² |d_k d_{k+1}|. Cost about 5 n³ flops.
    ///
    /// # References
    /// Golub and Van Loan, *Matrix Computations*, 4th edition (2013), section 8.3; the LAPACK
    /// routine `dsteqr` for the test on e_k.
    pub(super) fn eigen(mut self) -> Option<(Vec<f64>, DMatrix<f64>)> {
        if !Arch::new().dispatch(&mut self) {
            return None;
        }
        let mut order: Vec<usize> = (0..self.diagonal.len()).collect();
        order.sort_by(|&a, &b| self.diagonal[a].total_cmp(&self.diagonal[b]));
        let values = order.iter().map(|&k| self.diagonal[k]).collect();
        Some((values, self.vectors.select_columns(&order)))
    }

    #[inline(always)]
    fn is_split(&self, k: usize) -> bool {
        let (above, below) = (self.diagonal[k].abs(), self.diagonal[k + 1].abs());
        let size = f64::EPSILON * above.sqrt() * below.sqrt();
        self.beside[k].abs() <= size.max(f64::MIN_POSITIVE)
    }

    /// One QR step on the rows from `start` to `end`.
    #[inline(always)]
    fn step(&mut self, start: usize, end: usize) {
        let size = self.vectors.nrows();
        let (d, e) = (&mut self.diagonal[..=end], &mut self.beside[..end]);
        let mut columns = self.vectors.as_mut_slice()[start * size..].chunks_exact_mut(size);
        let Some(mut upper) = columns.next() else {
            return;
        };
        let (mut x, mut bulge) = (d[start] - shift_of(d, e), e[start]);
        for (k, lower) in (start..end).zip(columns) {
            let (c, s, length) = rotation(x, bulge);
            if k > start {
                e[k - 1] = length;
            }
            let (above, beside, below) = (d[k], e[k], d[k + 1]);
            let (p, q) = (c * above + s * beside, c * beside + s * below);
            let (v, w) = (c * beside - s * above, c * below - s * beside);
            d[k] = c * p + s * q;
            d[k + 1] = c * w - s * v;
            e[k] = c * q - s * p;
            x = e[k];
            if k + 1 < end {
                bulge = s * e[k + 1];
                e[k + 1] *= c;
            }
            for (x, y) in upper.iter_mut().zip(lower.iter_mut()) {
                (*x, *y) = (c * *x + s * *y, c * *y - s * *x);
            }
            upper = lower;
        }
    }
}

/// Wilkinson's shift: the eigenvalue of the last two rows that is nearer to the last entry.
#[inline(always)]
fn shift_of(d: &[f64], e: &[f64]) -> f64 {
    let (last, beside) = (d[d.len() - 1], e[e.len() - 1]);
    let ratio = 0.5 * (d[d.len() - 2] - last) / beside;
    last - beside / (ratio + ratio.hypot(1.0).copysign(ratio))
}

/// (c, s, r) with c x + s y = r = √(x² + y²) and c y = s x.
#[inline(always)]
fn rotation(x: f64, y: f64) -> (f64, f64, f64) {
    let square = x * x + y * y;
    let length = if square > 1e-280 {
        square.sqrt()
    } else {
        x.hypot(y)
    };
    if length == 0.0 {
        return (1.0, 0.0, 0.0);
    }
    (x / length, y / length, length)
}

impl WithSimd for &mut Tridiagonal {
    type Output = bool;

    /// Whether the iteration converged.
    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> bool {
        let mut sweeps = SWEEPS_PER_VALUE * self.diagonal.len();
        let mut end = self.diagonal.len().saturating_sub(1);
        while end > 0 {
            if self.is_split(end - 1) {
                end -= 1;
                continue;
            }
            if sweeps == 0 {
                return false;
            }
            sweeps -= 1;
            let mut start = end - 1;
            while start > 0 && !self.is_split(start - 1) {
                start -= 1;
            }
            self.step(start, end);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_diagonalise_the_matrix() {
        for size in [0, 1, 2, 3, 8, 33, 90] {
            let d: Vec<f64> = (0..size).map(|k| ((3 * k * k + 1) as f64).sin()).collect();
            let e: Vec<f64> = (1..size).map(|k| ((5 * k + 2) as f64).cos()).collect();
            let mut matrix = DMatrix::from_diagonal(&d.clone().into());
            for (k, &e) in e.iter().enumerate() {
                (matrix[(k, k + 1)], matrix[(k + 1, k)]) = (e, e);
            }
            let (values, vectors) = Tridiagonal::new(d, e).eigen().unwrap();
            assert!(values.is_sorted());
            let gram = vectors.transpose() * &vectors;
            assert!((gram - DMatrix::identity(size, size)).norm() < 1e-13);
            let images = &vectors * DMatrix::from_diagonal(&values.into());
            assert!((matrix * vectors - images).norm() < 1e-13);
        }
    }

    #[test]
    fn small_eigenvalues_of_a_graded_matrix_survive() {
        // D K D with K = [[2, 1], [1, 2]], D = diag(1, 1e-12): the small value is det/2 = 0.75 * 2e-24.
        let d = 1e-12;
        let (values, _) = Tridiagonal::new(vec![2.0, 2.0 * d * d], vec![d])
            .eigen()
            .unwrap();
        assert!(
            (values[0] / (1.5 * d * d) - 1.0).abs() < 1e-12,
            "{values:?}"
        );
    }

    #[test]
    fn equal_eigenvalues_and_zeros_need_no_sweep() {
        let (values, vectors) = Tridiagonal::new(vec![3.0, 1.0, 3.0], vec![0.0; 2])
            .eigen()
            .unwrap();
        assert_eq!(values, [1.0, 3.0, 3.0]);
        assert_eq!(vectors[(1, 0)], 1.0);
    }
}
