//! The metric in which a channel is refined: its input, and a little white noise.

use nalgebra::{DMatrix, DVector};
use num_complex::Complex64;

use crate::control::products::{Node, Pole, Products, WhiteNoise};
use crate::control::{ControlError, InputWeight};
use crate::linalg::Polynomials;
use crate::ssm::{DiagonalSystem, SystemError};

/// −Re z of every pole stays below this: one step leaves 1e-7 of it.
pub(super) const DECAY_MAX: f64 = 16.0;

/// The amplitude of the white noise, as a share of the input's.
const NOISE: f64 = 0.02;

/// √E(k + D e₀ − k_r − D_r e₀): the root mean square of the output error under the weight.
///
/// # Errors
/// [`ControlError::System`] as [`DiagonalSystem::kernel`].
pub fn weighted_error(
    full: &DiagonalSystem,
    reduced: &DiagonalSystem,
    weight: &InputWeight,
) -> Result<f64, ControlError> {
    let mut error = response(full, weight.length())?;
    for (e, r) in error.iter_mut().zip(response(reduced, weight.length())?) {
        *e -= r;
    }
    Ok(weight.norm(&error))
}

/// The weighted norm √E(k + D e₀) of a system's own response.
///
/// # Errors
/// As [`weighted_error`].
pub fn weighted_norm(system: &DiagonalSystem, weight: &InputWeight) -> Result<f64, ControlError> {
    Ok(weight.norm(&response(system, weight.length())?))
}

/// The impulse response with the feedthrough in its first value.
fn response(system: &DiagonalSystem, length: usize) -> Result<Vec<f64>, SystemError> {
    let siso = system.as_siso()?;
    let mut kernel = siso.kernel(length)?;
    if let Some(first) = kernel.first_mut() {
        *first += siso.feedthrough();
    }
    Ok(kernel)
}

/// A channel to be approximated, under the weight of its input with white noise of [`NOISE`] times its
/// amplitude, over all time: what the calibration did not show, other frequencies and what comes behind
/// its last step, must not ring on there.
#[derive(Debug, Clone)]
pub(super) struct Metric {
    weight: InputWeight,
    noise: WhiteNoise,
    /// The least −Re z of the full channel.
    pub(super) slowest: f64,
    /// The full channel's poles and residues.
    modes: Vec<(Pole, Complex64)>,
    feedthrough: f64,
    /// M k, k being the full channel's response with D.
    weighted: Polynomials,
    /// E of the full channel.
    pub(super) within: f64,
    /// The same, with the noise.
    pub(super) whole: f64,
    /// The first values of k and of M k.
    first: [f64; 2],
}

/// Products of the basis of some poles: Re e^{zl} and −Im e^{zl} of each, and last a sample at step 0.
pub(super) struct Basis {
    nodes: Vec<Node>,
    /// Without the noise.
    within: Inner,
    /// With it.
    pub(super) whole: Inner,
}

/// Inner products of a basis.
pub(super) struct Inner {
    /// With one another.
    pub(super) gram: DMatrix<f64>,
    /// With the full channel.
    pub(super) cross: DVector<f64>,
}

impl Inner {
    /// 2 ⟨k, k_r⟩ − ⟨k_r, k_r⟩ for the coefficients of k_r: what it takes off the full channel's square.
    pub(super) fn gained(&self, solution: &DVector<f64>) -> f64 {
        solution.dot(&(2.0 * &self.cross - &self.gram * solution))
    }
}

/// Products of the derivatives of modes by their exponents: for mode n those of Re(w_n e^{zl}) by
/// Re z and by Im z.
pub(super) struct Tangents {
    /// With one another.
    pub(super) gram: DMatrix<f64>,
    /// With the basis: rows are the basis.
    pub(super) basis: DMatrix<f64>,
    /// With the full channel.
    pub(super) cross: DVector<f64>,
}

impl Metric {
    pub(super) fn new(full: &DiagonalSystem, weight: &InputWeight) -> Result<Self, SystemError> {
        let length = weight.length();
        let signal = response(full, length)?;
        let weighted = weight.applied(&signal);
        let within = signal.iter().zip(&weighted).map(|(d, w)| d * w).sum();
        let siso = full.as_siso()?;
        let modes = full.scaled_exponents().into_iter().map(Pole::new);
        let first = [&signal, &weighted].map(|values| values.first().copied().unwrap_or(0.0));
        let mut made = Self {
            modes: modes.zip(siso.residues()).collect(),
            feedthrough: siso.feedthrough(),
            weight: weight.clone(),
            noise: white_noise(weight),
            slowest: slowest(full),
            within,
            whole: within,
            first,
            weighted: Polynomials::new(&[&weighted]),
        };
        let noise = made
            .modes
            .iter()
            .map(|(pole, w)| (w * made.noise(*pole)).re);
        let sample = made.noise.power * made.feedthrough * first[0];
        made.whole += noise.sum::<f64>() + sample;
        Ok(made)
    }

