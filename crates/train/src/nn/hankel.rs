//! The Hankel nuclear norm of every channel, with its exact gradient by poles and weights.
//!
//! The kernel k_l = Re Σ_n w_n a_n^l, a_n = e^{z_n}, of a channel is that of a real discrete system.
//! Its Hankel operator Γ_ij = k_{i+j} maps inputs up to now to outputs from now on; the sum of its
//! singular values, Σ σ, is small where few states carry the channel.
//!
//! ```text
//! Γ = Cᵀ D C,   rows c_n = √2 Re, √2 Im of (a_n^j)_j,   D = ½ [[Re w, −Im w], [−Im w, −Re w]]
//! C Cᵀ = L Lᵀ,   K = Lᵀ D L = Y Λ Yᵀ,   Σ σ = Σ |λ|
//! ```
//!
//! Γ is symmetric, so K has its eigenvalues, and those of sign(Γ) = V sign(Λ) Vᵀ need no second
//! factor. C Cᵀ is Cauchy-like: 1/(1 − a_p ā_q) and 1/(1 − a_p a_q) are all that it is made of.
//! With Z = L Y, ζ_nk = (Z_Re + i Z_Im)_nk/√2 = c_nᵀ v_k and ρ_nk = (∂c_n/∂z_n)ᵀ v_k,
//!
//! ```text
//! dΣσ = Re Σ_n (Σ_k s_k ζ_nk²) dw_n + Re Σ_n 2 w_n (Σ_k s_k ζ_nk ρ_nk) dz_n
//! ρ_nk = λ_k⁻¹ ½ Σ_p (w_p ζ_pk a_p a_n/(1 − a_p a_n)² + the same of its conjugate mode)
//! ```
//!
//! # References
//! Glover 1984, sections 2 and 4 (Hankel singular values as those of Γ).

use std::sync::{Arc, OnceLock};

use candle_core::{CpuStorage, CustomOp1, DType, Layout, Result, Shape, Tensor, bail};
use faer::{Mat, Side};
use hankelite_kernels::Modes;
use num_complex::Complex64;
use rayon::prelude::*;

/// Pivots of the scaled Gramian below this count as zero: two modes that agree to seven digits are
/// one.
const PIVOT: f64 = 1e-14;

/// Hankel singular values below this share of the largest have no gradient: their vectors are noise.
const NOISE: f64 = 1e-9;

/// Where the modes of a network stand in its flat tensor, and which channels are looked at.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct HankelPlan {
    pub(super) channels: usize,
    /// For each layer: the modes of a channel, and its directions.
    pub(super) layers: Vec<(usize, usize)>,
    /// Every so many channels are looked at, from `offset` on; the sum is scaled up.
    pub(super) every: usize,
    pub(super) offset: usize,
}

/// Σ σ of each layer as the mean over its channels, differentiable by the flat modes (f64, as the
/// network has them: Re z, Im z, Re w, Im w of each direction).
///
/// # Errors
/// A mode that does not decay; candle's.
///
/// # Cost
/// O(N³) for each channel that is looked at.
pub(super) fn hankel(modes: &Tensor, plan: HankelPlan) -> Result<Tensor> {
    let device = modes.device().clone();
    let host = modes.to_device(&candle_core::Device::Cpu)?.contiguous()?;
    let op = Hankel {
        plan,
        gradient: Arc::default(),
    };
    host.apply_op1(op)?.to_device(&device)
}

/// The operation; its forward pass keeps the gradient.
struct Hankel {
    plan: HankelPlan,
    gradient: Arc<OnceLock<Vec<f64>>>,
}

impl HankelPlan {
    /// A channel alone.
    pub(super) fn of_one(modes: usize) -> Self {
        Self {
            channels: 1,
            layers: vec![(modes, 1)],
            every: 1,
            offset: 0,
        }
    }

    /// Start, modes and directions of each layer.
    fn places(&self) -> Vec<(usize, usize, usize)> {
        let mut start = 0;
        let layers = self.layers.iter().map(|&(modes, directions)| {
            let own = start;
            start += directions * 4 * self.channels * modes;
            (own, modes, directions)
        });
        layers.collect()
    }

