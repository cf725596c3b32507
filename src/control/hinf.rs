//! The H∞ norm with a certificate: Taylor expansions and branch and bound.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::f64::consts::PI;

use num_complex::Complex64;

use crate::control::ControlError;
use crate::control::Realisation;
use crate::control::norm::difference;
use crate::control::realisation::real_modes;
use crate::linalg::expm1;
use crate::ssm::StableSystem;
use crate::ssm::Time;

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
pub struct HinfNorm {
    /// The largest gain that was found; the norm is at least this.
    pub value: f64,
    /// A certified upper bound of the norm, rounding errors included.
    pub upper: f64,
    /// Where the gain `value` was found: ω in radians per unit of time, θ in radians per step.
    /// Infinite when the gain rises to the feedthrough.
    pub frequency: f64,
}

/// The H∞ norm of a stable system with one input and one output: the largest gain |G(iω)| or
/// |G(e^{iθ})|, feedthrough included.
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
/// # Errors
/// [`ControlError::System`] unless the system has one input and one output.
///
/// # Examples
/// ```
/// use hankelite::control::{Realisation, hinf_norm};
/// use hankelite::ssm::{DiagonalSystem, Time};
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
    Ok(Search::new(system, realisation)?.run())
}

/// The H∞ norm of the difference of two stable systems on the same time base, feedthroughs
/// included: the worst error over all sinusoids. Poles shared by both are merged, so what
/// cancels exactly is gone.
///
/// # Errors
/// [`ControlError::DifferentTime`]; [`ControlError::System`] as [`hinf_norm`].
pub fn hinf_error(
    full: StableSystem<'_>,
    reduced: StableSystem<'_>,
    realisation: Realisation,
) -> Result<HinfNorm, ControlError> {
    full.system().require_siso()?;
    reduced.system().require_siso()?;
    let direct = full.system().feedthrough() - reduced.system().feedthrough();
    let difference = difference(full, reduced, direct)?;
    hinf_norm(difference.stable()?, realisation)
}

/// One term r/(iω − z) or r/(1 − e^{z − iθ}).
#[derive(Debug, Clone, Copy)]
struct Term {
    z: Complex64,
    residue: Complex64,
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
struct Expansion {
    coefficients: [Complex64; TERMS],
    /// The terms left out, the near modes, and what rounding may have cost.
    remainder: f64,
    rounding: f64,
}

struct Search {
    time: Time,
    terms: Vec<Term>,
    feedthrough: f64,
    symmetric: bool,
    lower: f64,
    frequency: f64,
}

impl Search {
    fn new(system: StableSystem<'_>, realisation: Realisation) -> Result<Self, ControlError> {
        let source = system.system();
        let step = match source.time() {
            Time::Continuous => 1.0,
            Time::Discrete { step } => step,
        };
        // Reducing the angle once moves it by an ulp of λΔ, which is what λΔ is known to.
        let angle = |im: f64| {
            if source.time() == Time::Continuous {
                im
            } else {
                wrap(im)
            }
        };
        let term = |z: Complex64, residue: Complex64| Term {
            z: Complex64::new(z.re, angle(z.im)),
            residue,
        };
        let mut terms = Vec::new();
        match realisation {
            Realisation::Complex => {
                let modes = source.exponents().iter().zip(source.residues()?);
                terms.extend(modes.map(|(lambda, residue)| term(lambda * step, residue)));
            }
            Realisation::Real => {
                for mode in real_modes(source)? {
                    let z = mode.lambda * step;
                    if mode.single {
                        terms.push(term(z, mode.residue));
                    } else {
                        terms.push(term(z, 0.5 * mode.residue));
                        terms.push(term(z.conj(), 0.5 * mode.residue.conj()));
                    }
                }
            }
        }
        terms.retain(|term| term.residue != Complex64::ZERO);
        Ok(Self {
            time: source.time(),
            terms,
            feedthrough: source.feedthrough()[(0, 0)],
            symmetric: realisation == Realisation::Real,
            lower: 0.0,
            frequency: 0.0,
        })
    }

    fn is_continuous(&self) -> bool {
        self.time == Time::Continuous
    }

