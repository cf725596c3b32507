//! Gains and kernels of systems, for curves.

use hankelite_control::DiagonalSystem;
use nalgebra::DMatrix;
use num_complex::Complex64;

/// Frequencies at which the gain is taken in each band; the band has their root mean square, so
/// that a narrow resonance is not missed between two bands.
const SAMPLES: usize = 8;

/// Bands of frequency: 0, and bands of equal ratio from half a cycle in L steps to half a cycle per
/// step.
pub(crate) struct Bands {
    /// Cycles per step in the middle of each, the first 0.
    pub(crate) cycles: Vec<f64>,
    /// Those at which each is sampled.
    samples: Vec<Vec<f64>>,
}

impl Bands {
    /// `count` bands above 0 for kernels of so many steps.
    pub(crate) fn new(steps: usize, count: usize) -> Self {
        let (low, high) = (0.5 / steps.max(4) as f64, 0.5f64);
        let edge = |part: f64| low * (high / low).powf(part / count as f64);
        let (mut cycles, mut samples) = (vec![0.0], vec![vec![0.0]]);
        for band in 0..count {
            cycles.push(edge(band as f64 + 0.5));
            let inside = (0..SAMPLES).map(|i| (i as f64 + 0.5) / SAMPLES as f64);
            samples.push(inside.map(|part| edge(band as f64 + part)).collect());
        }
        Self { cycles, samples }
    }

    /// The root mean square in each band of a function of cycles per step, given its square.
    fn root_mean_squares(&self, square: impl Fn(f64) -> f64) -> Vec<f64> {
        let bands = self.samples.iter().map(|inside| {
            let sum: f64 = inside.iter().map(|&cycles| square(cycles)).sum();
            (sum / inside.len() as f64).max(0.0).sqrt()
        });
        bands.collect()
    }

    /// Amplitude density of an input of the autocorrelation R(0), R(1), … (theory.md (17)).
    ///
    /// Cost O(L) for each sample.
    pub(crate) fn density(&self, lags: &[f64]) -> Vec<f64> {
        self.root_mean_squares(|cycles| {
            let turn = Complex64::from_polar(1.0, std::f64::consts::TAU * cycles);
            let (mut at, mut sum) = (Complex64::new(1.0, 0.0), -lags.first().unwrap_or(&0.0));
            for lag in lags {
                sum += 2.0 * lag * at.re;
                at *= turn;
            }
            sum
        })
    }
}

/// A system, or the difference of two, whose gain ‖G(e^{iω})‖_F and impulse response
/// are wanted.
///
/// With one input and one output the numbers are formed themselves, with their sign. Else their
/// squares come from inner products of the modes' residue matrices V_n = c_n b_n:
///
/// ```text
/// G = D + ½ Σ_n (p_n V_n + q_n V̄_n),   p_n = 1/(1 − a_n e^{−iω}),   q_n = 1/(1 − ā_n e^{−iω})
/// ```
pub(crate) struct Response {
    poles: Vec<Complex64>,
    feedthrough: DMatrix<f64>,
    residues: Residues,
}

enum Residues {
    Single(Vec<Complex64>),
    Products {
        /// ⟨V_m, V_n⟩ and ⟨V_m, V̄_n⟩.
        own: DMatrix<Complex64>,
        conjugate: DMatrix<Complex64>,
        /// ⟨D, V_n⟩.
        direct: Vec<Complex64>,
    },
}

impl Response {
    pub(crate) fn of(system: &DiagonalSystem) -> Self {
        Self::of_parts(
            system.poles(),
            system.input().clone(),
            system.output().clone(),
            system.feedthrough().clone(),
        )
    }