    /// The numbers of one layer, and their gradient in its place.
    fn layer(
        &self,
        numbers: &[f64],
        gradient: &mut [f64],
        (start, modes, directions): (usize, usize, usize),
    ) -> Result<f64> {
        let count = self.channels * modes;
        let looked: Vec<usize> = (self.offset..self.channels).step_by(self.every).collect();
        let share = 1.0 / looked.len().max(1) as f64;
        let mut sum = 0.0;
        for direction in 0..directions {
            let base = start + direction * 4 * count;
            let part = |part: usize, h: usize| {
                let from = base + part * count + h * modes;
                from..from + modes
            };
            let complex = |re: usize, h: usize| -> Vec<Complex64> {
                let (re, im) = (&numbers[part(re, h)], &numbers[part(re + 1, h)]);
                re.iter()
                    .zip(im)
                    .map(|(&a, &b)| Complex64::new(a, b))
                    .collect()
            };
            let found = looked.par_iter().map(|&h| {
                let channel = Modes {
                    exponents: complex(0, h),
                    weights: complex(2, h),
                };
                nuclear_norm(&channel)
            });
            let found: Vec<_> = found.collect::<Result<_>>()?;
            for (&h, slopes) in looked.iter().zip(found) {
                sum += share * slopes.value;
                let slopes = [(0, slopes.exponents), (2, slopes.weights)];
                for (re, slopes) in slopes {
                    for (n, slope) in slopes.into_iter().enumerate() {
                        // d = Re(slope · dx): the imaginary part enters with the other sign.
                        gradient[part(re, h).start + n] = share * slope.re;
                        gradient[part(re + 1, h).start + n] = -share * slope.im;
                    }
                }
            }
        }
        Ok(sum)
    }
}

impl CustomOp1 for Hankel {
    fn name(&self) -> &'static str {
        "hankel-nuclear-norm"
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let (CpuStorage::F64(all), Some((from, to))) = (storage, layout.contiguous_offsets())
        else {
            bail!("the modes must be contiguous, in f64");
        };
        let numbers = &all[from..to];
        let mut gradient = vec![0.0; numbers.len()];
        let layers = self.plan.places().into_iter();
        let values = layers.map(|place| self.plan.layer(numbers, &mut gradient, place));
        let values = values.collect::<Result<Vec<f64>>>()?;
        let count = values.len();
        // The operation is applied once.
        let _ = self.gradient.set(gradient);
        Ok((CpuStorage::F64(values), Shape::from(count)))
    }

    fn bwd(&self, modes: &Tensor, _: &Tensor, slopes: &Tensor) -> Result<Option<Tensor>> {
        let Some(gradient) = self.gradient.get() else {
            bail!("{}: backward before forward", self.name());
        };
        let slopes = slopes.to_dtype(DType::F64)?.to_vec1::<f64>()?;
        let mut gradient = gradient.clone();
        let mut rest = &mut gradient[..];
        for (&(modes, directions), slope) in self.plan.layers.iter().zip(slopes) {
            let (own, after) = rest.split_at_mut(directions * 4 * self.plan.channels * modes);
            own.iter_mut().for_each(|g| *g *= slope);
            rest = after;
        }
        Ok(Some(Tensor::from_vec(
            gradient,
            modes.shape(),
            modes.device(),
        )?))
    }
}

/// Σ σ of a channel with its slopes: dΣσ = Re Σ (slope · dz) + Re Σ (slope · dw).
struct NuclearNorm {
    value: f64,
    exponents: Vec<Complex64>,
    weights: Vec<Complex64>,
}

/// 1 − e^{z}, without cancellation where z is small.
fn one_minus_exp(z: Complex64) -> Complex64 {
    let (grow, half) = (z.re.exp_m1(), (0.5 * z.im).sin());
    let re = grow * z.im.cos() - 2.0 * half * half;
    -Complex64::new(re, (grow + 1.0) * z.im.sin())
}

