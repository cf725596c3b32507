//! The nearest kernel among the systems that a layout can hold: in the H2 norm, or for an input.

mod classes;
mod descent;
mod measure;
mod signals;

use std::fmt;

use nalgebra::DMatrix;

use crate::control::in_class::classes::Numbers;
use crate::control::in_class::descent::{Reached, descend};
use crate::control::in_class::measure::{InputMeasure, Measure};
use crate::control::in_class::signals::Target;
use crate::control::norm::difference;
use crate::control::{ControlError, InputWeight, Realisation, hankel_values};
use crate::ssm::{DiagonalSystem, SystemError, Time};

/// Steps from each start.
const STEPS_FIRST: usize = 20;

/// Steps at most, from the starts that have come farthest.
const STEPS_MAX: usize = 300;

/// How many those are.
const GO_ON: usize = 2;

/// Systems that some layouts are restricted to. B is what the inputs, C what the outputs are multiplied by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum SystemClass {
    /// Real B and C: cosines without a phase, Σ_n C_n B_n Re a_n^l.
    Cosines,
    /// Real B, whatever C: inputs reach a mode in one phase.
    RealInputs,
    /// Places of damped oscillators, Re(C_n B_n) Im p_n^{l+1}: two modes for each, p and its conjugate.
    Oscillators(OscillatorPoles),
    /// One input; angles that are 1, 2, …, R times one, which is below 2π/R, in this order.
    Multiples,
    /// One input; positive real poles and real residues.
    RealPoles,
}

impl fmt::Display for SystemClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SystemClass::Cosines => "cosines without a phase",
            SystemClass::RealInputs => "real input weights",
            SystemClass::Oscillators(_) => "oscillators",
            SystemClass::Multiples => "angles that are multiples of one",
            SystemClass::RealPoles => "positive real poles",
        })
    }
}

/// Where the poles of oscillators lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum OscillatorPoles {
    /// On the circle |p − ½| = ½.
    HalfCircle,
    /// On the unit circle: without damping.
    UnitCircle,
    /// Within the unit circle.
    Disk,
    /// Within the unit circle, and the input acts one step later: Im p^l.
    DiskDelayed,
}

/// A system of a class and how it was found.
#[derive(Debug, Clone)]
#[must_use]
#[non_exhaustive]
pub struct InClass {
    /// The system.
    pub system: DiagonalSystem,
    /// ‖k − k_r‖/‖k‖ over all time, or over the horizon; digits below 1e-8 are lost.
    pub relative_error: f64,
    /// A bound on the H∞ norm of the error: twice the sum of its Hankel singular values. Infinite where
    /// modes do not decay.
    pub error_bound: f64,
    /// Steps from the start that led to it.
    pub steps: usize,
}