    /// Of `full` less `reduced`, systems of the same inputs and outputs.
    pub(crate) fn of_difference(full: &DiagonalSystem, reduced: &DiagonalSystem) -> Self {
        let (n, r) = (full.order(), reduced.order());
        let (m, p) = (full.input().ncols(), full.output().nrows());
        let input = DMatrix::from_fn(n + r, m, |i, j| match i < n {
            true => full.input()[(i, j)],
            false => reduced.input()[(i - n, j)],
        });
        let output = DMatrix::from_fn(p, n + r, |i, j| match j < n {
            true => full.output()[(i, j)],
            false => -reduced.output()[(i, j - n)],
        });
        let poles = [full.poles(), reduced.poles()].concat();
        let feedthrough = full.feedthrough() - reduced.feedthrough();
        Self::of_parts(poles, input, output, feedthrough)
    }

    fn of_parts(
        poles: Vec<Complex64>,
        input: DMatrix<Complex64>,
        output: DMatrix<Complex64>,
        feedthrough: DMatrix<f64>,
    ) -> Self {
        let residues = if feedthrough.shape() == (1, 1) {
            let products = output.iter().zip(input.iter());
            Residues::Single(products.map(|(c, b)| c * b).collect())
        } else {
            let direct = output.adjoint().map(|c| c.conj()) * feedthrough.map(Complex64::from);
            let direct = (0..poles.len()).map(|n| direct.row(n).dot(&input.row(n)));
            let plain =
                (output.adjoint() * &output).component_mul(&(&input * input.adjoint()).transpose());
            let conjugate = (output.adjoint() * output.map(|c| c.conj()))
                .component_mul(&(input.map(|b| b.conj()) * input.adjoint()));
            Residues::Products {
                direct: direct.collect(),
                own: plain,
                conjugate,
            }
        };
        Self {
            poles,
            feedthrough,
            residues,
        }
    }

    /// The root mean square gain in each band.
    pub(crate) fn gains(&self, bands: &Bands) -> Vec<f64> {
        bands.root_mean_squares(|cycles| self.squared_gain(cycles))
    }

    fn squared_gain(&self, cycles: f64) -> f64 {
        let turn = Complex64::from_polar(1.0, -std::f64::consts::TAU * cycles);
        let one = Complex64::new(1.0, 0.0);
        let of = |pole: Complex64| one / (one - pole * turn);
        let p: Vec<Complex64> = self.poles.iter().map(|&pole| of(pole)).collect();
        let q: Vec<Complex64> = self.poles.iter().map(|pole| of(pole.conj())).collect();
        match &self.residues {
            Residues::Single(residues) => {
                let terms = residues.iter().zip(p.iter().zip(&q));
                let sum: Complex64 = terms.map(|(w, (p, q))| w * p + w.conj() * q).sum();
                (0.5 * sum + self.feedthrough[(0, 0)]).norm_sqr()
            }
            Residues::Products { direct, .. } => {
                let cross = direct.iter().zip(p.iter().zip(&q));
                let cross: Complex64 = cross.map(|(d, (p, q))| d * p + d.conj() * q).sum();
                self.squared_sum(&p, &q) + cross.re + self.feedthrough.norm_squared()
            }
        }
    }

    /// ‖½ Σ (p_n V_n + q_n V̄_n)‖²_F.
    fn squared_sum(&self, p: &[Complex64], q: &[Complex64]) -> f64 {
        let Residues::Products { own, conjugate, .. } = &self.residues else {
            return 0.0;
        };
        let mut sum = Complex64::new(0.0, 0.0);
        for (m, (pm, qm)) in p.iter().zip(q).enumerate() {
            for (n, (pn, qn)) in p.iter().zip(q).enumerate() {
                sum += pm.conj() * own[(m, n)] * pn + qm.conj() * own[(m, n)].conj() * qn;
                sum += 2.0 * pm.conj() * conjugate[(m, n)] * qn;
            }
        }
        0.25 * sum.re
    }

    /// The first samples of the impulse response, k with D in the first of them; with several
    /// inputs or outputs their Frobenius norms.
    pub(crate) fn impulse(&self, steps: usize) -> Vec<f64> {
        let mut powers = vec![Complex64::new(1.0, 0.0); self.poles.len()];
        let mut response = Vec::with_capacity(steps);
        for step in 0..steps {
            response.push(self.sample(&powers, step == 0));
            for (power, pole) in powers.iter_mut().zip(&self.poles) {
                *power *= pole;
            }
        }
        response
    }

