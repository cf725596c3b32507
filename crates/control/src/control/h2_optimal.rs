//! H2-optimal refinement: poles and residues moved until the kernel error is stationary.

use nalgebra::{Cholesky, DMatrix, DVector};
use num_complex::Complex64;

use crate::control::h2_kernel::{Mode, Parameter, Signal, product};
use crate::control::{ControlError, Realisation, Reduced, balance, h2_error, h2_norm};
use crate::ssm::{DiagonalSystem, StableSystem, SystemError, Time};

/// Newton steps at most.
const STEPS_MAX: usize = 200;

/// The slope at which a point counts as stationary, see [`H2Refined::slope`].
const SLOPE: f64 = 1e-9;

/// What rounding leaves of an error, in parts of the norm.
const ROUNDING: f64 = 16.0 * f64::EPSILON;

/// A refined system and how far the refinement came.
#[derive(Debug, Clone)]
#[must_use]
#[non_exhaustive]
pub struct H2Refined {
    /// The refined system: as many modes as the start, all of them stable.
    pub system: DiagonalSystem,
    /// The H2 error of the start.
    pub error_before: f64,
    /// The H2 error of the refined system, never above `error_before`.
    pub error: f64,
    /// Steps that lowered the error.
    pub steps: usize,
    /// The largest cosine between the error kernel and any direction in which a pole or a residue
    /// can move it: 0 at a stationary point.
    pub slope: f64,
    /// Whether `slope` fell to 1e-9, or to what rounding leaves of it. Otherwise the steps ran
    /// out, or none lowered the error any more.
    pub converged: bool,
}

/// Balanced truncation to `states` real states, refined by [`h2_refine`].
///
/// # Errors
/// As [`balance`], [`crate::control::Balanced::truncate`] and [`h2_refine`].
pub fn h2_optimal(
    system: StableSystem<'_>,
    states: usize,
) -> Result<(H2Refined, Reduced), ControlError> {
    let start = balance(system, Realisation::Real)?.truncate(states)?;
    let refined = h2_refine(system, start.system.stable()?)?;
    Ok((refined, start))
}

/// Moves the poles and residues of a reduced system to a local minimum of its H2 error.
///
/// ```text
/// J = ½ ‖k − Re Σ ρ_j e^{z_j l}‖²,   z_j = −e^{α_j} + i θ_j
/// ∂k_r/∂ρ:  e^{zl}, i e^{zl}       ∂k_r/∂α:  Re z · ρ l e^{zl}       ∂k_r/∂θ:  i ρ l e^{zl}
/// ⟨l^p e^{zl}, l^q e^{wl}⟩ = M_{p+q}(z + w̄),   M₀ = 1/(1 − e^s), M₁ = e^s M₀², M₂ = e^s(1 + e^s) M₀³
/// ```
///
/// (M₀ = −1/s, M₁ = 1/s², M₂ = −2/s³ in continuous time.) All inner products of the gradient and
/// of the exact second derivatives are closed forms, so no horizon and no sampling enters. Each
/// step solves (H + μ diag H_GN) p = −∇J with μ raised until the error falls; then the residues are
/// set to their least-squares optimum for the new poles. α keeps every pole stable. A real pole
/// stays real, a pair stays a pair; the feedthrough stays as it is.
///
/// The result is never worse than the start, measured by [`h2_error`]. It is a local minimum near
/// the start, not the global one; where a pair would do better as two real poles, its imaginary
/// part runs to zero, where a positive pole would do better as a negative one, it runs to zero, and
/// `converged` stays false. At a stationary point G_r and its derivative interpolate
/// G at the mirror images of the reduced poles (Meier and Luenberger).
///
/// With several inputs and outputs the residue of a mode is c b, ρ stands for the entries of c, and
/// those of b move too, but for the largest: J is the sum over all entries of the kernel, and the
/// interpolation is tangential, b and c being the directions. Least squares sets c. Cost
/// O((n + k) k p + k³) for each step, k parameters: with one input and output four for each pair,
/// otherwise 2 (p + m).
///
/// # Errors
/// [`ControlError::DifferentTime`]; [`ControlError::System`] as [`h2_error`].
///
/// # References
/// Meier and Luenberger, *Approximation of linear constant systems*, IEEE Trans. Automat. Control
/// 12 (1967); Golub and Pereyra, *Separable nonlinear least squares*, Inverse Problems 19 (2003).
pub fn h2_refine(
    full: StableSystem<'_>,
    start: StableSystem<'_>,
) -> Result<H2Refined, ControlError> {
    let target = Target::new(full)?;
    let ceiling = h2_error(full, start)?;
    let point = Point::new(start)?;
    let mut state = State {
        slope: target.slope(&point, ceiling),
        system: start.system().clone(),
        error: ceiling,
        point,
    };
    let mut damping = 1e-3;
    let mut steps = 0;
    while state.slope > SLOPE && steps < STEPS_MAX {
        let Some(next) = target.descend(full, &state, ceiling, &mut damping) else {
            break;
        };
        state = next;
        steps += 1;
    }
    Ok(H2Refined {
        system: state.system,
        error_before: ceiling,
        error: state.error,
        steps,
        slope: state.slope,
        converged: state.slope <= SLOPE,
    })
}

