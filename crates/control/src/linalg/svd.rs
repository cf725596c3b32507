//! A singular value decomposition that keeps the small values of graded matrices.

use faer::linalg::matmul::triangular::BlockStructure;
use nalgebra::{ComplexField, DMatrix, DVectorView};

use crate::linalg::kernels::{
    all_finite, gram_lower, gram_vectors, multiply_lower, orthonormalised,
};
use crate::linalg::reflected::ReflectedQr;
use crate::linalg::wide::power_of_two_below;
use crate::linalg::{LinalgError, Scalar};

/// Sweeps after which the Jacobi iteration gives up; five to eight are usual.
const SWEEPS_MAX: usize = 60;

/// M = U diag(σ) V* in its thin form, σ descending. Vectors are formed when they are requested: of
/// most systems only the leading ones are.
#[derive(Debug, Clone)]
pub(crate) struct GradedSvd<T: ComplexField<RealField = f64>> {
    /// Singular values, descending, k = min(m, n) of them.
    pub sigma: Vec<f64>,
    /// Jacobi rotations after the eigenvectors; 0 when those alone kept the digits of every σ.
    pub rotations: usize,
    /// U = Q Y.
    q: ReflectedQr<T>,
    y: DMatrix<T>,
    /// Row `permutation[i]` of V is row i of Z Σ⁻¹.
    unit: DMatrix<T>,
    permutation: Vec<usize>,
    /// The largest cosine between two columns of Z.
    worst_cosine: f64,
}

impl<T: Scalar> GradedSvd<T> {
    /// A decomposition that was found elsewhere.
    #[cfg(feature = "lapack")]
    pub(super) fn new(u: DMatrix<T>, sigma: Vec<f64>, v: DMatrix<T>) -> Self {
        Self {
            y: DMatrix::identity(sigma.len(), sigma.len()),
            q: ReflectedQr::formed(u),
            permutation: (0..v.nrows()).collect(),
            unit: v,
            worst_cosine: 0.0,
            sigma,
            rotations: 0,
        }
    }

    /// The left vectors of the largest `count` values (of all, when there are fewer), m × `count`.
    /// Cost 2 m n products for each.
    pub(crate) fn left(&self, count: usize) -> DMatrix<T> {
        let first = self.y.columns(0, count.min(self.y.ncols()));
        self.q.apply(&first.into_owned())
    }

    /// The right vectors of the largest `count` values (of all, when there are fewer), n × `count`.
    /// A column whose σ is zero is zero.
    pub(crate) fn right(&self, count: usize) -> DMatrix<T> {
        let first = self.unit.columns(0, count.min(self.unit.ncols()));
        let mut vectors = first.into_owned();
        if self.worst_cosine > ORTHOGONAL {
            let kept = self.sigma.iter().take(vectors.ncols());
            let rank = kept.take_while(|&&value| value > 0.0).count();
            vectors = orthonormal(vectors, rank);
        }
        unpivot_rows(&vectors, &self.permutation)
    }
}

/// Inner products of unit vectors below this are left alone.
const ORTHOGONAL: f64 = 1e-12;

/// Columns whose norms span more than this are decomposed in groups: a Gram matrix spans twice as
/// many decades.
const GROUP_SPAN: f64 = 1e-15;

/// Decomposes M so that each σ is accurate relative to itself when M = D₁ K D₂ with diagonal
/// D₁, D₂ and a well-conditioned K, however steep the grading.
///
/// ```text
/// M Π = Q R,   R* Y = Z,   columns of Z orthogonal:   σ_j = ‖z_j‖,   U = Q Y,   V = Π Z Σ⁻¹
/// ```
///
/// Y starts block-diagonal, from the eigenvectors of the Gram matrices of groups of columns of R*
/// whose norms span fifteen decades at most. One-sided Jacobi rotations then correct those pairs of columns that still
/// move a σ: with c = |z_p* z_q|/(‖z_p‖ ‖z_q‖) and ρ = (σ_q/σ_p)², a pair does so by
/// c²/max(1 − ρ, c), compared with n ε. A mild spectrum needs no rotation. A bidiagonalising SVD
/// alone would lose every σ below about 1e-16 σ₁. Cost about 40 n³ flops, and 12 n for each
/// rotation.
///
/// # Errors
/// [`LinalgError::NotFinite`]; [`LinalgError::NotConverged`] after 60 sweeps.
///
/// # References
/// Drmač and Veselić (2008), SIAM J. Matrix Anal. Appl. 29, parts I and II.
pub(crate) fn graded_svd<T: Scalar>(matrix: &DMatrix<T>) -> Result<GradedSvd<T>, LinalgError> {
    if !all_finite(matrix) {
        return Err(LinalgError::NotFinite {
            what: "a matrix to be decomposed",
        });
    }
    let (q, (lower, permutation)) = ReflectedQr::new(matrix);
    let (mut z, mut y) = preconditioned(lower);
    let (found, rotations) = refine(&mut z, &mut y)?;
    let Columns {
        norms: mut sigma,
        mut unit,
        worst_cosine,
    } = found;
    if !sigma.is_sorted_by(|a, b| a >= b) {
        let mut order: Vec<usize> = (0..sigma.len()).collect();
        order.sort_by(|&a, &b| sigma[b].total_cmp(&sigma[a]));
        sigma = order.iter().map(|&j| sigma[j]).collect();
        unit = unit.select_columns(&order);
        y = y.select_columns(&order);
    }
    Ok(GradedSvd {
        sigma,
        rotations,
        q,
        y,
        unit,
        permutation,
        worst_cosine,
    })
}

