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

use num_complex::Complex64;

use crate::checkpoint::declared::DssVersion;
use crate::checkpoint::encoded::Encoded;
use crate::checkpoint::encoded::Role;
use crate::checkpoint::encoded::padded_modes;
use crate::checkpoint::encoded::stored_order;
use crate::checkpoint::error::Fault;
use crate::checkpoint::tensors::Tensors;
use crate::checkpoint::tensors::interleave;
use crate::linalg::expm1;
use crate::ssm::DiagonalSystem;
use crate::ssm::Time;

/// What the public code adds to, or clamps, squared moduli with.
const EPSILON: f64 = 1e-7;
/// The largest Re Λ of the `clip` versions.
const CLIP: f64 = 1e-4;
/// Im Λ that stands for a real pole where the layout stores its logarithm: e^{z l} is the same
/// to the last digit.
const REAL_POLE_IM: f64 = 1e-30;

/// The tensor names and the version of one DSS layer.
#[derive(Debug, Clone)]
pub(super) struct Dss {
    pub(super) layer: String,
    pub(super) kernel: String,
    /// Name of D; a bare kernel has none.
    pub(super) feedthrough: Option<String>,
    pub(super) version: DssVersion,
    /// L of the softmax version.
    pub(super) length: Option<usize>,
}

/// One step per channel, or one for the real and one for the imaginary part.
struct Steps {
    real: Vec<f64>,
    imaginary: Vec<f64>,
    separate: bool,
}

impl Dss {
    fn name(&self, tensor: &str) -> String {
        format!("{}{tensor}", self.kernel)
    }

    pub(super) fn decode(&self, tensors: &Tensors<'_>) -> Result<Vec<DiagonalSystem>, Fault> {
        let steps = self.decode_steps(tensors)?;
        let channels = steps.real.len();
        let poles = self.decode_poles(tensors, channels)?;
        let modes = poles[0].len();
        let w = self.name("W");
        let expected = format!("[1, {channels}, {modes}, 2] (real and imaginary parts)");
        let found = tensors.values(&w, &expected)?;
        if found.shape == [2, channels, modes, 2] {
            return Err(Fault::Unsupported {
                what: "a DSS layer with two kernels per channel (bidirectional or channels = 2)",
                tensor: tensors.full(&w),
                why: "only causal layers with one kernel per channel are read",
            });
        }
        if found.shape != [1, channels, modes, 2] {
            return Err(tensors.wrong_shape(&w, found.shape, &expected));
        }
        let w = found.to_complex();
        let feedthrough = tensors.feedthrough(self.feedthrough.as_deref(), channels)?;
        let channel = |h: usize| {
            let step = steps.real[h];
            let ratio = steps.imaginary[h] / step;
            let weights = &w[h * modes..(h + 1) * modes];
            let lambdas = poles[h].iter();
            let exponents: Vec<Complex64> = lambdas
                .map(|pole| Complex64::new(pole.re, pole.im * ratio))
                .collect();
            let residues: Vec<Complex64> = (exponents.iter().zip(&poles[h]))
                .zip(weights)
                .map(|((&exponent, &pole), &weight)| weight * self.gain(pole, exponent * step))
                .collect();
            let time = Time::Discrete { step };
            DiagonalSystem::siso(time, exponents, &residues, feedthrough[h]).map_err(|source| {
                Fault::System {
                    layer: self.layer.clone(),
                    channel: h,
                    source,
                }
            })
        };
        (0..channels).map(channel).collect()
    }