/// What is approximated.
struct Target {
    time: Time,
    kernel: Vec<Signal>,
    norm: f64,
}

/// A point with what was measured there.
struct State {
    point: Point,
    system: DiagonalSystem,
    error: f64,
    slope: f64,
}

/// Poles and residues of the reduced system.
#[derive(Debug, Clone)]
struct Point {
    modes: Vec<Mode>,
    /// Factor on λ: the step Δ, or 1.
    step: f64,
    feedthrough: DMatrix<f64>,
}

impl Point {
    fn new(start: StableSystem<'_>) -> Result<Self, SystemError> {
        let source = start.system();
        Ok(Self {
            modes: Mode::of(source),
            step: step_of(source.time()),
            feedthrough: source.feedthrough().clone(),
        })
    }

    fn derivative(&self, mode: &Mode, by: &[Parameter]) -> Vec<Signal> {
        mode.derivative(mode.lambda * self.step, by)
    }

    fn kernel(&self) -> Vec<Signal> {
        let modes = self.modes.iter();
        modes.flat_map(|mode| self.derivative(mode, &[])).collect()
    }

    /// The directions of one mode, one for each parameter.
    fn tangents(&self, mode: &Mode) -> Vec<Signal> {
        let parameters = mode.parameters().into_iter();
        parameters
            .flat_map(|parameter| self.derivative(mode, &[parameter]))
            .collect()
    }

    /// The point after a step in all parameters.
    fn moved(&self, step: &[f64]) -> Point {
        let mut next = self.clone();
        let mut rest = step;
        for mode in &mut next.modes {
            let (own, others) = rest.split_at(mode.parameters().len());
            *mode = mode.moved(own, self.step);
            rest = others;
        }
        next
    }

    fn to_system(&self, time: Time) -> Result<DiagonalSystem, SystemError> {
        let exponents = self.modes.iter().map(|mode| mode.lambda).collect();
        let (outputs, inputs) = self.feedthrough.shape();
        let input = self.modes.iter().flat_map(|mode| mode.input.clone());
        let output = self.modes.iter().flat_map(|mode| mode.output.clone());
        let n = self.modes.len();
        DiagonalSystem::new(
            time,
            exponents,
            DMatrix::from_row_iterator(n, inputs, input),
            DMatrix::from_iterator(outputs, n, output),
            self.feedthrough.clone(),
        )
    }
}

fn step_of(time: Time) -> f64 {
    match time {
        Time::Continuous => 1.0,
        Time::Discrete { step } => step,
    }
}

