//! The elimination of [`generators`](super::generators) in double precision, with an estimate of
//! its own error.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::control::generators::Eliminate;
use crate::control::plane::{Placed, Plane};
use crate::linalg::WideComplex;
use crate::ssm::Time;

/// Above this estimate the columns are not used. Errors of Hankel values stay below about ten
/// times this.
const ACCEPTED: f64 = 1e-13;

/// Above this many radians per step e^{λΔ} itself has lost digits.
const ANGLE_MAX: f64 = 8.0;

/// Elimination in double precision.
///
/// Beside each entry stands the variance of its error, every operation taken to add one unit
/// roundoff in the square: cancellation shows as a variance that stays while the entry shrinks. An
/// entry of L (F with unit diagonal) is off by the error of its row over the size of the pivot.
pub(super) struct Quick {
    plane: Plane,
    nodes: Vec<Placed>,
    width: usize,
    rows: Vec<Complex64>,
    /// In units of the square of the unit roundoff.
    variances: Vec<f64>,
    /// √(1 − |a|²) of each node.
    roots: Vec<f64>,
    active: Vec<bool>,
    /// The largest error of an entry of L so far, in units of the roundoff.
    worst: f64,
}

impl Quick {
    pub(super) fn new(time: Time, nodes: &[Complex64], rows: &DMatrix<Complex64>) -> Self {
        let plane = Plane::of(time);
        let entries: Vec<Complex64> = rows.transpose().iter().copied().collect();
        let angle = match time {
            Time::Continuous => 0.0,
            Time::Discrete { step } => nodes
                .iter()
                .map(|node| (node.im * step).abs())
                .fold(0.0, f64::max),
        };
        Self {
            plane,
            nodes: nodes.iter().map(|&node| plane.placed(node)).collect(),
            width: rows.ncols(),
            // The inputs are exact, and squares must stay in range.
            worst: if angle < ANGLE_MAX && in_range(&entries) {
                0.0
            } else {
                f64::INFINITY
            },
            variances: vec![0.0; entries.len()],
            rows: entries,
            roots: nodes.iter().map(|&node| plane.decay(node).sqrt()).collect(),
            active: vec![true; nodes.len()],
        }
    }

    /// Whether the columns so far are as accurate as those of the wide elimination.
    pub(super) fn is_accurate(&self) -> bool {
        self.worst * f64::EPSILON < ACCEPTED
    }

    fn size(&self, i: usize) -> f64 {
        let row = &self.rows[i * self.width..(i + 1) * self.width];
        row.iter().map(|g| g.norm_sqr()).sum::<f64>().sqrt() / self.roots[i]
    }

    fn error(&self, i: usize) -> f64 {
        let row = &self.variances[i * self.width..(i + 1) * self.width];
        row.iter().sum::<f64>().sqrt() / self.roots[i]
    }

    fn rotate_onto_first(&mut self, k: usize) {
        let first = k * self.width;
        for j in 1..self.width {
            let (x, y) = (self.rows[first], self.rows[first + j]);
            if y == Complex64::ZERO {
                continue;
            }
            let norm = (x.norm_sqr() + y.norm_sqr()).sqrt();
            let (c, s) = (x / norm, y / norm);
            let (cc, ss) = (c.norm_sqr(), s.norm_sqr());
            for i in (0..self.active.len()).filter(|&i| self.active[i]) {
                let (p, q) = (i * self.width, i * self.width + j);
                let (x, y) = (self.rows[p], self.rows[q]);
                let (u, v) = (
                    self.variances[p] + x.norm_sqr(),
                    self.variances[q] + y.norm_sqr(),
                );
                self.rows[p] = x * c.conj() + y * s.conj();
                self.rows[q] = y * c - x * s;
                self.variances[p] = cc * u + ss * v;
                self.variances[q] = cc * v + ss * u;
            }
        }
    }
}

fn in_range(entries: &[Complex64]) -> bool {
    entries
        .iter()
        .map(|g| g.norm())
        .all(|size| size == 0.0 || (1e-100..1e100).contains(&size))
}

impl Eliminate for Quick {
    /// `None` also when the elimination has lost its accuracy: what is left is not worth it.
    fn pivot(&mut self) -> Option<usize> {
        let mut best = None;
        let mut largest = 0.0;
        let mut error = 0.0_f64;
        for i in (0..self.active.len()).filter(|&i| self.active[i]) {
            let size = self.size(i);
            error = error.max(self.error(i));
            if size > largest {
                largest = size;
                best = Some(i);
            }
        }
        // Rows that should have vanished are all error, however small.
        if error > 0.0 {
            self.worst = self.worst.max(error / largest);
        }
        best.filter(|_| self.is_accurate())
    }

