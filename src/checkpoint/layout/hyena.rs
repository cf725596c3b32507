//! The modal long convolutions of the Hyena family, one filter for each channel or group of channels:
//! StripedHyena and Evo (togethercomputer/stripedhyena, `stripedhyena/engine.py`), with complex poles,
//! and Evo 2 (Zymrael/vortex, `vortex/model/engine.py`), with real ones, also as it is trained
//! (NVIDIA/NeMo, `nemo/collections/llm/gpt/model/megatron/hyena/hyena_utils.py`, ImplicitModalFilter;
//! the same tensors in Zymrael/savanna).
//!
//! ```text
//! StripedHyena   a_n = poles_n (re, im)                   weights `residues`
//! Evo 2          ln a_n = log_poles_n                     weights `residues`
//! in training    ln a_n = −e^{p_n} e^{gamma_n}            weights `R`, D is `conv_bias`
//! K[l] = Re Σ_n residues_n a_n^l,   l = 0, 1, …;   y = K ∗ u + D u
//! ```
//!
//! u is what the layer's first gate gives. The filter of a group is that of each of its channels, which
//! stand side by side: channel c has filter ⌊c S/H⌋. Where a reduction makes the channels of a group
//! differ, what is written has a filter for each channel (`hyena_filter_groups` = 1).

use hankelite_archive::Dtype;
use hankelite_control::SystemClass;
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::bank::{self, Modes};
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, not_representable};
use crate::checkpoint::tensors::{Tensors, interleave};

/// The least |a| that is written: the public code takes ln a, and 0 · ln 0 is no number.
const POLE_MIN: f64 = 1e-30;

/// How poles are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::checkpoint) enum HyenaForm {
    /// As complex numbers: StripedHyena and Evo.
    Complex,
    /// As logarithms of positive real ones: Evo 2.
    Logarithms,
    /// As two factors of those logarithms: Evo 2 in training.
    Training,
}

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct Hyena {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
    pub(in crate::checkpoint) feedthrough: Option<String>,
    pub(in crate::checkpoint) form: HyenaForm,
}

/// The filters of a file.
struct Filters {
    /// S, filters.
    count: usize,
    /// N, modes of each.
    modes: usize,
    /// ln a, S × N.
    exponents: Vec<Complex64>,
    /// S × N.
    residues: Vec<Complex64>,
}

