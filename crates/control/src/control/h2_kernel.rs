//! The kernel of a mode as a function of its pole, its input row and its output column, with
//! derivatives and inner products in closed form.

use num_complex::Complex64;

use crate::control::realisation::{RealMode, real_modes};
use crate::linalg::expm1;
use crate::ssm::{DiagonalSystem, RealBlock, Time, real_blocks};

/// The largest change of ln |Re λ| in one step: a factor of e².
const STRETCH_MAX: f64 = 2.0;

/// ∫ or Σ of l^p e^{sl}, p = 0, 1, 2.
fn moment(time: Time, power: usize, s: Complex64) -> Complex64 {
    match time {
        Time::Continuous => {
            let first = -s.inv();
            match power {
                0 => first,
                1 => first * first,
                _ => 2.0 * first * first * first,
            }
        }
        Time::Discrete { .. } => {
            let first = -expm1(s).inv();
            let q = s.exp();
            match power {
                0 => first,
                1 => q * first * first,
                _ => q * (1.0 + q) * first * first * first,
            }
        }
    }
}

/// Re(c b l^power e^{zl}), p × m: a kernel, or a direction in which one can move.
#[derive(Debug, Clone)]
pub(super) struct Signal {
    pub(super) output: Vec<Complex64>,
    pub(super) input: Vec<Complex64>,
    pub(super) power: usize,
    pub(super) z: Complex64,
}

/// ⟨Re(u), Re(v)⟩ = ½ Re(⟨u, v⟩ + ⟨u, v̄⟩), the entries of a matrix summed.
pub(super) fn product(time: Time, u: &Signal, v: &Signal) -> f64 {
    let power = u.power + v.power;
    let plain = dot(&u.output, &v.output, false) * dot(&u.input, &v.input, false);
    let mixed = dot(&u.output, &v.output, true) * dot(&u.input, &v.input, true);
    let mut sum = 0.0;
    if plain != Complex64::ZERO {
        sum += (plain * moment(time, power, u.z + v.z)).re;
    }
    if mixed != Complex64::ZERO {
        sum += (mixed * moment(time, power, u.z + v.z.conj())).re;
    }
    0.5 * sum
}

/// Σ x_i y_i, or Σ x_i ȳ_i.
fn dot(x: &[Complex64], y: &[Complex64], conjugate: bool) -> Complex64 {
    let terms = x.iter().zip(y);
    if conjugate {
        terms.map(|(x, y)| x * y.conj()).sum()
    } else {
        terms.map(|(x, y)| x * y).sum()
    }
}

/// One mode of the reduced system, Re(c b e^{zl}). The largest entry of b is one and stays so,
/// since b and c share a factor; with one input b has nothing to move.
#[derive(Debug, Clone)]
pub(super) struct Mode {
    pub(super) lambda: Complex64,
    pub(super) output: Vec<Complex64>,
    pub(super) input: Vec<Complex64>,
    /// One real state, with real b and c; otherwise a pair.
    pub(super) single: bool,
}

/// A number that can be moved, the linear ones in the direction of a unit.
#[derive(Debug, Clone, Copy)]
pub(super) enum Parameter {
    Output(usize, Complex64),
    Input(usize, Complex64),
    /// α: λ = −e^α + …
    Stretch,
    /// θ: the imaginary part.
    Turn,
}

impl Mode {
    pub(super) fn of(source: &DiagonalSystem) -> Vec<Self> {
        if let Ok(siso) = source.as_siso() {
            let single = |mode: RealMode| Self {
                lambda: mode.lambda,
                output: vec![mode.residue],
                input: vec![Complex64::ONE],
                single: mode.single,
            };
            return real_modes(siso).into_iter().map(single).collect();
        }
        let mode = |block: RealBlock| {
            let mut mode = Self {
                lambda: block.lambda,
                output: block.output,
                input: block.input,
                single: block.single,
            };
            mode.normalise();
            mode
        };
        real_blocks(source).into_iter().map(mode).collect()
    }

    /// The entry of b that is one: the first of the largest.
    fn fixed(&self) -> usize {
        let sizes = self.input.iter().map(|b| b.norm());
        let best = sizes.enumerate().fold(
            (0, 0.0),
            |best, (k, size)| {
                if size > best.1 { (k, size) } else { best }
            },
        );
        best.0
    }

    fn normalise(&mut self) {
        let place = self.fixed();
        let scale = self.input.get(place).copied().unwrap_or(Complex64::ONE);
        if scale == Complex64::ONE {
            return;
        }
        if scale == Complex64::ZERO {
            // A mode with zero residue: any input shows that its output is zero.
            self.input[place] = Complex64::ONE;
            self.output.fill(Complex64::ZERO);
            return;
        }
        self.input.iter_mut().for_each(|b| *b /= scale);
        self.output.iter_mut().for_each(|c| *c *= scale);
        self.input[place] = Complex64::ONE;
    }

    /// The outputs first, so that these alone are the least-squares part.
    pub(super) fn parameters(&self) -> Vec<Parameter> {
        let both = [Complex64::ONE, Complex64::I];
        let units = if self.single { &both[..1] } else { &both[..] };
        let mut all = Vec::new();
        for i in 0..self.output.len() {
            all.extend(units.iter().map(|&unit| Parameter::Output(i, unit)));
        }
        let fixed = self.fixed();
        for k in (0..self.input.len()).filter(|&k| k != fixed) {
            all.extend(units.iter().map(|&unit| Parameter::Input(k, unit)));
        }
        all.push(Parameter::Stretch);
        if !self.single {
            all.push(Parameter::Turn);
        }
        all
    }

