//! The input of a channel as a metric: the output error that it makes of a kernel's error.

use std::sync::Arc;

use nalgebra::{DMatrix, DVector};

use crate::control::products::{Node, Products};
use crate::linalg::{Convolver, Polynomials};
use crate::ssm::DiagonalSystem;

/// Added to R(0), relative to it: white noise at this level, so that no frequency is free.
const FLOOR: f64 = 1e-6;

/// Of more sequences than this, or of their products, so many terms at most stand for their ends.
const ENDS_MAX: usize = 128;

/// So many do where there are as many.
const ENDS_MIN: usize = 32;

/// What may be left of them beyond the least, as a share of their power: they are a correction to the
/// spectrum, of about the size of a kernel's reach over the length of the sequences. Of few sequences
/// nothing is left out, as there they are the larger part.
const ENDS_LEFT: f64 = 0.01;

/// What may be left of the ends that a system sees, as a share of what its modes have, each counted by
/// itself.
const ENDS_UNSEEN: f64 = 1e-3;

/// A mean square below this counts as zero: what is added to it would be no normal number.
const POWER_MIN: f64 = 1e-280;

/// The metric that an input makes of kernel errors: the mean square of the output error.
///
/// ```text
/// spectrum:  E(d) = Σ_{i,j<L} d_i d_j R(|i−j|) = (1/2L) Σ_k S(k) |D(k)|²     on 2L frequencies
/// moments:   E(d) = dᵀ M d,   M_ij = mean over sequences of (1/L) Σ_{t<L} u[t−i] u[t−j]
/// ```
///
/// Moments give exactly the mean square of (d ∗ u) over the steps of the sequences, start-up
/// included. The spectrum gives that of a stationary input with the same autocorrelation; it
/// needs L numbers instead of n L.
#[derive(Debug, Clone)]
pub struct InputWeight {
    /// Inner products of exponentials; with what the ends of the sequences take away where the metric
    /// is that of moments. A clone shares their memory.
    products: Arc<Products>,
}

impl InputWeight {
    /// White noise of unit power over `length` steps.
    pub fn white(length: usize) -> Self {
        let mut lags = vec![0.0; length.max(1)];
        lags[0] = 1.0;
        Self::spectrum(lags)
    }

    /// The spectrum of sequences, one in each row of `inputs` (sequences × L). `None` when
    /// they are zero.
    pub fn of_sequences(inputs: &DMatrix<f64>) -> Option<Self> {
        let (sequences, length) = inputs.shape();
        if length == 0 {
            return None;
        }
        let mut power = vec![0.0; length + 1];
        let mut padded = vec![0.0; 2 * length];
        for row in inputs.row_iter() {
            padded.fill(0.0);
            padded.iter_mut().zip(row.iter()).for_each(|(p, &u)| *p = u);
            let spectrum = Convolver::transform(&mut padded);
            power
                .iter_mut()
                .zip(&spectrum)
                .for_each(|(p, u)| *p += u.norm_sqr());
        }
        let lags = lags_of(&power, sequences);
        Self::of_lags(&lags)
    }

    /// The spectrum of R(0..L). `None` where it is zero.
    pub(super) fn of_lags(lags: &[f64]) -> Option<Self> {
        (lags[0] > POWER_MIN).then(|| Self::coloured(lags))
    }

    /// From R(0..L), R(0) > 0, with a white floor of 1e-6 R(0).
    fn coloured(lags: &[f64]) -> Self {
        let mut lags = lags.to_vec();
        lags[0] *= 1.0 + FLOOR;
        Self::spectrum(lags)
    }

    /// From R(0..L) as they are.
    pub(super) fn spectrum(lags: Vec<f64>) -> Self {
        Self {
            products: Arc::new(Products::stationary(&lags)),
        }
    }