    fn run(mut self) -> HinfNorm {
        let mut heap = BinaryHeap::new();
        let mut far = 0.0;
        if self.is_continuous() {
            self.raise(self.feedthrough.abs(), f64::INFINITY);
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
        let angles = self.terms.iter().map(|term| term.z.im);
        cuts.extend(angles.filter(|&angle| angle > start));
        self.cover(cuts, heap);
    }

    /// Intervals on the imaginary axis up to the frequency where the modes' own gains are below
    /// the gain found; returns the bound beyond it.
    fn cover_line(&mut self, heap: &mut BinaryHeap<Interval>) -> f64 {
        let fastest = self
            .terms
            .iter()
            .map(|term| term.z.norm())
            .fold(0.0, f64::max);
        let mut edge = 2.0 * fastest;
        let mut cuts = vec![0.0, edge];
        cuts.extend(self.terms.iter().map(|term| term.z.im).filter(|&w| w > 0.0));
        if !self.symmetric {
            cuts.push(-edge);
            cuts.extend(
                self.terms
                    .iter()
                    .map(|term| term.z.im)
                    .filter(|&w| w <= 0.0),
            );
        }
        self.cover(cuts, heap);
        for _ in 0..OCTAVES_MAX {
            let gains = self
                .terms
                .iter()
                .map(|term| term.residue.norm() / (edge - term.z.norm()));
            let tail = self.feedthrough.abs() + gains.sum::<f64>();
            if tail <= self.lower * (1.0 + GAP) || !tail.is_finite() {
                return if tail.is_nan() { 0.0 } else { tail };
            }
            heap.push(self.enclose(1.5 * edge, 0.5 * edge));
            if !self.symmetric {
                heap.push(self.enclose(-1.5 * edge, 0.5 * edge));
            }
            edge *= 2.0;
        }
        let gains = self
            .terms
            .iter()
            .map(|term| term.residue.norm() / (edge - term.z.norm()));
        self.feedthrough.abs() + gains.sum::<f64>()
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
        let terms = self.terms.iter();
        let sum: Complex64 = terms
            .map(|term| term.residue / self.gap(term.z, frequency))
            .sum();
        (sum + self.feedthrough).norm()
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
        let linear = 2.0 * (g[0].conj() * g[1]).re;
        let square = g[1].norm_sqr() + 2.0 * (g[0].conj() * g[2]).re;
        let cubic = 2.0 * (g[1].conj() * g[2]).re.abs() * span.powi(3);
        let quartic = g[2].norm_sqr() * span.powi(4);
        let peak = peak_of(linear, square, span);
        let head = g[0].norm_sqr() + linear * peak + square * peak * peak;
        let tail: f64 = (3..TERMS).map(|k| g[k].norm() * span.powi(k as i32)).sum();
        if peak.abs() < span {
            let there = if self.is_continuous() {
                peak
            } else {
                2.0 * peak.atan()
            };
            self.raise(self.gain(centre + there), centre + there);
        }
        let main = (head + cubic + quartic).max(0.0).sqrt();
        Interval {
            centre,
            reach,
            bound: main + tail + sums.remainder + sums.rounding,
            rounding: sums.rounding,
        }
    }

    fn expand(&self, centre: f64, reach: f64, span: f64) -> Expansion {
        let mut coefficients = [Complex64::ZERO; TERMS];
        coefficients[0] = Complex64::from(self.feedthrough);
        let mut remainder = 0.0;
        let mut size = self.feedthrough.abs();
        for term in &self.terms {
            let gap = self.gap(term.z, centre);
            let ratio = if self.is_continuous() {
                gap.inv()
            } else {
                2.0 / gap - 1.0
            };
            let shrink = span * ratio.norm();
            if shrink > 0.5 {
                let gain = term.residue.norm() / self.least_gap(term.z, centre, reach);
                remainder += gain;
                size += gain;
                continue;
            }
            let value = term.residue / gap;
            let next = if self.is_continuous() {
                value / gap
            } else {
                value * (2.0 / gap - 2.0)
            };
            // d/dt of the variable s = it, and alternating signs, together −i for each order.
            let turn = Complex64::new(ratio.im, -ratio.re);
            let mut power = Complex64::new(next.im, -next.re);
            coefficients[0] += value;
            for coefficient in &mut coefficients[1..] {
                *coefficient += power;
                power *= turn;
            }
            remainder += power.norm() * span.powi(TERMS as i32) / (1.0 - shrink);
            size += value.norm() + next.norm() * span / (1.0 - shrink);
        }
        Expansion {
            coefficients,
            remainder,
            rounding: (self.terms.len() + 16) as f64 * f64::EPSILON * size,
        }
    }
}

/// Where `linear` t + `square` t² is largest on [−span, span].
fn peak_of(linear: f64, square: f64, span: f64) -> f64 {
    let edge = if linear < 0.0 { -span } else { span };
    if square >= 0.0 {
        return edge;
    }
    let vertex = -linear / (2.0 * square);
    if vertex.abs() < span { vertex } else { edge }
}

/// An angle in [−π, π].
fn wrap(angle: f64) -> f64 {
    angle - 2.0 * PI * (angle / (2.0 * PI)).round()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssm::DiagonalSystem;

    fn norm(system: &DiagonalSystem, realisation: Realisation) -> HinfNorm {
        hinf_norm(system.stable().unwrap(), realisation).unwrap()
    }

    #[test]
    fn one_pole_has_its_closed_form() {
        for (re, im, step) in [(-0.3, 0.0, 0.5), (-2.0, 1.0, 0.1), (-1e-12, 700.0, 3.0)] {
            let pole = vec![Complex64::new(re, im)];
            let residue = [Complex64::new(0.6, -0.8)];
            let time = Time::Continuous;
            let system = DiagonalSystem::siso(time, pole.clone(), &residue, 0.0).unwrap();
            let found = norm(&system, Realisation::Complex);
            assert!((found.value * -re - 1.0).abs() < 1e-12, "{found:?}");
            assert_eq!(found.frequency, im);
            let time = Time::Discrete { step };
            let system = DiagonalSystem::siso(time, pole, &residue, 0.0).unwrap();
            let found = norm(&system, Realisation::Complex);
            let expected = 1.0 / -(re * step).exp_m1();
            assert!(
                (found.value / expected - 1.0).abs() < 1e-12,
                "{found:?} {expected}"
            );
            assert!(found.upper >= expected && found.upper / expected < 1.0 + 1e-8);
        }
    }

    #[test]
    fn a_real_pole_and_a_feedthrough_add_at_rest() {
        let pole = vec![Complex64::new(-2.0, 0.0)];
        let one = [Complex64::ONE];
        let system = DiagonalSystem::siso(Time::Continuous, pole.clone(), &one, 3.0).unwrap();
        let found = norm(&system, Realisation::Real);
        assert!((found.value - 3.5).abs() < 1e-14 && found.frequency == 0.0);
        let system = DiagonalSystem::siso(Time::Continuous, pole, &one, -3.0).unwrap();
        let found = norm(&system, Realisation::Real);
        assert!((found.value - 3.0).abs() < 1e-14 && found.frequency == f64::INFINITY);
        assert!(found.upper < 3.0 * (1.0 + 2e-9));
    }

    #[test]
    fn a_silent_system_has_the_gain_of_its_feedthrough() {
        for time in [Time::Continuous, Time::Discrete { step: 1.0 }] {
            let empty = DiagonalSystem::siso(time, Vec::new(), &[], 0.25).unwrap();
            let found = norm(&empty, Realisation::Real);
            assert!(
                found.value == 0.25 && found.upper < 0.25 * (1.0 + 1e-8),
                "{found:?}"
            );
            let zero = DiagonalSystem::siso(time, Vec::new(), &[], 0.0).unwrap();
            assert_eq!(norm(&zero, Realisation::Complex).upper, 0.0);
        }
    }

    #[test]
    fn the_expansion_bounds_a_dense_sweep_inside_its_interval() {
        let exponents = [(-0.2, 1.0), (-0.05, 1.3), (-1.0, 0.0), (-0.4, -2.5)];
        let exponents = exponents.map(|(re, im)| Complex64::new(re, im)).to_vec();
        let residues = [(1.0, 0.3), (-0.4, 0.2), (2.0, 0.0), (0.1, -1.0)];
        let residues = residues.map(|(re, im)| Complex64::new(re, im));
        for time in [Time::Continuous, Time::Discrete { step: 0.7 }] {
            let system = DiagonalSystem::siso(time, exponents.clone(), &residues, 0.1).unwrap();
            for realisation in [Realisation::Real, Realisation::Complex] {
                for (centre, reach) in [(1.0, 0.5), (0.7, 0.01), (-2.0, 0.9), (3.0, 0.1)] {
                    let mut search = Search::new(system.stable().unwrap(), realisation).unwrap();
                    let bound = search.enclose(centre, reach).bound;
                    let sweep = (0..=2000).map(|k| f64::from(k - 1000) / 1000.0);
                    let largest = sweep.map(|x| search.gain(centre + reach * x));
                    let largest = largest.fold(0.0, f64::max);
                    assert!(
                        largest <= bound,
                        "{time:?} {centre} {reach}: {largest} {bound}"
                    );
                    if reach == 0.01 {
                        assert!(bound < largest * (1.0 + 1e-3), "{largest} {bound}");
                    }
                }
            }
        }
    }
}
