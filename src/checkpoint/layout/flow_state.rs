//! FlowState (ibm-granite/granite-tsfm, `tsfm_public/models/flowstate/modeling_flowstate.py`): S5 with a
//! step for each mode, run at steps of any scale.
//!
//! ```text
//! λ = −e^{log_Lambda_real} + i Lambda_imag    Δ = e^{log_Delta}, one for each mode    s = scale_factor
//! a = e^{s λ Δ}    B̄ = (a − 1)/λ · (B_tilde_r + i B_tilde_i)
//! x_k = a x_{k−1} + B̄ u_k,    o_k = Re((C_tilde_r + i C_tilde_i) x_k)
//! r1    y = o + D ∘ u             r1.1    y = σ(W_g o + b_g) ∘ o + D ∘ u
//! ```
//!
//! All modes are stored; read with s = 1. Where there is an `output_gate`, it stands between C and D, so
//! that D is not the feedthrough of the system whose output is o: that is zero and has no tensor, and D
//! is copied. What is written has Δ = 1 for every mode.

use hankelite_control::{DiagonalSystem, Time, zoh_gain};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::checkpoint::declared::AnyStep;
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::{
    Dynamics, Encoded, Layout, bank, not_representable, require_causal,
};
use crate::checkpoint::tensors::Tensors;

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct FlowState {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
    /// Name of D, where it is the feedthrough.
    pub(in crate::checkpoint) feedthrough: Option<String>,
}

impl FlowState {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }

    /// One number for each mode.
    fn of_modes(&self, tensors: &Tensors<'_>, name: &str, modes: usize) -> Result<Vec<f64>, Fault> {
        let expected = format!("[{modes}]");
        Ok(tensors
            .shaped(&self.name(name), &[&[modes]], &expected)?
            .data)
    }

    /// Real and imaginary part in tensors of their own.
    fn matrix(
        &self,
        tensors: &Tensors<'_>,
        name: &str,
        axes: [Option<usize>; 2],
    ) -> Result<DMatrix<Complex64>, Fault> {
        let part = |ending| self.name(&format!("{name}_{ending}"));
        let real = tensors.real_matrix(&part("r"), axes)?;
        let axes = [real.nrows(), real.ncols()].map(Some);
        let imaginary = tensors.real_matrix(&part("i"), axes)?;
        Ok(real.zip_map(&imaginary, Complex64::new))
    }

    fn encode_matrix(&self, name: &str, matrix: &DMatrix<Complex64>) -> [Encoded; 2] {
        let rows = matrix.transpose();
        let part = |ending: &str, of: fn(&Complex64) -> f64| {
            let shape = vec![matrix.nrows(), matrix.ncols()];
            let data = rows.iter().map(of).collect();
            Encoded::mode(self.name(&format!("{name}_{ending}")), shape, data)
        };
        [part("r", |z| z.re), part("i", |z| z.im)]
    }

    /// Both parts of λ, with Δ = 1.
    fn encode_poles(&self, lambdas: &[Complex64]) -> Result<[Encoded; 3], Fault> {
        if let Some(lambda) = lambdas.iter().find(|lambda| lambda.re >= 0.0) {
            let why = "the layout stores ln(−Re λ), so that Re λ must be below 0";
            return Err(not_representable(
                self.family(),
                &self.layer,
                0,
                *lambda,
                why,
            ));
        }
        let shape = || vec![lambdas.len()];
        let decays = lambdas.iter().map(|lambda| (-lambda.re).ln()).collect();
        let turns = lambdas.iter().map(|lambda| lambda.im).collect();
        Ok([
            Encoded::mode(self.name("log_Lambda_real"), shape(), decays),
            Encoded::mode(self.name("Lambda_imag"), shape(), turns),
            Encoded::mode(self.name("log_Delta"), shape(), vec![0.0; lambdas.len()]),
        ])
    }
}

impl Layout for FlowState {
    fn family(&self) -> &'static str {
        "FlowState"
    }

    fn at_any_step(&self) -> Option<AnyStep> {
        Some(AnyStep::Held)
    }

    fn steps_of_modes(&self, tensors: &Tensors<'_>) -> Result<Option<Vec<f64>>, Fault> {
        let logs = tensors.values(&self.name("log_Delta"), "[modes]")?.data;
        Ok(Some(logs.into_iter().map(f64::exp).collect()))
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let decays = tensors
            .values(&self.name("log_Lambda_real"), "[modes]")?
            .data;
        let modes = decays.len();
        let turns = self.of_modes(tensors, "Lambda_imag", modes)?;
        let logs = self.of_modes(tensors, "log_Delta", modes)?;
        let steps = tensors.at_rate(logs.into_iter().map(f64::exp).collect());
        let mut input = self.matrix(tensors, "B_tilde", [Some(modes), None])?;
        let output = self.matrix(tensors, "C_tilde", [None, Some(modes)])?;
        let mut exponents = Vec::with_capacity(modes);
        for (n, (decay, turn)) in decays.iter().zip(turns).enumerate() {
            let (lambda, step) = (Complex64::new(-decay.exp(), turn), steps[n]);
            exponents.push(lambda * step);
            input
                .row_mut(n)
                .iter_mut()
                .for_each(|b| *b *= zoh_gain(lambda, step));
        }
        let (outputs, inputs) = (output.nrows(), input.ncols());
        let through = match &self.feedthrough {
            None => DMatrix::zeros(outputs, inputs),
            Some(name) => {
                let expected = format!("[{outputs}], with as many inputs as outputs");
                let found = tensors.shaped(name, &[&[outputs.min(inputs)]], &expected)?;
                DMatrix::from_diagonal(&found.data.into())
            }
        };
        let time = Time::Discrete { step: 1.0 };
        let system = DiagonalSystem::new(time, exponents, input, output, through);
        let system = system.map_err(|source| bank::fault(&self.layer, 0, source))?;
        Ok(Dynamics::causal(vec![system]))
    }

    fn encode(&self, dynamics: &Dynamics, _: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let system = &require_causal(dynamics)?[0];
        let lambdas = system.scaled_exponents();
        let mut encoded = Vec::from(self.encode_poles(&lambdas)?);
        let mut input = system.input().clone();
        for (mut row, &lambda) in input.row_iter_mut().zip(&lambdas) {
            row.iter_mut().for_each(|b| *b /= zoh_gain(lambda, 1.0));
        }
        encoded.extend(self.encode_matrix("B_tilde", &input));
        encoded.extend(self.encode_matrix("C_tilde", system.output()));
        if let Some(name) = &self.feedthrough {
            let through = system.feedthrough();
            encoded.push(Encoded::diagonal(&self.layer, name.clone(), through)?);
        }
        Ok(encoded)
    }
}
