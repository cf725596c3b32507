//! Inner products of exponentials in the metric of an input, in closed form.
//!
//! For the kernels e_a = (1, a, a², …) and a metric M of L steps
//!
//! ```text
//! P(a, b) = Σ_{i,j<L} a^i M_ij b̄^j = (f(a) + f(b)‾ − R(0) − Σ_k s_k g_k(a) g_k(b)‾) / (1 − a b̄)
//! f(a) = Σ_{m<L} R(m) a^m
//! ```
//!
//! since M − Z M Zᵀ, Z shifting by one step, has few rows and columns beside its first ones. Under a
//! stationary input (M Toeplitz) two g_k, with signs 1 and −1, close the sums at step L:
//!
//! ```text
//! g_±(a) = (ρ a^L ± (h(a) − R(0) a^L/2)/ρ)/√2,   h(a) = Σ_{i=1..L} R(L−i) a^i,   ρ² = R(0)
//! ```
//!
//! Under the moments of sequences there is one for each of them, Σ_i a^{i+1} u[L−1−i]/√(nL): the
//! states at the end, from which nothing follows. White noise of power ω adds
//! ω/(1 − a b̄). So a pair costs a division, and a new pole O(L) for each g.

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::linalg::{Jet, Polynomials, Powers, expm1};

/// |z + z̄'| L below which the quotient loses digits: the mean over a circle round z stands for it.
const CLOSE: f64 = 0.05;

/// Points of that circle.
const RING: usize = 10;

/// What products are formed from, for a metric.
#[derive(Debug, Clone)]
pub(super) struct Products {
    length: f64,
    /// R(0).
    power: f64,
    /// f, and h of a stationary input.
    lags: Polynomials,
    /// The generators of sequences.
    ends: Option<Polynomials>,
}

/// An exponential, with what its products need.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) z: Complex64,
    lags: Jet,
    /// With their signs.
    generators: Vec<(f64, Jet)>,
    /// The same on a circle round a slow one.
    ring: Vec<Node>,
}

/// P(a, b), with its derivatives by z_a, by the conjugate of z_b, and by both.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Product {
    pub(super) value: Complex64,
    pub(super) first: Complex64,
    pub(super) second: Complex64,
    pub(super) both: Complex64,
}

impl Products {
    /// Of a stationary input with R(0..L).
    pub(super) fn stationary(lags: &[f64]) -> Self {
        let mut turned = vec![0.0];
        turned.extend(lags.iter().rev());
        Self {
            length: lags.len() as f64,
            power: lags[0],
            lags: Polynomials::new(&[lags, &turned]),
            ends: None,
        }
    }

    /// Of sequences with R(0..L), and the coefficients of their generators (one in each column).
    pub(super) fn moments(lags: &[f64], ends: &DMatrix<f64>) -> Self {
        let shifted = ends
            .column_iter()
            .map(|end| std::iter::once(0.0).chain(end.iter().copied()).collect());
        let shifted: Vec<Vec<f64>> = shifted.collect();
        let rows: Vec<&[f64]> = shifted.iter().map(Vec::as_slice).collect();
        Self {
            length: lags.len() as f64,
            power: lags[0],
            lags: Polynomials::new(&[lags]),
            ends: Some(Polynomials::new(&rows)),
        }
    }

    /// Whether the input is taken as stationary, and not by the moments of its sequences.
    pub(super) fn is_stationary(&self) -> bool {
        self.ends.is_none()
    }

    /// The coefficients γ of the generators of sequences, each of L values.
    pub(super) fn ends(&self) -> impl Iterator<Item = Vec<f64>> {
        let count = self.ends_count();
        let own = self.ends.iter().flat_map(move |ends| {
            (0..count).map(|index| ends.coefficients(index, self.length as usize + 1))
        });
        own.map(|mut shifted| {
            shifted.remove(0);
            shifted
        })
    }

    /// How many there are.
    pub(super) fn ends_count(&self) -> usize {
        self.ends.as_ref().map_or(0, Polynomials::count)
    }

    /// The same as columns.
    pub(super) fn ends_matrix(&self) -> DMatrix<f64> {
        let columns: Vec<_> = self.ends().map(nalgebra::DVector::from_vec).collect();
        DMatrix::from_columns(&columns)
    }

    /// R(0): the product of a single sample with itself.
    pub(super) fn power(&self) -> f64 {
        self.power
    }

    /// The exponentials e^{zl}.
    pub(super) fn nodes(&self, points: impl IntoIterator<Item = Complex64>) -> Vec<Node> {
        let mut powers = Powers::unset();
        let nodes = points.into_iter().map(|z| self.node(z, &mut powers));
        nodes.collect()
    }

    /// The exponential e^{zl}; the powers are set to it, for what else is needed there.
    pub(super) fn node(&self, z: Complex64, powers: &mut Powers) -> Node {
        let mut ring = Vec::new();
        if -z.re * self.length < CLOSE {
            let radius = CLOSE / self.length;
            ring.extend((0..RING).map(|k| {
                let angle = std::f64::consts::TAU * (k as f64 + 0.5) / RING as f64;
                self.bare(z + Complex64::from_polar(radius, angle), powers)
            }));
        }
        let bare = self.bare(z, powers);
        Node { ring, ..bare }
    }

