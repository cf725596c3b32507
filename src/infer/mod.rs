//! Running a model on whole sequences on the host.
//!
//! This is the path that accuracies and comparisons come from. It keeps no state between calls
//! and needs no training crate. Every sequence is independent, so they run on all cores: in single
//! precision, a few sequences at a time in vector lanes, where the network has nothing but what
//! that path knows; else, and on request, in double precision.

pub(crate) mod adjoint;
mod layer;
mod mimo;
pub(crate) mod norms;
mod score;
mod single;
mod space;
mod waiting;
mod walk;

use std::fmt;
use std::io;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

pub(crate) use adjoint::{MapSlopes, OutputGradients, SystemSlopes, combination, importance_from};
use hankelite_control::{Convolver, SystemError};
pub(crate) use layer::StepSums;
use layer::{Layer, apply_linear, normalised};
use nalgebra::DMatrix;
use rayon::prelude::*;
pub use score::{AccuracyLoss, Answers, Score};
use single::Single;
pub(crate) use single::{Setup, VectorSlopes};
pub(crate) use waiting::Waiting;
pub(crate) use walk::Walk;

use crate::model::{Encoder, InputError, Model, Pooling, Sequence};
use crate::progress::{Cancelled, ProgressSink, in_order, stage};

/// How the state space layers are evaluated. All give the same numbers to rounding.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum Path {
    /// The fastest one that is right to single precision: in single precision where every system
    /// has one input and one output and all parts of the network are known there, else as
    /// [`Path::Double`].
    Auto,
    /// Double precision: by FFT where every system of a layer has one input and one output, else
    /// by the recurrence.
    Double,
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
    /// The data are not what the encoder takes.
    #[error(transparent)]
    Input(#[from] InputError),
    /// The input of a layer has no statistics, e.g. because numbers overflow on the way.
    #[error("{0}")]
    Statistics(String),
    /// A layer whose kernel cannot be formed.
    #[error(transparent)]
    System(#[from] SystemError),
    /// Anything else: what was found, what was expected, where.
    #[error("{0}")]
    Other(String),
    /// The observer of the network requested the end of the work.
    #[error(transparent)]
    Cancelled(#[from] Cancelled),
}

impl InferError {
    /// Of a model without `missing`, its encoder or its head.
    pub(crate) fn no_classifier(missing: &str) -> Self {
        Self::Other(format!(
            "the model has no {missing}: layers alone were read, expected a whole classifier"
        ))
    }

    /// Of statistics of nothing.
    pub(crate) fn no_sequences() -> Self {
        Self::Other("no sequences to gather statistics from".to_string())
    }

    /// Of one of many sequences, by its place among those given.
    pub(crate) fn of_sequence(index: usize, fault: impl fmt::Display) -> Self {
        Self::Other(format!("sequence {index}: {fault}"))
    }

    /// Of the input of a layer, or of the gradient there.
    pub(crate) fn of_input(layer: usize, fault: impl fmt::Display) -> Self {
        Self::Statistics(format!("the input of layer {layer}: {fault}"))
    }

    /// Of the temporary file for long sequences that wait before a layer.
    fn of_store(fault: io::Error) -> Self {
        Self::Other(format!(
            "long sequences wait in a temporary file in `{}`: {}; set TMPDIR to a folder with more room",
            std::env::temp_dir().display(),
            fault.kind()
        ))
    }
}

/// Bytes of sequences that go through a layer before the first of them goes through the next.
const WAITING: usize = 1 << 30;

/// A model prepared for sequences of one length.
pub struct Network<'a> {
    model: &'a Model,
    single: Option<Single>,
    path: Path,
    /// Formed at first use where the single precision path does the work.
    layers: OnceLock<Vec<Layer<'a>>>,
    length: usize,
    observer: &'a dyn ProgressSink,
}

impl<'a> Network<'a> {
    /// Forms kernels, spectra or recurrences for sequences of `length` steps. Channels run in
    /// parallel. Cost O(H N L) per layer.
    ///
    /// # Errors
    /// [`InferError`] for layers alone; [`InferError::System`].
    pub fn new(model: &'a Model, length: usize, path: Path) -> Result<Self, InferError> {
        Self::with_setup(model, length, path, &Setup::default())
    }

    /// As [`Network::new`], with the buffers of other networks.
    ///
    /// # Errors
    /// As [`Network::new`].
    pub(crate) fn with_setup(
        model: &'a Model,
        length: usize,
        path: Path,
        setup: &Setup,
    ) -> Result<Self, InferError> {
        if model.encoder().is_none() {
            return Err(InferError::no_classifier("encoder"));
        }
        if model.head().is_none() {
            return Err(InferError::no_classifier("head"));
        }
        let single = match path {
            Path::Auto => Single::new(model, length, setup),
            _ => None,
        };
        let network = Self {
            model,
            single,
            path,
            layers: OnceLock::new(),
            length,
            observer: &(),
        };
        if network.single.is_none() {
            network.layers()?;
        }
        Ok(network)
    }

    /// The layers in double precision.
    fn layers(&self) -> Result<&[Layer<'a>], InferError> {
        if let Some(layers) = self.layers.get() {
            return Ok(layers);
        }
        let convolver = std::sync::Arc::new(Convolver::new(self.length));
        let layers = self.model.blocks().iter();
        let layers = layers.map(|block| Layer::new(block, self.length, self.path, &convolver));
        let layers = layers.collect::<Result<Vec<_>, _>>()?;
        Ok(self.layers.get_or_init(|| layers))
    }

    /// The same network, whose work on many sequences `observer` follows and can cancel.
    #[must_use]
    pub fn observed(self, observer: &'a dyn ProgressSink) -> Self {
        Self { observer, ..self }
    }

    /// Begins a stage of work on so many sequences.
    pub(crate) fn begin(&self, stage: &'static str, sequences: usize) -> &'a dyn ProgressSink {
        self.observer.begin(stage, sequences);
        self.observer
    }

    /// Steps that sequences are padded to.
    pub(crate) fn length(&self) -> usize {
        self.length
    }

    /// The model that runs.
    pub(crate) fn model(&self) -> &'a Model {
        self.model
    }

    /// The class logits of one sequence; for a model without pooling, the outputs step by step.
    ///
    /// # Errors
    /// An [`InferError`] that states how the sequence does not fit the model.
    pub fn logits(&self, sequence: Sequence<'_>) -> Result<Vec<f64>, InferError> {
        let mut logits = self.logits_of_few(&[sequence], &[self.steps_of(sequence)?])?;
        Ok(logits.swap_remove(0))
    }

    /// Steps of a sequence that fits the model.
    fn steps_of(&self, sequence: Sequence<'_>) -> Result<usize, InferError> {
        let encoder = self.model.encoder().expect("new() requested an encoder");
        Ok(encoder.takes().steps_of(sequence, self.length)?)
    }

    /// Steps of sequences that all fit the model.
    pub(crate) fn steps_of_all(
        &self,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<usize>, InferError> {
        let numbered = sequences.par_iter().enumerate();
        let steps = numbered.map(|(index, &sequence)| {
            let steps = self.steps_of(sequence);
            steps.map_err(|fault| InferError::of_sequence(index, fault))
        });
        in_order(steps)
    }

    /// Sequences that one thread takes at a time.
    pub(crate) fn together(&self) -> usize {
        self.single.as_ref().map_or(1, Single::together)
    }

    /// The logits of at most [`Network::together`] sequences, which were checked.
    fn logits_of_few(
        &self,
        sequences: &[Sequence<'_>],
        steps: &[usize],
    ) -> Result<Vec<Vec<f64>>, InferError> {
        if let Some(single) = &self.single {
            let pooling = self.pooling();
            let features = single.features(sequences, steps, pooling);
            return Ok(features.iter().map(|of| self.read_out(of)).collect());
        }
        let layers = self.layers()?;
        let logits = sequences.iter().map(|&sequence| {
            let Signal { mut x, steps } = self.encode(sequence)?;
            for layer in layers {
                x = layer.forward(x, None);
            }
            Ok(self.head(x, steps))
        });
        logits.collect()
    }

    /// What the head takes for a sequence: one row, or one for each step where nothing is pooled.
    pub(crate) fn pooled(&self, sequence: Sequence<'_>) -> Result<DMatrix<f64>, InferError> {
        if let Some(single) = &self.single {
            let steps = self.steps_of(sequence)?;
            let mut features = single.features(&[sequence], &[steps], self.pooling());
            let own = features.swap_remove(0);
            let channels = self
                .model
                .head()
                .map_or(0, |head| head.linear.weight.nrows());
            let rows = own.len() / channels.max(1);
            return Ok(DMatrix::from_row_slice(rows, channels, &own));
        }
        let Signal { mut x, steps } = self.encode(sequence)?;
        for layer in self.layers()? {
            x = layer.forward(x, None);
        }
        Ok(self.features(x, steps))
    }

    fn pooling(&self) -> Option<Pooling> {
        self.model.head().expect("new() requested a head").pooling
    }

    /// The logits from what the head takes, one row for each step where nothing is pooled.
    fn read_out(&self, features: &[f64]) -> Vec<f64> {
        let linear = &self.model.head().expect("new() requested a head").linear;
        let rows = features.chunks_exact(linear.weight.nrows().max(1));
        let logits = rows.flat_map(|row| {
            let of_class = |(class, column): (usize, nalgebra::DVectorView<'_, f64>)| {
                let offset = linear.bias.as_ref().map_or(0.0, |bias| bias[class]);
                let products = column.iter().zip(row).map(|(w, x)| w * x);
                offset + products.sum::<f64>()
            };
            let columns = linear.weight.column_iter().enumerate();
            columns.map(of_class).collect::<Vec<_>>()
        });
        logits.collect()
    }

    /// What the head takes from the last layer's output, of which so many steps are no padding: one
    /// row, or one for each step where nothing is pooled.
    fn features(&self, x: DMatrix<f64>, steps: usize) -> DMatrix<f64> {
        let x = match self.model.final_norm() {
            Some(norm) => normalised(norm, x),
            None => x,
        };
        match self.pooling() {
            Some(Pooling::Mean) => {
                DMatrix::from_fn(1, x.ncols(), |_, h| x.column(h).rows(0, steps).mean())
            }
            Some(Pooling::Last) => x.rows(steps - 1, 1).into_owned(),
            None => x,
        }
    }

    /// The logits from the last layer's output, of which so many steps are no padding.
    pub(crate) fn head(&self, x: DMatrix<f64>, steps: usize) -> Vec<f64> {
        let head = self.model.head().expect("new() requested a head");
        let logits = apply_linear(&head.linear, &self.features(x, steps));
        logits.transpose().iter().copied().collect()
    }

    /// Runs the layers on a few sequences and shows the input of each for each of them (its place in
    /// the list), L × H, after the normalisation where that comes first; then the steps that are no
    /// padding. Ends with layer `last`.
    pub(crate) fn visit_inputs(
        &self,
        sequences: &[Sequence<'_>],
        last: usize,
        mut show: impl FnMut(usize, usize, &DMatrix<f64>, usize),
    ) -> Result<(), InferError> {
        if let Some(single) = &self.single {
            let mut buffers = single.buffers();
            for (first, few) in sequences.chunks(single.together()).enumerate() {
                let steps = few.iter().map(|&sequence| self.steps_of(sequence));
                let steps = steps.collect::<Result<Vec<_>, _>>()?;
                single.run(few, &mut buffers, last, |layer, input| {
                    let each = input.len() / few.len();
                    for (i, input) in input.chunks_exact(each).enumerate() {
                        let input = columns_of(input, each / self.length);
                        show(first * single.together() + i, layer, &input, steps[i]);
                    }
                });
            }
            return Ok(());
        }
        let layers = self.layers()?;
        for (index, &sequence) in sequences.iter().enumerate() {
            let Signal { mut x, steps } = self.encode(sequence)?;
            for (at, layer) in layers.iter().enumerate() {
                show(index, at, &layer.input_of(&x), steps);
                if at >= last || at + 1 == layers.len() {
                    break;
                }
                x = layer.forward(x, None);
            }
        }
        Ok(())
    }

    /// The logits of many sequences, on all cores, in order.
    ///
    /// # Errors
    /// As [`Network::logits`], for the first sequence that fails; [`InferError::Cancelled`].
    pub fn logits_of_all(&self, sequences: &[Sequence<'_>]) -> Result<Vec<Vec<f64>>, InferError> {
        let observer = self.begin(stage::LOGITS, sequences.len());
        if let Some(single) = self.single.as_ref().filter(|own| own.forms_operators()) {
            return self.logits_by_layers(single, sequences);
        }
        let steps = self.steps_of_all(sequences)?;
        let few = self.together();
        let parts = sequences.par_chunks(few).zip(steps.par_chunks(few));
        let logits = parts.map(|(few, steps)| {
            observer.check()?;
            let logits = self.logits_of_few(few, steps)?;
            observer.advance(few.len());
            Ok(logits)
        });
        Ok(logits.collect::<Result<Vec<_>, InferError>>()?.concat())
    }

    /// As [`Network::logits_of_all`], many sequences through one layer after the other: each operator is
    /// formed once for all of them.
    fn logits_by_layers(
        &self,
        single: &Single,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<Vec<f64>>, InferError> {
        self.steps_of_all(sequences)?;
        let layers = self.model.blocks().len();
        let many = (WAITING / (size_of::<f32>() * single.row())).max(single.together());
        let mut logits = Vec::with_capacity(sequences.len());
        for sequences in sequences.chunks(many) {
            let mut walk = self.walk(sequences)?;
            let done = AtomicUsize::new(0);
            for _ in 0..layers {
                // A sequence counts when the layers that were passed add up to all of one.
                walk.pass(|count| {
                    let before = done.fetch_add(count, Ordering::Relaxed);
                    let whole = (before + count) / layers - before / layers;
                    self.observer.advance(whole);
                })?;
            }
            logits.append(&mut walk.logits()?);
        }
        Ok(logits)
    }

    /// The single precision path, where it has the operators of all layers at hand.
    fn with_operators(&self) -> Option<&Single> {
        self.single.as_ref().filter(|own| !own.forms_operators())
    }

    /// Rows of some steps as a matrix.
    fn widened(&self, rows: &[f32]) -> DMatrix<f64> {
        let width = self.single.as_ref().map_or(1, Single::channels);
        columns_of(rows, width)
    }

    /// What the systems of a layer give, L × outputs, from the layer's input.
    pub(crate) fn response(
        &self,
        layer: usize,
        x: &DMatrix<f64>,
    ) -> Result<DMatrix<f64>, InferError> {
        if let Some(single) = self.with_operators() {
            let mut y = rows_of(x);
            single.respond_to(layer, &mut y);
            return Ok(self.widened(&y));
        }
        Ok(self.layers()?[layer].response(x))
    }

    /// What the systems of a layer take, L × H, from the layer's input.
    pub(crate) fn system_input(
        &self,
        layer: usize,
        x: &DMatrix<f64>,
    ) -> Result<DMatrix<f64>, InferError> {
        if let Some(single) = self.with_operators() {
            let mut input = rows_of(x);
            single.normalise(layer, &mut input);
            return Ok(self.widened(&input));
        }
        Ok(self.layers()?[layer].input_of(x).into_owned())
    }

    /// What the map between the channels takes, from what the systems give.
    pub(crate) fn activated(
        &self,
        layer: usize,
        y: &DMatrix<f64>,
    ) -> Result<DMatrix<f64>, InferError> {
        if let Some(single) = self.with_operators() {
            return Ok(self.widened(&single.activated(layer, &rows_of(y))));
        }
        Ok(self.layers()?[layer].activate(y))
    }

    /// A layer's output from its input and from what its systems give.
    pub(crate) fn finished(
        &self,
        layer: usize,
        x: &DMatrix<f64>,
        y: &DMatrix<f64>,
    ) -> Result<DMatrix<f64>, InferError> {
        if let Some(single) = self.with_operators() {
            let mut x = rows_of(x);
            single.finish_with(layer, &mut x, &rows_of(y));
            return Ok(self.widened(&x));
        }
        Ok(self.layers()?[layer].finished(x, y))
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

/// Steps that are turned from columns into rows at a time, so that both stay in the cache.
const STEPS_TURNED: usize = 16;

/// The numbers of a matrix by rows, in single precision.
fn rows_of(matrix: &DMatrix<f64>) -> Vec<f32> {
    let (steps, width) = matrix.shape();
    let mut rows = vec![0.0; matrix.len()];
    let some = (STEPS_TURNED * width).max(1);
    for (index, rows) in rows.chunks_mut(some).enumerate() {
        let first = index * STEPS_TURNED;
        for (h, column) in matrix.column_iter().enumerate() {
            let column = column.rows_range(first..steps.min(first + STEPS_TURNED));
            let row = rows.chunks_exact_mut(width).zip(column.iter());
            row.for_each(|(row, &x)| row[h] = x as f32);
        }
    }
    rows
}

/// The other way round.
fn columns_of(rows: &[f32], width: usize) -> DMatrix<f64> {
    let steps = rows.len() / width.max(1);
    let mut matrix = DMatrix::zeros(steps, width);
    for (index, rows) in rows.chunks((STEPS_TURNED * width).max(1)).enumerate() {
        let first = index * STEPS_TURNED;
        for (h, mut column) in matrix.column_iter_mut().enumerate() {
            let mut column = column.rows_range_mut(first..steps.min(first + STEPS_TURNED));
            let row = rows.chunks_exact(width).zip(column.iter_mut());
            row.for_each(|(row, x)| *x = f64::from(row[h]));
        }
    }
    matrix
}

/// The shipped model.
#[cfg(test)]
fn waves() -> Model {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/models/waves/model.safetensors"
    );
    let read = crate::read(path, &crate::Declared::default());
    read.expect("it is in the repository").model
}
