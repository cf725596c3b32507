//! Values and slopes of several real polynomials at e^z.

use num_complex::Complex64;
use pulp::{Arch, Simd, WithSimd};

/// Coefficients that are taken together: one power of the pole for each.
const BLOCK: usize = 256;

/// Blocks between two exact powers.
const EXACT_EVERY: usize = 4;

/// Points that go through the coefficients together. A block of those of many polynomials is larger than the
/// nearest cache; it is read for each pair of points while it is in the next.
const POINTS_TOGETHER: usize = 8;

/// The length of a block is a multiple of this: whole vectors of any machine.
const WHOLE: usize = 16;

/// What is left of a power below this adds nothing.
const NEGLIGIBLE: f64 = 1e-19;

/// p_j(a) = Σ_m c_jm a^m for several j.
#[derive(Debug, Clone)]
pub(crate) struct Polynomials {
    /// Block after block, the coefficients of every polynomial in it.
    coefficients: Vec<f64>,
    count: usize,
    length: usize,
}

/// Which derivative by z of a polynomial at e^z.
#[derive(Clone, Copy)]
enum Order {
    Value,
    Slope,
}

/// What the coefficients of a block are multiplied by for two points: the real and imaginary parts of both.
type Factors = [[f64; BLOCK]; 4];

/// Powers of e^z for one or two points.
struct Pair {
    points: [Complex64; 2],
    /// a^m for the exponents of a block.
    near: Factors,
    /// The powers behind them.
    strides: [Complex64; 2],
    /// The powers at the start of the block at hand.
    far: [Complex64; 2],
}

impl Pair {
    /// Of one point, that point twice.
    fn new(points: &[Complex64]) -> Self {
        let points = [points[0], points[points.len() - 1]];
        let mut near = [[0.0; BLOCK]; 4];
        let poles = points.map(|z| z.exp());
        let strides = Arch::new().dispatch(Fill {
            near: &mut near,
            poles,
        });
        Self {
            points,
            near,
            strides,
            far: [Complex64::ONE; 2],
        }
    }

    /// Goes to the next block.
    fn go_to(&mut self, block: usize) {
        let first = (block * BLOCK) as f64;
        self.far = match block % EXACT_EVERY {
            0 => self.points.map(|z| (z * first).exp()),
            _ => [0, 1].map(|which| self.far[which] * self.strides[which]),
        };
    }
}

struct Fill<'a> {
    near: &'a mut Factors,
    poles: [Complex64; 2],
}

impl WithSimd for Fill<'_> {
    type Output = [Complex64; 2];

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> [Complex64; 2] {
        let mut strides = self.poles;
        let (parts, _) = self.near.as_chunks_mut::<2>();
        for ([re, im], lead) in parts.iter_mut().zip(&mut strides) {
            (re[0], im[0]) = (1.0, 0.0);
            // Twice as many each time, so that no power is a long product.
            let mut filled = 1;
            while filled < BLOCK {
                let (known_re, next_re) = re.split_at_mut(filled);
                let (known_im, next_im) = im.split_at_mut(filled);
                let known = known_re.iter().zip(&*known_im);
                for ((x, y), (re, im)) in known.zip(next_re.iter_mut().zip(next_im)) {
                    (*re, *im) = (x * lead.re - y * lead.im, x * lead.im + y * lead.re);
                }
                (filled, *lead) = (2 * filled, *lead * *lead);
            }
        }
        strides
    }
}

impl Polynomials {
    /// Polynomials of any lengths.
    pub(crate) fn new(rows: &[&[f64]]) -> Self {
        let longest = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        let length = longest.next_multiple_of(WHOLE);
        let mut coefficients = Vec::with_capacity(length * rows.len());
        for first in (0..length).step_by(BLOCK) {
            let width = BLOCK.min(length - first);
            for row in rows {
                let own = row.iter().skip(first).take(width).copied();
                coefficients.extend(own.chain(std::iter::repeat(0.0)).take(width));
            }
        }
        Self {
            coefficients,
            count: rows.len(),
            length,
        }
    }

    /// How many.
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    /// How many numbers they hold, also while these are taken out.
    pub(crate) fn size(&self) -> usize {
        self.count * self.length
    }

    /// Takes the numbers out, in the order that [`Polynomials::put`] expects.
    pub(crate) fn take(&mut self) -> Vec<f64> {
        std::mem::take(&mut self.coefficients)
    }

    /// Puts numbers that were taken out in again.
    pub(crate) fn put(&mut self, numbers: Vec<f64>) {
        debug_assert_eq!(numbers.len(), self.size());
        self.coefficients = numbers;
    }

    /// The coefficients of each block, and how many of them a polynomial has there.
    fn blocks(&self) -> impl Iterator<Item = (&[f64], usize)> {
        let each = self.coefficients.chunks(BLOCK * self.count.max(1));
        each.map(|block| (block, block.len() / self.count))
    }

    /// The first coefficients of one of them.
    pub(crate) fn coefficients(&self, index: usize, count: usize) -> Vec<f64> {
        let own = self
            .blocks()
            .flat_map(|(block, width)| &block[index * width..(index + 1) * width]);
        own.take(count).copied().collect()
    }

    /// Values at e^z, point after point, Re z ≤ 0 or so little above that e^{zL} does not overflow. Cost
    /// 2 products for each coefficient and point.
    pub(crate) fn values(&self, points: &[Complex64]) -> Vec<Complex64> {
        self.at(points, Order::Value)
    }

    /// The same of the derivatives by z.
    pub(crate) fn slopes(&self, points: &[Complex64]) -> Vec<Complex64> {
        self.at(points, Order::Slope)
    }

