//! Units do not matter: powers of four in inputs, outputs, time and data, which rounding does not
//! touch, change every result by just that power.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use hankelite_control::{
    DiagonalSystem, InputWeight, ModalScore, Realisation, Reduced, Refinement, Time, balance,
    balance_for_dc, balance_over_horizon, balance_weighted, h2_error, h2_norm, h2_optimal,
    hankel_values, hinf_norm, modal_scores, reduce_over_horizon, weighted_error, weighted_refine,
    weighted_residues,
};
use nalgebra::DMatrix;
use num_complex::Complex64;

const LENGTH: usize = 48;

/// What a number is measured in.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Unit {
    /// Orders, conditions.
    None,
    /// 1/time.
    Rate,
    /// Output over input.
    Gain,
    /// Output over input and time.
    Residue,
    /// Output over input and the root of time; in discrete time output over input.
    H2,
    /// Output.
    Output,
}

/// Powers of two.
#[derive(Debug, Clone, Copy)]
struct Units {
    input: i32,
    output: i32,
    time: i32,
    data: i32,
}

impl Units {
    const SAME: Self = Self {
        input: 0,
        output: 0,
        time: 0,
        data: 0,
    };

    fn factor(self, unit: Unit, continuous: bool) -> f64 {
        let (gain, rate) = (self.input + self.output, -self.time);
        let power = match unit {
            Unit::None => 0,
            Unit::Rate => rate,
            Unit::Gain => gain,
            Unit::Residue if continuous => gain + rate,
            Unit::H2 if continuous => gain + rate / 2,
            Unit::Residue | Unit::H2 => gain,
            Unit::Output => gain + self.data,
        };
        2.0_f64.powi(power)
    }
}

/// Six pairs, two of them near, one slow, and a real pole.
fn system(continuous: bool, several: bool, units: Units) -> DiagonalSystem {
    let exponents = [
        (-0.5, 3.1),
        (-0.4, 0.0),
        (-1.5, -7.0),
        (-0.01, 0.2),
        (-0.011, 0.21),
        (-2.0, 5.0),
        (-0.2, 1.0),
    ];
    let rate = 2.0_f64.powi(-units.time);
    let exponents = exponents.map(|(re, im)| Complex64::new(re * rate, im * rate));
    let time = match continuous {
        true => Time::Continuous,
        false => Time::Discrete { step: 0.3 / rate },
    };
    // In continuous time a residue is a gain over a time.
    let more = if continuous { rate } else { 1.0 };
    let entry = |i: usize, j: usize, scale: f64| {
        let angle = (3 * i + 5 * j + 1) as f64;
        scale * Complex64::new(angle.sin(), (0.7 * angle).cos())
    };
    let (input, output) = (2.0_f64.powi(units.input) * more, 2.0_f64.powi(units.output));
    let (m, p) = if several { (2, 3) } else { (1, 1) };
    let n = exponents.len();
    DiagonalSystem::new(
        time,
        exponents.to_vec(),
        DMatrix::from_fn(n, m, |i, j| entry(i, j, input)),
        DMatrix::from_fn(p, n, |i, j| entry(j, i + 7, output)),
        DMatrix::from_fn(p, m, |i, j| {
            (i + 2 * j + 1) as f64 * 0.25 * input / more * output
        }),
    )
    .unwrap()
}

/// Numbers with their units.
#[derive(Default)]
struct Figures(Vec<(String, Unit, f64)>);

impl Figures {
    fn add(&mut self, name: &str, unit: Unit, value: f64) {
        self.0.push((name.to_string(), unit, value));
    }

    fn system(&mut self, name: &str, system: &DiagonalSystem) {
        for (n, pole) in system.exponents().iter().enumerate() {
            self.add(name, Unit::Rate, pole.re);
            self.add(name, Unit::Rate, pole.im);
            for b in &system.input().row(n) {
                for c in &system.output().column(n) {
                    self.add(name, Unit::Residue, (b * c).re);
                    self.add(name, Unit::Residue, (b * c).im);
                }
            }
        }
        for d in system.feedthrough() {
            self.add(name, Unit::Gain, *d);
        }
    }

    fn reduced(&mut self, name: &str, reduced: &Reduced) {
        self.system(name, &reduced.system);
        self.add(name, Unit::Gain, reduced.error_bound);
        self.add(name, Unit::None, reduced.order as f64);
    }

    fn values(&mut self, name: &str, unit: Unit, values: &[f64]) {
        values.iter().for_each(|value| self.add(name, unit, *value));
    }
}