/// Approximates a discrete system by one of a class with at most `order` stored modes, at a local minimum
/// of ‖k − k_r‖² = Σ_l ‖K\[l\] − K_r\[l\]‖²_F: over all time, or over the first `horizon` steps where modes do
/// not decay.
///
/// ```text
/// K_r[l] = Σ_j C_j φ_j(l),   φ_j(l) = Re(β_j e^{z_j l}),   C real, z and β functions of the free numbers
/// E = ‖K‖² − tr(F G⁻¹ Fᵀ),   G_jk = ⟨φ_j, φ_k⟩,   F_ij = ⟨K_i, φ_j⟩,   C = F G⁻¹
/// ⟨Re(β e^{zl}), Re(γ e^{wl})⟩ = ½ Re(β·γ M(z + w) + β·γ̄ M(z + w̄)),   M(s) = (1 − e^{Ls})/(1 − e^s)
/// ```
///
/// The output weights are eliminated (variable projection), and the others moved by a limited-memory
/// quasi-Newton method, whose first guess of the curvature is that of each number alone. The class is
/// one map from the free numbers to z and β with its derivatives, so that nothing else depends on it.
/// The start is made of modes of the system, which has to be of the class: the cheapest are removed one
/// by one, and all weights fitted again each time; of multiples the 1, 2, …-fold
/// angle and some in between, of which the best two go on after some steps. The feedthrough stays as it is,
/// and the result is never worse than its start.
///
/// Cost of a step O(n k (m + p)) for n modes, k signals, m inputs and p outputs.
///
/// # Errors
/// [`SystemError::WrongTime`] in continuous time; [`SystemError::Unstable`] for modes that do not decay
/// without a horizon; [`ControlError::Order`] for an order that holds no unit of the class;
/// [`SystemError::NotSiso`] for multiples of several inputs.
///
/// # References
/// Golub and Pereyra, *Separable nonlinear least squares*, Inverse Problems 19 (2003); Liu and Nocedal,
/// *On the limited memory BFGS method*, Mathematical Programming 45 (1989); Hassibi and Stork, *Second
/// order derivatives for network pruning*, NIPS 5 (1993), for the cost of leaving modes out.
///
/// ```
/// use hankelite_control::num_complex::Complex64;
/// use hankelite_control::{DiagonalSystem, SystemClass, Time, h2_in_class};
///
/// let exponents = [(-0.1, 0.3), (-0.12, 0.35), (-0.5, 1.0)];
/// let exponents = exponents.map(|(re, im)| Complex64::new(re, im)).to_vec();
/// let residues = [1.0, 0.8, -0.5].map(Into::into);
/// let full = DiagonalSystem::siso(Time::Discrete { step: 1.0 }, exponents, &residues, 0.0)?;
/// let found = h2_in_class(&full, SystemClass::Cosines, 2, None)?;
/// assert!(found.relative_error < 0.05);
/// assert!(found.system.output().iter().all(|c| c.im == 0.0));
/// # Ok::<(), hankelite_control::ControlError>(())
/// ```
pub fn h2_in_class(
    full: &DiagonalSystem,
    class: SystemClass,
    order: usize,
    horizon: Option<usize>,
) -> Result<InClass, ControlError> {
    let step = checked(full, class, order, horizon)?;
    let target = Target::new(full, Measure::Steps(horizon));
    let starts = Numbers::starts(full, class, order / class.modes(), &target);
    let best = best(&target, starts);
    let system = system(full, step, &best)?;
    Ok(InClass {
        error_bound: error_bound(full, &system)?,
        system,
        relative_error: target.relative(best.fit.error),
        steps: best.steps,
    })
}

/// What a system of a class is fitted for.
#[derive(Debug, Clone, Copy)]
pub struct ClassInput<'a> {
    /// The spectrum of all inputs, or the moments of one.
    pub weight: &'a InputWeight,
    /// Powers and correlations of the inputs at one step, relative to the weight: m × m, symmetric, with no
    /// negative eigenvalue.
    pub covariance: &'a DMatrix<f64>,
    /// Whether the feedthrough of a system with one input is fitted too.
    pub feedthrough: bool,
}

/// A system of a class, fitted for its input.
#[derive(Debug, Clone)]
#[must_use]
#[non_exhaustive]
pub struct WeightedInClass {
    /// The system.
    pub system: DiagonalSystem,
    /// √E of the kernel without feedthrough, E being the mean square for the input.
    pub norm: f64,
    /// √E of the error of the system that was given to start from.
    pub before: f64,
    /// √E of the error; digits below 1e-8 of the norm are lost.
    pub error: f64,
    /// A bound on the H∞ norm of the error without the feedthrough: twice the sum of its Hankel singular
    /// values.
    pub error_bound: f64,
    /// Steps from the start that led to it.
    pub steps: usize,
}

