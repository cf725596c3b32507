//! The H∞ norm with a certificate: Taylor expansions and branch and bound.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::f64::consts::PI;

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::control::norm::difference;
use crate::control::realisation::real_modes;
use crate::control::response::{Response, Several, Single};
use crate::control::{ControlError, Realisation};
use crate::linalg::expm1;
use crate::ssm::{DiagonalSystem, Siso, StableSystem, Time, real_blocks};

/// The gap between the two bounds at which the search ends, relative to the norm.
const GAP: f64 = 1e-9;

/// Taylor coefficients per interval. With a mode at twice the interval's reach or farther, what
/// is left out is below 2⁻¹² of the mode's gain, and halving the interval takes another 2⁻¹².
const TERMS: usize = 12;

/// Intervals after which the bounds are returned as they stand.
const INTERVALS_MAX: usize = 200_000;

/// Octaves beyond the fastest pole that are searched in continuous time.
const OCTAVES_MAX: usize = 200;

/// The H∞ norm, enclosed.
#[derive(Debug, Clone, Copy, PartialEq)]
#[must_use]
#[non_exhaustive]
pub struct HinfNorm {
    /// The largest gain that was found; the norm is at least this.
    pub value: f64,
    /// A certified upper bound of the norm, rounding errors included.
    pub upper: f64,
    /// Where the gain `value` was found: ω in radians per unit of time, θ in radians per step.
    /// Infinite when the gain rises to the feedthrough.
    pub frequency: f64,
}

/// The H∞ norm of a stable system: the largest gain |G(iω)| or |G(e^{iθ})|, feedthrough included.
/// With several inputs or outputs |·| is the largest singular value, and c_j b_j below the p × m
/// residue of a mode.
///
/// ```text
/// G(iω)    = D + Σ c_j b_j/(iω − λ_j)          G(e^{iθ}) = D + Σ c_j b_j/(1 − a_j e^{−iθ})
/// real:      (G(iω) + conj G(−iω))/2           the gain from u to Re(C x) + D u
/// ```
///
/// The frequency axis is cut into intervals. About the centre of one, each mode is a geometric
/// series in t = ω − ω₀, or in t = tan((θ − θ₀)/2), with ratio ϱ = 1/|iω₀ − λ|, or
/// |1 + b|/|1 − b| with b = a e^{−iθ₀}. So for |t| ≤ h
///
/// ```text
/// |G| ≤ max |g₀ + g₁ t + g₂ t²| + Σ_{3≤k<K} |g_k| h^k + Σ_far |g_{K,j}| h^K/(1 − h ϱ_j) + Σ_near |r_j|/gap_j
/// ```
///
/// where a mode is near when h ϱ > ½, and its gap is its distance from the interval. The interval
/// with the largest bound is halved until that bound meets the largest gain found: no peak,
/// however narrow, can lie in an interval that was set aside. The two bounds then differ by at
/// most 1e-9 of the norm plus twice the rounding allowance (n + 16) ε Σ|r_j/gap_j|, which counts
/// where modes cancel. After 200 000 intervals the bounds are returned as they stand; `upper` is
/// a bound in every case. Typical cost: a few hundred intervals, 12 n products each.
///
/// With several inputs or outputs the first term is the largest norm at the corners (t, s) of a
/// polygon round the parabola s = t², since ‖g₀ + g₁ t + g₂ s‖ is convex; a bound of second order,
/// so that some more intervals are needed, each of 12 n p m products and four p × m norms.
///
/// # Errors
/// None at present: a stable system has a norm.
///
/// # Examples
/// ```
/// use hankelite_control::{Realisation, hinf_norm};
/// use hankelite_control::{DiagonalSystem, Time};
/// use num_complex::Complex64;
///
/// // Damping 1e-9 at frequency 3: a sweep of a million points between 0 and 10 misses it.
/// let pole = vec![Complex64::new(-1e-9, 3.0)];
/// let system = DiagonalSystem::siso(Time::Continuous, pole, &[Complex64::ONE], 0.0)?;
/// let norm = hinf_norm(system.stable()?, Realisation::Complex)?;
/// assert!((norm.value * 1e-9 - 1.0).abs() < 1e-9 && norm.frequency == 3.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # References
/// The level-set method of Boyd and Balakrishnan (Systems & Control Letters 15, 1990) and
/// Bruinsma and Steinbuch (14, 1990) finds the same number from eigenvalues on the imaginary
/// axis, but decides by a tolerance which eigenvalues lie there; this bound needs no such choice.
pub fn hinf_norm(
    system: StableSystem<'_>,
    realisation: Realisation,
) -> Result<HinfNorm, ControlError> {
    let source = system.system();
    if let Ok(siso) = source.as_siso() {
        let (nodes, residues) = match realisation {
            Realisation::Complex => siso.modes().unzip(),
            Realisation::Real => closed_residues(siso),
        };
        let direct = siso.feedthrough();
        let response = Single { residues, direct };
        return Ok(Search::new(source.time(), &nodes, response, realisation).run());
    }
    let (nodes, input, output) = match realisation {
        Realisation::Complex => (
            source.exponents().to_vec(),
            source.input().clone(),
            source.output().clone(),
        ),
        Realisation::Real => closed_rows(source),
    };
    let response = Several {
        input,
        output,
        direct: source.feedthrough().clone(),
    };
    Ok(Search::new(source.time(), &nodes, response, realisation).run())
}

