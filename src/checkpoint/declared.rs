//! What the tensors of a file do not record, and where it is looked up.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::checkpoint::error::Fault;
use crate::checkpoint::layout::{OwnLayout, Transform};
use crate::checkpoint::provenance::Record;
use crate::model::{Nonlinearity, Placement, Pooling};

/// Things a person declares because no tensor records them. Each may stand on the command line, in
/// the file's own `hankelite` metadata, or in a sidecar `NAME.hankelite.toml`; the first of these
/// that speaks is believed.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Declared {
    /// Where the normalisation stands.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub norm: Option<Placement>,
    /// How the steps are pooled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pooling: Option<Pooling>,
    /// Whether there is no pooling at all, but outputs at every step; `pooling` is then not looked
    /// at.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub per_step: bool,
    /// The kernel formula of a DSS layer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dss_version: Option<DssVersion>,
    /// The sequence length L. It enters the softmax kernel of DSS and the window over which
    /// kernel errors are measured.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub length: Option<usize>,
    /// How the full state-spaces/s4 repository, S5 or LinOSS discretises.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub discretisation: Option<Discretisation>,
    /// What `inv_dt` of state-spaces/s4 v4 goes through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dt_transform: Option<Transform>,
    /// What the stored decays of state-spaces/s4 v3 and v4 go through.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub real_transform: Option<Transform>,
    /// The limit on frequencies (`bandlimit`) of state-spaces/s4 v4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub bandlimit: Option<f64>,
    /// Whether S5 stores one of each conjugate pair.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conj_sym: Option<bool>,
    /// Whether S5 cuts real parts at −1e-4.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clip_eigs: Option<bool>,
    /// What the single map of a layer of S5 gates.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub half_gate: Option<HalfGate>,
    /// How networks of S5, minimal-LRU and lru-reduction compute GELU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gelu: Option<Gelu>,
    /// Stored modes of each channel that S4 layers in diagonal-plus-low-rank form are to have as
    /// diagonal ones; they are refused without.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub diagonalise: Option<usize>,
    /// Which of several sets of weights of the file is read, `all` for all of them; without it the
    /// entry with the most telling name, or all modules.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "part_text")]
    pub part: Option<PartName>,
}

/// The name of a set of weights: what its tensors' names start with, or the key of its entry.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PartName {
    /// Behind the name zeros.
    bytes: [u8; PartName::LONGEST],
}

impl PartName {
    /// Bytes of the longest.
    const LONGEST: usize = 64;

    /// A name; none where it is empty, of more than 64 bytes, or holds a zero.
    pub fn new(name: &str) -> Option<Self> {
        let mut bytes = [0; Self::LONGEST];
        let held = bytes.get_mut(..name.len())?;
        if name.is_empty() || name.contains('\0') {
            return None;
        }
        held.copy_from_slice(name.as_bytes());
        Some(Self { bytes })
    }

    /// As text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let end = self.bytes.iter().position(|byte| *byte == 0);
        let text = std::str::from_utf8(&self.bytes[..end.unwrap_or(Self::LONGEST)]);
        text.unwrap_or_default()
    }
}

impl std::fmt::Debug for PartName {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.as_str().fmt(f)
    }
}

/// The name of a set of weights as text.
mod part_text {
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

    use super::PartName;

    pub(super) fn serialize<S: Serializer>(
        name: &Option<PartName>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        name.as_ref().map(PartName::as_str).serialize(serializer)
    }

    pub(super) fn deserialize<'d, D: Deserializer<'d>>(
        deserializer: D,
    ) -> Result<Option<PartName>, D::Error> {
        let expected = "expected the name of a set of weights, of 1 to 64 bytes";
        let named = |name: String| PartName::new(&name).ok_or_else(|| de::Error::custom(expected));
        Option::deserialize(deserializer)?.map(named).transpose()
    }
}

/// What the gates of a layer of lindermanlab/S5 with one map act on, y being what the state spaces
/// give.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum HalfGate {
    /// GELU(y).
    #[serde(rename = "half-glu1")]
    HalfGlu1,
    /// y.
    #[serde(rename = "half-glu2")]
    HalfGlu2,
}

/// The two functions that are called GELU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Gelu {
    /// With the exact normal distribution, the default of torch.
    Exact,
    /// By a tanh, the default of jax.
    Tanh,
}

impl Gelu {
    pub(super) fn function(self) -> Nonlinearity {
        match self {
            Gelu::Exact => Nonlinearity::Gelu,
            Gelu::Tanh => Nonlinearity::GeluTanh,
        }
    }
}

/// How a continuous system becomes a discrete one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Discretisation {
    /// Zero-order hold.
    Zoh,
    /// Bilinear, after Tustin.
    Bilinear,
    /// The softmax kernel of DSS, for a length L.
    Dss,
    /// An oscillator of LinOSS by an implicit step.
    Im,
    /// An oscillator of LinOSS by an implicit step of its place and an explicit one of its velocity;
    /// damping, where there is some, is implicit.
    Imex,
    /// The same with explicit damping.
    Imex2,
    /// An oscillator by an explicit step.
    Ex,
    /// An impulse in each sample.
    Dirac,
    /// An impulse in each sample of what a zero-order hold gives over one step (Event-SSM).
    Async,
}

