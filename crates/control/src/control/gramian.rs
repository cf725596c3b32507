//! Gramian factors from poles and weights, by pivoted Cholesky of Cauchy-like matrices.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::control::ControlError;
use crate::control::cauchy::complex_factor;
use crate::control::factors::GramianFactors;
use crate::control::formed;
use crate::control::generators::{Eliminate, Elimination};
use crate::control::plane::{Placed, Plane};
use crate::control::quick::Quick;
use crate::control::realisation::{ROOT_TWO, RealMode, apply_modes, real_modes};
use crate::linalg::{Wide, WideComplex, expm1, pivoted_lower_factor, power_of_two_below};
use crate::ssm::{DiagonalSystem, RealBlock, StableSystem, Time, real_blocks};

/// Factors of the Gramians of the complex system y = C x, one row per mode.
///
/// ```text
/// continuous:  (W_c)_ij = b_i b̄_j / −(λ_i + λ̄_j)        (W_o)_ij = c̄_i c_j / −(λ̄_i + λ_j)
/// discrete:    (W_c)_ij = b_i b̄_j / (1 − a_i ā_j)        1 − a_i ā_j = −expm1((λ_i + λ̄_j)Δ)
/// ```
///
/// Cholesky with the largest diagonal entry as pivot k, on the generator g (b, or c̄ with
/// conjugated poles) instead of the matrix:
///
/// ```text
/// t_i = g_i / (1 − a_i ā_k),   F_ik = t_i √(1 − |a_k|²),   g_i ← t_i (a_i − a_k)
/// a_i − a_k = e^{z_k} expm1((λ_i − λ_k)Δ)
/// ```
///
/// Only products, quotients and differences of input numbers occur, so every entry of F is
/// accurate relative to itself; no ε is added and nothing can fail. Cost O(n²).
///
/// With several inputs or outputs b_i b̄_j and c̄_i c_j are inner products of rows of B and columns
/// of C. Where rows at close poles point apart, the Gramian scaled to a diagonal of ones is well
/// conditioned, and its Cholesky factor moves every Hankel value by less than 1e-11 of itself. Else
/// the generator is eliminated with that many columns, and almost parallel rows at close poles
/// cancel: an estimate of the error goes along with the elimination in double precision, and where
/// it is not good enough the elimination is done with 106 bits, about 30 times slower: entries of F
/// keep 15 digits unless they cancel by more than 10¹⁶. Cost O(n² m + n² p) products, of the first
/// way n³ more in blocks.
///
/// # Errors
/// None at present: a stable system has Gramians.
///
/// # References
/// Ezoe and Sato, eq. (6) to (9), for the Gramians; Demmel, *Accurate SVDs of structured
/// matrices*, SIAM J. Matrix Anal. Appl. 21 (1999), for the elimination on generators; Kailath
/// and Sayed, *Displacement structure*, SIAM Review 37 (1995), for several inputs.
pub fn complex_gramian_factors(
    system: StableSystem<'_>,
) -> Result<GramianFactors<Complex64>, ControlError> {
    let system = system.system();
    if system.as_siso().is_err() {
        return Ok(complex_factors_of_several(system));
    }
    let plane = Plane::of(system.time());
    let nodes = system.exponents();
    let b: Vec<Complex64> = system.input().iter().copied().collect();
    let c: Vec<Complex64> = system.output().iter().map(|c| c.conj()).collect();
    let mirrored: Vec<Complex64> = nodes.iter().map(|node| node.conj()).collect();
    Ok(GramianFactors {
        controllability: complex_factor(plane, nodes, b),
        observability: complex_factor(plane, &mirrored, c),
    })
}

