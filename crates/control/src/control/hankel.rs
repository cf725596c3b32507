//! Hankel singular values and the order rules that read them.

use crate::control::mirrored::Mirrored;
use crate::control::realisation::real_states;
use crate::control::{
    ControlError, GramianFactors, Realisation, complex_gramian_factors, real_gramian_factors,
};
use crate::linalg::{GradedSvd, Scalar, multiply_adjoint, scaled_svd};
use crate::ssm::StableSystem;

/// Two neighbouring values closer than this, relative to the larger, count as a tie.
const TIE: f64 = 1e-10;

/// Hankel singular values σ₁ ≥ σ₂ ≥ … ≥ 0, one per state of the balanced system.
#[derive(Debug, Clone, PartialEq)]
pub struct HankelValues {
    values: Vec<f64>,
    rotations: usize,
}

impl HankelValues {
    /// Sorts the values; zeros fill up to `states` when the system is not minimal.
    pub(super) fn new(mut values: Vec<f64>, states: usize) -> Self {
        values.resize(states.max(values.len()), 0.0);
        values.sort_by(|a, b| b.total_cmp(a));
        let rotations = 0;
        Self { values, rotations }
    }

    /// Values with the trace of how they were found.
    pub(super) fn traced<T: Scalar>(svd: &GradedSvd<T>, states: usize) -> Self {
        let rotations = svd.rotations;
        Self {
            rotations,
            ..Self::new(svd.sigma.clone(), states)
        }
    }

    /// How many Jacobi rotations the values took after an ordinary decomposition. 0: the spectrum
    /// is mild, and that alone kept the digits of every value.
    pub fn rotations(&self) -> usize {
        self.rotations
    }

    /// The values of two systems side by side, whose Gramians have no entry between them.
    #[must_use]
    pub fn joined(&self, other: &Self) -> Self {
        let values = [self.values.as_slice(), &other.values].concat();
        Self {
            rotations: self.rotations + other.rotations,
            ..Self::new(values, 0)
        }
    }

    /// All values, descending.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// The number of values that stand above rounding: σ_j > n ε σ₁.
    ///
    /// Smaller values are right too, but the states behind them cannot be distinguished in a
    /// double-precision model.
    pub fn numerical_rank(&self) -> usize {
        let largest = self.values.first().copied().unwrap_or(0.0);
        let floor = self.values.len() as f64 * f64::EPSILON * largest;
        self.values
            .iter()
            .take_while(|&&value| value > floor)
            .count()
    }

    /// The sum of the values cut off at order q.
    pub fn discarded(&self, order: usize) -> f64 {
        let cut = self.values.iter().skip(order).rev();
        cut.fold(0.0, |sum, value| sum + value)
    }

    /// The bound on the error of balanced truncation or residualisation to order q.
    ///
    /// ```text
    /// ‖G − G_q‖∞ ≤ 2 Σ σ   over the distinct values among σ_{q+1}, …, σ_n
    /// ```
    ///
    /// Values equal to ten digits count once, as the largest of them; each is compared with the
    /// largest of its group, so a slow slope of values never chains into one group. Values that
    /// differ by more count in full, however near they are.
    ///
    /// # References
    /// Enns (1984); Glover, *All optimal Hankel-norm approximations*, Int. J. Control 39 (1984),
    /// theorem 9.6, for distinct values; Ezoe and Sato, eq. (60) (the norm, not its square).
    pub fn truncation_bound(&self, order: usize) -> f64 {
        // An empty `sum` is −0, which would reach the record.
        2.0 * self
            .distinct(order)
            .iter()
            .rev()
            .fold(0.0, |sum, value| sum + value)
    }

    /// The largest member of each group of equal values among σ_{q+1}, …, σ_n, descending.
    fn distinct(&self, order: usize) -> Vec<f64> {
        let mut groups: Vec<f64> = Vec::new();
        for &value in self.values.iter().skip(order) {
            if groups.last().is_none_or(|&leader| !equal(leader, value)) {
                groups.push(value);
            }
        }
        groups
    }

