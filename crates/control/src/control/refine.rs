//! Refinement of a reduced channel in the metric of its input.

use std::f64::consts::PI;

use nalgebra::{Cholesky, DMatrix, DVector, Dyn};
use num_complex::Complex64;

use crate::control::metric::{Basis, DECAY_MAX, Inner, Metric, slowest, weighted_error};
use crate::control::{ControlError, InputWeight};
use crate::ssm::{DiagonalSystem, StableSystem, SystemError, Time};

/// Gauss–Newton steps at most.
const STEPS_MAX: usize = 30;

/// A relative gain below this in one step ends the refinement.
const GAIN_MIN: f64 = 1e-4;

/// The damping of the first step, the least, and the one at which no step is expected to help any more.
const DAMPING_START: f64 = 1.0;
const DAMPING_MIN: f64 = 1e-10;
const DAMPING_MAX: f64 = 1e6;

/// The largest change of ln(−Re z) and of Im z in one step.
const STEP_MAX: (f64, f64) = (0.7, 0.3);

/// What a weight costs by itself, as a share of its mode's norm: 16 times what single precision
/// rounds it by, so that weights that nearly cancel survive being written.
const RIDGE: f64 = 1e-6;

/// What rounding leaves of products, relative to the norms.
const ROUNDING: f64 = 1e-11;

/// What rounding leaves of the part of a tangent across the basis, as a share of the tangent's square:
/// 2⁻⁵³/[`ROUNDING`], as the basis may be that near to losing a dimension. Steps are damped by it.
const ACROSS: f64 = 1e-5;

/// Errors whose square is a smaller share of the channel's own are summed over their samples.
const DIGITS_LEFT: f64 = 1e-8;

/// A pair keeps this share of its decay between itself and the real axis. Nearer to it the two shapes
/// of a pair are all but parallel, and steps of the poles follow the rounding of what cancels. A double
/// pole is met to the square of this.
const OFF_AXIS: f64 = 0.03;

/// Poles that decay faster than this start as slow as this: they would only double D.
const START_MAX: f64 = 3.0;

/// How far a truncated channel is refined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "lowercase")
)]
#[non_exhaustive]
pub enum Refinement {
    /// Not at all.
    None,
    /// Residues and feedthrough, in closed form.
    Residues,
    /// Then poles, residues and feedthrough by Gauss–Newton steps.
    Full,
}

/// A refined channel.
#[derive(Debug, Clone)]
#[must_use]
#[non_exhaustive]
pub struct Refined {
    /// The refined system.
    pub system: DiagonalSystem,
    /// √E of the start.
    pub truncated: f64,
    /// √E with the start's poles and the best residues; never above `truncated`.
    pub refitted: f64,
    /// √E of the refined system; never above `refitted`.
    pub error: f64,
    /// Gauss–Newton steps that lowered the error.
    pub steps: usize,
}

/// Where the steps of the poles stand that [`WeightedChannel::draft`] took.
#[derive(Debug, Clone)]
#[must_use]
pub struct RefinementState {
    nodes: Vec<Complex64>,
    damping: f64,
    /// Steps that lowered the error.
    steps: usize,
    /// Whether no step is expected to help any more.
    is_over: bool,
}

impl RefinementState {
    fn new(nodes: Vec<Complex64>) -> Self {
        Self {
            nodes,
            damping: DAMPING_START,
            steps: 0,
            is_over: false,
        }
    }
}

impl Refined {
    /// A start that stays as it is.
    pub fn unrefined(start: &DiagonalSystem, truncated: f64) -> Self {
        Self {
            system: start.clone(),
            truncated,
            refitted: truncated,
            error: truncated,
            steps: 0,
        }
    }
}

/// Moves residues, feedthrough and poles of a reduced channel to a minimum of its weighted error.
///
/// ```text
/// min over z, w, D of  E(k − Re Σ_n w_n e^{z_n l} − D e₀),     z_n = −e^{α_n} + i θ_n
/// ```
///
/// For given poles w and D follow by linear least squares. The poles take Gauss–Newton steps on
/// what is then left (variable projection with Kaufman's Jacobian: the part of ∂/∂α, ∂/∂θ outside
/// the span of the basis), damped as by Levenberg and Marquardt; only steps that lower the error
/// are taken. Every stored mode is a pair here: a real pole starts a little off the axis, and of
/// `slots` those that the start leaves empty begin as fast poles. α keeps every pole stable, and no
/// pole becomes slower than the slowest of the full channel and of the start. White noise at a fiftieth
/// of the input's amplitude counts besides, over all time: what the weight's L steps do not show must
/// not ring on.
///
/// The result is never worse than the start, by [`weighted_error`]. All sums over steps are in closed
/// form: each of at most 30 steps costs O(r L + r N + r³), with the moments of n sequences
/// O(r n L + r² n).
///
/// # Errors
/// [`ControlError::System`] for continuous time, and for more than one input or output.
///
/// # References
/// Golub and Pereyra, *Separable nonlinear least squares*, Inverse Problems 19 (2003); Kaufman,
/// *A variable projection method for solving separable nonlinear least squares problems*, BIT 15
/// (1975).
pub fn weighted_refine(
    full: &DiagonalSystem,
    start: StableSystem<'_>,
    slots: usize,
    weight: &InputWeight,
    refinement: Refinement,
) -> Result<Refined, ControlError> {
    WeightedChannel::new(full, weight)?.refine(start, slots, refinement)
}

