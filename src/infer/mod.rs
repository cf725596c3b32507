//! Running a model on whole sequences on the host, in double precision.
//!
//! This is the path that accuracies and comparisons come from. It keeps no state between calls
//! and needs no training crate. Every sequence is independent, so they run on all cores.

mod adjoint;
mod layer;
mod mimo;
mod score;

pub(crate) use adjoint::{CombinationSlopes, LayerSlopes, combination};
pub use adjoint::{OutputGradients, importance};
use hankelite_control::{Convolver, StatisticsError, SystemError};
pub(crate) use layer::StepSums;
use layer::{Layer, apply_linear, normalised};
use nalgebra::DMatrix;
use rayon::prelude::*;
pub use score::{Agreement, Score};

use crate::measure::MeasureError;
use crate::model::{Encoder, InputError, Model, Pooling, Sequence};
use crate::progress::{Cancelled, ProgressSink, Stage};

/// How the state space layers are evaluated. All give the same numbers to rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Path {
    /// By FFT where every system of a layer has one input and one output, else by the recurrence.
    Auto,
    /// Convolution with the kernel by FFT: O(L log L) per channel. For layers whose systems have
    /// one input and one output each.
    Fft,
    /// The recurrence, mode by mode: O(L N) per channel, the form that a device streams.
    Recurrence,
}

/// A sequence on its way through the network.
#[derive(Clone)]
pub(crate) struct Signal {
    /// L × H, padding included.
    pub(crate) x: DMatrix<f64>,
    /// Steps that are no padding.
    pub(crate) steps: usize,
}

/// Why a model cannot run on given data.
#[derive(Debug, thiserror::Error, PartialEq)]
#[non_exhaustive]
pub enum InferError {
    /// The file held layers but no classifier.
    #[error("the model has no {missing}: layers alone were read, expected a whole classifier")]
    NotAClassifier {
        /// `encoder` or `head`.
        missing: &'static str,
    },
    /// The data are not what the encoder takes.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Statistics of nothing.
    #[error("no sequences to gather statistics from")]
    NoSequences,
    /// One of many sequences does not fit.
    #[error("sequence {index}: {source}")]
    Sequence {
        /// Its place among those given.
        index: usize,
        /// What is wrong with it.
        source: Box<InferError>,
    },
    /// The input of a layer has no statistics, e.g. because numbers overflow on the way.
    #[error("the input of layer {layer}: {source}")]
    Statistics {
        /// Index of the layer.
        layer: usize,
        /// What is wrong.
        source: StatisticsError,
    },
    /// The input of a layer has no mean or deviation at each step, because numbers overflow.
    #[error("the input of layer {layer}: {source}")]
    Steps {
        /// Index of the layer.
        layer: usize,
        /// What is wrong.
        source: MeasureError,
    },
    /// A convolution requested of a layer that has none.
    #[error(
        "a layer has systems with several inputs or outputs, which run by their recurrence; \
         expected the path `auto` or `recurrence`"
    )]
    NoConvolution,
    /// A layer whose kernel cannot be formed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// The observer of the network requested the end of the work.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

/// A model prepared for sequences of one length.
pub struct Network<'a> {
    model: &'a Model,
    layers: Vec<Layer<'a>>,
    length: usize,
    observer: &'a dyn ProgressSink,
}

impl<'a> Network<'a> {
    /// Forms kernels, spectra or recurrences for sequences of `length` steps. Channels run in
    /// parallel. Cost O(H N L) per layer.
    ///
    /// # Errors
    /// [`InferError::NotAClassifier`]; [`InferError::System`].
    pub fn new(model: &'a Model, length: usize, path: Path) -> Result<Self, InferError> {
        if model.encoder().is_none() {
            return Err(InferError::NotAClassifier { missing: "encoder" });
        }
        if model.head().is_none() {
            return Err(InferError::NotAClassifier { missing: "head" });
        }
        let convolver = std::sync::Arc::new(Convolver::new(length));
        let layers = model.blocks().iter();
        let layers = layers.map(|block| Layer::new(block, length, path, &convolver));
        Ok(Self {
            model,
            layers: layers.collect::<Result<_, _>>()?,
            length,
            observer: &(),
        })
    }

    /// The same network, whose work on many sequences `observer` follows and can cancel.
    #[must_use]
    pub fn observed(self, observer: &'a dyn ProgressSink) -> Self {
        Self { observer, ..self }
    }