    /// The exact moments of sequences, one in each row of `inputs` (sequences × L). `None` when
    /// they are zero. They are a Toeplitz matrix less one of displacement rank n, so neither time nor
    /// memory is quadratic in L: cost O(n L log L) and memory O(n L). Of more than 128 sequences a
    /// hundredth of the power of their ends may be left out, which overrates errors by at most a
    /// hundredth of what the ends take away; then n is 128 here, and the cost O(128 n L).
    ///
    /// ```text
    /// M_ij = R(|i−j|) − Σ_{p=1..min(i,j)} γ_{i−p, j−p},   γ_st = mean over sequences of u[L−1−s] u[L−1−t] / L
    /// ```
    pub fn moments(inputs: &DMatrix<f64>) -> Option<Self> {
        let (sequences, length) = inputs.shape();
        let stationary = Self::of_sequences(inputs)?;
        let scale = ((sequences * length).max(1) as f64).sqrt().recip();
        let turned = DMatrix::from_fn(length, sequences, |s, n| {
            scale * inputs[(n, length - 1 - s)]
        });
        if sequences <= ENDS_MAX {
            return Some(stationary.with_ends(&turned));
        }
        let column = |s: usize| &turned * turned.row(s).transpose();
        let power = |s: usize| turned.row(s).norm_squared();
        Some(stationary.with_ends(&low_rank(length, column, power)))
    }

    /// As [`InputWeight::moments`], from the products Γ (L × L) themselves, e.g. sums that were
    /// gathered without keeping the sequences: Γ_st = mean over sequences of `u[s] u[t] / L`. `None`
    /// when they are zero.
    ///
    /// # Panics
    /// If Γ is not square.
    pub fn of_products(gamma: &DMatrix<f64>) -> Option<Self> {
        assert!(gamma.is_square(), "products of all pairs of steps");
        let length = gamma.nrows();
        let lag = |m: usize| (0..length - m).map(|t| gamma[(t, t + m)]).sum::<f64>();
        let lags: Vec<f64> = (0..length).map(lag).collect();
        if !lags
            .first()
            .is_some_and(|power| *power > POWER_MIN && power.is_finite())
        {
            return None;
        }
        let last = length - 1;
        let column = |s: usize| DVector::from_fn(length, |t, _| gamma[(last - t, last - s)]);
        let ends = low_rank(length, column, |s| gamma[(last - s, last - s)]);
        Some(Self::coloured(&lags).with_ends(&ends))
    }

    /// The same metric for kernels of the modes of a system, or of modes among them. Of the ends of more
    /// than 32 sequences only the directions stay that these modes have a share in, each mode counted
    /// by itself, but for a thousandth of their squares together; so errors come out too large, by some
    /// thousandths. Cost O(n L N + n L K) for n ends of which K ≤ 2 N stay.
    #[must_use]
    pub fn seen_by(&self, system: &DiagonalSystem) -> Self {
        let products = self.products();
        let count = products.ends_count();
        if count <= ENDS_MIN {
            return self.clone();
        }
        let nodes = products.nodes(&system.scaled_exponents());
        let square = |node: &Node| products.value(node, node, false).re;
        let rows: Vec<_> = nodes.iter().map(|node| node.ends(square(node))).collect();
        let shares = DMatrix::from_fn(count, 2 * rows.len(), |q, m| {
            let share = rows[m / 2][q];
            if m % 2 == 0 { share.re } else { share.im }
        });
        let directions = leading_directions(shares, ENDS_UNSEEN * nodes.len() as f64);
        if directions.ncols() >= count {
            return self.clone();
        }
        let products = Products::moments(&self.lags(), &(products.ends_matrix() * directions));
        Self {
            products: Arc::new(products),
        }
    }

    fn with_ends(self, ends: &DMatrix<f64>) -> Self {
        let mut lags = self.lags();
        lags[0] /= 1.0 + FLOOR;
        Self {
            products: Arc::new(Products::moments(&lags, ends)),
        }
    }

