//! The real system behind complex modes: one real state, or two, for each mode.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::linalg::two_product;
use crate::ssm::DiagonalSystem;

/// One mode of the real system y = Re(C x): a conjugate pair, a real pole whose residue has rank
/// two, or one real state.
#[derive(Debug, Clone)]
pub(crate) struct RealBlock {
    /// The exponent λ.
    pub(crate) lambda: Complex64,
    /// Whether the block is one real state; otherwise it is two, (√2 Re x, √2 Im x).
    pub(crate) single: bool,
    /// The row of B; real for one state.
    pub(crate) input: Vec<Complex64>,
    /// The column of C; real for one state.
    pub(crate) output: Vec<Complex64>,
}

/// The real coordinates of a pair are (√2 Re x, √2 Im x), a unitary image of (x, x̄), so that
/// Gramians keep their size.
const ROOT_TWO: f64 = std::f64::consts::SQRT_2;

impl RealBlock {
    pub(crate) fn states(&self) -> usize {
        if self.single { 1 } else { 2 }
    }
}

/// The blocks of a system, one for each mode and in their order.
///
/// Of a mode with Im λ = 0 the output shows Re(c b), a matrix of rank up to two. The rank is one when
/// there is one input or one output, or when b or c is a real vector but for a phase; that is
/// tested exactly. Then the mode is one real state.
pub(crate) fn real_blocks(system: &DiagonalSystem) -> Vec<RealBlock> {
    let modes = system.exponents().iter().enumerate().map(|(i, &lambda)| {
        let input: Vec<Complex64> = system.input().row(i).iter().copied().collect();
        let output: Vec<Complex64> = system.output().column(i).iter().copied().collect();
        let mut block = RealBlock {
            lambda,
            single: false,
            input,
            output,
        };
        if lambda.im == 0.0 {
            make_single(&mut block);
        }
        block
    });
    modes.collect()
}

/// Turns the phase of b into c, or of c into b, when what is left of that one is real.
fn make_single(block: &mut RealBlock) {
    let (turned, other) = if is_real_but_for_a_phase(&block.input) {
        (&mut block.input, &mut block.output)
    } else if is_real_but_for_a_phase(&block.output) {
        (&mut block.output, &mut block.input)
    } else {
        return;
    };
    let phase = phase(turned);
    for x in turned {
        *x = Complex64::from((*x * phase.conj()).re);
    }
    for x in other {
        *x = Complex64::from((*x * phase).re);
    }
    block.single = true;
}

/// Whether Re x and Im x are parallel: all their 2 × 2 minors are zero, without rounding.
fn is_real_but_for_a_phase(x: &[Complex64]) -> bool {
    let largest = largest(x);
    x.iter()
        .all(|x| two_product(x.re, largest.im) == two_product(x.im, largest.re))
}

fn largest(x: &[Complex64]) -> Complex64 {
    let by_size = |a: &&Complex64, b: &&Complex64| a.norm_sqr().total_cmp(&b.norm_sqr());
    x.iter().max_by(by_size).copied().unwrap_or_default()
}

/// The phase of the largest entry; exactly one for a real vector.
fn phase(x: &[Complex64]) -> Complex64 {
    let largest = largest(x);
    if largest.im == 0.0 {
        Complex64::ONE
    } else {
        largest / largest.norm()
    }
}

/// B in real coordinates.
pub(crate) fn block_input(blocks: &[RealBlock], inputs: usize) -> DMatrix<f64> {
    let mut rows: Vec<f64> = Vec::new();
    for block in blocks {
        if block.single {
            rows.extend(block.input.iter().map(|b| b.re));
        } else {
            rows.extend(block.input.iter().map(|b| ROOT_TWO * b.re));
            rows.extend(block.input.iter().map(|b| ROOT_TWO * b.im));
        }
    }
    let states = blocks.iter().map(RealBlock::states).sum();
    DMatrix::from_row_slice(states, inputs, &rows)
}

/// C in real coordinates: Re(c x) = (Re c · √2 Re x − Im c · √2 Im x)/√2.
pub(crate) fn block_output(blocks: &[RealBlock], outputs: usize) -> DMatrix<f64> {
    let mut columns: Vec<f64> = Vec::new();
    for block in blocks {
        if block.single {
            columns.extend(block.output.iter().map(|c| c.re));
        } else {
            columns.extend(block.output.iter().map(|c| c.re / ROOT_TWO));
            columns.extend(block.output.iter().map(|c| -c.im / ROOT_TWO));
        }
    }
    let states = blocks.iter().map(RealBlock::states).sum();
    DMatrix::from_column_slice(outputs, states, &columns)
}
