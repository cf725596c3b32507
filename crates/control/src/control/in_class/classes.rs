//! The free numbers of each class, the signals that they make and how those change with them.

use std::f64::consts::{FRAC_PI_2, PI, TAU};

use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::control::in_class::signals::{Fit, Signals, Target};
use crate::control::in_class::{OscillatorPoles, SystemClass};
use crate::ssm::DiagonalSystem;

/// The slowest and the fastest decay, as ln(−ln |a|).
const DECAYS: (f64, f64) = (-30.0, 3.4);

/// The fastest decay of oscillators and multiples in the same measure: |a| is 0.02, of which single
/// precision keeps five digits where a file stores 1 − |a|.
const FASTEST: f64 = 1.36;

/// The least angle of a damped oscillator between its pole and the real axis, over 1/|p| − 1. Where its
/// two poles meet, weights grow without bound and cancel.
const APART: f64 = 3e-3;

/// How many multiples of the angle are tried as the new one.
const FOLD_MAX: usize = 8;

/// How many angles are tried beside them.
const ANGLES: usize = 8;

/// An angle relative to the largest possible, from its logit or back.
const SHARES: (f64, f64) = (1e-6, 1.0 - 1e-6);

/// Free numbers: those of the poles, then the inputs of every unit.
#[derive(Debug, Clone)]
pub(super) struct Numbers {
    class: SystemClass,
    units: usize,
    inputs: usize,
    pub(super) values: Vec<f64>,
}

/// A pole as a function of some numbers.
struct Pole {
    exponent: Complex64,
    /// Index of a number, and how fast the exponent changes with it.
    slopes: Vec<(usize, Complex64)>,
}

/// Where a row of inputs stands in β.
struct Part {
    first: usize,
    factor: Complex64,
    growth: f64,
}

/// Re(β e^{zl}) and a quarter turn of it.
const QUARTERS: [Complex64; 2] = [Complex64::ONE, Complex64::I];

impl SystemClass {
    /// Stored modes of a unit: the smallest part that can be removed.
    pub fn modes(self) -> usize {
        match self {
            SystemClass::Oscillators(_) => 2,
            _ => 1,
        }
    }

    /// Signals of a unit.
    fn signals(self) -> usize {
        match self {
            SystemClass::Cosines | SystemClass::RealPoles => 1,
            _ => 2,
        }
    }

    /// Real rows of inputs that a unit has.
    fn rows(self) -> usize {
        match self {
            SystemClass::Cosines | SystemClass::RealInputs => 1,
            SystemClass::Oscillators(_) => 2,
            SystemClass::Multiples | SystemClass::RealPoles => 0,
        }
    }

    /// Numbers of the poles of so many units.
    fn pole_numbers(self, units: usize) -> usize {
        use OscillatorPoles::{HalfCircle, UnitCircle};
        match self {
            SystemClass::Multiples => units + 1,
            SystemClass::Oscillators(HalfCircle | UnitCircle) | SystemClass::RealPoles => units,
            _ => 2 * units,
        }
    }
}

impl OscillatorPoles {
    /// Steps by which the sine is ahead of e^{zl}.
    fn ahead(self) -> f64 {
        match self {
            OscillatorPoles::DiskDelayed => 0.0,
            _ => 1.0,
        }
    }

    /// The largest angle where it is the only number.
    fn widest(self) -> f64 {
        match self {
            OscillatorPoles::HalfCircle => FRAC_PI_2,
            _ => PI,
        }
    }
}

fn sigmoid(t: f64) -> f64 {
    (1.0 + (-t).exp()).recip()
}

fn logit(share: f64) -> f64 {
    let share = share.clamp(SHARES.0, SHARES.1);
    (share / (1.0 - share)).ln()
}

/// The least angle of a damped oscillator with the real part of its exponent, and how fast that changes
/// with ln of the decay.
fn least_angle(re: f64) -> (f64, f64) {
    (APART * (-re).exp_m1(), -APART * re * (-re).exp())
}

fn log_decay(exponent: Complex64) -> f64 {
    (-exponent.re)
        .max(f64::MIN_POSITIVE)
        .ln()
        .clamp(DECAYS.0, DECAYS.1)
}

impl Numbers {
    /// Where to start from, with `units` units.
    pub(super) fn starts(
        full: &DiagonalSystem,
        class: SystemClass,
        units: usize,
        target: &Target,
    ) -> Vec<Self> {
        if class == SystemClass::Multiples {
            return Self::multiples(full, units);
        }
        let all = Self::of(full, class);
        let kept = all.least_costly(units, target);
        vec![all.selected(&kept)]
    }

