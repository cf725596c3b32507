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

use crate::linalg::{Polynomials, expm1};

/// |z + z̄'| L below which the quotient loses digits: the mean over a circle round z stands for it.
const CLOSE: f64 = 0.05;

/// |a b̄ − 1| below which the difference of known numbers loses more than three bits.
const NEAR_ONE: f64 = 0.125;

/// Points of that circle.
const RING: usize = 10;

/// What products are formed from, for a metric.
#[derive(Debug, Clone)]
pub(super) struct Products {
    length: usize,
    /// R(0).
    power: f64,
    /// f; and h/a of a stationary input, or the generators of sequences, each divided by a.
    sums: Polynomials,
    stationary: bool,
}

/// An exponential e^{zl}.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pole {
    pub(super) z: Complex64,
    /// e^z.
    a: Complex64,
}

impl Pole {
    pub(super) fn new(z: Complex64) -> Self {
        Self { z, a: z.exp() }
    }

    fn conj(self) -> Self {
        Self {
            z: self.z.conj(),
            a: self.a.conj(),
        }
    }

    /// a b̄ − 1, or a b − 1 with `mirrored`.
    pub(super) fn turned_less_one(self, other: Self, mirrored: bool) -> Complex64 {
        let other = if mirrored { other } else { other.conj() };
        let rough = self.a * other.a - 1.0;
        match rough.norm_sqr() < NEAR_ONE * NEAR_ONE {
            true => expm1(self.z + other.z),
            false => rough,
        }
    }
}

/// An exponential, with what its products need.
#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) pole: Pole,
    lags: Complex64,
    /// h of a stationary input.
    turned: Complex64,
    generators: Vec<Complex64>,
    /// The same on a circle round a slow one.
    ring: Vec<Node>,
}

/// An exponential, with what the derivatives of its products need.
#[derive(Debug, Clone)]
pub(super) struct SlopedNode {
    pub(super) pole: Pole,
    lags: Jet,
    generators: Vec<Jet>,
    /// The same on a circle round a slow one.
    ring: Vec<SlopedNode>,
}

