//! LinOSS and D-LinOSS: oscillators with one step each, for all inputs and outputs (tk-rusch/linoss,
//! `models/LinOSS.py`; jaredbmit/damped-linoss, `src/damped_linoss/models/LinOSS.py`).
//!
//! ```text
//! Δ = σ(steps)   a = max(A_diag, 0)   z, x: velocity and place of an oscillator, of complex numbers
//! im     z' = z − Δ a x' − Δ g z' + Δ B u    x' = x + Δ z'
//! imex   z' = z − Δ a x  − Δ g z' + Δ B u    x' = x + Δ z'
//! imex2  z' = z − Δ a x  − Δ g z  + Δ B u    x' = x + Δ z'
//! ex     z' = z − Δ a x  − Δ g z  + Δ B u    x' = x + Δ z
//! y = Re(C x') + D ∘ u
//! ```
//!
//! LinOSS has no damping, g = 0, and the first two; D-LinOSS has `G_diag`, and moves (a, g) to where the
//! poles are a conjugate pair within the unit circle or on it ([`Oscillator::damped`]). No tensor records
//! which it is. \[z, x\] has a 2 × 2 matrix M with the eigenvalues p₁, p₂, and
//!
//! ```text
//! M^t = (p₁^t (M − p₂) − p₂^t (M − p₁))/(p₁ − p₂)
//! ```
//!
//! so that each oscillator is two stored modes. The poles of `im` without damping lie on the circle
//! |p − ½| = ½, those of `imex` on the unit circle, and residues have the phase that a pole gives them
//! ([`SystemClass::Oscillators`]). What is written has Δ = ½ throughout: a and g take up the rest.

use hankelite_control::{DiagonalSystem, OscillatorPoles, SystemClass, Time};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::checkpoint::declared::Discretisation;
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::transform::Transform;
use crate::checkpoint::layout::{
    Dynamics, Encoded, Layout, bank, not_representable, require_causal,
};
use crate::checkpoint::tensors::Tensors;

/// What a pair of poles is parted by, over the distance from the unit circle, where they meet.
const APART: f64 = 1e-4;

/// The same on the unit circle.
const APART_AT_ONE: f64 = 1e-7;

/// The step of what is written.
const STEP: f64 = 0.5;

/// How far a pole may be from the one that is written: over the smaller of its distances from the unit
/// circle and from the real axis; next to the circle over the latter.
const SAME: (f64, f64) = (1e-3, 1e-9);

/// The largest difference of weights of a conjugate pair, relative to them.
const SAME_WEIGHT: f64 = 1e-6;

/// The smallest Δ² that bounds of a are divided by.
const STEP_SQUARE_MIN: f64 = 1e-6;

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct LinOss {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
    pub(in crate::checkpoint) discretisation: Discretisation,
}

/// One oscillator, discretised.
struct Oscillator {
    /// Rows of M.
    matrix: [[f64; 2]; 2],
    /// What B u goes through to z and x.
    input: [f64; 2],
}

/// The share of a pole in x.
struct Share {
    pole: Complex64,
    weight: Complex64,
}

/// What a file holds of an oscillator: a, g and Δ.
#[derive(Clone, Copy)]
struct Stored {
    stiffness: f64,
    damping: f64,
    step: f64,
}

impl Stored {
    /// a and g as D-LinOSS moves them.
    fn damped(self, form: Discretisation) -> Self {
        let Self {
            stiffness: a,
            damping: g,
            step: dt,
        } = self;
        let square = (dt * dt).max(STEP_SQUARE_MIN);
        let (low, high, g) = match form {
            Discretisation::Imex => {
                let g = g.max(0.0);
                let (middle, half) = (2.0 + dt * g, 2.0 * (1.0 + dt * g).sqrt());
                ((middle - half) / square, (middle + half) / square, g)
            }
            Discretisation::Imex2 => {
                let g = g.max(0.0);
                let (middle, half) = (2.0 - dt * g, 2.0 * (1.0 - dt * g).sqrt());
                ((middle - half) / square, (middle + half) / square, g)
            }
            Discretisation::Ex => {
                let g = g.max(dt * a);
                (0.25 * g * g, f64::INFINITY, g)
            }
            _ => {
                let g = g.max(-dt * a);
                (0.25 * g * g, f64::INFINITY, g)
            }
        };
        Self {
            stiffness: low + (a - low).max(0.0) - (a - high).max(0.0),
            damping: g,
            step: dt,
        }
    }