/// As [`h2_in_class`], at a local minimum of the mean square of the output error for an input, to as many
/// modes as a given system of the class has, e.g. that of the least H2 error. That is one of the starts.
///
/// ```text
/// ⟨k, k'⟩ = Σ_{g,h} Γ_gh (Σ_{i,j<L} k_g[i] k'_h[j] M_ij + ω Σ_l k_g[l] k'_h[l])
/// ```
///
/// with M of [`InputWeight`], the covariance Γ and white noise of a fiftieth of the input's amplitude, so that
/// nothing rings on behind the last step. Kernels of modes that do not decay end with that step. Where the feedthrough is fitted a sample at step 0 is one signal
/// more.
///
/// Cost of a step O(n k) products of exponentials, and O(L) for each signal.
///
/// # Errors
/// As [`h2_in_class`] with a horizon of L steps.
///
/// # Panics
/// Unless the covariance is that of the inputs.
///
/// ```
/// use hankelite_control::num_complex::Complex64;
/// use hankelite_control::{
///     ClassInput, DiagonalSystem, InputWeight, SystemClass, Time, h2_in_class, weighted_in_class,
/// };
///
/// let exponents = [(-0.1, 0.3), (-0.12, 0.35), (-0.5, 1.0)];
/// let exponents = exponents.map(|(re, im)| Complex64::new(re, im)).to_vec();
/// let residues = [1.0, 0.8, -0.5].map(Into::into);
/// let full = DiagonalSystem::siso(Time::Discrete { step: 1.0 }, exponents, &residues, 0.0)?;
/// let white = h2_in_class(&full, SystemClass::Cosines, 1, None)?.system;
/// let weight = InputWeight::white(64);
/// let covariance = &nalgebra::DMatrix::identity(1, 1);
/// let input = ClassInput { weight: &weight, covariance, feedthrough: true };
/// let found = weighted_in_class(&full, &white, SystemClass::Cosines, input)?;
/// assert!(found.error <= found.before);
/// # Ok::<(), hankelite_control::ControlError>(())
/// ```
pub fn weighted_in_class(
    full: &DiagonalSystem,
    start: &DiagonalSystem,
    class: SystemClass,
    input: ClassInput<'_>,
) -> Result<WeightedInClass, ControlError> {
    let step = checked(full, class, start.order(), Some(input.weight.length()))?;
    let inputs = full.input().ncols();
    assert_eq!(input.covariance.shape(), (inputs, inputs), "of the inputs");
    let measure = InputMeasure {
        weight: input.weight.clone(),
        covariance: input.covariance.clone(),
        feedthrough: input.feedthrough && inputs == 1,
        ends: !full.is_stable(),
    };
    let target = Target::new(full, Measure::Input(measure));
    let mut starts = Numbers::starts(full, class, start.order() / class.modes(), &target);
    starts.push(Numbers::of(start, class));
    let best = best(&target, starts);
    let system = system(full, step, &best)?;
    let root = |square: f64| square.max(0.0).sqrt();
    Ok(WeightedInClass {
        norm: root(target.square()),
        before: root(target.square_of(start)),
        error: root(best.fit.error),
        error_bound: error_bound(full, &system)?,
        system,
        steps: best.steps,
    })
}

/// The best that is reached from some starts.
fn best(target: &Target, starts: Vec<Numbers>) -> Reached {
    let starts = starts.into_iter().map(|start| Reached::new(target, start));
    let first = starts.map(|start| descend(target, start, STEPS_FIRST));
    let mut first: Vec<Reached> = first.collect();
    first.sort_by(|a, b| a.fit.square.total_cmp(&b.fit.square));
    let last = first.into_iter().take(GO_ON);
    let last = last.map(|reached| descend(target, reached, STEPS_MAX));
    let best = last.min_by(|a, b| a.fit.square.total_cmp(&b.fit.square));
    best.expect("every class has a start")
}

/// The step, where all suits.
fn checked(
    full: &DiagonalSystem,
    class: SystemClass,
    order: usize,
    horizon: Option<usize>,
) -> Result<f64, ControlError> {
    let Time::Discrete { step } = full.time() else {
        let (found, expected) = ("continuous", "discrete");
        return Err(SystemError::WrongTime { found, expected }.into());
    };
    if horizon.is_none() {
        full.stable()?;
    }
    let (inputs, outputs) = (full.input().ncols(), full.output().nrows());
    let single = matches!(class, SystemClass::Multiples | SystemClass::RealPoles);
    if single && inputs != 1 {
        return Err(SystemError::NotSiso { inputs, outputs }.into());
    }
    let most = full.order();
    if order < class.modes() || order > most || !most.is_multiple_of(class.modes()) {
        let requested = order;
        return Err(ControlError::Order { requested, most });
    }
    Ok(step)
}