/// What does not know of inputs.
fn figures(continuous: bool, several: bool, units: Units) -> Figures {
    let (mut found, system) = (Figures::default(), system(continuous, several, units));
    let stable = system.stable().unwrap();
    for realisation in [Realisation::Real, Realisation::Complex] {
        let values = hankel_values(stable, realisation).unwrap();
        found.values("Hankel values", Unit::Gain, values.values());
        let balanced = balance(stable, realisation).unwrap();
        found.reduced("truncation", &balanced.truncate(5).unwrap());
        let dc = balance_for_dc(stable, realisation).unwrap();
        found.reduced("residualisation", &dc.residualise(5).unwrap());
        let norm = hinf_norm(stable, realisation).unwrap();
        found.values("H-infinity norm", Unit::Gain, &[norm.value, norm.upper]);
        found.add(
            "its frequency",
            Unit::Rate,
            match continuous {
                true => norm.frequency,
                false => norm.frequency * 2.0_f64.powi(-units.time),
            },
        );
    }
    let balanced = balance(stable, Realisation::Real).unwrap();
    let small = balanced.truncate(6).unwrap().system;
    found.add("H2 norm", Unit::H2, h2_norm(stable).unwrap());
    let start = small.stable().unwrap();
    found.add("H2 error", Unit::H2, h2_error(stable, start).unwrap());
    let (optimal, _) = h2_optimal(stable, 6).unwrap();
    found.system("H2 optimal", &optimal.system);
    found.add("its error", Unit::H2, optimal.error);
    if !several {
        let best = balanced.hankel_norm(stable, 5).unwrap();
        found.reduced("Hankel norm", &best);
        for score in [ModalScore::H2, ModalScore::Hinf] {
            let scores = modal_scores(stable, score).unwrap();
            let unit = if score == ModalScore::H2 {
                Unit::H2
            } else {
                Unit::Gain
            };
            found.values("modal score", unit, &scores);
        }
    }
    found
}

/// What is weighted by inputs or by steps.
fn weighted_figures(units: Units) -> Figures {
    let (mut found, system) = (Figures::default(), system(false, false, units));
    let stable = system.stable().unwrap();
    let scale = 2.0_f64.powi(units.data);
    let sequences = DMatrix::from_fn(6, LENGTH, |n, t| {
        let t = t as f64;
        scale * ((0.3 * t + n as f64).sin() + (1.7 * t * t).cos())
    });
    let weight = InputWeight::moments(&sequences).unwrap();
    let spectrum = InputWeight::of_sequences(&sequences).unwrap();
    for (name, weight) in [("moments", &weight), ("spectrum", &spectrum)] {
        let balanced = balance_weighted(stable, weight).unwrap();
        found.values(name, Unit::Output, balanced.hankel().values());
        assert!(
            (0.0..1e-9).contains(&balanced.clipped()),
            "{}",
            balanced.clipped()
        );
        let cut = balanced.truncate(4).unwrap().system;
        found.system(name, &cut);
        found.add(
            name,
            Unit::Output,
            weighted_error(&system, &cut, weight).unwrap(),
        );
        let fitted = weighted_residues(&system, &cut, weight, 1e-6).unwrap();
        found.system("residues", &fitted);
        for refinement in [Refinement::Residues, Refinement::Full] {
            let refined =
                weighted_refine(&system, cut.stable().unwrap(), 1, weight, refinement).unwrap();
            found.system("weighted refinement", &refined.system);
            found.add("its error", Unit::Output, refined.error);
        }
    }
    let horizon = balance_over_horizon(&system, LENGTH, Realisation::Real).unwrap();
    found.values("over a horizon", Unit::Gain, horizon.hankel().values());
    found.system("over a horizon", &horizon.truncate(4).unwrap().system);
    let reduced = reduce_over_horizon(&system, 4, LENGTH).unwrap();
    found.system("reduced over a horizon", &reduced.system);
    found.values(
        "its kernel",
        Unit::Gain,
        &[reduced.kernel_error, reduced.kernel_norm],
    );
    found
}

fn compare(base: &Figures, other: &Figures, units: Units, continuous: bool) {
    assert_eq!(base.0.len(), other.0.len());
    for ((name, unit, value), (_, _, found)) in base.0.iter().zip(&other.0) {
        let expected = value * units.factor(*unit, continuous);
        // Full and reduced systems stand side by side in the norm of an error, and share their gains
        // between input and output otherwise, so that sums of both are rounded otherwise.
        let close = match unit {
            Unit::H2 => 1e-12,
            _ if units.input == units.output => 0.0,
            _ => 1e-9,
        };
        assert!(
            (found - expected).abs() <= close * expected.abs(),
            "{name} ({unit:?}): {found:e} for {expected:e}, {units:?}"
        );
    }
}

const CHANGES: [Units; 5] = [
    Units {
        input: 24,
        ..Units::SAME
    },
    Units {
        output: -32,
        ..Units::SAME
    },
    Units {
        input: 28,
        output: 28,
        ..Units::SAME
    },
    Units {
        time: 12,
        ..Units::SAME
    },
    Units {
        input: -40,
        output: -40,
        time: -8,
        data: 0,
    },
];

#[test]
fn units_of_inputs_outputs_and_time_do_not_matter() {
    for continuous in [true, false] {
        for several in [false, true] {
            let base = figures(continuous, several, Units::SAME);
            for units in CHANGES {
                let other = figures(continuous, several, units);
                compare(&base, &other, units, continuous);
            }
        }
    }
}

#[test]
fn units_do_not_matter_where_inputs_or_steps_count() {
    let base = weighted_figures(Units::SAME);
    let data = [20, -40].map(|data| Units {
        data,
        ..Units::SAME
    });
    for units in CHANGES.into_iter().chain(data) {
        compare(&base, &weighted_figures(units), units, false);
    }
}
