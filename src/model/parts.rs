//! What a model is made of: plain data, checked where a model is made of it.

use std::sync::Arc;

use hankelite_control::{DiagonalSystem, SystemClass};
use nalgebra::DMatrix;

/// What a [`Block`](crate::model::Block) is made of, unchecked.
#[derive(Debug, Clone, PartialEq)]
pub struct BlockParts {
    /// The layer's name in the file, e.g. `s4_layers.0`.
    pub name: String,
    /// Discrete systems whose inputs, side by side, are the channels: one with one input and one
    /// output for each channel, or one for all. Output c of system h is column c·H + h of what the
    /// output map takes.
    pub systems: Vec<DiagonalSystem>,
    /// The systems that run backwards in time, as many as forwards and of the same shape; empty for
    /// a causal layer. Their feedthrough is zero.
    pub backward: Vec<DiagonalSystem>,
    /// The lag at which the kernels of `backward` start: 1, the next sample (S4, DSS), or 0, the
    /// current sample, which is then an input of both directions (S5, MEGA).
    pub backward_from: usize,
    /// Whether the file has a place for the feedthrough D. Where it has none, as for a kernel that was
    /// saved alone, D counts as zero here, and no reduction changes it.
    pub holds_feedthrough: bool,
    /// The only systems that the file has a place for, where it cannot hold all; reductions that suit the
    /// file keep to them. `None` where it holds all.
    pub class: Option<SystemClass>,
    /// What follows the state spaces.
    pub activation: Nonlinearity,
    /// The map that mixes channels. `None` when the file holds bare kernels.
    pub output: Option<OutputLinear>,
    /// The normalisation and its place. `None` for a lone layer, which has no residual either.
    pub norm: Option<(Norm, Placement)>,
}

impl BlockParts {
    /// The number of channels.
    pub(crate) fn channels(&self) -> usize {
        let inputs = self.systems.iter().map(|system| system.input().ncols());
        inputs.sum()
    }

    /// The outputs of all systems.
    pub(crate) fn outputs(&self) -> usize {
        let outputs = self.systems.iter().map(|system| system.output().nrows());
        outputs.sum()
    }

    /// The number of channels behind the layer.
    pub(crate) fn width(&self) -> usize {
        match &self.output {
            Some(OutputLinear { linear, gate }) if *gate == Gate::Halves => {
                linear.weight.ncols() / 2
            }
            Some(OutputLinear { linear, .. }) => linear.weight.ncols(),
            None => self.outputs(),
        }
    }
}

/// Where the normalisation of a block stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Placement {
    /// Before the layer, inside the residual branch.
    Pre,
    /// After the residual addition.
    Post,
}

/// y = Wᵀ x + b.
#[derive(Debug, Clone, PartialEq)]
pub struct Linear {
    /// W, inputs × outputs: the memory of a row-major (outputs, inputs) tensor, taken as it is.
    /// Shared, so that a copy of a model copies its dynamics only.
    pub weight: Arc<DMatrix<f64>>,
    /// b, one per output.
    pub bias: Option<Vec<f64>>,
}

/// The nonlinear function behind the state spaces.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Nonlinearity {
    /// GELU, y Φ(y), as torch has it.
    #[default]
    Gelu,
    /// GELU by a tanh, y (1 + tanh(√(2/π) (y + 0.044715 y³)))/2, as jax has it by default; at most
    /// 5e-4 from the other.
    GeluTanh,
}

/// What the outputs m of the linear map of a layer do, y being what the state spaces give and z the
/// activation of that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Gate {
    /// m is what the layer gives.
    #[default]
    None,
    /// a ∘ sigmoid(g) of the halves m = (a, g) (GLU; S5: `full_glu`).
    Halves,
    /// z ∘ sigmoid(m) (S5: `half_glu1`).
    Activated,
    /// y ∘ sigmoid(m) (S5: `half_glu2`).
    Response,
}

/// The linear map after the activation, with or without a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct OutputLinear {
    /// From H channels to H, or to 2H where half of them are gates.
    pub linear: Linear,
    /// What its outputs do.
    pub gate: Gate,
}

/// The normalisation of a block.
#[derive(Debug, Clone, PartialEq)]
pub enum Norm {
    /// Over the channels of each step.
    Layer(LayerNorm),
    /// Of each channel, by mean and variance found in training.
    Batch(BatchNorm),
}

impl Norm {
    /// Factors, offsets, and what is added to the variance.
    pub fn affine(&self) -> (&[f64], &[f64], f64) {
        match self {
            Norm::Layer(norm) => (&norm.weight, &norm.bias, norm.epsilon),
            Norm::Batch(norm) => (&norm.weight, &norm.bias, norm.epsilon),
        }
    }
}

/// Normalisation of each channel by fixed mean and variance, with weight and bias.
#[derive(Debug, Clone, PartialEq)]
pub struct BatchNorm {
    /// One factor per channel.
    pub weight: Vec<f64>,
    /// One offset per channel.
    pub bias: Vec<f64>,
    /// The mean of each channel over the training data.
    pub mean: Vec<f64>,
    /// The variance of each channel over the training data.
    pub variance: Vec<f64>,
    /// What is added to the variance.
    pub epsilon: f64,
}

/// Normalisation over the channels of each step, with weight and bias.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerNorm {
    /// One factor per channel.
    pub weight: Vec<f64>,
    /// One offset per channel.
    pub bias: Vec<f64>,
    /// What is added to the variance.
    pub epsilon: f64,
}
