//! Systems with one input and one output: one Gramian factor stands for both.

use nalgebra::{ComplexField, DMatrix};
use num_complex::Complex64;

use crate::control::ControlError;
use crate::control::block::{Block, shifted_poles};
use crate::control::cauchy::complex_factor;
use crate::control::gramian::{phase, real_factor};
use crate::control::plane::Plane;
use crate::control::realisation::{RealMode, real_input, real_modes, real_output};
use crate::linalg::{
    GradedSvd, Scalar, multiply, multiply_transpose, scaled_svd, symmetric_product,
};
use crate::ssm::{Siso, Time};

/// A system whose states are scaled so that b_i and c_i are of one size. Its Hankel matrix is
/// symmetric, and the observability Gramian is the controllability Gramian mirrored:
///
/// ```text
/// b_i = c_i = √b_i √c_i:     W_c = F F*,   F_o = conj(K F),   F_o* F_c = Fᵀ K F
/// ```
///
/// K is 1 for the complex system. For the real one, b_i = √|w_i| in the coordinates of
/// [`crate::control::real_gramian_factors`], K is ½ [cos φ, −sin φ; −sin φ, −cos φ] for a pair with the
/// residue |w| e^{iφ} and the sign of w for a real pole: the phase stays behind the elimination.
///
/// With Fᵀ K F = U Σ V* the left vectors are U = conj(V) S with a unitary S that is diagonal but for
/// equal values:
///
/// ```text
/// T = F V Σ^{−1/2},   S = Tᵀ K T,   T_left = S* Tᵀ K
/// ```
///
/// # References
/// Fernando and Nicholson, *On the structure of balanced and other principal representations of
/// SISO systems*, IEEE Trans. Automat. Control 28 (1983), for the signs of a balanced system;
/// Horn and Johnson, *Matrix Analysis*, 2nd edition (2013), section 4.4, for symmetric complex
/// matrices.
#[derive(Debug, Clone)]
pub(super) struct Mirrored<T: ComplexField<RealField = f64>> {
    /// F.
    factor: DMatrix<T>,
    mirror: Blocks<T>,
    /// K A, in discrete time K (A − I).
    moved: Blocks<T>,
    input: DMatrix<T>,
    output: DMatrix<T>,
}

/// S counts as unitary when S* S is the identity up to this. It is not where equal values are cut.
const UNITARY: f64 = 1e-8;

impl Mirrored<Complex64> {
    /// The modes as they are stored.
    pub(super) fn of_complex(system: Siso<'_>, time: Time) -> Self {
        let source = system.system();
        let weights = source.input().iter().zip(source.output().iter());
        // The roots apart: the product could leave the range.
        let weights: Vec<Complex64> = weights.map(|(b, c)| b.sqrt() * c.sqrt()).collect();
        let nodes = source.exponents();
        Self {
            input: DMatrix::from_column_slice(nodes.len(), 1, &weights),
            output: DMatrix::from_row_slice(1, nodes.len(), &weights),
            factor: complex_factor(Plane::of(time), nodes, weights),
            mirror: Blocks::diagonal(vec![Complex64::ONE; nodes.len()]),
            moved: Blocks::diagonal(shifted_poles(time, nodes)),
        }
    }
}

impl Mirrored<f64> {
    /// The real system.
    pub(super) fn of_real(system: Siso<'_>, time: Time) -> Self {
        let modes = real_modes(system);
        let sizes: Vec<f64> = modes
            .iter()
            .map(|mode| mode.residue.norm().sqrt())
            .collect();
        let phases: Vec<Complex64> = modes.iter().map(|mode| phase(mode.residue)).collect();
        let exponents: Vec<Complex64> = modes.iter().map(|mode| mode.lambda).collect();
        let moved = shifted_poles(time, &exponents);
        let moved: Vec<Complex64> = moved.iter().zip(&phases).map(|(a, b)| a * b).collect();
        let mut input = real_input(&modes);
        let mut output = real_output(&modes);
        let states = modes.iter().zip(&sizes);
        let states = states.flat_map(|(mode, &size)| std::iter::repeat_n(size, mode.states()));
        for ((b, c), size) in input.iter_mut().zip(&mut output).zip(states) {
            *b *= size;
            *c = if size > 0.0 { *c / size } else { 0.0 };
        }
        Self {
            factor: real_factor(Plane::of(time), &modes, |lambda| lambda, sizes),
            mirror: Blocks::mirrored(&modes, &phases),
            moved: Blocks::mirrored(&modes, &moved),
            input: DMatrix::from_column_slice(input.len(), 1, &input),
            output: DMatrix::from_row_slice(1, output.len(), &output),
        }
    }
}

