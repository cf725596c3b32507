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
    /// The first row of each QR step and the number of its rotations.
    steps: Vec<(usize, usize)>,
    /// (c, s) of all rotations. They are applied once all are known: vectors then pass through the
    /// cache a few at a time, and not all of them in every step.
    rotations: Vec<(f64, f64)>,
}

impl Tridiagonal {
    /// # Panics
    /// Unless `beside` is one shorter than `diagonal`, or both are empty.
    pub(super) fn new(diagonal: Vec<f64>, beside: Vec<f64>) -> Self {
        let size = diagonal.len();
        assert_eq!(beside.len(), size.saturating_sub(1));
        Self {
            diagonal,
            beside,
            steps: Vec::with_capacity(2 * size),
            // Two steps for a value, and half of the rows in each on average.
            rotations: Vec::with_capacity(size * size),
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
    /// routine `dsteqr` for the test on e_k; Van Zee, van de Geijn and Quintana-Ortí,
    /// *Restructuring the tridiagonal and bidiagonal QR algorithms for performance*, ACM Trans.
    /// Math. Softw. 40 (2014), for keeping the rotations.
    pub(super) fn eigen(mut self) -> Option<(Vec<f64>, DMatrix<f64>)> {
        if !self.iterate() {
            return None;
        }
        let mut order: Vec<usize> = (0..self.diagonal.len()).collect();
        order.sort_by(|&a, &b| self.diagonal[a].total_cmp(&self.diagonal[b]));
        let values = order.iter().map(|&k| self.diagonal[k]).collect();
        let vectors = Arch::new().dispatch(Vectors {
            of: &self,
            order: &order,
        });
        Some((values, vectors))
    }

    /// Whether the iteration converged.
    fn iterate(&mut self) -> bool {
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

    fn is_split(&self, k: usize) -> bool {
        let (above, below) = (self.diagonal[k].abs(), self.diagonal[k + 1].abs());
        let (beside, product) = (self.beside[k], above * below);
        if product > SQUARED_MIN {
            return beside * beside <= f64::EPSILON * f64::EPSILON * product;
        }
        let size = f64::EPSILON * above.sqrt() * below.sqrt();
        beside.abs() <= size.max(f64::MIN_POSITIVE)
    }

    /// One QR step on the rows from `start` to `end`.
    fn step(&mut self, start: usize, end: usize) {
        let (d, e) = (&mut self.diagonal[..=end], &mut self.beside[..end]);
        let (mut x, mut bulge) = (d[start] - shift_of(d, e), e[start]);
        for k in start..end {
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
            self.rotations.push((c, s));
        }
        self.steps.push((start, end - start));
    }
}

/// Below this a product of two entries is compared by its roots, since its square times ε² could
/// underflow.
const SQUARED_MIN: f64 = 1e-250;

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

/// Vectors that are turned at a time, in registers: four of the machine's vectors for each row.
const WIDTH: usize = 4;

/// The columns `order` of the product of all rotations.
struct Vectors<'a> {
    of: &'a Tridiagonal,
    order: &'a [usize],
}

impl WithSimd for Vectors<'_> {
    type Output = DMatrix<f64>;

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) -> DMatrix<f64> {
        let size = self.of.diagonal.len();
        let mut vectors = DMatrix::zeros(size, self.order.len());
        let zero = simd.splat_f64s(0.0);
        let mut rows = vec![[zero; WIDTH]; size];
        let lanes = WIDTH * S::F64_LANES;
        let columns = vectors.as_mut_slice().chunks_mut((lanes * size).max(1));
        for (columns, places) in columns.zip(self.order.chunks(lanes)) {
            rows.fill([zero; WIDTH]);
            let numbers: &mut [f64] = pulp::bytemuck::cast_slice_mut(&mut rows);
            for (lane, &place) in places.iter().enumerate() {
                numbers[place * lanes + lane] = 1.0;
            }
            turn(simd, self.of, &mut rows);
            let numbers: &[f64] = pulp::bytemuck::cast_slice(&rows);
            for (lane, column) in columns.chunks_mut(size).enumerate() {
                for (entry, row) in column.iter_mut().zip(numbers.chunks_exact(lanes)) {
                    *entry = row[lane];
                }
            }
        }
        vectors
    }
}

/// The product of all rotations with a few columns, whose rows are `rows`: the last rotation first.
#[inline(always)]
fn turn<S: Simd>(simd: S, of: &Tridiagonal, rows: &mut [[S::f64s; WIDTH]]) {
    let mut rotations = of.rotations.as_slice();
    for &(start, count) in of.steps.iter().rev() {
        let (before, step) = rotations.split_at(rotations.len() - count);
        rotations = before;
        let rows = &mut rows[start..=start + count];
        let mut lower = rows[count];
        for (k, &(c, s)) in step.iter().enumerate().rev() {
            let (c, s, negative) = (simd.splat_f64s(c), simd.splat_f64s(s), simd.splat_f64s(-s));
            let upper = rows[k];
            let mut turned = upper;
            for lane in 0..WIDTH {
                let (u, l) = (upper[lane], lower[lane]);
                turned[lane] = simd.mul_add_e_f64s(s, u, simd.mul_f64s(c, l));
                lower[lane] = simd.mul_add_e_f64s(c, u, simd.mul_f64s(negative, l));
            }
            rows[k + 1] = turned;
        }
        rows[0] = lower;
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
    fn eigenvalues_of_the_smallest_matrices_are_those_of_large_ones() {
        let eigenvalues = |scale: f64| {
            let d = (0..12).map(|k| scale * ((3 * k * k + 1) as f64).sin());
            let e = (1..12).map(|k| scale * ((5 * k + 2) as f64).cos());
            let (values, _) = Tridiagonal::new(d.collect(), e.collect()).eigen().unwrap();
            values
        };
        let scale = 2.0_f64.powi(-520);
        for (small, large) in eigenvalues(scale).iter().zip(eigenvalues(1.0)) {
            assert!((small / scale - large).abs() < 1e-14, "{small:e} {large}");
        }
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