fn error_bound(full: &DiagonalSystem, reduced: &DiagonalSystem) -> Result<f64, ControlError> {
    let (Ok(full), Ok(reduced)) = (full.stable(), reduced.stable()) else {
        return Ok(f64::INFINITY);
    };
    let (p, m) = full.system().feedthrough().shape();
    let error = difference(full, reduced, DMatrix::zeros(p, m))?;
    let hankel = hankel_values(error.stable()?, Realisation::Real)?;
    Ok(2.0 * hankel.values().iter().sum::<f64>())
}

/// The modes of free numbers and the weights fitted to them.
fn system(
    full: &DiagonalSystem,
    step: f64,
    reached: &Reached,
) -> Result<DiagonalSystem, ControlError> {
    let fit = &reached.fit;
    let (exponents, input, output) = reached.numbers.modes(&fit.output);
    let mut through = DMatrix::clone(full.feedthrough());
    if let Some(gained) = &fit.feedthrough {
        through += gained;
    }
    let exponents = exponents.into_iter().map(|z| z / step).collect();
    let time = Time::Discrete { step };
    Ok(DiagonalSystem::new(
        time, exponents, input, output, through,
    )?)
}

#[cfg(test)]
mod tests {
    use num_complex::Complex64;

    use super::*;
    use crate::control::metric::white_noise;
    use crate::control::{h2_error, h2_norm};

    const STEP: Time = Time::Discrete { step: 1.0 };

    /// Numbers between −1 and 1 without a pattern.
    fn noise(seed: usize) -> f64 {
        let x = ((seed as f64) * 12.9898 + 4.1).sin() * 43758.5453;
        2.0 * (x - x.floor()) - 1.0
    }

    fn cosines(modes: usize, inputs: usize, outputs: usize) -> DiagonalSystem {
        let exponents = (0..modes).map(|n| {
            let decay = 0.02 * 1.4_f64.powi(n as i32 % 9);
            Complex64::new(-decay, 0.25 * n as f64 + 0.1)
        });
        let input = DMatrix::from_fn(modes, inputs, |n, j| noise(n * 31 + j).into());
        let output = DMatrix::from_fn(outputs, modes, |i, n| {
            (noise(500 + n * 17 + i) / (1.0 + n as f64)).into()
        });
        let through = DMatrix::from_element(outputs, inputs, 0.5);
        DiagonalSystem::new(STEP, exponents.collect(), input, output, through).unwrap()
    }

    /// The same with phases in C.
    fn real_inputs() -> DiagonalSystem {
        let system = cosines(9, 3, 2);
        let turned = |i: usize, n: usize| Complex64::from_polar(1.0, noise(n * 5 + i));
        let output = DMatrix::from_fn(2, 9, |i, n| system.output()[(i, n)] * turned(i, n));
        let (exponents, input) = (system.exponents().to_vec(), system.input().clone());
        DiagonalSystem::new(STEP, exponents, input, output, system.feedthrough().clone()).unwrap()
    }

    /// Oscillators whose poles are given by a decay and an angle.
    fn oscillators(poles: &[Complex64], delay: f64, inputs: usize) -> DiagonalSystem {
        let count = poles.len();
        let c = |seed: usize| Complex64::new(noise(seed), noise(seed + 7000));
        let exponents = poles.iter().flat_map(|&z| [z, z.conj()]).collect();
        let input = DMatrix::from_fn(2 * count, inputs, |n, j| c(n / 2 * 31 + j));
        let output = DMatrix::from_fn(inputs, 2 * count, |i, n| {
            let weight = -Complex64::I * (delay * poles[n / 2]).exp();
            let weight = if n % 2 == 0 { weight } else { weight.conj() };
            weight * c(900 + n / 2 * 17 + i) / (1.0 + (n / 2) as f64)
        });
        DiagonalSystem::new(
            STEP,
            exponents,
            input,
            output,
            DMatrix::zeros(inputs, inputs),
        )
        .unwrap()
    }

