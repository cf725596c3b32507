//! A layout that a person describes: names, axes and transforms of a bank of channels.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hankelite_control::{from_bilinear, to_bilinear, zoh_gain};
use num_complex::Complex64;
use serde::{Deserialize, Serialize};

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::bank::Modes;
use crate::checkpoint::layout::transform::Transform;
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, Role, bank, not_representable};
use crate::checkpoint::tensors::{Tensors, interleave};

/// A description of a layer with one input and one output for each channel.
///
/// ```text
/// Δ_h = T(step)    λ = −T(decay) + i sign · frequency
/// zoh       a = e^{λΔ}                   K[l] = factor · Re Σ_n w_n (e^{λΔ} − 1)/λ a^l
/// bilinear  a = (1 + λΔ/2)/(1 − λΔ/2)    K[l] = factor · Re Σ_n w_n Δ/(1 − λΔ/2) a^l
/// none      a = e^{λΔ}                   K[l] = factor · Re Σ_n w_n a^l
/// ```
///
/// In a TOML file `NAME.layout.toml` beside the checkpoint `NAME.…`, or such a text given to
/// [`OwnLayout::parse`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OwnLayout {
    /// The axes of the tensors with one entry for each channel and mode.
    #[serde(default)]
    axes: Axes,
    /// How poles and weights become those of discrete time.
    #[serde(default)]
    hold: Hold,
    /// What the real part is multiplied with: 2 where one of each conjugate pair is stored.
    #[serde(default = "one")]
    factor: f64,
    /// Δ, one for each channel; without it every step is 1.
    step: Option<Stored>,
    /// −Re λ, which is positive.
    decay: Stored,
    /// Im λ.
    frequency: Frequency,
    /// The complex weights w.
    weight: Weight,
    /// The name of D, one number for each channel.
    pub(super) feedthrough: Option<String>,
}

fn one() -> f64 {
    1.0
}

/// The complex weights w of the modes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Weight {
    /// One tensor.
    One(Complex),
    /// The product of two, B and C: what is written has the product in the second, and 1 in the first.
    Product([Complex; 2]),
}

/// Complex numbers in a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
enum Complex {
    /// The name of a complex tensor, or of a real one with a last axis of two.
    Pairs(String),
    /// The names of two real tensors.
    Split {
        /// Of the real parts.
        re: String,
        /// Of the imaginary parts.
        im: String,
    },
}

impl Weight {
    fn factors(&self) -> &[Complex] {
        match self {
            Weight::One(one) => std::slice::from_ref(one),
            Weight::Product(both) => both,
        }
    }
}

impl Complex {
    fn names(&self) -> Vec<&str> {
        match self {
            Complex::Pairs(name) => vec![name],
            Complex::Split { re, im } => vec![re, im],
        }
    }
}

/// A tensor and what its numbers go through.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Stored {
    /// The last part of the tensor's name.
    name: String,
    /// What makes a stored number the one that is meant.
    #[serde(default = "plain")]
    transform: Transform,
}

fn plain() -> Transform {
    Transform::None
}

/// The tensor of imaginary parts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Frequency {
    /// The last part of the tensor's name.
    name: String,
    /// 1, or −1 where the conjugate is stored.
    #[serde(default = "one")]
    sign: f64,
}

/// Which axis of a tensor is which.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum Axes {
    /// (channels, modes).
    #[default]
    ChannelMode,
    /// (modes, channels).
    ModeChannel,
}

/// How a continuous mode becomes a discrete one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Hold {
    /// Zero-order hold.
    #[default]
    Zoh,
    /// Bilinear, after Tustin.
    Bilinear,
    /// The weights are those of discrete time already.
    None,
}

impl OwnLayout {
    /// Where the description of a checkpoint's layers lies: `model.pth` has `model.layout.toml`.
    fn beside(checkpoint: &Path) -> PathBuf {
        checkpoint.with_extension("layout.toml")
    }

    /// A description in TOML.
    ///
    /// # Errors
    /// The parser's words, with the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let layout: Self =
            toml::from_str(text).map_err(|e| e.to_string().trim_end().to_string())?;
        if layout.factor == 0.0 || !layout.factor.is_finite() {
            return Err(format!(
                "factor is {}, expected another number than 0",
                layout.factor
            ));
        }
        if layout.frequency.sign.abs() != 1.0 {
            return Err(format!(
                "sign is {}, expected 1 or -1",
                layout.frequency.sign
            ));
        }
        Ok(layout)
    }

    /// The description beside a checkpoint, if there is one.
    pub(in crate::checkpoint) fn read(checkpoint: &Path) -> Result<Option<Self>, Fault> {
        let path = Self::beside(checkpoint);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(unreadable(&path, error.to_string())),
        };
        let layout = Self::parse(&text).map_err(|message| unreadable(&path, message))?;
        Ok(Some(layout))
    }

    /// The tensors by which a layer is known.
    pub(in crate::checkpoint) fn marks(&self) -> Vec<&str> {
        let weights = self.weight.factors().iter().flat_map(Complex::names);
        let poles = [self.decay.name.as_str(), self.frequency.name.as_str()];
        poles.into_iter().chain(weights).collect()
    }
}