    /// The number of steps L.
    pub fn length(&self) -> usize {
        self.products.length()
    }

    /// R(0), ..., R(L−1), with what is added to R(0).
    pub(super) fn lags(&self) -> Vec<f64> {
        self.products.lags()
    }

    /// √(m_k S(k)/2L) at the frequencies πk/L, k = 0..=L; m counts both signs.
    fn roots(&self) -> Vec<f64> {
        let length = self.length();
        let root = |(k, s): (usize, f64)| {
            let multiplicity = if k == 0 || k == length { 1.0 } else { 2.0 };
            (multiplicity * s.max(0.0) / (2 * length) as f64).sqrt()
        };
        let spectrum = even_spectrum(&self.lags()).into_iter().enumerate();
        spectrum.map(root).collect()
    }

    /// Whether the input is taken as stationary, and not by the moments of its sequences.
    pub(super) fn is_stationary(&self) -> bool {
        self.products.is_stationary()
    }

    /// Inner products of exponentials.
    pub(super) fn products(&self) -> &Products {
        &self.products
    }

    /// The long vectors behind the metric; of a copy of its own where others share them.
    pub(super) fn sums(&mut self) -> &mut Polynomials {
        Arc::make_mut(&mut self.products).sums()
    }

    /// M d for a kernel's error d, of which the first L values count.
    pub(super) fn applied(&self, error: &[f64]) -> Vec<f64> {
        let length = self.length();
        let mut padded = vec![0.0; 2 * length];
        let kept = error.len().min(length);
        padded[..kept].copy_from_slice(&error[..kept]);
        let spectrum = Convolver::transform(&mut padded);
        let weighted = spectrum.iter().zip(self.roots()).enumerate();
        let weighted = weighted.map(|(k, (d, root))| {
            let once = k == 0 || k == length;
            // The roots count both signs of a frequency, the inverse transform does so itself.
            d * (root * root * if once { 1.0 } else { 0.5 })
        });
        let mut sums = Convolver::back(&mut weighted.collect::<Vec<_>>());
        sums.truncate(length);
        let ends = self.products.ends();
        for (end, correlation) in ends.zip(self.correlations(error)) {
            // Σ_p c_p γ_{i−p}.
            let mut padded = vec![0.0; 2 * length];
            padded[..length].copy_from_slice(&correlation);
            let lagged = Convolver::transform(&mut padded);
            let mut padded = vec![0.0; 2 * length];
            padded[..length].copy_from_slice(&end);
            let spectrum = Convolver::transform(&mut padded);
            let mut product: Vec<_> = lagged.iter().zip(&spectrum).map(|(a, b)| a * b).collect();
            let taken = Convolver::back(&mut product);
            for (sum, taken) in sums.iter_mut().zip(taken) {
                *sum -= taken / (2 * length) as f64;
            }
        }
        sums
    }

    /// c_p = Σ_i d_i γ_{i−p} for p = 1..L−1, 0 for p = 0, of every end γ.
    fn correlations(&self, error: &[f64]) -> Vec<Vec<f64>> {
        let length = self.length();
        let transformed = |values: &[f64]| {
            let mut padded = vec![0.0; 2 * length];
            padded[..values.len()].copy_from_slice(values);
            Convolver::transform(&mut padded)
        };
        let of_error = transformed(&error[..error.len().min(length)]);
        let each = self.products.ends().map(|end| {
            let spectrum = transformed(&end);
            let products = of_error.iter().zip(&spectrum);
            let mut product: Vec<_> = products.map(|(d, g)| d * g.conj()).collect();
            let mut sums = Convolver::back(&mut product);
            sums.truncate(length);
            sums.iter_mut().for_each(|sum| *sum /= (2 * length) as f64);
            sums[0] = 0.0;
            sums
        });
        each.collect()
    }