    /// The weight itself.
    pub(super) fn weight(&self) -> &InputWeight {
        &self.weight
    }

    /// The long vectors: those of the weight, and M k.
    pub(super) fn sums(&mut self) -> [&mut Polynomials; 2] {
        [self.weight.sums(), &mut self.weighted]
    }

    /// What the noise adds to the product of the full channel's response with an exponential.
    fn noise(&self, pole: Pole) -> Complex64 {
        let sample = Complex64::from(self.noise.power * self.feedthrough);
        let modes = self.modes.iter().map(|&(mode, w)| {
            let own = self.noise.value(pole, mode, false);
            0.5 * (w.conj() * own + w * self.noise.value(pole, mode, true))
        });
        modes.fold(sample, |sum, term| sum + term)
    }

    /// Its derivative by the exponent.
    fn noise_slope(&self, pole: Pole) -> Complex64 {
        let modes = self.modes.iter().map(|&(mode, w)| {
            let own = self.noise.slope(pole, mode, false);
            let mirrored = self.noise.slope(pole, mode, true);
            0.5 * (w.conj() * own + w * mirrored)
        });
        modes.fold(Complex64::ZERO, |sum, term| sum + term)
    }

    /// E(k − k_r) over the weight's steps, as [`weighted_error`] squared, to 1e-14 E(k): of the basis of
    /// k_r's poles with these coefficients.
    pub(super) fn square_of(&self, basis: &Basis, solution: &DVector<f64>) -> f64 {
        (self.within - basis.within.gained(solution)).max(0.0)
    }

    /// Cost O(L) for each pole and each term of the metric, and O(r² + r N) divisions.
    pub(super) fn basis(&self, points: &[Complex64]) -> Basis {
        let products = self.weight.products();
        let nodes = products.nodes(points);
        let within = Inner {
            gram: gram(products, &nodes),
            cross: cross(self.weighted.values(points).into_iter(), self.first[1]),
        };
        let noise = nodes.iter().map(|node| self.noise(node.pole));
        let whole = Inner {
            gram: &within.gram + noise_gram(self.noise, &nodes),
            cross: &within.cross + cross(noise, self.noise.power * self.first[0]),
        };
        Basis {
            nodes,
            within,
            whole,
        }
    }

    /// The derivatives of modes with these residues by their exponents.
    pub(super) fn tangents(&self, basis: &Basis, residues: &[Complex64]) -> Tangents {
        let count = 2 * basis.nodes.len();
        let mut gram = DMatrix::zeros(count, count);
        let mut with_basis = DMatrix::zeros(count + 1, count);
        let mut cross = DVector::zeros(count);
        // ∂/∂Re z of Re(w e^{zl}) is Re(w l e^{zl}), ∂/∂Im z is Re(i w l e^{zl}).
        let both = |w: Complex64| [w, Complex64::I * w];
        let pair = [Complex64::ONE, Complex64::I];
        let nodes = self.weight.products().with_slopes(&basis.nodes);
        let points: Vec<Complex64> = nodes.iter().map(|node| node.pole.z).collect();
        let with_full = self.weighted.slopes(&points);
        for (n, (a, &w)) in nodes.iter().zip(residues).enumerate() {
            for (m, (b, &v)) in nodes.iter().zip(residues).enumerate().take(n + 1) {
                let products = [false, true].map(|mirrored| {
                    self.weight.products().product(a, b, mirrored)
                        + self.noise.product(a.pole, b.pole, mirrored)
                });
                let block = real_block(products.map(|product| product.both), both(w), both(v));
                let crossed = products.map(|product| product.first);
                let crossed = real_block(crossed, both(w), pair);
                // ∂/∂z_b: that of P(b, a) by its first.
                let turned = [products[0].second.conj(), products[1].second];
                let turned = real_block(turned, both(v), pair);
                for p in 0..2 {
                    for q in 0..2 {
                        gram[(2 * n + p, 2 * m + q)] = block[p][q];
                        gram[(2 * m + q, 2 * n + p)] = block[p][q];
                        with_basis[(2 * m + q, 2 * n + p)] = crossed[p][q];
                        with_basis[(2 * n + q, 2 * m + p)] = turned[p][q];
                    }
                }
            }
            let sample = a.slope_with_sample();
            let full = with_full[n] + self.noise_slope(a.pole);
            for (p, factor) in both(w).into_iter().enumerate() {
                with_basis[(count, 2 * n + p)] = (factor * sample).re;
                cross[2 * n + p] = (factor * full).re;
            }
        }
        Tangents {
            gram,
            basis: with_basis,
            cross,
        }
    }
}