fn unreadable(path: &Path, message: String) -> Fault {
    let place = path.display().to_string();
    Fault::Declarations { place, message }
}

/// One layer of such a file.
#[derive(Debug, Clone)]
pub(super) struct OwnLayer {
    pub(super) layer: String,
    pub(super) place: String,
    pub(super) layout: Arc<OwnLayout>,
}

impl OwnLayer {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.place)
    }

    /// The place of a channel's mode in a tensor.
    fn at(&self, h: usize, n: usize, channels: usize, modes: usize) -> usize {
        match self.layout.axes {
            Axes::ChannelMode => h * modes + n,
            Axes::ModeChannel => n * channels + h,
        }
    }

    fn shape(&self, channels: usize, modes: usize) -> Vec<usize> {
        match self.layout.axes {
            Axes::ChannelMode => vec![channels, modes],
            Axes::ModeChannel => vec![modes, channels],
        }
    }

    /// Exponent times step, and the factor of w.
    fn discretised(&self, lambda: Complex64, step: f64) -> (Complex64, Complex64) {
        let z = lambda * step;
        let (exponent, gain) = match self.layout.hold {
            Hold::Zoh => (z, zoh_gain(lambda, step)),
            Hold::Bilinear => (from_bilinear(z), step / (1.0 - 0.5 * z)),
            Hold::None => (z, Complex64::ONE),
        };
        (exponent, self.layout.factor * gain)
    }

    fn continuous(&self, exponent: Complex64, step: f64) -> Complex64 {
        match self.layout.hold {
            Hold::Bilinear => to_bilinear(exponent * step) / step,
            Hold::Zoh | Hold::None => exponent,
        }
    }

    /// The weights of all modes: the product of the factors.
    fn weights(&self, tensors: &Tensors<'_>, shape: &[usize]) -> Result<Vec<Complex64>, Fault> {
        let expected = format!("{shape:?}, the shape of {}", self.layout.decay.name);
        let mut weights = vec![Complex64::ONE; shape.iter().product()];
        for factor in self.layout.weight.factors() {
            let values = match factor {
                Complex::Pairs(name) => tensors.complex(&self.name(name), &[shape])?.1,
                Complex::Split { re, im } => {
                    let [re, im] =
                        [re, im].map(|name| tensors.shaped(&self.name(name), &[shape], &expected));
                    let parts = re?.data.into_iter().zip(im?.data);
                    parts.map(|(re, im)| Complex64::new(re, im)).collect()
                }
            };
            weights
                .iter_mut()
                .zip(values)
                .for_each(|(w, own)| *w *= own);
        }
        Ok(weights)
    }

    /// The factors of the weights: 1 in all but the last.
    fn encode_weights(&self, weights: &[Complex64], shape: &[usize]) -> Vec<Encoded> {
        let factors = self.layout.weight.factors();
        let ones = vec![Complex64::ONE; weights.len()];
        let mut encoded = Vec::new();
        for (index, factor) in factors.iter().enumerate() {
            let values = if index + 1 == factors.len() {
                weights
            } else {
                &ones
            };
            match factor {
                Complex::Pairs(name) => {
                    let pairs = [shape, &[2]].concat();
                    encoded.push(Encoded::mode(self.name(name), pairs, interleave(values)));
                }
                Complex::Split { re, im } => {
                    let parts = values.iter();
                    let [real, imaginary]: [Vec<f64>; 2] = [
                        parts.clone().map(|z| z.re).collect(),
                        parts.map(|z| z.im).collect(),
                    ];
                    encoded.push(Encoded::mode(self.name(re), shape.to_vec(), real));
                    encoded.push(Encoded::mode(self.name(im), shape.to_vec(), imaginary));
                }
            }
        }
        encoded
    }

    fn steps(&self, tensors: &Tensors<'_>, channels: usize) -> Result<Vec<f64>, Fault> {
        let Some(step) = &self.layout.step else {
            return Ok(vec![1.0; channels]);
        };
        let shapes: [&[usize]; 3] = [&[channels], &[channels, 1], &[1, channels]];
        let expected = format!("[{channels}], one step for each channel");
        let found = tensors.shaped(&self.name(&step.name), &shapes, &expected)?;
        let steps = found.data.iter();
        Ok(steps.map(|&x| step.transform.apply(x)).collect())
    }
}