/// A channel under the weight of its input, prepared for many systems in its place.
#[derive(Debug, Clone)]
pub struct WeightedChannel {
    full: DiagonalSystem,
    step: f64,
    metric: Metric,
    /// Whether D stays that of the channel in every fit.
    holds_feedthrough: bool,
}

impl WeightedChannel {
    /// Prepares a discrete channel. Cost O(L log L), with the moments of sequences as often as they
    /// have terms; memory that of the weight, and L numbers.
    ///
    /// # Errors
    /// [`ControlError::System`] for continuous time, and for more than one input or output.
    pub fn new(full: &DiagonalSystem, weight: &InputWeight) -> Result<Self, ControlError> {
        let Time::Discrete { step } = full.time() else {
            return Err(ControlError::System(SystemError::WrongTime {
                found: "continuous",
                expected: "discrete",
            }));
        };
        Ok(Self {
            metric: Metric::new(full, weight)?,
            full: full.clone(),
            step,
            holds_feedthrough: false,
        })
    }

    /// The same, whose fits leave the feedthrough as the channel has it: for systems that are written to a
    /// place without one.
    #[must_use]
    pub fn with_feedthrough_held(self) -> Self {
        Self {
            holds_feedthrough: true,
            ..self
        }
    }

    /// The weight of its input.
    pub fn weight(&self) -> &InputWeight {
        self.metric.weight()
    }

    /// Parts the channel from its long vectors, of L numbers each, so that they can lie elsewhere, e.g. in
    /// a file.
    pub fn part(mut self) -> (PartedChannel, Vec<f64>) {
        let [weight, weighted] = self.metric.sums();
        let mut numbers = weight.take();
        numbers.extend(weighted.take());
        (PartedChannel(self), numbers)
    }

    /// The weighted norm √E of the channel itself.
    pub fn norm(&self) -> f64 {
        self.metric.within.max(0.0).sqrt()
    }

    /// √E of the difference of the channel and another system, as [`weighted_error`]: from the
    /// exponents, or from the samples where that would leave few digits. Cost O(r L), with moments as
    /// often as they have terms.
    ///
    /// # Errors
    /// [`ControlError::System`] for more than one input or output.
    pub fn error(&self, reduced: &DiagonalSystem) -> Result<f64, ControlError> {
        self.error_by(&self.metric.basis(&reduced.scaled_exponents()), reduced)
    }

    /// The same, by the basis of its poles.
    fn error_by(&self, basis: &Basis, reduced: &DiagonalSystem) -> Result<f64, ControlError> {
        let siso = reduced.as_siso()?;
        let mut solution: Vec<f64> = siso.residues().flat_map(|w| [w.re, w.im]).collect();
        solution.push(siso.feedthrough());
        let square = self.metric.square_of(basis, &DVector::from_vec(solution));
        if square < DIGITS_LEFT * self.metric.within {
            return weighted_error(&self.full, reduced, self.metric.weight());
        }
        Ok(square.sqrt())
    }

    /// As [`weighted_refine`].
    ///
    /// # Errors
    /// As [`weighted_refine`].
    pub fn refine(
        &self,
        start: StableSystem<'_>,
        slots: usize,
        refinement: Refinement,
    ) -> Result<Refined, ControlError> {
        let start = start.system();
        let nodes = start.scaled_exponents();
        let basis = self.metric.basis(&nodes);
        let truncated = self.error_by(&basis, start)?;
        let refined = Refined::unrefined(start, truncated);
        if refinement == Refinement::None {
            return Ok(refined);
        }
        let target = self.target(start);
        let mut refined = target.better(refined, &target.solve(nodes, basis, RIDGE))?;
        refined.refitted = refined.error;
        match refinement {
            Refinement::Full => self.descend(start, refined, slots),
            _ => Ok(refined),
        }
    }