    fn decode_steps(&self, tensors: &Tensors<'_>) -> Result<Steps, Fault> {
        let name = self.name("log_dt");
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
                })
            }
            [_, 2] => Ok(Steps {
                real: exp(&mut log_dt.data.iter().step_by(2)),
                imaginary: exp(&mut log_dt.data.iter().skip(1).step_by(2)),
                separate: true,
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
            DssVersion::Exp | DssVersion::ExpReIm | DssVersion::Clip => {
                expm1(z) * pole.conj() / pole.norm_sqr().max(EPSILON)
            }
            DssVersion::Softmax => {
                let length = self
                    .length
                    .expect("the reader asks for L before it decodes")
                    as f64;
                let growing = pole.re > 0.0;
                let decaying = if growing { -z } else { z };
                let x = expm1(decaying * length) * pole;
                let shift = if growing {
                    (-z * (length - 1.0)).exp()
                } else {
                    Complex64::ONE
                };
                expm1(decaying) * x.conj() / (x.norm_sqr() + EPSILON) * shift
            }
        }
    }

    /// The tensors that hold other systems, with Λ of shape (H, order).
    pub(super) fn encode(
        &self,
        systems: &[DiagonalSystem],
        tensors: &Tensors<'_>,
    ) -> Result<Vec<Encoded>, Fault> {
        self.encode_steps(systems, &self.decode_steps(tensors)?)
    }

    /// As [`Dss::encode`], for systems that came from no file: one step per channel.
    pub(super) fn encode_new(&self, systems: &[DiagonalSystem]) -> Result<Vec<Encoded>, Fault> {
        let ones = vec![1.0; systems.len()];
        let steps = Steps {
            real: ones.clone(),
            imaginary: ones,
            separate: false,
        };
        let mut encoded = self.encode_steps(systems, &steps)?;
        for tensor in &mut encoded {
            if tensor.role == Role::Feedthrough {
                tensor.shape = Some(vec![1, systems.len()]);
            }
        }
        Ok(encoded)
    }

    fn encode_steps(
        &self,
        systems: &[DiagonalSystem],
        stored: &Steps,
    ) -> Result<Vec<Encoded>, Fault> {
        let channels = systems.len();
        let order = stored_order(systems);
        let (mut poles, mut weights) = (Vec::new(), Vec::new());
        let mut log_steps = Vec::new();
        for (h, system) in systems.iter().enumerate() {
            let (step, modes) = padded_modes(&self.layer, h, system, order)?;
            let ratio = stored.imaginary[h] / stored.real[h];
            log_steps.push(step.ln());
            if stored.separate {
                log_steps.push((step * ratio).ln());
            }
            for (exponent, residue) in modes {
                let (exponent, residue) = self.storable(exponent, residue);
                let pole = Complex64::new(exponent.re, exponent.im / ratio);
                self.check(pole, h)?;
                weights.push(residue / self.gain(pole, exponent * step));
                poles.push(pole);
            }
        }
        let grid = vec![channels, order];
        let log_shape = [vec![channels], vec![2; usize::from(stored.separate)]].concat();
        let mut encoded = self.encode_poles(&poles, grid);
        encoded.push(Encoded::step(self.name("log_dt"), log_shape, log_steps));
        let shape = vec![1, channels, order, 2];
        encoded.push(Encoded::mode(self.name("W"), shape, interleave(&weights)));
        if let Some(name) = &self.feedthrough {
            let values = systems.iter().map(|system| system.feedthrough()[(0, 0)]);
            encoded.push(Encoded::feedthrough(name.clone(), values.collect()));
        }
        Ok(encoded)
    }

    /// Where the logarithm of Im Λ is stored, the member of a pair with Im > 0 is taken: the real
    /// part of the kernel is the same.
    fn storable(&self, exponent: Complex64, residue: Complex64) -> (Complex64, Complex64) {
        if self.version != DssVersion::ExpReIm || exponent.im > 0.0 {
            return (exponent, residue);
        }
        if exponent.im == 0.0 {
            return (Complex64::new(exponent.re, REAL_POLE_IM), residue);
        }
        (exponent.conj(), residue.conj())
    }

    fn check(&self, pole: Complex64, channel: usize) -> Result<(), Fault> {
        let why = match self.version {
            DssVersion::Softmax => return Ok(()),
            DssVersion::Clip | DssVersion::ClipNoScale if pole.re <= CLIP => return Ok(()),
            DssVersion::Clip | DssVersion::ClipNoScale => "its real part is above the clip 1e-4",
            _ if pole.re < 0.0 => return Ok(()),
            _ => "the layout stores the logarithm of −Re Λ, which must be positive",
        };
        Err(Fault::NotRepresentable {
            layout: "DSS",
            layer: self.layer.clone(),
            channel,
            pole,
            why,
        })
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
