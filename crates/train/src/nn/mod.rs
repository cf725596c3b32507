//! Differentiable networks in candle: what the trainer trains.
//!
//! A network is made from a [`Model`](hankelite::model::Model) and gives one back without loss. The
//! trainer sees only the trait [`SequenceModel`].

mod architecture;
mod bank;
#[cfg(feature = "baselines")]
pub mod baseline;
mod block;
mod dynamics;
mod elements;
mod encode;
mod ends;
mod error;
mod filter;
mod fourier;
#[cfg(feature = "cuda")]
pub(crate) mod gpu;
mod gradient;
mod hankel;
mod modes;
mod modes_plain;
mod network;
mod op;
mod operation;
mod pair;
mod parameterisation;
mod penalty;
mod plain;
mod plan;
mod pooling;
mod random;
mod real;
mod rows;
mod shared;
mod shared_plain;
mod space;
mod stack;
mod straight;
mod tables;
mod tensors;

pub use architecture::{
    Architecture, ArchitectureError, Initialisation, LayerKind, Normalisation, OutputKind,
    PoolingKind,
};
use candle_core::backprop::GradStore;
use candle_core::{Device, Tensor, Var};
pub use error::NetworkError;
pub use filter::Filter;
pub use network::{TrainableNetwork, TrainableOptions};
pub use parameterisation::Parameterisation;
use rand_chacha::ChaCha8Rng;
pub use random::{random_model, with_fresh_dynamics};
pub use straight::HeldMaps;
pub(crate) use tensors::host;

/// Which optimiser settings a parameter takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Group {
    /// Step sizes: the rate of the dynamics, no decay.
    Dynamics,
    /// Real and imaginary parts of poles: the rate of the dynamics, a decay of their own.
    Poles,
    /// Weight matrices: the common rate, with decay.
    Plain,
    /// Biases and normalisation: the common rate, no decay.
    NoDecay,
}

/// One trainable tensor.
#[derive(Debug, Clone)]
pub struct Parameter {
    /// Unique within the network, e.g. `blocks.0.log_step`.
    pub name: String,
    /// The tensor.
    pub var: Var,
    /// Its optimiser group.
    pub group: Group,
    /// What the rate of every element is multiplied with, a tensor of its shape; gradients are
    /// multiplied with it before they are clipped. `None` is one.
    pub scale: Option<Tensor>,
}

/// A tensor that training changes without a gradient, e.g. the running mean of a batch norm.
#[derive(Debug, Clone)]
pub struct Buffer {
    /// Unique within the network.
    pub name: String,
    /// The tensor.
    pub var: Var,
}

/// A batch on the device.
#[derive(Debug, Clone)]
pub struct NetworkInput {
    /// Numbers, batch × L × width (f32 or f64), or tokens, batch × L (u32).
    pub steps: Tensor,
    /// The true length of each sequence where they are padded.
    pub lengths: Option<Vec<usize>>,
}

/// How a network is run.
pub enum Mode<'a> {
    /// Dropout and batch statistics on; all randomness comes from here.
    Train(&'a mut ChaCha8Rng),
    /// Deterministic.
    Evaluate,
}

/// What is requested of the filters of every layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Penalty {
    /// The generalisation measure τ, for mean and deviation of the layer inputs of the batch, which
    /// count as constants ([`hankelite::advanced::LayerMeasure`]).
    Measure,
    /// The same for mean 0 and deviation 1: the mean over the channels of ‖k‖₁².
    FilterNorm,
    /// The mean over the channels of Σ σ, the Hankel singular values of the real discrete system. In
    /// training each step looks at a sixteenth of the channels, one at least, drawn at random; in
    /// expectation that is the mean over all.
    Hankel,
}

/// What is requested beside the outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wanted {
    /// The outputs of every layer.
    pub layers: bool,
    /// A number for the filters of every layer.
    pub penalty: Option<Penalty>,
}

/// Outputs with what was requested beside them; all of it can be differentiated.
#[derive(Debug, Clone)]
pub struct Traced {
    /// As [`SequenceModel::forward`] gives them.
    pub outputs: Tensor,
    /// Batch × L × H for each layer; empty where not requested.
    pub layers: Vec<Tensor>,
    /// One number for each layer.
    pub penalties: Option<Tensor>,
}

/// A network that the trainer can train.
pub trait SequenceModel: Send + Sync {
    /// The outputs: batch × classes where the network pools over time, else batch × L × outputs.
    ///
    /// # Errors
    /// candle's, with the shapes that do not fit.
    fn forward(&self, input: &NetworkInput, mode: Mode<'_>) -> candle_core::Result<Tensor>;

    /// The outputs, with what is requested beside them. Networks without layers give no more than the
    /// outputs.
    ///
    /// # Errors
    /// candle's; also for something that this network does not have.
    fn traced(
        &self,
        input: &NetworkInput,
        mode: Mode<'_>,
        wanted: Wanted,
    ) -> candle_core::Result<Traced> {
        if wanted != Wanted::default() {
            candle_core::bail!(
                "this network gives neither the outputs of its layers nor numbers for their filters"
            );
        }
        Ok(Traced {
            outputs: self.forward(input, mode)?,
            layers: Vec::new(),
            penalties: None,
        })
    }

    /// All trainable tensors, always in the same order.
    fn parameters(&self) -> &[Parameter];

    /// The gradient of each parameter from what the backward pass left; `None` for one that it did not
    /// reach.
    ///
    /// # Errors
    /// candle's.
    fn gradients(&self, store: &GradStore) -> candle_core::Result<Vec<Option<Tensor>>> {
        Ok(own_gradients(self.parameters(), store))
    }

    /// All tensors of state without a gradient, always in the same order.
    fn buffers(&self) -> &[Buffer] {
        &[]
    }

    /// Where the tensors are.
    fn device(&self) -> &Device;
}

/// Of parameters that are tensors of their own in the graph.
pub(crate) fn own_gradients(parameters: &[Parameter], store: &GradStore) -> Vec<Option<Tensor>> {
    let own = parameters.iter();
    own.map(|parameter| store.get(parameter.var.as_tensor()).cloned())
        .collect()
}
