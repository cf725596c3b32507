//! BiGS (jxiw/BiGS, `BiGS/modeling_bigs.py` and `modeling_flax_bigs.py`): the kernel of annotated-s4's S4D,
//! once for all channels of a direction.
//!
//! ```text
//! λ = min(A_re, −1e-4) + i A_im    Δ = e^{log_step}    K[l] = Re Σ_n C_n (e^{λΔ} − 1)/λ e^{λΔl}
//! ```
//!
//! Read as a layer of one channel. That of the other direction (`bs4`) gets the sequence turned round by
//! the network.

use hankelite_control::zoh_gain;
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::annotated::CLIP;
use crate::checkpoint::layout::bank::Modes;
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, bank, not_representable};
use crate::checkpoint::tensors::{Tensors, interleave};

/// The names of the modules that hold such a kernel.
pub(in crate::checkpoint) const MODULES: [&str; 2] = ["fs4", "bs4"];

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct Bigs {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
    /// Name of D.
    pub(in crate::checkpoint) feedthrough: Option<String>,
}

impl Bigs {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }
}

impl Layout for Bigs {
    fn family(&self) -> &'static str {
        "S4D (BiGS)"
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let decay = tensors.values(&self.name("A_re"), "[modes]")?;
        let &[modes] = decay.shape.as_slice() else {
            return Err(tensors.wrong_shape(&self.name("A_re"), decay.shape, "[modes]"));
        };
        let expected = format!("[{modes}]");
        let frequency = tensors.shaped(&self.name("A_im"), &[&[modes]], &expected)?;
        let (_, weights) = tensors.complex(&self.name("C"), &[&[modes]])?;
        let step = tensors.shaped(&self.name("log_step"), &[&[1]], "[1]")?;
        let step = tensors.at_rate(vec![step.data[0].exp()])[0];
        let through = match &self.feedthrough {
            Some(name) => tensors.shaped(name, &[&[1]], "[1]")?.data,
            None => vec![0.0],
        };
        let parts = decay.data.iter().zip(&frequency.data);
        let exponents = parts.map(|(&re, &im)| Complex64::new(re.min(CLIP), im));
        let exponents: Vec<Complex64> = exponents.collect();
        let residues = exponents.iter().zip(weights);
        let residues = residues.map(|(&lambda, weight)| weight * zoh_gain(lambda, step));
        let modes = Modes {
            step,
            residues: vec![residues.collect()],
            exponents,
        };
        bank::systems(&self.layer, std::iter::once(modes), &[through])
    }

    fn encode(&self, dynamics: &Dynamics, _: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let bank = bank::single_modes_of(&self.layer, dynamics)?;
        let Modes {
            step,
            exponents,
            residues,
        } = &bank[0];
        if let Some(&lambda) = exponents.iter().find(|lambda| lambda.re > CLIP) {
            let why = "its real part is above −1e-4, where the layer clips";
            return Err(not_representable("BiGS", &self.layer, 0, lambda, why));
        }
        let modes = exponents.len();
        let weights = exponents.iter().zip(&residues[0]);
        let weights = weights.map(|(&lambda, residue)| residue / zoh_gain(lambda, *step));
        let weights: Vec<Complex64> = weights.collect();
        let part = |of: fn(&Complex64) -> f64| exponents.iter().map(of).collect();
        let mut encoded = vec![
            Encoded::mode(self.name("A_re"), vec![modes], part(|l| l.re)),
            Encoded::mode(self.name("A_im"), vec![modes], part(|l| l.im)),
            Encoded::mode(self.name("C"), vec![modes, 2], interleave(&weights)),
            Encoded::step(self.name("log_step"), vec![1], vec![step.ln()]),
        ];
        if let Some(name) = &self.feedthrough {
            let through = bank::feedthrough_of(dynamics);
            encoded.push(Encoded::feedthrough(name.clone(), through));
        }
        Ok(encoded)
    }
}
