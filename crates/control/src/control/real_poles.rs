//! The nearest kernel in the H2 norm whose poles are real and positive.

use nalgebra::{Cholesky, DMatrix, DVector};
use num_complex::Complex64;

use crate::control::{ControlError, Realisation, balance};
use crate::linalg::expm1;
use crate::ssm::{DiagonalSystem, StableSystem, SystemError, Time};

/// Gauss–Newton steps from each start.
const STEPS_FIRST: usize = 15;

/// Gauss–Newton steps at most, from the starts that have come farthest.
const STEPS_MAX: usize = 100;

/// How many those are.
const GO_ON: usize = 2;

/// A step that lowers the squared error by a smaller share is the last.
const PROGRESS: f64 = 1e-7;

/// The least distance of two poles in θ = ln(−ln q). Where poles would meet, weights grow without
/// bound and cancel: at this distance two lose a factor of fifty of a number format's digits, and the
/// error grows by about its square.
const GAP: f64 = 0.02;

/// The fastest decay: e^{-30} is zero beside one.
const DECAY_MAX: f64 = 30.0;

/// How far beyond the slowest mode, in θ, a pole may go.
const BEYOND: f64 = 3.0;

/// A system with positive real poles and how it was found.
#[derive(Debug, Clone)]
#[must_use]
#[non_exhaustive]
pub struct RealPoles {
    /// The system: so many modes as were requested, their poles in (0, 1), the slowest first.
    pub system: DiagonalSystem,
    /// Its H2 error.
    pub error: f64,
    /// Gauss–Newton steps from the start that led to it.
    pub steps: usize,
}

/// Approximates a discrete system by `order` positive real poles, at a local minimum of the H2 error.
///
/// ```text
/// min ‖k − Σ_i w_i q_i^l‖²  over  q_i = e^{−s_i} in (0, 1) and w
/// for fixed q:   E(q) = ‖Σ_k r_k β(a_k) a_k^l‖²,   β(a) = Π_i (a − q_i)/(1 − q_i a)
/// ∂β/∂q_i = β (a² − 1)/((a − q_i)(1 − q_i a))
/// ```
///
/// The best weights are eliminated (variable projection): what is left of the exponential a_k^l beside
/// the span of the q_i^l is β(a_k) times itself, delayed by an all-pass, so E is a sum over the modes of
/// k alone and no Gramian of the q_i is formed or solved with. The sum is a sum of squares in the
/// orthonormal (Takenaka–Malmquist) basis of the a_k, whose coordinates are products. Gauss–Newton
/// steps in θ_i = ln s_i, damped until the error falls, keep the poles in (0, 1); they start from quantiles
/// of the given decays, from the modes of most energy, and from the positive poles of balanced
/// truncation. After some steps the two with the least errors go on. The weights come from the coordinates of k in
/// the orthonormal basis of the q_i, in partial fractions. The feedthrough stays as it is.
///
/// Poles keep a distance of 0.02 in θ, so that weights do not cancel, and s stays below 30. The
/// result is a local minimum, not the global one. With residues of one sign (relaxation systems)
/// balanced truncation has positive real poles by itself; with mixed signs it need not, and what
/// staying real costs is found by comparing.
///
/// One input and any number of outputs, which share the poles. Cost O(n² k) for each step.
///
/// # Errors
/// [`SystemError::WrongTime`] in continuous time; [`SystemError::NotSiso`] with several inputs;
/// [`ControlError::Order`] for an order of zero.
///
/// # References
/// Golub and Pereyra, *Separable nonlinear least squares*, Inverse Problems 19 (2003), for variable
/// projection; Ninness and Gustafsson, *A unifying construction of orthonormal bases for system
/// identification*, IEEE Trans. Automat. Control 42 (1997), for the basis.
///
/// ```
/// use hankelite_control::{DiagonalSystem, Time, h2_real_poles};
///
/// let exponents = [-0.1, -0.11, -0.6].map(Into::into).to_vec();
/// let residues = [1.0, 1.2, -0.5].map(Into::into);
/// let full = DiagonalSystem::siso(Time::Discrete { step: 1.0 }, exponents, &residues, 0.0)?;
/// let found = h2_real_poles(full.stable()?, 2)?;
/// assert!(found.system.exponents().iter().all(|z| z.im == 0.0 && z.re < 0.0));
/// assert!(found.error < 1e-2);
/// # Ok::<(), hankelite_control::ControlError>(())
/// ```
pub fn h2_real_poles(full: StableSystem<'_>, order: usize) -> Result<RealPoles, ControlError> {
    let system = full.system();
    let Time::Discrete { step } = system.time() else {
        let (found, expected) = ("continuous", "discrete");
        return Err(SystemError::WrongTime { found, expected }.into());
    };
    let most = system.order();
    if order == 0 {
        let requested = order;
        return Err(ControlError::Order { requested, most });
    }
    let target = Target::new(system)?;
    let found = starts(full, &target, order).into_iter().map(|start| {
        let start = target.reached(target.admitted(start));
        target.descend(start, STEPS_FIRST)
    });
    let mut found: Vec<Reached> = found.collect();
    found.sort_by(|a, b| a.square.total_cmp(&b.square));
    let last = found.into_iter().take(GO_ON);
    let last = last.map(|reached| target.descend(reached, STEPS_MAX));
    let best = last.min_by(|a, b| a.square.total_cmp(&b.square));
    let best = best.expect("there is a start of every order");
    Ok(RealPoles {
        system: target.realised(&best.thetas, step, system.feedthrough())?,
        error: best.square.sqrt(),
        steps: best.steps,
    })
}

