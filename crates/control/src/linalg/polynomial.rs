//! Values and slopes of several real polynomials at e^z.

use num_complex::Complex64;
use pulp::{Arch, Simd, WithSimd};

/// Coefficients that are taken together: one power of the pole for each.
const BLOCK: usize = 256;

/// Blocks between two exact powers.
const EXACT_EVERY: usize = 4;

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

/// A value and its derivative by z, a = e^z.
pub(crate) type Jet = [Complex64; 2];

/// Powers of e^z, for any number of polynomials. They take 8 KiB: one is made and set to point after
/// point.
pub(crate) struct Powers {
    z: Complex64,
    /// Re a^m, Im a^m, m Re a^m and m Im a^m of a block's exponents.
    near: [[f64; BLOCK]; 4],
    /// The power behind them.
    stride: Complex64,
}

impl Powers {
    /// Of e^0, until they are set.
    pub(crate) fn unset() -> Self {
        Self {
            z: Complex64::ZERO,
            near: [[0.0; BLOCK]; 4],
            stride: Complex64::ONE,
        }
    }

    /// Those of e^z.
    pub(crate) fn set(&mut self, z: Complex64) {
        self.z = z;
        let near = &mut self.near;
        self.stride = Arch::new().dispatch(Fill {
            near,
            pole: z.exp(),
        });
    }
}

struct Fill<'a> {
    near: &'a mut [[f64; BLOCK]; 4],
    pole: Complex64,
}

impl WithSimd for Fill<'_> {
    type Output = Complex64;

    #[inline(always)]
    fn with_simd<S: Simd>(self, _: S) -> Complex64 {
        let [re, im, ramp_re, ramp_im] = self.near;
        (re[0], im[0]) = (1.0, 0.0);
        // Twice as many each time, so that no power is a long product.
        let (mut filled, mut lead) = (1, self.pole);
        while filled < BLOCK {
            let (known_re, next_re) = re.split_at_mut(filled);
            let (known_im, next_im) = im.split_at_mut(filled);
            let known = known_re.iter().zip(&*known_im);
            for ((x, y), (re, im)) in known.zip(next_re.iter_mut().zip(next_im)) {
                (*re, *im) = (x * lead.re - y * lead.im, x * lead.im + y * lead.re);
            }
            (filled, lead) = (2 * filled, lead * lead);
        }
        for m in 0..BLOCK {
            (ramp_re[m], ramp_im[m]) = (m as f64 * re[m], m as f64 * im[m]);
        }
        lead
    }
}

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
    pub(crate) fn at(&self, powers: &Powers) -> Vec<Jet> {
        let z = powers.z;
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
                near: &powers.near,
                far,
                first: (block * BLOCK) as f64,
                jets: &mut jets,
            });
            far *= powers.stride;
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
    fn with_simd<S: Simd>(self, simd: S) {
        let (near, far, first) = (self.near, self.far, self.first);
        let add = |jet: &mut Jet, total: [f64; 4]| {
            let value = Complex64::new(total[0], total[1]);
            let ramp = Complex64::new(total[2], total[3]);
            jet[0] += far * value;
            jet[1] += far * (ramp + value * first);
        };
        // Two at a time: what is loaded of the powers serves both.
        let pairs = self.coefficients.chunks_exact(2 * BLOCK);
        let last = pairs.remainder();
        let mut jets = self.jets.chunks_exact_mut(2);
        for (pair, jets) in pairs.zip(&mut jets) {
            let (one, other) = pair.split_at(BLOCK);
            let totals = sums(simd, [one, other], near);
            for (jet, total) in jets.iter_mut().zip(totals) {
                add(jet, total);
            }
        }
        for jet in jets.into_remainder() {
            add(jet, sums(simd, [last], near)[0]);
        }
    }
}

/// Σ_m c_m p_m of each row of coefficients and each of four rows of powers.
#[inline(always)]
fn sums<S: Simd, const ROWS: usize>(
    simd: S,
    rows: [&[f64]; ROWS],
    near: &[[f64; BLOCK]; 4],
) -> [[f64; 4]; ROWS] {
    let rows = rows.map(|row| S::as_simd_f64s(row).0);
    let near = near.each_ref().map(|row| S::as_simd_f64s(row).0);
    let mut sums = [[simd.splat_f64s(0.0); 4]; ROWS];
    for part in 0..BLOCK / S::F64_LANES {
        let powers = near.map(|row| row[part]);
        for (sums, row) in sums.iter_mut().zip(rows) {
            for (sum, power) in sums.iter_mut().zip(powers) {
                *sum = simd.mul_add_f64s(row[part], power, *sum);
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
        let mut powers = Powers::unset();
        for z in [(-1e-4, 0.3), (-0.3, 3.0), (-9.0, 0.1), (1e-5, 1e-3)] {
            let z = Complex64::new(z.0, z.1);
            powers.set(z);
            for (row, found) in rows.iter().zip(polynomials.at(&powers)) {
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