/// The basis of some poles under a weight, with the noise.
pub(super) fn gram_of(weight: &InputWeight, nodes: &[Complex64]) -> DMatrix<f64> {
    let products = weight.products();
    let nodes = products.nodes(nodes);
    gram(products, &nodes) + noise_gram(white_noise(weight), &nodes)
}

/// The noise beside a weight.
pub(super) fn white_noise(weight: &InputWeight) -> WhiteNoise {
    WhiteNoise {
        power: NOISE * NOISE * weight.products().power(),
    }
}

/// The real parts of a basis with something: of the exponentials, and of the sample.
fn cross(exponentials: impl ExactSizeIterator<Item = Complex64>, sample: f64) -> DVector<f64> {
    let count = 2 * exponentials.len() + 1;
    let parts = exponentials.flat_map(|value| [value.re, -value.im]);
    DVector::from_iterator(count, parts.chain(std::iter::once(sample)))
}

/// Products of the basis of some poles with one another.
fn gram(products: &Products, nodes: &[Node]) -> DMatrix<f64> {
    let samples = nodes.iter().map(Node::with_sample);
    let border = cross(samples, products.power());
    real_gram(&border, |n, m| {
        [false, true].map(|mirrored| products.value(&nodes[n], &nodes[m], mirrored))
    })
}

/// The same in white noise.
fn noise_gram(noise: WhiteNoise, nodes: &[Node]) -> DMatrix<f64> {
    let samples = nodes.iter().map(|_| Complex64::from(noise.power));
    let border = cross(samples, noise.power);
    real_gram(&border, |n, m| {
        [false, true].map(|mirrored| noise.value(nodes[n].pole, nodes[m].pole, mirrored))
    })
}

/// From the products with the sample, and those of two exponentials with and without a conjugate.
fn real_gram(
    border: &DVector<f64>,
    products: impl Fn(usize, usize) -> [Complex64; 2],
) -> DMatrix<f64> {
    let last = border.len() - 1;
    let mut gram = DMatrix::zeros(last + 1, last + 1);
    let pair = [Complex64::ONE, Complex64::I];
    for n in 0..last / 2 {
        for m in 0..=n {
            let block = real_block(products(n, m), pair, pair);
            for (p, row) in block.iter().enumerate() {
                for (q, &value) in row.iter().enumerate() {
                    gram[(2 * n + p, 2 * m + q)] = value;
                    gram[(2 * m + q, 2 * n + p)] = value;
                }
            }
        }
    }
    gram.set_column(last, border);
    gram.set_row(last, &border.transpose());
    gram
}

/// ⟨Re(α e_a), Re(β e_b)⟩ = Re(α β̄ P(a, b) + α β P(a, b̄))/2 for two α and two β.
fn real_block(
    [own, mirrored]: [Complex64; 2],
    first: [Complex64; 2],
    second: [Complex64; 2],
) -> [[f64; 2]; 2] {
    first.map(|alpha| second.map(|beta| 0.5 * (alpha * (beta.conj() * own + beta * mirrored)).re))
}

/// The least −Re z of a channel with stable poles.
pub(super) fn slowest(system: &DiagonalSystem) -> f64 {
    let decays = system.scaled_exponents().into_iter().map(|z| -z.re);
    decays.fold(DECAY_MAX, f64::min).max(f64::MIN_POSITIVE)
}

/// E of a difference with its noise, by the sums that it stands for.
#[cfg(test)]
pub(super) fn square_by_sums(
    full: &DiagonalSystem,
    reduced: &DiagonalSystem,
    weight: &InputWeight,
) -> f64 {
    let [full_response, own] = [full, reduced].map(|system| response(system, 20_000).unwrap());
    let white = full_response.iter().zip(own).map(|(a, b)| (a - b).powi(2));
    let error = weighted_error(full, reduced, weight).unwrap();
    error.powi(2) + NOISE * NOISE * weight.products().power() * white.sum::<f64>()
}