impl Layout for OwnLayer {
    fn family(&self) -> &'static str {
        "own layout"
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let own = &self.layout;
        let name = self.name(&own.decay.name);
        let decay = tensors.values(&name, "[channels, modes]")?;
        let &[rows, columns] = decay.shape.as_slice() else {
            return Err(tensors.wrong_shape(&name, decay.shape, "two axes"));
        };
        let (channels, modes) = match own.axes {
            Axes::ChannelMode => (rows, columns),
            Axes::ModeChannel => (columns, rows),
        };
        if channels * modes == 0 {
            return Err(tensors.wrong_shape(&name, decay.shape, "at least one channel and mode"));
        }
        let expected = format!("{:?}, the shape of {}", decay.shape, own.decay.name);
        let frequency = self.name(&own.frequency.name);
        let frequency = tensors.shaped(&frequency, &[&decay.shape], &expected)?;
        let weights = self.weights(tensors, &decay.shape)?;
        let steps = self.steps(tensors, channels)?;
        let steps = match own.hold {
            Hold::Zoh | Hold::Bilinear if own.step.is_some() => tensors.at_rate(steps),
            _ => steps,
        };
        let through = own.feedthrough.as_ref().map(|name| self.name(name));
        let through = tensors.feedthrough(through.as_deref(), channels, 1)?;
        let bank = (0..channels).map(|h| {
            let is_held = steps[h] != 0.0 || own.hold == Hold::None;
            let step = if is_held {
                steps[h]
            } else {
                bank::STEP_OF_NONE
            };
            let mode = |n: usize| {
                let at = self.at(h, n, channels, modes);
                let decay = own.decay.transform.apply(decay.data[at]);
                let lambda = Complex64::new(-decay, own.frequency.sign * frequency.data[at]);
                let (exponent, gain) = self.discretised(lambda, step);
                let gain = if is_held { gain } else { Complex64::ZERO };
                (exponent / step, weights[at] * gain)
            };
            let (exponents, residues) = (0..modes).map(mode).unzip();
            Modes {
                step,
                exponents,
                residues: vec![residues],
            }
        });
        Ok(Dynamics {
            note: bank::note_of_no_step(&self.layer, &steps, channels),
            ..bank::systems(&self.layer, bank, &through)?
        })
    }

    fn encode(&self, dynamics: &Dynamics, tensors: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let own = &self.layout;
        let bank = bank::single_modes_of(&self.layer, dynamics)?;
        let (channels, modes) = (bank.len(), bank[0].exponents.len());
        let refuse = |h, pole: Complex64, why| {
            not_representable("the layout described", &self.layer, h, pole, why)
        };
        let (mut decay, mut frequency) = (vec![0.0; channels * modes], vec![0.0; channels * modes]);
        let mut weights = vec![Complex64::ZERO; channels * modes];
        let mut steps = Vec::with_capacity(channels);
        for (h, channel) in bank.iter().enumerate() {
            let step = channel.step;
            for n in 0..modes {
                let lambda = self.continuous(channel.exponents[n], step);
                let at = self.at(h, n, channels, modes);
                let stored = own.decay.transform.invert(-lambda.re);
                decay[at] = stored.map_err(|why| refuse(h, lambda, why))?;
                frequency[at] = own.frequency.sign * lambda.im;
                weights[at] = channel.residues[0][n] / self.discretised(lambda, step).1;
            }
            if let Some(stored) = &own.step {
                let stored = stored.transform.invert(step);
                steps.push(stored.map_err(|why| refuse(h, step.into(), why))?);
            }
        }
        let shape = self.shape(channels, modes);
        let mut encoded = vec![
            Encoded::mode(self.name(&own.decay.name), shape.clone(), decay),
            Encoded::mode(self.name(&own.frequency.name), shape.clone(), frequency),
        ];
        encoded.extend(self.encode_weights(&weights, &shape));
        if let Some(step) = &own.step {
            let name = self.name(&step.name);
            let stored = match tensors.contains(&name) {
                true => self.steps(tensors, channels)?,
                false => Vec::new(),
            };
            encoded.push(Encoded {
                role: match bank::is_revived(&bank, &stored) {
                    true => Role::Mode,
                    false => Role::Step,
                },
                ..Encoded::unshaped_step(name, steps)
            });
        }
        if let Some(name) = &own.feedthrough {
            let through = bank::feedthrough_of(dynamics);
            encoded.push(Encoded::feedthrough(self.name(name), through));
        }
        Ok(encoded)
    }
}