    /// The smallest order q whose bound 2 Σ_{j>q} σ_j is at most `tolerance` · σ₁. The full
    /// order when the tolerance is tighter than every bound, 0 when even order 0 meets it.
    pub fn order_for_tolerance(&self, tolerance: f64) -> usize {
        let allowed = tolerance * self.values.first().copied().unwrap_or(0.0);
        let orders = 0..=self.values.len();
        let smallest = orders
            .into_iter()
            .find(|&q| self.truncation_bound(q) <= allowed);
        smallest.unwrap_or(self.values.len())
    }

    /// The smallest order that keeps this share of the states, ⌈`fraction` · n⌉: 0 for a share of
    /// 0 or below, n for a share of 1 or above. It reads no values.
    pub fn order_for_fraction(&self, fraction: f64) -> usize {
        let states = self.values.len();
        // 0.3 · 10 is 3 + 4e-16: rounding alone must not cost a state.
        let share = (fraction * states as f64 * (1.0 - 4.0 * f64::EPSILON)).ceil();
        (share.max(0.0) as usize).min(states)
    }

    /// The smallest order q with Σ_{j≤q} σ_j ≥ `fraction` · Σ σ_j (values, not squares).
    ///
    /// A share of 0 or below gives 0, any other at least 1 unless every value is zero; a share of
    /// 1 gives the number of values that are not zero.
    pub fn order_for_sum(&self, fraction: f64) -> usize {
        self.order_for_share(fraction, |value| value)
    }

    /// The smallest order q with Σ_{j≤q} σ_j² ≥ `fraction` · Σ σ_j² (squares, not values).
    ///
    /// Edges as [`HankelValues::order_for_sum`].
    pub fn order_for_energy(&self, fraction: f64) -> usize {
        self.order_for_share(fraction, |value| value * value)
    }

    fn order_for_share(&self, fraction: f64, weight: impl Fn(f64) -> f64) -> usize {
        let total: f64 = self.values.iter().rev().map(|&value| weight(value)).sum();
        // 1 − 0.9 is 0.1 less an ulp of one: rounding alone must not cost a state.
        let allowed = if fraction < 1.0 {
            (1.0 - fraction + f64::EPSILON) * total
        } else {
            0.0
        };
        let mut tail = 0.0;
        for (index, &value) in self.values.iter().enumerate().rev() {
            tail += weight(value);
            if tail > allowed {
                return index + 1;
            }
        }
        0
    }

    /// Whether σ_q = σ_{q+1} to ten digits: the cut at order q is then not unique.
    pub fn tie_at(&self, order: usize) -> bool {
        if order == 0 || order >= self.values.len() {
            return false;
        }
        let (kept, cut) = (self.values[order - 1], self.values[order]);
        kept > 0.0 && equal(kept, cut)
    }
}

/// Whether a value is its larger neighbour to ten digits.
fn equal(larger: f64, value: f64) -> bool {
    larger - value <= TIE * larger
}

/// The Hankel singular values of a stable system.
///
/// ```text
/// σ = singular values of F_o* F_c,   W_c = F_c F_c*,   W_o = F_o F_o*
/// ```
///
/// There are as many as the realisation has states: one per mode for
/// [`Realisation::Complex`]; two per pair and one per real pole for [`Realisation::Real`] (two
/// per real pole whose residue Re(c b) has rank two, with several inputs and outputs).
/// Each is accurate relative to itself, within the limit that [`complex_gramian_factors`] states
/// for several inputs or outputs. Cost about 50 n³ flops.
///
/// # Errors
/// [`ControlError::Linalg`] when the Jacobi iteration does not settle.
///
/// # Examples
/// ```
/// use hankelite_control::{Realisation, hankel_values};
/// use hankelite_control::{DiagonalSystem, Time};
/// use num_complex::Complex64;
///
/// let pole = vec![Complex64::new(-2.0, 0.0)];
/// let system = DiagonalSystem::siso(Time::Continuous, pole, &[Complex64::ONE], 0.0)?;
/// let sigma = hankel_values(system.stable()?, Realisation::Complex)?;
/// assert!((sigma.values()[0] - 0.25).abs() < 1e-15); // |b c| / (2 |Re λ|)
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn hankel_values(
    system: StableSystem<'_>,
    realisation: Realisation,
) -> Result<HankelValues, ControlError> {
    let source = system.system();
    match (realisation, source.as_siso()) {
        (Realisation::Complex, Ok(siso)) => {
            let svd = Mirrored::of_complex(siso, source.time()).svd()?;
            Ok(HankelValues::traced(&svd, source.order()))
        }
        (Realisation::Real, Ok(siso)) => {
            let svd = Mirrored::of_real(siso, source.time()).svd()?;
            Ok(HankelValues::traced(&svd, real_states(source)))
        }
        (Realisation::Complex, Err(_)) => {
            let factors = complex_gramian_factors(system)?;
            let states = factors.controllability.nrows();
            Ok(HankelValues::traced(&factor_svd(&factors)?, states))
        }
        (Realisation::Real, Err(_)) => {
            let factors = real_gramian_factors(system)?;
            let states = real_states(source);
            Ok(HankelValues::traced(&factor_svd(&factors)?, states))
        }
    }
}