    /// All units of a system of the class. For oscillators the modes 2n and 2n + 1 are a unit.
    pub(super) fn of(full: &DiagonalSystem, class: SystemClass) -> Self {
        let exponents = full.scaled_exponents();
        let modes = class.modes();
        let units = exponents.len() / modes;
        let inputs = full.input().ncols();
        let mut values = Self::pole_values(&exponents, class, units);
        if class.rows() > 0 {
            values.extend(Self::input_values(full, class));
        }
        Self {
            class,
            units,
            inputs,
            values,
        }
    }

    /// The numbers of the poles.
    fn pole_values(exponents: &[Complex64], class: SystemClass, units: usize) -> Vec<f64> {
        let modes = class.modes();
        let mut values = Vec::new();
        for n in 0..units {
            let z = exponents[n * modes];
            let z = Complex64::new(z.re, z.im.abs());
            match class {
                SystemClass::Oscillators(
                    poles @ (OscillatorPoles::HalfCircle | OscillatorPoles::UnitCircle),
                ) => values.push(logit(z.im / poles.widest())),
                SystemClass::Oscillators(_) => {
                    let decay = log_decay(z).min(FASTEST);
                    let (least, _) = least_angle(-decay.exp());
                    values.extend([decay, logit((z.im - least) / (PI - 2.0 * least))]);
                }
                SystemClass::RealPoles => values.push(log_decay(z)),
                SystemClass::Multiples => values.push(log_decay(z).min(FASTEST)),
                _ => values.extend([log_decay(z), z.im]),
            }
        }
        if class == SystemClass::Multiples {
            values.push(logit(exponents[0].im * units as f64 / TAU));
        }
        values
    }

    /// The numbers of the inputs.
    fn input_values(full: &DiagonalSystem, class: SystemClass) -> Vec<f64> {
        let mut values = Vec::new();
        for row in full.input().row_iter().step_by(class.modes()) {
            let largest = row.iter().max_by(|a, b| a.norm().total_cmp(&b.norm()));
            // Where rows are real their phase belongs to no one.
            let turn = match (class, largest) {
                (SystemClass::Cosines | SystemClass::RealInputs, Some(b)) if b.norm() > 0.0 => {
                    b.conj() / b.norm()
                }
                _ => Complex64::ONE,
            };
            values.extend(row.iter().map(|b| (b * turn).re));
            if class.rows() == 2 {
                values.extend(row.iter().map(|b| b.im));
            }
        }
        values
    }

    /// The 1, 2, …-fold of the angle as the new one, each with the decays of the modes it meets; and angles
    /// in between, with the decays of the first modes.
    fn multiples(full: &DiagonalSystem, units: usize) -> Vec<Self> {
        let exponents = full.scaled_exponents();
        let start = |fold: usize, share: f64| {
            let decays = (1..=units).map(|n| log_decay(exponents[n * fold - 1]).min(FASTEST));
            Self {
                class: SystemClass::Multiples,
                units,
                inputs: 1,
                values: decays.chain([logit(share)]).collect(),
            }
        };
        let folds = 1..=(exponents.len() / units).clamp(1, FOLD_MAX);
        let angle = exponents[0].im * units as f64 / TAU;
        let folds = folds.map(|fold| start(fold, fold as f64 * angle));
        let between = (0..ANGLES).map(|k| start(1, (k as f64 + 0.5) / ANGLES as f64));
        folds.chain(between).collect()
    }

    /// The units that remain when always the one leaves whose leaving costs least, the weights of all
    /// others set anew.
    fn least_costly(&self, units: usize, target: &Target) -> Vec<usize> {
        let (gram, right) = target.normal_equations(&self.signals());
        let size = self.class.signals();
        let mut kept: Vec<usize> = (0..self.units).collect();
        let Some(mut inverse) = gram.cholesky().map(|factor| factor.inverse()) else {
            kept.truncate(units);
            return kept;
        };
        let mut output = right * &inverse;
        while kept.len() > units {
            let costs = kept
                .iter()
                .map(|&n| leaving(&inverse, &output, n * size, size));
            let least = costs.enumerate().min_by(|a, b| a.1.total_cmp(&b.1));
            let gone = kept.remove(least.expect("some are left").0);
            leave(&mut inverse, &mut output, gone * size, size);
        }
        kept
    }

    fn selected(&self, kept: &[usize]) -> Self {
        let poles = self.class.pole_numbers(self.units);
        let (own, row) = (poles / self.units, self.class.rows() * self.inputs);
        let part = |from: usize, size: usize| {
            kept.iter()
                .flat_map(move |n| from + n * size..from + (n + 1) * size)
        };
        let places = part(0, own).chain(part(poles, row));
        Self {
            units: kept.len(),
            values: places.map(|i| self.values[i]).collect(),
            ..*self
        }
    }