/// What is approximated: k = Σ r a^l, conjugate pairs with both of their modes.
struct Target {
    /// ln a, n.
    exponents: Vec<Complex64>,
    /// n × p.
    residues: DMatrix<Complex64>,
    /// The exponentials a_k^l in an orthonormal basis, n × n: a row for each.
    coordinates: DMatrix<Complex64>,
    /// θ of every mode, ascending.
    thetas: Vec<f64>,
}

/// Where a descent has come to.
struct Reached {
    /// ln(−ln q), ascending.
    thetas: Vec<f64>,
    /// E.
    square: f64,
    steps: usize,
    damping: f64,
    /// Whether no step lowers the error any more, or hardly.
    settled: bool,
}

/// a − b of e^x = a and e^y = b.
fn difference(x: Complex64, y: Complex64) -> Complex64 {
    match x.re >= y.re {
        true => -x.exp() * expm1(y - x),
        false => y.exp() * expm1(x - y),
    }
}

/// 1 − a b of e^x = a and e^y = b.
fn distance(x: Complex64, y: Complex64) -> Complex64 {
    -expm1(x + y)
}

/// (a − q)/(1 − q̄ a), the all-pass factor of q.
fn factor(x: Complex64, q: Complex64) -> Complex64 {
    difference(x, q) / distance(x, q.conj())
}

/// The exponentials of `at` in the orthonormal basis of the exponentials of `poles`:
///
/// ```text
/// φ_i(a) = √(1 − |q_i|²)/(1 − q̄_i a) Π_{j<i} (a − q_j)/(1 − q̄_j a)
/// ```
fn basis(at: &[Complex64], poles: &[Complex64]) -> DMatrix<Complex64> {
    let mut coordinates = DMatrix::zeros(at.len(), poles.len());
    for (k, &x) in at.iter().enumerate() {
        let mut product = Complex64::ONE;
        for (i, &q) in poles.iter().enumerate() {
            let length = distance(q, q.conj()).re.sqrt();
            coordinates[(k, i)] = product * length / distance(x, q.conj());
            product *= factor(x, q);
        }
    }
    coordinates
}

/// ln q of θ = ln(−ln q).
fn exponent(theta: f64) -> Complex64 {
    Complex64::from(-theta.exp())
}

impl Target {
    fn new(system: &DiagonalSystem) -> Result<Self, ControlError> {
        if system.input().ncols() != 1 {
            let (inputs, outputs) = (system.input().ncols(), system.output().nrows());
            return Err(SystemError::NotSiso { inputs, outputs }.into());
        }
        let (mut exponents, mut rows) = (Vec::new(), Vec::new());
        let all = system.scaled_exponents().into_iter().enumerate();
        for (n, z) in all {
            let weight = system.input()[(n, 0)];
            let row: Vec<_> = system
                .output()
                .column(n)
                .iter()
                .map(|c| c * weight)
                .collect();
            if z.im == 0.0 {
                exponents.push(z);
                rows.push(row.iter().map(|r| r.re.into()).collect());
                continue;
            }
            exponents.extend([z, z.conj()]);
            rows.push(row.iter().map(|r| 0.5 * r).collect::<Vec<_>>());
            rows.push(row.iter().map(|r| 0.5 * r.conj()).collect());
        }
        let outputs = system.output().nrows();
        let residues = DMatrix::from_row_iterator(rows.len(), outputs, rows.into_iter().flatten());
        let mut thetas: Vec<f64> = exponents.iter().map(|z| (-z.re).ln()).collect();
        thetas.sort_by(f64::total_cmp);
        Ok(Self {
            coordinates: basis(&exponents, &exponents),
            exponents,
            residues,
            thetas,
        })
    }

