//! aTENNuate (Brainchip-Inc/aTENNuate, `attenuate/model.py`): cosines that share their modes over all
//! inputs and outputs.
//!
//! ```text
//! Δ = e^{log_dt}    a = exp(Δ (−softplus(A_0) + i A_1))    B̄ = Δ ∘ B
//! K[l] = C diag(Re a^l) B̄,    y = K ∗ u,    B and C real, no feedthrough
//! ```
//!
//! A mode has a real matrix of rank one for its residue: a cosine without a phase of its own
//! ([`SystemClass::Cosines`]). What a truncation makes has phases, which the layout cannot hold; S5 can.

use hankelite_control::{DiagonalSystem, SystemClass, Time};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::phase::{is_real, turn_phases};
use crate::checkpoint::layout::transform::Transform;
use crate::checkpoint::layout::{
    Dynamics, Encoded, Layout, bank, not_representable, require_causal,
};
use crate::checkpoint::tensors::Tensors;

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct Attenuate {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
}

impl Attenuate {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }

    /// B and C with the phase of each mode in neither.
    fn without_phases(&self, system: &DiagonalSystem) -> Result<[DMatrix<f64>; 2], Fault> {
        let (mut input, mut output) = (system.input().clone(), system.output().clone());
        turn_phases(&mut input, &mut output);
        for (n, exponent) in system.scaled_exponents().into_iter().enumerate() {
            if !is_real(input.row(n).iter()) || !is_real(output.column(n).iter()) {
                let why = "the layout holds cosines without a phase, and the residue of this mode has \
                           one; --method in-layout finds such (`compress-model reduce`), `convert --to \
                           s5` writes a layout that holds all";
                return Err(not_representable(
                    self.family(),
                    &self.layer,
                    0,
                    exponent,
                    why,
                ));
            }
        }
        Ok([input.map(|b| b.re), output.map(|c| c.re)])
    }
}

impl Layout for Attenuate {
    fn family(&self) -> &'static str {
        "aTENNuate"
    }

    fn steps_of_modes(&self, tensors: &Tensors<'_>) -> Result<Option<Vec<f64>>, Fault> {
        let logs = tensors.values(&self.name("log_dt"), "[modes]")?.data;
        Ok(Some(logs.into_iter().map(f64::exp).collect()))
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let poles = tensors.real_matrix(&self.name("A"), [None, Some(2)])?;
        let modes = poles.nrows();
        let expected = format!("[{modes}]");
        let steps = tensors.shaped(&self.name("log_dt"), &[&[modes]], &expected)?;
        let steps = tensors.at_rate(steps.data.iter().map(|log| log.exp()).collect());
        let exponents = (0..modes).map(|n| {
            let decay = Transform::Softplus.apply(poles[(n, 0)]);
            steps[n] * Complex64::new(-decay, poles[(n, 1)])
        });
        let input = tensors.real_matrix(&self.name("B"), [Some(modes), None])?;
        let input = DMatrix::from_fn(modes, input.ncols(), |n, j| steps[n] * input[(n, j)]);
        let output = tensors.real_matrix(&self.name("C"), [None, Some(modes)])?;
        let through = DMatrix::zeros(output.nrows(), input.ncols());
        let system = DiagonalSystem::new(
            Time::Discrete { step: 1.0 },
            exponents.collect(),
            input.map(Complex64::from),
            output.map(Complex64::from),
            through,
        );
        let system = system.map_err(|source| bank::fault(&self.layer, 0, source))?;
        Ok(Dynamics::causal(vec![system]))
    }

    fn encode(&self, dynamics: &Dynamics, _: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let system = &require_causal(dynamics)?[0];
        let [input, output] = self.without_phases(system)?;
        let modes = system.order();
        let mut poles = Vec::with_capacity(2 * modes);
        for exponent in system.scaled_exponents() {
            let decay = Transform::Softplus.invert(-exponent.re);
            let decay = decay
                .map_err(|why| not_representable(self.family(), &self.layer, 0, exponent, why))?;
            poles.extend([decay, exponent.im]);
        }
        Ok(vec![
            Encoded::mode(self.name("log_dt"), vec![modes], vec![0.0; modes]),
            Encoded::mode(self.name("A"), vec![modes, 2], poles),
            Encoded::matrix(self.name("B"), &input),
            Encoded::matrix(self.name("C"), &output),
        ])
    }

    fn class(&self, _: &Tensors<'_>) -> Option<SystemClass> {
        Some(SystemClass::Cosines)
    }
}