    fn megalodon(modes: usize) -> DiagonalSystem {
        let exponents = (1..=modes).map(|n| Complex64::new(-0.05 * n as f64, 0.11 * n as f64));
        let residues: Vec<_> = (0..modes)
            .map(|n| Complex64::new(noise(n), noise(n + 50)))
            .collect();
        DiagonalSystem::siso(STEP, exponents.collect(), &residues, 1.0).unwrap()
    }

    fn real_poles() -> DiagonalSystem {
        let exponents = (0..8).map(|n| (-0.01 * 2.0_f64.powi(n)).into()).collect();
        let residues: Vec<_> = (0..8).map(|n| noise(n + 80).into()).collect();
        DiagonalSystem::siso(STEP, exponents, &residues, 1.0).unwrap()
    }

    /// A spectrum of many lags, and the moments of short sequences, of an input that is mostly slow.
    fn weights() -> [InputWeight; 2] {
        let lags: Vec<f64> = (0..200).map(|m| 3.0 * 0.93_f64.powi(m)).collect();
        let mut last = 0.0;
        let inputs = DMatrix::from_fn(90, 3, |t, n| {
            last = 0.9 * last + noise(t * 7 + n * 1001);
            last
        });
        [
            InputWeight::of_lags(&lags).unwrap(),
            InputWeight::moments(&inputs.transpose()).unwrap(),
        ]
    }

    /// For inputs of several powers, each weight without and with correlations.
    fn measures(system: &DiagonalSystem) -> Vec<InputMeasure> {
        let inputs = system.input().ncols();
        let covariance = |alike: f64| {
            DMatrix::from_fn(inputs, inputs, |g, h| {
                let share = if g == h { 1.0 } else { alike };
                share / ((1.0 + g as f64) * (1.0 + h as f64)).sqrt()
            })
        };
        let measure = |(weight, alike): (&InputWeight, f64)| InputMeasure {
            weight: weight.clone(),
            covariance: covariance(alike),
            feedthrough: inputs == 1,
            ends: !system.is_stable(),
        };
        let weights = weights();
        let both = weights
            .iter()
            .flat_map(|weight| [(weight, 0.0), (weight, 0.4)]);
        both.map(measure).collect()
    }

    /// The kernel without the feedthrough, sample by sample.
    fn kernel(system: &DiagonalSystem, length: usize) -> Vec<DMatrix<f64>> {
        let mut input = system.input().clone();
        let samples = (0..length).map(|_| {
            let sample = (system.output() * &input).map(|z| z.re);
            for (mut row, pole) in input.row_iter_mut().zip(system.poles()) {
                row *= pole;
            }
            sample
        });
        samples.collect()
    }

    fn on_half_circle(angle: f64) -> Complex64 {
        Complex64::new(angle.cos().ln(), angle)
    }

    /// Every class with a system of it and a horizon where one is needed.
    fn samples() -> Vec<(SystemClass, DiagonalSystem, Option<usize>)> {
        use OscillatorPoles::{Disk, DiskDelayed, HalfCircle, UnitCircle};
        let half: Vec<_> = (1..7)
            .map(|n| on_half_circle(0.12 * f64::from(n)))
            .collect();
        let unit: Vec<_> = (1..7)
            .map(|n| Complex64::new(0.0, 0.3 * f64::from(n)))
            .collect();
        let disk: Vec<_> = (1..7)
            .map(|n| Complex64::new(-0.03 * f64::from(n), 0.3 * f64::from(n)))
            .collect();
        let of = SystemClass::Oscillators;
        vec![
            (SystemClass::Cosines, cosines(9, 3, 2), None),
            (SystemClass::RealInputs, real_inputs(), None),
            (of(HalfCircle), oscillators(&half, 1.0, 2), None),
            (of(UnitCircle), oscillators(&unit, 1.0, 2), Some(64)),
            (of(Disk), oscillators(&disk, 1.0, 2), None),
            (of(DiskDelayed), oscillators(&disk, 0.0, 2), Some(100)),
            (SystemClass::Multiples, megalodon(8), None),
            (SystemClass::RealPoles, real_poles(), None),
        ]
    }