    fn bare(&self, z: Complex64, powers: &mut Powers) -> Node {
        powers.set(z);
        let jets = self.lags.at(powers);
        let last = (z * self.length).exp();
        let generators = match &self.ends {
            Some(ends) => ends.at(powers).into_iter().map(|jet| (1.0, jet)).collect(),
            None => {
                let root = self.power.sqrt();
                let end = [last, last * self.length];
                let of = |sign: f64| {
                    let parts = [0, 1].map(|part| {
                        let rest = jets[1][part] - end[part] * (0.5 * self.power);
                        (end[part] * root + rest * (sign / root)) * 0.5_f64.sqrt()
                    });
                    (sign, parts)
                };
                vec![of(1.0), of(-1.0)]
            }
        };
        Node {
            z,
            lags: jets[0],
            generators,
            ring: Vec::new(),
        }
    }

    /// The value alone of [`Products::product`].
    pub(super) fn value(&self, a: &Node, b: &Node, mirrored: bool) -> Complex64 {
        let sum = a.z + if mirrored { b.z } else { b.z.conj() };
        if !a.ring.is_empty() && sum.norm() * self.length < CLOSE {
            let ring = a.ring.iter().map(|a| self.plain(a, b, mirrored));
            return ring.sum::<Complex64>() / RING as f64;
        }
        self.plain(a, b, mirrored)
    }

    fn plain(&self, a: &Node, b: &Node, mirrored: bool) -> Complex64 {
        let turn = |value: Complex64| if mirrored { value } else { value.conj() };
        let pairs = a.generators.iter().zip(&b.generators);
        let taken = pairs.map(|((sign, own), (_, other))| own[0] * *sign * turn(other[0]));
        let top = a.lags[0] + turn(b.lags[0]) - self.power - taken.sum::<Complex64>();
        top * -expm1(a.z + turn(b.z)).inv()
    }

    /// P(a, b), or P(a, b̄) with `mirrored`.
    pub(super) fn product(&self, a: &Node, b: &Node, mirrored: bool) -> Product {
        let sum = a.z + if mirrored { b.z } else { b.z.conj() };
        if !a.ring.is_empty() && sum.norm() * self.length < CLOSE {
            let mut mean = Product::default();
            for a in &a.ring {
                let own = self.quotient(a, b, mirrored);
                mean.value += own.value / RING as f64;
                mean.first += own.first / RING as f64;
                mean.second += own.second / RING as f64;
                mean.both += own.both / RING as f64;
            }
            return mean;
        }
        self.quotient(a, b, mirrored)
    }

    fn quotient(&self, a: &Node, b: &Node, mirrored: bool) -> Product {
        let turn = |value: Complex64| if mirrored { value } else { value.conj() };
        let shift = expm1(a.z + turn(b.z));
        // 1/(1 − a b̄) and a b̄.
        let (u, q) = (-shift.inv(), shift + 1.0);
        let mut sums = Product::default();
        for ((sign, own), (_, other)) in a.generators.iter().zip(&b.generators) {
            let [value, slope] = own.map(|x| x * *sign);
            let [other, other_slope] = other.map(turn);
            sums.value += value * other;
            sums.first += slope * other;
            sums.second += value * other_slope;
            sums.both += slope * other_slope;
        }
        let top = a.lags[0] + turn(b.lags[0]) - self.power - sums.value;
        let (first, second) = (a.lags[1] - sums.first, turn(b.lags[1]) - sums.second);
        let slope = q * u * u;
        Product {
            value: top * u,
            first: first * u + top * slope,
            second: second * u + top * slope,
            both: (first + second) * slope - sums.both * u + top * slope * (1.0 + 2.0 * q * u),
        }
    }
}

impl Node {
    /// g_k(a)/√((1 − |a|²) P), P being the exponential's own square: what each end takes away of it.
    pub(super) fn ends(&self, square: f64) -> Vec<Complex64> {
        let fading = -expm1(Complex64::from(2.0 * self.z.re)).re;
        let scale = (fading * square).max(f64::MIN_POSITIVE).sqrt().recip();
        self.generators
            .iter()
            .map(|(_, jet)| jet[0] * scale)
            .collect()
    }

    /// P(a, 1), the product with a single sample at step 0: f(a).
    pub(super) fn with_sample(&self) -> Jet {
        self.lags
    }
}

/// What white noise adds to products: Σ_{l≥0} a^l b̄^l ω.
#[derive(Debug, Clone, Copy)]
pub(super) struct WhiteNoise {
    /// ω.
    pub(super) power: f64,
}

impl WhiteNoise {
    /// The sum for a and b, or b̄ with `mirrored`, with its derivatives.
    pub(super) fn product(self, a: Complex64, b: Complex64, mirrored: bool) -> Product {
        let shift = expm1(a + if mirrored { b } else { b.conj() });
        let value = -self.power / shift;
        let slope = -(shift + 1.0) / shift;
        Product {
            value,
            first: value * slope,
            second: value * slope,
            both: value * (2.0 * slope * slope + slope),
        }
    }
}

impl std::ops::Add for Product {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            value: self.value + other.value,
            first: self.first + other.first,
            second: self.second + other.second,
            both: self.both + other.both,
        }
    }
}
