//! The layers of annotated-s4 (srush/annotated-s4, `s4/s4d.py` and `s4/dss.py`), with the channels
//! along the second axis.
//!
//! ```text
//! S4D  λ = min(A_re, −1e-4) + i A_im     K[l] = Re Σ_n C_n (e^{λΔ} − 1)/λ e^{λΔl}
//! DSS  λ = Lambda_re + i Lambda_im       K[l] = Re Σ_n W_n/λ_n · softmax over l of λ_n Δ l
//! ```
//!
//! Δ = e^{log_step}. All N modes are stored, without a factor 2. B_re and B_im of the S4D layer are
//! read by nothing and only keep their shape. The softmax of DSS needs the length L; it divides by
//! s̄/(|s|² + 1e-7), s being the row's sum, whose terms are taken relative to the largest.

use hankelite_control::{DSS_EPSILON, geometric_sum, zoh_gain};
use num_complex::Complex64;

use crate::checkpoint::declared::Declared;
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::bank::Modes;
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, bank, not_representable};
use crate::checkpoint::tensors::{Tensors, interleave};

/// The largest Re λ of the S4D layer.
pub(super) const CLIP: f64 = -1e-4;

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct Annotated {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
    /// DSS instead of S4D.
    pub(in crate::checkpoint) dss: bool,
    pub(in crate::checkpoint) settled: Declared,
}

impl Annotated {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }

    fn pole_names(&self) -> [&'static str; 2] {
        match self.dss {
            true => ["Lambda_re", "Lambda_im"],
            false => ["A_re", "A_im"],
        }
    }

    fn weight_name(&self) -> &'static str {
        if self.dss { "W" } else { "C" }
    }

    /// The residue of a mode with unit weight.
    fn gain(&self, lambda: Complex64, step: f64) -> Complex64 {
        match (self.dss, self.settled.length) {
            (true, Some(length)) => softmax_gain(lambda * step, length) / lambda,
            _ => zoh_gain(lambda, step),
        }
    }
}

/// What e^{zl} is multiplied with, l = 0 to L − 1.
fn softmax_gain(z: Complex64, length: usize) -> Complex64 {
    let growing = z.re > 0.0;
    let decaying = if growing { -z } else { z };
    let sum = geometric_sum(decaying, length);
    let shift = match growing {
        true => (-z * (length as f64 - 1.0)).exp(),
        false => Complex64::ONE,
    };
    sum.conj() / (sum.norm_sqr() + DSS_EPSILON) * shift
}

impl Layout for Annotated {
    fn family(&self) -> &'static str {
        match self.dss {
            true => "DSS (annotated-s4)",
            false => "S4D (annotated-s4)",
        }
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let [re, im] = self.pole_names().map(|name| self.name(name));
        let decay = tensors.values(&re, "[modes, channels]")?;
        let &[modes, channels] = decay.shape.as_slice() else {
            return Err(tensors.wrong_shape(&re, decay.shape, "[modes, channels]"));
        };
        let grid = format!("[{modes}, {channels}]");
        let frequency = tensors.shaped(&im, &[&[modes, channels]], &grid)?;
        let row = format!("[1, {channels}]");
        let one: &[usize] = &[1, channels];
        let steps = tensors.shaped(&self.name("log_step"), &[one], &row)?;
        let shapes: [&[usize]; 2] = [&[modes, channels], &[1, channels, modes]];
        let shapes = &shapes[usize::from(self.dss)..=usize::from(self.dss)];
        let (_, weights) = tensors.complex(&self.name(self.weight_name()), shapes)?;
        let through = tensors.shaped(&self.name("D"), &[one], &row)?;
        tensors.set_aside(&self.name("B_re"));
        tensors.set_aside(&self.name("B_im"));
        let steps = steps.data.iter().map(|log| log.exp()).collect();
        // The softmax divides by a sum over L steps.
        let steps = if self.dss {
            steps
        } else {
            tensors.at_rate(steps)
        };
        let bank = (0..channels).map(|h| {
            let step = steps[h];
            let pole = |n: usize| {
                let at = n * channels + h;
                let re = decay.data[at];
                let re = if self.dss { re } else { re.min(CLIP) };
                Complex64::new(re, frequency.data[at])
            };
            let exponents: Vec<_> = (0..modes).map(pole).collect();
            let weight = |n: usize| match self.dss {
                true => weights[h * modes + n],
                false => weights[n * channels + h],
            };
            let residues = exponents.iter().enumerate();
            let residues = residues.map(|(n, &lambda)| weight(n) * self.gain(lambda, step));
            Modes {
                step,
                residues: vec![residues.collect()],
                exponents,
            }
        });
        bank::systems(&self.layer, bank, &[through.data])
    }

    fn encode(&self, dynamics: &Dynamics, tensors: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let bank = bank::single_modes_of(&self.layer, dynamics)?;
        let (channels, modes) = (bank.len(), bank[0].exponents.len());
        let mut lambdas = vec![Complex64::ZERO; modes * channels];
        let mut weights = lambdas.clone();
        for (h, channel) in bank.iter().enumerate() {
            for (n, &lambda) in channel.exponents.iter().enumerate() {
                if !self.dss && lambda.re > CLIP {
                    let why = "its real part is above −1e-4, where the layer clips";
                    return Err(not_representable(
                        "annotated-s4",
                        &self.layer,
                        h,
                        lambda,
                        why,
                    ));
                }
                lambdas[n * channels + h] = lambda;
                let weight = channel.residues[0][n] / self.gain(lambda, channel.step);
                weights[if self.dss {
                    h * modes + n
                } else {
                    n * channels + h
                }] = weight;
            }
        }
        let grid = vec![modes, channels];
        let [re, im] = self.pole_names().map(|name| self.name(name));
        let parts = |of: fn(&Complex64) -> f64| lambdas.iter().map(of).collect::<Vec<f64>>();
        let shape = match self.dss {
            true => vec![1, channels, modes, 2],
            false => vec![modes, channels, 2],
        };
        let mut encoded = vec![
            Encoded::mode(re, grid.clone(), parts(|l| l.re)),
            Encoded::mode(im, grid.clone(), parts(|l| l.im)),
            Encoded::mode(self.name(self.weight_name()), shape, interleave(&weights)),
        ];
        for (name, value) in [("B_re", 1.0), ("B_im", 0.0)] {
            if tensors.contains(&self.name(name)) {
                let data = vec![value; modes * channels];
                encoded.push(Encoded::mode(self.name(name), grid.clone(), data));
            }
        }
        let steps = bank.iter().map(|channel| channel.step.ln()).collect();
        encoded.push(Encoded::step(
            self.name("log_step"),
            vec![1, channels],
            steps,
        ));
        let through = bank::feedthrough_of(dynamics);
        encoded.push(Encoded::feedthrough(self.name("D"), through));
        Ok(encoded)
    }
}