    /// Poles, residues and feedthrough by Gauss–Newton steps, from what [`WeightedChannel::refine`] made
    /// of the same start by its residues: together the same as the full refinement at once.
    ///
    /// # Errors
    /// As [`weighted_refine`].
    pub fn descend(
        &self,
        start: &DiagonalSystem,
        refitted: Refined,
        slots: usize,
    ) -> Result<Refined, ControlError> {
        let descent = RefinementState::new(start_nodes(start, slots, self.target(start).slowest));
        self.resume(start, refitted, descent)
    }

    /// The first `steps` of the Gauss–Newton steps of [`WeightedChannel::descend`], and where they ended:
    /// most of what they gain for a part of their time.
    ///
    /// # Errors
    /// As [`weighted_refine`].
    pub fn draft(
        &self,
        start: &DiagonalSystem,
        refitted: Refined,
        slots: usize,
        steps: usize,
    ) -> Result<(Refined, RefinementState), ControlError> {
        let target = self.target(start);
        let mut descent = RefinementState::new(start_nodes(start, slots, target.slowest));
        let point = target.descend(&mut descent, steps.min(STEPS_MAX));
        let steps = descent.steps;
        let refined = target.better(Refined { steps, ..refitted }, &point)?;
        Ok((refined, descent))
    }

    /// Goes on where [`WeightedChannel::draft`] ended, with the same start: together the same as
    /// [`WeightedChannel::descend`], bit for bit.
    ///
    /// # Errors
    /// As [`weighted_refine`].
    pub fn resume(
        &self,
        start: &DiagonalSystem,
        refitted: Refined,
        mut descent: RefinementState,
    ) -> Result<Refined, ControlError> {
        let target = self.target(start);
        let point = target.descend(&mut descent, STEPS_MAX);
        let steps = descent.steps;
        target.better(Refined { steps, ..refitted }, &point)
    }

    fn target(&self, start: &DiagonalSystem) -> Target<'_> {
        Target {
            channel: self,
            // Truncation may leave a pole that is slower than any before.
            slowest: self.metric.slowest.min(slowest(start)),
        }
    }

    /// As [`weighted_residues`].
    ///
    /// # Errors
    /// As [`weighted_residues`].
    pub fn residues(
        &self,
        poles: &DiagonalSystem,
        ridge: f64,
    ) -> Result<DiagonalSystem, ControlError> {
        let target = Target {
            channel: self,
            slowest: self.metric.slowest,
        };
        let nodes = poles.scaled_exponents();
        let basis = self.metric.basis(&nodes);
        let point = target.solve(nodes, basis, ridge);
        Ok(DiagonalSystem::siso(
            poles.time(),
            poles.exponents().to_vec(),
            &point.residues(),
            point.feedthrough(),
        )?)
    }
}

/// A [`WeightedChannel`] without its long vectors.
#[derive(Debug, Clone)]
#[must_use]
pub struct PartedChannel(WeightedChannel);

impl PartedChannel {
    /// The channel with the numbers that [`WeightedChannel::part`] gave; `None` for another count of them.
    pub fn joined(&self, mut numbers: Vec<f64>) -> Option<WeightedChannel> {
        let mut channel = self.0.clone();
        let [weight, weighted] = channel.metric.sums();
        if numbers.len() != weight.size() + weighted.size() {
            return None;
        }
        weighted.put(numbers.split_off(weight.size()));
        weight.put(numbers);
        Some(channel)
    }
}

/// The best residues and feedthrough for the poles that a channel has, where every weight costs
/// `ridge` times the norm of its mode by itself. A ridge of some times the relative rounding of a
/// number format (2⁻¹² for half precision) keeps out weights that nearly cancel, which that format
/// would not hold.
///
/// # Errors
/// As [`weighted_refine`].
pub fn weighted_residues(
    full: &DiagonalSystem,
    poles: &DiagonalSystem,
    weight: &InputWeight,
    ridge: f64,
) -> Result<DiagonalSystem, ControlError> {
    WeightedChannel::new(full, weight)?.residues(poles, ridge)
}

/// The start's poles as pairs, none slower than `slowest`, and a fast pole for each empty slot.
fn start_nodes(start: &DiagonalSystem, slots: usize, slowest: f64) -> Vec<Complex64> {
    let as_pair = |z: Complex64| {
        let re = z.re.clamp(-START_MAX.max(slowest), -slowest);
        let im = match z.im.abs() {
            // A real pole that decays at a rate r splits into a pair at about r/2.
            0.0 => (-0.5 * re).min(0.1),
            im => im.min(PI - 0.1),
        };
        off_axis(re, im)
    };
    let taken = start.scaled_exponents().into_iter().map(as_pair);
    let spare = (0..slots.saturating_sub(start.order())).map(|k| {
        let k = k as f64;
        Complex64::new(-1.0 - 0.3 * k, (0.5 + 0.4 * k) % PI)
    });
    taken.chain(spare).collect()
}

