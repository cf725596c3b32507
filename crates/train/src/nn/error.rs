//! Why a model cannot be trained.

use std::path::PathBuf;

use candle_core::DType;
use hankelite::model::ModelError;
use hankelite_archive::ArchiveError;
use hankelite_control::SystemError;
use num_complex::Complex64;

use crate::nn::ArchitectureError;

/// Why a model is no trainable network.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NetworkError {
    /// candle refused.
    #[error(transparent)]
    Candle(#[from] candle_core::Error),
    /// The architecture makes no sense.
    #[error(transparent)]
    Architecture(#[from] ArchitectureError),
    /// A mode that the parameterisation cannot hold.
    #[error("layer `{layer}`, channel {channel}: the mode with lambda = {pole} {why}")]
    Pole {
        /// The layer.
        layer: String,
        /// Index of the channel.
        channel: usize,
        /// λ.
        pole: Complex64,
        /// Why it does not fit.
        why: &'static str,
    },
    /// A channel that is no discrete system with one input and one output, or is none any more.
    #[error("layer `{layer}`, channel {channel}: {source}")]
    System {
        /// The layer.
        layer: String,
        /// Index of the channel.
        channel: usize,
        /// What is wrong with it.
        source: SystemError,
    },
    /// Numbers that are not finite, or parts that do not fit together.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Parts of a model that do not fit together.
    #[error("{what} has {found} channels, expected {expected}")]
    Channels {
        /// Which part.
        what: String,
        /// Channels found.
        found: usize,
        /// Channels of the first layer.
        expected: usize,
    },
    /// Systems of shapes that trainable networks do not have.
    #[error("layer `{layer}`: {found}, expected {expected}")]
    Systems {
        /// The layer.
        layer: String,
        /// What its systems are.
        found: String,
        /// What can be trained.
        expected: &'static str,
    },
    /// Kernels backwards in time that start at the sample at hand.
    #[error(
        "layer `{layer}`: its kernels backwards in time include the current sample, expected them to \
         start at the next one, as in S4 and DSS"
    )]
    Backward {
        /// The layer.
        layer: String,
    },
    /// A file that cannot be read or written.
    #[error(transparent)]
    Archive(#[from] ArchiveError),
    /// A file that does not hold the network of its metadata.
    #[error("{}: {what}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        what: String,
    },
    /// A number type that networks do not run in.
    #[error("networks run in f32 or f64, not in {found:?}")]
    Dtype {
        /// The type requested.
        found: DType,
    },
    /// Settings outside their range.
    #[error("{what} is {found}, expected {expected}")]
    Option {
        /// Which setting.
        what: &'static str,
        /// Its value.
        found: f64,
        /// Its range.
        expected: &'static str,
    },
    /// Maps that are held, of another network.
    #[error("[maps] has entries for {found} layers, expected {layers}: those of the network")]
    Maps {
        /// Layers with entries.
        found: usize,
        /// Layers of the network.
        layers: usize,
    },
}