    /// One sample, from the powers of the poles.
    fn sample(&self, powers: &[Complex64], first: bool) -> f64 {
        match &self.residues {
            Residues::Single(residues) => {
                let terms = residues.iter().zip(powers);
                let kernel: f64 = terms.map(|(w, power)| (w * power).re).sum();
                kernel + if first { self.feedthrough[(0, 0)] } else { 0.0 }
            }
            Residues::Products { direct, .. } => {
                let back: Vec<Complex64> = powers.iter().map(|power| power.conj()).collect();
                let with_direct = match first {
                    true => {
                        let cross: f64 = direct.iter().map(|d| 2.0 * d.re).sum();
                        cross + self.feedthrough.norm_squared()
                    }
                    false => 0.0,
                };
                (self.squared_sum(powers, &back) + with_direct)
                    .max(0.0)
                    .sqrt()
            }
        }
    }
}

/// Kernels of one channel in few numbers.
pub(crate) struct Sampled {
    /// Over the peak.
    pub(crate) curves: Vec<Vec<f64>>,
    pub(crate) peak: f64,
    /// Steps behind each pair of values; 1 where values are those of single steps.
    pub(crate) stride: usize,
}

/// The share of a kernel's energy that may lie behind what is shown.
const BEHIND: f64 = 1e-3;

/// At most `most` values of each kernel, over the steps that hold nearly all energy of the first:
/// those of single steps, or else the least and the largest of every so many.
pub(crate) fn sampled(kernels: &[&[f64]], most: usize) -> Sampled {
    let steps = reach(kernels[0]).max(most.min(32)).min(kernels[0].len());
    let stride = match steps <= most {
        true => 1,
        false => steps.div_ceil(most / 2),
    };
    let shown = kernels.iter().map(|kernel| &kernel[..steps]);
    let peak = shown.clone().flatten().fold(0.0f64, |p, k| p.max(k.abs()));
    let scale = if peak > 0.0 && peak.is_finite() {
        peak
    } else {
        1.0
    };
    let curves = shown.map(|kernel| {
        let kernel: Vec<f64> = kernel.iter().map(|k| k / scale).collect();
        match stride {
            1 => kernel,
            _ => kernel.chunks(stride).flat_map(extremes).collect(),
        }
    });
    Sampled {
        curves: curves.collect(),
        peak: scale,
        stride,
    }
}

/// The steps that hold all but [`BEHIND`] of the energy.
fn reach(kernel: &[f64]) -> usize {
    let whole: f64 = kernel.iter().map(|k| k * k).sum();
    let mut sum = 0.0;
    let end = kernel.iter().position(|k| {
        sum += k * k;
        sum >= (1.0 - BEHIND) * whole
    });
    end.map_or(kernel.len(), |end| end + 1)
}

/// The least and the largest value in the order in which they come.
fn extremes(values: &[f64]) -> [f64; 2] {
    let by = |a: &usize, b: &usize| values[*a].total_cmp(&values[*b]);
    let least = (0..values.len()).min_by(by).unwrap_or(0);
    let most = (0..values.len()).max_by(by).unwrap_or(0);
    [values[least.min(most)], values[least.max(most)]]
}

#[cfg(test)]
mod tests {
    use hankelite_control::Time;

    use super::*;

    fn system(order: usize, inputs: usize, outputs: usize, shift: f64) -> DiagonalSystem {
        let number = |i: usize, j: usize| {
            let x = (1 + i + 3 * j) as f64 + shift;
            Complex64::new((1.7 * x).sin(), (0.9 * x).cos())
        };
        let exponents = (0..order)
            .map(|n| Complex64::new(-0.2 - 0.1 * n as f64 - 0.01 * shift, 0.7 * n as f64));
        DiagonalSystem::new(
            Time::Discrete { step: 1.0 },
            exponents.collect(),
            DMatrix::from_fn(order, inputs, number),
            DMatrix::from_fn(outputs, order, |i, j| number(i + 5, j)),
            DMatrix::from_fn(outputs, inputs, |i, j| number(i + 9, j).re),
        )
        .expect("a stable system")
    }