/// Poles with the best residues and feedthrough for them.
struct Point {
    nodes: Vec<Complex64>,
    basis: Basis,
    /// Re w, Im w of each mode, and D.
    solution: DVector<f64>,
    /// Of the ridged products of the basis.
    root: Cholesky<f64, Dyn>,
    /// E.
    square: f64,
}

impl Point {
    fn residues(&self) -> Vec<Complex64> {
        let modes = self.solution.as_slice().chunks_exact(2);
        modes.map(|own| Complex64::new(own[0], own[1])).collect()
    }

    fn feedthrough(&self) -> f64 {
        self.solution[2 * self.nodes.len()]
    }
}

/// What is approximated, and how slow a pole may become.
struct Target<'a> {
    channel: &'a WeightedChannel,
    /// The least −Re z that a pole may come to.
    slowest: f64,
}

impl Target<'_> {
    /// A point's system, if it is a better one.
    fn better(&self, refined: Refined, point: &Point) -> Result<Refined, ControlError> {
        let exponents = point.nodes.iter().map(|z| z / self.channel.step).collect();
        let (residues, feedthrough) = (point.residues(), point.feedthrough());
        let system =
            DiagonalSystem::siso(self.channel.full.time(), exponents, &residues, feedthrough);
        // Weights that overflowed are no offer.
        let Ok(system) = system else {
            return Ok(refined);
        };
        let error = self.channel.error_by(&point.basis, &system)?;
        Ok(match error < refined.error && system.is_stable() {
            true => Refined {
                system,
                error,
                ..refined
            },
            false => refined,
        })
    }

    fn refit(&self, nodes: Vec<Complex64>) -> Point {
        let basis = self.channel.metric.basis(&nodes);
        self.solve(nodes, basis, RIDGE)
    }

    /// The feedthrough that stays, where it does.
    fn held_feedthrough(&self) -> Option<f64> {
        let channel = self.channel;
        (channel.holds_feedthrough).then(|| channel.full.feedthrough()[(0, 0)])
    }

    /// min over x of E + ridge² ‖S x‖², S being the norm of each mode and of the sample at step 0.
    fn solve(&self, nodes: Vec<Complex64>, basis: Basis, ridge: f64) -> Point {
        let Inner { gram, cross } = &basis.whole;
        let scales = squared_scales(gram);
        let held = self.held_feedthrough();
        let mut share = ridge * ridge;
        let root = loop {
            let mut ridged = gram.clone();
            for (i, scale) in scales.iter().enumerate() {
                ridged[(i, i)] += share.max(ROUNDING) * scale;
            }
            if held.is_some() {
                let sample = ridged.nrows() - 1;
                ridged.row_mut(sample).fill(0.0);
                ridged.column_mut(sample).fill(0.0);
                ridged[(sample, sample)] = 1.0;
            }
            match Cholesky::new(ridged) {
                Some(root) => break root,
                // Rounding of products of slow modes.
                None => share = share.max(ROUNDING) * 100.0,
            }
        };
        let solution = match held {
            None => root.solve(cross),
            Some(d) => {
                let sample = cross.nrows() - 1;
                let mut cross = cross - gram.column(sample) * d;
                cross[sample] = d;
                root.solve(&cross)
            }
        };
        let gained = basis.whole.gained(&solution);
        Point {
            nodes,
            square: (self.channel.metric.whole - gained).max(0.0),
            solution,
            basis,
            root,
        }
    }

    /// Steps until so many lowered the error, or none is expected to help any more.
    fn descend(&self, descent: &mut RefinementState, most: usize) -> Point {
        let mut point = self.refit(descent.nodes.clone());
        while !descent.is_over && descent.steps < most && point.square > 0.0 {
            let normal = Normal::new(self, &point);
            let mut gain = 0.0;
            while gain <= 0.0 && descent.damping < DAMPING_MAX {
                let next = normal
                    .step(descent.damping)
                    .map(|step| self.refit(self.moved(&point, &step)));
                match next {
                    Some(next) if next.square < point.square => {
                        gain = 1.0 - (next.square / point.square).sqrt();
                        point = next;
                        descent.damping = (descent.damping / 5.0).max(DAMPING_MIN);
                    }
                    _ => descent.damping *= 4.0,
                }
            }
            descent.steps += usize::from(gain > 0.0);
            descent.is_over = gain < GAIN_MIN;
        }
        descent.nodes.clone_from(&point.nodes);
        point
    }

    /// The poles after a step in (α, θ) of every mode.
    fn moved(&self, point: &Point, step: &DVector<f64>) -> Vec<Complex64> {
        let nodes = point.nodes.iter().enumerate();
        let moved = nodes.map(|(n, z)| {
            let stretch = step[2 * n].clamp(-STEP_MAX.0, STEP_MAX.0).exp();
            let turn = step[2 * n + 1].clamp(-STEP_MAX.1, STEP_MAX.1);
            let re = (z.re * stretch).clamp(-DECAY_MAX, -self.slowest);
            off_axis(re, z.im + turn)
        });
        moved.collect()
    }
}