    /// Begins a stage of work on so many sequences.
    pub(crate) fn begin(&self, stage: Stage, sequences: usize) -> &'a dyn ProgressSink {
        self.observer.begin(stage, sequences);
        self.observer
    }

    /// Steps that sequences are padded to.
    pub fn length(&self) -> usize {
        self.length
    }

    /// The model that runs.
    pub fn model(&self) -> &'a Model {
        self.model
    }

    /// The class logits of one sequence; for a model without pooling, the outputs step by step.
    ///
    /// # Errors
    /// An [`InferError`] that states how the sequence does not fit the model.
    pub fn logits(&self, sequence: Sequence<'_>) -> Result<Vec<f64>, InferError> {
        let Signal { mut x, steps } = self.encode(sequence)?;
        for layer in &self.layers {
            x = layer.forward(x, None);
        }
        Ok(self.head(x, steps))
    }

    /// The logits from the last layer's output, of which so many steps are no padding.
    pub(crate) fn head(&self, x: DMatrix<f64>, steps: usize) -> Vec<f64> {
        let head = self.model.head().expect("new() requested a head");
        let x = match self.model.final_norm() {
            Some(norm) => normalised(norm, x),
            None => x,
        };
        let pooled = match head.pooling {
            Some(Pooling::Mean) => {
                DMatrix::from_fn(1, x.ncols(), |_, h| x.column(h).rows(0, steps).mean())
            }
            Some(Pooling::Last) => x.rows(steps - 1, 1).into_owned(),
            None => x,
        };
        let logits = apply_linear(&head.linear, &pooled);
        logits.transpose().iter().copied().collect()
    }

    /// Runs the layers on a sequence and shows the input of each, L × H, after
    /// the normalisation where that comes first; then the steps that are no padding. Ends with
    /// layer `last`.
    pub(crate) fn visit_inputs(
        &self,
        sequence: Sequence<'_>,
        last: usize,
        mut show: impl FnMut(usize, &DMatrix<f64>, usize),
    ) -> Result<(), InferError> {
        let Signal { mut x, steps } = self.encode(sequence)?;
        for (index, layer) in self.layers.iter().enumerate() {
            show(index, &layer.input_of(&x), steps);
            if index >= last || index + 1 == self.layers.len() {
                break;
            }
            x = layer.forward(x, None);
        }
        Ok(())
    }

    /// The logits of many sequences, on all cores, in order.
    ///
    /// # Errors
    /// As [`Network::logits`], for the first sequence that fails; [`InferError::Cancelled`].
    pub fn logits_of_all(&self, sequences: &[Sequence<'_>]) -> Result<Vec<Vec<f64>>, InferError> {
        let observer = self.begin(Stage::Logits, sequences.len());
        let numbered = sequences.par_iter().enumerate();
        let logits = numbered.map(|(index, &sequence)| {
            observer.step()?;
            self.logits(sequence)
                .map_err(|source| InferError::Sequence {
                    index,
                    source: Box::new(source),
                })
        });
        logits.collect()
    }

    /// What the systems of a layer give, L × outputs, from the layer's input.
    pub(crate) fn response(&self, layer: usize, x: &DMatrix<f64>) -> DMatrix<f64> {
        self.layers[layer].response(x)
    }

    /// What the systems of a layer take, L × H, from the layer's input.
    pub(crate) fn system_input(&self, layer: usize, x: &DMatrix<f64>) -> DMatrix<f64> {
        self.layers[layer].input_of(x).into_owned()
    }

    /// What the map between the channels takes, from what the systems give.
    pub(crate) fn activated(&self, layer: usize, y: &DMatrix<f64>) -> DMatrix<f64> {
        self.layers[layer].activate(y)
    }

    /// A layer's output from its input and from what its systems give.
    pub(crate) fn finished(
        &self,
        layer: usize,
        x: &DMatrix<f64>,
        y: &DMatrix<f64>,
    ) -> DMatrix<f64> {
        self.layers[layer].finished(x, y)
    }

    /// The input of the first layer.
    pub(crate) fn encode(&self, sequence: Sequence<'_>) -> Result<Signal, InferError> {
        let encoder = self.model.encoder().expect("new() requested an encoder");
        let steps = encoder.takes().steps_of(sequence, self.length)?;
        let x = match (encoder, sequence) {
            (Encoder::Linear(linear), Sequence::Values(values)) => {
                let inputs = linear.weight.nrows();
                let padding = std::iter::repeat(0.0);
                let padded = values.iter().map(|&value| f64::from(value)).chain(padding);
                let u = DMatrix::from_row_iterator(self.length, inputs, padded);
                apply_linear(linear, &u)
            }
            (Encoder::Embedding(table), Sequence::Tokens(tokens)) => self.embed(table, tokens),
            _ => unreachable!("the kind was checked"),
        };
        Ok(Signal { x, steps })
    }

    fn embed(&self, table: &DMatrix<f64>, tokens: &[u32]) -> DMatrix<f64> {
        let mut x = DMatrix::zeros(self.length, table.nrows());
        let padded = tokens.iter().chain(std::iter::repeat(&0));
        for (step, &token) in padded.take(self.length).enumerate() {
            x.set_row(step, &table.column(token as usize).transpose());
        }
        x
    }
}