/// The poles and residues of the conjugate-closed system with one input and one output.
fn closed_residues(source: Siso<'_>) -> (Vec<Complex64>, Vec<Complex64>) {
    let (mut nodes, mut residues) = (Vec::new(), Vec::new());
    for mode in real_modes(source) {
        if mode.single {
            nodes.push(mode.lambda);
            residues.push(mode.residue);
        } else {
            nodes.extend([mode.lambda, mode.lambda.conj()]);
            residues.extend([0.5 * mode.residue, 0.5 * mode.residue.conj()]);
        }
    }
    (nodes, residues)
}

type Rows = (Vec<Complex64>, DMatrix<Complex64>, DMatrix<Complex64>);

/// The poles, rows of B and columns of C of the conjugate-closed system: Re(c x) = (c x + c̄ x̄)/2.
fn closed_rows(source: &DiagonalSystem) -> Rows {
    let (mut nodes, mut input, mut output) = (Vec::new(), Vec::new(), Vec::new());
    for block in real_blocks(source) {
        if block.single {
            nodes.push(block.lambda);
            input.extend(block.input);
            output.extend(block.output);
            continue;
        }
        nodes.extend([block.lambda, block.lambda.conj()]);
        input.extend_from_slice(&block.input);
        input.extend(block.input.iter().map(|b| b.conj()));
        output.extend(block.output.iter().map(|c| 0.5 * c));
        output.extend(block.output.iter().map(|c| 0.5 * c.conj()));
    }
    let (m, p) = (source.input().ncols(), source.output().nrows());
    let input = DMatrix::from_row_slice(nodes.len(), m, &input);
    let output = DMatrix::from_column_slice(p, nodes.len(), &output);
    (nodes, input, output)
}

/// The H∞ norm of the difference of two stable systems on the same time base, feedthroughs
/// included: the worst error over all sinusoids. With one input and one output poles shared by
/// both are merged, so what cancels exactly is gone.
///
/// # Errors
/// [`ControlError::DifferentTime`]; [`ControlError::System`] when the numbers of inputs or
/// outputs differ.
pub fn hinf_error(
    full: StableSystem<'_>,
    reduced: StableSystem<'_>,
    realisation: Realisation,
) -> Result<HinfNorm, ControlError> {
    let shape = full.system().feedthrough().shape();
    reduced.system().require_size(shape.1, shape.0)?;
    let direct = full.system().feedthrough() - reduced.system().feedthrough();
    let difference = difference(full, reduced, direct)?;
    hinf_norm(difference.stable()?, realisation)
}

/// One term R/(iω − z) or R/(1 − e^{z − iθ}), ‖R‖ its size.
#[derive(Debug, Clone, Copy)]
struct Term {
    z: Complex64,
    size: f64,
}

/// What is known of |G| on the frequencies centre ± reach.
#[derive(Debug, Clone, Copy)]
struct Interval {
    centre: f64,
    reach: f64,
    bound: f64,
    rounding: f64,
}

impl PartialEq for Interval {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Interval {}

impl PartialOrd for Interval {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Interval {
    fn cmp(&self, other: &Self) -> Ordering {
        self.bound.total_cmp(&other.bound)
    }
}

/// The sums over modes about one centre.
struct Expansion<V> {
    coefficients: Vec<V>,
    /// The terms left out, the near modes, and what rounding may have cost.
    remainder: f64,
    rounding: f64,
}

struct Search<R> {
    time: Time,
    terms: Vec<Term>,
    response: R,
    symmetric: bool,
    lower: f64,
    frequency: f64,
}

impl<R: Response> Search<R> {
    fn new(time: Time, nodes: &[Complex64], response: R, realisation: Realisation) -> Self {
        let step = match time {
            Time::Continuous => 1.0,
            Time::Discrete { step } => step,
        };
        // Reducing the angle once moves it by an ulp of λΔ, which is what λΔ is known to.
        let angle = |im: f64| {
            if time == Time::Continuous {
                im
            } else {
                wrap(im)
            }
        };
        let term = |(&lambda, size): (&Complex64, f64)| {
            let z = lambda * step;
            let z = Complex64::new(z.re, angle(z.im));
            Term { z, size }
        };
        Self {
            time,
            terms: nodes.iter().zip(response.sizes()).map(term).collect(),
            response,
            symmetric: realisation == Realisation::Real,
            lower: 0.0,
            frequency: 0.0,
        }
    }

