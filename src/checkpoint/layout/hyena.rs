//! The modal long convolutions of the Hyena family, one filter for each channel or group of channels:
//! StripedHyena and Evo (togethercomputer/stripedhyena, `stripedhyena/engine.py`), with complex poles,
//! and Evo 2 (Zymrael/vortex, `vortex/model/engine.py`), with real ones.
//!
//! ```text
//! StripedHyena   a_n = poles_n (re, im)         Evo 2   a_n = e^{log_poles_n}
//! K[l] = Re Σ_n residues_n a_n^l,   l = 0, 1, …;   y = K ∗ u + D u
//! ```
//!
//! u is what the layer's first gate gives. The filter of a group is that of each of its channels, which
//! stand side by side: channel c has filter ⌊c S/H⌋. Where a reduction makes the channels of a group
//! differ, what is written has a filter for each channel (`hyena_filter_groups` = 1).

use hankelite_archive::Dtype;
use num_complex::Complex64;

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::bank::{self, Modes};
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, not_representable};
use crate::checkpoint::tensors::{Tensors, interleave};

/// The least |a| that is written: the public code takes ln a, and 0 · ln 0 is no number.
const POLE_MIN: f64 = 1e-30;

/// One layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct Hyena {
    pub(in crate::checkpoint) layer: String,
    /// What the names start with.
    pub(in crate::checkpoint) place: String,
    pub(in crate::checkpoint) feedthrough: Option<String>,
    /// Whether poles are real and stored as their logarithms, as in Evo 2.
    pub(in crate::checkpoint) real: bool,
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

    fn poles(&self) -> String {
        self.name(if self.real { "log_poles" } else { "poles" })
    }

    fn filters(&self, tensors: &Tensors<'_>) -> Result<Filters, Fault> {
        let poles = self.poles();
        let (shape, exponents) = match self.real {
            true => {
                let found = tensors.values(&poles, "[filters, modes, 1]")?;
                let real = found.data.into_iter().map(Complex64::from);
                (found.shape, real.collect())
            }
            false => {
                let (shape, values) = tensors.complex(&poles, &[])?;
                let logarithms = values.iter().map(|pole| pole.ln());
                (shape, logarithms.collect())
            }
        };
        let &[count, modes, 1] = shape.as_slice() else {
            return Err(tensors.wrong_shape(&poles, shape, "[filters, modes, 1]"));
        };
        let residues = self.name("residues");
        let residues = match self.real {
            true => {
                let expected = format!("[{count}, {modes}]");
                let found = tensors.shaped(&residues, &[&[count, modes]], &expected)?;
                found.data.into_iter().map(Complex64::from).collect()
            }
            false => tensors.complex(&residues, &[&[count, modes, 1]])?.1,
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
        (half && !self.real && growing > 0).then(|| {
            format!(
                "`{}`: {growing} modes do not decay, and its poles are in half precision, which rounds \
                 |a| above 0.998 to 1: a file with poles in float32 (`pytorch_model.pt`) may hold them",
                self.layer
            )
        })
    }

    /// ln a of Evo 2, which must be real.
    fn logarithm(&self, channel: usize, exponent: Complex64) -> Result<f64, Fault> {
        if exponent.im == 0.0 {
            return Ok(exponent.re);
        }
        let why = "the layout holds positive real poles only; --method real-poles finds such \
                   (`compress-model reduce`), `convert --to s4d` writes a layout that holds all";
        Err(not_representable(
            "Evo 2",
            &self.layer,
            channel,
            exponent,
            why,
        ))
    }

    /// One filter for each group where its channels still have the same, with the first channel of
    /// each; else one for each channel.
    fn grouped(&self, modes: Vec<Modes>, tensors: &Tensors<'_>) -> Vec<(usize, Modes)> {
        let stored = tensors.shape(&self.poles()).and_then(|shape| shape.first());
        let each = stored.map_or(1, |count| (modes.len() / count.max(&1)).max(1));
        let same = |group: &[Modes]| {
            let mut others = group.iter();
            others.all(|m| m.exponents == group[0].exponents && m.residues == group[0].residues)
        };
        let step = if modes.chunks(each).all(same) {
            each
        } else {
            1
        };
        modes.into_iter().enumerate().step_by(step).collect()
    }
}

impl Layout for Hyena {
    fn family(&self) -> &'static str {
        if self.real { "Evo 2" } else { "StripedHyena" }
    }

    fn real_poles(&self, _: &Tensors<'_>) -> bool {
        self.real
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
        let shape = vec![filters.len(), order];
        let (mut logarithms, mut poles, mut residues) = (vec![], vec![], vec![]);
        for (channel, modes) in &filters {
            for exponent in &modes.exponents {
                match self.real {
                    true => logarithms.push(self.logarithm(*channel, modes.step * exponent)?),
                    false => {
                        let z = modes.step * exponent;
                        poles.push(Complex64::new(z.re.max(POLE_MIN.ln()), z.im).exp());
                    }
                }
            }
            residues.extend_from_slice(&modes.residues[0]);
        }
        let mut encoded = match self.real {
            true => {
                let residues = residues.iter().map(|residue| residue.re).collect();
                vec![
                    Encoded::mode(self.poles(), [&shape[..], &[1]].concat(), logarithms),
                    Encoded::mode(self.name("residues"), shape, residues),
                ]
            }
            false => {
                let shape = [&shape[..], &[1, 2]].concat();
                vec![
                    Encoded::mode(self.poles(), shape.clone(), interleave(&poles)),
                    Encoded::mode(self.name("residues"), shape, interleave(&residues)),
                ]
            }
        };
        if let Some(name) = &self.feedthrough {
            let through = bank::feedthrough_of(dynamics);
            encoded.push(Encoded::feedthrough(name.clone(), through));
        }
        Ok(encoded)
    }
}