/// A pole of a pair, no nearer the real axis than [`OFF_AXIS`] has it, above it.
fn off_axis(re: f64, im: f64) -> Complex64 {
    // Both poles of a pair, and all that are 2π apart, are one and the same.
    let turn = im.rem_euclid(2.0 * PI);
    let least = least_turn(re);
    Complex64::new(re, turn.min(2.0 * PI - turn).clamp(least, PI - least))
}

/// The least angle of a pair to the real axis, on both sides of it.
fn least_turn(re: f64) -> f64 {
    (-OFF_AXIS * re).min(0.1)
}

/// The squared norm of both parts of a mode together, for each of them, and that of the sample's.
fn squared_scales(gram: &DMatrix<f64>) -> Vec<f64> {
    let squares: Vec<f64> = gram.diagonal().iter().copied().collect();
    let modes = squares.chunks(2);
    let scales = modes.flat_map(|own| {
        let both = own.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        vec![both; own.len()]
    });
    scales.collect()
}

/// The Gauss–Newton equations of the poles.
struct Normal {
    matrix: DMatrix<f64>,
    /// Of the matrix's diagonal.
    rounding: DVector<f64>,
    right: DVector<f64>,
}

impl Normal {
    fn new(target: &Target<'_>, point: &Point) -> Self {
        let tangents = target
            .channel
            .metric
            .tangents(&point.basis, &point.residues());
        // The part across the basis, and what is left of the channel there.
        let mut free = tangents.basis.clone();
        if target.held_feedthrough().is_some() {
            free.row_mut(free.nrows() - 1).fill(0.0);
        }
        let within = point.root.solve(&free);
        let mut matrix = &tangents.gram - free.tr_mul(&within);
        let mut right = &tangents.cross - tangents.basis.tr_mul(&point.solution);
        let mut rounding = ACROSS * tangents.gram.diagonal();
        // ∂z/∂α = Re z, ∂z/∂θ = i.
        for (n, z) in point.nodes.iter().enumerate() {
            matrix.row_mut(2 * n).scale_mut(z.re);
            matrix.column_mut(2 * n).scale_mut(z.re);
            right[2 * n] *= z.re;
            rounding[2 * n] *= z.re * z.re;
            // At the edge a pair does not turn any nearer to the real axis.
            let (least, turn) = (least_turn(z.re), &mut right[2 * n + 1]);
            if (z.im <= least && *turn < 0.0) || (z.im >= PI - least && *turn > 0.0) {
                *turn = 0.0;
                matrix.row_mut(2 * n + 1).fill(0.0);
                matrix.column_mut(2 * n + 1).fill(0.0);
                matrix[(2 * n + 1, 2 * n + 1)] = 1.0;
            }
        }
        Self {
            matrix,
            rounding,
            right,
        }
    }

    fn step(&self, damping: f64) -> Option<DVector<f64>> {
        let mut damped = self.matrix.clone();
        for i in 0..damped.nrows() {
            damped[(i, i)] +=
                damping * self.matrix[(i, i)].max(f64::MIN_POSITIVE) + self.rounding[i];
        }
        Some(Cholesky::new(damped)?.solve(&self.right))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Realisation;
    use crate::control::metric::{square_by_sums, weighted_norm};
    use crate::control::samples::pairs_and_real_poles;

    fn sample() -> DiagonalSystem {
        pairs_and_real_poles(Time::Discrete { step: 0.7 }, 0.2)
    }

    fn weights() -> [InputWeight; 2] {
        let inputs = DMatrix::from_fn(3, 50, |n, t| ((n + 1) as f64 * 0.37 * t as f64).sin() + 0.2);
        let moments = InputWeight::moments(&inputs).unwrap();
        [moments, InputWeight::of_sequences(&inputs).unwrap()]
    }

    fn target(channel: &WeightedChannel) -> Target<'_> {
        Target {
            channel,
            slowest: 1e-3,
        }
    }

    #[test]
    fn the_right_side_of_the_normal_equations_is_the_slope_of_the_error() {
        let full = sample();
        let channels = weights().map(|weight| WeightedChannel::new(&full, &weight).unwrap());
        let held = channels.clone().map(WeightedChannel::with_feedthrough_held);
        for channel in channels.into_iter().chain(held) {
            let target = target(&channel);
            let nodes = vec![Complex64::new(-0.3, 0.5), Complex64::new(-0.8, 1.9)];
            let point = target.refit(nodes);
            let normal = Normal::new(&target, &point);
            let h = 1e-5;
            for i in 0..4 {
                let at = |h: f64| {
                    let mut step = DVector::zeros(4);
                    step[i] = h;
                    target.refit(target.moved(&point, &step)).square
                };
                // E is twice what the equations halve; the residual falls with the step.
                let slope = -(at(h) - at(-h)) / (4.0 * h);
                let error = (normal.right[i] - slope).abs();
                assert!(error < 1e-6 * normal.right.norm(), "{i}: {error:e}");
            }
        }
    }