fn nuclear_norm(modes: &Modes) -> Result<NuclearNorm> {
    let z = &modes.exponents;
    if let Some(z) = z.iter().find(|z| z.re >= 0.0) {
        bail!("a mode with exponent {z} does not decay: its Hankel operator is not bounded");
    }
    let pairs = Pairs::of(z);
    let spectrum = Spectrum::of(&gramian_factor(&pairs), &modes.weights)?;
    Ok(spectrum.slopes(modes, &pairs))
}

/// What each pair of modes brings to the Gramian and to its derivatives.
struct Pairs {
    count: usize,
    /// 1/(1 − a_p ā_q), p before q.
    straight: Vec<Complex64>,
    /// 1/(1 − a_p a_q), p before q.
    turned: Vec<Complex64>,
}

impl Pairs {
    fn of(z: &[Complex64]) -> Self {
        let count = z.len();
        let mut pairs = Self {
            count,
            straight: vec![Complex64::ZERO; count * count],
            turned: vec![Complex64::ZERO; count * count],
        };
        for (p, &zp) in z.iter().enumerate() {
            for (q, &zq) in z.iter().enumerate().take(p + 1) {
                let straight = one_minus_exp(zp + zq.conj()).inv();
                let turned = one_minus_exp(zp + zq).inv();
                pairs.straight[p * count + q] = straight;
                pairs.straight[q * count + p] = straight.conj();
                pairs.turned[p * count + q] = turned;
                pairs.turned[q * count + p] = turned;
            }
        }
        pairs
    }

    /// The real matrix that takes rows Re ζ, Im ζ of each mode in turn to rows Re, Im of λ ρ.
    fn derivatives(&self, weights: &[Complex64]) -> Mat<f64> {
        let mut map = Mat::<f64>::zeros(2 * self.count, 2 * self.count);
        // a/(1 − a)² = x (x − 1) with x = 1/(1 − a).
        let gain = |x: Complex64| 0.5 * x * (x - 1.0);
        for (p, w) in weights.iter().enumerate() {
            for n in 0..self.count {
                let own = w * gain(self.turned[n * self.count + p]);
                let conjugate = w.conj() * gain(self.straight[n * self.count + p]);
                map[(2 * n, 2 * p)] = own.re + conjugate.re;
                map[(2 * n, 2 * p + 1)] = conjugate.im - own.im;
                map[(2 * n + 1, 2 * p)] = own.im + conjugate.im;
                map[(2 * n + 1, 2 * p + 1)] = own.re - conjugate.re;
            }
        }
        map
    }
}

/// L of C Cᵀ = L Lᵀ, rows √2 Re and √2 Im of each mode in turn, columns in the order of the pivots;
/// as many columns as there are pivots that count.
fn gramian_factor(pairs: &Pairs) -> Mat<f64> {
    let size = 2 * pairs.count;
    let gramian = Mat::from_fn(size, size, |row, column| {
        let at = row / 2 * pairs.count + column / 2;
        let (straight, turned) = (pairs.straight[at], pairs.turned[at]);
        match (row % 2, column % 2) {
            (0, 0) => straight.re + turned.re,
            (0, _) => turned.im - straight.im,
            (_, 0) => turned.im + straight.im,
            _ => straight.re - turned.re,
        }
    });
    pivoted_cholesky(gramian)
}

/// Columns of L, of a positive semidefinite matrix scaled to a diagonal of one, until no pivot is
/// left that counts.
fn pivoted_cholesky(gramian: Mat<f64>) -> Mat<f64> {
    let size = gramian.nrows();
    let scale: Vec<f64> = (0..size).map(|i| gramian[(i, i)].max(0.0).sqrt()).collect();
    // Rows without any size, the imaginary parts of real modes, are never pivots.
    let mut left: Vec<f64> = scale
        .iter()
        .map(|s| f64::from(u8::from(*s > 1e-150)))
        .collect();
    let mut columns: Vec<Vec<f64>> = Vec::new();
    for _ in 0..size {
        let largest = |best: usize, i: usize| if left[i] > left[best] { i } else { best };
        let pivot = (0..size).fold(0, largest);
        if left[pivot] < PIVOT {
            break;
        }
        let root = left[pivot].sqrt();
        let mut column = vec![0.0; size];
        for (i, entry) in column.iter_mut().enumerate() {
            if scale[i] > 1e-150 {
                *entry = gramian[(i, pivot)] / (scale[i] * scale[pivot]);
            }
        }
        for before in &columns {
            let factor = before[pivot];
            column
                .iter_mut()
                .zip(before)
                .for_each(|(c, b)| *c -= factor * b);
        }
        column.iter_mut().for_each(|entry| *entry /= root);
        left.iter_mut()
            .zip(&column)
            .for_each(|(left, c)| *left -= c * c);
        left[pivot] = 0.0;
        columns.push(column);
    }
    Mat::from_fn(size, columns.len(), |i, k| scale[i] * columns[k][i])
}