    /// θ within its limits, ascending, no two closer than [`GAP`].
    fn admitted(&self, mut thetas: Vec<f64>) -> Vec<f64> {
        let least = self.thetas.first().copied().unwrap_or(0.0) - BEYOND;
        let most = DECAY_MAX.ln();
        thetas.iter_mut().for_each(|t| *t = t.clamp(least, most));
        thetas.sort_by(f64::total_cmp);
        // Pairs that are too close move apart evenly; what is left of it is settled upwards.
        for i in 1..thetas.len() {
            let lack = (GAP - (thetas[i] - thetas[i - 1])).max(0.0);
            thetas[i - 1] -= 0.5 * lack;
            thetas[i] += 0.5 * lack;
        }
        for i in 1..thetas.len() {
            thetas[i] = thetas[i].max(thetas[i - 1] + GAP);
        }
        thetas
    }

    /// The factors of β, n × k.
    fn factors(&self, poles: &[Complex64]) -> DMatrix<Complex64> {
        let (n, k) = (self.exponents.len(), poles.len());
        DMatrix::from_fn(n, k, |row, i| factor(self.exponents[row], poles[i]))
    }

    /// What is left of each mode: its residues times a number for each.
    fn left(&self, shares: &[Complex64]) -> DMatrix<Complex64> {
        let mut left = self.residues.clone();
        for (mut row, share) in left.row_iter_mut().zip(shares) {
            row *= *share;
        }
        left
    }

    /// The error in the orthonormal basis of the modes, all outputs one after the other.
    fn in_basis(&self, left: &DMatrix<Complex64>) -> Vec<Complex64> {
        self.coordinates.tr_mul(left).as_slice().to_vec()
    }

    fn square(&self, thetas: &[f64]) -> f64 {
        let poles: Vec<Complex64> = thetas.iter().map(|&t| exponent(t)).collect();
        let error = self.in_basis(&self.left(&row_products(&self.factors(&poles), None)));
        error.iter().map(Complex64::norm_sqr).sum()
    }

    /// JᴴJ and −Jᴴe of the error e and its derivatives by θ.
    fn normal_equations(&self, thetas: &[f64]) -> (DMatrix<f64>, DVector<f64>) {
        let poles: Vec<Complex64> = thetas.iter().map(|&t| exponent(t)).collect();
        let factors = self.factors(&poles);
        let error = self.in_basis(&self.left(&row_products(&factors, None)));
        let columns = poles.iter().enumerate().map(|(i, &q)| {
            let mut shares = row_products(&factors, Some(i));
            // ∂/∂θ = ln q · q ∂/∂q
            let chain = q * q.exp();
            for (share, &x) in shares.iter_mut().zip(&self.exponents) {
                *share *= -chain * distance(x, x) / distance(x, q).powi(2);
            }
            self.in_basis(&self.left(&shares))
        });
        let columns: Vec<_> = columns.collect();
        let dot = |a: &[Complex64], b: &[Complex64]| -> f64 {
            a.iter().zip(b).map(|(a, b)| (a.conj() * b).re).sum()
        };
        let n = columns.len();
        (
            DMatrix::from_fn(n, n, |i, j| dot(&columns[i], &columns[j])),
            DVector::from_fn(n, |i, _| -dot(&columns[i], &error)),
        )
    }

    fn reached(&self, thetas: Vec<f64>) -> Reached {
        Reached {
            square: self.square(&thetas),
            thetas,
            steps: 0,
            damping: 1e-3,
            settled: false,
        }
    }

    /// Goes on to so many steps.
    fn descend(&self, mut reached: Reached, steps: usize) -> Reached {
        while reached.steps < steps && !reached.settled {
            let mut damping = reached.damping;
            let Some((thetas, square)) = self.step(&reached, &mut damping) else {
                reached.settled = true;
                break;
            };
            let gained = reached.square - square;
            reached = Reached {
                thetas,
                square,
                steps: reached.steps + 1,
                damping: (damping * 0.1).max(1e-12),
                settled: gained <= PROGRESS * (gained + square),
            };
        }
        reached
    }

