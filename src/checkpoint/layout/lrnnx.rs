//! S5 of lrnnx 1.0, in the two forms that the package has.
//!
//! ```text
//! Δ = e^{log_dt}, one for each mode
//! `lrnnx/models/lti/s5.py`   λ = −softplus(A_0) + i A_1    B real      y = Re(C x) + Dᵀ u
//! `lrnnx/models/ltv/s5.py`   λ = A_0 + i A_1               B complex   y = s Re(C x) + D ∘ u
//! zoh        a = e^{λΔ}                   B̄ = (e^{λΔ} − 1)/λ · B
//! dirac      a = e^{λΔ}                   B̄ = B
//! bilinear   a = (1 + λΔ/2)/(1 − λΔ/2)    B̄ = Δ/(1 − λΔ/2) · B
//! x_k = a x_{k−1} + B̄ u_k
//! ```
//!
//! The first form stores all modes. The bilinear formula of its package has the signs the other way
//! round, so that every mode that decays grows: it is refused. The second form is that for events,
//! read with one step between them; s = 2 with `conj_sym`.
//!
//! With a real B the inputs reach a mode in one phase. Truncations of several inputs have modes that
//! they reach in phases of their own, which the first form cannot hold ([`SystemClass::RealInputs`]): c bᵀ
//! would take two of its modes, c Re bᵀ and i c Im bᵀ. LRU holds them, with D as a matrix.

use hankelite_control::{DiagonalSystem, SystemClass, Time, from_bilinear, to_bilinear, zoh_gain};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::checkpoint::declared::{Declared, Discretisation};
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::phase::{is_real, turn_phases};
use crate::checkpoint::layout::transform::Transform;
use crate::checkpoint::layout::{
    Dynamics, Encoded, Layout, bank, not_representable, require_causal,
};
use crate::checkpoint::tensors::Tensors;

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct Lrnnx {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
    pub(in crate::checkpoint) settled: Declared,
}

impl Lrnnx {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }

    /// Whether a layer is of the form for events: B has a last axis (re, im).
    fn is_of_events(&self, tensors: &Tensors<'_>) -> bool {
        tensors.rank(&self.name("B")) == Some(3)
    }

    fn factor(&self) -> f64 {
        match self.settled.conj_sym {
            Some(true) => 2.0,
            _ => 1.0,
        }
    }

    fn bilinear(&self) -> bool {
        self.settled.discretisation == Some(Discretisation::Bilinear)
    }

    /// Exponent times step, and the factor of B.
    fn discretised(&self, lambda: Complex64, step: f64) -> (Complex64, Complex64) {
        let z = lambda * step;
        match self.settled.discretisation {
            Some(Discretisation::Bilinear) => (from_bilinear(z), step / (1.0 - 0.5 * z)),
            Some(Discretisation::Dirac) => (z, Complex64::ONE),
            _ => (z, zoh_gain(lambda, step)),
        }
    }

    fn steps(&self, tensors: &Tensors<'_>) -> Result<Vec<f64>, Fault> {
        let logs = tensors.values(&self.name("log_dt"), "[modes]")?;
        match logs.shape.len() {
            1 => Ok(logs.data.into_iter().map(f64::exp).collect()),
            _ => Err(tensors.wrong_shape(&self.name("log_dt"), logs.shape, "[modes]")),
        }
    }

    fn lambdas(&self, tensors: &Tensors<'_>, modes: usize) -> Result<Vec<Complex64>, Fault> {
        let poles = tensors.real_matrix(&self.name("A"), [Some(modes), Some(2)])?;
        let events = self.is_of_events(tensors);
        let real = |x: f64| match events {
            true => x,
            false => -Transform::Softplus.apply(x),
        };
        let rows = poles.row_iter();
        Ok(rows
            .map(|row| Complex64::new(real(row[0]), row[1]))
            .collect())
    }

    /// B, modes × inputs.
    fn input(&self, tensors: &Tensors<'_>, modes: usize) -> Result<DMatrix<Complex64>, Fault> {
        let axes = [Some(modes), None];
        match self.is_of_events(tensors) {
            true => tensors.complex_matrix(&self.name("B"), axes),
            false => Ok(tensors
                .real_matrix(&self.name("B"), axes)?
                .map(Complex64::from)),
        }
    }

    fn through(
        &self,
        tensors: &Tensors<'_>,
        [outputs, inputs]: [usize; 2],
    ) -> Result<DMatrix<f64>, Fault> {
        let name = self.name("D");
        if self.is_of_events(tensors) {
            let expected = format!("[{outputs}]");
            let d = tensors.shaped(&name, &[&[outputs.min(inputs)]], &expected)?;
            return Ok(DMatrix::from_diagonal(&d.data.into()));
        }
        let d = tensors.real_matrix(&name, [Some(inputs), Some(outputs)])?;
        Ok(d.transpose())
    }

    /// A of every mode, whose step is 1.
    fn encode_poles(&self, lambdas: &[Complex64], events: bool) -> Result<Vec<Encoded>, Fault> {
        let modes = lambdas.len();
        let mut poles = Vec::with_capacity(2 * modes);
        for &lambda in lambdas {
            let real = match events {
                true => Ok(lambda.re),
                false => Transform::Softplus.invert(-lambda.re),
            };
            let real =
                real.map_err(|why| not_representable(self.family(), &self.layer, 0, lambda, why))?;
            poles.extend([real, lambda.im]);
        }
        Ok(vec![
            Encoded::mode(self.name("log_dt"), vec![modes], vec![0.0; modes]),
            Encoded::mode(self.name("A"), vec![modes, 2], poles),
        ])
    }

    /// Refuses rows of B that are not real.
    fn require_real(&self, lambdas: &[Complex64], input: &DMatrix<Complex64>) -> Result<(), Fault> {
        let mut rows = input.row_iter().zip(lambdas);
        let Some((_, &lambda)) = rows.find(|(row, _)| !is_real(row.iter())) else {
            return Ok(());
        };
        let why = "B of the layout is real, and inputs reach this mode in phases of their own; --method \
                   in-layout keeps B real (`compress-model reduce`), `convert --to lru` writes a layout \
                   that holds all";
        Err(not_representable(
            self.family(),
            &self.layer,
            0,
            lambda,
            why,
        ))
    }

    fn encode_input(&self, input: &DMatrix<Complex64>, events: bool) -> Encoded {
        match events {
            true => Encoded::pairs(self.name("B"), input),
            false => Encoded::matrix(self.name("B"), &input.map(|b| b.re)),
        }
    }

    fn encode_feedthrough(&self, d: &DMatrix<f64>, events: bool) -> Result<Encoded, Fault> {
        let name = self.name("D");
        if !events {
            // The file has the inputs on its rows.
            return Ok(Encoded::feedthrough(name, d.as_slice().to_vec()));
        }
        Encoded::diagonal(&self.layer, name, d)
    }
}