    fn poles(&self) -> Vec<Pole> {
        (0..self.units).map(|n| self.pole(n)).collect()
    }

    fn pole(&self, n: usize) -> Pole {
        let value = |i: usize| self.values[i];
        let decay = |i: usize| -value(i).clamp(DECAYS.0, DECAYS.1).exp();
        let angle = |i: usize, widest: f64| {
            let share = sigmoid(value(i));
            (widest * share, widest * share * (1.0 - share))
        };
        match self.class {
            SystemClass::Multiples => {
                let (times, shared) = ((n + 1) as f64, self.units);
                let (angle, rise) = angle(shared, TAU / self.units as f64);
                let re = decay(n).max(-FASTEST.exp());
                Pole {
                    exponent: Complex64::new(re, times * angle),
                    slopes: vec![(n, re.into()), (shared, Complex64::new(0.0, times * rise))],
                }
            }
            SystemClass::Oscillators(OscillatorPoles::HalfCircle) => {
                let (angle, rise) = angle(n, FRAC_PI_2);
                Pole {
                    exponent: Complex64::new(angle.cos().ln(), angle),
                    slopes: vec![(n, rise * Complex64::new(-angle.tan(), 1.0))],
                }
            }
            SystemClass::Oscillators(OscillatorPoles::UnitCircle) => {
                let (angle, rise) = angle(n, PI);
                Pole {
                    exponent: Complex64::new(0.0, angle),
                    slopes: vec![(n, Complex64::new(0.0, rise))],
                }
            }
            SystemClass::Oscillators(_) => {
                let re = decay(2 * n).max(-FASTEST.exp());
                let (least, grows) = least_angle(re);
                let (angle, rise) = angle(2 * n + 1, PI - 2.0 * least);
                let share = angle / (PI - 2.0 * least);
                Pole {
                    exponent: Complex64::new(re, least + angle),
                    slopes: vec![
                        (2 * n, Complex64::new(re, grows * (1.0 - 2.0 * share))),
                        (2 * n + 1, Complex64::new(0.0, rise)),
                    ],
                }
            }
            SystemClass::RealPoles => {
                let re = Complex64::from(decay(n));
                Pole {
                    exponent: re,
                    slopes: vec![(n, re)],
                }
            }
            SystemClass::Cosines | SystemClass::RealInputs => {
                let re = decay(2 * n);
                Pole {
                    exponent: Complex64::new(re, value(2 * n + 1)),
                    slopes: vec![(2 * n, re.into()), (2 * n + 1, Complex64::I)],
                }
            }
        }
    }

    /// Index of the first input of a row.
    fn row(&self, unit: usize, row: usize) -> usize {
        self.class.pole_numbers(self.units) + (unit * self.class.rows() + row) * self.inputs
    }

    /// Of a signal of a unit: the first of its inputs, what these are multiplied by in β, and how fast that
    /// grows with the exponent, relative to it. None where β is no number of the file's.
    fn part(&self, unit: usize, signal: usize, exponent: Complex64) -> Option<Part> {
        let (row, factor, growth) = match self.class {
            SystemClass::Multiples | SystemClass::RealPoles => return None,
            SystemClass::Cosines => (0, Complex64::ONE, 0.0),
            SystemClass::RealInputs => (0, QUARTERS[signal], 0.0),
            SystemClass::Oscillators(poles) => {
                let ahead = poles.ahead();
                (signal, -Complex64::I * (ahead * exponent).exp(), ahead)
            }
        };
        Some(Part {
            first: self.row(unit, row),
            factor,
            growth,
        })
    }

    pub(super) fn signals(&self) -> Signals {
        let each = self.class.signals();
        let mut exponents = Vec::with_capacity(self.units * each);
        let mut input = DMatrix::zeros(self.units * each, self.inputs);
        for (n, pole) in self.poles().into_iter().enumerate() {
            for k in 0..each {
                exponents.push(pole.exponent);
                let part = self.part(n, k, pole.exponent);
                for h in 0..self.inputs {
                    input[(n * each + k, h)] = match &part {
                        None => QUARTERS[k],
                        Some(part) => part.factor * self.values[part.first + h],
                    };
                }
            }
        }
        Signals { exponents, input }
    }

