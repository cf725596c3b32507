//! LRURec (yueqirex/LRURec, `model/lru.py`): an LRU for recommendation, whose map of inputs has a
//! complex bias.
//!
//! ```text
//! (ν, θ, γ) = e^{params_log}    a = e^{−ν + iθ}
//! x_k = a x_{k−1} + γ ∘ (W_in u_k + b_in),   y_k = Re(W_out x_k + b_out) + u_k
//! ```
//!
//! The bias drives the states at every step, so it counts as the last input, which is constantly 1:
//! B̄ = γ ∘ \[W_in | b_in\]. The residual u_k and b_out, of which only the real part has an effect, stand
//! around the system, whose feedthrough is zero and has no tensor. Items that fill a sequence up on the
//! left reset the states: the system starts with the first real one.

use hankelite_control::{DiagonalSystem, Time};
use nalgebra::DMatrix;
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::lru::Polar;
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, bank, require_causal};
use crate::checkpoint::tensors::{Tensors, interleave};

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct LruRec {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
}

impl LruRec {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }

    fn has_bias(&self, tensors: &Tensors<'_>) -> bool {
        tensors.contains(&self.name("in_proj.bias"))
    }

    /// γ ∘ \[W_in | b_in\], modes × inputs.
    fn input(&self, tensors: &Tensors<'_>, gain: &[f64]) -> Result<DMatrix<Complex64>, Fault> {
        let modes = gain.len();
        let weight = self.name("in_proj.weight");
        let mut input = tensors.complex_matrix(&weight, [Some(modes), None])?;
        if self.has_bias(tensors) {
            let (_, bias) = tensors.complex(&self.name("in_proj.bias"), &[&[modes]])?;
            let last = input.ncols();
            input = input.insert_column(last, Complex64::ZERO);
            input.set_column(last, &bias.into());
        }
        for (mut row, log) in input.row_iter_mut().zip(gain) {
            row *= Complex64::from(log.exp());
        }
        Ok(input)
    }
}

impl Layout for LruRec {
    fn family(&self) -> &'static str {
        "LRURec"
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let name = self.name("params_log");
        let found = tensors.values(&name, "[3, modes]")?;
        let &[3, modes] = found.shape.as_slice() else {
            return Err(tensors.wrong_shape(&name, found.shape, "[3, modes]"));
        };
        let (decay, rest) = found.data.split_at(modes);
        let (angle, gain) = rest.split_at(modes);
        let parts = decay.iter().zip(angle);
        let exponents = parts.map(|(nu, theta)| Complex64::new(-nu.exp(), theta.exp()));
        let input = self.input(tensors, gain)?;
        let output = self.name("out_proj.weight");
        let output = tensors.complex_matrix(&output, [None, Some(modes)])?;
        let through = DMatrix::zeros(output.nrows(), input.ncols());
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
            mut input,
            output,
        } = Polar::of(self.family(), &self.layer, system)?;
        let order = system.order();
        let bias = self.has_bias(tensors).then(|| {
            let last = input.ncols() - 1;
            let bias = input.column(last).into_owned();
            input = input.columns(0, last).into_owned();
            bias
        });
        let matrix =
            |name: &str, matrix: &DMatrix<Complex64>| Encoded::pairs(self.name(name), matrix);
        let mut encoded = vec![
            Encoded::mode(
                self.name("params_log"),
                vec![3, order],
                [decay, angle, gain].concat(),
            ),
            matrix("in_proj.weight", &input),
            matrix("out_proj.weight", &output),
        ];
        let bias = bias.map(|bias| {
            let pairs = interleave(bias.as_slice());
            Encoded::mode(self.name("in_proj.bias"), vec![order, 2], pairs)
        });
        encoded.extend(bias);
        Ok(encoded)
    }
}