    #[test]
    fn a_step_is_short_and_leaves_poles_between_the_slowest_and_the_fastest() {
        let weight = &weights()[0];
        let channel = WeightedChannel::new(&sample(), weight).unwrap();
        let target = target(&channel);
        let decays = [1.5e-3, 0.3, 0.9 * DECAY_MAX];
        let nodes = decays.map(|decay| Complex64::new(-decay, 1.5)).to_vec();
        let point = target.refit(nodes);
        let step = DVector::from_vec(vec![-5.0, 9.0, -5.0, -9.0, 5.0, 0.1]);
        let moved = target.moved(&point, &step);
        let expected = [
            (-1e-3, 1.8),
            (-0.3 * (-0.7_f64).exp(), 1.2),
            (-DECAY_MAX, 1.6),
        ];
        for (found, (re, im)) in moved.iter().zip(expected) {
            assert!((found - Complex64::new(re, im)).norm() < 1e-12, "{found}");
        }
    }

    #[test]
    fn poles_a_turn_apart_and_conjugates_are_one() {
        for turn in [0.3, -0.3, 2.0 * PI + 0.3, 2.0 * PI - 0.3, -4.0 * PI + 0.3] {
            assert!((off_axis(-0.5, turn) - Complex64::new(-0.5, 0.3)).norm() < 1e-14);
        }
        assert!((off_axis(-0.5, PI + 0.3).im - (PI - 0.3)).abs() < 1e-14);
    }

    #[test]
    fn a_ridge_is_relative_to_the_size_of_each_mode() {
        let full = sample();
        let ridge = 0.3;
        for weight in weights() {
            let channel = WeightedChannel::new(&full, &weight).unwrap();
            let target = target(&channel);
            let nodes = vec![Complex64::new(-0.01, 0.5), Complex64::new(-2.0, 0.3)];
            let basis = channel.metric.basis(&nodes);
            let Inner { gram, cross } = &basis.whole;
            let (gram, cross) = (gram.clone(), cross.clone());
            let found = target.solve(nodes, basis, ridge).solution;
            let sizes = squared_scales(&gram);
            let sizes = sizes
                .iter()
                .zip(&found)
                .map(|(size, x)| ridge * ridge * size * x);
            let left = &gram * &found + DVector::from_iterator(found.len(), sizes) - &cross;
            assert!(left.norm() < 1e-12 * cross.norm(), "{:e}", left.norm());
        }
    }

    #[test]
    fn a_feedthrough_that_is_held_stays_and_the_rest_is_the_best_for_it() {
        let full = sample();
        for weight in weights() {
            let free = WeightedChannel::new(&full, &weight).unwrap();
            let held = free.clone().with_feedthrough_held();
            let start = crate::control::balance(full.stable().unwrap(), Realisation::Real);
            let start = start.unwrap().truncate(4).unwrap().system;
            let made = |channel: &WeightedChannel, refinement| {
                channel
                    .refine(start.stable().unwrap(), 2, refinement)
                    .unwrap()
            };
            for refinement in [Refinement::Residues, Refinement::Full] {
                let fitted = made(&held, refinement);
                assert_eq!(fitted.system.feedthrough(), full.feedthrough());
                assert!(fitted.error < fitted.truncated);
                assert!(made(&free, refinement).error <= fitted.error);
            }
            // No residue can be moved to a smaller error.
            let best = made(&held, Refinement::Residues);
            let error = |by: &[f64]| {
                let moved = crate::control::with_moved_residues(&best.system, by).unwrap();
                square_by_sums(&full, &moved, &weight)
            };
            let count = 2 * best.system.order();
            let least = error(&vec![0.0; count + 1]);
            for place in 0..count {
                for by in [1e-4, -1e-4] {
                    let mut step = vec![0.0; count + 1];
                    step[place] = by;
                    assert!(error(&step) > least * (1.0 - 1e-9), "{place} {by}");
                }
            }
        }
    }