/// Factors of the Gramians of the real system y = Re(C x), in real arithmetic.
///
/// A pair stands in the coordinates (√2 Re x, √2 Im x) and is eliminated in one step. The two
/// columns that the pole a and its conjugate would give span the same plane as two real Kautz
/// functions, which replace them (discrete; z = λΔ):
///
/// ```text
/// p_i = g_i s (a_i − b)/d_i,   q_i = g_i s β/d_i,   d_i = (1 − a_i ā_k)(1 − a_i a_k)
/// s = √(1 − |a_k|⁴),           b = 2 Re a_k/(1 + |a_k|²),   β = √(1 − b²)
/// g_i ← g_i (a_i − a_k)(a_i − ā_k)/d_i
/// ```
///
/// In continuous time p and q have λ_i and |λ_k| in the numerator and s = 2 √(−Re λ_k).
/// The Im row of an almost real pair is small, and every entry of it is accurate relative to the
/// row; when there is such a pair, a pivoted QR turns grading of rows into grading of columns.
///
/// Cost O(n²), about half of the complex form of twice the order.
///
/// With several inputs or outputs the Gramian is formed where it is well conditioned; else the
/// conjugate-closed system {λ, λ̄} is eliminated pair by pair, both
/// as in [`complex_gramian_factors`], and the two complex columns of a pair are turned into two
/// real ones, all with 106 bits. A pivoted QR follows always. Cost O(n² m + n² p), and O(n³) for
/// the QR.
///
/// # Errors
/// None at present: a stable system has Gramians.
///
/// # References
/// Kautz, *Transient synthesis in the time domain*, IRE Trans. Circuit Theory 1 (1954); the
/// two-parameter form of Ninness and Gustafsson, IEEE Trans. Automat. Control 42 (1997).
pub fn real_gramian_factors(system: StableSystem<'_>) -> Result<GramianFactors<f64>, ControlError> {
    let system = system.system();
    let Ok(siso) = system.as_siso() else {
        return Ok(real_factors_of_several(system));
    };
    let modes = real_modes(siso);
    let plane = Plane::of(system.time());
    Ok(GramianFactors {
        controllability: real_factor(plane, &modes, |lambda| lambda, vec![1.0; modes.len()]),
        observability: real_observability(plane, &modes),
    })
}

/// The factor of the observability Gramian of real modes, each with an input of weight 1.
pub(super) fn real_observability(plane: Plane, modes: &[RealMode]) -> DMatrix<f64> {
    let weights: Vec<f64> = modes
        .iter()
        .map(|mode| mode.residue.norm() * if mode.single { 1.0 } else { 0.5 })
        .collect();
    // The phase of an output weight turns the two rows of a pair into each other. It is applied
    // last: a small row must reach the grading of the columns before it is mixed with a large one.
    let phases: Vec<Complex64> = modes
        .iter()
        .map(|mode| phase(mode.residue.conj()))
        .collect();
    let observability = real_factor(plane, modes, |lambda| lambda.conj(), weights);
    apply_modes(modes, &phases, &observability)
}

fn complex_factors_of_several(system: &DiagonalSystem) -> GramianFactors<Complex64> {
    if let Some(factors) = formed::complex_factors(system) {
        return factors;
    }
    let factor = |nodes: &[Complex64], rows: &DMatrix<Complex64>| {
        let columns = complex_columns(system.time(), nodes, rows);
        DMatrix::from_fn(nodes.len(), columns.len(), |i, j| columns[j][i].to_c64())
    };
    let mirrored: Vec<Complex64> = system.exponents().iter().map(|node| node.conj()).collect();
    GramianFactors {
        controllability: factor(system.exponents(), system.input()),
        observability: factor(&mirrored, &system.output().adjoint()),
    }
}

/// In double precision, or with 106 bits where that is not accurate.
fn complex_columns(
    time: Time,
    nodes: &[Complex64],
    rows: &DMatrix<Complex64>,
) -> Vec<Vec<WideComplex>> {
    fn all(elimination: &mut impl Eliminate) -> Vec<Vec<WideComplex>> {
        let mut columns = Vec::new();
        while let Some(k) = elimination.pivot() {
            columns.extend(elimination.eliminate(k));
        }
        columns
    }
    let mut quick = Quick::new(time, nodes, rows);
    let columns = all(&mut quick);
    if quick.is_accurate() {
        return columns;
    }
    all(&mut Elimination::new(time, nodes, rows))
}