impl Layout for Lrnnx {
    fn family(&self) -> &'static str {
        "S5 (lrnnx)"
    }

    fn steps_of_modes(&self, tensors: &Tensors<'_>) -> Result<Option<Vec<f64>>, Fault> {
        self.steps(tensors).map(Some)
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let steps = tensors.at_rate(self.steps(tensors)?);
        let modes = steps.len();
        let lambdas = self.lambdas(tensors, modes)?;
        let mut input = self.input(tensors, modes)?;
        let output = tensors.complex_matrix(&self.name("C"), [None, Some(modes)])?;
        let through = self.through(tensors, [output.nrows(), input.ncols()])?;
        let mut exponents = Vec::with_capacity(modes);
        for (n, (&lambda, &step)) in lambdas.iter().zip(&steps).enumerate() {
            let (exponent, gain) = self.discretised(lambda, step);
            exponents.push(exponent);
            input.row_mut(n).iter_mut().for_each(|b| *b *= gain);
        }
        let time = Time::Discrete { step: 1.0 };
        let output = output * Complex64::from(self.factor());
        let system = DiagonalSystem::new(time, exponents, input, output, through);
        let system = system.map_err(|source| bank::fault(&self.layer, 0, source))?;
        Ok(Dynamics::causal(vec![system]))
    }

    fn encode(&self, dynamics: &Dynamics, tensors: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let system = &require_causal(dynamics)?[0];
        let events = self.is_of_events(tensors);
        let lambdas = system.scaled_exponents().into_iter();
        let lambdas = lambdas.map(|z| if self.bilinear() { to_bilinear(z) } else { z });
        let lambdas: Vec<Complex64> = lambdas.collect();
        let mut input = system.input().clone();
        for (mut row, &lambda) in input.row_iter_mut().zip(&lambdas) {
            let gain = self.discretised(lambda, 1.0).1;
            row.iter_mut().for_each(|b| *b /= gain);
        }
        let mut output = system.output() * Complex64::from(1.0 / self.factor());
        if !events {
            turn_phases(&mut input, &mut output);
            self.require_real(&lambdas, &input)?;
        }
        let mut encoded = self.encode_poles(&lambdas, events)?;
        encoded.push(self.encode_input(&input, events));
        encoded.push(Encoded::pairs(self.name("C"), &output));
        encoded.push(self.encode_feedthrough(system.feedthrough(), events)?);
        Ok(encoded)
    }

    fn class(&self, tensors: &Tensors<'_>) -> Option<SystemClass> {
        (!self.is_of_events(tensors)).then_some(SystemClass::RealInputs)
    }
}
