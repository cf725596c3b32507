//! Gramian factors of systems whose modes stand apart by their weights: the Gramians are formed and
//! factored as they are.

use nalgebra::{ComplexField, DMatrix};
use num_complex::Complex64;

use crate::control::factors::GramianFactors;
use crate::control::plane::Plane;
use crate::control::realisation::ROOT_TWO;
use crate::linalg::{Scalar, multiply, scaled_cholesky};
use crate::ssm::{DiagonalSystem, RealBlock};

/// Above this estimate of the relative error of Hankel values the factors are not used.
const ACCEPTED: f64 = 1e-11;

/// Of so few modes elimination with 106 bits costs little, and it keeps all digits.
pub(super) const FEW_MODES: usize = 24;

/// With fewer rows of weights than this part of the modes, they hardly stand apart.
const FEW: usize = 16;

/// A pair whose two real states differ more in their squares is almost one real state.
const APART: f64 = 1e-2;

/// One Gramian, scaled to a diagonal of ones.
///
/// ```text
/// W = S A S,   A_ij = u_i u_j* √(δ_i δ_j) / (1 − a_i ā_j),   δ_i = 1 − |a_i|²,   S_i = ‖g_i‖/√δ_i
/// ```
///
/// with the rows u = g/‖g‖ of unit length. In continuous time 1 − a ā is −(λ + λ̄).
struct Formed<T> {
    /// S.
    sizes: Vec<f64>,
    /// A.
    scaled: DMatrix<T>,
    /// How far rounding moves an entry of A at most, as one expects it to add up, in units of ε.
    rounding: f64,
}

/// Both factors; `None` where rounding of the Gramians could move a Hankel value by more than 1e-11
/// of itself.
///
/// ```text
/// A = L L*,   F = S L;   F + δF = F (I + L⁻¹ δL),   ‖L⁻¹ δL‖ ≲ ‖δA‖ ‖A⁻¹‖
/// ```
///
/// So errors of F are factors near one, which move every value by a part of itself however S is
/// graded. What counts is how well A is conditioned, and modes with weights in many directions are:
/// A is the entrywise product of two positive definite matrices. States come in the order in which
/// they weigh on both sides, so that F_o* F_c is graded as its rows and columns are. Cost n² (m + p)
/// products and n³, in blocks.
///
/// # References
/// Demmel and Veselić, *Jacobi's method is more accurate than QR*, SIAM J. Matrix Anal. Appl. 13
/// (1992), theorem 2.3, for Cholesky of a scaled matrix; Horn and Johnson, *Topics in Matrix
/// Analysis* (1991), section 5.2, for the condition of the entrywise product.
fn factors<T: Scalar>(
    controllability: Formed<T>,
    observability: Formed<T>,
) -> Option<GramianFactors<T>> {
    let weights = controllability.sizes.iter().zip(&observability.sizes);
    let weights: Vec<f64> = weights.map(|(c, o)| c * o).collect();
    let mut order: Vec<usize> = (0..weights.len()).collect();
    order.sort_by(|&i, &j| weights[j].total_cmp(&weights[i]));
    Some(GramianFactors {
        controllability: controllability.factor(&order)?,
        observability: observability.factor(&order)?,
    })
}

impl<T: Scalar> Formed<T> {
    fn factor(&self, order: &[usize]) -> Option<DMatrix<T>> {
        let n = order.len();
        let sorted = DMatrix::from_fn(n, n, |i, j| self.scaled[(order[i], order[j])]);
        let (lower, inverse) = scaled_cholesky(&sorted)?;
        let roundings = self.rounding + (n as f64).sqrt();
        let error = roundings * inverse * f64::EPSILON;
        if error.is_nan() || error >= ACCEPTED {
            return None;
        }
        let mut factor = DMatrix::zeros(n, n);
        for (row, &place) in order.iter().enumerate() {
            let size = self.sizes[place];
            for column in 0..=row {
                factor[(place, column)] = ComplexField::scale(lower[(row, column)], size);
            }
        }
        Some(factor)
    }
}

/// The rows of one side of a system, and where its poles are.
struct Side {
    plane: Plane,
    nodes: Vec<Complex64>,
    /// Of unit length.
    rows: DMatrix<Complex64>,
    /// S.
    sizes: Vec<f64>,
    /// √δ.
    roots: Vec<f64>,
}

/// Sizes of rows between these have squares within the range of doubles.
const IN_RANGE: std::ops::Range<f64> = 1e-140..1e140;

/// Radians per step from which e^{λΔ} itself has lost digits.
const ANGLE_MAX: f64 = 8.0;

impl Side {
    /// `None` where there are few rows, or one is out of range.
    fn new(plane: Plane, nodes: Vec<Complex64>, mut rows: DMatrix<Complex64>) -> Option<Self> {
        let roots: Vec<f64> = nodes.iter().map(|&z| plane.decay(z).sqrt()).collect();
        let mut sizes = Vec::with_capacity(nodes.len());
        let few = nodes.len() <= FEW_MODES || rows.ncols() * FEW < nodes.len();
        if few || turns(plane, &nodes) {
            return None;
        }
        for (mut row, root) in rows.row_iter_mut().zip(&roots) {
            let length = row.norm();
            let size = length / root;
            if !(IN_RANGE.contains(&length) && IN_RANGE.contains(&size)) {
                return None;
            }
            row.unscale_mut(length);
            sizes.push(size);
        }
        Some(Self {
            plane,
            nodes,
            rows,
            sizes,
            roots,
        })
    }

