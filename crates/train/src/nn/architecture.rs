//! What a network from scratch looks like.

use hankelite::model::{Encoder, Gate, Model, Norm, Placement, Pooling};

use crate::nn::Parameterisation;

/// The state space layers of a network from scratch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayerKind {
    /// S4D: one of each conjugate pair of modes is stored.
    S4d,
    /// DSS with decaying modes.
    DssExp,
    /// DSS whose modes may grow; its kernel depends on the length.
    DssSoftmax,
}

impl LayerKind {
    /// How such layers are trained.
    pub fn parameterisation(self) -> Parameterisation {
        match self {
            LayerKind::S4d => Parameterisation::S4d,
            LayerKind::DssExp => Parameterisation::DssExp,
            LayerKind::DssSoftmax => Parameterisation::DssSoftmax,
        }
    }
}

/// Where the poles of a layer from scratch stand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Initialisation {
    /// S4D-Lin: λ_n = −½ + iπn.
    Lin,
    /// The eigenvalues with positive imaginary part of the normal part of HiPPO-LegS.
    SkewHippo,
    /// Re λ uniform in (−1, 0) and Im λ normal; for DSS-softmax both normal.
    Random,
}

/// Over what the normalisation averages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Normalisation {
    /// The channels of each step.
    #[default]
    Layer,
    /// The steps of all sequences.
    Batch,
}

/// The map after the activation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum OutputKind {
    /// H to 2H, half of which gates the other.
    #[default]
    Glu,
    /// H to H.
    Linear,
}

/// How the steps become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PoolingKind {
    /// Their mean.
    #[default]
    Mean,
    /// The last one.
    Last,
    /// Not at all: outputs at every step.
    None,
}

/// A network from scratch.
#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Architecture {
    /// The layers.
    pub layer: LayerKind,
    /// Where their poles start; by default `lin` for S4D and `skew-hippo` for DSS.
    #[serde(default)]
    pub initialisation: Option<Initialisation>,
    /// H, at least 1.
    pub channels: usize,
    /// Stored modes of each channel, at least 1.
    pub states: usize,
    /// Number of layers, at least 1.
    pub layers: usize,
    /// The normalisation; `layer` by default.
    #[serde(default)]
    pub norm: Normalisation,
    /// Its place; `pre` by default.
    #[serde(default = "pre")]
    pub placement: Placement,
    /// The map after the activation; `glu` by default.
    #[serde(default)]
    pub output: OutputKind,
    /// How the steps become one vector; `mean` by default.
    #[serde(default)]
    pub pooling: PoolingKind,
    /// The share of channels that dropout silences, 0 (the default) up to below 1.
    #[serde(default)]
    pub dropout: f64,
    /// Whether every layer also runs backwards in time; off by default.
    #[serde(default)]
    pub bidirectional: bool,
    /// Numbers of each step of the data. Either this or `vocabulary`.
    #[serde(default)]
    pub inputs: Option<usize>,
    /// Tokens of the data, for an embedding.
    #[serde(default)]
    pub vocabulary: Option<usize>,
    /// Classes, or outputs of each step; at least 1.
    pub outputs: usize,
    /// Rows of a trainable measurement S in front of the encoder; none by default.
    #[serde(default)]
    pub measurements: Option<usize>,
    /// The smallest step Δ at the start, above 0; 0.001 by default. Steps are log-uniform.
    #[serde(default = "step_min")]
    pub step_min: f64,
    /// The largest one; 0.1 by default.
    #[serde(default = "step_max")]
    pub step_max: f64,
}

fn pre() -> Placement {
    Placement::Pre
}

fn step_min() -> f64 {
    0.001
}

fn step_max() -> f64 {
    0.1
}

/// Why an architecture makes no sense.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ArchitectureError {
    /// A number outside its range.
    #[error("`{key}` is {found}, expected {expected}")]
    Range {
        /// The key.
        key: &'static str,
        /// Its value.
        found: f64,
        /// What it may be.
        expected: &'static str,
    },
    /// Neither or both encoders.
    #[error("expected either `inputs` (numbers) or `vocabulary` (tokens)")]
    Encoder,
    /// A dictionary that gives something else than the signal.
    #[error(
        "`output` is dictionary, which gives the signal at every step: expected `pooling` none and \
         {signal} `outputs`, found {outputs}"
    )]
    Dictionary {
        /// Outputs requested.
        outputs: usize,
        /// Numbers of the signal.
        signal: usize,
    },
    /// Measurements of tokens.
    #[error("`measurements` are of numbers: expected `inputs`, not `vocabulary`")]
    Measurements,
}

