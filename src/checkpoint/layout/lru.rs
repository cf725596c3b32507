//! LRU, the linear recurrent unit: one discrete system for all channels, as minimal-LRU, compressm,
//! LRU-pytorch and lru-reduction store it.
//!
//! ```text
//! a = exp(−e^{nu_log} + i e^{theta_log})    B̄ = e^{gamma_log} ∘ B
//! x_k = a x_{k−1} + B̄ u_k,    y_k = Re(C x_k) + D u_k
//! ```
//!
//! B and C are pairs of real tensors or complex ones; D is a vector (per channel) or a matrix. Angles
//! are positive: of a mode with a negative one the conjugate is stored, which has the same real part,
//! and a positive real pole gets an angle of 1e-30, the same to the last digit. γ is the
//! √(1 − |a|²) of the public initialisation.

use hankelite_control::{DiagonalSystem, Time};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::encoded::off_diagonal;
use crate::checkpoint::layout::{
    Dynamics, Encoded, Layout, bank, not_representable, require_causal,
};
use crate::checkpoint::tensors::Tensors;

/// The angle that stands for a positive real pole.
pub(in crate::checkpoint) const REAL_POLE_ANGLE: f64 = 1e-30;

/// Modes as an LRU stores them: logarithms of decay, angle and gain, and maps beside the gain.
pub(super) struct Polar {
    /// ln(−ln |a|).
    pub(super) decay: Vec<f64>,
    /// The logarithm of the angle of a, in (0, π].
    pub(super) angle: Vec<f64>,
    /// ln √(1 − |a|²).
    pub(super) gain: Vec<f64>,
    /// What is left of B̄, modes × inputs.
    pub(super) input: DMatrix<Complex64>,
    /// C, outputs × modes.
    pub(super) output: DMatrix<Complex64>,
}

impl Polar {
    /// Of a mode with a negative angle the conjugate is stored.
    ///
    /// # Errors
    /// [`Fault::NotRepresentable`] for a mode that does not decay.
    pub(super) fn of(
        family: &'static str,
        layer: &str,
        system: &DiagonalSystem,
    ) -> Result<Self, Fault> {
        let (input, output) = (system.input().clone(), system.output().clone());
        let mut polar = Self {
            decay: vec![],
            angle: vec![],
            gain: vec![],
            input,
            output,
        };
        for (n, exponent) in system.scaled_exponents().into_iter().enumerate() {
            if exponent.re >= 0.0 {
                let why = "the layout stores ln(−ln |a|), so |a| must be below 1";
                return Err(not_representable(family, layer, 0, exponent, why));
            }
            polar.add(n, exponent);
        }
        Ok(polar)
    }

    fn add(&mut self, n: usize, exponent: Complex64) {
        let (mut row, mut column) = (self.input.row_mut(n), self.output.column_mut(n));
        // The principal angle: the pole is all that counts in discrete time.
        let turns = (exponent.im / std::f64::consts::TAU).round();
        let principal = exponent.im - turns * std::f64::consts::TAU;
        if principal < 0.0 {
            row.iter_mut().for_each(|b| *b = b.conj());
            column.iter_mut().for_each(|c| *c = c.conj());
        }
        // √(1 − |a|²)
        let log_gamma = 0.5 * (-(2.0 * exponent.re).exp_m1()).ln();
        row.iter_mut().for_each(|b| *b /= log_gamma.exp());
        self.decay.push((-exponent.re).ln());
        self.angle.push(principal.abs().max(REAL_POLE_ANGLE).ln());
        self.gain.push(log_gamma);
    }
}

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct Lru {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
}