/// A value and its derivative by z.
pub(super) type Jet = [Complex64; 2];

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
        let turned: Vec<f64> = lags.iter().rev().copied().collect();
        Self {
            length: lags.len(),
            power: lags[0],
            sums: Polynomials::new(&[lags, &turned]),
            stationary: true,
        }
    }

    /// Of sequences with R(0..L), and the coefficients of their generators (one in each column).
    pub(super) fn moments(lags: &[f64], ends: &DMatrix<f64>) -> Self {
        let rows = std::iter::once(lags).chain(ends.as_slice().chunks_exact(lags.len()));
        Self {
            length: lags.len(),
            power: lags[0],
            sums: Polynomials::new(&rows.collect::<Vec<_>>()),
            stationary: false,
        }
    }

    /// The number of steps L.
    pub(super) fn length(&self) -> usize {
        self.length
    }

    /// The long vectors.
    pub(super) fn sums(&mut self) -> &mut Polynomials {
        &mut self.sums
    }

    /// R(0), ..., R(L−1).
    pub(super) fn lags(&self) -> Vec<f64> {
        self.sums.coefficients(0, self.length)
    }

    /// Whether the input is taken as stationary, and not by the moments of its sequences.
    pub(super) fn is_stationary(&self) -> bool {
        self.stationary
    }

    /// The coefficients γ of the generators of sequences, each of L values.
    pub(super) fn ends(&self) -> impl Iterator<Item = Vec<f64>> {
        (0..self.ends_count()).map(|index| self.sums.coefficients(1 + index, self.length))
    }

    /// How many there are.
    pub(super) fn ends_count(&self) -> usize {
        match self.stationary {
            true => 0,
            false => self.sums.count() - 1,
        }
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

    /// The products of exponentials with a single sample at step 0: f.
    pub(super) fn with_sample(&self, points: &[Complex64]) -> Vec<Complex64> {
        let values = self.sums.values(points).into_iter();
        values.step_by(self.sums.count()).collect()
    }

    /// The exponentials e^{zl}.
    pub(super) fn nodes(&self, points: &[Complex64]) -> Vec<Node> {
        let rings = points.iter().map(|&z| self.ring(z));
        let rings: Vec<Vec<Complex64>> = rings.collect();
        let all = points.iter().zip(&rings);
        let all = all.flat_map(|(z, ring)| std::iter::once(z).chain(ring));
        let all: Vec<Complex64> = all.copied().collect();
        let sums = self.sums.values(&all);
        let sums = sums.chunks_exact(self.sums.count());
        let mut made = all.iter().zip(sums).map(|(&z, own)| self.node(z, own));
        let nodes = rings.iter().filter_map(|ring| {
            let own = made.next()?;
            Some(Node {
                ring: made.by_ref().take(ring.len()).collect(),
                ..own
            })
        });
        nodes.collect()
    }

    /// Points on a circle round a slow one.
    fn ring(&self, z: Complex64) -> Vec<Complex64> {
        if -z.re * self.length as f64 >= CLOSE {
            return Vec::new();
        }
        let radius = CLOSE / self.length as f64;
        let points = (0..RING).map(|k| {
            let angle = std::f64::consts::TAU * (k as f64 + 0.5) / RING as f64;
            z + Complex64::from_polar(radius, angle)
        });
        points.collect()
    }

    /// From the values of the polynomials.
    fn node(&self, z: Complex64, sums: &[Complex64]) -> Node {
        let pole = Pole::new(z);
        let (turned, generators) = match self.stationary {
            true => {
                let turned = pole.a * sums[1];
                let last = (z * self.length as f64).exp();
                (turned, self.both(last, turned).to_vec())
            }
            false => {
                let shifted = sums[1..].iter().map(|sum| pole.a * sum);
                (Complex64::ZERO, shifted.collect())
            }
        };
        Node {
            pole,
            lags: sums[0],
            turned,
            generators,
            ring: Vec::new(),
        }
    }

    /// g₊ and g₋ from a^L and h, or their derivatives from those of both.
    fn both(&self, last: Complex64, turned: Complex64) -> [Complex64; 2] {
        let root = self.power.sqrt();
        let rest = turned - last * (0.5 * self.power);
        [1.0, -1.0].map(|sign| (last * root + rest * (sign / root)) * 0.5_f64.sqrt())
    }

    /// The sign of a generator.
    fn sign(&self, generator: usize) -> f64 {
        match self.stationary && generator == 1 {
            true => -1.0,
            false => 1.0,
        }
    }

    /// Exponentials with the derivatives of what they have.
    pub(super) fn with_slopes(&self, nodes: &[Node]) -> Vec<SlopedNode> {
        let all = nodes
            .iter()
            .flat_map(|node| std::iter::once(node).chain(&node.ring));
        let all: Vec<&Node> = all.collect();
        let points: Vec<Complex64> = all.iter().map(|node| node.pole.z).collect();
        let slopes = self.sums.slopes(&points);
        let slopes = slopes.chunks_exact(self.sums.count());
        let mut made = all
            .iter()
            .zip(slopes)
            .map(|(node, own)| self.sloped(node, own));
        let sloped = nodes.iter().filter_map(|node| {
            let own = made.next()?;
            Some(SlopedNode {
                ring: made.by_ref().take(node.ring.len()).collect(),
                ..own
            })
        });
        sloped.collect()
    }

    /// From the slopes of the polynomials.
    fn sloped(&self, node: &Node, slopes: &[Complex64]) -> SlopedNode {
        let Pole { z, a } = node.pole;
        let own: Vec<Complex64> = match self.stationary {
            true => {
                let length = self.length as f64;
                let last = length * (z * length).exp();
                self.both(last, a * slopes[1] + node.turned).to_vec()
            }
            false => {
                let pairs = node.generators.iter().zip(&slopes[1..]);
                pairs.map(|(value, slope)| a * slope + value).collect()
            }
        };
        let jets = node.generators.iter().zip(own);
        SlopedNode {
            pole: node.pole,
            lags: [node.lags, slopes[0]],
            generators: jets.map(|(&value, slope)| [value, slope]).collect(),
            ring: Vec::new(),
        }
    }

    /// The value alone of [`Products::product`].
    pub(super) fn value(&self, a: &Node, b: &Node, mirrored: bool) -> Complex64 {
        let b_z = b.pole.z;
        let sum = a.pole.z + if mirrored { b_z } else { b_z.conj() };
        if !a.ring.is_empty() && sum.norm() * (self.length as f64) < CLOSE {
            let ring = a.ring.iter().map(|a| self.plain(a, b, mirrored));
            return ring.sum::<Complex64>() / RING as f64;
        }
        self.plain(a, b, mirrored)
    }

    fn plain(&self, a: &Node, b: &Node, mirrored: bool) -> Complex64 {
        let turn = |value: Complex64| if mirrored { value } else { value.conj() };
        let mut taken = Complex64::ZERO;
        for (k, (own, other)) in a.generators.iter().zip(&b.generators).enumerate() {
            taken += own * self.sign(k) * turn(*other);
        }
        let top = a.lags + turn(b.lags) - self.power - taken;
        -top / a.pole.turned_less_one(b.pole, mirrored)
    }

    /// P(a, b), or P(a, b̄) with `mirrored`.
    pub(super) fn product(&self, a: &SlopedNode, b: &SlopedNode, mirrored: bool) -> Product {
        let b_z = b.pole.z;
        let sum = a.pole.z + if mirrored { b_z } else { b_z.conj() };
        if !a.ring.is_empty() && sum.norm() * (self.length as f64) < CLOSE {
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

    fn quotient(&self, a: &SlopedNode, b: &SlopedNode, mirrored: bool) -> Product {
        let turn = |value: Complex64| if mirrored { value } else { value.conj() };
        let shift = a.pole.turned_less_one(b.pole, mirrored);
        // 1/(1 − a b̄) and a b̄.
        let (u, q) = (-shift.inv(), shift + 1.0);
        let mut sums = Product::default();
        for (k, (own, other)) in a.generators.iter().zip(&b.generators).enumerate() {
            let [value, slope] = own.map(|x| x * self.sign(k));
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
        let fading = -expm1(Complex64::from(2.0 * self.pole.z.re)).re;
        let scale = (fading * square).max(f64::MIN_POSITIVE).sqrt().recip();
        self.generators.iter().map(|value| value * scale).collect()
    }

    /// P(a, 1), the product with a single sample at step 0: f(a).
    pub(super) fn with_sample(&self) -> Complex64 {
        self.lags
    }
}

impl SlopedNode {
    /// The derivative of P(a, 1).
    pub(super) fn slope_with_sample(&self) -> Complex64 {
        self.lags[1]
    }
}

/// What white noise adds to products: Σ_{l≥0} a^l b̄^l ω.
#[derive(Debug, Clone, Copy)]
pub(super) struct WhiteNoise {
    /// ω.
    pub(super) power: f64,
}

impl WhiteNoise {
    /// The sum for a and b, or b̄ with `mirrored`.
    pub(super) fn value(self, a: Pole, b: Pole, mirrored: bool) -> Complex64 {
        -self.power / a.turned_less_one(b, mirrored)
    }

    /// Its derivative by z_a.
    pub(super) fn slope(self, a: Pole, b: Pole, mirrored: bool) -> Complex64 {
        let shift = a.turned_less_one(b, mirrored);
        self.power * (shift + 1.0) / (shift * shift)
    }

    /// The sum with its derivatives.
    pub(super) fn product(self, a: Pole, b: Pole, mirrored: bool) -> Product {
        let shift = a.turned_less_one(b, mirrored);
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_product_near_one_keeps_its_digits_less_one() {
        for (re, im) in [(-1e-9, 0.3), (-1e-3, 2.0), (-0.5, 0.1), (-3.0, 1.0)] {
            let pole = Pole::new(Complex64::new(re, im));
            let found = pole.turned_less_one(pole, false);
            let expected = f64::exp_m1(2.0 * re);
            assert!((found / expected - 1.0).norm() < 4e-15, "{re}: {found}");
            let other = Pole::new(Complex64::new(re, -im));
            let mirrored = pole.turned_less_one(other, true);
            assert!(
                (mirrored / expected - 1.0).norm() < 4e-15,
                "{re}: {mirrored}"
            );
        }
    }

    #[test]
    fn slow_exponentials_alone_have_a_ring() {
        let lags: Vec<f64> = (0..50).map(|l| 0.8_f64.powi(l)).collect();
        let products = Products::stationary(&lags);
        let points = [1.1 * CLOSE / 50.0, 0.9 * CLOSE / 50.0].map(|decay| Complex64::from(-decay));
        let nodes = products.nodes(&points);
        assert!(nodes[0].ring.is_empty());
        assert_eq!(nodes[1].ring.len(), RING);
        for node in &nodes[1].ring {
            let distance = (node.pole.z - points[1]).norm() * 50.0;
            assert!((distance / CLOSE - 1.0).abs() < 1e-12);
        }
    }
}