impl Target {
    fn new(full: StableSystem<'_>) -> Result<Self, ControlError> {
        Ok(Self {
            time: full.system().time(),
            kernel: Point::new(full)?.kernel(),
            norm: h2_norm(full)?,
        })
    }

    /// ⟨k − k_r, v⟩.
    fn against_error(&self, reduced: &[Signal], v: &Signal) -> f64 {
        let full: f64 = self.kernel.iter().map(|u| product(self.time, u, v)).sum();
        let taken: f64 = reduced.iter().map(|u| product(self.time, u, v)).sum();
        full - taken
    }

    /// The largest |⟨e, t⟩|/(‖e‖ ‖t‖). Inner products are sums of terms as large as the systems
    /// themselves, so ε ‖k‖/‖e‖ of it is rounding and is taken off.
    fn slope(&self, point: &Point, error: f64) -> f64 {
        let reduced = point.kernel();
        let tangents = point.modes.iter().flat_map(|mode| point.tangents(mode));
        let cosine = |t: Signal| {
            let length = product(self.time, &t, &t).sqrt();
            if length == 0.0 || error == 0.0 {
                return 0.0;
            }
            let rounding = 64.0 * f64::EPSILON * self.norm / error;
            (self.against_error(&reduced, &t).abs() / (length * error) - rounding).max(0.0)
        };
        tangents.map(cosine).fold(0.0, f64::max)
    }

    /// A step that lowers the error, if any damping gives one. Near the end the error changes by
    /// less than its rounding; then a step that halves the slope counts as well, as long as the
    /// error stays at or below that of the start.
    fn descend(
        &self,
        full: StableSystem<'_>,
        state: &State,
        ceiling: f64,
        damping: &mut f64,
    ) -> Option<State> {
        let newton = Newton::new(self, &state.point);
        let level = (state.error + ROUNDING * self.norm).min(ceiling);
        while *damping < 1e12 {
            let solved = newton.step(*damping);
            if let Some(next) = solved.and_then(|step| self.try_step(full, &state.point, &step))
                && (next.error < state.error
                    || next.error <= level && next.slope < 0.5 * state.slope)
            {
                *damping = (*damping * 0.1).max(1e-14);
                return Some(next);
            }
            *damping *= 10.0;
        }
        None
    }

    /// The state after a step, with the better of the stepped and the least-squares residues.
    fn try_step(&self, full: StableSystem<'_>, point: &Point, step: &[f64]) -> Option<State> {
        let stepped = point.moved(step);
        let fitted = self.fit_residues(&stepped);
        let offers = [fitted, Some(stepped)].into_iter().flatten();
        let measured = offers.filter_map(|point| {
            let system = point.to_system(self.time).ok()?;
            let error = h2_error(full, system.stable().ok()?).ok()?;
            let slope = self.slope(&point, error);
            let state = State {
                point,
                system,
                error,
                slope,
            };
            (error.is_finite() && slope.is_finite()).then_some(state)
        });
        // Errors that differ by rounding decide nothing; then the slope decides.
        measured.min_by(|a, b| {
            if (a.error - b.error).abs() <= ROUNDING * self.norm {
                a.slope.total_cmp(&b.slope)
            } else {
                a.error.total_cmp(&b.error)
            }
        })
    }

    /// The residues with the least error for these poles; `None` when the poles lie so close that
    /// the normal equations are singular.
    fn fit_residues(&self, point: &Point) -> Option<Point> {
        let mut basis = Vec::new();
        for mode in &point.modes {
            basis.extend_from_slice(&point.tangents(mode)[..mode.outputs()]);
        }
        let n = basis.len();
        let gram = DMatrix::from_fn(n, n, |i, j| product(self.time, &basis[i], &basis[j]));
        let right = basis
            .iter()
            .map(|v| self.kernel.iter().map(|u| product(self.time, u, v)).sum());
        let right = DVector::from_iterator(n, right);
        let weights = solve_scaled(&gram, &right, &diagonal(&gram), 0.0)?;
        let mut next = point.clone();
        let mut rest = weights.into_iter();
        for mode in &mut next.modes {
            let single = mode.single;
            for output in &mut mode.output {
                let re = rest.next()?;
                let im = if single { 0.0 } else { rest.next()? };
                *output = Complex64::new(re, im);
            }
        }
        Some(next)
    }
}

