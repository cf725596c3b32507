//! The standalone DSS layer of ag1988/dss (`src/models/sequence/ss/standalone/dss.py`).
//!
//! With z = Δ Λ (or z = Δ₀ Re Λ + i Δ₁ Im Λ when the file keeps two steps), ε = 1e-7 and
//! r(x) = x̄/(x x̄ + ε):
//!
//! ```text
//! exp, exp-re-im, clip:  K[l] = Re Σ_n W_n (e^{z_n} − 1) Λ̄_n / max(|Λ_n|², ε) · e^{z_n l}
//! *-no-scale:            K[l] = Re Σ_n W_n e^{z_n l}
//! softmax:               K[l] = Re Σ_n W_n (e^{s z} − 1) r((e^{s z L} − 1) Λ) e^{z (l − g (L−1))}
//!                        g = 1 where Re Λ > 0, else 0;  s = 1 − 2g
//! ```
//!
//! All N modes are stored, without a factor 2. The public layer shares Λ over its channels,
//! shape (N); after a reduction every channel has its own, shape (H, N).

use hankelite_control::{dss_exp_gain, dss_softmax_gain, undo_gain};
use num_complex::Complex64;

use crate::checkpoint::declared::DssVersion;
use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::bank::Modes;
use crate::checkpoint::layout::{Dynamics, Encoded, Layout, bank, not_representable};
use crate::checkpoint::tensors::{Tensors, interleave};

/// The largest Re Λ of the `clip` versions.
const CLIP: f64 = 1e-4;
/// Im Λ that stands for a real pole where the layout stores its logarithm: e^{z l} is the same
/// to the last digit.
const REAL_POLE_IM: f64 = 1e-30;

/// The tensor names and the version of one DSS layer.
#[derive(Debug, Clone)]
pub(in crate::checkpoint) struct Dss {
    pub(in crate::checkpoint) layer: String,
    pub(in crate::checkpoint) kernel: String,
    /// Name of D; a bare kernel has none.
    pub(in crate::checkpoint) feedthrough: Option<String>,
    pub(in crate::checkpoint) version: DssVersion,
    /// L of the softmax version.
    pub(in crate::checkpoint) length: Option<usize>,
}

/// One step per channel, or one for the real and one for the imaginary part.
struct Steps {
    real: Vec<f64>,
    imaginary: Vec<f64>,
    separate: bool,
    /// Whether the file stores one set of poles for all channels.
    shared: bool,
}

impl Steps {
    fn one_each(channels: usize) -> Self {
        let ones = vec![1.0; channels];
        Self {
            real: ones.clone(),
            imaginary: ones,
            separate: false,
            shared: false,
        }
    }
}

impl Layout for Dss {
    fn family(&self) -> &'static str {
        "DSS"
    }

    fn decode(&self, tensors: &Tensors<'_>) -> Result<Dynamics, Fault> {
        let mut steps = self.decode_steps(tensors)?;
        if self.version.holds() {
            steps.real = tensors.at_rate(steps.real);
            steps.imaginary = tensors.at_rate(steps.imaginary);
        }
        let channels = steps.real.len();
        let poles = self.decode_poles(tensors, channels)?;
        let modes = poles[0].len();
        let name = self.name("W");
        let (shape, w) = tensors.complex(&name, &[])?;
        let kernels = match shape.as_slice() {
            &[kernels, h, n] if kernels > 0 && (h, n) == (channels, modes) => kernels,
            _ => {
                let expected = format!("[1, {channels}, {modes}] complex numbers");
                return Err(tensors.wrong_shape(&name, shape, &expected));
            }
        };
        let through = tensors.feedthrough(self.feedthrough.as_deref(), channels, kernels)?;
        let channel = |h: usize| {
            let step = steps.real[h];
            let ratio = steps.imaginary[h] / step;
            let exponents = poles[h].iter();
            let exponents: Vec<Complex64> = exponents
                .map(|pole| Complex64::new(pole.re, pole.im * ratio))
                .collect();
            let residues = (0..kernels).map(|k| {
                let weights = &w[(k * channels + h) * modes..][..modes];
                let pairs = exponents.iter().zip(&poles[h]).zip(weights);
                pairs
                    .map(|((&exponent, &pole), &weight)| weight * self.gain(pole, exponent * step))
                    .collect()
            });
            Modes {
                step,
                residues: residues.collect(),
                exponents,
            }
        };
        bank::systems(&self.layer, (0..channels).map(channel), &through)
    }

    /// The tensors that hold other systems, with Λ of shape (H, order).
    fn encode(&self, dynamics: &Dynamics, tensors: &Tensors<'_>) -> Result<Vec<Encoded>, Fault> {
        let bank = bank::modes_of(&self.layer, dynamics)?;
        let stored = match tensors.contains(&self.name("log_dt")) {
            true => self.decode_steps(tensors)?,
            false => Steps::one_each(bank.len()),
        };
        let mut encoded = self.encode_modes(&bank, &stored)?;
        if let Some(name) = &self.feedthrough {
            let through = bank::feedthrough_of(dynamics);
            let shape = vec![through.len() / bank.len(), bank.len()];
            encoded.push(match tensors.contains(name) {
                true => Encoded::feedthrough(name.clone(), through),
                false => Encoded::new_feedthrough(name.clone(), shape, through),
            });
        }
        Ok(encoded)
    }
}