    #[test]
    fn a_fit_is_the_least_weighted_error() {
        let full = sample();
        for weight in weights() {
            let channel = WeightedChannel::new(&full, &weight).unwrap();
            let target = target(&channel);
            let nodes = vec![Complex64::new(-0.3, 0.5), Complex64::new(-2.0, 0.3)];
            let point = target.refit(nodes.clone());
            let error = |solution: &DVector<f64>| {
                let exponents = nodes.iter().map(|z| z / 0.7).collect();
                let modes = solution.as_slice().chunks_exact(2);
                let residues: Vec<_> = modes.map(|w| Complex64::new(w[0], w[1])).collect();
                let made = DiagonalSystem::siso(full.time(), exponents, &residues, solution[4]);
                square_by_sums(&full, &made.unwrap(), &weight)
            };
            let exponents = nodes.iter().map(|z| z / 0.7).collect();
            let residues = point.residues();
            let made = DiagonalSystem::siso(full.time(), exponents, &residues, point.feedthrough());
            let made = made.unwrap();
            let least = weighted_error(&full, &made, &weight).unwrap().powi(2);
            let closed = channel.error(&made).unwrap().powi(2);
            assert!((closed / least - 1.0).abs() < 1e-6, "{closed} {least}");
            let by_basis = channel.metric.square_of(&point.basis, &point.solution);
            assert!((by_basis / least - 1.0).abs() < 1e-6, "{by_basis} {least}");
            let zero = DiagonalSystem::siso(full.time(), Vec::new(), &[], 0.0).unwrap();
            let norm = weighted_error(&full, &zero, &weight).unwrap();
            assert_eq!(weighted_norm(&full, &weight).unwrap(), norm);
            let least = square_by_sums(&full, &made, &weight);
            assert!(
                (point.square / least - 1.0).abs() < 1e-6,
                "{} {least}",
                point.square
            );
            for i in 0..5 {
                for sign in [-1.0, 1.0] {
                    let mut other = point.solution.clone();
                    other[i] += sign * 0.01 * (1.0 + other[i].abs());
                    assert!(error(&other) > least, "{i}");
                }
            }
        }
    }

    #[test]
    fn a_channel_parted_from_its_vectors_is_joined_bit_for_bit() {
        let full = sample();
        let start = pairs_and_real_poles(Time::Discrete { step: 0.7 }, 0.5);
        for weight in weights() {
            let channel = WeightedChannel::new(&full, &weight).unwrap();
            let refined = |channel: &WeightedChannel| {
                let start = start.stable().unwrap();
                let refined = channel.refine(start, 2, Refinement::Full).unwrap();
                (refined.system, refined.error.to_bits(), refined.steps)
            };
            let expected = refined(&channel);
            let (parted, numbers) = channel.clone().part();
            // R, three ends (or R turned round) and M k, in whole vectors.
            assert!(numbers.len() >= 3 * 50);
            assert!(parted.joined(numbers[1..].to_vec()).is_none());
            let joined = parted.joined(numbers).unwrap();
            assert_eq!(refined(&joined), expected);
            // The weight is shared, and is still whole where it was.
            assert_eq!(refined(&channel), expected);
            assert_eq!(joined.weight().lags(), weight.lags());
        }
    }

    #[test]
    fn a_ridge_keeps_residues_small_at_little_more_error() {
        let full = sample();
        for weight in weights() {
            // Two poles that all but coincide, and one so fast that it is nearly D.
            let near = |re: f64| Complex64::new(re, 0.4) / 0.7;
            let poles = vec![near(-0.2), near(-0.2001), Complex64::new(-30.0, 0.0)];
            let start =
                DiagonalSystem::siso(full.time(), poles, &[Complex64::ONE; 3], 0.0).unwrap();
            let largest = |ridge: f64| {
                let made = weighted_residues(&full, &start, &weight, ridge).unwrap();
                let residues = made.as_siso().unwrap().residues().map(|r| r.norm());
                assert_eq!(made.exponents(), start.exponents());
                (
                    residues.fold(0.0, f64::max),
                    weighted_error(&full, &made, &weight).unwrap(),
                )
            };
            let ((free, least), (held, error)) = (largest(1e-9), largest(4e-3));
            assert!(held < 0.2 * free, "{held} {free}");
            assert!(
                error >= least * (1.0 - 1e-9) && error < 1.5 * least,
                "{error} {least}"
            );
        }
    }