    fn eliminate(&mut self, k: usize) -> Option<Vec<WideComplex>> {
        let size = self.size(k);
        let error = self.error(k);
        if size == 0.0 && error == 0.0 {
            self.active[k] = false;
            return None;
        }
        self.worst = self.worst.max(error / size);
        self.rotate_onto_first(k);
        let mut column = vec![WideComplex::ZERO; self.active.len()];
        for i in (0..self.active.len()).filter(|&i| self.active[i]) {
            let place = i * self.width;
            let (own, pivot) = (self.nodes[i], self.nodes[k]);
            let t = self.rows[place] / self.plane.sum_gap(own.node, pivot.node.conj());
            let factor = self.plane.difference(own, pivot);
            column[i] = (t * self.roots[k]).into();
            let before = self.rows[place].norm_sqr();
            self.rows[place] = t * factor;
            let after = self.rows[place].norm_sqr();
            let shrunk = if before > 0.0 { after / before } else { 1.0 };
            self.variances[place] = shrunk * self.variances[place] + 4.0 * after;
        }
        self.active[k] = false;
        Some(column)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::generators::Elimination;

    const TIME: Time = Time::Discrete { step: 0.1 };

    fn rows(size: usize) -> DMatrix<Complex64> {
        DMatrix::from_fn(size, 3, |i, j| {
            Complex64::new(
                ((7 * i + 3 * j * j + 1) as f64).sin(),
                ((2 * i * j + i) as f64).cos(),
            )
        })
    }

    #[test]
    fn both_eliminations_give_the_same_columns_for_poles_that_stand_apart() {
        let nodes: Vec<Complex64> = (0..24)
            .map(|i| Complex64::new(-0.5, 3.0 * f64::from(i)))
            .collect();
        let mut quick = Quick::new(TIME, &nodes, &rows(24));
        let mut wide = Elimination::new(TIME, &nodes, &rows(24));
        while let Some(k) = wide.pivot() {
            let expected = wide.eliminate(k).unwrap();
            let found = quick.eliminate(k).unwrap();
            let size = expected.iter().map(|x| x.norm()).fold(0.0, f64::max);
            for (x, y) in found.iter().zip(&expected) {
                assert!((*x - *y).norm() < 1e-13 * size);
            }
        }
        assert!(quick.is_accurate());
    }

    #[test]
    fn the_estimate_of_the_error_covers_it_and_is_not_far_above() {
        // The closer the poles and the more alike their rows, the more cancels.
        for (apart, alike) in [
            (3.0, 1.0),
            (0.3, 1.0),
            (0.03, 0.1),
            (3e-3, 0.1),
            (0.3, 1e-4),
        ] {
            let node = |i: usize| Complex64::new(-0.5, apart * i as f64);
            let nodes: Vec<Complex64> = (0..12).map(node).collect();
            let mut own = rows(12);
            for i in 1..12 {
                let near = own.row(0) + own.row(i) * Complex64::from(alike);
                own.set_row(i, &near);
            }
            let mut quick = Quick::new(TIME, &nodes, &own);
            let mut wide = Elimination::new(TIME, &nodes, &own);
            let mut worst = 0.0_f64;
            while let Some(k) = wide.pivot().filter(|_| quick.worst < 1e6) {
                let expected = wide.eliminate(k).unwrap();
                let found = quick.eliminate(k).unwrap();
                let errors = found.iter().zip(&expected).map(|(x, y)| (*x - *y).norm());
                worst = worst.max(errors.fold(0.0, f64::max) / expected[k].norm());
            }
            let estimate = quick.worst * f64::EPSILON;
            assert!(
                worst <= 2.0 * estimate,
                "{apart} {alike}: {worst} {estimate}"
            );
            assert!(
                estimate <= 2e3 * worst,
                "{apart} {alike}: {worst} {estimate}"
            );
        }
    }

    #[test]
    fn a_cluster_with_almost_parallel_rows_is_left_to_the_wide_elimination() {
        let nodes: Vec<Complex64> = (0..6)
            .map(|i| Complex64::new(-0.5, 3.0 + 1e-6 * f64::from(i)))
            .collect();
        let mut parallel = rows(6);
        for i in 1..6 {
            let row = parallel.row(0) * Complex64::from(1.0 + i as f64 / 3.0);
            parallel.set_row(i, &row);
        }
        let mut quick = Quick::new(TIME, &nodes, &parallel);
        while let Some(k) = quick.pivot() {
            quick.eliminate(k);
        }
        assert!(!quick.is_accurate());
    }

    fn parallel_rows_of_close_poles() -> Quick {
        let nodes = [3.0, 3.0 + 1e-12].map(|im| Complex64::new(-0.5, im));
        let row = rows(2).row(0).into_owned();
        let parallel = DMatrix::from_rows(&[row.clone(), row * Complex64::from(0.7)]);
        Quick::new(TIME, &nodes, &parallel)
    }

    #[test]
    fn what_is_left_of_rows_that_should_have_vanished_is_no_pivot() {
        let mut quick = parallel_rows_of_close_poles();
        assert_eq!(quick.pivot(), Some(0));
        assert!(quick.eliminate(0).is_some() && quick.is_accurate());
        assert_eq!(quick.pivot(), None);
        assert!(!quick.is_accurate());
    }

    #[test]
    fn of_like_rows_that_of_the_slower_pole_is_the_pivot() {
        let nodes = [Complex64::new(-2.0, 1.0), Complex64::new(-0.01, 9.0)];
        let alike = DMatrix::from_rows(&[rows(2).row(0), rows(2).row(0)]);
        for nodes in [nodes, [nodes[1], nodes[0]]] {
            let slower = nodes.iter().position(|node| node.re == -0.01);
            assert_eq!(Quick::new(TIME, &nodes, &alike).pivot(), slower);
        }
    }

    #[test]
    fn a_row_that_is_all_error_is_seen_as_the_second_of_a_pair_too() {
        let mut quick = parallel_rows_of_close_poles();
        assert!(quick.eliminate(0).is_some() && quick.is_accurate());
        quick.eliminate(1);
        assert!(!quick.is_accurate());
    }

    #[test]
    fn many_turns_per_step_are_left_to_the_wide_elimination() {
        let nodes = [Complex64::new(-0.5, 3e4)];
        assert!(!Quick::new(TIME, &nodes, &rows(1)).is_accurate());
        let huge = DMatrix::from_element(1, 1, Complex64::from(1e200));
        assert!(!Quick::new(TIME, &[Complex64::new(-0.5, 3.0)], &huge).is_accurate());
    }
}