    fn at(&self, points: &[Complex64], order: Order) -> Vec<Complex64> {
        let mut sums = vec![Complex64::ZERO; self.count * points.len()];
        let least = (NEGLIGIBLE / self.length as f64).powi(2);
        let together = sums.chunks_mut((POINTS_TOGETHER * self.count).max(1));
        for (points, sums) in points.chunks(POINTS_TOGETHER).zip(together) {
            let mut pairs: Vec<Pair> = points.chunks(2).map(Pair::new).collect();
            for (index, (coefficients, width)) in self.blocks().enumerate() {
                for (pair, sums) in pairs.iter_mut().zip(sums.chunks_mut(2 * self.count)) {
                    pair.go_to(index);
                    if pair.far.iter().all(|far| far.norm_sqr() < least) {
                        continue;
                    }
                    Arch::new().dispatch(Block {
                        coefficients,
                        width,
                        pair,
                        ramp: match order {
                            Order::Value => None,
                            Order::Slope => Some((index * BLOCK) as f64),
                        },
                        sums,
                    });
                }
            }
        }
        sums
    }
}

struct Block<'a> {
    coefficients: &'a [f64],
    /// Coefficients of each polynomial.
    width: usize,
    pair: &'a Pair,
    /// The exponent of the block's first power, where every power counts as often as its exponent.
    ramp: Option<f64>,
    /// Those of the first point, then those of the second.
    sums: &'a mut [Complex64],
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, simd: S) {
        let Self {
            coefficients,
            width,
            pair,
            ramp,
            sums,
        } = self;
        let mut ramped;
        let factors = match ramp {
            None => &pair.near,
            Some(first) => {
                ramped = [[0.0; BLOCK]; 4];
                for (ramped, near) in ramped.iter_mut().zip(&pair.near) {
                    for (m, (ramped, near)) in ramped.iter_mut().zip(near).enumerate() {
                        *ramped = (first + m as f64) * near;
                    }
                }
                &ramped
            }
        };
        let count = coefficients.len() / width;
        let mut add = |row: usize, total: [f64; 4]| {
            let (parts, _) = total.as_chunks::<2>();
            for (which, &[re, im]) in parts.iter().enumerate() {
                if let Some(sum) = sums.get_mut(which * count + row) {
                    *sum += pair.far[which] * Complex64::new(re, im);
                }
            }
        };
        // Two at a time: what is loaded of the powers serves both.
        let rows = coefficients.chunks_exact(2 * width);
        let last = rows.remainder();
        for (index, rows) in rows.enumerate() {
            let (one, other) = rows.split_at(width);
            let totals = sum_rows(simd, [one, other], factors);
            for (which, total) in totals.into_iter().enumerate() {
                add(2 * index + which, total);
            }
        }
        if !last.is_empty() {
            add(count - 1, sum_rows(simd, [last], factors)[0]);
        }
    }
}

/// Σ_m c_m p_m of each row of coefficients and each of four rows of powers.
#[inline(always)]
fn sum_rows<S: Simd, const ROWS: usize>(
    simd: S,
    rows: [&[f64]; ROWS],
    factors: &Factors,
) -> [[f64; 4]; ROWS] {
    let rows = rows.map(|row| S::as_simd_f64s(row).0);
    let factors = factors.each_ref().map(|row| S::as_simd_f64s(row).0);
    let mut sums = [[simd.splat_f64s(0.0); 4]; ROWS];
    for part in 0..rows[0].len() {
        let powers = factors.map(|row| row[part]);
        for (sums, row) in sums.iter_mut().zip(rows) {
            for (sum, power) in sums.iter_mut().zip(powers) {
                *sum = simd.mul_add_e_f64s(row[part], power, *sum);
            }
        }
    }
    // No closures: those of `map` are not put in line, and a call without vectors takes longer than
    // all above.
    let mut totals = [[0.0; 4]; ROWS];
    for (totals, sums) in totals.iter_mut().zip(sums) {
        for (total, sum) in totals.iter_mut().zip(sums) {
            *total = simd.reduce_sum_f64s(sum);
        }
    }
    totals
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_slopes_are_the_direct_sums() {
        let rows: Vec<Vec<f64>> = [1, 31, 32, 33, 700, 2100]
            .iter()
            .map(|&length| (0..length).map(|m| (0.3 * m as f64).cos() + 0.1).collect())
            .collect();
        let slices: Vec<&[f64]> = rows.iter().map(Vec::as_slice).collect();
        let polynomials = Polynomials::new(&slices);
        assert_eq!(polynomials.coefficients(4, 700), rows[4]);
        for z in [(-1e-4, 0.3), (-0.3, 3.0), (-9.0, 0.1), (1e-5, 1e-3)] {
            let z = Complex64::new(z.0, z.1);
            let found = [polynomials.values(&[z]), polynomials.slopes(&[z])];
            for (j, row) in rows.iter().enumerate() {
                let power = |m: usize| (z * m as f64).exp();
                let direct: Complex64 = (0..row.len()).map(|m| row[m] * power(m)).sum();
                let slope: Complex64 = (0..row.len()).map(|m| row[m] * m as f64 * power(m)).sum();
                let size = row.len() as f64;
                // The angles of the direct sum are rounded themselves.
                let bound = 2e-16 * size * (50.0 + size * z.norm());
                assert!((found[0][j] - direct).norm() < bound, "{z} {size}");
                assert!((found[1][j] - slope).norm() < bound * size, "{z} {size}");
            }
        }
    }
}