    /// √E(d) of a kernel's error d, of which the first L values count.
    pub fn norm(&self, error: &[f64]) -> f64 {
        let length = self.length();
        let kept = error.len().min(length);
        let mut padded = vec![0.0; 2 * length];
        padded[..kept].copy_from_slice(&error[..kept]);
        let spectrum = Convolver::transform(&mut padded).into_iter();
        let spectrum = spectrum.zip(self.roots());
        let whole: f64 = spectrum.map(|(d, root)| d.norm_sqr() * root * root).sum();
        let ends = self.correlations(error).into_iter().flatten();
        let taken: f64 = ends.map(|c| c * c).sum();
        (whole - taken).max(0.0).sqrt()
    }
}

/// Columns G with G Gᵀ near a positive semidefinite matrix, by Cholesky steps at the largest diagonal
/// entries: [`ENDS_MIN`] to [`ENDS_MAX`] of them, fewer where nothing is left.
fn low_rank(
    length: usize,
    column: impl Fn(usize) -> DVector<f64>,
    diagonal: impl Fn(usize) -> f64,
) -> DMatrix<f64> {
    let mut left: Vec<f64> = (0..length).map(diagonal).collect();
    let all: f64 = left.iter().sum();
    let mut columns: Vec<DVector<f64>> = Vec::new();
    while columns.len() < ENDS_MAX {
        let share = if columns.len() < ENDS_MIN {
            1e-12
        } else {
            ENDS_LEFT
        };
        if left.iter().sum::<f64>() <= share * all {
            break;
        }
        let largest = (0..length).max_by(|&i, &j| left[i].total_cmp(&left[j]));
        let Some(pivot) = largest.filter(|&pivot| left[pivot] > 0.0) else {
            break;
        };
        let mut next = column(pivot);
        for known in &columns {
            next.axpy(-known[pivot], known, 1.0);
        }
        next /= left[pivot].sqrt();
        left.iter_mut()
            .zip(&next)
            .for_each(|(left, x)| *left = (*left - x * x).max(0.0));
        left[pivot] = 0.0;
        columns.push(next);
    }
    match columns.is_empty() {
        true => DMatrix::zeros(length, 0),
        false => DMatrix::from_columns(&columns),
    }
}

/// An orthonormal basis of the columns but for `left` of their squares, by Gram–Schmidt steps at the
/// largest of what is left.
fn leading_directions(mut columns: DMatrix<f64>, left: f64) -> DMatrix<f64> {
    let mut kept: Vec<DVector<f64>> = Vec::new();
    loop {
        let squares: Vec<f64> = columns
            .column_iter()
            .map(|column| column.norm_squared())
            .collect();
        let largest = (0..squares.len()).max_by(|&i, &j| squares[i].total_cmp(&squares[j]));
        let Some(pivot) =
            largest.filter(|&pivot| squares[pivot] > 0.0 && squares.iter().sum::<f64>() > left)
        else {
            break;
        };
        let mut next = columns.column(pivot).normalize();
        for known in &kept {
            next.axpy(-known.dot(&next), known, 1.0);
        }
        next.normalize_mut();
        let shares = columns.tr_mul(&next);
        columns.ger(-1.0, &next, &shares, 1.0);
        columns.column_mut(pivot).fill(0.0);
        kept.push(next);
    }
    match kept.is_empty() {
        true => DMatrix::zeros(columns.nrows(), 0),
        false => DMatrix::from_columns(&kept),
    }
}

/// The spectrum Σ_m R(|m|) cos(πkm/L), k = 0..=L, of lags that are zero from L on.
fn even_spectrum(lags: &[f64]) -> Vec<f64> {
    let length = lags.len();
    let mut even = vec![0.0; 2 * length];
    even[..length].copy_from_slice(lags);
    for m in 1..length {
        even[2 * length - m] = lags[m];
    }
    let spectrum = Convolver::transform(&mut even);
    spectrum.iter().map(|value| value.re).collect()
}