/// Eigenvalues of Γ, and Z = C V.
struct Spectrum {
    values: Vec<f64>,
    /// Rows of Z, √2 Re and √2 Im of each mode in turn.
    vectors: Mat<f64>,
}

impl Spectrum {
    fn of(factor: &Mat<f64>, weights: &[Complex64]) -> Result<Self> {
        let middle = Mat::from_fn(factor.nrows(), factor.ncols(), |i, k| {
            let w = 0.5 * weights[i / 2];
            let (re, im) = (factor[(i & !1, k)], factor[(i | 1, k)]);
            match i % 2 {
                0 => w.re * re - w.im * im,
                _ => -w.im * re - w.re * im,
            }
        });
        let symmetric = factor.transpose() * &middle;
        let eigen = symmetric.self_adjoint_eigen(Side::Lower);
        let Ok(eigen) = eigen else {
            bail!("the eigenvalues of a Hankel operator did not settle");
        };
        Ok(Self {
            values: eigen.S().column_vector().iter().copied().collect(),
            vectors: factor * eigen.U(),
        })
    }

    fn slopes(&self, modes: &Modes, pairs: &Pairs) -> NuclearNorm {
        let size = |value: &f64| value.abs();
        let largest = self.values.iter().map(size).fold(0.0, f64::max);
        // λ ρ √2, as the vectors are ζ √2.
        let derivatives = pairs.derivatives(&modes.weights) * &self.vectors;
        let complex = |rows: &Mat<f64>, n: usize, k: usize| {
            Complex64::new(rows[(2 * n, k)], rows[(2 * n + 1, k)])
        };
        let mut slopes = NuclearNorm {
            value: self.values.iter().map(size).sum(),
            exponents: vec![Complex64::ZERO; modes.weights.len()],
            weights: vec![Complex64::ZERO; modes.weights.len()],
        };
        for (k, &value) in self.values.iter().enumerate() {
            if value.abs() <= NOISE * largest {
                continue;
            }
            for (n, weight) in modes.weights.iter().enumerate() {
                let zeta = complex(&self.vectors, n, k);
                slopes.weights[n] += 0.5 * value.signum() * zeta * zeta;
                slopes.exponents[n] += weight * zeta * complex(&derivatives, n, k) / value.abs();
            }
        }
        slopes
    }
}

#[cfg(test)]
mod tests {
    use candle_core::{Device, Var};
    use hankelite_control::{DiagonalSystem, Realisation, Time, hankel_values};

    use super::*;

    fn modes(count: usize, seed: f64) -> Modes {
        let wave = |n: usize, k: f64| ((n as f64 + 1.0) * (0.7 + k) + seed).sin();
        let exponent = |n| Complex64::new(-0.05 - 0.2 * wave(n, 0.1).abs(), 0.28 * n as f64);
        let weight = |n| Complex64::new(wave(n, 0.3), wave(n, 0.5));
        Modes {
            exponents: (0..count).map(exponent).collect(),
            weights: (0..count).map(weight).collect(),
        }
    }