impl<T: Scalar> Mirrored<T> {
    /// Fᵀ K F = U Σ V*. Half of the product is computed.
    pub(super) fn svd(&self) -> Result<GradedSvd<T>, ControlError> {
        let product = symmetric_product(&self.factor, &self.mirror.apply(&self.factor));
        Ok(scaled_svd(product)?)
    }

    /// The balanced (A, B, C) of the leading `order` states, in discrete time A − I for A. Cost
    /// n² `order` products.
    pub(super) fn leading(&self, svd: &GradedSvd<T>, order: usize) -> Block<T> {
        let right = balanced(&self.factor, svd.right(order), &svd.sigma);
        let signs = multiply_transpose(&right, &self.mirror.apply(&right));
        // T_left = leftᵀ K.
        let left = if is_unitary(&signs) {
            multiply(&right, &signs.map(|x| ComplexField::conjugate(x)))
        } else {
            let vectors = svd.left(order).map(|x| ComplexField::conjugate(x));
            balanced(&self.factor, vectors, &svd.sigma)
        };
        Block {
            a: multiply_transpose(&left, &self.moved.apply(&right)),
            b: multiply_transpose(&left, &self.mirror.apply(&self.input)),
            c: multiply(&self.output, &right),
        }
    }
}

/// F X Σ^{−1/2}.
fn balanced<T: Scalar>(factor: &DMatrix<T>, vectors: DMatrix<T>, sigma: &[f64]) -> DMatrix<T> {
    let mut out = multiply(factor, &vectors);
    for (mut column, sigma) in out.column_iter_mut().zip(sigma) {
        column.scale_mut(sigma.sqrt().recip());
    }
    out
}

fn is_unitary<T: Scalar>(s: &DMatrix<T>) -> bool {
    let identity = DMatrix::identity(s.nrows(), s.ncols());
    let rest = crate::linalg::multiply_adjoint(s, s) - identity;
    rest.iter().all(|&x| ComplexField::modulus(x) <= UNITARY)
}

/// A matrix of blocks of one or two rows on the diagonal.
#[derive(Debug, Clone)]
struct Blocks<T> {
    diagonal: Vec<T>,
    /// The two entries beside the diagonal in rows i and i + 1, equal; empty where all are zero.
    beside: Vec<T>,
}

impl<T: Scalar> Blocks<T> {
    fn diagonal(diagonal: Vec<T>) -> Self {
        let beside = Vec::new();
        Self { diagonal, beside }
    }

    /// The product with X.
    fn apply(&self, x: &DMatrix<T>) -> DMatrix<T> {
        let mut out = x.clone();
        for (mut to, from) in out.column_iter_mut().zip(x.column_iter()) {
            for (entry, &factor) in to.iter_mut().zip(&self.diagonal) {
                *entry *= factor;
            }
            for (i, &factor) in self.beside.iter().enumerate() {
                to[i] += factor * from[i + 1];
                to[i + 1] += factor * from[i];
            }
        }
        out
    }
}