    #[test]
    fn slopes_are_those_of_differences() {
        for (class, full, horizon) in samples() {
            let inputs = measures(&full).into_iter().map(Measure::Input);
            for measure in inputs.chain([Measure::Steps(horizon)]) {
                let target = Target::new(&full, measure);
                let start = Numbers::starts(&full, class, 2, &target).remove(0);
                let slopes = start.slopes(&target.fit(&start.signals()));
                let size = slopes.iter().map(|s| s.abs()).fold(1e-3, f64::max);
                for (i, slope) in slopes.iter().enumerate() {
                    let at = |by: f64| {
                        let mut moved = start.clone();
                        moved.values[i] += by;
                        target.fit(&moved.signals()).square
                    };
                    let h = 1e-5;
                    let found = (at(h) - at(-h)) / (2.0 * h);
                    let off = (found - slope).abs();
                    assert!(off < 1e-5 * size, "{class:?} {i}: {found} {slope}");
                }
            }
        }
    }

    /// The square of a kernel's error for its inputs, by sums.
    fn square_by_sums(
        full: &DiagonalSystem,
        reduced: &DiagonalSystem,
        input: &InputMeasure,
    ) -> f64 {
        let length = if input.ends {
            input.weight.length()
        } else {
            6000
        };
        let [a, b] = [full, reduced].map(|system| kernel(system, length));
        let extra = reduced.feedthrough() - full.feedthrough();
        let noise = white_noise(&input.weight).power;
        let (outputs, inputs) = extra.shape();
        // By the square root of the covariance inputs are uncorrelated.
        let eigen = input.covariance.clone().symmetric_eigen();
        let apart = |matrix: &DMatrix<f64>| matrix * &eigen.eigenvectors;
        let pairs = a.iter().zip(&b).enumerate();
        let errors: Vec<DMatrix<f64>> = pairs
            .map(|(l, (a, b))| apart(&(b - a + &extra * if l == 0 { 1.0 } else { 0.0 })))
            .collect();
        let mut sum = 0.0;
        for (i, h) in (0..outputs).flat_map(|i| (0..inputs).map(move |h| (i, h))) {
            let error: Vec<f64> = errors.iter().map(|error| error[(i, h)]).collect();
            let white: f64 = error.iter().map(|e| e * e).sum();
            let power = eigen.eigenvalues[h];
            sum += power * (input.weight.norm(&error).powi(2) + noise * white);
        }
        sum
    }

    #[test]
    fn errors_for_an_input_are_those_of_the_sums_and_below_those_for_white_noise() {
        for (class, full, horizon) in samples() {
            let order = 2 * class.modes();
            let white = h2_in_class(&full, class, order, horizon).unwrap().system;
            for measure in measures(&full) {
                let input = ClassInput {
                    weight: &measure.weight,
                    covariance: &measure.covariance,
                    feedthrough: true,
                };
                let found = weighted_in_class(&full, &white, class, input).unwrap();
                let before = square_by_sums(&full, &white, &measure).sqrt();
                let error = square_by_sums(&full, &found.system, &measure).sqrt();
                let none = full.output() * Complex64::ZERO;
                let (exponents, b) = (full.exponents().to_vec(), full.input().clone());
                let through = full.feedthrough().clone();
                let none = DiagonalSystem::new(STEP, exponents, b, none, through).unwrap();
                let norm = square_by_sums(&full, &none, &measure).sqrt();
                assert!((found.norm / norm - 1.0).abs() < 1e-8, "{class:?}");
                assert!((found.before - before).abs() < 1e-7 * norm, "{class:?}");
                assert!((found.error - error).abs() < 1e-7 * norm, "{class:?}");
                println!("{class:?}: {} -> {} of {norm}", before / norm, error / norm);
                let diagonal = DMatrix::from_diagonal(&measure.covariance.diagonal());
                let most = if measure.covariance == diagonal {
                    0.99
                } else {
                    1.0
                };
                assert!(error < most * before, "{class:?}: {before} {error}");
            }
        }
    }

