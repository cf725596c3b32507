//! Values and slopes of several real polynomials at e^z.

use num_complex::Complex64;
use pulp::{Arch, Simd, WithSimd};

/// Coefficients that are taken together: one power of the pole for each.
const BLOCK: usize = 128;

/// Lanes of the sums of a block.
const WIDTH: usize = 8;

/// Blocks between two exact powers.
const EXACT_EVERY: usize = 8;

/// What is left of a power below this adds nothing.
const NEGLIGIBLE: f64 = 1e-22;

/// p_j(a) = Σ_m c_jm a^m for several j.
#[derive(Debug, Clone)]
pub(crate) struct Polynomials {
    /// Block after block, the coefficients of every polynomial in it.
    coefficients: Vec<f64>,
    count: usize,
    length: usize,
}

/// A value and its derivative by z, a = e^z.
pub(crate) type Jet = [Complex64; 2];

impl Polynomials {
    /// Polynomials of any lengths.
    pub(crate) fn new(rows: &[&[f64]]) -> Self {
        let longest = rows.iter().map(|row| row.len()).max().unwrap_or(0);
        let length = longest.next_multiple_of(BLOCK);
        let mut coefficients = vec![0.0; length * rows.len()];
        for (block, out) in coefficients
            .chunks_mut(BLOCK * rows.len().max(1))
            .enumerate()
        {
            for (row, out) in rows.iter().zip(out.chunks_mut(BLOCK)) {
                let own = row.iter().skip(block * BLOCK);
                out.iter_mut().zip(own).for_each(|(out, c)| *out = *c);
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

    /// The first coefficients of one of them.
    pub(crate) fn coefficients(&self, index: usize, count: usize) -> Vec<f64> {
        let blocks = self.coefficients.chunks_exact(BLOCK * self.count.max(1));
        let own = blocks.flat_map(|block| &block[index * BLOCK..(index + 1) * BLOCK]);
        own.take(count).copied().collect()
    }

    /// Values and slopes at e^z, Re z ≤ 0 or so little above that e^{zL} does not overflow. Cost 4
    /// products for each coefficient.
    pub(crate) fn at(&self, z: Complex64) -> Vec<Jet> {
        let mut near = [[0.0; BLOCK]; 4];
        let (pole, mut power) = (z.exp(), Complex64::ONE);
        let [re, im, ramp_re, ramp_im] = &mut near;
        let powers = re.iter_mut().zip(im);
        let ramps = ramp_re.iter_mut().zip(ramp_im);
        for (b, ((re, im), (ramp_re, ramp_im))) in powers.zip(ramps).enumerate() {
            let ramp = power * b as f64;
            (*re, *im) = (power.re, power.im);
            (*ramp_re, *ramp_im) = (ramp.re, ramp.im);
            power *= pole;
        }
        let stride = power;
        let mut jets = vec![[Complex64::ZERO; 2]; self.count];
        let mut far = Complex64::ONE;
        let blocks = self.coefficients.chunks_exact(BLOCK * self.count.max(1));
        for (block, coefficients) in blocks.enumerate() {
            if block % EXACT_EVERY == 0 {
                far = (z * (block * BLOCK) as f64).exp();
            }
            if far.norm_sqr() * (self.length as f64).powi(2) < NEGLIGIBLE * NEGLIGIBLE {
                break;
            }
            Arch::new().dispatch(Block {
                coefficients,
                near: &near,
                far,
                first: (block * BLOCK) as f64,
                jets: &mut jets,
            });
            far *= stride;
        }
        jets
    }
}

struct Block<'a> {
    coefficients: &'a [f64],
    near: &'a [[f64; BLOCK]; 4],
    far: Complex64,
    /// The exponent of the block's first power.
    first: f64,
    jets: &'a mut [Jet],
}

impl WithSimd for Block<'_> {
    type Output = ();

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) {
        let polynomials = self.coefficients.chunks_exact(BLOCK);
        for (own, jet) in polynomials.zip(self.jets) {
            let mut sums = [[0.0f64; WIDTH]; 4];
            for (part, own) in own.as_chunks::<WIDTH>().0.iter().enumerate() {
                for (sum, near) in sums.iter_mut().zip(self.near) {
                    let near = &near[part * WIDTH..(part + 1) * WIDTH];
                    for ((sum, c), power) in sum.iter_mut().zip(own).zip(near) {
                        *sum += c * power;
                    }
                }
            }
            let total = sums.map(|sum| sum.iter().sum::<f64>());
            let value = Complex64::new(total[0], total[1]);
            let ramp = Complex64::new(total[2], total[3]);
            jet[0] += self.far * value;
            jet[1] += self.far * (ramp + value * self.first);
        }
    }
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
            for (row, found) in rows.iter().zip(polynomials.at(z)) {
                let power = |m: usize| (z * m as f64).exp();
                let direct: Complex64 = (0..row.len()).map(|m| row[m] * power(m)).sum();
                let slope: Complex64 = (0..row.len()).map(|m| row[m] * m as f64 * power(m)).sum();
                let size = row.len() as f64;
                // The angles of the direct sum are rounded themselves.
                let bound = 2e-16 * size * (50.0 + size * z.norm());
                assert!((found[0] - direct).norm() < bound, "{z} {size}");
                assert!((found[1] - slope).norm() < bound * size, "{z} {size}");
            }
        }
    }
}