    /// How many of the parameters are outputs.
    pub(super) fn outputs(&self) -> usize {
        self.output.len() * if self.single { 1 } else { 2 }
    }

    /// The kernel with exponent z, differentiated by the given parameters, two at most.
    pub(super) fn derivative(&self, z: Complex64, by: &[Parameter]) -> Vec<Signal> {
        let unit = |size: usize, place: usize, value: Complex64| {
            let mut vector = vec![Complex64::ZERO; size];
            vector[place] = value;
            vector
        };
        let (mut output, mut input) = (self.output.clone(), self.input.clone());
        let (mut linear, mut turns, mut stretches) = ([0, 0], 0, 0);
        for &parameter in by {
            match parameter {
                Parameter::Output(i, value) => {
                    output = unit(self.output.len(), i, value);
                    linear[0] += 1;
                }
                Parameter::Input(k, value) => {
                    input = unit(self.input.len(), k, value);
                    linear[1] += 1;
                }
                Parameter::Stretch => stretches += 1,
                Parameter::Turn => turns += 1,
            }
        }
        if linear.contains(&2) {
            return Vec::new();
        }
        let signal = |factor: Complex64, power| Signal {
            output: output.iter().map(|c| c * factor).collect(),
            input: input.clone(),
            power,
            z,
        };
        let stretch = Complex64::from(z.re);
        match (stretches, turns) {
            (0, 0) => vec![signal(Complex64::ONE, 0)],
            (1, 0) => vec![signal(stretch, 1)],
            (0, 1) => vec![signal(Complex64::I, 1)],
            (1, 1) => vec![signal(Complex64::I * stretch, 2)],
            (0, _) => vec![signal(-Complex64::ONE, 2)],
            _ => vec![signal(stretch, 1), signal(stretch * stretch, 2)],
        }
    }

    /// The mode after a step in all parameters.
    pub(super) fn moved(&self, step: &[f64], time_step: f64) -> Self {
        let mut next = self.clone();
        for (&parameter, &change) in self.parameters().iter().zip(step) {
            match parameter {
                Parameter::Output(i, unit) => next.output[i] += unit * change,
                Parameter::Input(k, unit) => next.input[k] += unit * change,
                Parameter::Stretch => {
                    next.lambda.re *= change.clamp(-STRETCH_MAX, STRETCH_MAX).exp();
                }
                Parameter::Turn => next.lambda.im += change / time_step,
            }
        }
        next.normalise();
        next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn normalising_moves_a_factor_from_the_input_to_the_output() {
        let c = |re: f64, im: f64| Complex64::new(re, im);
        let given = Mode {
            lambda: c(-0.5, 2.0),
            output: vec![c(1.0, 1.0), c(-2.0, 0.5)],
            input: vec![c(0.1, 0.0), c(3.0, -4.0), c(0.0, 5.0)],
            single: false,
        };
        let mut found = given.clone();
        found.normalise();
        assert_eq!(found.input[1], Complex64::ONE);
        assert!(found.input.iter().all(|b| b.norm() <= 1.0 + 1e-15));
        for (i, output) in given.output.iter().enumerate() {
            for (k, input) in given.input.iter().enumerate() {
                let residue = found.output[i] * found.input[k];
                assert!((residue - output * input).norm() < 1e-14);
            }
        }
        let mut silent = Mode {
            input: vec![Complex64::ZERO; 2],
            ..given.clone()
        };
        silent.normalise();
        assert_eq!(silent.input, [Complex64::ONE, Complex64::ZERO]);
        assert_eq!(silent.output, [Complex64::ZERO; 2]);
        // Two parts for each entry of c and each of b but one, and two for the pole.
        assert_eq!((given.outputs(), given.parameters().len()), (4, 4 + 4 + 2));
        let single = Mode {
            single: true,
            ..given
        };
        assert_eq!(
            (single.outputs(), single.parameters().len()),
            (2, 2 + 2 + 1)
        );
    }

    #[test]
    fn a_step_moves_the_pole_by_a_bounded_factor_and_its_angle_by_the_step() {
        let mode = Mode {
            lambda: Complex64::new(-0.5, 2.0),
            output: vec![Complex64::ONE],
            input: vec![Complex64::ONE],
            single: false,
        };
        let moved = mode.moved(&[0.25, -0.5, 0.1, 0.3], 0.2);
        assert_eq!(moved.output[0], Complex64::new(1.25, -0.5));
        assert!((moved.lambda.re + 0.5 * 0.1_f64.exp()).abs() < 1e-15);
        assert!((moved.lambda.im - 3.5).abs() < 1e-14);
        for (stretch, factor) in [(50.0, 2.0_f64.exp()), (-50.0, (-2.0_f64).exp())] {
            let moved = mode.moved(&[0.0, 0.0, stretch, 0.0], 0.2);
            assert!((moved.lambda.re / (-0.5 * factor) - 1.0).abs() < 1e-15);
        }
    }

    #[test]
    fn moments_are_the_integrals_and_sums_of_powers() {
        let s = Complex64::new(-0.4, 0.9);
        for power in 0..3 {
            let terms = (0..400).map(|l| (s * f64::from(l)).exp() * f64::from(l).powi(power));
            let direct: Complex64 = terms.sum();
            let found = moment(Time::Discrete { step: 1.0 }, power as usize, s);
            assert!((found - direct).norm() < 1e-13 * direct.norm(), "{power}");
            // p!/(−s)^{p+1}.
            let factor = [1.0, 1.0, 2.0][power as usize];
            let direct = factor / (-s).powi(power + 1);
            let found = moment(Time::Continuous, power as usize, s);
            assert!((found - direct).norm() < 1e-14 * direct.norm(), "{power}");
        }
    }
}