/// The quadratic model of J about a point.
struct Newton {
    hessian: DMatrix<f64>,
    /// The diagonal of the Gauss–Newton part, positive where a parameter matters.
    scale: Vec<f64>,
    descent: DVector<f64>,
}

impl Newton {
    fn new(target: &Target, point: &Point) -> Self {
        let reduced = point.kernel();
        let blocks: Vec<Vec<Signal>> = point
            .modes
            .iter()
            .map(|mode| point.tangents(mode))
            .collect();
        let tangents: Vec<Signal> = blocks.concat();
        let n = tangents.len();
        let mut hessian = DMatrix::zeros(n, n);
        for j in 0..n {
            for i in j..n {
                let value = product(target.time, &tangents[i], &tangents[j]);
                hessian[(i, j)] = value;
                hessian[(j, i)] = value;
            }
        }
        let scale = diagonal(&hessian);
        let mut at = 0;
        for (mode, block) in point.modes.iter().zip(&blocks) {
            let parameters = mode.parameters();
            for i in 0..block.len() {
                for j in 0..block.len() {
                    let second = point.derivative(mode, &[parameters[i], parameters[j]]);
                    let share = second.iter().map(|s| target.against_error(&reduced, s));
                    hessian[(at + i, at + j)] -= share.sum::<f64>();
                }
            }
            at += block.len();
        }
        let descent = tangents.iter().map(|t| target.against_error(&reduced, t));
        Self {
            hessian,
            scale,
            descent: DVector::from_iterator(n, descent),
        }
    }

    fn step(&self, damping: f64) -> Option<Vec<f64>> {
        solve_scaled(&self.hessian, &self.descent, &self.scale, damping)
    }
}

fn diagonal(matrix: &DMatrix<f64>) -> Vec<f64> {
    matrix.diagonal().iter().copied().collect()
}