impl Lru {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }

    /// A complex matrix, as one tensor or as two.
    fn matrix(&self, tensors: &Tensors<'_>, name: &str) -> Result<DMatrix<Complex64>, Fault> {
        let whole = self.name(name);
        let (shape, data) = match tensors.contains(&whole) {
            true => tensors.complex(&whole, &[])?,
            false => {
                let real = tensors.values(&self.name(&format!("{name}_re")), "a matrix")?;
                let expected = format!("{:?}, the shape of {name}_re", real.shape);
                let imaginary = self.name(&format!("{name}_im"));
                let imaginary = tensors.shaped(&imaginary, &[&real.shape], &expected)?;
                let parts = real.data.iter().zip(imaginary.data);
                let data = parts.map(|(&re, im)| Complex64::new(re, im)).collect();
                (real.shape, data)
            }
        };
        match shape.as_slice() {
            &[rows, columns] => Ok(DMatrix::from_row_slice(rows, columns, &data)),
            _ => Err(tensors.wrong_shape(&whole, shape, "a matrix")),
        }
    }

    fn encode_matrix(
        &self,
        name: &str,
        c: &DMatrix<Complex64>,
        tensors: &Tensors<'_>,
    ) -> Vec<Encoded> {
        if tensors.contains(&self.name(name)) {
            return vec![Encoded::pairs(self.name(name), c)];
        }
        let part = |suffix: &str, of: fn(Complex64) -> f64| {
            Encoded::matrix(self.name(&format!("{name}{suffix}")), &c.map(of))
        };
        vec![part("_re", |c| c.re), part("_im", |c| c.im)]
    }
}

impl Layout for Lru {
    fn family(&self) -> &'static str {
        "LRU"
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let decay = tensors.values(&self.name("nu_log"), "[modes]")?;
        let modes: &[usize] = &[decay.data.len()];
        let expected = format!("[{}]", decay.data.len());
        let read = |name: &str| {
            let values = tensors.shaped(&self.name(name), &[modes], &expected)?;
            Ok::<_, Fault>(values.data)
        };
        let (angle, gain) = (read("theta_log")?, read("gamma_log")?);
        let parts = decay.data.iter().zip(&angle);
        let exponents = parts.map(|(nu, theta)| Complex64::new(-nu.exp(), theta.exp()));
        let mut input = self.matrix(tensors, "B")?;
        let output = self.matrix(tensors, "C")?;
        for (mut row, log) in input.row_iter_mut().zip(&gain) {
            row *= Complex64::from(log.exp());
        }
        let (outputs, inputs) = (output.nrows(), input.ncols());
        let shapes: [&[usize]; 2] = [&[outputs, inputs], &[outputs]];
        let shapes = if outputs == inputs {
            &shapes[..]
        } else {
            &shapes[..1]
        };
        let expected = format!("[{outputs}] or [{outputs}, {inputs}]");
        let d = tensors.shaped(&self.name("D"), shapes, &expected)?;
        let through = match d.shape.len() {
            1 => DMatrix::from_diagonal(&d.data.into()),
            _ => DMatrix::from_row_slice(outputs, inputs, &d.data),
        };
        let time = Time::Discrete { step: 1.0 };
        let system = DiagonalSystem::new(time, exponents.collect(), input, output, through);
        let system = system.map_err(|source| bank::fault(&self.layer, 0, source))?;
        Ok(Dynamics::causal(vec![system]))
    }

    fn encode(&self, dynamics: &Dynamics, tensors: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let system = &require_causal(dynamics)?[0];
        let Polar {
            decay,
            angle,
            gain,
            input,
            output,
        } = Polar::of(self.family(), &self.layer, system)?;
        let order = system.order();
        let mut encoded = vec![
            Encoded::mode(self.name("nu_log"), vec![order], decay),
            Encoded::mode(self.name("theta_log"), vec![order], angle),
            Encoded::mode(self.name("gamma_log"), vec![order], gain),
        ];
        encoded.extend(self.encode_matrix("B", &input, tensors));
        encoded.extend(self.encode_matrix("C", &output, tensors));
        encoded.push(self.encode_feedthrough(system.feedthrough(), tensors)?);
        Ok(encoded)
    }
}

impl Lru {
    fn encode_feedthrough(
        &self,
        d: &DMatrix<f64>,
        tensors: &Tensors<'_>,
    ) -> Result<Encoded, Fault> {
        let name = self.name("D");
        if tensors.rank(&name) == Some(2) {
            return Ok(Encoded::feedthrough(
                name,
                d.transpose().as_slice().to_vec(),
            ));
        }
        let dense = !d.is_square() || off_diagonal(d).is_some();
        if dense && !tensors.contains(&name) {
            return Ok(Encoded::dense(name, d));
        }
        Encoded::diagonal(&self.layer, name, d)
    }
}
