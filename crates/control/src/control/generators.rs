//! Gramian factors of systems with several inputs or outputs, by elimination on generators.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::linalg::{Wide, WideComplex, power_of_two_below};
use crate::ssm::Time;

/// A difference of two products below this part of them is rounding, and zero without it.
/// The working precision is 2⁻¹⁰⁴.
const CANCELLED: f64 = 1.0 / (1_u128 << 98) as f64;

/// Below this part of its terms a difference of poles is taken from the exponents instead.
const CLOSE: f64 = 1.0 / (1_u32 << 24) as f64;

/// Cholesky by columns, with the pivots chosen by the caller.
pub(super) trait Eliminate {
    /// The active row whose diagonal entry |g_i|² / (1 − |a_i|²) is largest, if any is not zero.
    fn pivot(&mut self) -> Option<usize>;

    /// The column of pivot k, which leaves the active rows; `None` when its row is zero.
    fn eliminate(&mut self, k: usize) -> Option<Vec<WideComplex>>;
}

/// Cholesky elimination of W = F F*, column by column, for the positive semidefinite W of poles λ
/// and rows g.
///
/// ```text
/// continuous:  W_ij = g_i g_j* / −(λ_i + λ̄_j)        discrete:  W_ij = g_i g_j* / (1 − a_i ā_j)
/// ```
///
/// W_ij is the inner product of the row functions g_i/(s − λ_i). What is orthogonal to the pivot's
/// function is Θ times such functions, with the inner matrix Θ that is one except along g_k,
/// where it is the Blaschke factor of λ_k. So a unitary rotation of all rows that takes g_k to
/// (r, 0, …, 0) leaves an elimination with one input:
///
/// ```text
/// t_i = g_i1 / −(λ_i + λ̄_k),   F_ik = t_i √(−2 Re λ_k),   g_i1 ← t_i (λ_i − λ_k)
/// t_i = g_i1 / (1 − a_i ā_k),   F_ik = t_i √(1 − |a_k|²),   g_i1 ← t_i (a_i − a_k)
/// ```
///
/// With one input there are only products and quotients. With more, the rotation adds entries of
/// the rows, and rows that are almost parallel cancel: that loss is in the numbers themselves,
/// and no ordering avoids it. So the rows are carried with 106 bits and rotated by Givens
/// rotations, whose entries x y₂ − y x₂ keep their own scale. Entries of F are accurate relative
/// to themselves as long as the cancellations along the way do not exceed about 10¹⁶.
///
/// A row in the span of the rows before it at the same pole becomes exactly zero and takes no
/// column. Cost n² m/2 rotations of 106-bit numbers, about 400 flops each.
///
/// # References
/// Kailath and Sayed, *Displacement structure: theory and applications*, SIAM Review 37 (1995),
/// sections 4 and 7 (generators in proper form); Potapov's factor in the same place.
pub(super) struct Elimination<'a> {
    poles: Poles<'a>,
    rows: Rows,
    active: Vec<bool>,
}

impl<'a> Elimination<'a> {
    pub(super) fn new(time: Time, nodes: &'a [Complex64], rows: &DMatrix<Complex64>) -> Self {
        Self {
            poles: Poles::new(time, nodes),
            rows: Rows::new(rows),
            active: vec![true; nodes.len()],
        }
    }
}

impl Eliminate for Elimination<'_> {
    fn pivot(&mut self) -> Option<usize> {
        let mut best = None;
        let mut largest = 0.0;
        for i in (0..self.active.len()).filter(|&i| self.active[i]) {
            let size = self.rows.norm(i) / self.poles.roots[i];
            if size > largest {
                largest = size;
                best = Some(i);
            }
        }
        best
    }

    fn eliminate(&mut self, k: usize) -> Option<Vec<WideComplex>> {
        let active = std::mem::take(&mut self.active);
        let mut column = vec![WideComplex::ZERO; active.len()];
        let is_zero = self.rows.norm(k) == 0.0;
        if !is_zero {
            self.rows.rotate_onto_first(k, &active);
            let root = self.poles.decay(k).sqrt();
            for i in (0..active.len()).filter(|&i| active[i]) {
                let first = self.rows.first(i);
                if !first.is_zero() {
                    let t = *first / self.poles.sum_gap(i, k);
                    column[i] = t.scale_wide(root);
                    *first = t * self.poles.difference(i, k);
                }
            }
        }
        self.active = active;
        self.active[k] = false;
        (!is_zero).then_some(column)
    }
}

