//! Pivoted Cholesky of a Cauchy-like matrix with one complex generator.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::control::plane::{Placed, Plane};

/// A row that has not been a pivot.
struct ActiveRow {
    place: usize,
    pole: Placed,
    generator: Complex64,
    /// 1/√(decay of the node).
    reach: f64,
}

impl ActiveRow {
    /// The root of the diagonal entry, for choosing the pivot.
    fn size(&self) -> f64 {
        self.generator.l1_norm() * self.reach
    }
}

/// F with F F* = (g_i ḡ_j / gap(i, j)), the gap as in [`Plane::sum_gap`] of one pole and the conjugate
/// of the other. See [`crate::control::complex_gramian_factors`] for the formulas.
pub(super) fn complex_factor(
    plane: Plane,
    nodes: &[Complex64],
    g: Vec<Complex64>,
) -> DMatrix<Complex64> {
    let n = nodes.len();
    let rows = nodes.iter().zip(g).enumerate();
    let mut rows: Vec<ActiveRow> = rows
        .map(|(place, (&node, generator))| ActiveRow {
            place,
            pole: plane.placed(node),
            generator,
            reach: plane.decay(node).sqrt().recip(),
        })
        .collect();
    let mut factor = DMatrix::zeros(n, n);
    let mut rank = 0;
    let mut pivot = largest_row(&rows);
    while let Some(k) = pivot {
        let chosen = rows.remove(k);
        let root = plane.decay(chosen.pole.node).sqrt();
        let mirrored = chosen.pole.node.conj();
        let mut column = factor.column_mut(rank);
        let t = chosen.generator / plane.sum_gap(chosen.pole.node, mirrored);
        column[chosen.place] = t * root;
        for row in &mut rows {
            let t = row.generator / plane.sum_gap(row.pole.node, mirrored);
            column[row.place] = t * root;
            row.generator = t * plane.difference(row.pole, chosen.pole);
        }
        pivot = largest_row(&rows);
        rank += 1;
    }
    factor.resize_horizontally(rank, Complex64::ZERO)
}

/// The row with the largest diagonal entry, if any is not zero.
fn largest_row(rows: &[ActiveRow]) -> Option<usize> {
    let mut best = (None, 0.0);
    for (i, row) in rows.iter().enumerate() {
        let size = row.size();
        if size > best.1 {
            best = (Some(i), size);
        }
    }
    best.0
}