/// R(0..L) from Σ |U(k)|² on 2L frequencies (k = 0..=L) of `sequences` sequences of L steps.
pub fn lags_of(power: &[f64], sequences: usize) -> Vec<f64> {
    let length = power.len().saturating_sub(1);
    if length == 0 {
        return Vec::new();
    }
    // The inverse transform of an even real spectrum is its forward transform.
    let mut even = power.to_vec();
    even.extend(power.iter().rev().skip(1).take(length - 1));
    let transformed = Convolver::transform(&mut even);
    let scale = (2 * length * length * sequences.max(1)) as f64;
    transformed
        .iter()
        .take(length)
        .map(|value| value.re / scale)
        .collect()
}

#[cfg(test)]
mod tests {
    use num_complex::Complex64;

    use super::*;
    use crate::control::products::WhiteNoise;
    use crate::control::samples::pairs_and_real_poles;
    use crate::ssm::Time;

    fn inputs(length: usize) -> DMatrix<f64> {
        DMatrix::from_fn(3, length, |n, t| {
            ((n + 2) as f64 * 0.61 * t as f64).sin() + 0.3
        })
    }

    fn moments_by_sums(inputs: &DMatrix<f64>) -> DMatrix<f64> {
        let length = inputs.ncols();
        let moment = |i: usize, j: usize| {
            let sums = inputs.row_iter().map(|u| {
                let steps = i.max(j)..length;
                steps.map(|t| u[t - i] * u[t - j]).sum::<f64>()
            });
            sums.sum::<f64>() / inputs.len() as f64
        };
        DMatrix::from_fn(length, length, moment)
    }

    fn signal(length: usize) -> Vec<f64> {
        (0..length)
            .map(|t| 0.9f64.powi(t as i32) + 0.1 * (t as f64).cos())
            .collect()
    }

    #[test]
    fn what_a_system_does_not_see_of_the_ends_changes_its_errors_little() {
        let full = pairs_and_real_poles(Time::Discrete { step: 0.7 }, 0.2);
        // Large at the end.
        let rough = |n: usize, t: usize| {
            let wave = ((n * n) as f64 * 0.7 + (n + 3) as f64 * t as f64).sin();
            wave * t as f64
        };
        let inputs = DMatrix::from_fn(60, 25, rough);
        let weight = InputWeight::moments(&inputs).unwrap();
        let seen = weight.seen_by(&full);
        let (all, kept) = (weight.products().ends_count(), seen.products().ends_count());
        assert_eq!(all, 60);
        assert!(kept > 0 && kept <= 2 * full.order(), "{kept}");
        let poles = full.exponents()[..2].iter().map(|z| z * 1.1).collect();
        let other = [Complex64::ONE, Complex64::new(0.3, -0.2)];
        let other = DiagonalSystem::siso(full.time(), poles, &other, 0.1).unwrap();
        let [mut error, reduced] = [&full, &other].map(|system| {
            let siso = system.as_siso().unwrap();
            let mut kernel = siso.kernel(25).unwrap();
            kernel[0] += siso.feedthrough();
            kernel
        });
        error.iter_mut().zip(reduced).for_each(|(e, r)| *e -= r);
        let (exact, found) = (weight.norm(&error), seen.norm(&error));
        // Without them the ends would count as steps that go on.
        let stationary = InputWeight::of_sequences(&inputs).unwrap().norm(&error);
        assert!(stationary > 1.015 * exact, "{stationary} {exact}");
        assert!(
            found >= exact * (1.0 - 1e-9) && found < 1.005 * exact,
            "{found} {exact}"
        );
        // Few sequences keep theirs.
        let few = InputWeight::moments(&inputs.rows(0, 20).into_owned()).unwrap();
        assert_eq!(few.seen_by(&full).products().ends_count(), 20);
    }