/// The decomposition of a matrix of any size, scaled to one first: its square could underflow.
///
/// # Errors
/// As [`graded_svd`].
pub(crate) fn scaled_svd<T: Scalar>(mut product: DMatrix<T>) -> Result<GradedSvd<T>, LinalgError> {
    let largest = product
        .iter()
        .map(|&x| ComplexField::norm1(x))
        .fold(0.0, f64::max);
    // A power of two: scaling rounds nothing.
    let scale = power_of_two_below(largest);
    product.scale_mut(scale.recip());
    let mut svd = graded_svd(&product)?;
    svd.sigma.iter_mut().for_each(|value| *value *= scale);
    Ok(svd)
}

/// Makes the first `rank` columns orthonormal, X ← X L⁻* with X* X = L L*. They are so already
/// as far as the σ show; this clears what small vectors still hold of large ones.
fn orthonormal<T: Scalar>(mut x: DMatrix<T>, rank: usize) -> DMatrix<T> {
    if let Some(better) = orthonormalised(&x.columns(0, rank).into_owned()) {
        x.columns_mut(0, rank).copy_from(&better);
    }
    x
}

/// Z = B Y with orthogonal columns inside each group of columns of like norm.
fn preconditioned<T: Scalar>(b: DMatrix<T>) -> (DMatrix<T>, DMatrix<T>) {
    let norms: Vec<f64> = b.column_iter().map(length).collect();
    let group_at = |start: usize| {
        let least = GROUP_SPAN * norms[start];
        let same = norms[start..].iter().take_while(|&&norm| norm > least);
        same.count().max(1)
    };
    if !norms.is_empty() && group_at(0) == norms.len() {
        return orthogonalised(b, norms[0]);
    }
    let mut y = DMatrix::zeros(b.ncols(), b.ncols());
    let mut z = DMatrix::zeros(b.nrows(), b.ncols());
    let mut start = 0;
    while start < norms.len() {
        let count = group_at(start);
        let group = b.columns(start, count).into_owned();
        let (columns, vectors) = orthogonalised(group, norms[start]);
        z.columns_mut(start, count).copy_from(&columns);
        y.view_mut((start, start), (count, count))
            .copy_from(&vectors);
        start += count;
    }
    (z, y)
}

/// Squares of columns whose largest norm lies between these neither overflow nor lose what the
/// smallest of a group add to them.
const SQUARED: std::ops::Range<f64> = 1e-100..1e100;

/// ‖x‖, also where its square would underflow or overflow.
fn length<T: Scalar>(x: DVectorView<'_, T>) -> f64 {
    let norm = x.norm();
    if SQUARED.contains(&norm) {
        return norm;
    }
    let largest = x.iter().map(|&x| x.norm1()).fold(0.0, f64::max);
    let scale = power_of_two_below(largest);
    x.unscale(scale).norm() * scale
}

/// (B Y, Y) with orthogonal columns of B Y, largest first, for a lower triangular B. `head` is the norm of B's largest column.
fn orthogonalised<T: Scalar>(b: DMatrix<T>, head: f64) -> (DMatrix<T>, DMatrix<T>) {
    let vectors = if SQUARED.contains(&head) {
        gram_vectors(&b)
    } else {
        gram_vectors(&b.unscale(head.max(f64::MIN_POSITIVE)))
    };
    match vectors {
        Some(vectors) => (multiply_lower(&b, &vectors), vectors),
        None => {
            let size = b.ncols();
            (b, DMatrix::identity(size, size))
        }
    }
}

/// The columns of a matrix by length and direction.
struct Columns<T> {
    norms: Vec<f64>,
    /// A zero column stays zero.
    unit: DMatrix<T>,
    /// The largest cosine between two columns.
    worst_cosine: f64,
}