/// The rows g_i, one after the other.
struct Rows {
    width: usize,
    entries: Vec<WideComplex>,
}

impl Rows {
    fn new(rows: &DMatrix<Complex64>) -> Self {
        let entries = rows.row_iter().flat_map(|row| {
            let row: Vec<WideComplex> = row.iter().map(|&g| g.into()).collect();
            row
        });
        Self {
            width: rows.ncols(),
            entries: entries.collect(),
        }
    }

    fn row(&self, i: usize) -> &[WideComplex] {
        &self.entries[i * self.width..(i + 1) * self.width]
    }

    /// Only rows that are not zero have a first entry; a system without inputs has no such row.
    fn first(&mut self, i: usize) -> &mut WideComplex {
        &mut self.entries[i * self.width]
    }

    fn norm(&self, i: usize) -> f64 {
        let largest = self.row(i).iter().map(|g| g.norm()).fold(0.0, f64::max);
        if largest == 0.0 {
            return 0.0;
        }
        let scale = 1.0 / power_of_two_below(largest);
        let squares = self.row(i).iter().map(|g| (g.norm() * scale).powi(2));
        squares.sum::<f64>().sqrt() / scale
    }

    /// Rotates all active rows so that row k becomes (r, 0, …, 0).
    fn rotate_onto_first(&mut self, k: usize, active: &[bool]) {
        for j in 1..self.width {
            let (x, y) = (self.row(k)[0], self.row(k)[j]);
            if y.is_zero() {
                continue;
            }
            let rotation = Rotation::new(x, y);
            for i in (0..active.len()).filter(|&i| active[i]) {
                let start = i * self.width;
                let (x, y) = (self.entries[start], self.entries[start + j]);
                (self.entries[start], self.entries[start + j]) = rotation.apply(x, y);
            }
        }
    }
}

/// (x, y) ← (x c̄ + y s̄, y c − x s) with (c, s) = (x_k, y_k)/r: unitary, and (r, 0) for row k.
struct Rotation {
    c: WideComplex,
    s: WideComplex,
}

impl Rotation {
    fn new(x: WideComplex, y: WideComplex) -> Self {
        let scale = 1.0 / power_of_two_below(x.norm().max(y.norm()));
        let (x, y) = (x.scale(scale), y.scale(scale));
        let inverse = Wide::from(1.0) / (x.norm_sqr() + y.norm_sqr()).sqrt();
        Self {
            c: x.scale_wide(inverse),
            s: y.scale_wide(inverse),
        }
    }

    fn apply(&self, x: WideComplex, y: WideComplex) -> (WideComplex, WideComplex) {
        let along = x * self.c.conj() + y * self.s.conj();
        let (kept, taken) = (y * self.c, x * self.s);
        let across = kept - taken;
        if across.norm() <= CANCELLED * (kept.norm() + taken.norm()) {
            return (along, WideComplex::ZERO);
        }
        (along, across)
    }
}

/// Differences of poles with 106 bits.
struct Poles<'a> {
    time: Time,
    nodes: &'a [Complex64],
    /// a − 1 in discrete time; empty in continuous time.
    shifted: Vec<WideComplex>,
    /// √(−2 Re λ) or √(1 − |a|²), to double precision.
    roots: Vec<f64>,
}

impl<'a> Poles<'a> {
    fn new(time: Time, nodes: &'a [Complex64]) -> Self {
        let mut poles = Self {
            time,
            nodes,
            shifted: Vec::new(),
            roots: Vec::new(),
        };
        if let Time::Discrete { step } = time {
            let shifted = nodes
                .iter()
                .map(|&z| WideComplex::product(z, step).exp_m1());
            poles.shifted = shifted.collect();
        }
        let roots = (0..nodes.len()).map(|k| poles.decay(k).sqrt().to_f64());
        poles.roots = roots.collect();
        poles
    }