    #[test]
    fn columns_are_as_many_as_the_share_left_requires() {
        // Of a diagonal matrix a step takes one entry.
        let made = |diagonal: &[f64]| {
            let column = |pivot: usize| {
                let mut column = DVector::zeros(diagonal.len());
                column[pivot] = diagonal[pivot];
                column
            };
            low_rank(diagonal.len(), column, |i| diagonal[i])
        };
        let few = [0.25, 0.0, 1e-9, 4.0];
        let columns = made(&few);
        assert_eq!(columns.ncols(), 3);
        let product = &columns * columns.transpose();
        assert!((product - DMatrix::from_diagonal(&DVector::from_row_slice(&few))).norm() < 1e-15);
        assert_eq!(made(&[0.0; 3]).shape(), (3, 0));
        // Below the least number only what rounding leaves is nothing; from it on, ENDS_LEFT.
        let mut many = vec![1.0; ENDS_MIN];
        many.extend([0.3 * ENDS_LEFT * ENDS_MIN as f64; 4]);
        assert_eq!(made(&many).ncols(), ENDS_MIN + 1);
        many.truncate(ENDS_MIN + 3);
        assert_eq!(made(&many).ncols(), ENDS_MIN);
        assert_eq!(made(&vec![1.0; ENDS_MAX + 9]).ncols(), ENDS_MAX);
    }

    #[test]
    fn directions_are_the_fewest_that_leave_as_little_as_allowed() {
        let columns = DMatrix::from_fn(9, 7, |i, j| {
            0.2f64.powi(j as i32) * ((i * j) as f64 + 0.3 * i as f64).sin()
        });
        let lost =
            |basis: &DMatrix<f64>| (&columns - basis * basis.tr_mul(&columns)).norm_squared();
        for left in [1e-2, 1e-5, 1e-9] {
            let basis = leading_directions(columns.clone(), left);
            let unit = basis.tr_mul(&basis) - DMatrix::identity(basis.ncols(), basis.ncols());
            assert!(unit.norm() < 1e-14, "{left}: {:e}", unit.norm());
            assert!(lost(&basis) <= left, "{left}: {:e}", lost(&basis));
            let fewer = basis.columns(0, basis.ncols() - 1).into_owned();
            assert!(lost(&fewer) > left, "{left}: {:e}", lost(&fewer));
        }
        assert_eq!(leading_directions(columns.clone(), 100.0).shape(), (9, 0));
        assert_eq!(leading_directions(columns, 0.0).ncols(), 7);
    }

    #[test]
    fn ends_are_what_they_take_away_of_each_exponential() {
        let node = Complex64::new(-0.5, 1.1);
        let at = |weight: &InputWeight| {
            let products = weight.products();
            let node = products.nodes(&[node]).remove(0);
            let square = products.value(&node, &node, false).re;
            (square, node.ends(square))
        };
        // Large at the end.
        let rising = |n: usize, t: usize| ((n + 2) as f64 * 0.61 * t as f64).sin() * t as f64;
        let inputs = DMatrix::from_fn(3, LENGTH, rising);
        let (whole, _) = at(&InputWeight::of_sequences(&inputs).unwrap());
        let (square, ends) = at(&InputWeight::moments(&inputs).unwrap());
        // The spectrum has a little white noise, the moments have not.
        let taken: f64 = ends.iter().map(|end| end.norm_sqr()).sum();
        let expected = (whole - square) / square;
        assert!(
            expected > 0.02 && (taken / expected - 1.0).abs() < 1e-4,
            "{taken} {expected}"
        );
    }