/// Rotates pairs of columns until none moves a singular value. Returns the columns that are left,
/// and the number of rotations.
fn refine<T: Scalar>(
    z: &mut DMatrix<T>,
    y: &mut DMatrix<T>,
) -> Result<(Columns<T>, usize), LinalgError> {
    let mut rotations = 0;
    for _ in 0..SWEEPS_MAX {
        let (columns, pairs) = pairs_that_matter(z);
        if pairs.is_empty() {
            return Ok((columns, rotations));
        }
        rotations += pairs.len();
        for pair in pairs {
            if let Some(rotation) = Rotation::between(z, pair) {
                rotation.apply(z);
                rotation.apply(y);
            }
        }
    }
    Err(LinalgError::NotConverged {
        what: "the one-sided Jacobi iteration",
        size: z.ncols(),
        iterations: SWEEPS_MAX,
    })
}

/// The columns, and the pairs of them whose inner product moves a singular value by more than n ε
/// of itself.
fn pairs_that_matter<T: Scalar>(z: &DMatrix<T>) -> (Columns<T>, Vec<(usize, usize)>) {
    let norms: Vec<f64> = z.column_iter().map(length).collect();
    let mut unit = z.clone();
    for (mut column, &norm) in unit.column_iter_mut().zip(&norms) {
        let inverse = norm.recip();
        if inverse.is_finite() {
            column.scale_mut(inverse);
        } else if norm > 0.0 {
            column.unscale_mut(norm);
        }
    }
    let cosines = gram_lower(&unit, BlockStructure::Rectangular, 1.0);
    let threshold = f64::EPSILON * z.ncols().max(8) as f64;
    let mut worst_square = 0.0_f64;
    let mut pairs = Vec::new();
    for (p, column) in cosines.column_iter().enumerate() {
        for (q, &cosine) in column.iter().enumerate().skip(p + 1) {
            let square = nalgebra::ComplexField::modulus_squared(cosine);
            if square <= threshold * threshold {
                continue;
            }
            worst_square = worst_square.max(square);
            let ratio = norms[p].min(norms[q]) / norms[p].max(norms[q]);
            let gap = 1.0 - ratio * ratio;
            if square > threshold * gap.max(square.sqrt()) {
                pairs.push((p, q));
            }
        }
    }
    let worst_cosine = worst_square.sqrt();
    let columns = Columns {
        norms,
        unit,
        worst_cosine,
    };
    (columns, pairs)
}

/// Row `permutation[i]` of the result is row i of the argument.
fn unpivot_rows<T: Scalar>(a: &DMatrix<T>, permutation: &[usize]) -> DMatrix<T> {
    let mut out = a.clone();
    for (mut to, from) in out.column_iter_mut().zip(a.column_iter()) {
        for (&place, &entry) in permutation.iter().zip(from.iter()) {
            to[place] = entry;
        }
    }
    out
}

/// One Jacobi rotation of two columns.
struct Rotation<T> {
    columns: (usize, usize),
    cosine: f64,
    /// The sine with the phase e^{iφ} of x*y.
    sine: T,
}

impl<T: Scalar> Rotation<T> {
    /// The one that makes two columns of Y orthogonal; `None` where they are.
    fn between(y: &DMatrix<T>, columns: (usize, usize)) -> Option<Self> {
        let (p, q) = columns;
        let (norm_p, norm_q) = (length(y.column(p)), length(y.column(q)));
        if norm_p == 0.0 || norm_q == 0.0 {
            return None;
        }
        // x*y/(‖x‖ ‖y‖)
        let product = match SQUARED.contains(&norm_p) && SQUARED.contains(&norm_q) {
            true => y
                .column(p)
                .dotc(&y.column(q))
                .unscale(norm_p)
                .unscale(norm_q),
            false => y
                .column(p)
                .unscale(norm_p)
                .dotc(&y.column(q).unscale(norm_q)),
        };
        let modulus = product.modulus();
        if modulus == 0.0 {
            return None;
        }
        let phase = product.unscale(modulus);
        // tan 2θ = 2|x*y| / (‖x‖² − ‖y‖²), written without squares that could underflow.
        let zeta = (norm_q / norm_p - norm_p / norm_q) / (2.0 * modulus);
        let t = zeta.signum() / (zeta.abs() + zeta.hypot(1.0));
        let cosine = 1.0 / t.hypot(1.0);
        Some(Self {
            columns,
            cosine,
            sine: phase.scale(cosine * t),
        })
    }