    /// The first of ever shorter steps that lowers the error.
    fn step(&self, from: &Reached, damping: &mut f64) -> Option<(Vec<f64>, f64)> {
        let (gram, descent) = self.normal_equations(&from.thetas);
        while *damping < 1e10 {
            if let Some(step) = solved(&gram, &descent, *damping) {
                let moved = from.thetas.iter().zip(&step);
                let moved = moved.map(|(t, s)| t + s.clamp(-1.0, 1.0)).collect();
                let thetas = self.admitted(moved);
                let square = self.square(&thetas);
                if square < from.square {
                    return Some((thetas, square));
                }
            }
            *damping *= 4.0;
        }
        None
    }

    /// The system of some poles with its best weights.
    fn realised(
        &self,
        thetas: &[f64],
        step: f64,
        feedthrough: &DMatrix<f64>,
    ) -> Result<DiagonalSystem, SystemError> {
        let poles: Vec<Complex64> = thetas.iter().map(|&t| exponent(t)).collect();
        let coordinates = basis(&self.exponents, &poles).transpose() * &self.residues;
        let weights = partial_fractions(&poles) * coordinates;
        DiagonalSystem::new(
            Time::Discrete { step },
            poles.iter().map(|q| q / step).collect(),
            DMatrix::from_element(poles.len(), 1, Complex64::ONE),
            weights.transpose().map(|w| w.re.into()),
            feedthrough.clone(),
        )
    }
}

/// The product of each row, with one column left out.
fn row_products(factors: &DMatrix<Complex64>, without: Option<usize>) -> Vec<Complex64> {
    let mut products = vec![Complex64::ONE; factors.nrows()];
    let columns = factors.column_iter().enumerate();
    for (_, column) in columns.filter(|(i, _)| Some(*i) != without) {
        for (product, factor) in products.iter_mut().zip(&column) {
            *product *= factor;
        }
    }
    products
}

/// φ_i = Σ_m T_mi q_m^l, the basis of real poles in partial fractions:
///
/// ```text
/// T_mi = √(1 − q_i²) Π_{j<i} (1 − q_j q_m) / Π_{j≤i, j≠m} (q_m − q_j)
/// ```
fn partial_fractions(poles: &[Complex64]) -> DMatrix<Complex64> {
    let n = poles.len();
    DMatrix::from_fn(n, n, |m, i| {
        if m > i {
            return Complex64::ZERO;
        }
        let above = poles[..i].iter().map(|&q| distance(q, poles[m]));
        let below = poles[..=i].iter().enumerate().filter(|(j, _)| *j != m);
        let below = below.map(|(_, &q)| difference(poles[m], q));
        let length = distance(poles[i], poles[i]).re.sqrt();
        length * above.product::<Complex64>() / below.product::<Complex64>()
    })
}

/// (M + damping diag M) x = right by Cholesky of the matrix scaled to a unit diagonal.
fn solved(gram: &DMatrix<f64>, right: &DVector<f64>, damping: f64) -> Option<Vec<f64>> {
    let n = gram.nrows();
    let root = |i: usize| {
        let x = gram[(i, i)];
        if x > 0.0 { x.sqrt() } else { 1.0 }
    };
    let mut scaled = DMatrix::from_fn(n, n, |i, j| gram[(i, j)] / (root(i) * root(j)));
    (0..n).for_each(|i| scaled[(i, i)] += damping);
    let right = DVector::from_fn(n, |i, _| right[i] / root(i));
    let solved = Cholesky::new(scaled)?.solve(&right);
    let step: Vec<f64> = solved
        .iter()
        .enumerate()
        .map(|(i, x)| x / root(i))
        .collect();
    step.iter().all(|x| x.is_finite()).then_some(step)
}