fn real_factors_of_several(system: &DiagonalSystem) -> GramianFactors<f64> {
    let blocks = real_blocks(system);
    if let Some(factors) = formed::real_factors(system, &blocks) {
        return factors;
    }
    let time = system.time();
    let input = |block: &RealBlock| (block.lambda, block.input.clone());
    // The output of a pair is (c x + c̄ x̄)/2.
    let output = |block: &RealBlock| {
        let share = if block.single { 1.0 } else { 0.5 };
        let row = block.output.iter().map(|c| c.conj() * share);
        (block.lambda.conj(), row.collect())
    };
    GramianFactors {
        controllability: real_factor_of_blocks(time, &blocks, system.input().ncols(), input),
        observability: real_factor_of_blocks(time, &blocks, system.output().nrows(), output),
    }
}

/// The factor in the coordinates (√2 Re x, √2 Im x) of the conjugate-closed system in which each
/// block has the pole and the row that `side` gives.
fn real_factor_of_blocks(
    time: Time,
    blocks: &[RealBlock],
    width: usize,
    side: impl Fn(&RealBlock) -> (Complex64, Vec<Complex64>),
) -> DMatrix<f64> {
    let (mut nodes, mut rows, mut partners) = (Vec::new(), Vec::new(), Vec::new());
    for block in blocks {
        let (node, row) = side(block);
        let here = nodes.len();
        nodes.push(node);
        rows.extend_from_slice(&row);
        if block.single {
            partners.push((here, None));
        } else {
            nodes.push(node.conj());
            rows.extend(row.iter().map(|g| g.conj()));
            partners.extend([(here, Some(here + 1)), (here, Some(here))]);
        }
    }
    let rows = DMatrix::from_row_slice(nodes.len(), width, &rows);
    let mut quick = Quick::new(time, &nodes, &rows);
    let mut columns = columns_by_pairs(&mut quick, blocks, &partners);
    if !(quick.is_accurate() && pairs_stand_apart(blocks, &columns)) {
        let mut wide = Elimination::new(time, &nodes, &rows);
        columns = columns_by_pairs(&mut wide, blocks, &partners);
    }
    columns.sort_by(|x, y| squares(y).total_cmp(&squares(x)));
    grade_columns(&DMatrix::from_fn(nodes.len(), columns.len(), |i, j| {
        columns[j][i]
    }))
}

/// Real columns, for each pivot those of its pair. `partners` gives for each node the first of its
/// block, and the other one.
fn columns_by_pairs(
    elimination: &mut impl Eliminate,
    blocks: &[RealBlock],
    partners: &[(usize, Option<usize>)],
) -> Vec<Vec<f64>> {
    let mut columns = Vec::new();
    while let Some(k) = elimination.pivot() {
        let (first, partner) = partners[k];
        let mut parts = Vec::new();
        for node in [Some(k), partner].into_iter().flatten() {
            if let Some(column) = elimination.eliminate(node) {
                let column = real_coordinates(blocks, &column);
                parts.push(column.iter().map(|x| x.re).collect::<Vec<Wide>>());
                parts.push(column.iter().map(|x| x.im).collect());
            }
        }
        let pivots = first..first + if partner.is_some() { 2 } else { 1 };
        columns.extend(real_columns(&parts, pivots));
    }
    columns
}

/// Whether both rows of each pair are of like size. A pair that is almost one real state has a row
/// that is the small difference of two.
fn pairs_stand_apart(blocks: &[RealBlock], columns: &[Vec<f64>]) -> bool {
    let size = |row: usize| {
        columns
            .iter()
            .map(|column| column[row].powi(2))
            .sum::<f64>()
    };
    let mut row = 0;
    blocks.iter().all(|block| {
        let here = row;
        row += block.states();
        let (x, y) = (size(here), size(here + block.states() - 1));
        x.min(y) >= 1e-2 * x.max(y)
    })
}

fn squares(column: &[f64]) -> f64 {
    column.iter().map(|x| x * x).sum()
}

