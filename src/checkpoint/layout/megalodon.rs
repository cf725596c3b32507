//! The complex moving average of Megalodon (XuezheMax/megalodon,
//! `megalodon/modules/complex_exponential_moving_average.py`), with the same names in
//! pszemraj/megalodon-hf and, with γ in two tensors, in pszemraj/megalodon-jax.
//!
//! ```text
//! p = σ(alpha)   q_n = (1 − σ(alpha_n) σ(delta_n)) e^{i n φ}   φ = σ(theta) 2π/N   n = 1 … N
//! k[l] = Re Σ_n p_n γ_n N^{−1/2} q_n^l,    y = k ∗ u + ω ∘ u
//! ```
//!
//! The angles of a channel are multiples of one φ, which is itself below 2π/N ([`SystemClass::Multiples`]).

use std::f64::consts::TAU;

use hankelite_control::{DiagonalSystem, SystemClass, Time};
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::transform::Transform;
use crate::checkpoint::layout::{
    Dynamics, Encoded, Layout, bank, not_representable, require_causal,
};
use crate::checkpoint::tensors::{Tensors, interleave};

/// The largest difference of an angle from its multiple, relative to that.
const SAME: f64 = 1e-9;

/// The decay of a slot that no mode fills; its γ is zero.
const PADDING_POLE: f64 = 0.5;

/// Numbers of the channels, one channel after the other.
#[derive(Default)]
struct Stored {
    /// σ⁻¹ of what makes the decay; alpha and delta alike.
    decays: Vec<f64>,
    theta: Vec<f64>,
    gamma: Vec<Complex64>,
}

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
            let angle = sigmoid(&theta.data[h]) * TAU / modes as f64;
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

    fn encode(&self, dynamics: &Dynamics, tensors: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let systems = require_causal(dynamics)?;
        let orders = systems.iter().map(DiagonalSystem::order);
        let (channels, modes) = (systems.len(), orders.max().unwrap_or(0).max(1));
        let mut stored = Stored::default();
        for (h, system) in systems.iter().enumerate() {
            self.store(system, h, modes, &mut stored)?;
        }
        let column = vec![channels, modes, 1];
        let mut encoded = vec![
            Encoded::mode(self.name("alpha"), column.clone(), stored.decays.clone()),
            Encoded::mode(self.name("delta"), column, stored.decays),
            Encoded::mode(self.name("theta"), vec![channels, 1, 1], stored.theta),
        ];
        if tensors.contains(&self.name("gamma")) {
            let shape = vec![channels, modes, 2];
            let pairs = interleave(&stored.gamma);
            encoded.push(Encoded::mode(self.name("gamma"), shape, pairs));
        } else {
            for (name, part) in [("gamma_real", 0), ("gamma_imag", 1)] {
                let data = stored.gamma.iter().map(|g| [g.re, g.im][part]).collect();
                encoded.push(Encoded::mode(self.name(name), vec![channels, modes], data));
            }
        }
        if let Some(name) = &self.skip {
            let through = systems.iter().map(|system| system.feedthrough()[(0, 0)]);
            encoded.push(Encoded::feedthrough(name.clone(), through.collect()));
        }
        Ok(encoded)
    }

    fn class(&self, _: &Tensors<'_>) -> Option<SystemClass> {
        Some(SystemClass::Multiples)
    }
}

impl Megalodon {
    /// Adds the numbers of a channel, filled up to so many modes.
    fn store(
        &self,
        system: &DiagonalSystem,
        channel: usize,
        modes: usize,
        stored: &mut Stored,
    ) -> Result<(), Fault> {
        let siso = system.as_siso();
        let residues = siso.map_err(|source| bank::fault(&self.layer, channel, source))?;
        let exponents = system.scaled_exponents();
        let angle = exponents.first().map_or(0.5 * TAU / modes as f64, |z| z.im);
        let share = angle * modes as f64 / TAU;
        let root = (modes as f64).sqrt();
        for (n, (&z, residue)) in exponents.iter().zip(residues.residues()).enumerate() {
            let turned = (n + 1) as f64 * angle;
            let fits = share > 0.0 && share < 1.0 && z.re < 0.0;
            if !fits || (z.im - turned).abs() > SAME * turned {
                let why = "the angles of a channel's poles are multiples of one angle in the layout: \
                           --method in-layout finds such (`compress-model reduce`), `convert --to \
                           stripedhyena` writes a layout that holds all";
                return Err(not_representable(
                    self.family(),
                    &self.layer,
                    channel,
                    z,
                    why,
                ));
            }
            // σ(alpha) = σ(delta) = √(1 − |q|)
            let p = (-z.re.exp_m1()).sqrt();
            stored
                .decays
                .push(Transform::Sigmoid.invert(p).unwrap_or(f64::INFINITY));
            stored.gamma.push(residue * root / p);
        }
        let unused = Transform::Sigmoid
            .invert((1.0 - PADDING_POLE).sqrt())
            .unwrap_or(0.0);
        stored.decays.resize((channel + 1) * modes, unused);
        stored.gamma.resize((channel + 1) * modes, Complex64::ZERO);
        stored
            .theta
            .push(Transform::Sigmoid.invert(share).unwrap_or(0.0));
        Ok(())
    }
}