/// (M + damping · diag(scale)) x = right by Cholesky of the matrix scaled to a unit diagonal.
fn solve_scaled(
    matrix: &DMatrix<f64>,
    right: &DVector<f64>,
    scale: &[f64],
    damping: f64,
) -> Option<Vec<f64>> {
    let n = matrix.nrows();
    let root = |x: f64| if x > 0.0 { x.sqrt() } else { 1.0 };
    let roots: Vec<f64> = scale.iter().map(|&x| root(x)).collect();
    let mut scaled = DMatrix::from_fn(n, n, |i, j| matrix[(i, j)] / (roots[i] * roots[j]));
    for i in 0..n {
        scaled[(i, i)] += damping;
    }
    let right = DVector::from_fn(n, |i, _| right[i] / roots[i]);
    let solved = Cholesky::new(scaled)?.solve(&right);
    let step: Vec<f64> = solved
        .iter()
        .zip(&roots)
        .map(|(x, root)| x / root)
        .collect();
    step.iter().all(|x| x.is_finite()).then_some(step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::samples::pairs_and_real_poles;

    const TIMES: [Time; 2] = [Time::Continuous, Time::Discrete { step: 0.3 }];

    fn sample(time: Time) -> DiagonalSystem {
        pairs_and_real_poles(time, 0.5)
    }

    #[test]
    fn products_are_the_sums_of_the_samples() {
        let time = TIMES[1];
        let system = sample(time);
        let target = Target::new(system.stable().unwrap()).unwrap();
        let point = Point::new(system.stable().unwrap()).unwrap();
        let mut signals: Vec<Signal> = point
            .modes
            .iter()
            .flat_map(|mode| point.tangents(mode))
            .collect();
        let twice = [Parameter::Stretch; 2];
        signals.extend(point.derivative(&point.modes[0], &twice));
        let at = |s: &Signal, l: usize| {
            let weight = s.output[0] * s.input[0];
            (weight * (l as f64).powi(s.power as i32) * (s.z * l as f64).exp()).re
        };
        for u in &signals {
            for v in signals.iter().filter(|v| u.power + v.power <= 2) {
                let direct: f64 = (0..3000).map(|l| at(u, l) * at(v, l)).sum();
                let found = product(target.time, u, v);
                let size = (product(target.time, u, u) + 1.0) * 1e4;
                assert!((found - direct).abs() < 1e-11 * size, "{found} {direct}");
            }
        }
    }

    /// Two inputs and three outputs.
    fn several(time: Time) -> DiagonalSystem {
        let exponents = sample(time).exponents().to_vec();
        let n = exponents.len();
        let entry = |i: usize, j: usize| {
            Complex64::new(
                ((3 * i + j + 1) as f64).sin(),
                ((i + 2 * j * j) as f64).cos(),
            )
        };
        DiagonalSystem::new(
            time,
            exponents,
            DMatrix::from_fn(n, 2, entry),
            DMatrix::from_fn(3, n, entry),
            DMatrix::from_element(3, 2, 0.25),
        )
        .unwrap()
    }

    /// ½‖k − k_r‖² as the refinement sees it.
    fn objective(target: &Target, point: &Point) -> f64 {
        let mut error = target.kernel.clone();
        error.extend(point.kernel().into_iter().map(|mut s| {
            s.output.iter_mut().for_each(|c| *c = -*c);
            s
        }));
        let each = |u: &Signal| {
            error
                .iter()
                .map(|v| product(target.time, u, v))
                .sum::<f64>()
        };
        0.5 * error.iter().map(each).sum::<f64>()
    }

    #[test]
    fn gradient_and_second_derivatives_agree_with_differences() {
        for (system, time) in TIMES
            .into_iter()
            .flat_map(|t| [(sample(t), t), (several(t), t)])
        {
            let full = system.stable().unwrap();
            let target = Target::new(full).unwrap();
            let start = balance(full, Realisation::Real)
                .unwrap()
                .truncate(5)
                .unwrap()
                .system;
            let point = Point::new(start.stable().unwrap()).unwrap();
            let newton = Newton::new(&target, &point);
            let n = newton.scale.len();
            let unit = |i: usize, h: f64| (0..n).map(move |k| if k == i { h } else { 0.0 });
            let h = 3e-6;
            for i in 0..n {
                let [up, down] = [h, -h].map(|h| point.moved(&unit(i, h).collect::<Vec<_>>()));
                let slope = (objective(&target, &up) - objective(&target, &down)) / (2.0 * h);
                let scale = newton.scale[i].sqrt();
                assert!(
                    (slope + newton.descent[i]).abs() < 1e-8 * (1.0 + scale),
                    "{time:?} {i}"
                );
                let [up, down] = [up, down].map(|point| Newton::new(&target, &point).descent);
                for j in 0..n {
                    let second = (down[j] - up[j]) / (2.0 * h);
                    let error = (second - newton.hessian[(i, j)]).abs();
                    assert!(error < 1e-6 * (1.0 + scale), "{time:?} {i} {j}: {error:e}");
                }
            }
        }
    }

    #[test]
    fn a_refined_truncation_is_stationary_and_no_worse() {
        for (system, time) in TIMES
            .into_iter()
            .flat_map(|t| [(sample(t), t), (several(t), t)])
        {
            for states in 1..8 {
                let (refined, start) = h2_optimal(system.stable().unwrap(), states).unwrap();
                assert!(refined.error <= refined.error_before);
                assert!(refined.system.is_stable());
                assert_eq!(refined.system.order(), start.system.order());
                // A pair that wants to be two real poles runs onto the real axis, a pole that wants
                // to be negative runs to zero.
                let exponents = refined.system.exponents();
                let on_edge = |z: &Complex64| {
                    let almost_real = z.im != 0.0 && z.im.abs() < 1e-3 * z.re.abs();
                    almost_real || (time != Time::Continuous && z.re < -100.0)
                };
                assert!(
                    refined.converged || exponents.iter().any(on_edge),
                    "{time:?} {states}: slope {:e} after {}: {exponents:?}",
                    refined.slope,
                    refined.steps
                );
            }
        }
    }

    #[test]
    fn the_slope_is_the_largest_cosine_of_the_sampled_kernels() {
        let time = TIMES[1];
        let system = sample(time);
        let full = system.stable().unwrap();
        let start = balance(full, Realisation::Real).unwrap().truncate(3);
        let start = start.unwrap().system;
        let point = Point::new(start.stable().unwrap()).unwrap();
        let length = 1000;
        let kernel_of = |point: &Point| {
            let system = point.to_system(time).unwrap();
            DVector::from_vec(system.as_siso().unwrap().kernel(length).unwrap())
        };
        let kernel = system.as_siso().unwrap().kernel(length).unwrap();
        let error = DVector::from_vec(kernel) - kernel_of(&point);
        let count: usize = point.modes.iter().map(|mode| mode.parameters().len()).sum();
        let cosines = (0..count).map(|i| {
            let [up, down] = [1e-5, -1e-5].map(|h| {
                let step: Vec<f64> = (0..count).map(|k| if k == i { h } else { 0.0 }).collect();
                kernel_of(&point.moved(&step))
            });
            let direction = up - down;
            (error.dot(&direction) / (error.norm() * direction.norm())).abs()
        });
        let largest = cosines.fold(0.0, f64::max);
        let target = Target::new(full).unwrap();
        let found = target.slope(&point, h2_error(full, start.stable().unwrap()).unwrap());
        assert!(largest > 1e-3, "{largest}");
        assert!((found / largest - 1.0).abs() < 1e-6, "{found} {largest}");
    }

    #[test]
    fn a_start_off_by_a_few_ulps_counts_as_stationary() {
        for (time, gain) in TIMES.into_iter().flat_map(|t| [(t, 1e-3), (t, 1e3)]) {
            let scaled = |factor: f64| {
                let own = sample(time);
                let residues: Vec<Complex64> =
                    own.residues().unwrap().iter().map(|w| w * factor).collect();
                DiagonalSystem::siso(time, own.exponents().to_vec(), &residues, 0.5).unwrap()
            };
            let (system, start) = (scaled(gain), scaled(gain * (1.0 + 8.0 * f64::EPSILON)));
            let refined = h2_refine(system.stable().unwrap(), start.stable().unwrap()).unwrap();
            assert!(refined.error_before > 0.0);
            assert_eq!(
                (refined.slope, refined.steps, refined.converged),
                (0.0, 0, true)
            );
            // A thousand times farther off the error is no rounding.
            let start = scaled(gain * (1.0 + 8e3 * f64::EPSILON));
            let target = Target::new(system.stable().unwrap()).unwrap();
            let error = h2_error(system.stable().unwrap(), start.stable().unwrap()).unwrap();
            let slope = target.slope(&Point::new(start.stable().unwrap()).unwrap(), error);
            assert!(slope > 1e-2, "{slope}");
        }
    }

    #[test]
    fn an_exact_start_stays() {
        let system = sample(TIMES[1]);
        let full = system.stable().unwrap();
        let refined = h2_refine(full, full).unwrap();
        assert_eq!(
            (refined.error, refined.steps, refined.converged),
            (0.0, 0, true)
        );
        assert_eq!(refined.system, system);
    }
}