/// Coordinates (Re x, Im x), but for √2, of each pair: sum and difference of its two rows.
fn real_coordinates(blocks: &[RealBlock], column: &[WideComplex]) -> Vec<WideComplex> {
    let mut out = Vec::with_capacity(column.len());
    let mut row = 0;
    for block in blocks {
        if block.single {
            out.push(column[row]);
        } else {
            let (x, mirrored) = (column[row], column[row + 1]);
            let difference = x - mirrored;
            out.push((x + mirrored).scale_wide(Wide::ROOT_HALF));
            let turned = WideComplex {
                re: difference.im,
                im: -difference.re,
            };
            out.push(turned.scale_wide(Wide::ROOT_HALF));
        }
        row += block.states();
    }
    out
}

/// As many real columns as there are pivot rows, with the product of the parts.
///
/// The parts are the real and imaginary parts of the columns that a pair of poles gave. W is real
/// before and after them, so every row of the parts lies in the span of the pivot rows; its
/// coordinates in an orthonormal basis of that span are the new columns.
fn real_columns(parts: &[Vec<Wide>], pivots: std::ops::Range<usize>) -> Vec<Vec<f64>> {
    let row = |i: usize| parts.iter().map(|part| part[i]).collect::<Vec<Wide>>();
    let candidates: Vec<Vec<Wide>> = pivots.map(|i| near_one(row(i))).collect();
    let size = |x: &Vec<Wide>| dot(x, x).to_f64();
    let mut basis: Vec<Vec<Wide>> = Vec::new();
    for mut candidate in candidates {
        let before = size(&candidate);
        for unit in &basis {
            let along = dot(&candidate, unit);
            for (x, &u) in candidate.iter_mut().zip(unit) {
                *x = *x - u * along;
            }
        }
        if size(&candidate) > SPANNED * before {
            let inverse = Wide::from(1.0) / dot(&candidate, &candidate).sqrt();
            basis.push(candidate.into_iter().map(|x| x * inverse).collect());
        }
    }
    let rows = parts.first().map_or(0, Vec::len);
    let column = |unit: &Vec<Wide>| (0..rows).map(|i| dot(&row(i), unit).to_f64()).collect();
    basis.iter().map(column).collect()
}

/// A pivot row whose part outside the span of the other is below 2⁻⁹⁶ of it, squared, adds none.
const SPANNED: f64 = 1.0 / ((1_u128 << 96) as f64 * (1_u128 << 96) as f64);

/// The row times a power of two, so that its squares stay in range.
fn near_one(mut row: Vec<Wide>) -> Vec<Wide> {
    let largest = row.iter().map(|x| x.to_f64().abs()).fold(0.0, f64::max);
    let scale = 1.0 / power_of_two_below(largest);
    row.iter_mut().for_each(|x| *x = x.scale(scale));
    row
}

fn dot(x: &[Wide], y: &[Wide]) -> Wide {
    let products = x.iter().zip(y).map(|(&x, &y)| x * y);
    products.fold(Wide::from(0.0), |sum, product| sum + product)
}

pub(super) fn phase(x: Complex64) -> Complex64 {
    let modulus = x.norm();
    if modulus == 0.0 {
        Complex64::ONE
    } else {
        x / modulus
    }
}

impl Plane {
    /// Whether a pole is so near to its own conjugate that products over a pair of poles must be
    /// formed with their imaginary part in mind: pseudo-hyperbolic distance below 0.1.
    fn is_almost_real(self, x: Placed) -> bool {
        self.difference(x, x.conj()).norm() < 0.1 * self.sum_gap(x.node, x.node).norm()
    }

    /// The imaginary part of λ, or of a.
    fn imaginary(self, x: Placed) -> f64 {
        match self {
            Plane::Half => x.node.im,
            Plane::Disc { step } => (x.node.re * step).exp() * (x.node.im * step).sin(),
        }
    }
}

/// A row of the elimination: its pole, with what every pivot needs of it.
#[derive(Clone, Copy)]
struct Row {
    pole: Placed,
    /// e^{λΔ} − 1; 0 in continuous time.
    power_less_one: Complex64,
    /// √ of its decay.
    root: f64,
    /// The imaginary part of λ, or of a, of a pole that is almost real.
    almost_real: Option<f64>,
}