/// F_o* F_c = U diag(σ) V*.
pub(super) fn factor_svd<T: Scalar>(
    factors: &GramianFactors<T>,
) -> Result<GradedSvd<T>, ControlError> {
    let product = multiply_adjoint(&factors.observability, &factors.controllability);
    Ok(scaled_svd(product)?)
}

#[cfg(test)]
mod tests {
    use num_complex::Complex64;

    use super::*;
    use crate::ssm::{DiagonalSystem, Time};

    fn values(sigma: &[f64]) -> HankelValues {
        HankelValues::new(sigma.to_vec(), sigma.len())
    }

    /// x' = λ_j x + u, y = Σ x.
    fn of_ones(poles: Vec<Complex64>) -> DiagonalSystem {
        let residues = vec![Complex64::ONE; poles.len()];
        DiagonalSystem::siso(Time::Continuous, poles, &residues, 0.0).unwrap()
    }

    #[test]
    fn values_are_right_down_to_the_smallest_numbers() {
        for (apart, states, smallest) in
            [(1e-3, 40, 5e-189), (1e-5, 24, 5e-213), (1e-7, 24, 5e-305)]
        {
            let decays: Vec<f64> = (0..states).map(|k| 1.0 + apart * f64::from(k)).collect();
            // Both Gramians are 1/(x_i + x_j), the values its eigenvalues, and Cauchy's determinant, Π_{i<j} (x_i − x_j)² / Π_{ij} (x_i + x_j), is the product of the values.
            let mut expected = 0.0;
            for (i, x) in decays.iter().enumerate() {
                expected -= decays.iter().map(|y| (x + y).ln()).sum::<f64>();
                expected += decays[..i]
                    .iter()
                    .map(|y| 2.0 * (x - y).abs().ln())
                    .sum::<f64>();
            }
            let system = of_ones(decays.iter().map(|&x| Complex64::from(-x)).collect());
            for realisation in [Realisation::Complex, Realisation::Real] {
                let found = hankel_values(system.stable().unwrap(), realisation).unwrap();
                let product: f64 = found.values().iter().map(|value| value.ln()).sum();
                assert!(
                    (product - expected).abs() < 1e-9,
                    "{apart:e}: {product} {expected}"
                );
                let last = found.values()[decays.len() - 1];
                assert!(
                    last > smallest && last < 1.2 * smallest,
                    "{apart:e}: {last:e}"
                );
            }
        }
    }

    #[test]
    fn only_values_of_many_decades_take_rotations() {
        let apart = (0..20).map(|k| Complex64::new(-0.5, 40.0 * f64::from(k + 1)));
        let close = (0..20).map(|k| Complex64::from(-1.0 - 0.1 * f64::from(k)));
        let (apart, close) = (of_ones(apart.collect()), of_ones(close.collect()));
        for realisation in [Realisation::Complex, Realisation::Real] {
            let rotations = |system: &DiagonalSystem| {
                let found = hankel_values(system.stable().unwrap(), realisation).unwrap();
                found.rotations()
            };
            assert_eq!(rotations(&apart), 0);
            assert!(rotations(&close) > 0);
        }
    }