    /// The modes whose residue is not zero.
    fn contributing(&self) -> impl Iterator<Item = &Term> {
        self.terms.iter().filter(|term| term.size > 0.0)
    }

    fn is_continuous(&self) -> bool {
        self.time == Time::Continuous
    }

    fn run(mut self) -> HinfNorm {
        let mut heap = BinaryHeap::new();
        let mut far = 0.0;
        if self.is_continuous() {
            self.raise(self.response.direct(), f64::INFINITY);
            far = self.cover_line(&mut heap);
        } else {
            self.cover_circle(&mut heap);
        }
        let mut upper = self.refine(heap);
        upper = upper.max(far).max(self.lower);
        HinfNorm {
            value: self.lower,
            upper,
            frequency: self.frequency,
        }
    }

    fn raise(&mut self, gain: f64, frequency: f64) {
        if gain > self.lower {
            self.lower = gain;
            self.frequency = frequency;
        }
    }

    /// Halves the interval with the largest bound until it meets the largest gain.
    fn refine(&mut self, mut heap: BinaryHeap<Interval>) -> f64 {
        let mut settled = 0.0_f64;
        let mut count = heap.len();
        while let Some(top) = heap.pop() {
            let open = top.bound - self.lower > GAP * self.lower + 2.0 * top.rounding;
            if !open {
                // Nothing below can be open, unless its rounding allowance is smaller.
                settled = settled.max(top.bound);
                if top.bound <= self.lower * (1.0 + GAP) {
                    return settled;
                }
                continue;
            }
            let half = 0.5 * top.reach;
            let stuck = top.centre + half == top.centre;
            if stuck || count > INTERVALS_MAX {
                settled = settled.max(top.bound);
                continue;
            }
            for centre in [top.centre - half, top.centre + half] {
                heap.push(self.enclose(centre, half));
                count += 1;
            }
        }
        settled
    }

    /// Intervals between the frequencies of the poles, on the circle.
    fn cover_circle(&mut self, heap: &mut BinaryHeap<Interval>) {
        let start = if self.symmetric { 0.0 } else { -PI };
        let mut cuts = vec![start, PI];
        cuts.extend((1..16).map(|k| start + (PI - start) * f64::from(k) / 16.0));
        let angles = self.contributing().map(|term| term.z.im);
        cuts.extend(angles.filter(|&angle| angle > start));
        self.cover(cuts, heap);
    }

    /// Intervals on the imaginary axis up to the frequency where the modes' own gains are below
    /// the gain found; returns the bound beyond it.
    fn cover_line(&mut self, heap: &mut BinaryHeap<Interval>) -> f64 {
        let fastest = self
            .contributing()
            .map(|term| term.z.norm())
            .fold(0.0, f64::max);
        let mut edge = 2.0 * fastest;
        let mut cuts = vec![0.0, edge];
        cuts.extend(
            self.contributing()
                .map(|term| term.z.im)
                .filter(|&w| w > 0.0),
        );
        if !self.symmetric {
            cuts.push(-edge);
            cuts.extend(
                self.contributing()
                    .map(|term| term.z.im)
                    .filter(|&w| w <= 0.0),
            );
        }
        self.cover(cuts, heap);
        for _ in 0..OCTAVES_MAX {
            let tail = self.beyond(edge);
            if tail <= self.lower * (1.0 + GAP) || !tail.is_finite() {
                return if tail.is_nan() { 0.0 } else { tail };
            }
            heap.push(self.enclose(1.5 * edge, 0.5 * edge));
            if !self.symmetric {
                heap.push(self.enclose(-1.5 * edge, 0.5 * edge));
            }
            edge *= 2.0;
        }
        self.beyond(edge)
    }

    /// A bound of the gain at frequencies above `edge`.
    fn beyond(&self, edge: f64) -> f64 {
        let gains = self
            .contributing()
            .map(|term| term.size / (edge - term.z.norm()));
        self.response.direct() + gains.sum::<f64>()
    }