    /// The oscillator with a pole p in the upper half plane, from the trace 2 Re p and the determinant
    /// |p|² of its matrix.
    fn of_pole(pole: Complex64, form: Discretisation, damped: bool) -> Self {
        let (square, real) = (pole.norm_sqr(), pole.re);
        let (a, g) = match (form, damped) {
            (Discretisation::Imex, true) => {
                let s = square.recip();
                (s + 1.0 - 2.0 * real * s, s - 1.0)
            }
            (Discretisation::Imex, false) => (2.0 - 2.0 * real, 0.0),
            (Discretisation::Imex2, _) => (1.0 + square - 2.0 * real, 1.0 - square),
            (Discretisation::Ex, _) => (1.0 + square - 2.0 * real, 2.0 - 2.0 * real),
            (_, true) => {
                let s = square.recip();
                (s + 1.0 - 2.0 * real * s, 2.0 * real * s - 2.0)
            }
            (_, false) => (square.recip() - 1.0, 0.0),
        };
        Self {
            stiffness: a / (STEP * STEP),
            damping: g / STEP,
            step: STEP,
        }
    }

    fn discretised(self, form: Discretisation) -> Oscillator {
        let Self {
            stiffness: a,
            damping: g,
            step: dt,
        } = self;
        let (matrix, input) = match form {
            Discretisation::Imex => {
                let s = 1.0 + dt * g;
                (
                    [[1.0 / s, -dt * a / s], [dt / s, 1.0 - dt * dt * a / s]],
                    [dt / s, dt * dt / s],
                )
            }
            Discretisation::Imex2 => {
                let kept = 1.0 - dt * g;
                (
                    [[kept, -dt * a], [dt * kept, 1.0 - dt * dt * a]],
                    [dt, dt * dt],
                )
            }
            Discretisation::Ex => ([[1.0 - dt * g, -dt * a], [dt, 1.0]], [dt, 0.0]),
            _ => {
                let s = 1.0 + dt * g + dt * dt * a;
                (
                    [[1.0 / s, -dt * a / s], [dt / s, (1.0 + dt * g) / s]],
                    [dt / s, dt * dt / s],
                )
            }
        };
        Oscillator { matrix, input }
    }
}

impl Oscillator {
    /// The two poles, and whether they had to be parted.
    fn shares(&self) -> ([Share; 2], bool) {
        let [[a, b], [c, d]] = self.matrix;
        let middle = 0.5 * (a + d);
        // (a + d)²/4 − det
        let square = 0.25 * (a - d) * (a - d) + b * c;
        let apart = (APART * (1.0 - middle.abs())).max(APART_AT_ONE);
        let meet = square.abs() < apart * apart;
        let half = match meet {
            true => Complex64::new(0.0, apart),
            false => Complex64::from(square).sqrt(),
        };
        let share = |half: Complex64| {
            let (pole, other) = (middle + half, middle - half);
            let through = c * self.input[0] + (d - other) * self.input[1];
            Share {
                pole,
                weight: through / (2.0 * half),
            }
        };
        ([share(half), share(-half)], meet)
    }
}

