//! The standalone S4D layer of state-spaces/s4 (`models/s4/s4d.py`, v3 and later).
//!
//! ```text
//! Δ = e^{log_dt},  λ = −e^{log_A_real} + i A_imag,  K[l] = 2 Re Σ_n C_n (e^{λΔ} − 1)/λ e^{λΔl}
//! ```
//!
//! Half of the conjugate modes are stored. Here the factor 2, the hold and C become the residue,
//! so the canonical system is y = Re(Σ residue_n a_n^l).

use hankelite_control::zoh_gain;
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::bank::Modes;
use crate::checkpoint::layout::transform::Transform;
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, bank, not_representable};
use crate::checkpoint::tensors::{Tensors, interleave};

/// The tensor names of one S4D layer, relative to the model's prefix.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct S4d {
    pub(in crate::checkpoint) layer: String,
    /// `s4_layers.0.kernel.`, or empty.
    pub(in crate::checkpoint) kernel: String,
    /// Name of D; a bare kernel has none.
    pub(in crate::checkpoint) feedthrough: Option<String>,
}

impl S4d {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.kernel)
    }
}

impl Layout for S4d {
    fn family(&self) -> &'static str {
        "S4D"
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let log_dt = tensors.values(&self.name("log_dt"), "one log step per channel")?;
        let &[channels] = log_dt.shape.as_slice() else {
            let expected = "[channels] (one log step per channel)";
            return Err(tensors.wrong_shape(&self.name("log_dt"), log_dt.shape, expected));
        };
        let decay = tensors.values(&self.name("log_A_real"), "[channels, modes]")?;
        let &[rows, modes] = decay.shape.as_slice() else {
            let expected = format!("[{channels}, modes]");
            return Err(tensors.wrong_shape(&self.name("log_A_real"), decay.shape, &expected));
        };
        let grid = format!("[{channels}, {modes}]");
        if rows != channels || channels == 0 || modes == 0 {
            return Err(tensors.wrong_shape(&self.name("log_A_real"), decay.shape, &grid));
        }
        let frequency = tensors.shaped(&self.name("A_imag"), &[&[channels, modes]], &grid)?;
        let pairs = format!("[{channels}, {modes}, 2] (real and imaginary parts)");
        let c = tensors.shaped(&self.name("C"), &[&[channels, modes, 2]], &pairs)?;
        let c = c.to_complex();
        let through = tensors.feedthrough(self.feedthrough.as_deref(), channels, 1)?;
        let steps = tensors.at_rate(log_dt.data.iter().map(|log| log.exp()).collect());
        let bank = (0..channels).map(|h| {
            let step = steps[h];
            let row = h * modes..(h + 1) * modes;
            let parts = decay.data[row.clone()].iter();
            let parts = parts.zip(&frequency.data[row.clone()]);
            let exponents: Vec<Complex64> = parts
                .map(|(log_decay, &frequency)| Complex64::new(-log_decay.exp(), frequency))
                .collect();
            let residues = c[row].iter().zip(&exponents);
            let residues = residues.map(|(&c, &lambda)| 2.0 * c * zoh_gain(lambda, step));
            Modes {
                step,
                residues: vec![residues.collect()],
                exponents,
            }
        });
        bank::systems(&self.layer, bank, &through)
    }

    /// All channels get the largest order; empty slots hold a decaying mode with C = 0.
    fn encode(&self, dynamics: &Dynamics, _: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let bank = bank::single_modes_of(&self.layer, dynamics)?;
        let (mut decay, mut frequency, mut c) = (vec![], vec![], vec![]);
        for (h, modes) in bank.iter().enumerate() {
            for (&lambda, residue) in modes.exponents.iter().zip(&modes.residues[0]) {
                let stored = Transform::Exp.invert(-lambda.re);
                let refuse = |why| not_representable("S4D", &self.layer, h, lambda, why);
                decay.push(stored.map_err(refuse)?);
                frequency.push(lambda.im);
                c.push(0.5 * residue / zoh_gain(lambda, modes.step));
            }
        }
        let grid = vec![bank.len(), bank[0].exponents.len()];
        let steps = bank.iter().map(|modes| modes.step.ln()).collect();
        let pairs = [grid.clone(), vec![2]].concat();
        let mut encoded = vec![
            Encoded::step(self.name("log_dt"), vec![bank.len()], steps),
            Encoded::mode(self.name("log_A_real"), grid.clone(), decay),
            Encoded::mode(self.name("A_imag"), grid, frequency),
            Encoded::mode(self.name("C"), pairs, interleave(&c)),
        ];
        if let Some(name) = &self.feedthrough {
            let through = bank::feedthrough_of(dynamics);
            encoded.push(Encoded::feedthrough(name.clone(), through));
        }
        Ok(encoded)
    }
}