impl Row {
    fn new(plane: Plane, node: Complex64) -> Self {
        let pole = plane.placed(node);
        let power_less_one = match plane {
            Plane::Half => Complex64::ZERO,
            Plane::Disc { step } => expm1(node * step),
        };
        let almost_real = plane.is_almost_real(pole);
        Self {
            pole,
            power_less_one,
            root: plane.decay(node).sqrt(),
            almost_real: almost_real.then(|| plane.imaginary(pole)),
        }
    }

    /// (λ_i + λ_k)(λ_i + λ̄_k), or (1 − a_i ā_k)(1 − a_i a_k).
    ///
    /// For an almost real a_i = x + iy the product is almost real too. Written as
    /// |f|² − 2iy a_k f with f = 1 − a_i ā_k (a_k is 1 in continuous time), its small imaginary
    /// part has all its digits.
    fn pair_gap(&self, plane: Plane, pivot: Placed) -> Complex64 {
        let first = plane.sum_gap(self.pole.node, pivot.node.conj());
        match self.almost_real {
            None => first * plane.sum_gap(self.pole.node, pivot.node),
            Some(imaginary) => {
                first.norm_sqr() - Complex64::new(0.0, 2.0 * imaginary) * pivot.power * first
            }
        }
    }

    /// (λ_i − λ_k)(λ_i − λ̄_k), or the same of a; |n|² + 2iy n with n = a_i − a_k for an almost
    /// real a_i.
    fn pair_difference(&self, plane: Plane, pivot: Placed) -> Complex64 {
        let first = plane.difference(self.pole, pivot);
        match self.almost_real {
            None => first * plane.difference(self.pole, pivot.conj()),
            Some(imaginary) => first.norm_sqr() + Complex64::new(0.0, 2.0 * imaginary) * first,
        }
    }
}

/// The active row with the largest diagonal entry, if any is not zero.
fn pivot(rows: &[Row], g: &[Complex64], active: &[bool]) -> Option<usize> {
    let mut best = None;
    let mut largest = 0.0;
    for (i, (row, value)) in rows.iter().zip(g).enumerate() {
        let size = value.l1_norm() / row.root;
        if active[i] && size > largest {
            largest = size;
            best = Some(i);
        }
    }
    best
}

pub(super) fn real_factor(
    plane: Plane,
    modes: &[RealMode],
    side: impl Fn(Complex64) -> Complex64,
    weights: Vec<f64>,
) -> DMatrix<f64> {
    let rows = modes.iter().map(|mode| Row::new(plane, side(mode.lambda)));
    let rows: Vec<Row> = rows.collect();
    let mut g: Vec<Complex64> = weights.into_iter().map(Complex64::from).collect();
    let mut active = vec![true; modes.len()];
    let mut columns: Vec<Vec<f64>> = Vec::new();
    while let Some(k) = pivot(&rows, &g, &active) {
        let rule = PivotRule::new(plane, &rows[k], modes[k].single);
        let mut entries = vec![[Complex64::ZERO; 2]; modes.len()];
        for i in (0..modes.len()).filter(|&i| active[i]) {
            (entries[i], g[i]) = rule.eliminate(&rows[i], g[i]);
        }
        active[k] = false;
        for part in 0..modes[k].states() {
            columns.push(real_rows(modes, &entries, part));
        }
    }
    let states = modes.iter().map(RealMode::states).sum();
    let factor = DMatrix::from_fn(states, columns.len(), |i, j| columns[j][i]);
    let mut pairs = modes.iter().zip(&rows).filter(|(mode, _)| !mode.single);
    if pairs.any(|(_, row)| row.almost_real.is_some()) {
        return grade_columns(&factor);
    }
    factor
}

/// F′ with F′ F′ᵀ = F Fᵀ whose columns are graded from large to small: Rᵀ of the pivoted QR of
/// Fᵀ. QR is accurate relative to each row of F, so small rows lose nothing.
pub(super) fn grade_columns(factor: &DMatrix<f64>) -> DMatrix<f64> {
    let (lower, permutation) = pivoted_lower_factor(&factor.transpose());
    let mut graded = DMatrix::zeros(factor.nrows(), lower.ncols());
    for (row, &to) in lower.row_iter().zip(&permutation) {
        graded.set_row(to, &row);
    }
    graded
}