/// Where to start: θ of `order` poles each.
fn starts(full: StableSystem<'_>, target: &Target, order: usize) -> Vec<Vec<f64>> {
    let count = order as f64;
    let quantiles = |first: f64, last: f64| -> Vec<f64> {
        let share = |i: usize| match order {
            1 => 0.5 * (first + last),
            _ => first + (last - first) * i as f64 / (count - 1.0),
        };
        (0..order)
            .map(|i| quantile(&target.thetas, share(i)))
            .collect()
    };
    let (least, most) = (quantile(&target.thetas, 0.0), quantile(&target.thetas, 1.0));
    let even = (1..=order).map(|i| least + (most - least) * i as f64 / (count + 1.0));
    let inner = quantiles(0.5 / count, 1.0 - 0.5 / count);
    let wide = quantiles(0.02, 0.98);
    let fast = wide.iter().map(|t| t + 0.7).collect();
    let mut starts = vec![
        inner.clone(),
        wide,
        fast,
        even.collect(),
        energetic(target, &inner),
    ];
    // A start that rounding denies is no loss: there are others.
    if let Ok(reduced) = balance(full, Realisation::Real).and_then(|b| b.truncate(order)) {
        let poles = reduced.system.scaled_exponents().into_iter();
        let positive = poles.filter(|z| z.im == 0.0).map(|z| (-z.re).ln());
        starts.push(filled(positive.collect(), &inner));
    }
    starts
}

/// Interpolated between the ranks of ascending numbers.
fn quantile(ascending: &[f64], share: f64) -> f64 {
    let last = ascending.len().saturating_sub(1);
    let at = share.clamp(0.0, 1.0) * last as f64;
    let below = at.floor() as usize;
    let rest = at - below as f64;
    ascending[below] + rest * (ascending[(below + 1).min(last)] - ascending[below])
}

/// The decays of the modes of most energy.
fn energetic(target: &Target, others: &[f64]) -> Vec<f64> {
    let energy = |k: usize| {
        let length = distance(target.exponents[k], target.exponents[k].conj()).re;
        target.residues.row(k).norm_squared() / length
    };
    let mut ranking: Vec<usize> = (0..target.exponents.len()).collect();
    ranking.sort_by(|&i, &j| energy(j).total_cmp(&energy(i)));
    let kept = ranking.iter().take(others.len());
    let thetas = kept.map(|&k| (-target.exponents[k].re).ln()).collect();
    filled(thetas, others)
}