impl LinOss {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }

    fn oscillators(&self, tensors: &Tensors<'_>) -> Result<Vec<Oscillator>, Fault> {
        let a = tensors.values(&self.name("A_diag"), "[oscillators]")?;
        let shape: &[usize] = &[a.data.len()];
        let expected = format!("{shape:?}");
        let steps = match tensors.contains(&self.name("steps")) {
            true => "steps",
            false => "dt",
        };
        let steps = tensors.shaped(&self.name(steps), &[shape], &expected)?;
        let damping = match tensors.contains(&self.name("G_diag")) {
            true => Some(tensors.shaped(&self.name("G_diag"), &[shape], &expected)?),
            false => None,
        };
        let oscillators = (0..a.data.len()).map(|n| {
            let stored = Stored {
                stiffness: a.data[n],
                damping: damping.as_ref().map_or(0.0, |damping| damping.data[n]),
                step: Transform::Sigmoid.apply(steps.data[n]),
            };
            self.oscillator(stored, damping.is_some())
        });
        Ok(oscillators.collect())
    }

    /// What the network makes of stored numbers.
    fn oscillator(&self, stored: Stored, damped: bool) -> Oscillator {
        let stored = match damped {
            true => stored.damped(self.discretisation),
            false => Stored {
                stiffness: stored.stiffness.max(0.0),
                ..stored
            },
        };
        stored.discretised(self.discretisation)
    }

    fn is_damped(&self, tensors: &Tensors<'_>) -> bool {
        tensors.contains(&self.name("G_diag"))
    }

    /// Numbers of the oscillator of two modes, and its column of C; none where they are no oscillator.
    fn stored(
        &self,
        system: &DiagonalSystem,
        first: usize,
        damped: bool,
    ) -> Option<(Stored, Vec<Complex64>)> {
        let poles = [first, first + 1].map(|n| system.scaled_exponents()[n].exp());
        let upper = if poles[0].im >= 0.0 { 0 } else { 1 };
        let stored = Stored::of_pole(poles[upper], self.discretisation, damped);
        let (mut shares, _) = self.oscillator(stored, damped).shares();
        if (shares[0].pole.im >= 0.0) != (upper == 0) {
            shares.swap(0, 1);
        }
        let near = poles.iter().zip(&shares).all(|(pole, share)| {
            let from_axis = pole.im.abs();
            let room = (SAME.0 * from_axis.min(1.0 - pole.norm())).max(SAME.1 * from_axis);
            (pole - share.pole).norm() <= room
        });
        let column = |k: usize| {
            let output = system.output().column(first + k);
            output.iter().map(|c| c / shares[k].weight).collect()
        };
        let (one, other): (Vec<Complex64>, Vec<_>) = (column(0), column(1));
        let (inputs, others) = (system.input().row(first), system.input().row(first + 1));
        let same = |a: &mut dyn Iterator<Item = (Complex64, Complex64)>| {
            let (change, size) = a.fold((0.0, 0.0), |(change, size): (f64, f64), (a, b)| {
                (change + (a - b).norm_sqr(), size + a.norm_sqr())
            });
            change.sqrt() <= SAME_WEIGHT * size.sqrt()
        };
        let alike = same(&mut one.iter().copied().zip(other))
            && same(&mut inputs.iter().copied().zip(others.iter().copied()));
        (near && alike).then_some((stored, one))
    }

    fn refused(&self, system: &DiagonalSystem, mode: usize) -> Fault {
        let pole = system.exponents().get(mode).copied().unwrap_or_default();
        let why = "the layout holds oscillators, whose poles and residues are tied to one another: \
                   --method in-layout finds such (`compress-model reduce`), `convert --to s5` writes a \
                   layout that holds all";
        not_representable(self.family(), &self.layer, 0, pole, why)
    }
}