    #[test]
    fn errors_are_sums_over_steps_and_results_are_of_the_class() {
        for (class, full, horizon) in samples() {
            let order = 2 * class.modes();
            let found = h2_in_class(&full, class, order, horizon).unwrap();
            assert_eq!(found.system.order(), order);
            assert_eq!(found.system.feedthrough(), full.feedthrough());
            let length = horizon.unwrap_or(4000);
            let [a, b] = [&full, &found.system].map(|s| kernel(s, length));
            let square = |x: f64| x * x;
            let (mut error, mut norm) = (0.0, 0.0);
            for (a, b) in a.iter().zip(&b) {
                error += square((a - b).norm());
                norm += square(a.norm());
            }
            let direct = (error / norm).sqrt();
            assert!(
                (direct - found.relative_error).abs() < 1e-7,
                "{class:?} {direct} {}",
                found.relative_error
            );
            // It is of the class: approximated at its own order it is itself.
            let again = h2_in_class(&found.system, class, order, horizon).unwrap();
            assert!(
                again.relative_error < 1e-5,
                "{class:?} {}",
                again.relative_error
            );
        }
    }

    #[test]
    fn a_result_is_stationary_and_better_than_modes_alone() {
        for (class, full, horizon) in samples() {
            let target = Target::new(&full, Measure::Steps(horizon));
            for units in [1, 2, 4] {
                let start = Numbers::starts(&full, class, units, &target).remove(0);
                let before = target.fit(&start.signals()).square;
                let found = h2_in_class(&full, class, units * class.modes(), horizon).unwrap();
                let square = found.relative_error.powi(2);
                assert!(square <= target.relative(before).powi(2) + 1e-8);
                let end = descend(&target, Reached::new(&target, start), STEPS_MAX);
                let slopes = end.numbers.slopes(&end.fit);
                let scales = end.numbers.curvatures(&end.fit);
                let most = slopes.iter().zip(&scales);
                let gain: f64 = most.map(|(s, c)| s * s / c).sum();
                assert!(
                    gain < 1e-4 * end.fit.square + 1e-12,
                    "{class:?} {units} {gain}"
                );
            }
        }
    }

    #[test]
    fn modes_that_are_silent_cost_nothing() {
        let full = cosines(6, 2, 2);
        let silent = DMatrix::from_fn(2, 6, |i, n| match n {
            1 | 4 => Complex64::ZERO,
            _ => full.output()[(i, n)],
        });
        let (exponents, input) = (full.exponents().to_vec(), full.input().clone());
        let through = full.feedthrough().clone();
        let full = DiagonalSystem::new(STEP, exponents, input, silent, through).unwrap();
        let found = h2_in_class(&full, SystemClass::Cosines, 4, None).unwrap();
        let error = h2_error(full.stable().unwrap(), found.system.stable().unwrap()).unwrap();
        assert!(error < 1e-8 * h2_norm(full.stable().unwrap()).unwrap());
    }

    #[test]
    fn what_does_not_suit_is_refused() {
        let full = cosines(4, 2, 2);
        for order in [0, 5] {
            let error = h2_in_class(&full, SystemClass::Cosines, order, None).unwrap_err();
            assert!(matches!(error, ControlError::Order { .. }));
        }
        let error = h2_in_class(&full, SystemClass::Multiples, 2, None).unwrap_err();
        assert!(matches!(
            error,
            ControlError::System(SystemError::NotSiso { .. })
        ));
        let (class, full, _) = samples().swap_remove(3);
        let error = h2_in_class(&full, class, 4, None).unwrap_err();
        assert!(matches!(
            error,
            ControlError::System(SystemError::Unstable { .. })
        ));
    }
}