impl Hyena {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }

    /// The tensor that shows how many filters and modes there are.
    fn poles(&self) -> String {
        self.name(match self.form {
            HyenaForm::Complex => "poles",
            HyenaForm::Logarithms => "log_poles",
            HyenaForm::Training => "p",
        })
    }

    fn residues(&self) -> String {
        self.name(match self.form {
            HyenaForm::Training => "R",
            _ => "residues",
        })
    }

    /// Filters, modes, and ln a.
    fn exponents(&self, tensors: &Tensors<'_>) -> Result<(Vec<usize>, Vec<Complex64>), Fault> {
        let poles = self.poles();
        let (shape, exponents): (_, Vec<Complex64>) = match self.form {
            HyenaForm::Complex => {
                let (shape, values) = tensors.complex(&poles, &[])?;
                (shape, values.iter().map(|pole| pole.ln()).collect())
            }
            HyenaForm::Logarithms => {
                let found = tensors.values(&poles, "[filters, modes, 1]")?;
                let real = found.data.into_iter().map(Complex64::from);
                (found.shape, real.collect())
            }
            HyenaForm::Training => {
                let p = tensors.values(&poles, "[filters, modes]")?;
                let expected = format!("{:?}, the shape of p", p.shape);
                let gamma = self.name("gamma");
                let gamma = tensors.shaped(&gamma, &[&p.shape], &expected)?;
                let pairs = p.data.iter().zip(gamma.data);
                let real = pairs.map(|(p, gamma)| Complex64::from(-p.exp() * gamma.exp()));
                ([&p.shape[..], &[1]].concat(), real.collect())
            }
        };
        match shape.as_slice() {
            &[_, _, 1] => Ok((shape, exponents)),
            _ => Err(tensors.wrong_shape(&poles, shape, "[filters, modes, 1]")),
        }
    }

    fn filters(&self, tensors: &Tensors<'_>) -> Result<Filters, Fault> {
        let (shape, exponents) = self.exponents(tensors)?;
        let (count, modes) = (shape[0], shape[1]);
        let residues = self.residues();
        let residues = match self.form {
            HyenaForm::Complex => tensors.complex(&residues, &[&[count, modes, 1]])?.1,
            _ => {
                let expected = format!("[{count}, {modes}]");
                let found = tensors.shaped(&residues, &[&[count, modes]], &expected)?;
                found.data.into_iter().map(Complex64::from).collect()
            }
        };
        Ok(Filters {
            count,
            modes,
            exponents,
            residues,
        })
    }

    /// How many channels have one filter: as many as numbers in D for each.
    fn channels_of_filter(&self, tensors: &Tensors<'_>, filters: usize) -> Result<usize, Fault> {
        let Some(name) = &self.feedthrough else {
            return Ok(1);
        };
        let shape = tensors.shape(name).unwrap_or_default().to_vec();
        match shape.as_slice() {
            &[channels] if filters > 0 && channels % filters == 0 => Ok(channels / filters),
            _ => Err(tensors.wrong_shape(name, shape, &format!("[a multiple of {filters}]"))),
        }
    }

    /// What a person should know of poles that were stored with few digits.
    fn note(&self, tensors: &Tensors<'_>, filters: &Filters) -> Option<String> {
        let half = matches!(tensors.dtype(&self.poles()), Some(Dtype::BF16 | Dtype::F16));
        let growing = filters.exponents.iter().filter(|z| z.re >= 0.0).count();
        (half && self.form == HyenaForm::Complex && growing > 0).then(|| {
            format!(
                "`{}`: {growing} modes do not decay, and its poles are in half precision, which rounds \
                 |a| above 0.998 to 1: a file with poles in float32 (`pytorch_model.pt`) may hold them",
                self.layer
            )
        })
    }

    /// ln a of Evo 2, which must be real, and negative as it is trained.
    fn logarithm(&self, channel: usize, exponent: Complex64) -> Result<f64, Fault> {
        let why = if exponent.im != 0.0 {
            "the layout holds positive real poles only; --method real-poles finds such \
             (`compress-model reduce`), `convert --to s4d` writes a layout that holds all"
        } else if self.form == HyenaForm::Training && exponent.re >= 0.0 {
            "the layout stores ln(−ln a), so that a must be below 1"
        } else {
            return Ok(exponent.re);
        };
        Err(not_representable(
            self.family(),
            &self.layer,
            channel,
            exponent,
            why,
        ))
    }

    fn encode_poles(
        &self,
        filters: &[(usize, Modes)],
        order: usize,
    ) -> Result<Vec<Encoded>, Fault> {
        let exponents = filters.iter().flat_map(|(channel, modes)| {
            let exponents = modes.exponents.iter();
            exponents.map(move |exponent| (*channel, modes.step * exponent))
        });
        let shape = vec![filters.len(), order];
        if self.form == HyenaForm::Complex {
            let floor = POLE_MIN.ln();
            let poles = exponents.map(|(_, z)| Complex64::new(z.re.max(floor), z.im).exp());
            let poles = interleave(&poles.collect::<Vec<_>>());
            let shape = [&shape[..], &[1, 2]].concat();
            return Ok(vec![Encoded::mode(self.poles(), shape, poles)]);
        }
        let logarithms = exponents.map(|(channel, z)| self.logarithm(channel, z));
        let logarithms = logarithms.collect::<Result<Vec<f64>, Fault>>()?;
        if self.form == HyenaForm::Logarithms {
            let shape = [&shape[..], &[1]].concat();
            return Ok(vec![Encoded::mode(self.poles(), shape, logarithms)]);
        }
        let factors = logarithms.iter().map(|log| (-log).ln()).collect();
        let ones = vec![0.0; logarithms.len()];
        Ok(vec![
            Encoded::mode(self.poles(), shape.clone(), factors),
            Encoded::mode(self.name("gamma"), shape, ones),
        ])
    }

    fn encode_residues(&self, filters: &[(usize, Modes)], order: usize) -> Encoded {
        let residues = filters
            .iter()
            .flat_map(|(_, modes)| modes.residues[0].clone());
        let residues: Vec<Complex64> = residues.collect();
        let shape = vec![filters.len(), order];
        match self.form {
            HyenaForm::Complex => {
                let shape = [&shape[..], &[1, 2]].concat();
                Encoded::mode(self.residues(), shape, interleave(&residues))
            }
            _ => {
                let real = residues.iter().map(|residue| residue.re).collect();
                Encoded::mode(self.residues(), shape, real)
            }
        }
    }

    /// One filter for each group where its channels still have the same.
    fn grouped(&self, modes: Vec<Modes>, tensors: &Tensors<'_>) -> Vec<(usize, Modes)> {
        let stored = tensors.shape(&self.poles()).and_then(|shape| shape.first());
        let each = stored.map_or(1, |count| modes.len() / count.max(&1));
        bank::grouped(modes, each)
    }
}

impl Layout for Hyena {
    fn family(&self) -> &'static str {
        match self.form {
            HyenaForm::Complex => "StripedHyena",
            HyenaForm::Logarithms => "Evo 2",
            HyenaForm::Training => "Evo 2 in training",
        }
    }

    fn class(&self, _: &Tensors<'_>) -> Option<SystemClass> {
        (self.form != HyenaForm::Complex).then_some(SystemClass::RealPoles)
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let filters = self.filters(tensors)?;
        let each = self.channels_of_filter(tensors, filters.count)?;
        let channels = filters.count * each;
        let through = tensors.feedthrough(self.feedthrough.as_deref(), channels, 1)?;
        let modes = (0..channels).map(|channel| {
            let own = channel / each * filters.modes..(channel / each + 1) * filters.modes;
            Modes {
                step: 1.0,
                exponents: filters.exponents[own.clone()].to_vec(),
                residues: vec![filters.residues[own].to_vec()],
            }
        });
        Ok(Dynamics {
            note: self.note(tensors, &filters),
            ..bank::systems(&self.layer, modes, &through)?
        })
    }

    fn encode(&self, dynamics: &Dynamics, tensors: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let filters = self.grouped(bank::single_modes_of(&self.layer, dynamics)?, tensors);
        let order = filters
            .first()
            .map_or(1, |(_, modes)| modes.exponents.len());
        let mut encoded = self.encode_poles(&filters, order)?;
        encoded.push(self.encode_residues(&filters, order));
        if let Some(name) = &self.feedthrough {
            let through = bank::feedthrough_of(dynamics);
            encoded.push(Encoded::feedthrough(name.clone(), through));
        }
        Ok(encoded)
    }
}