impl Layout for LinOss {
    fn family(&self) -> &'static str {
        "LinOSS"
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let oscillators = self.oscillators(tensors)?;
        let count = oscillators.len();
        let b = tensors.complex_matrix(&self.name("B"), [Some(count), None])?;
        let c = tensors.complex_matrix(&self.name("C"), [None, Some(count)])?;
        let (inputs, outputs) = (b.ncols(), c.nrows());
        let expected = format!("[{outputs}]");
        let d = tensors.shaped(&self.name("D"), &[&[outputs]], &expected)?;
        if inputs != outputs {
            let expected = format!("[{count}, {outputs}, 2]");
            return Err(tensors.wrong_shape(&self.name("B"), vec![count, inputs, 2], &expected));
        }
        let (mut exponents, mut met) = (Vec::with_capacity(2 * count), 0);
        let mut input = DMatrix::zeros(2 * count, inputs);
        let mut output = DMatrix::zeros(outputs, 2 * count);
        for (n, oscillator) in oscillators.iter().enumerate() {
            let (shares, meet) = oscillator.shares();
            met += usize::from(meet);
            for (k, Share { pole, weight }) in shares.into_iter().enumerate() {
                exponents.push(pole.ln());
                input.set_row(2 * n + k, &b.row(n));
                output.set_column(2 * n + k, &(c.column(n) * weight));
            }
        }
        let time = Time::Discrete { step: 1.0 };
        let through = DMatrix::from_diagonal(&d.data.into());
        let system = DiagonalSystem::new(time, exponents, input, output, through);
        let system = system.map_err(|source| bank::fault(&self.layer, 0, source))?;
        let note = (met > 0).then(|| {
            format!(
                "`{}`: the two poles of {met} oscillators are one, which no diagonal system has: they are \
                 read as a pair next to it",
                self.layer
            )
        });
        Ok(Dynamics {
            note,
            ..Dynamics::causal(vec![system])
        })
    }

    fn encode(&self, dynamics: &Dynamics, tensors: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let system = &require_causal(dynamics)?[0];
        let (damped, count) = (self.is_damped(tensors), system.order() / 2);
        if system.order() % 2 != 0 {
            return Err(self.refused(system, system.order() - 1));
        }
        let (inputs, outputs) = (system.input().ncols(), system.output().nrows());
        let mut input = DMatrix::zeros(count, inputs);
        let mut output = DMatrix::zeros(outputs, count);
        let (mut stiffness, mut damping) = (Vec::new(), Vec::new());
        for n in 0..count {
            let found = self.stored(system, 2 * n, damped);
            let (stored, column) = found.ok_or_else(|| self.refused(system, 2 * n))?;
            stiffness.push(stored.stiffness);
            damping.push(stored.damping);
            input.set_row(n, &system.input().row(2 * n));
            output.column_mut(n).copy_from_slice(&column);
        }
        let steps = if tensors.contains(&self.name("steps")) {
            "steps"
        } else {
            "dt"
        };
        let step = Transform::Sigmoid.invert(STEP).unwrap_or(0.0);
        let mut encoded = vec![
            Encoded::mode(self.name("A_diag"), vec![count], stiffness),
            Encoded::mode(self.name(steps), vec![count], vec![step; count]),
            Encoded::pairs(self.name("B"), &input),
            Encoded::pairs(self.name("C"), &output),
        ];
        if damped {
            encoded.push(Encoded::mode(self.name("G_diag"), vec![count], damping));
        }
        let through = system.feedthrough();
        encoded.push(Encoded::diagonal(&self.layer, self.name("D"), through)?);
        Ok(encoded)
    }

    fn class(&self, tensors: &Tensors<'_>) -> Option<SystemClass> {
        let poles = match (self.discretisation, self.is_damped(tensors)) {
            (Discretisation::Ex, _) => OscillatorPoles::DiskDelayed,
            (_, true) | (Discretisation::Imex2, _) => OscillatorPoles::Disk,
            (Discretisation::Imex, false) => OscillatorPoles::UnitCircle,
            _ => OscillatorPoles::HalfCircle,
        };
        Some(SystemClass::Oscillators(poles))
    }
}