fn real_rows(modes: &[RealMode], entries: &[[Complex64; 2]], part: usize) -> Vec<f64> {
    let mut column = Vec::new();
    for (mode, entry) in modes.iter().zip(entries) {
        if mode.single {
            column.push(entry[part].re);
        } else {
            column.extend([ROOT_TWO * entry[part].re, ROOT_TWO * entry[part].im]);
        }
    }
    column
}

/// One elimination step of the real factor: what a pivot does to the other rows.
enum PivotRule {
    Single {
        plane: Plane,
        pivot: Placed,
        root: f64,
    },
    Pair {
        plane: Plane,
        pivot: Placed,
        /// s and s β (s |λ_k|).
        scale: (f64, f64),
        /// The constant of the first Kautz function.
        kautz: Kautz,
    },
}

/// The numerator of the first Kautz function: λ_i, or a_i − 2 Re a_k/(1 + |a_k|²).
#[derive(Clone, Copy)]
enum Kautz {
    Pole,
    /// This off a_i.
    Power(f64),
    /// Near z = 1 both terms are near one; their distances to one are not. This added to a_i − 1.
    PowerLessOne(f64),
}

impl Kautz {
    fn new(plane: Plane, pivot: &Row) -> Self {
        let power = pivot.pole.power;
        let spread = 1.0 + power.norm_sqr();
        match plane {
            Plane::Half => Self::Pole,
            Plane::Disc { .. } if power.norm_sqr() < 0.25 => Self::Power(2.0 * power.re / spread),
            Plane::Disc { .. } => Self::PowerLessOne(pivot.power_less_one.norm_sqr() / spread),
        }
    }

    fn numerator(self, row: &Row) -> Complex64 {
        match self {
            Self::Pole => row.pole.node,
            Self::Power(mean) => row.pole.power - mean,
            Self::PowerLessOne(distance) => row.power_less_one + distance,
        }
    }
}

impl PivotRule {
    fn new(plane: Plane, row: &Row, single: bool) -> Self {
        let (pivot, node) = (row.pole, row.pole.node);
        if single {
            let root = row.root;
            return PivotRule::Single { plane, pivot, root };
        }
        let scale = match plane {
            Plane::Half => {
                let root = 2.0 * (-node.re).sqrt();
                (root, root * node.norm())
            }
            Plane::Disc { step } => {
                let z = node * step;
                let root = (-(4.0 * z.re).exp_m1()).sqrt();
                let beta = expm1(2.0 * z).norm() / (1.0 + (2.0 * z.re).exp());
                (root, root * beta)
            }
        };
        PivotRule::Pair {
            plane,
            pivot,
            scale,
            kautz: Kautz::new(plane, row),
        }
    }