    /// The transform of the kernel itself, matrix by matrix.
    fn by_kernel(system: &DiagonalSystem, cycles: f64) -> DMatrix<Complex64> {
        let mut sum = system.feedthrough().map(Complex64::from);
        let mut powers = vec![Complex64::new(1.0, 0.0); system.order()];
        for step in 0..400 {
            let turn = Complex64::from_polar(1.0, -std::f64::consts::TAU * cycles * step as f64);
            let inside = DMatrix::from_diagonal(&nalgebra::DVector::from_vec(powers.clone()));
            let kernel = system.output() * inside * system.input();
            sum += kernel.map(|k| Complex64::from(k.re) * turn);
            for (power, pole) in powers.iter_mut().zip(system.poles()) {
                *power *= pole;
            }
        }
        sum
    }

    #[test]
    fn gains_are_the_transform_of_the_kernel() {
        for (inputs, outputs) in [(1, 1), (2, 3)] {
            let full = system(5, inputs, outputs, 0.0);
            let reduced = system(3, inputs, outputs, 0.4);
            for cycles in [0.0, 0.013, 0.2, 0.5] {
                let (a, b) = (by_kernel(&full, cycles), by_kernel(&reduced, cycles));
                let own = Response::of(&full).squared_gain(cycles).sqrt();
                assert!(
                    (own - a.norm()).abs() < 1e-10 * a.norm(),
                    "{own} {}",
                    a.norm()
                );
                let difference = Response::of_difference(&full, &reduced);
                let error = difference.squared_gain(cycles).sqrt();
                let expected = (a - b).norm();
                assert!(
                    (error - expected).abs() < 1e-7 * expected,
                    "{error} {expected}"
                );
            }
        }
    }

    #[test]
    fn impulse_responses_are_those_of_the_system() {
        let single = system(4, 1, 1, 0.0);
        let mut expected = single.kernel(50).expect("discrete");
        expected[0] += single.feedthrough()[(0, 0)];
        for (a, b) in Response::of(&single).impulse(50).iter().zip(expected) {
            assert!((a - b).abs() < 1e-12);
        }
        let several = system(4, 2, 3, 0.0);
        let kernel = (several.output() * several.input()).map(|z| z.re);
        let first = (kernel + several.feedthrough()).norm();
        let found = Response::of(&several).impulse(2);
        assert!((found[0] - first).abs() < 1e-12 * first);
        let poles = DMatrix::from_diagonal(&nalgebra::DVector::from_vec(several.poles()));
        let second = (several.output() * poles * several.input())
            .map(|z| z.re)
            .norm();
        assert!((found[1] - second).abs() < 1e-12 * second);
    }

    #[test]
    fn the_density_of_an_alternating_input_is_at_the_fastest_frequency() {
        let bands = Bands::new(64, 20);
        let lags: Vec<f64> = (0..64i32)
            .map(|m| (-1f64).powi(m) * f64::from(64 - m) / 64.0)
            .collect();
        let density = bands.density(&lags);
        let largest = (0..21).max_by(|&a, &b| density[a].total_cmp(&density[b]));
        assert_eq!(largest, Some(20));
        let white = bands.density(&[4.0]);
        assert!(white.iter().all(|d| (d - 2.0).abs() < 1e-12), "{white:?}");
    }

    #[test]
    fn long_kernels_keep_their_extremes() {
        let kernel: Vec<f64> = (0..1000)
            .map(|i| if i == 501 { -2.0 } else { 1.0 })
            .collect();
        let made = sampled(&[&kernel, &[0.0; 1000]], 100);
        assert_eq!((made.stride, made.peak), (20, 2.0));
        assert_eq!(made.curves[0].len(), 100);
        assert!(made.curves[0].contains(&-1.0) && made.curves[1].iter().all(|&k| k == 0.0));
        let short = sampled(&[&[1.0, 0.5, 0.25]], 100);
        assert_eq!((short.stride, short.curves[0].len()), (1, 3));
    }
}
