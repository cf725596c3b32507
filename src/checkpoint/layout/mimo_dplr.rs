//! Hand-written S4 in diagonal-plus-low-rank form whose channels share one system: all modes are
//! stored, one step for all.
//!
//! ```text
//! z' = (Λ − P P*) z + B u    y = Re(C z) + D ∘ u    Δ = e^{log_step}
//! dA = (I − ΔA/2)⁻¹ (I + ΔA/2)    dB = Δ (I − ΔA/2)⁻¹ B
//! ```
//!
//! It becomes diagonal as [`crate::checkpoint::layout::dplr`] does it.

use hankelite_control::DiagonalSystem;
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::checkpoint::declared::Declared;
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::annotated_dplr::dense;
use crate::checkpoint::layout::dplr::{HORIZON, Report, made_diagonal};
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, bank};
use crate::checkpoint::tensors::Tensors;

/// What the logarithm of the step is called.
const STEPS: [&str; 2] = ["log_step", "log_dt"];

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct MimoDplr {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
    pub(in crate::checkpoint) settled: Declared,
}

impl MimoDplr {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }

    fn lambdas(&self, tensors: &Tensors<'_>) -> Result<Vec<Complex64>, Fault> {
        let whole = self.name("Lambda");
        if tensors.contains(&whole) {
            let (shape, values) = tensors.complex(&whole, &[])?;
            return match shape.len() {
                1 => Ok(values),
                _ => Err(tensors.wrong_shape(&whole, shape, "[modes], one set for all channels")),
            };
        }
        let name = self.name("Lambda_re");
        let real = tensors.values(&name, "[modes]")?;
        if real.shape.len() != 1 {
            let expected = "[modes], one set for all channels";
            return Err(tensors.wrong_shape(&name, real.shape, expected));
        }
        let expected = format!("{:?}", real.shape);
        let name = self.name("Lambda_im");
        let imaginary = tensors.shaped(&name, &[&real.shape], &expected)?;
        let parts = real.data.iter().zip(imaginary.data);
        Ok(parts.map(|(&re, im)| Complex64::new(re, im)).collect())
    }

    /// P, which is a vector where its rank is one.
    fn low_rank(&self, tensors: &Tensors<'_>, modes: usize) -> Result<DMatrix<Complex64>, Fault> {
        let name = self.name("P");
        if tensors.shape(&name) == Some(&[modes]) {
            let (_, values) = tensors.complex(&name, &[])?;
            return Ok(DMatrix::from_vec(modes, 1, values));
        }
        tensors.complex_matrix(&name, [Some(modes), None])
    }

    fn step(&self, tensors: &Tensors<'_>) -> Result<f64, Fault> {
        let mut names = STEPS.iter().map(|name| self.name(name));
        let name = names.find(|name| tensors.contains(name));
        let name = name.unwrap_or_else(|| self.name(STEPS[0]));
        let shapes: [&[usize]; 3] = [&[], &[1], &[1, 1]];
        let found = tensors.shaped(&name, &shapes, "[1], one step for all modes")?;
        Ok(found.data[0].exp())
    }
}

impl Layout for MimoDplr {
    fn family(&self) -> &'static str {
        "S4 (DPLR), one system for all channels"
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let lambdas = self.lambdas(tensors)?;
        let modes = lambdas.len();
        let low_rank = self.low_rank(tensors, modes)?;
        let input = tensors.complex_matrix(&self.name("B"), [Some(modes), None])?;
        let channels = input.ncols();
        let output = tensors.complex_matrix(&self.name("C"), [Some(channels), Some(modes)])?;
        let step = self.step(tensors)?;
        let d = self.name("D");
        let through = match tensors.contains(&d) {
            true => {
                tensors
                    .shaped(&d, &[&[channels]], &format!("[{channels}]"))?
                    .data
            }
            false => vec![0.0; channels],
        };
        let order = self.settled.diagonalise.unwrap_or(modes).min(2 * modes);
        let report = Report {
            layer: &self.layer,
            modes,
            horizon: HORIZON,
        };
        let system = |_| dense(step, &lambdas, &low_rank, &input, &output);
        let (systems, note) = made_diagonal(&report, 1, 0, order, system)?;
        let made = &systems[0];
        let system = DiagonalSystem::new(
            made.time(),
            made.exponents().to_vec(),
            made.input().clone(),
            made.output().clone(),
            DMatrix::from_diagonal(&through.into()),
        );
        let system = system.map_err(|source| bank::fault(&self.layer, 0, source))?;
        Ok(Dynamics {
            note: Some(note),
            ..Dynamics::causal(vec![system])
        })
    }

    fn encode(&self, _: &Dynamics, _: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        Err(Fault::Diagonal {
            layer: self.layer.clone(),
        })
    }
}