    fn rounding(&self) -> f64 {
        (self.rows.ncols() as f64).sqrt() + 4.0
    }

    /// The entries u_i u_j* √(δ_i δ_j)/gap, or with `mirrored` those of the conjugate of j.
    fn entries(&self, mirrored: bool) -> DMatrix<Complex64> {
        let other = match mirrored {
            true => self.rows.transpose(),
            false => self.rows.adjoint(),
        };
        let mut entries = multiply(&self.rows, &other);
        for j in 0..entries.ncols() {
            let node = if mirrored {
                self.nodes[j]
            } else {
                self.nodes[j].conj()
            };
            for i in j..entries.nrows() {
                let gap = self.plane.sum_gap(self.nodes[i], node);
                let entry = entries[(i, j)] * (self.roots[i] * self.roots[j]) / gap;
                entries[(i, j)] = entry;
                entries[(j, i)] = if mirrored { entry } else { entry.conj() };
            }
        }
        entries
    }

    fn complex(self) -> Formed<Complex64> {
        let mut scaled = self.entries(false);
        scaled.fill_diagonal(Complex64::ONE);
        Formed {
            rounding: self.rounding(),
            sizes: self.sizes,
            scaled,
        }
    }

    /// In the coordinates (√2 Re x, √2 Im x) of each pair:
    ///
    /// ```text
    /// X = x x*, Y = x xᵀ:   [Re(X + Y)  Im(Y − X); Im(X + Y)  Re(X − Y)]
    /// ```
    ///
    /// A single state is x. `None` where a pair is almost one real state.
    fn real(self, blocks: &[RealBlock]) -> Option<Formed<f64>> {
        let (own, mirrored) = (self.entries(false), self.entries(true));
        let states = blocks.iter().enumerate().flat_map(|(mode, block)| {
            let parts = 0..block.states();
            parts.map(move |part| (mode, part == 1))
        });
        let states: Vec<(usize, bool)> = states.collect();
        let mut scaled = DMatrix::from_fn(states.len(), states.len(), |k, l| {
            let ((i, lower), (j, right)) = (states[k], states[l]);
            let (x, y) = (own[(i, j)], mirrored[(i, j)]);
            match (lower, right) {
                (false, false) => x.re + y.re,
                (false, true) => y.im - x.im,
                (true, false) => x.im + y.im,
                (true, true) => x.re - y.re,
            }
        });
        let diagonal = scaled.diagonal();
        // One is the mean of the two of a pair; a single state has both in one.
        let least = diagonal.min();
        if least.is_nan() || least < APART {
            return None;
        }
        let roots = diagonal.map(f64::sqrt);
        for ((k, l), entry) in entries_of(&mut scaled) {
            *entry /= roots[k] * roots[l];
        }
        scaled.fill_diagonal(1.0);
        let sizes = states.iter().zip(roots.iter()).map(|(&(mode, _), root)| {
            let share = if blocks[mode].single { ROOT_TWO } else { 1.0 };
            self.sizes[mode] * root / share
        });
        Some(Formed {
            rounding: self.rounding() / least,
            sizes: sizes.collect(),
            scaled,
        })
    }
}

fn turns(plane: Plane, nodes: &[Complex64]) -> bool {
    match plane {
        Plane::Half => false,
        Plane::Disc { step } => nodes.iter().any(|z| (z.im * step).abs() >= ANGLE_MAX),
    }
}

fn entries_of(matrix: &mut DMatrix<f64>) -> impl Iterator<Item = ((usize, usize), &mut f64)> {
    let rows = matrix.nrows();
    let entries = matrix.iter_mut().enumerate();
    entries.map(move |(place, entry)| ((place % rows, place / rows), entry))
}

/// See [`factors`].
pub(super) fn complex_factors(system: &DiagonalSystem) -> Option<GramianFactors<Complex64>> {
    let plane = Plane::of(system.time());
    let mirrored = system.exponents().iter().map(|z| z.conj()).collect();
    let (b, c) = (system.input().clone(), system.output().adjoint());
    let reached = Side::new(plane, system.exponents().to_vec(), b)?;
    let observed = Side::new(plane, mirrored, c)?;
    factors(reached.complex(), observed.complex())
}

/// See [`factors`].
pub(super) fn real_factors(
    system: &DiagonalSystem,
    blocks: &[RealBlock],
) -> Option<GramianFactors<f64>> {
    let plane = Plane::of(system.time());
    let (n, m, p) = (
        blocks.len(),
        system.input().ncols(),
        system.output().nrows(),
    );
    let b = DMatrix::from_fn(n, m, |i, j| blocks[i].input[j]);
    // The output of a pair is (c x + c̄ x̄)/2.
    let share = |block: &RealBlock| if block.single { 1.0 } else { 0.5 };
    let c = DMatrix::from_fn(n, p, |i, h| blocks[i].output[h].conj() * share(&blocks[i]));
    let nodes = blocks.iter().map(|block| block.lambda);
    let reached = Side::new(plane, nodes.clone().collect(), b)?;
    let observed = Side::new(plane, nodes.map(|z| z.conj()).collect(), c)?;
    factors(reached.real(blocks)?, observed.real(blocks)?)
}