impl Architecture {
    /// One layer of one mode and one output, with the defaults of all other settings. The caller
    /// sets the sizes, and either `inputs` or `vocabulary`.
    pub fn new(layer: LayerKind) -> Self {
        Self {
            layer,
            initialisation: None,
            channels: 1,
            states: 1,
            layers: 1,
            norm: Normalisation::default(),
            placement: pre(),
            output: OutputKind::default(),
            pooling: PoolingKind::default(),
            dropout: 0.0,
            bidirectional: false,
            inputs: None,
            vocabulary: None,
            outputs: 1,
            measurements: None,
            step_min: step_min(),
            step_max: step_max(),
        }
    }

    /// The architecture of a model with layers of this kind, with the default steps and without
    /// dropout. `None` for a lone layer.
    pub fn of(model: &Model, layer: LayerKind) -> Option<Self> {
        let (encoder, head) = (model.encoder()?, model.head()?);
        let first = model.blocks().first()?;
        let (norm, placement) = first.norm()?;
        let linear = matches!(encoder, Encoder::Linear(_));
        Some(Self {
            channels: first.channels(),
            states: first.order(),
            layers: model.blocks().len(),
            norm: match norm {
                Norm::Layer(_) => Normalisation::Layer,
                Norm::Batch(_) => Normalisation::Batch,
            },
            placement: *placement,
            output: match first.output()?.gate {
                Gate::Halves => OutputKind::Glu,
                Gate::None => OutputKind::Linear,
                Gate::Activated | Gate::Response => return None,
            },
            pooling: match head.pooling {
                Some(Pooling::Mean) => PoolingKind::Mean,
                Some(Pooling::Last) => PoolingKind::Last,
                None => PoolingKind::None,
            },
            bidirectional: !first.backward().is_empty(),
            inputs: model.inputs().filter(|_| linear),
            vocabulary: model.inputs().filter(|_| !linear),
            outputs: model.classes()?,
            ..Self::new(layer)
        })
    }

    /// The initialisation that is taken.
    pub fn initialisation(&self) -> Initialisation {
        let default = match self.layer {
            LayerKind::S4d => Initialisation::Lin,
            LayerKind::DssExp | LayerKind::DssSoftmax => Initialisation::SkewHippo,
        };
        self.initialisation.unwrap_or(default)
    }

    /// Checks every setting.
    ///
    /// # Errors
    /// [`ArchitectureError`] with the key, its value and its range.
    pub fn check(&self) -> Result<(), ArchitectureError> {
        let range = |key, found, expected| ArchitectureError::Range {
            key,
            found,
            expected,
        };
        let counts = [
            ("channels", Some(self.channels)),
            ("states", Some(self.states)),
            ("layers", Some(self.layers)),
            ("outputs", Some(self.outputs)),
            ("inputs", self.inputs),
            ("vocabulary", self.vocabulary),
            ("measurements", self.measurements),
        ];
        for (key, count) in counts {
            if count == Some(0) {
                return Err(range(key, 0.0, "at least 1"));
            }
        }
        if self.inputs.is_some() == self.vocabulary.is_some() {
            return Err(ArchitectureError::Encoder);
        }
        if self.measurements.is_some() && self.inputs.is_none() {
            return Err(ArchitectureError::Measurements);
        }
        if !(0.0..1.0).contains(&self.dropout) {
            return Err(range("dropout", self.dropout, "0 up to below 1"));
        }
        if !(self.step_min > 0.0 && self.step_min.is_finite()) {
            return Err(range("step_min", self.step_min, "a positive number"));
        }
        if !(self.step_max >= self.step_min && self.step_max.is_finite()) {
            return Err(range("step_max", self.step_max, "at least `step_min`"));
        }
        Ok(())
    }
}