    #[test]
    fn the_sum_is_that_of_the_hankel_values_of_the_real_system() {
        for (count, seed) in [(1, 0.0), (2, 0.3), (5, 1.0), (12, 2.0), (32, 0.7)] {
            let modes = modes(count, seed);
            let time = Time::Discrete { step: 1.0 };
            let (poles, weights) = (modes.exponents.clone(), &modes.weights);
            let system = DiagonalSystem::siso(time, poles, weights, 0.4).unwrap();
            let values = hankel_values(system.stable().unwrap(), Realisation::Real).unwrap();
            let expected: f64 = values.values().iter().sum();
            let found = nuclear_norm(&modes).unwrap().value;
            assert!(
                (found - expected).abs() < 1e-9 * expected,
                "{count}: {found} {expected}"
            );
        }
    }

    /// Entry by entry, through the flat tensor: two layers, one of them in both directions.
    #[test]
    fn the_gradient_agrees_with_differences() {
        let plan = HankelPlan {
            channels: 2,
            layers: vec![(3, 1), (4, 2)],
            every: 1,
            offset: 0,
        };
        let mut numbers = Vec::new();
        for (index, count) in [3, 4, 4].into_iter().enumerate() {
            let channels: Vec<Modes> = (0..2)
                .map(|h| modes(count, (2 * index + h) as f64))
                .collect();
            let parts: [fn(&Modes) -> Vec<f64>; 4] = [
                |m| m.exponents.iter().map(|z| z.re).collect(),
                |m| m.exponents.iter().map(|z| z.im).collect(),
                |m| m.weights.iter().map(|w| w.re).collect(),
                |m| m.weights.iter().map(|w| w.im).collect(),
            ];
            numbers.extend(parts.iter().flat_map(|part| channels.iter().flat_map(part)));
        }
        let tensor = |numbers: &[f64]| Tensor::new(numbers, &Device::Cpu).unwrap();
        let by = tensor(&[0.3, -1.7]);
        let value = |numbers: &Tensor| {
            let each = hankel(numbers, plan.clone()).unwrap();
            (each * &by).unwrap().sum_all().unwrap()
        };
        let var = Var::from_tensor(&tensor(&numbers)).unwrap();
        let store = value(var.as_tensor()).backward().unwrap();
        let found = store
            .get(var.as_tensor())
            .unwrap()
            .to_vec1::<f64>()
            .unwrap();
        for (at, found) in found.iter().enumerate() {
            let moved = |by: f64| {
                let mut numbers = numbers.clone();
                numbers[at] += by;
                value(&tensor(&numbers)).to_scalar::<f64>().unwrap()
            };
            let h = 1e-5;
            let slope = (moved(h) - moved(-h)) / (2.0 * h);
            let far = (slope - found).abs();
            assert!(far < 1e-6 * (1.0 + slope.abs()), "{at}: {slope} {found}");
        }
    }

    #[test]
    fn the_channels_that_are_looked_at_in_turn_give_the_mean_of_all() {
        let numbers: Vec<f64> = (0..6)
            .map(|h| modes(1, h as f64))
            .flat_map(|m| {
                [
                    m.exponents[0].re,
                    m.exponents[0].im,
                    m.weights[0].re,
                    m.weights[0].im,
                ]
            })
            .collect();
        // Parts before channels.
        let turned: Vec<f64> = (0..4)
            .flat_map(|part| (0..6).map(move |h| (part, h)))
            .map(|(part, h)| numbers[4 * h + part])
            .collect();
        let of = |every: usize, offset: usize| {
            let plan = HankelPlan {
                channels: 6,
                layers: vec![(1, 1)],
                every,
                offset,
            };
            let found = hankel(&Tensor::new(&turned[..], &Device::Cpu).unwrap(), plan);
            found.unwrap().to_vec1::<f64>().unwrap()[0]
        };
        let mean = (0..3).map(|offset| of(3, offset)).sum::<f64>() / 3.0;
        assert!((of(1, 0) - mean).abs() < 1e-12 * mean);
        assert!((of(3, 0) - of(3, 1)).abs() > 1e-6);
    }

    #[test]
    fn a_mode_that_does_not_decay_is_refused() {
        let growing = Modes {
            exponents: vec![Complex64::new(0.1, 1.0)],
            weights: vec![Complex64::ONE],
        };
        let error = nuclear_norm(&growing).err().unwrap().to_string();
        assert!(error.contains("does not decay"), "{error}");
    }
}