    fn cover(&mut self, mut cuts: Vec<f64>, heap: &mut BinaryHeap<Interval>) {
        cuts.sort_by(f64::total_cmp);
        cuts.dedup();
        for &cut in &cuts {
            self.raise(self.gain(cut), cut);
        }
        for pair in cuts.windows(2) {
            heap.push(self.enclose(0.5 * (pair[0] + pair[1]), 0.5 * (pair[1] - pair[0])));
        }
    }

    /// iω − z, or 1 − e^{z − iθ}.
    fn gap(&self, z: Complex64, frequency: f64) -> Complex64 {
        if self.is_continuous() {
            Complex64::new(-z.re, frequency - z.im)
        } else {
            -expm1(Complex64::new(z.re, z.im - frequency))
        }
    }

    fn gain(&self, frequency: f64) -> f64 {
        let weight = |term: &Term| match term.size {
            0.0 => Complex64::ZERO,
            _ => self.gap(term.z, frequency).inv(),
        };
        let weights: Vec<Complex64> = self.terms.iter().map(weight).collect();
        R::norm(&self.response.combine(&weights, true))
    }

    /// The smallest |gap| of one mode over an interval.
    fn least_gap(&self, z: Complex64, centre: f64, reach: f64) -> f64 {
        let offset = if self.is_continuous() {
            (z.im - centre).abs()
        } else {
            wrap(z.im - centre).abs()
        };
        let beyond = (offset - reach).max(0.0);
        self.gap(Complex64::new(z.re, 0.0), beyond).norm()
    }

    /// A bound for one interval. The gain at its centre and at the peak of its quadratic raise
    /// the lower bound.
    fn enclose(&mut self, centre: f64, reach: f64) -> Interval {
        self.raise(self.gain(centre), centre);
        let span = if self.is_continuous() {
            reach
        } else {
            (0.5 * reach).tan()
        };
        let sums = self.expand(centre, reach, span);
        let g = &sums.coefficients;
        let (main, peak) = R::quadratic([&g[0], &g[1], &g[2]], span);
        let tail: f64 = (3..TERMS)
            .map(|k| R::norm_bound(&g[k]) * span.powi(k as i32))
            .sum();
        if peak.abs() < span {
            let there = if self.is_continuous() {
                peak
            } else {
                2.0 * peak.atan()
            };
            self.raise(self.gain(centre + there), centre + there);
        }
        Interval {
            centre,
            reach,
            bound: main + tail + sums.remainder + sums.rounding,
            rounding: sums.rounding,
        }
    }

    fn expand(&self, centre: f64, reach: f64, span: f64) -> Expansion<R::Value> {
        let count = self.terms.len();
        let mut weights = vec![Complex64::ZERO; TERMS * count];
        let mut remainder = 0.0;
        let mut size = self.response.direct();
        for (j, term) in self.terms.iter().enumerate() {
            if term.size == 0.0 {
                continue;
            }
            let gap = self.gap(term.z, centre);
            let ratio = if self.is_continuous() {
                gap.inv()
            } else {
                2.0 / gap - 1.0
            };
            let shrink = span * ratio.norm();
            if shrink > 0.5 {
                let gain = term.size / self.least_gap(term.z, centre, reach);
                remainder += gain;
                size += gain;
                continue;
            }
            let value = gap.inv();
            let next = if self.is_continuous() {
                value / gap
            } else {
                value * (2.0 / gap - 2.0)
            };
            // d/dt of the variable s = it, and alternating signs, together −i for each order.
            let turn = Complex64::new(ratio.im, -ratio.re);
            let mut power = Complex64::new(next.im, -next.re);
            weights[j] = value;
            for k in 1..TERMS {
                weights[k * count + j] = power;
                power *= turn;
            }
            remainder += term.size * power.norm() * span.powi(TERMS as i32) / (1.0 - shrink);
            size += term.size * (value.norm() + next.norm() * span / (1.0 - shrink));
        }
        let combine = |k: usize| {
            let weights = &weights[k * count..(k + 1) * count];
            self.response.combine(weights, k == 0)
        };
        Expansion {
            coefficients: (0..TERMS).map(combine).collect(),
            remainder,
            rounding: (count + 15 + self.response.width()) as f64 * f64::EPSILON * size,
        }
    }
}

/// An angle in [−π, π].
fn wrap(angle: f64) -> f64 {
    angle - 2.0 * PI * (angle / (2.0 * PI)).round()
}

#[cfg(test)]
mod tests;
