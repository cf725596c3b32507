//! The standalone S4D layer of state-spaces/s4 (`models/s4/s4d.py`, v3 and later).
//!
//! ```text
//! Δ = e^{log_dt},  λ = −e^{log_A_real} + i A_imag,  K[l] = 2 Re Σ_n C_n (e^{λΔ} − 1)/λ e^{λΔl}
//! ```
//!
//! Half of the conjugate modes are stored. Here the factor 2, the hold and C become the residue,
//! so the canonical system is y = Re(Σ residue_n a_n^l).

use num_complex::Complex64;

use crate::checkpoint::encoded::Encoded;
use crate::checkpoint::encoded::padded_modes;
use crate::checkpoint::encoded::stored_order;
use crate::checkpoint::error::Fault;
use crate::checkpoint::tensors::Tensors;
use crate::checkpoint::tensors::interleave;
use crate::ssm::DiagonalSystem;
use crate::ssm::Time;
use crate::ssm::zoh_gain;

/// The tensor names of one S4D layer, relative to the model's prefix.
#[derive(Debug, Clone)]
pub(super) struct S4d {
    pub(super) layer: String,
    /// `s4_layers.0.kernel.`, or empty.
    pub(super) kernel: String,
    /// Name of D; a bare kernel has none.
    pub(super) feedthrough: Option<String>,
}

impl S4d {
    /// The names that make a kernel an S4D kernel.
    pub(super) const TENSORS: [&'static str; 4] = ["log_dt", "log_A_real", "A_imag", "C"];

    pub(super) fn decode(&self, tensors: &Tensors<'_>) -> Result<Vec<DiagonalSystem>, Fault> {
        let name = |tensor: &str| format!("{}{tensor}", self.kernel);
        let log_dt = tensors.values(&name("log_dt"), "one log step per channel")?;
        let &[channels] = log_dt.shape.as_slice() else {
            let expected = "[channels] (one log step per channel)";
            return Err(tensors.wrong_shape(&name("log_dt"), log_dt.shape, expected));
        };
        let decay = tensors.values(&name("log_A_real"), "[channels, modes]")?;
        let &[rows, modes] = decay.shape.as_slice() else {
            let expected = format!("[{channels}, modes]");
            return Err(tensors.wrong_shape(&name("log_A_real"), decay.shape, &expected));
        };
        let grid = format!("[{channels}, {modes}]");
        if rows != channels || channels == 0 || modes == 0 {
            return Err(tensors.wrong_shape(&name("log_A_real"), decay.shape, &grid));
        }
        let frequency = tensors.shaped(&name("A_imag"), &[&[channels, modes]], &grid)?;
        let pairs = format!("[{channels}, {modes}, 2] (real and imaginary parts)");
        let c = tensors.shaped(&name("C"), &[&[channels, modes, 2]], &pairs)?;
        let c = c.to_complex();
        let feedthrough = tensors.feedthrough(self.feedthrough.as_deref(), channels)?;
        let channel = |h: usize| {
            let step = log_dt.data[h].exp();
            let row = h * modes..(h + 1) * modes;
            let parts = decay.data[row.clone()]
                .iter()
                .zip(&frequency.data[row.clone()]);
            let exponents: Vec<Complex64> = parts
                .map(|(log_decay, &frequency)| Complex64::new(-log_decay.exp(), frequency))
                .collect();
            let residues: Vec<Complex64> = c[row]
                .iter()
                .zip(&exponents)
                .map(|(&c, &lambda)| 2.0 * c * zoh_gain(lambda, step))
                .collect();
            DiagonalSystem::siso(
                Time::Discrete { step },
                exponents,
                &residues,
                feedthrough[h],
            )
            .map_err(|source| Fault::System {
                layer: self.layer.clone(),
                channel: h,
                source,
            })
        };
        (0..channels).map(channel).collect()
    }

    /// The tensors that hold other systems. All channels get the largest order; empty slots hold
    /// a decaying mode with C = 0.
    pub(super) fn encode(&self, systems: &[DiagonalSystem]) -> Result<Vec<Encoded>, Fault> {
        let channels = systems.len();
        let order = stored_order(systems);
        let (mut steps, mut decay, mut frequency, mut c) = (vec![], vec![], vec![], vec![]);
        for (h, system) in systems.iter().enumerate() {
            let (step, modes) = padded_modes(&self.layer, h, system, order)?;
            steps.push(step.ln());
            for (lambda, residue) in modes {
                if lambda.re >= 0.0 {
                    return Err(Fault::NotRepresentable {
                        layout: "S4D",
                        layer: self.layer.clone(),
                        channel: h,
                        pole: lambda,
                        why: "the layout stores the logarithm of −Re λ, which must be positive",
                    });
                }
                decay.push((-lambda.re).ln());
                frequency.push(lambda.im);
                c.push(0.5 * residue / zoh_gain(lambda, step));
            }
        }
        let grid = vec![channels, order];
        let name = |tensor: &str| format!("{}{tensor}", self.kernel);
        let mut encoded = vec![
            Encoded::step(name("log_dt"), vec![channels], steps),
            Encoded::mode(name("log_A_real"), grid.clone(), decay),
            Encoded::mode(name("A_imag"), grid, frequency),
            Encoded::mode(name("C"), vec![channels, order, 2], interleave(&c)),
        ];
        if let Some(name) = &self.feedthrough {
            let values = systems.iter().map(|system| system.feedthrough()[(0, 0)]);
            encoded.push(Encoded::feedthrough(name.clone(), values.collect()));
        }
        Ok(encoded)
    }
}
