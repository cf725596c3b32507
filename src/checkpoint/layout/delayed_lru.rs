//! The LRU of neural-ssm (`neural_ssm/ssm/cells/lti/lru.py`), whose output sees the states before the
//! sample at hand.
//!
//! ```text
//! a = exp(−e^{nu_log} + i e^{theta_log})    B̄ = e^{gamma_log} ∘ Bp
//! y_k = Re(C x_k) + D u_k,    x_{k+1} = a x_k + B̄ u_k
//! ```
//!
//! so that the kernel is D at lag 0 and Re(C a^{l−1} B̄) behind it: here C a^{−1}, and D without the real
//! part of C a^{−1} B̄.

use hankelite_control::{DiagonalSystem, Time};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::lru::Polar;
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, Role, bank, require_causal};
use crate::checkpoint::tensors::Tensors;

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct DelayedLru {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
}

impl DelayedLru {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }
}

/// What the states give to the output at the sample that enters them.
fn at_once(input: &DMatrix<Complex64>, output: &DMatrix<Complex64>) -> DMatrix<f64> {
    (output * input).map(|z| z.re)
}

impl Layout for DelayedLru {
    fn family(&self) -> &'static str {
        "LRU (neural-ssm)"
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let decay = tensors.values(&self.name("nu_log"), "[modes]")?.data;
        let modes = decay.len();
        let expected = format!("[{modes}]");
        let read = |name: &str| {
            let values = tensors.shaped(&self.name(name), &[&[modes]], &expected)?;
            Ok::<_, Fault>(values.data)
        };
        let (angle, gain) = (read("theta_log")?, read("gamma_log")?);
        let parts = decay.iter().zip(&angle);
        let exponents = parts.map(|(nu, theta)| Complex64::new(-nu.exp(), theta.exp()));
        let exponents: Vec<Complex64> = exponents.collect();
        let mut input = tensors.complex_matrix(&self.name("Bp"), [Some(modes), None])?;
        for (mut row, log) in input.row_iter_mut().zip(&gain) {
            row *= Complex64::from(log.exp());
        }
        let mut output = tensors.complex_matrix(&self.name("C"), [None, Some(modes)])?;
        for (mut column, exponent) in output.column_iter_mut().zip(&exponents) {
            column *= (-exponent).exp();
        }
        let shape = [Some(output.nrows()), Some(input.ncols())];
        let through = tensors.real_matrix(&self.name("D"), shape)? - at_once(&input, &output);
        let time = Time::Discrete { step: 1.0 };
        let system = DiagonalSystem::new(time, exponents, input, output, through);
        let system = system.map_err(|source| bank::fault(&self.layer, 0, source))?;
        Ok(Dynamics::causal(vec![system]))
    }

    fn encode(&self, dynamics: &Dynamics, _: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let system = &require_causal(dynamics)?[0];
        let through = system.feedthrough() + at_once(system.input(), system.output());
        let Polar {
            decay,
            angle,
            gain,
            input,
            mut output,
        } = Polar::of(self.family(), &self.layer, system)?;
        let poles = decay.iter().zip(&angle);
        for (mut column, (nu, theta)) in output.column_iter_mut().zip(poles) {
            column *= Complex64::new(-nu.exp(), theta.exp()).exp();
        }
        let order = system.order();
        let matrix =
            |name: &str, matrix: &DMatrix<Complex64>| Encoded::pairs(self.name(name), matrix);
        // D changes with the states, and alone.
        let through = [Role::Mode, Role::Feedthrough].map(|role| Encoded {
            role,
            ..Encoded::feedthrough(self.name("D"), through.transpose().as_slice().to_vec())
        });
        let mut encoded = vec![
            Encoded::mode(self.name("nu_log"), vec![order], decay),
            Encoded::mode(self.name("theta_log"), vec![order], angle),
            Encoded::mode(self.name("gamma_log"), vec![order], gain),
            matrix("Bp", &input),
            matrix("C", &output),
        ];
        encoded.extend(through);
        Ok(encoded)
    }
}