    /// −2 Re λ, or 1 − |a|².
    fn decay(&self, k: usize) -> Wide {
        let lambda = self.nodes[k];
        match self.time {
            Time::Continuous => Wide::from(-2.0 * lambda.re),
            Time::Discrete { step } => {
                let z = WideComplex::product(lambda, step);
                -z.re.scale(2.0).exp_m1()
            }
        }
    }

    /// −(λ_i + λ̄_k), or 1 − a_i ā_k.
    fn sum_gap(&self, i: usize, k: usize) -> WideComplex {
        let (x, y) = (
            WideComplex::from(self.nodes[i]),
            WideComplex::from(self.nodes[k]).conj(),
        );
        let Time::Discrete { step } = self.time else {
            return -(x + y);
        };
        let (a, b) = (self.shifted[i], self.shifted[k].conj());
        let gap = -(a + b + a * b);
        if gap.norm() > CLOSE * (a.norm() + b.norm()) {
            return gap;
        }
        -(x + y).scale_wide(Wide::from(step)).exp_m1()
    }

    /// λ_i − λ_k, or a_i − a_k; from the slower of two close poles, so that nothing overflows.
    fn difference(&self, i: usize, k: usize) -> WideComplex {
        let (x, y) = (
            WideComplex::from(self.nodes[i]),
            WideComplex::from(self.nodes[k]),
        );
        let Time::Discrete { step } = self.time else {
            return x - y;
        };
        let (a, b) = (self.shifted[i], self.shifted[k]);
        if (a - b).norm() > CLOSE * (a.norm() + b.norm()) {
            return a - b;
        }
        let exp = |node| WideComplex::product(node, step).exp();
        let expm1 = |z: WideComplex| z.scale_wide(Wide::from(step)).exp_m1();
        if self.nodes[i].re > self.nodes[k].re {
            -(exp(self.nodes[i]) * expm1(y - x))
        } else {
            exp(self.nodes[k]) * expm1(x - y)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMES: [Time; 2] = [Time::Continuous, Time::Discrete { step: 0.3 }];

    fn nodes() -> Vec<Complex64> {
        let nodes = [
            (-0.5, 3.1),
            (-0.4, 0.0),
            (-1.5, -7.0),
            (-0.1, 0.2),
            (-0.1, 0.2),
        ];
        nodes.map(|(re, im)| Complex64::new(re, im)).to_vec()
    }

    fn rows() -> DMatrix<Complex64> {
        let mut rows = DMatrix::from_fn(5, 3, |i, j| {
            Complex64::new(
                ((7 * i + 3 * j * j + 1) as f64).sin(),
                ((i * j + i) as f64).cos(),
            )
        });
        // A zero row, and one in the span of another at the same pole.
        rows.row_mut(1).fill(Complex64::ZERO);
        let twice = rows.row(3) * Complex64::from(2.0);
        rows.set_row(4, &twice);
        rows
    }

    /// 1 − a_i ā_k, or −(λ_i + λ̄_k).
    fn gap(time: Time, x: Complex64, y: Complex64) -> Complex64 {
        match time {
            Time::Continuous => -(x + y.conj()),
            Time::Discrete { step } => 1.0 - ((x + y.conj()) * step).exp(),
        }
    }

    #[test]
    fn the_columns_give_the_gramian_back_and_the_largest_entry_is_the_pivot() {
        for time in TIMES {
            let (nodes, rows) = (nodes(), rows());
            let gramian = DMatrix::from_fn(5, 5, |i, k| {
                rows.row(k).dotc(&rows.row(i)) / gap(time, nodes[i], nodes[k])
            });
            let mut elimination = Elimination::new(time, &nodes, &rows);
            let mut left = gramian.clone();
            let mut count = 0;
            while let Some(k) = elimination.pivot() {
                let sizes = left.diagonal().map(|x| x.re);
                assert!(
                    sizes[k] >= sizes.max() * (1.0 - 1e-12),
                    "{time:?} {k} {sizes}"
                );
                let column = elimination.eliminate(k).unwrap();
                let column = nalgebra::DVector::from_iterator(5, column.iter().map(|x| x.to_c64()));
                left -= &column * column.adjoint();
                count += 1;
            }
            // The row that is twice another takes no column, the zero row has none.
            assert_eq!(count, 3);
            assert!(left.norm() < 1e-13 * gramian.norm(), "{time:?} {left}");
            assert!(Elimination::new(time, &nodes, &rows).eliminate(1).is_none());
        }
    }

    #[test]
    fn rotated_rows_keep_their_products_and_the_pivot_row_its_norm() {
        let given = rows();
        let mut found = Rows::new(&given);
        let active = [true, true, true, false, true];
        found.rotate_onto_first(2, &active);
        assert!(found.row(2)[1..].iter().all(|x| x.is_zero()));
        for i in 0..5 {
            let norm = given.row(i).norm();
            assert!((found.norm(i) - norm).abs() < 1e-14);
            let product = found.row(i)[0] * found.row(2)[0].conj();
            let expected = given.row(2).dotc(&given.row(i));
            // A row that is not active stays.
            if active[i] {
                assert!((product.to_c64() - expected).norm() < 1e-14, "{i}");
            } else {
                assert_eq!(found.row(i)[0].to_c64(), given[(i, 0)]);
            }
        }
    }

    #[test]
    fn differences_of_close_poles_keep_their_digits_and_nothing_overflows() {
        let step = 0.5;
        for offset in [1e-3, 1e-7, 1e-9, -1e-9, 1e-14] {
            let x = Complex64::new(-1.0, 2.0);
            let nodes = [x, Complex64::new(-1.0 + offset, 2.0)];
            let gap = nodes[1].re - nodes[0].re;
            let poles = Poles::new(Time::Discrete { step }, &nodes);
            let expected = (x * step).exp() * (gap * step).exp_m1();
            let found = poles.difference(1, 0).to_c64();
            assert!(
                (found - expected).norm() < 1e-15 * expected.norm(),
                "{offset:e}"
            );
            assert!((poles.difference(0, 1).to_c64() + expected).norm() < 1e-15 * expected.norm());
            let continuous = Poles::new(Time::Continuous, &nodes);
            assert_eq!(continuous.difference(1, 0).to_c64(), Complex64::from(gap));
        }
        // Poles that are gone after one step are as close as zeros.
        let nodes = [Complex64::from(-1600.0), Complex64::from(-60.0)];
        let poles = Poles::new(Time::Discrete { step }, &nodes);
        for (i, k, sign) in [(0, 1, -1.0), (1, 0, 1.0)] {
            let found = poles.difference(i, k).to_c64().re * sign;
            assert!((found / (-30.0_f64).exp() - 1.0).abs() < 1e-13, "{found:e}");
        }
    }

    #[test]
    fn gaps_of_slow_poles_keep_their_digits() {
        let step = 0.5;
        for decay in [1.0, 1e-4, 1e-9, 1e-14, 1e-25] {
            let nodes = [
                Complex64::new(-decay, 3.0),
                Complex64::new(-2.0 * decay, 3.0),
            ];
            let poles = Poles::new(Time::Discrete { step }, &nodes);
            let apart = -(nodes[0] * step).exp() * (-decay * step).exp_m1();
            let found = poles.difference(0, 1).to_c64();
            assert!((found / apart - 1.0).norm() < 1e-15, "{decay:e}");
            let expected = -(-3.0 * decay * step).exp_m1();
            let found = poles.sum_gap(0, 1).to_c64();
            assert!((found / expected - 1.0).norm() < 1e-15, "{decay:e}");
            let own = -(-2.0 * decay * step).exp_m1();
            assert!((poles.decay(0).to_f64() / own - 1.0).abs() < 1e-15);
            assert!((poles.roots[0] / own.sqrt() - 1.0).abs() < 1e-15);
            let continuous = Poles::new(Time::Continuous, &nodes);
            assert_eq!(
                continuous.sum_gap(0, 1).to_c64(),
                Complex64::from(3.0 * decay)
            );
            assert_eq!(continuous.decay(0).to_f64(), 2.0 * decay);
        }
    }
}
