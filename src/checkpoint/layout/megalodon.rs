//! The complex moving average of Megalodon (XuezheMax/megalodon,
//! `megalodon/modules/complex_exponential_moving_average.py`), with the same names in
//! pszemraj/megalodon-hf and, with γ in two tensors, in pszemraj/megalodon-jax.
//!
//! ```text
//! p = σ(alpha)   q_n = (1 − σ(alpha_n) σ(delta_n)) e^{i n φ}   φ = σ(theta) 2π/N   n = 1 … N
//! k[l] = Re Σ_n p_n γ_n N^{−1/2} q_n^l,    y = k ∗ u + ω ∘ u
//! ```
//!
//! The angles of a channel are multiples of one φ, which is itself below 2π/N: no reduced system fits.

use hankelite_control::{DiagonalSystem, Time};
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::transform::Transform;
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, bank, not_representable};
use crate::checkpoint::tensors::Tensors;

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct Megalodon {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
    /// Name of ω.
    pub(in crate::checkpoint) skip: Option<String>,
}

impl Megalodon {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }

    /// γ, channels × modes, in one tensor of pairs or in two.
    fn gamma(
        &self,
        tensors: &Tensors<'_>,
        channels: usize,
        modes: usize,
    ) -> Result<Vec<Complex64>, Fault> {
        let shape: &[usize] = &[channels, modes];
        let whole = self.name("gamma");
        if tensors.contains(&whole) {
            return Ok(tensors.complex(&whole, &[shape])?.1);
        }
        let part = |name: &str| tensors.shaped(&self.name(name), &[shape], &format!("{shape:?}"));
        let (re, im) = (part("gamma_real")?.data, part("gamma_imag")?.data);
        let pairs = re.into_iter().zip(im);
        Ok(pairs.map(|(re, im)| Complex64::new(re, im)).collect())
    }

    fn skip(&self, tensors: &Tensors<'_>, channels: usize) -> Result<Vec<f64>, Fault> {
        let Some(name) = &self.skip else {
            return Ok(vec![0.0; channels]);
        };
        let shapes: [&[usize]; 2] = [&[channels, 1], &[channels]];
        let expected = format!("[{channels}, 1]");
        Ok(tensors.shaped(name, &shapes, &expected)?.data)
    }
}

impl Layout for Megalodon {
    fn family(&self) -> &'static str {
        "Megalodon moving average"
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let name = self.name("alpha");
        let alpha = tensors.values(&name, "[channels, modes, 1]")?;
        let &[channels, modes, 1] = alpha.shape.as_slice() else {
            return Err(tensors.wrong_shape(&name, alpha.shape, "[channels, modes, 1]"));
        };
        let expected = format!("[{channels}, {modes}, 1]");
        let delta = tensors.shaped(&self.name("delta"), &[&[channels, modes, 1]], &expected)?;
        let expected = format!("[{channels}, 1, 1]");
        let theta = tensors.shaped(&self.name("theta"), &[&[channels, 1, 1]], &expected)?;
        let gamma = self.gamma(tensors, channels, modes)?;
        let skip = self.skip(tensors, channels)?;
        let sigmoid = |x: &f64| Transform::Sigmoid.apply(*x);
        let share = (modes as f64).sqrt().recip();
        let systems = (0..channels).map(|h| {
            let angle = sigmoid(&theta.data[h]) * std::f64::consts::TAU / modes as f64;
            let own = h * modes..(h + 1) * modes;
            let (mut exponents, mut residues) = (vec![], vec![]);
            for (n, i) in own.enumerate() {
                let p = sigmoid(&alpha.data[i]);
                let decay = (-p * sigmoid(&delta.data[i])).ln_1p();
                exponents.push(Complex64::new(decay, (n + 1) as f64 * angle));
                residues.push(p * share * gamma[i]);
            }
            let time = Time::Discrete { step: 1.0 };
            let system = DiagonalSystem::siso(time, exponents, &residues, skip[h]);
            system.map_err(|source| bank::fault(&self.layer, h, source))
        });
        Ok(Dynamics::causal(systems.collect::<Result<_, Fault>>()?))
    }

    fn encode(&self, dynamics: &Dynamics, _: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let exponents = dynamics.systems.first().map(DiagonalSystem::exponents);
        let pole = exponents.and_then(|all| all.first()).copied();
        let why = "the angles of a channel's poles are multiples of one angle in the layout; \
                   `compress-model convert --to stripedhyena` writes a layout that holds all, which \
                   `reduce` then makes smaller";
        let pole = pole.unwrap_or_default();
        Err(not_representable(self.family(), &self.layer, 0, pole, why))
    }
}