impl Blocks<f64> {
    /// ½ [Re f, −Im f; −Im f, −Re f] for each pair, and Re f for each real pole.
    fn mirrored(modes: &[RealMode], factors: &[Complex64]) -> Self {
        let (mut diagonal, mut beside) = (Vec::new(), Vec::new());
        for (mode, factor) in modes.iter().zip(factors) {
            if mode.single {
                diagonal.push(factor.re);
                beside.push(0.0);
            } else {
                diagonal.extend([0.5 * factor.re, -0.5 * factor.re]);
                beside.extend([-0.5 * factor.im, 0.0]);
            }
        }
        beside.pop();
        Self { diagonal, beside }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssm::DiagonalSystem;

    /// The residues of ∏ (s + λ̄_j)/(s − λ_j), all of whose Hankel values are one.
    fn all_pass(poles: &[Complex64]) -> Vec<Complex64> {
        let residue = |i: usize| {
            let zeros: Complex64 = poles.iter().map(|pole| poles[i] + pole.conj()).product();
            let others = (0..poles.len()).filter(|&j| j != i);
            zeros / others.map(|j| poles[i] - poles[j]).product::<Complex64>()
        };
        (0..poles.len()).map(residue).collect()
    }

    /// A + A* + B B* and A + A* + C* C of a block whose Gramians are one.
    fn is_balanced<T: Scalar>(block: &Block<T>) -> bool {
        let sum = &block.a + block.a.adjoint();
        let reached = &sum + &block.b * block.b.adjoint();
        let observed = &sum + block.c.adjoint() * &block.c;
        reached.norm().max(observed.norm()) < 1e-11 * block.a.norm()
    }

    #[test]
    fn equal_values_may_be_cut_anywhere() {
        let pole = Complex64::new;
        let poles = [pole(-1.0, 0.3), pole(-2.0, -4.0), pole(-0.5, 1.0)];
        let stored = [pole(-1.0, 0.0), pole(-0.7, 2.0), pole(-1.5, 5.0)];
        let closed = [
            stored[0],
            stored[1],
            stored[1].conj(),
            stored[2],
            stored[2].conj(),
        ];
        let real = all_pass(&closed);
        let halves = [real[0], 2.0 * real[1], 2.0 * real[3]];
        let siso = |poles: &[Complex64], residues: &[Complex64]| {
            DiagonalSystem::siso(Time::Continuous, poles.to_vec(), residues, 0.0).unwrap()
        };
        let (complex, real) = (siso(&poles, &all_pass(&poles)), siso(&stored, &halves));
        let complex = Mirrored::of_complex(complex.as_siso().unwrap(), Time::Continuous);
        let real = Mirrored::of_real(real.as_siso().unwrap(), Time::Continuous);
        let (first, second) = (complex.svd().unwrap(), real.svd().unwrap());
        for value in first.sigma.iter().chain(&second.sigma) {
            assert!((value - 1.0).abs() < 1e-13, "{value}");
        }
        assert!((1..=3).all(|order| is_balanced(&complex.leading(&first, order))));
        assert!((1..=5).all(|order| is_balanced(&real.leading(&second, order))));
    }

    /// Values of the complex and of the real system (`tests/reference/make_extreme_hankel.py`). The
    /// last of each, 1e-305 of the first, is left out.
    const EXTREME: [(Time, &[f64], &[f64]); 2] = [
        (
            Time::Continuous,
            &[
                3.3541206000977364e139,
                8220996.2049005935,
                11976.532502212873,
                0.8761694454154337,
                0.09126527243010359,
                0.01868877756691361,
            ],
            &[
                1.9118917224397605e139,
                1.3845387812632899e139,
                4015677.626651446,
                3951649.963151516,
                6885.499411014775,
                0.4643124029977247,
                0.3852431532373203,
                0.04949668551110098,
                0.03481293069879065,
                0.010121966339243678,
                0.002923167645005449,
            ],
        ),
        (
            Time::Discrete { step: 0.1 },
            &[
                3.52462126486351e140,
                87156684.59380169,
                130428.79881067752,
                8.997587904375475,
                0.9919578491144334,
                0.19699219818723412,
            ],
            &[
                2.0795708709412665e140,
                1.4044214828778714e140,
                44299670.71659187,
                40127143.09835889,
                74736.33678079376,
                4.762851019622114,
                3.9435095923256225,
                0.547184761882793,
                0.3625624989547835,
                0.10374125516102552,
                0.031865709218523754,
            ],
        ),
    ];

    #[test]
    fn weights_of_any_size_keep_the_digits_of_every_value() {
        let exponents: Vec<Complex64> = (0..8)
            .map(|k| Complex64::new(-0.2 - 0.1 * f64::from(k), f64::from(3 * k % 7)))
            .collect();
        let sizes = [1e-170, 1.0, 0.0, 1e140, 1e-3, 1.0, 1.0, 1e5];
        let b = DMatrix::from_fn(8, 1, |i, _| Complex64::new(sizes[i], -0.5 * sizes[i]));
        let c = DMatrix::from_fn(1, 8, |_, j| Complex64::new(0.3, sizes[7 - j].min(1e10)));
        for (time, complex, real) in EXTREME {
            let d = DMatrix::zeros(1, 1);
            let system = DiagonalSystem::new(time, exponents.clone(), b.clone(), c.clone(), d);
            let system = system.unwrap();
            let siso = system.as_siso().unwrap();
            assert_near(
                &Mirrored::of_complex(siso, time).svd().unwrap().sigma,
                complex,
            );
            assert_near(&Mirrored::of_real(siso, time).svd().unwrap().sigma, real);
        }
    }

    fn assert_near(values: &[f64], expected: &[f64]) {
        for (i, (value, expected)) in values.iter().zip(expected).enumerate() {
            let error = (value / expected - 1.0).abs();
            assert!(error < 1e-11, "{i}: {value:e} for {expected:e}");
        }
    }
}