/// Filled up with others to their number.
fn filled(mut thetas: Vec<f64>, others: &[f64]) -> Vec<f64> {
    thetas.truncate(others.len());
    thetas.extend_from_slice(&others[thetas.len()..]);
    thetas
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::samples::pairs_and_real_poles;
    use crate::control::{h2_error, h2_refine};

    const STEP: Time = Time::Discrete { step: 0.3 };

    /// Real poles over two decades, with residues of these signs.
    fn real_system(signs: [f64; 6]) -> DiagonalSystem {
        let decays = [0.02, 0.05, 0.11, 0.3, 0.8, 2.0];
        let exponents = decays.map(|s| Complex64::from(-s / 0.3)).to_vec();
        let residues = signs.map(Complex64::from);
        DiagonalSystem::siso(STEP, exponents, &residues, 0.5).unwrap()
    }

    fn mixed() -> DiagonalSystem {
        real_system([1.0, -1.4, 0.7, 2.0, -1.0, 0.4])
    }

    #[test]
    fn the_error_of_the_formula_is_the_norm_of_the_difference() {
        for full in [mixed(), pairs_and_real_poles(STEP, 0.5)] {
            let full = full.stable().unwrap();
            for order in 1..=4 {
                let found = h2_real_poles(full, order).unwrap();
                let direct = h2_error(full, found.system.stable().unwrap()).unwrap();
                assert!(
                    (found.error / direct - 1.0).abs() < 1e-8,
                    "{order}: {direct}"
                );
                assert_eq!(found.system.order(), order);
                assert_eq!(found.system.feedthrough(), full.system().feedthrough());
                let real = |z: &Complex64| z.im == 0.0 && z.re < 0.0;
                assert!(found.system.exponents().iter().all(real));
            }
        }
    }

    #[test]
    fn the_derivatives_are_those_of_the_error() {
        let full = mixed();
        let target = Target::new(&full).unwrap();
        let thetas = [-3.0, -1.5, -0.4];
        let (_, descent) = target.normal_equations(&thetas);
        for i in 0..3 {
            let [up, down] = [1e-5, -1e-5].map(|h| {
                let mut moved = thetas;
                moved[i] += h;
                target.square(&moved)
            });
            let slope = (up - down) / 2e-5;
            assert!(
                (-2.0 * descent[i] / slope - 1.0).abs() < 1e-6,
                "{i}: {slope}"
            );
        }
    }

    #[test]
    fn what_is_found_is_stationary_and_no_worse_than_neighbours() {
        let full = mixed();
        let full = full.stable().unwrap();
        for order in 1..=3 {
            let found = h2_real_poles(full, order).unwrap();
            // Newton steps of all poles and residues find next to nothing.
            let refined = h2_refine(full, found.system.stable().unwrap()).unwrap();
            assert!(
                refined.error > found.error * (1.0 - 1e-4),
                "{order}: {refined:?}"
            );
        }
    }

    #[test]
    fn modes_that_are_there_are_found_and_modes_that_meet_stay_apart() {
        // Two of six modes carry everything.
        let full = real_system([1.0, 0.0, 0.0, -2.0, 0.0, 0.0]);
        let found = h2_real_poles(full.stable().unwrap(), 2).unwrap();
        assert!(found.error < 1e-9, "{}", found.error);
        let decays: Vec<f64> = found
            .system
            .scaled_exponents()
            .iter()
            .map(|z| -z.re)
            .collect();
        assert!(
            (decays[0] - 0.02).abs() < 1e-9 && (decays[1] - 0.3).abs() < 1e-9,
            "{decays:?}"
        );
        // A double pole: two modes that nearly cancel.
        let exponents = [-0.1, -0.1001].map(|s| Complex64::from(s / 0.3)).to_vec();
        let exponents = [exponents, vec![Complex64::from(-4.0)]].concat();
        let residues = [1000.0, -1000.0, 1e-6].map(Complex64::from);
        let full = DiagonalSystem::siso(STEP, exponents, &residues, 0.0).unwrap();
        let found = h2_real_poles(full.stable().unwrap(), 2).unwrap();
        let norm = crate::control::h2_norm(full.stable().unwrap()).unwrap();
        assert!(found.error < 5e-5 * norm, "{} {norm}", found.error);
        let weights = found.system.output().iter().map(|c| c.norm());
        let largest = weights.fold(0.0, f64::max);
        assert!(largest < 100.0, "{largest}");
    }

    #[test]
    fn systems_of_one_sign_lose_nothing_by_staying_real() {
        let full = real_system([1.0, 0.3, 0.7, 2.0, 0.2, 0.4]);
        let full = full.stable().unwrap();
        let balanced = balance(full, Realisation::Real).unwrap();
        for order in 1..=4 {
            let free = balanced.truncate(order).unwrap().system;
            let free = h2_error(full, free.stable().unwrap()).unwrap();
            let found = h2_real_poles(full, order).unwrap();
            assert!(found.error <= free, "{order}: {} {free}", found.error);
        }
    }

    #[test]
    fn several_outputs_share_their_poles() {
        let one = mixed();
        let row = one.output().clone();
        let both = DMatrix::from_fn(2, 6, |i, j| row[(0, j)] * (1.0 + i as f64 * j as f64));
        let full = DiagonalSystem::new(
            STEP,
            one.exponents().to_vec(),
            one.input().clone(),
            both,
            DMatrix::zeros(2, 1),
        );
        let full = full.unwrap();
        let found = h2_real_poles(full.stable().unwrap(), 4).unwrap();
        let direct = h2_error(full.stable().unwrap(), found.system.stable().unwrap()).unwrap();
        assert!((found.error / direct - 1.0).abs() < 1e-6, "{direct}");
        assert_eq!(found.system.output().shape(), (2, 4));
    }

    #[test]
    fn what_it_is_not_for_is_named() {
        let full = pairs_and_real_poles(Time::Continuous, 0.0);
        let error = h2_real_poles(full.stable().unwrap(), 2).unwrap_err();
        assert!(error.to_string().contains("continuous"), "{error}");
        let full = mixed();
        let error = h2_real_poles(full.stable().unwrap(), 0).unwrap_err();
        assert!(error.to_string().contains("order 0"), "{error}");
        let wide = DiagonalSystem::new(
            STEP,
            full.exponents().to_vec(),
            DMatrix::from_element(6, 2, Complex64::ONE),
            full.output().clone(),
            DMatrix::zeros(1, 2),
        );
        let error = h2_real_poles(wide.unwrap().stable().unwrap(), 2).unwrap_err();
        assert!(error.to_string().contains("2 inputs"), "{error}");
    }
}