    #[test]
    fn moments_act_as_the_sums_do() {
        for (sequences, length) in [(1, 1), (3, 2), (3, 7), (2, 30), (150, 20)] {
            let inputs = DMatrix::from_fn(sequences, length, |n, t| {
                ((n + 2) as f64 * 0.61 * (t + 1) as f64).sin() + 0.3
            });
            let direct = moments_by_sums(&inputs);
            let d = DVector::from_vec(signal(length));
            let gamma = inputs.tr_mul(&inputs) / inputs.len() as f64;
            for weight in [
                InputWeight::moments(&inputs),
                InputWeight::of_products(&gamma),
            ] {
                let weight = weight.unwrap();
                let scale = direct.norm() * d.norm();
                let applied = DVector::from_vec(weight.applied(d.as_slice()));
                let error = (applied - &direct * &d).norm() / scale;
                // What is left of the ends, where there are many.
                let bound = if sequences > 3 { ENDS_LEFT } else { 1e-9 };
                assert!(error < bound, "{sequences} {length}: {error:e}");
                let exact = d.dot(&(&direct * &d)).sqrt();
                let error = (weight.norm(d.as_slice()) / exact - 1.0).abs();
                assert!(error < 10.0 * bound, "{sequences} {length}: {error:e}");
            }
        }
    }

    #[test]
    fn a_stationary_input_acts_as_its_toeplitz_matrix() {
        let weight = InputWeight::of_sequences(&inputs(20)).unwrap();
        let lags = weight.lags();
        let toeplitz = DMatrix::from_fn(20, 20, |i, j| lags[i.abs_diff(j)]);
        // Signals shorter than the metric end in zeros.
        for kept in [20, 5] {
            let mut d = DVector::from_vec(signal(20));
            d.rows_mut(kept, 20 - kept).fill(0.0);
            let direct = &toeplitz * &d;
            let applied = DVector::from_vec(weight.applied(&d.as_slice()[..kept]));
            assert!((applied - &direct).norm() < 1e-13 * direct.norm());
            let norm = weight.norm(&d.as_slice()[..kept]);
            assert!((norm / d.dot(&direct).sqrt() - 1.0).abs() < 1e-13);
        }
    }

    #[test]
    fn white_noise_is_the_plain_norm() {
        let weight = InputWeight::white(6);
        assert!((weight.norm(&[3.0, 0.0, -4.0]) - 5.0).abs() < 1e-14);
        assert_eq!(weight.norm(&[]), 0.0);
        assert!(
            (weight.norm(&[1.0; 9]) - 6f64.sqrt()).abs() < 1e-14,
            "six steps count"
        );
    }

    const LENGTH: usize = 60;

    /// Sequences, and their moments by the definition.
    fn sequences_and_moments() -> (DMatrix<f64>, DMatrix<f64>) {
        let inputs = DMatrix::from_fn(3, LENGTH, |n, t| {
            ((n + 1) as f64 * 0.37 * t as f64).sin() + 0.2 + 0.1 * n as f64
        });
        let direct = moments_by_sums(&inputs);
        (inputs, direct)
    }

    fn nodes() -> Vec<Complex64> {
        [
            (-0.3, 0.5),
            (-0.02, 2.9),
            (-1e-5, 0.0),
            (-1e-5, 1e-5),
            (-4.0, 0.2),
            (-1e-3, 0.4),
        ]
        .map(|(re, im)| Complex64::new(re, im))
        .to_vec()
    }

    /// The product by sums, with white noise.
    fn direct(metric: &DMatrix<f64>, noise: f64, a: Complex64, b: Complex64) -> Complex64 {
        let power = |z: Complex64, l: usize| (z * l as f64).exp();
        let mut sum = Complex64::ZERO;
        for i in 0..LENGTH {
            for j in 0..LENGTH {
                sum += power(a, i) * metric[(i, j)] * power(b.conj(), j);
            }
        }
        sum + noise / (Complex64::ONE - (a + b.conj()).exp())
    }