    #[test]
    fn a_pair_that_would_be_a_double_pole_does_not_depend_on_rounding() {
        // Three real poles, met best by a pair at the real axis.
        let pole = |re: f64| Complex64::new(re, 0.0);
        let poles = vec![pole(-0.1), pole(-0.25), pole(-0.6)];
        let residues = [1.0, 0.7, 0.4].map(pole);
        let time = Time::Discrete { step: 1.0 };
        let full = DiagonalSystem::siso(time, poles, &residues, 0.0).unwrap();
        let start = [pole(1.0)];
        let start =
            DiagonalSystem::siso(time, vec![Complex64::new(-0.2, 0.3)], &start, 0.0).unwrap();
        let refined = |off: f64| {
            let input = |n: usize, t: usize| {
                let rough = ((n * 50 + t) as f64 * 7.3).sin();
                rough + off * (1.3 * t as f64).cos()
            };
            let weight = InputWeight::moments(&DMatrix::from_fn(3, 50, input)).unwrap();
            let stable = start.stable().unwrap();
            weighted_refine(&full, stable, 1, &weight, Refinement::Full).unwrap()
        };
        let (one, other) = (refined(0.0), refined(1e-12));
        let z = one.system.exponents()[0];
        assert!(z.im < 0.04 * -z.re, "{z}");
        let apart = (one.error / other.error - 1.0).abs();
        assert!(
            apart < 1e-8,
            "{apart:e} {} {}",
            one.steps,
            other.system.exponents()[0]
        );
        assert!(one.error < 0.1 * one.truncated && one.steps > 2);
    }

    #[test]
    fn slow_pairs_under_a_smooth_input_do_not_depend_on_rounding() {
        // In 64 steps of a smooth input these pairs are all but sums of one another.
        let mut state = 1u64;
        let mut uniform = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) as f64 / (1u64 << 31) as f64 - 0.5
        };
        let steps = DMatrix::from_fn(12, 64, |_, _| uniform());
        let time = Time::Discrete { step: 1.0 };
        for channel in 0..16 {
            let modes = 0..32;
            let (poles, residues): (Vec<_>, Vec<_>) = modes
                .map(|n| {
                    let re = -0.002 * (4.0 * (uniform() + 0.5)).exp();
                    let im = 0.05 * n as f64 + 0.04 * uniform();
                    let residue = Complex64::new(uniform(), uniform());
                    (Complex64::new(re, im + 0.03), residue)
                })
                .unzip();
            let of = |poles: Vec<_>, residues: &[_]| {
                DiagonalSystem::siso(time, poles, residues, 0.3).unwrap()
            };
            let full = of(poles.clone(), &residues);
            let start = of(poles[2..6].to_vec(), &residues[2..6]);
            let refined = |off: f64| {
                let mut inputs = steps.clone();
                for t in 1..64 {
                    for n in 0..12 {
                        inputs[(n, t)] += inputs[(n, t - 1)] + off * (1.3 * t as f64).cos();
                    }
                }
                let weight = InputWeight::of_sequences(&inputs).unwrap();
                weighted_refine(&full, start.stable().unwrap(), 4, &weight, Refinement::Full)
                    .unwrap()
            };
            let (one, other) = (refined(0.0), refined(1e-14));
            let apart = (one.error / other.error - 1.0).abs();
            assert!(apart < 1e-6, "{channel}: {apart:e}");
            assert!(one.steps >= 5 && one.error < one.refitted);
        }
    }

    #[test]
    fn refinement_starts_off_the_axis_and_with_every_slot() {
        let full = sample();
        let slow = slowest(&full);
        let nodes = start_nodes(&full, 9, slow);
        assert_eq!(nodes.len(), 9);
        for (i, z) in nodes.iter().enumerate() {
            assert!(
                -z.re >= slow && -z.re <= DECAY_MAX && z.im > 0.0 && z.im < PI,
                "{z}"
            );
            assert!(nodes[..i].iter().all(|other| (other - z).norm() > 1e-3));
        }
        assert_eq!(start_nodes(&full, 2, slow).len(), full.order());
    }

    /// However the steps are divided, they end in the same bits; the first few gain no more than all.
    #[test]
    fn a_draft_goes_on_to_what_the_whole_refinement_gives() {
        let full = sample();
        for weight in weights() {
            let channel = WeightedChannel::new(&full, &weight).unwrap();
            let balanced = crate::control::balance_weighted(full.stable().unwrap(), &weight);
            let start = balanced.unwrap().truncate(4).unwrap().system;
            let stable = start.stable().unwrap();
            let refitted = channel.refine(stable, 2, Refinement::Residues).unwrap();
            let whole = channel.descend(&start, refitted.clone(), 2).unwrap();
            assert!(whole.steps > 2, "{}", whole.steps);
            for steps in [0, 1, 2, STEPS_MAX, 2 * STEPS_MAX] {
                let draft = channel.draft(&start, refitted.clone(), 2, steps).unwrap();
                let (draft, descent) = draft;
                assert_eq!(draft.steps, steps.min(whole.steps));
                assert!(draft.error >= whole.error && draft.error <= refitted.error);
                let resumed = channel.resume(&start, refitted.clone(), descent).unwrap();
                assert_eq!(resumed.system, whole.system);
                assert_eq!((resumed.error, resumed.steps), (whole.error, whole.steps));
            }
        }
    }
}
