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