    /// Slopes of the error by the free numbers.
    pub(super) fn slopes(&self, fit: &Fit) -> Vec<f64> {
        let each = self.class.signals();
        let mut slopes = vec![0.0; self.values.len()];
        for (n, pole) in self.poles().into_iter().enumerate() {
            let mut by_exponent = Complex64::ZERO;
            for k in 0..each {
                let signal = n * each + k;
                by_exponent += fit.slopes.exponents[signal];
                let Some(part) = self.part(n, k, pole.exponent) else {
                    continue;
                };
                for h in 0..self.inputs {
                    let at = part.first + h;
                    let by_input = fit.slopes.input[(signal, h)];
                    slopes[at] += (by_input.conj() * part.factor).re;
                    let grows = part.growth * part.factor * self.values[at];
                    by_exponent += by_input * grows.conj();
                }
            }
            for (i, rise) in pole.slopes {
                slopes[i] += (by_exponent.conj() * rise).re;
            }
        }
        slopes
    }

    /// About how the error curves along each free number alone.
    pub(super) fn curvatures(&self, fit: &Fit) -> Vec<f64> {
        let each = self.class.signals();
        let mut curvatures = vec![0.0; self.values.len()];
        for (n, pole) in self.poles().into_iter().enumerate() {
            let decay = (-pole.exponent.re).max(1e-3);
            for k in 0..each {
                let energy = fit.energies[n * each + k];
                for &(i, rise) in &pole.slopes {
                    curvatures[i] += energy * rise.norm_sqr() / (decay * decay);
                }
                let Some(part) = self.part(n, k, pole.exponent) else {
                    continue;
                };
                let row = part.first..part.first + self.inputs;
                let square: f64 = self.values[row.clone()].iter().map(|b| b * b).sum();
                let own = energy / square.max(f64::MIN_POSITIVE);
                curvatures[row].iter_mut().for_each(|c| *c += own);
            }
        }
        let least = 1e-9 * curvatures.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
        curvatures.into_iter().map(|c| c.max(least)).collect()
    }

    /// Exponents, B and C of the modes, with the weights of the signals.
    pub(super) fn modes(
        &self,
        weights: &DMatrix<f64>,
    ) -> (Vec<Complex64>, DMatrix<Complex64>, DMatrix<Complex64>) {
        let (modes, each) = (self.class.modes(), self.class.signals());
        let mut exponents = Vec::new();
        let mut input = DMatrix::zeros(self.units * modes, self.inputs);
        let mut output = DMatrix::zeros(weights.nrows(), self.units * modes);
        for (n, pole) in self.poles().into_iter().enumerate() {
            let weight = |i: usize, k: usize| weights[(i, n * each + k)];
            let factor = self
                .part(n, 0, pole.exponent)
                .map_or(Complex64::ONE, |part| part.factor);
            for k in 0..modes {
                let (z, share) = match k {
                    0 => (pole.exponent, factor),
                    _ => (pole.exponent.conj(), factor.conj()),
                };
                exponents.push(z);
                for h in 0..self.inputs {
                    let b = |row: usize| self.values[self.row(n, row) + h];
                    input[(n * modes + k, h)] = match self.class {
                        SystemClass::Cosines | SystemClass::RealInputs => b(0).into(),
                        SystemClass::Oscillators(_) => Complex64::new(b(0), b(1)),
                        SystemClass::Multiples | SystemClass::RealPoles => Complex64::ONE,
                    };
                }
                for i in 0..weights.nrows() {
                    output[(i, n * modes + k)] = match self.class {
                        SystemClass::Cosines | SystemClass::RealPoles => weight(i, 0).into(),
                        // Re(C B) is C₀ B₀ − C₁ B₁ of real and imaginary parts.
                        SystemClass::Oscillators(_) => {
                            0.5 * share * Complex64::new(weight(i, 0), -weight(i, 1))
                        }
                        SystemClass::Multiples | SystemClass::RealInputs => {
                            Complex64::new(weight(i, 0), weight(i, 1))
                        }
                    };
                }
            }
        }
        (exponents, input, output)
    }
}

/// How much the error grows when the signals of a unit leave: tr(C_u (G⁻¹)_uu⁻¹ C_uᵀ).
fn leaving(inverse: &DMatrix<f64>, output: &DMatrix<f64>, first: usize, size: usize) -> f64 {
    let own = output.columns(first, size);
    let block = inverse.view((first, first), (size, size)).into_owned();
    match block.try_inverse() {
        Some(block) => (own * block).component_mul(&own).iter().sum(),
        None => 0.0,
    }
}

/// G⁻¹ and the weights without some signals, whose rows become zero.
fn leave(inverse: &mut DMatrix<f64>, output: &mut DMatrix<f64>, first: usize, size: usize) {
    let block = inverse.view((first, first), (size, size)).into_owned();
    if let Some(block) = block.try_inverse() {
        let rows = block * inverse.rows(first, size);
        let own = output.columns(first, size).into_owned();
        output.gemm(-1.0, &own, &rows, 1.0);
        let columns = inverse.columns(first, size).into_owned();
        inverse.gemm(-1.0, &columns, &rows, 1.0);
    }
}