    #[test]
    fn products_and_their_derivatives_are_those_of_the_sums() {
        let (inputs, metric) = sequences_and_moments();
        let exact = InputWeight::moments(&inputs).unwrap();
        let spectrum = InputWeight::of_sequences(&inputs).unwrap();
        let lags = spectrum.lags();
        let toeplitz = DMatrix::from_fn(LENGTH, LENGTH, |i, j| lags[i.abs_diff(j)]);
        for (name, weight, metric) in [
            ("moments", &exact, &metric),
            ("spectrum", &spectrum, &toeplitz),
        ] {
            let scale = metric[(0, 0)];
            let noise = WhiteNoise {
                power: 1e-4 * scale,
            };
            let products = weight.products();
            let points = nodes();
            let plain = products.nodes(&points);
            let sloped = products.with_slopes(&plain);
            let made: Vec<_> = points.iter().zip(plain.iter().zip(&sloped)).collect();
            for &(&a, (plain_a, na)) in &made {
                for &(&b, (plain_b, nb)) in &made {
                    let own = |a| direct(metric, noise.power, a, a).re.sqrt();
                    let size = own(a) * own(b);
                    for mirrored in [false, true] {
                        let found = products.product(na, nb, mirrored)
                            + noise.product(na.pole, nb.pole, mirrored);
                        let b = if mirrored { b.conj() } else { b };
                        let at = |da: f64, db: f64| direct(metric, noise.power, a + da, b + db);
                        let near = |found: Complex64, expected: Complex64, bound: f64| {
                            let error = (found - expected).norm() / size;
                            assert!(error < bound, "{name} {a} {b}: {error:e}");
                        };
                        near(found.value, at(0.0, 0.0), 1e-9);
                        let value = products.value(plain_a, plain_b, mirrored);
                        near(value, products.product(na, nb, mirrored).value, 1e-13);
                        let length = LENGTH as f64;
                        let h = 1e-3 / length;
                        let slope = (at(h, 0.0) - at(-h, 0.0)) / (2.0 * h);
                        if a.re < -1e-4 && b.re < -1e-4 {
                            near(found.first, slope, 1e-5 * length);
                            let slope = (at(0.0, h) - at(0.0, -h)) / (2.0 * h);
                            near(found.second, slope, 1e-5 * length);
                        }
                        // Differences of the noise need steps far smaller than the decay.
                        if a.re < -1e-2 || b.re < -1e-2 {
                            let both =
                                (at(h, h) - at(h, -h) - at(-h, h) + at(-h, -h)) / (4.0 * h * h);
                            near(found.both, both, 1e-5 * length * length);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn derivatives_of_slow_exponentials_are_those_of_the_sums() {
        let (inputs, metric) = sequences_and_moments();
        let weight = InputWeight::moments(&inputs).unwrap();
        let products = weight.products();
        let points = [(-1e-5, 0.0), (-1e-5, 1e-5), (-2e-4, -1e-4), (-3e-3, 0.01)];
        let points = points.map(|(re, im)| Complex64::new(re, im));
        let made = products.with_slopes(&products.nodes(&points));
        for (&a, na) in points.iter().zip(&made) {
            for (&b, nb) in points.iter().zip(&made) {
                for mirrored in [false, true] {
                    let found = products.product(na, nb, mirrored);
                    let b = if mirrored { b } else { b.conj() };
                    // Σ_ij i^p a^i M_ij j^q b̄^j.
                    let sum = |p: i32, q: i32| -> Complex64 {
                        let row = |i: usize| -> Complex64 {
                            let terms = (0..LENGTH).map(|j| {
                                metric[(i, j)] * (b * j as f64).exp() * (j as f64).powi(q)
                            });
                            terms.sum()
                        };
                        let rows =
                            (0..LENGTH).map(|i| row(i) * (a * i as f64).exp() * (i as f64).powi(p));
                        rows.sum()
                    };
                    let pairs = [
                        (found.value, sum(0, 0)),
                        (found.first, sum(1, 0)),
                        (found.second, sum(0, 1)),
                        (found.both, sum(1, 1)),
                    ];
                    for (k, (found, expected)) in pairs.into_iter().enumerate() {
                        let error = (found / expected - 1.0).norm();
                        assert!(error < 1e-7, "{k} {a} {b}: {error:e}");
                    }
                }
            }
        }
    }
}