    /// (x, y) ← (c x − s e^{−iφ} y, s e^{iφ} x + c y).
    fn apply(&self, a: &mut DMatrix<T>) {
        let backward = self.sine.conjugate();
        let (mut x, mut y) = a.columns_range_pair_mut(self.columns.0, self.columns.1);
        for (x, y) in x.iter_mut().zip(y.iter_mut()) {
            let kept = *x;
            *x = kept.scale(self.cosine) - backward * *y;
            *y = self.sine * kept + y.scale(self.cosine);
        }
    }
}

#[cfg(test)]
mod tests {
    use num_complex::Complex64;

    use super::*;

    #[test]
    fn the_factors_rebuild_a_complex_matrix_of_any_shape() {
        for (rows, columns) in [(6, 6), (8, 5), (5, 8)] {
            let a = DMatrix::from_fn(rows, columns, |i, j| {
                Complex64::new(((i * 5 + j) as f64).sin(), ((i + 3 * j) as f64).cos())
            });
            let svd = graded_svd(&a).unwrap();
            let sigma = DMatrix::from_diagonal(&nalgebra::DVector::from_iterator(
                svd.sigma.len(),
                svd.sigma.iter().map(|&s| Complex64::from(s)),
            ));
            let (u, v) = (svd.left(svd.sigma.len()), svd.right(svd.sigma.len()));
            assert!((u * sigma * v.adjoint() - a).norm() < 1e-13);
            assert!(svd.sigma.windows(2).all(|pair| pair[0] >= pair[1]));
        }
    }

    #[test]
    fn tiny_values_of_a_graded_matrix_survive() {
        // D K D with K = [[2, 1], [1, 2]] and D = diag(1, 1e-20): σ₁ ≈ 2, σ₂ = det/σ₁ = 1.5e-40.
        let d = 1e-20;
        let a = DMatrix::from_row_slice(2, 2, &[2.0, d, d, 2.0 * d * d]);
        let sigma = graded_svd(&a).unwrap().sigma;
        assert!((sigma[1] / 1.5e-40 - 1.0).abs() < 1e-14, "{sigma:?}");
    }

    #[test]
    fn columns_of_like_length_are_turned_sooner() {
        // A cosine c moves values whose squares are g apart by c²/2g of themselves.
        let turned = |gap: f64, cosine: f64| {
            let sine = (1.0 - cosine * cosine).sqrt();
            let short = (1.0 - gap).sqrt();
            let z = DMatrix::from_row_slice(2, 2, &[1.0, short * cosine, 0.0, short * sine]);
            pairs_that_matter(&z).1
        };
        assert_eq!(turned(1e-3, 1e-6), [(0, 1)]);
        assert_eq!(turned(1e-3, 1e-9), []);
        assert_eq!(turned(0.75, 1e-6), [(0, 1)]);
        assert_eq!(turned(0.75, 1e-8), []);
        assert_eq!(turned(0.0, 1e-14), [(0, 1)]);
        assert_eq!(turned(0.0, 1e-16), []);
    }

    #[test]
    fn columns_too_short_for_a_reciprocal_have_a_direction() {
        // 1e-310 (0.6, 0.8), to the digits that such a number has.
        let z = DMatrix::from_row_slice(2, 3, &[1.0, 0.6e-310, 0.0, 0.0, 0.8e-310, 0.0]);
        let Columns { unit, .. } = pairs_that_matter(&z).0;
        assert!((unit.column(1) - nalgebra::Vector2::new(0.6, 0.8)).norm() < 1e-12);
        assert_eq!(unit.column(2).norm(), 0.0);
    }

    #[test]
    fn zero_matrices_and_zero_columns_have_zero_values() {
        for size in [1, 2, 5, 40, 67] {
            let mut a = DMatrix::<f64>::zeros(size, size);
            assert_eq!(graded_svd(&a).unwrap().sigma, vec![0.0; size]);
            a[(size - 1, size / 2)] = 3.0;
            let svd = graded_svd(&a).unwrap();
            assert!((svd.sigma[0] - 3.0).abs() < 1e-15);
            assert!(svd.sigma[1..].iter().all(|&value| value == 0.0), "{size}");
            let complex = a.map(num_complex::Complex64::from);
            let sigma = graded_svd(&complex).unwrap().sigma;
            assert!(sigma[1..].iter().all(|&value| value == 0.0), "{size}");
        }
    }

    #[test]
    fn a_matrix_with_nan_is_an_error_and_not_a_hang() {
        let a = DMatrix::from_element(3, 3, f64::NAN);
        assert!(matches!(graded_svd(&a), Err(LinalgError::NotFinite { .. })));
    }
}