    #[test]
    fn a_tolerance_below_every_bound_keeps_the_full_order() {
        let sigma = values(&[1.0, 0.1, 0.01]);
        assert_eq!(sigma.order_for_tolerance(1e-9), 3);
        assert_eq!(sigma.order_for_tolerance(0.02), 2);
        assert_eq!(sigma.order_for_tolerance(0.0199), 3);
        assert_eq!(sigma.order_for_tolerance(100.0), 0);
        assert_eq!(values(&[]).order_for_tolerance(0.1), 0);
    }

    #[test]
    fn energy_counts_states_and_not_indices() {
        // hankelreg's reduction_index gives 0 for this at 0.98.
        assert_eq!(values(&[99.0, 0.5, 0.5]).order_for_energy(0.98), 1);
        assert_eq!(values(&[1.0, 1.0]).order_for_energy(0.5), 1);
        assert_eq!(values(&[1.0, 1.0]).order_for_energy(0.51), 2);
        assert_eq!(values(&[1.0, 1e-3]).order_for_energy(1.0), 2);
        assert_eq!(values(&[1.0, 0.0]).order_for_energy(1.0), 1);
    }

    #[test]
    fn the_bound_counts_equal_values_once_and_near_ones_in_full() {
        let sigma = values(&[3.0, 2.0, 2.0, 2.0, 0.5, 0.0, 0.0]);
        assert_eq!(sigma.truncation_bound(0), 11.0);
        assert_eq!(sigma.truncation_bound(1), 5.0);
        assert_eq!(sigma.truncation_bound(2), 5.0);
        assert_eq!(sigma.truncation_bound(4), 1.0);
        assert_eq!(sigma.truncation_bound(5), 0.0);
        assert_eq!(sigma.discarded(1), 6.5);
        // A group is represented by its largest value, and a slope does not chain.
        let rounded = values(&[1.0, 1.0 - 1e-13]);
        assert_eq!(rounded.truncation_bound(0), 2.0);
        let near = values(&[1.0, 1.0 - 1e-9]);
        assert!(near.truncation_bound(0) > 3.9);
        let slope: Vec<f64> = (0..10).map(|k| 1.0 - 6e-11 * f64::from(k)).collect();
        assert!(values(&slope).truncation_bound(0) > 9.9);
    }

    #[test]
    fn a_tolerance_sees_a_tie_as_one_value() {
        let sigma = values(&[1.0, 0.1, 0.1]);
        assert_eq!(sigma.order_for_tolerance(0.2), 1);
        assert_eq!(sigma.order_for_tolerance(0.199), 3);
        assert_eq!(sigma.order_for_tolerance(2.2), 0);
    }

    #[test]
    fn a_share_of_states_is_rounded_up() {
        let sigma = values(&[1.0; 10]);
        let orders = [-1.0, 0.0, 0.01, 0.3, 0.31, 1.0, 7.0].map(|f| sigma.order_for_fraction(f));
        assert_eq!(orders, [0, 0, 1, 3, 4, 10, 10]);
        assert_eq!(values(&[]).order_for_fraction(0.5), 0);
    }

    #[test]
    fn sums_of_values_and_of_squares_are_different_rules() {
        let sigma = values(&[4.0, 3.0, 2.0, 1.0, 0.0]);
        let sums = [0.0, 0.1, 0.4, 0.41, 0.9, 0.91, 1.0].map(|f| sigma.order_for_sum(f));
        assert_eq!(sums, [0, 1, 1, 2, 3, 4, 4]);
        let energies = [0.0, 0.1, 0.53, 0.54, 0.96, 0.97, 1.0].map(|f| sigma.order_for_energy(f));
        assert_eq!(energies, [0, 1, 1, 2, 3, 4, 4]);
        assert_eq!(values(&[0.0, 0.0]).order_for_sum(0.9), 0);
        assert_eq!(values(&[]).order_for_sum(0.9), 0);
    }

    #[test]
    fn a_tie_is_seen_at_its_cut_only() {
        let sigma = values(&[2.0, 1.0, 1.0, 0.5]);
        let ties: Vec<bool> = (0..=4).map(|q| sigma.tie_at(q)).collect();
        assert_eq!(ties, [false, false, true, false, false]);
    }

    #[test]
    fn rank_stops_at_rounding() {
        assert_eq!(values(&[1.0, 1e-10, 1e-20]).numerical_rank(), 2);
        assert_eq!(values(&[0.0, 0.0]).numerical_rank(), 0);
    }
}