impl Dss {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.kernel)
    }

    fn decode_steps(&self, tensors: &Tensors<'_>) -> Result<Steps, Fault> {
        let name = self.name("log_dt");
        let ranks = [("Lambda", 2), ("Lambda_log_neg_re", 1)];
        let mut ranks = ranks.iter();
        let shared = ranks.any(|(pole, rank)| tensors.rank(&self.name(pole)) == Some(*rank));
        let expected = "[channels] or [channels, 2] log steps";
        let log_dt = tensors.values(&name, expected)?;
        let exp = |values: &mut dyn Iterator<Item = &f64>| values.map(|x| x.exp()).collect();
        match log_dt.shape.as_slice() {
            [_] => {
                let real: Vec<f64> = exp(&mut log_dt.data.iter());
                let (imaginary, separate) = (real.clone(), false);
                Ok(Steps {
                    real,
                    imaginary,
                    separate,
                    shared,
                })
            }
            [_, 2] => Ok(Steps {
                real: exp(&mut log_dt.data.iter().step_by(2)),
                imaginary: exp(&mut log_dt.data.iter().skip(1).step_by(2)),
                separate: true,
                shared,
            }),
            _ => Err(tensors.wrong_shape(&name, log_dt.shape, expected)),
        }
    }

    /// Λ of every channel.
    fn decode_poles(
        &self,
        tensors: &Tensors<'_>,
        channels: usize,
    ) -> Result<Vec<Vec<Complex64>>, Fault> {
        let (poles, shared): (Vec<Complex64>, bool) = match self.version {
            DssVersion::Softmax | DssVersion::Clip | DssVersion::ClipNoScale => {
                let name = self.name("Lambda");
                let found = tensors.values(&name, "[modes, 2] or [channels, modes, 2]")?;
                let shared = matches!(found.shape.as_slice(), [_, 2]);
                if !shared && !matches!(found.shape.as_slice(), [h, _, 2] if *h == channels) {
                    let expected = format!("[modes, 2] or [{channels}, modes, 2]");
                    return Err(tensors.wrong_shape(&name, found.shape, &expected));
                }
                let clip = self.version != DssVersion::Softmax;
                let most = if clip { CLIP } else { f64::INFINITY };
                let poles = found.to_complex().into_iter();
                let poles = poles.map(|pole| Complex64::new(pole.re.min(most), pole.im));
                (poles.collect(), shared)
            }
            DssVersion::Exp | DssVersion::ExpNoScale | DssVersion::ExpReIm => {
                self.decode_log_poles(tensors, channels)?
            }
        };
        if poles.is_empty() || channels == 0 {
            let name = self.name("log_dt");
            return Err(tensors.wrong_shape(
                &name,
                vec![channels],
                "at least one channel and mode",
            ));
        }
        if shared {
            return Ok(vec![poles; channels]);
        }
        let modes = poles.len() / channels;
        Ok(poles.chunks(modes).map(<[_]>::to_vec).collect())
    }

    fn decode_log_poles(
        &self,
        tensors: &Tensors<'_>,
        channels: usize,
    ) -> Result<(Vec<Complex64>, bool), Fault> {
        let name = self.name("Lambda_log_neg_re");
        let decay = tensors.values(&name, "[modes] or [channels, modes]")?;
        let shared = decay.shape.len() == 1;
        if !shared && !matches!(decay.shape.as_slice(), [h, _] if *h == channels) {
            let expected = format!("[modes] or [{channels}, modes]");
            return Err(tensors.wrong_shape(&name, decay.shape, &expected));
        }
        let (second, log) = match self.version {
            DssVersion::ExpReIm => (self.name("Lambda_log_im"), true),
            _ => (self.name("Lambda_im"), false),
        };
        let expected = format!("{:?}, the shape of Lambda_log_neg_re", decay.shape);
        let frequency = tensors.shaped(&second, &[&decay.shape], &expected)?;
        let parts = decay.data.iter().zip(&frequency.data);
        let poles = parts.map(|(a, &b)| Complex64::new(-a.exp(), if log { b.exp() } else { b }));
        Ok((poles.collect(), shared))
    }

    /// The residue of a mode with W = 1.
    fn gain(&self, pole: Complex64, z: Complex64) -> Complex64 {
        match self.version {
            DssVersion::ExpNoScale | DssVersion::ClipNoScale => Complex64::ONE,
            DssVersion::Exp | DssVersion::ExpReIm | DssVersion::Clip => dss_exp_gain(pole, z),
            DssVersion::Softmax => {
                let length = self.length;
                let length = length.expect("the reader asks for L before it decodes");
                dss_softmax_gain(pole, z, length)
            }
        }
    }

    fn encode_modes(&self, bank: &[Modes], stored: &Steps) -> Result<Vec<Encoded>, Fault> {
        let (channels, order) = (bank.len(), bank[0].exponents.len());
        let kernels = bank[0].residues.len();
        let (mut poles, mut log_steps) = (Vec::new(), Vec::new());
        let mut weights = vec![Complex64::ZERO; kernels * channels * order];
        for (h, modes) in bank.iter().enumerate() {
            let step = modes.step;
            let ratio = stored.imaginary[h] / stored.real[h];
            log_steps.push(step.ln());
            if stored.separate {
                log_steps.push((step * ratio).ln());
            }
            for (n, &exponent) in modes.exponents.iter().enumerate() {
                let (exponent, turned) = self.storable(exponent);
                let pole = Complex64::new(exponent.re, exponent.im / ratio);
                self.check(pole, h)?;
                let gain = self.gain(pole, exponent * step);
                for (k, residues) in modes.residues.iter().enumerate() {
                    let residue = residues[n];
                    let residue = if turned { residue.conj() } else { residue };
                    weights[(k * channels + h) * order + n] = undo_gain(residue, gain);
                }
                poles.push(pole);
            }
        }
        let log_shape = [vec![channels], vec![2; usize::from(stored.separate)]].concat();
        let mut encoded = match stored.shared && bank::all_same(&poles, order) {
            true => self.encode_poles(&poles[..order], vec![order]),
            false => self.encode_poles(&poles, vec![channels, order]),
        };
        encoded.push(Encoded::step(self.name("log_dt"), log_shape, log_steps));
        let shape = vec![kernels, channels, order, 2];
        encoded.push(Encoded::mode(self.name("W"), shape, interleave(&weights)));
        Ok(encoded)
    }

    /// Where the logarithm of Im Λ is stored, the member of a pair with Im > 0 is taken, and
    /// whether that turned it: the real part of the kernel is the same.
    fn storable(&self, exponent: Complex64) -> (Complex64, bool) {
        if self.version != DssVersion::ExpReIm || exponent.im > 0.0 {
            return (exponent, false);
        }
        if exponent.im == 0.0 {
            return (Complex64::new(exponent.re, REAL_POLE_IM), false);
        }
        (exponent.conj(), true)
    }

    fn check(&self, pole: Complex64, channel: usize) -> Result<(), Fault> {
        let why = match self.version {
            DssVersion::Softmax => return Ok(()),
            DssVersion::Clip | DssVersion::ClipNoScale if pole.re <= CLIP => return Ok(()),
            DssVersion::Clip | DssVersion::ClipNoScale => "its real part is above the clip 1e-4",
            _ if pole.re < 0.0 => return Ok(()),
            _ => "the layout stores the logarithm of −Re Λ, which must be positive",
        };
        Err(not_representable("DSS", &self.layer, channel, pole, why))
    }

    fn encode_poles(&self, poles: &[Complex64], grid: Vec<usize>) -> Vec<Encoded> {
        let decay = || poles.iter().map(|pole| (-pole.re).ln()).collect();
        match self.version {
            DssVersion::Softmax | DssVersion::Clip | DssVersion::ClipNoScale => {
                let shape = [grid, vec![2]].concat();
                vec![Encoded::mode(self.name("Lambda"), shape, interleave(poles))]
            }
            DssVersion::ExpReIm => {
                let log_im = poles.iter().map(|pole| pole.im.ln()).collect();
                vec![
                    Encoded::mode(self.name("Lambda_log_neg_re"), grid.clone(), decay()),
                    Encoded::mode(self.name("Lambda_log_im"), grid, log_im),
                ]
            }
            DssVersion::Exp | DssVersion::ExpNoScale => {
                let im = poles.iter().map(|pole| pole.im).collect();
                vec![
                    Encoded::mode(self.name("Lambda_log_neg_re"), grid.clone(), decay()),
                    Encoded::mode(self.name("Lambda_im"), grid, im),
                ]
            }
        }
    }
}