    /// The entries of the new columns in a row, and what is left of its generator.
    fn eliminate(&self, row: &Row, g: Complex64) -> ([Complex64; 2], Complex64) {
        match *self {
            PivotRule::Single { plane, pivot, root } => {
                let t = g / plane.sum_gap(row.pole.node, pivot.node);
                let entries = [t * root, Complex64::ZERO];
                (entries, t * plane.difference(row.pole, pivot))
            }
            PivotRule::Pair {
                plane,
                pivot,
                scale,
                kautz,
            } => {
                let t = g / row.pair_gap(plane, pivot);
                let entries = [t * scale.0 * kautz.numerator(row), t * scale.1];
                (entries, t * row.pair_difference(plane, pivot))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssm::DiagonalSystem;

    fn system(time: Time) -> DiagonalSystem {
        let exponents = vec![
            Complex64::new(-0.5, 3.1),
            Complex64::new(-0.4, 0.0),
            Complex64::new(-1.5, -7.0),
            Complex64::new(-0.1, 0.2),
        ];
        let input = DMatrix::from_fn(4, 1, |i, _| Complex64::new(1.0 + i as f64, -0.3));
        let output = DMatrix::from_fn(1, 4, |_, j| Complex64::new(0.2, 1.0 - 0.4 * j as f64));
        let feedthrough = DMatrix::zeros(1, 1);
        DiagonalSystem::new(time, exponents, input, output, feedthrough).unwrap()
    }

    const TIMES: [Time; 2] = [Time::Continuous, Time::Discrete { step: 0.3 }];

    #[test]
    fn complex_factors_solve_both_lyapunov_equations() {
        for time in TIMES {
            let system = system(time);
            let factors = complex_gramian_factors(system.stable().unwrap()).unwrap();
            let (w_c, w_o) = products(&factors);
            let a = DMatrix::from_diagonal(&nalgebra::DVector::from_vec(system.poles()));
            let bb = system.input() * system.input().adjoint();
            let cc = system.output().adjoint() * system.output();
            let (left, right) = match time {
                Time::Continuous => (
                    &a * &w_c + &w_c * a.adjoint() + bb,
                    a.adjoint() * &w_o + &w_o * &a + cc,
                ),
                Time::Discrete { .. } => (
                    &a * &w_c * a.adjoint() - &w_c + bb,
                    a.adjoint() * &w_o * &a - &w_o + cc,
                ),
            };
            assert!(left.norm() < 1e-13 * w_c.norm(), "{time:?} {}", left.norm());
            assert!(
                right.norm() < 1e-13 * w_o.norm(),
                "{time:?} {}",
                right.norm()
            );
        }
    }

    fn products<T: nalgebra::ComplexField<RealField = f64>>(
        factors: &GramianFactors<T>,
    ) -> (DMatrix<T>, DMatrix<T>) {
        (
            &factors.controllability * factors.controllability.adjoint(),
            &factors.observability * factors.observability.adjoint(),
        )
    }

    #[test]
    fn real_factors_solve_both_lyapunov_equations() {
        for time in TIMES {
            let system = system(time);
            let modes = real_modes(system.as_siso().unwrap());
            let factors = real_gramian_factors(system.stable().unwrap()).unwrap();
            let (w_c, w_o) = products(&factors);
            let identity = DMatrix::identity(7, 7);
            let a = crate::control::realisation::apply_modes(&modes, &system.poles(), &identity);
            let b = nalgebra::DVector::from_vec(crate::control::realisation::real_input(&modes));
            let c = nalgebra::DVector::from_vec(crate::control::realisation::real_output(&modes));
            let (bb, cc) = (&b * b.transpose(), &c * c.transpose());
            let (left, right) = match time {
                Time::Continuous => (
                    &a * &w_c + &w_c * a.transpose() + bb,
                    a.transpose() * &w_o + &w_o * &a + cc,
                ),
                Time::Discrete { .. } => (
                    &a * &w_c * a.transpose() - &w_c + bb,
                    a.transpose() * &w_o * &a - &w_o + cc,
                ),
            };
            assert!(left.norm() < 1e-13 * w_c.norm(), "{time:?} {}", left.norm());
            assert!(
                right.norm() < 1e-13 * w_o.norm(),
                "{time:?} {}",
                right.norm()
            );
        }
    }

    #[test]
    fn a_repeated_pole_and_a_zero_weight_take_no_column() {
        let exponents = vec![Complex64::new(-1.0, 2.0); 2];
        let residues = [Complex64::ONE, Complex64::ONE];
        let time = Time::Discrete { step: 0.1 };
        let system = DiagonalSystem::siso(time, exponents, &residues, 0.0).unwrap();
        let factors = real_gramian_factors(system.stable().unwrap()).unwrap();
        assert_eq!(factors.controllability.ncols(), 2);
        let zero = DiagonalSystem::siso(
            time,
            vec![Complex64::new(-1.0, 2.0)],
            &[Complex64::ZERO],
            0.0,
        )
        .unwrap();
        let factors = real_gramian_factors(zero.stable().unwrap()).unwrap();
        assert_eq!(factors.observability.ncols(), 0);
    }
}