/// What the input of a layer in continuous time is between its samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AnyStep {
    /// Held from sample to sample.
    Held,
    /// Zero: a sample is an impulse.
    Impulses,
}

impl Discretisation {
    /// The name in the public code's configuration.
    pub fn name(self) -> &'static str {
        match self {
            Discretisation::Zoh => "zoh",
            Discretisation::Bilinear => "bilinear",
            Discretisation::Dss => "dss",
            Discretisation::Im => "im",
            Discretisation::Imex => "imex",
            Discretisation::Imex2 => "imex2",
            Discretisation::Ex => "ex",
            Discretisation::Dirac => "dirac",
            Discretisation::Async => "async",
        }
    }
}

/// The kernel formulas of the public DSS code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DssVersion {
    /// Normalised over the row by a softmax; depends on L.
    Softmax,
    /// Zero-order hold with Re Λ = −exp(…).
    Exp,
    /// As `Exp`, with Im Λ = exp(…) too.
    ExpReIm,
    /// As `Exp`, without the hold's factor.
    ExpNoScale,
    /// Zero-order hold with Re Λ clipped at 1e-4.
    Clip,
    /// As `Clip`, without the hold's factor.
    ClipNoScale,
}

impl DssVersion {
    /// Whether the kernel is that of a continuous system behind a zero-order hold.
    pub(super) fn holds(self) -> bool {
        matches!(
            self,
            DssVersion::Exp | DssVersion::ExpReIm | DssVersion::Clip
        )
    }

    /// The name in the public code's configuration.
    pub fn name(self) -> &'static str {
        match self {
            DssVersion::Softmax => "softmax",
            DssVersion::Exp => "exp",
            DssVersion::ExpReIm => "exp-re-im",
            DssVersion::ExpNoScale => "exp-no-scale",
            DssVersion::Clip => "clip",
            DssVersion::ClipNoScale => "clip-no-scale",
        }
    }
}

impl Declared {
    /// This, with its gaps filled from `other`.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            norm: self.norm.or(other.norm),
            pooling: self.pooling.or(other.pooling),
            // A declared pooling leaves one output for each sequence.
            per_step: self.per_step || self.pooling.is_none() && other.per_step,
            dss_version: self.dss_version.or(other.dss_version),
            length: self.length.or(other.length),
            discretisation: self.discretisation.or(other.discretisation),
            dt_transform: self.dt_transform.or(other.dt_transform),
            real_transform: self.real_transform.or(other.real_transform),
            bandlimit: self.bandlimit.or(other.bandlimit),
            conj_sym: self.conj_sym.or(other.conj_sym),
            clip_eigs: self.clip_eigs.or(other.clip_eigs),
            half_gate: self.half_gate.or(other.half_gate),
            gelu: self.gelu.or(other.gelu),
            diagonalise: self.diagonalise.or(other.diagonalise),
            part: self.part.or(other.part),
        }
    }

    /// Where the sidecar of a checkpoint lies: `model.pth` has `model.hankelite.toml`.
    pub(crate) fn sidecar(checkpoint: &Path) -> PathBuf {
        checkpoint.with_extension("hankelite.toml")
    }

    pub(super) fn from_sidecar(checkpoint: &Path) -> Result<Self, Fault> {
        let path = Self::sidecar(checkpoint);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Self::default());
            }
            Err(error) => return Err(unreadable(&path, &error)),
        };
        toml::from_str(&text).map_err(|error| unreadable(&path, &error))
    }
}

fn unreadable(path: &Path, error: &dyn std::fmt::Display) -> Fault {
    Fault::Declarations {
        place: path.display().to_string(),
        message: error.to_string().trim_end().to_string(),
    }
}

/// What stands under the key `hankelite` of a file that was written here.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Metadata {
    /// Version of the program that wrote it.
    pub(super) hankelite: String,
    /// What had been declared or assumed.
    pub(super) declared: Declared,
    /// The description of the layers, where a person gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) layout: Option<OwnLayout>,
    #[serde(flatten)]
    pub(super) record: Record,
}

/// What a file of a network without state space layers records.
#[derive(Deserialize)]
struct BaselineMark {
    baseline: BaselineLayer,
}

#[derive(Deserialize)]
struct BaselineLayer {
    layer: String,
}

impl Metadata {
    pub(super) fn parse(text: Option<&str>) -> Result<Self, Fault> {
        let Some(text) = text else {
            return Ok(Self::new(Declared::default(), None, &Record::default()));
        };
        if let Ok(mark) = serde_json::from_str::<BaselineMark>(text) {
            return Err(Fault::Baseline {
                layer: mark.baseline.layer,
            });
        }
        serde_json::from_str(text).map_err(|error| Fault::Declarations {
            place: "the metadata key `hankelite`".to_string(),
            message: error.to_string(),
        })
    }

    fn new(declared: Declared, layout: Option<&OwnLayout>, record: &Record) -> Self {
        Self {
            hankelite: env!("CARGO_PKG_VERSION").to_string(),
            declared,
            layout: layout.cloned(),
            record: record.clone(),
        }
    }

    pub(super) fn render(
        declared: Declared,
        layout: Option<&OwnLayout>,
        record: &Record,
    ) -> String {
        let metadata = Self::new(declared, layout, record);
        serde_json::to_string(&metadata).expect("plain fields serialise")
    }
}
